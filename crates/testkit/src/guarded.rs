//! A server's process with a guard: a shell that ends the server, and removes its folder, as soon as the process that
//! started it has ended.
//!
//! Database servers take seconds to start, so one is shared by all tests of a program, in a `static`, which is never
//! dropped. The guard waits for the end of its standard input, which comes whenever the program ends.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_secs(180);

/// Starts the command after its first two arguments, prints its process id, and waits for a line or the end of its
/// input. A line says to keep the folder.
const GUARD: &str = r#"
log=$1; folder=$2; shift 2
"$@" >>"$log" 2>&1 </dev/null &
echo $!
keep=
read -r keep
kill -9 $! 2>/dev/null
wait $! 2>/dev/null
[ -n "$keep" ] || rm -rf "$folder"
"#;

/// A running server that ends when dropped or when this process ends.
#[derive(Debug)]
pub(crate) struct Guarded {
    guard: Child,
    input: Option<ChildStdin>,
    server: u32,
}

impl Guarded {
    /// Starts `program`, as `user` if this process runs as root. Its output is appended to `log`; `folder` is removed
    /// if this process ends without dropping the server.
    #[expect(clippy::expect_used, reason = "tests stop here")]
    pub(crate) fn start(user: &str, program: &Path, arguments: &[String], log: &Path, folder: &Path) -> Self {
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD, "guard"]).arg(log).arg(folder);
        guard.args(as_user(user)).arg(program).args(arguments);
        let mut guard = guard.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("there is a shell");
        let input = guard.stdin.take();
        let mut line = String::new();
        let output = guard.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("the guard tells a number");
        Guarded { guard, input, server: line.trim().parse().expect("the guard tells a number") }
    }

    /// Whether the server still runs.
    pub(crate) fn is_running(&self) -> bool {
        // A zombie has no command line.
        fs_err::read(format!("/proc/{}/cmdline", self.server)).is_ok_and(|line| !line.is_empty())
    }

    /// The server's process id.
    pub(crate) fn id(&self) -> u32 {
        self.server
    }

    /// Kills the server (`kill -9`), and waits for its end.
    pub(crate) fn kill(&self) {
        let _ = Command::new("kill").arg("-9").arg(self.server.to_string()).status();
        while self.is_running() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the server `answers`. `name` and what `log` has tell what is wrong if it does not.
    ///
    /// # Panics
    /// If it ends, or gives no answer within three minutes.
    pub(crate) fn wait_until(&self, name: &str, log: &Path, answers: impl Fn() -> bool) {
        let start = Instant::now();
        while !answers() {
            let log = || fs_err::read_to_string(log).unwrap_or_default();
            let has_begun = self.is_running() || start.elapsed() < Duration::from_secs(1);
            assert!(has_begun, "{name} does not start: {}", log());
            assert!(start.elapsed() < PATIENCE, "{name} does not answer: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Some(mut input) = self.input.take() {
            let _ = input.write_all(b"keep\n");
        }
        let _ = self.guard.wait();
    }
}

/// The prefix of a command that runs as `user` if this process runs as root: servers refuse to run as root.
pub(crate) fn as_user(user: &str) -> Vec<String> {
    if !rustix::process::geteuid().is_root() {
        return Vec::new();
    }
    ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--"].map(str::to_owned).to_vec()
}

/// Makes `user` the owner of `path`, if this process runs as root.
#[expect(clippy::expect_used, reason = "tests stop here")]
pub(crate) fn hand_over(path: &Path, user: &str) {
    if rustix::process::geteuid().is_root() {
        let status = Command::new("chown").arg("-R").arg(format!("{user}:{user}")).arg(path).status();
        assert!(status.expect("chown is there").success(), "{} cannot be given to {user}", path.display());
    }
}

/// Runs a command that sets a server up.
///
/// # Panics
/// If it is not there (`package` has it) or fails.
pub(crate) fn set_up(user: &str, program: &Path, arguments: &[String], package: &str) {
    let mut line = as_user(user);
    line.push(program.display().to_string());
    line.extend_from_slice(arguments);
    let done = Command::new(&line[0]).args(&line[1..]).current_dir("/").output();
    match done {
        Ok(done) if done.status.success() => {}
        Ok(done) => panic!(
            "{line:?} is needed by the tests (Debian package {package}): {}{}",
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        ),
        Err(cause) => panic!("{line:?} is needed by the tests: install the Debian package {package} ({cause})"),
    }
}

/// A program in one of `folders`, or in the search path.
pub(crate) fn program_in(folders: &[PathBuf], name: &str) -> PathBuf {
    folders.iter().map(|folder| folder.join(name)).find(|path| path.exists()).unwrap_or_else(|| PathBuf::from(name))
}
