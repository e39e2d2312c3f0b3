//! Rows that Python gives: anything that has the Arrow PyCapsule interface becomes the source `python:NUMBER` of a job.
//!
//! ```text
//!  data ─__arrow_c_stream__─▶ Given ─read on a thread that may wait─▶ batches of the usual size
//! ```
//! The rows can be read once. Reading may run code of Python, so nobody who waits for them may hold the lock of the
//! interpreter.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{
    Array, ArrayRef, AsArray, Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader, StructArray,
};
use arrow::compute::{cast, concat};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi};
use arrow::ffi_stream::{ArrowArrayStreamReader, FFI_ArrowArrayStream};
use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use millstream::component::{
    ByteStream, Fault, ParseRequest, Registry, RowSource, Rows, Source, SourceContext, SourceEntry, Spec, SpecInfo,
    Unit, parse,
};
use millstream::{Error, Result};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::errors::of_error;

/// Batches that wait to be taken.
const AHEAD: usize = 2;

const SCHEME: &str = "python";

/// All components of Millstream, and this source.
///
/// # Errors
/// Never, as long as no other source has its name.
pub fn registry() -> Result<Registry> {
    let mut registry = millstream::component::registry();
    registry.add_source(ENTRY)?;
    Ok(registry)
}

/// Rows of Python that a job can read, until this is dropped.
pub struct Given {
    number: u64,
}

type Reader = dyn RecordBatchReader + Send;

/// The columns of what is given, and its rows, which are taken out when they are read.
type Kept = (SchemaRef, Option<Box<Reader>>);

/// What is given, by its number.
static ALL: Mutex<BTreeMap<u64, Kept>> = Mutex::new(BTreeMap::new());

impl Given {
    /// The rows of `data`, which has `__arrow_c_stream__` or `__arrow_c_array__`.
    ///
    /// # Errors
    /// If it has neither, or what its own code raises.
    pub fn new(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let reader = reader(data)?;
        for field in reader.schema().fields() {
            check(field).map_err(|error| of_error(data.py(), error.column(field.name())))?;
        }
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let schema = Arc::new(plain_schema(&reader.schema()));
        ALL.lock().unwrap_or_else(PoisonError::into_inner).insert(number, (schema, Some(reader)));
        Ok(Given { number })
    }

    /// What a job reads.
    pub fn url(&self) -> String {
        format!("{SCHEME}:{}", self.number)
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        // What reads may call Python when it is dropped, and that another thread, which waits for the lock.
        let reader = ALL.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
        drop(reader);
    }
}

fn reader(data: &Bound<'_, PyAny>) -> PyResult<Box<Reader>> {
    let failed = |cause: ArrowError| PyTypeError::new_err(format!("the rows cannot be read: {cause}"));
    if data.hasattr("__arrow_c_stream__")? {
        let capsule = data.call_method0("__arrow_c_stream__")?;
        let pointer = pointer::<FFI_ArrowArrayStream>(&capsule, c"arrow_array_stream")?;
        // SAFETY: by the interface, the capsule holds such a stream, and its consumer leaves an empty one.
        let stream = unsafe { FFI_ArrowArrayStream::from_raw(pointer) };
        return Ok(Box::new(ArrowArrayStreamReader::try_new(stream).map_err(failed)?));
    }
    let (schema, array): (Bound<'_, PyAny>, Bound<'_, PyAny>) = data.call_method0("__arrow_c_array__")?.extract()?;
    let schema = pointer::<FFI_ArrowSchema>(&schema, c"arrow_schema")?;
    let array = pointer::<FFI_ArrowArray>(&array, c"arrow_array")?;
    // SAFETY: as above.
    let (schema, array) = unsafe { (FFI_ArrowSchema::from_raw(schema), FFI_ArrowArray::from_raw(array)) };
    // SAFETY: both are of one array, by the interface.
    let array = unsafe { from_ffi(array, &schema) }.map_err(failed)?;
    if !matches!(array.data_type(), DataType::Struct(_)) {
        return Err(PyTypeError::new_err("this is a column, not rows: give a table or a record batch"));
    }
    if array.null_count() > 0 {
        return Err(PyTypeError::new_err("a row of this is null, and rows of a table cannot be"));
    }
    let batch = RecordBatch::from(StructArray::from(array));
    let schema = batch.schema();
    Ok(Box::new(RecordBatchIterator::new([Ok(batch)], schema)))
}

