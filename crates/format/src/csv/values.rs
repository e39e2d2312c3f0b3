//! The text of one field as a value of its type, straight from the bytes.

use std::borrow::Cow;

use arrow::datatypes::{DataType, i256};
use chrono::format::{Item, Parsed, StrftimeItems};

use super::spec::{Conventions, Dialect, matches_any};
use super::time::{self, TimeFault};

/// How a field's raw bytes become its content.
#[derive(Debug, Clone)]
pub(crate) struct Syntax {
    dialect: Dialect,
    nulls: Vec<Vec<u8>>,
    /// Bit i is set if one of `nulls` has i bytes; bit 63 is for all longer ones.
    null_lengths: u64,
}

/// The content of a field.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Content<'a> {
    /// Without the quotes around it.
    pub text: &'a [u8],
    /// Whether there were quotes around it.
    pub quoted: bool,
    /// Whether `text` still holds escapes.
    pub escaped: bool,
}

impl Syntax {
    /// The syntax of a dialect with these texts for null.
    pub fn new(dialect: Dialect, nulls: &[String]) -> Self {
        let null_lengths = nulls.iter().fold(0, |lengths, text| lengths | 1 << text.len().min(63));
        Syntax { dialect, nulls: nulls.iter().map(|text| text.clone().into_bytes()).collect(), null_lengths }
    }

    /// Bytes of the delimiter.
    pub fn delimiter_length(&self) -> usize {
        self.dialect.delimiter.len()
    }

    /// The content of a field with a valid structure.
    #[inline]
    pub fn content<'a>(&self, mut raw: &'a [u8]) -> Content<'a> {
        if self.dialect.trim {
            while let [rest @ .., last] = raw
                && self.dialect.is_blank(*last)
            {
                raw = rest;
            }
            while let [first, rest @ ..] = raw
                && self.dialect.is_blank(*first)
            {
                raw = rest;
            }
        }
        match (self.dialect.quote, raw) {
            (Some(quote), [first, inner @ .., _]) if *first == quote => {
                let escaped = memchr::memchr(self.dialect.escape.unwrap_or(quote), inner).is_some();
                Content { text: inner, quoted: true, escaped }
            }
            _ => Content { text: raw, quoted: false, escaped: false },
        }
    }

    /// Appends the content without its escapes.
    pub fn unescape(&self, text: &[u8], output: &mut Vec<u8>) {
        let Some(quote) = self.dialect.quote else {
            output.extend_from_slice(text);
            return;
        };
        let escape = self.dialect.escape.unwrap_or(quote);
        let mut rest = text;
        while let Some(at) = memchr::memchr(escape, rest) {
            output.extend_from_slice(&rest[..at]);
            match rest.get(at + 1) {
                Some(next) if *next == quote || *next == escape => {
                    output.push(*next);
                    rest = &rest[at + 2..];
                }
                _ => {
                    output.push(escape);
                    rest = &rest[at + 1..];
                }
            }
        }
        output.extend_from_slice(rest);
    }

    /// Whether the text means null. Most texts already differ in their length.
    #[inline]
    pub fn is_null(&self, text: &[u8]) -> bool {
        self.null_lengths >> text.len().min(63) & 1 != 0
            && (text.is_empty() || self.nulls.iter().any(|null| null == text))
    }

    /// The content of the field as a new text.
    pub fn to_text(&self, raw: &[u8]) -> Vec<u8> {
        let content = self.content(raw);
        let mut text = Vec::new();
        if content.escaped {
            self.unescape(content.text, &mut text)
        } else {
            text.extend_from_slice(content.text)
        }
        text
    }
}

/// Why a text is no value of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueFault {
    /// It is malformed.
    Malformed,
    /// The type cannot hold it.
    OutOfRange,
    /// The type cannot hold all of its digits.
    TooFine,
    /// It has an offset from UTC, and the type has no zone.
    HasZone,
}

