//! Batches as csv text.
//!
//! Reading with the same settings gives the same values: text that could be taken for null, a comment or a quoted field
//! is put in quotes. Numbers and dates are written by hand; only strftime formats use another library.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    DecimalType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, SchemaRef,
    Time32MillisecondType, Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimeUnit,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use chrono::DateTime;
use chrono::format::{Item, StrftimeItems};
use lexical_core::FormattedSize;
use millstream_core::format::RowEncoder;
use millstream_core::{Error, Result};

use super::spec::{Conventions, Dialect};
use super::time::{write_date, write_time, write_timestamp};
use millstream_core::columns::type_name;

/// Encodes one file.
pub(crate) struct CsvEncoder {
    quoting: Quoting,
    conventions: Conventions,
    schema: SchemaRef,
    /// The strftime format of each column.
    formats: Vec<Option<Vec<Item<'static>>>>,
    /// Whether the header is still to be written.
    header: bool,
}

impl CsvEncoder {
    /// An encoder of rows of `schema`; `header` says whether to write one.
    pub fn new(
        dialect: Dialect,
        conventions: Conventions,
        schema: &SchemaRef,
        formats: Vec<Option<String>>,
        header: bool,
    ) -> Result<Self> {
        for field in schema.fields() {
            check_type(field.data_type()).map_err(|error| error.column(field.name()))?;
        }
        let formats = schema.fields().iter().zip(formats).map(|(field, own)| {
            let format = own.or_else(|| match field.data_type() {
                DataType::Date32 | DataType::Date64 => conventions.date_format.clone(),
                DataType::Time32(_) | DataType::Time64(_) => conventions.time_format.clone(),
                DataType::Timestamp(..) => conventions.timestamp_format.clone(),
                _ => None,
            });
            format.and_then(|format| StrftimeItems::new(&format).parse_to_owned().ok())
        });
        Ok(CsvEncoder {
            formats: formats.collect(),
            quoting: Quoting::new(dialect, &conventions),
            conventions,
            schema: Arc::clone(schema),
            header,
        })
    }

    fn write_header(&mut self, output: &mut Vec<u8>) -> Result<()> {
        if !std::mem::take(&mut self.header) {
            return Ok(());
        }
        for (column, field) in self.schema.fields().iter().enumerate() {
            if column > 0 {
                output.extend_from_slice(&self.quoting.dialect.delimiter);
            }
            // Names have no null, but an empty first line would be skipped.
            self.quoting
                .text(field.name().as_bytes(), column == 0, output)
                .map_err(|error| error.column(field.name()))?;
        }
        output.push(b'\n');
        Ok(())
    }
}

impl RowEncoder for CsvEncoder {
    fn encode(&mut self, batch: &RecordBatch, output: &mut Vec<u8>) -> Result<()> {
        self.write_header(output)?;
        let columns: Vec<_> = batch
            .columns()
            .iter()
            .zip(&self.formats)
            .map(|(array, format)| cells(array, &self.conventions, format.as_deref()))
            .collect::<Result<_>>()?;
        let null = self.conventions.nulls.first().map(String::as_bytes);
        let mut cell = Vec::new();
        for row in 0..batch.num_rows() {
            for (column, (array, cells)) in batch.columns().iter().zip(&columns).enumerate() {
                if column > 0 {
                    output.extend_from_slice(&self.quoting.dialect.delimiter);
                }
                let place = |error: Error| error.column(self.schema.field(column).name());
                if array.is_null(row) {
                    let null = null
                        .ok_or_else(|| place(Error::data("a null cannot be written").hint("set `null` to a text")))?;
                    self.quoting.null(null, column == 0, output).map_err(place)?;
                    continue;
                }
                match cells {
                    Cells::Text(text) => self.quoting.text(text(row), column == 0, output),
                    Cells::Quotable(write) => {
                        cell.clear();
                        write(row, &mut cell).and_then(|()| self.quoting.text(&cell, column == 0, output))
                    }
                    Cells::Plain(write) => {
                        cell.clear();
                        write(row, &mut cell).and_then(|()| self.quoting.plain(&cell, column == 0, output))
                    }
                }
                .map_err(place)?;
            }
            output.push(b'\n');
        }
        Ok(())
    }

    fn finish(&mut self, output: &mut Vec<u8>) -> Result<()> {
        self.write_header(output)
    }
}

