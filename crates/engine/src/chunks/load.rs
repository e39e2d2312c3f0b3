//! A load chunk by chunk: who reads, who delivers, and what is held back.
//!
//! The last groups of all tasks wait until everything has been read: so of a small load nothing is seen if any of its
//! files is bad, and many small files go in few transactions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arrow::array::{AsArray, UInt64Array};
use arrow::datatypes::UInt64Type;
use datafusion::execution::TaskContext;
use futures::{StreamExt, TryStreamExt};
use millstream_core::sink::{Chunk, Delivered, Ledger};
use millstream_core::{Budget, Error, ErrorKind, Result, Step, Unit};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};

use super::group::{Group, cut};
use super::units::Units;
use super::way::Leg;
use super::{chunk_bytes, instance};
use crate::fault;
use crate::read::rows::{MemberPlace, Piece};

/// Groups that are delivered at once: one on each of two connections, and one that is being encoded.
const DELIVERIES: usize = 3;

/// The least and most text of a group, in bytes.
const GROUP_BYTES: (usize, usize) = (1 << 20, 8 << 20);

/// How often a delivery is tried again of which nothing is in the target.
const RETRIES: u32 = 5;

/// The first pause before that; each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The most changed units that are named.
const MOST_NAMED: usize = 10;

/// What a load chunk by chunk is made from.
pub struct ChunkLoad {
    /// The sink's name.
    pub name: String,
    /// The ways to it.
    pub legs: Vec<Leg>,
    /// What is in the target, and goes there.
    pub ledger: Arc<dyn Ledger>,
    /// The counters of the sink.
    pub step: Arc<Step>,
    /// What groups are charged to.
    pub budget: Arc<Budget>,
    /// Of the operators.
    pub context: Arc<TaskContext>,
    /// Where reading and encoding are done.
    pub workers: Handle,
    /// Whether units that have changed are loaded as they are now.
    pub accept_changed: bool,
}

/// What a load has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loaded {
    /// Rows written by this run.
    pub rows: u64,
    /// Units that earlier runs had loaded.
    pub units_before: u64,
    /// Whether everything was there before.
    pub nothing_new: bool,
}

/// The note that all units of the load are complete.
fn all_complete() -> Chunk {
    Chunk { unit: String::new(), number: 0 }
}

/// Whether the ledger has noted that `load` is complete.
pub async fn is_complete(ledger: &dyn Ledger, load: &str) -> Result<bool> {
    Ok(ledger.written_of(load).await?.contains(&all_complete()))
}

/// Notes in the ledger that the load is complete.
pub async fn note_complete(ledger: &dyn Ledger) -> Result<Delivered> {
    ledger.delivery(vec![all_complete()], 0).await?.commit().await
}

struct Loading {
    load: ChunkLoad,
    units: Vec<Arc<Units>>,
    /// Bytes of text of a group.
    group_bytes: usize,
    chunk_bytes: u64,
    /// Notes of units that are complete, for whichever group goes next.
    notes: Mutex<Vec<Chunk>>,
    rows: Arc<AtomicU64>,
}

impl ChunkLoad {
    /// Reads and delivers everything that is not in the target. `rows` counts what has become visible.
    pub async fn run(self, rows: Arc<AtomicU64>) -> Result<Loaded> {
        let written = Arc::new(self.ledger.written().await?);
        let of_leg = |leg: &Leg| Units::new(leg.read().source(), Arc::clone(&written), self.accept_changed);
        let units = self.legs.iter().map(|leg| Arc::new(of_leg(leg))).collect();
        let group_bytes = (self.budget.limit() / 32).clamp(GROUP_BYTES.0, GROUP_BYTES.1);
        let chunk_bytes = chunk_bytes();
        let group_bytes = group_bytes.min(usize::try_from(chunk_bytes).unwrap_or(usize::MAX).saturating_mul(8));
        let notes = Mutex::default();
        let loading = Arc::new(Loading { load: self, units, group_bytes, chunk_bytes, notes, rows });
        let held_back = loading.clone().read_all().await?;
        loading.clone().deliver_all(held_back).await?;
        loading.end(written.is_empty()).await
    }
}

