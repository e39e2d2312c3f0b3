//! Epochs of another queue: the messages of an epoch are confirmed when its delivery is committed. A delivery that
//! fails or is dropped may have sent some; they are sent again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use async_trait::async_trait;
use millstream_core::epochs::Epochs;
use millstream_core::positions::Move;
use millstream_core::sink::{Accept, Delivered, Delivery, Refused};
use millstream_core::{Error, Result, fail_point};

use super::load::summary;
use super::message::Rows;
use super::outlet::Target;
use super::sender::Sender;
use super::taking::Taking;

/// A queue as it takes epochs.
pub(super) struct QueueEpochs(pub(super) Arc<Shared>);

/// Shared by the deliveries.
pub(super) struct Shared {
    pub(super) target: Arc<dyn Target>,
    pub(super) taking: Taking,
    /// What no delivery uses.
    pub(super) idle: Mutex<Option<Sender>>,
    /// Messages that were left out, since the queue knew their ids.
    pub(super) known: AtomicU64,
}

impl Shared {
    fn take(&self) -> Option<Sender> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn keep(&self, sender: Sender) {
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
    }

    /// `sender`, or a new one. Where the network is.
    async fn connected(&self, sender: Option<Sender>) -> Result<Sender> {
        match sender {
            Some(sender) => Ok(sender),
            None => {
                let outlet = self.target.connect(&self.taking.terms).await?;
                Ok(Sender::new(outlet, &self.taking.terms, &self.taking.context.budget))
            }
        }
    }
}

#[async_trait]
impl Epochs for QueueEpochs {
    async fn delivery(&self, moves: Vec<Move>, bad_rows: usize) -> Result<Box<dyn Delivery>> {
        if !moves.is_empty() {
            return Err(Error::internal("a queue was to keep positions"));
        }
        let (shared, rows) = (Arc::clone(&self.0), self.0.taking.rows());
        Ok(Box::new(QueueDelivery { sender: shared.take(), shared, rows, bad_rows }))
    }

    fn target(&self) -> String {
        self.0.target.shown()
    }

    fn summary(&self, rows: u64) -> String {
        summary(rows, self.0.known.load(Ordering::Relaxed), &self.0.target.shown())
    }
}

/// The messages of an epoch.
struct QueueDelivery {
    shared: Arc<Shared>,
    /// What has sent the rows so far, if there were any.
    sender: Option<Sender>,
    rows: Rows,
    bad_rows: usize,
}

#[async_trait]
impl Delivery for QueueDelivery {
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let encoded = self.shared.taking.context.step.busy(|| self.rows.encode(&batch))?;
        let (shared, sender) = (Arc::clone(&self.shared), self.sender.take());
        let sending = self.shared.taking.waiting(async move {
            let mut sender = shared.connected(sender).await?;
            let bytes = sender.send(encoded).await?;
            Ok((sender, bytes))
        });
        let (sender, bytes) = sending.await?;
        self.shared.taking.context.step.add_bytes(bytes);
        self.sender = Some(sender);
        Ok(())
    }

    async fn commit_if(self: Box<Self>, accept: Accept) -> Result<Delivered> {
        fail_point::pass("commit.before");
        let (shared, sender) = (Arc::clone(&self.shared), self.sender);
        let confirming = self.shared.taking.waiting(async move {
            let mut sender = shared.connected(sender).await?;
            sender.confirm().await?;
            let come = sender.take();
            Ok((sender, come))
        });
        let (mut sender, (rows, refused)) = confirming.await?;
        let more = refused.len() > self.bad_rows;
        let refused = Refused { rows: refused, more };
        accept(&refused)?;
        if more {
            return Err(refused.into_error(&self.shared.target.shown()));
        }
        fail_point::pass("commit.after");
        self.shared.known.fetch_add(sender.take_known(), Ordering::Relaxed);
        self.shared.keep(sender);
        let rows = rows - refused.rows.len() as u64;
        Ok(Delivered::Written { rows, refused: refused.rows })
    }
}
