//! Records and files of epochs in a bucket.
//!
//! ```text
//!  out/.a.csv.epochs/load.json     whose the files are
//!                    00003.json    the record of partition 3, replaced if it is still the one that was read
//!  out/a-00003-00000000000000000400.csv   uploaded before the record is written, and completed behind it
//! ```
//! A record names the upload until that is completed. Both steps can be repeated by anybody.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::source::SourceContext;
use millstream_core::store::{Brought, Store, Stored, Upload};
use millstream_core::{Error, Result};

use super::keeper::{EpochDraft, Keeper, Published, Unkept, hidden};
use super::record::{EpochFile, Kept, PositionRecord};
use crate::file::naming::Target;

/// The claim.
const CLAIM: &str = "load.json";

/// A place in a bucket.
pub(super) struct InBucket {
    store: Arc<dyn Store>,
    target: Target,
    owner: String,
    context: SourceContext,
}

impl InBucket {
    pub(super) fn new(store: Arc<dyn Store>, target: &Target, owner: &str, context: SourceContext) -> Self {
        InBucket { store, target: target.clone(), owner: owner.to_owned(), context }
    }

    /// The URI of something in the hidden folder.
    fn uri(&self, name: &str) -> String {
        self.target.uri(&format!("{}/{name}", hidden(&self.target)))
    }

    fn record(&self, partition: u32) -> String {
        self.uri(&format!("{partition:05}.json"))
    }

    async fn write_if(&self, uri: &str, content: Vec<u8>, before: Option<&Stored>) -> Result<Option<Stored>> {
        self.store.write_if(&self.context, uri, content.into(), before).await
    }

    /// Whether the store keeps conditions: those that know none of them write in any case.
    async fn keeps_conditions(&self, uri: &str) -> Result<bool> {
        let write = async |content: &str, before: Option<&Stored>| {
            self.write_if(uri, content.as_bytes().to_vec(), before).await
        };
        let Some(first) = write("1", None).await? else { return Ok(false) };
        let is_new_only = write("2", None).await?.is_none();
        let is_replaced = is_new_only && write("3", Some(&first)).await?.is_some();
        Ok(is_replaced && write("4", Some(&first)).await?.is_none())
    }

    fn brought(&self, file: &EpochFile) -> Brought {
        let uri = self.target.uri(&file.path);
        Brought { uri, bytes: file.bytes, ticket: file.staged.clone(), replaced: None }
    }
}

#[async_trait]
impl Keeper for InBucket {
    fn shown(&self) -> String {
        self.uri("")
    }

    fn shown_record(&self, partition: u32, _: &PositionRecord) -> String {
        self.record(partition)
    }

    async fn prepare(&self) -> Result<()> {
        let uri = self.uri(&format!("probe-{}", self.owner));
        let kept = self.keeps_conditions(&uri).await;
        let removed = self.store.remove(&self.context, &uri).await;
        match kept? {
            true => removed,
            false => Err(Error::refused(format!(
                "the store of {} ignores conditions of writing, so messages could be in two files",
                self.target.shown()
            ))
            .cause(
                "where a request says that an object has to be new or unchanged (`If-None-Match`, `If-Match`), the \
                 store has replaced another one",
            )
            .hint(
                "use a store that keeps these conditions for PUT, as S3, Google Cloud Storage, Azure and newer \
                 versions of MinIO do, or write to a folder",
            )),
        }
    }

    async fn claim(&self, claim: Vec<u8>) -> Result<Vec<u8>> {
        let uri = self.uri(CLAIM);
        if let Some(written) = self.write_if(&uri, claim, None).await? {
            return Ok(written.content.to_vec());
        }
        let there = self.store.read(&self.context, &uri).await?;
        let there = there.ok_or_else(|| Error::transient(format!("{uri} was removed a moment ago")))?;
        Ok(there.content.to_vec())
    }

    async fn partitions(&self) -> Result<Vec<u32>> {
        let folder = self.uri("");
        let names = self.store.names(&self.context, &folder).await?;
        let partition = |uri: &String| uri.strip_prefix(&folder)?.strip_suffix(".json")?.parse().ok();
        let mut partitions: Vec<u32> = names.iter().filter_map(partition).collect();
        partitions.sort_unstable();
        Ok(partitions)
    }

    async fn of(&self, partition: u32) -> Result<Option<Kept>> {
        let uri = self.record(partition);
        let Some(stored) = self.store.read(&self.context, &uri).await? else { return Ok(None) };
        Ok(Some(Kept { record: PositionRecord::of_text(&stored.content, &uri)?, stored: Some(stored) }))
    }

    /// Of several requests the last one may fail for good after an earlier one was taken, whose answer was lost.
    async fn keep(
        &self,
        partition: u32,
        record: &PositionRecord,
        before: Option<&Kept>,
    ) -> Result<Option<Kept>, Unkept> {
        let before = before.and_then(|kept| kept.stored.as_ref());
        let written = self.write_if(&self.record(partition), record.to_text()?, before).await;
        let written = written.map_err(Unkept::perhaps)?;
        Ok(written.map(|stored| Kept { record: record.clone(), stored: Some(stored) }))
    }

    async fn draft(&self, _: &str, path: &str) -> Result<Box<dyn EpochDraft>> {
        let upload = self.store.begin(&self.context, &self.target.uri(path)).await?;
        Ok(Box::new(Draft { path: path.to_owned(), upload }))
    }

    async fn discard(&self, file: &EpochFile) {
        // A bucket may have a rule for what is left.
        let _ = self.store.abort(&self.context, &self.brought(file)).await;
    }

    async fn exists(&self, path: &str) -> Result<bool> {
        Ok(self.store.length(&self.context, &self.target.uri(path)).await?.is_some())
    }

    async fn publish(&self, file: &EpochFile) -> Result<Published> {
        if file.staged.is_none() {
            return Ok(Published::Before);
        }
        let brought = self.brought(file);
        if self.store.complete(&self.context, &brought).await? {
            return Ok(Published::Now);
        }
        match self.store.length(&self.context, &brought.uri).await? {
            Some(bytes) if bytes == brought.bytes => Ok(Published::Before),
            _ => Ok(Published::Lost),
        }
    }

    /// Notes that the file has appeared, so that it may be removed later on.
    async fn settle(&self, partition: u32, kept: Kept) -> Option<Kept> {
        match kept.record.staged() {
            None => Some(kept),
            Some(_) => self.keep(partition, &kept.record.settled(), Some(&kept)).await.ok().flatten(),
        }
    }

    async fn forget(&self) -> Result<()> {
        for uri in self.store.names(&self.context, &self.uri("")).await? {
            self.store.remove(&self.context, &uri).await?;
        }
        Ok(())
    }
}

/// An object that is being uploaded.
struct Draft {
    path: String,
    upload: Box<dyn Upload>,
}

#[async_trait]
impl EpochDraft for Draft {
    async fn append(&mut self, bytes: Vec<u8>) -> Result<()> {
        self.upload.write(Bytes::from(bytes)).await
    }

    async fn finish(self: Box<Self>) -> Result<EpochFile> {
        let brought = self.upload.finish().await?;
        Ok(EpochFile { path: self.path, bytes: brought.bytes, staged: brought.ticket })
    }
}
