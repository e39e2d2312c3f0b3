//! How targets take the rows of queues: an epoch after the other, each in one [`Delivery`].
//!
//! A target that keeps [`Positions`] takes each epoch exactly once. Any other has taken an epoch when its delivery is
//! committed; if a run dies before the messages are acknowledged, they come again, and so do their rows.

use std::fmt;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;

use crate::delivery::{Changes, Delivery};
use crate::positions::{Move, Positions};
use crate::queue::Queue;
use crate::{Error, Result};

/// Takes epochs into a target. Calls may run side by side.
#[async_trait]
pub trait Epochs: Send + Sync {
    /// Begins to write the rows of an epoch. The commit makes the moves in the same transaction, all or none: if a
    /// place stands elsewhere, nothing is written, and the delivery ends with [`crate::delivery::Delivered::Moved`]. A
    /// target without positions is given no moves. Up to `bad_rows` rows that the target does not take are left out.
    /// Deliveries may run side by side. Rows are added, merged or ignored as the sink's mode says. A commit whose
    /// answer was lost is waited for as long as the target cannot be asked about it, until [`Epochs::end_soon`]. If
    /// positions were moved on since, so that the target does not tell whose move it was, the delivery ends with
    /// [`crate::delivery::Delivered::Unknown`].
    async fn delivery(&self, moves: Vec<Move>, bad_rows: usize) -> Result<Box<dyn Delivery>>;

    /// Whether rows can be sent before it is known what moves: see [`Epochs::delivery_ahead`].
    fn takes_ahead(&self) -> bool {
        false
    }

    /// The same, where the moves become known while the rows are sent: other deliveries move the same places before. It
    /// makes them as soon as it can, and cannot be committed before they are known.
    async fn delivery_ahead(&self, _moves: LaterMoves, _bad_rows: usize) -> Result<Box<dyn Delivery>> {
        Err(Error::internal(format!("{} makes moves first", self.target())))
    }

    /// The target, for a message: `table t of mysql://…`.
    fn target(&self) -> String;

    /// What there is when `rows` were written: "252 rows added to table t".
    fn summary(&self, rows: u64) -> String;

    /// How many rows the deliveries of this process have left out since their key was there already.
    fn ignored(&self) -> u64 {
        0
    }

    /// What its deliveries have changed in the target; `None` if rows are not compared, or the target does not tell.
    fn changes(&self) -> Option<Changes> {
        None
    }

    /// How many deliveries the target takes at once. If it [takes some ahead](Epochs::takes_ahead), as many again may
    /// have sent their rows.
    fn connections(&self) -> usize {
        1
    }

    /// The run is to end when the epoch that is being written is there: a delivery does not ask for long any more what
    /// has become of its commit while the target does not answer.
    fn end_soon(&self) {}

    /// The run ends: a delivery that waits for somebody else's lock fails now instead of waiting longer. Whether that
    /// is so; otherwise a delivery may wait for long, and is dropped after a while.
    fn stop_waiting(&self) -> bool {
        false
    }

    /// Waits until nothing is left to be done behind the commits that were made. None begins meanwhile.
    async fn settle(&self) {}
}

/// Moves of a delivery, once they are known.
pub type LaterMoves = Arc<OnceLock<Vec<Move>>>;

/// A queue whose rows a sink is to take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueFacts {
    /// The queue, for a message, passwords left out: `kafka://b1:9092/events`.
    pub shown: String,
    /// What identifies it among the queues of its servers, however these are named: `kafka events`. It is stored.
    pub name: String,
    /// The group in whose name it is read.
    pub group: String,
    /// Whether its messages come in places that one process at a time reads in order, as the partitions of Kafka; then
    /// [`crate::positions::PartitionPosition`] reads their positions.
    pub is_partitioned: bool,
    /// The topic, if it is one of Kafka.
    pub topic: Option<TopicFacts>,
}

/// A topic of Kafka, as far as settings say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicFacts {
    /// Its name.
    pub name: String,
    /// The brokers that are named, each as `host:port`.
    pub brokers: Vec<String>,
}

/// Whose epochs a sink takes.
#[derive(Debug, Clone)]
pub struct QueueLoad {
    /// The name of the load, which many processes share.
    pub load: String,
    /// The name of this process: at most 16 letters and digits.
    pub owner: String,
    /// What the settings say of the queue.
    pub queue: QueueFacts,
    /// The queue, to be asked for more.
    pub source: Arc<dyn Queue>,
}

/// A target as it takes epochs.
#[derive(Clone)]
pub enum EpochTarget {
    /// Exactly once.
    Once(Arc<dyn Positions>),
    /// At least once.
    AtLeastOnce(Arc<dyn Epochs>),
}

impl EpochTarget {
    /// Takes the epochs.
    pub fn epochs(&self) -> Arc<dyn Epochs> {
        match self {
            EpochTarget::Once(positions) => Arc::clone(positions) as Arc<dyn Epochs>,
            EpochTarget::AtLeastOnce(epochs) => Arc::clone(epochs),
        }
    }

    /// Where the readers stand, if the target keeps that.
    pub fn positions(&self) -> Option<&Arc<dyn Positions>> {
        match self {
            EpochTarget::Once(positions) => Some(positions),
            EpochTarget::AtLeastOnce(_) => None,
        }
    }
}

/// What holds for the rows of a queue in a target, whatever dies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guarantee {
    /// How often each row is there.
    pub times: Times,
    /// Why, in words that end a sentence: `positions move in the transaction of the rows`.
    pub why: String,
    /// What becomes of a message that its writer has sent twice: `is there twice`; `None` where that goes without
    /// saying.
    pub sent_twice: Option<&'static str>,
}

/// How often each row is there in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    /// Once.
    Once,
    /// Once or more.
    OnceOrMore,
}

impl Guarantee {
    /// Exactly once, for this reason.
    pub fn once(why: impl Into<String>) -> Self {
        Guarantee { times: Times::Once, why: why.into(), sent_twice: None }
    }

    /// At least once, for this reason.
    pub fn once_or_more(why: impl Into<String>) -> Self {
        Guarantee { times: Times::OnceOrMore, why: why.into(), sent_twice: None }
    }
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = match self.times {
            Times::Once => "exactly once",
            Times::OnceOrMore => "at least once",
        };
        write!(f, "{times}: {}", self.why)?;
        self.sent_twice.map_or(Ok(()), |what| write!(f, "; what was sent twice {what}"))
    }
}
