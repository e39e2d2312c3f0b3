//! Converts PostgreSQL's errors to Millstream's, with hints.

use millstream_core::{Error, RejectKind};
use millstream_database::Endpoint;
use millstream_database::postgres::whole;
use tokio_postgres::Error as Fault;
use tokio_postgres::error::DbError;

use crate::database::load::DUPLICATE;
use crate::database::server::{Failure, Refusal};

/// The failure of a statement.
pub(super) fn failure(endpoint: &Endpoint, fault: &Fault) -> Failure {
    match fault.as_db_error() {
        Some(error) => server_failure(endpoint, error),
        None => Failure::Lost(endpoint.server.lost(whole(fault))),
    }
}

fn server_failure(endpoint: &Endpoint, error: &DbError) -> Failure {
    let cause = match error.detail() {
        Some(detail) => format!("{} ({})", error.message(), detail.trim_end_matches('.')),
        None => error.message().to_owned(),
    };
    let code = error.code().code();
    let again = |what: &str, hint: &str, waited| Failure::Again {
        error: Error::transient(format!("{}: {what}", endpoint.server.shown)).cause(cause.clone()).hint(hint),
        undone: false,
        waited,
    };
    // Classes of SQLSTATE: "PostgreSQL Error Codes", appendix A of its manual.
    match (code, &code[..2.min(code.len())]) {
        ("40P01" | "40001", _) => again(
            "other sessions change the same rows",
            "load with fewer `connections`, or when no other session writes",
            false,
        ),
        ("55P03", _) => again(
            "a lock was not granted in time",
            "wait for the session that holds it, or end it: SELECT pg_terminate_backend(number); or raise \
             `lock_timeout`",
            true,
        ),
        ("57P01" | "57P02" | "57P03", _) | (_, "08") => Failure::Lost(endpoint.server.lost(cause)),
        (_, "22" | "23" | "44" | "P0") => Failure::Rows(refusal(error, code, cause)),
        // A value that is too long for an index, while the server reads rows.
        ("54000", _) if error.where_().and_then(row_of).is_some() => Failure::Rows(refusal(error, code, cause)),
        (_, class) => {
            let error = Error::refused(format!("{} refuses a statement", endpoint.server.shown)).cause(cause);
            Failure::Other(match (code, class) {
                ("53100", _) => error.hint("free some space on the server's disk"),
                ("42501", _) => error.hint("GRANT the user what is missing"),
                _ => error,
            })
        }
    }
}

/// The refusal of a row.
fn refusal(error: &DbError, code: &str, reason: String) -> Refusal {
    Refusal {
        column: error.column().map(str::to_owned).or_else(|| error.where_().and_then(column_of)),
        kind: kind(code),
        hint: hint(code),
        at: error.where_().and_then(row_of),
        by_itself: error.where_().is_some_and(|context| is_of_row_alone(code, context)),
        reason,
    }
}

/// Whether a row of a `COPY` is refused for its own values: their form, a null, a constraint. A trigger, which may read
/// other rows, adds lines to the context.
fn is_of_row_alone(code: &str, context: &str) -> bool {
    let of_values = code.starts_with("22") || ["23502", "23514"].contains(&code);
    of_values && context.starts_with("COPY ") && !context.contains('\n')
}

/// The kind of a refusal.
fn kind(code: &str) -> RejectKind {
    match code {
        "23505" => RejectKind::Duplicate,
        "23502" => RejectKind::Null,
        "22001" | "54000" => RejectKind::TooLong,
        "22003" | "22008" => RejectKind::OutOfRange,
        "22021" | "22P05" => RejectKind::Encoding,
        other if other.starts_with("23") || other.starts_with("44") => RejectKind::Constraint,
        other if other.starts_with("22") => RejectKind::Value,
        _ => RejectKind::Other,
    }
}

/// The hint for a refused row.
fn hint(code: &str) -> Option<&'static str> {
    match code {
        "54000" => Some("shorten the value, or filter such rows out; an index of its hash, md5(x), takes any length"),
        "23505" => Some(DUPLICATE),
        "23502" => Some("filter such rows out, or give them a value: coalesce(x, …)"),
        "22001" | "22003" => Some("widen the column, or shorten the value: left(x, n); filter such rows out"),
        _ => None,
    }
}

/// The row in `COPY t, line 3, column name: "x"`, from 0.
fn row_of(context: &str) -> Option<usize> {
    let (_, rest) = context.split_once(", line ")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse::<usize>().ok()?.checked_sub(1)
}

/// The column in such a context.
fn column_of(context: &str) -> Option<String> {
    let (_, rest) = context.lines().next()?.split_once(", column ")?;
    let name = rest.split_once(": ").map_or(rest, |(name, _)| name);
    Some(name.trim_end_matches(": null input").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_tells_row_and_column() {
        for (text, row, column) in [
            ("COPY t, line 3, column a b: \"x\"", Some(2), Some("a b")),
            ("COPY t, line 12", Some(11), None),
            ("COPY t, line 1, column id", Some(0), Some("id")),
            ("SQL statement \"x\"", None, None),
        ] {
            assert_eq!((row_of(text), column_of(text).as_deref()), (row, column), "{text}");
        }
    }
}
