//! The rows of an entry as a stream, for a program that does something else with them than a sink would.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::thread::Builder;

use arrow::array::{ArrayRef, AsArray, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, Field, SchemaRef};
use datafusion::error::Result as DataFusionResult;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{CastExpr, Column};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use futures::{Stream, StreamExt};
use millstream_core::types::without_views;
use millstream_core::{Error, Result};
use tokio::sync::{mpsc, oneshot};

use crate::context::RunContext;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::fault;
use crate::job_plan::Runnable;
use crate::prepare::{Prepared, Reach, prepare};
use crate::rejects::{LeftOut, Rejects};

/// Batches that wait for the one who reads the stream.
const AHEAD: usize = 2;

/// The rows of a source or transform as a stream of batches. Reading goes on ahead by a few batches; dropping the
/// stream ends it. After an error nothing more comes.
pub struct RowStream {
    schema: SchemaRef,
    batches: mpsc::Receiver<Item>,
    /// Whether the last row has come, or an error.
    has_ended: bool,
    rejects: Arc<Rejects>,
}

/// What the thread that reads sends: batches, an error, or `None` behind the last row. A channel that closes without
/// either says that the thread has panicked.
type Item = Option<Result<RecordBatch, Failure>>;

impl RowStream {
    /// The columns of all batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// What was left out so far, since `max_rejects` allows it. Nothing is kept of it in the state folder.
    pub fn left_out(&self) -> Vec<LeftOut> {
        self.rejects.left_out()
    }
}

impl Stream for RowStream {
    type Item = Result<RecordBatch, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let item = ready!(self.batches.poll_recv(context)).unwrap_or_else(|| Some(Err(panicked())));
        self.has_ended = !matches!(item, Some(Ok(_)));
        Poll::Ready(item)
    }
}

fn panicked() -> Failure {
    Error::internal("the thread that reads has panicked").into()
}

impl fmt::Debug for RowStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowStream").field("schema", &self.schema).finish_non_exhaustive()
    }
}

/// Which types the columns of a stream have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Types {
    /// Those without views, but for columns that are views themselves.
    Views,
    /// Those without views.
    Common,
}

impl Engine {
    /// Reads the rows of the source or transform `entry` of a job, without view types. Its sinks have no part in it.
    ///
    /// # Errors
    /// Everything that is wrong with the job; what goes wrong later comes from the stream.
    pub async fn rows(&self, work: impl Into<Runnable>, entry: &str) -> Result<RowStream, Failure> {
        self.stream(work.into(), entry, Types::Common).await
    }

    /// The same, with texts as views, for those who have texts like that. They own their bytes: what was read with them
    /// is not held.
    ///
    /// # Errors
    /// Those of [`Engine::rows`].
    pub async fn rows_with_views(&self, work: impl Into<Runnable>, entry: &str) -> Result<RowStream, Failure> {
        self.stream(work.into(), entry, Types::Views).await
    }

    async fn stream(&self, work: Runnable, entry: &str, types: Types) -> Result<RowStream, Failure> {
        let (engine, work, entry) = (self.clone(), self.fresh(work)?, entry.to_owned());
        let (opening, opened) = oneshot::channel();
        let read = move || match RunContext::new(&engine) {
            Ok(context) => {
                let reading = read(&context, &work, &entry, types, opening);
                context.runtimes.workers().block_on(reading);
            }
            // The one who asked may have left.
            Err(error) => drop(opening.send(Err(error.into()))),
        };
        let thread = Builder::new().name("millstream-rows".to_owned()).spawn(read);
        thread.map_err(|cause| Error::io("a thread cannot be started", &cause))?;
        opened.await.unwrap_or_else(|_| Err(panicked()))
    }
}

