//! Fast paths for the common parts of records: keys in the order of the last record, short texts, short numbers.
//!
//! ```text
//!   wide    {"id":1,"name":"Ada"}⏎{"id":2,"name":"Bob"}⏎{"id":3, ...
//!   record                        ├──────────────────┤├─ MARGIN ─┤
//!   leads                         (├────┤ ├───────┤                   compared as one word each
//! ```
//! All of them read words of 8 or 16 bytes, which may end after the record, so they need a margin. Without one (at the
//! end of a piece of text, or in a record of two pieces), they do nothing and `cursor.rs` reads byte by byte. It also
//! reads everything that is not plain, and alone finds faults. Both give the same results.

use std::num::NonZeroUsize;

use millstream_core::views::INLINE;

/// Bytes that must follow a record for the fast paths.
pub const MARGIN: usize = 64;

/// The longest lead that is kept.
const LONGEST_LEAD: usize = 256;

/// Powers of ten that are floats without rounding; all of them are whole numbers too.
const POWERS: [u64; 16] = {
    let mut powers = [1; 16];
    let mut at = 1;
    while at < 16 {
        powers[at] = powers[at - 1] * 10;
        at += 1;
    }
    powers
};

/// The most digits of a [`Short`] number: fewer than a float has.
const MOST_DIGITS: usize = 15;

/// The text between two values of an object, as in the last record: a comma, the key, the colon and the white space.
/// The same bytes at the same position are the same key.
#[derive(Debug)]
pub struct Lead {
    /// It is before the first value of an object (and has no comma).
    first: bool,
    length: usize,
    /// Its first 16 bytes, padded with zeros.
    head: [u64; 2],
    /// Which bits of the head count.
    mask: [u64; 2],
    rest: Vec<u8>,
}

impl Default for Lead {
    fn default() -> Self {
        // No masked text is equal to 1 if the mask is 0.
        Lead { first: false, length: 0, head: [1, 0], mask: [0, 0], rest: Vec::new() }
    }
}

impl Lead {
    /// Keeps `lead` for the next record.
    pub fn learn(&mut self, lead: &[u8], first: bool) {
        if lead.is_empty() || lead.len() > LONGEST_LEAD {
            return;
        }
        let (mut head, mut mask) = ([0; 16], [0; 16]);
        let inside = lead.len().min(16);
        head[..inside].copy_from_slice(&lead[..inside]);
        mask[..inside].fill(u8::MAX);
        self.first = first;
        self.length = lead.len();
        self.head = two(&head);
        self.mask = two(&mask);
        self.rest.clear();
        self.rest.extend_from_slice(&lead[inside..]);
    }
}

/// Where a value ends.
pub type ValueEnd = NonZeroUsize;

/// A text without escapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Text<'a> {
    /// Of at most [`INLINE`] bytes, as the view of it that Arrow has: four bytes of length and twelve of text.
    Short(u128),
    /// Of more bytes.
    Long(&'a [u8]),
}

/// A record and the bytes after it. Every function reads one value at a byte of the record, and returns where it ends.
#[derive(Debug)]
pub struct Margin<'a> {
    /// The record and at least [`MARGIN`] bytes after it; empty if there are fewer.
    wide: &'a [u8],
    /// The length of the record.
    length: usize,
    /// The limit for [`Margin::bytes`], which is after the record.
    readable: usize,
}

impl<'a> Margin<'a> {
    /// No margin.
    pub const NONE: Margin<'static> = Margin { wide: &[], length: 0, readable: 0 };

    /// The margin of a record that is the first `length` bytes of `wide`.
    #[inline]
    pub fn new(wide: &'a [u8], length: usize) -> Self {
        if wide.len() < length + MARGIN {
            return Margin::NONE;
        }
        Margin { wide, length, readable: length + MARGIN / 2 }
    }

