//! The one memory budget: DataFusion's pool on top of it, and the governor that holds the process to it.
//!
//! The budget means the resident size of the process, if the engine has the process to itself, and what the processes
//! hold that work for its runs. A pool knows only what is declared to it, so it is given (budget − what the process
//! holds before the run − slack), and a governor compares the resident size with the budget all the time: where the
//! process holds more than it declared, the pool shrinks and the readers are held back.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use millstream_core::Budget;
use millstream_core::spec::Size;
use millstream_core::{buffers, direct};

/// The least memory that a run is given, in bytes.
pub const LEAST_MEMORY: u64 = 64 << 20;

/// Left free for what nobody declares: batches in flight, decoder windows, buffers that are kept, the allocator's own.
const SLACK: f64 = 0.20;
/// The share of the pool that consumers which can spill may hold together. The rest is for those that cannot, such as
/// the merge behind a sort, which comes when the sorts have taken all they can get.
const SPILLABLE: f64 = 0.75;
/// The pool is never made smaller than this share of its first size: below it operators that could spill fail, since
/// even a merge of two runs does not fit. To hold the readers back is what is left then.
const LEAST_POOL: f64 = 0.5;
/// How often the resident size is looked at.
const INTERVAL: Duration = Duration::from_millis(20);
/// The longest time that readers are held back at a stretch: what holds the memory may be waiting for them.
const LONGEST_HOLD: Duration = Duration::from_millis(500);

/// DataFusion's memory pool over the budget. Consumers that can spill share what the others leave, in equal parts, so
/// that the first to come does not starve the rest (the policy of DataFusion's `FairSpillPool`, over a limit that
/// moves).
#[derive(Debug)]
pub struct BudgetPool {
    budget: Arc<Budget>,
    spilling: AtomicUsize,
    spillable_bytes: AtomicUsize,
}

impl BudgetPool {
    /// A pool that takes from `budget`.
    pub fn new(budget: Arc<Budget>) -> Self {
        BudgetPool { budget, spilling: AtomicUsize::new(0), spillable_bytes: AtomicUsize::new(0) }
    }

    /// The most that one consumer that can spill may hold now.
    fn fair_share(&self) -> usize {
        let unspillable = self.budget.used().saturating_sub(self.spillable_bytes.load(Ordering::Relaxed));
        let limit = self.budget.limit();
        let available = limit.saturating_sub(unspillable).min((limit as f64 * SPILLABLE) as usize);
        available / self.spilling.load(Ordering::Relaxed).max(1)
    }

    fn refused(&self, reservation: &MemoryReservation, additional: usize) -> DataFusionError {
        let full = self.budget.full_for(additional);
        DataFusionError::ResourcesExhausted(format!(
            "{} holds {} and needs {} more; all steps together hold {} of {}{}",
            holder(reservation.consumer().name()),
            Size(reservation.size() as u64),
            Size(additional as u64),
            Size(full.used() as u64),
            Size(full.limit() as u64),
            full.beside(),
        ))
    }
}

/// What holds memory, in the words of SQL rather than the names of DataFusion's streams: `HashJoinInput[0]`.
fn holder(name: &str) -> &str {
    const HOLDERS: &[(&str, &str)] = &[
        ("Join", "a join"),
        ("SMJ", "a join"),
        ("Aggregate", "an aggregation"),
        ("Sort", "a sort"),
        ("TopK", "a sort"),
        ("Recursive", "a recursive query"),
        ("Window", "a window function"),
    ];
    let known = HOLDERS.iter().find(|(part, _)| name.contains(part));
    known.map_or_else(|| name.split('[').next().unwrap_or(name), |(_, words)| words)
}

impl fmt::Display for BudgetPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "budget({} of {} bytes)", self.budget.used(), self.budget.limit())
    }
}

