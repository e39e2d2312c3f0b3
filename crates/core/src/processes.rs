//! The processes that work for a run beside its threads: what they hold in memory, and what they have had of the
//! processor.
//!
//! A process counts with its children, and a page that several of them share counts once. What they hold belongs to the
//! run's memory: it lowers the limit of the run's budget, and memory can be kept for a step before it has started any.
//! While there are some, a thread measures them. If they leave too little for the run itself, that is an error.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::budget::Budget;
use crate::error::{Error, ErrorKind, Result};
use crate::spec::Size;
use crate::threads::ProcessorUse;

/// How often processes are measured.
const MEASURE_EVERY: Duration = Duration::from_millis(200);

/// Measuring takes at most one part in so many of a core: the kernel looks at each page of a process.
const COST: u32 = 20;

/// The processes of one run.
#[derive(Debug, Default)]
pub struct Processes {
    /// The run's share of the memory; without one nothing is limited.
    budget: Option<Arc<Budget>>,
    state: Mutex<State>,
    /// Wakes the thread that measures.
    ended: Condvar,
    /// Why the run cannot go on, once there is too little memory for it.
    too_much: watch::Sender<Option<Error>>,
    /// Whether nothing waits for the processes any more.
    stopped: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    live: Vec<Arc<ProcessUse>>,
    /// What processes have had of the processor that have ended, by step.
    used: BTreeMap<String, ProcessorUse>,
    /// Bytes that are kept for the processes of a step.
    kept: BTreeMap<String, u64>,
    peak: MemoryPeak,
    is_measured: bool,
}

/// The most memory that was held while processes worked for a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryPeak {
    /// Bytes of this process and of those that work for the run, at one time.
    pub total: u64,
    /// Bytes of those that work for the run.
    pub processes: u64,
}

/// A process with its children, as the kernel counts them.
#[derive(Debug)]
struct ProcessUse {
    process: i32,
    step: String,
    memory: AtomicU64,
    processor: Mutex<ProcessorUse>,
}

/// A process is one of a run until this is dropped.
#[derive(Debug)]
pub struct Membership {
    process: Arc<ProcessUse>,
    of: Arc<Processes>,
}

/// Memory is kept for the processes of a step until this is dropped.
#[derive(Debug)]
pub struct Kept {
    step: String,
    of: Arc<Processes>,
}

impl Processes {
    /// Those of a run whose share of the memory is `budget`.
    pub fn within(budget: &Arc<Budget>) -> Self {
        Processes { budget: Some(Arc::clone(budget)), ..Processes::default() }
    }

    /// Adds the process with the number `process`, which works for `step`.
    pub fn add(self: &Arc<Self>, process: i32, step: &str) -> Membership {
        let processor = Mutex::default();
        let process = Arc::new(ProcessUse { process, step: step.to_owned(), memory: AtomicU64::new(0), processor });
        let mut state = self.lock();
        state.live.push(Arc::clone(&process));
        if !state.is_measured {
            let of = Arc::clone(self);
            let thread = std::thread::Builder::new().name("millstream-measure".to_owned());
            // Where the system starts no more threads, the run will soon hear of it from others.
            state.is_measured = thread.spawn(move || of.measure_all()).is_ok();
        }
        Membership { process, of: Arc::clone(self) }
    }

    /// Keeps `bytes` of the run's memory for the processes of `step`, `words` in the user's terms.
    ///
    /// # Errors
    /// If too little would be left for the run itself.
    pub fn keep(self: &Arc<Self>, step: &str, bytes: u64, words: &str) -> Result<Kept> {
        let mut state = self.lock();
        let others = state.kept.values().sum::<u64>();
        if let Some(budget) = self.budget.as_ref().filter(|budget| others + bytes > budget.most_outside()) {
            let before = if others > 0 { format!(", beside {} for other steps", Size(others)) } else { String::new() };
            let what = format!("there is no room for {words}{before}");
            return Err(Error::new(ErrorKind::Memory, what).cause(of_memory(budget)).hint(LESS_MEMORY));
        }
        state.kept.insert(step.to_owned(), bytes);
        self.count(&state);
        drop(state);
        Ok(Kept { step: step.to_owned(), of: Arc::clone(self) })
    }

    /// Bytes that are kept for processes.
    pub fn kept(&self) -> u64 {
        self.lock().kept.values().sum()
    }

