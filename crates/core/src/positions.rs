//! Where readers of queues stand, as a target keeps it: moved by the transactions of the rows.
//!
//! Many processes share a load; none owns it. Each place of it has a version, and who moves a place names the version
//! that it knows, so that of two who believe to have the same place only one can commit. What a position says is the
//! queue's: targets keep it as text.

use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;

use crate::epochs::Epochs;
pub use crate::position::Position;
use crate::{Error, Result};

/// Where the reader of a partition stands, as targets read it that name what they make by it. Queues whose places are
/// partitions ([`crate::epochs::QueueFacts::is_partitioned`]) call each `TOPIC PARTITION`, and their states are objects
/// of JSON with `next`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionPosition {
    /// The number of the partition.
    pub partition: u32,
    /// The offset of the first message that the target lacks.
    pub next: u64,
}

impl PartitionPosition {
    /// The name of the place of a partition.
    pub fn place(topic: &str, partition: i32) -> String {
        format!("{topic} {partition}")
    }

    /// The topic and the partition of which `place` is the name.
    pub fn topic_and_partition(place: &str) -> Option<(&str, u32)> {
        let (topic, partition) = place.rsplit_once(' ')?;
        Some((topic, partition.parse().ok()?))
    }

    /// Reads the name and the state of a place.
    ///
    /// # Errors
    /// If they are none of a partition.
    pub fn of(place: &str, state: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct State {
            next: u64,
        }
        let fault = || Error::internal("a position is none of a partition").text(format!("{place}: {state}"));
        let partition = Self::topic_and_partition(place).map(|(_, partition)| partition);
        let state: Option<State> = serde_json::from_str(state).ok();
        let (partition, State { next }) = partition.zip(state).ok_or_else(fault)?;
        Ok(PartitionPosition { partition, next })
    }
}

/// A change of a position.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Move {
    /// The place.
    pub place: String,
    /// The version that has to be there; `None` if the place has to be new.
    pub from: Option<u64>,
    /// What is noted from now on; `None` to remove the position.
    pub to: Option<String>,
}

/// What became of moves without rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moved {
    /// All were made. The version of each place is one more, or 1 where it was new.
    All,
    /// None was made: these places stand elsewhere, as they are now. Those that have no position are left out.
    None(Vec<Position>),
}

/// Says by the positions of a load how they are changed. It may be asked again: if one of those that it moves was moved
/// by another transaction meanwhile.
pub type Change = Box<dyn FnMut(&[Position]) -> Result<Vec<Move>> + Send>;

/// The positions of one load in one target, which moves them with the epochs that it takes. Calls may run side by side.
#[async_trait]
pub trait Positions: Epochs {
    /// All positions of the load, by place. Waits for the transactions that are moving some when it is called, so that
    /// what these do is not in doubt.
    ///
    /// # Errors
    /// Of the kind [`crate::ErrorKind::Transient`] if the target cannot be reached for now.
    async fn read(&self) -> Result<Vec<Position>>;

    /// All positions of the load as they were committed last, without waiting for transactions that are moving them,
    /// and without making such transactions wait: to see often whether others move.
    async fn glance(&self) -> Result<Vec<Position>> {
        self.read().await
    }

    /// This process begins to read these places, whose positions have these versions. A target in which positions
    /// expire keeps them from that.
    fn begun(&self, _places: &[(String, u64)]) {}

    /// Makes moves without rows, all or none, in one transaction; by place ([`Positions::is_by_place`]), each alone.
    async fn set(&self, moves: Vec<Move>) -> Result<Moved>;

    /// Changes positions in one transaction, no matter which process has moved them last. `place` is locked first: if
    /// another transaction holds it for longer than `wait`, the connections of the position's owner are ended where the
    /// target can do that. The others are not locked, so that nobody waits for healthy owners. Moves that `change`
    /// gives name the versions that it was given.
    async fn fence(&self, place: &str, wait: Duration, change: Change) -> Result<()>;

    /// How many connections the process `owner` has to the target now; `None` if the target cannot tell.
    async fn connections_of(&self, owner: &str) -> Result<Option<usize>>;

    /// Removes all positions of the load.
    async fn forget(&self) -> Result<()>;

    /// Where the positions are, for a message, if the target forgets them by itself some time after nobody has moved
    /// them: "the group `g`". Others are there until they are removed.
    fn may_expire_in(&self) -> Option<String> {
        None
    }

    /// Whether a delivery can make the moves of one place only.
    fn is_by_place(&self) -> bool {
        false
    }
}
