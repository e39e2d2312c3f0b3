//! Converts single values between their text in JSON and their form in a column: numbers, decimals, dates, times,
//! bytes.
//!
//! Nothing is rounded or cut: a text that does not fit exactly is refused (except for floats, which take the nearest
//! value). Dates and times are ISO 8601, over the whole range that a column can hold.

use std::fmt::Write;

use chrono::format::ParseErrorKind;
use chrono::{DateTime, NaiveDate, NaiveDateTime, NaiveTime, Timelike};

use super::quick::Short;

/// Why a text is no value of the type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// It is malformed.
    NotOne,
    /// It is too large or too small.
    OutOfRange,
    /// It has digits after the point that the type cannot hold.
    Fraction,
}

const MICROSECONDS_A_DAY: i64 = 86_400_000_000;

/// The most digits that a decimal of 256 bits has.
const MOST_DIGITS: i64 = 76;

/// The value of a whole JSON number: `12`, `12.0` and `1.2e1` are the same.
pub fn integer(text: &str) -> Result<i128, Unfit> {
    scaled(text, 0)?.parse().map_err(|_| Unfit::OutOfRange)
}

/// A decimal of `precision` digits, `scale` of them after the point; `parse` reads a whole number.
pub fn decimal<N>(text: &str, precision: u8, scale: i8, parse: impl Fn(&str) -> Option<N>) -> Result<N, Unfit> {
    let digits = scaled(text, i64::from(scale))?;
    if digits.trim_start_matches('-').len() > usize::from(precision) {
        return Err(Unfit::OutOfRange);
    }
    parse(&digits).ok_or(Unfit::OutOfRange)
}

/// The digits of `text` times ten to the power of `scale`, with a minus if it is negative and without leading zeros.
fn scaled(text: &str, scale: i64) -> Result<String, Unfit> {
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent_of(exponent)?),
        None => (rest, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) {
        return Err(Unfit::NotOne);
    }
    let joined = format!("{whole}{fraction}");
    let digits = joined.trim_start_matches('0');
    let significant = digits.trim_end_matches('0');
    if significant.is_empty() {
        return Ok("0".to_owned());
    }
    // How many zeros follow the significant digits; a negative number means that there are digits after the point.
    let dropped = (digits.len() - significant.len()) as i64;
    let zeros = exponent.saturating_add(scale).saturating_sub(fraction.len() as i64).saturating_add(dropped);
    if zeros < 0 {
        return Err(Unfit::Fraction);
    }
    if zeros.saturating_add(significant.len() as i64) > MOST_DIGITS {
        return Err(Unfit::OutOfRange);
    }
    let mut result = String::with_capacity(significant.len() + zeros as usize + 1);
    if negative {
        result.push('-');
    }
    result.push_str(significant);
    result.extend(std::iter::repeat_n('0', zeros as usize));
    Ok(result)
}

fn exponent_of(text: &str) -> Result<i64, Unfit> {
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Unfit::NotOne);
    }
    // A number with more digits than this in its exponent is out of every range.
    let value = digits.parse().unwrap_or(i64::from(i32::MAX));
    Ok(if negative { -value } else { value })
}

/// The two kinds of floats.
pub trait Float: Copy + std::str::FromStr + Into<f64> {
    /// The float nearest to a short number, if a fast path finds it.
    fn of_short(short: Short) -> Option<Self>;
}

impl Float for f32 {
    #[inline]
    fn of_short(short: Short) -> Option<Self> {
        short.float32()
    }
}

impl Float for f64 {
    #[inline]
    fn of_short(short: Short) -> Option<Self> {
        Some(short.float64())
    }
}

/// A float. In double quotes (`quoted`) it may also be NaN or an infinity.
pub fn float<F: Float>(text: &str, quoted: bool) -> Result<F, Unfit> {
    let special = quoted && matches!(text, "NaN" | "Infinity" | "-Infinity");
    // The standard library reads more than JSON allows, such as `inf` and `.5`.
    if quoted && !special && !is_number(text) {
        return Err(Unfit::NotOne);
    }
    let value: F = text.parse().map_err(|_| Unfit::NotOne)?;
    if !special && !value.into().is_finite() {
        return Err(Unfit::OutOfRange);
    }
    Ok(value)
}

fn is_number(text: &str) -> bool {
    let mut cursor = super::cursor::Cursor::new(text);
    cursor.kind().is_ok_and(|kind| kind == super::cursor::Kind::Number)
        && cursor.number().is_ok_and(|number| number.len() == text.len())
}

/// Pairs of hexadecimal digits, added to `values`.
pub fn hexadecimal(text: &str, values: &mut Vec<u8>) -> Result<(), Unfit> {
    let digit = |byte: u8| (byte as char).to_digit(16).ok_or(Unfit::NotOne);
    if !text.len().is_multiple_of(2) {
        return Err(Unfit::NotOne);
    }
    for pair in text.as_bytes().chunks_exact(2) {
        values.push((digit(pair[0])? * 16 + digit(pair[1])?) as u8);
    }
    Ok(())
}

