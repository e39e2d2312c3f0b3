//! Loads rejects again: a run for each sink, of the job reduced to it. See [`crate::rejects::replay`].

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::executor::block_on;
use millstream_core::format::{Reading, StreamFormat};
use millstream_core::registry::SinkFormats;
use millstream_core::reject::{RawText, Rejected};
use millstream_core::sink::{SinkParts, WrittenChunks};
use millstream_core::{Error, Result};
use millstream_job::{AddColumn, Around, Job, OnChange, SinkStep, SourceStep};
use millstream_state::rejects::{self as reject_log, Kept, RejectLine, ReplayedRejects};
use millstream_state::{RunHistory, began};
use serde_json::Value;

use crate::chunks::sinks::incremental_sources;
use crate::chunks::units::{noted_rejects, number_of};
use crate::context::RunContext;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::job_plan::Runnable;
use crate::options::RunOptions;
use crate::parse::now;
use crate::rejects::replay::{Replay, ReplayUnit};
use crate::resume::ResumePoint;
use crate::run::{Observer, Running, execute};

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

impl Engine {
    /// Starts to load the rejects of `first` and the runs that resumed it again, by `job` as it is now. `state` is the
    /// folder of the run history. Each sink has a run of its own, one after the other.
    ///
    /// # Errors
    /// If the system starts no more threads. All other errors come from [`Running::finish`].
    pub fn replay(
        &self,
        job: Arc<Job>,
        state: PathBuf,
        first: String,
        options: RunOptions,
    ) -> Result<Running<Replayed>> {
        let engine = self.clone();
        Running::start(options, move |options, observer| replay(&engine, &job, &state, &first, options, observer))
    }
}

