//! The typed result of loading a job file: what the engine plans and runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use millstream_core::codec::Limits;
use millstream_core::contains::Contains;
use millstream_core::format::{EmptyFiles, Format, OnDrift, Reading, Validate};
use millstream_core::queue::Queue;
use millstream_core::registry::{SinkEntry, SourceEntry};
use millstream_core::reject::MaxRejects;
use millstream_core::sink::Sink;
use millstream_core::source::OnError;
use millstream_core::source::Source;
use millstream_core::transform::{Relation, Text, WorkFunction};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::around::Around;
use crate::dates::{NOW, TODAY};
use crate::entries::{AddColumn, AfterLoad, CheckSeverity, IncrementalBy, OnChange, ReadyKeys, RowsKeys};
use crate::lint::Lint;
use crate::replace::Replacements;
use crate::text::{JobText, Position, Span};

/// A job that has no errors which can be found without an engine.
#[derive(Debug, Clone)]
pub struct Job {
    /// The file it is from.
    pub text: JobText,
    /// Where rows come from, in file order. Names are unique over sources and transforms.
    pub sources: Vec<SourceStep>,
    /// The functions that its SQL may call, in file order.
    pub functions: Vec<FunctionStep>,
    /// What is done with them, in file order.
    pub transforms: Vec<TransformStep>,
    /// Where they go, in file order.
    pub sinks: Vec<SinkStep>,
    /// The variables that had a value when the file was parsed, defaults not counted.
    pub variables: BTreeMap<String, String>,
    /// Of these, those that did not come from the environment: they tell runs of one job from each other.
    pub set: BTreeMap<String, String>,
    /// What stands in for entries of the file.
    pub replaced: Option<Arc<Replacements>>,
    /// What applies to its runs as a whole.
    pub around: Around,
    /// Whether a run has had the components: they may keep state, such as the snapshot of a database, so each further
    /// run needs some of its own.
    pub taken: Arc<AtomicBool>,
}

impl Job {
    /// The same job in a logical run that begins at `now` (milliseconds since 1970), unless one of its dates is another
    /// one then: it has to be parsed again.
    pub fn at(&self, now: i64) -> Option<Job> {
        let Around { moment, dates, .. } = &self.around;
        if self.is_pinned() {
            return Some(self.clone());
        }
        let differs = moment.differs(dates, &self.variables, now, false);
        let moment = moment.at(now);
        (!differs).then(|| Job { around: Around { moment, ..self.around.clone() }, ..self.clone() })
    }

    /// Whether `today` in the job was another day in a logical run that began at `then`.
    pub fn is_of_another_day(&self, then: i64) -> bool {
        let Around { moment, dates, .. } = &self.around;
        !self.is_pinned() && moment.differs(dates, &self.variables, then, true)
    }

    /// Whether `--set` gives the time at which the logical run begins.
    fn is_pinned(&self) -> bool {
        [TODAY, NOW].iter().any(|name| self.variables.contains_key(*name))
    }

    /// The path of the file, as it was given.
    pub fn path(&self) -> &str {
        self.text.path()
    }

    /// Whether rows of the entry `other` come out of the entry `step`: not those of one that is only looked up in.
    pub fn gives_rows_of(&self, step: &str, other: &str) -> bool {
        let of_step = |one: &&TransformStep| one.name.value == step;
        let gives = |one: &TransformStep| one.row_entries().iter().any(|entry| self.gives_rows_of(entry, other));
        step == other || self.transforms.iter().filter(of_step).any(gives)
    }

    /// Whether rows of the entry `step` go into a sink: not those of one that is only looked up in.
    pub fn reaches_sink(&self, step: &str) -> bool {
        self.sinks.iter().any(|sink| self.gives_rows_of(&sink.from.value, step))
    }

