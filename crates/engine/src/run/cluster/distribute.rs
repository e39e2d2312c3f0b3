//! The coordinator's side: hands out the units that no sink has, keeps what workers reject, counts what they commit.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use millstream_cluster::{ListedUnit, Load, Outcome, Pool, Seen, Worker};
use millstream_core::sink::{Chunk, Delivered, Ledger, WrittenChunks};
use millstream_core::{Error, Result, Step, StepKind, Steps, Unit};
use millstream_job::Job;
use millstream_state::ProgressFile;
use millstream_state::rejects::{ChunkId, Line, committed};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::code::{CodeFile, gather};
use super::files::SharedFiles;
use super::hindrance::{self, hindrance};
use super::session::{Tell, coordinated, deadly, listed, unit_of, unpacked};
use super::task::{Assignment, BundleOutcome, Keep, OfPart, SharedLoad, Task, Told, from_value, to_value};
use super::tracked::Tracked;
use crate::chunks::chunk_bytes;
use crate::chunks::shared::{ByWorkers, KeptDelivery};
use crate::chunks::units::{ToNote, Units, WhenChanged};
use crate::fingerprint::Fingerprints;
use crate::job_plan::written_plan;
use crate::read::cuts::Cuts;
use crate::read::{Filtered, Reader};
use crate::rejects::Rejects;
use crate::report::{ClusterReport, MissingColumn, WorkerReport};
use crate::run::begin::Begun;
use crate::run::events::Event;
use crate::run::work::Work;

/// How long the targets may take to end what a lost worker has.
const LONGEST_FENCE: Duration = Duration::from_secs(60);

/// Units that are unpacked together.
const TOGETHER: usize = 1024;

impl Begun<'_, '_> {
    /// Lets workers read what they can, if the run has a cluster. What they leave is read here.
    ///
    /// # Errors
    /// Those of workers; if the run is to be distributed in any case, and cannot be.
    pub(in crate::run) async fn distribute(&mut self) -> Result<(), Vec<Error>> {
        let Some(options) = self.work.point.options.cluster.clone() else { return Ok(()) };
        let one = |error: Error| vec![error];
        let run = self.work.run;
        let code = match self.code_for_workers(&options.shared) {
            Ok(code) => code,
            Err(why) if options.always => {
                let error = Error::refused("the workers of a cluster cannot run this job").cause(why);
                return Err(vec![error.hint("leave out `--cluster=always`: then it runs on this machine alone")]);
            }
            Err(why) => {
                self.work.reports.report(Event::NotDistributed { why });
                return Ok(());
            }
        };
        for at_once in self.sinks.at_once() {
            let begun = at_once.load.begin_for_workers().await;
            begun.map_err(|error| vec![error.in_step(at_once.name())])?;
        }
        for ledger in self.sinks.ledgers() {
            ledger.begin_for_workers().await.map_err(|error| vec![error.in_step(ledger.sink())])?;
        }
        let task = self.task(code).and_then(|task| to_value(&Assignment::Load(Box::new(task)))).map_err(one)?;
        let distribution = Arc::new(self.distribution().map_err(one)?);
        let (io, load) = (run.runtimes.io(), Arc::clone(&distribution) as Arc<dyn Load>);
        let unsent = Unsent::default();
        let list = |sender| self.list(sender, &distribution, &options.shared, &unsent);
        let coordinating = coordinated(&options, &io, task, load, &distribution.tell, list);
        let done = self.work.unless_interrupted(coordinating).await;
        let done = done.map_err(one).and_then(|done| done);
        distribution.end(done.is_err()).await;
        if let Some(outcome) = done? {
            distribution.read_here(unsent, outcome).map_err(one)?;
        }
        for load in self.sinks.at_once_mut() {
            load.add_workers(distribution.files.tally(load.name()));
        }
        Ok(())
    }

