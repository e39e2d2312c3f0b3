//! Loading rejects again: each raw record is a unit of its own, which goes through the job's parser and steps into the sink
//! that it did not get into.
//!
//! ```text
//!  rejects ─▶ units, each a header and a record ─▶ the job, reduced to one sink ─▶ commit ─▶ marked as loaded ─▶ ledger forgets
//! ```
//! A replay is a load like any other, with a name of its own in the target's ledger: it tells the run and how many replays
//! into this sink have come to their end, the **round**. So one that is killed is gone on with by the next, and what it has
//! loaded is loaded once. What fails again is kept again, and stays a reject.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use millstream_core::reject::Rejected;
use millstream_core::sink::SinkParts;
use millstream_core::source::{Source, SourceContext};
use millstream_core::{ByteStream, Error, Result, Unit};
use millstream_job::{Job, SinkStep, SourceStep};
use serde_json::Value;

use super::log::{self, Again, Kept, Marks, RejectLine};
use crate::ledgers::is_used;
use crate::machine::Machine;
use crate::prepare::{Base, Failure};
use crate::read::lacking::Lacking;
use crate::read::unopened::Unopened;
use crate::read::{Opened, PlaceSource, Reader};
use crate::run::{RunOptions, Watch, run};

/// What the URIs of the units begin with.
const SCHEME: &str = "replay:";

/// The rejects of a run on their way into one sink.
#[derive(Debug)]
pub struct Replay {
    /// The first of the runs that they are of.
    pub first: String,
    /// The sink.
    pub sink: String,
    /// How many replays into the sink have come to their end.
    pub round: u64,
    folder: PathBuf,
    /// By their URIs.
    units: BTreeMap<String, Arc<ReplayUnit>>,
    /// URIs of those that an earlier attempt of the round has loaded.
    passed: Mutex<HashSet<String>>,
    /// Why rows cannot go into the sink one by one, once that is known.
    why_not: OnceLock<String>,
}

/// A record that is loaded again.
#[derive(Debug)]
pub struct ReplayUnit {
    id: String,
    /// What was told of it.
    pub rejected: Rejected,
    text: Bytes,
}

/// What replays have come to.
#[derive(Debug, Default, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Replayed {
    /// How many rejects are loaded now that were not.
    pub loaded: u64,
    /// How many have failed again.
    pub failed: u64,
    /// How many cannot be loaded from what was kept of them, and why.
    pub impossible: BTreeMap<String, u64>,
}

impl Replay {
    /// The name of the load, behind that of its sink.
    pub fn load(&self) -> String {
        format!("{}{}", self.load_of_any_round(), self.round)
    }

    /// What the names of all rounds begin with.
    pub fn load_of_any_round(&self) -> String {
        format!("{PREFIX}{} ", self.first)
    }

    /// Where a record comes from, by the URI of its unit.
    pub fn unit(&self, uri: &str) -> Option<&Arc<ReplayUnit>> {
        self.units.get(uri)
    }

    /// What is kept of a record that has failed again.
    pub fn again(&self, line: RejectLine) -> RejectLine {
        let uri = line.rejected.uri.clone().unwrap_or_default();
        let Some(unit) = self.unit(&uri) else { return line };
        let Rejected { step, kind, message, column, .. } = line.rejected;
        let rejected = Rejected { step, kind, message, column, ..unit.rejected.clone() };
        let again = Again { id: unit.id.clone(), sink: self.sink.clone(), round: self.round };
        RejectLine { rejected, again: Some(again), head: None, ..line }
    }

    /// An earlier attempt has loaded this unit; all of them, if none is named.
    pub fn pass(&self, uri: Option<&str>) {
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        match uri {
            Some(uri) => drop(passed.insert(uri.to_owned())),
            None => passed.extend(self.units.keys().cloned()),
        }
    }

    /// Rows cannot go into the sink one by one, in words that end a sentence.
    pub fn refuse(&self, why: &str) -> Error {
        let _ = self.why_not.set(why.to_owned());
        Error::refused(format!("rejects cannot be loaded into `{}` by themselves", self.sink))
            .cause(why)
            .hint("run the job again: it reads everything")
    }