    /// The bytes at `at`.
    #[inline(always)]
    fn bytes<const N: usize>(&self, at: usize) -> Option<&'a [u8; N]> {
        const { assert!(N <= MARGIN / 2) };
        if at >= self.readable {
            return None;
        }
        // SAFETY: `readable` is 0, or at least half the margin before the end of `wide`, and N is no more than that.
        // (The check that a slice does by itself takes twice as long, several times for each value.)
        Some(unsafe { &*self.wide.as_ptr().add(at).cast::<[u8; N]>() })
    }

    #[inline(always)]
    fn byte(&self, at: usize) -> Option<u8> {
        self.bytes::<1>(at).map(|[byte]| *byte)
    }

    #[inline(always)]
    fn eight(&self, at: usize) -> Option<u64> {
        self.bytes(at).map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// The next value, if it is there and ends at byte `end` at the latest. (It always does, since white space follows
    /// a record, or its brackets are balanced; but nothing should depend on that.)
    #[inline(always)]
    fn until(&self, end: usize) -> Option<ValueEnd> {
        if end <= self.length { ValueEnd::new(end) } else { None }
    }

    /// Whether `lead` stands at byte `at`; `first` says whether it would be the first of its object.
    #[inline(always)]
    pub fn lead(&self, lead: &Lead, at: usize, first: bool) -> Option<ValueEnd> {
        // (One comparison of 16 bytes would need vector registers, which takes longer.)
        let head = two(self.bytes(at)?);
        let same = head[0] & lead.mask[0] == lead.head[0]
            && head[1] & lead.mask[1] == lead.head[1]
            && first == lead.first
            && (lead.rest.is_empty() || self.wide[at + 16..].starts_with(&lead.rest));
        if same { self.until(at + lead.length) } else { None }
    }

    /// Whether a `}` stands at byte `at`.
    #[inline(always)]
    pub fn closes(&self, at: usize) -> bool {
        at < self.length && self.byte(at) == Some(b'}')
    }

    /// `null`
    #[inline]
    pub fn null(&self, at: usize) -> Option<ValueEnd> {
        let word = self.eight(at)?.to_le_bytes();
        if word.starts_with(b"null") && is_end(word[4]) { self.until(at + 4) } else { None }
    }

    /// `true` or `false`
    #[inline]
    pub fn truth(&self, at: usize) -> Option<(bool, ValueEnd)> {
        let word = self.eight(at)?.to_le_bytes();
        if word.starts_with(b"true") && is_end(word[4]) {
            return Some((true, self.until(at + 4)?));
        }
        if word.starts_with(b"false") && is_end(word[5]) {
            return Some((false, self.until(at + 5)?));
        }
        None
    }

    /// A text without escapes.
    #[inline(always)]
    pub fn text(&self, at: usize) -> Option<(Text<'a>, ValueEnd)> {
        let start = at + 1;
        let bytes: &[u8; 16] = self.bytes(start)?;
        let length = first_special(bytes);
        if length <= INLINE {
            let end = self.until(start + length + 1)?;
            if self.byte(at) != Some(b'"') || bytes[length] != b'"' {
                return None;
            }
            let mask = !(u128::MAX << (8 * length));
            return Some((Text::Short((u128::from_le_bytes(*bytes) & mask) << 32 | length as u128), end));
        }
        let end = self.text_end(at)?;
        Some((Text::Long(self.wide.get(start..end.get() - 1)?), end))
    }

    /// Where a text ends that has no escapes.
    #[inline]
    fn text_end(&self, at: usize) -> Option<ValueEnd> {
        if self.byte(at) != Some(b'"') {
            return None;
        }
        let mut end = at + 1;
        loop {
            let bytes: &[u8; 16] = self.bytes(end)?;
            let length = first_special(bytes);
            end += length;
            match bytes.get(length) {
                Some(b'"') => return self.until(end + 1),
                Some(_) => return None,
                None => {}
            }
        }
    }

    /// A number of at most 15 digits, without an exponent.
    #[inline(always)]
    pub fn number(&self, at: usize) -> Option<(Short, ValueEnd)> {
        let mut start = at;
        let mut word = self.eight(at)?;
        let negative = word & 0xff == u64::from(b'-');
        if negative {
            start += 1;
            word = self.eight(start)?;
        }
        let (mut count, mut digits) = leading_digits(word);
        // A needless 0 is a fault. (Both are evaluated, since a branch would be mispredicted too often.)
        if (count == 0) | ((count > 1) & (word & 0xff == u64::from(b'0'))) {
            return None;
        }
        if count == 8 {
            let (more, low) = leading_digits(self.eight(start + 8)?);
            if more == 8 {
                return None;
            }
            digits = digits * POWERS[more] + low * u64::from(more != 0);
            count += more;
        }
        let mut end = start + count;
        let mut behind = self.byte(end)?;
        let mut fraction = 0;
        if behind == b'.' {
            let low;
            (fraction, low) = leading_digits(self.eight(end + 1)?);
            if fraction == 0 || count + fraction > MOST_DIGITS {
                return None;
            }
            digits = digits * POWERS[fraction] + low;
            end += 1 + fraction;
            behind = self.byte(end)?;
        }
        if !is_end(behind) {
            return None;
        }
        Some((Short { negative, digits, fraction }, self.until(end)?))
    }

    /// Skips a text, a number or a word.
    #[inline]
    pub fn skip(&self, at: usize) -> Option<ValueEnd> {
        match self.byte(at)? {
            b'"' => self.text_end(at),
            b'-' | b'0'..=b'9' => self.number(at).map(|(_, end)| end),
            b'n' => self.null(at),
            _ => self.truth(at).map(|(_, end)| end),
        }
    }
}

