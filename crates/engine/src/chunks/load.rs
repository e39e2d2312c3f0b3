//! A load chunk by chunk: who reads, who delivers, and what is held back.
//!
//! The last groups of all tasks wait until everything has been read: so of a small load nothing is seen if any of its
//! files is bad, and many small files go in few transactions.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, UInt64Type};
use arrow::error::ArrowError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use futures::{StreamExt, TryStreamExt};
use millstream_core::sink::{ARRIVAL, Accept, Chunk, Delivered, Delivery, Ledger, SHOWN_BAD_ROWS, WrittenChunks};
use millstream_core::{Budget, Error, ErrorKind, Result, Step, Unit, values};
use millstream_state::ProgressFile;
use millstream_state::rejects::{committed, committed_checks};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinError, JoinSet};

use super::assemble::Assembler;
use super::group::Group;
use super::pipeline::Pipeline;
use super::references::References;
use super::refused::Attempt;
use super::shared::{BundleLoad, ByWorkers};
use super::units::{COMPLETE, ReadWhen, SettledUnit, Slots, Standing, Units, WhenChanged};
use super::versions::Versions;
use super::{chunk_bytes, instance};
use crate::checks::{CheckCounts, EntryChecks};
use crate::fault;
use crate::plan::checked::CheckExec;
use crate::plan::lenient::LenientExec;
use crate::plan::lookup::LookupExec;
use crate::plan::work::WorkExec;
use crate::read::{Reader, sample};
use crate::rejects::take::TakeRow;
use crate::rejects::{Entry, Rejects};
use crate::report::{LeftFiles, ReloadedFiles, Tally};

/// Groups that are delivered at once: one on each of two connections, and one that is being encoded.
const DELIVERIES: usize = 3;

/// The least and most text of a group, in bytes.
const GROUP_BYTES: (usize, usize) = (1 << 20, 8 << 20);

/// How often a delivery is tried again of which nothing is in the target.
pub(super) const RETRIES: u32 = 5;

/// The first pause before that; each is twice as long as the one before.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// What to do about changed units of a load chunk by chunk.
const ALL_ELSE_IS_LOADED: &str =
    "everything else is loaded; `--accept-changed` loads them as they are now, in addition to their earlier rows";

/// The same, where rows are staged.
const NOTHING_IS_VISIBLE: &str = "nothing is visible yet; `--resume` stages all files as they are now";

/// The most changed units that are named.
const MOST_NAMED: usize = 10;

/// The version of the rules by which a load is cut into chunks, and chunks and units are named. Change it with the
/// rules: a program that resumes a load by other rules would load rows twice, or leave some out. Loads without this
/// note have version 1. The note is in the transaction of the first group, and others may be committed before it; for a
/// higher version it has to be committed before all of them.
const RULES: u64 = 1;

/// The unit under which that version is noted. Units of files begin with the name of a source.
const RULES_NOTE: &str = "\nrules";

/// What a load chunk by chunk is made from.
pub struct ChunkLoad {
    /// The sink's name.
    pub name: String,
    /// The first run of the resume chain, if the ledger notes which units have rejects.
    pub notes_rejects_of: Option<String>,
    /// The pipelines to it.
    pub pipelines: Vec<Pipeline>,
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
    /// What may be left out.
    pub rejects: Arc<Rejects>,
    /// Noted with the first rows: what the job's rows depend on.
    pub fingerprint: Option<Chunk>,
    /// What its lookups look up in.
    pub references: References,
    /// Notes how many rows are visible, if there is a run history.
    pub progress: Option<Arc<ProgressFile>>,
    /// The commits that are under way.
    pub commits: Commits,
    /// The folder for what does not fit in memory.
    pub scratch: PathBuf,
    /// Whether rows are staged: nobody sees them before all of them are there.
    pub is_staged: bool,
    /// What workers of a cluster have done of it, before this runs.
    pub by_workers: Arc<ByWorkers>,
    /// If this is a worker, which part of the load it does.
    pub bundle: Option<BundleLoad>,
}

/// So long the end of a run waits for commits that may themselves be waiting for a lock. What supervises processes
/// (Docker, systemd) gives them ten seconds or more.
const LONGEST_COMMIT: Duration = Duration::from_secs(8);

/// The commits of a load. One that has begun ends and is counted, even if the run ends meanwhile: a task that is
/// dropped in the middle of a commit would leave open whether the rows are there, and SQLite a journal that readers
/// have to roll back.
#[derive(Debug, Clone)]
pub struct Commits {
    pub(super) permits: Arc<Semaphore>,
    /// How many there may be.
    count: usize,
    under_way: Arc<Mutex<Vec<AbortHandle>>>,
}

