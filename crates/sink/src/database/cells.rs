//! Reads Arrow values for databases: the many types of Arrow in a few forms, value by value without allocations.
//! `text.rs` and the servers write them.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryViewArray, BooleanArray, Decimal128Array, Float32Array, Float64Array, Int64Array,
    RecordBatch, StringViewArray, UInt64Array,
};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Date32Type, FieldRef, Time32MillisecondType, Time32SecondType, Time64MicrosecondType,
    Time64NanosecondType, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType,
};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow_json::EncoderOptions;
use arrow_json::writer::{NullableEncoder, make_encoder};
use millstream_core::types::type_name;
use millstream_core::{Error, Result};

/// The columns of a batch in the forms that [`Cells`] reads. Most of these changes copy nothing.
pub(crate) struct Columns {
    fields: Vec<FieldRef>,
    arrays: Vec<ArrayRef>,
    plain: FormatOptions<'static>,
    json: EncoderOptions,
}

impl Columns {
    pub(crate) fn new(fields: &[FieldRef], batch: &RecordBatch) -> Result<Self> {
        let arrays = fields.iter().zip(batch.columns());
        let arrays: Result<Vec<_>> =
            arrays.map(|(field, array)| readable(array).map_err(|error| fault(field, error))).collect();
        Ok(Columns {
            fields: fields.to_vec(),
            arrays: arrays?,
            plain: FormatOptions::new().with_display_error(false),
            json: EncoderOptions::default().with_explicit_nulls(true),
        })
    }

    /// Reads the values of every column.
    pub(crate) fn cells(&self) -> Result<Vec<Column<'_>>> {
        let columns = self.fields.iter().zip(&self.arrays);
        columns
            .map(|(field, array)| {
                let cells = self.form(field, array).map_err(|error| fault(field, error))?;
                Ok(Column { nulls: array.nulls(), cells })
            })
            .collect()
    }

    fn form<'a>(&'a self, field: &'a FieldRef, array: &'a ArrayRef) -> Result<Cells<'a>, ArrowError> {
        Ok(match array.data_type() {
            DataType::Null => Cells::Null,
            DataType::Boolean => Cells::Bool(array.as_boolean()),
            DataType::Int64 => Cells::Signed(array.as_primitive()),
            DataType::UInt64 => Cells::Unsigned(array.as_primitive()),
            DataType::Float32 => Cells::Single(array.as_primitive()),
            DataType::Float64 => Cells::Double(array.as_primitive()),
            DataType::Decimal128(_, scale) => Cells::Decimal(array.as_primitive(), *scale),
            DataType::Utf8View => Cells::Text(array.as_string_view()),
            DataType::BinaryView => Cells::Bytes(array.as_binary_view()),
            DataType::Date32 => Cells::Date(array.as_primitive::<Date32Type>().values()),
            DataType::Timestamp(unit, _) => Cells::Timestamp(timestamps(array, *unit), per_second(*unit)),
            DataType::Time32(unit) | DataType::Time64(unit) => Cells::Time(times(array, *unit)?, per_second(*unit)),
            nested if nested.is_nested() => Cells::Json(make_encoder(field, array.as_ref(), &self.json)?),
            _ => Cells::Formatted(ArrayFormatter::try_new(array.as_ref(), &self.plain)?),
        })
    }
}

/// The error of a field whose type cannot be written to a database.
pub(crate) fn type_fault(field: &FieldRef) -> Option<Error> {
    let empty = arrow::array::new_empty_array(field.data_type());
    let schema = Arc::new(arrow::datatypes::Schema::new(vec![field.as_ref().clone().with_nullable(true)]));
    let batch = RecordBatch::try_new(schema, vec![empty]).map_err(|error| fault(field, error));
    let read = batch.and_then(|batch| Columns::new(std::slice::from_ref(field), &batch)?.cells().map(drop));
    read.err()
}

