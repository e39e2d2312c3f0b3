//! A connection to MySQL or MariaDB, and its bulk path.
//!
//! `LOAD DATA LOCAL` never fails on bad data: values that do not fit are changed, with a warning. So a statement counts
//! as done only if all rows were written, none was skipped, and there was no warning. A stream that breaks off would
//! count as complete, so all bytes of a statement are in memory before it begins.

use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use millstream_core::Result;
use millstream_database::mysql::{self, MysqlDialect, around};
use millstream_database::table::{Bulk, ForeignKey, Index, TableFacts};
use millstream_database::{Dialect, Endpoint, LoadDialect, TextRows, first_cell, quoted_list};
use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use super::{facts, message, tags};
use crate::database::group::Rows;
use crate::database::server::{Connection, Failure, Refusal, Right, SeenSession};
use crate::database::spec::DatabaseSpec;
use crate::database::text::NULL;

/// Bytes of a packet besides the statement: the command, and some to spare.
const PACKET_HEAD: usize = 64;

/// Bytes that are sent in one packet of a stream.
const PIECE: usize = 256 << 10;

/// Makes the server refuse values instead of changing them, where it can; keeps zeros in AUTO_INCREMENT columns, counts
/// notes as warnings, and sets UTC. A connection may be idle until all rows have arrived, so it is kept for a week.
/// Only MariaDB has time limits for statements and idle transactions.
const SETTINGS: &str = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,\
                        ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO', \
                        time_zone = '+00:00', sql_notes = 1, autocommit = 1, max_error_count = 100, wait_timeout = \
                        604800 \
                        /*M!100306 , max_statement_time = 0, idle_transaction_timeout = 0, \
                        idle_write_transaction_timeout = 0 */";

/// A connection that loads.
pub(super) struct MysqlConnection {
    session: mysql::Session,
    /// Bytes that a statement may have.
    packet: usize,
    /// Why rows are not sent by `LOAD DATA`.
    detour: Option<String>,
}

/// Connects and logs in.
pub(super) async fn connect(endpoint: &Endpoint, spec: &DatabaseSpec) -> Result<MysqlConnection> {
    let session = mysql::Session::open(endpoint.clone(), spec.connect_timeout).await?;
    let mut connection = MysqlConnection { session, packet: 0, detour: None };
    connection.prepare(spec).await.map_err(Failure::into_error)?;
    Ok(connection)
}

impl MysqlConnection {
    async fn prepare(&mut self, spec: &DatabaseSpec) -> Result<(), Failure> {
        self.execute(SETTINGS).await?;
        self.execute(&MysqlDialect.wait_for_locks(spec.lock_timeout.0)).await?;
        let rows = self.query("SELECT @@max_allowed_packet, @@local_infile").await?;
        let mut cells = rows.into_iter().flatten().flatten();
        self.packet = cells.next().and_then(|text| text.parse().ok()).unwrap_or(1 << 20);
        if cells.next().as_deref() == Some("0") {
            self.detour = Some(by_insert("local_infile is off at the server"));
        }
        Ok(())
    }

    fn failure(&self, fault: mysql_async::Error) -> Failure {
        message::failure(&self.session.endpoint, fault)
    }

    /// Sends rows as a stream. `None` if the server does not allow it.
    async fn load(&mut self, statement: &str, bytes: Bytes, count: u64) -> Result<Option<()>, Failure> {
        let piece = PIECE.min(self.packet.saturating_sub(PACKET_HEAD)).max(1);
        let pieces = (0..bytes.len()).step_by(piece).map(|at| Ok(bytes.slice(at..bytes.len().min(at + piece))));
        let pieces: Vec<std::io::Result<Bytes>> = pieces.collect();
        self.session.connection.set_infile_handler(async move { Ok(futures::stream::iter(pieces).boxed()) });
        match self.session.connection.query_drop(statement).await {
            Ok(()) => {}
            Err(fault) if message::is_local_infile_refused(&fault) => {
                self.detour = Some(by_insert("the server refuses LOAD DATA LOCAL"));
                return Ok(None);
            }
            Err(fault) => return Err(self.failure(fault)),
        }
        let answer = Answer::read(&self.session.connection);
        if answer.is_clean(count) {
            return Ok(Some(()));
        }
        let otherwise = format!("the server wrote {} of {count} rows, skipped {}", answer.affected, answer.skipped);
        self.refused(&answer, count, otherwise).await.map(Some)
    }

