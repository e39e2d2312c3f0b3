//! How the tests start processes: in a folder of their own and with the same environment, wherever the tests run.
//!
//! The environment is cleared, so that proxies, credentials, colours and settings of Millstream from outside change no
//! test. State, scratch and home are folders of the test; a test adds further variables to the command.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

/// The binary.
pub const MILLSTREAM: &str = env!("CARGO_BIN_EXE_millstream");

/// The binary with `arguments`, in `folder`, without input.
pub fn millstream(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = program(folder, MILLSTREAM);
    command.args(arguments);
    command
}

/// Another program, for example a shell that starts the binary, in the same environment.
pub fn program(folder: &Path, program: impl AsRef<OsStr>) -> Command {
    let scratch = folder.join(".scratch");
    fs_err::create_dir_all(&scratch).expect("a folder for scratch");
    let mut command = Command::new(program);
    command.env_clear().current_dir(folder).stdin(Stdio::null());
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    command.env("HOME", folder).env("TMPDIR", scratch).env("MILLSTREAM_STATE", folder.join(".state"));
    command
}
