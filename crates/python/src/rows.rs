//! Rows for Python: a source or transform of a job, as streams of Arrow batches.
//!
//! ```text
//!  Rows ─plan─▶ schema        looked up once
//!       ─each use─▶ RowStream ─▶ the C stream interface: pandas, Polars, DuckDB, pyarrow
//!                             ─▶ Batches: an iterator, each Batch by the C data interface
//!                             ─▶ Frames: an iterator, each Frame of several batches by the C stream interface
//! ```

use std::ffi::CStr;
use std::sync::{Mutex, PoisonError};

use arrow::array::{Array, RecordBatch, RecordBatchIterator, RecordBatchReader, StructArray};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow::ffi_stream::FFI_ArrowArrayStream;
use futures::StreamExt;
use millstream::{Engine, Error, ErrorKind, Failure, JobPlan, Result, RowStream};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use serde_json::{Value, json};

use crate::engine::{Limits, Reads, engine};
use crate::errors::{Author, exception, of_error};
use crate::job;
use crate::wait::{wait, wait_anywhere};

/// The names of capsules, by the Arrow PyCapsule interface.
const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";
const STREAM: &CStr = c"arrow_array_stream";

/// The rows of an entry of a job. Each use reads them anew.
#[pyclass(frozen, module = "millstream._millstream")]
pub struct Rows {
    entry: String,
    limits: Limits,
    schema: SchemaRef,
    /// The plan, and the process that it was made in.
    plan: Mutex<(u32, JobPlan)>,
    /// The plan for copies of the process.
    written: Value,
}

#[pymethods]
impl Rows {
    /// Looks at the sources of `job`, which is JSON, for the rows of its entry `entry`.
    #[new]
    fn new(py: Python<'_>, job: &str, entry: String, limits: Limits) -> PyResult<Self> {
        let planned = wait(py, async {
            let engine = engine(&limits, Reads::Places)?;
            // A job has a sink; this one is never opened.
            let job = job::builder(job)?.sink("discarded", json!({"from": entry, "write": "discard"}));
            engine.plan(job.build(&engine).await?).await
        })?;
        let plan = planned.map_err(|failure| exception(py, failure, Author::Package))?;
        Rows::of_plan(plan, entry, limits).map_err(|error| of_error(py, error))
    }

    /// Looks at the files that `query` names in place of tables. Returns its rows, and their job as JSON and entry.
    #[staticmethod]
    fn of_query(py: Python<'_>, query: &str, limits: Limits) -> PyResult<(Self, String, String)> {
        let planned: Result<_, Failure> = wait(py, async {
            let query = engine(&limits, Reads::Places)?.query(query).await?;
            Ok((query.plan().await?, query))
        })?;
        let (plan, query) = planned.map_err(|failure| exception(py, failure, Author::Caller))?;
        let (job, entry) = (Value::Object(query.entries().clone()).to_string(), query.entry().to_owned());
        let rows = Rows::of_plan(plan, entry.clone(), limits).map_err(|error| of_error(py, error))?;
        Ok((rows, job, entry))
    }

    /// The names of the columns and their types, as a job file declares them.
    #[getter]
    fn columns(&self) -> Vec<(String, String)> {
        columns(&self.schema)
    }

    /// A batch with these columns and without rows.
    fn empty(&self) -> Batch {
        Batch(RecordBatch::new_empty(SchemaRef::clone(&self.schema)))
    }

    /// The columns, by the C data interface.
    fn schema_capsule<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.schema)
    }

    /// A new read, by the C stream interface.
    fn stream_capsule<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let rows = self.open(py, Views::No)?;
        let stream = FFI_ArrowArrayStream::new(Box::new(Reader { rows }));
        PyCapsule::new_with_value(py, stream, STREAM)
    }

    /// A new read, batch by batch.
    fn batches(&self, py: Python<'_>) -> PyResult<Batches> {
        Ok(Batches(Reading::new(self.open(py, Views::No)?)))
    }

    /// A new read, in parts of several batches, with texts as views.
    fn frames(&self, py: Python<'_>) -> PyResult<Frames> {
        Ok(Frames(Reading::new(self.open(py, Views::Yes)?)))
    }
}

/// Whether texts come as views.
enum Views {
    Yes,
    No,
}

impl Rows {
    fn of_plan(plan: JobPlan, entry: String, limits: Limits) -> Result<Self> {
        let unknown = || Error::internal(format!("the columns of `{entry}` are not known"));
        let schema = SchemaRef::new(millstream::types::without_views(plan.columns(&entry).ok_or_else(unknown)?));
        let written = plan.to_json()?;
        Ok(Rows { entry, limits, schema, plan: Mutex::new((std::process::id(), plan)), written })
    }

    fn open(&self, py: Python<'_>, views: Views) -> PyResult<RowStream> {
        let opened = wait(py, async {
            let engine = engine(&self.limits, Reads::Places)?;
            let plan = self.plan(&engine)?;
            match views {
                Views::Yes => engine.rows_with_views(&plan, &self.entry).await,
                Views::No => engine.rows(&plan, &self.entry).await,
            }
        })?;
        opened.map_err(|failure| exception(py, failure, Author::Package))
    }

