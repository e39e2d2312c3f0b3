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

    /// Times are texts, which are compared as such: `2026-01-31T10:00` is later than `2026-01-31 11:00`. So all get the
    /// same length, and a blank in the middle.
    fn time(&self, value: &str) -> String {
        let text = format!("replace(rtrim({value}, 'Z'), 'T', ' ')");
        format!(
            "CASE length({text}) WHEN 10 THEN {text} || ' 00:00:00.000000000' WHEN 16 THEN {text} || ':00.000000000' \
             WHEN 19 THEN {text} || '.000000000' ELSE substr({text} || '000000000', 1, max(29, length({text}))) END"
        )
    }

    fn is_no_time(&self, value: &str) -> Option<String> {
        let (day, digits) = ("[0-9][0-9][0-9][0-9]-[0-1][0-9]-[0-3][0-9]", "[0-9]".repeat(9));
        let form = format!("{day} [0-2][0-9]:[0-5][0-9]:[0-6][0-9].{digits}");
        Some(format!("(typeof({value}) <> 'text' OR ({}) NOT GLOB '{form}')", self.time(value)))
    }

    fn moment(&self, text: &str, _facts: Option<&ColumnFacts>) -> String {
        self.literal(text)
    }
}