/// Whether the byte may follow a number or a word.
#[inline(always)]
fn is_end(byte: u8) -> bool {
    const ENDS: [bool; 256] = {
        let mut ends = [false; 256];
        let bytes = b",}] \t\n\r";
        let mut at = 0;
        while at < bytes.len() {
            ends[bytes[at] as usize] = true;
            at += 1;
        }
        ends
    };
    ENDS[usize::from(byte)]
}

/// Sixteen bytes as two words.
#[inline(always)]
fn two(bytes: &[u8; 16]) -> [u64; 2] {
    let value = u128::from_le_bytes(*bytes);
    [value as u64, (value >> 64) as u64]
}

/// The index of the first byte that needs an escape in a text or ends it: a quote, a backslash or a control character;
/// 16 if there is none.
#[inline(always)]
fn first_special(bytes: &[u8; 16]) -> usize {
    #[cfg(target_arch = "x86_64")]
    return first_special_sse2(bytes);
    #[cfg(not(target_arch = "x86_64"))]
    return first_special_portable(bytes);
}

/// With SSE2, which every processor of this kind has.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn first_special_sse2(bytes: &[u8; 16]) -> usize {
    use std::arch::x86_64::{
        _mm_cmpeq_epi8, _mm_loadu_si128, _mm_min_epu8, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8,
    };
    // SAFETY: there are 16 bytes, the load needs no alignment, and SSE2 is part of the architecture.
    let mask = unsafe {
        let text = _mm_loadu_si128(bytes.as_ptr().cast());
        let quotes = _mm_cmpeq_epi8(text, _mm_set1_epi8(b'"'.cast_signed()));
        let backslashes = _mm_cmpeq_epi8(text, _mm_set1_epi8(b'\\'.cast_signed()));
        // There is no comparison of unsigned bytes, but a byte that equals its minimum with 0x1f is below a space.
        let controls = _mm_cmpeq_epi8(_mm_min_epu8(text, _mm_set1_epi8(0x1f)), text);
        _mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quotes, backslashes), controls))
    };
    (mask.cast_unsigned() | 1 << 16).trailing_zeros() as usize
}

#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline(always)]
fn first_special_portable(bytes: &[u8; 16]) -> usize {
    let (halves, _) = bytes.as_chunks::<8>();
    halves
        .iter()
        .enumerate()
        .find_map(|(index, half)| special_in(u64::from_le_bytes(*half)).map(|place| index * 8 + place))
        .unwrap_or(16)
}

/// The same for the eight bytes of a word: `x - 0x01…01 & !x & 0x80…80` is not zero exactly if a byte of `x` is zero
/// (Mycroft), and the lowest bit that it sets belongs to the first such byte; the same with `0x20` finds bytes below a
/// space.
#[inline(always)]
pub fn special_in(word: u64) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    let zero_in = |x: u64| x.wrapping_sub(ONES) & !x & HIGHS;
    let quotes = zero_in(word ^ (ONES * u64::from(b'"')));
    let backslashes = zero_in(word ^ (ONES * u64::from(b'\\')));
    let controls = word.wrapping_sub(ONES * 0x20) & !word & HIGHS;
    let found = quotes | backslashes | controls;
    (found != 0).then(|| (found.trailing_zeros() / 8) as usize)
}

