//! SQL as the job file holds it: which entries it names, and where it is wrong.
//!
//! Positions are a line and a column inside the SQL text, both from 1; the job crate maps them into the YAML.

use datafusion::common::{Column, SchemaError};
use datafusion::error::DataFusionError;
use datafusion::sql::parser::{DFParser, Statement};
use datafusion::sql::resolve::resolve_table_references;
use datafusion::sql::sqlparser::ast::Statement as SqlStatement;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use millstream_core::hint::nearest;
use millstream_job::SqlFault;

/// What is wrong with a SQL text, and how many characters of it are at fault (at least one).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanFault {
    /// The fault and its place in the text.
    pub fault: SqlFault,
    /// Characters at fault.
    pub length: usize,
}

fn at_start(what: impl Into<String>) -> SqlFault {
    SqlFault { line: 1, column: 1, what: what.into(), hint: None }
}

/// The tables that a query names, each once, in an order that depends on nothing but the text.
pub fn references(sql: &str) -> Result<Vec<String>, SqlFault> {
    let statement = parse(sql)?;
    let (tables, _) =
        resolve_table_references(&statement, true).map_err(|error| at_start(first_line(&error.to_string())))?;
    let mut names: Vec<String> = tables.iter().map(|table| table.table().to_owned()).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// One query, or what is wrong with the text.
pub fn parse(sql: &str) -> Result<Statement, SqlFault> {
    let statements = DFParser::parse_sql(sql).map_err(|error| syntax_fault(&error))?;
    let mut statements = statements.into_iter();
    match (statements.next(), statements.next()) {
        (None, _) => Err(SqlFault { hint: Some("write a query: SELECT …".into()), ..at_start("the SQL is empty") }),
        (Some(_), Some(_)) => Err(SqlFault {
            hint: Some("give each query an entry of its own; an entry is used by its name".into()),
            ..at_start("an entry holds one query, not several")
        }),
        (Some(Statement::Statement(statement)), None) if matches!(*statement, SqlStatement::Query(_)) => {
            Ok(Statement::Statement(statement))
        }
        (Some(_), None) => Err(SqlFault {
            hint: Some("a transform is a query: SELECT …, WITH … SELECT …, VALUES …".into()),
            ..at_start("this statement is not a query")
        }),
    }
}

/// The parser ends its messages with `at Line: 1, Column: 8`.
fn syntax_fault(error: &DataFusionError) -> SqlFault {
    let message = match error.find_root() {
        DataFusionError::SQL(parser, _) => parser.to_string(),
        other => other.to_string(),
    };
    let message = first_line(&message);
    let message = message.trim_start_matches("sql parser error: ");
    let (what, place) = match message.rsplit_once(" at Line: ") {
        Some((what, place)) => (what, place.split_once(", Column: ")),
        None => (message, None),
    };
    let place = place.and_then(|(line, column)| {
        let column: String = column.chars().take_while(char::is_ascii_digit).collect();
        Some((line.trim().parse().ok()?, column.parse().ok()?))
    });
    let (line, column) = place.unwrap_or((1, 1));
    SqlFault { line, column, what: format!("the SQL does not parse: {}", lower_first(what)), hint: None }
}

/// A fault that the planner found in `sql`: a column or function that does not exist, types that do not fit.
pub fn plan_fault(sql: &str, error: &DataFusionError) -> PlanFault {
    let root = root(error);
    let described = describe(root);
    let word = described.word.as_deref();
    let place = diagnostic_place(error).or_else(|| word.and_then(|word| find_word(sql, word)));
    let (line, column) = place.unwrap_or((1, 1));
    PlanFault {
        fault: SqlFault { line, column, what: lower_first(&described.what), hint: described.hint },
        length: word.map_or(1, |word| word.chars().count()),
    }
}

/// The innermost fault; of several, the first.
fn root(error: &DataFusionError) -> &DataFusionError {
    match error.find_root() {
        DataFusionError::Collection(errors) if !errors.is_empty() => root(&errors[0]),
        DataFusionError::Diagnostic(_, inner) => root(inner),
        root => root,
    }
}

/// A fault in our words, and the word of the SQL that it is about.
struct Described {
    what: String,
    word: Option<String>,
    hint: Option<String>,
}

fn describe(error: &DataFusionError) -> Described {
    match error {
        DataFusionError::SchemaError(schema, _) => describe_schema(schema),
        DataFusionError::Plan(message) => describe_plan(message),
        other => Described { what: first_line(&other.strip_backtrace()), word: None, hint: None },
    }
}

fn describe_plan(message: &str) -> Described {
    let quoted = |rest: &str| rest.split('\'').next().unwrap_or_default().to_owned();
    match message.strip_prefix("Invalid function '").map(quoted) {
        Some(name) => {
            let nearest = message.split("Did you mean '").nth(1).map(quoted);
            Described {
                what: format!("there is no function `{name}`"),
                hint: nearest.map(|nearest| format!("did you mean `{nearest}`?")),
                word: Some(name),
            }
        }
        None => Described { what: first_line(message), word: None, hint: None },
    }
}

fn describe_schema(error: &SchemaError) -> Described {
    match error {
        SchemaError::FieldNotFound { field, valid_fields } => Described {
            what: format!("there is no column `{}`", field.flat_name()),
            hint: Some(column_hint(field, valid_fields)),
            word: Some(field.name.clone()),
        },
        SchemaError::AmbiguousReference { field } => Described {
            what: format!("`{}` is a column of several tables", field.name),
            hint: Some("say which: table.column".into()),
            word: Some(field.name.clone()),
        },
        other => Described { what: first_line(&other.to_string()), word: None, hint: None },
    }
}

fn column_hint(wanted: &Column, valid: &[Column]) -> String {
    let all: Vec<String> = valid.iter().map(Column::quoted_flat_name).collect();
    let all = format!("valid columns: {}", all.join(", "));
    match nearest(&wanted.name, valid.iter().map(|column| column.name.as_str())) {
        Some(name) if name.eq_ignore_ascii_case(&wanted.name) && name != wanted.name => {
            format!("did you mean \"{name}\"? names with capital letters need double quotes; {all}")
        }
        Some(name) => format!("did you mean `{name}`? {all}"),
        None => all,
    }
}

/// Where the planner says the fault lies.
fn diagnostic_place(error: &DataFusionError) -> Option<(usize, usize)> {
    let diagnostic = match error {
        DataFusionError::Collection(errors) => errors.first()?.diagnostic()?,
        error => error.diagnostic()?,
    };
    let start = diagnostic.span?.start;
    Some((start.line as usize, start.column as usize))
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

fn lower_first(message: &str) -> String {
    let mut message = message.to_owned();
    if let Some(first) = message.get_mut(0..1) {
        first.make_ascii_lowercase();
    }
    message
}

fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().trim_end_matches('.').to_owned()
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
