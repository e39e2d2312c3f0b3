//! The limit of how much a unit may unpack to.

use millstream_core::codec::RATIO_APPLIES_FROM;
use millstream_core::{Error, Result};

/// Whether `text` is large enough to matter, and more than `ratio` times `bytes`.
pub(crate) fn is_beyond(ratio: u64, text: u64, bytes: u64) -> bool {
    text > RATIO_APPLIES_FROM && text / bytes.max(1) > ratio
}

/// Fails if `text` exceeds `ratio` times `bytes`, see [`is_beyond`]. The unit is at byte `position`.
pub(crate) fn check_ratio(ratio: u64, text: u64, bytes: u64, position: u64) -> Result<()> {
    if !is_beyond(ratio, text, bytes) {
        return Ok(());
    }
    Err(Error::refused(format!("the data unpacks to more than {ratio} times its size: it may be a bomb"))
        .byte(position)
        .hint("raise `limits: {ratio: …}` of the source if you trust the data"))
}
