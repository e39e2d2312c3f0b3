//! Dates and times as ISO 8601 writes them, by hand: most CSV files have these, and a strftime interpreter is ten times
//! slower. Other formats are left to chrono.
//!
//! Days and years are converted with Howard Hinnant's algorithms `days_from_civil` and `civil_from_days`, over the
//! whole range of Arrow's types.

/// Microseconds in a day.
pub(crate) const DAY: i64 = 86_400_000_000;

/// Days since 1970-01-01 of a date of the proleptic Gregorian calendar.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Year, month and day of a number of days since 1970-01-01.
pub(crate) fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Exactly `count` digits at the beginning, and the rest.
#[inline]
fn digits(text: &[u8], count: usize) -> Option<(i64, &[u8])> {
    let (digits, rest) = text.split_at_checked(count)?;
    let mut value = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value * 10 + i64::from(digit - b'0');
    }
    Some((value, rest))
}

#[inline]
fn sign(text: &[u8], sign: u8) -> Option<&[u8]> {
    text.split_first().filter(|(first, _)| **first == sign).map(|(_, rest)| rest)
}

/// A year: four digits, or a sign and four to seven.
fn year(text: &[u8]) -> Option<(i64, &[u8])> {
    let signed = match text.first()? {
        b'+' => Some(1),
        b'-' => Some(-1),
        _ => None,
    };
    match signed {
        None => digits(text, 4),
        Some(sign) => {
            let count = text[1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            if !(4..=7).contains(&count) {
                return None;
            }
            let (value, rest) = digits(&text[1..], count)?;
            Some((sign * value, rest))
        }
    }
}

/// A date at the beginning of `text` as days since 1970-01-01, and the rest: `2024-12-31`.
fn date_prefix(text: &[u8]) -> Option<(i64, &[u8])> {
    let (year, rest) = year(text)?;
    let (month, rest) = digits(sign(rest, b'-')?, 2)?;
    let (day, rest) = digits(sign(rest, b'-')?, 2)?;
    let valid = (1..=12).contains(&month) && day >= 1 && day <= days_in_month(year, month);
    valid.then(|| (days_from_civil(year, month, day), rest))
}

/// A date as days since 1970-01-01.
pub(crate) fn date(text: &[u8]) -> Option<i32> {
    date_prefix(text).filter(|(_, rest)| rest.is_empty()).and_then(|(days, _)| i32::try_from(days).ok())
}

/// Why a time cannot be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeFault {
    /// It is malformed.
    Malformed,
    /// It has more digits than microseconds.
    TooFine,
    /// It is too far from 1970.
    OutOfRange,
}

/// A time of day at the beginning as microseconds since midnight, and the rest: `23:59`, `23:59:59`, `23:59:59.999999`.
fn time_prefix(text: &[u8]) -> Result<(i64, &[u8]), TimeFault> {
    let whole = || {
        let (hour, rest) = digits(text, 2)?;
        let (minute, rest) = digits(sign(rest, b':')?, 2)?;
        let (second, rest) = match sign(rest, b':') {
            Some(rest) => digits(rest, 2)?,
            None => (0, rest),
        };
        (hour < 24 && minute < 60 && second < 60).then_some(((hour * 60 + minute) * 60 + second, rest))
    };
    let (seconds, rest) = whole().ok_or(TimeFault::Malformed)?;
    let Some(fraction) = sign(rest, b'.').or_else(|| sign(rest, b',')) else {
        return Ok((seconds * 1_000_000, rest));
    };
    let count = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (fraction, rest) = fraction.split_at(count);
    if count == 0 {
        return Err(TimeFault::Malformed);
    }
    if fraction.get(6..).is_some_and(|fine| fine.iter().any(|digit| *digit != b'0')) {
        return Err(TimeFault::TooFine);
    }
    let digit = |index: usize| fraction.get(index).map_or(0, |digit| i64::from(digit - b'0'));
    let microseconds = (0..6).fold(0, |value, index| value * 10 + digit(index));
    Ok((seconds * 1_000_000 + microseconds, rest))
}

