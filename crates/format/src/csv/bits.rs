//! Which bytes of a block are delimiters, line feeds, carriage returns and quotes: a word of bits for each.
//!
//! With AVX2 (detected at run time) a comparison takes 32 bytes at once. Elsewhere eight bytes are compared within a
//! word: `((x & 0x7f…) + 0x7f…) | x` lacks the high bit of a byte exactly if that byte is zero, and a multiplication
//! gathers the eight bits (Warren, "Hacker's Delight", 6-1; the chess programmers' "magic" multiplication).

/// Bytes in a block.
pub(crate) const BLOCK: usize = 64;

/// A bit for each byte of a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Bits {
    pub delimiters: u64,
    /// LF.
    pub feeds: u64,
    /// CR.
    pub returns: u64,
    pub quotes: u64,
}

/// The bytes to find. Without quotes `quote` is `None`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Needles {
    pub delimiter: u8,
    pub quote: Option<u8>,
}

/// Eight times the same byte.
const fn eight(byte: u8) -> u64 {
    byte as u64 * 0x0101_0101_0101_0101
}

/// Bit i is set if byte i (in memory) of `word` is `byte`.
#[inline(always)]
fn equal(word: u64, byte: u8) -> u64 {
    const LOW: u64 = eight(0x7f);
    let x = word ^ eight(byte);
    let zeros = !(((x & LOW) + LOW) | x | LOW);
    (zeros >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// The bits without special instructions.
#[inline(always)]
pub(crate) fn portable(block: &[u8; BLOCK], needles: Needles) -> Bits {
    let mut bits = Bits::default();
    for (index, part) in block.as_chunks::<8>().0.iter().enumerate() {
        let word = u64::from_le_bytes(*part);
        let shift = index * 8;
        bits.delimiters |= equal(word, needles.delimiter) << shift;
        bits.feeds |= equal(word, b'\n') << shift;
        bits.returns |= equal(word, b'\r') << shift;
        if let Some(quote) = needles.quote {
            bits.quotes |= equal(word, quote) << shift;
        }
    }
    bits
}

/// The bits with AVX2.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn avx2(block: &[u8; BLOCK], needles: Needles) -> Bits {
    use std::arch::x86_64::{__m256i, _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_movemask_epi8, _mm256_set1_epi8};

    let halves = block.as_ptr().cast::<__m256i>();
    // SAFETY: the block has two times 32 bytes, and the load needs no alignment.
    let (low, high) = unsafe { (_mm256_loadu_si256(halves), _mm256_loadu_si256(halves.add(1))) };
    let equal = |byte: u8| {
        let byte = _mm256_set1_epi8(byte.cast_signed());
        let mask = |half| u64::from(_mm256_movemask_epi8(_mm256_cmpeq_epi8(half, byte)).cast_unsigned());
        mask(low) | mask(high) << 32
    };
    Bits {
        delimiters: equal(needles.delimiter),
        feeds: equal(b'\n'),
        returns: equal(b'\r'),
        quotes: needles.quote.map_or(0, equal),
    }
}

/// Bit i is set if an odd number of bits up to and including i are set: between a quote and the next.
#[inline(always)]
pub(crate) fn parity(mut bits: u64) -> u64 {
    bits ^= bits << 1;
    bits ^= bits << 2;
    bits ^= bits << 4;
    bits ^= bits << 8;
    bits ^= bits << 16;
    bits ^ bits << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(block: &[u8; BLOCK], needles: Needles) -> Bits {
        let bits = |byte: u8| (0..BLOCK).fold(0, |bits, at| bits | u64::from(block[at] == byte) << at);
        Bits {
            delimiters: bits(needles.delimiter),
            feeds: bits(b'\n'),
            returns: bits(b'\r'),
            quotes: needles.quote.map_or(0, bits),
        }
    }

    #[test]
    fn all_ways_find_what_a_plain_loop_finds() {
        for seed in 0..2_000_usize {
            let mut block = [0; BLOCK];
            for (at, byte) in block.iter_mut().enumerate() {
                let number = ((at + 1) * (seed + 7) * 2_654_435_761) >> 7;
                *byte =
                    if number.is_multiple_of(3) { (number >> 3) as u8 } else { b",\n\r\"\x0b\x8d-\xac"[number % 8] };
            }
            for quote in [None, Some(b'"'), Some(0)] {
                let needles = Needles { delimiter: b",\xac\0"[seed % 3], quote };
                assert_eq!(portable(&block, needles), plain(&block, needles));
                #[cfg(target_arch = "x86_64")]
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has AVX2.
                    assert_eq!(unsafe { avx2(&block, needles) }, plain(&block, needles));
                }
            }
        }
    }

    #[test]
    fn parity_is_between_quotes() {
        assert_eq!(parity(0b1001_0010), u64::MAX << 7 | 0b0000_1110);
        assert_eq!(parity(1 << 63), 1 << 63);
        assert_eq!(parity(0), 0);
    }
}