impl From<TimeFault> for ValueFault {
    fn from(fault: TimeFault) -> Self {
        match fault {
            TimeFault::Malformed => ValueFault::Malformed,
            TimeFault::TooFine => ValueFault::TooFine,
            TimeFault::OutOfRange => ValueFault::OutOfRange,
        }
    }
}

type Value<T> = Result<T, ValueFault>;

/// Converts texts to the values of one column.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    decimal: u8,
    thousands: Option<Vec<u8>>,
    true_texts: Vec<String>,
    false_texts: Vec<String>,
    /// `None`: ISO 8601.
    format: Option<Vec<Item<'static>>>,
}

impl Reader {
    /// A reader for a column of `data_type`; `format` is its strftime format, if it has one.
    pub fn new(conventions: &Conventions, data_type: &DataType, format: Option<&str>) -> Self {
        let format = format.or(match data_type {
            DataType::Date32 => conventions.date_format.as_deref(),
            DataType::Time64(_) => conventions.time_format.as_deref(),
            DataType::Timestamp(..) => conventions.timestamp_format.as_deref(),
            _ => None,
        });
        Reader {
            decimal: conventions.decimal,
            thousands: conventions.thousands.clone().map(String::into_bytes),
            true_texts: conventions.true_texts.clone(),
            false_texts: conventions.false_texts.clone(),
            format: format.and_then(|format| StrftimeItems::new(format).parse_to_owned().ok()),
        }
    }

    /// `true` or `false`.
    pub fn boolean(&self, text: &[u8]) -> Value<bool> {
        if matches_any(text, &self.true_texts) {
            Ok(true)
        } else if matches_any(text, &self.false_texts) {
            Ok(false)
        } else {
            Err(ValueFault::Malformed)
        }
    }

    /// A signed whole number.
    #[inline]
    pub fn signed(&self, text: &[u8]) -> Value<i64> {
        match short_signed(text).filter(|_| self.thousands.is_none()) {
            Some(value) => Ok(value),
            None => self.any_signed(text),
        }
    }

    /// The same. Not a part of `signed`: a text that may be a new one is passed in memory, which took longer than
    /// reading a short number.
    #[inline(never)]
    fn any_signed(&self, text: &[u8]) -> Value<i64> {
        let text = self.whole(text)?;
        let (negative, digits) = signed_digits(&text);
        if let Some(value) = short_signed(&text) {
            return Ok(value);
        }
        if digits.is_empty() {
            return Err(ValueFault::Malformed);
        }
        let mut value: i64 = 0;
        let mut fits = true;
        for digit in digits {
            let digit = digit.wrapping_sub(b'0');
            if digit > 9 {
                return Err(ValueFault::Malformed);
            }
            // Negative numbers reach one further: count downwards for them.
            let digit = if negative { -i64::from(digit) } else { i64::from(digit) };
            match value.checked_mul(10).and_then(|value| value.checked_add(digit)) {
                Some(next) => value = next,
                None => fits = false,
            }
        }
        if fits { Ok(value) } else { Err(ValueFault::OutOfRange) }
    }

    /// A whole number that is not negative.
    #[inline]
    pub fn unsigned(&self, text: &[u8]) -> Value<u64> {
        let text = self.whole(text)?;
        let (negative, digits) = signed_digits(&text);
        if digits.is_empty() || digits.iter().any(|digit| !digit.is_ascii_digit()) {
            return Err(ValueFault::Malformed);
        }
        let add = |value: u64, digit: &u8| value.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
        match digits.iter().try_fold(0, add) {
            Some(value) if value == 0 || !negative => Ok(value),
            _ => Err(ValueFault::OutOfRange),
        }
    }

