//! What keeps the records and the files of epochs.

use async_trait::async_trait;
use millstream_core::Result;

use super::record::{EpochFile, Kept, Record};
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

    /// Makes ready what is needed.
    ///
    /// # Errors
    /// If the place does not keep two processes from writing the same record.
    async fn prepare(&self) -> Result<()>;

    /// Keeps `claim`, if no other is kept: the one that is kept now.
    async fn claim(&self, claim: Vec<u8>) -> Result<Vec<u8>>;

    /// The partitions that have records.
    async fn partitions(&self) -> Result<Vec<u32>>;

    /// The last record of a partition.
    async fn of(&self, partition: u32) -> Result<Option<Kept>>;

    /// Keeps `record` as the last one of its partition, behind `before`; `None` if another one is the last. If the
    /// error is [transient](millstream_core::ErrorKind::Transient), it is not known whether it is kept, and the call
    /// may be repeated.
    async fn keep(&self, partition: u32, record: Record, before: Option<&Kept>) -> Result<Option<Kept>>;

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

    /// The file of `kept`, the last record of its partition, has appeared: tidies up, and returns the record as it is
    /// kept then, if that is known.
    async fn settle(&self, partition: u32, kept: Kept) -> Option<Kept>;

    /// Removes all records.
    async fn forget(&self) -> Result<()>;
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
