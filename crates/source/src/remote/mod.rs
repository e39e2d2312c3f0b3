//! The common part of servers with folders (FTP, SFTP).
//!
//! ```text
//!  pattern ─walk─▶ units ─transfer─▶ bytes
//!            └─ pool: connections ─┘
//!               └─ Protocol: connect · list · stat · open · read
//! ```
//!
//! A protocol does single operations over one connection, and interprets failures. The rest is here: URLs
//! (`address.rs`), kept connections (`pool.rs`), wildcards (`walk.rs`), and transfers of units over as many connections
//! as necessary (`transfer.rs`).

mod address;
mod pool;
mod transfer;
mod walk;

use std::fmt::Debug;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::BoxStream;
use millstream_core::source::{OpenedUnit, Source, SourceContext};
use millstream_core::spec::Fault as SpecFault;
use millstream_core::{ByteStream, Result, Unit};
use tokio::runtime::{Handle, Id};
use tokio::sync::{mpsc, oneshot};

use crate::feed::feed;
use crate::io::{Stop, interrupted, join, on_io};
use crate::retry::{Fault, Policy};
pub(crate) use address::{Address, Target};
pub(crate) use pool::{Server, reach, system_text};
#[cfg(feature = "sftp")]
pub(crate) use transfer::Space;
use transfer::{Output, Transfer};
pub(crate) use transfer::{Piece, SMALL, changed};

/// The most found units that wait to be taken.
const FOUND_AHEAD: usize = 512;

/// The operations of a protocol over one connection.
#[async_trait]
pub(crate) trait Protocol: Debug + Send + Sync + Sized + 'static {
    /// The settings in the job file.
    type Spec: Clone + Debug + Send + Sync + 'static;
    /// A connection, logged in.
    type Connection: Send + 'static;
    /// A file that is open.
    type Opened: Send;
    /// The name in reports, and the block of the job file.
    const NAME: &'static str;
    /// The schemes of its URLs and their usual ports.
    const SCHEMES: &'static [(&'static str, u16)];
    /// The most bytes of one file that wait, including reserved bytes in flight.
    const WINDOW: usize = SMALL as usize;

    /// The settings that all protocols share.
    fn settings(spec: &Self::Spec) -> Settings;

    /// Reads secrets and certificates. Blocks.
    fn new(spec: &Self::Spec) -> Result<Self>;

    /// The server's path for the path of a URL (which begins with a slash).
    fn path(path: &[u8]) -> Vec<u8>;

    /// Connects and logs in.
    async fn connect(&self, address: &Address) -> Result<Self::Connection, Failure>;

    /// The entries of a folder, in any order, except itself and its parent.
    async fn list(&self, connection: &mut Self::Connection, folder: &[u8]) -> Result<Vec<Entry>, Failure>;

    /// The facts of `path`; links are followed.
    async fn stat(&self, connection: &mut Self::Connection, path: &[u8]) -> Result<Facts, Failure>;

    /// Opens a file, and returns its current facts.
    async fn open(&self, connection: &mut Self::Connection, path: &[u8]) -> Result<(Facts, Self::Opened), Failure>;

    /// Reads from `piece.at()` to `piece.end()` (or to the end of the file) and closes the file. An early end is no
    /// failure: the caller notices it.
    async fn read(
        &self,
        connection: &mut Self::Connection,
        opened: Self::Opened,
        path: &[u8],
        piece: &mut Piece<'_>,
    ) -> Result<(), Failure>;
}

/// Settings that all protocols have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// How many units are read at once.
    pub(crate) connections: usize,
    pub(crate) connect_timeout: Duration,
    /// How long the server may be silent.
    pub(crate) timeout: Duration,
    pub(crate) policy: Policy,
}

/// A failure, with what it implies.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) fault: Fault,
    /// Whether the name does not exist.
    pub(crate) absent: Absence,
    /// Whether the connection can still be used: the server has answered, and nothing is in flight.
    pub(crate) intact: bool,
}

/// Whether a failure means that the name does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Absence {
    No,
    /// The server does not distinguish absence from missing rights.
    Perhaps,
    Yes,
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Failure { fault, absent: Absence::No, intact: false }
    }
}

/// The known facts of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) kind: Kind,
    pub(crate) size: Option<u64>,
    /// Time of the last change, in milliseconds since 1970-01-01 UTC; only if exact to the second.
    pub(crate) modified: Option<i64>,
}

impl Facts {
    /// The version, if both size and time are known.
    pub(crate) fn etag(&self) -> Option<String> {
        Some(format!("{}-{}", self.size?, self.modified?))
    }
}

/// The kind of what is under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Folder,
    /// A link to an unknown kind.
    Link,
    Other,
}

/// A name in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    pub(crate) facts: Facts,
}

/// Checks a pattern of URLs for lints: its braces, the first URL, and its wildcards.
pub(crate) fn check<P: Protocol>(pattern: &str) -> Result<(), SpecFault> {
    crate::pattern::check(pattern)?;
    let first = crate::pattern::expand(pattern).ok().and_then(|mut urls| urls.next()).unwrap_or_default();
    let fault = |what: &str, hint: &str| Err(SpecFault::new("", what).hint(hint));
    match address::pattern(&first, P::SCHEMES) {
        Ok(address::Pattern::One(_)) => Ok(()),
        Ok(address::Pattern::Many(_, path)) => match crate::file::glob::check(&path) {
            Ok(()) => Ok(()),
            Err(what) => fault(&what, "to mean the character itself, write %5B"),
        },
        Err(error) => fault(error.what(), error.hint_text().unwrap_or(&format!("write {}://HOST/PATH", P::NAME))),
    }
}

