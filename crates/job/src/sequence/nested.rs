//! The files that a sequence names: whether they are there, and what is wrong with them.
//!
//! Each is linted with the values that the step gives it. Values that are known only when the step starts are left out
//! of account. What a file says wrong has the file's own place; what the sequence gives it in vain has the sequence's.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use super::links::same_items;
use super::paths::{beside, plain};
use super::{SequenceOptions, is_sequence};
use crate::build::text as text_of;
use crate::lint::{Lint, LintCode};
use crate::text::{JobText, Span, decode};
use crate::tree::{Entry, Typed};
use millstream_core::Registry;

/// Sequences may name each other to this depth.
const DEPTH_LIMIT: usize = 32;

/// How the files that a sequence names are read and linted.
pub trait NamedFiles {
    /// The bytes of the file at `path`, which begins at the folder of this process.
    ///
    /// # Errors
    /// If it cannot be read.
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;

    /// What is wrong with a job, beyond or with what [`crate::check`] says.
    fn job_lints(&self, job: &NamedJob<'_>) -> Vec<Lint>;
}

/// A job that a sequence names.
#[derive(Debug, Clone, Copy)]
pub struct NamedJob<'a> {
    /// The path of its file.
    pub path: &'a str,
    /// The text of its file.
    pub text: &'a str,
    /// The folder of the sequence, in which it runs.
    pub folder: &'a Path,
    /// Values that the step gives its variables.
    pub set: &'a BTreeMap<String, String>,
    /// Variables that get their values when the step starts.
    pub later: &'a BTreeSet<String>,
    /// When the logical run of the sequence begins, in milliseconds since 1970.
    pub now: i64,
}

/// Whether a file is a job or a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sort {
    Job,
    Sequence,
}

/// A file, and the values that it gets: linted once.
type Visit = (PathBuf, BTreeMap<String, String>, BTreeSet<String>);

/// What is known of files while a sequence and all that it names are linted.
pub(crate) struct Nested<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) options: &'a SequenceOptions<'a>,
    /// The sequences on the way to the one that is linted.
    pub(crate) way: Vec<PathBuf>,
    /// What was linted before, with the values that it does not need.
    seen: BTreeMap<Visit, Vec<Lint>>,
}

/// What a step gives the file that it names.
struct Given<'e> {
    step: &'e Entry,
    path: String,
    set: BTreeMap<String, String>,
    later: BTreeSet<String>,
    /// The variable of the step's loop, which the file gets if it has one of this name.
    item: Option<&'e Entry>,
}

/// What came of the files that the steps of a sequence name.
#[derive(Default)]
pub(crate) struct NamedLints {
    /// What is wrong in the sequence's own file.
    pub(crate) own: Vec<Lint>,
    /// What is wrong in the others.
    pub(crate) others: Vec<Lint>,
    /// What is odd in the sequence's own file, if nothing is wrong with it.
    pub(crate) doubts: Vec<Lint>,
    /// The names of the steps whose files take the item of the step's loop.
    pub(crate) with_item: BTreeSet<String>,
}

impl<'a> Nested<'a> {
    pub(crate) fn new(path: &str, registry: &'a Registry, options: &'a SequenceOptions<'a>) -> Self {
        Nested { registry, options, way: vec![plain(path)], seen: BTreeMap::new() }
    }

    /// The lints of the files that `steps` name; `text` is the sequence's own.
    pub(crate) fn lints(&mut self, steps: &[Entry], text: &JobText, now: i64) -> NamedLints {
        let mut found = NamedLints::default();
        for step in steps {
            for (key, sort) in [("job", Sort::Job), ("sequence", Sort::Sequence)] {
                let named = text_of(step.value.get(key)).filter(|named| !named.value.is_empty());
                let Some(named) = named.filter(|_| !step.value.get(key).is_some_and(|node| node.has_unknown())) else {
                    continue;
                };
                let path = beside(text.path(), &named.value);
                self.file(&Given::of(step, path), sort, named.span, text, now, &mut found);
            }
        }
        found
    }

    fn file(&mut self, given: &Given<'_>, sort: Sort, span: Span, text: &JobText, now: i64, found: &mut NamedLints) {
        let path = given.path.as_str();
        if let Some(lint) = self.circle(path, sort, span, text) {
            return found.own.push(lint);
        }
        let bytes = match self.options.files.read(path) {
            Ok(bytes) => bytes,
            Err(cause) => return found.own.push(unreadable(path, &cause, span, text)),
        };
        let file = match decode(path, &bytes) {
            Ok(file) => file,
            Err(lint) => {
                let what = "the file is not UTF-8".to_owned();
                return found.others.push(Lint { what, ..*lint });
            }
        };
        if let Some((what, hint)) = other_sort(path, file, sort) {
            return found.own.push(text.error(span, what).hint(hint));
        }
        let visit = (plain(path), given.set.clone(), given.later.clone());
        let is_new = !self.seen.contains_key(&visit);
        let lints = match self.seen.get(&visit) {
            Some(in_vain) => in_vain.clone(),
            None => self.visited(given, sort, file, now),
        };
        let (in_vain, lints): (Vec<Lint>, Vec<Lint>) =
            lints.into_iter().partition(|lint| lint.code == LintCode::UnusedValue && lint.path == path);
        let is_item = |lint: &&Lint| given.item.is_some_and(|item| item.key == lint.text);
        found.own.extend(in_vain.iter().filter(|lint| !is_item(lint)).map(|lint| unused(lint, given, text)));
        match in_vain.iter().find(is_item) {
            Some(_) => found.doubts.extend(given.item.and_then(|item| same_items(given.step, item, text))),
            None if given.item.is_some() => found.with_item.extend([given.step.key.clone()]),
            // `set` gives something else under its name.
            None => found.doubts.extend(loop_item(given.step).and_then(|item| same_items(given.step, item, text))),
        }
        if is_new {
            let name = &given.step.key;
            found.others.extend(lints.into_iter().map(|lint| from_step(lint, name, text.path(), path)));
            self.seen.insert(visit, in_vain);
        }
    }

