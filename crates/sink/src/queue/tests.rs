//! Rows as messages; the crate of queues tests how they are sent, and the command tests both with real servers.
