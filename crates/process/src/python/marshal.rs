//! Rows in the form that Python's `marshal` module reads and writes: a way to and from its objects that needs
//! nothing but the standard library and is one call a batch.
//!
//! A batch is a list of columns, each a list of values. `marshal` knows none, bool, int, float, str, bytes, list, tuple
//! and dict. Other values go as one of these: dates as days since 1970-01-01, times as microseconds, decimals as text;
//! the worker converts them, column by column. The form is that of CPython's `Python/marshal.c`, which every version
//! reads; what comes back has version 2, which has no references.

use arrow::array::types::{
    ArrowPrimitiveType, Date32Type, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    Time32MillisecondType, Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimestampNanosecondType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use millstream_core::types::{decimal_text, type_name};
use millstream_core::{Error, Result};
use serde_json::{Value, json};

/// How the worker converts the values of each column of `schema`; null for a column whose values it takes as they are.
///
/// # Errors
/// If a column has a type that has no counterpart in Python.
pub fn conversions(schema: &Schema) -> Result<Value> {
    schema.fields().iter().map(|field| conversion(field)).collect()
}

/// The conversion of the values of a type that `marshal` does not know; `None` for other types.
pub fn conversion_of(data_type: &DataType) -> Option<&'static str> {
    match data_type {
        DataType::Date32 => Some("date"),
        DataType::Time32(_) | DataType::Time64(_) => Some("time"),
        DataType::Timestamp(_, None) => Some("timestamp"),
        DataType::Timestamp(_, Some(_)) => Some("timestamptz"),
        DataType::Decimal128(..) | DataType::Decimal256(..) => Some("decimal"),
        _ => None,
    }
}

fn conversion(field: &Field) -> Result<Value> {
    if let Some(name) = conversion_of(field.data_type()) {
        return Ok(json!(name));
    }
    Ok(match field.data_type() {
        DataType::Null
        | DataType::Boolean
        | DataType::Int8
        | DataType::Int16
        | DataType::Int32
        | DataType::Int64
        | DataType::UInt8
        | DataType::UInt16
        | DataType::UInt32
        | DataType::UInt64
        | DataType::Float16
        | DataType::Float32
        | DataType::Float64
        | DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_) => Value::Null,
        DataType::Dictionary(_, values) => conversion(&field.clone().with_data_type(values.as_ref().clone()))?,
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            match conversion(item)? {
                Value::Null => Value::Null,
                of_items => json!({"list": of_items}),
            }
        }
        DataType::Struct(members) => {
            let members: Vec<(&String, Value)> =
                members.iter().map(|member| Ok((member.name(), conversion(member)?))).collect::<Result<_>>()?;
            match members.iter().all(|(_, conversion)| conversion.is_null()) {
                true => Value::Null,
                false => json!({"struct": members}),
            }
        }
        other => {
            let what =
                format!("column `{}` has type {}, which Python functions do not take", field.name(), type_name(other));
            return Err(Error::job(what).hint("cast it in a `select` or `sql` before"));
        }
    })
}

/// Appends the columns of `batch` to `out`.
///
/// # Errors
/// If a column has a type that [`conversions`] refuses.
pub fn write(batch: &RecordBatch, out: &mut Vec<u8>) -> Result<()> {
    begin(out, b'[', batch.num_columns());
    batch.columns().iter().try_for_each(|column| write_column(column.as_ref(), out))
}

/// Begins a tuple of `length` values, which are to follow.
pub fn begin_tuple(out: &mut Vec<u8>, length: usize) {
    begin(out, b'(', length);
}

fn begin(out: &mut Vec<u8>, kind: u8, length: usize) {
    out.push(kind);
    out.extend_from_slice(&(length as u32).to_le_bytes());
}

fn write_column(column: &dyn Array, out: &mut Vec<u8>) -> Result<()> {
    begin(out, b'[', column.len());
    write_values(column, out)
}

