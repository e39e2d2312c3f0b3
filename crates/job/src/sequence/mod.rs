//! Sequences: files with `steps`, which run jobs and other things in order.
//!
//! ```text
//!  text ─tree─▶ nodes ─fill─▶ filled ─step─▶ steps ─links─▶ graph ──▶ Sequence ─state─▶ what may start now
//!                  └────────────┴─────────────┴────────────┴─nested─▶ lints, all at once, those of named files too
//! ``` `spec.rs` what such a file may say, `model.rs` what it becomes. Nothing here reads a file, asks a clock or
//! starts anything: how named files are read and jobs are linted is given, and `state.rs` decides, from what steps have
//! come to, what comes next.

mod conditions;
mod fill;
mod links;
mod nested;
mod paths;
mod step;

pub mod graph;
pub mod items;
pub mod model;
pub mod references;
pub mod schedule;
pub mod schema;
pub mod sources;
pub mod spec;
pub mod state;
pub mod template;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use millstream_core::Registry;
use millstream_core::hint::{did_you_mean, nearest};
use millstream_core::spec::Fault;
use serde_json::Value;

use crate::around::Allow;
use crate::build::Builder;
use crate::dates::Moment;
use crate::gather::allow_lint;
use crate::lint::{self, Lint, LintCode};
use crate::text::{JobText, Span};
use crate::tree::{self, Entry, Kind, NAMES, Node};
use crate::variables::Variables;
use crate::walk::{Walker, in_words};
use crate::{around, exposed};

pub use crate::links::References;
pub use conditions::NamedColumn;
pub use graph::{CriticalPath, Graph};
pub use model::{Sequence, Step};
pub use nested::{NamedFiles, NamedJob};
pub use paths::beside;
pub use schema::schema;
pub use state::{Decision, StepState};

use conditions::Conditions;
use nested::Nested;
use step::Steps;

/// The keys of a sequence's file.
const KEYS: [&str; 6] = ["schedule", "timezone", "priority", "allow", fill::PARAMETERS, STEPS];

/// The key by which a file is a sequence.
const STEPS: &str = "steps";

/// What loading a sequence needs beside the text.
pub struct SequenceOptions<'a> {
    /// Values of parameters and variables that the command line gives.
    pub set: &'a BTreeMap<String, String>,
    /// The environment.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
    /// The tables that a SQL query names, or why it is no query.
    pub references: &'a References<'a>,
    /// The columns that a SQL query names.
    pub columns: &'a dyn Fn(&str) -> Vec<NamedColumn>,
    /// What is wrong with what stands under `schedule`.
    pub schedule: &'a dyn Fn(&Value) -> Vec<Fault>,
    /// The pools of the machine file; `None` if there is none.
    pub pools: Option<&'a [String]>,
    /// How the files that the sequence names are read and linted.
    pub files: &'a dyn NamedFiles,
    /// Whether the sequence is about to run: a secret that is not there is then an error, else a warning.
    pub running: bool,
    /// When the logical run begins, in milliseconds since 1970.
    pub now: i64,
}

/// What came of a sequence's file.
#[derive(Debug)]
pub struct LoadedSequence {
    /// The sequence, if neither it nor a file that it names has errors.
    pub sequence: Option<Sequence>,
    /// All lints: those of the file itself, sorted by place, then those of the files that it names.
    pub lints: Vec<Lint>,
    /// The text, for lints that others find.
    pub text: JobText,
}

/// Loads the sequence `text` that was read from `path`, and lints the files that it names. Never fails: what is wrong
/// is in the lints.
pub fn load(path: &str, text: &str, registry: &Registry, options: &SequenceOptions<'_>) -> LoadedSequence {
    let sequence_text = JobText::new(path, text);
    let mut nested = Nested::new(path, registry, options);
    let mut loader =
        Loader { text: &sequence_text, set: options.set, later: &BTreeSet::new(), now: options.now, lints: Vec::new() };
    let (sequence, others) = loader.load(text, &mut nested);
    let mut lints = loader.lints;
    lints.extend(others);
    let is_good = !lints.iter().any(Lint::is_error);
    LoadedSequence { sequence: sequence.filter(|_| is_good), lints, text: sequence_text }
}

