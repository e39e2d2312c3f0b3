//! Programs that are started, awaited and ended.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use millstream_core::processes::{Membership, memory_of_tree};
use millstream_core::program::Lines;
use millstream_core::{Error, PerProcess, Result, ThreadGroup};
use rustix::io::ioctl_fionread;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use crate::guard::Guard;
use crate::only_here::{self, OnlyHere};
use crate::program::Program;
use crate::stderr::{self, LastLines};

/// What a pipe to or from a program holds, in bytes: as much as an ordinary user may have. Fewer changes between the
/// two processes are needed that way.
const PIPE_BYTES: usize = 1 << 20;

/// The programs of a process. Those that are left when the last clone is dropped are killed.
#[derive(Clone)]
pub struct Children(Arc<Shared>);

struct Shared {
    starter: mpsc::Sender<Work>,
    guard: Guard,
}

type Work = Box<dyn FnOnce() + Send>;

impl Children {
    /// None yet.
    ///
    /// # Errors
    /// If there can be no further thread or process.
    pub fn new() -> Result<Self> {
        let failed = |cause: std::io::Error| Error::io("programs cannot be started", &cause);
        let (starter, works) = mpsc::channel::<Work>();
        // The kernel ends a program with the thread that has started it, so this one stays as long as the programs.
        let thread = std::thread::Builder::new().name("millstream-start".to_owned());
        let start = move || {
            only_here::starts_programs();
            works.into_iter().for_each(|work| work());
        };
        thread.spawn(start).map_err(failed)?;
        let guard = Guard::start().map_err(failed)?;
        Ok(Children(Arc::new(Shared { starter, guard })))
    }

    /// Those of this process. A copy of the process (by fork) has its own.
    ///
    /// # Errors
    /// As [`Children::new`].
    pub fn of_process() -> Result<Self> {
        static OWN: PerProcess<Children> = PerProcess::new();
        OWN.get_or_make(Children::new)
    }

    /// Starts `program`. What it writes to standard error goes to `lines`, line by line. It counts as one of the run
    /// that the calling thread works for. Needs a tokio runtime that drives files and time.
    ///
    /// # Errors
    /// If it cannot be started: it is not there, is not a program, or there are too many processes.
    pub async fn start(&self, program: &Program, lines: Lines) -> Result<Child> {
        let failed = |cause: &std::io::Error| program.cannot_start(cause);
        let (to, from, errors) = (pipe_pair(), pipe_pair(), pipe_with(PipeFlags::CLOEXEC).map_err(Into::into));
        let ((input, stdin), (stdout, output), (stderr, error)) = match (to, from, errors) {
            (Ok((input, stdin)), Ok((stdout, output)), Ok(errors)) => ((input, stdin), (stdout, output), errors),
            (Err(cause), ..) | (_, Err(cause), _) | (.., Err(cause)) => return Err(failed(&cause)),
        };
        let mut only_here = OnlyHere::default();
        [&input, &stdin, &stdout, &output, &stderr, &error].into_iter().for_each(|file| only_here.add(file));
        let mut command = program.command();
        let unread = input.try_clone().map_err(|cause| failed(&cause))?;
        only_here.add(&unread);
        let output = if program.shows_output { error.try_clone().map_err(|cause| failed(&cause))? } else { output };
        command.stdin(Stdio::from(input)).stdout(Stdio::from(output)).stderr(Stdio::from(error)).process_group(0);
        let (number, mut add_to_guard) = self.0.guard.start_of_group();
        // SAFETY: the closure makes three system calls, which are safe between fork and exec.
        unsafe {
            command.pre_exec(move || {
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                add_to_guard()
            });
        }
        let (answer, answered) = oneshot::channel();
        let (shared, group, step) = (Arc::clone(&self.0), ThreadGroup::current(), program.step.clone());
        let start = move || {
            let started = command.spawn();
            if started.is_err() {
                shared.guard.forget(number);
            }
            let started = started.map(|process| Process::new(process, shared, group.as_deref(), &step));
            // The pipes' other ends are in `command`.
            drop(command);
            // A program whose starting nobody waits for any more is ended by the drop.
            let _ = answer.send(started);
        };
        self.0.starter.send(Box::new(start)).map_err(|_| Error::internal("the thread that starts programs is gone"))?;
        let process = answered.await.map_err(|_| Error::internal("the thread that starts programs has panicked"))?;
        let process = process.map_err(|cause| failed(&cause))?;
        let pipes = || -> std::io::Result<_> {
            let over = pidfd_open(process.id, PidfdFlags::empty())?;
            // SAFETY: the file belongs to the `AsyncFd`, which alone closes it.
            let over = unsafe { AsyncFd::register_with_interest(over, Interest::READABLE) }?;
            let (stdout, stderr) = (pipe::Receiver::from_owned_fd(stdout)?, pipe::Receiver::from_owned_fd(stderr)?);
            Ok((over, pipe::Sender::from_owned_fd(stdin)?, stdout, stderr))
        };
        let (over, stdin, stdout, stderr) = pipes().map_err(|cause| failed(&cause))?;
        let last = stderr::relay(stderr, lines, program.secrets.clone());
        let (stdin, stdout) = (Some(stdin), (!program.shows_output).then_some(stdout));
        Ok(Child { name: program.name(), process, stdin, stdout, unread, over, last, _only_here: only_here })
    }
}

