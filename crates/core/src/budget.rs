//! The one memory budget of the process, and the shares that runs have in it.
//!
//! Code that holds memory that grows with the data reserves it here first: fetched bytes that wait, sort buffers,
//! batches that wait between steps. A refusal means: spill, wait, or fail with a hint, never grow. A reservation is
//! given back when it is dropped. The limit can move during a run: a governor lowers it when the process holds more
//! than what was declared.
//!
//! Several runs at once have equal shares. A share is a budget of its own, whose bytes count in the whole budget too;
//! its limit is the limit of the whole divided by the number of open shares. So one run alone may use everything, and
//! when a second begins, the first reserves no more until it is within its half.
//!
//! What the processes that work for a run hold lowers the limit of its share, and that of the whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::error::{Error, ErrorKind, Result};
use crate::spec::Size;

/// However much other processes hold, one part in so many of the limit stays.
const LEAST_PART: usize = 8;

/// What other processes must leave of the memory, in bytes, or the half of it if that is less: what a run needs alone.
const LEAST_INSIDE: u64 = 64 << 20;

/// How many bytes may be held, and how many are.
#[derive(Debug)]
pub struct Budget {
    process: u64,
    limit: AtomicUsize,
    used: AtomicUsize,
    /// Bytes that other processes hold.
    outside: AtomicUsize,
    peak: AtomicUsize,
    refusals: AtomicUsize,
    /// Common to a budget and its shares: bytes that one gives back may be what another waits for.
    signals: Arc<Signals>,
    /// How many shares are open.
    shares: AtomicUsize,
    /// The budget that this one is a share of.
    whole: Option<Arc<Budget>>,
}

#[derive(Debug, Default)]
struct Signals {
    held_back: AtomicBool,
    freed: Notify,
}

/// An open share of a budget: it counts as a share until this is dropped.
#[derive(Debug)]
pub struct Share(Arc<Budget>);

