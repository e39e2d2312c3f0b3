//! Encodes rows, gathers them into groups, and sends them over the connections of a load. It reports rows that the
//! table refuses; `bisect.rs` finds them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use millstream_core::sink::{Refused, SHOWN_BAD_ROWS, Writer};
use millstream_core::{Budget, Error, RejectKind, Result};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::shared::Shared;
use crate::database::bisect::{self, Scope};
use crate::database::entry::blamed;
use crate::database::group::{BadRow, Group, Rows, numbered};
use crate::database::pool::pause;
use crate::database::server::{Connection, Encoder, Failure};

/// Encodes the rows of one partition and sends them over the connections.
pub(super) struct RowWriter {
    shared: Arc<Shared>,
    encoder: Box<dyn Encoder>,
    /// The columns that are written.
    columns: Vec<usize>,
    group: Option<Group>,
    /// The original rows of the group, if rejects may need them.
    kept: Vec<RecordBatch>,
    tasks: JoinSet<Result<()>>,
    io: Handle,
    budget: Arc<Budget>,
    rows: Arc<AtomicU64>,
    arrivals: Option<Arc<AtomicU64>>,
}

#[async_trait]
impl Writer for RowWriter {
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let count = batch.num_rows() as u64;
        let arrival = self.arrivals.as_ref().map(|arrivals| arrivals.fetch_add(count, Ordering::Relaxed));
        let written =
            batch.project(&self.columns).map_err(|cause| Error::internal("a column is missing").cause(cause))?;
        let mut row = 0;
        while row < batch.num_rows() {
            let (start, first) = (Instant::now(), row);
            let (spec, budget) = (&self.shared.spec, &self.budget);
            let group = self
                .group
                .get_or_insert_with(|| Group::new(budget, usize::try_from(spec.batch_bytes.0).unwrap_or(usize::MAX)));
            row = self.encoder.encode(&written, row, arrival, group)?;
            let full = group.is_full(spec.batch_rows);
            self.shared.step.add_busy(start.elapsed());
            let some_refused = !group.refused.is_empty();
            if self.shared.refusals.is_some() {
                self.kept.push(batch.slice(first, row - first));
            }
            if full || (some_refused && self.shared.refusals.is_none()) {
                self.flush().await?;
            }
        }
        self.rows.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }

    async fn close(&mut self) -> Result<()> {
        self.flush().await?;
        let start = Instant::now();
        let mut ended = Ok(());
        while let Some(done) = self.tasks.join_next().await {
            ended = ended.and(task_result(done));
        }
        self.shared.step.add_waiting_output(start.elapsed());
        ended
    }
}

fn task_result(done: Result<Result<()>, tokio::task::JoinError>) -> Result<()> {
    done.unwrap_or_else(|cause| Err(Error::internal("a task of the load failed").cause(cause)))
}

impl RowWriter {
    /// A writer for one partition. Rows are counted in `rows`, and numbered in `arrivals` if their order of arrival is
    /// sent.
    pub(super) fn new(
        shared: Arc<Shared>,
        schema: &SchemaRef,
        io: Handle,
        budget: Arc<Budget>,
        rows: &Arc<AtomicU64>,
        arrivals: Option<&Arc<AtomicU64>>,
    ) -> Self {
        RowWriter {
            encoder: shared.server.encoder(&shared.bulk, schema, &shared.spec),
            columns: (0..schema.fields().len()).collect(),
            group: None,
            kept: Vec::new(),
            tasks: JoinSet::new(),
            rows: Arc::clone(rows),
            arrivals: arrivals.cloned(),
            shared,
            io,
            budget,
        }
    }