    /// The transforms in an order in which each comes after all that it uses.
    pub fn transforms_in_order(&self) -> Vec<&TransformStep> {
        let mut ordered: Vec<&TransformStep> = Vec::new();
        // The transforms that are still to come.
        let mut waiting: BTreeSet<&str> = self.transforms.iter().map(|step| step.name.value.as_str()).collect();
        while !waiting.is_empty() {
            let before = ordered.len();
            for step in &self.transforms {
                let name = step.name.value.as_str();
                if waiting.contains(name) && !step.uses.iter().any(|used| waiting.contains(used.as_str())) {
                    ordered.push(step);
                    waiting.remove(name);
                }
            }
            // A ring has been linted; there is none in a job.
            if ordered.len() == before {
                break;
            }
        }
        ordered
    }

    /// Drops every step that uses one that is not here, until there is none.
    pub(crate) fn keep_sound(&mut self) {
        loop {
            let sources = self.sources.iter().map(|step| step.name.value.clone());
            let known: BTreeSet<String> =
                sources.chain(self.transforms.iter().map(|step| step.name.value.clone())).collect();
            let before = self.transforms.len();
            self.transforms.retain(|step| step.uses.iter().all(|name| known.contains(name)));
            if self.transforms.len() == before {
                self.sinks.retain(|sink| known.contains(&sink.from.value));
                return;
            }
        }
    }

    /// An error at a line and column (from 1) inside a text of the job, such as a SQL query; `length` characters are
    /// at fault.
    pub fn error_in(&self, place: &Located<String>, line: usize, column: usize, length: usize, what: &str) -> Lint {
        self.text.error(Span::at(place.locate(line, column), length), what)
    }

    /// Whether the rows of `entry`, a source or transform, come from `other`, or are its rows.
    pub fn reads(&self, entry: &str, other: &str) -> bool {
        let (mut seen, mut left) = (BTreeSet::from([entry]), vec![entry]);
        while let Some(next) = left.pop() {
            let step = self.transforms.iter().find(|step| step.name.value == next);
            let uses = step.into_iter().flat_map(|step| &step.uses).map(String::as_str);
            left.extend(uses.filter(|used| seen.insert(used)));
        }
        seen.contains(other)
    }

    /// All checks, each with the name of its entry: those of sources, transforms, then sinks.
    pub fn checks(&self) -> impl Iterator<Item = (&str, &Check)> {
        let sources = self.sources.iter().map(|step| (&step.name, &step.checks));
        let transforms = self.transforms.iter().map(|step| (&step.name, &step.checks));
        let sinks = self.sinks.iter().map(|step| (&step.name, &step.checks));
        let entries = sources.chain(transforms).chain(sinks);
        entries.flat_map(|(name, checks)| checks.iter().map(|check| (name.value.as_str(), check)))
    }

    /// An error about a whole value.
    pub fn error_at<T>(&self, place: &Located<T>, what: &str) -> Lint {
        self.text.error(place.span, what)
    }
}

/// A value and its place in the job file.
#[derive(Debug, Clone)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Where it stands.
    pub span: Span,
    /// Where each character of a text stands, whatever quoting or folding lies between; may be shorter than the text
    /// where that is not known.
    pub(crate) characters: Arc<[Position]>,
}

impl<T> Located<T> {
    /// A value at a place.
    pub fn new(value: T, span: Span) -> Self {
        Located { value, span, characters: Arc::new([]) }
    }
}

impl Located<String> {
    /// The part `value` of it, before which are `skipped` characters.
    pub(crate) fn part(&self, value: String, skipped: usize) -> Self {
        let characters = self.characters.get(skipped..).unwrap_or_default().into();
        Located { value, span: self.span, characters }
    }

    /// The place in the file of a line and column (both from 1, in characters) inside this text. A place behind the
    /// end is the end.
    pub fn locate(&self, line: usize, column: usize) -> Position {
        let start = line_start(&self.value, line.max(1));
        let length = self.value.chars().skip(start).take_while(|character| *character != '\n').count();
        let index = start + column.saturating_sub(1).min(length);
        match self.characters.get(index) {
            Some(place) => *place,
            None => match self.characters.get(..index).and_then(<[Position]>::last).or(self.characters.last()) {
                // A block's last line end is where its text ends.
                Some(last) if self.value.ends_with('\n') => *last,
                Some(last) => Position { line: last.line, column: last.column + 1 },
                None => self.span.start(),
            },
        }
    }
}

