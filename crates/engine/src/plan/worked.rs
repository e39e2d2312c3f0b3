//! The rows that workers compute: each batch of the input is given to one of them.
//!
//! ```text
//!  batch ─▶ worker ─▶ rows ──────────────────────────────▶ rows
//!              └ failed ─▶ once more ─▶ halves ─▶ one row ─▶ reject
//! ```
//! A worker that has ended or takes too long has failed at its batch, and another takes its place. What fails again is
//! cut in halves where rows are computed one by one, down to the row to blame.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{take, take_record_batch};
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::runtime::SpawnedTask;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::{StreamExt, TryStreamExt, stream};
use millstream_core::transform::{Answer, Per};
use millstream_core::{Error, Result};

use super::pool::Pool;
use crate::fault;
use crate::node::{over_one_input, streaming};
use crate::rejects::take::TakeRow;
use crate::rejects::{Entry, Rejects, allowing, json_of};

/// Has workers compute each batch.
pub struct WorkExec {
    input: Arc<dyn ExecutionPlan>,
    work: Arc<Work>,
    properties: Arc<PlanProperties>,
}

/// How a batch becomes rows.
#[derive(Clone)]
struct Work {
    pool: Arc<Pool>,
    /// The columns of its rows, without the one that is carried.
    schema: SchemaRef,
    /// The columns of the input that its rows keep.
    keep: Vec<usize>,
    /// How many columns the workers take. One more tells where rows are from, and is carried behind the others.
    width: usize,
    /// Takes the rows that fail, and counts those that come; `None` if none may fail.
    taker: Option<(Arc<dyn TakeRow>, Arc<Rejects>)>,
    failed: Arc<AtomicU64>,
}

/// Rows that are still to be computed.
struct Part {
    rows: RecordBatch,
    tried: Tried,
}

/// Whether rows were given to a worker before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tried {
    Never,
    /// It has failed.
    Once,
    /// It has failed and ended: others may have ended, too.
    WorkerEnded,
}

impl WorkExec {
    /// The workers of `pool` over `input`. Their rows have the columns of `schema`, the last of which are those of the
    /// input with the numbers `keep`.
    pub fn new(input: Arc<dyn ExecutionPlan>, pool: &Arc<Pool>, schema: SchemaRef, keep: Vec<usize>) -> Self {
        let width = input.schema().fields().len();
        let work = Work { pool: Arc::clone(pool), schema, keep, width, taker: None, failed: Arc::default() };
        WorkExec::over(input, Arc::new(work))
    }

    fn over(input: Arc<dyn ExecutionPlan>, work: Arc<Work>) -> Self {
        let carried = input.schema().fields().iter().skip(work.width).cloned().collect::<Vec<_>>();
        let fields = work.schema.fields().iter().cloned().chain(carried);
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let properties = streaming(schema, input.output_partitioning().partition_count());
        WorkExec { input, work, properties }
    }

    /// The workers.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.work.pool
    }

    /// The name of its step, if that may leave rows out.
    pub fn lenient_step(&self) -> Option<&str> {
        self.work.taker.as_ref().map(|_| self.pool().step())
    }

    /// How many rows have failed.
    pub fn failed(&self) -> u64 {
        self.work.failed.load(Ordering::Relaxed)
    }

    /// The same, with the rows that fail going to `taker`, if its step may leave some out.
    pub fn lenient(&self, taker: Arc<dyn TakeRow>, rejects: &Arc<Rejects>) -> Option<Self> {
        rejects.of_step(self.pool().step())?;
        let work = Work { taker: Some((taker, Arc::clone(rejects))), ..Work::clone(&self.work) };
        Some(WorkExec::over(Arc::clone(&self.input), Arc::new(work)))
    }

    /// The same over `input`, whose last column tells where rows are from. What may fail goes to `taker`, if there is
    /// one.
    pub fn carrying(&self, input: Arc<dyn ExecutionPlan>, taker: Option<&Arc<dyn TakeRow>>) -> Self {
        let work = match (taker, &self.work.taker) {
            // What another takes another counts.
            (Some(taker), Some((_, rejects))) => {
                let taker = Some((Arc::clone(taker), Arc::clone(rejects)));
                Arc::new(Work { taker, failed: Arc::default(), ..Work::clone(&self.work) })
            }
            _ => Arc::clone(&self.work),
        };
        WorkExec::over(input, work)
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        WorkExec::over(input, Arc::clone(&self.work))
    }
}

