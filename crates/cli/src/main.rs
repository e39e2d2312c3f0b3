//! The `millstream` command: arguments, progress, rendering of errors and reports, exit codes. All work is the
//! engine's.

mod arguments;
mod commands;
mod interrupt;
mod message;
mod output;
mod progress;
mod report;
mod table;
mod words;

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ExitCode::from(commands::run(arguments::Arguments::parse()))
}
