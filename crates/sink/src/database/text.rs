//! Rows as text with tabs: the input of `LOAD DATA` and of the text form of `COPY`, which differ little ([`Flavour`]).
//!
//! Values with characters to escape are rare, so each is first scanned eight bytes at a time, and copied whole if there
//! are none. (`memchr3` searches for three characters in one pass, but there are five.)

use std::fmt::Write as _;

use millstream_database::table::Bulk;

use super::cells::{Cells, Column};

/// The reasons why a value cannot be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reason {
    pub(crate) what: &'static str,
    pub(crate) hint: &'static str,
}

/// The differences between the two databases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// `LOAD DATA`: 1 and 0, bytes as hexadecimal digits (for `UNHEX`), a NUL byte is `\0`.
    Mysql,
    /// `COPY`: t and f, bytes after `\x`, no NUL bytes, NaN and infinity are numbers.
    Postgres,
}

/// The text for null.
pub(crate) const NULL: &[u8] = b"\\N";

const NO_NUL: Reason = Reason {
    what: "PostgreSQL's text cannot hold a NUL byte",
    hint: "remove it: replace(x, chr(0), ''), or load the column as binary",
};
const NOT_FINITE: Reason =
    Reason { what: "MySQL has neither NaN nor infinity", hint: "convert it yourself: nullif(x, 'NaN'::double)" };
pub(crate) const NANOSECONDS: Reason = Reason {
    what: "the time has nanoseconds, and the database keeps microseconds",
    hint: "cut them off: date_trunc('microsecond', x)",
};
pub(crate) const YEARS: Reason = Reason {
    what: "the date is outside the range of the database",
    hint: "filter such rows out, or load the column as text: CAST(x AS VARCHAR)",
};
const UNREADABLE: Reason =
    Reason { what: "the value cannot be written as text", hint: "CAST the column to another type" };

/// Writes one value.
pub(crate) fn write(column: &mut Column, row: usize, flavour: Flavour, out: &mut Vec<u8>) -> Result<(), Reason> {
    if column.is_null(row) {
        out.extend_from_slice(NULL);
        return Ok(());
    }
    match &mut column.cells {
        Cells::Null => out.extend_from_slice(NULL),
        Cells::Bool(values) => out.push(match (flavour, values.value(row)) {
            (Flavour::Mysql, value) => b'0' + u8::from(value),
            (Flavour::Postgres, true) => b't',
            (Flavour::Postgres, false) => b'f',
        }),
        Cells::Signed(values) => number(values.value(row), out),
        Cells::Unsigned(values) => number(values.value(row), out),
        Cells::Single(values) => float(values.value(row), flavour, out)?,
        Cells::Double(values) => float(values.value(row), flavour, out)?,
        Cells::Decimal(values, scale) => decimal(values.value(row), *scale, out),
        Cells::Text(values) => escaped(values.value(row).as_bytes(), flavour, out)?,
        Cells::Bytes(values) => bytes(values.value(row), flavour, out),
        Cells::Date(days) => date(i64::from(days[row]), out)?,
        Cells::Timestamp(values, per_second) => timestamp(values[row], *per_second, out)?,
        Cells::Time(values, per_second) => time(values.value(row), *per_second, out)?,
        Cells::Json(encoder) => {
            let start = out.len();
            encoder.encode(row, out);
            // The encoder escapes every control character, so only its backslashes are left.
            escape_again(start, out);
        }
        Cells::Formatted(formatter) => {
            let mut text = String::new();
            formatter.value(row).write(&mut text).map_err(|_| UNREADABLE)?;
            escaped(text.as_bytes(), flavour, out)?;
        }
    }
    Ok(())
}

/// A whole number.
pub(crate) fn number<N: lexical_core::ToLexical>(value: N, out: &mut Vec<u8>) {
    let mut digits = [0; lexical_core::BUFFER_SIZE];
    out.extend_from_slice(lexical_core::write(value, &mut digits));
}

