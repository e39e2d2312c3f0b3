//! Files of partitions: their positions, and how those move.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt};
use millstream_core::epochs::{Epochs, QueueLoad};
use millstream_core::positions::{Change, Move, Moved, PartitionPosition, Position, Positions};
use millstream_core::sink::Delivery;
use millstream_core::{Error, ErrorKind, Result, fail_point};
use tokio::sync::OwnedMutexGuard;

use super::delivery::PartitionDelivery;
use super::keeper::{Published, Unkept};
use super::record::{By, Claim, EpochFile, Kept, PositionRecord};
use super::writing::Files;
use crate::moves;

/// The first pause before a store is asked again that did not answer, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// How often a record is written anew whose version in the store has changed while its position has not.
const TRIES: usize = 10;

/// How often it is looked for what has become of a file that is neither staged nor there, and how long between: the
/// process that has made it appear may be about to note that.
const LOOKS: (usize, Duration) = (5, Duration::from_millis(200));

/// How many partitions are looked at or committed at once.
const AT_ONCE: usize = 16;

/// The last record of a partition, as far as it is known. Locked while this process moves the position.
type Known = Arc<tokio::sync::Mutex<Option<Kept>>>;

/// Files of a queue with partitions, exactly once.
pub(super) struct PartitionFiles(Arc<Partitions>);

/// Shared by the deliveries.
pub(super) struct Partitions {
    pub(super) files: Arc<Files>,
    known: Mutex<HashMap<u32, Known>>,
    is_ending: AtomicBool,
}

impl PartitionFiles {
    /// Opens the files of `load`.
    ///
    /// # Errors
    /// If they belong to another one.
    pub(super) async fn open(files: Arc<Files>, load: &QueueLoad) -> Result<Arc<Self>> {
        moves::check_owner(&load.owner)?;
        files.keeper.prepare().await?;
        let own = Claim::new(&load.load, &files.context.sink, &load.queue.shown, &load.queue.group);
        let kept = Claim::of_text(&files.keeper.claim(own.to_text()?).await?, &files.keeper.shown())?;
        if kept.load != own.load {
            return Err(is_foreign(&files, &kept));
        }
        let partitions = Partitions { files, known: Mutex::default(), is_ending: AtomicBool::new(false) };
        Ok(Arc::new(PartitionFiles(Arc::new(partitions))))
    }
}

/// What has become of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Made {
    /// It is made.
    Done,
    /// It is not: the position stands elsewhere.
    Elsewhere,
    /// The position was moved on, and it is not known whether from where this move has brought it.
    Unknown,
}