impl Default for Commits {
    fn default() -> Self {
        Commits::new(DELIVERIES)
    }
}

impl Commits {
    /// Of `count` deliveries at once, which are three or more.
    pub fn new(count: usize) -> Self {
        let count = count.max(DELIVERIES);
        Commits { permits: Arc::new(Semaphore::new(count)), count, under_way: Arc::default() }
    }

    /// Waits until no commit is under way, and lets none begin any more. Unless they end by themselves soon, those that
    /// take too long are dropped: then their connections end, and the target rolls back what it has not committed.
    pub async fn end(&self, end_soon: bool) {
        let ended = self.permits.acquire_many(u32::try_from(self.count).unwrap_or(u32::MAX));
        let in_time = match end_soon {
            true => ended.await.is_ok(),
            false => tokio::time::timeout(LONGEST_COMMIT, ended).await.is_ok(),
        };
        self.permits.close();
        if !in_time {
            self.under_way().iter().for_each(AbortHandle::abort);
        }
    }

    pub(super) fn begun(&self, task: AbortHandle) {
        let mut under_way = self.under_way();
        under_way.retain(|task| !task.is_finished());
        under_way.push(task);
    }

    fn under_way(&self) -> MutexGuard<'_, Vec<AbortHandle>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a load has come to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The sink.
    pub sink: String,
    /// Rows written by this run.
    pub rows: u64,
    /// Units that earlier runs had loaded.
    pub units_before: u64,
    /// Whether everything was there before.
    pub nothing_new: bool,
    /// What has become of the rows.
    pub tally: Tally,
    /// Files that have changed and stay as they were loaded, by source.
    pub skipped: Vec<LeftFiles>,
    /// What was replaced.
    pub reloaded: Option<ReloadedFiles>,
    /// The units that it has completely, by source, where something is to become of them.
    pub settled: Vec<(String, Vec<SettledUnit>)>,
}

/// The note that all units of the load are complete.
fn all_complete() -> Chunk {
    Chunk { unit: String::new(), number: 0 }
}

/// The note of the rules' version.
fn rules_note() -> Chunk {
    Chunk { unit: RULES_NOTE.to_owned(), number: RULES }
}

/// What a load begins with that has this fingerprint, and these references.
pub fn first_notes(fingerprint: Option<&Chunk>, references: &References) -> Vec<Chunk> {
    fingerprint.cloned().into_iter().chain([rules_note()]).chain(references.notes()).collect()
}

/// What is known of units of which nothing is written, in a load that has begun with `notes`.
pub fn only_begun(notes: &[Chunk]) -> WrittenChunks {
    WrittenChunks::new(notes.iter().map(|note| (note.unit.clone(), note.number)), str::to_owned)
}

/// Refuses to resume a load into `place` whose rules only a newer program knows.
pub fn check_rules(written: &WrittenChunks, place: &str) -> Result<()> {
    match written.of_unit(RULES_NOTE).last() {
        Some(newest) if *newest > RULES => Err(Error::newer(format!("a load into {place}"), newest, RULES)
            .hint("upgrade Millstream to resume it; this version would load rows twice")),
        _ => Ok(()),
    }
}

/// Whether `written` says that the load is complete.
pub fn says_complete(written: &WrittenChunks) -> bool {
    written.contains(&all_complete())
}

/// Whether the ledger says that `load` is complete.
pub async fn is_complete(ledger: &dyn Ledger, load: &str) -> Result<bool> {
    Ok(says_complete(&ledger.written_of(load).await?))
}

/// Notes in the ledger that the load is complete.
pub async fn note_complete(ledger: &dyn Ledger) -> Result<Delivered> {
    ledger.delivery(vec![all_complete()], 0).await?.commit().await
}

pub(super) struct Loading {
    pub(super) load: ChunkLoad,
    pub(super) units: Vec<Arc<Units>>,
    /// Bytes of text of a group.
    pub(super) group_bytes: usize,
    pub(super) chunk_bytes: u64,
    /// Notes of units that are complete, for whichever group goes next.
    notes: Mutex<Vec<Chunk>>,
    /// The note of the rules' version, for the first group that is delivered; `None` if an earlier run has written it.
    rules: Mutex<Option<Chunk>>,
    /// Which groups note the versions of units.
    versions: Versions,
    pub(super) rows: Arc<AtomicU64>,
    /// Notes that the target had, and those that it said it has taken.
    pub(super) noted: AtomicU64,
    /// Whether some of them are not there any more.
    is_lost: AtomicBool,
    pub(super) came: Came,
    /// What workers had done when it began.
    before: Before,
}

