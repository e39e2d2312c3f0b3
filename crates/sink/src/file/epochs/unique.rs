//! Files of a queue whose messages are shared by its readers, at least once: each epoch makes a file whose name no
//! other process and no other epoch has. If its messages come again, they make another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::RecordBatch;
use async_trait::async_trait;
use millstream_core::epochs::Epochs;
use millstream_core::positions::Move;
use millstream_core::sink::{Accept, Delivered, Delivery, Refused};
use millstream_core::{Error, Result, clock, fail_point};

use super::keeper::Published;
use super::writing::{Files, Writing};

/// The files of this process.
pub(super) struct UniqueFiles(Arc<Shared>);

struct Shared {
    files: Arc<Files>,
    /// Begins the names, so that those of later processes come behind those of earlier ones: milliseconds since 1970.
    began: u64,
    numbers: AtomicU64,
}

impl UniqueFiles {
    pub(super) async fn open(files: Arc<Files>) -> Result<Arc<Self>> {
        files.keeper.prepare().await?;
        Ok(Arc::new(UniqueFiles(Arc::new(Shared { files, began: clock::now(), numbers: AtomicU64::new(1) }))))
    }
}

#[async_trait]
impl Epochs for UniqueFiles {
    async fn delivery(&self, moves: Vec<Move>, _bad_rows: usize) -> Result<Box<dyn Delivery>> {
        if !moves.is_empty() {
            return Err(Error::internal("files of a queue without partitions were to keep positions"));
        }
        Ok(Box::new(UniqueDelivery { shared: Arc::clone(&self.0), writing: None }))
    }

    fn target(&self) -> String {
        format!("files {}", self.0.files.shown())
    }

    fn summary(&self, rows: u64) -> String {
        self.0.files.summary(rows)
    }
}

/// The rows of an epoch.
struct UniqueDelivery {
    shared: Arc<Shared>,
    /// The file, once there are rows.
    writing: Option<Writing>,
}

#[async_trait]
impl Delivery for UniqueDelivery {
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let Shared { files, began, numbers } = self.shared.as_ref();
        let writing = match &mut self.writing {
            Some(writing) => writing,
            None => {
                let number = numbers.fetch_add(1, Ordering::Relaxed);
                let path = files.path(&format!("{began:013}-{}-{number:08}", files.owner))?;
                self.writing.insert(Writing::begin(files, "", &path).await?)
            }
        };
        writing.write(&batch).await
    }

    async fn commit_if(self: Box<Self>, accept: Accept) -> Result<Delivered> {
        let files = &self.shared.files;
        let Some(writing) = self.writing else {
            accept(&Refused::default())?;
            return Ok(Delivered::Written { rows: 0, refused: Vec::new() });
        };
        let (file, rows) = writing.finish().await?;
        fail_point::pass("commit.before");
        let accepted = accept(&Refused::default()).map(drop);
        let published = match accepted {
            Ok(()) => files.keeper.publish(&file).await,
            Err(error) => Err(error),
        };
        match published {
            Ok(Published::Now) => files.made_one(),
            // The answer to the first request may have been lost.
            Ok(Published::Before) if files.keeper.exists(&file.path).await? => files.made_one(),
            Ok(_) => return Err(Error::transient(format!("{} was lost before it appeared", file.path))),
            Err(error) => {
                files.keeper.discard(&file).await;
                return Err(error);
            }
        }
        fail_point::pass("commit.after");
        Ok(Delivered::Written { rows, refused: Vec::new() })
    }
}
