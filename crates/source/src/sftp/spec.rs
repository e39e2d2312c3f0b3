//! What the job file may say of reading over SFTP.

use std::str::FromStr;

use millstream_core::spec::{Duration, Fault, Secret, Spec, TextOrSecret};
use russh::keys::ssh_key::Fingerprint;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Files on SSH servers (`sftp://`). All settings may be left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SftpSpec {
    /// The user's name; one in the URL takes precedence. Without any, it is that of the user who runs the job.
    pub user: Option<TextOrSecret>,
    /// A reference to the password; one in the URL takes precedence.
    pub password: Option<Secret>,
    /// A reference to the private key, as text: `{secret: file:/home/etl/.ssh/id_ed25519}`. The formats of OpenSSH,
    /// PKCS#8 and PuTTY are supported.
    pub key: Option<Secret>,
    /// A reference to the passphrase of `key`.
    pub passphrase: Option<Secret>,
    /// Whether the keys of the agent at `SSH_AUTH_SOCK` are tried. By default they are if there is neither a password
    /// nor a `key`; so are then the keys `id_ed25519`, `id_ecdsa` and `id_rsa` in `~/.ssh` that have no passphrase.
    pub agent: Option<bool>,
    /// The path of the file that says which host has which key, instead of `~/.ssh/known_hosts` and
    /// `/etc/ssh/ssh_known_hosts`. A host that is not in it is refused.
    #[schemars(length(min = 1))]
    pub known_hosts: Option<String>,
    /// The fingerprint of the host's key as `ssh-keygen -lf` prints it, `SHA256:…`; then no file of known hosts is
    /// read.
    #[schemars(regex(pattern = r"^SHA(256|512):[A-Za-z0-9+/]+$"))]
    pub host_key: Option<String>,
    /// How many files are read at once, from 1 to 64, each over a connection of its own.
    #[schemars(range(min = 1, max = 64))]
    pub connections: usize,
    /// How long it may take to establish a connection.
    pub connect_timeout: Duration,
    /// How long the server may be silent, before its answer and between two pieces of a file.
    pub timeout: Duration,
    /// How often in a row a file is retried after a transient fault: a broken connection, a time limit, or a failure
    /// without a reason. An attempt that brings 64 kB or more restarts the count.
    #[schemars(range(max = 100))]
    pub retries: u32,
    /// The longest pause between two attempts.
    pub max_backoff: Duration,
}

impl Default for SftpSpec {
    fn default() -> Self {
        SftpSpec {
            user: None,
            password: None,
            key: None,
            passphrase: None,
            agent: None,
            known_hosts: None,
            host_key: None,
            connections: 4,
            connect_timeout: Duration::from_seconds(10),
            timeout: Duration::from_seconds(60),
            retries: 5,
            max_backoff: Duration::from_seconds(30),
        }
    }
}

impl Spec for SftpSpec {
    const NAME: &'static str = "sftp";
    const SUMMARY: &'static str = "Files on SSH servers: folders are listed, connections are kept, host keys are \
                                   checked, transient faults are retried, interrupted files are resumed.";
    const EXAMPLE: &'static str = "read: sftp://files.example.com/srv/daily/**/*.csv.gz\n\
                                   sftp:\n  \
                                   user: etl\n  \
                                   key: {secret: file:/run/secrets/id_ed25519}\n  \
                                   known_hosts: /etc/etl/known_hosts\n\
                                   csv: {header: true}\n";

    fn check(&self) -> Vec<Fault> {
        let mut faults = crate::connection_faults(self.connections, 64, self.connect_timeout, self.timeout);
        if self.passphrase.is_some() && self.key.is_none() {
            faults.push(Fault::new("passphrase", "a passphrase without a key").hint("write `key`, too"));
        }
        if self.host_key.is_some() && self.known_hosts.is_some() {
            faults.push(
                Fault::new("known_hosts", "with `host_key` no file of known hosts is read")
                    .hint("leave out one of the two"),
            );
        }
        if self.host_key.as_deref().is_some_and(|text| Fingerprint::from_str(text).is_err()) {
            faults.push(
                Fault::new("host_key", "this is not a fingerprint")
                    .hint("write it as `ssh-keygen -lf` prints it: SHA256: and 43 characters"),
            );
        }
        if matches!(&self.user, Some(TextOrSecret::Text(user)) if user.is_empty() || user.contains(['\r', '\n', '\0']))
        {
            faults.push(Fault::new("user", "a user's name is one line of text"));
        }
        faults
    }
}
