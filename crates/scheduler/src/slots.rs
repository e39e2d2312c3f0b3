//! Starts processes, so many at a time.
//!
//! Each slot is a thread that starts a process, waits for its end, and starts the next one at once: between two starts
//! there is no database, no clock and no other thread. Threads come with the first starts that need them.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::logs;
use crate::scheduler::Event;

/// The stack of a slot's thread, which does little.
const STACK: usize = 128 * 1024;

/// What is to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Start {
    /// The sequence.
    pub sequence: Arc<str>,
    /// The planned time.
    pub planned: i64,
    /// Whether it resumes a run.
    pub resumes: bool,
}

/// A start that waits for a slot, since then.
type Waiting = (Start, Instant);

/// What has become of a start.
#[derive(Debug)]
pub(crate) struct Exited {
    /// What was started.
    pub start: Start,
    /// How the process ended, or why there was none.
    pub how: io::Result<ExitStatus>,
}

/// The program that is started, and what is the same for all starts.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    /// The program.
    pub path: PathBuf,
    /// Its arguments behind those of the start.
    pub arguments: Vec<OsString>,
    /// The state folder, which has the logs.
    pub state: PathBuf,
}

/// Slots for processes.
#[derive(Debug)]
pub(crate) struct Slots {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    most: usize,
    program: Program,
    events: Sender<Event>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Waiting>,
    /// Processes of the slots that live.
    own: usize,
    /// Processes of earlier schedulers that live: they take slots, too.
    others: usize,
    threads: usize,
    is_over: bool,
}

impl Slots {
    /// `most` of them.
    pub fn new(most: usize, program: Program, events: Sender<Event>) -> Self {
        let state = Mutex::new(State::default());
        Slots { shared: Arc::new(Shared { state, changed: Condvar::new(), most: most.max(1), program, events }) }
    }

    /// Starts it as soon as there is a slot.
    pub fn add(&self, start: Start) {
        let mut state = self.shared.state();
        state.waiting.push_back((start, Instant::now()));
        let idle = state.threads - state.own;
        if state.waiting.len() > idle && state.threads < self.shared.most {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("slot".to_owned()).stack_size(STACK);
            // Without a further thread the start waits for one of the others.
            state.threads += usize::from(thread.spawn(move || shared.serve()).is_ok());
        }
        self.shared.changed.notify_one();
    }

    /// Takes a start back that has no process yet; whether that was so.
    pub fn remove(&self, sequence: &str, planned: i64) -> bool {
        let mut state = self.shared.state();
        let before = state.waiting.len();
        state.waiting.retain(|(start, _)| !(&*start.sequence == sequence && start.planned == planned));
        state.waiting.len() < before
    }

    /// How many processes of earlier schedulers live.
    pub fn set_others(&self, others: usize) {
        let mut state = self.shared.state();
        if state.others != others {
            state.others = others;
            self.shared.changed.notify_all();
        }
    }

    /// Starts nothing any more. What runs goes on.
    pub fn close(&self) {
        self.shared.state().is_over = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a slot does.
    fn serve(&self) {
        let mut free = Instant::now();
        while let Some((start, since)) = self.next() {
            let how = self.start(&start, since.max(free)).and_then(|mut child| child.wait());
            free = Instant::now();
            self.state().own -= 1;
            // Without a scheduler that listens there is nothing to say.
            let _ = self.events.send(Event::Exited(Exited { start, how }));
        }
    }

    /// The next start, when there is one and a slot for it. It counts as living from now on.
    fn next(&self) -> Option<Waiting> {
        let mut state = self.state();
        loop {
            if state.is_over {
                return None;
            }
            if state.own + state.others < self.most
                && let Some(waiting) = state.waiting.pop_front()
            {
                state.own += 1;
                return Some(waiting);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Starts a process for which there was a slot since `since`.
    fn start(&self, start: &Start, since: Instant) -> io::Result<std::process::Child> {
        let Program { path, arguments, state } = &self.program;
        let log = logs::open(&logs::path(state, &start.sequence, start.planned))?;
        let mut command = Command::new(path);
        command.args([Path::new("run"), Path::new(&*start.sequence), Path::new("--occurrence")]);
        command.arg(start.planned.to_string());
        if start.resumes {
            command.arg("--resume");
        }
        // Each of them would serve at the same port.
        command.env_remove("MILLSTREAM_METRICS");
        command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // SAFETY: `setsid` is one system call: it takes no lock, and allocates nothing.
        unsafe {
            // A session of its own: neither the end of the scheduler nor Ctrl-C in its terminal ends the child.
            command.pre_exec(|| rustix::process::setsid().map(drop).map_err(io::Error::from));
        }
        let child = command.spawn()?;
        let _ = self.events.send(Event::Began(start.clone(), since.elapsed()));
        Ok(child)
    }
}