    /// Whether numbers have a point before the fraction, and nothing between thousands.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.decimal == b'.' && self.thousands.is_none()
    }

    /// A number with a fraction or an exponent, `nan`, or an infinity.
    #[inline]
    pub fn float64(&self, text: &[u8]) -> Value<f64> {
        match short_decimal(text).filter(|_| self.is_plain()) {
            Some(value) => Ok(value),
            None => self.any_float64(text),
        }
    }

    #[inline(never)]
    fn any_float64(&self, text: &[u8]) -> Value<f64> {
        let text = self.plain(text)?;
        if let Some(value) = short_decimal(&text) {
            return Ok(value);
        }
        let value: f64 = lexical_core::parse(&text).map_err(|_| ValueFault::Malformed)?;
        if value.is_infinite() && text.iter().any(u8::is_ascii_digit) { Err(ValueFault::OutOfRange) } else { Ok(value) }
    }

    /// The same in single precision.
    pub fn float32(&self, text: &[u8]) -> Value<f32> {
        let text = self.plain(text)?;
        let value: f32 = lexical_core::parse(&text).map_err(|_| ValueFault::Malformed)?;
        if value.is_infinite() && text.iter().any(u8::is_ascii_digit) { Err(ValueFault::OutOfRange) } else { Ok(value) }
    }

    /// An exact number as a whole number of units of 10^-`scale`, with at most `precision` digits.
    pub fn decimal(&self, text: &[u8], precision: u8, scale: i8) -> Value<i256> {
        let text = self.plain(text)?;
        let (negative, unsigned) = match &*text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        let point = memchr::memchr(b'.', unsigned);
        let (whole, fraction) = match point {
            Some(at) => (&unsigned[..at], &unsigned[at + 1..]),
            None => (unsigned, &[][..]),
        };
        let digits = || whole.iter().chain(fraction);
        if digits().next().is_none() || digits().any(|digit| !digit.is_ascii_digit()) {
            return Err(ValueFault::Malformed);
        }
        let scale = usize::try_from(scale).unwrap_or(0);
        let (kept, fine) = fraction.split_at(fraction.len().min(scale));
        if fine.iter().any(|digit| *digit != b'0') {
            return Err(ValueFault::TooFine);
        }
        let zeros = std::iter::repeat_n(&b'0', scale - kept.len());
        let significant = whole.iter().chain(kept).chain(zeros).skip_while(|digit| **digit == b'0');
        let mut value = i256::ZERO;
        let mut count = 0;
        for digit in significant {
            count += 1;
            if count > usize::from(precision) {
                return Err(ValueFault::OutOfRange);
            }
            let digit = i256::from_i128(i128::from(digit - b'0'));
            value = value.wrapping_mul(i256::from_i128(10)).wrapping_add(digit);
        }
        Ok(if negative { value.wrapping_neg() } else { value })
    }

    /// A date as days since 1970-01-01.
    pub fn date(&self, text: &[u8]) -> Value<i32> {
        let Some(items) = &self.format else {
            return time::date(text).ok_or(ValueFault::Malformed);
        };
        let date = parsed(text, items)?.to_naive_date().map_err(|_| ValueFault::Malformed)?;
        i32::try_from(date.signed_duration_since(chrono::NaiveDate::default()).num_days())
            .map_err(|_| ValueFault::OutOfRange)
    }

    /// A time of day as microseconds since midnight.
    pub fn time(&self, text: &[u8]) -> Value<i64> {
        let Some(items) = &self.format else {
            return Ok(time::time(text)?);
        };
        let time = parsed(text, items)?.to_naive_time().map_err(|_| ValueFault::Malformed)?;
        let elapsed = time.signed_duration_since(chrono::NaiveTime::MIN);
        elapsed.num_microseconds().ok_or(ValueFault::OutOfRange)
    }

    /// A timestamp as microseconds since 1970-01-01. With `zone`, an offset is taken into account and a time without
    /// one is UTC; without it, an offset is a fault.
    pub fn timestamp(&self, text: &[u8], zone: bool) -> Value<i64> {
        let Some(items) = &self.format else {
            return match time::timestamp(text)? {
                (_, true) if !zone => Err(ValueFault::HasZone),
                (value, _) => Ok(value),
            };
        };
        let parsed = parsed(text, items)?;
        let offset = parsed.offset();
        if offset.is_some() && !zone && parsed.timestamp().is_none() {
            return Err(ValueFault::HasZone);
        }
        let naive = match parsed.to_naive_datetime_with_offset(offset.unwrap_or(0)) {
            Ok(moment) => moment,
            // The format may hold no time at all.
            Err(_) => parsed.to_naive_date().map_err(|_| ValueFault::Malformed)?.and_time(chrono::NaiveTime::MIN),
        };
        Ok(naive.and_utc().timestamp_micros() - i64::from(offset.unwrap_or(0)) * 1_000_000)
    }

    /// Bytes as pairs of hexadecimal digits.
    pub fn binary(text: &[u8], output: &mut Vec<u8>) -> Value<()> {
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        if !text.len().is_multiple_of(2) {
            return Err(ValueFault::Malformed);
        }
        for pair in text.chunks_exact(2) {
            let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
                return Err(ValueFault::Malformed);
            };
            output.push(high << 4 | low);
        }
        Ok(())
    }

    /// The number without its thousands separators.
    #[inline]
    fn whole<'a>(&self, text: &'a [u8]) -> Value<Cow<'a, [u8]>> {
        if self.thousands.is_none() { Ok(Cow::Borrowed(text)) } else { self.plain(text) }
    }

    /// The number with a point before its fraction and without thousands separators. A separator is between a digit and
    /// exactly three digits, before the fraction: `1.5` is not fifteen, and `0.125` not 125.
    #[inline]
    fn plain<'a>(&self, text: &'a [u8]) -> Value<Cow<'a, [u8]>> {
        if self.is_plain() {
            return Ok(Cow::Borrowed(text));
        }
        let mut number = Vec::with_capacity(text.len());
        let mut rest = text;
        let mut grouped = false;
        while let [first, behind @ ..] = rest {
            if let Some(after) = self.thousands.as_deref().and_then(|sign| rest.strip_prefix(sign)) {
                let digits = number.iter().rev().take_while(|byte| u8::is_ascii_digit(byte)).count();
                let leading_zero = number.len().checked_sub(digits).and_then(|at| number.get(at)) == Some(&b'0');
                let size_before = grouped || ((1..=3).contains(&digits) && !leading_zero);
                let size_after = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
                if !size_before || size_after != 3 || number.contains(&b'.') {
                    return Err(ValueFault::Malformed);
                }
                grouped = true;
                rest = after;
                continue;
            }
            match *first {
                sign if sign == self.decimal => number.push(b'.'),
                b'.' => return Err(ValueFault::Malformed),
                other => number.push(other),
            }
            rest = behind;
        }
        Ok(Cow::Owned(number))
    }
}