fn replay(
    engine: &Engine,
    job: &Arc<Job>,
    state: &Path,
    first: &str,
    options: &RunOptions,
    observer: &Observer,
) -> Result<Replayed, Failure> {
    let job = &engine.at(&Arc::clone(job).into(), moment(state, first)?)?.job;
    let folder = reject_log::folder(state, first);
    let waiting: Vec<Kept> = reject_log::of_run(state, first)?.into_iter().filter(|kept| !kept.replayed).collect();
    let mut replayed = Replayed::default();
    let mut possible: Vec<(&Kept, Bytes, Vec<&SinkStep>)> = Vec::new();
    let loads = block_on(shared_loads(engine, Arc::clone(job), options.variables.clone()))?;
    let others = LoadedMessages::of_other_runs(job, state, first, &waiting)?;
    let mut loaded_by_others = Vec::new();
    for kept in &waiting {
        match text(job, kept).and_then(|text| Ok((text, loads.have(job, kept, first, sinks(job, kept)?)?))) {
            Ok((text, mut sinks)) => {
                sinks.retain(|sink| !others.have(kept, &sink.name.value));
                match sinks.is_empty() {
                    true => loaded_by_others.push(kept.id.clone()),
                    false => possible.push((kept, text, sinks)),
                }
            }
            Err(why) => *replayed.impossible.entry(why).or_default() += 1,
        }
    }
    if !loaded_by_others.is_empty() {
        let why = "their messages came again, were rejected by another run, too, and replayed from there".to_owned();
        replayed.impossible.insert(why, loaded_by_others.len() as u64);
        ReplayedRejects::finish(&folder, &loaded_by_others)?;
    }
    let mut refused = Vec::new();
    for sink in &job.sinks {
        let (name, earlier) = (&sink.name.value, ReplayedRejects::read(&folder)?);
        let of_sink = |sinks: &[&SinkStep]| sinks.iter().any(|one| one.name.value == *name);
        let due = possible.iter().filter(|(kept, _, sinks)| of_sink(sinks) && !earlier.has(&kept.id, name));
        let units =
            due.map(|(kept, text, _)| ReplayUnit::new(kept.id.clone(), kept.line.rejected.clone(), text.clone()));
        let replay = Arc::new(Replay::new(first, name, earlier.rounds(name), &folder, units));
        if replay.is_empty() {
            continue;
        }
        let work = Runnable::from(reduced(job, sink)?);
        match (execute(engine, &work, options, Some(&replay), observer), replay.why_not()) {
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
            .entry(format!("`{name}` cannot take single rows, because {why}: run the job again"))
            .or_default() += count;
    }
    let by_now = ReplayedRejects::read(&folder)?;
    let is_loaded = |kept: &Kept, sinks: &[&SinkStep]| sinks.iter().all(|sink| by_now.has(&kept.id, &sink.name.value));
    let loaded: Vec<String> =
        possible.iter().filter(|(kept, _, sinks)| is_loaded(kept, sinks)).map(|(kept, ..)| kept.id.clone()).collect();
    replayed.loaded = loaded.len() as u64;
    replayed.failed = possible.len() as u64 - replayed.loaded;
    ReplayedRejects::finish(&folder, &loaded)?;
    Ok(replayed)
}

/// When the logical run `first` began, in milliseconds since 1970: the dates of a replay are those of that run.
fn moment(state: &Path, first: &str) -> Result<i64> {
    let known = RunHistory::open(state)?.moment_of(first)?;
    Ok(known.or_else(|| began(first)).unwrap_or_else(now))
}

/// The text of a unit with the record; otherwise why there can be none.
fn text(job: &Job, kept: &Kept) -> Result<Bytes, String> {
    let RejectLine { rejected, head, .. } = &kept.line;
    let source =
        rejected.source.as_deref().ok_or_else(|| {
            match job.sources.iter().any(|source| source.name.value == rejected.step) {
        true => format!("their records are not known: several entries take the rows of `{}`", rejected.step),
        false => "their records are not known: they come from a step that combines rows, or whose rows several entries \
                 take"
            .to_owned(),
    }
        })?;
    if rejected.last_line.is_some() {
        return Err("their rows were given for batches of records, other rows of which may be loaded".to_owned());
    }
    let raw = rejected.raw.as_ref().ok_or("their records were not kept, only their rows")?;
    if raw.cut_from.is_some() {
        return Err("their records are longer than what is kept".to_owned());
    }
    let raw = raw.bytes().ok_or("what was kept of them is damaged")?;
    let step = job.sources.iter().find(|step| step.name.value == source);
    let step = step.ok_or("the job no longer has a source of that name")?;
    if step.queue().is_some() {
        can_be_message(step, &raw)?;
    }
    let format = step.format.as_deref().and_then(|format| match format.reading() {
        Reading::Stream(format) => Some(format),
        Reading::Ranges(_) | Reading::Rows => None,
    });
    // Where the files' names said the format, a header was kept if it was needed.
    let needs_header = format.map_or(head.is_some(), StreamFormat::needs_header);
    let head = head.as_ref().map(|head| head.bytes().unwrap_or_default()).unwrap_or_default();
    if needs_header && head.is_empty() {
        return Err("the header of their file was not kept".to_owned());
    }
    let file = match format {
        Some(format) => format.file_of_record(&head, &raw),
        None => [head.as_slice(), &raw, b"\n"].concat(),
    };
    Ok(file.into())
}

/// Whether a message of a queue is known well enough to be loaded again; otherwise why it is not.
fn can_be_message(step: &SourceStep, body: &[u8]) -> Result<(), String> {
    let is_beside = |column: &&AddColumn| matches!(column, AddColumn::Time | AddColumn::Key | AddColumn::Headers);
    if step.add.iter().find(is_beside).is_some() {
        return Err("the source adds times, keys or headers of messages, which rejects do not keep".to_owned());
    }
    let body = body.trim_ascii();
    match body {
        [] => Err("the messages have no body".to_owned()),
        [b'[', ..] => Err("the messages may hold several records each, and the others were loaded".to_owned()),
        _ if body.contains(&b'\n') => {
            Err("the messages have several lines each, and others of them may have been loaded".to_owned())
        }
        _ => Ok(()),
    }
}

/// The sinks that a record has not got into; otherwise why it cannot get there.
fn sinks<'a>(job: &'a Job, kept: &Kept) -> Result<Vec<&'a SinkStep>, String> {
    let Rejected { source, sink, .. } = &kept.line.rejected;
    let source = source.as_deref().unwrap_or_default();
    let wanted = |step: &&SinkStep| match sink {
        Some(sink) => step.name.value == *sink,
        None => job.gives_rows_of(&step.from.value, source),
    };
    if job.sinks.iter().any(|step| job.reads(&step.from.value, source))
        && !job.sinks.iter().any(|step| job.gives_rows_of(&step.from.value, source))
    {
        return Err(format!("they are of `{source}`, which is only looked up in: run the job again"));
    }
    let sinks: Vec<&SinkStep> = job.sinks.iter().filter(wanted).collect();
    match sinks.iter().find(|sink| sink.entry.formats != SinkFormats::None) {
        _ if sinks.is_empty() => Err("the job no longer has a sink for them".to_owned()),
        Some(sink) => Err(match sink.entry.formats {
            SinkFormats::Default(_) => {
                format!("`{}` sends messages, and keeps no record of which of them are there", sink.name.value)
            }
            _ => format!("`{}` writes files, and single rows cannot be put into them", sink.name.value),
        }),
        None => Ok(sinks),
    }
}

