//! How a run goes while it lasts: its rate now, and, if it reads a queue, how far it is behind, what it did in each
//! interval, how far it was at points of its time, and what it was short of last. All of it is bounded, however long
//! the run lasts.
//!
//! `rate.rs` the rate over the last seconds; `intervals.rs` the intervals of the report, `points.rs` its points;
//! `window.rs` what the counters were a while ago. The run notes what happens, and ticks about ten times a second.

mod intervals;
mod points;
mod rate;
mod window;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use millstream_core::clock;
use millstream_core::queue::Lag;

use self::intervals::{Counts, Intervals};
use self::points::Points;
use self::rate::Rate;
pub use self::window::Moment;
use self::window::Window;
use crate::report::{EpochCounts, Interval, QueueProgress, TimePoint, Totals};

/// How a run goes.
#[derive(Debug, Default)]
pub struct Monitor {
    /// What is known of a queue, if the run reads one.
    queue: OnceLock<QueueMonitor>,
    rate: Mutex<Rate>,
    points: Mutex<Points>,
}

/// How the reading of a queue goes.
#[derive(Debug)]
struct QueueMonitor {
    messages: AtomicU64,
    epochs: Mutex<EpochCounts>,
    lag: Mutex<Lag>,
    intervals: Mutex<Intervals>,
    window: Mutex<Window>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Monitor {
    /// The run reads a queue from now on.
    pub fn reads_queue(&self) {
        let _ = self.queue.set(QueueMonitor {
            messages: AtomicU64::new(0),
            epochs: Mutex::default(),
            lag: Mutex::default(),
            intervals: Mutex::new(Intervals::new(Instant::now(), clock::now())),
            window: Mutex::default(),
        });
    }

    /// So many messages came.
    pub fn came(&self, messages: u64) {
        if let Some(queue) = self.queue.get() {
            queue.messages.fetch_add(messages, Ordering::Relaxed);
        }
    }

    /// An epoch has ended, or a sink has committed a part of it: `count` counts that.
    pub fn count_epochs(&self, count: impl FnOnce(&mut EpochCounts)) {
        if let Some(queue) = self.queue.get() {
            count(&mut lock(&queue.epochs));
        }
    }

    /// How far the queue is behind now.
    pub fn note_lag(&self, lag: Lag) {
        if let Some(queue) = self.queue.get() {
            *lock(&queue.lag) = lag;
        }
    }

    /// Takes note of the counters as they are, so long after the run began: the rate in rows (of a queue: messages) a
    /// second, and how the queue is read.
    pub fn tick(&self, elapsed: Duration, totals: &Totals) -> (f64, Option<QueueProgress>) {
        let now = Instant::now();
        let mut rate = lock(&self.rate);
        let Some(queue) = self.queue.get() else {
            lock(&self.points).note(elapsed, totals);
            return (rate.note(now, totals.rows_read), None);
        };
        let counts = queue.counts(totals);
        let (epochs, lag) = (*lock(&queue.epochs), *lock(&queue.lag));
        lock(&queue.intervals).note(now, clock::now(), counts, lag);
        let progress = QueueProgress { messages: counts.messages, epochs, lag };
        (rate.note(now, counts.messages), Some(progress))
    }

    /// Keeps what `moment` gives, if it is time for it and the run reads a queue: the verdict is about the time since
    /// such a moment.
    pub fn keep_moment(&self, moment: impl FnOnce() -> Moment) {
        if let Some(queue) = self.queue.get() {
            lock(&queue.window).keep(Instant::now(), moment);
        }
    }

    /// The moment from which on a verdict is about what is so now; `None` if that is the beginning of the run.
    pub fn earlier(&self) -> Option<Moment> {
        lock(&self.queue.get()?.window).first()
    }

    /// The intervals of a run that has read a queue, with these counters at its end.
    pub fn intervals(&self, totals: &Totals) -> Vec<Interval> {
        let Some(queue) = self.queue.get() else { return Vec::new() };
        let (counts, lag) = (queue.counts(totals), *lock(&queue.lag));
        let mut intervals = lock(&queue.intervals);
        intervals.end(Instant::now(), clock::now(), counts, lag);
        intervals.all()
    }

    /// The points of a run that ends now, with these counters; none if it has read a queue, since intervals say more.
    pub fn points(&self, elapsed: Duration, totals: &Totals) -> Vec<TimePoint> {
        match self.queue.get() {
            Some(_) => Vec::new(),
            None => lock(&self.points).up_to(elapsed, totals),
        }
    }
}

impl QueueMonitor {
    fn counts(&self, totals: &Totals) -> Counts {
        Counts {
            messages: self.messages.load(Ordering::Relaxed),
            rows_written: totals.rows_written,
            rejected: totals.rows_rejected,
            epochs: lock(&self.epochs).committed,
        }
    }
}
