//! Reads a sequence with the files that it names, each once: what was checked is what runs.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream_core::spec::{Fault, Size};
use millstream_core::{Error, Registry, clock};
use millstream_engine::parse::unreadable;
use millstream_engine::{Engine, Failure, ParseOptions, sql};
use millstream_job::sequence::model::{Action, Awaited, Items, QueryAction, WaitAction};
use millstream_job::sequence::schedule::after_fault;
use millstream_job::sequence::{self, LoadedSequence, NamedFiles, NamedJob, Sequence, SequenceOptions, Step};
use millstream_job::{Lint, decode, fault_span};
use millstream_schedule::{MessageSpec, schedule_lints};
use serde_json::Value;

pub use millstream_job::sequence::is_sequence;

/// What reading needs beside the file.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// Values of parameters and variables. They come before those of the environment.
    pub set: BTreeMap<String, String>,
    /// Whether the sequence is about to run: a secret that is not there is then an error.
    pub running: bool,
    /// When the logical run begins, in milliseconds since 1970; now, if it is left out.
    pub moment: Option<i64>,
    /// The texts of files that take the place of those on the disk, by their paths from the root.
    pub texts: BTreeMap<PathBuf, String>,
}

/// A sequence that was read.
#[derive(Debug, Clone)]
pub struct ReadSequence {
    /// The sequence.
    pub sequence: Arc<Sequence>,
    /// What is strange and no error, of the files that it names, too.
    pub warnings: Vec<Lint>,
    /// The texts of all files that it names, directly or not, by their paths from the root.
    pub texts: BTreeMap<PathBuf, String>,
    /// What `--set` gave.
    pub set: BTreeMap<String, String>,
    /// The paths from the root of the files that it names itself, as they were when these were read: a file may be gone
    /// when its step starts.
    roots: BTreeMap<String, PathBuf>,
}

/// Reads the sequence at `path`.
///
/// # Errors
/// If it cannot be read; else everything that is wrong with it and the files that it names.
pub fn read(engine: &Engine, path: &str, options: &ReadOptions) -> Result<ReadSequence, Failure> {
    read_text(engine, path, &text_at(path, options)?, options)
}

fn text_at(path: &str, options: &ReadOptions) -> Result<String, Failure> {
    if let Some(text) = options.texts.get(&from_root(path)) {
        return Ok(text.clone());
    }
    let absent = "a sequence is a local file with `steps:`";
    let bytes = fs_err::read(path).map_err(|cause| unreadable("the file", path, &cause, absent))?;
    Ok(decode(path, &bytes).map_err(|lint| Failure::from(*lint))?.to_owned())
}

/// Reads the sequence `text`, which stands at `path`.
///
/// # Errors
/// As those of [`read`].
pub fn read_text(engine: &Engine, path: &str, text: &str, options: &ReadOptions) -> Result<ReadSequence, Failure> {
    let Loaded { sequence, lints, files } = Loaded::new(engine, path, text, options);
    let Some(sequence) = sequence else { return Err(Failure { lints, errors: Vec::new() }) };
    let texts = files.read.into_inner().into_iter();
    let texts = texts.map(|(path, bytes)| (path, String::from_utf8_lossy(&bytes).into_owned())).collect();
    let root = |step: &Step| match &step.action {
        Action::Job(file) | Action::Sequence(file) => {
            let named = file.file.value.clone();
            Some((named.clone(), from_root(sequence.path_of(&named))))
        }
        _ => None,
    };
    let roots = sequence.steps.iter().filter_map(root).collect();
    let sequence = Arc::new(sequence);
    Ok(ReadSequence { sequence, warnings: lints, texts, set: options.set.clone(), roots })
}

