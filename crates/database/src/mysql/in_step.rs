//! How MySQL and MariaDB compare rows and keep a table in step.

use super::dialect::MysqlDialect;
use crate::dialect::Dialect;
use crate::family::Family;
use crate::in_step::{STAGED, StepDialect};
use crate::table::ColumnFacts;

impl StepDialect for MysqlDialect {
    /// Collations hide differences between texts, `<=>` those between `0` and `-0`, and between numbers in JSON.
    fn differs(&self, left: &str, right: &str, facts: Option<&ColumnFacts>) -> String {
        let bytes = |value: &str| format!("CAST({value} AS BINARY)");
        let text = |value: &str| bytes(&format!("CAST({value} AS CHAR)"));
        match facts.map(|facts| facts.family) {
            Some(Family::Text | Family::Choice) => format!("NOT ({} <=> {})", bytes(left), bytes(right)),
            Some(Family::Json { .. }) => format!("NOT ({} <=> {})", text(left), text(right)),
            Some(Family::Float { .. }) => {
                format!("(NOT ({left} <=> {right}) OR ({left} = 0 AND {} <> {}))", bytes(left), bytes(right))
            }
            _ => format!("NOT ({left} <=> {right})"),
        }
    }

    fn update(&self, target: &str, sets: &[(String, String)], source: &str, condition: &str) -> String {
        let sets: Vec<String> = sets.iter().map(|(column, value)| format!("{target}.{column} = {value}")).collect();
        format!("UPDATE {target} JOIN {source} {STAGED} ON {condition} SET {}", sets.join(", "))
    }

    /// The server looks a row up for each one that it reads, and does so faster in a join than in a query of its own.
    fn delete_missing(&self, target: &str, source: &str, on: &str, key: &str) -> String {
        format!("DELETE {target} FROM {target} LEFT JOIN {source} {STAGED} ON {on} WHERE {key} IS NULL")
    }

    fn moment(&self, text: &str, _facts: Option<&ColumnFacts>) -> String {
        let kind = if text.contains(':') { "TIMESTAMP" } else { "DATE" };
        format!("{kind}{}", self.literal(text))
    }
}
