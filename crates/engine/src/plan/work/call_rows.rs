//! How many rows a worker is given at once, where it computes one after the other.
//!
//! Few at first, and more as long as calls are quick: so that a slow function keeps all workers busy with few rows, and
//! what fails, or takes too long, is a small call.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arrow::array::RecordBatch;
use millstream_core::format::BATCH_ROWS;

/// How long a call is to take: long beside the way to a worker and back, which takes some 100 µs.
const AIM: Duration = Duration::from_millis(75);

/// How many times as many rows the next call may have.
const GROWTH: usize = 8;

/// A call that takes longer is worth another worker, which has to be started and loads its code.
pub const QUICK: Duration = Duration::from_millis(5);

/// The rows of a call, by how long earlier ones took.
#[derive(Debug)]
pub struct CallRows {
    rows: AtomicUsize,
}

impl CallRows {
    /// One row, if workers compute rows `one_by_one`; otherwise whole batches.
    pub fn new(one_by_one: bool) -> Self {
        CallRows { rows: AtomicUsize::new(if one_by_one { 1 } else { usize::MAX }) }
    }

    /// Whether calls have as many rows as they ever have.
    pub fn are_most(&self) -> bool {
        self.get() >= BATCH_ROWS
    }

    fn get(&self) -> usize {
        self.rows.load(Ordering::Relaxed)
    }

    /// A call with `rows` rows took `time`.
    pub fn learn(&self, rows: usize, time: Duration) {
        let fitting = (rows as f64 * AIM.as_secs_f64() / time.as_secs_f64().max(1e-6)) as usize;
        let call_rows = self.get();
        if call_rows > BATCH_ROWS {
            return;
        }
        // What is left of a batch says little of how quick more rows are.
        let least = if rows < call_rows / 2 { call_rows / GROWTH } else { 1 };
        let next = match time > AIM {
            true => call_rows.min(fitting.max(least).max(1)),
            false if rows >= call_rows / 2 => call_rows.max(fitting.min(GROWTH * rows).min(BATCH_ROWS)),
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
        let call_rows = CallRows::new(true);
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
        let call_rows = CallRows::new(true);
        call_rows.rows.store(BATCH_ROWS, Ordering::Relaxed);
        call_rows.learn(BATCH_ROWS, Duration::from_secs(60));
        assert_eq!(call_rows.get(), 10);
        // One row that took long is forgotten soon.
        call_rows.learn(10, Duration::from_micros(200));
        assert_eq!(call_rows.get(), 80);
    }

    #[test]
    fn a_short_rest_changes_nothing() {
        let call_rows = CallRows::new(true);
        call_rows.rows.store(4096, Ordering::Relaxed);
        call_rows.learn(3, Duration::from_millis(1));
        assert_eq!(call_rows.get(), 4096);
        call_rows.learn(3, Duration::from_millis(80));
        assert_eq!(call_rows.get(), 512);
        let whole = CallRows::new(false);
        whole.learn(8192, Duration::from_secs(60));
        assert_eq!(whole.get(), usize::MAX);
    }

    #[test]
    fn batches_are_cut_into_equal_parts() {
        let column = Arc::new(Int32Array::from_iter_values(0..100));
        let batch = RecordBatch::try_from_iter([("n", column as _)]).expect("a batch");
        let cut = |rows: usize| {
            let (call_rows, mut rest) = (CallRows::new(true), Some(batch.clone()));
            call_rows.rows.store(rows, Ordering::Relaxed);
            std::iter::from_fn(|| call_rows.cut(&mut rest)).map(|part| part.num_rows()).collect::<Vec<_>>()
        };
        assert_eq!((cut(100), cut(99), cut(48)), (vec![100], vec![50, 50], vec![34, 33, 33]));
    }
}
