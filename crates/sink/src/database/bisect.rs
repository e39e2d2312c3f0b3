//! Finds the bad rows of a bulk statement that failed. The server classifies failures.
//!
//! ```text
//!  [··········x·····x··]      refused, and the server does not say where: halves
//!  [··········] [x·····x··]   the first half stays
//!               [x] [·····x··]   the server names the first bad row; what is before it goes, the rest by halves
//! ```
//! Each attempt follows a savepoint, so good rows stay, in order: of two rows with one key the second is the bad one.
//! Savepoints are released as soon as possible, since servers limit their number per transaction.

use std::ops::Range;

use millstream_database::table::Bulk;

use super::group::{BadRow, Rows};
use super::server::{Connection, Failure, Server};

/// The scope in which a group of rows is kept or rolled back as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// A transaction of its own.
    Transaction,
    /// A savepoint of the open transaction. It has a name of its own, since the search sets further savepoints.
    Savepoint,
}

impl Scope {
    /// The statement before the first row.
    pub(crate) fn begin(self) -> &'static str {
        match self {
            Scope::Transaction => "BEGIN",
            Scope::Savepoint => "SAVEPOINT millstream_group",
        }
    }

    /// The statement that keeps the rows of the group.
    pub(crate) fn keep(self) -> &'static str {
        match self {
            Scope::Transaction => "COMMIT",
            Scope::Savepoint => "RELEASE SAVEPOINT millstream_group",
        }
    }

    /// The statement that rolls back the rows of the group, and nothing before it.
    pub(crate) fn roll_back(self) -> &'static str {
        match self {
            Scope::Transaction => "ROLLBACK",
            Scope::Savepoint => "ROLLBACK TO SAVEPOINT millstream_group",
        }
    }
}

/// Sends the rows inside of the open transaction. Returns the bad ones, at most `most`: then the rest is not sent.
pub(crate) async fn load(
    server: &dyn Server,
    connection: &mut dyn Connection,
    bulk: &Bulk,
    rows: &Rows,
    most: usize,
) -> Result<Vec<BadRow>, Failure> {
    let mut bad = Vec::new();
    // The ranges to send; the next one is the last of the list.
    let mut ranges = Vec::new();
    ranges.push(0..rows.count());
    if rows.count() == 0 {
        return Ok(bad);
    }
    connection.execute("SAVEPOINT millstream").await?;
    while let Some(range) = ranges.pop() {
        let refusal = match connection.bulk(bulk, rows, range.clone()).await {
            Ok(()) if ranges.is_empty() => break,
            Ok(()) => {
                connection.execute(server.dialect().next_savepoint()).await?;
                continue;
            }
            Err(Failure::Rows(refusal)) => refusal,
            Err(other) => return Err(other),
        };
        // The savepoint stays for the next attempt.
        connection.execute("ROLLBACK TO SAVEPOINT millstream").await?;
        let at = refusal.at.map(|at| range.start + at).filter(|at| *at < range.end);
        let to_blame = if range.len() == 1 { Some(range.start) } else { at.filter(|_| refusal.by_itself) };
        split(range, at, to_blame.is_some(), &mut ranges);
        let Some(index) = to_blame else { continue };
        bad.push(BadRow {
            index,
            shown: server.shown(bulk, &rows.part(index..index + 1)),
            column: refusal.column,
            reason: refusal.reason,
            kind: refusal.kind,
            hint: refusal.hint.map(str::to_owned),
        });
        if bad.len() >= most {
            break;
        }
    }
    connection.execute("RELEASE SAVEPOINT millstream").await?;
    bad.sort_by_key(|row| row.index);
    Ok(bad)
}

/// Adds the parts of a range to send again, the first one last; none of them is empty or the whole range. `at` is the
/// bad row, if known; if it is certain, it is left out.
fn split(range: Range<usize>, at: Option<usize>, is_found: bool, ranges: &mut Vec<Range<usize>>) {
    let Range { start, end } = range;
    let halves = |range: Range<usize>| {
        let middle = range.start + range.len() / 2;
        [middle..range.end, range.start..middle]
    };
    let parts: Vec<Range<usize>> = match at {
        // The rows after it may have many more: halves keep the search short.
        Some(at) if is_found => halves(at + 1..end).into_iter().chain(std::iter::once(start..at)).collect(),
        Some(at) => halves(at + 1..end).into_iter().chain([at..at + 1, start..at]).collect(),
        None if is_found => vec![],
        None => halves(range).into(),
    };
    ranges.extend(parts.into_iter().filter(|part| !part.is_empty()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_the_whole_in_order() {
        for (at, is_found) in
            [(None, false), (Some(10), false), (Some(13), false), (Some(16), false), (Some(10), true), (Some(13), true)]
        {
            let mut ranges = Vec::new();
            split(10..17, at, is_found, &mut ranges);
            ranges.reverse();
            let whole = (10..17).filter(|row| !is_found || at != Some(*row));
            assert_eq!(ranges.iter().flat_map(Clone::clone).collect::<Vec<_>>(), whole.collect::<Vec<_>>());
            assert!(ranges.iter().all(|range| (1..7).contains(&range.len())));
        }
        let mut none = Vec::new();
        split(3..4, None, true, &mut none);
        split(3..4, Some(3), true, &mut none);
        assert!(none.is_empty(), "{none:?}");
    }
}