fn float<N: lexical_core::ToLexical + Into<f64> + Copy>(
    value: N,
    flavour: Flavour,
    out: &mut Vec<u8>,
) -> Result<(), Reason> {
    let wide: f64 = value.into();
    if wide.is_finite() {
        number(value, out);
        return Ok(());
    }
    if flavour == Flavour::Mysql {
        return Err(NOT_FINITE);
    }
    out.extend_from_slice(match wide {
        wide if wide.is_nan() => b"NaN",
        wide if wide > 0.0 => b"Infinity",
        _ => b"-Infinity",
    });
    Ok(())
}

fn decimal(value: i128, scale: i8, out: &mut Vec<u8>) {
    if value < 0 {
        out.push(b'-');
    }
    let start = out.len();
    number(value.unsigned_abs(), out);
    let Ok(scale) = usize::try_from(scale) else {
        let zeros = usize::from(scale.unsigned_abs());
        out.extend(std::iter::repeat_n(b'0', if value == 0 { 0 } else { zeros }));
        return;
    };
    if scale == 0 {
        return;
    }
    let digits = out.len() - start;
    if digits <= scale {
        let zeros = std::iter::repeat_n(b'0', scale + 1 - digits);
        out.splice(start..start, zeros);
    }
    out.insert(out.len() - scale, b'.');
}

pub(crate) fn bytes(value: &[u8], flavour: Flavour, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    if flavour == Flavour::Postgres {
        // The backslash of its `\x` is escaped.
        out.extend_from_slice(b"\\\\x");
    }
    out.extend(value.iter().flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]));
}

/// Whether there is a backslash or a control character in `text`.
fn has_special(text: &[u8]) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    // Which bytes of a word are below n (up to 128): Hacker's Delight, and "Bit Twiddling Hacks", hasless and haszero.
    let special = |word: u64| {
        let control = word.wrapping_sub(ONES * 0x20) & !word & HIGH;
        let unlike = word ^ (ONES * u64::from(b'\\'));
        control | (unlike.wrapping_sub(ONES) & !unlike & HIGH)
    };
    let mut words = text.chunks_exact(8);
    let found = words.by_ref().fold(0, |found, word| {
        found | special(u64::from_le_bytes([word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7]]))
    });
    found != 0 || words.remainder().iter().any(|byte| *byte < 0x20 || *byte == b'\\')
}

fn escaped(text: &[u8], flavour: Flavour, out: &mut Vec<u8>) -> Result<(), Reason> {
    if !has_special(text) {
        out.extend_from_slice(text);
        return Ok(());
    }
    for byte in text {
        match byte {
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\\' => out.extend_from_slice(b"\\\\"),
            0 if flavour == Flavour::Postgres => return Err(NO_NUL),
            0 => out.extend_from_slice(b"\\0"),
            other => out.push(*other),
        }
    }
    Ok(())
}

/// Doubles the backslashes after `start`.
fn escape_again(start: usize, out: &mut Vec<u8>) {
    if memchr::memchr(b'\\', &out[start..]).is_none() {
        return;
    }
    let text = out.split_off(start);
    for byte in text {
        if byte == b'\\' {
            out.push(b'\\');
        }
        out.push(byte);
    }
}

/// Year, month and day of a day since 1970, by Howard Hinnant's "chrono-compatible low-level date algorithms".
pub(crate) fn civil(days: i64) -> (i64, u32, u32) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month as u32, day as u32)
}

fn two(value: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(&[b'0' + (value / 10) as u8, b'0' + (value % 10) as u8]);
}

fn date(days: i64, out: &mut Vec<u8>) -> Result<(), Reason> {
    let (year, month, day) = civil(days);
    if !(1..=9999).contains(&year) {
        return Err(YEARS);
    }
    two(year / 100, out);
    two(year % 100, out);
    out.push(b'-');
    two(i64::from(month), out);
    out.push(b'-');
    two(i64::from(day), out);
    Ok(())
}

fn timestamp(value: i64, per_second: i64, out: &mut Vec<u8>) -> Result<(), Reason> {
    let day = 86_400 * per_second;
    date(value.div_euclid(day), out)?;
    out.push(b' ');
    time(value.rem_euclid(day), per_second, out)
}