/// A number of at most 15 digits, without an exponent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Short {
    /// It has a minus.
    pub negative: bool,
    /// Its digits, including those after the point, as one number.
    pub digits: u64,
    /// How many of them are after the point; 0 without one.
    pub fraction: usize,
}

impl Short {
    /// The whole number, if it has no fraction.
    #[inline(always)]
    pub fn integer(self) -> Option<i64> {
        let value = self.digits.cast_signed();
        (self.fraction == 0).then_some(if self.negative { -value } else { value })
    }

    /// The nearest float. The digits and the power of ten of the fraction are floats without rounding, so that their
    /// quotient is rounded correctly (Clinger, "How to read floating point numbers accurately", 1990).
    #[inline(always)]
    #[allow(clippy::cast_precision_loss)]
    pub fn float64(self) -> f64 {
        let value = self.digits as f64 / POWERS[self.fraction] as f64;
        if self.negative { -value } else { value }
    }

    /// The same in single precision, which has 24 bits; 5 to the power of 10 has fewer.
    #[inline(always)]
    #[allow(clippy::cast_precision_loss)]
    pub fn float32(self) -> Option<f32> {
        if self.digits >= 1 << 24 || self.fraction > 10 {
            return None;
        }
        let value = self.digits as f32 / POWERS[self.fraction] as f32;
        Some(if self.negative { -value } else { value })
    }

    /// The number in units of 10^-`scale`, if it has no finer digits and at most `precision` in all.
    pub fn decimal(self, precision: u8, scale: i8) -> Option<i128> {
        let zeros = usize::try_from(scale).ok()?.checked_sub(self.fraction)?;
        let value = i128::from(self.digits) * i128::from(*POWERS.get(zeros)?);
        let fits = 10_i128.checked_pow(u32::from(precision)).is_none_or(|limit| value < limit);
        fits.then_some(if self.negative { -value } else { value })
    }
}

/// How many of the eight bytes are digits, from the first on, and their number, which is meaningless if there are none.
///
/// A byte is no digit if `x = byte ^ 0x30` is above 9: then `(x & 0x7f) + 0x76`, or `x` itself, has the high bit, and
/// no carry reaches the next byte. The digits are moved to the end of the word, with zeros before them, and neighbours
/// are added up to pairs, those to fours, those to all eight (Johnny Lee, "Fast numeric string to int").
#[inline(always)]
fn leading_digits(word: u64) -> (usize, u64) {
    const ZEROS: u64 = 0x3030_3030_3030_3030;
    const LOWS: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let x = word ^ ZEROS;
    let others = (((x & LOWS) + 0x7676_7676_7676_7676) | x) & !LOWS;
    let count = (others.trailing_zeros() / 8) as usize;
    let ones = x.wrapping_shl(64 - 8 * count as u32);
    let pairs = (ones.wrapping_mul(10 << 8 | 1) >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(100 << 16 | 1) >> 16) & 0x0000_ffff_0000_ffff;
    (count, fours.wrapping_mul(10_000 << 32 | 1) >> 32)
}

#[cfg(test)]
mod tests {
    use arrow::array::make_view;
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Option<Short> {
        let wide = [text.as_bytes(), &[b'\n'; MARGIN]].concat();
        let (short, end) = Margin::new(&wide, text.len()).number(0)?;
        assert_eq!(end.get(), text.trim_end_matches(',').len());
        Some(short)
    }

