//! The typed result of loading a job file: what the engine plans and runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use millstream_core::codec::Limits;
use millstream_core::format::{EmptyFiles, Format, OnDrift, Validate};
use millstream_core::registry::{SinkEntry, SourceEntry};
use millstream_core::reject::MaxRejects;
use millstream_core::sink::Sink;
use millstream_core::source::OnError;
use millstream_core::source::Source;
use millstream_core::transform as component;
use serde_json::Value;

use crate::entries::{AddColumn, Keep, UnionBy};
use crate::lint::Lint;
use crate::text::{JobText, Position, Span};

/// A job that has no errors which can be found without an engine.
#[derive(Debug, Clone)]
pub struct Job {
    /// The file it is from.
    pub text: JobText,
    /// Where rows come from, in file order. Names are unique over sources and transforms.
    pub sources: Vec<SourceStep>,
    /// What is done with them, in file order.
    pub transforms: Vec<TransformStep>,
    /// Where they go, in file order.
    pub sinks: Vec<SinkStep>,
    /// The variables that had a value when the file was parsed, defaults not counted.
    pub variables: BTreeMap<String, String>,
    /// Of these, those that did not come from the environment: they tell runs of one job from each other.
    pub set: BTreeMap<String, String>,
    /// Whether a run has had the components: they may keep state, such as the snapshot of a database, so each further
    /// run needs some of its own.
    pub taken: Arc<AtomicBool>,
}

impl Job {
    /// The path of the file, as it was given.
    pub fn path(&self) -> &str {
        self.text.path()
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
    pub places: Vec<(&'static SourceEntry, Arc<dyn Source>)>,
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
    /// Columns that tell where a row is from, in the order in which they are wanted.
    pub add: Vec<AddColumn>,
    /// How many records may be left out.
    pub max_rejects: MaxRejects,
    /// Whether only units are read that no earlier run has loaded.
    pub incremental: bool,
    /// The order that the rows have already.
    pub sorted_by: Vec<SortKey>,
    /// The whole entry.
    pub settings: Value,
}

/// An entry of `transforms`.
#[derive(Debug, Clone)]
pub struct TransformStep {
    /// Its name.
    pub name: Located<String>,
    /// What it does.
    pub transform: Transform,
    /// The order that its rows have already: keys that are columns.
    pub sorted_by: Vec<SortKey>,
    /// How many rows may be left out.
    pub max_rejects: MaxRejects,
    /// The names of the sources and transforms that it uses, each once.
    pub uses: Vec<String>,
}

/// What a transform does.
#[derive(Debug, Clone)]
pub enum Transform {
    /// A SQL query over the other entries.
    Sql(Located<String>),
    /// Keeps the rows that meet a condition.
    Filter {
        /// The step it reads.
        from: Located<String>,
        /// A SQL expression.
        r#where: Located<String>,
    },
    /// Chooses, renames and computes columns.
    Select {
        /// The step it reads.
        from: Located<String>,
        /// The columns, in order.
        columns: Vec<SelectColumn>,
    },
    /// The rows of several steps, one after the other.
    Union {
        /// The steps, at least two.
        of: Vec<Located<String>>,
        /// How columns find each other.
        by: UnionBy,
        /// Whether rows that are equal come out once.
        distinct: bool,
    },
    /// Sorts the rows.
    Sort {
        /// The step it reads.
        from: Located<String>,
        /// What to sort by, most important first.
        by: Vec<SortKey>,
        /// How many rows to keep.
        limit: Option<u64>,
        /// Of which rows only one stays.
        distinct: Option<Distinct>,
        /// Whether rows with equal keys keep the order in which they came.
        stable: bool,
        /// The scratch disks that it uses.
        pool: Option<Located<String>>,
    },
    /// Keeps one row of those that are equal in some columns.
    Dedupe {
        /// The step it reads.
        from: Located<String>,
        /// The columns in which rows are equal, all if empty, and which of these stays.
        distinct: Distinct,
        /// The order of equal rows; if empty, that in which they came.
        order: Vec<SortKey>,
    },
    /// A component computes rows.
    Component {
        /// The step it reads.
        from: Located<String>,
        /// The component.
        transform: Arc<dyn component::Transform>,
        /// Its settings, as they stand.
        settings: Value,
    },
}

/// Of which rows only one stays.
#[derive(Debug, Clone)]
pub struct Distinct {
    /// What is equal in them: columns or SQL expressions; everything that rows are told apart by if empty.
    pub by: Vec<Located<String>>,
    /// Which one stays; `None` if the job does not say.
    pub keep: Option<Keep>,
}

/// A column of a `select`.
#[derive(Debug, Clone)]
pub struct SelectColumn {
    /// Its new name, if it is given as a key.
    pub name: Option<Located<String>>,
    /// A SQL expression; without `name` it may end in `AS name`.
    pub expression: Located<String>,
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
    /// The entry without `from` and `write`.
    pub settings: Value,
    /// The texts in it, at any depth: a sink may take SQL.
    pub texts: Vec<Located<String>>,
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
