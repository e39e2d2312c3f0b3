//! Files on SSH servers, by SFTP.
//!
//! `login.rs` makes connections, `hosts.rs` has the expected keys, `client.rs` does one operation over one connection,
//! `packet.rs` has the form of requests and answers. Retries, resuming and wildcards are in `remote`, for all servers
//! with folders.

mod client;
mod hosts;
mod login;
mod packet;
pub mod spec;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;
use millstream_core::Result;
use millstream_core::registry::SourceEntry;
use millstream_core::spec::SpecInfo;

use crate::remote::{Address, Entry, Facts, Failure, Piece, Protocol, Remote, Settings};
use crate::retry::Policy;
use client::{Connection, Opened};
use hosts::Hosts;
use login::Credentials;
use spec::SftpSpec;

/// The source `sftp`.
pub const ENTRY: SourceEntry = SourceEntry {
    spec: SpecInfo::of::<SftpSpec>(),
    schemes: &["sftp"],
    check: &crate::remote::check::<Sftp>,
    rows: false,
    build: &|settings| Ok(Arc::new(Remote::<Sftp>::new(crate::settings(settings)?))),
};

/// SFTP, with the secrets of one set of settings.
pub(crate) struct Sftp {
    settings: Settings,
    credentials: Credentials,
    hosts: Hosts,
}

impl std::fmt::Debug for Sftp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sftp").field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[async_trait]
impl Protocol for Sftp {
    type Spec = SftpSpec;
    type Connection = Connection;
    type Opened = Opened;
    const NAME: &'static str = "sftp";
    const SCHEMES: &'static [(&'static str, u16)] = &[("sftp", 22)];
    const WINDOW: usize = client::AHEAD;

    fn settings(spec: &SftpSpec) -> Settings {
        Settings {
            connections: spec.connections,
            connect_timeout: spec.connect_timeout.0,
            timeout: spec.timeout.0,
            policy: Policy { retries: spec.retries, max_backoff: spec.max_backoff.0, block: "sftp" },
        }
    }

    fn new(spec: &SftpSpec) -> Result<Self> {
        Ok(Sftp {
            settings: Sftp::settings(spec),
            credentials: Credentials::read(spec)?,
            hosts: Hosts::read(spec.host_key.as_deref(), spec.known_hosts.as_deref())?,
        })
    }

    /// The path is the server's own. Paths with `/~/` begin in the folder of the login.
    fn path(path: &[u8]) -> Vec<u8> {
        match path.strip_prefix(b"/~") {
            Some([]) | Some([b'/']) => b".".to_vec(),
            Some([b'/', below @ ..]) => below.to_vec(),
            _ => path.to_vec(),
        }
    }

    async fn connect(&self, address: &Address) -> Result<Connection, Failure> {
        login::connect(self, address).await
    }

    async fn list(&self, connection: &mut Connection, folder: &[u8]) -> Result<Vec<Entry>, Failure> {
        connection.list(folder).await
    }

    async fn stat(&self, connection: &mut Connection, path: &[u8]) -> Result<Facts, Failure> {
        connection.stat(path).await
    }

    async fn open(&self, connection: &mut Connection, path: &[u8]) -> Result<(Facts, Opened), Failure> {
        connection.open(path).await
    }

    async fn read(
        &self,
        connection: &mut Connection,
        opened: Opened,
        _path: &[u8],
        piece: &mut Piece<'_>,
    ) -> Result<(), Failure> {
        connection.read(opened, piece).await
    }
}
