//! How frames begin.

use crate::frame::begins_with;

/// The first bytes of a frame with data.
pub(super) const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Bytes 1 to 3 of a skippable frame; byte 0 is 0x50 to 0x5f. pzstd begins its files with one.
const SKIPPABLE: [u8; 3] = [0x2a, 0x4d, 0x18];

/// Whether `head` is the beginning of a frame; `None` if that takes more bytes.
pub(super) fn begins(head: &[u8]) -> Option<bool> {
    match head.split_first() {
        Some((first, rest)) if first & 0xf0 == 0x50 => begins_with(rest, &SKIPPABLE),
        _ => begins_with(head, &MAGIC),
    }
}
