//! Reads a sequence with the files that it names, each once: what was checked is what runs.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream_core::clock;
use millstream_engine::parse::unreadable;
use millstream_engine::{Engine, Failure, ParseOptions, sql};
use millstream_job::graph::Located;
use millstream_job::sequence::model::Action;
use millstream_job::sequence::template::Template;
use millstream_job::sequence::{self, LoadedSequence, NamedFiles, NamedJob, Sequence, SequenceOptions, Step};
use millstream_job::{Lint, decode};
use millstream_schedule::schedule_lints;

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
    let text = match options.texts.get(&from_root(path)) {
        Some(text) => text.clone(),
        None => {
            let absent = "a sequence is a local file with `steps:`";
            let bytes = fs_err::read(path).map_err(|cause| unreadable("the file", path, &cause, absent))?;
            decode(path, &bytes).map_err(|lint| Failure::from(*lint))?.to_owned()
        }
    };
    read_text(engine, path, &text, options)
}

/// Reads the sequence `text`, which stands at `path`.
///
/// # Errors
/// As those of [`read`].
pub fn read_text(engine: &Engine, path: &str, text: &str, options: &ReadOptions) -> Result<ReadSequence, Failure> {
    let files = Files { engine, given: &options.texts, read: RefCell::default() };
    let pools: Option<Vec<String>> = engine.machine().pools.as_ref().map(|pools| pools.keys().cloned().collect());
    let loaded = sequence::load(
        path,
        text,
        engine.registry(),
        &SequenceOptions {
            set: &options.set,
            environment: &|name| std::env::var(name).ok(),
            references: &|query| sql::references(query),
            schedule: &schedule_lints,
            pools: pools.as_deref(),
            files: &files,
            running: options.running,
            now: options.moment.unwrap_or_else(|| clock::now().cast_signed()),
        },
    );
    let LoadedSequence { sequence, mut lints, .. } = loaded;
    let Some(sequence) = sequence else { return Err(Failure { lints, errors: Vec::new() }) };
    lints.extend(mails_without_server(&sequence, engine));
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

impl ReadSequence {
    /// The path from the root of a file that it names.
    pub(crate) fn root_of(&self, named: &str) -> PathBuf {
        self.roots.get(named).cloned().unwrap_or_else(|| from_root(self.sequence.path_of(named)))
    }

    /// Checks the jobs that it names, directly or not, as far as that is possible without running them: columns, SQL,
    /// targets. Those whose values are known only when their step starts are left out. Offline it asks neither network
    /// nor database.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub async fn check_jobs(&self, engine: &Engine, offline: bool) -> Result<Vec<Lint>, Failure> {
        let (mut warnings, mut failure) = (Vec::new(), Failure::default());
        let mut left = vec![Arc::clone(&self.sequence)];
        let mut seen = BTreeSet::new();
        while let Some(sequence) = left.pop() {
            for step in &sequence.steps {
                let (Action::Job(file) | Action::Sequence(file)) = &step.action else { continue };
                let known =
                    |(name, value): &(Located<String>, Template)| Some((name.value.clone(), value.known()?.to_owned()));
                let Some(set) = file.set.iter().map(known).collect::<Option<BTreeMap<_, _>>>() else { continue };
                let path = sequence.path_of(&file.file.value);
                if !seen.insert((path.clone(), set.clone())) {
                    continue;
                }
                let Some(text) = self.texts.get(&from_root(&path)) else { continue };
                let moment = Some(sequence.moment.milliseconds());
                if matches!(step.action, Action::Sequence(_)) {
                    let texts = self.texts.clone();
                    let options = ReadOptions { set, running: false, moment, texts };
                    left.extend(read_text(engine, &path, text, &options).ok().map(|read| read.sequence));
                    continue;
                }
                let options = ParseOptions { set, needs_secrets: false, now: moment };
                let checked = match engine.parse_job(&path, text, &options).await {
                    Ok(parsed) => engine.check(parsed.job, offline).await,
                    Err(wrong) => Err(wrong),
                };
                match checked {
                    Ok(checked) => warnings.extend(checked.warnings),
                    Err(wrong) => failure.add(wrong),
                }
            }
        }
        failure.none().map(|()| warnings)
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
}

impl NamedFiles for Files<'_> {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let key = from_root(path);
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
        self.engine.lints_of_named(job)
    }
}
