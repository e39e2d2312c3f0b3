//! Converts values to the form that the source shows, in batches that are not too large.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeBinaryArray, ListArray, MapArray, RecordBatch, StringViewBuilder, StructArray,
};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use millstream_core::format::BATCH_BYTES;
use millstream_core::values::items;

/// The most text in a batch; a larger batch is returned in parts. A value of a dictionary counts as often as it occurs,
/// since so much will be written.
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

/// The parts in which a batch is returned.
pub fn parts(batch: &RecordBatch) -> Vec<Range<usize>> {
    let rows = batch.num_rows();
    let total =
        batch.columns().iter().fold(0, |sum: u64, column| sum.saturating_add(text_bytes(column, 0..column.len())));
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

/// The bytes of text in `range`, with repeated values.
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
