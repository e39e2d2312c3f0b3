//! Rows in the order of a key, cut where a group ends.

use std::ops::Range;

use arrow::array::RecordBatch;
use arrow::compute::{concat_batches, partition};
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use futures::{StreamExt, stream};
use millstream_core::Result;
use millstream_core::format::{BATCH_BYTES, BATCH_ROWS};
use millstream_core::transform::RowStream;
use tokio::sync::mpsc;

use super::rows::{Part, unfit};
use crate::fault;

/// A group with more bytes is not held, so it cannot be given to another worker either: 16 MiB.
const HELD_BYTES: usize = 4 * BATCH_BYTES;

/// What workers are given.
pub enum Groups {
    /// Whole groups.
    Whole(Part),
    /// One group, which is too large to be held.
    Long(RowStream),
}

/// Cuts `input`, which is in the order of its columns `by`, and hands what it cuts to `groups`, until nobody wants it.
pub async fn cut(
    mut input: SendableRecordBatchStream,
    by: Vec<usize>,
    groups: mpsc::Sender<Result<Groups, DataFusionError>>,
) {
    let mut cutter =
        Cutter { by, groups, held: Vec::new(), rows: 0, bytes: 0, ends: Vec::new(), ended_bytes: 0, long: None };
    let mut last: Option<RecordBatch> = None;
    while let Some(batch) = input.next().await {
        let goes_on = match batch {
            Ok(batch) if batch.num_rows() == 0 => true,
            Ok(batch) => {
                let taken = cutter.take(&batch, last.as_ref()).await;
                last = Some(batch.slice(batch.num_rows() - 1, 1));
                taken
            }
            Err(error) => {
                let error = fault::unwrap(error);
                // A long group has to fail, too: the end of its rows would look like the end of the group.
                if let Some(long) = cutter.long.take() {
                    let _ = long.send(Err(error.clone())).await;
                }
                let _ = cutter.groups.send(Err(fault::carry(error))).await;
                return;
            }
        };
        if !goes_on {
            return;
        }
    }
    cutter.finish().await;
}

struct Cutter {
    by: Vec<usize>,
    groups: mpsc::Sender<Result<Groups, DataFusionError>>,
    /// Rows that are not handed on yet, and how many they are.
    held: Vec<RecordBatch>,
    rows: usize,
    bytes: usize,
    /// Behind which of these rows each group ends that has ended.
    ends: Vec<usize>,
    /// The bytes up to the last of them.
    ended_bytes: usize,
    /// Takes the rows of a long group that has not ended.
    long: Option<mpsc::Sender<Result<RecordBatch>>>,
}

impl Cutter {
    /// Takes `batch`, which follows the row `last`; whether anybody wants more.
    async fn take(&mut self, batch: &RecordBatch, last: Option<&RecordBatch>) -> bool {
        let ranges = match self.groups_of(batch, last) {
            Ok(ranges) => ranges,
            Err(error) => {
                let _ = self.groups.send(Err(fault::carry(error))).await;
                return false;
            }
        };
        let row_bytes = batch.get_array_memory_size() / batch.num_rows() + 1;
        // Small groups are held together: each slice costs, as does putting them together.
        let mut unheld = 0;
        for (start, length, is_new) in ranges {
            if is_new {
                self.long = None;
                if self.ends.last().copied().unwrap_or(0) < self.rows {
                    self.ends.push(self.rows);
                    self.ended_bytes = self.bytes;
                }
                if self.rows >= BATCH_ROWS || self.bytes >= BATCH_BYTES {
                    self.hold(batch, unheld..start);
                    unheld = start;
                    if !self.hand_on().await {
                        return false;
                    }
                }
            }
            let end = start + length;
            if let Some(long) = &self.long {
                if long.send(Ok(batch.slice(start, length))).await.is_err() {
                    return false;
                }
                unheld = end;
                continue;
            }
            self.rows += length;
            self.bytes += length * row_bytes;
            if self.bytes - self.ended_bytes > HELD_BYTES {
                self.hold(batch, unheld..end);
                unheld = end;
                if !self.begin_long().await {
                    return false;
                }
            }
        }
        self.hold(batch, unheld..batch.num_rows());
        true
    }

    fn hold(&mut self, batch: &RecordBatch, rows: Range<usize>) {
        if !rows.is_empty() {
            self.held.push(batch.slice(rows.start, rows.len()));
        }
    }

    /// The beginning and length of each group in `batch`, and whether it is not that of the row `last`.
    fn groups_of(&self, batch: &RecordBatch, last: Option<&RecordBatch>) -> Result<Vec<(usize, usize, bool)>> {
        let keys = |batch: &RecordBatch| self.by.iter().map(|by| batch.column(*by).clone()).collect::<Vec<_>>();
        let ranges = partition(&keys(batch)).map_err(unfit)?.ranges();
        let continues = match last {
            None => false,
            Some(last) => {
                let both = concat_batches(&batch.schema(), [last, &batch.slice(0, 1)]).map_err(unfit)?;
                partition(&keys(&both)).map_err(unfit)?.len() == 1
            }
        };
        let groups = ranges.into_iter().map(|range| (range.start, range.len(), range.start > 0 || !continues));
        Ok(groups.collect())
    }

    /// Hands on the groups that have ended.
    async fn hand_on(&mut self) -> bool {
        let ends = std::mem::take(&mut self.ends);
        let Some(count) = ends.last().copied() else { return true };
        // The batch in which the last of them ends stays, as far as it is behind that.
        let (mut whole, mut left) = (0, count);
        while left > 0 && self.held[whole].num_rows() <= left {
            left -= self.held[whole].num_rows();
            whole += 1;
        }
        let mut rows: Vec<RecordBatch> = self.held.drain(..whole).collect();
        if left > 0 {
            let last = &mut self.held[0];
            rows.push(last.slice(0, left));
            *last = last.slice(left, last.num_rows() - left);
        }
        self.rows -= count;
        self.bytes -= self.ended_bytes;
        self.ended_bytes = 0;
        let rows = concat_batches(&rows[0].schema(), &rows).map_err(unfit);
        let groups = rows.map(|rows| Groups::Whole(Part { rows, ends }));
        self.groups.send(groups.map_err(fault::carry)).await.is_ok()
    }

    /// Hands on the group that has not ended, piece by piece from now on.
    async fn begin_long(&mut self) -> bool {
        if !self.hand_on().await {
            return false;
        }
        let (long, rows) = mpsc::channel(1);
        let rows = stream::unfold(rows, |mut rows| async move { Some((rows.recv().await?, rows)) }).boxed();
        if self.groups.send(Ok(Groups::Long(rows))).await.is_err() {
            return false;
        }
        for rows in std::mem::take(&mut self.held) {
            if long.send(Ok(rows)).await.is_err() {
                return false;
            }
        }
        (self.rows, self.bytes, self.long) = (0, 0, Some(long));
        true
    }

    async fn finish(&mut self) {
        self.long = None;
        if self.ends.last().copied().unwrap_or(0) < self.rows {
            self.ends.push(self.rows);
            self.ended_bytes = self.bytes;
        }
        self.hand_on().await;
    }
}
