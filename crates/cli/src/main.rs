//! The program `millstream`: the command line as a process of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(millstream_cli::main(std::env::args_os()))
}