    /// The code that workers need, if the job can be distributed; otherwise why not, in words that end a sentence.
    fn code_for_workers(&self, shared: &[PathBuf]) -> Result<Vec<CodeFile>, String> {
        let Work { run, job, prepared, .. } = self.work;
        if run.replay.is_some() {
            return Err("rejects are loaded again".to_owned());
        }
        hindrance(job, prepared, &self.physical, shared)?;
        hindrance::of_references(&self.physical)?;
        // The rights of the user, or what an earlier run has begun, may keep a ledger away.
        let of_files = job.sinks.iter().filter(|sink| hindrance::writes_files(sink)).count();
        if self.sinks.ledgers().len() + of_files < job.sinks.len() {
            return Err(
                "one of its targets has no ledger, or an earlier run has begun to load it all at once".to_owned()
            );
        }
        if self.sinks.at_once().iter().any(|at_once| at_once.load.is_there()) {
            return Err("an earlier run has written its files already".to_owned());
        }
        if run.rejects.log().is_none() {
            return Err("there is no folder for the run history, where rejects are kept".to_owned());
        }
        gather(job, prepared).map_err(|error| error.what().to_owned())
    }

    /// What workers have to know.
    fn task(&self, code: Vec<CodeFile>) -> Result<Task> {
        let Work { job, prepared, point, .. } = self.work;
        let load = |ledger: &&crate::resume::OpenLedger| {
            (
                ledger.sink().to_owned(),
                SharedLoad { name: ledger.load_name().to_owned(), incremental: ledger.is_incremental() },
            )
        };
        let folder = std::env::current_dir();
        let of_files = |reader: &Arc<Reader>| Some((reader.name.clone(), prepared.source_columns(&reader.name)?));
        let columns = prepared.readers.iter().filter_map(of_files);
        Ok(Task {
            plan: written_plan(job, columns)?,
            code,
            interpreters: prepared.interpreters(),
            references: self.reference_hashes(),
            distributed: sources_of_sinks(job).into_keys().collect(),
            fingerprint: Fingerprints::of(job, prepared).current().to_owned(),
            run: point.run.clone(),
            first: point.first().to_owned(),
            folder: folder.map_err(|cause| Error::io("the working folder is not known", &cause))?,
            uses_files: prepared.readers.iter().any(|reader| reader.reads_files())
                || job.sinks.iter().any(hindrance::writes_files),
            loads: self.sinks.ledgers().iter().map(load).collect(),
            accept_changed: point.accepts_changed(),
        })
    }

    fn distribution(&self) -> Result<Distribution> {
        let Work { run, job, prepared, live, .. } = self.work;
        let reports = self.work.reports.clone();
        let sinks = self.sinks.ledgers().into_iter().map(|ledger| SharedSink {
            name: ledger.sink().to_owned(),
            ledger: ledger.ledger(),
            rows: Arc::clone(&ledger.rows),
            by_workers: Arc::clone(&ledger.by_workers),
        });
        let judging = Rejects::default();
        judging.allow(job);
        let came = run.rejects.log().map(|log| log.earlier()).transpose()?.map(|earlier| earlier.came);
        Ok(Distribution {
            sinks: sinks.collect(),
            files: SharedFiles::of(job, &self.sinks.at_once()),
            sources: sources_of_sinks(job),
            readers: prepared.readers.clone(),
            columns: prepared
                .readers
                .iter()
                .filter_map(|reader| Some((reader.name.clone(), prepared.columns(&reader.name)?)))
                .collect(),
            steps: Arc::clone(&run.steps),
            rejects: Arc::clone(&run.rejects),
            judging,
            progress: live.map(millstream_state::LiveRun::progress),
            cache: Arc::clone(&run.cache),
            report: Arc::clone(&run.cluster),
            tell: Arc::new(move |event| reports.report(event)),
            state: Mutex::new(State { came: came.unwrap_or_default(), ..State::default() }),
        })
    }

