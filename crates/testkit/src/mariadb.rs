//! A real database server: MariaDB with a folder of its own, on a free port of loopback.

use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::guarded::{Guarded, hand_over, program_in, set_up};
use crate::nginx::free_port;
use crate::proftpd::secret_file;
use crate::{Certificate, PASSWORD, TempTree, USER};

/// Options of a server.
#[derive(Debug, Clone, Default)]
pub struct MariaDbOptions {
    /// More arguments: `--local-infile=0`.
    pub arguments: Vec<String>,
    /// Speak TLS as this server.
    pub certificate: Option<Certificate>,
}

/// A running MariaDB whose user [`USER`] may do everything; it ends when dropped, or with this process.
#[derive(Debug)]
pub struct MariaDb {
    process: Option<Guarded>,
    port: u16,
    arguments: Vec<String>,
    folder: TempTree,
    databases: AtomicUsize,
}

impl MariaDb {
    /// The server that all tests of this program share. It lives as long as the program.
    pub fn shared() -> &'static MariaDb {
        static SHARED: OnceLock<MariaDb> = OnceLock::new();
        SHARED.get_or_init(|| MariaDb::start(MariaDbOptions::default()))
    }

    /// Starts a separate server.
    ///
    /// # Panics
    /// If MariaDB is not installed or does not start.
    pub fn start(options: MariaDbOptions) -> Self {
        let folder = TempTree::new();
        let data = folder.folder("data");
        // Without folders of their own, two servers would confuse their temporary tables.
        let mut arguments = vec![format!("--datadir={}", data.display()), format!("--tmpdir={}", data.display())];
        hand_over(&data, "mysql");
        let install =
            ["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"];
        let install = install.map(str::to_owned).into_iter().chain(arguments.clone());
        let installer = program_in(&["/usr/bin".into()], "mariadb-install-db");
        set_up("mysql", &installer, &install.collect::<Vec<_>>(), "mariadb-server");
        let port = free_port();
        arguments.insert(0, "--no-defaults".to_owned());
        arguments.extend([
            format!("--port={port}"),
            format!("--socket={}", data.join("socket").display()),
            format!("--pid-file={}", data.join("pid").display()),
        ]);
        arguments.extend(
            [
                "--bind-address=127.0.0.1",
                "--skip-name-resolve",
                "--innodb-flush-log-at-trx-commit=2",
                "--innodb-buffer-pool-size=64M",
                "--innodb-log-file-size=32M",
                "--max-connections=200",
            ]
            .map(str::to_owned),
        );
        if let Some(certificate) = &options.certificate {
            secret_file(&folder, "data/certificate.pem", &certificate.certificate);
            secret_file(&folder, "data/key.pem", &certificate.key);
            hand_over(&data, "mysql");
            arguments.push(format!("--ssl-cert={}", data.join("certificate.pem").display()));
            arguments.push(format!("--ssl-key={}", data.join("key.pem").display()));
        }
        arguments.extend(options.arguments);
        let mut server = MariaDb { process: None, port, arguments, folder, databases: AtomicUsize::new(0) };
        server.restart();
        server.query(
            "",
            &format!(
                "CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON *.* TO '{USER}'@'%' WITH GRANT \
                      OPTION"
            ),
        );
        server
    }

    /// Starts the server, or restarts it in the same folder and on the same port.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        self.kill();
        let log = self.folder.path("log");
        let program = program_in(&["/usr/sbin".into()], "mariadbd");
        let process = Guarded::start("mysql", &program, &self.arguments, &log, self.folder.root());
        process.wait_until("mariadb", &log, || self.try_query("", "SELECT 1").is_ok());
        self.process = Some(process);
    }

    /// Restarts the server with one more argument, which overrides earlier ones.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart_with(&mut self, argument: &str) {
        self.arguments.push(argument.to_owned());
        self.restart();
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

    /// Creates an empty database. Returns its name.
    pub fn database(&self) -> String {
        let name = format!("test{}", self.databases.fetch_add(1, Ordering::SeqCst));
        self.query("", &format!("CREATE DATABASE {name} CHARACTER SET utf8mb4"));
        name
    }

    /// The URL of a database, with the user and the password in it.
    pub fn url(&self, database: &str) -> String {
        format!("mysql://{USER}:{PASSWORD}@127.0.0.1:{}/{database}", self.port)
    }

    /// Runs statements with the server's own client. Returns the rows, with values separated by tabs.
    ///
    /// # Panics
    /// If the server refuses them.
    pub fn query(&self, database: &str, sql: &str) -> Vec<String> {
        self.try_query(database, sql).unwrap_or_else(|problem| panic!("{sql}: {problem}"))
    }

    /// Like [`MariaDb::query`]; the error is what the client says.
    #[expect(clippy::expect_used, reason = "tests stop here")]
    pub fn try_query(&self, database: &str, sql: &str) -> Result<Vec<String>, String> {
        let output = Command::new("mariadb")
            .args(["--no-defaults", "--user=root", "--host=127.0.0.1", "--batch", "--skip-column-names"])
            .args(["--default-character-set=utf8mb4", "--skip-ssl", "--connect-timeout=10"])
            .args([format!("--port={}", self.port), format!("--execute={sql}")])
            .arg(database)
            .output()
            .expect("mariadb is needed by the tests: install the Debian package mariadb-client");
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_server_comes_back_with_what_was_committed() {
        let mut server = MariaDb::start(MariaDbOptions::default());
        let database = server.database();
        server.query(&database, "CREATE TABLE t (a INT); INSERT INTO t VALUES (1), (NULL)");
        server.kill();
        assert!(server.try_query(&database, "SELECT 1").is_err());
        server.restart();
        assert_eq!(server.query(&database, "SELECT a FROM t ORDER BY a"), ["NULL", "1"]);
    }
}