    /// Fails for the warnings of the last statement, unless they are not about rows.
    async fn refused(&mut self, answer: &Answer, count: u64, otherwise: String) -> Result<(), Failure> {
        let rows: Vec<(String, u16, String)> =
            self.session.connection.query("SHOW WARNINGS LIMIT 5").await.map_err(|fault| self.failure(fault))?;
        let all = rows.len();
        let rows = rows.into_iter().map(|(_, code, text)| (code, text));
        let warnings: Vec<(u16, String)> = rows.filter(|(code, _)| *code != message::UNSAFE_STATEMENT).collect();
        let of_statement = warnings.is_empty() && all == usize::from(answer.warnings);
        match of_statement && (Answer { warnings: 0, ..*answer }).is_clean(count) {
            true => Ok(()),
            false => Err(Failure::Rows(message::refusal(&warnings, otherwise))),
        }
    }

    /// Sends rows in statements of many rows, each as large as the server takes.
    async fn insert(&mut self, into: &Bulk, rows: &Rows, range: Range<usize>) -> Result<(), Failure> {
        let names = quoted_list(&MysqlDialect, into.columns.iter().map(|column| &column.name));
        let head = format!("INSERT INTO {} ({names}) VALUES ", into.table);
        let mut statement = head.clone().into_bytes();
        let (first, mut count) = (range.start, 0);
        for row in range.clone() {
            let before = statement.len();
            values(into, &rows.part(row..row + 1), count > 0, &mut statement);
            if statement.len() + PACKET_HEAD > self.packet && count > 0 {
                let rest = statement.split_off(before);
                self.insert_some(&statement, row - first - count..row - first).await?;
                statement.clear();
                statement.extend_from_slice(head.as_bytes());
                statement.extend_from_slice(&rest[1..]);
                count = 0;
            }
            if statement.len() + PACKET_HEAD > self.packet {
                return Err(Failure::Rows(message::too_long(self.packet, row - first)));
            }
            count += 1;
        }
        self.insert_some(&statement, range.len() - count..range.len()).await
    }

    /// Runs the statement that inserts `rows`.
    async fn insert_some(&mut self, statement: &[u8], rows: Range<usize>) -> Result<(), Failure> {
        let failure = match self.session.connection.query_drop(statement).await {
            Err(fault) => self.failure(fault),
            Ok(()) => {
                let (answer, count) = (Answer::read(&self.session.connection), rows.len() as u64);
                if answer.is_clean(count) {
                    return Ok(());
                }
                let otherwise = format!("the server wrote {} of {count} rows", answer.affected);
                match self.refused(&answer, count, otherwise).await {
                    Ok(()) => return Ok(()),
                    Err(failure) => failure,
                }
            }
        };
        Err(match failure {
            Failure::Rows(refusal) => Failure::Rows(Refusal { at: refusal.at.map(|at| rows.start + at), ..refusal }),
            other => other,
        })
    }
}

fn by_insert(why: &str) -> String {
    format!("by INSERT, which is slower, since {why}")
}

/// The server's answer to a statement.
struct Answer {
    affected: u64,
    skipped: u64,
    deleted: u64,
    warnings: u16,
}

