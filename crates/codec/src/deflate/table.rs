//! Decoding tables of canonical prefix codes (RFC 1951, 3.2.2): from the lengths of the codes to a table that the next
//! bits of the input index.
//!
//! ```text
//!  main, 2^bits entries            subtables, for codes longer than `bits`
//!  ┌──────────────┐          ┌──▶ ┌──────────────┐
//!  │ symbol, bits │          │    │ symbol, bits │
//!  │ symbol, bits │          │    │ symbol, bits │
//!  │ subtable ────┼──────────┘    └──────────────┘
//!  └──────────────┘
//! ```
//!
//! The layout of entries and the filling of the table by doubling follow libdeflate's ideas: an entry holds how many
//! bits to drop, extra bits included, in its lowest byte, so that one shift consumes a code and its extra bits.
//!
//! ```text
//!  bit    31      30 … 16            15          14        13    12       11 … 8       7 … 0
//!         literal value or base      unusual     subtable  end   invalid  code's bits  bits to drop
//!                 (subtable: start)                                       (subtable's) (subtable: main bits)
//! ```

use super::InflateFault;

/// The entry is a literal.
pub(super) const LITERAL: u32 = 1 << 31;
/// The entry is neither a literal nor a length nor a distance.
pub(super) const UNUSUAL: u32 = 1 << 15;
/// The entry points to a subtable.
pub(super) const SUBTABLE: u32 = 1 << 14;
/// The entry ends the block.
pub(super) const END: u32 = 1 << 13;
/// No code begins like this, or its symbol has no meaning.
pub(super) const INVALID: u32 = 1 << 12;

/// Bits that index the main table of literals and lengths.
pub(super) const LITLEN_BITS: u32 = 11;
/// Bits that index the main table of distances.
pub(super) const DISTANCE_BITS: u32 = 8;
/// Bits that index the table of the lengths' own code: all it can have.
pub(super) const PRECODE_BITS: u32 = 7;

/// The most entries for 288 symbols of at most 15 bits with a main table of 11: 2342 (zlib's `enough` computes it).
pub(super) const LITLEN_SIZE: usize = 2342;
/// The most entries for 32 symbols of at most 15 bits with a main table of 8.
pub(super) const DISTANCE_SIZE: usize = 402;
/// The most entries for 19 symbols of at most 7 bits.
pub(super) const PRECODE_SIZE: usize = 128;

const MOST_BITS: usize = 15;

/// What the symbols of a code mean, as entries without their bits; the number of extra bits is in the lowest byte.
pub(super) type Meanings = [u32];

const fn base(value: u32, extra: u32) -> u32 {
    value << 16 | extra
}

/// Literals, the end of a block, lengths.
pub(super) const LITLEN: [u32; 288] = {
    let mut meanings = [UNUSUAL | INVALID; 288];
    let mut symbol = 0;
    while symbol < 256 {
        meanings[symbol] = LITERAL | (symbol as u32) << 16;
        symbol += 1;
    }
    meanings[256] = UNUSUAL | END;
    let mut length = 3;
    symbol = 257;
    while symbol < 285 {
        let extra = if symbol < 265 { 0 } else { (symbol as u32 - 261) / 4 };
        meanings[symbol] = base(length, extra);
        length += 1 << extra;
        symbol += 1;
    }
    meanings[285] = base(258, 0);
    meanings
};

/// Distances.
pub(super) const DISTANCE: [u32; 32] = {
    let mut meanings = [UNUSUAL | INVALID; 32];
    let mut distance = 1;
    let mut symbol = 0;
    while symbol < 30 {
        let extra = if symbol < 4 { 0 } else { (symbol as u32 - 2) / 2 };
        meanings[symbol] = base(distance, extra);
        distance += 1 << extra;
        symbol += 1;
    }
    meanings
};

/// The lengths' own code: symbols stand for themselves.
pub(super) const PRECODE: [u32; 19] = {
    let mut meanings = [0; 19];
    let mut symbol = 0;
    while symbol < 19 {
        meanings[symbol] = base(symbol as u32, 0);
        symbol += 1;
    }
    meanings
};

/// A table of at most `SIZE` entries, indexed by at most `BITS` bits.
#[derive(Debug, Clone)]
pub(super) struct Table<const BITS: u32, const SIZE: usize> {
    pub(super) entries: [u32; SIZE],
    /// Selects the bits that index the main table.
    pub(super) mask: u64,
}

impl<const BITS: u32, const SIZE: usize> Table<BITS, SIZE> {
    /// A table in which nothing is valid.
    pub(super) fn new() -> Self {
        Table { entries: [UNUSUAL | INVALID | 1; SIZE], mask: 0 }
    }

