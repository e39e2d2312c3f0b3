//! Starts runs, each in a process of its own that outlives the server, and knows what has become of them.
//!
//! ```text
//!  STATE/server/actions/ID/action.json   what was asked for, and by whom
//!  STATE/server/actions/ID/process       the number of its process, in four bytes
//!  STATE/server/actions/ID/log           what it has printed
//!  STATE/server/actions/ID/ended.json    how it has ended
//! ```
//! What a run has come to is in the run history. That of a process which begins no run, such as of a job with mistakes,
//! is only here.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use millstream::history::{Outcome, RunHistory, RunRecord};
use millstream::{Error, Result};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::commands::Program;
use crate::lock::lock;
use crate::private;
use crate::problem::now;

/// So many are kept.
const KEPT: usize = 200;

/// The most that run at once.
const MOST_AT_ONCE: usize = 64;

/// How much of a log is shown at the end of an action, and in one answer.
const TAIL: u64 = 16 << 10;
const PIECE: u64 = 256 << 10;

/// The stack of a thread that waits for a process.
const STACK: usize = 128 * 1024;

/// Runs are looked for among those that begin so long before the action, in milliseconds: clocks are not exact.
const BEFORE: u64 = 2_000;

/// And so long behind it: a run waits for a history that others hold, for what its job requires, for its memory.
const BEHIND: u64 = 10 * 60 * 1_000;

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// A run.
    Start,
    /// The rest of a run.
    Resume,
    /// A run, whatever an earlier one has left.
    Restart,
    /// The rejects of a run.
    Replay,
}

impl What {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            What::Start => "start",
            What::Resume => "resume",
            What::Restart => "restart",
            What::Replay => "replay",
        }
    }
}

/// How far an action is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ActionState {
    /// Its process lives.
    Running,
    /// It has ended well.
    Done,
    /// It has failed.
    Failed,
    /// It has ended while no server saw how.
    Lost,
}

/// What is stored when an action begins.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Stored {
    id: String,
    what: What,
    file: String,
    user: String,
    began: u64,
    /// The run whose rejects are replayed.
    run: Option<String>,
    /// Its process, from its own file; 0 if there never was one.
    #[serde(skip)]
    process: u32,
}

/// What is stored when its process has ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Ended {
    ended: u64,
    exit_code: Option<i32>,
    run: Option<String>,
}

/// An action.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Action {
    /// Its name.
    pub id: String,
    /// What was asked for.
    pub what: What,
    /// The file that runs.
    pub file: String,
    /// The run that it has begun, or whose rejects it replays, once that is known.
    pub run: Option<String>,
    /// Who asked.
    pub user: String,
    /// When, in milliseconds since 1970.
    pub began: u64,
    /// When it ended.
    pub ended: Option<u64>,
    /// How far it is.
    pub state: ActionState,
    /// The exit code of its process.
    pub exit_code: Option<i32>,
    /// The end of what it has printed.
    pub output: String,
}

/// What somebody asks for.
#[derive(Debug, Clone)]
pub struct Asked<'a> {
    /// What.
    pub what: What,
    /// The file, by its name from the folder.
    pub file: &'a str,
    /// Who asks.
    pub user: &'a str,
    /// The run whose rejects are to be replayed.
    pub run: Option<&'a str>,
    /// The arguments of the command.
    pub arguments: Vec<OsString>,
}

/// A part of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Log {
    /// The text.
    pub text: String,
    /// The byte at which the next part begins.
    pub next: u64,
    /// Whether what is before it was left out.
    pub is_cut: bool,
}

/// All actions.
pub struct Actions {
    folder: PathBuf,
    history: Arc<RunHistory>,
    last: AtomicU64,
    /// Those whose processes this server waits for.
    own: Arc<Mutex<BTreeSet<String>>>,
    /// One is started after the other.
    starting: Mutex<()>,
    changed: Arc<dyn Fn(&Action) + Send + Sync>,
}

impl std::fmt::Debug for Actions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Actions").field("folder", &self.folder).finish_non_exhaustive()
    }
}

fn failed(cause: &io::Error) -> Error {
    Error::io("what the server does cannot be noted", cause)
}

impl Actions {
    /// Those in the state folder of `history`. `changed` is called with one that has ended.
    ///
    /// # Errors
    /// If their folder cannot be used.
    pub fn new(history: Arc<RunHistory>, changed: impl Fn(&Action) + Send + Sync + 'static) -> Result<Self> {
        let folder = private::folder(history.folder()).map_err(|cause| failed(&cause))?.join("actions");
        DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(|cause| failed(&cause))?;
        Ok(Actions {
            folder,
            history,
            last: AtomicU64::new(0),
            own: Arc::default(),
            starting: Mutex::new(()),
            changed: Arc::new(changed),
        })
    }

