//! Tokens, and the hashes by which they are known. A token has 256 random bits, so that a plain hash is enough.

use std::fmt::Write as _;

use millstream::{Error, Result};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

/// A new token.
pub fn new() -> Result<String> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).map_err(|_| Error::refused("the system gives no random numbers"))?;
    Ok(hex(&bytes))
}

/// The hash of a token.
pub fn hash(token: &str) -> String {
    hex(digest(&SHA256, token.as_bytes()).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
