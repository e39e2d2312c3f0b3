//! Values on their way out of a file: as the source shows them, refused where their type does not allow them, and in
//! batches that are not too large.
//!
//! A file can hold what its types exclude: a decimal with more digits than its precision, a time of day below zero or
//! beyond midnight. The parquet crate hands it on, and what is behind would cut digits off.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeBinaryArray, ListArray, MapArray, RecordBatch, StringViewBuilder, StructArray,
};
use arrow::compute::cast;
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, Time32MillisecondType,
    Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimeUnit, i256,
};
use arrow::error::ArrowError;
use millstream_core::format::BATCH_BYTES;
use millstream_core::types::{decimal_text, type_name};
use millstream_core::{Error, RejectKind};

/// Text in a batch, beyond which it is handed on in parts. A value of a dictionary counts as often as it is there: so
/// much will be written.
const TEXT_BYTES: u64 = 2 * BATCH_BYTES as u64;

/// `values` as the source shows them: UUIDs as text, one binary type, one kind of list.
pub fn present(values: &ArrayRef, wanted: &DataType) -> Result<ArrayRef, ArrowError> {
    match (values.data_type(), wanted) {
        (stored, wanted) if stored == wanted => Ok(Arc::clone(values)),
        (DataType::FixedSizeBinary(16), DataType::Utf8View) => Ok(Arc::new(uuids(values.as_fixed_size_binary()))),
        (DataType::LargeList(item) | DataType::FixedSizeList(item, _), DataType::List(_)) => {
            present(&cast(values, &DataType::List(Arc::clone(item)))?, wanted)
        }
        (DataType::List(_), DataType::List(item)) => {
            let lists = values.as_list::<i32>();
            let items = present(lists.values(), item.data_type())?;
            let nulls = lists.nulls().cloned();
            Ok(Arc::new(ListArray::try_new(Arc::clone(item), lists.offsets().clone(), items, nulls)?))
        }
        (DataType::Struct(_), DataType::Struct(fields)) => {
            let parts = values.as_struct();
            let members = parts.columns().iter().zip(fields);
            let members = members.map(|(member, field)| present(member, field.data_type()));
            let members = members.collect::<Result<Vec<_>, _>>()?;
            let nulls = parts.nulls().cloned();
            Ok(Arc::new(StructArray::try_new_with_length(fields.clone(), members, nulls, parts.len())?))
        }
        (DataType::Map(..), DataType::Map(entries, sorted)) => {
            let maps = values.as_map();
            let parts: ArrayRef = Arc::new(maps.entries().clone());
            let parts = present(&parts, entries.data_type())?.as_struct().clone();
            let (offsets, nulls) = (maps.offsets().clone(), maps.nulls().cloned());
            Ok(Arc::new(MapArray::try_new(Arc::clone(entries), offsets, parts, nulls, *sorted)?))
        }
        (_, wanted) => cast(values, wanted),
    }
}

/// As RFC 9562 writes them: 32 hexadecimal digits, with dashes.
fn uuids(values: &FixedSizeBinaryArray) -> arrow::array::StringViewArray {
    let mut texts = StringViewBuilder::with_capacity(values.len());
    let mut text = String::with_capacity(36);
    for value in values {
        let Some(value) = value else {
            texts.append_null();
            continue;
        };
        text.clear();
        for (index, byte) in value.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            for digit in [byte >> 4, byte & 0x0f] {
                text.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
            }
        }
        texts.append_value(&text);
    }
    texts.finish()
}

/// What is wrong with the first value, in the rows of `range`, that its type does not allow.
pub fn fault(values: &ArrayRef, range: Range<usize>) -> Option<Error> {
    match values.data_type() {
        DataType::Decimal32(digits, scale) => {
            let most = i64::from(10_i32.checked_pow(u32::from(*digits)).unwrap_or(i32::MAX)).max(1);
            let index = outside::<Decimal32Type>(values, range, |value| i64::from(value).abs() < most)?;
            Some(too_long(values, &decimal_text(&values.as_primitive::<Decimal32Type>().value(index), *scale)))
        }
        DataType::Decimal64(digits, scale) => {
            let most = 10_i128.pow(u32::from(*digits));
            let index = outside::<Decimal64Type>(values, range, |value| i128::from(value).abs() < most)?;
            Some(too_long(values, &decimal_text(&values.as_primitive::<Decimal64Type>().value(index), *scale)))
        }
        DataType::Decimal128(digits, scale) => {
            let most = 10_i128.checked_pow(u32::from(*digits)).unwrap_or(i128::MAX);
            let index = outside::<Decimal128Type>(values, range, |value| -most < value && value < most)?;
            Some(too_long(values, &decimal_text(&values.as_primitive::<Decimal128Type>().value(index), *scale)))
        }
        DataType::Decimal256(digits, scale) => {
            let most = i256::from_i128(10).checked_pow(u32::from(*digits)).unwrap_or(i256::MAX);
            let least = most.wrapping_neg();
            let index = outside::<Decimal256Type>(values, range, |value| least < value && value < most)?;
            Some(too_long(values, &decimal_text(&values.as_primitive::<Decimal256Type>().value(index), *scale)))
        }
        DataType::Time32(TimeUnit::Second) => time::<Time32SecondType>(values, range, 1),
        DataType::Time32(_) => time::<Time32MillisecondType>(values, range, 1_000),
        DataType::Time64(TimeUnit::Microsecond) => time::<Time64MicrosecondType>(values, range, 1_000_000),
        DataType::Time64(_) => time::<Time64NanosecondType>(values, range, 1_000_000_000),
        DataType::List(_) => {
            let lists = values.as_list::<i32>();
            items(lists.offsets(), &range).and_then(|items| fault(lists.values(), items))
        }
        DataType::Map(..) => {
            let maps = values.as_map();
            let items = items(maps.offsets(), &range)?;
            maps.entries().columns().iter().find_map(|part| fault(part, items.clone()))
        }
        DataType::Struct(_) => values.as_struct().columns().iter().find_map(|member| fault(member, range.clone())),
        _ => None,
    }
}