/// What the counters of a load had counted before it began: they are those of the run, which counts what workers do.
#[derive(Default)]
struct Before {
    rows: u64,
    /// For each pipeline: what was read, rejected and filtered.
    read: Vec<ReadBefore>,
}

#[derive(Default, Clone, Copy)]
struct ReadBefore {
    rows: u64,
    rejected: u64,
    filtered: u64,
}

impl ReadBefore {
    fn of(reader: &Reader) -> Self {
        let parse = reader.steps.parse.snapshot();
        let filtered = reader.filtered.load(Ordering::Relaxed);
        ReadBefore { rows: parse.rows + parse.passed_over, rejected: parse.rejected, filtered }
    }

    fn since(self, before: ReadBefore) -> Self {
        ReadBefore {
            rows: self.rows - before.rows,
            rejected: self.rejected - before.rejected,
            filtered: self.filtered - before.filtered,
        }
    }
}

/// What has become of rows that were handed out by readers.
#[derive(Default)]
pub(super) struct Came {
    pub(super) read: AtomicU64,
    /// Of chunks that were written before.
    pub(super) before: AtomicU64,
    pub(super) rejected_before: AtomicU64,
    pub(super) filtered: AtomicU64,
    /// By an expression or the target.
    pub(super) rejected: AtomicU64,
    /// In batches.
    pub(super) answered: AtomicU64,
    pub(super) given: AtomicU64,
}

impl ChunkLoad {
    /// The load of an epoch after the other, in a ledger that knows positions.
    pub(super) fn into_epochs(self) -> Arc<Loading> {
        let nothing = Arc::new(WrittenChunks::new([], str::to_owned));
        let units = |pipeline: &Pipeline| {
            Arc::new(Units::new(pipeline.read().source(), Arc::clone(&nothing), WhenChanged::default()))
        };
        Arc::new(Loading {
            units: self.pipelines.iter().map(units).collect(),
            load: self,
            group_bytes: usize::MAX,
            chunk_bytes: u64::MAX,
            notes: Mutex::default(),
            rules: Mutex::default(),
            versions: Versions::default(),
            rows: Arc::default(),
            noted: AtomicU64::new(0),
            is_lost: AtomicBool::new(false),
            came: Came::default(),
            before: Before::default(),
        })
    }

    /// Reads and delivers everything that is not in the target. `rows` counts what has become visible.
    pub async fn run(self, rows: Arc<AtomicU64>) -> Result<Loaded> {
        let known = self.bundle.as_ref().and_then(|bundle| bundle.known.clone());
        let written = match known {
            Some(known) => Arc::new(known),
            None => Arc::new(self.ledger.written().await?),
        };
        check_rules(&written, &self.ledger.target())?;
        self.carry_over(&written)?;
        let count = self.pipelines.len() as u64;
        let of = |(number, pipeline): (usize, &Pipeline)| {
            let read = pipeline.read();
            let when_changed = WhenChanged::of(read.reader().on_change, self.accept_changed);
            let units = Units::new(read.source(), Arc::clone(&written), when_changed);
            let units = if read.reader().after_load.is_some() { units.keeping_settled() } else { units };
            let units = if self.is_staged { units.staged(Slots { of: number as u64, count }) } else { units };
            Arc::new(units)
        };
        let units = self.pipelines.iter().enumerate().map(of).collect();
        let share = (8 * self.commits.count).max(32);
        let group_bytes = (self.budget.limit() / share).clamp(GROUP_BYTES.0, GROUP_BYTES.1);
        let chunk_bytes = chunk_bytes();
        let group_bytes = group_bytes.min(usize::try_from(chunk_bytes).unwrap_or(usize::MAX).saturating_mul(8));
        let missing = |note: &Chunk| !written.contains(note);
        let notes = Mutex::new(self.fingerprint.clone().filter(missing).into_iter().collect());
        let rules = Mutex::new(Some(rules_note()).filter(missing));
        let came = Came::default();
        let noted = AtomicU64::new(written.len().max(self.by_workers.done().noted));
        let readers = self.pipelines.iter().map(|pipeline| pipeline.read().reader());
        let before =
            Before { rows: rows.load(Ordering::Relaxed), read: readers.map(|reader| ReadBefore::of(reader)).collect() };
        let is_lost = AtomicBool::new(false);
        let versions = Versions::default();
        let loading = Arc::new(Loading {
            load: self,
            units,
            group_bytes,
            chunk_bytes,
            notes,
            rules,
            versions,
            rows,
            noted,
            is_lost,
            came,
            before,
        });
        let loaded = loading.clone().load_all(written.is_empty()).await;
        if loading.is_lost.load(Ordering::Relaxed) {
            // Units are noted as complete of which the target has lost a part.
            let ledger = &loading.load.ledger;
            let taken = match loading.load.is_staged {
                true if matches!(ledger.count().await, Ok(0)) => Ok(()),
                true => ledger.begin_anew().await,
                false => ledger.roll_back(COMPLETE).await,
            };
            taken.map_err(|error| {
                error
                    .in_step(&loading.load.name)
                    .hint("it has lost rows that it had committed: start again with `--restart`")
            })?;
        }
        loaded
    }

