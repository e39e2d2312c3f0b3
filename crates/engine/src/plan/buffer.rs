//! A buffer before a sort: rows that wait while it is busy, so that a source that comes in bursts does not have to.
//!
//! ```text
//!  input ─▶ [ batches that wait, charged to the budget ] ─▶ sort
//! ```
//! The readers fetch ahead in bytes as they are stored; what waits here has been decoded and parsed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;
use millstream_core::Budget;
use tokio::sync::{Notify, mpsc};

/// What comes out of `input`, of which at most `most` bytes of `budget` wait; one batch may wait whatever it takes.
pub fn buffered(mut input: SendableRecordBatchStream, most: usize, budget: Arc<Budget>) -> SendableRecordBatchStream {
    let schema = input.schema();
    let room = Arc::new(Room { budget, most, held: AtomicUsize::new(0), freed: Notify::new() });
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let filling = SpawnedTask::spawn(async move {
        while let Some(batch) = input.next().await {
            let bytes = batch.as_ref().map_or(0, RecordBatch::get_array_memory_size);
            let held = room.take(bytes).await;
            if sender.send((batch, held)).is_err() {
                return;
            }
        }
    });
    let batches = async_stream::try_stream! {
        while let Some((batch, held)) = receiver.recv().await {
            yield batch?;
            drop(held);
        }
        let failed = |cause| DataFusionError::Internal(format!("a buffer before a sort failed: {cause}"));
        filling.join_unwind().await.map_err(failed)?;
    };
    Box::pin(RecordBatchStreamAdapter::new(schema, batches))
}

/// Room for what waits.
struct Room {
    budget: Arc<Budget>,
    most: usize,
    held: AtomicUsize,
    freed: Notify,
}

impl Room {
    /// Waits until there is room for `bytes`, of the buffer and of the budget, or until nothing waits.
    async fn take(self: &Arc<Self>, bytes: usize) -> Held {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            let held = self.held.load(Ordering::Acquire);
            if held == 0 {
                self.budget.take(bytes);
                break;
            }
            if held + bytes <= self.most && self.budget.try_take(bytes) {
                break;
            }
            freed.await;
        }
        self.held.fetch_add(bytes, Ordering::AcqRel);
        Held { room: Arc::clone(self), bytes }
    }
}

/// Room that is taken; given back when dropped.
struct Held {
    room: Arc<Room>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.budget.give_back(self.bytes);
        self.room.held.fetch_sub(self.bytes, Ordering::AcqRel);
        self.room.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use arrow::array::{ArrayRef, Int64Array};
    use futures::TryStreamExt;

    use super::*;

    const ROWS: i64 = 100;

    fn numbers(count: i64, taken: Arc<AtomicUsize>) -> SendableRecordBatchStream {
        let batch = move |number: i64| {
            taken.fetch_add(1, Ordering::Relaxed);
            let column: ArrayRef = Arc::new(Int64Array::from_iter_values((0..ROWS).map(|row| number * ROWS + row)));
            RecordBatch::try_from_iter([("n", column)]).map_err(DataFusionError::from)
        };
        let schema = batch(0).expect("a batch").schema();
        Box::pin(RecordBatchStreamAdapter::new(schema, futures::stream::iter((0..count).map(batch))))
    }

    #[tokio::test]
    async fn the_input_is_read_until_the_buffer_is_full() {
        let (budget, taken) = (Budget::new(1 << 20), Arc::new(AtomicUsize::new(0)));
        let mut batches = buffered(numbers(50, Arc::clone(&taken)), 10 * 1000, Arc::clone(&budget));
        let first = batches.try_next().await.expect("no error").expect("a batch");
        tokio::time::sleep(Duration::from_millis(50)).await;
        let ahead = taken.load(Ordering::Relaxed);
        assert!((5..20).contains(&ahead), "{ahead}");
        assert!((4_000..=10_000).contains(&budget.used()), "{}", budget.used());
        let mut rows = first.num_rows();
        while let Some(batch) = batches.try_next().await.expect("no error") {
            rows += batch.num_rows();
        }
        assert_eq!(rows, 5000);
        drop(batches);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn without_room_batches_go_one_by_one_and_an_end_ends_it() {
        let (budget, taken) = (Budget::new(10), Arc::new(AtomicUsize::new(0)));
        let batches = buffered(numbers(20, Arc::clone(&taken)), 1, Arc::clone(&budget));
        let all: Vec<RecordBatch> = batches.try_collect().await.expect("no error");
        assert_eq!(all.len(), 20);
        let mut unfinished = buffered(numbers(1_000_000, Arc::clone(&taken)), 1, Arc::clone(&budget));
        unfinished.try_next().await.expect("no error").expect("a batch");
        drop(unfinished);
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(budget.used(), 0, "whoever wants no more gives back what waited");
        assert!(taken.load(Ordering::Relaxed) < 100);
    }
}
