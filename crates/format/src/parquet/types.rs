//! The types of a file's columns, as the reader is asked for them and as the source shows them.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit};
use millstream_core::format::TEXT;
use millstream_core::{Error, Result};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::basic::Type as PhysicalType;
use parquet::file::metadata::ParquetMetaData;

use super::fetch::{damaged, unreadable};

/// The directory with the types that the reader is to give: texts as views, dictionaries decoded, the old 96-bit
/// timestamps as microseconds (nanoseconds would reach only from 1677 to 2262).
pub fn reader_metadata(metadata: &Arc<ParquetMetaData>) -> Result<ArrowReaderMetadata> {
    let stored = ArrowReaderMetadata::try_new(Arc::clone(metadata), ArrowReaderOptions::new()).map_err(unreadable)?;
    let parquet_schema = metadata.file_metadata().schema_descr();
    let mut leaf = 0;
    let fields: Vec<FieldRef> = stored
        .schema()
        .fields()
        .iter()
        .map(|field| {
            with_type(field, as_read, &mut leaf, &|leaf| {
                parquet_schema.columns().get(leaf).is_some_and(|column| column.physical_type() == PhysicalType::INT96)
            })
        })
        .collect();
    let wanted = Arc::new(Schema::new_with_metadata(fields, stored.schema().metadata().clone()));
    let options = ArrowReaderOptions::new().with_schema(wanted);
    ArrowReaderMetadata::try_new(Arc::clone(metadata), options).map_err(unreadable)
}

/// Changes the types at the leaves of a field.
fn with_type(
    field: &FieldRef,
    change: fn(&DataType, bool) -> DataType,
    leaf: &mut usize,
    is_int96: &dyn Fn(usize) -> bool,
) -> FieldRef {
    let mut child = |field: &FieldRef| with_type(field, change, leaf, is_int96);
    let data_type = match field.data_type() {
        DataType::List(item) => DataType::List(child(item)),
        DataType::LargeList(item) => DataType::LargeList(child(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(child(item), *size),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(child).collect()),
        DataType::Map(entries, sorted) => DataType::Map(child(entries), *sorted),
        other => {
            let changed = change(other, is_int96(*leaf));
            *leaf += 1;
            changed
        }
    };
    Arc::new(field.as_ref().clone().with_data_type(data_type))
}

fn as_read(data_type: &DataType, is_int96: bool) -> DataType {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => TEXT,
        DataType::Dictionary(_, values) => as_read(values, is_int96),
        DataType::Timestamp(_, zone) if is_int96 => DataType::Timestamp(TimeUnit::Microsecond, zone.clone()),
        other => other.clone(),
    }
}

/// The columns as a source shows them: everything may be null, names and types are all there is, one binary type.
pub fn columns(metadata: &ArrowReaderMetadata) -> Result<SchemaRef> {
    let fields = metadata.schema().fields();
    let mut names = HashSet::new();
    for field in fields {
        if !names.insert(field.name()) {
            return Err(damaged(&format!("two of its columns are named {}", field.name())));
        }
    }
    Ok(Arc::new(Schema::new(shown_fields(fields))))
}

fn shown_fields(fields: &Fields) -> Vec<Field> {
    fields.iter().map(|field| Field::new(field.name(), shown(field.data_type()), true)).collect()
}

fn shown(data_type: &DataType) -> DataType {
    match data_type {
        DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => DataType::Binary,
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            DataType::List(Arc::new(Field::new_list_field(shown(item.data_type()), true)))
        }
        DataType::Struct(fields) => DataType::Struct(shown_fields(fields).into()),
        other => other.clone(),
    }
}

/// The error for a column whose type in the file is not the source's.
pub fn other_type(name: &str, file: &DataType, source: &DataType) -> Error {
    let what = format!(
        "the column is {}, and {} in the source",
        crate::columns::type_name(file),
        crate::columns::type_name(source)
    );
    Error::data(what).column(name).hint("set `on_drift: widen` to read both as the wider type")
}
