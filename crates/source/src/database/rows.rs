//! Gathers single values into batches, with builders for all types that databases have.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryBuilder, BooleanBuilder, Date32Builder, Decimal128Builder, Decimal256Builder, Float32Builder,
    Float64Builder, Int8Builder, Int16Builder, Int32Builder, Int64Array, Int64Builder, RecordBatch, RecordBatchOptions,
    StringViewBuilder, Time64MicrosecondBuilder, TimestampMicrosecondBuilder, UInt8Builder, UInt16Builder,
    UInt32Builder, UInt64Builder,
};
use arrow::datatypes::{DataType, SchemaRef, TimeUnit, i256};
use millstream_core::format::{BATCH_BYTES, ParseRequest, Rows, TEXT};
use millstream_core::types::type_name;
use millstream_core::{Error, Result};

/// Floats hold all whole numbers up to this one: 2⁵³.
const EXACT: u128 = 1 << 53;

/// A value from a database.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Cell<'a> {
    Null,
    Bool(bool),
    Integer(i128),
    Single(f32),
    Double(f64),
    /// In units of the column's scale.
    Decimal(i256),
    /// Days since 1970-01-01.
    Date(i32),
    /// Microseconds since midnight.
    Time(i64),
    /// Microseconds since 1970-01-01 00:00:00.
    Timestamp(i64),
    Text(&'a str),
    Bytes(&'a [u8]),
}

impl Cell<'_> {
    /// The kind of the value, for messages.
    fn kind(&self) -> &'static str {
        match self {
            Cell::Null => "null",
            Cell::Bool(_) => "a truth value",
            Cell::Integer(_) => "a whole number",
            Cell::Single(_) | Cell::Double(_) => "a number with a fraction",
            Cell::Decimal(_) => "a decimal",
            Cell::Date(_) => "a date",
            Cell::Time(_) => "a time",
            Cell::Timestamp(_) => "a timestamp",
            Cell::Text(_) => "text",
            Cell::Bytes(_) => "bytes",
        }
    }
}

/// A column that is being gathered.
enum Column {
    Bool(BooleanBuilder),
    Int8(Int8Builder),
    Int16(Int16Builder),
    Int32(Int32Builder),
    Int64(Int64Builder),
    UInt8(UInt8Builder),
    UInt16(UInt16Builder),
    UInt32(UInt32Builder),
    UInt64(UInt64Builder),
    Float32(Float32Builder),
    Float64(Float64Builder),
    Decimal128(Decimal128Builder),
    Decimal256(Decimal256Builder),
    Date(Date32Builder),
    Time(Time64MicrosecondBuilder),
    Timestamp(TimestampMicrosecondBuilder),
    Text(StringViewBuilder),
    Binary(BinaryBuilder),
}

impl Column {
    fn new(data_type: &DataType) -> Result<Self> {
        Ok(match data_type {
            DataType::Boolean => Column::Bool(BooleanBuilder::new()),
            DataType::Int8 => Column::Int8(Int8Builder::new()),
            DataType::Int16 => Column::Int16(Int16Builder::new()),
            DataType::Int32 => Column::Int32(Int32Builder::new()),
            DataType::Int64 => Column::Int64(Int64Builder::new()),
            DataType::UInt8 => Column::UInt8(UInt8Builder::new()),
            DataType::UInt16 => Column::UInt16(UInt16Builder::new()),
            DataType::UInt32 => Column::UInt32(UInt32Builder::new()),
            DataType::UInt64 => Column::UInt64(UInt64Builder::new()),
            DataType::Float32 => Column::Float32(Float32Builder::new()),
            DataType::Float64 => Column::Float64(Float64Builder::new()),
            DataType::Decimal128(..) => Column::Decimal128(Decimal128Builder::new().with_data_type(data_type.clone())),
            DataType::Decimal256(..) => Column::Decimal256(Decimal256Builder::new().with_data_type(data_type.clone())),
            DataType::Date32 => Column::Date(Date32Builder::new()),
            DataType::Time64(TimeUnit::Microsecond) => Column::Time(Time64MicrosecondBuilder::new()),
            DataType::Timestamp(TimeUnit::Microsecond, _) => {
                Column::Timestamp(TimestampMicrosecondBuilder::new().with_data_type(data_type.clone()))
            }
            DataType::Binary => Column::Binary(BinaryBuilder::new()),
            text if *text == TEXT => Column::Text(StringViewBuilder::new()),
            other => return Err(Error::internal(format!("no database gives {other}"))),
        })
    }