    /// Everything is in the target: what was loaded is marked, before the ledger forgets it. `run` is this attempt.
    pub fn mark(&self, run: &str) -> Result<()> {
        let failed = self.failed(run)?;
        let loaded = self.units.values().filter(|unit| !failed.contains(&unit.id)).map(|unit| unit.id.clone());
        Marks::add(&self.folder, &self.sink, loaded)
    }

    /// The ids of those that have failed again: in this attempt, or in the earlier one that has delivered them.
    fn failed(&self, run: &str) -> Result<HashSet<String>> {
        let passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        let by_id: HashMap<&str, &str> =
            self.units.iter().map(|(uri, unit)| (unit.id.as_str(), uri.as_str())).collect();
        let of_round = |again: &Again| again.sink == self.sink && again.round == self.round;
        let failed = log::failed_again(&self.folder)?.into_iter().filter(|(_, again)| of_round(again));
        let counts = |by: &str, id: &str| by == run || by_id.get(id).is_some_and(|uri| passed.contains(*uri));
        Ok(failed.filter(|(by, again)| counts(by, &again.id)).map(|(_, again)| again.id).collect())
    }

    /// `reader`, which reads the records of its source that are loaded again, and nothing else.
    pub fn reader(self: &Arc<Self>, base: &Base, reader: &Reader, source: &SourceStep) -> Result<Arc<Reader>> {
        let of_source = |unit: &ReplayUnit| unit.rejected.source.as_deref() == Some(reader.name.as_str());
        let patterns = self.units.iter().filter(|(_, unit)| of_source(unit)).map(|(uri, _)| uri.clone()).collect();
        let place: Arc<dyn Source> = Arc::new(ReplaySource(Arc::clone(self)));
        Ok(Arc::new(Reader {
            name: reader.name.clone(),
            patterns,
            places: vec![PlaceSource { schemes: &[""], source: place }],
            registry: reader.registry,
            format: without_encoding(base, source)?.unwrap_or_else(|| Arc::clone(&reader.format)),
            members: Vec::new(),
            limits: reader.limits.clone(),
            allow_empty: true,
            on_drift: reader.on_drift,
            lacking: Lacking::default(),
            empty_files: reader.empty_files,
            unopened: Unopened::new(source.on_error),
            validate: reader.validate,
            sorted_by: Vec::new(),
            provenance: reader.provenance.clone(),
            incremental: false,
            rejects: Arc::clone(&reader.rejects),
            filtered: AtomicU64::new(0),
            replay: Some(Arc::clone(self)),
            context: base.source_context(),
            steps: reader.steps.clone(),
            opened: Opened::default(),
        }))
    }
}

/// In the names of loads, after the sink.
pub const PREFIX: &str = "replay of ";

/// The format of a source whose text has another encoding: what is kept of its records is UTF-8.
fn without_encoding(base: &Base, source: &SourceStep) -> Result<Option<Arc<dyn millstream_core::format::Format>>> {
    let block = base.registry.formats.iter().find_map(|entry| Some((entry, source.settings.get(entry.spec.name)?)));
    let Some((entry, Value::Object(settings))) = block else { return Ok(None) };
    if !settings.contains_key("encoding") {
        return Ok(None);
    }
    let settings =
        settings.iter().filter(|(key, _)| *key != "encoding").map(|(key, value)| (key.clone(), value.clone()));
    let built = (entry.build)(&Value::Object(settings.collect()));
    built.map(Some).map_err(|_| Error::internal("a format cannot do without its encoding"))
}

/// Gives records as units.
#[derive(Debug)]
struct ReplaySource(Arc<Replay>);

impl ReplaySource {
    fn text(&self, unit: &Unit) -> Result<Bytes> {
        let found = self.0.unit(&unit.uri).map(|unit| unit.text.clone());
        found.ok_or_else(|| Error::internal("a reject is loaded again that is none").in_unit(&unit.uri, None))
    }
}