    /// Takes over what earlier runs have left out of a load whose rows they have made visible.
    pub async fn take_over(self) -> Result<Loaded> {
        let written = self.ledger.written().await?;
        self.carry_over(&written)?;
        self.pipelines.iter().for_each(|pipeline| pipeline.read().reader().rejects.pass(None));
        let (sink, units_before) = (self.name, written.count_of(COMPLETE));
        Ok(Loaded { sink, units_before, nothing_new: true, ..Loaded::default() })
    }

    /// Counts what earlier runs have left out of chunks that are written; what they have left out of others is done
    /// again.
    fn carry_over(&self, written: &WrittenChunks) -> Result<()> {
        let Some(log) = self.rejects.log() else { return Ok(()) };
        let earlier = log.earlier()?;
        let (there, missing) = committed(&earlier.kept, &self.name, written);
        there.into_iter().for_each(|line| self.rejects.count_earlier(&line.rejected));
        log.remember(missing.clone());
        if self.is_staged && written.is_empty() {
            // What was staged has gone, perhaps because files have changed: not all of these chunks come again.
            return log.add_delivery(missing.into_iter().collect(), Vec::new(), Vec::new(), HashMap::new());
        }
        for checked in committed_checks(&earlier.checked, &self.name, written) {
            self.entry_checks().for_each(|checks| checks.add_noted(checked));
        }
        self.rejects.carry_over(&earlier.came, &self.entries());
        Ok(())
    }

    /// The checks of its rows.
    fn entry_checks(&self) -> impl Iterator<Item = &Arc<EntryChecks>> {
        let operators = self.pipelines.iter().flat_map(|pipeline| &pipeline.operators);
        let checks = operators.filter(|operator| operator.name() == CheckExec::NAME);
        checks.filter_map(|operator| operator.downcast_ref::<CheckExec>()).map(CheckExec::checks)
    }

    /// The entries of the job that may refuse something on the way.
    fn entries(&self) -> Vec<Entry> {
        let sources = self.pipelines.iter().map(|pipeline| Entry::Step(pipeline.read().source().to_owned()));
        let steps = self
            .pipelines
            .iter()
            .flat_map(|pipeline| &pipeline.operators)
            .flat_map(|operator| {
                let work = operator.downcast_ref::<WorkExec>().and_then(WorkExec::lenient_step);
                let lookup = operator.downcast_ref::<LookupExec>().and_then(LookupExec::lenient_step);
                let checked = operator.downcast_ref::<CheckExec>().map(CheckExec::checks);
                let checked = checked.filter(|checks| checks.rejects()).map(|checks| checks.name.as_str());
                let named = work.into_iter().chain(lookup).chain(checked).map(str::to_owned);
                LenientExec::steps(operator).into_iter().chain(named)
            })
            .map(Entry::Step);
        let mut entries: Vec<Entry> = sources.chain(steps).chain([Entry::Sink(self.name.clone())]).collect();
        entries.sort();
        entries.dedup();
        entries
    }

    /// Whether the sources may leave out so much.
    pub(super) fn judge_parsers(&self) -> Result<()> {
        self.pipelines
            .iter()
            .try_for_each(|pipeline| self.rejects.judge(&Entry::Step(pipeline.read().source().to_owned())))
    }

    /// Whether a raw record may be asked for.
    pub(super) fn wants_raw(&self) -> bool {
        self.rejects.of_sink(&self.name).is_some() || self.rejects.is_lenient()
    }
}

impl Loading {
    async fn load_all(self: Arc<Self>, was_empty: bool) -> Result<Loaded> {
        let held_back = Arc::clone(&self).read_all().await?;
        // Everything has come, and of a small load nothing is there yet.
        self.load.judge_parsers()?;
        Arc::clone(&self).deliver_all(held_back).await?;
        let reloaded = self.reload_all().await?;
        self.end(was_empty, reloaded).await
    }