    #[test]
    fn what_is_no_short_number_is_left() {
        for text in
            ["", "-", "01", "-00", "1.", ".5", "1e3", "1.5E1", "1x", "1.5.5", "1_0", "1é", "+1", "1\"", "1:", "1-"]
        {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(read("1234567890123456"), None, "16 digits");
        assert_eq!(read("1.123456789"), None, "9 digits behind the point");
        assert_eq!(read("-0.05,"), Some(Short { negative: true, digits: 5, fraction: 2 }));
        assert_eq!(read("12345678"), Some(Short { negative: false, digits: 12_345_678, fraction: 0 }));
    }

    #[test]
    fn without_a_margin_nothing_is_said() {
        let wide = [br#"{"a":1}"#.as_slice(), &[b'\n'; MARGIN]].concat();
        let ends = |margin: Margin<'_>| margin.skip(5).map(ValueEnd::get);
        assert_eq!(ends(Margin::new(&wide, 7)), Some(6));
        assert_eq!(ends(Margin::new(&wide, 8)), None);
        assert_eq!(ends(Margin::new(&wide, 5)), None, "the value lies behind the record");
    }

    #[test]
    fn words_and_texts_are_skipped() {
        for (value, taken) in [
            ("null", true),
            ("true", true),
            ("false", true),
            ("nul", false),
            ("nulls", false),
            ("falsee", false),
            ("true_", false),
            ("\"\"", true),
            ("\"a\"", true),
            ("\"twelve bytes\"", true),
            ("\"thirteen byte\"", true),
            ("\"sixteen bytes ..\"", true),
            ("\"seventeen bytes .\"", true),
            ("\"é\"", true),
            ("\"a\\n\"", false),
            ("\"a\tb\"", false),
            ("\"a", false),
            ("[]", false),
            ("{}", false),
            ("-1.5", true),
            ("x", false),
        ] {
            for behind in [",", "}", " "] {
                let text = format!("{value}{behind}");
                let wide = [text.as_bytes(), &[b'\n'; MARGIN]].concat();
                let margin = Margin::new(&wide, text.len());
                assert_eq!(margin.skip(0).map(ValueEnd::get), taken.then_some(value.len()), "{text}");
                if let Some((text, _)) = margin.text(0) {
                    let inner = &value.as_bytes()[1..value.len() - 1];
                    let expected =
                        if inner.len() > INLINE { Text::Long(inner) } else { Text::Short(make_view(inner, 0, 0)) };
                    assert_eq!(text, expected);
                }
            }
        }
    }

    #[test]
    fn special_bytes_are_found_anywhere() {
        for at in 0..17 {
            for byte in 0..=255_u8 {
                let mut bytes = [b'a'; 16];
                bytes[15] = 0x80;
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
                let special = matches!(byte, b'"' | b'\\' | 0..0x20) && at < 16;
                let expected = if special { at } else { 16 };
                assert_eq!((first_special(&bytes), first_special_portable(&bytes)), (expected, expected));
            }
        }
    }

    #[test]
    fn a_lead_is_known_again() {
        let text = br#", "some rather long key": 1, "some rather long kex": 2"#;
        let wide = [text, &[b'\n'; MARGIN][..]].concat();
        let margin = Margin::new(&wide, text.len());
        for length in [1, 5, 15, 16, 17, 26] {
            let mut lead = Lead::default();
            assert_eq!(margin.lead(&lead, 0, false), None);
            lead.learn(&wide[..length], false);
            assert_eq!(margin.lead(&lead, 0, false).map(ValueEnd::get), Some(length));
            assert_eq!(margin.lead(&lead, 0, true), None);
            assert_eq!(margin.lead(&lead, 1, false), None);
            assert_eq!(margin.lead(&lead, 27, false).is_some(), length < 22, "{length}");
            assert_eq!(Margin::new(&wide, length - 1).lead(&lead, 0, false), None);
        }
        let mut lead = Lead::default();
        lead.learn(&[b'\n'; 20], true);
        assert_eq!(margin.lead(&lead, wide.len() - 16, true), None);
    }

    proptest! {
        #[test]
        fn short_numbers_are_read_like_long_ones(text in "-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,17})?") {
            let digits = text.bytes().filter(u8::is_ascii_digit).count();
            let Some(short) = read(&text) else {
                prop_assert!(digits > 8, "{}", text);
                return Ok(());
            };
            prop_assert_eq!(short.float64().to_bits(), text.parse::<f64>().unwrap().to_bits());
            prop_assert_eq!(short.integer(), text.parse::<i64>().ok());
            if let Some(value) = short.float32() {
                prop_assert_eq!(value.to_bits(), text.parse::<f32>().unwrap().to_bits());
            }
        }

        #[test]
        fn digits_are_counted(text in "[0-9/:.-]{8}") {
            let (count, value) = leading_digits(u64::from_le_bytes(*text.as_bytes().first_chunk().unwrap()));
            prop_assert_eq!(count, text.bytes().take_while(u8::is_ascii_digit).count());
            prop_assert!(count == 0 || value == text[..count].parse::<u64>().unwrap());
        }
    }
}