#[async_trait]
impl Source for ReplaySource {
    fn name(&self) -> &'static str {
        "rejects"
    }

    fn connections(&self) -> usize {
        1
    }

    fn list(&self, _: &SourceContext, pattern: &str) -> BoxStream<'static, Result<Unit>> {
        let size = self.0.unit(pattern).map(|unit| unit.text.len() as u64);
        let unit = Unit { size, ..Unit::new(pattern) };
        futures::stream::once(std::future::ready(Ok(unit))).boxed()
    }

    async fn open(&self, _: &SourceContext, unit: &Unit) -> Result<ByteStream> {
        let text = self.text(unit)?;
        Ok(futures::stream::once(std::future::ready(Ok(text))).boxed())
    }

    async fn read_range(&self, _: &SourceContext, _: &Unit, _: Range<u64>) -> Result<Option<Bytes>> {
        Ok(None)
    }

    async fn look(&self, _: &SourceContext, unit: &Unit) -> Result<Unit> {
        Ok(Unit { size: Some(self.text(unit)?.len() as u64), ..unit.clone() })
    }
}

/// Loads the rejects of `first` and the runs that went on with it again, by `job` as it is now.
pub fn replay(
    job: &Job,
    machine: &Machine,
    state: &Path,
    first: &str,
    variables: &[(String, String)],
    watch: Watch<'_>,
) -> Result<Replayed, Failure> {
    let folder = log::folder(state, first);
    let waiting: Vec<Kept> = log::of_run(state, first)?.into_iter().filter(|kept| !kept.replayed).collect();
    let mut replayed = Replayed::default();
    let mut possible: Vec<(&Kept, Bytes, Vec<&SinkStep>)> = Vec::new();
    for kept in &waiting {
        match text(job, kept).and_then(|text| Ok((text, sinks(job, kept)?))) {
            Ok((text, sinks)) => possible.push((kept, text, sinks)),
            Err(why) => *replayed.impossible.entry(why).or_default() += 1,
        }
    }
    let (options, mut refused) = (RunOptions::default(), Vec::new());
    for sink in &job.sinks {
        let (name, marks) = (&sink.name.value, Marks::read(&folder)?);
        let of_sink = |sinks: &[&SinkStep]| sinks.iter().any(|one| one.name.value == *name);
        let due = possible.iter().filter(|(kept, _, sinks)| of_sink(sinks) && !marks.has(&kept.id, name));
        let units: BTreeMap<String, Arc<ReplayUnit>> = due
            .map(|(kept, text, _)| {
                let (id, rejected) = (kept.id.clone(), kept.line.rejected.clone());
                (format!("{SCHEME}{id}"), Arc::new(ReplayUnit { id, rejected, text: text.clone() }))
            })
            .collect();
        if units.is_empty() {
            continue;
        }
        let replay = Arc::new(Replay {
            first: first.to_owned(),
            sink: name.clone(),
            round: marks.rounds(name),
            folder: folder.clone(),
            units,
            passed: Mutex::default(),
            why_not: OnceLock::new(),
        });
        let asked = RunOptions { replay: Some(Arc::clone(&replay)), variables: variables.to_vec(), ..options.clone() };
        match (run(&reduced(job, sink)?, machine.clone(), &asked, watch), replay.why_not.get()) {
            (Ok(_), _) => {}
            // Others may take them.
            (Err(failure), Some(why)) => refused.push((name.clone(), why.clone(), failure)),
            (Err(failure), None) => return Err(failure),
        }
    }
    for (name, why, failure) in refused {
        let of_sink = |sinks: &[&SinkStep]| sinks.iter().any(|one| one.name.value == name);
        let count = possible.iter().filter(|(.., sinks)| of_sink(sinks)).count() as u64;
        possible.iter_mut().for_each(|(.., sinks)| sinks.retain(|sink| sink.name.value != name));
        possible.retain(|(.., sinks)| !sinks.is_empty());
        if possible.is_empty() {
            return Err(failure);
        }
        *replayed
            .impossible
            .entry(format!("`{name}` takes no rows by themselves, since {why}: run the job again"))
            .or_default() += count;
    }
    let marks = Marks::read(&folder)?;
    let is_loaded = |kept: &Kept, sinks: &[&SinkStep]| sinks.iter().all(|sink| marks.has(&kept.id, &sink.name.value));
    let loaded: Vec<String> =
        possible.iter().filter(|(kept, _, sinks)| is_loaded(kept, sinks)).map(|(kept, ..)| kept.id.clone()).collect();
    replayed.loaded = loaded.len() as u64;
    replayed.failed = possible.len() as u64 - replayed.loaded;
    Marks::finish(&folder, &loaded)?;
    Ok(replayed)
}

