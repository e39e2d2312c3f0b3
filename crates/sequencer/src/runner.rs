//! The run of a sequence: a loop that starts what may start, and notes how it has ended.
//!
//! One thread drives it. All that happens becomes an event, which is kept before anything follows from it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::LocalBoxFuture;
use futures::stream::FuturesUnordered;
use millstream_core::program::Lines;
use millstream_core::redact::Secrets;
use millstream_core::stable_hash;
use millstream_core::{Error, ErrorKind, Result, clock, fail_point};
use millstream_engine::options::Cancel;
use millstream_engine::sequences::Row;
use millstream_engine::{Engine, Failure};
use millstream_job::sequence::model::{Action, Awaited, When};
use millstream_job::sequence::state::{admitted, decide_items};
use millstream_job::sequence::{Sequence, Step, StepState};
use millstream_state::{
    CancelFile, Claim, Ending as RunEnding, JobKey, LiveRun, LogicalRun, Occurrences, OfStep, PoolPlace, RunHistory,
    RunKind, SequenceFolder, ViewFile, new_name,
};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::act::{self, FilePart, Ready, Report};
use crate::events::{Ending, Event, Outcome, Seen, VERSION};
use crate::handover::Handover;
use crate::progress::{Item, Part, Progress, StepProgress};
use crate::read::ReadSequence;
use crate::resume::Asked;
use crate::share::{Memory, has_memory};
use crate::surroundings::{Done, Surroundings, in_words};
use crate::values::{self, Values};

/// How long a job that is kept running waits at least before it starts again.
const LEAST_PAUSE: Duration = Duration::from_secs(1);

/// How long it waits at most.
const MOST_PAUSE: Duration = Duration::from_secs(300);

/// A job that is kept running and has run for so long waits no longer than at first.
const STEADY: Duration = Duration::from_secs(60);

/// How often it looks for a file that asks it to stop.
const LOOKS: Duration = Duration::from_millis(500);

/// What is kept of the results of an item of a loop.
const OF_ITEMS: [&str; 8] =
    ["rows_read", "rows_written", "rows_rejected", "run", "exit_code", "status", "duration_ms", "ok"];

/// Makes a page of a run: of its name in the history, and its report so far.
pub type Page = Box<dyn Fn(&RunHistory, &str, &Value) -> Result<String>>;

/// What a run is given beside its sequence.
pub struct RunOptions {
    /// What it is asked for.
    pub asked: Asked,
    /// The step of another sequence that it is.
    pub of_step: Option<OfStep>,
    /// The pools in which a step has a place that runs this sequence.
    pub pools: BTreeSet<String>,
    /// The planned time at which a scheduler starts it, in milliseconds since 1970.
    pub occurrence: Option<i64>,
    /// Millstream, and the arguments that its processes get: of the machine and the state.
    pub program: Vec<OsString>,
    /// Stops it: processes are asked to end, and nothing more starts.
    pub cancel: Cancel,
    /// Makes a page of it for mails.
    pub page: Page,
}

/// What a run has come to.
#[derive(Debug)]
pub struct SequenceReport {
    /// Its report.
    pub json: Value,
    /// Why it has failed, or that it was interrupted.
    pub error: Option<Error>,
    /// Whether there was nothing to do: the last run is done.
    pub nothing_to_do: bool,
}

/// The moment that a run of the sequence with this key begins with: that of the run which it continues.
///
/// # Errors
/// If the history cannot be read, or that run has not ended.
pub fn moment(history: &RunHistory, key: &JobKey, asked: &Asked) -> Result<Option<i64>> {
    Ok(asked.earlier(history, key)?.map(|earlier| earlier.record.moment()))
}

/// The logical run that has the occurrence of the sequence at `path` at `planned`, if one has it.
///
/// # Errors
/// If the history cannot be read.
pub fn chain(history: &Arc<RunHistory>, path: &str, planned: i64) -> Result<Option<String>> {
    let found = Occurrences::new(Arc::clone(history)).find(&JobKey::new(path, &[]).path, planned)?;
    Ok(found.and_then(|occurrence| occurrence.logical))
}