/// Whether a number is negative, and what is behind its sign.
#[inline]
fn signed_digits(text: &[u8]) -> (bool, &[u8]) {
    match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    }
}

/// The value of 1 to 18 digits with or without a sign; `None` for anything else.
#[inline]
fn short_signed(text: &[u8]) -> Option<i64> {
    let (negative, digits) = signed_digits(text);
    let value = i64::try_from(short_whole(digits)?).ok()?;
    Some(if negative { -value } else { value })
}

/// The value of 1 to 18 digits; `None` for anything else.
#[inline]
fn short_whole(digits: &[u8]) -> Option<u64> {
    if let Some(word) = up_to_eight(digits) {
        return eight_digits(word);
    }
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    let (eights, rest) = digits.as_chunks::<8>();
    let value = eights
        .iter()
        .try_fold(0, |value, eight| Some(value * 100_000_000 + eight_digits(u64::from_le_bytes(*eight))?))?;
    rest.iter().try_fold(value, |value, digit| {
        let digit = digit.wrapping_sub(b'0');
        (digit <= 9).then_some(value * 10 + u64::from(digit))
    })
}

const ZEROS: u64 = 0x3030_3030_3030_3030;

/// One to eight bytes as those of a word, the last one highest, with the digit zero before the first. It takes the same
/// few steps for all lengths: those of numbers in a column change too often for a branch to be foreseen.
#[inline]
fn up_to_eight(text: &[u8]) -> Option<u64> {
    let length = text.len();
    let word = match length {
        4..=8 => {
            let (first, last) = (text.first_chunk::<4>()?, text.last_chunk::<4>()?);
            u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << (8 * (length - 4))
        }
        // The first, the one in the middle and the last byte; some of them are the same.
        1..=3 => {
            let byte = |at: usize| u64::from(text[at]) << (8 * at);
            byte(0) | byte(length / 2) | byte(length - 1)
        }
        _ => return None,
    };
    let unused = 64 - 8 * length;
    Some(word << unused | ZEROS & !(u64::MAX << unused))
}