    /// Lists all units, and hands out those that are to be loaded. For the load that follows it keeps all of them where
    /// a ledger knows which are complete; elsewhere what it could not send.
    async fn list(
        &self,
        sender: mpsc::Sender<ListedUnit>,
        distribution: &Distribution,
        shared: &[PathBuf],
        unsent: &Unsent,
    ) -> Result<()> {
        let mut written: BTreeMap<String, Arc<WrittenChunks>> = BTreeMap::new();
        let log = distribution.rejects.known_log()?;
        let earlier = log.earlier()?;
        for sink in &distribution.sinks {
            let known = Arc::new(sink.ledger.written().await?);
            // What a run that has died had kept, and not committed, may not be rejected this time.
            let (_, missing) = committed(&earlier.kept, &sink.name, &known);
            log.remember(missing);
            sink.by_workers.begin(Arc::clone(&known));
            written.insert(sink.name.clone(), known);
        }
        for (number, reader) in (0_u32..).zip(&distribution.readers) {
            let Some(sink) = distribution.sources.get(&reader.name) else { continue };
            let units = written.get(sink).map(|known| {
                let when_changed = WhenChanged::of(reader.on_change, self.work.point.accepts_changed());
                Units::new(&reader.name, Arc::clone(known), when_changed)
            });
            let mut kept = Pool::default();
            let mut cuts = Cuts::new(reader, if units.is_some() { chunk_bytes() } else { 1 });
            let mut all = reader.list_once();
            while let Some(unit) = all.next().await {
                let unit = unit.map_err(|error| error.in_step(&reader.name))?;
                let to_note = units.as_ref().map(|units| units.to_note(&unit));
                let is_wanted = to_note.as_ref().is_none_or(Option::is_some);
                let is_handed_out = is_wanted && hindrance::is_valid_everywhere(reader, &unit, shared);
                if !is_handed_out || units.is_some() {
                    kept.add(listed(number, &unit)?).map_err(unpacked)?;
                }
                if !is_handed_out {
                    continue;
                }
                let to_note = to_note.flatten();
                let is_known = to_note.as_ref().is_some_and(|to_note| to_note.is_known);
                let parts = distribution.cut(&mut cuts, unit, sink, to_note).await;
                for part in parts {
                    let listed = ListedUnit { is_known, ..listed(number, &part)? };
                    if sender.send(listed.clone()).await.is_err() && units.is_none() {
                        kept.add(listed).map_err(unpacked)?;
                    }
                }
            }
            match units {
                Some(_) => reader.list_next(unpack(kept)),
                None => unsent.keep(number, kept),
            }
        }
        Ok(())
    }
}

/// Units that no worker gets, of sources whose sinks have no ledger, by the numbers of these sources.
#[derive(Debug, Default)]
struct Unsent(Mutex<BTreeMap<u32, Pool>>);

impl Unsent {
    fn keep(&self, source: u32, units: Pool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(source, units);
    }
}

/// The sink to which the rows of each source go.
fn sources_of_sinks(job: &Job) -> BTreeMap<String, String> {
    let sink_of = |source: &str| job.sinks.iter().find(|sink| job.gives_rows_of(&sink.from.value, source));
    let sources = job.sources.iter().map(|source| &source.name.value);
    sources.filter_map(|source| Some((source.clone(), sink_of(source)?.name.value.clone()))).collect()
}

/// The units of `kept`.
fn unpack(kept: Pool) -> BoxStream<'static, Result<Unit>> {
    let next = |mut kept: Pool| async move {
        let taken = match kept.take(u64::MAX, TOGETHER) {
            Ok(taken) if taken.is_empty() => return None,
            Ok(taken) => taken.into_iter().map(|unit| unit_of(&unit)).collect(),
            Err(cause) => vec![Err(unpacked(cause))],
        };
        Some((futures::stream::iter(taken), kept))
    };
    futures::stream::unfold(kept, next).flatten().boxed()
}

