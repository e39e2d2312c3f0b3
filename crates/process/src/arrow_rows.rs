//! Rows in Arrow's own form, for programs that know the common types alone.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, StringArray, StringViewArray};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use millstream_core::buffers;
use millstream_core::columns::{type_name, widen};
use millstream_core::reject::RejectKind;
use millstream_core::views::{INLINE, view};
use millstream_core::{Error, Result};

/// `schema` with columns that may be null: those that a program or function gives.
pub fn nullable(schema: &Schema) -> SchemaRef {
    let fields: Vec<_> = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true)).collect();
    Arc::new(Schema::new(fields))
}

/// `schema` without views and dictionaries, which few programs read.
pub fn common_schema(schema: &Schema) -> SchemaRef {
    let fields = schema.fields().iter().map(common_field).collect::<Vec<_>>();
    Arc::new(Schema::new(fields))
}

fn common_field(field: &FieldRef) -> FieldRef {
    Arc::new(Field::new(field.name(), common_type(field.data_type()), field.is_nullable()))
}

fn common_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::Dictionary(_, values) => common_type(values),
        DataType::List(item) => DataType::List(common_field(item)),
        DataType::LargeList(item) => DataType::LargeList(common_field(item)),
        DataType::Struct(members) => DataType::Struct(members.iter().map(common_field).collect()),
        other => other.clone(),
    }
}

/// `batch` with the types of `schema`, which is that of [`common_schema`].
///
/// # Errors
/// If it has more text than a column of such a type holds, 2 GiB.
pub fn in_common_types(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let failed = |cause| Error::data("the rows do not fit into an Arrow batch").cause(cause);
    let columns = batch.columns().iter().zip(schema.fields()).map(|(column, field)| convert(column, field.data_type()));
    let columns = columns.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options).map_err(failed)
}

fn convert(column: &ArrayRef, data_type: &DataType) -> Result<ArrayRef, arrow::error::ArrowError> {
    match (column.data_type(), data_type) {
        (from, to) if from == to => Ok(Arc::clone(column)),
        (DataType::Utf8View, DataType::Utf8) if let Some(texts) = packed(column.as_string_view()) => {
            Ok(Arc::new(texts))
        }
        (DataType::Utf8, DataType::Utf8View) => Ok(Arc::new(viewed(column.as_string()))),
        _ => cast_with_options(column, data_type, &CastOptions { safe: false, ..CastOptions::default() }),
    }
}

/// `texts` one behind the other, unless they are too long for 32 bits. Most are short, and a copy of fixed length is
/// several times as fast as one of a length that the processor does not know.
fn packed(texts: &StringViewArray) -> Option<StringArray> {
    let length = |row: usize| if texts.is_null(row) { 0 } else { texts.views()[row] as u32 as usize };
    let total = i32::try_from((0..texts.len()).map(length).sum::<usize>()).ok()? as usize;
    let mut values = buffers::take(total + INLINE);
    let mut offsets = Vec::with_capacity(texts.len() + 1);
    offsets.push(0);
    for (row, view) in texts.views().iter().enumerate() {
        let (start, length) = (values.len(), length(row));
        if length <= INLINE {
            values.extend_from_slice(&view.to_le_bytes()[4..]);
            values.truncate(start + length);
        } else {
            values.extend_from_slice(texts.value(row).as_bytes());
        }
        offsets.push(values.len() as i32);
    }
    let offsets = OffsetBuffer::new(offsets.into());
    // SAFETY: each text is one of `texts`, which are UTF-8, and the offsets are where they begin and end.
    Some(unsafe { StringArray::new_unchecked(offsets, Buffer::from(buffers::share(values)), texts.nulls().cloned()) })
}

/// `texts` as views of their bytes.
fn viewed(texts: &StringArray) -> StringViewArray {
    let ends = texts.value_offsets().windows(2);
    let views = ends.map(|ends| view(texts.value_data(), ends[0] as usize, (ends[1] - ends[0]) as usize, 0));
    let views = ScalarBuffer::from(views.collect::<Vec<_>>());
    // SAFETY: each view is of a text of `texts`, which is UTF-8, and of its place in the first buffer.
    unsafe { StringViewArray::new_unchecked(views, vec![texts.values().clone()], texts.nulls().cloned()) }
}