impl fmt::Debug for Children {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Children").finish_non_exhaustive()
    }
}

/// A pipe whose reading end is first.
fn pipe_pair() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    // A user who has many pipes already gets small ones.
    let _ = fcntl_setpipe_size(writer.as_fd(), PIPE_BYTES);
    Ok((reader, writer))
}

/// A started process, the leader of its group.
struct Process {
    id: Pid,
    /// Until it has been waited for.
    process: Option<std::process::Child>,
    /// The same, if it works for a run.
    member: Option<Membership>,
    status: Option<ExitStatus>,
    shared: Arc<Shared>,
}

impl Process {
    fn new(process: std::process::Child, shared: Arc<Shared>, group: Option<&ThreadGroup>, step: &str) -> Self {
        let id = Pid::from_child(&process);
        let member = group.map(|group| group.processes().add(id.as_raw_nonzero().get(), step));
        Process { id, process: Some(process), member, status: None, shared }
    }

    /// Kills what is left of the group. The leader's number stays taken until it has been waited for, so this cannot
    /// hit another group.
    fn kill(&self) {
        if self.process.is_some() {
            let _ = kill_process_group(self.id, Signal::KILL);
            self.shared.guard.remove(self.id.as_raw_nonzero().get());
        }
    }

    /// How it has ended. Kills what is left of the group.
    fn end(&mut self) -> std::io::Result<ExitStatus> {
        self.member = None;
        self.kill();
        if let Some(mut process) = self.process.take() {
            self.status = Some(process.wait()?);
        }
        self.status.ok_or_else(|| std::io::Error::other("another has waited for it"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.member = None;
        self.kill();
        if let Some(mut process) = self.process.take() {
            // A process that hangs in the kernel ends late, and must hold up neither the caller nor the starter.
            let _ = std::thread::Builder::new().name("millstream-reap".to_owned()).spawn(move || process.wait());
        }
    }
}

/// A program that runs. It is killed with its children when this is dropped.
pub struct Child {
    name: String,
    /// Dropped before its pipes: the program must not see the end of its input and take it for the end of the rows.
    process: Process,
    /// What it reads.
    pub stdin: Option<pipe::Sender>,
    /// What it writes, unless that is shown.
    pub stdout: Option<pipe::Receiver>,
    /// The end of its standard input that it reads from: what is left there when it has ended was never read.
    unread: OwnedFd,
    /// Readable when it has ended.
    over: AsyncFd<OwnedFd>,
    last: LastLines,
    _only_here: OnlyHere,
}

impl Child {
    /// The number of its process.
    pub fn id(&self) -> i32 {
        self.process.id.as_raw_nonzero().get()
    }

    /// What measures its memory with that of its children, in bytes.
    pub fn measure(&self) -> Box<dyn Fn() -> u64 + Send + Sync> {
        match &self.process.member {
            Some(member) => Box::new(member.measure()),
            None => {
                let id = self.id();
                Box::new(move || memory_of_tree(id))
            }
        }
    }

    /// Waits until it has ended. Its children may live.
    pub async fn over(&self) {
        if self.process.process.is_some() {
            // Nothing else than the end makes it readable.
            let _ = self.over.readable().await.map(|mut guard| guard.retain_ready());
        }
    }

    /// Whether, when it has ended, all that it has started has ended as well; waits for that, but not for longer than
    /// `patience`.
    pub async fn leaves_nothing(&mut self, patience: Duration) -> bool {
        const PAUSE: Duration = Duration::from_millis(5);
        let begun = Instant::now();
        while has_others(self.process.id) {
            if begun.elapsed() >= patience {
                return false;
            }
            tokio::time::sleep(PAUSE).await;
        }
        true
    }

    /// How many bytes of its standard input it has not read.
    pub fn unread(&self) -> u64 {
        ioctl_fionread(&self.unread).unwrap_or(0)
    }

    /// Sees that its input does not end with this process before it is killed, until [`Child::end_input`].
    pub fn hold_input(&self) {
        if let Some(stdin) = &self.stdin {
            self.process.shared.guard.hold(self.id(), stdin.as_fd());
        }
    }

    /// Ends its input.
    pub fn end_input(&mut self) {
        self.stdin = None;
        self.process.shared.guard.release(self.id());
    }

    /// Ends it with its children.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Asks it to end, with SIGTERM; what it has started is left to it.
    pub fn ask_to_end(&self) {
        if self.process.process.is_some() {
            let _ = kill_process(self.process.id, Signal::TERM);
        }
    }

    /// Why it has ended, in words: how, and the last lines of its standard error. Waits until it has.
    pub async fn last_words(&mut self) -> String {
        match self.wait().await {
            Ok(ending) => std::iter::once(ending.to_string()).chain(self.last_lines()).collect::<Vec<_>>().join("\n"),
            Err(unknown) => unknown.what().to_owned(),
        }
    }

    /// Waits until it has ended, then ends the children that it has left behind, and reads the rest of its standard
    /// error.
    ///
    /// # Errors
    /// If another has waited for the process.
    pub async fn wait(&mut self) -> Result<Ending> {
        let failed = |cause: std::io::Error| Error::io(format!("the end of `{}` is not known", self.name), &cause);
        self.over().await;
        let status = self.process.end().map_err(failed)?;
        self.last.complete().await;
        Ok(Ending(status))
    }

    /// The last lines of its standard error, the oldest first.
    pub fn last_lines(&self) -> Vec<String> {
        self.last.lines()
    }
}

/// Waits for what a program may take at most: ends after `timeout`, and never without one.
pub async fn after(timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => tokio::time::sleep(timeout).await,
        None => std::future::pending().await,
    }
}

/// Whether there are processes in the group of `leader` beside that.
fn has_others(leader: Pid) -> bool {
    let leader = leader.as_raw_nonzero().get();
    let Ok(processes) = fs_err::read_dir("/proc") else { return false };
    let ids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    ids.filter(|id| *id != leader).any(|id| {
        let Ok(text) = fs_err::read_to_string(format!("/proc/{id}/stat")) else { return false };
        // Behind the name, which may have blanks: the state, the parent, the group.
        let mut fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
        let (state, group) = (fields.next(), fields.nth(1));
        state != Some("Z") && group.and_then(|group| group.parse().ok()) == Some(leader)
    })
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Child").field("name", &self.name).field("id", &self.id()).finish_non_exhaustive()
    }
}

/// How a program has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending(ExitStatus);

impl Ending {
    /// The status with which it has ended; `None` if a signal has ended it.
    pub fn code(self) -> Option<i32> {
        self.0.code()
    }

    /// Whether it has ended by itself, with status 0.
    pub fn is_success(self) -> bool {
        self.0.success()
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.code(), self.0.signal()) {
            (Some(code), _) => write!(f, "it ended with status {code}"),
            (None, Some(libc::SIGKILL)) => f.write_str("it was killed (signal 9)"),
            (None, Some(libc::SIGSEGV)) => f.write_str("it crashed (signal 11, segmentation fault)"),
            (None, Some(signal)) => write!(f, "it was ended by signal {signal}"),
            (None, None) => f.write_str("it ended"),
        }
    }
}
