//! Rows for Python: a source or transform of a job, as streams of Arrow batches.
//!
//! ```text
//!  Rows ─plan─▶ schema        looked up once
//!       ─each use─▶ RowStream ─▶ the C stream interface: pandas, Polars, DuckDB, pyarrow
//!                             ─▶ Batches: an iterator, each Batch by the C data interface
//!                             ─▶ Frames: an iterator, each Frame of several batches by the C stream interface
//! ```
//! A read that ends tells Python what it has left out. One that was begun before a fork fails in the copy.

use std::ffi::CStr;
use std::sync::{Mutex, PoisonError};

use arrow::array::{Array, RecordBatch, RecordBatchIterator, RecordBatchReader, StructArray};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow::ffi_stream::FFI_ArrowArrayStream;
use futures::StreamExt;
use millstream::rejects::LeftOut;
use millstream::{Engine, Error, ErrorKind, Failure, JobPlan, Lint, Result, RowStream};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use serde_json::{Value, json};

use crate::engine::{Limits, Reads, engine};
use crate::errors::{Author, Told, exception, of_error, warning};
use crate::job;
use crate::wait::{attached, wait, wait_anywhere};

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
    /// What is strange and no error.
    warnings: Vec<String>,
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
        let warnings = warnings(plan.warnings(), Author::Package);
        Rows::of_plan(plan, entry, limits, warnings).map_err(|error| of_error(py, error))
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
        // The places are in a job that nobody has seen.
        let warnings = warnings(plan.warnings(), Author::Package);
        let rows = Rows::of_plan(plan, entry.clone(), limits, warnings).map_err(|error| of_error(py, error))?;
        Ok((rows, job, entry))
    }

    /// The names of the columns and their types, as a job file declares them.
    #[getter]
    fn columns(&self) -> Vec<(String, String)> {
        columns(&self.schema)
    }

    /// What is strange and no error.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
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
    fn stream_capsule<'py>(&self, py: Python<'py>, place: Place) -> PyResult<Bound<'py, PyCapsule>> {
        let stream = FFI_ArrowArrayStream::new(Box::new(Reader(self.open(py, Views::No, place)?)));
        PyCapsule::new_with_value(py, stream, STREAM)
    }

    /// A new read, batch by batch.
    fn batches(&self, py: Python<'_>, place: Place) -> PyResult<Batches> {
        Ok(Batches(Reading::new(self.open(py, Views::No, place)?)))
    }

    /// A new read, in parts of several batches, with texts as views.
    fn frames(&self, py: Python<'_>, place: Place) -> PyResult<Frames> {
        Ok(Frames(Reading::new(self.open(py, Views::Yes, place)?)))
    }
}

/// Whether texts come as views.
enum Views {
    Yes,
    No,
}

impl Rows {
    fn of_plan(plan: JobPlan, entry: String, limits: Limits, warnings: Vec<String>) -> Result<Self> {
        let unknown = || Error::internal(format!("the columns of `{entry}` are not known"));
        let schema = SchemaRef::new(millstream::types::without_views(plan.columns(&entry).ok_or_else(unknown)?));
        let written = plan.to_json()?;
        Ok(Rows { entry, limits, schema, plan: Mutex::new((std::process::id(), plan)), written, warnings })
    }