/// Answers `opening` with a stream, and fills it.
async fn read(
    context: &RunContext,
    work: &Runnable,
    entry: &str,
    types: Types,
    mut opening: oneshot::Sender<Result<RowStream, Failure>>,
) {
    context.rejects.only_count();
    let begun = async {
        let governing = context.govern()?;
        let prepared = prepare(context, &work.job, work.known.as_deref(), Reach::Online).await?;
        let physical = prepared.plan_first_rows(entry, None).await?;
        let root = physical.roots.first().ok_or_else(|| Error::internal("the entry has no plan"))?;
        let plan = in_types(types, &root.plan).map_err(fault::unwrap)?;
        let rows = execute_stream(plan, context.session.task_ctx()).map_err(fault::unwrap)?;
        Ok::<_, Failure>((governing, prepared, rows))
    };
    let begun = tokio::select! {
        biased;
        () = opening.closed() => return,
        begun = begun => begun,
    };
    let (_governing, prepared, mut rows) = match begun {
        Ok(begun) => begun,
        Err(failure) => return drop(opening.send(Err(failure))),
    };
    let (sender, batches) = mpsc::channel(AHEAD);
    let stream = RowStream { schema: rows.schema(), batches, has_ended: false, rejects: Arc::clone(&context.rejects) };
    if opening.send(Ok(stream)).is_err() {
        return;
    }
    loop {
        // A stream that is dropped ends a source that gives nothing, too.
        let next = tokio::select! {
            biased;
            () = sender.closed() => return,
            next = rows.next() => next,
        };
        let next = match next {
            Some(batch) => batch.map_err(fault::unwrap).and_then(|batch| owned(&batch)),
            None => break,
        };
        let is_last = next.is_err();
        let next = next.map_err(|error| with_unopened(&prepared, error));
        if sender.send(Some(next)).await.is_err() || is_last {
            return;
        }
    }
    drop(rows);
    let finished = prepared.finish_workers().await.and_then(|()| context.rejects.judge_all());
    let ended = finished.map_err(Failure::from).and_then(|()| Failure::of(prepared.unopened()));
    // The one who reads may have left.
    let _ = sender.send(ended.err().map(Err)).await;
}

/// `error`, behind what could not be opened before it.
fn with_unopened(prepared: &Prepared<'_>, error: Error) -> Failure {
    Failure { lints: Vec::new(), errors: prepared.unopened().into_iter().chain([error]).collect() }
}

/// `plan` with columns of `types`.
fn in_types(types: Types, plan: &Arc<dyn ExecutionPlan>) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    let (schema, common) = (plan.schema(), without_views(&plan.schema()));
    let stays = |place: usize, field: &Field| {
        let is_view = matches!(schema.field(place).data_type(), DataType::Utf8View | DataType::BinaryView);
        schema.field(place).data_type() == field.data_type() || (is_view && types == Types::Views)
    };
    if common.fields().iter().enumerate().all(|(place, field)| stays(place, field)) {
        return Ok(Arc::clone(plan));
    }
    let columns = common.fields().iter().enumerate().map(|(place, field)| {
        let column = Arc::new(Column::new(field.name(), place)) as Arc<dyn PhysicalExpr>;
        let expr = match stays(place, field) {
            true => column,
            false => Arc::new(CastExpr::new(column, field.data_type().clone(), None)),
        };
        ProjectionExpr { expr, alias: field.name().clone() }
    });
    Ok(Arc::new(ProjectionExec::try_new(columns.collect::<Vec<_>>(), Arc::clone(plan))?))
}

/// `batch` with views of bytes that are its own. Those of a page or a response would hold all of it, and the memory
/// that the run has reserved for it, for as long as another library likes: reading would wait for that memory.
fn owned(batch: &RecordBatch) -> Result<RecordBatch> {
    let columns = batch.columns().iter().map(|column| match column.data_type() {
        DataType::Utf8View => Arc::new(column.as_string_view().gc()) as ArrayRef,
        DataType::BinaryView => Arc::new(column.as_binary_view().gc()),
        _ => Arc::clone(column),
    });
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(batch.schema(), columns.collect(), &options)
        .map_err(|cause| Error::internal("columns with bytes of their own do not fit together").cause(cause))
}
