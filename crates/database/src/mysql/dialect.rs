//! How MySQL and MariaDB write SQL.

use arrow::datatypes::DataType;

use super::types;
use crate::dialect::{Dialect, single_quoted};

/// The dialect of MySQL and MariaDB.
#[derive(Debug, Clone, Copy)]
pub struct MysqlDialect;

impl Dialect for MysqlDialect {
    fn name(&self) -> &'static str {
        "mysql"
    }

    fn product(&self) -> &'static str {
        "MySQL"
    }

    fn quoted(&self, name: &str) -> String {
        format!("`{}`", name.replace('`', "``"))
    }

    fn literal(&self, text: &str) -> String {
        single_quoted(&text.replace('\\', "\\\\"))
    }

    fn column_type(&self, data_type: &DataType, is_key: bool) -> String {
        types::column_type(data_type, is_key)
    }
}
