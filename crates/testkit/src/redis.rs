//! A real Redis with a folder of its own, on a free port of loopback.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::guarded::{Guarded, hand_over};
use crate::nginx::free_port;
use crate::proftpd::secret_file;
use crate::{Certificate, PASSWORD, TempTree};

/// Options of a server.
#[derive(Debug, Clone, Default)]
pub struct RedisOptions {
    /// More settings, a name and a value each: `maxmemory`, `100mb`.
    pub settings: Vec<(String, String)>,
    /// Whether it asks for the password [`PASSWORD`].
    pub password: bool,
    /// Speak TLS as this server, and nothing else.
    pub certificate: Option<Certificate>,
}

/// A running Redis that forgets nothing it has acknowledged: it writes its log before it answers. It ends when dropped,
/// or with this process.
#[derive(Debug)]
pub struct Redis {
    process: Option<Guarded>,
    port: u16,
    arguments: Vec<String>,
    options: RedisOptions,
    folder: TempTree,
}

impl Redis {
    /// Starts a server.
    ///
    /// # Panics
    /// If Redis is not installed or does not start.
    pub fn start(options: RedisOptions) -> Self {
        let folder = TempTree::new();
        let data = folder.folder("data");
        let port = free_port();
        let mut settings: Vec<(String, String)> = [
            ("bind", "127.0.0.1"),
            ("dir", &data.display().to_string()),
            ("appendonly", "yes"),
            ("appendfsync", "always"),
            ("save", ""),
            ("daemonize", "no"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
        let mut set = |name: &str, value: String| settings.push((name.to_owned(), value));
        match &options.certificate {
            None => set("port", port.to_string()),
            Some(certificate) => {
                secret_file(&folder, "data/certificate.pem", &certificate.certificate);
                secret_file(&folder, "data/key.pem", &certificate.key);
                set("port", "0".to_owned());
                set("tls-port", port.to_string());
                set("tls-cert-file", data.join("certificate.pem").display().to_string());
                set("tls-key-file", data.join("key.pem").display().to_string());
                set("tls-auth-clients", "no".to_owned());
            }
        }
        if options.password {
            set("requirepass", PASSWORD.to_owned());
        }
        settings.extend(options.settings.iter().cloned());
        hand_over(&data, "redis");
        let arguments = settings.into_iter().flat_map(|(name, value)| [format!("--{name}"), value]).collect();
        let mut server = Redis { process: None, port, arguments, options, folder };
        server.restart();
        server
    }

    /// Starts the server, or restarts it in the same folder and on the same port.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        self.kill();
        let log = self.folder.path("log");
        let program = Path::new("redis-server");
        let process = Guarded::start("redis", program, &self.arguments, &log, self.folder.root());
        process.wait_until("redis-server", &log, || self.try_command(&["PING"]).as_deref() == Ok("PONG"));
        self.process = Some(process);
    }

    /// Kills the server (`kill -9`), and waits for its end.
    pub fn kill(&mut self) {
        self.process.iter().for_each(Guarded::kill);
        self.process = None;
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of its first database, with the password in it if it has one.
    pub fn url(&self) -> String {
        let scheme = if self.options.certificate.is_some() { "rediss" } else { "redis" };
        let password = if self.options.password { format!(":{PASSWORD}@") } else { String::new() };
        let host = if self.options.certificate.is_some() { "localhost" } else { "127.0.0.1" };
        format!("{scheme}://{password}{host}:{}/0", self.port)
    }

    /// Sends a command; its answer as `redis-cli` prints it to a pipe, a line for each value.
    ///
    /// # Panics
    /// If the server refuses it.
    pub fn command(&self, words: &[&str]) -> String {
        self.try_command(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// The same; the error is the server's.
    ///
    /// # Errors
    /// If the server refuses it, or does not answer.
    ///
    /// # Panics
    /// If `redis-cli` is not there.
    #[expect(clippy::expect_used, reason = "tests stop here")]
    pub fn try_command(&self, words: &[&str]) -> Result<String, String> {
        let mut command = Command::new("redis-cli");
        command.args(["-e", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
        if self.options.password {
            command.env("REDISCLI_AUTH", PASSWORD);
        }
        if self.options.certificate.is_some() {
            command.args(["--tls", "--insecure"]);
        }
        let done = command.args(words).stdin(Stdio::null()).output().expect("redis-cli comes with redis-server");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        match done.status.success() {
            true => Ok(text(&done.stdout)),
            false => Err(text(&[done.stdout, done.stderr].concat())),
        }
    }
}