    /// The plan. A copy of the process makes it anew, since it may hold what works in the other process.
    fn plan(&self, engine: &Engine) -> Result<JobPlan, Failure> {
        let process = std::process::id();
        let mut known = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0 != process {
            let own = (process, engine.restore(&self.written)?);
            std::mem::forget(std::mem::replace(&mut *known, own));
        }
        Ok(known.1.clone())
    }
}

fn columns(schema: &Schema) -> Vec<(String, String)> {
    let column =
        |field: &arrow::datatypes::FieldRef| (field.name().clone(), millstream::types::type_name(field.data_type()));
    schema.fields().iter().map(column).collect()
}

fn schema_capsule<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyCapsule>> {
    let exported = FFI_ArrowSchema::try_from(schema).map_err(|cause| not_exported(py, cause))?;
    PyCapsule::new_with_value(py, exported, SCHEMA)
}

fn not_exported(py: Python<'_>, cause: ArrowError) -> PyErr {
    of_error(py, Error::internal("rows cannot be handed over").cause(cause))
}

/// A read as other libraries know it. They may call it on any thread, with or without the interpreter's lock.
struct Reader {
    rows: RowStream,
}

impl Iterator for Reader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let interrupted = || Some(Err(Error::new(ErrorKind::Interrupted, "interrupted").into()));
        let next = wait_anywhere(self.rows.next()).unwrap_or_else(interrupted);
        next.map(|batch| batch.map_err(|failure| ArrowError::ExternalError(Box::new(failure))))
    }
}

impl RecordBatchReader for Reader {
    fn schema(&self) -> SchemaRef {
        SchemaRef::clone(self.rows.schema())
    }
}

/// A read; `None` once it has ended, or while a batch is awaited.
struct Reading(Mutex<Option<RowStream>>);

impl Reading {
    fn new(rows: RowStream) -> Self {
        Reading(Mutex::new(Some(rows)))
    }

    fn next(&self, py: Python<'_>) -> PyResult<Option<RecordBatch>> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut rows) = taken else { return Ok(None) };
        // An interrupt ends the read, since it drops the stream.
        match wait(py, rows.next())? {
            None => Ok(None),
            Some(Err(failure)) => Err(exception(py, failure, Author::Package)),
            Some(Ok(batch)) => {
                *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(rows);
                Ok(Some(batch))
            }
        }
    }

    fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// The batches of a read, one after the other.
#[pyclass(frozen, module = "millstream._millstream")]
pub struct Batches(Reading);

#[pymethods]
impl Batches {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        Ok(self.0.next(py)?.map(Batch))
    }

    /// Ends the read.
    fn close(&self) {
        self.0.end();
    }
}

/// How many batches a part has at most.
const FRAME_BATCHES: usize = 16;

/// A part with so many bytes is large enough.
const FRAME_BYTES: usize = 32 << 20;

/// The rows of a read in larger parts, for those to whom each call is dear: a frame of Polars is worth 100,000 rows.
#[pyclass(frozen, module = "millstream._millstream")]
pub struct Frames(Reading);

#[pymethods]
impl Frames {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Frame>> {
        let (mut batches, mut bytes) = (Vec::new(), 0);
        while batches.len() < FRAME_BATCHES
            && bytes < FRAME_BYTES
            && let Some(batch) = self.0.next(py)?
        {
            bytes += batch.get_array_memory_size();
            batches.push(batch);
        }
        Ok((!batches.is_empty()).then_some(Frame(batches)))
    }
}

/// Some batches, of which there is at least one.
#[pyclass(frozen, module = "millstream._millstream")]
pub struct Frame(Vec<RecordBatch>);

#[pymethods]
impl Frame {
    fn __len__(&self) -> usize {
        self.0.iter().map(RecordBatch::num_rows).sum()
    }

    /// The columns and the rows, by the C stream interface.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        let schema = self.0.first().map_or_else(|| SchemaRef::new(Schema::empty()), RecordBatch::schema);
        let batches: Vec<_> = self.0.iter().cloned().map(Ok).collect();
        let stream = FFI_ArrowArrayStream::new(Box::new(RecordBatchIterator::new(batches, schema)));
        PyCapsule::new_with_value(py, stream, STREAM)
    }
}

/// Some rows, by the C data interface: `pyarrow.record_batch(batch)`, `polars.DataFrame(batch)`.
#[pyclass(frozen, module = "millstream")]
pub struct Batch(RecordBatch);

#[pymethods]
impl Batch {
    /// How many rows there are.
    #[getter]
    fn num_rows(&self) -> usize {
        self.0.num_rows()
    }

    /// How many columns there are.
    #[getter]
    fn num_columns(&self) -> usize {
        self.0.num_columns()
    }

    fn __len__(&self) -> usize {
        self.0.num_rows()
    }

    fn __repr__(&self) -> String {
        format!("<millstream.Batch of {} rows and {} columns>", self.0.num_rows(), self.0.num_columns())
    }

    /// The columns, by the C data interface.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.0.schema())
    }

    /// The columns and the rows, by the C data interface.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        // By the interface, a producer that cannot give the types asked for gives its own.
        drop(requested_schema);
        let rows = StructArray::from(self.0.clone());
        let array = FFI_ArrowArray::new(&rows.to_data());
        Ok((schema_capsule(py, &self.0.schema())?, PyCapsule::new_with_value(py, array, ARRAY)?))
    }
}