    fn visited(&mut self, given: &Given<'_>, sort: Sort, file: &str, now: i64) -> Vec<Lint> {
        let path = given.path.as_str();
        match sort {
            Sort::Job => {
                let folder = self.way.last().and_then(|sequence| sequence.parent()).unwrap_or(Path::new(""));
                let job = NamedJob { path, text: file, folder, set: &given.set, later: &given.later, now };
                self.options.files.job_lints(&job)
            }
            Sort::Sequence => {
                self.way.push(plain(path));
                let lints = super::lints_of_named(path, file, &given.set, &given.later, now, self);
                self.way.pop();
                lints
            }
        }
    }

    /// A sequence that is run while it is run.
    fn circle(&self, path: &str, sort: Sort, span: Span, text: &JobText) -> Option<Lint> {
        if sort == Sort::Job {
            return None;
        }
        let here = plain(path);
        if let Some(first) = self.way.iter().position(|one| *one == here) {
            let names: Vec<String> = self.way[first + 1..].iter().map(|one| shown(one)).collect();
            let what = match names.is_empty() {
                true => "this sequence runs itself".to_owned(),
                false => {
                    let names = names.join("`, which runs `");
                    format!("`{}` runs itself indirectly: it runs `{names}`, which runs it", shown(&here))
                }
            };
            return Some(text.error(span, what).hint("a sequence can only run sequences that do not run it"));
        }
        let is_deep = self.way.len() >= DEPTH_LIMIT;
        is_deep.then(|| text.error(span, format!("sequences name each other more than {DEPTH_LIMIT} levels deep")))
    }
}

impl<'e> Given<'e> {
    /// What `step` gives the file at `path`.
    fn of(step: &'e Entry, path: String) -> Self {
        let (mut set, mut later) = (BTreeMap::new(), BTreeSet::new());
        for entry in step.value.get("set").map(crate::tree::Node::entries).unwrap_or_default() {
            match entry.value.scalar() {
                Some(scalar) if scalar.later.is_empty() && !matches!(scalar.typed, Typed::Unknown | Typed::Null) => {
                    set.insert(entry.key.clone(), scalar.text.clone());
                }
                _ => {
                    later.insert(entry.key.clone());
                }
            }
        }
        let item = loop_item(step).filter(|item| !set.contains_key(&item.key) && !later.contains(&item.key));
        later.extend(item.map(|item| item.key.clone()));
        Given { step, path, set, later, item }
    }
}

/// The variable and the items of the loop that `step` is, if it is one.
fn loop_item(step: &Entry) -> Option<&Entry> {
    step.value.get("for_each")?.entries().first()
}

fn unreadable(path: &str, cause: &io::Error, span: Span, text: &JobText) -> Lint {
    let folder = Path::new(text.path()).parent().map(shown).filter(|folder| !folder.is_empty());
    let begins = format!("paths begin at the folder of this file, which is `{}`", folder.unwrap_or_else(|| ".".into()));
    match cause.kind() {
        io::ErrorKind::NotFound => text.error(span, format!("there is no file `{path}`")).hint(begins),
        _ => text.error(span, format!("`{path}` cannot be read: {cause}")).hint(begins),
    }
}

/// What to say of a file that is a sequence where a job is named, or the other way round.
fn other_sort(path: &str, file: &str, sort: Sort) -> Option<(String, &'static str)> {
    match (sort, is_sequence(file)) {
        (Sort::Job, true) => Some((format!("`{path}` is a sequence, and not a job"), "name it with `sequence:`")),
        (Sort::Sequence, false) if is_job(file) => {
            Some((format!("`{path}` is a job, and not a sequence"), "name it with `job:`"))
        }
        _ => None,
    }
}

fn is_job(file: &str) -> bool {
    file.lines().any(|line| line.starts_with("sources:") || line.starts_with("sinks:"))
}

/// The lint of a value that the file does not use, where the step gives it.
fn unused(lint: &Lint, given: &Given<'_>, text: &JobText) -> Lint {
    let entry = given.step.value.get("set").and_then(|set| set.entry(&lint.text));
    let span = entry.map_or(given.step.key_span, |entry| entry.key_span);
    let what = format!("`{}` has no variable {}", given.path, lint.text);
    Lint { hint: lint.hint.clone(), ..text.error(span, what) }
}

/// A variable without a value gets it from the step.
fn from_step(lint: Lint, step: &str, sequence: &str, path: &str) -> Lint {
    let name = lint.what.strip_prefix("the variable ").or_else(|| lint.what.strip_prefix("the parameter "));
    let name = name.and_then(|rest| rest.split(' ').next());
    match name.filter(|_| lint.code == LintCode::NoValue && lint.path == path) {
        Some(name) => {
            let hint = format!("give {name} a value in `set` of the step `{step}` of {sequence}, or write a default");
            Lint { hint: Some(hint), code: LintCode::Other, ..lint }
        }
        None => lint,
    }
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
