//! Where a frame ends, found without decoding it: by the headers of its blocks (RFC 8878, 3.1.1.2).

/// Bytes of a block's header.
const HEADER: usize = 3;

/// The most text of a compressed block, in bytes.
const BLOCK_TEXT: u64 = 128 << 10;

/// A walk from block to block.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum Walk {
    /// Nothing is known: the frame's header is not complete, or a block is wrong.
    #[default]
    Lost,
    /// Between blocks.
    At {
        /// The byte of the unit where the next block begins.
        next: u64,
        /// Its header, as far as it has arrived.
        header: [u8; HEADER],
        known: usize,
        checksum: bool,
        /// The most text of the blocks so far.
        text: u64,
    },
    /// The frame ends at byte `end` of the unit, and has at most `text` bytes of text.
    Ended { end: u64, text: u64 },
}

impl Walk {
    /// A walk at the first block, which begins at byte `next` of the unit.
    pub(super) fn new(next: u64, checksum: bool) -> Self {
        Walk::At { next, header: [0; HEADER], known: 0, checksum, text: 0 }
    }

    /// The walk of a frame that ends at byte `end`.
    pub(super) fn ending(end: u64) -> Self {
        Walk::Ended { end, text: 0 }
    }

    /// Continues over `bytes`, the first of which is byte `at` of the unit. No byte of a header may be left out.
    pub(super) fn over(&mut self, at: u64, bytes: &[u8]) {
        while let Walk::At { next, header, known, checksum, text } = self {
            let place = *next + *known as u64;
            let Some(&byte) = place.checked_sub(at).and_then(|index| bytes.get(index as usize)) else { return };
            header[*known] = byte;
            *known += 1;
            if *known < HEADER {
                continue;
            }
            let number = u32::from_le_bytes([header[0], header[1], header[2], 0]);
            let size = u64::from(number >> 3);
            let (stored, most) = match number >> 1 & 3 {
                0 => (size, size),
                // One byte, repeated.
                1 => (1, size),
                2 => (size, BLOCK_TEXT),
                _ => {
                    *self = Walk::Lost;
                    return;
                }
            };
            let (after, text) = (*next + HEADER as u64 + stored, *text + most);
            *self = match number & 1 {
                1 => Walk::Ended { end: after + if *checksum { 4 } else { 0 }, text },
                _ => Walk::At { next: after, header: [0; HEADER], known: 0, checksum: *checksum, text },
            };
        }
    }
}