    /// Reads everything, delivers what is full, and gives back what is held back.
    async fn read_all(self: Arc<Self>) -> Result<Vec<Group>> {
        let (sender, mut groups) = mpsc::channel::<Group>(1);
        let mut readers = JoinSet::new();
        for (number, pipeline) in self.load.pipelines.iter().enumerate() {
            for partition in 0..pipeline.read().partitions() {
                readers.spawn_on(Arc::clone(&self).read(number, partition, sender.clone()), &self.load.workers);
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
                group = groups.recv(), if deliveries.len() < self.load.commits.count => match group {
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
    async fn read(
        self: Arc<Self>,
        number: usize,
        partition: usize,
        groups: mpsc::Sender<Group>,
    ) -> Result<Option<Group>> {
        let (read, units) = (self.load.pipelines[number].read(), Arc::clone(&self.units[number]));
        let (of_reader, admitting) = (Arc::clone(read.reader()), Arc::clone(&units));
        let keeper = self.load.bundle.as_ref().map(|bundle| Arc::clone(&bundle.keeper));
        let admit = move |unit: &Unit| {
            let when = admitting.admit(unit)?;
            if let Some(keeper) = &keeper {
                keeper.reading(admitting.source(), &unit.uri, when == ReadWhen::Now);
            }
            if when == ReadWhen::Never {
                of_reader.rejects.pass(Some(&unit.uri));
                of_reader.steps.fetch.expect_less(unit.size.unwrap_or(0));
                of_reader.steps.fetch.add_units(1);
            }
            Ok(when == ReadWhen::Now)
        };
        let raw = self.load.wants_raw();
        let pieces = read.pieces(partition, Arc::clone(&self.load.context), raw, admit).map_err(fault::unwrap)?;
        tokio::pin!(pieces);
        let mut assembler = Assembler::new(&self, number);
        while let Some((uri, piece)) = pieces.try_next().await? {
            tokio::task::yield_now().await;
            for full in assembler.take(&uri, piece)? {
                groups.send(full).await.map_err(|_| Error::internal("the receiver of the rows is gone"))?;
            }
        }
        Ok(assembler.rest())
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
            if deliveries.len() == self.load.commits.count
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

    /// Notes what is still to be noted. Units that have changed are reported.
    async fn end(self: Arc<Self>, was_empty: bool, reloaded: Option<ReloadedFiles>) -> Result<Loaded> {
        let changed: Vec<String> = self.units.iter().flat_map(|units| units.changed()).collect();
        Arc::clone(&self).deliver(Group::new(0, &self.load.budget)).await?;
        if !changed.is_empty() {
            let hint = if self.load.is_staged { NOTHING_IS_VISIBLE } else { ALL_ELSE_IS_LOADED };
            return Err(changed_units(changed, hint).in_step(&self.load.name));
        }
        if self.load.bundle.is_none() {
            let found = self.load.ledger.count().await.map_err(|error| error.in_step(&self.load.name))?;
            self.nothing_is_lost(self.noted.load(Ordering::Relaxed), found)?;
        }
        let by_workers = self.load.by_workers.done();
        let passed_over: u64 = self.units.iter().map(|units| units.passed_over()).sum();
        let units_before = passed_over.saturating_sub(by_workers.units);
        let rows = self.rows.load(Ordering::Relaxed);
        let tally = self.tally(rows - self.before.rows)?.and(by_workers.tally);
        let sink = self.load.name.clone();
        let nothing_new = rows == 0 && !was_empty && reloaded.is_none() && by_workers.units == 0;
        let settled = self.units.iter().map(|units| (units.source().to_owned(), units.take_settled())).collect();
        let skipped = self.units.iter().filter_map(|units| LeftFiles::of(units.source(), units.skipped()));
        Ok(Loaded { sink, rows, units_before, nothing_new, tally, skipped: skipped.collect(), reloaded, settled })
    }

    /// Whether the target, in which `found` notes are, has all that it said it has taken. One that answers before all
    /// is on its disk, or that another has taken the place of, may have lost the last of it when it went down.
    fn nothing_is_lost(&self, noted: u64, found: u64) -> Result<()> {
        if found >= noted {
            return Ok(());
        }
        self.is_lost.store(true, Ordering::Relaxed);
        self.load.progress.iter().for_each(|progress| progress.clear());
        if self.load.is_staged {
            return Err(staged_is_lost(&self.load.ledger.target()).in_step(&self.load.name));
        }
        let what = format!("{} has lost rows that it had committed", self.load.ledger.target());
        Err(Error::refused(what)
            .cause(format!("{noted} parts of the load were committed, and {found} of them are there"))
            .hint(
                "was the server killed, or replaced by another, while it loaded? `--resume` loads what is missing; \
                 check `innodb_flush_log_at_trx_commit`, `synchronous_commit`, or how replicas take over",
            )
            .in_step(&self.load.name))
    }

    /// What has become of the records, none of which may be missing.
    pub(super) fn tally(&self, written: u64) -> Result<Tally> {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut tally = Tally {
            read: 0,
            written,
            filtered: count(&self.came.filtered),
            rejected: count(&self.came.rejected),
            ignored: 0,
            before: count(&self.came.before) + count(&self.came.rejected_before),
            answered: count(&self.came.answered),
            given: count(&self.came.given),
        };
        let mut handed_out = 0;
        for (number, pipeline) in self.load.pipelines.iter().enumerate() {
            let before = self.before.read.get(number).copied().unwrap_or_default();
            let ReadBefore { rows, rejected, filtered } = ReadBefore::of(pipeline.read().reader()).since(before);
            tally.read += rows + rejected;
            tally.filtered += filtered;
            tally.rejected += rejected;
            handed_out += rows - filtered;
        }
        tally.rejected -= count(&self.came.rejected_before);
        match handed_out == count(&self.came.read) {
            true => tally.check(&self.load.name).map(|()| tally),
            false => Err(tally.fault(&self.load.name)),
        }
    }

    pub(super) fn add_notes(&self, notes: impl IntoIterator<Item = Chunk>) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).extend(notes);
    }

    /// Delivers a group, as often as it takes.
    async fn deliver(self: Arc<Self>, mut group: Group) -> Result<()> {
        let leading = if group.is_empty() { None } else { self.load.references.lead().await };
        group.note(leading.iter().flat_map(|leading| leading.notes.iter().cloned()));
        let claimed = self.versions.claim(&group).await;
        group.note(claimed.notes());
        group.note(std::mem::take(&mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner)));
        if !group.is_empty() {
            let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner).take();
            group.note(rules);
        }
        let mut group = Arc::new(group);
        let mut tries = 0;
        while !group.is_empty() {
            match self.try_deliver(&group, async |_| true).await {
                Ok(Delivered::Written { .. }) => break,
                Ok(Delivered::AlreadyDone(chunks)) => {
                    let left_out = Arc::get_mut(&mut group).and_then(|group| group.leave_out(&chunks));
                    let Some(rows) = left_out else {
                        let error = Error::internal("the ledger refuses chunks that it does not have");
                        return Err(error.in_step(&self.load.name));
                    };
                    self.came.before.fetch_add(rows, Ordering::Relaxed);
                }
                Ok(Delivered::Moved(_) | Delivered::Unknown(_)) => {
                    return Err(Error::internal("chunks have no positions").in_step(&self.load.name));
                }
                Err(error) if error.kind() == ErrorKind::Transient && tries < RETRIES => {
                    let noted = self.noted.load(Ordering::Relaxed);
                    // Whoever does not answer now is asked again at the end.
                    if let Ok(found) = self.load.ledger.count().await {
                        self.nothing_is_lost(noted, found)?;
                    }
                    tokio::time::sleep(FIRST_PAUSE * 2_u32.pow(tries)).await;
                    tries += 1;
                }
                Err(error) => return Err(error.in_step(&self.load.name)),
            }
        }
        if let Some(leading) = leading {
            leading.committed();
        }
        let group = Arc::into_inner(group).ok_or_else(|| Error::internal("a group that is written is still in use"))?;
        self.add_notes(group.written());
        drop(claimed);
        Ok(())
    }

    /// Delivers a group. When its rows are sent, `may_commit` is asked, with how many of them were refused; if it may
    /// not, nothing is written, as if its positions stood elsewhere.
    pub(super) async fn try_deliver(
        self: &Arc<Self>,
        group: &Arc<Group>,
        may_commit: impl AsyncFnOnce(usize) -> bool,
    ) -> Result<Delivered> {
        let attempt = Arc::new(Attempt::new(self, group));
        let room = self.load.rejects.of_sink(&self.load.name).map_or(0, |limit| limit.room(group.count()));
        let room = usize::try_from(room).unwrap_or(usize::MAX).clamp(SHOWN_BAD_ROWS - 1, usize::MAX - 1);
        let chunks = group.chunks();
        let notes = chunks.len() as u64;
        let mut delivery = self.load.ledger.delivery(chunks, room).await?;
        let mut computing = None;
        if group.has_rows() {
            let computing = computing.insert(self.compute(group, &attempt)?);
            let numbered = self.load.is_staged.then_some(group.as_ref());
            while let Some(batch) = computing.next(&attempt, numbered).await? {
                delivery.write(batch).await?;
                tokio::task::yield_now().await;
            }
        }
        let refused = delivery.send().await?;
        if !may_commit(refused).await {
            return Ok(Delivered::Moved(Vec::new()));
        }
        attempt.checked(computing.as_ref().map(Computing::checked).unwrap_or_default());
        attempt.computed(computing.as_ref().map_or(Computed::default(), Computing::computed));
        let asked = Arc::clone(&attempt);
        let accept: Accept = Box::new(move |refused| asked.accept(refused));
        let delivered = self.commit(delivery, accept, notes, &attempt).await;
        let Ok(Delivered::Written { rows, refused }) = &delivered else {
            attempt.roll_back();
            return delivered;
        };
        self.count(group, &attempt, computing.as_ref(), *rows, refused.len() as u64)?;
        delivered
    }

    /// Computes the rows of a group.
    pub(super) fn compute(self: &Arc<Self>, group: &Arc<Group>, attempt: &Arc<Attempt>) -> Result<Computing> {
        let left_out = Arc::new(AtomicI64::new(0));
        let taker: Arc<dyn TakeRow> = Arc::clone(attempt) as Arc<dyn TakeRow>;
        let pipeline = &self.load.pipelines[group.pipeline];
        let batch_rows = self.load.context.session_config().batch_size();
        let plan = instance::over(pipeline, group, batch_rows, &taker, &left_out).map_err(fault::unwrap)?;
        let rows = plan.execute(0, Arc::clone(&self.load.context)).map_err(fault::unwrap)?;
        Ok(Computing { plan, rows, left_out })
    }

    /// Counts what has become of the rows of a group, of which `written` are written and `refused` are not.
    pub(super) fn count(
        &self,
        group: &Group,
        attempt: &Attempt,
        computed: Option<&Computing>,
        written: u64,
        refused: u64,
    ) -> Result<()> {
        let (sent, failed) = (attempt.sent_rows(), attempt.failed());
        if written + refused != sent {
            return Err(Error::internal(format!("of {sent} rows {written} were written")));
        }
        let Computed { left_out, answered, given } = computed.map_or(Computed::default(), Computing::computed);
        let filtered = left_out + given as i64 - answered as i64 - failed as i64;
        if sent as i64 + left_out != group.count() as i64 || filtered < 0 {
            return Err(Error::internal(format!(
                "of {} rows {sent} were sent, {left_out} left out, {failed} of them rejected; {answered} were answered \
                 by {given}",
                group.count()
            )));
        }
        attempt.count_checked();
        computed.iter().for_each(|computed| instance::settle(&computed.plan));
        self.came.filtered.fetch_add(filtered.unsigned_abs(), Ordering::Relaxed);
        self.came.answered.fetch_add(answered, Ordering::Relaxed);
        self.came.given.fetch_add(given, Ordering::Relaxed);
        self.came.rejected.fetch_add(failed + refused, Ordering::Relaxed);
        self.load.step.add_rejected(failed + refused);
        Ok(())
    }

    /// Commits a delivery with so many notes, and those of `attempt`, and counts what has become visible, in a task
    /// that outlives the run's end.
    async fn commit(
        self: &Arc<Self>,
        delivery: Box<dyn Delivery>,
        accept: Accept,
        notes: u64,
        attempt: &Arc<Attempt>,
    ) -> Result<Delivered> {
        let permit = Arc::clone(&self.load.commits.permits).acquire_owned().await;
        let permit = permit.map_err(|_| Error::new(ErrorKind::Interrupted, "the run ended before a commit began"))?;
        let (loading, attempt) = (Arc::clone(self), Arc::clone(attempt));
        let committing = async move {
            let _until_counted = permit;
            let delivered = delivery.commit_if(accept).await;
            if let Ok(Delivered::Written { rows, .. }) = &delivered {
                attempt.committed();
                loading.noted.fetch_add(notes + attempt.further(), Ordering::Relaxed);
                loading.load.step.add_rows(*rows);
                loading.rows.fetch_add(*rows, Ordering::Relaxed);
                loading.load.progress.iter().for_each(|progress| progress.add_rows(*rows));
            }
            delivered
        };
        let task = self.load.workers.spawn(committing);
        self.load.commits.begun(task.abort_handle());
        joined(task.await)
    }
}

/// How many records of a group have become how many rows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Computed {
    /// Records of which there is no row. Negative if steps gave more rows than they got.
    pub(super) left_out: i64,
    /// Rows that steps have answered in batches.
    pub(super) answered: u64,
    /// Rows that these steps gave for them.
    pub(super) given: u64,
}