impl MemoryPool for BudgetPool {
    fn name(&self) -> &str {
        "budget"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        if consumer.can_spill() {
            self.spilling.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        if consumer.can_spill() {
            self.spilling.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.budget.take(additional);
        if reservation.consumer().can_spill() {
            self.spillable_bytes.fetch_add(additional, Ordering::Relaxed);
        }
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.budget.give_back(shrink);
        if reservation.consumer().can_spill() {
            self.spillable_bytes.fetch_sub(shrink, Ordering::Relaxed);
        }
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> DataFusionResult<()> {
        // Some operators report their size although it has not changed.
        if additional == 0 {
            return Ok(());
        }
        let can_spill = reservation.consumer().can_spill();
        if can_spill && reservation.size() + additional > self.fair_share() {
            self.budget.refuse();
            return Err(self.refused(reservation, additional));
        }
        if !self.budget.try_take(additional) {
            return Err(self.refused(reservation, additional));
        }
        if can_spill {
            self.spillable_bytes.fetch_add(additional, Ordering::Relaxed);
        }
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.budget.used()
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.budget.limit())
    }
}

/// Each pool of buffers may keep this part of what the budget has above the least one. There are half a dozen pools,
/// and a small budget has nothing to keep.
const KEPT: u64 = 16;
/// The same of a budget in a process that has other things to do, all of which is for data: the program and what it
/// needs to run are not counted. With 128 MB a few texts of whole files are kept, without which most of each is a
/// page fault.
const KEPT_OF_GUEST: u64 = 8;
/// The pages of the program are given back where they are more than this part of the budget,
const CODE_SHARE: u64 = 10;
/// and not again until this has passed.
const CODE_INTERVAL: Duration = Duration::from_millis(200);

/// The budget of a process that may hold `memory` bytes, given what it holds already.
pub fn of_process(memory: u64) -> Arc<Budget> {
    keep_buffers(memory.saturating_sub(LEAST_MEMORY) / KEPT);
    Budget::of_process(memory, pool_size(memory))
}

/// The budget of an engine that may hold `memory` bytes in a process that has other things to do.
pub fn of_guest(memory: u64) -> Arc<Budget> {
    keep_buffers(memory / KEPT_OF_GUEST);
    Budget::of_process(memory, (memory as f64 * (1.0 - SLACK)) as usize)
}

fn keep_buffers(bytes: u64) {
    buffers::keep_at_most(bytes as usize);
    direct::keep_at_most(bytes as usize);
}

/// What the pool may hold of a budget of `memory` bytes, given what the process holds already.
fn pool_size(memory: u64) -> usize {
    let free = memory.saturating_sub(Resident::now().counted(memory));
    let pool = (free as f64 * (1.0 - SLACK)) as u64;
    pool.max(memory / 8) as usize
}

/// Holds the process to its budget while it lives.
#[derive(Debug)]
pub struct Governor {
    stop: Arc<AtomicBool>,
    held_nanoseconds: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Governor {
    /// Watches the process against `memory` bytes and moves `budget`, whose limit is `full` before and after.
    pub fn start(memory: u64, budget: Arc<Budget>, full: usize) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let held = Arc::new(AtomicU64::new(0));
        let (stopped, held_by_thread) = (Arc::clone(&stop), Arc::clone(&held));
        let thread = std::thread::Builder::new().name("millstream-governor".into()).spawn(move || {
            govern(memory, &budget, full, &stopped, &held_by_thread);
            budget.set_limit(full);
            budget.hold_back(false);
        })?;
        Ok(Governor { stop, held_nanoseconds: held, thread: Some(thread) })
    }

    /// How long the readers were held back in all.
    pub fn held(&self) -> Duration {
        Duration::from_nanos(self.held_nanoseconds.load(Ordering::Relaxed))
    }
}

impl Drop for Governor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn govern(memory: u64, budget: &Budget, full: usize, stop: &AtomicBool, held: &AtomicU64) {
    let least = (full as f64 * LEAST_POOL) as usize;
    let mut hold_since: Option<Instant> = None;
    let mut code_given_back: Option<Instant> = None;
    while !stop.load(Ordering::Relaxed) {
        let own = memory.saturating_sub(budget.outside() as u64);
        let mut now = Resident::now();
        let is_due = code_given_back.is_none_or(|last| last.elapsed() > CODE_INTERVAL);
        if is_due && now.shared > own / CODE_SHARE && now.private + now.shared > own / 10 * 9 {
            give_back_code();
            code_given_back = Some(Instant::now());
            now = Resident::now();
        }
        let resident = now.counted(memory);
        let declared = budget.used() as u64;
        let undeclared = resident.saturating_sub(declared);
        // What other processes hold counts to the limit.
        let room = memory.saturating_sub(undeclared) as usize;
        budget.set_limit(room.clamp(least, full));
        let short = resident > own / 100 * 95;
        hold_since = match hold_since {
            None if short => {
                budget.hold_back(true);
                Some(Instant::now())
            }
            Some(since) if !short || since.elapsed() > LONGEST_HOLD => {
                budget.hold_back(false);
                held.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
                None
            }
            unchanged => unchanged,
        };
        std::thread::park_timeout(INTERVAL);
    }
}

/// Gives back the pages of the program's code. Many of them were needed only to plan the job. What is still needed is
/// mapped again from the page cache when it runs, some pages at a time.
fn give_back_code() {
    let (Ok(maps), Ok(program)) = (fs_err::read_to_string("/proc/self/maps"), std::env::current_exe()) else { return };
    for line in maps.lines() {
        let Some((addresses, rest)) = line.split_once(' ') else { continue };
        let file = rest.find('/').map_or("", |path| &rest[path..]);
        if !rest.starts_with("r-x") || Path::new(file) != program {
            continue;
        }
        let number = |text: &str| usize::from_str_radix(text, 16).ok();
        let Some((Some(start), Some(end))) = addresses.split_once('-').map(|(start, end)| (number(start), number(end)))
        else {
            continue;
        };
        // SAFETY: the pages are those of the file, since code is not written to (but by a debugger, which would lose
        // its breakpoints). A thread that runs in one of them waits until it is mapped again.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) };
    }
}

/// What this process holds in memory.
#[derive(Debug, Clone, Copy, Default)]
struct Resident {
    /// Bytes of its own: only it can give them back.
    private: u64,
    /// Bytes of files, nearly all of them the program itself: the kernel drops and reads them again as it likes.
    shared: u64,
}

impl Resident {
    /// From `/proc/self/statm`; zero where it cannot be told.
    fn now() -> Self {
        let text = fs_err::read_to_string("/proc/self/statm").unwrap_or_default();
        let mut pages = text.split_whitespace().skip(1).map(|pages| pages.parse::<u64>().unwrap_or(0));
        let page = rustix::param::page_size() as u64;
        let resident = pages.next().unwrap_or(0) * page;
        let shared = pages.next().unwrap_or(0) * page;
        Resident { private: resident.saturating_sub(shared), shared }
    }

    /// What counts against a budget of `memory` bytes: the process's own bytes and those of the program, of which a
    /// quarter of the budget must do (a build for debugging has more than a small budget in all).
    fn counted(self, memory: u64) -> u64 {
        self.private + self.shared.min(memory / 4)
    }
}

/// The largest resident size that this process ever had, in bytes; 0 where it cannot be told.
pub fn peak_resident() -> u64 {
    let text = fs_err::read_to_string("/proc/self/status").unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(limit: usize) -> (Arc<Budget>, Arc<dyn MemoryPool>) {
        let budget = Budget::new(limit);
        (Arc::clone(&budget), Arc::new(BudgetPool::new(budget)))
    }

    #[test]
    fn those_who_can_spill_share_what_the_others_leave() {
        let (budget, pool) = pool(100);
        let fixed = MemoryConsumer::new("fixed").register(&pool);
        let first = MemoryConsumer::new("first").with_can_spill(true).register(&pool);
        first.try_grow(75).expect("three quarters of 100");
        assert!(first.try_grow(1).is_err(), "the last quarter is for those that cannot spill");
        first.shrink(75);
        fixed.try_grow(40).expect("40 of 100");
        let second = MemoryConsumer::new("second").with_can_spill(true).register(&pool);
        first.try_grow(30).expect("half of 60");
        let refused = first.try_grow(1).expect_err("more than half of 60").to_string();
        assert!(
            refused.contains("first holds 30 B and needs 1 B more; all steps together hold 70 B of 100 B"),
            "{refused}"
        );
        second.try_grow(30).expect("the other half");
        assert!(fixed.try_grow(1).is_err());
        drop((first, second, fixed));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn holders_are_named_in_the_words_of_sql() {
        let names = ["HashJoinInput[0]", "FinalHashAggregateStream[1]", "ExternalSorterMerge[0]", "Other[3]"];
        assert_eq!(names.map(holder), ["a join", "an aggregation", "a sort", "Other"]);
    }

    /// Waits for what the thread of a governor does.
    fn until(what: &str, holds: impl Fn() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < Duration::from_secs(60), "waited in vain until {what}");
            std::thread::sleep(INTERVAL);
        }
    }

    #[test]
    fn the_governor_leaves_other_processes_what_they_hold() {
        let (memory, full) = (64 << 30, 32 << 30);
        let budget = Budget::of_process(memory, full);
        let governor = Governor::start(memory, Arc::clone(&budget), full).expect("a thread");
        budget.set_outside(24 << 30);
        until("the limit is that", || budget.limit() == 8 << 30);
        std::thread::sleep(INTERVAL * 5);
        assert_eq!((budget.limit(), governor.held()), (8 << 30, Duration::ZERO));
        budget.set_outside(64 << 30);
        until("nothing is left for the process", || governor.held() >= LONGEST_HOLD);
        assert_eq!(budget.limit(), full / 8);
    }

    #[test]
    fn the_governor_shrinks_the_pool_of_a_process_that_holds_more_than_it_declared() {
        let budget = Budget::new(1 << 20);
        let governor = Governor::start(1, Arc::clone(&budget), 1 << 20).expect("a thread");
        until("it has half of it", || budget.limit() == (1 << 20) / 2);
        until("readers are held back, and let go", || governor.held() >= LONGEST_HOLD);
        assert_eq!(budget.limit(), (1 << 20) / 2);
        drop(governor);
        assert_eq!(budget.limit(), 1 << 20, "the next run begins with all of it");
    }
}
