//! The fast path for plain records.
//!
//! ```text
//!   text      a , " b , c " , d LF e , f , g LF        64 bytes at a time
//!   quotes    0 0 1 0 0 0 1 0 0 0  0 0 0 0 0 0
//!   inside    0 0 1 1 1 1 0 0 0 0  0 0 0 0 0 0         parity of the quotes
//!   marks     0 1 0 0 0 0 0 1 0 1  0 1 0 1 0 1         delimiters and line feeds outside of quotes
//!   ends        1           7   9    11  13  15        their positions, one after the other
//! ```
//! Every record has as many fields as it must have if every line feed is the `width`-th end since the last one. That is
//! all that is checked for each record; for each field only its end is stored. Using the parity of quotes for being
//! inside is from simdjson (Langdale and Lemire, "Parsing gigabytes of JSON per second", 2019).
//!
//! Whatever is not plain (another number of fields, a blank line, a comment, a CR without LF, a quote where none
//! belongs, a record that is too long or incomplete) is left to [`super::scan`], which continues at that record. Both
//! give the same result for the records that are scanned here.

use super::bits::{BLOCK, Bits, Needles, parity};
use super::scan::Index;
use super::spec::Dialect;

/// Scans plain records.
#[derive(Debug)]
pub(crate) struct Sweeper {
    needles: Needles,
    comment: Option<u8>,
    max_record: usize,
}

/// The result of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Swept {
    /// Records that were added to the index.
    pub rows: usize,
    /// Where the next record begins, and on which line.
    pub next: usize,
    pub line: u64,
}

impl Sweeper {
    /// `None` for dialects whose records must be scanned byte by byte.
    pub fn new(dialect: &Dialect) -> Option<Self> {
        match (&dialect.delimiter[..], dialect.escape) {
            ([delimiter], None) => Some(Sweeper {
                needles: Needles { delimiter: *delimiter, quote: dialect.quote },
                comment: dialect.comment,
                max_record: dialect.max_record,
            }),
            _ => None,
        }
    }

