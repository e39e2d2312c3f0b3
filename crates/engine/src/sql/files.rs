//! The files that a query names: tables in quotes, such as `FROM 'data/*.csv.gz'`.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Ident, ObjectName, ObjectNamePart, Query, TableFactor, Visit, Visitor};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Location, Span, Token, TokenWithSpan, Tokenizer};
use millstream_job::SqlFault;

use super::{NotOneQuery, PlanFault, at_start, one_query};

/// A place where a query names a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileName {
    /// The name, without its quotes.
    pub name: String,
    /// Where it begins: line and column of its first quote.
    pub start: (usize, usize),
    /// The line and column behind its last quote.
    pub end: (usize, usize),
}

/// The files of a query.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// All places where one is named, in the order of the text.
    pub names: Vec<FileName>,
    /// The names of common table expressions, as SQL reads them.
    pub expressions: Vec<String>,
}

/// The files that `sql` names.
///
/// # Errors
/// If it is not one query; else everything that it names as a table, and that is no file.
pub fn files(sql: &str) -> Result<Files, Vec<PlanFault>> {
    one_query(sql).map_err(|fault| vec![no_query(sql, fault)])?;
    let tables = tables(sql).map_err(|cause| {
        let what = format!("the SQL does not parse a second time: {cause}");
        vec![PlanFault { fault: at_start(what), length: 1 }]
    })?;
    match tables.faults.is_empty() {
        true => Ok(tables.files),
        false => Err(tables.faults),
    }
}

fn no_query(sql: &str, fault: NotOneQuery) -> PlanFault {
    let (what, hint) = match fault {
        NotOneQuery::Syntax(fault) => {
            return PlanFault { length: token_length(sql, fault.line, fault.column), fault };
        }
        NotOneQuery::Empty => ("the query is empty", "write one, such as SELECT * FROM 'data/*.csv.gz'"),
        NotOneQuery::Several => ("there are several statements, not one query", "run each query by itself"),
        NotOneQuery::Other => ("this statement is not a query", "write SELECT …, or WITH … SELECT …"),
    };
    PlanFault { fault: SqlFault { hint: Some(hint.to_owned()), ..at_start(what) }, length: token_length(sql, 1, 1) }
}

/// Characters of the token at a place; at least 1.
fn token_length(sql: &str, line: usize, column: usize) -> usize {
    let tokens = Tokenizer::new(&GenericDialect {}, sql).tokenize_with_location().unwrap_or_default();
    let found = tokens.into_iter().map(|token| token.span).find(|span| place(span.start) == (line, column));
    match found {
        Some(span) if span.start.line == span.end.line => place(span.end).1.saturating_sub(column).max(1),
        _ => 1,
    }
}

fn place(location: Location) -> (usize, usize) {
    (location.line as usize, location.column as usize)
}

/// The tables of `sql`, a query that parses.
///
/// The parser keeps no place of a name in single quotes. So it reads the tokens of the query once more, where the text
/// of each such token is its number among the tokens: a table of that name is this token.
fn tables(sql: &str) -> Result<Tables, ParserError> {
    let mut tokens = Tokenizer::new(&GenericDialect {}, sql).tokenize_with_location()?;
    let mut quoted = Vec::new();
    for TokenWithSpan { token, span } in &mut tokens {
        if let Token::SingleQuotedString(text) = token {
            let number = quoted.len().to_string();
            quoted.push((std::mem::replace(text, number), *span));
        }
    }
    let statement = Parser::new(&GenericDialect {}).with_tokens_with_locations(tokens).parse_statement()?;
    let mut tables = Tables { quoted, ..Tables::default() };
    let _ = statement.visit(&mut tables);
    tables.files.names.sort_by_key(|name| name.start);
    tables.files.names.dedup();
    tables.faults.sort_by_key(|fault| (fault.fault.line, fault.fault.column));
    tables.faults.dedup();
    Ok(tables)
}

/// Collects the tables of a query.
#[derive(Default)]
struct Tables {
    /// The texts in single quotes and their places, by their numbers.
    quoted: Vec<(String, Span)>,
    /// The common table expressions that a table may be one of, where it stands.
    in_scope: Vec<String>,
    files: Files,
    faults: Vec<PlanFault>,
}

impl Tables {
    /// `ident` with its text and its place.
    fn original(&self, ident: &Ident) -> Ident {
        let number = ident.value.parse::<usize>().ok().filter(|_| ident.quote_style == Some('\''));
        match number.and_then(|number| self.quoted.get(number)) {
            Some((text, span)) => Ident::with_quote_and_span('\'', *span, text),
            None => ident.clone(),
        }
    }

    fn table(&mut self, name: &ObjectName) {
        let parts: Vec<Ident> =
            name.0.iter().filter_map(ObjectNamePart::as_ident).map(|part| self.original(part)).collect();
        match &parts[..] {
            [only] if self.in_scope.contains(&as_read(only)) => {}
            [only] if only.quote_style.is_some() => self.files.names.push(FileName {
                name: only.value.clone(),
                start: place(only.span.start),
                end: place(only.span.end),
            }),
            [first, .., last] | [first @ last] => {
                let shown: Vec<&str> = parts.iter().map(|part| part.value.as_str()).collect();
                let shown = shown.join(".");
                let hint = format!("the name of a file stands in quotes: '{shown}'");
                self.fault(first.span.start, last.span.end, format!("there is no table `{shown}`"), hint);
            }
            [] => {}
        }
    }

    fn fault(&mut self, start: Location, end: Location, what: String, hint: String) {
        let (line, column) = place(start);
        let length = if start.line == end.line { place(end).1.saturating_sub(column).max(1) } else { 1 };
        self.faults.push(PlanFault { fault: SqlFault { line, column, what, hint: Some(hint) }, length });
    }
}

