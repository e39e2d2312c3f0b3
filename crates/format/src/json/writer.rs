//! Batches to JSON text.
//!
//! Reading gives the same values again. Dates and times are ISO 8601, bytes hexadecimal digits; the floats that JSON
//! lacks are the texts "NaN", "Infinity" and "-Infinity", which a float column reads. (arrow-json's writer makes them
//! null.)

use std::collections::HashSet;
use std::io::Write;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, OffsetSizeTrait, PrimitiveArray, RecordBatch, new_empty_array,
};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{
    ArrowNativeType, DataType, Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    DecimalType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, SchemaRef,
    Time32MillisecondType, Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimeUnit,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use millstream_core::format::RowEncoder;
use millstream_core::{Error, Result};

use super::convert;
use super::spec::{Decimals, JsonSpec, Layout, Nulls};

/// Encodes the rows of one file.
pub struct JsonEncoder {
    array: bool,
    options: Options,
    /// A separator is needed before the next row.
    rows_before: bool,
}

#[derive(Debug, Clone, Copy)]
struct Options {
    nulls: Nulls,
    decimals: Decimals,
}

impl JsonEncoder {
    /// An encoder for rows of `schema`; an error if json has no form for one of its types.
    pub fn new(spec: &JsonSpec, schema: &SchemaRef) -> Result<Self> {
        let options = Options { nulls: spec.nulls, decimals: spec.decimals };
        let mut names = HashSet::new();
        for field in schema.fields() {
            if !names.insert(field.name()) {
                return Err(Error::job(format!(
                    "two columns are named {}, and an object has a key once",
                    field.name()
                ))
                .column(field.name())
                .hint("give one of them another name: SELECT x AS y"));
            }
            column(&new_empty_array(field.data_type()), options).map_err(|error| error.column(field.name()))?;
        }
        Ok(JsonEncoder { array: spec.layout == Layout::Array, options, rows_before: false })
    }
}

impl RowEncoder for JsonEncoder {
    fn encode(&mut self, batch: &RecordBatch, output: &mut Vec<u8>) -> Result<()> {
        let names = batch.schema_ref().fields().iter().map(|field| field.name().as_str());
        let fields = object(names, batch.columns(), self.options)?;
        for row in 0..batch.num_rows() {
            if self.array {
                output.extend_from_slice(if self.rows_before { b",\n" } else { b"[\n" });
                self.rows_before = true;
            }
            fields(row, output);
            if !self.array {
                output.push(b'\n');
            }
        }
        Ok(())
    }

    fn finish(&mut self, output: &mut Vec<u8>) -> Result<()> {
        if self.array {
            output.extend_from_slice(if self.rows_before { b"\n]\n" } else { b"[]\n" });
        }
        Ok(())
    }
}

/// Appends the value of a row that is not null.
type Append = Box<dyn Fn(usize, &mut Vec<u8>)>;

/// The values of one column.
struct Column {
    nulls: Option<NullBuffer>,
    append: Append,
}

impl Column {
    fn is_null(&self, row: usize) -> bool {
        self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row))
    }

    fn append(&self, row: usize, output: &mut Vec<u8>) {
        if self.is_null(row) {
            output.extend_from_slice(b"null");
        } else {
            (self.append)(row, output);
        }
    }
}

fn column(array: &ArrayRef, options: Options) -> Result<Column> {
    Ok(Column { nulls: array.logical_nulls(), append: values(array, options)? })
}

/// The values of several columns as one object a row.
fn object<'n>(names: impl Iterator<Item = &'n str>, columns: &[ArrayRef], options: Options) -> Result<Append> {
    let mut fields = Vec::with_capacity(columns.len());
    for (name, values) in names.zip(columns) {
        let mut key = Vec::new();
        append_text(name, &mut key);
        key.push(b':');
        fields.push((key, column(values, options).map_err(|error| error.column(name))?));
    }
    Ok(Box::new(move |row, output| {
        let mut separator = b'{';
        for (key, values) in &fields {
            if options.nulls == Nulls::Omit && values.is_null(row) {
                continue;
            }
            output.push(separator);
            separator = b',';
            output.extend_from_slice(key);
            values.append(row, output);
        }
        if separator == b'{' {
            output.push(b'{');
        }
        output.push(b'}');
    }))
}