    /// The table of the code whose symbols have `lengths` bits (0: not used) and mean `meanings`. A code must use all
    /// its bits; as zlib has it, only a code without any symbol, or with one symbol of one bit, may leave some unused.
    pub(super) fn build(
        &mut self,
        lengths: &[u8],
        meanings: &Meanings,
        unfit: InflateFault,
    ) -> Result<(), InflateFault> {
        let mut counts = [0u16; MOST_BITS + 1];
        for &length in lengths {
            counts[usize::from(length & 15)] += 1;
        }
        counts[0] = 0;
        let mut firsts = [0u16; MOST_BITS + 2];
        let mut space = 0u32;
        for bits in 1..=MOST_BITS {
            firsts[bits + 1] = firsts[bits] + counts[bits];
            space = (space << 1) + u32::from(counts[bits]);
        }
        let used = usize::from(firsts[MOST_BITS + 1]);
        let whole = 1u32 << MOST_BITS;
        if space != whole {
            let single = used == 0 || (used == 1 && counts[1] == 1);
            if space > whole || !single {
                return Err(unfit);
            }
            return self.build_single(lengths, meanings);
        }
        let mut sorted = [0u16; 288];
        let mut next = firsts;
        for (symbol, &length) in lengths.iter().enumerate() {
            if length != 0 {
                let place = &mut next[usize::from(length & 15)];
                sorted[usize::from(*place)] = symbol as u16;
                *place += 1;
            }
        }
        self.fill(&counts, &sorted[..used], meanings);
        Ok(())
    }

    /// The table of a code without symbols, or with one of one bit, which is 0.
    fn build_single(&mut self, lengths: &[u8], meanings: &Meanings) -> Result<(), InflateFault> {
        self.mask = 1;
        self.entries[..2].fill(UNUSUAL | INVALID | 1);
        if let Some(symbol) = lengths.iter().position(|&length| length == 1) {
            self.entries[0] = with_bits(meanings[symbol], 1);
        }
        Ok(())
    }

    /// Fills the table with a complete code: how many codes there are of each length, and their symbols in order.
    fn fill(&mut self, counts: &[u16; MOST_BITS + 1], sorted: &[u16], meanings: &Meanings) {
        let longest = counts.iter().rposition(|&count| count > 0).unwrap_or(1) as u32;
        let main = BITS.min(longest);
        self.mask = (1 << main) - 1;
        let mut symbols = sorted.iter();
        // Codes are sent with their first bit lowest: the code is kept reversed.
        let mut code = 0usize;
        let mut filled = 1usize;
        self.entries[0] = UNUSUAL | INVALID | 1;
        for bits in 1..=main {
            // The entries for one bit fewer are repeated with the next bit set.
            let (low, high) = self.entries.split_at_mut(filled);
            high[..filled].copy_from_slice(low);
            filled *= 2;
            for _ in 0..counts[bits as usize] {
                let Some(&symbol) = symbols.next() else { return };
                self.entries[code] = with_bits(meanings[usize::from(symbol)], bits);
                if !increment(&mut code, filled) {
                    return;
                }
            }
        }
        let (mut prefix, mut start, mut end) = (usize::MAX, filled, filled);
        for bits in main + 1..=longest {
            for left in (1..=counts[bits as usize]).rev() {
                let Some(&symbol) = symbols.next() else { return };
                if code & (filled - 1) != prefix {
                    prefix = code & (filled - 1);
                    start = end;
                    let sub_bits = subtable_bits(counts, bits, main, u32::from(left));
                    end = start + (1 << sub_bits);
                    self.entries[prefix] = (start as u32) << 16 | UNUSUAL | SUBTABLE | sub_bits << 8 | main;
                }
                let entry = with_bits(meanings[usize::from(symbol)], bits - main);
                let first = start + (code >> main);
                self.entries[first..end].iter_mut().step_by(1 << (bits - main)).for_each(|slot| *slot = entry);
                if !increment(&mut code, 1 << bits) {
                    return;
                }
            }
        }
    }
}

/// `meaning` as the entry of a code of which `bits` bits are looked up.
fn with_bits(meaning: u32, bits: u32) -> u32 {
    meaning + (bits << 8 | bits)
}

/// How many bits index the subtable that begins with a code of `bits` bits of which `left` remain.
fn subtable_bits(counts: &[u16; MOST_BITS + 1], bits: u32, main: u32, left: u32) -> u32 {
    let mut sub_bits = bits - main;
    let mut space = left;
    while space < 1 << sub_bits && (main + sub_bits) < MOST_BITS as u32 {
        sub_bits += 1;
        space = (space << 1) + u32::from(counts[(main + sub_bits) as usize]);
    }
    sub_bits
}

/// The next code after the reversed `code`, among `space` of them; `false` if it was the last.
fn increment(code: &mut usize, space: usize) -> bool {
    let zeros = *code ^ (space - 1);
    if zeros == 0 {
        return false;
    }
    let bit = 1 << zeros.ilog2();
    *code = *code & (bit - 1) | bit;
    true
}