/// Reads fixed-width digits and separators off the front of a text.
struct Front<'a>(&'a str);

impl<'a> Front<'a> {
    /// A number of exactly `width` digits.
    fn digits(&mut self, width: usize) -> Result<i64, Unfit> {
        let bytes = self.0.as_bytes();
        let digits = bytes.get(..width).ok_or(Unfit::NotOne)?;
        if !digits.iter().all(u8::is_ascii_digit) {
            return Err(Unfit::NotOne);
        }
        self.0 = &self.0[width..];
        Ok(digits.iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0')))
    }

    /// One of `characters`, if it is next.
    fn one_of(&mut self, characters: &[char]) -> Option<char> {
        let first = self.0.chars().next().filter(|first| characters.contains(first))?;
        self.0 = &self.0[first.len_utf8()..];
        Some(first)
    }

    fn expect(&mut self, characters: &[char]) -> Result<char, Unfit> {
        self.one_of(characters).ok_or(Unfit::NotOne)
    }

    fn end(&self) -> Result<(), Unfit> {
        if self.0.is_empty() { Ok(()) } else { Err(Unfit::NotOne) }
    }

    /// `YYYY-MM-DD`, as days since 1970-01-01; a year of other than four digits has a sign.
    fn date(&mut self) -> Result<i64, Unfit> {
        let year = match self.one_of(&['+', '-']) {
            Some(sign) => {
                let width = self.0.bytes().take_while(u8::is_ascii_digit).count();
                if !(4..=9).contains(&width) {
                    return Err(Unfit::NotOne);
                }
                let year = self.digits(width)?;
                if sign == '-' { -year } else { year }
            }
            None => self.digits(4)?,
        };
        self.expect(&['-'])?;
        let month = self.digits(2)?;
        self.expect(&['-'])?;
        let day = self.digits(2)?;
        days_of(year, month, day).ok_or(Unfit::OutOfRange)
    }

    /// `hh:mm`, `hh:mm:ss` or `hh:mm:ss.ffffff`, as microseconds since midnight.
    fn time(&mut self) -> Result<i64, Unfit> {
        let hour = self.digits(2)?;
        self.expect(&[':'])?;
        let minute = self.digits(2)?;
        let mut second = 0;
        let mut fraction = 0;
        if self.one_of(&[':']).is_some() {
            second = self.digits(2)?;
            if self.one_of(&['.', ',']).is_some() {
                fraction = self.fraction()?;
            }
        }
        if hour > 23 || minute > 59 || second > 59 {
            return Err(Unfit::OutOfRange);
        }
        Ok(((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction)
    }

    /// The digits after the point, as microseconds.
    fn fraction(&mut self) -> Result<i64, Unfit> {
        let width = self.0.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, rest) = self.0.split_at(width);
        self.0 = rest;
        let (kept, finer) = digits.split_at(width.min(6));
        if kept.is_empty() {
            return Err(Unfit::NotOne);
        }
        if finer.bytes().any(|digit| digit != b'0') {
            return Err(Unfit::Fraction);
        }
        let value: i64 = kept.parse().map_err(|_| Unfit::NotOne)?;
        Ok(value * 10_i64.pow(6 - kept.len() as u32))
    }

    /// `Z`, `±hh`, `±hhmm` or `±hh:mm`, as microseconds east of UTC; `None` at the end of the text.
    fn zone(&mut self) -> Result<Option<i64>, Unfit> {
        if self.0.is_empty() {
            return Ok(None);
        }
        if self.one_of(&['Z', 'z']).is_some() {
            return Ok(Some(0));
        }
        let sign = if self.expect(&['+', '-'])? == '-' { -1 } else { 1 };
        let hours = self.digits(2)?;
        let colon = self.one_of(&[':']).is_some();
        let minutes = if colon || !self.0.is_empty() { self.digits(2)? } else { 0 };
        if hours > 23 || minutes > 59 {
            return Err(Unfit::OutOfRange);
        }
        Ok(Some(sign * (hours * 60 + minutes) * 60_000_000))
    }
}

/// A date, as days since 1970-01-01.
pub fn date(text: &str) -> Result<i32, Unfit> {
    let mut front = Front(text);
    let days = front.date()?;
    front.end()?;
    i32::try_from(days).map_err(|_| Unfit::OutOfRange)
}

/// A time of day, as microseconds since midnight.
pub fn time(text: &str) -> Result<i64, Unfit> {
    let mut front = Front(text);
    let time = front.time()?;
    front.end()?;
    Ok(time)
}

/// A moment, as microseconds since 1970-01-01T00:00 in the text's own clock; with an offset in the text, in UTC.
/// A date alone is its midnight.
pub fn timestamp(text: &str) -> Result<i64, Unfit> {
    let mut front = Front(text);
    let days = front.date()?;
    let mut microseconds = 0;
    if front.one_of(&['T', 't', ' ']).is_some() {
        microseconds = front.time()?;
        front.one_of(&[' ']);
        microseconds -= front.zone()?.unwrap_or(0);
    }
    front.end()?;
    let total = i128::from(days) * i128::from(MICROSECONDS_A_DAY) + i128::from(microseconds);
    i64::try_from(total).map_err(|_| Unfit::OutOfRange)
}

/// A date written in a `format` of strftime.
pub fn formatted_date(text: &str, format: &str) -> Result<i32, Unfit> {
    let date = NaiveDate::parse_from_str(text, format).map_err(unfit)?;
    Ok(date.to_epoch_days())
}

/// A time of day written in a `format` of strftime.
pub fn formatted_time(text: &str, format: &str) -> Result<i64, Unfit> {
    let time = NaiveTime::parse_from_str(text, format).map_err(unfit)?;
    whole_microseconds(time)?;
    Ok(i64::from(time.num_seconds_from_midnight()) * 1_000_000 + i64::from(time.nanosecond() / 1000))
}

/// A moment written in a `format` of strftime; a format with an offset (`%z`) gives UTC, one without a time of day
/// midnight.
pub fn formatted_timestamp(text: &str, format: &str) -> Result<i64, Unfit> {
    let moment = match DateTime::parse_from_str(text, format) {
        Ok(moment) => moment.naive_utc(),
        Err(_) => match NaiveDateTime::parse_from_str(text, format) {
            Ok(moment) => moment,
            Err(cause) if cause.kind() == ParseErrorKind::NotEnough => {
                NaiveDate::parse_from_str(text, format).map_err(unfit)?.and_time(NaiveTime::MIN)
            }
            Err(cause) => return Err(unfit(cause)),
        },
    };
    whole_microseconds(moment.time())?;
    Ok(moment.and_utc().timestamp_micros())
}

fn whole_microseconds(time: NaiveTime) -> Result<(), Unfit> {
    match time.nanosecond() {
        // chrono keeps a leap second as more than a whole second; a column cannot hold it.
        1_000_000_000.. => Err(Unfit::OutOfRange),
        nanoseconds if nanoseconds.is_multiple_of(1000) => Ok(()),
        _ => Err(Unfit::Fraction),
    }
}

fn unfit(cause: chrono::ParseError) -> Unfit {
    match cause.kind() {
        ParseErrorKind::OutOfRange | ParseErrorKind::Impossible => Unfit::OutOfRange,
        _ => Unfit::NotOne,
    }
}

/// Days since 1970-01-01 of a date of the proleptic Gregorian calendar, if there is such a date. (Algorithm: Howard
/// Hinnant, "chrono-compatible low-level date algorithms", `days_from_civil`.)
fn days_of(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1..=12).contains(&month) || day < 1 {
        return None;
    }
    let shifted = if month > 2 { year } else { year - 1 };
    let era = shifted.div_euclid(400);
    let year_of_era = shifted.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = era * 146_097 + day_of_era - 719_468;
    // A day beyond the month's end would be one of the next month.
    (civil_of(days) == (year, month, day)).then_some(days)
}

/// Year, month and day of a day since 1970-01-01. (The same source, `civil_from_days`.)
fn civil_of(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Writes a date, given as days since 1970-01-01.
pub fn write_date(days: i64, output: &mut String) {
    let (year, month, day) = civil_of(days);
    // Writing to a string cannot fail.
    let _ = match year {
        0..=9999 => write!(output, "{year:04}-{month:02}-{day:02}"),
        _ => write!(output, "{year:+05}-{month:02}-{day:02}"),
    };
}

/// Writes a time of day, given in units of which a second has `a_second`, with as many digits after the point as that
/// takes (none if the fraction is zero).
pub fn write_time(time: i64, a_second: i64, output: &mut String) {
    let (seconds, fraction) = (time.div_euclid(a_second), time.rem_euclid(a_second));
    let _ = write!(output, "{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    if fraction != 0 {
        let width = a_second.ilog10() as usize;
        let _ = write!(output, ".{fraction:0width$}");
    }
}

/// Writes a moment, given in units of which a second has `a_second` since 1970-01-01, followed by `Z` if it is in UTC.
pub fn write_timestamp(moment: i64, a_second: i64, utc: bool, output: &mut String) {
    let a_day = a_second.saturating_mul(86_400);
    write_date(moment.div_euclid(a_day), output);
    output.push('T');
    write_time(moment.rem_euclid(a_day), a_second, output);
    if utc {
        output.push('Z');
    }
}
