//! A load that ends: messages are sent as rows come, and all are confirmed before it is committed. What was sent stays
//! if the run fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use arrow::array::RecordBatch;
use async_trait::async_trait;
use millstream_core::Result;
use millstream_core::sink::{Load, LoadContext, Refused, Writer};
use millstream_database::on_io;
use tokio::sync::Mutex;

use super::message::{Form, Rows};
use super::outlet::TASK;
use super::sender::Sender;
use crate::shared::counted;

/// Sends the rows of a run.
pub(super) struct QueueLoad(pub(super) Arc<Shared>);

/// Shared by the load and its writers.
pub(super) struct Shared {
    pub(super) context: LoadContext,
    pub(super) form: Form,
    /// The queue, for messages.
    pub(super) place: String,
    pub(super) sender: Arc<Mutex<Sender>>,
    /// Messages that are there.
    pub(super) sent: AtomicU64,
    /// Those of them that were left out, since the queue knew their ids.
    pub(super) known: AtomicU64,
    /// Whether any may be.
    pub(super) has_sent: AtomicBool,
}

impl Shared {
    /// Waits until all messages so far are confirmed.
    async fn confirm(self: Arc<Self>) -> Result<()> {
        let (shared, start) = (Arc::clone(&self), Instant::now());
        let confirmed = on_io(&self.context.io, TASK, async move {
            let mut sender = shared.sender.lock().await;
            sender.confirm().await?;
            shared.settle(&mut sender)
        });
        let confirmed = confirmed.await;
        self.context.step.add_waiting_output(start.elapsed());
        confirmed
    }

    /// Deals with the rows that were refused so far.
    fn settle(&self, sender: &mut Sender) -> Result<()> {
        let (rows, refused) = sender.take();
        self.known.fetch_add(sender.take_known(), Ordering::Relaxed);
        self.sent.fetch_add(rows, Ordering::Relaxed);
        // Those may be rows that have come before.
        self.sent.fetch_sub(refused.len() as u64, Ordering::Relaxed);
        if refused.is_empty() {
            return Ok(());
        }
        let refused = Refused { rows: refused, more: false };
        match &self.context.refusals {
            Some(refusals) => refusals.refuse(&self.place, &refused),
            None => Err(refused.into_error(&self.place)),
        }
    }
}

#[async_trait]
impl Load for QueueLoad {
    async fn writer(&self, _partition: usize) -> Result<Box<dyn Writer>> {
        let rows = self.0.form.rows(&self.0.context.schema);
        Ok(Box::new(QueueWriter { shared: Arc::clone(&self.0), rows }))
    }

    /// Each writer has waited until all messages are confirmed that were sent before it was closed.
    async fn prepare(&self) -> Result<()> {
        Ok(())
    }

    async fn commit(&self) -> Result<String> {
        let Shared { sent, known, place, .. } = self.0.as_ref();
        Ok(summary(sent.load(Ordering::Relaxed), known.load(Ordering::Relaxed), place))
    }

    async fn abort(&self) {}

    fn left(&self) -> Option<String> {
        let place = &self.0.place;
        let what =
            format!("messages that were sent before stay in {place}, and a run that begins again sends them again");
        self.0.has_sent.load(Ordering::Relaxed).then_some(what)
    }

    /// Messages cannot be taken back.
    fn can_roll_back(&self) -> bool {
        false
    }
}

/// What there is when so many messages were sent, of which the queue knew so many.
pub(super) fn summary(messages: u64, known: u64, place: &str) -> String {
    let messages = counted(messages, "message");
    match known {
        0 => format!("{messages} added to {place}"),
        _ => format!("{messages} sent to {place}, which knew {known} of them by `id`"),
    }
}

/// Sends one partition of the rows.
struct QueueWriter {
    shared: Arc<Shared>,
    rows: Rows,
}

#[async_trait]
impl Writer for QueueWriter {
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let encoded = self.shared.context.step.busy(|| self.rows.encode(&batch))?;
        let (shared, start) = (Arc::clone(&self.shared), Instant::now());
        let sent = on_io(&self.shared.context.io, TASK, async move {
            let mut sender = shared.sender.lock().await;
            shared.has_sent.store(true, Ordering::Relaxed);
            let bytes = sender.send(encoded).await?;
            shared.settle(&mut sender)?;
            Ok(bytes)
        });
        let sent = sent.await;
        let step = &self.shared.context.step;
        step.add_waiting_output(start.elapsed());
        step.add_bytes(sent?);
        Ok(())
    }

    /// Rows may still be rejected now, and no longer when all writers are closed.
    async fn close(&mut self) -> Result<()> {
        Arc::clone(&self.shared).confirm().await
    }
}