/// The index of the first character of `line` (from 1); of the last line, if there are fewer.
fn line_start(text: &str, line: usize) -> usize {
    let mut start = 0;
    let mut seen = 1;
    for (index, character) in text.chars().enumerate() {
        if seen == line {
            break;
        }
        if character == '\n' {
            seen += 1;
            start = index + 1;
        }
    }
    start
}

/// An entry of `sources`.
#[derive(Debug, Clone)]
pub struct SourceStep {
    /// Its name.
    pub name: Located<String>,
    /// Paths, globs, URLs, `@lists`, `-`: as written, braces not expanded.
    pub read: Vec<Located<String>>,
    /// Every kind of source that could be built, from its block or from its defaults: an `@list` may mix them.
    pub inputs: Vec<(&'static SourceEntry, Arc<dyn Source>)>,
    /// Whether the job file says how many connections it may have open.
    pub limits_connections: bool,
    /// The format that the entry gives; `None` if the file's name or a sample decides.
    pub format: Option<Arc<dyn Format>>,
    /// Globs of members; all if empty.
    pub members: Vec<String>,
    /// How much a unit may unpack to.
    pub limits: Limits,
    /// Whether it is fine if a pattern matches nothing.
    pub allow_empty: bool,
    /// What files mean that have nothing in them, where a header is due.
    pub empty_files: EmptyFiles,
    /// What happens if the files' columns differ.
    pub on_drift: OnDrift,
    /// What a unit means that cannot be opened.
    pub on_error: OnError,
    /// Which values are checked.
    pub validate: Validate,
    /// Which records are parsed.
    pub contains: Contains,
    /// The texts of `contains`, where they stand.
    pub(crate) literals: Vec<Located<String>>,
    /// Columns that tell where a row is from, in the order in which they are wanted.
    pub add: Vec<AddColumn>,
    /// How many records may be left out.
    pub max_rejects: MaxRejects,
    /// Whether only units, or rows, are read that no earlier run has loaded.
    pub incremental: bool,
    /// How new rows are found, of a database.
    pub incremental_by: Option<IncrementalBy>,
    /// What is read of a database.
    pub selected: Option<Selected>,
    /// Which files are read only by a later run.
    pub ready: ReadyKeys,
    /// What happens if a file has changed since it was loaded.
    pub on_change: OnChange,
    /// What happens to a file once it is loaded.
    pub after_load: Option<AfterLoad>,
    /// The order that the rows have already.
    pub sorted_by: Vec<SortKey>,
    /// What has to hold for its rows.
    pub checks: Vec<Check>,
    /// The whole entry.
    pub settings: Value,
}

/// A table or query of a database as the job file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selected {
    /// `table` or `query`.
    pub key: &'static str,
    /// The name or the SQL, with dates as the file has them: it is the same on every day.
    pub text: String,
}

impl SourceStep {
    /// What is to be said of its `contains` if it reads `format`.
    pub fn contains_lints(&self, text: &JobText, format: &dyn Format) -> Vec<Lint> {
        let Some(first) = self.literals.first() else { return Vec::new() };
        let Reading::Stream(stream) = format.reading() else {
            let what = format!("{} has no text that could be searched before it is parsed", format.name());
            let hint = "use a `filter` transform: the source skips what it can rule out";
            return vec![text.error(first.span, what).hint(hint)];
        };
        let doubt = |literal: &Located<String>| {
            let doubt = stream.doubt_literal(&literal.value)?;
            Some(text.warning(literal.span, doubt.what).hint(doubt.hint))
        };
        self.literals.iter().filter_map(doubt).collect()
    }