/// `batch`, which a program gave, with the columns `gives`: found by name, of types whose values are among these.
///
/// # Errors
/// If it lacks a column, has another one, or one of another type.
pub fn given(batch: &RecordBatch, gives: &SchemaRef, who: &str) -> Result<RecordBatch> {
    let theirs = batch.schema();
    let fault = |what: String| Error::data(what).reject(RejectKind::Value);
    if let Some(other) = theirs.fields().iter().find(|field| gives.index_of(field.name()).is_err()) {
        return Err(fault(format!("{who} gave `{}`, which is none of `columns`", other.name())));
    }
    let columns = gives.fields().iter().map(|field| {
        let Some(column) = batch.column_by_name(field.name()) else {
            return Err(fault(format!("{who} gave no column `{}`", field.name())));
        };
        if !is_among(column.data_type(), field.data_type()) {
            let what = format!(
                "{who} gave `{}` as {}, and `columns` says {}",
                field.name(),
                type_name(column.data_type()),
                type_name(field.data_type())
            );
            return Err(fault(what).column(field.name()));
        }
        convert(column, field.data_type())
            .and_then(|converted| unless_cut(column, converted))
            .map_err(|cause| fault(format!("{who} gave a value of another type")).column(field.name()).cause(cause))
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(nullable(gives), columns, &options)
        .map_err(|cause| fault(format!("{who} gave columns that do not fit together")).cause(cause))
}

/// `converted`, unless times have lost digits by it.
fn unless_cut(column: &ArrayRef, converted: ArrayRef) -> Result<ArrayRef, arrow::error::ArrowError> {
    use arrow::datatypes::TimeUnit::Nanosecond;
    let is_finer = matches!(column.data_type(), DataType::Timestamp(Nanosecond, _) | DataType::Time64(Nanosecond));
    if !is_finer || converted.data_type() == column.data_type() {
        return Ok(converted);
    }
    match convert(&converted, column.data_type())?.to_data() == column.to_data() {
        true => Ok(converted),
        false => Err(arrow::error::ArrowError::CastError("it has digits behind the microseconds".to_owned())),
    }
}

/// Whether all values of `from` are values of `to`.
fn is_among(from: &DataType, to: &DataType) -> bool {
    let (from, to) = (common_type(from), common_type(to));
    let is_text = |data_type: &DataType| matches!(data_type, DataType::Utf8 | DataType::LargeUtf8);
    let is_binary = |data_type: &DataType| matches!(data_type, DataType::Binary | DataType::LargeBinary);
    match (&from, &to) {
        (DataType::Null, _) => true,
        (from, to) if is_text(to) => is_text(from),
        (from, to) if is_binary(to) => is_binary(from) || matches!(from, DataType::FixedSizeBinary(_)),
        (DataType::List(from) | DataType::LargeList(from), DataType::List(to)) => {
            is_among(from.data_type(), to.data_type())
        }
        (DataType::Struct(from), DataType::Struct(to)) => {
            let same = |(from, to): (&FieldRef, &FieldRef)| {
                from.name() == to.name() && is_among(from.data_type(), to.data_type())
            };
            from.len() == to.len() && from.iter().zip(to).all(same)
        }
        // Values that lose digits by another unit are found when they are converted.
        (DataType::Timestamp(_, from), DataType::Timestamp(_, to)) => from.is_some() == to.is_some(),
        (DataType::Time32(_) | DataType::Time64(_), DataType::Time64(_)) => true,
        (from, to) => from == to || widen(from, to) == *to,
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::TimeUnit;

    use super::*;

    #[test]
    fn texts_are_the_same_as_views_and_packed() {
        let long = "a text of more than twelve bytes";
        let texts = StringArray::from(vec![Some("short"), None, Some(long), Some(""), Some("exactly twel")]);
        for texts in [texts.clone(), texts.slice(1, 3), texts.slice(0, 0)] {
            let views = viewed(&texts);
            assert_eq!(views.iter().collect::<Vec<_>>(), texts.iter().collect::<Vec<_>>());
            views.to_data().validate_full().expect("valid views");
            assert_eq!(packed(&views), Some(texts));
        }
    }

    #[test]
    fn a_type_takes_what_it_can_hold() {
        let zoned = |unit| DataType::Timestamp(unit, Some("UTC".into()));
        for (from, to) in [
            (DataType::Int32, DataType::Int64),
            (DataType::LargeUtf8, DataType::Utf8View),
            (DataType::Float32, DataType::Float64),
            (DataType::Null, DataType::Date32),
            (zoned(TimeUnit::Second), zoned(TimeUnit::Microsecond)),
        ] {
            assert!(is_among(&from, &to), "{from} to {to}");
        }
        for (from, to) in [
            (DataType::Int64, DataType::Int32),
            (DataType::Int64, DataType::Utf8View),
            (DataType::Float64, DataType::Int64),
            (DataType::Utf8, DataType::Int64),
            (DataType::Timestamp(TimeUnit::Microsecond, None), zoned(TimeUnit::Microsecond)),
        ] {
            assert!(!is_among(&from, &to), "{from} to {to}");
        }
    }
}