/// A time of day as microseconds since midnight.
pub(crate) fn time(text: &[u8]) -> Result<i64, TimeFault> {
    match time_prefix(text)? {
        (microseconds, []) => Ok(microseconds),
        _ => Err(TimeFault::Malformed),
    }
}

/// An offset from UTC in microseconds: `Z`, `+01`, `+0100`, `+01:00`; `None` if there is none.
fn offset(text: &[u8]) -> Result<Option<i64>, TimeFault> {
    let text = sign(text, b' ').unwrap_or(text);
    let direction = match text {
        [] => return Ok(None),
        b"Z" | b"z" | b"UTC" => return Ok(Some(0)),
        [b'+', ..] => 1,
        [b'-', ..] => -1,
        _ => return Err(TimeFault::Malformed),
    };
    let parts = || {
        let (hours, rest) = digits(&text[1..], 2)?;
        let (minutes, rest) = match sign(rest, b':').unwrap_or(rest) {
            [] if rest.is_empty() => (0, rest),
            rest => digits(rest, 2)?,
        };
        (hours < 24 && minutes < 60 && rest.is_empty()).then_some(hours * 60 + minutes)
    };
    parts().map(|minutes| Some(direction * minutes * 60_000_000)).ok_or(TimeFault::Malformed)
}

/// A timestamp as microseconds since 1970-01-01 (in UTC, if it has an offset), and whether it has an offset. Date and
/// time are apart by `T` or a space; a date alone is its midnight.
pub(crate) fn timestamp(text: &[u8]) -> Result<(i64, bool), TimeFault> {
    let (days, rest) = date_prefix(text).ok_or(TimeFault::Malformed)?;
    let (time, offset) = match rest {
        [] => (0, None),
        [b'T' | b't' | b' ', rest @ ..] => {
            let (time, rest) = time_prefix(rest)?;
            (time, offset(rest)?)
        }
        _ => return Err(TimeFault::Malformed),
    };
    let value = days.checked_mul(DAY).and_then(|value| value.checked_add(time - offset.unwrap_or(0)));
    // Near the ends of the range, midnight may be outside of it although the time is inside.
    let value = value
        .or_else(|| i64::try_from(i128::from(days) * i128::from(DAY) + i128::from(time - offset.unwrap_or(0))).ok());
    value.map(|value| (value, offset.is_some())).ok_or(TimeFault::OutOfRange)
}

/// Writes a date: `2024-12-31`; years outside 0..=9999 with a sign.
pub(crate) fn write_date(days: i64, output: &mut Vec<u8>) {
    let (year, month, day) = civil_from_days(days);
    if (0..=9999).contains(&year) {
        write_digits(year, 4, output);
    } else {
        output.push(if year < 0 { b'-' } else { b'+' });
        let year = year.abs();
        write_digits(
            year,
            if year < 10_000 {
                4
            } else if year < 100_000 {
                5
            } else if year < 1_000_000 {
                6
            } else {
                7
            },
            output,
        );
    }
    output.push(b'-');
    write_digits(month, 2, output);
    output.push(b'-');
    write_digits(day, 2, output);
}

/// Writes a time of day of `value` units of which a second has `per_second` (1 to 10⁹, a power of ten): `23:59:59`,
/// with a fraction of 3, 6 or 9 digits where there is one.
pub(crate) fn write_time(value: i64, per_second: i64, output: &mut Vec<u8>) {
    let (seconds, fraction) = (value / per_second, value % per_second);
    write_digits(seconds / 3600, 2, output);
    output.push(b':');
    write_digits(seconds / 60 % 60, 2, output);
    output.push(b':');
    write_digits(seconds % 60, 2, output);
    if fraction == 0 {
        return;
    }
    output.push(b'.');
    let nanoseconds = fraction * (1_000_000_000 / per_second);
    if nanoseconds % 1_000_000 == 0 {
        write_digits(nanoseconds / 1_000_000, 3, output);
    } else if nanoseconds % 1000 == 0 {
        write_digits(nanoseconds / 1000, 6, output);
    } else {
        write_digits(nanoseconds, 9, output);
    }
}