/// A number that the server's answer has a name for.
fn number(info: &str, name: &str) -> u64 {
    let rest = info.split_once(name).map(|(_, rest)| rest.trim_start());
    let digits = rest.and_then(|rest| rest.split_whitespace().next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// How many rows are new and were changed, by the answer to an `UPDATE` or to an `INSERT … ON DUPLICATE KEY UPDATE`.
/// The latter counts a new row as one that is affected, and a changed one as two.
fn merged(affected: u64, info: &str) -> [u64; 2] {
    if info.contains("Rows matched:") {
        return [0, affected];
    }
    let updated = number(info, "Duplicates:");
    [affected.saturating_sub(2 * updated), updated]
}

impl Answer {
    fn read(connection: &Conn) -> Self {
        let info = connection.info();
        Answer {
            affected: connection.affected_rows(),
            skipped: number(&info, "Skipped:"),
            deleted: number(&info, "Deleted:"),
            warnings: connection.get_warnings(),
        }
    }

    fn is_clean(&self, count: u64) -> bool {
        self.affected == count && self.skipped == 0 && self.deleted == 0 && self.warnings == 0
    }
}

/// A row of text with tabs as `('1',NULL,'a')`. Both have the same escapes, except for the quote.
fn values(into: &Bulk, line: &[u8], comma: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(if comma { b",(" } else { b"(" });
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    for (index, (value, column)) in line.split(|byte| *byte == b'\t').zip(&into.columns).enumerate() {
        if index > 0 {
            out.push(b',');
        }
        if value == NULL {
            out.extend_from_slice(b"NULL");
            continue;
        }
        let (before, after) = around(column.family);
        out.extend_from_slice(before.as_bytes());
        out.push(b'\'');
        for piece in value.split_inclusive(|byte| *byte == b'\'') {
            match piece.strip_suffix(b"'") {
                Some(text) => {
                    out.extend_from_slice(text);
                    out.extend_from_slice(b"''");
                }
                None => out.extend_from_slice(piece),
            }
        }
        out.push(b'\'');
        out.extend_from_slice(after.as_bytes());
    }
    out.push(b')');
}

#[async_trait]
impl Connection for MysqlConnection {
    async fn execute(&mut self, sql: &str) -> Result<u64, Failure> {
        self.session.execute(sql).await.map_err(|fault| self.failure(fault))
    }

    async fn merge(&mut self, sql: &str) -> Result<[u64; 2], Failure> {
        let affected = self.execute(sql).await?;
        Ok(merged(affected, &self.session.connection.info()))
    }

    async fn query(&mut self, sql: &str) -> Result<TextRows, Failure> {
        self.session.query(sql).await.map_err(|fault| self.failure(fault))
    }

    async fn bulk(&mut self, into: &Bulk, rows: &Rows, range: Range<usize>) -> Result<(), Failure> {
        let count = range.len() as u64;
        if self.detour.is_none() && self.load(&into.statement, rows.part(range.clone()), count).await?.is_some() {
            return Ok(());
        }
        self.insert(into, rows, range).await
    }

    fn detour(&self) -> Option<String> {
        self.detour.clone()
    }

    async fn describe(&mut self, table: &str) -> Result<Option<TableFacts>, Failure> {
        facts::describe(self, table).await
    }

    async fn cascading(&mut self, table: &str, by: &[&str]) -> Result<Vec<ForeignKey>, Failure> {
        facts::cascading(self, table, by).await
    }

    async fn missing_rights(&mut self, table: &str, rights: &[Right]) -> Result<Vec<String>, Failure> {
        facts::missing_rights(self, &MysqlDialect.table(table), rights).await
    }

    async fn indexes(&mut self, table: &str) -> Result<Vec<Index>, Failure> {
        facts::indexes(self, &MysqlDialect.table(table)).await
    }

    async fn tables(&mut self, _table: &str, prefix: &str) -> Result<Vec<String>, Failure> {
        let query = format!(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND LEFT(table_name, {}) \
             = {}",
            prefix.len(),
            MysqlDialect.literal(prefix)
        );
        Ok(self.query(&query).await?.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect())
    }

    async fn comment(&mut self, _table: &str, name: &str) -> Result<Option<String>, Failure> {
        let query = format!(
            "SELECT table_comment FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = {}",
            MysqlDialect.literal(name)
        );
        let row = self.query(&query).await?.into_iter().next();
        Ok(row.map(|row| row.into_iter().flatten().next().unwrap_or_default()))
    }

    async fn lock(&mut self, name: &str) -> Result<bool, Failure> {
        let rows = self.query(&format!("SELECT GET_LOCK({}, 1)", MysqlDialect.literal(name))).await?;
        Ok(first_cell(rows).as_deref() == Some("1"))
    }

    async fn unlock(&mut self, name: &str) -> Result<(), Failure> {
        self.query(&format!("SELECT RELEASE_LOCK({})", MysqlDialect.literal(name))).await.map(drop)
    }

    async fn tag(&mut self, owner: &str) -> Result<(), Failure> {
        tags::tag(self, owner).await
    }

    async fn sessions_of(&mut self, owner: &str) -> Result<Vec<SeenSession>, Failure> {
        tags::sessions_of(self, owner).await
    }

    async fn end_session(&mut self, _owner: &str, id: &str) -> Result<(), Failure> {
        tags::end_session(self, id).await
    }

    async fn holders(&mut self, _tables: &[&str]) -> Result<Vec<SeenSession>, Failure> {
        tags::holders(self).await
    }
}