    /// Adds a value; `false` if its type is wrong. Whole numbers are allowed where fractions are.
    fn push(&mut self, cell: Cell<'_>) -> bool {
        macro_rules! integer {
            ($builder:expr, $number:expr) => {
                match $number.try_into() {
                    Ok(number) => $builder.append_value(number),
                    Err(_) => return false,
                }
            };
        }
        match (self, cell) {
            (column, Cell::Null) => column.push_null(),
            (Column::Bool(to), Cell::Bool(value)) => to.append_value(value),
            (Column::Int8(to), Cell::Integer(number)) => integer!(to, number),
            (Column::Int16(to), Cell::Integer(number)) => integer!(to, number),
            (Column::Int32(to), Cell::Integer(number)) => integer!(to, number),
            (Column::Int64(to), Cell::Integer(number)) => integer!(to, number),
            (Column::UInt8(to), Cell::Integer(number)) => integer!(to, number),
            (Column::UInt16(to), Cell::Integer(number)) => integer!(to, number),
            (Column::UInt32(to), Cell::Integer(number)) => integer!(to, number),
            (Column::UInt64(to), Cell::Integer(number)) => integer!(to, number),
            (Column::Float32(to), Cell::Single(number)) => to.append_value(number),
            (Column::Float64(to), Cell::Double(number)) => to.append_value(number),
            (Column::Float64(to), Cell::Single(number)) => to.append_value(number.into()),
            (Column::Float64(to), Cell::Integer(number)) if number.unsigned_abs() <= EXACT => {
                to.append_value(number as f64);
            }
            (Column::Decimal128(to), Cell::Decimal(number)) => match number.to_i128() {
                Some(number) => to.append_value(number),
                None => return false,
            },
            (Column::Decimal256(to), Cell::Decimal(number)) => to.append_value(number),
            (Column::Date(to), Cell::Date(days)) => to.append_value(days),
            (Column::Time(to), Cell::Time(time)) => to.append_value(time),
            (Column::Timestamp(to), Cell::Timestamp(time)) => to.append_value(time),
            (Column::Text(to), Cell::Text(text)) => to.append_value(text),
            (Column::Text(to), Cell::Integer(number)) => to.append_value(number.to_string()),
            (Column::Text(to), Cell::Double(number)) => to.append_value(number.to_string()),
            (Column::Binary(to), Cell::Bytes(bytes)) => to.append_value(bytes),
            _ => return false,
        }
        true
    }

    fn push_null(&mut self) {
        match self {
            Column::Bool(to) => to.append_null(),
            Column::Int8(to) => to.append_null(),
            Column::Int16(to) => to.append_null(),
            Column::Int32(to) => to.append_null(),
            Column::Int64(to) => to.append_null(),
            Column::UInt8(to) => to.append_null(),
            Column::UInt16(to) => to.append_null(),
            Column::UInt32(to) => to.append_null(),
            Column::UInt64(to) => to.append_null(),
            Column::Float32(to) => to.append_null(),
            Column::Float64(to) => to.append_null(),
            Column::Decimal128(to) => to.append_null(),
            Column::Decimal256(to) => to.append_null(),
            Column::Date(to) => to.append_null(),
            Column::Time(to) => to.append_null(),
            Column::Timestamp(to) => to.append_null(),
            Column::Text(to) => to.append_null(),
            Column::Binary(to) => to.append_null(),
        }
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Column::Bool(column) => Arc::new(column.finish()),
            Column::Int8(column) => Arc::new(column.finish()),
            Column::Int16(column) => Arc::new(column.finish()),
            Column::Int32(column) => Arc::new(column.finish()),
            Column::Int64(column) => Arc::new(column.finish()),
            Column::UInt8(column) => Arc::new(column.finish()),
            Column::UInt16(column) => Arc::new(column.finish()),
            Column::UInt32(column) => Arc::new(column.finish()),
            Column::UInt64(column) => Arc::new(column.finish()),
            Column::Float32(column) => Arc::new(column.finish()),
            Column::Float64(column) => Arc::new(column.finish()),
            Column::Decimal128(column) => Arc::new(column.finish()),
            Column::Decimal256(column) => Arc::new(column.finish()),
            Column::Date(column) => Arc::new(column.finish()),
            Column::Time(column) => Arc::new(column.finish()),
            Column::Timestamp(column) => Arc::new(column.finish()),
            Column::Text(column) => Arc::new(column.finish()),
            Column::Binary(column) => Arc::new(column.finish()),
        }
    }
}

/// Rows that are being gathered, from the first of a part to the last.
pub(super) struct Gathering {
    schema: SchemaRef,
    columns: Vec<Column>,
    /// The index of the next column.
    at: usize,
    rows: usize,
    bytes: usize,
    most_rows: usize,
    /// Whether rows are numbered.
    numbered: bool,
    /// Whether positions are requested: there is no text, so a part is one piece.
    placed: bool,
    before: i64,
}

