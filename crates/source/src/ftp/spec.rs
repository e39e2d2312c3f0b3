//! What the job file may say of reading over FTP.

use millstream_core::spec::{Duration, Fault, Secret, Spec, TextOrSecret};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Files on FTP servers, plain (`ftp://`) or encrypted (`ftps://`). All settings may be left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FtpSpec {
    /// The user's name; one in the URL takes precedence. Without any, the login is anonymous.
    pub user: Option<TextOrSecret>,
    /// A reference to the password; one in the URL takes precedence.
    pub password: Option<Secret>,
    /// The path of a PEM file with certificates of authorities to trust besides the system's, for `ftps://`.
    #[schemars(length(min = 1))]
    pub ca: Option<String>,
    /// Whether an `ftps://` connection is encrypted from its first byte, as old servers require it; otherwise
    /// encryption begins with `AUTH TLS`. By default it is at port 990 only.
    pub implicit: Option<bool>,
    /// How many files are read at once, from 1 to 64, each over a connection of its own. Servers often allow few.
    #[schemars(range(min = 1, max = 64))]
    pub connections: usize,
    /// How long it may take to establish a connection.
    pub connect_timeout: Duration,
    /// How long the server may be silent, before its answer and between two pieces of a file.
    pub timeout: Duration,
    /// How often in a row a file is retried after a transient fault: a broken connection, a time limit, or a reply that
    /// begins with 4. An attempt that brings 64 kB or more restarts the count.
    #[schemars(range(max = 100))]
    pub retries: u32,
    /// The longest pause between two attempts.
    pub max_backoff: Duration,
}

impl Default for FtpSpec {
    fn default() -> Self {
        FtpSpec {
            user: None,
            password: None,
            ca: None,
            implicit: None,
            connections: 4,
            connect_timeout: Duration::from_seconds(10),
            timeout: Duration::from_seconds(60),
            retries: 5,
            max_backoff: Duration::from_seconds(30),
        }
    }
}

impl Spec for FtpSpec {
    const NAME: &'static str = "ftp";
    const SUMMARY: &'static str = "Files on FTP servers, plain or encrypted: folders are listed, connections are kept, \
                                   transient faults are retried, interrupted files are resumed.";
    const EXAMPLE: &'static str = "read: ftps://ftp.example.com/daily/**/*.csv.gz\n\
                                   ftp:\n  \
                                   user: etl\n  \
                                   password: {secret: env:FTP_PASSWORD}\n  \
                                   connections: 2\n\
                                   csv: {header: true}\n";

    fn check(&self) -> Vec<Fault> {
        let mut faults = crate::connection_faults(self.connections, 64, self.connect_timeout, self.timeout);
        if self.password.is_some() && self.user.is_none() {
            faults.push(Fault::new("password", "a password without a user").hint("write `user`, too"));
        }
        if matches!(&self.user, Some(TextOrSecret::Text(user)) if user.is_empty() || user.contains(['\r', '\n', '\0']))
        {
            faults.push(Fault::new("user", "a user's name is one line of text"));
        }
        faults
    }
}