impl Partitions {
    async fn lock(&self, partition: u32) -> OwnedMutexGuard<Option<Kept>> {
        let known = {
            let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(partition).or_default())
        };
        known.lock_owned().await
    }

    /// The last record of a partition, if it is the one that `from` names; otherwise it is asked for. The file of that
    /// one has appeared: no other is written behind it before.
    async fn last(&self, partition: u32, known: &Option<Kept>, from: Option<u64>) -> Result<Option<Kept>> {
        match known {
            Some(kept) if Some(kept.record.moves) == from => Ok(Some(kept.clone())),
            _ => {
                let last = self.files.keeper.of(partition).await?;
                if let Some(kept) = last.as_ref().filter(|kept| Some(kept.record.moves) == from) {
                    self.publish(partition, kept).await?;
                }
                Ok(last)
            }
        }
    }

    /// Begins to write the rows that `one` moves a position behind.
    async fn begin(self: Arc<Self>, one: Move) -> Result<PartitionDelivery> {
        let partition = partition_of(&one)?;
        let mut known = self.lock(partition).await;
        *known = self.last(partition, &known, one.from).await?;
        let at = match &*known {
            Some(kept) if Some(kept.record.moves) == one.from => {
                let first = kept.record.partition()?.next;
                Some((partition, self.files.path(&format!("{partition:05}-{first:020}"))?))
            }
            _ => None,
        };
        drop(known);
        Ok(PartitionDelivery { partitions: self, one, at, writing: None })
    }

    /// Makes the move `one`, and lets `file` appear with it; if the position stands elsewhere, the file is given up.
    pub(super) async fn make(self: &Arc<Self>, one: &Move, file: Option<EpochFile>) -> Result<Made> {
        let partition = partition_of(one)?;
        let mut known = self.lock(partition).await;
        let attempt = self.files.unique();
        let mut is_attempted = false;
        let kept = match self.commit(&mut known, one, &attempt, file.clone(), &mut is_attempted).await {
            Ok(Some(kept)) => kept,
            Ok(None) => {
                self.discard(file).await;
                return Ok(if is_attempted { Made::Unknown } else { Made::Elsewhere });
            }
            Err(Unkept { error, may_be_kept }) => {
                if !may_be_kept {
                    self.discard(file).await;
                }
                return Err(error);
            }
        };
        fail_point::pass("files.committed");
        self.publish(partition, &kept).await?;
        file.iter().for_each(|_| self.files.made_one());
        fail_point::pass("files.made");
        self.settle(partition, known, kept);
        Ok(Made::Done)
    }

    /// Moves the position; `None` if it stands elsewhere. Notes whether a record was attempted that may have been the
    /// last one for a while.
    async fn commit(
        &self,
        known: &mut Option<Kept>,
        one: &Move,
        attempt: &str,
        file: Option<EpochFile>,
        is_attempted: &mut bool,
    ) -> Result<Option<Kept>, Unkept> {
        let partition = partition_of(one)?;
        let to = one.to.as_ref().ok_or_else(|| Error::internal("a partition's position was to be removed"))?;
        for _ in 0..TRIES {
            let last = self.last(partition, known, one.from).await?;
            *known = None;
            let moves = last.as_ref().map(|kept| kept.record.moves);
            if moves != one.from {
                // Its file may have been seen to by another process, before the answer was lost.
                let is_own = |kept: &Kept| kept.record.attempt == attempt;
                // Of two records of one number only the first was ever the last.
                *is_attempted &= moves.is_none_or(|moves| moves > one.from.unwrap_or(0) + 1);
                return Ok(last.filter(is_own));
            }
            if let Some(file) = &file
                && self.files.keeper.exists(&file.path).await?
            {
                let now = self.files.keeper.of(partition).await?;
                return match now.map(|kept| kept.record.moves) == one.from {
                    true => Err(is_in_the_way(&self.files, &file.path).into()),
                    false => Ok(None),
                };
            }
            let by = By { owner: &self.files.owner, attempt, file: file.clone() };
            *is_attempted = true;
            let record = PositionRecord::new(&one.place, moves.unwrap_or(0), to, by);
            if let Some(kept) = self.keep(partition, &record, last.as_ref()).await? {
                return Ok(Some(kept));
            }
        }
        let what = format!("the position of `{}` in {} was not moved", one.place, self.files.keeper.shown());
        Err(Error::transient(what).cause(format!("other processes have changed it {TRIES} times meanwhile")).into())
    }

    /// Keeps a record behind `before`; `None` if another one is the last. What has become of it is asked for as long as
    /// that is not known, unless the run is to end or the answer stays an error.
    async fn keep(
        &self,
        partition: u32,
        record: &PositionRecord,
        before: Option<&Kept>,
    ) -> Result<Option<Kept>, Unkept> {
        let (keeper, may_be_kept) = (&self.files.keeper, &AtomicBool::new(false));
        let keeping = || async move {
            keeper.keep(partition, record, before).await.map_err(|unkept| {
                may_be_kept.fetch_or(unkept.may_be_kept, Ordering::Relaxed);
                unkept.error
            })
        };
        let error = match self.until_known("a position was moved", keeping).await {
            Ok(kept) => return Ok(kept),
            Err(error) => error,
        };
        let unkept = Unkept { error, may_be_kept: may_be_kept.load(Ordering::Relaxed) };
        if !unkept.may_be_kept || unkept.error.kind() == ErrorKind::Interrupted {
            return Err(unkept);
        }
        match keeper.of(partition).await {
            Ok(Some(last)) if last.record.attempt == record.attempt => {
                keeper.keep(partition, record, before).await.map_err(|_| unkept)
            }
            // If it was kept, its file has appeared before others were written behind it.
            Ok(Some(last)) if last.record.moves >= record.moves => Ok(None),
            // A request that was given up may still be on its way.
            _ => Err(unkept),
        }
    }

    /// Lets the file of `kept`, the last record of its partition, appear.
    async fn publish(&self, partition: u32, kept: &Kept) -> Result<()> {
        let Some(file) = kept.record.staged() else { return Ok(()) };
        let publishing = || self.files.keeper.publish(file);
        for look in 0..LOOKS.0 {
            if self.until_known("a file that is committed has appeared", publishing).await? != Published::Lost {
                return Ok(());
            }
            let looking = || self.files.keeper.of(partition);
            let now = self.until_known("a file that is committed has appeared", looking).await?;
            if now.is_none_or(|now| now.record != kept.record) {
                // Another process has seen to it since.
                return Ok(());
            }
            if look + 1 < LOOKS.0 {
                tokio::time::sleep(LOOKS.1).await;
            }
        }
        Err(is_lost(&self.files, &file.path, &self.files.keeper.shown_record(partition, &kept.record)))
    }

    /// Tidies up behind a file that has appeared. The next move of the partition waits for that; nobody else does.
    fn settle(self: &Arc<Self>, partition: u32, mut known: OwnedMutexGuard<Option<Kept>>, kept: Kept) {
        let files = Arc::clone(&self.files);
        let settling = async move { *known = files.keeper.settle(partition, kept).await };
        drop(self.files.context.io.spawn(settling));
    }

    pub(super) async fn discard(&self, file: Option<EpochFile>) {
        if let Some(file) = file {
            self.files.keeper.discard(&file).await;
        }
    }

    /// Where the place of `one` stands now.
    pub(super) async fn elsewhere(&self, one: &Move) -> Result<Vec<Position>> {
        let kept = self.files.keeper.of(partition_of(one)?).await?;
        Ok(kept.iter().map(|kept| kept.record.position()).collect())
    }

    /// The position of a partition, once its last file has appeared.
    async fn position(self: &Arc<Self>, partition: u32) -> Result<Option<Position>> {
        let mut known = self.lock(partition).await;
        *known = None;
        let Some(kept) = self.files.keeper.of(partition).await? else { return Ok(None) };
        let position = kept.record.position();
        self.publish(partition, &kept).await?;
        self.settle(partition, known, kept);
        Ok(Some(position))
    }

    /// Waits until it is noted of all files that they have appeared.
    async fn all_settled(&self) {
        let all: Vec<Known> = self.known.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        for known in all {
            drop(known.lock().await);
        }
    }

    /// Does `work`, as often as it takes while it cannot be said what has become of it.
    async fn until_known<T, F>(&self, what: &str, work: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        let mut pause = PAUSES.0;
        loop {
            match work().await {
                Err(error) if error.kind() == ErrorKind::Transient => {
                    if self.is_ending.load(Ordering::Relaxed) {
                        let what = format!("{}: the run ended before it was known whether {what}", self.files.shown());
                        let error = Error::new(ErrorKind::Interrupted, what).cause(error.to_string());
                        return Err(error.hint("start the job again: it looks, and continues where the files end"));
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSES.1);
                }
                done => return done,
            }
        }
    }
}

