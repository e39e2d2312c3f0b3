//! Processes of steps: programs, and Millstream itself.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::FusedFuture;

use millstream_core::program::Lines;
use millstream_process::{Child, Children, Ending, Program};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

use crate::surroundings::{Done, GRACE, Surroundings, too_long};
use millstream_core::Result;

/// How long the rest of what a process has written is read once it has ended.
const REST: Duration = Duration::from_secs(1);

/// So much of what a program writes is kept as its result, in bytes.
const MOST_OUTPUT: usize = 64 << 10;

/// So much of what Millstream itself writes is read, in bytes: a report.
pub(super) const MOST_REPORT: usize = 64 << 20;

/// How a process has ended, and what it has written.
pub(super) struct Ended {
    pub(super) ending: Ending,
    pub(super) output: Vec<u8>,
    /// The last lines of its standard error.
    pub(super) last: Vec<String>,
    /// Whether it took too long.
    pub(super) late: bool,
    /// Whether it was stopped, since the run was.
    pub(super) stopped: bool,
}

/// Runs `program` to its end, and keeps at most `most` bytes of what it writes.
pub(super) async fn run(
    surroundings: &Surroundings,
    program: &Program,
    limit: Option<Duration>,
    lines: Lines,
    most: usize,
) -> Result<Ended> {
    let mut child = Children::of_process()?.start(program, lines).await?;
    child.end_input();
    let stdout = child.stdout.take();
    let mut output = Vec::new();
    let (how, ending) = {
        let mut reading = pin!(read(stdout, &mut output, most).fuse());
        let how = {
            let mut ended = pin!(ended(surroundings, &child, limit));
            loop {
                tokio::select! {
                    () = &mut reading => {}
                    how = &mut ended => break how,
                }
            }
        };
        // What it has left behind ends here, and may hold the pipe open no longer than this.
        let ending = child.wait().await?;
        if !reading.is_terminated() {
            let _ = tokio::time::timeout(REST, &mut reading).await;
        }
        (how, ending)
    };
    let (late, stopped) = (how == How::Late, how == How::Stopped);
    Ok(Ended { ending, output, last: child.last_lines(), late, stopped })
}

/// Reads all of `stdout`, and keeps the first `most` bytes of it.
async fn read(stdout: Option<Receiver>, output: &mut Vec<u8>, most: usize) {
    let Some(mut stdout) = stdout else { return };
    let mut buffer = vec![0; 16 << 10];
    while let Ok(read @ 1..) = stdout.read(&mut buffer).await {
        let room = most - output.len();
        output.extend_from_slice(&buffer[..read.min(room)]);
    }
}

/// Why a process has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    ByItself,
    Late,
    Stopped,
}

/// Waits until `child` has ended: by itself, or because it was asked to.
async fn ended(surroundings: &Surroundings, child: &Child, limit: Option<Duration>) -> How {
    let mut stop = surroundings.stop.clone();
    let how = tokio::select! {
        () = child.over() => return How::ByItself,
        () = millstream_process::after(limit) => How::Late,
        _ = stop.wait_for(|stop| *stop) => How::Stopped,
    };
    child.ask_to_end();
    tokio::select! {
        () = child.over() => return how,
        () = tokio::time::sleep(GRACE) => {}
    }
    child.kill();
    child.over().await;
    how
}

/// A program of the sequence, in its folder.
pub(super) fn program(surroundings: &Surroundings, words: impl IntoIterator<Item = std::ffi::OsString>) -> Program {
    Program {
        command: words.into_iter().collect(),
        folder: Some(surroundings.folder.clone()),
        secrets: surroundings.secrets.clone(),
        ..Program::default()
    }
}

/// Runs the program `words`.
pub(super) async fn command(
    surroundings: &Surroundings,
    words: Vec<String>,
    limit: Option<Duration>,
    lines: Lines,
) -> Done {
    let mut program = program(surroundings, words.into_iter().map(Into::into));
    program.withheld.clone_from(&surroundings.withheld);
    if let Err(error) = program.look_up() {
        return error.into();
    }
    let ended = match run(surroundings, &program, limit, Arc::clone(&lines), MOST_OUTPUT).await {
        Ok(ended) => ended,
        Err(error) => return error.into(),
    };
    let output = String::from_utf8_lossy(&ended.output);
    let output = surroundings.secrets.hidden(output.trim_end());
    output.lines().for_each(|line| lines(line));
    let results = json!({"exit_code": ended.ending.code(), "output": output});
    let results = results.as_object().cloned().unwrap_or_default();
    let failed = match (ended.late, ended.ending.is_success()) {
        (true, _) => Some(too_long(limit)),
        (_, true) => None,
        _ => Some(match ended.last.last() {
            Some(line) => format!("{}: {line}", ended.ending),
            None => ended.ending.to_string(),
        }),
    };
    Done { stopped: ended.stopped && failed.is_some(), failed, results }
}
