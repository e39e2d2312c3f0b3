//! What keeps the records and the files of epochs.

use async_trait::async_trait;
use millstream_core::{Error, Result};

use super::record::{EpochFile, Kept, PositionRecord};
use crate::file::naming::Target;

/// The name of the folder with what is kept beside the files of `target`.
pub(super) fn hidden(target: &Target) -> String {
    format!(".{}.epochs", target.key())
}

/// Keeps records and files. Calls may run side by side, in many processes.
#[async_trait]
pub(super) trait Keeper: Send + Sync {
    /// Where the records are, for messages.
    fn shown(&self) -> String;

    /// Where a record is, for messages.
    fn shown_record(&self, partition: u32, record: &PositionRecord) -> String;

    /// Makes ready what is needed.
    ///
    /// # Errors
    /// If the place does not keep two processes from writing the same record.
    async fn prepare(&self) -> Result<()>;

    /// Keeps `claim`, if no other is kept: the one that is kept now.
    async fn claim(&self, claim: Vec<u8>) -> Result<Vec<u8>>;

    /// The partitions that have records.
    async fn partitions(&self) -> Result<Vec<u32>>;

    /// The last record of a partition. Its file is not staged any more if it is noted that it has appeared.
    async fn of(&self, partition: u32) -> Result<Option<Kept>>;

    /// Keeps `record` as the last one of its partition, behind `before`; `None` if another one is the last. The call
    /// may be repeated: a record that was kept before counts as kept now.
    async fn keep(
        &self,
        partition: u32,
        record: &PositionRecord,
        before: Option<&Kept>,
    ) -> Result<Option<Kept>, Unkept>;

    /// Begins the file at `path`. `name` is unique.
    async fn draft(&self, name: &str, path: &str) -> Result<Box<dyn EpochDraft>>;

    /// Gives up a file that was staged. Does what it can.
    async fn discard(&self, file: &EpochFile);

    /// Whether there is a file at `path`.
    async fn exists(&self, path: &str) -> Result<bool>;

    /// Lets a file appear that was staged. Others may do the same.
    ///
    /// # Errors
    /// Also if another file is in the way.
    async fn publish(&self, file: &EpochFile) -> Result<Published>;

    /// The file of `kept`, the last record of its partition, has appeared: notes that durably, since others may move
    /// the file away from now on, and tidies up. Returns the record as it is kept then, if that is known.
    async fn settle(&self, partition: u32, kept: Kept) -> Option<Kept>;

    /// Removes all records.
    async fn forget(&self) -> Result<()>;
}

/// Why a record is not kept, as far as is known.
#[derive(Debug)]
pub(super) struct Unkept {
    pub(super) error: Error,
    /// Whether others may find it as the last one nevertheless, now or later: then its file must stay.
    pub(super) may_be_kept: bool,
}

impl Unkept {
    /// The record may be kept.
    pub(super) fn perhaps(error: Error) -> Self {
        Unkept { error, may_be_kept: true }
    }
}

/// Nothing was written.
impl From<Error> for Unkept {
    fn from(error: Error) -> Self {
        Unkept { error, may_be_kept: false }
    }
}

/// What has become of a staged file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Published {
    /// It has appeared.
    Now,
    /// It had appeared before.
    Before,
    /// It is neither staged nor there.
    Lost,
}

/// A file that is being staged. Dropped, nothing of it stays.
#[async_trait]
pub(super) trait EpochDraft: Send {
    /// Adds bytes.
    async fn append(&mut self, bytes: Vec<u8>) -> Result<()>;

    /// All bytes are there: makes them durable. From now on, dropping does not remove them.
    async fn finish(self: Box<Self>) -> Result<EpochFile>;
}
