//! Epochs that are being written. The first one has its turn; the next one may send its rows meanwhile, if all of its
//! targets take that: what moves its positions is known when the first one is committed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::sink::Delivered;
use millstream_core::{Error, Result, fail_point};
use tokio::task::{JoinHandle, JoinSet};

use super::epoch::{Epoch, has_sink};
use super::parts::{self, Part};
use super::{Consuming, Heard, Tell};
use crate::chunks::epochs::{EpochLoad, Waits};
use crate::chunks::group::{ChunkRows, counts};
use crate::chunks::messages::MessageReader;
use crate::chunks::turn::{Turn, TurnGiver};
use crate::options::Cancel;
use crate::stages::OpenStage;

/// An epoch that is being written, unless it is dropped.
pub(super) struct Writing {
    /// One task, which ends when all sinks have done what they could.
    task: JoinSet<Result<Done>>,
    /// What begins the turns of its deliveries.
    turns: Vec<(usize, Vec<u64>, TurnGiver)>,
}

/// What the sinks have done with an epoch.
pub(super) struct Done {
    /// Its batches, and how many messages each has.
    batches: Vec<(u64, u64)>,
    parts: Vec<DonePart>,
    stage: OpenStage,
}

/// What a sink has done with an epoch, or with what it has of one place.
struct DonePart {
    /// The number of the sink.
    sink: usize,
    batches: Vec<u64>,
    /// `None` if its target was away when the run was to end.
    result: Result<Option<Delivered>>,
}

/// Waits for the first of the epochs that are being written.
pub(super) async fn written(writing: &mut VecDeque<Writing>) -> Result<Done> {
    let Some(first) = writing.front_mut() else { return std::future::pending().await };
    let done = first.task.join_next().await;
    writing.pop_front();
    done.ok_or_else(|| Error::internal("an epoch was written twice"))?.map_err(failed)?
}

fn failed(cause: tokio::task::JoinError) -> Error {
    Error::internal("writing failed").cause(cause)
}

