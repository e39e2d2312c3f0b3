//! How databases write names, texts and types: the trait. A dialect only makes text, and asks no server.

use std::fmt::Debug;

use arrow::datatypes::DataType;

/// How a kind of database writes SQL.
pub trait Dialect: Debug + Send + Sync {
    /// `mysql`, `postgres`, `sqlite`.
    fn name(&self) -> &'static str;

    /// The product's name in messages.
    fn product(&self) -> &'static str;

    /// A name as SQL text.
    fn quoted(&self, name: &str) -> String;

    /// A text as SQL text.
    fn literal(&self, text: &str) -> String;

    /// A table as SQL text; PostgreSQL's may name a schema.
    fn table(&self, name: &str) -> String {
        self.quoted(name)
    }

    /// The type of a new column for values of `data_type`; a column of a key may need another one.
    fn column_type(&self, data_type: &DataType, is_key: bool) -> String;
}

/// Names as SQL text, with commas between them.
pub fn quoted_list(dialect: &dyn Dialect, names: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    names.into_iter().map(|name| dialect.quoted(name.as_ref())).collect::<Vec<_>>().join(", ")
}

/// A name in double quotes, as standard SQL has it.
pub(crate) fn double_quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text in single quotes, as standard SQL has it.
pub(crate) fn single_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(all(test, feature = "mysql", feature = "postgres"))]
mod tests {
    use super::*;
    use crate::{mysql, postgres, sqlite};

    #[test]
    fn quotes_in_names_and_texts_do_not_end_them() {
        let dialects: [&dyn Dialect; 3] = [&mysql::MysqlDialect, &postgres::PostgresDialect, &sqlite::SqliteDialect];
        let names = dialects.map(|dialect| dialect.quoted("a`b\"c"));
        assert_eq!(names, ["`a``b\"c`", "\"a`b\"\"c\"", "\"a`b\"\"c\""]);
        let texts = dialects.map(|dialect| dialect.literal(r"it's \ one"));
        assert_eq!(texts, [r"'it''s \\ one'", r"'it''s \ one'", r"'it''s \ one'"]);
        assert_eq!(quoted_list(&mysql::MysqlDialect, ["a", "b"]), "`a`, `b`");
    }

    #[test]
    fn only_postgresql_has_schemas() {
        let table = |dialect: &dyn Dialect, name| dialect.table(name);
        assert_eq!(table(&postgres::PostgresDialect, "s.t"), "\"s\".\"t\"");
        assert_eq!(table(&postgres::PostgresDialect, "s.t.u"), "\"s\".\"t.u\"");
        for whole in [".t", "t.", "t"] {
            assert_eq!(table(&postgres::PostgresDialect, whole), format!("\"{whole}\""));
        }
        assert_eq!(table(&mysql::MysqlDialect, "s.t"), "`s.t`");
        assert_eq!(table(&sqlite::SqliteDialect, "s.t"), "\"s.t\"");
    }
}
