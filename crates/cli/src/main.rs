//! The `millstream` command: arguments, progress, rendering of errors and reports, exit codes. All work is the
//! engine's.

mod allocator;
mod arguments;
mod commands;
mod explain;
mod interrupt;
mod message;
mod output;
mod progress;
mod rejects;
mod report;
mod runs;
mod table;
mod words;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    allocator::settle();
    ExitCode::from(commands::run(arguments::Arguments::parse()))
}
