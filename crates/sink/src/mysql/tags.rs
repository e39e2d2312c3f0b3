//! Tags of connections, and holders of locks. Tags are named locks, which a connection holds as long as it lives, and
//! which any user may query.

use millstream_database::mysql::MysqlDialect;
use millstream_database::{Dialect, first_cell};

use crate::database::entry::WORKER;
use crate::database::server::{Connection, Failure, SeenSession};

/// The most tagged connections of one owner, with those of its workers.
const TAGS: usize = 1_000;

/// Connections of a worker: so far apart they look for their tags, since each look asks the server.
const APART: usize = 4;

/// How many connections a message names.
const SHOWN: usize = 3;

fn tag_name(owner: &str, number: usize) -> String {
    MysqlDialect.literal(&format!("millstream:{owner}:{number}"))
}

/// Gives `connection` the first free tag of `owner`; one of a worker gets that of the run that it works for, too.
pub(super) async fn tag(connection: &mut dyn Connection, owner: &str) -> Result<(), Failure> {
    let of_worker = owner.split_once(WORKER);
    if let Some((run, worker)) = of_worker {
        let first = worker.parse::<usize>().map_or(0, |worker| worker * APART);
        take_tag(connection, run, first).await?;
    }
    take_tag(connection, owner, 0).await
}

/// Takes the first free tag, from the one numbered `first` on.
async fn take_tag(connection: &mut dyn Connection, owner: &str, first: usize) -> Result<(), Failure> {
    for number in 0..TAGS {
        let tag = tag_name(owner, (first + number) % TAGS);
        let rows = connection.query(&format!("SELECT GET_LOCK({tag}, 0)")).await?;
        if first_cell(rows).as_deref() == Some("1") {
            break;
        }
    }
    Ok(())
}

/// The connections with a tag of `owner`.
pub(super) async fn sessions_of(connection: &mut dyn Connection, owner: &str) -> Result<Vec<SeenSession>, Failure> {
    let tags: Vec<String> = (0..TAGS).map(|number| format!("IS_USED_LOCK({})", tag_name(owner, number))).collect();
    let rows = connection.query(&format!("SELECT {}", tags.join(", "))).await?;
    let ids: Vec<String> = rows.into_iter().flatten().flatten().collect();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let query = format!("SELECT id, user, host FROM information_schema.processlist WHERE id IN ({})", ids.join(", "));
    let known = connection.query(&query).await?;
    let seen = |id: String| {
        let row = known.iter().find(|row| row.first().cloned().flatten().as_deref() == Some(&id));
        let shown = row.map_or_else(|| format!("connection {id}"), |row| shown(row, "connection"));
        SeenSession { id, shown }
    };
    Ok(ids.into_iter().map(seen).collect())
}

/// Ends the connection.
pub(super) async fn end_session(connection: &mut dyn Connection, id: &str) -> Result<(), Failure> {
    connection.execute(&format!("KILL CONNECTION {id}")).await.map(drop)
}

/// Connections with open transactions. A user who may not see those sees their own connections.
pub(super) async fn holders(connection: &mut dyn Connection) -> Result<Vec<SeenSession>, Failure> {
    let of_database = "p.id <> CONNECTION_ID() AND p.db = DATABASE()";
    let open = format!(
        "SELECT p.id, p.user, p.host, NOW() - INTERVAL p.time SECOND FROM information_schema.innodb_trx t JOIN \
         information_schema.processlist p ON p.id = t.trx_mysql_thread_id WHERE {of_database} ORDER BY t.trx_started \
         LIMIT {SHOWN}"
    );
    if let Ok(rows) = connection.query(&open).await {
        return Ok(rows.iter().map(|row| seen(row, "connection")).collect());
    }
    let own = format!(
        "SELECT p.id, p.user, p.host, NOW() - INTERVAL p.time SECOND FROM information_schema.processlist p WHERE \
         {of_database} AND p.command <> 'Daemon' ORDER BY p.time DESC LIMIT {SHOWN}"
    );
    Ok(connection.query(&own).await?.iter().map(|row| seen(row, "perhaps connection")).collect())
}

fn seen(row: &[Option<String>], what: &str) -> SeenSession {
    SeenSession { id: row.first().cloned().flatten().unwrap_or_default(), shown: shown(row, what) }
}

/// `connection 12 of etl from 10.0.0.3:5012 since 2026-01-01 00:00:00 UTC`.
fn shown(row: &[Option<String>], what: &str) -> String {
    let mut cells = row.iter().flatten();
    let mut next = |before: &str| cells.next().map_or(String::new(), |text| format!("{before}{text}"));
    let [id, user, host, since] = [next(" "), next(" of "), next(" from "), next(" since ")];
    let zone = if since.is_empty() { "" } else { " UTC" };
    format!("{what}{id}{user}{host}{since}{zone}")
}