impl Consuming<'_, '_> {
    /// Whether the closed epoch can be written now.
    pub(super) fn may_write(&self) -> bool {
        let takes_ahead = |epoch: &Epoch| {
            let sinks = epoch.sinks().unwrap_or_default();
            let takes =
                |(number, sink): (usize, &super::EpochSink<'_>)| !has_sink(sinks, number) || sink.load.takes_ahead();
            self.sinks.iter().enumerate().all(takes)
        };
        match self.writing.len() {
            0 => true,
            1 => self.closed.as_ref().is_some_and(takes_ahead),
            _ => false,
        }
    }

    /// Begins to write an epoch into all sinks that lack it; without the batches that were dropped since it was closed,
    /// which nothing would move behind.
    pub(super) async fn write(&mut self, mut epoch: Epoch) {
        let dropped: Vec<u64> = epoch.numbers().into_iter().filter(|batch| !self.consumer.has(*batch)).collect();
        let lost = epoch.drop_batches(&dropped, &self.reader, &self.sinks).await;
        self.end.lost(lost);
        if epoch.is_empty() {
            return;
        }
        let stage = self.work.run.stages.begin_epoch(epoch.messages);
        let (sinks, batches) = (epoch.sinks().unwrap_or_default(), epoch.sizes());
        let (mut turns, mut deliveries, mut passed) = (Vec::new(), Vec::new(), Vec::new());
        self.epochs += 1;
        // The first sink comes last, and takes the rows with what was refused of them.
        for sink in (0..self.sinks.len()).rev() {
            let load = &self.sinks[sink].load;
            if !has_sink(sinks, sink) {
                passed.push(Arc::clone(load));
                continue;
            }
            let waits = Arc::new(self.waits());
            for part in self.parts(sink, &batches) {
                let places = part.iter().map(|batch| self.consumer.place(*batch)).collect();
                let (giver, turn) = load.turn(self.epochs, places);
                turns.push((sink, part.clone(), giver));
                let (load, waits) = (Arc::clone(load), Arc::clone(&waits));
                deliveries.push(PartDelivery { sink, batches: part, load, turn, waits });
            }
        }
        let workers = self.work.run.runtimes.workers();
        let writer = EpochWriter { reader: Arc::clone(&self.reader), deliveries, passed };
        let mut task = JoinSet::new();
        task.spawn_on(
            async move {
                let rows = parsed(&batches, epoch.rows).await?;
                Ok(Done { parts: writer.write(rows).await?, batches, stage })
            },
            &workers,
        );
        self.writing.push_back(Writing { task, turns });
        if self.writing.len() == 1 {
            self.give_turns();
        }
    }

    /// The first one of the epochs has its turn, except for what the queue has taken back since.
    fn give_turns(&mut self) {
        let Some(first) = self.writing.front_mut() else { return };
        for (sink, batches, giver) in first.turns.drain(..) {
            if batches.iter().all(|batch| self.consumer.has(*batch)) {
                giver.give(self.consumer.moves(sink, &batches));
            }
        }
    }

    /// The batches that `sink` takes in one delivery each; `batches` are numbers, each with how many messages it has.
    fn parts(&self, sink: usize, batches: &[(u64, u64)]) -> Vec<Vec<u64>> {
        let load = &self.sinks[sink].load;
        let messages = batches.iter().map(|(_, messages)| messages).sum();
        let most = if load.is_by_place() { usize::MAX } else { parts::worthwhile(load.connections(), messages) };
        if most == 1 {
            return vec![batches.iter().map(|(batch, _)| *batch).collect()];
        }
        let part = |&(batch, messages): &(u64, u64)| Part { place: self.consumer.place(batch), batch, messages };
        parts::split(batches.iter().map(part), most)
    }

    fn waits(&self) -> ReportedOnce {
        ReportedOnce { tell: Arc::clone(&self.tell), waiting: Mutex::new(0), cancel: self.work.cancel.clone() }
    }

    /// All sinks have done what they could with the first one of the epochs; the next one has its turn.
    pub(super) async fn written(&mut self, done: Done) -> Result<()> {
        self.settle(done).await?;
        self.give_turns();
        Ok(())
    }

    async fn settle(&mut self, done: Done) -> Result<()> {
        let Done { batches, parts, stage } = done;
        self.reader.is_done_with(batches.iter().map(|(batch, _)| *batch));
        let monitor = &self.work.run.monitor;
        let (mut undone, mut is_given_up, mut failed) = (BTreeSet::new(), false, None);
        for DonePart { sink, batches, result } in parts {
            match result {
                Ok(Some(Delivered::Written { .. })) => {
                    monitor.count_epochs(|epochs| epochs.commits += 1);
                    self.sinks[sink].known.has_begun();
                    self.consumer.committed(sink, &batches).await?;
                    continue;
                }
                Ok(Some(Delivered::Moved(positions) | Delivered::Unknown(positions))) => {
                    self.consumer.moved(sink, &batches, positions).await?;
                }
                Ok(Some(Delivered::AlreadyDone(_))) => failed = Some(Error::internal("positions have no chunks")),
                Ok(None) => is_given_up = true,
                Err(error) => failed = Some(error),
            }
            undone.extend(batches);
        }
        let (again, all_done): (Vec<_>, Vec<_>) = batches.into_iter().partition(|(batch, _)| undone.contains(batch));
        if is_given_up || failed.is_some() {
            monitor.count_epochs(|epochs| epochs.dropped += 1);
            self.consumer.give_back(&undone.into_iter().collect::<Vec<_>>()).await?;
            return failed.map_or(Ok(()), Err);
        }
        fail_point::pass("epoch.committed");
        monitor.count_epochs(|epochs| if again.is_empty() { epochs.committed += 1 } else { epochs.repeated += 1 });
        stage.end();
        self.end.lost(again.into_iter().map(|(_, messages)| messages).sum());
        self.consumer.acknowledge(&all_done.into_iter().map(|(batch, _)| batch).collect::<Vec<_>>()).await
    }
}

/// The rows of each batch, once they are parsed.
async fn parsed(
    batches: &[(u64, u64)],
    parsing: Vec<JoinHandle<Result<Vec<ChunkRows>>>>,
) -> Result<BTreeMap<u64, Vec<ChunkRows>>> {
    let mut rows = BTreeMap::new();
    for ((batch, _), parsing) in batches.iter().zip(parsing) {
        rows.insert(*batch, parsing.await.map_err(|cause| Error::internal("parsing failed").cause(cause))??);
    }
    Ok(rows)
}

/// Writes an epoch.
struct EpochWriter {
    reader: Arc<MessageReader>,
    /// Those into the first sink come last.
    deliveries: Vec<PartDelivery>,
    /// The sinks that have it.
    passed: Vec<Arc<EpochLoad>>,
}

/// Batches that a sink takes in one delivery.
struct PartDelivery {
    sink: usize,
    batches: Vec<u64>,
    load: Arc<EpochLoad>,
    turn: Turn,
    waits: Arc<ReportedOnce>,
}

impl EpochWriter {
    /// Writes the rows of its batches, by number.
    async fn write(self, mut rows: BTreeMap<u64, Vec<ChunkRows>>) -> Result<Vec<DonePart>> {
        self.passed.iter().for_each(|load| rows.values().for_each(|rows| load.pass(rows)));
        let mut writing = JoinSet::new();
        for part in self.deliveries {
            let of_batch = |batch: &u64| match part.sink {
                0 => rows.remove(batch).unwrap_or_default(),
                _ => rows.get(batch).into_iter().flatten().map(ChunkRows::for_another_sink).collect(),
            };
            let rows = part.batches.iter().flat_map(of_batch).collect();
            writing.spawn(part.deliver(rows, Arc::clone(&self.reader)));
        }
        let mut done = Vec::new();
        while let Some(part) = writing.join_next().await {
            done.push(part.map_err(failed)?);
        }
        Ok(done)
    }
}

impl PartDelivery {
    async fn deliver(self, rows: Vec<ChunkRows>, reader: Arc<MessageReader>) -> DonePart {
        let PartDelivery { sink, batches, load, turn, waits } = self;
        let (count, rejected) = counts(&rows);
        let result = load.deliver(rows, turn, waits.as_ref()).await;
        if sink == 0 && !matches!(result, Ok(Some(Delivered::Written { .. }))) {
            reader.come_again(count, rejected);
        }
        DonePart { sink, batches, result }
    }
}

/// Reports once that a target is away, and once that it is back, however many deliveries of an epoch wait for it.
struct ReportedOnce {
    tell: Tell,
    /// How many deliveries wait.
    waiting: Mutex<usize>,
    cancel: Cancel,
}

#[async_trait]
impl Waits for ReportedOnce {
    fn waiting(&self, sink: &str, error: &Error) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        *waiting += 1;
        if *waiting == 1 {
            (self.tell)(Heard::Away { of: sink.to_owned(), error: error.clone() });
        }
    }

    fn back(&self, sink: &str) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        *waiting = waiting.saturating_sub(1);
        if *waiting == 0 {
            (self.tell)(Heard::Back { of: sink.to_owned() });
        }
    }

    async fn pause(&self, pause: Duration) -> bool {
        tokio::time::timeout(pause, self.cancel.cancelled()).await.is_ok()
    }
}
