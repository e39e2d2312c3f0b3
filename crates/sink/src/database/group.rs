//! Encoded rows for one bulk statement, with the end of each, so that any part of them can be sent again separately.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use bytes::Bytes;
use millstream_core::sink::RefusedRow;
use millstream_core::{Budget, RejectKind, buffers};

use crate::shared::Charge;

/// The bytes that a group may always hold, regardless of the budget.
const FLOOR: usize = 256 << 10;

/// Encoded rows that are being gathered.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) bytes: Vec<u8>,
    ends: Vec<usize>,
    /// Rows that cannot be encoded, by the number of rows before them.
    pub(crate) refused: Vec<BadRow>,
    /// Their size in bytes.
    refused_bytes: usize,
    /// The size from which the group is full.
    limit: usize,
    charge: Charge,
}

/// A row that is refused, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadRow {
    /// How many rows of the group come before it.
    pub(crate) index: usize,
    /// Its values: `id=1, name='a'`.
    pub(crate) shown: String,
    pub(crate) column: Option<String>,
    /// The server's message, or ours.
    pub(crate) reason: String,
    /// The kind of the reason.
    pub(crate) kind: RejectKind,
    /// What to do, if known.
    pub(crate) hint: Option<String>,
}

impl BadRow {
    /// The report of the row, which has the number `row` and was passed as `record`.
    pub(crate) fn into_refused_row(self, row: u64, record: Option<RecordBatch>) -> RefusedRow {
        let BadRow { shown, column, reason, kind, hint, .. } = self;
        RefusedRow { row, record, shown, column, reason, kind, hint }
    }
}

/// The bad rows of a group with their numbers among all rows. `own` could not be encoded, and are not counted in the
/// numbers of `bad`, which the server has refused.
pub(crate) fn numbered(own: Vec<BadRow>, bad: Vec<BadRow>) -> Vec<(usize, BadRow)> {
    // Rows that could not be encoded shift the numbers of later ones.
    let skipped = |index: usize| own.iter().filter(|one| one.index <= index).count();
    let mut all: Vec<(usize, BadRow)> = bad.into_iter().map(|one| (one.index + skipped(one.index), one)).collect();
    all.extend(own.into_iter().enumerate().map(|(before, one)| (one.index + before, one)));
    all.sort_by_key(|(row, _)| *row);
    all
}

impl Group {
    /// An empty group for about `bytes` bytes, or for fewer if the budget has no room.
    pub(crate) fn new(budget: &Arc<Budget>, bytes: usize) -> Self {
        let mut charge = Charge::new(budget, FLOOR);
        let granted = charge.set(bytes + bytes / 8);
        let limit = if granted { bytes } else { bytes.min(FLOOR) };
        let (ends, refused) = (Vec::new(), Vec::new());
        Group { bytes: buffers::take(limit), ends, refused, refused_bytes: 0, limit, charge }
    }

    /// How many rows there are.
    pub(crate) fn rows(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty() && self.refused.is_empty()
    }

    /// Whether it is large enough to be sent. Rows that cannot be encoded count, too, since they are also held.
    pub(crate) fn is_full(&self, most_rows: usize) -> bool {
        self.bytes.len() + self.refused_bytes >= self.limit || self.ends.len() + self.refused.len() >= most_rows
    }

    /// Adds a row that cannot be encoded.
    pub(crate) fn refuse(&mut self, row: BadRow) {
        self.refused_bytes += size_of::<BadRow>() + row.shown.len() + row.reason.len();
        self.refused.push(row);
    }

    /// Ends the current row.
    pub(crate) fn end_row(&mut self) {
        self.ends.push(self.bytes.len());
    }

    /// Removes the bytes of the current row.
    pub(crate) fn undo_row(&mut self) {
        self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
    }

    /// The rows, ready to be sent.
    pub(crate) fn sealed(mut self) -> Rows {
        self.charge.force(self.bytes.capacity() + self.ends.capacity() * size_of::<usize>());
        Rows { bytes: buffers::share(self.bytes), ends: Arc::new(self.ends), _charge: Arc::new(self.charge) }
    }
}

/// Encoded rows. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Rows {
    bytes: Bytes,
    ends: Arc<Vec<usize>>,
    _charge: Arc<Charge>,
}

impl Rows {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of some of them.
    pub(crate) fn part(&self, rows: Range<usize>) -> Bytes {
        let start = |row: usize| if row == 0 { 0 } else { self.ends[row - 1] };
        self.bytes.slice(start(rows.start)..start(rows.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A million rows that cannot be encoded are not held until the last one has arrived.
    #[test]
    fn rows_that_cannot_be_encoded_fill_a_group_too() {
        let bad = |shown: &str| BadRow {
            index: 0,
            shown: shown.to_owned(),
            column: None,
            reason: "NaN".to_owned(),
            kind: RejectKind::Value,
            hint: None,
        };
        let mut group = Group::new(&Budget::new(1 << 20), 10_000);
        assert!(group.is_empty() && !group.is_full(3));
        group.refuse(bad("x"));
        group.refuse(bad("x"));
        assert!(!group.is_empty() && !group.is_full(3) && group.is_full(2));
        group.refuse(bad(&"x".repeat(10_000)));
        assert!(group.is_full(usize::MAX));
    }
}
