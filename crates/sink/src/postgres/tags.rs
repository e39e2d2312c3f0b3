//! Tags of connections, and holders of locks. The tag is the application name, which the same user may see.

use millstream_database::Dialect;
use millstream_database::postgres::PostgresDialect;

use crate::database::entry::WORKER;
use crate::database::server::{Connection, Failure, SeenSession};

/// How many connections a message names.
const SHOWN: usize = 3;

/// The reported columns of a connection.
const SEEN: &str = "a.pid, a.usename, coalesce(host(a.client_addr), 'the server itself'), to_char(a.xact_start AT TIME \
                    ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS')";

fn tag_name(owner: &str) -> String {
    PostgresDialect.literal(&format!("millstream {owner}"))
}

/// Gives `connection` the tag of `owner`.
pub(super) async fn tag(connection: &mut dyn Connection, owner: &str) -> Result<(), Failure> {
    connection.execute(&format!("SET application_name = {}", tag_name(owner))).await.map(drop)
}

/// The condition for connections with the tag of `owner`, or of a worker of it.
fn has_tag(owner: &str) -> String {
    let of_workers = PostgresDialect.literal(&format!("millstream {owner}{WORKER}"));
    format!("(a.application_name = {} OR starts_with(a.application_name, {of_workers}))", tag_name(owner))
}

/// The connections with the tag of `owner`.
pub(super) async fn sessions_of(connection: &mut dyn Connection, owner: &str) -> Result<Vec<SeenSession>, Failure> {
    let query =
        format!("SELECT {SEEN} FROM pg_stat_activity a WHERE {} AND a.datname = current_database()", has_tag(owner));
    Ok(connection.query(&query).await?.iter().map(|row| seen(row)).collect())
}

/// Ends the connection, unless its process id has been reused.
pub(super) async fn end_session(connection: &mut dyn Connection, owner: &str, id: &str) -> Result<(), Failure> {
    let query =
        format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity a WHERE pid = {id} AND {}", has_tag(owner));
    connection.query(&query).await.map(drop)
}

/// Connections with open transactions that have touched `tables`: row locks are not visible, but come with a lock of
/// the table.
pub(super) async fn holders(connection: &mut dyn Connection, tables: &[&str]) -> Result<Vec<SeenSession>, Failure> {
    let tables: Vec<String> =
        tables.iter().map(|table| format!("to_regclass({})", PostgresDialect.literal(table))).collect();
    let query = format!(
        "SELECT DISTINCT {SEEN} FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid WHERE l.granted AND \
         l.locktype = 'relation' AND l.relation IN ({}) AND l.database = (SELECT oid FROM pg_database WHERE datname = \
         current_database()) AND l.pid <> pg_backend_pid() AND a.xact_start IS NOT NULL ORDER BY 4 LIMIT {SHOWN}",
        tables.join(", ")
    );
    Ok(connection.query(&query).await?.iter().map(|row| seen(row)).collect())
}

/// `session 12 of etl from 10.0.0.3, in a transaction since 2026-01-01 00:00:00 UTC`.
fn seen(row: &[Option<String>]) -> SeenSession {
    let cell = |index: usize| row.get(index).cloned().flatten();
    let id = cell(0).unwrap_or_default();
    let user = cell(1).map_or(String::new(), |user| format!(" of {user}"));
    let host = cell(2).map_or(String::new(), |host| format!(" from {host}"));
    let since = cell(3).map_or(String::new(), |since| format!(", in a transaction since {since} UTC"));
    SeenSession { shown: format!("session {id}{user}{host}{since}"), id }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_shown_with_what_is_known_of_it() {
        let shown = |row: [Option<&str>; 4]| seen(&row.map(|cell| cell.map(str::to_owned))).shown;
        assert_eq!(
            shown([Some("12"), Some("etl"), Some("10.0.0.3"), Some("2026-01-01 00:00:00")]),
            "session 12 of etl from 10.0.0.3, in a transaction since 2026-01-01 00:00:00 UTC"
        );
        assert_eq!(shown([Some("12"), None, Some("the server itself"), None]), "session 12 from the server itself");
    }
}