/// Checks the sequence at `path` and the jobs that it names, directly or not, as far as that is possible without
/// running them: columns, SQL, targets. Jobs whose values are known only when their step starts are looked at as far as
/// that goes. Offline it asks neither network nor database. Returns the warnings.
///
/// Paths in jobs begin at the folder of their sequence, so that this is the working folder of the process meanwhile.
///
/// # Errors
/// Everything that is wrong: with the sequence, and with the jobs, whether there is something wrong with the sequence
/// or not.
pub async fn check(engine: &Engine, path: &str, options: &ReadOptions, offline: bool) -> Result<Vec<Lint>, Failure> {
    let Loaded { mut lints, files, .. } = Loaded::new(engine, path, &text_at(path, options)?, options);
    let mut failure = Failure::default();
    let from = std::env::current_dir().map_err(|cause| Error::io("the working folder cannot be found", &cause))?;
    for VisitedJob { path, text, set, now, folder } in files.jobs.into_inner() {
        let options = ParseOptions { set, needs_secrets: false, now: Some(now) };
        // What is wrong with its text is among the lints already.
        let Ok(parsed) = engine.parse_job(&path, &text, &options).await else { continue };
        let enter = |folder: &Path| {
            let what = || format!("the folder {} cannot be entered", folder.display());
            std::env::set_current_dir(folder).map_err(|cause| Error::io(what(), &cause))
        };
        enter(&folder)?;
        let checked = engine.check(parsed.job, offline).await;
        enter(&from)?;
        match checked {
            Ok(checked) => lints.extend(checked.warnings),
            Err(mut wrong) => {
                wrong.errors = wrong.errors.into_iter().map(|error| error.in_job(&path)).collect();
                failure.add(wrong);
            }
        }
    }
    if lints.iter().any(Lint::is_error) {
        failure.lints.splice(..0, std::mem::take(&mut lints));
    }
    failure.none().map(|()| lints)
}

/// What is wrong with the sequence at `path` and the files that it names, without a look at columns, networks and
/// databases; and the paths of these files from the root.
pub fn mistakes(engine: &Engine, path: &str) -> (Vec<Lint>, BTreeSet<PathBuf>) {
    let options = ReadOptions::default();
    // That it cannot be read is for those to say who found it.
    let Ok(text) = text_at(path, &options) else { return Default::default() };
    let Loaded { mut lints, files, .. } = Loaded::new(engine, path, &text, &options);
    lints.retain(Lint::is_error);
    (lints, files.named.into_inner())
}

/// A sequence, and what came of its files.
struct Loaded<'a> {
    /// If nothing is wrong with it and the files.
    sequence: Option<Sequence>,
    lints: Vec<Lint>,
    files: Files<'a>,
}

impl<'a> Loaded<'a> {
    fn new(engine: &'a Engine, path: &str, text: &str, options: &'a ReadOptions) -> Self {
        let (read, named, jobs) = Default::default();
        let files = Files { engine, given: &options.texts, read, named, jobs };
        let pools: Option<Vec<String>> = engine.machine().pools.as_ref().map(|pools| pools.keys().cloned().collect());
        // A run that somebody starts needs no schedule.
        let schedule = |value: &Value| {
            let text_of =
                |other: &str| fs_err::read(other).ok().map(|text| String::from_utf8_lossy(&text).into_owned());
            let of_after = after_fault(path, value, &text_of);
            let of_others = of_after.into_iter().chain(message_faults(engine.registry(), value));
            schedule_lints(value).into_iter().chain(of_others.filter(|_| !options.running)).collect()
        };
        let loaded = sequence::load(
            path,
            text,
            engine.registry(),
            &SequenceOptions {
                set: &options.set,
                environment: &|name| std::env::var(name).ok(),
                references: &|query| sql::references(query),
                columns: &|query| sql::columns(query),
                schedule: &schedule,
                pools: pools.as_deref(),
                files: &files,
                running: options.running,
                now: options.moment.unwrap_or_else(|| clock::now().cast_signed()),
            },
        );
        let LoadedSequence { sequence, mut lints, .. } = loaded;
        if let Some(sequence) = &sequence {
            lints.extend(mails_without_server(sequence, engine));
            lints.extend(doubtful_queries(sequence));
            lints.extend(too_much_memory(sequence, engine));
        }
        Loaded { sequence, lints, files }
    }
}

/// Warns of queries that do not look like SQL: what the parser does not know, a database may.
fn doubtful_queries(sequence: &Sequence) -> Vec<Lint> {
    let of_step = |step: &'_ Step| {
        let own = match &step.action {
            Action::Query(query) => Some(query.as_ref().clone()),
            Action::Wait(WaitAction { what: Awaited::Query { query, .. }, .. }) => Some(query.as_ref().clone()),
            _ => None,
        };
        let of_loop = match step.for_each.as_ref().map(|for_each| &for_each.items) {
            Some(Items::Rows(query)) => Some(query.as_ref().clone()),
            _ => None,
        };
        own.into_iter().chain(of_loop)
    };
    let lint = |query: QueryAction| {
        let (text, url) = (query.query.known()?, query.from.known()?);
        let fault = sql::foreign_fault(text, url)?;
        let lint = sequence.text.warning(fault_span(&query.query.text, &fault, 0), fault.what);
        Some(lint.hint(fault.hint.unwrap_or_else(|| "try it with the client of the database".to_owned())))
    };
    sequence.steps.iter().flat_map(of_step).filter_map(lint).collect()
}

