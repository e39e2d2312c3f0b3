//! Rows in PostgreSQL's binary form of `COPY`: each value after its length, numbers in big-endian order. The forms are
//! those of the server's receive functions (`src/backend/utils/adt`). The family of a column decides its form;
//! `millstream-database` knows which types have one.
//!
//! ```text
//!  file   signature · flags · length of extension │ row │ row │ … │ -1
//!  row    number of columns (2) │ length (4; -1: null) value │ length value │ …
//! ```

use std::fmt::Write as _;

use millstream_database::family::Family;
use millstream_database::postgres::binary::{EPOCH_DAYS, EPOCH_MICROS};
use millstream_database::table::Bulk;

use crate::database::cells::{Cells, Column};
use crate::database::encode::RowForm;
use crate::database::text::{Reason, YEARS, civil, microseconds};

/// The bytes before the rows: signature, no flags, no extension.
pub(super) const HEAD: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

/// The bytes after the rows.
pub(super) const TAIL: &[u8] = &[0xff, 0xff];

const NO_NUL: Reason = Reason {
    what: "PostgreSQL's text cannot hold a NUL byte",
    hint: "remove it: replace(x, chr(0), ''), or load the column as binary",
};
const TOO_LARGE: Reason =
    Reason { what: "the number is too large for the column", hint: "widen the column, or filter such rows out" };
const TOO_LONG: Reason = Reason { what: "the value is longer than 1 GB", hint: "PostgreSQL holds no longer one" };

/// Writes rows in binary form.
pub(super) struct BinaryForm {
    families: Vec<Family>,
    count: [u8; 2],
}

impl BinaryForm {
    pub(super) fn new(bulk: &Bulk) -> Self {
        let families: Vec<Family> = bulk.columns.iter().map(|column| column.family).collect();
        BinaryForm { count: (families.len() as u16).to_be_bytes(), families }
    }
}

impl RowForm for BinaryForm {
    fn write(
        &mut self,
        columns: &mut [Column],
        row: usize,
        arrival: Option<u64>,
        out: &mut Vec<u8>,
    ) -> Result<(), (usize, Reason)> {
        out.extend_from_slice(&self.count);
        for (index, (column, family)) in columns.iter_mut().zip(&self.families).enumerate() {
            if column.is_null(row) {
                out.extend_from_slice(&(-1_i32).to_be_bytes());
                continue;
            }
            value(&mut column.cells, row, *family, out).map_err(|reason| (index, reason))?;
        }
        if let Some(arrival) = arrival {
            fixed(arrival.to_be_bytes(), out);
        }
        Ok(())
    }
}

/// A value of fixed length.
fn fixed<const N: usize>(bytes: [u8; N], out: &mut Vec<u8>) {
    out.extend_from_slice(&(N as u32).to_be_bytes());
    out.extend_from_slice(&bytes);
}

/// A value of variable length.
fn measured(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), Reason> {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    write(out);
    let length = i32::try_from(out.len() - start - 4).map_err(|_| TOO_LONG)?;
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    Ok(())
}