    /// The queue that it reads, or what is wrong with its URL; `None` if it reads none.
    pub fn queue(&self) -> Option<Result<Arc<dyn Queue>, millstream_core::spec::Fault>> {
        self.read.iter().find_map(|pattern| {
            let scheme = pattern.value.split_once("://")?.0;
            self.inputs.iter().find(|(entry, _)| entry.schemes.contains(&scheme))?.1.queue(&pattern.value)
        })
    }

    /// What it reads, in words, if that can be read only once.
    pub fn reads_once(&self) -> Option<&'static str> {
        self.read.iter().find_map(|pattern| {
            let scheme = match pattern.value.as_str() {
                "-" => "-",
                other => other.split_once(':')?.0,
            };
            self.inputs.iter().find(|(entry, _)| entry.schemes.contains(&scheme))?.1.reads_once()
        })
    }
}

/// An entry of `functions`.
#[derive(Debug, Clone)]
pub struct FunctionStep {
    /// Its name, as SQL calls it.
    pub name: Located<String>,
    /// What it computes.
    pub function: WorkFunction,
    /// The whole entry.
    pub settings: Value,
}

/// An entry of `transforms`.
#[derive(Debug, Clone)]
pub struct TransformStep {
    /// Its name.
    pub name: Located<String>,
    /// The rows that it computes.
    pub rows: Relation,
    /// Its settings, under the key of its transform.
    pub settings: Value,
    /// The texts of its settings that `rows` is made of, by their numbers.
    pub(crate) texts: Vec<Located<String>>,
    /// The order that its rows have already: keys that are columns.
    pub sorted_by: Vec<SortKey>,
    /// How many rows may be left out.
    pub max_rejects: MaxRejects,
    /// What has to hold for its rows.
    pub checks: Vec<Check>,
    /// The names of the sources and transforms that it uses, each once.
    pub uses: Vec<String>,
}

impl TransformStep {
    /// The names of the sources and transforms that its rows come from: not of those that it only looks up in.
    pub fn row_entries(&self) -> Vec<&str> {
        match self.rows.row_entries() {
            Some(entries) => entries.into_iter().map(|entry| entry.as_str()).collect(),
            None => self.uses.iter().map(String::as_str).collect(),
        }
    }

    /// A text of its rows with its place. One that does not stand in the file has the place of the entry.
    pub fn located(&self, text: &Text) -> Located<String> {
        let value = text.as_str().to_owned();
        match text.place().and_then(|place| self.texts.get(place)) {
            Some(whole) => whole.part(value, text.skipped()),
            None => Located::new(value, self.name.span),
        }
    }
}

/// What to sort by.
#[derive(Debug, Clone)]
pub struct SortKey {
    /// A column or SQL expression, without `asc`, `desc` and `nulls …`.
    pub expression: Located<String>,
    /// Whether the largest comes first.
    pub descending: bool,
    /// Whether nulls come first. If the job does not say, nulls count as the largest value.
    pub nulls_first: bool,
}

/// An entry of `sinks`.
#[derive(Debug, Clone)]
pub struct SinkStep {
    /// Its name; sinks have names of their own, a source may have the same.
    pub name: Located<String>,
    /// The step whose rows are written.
    pub from: Located<String>,
    /// The target as written.
    pub write: Located<String>,
    /// Its kind.
    pub entry: &'static SinkEntry,
    /// The sink.
    pub sink: Arc<dyn Sink>,
    /// How many rows may be left out.
    pub max_rejects: MaxRejects,
    /// What has to hold for the rows that come to it.
    pub checks: Vec<Check>,
    /// The entry without `from` and `write`.
    pub settings: Value,
    /// The texts in it, at any depth: a sink may take SQL.
    pub texts: Vec<Located<String>>,
}

/// A check of an entry's rows.
#[derive(Debug, Clone)]
pub struct Check {
    /// The rule.
    pub rule: Rule,
    /// What happens if it does not hold.
    pub severity: CheckSeverity,
    /// How many rows may break the rule.
    pub at_most: MaxRejects,
    /// What a message says in place of the rule.
    pub message: Option<String>,
    /// Where it stands.
    pub span: Span,
}

