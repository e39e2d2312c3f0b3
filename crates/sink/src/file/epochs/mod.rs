//! Files of queues: each epoch makes one of its own, and none is ever written twice.
//!
//! A queue with partitions is loaded exactly once. Each partition makes a file of each epoch, which is named by the
//! first offset in it, and has one record of where it stands, beside the files, which only its next version replaces:
//!
//! ```text
//!  rows ─▶ staged file, which nobody sees ─┐
//!  record N: the position is 400 ──────────┴─▶ record N + 1: 520, by the staged file ─▶ the file 400 appears
//!                                              (only if N is still the last one)
//! ```
//! The record commits: of those who believe to have the partition only one can write it. Who finds a record whose file
//! has not appeared completes that, whoever has written it. Other queues are loaded at least once (`unique.rs`).
//!
//! `keeper.rs` is the trait of what keeps records and files: `in_folder.rs` and `in_bucket.rs`.

mod delivery;
#[cfg(test)]
mod fault_tests;
mod in_bucket;
mod in_folder;
mod keeper;
mod partitions;
mod record;
#[cfg(test)]
mod tests;
mod unique;
mod writing;

use std::sync::Arc;

use millstream_core::Result;
use millstream_core::epochs::{EpochTarget, QueueLoad};
use millstream_core::sink::LoadContext;
use millstream_core::source::SourceContext;
use millstream_core::store::Store;

use self::in_bucket::InBucket;
use self::in_folder::InFolder;
use self::keeper::Keeper;
use self::partitions::PartitionFiles;
use self::unique::UniqueFiles;
use self::writing::Files;
use super::naming::Target;
use crate::encode::Encoding;

/// Opens the files of `target`, in `store` if it is in one, for the load of a queue.
///
/// # Errors
/// If they belong to another load, or if the place cannot keep two processes from writing the same file.
pub(super) async fn open(
    target: &Target,
    store: Option<&Arc<dyn Store>>,
    encoding: &Encoding,
    load: &QueueLoad,
    context: LoadContext,
    network: SourceContext,
) -> Result<EpochTarget> {
    let keeper: Arc<dyn Keeper> = match store {
        None => Arc::new(InFolder::new(target, &load.owner)),
        Some(store) => Arc::new(InBucket::new(Arc::clone(store), target, &load.owner, network)),
    };
    let files = Arc::new(Files::new(keeper, target, encoding, &load.owner, context));
    match load.queue.is_partitioned {
        true => Ok(EpochTarget::Once(PartitionFiles::open(files, load).await?)),
        false => Ok(EpochTarget::AtLeastOnce(UniqueFiles::open(files).await?)),
    }
}