fn value(cells: &mut Cells, row: usize, family: Family, out: &mut Vec<u8>) -> Result<(), Reason> {
    match (cells, family) {
        (Cells::Bool(values), Family::Integer { bytes, .. }) => integer(i64::from(values.value(row)), bytes, out)?,
        (Cells::Bool(values), _) => fixed([u8::from(values.value(row))], out),
        (Cells::Signed(values), Family::Integer { bytes, .. }) => integer(values.value(row), bytes, out)?,
        (Cells::Unsigned(values), Family::Integer { bytes, .. }) => {
            integer(i64::try_from(values.value(row)).map_err(|_| TOO_LARGE)?, bytes, out)?;
        }
        (Cells::Signed(values), Family::Float { .. }) => fixed((values.value(row) as f64).to_be_bytes(), out),
        (Cells::Signed(values), _) => numeric(i128::from(values.value(row)), 0, out),
        (Cells::Unsigned(values), _) => numeric(i128::from(values.value(row)), 0, out),
        (Cells::Single(values), Family::Float { bytes: 4 }) => fixed(values.value(row).to_be_bytes(), out),
        (Cells::Single(values), _) => fixed(f64::from(values.value(row)).to_be_bytes(), out),
        (Cells::Double(values), _) => fixed(values.value(row).to_be_bytes(), out),
        (Cells::Decimal(values, scale), _) => numeric(values.value(row), *scale, out),
        // As text, the server would interpret escapes and hexadecimal digits in it.
        (Cells::Text(values), Family::Bytes) => {
            let bytes = values.value(row).as_bytes();
            measured(out, |out| out.extend_from_slice(bytes))?;
        }
        (Cells::Text(values), family) => text(values.value(row).as_bytes(), family, out)?,
        (Cells::Bytes(values), _) => {
            let bytes = values.value(row);
            measured(out, |out| out.extend_from_slice(bytes))?;
        }
        (Cells::Date(days), Family::Timestamp { .. }) => {
            fixed((i64::from(days[row]) * 86_400_000_000 - EPOCH_MICROS).to_be_bytes(), out);
        }
        (Cells::Date(days), _) => {
            // The least number means `-infinity`.
            let since = days[row].checked_sub(EPOCH_DAYS).filter(|since| *since != i32::MIN).ok_or(YEARS)?;
            fixed(since.to_be_bytes(), out);
        }
        (Cells::Timestamp(values, per_second), _) => {
            let since = microseconds(values[row], *per_second)?.checked_sub(EPOCH_MICROS);
            let since = since.filter(|since| *since != i64::MIN).ok_or(YEARS)?;
            fixed(since.to_be_bytes(), out);
        }
        (Cells::Time(values, per_second), _) => {
            fixed(microseconds(values.value(row), *per_second)?.to_be_bytes(), out);
        }
        (Cells::Json(encoder), family) => measured(out, |out| {
            out.extend(version(family));
            encoder.encode(row, out);
        })?,
        // These have no binary form.
        (Cells::Null | Cells::Formatted(_), _) => out.extend_from_slice(&(-1_i32).to_be_bytes()),
    }
    Ok(())
}

/// The version byte before the text of a `jsonb`.
fn version(family: Family) -> Option<u8> {
    (family == Family::Json { binary: true }).then_some(1)
}

fn integer(value: i64, bytes: u8, out: &mut Vec<u8>) -> Result<(), Reason> {
    match bytes {
        2 => fixed(i16::try_from(value).map_err(|_| TOO_LARGE)?.to_be_bytes(), out),
        4 => fixed(i32::try_from(value).map_err(|_| TOO_LARGE)?.to_be_bytes(), out),
        _ => fixed(value.to_be_bytes(), out),
    }
    Ok(())
}

fn text(value: &[u8], family: Family, out: &mut Vec<u8>) -> Result<(), Reason> {
    if memchr::memchr(0, value).is_some() {
        return Err(NO_NUL);
    }
    measured(out, |out| {
        out.extend(version(family));
        out.extend_from_slice(value);
    })
}

/// A number in groups of four digits (`numeric_recv`): how many, the power of 10,000 of the first, the sign, how many
/// digits are shown after the point, the groups.
fn numeric(value: i128, scale: i8, out: &mut Vec<u8>) {
    let mut digits = [b'0'; 176];
    let mut buffer = [0; lexical_core::BUFFER_SIZE];
    let plain = lexical_core::write(value.unsigned_abs(), &mut buffer);
    let behind = usize::try_from(scale).unwrap_or(0);
    let zeros = if scale < 0 { usize::from(scale.unsigned_abs()) } else { 0 };
    // Groups are counted from the point: zeros fill the first and the last.
    let before = (plain.len() + zeros).saturating_sub(behind);
    let whole_groups = before.div_ceil(4);
    let start = whole_groups * 4 + behind - (plain.len() + zeros);
    digits[start..start + plain.len()].copy_from_slice(plain);
    let groups = whole_groups + behind.div_ceil(4);
    let group = |index: usize| {
        digits[index * 4..index * 4 + 4].iter().fold(0_u16, |sum, digit| sum * 10 + u16::from(digit - b'0'))
    };
    let first = (0..groups).find(|index| group(*index) != 0).unwrap_or(groups);
    let last = (first..groups).rev().find(|index| group(*index) != 0).map_or(first, |index| index + 1);
    let weight = if first == last { 0 } else { whole_groups as i16 - 1 - first as i16 };
    let sign: u16 = if value < 0 { 0x4000 } else { 0 };
    out.extend_from_slice(&(8 + 2 * (last - first) as u32).to_be_bytes());
    out.extend_from_slice(&((last - first) as u16).to_be_bytes());
    out.extend_from_slice(&weight.to_be_bytes());
    out.extend_from_slice(&sign.to_be_bytes());
    out.extend_from_slice(&(behind as u16).to_be_bytes());
    (first..last).for_each(|index| out.extend_from_slice(&group(index).to_be_bytes()));
}

