//! Converts MySQL's errors to Millstream's, with hints.

use millstream_core::{Error, RejectKind};
use millstream_database::Endpoint;
use millstream_database::mysql::ends_connection;
use mysql_async::{Error as Fault, ServerError};

use crate::database::load::DUPLICATE;
use crate::database::server::{Failure, Refusal};

/// Numbers of the server's errors: "MySQL Error Message Reference", "MariaDB Error Codes".
mod code {
    pub(super) const DEADLOCK: [u16; 2] = [1213, 1020];
    pub(super) const LOCK_TIMEOUT: u16 = 1205;
    pub(super) const NO_LOCAL_INFILE: [u16; 3] = [1148, 3948, 4166];
    pub(super) const FULL: [u16; 3] = [1021, 1114, 1026];
    pub(super) const DUPLICATE: [u16; 3] = [1062, 1586, 1022];
    pub(super) const NULL: [u16; 3] = [1048, 1364, 1263];
    pub(super) const TOO_LONG: [u16; 3] = [1406, 1264, 1265];
    pub(super) const NO_RIGHTS: [u16; 4] = [1142, 1143, 1227, 1370];
    /// Values that are refused outside of the classes 22, 23, 44 and 45 of SQLSTATE.
    pub(super) const VALUES: [u16; 12] = [1263, 1265, 1264, 1300, 1364, 1366, 1367, 1411, 1526, 3140, 3819, 4025];
}

/// The hint for a missing right; no other error has it.
pub(super) const GRANT: &str = "GRANT the user what is missing";

/// The warning about a statement that is unsafe for statement-based replication; it was executed.
pub(super) const UNSAFE_STATEMENT: u16 = 1592;

/// The failure of a statement.
pub(super) fn failure(endpoint: &Endpoint, fault: Fault) -> Failure {
    match fault {
        Fault::Server(fault) => server_failure(endpoint, &fault),
        other => Failure::Lost(endpoint.server.lost(other.to_string())),
    }
}

fn server_failure(endpoint: &Endpoint, fault: &ServerError) -> Failure {
    let cause = fault.message.clone();
    let number = fault.code;
    let again = |what: &str, hint: &str| {
        Error::transient(format!("{}: {what}", endpoint.server.shown)).cause(cause.clone()).hint(hint)
    };
    if ends_connection(number) {
        return Failure::Lost(endpoint.server.lost(cause));
    }
    if code::DEADLOCK.contains(&number) {
        let error = again(
            "other sessions change the same rows",
            "load with fewer `connections`, or when no other session writes",
        );
        return Failure::Again { error, undone: true, waited: false };
    }
    if number == code::LOCK_TIMEOUT {
        let error = again(
            "a lock was not granted in time",
            "wait for the session that holds it, or end it: KILL CONNECTION number; or raise `lock_timeout`",
        );
        return Failure::Again { error, undone: false, waited: true };
    }
    if is_about_rows(number, &fault.state) {
        let column = column_of(&cause);
        let (reason, at) = without_row(&cause);
        let (kind, hint) = (kind(number), hint(number));
        return Failure::Rows(Refusal { column, kind, hint, reason, at, by_itself: false });
    }
    let error = Error::refused(format!("{} refuses a statement", endpoint.server.shown)).cause(cause);
    Failure::Other(match number {
        number if code::FULL.contains(&number) => error.hint("free some space on the server's disk"),
        number if code::NO_RIGHTS.contains(&number) => error.hint(GRANT),
        _ => error,
    })
}

/// Whether the server refuses LOCAL INFILE.
pub(super) fn is_local_infile_refused(fault: &Fault) -> bool {
    matches!(fault, Fault::Server(fault) if code::NO_LOCAL_INFILE.contains(&fault.code))
}

fn is_about_rows(number: u16, state: &str) -> bool {
    code::VALUES.contains(&number) || ["22", "23", "44", "45"].iter().any(|class| state.starts_with(class))
}