/// The text of a unit with the record; otherwise why there can be none.
fn text(job: &Job, kept: &Kept) -> Result<Bytes, String> {
    let RejectLine { rejected, head, .. } = &kept.line;
    let source = rejected
        .source
        .as_deref()
        .ok_or("their records are not known: they come from a step that puts rows together")?;
    let raw = rejected.raw.as_ref().ok_or("their records were not kept, only their rows")?;
    if raw.cut_from.is_some() {
        return Err("their records are longer than what is kept".to_owned());
    }
    let raw = raw.bytes().ok_or("what was kept of them is damaged")?;
    let step = job.sources.iter().find(|step| step.name.value == source);
    let step = step.ok_or("the job has no source of that name any more")?;
    let setting = |block: &str, key: &str| step.settings.get(block).and_then(|block| block.get(key)).cloned();
    let is_csv = step.format.as_ref().map_or(head.is_some(), |format| format.name() == "csv");
    let has_header = is_csv && setting("csv", "header") != Some(Value::Bool(false));
    let head = head.as_ref().map(|head| head.bytes().unwrap_or_default()).unwrap_or_default();
    if has_header && head.is_empty() {
        return Err("the header of their file was not kept".to_owned());
    }
    let array = setting("json", "layout") == Some(Value::String("array".to_owned()));
    Ok(match array {
        true => [b"[".as_slice(), &raw, b"]\n"].concat().into(),
        false => [head.as_slice(), &raw, b"\n"].concat().into(),
    })
}

/// The sinks that a record has not got into; otherwise why it cannot get there.
fn sinks<'a>(job: &'a Job, kept: &Kept) -> Result<Vec<&'a SinkStep>, String> {
    let Rejected { source, sink, .. } = &kept.line.rejected;
    let source = source.as_deref().unwrap_or_default();
    let wanted = |step: &&SinkStep| match sink {
        Some(sink) => step.name.value == *sink,
        None => is_used(job, &step.from.value, source),
    };
    let sinks: Vec<&SinkStep> = job.sinks.iter().filter(wanted).collect();
    match sinks.iter().find(|sink| sink.entry.formats) {
        _ if sinks.is_empty() => Err("the job has no sink for them any more".to_owned()),
        Some(file) => Err(format!("`{}` writes files, and single rows cannot be put into them", file.name.value)),
        None => Ok(sinks),
    }
}

/// The job with this sink alone, which adds rows.
fn reduced(job: &Job, sink: &SinkStep) -> Result<Job> {
    let used = |name: &str| is_used(job, &sink.from.value, name);
    let replaces = matches!(sink.settings.get("mode").and_then(Value::as_str), Some("replace" | "truncate"));
    let mut sink = sink.clone();
    if let Value::Object(settings) = &mut sink.settings {
        // They are about a load of everything.
        for key in ["before", "after", "atomic", "defer_key", "defer_indexes"] {
            settings.remove(key);
        }
        if replaces {
            settings.insert("mode".to_owned(), Value::String("append".to_owned()));
        }
        let mut own = settings.clone();
        own.remove("max_rejects");
        let parts = SinkParts { target: sink.write.value.clone(), format: None, codec: None, store: None };
        let built = (sink.entry.build)(&Value::Object(own), parts);
        sink.sink = built.map_err(|faults| {
            let what = faults.into_iter().next().map_or_else(String::new, |fault| fault.what);
            Error::job("the sink cannot add rows").in_step(&sink.name.value).cause(what)
        })?;
    }
    Ok(Job {
        text: job.text.clone(),
        sources: job.sources.iter().filter(|source| used(&source.name.value)).cloned().collect(),
        transforms: job.transforms.iter().filter(|step| used(&step.name.value)).cloned().collect(),
        sinks: vec![sink],
    })
}
