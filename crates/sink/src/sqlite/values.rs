//! Converts Arrow values to SQLite's.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryViewArray, BooleanArray, Float64Array, Int64Array, StringViewArray, UInt64Array,
};
use arrow::buffer::ScalarBuffer;
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, FieldRef, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType,
};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow_json::EncoderOptions;
use arrow_json::writer::{NullableEncoder, make_encoder};
use millstream_core::types::type_name;
use millstream_core::{Error, Result};
use rusqlite::ToSql;
use rusqlite::types::{ToSqlOutput, ValueRef};

/// One value for a statement.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell<'a> {
    Null,
    Integer(i64),
    Real(f64),
    Text(Cow<'a, str>),
    Blob(&'a [u8]),
}

impl Cell<'_> {
    /// The approximate bytes of the value.
    pub(super) fn size(&self) -> u64 {
        match self {
            Cell::Null => 1,
            Cell::Integer(_) | Cell::Real(_) => 8,
            Cell::Text(text) => text.len() as u64,
            Cell::Blob(bytes) => bytes.len() as u64,
        }
    }

    /// The value for a message.
    pub(super) fn shown(&self) -> String {
        match self {
            Cell::Null => "NULL".to_owned(),
            Cell::Integer(value) => value.to_string(),
            Cell::Real(value) => value.to_string(),
            Cell::Text(text) => format!("'{text}'"),
            Cell::Blob(bytes) => format!("{} bytes", bytes.len()),
        }
    }
}

impl ToSql for Cell<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Cell::Null => ValueRef::Null,
            Cell::Integer(value) => ValueRef::Integer(*value),
            Cell::Real(value) => ValueRef::Real(*value),
            Cell::Text(text) => ValueRef::Text(text.as_bytes()),
            Cell::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

/// A column in the form in which its values are read: few forms for the many types of Arrow. Most of these changes
/// copy nothing.
#[derive(Debug)]
pub(super) struct Column {
    field: FieldRef,
    array: ArrayRef,
}

impl Column {
    pub(super) fn new(field: &FieldRef, array: &ArrayRef) -> Result<Self> {
        let array = readable(array).map_err(|error| fault(field, error))?;
        Ok(Column { field: Arc::clone(field), array })
    }

    /// Reads the values.
    pub(super) fn reader<'a>(&'a self, options: &'a ReaderOptions) -> Result<Reader<'a>> {
        let array = &self.array;
        let form = match array.data_type() {
            DataType::Null => Form::Null,
            DataType::Boolean => Form::Bool(array.as_boolean()),
            DataType::Int64 => Form::Integer(array.as_primitive()),
            DataType::UInt64 => Form::Unsigned(array.as_primitive()),
            DataType::Float64 => Form::Real(array.as_primitive()),
            DataType::Utf8View => Form::Text(array.as_string_view()),
            DataType::BinaryView => Form::Blob(array.as_binary_view()),
            nested if nested.is_nested() => {
                let encoder = make_encoder(&self.field, array.as_ref(), &options.json);
                Form::Json(encoder.map_err(|error| fault(&self.field, error))?)
            }
            DataType::Timestamp(unit, _) => {
                let rest = self.formatter(options.timestamps(*unit))?;
                let (per_second, digits) = match unit {
                    TimeUnit::Second => (1, 0),
                    TimeUnit::Millisecond => (1_000, 3),
                    TimeUnit::Microsecond => (1_000_000, 6),
                    TimeUnit::Nanosecond => (1_000_000_000, 9),
                };
                // Counts in any unit.
                let values = array.to_data().buffers()[0].clone();
                let values = ScalarBuffer::new(values, array.offset(), array.len());
                Form::Time(Times { values, per_second, digits, rest })
            }
            _ => Form::Formatted(self.formatter(&options.plain)?),
        };
        Ok(Reader { name: self.field.name(), array, form })
    }

    fn formatter<'a>(&'a self, options: &'a FormatOptions<'static>) -> Result<ArrayFormatter<'a>> {
        ArrayFormatter::try_new(self.array.as_ref(), options).map_err(|error| fault(&self.field, error))
    }
}

/// The error of a field whose type cannot be loaded.
pub(super) fn type_fault(field: &FieldRef) -> Option<Error> {
    let empty = arrow::array::new_empty_array(field.data_type());
    Column::new(field, &empty).and_then(|column| column.reader(&ReaderOptions::default()).map(drop)).err()
}

fn fault(field: &FieldRef, error: ArrowError) -> Error {
    Error::refused(format!("SQLite cannot hold values of the type {}", type_name(field.data_type())))
        .column(field.name())
        .cause(error)
        .hint("CAST the column to another type, or leave it out")
}

