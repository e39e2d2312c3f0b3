//! Files on FTP servers (RFC 959; 2228 and 4217 for encryption; 2428 and 3659 for the extensions in use).
//!
//! `client.rs` does one operation over one connection, `listing.rs` parses listings, `reply.rs` interprets replies.
//! Retries, resuming and wildcards are in `remote`, for all servers with folders.

mod client;
mod listing;
mod reply;
pub mod spec;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::BytesMut;
use millstream_core::registry::SourceEntry;
use millstream_core::spec::SpecInfo;
use millstream_core::{Error, Result};
use rustls::ClientConfig;

use crate::remote::{Address, Entry, Facts, Failure, Piece, Protocol, Remote, Settings};
use crate::retry::Policy;
use client::Connection;
use spec::FtpSpec;

/// The source `ftp`.
pub const ENTRY: SourceEntry = SourceEntry {
    spec: SpecInfo::of::<FtpSpec>(),
    schemes: &["ftp", "ftps"],
    check: &crate::remote::check::<Ftp>,
    rows: false,
    build: &|settings| Ok(Arc::new(Remote::<Ftp>::new(crate::settings(settings)?))),
};

/// What is read from a data connection at once.
const CHUNK: usize = 128 << 10;

/// FTP, with the secrets of one set of settings.
pub(crate) struct Ftp {
    settings: Settings,
    user: Option<String>,
    password: Option<String>,
    implicit: Option<bool>,
    encryption: ClientConfig,
}

impl std::fmt::Debug for Ftp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ftp").field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[async_trait]
impl Protocol for Ftp {
    type Spec = FtpSpec;
    type Connection = Connection;
    type Opened = Facts;
    const NAME: &'static str = "ftp";
    const SCHEMES: &'static [(&'static str, u16)] = &[("ftp", 21), ("ftps", 21)];

    fn settings(spec: &FtpSpec) -> Settings {
        Settings {
            connections: spec.connections,
            connect_timeout: spec.connect_timeout.0,
            timeout: spec.timeout.0,
            policy: Policy { retries: spec.retries, max_backoff: spec.max_backoff.0, block: "ftp" },
        }
    }

    fn new(spec: &FtpSpec) -> Result<Self> {
        let line = |what: &str, text: String| {
            if text.contains(['\r', '\n', '\0']) {
                return Err(Error::refused(format!("the {what} of the source's `ftp` block is more than one line")));
            }
            Ok(text)
        };
        let user = spec.user.as_ref().map(|user| user.resolve()).transpose()?;
        let password = spec.password.as_ref().map(|password| password.resolve()).transpose()?;
        Ok(Ftp {
            settings: Ftp::settings(spec),
            user: user.map(|text| line("user", text)).transpose()?,
            password: password.map(|text| line("password", text)).transpose()?,
            implicit: spec.implicit,
            encryption: millstream_net::tls::configuration(spec.ca.as_deref())?,
        })
    }

    /// Relative to the folder in which the login begins (RFC 1738, 3.2.2); two slashes begin an absolute path.
    fn path(path: &[u8]) -> Vec<u8> {
        path.strip_prefix(b"/").unwrap_or(path).to_vec()
    }

    async fn connect(&self, address: &Address) -> Result<Connection, Failure> {
        Connection::connect(self, address).await
    }

    async fn list(&self, connection: &mut Connection, folder: &[u8]) -> Result<Vec<Entry>, Failure> {
        connection.list(folder).await
    }

    async fn stat(&self, connection: &mut Connection, path: &[u8]) -> Result<Facts, Failure> {
        connection.stat(path).await
    }

    /// FTP does not open files: this asks for the facts of the file.
    async fn open(&self, connection: &mut Connection, path: &[u8]) -> Result<(Facts, Facts), Failure> {
        connection.stat(path).await.map(|facts| (facts, facts))
    }

    async fn read(
        &self,
        connection: &mut Connection,
        opened: Facts,
        path: &[u8],
        piece: &mut Piece<'_>,
    ) -> Result<(), Failure> {
        if piece.end() == Some(piece.at()) {
            return Ok(());
        }
        let mut data = connection.retrieve(path, piece.at()).await?;
        let mut buffer = BytesMut::new();
        let whole = piece.end().is_some() && piece.end() == opened.size;
        loop {
            let wanted = piece.end().map(|end| usize::try_from(end - piece.at()).unwrap_or(usize::MAX));
            if wanted == Some(0) && !whole {
                return connection.abandon(data).await;
            }
            buffer.reserve(CHUNK.min(wanted.unwrap_or(CHUNK).max(1)));
            if connection.receive(&mut data, &mut buffer, wanted).await? == 0 {
                break;
            }
            // The size is known: bytes after it were written since.
            if wanted.is_some_and(|wanted| buffer.len() > wanted) {
                if whole {
                    return Err(crate::remote::changed("while it was read").into());
                }
                buffer.truncate(wanted.unwrap_or(usize::MAX));
            }
            piece.take(buffer.split().freeze()).await;
        }
        connection.complete(data).await?;
        // A file that was overwritten while it was read has another time; small ones are read at once.
        if !piece.is_small() && opened.modified.is_some() && piece.end() == Some(piece.at()) {
            let after = connection.stat(path).await?;
            if (after.size, after.modified) != (opened.size, opened.modified) {
                return Err(Failure { intact: true, ..crate::remote::changed("while it was read").into() });
            }
        }
        Ok(())
    }
}
