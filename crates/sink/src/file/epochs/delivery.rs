//! The rows of a partition on their way into a file.

use std::sync::Arc;

use arrow::array::RecordBatch;
use async_trait::async_trait;
use millstream_core::positions::Move;
use millstream_core::sink::{Accept, Delivered, Delivery, Refused};
use millstream_core::{Result, fail_point};

use super::partitions::{Made, Partitions};
use super::writing::Writing;

/// The rows of an epoch of a partition.
pub(super) struct PartitionDelivery {
    pub(super) partitions: Arc<Partitions>,
    pub(super) one: Move,
    /// The partition, and the path of the file; none if the position stands elsewhere.
    pub(super) at: Option<(u32, String)>,
    /// The file, once there are rows.
    pub(super) writing: Option<Writing>,
}

#[async_trait]
impl Delivery for PartitionDelivery {
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let Some((partition, path)) = &self.at else { return Ok(()) };
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let writing = match &mut self.writing {
            Some(writing) => writing,
            None => {
                let prefix = format!("{partition:05}-");
                self.writing.insert(Writing::begin(&self.partitions.files, &prefix, path).await?)
            }
        };
        writing.write(&batch).await
    }

    async fn commit_if(self: Box<Self>, accept: Accept) -> Result<Delivered> {
        let PartitionDelivery { partitions, one, writing, at } = *self;
        if at.is_none() {
            return partitions.elsewhere(&one).await.map(Delivered::Moved);
        }
        let (file, rows) = match writing {
            None => (None, 0),
            Some(writing) => {
                let (file, rows) = writing.finish().await?;
                (Some(file), rows)
            }
        };
        fail_point::pass("commit.before");
        if let Err(error) = accept(&Refused::default()) {
            partitions.discard(file).await;
            return Err(error);
        }
        match partitions.make(&one, file).await? {
            Made::Done => {}
            Made::Elsewhere => return partitions.elsewhere(&one).await.map(Delivered::Moved),
            Made::Unknown => return partitions.elsewhere(&one).await.map(Delivered::Unknown),
        }
        fail_point::pass("commit.after");
        Ok(Delivered::Written { rows, refused: Vec::new() })
    }
}