/// Decides what is put in quotes.
struct Quoting {
    dialect: Dialect,
    /// Bytes anywhere in a field that need quotes.
    special: [bool; 256],
    nulls: Vec<String>,
}

/// The first character of a file that would be taken for a byte order mark.
const MARK: &[u8] = "\u{feff}".as_bytes();

impl Quoting {
    fn new(dialect: Dialect, conventions: &Conventions) -> Self {
        let mut special = [false; 256];
        let bytes = [b'\n', b'\r'].into_iter().chain(dialect.delimiter.first().copied()).chain(dialect.quote);
        bytes.for_each(|byte| special[usize::from(byte)] = true);
        Quoting { dialect, special, nulls: conventions.nulls.clone() }
    }

    /// Writes text, in quotes if necessary.
    fn text(&self, text: &[u8], first: bool, output: &mut Vec<u8>) -> Result<()> {
        if self.is_plain(text, first) && !self.nulls.iter().any(|null| null.as_bytes() == text) {
            output.extend_from_slice(text);
            return Ok(());
        }
        self.quoted(text, output)
    }

    /// Writes a number or date, in quotes only if it has special characters. (It would be null in quotes, too, if it
    /// looks like null: with `null: 0`, zeros would be lost, so that is an error.)
    fn plain(&self, text: &[u8], first: bool, output: &mut Vec<u8>) -> Result<()> {
        if self.nulls.iter().any(|null| null.as_bytes() == text) {
            return Err(Error::data("the value is written like null").text(text).hint("set `null` to another text"));
        }
        if self.is_plain(text, first) {
            output.extend_from_slice(text);
            return Ok(());
        }
        self.quoted(text, output)
    }

    /// Writes the text for null, which cannot be in quotes.
    fn null(&self, null: &[u8], first: bool, output: &mut Vec<u8>) -> Result<()> {
        if !self.is_plain(null, first) {
            return Err(Error::job("the text for null cannot be written without quotes")
                .text(null)
                .hint("set `null` to another text"));
        }
        output.extend_from_slice(null);
        Ok(())
    }

    fn is_plain(&self, text: &[u8], first: bool) -> bool {
        let blank = |byte: Option<&u8>| self.dialect.trim && byte.is_some_and(|byte| self.dialect.is_blank(*byte));
        !text.iter().any(|byte| self.special[usize::from(*byte)])
            && !blank(text.first())
            && !blank(text.last())
            && !(first
                && (text.starts_with(MARK) || self.dialect.comment.is_some_and(|sign| text.first() == Some(&sign))))
    }

    fn quoted(&self, text: &[u8], output: &mut Vec<u8>) -> Result<()> {
        let Some(quote) = self.dialect.quote else {
            return Err(Error::data("the text cannot be written without quotes")
                .text(text)
                .hint("set `quote`, or take the delimiter and line ends out of the text"));
        };
        let escape = self.dialect.escape.unwrap_or(quote);
        output.push(quote);
        let mut rest = text;
        while let Some(at) = memchr::memchr2(quote, escape, rest) {
            output.extend_from_slice(&rest[..at]);
            output.extend_from_slice(&[escape, rest[at]]);
            rest = &rest[at + 1..];
        }
        output.extend_from_slice(rest);
        output.push(quote);
        Ok(())
    }
}

type WriteCell<'a> = Box<dyn Fn(usize, &mut Vec<u8>) -> Result<()> + 'a>;

