//! Charges the decoding of a file to the budget, and limits the size of its unpacked pages.
//!
//! ```text
//!  headers of the pages ─▶ admit: what the next batch takes, waited for ─▶ page by page: charged, then unpacked
//! ```
//! A page is charged as long as a value points into it; other memory of a batch, until the next batch is requested.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use millstream_core::codec::Limits;
use millstream_core::format::ParseRequest;
use millstream_core::spec::Size;
use millstream_core::{Budget, Error, ErrorKind, Reservation};

/// So many bytes of a batch are charged even without room: other steps then have less.
const SMALL: usize = 8 << 20;

/// How long to wait for room while no memory is taken or freed. Its holder may be waiting for these rows forever; or a
/// sink may be waiting for a lock or its server, which is no reason to fail.
const PATIENCE: Duration = Duration::from_secs(300);

/// The same if there would be no room even if all others freed their memory: only the limit can change.
const BRIEF_PATIENCE: Duration = Duration::from_secs(5);

/// `limits: {ratio: …}` ignores pages that unpack to less: they are charged one by one, and valid pages of a few bytes
/// have thousands of equal values.
const RATIO_APPLIES_FROM: u64 = 16 << 20;

/// Charges the decoding of one file.
#[derive(Debug)]
pub struct Meter {
    budget: Option<Arc<Budget>>,
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Reserved for the batch that is being decoded, and not used yet.
    admitted: Option<Reservation>,
    /// Bytes charged to the batch without room.
    forced: usize,
    /// Reservations until the next batch is requested.
    batch: Vec<Reservation>,
    /// Bytes of the chunks of the open row group.
    chunks: usize,
    /// Unpacked bytes of the pages that were read.
    unpacked: u64,
    /// The error, of which the parquet crate only has the text.
    fault: Option<Error>,
}

impl Meter {
    /// The meter of one file.
    pub fn new(request: &ParseRequest) -> Arc<Self> {
        Arc::new(Meter { budget: request.budget.clone(), limits: request.limits.clone(), state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The whole memory in bytes.
    pub fn most(&self) -> u64 {
        self.budget.as_ref().map_or(u64::MAX, |budget| budget.limit() as u64)
    }

    /// Begins the next batch, and frees the memory of the last one.
    pub fn begin(&self) {
        let mut state = self.state();
        state.admitted = None;
        state.forced = 0;
        state.batch.clear();
    }

    /// Notes that the open row group's chunks take `bytes`, which only the end of this reader frees.
    pub fn opened(&self, bytes: usize) {
        self.begin();
        self.state().chunks = bytes;
    }

    /// How long to wait for `bytes`.
    fn patience(&self, budget: &Budget, bytes: usize) -> Duration {
        if bytes as u64 > budget.process() {
            return Duration::ZERO;
        }
        let state = self.state();
        let batch: usize = state.batch.iter().chain(&state.admitted).map(Reservation::bytes).sum();
        let own = state.chunks.saturating_add(state.forced).saturating_add(batch);
        if own.saturating_add(bytes) > budget.limit() { BRIEF_PATIENCE } else { PATIENCE }
    }

    /// Waits until the `bytes` of the next batch are free. `false` if they do not become free.
    pub async fn admit(&self, bytes: usize) -> bool {
        self.begin();
        let Some(budget) = self.budget.as_ref().filter(|_| bytes > SMALL) else { return true };
        let admitted = budget.reserve_within(bytes, self.patience(budget, bytes)).await;
        let enough = admitted.is_some();
        self.state().admitted = admitted;
        enough
    }

    /// Charges `bytes`; `None` if there is no room for them. It waits for bytes that could not be known before.
    fn charge(&self, bytes: usize) -> Option<Option<Reservation>> {
        let Some(budget) = &self.budget else { return Some(None) };
        let mut state = self.state();
        if let Some(admitted) = &mut state.admitted
            && admitted.bytes() >= bytes
        {
            return Some(Some(admitted.split(bytes)));
        }
        if state.forced + bytes <= SMALL {
            state.forced += bytes;
            return Some(Some(Reservation::of_taken(budget, bytes)));
        }
        drop(state);
        budget.reserve_blocking(bytes, self.patience(budget, bytes)).map(Some)
    }

    /// Charges `bytes` of `what` as long as the result lives.
    pub fn hold(&self, bytes: usize, what: &str) -> Result<Held, Error> {
        self.charge(bytes).map(Held).ok_or_else(|| self.too_large(bytes as u64, what))
    }

    /// Charges `bytes` of `what` until the next batch is requested.
    pub fn hold_for_batch(&self, bytes: usize, what: &str) -> Result<(), Error> {
        let charged = self.charge(bytes).ok_or_else(|| self.too_large(bytes as u64, what))?;
        self.state().batch.extend(charged);
        Ok(())
    }

    /// The error if there is no room for `bytes` of `what`.
    pub fn too_large(&self, bytes: u64, what: &str) -> Error {
        let (used, limit) = self.budget.as_ref().map_or((0, 0), |budget| (budget.used(), budget.limit()));
        let free = Size(limit.saturating_sub(used) as u64);
        let limit = Size(limit as u64);
        Error::new(
            ErrorKind::Memory,
            format!("{} of memory needed for {what}, and {free} of {limit} are free", Size(bytes)),
        )
        .hint("raise `--memory`, or read fewer columns")
    }

    /// Counts a page of `stored` bytes that unpacks to `unpacked`, and checks the limits.
    pub fn count(&self, stored: u64, unpacked: u64, what: &str) -> Result<(), Error> {
        let mut state = self.state();
        state.unpacked = state.unpacked.saturating_add(unpacked);
        if let Some(most) = self.limits.bytes
            && state.unpacked > most.0
        {
            return Err(Error::refused(format!("the file unpacks to more than {} bytes, with {what}", most.0))
                .hint("raise `limits: {bytes: …}` of the source if you trust the data"));
        }
        let ratio = self.limits.ratio;
        if unpacked > RATIO_APPLIES_FROM && unpacked / stored.max(1) > ratio {
            let (stored, unpacked) = (Size(stored), Size(unpacked));
            return Err(Error::refused(format!(
                "{what} unpacks from {stored} to {unpacked}, more than {ratio} times its size: it may be a bomb"
            ))
            .hint("raise `limits: {ratio: …}` of the source if you trust the data"));
        }
        Ok(())
    }

    /// Keeps `error`, the cause of a failed decoding.
    pub fn fail(&self, error: Error) {
        self.state().fault.get_or_insert(error);
    }

    /// Why decoding failed, if known.
    pub fn fault(&self) -> Option<Error> {
        self.state().fault.take()
    }
}

/// Memory that is charged.
#[derive(Debug)]
pub struct Held(Option<Reservation>);

/// Bytes that are charged as long as any part of them is used.
struct HeldBytes {
    bytes: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Held {
    /// `bytes`, with this charge on them.
    pub fn on(self, bytes: Bytes) -> Bytes {
        match self.0 {
            None => bytes,
            Some(_) => Bytes::from_owner(HeldBytes { bytes, _held: self }),
        }
    }
}