/// What the loads that all runs of a job share have noted, by sink. A file of an incremental source is loaded by
/// whichever run completes it, and its rejects in the log may be of a run that did not, or of a version that is gone.
struct SharedLoads(HashMap<String, WrittenChunks>);

async fn shared_loads(
    engine: &Engine,
    job: Arc<Job>,
    variables: Option<Vec<(String, String)>>,
) -> Result<SharedLoads, Failure> {
    if !job.sources.iter().any(|source| source.incremental) {
        return Ok(SharedLoads(HashMap::new()));
    }
    let machine = engine.machine().clone();
    let work = async move |context: &RunContext| {
        let options = RunOptions { variables, ..RunOptions::default() };
        let point = ResumePoint::find(&job, &machine, &options, None)?;
        let mut noted = HashMap::new();
        for sink in job.sinks.iter().filter(|sink| incremental_sources(&job, sink).next().is_some()) {
            let (name, load) = (&sink.name.value, point.load_of_all_runs(sink));
            let written = sink.sink.noted(&load, point.looking(context, sink)).await;
            noted.insert(name.clone(), written.map_err(|error| error.in_step(name))?);
        }
        Ok(SharedLoads(noted))
    };
    engine.with_looking_context(work).await
}

impl SharedLoads {
    /// Those of `sinks` that have the rows which were loaded beside the reject, and no others of its file; otherwise
    /// why there is none.
    fn have<'a>(
        &self,
        job: &Job,
        kept: &Kept,
        first: &str,
        sinks: Vec<&'a SinkStep>,
    ) -> Result<Vec<&'a SinkStep>, String> {
        let Rejected { source, uri, .. } = &kept.line.rejected;
        let source = source.as_deref().unwrap_or_default();
        if !job.sources.iter().any(|step| step.name.value == source && step.incremental) {
            return Ok(sinks);
        }
        let has = |sink: &&SinkStep| {
            let name = &sink.name.value;
            let (Some(written), Some(uri), Some(number)) = (self.0.get(name), uri, number_of(kept, name, first)) else {
                return false;
            };
            noted_rejects(source, uri, written).contains(&number)
        };
        let sinks: Vec<&SinkStep> = sinks.into_iter().filter(has).collect();
        match sinks.is_empty() {
            true => Err("their file was not loaded by that run, or was loaded again since: run the job".to_owned()),
            false => Ok(sinks),
        }
    }
}

/// A record of a message. A queue that was made again gives its ids again: the bytes tell such messages apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct MessageRecord {
    source: Option<String>,
    queue: Option<String>,
    id: String,
    line: Option<u64>,
    bytes: Option<Vec<u8>>,
}

impl MessageRecord {
    fn of(rejected: &Rejected) -> Option<Self> {
        let Rejected { source, uri, id, line, raw, .. } = rejected;
        let bytes = raw.as_ref().and_then(RawText::bytes);
        Some(MessageRecord { source: source.clone(), queue: uri.clone(), id: id.clone()?, line: *line, bytes })
    }
}

fn record_of(kept: &Kept) -> Option<MessageRecord> {
    MessageRecord::of(&kept.line.rejected)
}

/// Records of messages that replays of other runs have loaded, with the sink. A message comes again if the run that has
/// rejected it was killed before it was acknowledged; then it is a reject of two runs.
struct LoadedMessages(HashSet<(MessageRecord, String)>);