/// Whether the text of a file is that of a sequence, and not of a job: it has `steps`, or would have them if its YAML
/// were sound.
pub fn is_sequence(text: &str) -> bool {
    let is_key = |line: &str| line.strip_prefix(STEPS).is_some_and(|rest| rest.trim_start().starts_with(':'));
    let (root, lints) = tree::parse(&JobText::new("", text), text);
    match root {
        Some(root) if lints.is_empty() || root.entry(STEPS).is_some() => root.entry(STEPS).is_some(),
        // What is broken may have swallowed the key.
        _ => crate::text::unified(text).lines().any(is_key),
    }
}

/// The lints of a sequence that another one names, and of the files that it names.
fn lints_of_named(
    path: &str,
    text: &str,
    set: &BTreeMap<String, String>,
    later: &BTreeSet<String>,
    now: i64,
    nested: &mut Nested<'_>,
) -> Vec<Lint> {
    let sequence_text = JobText::new(path, text);
    let mut loader = Loader { text: &sequence_text, set, later, now, lints: Vec::new() };
    let (_, others) = loader.load(text, nested);
    let mut lints = loader.lints;
    lints.extend(others);
    lints
}

struct Loader<'a> {
    text: &'a JobText,
    set: &'a BTreeMap<String, String>,
    /// Parameters of which it is not known which values they get.
    later: &'a BTreeSet<String>,
    now: i64,
    lints: Vec<Lint>,
}

impl<'a> Loader<'a> {
    fn error(&mut self, span: Span, what: impl Into<String>, hint: impl Into<String>) {
        self.lints.push(self.text.error(span, what).hint(hint));
    }

    /// The sequence, if nothing is wrong with the file itself, and the lints of the files that it names.
    fn load(&mut self, source: &str, nested: &mut Nested<'_>) -> (Option<Sequence>, Vec<Lint>) {
        let (sequence, others) = match self.parsed(source) {
            Some(root) => self.root(root, nested),
            None => (None, Vec::new()),
        };
        exposed::hide_passwords(&mut self.lints);
        lint::tidy(&mut self.lints);
        let is_good = !self.lints.iter().any(Lint::is_error);
        (sequence.filter(|_| is_good), others)
    }

    /// The keys of the file.
    fn parsed(&mut self, source: &str) -> Option<Node> {
        let (root, lints) = tree::parse(self.text, source);
        self.lints.extend(lints);
        let root = root.filter(|root| !root.is_null());
        let hint = "a sequence has `steps:`, each with a name and one thing that it does";
        match &root {
            None if self.lints.is_empty() => self.error(Span::default(), "the sequence is empty", hint),
            Some(root) if !matches!(root.kind, Kind::Block(_)) => {
                self.error(root.span, format!("expected a block of keys, found {}", in_words(root)), hint);
                return None;
            }
            _ => {}
        }
        root
    }