/// The values of `column` one after the other, without a list around them.
fn write_values(column: &dyn Array, out: &mut Vec<u8>) -> Result<()> {
    match column.data_type() {
        DataType::Null => out.resize(out.len() + column.len(), b'N'),
        DataType::Boolean => {
            let values = column.as_boolean();
            values.iter().for_each(|value| out.push(value.map_or(b'N', |value| if value { b'T' } else { b'F' })));
        }
        DataType::Int8 => write_numbers::<Int8Type>(column, out, |value, out| write_int(i64::from(value), out)),
        DataType::Int16 => write_numbers::<Int16Type>(column, out, |value, out| write_int(i64::from(value), out)),
        DataType::Int32 => write_numbers::<Int32Type>(column, out, |value, out| write_int(i64::from(value), out)),
        DataType::Int64 => write_numbers::<Int64Type>(column, out, write_int),
        DataType::UInt8 => write_numbers::<UInt8Type>(column, out, |value, out| write_int(i64::from(value), out)),
        DataType::UInt16 => write_numbers::<UInt16Type>(column, out, |value, out| write_int(i64::from(value), out)),
        DataType::UInt32 => write_numbers::<UInt32Type>(column, out, |value, out| write_int(i64::from(value), out)),
        DataType::UInt64 => write_numbers::<UInt64Type>(column, out, |value, out| match i64::try_from(value) {
            Ok(value) => write_int(value, out),
            Err(_) => write_digits(value, false, out),
        }),
        DataType::Float16 => {
            write_numbers::<Float16Type>(column, out, |value, out| write_float(f64::from(value), out));
        }
        DataType::Float32 => {
            write_numbers::<Float32Type>(column, out, |value, out| write_float(f64::from(value), out));
        }
        DataType::Float64 => write_numbers::<Float64Type>(column, out, write_float),
        DataType::Utf8 => column.as_string::<i32>().iter().for_each(|value| write_text(value, out)),
        DataType::LargeUtf8 => column.as_string::<i64>().iter().for_each(|value| write_text(value, out)),
        DataType::Utf8View => column.as_string_view().iter().for_each(|value| write_text(value, out)),
        DataType::Binary => column.as_binary::<i32>().iter().for_each(|value| write_bytes(value, out)),
        DataType::LargeBinary => column.as_binary::<i64>().iter().for_each(|value| write_bytes(value, out)),
        DataType::BinaryView => column.as_binary_view().iter().for_each(|value| write_bytes(value, out)),
        DataType::FixedSizeBinary(_) => {
            column.as_fixed_size_binary().iter().for_each(|value| write_bytes(value, out));
        }
        DataType::Date32 => write_numbers::<Date32Type>(column, out, |value, out| write_int(i64::from(value), out)),
        DataType::Time32(TimeUnit::Second) => write_numbers::<Time32SecondType>(column, out, |value, out| {
            write_int(i64::from(value) * 1_000_000, out);
        }),
        DataType::Time32(_) => write_numbers::<Time32MillisecondType>(column, out, |value, out| {
            write_int(i64::from(value) * 1_000, out);
        }),
        DataType::Time64(TimeUnit::Microsecond) => write_numbers::<Time64MicrosecondType>(column, out, write_int),
        DataType::Time64(_) => {
            write_numbers::<Time64NanosecondType>(column, out, |value, out| write_int(value / 1_000, out));
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            // Digits are cut off, so that an earlier time never becomes a later one.
            let micros = |value: i64, out: &mut Vec<u8>| write_int(value.div_euclid(1_000), out);
            write_numbers::<TimestampNanosecondType>(column, out, micros);
        }
        DataType::Timestamp(..) => {
            let (micros, strict) = (DataType::Timestamp(TimeUnit::Microsecond, None), CastOptions::default());
            let strict = CastOptions { safe: false, ..strict };
            let micros = cast_with_options(column, &micros, &strict).map_err(unwritable)?;
            let micros = micros.as_primitive::<arrow::datatypes::TimestampMicrosecondType>();
            micros.iter().for_each(|value| write_optional(value, out, write_int));
        }
        DataType::Decimal128(_, scale) => {
            let (values, scale) = (column.as_primitive::<arrow::datatypes::Decimal128Type>(), *scale);
            values.iter().for_each(|value| {
                write_text(value.map(|value| decimal_text(&value, scale)).as_deref(), out);
            });
        }
        DataType::Decimal256(_, scale) => {
            let (values, scale) = (column.as_primitive::<arrow::datatypes::Decimal256Type>(), *scale);
            values.iter().for_each(|value| {
                write_text(value.map(|value| decimal_text(&value, scale)).as_deref(), out);
            });
        }
        DataType::Dictionary(_, values) => return write_values(&cast(column, values).map_err(unwritable)?, out),
        DataType::List(_) => return write_lists(column.as_list::<i32>().iter(), out),
        DataType::LargeList(_) => return write_lists(column.as_list::<i64>().iter(), out),
        DataType::FixedSizeList(..) => return write_lists(column.as_fixed_size_list().iter(), out),
        DataType::Struct(_) => return write_structs(column.as_struct(), out),
        other => return Err(Error::internal(format!("a column of type {other} goes to Python"))),
    }
    Ok(())
}

