//! Rows that are passed through a worker.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use arrow::array::RecordBatch;
use async_trait::async_trait;
use datafusion::common::runtime::SpawnedTask;
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use millstream_core::transform::{GivenRows, RowStream};
use millstream_core::{Error, Result};
use tokio::sync::mpsc;

use super::rows::Work;
use crate::fault;

/// How many batches a worker may be ahead of who wants them.
const AHEAD: usize = 2;

/// What a worker gives for `rows`. It is started when the first rows are wanted.
pub fn passed(work: &Arc<Work>, rows: RowStream) -> BoxStream<'static, DataFusionResult<RecordBatch>> {
    let work = Arc::clone(work);
    let begin = async move {
        let mut receiver = RecordBatchReceiverStreamBuilder::new(Arc::clone(&work.schema), AHEAD);
        let given = Given { work: Arc::clone(&work), rows: receiver.tx() };
        receiver.spawn(async move {
            let (width, sent) = (Arc::clone(&work), Arc::<AtomicU64>::default());
            let count = Arc::clone(&sent);
            let rows = rows.map(move |rows| {
                let rows = width.asked(&rows?)?;
                count.fetch_add(rows.num_rows() as u64, Ordering::Relaxed);
                Ok(rows)
            });
            let passed = work.pool.pass(rows.boxed(), &given).await;
            passed.map_err(|error| fault::carry(error.in_step(work.pool.step())))?;
            work.pool.counters().add_answered(sent.load(Ordering::Relaxed));
            Ok(())
        });
        receiver.build()
    };
    stream::once(begin).flatten().boxed()
}

struct Given {
    work: Arc<Work>,
    rows: mpsc::Sender<DataFusionResult<RecordBatch>>,
}

#[async_trait]
impl GivenRows for Given {
    fn wanted(&self) -> Option<&[usize]> {
        self.work.wanted.as_deref()
    }

    async fn take(&self, mut rows: RecordBatch) -> Result<()> {
        if let Some(wanted) = self.wanted().filter(|wanted| wanted.len() < rows.num_columns()) {
            rows = rows.project(wanted).map_err(super::rows::unfit)?;
        }
        let rows = rows.with_schema(Arc::clone(&self.work.schema)).map_err(super::rows::unfit)?;
        self.work.pool.counters().add_given(rows.num_rows() as u64);
        let sent = self.rows.send(Ok(rows)).await;
        // Who wanted them has gone, and the task is ended with it.
        sent.map_err(|_| Error::internal("nobody wants the rows any more"))
    }
}

/// The rows of several streams for several workers: each takes what comes next.
pub struct Feed {
    /// The streams until they are read.
    inputs: std::sync::Mutex<Option<Inputs>>,
    rows: tokio::sync::Mutex<mpsc::Receiver<Result<RecordBatch>>>,
    /// How many streams have not come to their end.
    left: Arc<AtomicUsize>,
    tasks: std::sync::Mutex<Vec<SpawnedTask<()>>>,
}

struct Inputs {
    streams: Vec<SendableRecordBatchStream>,
    sender: mpsc::Sender<Result<RecordBatch>>,
}

impl Feed {
    /// Of these streams.
    pub fn new(streams: Vec<SendableRecordBatchStream>) -> Self {
        let (sender, rows) = mpsc::channel(streams.len().max(1));
        let left = Arc::new(AtomicUsize::new(streams.len()));
        let inputs = std::sync::Mutex::new(Some(Inputs { streams, sender }));
        Feed { inputs, rows: tokio::sync::Mutex::new(rows), left, tasks: std::sync::Mutex::default() }
    }

    /// Reads the streams, unless they are read already.
    fn begin(&self) {
        let Some(inputs) = self.inputs.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let tasks = inputs.streams.into_iter().map(|mut stream| {
            let (sender, left) = (inputs.sender.clone(), Arc::clone(&self.left));
            SpawnedTask::spawn(async move {
                while let Some(rows) = stream.next().await {
                    if sender.send(rows.map_err(fault::unwrap)).await.is_err() {
                        return;
                    }
                }
                left.fetch_sub(1, Ordering::Release);
            })
        });
        *self.tasks.lock().unwrap_or_else(PoisonError::into_inner) = tasks.collect();
    }

    async fn next(&self) -> Option<Result<RecordBatch>> {
        self.begin();
        if let Some(rows) = self.rows.lock().await.recv().await {
            return Some(rows);
        }
        // A task that has panicked has not come to the end of its rows.
        let is_whole = self.left.load(Ordering::Acquire) == 0;
        (!is_whole).then(|| Err(Error::internal("a task that reads rows has failed")))
    }

    /// The rows of one worker.
    pub fn rows(self: Arc<Self>) -> RowStream {
        stream::unfold(Some(self), |feed| async move {
            let feed = feed?;
            let rows = feed.next().await?;
            let feed = rows.is_ok().then_some(feed);
            Some((rows, feed))
        })
        .boxed()
    }
}