fn fault(field: &FieldRef, error: ArrowError) -> Error {
    Error::refused(format!("a database cannot hold values of the type {}", type_name(field.data_type())))
        .column(field.name())
        .cause(error)
        .hint("CAST the column to another type, or leave it out")
}

/// The values of one column.
pub(crate) struct Column<'a> {
    nulls: Option<&'a NullBuffer>,
    pub(crate) cells: Cells<'a>,
}

impl Column<'_> {
    pub(crate) fn is_null(&self, row: usize) -> bool {
        self.nulls.is_some_and(|nulls| nulls.is_null(row)) || matches!(self.cells, Cells::Null)
    }
}

/// Values by their form. Times are counts since 1970 or midnight, with the number of units per second.
pub(crate) enum Cells<'a> {
    Null,
    Bool(&'a BooleanArray),
    Signed(&'a Int64Array),
    Unsigned(&'a UInt64Array),
    Single(&'a Float32Array),
    Double(&'a Float64Array),
    /// With the number of digits after the point.
    Decimal(&'a Decimal128Array, i8),
    Text(&'a StringViewArray),
    Bytes(&'a BinaryViewArray),
    /// In days.
    Date(&'a [i32]),
    Timestamp(&'a [i64], i64),
    Time(Times<'a>, i64),
    Json(NullableEncoder<'a>),
    Formatted(ArrayFormatter<'a>),
}

/// Times of day, in either width.
pub(crate) enum Times<'a> {
    Narrow(&'a [i32]),
    Wide(&'a [i64]),
}

impl Times<'_> {
    pub(crate) fn value(&self, row: usize) -> i64 {
        match self {
            Times::Narrow(values) => i64::from(values[row]),
            Times::Wide(values) => values[row],
        }
    }
}

/// How many of a unit make a second.
pub(crate) fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

fn timestamps(array: &ArrayRef, unit: TimeUnit) -> &[i64] {
    match unit {
        TimeUnit::Second => array.as_primitive::<TimestampSecondType>().values(),
        TimeUnit::Millisecond => array.as_primitive::<TimestampMillisecondType>().values(),
        TimeUnit::Microsecond => array.as_primitive::<TimestampMicrosecondType>().values(),
        TimeUnit::Nanosecond => array.as_primitive::<TimestampNanosecondType>().values(),
    }
}

fn times(array: &ArrayRef, unit: TimeUnit) -> Result<Times<'_>, ArrowError> {
    Ok(match unit {
        TimeUnit::Second => Times::Narrow(array.as_primitive::<Time32SecondType>().values()),
        TimeUnit::Millisecond => Times::Narrow(array.as_primitive::<Time32MillisecondType>().values()),
        TimeUnit::Microsecond => Times::Wide(array.as_primitive::<Time64MicrosecondType>().values()),
        TimeUnit::Nanosecond => Times::Wide(array.as_primitive::<Time64NanosecondType>().values()),
    })
}

/// The array as one of the types that [`Columns::cells`] knows.
fn readable(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    match array.data_type() {
        DataType::UInt64 | DataType::Int64 => Ok(Arc::clone(array)),
        integer if integer.is_integer() => cast(array, &DataType::Int64),
        DataType::Float16 => cast(array, &DataType::Float32),
        DataType::Decimal32(digits, scale) | DataType::Decimal64(digits, scale) => {
            cast(array, &DataType::Decimal128(*digits, *scale))
        }
        DataType::Utf8 | DataType::LargeUtf8 => cast(array, &DataType::Utf8View),
        DataType::Binary | DataType::LargeBinary => cast(array, &DataType::BinaryView),
        DataType::FixedSizeBinary(_) => cast(&cast(array, &DataType::Binary)?, &DataType::BinaryView),
        DataType::Dictionary(_, values) => readable(&cast(array, values)?),
        DataType::RunEndEncoded(_, values) => readable(&cast(array, values.data_type())?),
        DataType::Date64 => cast(array, &DataType::Date32),
        _ => Ok(Arc::clone(array)),
    }
}
