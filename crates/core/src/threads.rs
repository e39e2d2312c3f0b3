//! Which threads work for which run, and how much of the processor they have had.
//!
//! A process may have several runs at once. Each has its threads in a [`ThreadGroup`]; a thread that one of them starts
//! through [`spawn`] joins the group of its parent. The kernel counts for each thread by itself, so what a run has used
//! is the sum over its group, of threads that live and of those that have ended, and over the processes that they have
//! started.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::budget::Budget;
use crate::processes::Processes;

thread_local! {
    static MEMBER: RefCell<Option<Member>> = const { RefCell::new(None) };
}

/// The kernel's number of a thread.
type ThreadId = rustix::thread::Pid;

/// What threads have had of the processor, and what they have not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessorUse {
    /// User and system time.
    pub busy: Duration,
    /// Time ready to run while other threads had the processor.
    pub delayed: Duration,
}

impl ProcessorUse {
    /// Adds `other`.
    pub fn add(&mut self, other: ProcessorUse) {
        self.busy += other.busy;
        self.delayed += other.delayed;
    }
}

/// The threads of one run, and the processes that they start.
#[derive(Debug, Default)]
pub struct ThreadGroup {
    state: Mutex<State>,
    processes: Arc<Processes>,
}

#[derive(Debug, Default)]
struct State {
    live: HashSet<ThreadId>,
    ended: ProcessorUse,
}

/// A thread's membership; it ends with the thread.
#[derive(Debug)]
struct Member {
    group: Arc<ThreadGroup>,
    thread: ThreadId,
}

impl ThreadGroup {
    /// That of a run whose share of the memory is `budget`.
    pub fn within(budget: &Arc<Budget>) -> Self {
        ThreadGroup { processes: Arc::new(Processes::within(budget)), ..ThreadGroup::default() }
    }

    /// The processes that work for the run.
    pub fn processes(&self) -> &Arc<Processes> {
        &self.processes
    }

    /// Makes the calling thread a member until it ends. Call it first thing on a new thread: what the thread has used
    /// before counts too.
    pub fn join(self: &Arc<Self>) {
        let thread = rustix::thread::gettid();
        self.lock().live.insert(thread);
        let member = Member { group: Arc::clone(self), thread };
        // A thread that is ending has lost its variables: the group then counts it until it is gone.
        let _ = MEMBER.try_with(|own| own.replace(Some(member)));
    }

    /// The group of the calling thread.
    pub fn current() -> Option<Arc<ThreadGroup>> {
        let group = |own: &RefCell<Option<Member>>| own.borrow().as_ref().map(|member| Arc::clone(&member.group));
        MEMBER.try_with(group).ok().flatten()
    }

    /// What all members have used so far, and the processes.
    pub fn used(&self) -> ProcessorUse {
        let mut used = self.processes.used();
        let state = self.lock();
        used.add(state.ended);
        state.live.iter().for_each(|thread| used.add(used_by(*thread)));
        used
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let used = used_by(self.thread);
        let mut state = self.group.lock();
        if state.live.remove(&self.thread) {
            state.ended.add(used);
        }
    }
}

/// Starts a thread in the group of the calling thread, if that has one.
///
/// # Errors
/// If the system starts no more threads.
pub fn spawn<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    let group = ThreadGroup::current();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        group.iter().for_each(ThreadGroup::join);
        work()
    })
}

/// What a thread of this process has used: `/proc/self/task/TID/schedstat` has the time on the processor and the run
/// delay, in nanoseconds (Linux, Documentation/scheduler/sched-stats.rst).
fn used_by(thread: ThreadId) -> ProcessorUse {
    let folder = format!("/proc/self/task/{}", thread.as_raw_nonzero());
    let Ok(text) = fs_err::read_to_string(format!("{folder}/schedstat")) else { return used_in_ticks(&folder) };
    let mut numbers = text.split_whitespace().map(|number| Duration::from_nanos(number.parse().unwrap_or(0)));
    ProcessorUse { busy: numbers.next().unwrap_or_default(), delayed: numbers.next().unwrap_or_default() }
}

/// Where the kernel keeps no `schedstat`: user and system time are the 14th and 15th number of `stat`, in ticks of a
/// hundredth of a second (proc_pid_stat(5)). The second, a name in parentheses, may hold anything.
fn used_in_ticks(folder: &str) -> ProcessorUse {
    let text = fs_err::read_to_string(format!("{folder}/stat")).unwrap_or_default();
    let numbers = text.rsplit_once(')').map_or("", |(_, numbers)| numbers).split_whitespace();
    let ticks: u64 = numbers.skip(11).take(2).filter_map(|number| number.parse::<u64>().ok()).sum();
    ProcessorUse { busy: Duration::from_millis(10 * ticks), delayed: Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::*;

    /// Has the processor for so long, however long that takes.
    fn work(time: Duration) {
        let (thread, begun) = (rustix::thread::gettid(), Instant::now());
        let before = used_by(thread).busy;
        while used_by(thread).busy < before + time {
            assert!(begun.elapsed() < Duration::from_secs(60), "the kernel counts what a thread uses");
        }
    }

    #[test]
    fn ticks_tell_nearly_the_same() {
        work(Duration::from_millis(50));
        let thread = rustix::thread::gettid();
        let (fine, ticks) =
            (used_by(thread).busy, used_in_ticks(&format!("/proc/self/task/{}", thread.as_raw_nonzero())));
        assert!(ticks.busy <= fine + Duration::from_millis(40) && ticks.busy > Duration::ZERO, "{fine:?} {ticks:?}");
    }

    #[test]
    fn a_group_counts_its_own_threads_and_those_that_they_start() {
        let (busy, idle) = (Arc::new(ThreadGroup::default()), Arc::new(ThreadGroup::default()));
        let (ended, wait) = channel();
        let (let_go, held) = channel::<()>();
        let group = Arc::clone(&busy);
        let parent = std::thread::spawn(move || {
            group.join();
            let child = spawn("child", || work(Duration::from_millis(60))).expect("a thread");
            child.join().expect("no panic");
            ended.send(()).expect("somebody listens");
            let _ = held.recv();
        });
        let other = Arc::clone(&idle);
        std::thread::spawn(move || other.join()).join().expect("no panic");
        wait.recv().expect("the child has ended");
        assert!(busy.used().busy >= Duration::from_millis(40), "{:?}", busy.used());
        assert!(idle.used().busy < Duration::from_millis(40), "{:?}", idle.used());
        drop(let_go);
        parent.join().expect("no panic");
        assert!(busy.lock().live.is_empty() && ThreadGroup::current().is_none());
    }
}