/// The rule of a check.
#[derive(Debug, Clone)]
pub enum Rule {
    /// How many rows there are.
    Rows(RowsKeys),
    /// The column has no nulls.
    NotNull(Located<String>),
    /// The columns are, together, different in all rows.
    Unique(Vec<Located<String>>),
    /// The column has one of these values, as they are written.
    Values(Located<String>, Vec<Located<String>>),
    /// The regular expression matches somewhere in the column's texts.
    Matches(Located<String>, Located<String>),
    /// The column's values lie between these, as they are written.
    Range {
        /// The column.
        column: Located<String>,
        /// The smallest value.
        min: Option<Located<String>>,
        /// The largest value.
        max: Option<Located<String>>,
    },
    /// The condition is true.
    Sql(Located<String>),
}

impl Rule {
    /// Whether each row breaks it, or does not, by itself.
    pub fn is_of_single_rows(&self) -> bool {
        !matches!(self, Rule::Rows(_) | Rule::Unique(_))
    }

    /// The columns that it names.
    pub fn columns(&self) -> Vec<String> {
        match self {
            Rule::Rows(_) | Rule::Sql(_) => Vec::new(),
            Rule::Unique(columns) => columns.iter().map(|column| column.value.clone()).collect(),
            Rule::NotNull(column) | Rule::Values(column, _) | Rule::Matches(column, _) | Rule::Range { column, .. } => {
                vec![column.value.clone()]
            }
        }
    }

    /// The rule in a few words, by which reports call the check.
    pub fn label(&self) -> String {
        let names = |columns: &[Located<String>]| {
            let names: Vec<&str> = columns.iter().map(|column| column.value.as_str()).collect();
            names.join(", ")
        };
        match self {
            Rule::Rows(_) => "rows".to_owned(),
            Rule::NotNull(column) => format!("not_null: {}", column.value),
            Rule::Unique(columns) => format!("unique: {}", names(columns)),
            Rule::Values(column, _) => format!("values: {}", column.value),
            Rule::Matches(column, _) => format!("matches: {}", column.value),
            Rule::Range { column, .. } => format!("range: {}", column.value),
            Rule::Sql(condition) => {
                format!("sql: {}", condition.value.split_whitespace().collect::<Vec<_>>().join(" "))
            }
        }
    }
}

/// A fault that the engine's SQL parser found in a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SqlFault {
    /// The line inside the text, from 1; 0 if it is not known.
    pub line: usize,
    /// The column inside the line in characters, from 1; 0 if it is not known.
    pub column: usize,
    /// What is wrong, in lower case.
    pub what: String,
    /// What to do.
    pub hint: Option<String>,
}

/// An entry of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEntry {
    /// Its name. A sink may have the same as a source.
    pub entry: String,
    /// What it is.
    pub kind: EntryKind,
    /// The sources and transforms whose rows it reads.
    pub reads: Vec<String>,
}

impl JobEntry {
    /// All entries of `job`: sources, transforms, then sinks.
    pub fn all_of(job: &Job) -> Vec<JobEntry> {
        let entry = |name: &str, kind, reads: Vec<String>| JobEntry { entry: name.to_owned(), kind, reads };
        let sources = job.sources.iter().map(|source| entry(&source.name.value, EntryKind::Source, Vec::new()));
        let transforms = job.transforms.iter();
        let transforms = transforms.map(|step| entry(&step.name.value, EntryKind::Transform, step.uses.clone()));
        let sinks = job.sinks.iter();
        let sinks = sinks.map(|sink| entry(&sink.name.value, EntryKind::Sink, vec![sink.from.value.clone()]));
        sources.chain(transforms).chain(sinks).collect()
    }
}

/// What an entry of a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryKind {
    /// An entry of `sources`.
    Source,
    /// An entry of `transforms`.
    Transform,
    /// An entry of `sinks`.
    Sink,
}