/// Runs `read` to its end. `see` gets all that happens.
///
/// # Errors
/// If the run cannot begin, or what happens cannot be kept. That a step fails is no such error.
pub fn run(
    engine: &Engine,
    read: &ReadSequence,
    history: &Arc<RunHistory>,
    options: RunOptions,
    see: &dyn Fn(&Seen<'_>),
) -> Result<SequenceReport, Failure> {
    let sequence = Arc::clone(&read.sequence);
    let set: Vec<(String, String)> = read.set.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    let key = JobKey::new(sequence.path(), &set);
    let _only = history.only_run(&key).map_err(|error| {
        let running = Error::refused("this sequence is running already").hint("wait until it has ended, or end it");
        error.cause_text().map_or_else(|| running.clone(), |cause| running.clone().cause(cause))
    })?;
    let earlier = options.asked.earlier(history, &key)?;
    let progress = options.asked.begin(&sequence, earlier.as_ref())?;
    let name = new_name();
    let continued = earlier.as_ref().filter(|_| options.asked.only.is_empty()).map(|earlier| &earlier.record);
    if let Some(last) = continued
        && last.is_complete()
        && progress.states().iter().all(|state| state.is_over())
    {
        let json = last.report.clone().unwrap_or_default();
        return Ok(SequenceReport { json, error: None, nothing_to_do: true });
    }
    let chain = continued.map(|last| last.logical.clone()).or_else(|| options.asked.chain.clone());
    let first = chain.unwrap_or_else(|| name.clone());
    let logical = LogicalRun {
        first: &first,
        moment: sequence.moment.milliseconds(),
        series: None,
        kind: RunKind::Sequence,
        of_step: options.of_step.as_ref(),
    };
    let live = history.begin(&name, logical, &key)?;
    let live = claimed(history, live, &key, &first, options.occurrence)?;
    let folder = SequenceFolder::create(history.folder(), &name)?;
    let (stop, stopped) = watch::channel(false);
    let machine = engine.machine();
    let runner = Runner {
        surroundings: Arc::new(Surroundings::new(engine.clone(), Arc::clone(&sequence), stopped)),
        read,
        history,
        folder,
        pools: pools(machine.pools.clone().unwrap_or_default(), &options.pools),
        places: BTreeMap::new(),
        waits_for_place: false,
        seen_waiting: BTreeSet::new(),
        memory: Memory::new(machine.memory, machine.cores),
        first: first.clone(),
        name,
        began: clock::now(),
        progress,
        in_pools: BTreeMap::new(),
        pauses: BTreeMap::new(),
        came: FuturesUnordered::new(),
        is_stopping: false,
        see,
        options,
        sequence,
    };
    // Only a run that has noted what it takes over can be continued. Steps that run although others have not are
    // nothing to continue: what was there before is.
    let is_aside = !runner.options.asked.only.is_empty()
        || (runner.options.asked.from.is_some() && continued.is_some_and(|last| last.outcome.is_unfinished()));
    runner.keep_earlier()?;
    if !is_aside {
        live.loading(&stable_hash::hash(runner.sequence.text.whole()).to_string(), &Value::Null)?;
    }
    let failed = |cause: std::io::Error| Error::io("the sequence cannot be run", &cause);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let ended = runtime.block_on(runner.run(&stop, &live.view()));
    runtime.shutdown_background();
    let (json, error) = match ended {
        Ok(ended) => ended,
        Err(error) => {
            // Why it has failed is what there is to say, also if that cannot be stored.
            let _ = live.end(Some(&error), &RunEnding::default());
            return Err(error.into());
        }
    };
    let sum = |name: &str| -> u64 { sum(&json, name) };
    let ending = RunEnding {
        rows_read: sum("rows_read"),
        rows_written: sum("rows_written"),
        rows_rejected: sum("rows_rejected"),
        units: 0,
        report: Some(json.clone()),
    };
    // One of which nothing came, as its first job was refused, does not stand before the run that is to be resumed.
    if error.is_some() && continued.is_none() && !has_succeeded(&json) && !history.has_loaded(&first)? {
        live.left_nothing()?;
    }
    live.end(error.as_ref(), &ending)?;
    Ok(SequenceReport { json, error, nothing_to_do: false })
}

/// How many parts run together in each pool. Where a step around this sequence has a place in one, they have it one
/// after the other.
fn pools(mut sizes: BTreeMap<String, usize>, held: &BTreeSet<String>) -> BTreeMap<String, usize> {
    sizes.iter_mut().filter(|(name, _)| held.contains(*name)).for_each(|(_, size)| *size = 1);
    sizes
}

/// Claims the occurrence that `live` is, or whose run it continues. A run that a scheduler starts has none of its own
/// without it; one that is started by hand goes on.
fn claimed(
    history: &Arc<RunHistory>,
    live: LiveRun,
    key: &JobKey,
    first: &str,
    planned: Option<i64>,
) -> Result<LiveRun> {
    let occurrences = Occurrences::new(Arc::clone(history));
    let of_chain = || occurrences.of_chain(first).map(|found| found.map(|found| found.planned));
    let Some(time) = planned.map_or_else(of_chain, |planned| Ok(Some(planned)))? else { return Ok(live) };
    match occurrences.claim(&key.path, time, &live)? {
        Claim::Refused(why) if planned.is_some() => {
            live.withdraw()?;
            Err(Error::refused("this start of the sequence is not to be").cause(why))
        }
        Claim::Refused(_) | Claim::Claimed => Ok(live),
    }
}

/// Whether a part of a step in a report has succeeded.
fn has_succeeded(report: &Value) -> bool {
    let steps = report["steps"].as_array().into_iter().flatten();
    steps.flat_map(|step| step["parts"].as_array()).flatten().any(|part| part["outcome"] == "success")
}

/// The sum of the results `name` of all steps in a report.
fn sum(report: &Value, name: &str) -> u64 {
    let steps = report["steps"].as_array().into_iter().flatten();
    let parts = steps.filter(|step| step["kind"] == "job").flat_map(|step| step["parts"].as_array()).flatten();
    parts.filter_map(|part| part["results"][name].as_u64()).sum()
}

/// Part `.1` of step `.0`.
type PartId = (usize, usize);

/// What has come.
enum Came {
    /// The items of the loop that a step is.
    Items(usize, Result<Vec<Item>, String>),
    /// The end of an attempt, and how long it took.
    Done(PartId, Done, Duration),
    /// The time of another attempt.
    Again(PartId),
}

struct Runner<'a> {
    surroundings: Arc<Surroundings>,
    sequence: Arc<Sequence>,
    read: &'a ReadSequence,
    history: &'a Arc<RunHistory>,
    folder: SequenceFolder,
    options: RunOptions,
    /// The logical run.
    first: String,
    name: String,
    began: u64,
    progress: Progress,
    memory: Memory,
    /// How many may run together in each pool.
    pools: BTreeMap<String, usize>,
    /// How many do.
    in_pools: BTreeMap<String, usize>,
    /// The places that parts have in pools, among all runs of the machine.
    places: BTreeMap<PartId, PoolPlace>,
    /// Whether a part waits for a place that another run has.
    waits_for_place: bool,
    /// The steps of which it was shown that they wait for room.
    seen_waiting: BTreeSet<usize>,
    /// How long jobs that are kept running wait next time.
    pauses: BTreeMap<PartId, Duration>,
    came: FuturesUnordered<LocalBoxFuture<'static, Came>>,
    is_stopping: bool,
    see: &'a dyn Fn(&Seen<'_>),
}

