//! What is kept of a partition: where it stands, and which file has brought it there.

use std::time::Duration;

use millstream_core::positions::{PartitionPosition, Position};
use millstream_core::store::Stored;
use millstream_core::{Error, Result, clock};
use serde::{Deserialize, Serialize};

/// Counts up with every change of [`PositionRecord`] and [`Claim`].
const VERSION: u32 = 1;

/// Where a partition stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PositionRecord {
    version: u32,
    /// The name of the place.
    pub(super) place: String,
    /// How often the position was moved: 1 when it was new.
    pub(super) moves: u64,
    /// What the queue has noted.
    pub(super) state: String,
    /// The process that has moved it.
    pub(super) owner: String,
    /// The attempt by which that was done: no other has the same.
    pub(super) attempt: String,
    /// When it was moved, in milliseconds since 1970.
    pub(super) moved: u64,
    /// The file with the rows before the position; none if there were no rows.
    pub(super) file: Option<EpochFile>,
}

/// A file of an epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EpochFile {
    /// Its path below the folder of the target.
    pub(super) path: String,
    /// Its size.
    pub(super) bytes: u64,
    /// Where it is before it appears; none once it is known to have appeared.
    pub(super) staged: Option<String>,
}

/// A record as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) record: PositionRecord,
    /// The version of the object, if it is one.
    pub(super) stored: Option<Stored>,
}

/// What moves a position.
pub(super) struct By<'a> {
    pub(super) owner: &'a str,
    pub(super) attempt: &'a str,
    pub(super) file: Option<EpochFile>,
}

impl PositionRecord {
    /// The record that stands behind `before` moves.
    pub(super) fn new(place: &str, before: u64, state: &str, by: By<'_>) -> Self {
        PositionRecord {
            version: VERSION,
            place: place.to_owned(),
            moves: before + 1,
            state: state.to_owned(),
            owner: by.owner.to_owned(),
            attempt: by.attempt.to_owned(),
            moved: clock::now(),
            file: by.file,
        }
    }

    pub(super) fn partition(&self) -> Result<PartitionPosition> {
        PartitionPosition::of(&self.place, &self.state)
    }

    pub(super) fn position(&self) -> Position {
        Position {
            place: self.place.clone(),
            version: self.moves,
            owner: self.owner.clone(),
            state: self.state.clone(),
            idle: Duration::from_millis(clock::now().saturating_sub(self.moved)),
        }
    }

    /// Where its file is before it appears, if that has to be seen to.
    pub(super) fn staged(&self) -> Option<&EpochFile> {
        self.file.as_ref().filter(|file| file.staged.is_some())
    }

    /// Whether its file is staged under this name.
    pub(super) fn names(&self, staged: &str) -> bool {
        self.staged().is_some_and(|file| file.staged.as_deref() == Some(staged))
    }

    /// The same, once its file has appeared.
    pub(super) fn settled(&self) -> Self {
        let file = self.file.clone().map(|file| EpochFile { staged: None, ..file });
        PositionRecord { file, ..self.clone() }
    }

    pub(super) fn to_text(&self) -> Result<Vec<u8>> {
        to_text(self)
    }

    /// The record that is kept at `place`.
    pub(super) fn of_text(text: &[u8], place: &str) -> Result<Self> {
        of_text(text, place, "how far a partition is in the files beside it")
    }
}

/// Whose the files of a target are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claim {
    version: u32,
    /// The name of the load.
    pub(super) load: String,
    /// For messages.
    pub(super) sink: String,
    pub(super) queue: String,
    pub(super) group: String,
}

impl Claim {
    pub(super) fn new(load: &str, sink: &str, queue: &str, group: &str) -> Self {
        let [load, sink, queue, group] = [load, sink, queue, group].map(str::to_owned);
        Claim { version: VERSION, load, sink, queue, group }
    }

    pub(super) fn to_text(&self) -> Result<Vec<u8>> {
        to_text(self)
    }

    /// The claim that is kept at `place`.
    pub(super) fn of_text(text: &[u8], place: &str) -> Result<Self> {
        of_text(text, place, "which job writes the files beside it")
    }
}

fn to_text(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|cause| Error::internal("a record cannot be written").cause(cause))
}

/// Reads what is kept at `place`. `says` is what it says.
fn of_text<T: for<'de> Deserialize<'de>>(text: &[u8], place: &str, says: &str) -> Result<T> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let bad = |cause| {
        Error::refused(format!("{place} is damaged, or was not written by Millstream"))
            .cause(cause)
            .text(text)
            .hint(format!("it says {says}: restore it from a backup, or write to other files"))
    };
    let Version { version } = serde_json::from_slice(text).map_err(bad)?;
    match version > VERSION {
        true => Err(Error::newer(place, version, VERSION)),
        false => serde_json::from_slice(text).map_err(bad),
    }
}