/// The cells of one column, by row. Null rows are not requested.
enum Cells<'a> {
    /// Text.
    Text(Box<dyn Fn(usize) -> &'a [u8] + 'a>),
    /// A formatted value, which is never null if it is in quotes.
    Quotable(WriteCell<'a>),
    /// A formatted value, which is null even in quotes if it looks like null.
    Plain(WriteCell<'a>),
}

fn check_type(data_type: &DataType) -> Result<()> {
    let scale = match data_type {
        DataType::Decimal32(_, scale)
        | DataType::Decimal64(_, scale)
        | DataType::Decimal128(_, scale)
        | DataType::Decimal256(_, scale) => *scale,
        _ => 0,
    };
    let nested = data_type.is_nested() && !matches!(data_type, DataType::Dictionary(..));
    let known = !matches!(data_type, DataType::Interval(_) | DataType::Duration(_) | DataType::RunEndEncoded(..));
    if !nested && known && scale >= 0 {
        return Ok(());
    }
    Err(Error::job(format!("csv has no values of type {}", type_name(data_type)))
        .hint("take its parts or convert it to text in SQL, or write json or parquet"))
}

macro_rules! integers {
    ($array:expr, $kind:ty) => {{
        let values = $array.as_primitive::<$kind>();
        Cells::Plain(Box::new(move |row, output| {
            write_lexical(values.value(row), output);
            Ok(())
        }))
    }};
}

fn write_lexical<N: lexical_core::ToLexical + FormattedSize>(value: N, output: &mut Vec<u8>) {
    let mut buffer = [0; 64];
    output.extend_from_slice(lexical_core::write(value, &mut buffer));
}

fn cells<'a>(
    array: &'a ArrayRef,
    conventions: &'a Conventions,
    format: Option<&'a [Item<'static>]>,
) -> Result<Cells<'a>> {
    Ok(match array.data_type() {
        DataType::Null => Cells::Plain(Box::new(|_, _| Ok(()))),
        DataType::Boolean => {
            let values = array.as_boolean();
            let text = |texts: &'a [String]| texts.first().map_or("", String::as_str);
            let (yes, no) = (text(&conventions.true_texts), text(&conventions.false_texts));
            Cells::Plain(Box::new(move |row, output| {
                output.extend_from_slice(if values.value(row) { yes } else { no }.as_bytes());
                Ok(())
            }))
        }
        DataType::Int8 => integers!(array, Int8Type),
        DataType::Int16 => integers!(array, Int16Type),
        DataType::Int32 => integers!(array, Int32Type),
        DataType::Int64 => integers!(array, Int64Type),
        DataType::UInt8 => integers!(array, UInt8Type),
        DataType::UInt16 => integers!(array, UInt16Type),
        DataType::UInt32 => integers!(array, UInt32Type),
        DataType::UInt64 => integers!(array, UInt64Type),
        DataType::Float16 => {
            floats::<Float16Type>(array, conventions, |value, output| write_lexical(value.to_f32(), output))
        }
        DataType::Float32 => floats::<Float32Type>(array, conventions, write_lexical),
        DataType::Float64 => floats::<Float64Type>(array, conventions, write_lexical),
        DataType::Decimal32(..) => decimals::<Decimal32Type>(array, conventions),
        DataType::Decimal64(..) => decimals::<Decimal64Type>(array, conventions),
        DataType::Decimal128(..) => decimals::<Decimal128Type>(array, conventions),
        DataType::Decimal256(..) => decimals::<Decimal256Type>(array, conventions),
        DataType::Utf8 => text(array.as_string::<i32>(), |values, row| values.value(row).as_bytes()),
        DataType::LargeUtf8 => text(array.as_string::<i64>(), |values, row| values.value(row).as_bytes()),
        DataType::Utf8View => text(array.as_string_view(), |values, row| values.value(row).as_bytes()),
        DataType::Binary => binary(array.as_binary::<i32>(), |values, row| values.value(row)),
        DataType::LargeBinary => binary(array.as_binary::<i64>(), |values, row| values.value(row)),
        DataType::BinaryView => binary(array.as_binary_view(), |values, row| values.value(row)),
        DataType::FixedSizeBinary(_) => binary(array.as_fixed_size_binary(), |values, row| values.value(row)),
        DataType::Date32 => dates::<Date32Type>(array, format, i64::from),
        DataType::Date64 => dates::<Date64Type>(array, format, |value| value.div_euclid(86_400_000)),
        DataType::Time32(TimeUnit::Second) => times::<Time32SecondType>(array, format, 1),
        DataType::Time32(_) => times::<Time32MillisecondType>(array, format, 1000),
        DataType::Time64(TimeUnit::Nanosecond) => times::<Time64NanosecondType>(array, format, 1_000_000_000),
        DataType::Time64(_) => times::<Time64MicrosecondType>(array, format, 1_000_000),
        DataType::Timestamp(unit, zone) => {
            let zone = zone.is_some();
            match unit {
                TimeUnit::Second => timestamps::<TimestampSecondType>(array, format, 1, zone),
                TimeUnit::Millisecond => timestamps::<TimestampMillisecondType>(array, format, 1000, zone),
                TimeUnit::Microsecond => timestamps::<TimestampMicrosecondType>(array, format, 1_000_000, zone),
                TimeUnit::Nanosecond => timestamps::<TimestampNanosecondType>(array, format, 1_000_000_000, zone),
            }
        }
        other => {
            check_type(other)?;
            return Err(Error::internal(format!("csv does not know how to write {}", type_name(other))));
        }
    })
}

