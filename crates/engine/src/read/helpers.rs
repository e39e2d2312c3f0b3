//! Who has nothing to do helps with a large unit.
//!
//! The tasks that read a source take units from its queue. Towards the end there are fewer units than tasks: then those
//! without one wait here, and those that have one offer pieces of it: spans of compressed bytes to inflate, pieces of
//! text to parse. The results go back to whoever offered, so the order of a unit's rows stays.
//!
//! ```text
//!  task 1: unit ─▶ decode ─┬─▶ parse ─▶ rows          task 2: no unit ─▶ next() ─▶ job() ─▶ next() ─▶ …
//!                          └── offer ──────────────────────────────────────▲
//! ```
//! A large archive is shared otherwise: its parts lie here, and every task takes the next when it has room for one,
//! before it takes another unit. Whoever has shared an archive does not end before all of its parts are taken.
//!
//! Nobody waits for ever: an operator may leave one task of a source alone until another has ended. Who waits here and
//! sees no one at work for a while ends.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use millstream_core::helpers::{HelperPool, Job};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use super::archive::Part;

/// How long someone waits who sees nobody at work.
const PATIENCE: Duration = Duration::from_secs(2);

/// The tasks that read one source.
pub struct ReadHelpers {
    /// Another runtime than that of the tasks.
    io: Handle,
    state: Mutex<State>,
    /// Grows while anyone is at work.
    beats: AtomicU64,
    changed: Arc<Notify>,
    /// Told when parts have come.
    shared: Arc<Notify>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Parts of archives that nobody has taken.
    parts: VecDeque<Part>,
    /// Tasks that wait for something to do.
    idle: usize,
    /// Tasks that may still offer one.
    active: usize,
}

/// What someone who has nothing to do can do.
enum Help {
    /// A job of someone else's.
    Job(Job),
    /// Take a part of an archive, if nobody is quicker.
    Part,
}

impl std::fmt::Debug for ReadHelpers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.lock();
        f.debug_struct("ReadHelpers")
            .field("jobs", &state.jobs.len())
            .field("idle", &state.idle)
            .finish_non_exhaustive()
    }
}

impl HelperPool for ReadHelpers {
    fn idle(&self) -> usize {
        let state = self.lock();
        state.idle.saturating_sub(state.jobs.len())
    }

    fn offer(&self, job: Job) {
        self.lock().jobs.push_back(job);
        // Woken from here, the helper would run next on this very thread, and no other could take it from there before
        // the owner waits for something. Woken from another runtime, it runs where there is room.
        let changed = Arc::clone(&self.changed);
        self.io.spawn(async move { changed.notify_one() });
    }
}