    /// What the processes of all steps have had of the processor.
    pub fn used(&self) -> ProcessorUse {
        self.used_for(|_| true)
    }

    /// What the processes of `step` have had of the processor.
    pub fn used_by(&self, step: &str) -> ProcessorUse {
        self.used_for(|of| of == step)
    }

    fn used_for(&self, is_meant: impl Fn(&str) -> bool) -> ProcessorUse {
        let state = self.lock();
        let ended = state.used.iter().filter(|(step, _)| is_meant(step)).map(|(_, used)| *used);
        let live = state.live.iter().filter(|process| is_meant(&process.step)).map(|process| process.used());
        ended.chain(live).fold(ProcessorUse::default(), |mut sum, used| {
            sum.add(used);
            sum
        })
    }

    /// The most memory that was held while there were processes.
    pub fn peak(&self) -> MemoryPeak {
        self.lock().peak
    }

    /// The run ends early: whatever blocks a thread until a process has answered is to give up.
    pub fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// Waits until the run ends early.
    pub async fn stopped(&self) {
        // The sender lives as long as `self`.
        let _ = self.stopped.subscribe().wait_for(|stopped| *stopped).await;
    }

    /// Waits until the processes leave too little memory for the run, and says what took what.
    pub async fn too_much(&self) -> Error {
        let mut told = self.too_much.subscribe();
        let error = told.wait_for(Option::is_some).await.ok().and_then(|error| error.clone());
        match error {
            Some(error) => error,
            // The sender lives as long as `self`.
            None => std::future::pending().await,
        }
    }

    /// Measures until there is no process.
    fn measure_all(&self) {
        loop {
            let begun = Instant::now();
            let live = self.lock().live.clone();
            live.iter().for_each(|process| process.measure());
            self.take_over();
            let pause = MEASURE_EVERY.max(begun.elapsed() * COST);
            let waited = self.ended.wait_timeout_while(self.lock(), pause, |state| !state.live.is_empty());
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.live.is_empty() {
                state.is_measured = false;
                return;
            }
        }
    }

    /// Takes over what was measured.
    fn take_over(&self) {
        let own = resident();
        let mut state = self.lock();
        let processes = state.live.iter().map(|process| process.memory()).sum();
        let MemoryPeak { total, processes: most } = state.peak;
        state.peak = MemoryPeak { total: total.max(own + processes), processes: most.max(processes) };
        let counted = self.count(&state);
        self.judge(&state, counted, own);
    }

    /// Has the budget count what the processes hold, and what is kept for them; gives these bytes.
    fn count(&self, state: &State) -> u64 {
        let mut of_steps = state.kept.clone();
        state.memory_by_step().into_iter().for_each(|(step, (_, bytes))| {
            let counted = of_steps.entry(step.to_owned()).or_default();
            *counted = bytes.max(*counted);
        });
        let bytes = of_steps.values().sum();
        self.budget.iter().for_each(|budget| budget.set_outside(bytes as usize));
        bytes
    }

