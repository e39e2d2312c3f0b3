//! How PostgreSQL writes SQL.

use arrow::datatypes::DataType;

use super::types;
use crate::dialect::{Dialect, double_quoted, single_quoted};

/// The dialect of PostgreSQL.
#[derive(Debug, Clone, Copy)]
pub struct PostgresDialect;

impl Dialect for PostgresDialect {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn product(&self) -> &'static str {
        "PostgreSQL"
    }

    fn quoted(&self, name: &str) -> String {
        double_quoted(name)
    }

    fn literal(&self, text: &str) -> String {
        single_quoted(text)
    }

    fn table(&self, name: &str) -> String {
        match parts(name) {
            (Some(schema), name) => format!("{}.{}", self.quoted(schema), self.quoted(name)),
            (None, name) => self.quoted(name),
        }
    }

    fn column_type(&self, data_type: &DataType, _is_key: bool) -> String {
        types::column_type(data_type)
    }
}

/// The schema and the name in `schema.table`.
pub fn parts(table: &str) -> (Option<&str>, &str) {
    match table.split_once('.') {
        Some((schema, name)) if !schema.is_empty() && !name.is_empty() => (Some(schema), name),
        _ => (None, table),
    }
}

/// The schema's name as SQL text: the given one, or the first of the search path, where tables are created.
pub fn schema_of(table: &str) -> String {
    parts(table).0.map_or("current_schema()".to_owned(), single_quoted)
}