impl Share {
    /// The share as a budget.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.0
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(whole) = &self.0.whole {
            whole.shares.fetch_sub(1, Ordering::Relaxed);
            whole.signals.freed.notify_waiters();
        }
    }
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Budget::of_process(limit as u64, limit)
    }

    /// A budget of `limit` bytes for a process that may hold `process` bytes, with what nobody reserves.
    pub fn of_process(process: u64, limit: usize) -> Arc<Self> {
        Arc::new(Budget {
            process,
            limit: AtomicUsize::new(limit),
            used: AtomicUsize::new(0),
            outside: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            refusals: AtomicUsize::new(0),
            signals: Arc::default(),
            shares: AtomicUsize::new(0),
            whole: None,
        })
    }

    /// Opens a share, equal to all other open shares.
    pub fn share(self: &Arc<Self>) -> Share {
        self.shares.fetch_add(1, Ordering::Relaxed);
        Share(Arc::new(Budget {
            process: self.process,
            limit: AtomicUsize::new(usize::MAX),
            used: AtomicUsize::new(0),
            outside: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            refusals: AtomicUsize::new(0),
            signals: Arc::clone(&self.signals),
            shares: AtomicUsize::new(0),
            whole: Some(Arc::clone(self)),
        }))
    }

    /// Bytes that the process may hold. They do not move with the limit.
    pub fn process(&self) -> u64 {
        self.process
    }

    /// The limit in bytes, as it stands now.
    pub fn limit(&self) -> usize {
        let all = self.limit_with_outside();
        all.saturating_sub(self.outside()).max(all / LEAST_PART)
    }

    /// The limit in bytes if other processes held nothing.
    pub fn limit_with_outside(&self) -> usize {
        let own = self.limit.load(Ordering::Relaxed);
        let of_whole = |whole: &Arc<Budget>| whole.limit_with_outside() / whole.open_shares();
        self.whole.as_ref().map_or(own, |whole| own.min(of_whole(whole)))
    }

    fn open_shares(&self) -> usize {
        self.shares.load(Ordering::Relaxed).max(1)
    }

    /// Bytes that other processes hold, which work for the run, or for all runs.
    pub fn outside(&self) -> usize {
        self.outside.load(Ordering::Relaxed)
    }

    /// Other processes hold `bytes` now.
    pub fn set_outside(&self, bytes: usize) {
        let before = self.outside.swap(bytes, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.outside.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
        }
        if bytes < before {
            self.signals.freed.notify_waiters();
        }
    }

    /// The most bytes that other processes may hold: the rest is for this one.
    pub fn most_outside(&self) -> u64 {
        self.process - LEAST_INSIDE.min(self.process / 2)
    }

    /// Whether other processes hold too much, and those of this share, with `bytes`, more than their part.
    pub fn is_too_much_outside(&self, bytes: u64) -> bool {
        let whole = self.whole.as_deref().unwrap_or(self);
        whole.outside() as u64 > self.most_outside() && bytes > self.most_outside() / whole.open_shares() as u64
    }

    /// What other processes hold, in words that follow what is in use here; nothing if there are none.
    pub fn beside(&self) -> String {
        match self.outside() {
            0 => String::new(),
            bytes => format!("; the processes of the run hold {}", Size(bytes as u64)),
        }
    }

    /// Moves the limit, to which other processes' bytes count. What is already reserved stays, even if it is more.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
        self.signals.freed.notify_waiters();
    }

    /// Bytes reserved now.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The most bytes that were ever reserved at once.
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// How often a reservation was refused: evidence that memory was short.
    pub fn refusals(&self) -> usize {
        self.refusals.load(Ordering::Relaxed)
    }

    /// Takes `bytes` if they are free; otherwise a refusal is counted.
    pub fn try_take(&self, bytes: usize) -> bool {
        let taken = self.take_if(bytes, false);
        if !taken {
            self.refuse();
        }
        taken
    }

    /// Takes `bytes` if they fit, here and in the whole budget. With `alone` they fit also where nothing else is taken,
    /// however many they are.
    fn take_if(&self, bytes: usize, alone: bool) -> bool {
        let limit = self.limit();
        let fits = |used: usize| used.checked_add(bytes).filter(|total| (alone && used == 0) || *total <= limit);
        let Ok(before) = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) else { return false };
        if self.whole.as_ref().is_some_and(|whole| !whole.take_if(bytes, alone)) {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        self.peak.fetch_max(before + bytes, Ordering::Relaxed);
        true
    }

    /// Counts a refusal that a holder's own share, not the whole limit, gave the reason for.
    pub fn refuse(&self) {
        self.refusals.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes `bytes` whether they are free or not: only for what is already held and cannot be given back.
    pub fn take(&self, bytes: usize) {
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        self.peak.fetch_max(before + bytes, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.take(bytes);
        }
    }

    /// Gives `bytes` back.
    pub fn give_back(&self, bytes: usize) {
        if bytes > 0 {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            self.whole.iter().for_each(|whole| whole.give_back(bytes));
            self.signals.freed.notify_waiters();
        }
    }

    /// Reserves `bytes` for `holder`, or says why not.
    pub fn try_reserve(self: &Arc<Self>, holder: &str, bytes: usize) -> Result<Reservation> {
        if self.try_take(bytes) {
            return Ok(Reservation { budget: Arc::clone(self), bytes });
        }
        let full = self.full_for(bytes);
        let (used, limit, beside) = (full.used(), full.limit(), full.beside());
        let what = format!("{holder} needs {bytes} more bytes of memory, and {used} of {limit} are in use{beside}");
        Err(Error::new(ErrorKind::Memory, what).hint("raise `--memory`"))
    }

    /// The budget that has no room for `bytes`: this share, or the whole.
    pub fn full_for(&self, bytes: usize) -> &Budget {
        match &self.whole {
            Some(whole) if self.used().saturating_add(bytes) <= self.limit() => whole,
            _ => self,
        }
    }

    /// Waits until `bytes` are free, or nothing at all is reserved.
    pub async fn has_room(&self, bytes: usize) {
        loop {
            let freed = self.signals.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if self.used() == 0 || self.used().saturating_add(bytes) <= self.limit() {
                return;
            }
            freed.await;
        }
    }

    /// Reserves `bytes`, waiting until they are free. A first reservation that is larger than the whole limit is
    /// granted as soon as nothing else is reserved, so that one large unit cannot wait for ever. However often it is
    /// tried again, waiting counts as one refusal.
    pub async fn reserve(self: &Arc<Self>, bytes: usize) -> Reservation {
        let mut refused = false;
        loop {
            let freed = self.signals.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if self.take_if(bytes, true) {
                break;
            }
            if !std::mem::replace(&mut refused, true) {
                self.refuse();
            }
            freed.await;
        }
        Reservation { budget: Arc::clone(self), bytes }
    }

    /// Reserves `bytes` within the limit, waiting until they are free, for as long as anything moves: `patience` ends
    /// when no byte was reserved or given back for so long, as what holds the memory may be waiting for the one that
    /// asks. Outside of tokio, which has the timers, nothing is waited for.
    pub async fn reserve_within(self: &Arc<Self>, bytes: usize, patience: Duration) -> Option<Reservation> {
        if let Some(reserved) = self.reserve_now(bytes) {
            return Some(reserved);
        }
        self.refuse();
        if patience.is_zero() || Handle::try_current().is_err() {
            return None;
        }
        let (mut used, mut since) = (self.full_for(bytes).used(), Instant::now());
        loop {
            let freed = self.signals.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if let Some(reserved) = self.reserve_now(bytes) {
                return Some(reserved);
            }
            let in_time = tokio::time::timeout_at(since + patience, freed).await.is_ok();
            // A limit that moves wakes up, too, and frees nothing. What moves in other shares matters only where they
            // are what is in the way.
            let now = self.full_for(bytes).used();
            if now != used {
                (used, since) = (now, Instant::now());
            } else if !in_time {
                return None;
            }
        }
    }

    /// Reserves `bytes` if they are free. It counts no refusal.
    pub fn reserve_now(self: &Arc<Self>, bytes: usize) -> Option<Reservation> {
        self.take_if(bytes, false).then(|| Reservation { budget: Arc::clone(self), bytes })
    }

    /// [`Budget::reserve_within`] for code that cannot be suspended: the thread waits. Outside of a runtime that has
    /// other threads nothing is waited for.
    pub fn reserve_blocking(self: &Arc<Self>, bytes: usize, patience: Duration) -> Option<Reservation> {
        if let Some(reserved) = self.reserve_now(bytes) {
            return Some(reserved);
        }
        let waits = |runtime: &Handle| !patience.is_zero() && runtime.runtime_flavor() == RuntimeFlavor::MultiThread;
        let Some(runtime) = Handle::try_current().ok().filter(waits) else {
            self.refuse();
            return None;
        };
        tokio::task::block_in_place(|| runtime.block_on(self.reserve_within(bytes, patience)))
    }

    /// Holds the readers back (`true`) or lets them go on.
    pub fn hold_back(&self, hold: bool) {
        self.signals.held_back.store(hold, Ordering::Relaxed);
        if !hold {
            self.signals.freed.notify_waiters();
        }
    }

    /// Waits while the readers are held back. Call it before taking the next unit or chunk.
    pub async fn admitted(&self) {
        loop {
            let freed = self.signals.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if !self.signals.held_back.load(Ordering::Relaxed) {
                return;
            }
            freed.await;
        }
    }
}

