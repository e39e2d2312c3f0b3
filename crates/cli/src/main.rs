//! The `millstream` command: arguments, progress, rendering of errors and reports, exit codes. The library does all
//! work.

mod allocator;
mod arguments;
mod commands;
mod explain;
mod human;
mod interrupt;
mod message;
mod output;
mod progress;
mod rejects;
mod report;
mod rows;
mod runs;
mod table;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    allocator::settle();
    ExitCode::from(commands::run(arguments::Arguments::parse()))
}
