//! Looks for a place where a block with codes of its own may begin, in the middle of deflate data.
//!
//! ```text
//!  bit 0     1 2    3 … 7      8 … 12      13 … 16          17 …
//!      last  type   litlen     distance    lengths' code    its lengths, three bits each
//!      0     2      < 30       < 30        0 … 15           a complete code
//! ```
//!
//! At a random bit all of this is right about once in two thousand times. The first four are tested for 48 bits at
//! once; the lengths, and the two codes that they make, by decoding them. A bit that passes is still a guess: the owner
//! must arrive at it. (The tests and their order are from the paper on rapidgzip.)

use super::Inflater;

/// Bytes from the beginning of a block that are needed to judge it: 17 bits, and 19 lengths of three bits.
const JUDGED: usize = 16;

/// Bits that are tested at once.
const AT_ONCE: usize = 48;

/// The first bit of `data`, from bit `from` on and before bit `to`, where a block may begin.
pub(super) fn find_block(inflater: &mut Inflater<u16>, data: &[u8], from: usize, to: usize) -> Option<usize> {
    let to = to.min(data.len().saturating_sub(JUDGED) * 8);
    let mut first = from;
    while first < to {
        let mut may = candidates(data, first)?;
        while may != 0 {
            let bit = first + may.trailing_zeros() as usize;
            if bit >= to {
                return None;
            }
            if has_lengths(data, bit) && has_codes(inflater, data, bit) {
                return Some(bit);
            }
            may &= may - 1;
        }
        first += AT_ONCE;
    }
    None
}

/// The bits, counted from `bit`, at which the fixed part of a header may begin.
#[inline]
fn candidates(data: &[u8], bit: usize) -> Option<u64> {
    let word = u128::from_le_bytes(*data.get(bit / 8..)?.first_chunk()?) >> (bit % 8);
    let bits = |index: u32| (word >> index) as u64;
    let kind = !bits(0) & !bits(1) & bits(2);
    // 30 and 31 have all bits but the lowest.
    let too_many_lengths = bits(4) & bits(5) & bits(6) & bits(7);
    let too_many_distances = bits(9) & bits(10) & bits(11) & bits(12);
    Some(kind & !too_many_lengths & !too_many_distances & ((1 << AT_ONCE) - 1))
}

/// The part of the code space, in 256ths, that four lengths of three bits use.
const SPACE: [u16; 4096] = {
    let mut space = [0; 4096];
    let mut index = 0;
    while index < 4096 {
        let mut rest = index;
        while rest > 0 {
            // A length of 0 is none.
            space[index] += (0x100 >> (rest & 7)) & 0xff;
            rest >>= 3;
        }
        index += 1;
    }
    space
};

/// Whether the lengths of the lengths' own code, in the header at `bit`, are a complete code.
#[inline]
fn has_lengths(data: &[u8], bit: usize) -> bool {
    let Some(bytes) = data.get(bit / 8..).and_then(|rest| rest.first_chunk::<JUDGED>()) else {
        return false;
    };
    let word = u128::from_le_bytes(*bytes) >> (bit % 8);
    let count = (word >> 13 & 15) as u32 + 4;
    let lengths = (word >> 17) as u64 & ((1 << (3 * count)) - 1);
    let space: u16 = (0..5).map(|four| SPACE[(lengths >> (12 * four) & 4095) as usize]).sum();
    space == 0x100
}

/// Whether the codes of the block at `bit` are right.
fn has_codes(inflater: &mut Inflater<u16>, data: &[u8], bit: usize) -> bool {
    let Some((first, rest)) = data[bit / 8..].split_first() else { return false };
    inflater.begin_after(&[]);
    inflater.begin_in_byte(*first, (bit % 8) as u32);
    // Without room it returns as soon as the codes are built.
    inflater.decode(rest, &mut Vec::new(), 0, true).is_ok() && inflater.in_codes()
}