    /// Starts the program as `asked`. Returns as soon as its process lives.
    ///
    /// # Errors
    /// If so many run already, or the process cannot be started.
    pub fn start(&self, program: &Program, asked: Asked<'_>) -> Result<Action> {
        let _starting = lock(&self.starting);
        let running = lock(&self.own).len();
        if running >= MOST_AT_ONCE {
            return Err(Error::transient(format!("{running} runs of this server have not ended"))
                .hint("wait until some have, or cancel them"));
        }
        self.forget_old();
        let now = now();
        let next = |last: u64| now.max(last + 1);
        let last = self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
        let id = format!("{}-{}", next(last.unwrap_or_default()), std::process::id());
        let folder = self.folder.join(&id);
        let mut stored = Stored {
            id: id.clone(),
            what: asked.what,
            file: asked.file.to_owned(),
            user: asked.user.to_owned(),
            began: now,
            run: asked.run.map(str::to_owned),
            process: 0,
        };
        // Noted before there is a process, so that none is there that nobody knows of.
        let note = || private::write(&folder.join("action.json"), json!(stored).to_string().as_bytes());
        let noted = DirBuilder::new().mode(0o700).create(&folder).and_then(|()| note());
        let begun = noted.map_err(|cause| failed(&cause)).and_then(|()| {
            spawn(program, &asked, &folder).map_err(|cause| Error::io("the run cannot be started", &cause))
        });
        let mut child = begun.inspect_err(|_| drop(fs_err::remove_dir_all(&folder)))?;
        stored.process = child.id();
        // The child has noted its number: it stays, whatever happens to the machine.
        let _ = fs_err::File::open(folder.join("process")).and_then(|process| process.sync_data());
        let (path, of_folder, changed) = (folder.join("ended.json"), folder.clone(), Arc::clone(&self.changed));
        let own = Arc::clone(&self.own);
        lock(&own).insert(id.clone());
        let (history, of) = (Arc::clone(&self.history), stored.clone());
        let waits = move || {
            let exit_code = child.wait().ok().and_then(|status| status.code());
            let run = run_of(&history, &of).map(|run| run.run);
            let ended = Ended { ended: crate::problem::now(), exit_code, run };
            let _ = private::write(&path, json!(ended).to_string().as_bytes());
            lock(&own).remove(&of.id);
            changed(&action(&history, false, &of, &of_folder));
        };
        let thread = std::thread::Builder::new().name("action".to_owned()).stack_size(STACK);
        if thread.spawn(waits).is_err() {
            // It runs even so: it is followed like one of an earlier server.
            lock(&self.own).remove(&id);
        }
        Ok(self.as_it_is(&stored, &folder))
    }

    /// The last `most` actions, the last one first.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn all(&self, most: usize) -> Result<Vec<Action>> {
        let names = self.names()?;
        Ok(names.iter().rev().take(most).filter_map(|name| self.find(name)).collect())
    }

    /// The action of this name.
    pub fn find(&self, id: &str) -> Option<Action> {
        // It comes from outside, and names a folder.
        if !id.chars().all(|character| character.is_ascii_digit() || character == '-') {
            return None;
        }
        let folder = self.folder.join(id);
        Some(self.as_it_is(&stored(&folder)?, &folder))
    }

    /// The log of the action that has begun `run`.
    pub fn log_of(&self, run: &RunRecord) -> Option<PathBuf> {
        let names = self.names().ok()?;
        let found = names.iter().rev().find(|name| {
            let folder = self.folder.join(name);
            let Some(stored) = stored(&folder) else { return false };
            match read::<Ended>(&folder.join("ended.json")) {
                _ if stored.what == What::Replay => false,
                // The number of its process may be that of another one by now.
                Some(ended) => ended.run.as_ref() == Some(&run.run),
                None => begins(&stored, run),
            }
        })?;
        Some(self.folder.join(found).join("log"))
    }

    /// The names of all, in their order.
    fn names(&self) -> Result<Vec<String>> {
        let entries = fs_err::read_dir(&self.folder).map_err(|cause| failed(&cause))?;
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        Ok(names)
    }

    fn forget_old(&self) {
        let names = self.names().unwrap_or_default();
        for name in names.iter().take(names.len().saturating_sub(KEPT)) {
            if self.find(name).is_none_or(|action| action.state != ActionState::Running) {
                let _ = fs_err::remove_dir_all(self.folder.join(name));
            }
        }
    }

    fn as_it_is(&self, stored: &Stored, folder: &Path) -> Action {
        // Before it is looked how it has ended, which is written before it is not one of these any more.
        let is_own = lock(&self.own).contains(&stored.id);
        action(&self.history, is_own, stored, folder)
    }
}