fn text<'a, A>(values: &'a A, value: impl Fn(&'a A, usize) -> &'a [u8] + 'a) -> Cells<'a> {
    Cells::Text(Box::new(move |row| value(values, row)))
}

/// Bytes as pairs of hexadecimal digits.
fn binary<'a, A>(values: &'a A, value: impl Fn(&'a A, usize) -> &'a [u8] + 'a) -> Cells<'a> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    Cells::Quotable(Box::new(move |row, output| {
        for byte in value(values, row) {
            output.extend_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
        Ok(())
    }))
}

fn floats<'a, T: ArrowPrimitiveType>(
    array: &'a ArrayRef,
    conventions: &'a Conventions,
    write: impl Fn(T::Native, &mut Vec<u8>) + 'a,
) -> Cells<'a> {
    let values = array.as_primitive::<T>();
    Cells::Plain(Box::new(move |row, output| {
        write(values.value(row), output);
        set_decimal(conventions, output);
        Ok(())
    }))
}

fn set_decimal(conventions: &Conventions, output: &mut [u8]) {
    if conventions.decimal != b'.'
        && let Some(at) = memchr::memchr(b'.', output)
    {
        output[at] = conventions.decimal;
    }
}

fn decimals<'a, T: DecimalType>(array: &'a ArrayRef, conventions: &'a Conventions) -> Cells<'a> {
    let values = array.as_primitive::<T>();
    Cells::Plain(Box::new(move |row, output| {
        output.extend_from_slice(values.value_as_string(row).as_bytes());
        set_decimal(conventions, output);
        Ok(())
    }))
}

fn dates<'a, T: ArrowPrimitiveType>(
    array: &'a ArrayRef,
    format: Option<&'a [Item<'static>]>,
    days: impl Fn(T::Native) -> i64 + 'a,
) -> Cells<'a> {
    let values = array.as_primitive::<T>();
    Cells::Plain(Box::new(move |row, output| {
        let days = days(values.value(row));
        match format {
            None => write_date(days, output),
            Some(items) => formatted(days.checked_mul(86_400), 0, items, output)?,
        }
        Ok(())
    }))
}

fn times<'a, T: ArrowPrimitiveType>(
    array: &'a ArrayRef,
    format: Option<&'a [Item<'static>]>,
    per_second: i64,
) -> Cells<'a>
where
    T::Native: Into<i64>,
{
    let values = array.as_primitive::<T>();
    Cells::Plain(Box::new(move |row, output| {
        let value: i64 = values.value(row).into();
        match format {
            None => write_time(value.rem_euclid(86_400 * per_second), per_second, output),
            Some(items) => {
                let nanoseconds = value.rem_euclid(per_second) * (1_000_000_000 / per_second);
                formatted(Some(value.div_euclid(per_second)), nanoseconds, items, output)?;
            }
        }
        Ok(())
    }))
}

fn timestamps<'a, T: ArrowPrimitiveType<Native = i64>>(
    array: &'a ArrayRef,
    format: Option<&'a [Item<'static>]>,
    per_second: i64,
    zone: bool,
) -> Cells<'a> {
    let values = array.as_primitive::<T>();
    Cells::Plain(Box::new(move |row, output| {
        let value = values.value(row);
        match format {
            None => {
                write_timestamp(value, per_second, output);
                if zone {
                    output.push(b'Z');
                }
            }
            Some(items) => {
                let nanoseconds = value.rem_euclid(per_second) * (1_000_000_000 / per_second);
                formatted(Some(value.div_euclid(per_second)), nanoseconds, items, output)?;
            }
        }
        Ok(())
    }))
}

/// Writes a moment (seconds and nanoseconds since 1970-01-01 UTC) in a strftime format.
fn formatted(seconds: Option<i64>, nanoseconds: i64, items: &[Item<'static>], output: &mut Vec<u8>) -> Result<()> {
    use std::fmt::Write;
    let moment = seconds
        .and_then(|seconds| DateTime::from_timestamp(seconds, u32::try_from(nanoseconds).unwrap_or(0)))
        .ok_or_else(|| Error::data("the date is too far from now for its format").hint("leave the format out"))?;
    let mut text = String::new();
    write!(text, "{}", moment.format_with_items(items.iter()))
        .map_err(|_| Error::data("the date cannot be written in its format").hint("leave the format out"))?;
    output.extend_from_slice(text.as_bytes());
    Ok(())
}