    /// Ends the work of a run whose processes hold so much that too little is left for itself.
    fn judge(&self, state: &State, counted: u64, own: u64) {
        let Some(budget) = self.budget.as_ref().filter(|budget| budget.is_too_much_outside(counted)) else { return };
        self.too_much.send_if_modified(|told| {
            if told.is_some() {
                return false;
            }
            let steps = state.memory_by_step();
            let of_step = |(step, (count, bytes)): (&&str, &(usize, u64))| {
                let processes = if *count == 1 { "process" } else { "processes" };
                format!("step {step}: {} in {count} {processes}", Size(*bytes))
            };
            let mut held: Vec<String> = steps.iter().map(of_step).collect();
            held.push(format!("Millstream itself: {}", Size(own)));
            held.push(of_memory(budget));
            let error = Error::new(ErrorKind::Memory, "the processes of the run hold more memory than it has for them");
            let error = error.cause(held.join("\n")).hint(LESS_MEMORY);
            let largest = steps.iter().max_by_key(|(_, (_, bytes))| *bytes);
            *told = Some(largest.into_iter().fold(error, |error, (step, _)| error.in_step(step)));
            true
        });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const LESS_MEMORY: &str = "raise `--memory`, or have the step take less: fewer `workers`, a lower `memory`";

/// How much of the memory processes may hold.
fn of_memory(budget: &Budget) -> String {
    let (most, all) = (Size(budget.most_outside()), Size(budget.process()));
    format!("the memory budget is {all}, of which processes can have {most}")
}

impl State {
    /// How many processes each step has, and what they hold.
    fn memory_by_step(&self) -> BTreeMap<&str, (usize, u64)> {
        let mut steps = BTreeMap::<&str, (usize, u64)>::new();
        for process in &self.live {
            let (count, bytes) = steps.entry(&process.step).or_default();
            *count += 1;
            *bytes += process.memory();
        }
        steps
    }
}

impl ProcessUse {
    /// Bytes that it held when it was last measured.
    fn memory(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    /// What it has had of the processor. Of children that it has not waited for, what was last measured.
    fn used(&self) -> ProcessorUse {
        self.had(tree(self.process).into_iter())
    }

    fn measure(&self) {
        let tree = tree(self.process);
        self.memory.store(tree.iter().map(|process| memory_of(*process)).sum(), Ordering::Relaxed);
        self.had(tree.into_iter());
    }

    fn had(&self, tree: impl Iterator<Item = i32>) -> ProcessorUse {
        let mut now = ProcessorUse::default();
        tree.for_each(|process| now.add(used_by(process)));
        let mut known = self.processor.lock().unwrap_or_else(PoisonError::into_inner);
        // One that has ended has told everything before.
        *known = ProcessorUse { busy: known.busy.max(now.busy), delayed: known.delayed.max(now.delayed) };
        *known
    }
}

impl Membership {
    /// What measures its memory, in bytes, beside the times at which all are measured.
    pub fn measure(&self) -> impl Fn() -> u64 + Send + Sync + use<> {
        let (process, of) = (Arc::clone(&self.process), Arc::clone(&self.of));
        move || {
            process.measure();
            of.take_over();
            process.memory()
        }
    }
}

/// It may have ended, but must not have been waited for: the kernel still knows then what it has had.
impl Drop for Membership {
    fn drop(&mut self) {
        let used = self.process.used();
        let mut state = self.of.lock();
        state.live.retain(|live| !Arc::ptr_eq(live, &self.process));
        state.used.entry(self.process.step.clone()).or_default().add(used);
        self.of.count(&state);
        self.of.ended.notify_all();
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut state = self.of.lock();
        state.kept.remove(&self.step);
        self.of.count(&state);
    }
}

/// The memory of the process `process` and its children in bytes.
pub fn memory_of_tree(process: i32) -> u64 {
    tree(process).into_iter().map(memory_of).sum()
}

/// What a process and its children have had of the processor so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeUse {
    /// Their numbers.
    pub processes: Vec<i32>,
    /// What those that live have had, with what they have waited for.
    pub processor: ProcessorUse,
}

/// What the process `process` and its children have had of the processor so far.
pub fn use_of_tree(process: i32) -> TreeUse {
    let (processes, mut processor) = (tree(process), ProcessorUse::default());
    processes.iter().for_each(|process| processor.add(used_by(*process)));
    TreeUse { processes, processor }
}

/// The process `process` and its children.
fn tree(process: i32) -> Vec<i32> {
    let (mut all, mut next) = (vec![process], 0);
    while let Some(process) = all.get(next).copied() {
        next += 1;
        // Each thread has the children that it has started.
        for thread in fs_err::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
            let children = fs_err::read_to_string(thread.path().join("children")).unwrap_or_default();
            all.extend(children.split_ascii_whitespace().filter_map(|child| child.parse::<i32>().ok()));
        }
    }
    all
}

/// What a process holds, in bytes. A page that several share counts in each with its part (the kernel's proportional
/// set size). Where only another user may know that, the resident size.
fn memory_of(process: i32) -> u64 {
    let kilobytes = |text: &str| text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok();
    let rollup = fs_err::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap_or_default();
    let own = rollup.lines().find_map(|line| kilobytes(line.strip_prefix("Pss:")?));
    own.map_or_else(|| resident_of(&process.to_string()), |kilobytes| kilobytes << 10)
}

/// The resident size of this process in bytes; 0 where it cannot be told.
pub fn resident() -> u64 {
    resident_of("self")
}

fn resident_of(process: &str) -> u64 {
    let text = fs_err::read_to_string(format!("/proc/{process}/statm")).unwrap_or_default();
    let pages = text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

/// What a process has had of the processor, with the children that it has waited for: these are the 14th to 17th number
/// of `stat`, in ticks of a hundredth of a second (proc_pid_stat(5)). The second, a name in parentheses, may hold
/// anything. How long its threads were ready to run is in their `schedstat`.
fn used_by(process: i32) -> ProcessorUse {
    let text = fs_err::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let numbers = text.rsplit_once(')').map_or("", |(_, numbers)| numbers).split_whitespace();
    let ticks: u64 = numbers.skip(11).take(4).filter_map(|number| number.parse::<u64>().ok()).sum();
    let threads = fs_err::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let delays = threads.filter_map(|thread| {
        let text = fs_err::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    ProcessorUse { busy: Duration::from_millis(10 * ticks), delayed: Duration::from_nanos(delays.sum()) }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A shell that runs `code`. If it reads a line it waits until it is killed.
    fn shell(code: &str) -> (Child, i32) {
        let child = Command::new("sh").args(["-c", code]).stdin(Stdio::piped()).spawn().expect("started");
        let id = child.id() as i32;
        (child, id)
    }

    fn end(mut child: Child) {
        child.kill().expect("killed");
        child.wait().expect("ended");
    }

    fn within(patience: Duration, is_so: impl Fn() -> bool) -> bool {
        let begun = Instant::now();
        while !is_so() {
            if begun.elapsed() > patience {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    #[test]
    fn this_process_has_memory_and_one_that_has_ended_has_none() {
        let bytes = memory_of_tree(std::process::id() as i32);
        assert!((500_000..10_000_000_000).contains(&bytes), "{bytes}");
        assert_eq!(memory_of_tree(i32::MAX), 0);
    }

    #[test]
    fn what_processes_have_had_of_the_processor_stays_when_they_have_ended() {
        let processes = Arc::new(Processes::default());
        let (child, id) = shell("while :; do :; done");
        let member = processes.add(id, "a");
        assert!(within(Duration::from_secs(60), || processes.used_by("a").busy > Duration::from_millis(50)));
        drop(member);
        end(child);
        assert!(processes.used_by("a").busy > Duration::from_millis(50));
        assert_eq!(processes.used(), processes.used_by("a"));
        assert_eq!(processes.used_by("b"), ProcessorUse::default());
    }

    #[test]
    fn what_they_hold_is_taken_from_the_budget_until_they_have_ended() {
        let budget = Budget::of_process(1 << 30, 1 << 29);
        let processes = Arc::new(Processes::within(&budget));
        let (child, id) = shell("read line");
        let member = processes.add(id, "a");
        assert!(within(Duration::from_secs(60), || budget.limit() < 1 << 29), "what it holds");
        let kept = processes.keep("a", 1 << 28, "a").expect("a quarter of the memory");
        assert_eq!(budget.limit(), 1 << 28, "it holds less than is kept for it");
        drop(member);
        end(child);
        assert_eq!((budget.limit(), processes.kept()), (1 << 28, 1 << 28));
        let peak = processes.peak();
        assert!(peak.processes > 0 && peak.total > peak.processes, "{peak:?}");
        let refused = processes.keep("b", 1 << 30, "1.07 GB of step b").expect_err("all of it");
        assert_eq!(refused.kind(), ErrorKind::Memory);
        let told = refused.what();
        assert_eq!(told, "there is no room for 1.07 GB of step b, beside 268 MB for other steps");
        drop(kept);
        assert_eq!(budget.limit(), 1 << 29);
    }

    #[tokio::test]
    async fn too_much_is_said_with_all_figures() {
        let budget = Budget::of_process(1 << 20, 1 << 20);
        let processes = Arc::new(Processes::within(&budget));
        let (child, id) = shell("x=$(head -c 3000000 /dev/zero | tr '\\0' x); read line");
        let member = processes.add(id, "a");
        let error = tokio::time::timeout(Duration::from_secs(60), processes.too_much()).await.expect("told");
        let cause = error.cause_text().expect("figures");
        assert!(cause.contains("step a: ") && cause.contains("Millstream itself: "), "{cause}");
        assert_eq!(error.step_name(), Some("a"));
        drop(member);
        end(child);
    }
}