/// The array as one of the types that [`Column::reader`] knows.
fn readable(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    match array.data_type() {
        DataType::UInt64 => Ok(Arc::clone(array)),
        integer if integer.is_integer() => cast(array, &DataType::Int64),
        DataType::Float16 | DataType::Float32 => cast(array, &DataType::Float64),
        DataType::Utf8 | DataType::LargeUtf8 => cast(array, &DataType::Utf8View),
        DataType::Binary | DataType::LargeBinary => cast(array, &DataType::BinaryView),
        DataType::FixedSizeBinary(_) => cast(&cast(array, &DataType::Binary)?, &DataType::BinaryView),
        DataType::Dictionary(_, values) => readable(&cast(array, values)?),
        DataType::RunEndEncoded(_, values) => readable(&cast(array, values.data_type())?),
        // Without its zone a timestamp is read as UTC.
        DataType::Timestamp(TimeUnit::Second, Some(_)) => {
            Ok(Arc::new(array.as_primitive::<TimestampSecondType>().clone().with_timezone_opt(None::<Arc<str>>)))
        }
        DataType::Timestamp(TimeUnit::Millisecond, Some(_)) => {
            Ok(Arc::new(array.as_primitive::<TimestampMillisecondType>().clone().with_timezone_opt(None::<Arc<str>>)))
        }
        DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => {
            Ok(Arc::new(array.as_primitive::<TimestampMicrosecondType>().clone().with_timezone_opt(None::<Arc<str>>)))
        }
        DataType::Timestamp(TimeUnit::Nanosecond, Some(_)) => {
            Ok(Arc::new(array.as_primitive::<TimestampNanosecondType>().clone().with_timezone_opt(None::<Arc<str>>)))
        }
        DataType::Date64 => cast(array, &DataType::Date32),
        _ => Ok(Arc::clone(array)),
    }
}

/// How values become text. Kept apart from the readers, which borrow it.
#[derive(Debug)]
pub(super) struct ReaderOptions {
    plain: FormatOptions<'static>,
    seconds: FormatOptions<'static>,
    milliseconds: FormatOptions<'static>,
    microseconds: FormatOptions<'static>,
    nanoseconds: FormatOptions<'static>,
    json: EncoderOptions,
}

impl Default for ReaderOptions {
    fn default() -> Self {
        // As many digits as the column's unit has, always, so that the order of the texts is the order of the times.
        let timestamps = |format| FormatOptions::new().with_display_error(false).with_timestamp_format(Some(format));
        ReaderOptions {
            plain: FormatOptions::new().with_display_error(false),
            seconds: timestamps("%Y-%m-%d %H:%M:%S"),
            milliseconds: timestamps("%Y-%m-%d %H:%M:%S%.3f"),
            microseconds: timestamps("%Y-%m-%d %H:%M:%S%.6f"),
            nanoseconds: timestamps("%Y-%m-%d %H:%M:%S%.9f"),
            json: EncoderOptions::default().with_explicit_nulls(true),
        }
    }
}

impl ReaderOptions {
    fn timestamps(&self, unit: TimeUnit) -> &FormatOptions<'static> {
        match unit {
            TimeUnit::Second => &self.seconds,
            TimeUnit::Millisecond => &self.milliseconds,
            TimeUnit::Microsecond => &self.microseconds,
            TimeUnit::Nanosecond => &self.nanoseconds,
        }
    }
}

/// Reads the values of one column.
pub(super) struct Reader<'a> {
    name: &'a str,
    array: &'a ArrayRef,
    form: Form<'a>,
}