impl LoadedMessages {
    fn of_other_runs(job: &Job, state: &Path, first: &str, waiting: &[Kept]) -> Result<Self> {
        let mut loaded = HashSet::new();
        let wanted: HashSet<MessageRecord> = waiting.iter().filter_map(record_of).collect();
        let history = RunHistory::open(state)?;
        let path = if wanted.is_empty() { None } else { history.find(first)?.map(|run| run.job) };
        let runs = path.map_or_else(|| Ok(Vec::new()), |path| history.list(Some(&path), u64::MAX))?;
        let others: BTreeSet<String> = runs.into_iter().map(|run| run.logical).filter(|run| run != first).collect();
        for other in others {
            let replayed = ReplayedRejects::read(&reject_log::folder(state, &other))?;
            if replayed.is_empty() {
                continue;
            }
            for kept in reject_log::of_run(state, &other)? {
                let Some(record) = record_of(&kept).filter(|record| wanted.contains(record)) else { continue };
                let sinks = job.sinks.iter().map(|sink| &sink.name.value).filter(|sink| replayed.has(&kept.id, sink));
                loaded.extend(sinks.map(|sink| (record.clone(), sink.clone())));
            }
        }
        Ok(LoadedMessages(loaded))
    }

    fn have(&self, kept: &Kept, sink: &str) -> bool {
        record_of(kept).is_some_and(|record| self.0.contains(&(record, sink.to_owned())))
    }
}

/// Changes the settings of a sink that keeps its table in step so that no row counts as missing: only rejects come.
fn never_deletes(settings: &mut serde_json::Map<String, Value>) {
    match settings.get("mode").and_then(Value::as_str) {
        Some("sync") => {
            settings.insert("mode".to_owned(), Value::String("merge".to_owned()));
            for key in ["missing", "scope", "max_deletes", "empty_input"] {
                settings.remove(key);
            }
        }
        Some("history") => drop(settings.insert("missing".to_owned(), Value::String("keep".to_owned()))),
        _ => {}
    }
}

/// The job with this sink alone, which adds rows.
fn reduced(job: &Job, sink: &SinkStep) -> Result<Job> {
    let used = |name: &str| job.reads(&sink.from.value, name);
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
        never_deletes(settings);
        let mut own = settings.clone();
        own.remove("max_rejects");
        let parts = SinkParts { target: sink.write.value.clone(), format: None, codec: None, store: None };
        let built = (sink.entry.build)(&Value::Object(own), parts);
        sink.sink = built.map_err(|faults| {
            let what = faults.into_iter().next().map_or_else(String::new, |fault| fault.what);
            Error::job("the sink cannot add rows").in_step(&sink.name.value).cause(what)
        })?;
    }
    // Which files there are does not matter: records are loaded, each once.
    let whole = |source: &SourceStep| {
        let mut source = source.clone();
        (source.incremental, source.incremental_by) = (false, None);
        (source.on_change, source.after_load) = (OnChange::default(), None);
        source
    };
    Ok(Job {
        text: job.text.clone(),
        sources: job.sources.iter().filter(|source| used(&source.name.value)).map(whole).collect(),
        functions: job.functions.clone(),
        transforms: job.transforms.iter().filter(|step| used(&step.name.value)).cloned().collect(),
        sinks: vec![sink],
        variables: job.variables.clone(),
        set: job.set.clone(),
        replaced: job.replaced.clone(),
        around: Around { moment: job.around.moment, ..Around::default() },
        taken: Arc::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_known_by_its_id_and_its_bytes() {
        let rejected = |id: Option<&str>, body: &[u8]| Rejected {
            uri: Some("kafka://h/t".to_owned()),
            id: id.map(str::to_owned),
            raw: Some(RawText::new(body)),
            ..crate::rejects::of_row("s", None, &Error::refused("no"), None)
        };
        let record = |id: Option<&str>, body: &[u8]| MessageRecord::of(&rejected(id, body));
        assert!(record(Some("0:1"), b"a").is_some());
        assert_eq!(record(Some("0:1"), b"a"), record(Some("0:1"), b"a"));
        assert_ne!(record(Some("0:1"), b"a"), record(Some("0:1"), b"b"), "the topic was made again");
        assert_ne!(record(Some("0:1"), b"a"), record(Some("0:2"), b"a"));
        assert_eq!(record(None, b"a"), None, "it is no message");
    }
}
