//! The table or query that is read, as SQL.

use millstream_database::Dialect;

/// A table or a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Query {
    /// The name of a table in the job.
    Table(String),
    /// A SELECT.
    Select(String),
}

impl Query {
    /// The table or query in the settings, if any.
    pub(super) fn new(table: &Option<String>, query: &Option<String>) -> Option<Self> {
        let select = query.as_ref().map(|text| Query::Select(text.trim().trim_end_matches(';').to_owned()));
        select.or_else(|| table.clone().map(Query::Table))
    }

    /// The statement that reads the columns `list` of the rows that meet `condition`.
    pub(super) fn statement(&self, list: &str, condition: Option<&str>, dialect: &dyn Dialect) -> String {
        let from = match self {
            Query::Table(name) => dialect.table(name),
            // A comment at its end must not swallow what follows.
            Query::Select(text) => format!("({text}\n) AS millstream_rows"),
        };
        let condition = condition.map(|condition| format!(" WHERE {condition}")).unwrap_or_default();
        format!("SELECT {list} FROM {from}{condition}")
    }

    /// The table, if it is one.
    pub(super) fn table(&self) -> Option<&str> {
        match self {
            Query::Table(name) => Some(name),
            Query::Select(_) => None,
        }
    }
}

/// A list of columns; a constant if there are none, since a SELECT needs one.
pub(super) fn list(columns: impl Iterator<Item = String>) -> String {
    let columns: Vec<String> = columns.collect();
    if columns.is_empty() { "1".to_owned() } else { columns.join(", ") }
}

#[cfg(all(test, feature = "mysql"))]
mod tests {
    use millstream_database::mysql::MysqlDialect;

    use super::*;

    #[test]
    fn a_query_stands_where_a_table_does() {
        let table = Query::new(&Some("t".into()), &None).expect("a table");
        assert_eq!(table.statement("a", Some("a < 5"), &MysqlDialect), "SELECT a FROM `t` WHERE a < 5");
        let query = Query::new(&None, &Some(" SELECT 1 -- one; ".into())).expect("a query");
        assert_eq!(query.statement("*", None, &MysqlDialect), "SELECT * FROM (SELECT 1 -- one\n) AS millstream_rows");
        assert_eq!(Query::new(&None, &None), None);
        assert_eq!(list([].into_iter()), "1");
    }
}
