//! SQL as the job file holds it: which entries it names, and where it is wrong.
//!
//! Positions are a line and a column inside the SQL text, both from 1; the job crate maps them into the YAML.

mod arithmetic;
mod casts;
mod columns;
mod constants;
mod dialect_hints;
pub mod files;
pub mod function;
mod json;
mod json_operators;
mod moment;
mod rewrite;
mod same_names;
mod sum;
mod tokens;
pub mod unions;
mod using;

use std::sync::Arc;

use datafusion::common::{Column, DFSchema, SchemaError, Span};
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::{FunctionRegistry, SessionState};
use datafusion::sql::parser::{DFParser, Statement};
use datafusion::sql::resolve::resolve_table_references;
use datafusion::sql::sqlparser::ast::Statement as SqlStatement;
use datafusion::sql::sqlparser::dialect::{Dialect, GenericDialect, MySqlDialect, PostgreSqlDialect, SQLiteDialect};
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use millstream_core::hint::nearest;
use millstream_job::SqlFault;

use datafusion::logical_expr::{AggregateUDF, Expr};
use datafusion::prelude::SessionContext;

use crate::reword::{AGGREGATE_IN_WHERE, Words, first_line, lower_first, reword};
pub use casts::LATE_CAST;
pub use columns::columns;
pub use constants::constant_fault;
pub use dialect_hints::calls;
pub use moment::begin_at;
pub use rewrite::expressions as rewritten;
pub use same_names::same_names;
pub use tokens::normalised;
pub use using::qualify;

/// `context` with arithmetic that fails where DataFusion's own gives wrong numbers, with constants that fail only
/// where a row needs them, and with functions on JSON.
pub fn checked(mut context: SessionContext) -> SessionContext {
    context.add_analyzer_rule(Arc::new(arithmetic::CheckedArithmetic));
    context.add_analyzer_rule(Arc::new(casts::LateCasts));
    context.register_udaf(AggregateUDF::from(sum::CheckedSum::default()));
    json::Wanted::ALL.into_iter().for_each(|wanted| context.register_udf(json::function(wanted)));
    // A session takes every planner.
    let _ = context.register_expr_planner(Arc::new(json_operators::JsonOperators::default()));
    context
}

/// What is wrong with a SQL text, and how many characters of it are at fault (at least one).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanFault {
    /// The fault and its place in the text.
    pub fault: SqlFault,
    /// Characters at fault.
    pub length: usize,
}

impl PlanFault {
    /// Whether `other` begins at the same place.
    pub fn is_where(&self, other: &PlanFault) -> bool {
        (self.fault.line, self.fault.column) == (other.fault.line, other.fault.column)
    }
}

/// Whether `error` is about a column that does not exist.
pub fn is_unknown_column(error: &DataFusionError) -> bool {
    let DataFusionError::SchemaError(schema, _) = root(error) else { return false };
    matches!(**schema, SchemaError::FieldNotFound { .. })
}

fn at_start(what: impl Into<String>) -> SqlFault {
    SqlFault { line: 1, column: 1, what: what.into(), hint: None }
}

