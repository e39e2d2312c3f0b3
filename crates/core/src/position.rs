//! Where the reader of one place of a queue stands. `positions.rs` has what targets do with that.

use std::time::Duration;

/// A place of a load, such as a partition of a topic or a consumer of a stream, and where its reader stands.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The name of the place: at most 500 bytes of text without control characters.
    pub place: String,
    /// How often the position was moved, and 1 when it was new.
    pub version: u64,
    /// The process that has moved it last, as [`crate::positions::Positions`] were opened by it.
    pub owner: String,
    /// What the queue has noted. At most 1 MB of text.
    pub state: String,
    /// How long ago it was moved, by the target's clock: to be shown, and not to decide by.
    pub idle: Duration,
}
