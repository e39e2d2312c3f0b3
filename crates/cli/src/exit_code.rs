//! The exit codes of commands that fail.

use millstream::{Failure, Lint};

/// For a job file or arguments that are wrong.
const WRONG: u8 = 2;

/// The exit code of a command that ends with `failure`.
pub fn exit_code(Failure { lints, errors }: &Failure) -> u8 {
    match errors.first() {
        _ if lints.iter().any(Lint::is_error) => WRONG,
        Some(error) => error.kind().exit_code(),
        None => WRONG,
    }
}
