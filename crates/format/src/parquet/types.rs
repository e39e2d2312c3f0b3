//! The types of a file's columns, as the reader decodes them and as the source shows them.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit};
use millstream_core::format::TEXT;
use millstream_core::{Error, Result};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::basic::{LogicalType, Type as PhysicalType};
use parquet::file::metadata::ParquetMetaData;

use super::fetch::unreadable;

/// The directory with the types for the reader: texts and bytes as views, dictionaries decoded, the old 96-bit
/// timestamps as microseconds (nanoseconds would reach only from 1677 to 2262).
pub fn reader_metadata(metadata: &Arc<ParquetMetaData>) -> Result<ArrowReaderMetadata> {
    let stored = ArrowReaderMetadata::try_new(Arc::clone(metadata), ArrowReaderOptions::new()).map_err(unreadable)?;
    let leaves = metadata.file_metadata().schema_descr().columns();
    let is_int96 = |leaf: usize| leaves.get(leaf).is_some_and(|leaf| leaf.physical_type() == PhysicalType::INT96);
    let fields = with_leaves(stored.schema().fields(), &|data_type, leaf| as_read(data_type, is_int96(leaf)));
    let wanted = Arc::new(Schema::new_with_metadata(fields, stored.schema().metadata().clone()));
    let options = ArrowReaderOptions::new().with_schema(wanted);
    ArrowReaderMetadata::try_new(Arc::clone(metadata), options).map_err(unreadable)
}

/// `fields` with other types at their leaves; `change` gets the type and the number of the leaf.
fn with_leaves(fields: &Fields, change: &dyn Fn(&DataType, usize) -> DataType) -> Vec<FieldRef> {
    let mut leaf = 0;
    fields.iter().map(|field| with_type(field, change, &mut leaf)).collect()
}

fn with_type(field: &FieldRef, change: &dyn Fn(&DataType, usize) -> DataType, leaf: &mut usize) -> FieldRef {
    let mut child = |field: &FieldRef| with_type(field, change, leaf);
    let data_type = match field.data_type() {
        DataType::List(item) => DataType::List(child(item)),
        DataType::LargeList(item) => DataType::LargeList(child(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(child(item), *size),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(child).collect()),
        DataType::Map(entries, sorted) => DataType::Map(child(entries), *sorted),
        other => {
            let changed = change(other, *leaf);
            *leaf += 1;
            changed
        }
    };
    Arc::new(field.as_ref().clone().with_data_type(data_type))
}

/// Views point into the page that they were read from: a value of a dictionary is there once, however many rows have
/// it.
fn as_read(data_type: &DataType, is_int96: bool) -> DataType {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => TEXT,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => DataType::BinaryView,
        DataType::Dictionary(_, values) => as_read(values, is_int96),
        DataType::Timestamp(_, zone) if is_int96 => DataType::Timestamp(TimeUnit::Microsecond, zone.clone()),
        other => other.clone(),
    }
}

/// The types of the leaves, in their order.
pub fn leaf_types(metadata: &ArrowReaderMetadata) -> Vec<DataType> {
    let types = RefCell::new(Vec::new());
    with_leaves(metadata.schema().fields(), &|data_type, _| {
        types.borrow_mut().push(data_type.clone());
        data_type.clone()
    });
    types.into_inner()
}

/// The columns as a source shows them: nullable, without metadata, with one binary type and UUIDs as text. A duplicate
/// name gets a number, as in a CSV file.
pub fn columns(metadata: &ArrowReaderMetadata) -> SchemaRef {
    let leaves = metadata.parquet_schema().columns();
    let is_uuid =
        |leaf: usize| leaves.get(leaf).is_some_and(|leaf| leaf.logical_type_ref() == Some(&LogicalType::Uuid));
    let fields = with_leaves(metadata.schema().fields(), &|data_type, leaf| match data_type {
        DataType::FixedSizeBinary(16) if is_uuid(leaf) => TEXT,
        other => other.clone(),
    });
    let names = unique_names(metadata.schema().fields());
    let shown = fields.iter().zip(names).map(|(field, name)| Field::new(name, shown(field.data_type()), true));
    Arc::new(Schema::new(shown.collect::<Vec<_>>()))
}

fn unique_names(fields: &Fields) -> Vec<String> {
    let taken: HashSet<&str> = fields.iter().map(|field| field.name().as_str()).collect();
    let mut seen: HashSet<&str> = HashSet::new();
    let mut names: Vec<String> = Vec::new();
    let mut added: HashSet<String> = HashSet::new();
    let mut numbers: HashMap<&str, u64> = HashMap::new();
    for field in fields {
        let name = field.name().as_str();
        if seen.insert(name) {
            names.push(name.to_owned());
            continue;
        }
        let free = |name: &String| !taken.contains(name.as_str()) && !added.contains(name);
        let next = numbers.entry(name).or_insert(2);
        let numbered = (*next..).inspect(|number| *next = number + 1).map(|number| format!("{name}_{number}"));
        let numbered = numbered.into_iter().find(free).unwrap_or_default();
        added.insert(numbered.clone());
        names.push(numbered);
    }
    names
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
        DataType::Map(entries, sorted) => match entries.data_type() {
            // The names of its parts and non-null keys belong to the type.
            DataType::Struct(parts) => {
                let part = |part: &FieldRef| part.as_ref().clone().with_data_type(shown(part.data_type()));
                let parts = DataType::Struct(parts.iter().map(part).collect());
                DataType::Map(Arc::new(entries.as_ref().clone().with_data_type(parts)), *sorted)
            }
            _ => data_type.clone(),
        },
        other => other.clone(),
    }
}

/// The error for a column whose type in the file is not the source's.
pub fn other_type(name: &str, file: &DataType, source: &DataType) -> Error {
    let what = format!(
        "the column is {}, and {} in the source",
        millstream_core::columns::type_name(file),
        millstream_core::columns::type_name(source)
    );
    Error::data(what).column(name).hint("set `on_drift: widen` to read both as the wider type")
}