impl Loading {
    /// Reads everything, delivers what is full, and gives back what is held back.
    async fn read_all(self: Arc<Self>) -> Result<Vec<Group>> {
        let (sender, mut groups) = mpsc::channel::<Group>(1);
        let mut readers = JoinSet::new();
        for (leg, way) in self.load.legs.iter().enumerate() {
            for partition in 0..way.read().partitions() {
                readers.spawn_on(Arc::clone(&self).read(leg, partition, sender.clone()), &self.load.workers);
            }
        }
        drop(sender);
        let (mut deliveries, mut held_back) = (JoinSet::new(), Vec::new());
        loop {
            let idle = deliveries.is_empty().then(Instant::now);
            tokio::select! {
                biased;
                Some(done) = deliveries.join_next() => joined(done)?,
                Some(done) = readers.join_next() => held_back.extend(joined(done)?),
                group = groups.recv(), if deliveries.len() < DELIVERIES => match group {
                    Some(group) => {
                        deliveries.spawn_on(Arc::clone(&self).deliver(group), &self.load.workers);
                    }
                    None => break,
                },
            }
            if let Some(since) = idle {
                self.load.step.add_waiting_input(since.elapsed());
            }
        }
        while let Some(done) = readers.join_next().await {
            held_back.extend(joined(done)?);
        }
        while let Some(done) = deliveries.join_next().await {
            joined(done)?;
        }
        Ok(held_back)
    }

    /// Reads what one task reads; gives back the rows that are not enough for a group.
    async fn read(self: Arc<Self>, leg: usize, partition: usize, groups: mpsc::Sender<Group>) -> Result<Option<Group>> {
        let (read, units) = (self.load.legs[leg].read(), Arc::clone(&self.units[leg]));
        let (of_reader, admitting) = (Arc::clone(read.reader()), Arc::clone(&units));
        let admit = move |unit: &Unit| {
            let admitted = admitting.admit(unit)?;
            if !admitted {
                of_reader.steps.fetch.expect_less(unit.size.unwrap_or(0));
                of_reader.steps.fetch.add_units(1);
            }
            Ok(admitted)
        };
        let pieces = read.pieces(partition, Arc::clone(&self.load.context), admit).map_err(fault::unwrap)?;
        tokio::pin!(pieces);
        let mut group: Option<Group> = None;
        let mut member: Option<(Arc<str>, MemberPlace)> = None;
        while let Some((uri, piece)) = pieces.try_next().await? {
            tokio::task::yield_now().await;
            let unit = units.notes(&uri)?;
            let rows = match piece {
                Piece::Rows(rows) => rows,
                Piece::End => {
                    let own = group.as_mut().filter(|group| group.has(&unit));
                    match (unit.end(own.is_some()), own) {
                        (Some(note), Some(group)) => group.complete(&unit, note),
                        (Some(note), None) => self.add_notes(unit.version_note().into_iter().chain([note])),
                        (None, _) => {}
                    }
                    units.complete(&uri);
                    continue;
                }
            };
            if member.as_ref().is_none_or(|(last, member)| *last != uri || *member != rows.member) {
                unit.begin_member(&rows.member).map_err(|error| error.in_step(read.source()))?;
                member = Some((Arc::clone(&uri), rows.member.clone()));
            }
            for rows in cut(rows, &unit, self.chunk_bytes)? {
                if units.is_written(&rows.chunk) {
                    continue;
                }
                if let Some(full) = group.take_if(|group| group.is_full(self.group_bytes, &rows.chunk))
                    && groups.send(full).await.is_err()
                {
                    return Err(Error::internal("nobody takes the rows"));
                }
                group.get_or_insert_with(|| Group::new(leg, &self.load.budget)).push(rows);
            }
        }
        Ok(group)
    }

    /// Delivers what was held back, in as few groups as memory allows.
    async fn deliver_all(self: Arc<Self>, held_back: Vec<Group>) -> Result<()> {
        let mut groups: Vec<Group> = Vec::new();
        for group in held_back {
            let left = match groups.last_mut() {
                Some(last) => last.absorb(group, self.group_bytes),
                None => Some(group),
            };
            groups.extend(left);
        }
        let mut deliveries = JoinSet::new();
        for group in groups {
            if deliveries.len() == DELIVERIES
                && let Some(done) = deliveries.join_next().await
            {
                joined(done)?;
            }
            deliveries.spawn_on(Arc::clone(&self).deliver(group), &self.load.workers);
        }
        while let Some(done) = deliveries.join_next().await {
            joined(done)?;
        }
        Ok(())
    }