fn items(offsets: &[i32], range: &Range<usize>) -> Option<Range<usize>> {
    let (begin, end) = (offsets.get(range.start)?, offsets.get(range.end)?);
    Some(usize::try_from(*begin).ok()?..usize::try_from(*end).ok()?)
}

/// The first value in `range` that is not `sound`. What stands where there is a null does not matter.
fn outside<T: ArrowPrimitiveType>(
    values: &ArrayRef,
    range: Range<usize>,
    sound: impl Fn(T::Native) -> bool,
) -> Option<usize> {
    let values = values.as_primitive::<T>();
    // Without a branch for each value: nearly always all of them are sound.
    if values.values().get(range.clone())?.iter().fold(true, |all, value| all & sound(*value)) {
        return None;
    }
    range.into_iter().find(|index| values.is_valid(*index) && !sound(values.value(*index)))
}

fn too_long(values: &ArrayRef, text: &str) -> Error {
    let data_type = type_name(values.data_type());
    Error::data(format!("the value has more digits than {data_type} allows")).text(text).reject(RejectKind::OutOfRange)
}

fn time<T: ArrowPrimitiveType>(values: &ArrayRef, range: Range<usize>, per_second: i64) -> Option<Error>
where
    T::Native: Into<i64>,
{
    let day = 86_400 * per_second;
    let index = outside::<T>(values, range, |value| (0..day).contains(&value.into()))?;
    let value: i64 = values.as_primitive::<T>().value(index).into();
    let sign = if value < 0 { "-" } else { "" };
    let (whole, part) = (value.unsigned_abs() / per_second.unsigned_abs(), value.unsigned_abs() % per_second.unsigned_abs());
    let digits = per_second.ilog10() as usize;
    let fraction = if part > 0 { format!(".{part:0digits$}") } else { String::new() };
    let text = format!("{sign}{:02}:{:02}:{:02}{fraction}", whole / 3600, whole / 60 % 60, whole % 60);
    Some(Error::data("the value is not within a day").text(text).reject(RejectKind::OutOfRange))
}

/// The parts in which a batch is handed on.
pub fn parts(batch: &RecordBatch) -> Vec<Range<usize>> {
    let rows = batch.num_rows();
    let total = batch.columns().iter().fold(0, |sum: u64, column| sum.saturating_add(text_bytes(column, 0..column.len())));
    if total <= TEXT_BYTES || rows < 2 {
        return vec![0..rows; 1];
    }
    let (mut parts, mut begin, mut bytes) = (Vec::new(), 0, 0_u64);
    for row in 0..rows {
        let of_row = |sum: u64, column: &ArrayRef| sum.saturating_add(text_bytes(column, row..row + 1));
        let more = batch.columns().iter().fold(0, of_row);
        if row > begin && bytes.saturating_add(more) > TEXT_BYTES {
            parts.push(begin..row);
            (begin, bytes) = (row, 0);
        }
        bytes = bytes.saturating_add(more);
    }
    parts.push(begin..rows);
    parts
}

/// The text of the values in `range`, as often as it is there.
fn text_bytes(values: &ArrayRef, range: Range<usize>) -> u64 {
    let of_views = |views: &[u128]| -> u64 {
        // The lowest 32 bits of a view are its length.
        views.get(range.clone()).unwrap_or_default().iter().map(|view| u64::from(*view as u32)).sum()
    };
    match values.data_type() {
        DataType::Utf8View => of_views(values.as_string_view().views()),
        DataType::BinaryView => of_views(values.as_binary_view().views()),
        DataType::FixedSizeBinary(size) => range.len() as u64 * u64::from(size.unsigned_abs()),
        DataType::List(_) => {
            let lists = values.as_list::<i32>();
            items(lists.offsets(), &range).map_or(0, |items| items.len() as u64 + text_bytes(lists.values(), items))
        }
        DataType::Map(..) => {
            let maps = values.as_map();
            let Some(items) = items(maps.offsets(), &range) else { return 0 };
            maps.entries().columns().iter().map(|part| text_bytes(part, items.clone())).sum()
        }
        DataType::Struct(_) => {
            values.as_struct().columns().iter().map(|member| text_bytes(member, range.clone())).sum()
        }
        _ => 0,
    }
}
