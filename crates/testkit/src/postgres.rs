//! A real database server: PostgreSQL with a folder of its own, on a free port of loopback.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::guarded::{Guarded, hand_over, program_in, set_up};
use crate::nginx::free_port;
use crate::proftpd::secret_file;
use crate::{Certificate, PASSWORD, TempTree, USER};

/// Options of a server.
#[derive(Debug, Clone, Default)]
pub struct PostgresOptions {
    /// More settings: `max_connections=5`.
    pub settings: Vec<String>,
    /// Speak TLS as this server.
    pub certificate: Option<Certificate>,
}

/// A running PostgreSQL whose user [`USER`] is a superuser; it ends when dropped, or with this process.
#[derive(Debug)]
pub struct Postgres {
    process: Option<Guarded>,
    port: u16,
    arguments: Vec<String>,
    folder: TempTree,
    databases: AtomicUsize,
}

impl Postgres {
    /// The server that all tests of this program share. It lives as long as the program.
    pub fn shared() -> &'static Postgres {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(|| Postgres::start(PostgresOptions::default()))
    }

    /// Starts a separate server.
    ///
    /// # Panics
    /// If PostgreSQL is not installed or does not start.
    pub fn start(options: PostgresOptions) -> Self {
        let folder = TempTree::new();
        let data = folder.folder("data");
        secret_file(&folder, "password", PASSWORD);
        hand_over(&data, "postgres");
        hand_over(&folder.path("password"), "postgres");
        let install = [
            format!("--pgdata={}", data.display()),
            format!("--username={USER}"),
            format!("--pwfile={}", folder.path("password").display()),
        ];
        let fixed = ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"];
        let install: Vec<String> = install.into_iter().chain(fixed.map(str::to_owned)).collect();
        set_up("postgres", &program("initdb"), &install, "postgresql");
        let port = free_port();
        let mut settings = vec![
            "listen_addresses=127.0.0.1".to_owned(),
            format!("port={port}"),
            "unix_socket_directories=".to_owned(),
            "fsync=off".to_owned(),
            "shared_buffers=32MB".to_owned(),
            "max_connections=200".to_owned(),
        ];
        if let Some(certificate) = &options.certificate {
            secret_file(&folder, "data/certificate.pem", &certificate.certificate);
            secret_file(&folder, "data/key.pem", &certificate.key);
            hand_over(&data, "postgres");
            settings.extend(["ssl=on", "ssl_cert_file=certificate.pem", "ssl_key_file=key.pem"].map(str::to_owned));
        }
        settings.extend(options.settings);
        let mut arguments = vec!["-D".to_owned(), data.display().to_string()];
        arguments.extend(settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]));
        let mut server = Postgres { process: None, port, arguments, folder, databases: AtomicUsize::new(0) };
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
        let process = Guarded::start("postgres", &program("postgres"), &self.arguments, &log, self.folder.root());
        process.wait_until("postgres", &log, || self.try_query("postgres", "SELECT 1").is_ok());
        self.process = Some(process);
    }

    /// Kills the server with all its processes (`kill -9`), and waits for their end.
    pub fn kill(&mut self) {
        if let Some(process) = &self.process {
            // The other processes end when the first one has ended.
            let _ = Command::new("kill").arg("-9").arg(process.id().to_string()).status();
            while process.is_running() || self.has_others() {
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = fs_err::remove_file(self.folder.path("data/postmaster.pid"));
        }
        self.process = None;
    }

    /// Whether a process still works in the folder of the data.
    fn has_others(&self) -> bool {
        let data = self.folder.path("data");
        let Ok(processes) = fs_err::read_dir("/proc") else { return false };
        processes
            .flatten()
            .any(|process| std::fs::read_link(process.path().join("cwd")).is_ok_and(|folder| folder == data))
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Creates an empty database. Returns its name.
    pub fn database(&self) -> String {
        let name = format!("test{}", self.databases.fetch_add(1, Ordering::SeqCst));
        self.query("postgres", &format!("CREATE DATABASE {name}"));
        name
    }

    /// Creates an empty database whose tables are in `folder`. Returns its name.
    pub fn database_in(&self, folder: &Path) -> String {
        hand_over(folder, "postgres");
        let name = self.database();
        self.query("postgres", &format!("CREATE TABLESPACE {name} LOCATION '{}'", folder.display()));
        self.query("postgres", &format!("ALTER DATABASE {name} SET default_tablespace = {name}"));
        name
    }

    /// The URL of a database, with the user and the password in it.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{}/{database}", self.port)
    }

    /// Runs statements with the server's own client. Returns the rows, with values separated by tabs and nulls as
    /// `NULL`.
    ///
    /// # Panics
    /// If the server refuses them.
    pub fn query(&self, database: &str, sql: &str) -> Vec<String> {
        self.try_query(database, sql).unwrap_or_else(|problem| panic!("{sql}: {problem}"))
    }

    /// Like [`Postgres::query`]; the error is what the client says.
    #[expect(clippy::expect_used, reason = "tests stop here")]
    pub fn try_query(&self, database: &str, sql: &str) -> Result<Vec<String>, String> {
        let output = Command::new("psql")
            .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--field-separator=\t"])
            .args(["--pset=null=NULL", "--host=127.0.0.1", "--set=ON_ERROR_STOP=1"])
            .args([format!("--username={USER}"), format!("--port={}", self.port)])
            .args([format!("--dbname={database}"), format!("--command={sql}")])
            .env("PGPASSWORD", PASSWORD)
            .env("PGCONNECT_TIMEOUT", "10")
            .output()
            .expect("psql is needed by the tests: install the Debian package postgresql-client");
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    }
}

/// Debian installs each version in a folder of its own; any of them will do.
fn program(name: &str) -> PathBuf {
    let versions = fs_err::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    folders.sort_by_key(|folder| {
        let version = folder.parent().and_then(|folder| folder.file_name());
        std::cmp::Reverse(version.and_then(|name| name.to_str()?.parse::<u32>().ok()))
    });
    program_in(&folders, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_server_comes_back_with_what_was_committed() {
        let mut server = Postgres::start(PostgresOptions::default());
        let database = server.database();
        server.query(&database, "CREATE TABLE t (a INT); INSERT INTO t VALUES (1), (NULL)");
        server.kill();
        assert!(server.try_query(&database, "SELECT 1").is_err());
        server.restart();
        assert_eq!(server.query(&database, "SELECT a FROM t ORDER BY a"), ["1", "NULL"]);
    }
}