    fn open(&self, py: Python<'_>, views: Views, place: Place) -> PyResult<Read> {
        let opened = wait(py, async {
            let engine = engine(&self.limits, Reads::Places)?;
            let plan = self.plan(&engine)?;
            match views {
                Views::Yes => engine.rows_with_views(&plan, &self.entry).await,
                Views::No => engine.rows(&plan, &self.entry).await,
            }
        })?;
        opened.map(|rows| Read::new(rows, place)).map_err(|failure| exception(py, failure, Author::Package))
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

fn warnings(lints: &[Lint], author: Author) -> Vec<String> {
    lints.iter().filter(|lint| !lint.is_error()).map(|lint| warning(lint, author)).collect()
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

/// The file and the line of the program that has begun a read, for warnings that come on a thread without a program.
type Place = Option<(String, u32)>;

/// A read, of the process that has begun it.
struct Read {
    process: u32,
    /// `None` once it is dropped.
    rows: Option<RowStream>,
    schema: SchemaRef,
    place: Place,
    /// Whether nothing is left to tell of what was left out: it was told, or the read has failed, which says more.
    has_told: bool,
}

impl Read {
    fn new(rows: RowStream, place: Place) -> Self {
        let schema = SchemaRef::clone(rows.schema());
        Read { process: std::process::id(), rows: Some(rows), schema, place, has_told: false }
    }

    /// The rows. In a copy of the process nobody fills the stream, and who waits for it waits for ever.
    fn rows(&mut self) -> Result<&mut RowStream> {
        self.rows.as_mut().filter(|_| is_own(self.process)).ok_or_else(of_other_process)
    }

    /// What was left out and not told yet.
    fn left_out(&mut self) -> Vec<LeftOut> {
        let rows = self.rows.as_ref().filter(|_| !self.has_told && is_own(self.process));
        let left_out = rows.map(RowStream::left_out).unwrap_or_default();
        self.has_told = true;
        left_out
    }
}

impl Drop for Read {
    fn drop(&mut self) {
        if !is_own(self.process) {
            // The threads that fill it are those of the other process, and a lock of theirs may be held here for ever.
            return std::mem::forget(self.rows.take());
        }
        // A caller that takes the first rows only has not seen an end. There is no warning while the interpreter ends.
        let left_out = self.left_out();
        if !left_out.is_empty() {
            attached(|py| {
                // An exception may be on its way, which stays the same.
                let on_its_way = PyErr::take(py);
                if let Err(raised) = tell(py, &left_out, &self.place) {
                    raised.write_unraisable(py, None);
                }
                if let Some(raised) = on_its_way {
                    raised.restore(py);
                }
            });
        }
    }
}

fn is_own(process: u32) -> bool {
    process == std::process::id()
}

fn of_other_process() -> Error {
    Error::job("this read was begun before the process was copied (`os.fork`), and goes on in the other one only")
        .hint("read anew in the copy: what `millstream.read` has given can be used again there")
}

/// Warns of what a read has left out.
///
/// # Errors
/// If the filters of the caller make errors of warnings.
fn tell(py: Python<'_>, left_out: &[LeftOut], place: &Place) -> PyResult<()> {
    if left_out.is_empty() {
        return Ok(());
    }
    let count: u64 = left_out.iter().map(|of| of.count).sum();
    let first = left_out.iter().flat_map(|of| &of.first).next();
    py.import("millstream._show")?.getattr("left_out")?.call1((count, first, place)).map(drop)
}

/// A read as other libraries know it. They may call it on any thread, with or without the interpreter's lock.
struct Reader(Read);

impl Iterator for Reader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let failed = |failure: Failure| Some(Err(ArrowError::ExternalError(Box::new(Told::from(failure)))));
        let rows = match self.0.rows() {
            Ok(rows) => rows,
            Err(error) => return failed(error.into()),
        };
        let next = wait_anywhere(rows.next());
        let interrupted = || Some(Err(Error::new(ErrorKind::Interrupted, "interrupted").into()));
        match next.unwrap_or_else(interrupted) {
            Some(Ok(batch)) => Some(Ok(batch)),
            None => self.end().map(Err),
            Some(Err(failure)) => {
                self.0.has_told = true;
                failed(failure)
            }
        }
    }
}

impl Reader {
    /// Behind the last row, tells what was left out. An error if a warning is one for the caller.
    fn end(&mut self) -> Option<ArrowError> {
        let left_out = self.0.left_out();
        if left_out.is_empty() {
            return None;
        }
        let told = attached(|py| tell(py, &left_out, &self.0.place).map_err(|raised| raised.to_string()));
        told?.err().map(|raised| ArrowError::ExternalError(raised.into()))
    }
}

impl RecordBatchReader for Reader {
    fn schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.0.schema)
    }
}

/// A read; `None` once it has ended, or while a batch is awaited.
struct Reading {
    process: u32,
    read: Mutex<Option<Read>>,
}

impl Reading {
    fn new(read: Read) -> Self {
        Reading { process: read.process, read: Mutex::new(Some(read)) }
    }

    fn next(&self, py: Python<'_>) -> PyResult<Option<RecordBatch>> {
        if !is_own(self.process) {
            return Err(of_error(py, of_other_process()));
        }
        let taken = self.read.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut read) = taken else { return Ok(None) };
        let rows = read.rows().map_err(|error| of_error(py, error))?;
        match wait(py, rows.next()) {
            Ok(None) => tell(py, &read.left_out(), &read.place).map(|()| None),
            Ok(Some(Ok(batch))) => {
                *self.read.lock().unwrap_or_else(PoisonError::into_inner) = Some(read);
                Ok(Some(batch))
            }
            Ok(Some(Err(failure))) => {
                read.has_told = true;
                Err(exception(py, failure, Author::Package))
            }
            // An interrupt ends the read, since it drops the stream.
            Err(signal) => {
                read.has_told = true;
                Err(signal)
            }
        }
    }

    fn end(&self, py: Python<'_>) -> PyResult<()> {
        if !is_own(self.process) {
            return Ok(());
        }
        let taken = self.read.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut read) = taken else { return Ok(()) };
        tell(py, &read.left_out(), &read.place)
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
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.end(py)
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