fn pointer<T>(capsule: &Bound<'_, PyAny>, name: &CStr) -> PyResult<*mut T> {
    Ok(capsule.cast::<PyCapsule>()?.pointer_checked(Some(name))?.cast::<T>().as_ptr())
}

/// Refuses a type that another library has made of one of Arrow's, where the values of that are not what they mean: a
/// month would become the count of months since 1970.
fn check(field: &Field) -> Result<()> {
    const NAME: &str = "ARROW:extension:name";
    let (kind, hint) = match field.metadata().get(NAME).map(String::as_str) {
        Some("pandas.period") => ("periods", "`.dt.to_timestamp()`, or to texts: `.astype(str)`"),
        Some("pandas.interval") => ("intervals", "texts: `.astype(str)`, or take their sides: `.array.left`"),
        _ => return children(field.data_type()).into_iter().try_for_each(|child| check(child)),
    };
    Err(Error::job(format!("a column of {kind} of pandas cannot be written")).hint(format!("convert it: {hint}")))
}

/// The fields inside of a type.
fn children(data_type: &DataType) -> Vec<&FieldRef> {
    match data_type {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _)
        | DataType::RunEndEncoded(_, item) => vec![item],
        DataType::Struct(fields) => fields.iter().collect(),
        _ => Vec::new(),
    }
}

/// The columns in types that Millstream computes with. Values that are said not to be null may be, and nothing tells.
fn plain_schema(schema: &Schema) -> Schema {
    let plain = |field: &FieldRef| Field::new(field.name(), plain_type(field.data_type()), true);
    Schema::new(schema.fields().iter().map(plain).collect::<Vec<_>>())
}

fn plain_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::LargeBinary | DataType::BinaryView => DataType::Binary,
        // A column without any value, as pandas and Polars have them.
        DataType::Null => DataType::Utf8,
        DataType::Dictionary(_, values) => plain_type(values),
        DataType::RunEndEncoded(_, values) => plain_type(values.data_type()),
        DataType::List(item) | DataType::LargeList(item) | DataType::ListView(item) | DataType::LargeListView(item) => {
            DataType::List(plain_field(item))
        }
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(plain_field).collect()),
        other => other.clone(),
    }
}

fn plain_field(field: &FieldRef) -> FieldRef {
    Arc::new(Field::new(field.name(), plain_type(field.data_type()), true))
}

/// Settings of the source: there are none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct PythonSpec {}

impl Spec for PythonSpec {
    const NAME: &'static str = SCHEME;
    const SUMMARY: &'static str = "Rows of the Python program that runs the job.";
    const EXAMPLE: &'static str = "read: python:1\n";
}

/// The source `python`.
const ENTRY: SourceEntry = SourceEntry {
    spec: SpecInfo::of::<PythonSpec>(),
    schemes: &[SCHEME],
    check: &|url| match number(url) {
        Some(_) => Ok(()),
        None => Err(Fault::new("", "only `millstream.write` reads rows of Python")),
    },
    rows: true,
    build: &|settings| {
        if !settings.is_null() {
            parse::<PythonSpec>(settings)?;
        }
        Ok(Arc::new(PythonRows))
    },
};

/// Whether this is what the rows that Python gives are called in a job.
pub fn is_given(url: &str) -> bool {
    number(url).is_some()
}

fn number(url: &str) -> Option<u64> {
    url.strip_prefix(SCHEME)?.strip_prefix(':')?.parse().ok()
}

fn schema(url: &str) -> Result<SchemaRef> {
    let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let given = number(url).and_then(|number| all.get(&number));
    given.map(|(schema, _)| Arc::clone(schema)).ok_or_else(|| Error::refused("these rows of Python are gone"))
}

