//! Messages of queues that start sequences: what listens, and what it hands over. `hear.rs` decides about them.
//!
//! ```text
//!  free ──▶ a thread joins the queue ──message──▶ decided, stored ──▶ acknowledged, left ──▶ it runs ──▶ free
//! ```
//! While a sequence runs, nothing listens for it: messages wait in their queue, where other consumers of the group may
//! take them. A message that was decided about is known by its id, in the transaction with its occurrence. So one that
//! comes again, since it could not be acknowledged, starts nothing.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Instant;

use millstream_core::Result;
use millstream_schedule::MessageSpec;

/// What listens: it returns when one message was handed over and acknowledged, if it is to be, or when it is stopped.
#[derive(Clone)]
pub struct Listen(pub Arc<ListenFn>);

/// Listens as it is asked to.
pub type ListenFn = dyn Fn(&Listening) -> Result<()> + Send + Sync;

impl fmt::Debug for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listen").finish_non_exhaustive()
    }
}

/// What one thread listens for.
pub struct Listening {
    /// The queue.
    pub queue: MessageSpec,
    pub(crate) sequence: Arc<str>,
    pub(crate) is_over: Arc<AtomicBool>,
    /// Sends a message to the scheduler; whether there is one.
    pub(crate) send: Box<dyn Fn(Message) -> bool + Send>,
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listening").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

impl Listening {
    /// Whether nobody wants messages any more.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Hands the message with this id over. Whether it is to be acknowledged: it is decided about, and that is stored.
    pub fn came(&self, id: &str) -> bool {
        let (answer, answered) = sync_channel(1);
        let message = Message { sequence: Arc::clone(&self.sequence), id: id.to_owned(), answer };
        (self.send)(message) && answered.recv().unwrap_or(false)
    }
}

/// A message that has come.
#[derive(Debug)]
pub(crate) struct Message {
    pub sequence: Arc<str>,
    pub id: String,
    pub answer: SyncSender<bool>,
}

/// Whether something listens for a sequence.
#[derive(Debug, Default)]
pub(crate) struct Ear {
    /// Ends what listens.
    pub listens: Option<Arc<AtomicBool>>,
    /// Not before this.
    pub again: Option<Instant>,
    /// The fault that was told last.
    pub told: Option<String>,
}

impl Ear {
    /// Ends what listens.
    pub fn stop(&mut self) {
        if let Some(is_over) = self.listens.take() {
            is_over.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.stop();
    }
}
