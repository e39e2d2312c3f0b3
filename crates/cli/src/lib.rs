//! The `millstream` command: arguments, progress, rendering of errors and reports, exit codes. The library does all
//! work.
//!
//! It is a library itself, so that the Python package has the same command inside, and shows errors, reports and
//! progress in the same words.

#[cfg(feature = "serve")]
mod access;
pub mod allocator;
mod arguments;
mod cancel;
mod cluster;
mod commands;
mod exit_code;
mod explain;
mod forget;
mod human;
mod interrupt;
mod job_tests;
pub mod message;
pub mod output;
pub mod progress;
mod rejects;
pub mod report;
mod rows;
mod run_report;
mod runs;
mod schedule;
mod sequences;
mod series;
#[cfg(feature = "serve")]
mod serve;
mod shared;
mod shares;
mod table;
#[cfg(feature = "telemetry")]
mod telemetry;
#[cfg(not(feature = "telemetry"))]
#[path = "no_telemetry.rs"]
mod telemetry;
mod values;
mod watch;

use std::ffi::OsString;

use clap::Parser;

pub use shared::machine_of;

/// Runs the command with `arguments`, the first of which is the name of the program. Returns the exit code. The process
/// is the command's alone: its memory is held to a budget, and signals end the run.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    allocator::settle();
    match arguments::Arguments::try_parse_from(arguments) {
        Ok(arguments) => commands::run(arguments),
        // Help is such an error, too.
        Err(error) => {
            let _ = error.print();
            u8::try_from(error.exit_code()).unwrap_or(1)
        }
    }
}
