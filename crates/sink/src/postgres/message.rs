//! What PostgreSQL says, as Millstream's errors: what can be done about each fault, one text for each.

use millstream_core::Error;
use tokio_postgres::Error as Fault;
use tokio_postgres::error::{DbError, SqlState};

use crate::database::place::Place;
use crate::database::server::{Failure, Refusal};
use crate::database::spec::Tls;
use crate::database::tls;

/// A connection that cannot be made.
pub(super) fn cannot_connect(place: &Place, fault: &Fault) -> Error {
    if let Some(told) = fault.as_db_error() {
        return refused_login(place, told);
    }
    let cause = place.without_secrets(whole(fault));
    if place.tls == Tls::Verify && (cause.contains("TLS") || cause.contains("certificate")) {
        return tls::refused(place, cause);
    }
    place.unreachable(cause)
}

fn refused_login(place: &Place, told: &DbError) -> Error {
    let cause = place.without_secrets(told.message().to_owned());
    let refused = |what: &str| Error::refused(format!("{}: {what}", place.shown)).cause(cause.clone());
    let code = told.code();
    if [SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION].contains(code) {
        return refused("the login is refused")
            .hint("check user and password: `user`, `password: {secret: env:NAME}`, or in the URL");
    }
    if *code == SqlState::INVALID_CATALOG_NAME {
        return refused("there is no such database").hint("check the name in the URL, or CREATE DATABASE");
    }
    if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        return refused("the user may not use the database").hint("GRANT CONNECT ON DATABASE … TO the user");
    }
    if [SqlState::TOO_MANY_CONNECTIONS, SqlState::CANNOT_CONNECT_NOW].contains(code) {
        return Error::transient(format!("{} takes no connection now", place.shown))
            .cause(cause)
            .hint("try again later, load by fewer `connections`, or raise the server's max_connections");
    }
    refused("the connection is refused")
}

/// The library tells the cause apart from what failed.
fn whole(fault: &Fault) -> String {
    let mut text = fault.to_string();
    let mut source = std::error::Error::source(fault);
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = cause.source();
    }
    text
}

/// A statement that fails.
pub(super) fn failure(place: &Place, fault: &Fault) -> Failure {
    match fault.as_db_error() {
        Some(told) => server_failure(place, told),
        None => Failure::Lost(lost(place, whole(fault))),
    }
}

fn lost(place: &Place, cause: String) -> Error {
    Error::transient(format!("the connection to {} was lost", place.shown))
        .cause(place.without_secrets(cause))
        .hint("look at the server's log; the load can be started again")
}

fn server_failure(place: &Place, told: &DbError) -> Failure {
    let cause = match told.detail() {
        Some(detail) => format!("{} ({})", told.message(), detail.trim_end_matches('.')),
        None => told.message().to_owned(),
    };
    let code = told.code().code();
    let again = |what: &str, hint: &str| Failure::Again {
        error: Error::transient(format!("{}: {what}", place.shown)).cause(cause.clone()).hint(hint),
        undone: false,
    };
    // Classes of SQLSTATE: "PostgreSQL Error Codes", appendix A of its manual.
    match (code, &code[..2.min(code.len())]) {
        ("40P01" | "40001", _) => {
            again("others change the same rows", "load by fewer `connections`, or when nobody else writes")
        }
        ("55P03", _) => again(
            "a lock was not given in time",
            "see who holds it: SELECT * FROM pg_stat_activity; or raise `lock_timeout`",
        ),
        ("57P01" | "57P02" | "57P03", _) | (_, "08") => Failure::Lost(lost(place, cause)),
        (_, "22" | "23" | "44" | "P0") => Failure::Rows(Refusal {
            column: told.column().map(str::to_owned).or_else(|| told.where_().and_then(column_of)),
            hint: hint(code),
            at: told.where_().and_then(row_of),
            reason: cause,
        }),
        (_, class) => {
            let error = Error::refused(format!("{} refuses a statement", place.shown)).cause(cause);
            Failure::Other(match (code, class) {
                ("53100", _) => error.hint("free some space on the server's disk"),
                ("42501", _) => error.hint("GRANT the user what is missing"),
                _ => error,
            })
        }
    }
}

/// What to do about a row.
fn hint(code: &str) -> Option<&'static str> {
    match code {
        "23505" => Some("the key is there already: `mode: merge` changes such rows, `mode: ignore` leaves them out"),
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

/// The column in it.
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
