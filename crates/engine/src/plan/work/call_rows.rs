//! How many rows a worker is given at once.
//!
//! Few at first, and more as long as calls are quick: so that a slow function keeps all workers busy with few rows, and
//! what fails, or takes too long, is a small call. A worker that computes many rows at once begins with a batch, and
//! gets several together if it is quick: then its time goes into calls, not into rows.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arrow::array::RecordBatch;
use millstream_core::format::BATCH_ROWS;
use millstream_core::transform::CallSize;

/// How long a call is to take: long beside the way to a worker and back, which takes some 100 µs.
const AIM: Duration = Duration::from_millis(75);

/// The most rows of several batches: with more, their columns do not stay in the processor's cache on their way to the
/// worker, and are too large for memory that is used again.
const MOST_ROWS: usize = 4 * BATCH_ROWS;

/// How many times as many rows the next call may have.
const GROWTH: usize = 8;

/// A call that takes longer is worth another worker, which has to be started and loads its code.
pub const QUICK: Duration = Duration::from_millis(5);

/// The rows of a call, by how long earlier ones took.
#[derive(Debug)]
pub struct CallRows {
    rows: AtomicUsize,
    least: usize,
    most: usize,
}

impl CallRows {
    /// As few as there may be at first.
    pub fn new(size: CallSize) -> Self {
        let (least, most) = match size {
            CallSize::Rows => (1, BATCH_ROWS),
            CallSize::Batch => (usize::MAX, usize::MAX),
            CallSize::Batches => (BATCH_ROWS, MOST_ROWS),
        };
        CallRows { rows: AtomicUsize::new(least), least, most }
    }

    /// Whether calls have as many rows as they ever have.
    pub fn are_most(&self) -> bool {
        self.get() >= self.most
    }

    /// How many rows are to be gathered for a call; `None` if batches are given as they come.
    pub fn gathered(&self) -> Option<usize> {
        (self.least < self.most && self.most > BATCH_ROWS).then(|| self.get())
    }

    fn get(&self) -> usize {
        self.rows.load(Ordering::Relaxed)
    }

    /// A call with `rows` rows took `time`.
    pub fn learn(&self, rows: usize, time: Duration) {
        let fitting = (rows as f64 * AIM.as_secs_f64() / time.as_secs_f64().max(1e-6)) as usize;
        let call_rows = self.get();
        if self.least == self.most {
            return;
        }
        // What is left of a batch says little of how quick more rows are.
        let least = if rows < call_rows / 2 { call_rows / GROWTH } else { 1 };
        let next = match time > AIM {
            true => call_rows.min(fitting.max(least).max(self.least)),
            false if rows >= call_rows / 2 => call_rows.max(fitting.min(GROWTH * rows).min(self.most)),
            false => call_rows,
        };
        self.rows.store(next, Ordering::Relaxed);
    }

    /// Cuts the rows of a call from the front of `rest`.
    pub fn cut(&self, rest: &mut Option<RecordBatch>) -> Option<RecordBatch> {
        let all = rest.take()?;
        let count = all.num_rows();
        // Equal parts: a few rows that are left over would be a call of their own.
        let calls = count.div_ceil(self.get()).max(1);
        if calls == 1 {
            return Some(all);
        }
        let rows = count.div_ceil(calls);
        *rest = Some(all.slice(rows, count - rows));
        Some(all.slice(0, rows))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::Int32Array;

    use super::*;

    /// The rows of the first calls, if a call takes `start` and each row `row`.
    fn calls(start: Duration, row: Duration, count: usize) -> Vec<usize> {
        let call_rows = CallRows::new(CallSize::Rows);
        let call = |_| {
            let rows = call_rows.get();
            call_rows.learn(rows, start + row * rows as u32);
            rows
        };
        (0..count).map(call).collect()
    }

    #[test]
    fn quick_calls_soon_have_all_rows() {
        let rows = calls(Duration::from_micros(150), Duration::from_micros(2), 7);
        assert_eq!(rows, [1, 8, 64, 512, 4096, BATCH_ROWS, BATCH_ROWS]);
    }

    #[test]
    fn calls_of_a_slow_function_are_short() {
        assert_eq!(calls(Duration::ZERO, Duration::from_millis(300), 3), [1, 1, 1]);
        assert_eq!(calls(Duration::ZERO, Duration::from_millis(1), 5), [1, 8, 64, 75, 75]);
        let call_rows = CallRows::new(CallSize::Rows);
        call_rows.rows.store(BATCH_ROWS, Ordering::Relaxed);
        call_rows.learn(BATCH_ROWS, Duration::from_secs(60));
        assert_eq!(call_rows.get(), 10);
        // One row that took long is forgotten soon.
        call_rows.learn(10, Duration::from_micros(200));
        assert_eq!(call_rows.get(), 80);
    }

    #[test]
    fn quick_calls_of_many_rows_soon_have_several_batches() {
        let call_rows = CallRows::new(CallSize::Batches);
        let next = |time| {
            let rows = call_rows.gathered().expect("batches are gathered");
            call_rows.learn(rows, time);
            call_rows.get()
        };
        let quick = Duration::from_millis(1);
        assert_eq!([next(quick), next(quick), next(quick)], [MOST_ROWS; 3]);
        assert_eq!(next(Duration::from_secs(60)), BATCH_ROWS, "no less than a batch");
    }

    #[test]
    fn a_short_rest_changes_nothing() {
        let call_rows = CallRows::new(CallSize::Rows);
        call_rows.rows.store(4096, Ordering::Relaxed);
        call_rows.learn(3, Duration::from_millis(1));
        assert_eq!(call_rows.get(), 4096);
        call_rows.learn(3, Duration::from_millis(80));
        assert_eq!(call_rows.get(), 512);
        let whole = CallRows::new(CallSize::Batch);
        whole.learn(8192, Duration::from_secs(60));
        assert_eq!((whole.get(), whole.gathered()), (usize::MAX, None));
    }

    #[test]
    fn batches_are_cut_into_equal_parts() {
        let column = Arc::new(Int32Array::from_iter_values(0..100));
        let batch = RecordBatch::try_from_iter([("n", column as _)]).expect("a batch");
        let cut = |rows: usize| {
            let (call_rows, mut rest) = (CallRows::new(CallSize::Rows), Some(batch.clone()));
            call_rows.rows.store(rows, Ordering::Relaxed);
            std::iter::from_fn(|| call_rows.cut(&mut rest)).map(|part| part.num_rows()).collect::<Vec<_>>()
        };
        assert_eq!((cut(100), cut(99), cut(48)), (vec![100], vec![50, 50], vec![34, 33, 33]));
    }
}