/// The values of one encoded row, for a message.
pub(super) fn shown(bulk: &Bulk, row: &[u8]) -> String {
    let mut text = String::new();
    let mut rest = row.get(2..).unwrap_or_default();
    for column in bulk.known_columns() {
        let Some((length, behind)) = rest.split_first_chunk::<4>() else { break };
        let separator = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{separator}{}=", column.name);
        let Ok(length) = usize::try_from(i32::from_be_bytes(*length)) else {
            text.push_str("NULL");
            rest = behind;
            continue;
        };
        let Some((value, behind)) = behind.split_at_checked(length) else { break };
        text.push_str(&shown_value(value, column.family));
        rest = behind;
    }
    text
}

fn shown_value(value: &[u8], family: Family) -> String {
    let integer =
        || value.iter().fold(if value[0] & 0x80 == 0 { 0_i64 } else { -1 }, |sum, byte| sum << 8 | i64::from(*byte));
    match (family, value.len()) {
        (Family::Bool, 1) => (value[0] != 0).to_string(),
        (Family::Integer { .. }, 2 | 4 | 8) => integer().to_string(),
        (Family::Float { .. }, 4) => f32::from_bits(integer() as u32).to_string(),
        (Family::Float { .. }, 8) => f64::from_bits(integer() as u64).to_string(),
        (Family::Decimal(_), 8..) => shown_numeric(value),
        (Family::Date, 4) => shown_date(integer() + i64::from(EPOCH_DAYS)),
        (Family::Timestamp { .. }, 8) => shown_timestamp(integer()),
        (Family::Time { .. }, 8) => shown_time(integer()),
        (Family::Bytes, length) => format!("{length} bytes"),
        (Family::Json { binary: true }, 1..) => format!("'{}'", String::from_utf8_lossy(&value[1..])),
        _ => format!("'{}'", String::from_utf8_lossy(value)),
    }
}

fn shown_date(days: i64) -> String {
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02}")
}

fn shown_time(micros: i64) -> String {
    let seconds = micros / 1_000_000;
    let text = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    if micros % 1_000_000 == 0 { text } else { format!("{text}.{:06}", micros % 1_000_000) }
}

fn shown_timestamp(since: i64) -> String {
    let day = 86_400_000_000;
    let days = since.div_euclid(day) + i64::from(EPOCH_DAYS);
    format!("{} {}", shown_date(days), shown_time(since.rem_euclid(day)))
}

fn shown_numeric(value: &[u8]) -> String {
    let at = |index: usize| value.get(index * 2..index * 2 + 2).map_or(0, |two| i16::from_be_bytes([two[0], two[1]]));
    let (count, weight, sign, behind) = (at(0), at(1), at(2), at(3));
    let group = |power: i16| {
        let index = weight - power;
        if (0..count).contains(&index) { at(4 + usize::from(index.unsigned_abs())) } else { 0 }
    };
    let whole: String = (0..=weight.max(0)).rev().map(|power| format!("{:04}", group(power))).collect();
    let whole = whole.trim_start_matches('0');
    let fraction: String = (1..=(behind + 3) / 4).map(|power| format!("{:04}", group(-power))).collect();
    let sign = if sign == 0 { "" } else { "-" };
    let whole = if whole.is_empty() { "0" } else { whole };
    match fraction.get(..usize::from(behind.unsigned_abs())) {
        Some(digits) if !digits.is_empty() => format!("{sign}{whole}.{digits}"),
        _ => format!("{sign}{whole}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_groups_of_four_digits() {
        for (value, scale, expected) in [
            (0, 0, "0"),
            (0, 2, "0.00"),
            (1, 0, "1"),
            (10_000, 0, "10000"),
            (-123_456_789, 3, "-123456.789"),
            (5, 5, "0.00005"),
            (120_000, 4, "12.0000"),
            (7, -5, "700000"),
            (i128::MAX, 38, "1.70141183460469231731687303715884105727"),
            (i128::MIN, 0, "-170141183460469231731687303715884105728"),
        ] {
            let mut out = Vec::new();
            numeric(value, scale, &mut out);
            assert_eq!(out.len() - 4, u32::from_be_bytes([out[0], out[1], out[2], out[3]]) as usize);
            assert_eq!(shown_numeric(&out[4..]), expected);
        }
    }
}