fn values(array: &ArrayRef, options: Options) -> Result<Append> {
    Ok(match array.data_type() {
        DataType::Null => Box::new(|_, output| output.extend_from_slice(b"null")),
        DataType::Boolean => {
            let array = array.as_boolean().clone();
            Box::new(move |row, output| output.extend_from_slice(if array.value(row) { b"true" } else { b"false" }))
        }
        DataType::Int8 => integers::<Int8Type>(array),
        DataType::Int16 => integers::<Int16Type>(array),
        DataType::Int32 => integers::<Int32Type>(array),
        DataType::Int64 => integers::<Int64Type>(array),
        DataType::UInt8 => integers::<UInt8Type>(array),
        DataType::UInt16 => integers::<UInt16Type>(array),
        DataType::UInt32 => integers::<UInt32Type>(array),
        DataType::UInt64 => integers::<UInt64Type>(array),
        DataType::Float16 => {
            let array = array.as_primitive::<Float16Type>().clone();
            Box::new(move |row, output| append_float(f32::from(array.value(row)), output))
        }
        DataType::Float32 => floats::<Float32Type>(array),
        DataType::Float64 => floats::<Float64Type>(array),
        DataType::Utf8 => {
            let array = array.as_string::<i32>().clone();
            Box::new(move |row, output| append_text(array.value(row), output))
        }
        DataType::LargeUtf8 => {
            let array = array.as_string::<i64>().clone();
            Box::new(move |row, output| append_text(array.value(row), output))
        }
        DataType::Utf8View => {
            let array = array.as_string_view().clone();
            Box::new(move |row, output| append_text(array.value(row), output))
        }
        DataType::Binary => {
            let array = array.as_binary::<i32>().clone();
            Box::new(move |row, output| append_bytes(array.value(row), output))
        }
        DataType::LargeBinary => {
            let array = array.as_binary::<i64>().clone();
            Box::new(move |row, output| append_bytes(array.value(row), output))
        }
        DataType::BinaryView => {
            let array = array.as_binary_view().clone();
            Box::new(move |row, output| append_bytes(array.value(row), output))
        }
        DataType::FixedSizeBinary(_) => {
            let array = array.as_fixed_size_binary().clone();
            Box::new(move |row, output| append_bytes(array.value(row), output))
        }
        DataType::Decimal32(..) => decimals::<Decimal32Type>(array, options),
        DataType::Decimal64(..) => decimals::<Decimal64Type>(array, options),
        DataType::Decimal128(..) => decimals::<Decimal128Type>(array, options),
        DataType::Decimal256(..) => decimals::<Decimal256Type>(array, options),
        DataType::Dictionary(_, values_type) => {
            let plain = cast(array, values_type).map_err(unwritable)?;
            values(&plain, options)?
        }
        DataType::List(_) => lists::<i32>(array, options)?,
        DataType::LargeList(_) => lists::<i64>(array, options)?,
        DataType::FixedSizeList(item, _) | DataType::ListView(item) | DataType::LargeListView(item) => {
            let plain = cast(array, &DataType::LargeList(item.clone())).map_err(unwritable)?;
            lists::<i64>(&plain, options)?
        }
        DataType::Struct(fields) => {
            let names = fields.iter().map(|field| field.name().as_str());
            object(names, array.as_struct().columns(), options)?
        }
        DataType::Map(..) => maps(array, options)?,
        other => temporal(array, other)?,
    })
}

fn temporal(array: &ArrayRef, data_type: &DataType) -> Result<Append> {
    Ok(match data_type {
        DataType::Date32 => moments::<Date32Type>(array, convert::write_date),
        DataType::Date64 => moments::<Date64Type>(array, |milliseconds, text| {
            convert::write_date(milliseconds.div_euclid(86_400_000), text);
        }),
        DataType::Time32(TimeUnit::Second) => moments::<Time32SecondType>(array, |t, text| {
            convert::write_time(t, 1, text);
        }),
        DataType::Time32(_) => moments::<Time32MillisecondType>(array, |t, text| convert::write_time(t, 1_000, text)),
        DataType::Time64(TimeUnit::Microsecond) => {
            moments::<Time64MicrosecondType>(array, |t, text| convert::write_time(t, 1_000_000, text))
        }
        DataType::Time64(_) => {
            moments::<Time64NanosecondType>(array, |t, text| convert::write_time(t, 1_000_000_000, text))
        }
        DataType::Timestamp(unit, zone) => {
            let utc = zone.is_some();
            match unit {
                TimeUnit::Second => timestamps::<TimestampSecondType>(array, 1, utc),
                TimeUnit::Millisecond => timestamps::<TimestampMillisecondType>(array, 1_000, utc),
                TimeUnit::Microsecond => timestamps::<TimestampMicrosecondType>(array, 1_000_000, utc),
                TimeUnit::Nanosecond => timestamps::<TimestampNanosecondType>(array, 1_000_000_000, utc),
            }
        }
        other => {
            return Err(Error::job(format!("json cannot write values of the type {other}"))
                .hint("convert the column in SQL before it is written: CAST(… AS VARCHAR)"));
        }
    })
}