/// The value of eight digits, the first one lowest: neighbours are combined to pairs, to fours, and to all eight, each
/// time within one word (Johnny Lee, "Fast numeric string to int"; the check that they are digits is Lemire's, from
/// simdjson).
#[inline]
fn eight_digits(word: u64) -> Option<u64> {
    const HIGH: u64 = 0xf0f0_f0f0_f0f0_f0f0;
    let above = word.wrapping_add(0x0606_0606_0606_0606);
    if (word & HIGH) | ((above & HIGH) >> 4) != ZEROS | ZEROS >> 4 {
        return None;
    }
    let ones = word - ZEROS;
    let pairs = (ones.wrapping_mul(10 << 8 | 1) >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(100 << 16 | 1) >> 16) & 0x0000_ffff_0000_ffff;
    Some(fours.wrapping_mul(10_000 << 32 | 1) >> 32)
}

/// The value of a decimal number of at most 15 digits, without an exponent; `None` for anything else. Such a number and
/// the power of ten of its fraction are floats without rounding, so that their quotient is rounded correctly (Clinger,
/// "How to read floating point numbers accurately", 1990).
#[inline]
#[allow(clippy::cast_precision_loss)]
fn short_decimal(text: &[u8]) -> Option<f64> {
    const POWERS: [f64; 16] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];
    let (negative, unsigned) = match text {
        [b'-', unsigned @ ..] => (true, unsigned),
        unsigned => (false, unsigned),
    };
    if let Some(word) = up_to_eight(unsigned) {
        let (digits, fraction) = without_point(word);
        if digits == ZEROS && !unsigned.iter().any(u8::is_ascii_digit) {
            return None;
        }
        let value = eight_digits(digits)? as f64 / POWERS[fraction];
        return Some(if negative { -value } else { value });
    }
    if unsigned.len() > 16 {
        return None;
    }
    let mut digits = 0_u64;
    let mut point = unsigned.len();
    for (at, byte) in unsigned.iter().enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit <= 9 {
            digits = digits * 10 + u64::from(digit);
        } else if *byte == b'.' && point == unsigned.len() {
            point = at;
        } else {
            return None;
        }
    }
    let fraction = unsigned.len().saturating_sub(point + 1);
    let count = point + fraction;
    if count == 0 || count > 15 {
        return None;
    }
    let value = digits as f64 / POWERS[fraction];
    Some(if negative { -value } else { value })
}

/// Eight bytes without the point among them, if there is one, and how many are behind it. Where it is is found by the
/// first byte that becomes zero (Mycroft's test; what it finds wrongly is behind the first).
#[inline]
fn without_point(word: u64) -> (u64, usize) {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let points = word ^ (ONES * 0x2e);
    let found = points.wrapping_sub(ONES) & !points & (ONES << 7);
    if found == 0 {
        return (word, 0);
    }
    let at = found.trailing_zeros() & !7;
    let before = word & !(u64::MAX << at);
    let behind = word & (u64::MAX << at) & !(0xff << at);
    (behind | before << 8 | u64::from(b'0'), 7 - (at / 8) as usize)
}

