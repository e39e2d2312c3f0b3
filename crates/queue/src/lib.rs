//! Message queues for sources and sinks: connections, what is spoken on them, and messages as they come. How messages
//! become rows, and when they are acknowledged, is decided by who uses this.

#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(test)]
pub(crate) mod testing;
