//! A program that is started after a run.

use std::ffi::OsString;

use millstream_core::program::CommandLine;
use millstream_core::{Error, Result};
use millstream_process::{Children, Program};
use tokio::io::AsyncWriteExt;

use super::given::Given;

/// Runs `command` of the hooks `key` to its end, with the report on its standard input. What it writes is shown.
pub(super) async fn run(key: &str, command: &CommandLine, given: &Given<'_>) -> Result<()> {
    let context = given.surroundings.context(key);
    let mut program = Program::new(&command.0, &Default::default(), &context)?;
    program.shows_output = true;
    let of_run =
        [("MILLSTREAM_OUTCOME", given.outcome.name()), ("MILLSTREAM_JOB", given.job), ("MILLSTREAM_RUN", given.run)];
    program.environment.extend(of_run.map(|(name, value)| (name.to_owned(), OsString::from(value))));
    program.look_up()?;
    let mut child = Children::of_process()?.start(&program, context.lines).await?;
    if let Some(stdin) = &mut child.stdin {
        // It need not read the report.
        let _ = stdin.write_all(format!("{}\n", given.report).as_bytes()).await;
    }
    child.end_input();
    let ending = child.wait().await?;
    if ending.is_success() {
        return Ok(());
    }
    let last = child.last_lines().join("\n");
    let error = Error::refused(ending.to_string());
    Err(if last.is_empty() { error } else { error.cause(last) })
}