fn parsed(text: &[u8], items: &[Item<'static>]) -> Value<Parsed> {
    let text = std::str::from_utf8(text).map_err(|_| ValueFault::Malformed)?;
    let mut parsed = Parsed::new();
    chrono::format::parse(&mut parsed, text, items.iter()).map_err(|_| ValueFault::Malformed)?;
    Ok(parsed)
}

/// The text without spaces and tabs around it.
#[inline]
pub(crate) fn trimmed(text: &[u8]) -> &[u8] {
    match text {
        [b' ' | b'\t', ..] | [.., b' ' | b'\t'] => text.trim_ascii(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csv::spec::CsvSpec;

    fn reader(settings: serde_json::Value, data_type: &DataType) -> Reader {
        let spec: CsvSpec = serde_json::from_value(settings).unwrap();
        Reader::new(&spec.conventions(), data_type, None)
    }

    fn plain() -> Reader {
        reader(serde_json::json!({}), &DataType::Int64)
    }

    #[test]
    fn whole_numbers() {
        use ValueFault::{Malformed, OutOfRange};
        let cases: [(&str, Value<i64>); 11] = [
            ("0", Ok(0)),
            ("-9223372036854775808", Ok(i64::MIN)),
            ("9223372036854775807", Ok(i64::MAX)),
            ("9223372036854775808", Err(OutOfRange)),
            ("99999999999999999999999999", Err(OutOfRange)),
            ("+7", Ok(7)),
            ("", Err(Malformed)),
            ("-", Err(Malformed)),
            ("99999999999999999999999999x", Err(Malformed)),
            ("1.0", Err(Malformed)),
            ("1e3", Err(Malformed)),
        ];
        for (text, expected) in cases {
            assert_eq!(plain().signed(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(plain().unsigned(b"18446744073709551615"), Ok(u64::MAX));
        assert_eq!(plain().unsigned(b"18446744073709551616"), Err(OutOfRange));
        assert_eq!(plain().unsigned(b"-1"), Err(OutOfRange));
        assert_eq!(plain().unsigned(b"-0"), Ok(0));
        assert_eq!(plain().unsigned(b"1_0"), Err(Malformed));
    }

    #[test]
    fn floats() {
        for (text, expected) in [("1.5", 1.5), (".5", 0.5), ("5.", 5.0), ("-1e-3", -0.001), ("inf", f64::INFINITY)] {
            assert_eq!(plain().float64(text.as_bytes()), Ok(expected), "{text}");
        }
        assert!(plain().float64(b"NaN").unwrap().is_nan());
        assert_eq!(plain().float64(b"1e999"), Err(ValueFault::OutOfRange));
        assert_eq!(plain().float32(b"1e39"), Err(ValueFault::OutOfRange));
        for text in ["", "1,5", "1.5.5", "0x1", "1 5", "e5", "."] {
            assert_eq!(plain().float64(text.as_bytes()), Err(ValueFault::Malformed), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn short_numbers_are_read_like_long_ones(
            float in "-?[0-9]{0,9}\\.?[0-9]{0,9}|-?[0-9./:]{1,8}", whole in "[0-9/:]{1,7}|[0-9/:]{8}|[0-9]{1,20}",
        ) {
            let exact: Option<f64> = lexical_core::parse(float.as_bytes()).ok();
            if let Some(value) = short_decimal(float.as_bytes()) {
                proptest::prop_assert_eq!(Some(value.to_bits()), exact.map(f64::to_bits), "{}", float);
            } else {
                let digits = float.bytes().filter(u8::is_ascii_digit).count();
                proptest::prop_assert!(exact.is_none() || digits > 15 || float.len() > 16, "{}", float);
            }
            let exact: Option<u64> = whole.parse().ok().filter(|_| whole.len() <= 18);
            proptest::prop_assert_eq!(short_whole(whole.as_bytes()), exact);
        }
    }

    #[test]
    fn eight_bytes_that_are_no_digits_are_found_anywhere() {
        for at in 0..8 {
            for byte in (0..=255_u8).filter(|byte| !byte.is_ascii_digit()) {
                let mut digits = *b"12345678";
                digits[at] = byte;
                assert_eq!(short_whole(&digits), None, "{byte} at {at}");
            }
        }
        assert_eq!((short_whole(b"01234567"), short_whole(b"99999999")), (Some(1_234_567), Some(99_999_999)));
    }

    #[test]
    fn numbers_of_other_countries() {
        let german = reader(serde_json::json!({"decimal": ",", "thousands": "."}), &DataType::Float64);
        assert_eq!(german.float64(b"1.234.567,89"), Ok(1_234_567.89));
        assert_eq!(german.float64(b"-0,5"), Ok(-0.5));
        assert_eq!(german.signed(b"1.234"), Ok(1234));
        for text in ["1.5", "1.2345", "12345.678", "1,5.000", "1.234.56", "1..234", ".123", "0.123"] {
            assert_eq!(german.float64(text.as_bytes()), Err(ValueFault::Malformed), "{text}");
        }
        let comma = reader(serde_json::json!({"decimal": ","}), &DataType::Float64);
        assert_eq!(comma.float64(b"1.5"), Err(ValueFault::Malformed));
        let swiss = reader(serde_json::json!({"thousands": "’"}), &DataType::Float64);
        assert_eq!(swiss.float64("1’234.5".as_bytes()), Ok(1234.5));
    }

    #[test]
    fn decimals() {
        let decimal = |text: &str, precision, scale| plain().decimal(text.as_bytes(), precision, scale);
        let value = |value: i128| Ok(i256::from_i128(value));
        assert_eq!(decimal("123.45", 5, 2), value(12_345));
        assert_eq!(decimal("-0.5", 5, 2), value(-50));
        assert_eq!(decimal("+.5", 5, 2), value(50));
        assert_eq!(decimal("00123", 5, 2), value(12_300));
        assert_eq!(decimal("1.500", 5, 2), value(150));
        assert_eq!(decimal("1.505", 5, 2), Err(ValueFault::TooFine));
        assert_eq!(decimal("1234", 5, 2), Err(ValueFault::OutOfRange));
        for text in ["", ".", "-", "1e3", "1.2.3", "abc"] {
            assert_eq!(decimal(text, 5, 2), Err(ValueFault::Malformed), "{text}");
        }
        let nines = "9".repeat(76);
        assert_eq!(decimal(&nines, 76, 0).unwrap().to_string(), nines);
        assert_eq!(decimal(&format!("{nines}9"), 76, 0), Err(ValueFault::OutOfRange));
    }

    #[test]
    fn dates_in_formats() {
        use arrow::datatypes::TimeUnit;
        let date = reader(serde_json::json!({"date_format": "%d.%m.%Y"}), &DataType::Date32);
        assert_eq!(date.date(b"31.12.1970"), Ok(364));
        assert_eq!(date.date(b"31.13.1970"), Err(ValueFault::Malformed));
        assert_eq!(date.date(b"1970-12-31"), Err(ValueFault::Malformed));
        let zone = DataType::Timestamp(TimeUnit::Microsecond, None);
        let moment = reader(serde_json::json!({"timestamp_format": "%d/%m/%Y %H:%M:%S %z"}), &zone);
        assert_eq!(moment.timestamp(b"01/01/1970 01:00:00 +0100", true), Ok(0));
        assert_eq!(moment.timestamp(b"01/01/1970 01:00:00 +0100", false), Err(ValueFault::HasZone));
        let day = reader(serde_json::json!({"timestamp_format": "%d/%m/%Y"}), &zone);
        assert_eq!(day.timestamp(b"02/01/1970", false), Ok(time::DAY));
        let seconds = reader(serde_json::json!({"timestamp_format": "%s"}), &zone);
        assert_eq!(seconds.timestamp(b"1", false), Ok(1_000_000));
        let clock = reader(serde_json::json!({"time_format": "%I:%M %p"}), &DataType::Time64(TimeUnit::Microsecond));
        assert_eq!(clock.time(b"01:30 PM"), Ok(48_600_000_000));
    }

    #[test]
    fn binary_is_hexadecimal() {
        let mut bytes = Vec::new();
        Reader::binary(b"00fF", &mut bytes).unwrap();
        assert_eq!(bytes, [0, 255]);
        assert!(Reader::binary(b"0", &mut bytes).is_err() && Reader::binary(b"0g", &mut bytes).is_err());
    }
}
