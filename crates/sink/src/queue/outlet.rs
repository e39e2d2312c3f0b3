//! What messages go out through. `kafka.rs` and `redis.rs` do it.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::epochs::{Guarantee, QueueFacts, QueueLoad};
use millstream_core::positions::Positions;
use millstream_core::{Error, Result};
use tokio::runtime::Handle;

use super::message::Message;
use super::taking::Taking;

/// Why messages may be there more than once.
pub(super) const SENT_AGAIN: &str =
    "messages are confirmed, and sent again if the run dies before those of the source are acknowledged";

/// What tasks are called that send messages.
pub(super) const TASK: &str = "a task that sends messages";

/// How messages are sent.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    /// Bytes that may be on their way at once.
    pub(super) window: usize,
    /// How long a server that is away is waited for.
    pub(super) patience: Duration,
    /// Where the network is.
    pub(super) io: Handle,
}

/// A topic or stream that is written to.
#[async_trait]
pub(super) trait Target: Debug + Send + Sync {
    /// `kafka`.
    fn name(&self) -> &'static str;

    /// Its URL, without passwords.
    fn url(&self) -> String;

    /// For messages: `topic t of kafka://…`.
    fn shown(&self) -> String;

    /// Connects to it.
    async fn connect(&self, terms: &Terms) -> Result<Box<dyn Outlet>>;

    /// Asks whether it would take messages.
    async fn reach(&self, io: &Handle) -> Result<()>;

    /// What holds for the rows of `queue`, or why it cannot take them.
    fn guarantee(&self, _queue: &QueueFacts) -> Result<Guarantee, String> {
        Ok(Guarantee::once_or_more(SENT_AGAIN))
    }

    /// The positions of a load, if it can keep them.
    async fn positions(&self, _load: &QueueLoad, _taking: &Taking) -> Result<Option<Arc<dyn Positions>>> {
        Ok(None)
    }
}

/// Takes messages.
#[async_trait]
pub(super) trait Outlet: Send {
    /// Sends a message, without waiting for its confirmation.
    async fn send(&mut self, message: &Message) -> Result<()>;

    /// Waits until all messages are confirmed. Those that were refused, by their numbers since the last confirmation,
    /// from 0.
    async fn confirm(&mut self) -> Result<Vec<(usize, Error)>>;

    /// How many of all messages so far were left out, since the queue knew their ids.
    fn known(&self) -> u64 {
        0
    }
}

#[async_trait]
impl Outlet for Box<dyn Outlet> {
    async fn send(&mut self, message: &Message) -> Result<()> {
        (**self).send(message).await
    }

    async fn confirm(&mut self) -> Result<Vec<(usize, Error)>> {
        (**self).confirm().await
    }

    fn known(&self) -> u64 {
        (**self).known()
    }
}