/// The refusal by a statement's warnings. The row in a warning may be that of a statement in a trigger.
pub(super) fn refusal(warnings: &[(u16, String)], otherwise: String) -> Refusal {
    let Some((number, first)) = warnings.first() else {
        return Refusal {
            column: None,
            reason: otherwise,
            kind: RejectKind::Other,
            hint: None,
            at: None,
            by_itself: false,
        };
    };
    let (kind, hint) = (kind(*number), hint(*number));
    let (reason, at) = without_row(first);
    Refusal { column: column_of(first), reason, kind, hint, at, by_itself: false }
}

/// The refusal of a row that is too long for any statement, after `before` other rows.
pub(super) fn too_long(packet: usize, before: usize) -> Refusal {
    Refusal {
        column: None,
        reason: format!("the row is longer than the server's max_allowed_packet, {packet} bytes"),
        kind: RejectKind::TooLong,
        hint: Some("raise it at the server; or allow LOAD DATA LOCAL (`local_infile`), which has no such limit"),
        at: Some(before),
        by_itself: true,
    }
}

/// The kind of a refusal.
fn kind(number: u16) -> RejectKind {
    match number {
        number if code::DUPLICATE.contains(&number) => RejectKind::Duplicate,
        number if code::NULL.contains(&number) => RejectKind::Null,
        1264 | 1690 => RejectKind::OutOfRange,
        1406 | 1265 => RejectKind::TooLong,
        1366 | 1300 | 1367 | 1292 | 1411 => RejectKind::Value,
        1451 | 1452 | 3819 | 4025 => RejectKind::Constraint,
        _ => RejectKind::Other,
    }
}

/// The hint for a refused row.
fn hint(number: u16) -> Option<&'static str> {
    match number {
        number if code::DUPLICATE.contains(&number) => Some(DUPLICATE),
        number if code::NULL.contains(&number) => Some("filter such rows out, or give them a value: coalesce(x, …)"),
        number if code::TOO_LONG.contains(&number) => {
            Some("widen the column, or shorten the value: left(x, n); filter such rows out")
        }
        _ => None,
    }
}

/// The column in `Data too long for column 'name' at row 1`.
fn column_of(text: &str) -> Option<String> {
    let at = ["olumn '", "olumn `"].iter().filter_map(|start| text.find(start)).min()?;
    let rest = &text[at + "olumn ".len()..];
    let quote = rest.chars().next()?;
    let name = rest[1..].split(quote).next()?;
    // MariaDB names database and table too: `test`.`t`.`name`
    let last = rest.split(' ').next().and_then(|whole| whole.rsplit('.').next()).map(|last| last.trim_matches('`'));
    Some(if quote == '`' { last.unwrap_or(name) } else { name }.to_owned())
}

/// `Data too long for column 'name' at row 1` without the row, which is meaningless for the user; and the row, from 0.
fn without_row(text: &str) -> (String, Option<usize>) {
    // What the server would have done.
    let text = text.strip_prefix("Column set to default value; ").unwrap_or(text);
    let split =
        text.rsplit_once(" at row ").and_then(|(before, number)| Some((before, number.trim().parse::<usize>().ok()?)));
    split.map_or((text.to_owned(), None), |(before, number)| (before.to_owned(), number.checked_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_tells_column_and_row() {
        for (text, column, row) in [
            ("Data too long for column 'name' at row 3", Some("name"), Some(2)),
            ("Out of range value for column 'a b' at row 1", Some("a b"), Some(0)),
            ("Incorrect integer value: 'x' for column `test`.`t`.`id` at row 12", Some("id"), Some(11)),
            ("Duplicate entry '5' for key 'PRIMARY'", None, None),
            ("Column 'id' cannot be null", Some("id"), None),
            ("Column set to default value; NULL supplied to NOT NULL column 'name' at row 2", Some("name"), Some(1)),
        ] {
            assert_eq!((column_of(text).as_deref(), without_row(text).1), (column, row), "{text}");
            assert!(!without_row(text).0.contains(" at row "), "{text}");
        }
    }
}