/// Writes a timestamp: `2024-12-31T23:59:59`.
pub(crate) fn write_timestamp(value: i64, per_second: i64, output: &mut Vec<u8>) {
    let per_day = per_second * 86_400;
    write_date(value.div_euclid(per_day), output);
    output.push(b'T');
    write_time(value.rem_euclid(per_day), per_second, output);
}

fn write_digits(value: i64, count: u32, output: &mut Vec<u8>) {
    for place in (0..count).rev() {
        let digit = value / 10_i64.pow(place) % 10;
        output.push(b'0' + u8::try_from(digit).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use chrono::{Datelike, NaiveDate};

    use super::*;

    #[test]
    fn days_agree_with_chrono() {
        let epoch = NaiveDate::from_ymd_opt(1970, 1, 1).unwrap();
        for days in (-800_000..800_000).step_by(37) {
            let date = epoch + chrono::Duration::days(days);
            let parts = (i64::from(date.year()), i64::from(date.month()), i64::from(date.day()));
            assert_eq!(civil_from_days(days), parts);
            assert_eq!(days_from_civil(parts.0, parts.1, parts.2), days);
        }
    }

    #[test]
    fn every_date_comes_back() {
        for days in [i32::MIN, -1_000_000, -719_529, -1, 0, 1, 19_723, 2_932_897, i32::MAX] {
            let mut text = Vec::new();
            write_date(days.into(), &mut text);
            assert_eq!(super::date(&text), Some(days), "{}", String::from_utf8_lossy(&text));
        }
        for microseconds in [i64::MIN, -1, 0, 1, 1_700_000_000_123_456, i64::MAX] {
            let mut text = Vec::new();
            write_timestamp(microseconds, 1_000_000, &mut text);
            assert_eq!(timestamp(&text), Ok((microseconds, false)), "{}", String::from_utf8_lossy(&text));
        }
    }

    #[test]
    fn only_what_is_a_date_is_one() {
        for text in [
            "2024-02-30",
            "2023-02-29",
            "1900-02-29",
            "2024-13-01",
            "2024-00-01",
            "2024-01-00",
            "24-01-01",
            "2024-1-1",
            "2024-01-01 ",
            "",
            "+24-01-01",
        ] {
            assert_eq!(super::date(text.as_bytes()), None, "{text}");
        }
        assert_eq!(super::date(b"2000-02-29"), Some(11_016));
    }

    #[test]
    fn times_and_offsets() {
        assert_eq!(time(b"23:59"), Ok(86_340_000_000));
        assert_eq!(time(b"00:00:01.5"), Ok(1_500_000));
        assert_eq!(time(b"00:00:01.500000000"), Ok(1_500_000));
        assert_eq!(time(b"00:00:01.0000001"), Err(TimeFault::TooFine));
        for text in ["24:00", "1:00", "00:60", "00:00:60", "00:00:00.", "00", "00:00x"] {
            assert_eq!(time(text.as_bytes()), Err(TimeFault::Malformed), "{text}");
        }
        let hour = 3_600_000_000;
        for (text, expected) in [
            ("1970-01-01", Ok((0, false))),
            ("1970-01-01 01:00", Ok((hour, false))),
            ("1970-01-01T01:00:00Z", Ok((hour, true))),
            ("1970-01-01T01:00:00+01:00", Ok((0, true))),
            ("1970-01-01 01:00:00 -0100", Ok((2 * hour, true))),
            ("1970-01-01 01:00:00-01", Ok((2 * hour, true))),
            ("1970-01-01 01:00:00-1", Err(TimeFault::Malformed)),
            ("1970-01-01 01:00:00-01:", Err(TimeFault::Malformed)),
            ("1970-01-01x01:00", Err(TimeFault::Malformed)),
            ("+9999999-01-01T00:00", Err(TimeFault::OutOfRange)),
        ] {
            assert_eq!(timestamp(text.as_bytes()), expected, "{text}");
        }
    }
}