/// A sink into whose ledger workers deliver.
struct SharedSink {
    name: String,
    ledger: Arc<dyn Ledger>,
    /// Rows that have become visible.
    rows: Arc<AtomicU64>,
    by_workers: Arc<ByWorkers>,
}

/// What the coordinator knows of what workers do.
struct Distribution {
    sinks: Vec<SharedSink>,
    /// The sinks into whose files they write.
    files: SharedFiles,
    /// The sink of each source.
    sources: BTreeMap<String, String>,
    readers: Vec<Arc<Reader>>,
    /// The columns of each source.
    columns: BTreeMap<String, SchemaRef>,
    steps: Arc<Steps>,
    rejects: Arc<Rejects>,
    /// Counts rejects of committed deliveries while workers are at it: too many end the run at once.
    judging: Rejects,
    progress: Option<Arc<ProgressFile>>,
    cache: Arc<millstream_core::source::CacheUse>,
    report: Arc<Mutex<Option<ClusterReport>>>,
    tell: Tell,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    tracked: Tracked,
    /// The units that are read in parts, by source and URI.
    cut: HashMap<(String, String), CutUnit>,
    /// Notes that units are complete, under way.
    noting: JoinSet<Option<(Worker, KeptDelivery, Vec<MissingColumn>)>>,
    workers: BTreeMap<Worker, WorkerReport>,
    /// How many records have come to entries that may leave something out.
    came: HashMap<String, u64>,
}

/// A unit that workers read in parts into a ledger, in which nobody else notes that it is complete.
#[derive(Debug)]
struct CutUnit {
    sink: String,
    /// Parts that are not done.
    left: usize,
    /// Notes that it is complete.
    complete: Chunk,
    /// What filters have left out of parts that are done, and which columns these lack. It counts once the unit is
    /// complete: otherwise all of it is read once more.
    left_out: Filtered,
    missing: Vec<MissingColumn>,
}

impl CutUnit {
    /// One all of which is done.
    fn done() -> Self {
        let complete = Chunk { unit: String::new(), number: 0 };
        CutUnit { sink: String::new(), left: 0, complete, left_out: Filtered::default(), missing: Vec::new() }
    }
}

impl Distribution {
    /// What workers read of `unit`: parts of it, if it is large and can be cut; otherwise all of it. `to_note` is for
    /// `sink`, if that has a ledger.
    async fn cut(&self, cuts: &mut Cuts, unit: Unit, sink: &str, to_note: Option<ToNote>) -> Vec<Unit> {
        let key = (cuts.source().to_owned(), unit.uri.clone());
        if self.state().cut.contains_key(&key) {
            // It is listed twice, as the load that follows says.
            return Vec::new();
        }
        let parts = cuts.of(&unit).await;
        if parts.is_empty() {
            return vec![unit];
        }
        if let (Some(ToNote { version, complete, .. }), Some(shared)) = (to_note, self.sink(sink)) {
            // Each of the workers would note the version, and all but one would be refused.
            if let Some(version) = version {
                let noting = async { shared.ledger.delivery(vec![version], 0).await?.commit().await };
                if noting.await.is_err() {
                    return vec![unit];
                }
            }
            let cut = CutUnit { sink: sink.to_owned(), left: parts.len(), complete, ..CutUnit::done() };
            self.state().cut.insert(key, cut);
        }
        parts
    }