/// Bytes that are reserved; given back when dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Reservation {
    /// Takes `bytes` whether they are free or not, as [`Budget::take`] does.
    pub fn of_taken(budget: &Arc<Budget>, bytes: usize) -> Self {
        budget.take(bytes);
        Reservation { budget: Arc::clone(budget), bytes }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Grows by `bytes` if they are free.
    pub fn try_grow(&mut self, bytes: usize) -> bool {
        let grown = self.budget.try_take(bytes);
        if grown {
            self.bytes += bytes;
        }
        grown
    }

    /// Parts with `bytes`, at most what is held: they stay reserved until the part is dropped.
    pub fn split(&mut self, bytes: usize) -> Reservation {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Reservation { budget: Arc::clone(&self.budget), bytes }
    }

    /// Gives `bytes` back, at most what is held.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.budget.give_back(bytes);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_free_again() {
        let budget = Budget::new(100);
        let first = budget.try_reserve("a", 60).expect("60 of 100");
        let refused = budget.try_reserve("b", 60).expect_err("120 of 100");
        assert_eq!(refused.kind(), ErrorKind::Memory);
        drop(first);
        assert_eq!(budget.try_reserve("b", 60).expect("60 of 100").bytes(), 60);
        assert_eq!((budget.peak(), budget.refusals(), budget.used()), (60, 1, 0));
    }

    #[tokio::test]
    async fn shares_are_equal_and_all_of_them_are_within_the_whole() {
        let whole = Budget::new(100);
        let first = whole.share();
        let mut held = first.budget().try_reserve("a", 90).expect("alone it may have everything");
        let second = whole.share();
        assert_eq!((first.budget().limit(), second.budget().limit(), whole.used()), (50, 50, 90));
        assert!(!held.try_grow(1), "more than its half already");
        assert!(second.budget().try_reserve("b", 20).is_err(), "the first still holds it");
        let waiting = tokio::spawn({
            let budget = Arc::clone(second.budget());
            async move { budget.reserve(40).await }
        });
        tokio::task::yield_now().await;
        held.shrink(60);
        let taken = waiting.await.expect("no panic");
        assert_eq!((taken.bytes(), whole.used(), whole.peak()), (40, 70, 90));
        assert!(second.budget().try_reserve("b", 20).is_err(), "60 of 50");
        drop(first);
        assert_eq!(second.budget().limit(), 100);
        assert!(second.budget().try_reserve("b", 40).is_err(), "what a closed share still holds is taken");
        drop(held);
        assert_eq!(second.budget().try_reserve("b", 40).expect("free now").bytes(), 40);
        drop(taken);
        assert_eq!((whole.used(), second.budget().used()), (0, 0));
    }

    #[tokio::test]
    async fn what_other_processes_hold_is_less_for_this_one() {
        let whole = Budget::of_process(200, 160);
        let (first, second) = (whole.share(), whole.share());
        first.budget().set_outside(50);
        assert_eq!((first.budget().limit(), second.budget().limit(), whole.limit()), (30, 80, 110));
        let refused = first.budget().try_reserve("a", 40).expect_err("40 of 30");
        assert!(refused.what().ends_with("0 of 30 are in use; the processes of the run hold 50 B"), "{refused}");
        assert!(!first.budget().is_too_much_outside(50), "a half may be outside, and all of it is that of one run");
        second.budget().set_outside(60);
        assert!(first.budget().is_too_much_outside(51) && !second.budget().is_too_much_outside(50));
        assert_eq!(first.budget().reserve(40).await.bytes(), 40, "alone it may be larger");
        let waiting = tokio::spawn({
            let budget = Arc::clone(first.budget());
            async move { (budget.reserve(50).await.bytes(), budget.reserve(20).await.bytes()) }
        });
        tokio::task::yield_now().await;
        first.budget().set_outside(0);
        assert_eq!(waiting.await.expect("no panic"), (50, 20));
        second.budget().set_outside(1000);
        assert_eq!((second.budget().limit(), whole.limit()), (10, 20), "some of it stays");
        second.budget().set_outside(0);
        assert_eq!((whole.outside(), whole.limit()), (0, 160));
    }

    #[tokio::test]
    async fn waiting_ends_when_memory_is_free() {
        let budget = Budget::new(100);
        let first = budget.reserve(80).await;
        let waiting = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move { budget.reserve(50).await.bytes() }
        });
        tokio::task::yield_now().await;
        // Waking up in vain is no refusal of its own.
        for _ in 0..3 {
            budget.set_limit(100);
            tokio::task::yield_now().await;
        }
        drop(first);
        assert_eq!(waiting.await.expect("no panic"), 50);
        assert_eq!(budget.refusals(), 1);
        assert_eq!(budget.reserve(1000).await.bytes(), 1000, "larger than the limit, alone");
    }

    #[tokio::test]
    async fn patience_ends() {
        let budget = Budget::new(100);
        let mut first = budget.reserve_within(80, Duration::ZERO).await.expect("80 of 100");
        assert!(budget.reserve_within(101, Duration::from_millis(1)).await.is_none(), "more than there is, even alone");
        assert!(budget.reserve_within(50, Duration::from_millis(1)).await.is_none(), "130 of 100");
        let part = first.split(30);
        let waiting = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move { budget.reserve_within(50, Duration::from_secs(60)).await.map(|held| held.bytes()) }
        });
        tokio::task::yield_now().await;
        drop(part);
        assert_eq!(waiting.await.expect("no panic"), Some(50));
        assert_eq!((first.bytes(), budget.used(), budget.refusals()), (50, 50, 3));
    }

    #[tokio::test]
    async fn patience_begins_again_when_memory_moves() {
        let budget = Budget::new(100);
        budget.take(90);
        let moving = std::thread::spawn({
            let budget = Arc::clone(&budget);
            move || {
                let begun = std::time::Instant::now();
                while begun.elapsed() < Duration::from_millis(1_500) {
                    budget.take(1);
                    std::thread::sleep(Duration::from_millis(1));
                }
                budget.give_back(budget.used());
            }
        });
        let patience = Duration::from_secs(1);
        assert!(budget.reserve_within(50, patience).await.is_some(), "something moved all the time");
        moving.join().expect("no panic");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_thread_can_wait() {
        let budget = Budget::new(100);
        let first = budget.reserve(80).await;
        let waiting = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move { budget.reserve_blocking(50, Duration::from_secs(60)).map(|held| held.bytes()) }
        });
        while budget.refusals() == 0 {
            tokio::task::yield_now().await;
        }
        // The only worker's other tasks go on.
        tokio::spawn(async move { drop(first) });
        assert_eq!(waiting.await.expect("no panic"), Some(50));
        assert!(budget.reserve_blocking(101, Duration::ZERO).is_none());
    }
}