impl ReadHelpers {
    /// Nobody is there yet. `io` is another runtime than that of the tasks.
    pub fn new(io: Handle) -> Arc<Self> {
        Arc::new(ReadHelpers {
            io,
            state: Mutex::default(),
            beats: AtomicU64::new(0),
            changed: Arc::default(),
            shared: Arc::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Counts the caller among those who may offer work, until what comes back is dropped.
    pub fn join(self: &Arc<Self>) -> Member {
        self.lock().active += 1;
        Member { pool: Arc::clone(self) }
    }

    /// Lays parts of an archive there for everyone.
    pub fn share(&self, parts: impl Iterator<Item = Part>) {
        self.lock().parts.extend(parts);
        // From another runtime, as in `offer`.
        let (changed, shared) = (Arc::clone(&self.changed), Arc::clone(&self.shared));
        self.io.spawn(async move {
            changed.notify_waiters();
            shared.notify_waiters();
        });
    }

    /// The first part of those that are shared that `suits`.
    pub fn part(&self, suits: impl Fn(&Part) -> bool) -> Option<Part> {
        let mut state = self.lock();
        let index = state.parts.iter().position(suits)?;
        state.parts.remove(index)
    }

    /// Ends when parts have been shared after this was called.
    pub fn sharing(&self) -> OwnedNotified {
        Arc::clone(&self.shared).notified_owned()
    }

    /// Does what others offer while there is nothing else to do: until there are parts of an archive to be taken
    /// (`true`), or nobody can offer anything any more (`false`).
    pub async fn help(&self) -> bool {
        loop {
            match self.next().await {
                Some(Help::Job(job)) => job(),
                Some(Help::Part) => return true,
                None => return false,
            }
        }
    }

    /// Does what others offer, but reads nothing, as long as anyone can offer anything.
    pub async fn help_only(&self) {
        loop {
            match self.next_within(PATIENCE, false).await {
                Some(Help::Job(job)) => job(),
                _ if self.lock().active == 0 => return,
                // Whoever reads may wait for a slow source.
                _ => {}
            }
        }
    }

    /// What there is to do next; `None` when nobody can offer anything any more.
    async fn next(&self) -> Option<Help> {
        self.next_within(PATIENCE, true).await
    }

    /// What there is to do next, `parts` of archives too or not; `None` also if nobody is at work for so long.
    async fn next_within(&self, patience: Duration, parts: bool) -> Option<Help> {
        let mut idle = Idle { pool: self, counted: false };
        let mut beats = self.beats.load(Ordering::Relaxed);
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = self.lock();
                let job = state.jobs.pop_front().map(Help::Job);
                if let Some(help) = job.or_else(|| (parts && !state.parts.is_empty()).then_some(Help::Part)) {
                    idle.leave(&mut state);
                    return Some(help);
                }
                if state.active == 0 {
                    idle.leave(&mut state);
                    return None;
                }
                if !idle.counted {
                    state.idle += 1;
                    idle.counted = true;
                }
            }
            if tokio::time::timeout(patience, changed).await.is_err() {
                let before = std::mem::replace(&mut beats, self.beats.load(Ordering::Relaxed));
                if before == beats {
                    return None;
                }
            }
        }
    }
}

/// One who may offer work.
#[derive(Debug)]
pub struct Member {
    pool: Arc<ReadHelpers>,
}

impl Member {
    /// Shows that there is someone at work.
    pub fn beat(&self) {
        self.pool.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// The pool.
    pub fn pool(&self) -> &Arc<ReadHelpers> {
        &self.pool
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.pool.lock().active -= 1;
        self.pool.changed.notify_waiters();
    }
}

/// Someone who waits; counted out also when the wait is given up.
struct Idle<'a> {
    pool: &'a ReadHelpers,
    counted: bool,
}

impl Idle<'_> {
    fn leave(&mut self, state: &mut State) {
        state.idle -= usize::from(std::mem::take(&mut self.counted));
    }
}

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        if self.counted {
            self.pool.lock().idle -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use millstream_core::helpers::Shared;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_waiting_thread_helps_until_no_job_can_be_offered() {
        let pool = ReadHelpers::new(Handle::current());
        let member = pool.join();
        let helped = Arc::new(AtomicUsize::new(0));
        let helper = tokio::spawn({
            let (pool, helped) = (Arc::clone(&pool), Arc::clone(&helped));
            async move {
                while let Some(Help::Job(job)) = pool.next().await {
                    job();
                    helped.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        while HelperPool::idle(pool.as_ref()) == 0 {
            tokio::task::yield_now().await;
        }
        let jobs: Vec<_> = (0..20).map(|number| Shared::offer(pool.as_ref(), move || number * number)).collect();
        let results: Option<Vec<_>> = jobs.into_iter().map(Shared::take).collect();
        assert_eq!(results, Some((0..20).map(|number| number * number).collect()));
        drop(member);
        helper.await.expect("no panic");
        assert_eq!(helped.load(Ordering::Relaxed), 20, "what the owner took back is an empty job");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_only_helps_ends_with_those_who_read() {
        let pool = ReadHelpers::new(Handle::current());
        let member = pool.join();
        let helper = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { pool.help_only().await }
        });
        while HelperPool::idle(pool.as_ref()) == 0 {
            tokio::task::yield_now().await;
        }
        let job = Shared::offer(pool.as_ref(), || 7);
        while !job.is_done() {
            tokio::task::yield_now().await;
        }
        assert_eq!(job.take(), Some(7));
        drop(member);
        helper.await.expect("no panic");
    }

    #[tokio::test]
    async fn nobody_waits_for_someone_who_is_not_at_work() {
        let pool = ReadHelpers::new(Handle::current());
        let _member = pool.join();
        assert!(pool.next_within(Duration::from_millis(10), true).await.is_none());
        assert_eq!(HelperPool::idle(pool.as_ref()), 0);
    }

    #[tokio::test]
    async fn a_wait_that_is_given_up_is_no_longer_counted() {
        let pool = ReadHelpers::new(Handle::current());
        let _member = pool.join();
        let wait = tokio::time::timeout(Duration::from_millis(10), pool.next());
        assert!(wait.await.is_err());
        assert_eq!(HelperPool::idle(pool.as_ref()), 0);
    }
}
