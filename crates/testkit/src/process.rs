//! A server's process, which ends when dropped, and names of users.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many ports are tried: another process may take a free one first.
const ATTEMPTS: usize = 5;

/// A running process.
#[derive(Debug)]
pub(crate) struct Running(Child);

impl Running {
    /// Starts `command`, whose output goes to `log`, and waits until it listens on `port`.
    #[expect(clippy::expect_used, reason = "tests stop here")]
    pub(crate) fn start(command: &mut Command, package: &str, port: u16, log: &Path) -> Result<Self, String> {
        let output = fs_err::File::create(log).expect("a log can be made").into_parts().0;
        let errors = output.try_clone().expect("a file can be shared");
        let spawned = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn();
        let mut running = match spawned {
            Ok(child) => Running(child),
            Err(cause) => panic!("{command:?} is needed by the tests: install the Debian package {package} ({cause})"),
        };
        running
            .wait(port)
            .map_err(|problem| format!("{problem}: {}", fs_err::read_to_string(log).unwrap_or_default()))?;
        Ok(running)
    }

    fn wait(&mut self, port: u16) -> Result<(), String> {
        let start = Instant::now();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        loop {
            if let Ok(Some(status)) = self.0.try_wait() {
                return Err(status.to_string());
            }
            if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                return Err("it does not answer".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Tries to start a server on several ports.
pub(crate) fn attempt<T>(name: &str, mut start: impl FnMut() -> Result<T, String>) -> T {
    let mut problem = String::new();
    for _ in 0..ATTEMPTS {
        match start() {
            Ok(started) => return started,
            Err(message) => problem = message,
        }
    }
    panic!("{name} does not start: {problem}");
}

/// Debian installs servers in a folder that is not in the search path of plain users.
pub(crate) fn program(name: &str) -> PathBuf {
    let usual = Path::new("/usr/sbin").join(name);
    if usual.exists() { usual } else { PathBuf::from(name) }
}

/// The output of `id`: names or numbers of the user who runs the tests.
#[expect(clippy::expect_used, reason = "tests stop here")]
pub(crate) fn id(options: &[&str]) -> String {
    let output = Command::new("id").args(options).output().expect("id tells who we are");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