enum Form<'a> {
    Null,
    Bool(&'a BooleanArray),
    Integer(&'a Int64Array),
    Unsigned(&'a UInt64Array),
    Real(&'a Float64Array),
    Text(&'a StringViewArray),
    Blob(&'a BinaryViewArray),
    Formatted(ArrayFormatter<'a>),
    Time(Times<'a>),
    Json(NullableEncoder<'a>),
}

impl<'a> Reader<'a> {
    /// The column's name.
    pub(super) fn name(&self) -> &'a str {
        self.name
    }

    /// The value of a row.
    pub(super) fn cell(&mut self, row: usize) -> Result<Cell<'a>> {
        if self.array.is_null(row) {
            return Ok(Cell::Null);
        }
        Ok(match &mut self.form {
            Form::Null => Cell::Null,
            Form::Bool(values) => Cell::Integer(i64::from(values.value(row))),
            Form::Integer(values) => Cell::Integer(values.value(row)),
            Form::Unsigned(values) => Cell::Integer(signed(values.value(row), self.name)?),
            Form::Real(values) => Cell::Real(number(values.value(row), self.name)?),
            Form::Text(values) => Cell::Text(Cow::Borrowed(values.value(row))),
            Form::Blob(values) => Cell::Blob(values.value(row)),
            Form::Formatted(values) => Cell::Text(Cow::Owned(formatted(values, row, self.name)?)),
            Form::Time(times) => Cell::Text(Cow::Owned(match times.usual(row) {
                Some(text) => text,
                None => formatted(&times.rest, row, self.name)?,
            })),
            Form::Json(encoder) => {
                let mut text = Vec::new();
                encoder.encode(row, &mut text);
                let text = String::from_utf8(text).map_err(|error| {
                    Error::internal("a nested value became text that is not UTF-8").column(self.name).cause(error)
                })?;
                Cell::Text(Cow::Owned(text))
            }
        })
    }
}

/// The error of a text that the column would convert to a number.
pub(super) fn becomes_another(text: &str, column: &str) -> Error {
    Error::data("SQLite would convert this text to a number that is written differently")
        .column(column)
        .text(text)
        .hint("declare the column as TEXT, or CAST the value to a number")
}

fn formatted(values: &ArrayFormatter, row: usize, column: &str) -> Result<String> {
    let text = values.value(row).try_to_string();
    text.map_err(|error| Error::data("a value cannot be written as text").column(column).cause(error))
}

/// Writes timestamps. Arrow's formatter parses its pattern for each value, which takes a third of the time that SQLite
/// needs for the whole row.
struct Times<'a> {
    values: ScalarBuffer<i64>,
    per_second: i64,
    /// Digits after the point.
    digits: usize,
    /// Writes timestamps of unusual years.
    rest: ArrayFormatter<'a>,
}

impl Times<'_> {
    /// The text of a time whose year has four digits.
    fn usual(&self, row: usize) -> Option<String> {
        let value = self.values[row];
        let (seconds, fraction) = (value.div_euclid(self.per_second), value.rem_euclid(self.per_second));
        let (year, month, day) = crate::database::text::civil(seconds.div_euclid(86_400));
        if !(0..=9999).contains(&year) {
            return None;
        }
        let second = seconds.rem_euclid(86_400);
        let mut text = String::with_capacity(30);
        let mut number = |value: i64, digits: usize, behind: &str| {
            for place in (0..digits as u32).rev() {
                text.push(char::from(b'0' + (value / 10_i64.pow(place) % 10) as u8));
            }
            text.push_str(behind);
        };
        number(year, 4, "-");
        number(month.into(), 2, "-");
        number(day.into(), 2, " ");
        number(second / 3600, 2, ":");
        number(second / 60 % 60, 2, ":");
        number(second % 60, 2, if self.digits > 0 { "." } else { "" });
        number(fraction, self.digits, "");
        Some(text)
    }
}

fn signed(value: u64, column: &str) -> Result<i64> {
    i64::try_from(value).map_err(|_| {
        Error::data(format!("{value} is larger than SQLite's largest integer, {}", i64::MAX))
            .column(column)
            .text(value.to_string())
            .hint("load it as text: CAST(x AS VARCHAR)")
    })
}

fn number(value: f64, column: &str) -> Result<f64> {
    if value.is_nan() {
        return Err(Error::data("SQLite has no NaN and would store NULL")
            .column(column)
            .text("NaN")
            .hint("convert it yourself: nullif(x, 'NaN'::double)"));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        TimestampMicrosecondArray, TimestampMillisecondArray, TimestampNanosecondArray, TimestampSecondArray,
    };
    use arrow::datatypes::Field;

    use super::*;

    #[test]
    fn times_are_written_as_arrow_writes_them() {
        let values = [
            0,
            -1,
            1,
            1_700_000_000_123_456_789,
            -62_135_596_800_000_000,
            951_782_400,
            253_402_300_799,
            253_402_300_800,
            -62_167_219_200,
            -62_167_219_201,
            4_102_444_799_999_999,
            68_169_600_000,
        ];
        let arrays: [ArrayRef; 4] = [
            // The calendar of the other formatter is limited.
            Arc::new(TimestampSecondArray::from_iter_values(values.iter().map(|value| value % 8_000_000_000_000))),
            Arc::new(TimestampMillisecondArray::from_iter_values(
                values.iter().map(|value| value % 8_000_000_000_000_000),
            )),
            Arc::new(TimestampMicrosecondArray::from_iter_values(values)),
            Arc::new(TimestampNanosecondArray::from_iter_values(values)),
        ];
        for array in arrays {
            // A slice of an array, as in the search for bad rows.
            let array = array.slice(1, array.len() - 1);
            let field: FieldRef = Arc::new(Field::new("t", array.data_type().clone(), true));
            let column = Column::new(&field, &array).expect("a known type");
            let options = ReaderOptions::default();
            let mut reader = column.reader(&options).expect("a known type");
            for row in 0..array.len() {
                let Form::Time(times) = &reader.form else { panic!("a time") };
                let expected = times.rest.value(row).to_string();
                assert_eq!(reader.cell(row).expect("a time"), Cell::Text(expected.into()), "{:?}", array.data_type());
            }
        }
    }
}
