//! The columns that an expression names.

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{Expr, Ident, Visit, Visitor};
use millstream_job::sequence::NamedColumn;

use super::parse;

/// The columns that the query `sql` names, in the order of the text, without the parameters of its lambdas. None, if it
/// is no query.
pub fn columns(sql: &str) -> Vec<NamedColumn> {
    let mut names = Names::default();
    if let Ok(Statement::Statement(statement)) = parse(sql) {
        let _ = statement.visit(&mut names);
    }
    names.found
}

#[derive(Default)]
struct Names {
    /// The parameters of the lambdas around the place that is looked at.
    of_lambdas: Vec<String>,
    found: Vec<NamedColumn>,
}

impl Names {
    fn add(&mut self, parts: &[Ident]) {
        let Some(first) = parts.first() else { return };
        if self.of_lambdas.contains(&first.value) {
            return;
        }
        let name = parts.iter().map(|part| part.value.as_str()).collect::<Vec<_>>().join(".");
        let number = |number: u64| usize::try_from(number).unwrap_or(0);
        let (line, column) = (number(first.span.start.line), number(first.span.start.column));
        self.found.push(NamedColumn { name, line, column });
    }
}

impl Visitor for Names {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        match expr {
            Expr::Identifier(name) => self.add(std::slice::from_ref(name)),
            Expr::CompoundIdentifier(parts) => self.add(parts),
            Expr::Lambda(lambda) => {
                let names = lambda.params.iter().map(|parameter| parameter.name.value.clone());
                self.of_lambdas.extend(names);
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if let Expr::Lambda(lambda) = expr {
            self.of_lambdas.truncate(self.of_lambdas.len().saturating_sub(lambda.params.iter().count()));
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(sql: &str) -> Vec<(String, usize, usize)> {
        columns(sql).into_iter().map(|one| (one.name, one.line, one.column)).collect()
    }

    #[test]
    fn columns_have_their_places() {
        let sql = "SELECT\nDAY > '2026' AND\n  steps.rows.n > \"Most\" OR upper(x) = 'y'\nFROM \"steps\"";
        let place = |name: &str, line, column| (name.to_owned(), line, column);
        let expected = [place("DAY", 2, 1), place("steps.rows.n", 3, 3), place("Most", 3, 18), place("x", 3, 34)];
        assert_eq!(found(sql), expected);
    }

    #[test]
    fn what_is_no_column_is_none() {
        assert_eq!(found("SELECT true, NULL, now(), current_date, DATE '2026-01-01', CAST('1' AS int)"), []);
        assert_eq!(found("no query"), []);
    }
}