/// The rows of a group while they are computed.
pub(super) struct Computing {
    plan: Arc<dyn ExecutionPlan>,
    rows: SendableRecordBatchStream,
    left_out: Arc<AtomicI64>,
}

impl Computing {
    /// The next rows, as the target gets them, and notes in `attempt` which they are. With `numbered`, the group that
    /// they are from, they get the column [`ARRIVAL`].
    pub(super) async fn next(&mut self, attempt: &Attempt, numbered: Option<&Group>) -> Result<Option<RecordBatch>> {
        let Some(batch) = self.rows.next().await else { return Ok(None) };
        let batch = batch.map_err(fault::unwrap)?;
        let number = batch.num_columns() - 1;
        let spans = batch.column(number).as_primitive::<UInt64Type>();
        attempt.sent(spans);
        let arrivals = numbered.map(|group| group.arrivals(spans)).transpose()?;
        let columns: Vec<usize> = (0..number).collect();
        let unfit = |cause| Error::internal("the columns of a batch do not fit together").cause(cause);
        let batch = batch.project(&columns).map_err(unfit)?;
        values::check(&batch)?;
        match arrivals {
            None => Ok(Some(batch)),
            Some(arrivals) => with_arrivals(&batch, arrivals).map(Some).map_err(unfit),
        }
    }

