//! Reads the bytes of one unit, over as many connections as necessary.
//!
//! ```text
//!  open ──▶ size, time ── bytes 0…k ──✗ broken
//!  pause
//!  open ──▶ size, time: the same? ──▶ read from k ──▶ end
//!                       another? error
//! ```
//!
//! The version is identified by the size and the time of the last change, as far as the server gives them: a file that
//! is replaced by one of the same size within the same second is not noticed.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use millstream_core::{Error, Result, Unit};
use tokio::sync::oneshot;

use super::{Facts, Failure, Kind, Protocol, Server, Target};
use crate::feed::{Feeder, Room};
use crate::retry::{Fault, Tries};

/// Files up to this size are passed on in one piece.
pub(crate) const SMALL: u64 = 512 << 10;

/// Where the bytes go.
pub(crate) enum Output {
    /// Into a stream; the sender gets the known facts of the unit once the stream begins, or the error.
    Stream(Feeder, Option<oneshot::Sender<Result<Unit>>>),
    /// Into one buffer.
    Buffer(BytesMut),
}

/// Room for bytes that are about to arrive.
pub(crate) enum Space {
    Stream(Room),
    Buffer,
}

/// The known version of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Version {
    size: Option<u64>,
    modified: Option<i64>,
}

/// The transfer of a unit.
pub(crate) struct Transfer<P: Protocol> {
    server: Arc<Server<P>>,
    target: Target,
    unit: Unit,
    output: Output,
    /// The next byte of the file.
    at: u64,
    /// The end of the requested range, once known.
    end: Option<u64>,
    version: Option<Version>,
    tries: Tries,
}

/// The destination of a protocol's read.
pub(crate) struct Piece<'a> {
    output: &'a mut Output,
    at: &'a mut u64,
    end: Option<u64>,
    tries: &'a mut Tries,
    /// A small file's pieces, until it is whole.
    gathered: Option<Vec<Bytes>>,
}

impl<P: Protocol> Transfer<P> {
    /// A transfer of the unit's range, or of all of it.
    pub(crate) fn new(server: Arc<Server<P>>, target: Target, unit: Unit, output: Output) -> Self {
        let (at, end) = unit.range.as_ref().map_or((0, None), |range| (range.start, Some(range.end)));
        let tries = Tries::new(server.settings.policy);
        Transfer { server, target, unit, output, at, end, version: None, tries }
    }

    /// Runs to the end. An error before the first byte goes to the caller that opens the unit.
    pub(crate) async fn run(mut self) -> Result<()> {
        match self.repeat().await {
            Err(error) => match self.waiting() {
                // The receiver may be gone.
                Some(waiting) => waiting.send(Err(error)).or(Ok(())),
                None => Err(error),
            },
            Ok(()) => Ok(()),
        }
    }

    /// The sender to the caller that opens the unit.
    fn waiting(&mut self) -> Option<oneshot::Sender<Result<Unit>>> {
        match &mut self.output {
            Output::Stream(_, waiting) => waiting.take(),
            Output::Buffer(_) => None,
        }
    }

    /// Runs to the end and returns the bytes.
    pub(crate) async fn collect(mut self) -> Result<Bytes> {
        self.repeat().await?;
        match self.output {
            Output::Buffer(buffer) => Ok(buffer.freeze()),
            Output::Stream(..) => Ok(Bytes::new()),
        }
    }

