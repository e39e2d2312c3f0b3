//! How SQLite compares rows and keeps a table in step.

use super::dialect::SqliteDialect;
use crate::dialect::Dialect;
use crate::in_step::StepDialect;
use crate::table::ColumnFacts;

impl StepDialect for SqliteDialect {
    /// A column's collation may hide differences, and so does the comparison of `1` and `1.0`.
    fn differs(&self, left: &str, right: &str, _facts: Option<&ColumnFacts>) -> String {
        format!("({left} IS NOT {right} COLLATE BINARY OR typeof({left}) IS NOT typeof({right}))")
    }

    /// Overrides an `ON CONFLICT` of the table, which would silently leave rows out, or delete others.
    fn update_verb(&self) -> &'static str {
        "UPDATE OR ABORT"
    }

    fn insert_verb(&self) -> &'static str {
        "INSERT OR ABORT INTO"
    }

    fn moment(&self, text: &str, _facts: Option<&ColumnFacts>) -> String {
        self.literal(text)
    }
}