/// Starts the program as `asked`. The child notes its number before it becomes the program: whenever the server is
/// killed, a process that runs can be traced back.
fn spawn(program: &Program, asked: &Asked<'_>, folder: &Path) -> io::Result<Child> {
    let log = private::append(&folder.join("log"))?;
    let process = private::append(&folder.join("process"))?;
    let mut command = Command::new(&program.path);
    command.args(["--color", "never"]).args(&program.arguments).args(&asked.arguments);
    command.current_dir(&program.folder).env_remove("MILLSTREAM_METRICS");
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    // SAFETY: these are three system calls: they take no lock, and allocate nothing.
    unsafe {
        command.pre_exec(move || {
            // A session of its own: neither the end of the server nor Ctrl-C in its terminal ends the child.
            rustix::process::setsid()?;
            let number = rustix::process::getpid().as_raw_nonzero().get().to_ne_bytes();
            match rustix::io::write(&process, &number)? {
                count if count == number.len() => Ok(()),
                _ => Err(io::ErrorKind::WriteZero.into()),
            }
        });
    }
    command.spawn()
}

/// What is stored in the folder of an action.
fn stored(folder: &Path) -> Option<Stored> {
    let stored: Stored = read(&folder.join("action.json"))?;
    let number = fs_err::read(folder.join("process")).ok().and_then(|bytes| bytes.try_into().ok());
    Some(Stored { process: number.map_or(0, u32::from_ne_bytes), ..stored })
}

/// An action as it is now. `is_own` is whether this server waits for its process.
fn action(history: &RunHistory, is_own: bool, stored: &Stored, folder: &Path) -> Action {
    let ended: Option<Ended> = read(&folder.join("ended.json"));
    // Of one that has ended, its run is known.
    let begun = if ended.is_none() { run_of(history, stored) } else { None };
    let of_ended = ended.as_ref().and_then(|ended| ended.run.clone());
    let (state, exit_code, ended) = match (&ended, &begun) {
        (Some(Ended { ended, exit_code, .. }), _) => {
            let state = if *exit_code == Some(0) { ActionState::Done } else { ActionState::Failed };
            (state, *exit_code, Some(*ended))
        }
        (None, _) if is_own => (ActionState::Running, None, None),
        // An earlier server has started it: the history knows how it has ended.
        (None, Some(run)) => match run.outcome {
            Outcome::Running => (ActionState::Running, None, None),
            Outcome::Done | Outcome::Skipped => (ActionState::Done, None, run.ended),
            _ => (ActionState::Failed, None, run.ended),
        },
        (None, None) if is_alive(stored.process, folder) => (ActionState::Running, None, None),
        (None, None) => (ActionState::Lost, None, None),
    };
    Action {
        id: stored.id.clone(),
        what: stored.what,
        file: stored.file.clone(),
        run: stored.run.clone().or(begun.map(|run| run.run)).or(of_ended),
        user: stored.user.clone(),
        began: stored.began,
        ended,
        state,
        exit_code,
        output: tail(&folder.join("log")).unwrap_or_default(),
    }
}

/// The run that the process of an action has begun.
fn run_of(history: &RunHistory, stored: &Stored) -> Option<RunRecord> {
    if stored.what == What::Replay {
        return None;
    }
    let runs = history.of_process(stored.process, stored.began.saturating_sub(BEFORE)).ok()?;
    // The first one, of which there is usually no other.
    runs.into_iter().rev().find(|run| begins(stored, run))
}

/// Whether the process of an action has begun `run`: it does so at once, and its number may be that of another process
/// later.
fn begins(stored: &Stored, run: &RunRecord) -> bool {
    let (from, to) = (stored.began.saturating_sub(BEFORE), stored.began.saturating_add(BEHIND));
    run.process == stored.process && (from..to).contains(&run.began)
}

/// A file with JSON, if it is there and whole.
fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs_err::read(path).ok()?).ok()
}

/// Whether the process still has the log of the action open: its number may be that of another one by now.
fn is_alive(process: u32, folder: &Path) -> bool {
    let Ok(log) = fs_err::canonicalize(folder.join("log")) else { return false };
    [1, 2].iter().any(|number| fs_err::read_link(format!("/proc/{process}/fd/{number}")).is_ok_and(|path| path == log))
}

/// The end of a log.
fn tail(path: &Path) -> Option<String> {
    let begin = fs_err::metadata(path).ok()?.len().saturating_sub(TAIL);
    let log = read_log(path, begin).ok()?;
    // A line that is cut says little.
    Some(match begin > 0 {
        true => log.text.split_once('\n').map_or(String::new(), |(_, rest)| rest.to_owned()),
        false => log.text,
    })
}

/// The log at `path` from the byte `from` on; if that is too much for one answer, its last part.
///
/// # Errors
/// If it cannot be read.
pub fn read_log(path: &Path, from: u64) -> Result<Log> {
    let read = || {
        let mut file = fs_err::File::open(path)?;
        let size = file.metadata()?.len();
        let begin = from.min(size).max(size.saturating_sub(PIECE));
        file.seek(SeekFrom::Start(begin))?;
        let mut bytes = Vec::new();
        file.take(PIECE).read_to_end(&mut bytes)?;
        let next = begin + bytes.len() as u64;
        Ok(Log { text: String::from_utf8_lossy(&bytes).into_owned(), next, is_cut: begin > from })
    };
    read().map_err(|cause: io::Error| Error::io("the log cannot be read", &cause))
}
