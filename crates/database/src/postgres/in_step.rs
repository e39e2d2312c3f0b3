//! How PostgreSQL compares rows and keeps a table in step.

use arrow::datatypes::DataType;

use super::dialect::PostgresDialect;
use crate::dialect::{Dialect, quoted_list};
use crate::family::Family;
use crate::in_step::StepDialect;
use crate::table::ColumnFacts;

impl StepDialect for PostgresDialect {
    /// `IS DISTINCT FROM` where values that are equal are the same. Of other types, the server compares the binary form
    /// of rows: `1.0` and `1.00`, `0` and `-0` are equal, JSON has no equality, and an extension's text may have its
    /// own.
    fn differs(&self, left: &str, right: &str, facts: Option<&ColumnFacts>) -> String {
        let family = facts.filter(|facts| !facts.is_domain).map(|facts| facts.family);
        match family {
            Some(Family::Text) => format!("{left} COLLATE \"C\" IS DISTINCT FROM {right} COLLATE \"C\""),
            Some(
                Family::Bool
                | Family::Integer { .. }
                | Family::Bytes
                | Family::Date
                | Family::Time { .. }
                | Family::Timestamp { .. }
                | Family::Uuid,
            ) => format!("{left} IS DISTINCT FROM {right}"),
            _ => format!("ROW({left})::record *<> ROW({right})::record"),
        }
    }

    /// Readers need not wait.
    fn lock_out(&self, target: &str) -> Option<String> {
        Some(format!("LOCK TABLE {target} IN SHARE ROW EXCLUSIVE MODE"))
    }

    fn index_staged(&self, staging: &str, key: &[String]) -> Vec<String> {
        let keys = quoted_list(self, key);
        vec![format!("CREATE UNIQUE INDEX ON {staging} ({keys})"), format!("ANALYZE {staging}")]
    }

    /// The type decides how a value is compared.
    fn null_of(&self, data_type: &DataType) -> String {
        format!("CAST(NULL AS {})", self.column_type(data_type, false))
    }

    fn moment(&self, text: &str, facts: Option<&ColumnFacts>) -> String {
        let declared = facts.map_or("timestamp with time zone", |facts| &facts.declared);
        let zone = if text.contains(':') { "+00" } else { "" };
        format!("CAST({} AS {declared})", self.literal(&format!("{text}{zone}")))
    }
}
