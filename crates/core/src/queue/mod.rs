//! Queues: sources whose messages have no end.
//!
//! ```text
//!  queue ─join─▶ consumer ─next─▶ batches of messages ─epoch─▶ rows and moves ─commit─▶ each target ─▶ acknowledge
//! ```
//!
//! A run gathers batches into an **epoch**. Each sink commits the rows of the epoch in one transaction with what moves
//! its [positions](crate::positions) behind the messages. Once all sinks have done so, the messages are acknowledged.

mod messages;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

pub use messages::{Lack, Message, MessageId, Messages};

use crate::epochs::{QueueFacts, TopicFacts};
use crate::positions::{Move, Position, Positions};
use crate::{Budget, Error, Result};

/// A queue, and the group in whose name it is read.
#[async_trait]
pub trait Queue: Debug + Send + Sync {
    /// The queue, for a message, passwords left out: `kafka://b1:9092/events`.
    fn shown(&self) -> String;

    /// What identifies it among the queues of its servers, however these are named: `kafka events`, `redis 0 events`.
    /// It is stored: it must never change.
    fn name(&self) -> String;

    /// The group in whose name it is read.
    fn group(&self) -> &str;

    /// Whether its messages come in places that one process at a time reads in order.
    fn is_partitioned(&self) -> bool {
        false
    }

    /// The topic, if it is one of Kafka.
    fn topic(&self) -> Option<TopicFacts> {
        None
    }

    /// What its sinks need to know.
    fn facts(&self) -> QueueFacts {
        QueueFacts {
            shown: self.shown(),
            name: self.name(),
            group: self.group().to_owned(),
            is_partitioned: self.is_partitioned(),
            topic: self.topic(),
        }
    }

    /// The id of the cluster that has it; `None` if its servers have no such ids.
    ///
    /// # Errors
    /// If the servers cannot be reached or refuse.
    async fn cluster(&self, _io: &tokio::runtime::Handle) -> Result<Option<String>> {
        Ok(None)
    }

    /// Messages that the queue has now, for a look: its first and its last ones, about half of `bytes` each. No group
    /// is joined, and nothing is changed.
    ///
    /// # Errors
    /// If the servers cannot be reached or refuse.
    async fn sample(&self, bytes: usize, io: &tokio::runtime::Handle) -> Result<Messages>;

    /// A message's id as `_id` has it, unique in the queue.
    fn shown_id(&self, id: MessageId) -> String;

    /// Joins the group: the positions of sinks that have some are registered, and messages come from now on.
    ///
    /// # Errors
    /// If the place is wrong, access is refused, or the queue has lost messages and its settings say that this is an
    /// error. A server that cannot be reached is waited for, and told by [`Event::Waiting`], once it was reached.
    async fn join(&self, joining: Joining) -> Result<Box<dyn Consumer>>;
}

/// What a consumer is made from.
#[derive(Clone)]
pub struct Joining {
    /// The name of the process, new for each one: 16 hexadecimal digits.
    pub process: String,
    /// For each sink, in the job's order, where its positions are kept; `None` where messages are only acknowledged.
    pub positions: Vec<Option<Arc<dyn Positions>>>,
    /// What messages that wait are charged to.
    pub budget: Arc<Budget>,
    /// How many messages it takes at most, where the group would keep what it leaves from others for a while.
    pub most: Option<usize>,
    /// Network and timers run here.
    pub io: tokio::runtime::Handle,
}

/// The sinks that lack the messages of a batch, by their numbers: bit 0 is the first one.
pub type SinkSet = u64;

/// Messages as a consumer hands them out. Each is either committed by all of `sinks`, and then acknowledged, or given
/// back; batches of the same place are committed in the order of their numbers.
#[derive(Debug)]
pub struct MessageBatch {
    /// Its number, from 0, in the order in which the consumer hands them out.
    pub number: u64,
    /// The messages; none if only the position moves.
    pub messages: Messages,
    /// Which sinks lack them.
    pub sinks: SinkSet,
}

/// What happens at a queue.
#[derive(Debug)]
pub enum Event {
    /// Messages. What they hold is charged to the budget until the batch is acknowledged or given back.
    Messages(MessageBatch),
    /// These batches are dropped, whether they are in an open epoch or on their way: another consumer may have their
    /// messages, or they come again. Deliveries of them may still be committed by sinks that do not see that yet.
    Revoked(Vec<u64>),
    /// The consumer stands where the queue ended when it joined, or is behind that.
    ReachedStart,
    /// There are no more messages now.
    Empty,
    /// The server is waited for, for this reason. Comes once.
    Waiting(Error),
    /// The server is there again, after this time.
    Back(Duration),
    /// The queue has lost messages, and its settings say that this is no error.
    Gap(Error),
}

/// How far a consumer is behind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lag {
    /// Messages that are left, if the server says so: of a stream of Redis, those that the group has not read; of a
    /// topic of Kafka, those behind the position of each partition that this process reads.
    pub messages: Option<u64>,
    /// How old the first message is that is read and not acknowledged.
    pub oldest: Option<Duration>,
}

/// A member of a group. Fetches ahead by itself as far as the budget allows.
#[async_trait]
pub trait Consumer: Send {
    /// What happens next, with at most `most` messages. Waits for it; a call may be dropped, and nothing is lost by
    /// that.
    async fn next(&mut self, most: usize) -> Result<Event>;

    /// Whether it still has this batch out: it is neither acknowledged nor dropped. A batch may be dropped before an
    /// [`Event::Revoked`] says so.
    fn has(&self, batch: u64) -> bool;

    /// The number of the place of a batch, which it [has](Self::has) out: moves of different places can be made by
    /// different transactions.
    fn place(&self, _batch: u64) -> u64 {
        0
    }

    /// What moves the positions of a sink behind these batches, all of which it [has](Self::has) out.
    fn moves(&mut self, sink: usize, batches: &[u64]) -> Vec<Move>;

    /// The sink has committed these batches with the moves that were given for them last.
    async fn committed(&mut self, sink: usize, batches: &[u64]) -> Result<()>;

    /// The sink has not committed them, since positions stand elsewhere; these places as they are now. The batches
    /// come in an [`Event::Revoked`].
    async fn moved(&mut self, sink: usize, batches: &[u64], positions: Vec<Position>) -> Result<()>;

    /// Nothing of these batches, or all, is committed by each sink, and it is not known what: their messages come
    /// again to those sinks that lack them.
    async fn give_back(&mut self, batches: &[u64]) -> Result<()>;

    /// All sinks have committed these batches: they are acknowledged, soon.
    async fn acknowledge(&mut self, batches: &[u64]) -> Result<()>;

    /// How far it is behind, as far as it knows without asking.
    fn lag(&self) -> Lag;

    /// Leaves the group. Acknowledgements are waited for; batches that are not acknowledged are given back.
    async fn leave(self: Box<Self>) -> Result<()>;
}
