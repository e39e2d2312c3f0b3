//! Asks the program itself about a file: what is wrong with it, how it would run, its first rows. Each question is a
//! process of its own, as on the command line: what it takes of memory is gone with it, and whatever a job does to it,
//! the server lives on.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use millstream::{Error, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::sync::Semaphore;

/// How long a question may take.
const LONGEST: Duration = Duration::from_secs(60);

/// The most of what it says beside the answer.
const SAID: usize = 2_000;

/// How many questions are answered at once, and how many wait.
const AT_ONCE: usize = 2;

/// The program.
#[derive(Debug)]
pub struct Program {
    /// Its path.
    pub path: PathBuf,
    /// What is said to each command about the machine and the state folder.
    pub arguments: Vec<OsString>,
    /// Where it runs: paths in jobs begin there.
    pub folder: PathBuf,
}

/// Questions to the program.
#[derive(Debug)]
pub struct Commands {
    program: Program,
    places: Semaphore,
}

impl Commands {
    /// Questions to `program`.
    pub fn new(program: Program) -> Self {
        Commands { program, places: Semaphore::new(AT_ONCE) }
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
        let question = || arguments.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let failed = |cause: std::io::Error| Error::io(format!("`millstream {}` cannot be run", question()), &cause);
        let _place = self.places.acquire().await.map_err(|cause| Error::internal("no place").cause(cause))?;
        let mut command = Command::new(&self.program.path);
        // Behind `--` nothing is an option any more.
        command.args(["--json", "--quiet"]).args(&self.program.arguments).args(arguments);
        command.current_dir(&self.program.folder).env_remove("MILLSTREAM_METRICS");
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
        let process = Pid::from_child(&child);
        // On a task of its own: it is waited for even if the client is gone.
        let answered = tokio::spawn(async move {
            let mut waiting = tokio::task::spawn_blocking(move || child.wait_with_output());
            match tokio::time::timeout(LONGEST, &mut waiting).await {
                Ok(output) => output.map(Some),
                Err(_) => {
                    let _ = kill_process(process, Signal::KILL);
                    waiting.await.map(|_| None)
                }
            }
        });
        let lost = |cause| Error::internal("the process was not waited for").cause(cause);
        let Some(output) = answered.await.map_err(lost)?.map_err(lost)? else {
            let what = format!("`millstream {}` has not answered within {} s", question(), LONGEST.as_secs());
            return Err(Error::transient(what).hint("give the command in a terminal to see what it waits for"));
        };
        let Output { status, stdout: out, stderr: err } = output.map_err(failed)?;
        serde_json::from_slice(&out).map_err(|cause| no_answer(&question(), status, &err, &cause))
    }
}

fn no_answer(question: &str, status: ExitStatus, said: &[u8], cause: &serde_json::Error) -> Error {
    let error = Error::refused(format!("`millstream {question}` gave no answer: {status}"));
    let said = String::from_utf8_lossy(said);
    match said.trim() {
        "" => error.cause(cause),
        said => error.cause(said.chars().take(SAID).collect::<String>()),
    }
}