    /// Notes what is still to be noted. Units that have changed are told.
    async fn end(self: Arc<Self>, was_empty: bool) -> Result<Loaded> {
        let changed: Vec<String> = self.units.iter().flat_map(|units| units.changed()).collect();
        Arc::clone(&self).deliver(Group::new(0, &self.load.budget)).await?;
        if !changed.is_empty() {
            return Err(changed_units(changed).in_step(&self.load.name));
        }
        let units_before = self.units.iter().map(|units| units.passed_over()).sum();
        let rows = self.rows.load(Ordering::Relaxed);
        Ok(Loaded { rows, units_before, nothing_new: rows == 0 && !was_empty })
    }

    fn add_notes(&self, notes: impl IntoIterator<Item = Chunk>) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).extend(notes);
    }

    /// Delivers a group, as often as it takes.
    async fn deliver(self: Arc<Self>, mut group: Group) -> Result<()> {
        group.note(std::mem::take(&mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner)));
        let mut tries = 0;
        while !group.is_empty() {
            match self.try_deliver(&group).await {
                Ok(Delivered::Written { rows, .. }) => {
                    self.load.step.add_rows(rows);
                    self.rows.fetch_add(rows, Ordering::Relaxed);
                    break;
                }
                Ok(Delivered::AlreadyDone(chunks)) => {
                    if !group.leave_out(&chunks) {
                        return Err(
                            Error::internal("the ledger refuses chunks that it does not have").in_step(&self.load.name)
                        );
                    }
                }
                Err(error) if error.kind() == ErrorKind::Transient && tries < RETRIES => {
                    tokio::time::sleep(FIRST_PAUSE * 2_u32.pow(tries)).await;
                    tries += 1;
                }
                Err(error) => return Err(error.in_step(&self.load.name)),
            }
        }
        self.add_notes(group.written());
        Ok(())
    }

    async fn try_deliver(&self, group: &Group) -> Result<Delivered> {
        let mut delivery = self.load.ledger.delivery(group.chunks(), 0).await?;
        // Which rows of the group went into the delivery.
        let mut numbers: Vec<UInt64Array> = Vec::new();
        if group.has_rows() {
            let batch_rows = self.load.context.session_config().batch_size();
            let plan = instance::over(&self.load.legs[group.leg], group.batches(), batch_rows);
            let rows = plan.and_then(|plan| plan.execute(0, Arc::clone(&self.load.context)));
            let mut rows = rows.map_err(fault::unwrap)?;
            while let Some(batch) = rows.next().await {
                let batch = batch.map_err(fault::unwrap)?;
                let number = batch.num_columns() - 1;
                numbers.push(batch.column(number).as_primitive::<UInt64Type>().clone());
                let columns: Vec<usize> = (0..number).collect();
                let batch = batch
                    .project(&columns)
                    .map_err(|cause| Error::internal("the columns of a batch do not fit together").cause(cause))?;
                delivery.write(batch).await?;
                tokio::task::yield_now().await;
            }
        }
        let delivered = delivery.commit().await?;
        let sent: usize = numbers.iter().map(UInt64Array::len).sum();
        if let Delivered::Written { rows, refused } = &delivered
            && *rows + refused.len() as u64 != sent as u64
        {
            return Err(Error::internal(format!("of {sent} rows {rows} were written")));
        }
        if let Delivered::Written { refused, .. } = &delivered
            && let Some(first) = refused.first()
        {
            let mut row = usize::try_from(first.row).unwrap_or(usize::MAX);
            let number = numbers.iter().find_map(|numbers| {
                let here = row < numbers.len();
                let number = here.then(|| numbers.value(row));
                row = row.saturating_sub(numbers.len());
                number
            });
            let error = Error::data("a row is not taken").text(&first.shown).cause(&first.reason);
            return Err(number.and_then(|number| group.origin(number)).map_or(error.clone(), |at| at.place(error)));
        }
        Ok(delivered)
    }
}

/// Units that are not any more what was loaded of them.
fn changed_units(changed: Vec<String>) -> Error {
    let shown: Vec<&str> = changed.iter().take(MOST_NAMED).map(String::as_str).collect();
    let more = if changed.len() > MOST_NAMED { ", …" } else { "" };
    let what = match changed.len() {
        1 => "a file has changed since it was loaded".to_owned(),
        count => format!("{count} files have changed since they were loaded"),
    };
    Error::refused(what).text(format!("{}{more}", shown.join(", "))).hint(
        "everything else is loaded; `--accept-changed` loads them as they are now, beside the rows that were loaded of them \
         before",
    )
}

fn joined<T>(done: std::result::Result<Result<T>, JoinError>) -> Result<T> {
    done.unwrap_or_else(|join| Err(Error::internal("a task failed").cause(join)))
}