fn unwritable(cause: arrow::error::ArrowError) -> Error {
    Error::data("a column cannot be given to Python").cause(cause)
}

fn write_numbers<T: ArrowPrimitiveType>(
    column: &dyn Array,
    out: &mut Vec<u8>,
    write: impl Fn(T::Native, &mut Vec<u8>),
) {
    let values = column.as_primitive::<T>();
    match values.null_count() {
        0 => values.values().iter().for_each(|value| write(*value, out)),
        _ => values.iter().for_each(|value| write_optional(value, out, &write)),
    }
}

fn write_optional<T>(value: Option<T>, out: &mut Vec<u8>, write: impl Fn(T, &mut Vec<u8>)) {
    match value {
        Some(value) => write(value, out),
        None => out.push(b'N'),
    }
}

/// Appends a number.
pub fn write_int(value: i64, out: &mut Vec<u8>) {
    match i32::try_from(value) {
        Ok(small) => {
            let [a, b, c, d] = small.to_le_bytes();
            out.extend_from_slice(&[b'i', a, b, c, d]);
        }
        Err(_) => write_digits(value.unsigned_abs(), value < 0, out),
    }
}

/// A large number: its digits of 15 bits, the least first. Their count carries the sign.
fn write_digits(value: u64, is_negative: bool, out: &mut Vec<u8>) {
    let count = (64 - value.leading_zeros()).div_ceil(15);
    out.push(b'l');
    let signed = if is_negative { -(count as i32) } else { count as i32 };
    out.extend_from_slice(&signed.to_le_bytes());
    for digit in 0..count {
        out.extend_from_slice(&((value >> (15 * digit)) as u16 & 0x7fff).to_le_bytes());
    }
}

fn write_float(value: f64, out: &mut Vec<u8>) {
    out.push(b'g');
    out.extend_from_slice(&value.to_le_bytes());
}

fn write_text(value: Option<&str>, out: &mut Vec<u8>) {
    let Some(text) = value else {
        out.push(b'N');
        return;
    };
    match (text.is_ascii(), u8::try_from(text.len())) {
        (true, Ok(length)) => out.extend_from_slice(&[b'z', length]),
        (true, Err(_)) => begin(out, b'a', text.len()),
        (false, _) => begin(out, b'u', text.len()),
    }
    out.extend_from_slice(text.as_bytes());
}

/// Appends bytes, or None.
pub fn write_bytes(value: Option<&[u8]>, out: &mut Vec<u8>) {
    let Some(bytes) = value else {
        out.push(b'N');
        return;
    };
    begin(out, b's', bytes.len());
    out.extend_from_slice(bytes);
}

fn write_lists(lists: impl Iterator<Item = Option<arrow::array::ArrayRef>>, out: &mut Vec<u8>) -> Result<()> {
    for list in lists {
        match list {
            Some(list) => write_column(list.as_ref(), out)?,
            None => out.push(b'N'),
        }
    }
    Ok(())
}

fn write_structs(structs: &arrow::array::StructArray, out: &mut Vec<u8>) -> Result<()> {
    for row in 0..structs.len() {
        if structs.is_null(row) {
            out.push(b'N');
            continue;
        }
        out.push(b'{');
        for (name, member) in structs.column_names().into_iter().zip(structs.columns()) {
            write_text(Some(name), out);
            write_values(member.slice(row, 1).as_ref(), out)?;
        }
        out.push(b'0');
    }
    Ok(())
}

/// Appends a JSON value to `out`.
pub fn write_json(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(b'N'),
        Value::Bool(true) => out.push(b'T'),
        Value::Bool(false) => out.push(b'F'),
        Value::Number(number) => match number.as_i64() {
            Some(int) => write_int(int, out),
            None => write_float(number.as_f64().unwrap_or(f64::NAN), out),
        },
        Value::String(text) => write_text(Some(text), out),
        Value::Array(items) => {
            begin(out, b'[', items.len());
            items.iter().for_each(|item| write_json(item, out));
        }
        Value::Object(members) => {
            out.push(b'{');
            for (name, member) in members {
                write_text(Some(name), out);
                write_json(member, out);
            }
            out.push(b'0');
        }
    }
}