/// Files on servers that speak `P`, read with one set of settings.
#[derive(Debug)]
pub(crate) struct Remote<P: Protocol>(Arc<Shared<P>>);

#[derive(Debug)]
struct Shared<P: Protocol> {
    spec: P::Spec,
    /// Created at the first use, which reads the secrets. Connections live on one runtime.
    server: Mutex<Option<(Id, Arc<Server<P>>)>>,
}

impl<P: Protocol> Shared<P> {
    fn known(&self, runtime: Id) -> Option<Arc<Server<P>>> {
        let known = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().filter(|(known, _)| *known == runtime).map(|(_, server)| Arc::clone(server))
    }

    async fn server(&self, io: &Handle) -> Result<Arc<Server<P>>> {
        if let Some(server) = self.known(io.id()) {
            return Ok(server);
        }
        let spec = self.spec.clone();
        let protocol = join(io.spawn_blocking(move || P::new(&spec))).await?;
        let mut shared = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        match &*shared {
            // Another task was faster.
            Some((known, server)) if *known == io.id() => Ok(Arc::clone(server)),
            _ => {
                let made = Arc::new(Server::new(protocol, P::settings(&self.spec)));
                *shared = Some((io.id(), Arc::clone(&made)));
                Ok(made)
            }
        }
    }
}

impl<P: Protocol> Remote<P> {
    /// A source with these settings. Does no I/O.
    pub(crate) fn new(spec: P::Spec) -> Self {
        Remote(Arc::new(Shared { spec, server: Mutex::new(None) }))
    }
}

#[async_trait]
impl<P: Protocol> Source for Remote<P> {
    fn name(&self) -> &'static str {
        P::NAME
    }

    fn medium(&self) -> &'static str {
        "network"
    }

    fn connections(&self) -> usize {
        P::settings(&self.0.spec).connections
    }

    fn list(&self, context: &SourceContext, pattern: &str) -> BoxStream<'static, Result<Unit>> {
        let (target, path) = match address::pattern(pattern, P::SCHEMES) {
            // As on the web, a name without wildcards is a unit without a request: a list of them costs nothing.
            Ok(address::Pattern::One(unit)) => return futures::stream::once(async { Ok(unit) }).boxed(),
            Ok(address::Pattern::Many(target, path)) => (target, path),
            Err(error) => return futures::stream::once(async { Err(error) }).boxed(),
        };
        let (sender, receiver) = mpsc::channel(FOUND_AHEAD);
        let (shared, io) = (Arc::clone(&self.0), context.io.clone());
        let work = context.io.spawn(async move {
            let walked = match shared.server(&io).await {
                Ok(server) => walk::walk(&server, &target, &path, &sender).await,
                Err(error) => Err(error),
            };
            if let Err(error) = walked {
                // The receiver has gone if this fails.
                let _ = sender.send(Err(error)).await;
            }
        });
        let stop = Stop(work.abort_handle());
        futures::stream::unfold((receiver, stop), |(mut receiver, stop)| async {
            let unit = receiver.recv().await?;
            Some((unit, (receiver, stop)))
        })
        .boxed()
    }

    async fn open(&self, context: &SourceContext, unit: &Unit) -> Result<ByteStream> {
        Ok(self.open_known(context, unit).await?.content.into_stream())
    }

    async fn open_known(&self, context: &SourceContext, unit: &Unit) -> Result<OpenedUnit> {
        let target = Target::parse(&unit.uri, P::SCHEMES)?;
        let server = self.0.server(&context.io).await?;
        let (sender, opened) = oneshot::channel();
        let unit = unit.clone();
        let stream = feed(context, P::WINDOW, move |feeder| async move {
            Transfer::new(server, target, unit, Output::Stream(feeder, Some(sender))).run().await
        });
        match opened.await {
            // Without an etag, two ranges could come from two versions unnoticed.
            Ok(known) => known.map(|unit| OpenedUnit { ranges: unit.etag.is_some(), unit, content: stream.into() }),
            Err(_) => Err(interrupted()),
        }
    }

    async fn read_range(&self, context: &SourceContext, unit: &Unit, range: Range<u64>) -> Result<Option<Bytes>> {
        if range.start >= range.end {
            return Ok(Some(Bytes::new()));
        }
        let target = Target::parse(&unit.uri, P::SCHEMES)?;
        let server = self.0.server(&context.io).await?;
        let part = Unit { range: Some(range), ..unit.clone() };
        let transfer = Transfer::new(server, target, part, Output::Buffer(BytesMut::new()));
        on_io(context, transfer.collect()).await.map(Some)
    }

    async fn look(&self, context: &SourceContext, unit: &Unit) -> Result<Unit> {
        if unit.size.is_some() && unit.etag.is_some() {
            return Ok(unit.clone());
        }
        let target = Target::parse(&unit.uri, P::SCHEMES)?;
        let server = self.0.server(&context.io).await?;
        let unit = unit.clone();
        on_io(context, async move {
            let facts = server.stat(&target.address, &unit.uri, &P::path(&target.path)).await?;
            transfer::is_file(&facts, &unit.uri)?;
            Ok(Unit { size: facts.size, etag: facts.etag(), ..unit })
        })
        .await
    }
}