    /// A part of a unit, which lacks columns, is in the target of `worker`: with the last one the unit is complete.
    fn count_part(&self, worker: Worker, OfPart { source, uri, left_out }: OfPart, missing: Vec<MissingColumn>) {
        let mut state = self.state();
        let key = (source, uri);
        let Some(cut) = state.cut.get_mut(&key) else { return };
        cut.left = cut.left.saturating_sub(1);
        cut.left_out += left_out;
        cut.missing.extend(missing);
        if cut.left > 0 {
            return;
        }
        let CutUnit { sink, complete, left_out, missing, .. } = std::mem::replace(cut, CutUnit::done());
        let Some(ledger) = self.sink(&sink).map(|shared| Arc::clone(&shared.ledger)) else { return };
        let mut delivery = KeptDelivery::of_notes(&sink, &key.0, vec![complete.clone()]);
        if left_out.records > 0 {
            delivery.leave_out(&key.0, left_out);
        }
        // Workers are not kept waiting for it.
        state.noting.spawn(async move {
            let noting = async { ledger.delivery(vec![complete], 0).await?.commit().await };
            // Where it cannot be noted now, the load that follows finds that nothing of it is missing, and notes it.
            matches!(noting.await, Ok(Delivered::Written { .. })).then_some((worker, delivery, missing))
        });
    }

    /// Units lack columns.
    fn lack(&self, missing: &[MissingColumn]) {
        for missing in missing {
            if let Some(reader) = self.readers.iter().find(|reader| reader.name == missing.source) {
                let columns = self.columns.get(&missing.source);
                columns.into_iter().for_each(|columns| reader.lacking.add_elsewhere(missing, columns));
            }
        }
    }