    /// Sends the group as soon as a connection is free.
    async fn flush(&mut self) -> Result<()> {
        let Some(mut group) = self.group.take().filter(|group| !group.is_empty()) else { return Ok(()) };
        let (own, kept) = (std::mem::take(&mut group.refused), std::mem::take(&mut self.kept));
        if self.shared.refusals.is_none() && !own.is_empty() {
            return Err(refused(own, Vec::new(), &[]).into_error(&self.shared.target));
        }
        let start = Instant::now();
        let permit = self.shared.pool.permit().await?;
        self.shared.step.add_waiting_output(start.elapsed());
        while let Some(done) = self.tasks.try_join_next() {
            task_result(done)?;
        }
        let (shared, rows) = (Arc::clone(&self.shared), group.sealed());
        self.tasks.spawn_on(
            async move {
                let sent = send(&shared, rows, own, kept).await;
                drop(permit);
                sent.map_err(|error| shared.error_of_target(error))
            },
            &self.io,
        );
        Ok(())
    }
}

/// Sends a group, in a transaction of its own unless the whole load is one. `own` of its rows could not be encoded;
/// `kept` are all original rows.
async fn send(shared: &Shared, rows: Rows, own: Vec<BadRow>, kept: Vec<RecordBatch>) -> Result<()> {
    let mut connection = shared.pool.take().await?;
    let mut tries = 0;
    let accepted = loop {
        match try_send(shared, connection.as_mut(), &rows, &own, &kept).await {
            Err(Failure::Again { error, undone, waited }) => {
                if tries >= shared.spec.retries || (undone && shared.scope == Scope::Savepoint) {
                    let failure = Failure::Again { error, undone, waited };
                    return Err(blamed(connection.as_mut(), &[&shared.bulk.table], failure).await);
                }
                connection.execute(shared.scope.roll_back()).await.map_err(Failure::into_error)?;
                pause(tries).await;
                tries += 1;
            }
            other => break other.map_err(Failure::into_error)?,
        }
    };
    shared.record_detour(connection.as_ref());
    shared.pool.give(connection);
    accepted?;
    shared.step.add_bytes(rows.part(0..rows.count()).len() as u64);
    Ok(())
}

/// Sends the rows, except those that may be left out; the inner error is that of rows that may not.
async fn try_send(
    shared: &Shared,
    connection: &mut dyn Connection,
    rows: &Rows,
    own: &[BadRow],
    kept: &[RecordBatch],
) -> Result<Result<()>, Failure> {
    connection.execute(shared.scope.begin()).await?;
    let room = shared.refusals.as_ref().map_or(0, |refusals| refusals.room(rows.count() as u64));
    let most = room.saturating_sub(own.len()).saturating_add(1).max(SHOWN_BAD_ROWS);
    let mut bad = bisect::load(shared.server.as_ref(), connection, &shared.bulk, rows, most).await?;
    bad.iter_mut().for_each(|row| row.reason = shared.of_target(&row.reason));
    if shared.spec.mode.is_in_step() {
        // The staging table refuses them, not the target.
        let twice = bad.iter_mut().filter(|row| row.kind == RejectKind::Duplicate);
        twice.for_each(|row| row.hint = Some(shared.spec.in_step().duplicate_hint().to_owned()));
    }
    let count = (own.len() + bad.len()) as u64;
    if count > 0 {
        let all = Refused { more: bad.len() >= most, ..refused(own.to_vec(), bad, kept) };
        let accepted = match &shared.refusals {
            Some(refusals) => refusals.refuse(&shared.target, &all),
            None => Err(all.into_error(&shared.target)),
        };
        if let Err(error) = accepted {
            connection.execute(shared.scope.roll_back()).await?;
            return Ok(Err(error));
        }
        shared.refused.fetch_add(count, Ordering::Relaxed);
    }
    connection.execute(shared.scope.keep()).await?;
    Ok(Ok(()))
}

/// The bad rows of a group, each with its original row from `kept`.
fn refused(own: Vec<BadRow>, bad: Vec<BadRow>, kept: &[RecordBatch]) -> Refused {
    let record = |row: usize| {
        let mut left = row;
        let batch = kept.iter().find(|batch| {
            let here = left < batch.num_rows();
            left -= if here { 0 } else { batch.num_rows() };
            here
        })?;
        Some(batch.slice(left, 1))
    };
    let rows = numbered(own, bad).into_iter().map(|(row, one)| one.into_refused_row(row as u64, record(row)));
    Refused { rows: rows.collect(), more: false }
}