/// The tables that a query names, each once, in an order that depends on nothing but the text.
pub fn references(sql: &str) -> Result<Vec<String>, SqlFault> {
    let statement = parse(sql)?;
    let (tables, _) =
        resolve_table_references(&statement, true).map_err(|error| at_start(reword(&error.strip_backtrace()).what))?;
    let mut names: Vec<String> = tables.iter().map(|table| table.table().to_owned()).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// The expression `sql` over rows of `schema`.
pub fn expression(state: &SessionState, sql: &str, schema: &DFSchema) -> DataFusionResult<Expr> {
    let dialect = state.config_options().sql_parser.dialect;
    let mut parsed = state.sql_to_expr_with_alias(sql, &dialect)?;
    json_operators::bind(&mut parsed.expr);
    state.create_logical_expr_from_sql_expr(parsed, schema)
}

/// Why a text is not one query.
enum NotOneQuery {
    Syntax(SqlFault),
    Empty,
    Several,
    Other,
}

/// One query, or what is wrong with the text, which is that of an entry.
pub fn parse(sql: &str) -> Result<Statement, SqlFault> {
    one_query(sql).map_err(|fault| {
        let (what, hint) = match fault {
            NotOneQuery::Syntax(fault) => return fault,
            NotOneQuery::Empty => ("the SQL is empty", "write a query: SELECT …"),
            NotOneQuery::Several => (
                "an entry holds one query, not several",
                "give each query an entry of its own; an entry is used by its name",
            ),
            NotOneQuery::Other => {
                ("this statement is not a query", "a transform is a query: SELECT …, WITH … SELECT …, VALUES …")
            }
        };
        SqlFault { hint: Some(hint.to_owned()), ..at_start(what) }
    })
}

/// What the parser does not understand of `sql`, which is for the database at `url`. It does not know all that a
/// database does.
pub fn foreign_fault(sql: &str, url: &str) -> Option<SqlFault> {
    let dialect: &dyn Dialect = match url.split(':').next()? {
        "postgres" | "postgresql" => &PostgreSqlDialect {},
        "mysql" | "mariadb" => &MySqlDialect {},
        "sqlite" => &SQLiteDialect {},
        _ => return None,
    };
    let error = Parser::parse_sql(dialect, sql).err()?;
    Some(syntax_fault(sql, &DataFusionError::SQL(Box::new(error), None)))
}

fn one_query(sql: &str) -> Result<Statement, NotOneQuery> {
    let statements = DFParser::parse_sql(sql).map_err(|error| NotOneQuery::Syntax(syntax_fault(sql, &error)))?;
    let mut statements = statements.into_iter();
    match (statements.next(), statements.next()) {
        (None, _) => Err(NotOneQuery::Empty),
        (Some(_), Some(_)) => Err(NotOneQuery::Several),
        (Some(Statement::Statement(mut statement)), None) if matches!(*statement, SqlStatement::Query(_)) => {
            json_operators::bind(statement.as_mut());
            Ok(Statement::Statement(statement))
        }
        (Some(_), None) => Err(NotOneQuery::Other),
    }
}

/// The parser ends its messages with `at Line: 1, Column: 8`, unless the text ends too early.
fn syntax_fault(sql: &str, error: &DataFusionError) -> SqlFault {
    let message = match root(error) {
        DataFusionError::SQL(parser, _) => match parser.as_ref() {
            ParserError::TokenizerError(message) | ParserError::ParserError(message) => message.clone(),
            ParserError::RecursionLimitExceeded => "it is nested too deeply".to_owned(),
        },
        other => other.strip_backtrace(),
    };
    let message = first_line(&message);
    let (what, place) = match message.rsplit_once(" at Line: ") {
        Some((what, place)) => (what, place.split_once(", Column: ")),
        None => (message, None),
    };
    let place = place.and_then(|(line, column)| {
        let column: String = column.chars().take_while(char::is_ascii_digit).collect();
        Some((line.trim().parse().ok()?, column.parse().ok()?))
    });
    let what = match what.strip_prefix("Expected: ").and_then(|what| what.rsplit_once(", found: ")) {
        Some((expected, "EOF")) => format!("expected {expected}, found the end"),
        Some((expected, found)) => format!("expected {expected}, found `{found}`"),
        None => lower_first(what),
    };
    let (line, column) = place.unwrap_or_else(|| end(sql));
    let hint = dialect_hints::word_hint(sql, line, column).or_else(|| dialect_hints::parentheses_hint(sql));
    SqlFault { line, column, what: format!("the SQL does not parse: {what}"), hint }
}

/// The place behind the last character that says something.
fn end(sql: &str) -> (usize, usize) {
    let sql = sql.trim_end();
    (sql.lines().count().max(1), sql.lines().last().map_or(0, |line| line.chars().count()) + 1)
}

/// A fault that the planner found in `sql`: a column or function that does not exist, types that do not fit.
pub fn plan_fault(sql: &str, error: &DataFusionError) -> PlanFault {
    let root = root(error);
    if let DataFusionError::SQL(..) = root {
        return PlanFault { fault: syntax_fault(sql, error), length: 1 };
    }
    if let Some(fault) = dialect_hints::dot_fault(sql, &root.strip_backtrace()) {
        return fault;
    }
    let mut described = describe(root);
    let named = described.word.as_deref().map(|word| word.rsplit('.').next().unwrap_or(word));
    let place = diagnostic_place(error).or_else(|| {
        let word = named?;
        find_word(sql, word).map(|(line, column)| (line, column, word.chars().count()))
    });
    let place = place.or_else(|| find_text(sql, described.text.as_deref()?));
    let place =
        place.or_else(|| dialect_hints::aggregate_in_where(sql).filter(|_| described.what == AGGREGATE_IN_WHERE));
    let (line, column, length) = place.unwrap_or((1, 1, 1));
    if let DataFusionError::SchemaError(schema, _) = root
        && matches!(**schema, SchemaError::FieldNotFound { .. })
        && let Some(text) = dialect_hints::text_hint(sql, line, column)
    {
        described.hint = Some(match described.hint {
            Some(hint) => format!("{text}; {hint}"),
            None => text,
        });
    }
    PlanFault { fault: SqlFault { line, column, what: described.what, hint: described.hint }, length }
}

/// The function that `error` is about, if it is about its arguments.
pub fn function_at_fault(error: &DataFusionError) -> Option<String> {
    let words = describe(root(error));
    words.word.filter(|_| words.what.contains("takes no argument") || words.what.contains(", and is given ("))
}

/// The innermost fault; of several, the first.
fn root(error: &DataFusionError) -> &DataFusionError {
    match error.find_root() {
        DataFusionError::Collection(errors) if !errors.is_empty() => root(&errors[0]),
        DataFusionError::Diagnostic(_, inner) => root(inner),
        root => root,
    }
}

fn describe(error: &DataFusionError) -> Words {
    match error {
        DataFusionError::SchemaError(schema, _) => describe_schema(schema),
        other => reword(&other.strip_backtrace()),
    }
}

fn describe_schema(error: &SchemaError) -> Words {
    match error {
        SchemaError::FieldNotFound { field, valid_fields } => Words {
            what: format!("there is no column `{}`", field.flat_name()),
            hint: column_hint(field, valid_fields),
            word: Some(field.name.clone()),
            ..Words::default()
        },
        // With its table it is a column that another one of the result stands beside.
        SchemaError::AmbiguousReference { field } if field.relation.is_some() => Words {
            what: format!("two columns have the same name: {}", field.name),
            hint: Some("give one of them another name with AS".into()),
            word: Some(field.name.clone()),
            ..Words::default()
        },
        SchemaError::AmbiguousReference { field } => Words {
            what: format!("`{}` is a column of several tables", field.name),
            hint: Some("say which: table.column".into()),
            word: Some(field.name.clone()),
            ..Words::default()
        },
        other => reword(&other.to_string()),
    }
}

fn column_hint(wanted: &Column, valid: &[Column]) -> Option<String> {
    let mut all: Vec<String> = Vec::new();
    for name in valid.iter().map(Column::quoted_flat_name) {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    if all.is_empty() {
        return None;
    }
    let all = format!("valid columns: {}", all.join(", "));
    Some(match nearest(&wanted.name, valid.iter().map(|column| column.name.as_str())) {
        Some(name) if name.eq_ignore_ascii_case(&wanted.name) && name.chars().any(char::is_uppercase) => {
            format!("did you mean \"{name}\"? names with capital letters need double quotes; {all}")
        }
        Some(name) => format!("did you mean `{name}`? {all}"),
        None => all,
    })
}

/// Where the planner says the fault lies: line, column and characters.
fn diagnostic_place(error: &DataFusionError) -> Option<(usize, usize, usize)> {
    let diagnostic = match error {
        DataFusionError::Collection(errors) => errors.first()?.diagnostic()?,
        error => error.diagnostic()?,
    };
    let Span { start, end } = diagnostic.span?;
    let length = if start.line == end.line { end.column.saturating_sub(start.column).max(1) } else { 1 };
    Some((start.line as usize, start.column as usize, length as usize))
}

/// The first place in `sql` where `name` stands as a word, quoted or not.
fn find_word(sql: &str, name: &str) -> Option<(usize, usize)> {
    let tokens = Tokenizer::new(&GenericDialect {}, sql).tokenize_with_location().ok()?;
    let found = tokens.into_iter().find(|token| match &token.token {
        Token::Word(word) => {
            word.value == name || (word.quote_style.is_none() && word.value.eq_ignore_ascii_case(name))
        }
        _ => false,
    })?;
    Some((found.span.start.line as usize, found.span.start.column as usize))
}

/// The first place in `sql` where the literal `text` stands, with its quotes.
fn find_text(sql: &str, text: &str) -> Option<(usize, usize, usize)> {
    let tokens = Tokenizer::new(&GenericDialect {}, sql).tokenize_with_location().ok()?;
    let found = tokens.into_iter().find(|token| match &token.token {
        Token::SingleQuotedString(literal) | Token::Number(literal, _) => literal == text,
        _ => false,
    })?;
    let Span { start, end } = Span::try_from_sqlparser_span(found.span)?;
    let length = if start.line == end.line { end.column.saturating_sub(start.column).max(1) } else { 1 };
    Some((start.line as usize, start.column as usize, length as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(sql: &str) -> Vec<String> {
        references(sql).expect("a query")
    }

    #[test]
    fn a_query_names_its_tables_and_not_its_own() {
        assert_eq!(
            names("WITH w AS (SELECT * FROM a) SELECT * FROM w JOIN b USING (x) WHERE y IN (SELECT y FROM c)"),
            ["a", "b", "c"]
        );
        assert_eq!(names("SELECT * FROM \"Places\" p, \"Places\" q"), ["Places"]);
    }

    #[test]
    fn what_does_not_parse_has_its_place() {
        let fault = parse("SELECT a\nFROM t WHRE b").expect_err("WHRE");
        assert_eq!((fault.line, fault.column), (2, 13), "{fault:?}");
        assert!(fault.what.starts_with("the SQL does not parse"), "{fault:?}");
    }

    #[test]
    fn what_cannot_be_computed_is_found_where_it_is_surely_computed() {
        let context = datafusion::prelude::SessionContext::new();
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let fault = |sql: &str| {
            let statement = parse(sql).expect("a query");
            let plan = runtime.block_on(context.state().statement_to_plan(statement)).expect("a plan");
            let error = constant_fault(&context.state(), &plan)?;
            let PlanFault { fault, length } = plan_fault(sql, &error);
            Some((fault.what, fault.column, length))
        };
        let texts = |(what, column, length)| Some((String::from(what), column, length));
        assert_eq!(fault("SELECT CAST('a' AS int)"), texts(("the text cannot be converted to int32", 13, 3)));
        assert_eq!(
            fault("SELECT n FROM (VALUES (1)) v(n) WHERE n = 'abc'"),
            texts(("the text cannot be converted to int64", 43, 5))
        );
        assert_eq!(fault("SELECT n + 1 / 0 FROM (VALUES (1)) v(n)"), texts(("division by zero", 1, 1)));
        for sql in [
            "SELECT CASE WHEN n > 1 THEN CAST('a' AS int) END FROM (VALUES (1)) v(n)",
            "SELECT coalesce(n, CAST('a' AS int)) FROM (VALUES (1)) v(n)",
            "SELECT n FROM (VALUES (1)) v(n) WHERE n > 1 AND CAST('a' AS int) = n",
            "SELECT TRY_CAST('a' AS int), now(), random(), CAST('5' AS int) / 2, to_timestamp('2024-01-01')",
        ] {
            assert_eq!(fault(sql), None, "{sql}");
        }
    }

    #[test]
    fn what_was_meant_is_suggested() {
        let context = datafusion::prelude::SessionContext::new();
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let fault = |sql: &str| match parse(sql) {
            Err(fault) => fault,
            Ok(statement) => {
                let error = runtime.block_on(context.state().statement_to_plan(statement)).expect_err(sql);
                plan_fault(sql, &error).fault
            }
        };
        for (sql, column, what, hint) in [
            (
                "SELECT v.n[1].sku FROM (VALUES (1)) v(n)",
                15,
                "a dot cannot follow an index",
                "write it as v.n[1]['sku']",
            ),
            (
                "SELECT 1, (v.n).sku FROM (VALUES (1)) v(n)",
                17,
                "a dot cannot follow parentheses",
                "write it as (v.n)['sku']",
            ),
            (
                "SELECT first_value( v.n ORDER BY 'it''s' ).\"o'k\" FROM (VALUES (1)) v(n)",
                44,
                "a dot cannot follow parentheses",
                "write it as first_value( v.n ORDER BY 'it''s' )['o''k']",
            ),
            (
                "SELECT max(v.n) FILTER (WHERE n > 1) OVER (PARTITION BY n).sku FROM (VALUES (1)) v(n)",
                60,
                "a dot cannot follow parentheses",
                "write it as max(v.n) FILTER (WHERE n > 1) OVER (PARTITION BY n)['sku']",
            ),
            (
                "SELECT n FROM (VALUES (1)) v(n) WHERE NOT (v.n).sku",
                49,
                "a dot cannot follow parentheses",
                "write it as (v.n)['sku']",
            ),
            (
                "SELECT array_agg(v.n)[1].sku FROM (VALUES (1)) v(n)",
                26,
                "a dot cannot follow an index",
                "write it as array_agg(v.n)[1]['sku']",
            ),
            (
                "SELECT (v.n\n).sku FROM (VALUES (1)) v(n)",
                3,
                "a dot cannot follow parentheses",
                "write ['sku'] without the dot",
            ),
            (
                "SELECT user.name FROM (VALUES (1)) v(n)",
                8,
                "`user` is a SQL keyword",
                "as a column, write it in double quotes: \"user\".name",
            ),
            (
                "SELECT e.user.name FROM (VALUES (1)) e(n)",
                10,
                "`user` is a SQL keyword",
                "as a field, write it in double quotes: e.\"user\"",
            ),
            (
                "SELECT TOP 3 n FROM (VALUES (1)) v(n)",
                8,
                "TOP is not supported",
                "put LIMIT and the number at the end of the query: LIMIT 3",
            ),
            (
                "SELECT n FROM (VALUES ('a')) v(n) WHERE n = \"Ann\"",
                45,
                "there is no column `Ann`",
                "text is written in single quotes: 'Ann'; valid columns: v.n",
            ),
            (
                "SELECT n, group FROM (VALUES (1)) v(n)",
                11,
                "the SQL does not parse: expected end of statement, found `group`",
                "`group` is a SQL keyword: as a column, write it in double quotes, \"group\"",
            ),
            (
                "SELECT sum(n) FROM (VALUES (1)) v(n) WHERE sum(n) > 3",
                44,
                "an aggregate function is not allowed in WHERE",
                "put conditions on aggregates in HAVING",
            ),
        ] {
            let fault = fault(sql);
            assert_eq!((fault.column, fault.what.as_str(), fault.hint.as_deref()), (column, what, Some(hint)), "{sql}");
        }
    }

    #[test]
    fn fields_are_written_as_the_hint_says() {
        let context = datafusion::prelude::SessionContext::new();
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        for expression in ["(v.n)", "first_value(v.n)", "unnest([v.n])", "array_agg(v.n)[1]", "max(v.n) OVER ()"] {
            let plan = |field: &str| {
                let sql = format!("SELECT {expression}{field} FROM (VALUES (named_struct('sku', 1))) v(n)");
                let statement = parse(&sql).expect("it parses");
                (runtime.block_on(context.state().statement_to_plan(statement)), sql)
            };
            let (planned, sql) = plan(".sku");
            let fault = plan_fault(&sql, &planned.expect_err("a dot")).fault;
            assert_eq!(fault.hint, Some(format!("write it as {expression}['sku']")));
            plan("['sku']").0.expect(expression);
        }
    }

    #[test]
    fn only_one_query_is_a_transform() {
        for (sql, what) in [
            ("", "empty"),
            ("SELECT 1; SELECT 2", "one query"),
            ("DROP TABLE a", "not a query"),
            ("INSERT INTO a VALUES (1)", "not a query"),
        ] {
            let fault = parse(sql).expect_err(sql);
            assert!(fault.what.contains(what), "{fault:?}");
        }
    }
}