/// What is wrong with the settings of the queue whose messages start a sequence.
fn message_faults(registry: &Registry, schedule: &Value) -> Vec<Fault> {
    let spec = schedule.get("message").cloned().and_then(|value| serde_json::from_value::<MessageSpec>(value).ok());
    let Some(spec) = spec else { return Vec::new() };
    let settings = if spec.kafka.is_some() { "message.kafka" } else { "message.redis" };
    let Some(kind) = registry.source_for(&spec.from) else { return Vec::new() };
    let within = |fault: Fault| {
        let what = match fault.what.strip_prefix("missing field ") {
            Some(key) => format!("{key} is missing"),
            None => fault.what,
        };
        let place = Fault::new(settings, what);
        Fault { path: place.path.into_iter().chain(fault.path).collect(), hint: fault.hint, what: place.what }
    };
    match (kind.build)(&spec.settings()).map(|source| source.queue(&spec.from)) {
        Err(faults) => faults.into_iter().map(within).collect(),
        Ok(Some(Err(fault))) => vec![Fault { hint: fault.hint, ..Fault::new("message.from", fault.what) }],
        Ok(_) => Vec::new(),
    }
}

/// Warns of mails that the machine cannot send.
fn mails_without_server(sequence: &Sequence, engine: &Engine) -> Vec<Lint> {
    let has_server = engine.machine().smtp.is_some();
    let mails = sequence.steps.iter().filter(|step| matches!(step.action, Action::Mail(_)) && !has_server);
    let lint = |step: &Step| {
        let lint = sequence.text.warning(step.name.span, "the mail cannot be sent: this machine has no mail server");
        lint.hint("name one in the machine file (`--machine`): `smtp: {host: …, from: …}`")
    };
    mails.map(lint).collect()
}

/// Warns of steps that reserve more memory than there is: they run alone, with all of it.
fn too_much_memory(sequence: &Sequence, engine: &Engine) -> Vec<Lint> {
    let all = engine.machine().memory;
    let lint = |step: &Step| {
        let reserved = step.memory.filter(|reserved| *reserved > all)?;
        let what = format!("the step reserves {} of memory, and this machine gives runs {}", Size(reserved), Size(all));
        let hint = "it runs alone, with what there is: write less, or leave `memory` out for a fair part";
        Some(sequence.text.warning(step.name.span, what).hint(hint))
    };
    sequence.steps.iter().filter_map(lint).collect()
}

impl ReadSequence {
    /// The path from the root of a file that it names.
    pub(crate) fn root_of(&self, named: &str) -> PathBuf {
        self.roots.get(named).cloned().unwrap_or_else(|| from_root(self.sequence.path_of(named)))
    }
}

/// The path from the root; the same for all ways to write it.
pub(crate) fn from_root(path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    fs_err::canonicalize(path).or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}

/// Files as they were when they were read first.
struct Files<'a> {
    engine: &'a Engine,
    given: &'a BTreeMap<PathBuf, String>,
    read: RefCell<BTreeMap<PathBuf, Vec<u8>>>,
    /// All of them, whether they are there or not.
    named: RefCell<BTreeSet<PathBuf>>,
    /// The jobs whose values are all known.
    jobs: RefCell<Vec<VisitedJob>>,
}

/// A job with the values that a step gives it.
struct VisitedJob {
    path: String,
    text: String,
    set: BTreeMap<String, String>,
    now: i64,
    /// Where it runs.
    folder: PathBuf,
}

impl NamedFiles for Files<'_> {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let key = from_root(path);
        self.named.borrow_mut().insert(key.clone());
        if let Some(bytes) = self.read.borrow().get(&key) {
            return Ok(bytes.clone());
        }
        let bytes = match self.given.get(&key) {
            Some(text) => text.clone().into_bytes(),
            None => fs_err::read(path)?,
        };
        self.read.borrow_mut().insert(key, bytes.clone());
        Ok(bytes)
    }

    fn job_lints(&self, job: &NamedJob<'_>) -> Vec<Lint> {
        let NamedJob { path, text, folder, set, later, now } = *job;
        if later.is_empty() {
            let (path, folder) =
                (path.to_owned(), from_root(if folder.as_os_str().is_empty() { Path::new(".") } else { folder }));
            self.jobs.borrow_mut().push(VisitedJob { path, text: text.to_owned(), set: set.clone(), now, folder });
        }
        self.engine.lints_of_named(job)
    }
}