fn partition_of(one: &Move) -> Result<u32> {
    let state = one.to.as_deref().unwrap_or_default();
    PartitionPosition::of(&one.place, state).map(|position| position.partition)
}

fn is_foreign(files: &Files, kept: &Claim) -> Error {
    let job = kept.load.lines().next().unwrap_or_default();
    Error::refused(format!("the files {} belong to another load", files.shown()))
        .cause(format!(
            "the sink `{}` of {job} writes them, from {} in the group `{}`",
            kept.sink, kept.queue, kept.group
        ))
        .hint(format!("write to other files; if that load has ended for good, remove {}", files.keeper.shown()))
}

fn is_in_the_way(files: &Files, path: &str) -> Error {
    let uri = files.target.shown_path(path);
    Error::refused(format!("{uri} exists already, and this load has not made it"))
        .cause("the next file of its partition has this name, by the first offset in it, and no file is written over")
        .hint(
            "if the topic was deleted and created again, or the load begins anew, move its earlier files away; \
             otherwise write to another folder",
        )
}

fn is_lost(files: &Files, path: &str, record: &str) -> Error {
    let uri = files.target.shown_path(path);
    Error::refused(format!("{uri} is missing: its rows were committed, and it is not noted that it has appeared"))
        .cause("what was staged of it is gone, too: somebody, or a rule of the bucket, has removed one of the two")
        .hint(format!(
            "if you have moved the file away, or do not need its rows, set `file` to null in {record}, and start the \
             job again; otherwise restore the file first"
        ))
}

