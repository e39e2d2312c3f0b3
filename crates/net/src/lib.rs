//! What connections to servers have in common, whatever is spoken on them: addresses with logins, and trust.

pub mod server;
#[cfg(feature = "tls")]
pub mod tls;