fn integers<T: ArrowPrimitiveType>(array: &ArrayRef) -> Append
where
    T::Native: std::fmt::Display,
{
    let array = array.as_primitive::<T>().clone();
    Box::new(move |row, output| {
        // Writing to a vector cannot fail.
        let _ = write!(output, "{}", array.value(row));
    })
}

fn floats<T: ArrowPrimitiveType>(array: &ArrayRef) -> Append
where
    T::Native: Into<f64> + std::fmt::Debug,
{
    let array = array.as_primitive::<T>().clone();
    Box::new(move |row, output| append_float(array.value(row), output))
}

fn append_float<F: Into<f64> + Copy + std::fmt::Debug>(value: F, output: &mut Vec<u8>) {
    let wide: f64 = value.into();
    if wide.is_finite() {
        // `Debug` gives the shortest digits that read back to the same value, with an exponent if there are many.
        let _ = write!(output, "{value:?}");
    } else if wide.is_nan() {
        output.extend_from_slice(b"\"NaN\"");
    } else {
        output.extend_from_slice(if wide > 0.0 { b"\"Infinity\"" } else { b"\"-Infinity\"" });
    }
}

fn decimals<T: DecimalType>(array: &ArrayRef, options: Options) -> Append {
    let array: PrimitiveArray<T> = array.as_primitive::<T>().clone();
    let quote: &[u8] = if options.decimals == Decimals::Text { b"\"" } else { b"" };
    let (precision, scale) = match array.data_type() {
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => (*precision, *scale),
        _ => (T::MAX_PRECISION, 0),
    };
    Box::new(move |row, output| {
        output.extend_from_slice(quote);
        output.extend_from_slice(T::format_decimal(array.value(row), precision, scale).as_bytes());
        output.extend_from_slice(quote);
    })
}

fn moments<T: ArrowPrimitiveType>(array: &ArrayRef, write: impl Fn(i64, &mut String) + 'static) -> Append
where
    T::Native: Into<i64>,
{
    let array = array.as_primitive::<T>().clone();
    Box::new(move |row, output| {
        let mut text = String::with_capacity(32);
        write(array.value(row).into(), &mut text);
        append_text(&text, output);
    })
}

fn timestamps<T: ArrowPrimitiveType>(array: &ArrayRef, a_second: i64, utc: bool) -> Append
where
    T::Native: Into<i64>,
{
    moments::<T>(array, move |moment, text| convert::write_timestamp(moment, a_second, utc, text))
}

fn lists<O: OffsetSizeTrait>(array: &ArrayRef, options: Options) -> Result<Append> {
    let array = array.as_list::<O>().clone();
    let items = column(array.values(), options)?;
    Ok(Box::new(move |row, output| {
        let offsets = array.value_offsets();
        let (start, end) = (offsets[row].as_usize(), offsets[row + 1].as_usize());
        output.push(b'[');
        for item in start..end {
            if item > start {
                output.push(b',');
            }
            items.append(item, output);
        }
        output.push(b']');
    }))
}

/// A map is an object; its keys are written as texts.
fn maps(array: &ArrayRef, options: Options) -> Result<Append> {
    let array = array.as_map().clone();
    let keys = cast(array.keys(), &DataType::LargeUtf8).map_err(unwritable)?;
    let keys = keys.as_string::<i64>().clone();
    let items = column(array.values(), options)?;
    Ok(Box::new(move |row, output| {
        let offsets = array.value_offsets();
        let (start, end) = (offsets[row].as_usize(), offsets[row + 1].as_usize());
        output.push(b'{');
        for item in start..end {
            if item > start {
                output.push(b',');
            }
            append_text(keys.value(item), output);
            output.push(b':');
            items.append(item, output);
        }
        output.push(b'}');
    }))
}

fn unwritable(cause: arrow::error::ArrowError) -> Error {
    Error::job("json cannot write the values of a column").cause(cause)
}

fn append_bytes(bytes: &[u8], output: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    output.push(b'"');
    output.extend(bytes.iter().flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]));
    output.push(b'"');
}

fn append_text(text: &str, output: &mut Vec<u8>) {
    output.push(b'"');
    let bytes = text.as_bytes();
    let mut written = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        output.extend_from_slice(&bytes[written..at]);
        written = at + 1;
        match byte {
            b'"' => output.extend_from_slice(b"\\\""),
            b'\\' => output.extend_from_slice(b"\\\\"),
            b'\n' => output.extend_from_slice(b"\\n"),
            b'\r' => output.extend_from_slice(b"\\r"),
            b'\t' => output.extend_from_slice(b"\\t"),
            control => {
                let _ = write!(output, "\\u{control:04x}");
            }
        }
    }
    output.extend_from_slice(&bytes[written..]);
    output.push(b'"');
}
