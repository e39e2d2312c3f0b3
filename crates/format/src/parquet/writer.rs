//! Batches to a parquet file.
//!
//! Rows gather in a row group until it is full; only then bytes are written. The group in progress is in memory,
//! encoded and compressed as far as whole pages go.
//!
//! Parquet has no times in seconds and no days in milliseconds. Without a unit they would be whole numbers to other
//! readers, so they are written as times in milliseconds, and as days.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{DataType, Field, FieldRef, IntervalUnit, Schema, SchemaRef, TimeUnit};
use millstream_core::format::RowEncoder;
use millstream_core::types::without_views;
use millstream_core::{Error, Result};
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::arrow::{ARROW_SCHEMA_META_KEY, ArrowWriter, encode_arrow_schema};
use parquet::basic::{Compression as Codec, GzipLevel, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;

use super::spec::{Compression, ParquetSpec};

/// A row group ends when it takes this many bytes of memory.
const ROW_GROUP_BYTES: usize = 64 << 20;

/// Encodes the rows of one file.
pub struct ParquetEncoder {
    /// Writes into a vector that is emptied after every call; `None` once the file is finished.
    writer: Option<ArrowWriter<Vec<u8>>>,
    /// The columns as they are written.
    schema: SchemaRef,
}

impl ParquetEncoder {
    /// An encoder for rows of `schema`; an error if parquet has no form for one of its types.
    pub fn new(spec: &ParquetSpec, schema: SchemaRef) -> Result<Self> {
        let schema = Arc::new(Schema::new(schema.fields().iter().map(written_field).collect::<Vec<_>>()));
        let declared = encode_arrow_schema(&without_views(&schema));
        let properties = WriterProperties::builder()
            .set_key_value_metadata(Some(vec![KeyValue::new(ARROW_SCHEMA_META_KEY.to_owned(), declared)]))
            .set_created_by(concat!("millstream ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_compression(codec(spec.compression))
            .set_max_row_group_row_count(Some(spec.row_group_rows.max(1) as usize))
            .build();
        for field in schema.fields() {
            check_type(field.data_type()).map_err(|error| error.column(field.name()))?;
        }
        let options = ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true);
        let writer = ArrowWriter::try_new_with_options(Vec::new(), Arc::clone(&schema), options)
            .map_err(|cause| Error::job("parquet cannot write one of the column types").cause(cause).hint(CONVERT))?;
        Ok(ParquetEncoder { writer: Some(writer), schema })
    }

    /// `batch` with the columns that are written.
    fn written(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let columns =
            batch.columns().iter().zip(self.schema.fields()).map(|(column, field)| {
                converted(column, field.data_type()).map_err(|error| error.column(field.name()))
            });
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns.collect::<Result<_>>()?, &options)
            .map_err(|cause| Error::internal("columns for parquet do not fit together").cause(cause))
    }
}

fn written_field(field: &FieldRef) -> FieldRef {
    let data_type = written_type(field.data_type());
    if data_type == *field.data_type() {
        return Arc::clone(field);
    }
    Arc::new(Field::clone(field).with_data_type(data_type))
}

/// The type as which values of `data_type` are written.
fn written_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Timestamp(TimeUnit::Second, zone) => DataType::Timestamp(TimeUnit::Millisecond, zone.clone()),
        DataType::Time32(TimeUnit::Second) => DataType::Time32(TimeUnit::Millisecond),
        DataType::Date64 => DataType::Date32,
        DataType::List(item) => DataType::List(written_field(item)),
        DataType::LargeList(item) => DataType::LargeList(written_field(item)),
        DataType::FixedSizeList(item, length) => DataType::FixedSizeList(written_field(item), *length),
        DataType::Map(entries, sorted) => DataType::Map(written_field(entries), *sorted),
        DataType::Struct(members) => DataType::Struct(members.iter().map(written_field).collect()),
        other => other.clone(),
    }
}

/// `column` as `to`, without losing anything: a day in milliseconds may have hours.
fn converted(column: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    if column.data_type() == to {
        return Ok(Arc::clone(column));
    }
    let unfit = || Error::data("a time or date cannot be written as parquet").hint(CONVERT);
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let converted = cast_with_options(column, to, &options).map_err(|cause| unfit().cause(cause))?;
    let back = cast(&converted, column.data_type()).map_err(|cause| unfit().cause(cause))?;
    match back.to_data() == column.to_data() {
        true => Ok(converted),
        false => Err(unfit().cause("its dates have times of day")),
    }
}

const CONVERT: &str = "convert the column in SQL before it is written: CAST(… AS VARCHAR)";

/// An error for the types that the parquet crate refuses too late: at the first row, or with a panic.
fn check_type(data_type: &DataType) -> Result<()> {
    match data_type {
        DataType::Union(..) | DataType::Interval(IntervalUnit::MonthDayNano) => {
            Err(Error::job(format!("parquet cannot write values of the type {data_type}")).hint(CONVERT))
        }
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::Map(item, _) => check_type(item.data_type()),
        DataType::Struct(fields) => fields.iter().try_for_each(|field| check_type(field.data_type())),
        _ => Ok(()),
    }
}

fn codec(compression: Compression) -> Codec {
    match compression {
        Compression::Snappy => Codec::SNAPPY,
        Compression::Zstd => Codec::ZSTD(ZstdLevel::default()),
        Compression::Gzip => Codec::GZIP(GzipLevel::default()),
        Compression::Lz4 => Codec::LZ4_RAW,
        Compression::None => Codec::UNCOMPRESSED,
    }
}

impl RowEncoder for ParquetEncoder {
    fn encode(&mut self, batch: &RecordBatch, output: &mut Vec<u8>) -> Result<()> {
        let batch = &self.written(batch)?;
        let Some(writer) = &mut self.writer else { return Err(finished()) };
        writer.write(batch).map_err(unwritable)?;
        if writer.memory_size() >= ROW_GROUP_BYTES {
            writer.flush().map_err(unwritable)?;
        }
        output.append(writer.inner_mut());
        Ok(())
    }

    fn held(&self) -> usize {
        self.writer.as_ref().map_or(0, ArrowWriter::memory_size)
    }

    /// Ends the row group.
    fn relieve(&mut self, output: &mut Vec<u8>) -> Result<()> {
        let Some(writer) = &mut self.writer else { return Err(finished()) };
        writer.flush().map_err(unwritable)?;
        output.append(writer.inner_mut());
        Ok(())
    }

    fn finish(&mut self, output: &mut Vec<u8>) -> Result<()> {
        let writer = self.writer.take().ok_or_else(finished)?;
        let mut rest = writer.into_inner().map_err(unwritable)?;
        output.append(&mut rest);
        Ok(())
    }
}

fn finished() -> Error {
    Error::internal("a parquet file was written to after its end")
}

fn unwritable(cause: ParquetError) -> Error {
    Error::data("the rows cannot be written as parquet").cause(cause)
}
