//! A load that several processes share, the workers of a cluster: what each of them tells before it commits, and what
//! has come of it.
//!
//! ```text
//!  worker:       group ─▶ rows sent ─▶ keep ─▶ commit ─▶ committed
//!  coordinator:                        rejects in the log, counts open ─▶ counted, once
//! ```
//! What is kept of a delivery whose commit nobody has reported is open until the ledger is asked.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use millstream_core::Result;
use millstream_core::sink::{Chunk, WrittenChunks};
use millstream_state::rejects::{CheckedRows, RejectLine};
use serde::{Deserialize, Serialize};

use super::units::COMPLETE;
use crate::read::Filtered;
use crate::report::Tally;

/// A delivery that is about to be committed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KeptDelivery {
    /// A number that the worker uses once.
    pub number: u64,
    /// The sink.
    pub sink: String,
    /// The source that its records are of.
    pub source: String,
    /// The chunks and notes, as unit and number.
    pub chunks: Vec<(String, u64)>,
    /// What becomes of its records.
    pub tally: Tally,
    /// How many of those that are refused a parser has refused.
    pub by_parser: u64,
    /// How many rows were sent to the target.
    pub sent: u64,
    /// What filters have left out of units that are complete with it, by source: it is part of the tally.
    pub left_out: BTreeMap<String, Filtered>,
    /// What was refused.
    pub rejects: Vec<RejectLine>,
    /// What checks have counted.
    pub checked: Vec<CheckedRows>,
}

impl KeptDelivery {
    /// One that has nothing but `notes`.
    pub fn of_notes(sink: &str, source: &str, notes: Vec<Chunk>) -> Self {
        KeptDelivery {
            number: 0,
            sink: sink.to_owned(),
            source: source.to_owned(),
            chunks: notes.into_iter().map(|note| (note.unit, note.number)).collect(),
            tally: Tally::default(),
            by_parser: 0,
            sent: 0,
            left_out: BTreeMap::new(),
            rejects: Vec::new(),
            checked: Vec::new(),
        }
    }

    /// The chunks and notes.
    pub fn chunks(&self) -> impl Iterator<Item = Chunk> {
        self.chunks.iter().map(|(unit, number)| Chunk { unit: unit.clone(), number: *number })
    }

    /// The units that are complete with it.
    pub fn completes(&self) -> impl Iterator<Item = &str> {
        self.chunks.iter().filter(|(_, number)| *number == COMPLETE).map(|(unit, _)| unit.as_str())
    }

    /// Adds what filters have left out of a unit of `source`.
    pub fn leave_out(&mut self, source: &str, left_out: Filtered) {
        *self.left_out.entry(source.to_owned()).or_default() += left_out;
        self.tally.read += left_out.records;
        self.tally.filtered += left_out.records;
    }

    /// Whether the target has it.
    pub fn is_in(&self, written: &WrittenChunks) -> bool {
        self.chunks().all(|chunk| written.contains(&chunk))
    }
}

/// Keeps for a worker what has to be known before it commits.
pub trait Keeper: Debug + Send + Sync {
    /// A number for a delivery.
    fn number(&self) -> u64;

    /// Keeps what is known of a delivery. Returns when it is durable.
    ///
    /// # Errors
    /// If the delivery must not be committed.
    fn keep(&self, delivery: KeptDelivery) -> Result<()>;

    /// A delivery is committed.
    fn committed(&self, number: u64);

    /// A unit of `source` is being read, or is not any more.
    fn reading(&self, source: &str, uri: &str, is_read: bool);

    /// The unit of `source` that is noted as `unit` is at its end, and filters have left out so much of it.
    fn ended(&self, source: &str, unit: &str, left_out: Filtered);
}

/// The part of a load that a worker does: the units of a bundle.
#[derive(Clone)]
pub struct BundleLoad {
    /// Keeps what it rejects.
    pub keeper: Arc<dyn Keeper>,
    /// What is known to be written, if nothing of the units is; otherwise the ledger is asked.
    pub known: Option<WrittenChunks>,
}

/// What workers have done of a load.
#[derive(Debug, Default)]
pub struct ByWorkers {
    done: Mutex<Done>,
    /// What was written before they began.
    earlier: OnceLock<Arc<WrittenChunks>>,
}

/// The sums of what workers have committed.
#[derive(Debug, Default, Clone, Copy)]
pub struct Done {
    /// What has become of the records.
    pub tally: Tally,
    /// Chunks and notes.
    pub noted: u64,
    /// Units that they have read to their ends.
    pub units: u64,
}

impl ByWorkers {
    fn lock(&self) -> MutexGuard<'_, Done> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// They begin where so much is written.
    pub fn begin(&self, earlier: Arc<WrittenChunks>) {
        let _ = self.earlier.set(earlier);
    }

    /// Whether they have written `chunk`, which is in the target.
    pub fn have_written(&self, chunk: &Chunk) -> bool {
        self.earlier.get().is_some_and(|earlier| !earlier.contains(chunk))
    }

    /// Adds a delivery that is committed.
    pub fn add(&self, delivery: &KeptDelivery) {
        let mut done = self.lock();
        done.tally = done.tally.and(delivery.tally);
        done.noted += delivery.chunks.len() as u64;
        done.units += delivery.completes().count() as u64;
    }

    /// The sums.
    pub fn done(&self) -> Done {
        *self.lock()
    }
}