    fn root(&mut self, mut root: Node, nested: &mut Nested<'_>) -> (Option<Sequence>, Vec<Lint>) {
        let (registry, options) = (nested.registry, nested.options);
        let databases = sources::databases(registry);
        let moment = Some(Moment::new(self.now));
        let variables = Variables { set: self.set, environment: options.environment, now: moment };
        let fill::FilledSequence { filled, parameters, unused } =
            fill::fill(&mut root, self.text, &variables, &databases, self.later);
        self.lints.extend(filled.lints);
        let schema = schema(registry);
        let definitions = schema::definitions(registry, &schema);
        let mut builder = Builder::new(self.text, registry, &definitions);
        self.keys(&root, &schema, &definitions);
        let schedule = root.entry("schedule").cloned();
        if let Some(schedule) = schedule.as_ref().filter(|schedule| !schedule.value.has_unknown()) {
            let faults = (options.schedule)(&schedule.value.to_value());
            self.lints.extend(model::lints_of(faults, schedule, self.text));
        }
        let priority = root.get("priority").and_then(|priority| serde_json::from_value(priority.to_value()).ok());
        let allow = root.entry("allow");
        let allow =
            allow.and_then(|entry| Some((entry, serde_json::from_value::<Allow>(entry.value.to_value()).ok()?)));
        self.lints.extend(allow.as_ref().and_then(|(entry, allow)| allow_lint(allow, entry, self.text)));
        let allow = allow.map(|(_, allow)| allow).unwrap_or_default();
        let entries = self.steps(&root);
        let names: Vec<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
        let parameter_names: Vec<&str> = root
            .get(fill::PARAMETERS)
            .map(Node::entries)
            .unwrap_or_default()
            .iter()
            .map(|one| one.key.as_str())
            .collect();
        let conditions = Conditions {
            text: self.text,
            references: options.references,
            columns: options.columns,
            steps: &names,
            parameters: &parameter_names,
        };
        let mut reader = Steps { builder: &mut builder, conditions, pools: options.pools, databases };
        let steps: Vec<_> = entries.iter().map(|entry| reader.step(entry)).collect();
        let found = builder.found;
        self.lints.extend(found.lints);
        let missing = crate::missing_secrets(self.text, &found.secrets, options.environment, options.running);
        self.lints.extend(missing);
        let links::Links { graph, lints, doubts } = links::link(entries, self.text);
        self.lints.extend(lints);
        exposed::hide(&mut self.lints, &found.exposed);
        lint::name_owner(&mut self.lints, &around::KEYS[..8], "jobs: write it into the file of the job");
        lint::name_owner(&mut self.lints, &KEYS, "the sequence itself: it stands beside `steps`");
        let named = nested.lints(entries, self.text, filled.moment.milliseconds());
        self.lints.extend(named.own);
        if !self.lints.iter().any(Lint::is_error) {
            self.lints.extend(unused.into_iter().chain(doubts).chain(named.doubts));
        }
        let mut steps: Option<Vec<Step>> = steps.into_iter().collect();
        let with_item = steps.iter_mut().flatten().filter(|step| named.with_item.contains(&step.name.value));
        with_item.for_each(Step::give_item);
        let sequence = steps.zip(graph).map(|(steps, graph)| Sequence {
            text: self.text.clone(),
            schedule,
            priority: priority.unwrap_or_default(),
            allow,
            moment: filled.moment,
            parameters,
            variables: filled.values,
            dates: filled.dates,
            steps,
            graph,
            secrets: found.secrets.into_iter().map(|(secret, _)| secret).collect(),
        });
        (sequence, named.others)
    }

    /// Lints what stands beside the steps.
    fn keys(&mut self, root: &Node, schema: &Value, definitions: &serde_json::Map<String, Value>) {
        for entry in root.entries() {
            match entry.key.as_str() {
                // The schedule's type, and the steps, are looked at by others.
                "schedule" | STEPS => {}
                key if KEYS.contains(&key) => {
                    let walker = Walker { text: self.text, definitions };
                    self.lints.extend(walker.entry(entry, &schema["properties"][key]).lints);
                }
                key => {
                    let hint = match ["sources", "transforms", "sinks"].contains(&key) {
                        true => {
                            "a file is a job, with `sources` and `sinks`, or a sequence, with `steps` that name jobs"
                                .to_owned()
                        }
                        false => did_you_mean(key, "valid keys", &KEYS),
                    };
                    let lint = self.text.error(entry.key_span, format!("unknown key `{key}` in the sequence"));
                    self.lints.push(lint.code(LintCode::UnknownKey).hint(hint));
                }
            }
        }
    }

    /// The entries of `steps`.
    fn steps<'n>(&mut self, root: &'n Node) -> &'n [Entry] {
        let Some(entry) = root.entry(STEPS) else {
            let is_slip =
                |entry: &Entry| !KEYS.contains(&entry.key.as_str()) && nearest(&entry.key, KEYS) == Some(STEPS);
            if !root.entries().iter().any(is_slip) {
                self.error(Span::default(), "the sequence has no steps", "add `steps:` with at least one entry");
            }
            return &[];
        };
        let node = &entry.value;
        match &node.kind {
            Kind::Block(entries) if !entries.is_empty() => {
                entries.iter().for_each(|entry| self.name(entry));
                entries
            }
            Kind::Block(_) => {
                self.error(entry.key_span, "the sequence has no steps", "add at least one entry to `steps:`");
                &[]
            }
            _ if node.is_null() => {
                self.error(entry.key_span, "the sequence has no steps", "add at least one entry to `steps:`");
                &[]
            }
            _ => {
                let what = format!("expected a block of named steps for `steps`, found {}", in_words(node));
                self.error(entry.report_span(), what, "give each step a name: `name:`, and its keys below it");
                &[]
            }
        }
    }

    fn name(&mut self, entry: &Entry) {
        if !entry.is_name() {
            let what = format!("`{}` cannot be a name", millstream_core::error::printable(entry.key.as_bytes()));
            self.error(entry.key_span, what, NAMES);
        }
    }
}
