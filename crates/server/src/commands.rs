//! Asks the program itself about a file: what is wrong with it, how it would run, its first rows. Each question is a
//! process of its own, as on the command line: what it takes of memory is gone with it, and whatever a job does to it,
//! the server lives on.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream::{Error, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tokio::sync::Semaphore;

/// How long a question may take.
const LONGEST: Duration = Duration::from_secs(60);

/// The most bytes of an answer, and of what is said beside it.
const LARGEST: u64 = 16 << 20;
const SAID: u64 = 2_000;

/// How many questions are answered at once; others wait.
const AT_ONCE: usize = 2;

/// The program.
#[derive(Debug)]
pub struct Program {
    /// Its path.
    pub path: PathBuf,
    /// What is said to each command about the machine and the state folder.
    pub arguments: Vec<OsString>,
    /// Its working folder: relative paths in jobs begin there.
    pub folder: PathBuf,
}

/// Questions to the program.
#[derive(Debug)]
pub struct Commands {
    program: Program,
    places: Arc<Semaphore>,
    /// Of questions that are answered by a look at the file: they do not wait for the others.
    soon: Arc<Semaphore>,
}

impl Commands {
    /// Questions to `program`.
    pub fn new(program: Program) -> Self {
        let places = || Arc::new(Semaphore::new(AT_ONCE));
        Commands { program, places: places(), soon: places() }
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The JSON that the program prints with these arguments. One that fails prints its mistakes.
    ///
    /// # Errors
    /// If it prints none, or takes too long.
    pub async fn ask(&self, arguments: &[OsString]) -> Result<Value> {
        self.ask_at(&self.places, arguments).await
    }

    /// The same of a question that is answered at once.
    ///
    /// # Errors
    /// As those of [`Commands::ask`].
    pub async fn ask_soon(&self, arguments: &[OsString]) -> Result<Value> {
        self.ask_at(&self.soon, arguments).await
    }

    async fn ask_at(&self, places: &Arc<Semaphore>, arguments: &[OsString]) -> Result<Value> {
        let question = || arguments.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let failed = |cause: std::io::Error| Error::io(format!("`millstream {}` cannot be run", question()), &cause);
        let closed = |cause| Error::internal("there are no places").cause(cause);
        let place = Arc::clone(places).acquire_owned().await.map_err(closed)?;
        let mut command = Command::new(&self.program.path);
        command.args(["--json", "--quiet"]).args(&self.program.arguments).args(arguments);
        command.current_dir(&self.program.folder).env_remove("MILLSTREAM_METRICS");
        // A group of its own, so that what it has started ends with it.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(failed)?;
        // Dropped with the request: nobody waits for the answer any more.
        let group = Group(Arc::new(Mutex::new(Some(Pid::from_child(&child)))));
        let living = Arc::clone(&group.0);
        // The place is free once the process has ended, and not when the client has gone.
        let waiting = tokio::task::spawn_blocking(move || {
            let output = output(child, &living);
            drop(place);
            output
        });
        let lost = |cause| Error::internal("the process was not waited for").cause(cause);
        let Ok(waited) = tokio::time::timeout(LONGEST, waiting).await else {
            let what = format!("`millstream {}` has not answered within {} s", question(), LONGEST.as_secs());
            return Err(Error::transient(what).hint("give the command in a terminal to see what it waits for"));
        };
        let Output { status, stdout: out, stderr: err } = waited.map_err(lost)?.map_err(failed)?;
        serde_json::from_slice(&out).map_err(|cause| no_answer(&question(), status, &err, &cause))
    }
}

/// The processes of a question, which are killed when this is dropped, unless the first of them has ended.
struct Group(Arc<Mutex<Option<Pid>>>);

impl Drop for Group {
    fn drop(&mut self) {
        end(&self.0);
    }
}

fn end(living: &Mutex<Option<Pid>>) {
    if let Some(group) = living.lock().unwrap_or_else(PoisonError::into_inner).take() {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// What `child` prints, and how it ends. One that prints too much is killed.
fn output(mut child: Child, living: &Mutex<Option<Pid>>) -> io::Result<Output> {
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let errors = std::thread::Builder::new().name("question".to_owned()).spawn(move || read(err, SAID));
    let stdout = read(out, LARGEST);
    if stdout.len() as u64 >= LARGEST {
        end(living);
    }
    let status = child.wait();
    // What it has left behind does not hold its pipes.
    end(living);
    let stderr = errors.ok().and_then(|thread| thread.join().ok()).unwrap_or_default();
    Ok(Output { status: status?, stdout, stderr })
}

/// The first `most` bytes that come.
fn read(from: Option<impl Read>, most: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        // What came before it broke is all there is.
        let _ = from.take(most).read_to_end(&mut bytes);
    }
    bytes
}

fn no_answer(question: &str, status: ExitStatus, said: &[u8], cause: &serde_json::Error) -> Error {
    let error = Error::refused(format!("`millstream {question}` gave no answer: {status}"));
    let said = String::from_utf8_lossy(said);
    match said.trim() {
        "" => error.cause(cause),
        said => error.cause(said),
    }
}
