//! From a bulk statement that failed to the rows that are to blame. It owns the search; what a failure means is the
//! server's to tell.
//!
//! ```text
//!  [··········x·····x··]      refused, and nobody says where: halves
//!  [··········] [x·····x··]   the first half stays
//!               [x] [·····x··]   the server names the first bad row: what is before it goes at once
//! ```
//! Each try stands behind a savepoint, so what was good stays, in the order of the rows: of two rows with one key the second
//! is the bad one. Savepoints are given up as soon as they are passed: a server that keeps them has only so much room for
//! those of one transaction.

use std::ops::Range;

use super::group::{BadRow, Rows};
use super::server::{Bulk, Failure, Server, Session};

/// Sets the point to which [`TAKE_BACK`] goes. The search has savepoints of its own, one after the other, so the last of
/// them is not the beginning of a group.
pub(crate) const REMEMBER: &str = "SAVEPOINT millstream_group";

/// Takes back all that was sent of a group, and nothing of those before it.
pub(crate) const TAKE_BACK: &str = "ROLLBACK TO SAVEPOINT millstream_group";

/// Keeps all that was sent of a group.
pub(crate) const KEEP: &str = "RELEASE SAVEPOINT millstream_group";

/// Sends the rows inside of the transaction that is open. The bad ones come back, `most` of them at most: with as many
/// the rest is not sent.
pub(crate) async fn load(
    server: &dyn Server,
    session: &mut dyn Session,
    bulk: &Bulk,
    rows: &Rows,
    most: usize,
) -> Result<Vec<BadRow>, Failure> {
    let mut bad = Vec::new();
    // In the order of the rows from the end of the list.
    let mut ranges = Vec::new();
    ranges.push(0..rows.count());
    if rows.count() == 0 {
        return Ok(bad);
    }
    session.execute("SAVEPOINT millstream").await?;
    while let Some(range) = ranges.pop() {
        let refusal = match session.bulk(bulk, rows, range.clone()).await {
            Ok(()) if ranges.is_empty() => break,
            Ok(()) => {
                session.execute(server.next_savepoint()).await?;
                continue;
            }
            Err(Failure::Rows(refusal)) => refusal,
            Err(other) => return Err(other),
        };
        // The savepoint stays for the next try.
        session.execute("ROLLBACK TO SAVEPOINT millstream").await?;
        if range.len() > 1 {
            split(range, refusal.at, &mut ranges);
            continue;
        }
        bad.push(BadRow {
            index: range.start,
            shown: server.shown(bulk, &rows.part(range)),
            column: refusal.column,
            reason: refusal.reason,
            kind: refusal.kind,
            hint: refusal.hint.map(str::to_owned),
        });
        if bad.len() >= most {
            break;
        }
    }
    session.execute("RELEASE SAVEPOINT millstream").await?;
    Ok(bad)
}

/// Adds the parts of a range in which there is a bad row, the first of them last; none of them is empty.
fn split(range: Range<usize>, at: Option<usize>, ranges: &mut Vec<Range<usize>>) {
    let Range { start, end } = range;
    let halves = |range: Range<usize>| {
        let middle = range.start + range.len() / 2;
        [middle..range.end, range.start..middle]
    };
    let parts: Vec<Range<usize>> = match at.map(|at| start + at).filter(|at| *at < end) {
        // What follows may have many more: halves keep their search short.
        Some(at) => halves(at + 1..end).into_iter().chain([at..at + 1, start..at]).collect(),
        None => halves(range).into(),
    };
    ranges.extend(parts.into_iter().filter(|part| !part.is_empty()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_the_whole_in_order() {
        for at in [None, Some(0), Some(3), Some(6), Some(99)] {
            let mut ranges = Vec::new();
            split(10..17, at, &mut ranges);
            ranges.reverse();
            assert_eq!(ranges.iter().flat_map(Clone::clone).collect::<Vec<_>>(), (10..17).collect::<Vec<_>>());
            assert!(ranges.iter().all(|range| (1..7).contains(&range.len())));
        }
    }
}