    /// How many records have become how many rows, once all rows are computed.
    pub(super) fn computed(&self) -> Computed {
        let (answered, given) = instance::in_batches(&self.plan);
        Computed { left_out: self.left_out.load(Ordering::Relaxed), answered, given }
    }

    /// What checks have counted.
    pub(super) fn checked(&self) -> Vec<(Arc<EntryChecks>, Arc<CheckCounts>)> {
        instance::checked(&self.plan)
    }
}

/// Whether the units that `pipelines` read are those of which something was `written`, as they were then. If all rows
/// `are_visible`, all of each has to be.
pub async fn have_same_units(pipelines: &[Pipeline], written: &WrittenChunks, are_visible: bool) -> Result<bool> {
    let written = Arc::new(written.clone());
    for pipeline in pipelines {
        let reader = pipeline.read().reader();
        let units = Units::new(&reader.name, Arc::clone(&written), WhenChanged::Fail);
        let listed = sample::units(reader, usize::MAX).await.map_err(|error| error.in_step(&reader.name))?;
        let is_same = |unit: &Unit| match units.standing(unit) {
            Standing::Complete => true,
            Standing::Changed => false,
            Standing::Begun | Standing::New(_) => !are_visible,
        };
        if !listed.iter().all(is_same) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The target has lost staged rows that it had committed.
fn staged_is_lost(target: &str) -> Error {
    Error::refused(format!("the rows that were staged for {target} are lost"))
        .cause("the server was killed or replaced, or someone has dropped or emptied the staging table")
        .hint("nothing is visible yet; `--resume` stages the rows again")
}

/// `batch` with the order of arrival as last column.
fn with_arrivals(batch: &RecordBatch, arrivals: Int64Array) -> std::result::Result<RecordBatch, ArrowError> {
    let mut fields: Vec<FieldRef> = batch.schema().fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new(ARRIVAL, DataType::Int64, false)));
    let columns = batch.columns().iter().cloned().chain([Arc::new(arrivals) as ArrayRef]).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
}

/// Whether `error` stops a load of which everything is there but changed units.
pub fn says_all_else_is_loaded(error: &Error) -> bool {
    error.hint_text() == Some(ALL_ELSE_IS_LOADED)
}

/// Units that are not any more what was loaded of them.
pub(super) fn changed_units(changed: Vec<String>, hint: &str) -> Error {
    let shown: Vec<&str> = changed.iter().take(MOST_NAMED).map(String::as_str).collect();
    let more = if changed.len() > MOST_NAMED { ", …" } else { "" };
    let what = match changed.len() {
        1 => "a file has changed since it was loaded".to_owned(),
        count => format!("{count} files have changed since they were loaded"),
    };
    Error::refused(what).text(format!("{}{more}", shown.join(", "))).hint(hint)
}

pub(super) fn joined<T>(done: std::result::Result<Result<T>, JoinError>) -> Result<T> {
    done.unwrap_or_else(|join| Err(Error::internal("a task failed").cause(join)))
}