    /// Adds to `index` the plain records of `text` that begin at `from`, on `line`, without a gap: at most `limit` of
    /// them, each of `index.width` fields.
    pub fn sweep(&self, text: &[u8], from: usize, line: u64, limit: usize, index: &mut Index) -> Swept {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("popcnt")
        {
            // SAFETY: the processor has what the function needs.
            return unsafe { self.sweep_avx2(text, from, line, limit, index) };
        }
        self.sweep_with(super::bits::portable, text, from, line, limit, index)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
    fn sweep_avx2(&self, text: &[u8], from: usize, line: u64, limit: usize, index: &mut Index) -> Swept {
        let bits = |block: &[u8; BLOCK], needles| super::bits::avx2(block, needles);
        self.sweep_with(bits, text, from, line, limit, index)
    }

    #[inline(always)]
    fn sweep_with(
        &self,
        bits: impl Fn(&[u8; BLOCK], Needles) -> Bits,
        text: &[u8],
        from: usize,
        line: u64,
        limit: usize,
        index: &mut Index,
    ) -> Swept {
        let before = index.rows();
        let mut swept = Swept { rows: 0, next: from, line };
        let mut state = State { inside: 0, begin: 1, quote: 0 };
        // The index in `index.ends` where the current record must end.
        let mut expected = index.ends.len() + index.width - 1;
        let mut feeds = 0;
        let mut base = from;
        // The byte after the block is also checked; the rest is short.
        while let Some([block @ .., behind]) = text.get(base..).and_then(|rest| rest.first_chunk::<{ BLOCK + 1 }>()) {
            let Some(block) = block.first_chunk::<BLOCK>() else { break };
            let found = bits(block, self.needles);
            let (marks, ends, odd) = self.structure(found, *behind, &mut state);
            let first = index.ends.len();
            append_positions(&mut index.ends, base, marks);
            let mut left = ends;
            while left != 0 {
                let below = (left & left.wrapping_neg()) - 1;
                let at = base + left.trailing_zeros() as usize;
                left &= left - 1;
                let end = at - usize::from(at > swept.next && text[at - 1] == b'\r');
                if first + (marks & below).count_ones() as usize != expected
                    || end - swept.next > self.max_record
                    || (self.comment.is_some() && text.get(swept.next) == self.comment.as_ref())
                {
                    return stop(swept, before, index);
                }
                index.ends[expected] = position32(end);
                index.starts.push(position32(swept.next));
                index.lines.push(swept.line);
                expected += index.width;
                swept.rows += 1;
                swept.next = at + 1;
                swept.line = line + feeds + u64::from((found.feeds & below).count_ones()) + 1;
                if swept.rows == limit {
                    return stop(swept, before, index);
                }
            }
            if odd {
                break;
            }
            feeds += u64::from(found.feeds.count_ones());
            base += BLOCK;
        }
        stop(swept, before, index)
    }

    /// The marks of a block outside of quotes, those of them that end a record, and whether something is not plain;
    /// then only the marks before it are returned.
    #[inline(always)]
    fn structure(&self, found: Bits, behind: u8, state: &mut State) -> (u64, u64, bool) {
        let Bits { delimiters, feeds, returns, quotes } = found;
        let next = |bits: u64, behind: bool| bits >> 1 | u64::from(behind) << 63;
        let mut odd = 0;
        if returns != 0 {
            odd |= returns & !next(feeds, behind == b'\n');
        }
        let begins = delimiters | feeds;
        let mut inside = 0;
        if quotes | state.inside != 0 {
            inside = parity(quotes) ^ state.inside;
            let (opening, closing) = (quotes & inside, quotes & !inside);
            // A quote opens after a delimiter or line end, or after the quote that it doubles.
            odd |= opening & !((begins | quotes) << 1 | state.begin | state.quote);
            let is_end = behind == self.needles.delimiter
                || matches!(behind, b'\n' | b'\r')
                || Some(behind) == self.needles.quote;
            odd |= closing & !next(begins | quotes | returns, is_end);
            state.inside = (inside.cast_signed() >> 63).cast_unsigned();
        }
        state.begin = begins >> 63;
        state.quote = quotes >> 63;
        let before_odd = if odd == 0 { u64::MAX } else { (odd & odd.wrapping_neg()) - 1 };
        let outside = !inside & before_odd;
        (begins & outside, feeds & outside, odd != 0)
    }
}

/// What is carried from block to block.
struct State {
    /// All bits if the next byte is inside quotes.
    inside: u64,
    /// Whether the last byte was a delimiter or line feed.
    begin: u64,
    /// Whether the last byte was a quote.
    quote: u64,
}

/// Drops the ends of an incomplete record.
#[inline(always)]
fn stop(swept: Swept, before: usize, index: &mut Index) -> Swept {
    index.ends.truncate((before + swept.rows) * index.width);
    swept
}

/// Appends `base` + i for every bit i that is set.
#[inline(always)]
fn append_positions(positions: &mut Vec<u32>, base: usize, mut bits: u64) {
    let count = bits.count_ones() as usize;
    positions.reserve(BLOCK);
    let base = position32(base);
    // Eight at a time, even if there are fewer: cheaper than mispredicted branches.
    for slots in positions.spare_capacity_mut().chunks_exact_mut(8).take(count.div_ceil(8)) {
        for slot in slots {
            slot.write(base.wrapping_add(bits.trailing_zeros()));
            bits &= bits.wrapping_sub(1);
        }
    }
    // SAFETY: there was room for 64, `count` is at most 64, and the loop has written that many or up to 7 more.
    unsafe { positions.set_len(positions.len() + count) };
}

/// Positions are kept in 32 bits; the parser passes shorter texts.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)]
fn position32(position: usize) -> u32 {
    debug_assert!(u32::try_from(position).is_ok());
    position as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::csv::spec::CsvSpec;

    fn swept(text: &[u8], width: usize, avx2: bool) -> (Swept, Index) {
        let dialect = CsvSpec { comment: Some("#".to_owned()), ..CsvSpec::default() }.dialect().unwrap();
        let sweeper = Sweeper::new(&dialect).unwrap();
        let mut index = Index { width, ..Index::default() };
        let swept = if avx2 {
            sweeper.sweep(text, 0, 1, usize::MAX, &mut index)
        } else {
            sweeper.sweep_with(crate::csv::bits::portable, text, 0, 1, usize::MAX, &mut index)
        };
        (swept, index)
    }

    #[test]
    fn plain_records_are_taken() {
        let text = "a,\"b,\nc\"\"\",d\r\n,,\n\"\",é,x\n".repeat(20);
        let (found, index) = swept(text.as_bytes(), 3, true);
        let taken = text.len() - found.next;
        assert!(taken <= BLOCK + 24, "all but what is in the last block: {taken}");
        assert_eq!(index.rows(), found.rows);
        let record = |row: usize| {
            let (start, end) = index.record(row);
            &text[start..end]
        };
        assert_eq!((record(0), record(1), record(2), record(3)), ("a,\"b,\nc\"\"\",d", ",,", "\"\",é,x", record(0)));
        assert_eq!(index.lines[..5], [1, 3, 4, 5, 7]);
    }

    #[test]
    fn what_is_not_plain_ends_the_sweep_at_its_record() {
        let good = "a,b\n";
        for bad in ["a\n", "a,b,c\n", "\n", "#,b\n", "a,b\r", "a,\"b\"c\n", "a,b\"\n", "a, \"b\"\n", "\"a\" ,b\n"] {
            for before in 0..40 {
                let text = format!("{}{bad}{}", good.repeat(before), good.repeat(40));
                let (found, index) = swept(text.as_bytes(), 2, true);
                assert_eq!((found.rows, found.next), (before, before * 4), "{bad:?} behind {before}");
                assert_eq!(index.ends.len(), 2 * before);
            }
        }
    }

    proptest! {
        #[test]
        fn both_ways_are_the_same(
            text in "([ab],|[ab]\"?\n|\"[a,\n]{0,30}\"[,\n]|[ab]{1,30}[,\n]){0,60}",
            width in 1..4_usize,
        ) {
            let (found, index) = swept(text.as_bytes(), width, true);
            let (other, other_index) = swept(text.as_bytes(), width, false);
            prop_assert_eq!(found, other);
            prop_assert_eq!(format!("{index:?}"), format!("{other_index:?}"));
        }
    }
}