impl Work {
    /// The rows of `batch`.
    async fn rows(&self, batch: RecordBatch) -> Result<Vec<RecordBatch>> {
        let (mut parts, mut done) = (vec![Part { rows: batch, tried: Tried::Never }], Vec::new());
        // The last part comes first.
        while let Some(Part { rows: part, tried }) = parts.pop() {
            let asked = part.project(&(0..self.width).collect::<Vec<_>>()).map_err(unfit)?;
            let called = self.pool.call(&asked, tried == Tried::WorkerEnded).await;
            let answer = match called.map_err(|error| error.in_step(self.pool.step()))? {
                Ok(answer) => answer,
                Err(error) => {
                    self.again(part, tried, Tried::WorkerEnded, error, &mut parts)?;
                    continue;
                }
            };
            let mut failures = Vec::new();
            let mut whole = None;
            for failure in &answer.failures {
                match failure.row {
                    Some(row) => failures.push((row, failure.error.clone())),
                    None => whole = Some(failure.error.clone()),
                }
            }
            if let Some(error) = whole {
                self.again(part, tried, Tried::Once, error, &mut parts)?;
                continue;
            }
            failures.sort_by_key(|(row, _)| *row);
            if tried == Tried::Never && !failures.is_empty() {
                let rows = UInt32Array::from_iter_values(failures.iter().map(|(row, _)| *row));
                parts.push(Part { rows: take_record_batch(&part, &rows).map_err(unfit)?, tried: Tried::Once });
            } else {
                for (row, error) in failures {
                    let row = part.slice(row as usize, 1);
                    self.reject(&row, self.with_text(&row, error)?)?;
                }
            }
            let rows = self.beside(&part, answer)?;
            if rows.num_rows() > 0 {
                done.push(rows);
            }
        }
        Ok(done)
    }

    /// What is done about `part`, at which a worker has failed as a whole, `now` in this way.
    fn again(&self, part: RecordBatch, tried: Tried, now: Tried, error: Error, parts: &mut Vec<Part>) -> Result<()> {
        let rules = self.pool.rules();
        let count = part.num_rows();
        if tried == Tried::Never {
            parts.push(Part { rows: part, tried: now });
        } else if count > 1 && (rules.per == Per::Row || rules.deterministic) {
            parts.push(Part { rows: part.slice(count / 2, count - count / 2), tried: now });
            parts.push(Part { rows: part.slice(0, count / 2), tried: now });
        } else {
            // Of several rows nobody knows which one is to blame.
            let error = if count == 1 { self.with_text(&part, error)? } else { error };
            for row in 0..count {
                self.reject(&part.slice(row, 1), error.clone())?;
            }
        }
        Ok(())
    }

    /// `error` with `row`, a batch of one, as its text, unless it has a text.
    fn with_text(&self, row: &RecordBatch, error: Error) -> Result<Error> {
        if error.offending_text().is_some() {
            return Ok(error);
        }
        let asked = row.project(&(0..self.width).collect::<Vec<_>>()).map_err(unfit)?;
        Ok(json_of(&asked).into_iter().fold(error, |error, text| error.text(text.to_string())))
    }

    fn reject(&self, row: &RecordBatch, error: Error) -> Result<()> {
        let step = self.pool.step();
        let error = error.in_step(step);
        let Some((taker, _)) = &self.taker else { return Err(allowing(error, &Entry::Step(step.to_owned()))) };
        taker.take(step, row, error)?;
        self.failed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The rows of `answer` with what they keep of `part`, and what is carried.
    fn beside(&self, part: &RecordBatch, answer: Answer) -> Result<RecordBatch> {
        let count = answer.rows.num_rows();
        let mut columns: Vec<ArrayRef> = answer.rows.columns().to_vec();
        let origins = match answer.origins {
            Some(origins) => origins,
            // The rows of a batch count as those of its first one.
            None => UInt32Array::from(vec![0; count]),
        };
        let carried = self.width..part.num_columns();
        for column in self.keep.iter().copied().chain(carried) {
            columns.push(take(part.column(column), &origins, None).map_err(unfit)?);
        }
        let carried = part.schema().fields().iter().skip(self.width).cloned().collect::<Vec<_>>();
        let fields: Vec<Arc<Field>> = self.schema.fields().iter().cloned().chain(carried).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options).map_err(unfit)
    }
}

fn unfit(cause: arrow::error::ArrowError) -> Error {
    Error::internal("the columns of a worker's rows do not fit together").cause(cause)
}

impl fmt::Debug for WorkExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkExec").field("pool", self.pool()).finish_non_exhaustive()
    }
}

impl DisplayAs for WorkExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkExec: {}, workers={}", self.pool().name(), self.pool().size())?;
        if self.work.taker.is_some() {
            f.write_str(", leaves out rows that cannot be computed")?;
        }
        Ok(())
    }
}

impl ExecutionPlan for WorkExec {
    over_one_input!("WorkExec");

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let work = Arc::clone(&self.work);
        let step = self.pool().step();
        let limits = work.taker.as_ref().and_then(|(_, rejects)| rejects.of_step(step));
        let input = self.input.execute(partition, context)?;
        // Each partition may keep all of its share of the workers busy, and has one more batch ready.
        let at_once = self.pool().size().div_ceil(self.input.output_partitioning().partition_count()) + 1;
        let rows = input.map(move |batch| {
            let (work, limits) = (Arc::clone(&work), limits.clone());
            async move {
                let batch = batch?;
                limits.iter().for_each(|limit| limit.add_came(batch.num_rows() as u64));
                // A task of its own: a worker must not wait until somebody asks for the rows, which may be somebody who
                // waits for what another one who needs the worker holds.
                let rows = SpawnedTask::spawn(async move { work.rows(batch).await }).join().await;
                let rows = rows.unwrap_or_else(|join| Err(Error::internal("a task failed").cause(join)));
                let rows = rows.map_err(fault::carry)?;
                Ok::<_, DataFusionError>(stream::iter(rows.into_iter().map(Ok)))
            }
        });
        let rows = rows.buffered(at_once).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}