#[async_trait]
impl Epochs for PartitionFiles {
    async fn delivery(&self, mut moves: Vec<Move>, _bad_rows: usize) -> Result<Box<dyn Delivery>> {
        moves::check(&moves)?;
        match (moves.pop(), moves.is_empty()) {
            (Some(one), true) => Ok(Box::new(Arc::clone(&self.0).begin(one).await?)),
            _ => Err(Error::internal("a file was to move the positions of several partitions, or of none")),
        }
    }

    fn target(&self) -> String {
        format!("files {}", self.0.files.shown())
    }

    fn summary(&self, rows: u64) -> String {
        self.0.files.summary(rows)
    }

    fn connections(&self) -> usize {
        AT_ONCE
    }

    fn stop_waiting(&self) -> bool {
        self.0.is_ending.store(true, Ordering::Relaxed);
        true
    }

    async fn settle(&self) {
        self.0.all_settled().await;
    }
}

#[async_trait]
impl Positions for PartitionFiles {
    /// Also lets files appear that are committed, whose processes may have died before they had.
    async fn read(&self) -> Result<Vec<Position>> {
        let partitions = self.0.files.keeper.partitions().await?;
        let each = partitions.into_iter().map(|partition| {
            let shared = Arc::clone(&self.0);
            async move { shared.position(partition).await }
        });
        let found: Vec<Option<Position>> = futures::stream::iter(each).buffered(AT_ONCE).try_collect().await?;
        let mut positions: Vec<Position> = found.into_iter().flatten().collect();
        positions.sort();
        Ok(positions)
    }

    async fn glance(&self) -> Result<Vec<Position>> {
        let mut positions = Vec::new();
        for partition in self.0.files.keeper.partitions().await? {
            positions.extend(self.0.files.keeper.of(partition).await?.map(|kept| kept.record.position()));
        }
        positions.sort();
        Ok(positions)
    }

    /// One after the other: if one cannot be made, those before it stay.
    async fn set(&self, moves: Vec<Move>) -> Result<Moved> {
        moves::check(&moves)?;
        for one in &moves {
            if self.0.make(one, None).await? != Made::Done {
                return Ok(Moved::None(self.0.elsewhere(one).await?));
            }
        }
        Ok(Moved::All)
    }

    /// No process holds a position for others: who is fenced finds that it has moved.
    async fn fence(&self, _place: &str, _wait: Duration, mut change: Change) -> Result<()> {
        loop {
            let moves = change(&self.glance().await?)?;
            if moves.is_empty() || self.set(moves).await? == Moved::All {
                return Ok(());
            }
        }
    }

    async fn connections_of(&self, _owner: &str) -> Result<Option<usize>> {
        Ok(None)
    }

    async fn forget(&self) -> Result<()> {
        self.0.files.keeper.forget().await
    }

    fn is_by_place(&self) -> bool {
        true
    }
}
