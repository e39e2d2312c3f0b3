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

/// `text` without lines of progress. A run writes one every ten seconds if there is no terminal, so whether there are
/// any depends on how busy the machine is.
pub fn without_progress(text: &str) -> String {
    text.split_inclusive('\n').filter(|line| !is_progress(line)).collect()
}

/// Whether it is like `10.1 s: 81.1 kB, 8.06 kB/s, 380 rows` or `1 min 05 s: 12 msg/s, 40,000 rows`.
fn is_progress(line: &str) -> bool {
    let Some((time, progress)) = line.split_once(" s: ") else { return false };
    let is_time = time.split(' ').all(|part| part == "min" || part.parse::<f64>().is_ok());
    is_time && progress.contains("/s") && progress.contains(" rows")
}

#[test]
fn lines_of_progress_are_known() {
    let progress = [
        "10.1 s: 81.1 kB, 8.06 kB/s, 380 rows\n",
        "2 min 05 s: 12 msg/s · oldest 0.8 s, 4,000 rows\n",
        "100 s: 0 B of 1 kB, 0 B/s, 0 rows, committing\n",
    ];
    let others = ["error: no\n", "  at x\n", "3 s: done, 3 B/s\n", "step load 1 s: 2 B/s, 4 rows\n", "end"];
    let mixed: String = progress.iter().zip(&others).map(|(one, other)| format!("{one}{other}")).collect();
    assert_eq!(without_progress(&(mixed + others[3] + others[4])), others.concat());
}