impl Runner<'_> {
    /// The loop. Returns the report, and why the run has failed, if it has.
    async fn run(mut self, stop: &watch::Sender<bool>, view: &ViewFile) -> Result<(Value, Option<Error>)> {
        let cancel = self.options.cancel.clone();
        let asked = CancelFile::new(self.history.folder(), &self.name);
        let mut looks = tokio::time::interval(LOOKS);
        let mut shown = Vec::new();
        loop {
            if !self.is_stopping {
                self.decide().await?;
                self.start()?;
            }
            if self.came.is_empty() && (self.is_stopping || !self.waits_for_place) {
                break;
            }
            tokio::select! {
                came = self.came.next(), if !self.came.is_empty() => if let Some(came) = came { self.take(came)? },
                () = cancel.cancelled(), if !self.is_stopping => {
                    self.is_stopping = true;
                    stop.send_replace(true);
                }
                _ = looks.tick() => {
                    self.show(view, &mut shown);
                    if !self.is_stopping && asked.is_asked() {
                        self.is_stopping = true;
                        stop.send_replace(true);
                    }
                }
            }
        }
        asked.remove();
        let error = self.error();
        let outcome = match error.as_ref().map(Error::kind) {
            None => "done",
            Some(ErrorKind::Interrupted) => "interrupted",
            Some(_) => "failed",
        };
        Ok((self.report(outcome, error.as_ref()), error))
    }

    /// Writes how the steps stand for pages, unless they stand as they were `shown` last.
    fn show(&self, view: &ViewFile, shown: &mut Vec<u8>) {
        let mut steps = self.progress.to_json(&self.sequence);
        hide(&mut steps, &self.surroundings.secrets);
        let text = json!({"steps": steps}).to_string().into_bytes();
        if *shown != text {
            view.write(&text);
            *shown = text;
        }
    }

    /// Keeps what has happened before this run.
    fn keep_earlier(&self) -> Result<()> {
        let (run, first) = (self.name.clone(), self.first.clone());
        let began = Event::Began { version: VERSION, run, first, at: self.began };
        let steps = 0..self.sequence.steps.len();
        let events = steps.flat_map(|step| self.progress.events_of(&self.sequence, step));
        self.folder.add(&[&[began.clone()][..], &events.collect::<Vec<_>>()].concat())?;
        (self.see)(&Seen { sequence: &self.sequence, event: &began, progress: &self.progress });
        Ok(())
    }

    /// Keeps `event`, and draws its consequences.
    fn note(&mut self, event: Event) -> Result<()> {
        self.folder.add([&event])?;
        self.progress.apply(&self.sequence, &event);
        (self.see)(&Seen { sequence: &self.sequence, event: &event, progress: &self.progress });
        Ok(())
    }

    fn name_of(&self, step: usize) -> String {
        self.sequence.steps[step].name.value.clone()
    }

    /// Decides on all steps that can be decided.
    async fn decide(&mut self) -> Result<()> {
        loop {
            let decision = self.sequence.decide(&self.progress.states());
            let is_idle =
                [&decision.start, &decision.ask, &decision.skip, &decision.not_run].iter().all(|list| list.is_empty());
            if is_idle {
                return Ok(());
            }
            for step in decision.skip {
                self.over(step, Outcome::Skipped, None, Row::new())?;
            }
            for step in decision.not_run {
                self.over(step, Outcome::NotRun, None, Row::new())?;
            }
            for step in decision.ask {
                match self.holds(step).await {
                    Ok(true) => self.begin(step)?,
                    Ok(false) => self.over(step, Outcome::Skipped, None, Row::new())?,
                    Err(why) => self.over(step, Outcome::Failed, Some(format!("`when`: {why}")), Row::new())?,
                }
            }
            for step in decision.start {
                self.begin(step)?;
            }
        }
    }

    async fn holds(&self, step: usize) -> Result<bool, String> {
        let When::Condition(condition) = &self.sequence.steps[step].when else { return Ok(true) };
        let sql = values::condition(condition, &self.sequence, &self.progress)?;
        let holds = self.surroundings.engine.holds(&sql, values::columns(&self.sequence)).await;
        holds.map_err(|failure| failure.errors.first().map_or_else(|| failure.to_string(), in_words))
    }

    fn over(&mut self, step: usize, outcome: Outcome, message: Option<String>, results: Row) -> Result<()> {
        self.note(Event::Over { step: self.name_of(step), at: clock::now(), outcome, message, results })
    }

    /// Begins `step`, whose parts start when there is room for them.
    fn begin(&mut self, step: usize) -> Result<()> {
        let (name, at) = (self.name_of(step), clock::now());
        let round = self.progress.steps[step].round;
        if self.sequence.steps[step].for_each.is_none() {
            if self.progress.steps[step].parts.is_empty() {
                return self.note(Event::Step { step: name, at, round, items: None });
            }
            self.note(Event::Again { step: name, at })?;
            // The earlier run may have ended behind the last part and before it noted that the step is over.
            return self.end_step_if_done(step);
        }
        let values = self.values(step, None);
        match act::known_items(&values) {
            Ok(Some(items)) => self.begin_loop(step, Ok(items)),
            Err(error) => self.begin_loop(step, Err(in_words(&error))),
            Ok(None) => {
                self.progress.steps[step].state = StepState::Running;
                let (surroundings, progress) = (Arc::clone(&self.surroundings), self.progress.clone());
                self.came.push(Box::pin(async move {
                    let sequence = Arc::clone(&surroundings.sequence);
                    let step_of = &sequence.steps[step];
                    let values = Values { sequence: &sequence, progress: &progress, step: step_of, item: None };
                    Came::Items(step, act::items_of(&values, &surroundings).await)
                }));
                Ok(())
            }
        }
    }

    fn begin_loop(&mut self, step: usize, items: Result<Vec<Item>, String>) -> Result<()> {
        match items {
            Ok(items) => {
                let (round, name) = (self.progress.steps[step].round, self.name_of(step));
                // Of items that an earlier run has begun, it is known what they have come to.
                let mut before = std::mem::take(&mut self.progress.steps[step].parts);
                let mut of_before = |item: &Item| {
                    let place = before.iter().position(|part| part.item.as_ref() == Some(item))?;
                    Some(before.remove(place))
                };
                let known: Vec<(usize, Part)> =
                    items.iter().enumerate().filter_map(|(part, item)| Some((part, of_before(item)?))).collect();
                self.note(Event::Step { step: name.clone(), at: clock::now(), round, items: Some(items) })?;
                let events: Vec<Event> = known.iter().flat_map(|(part, known)| known.events(&name, *part)).collect();
                self.folder.add(&events)?;
                events.iter().for_each(|event| self.progress.apply(&self.sequence, event));
                for part in &mut self.progress.steps[step].parts {
                    part.attempts = 0;
                }
                self.end_step_if_done(step)
            }
            Err(why) => self.over(step, Outcome::Failed, Some(format!("`for_each`: {why}")), Row::new()),
        }
    }

    fn values<'v>(&'v self, step: usize, item: Option<&'v Item>) -> Values<'v> {
        Values { sequence: &self.sequence, progress: &self.progress, step: &self.sequence.steps[step], item }
    }

    /// Starts the parts for which there is room.
    fn start(&mut self) -> Result<()> {
        let mut candidates = Vec::new();
        for (step, progress) in self.progress.steps.iter().enumerate() {
            if progress.state != StepState::Running {
                continue;
            }
            let states: Vec<StepState> = progress.parts.iter().map(|part| part.state).collect();
            let parallel = self.sequence.steps[step].for_each.as_ref().map_or(1, |for_each| for_each.parallel);
            candidates.extend(decide_items(&states, parallel).start.into_iter().map(|part| (step, part)));
        }
        let pool = |step: usize| self.sequence.steps[step].pool.as_ref().map(|pool| pool.value.as_str());
        let pools: Vec<Option<&str>> = candidates.iter().map(|(step, _)| pool(*step)).collect();
        self.waits_for_place = false;
        for index in admitted(&pools, &self.in_pools, &self.pools) {
            let id = candidates[index];
            let place = match self.place(id.0)? {
                Some(place) => place,
                None => {
                    self.waits_for_place = true;
                    continue;
                }
            };
            let memory = match has_memory(&self.sequence, id.0) {
                true => match self.memory.take(&self.sequence, &self.progress, id) {
                    Some(memory) => memory,
                    None => continue,
                },
                false => 0,
            };
            if let Some(pool) = self.sequence.steps[id.0].pool.as_ref().map(|pool| pool.value.clone()) {
                *self.in_pools.entry(pool).or_default() += 1;
            }
            self.places.extend(place.map(|place| (id, place)));
            self.attempt(id, memory)?;
        }
        for (step, _) in candidates {
            if self.progress.steps[step].waits_for_room && self.seen_waiting.insert(step) {
                let pool = self.sequence.steps[step].pool.as_ref().map(|pool| pool.value.clone());
                let event = Event::Waits { step: self.name_of(step), pool };
                (self.see)(&Seen { sequence: &self.sequence, event: &event, progress: &self.progress });
            }
        }
        Ok(())
    }

    /// A place for a part of `step` in its pool, if it needs one that no step around it has; `None` if other runs of
    /// the machine have them all.
    fn place(&self, step: usize) -> Result<Option<Option<PoolPlace>>> {
        let Some(pool) = self.sequence.steps[step].pool.as_ref().map(|pool| pool.value.as_str()) else {
            return Ok(Some(None));
        };
        match self.pools.get(pool).filter(|_| !self.options.pools.contains(pool)) {
            Some(size) => Ok(PoolPlace::take(self.history.folder(), pool, *size)?.map(Some)),
            None => Ok(Some(None)),
        }
    }

    /// Starts an attempt at a part.
    fn attempt(&mut self, id @ (step, part): PartId, memory: u64) -> Result<()> {
        let (of, progress) = (&self.sequence.steps[step], &self.progress.steps[step]);
        let item = progress.parts[part].item.clone();
        let values = self.values(step, item.as_ref());
        let file = |set| self.file(id, set, memory);
        let ready = Ready::new(&values, &self.surroundings, file, || self.report_so_far(&of.name.value));
        let limit = of.time_limit;
        self.note(Event::Started { step: self.name_of(step), part, at: clock::now() })?;
        let (surroundings, lines, begun) = (Arc::clone(&self.surroundings), self.lines(id), Instant::now());
        self.came.push(Box::pin(async move {
            let done = match ready {
                Ok(ready) => ready.act(&surroundings, limit, lines).await,
                Err(error) => error.into(),
            };
            Came::Done(id, done, begun.elapsed())
        }));
        Ok(())
    }

    fn file(&self, (step, part): PartId, set: Vec<(String, String)>, memory: u64) -> Result<FilePart> {
        let of = &self.sequence.steps[step];
        let (Action::Job(action) | Action::Sequence(action)) = &of.action else {
            return Err(Error::internal("the step has no file"));
        };
        let from_root: PathBuf = self.read.root_of(&action.file.value);
        let label = self.progress.steps[step].label(&of.name.value, part);
        let of_step = OfStep { sequence: self.first.clone(), step: label };
        let texts = match &of.action {
            // Another sequence names further files.
            Action::Sequence(_) => self.read.texts.clone(),
            _ => self
                .read
                .texts
                .get_key_value(&from_root)
                .map(|(path, text)| (path.clone(), text.clone()))
                .into_iter()
                .collect(),
        };
        let handover = Handover {
            sequence: of_step.sequence.clone(),
            step: of_step.step.clone(),
            set: set.iter().cloned().collect(),
            moment: self.sequence.moment.milliseconds(),
            texts,
            pools: self.options.pools.iter().cloned().chain(of.pool.as_ref().map(|pool| pool.value.clone())).collect(),
        };
        let text = serde_json::to_string(&handover);
        let text = text.map_err(|cause| Error::internal("the step cannot be written down").cause(cause))?;
        Ok(FilePart {
            history: Arc::clone(self.history),
            of: of_step,
            program: self.options.program.clone(),
            path: action.file.value.clone(),
            from_root,
            set,
            handover: self.folder.write(&format!("{}.json", file_name(&of.name.value, part)), &text)?,
            memory,
            is_sequence: matches!(of.action, Action::Sequence(_)),
            restarts: self.progress.steps[step].restarts,
            keeps_running: of.keep_running,
        })
    }

    /// What a part says goes to a file of the run.
    fn lines(&self, (step, part): PartId) -> Lines {
        let path = self.folder.file(&log_name(&self.sequence.steps[step].name.value, part));
        let file = Mutex::new(None::<std::fs::File>);
        Arc::new(move |line| {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            if file.is_none() {
                *file = std::fs::OpenOptions::new().create(true).append(true).open(&path).ok();
            }
            // That it cannot be written is no reason to end the step.
            let _ = file.as_mut().map(|file| writeln!(file, "{line}"));
        })
    }

    /// Takes what has come.
    fn take(&mut self, came: Came) -> Result<()> {
        match came {
            Came::Items(step, items) => self.begin_loop(step, items),
            Came::Again(id) => match (self.is_stopping, self.sequence.steps[id.0].keep_running) {
                (false, _) => self.attempt(id, self.memory.of(id)),
                (true, true) => self.end_part(id, Ending::Succeeded, None, Row::new()),
                (true, false) => self.end_part(id, Ending::Stopped, None, Row::new()),
            },
            Came::Done(id, done, took) => self.done(id, done, took),
        }
    }

    fn done(&mut self, id @ (step, part): PartId, done: Done, took: Duration) -> Result<()> {
        let Done { failed, stopped, mut results } = done;
        let of = &self.sequence.steps[step];
        if !has_columns(&of.action) {
            results.insert("duration_ms".to_owned(), json!(u64::try_from(took.as_millis()).unwrap_or(u64::MAX)));
            results.insert("ok".to_owned(), json!(failed.is_none()));
        }
        if of.for_each.is_some() {
            // Nothing refers to what an item has written, and there may be many.
            results.retain(|name, _| OF_ITEMS.contains(&name.as_str()));
        }
        if stopped || (self.is_stopping && failed.is_some()) {
            return self.end_part(id, Ending::Stopped, failed, results);
        }
        if of.keep_running && !self.is_stopping {
            let pause = match took >= STEADY {
                true => LEAST_PAUSE,
                false => self.pauses.get(&id).map_or(LEAST_PAUSE, |pause| (*pause * 2).min(MOST_PAUSE)),
            };
            self.pauses.insert(id, pause);
            return self.retry(id, pause, failed, results);
        }
        let attempts = self.progress.steps[step].parts[part].attempts;
        match (failed, of.retries) {
            (Some(why), Some(retries)) if attempts <= retries.count => self.retry(id, retries.wait, Some(why), results),
            (Some(why), _) => self.end_part(id, Ending::Failed, Some(why), results),
            (None, _) => self.end_part(id, Ending::Succeeded, None, results),
        }
    }

    /// Attempts a part again after `wait`, or ends it if the run is stopped before.
    fn retry(&mut self, id @ (step, part): PartId, wait: Duration, why: Option<String>, results: Row) -> Result<()> {
        let (name, ending) = (self.name_of(step), Ending::Retried);
        self.note(Event::Ended { step: name, part, at: clock::now(), ending, message: why, results })?;
        let mut stop = self.surroundings.stop.clone();
        self.came.push(Box::pin(async move {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
            Came::Again(id)
        }));
        Ok(())
    }

    fn end_part(
        &mut self,
        id @ (step, part): PartId,
        ending: Ending,
        message: Option<String>,
        results: Row,
    ) -> Result<()> {
        self.memory.give_back(id);
        self.places.remove(&id);
        if let Some(pool) = self.sequence.steps[step].pool.as_ref()
            && let Some(count) = self.in_pools.get_mut(&pool.value)
        {
            *count = count.saturating_sub(1);
        }
        self.note(Event::Ended { step: self.name_of(step), part, at: clock::now(), ending, message, results })?;
        fail_point::pass("part.ended");
        self.end_step_if_done(step)
    }

    fn end_step_if_done(&mut self, step: usize) -> Result<()> {
        let progress = &self.progress.steps[step];
        let states: Vec<StepState> = progress.parts.iter().map(|part| part.state).collect();
        let Some(state) = decide_items(&states, 1).state else { return Ok(()) };
        let results = match self.sequence.steps[step].for_each {
            None => progress.parts.first().map(|part| part.results.clone()).unwrap_or_default(),
            Some(_) => self.results_of_loop(step, state),
        };
        let outcome = Outcome::of(state).unwrap_or(Outcome::Failed);
        self.over(step, outcome, None, results)
    }

    /// The results of a loop: sums of those of its items.
    fn results_of_loop(&self, step: usize, state: StepState) -> Row {
        let progress = &self.progress.steps[step];
        let took = clock::now().saturating_sub(progress.began.unwrap_or_else(clock::now));
        let mut results = Row::new();
        if matches!(self.sequence.steps[step].action, Action::Job(_)) {
            for name in ["rows_read", "rows_written", "rows_rejected"] {
                let rows: u64 = progress.parts.iter().filter_map(|part| part.results.get(name)?.as_u64()).sum();
                results.insert(name.to_owned(), json!(rows));
            }
        }
        results.insert("items".to_owned(), json!(progress.parts.len()));
        results.insert("duration_ms".to_owned(), json!(took));
        results.insert("ok".to_owned(), json!(state == StepState::Succeeded));
        results
    }

    /// Why the run has failed.
    fn error(&self) -> Option<Error> {
        let steps = self.sequence.steps.iter().zip(&self.progress.steps);
        let failed: Vec<_> = steps.filter(|(_, progress)| progress.state == StepState::Failed).collect();
        let is_over = self.progress.steps.iter().all(|step| step.state.is_over());
        if self.is_stopping && !is_over {
            let left = self.progress.steps.iter().filter(|step| !step.state.is_over()).count();
            let what = format!("the sequence was interrupted: {left} of {} steps are left", self.progress.steps.len());
            let hint = format!("`millstream run --resume {}` continues it", self.sequence.path());
            return Some(Error::new(ErrorKind::Interrupted, what).hint(hint));
        }
        if failed.is_empty() && !is_over {
            return Some(Error::internal("the sequence has ended, and some of its steps have not"));
        }
        let (first, progress) = failed.first()?;
        let error = match failed.len() {
            1 => {
                let error = Error::refused(format!("the step `{}` has failed", first.name.value));
                progress.why(first).map_or_else(|| error.clone(), |why| error.clone().cause(why))
            }
            count => {
                let why = |(step, progress): &(&Step, &StepProgress)| {
                    let why = progress.why(step).unwrap_or_else(|| "it is not known why".to_owned());
                    format!("`{}`: {why}", step.name.value)
                };
                let whys: Vec<String> = failed.iter().map(why).collect();
                Error::refused(format!("{count} steps have failed")).cause(whys.join("\n"))
            }
        };
        let again = match self.options.asked.only.is_empty() {
            true => format!("once it is mended, `millstream run --resume {}` continues there", self.sequence.path()),
            false => "once it is mended, give the same command again".to_owned(),
        };
        let hint = format!("{again}; the output of its steps is in {}", self.folder.file("").display());
        Some(error.hint(hint))
    }

    fn report(&self, outcome: &str, error: Option<&Error>) -> Value {
        let mut report = json!({
            "sequence": self.sequence.path(), "run": self.name, "logical": self.first, "outcome": outcome,
            "moment": self.sequence.moment.milliseconds(), "began": self.began, "ended": clock::now(),
            "parameters": self.sequence.parameters, "message": error.map(in_words),
            "steps": self.progress.to_json(&self.sequence),
        });
        hide(&mut report, &self.surroundings.secrets);
        report
    }

    /// What a mail or a webhook of `step` says.
    fn report_so_far(&self, step: &str) -> Report {
        let failed = self.progress.steps.iter().any(|step| step.state == StepState::Failed);
        let (outcome, in_words) = if failed { ("failed", "failure") } else { ("running", "success so far") };
        let json = self.report(outcome, None);
        let mut text = format!("{}, run {}\n\n", self.sequence.path(), self.name);
        for (other, progress) in self.sequence.steps.iter().zip(&self.progress.steps) {
            if other.name.value != step {
                let why = progress.why(other).map_or(String::new(), |why| format!(": {why}"));
                text.push_str(&format!("{}: {}{why}\n", other.name.value, crate::progress::outcome(progress.state)));
            }
        }
        let path = std::path::Path::new(self.sequence.path());
        let file = path.file_name().map_or(self.sequence.path().into(), |name| name.to_string_lossy());
        let page = (self.options.page)(self.history, &self.name, &json);
        Report { subject: format!("millstream: {in_words} of {file}"), json, text, page }
    }
}

/// Whether the results of a step are the columns of a row.
fn has_columns(action: &Action) -> bool {
    match action {
        Action::Query(_) => true,
        Action::Wait(wait) => matches!(wait.what, Awaited::Query { .. }),
        _ => false,
    }
}

/// Leaves secrets out of all texts of `value`.
fn hide(value: &mut Value, secrets: &Secrets) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(hidden) = secrets.hidden(text) {
                *text = hidden;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| hide(item, secrets)),
        Value::Object(members) => members.values_mut().for_each(|member| hide(member, secrets)),
        _ => {}
    }
}

/// The name of the log of a part.
fn log_name(step: &str, part: usize) -> String {
    format!("{}.log", file_name(step, part))
}

/// Where the sequence that is the run `run` keeps what the process of a part of `step` has printed, in the state folder
/// `state`. Parts count from 0.
pub fn log_of_part(state: &Path, run: &str, step: &str, part: usize) -> PathBuf {
    SequenceFolder::of(state, run).file(&log_name(step, part))
}

/// The name of the files of a part.
fn file_name(step: &str, part: usize) -> String {
    if part == 0 { step.to_owned() } else { format!("{step}.{}", part + 1) }
}