fn take(url: &str) -> Result<Box<Reader>> {
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let given = number(url).and_then(|number| all.get_mut(&number));
    given.and_then(|(_, rows)| rows.take()).ok_or_else(|| Error::refused("rows of Python can be read once"))
}

#[derive(Debug)]
struct PythonRows;

#[async_trait]
impl Source for PythonRows {
    fn name(&self) -> &'static str {
        SCHEME
    }

    fn connections(&self) -> usize {
        1
    }

    fn list(&self, _: &SourceContext, pattern: &str) -> BoxStream<'static, Result<Unit>> {
        let unit = Unit::new(pattern);
        futures::stream::once(async { Ok(unit) }).boxed()
    }

    async fn open(&self, _: &SourceContext, _: &Unit) -> Result<ByteStream> {
        Err(Error::job("Python gives rows, not bytes"))
    }

    fn rows(&self) -> Option<&dyn RowSource> {
        Some(self)
    }
}

#[async_trait]
impl RowSource for PythonRows {
    async fn columns(&self, _: &SourceContext, pattern: &str) -> Result<SchemaRef> {
        schema(pattern)
    }

    fn read(&self, context: &SourceContext, unit: &Unit, request: &ParseRequest) -> BoxStream<'static, Result<Rows>> {
        let (url, request) = (unit.uri.clone(), request.clone());
        let (sender, mut receiver) = mpsc::channel(AHEAD);
        context.io.spawn_blocking(move || {
            if let Err(error) = pass_on(&url, &request, &sender) {
                // If the receiver is gone, nobody wants to know.
                let _ = sender.blocking_send(Err(error));
            }
        });
        futures::stream::poll_fn(move |task| receiver.poll_recv(task)).boxed()
    }
}

/// Reads all rows and passes them on, until the receiver is dropped.
fn pass_on(url: &str, request: &ParseRequest, to: &mpsc::Sender<Result<Rows>>) -> Result<()> {
    let mut before = 0;
    for batch in take(url)? {
        let batch = batch.map_err(|cause| Error::data("the rows cannot be read").cause(cause))?;
        for start in (0..batch.num_rows()).step_by(request.batch_rows.max(1)) {
            let part = batch.slice(start, request.batch_rows.min(batch.num_rows() - start));
            let rows = rows(&part, request, before)?;
            before += part.num_rows() as i64;
            if to.blocking_send(Ok(rows)).is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The columns of `part` that are wanted; there are `before` rows before it.
fn rows(part: &RecordBatch, request: &ParseRequest, before: i64) -> Result<Rows> {
    let failed = |cause: ArrowError| Error::data("a column cannot be converted").cause(cause);
    let schema = request.output_schema();
    let columns = request.projection.iter().zip(schema.fields()).map(|(index, field)| {
        let column = own(part.column(*index), field.data_type());
        column.map_err(|cause| failed(cause).column(field.name()))
    });
    let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(part.num_rows()));
    let batch = RecordBatch::try_new_with_options(Arc::clone(&schema), columns.collect::<Result<_>>()?, &options);
    let numbers = || Arc::new(Int64Array::from_iter_values(before + 1..=before + part.num_rows() as i64)) as ArrayRef;
    let (lines, bytes) = (request.lines.then(numbers), request.bytes.then(numbers));
    Ok(Rows { batch: batch.map_err(failed)?, lines, bytes })
}

/// The column as `data_type`, with memory of its own: a part of a large column would hold the whole, and count as that.
fn own(column: &ArrayRef, data_type: &DataType) -> Result<ArrayRef, ArrowError> {
    let own = copied(column)?;
    // A cast of texts shares their bytes.
    if own.data_type() == data_type { Ok(own) } else { cast(&own, data_type) }
}

/// A copy of the values of `column`, if a cast does not make one.
fn copied(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    match column.data_type() {
        DataType::Utf8View => Ok(Arc::new(column.as_string_view().gc())),
        DataType::BinaryView => Ok(Arc::new(column.as_binary_view().gc())),
        DataType::Dictionary(..) | DataType::RunEndEncoded(..) => Ok(Arc::clone(column)),
        // A single array would be given back as it is.
        _ => concat(&[column, &column.slice(0, 0)]),
    }
}
