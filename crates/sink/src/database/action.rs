//! The user's actions before and after a load: statements of the database, and commands of this machine. This file runs
//! commands; loads run the statements.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use millstream_core::spec::Fault;
use millstream_core::{Error, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How often to check whether a command has ended.
const LOOK: Duration = Duration::from_millis(20);

/// How many bytes of a command's standard error are kept.
const KEPT: usize = 4 << 10;

/// One of several things that are done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Action {
    /// A statement of the database.
    Statement(String),
    /// A command of this machine.
    Command(CommandLine),
}

/// A command of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandLine {
    /// The program and its arguments, as they are: no shell reads them. What it writes to standard output goes nowhere.
    #[schemars(extend("format" = "command-line"))]
    pub command: Vec<String>,
}

/// Faults of the user's own actions.
pub(crate) fn faults(before: &[Action], after: &[Action]) -> Vec<Fault> {
    let empty = |(name, actions): (&str, &[Action])| {
        let fault = |(index, action): (usize, &Action)| match action {
            Action::Statement(statement) if statement.trim().is_empty() => {
                Some(Fault::new(&format!("{name}.{index}"), "the statement is empty"))
            }
            Action::Command(line) if line.command.first().is_none_or(|program| program.trim().is_empty()) => {
                Some(Fault::new(&format!("{name}.{index}.command"), "the command names no program"))
            }
            _ => None,
        };
        actions.iter().enumerate().filter_map(fault).collect::<Vec<_>>()
    };
    [("before", before), ("after", after)].into_iter().flat_map(empty).collect()
}

/// A running command. It is killed when this is dropped.
struct Running {
    child: Child,
    /// The end of its standard error.
    told: mpsc::Receiver<Vec<u8>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // The command may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl CommandLine {
    /// For messages.
    fn shown(&self) -> String {
        self.command.join(" ")
    }

    /// Runs it to its end; `when` is the name of the setting.
    pub(crate) async fn run(&self, when: &str) -> Result<()> {
        let mut running = self.start(when)?;
        loop {
            if let Some(ended) = self.look(&mut running, when)? {
                return self.judge(&running, ended, when);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The same, waiting on this thread while `is_wanted`.
    pub(crate) fn run_blocking(&self, when: &str, is_wanted: impl Fn() -> bool) -> Result<()> {
        let mut running = self.start(when)?;
        while is_wanted() {
            if let Some(ended) = self.look(&mut running, when)? {
                return self.judge(&running, ended, when);
            }
            std::thread::sleep(LOOK);
        }
        Err(self.failed(when).cause("it was killed, because the load was aborted"))
    }

    fn failed(&self, when: &str) -> Error {
        Error::refused(format!("a command of `{when}` failed")).text(self.shown())
    }

    fn start(&self, when: &str) -> Result<Running> {
        let (program, arguments) = self.command.split_first().ok_or_else(|| Error::internal("a command of nothing"))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|cause| {
            let error = self.failed(when).cause(Error::io("it cannot be started", &cause));
            error.hint("name a program that is in the PATH, or its path; a shell's words need a shell: [sh, -c, …]")
        })?;
        let (sender, told) = mpsc::channel();
        let mut errors = child.stderr.take();
        std::thread::spawn(move || {
            let (mut kept, mut piece) = (Vec::new(), [0; KEPT]);
            while let Some(Ok(count @ 1..)) = errors.as_mut().map(|errors| errors.read(&mut piece)) {
                kept.extend_from_slice(&piece[..count]);
                kept.drain(..kept.len().saturating_sub(KEPT));
            }
            // If the command was dropped, its output is not needed.
            let _ = sender.send(kept);
        });
        Ok(Running { child, told })
    }

    fn look(&self, running: &mut Running, when: &str) -> Result<Option<ExitStatus>> {
        running.child.try_wait().map_err(|cause| self.failed(when).cause(Error::io("it cannot be waited for", &cause)))
    }

    fn judge(&self, running: &Running, ended: ExitStatus, when: &str) -> Result<()> {
        if ended.success() {
            return Ok(());
        }
        // A child process may still hold the other end.
        let told = running.told.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
        let told = String::from_utf8_lossy(&told);
        let last = told.lines().rev().find(|line| !line.trim().is_empty()).map(|line| format!(": {}", line.trim()));
        Err(self.failed(when).cause(format!("{ended}{}", last.unwrap_or_default())))
    }
}