fn time(value: i64, per_second: i64, out: &mut Vec<u8>) -> Result<(), Reason> {
    let seconds = value / per_second;
    two(seconds / 3600, out);
    out.push(b':');
    two(seconds / 60 % 60, out);
    out.push(b':');
    two(seconds % 60, out);
    let fraction = value % per_second;
    if per_second == 1 || fraction == 0 {
        return Ok(());
    }
    let micros = microseconds(fraction, per_second)?;
    out.push(b'.');
    two(micros / 10_000, out);
    two(micros / 100 % 100, out);
    two(micros % 100, out);
    Ok(())
}

/// Counts of `per_second` as microseconds; an error if some are lost.
pub(crate) fn microseconds(value: i64, per_second: i64) -> Result<i64, Reason> {
    match per_second {
        1_000_000_000 if value % 1_000 != 0 => Err(NANOSECONDS),
        1_000_000_000 => Ok(value / 1_000),
        fewer => value.checked_mul(1_000_000 / fewer).ok_or(YEARS),
    }
}

/// A row of text with tabs of a bulk statement, for a message.
pub(crate) fn shown_row(bulk: &Bulk, row: &[u8]) -> String {
    let names: Vec<&str> = bulk.known_columns().map(|column| column.name.as_str()).collect();
    shown(&names, row.strip_suffix(b"\n").unwrap_or(row))
}

/// A row for a message: `id=1, name='a'`. `row` is text with tabs, without the line's end.
pub(crate) fn shown(names: &[&str], row: &[u8]) -> String {
    let mut text = String::new();
    for (name, value) in names.iter().zip(row.split(|byte| *byte == b'\t')) {
        let separator = if text.is_empty() { "" } else { ", " };
        let value = if value == NULL { "NULL".to_owned() } else { format!("'{}'", String::from_utf8_lossy(value)) };
        let _ = write!(text, "{separator}{name}={value}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_bytes_are_found_wherever_they_stand() {
        for length in 0..40 {
            for at in 0..length {
                for (byte, special) in [
                    (b'\t', true),
                    (0, true),
                    (b'\\', true),
                    (0x1f, true),
                    (b' ', false),
                    (0x7f, false),
                    (0xdc, false),
                    (0x80, false),
                    (b'[', false),
                    (b']', false),
                    (0xff, false),
                ] {
                    let mut text = vec![b'x'; length];
                    text[at] = byte;
                    assert_eq!(has_special(&text), special, "{byte} at {at} of {length}");
                }
            }
        }
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for days in (-719_162..2_932_896).step_by(97) {
            let date = chrono::NaiveDate::from_num_days_from_ce_opt(days + 719_163).expect("a date");
            let mut out = Vec::new();
            super::date(i64::from(days), &mut out).expect("in range");
            assert_eq!(String::from_utf8(out).expect("text"), date.to_string());
        }
        assert_eq!(super::date(2_932_897, &mut Vec::new()), Err(YEARS));
    }

    #[test]
    fn times_keep_what_they_have() {
        let written = |value, per_second| {
            let mut out = Vec::new();
            timestamp(value, per_second, &mut out).map(|()| String::from_utf8(out).expect("text"))
        };
        assert_eq!(written(-1, 1_000).as_deref(), Ok("1969-12-31 23:59:59.999000"));
        assert_eq!(written(86_399, 1).as_deref(), Ok("1970-01-01 23:59:59"));
        assert_eq!(written(1_000, 1_000_000_000).as_deref(), Ok("1970-01-01 00:00:00.000001"));
        assert_eq!(written(1, 1_000_000_000), Err(NANOSECONDS));
    }

    #[test]
    fn decimals_have_their_point() {
        let written = |value, scale| {
            let mut out = Vec::new();
            decimal(value, scale, &mut out);
            String::from_utf8(out).expect("text")
        };
        assert_eq!([written(1250, 2), written(-5, 2), written(0, 2), written(7, 0)], ["12.50", "-0.05", "0.00", "7"]);
        assert_eq!([written(12, -2), written(0, -2)], ["1200", "0"]);
    }
}
