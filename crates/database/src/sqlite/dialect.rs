//! How SQLite writes SQL.

use arrow::datatypes::DataType;

use super::types;
use crate::dialect::{Dialect, double_quoted, single_quoted};

/// The dialect of SQLite.
#[derive(Debug, Clone, Copy)]
pub struct SqliteDialect;

impl Dialect for SqliteDialect {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn product(&self) -> &'static str {
        "SQLite"
    }

    fn quoted(&self, name: &str) -> String {
        double_quoted(name)
    }

    fn literal(&self, text: &str) -> String {
        single_quoted(text)
    }

    fn column_type(&self, data_type: &DataType, _is_key: bool) -> String {
        types::column_type(data_type).to_owned()
    }
}