    /// Waits until it is noted which units are complete.
    async fn noted(&self) {
        let mut noting = std::mem::take(&mut self.state().noting);
        while let Some(noted) = noting.join_next().await {
            if let Ok(Some((worker, delivery, missing))) = noted {
                // It has no rejects.
                let _ = self.committed(worker, &delivery);
                self.lack(&missing);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sink(&self, name: &str) -> Option<&SharedSink> {
        self.sinks.iter().find(|sink| sink.name == name)
    }

    fn step(&self, name: &str, kind: StepKind) -> Option<Arc<Step>> {
        self.steps.all().into_iter().find(|step| step.name == name && step.kind == kind)
    }

    /// Lets this machine read what no bundle has that counts, of sources whose sinks have no ledger.
    fn read_here(&self, Unsent(unsent): Unsent, outcome: Outcome) -> Result<()> {
        let mut left = unsent.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Outcome::Alone(units) = outcome {
            for unit in units.units().map_err(unpacked)? {
                if let Some(left) = left.get_mut(&unit.source) {
                    left.add(unit).map_err(unpacked)?;
                }
            }
        }
        for (source, left) in left {
            if let Some(reader) = self.readers.get(source as usize) {
                reader.list_next(unpack(left));
            }
        }
        Ok(())
    }

    /// A delivery of `worker` is committed.
    fn committed(&self, worker: Worker, delivery: &KeptDelivery) -> Result<()> {
        let Some(sink) = self.sink(&delivery.sink) else { return Ok(()) };
        let tally = delivery.tally;
        sink.by_workers.add(delivery);
        sink.rows.fetch_add(tally.written, Ordering::Relaxed);
        self.progress.iter().for_each(|progress| progress.add_rows(tally.written));
        let parsed = delivery.by_parser;
        if let Some(load) = self.step(&delivery.sink, StepKind::Load) {
            load.add_rows(tally.written);
            load.add_rejected(tally.rejected.saturating_sub(parsed));
        }
        let left_out: u64 = delivery.left_out.values().map(|left_out| left_out.records).sum();
        let rows = tally.read.saturating_sub(parsed + left_out);
        self.came_from(&delivery.source, rows, parsed);
        for (source, left_out) in &delivery.left_out {
            let parsed = left_out.records.saturating_sub(left_out.passed_over);
            self.came_from(source, parsed, 0);
            self.step(source, StepKind::Parse).iter().for_each(|parse| parse.add_passed_over(left_out.passed_over));
            if let Some(reader) = self.readers.iter().find(|reader| reader.name == *source) {
                reader.filtered.fetch_add(left_out.records, Ordering::Relaxed);
            }
            *self.state().came.entry(source.clone()).or_default() += left_out.passed_over;
        }
        *self.state().came.entry(format!("sink {}", delivery.sink)).or_default() += delivery.sent;
        if let Some(report) = self.state().workers.get_mut(&worker) {
            report.rows += tally.written;
        }
        delivery.rejects.iter().for_each(|line| self.judging.count_earlier(&line.rejected));
        self.judging.passed()
    }

    /// Records of `source` were parsed, and some refused.
    fn came_from(&self, source: &str, rows: u64, rejected: u64) {
        if let Some(parse) = self.step(source, StepKind::Parse) {
            parse.add_rows(rows);
            parse.add_rejected(rejected);
        }
        *self.state().came.entry(source.to_owned()).or_default() += rows + rejected;
    }

    /// Asks the ledgers what of the open deliveries of `worker`, or of all, is there.
    async fn settle(&self, worker: Option<Worker>) {
        let sinks = self.state().tracked.sinks(worker);
        for name in sinks {
            let Some(sink) = self.sink(&name) else { continue };
            // One that does not answer is asked again by the load that follows: the rows are counted as loaded before.
            let Ok(written) = sink.ledger.written().await else { continue };
            let committed = self.state().tracked.settle(worker, &name, &written);
            for (of, delivery) in committed {
                // Too many rejects end the run when all has come.
                let _ = self.committed(of, &delivery);
            }
        }
    }

    /// Workers have ended, or are to: of a run that fails, nothing is written after this.
    async fn end(&self, has_failed: bool) {
        let workers: Vec<Worker> = self.state().workers.keys().copied().collect();
        if has_failed {
            futures::future::join_all(workers.into_iter().map(|worker| self.fence(worker))).await;
        }
        self.noted().await;
        self.settle(None).await;
        let came = self.state().came.clone();
        if let Some(log) = self.rejects.log().filter(|_| !came.is_empty()) {
            // Where they cannot be kept, the load that follows says so.
            let _ = log.add([Line::Came { came }], true);
        }
        self.show();
    }

    /// Ends what a worker has at the targets. Whether it has: otherwise it may still commit what it has told, and who
    /// reads its units waits for its locks, and writes nothing twice all the same.
    async fn fence(&self, worker: Worker) -> bool {
        let mut is_fenced = true;
        for sink in &self.sinks {
            let ended = tokio::time::timeout(LONGEST_FENCE, sink.ledger.end_worker(worker)).await;
            is_fenced &= matches!(ended, Ok(Ok(())));
        }
        is_fenced
    }

    fn show(&self) {
        let workers = self.state().workers.values().cloned().collect();
        let mut shown = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        shown.get_or_insert_default().workers = workers;
    }
}

#[async_trait]
impl Load for Distribution {
    async fn keep(&self, worker: Worker, what: Value) -> Result<()> {
        let Keep(delivery) = from_value(what)?;
        let chunks: Vec<ChunkId> = delivery.chunks().map(|chunk| ChunkId::new(&delivery.sink, &chunk)).collect();
        let came = self.state().came.clone();
        self.rejects.known_log()?.add_delivery(chunks, delivery.rejects.clone(), delivery.checked.clone(), came)?;
        self.state().tracked.keep(worker, delivery);
        Ok(())
    }

    fn tell(&self, worker: Worker, told: Value) -> Result<()> {
        match from_value(told)? {
            Told::Committed(number) => {
                let committed = self.state().tracked.committed(worker, number);
                committed.map_or(Ok(()), |delivery| self.committed(worker, &delivery))
            }
            Told::Lines(lines) => self.rejects.known_log()?.add(lines, false),
        }
    }

    async fn count(&self, worker: Worker, outcome: Value) -> Result<()> {
        let mut outcome: BundleOutcome = from_value(outcome)?;
        match outcome.part.take() {
            Some(part) => self.count_part(worker, part, std::mem::take(&mut outcome.missing_columns)),
            None => self.lack(&outcome.missing_columns),
        }
        if let Some(of_files) = outcome.files.take() {
            let came = std::mem::take(&mut outcome.came);
            let own = (&*self.steps, &*self.readers, &*self.rejects);
            let rows = self.files.count(of_files, &outcome.steps, &came, own).await?;
            self.progress.iter().for_each(|progress| progress.add_rows(rows));
            self.state().workers.get_mut(&worker).into_iter().for_each(|report| report.rows += rows);
        }
        for step in &outcome.steps {
            if let Some(own) = self.step(&step.name, step.kind) {
                own.add_elsewhere(step);
            }
        }
        self.cache.add_cached(outcome.cached.0);
        self.cache.add_disk(outcome.cached.1);
        let mut state = self.state();
        // Those of sources and sinks come with the deliveries.
        let is_known = |entry: &String| {
            self.sources.contains_key(entry)
                || entry.strip_prefix("sink ").is_some_and(|sink| self.sink(sink).is_some())
        };
        for (entry, came) in outcome.came.into_iter().filter(|(entry, _)| !is_known(entry)) {
            *state.came.entry(entry).or_default() += came;
        }
        if let Some(report) = state.workers.get_mut(&worker) {
            report.bundles += 1;
            report.units += outcome.units;
            report.bytes +=
                outcome.steps.iter().filter(|step| step.kind == StepKind::Fetch).map(|step| step.bytes).sum::<u64>();
            report.seconds += outcome.seconds;
            report.cpu_seconds += outcome.cpu_seconds;
            report.delayed_seconds += outcome.delayed_seconds;
            report.peak_rss_bytes = report.peak_rss_bytes.max(outcome.peak_rss_bytes);
        }
        drop(state);
        self.show();
        Ok(())
    }

    async fn discard(&self, outcome: Value) {
        if let Ok(BundleOutcome { files: Some(of_files), .. }) = from_value(outcome) {
            self.files.discard(of_files).await;
        }
    }

    async fn lose(&self, worker: Worker) {
        // Of one that may still commit, the ledger is asked when all has ended.
        if self.fence(worker).await {
            self.settle(Some(worker)).await;
        }
    }

    fn deadly(&self, unit: &ListedUnit) -> Error {
        deadly(unit, self.readers.get(unit.source as usize).map(|reader| reader.name.as_str()))
    }

    fn see(&self, seen: Seen) {
        match seen {
            Seen::Joined(worker, hello) => {
                let report = WorkerReport {
                    worker: hello.name(),
                    cores: hello.cores,
                    memory_bytes: hello.memory,
                    ..WorkerReport::default()
                };
                (self.tell)(Event::Joined { worker: report.worker.clone(), cores: hello.cores });
                self.state().workers.insert(worker, report);
                self.show();
            }
            Seen::Refused(worker, error) => (self.tell)(Event::NotJoined { worker, error }),
            Seen::Left(worker) => self.parted(worker, None, 0),
            Seen::Lost(worker, why, bundles) => self.parted(worker, Some(why), bundles),
            Seen::Standing(standing) => {
                let mut shown = self.report.lock().unwrap_or_else(PoisonError::into_inner);
                let report = shown.get_or_insert_default();
                report.now = standing.workers as u64;
                report.bundles = standing.done.bundles;
                report.reading = standing.reading as u64;
                report.bytes = (standing.done.bytes, standing.listed.bytes);
                report.units = (standing.done.units, standing.listed.units);
            }
        }
    }
}

impl Distribution {
    fn parted(&self, worker: Worker, why: Option<String>, bundles: usize) {
        let mut state = self.state();
        let Some(report) = state.workers.get_mut(&worker) else { return };
        report.lost.clone_from(&why);
        let name = report.worker.clone();
        drop(state);
        (self.tell)(match why {
            Some(why) => Event::Lost { worker: name, why, bundles: bundles as u64 },
            None => Event::Left { worker: name },
        });
        self.show();
    }
}