impl Gathering {
    pub(super) fn new(request: &ParseRequest) -> Result<Self> {
        let schema = request.output_schema();
        let columns: Result<Vec<Column>> = schema.fields().iter().map(|field| Column::new(field.data_type())).collect();
        Ok(Gathering {
            schema,
            columns: columns?,
            at: 0,
            rows: 0,
            bytes: 0,
            most_rows: request.batch_rows.max(1),
            numbered: request.lines,
            placed: request.bytes,
            before: 0,
        })
    }

    /// The type of the next column.
    pub(super) fn next_type(&self) -> &DataType {
        self.schema.field(self.at).data_type()
    }

    /// Adds the next value of the row.
    pub(super) fn push(&mut self, cell: Cell<'_>) -> Result<()> {
        self.bytes += match cell {
            Cell::Text(text) => text.len(),
            Cell::Bytes(bytes) => bytes.len(),
            _ => 8,
        };
        if !self.columns[self.at].push(cell) {
            let what = format!("the value is {}, and the column is {}", cell.kind(), type_name(self.next_type()));
            return Err(self.fault(&what).hint("CAST it in a `query`"));
        }
        self.at += 1;
        Ok(())
    }

    /// A fault of the next value.
    pub(super) fn fault(&self, what: &str) -> Error {
        let row = self.before + self.rows as i64 + 1;
        let error = Error::data(what.to_owned()).line(u64::try_from(row).unwrap_or(0));
        match self.schema.fields().get(self.at) {
            Some(field) => error.column(field.name()),
            None => error,
        }
    }

    /// Ends the row. Returns a batch if it is full.
    pub(super) fn end_row(&mut self) -> Result<Option<Rows>> {
        self.at = 0;
        self.rows += 1;
        let full = self.rows >= self.most_rows || self.bytes >= BATCH_BYTES;
        if full { self.finish() } else { Ok(None) }
    }

    /// The rows that are left.
    pub(super) fn finish(&mut self) -> Result<Option<Rows>> {
        if self.rows == 0 {
            return Ok(None);
        }
        let columns = self.columns.iter_mut().map(Column::finish).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
            .map_err(|cause| Error::internal("the rows of a database do not fit together").cause(cause))?;
        let numbers = self.before + 1..self.before + 1 + self.rows as i64;
        let lines = self.numbered.then(|| -> ArrayRef { Arc::new(Int64Array::from_iter_values(numbers)) });
        let bytes = self.placed.then(|| -> ArrayRef { Arc::new(Int64Array::from(vec![0; self.rows])) });
        self.before += self.rows as i64;
        (self.rows, self.bytes) = (0, 0);
        Ok(Some(Rows { batch, lines, bytes }))
    }
}

/// A decimal text in units of `scale`; `None` if it is malformed or has more digits after the point.
pub(super) fn decimal(text: &str, scale: i8) -> Option<i256> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let fraction = fraction.trim_end_matches('0');
    let zeros = usize::try_from(scale).ok()?.checked_sub(fraction.len())?;
    if whole.is_empty() || !whole.bytes().chain(fraction.bytes()).all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let number = i256::from_string(&format!("{whole}{fraction}{}", "0".repeat(zeros)))?;
    if negative { number.checked_neg() } else { Some(number) }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{Field, Schema};

    use super::*;

    #[test]
    fn decimals_keep_all_digits() {
        let number = |text, scale| decimal(text, scale).map(|number| number.to_string());
        assert_eq!(number("-12.5", 2).as_deref(), Some("-1250"));
        assert_eq!(number("0.000", 1).as_deref(), Some("0"));
        let long = "9".repeat(65);
        assert_eq!(number(&long, 0).as_deref(), Some(long.as_str()));
        for (text, scale) in [("1.25", 1), ("", 0), ("1e5", 0), (".5", 1)] {
            assert_eq!(number(text, scale), None, "{text}");
        }
    }

    #[test]
    fn batches_end_where_they_are_full_and_rows_are_counted_on() {
        let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int8, true), Field::new("t", TEXT, true)]));
        let request = ParseRequest { batch_rows: 2, lines: true, ..ParseRequest::all(schema) };
        let mut rows = Gathering::new(&request).expect("known types");
        let mut out = Vec::new();
        for number in 0..5 {
            rows.push(Cell::Integer(number)).expect("it fits");
            rows.push(Cell::Text("x")).expect("it fits");
            out.extend(rows.end_row().expect("rows"));
        }
        let error = rows.push(Cell::Integer(128)).expect_err("too large");
        assert_eq!((error.location().line, error.location().column.as_deref()), (Some(6), Some("n")));
        out.extend(rows.finish().expect("rows"));
        let counts: Vec<usize> = out.iter().map(|rows| rows.batch.num_rows()).collect();
        assert_eq!(counts, [2, 2, 1]);
        let last = out[2].lines.as_ref().expect("numbers");
        assert_eq!(last.as_any().downcast_ref::<Int64Array>().expect("numbers").values(), &[5]);
    }
}
