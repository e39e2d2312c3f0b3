//! Work that can be shared: a worker with one large task offers parts of it to idle workers.
//!
//! Sharing pays only where a worker is idle, so a task checks [`HelperPool::idle`] first and works alone if there is
//! none. An offered job may run on any worker at any time, or never. So a job that must be done stays where its owner
//! can reclaim it (see [`Shared`]).

use std::fmt::Debug;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// A piece of work.
pub type Job = Box<dyn FnOnce() + Send>;

/// The workers of a run.
pub trait HelperPool: Debug + Send + Sync {
    /// How many workers have nothing to do now. A hint.
    fn idle(&self) -> usize;

    /// Hands `job` to an idle worker.
    fn offer(&self, job: Job);
}

/// A pool without helpers.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHelpers;

impl HelperPool for NoHelpers {
    fn idle(&self) -> usize {
        0
    }

    fn offer(&self, _: Job) {}
}

/// A computation that someone may do for its owner.
///
/// ```
/// use std::sync::Arc;
/// use millstream_core::helpers::{NoHelpers, Shared};
///
/// let sum = Shared::offer(&NoHelpers, || 1 + 2);
/// assert_eq!(sum.take(), Some(3), "nobody took it, so the owner does it");
/// ```
#[derive(Debug)]
pub struct Shared<T> {
    state: Arc<Slot<T>>,
}

struct Slot<T> {
    state: Mutex<State<T>>,
    done: Condvar,
}

enum State<T> {
    Waiting(Box<dyn FnOnce() -> T + Send>),
    Running,
    Done(T),
    /// Given up by its owner, or lost in a panic.
    Gone,
}

impl<T> Debug for Slot<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match *self.lock() {
            State::Waiting(_) => "waiting",
            State::Running => "running",
            State::Done(_) => "done",
            State::Gone => "gone",
        })
    }
}

impl<T> Slot<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<T: Send + 'static> Shared<T> {
    /// Offers `work` to `pool`.
    pub fn offer(pool: &dyn HelperPool, work: impl FnOnce() -> T + Send + 'static) -> Self {
        let state = Arc::new(Slot { state: Mutex::new(State::Waiting(Box::new(work))), done: Condvar::new() });
        let helper = Arc::clone(&state);
        pool.offer(Box::new(move || helper.run()));
        Shared { state }
    }

    /// Whether the result is there.
    pub fn is_done(&self) -> bool {
        matches!(*self.state.lock(), State::Done(_))
    }

    /// Whether someone has begun, so that the result is there or will come without the owner.
    pub fn is_taken(&self) -> bool {
        !matches!(*self.state.lock(), State::Waiting(_))
    }

    /// The result: done by the caller if nobody has begun, waited for (blocking, as long as the work takes) if someone
    /// is at it. `None` if whoever was at it panicked.
    pub fn take(self) -> Option<T> {
        self.state.run();
        let mut state = self.state.lock();
        loop {
            match std::mem::replace(&mut *state, State::Gone) {
                State::Done(result) => return Some(result),
                State::Running => {
                    *state = State::Running;
                    state = self.state.done.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
                }
                State::Waiting(_) | State::Gone => return None,
            }
        }
    }

    /// The work, if nobody has begun: it will not be done.
    pub fn cancel(self) -> bool {
        let mut state = self.state.lock();
        let unbegun = matches!(*state, State::Waiting(_));
        if unbegun {
            *state = State::Gone;
        }
        unbegun
    }
}

impl<T> Slot<T> {
    fn run(&self) {
        let work = {
            let mut state = self.lock();
            match std::mem::replace(&mut *state, State::Running) {
                State::Waiting(work) => work,
                other => {
                    *state = other;
                    return;
                }
            }
        };
        let mut lost = Lost { slot: self, armed: true };
        let result = work();
        lost.armed = false;
        *self.lock() = State::Done(result);
        self.done.notify_all();
    }
}

/// Tells the owner when the work ended in a panic.
struct Lost<'a, T> {
    slot: &'a Slot<T>,
    armed: bool,
}

impl<T> Drop for Lost<'_, T> {
    fn drop(&mut self) {
        if self.armed {
            *self.slot.lock() = State::Gone;
            self.slot.done.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Threads;

    impl HelperPool for Threads {
        fn idle(&self) -> usize {
            1
        }

        fn offer(&self, job: Job) {
            std::thread::spawn(job);
        }
    }

    #[test]
    fn a_job_is_done_once_by_any_thread() {
        for pool in [&NoHelpers as &dyn HelperPool, &Threads] {
            let jobs: Vec<_> = (0..100).map(|number| Shared::offer(pool, move || number)).collect();
            let results: Vec<_> = jobs.into_iter().map(Shared::take).collect();
            assert_eq!(results, (0..100).map(Some).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_is_cancelled_is_not_done() {
        let ran = Arc::new(Mutex::new(false));
        let mark = Arc::clone(&ran);
        assert!(Shared::offer(&NoHelpers, move || *mark.lock().expect("no panic") = true).cancel());
        assert!(!*ran.lock().expect("no panic"));
    }

    #[test]
    fn a_panic_is_no_result() {
        let job = Shared::offer(&Threads, || -> u8 { panic!("on purpose") });
        while !job.is_taken() {
            std::thread::yield_now();
        }
        assert_eq!(job.take(), None);
    }
}