/// A name as SQL reads it: in lower case unless it is quoted.
pub(super) fn as_read(ident: &Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() }
}

impl Visitor for Tables {
    type Break = ();

    /// The name of a common table expression is known in what follows it, and in itself if it is recursive. All of them
    /// are looked at here with what they know, and once more with the rest of the query: a name that was found then is
    /// dropped again.
    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        let Some(with) = &query.with else { return ControlFlow::Continue(()) };
        for expression in &with.cte_tables {
            let name = as_read(&self.original(&expression.alias.name));
            if !with.recursive {
                expression.visit(self)?;
            }
            self.files.expressions.push(name.clone());
            self.in_scope.push(name);
        }
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        let count = query.with.as_ref().map_or(0, |with| with.cte_tables.len());
        self.in_scope.truncate(self.in_scope.len() - count);
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, table: &TableFactor) -> ControlFlow<()> {
        if let TableFactor::Table { name, args, .. } = table {
            match (args, name.0.last().and_then(ObjectNamePart::as_ident)) {
                (Some(_), Some(function)) => {
                    let what = format!("`{}` cannot stand in FROM: it is no table", function.value);
                    let hint = "a file is a table by its name in quotes: FROM 'data/*.csv.gz'";
                    self.fault(function.span.start, function.span.end, what, hint.to_owned());
                }
                _ => self.table(name),
            }
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Found = (String, (usize, usize), (usize, usize));

    fn names(sql: &str) -> Vec<Found> {
        let files = files(sql).unwrap_or_else(|faults| panic!("{sql}: {faults:?}"));
        files.names.into_iter().map(|name| (name.name, name.start, name.end)).collect()
    }

    fn only_names(sql: &str) -> Vec<String> {
        names(sql).into_iter().map(|(name, ..)| name).collect()
    }

    #[test]
    fn names_in_quotes_are_files_and_have_places() {
        assert_eq!(
            names("SELECT 'a.csv', x.\"b\"\nFROM 'ä.csv' x\n  JOIN \"s3://b/**/*.parquet\" USING (id)"),
            [("ä.csv".into(), (2, 6), (2, 13)), ("s3://b/**/*.parquet".into(), (3, 8), (3, 29))]
        );
        // A quote in a name is doubled.
        assert_eq!(names("SELECT 1 FROM 'it''s.csv'"), [("it's.csv".into(), (1, 15), (1, 26))]);
    }

    #[test]
    fn texts_that_look_like_names_are_none() {
        let sql = "SELECT 'x.csv' AS \"y.csv\", INTERVAL '1 day', DATE '2026-01-01' FROM 'a.csv' \
                   WHERE s LIKE '0' ESCAPE '!' AND t IN ('0', '1') AND u = (SELECT max(v) FROM 'b.csv' \"c.csv\")";
        assert_eq!(only_names(sql), ["a.csv", "b.csv"]);
    }

    #[test]
    fn a_file_may_be_named_several_times() {
        assert_eq!(only_names("SELECT * FROM 'a.csv' x JOIN 'a.csv' y USING (id)"), ["a.csv", "a.csv"]);
        assert_eq!(only_names("SELECT * FROM 'a.csv' UNION ALL (SELECT * FROM 'b.csv' LIMIT 1)"), ["a.csv", "b.csv"]);
    }

    #[test]
    fn names_of_the_query_are_no_files() {
        let sql = "WITH \"a.csv\" AS (SELECT * FROM 'a.csv'), c AS (SELECT * FROM \"a.csv\") \
                   SELECT * FROM 'a.csv' JOIN C USING (id) JOIN (SELECT 1 AS id) AS \"d.csv\" USING (id)";
        let found = files(sql).expect("files");
        assert_eq!(found.names.iter().map(|name| name.start).collect::<Vec<_>>(), [(1, 32)]);
        assert_eq!(found.expressions.iter().filter(|name| *name == "c").count(), 1);
        // In the second branch the name is not known.
        let sql = "(WITH \"t\" AS (SELECT 1) SELECT * FROM 't') UNION (SELECT * FROM 't')";
        assert_eq!(names(sql), [("t".into(), (1, 65), (1, 68))]);
        let sql = "WITH RECURSIVE \"n\" AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM 'n' WHERE i < 3) SELECT * FROM n";
        assert_eq!(names(sql), []);
    }

    #[test]
    fn what_is_neither_is_told_with_its_place() {
        for (sql, column, length, what, hint) in [
            ("SELECT * FROM places", 15, 6, "there is no table `places`", "'places'"),
            ("SELECT * FROM data.places.csv", 15, 15, "there is no table `data.places.csv`", "'data.places.csv'"),
            ("SELECT * FROM 'a.csv', read_csv('b.csv')", 24, 8, "`read_csv` cannot stand in FROM", "FROM 'data/*.csv"),
            ("SELECT * FRM 'a.csv'", 10, 3, "the SQL does not parse", ""),
        ] {
            let [fault] = &files(sql).expect_err(sql)[..] else { panic!("{sql}: more faults than one") };
            assert_eq!((fault.fault.column, fault.length), (column, length), "{sql}: {fault:?}");
            assert!(fault.fault.what.starts_with(what), "{fault:?}");
            assert!(fault.fault.hint.as_deref().unwrap_or_default().contains(hint), "{fault:?}");
        }
        let faults = files("SELECT * FROM a JOIN b USING (id)").expect_err("two tables");
        assert_eq!(faults.iter().map(|fault| fault.fault.column).collect::<Vec<_>>(), [15, 22]);
    }
}