    async fn repeat(&mut self) -> Result<()> {
        loop {
            self.tries.begin();
            let before = self.at;
            let result = match self.server.lease(&self.target.address).await {
                Ok(mut lease) => {
                    let result = self.attempt(&mut lease.connection).await;
                    // A connection that has transferred bytes was alive.
                    lease.kept &= self.at == before;
                    Arc::clone(&self.server).settle(&self.target.address, lease, result)
                }
                Err(failure) => Some(Err(failure)),
            };
            match result {
                Some(Ok(())) => return Ok(()),
                None => self.tries.uncount(),
                Some(Err(failure)) => {
                    let pause =
                        self.tries.failed(failure.fault).map_err(|error| error.in_unit(&self.unit.uri, None))?;
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// Opens the file and reads as much as possible.
    async fn attempt(&mut self, connection: &mut P::Connection) -> Result<(), Failure> {
        let server = Arc::clone(&self.server);
        let path = P::path(&self.target.path);
        let (facts, opened) = server.protocol.open(connection, &path).await?;
        if let Err(fault) = self.accept(&facts) {
            return Err(fault.into());
        }
        self.opened(&facts);
        let small = self.end.is_some_and(|end| end.saturating_sub(self.at) <= SMALL);
        let mut piece = Piece {
            output: &mut self.output,
            at: &mut self.at,
            end: self.end,
            tries: &mut self.tries,
            gathered: small.then(Vec::new),
        };
        let result = server.protocol.read(connection, opened, &path, &mut piece).await;
        piece.finish().await;
        result?;
        match self.end {
            Some(end) if self.at < end => {
                Err(Fault::transient(format!("the body ended at byte {} of {end}", self.at)).into())
            }
            _ => Ok(()),
        }
    }

    /// Checks that the file is still the version that was listed and begun, and has the requested bytes.
    fn accept(&mut self, facts: &Facts) -> Result<(), Fault> {
        if let Some((what, hint)) = no_file(facts, &self.unit.uri) {
            return Err(Fault::permanent(what).hint(hint));
        }
        let found = Version { size: facts.size, modified: facts.modified };
        match &self.version {
            Some(known) if !known.is(&found) => return Err(changed("while it was read")),
            Some(_) => return Ok(()),
            None => {}
        }
        let listed = Version { size: self.unit.size, modified: self.unit.modified };
        let same_etag = match (&self.unit.etag, facts.etag()) {
            (Some(listed), Some(found)) => *listed == found,
            _ => true,
        };
        if !same_etag || !listed.is(&found) {
            return Err(changed("since it was listed"));
        }
        self.version = Some(found);
        match (self.end, facts.size) {
            (Some(end), Some(size)) if end > size => {
                return Err(Fault::permanent(format!(
                    "bytes {} to {end} were requested from an object of {size} bytes",
                    self.at
                ))
                .hint("the object has become shorter, or what names the range is wrong"));
            }
            (None, Some(size)) => self.end = Some(size),
            _ => {}
        }
        Ok(())
    }

    /// Reports the opened unit to the caller that opens it.
    fn opened(&mut self, facts: &Facts) {
        if let Some(waiting) = self.waiting() {
            let listed = &self.unit;
            let _ = waiting.send(Ok(Unit {
                size: facts.size.or(listed.size),
                etag: facts.etag().or_else(|| listed.etag.clone()),
                modified: facts.modified.or(listed.modified),
                ..listed.clone()
            }));
        }
    }
}

/// The fault of a file that has changed.
pub(crate) fn changed(when: &str) -> Fault {
    Fault::permanent(format!("the object has changed {when}")).hint("run again when nothing writes to it")
}

/// The message and hint for a path that is no file.
fn no_file(facts: &Facts, uri: &str) -> Option<(&'static str, String)> {
    match facts.kind {
        Kind::Folder => {
            let shown = millstream_core::redact::url(uri);
            let hint = format!("to read all files below it, add /**: {}/**", shown.trim_end_matches('/'));
            Some(("this is a folder, not a file", hint))
        }
        Kind::Other => Some(("this is not a file", "pipes and devices on a server cannot be read".into())),
        Kind::File | Kind::Link => None,
    }
}

/// Fails if it is no file.
pub(crate) fn is_file(facts: &Facts, uri: &str) -> Result<()> {
    match no_file(facts, uri) {
        Some((what, hint)) => Err(Error::refused(what).in_unit(uri, None).hint(hint)),
        None => Ok(()),
    }
}

impl Version {
    /// Whether `other` can be the same version, as far as both are known.
    fn is(&self, other: &Version) -> bool {
        fn agree<T: PartialEq>(one: Option<T>, other: Option<T>) -> bool {
            one.is_none() || other.is_none() || one == other
        }
        agree(self.size, other.size) && agree(self.modified, other.modified)
    }
}

impl Piece<'_> {
    /// The next byte of the file.
    pub(crate) fn at(&self) -> u64 {
        *self.at
    }

    /// The end of the requested range; unknown if the server does not give sizes.
    pub(crate) fn end(&self) -> Option<u64> {
        self.end
    }

    /// Whether the file is passed on in one piece.
    pub(crate) fn is_small(&self) -> bool {
        self.gathered.is_some()
    }

    /// Passes on the next bytes. Waits until there is room.
    pub(crate) async fn take(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        self.progressed(bytes.len());
        match &mut self.gathered {
            Some(gathered) => gathered.push(bytes),
            None => {
                let space = self.room(bytes.len()).await;
                self.hand_over(bytes, space);
            }
        }
    }

    /// Waits for room for `bytes`.
    pub(crate) async fn room(&self, bytes: usize) -> Space {
        match &*self.output {
            Output::Stream(feeder, _) => Space::Stream(feeder.room(bytes).await),
            Output::Buffer(_) => Space::Buffer,
        }
    }

    /// Room for `bytes` if there is some.
    pub(crate) fn spare(&self, bytes: usize) -> Option<Space> {
        match &*self.output {
            Output::Stream(feeder, _) => feeder.spare(bytes).map(Space::Stream),
            Output::Buffer(_) => Some(Space::Buffer),
        }
    }

    /// Passes on the next bytes, for which there is room. Not for small files.
    pub(crate) fn put(&mut self, bytes: Bytes, space: Space) {
        self.progressed(bytes.len());
        self.hand_over(bytes, space);
    }

    fn progressed(&mut self, bytes: usize) {
        *self.at += bytes as u64;
        self.tries.progressed(bytes);
    }

    fn hand_over(&mut self, bytes: Bytes, space: Space) {
        match (&mut *self.output, space) {
            (Output::Stream(feeder, _), Space::Stream(room)) => feeder.send(bytes, room),
            (Output::Buffer(buffer), _) => buffer.extend_from_slice(&bytes),
            // Only `room` and `spare` make space, for this output.
            (Output::Stream(..), Space::Buffer) => {}
        }
    }

    /// Passes on the gathered bytes.
    async fn finish(mut self) {
        let Some(mut gathered) = self.gathered.take() else { return };
        let bytes = if gathered.len() == 1 { gathered.swap_remove(0) } else { gathered.concat().into() };
        if !bytes.is_empty() {
            let space = self.room(bytes.len()).await;
            self.hand_over(bytes, space);
        }
    }
}
