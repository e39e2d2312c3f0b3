//! The lines of the reject log.

use std::collections::{BTreeMap, HashMap};

use millstream_core::reject::{RawText, Rejected};
use millstream_core::sink::Chunk;
use serde::{Deserialize, Serialize};

/// The version of the files. Increase it when older programs would misread them.
pub(super) const VERSION: u64 = 1;

/// A chunk on its way into a sink.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChunkId {
    /// The sink.
    pub sink: String,
    /// The name of the unit in the ledger.
    pub unit: String,
    /// The number of the chunk.
    pub number: u64,
}

impl ChunkId {
    /// The id of `chunk` on its way into `sink`.
    pub fn new(sink: &str, chunk: &Chunk) -> Self {
        ChunkId { sink: sink.to_owned(), unit: chunk.unit.clone(), number: chunk.number }
    }
}

/// The delivery of chunks to which rejects belong; 0 if they are not delivered yet.
pub type DeliveryNumber = u64;

/// A reject in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RejectLine {
    /// What is known of it.
    #[serde(flatten)]
    pub rejected: Rejected,
    /// The text of its file before the first record, where that says how the records are to be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<RawText>,
    /// The chunk that it belongs to, if its load goes chunk by chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<ChunkId>,
    /// The delivery of that chunk.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub delivery: DeliveryNumber,
    /// Of a reject that was loaded again, and failed again: which one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<Again>,
}

/// A reject that was loaded again, and failed again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Again {
    /// Its id.
    pub id: String,
    /// The sink that it was loaded into.
    pub sink: String,
    /// How many times rejects had been loaded into the sink before.
    pub round: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What the checks of an entry have counted of some of its rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckedRows {
    /// The entry: its name, and for a sink `sink` before it.
    pub entry: String,
    /// How many rows.
    pub rows: u64,
    /// How many of them break the rule of each check, if any do.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub broken: BTreeMap<String, u64>,
}

/// What checks have counted of the rows of some chunks, which were delivered together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckedLine {
    /// By entries.
    pub checked: Vec<CheckedRows>,
    /// The chunks.
    pub chunks: Vec<ChunkId>,
    /// Their delivery.
    pub delivery: DeliveryNumber,
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// A delivery of this chunk has none.
    Without {
        /// The chunk.
        without: ChunkId,
        /// The delivery.
        delivery: DeliveryNumber,
    },
    /// What checks have counted of a delivery.
    Checked(CheckedLine),
    /// Loads start again in this run: what earlier ones have rejected on the way, and is not tied to a chunk, does not
    /// count.
    Anew {
        /// The sources that they read, and their sinks.
        anew: Vec<String>,
    },
    /// The first line of a file.
    Version {
        /// Its version.
        version: u64,
        /// Empty: programs that do not know this line read it as an empty [`Line::Came`].
        came: HashMap<String, u64>,
    },
    /// How many records have come to entries of the job so far.
    Came {
        /// By the names of the entries.
        came: HashMap<String, u64>,
    },
    /// A reject.
    Reject(Box<RejectLine>),
}

impl Line {
    /// What checks have counted, if it says that.
    pub(super) fn checked(&self) -> Option<&CheckedLine> {
        match self {
            Line::Checked(checked) => Some(checked),
            _ => None,
        }
    }
}

/// A reject that counts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Kept {
    /// Its id: `RUN/NUMBER`; in a later piece of the log, `RUN.PIECE/NUMBER`.
    pub id: String,
    /// What is known of it.
    #[serde(flatten)]
    pub line: RejectLine,
    /// Whether it was loaded later.
    pub replayed: bool,
    /// The chunk of the first reject that its delivery has of the same unit: targets note the rejects of a unit by it.
    #[serde(skip)]
    pub noted_by: Option<ChunkId>,
}

/// What earlier runs have left.
#[derive(Debug, Default)]
pub struct Earlier {
    /// Rejects that count.
    pub kept: Vec<Kept>,
    /// How many records had come to entries of the job.
    pub came: HashMap<String, u64>,
    /// What checks have counted of deliveries that no later one has replaced.
    pub checked: Vec<CheckedLine>,
}
