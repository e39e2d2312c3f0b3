//! Millstream's job file: from YAML text to every lint that needs no engine, and to a typed graph.
//!
//! ```text
//!  text ─tree─▶ nodes with places ─variables─▶ filled ─walk (schema)─▶ ─build─▶ steps ─links─▶ Job
//!                    └──────────────┴───────────────┴────────────┴─────────────┴──▶ lints, all at once
//! ```
//! [`sequence`] does the same for files with `steps`. The crate is handed the registry of components and imports none
//! of them. SQL is the engine's: [`load`] is given a function that tells which tables a query names. Rendering of lints
//! is the command line's.

pub mod around;
mod connections;
pub mod dates;
pub mod entries;
pub mod graph;
pub mod lint;
pub mod machine;
pub mod reference;
pub mod replace;
pub mod schema;
pub mod sequence;
pub mod test_file;
pub mod text;
pub mod tree;

mod build;
mod checks;
mod exposed;
mod files;
mod gather;
mod links;
mod settings;
mod unsupported;
mod variables;
mod walk;
mod windows;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use millstream_core::Registry;
use millstream_core::hint::did_you_mean;
use serde_json::{Map, Value};

pub use around::Around;
pub use dates::Moment;
pub use entries::{AddColumn, AfterLoad, CheckSeverity, OnChange, ReadyKeys, RowsKeys};
pub use graph::{
    Check, EntryKind, FunctionStep, Job, JobEntry, Located, Rule, Selected, SinkStep, SortKey, SourceStep, SqlFault,
    TransformStep,
};
pub use links::fault_span;
pub use lint::{Lint, LintCode, Severity};
pub use machine::{MachineFile, RunCompression};
pub use reference::{machine_reference, reference, sequence_reference};
pub use schema::schema;
pub use text::{JobText, Position, Span, decode};

use connections::Connections;
use entries::COMMAND;
use gather::Gathering;
use links::{References, Sections};
use replace::Replacements;
use tree::{Entry, Kind, NAMES, Node, Typed};
use variables::TIMEZONE;

/// What loading needs beside the text.
pub struct LoadOptions<'a> {
    /// Variables that the command line gives: they come before the environment's.
    pub set: &'a BTreeMap<String, String>,
    /// The environment.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
    /// Whether variables have their values from `set` alone, so that only secrets come from the environment.
    pub only_set: bool,
    /// The tables that a SQL query names (as SQL reads them: folded to lower case unless quoted), or why it is no
    /// query.
    pub references: &'a References<'a>,
    /// Whether the job is about to run: a secret that is not there is then an error, else a warning.
    pub running: bool,
    /// What stands in for entries of the file, if something does.
    pub replace: Option<&'a Arc<Replacements>>,
    /// When the logical run begins, in milliseconds since 1970.
    pub now: i64,
}

/// What came of a job file.
#[derive(Debug)]
pub struct Loaded {
    /// The job, if there are no errors.
    pub job: Option<Job>,
    /// If there are errors: the entries that have none and use none that has, so that an engine can tell what is wrong
    /// with these at the same time. It is not for running.
    pub sound: Option<Job>,
    /// Its entries, also those that are wrong.
    pub outline: Vec<JobEntry>,
    /// All lints, sorted by place, each once.
    pub lints: Vec<Lint>,
    /// The text, for lints that others find.
    pub text: JobText,
}

/// Loads the job file `text` that was read from `path`. Never fails: what is wrong is in the lints.
pub fn load(path: &str, text: &str, registry: &Registry, options: &LoadOptions<'_>) -> Loaded {
    load_before(path, text, registry, options, &BTreeSet::new())
}

/// What is wrong with a job whose variables in `later` get their values when it runs: what these stand in is not
/// looked at.
pub fn check(
    path: &str,
    text: &str,
    registry: &Registry,
    options: &LoadOptions<'_>,
    later: &BTreeSet<String>,
) -> Vec<Lint> {
    load_before(path, text, registry, options, later).lints
}

/// Loads a job before the variables in `later` have values; if it uses them, it lacks entries.
fn load_before(
    path: &str,
    text: &str,
    registry: &Registry,
    options: &LoadOptions<'_>,
    later: &BTreeSet<String>,
) -> Loaded {
    let job_text = JobText::new(path, text);
    let mut loader = Loader { text: &job_text, registry, options, later, outline: Vec::new(), lints: Vec::new() };
    let job = loader.load(text);
    let Loader { mut lints, outline, .. } = loader;
    lint::tidy(&mut lints);
    let failed = lints.iter().any(Lint::is_error);
    let (job, sound) = if failed { (None, job) } else { (job, None) };
    Loaded { job, sound, outline, lints, text: job_text }
}

struct Loader<'a> {
    text: &'a JobText,
    registry: &'a Registry,
    options: &'a LoadOptions<'a>,
    later: &'a BTreeSet<String>,
    outline: Vec<JobEntry>,
    lints: Vec<Lint>,
}

/// The sections of a job file, in the order in which a job reads.
const SECTIONS: [&str; 3] = ["sources", "transforms", "sinks"];

/// The keys of a job file: its sections, and what is said of the whole job.
const KEYS: [&str; 17] = [
    "sources",
    FUNCTIONS,
    "transforms",
    "sinks",
    INCREMENTAL,
    TIMEZONE,
    around::KEYS[0],
    around::KEYS[1],
    around::KEYS[2],
    around::KEYS[3],
    around::KEYS[4],
    around::KEYS[5],
    around::KEYS[6],
    around::KEYS[7],
    around::KEYS[8],
    around::KEYS[9],
    around::KEYS[10],
];

/// The key of the functions that SQL may call.
const FUNCTIONS: &str = "functions";

/// The key that makes all sources incremental.
const INCREMENTAL: &str = "incremental";

/// What a job file says beside its entries.
struct Said<'n> {
    root: &'n Node,
    /// The schemas of the keys of a job.
    properties: &'n Value,
    /// Whether sources that do not say otherwise are incremental.
    incremental: bool,
}

impl Loader<'_> {
    fn error(&mut self, span: Span, what: impl Into<String>, hint: impl Into<String>) {
        self.lints.push(self.text.error(span, what).hint(hint));
    }

    fn load(&mut self, source: &str) -> Option<Job> {
        let (root, lints) = tree::parse(self.text, source);
        self.lints.extend(lints);
        let mut root = root.filter(|root| !root.is_null());
        if root.is_none() && self.lints.is_empty() {
            self.error(
                Span::default(),
                "the job file is empty",
                "a job has `sources:` and `sinks:`; see `millstream guess`",
            );
        }
        let root = root.as_mut()?;
        let environment = if self.options.only_set { &|_: &str| None } else { self.options.environment };
        let now = Some(Moment::new(self.options.now));
        let variables = variables::Variables { set: self.options.set, environment, now };
        let filled = variables::fill(root, self.text, &variables, self.later);
        self.lints.extend(filled.lints);
        let schema = schema(self.registry);
        let none = Map::new();
        let definitions = schema.get("$defs").and_then(Value::as_object).unwrap_or(&none);
        if let Some(replacements) = self.options.replace {
            replacements.apply(root);
        }
        settle_entries(root, definitions);
        self.name_programs(root);
        let job = self.root(root, &schema, definitions).map(|job| Job {
            variables: filled.values,
            set: self.options.set.clone(),
            replaced: self.options.replace.cloned(),
            around: Around { moment: filled.moment, dates: filled.dates, ..job.around },
            ..job
        });
        lint::name_owner(&mut self.lints, &KEYS, "the job itself: it stands beside `sources` and `sinks`");
        exposed::hide_passwords(&mut self.lints);
        job
    }

    /// Gives sources and sinks that are programs the `read` or `write` that all others have.
    fn name_programs(&mut self, root: &mut Node) {
        for section in root.entries_mut() {
            let place = match section.key.as_str() {
                "sources" => "read",
                "sinks" => "write",
                _ => continue,
            };
            for entry in section.value.entries_mut() {
                let Some(command) = entry.value.entry(COMMAND) else { continue };
                let (key, key_span) = (place.to_owned(), command.key_span);
                let value = Node::text(&format!("{COMMAND}:{}", program_name(&command.value)), key_span);
                if let Some(other) = entry.value.entry(place) {
                    let what = format!("`{}` has both `{place}` and `command`", entry.key);
                    self.lints.push(self.text.error(other.key_span, what).hint("keep one of them"));
                }
                entry.value.set(Entry { key, key_span, value });
            }
        }
    }

    fn root(&mut self, root: &Node, schema: &Value, definitions: &Map<String, Value>) -> Option<Job> {
        if !matches!(root.kind, Kind::Block(_)) {
            let what = format!("expected a block of keys, found {}", walk::in_words(root));
            let hint = "a job has `sources:`, `transforms:` (if any) and `sinks:`; `millstream cat FILE` \
                        writes the text of a data file";
            self.error(root.span, what, hint);
            return None;
        }
        for entry in root.entries() {
            if !KEYS.contains(&entry.key.as_str()) {
                let hint = did_you_mean(&entry.key, "valid keys", &KEYS);
                self.error(entry.key_span, format!("unknown key `{}` in the job", entry.key), hint);
            }
        }
        let sections = Sections {
            sources: self.section(root, "sources"),
            transforms: self.section(root, "transforms"),
            sinks: self.section(root, "sinks"),
            functions: self.section(root, FUNCTIONS),
        };
        for entry in sections.functions {
            self.function_name(entry);
            let is_taken = |other: &Entry| other.key == entry.key;
            if sections.sources.iter().chain(sections.transforms).chain(sections.sinks).any(is_taken) {
                let what = format!("`{}` is a function, and another entry has its name", entry.key);
                self.error(entry.key_span, what, "give it a name of its own: messages and reports name it");
            }
        }
        for entry in sections.sources.iter().chain(sections.transforms).chain(sections.sinks) {
            self.name(entry);
        }
        self.timezone(root);
        let incremental = self.incremental(root);
        let said = Said { root, properties: &schema["properties"], incremental };
        self.steps(&sections, &said, definitions)
    }

    /// Whether sources that do not say otherwise are incremental.
    fn incremental(&mut self, root: &Node) -> bool {
        let Some(entry) = root.entry(INCREMENTAL) else { return false };
        if let Value::Bool(incremental) = entry.value.to_value() {
            return incremental;
        }
        let what = format!("expected `true` or `false` for `{INCREMENTAL}`, found {}", walk::in_words(&entry.value));
        self.error(entry.report_span(), what, "it says whether each run reads only what no earlier run has loaded");
        false
    }

    /// Which zones there are is known where dates are computed.
    fn timezone(&mut self, root: &Node) {
        let Some(entry) = root.entry(TIMEZONE) else { return };
        if entry.value.scalar().is_some_and(|scalar| matches!(scalar.typed, Typed::Text | Typed::Unknown)) {
            return;
        }
        let what = format!("expected text for `{TIMEZONE}`, found {}", walk::in_words(&entry.value));
        self.error(entry.report_span(), what, "it is a name of the IANA database, such as `Europe/Berlin`, or `UTC`");
    }

    /// The entries of a section.
    fn section<'n>(&mut self, root: &'n Node, name: &str) -> &'n [Entry] {
        let entry = root.entry(name);
        match entry.map(|entry| (entry, &entry.value)) {
            Some((_, node)) if matches!(node.kind, Kind::Block(_)) && !node.entries().is_empty() => node.entries(),
            Some((entry, node)) if !node.is_null() && !matches!(node.kind, Kind::Block(_)) => {
                let what = format!("expected a block of named entries for `{name}`, found {}", walk::in_words(node));
                self.error(entry.report_span(), what, "give each entry a name: `name:`, and its keys below it");
                &[]
            }
            // An unknown key is probably this section with a slip of the pen.
            _ if !["transforms", FUNCTIONS].contains(&name) && !self.has_misspelt(root, name) => {
                let span = entry.map_or(Span::default(), |entry| entry.key_span);
                self.error(
                    span,
                    format!("the job has no {name}"),
                    match name {
                        "sources" => "add `sources:` with at least one entry: what to read",
                        _ => "add `sinks:` with at least one entry: where to write",
                    },
                );
                &[]
            }
            _ => &[],
        }
    }

    fn has_misspelt(&self, root: &Node, name: &str) -> bool {
        root.entries()
            .iter()
            .filter(|entry| !KEYS.contains(&entry.key.as_str()))
            .any(|entry| millstream_core::hint::nearest(&entry.key, SECTIONS) == Some(name))
    }

    fn name(&mut self, entry: &Entry) {
        if !entry.is_name() {
            let what = format!("`{}` cannot be a name", millstream_core::error::printable(entry.key.as_bytes()));
            self.error(entry.key_span, what, NAMES);
        }
    }

    /// SQL folds the names of functions to lower case.
    fn function_name(&mut self, entry: &Entry) {
        self.name(entry);
        let lower = entry.key.to_ascii_lowercase();
        if lower != entry.key {
            let what = format!("the function `{}` is not in lower case, and SQL reads names so", entry.key);
            self.error(entry.key_span, what, format!("call it `{lower}`"));
        }
    }

    fn steps(&mut self, sections: &Sections<'_>, said: &Said<'_>, definitions: &Map<String, Value>) -> Option<Job> {
        let connections = Connections::of(said.root, sections.sources, self.registry, definitions);
        let builder = build::Builder::new(self.text, self.registry, definitions);
        let mut builder = build::Builder { incremental: said.incremental, connections, ..builder };
        let sources: Vec<SourceStep> = sections.sources.iter().filter_map(|entry| builder.source(entry)).collect();
        let functions = sections.functions.iter().filter_map(|entry| builder.function(entry)).collect();
        let transforms: Vec<_> =
            sections.transforms.iter().filter_map(|entry| Some((entry, builder.transform(entry)?))).collect();
        let sinks: Vec<SinkStep> = sections.sinks.iter().filter_map(|entry| builder.sink(entry)).collect();
        builder.targets(&sinks);
        let gathering = Gathering {
            builder: &mut builder,
            properties: said.properties,
            entries: sections.sources,
            steps: &sources,
            secrets: Vec::new(),
        };
        let around = gathering.around(said.root);
        let found = builder.found;
        self.lints.extend(found.lints);
        self.secrets(&found.secrets);
        let mut links = links::link(sections, self.text, definitions, self.options.references);
        self.lints.append(&mut links.lints);
        exposed::hide(&mut self.lints, &found.exposed);
        self.outline = outline(sections, &links);
        let transforms = transforms
            .into_iter()
            .filter(|(entry, _)| !links.broken.contains(&entry.key))
            .map(|(entry, step)| TransformStep { uses: links.uses.remove(&entry.key).unwrap_or_default(), ..step })
            .collect();
        let mut job = Job {
            text: self.text.clone(),
            transforms,
            functions,
            sources,
            sinks,
            variables: BTreeMap::new(),
            set: BTreeMap::new(),
            replaced: None,
            around,
            taken: Arc::default(),
        };
        job.keep_sound();
        Some(job)
    }

    /// Secrets of the environment that are not there.
    fn secrets(&mut self, secrets: &[(String, Span)]) {
        let missing = missing_secrets(self.text, secrets, self.options.environment, self.options.running);
        self.lints.extend(missing);
    }
}

/// The entries of a job with what they read, as far as that is one of them.
fn outline(sections: &Sections<'_>, links: &links::Links) -> Vec<JobEntry> {
    let is_known = |name: &str| sections.sources.iter().chain(sections.transforms).any(|entry| entry.key == name);
    let entry = |kind: EntryKind, entry: &Entry, reads: Vec<String>| JobEntry {
        entry: entry.key.clone(),
        kind,
        reads: reads.into_iter().filter(|name| is_known(name)).collect(),
    };
    let sources = sections.sources.iter().map(|source| entry(EntryKind::Source, source, Vec::new()));
    let used = |name: &str| links.uses.get(name).cloned().unwrap_or_default();
    let transforms = sections.transforms.iter().map(|step| entry(EntryKind::Transform, step, used(&step.key)));
    let from = |sink: &Entry| sink.value.get("from").and_then(Node::scalar).map(|scalar| scalar.text.clone());
    let sinks = sections.sinks.iter().map(|sink| entry(EntryKind::Sink, sink, from(sink).into_iter().collect()));
    sources.chain(transforms).chain(sinks).collect()
}

/// The lints of those of `secrets` that are not in the environment.
fn missing_secrets(
    text: &JobText,
    secrets: &[(String, Span)],
    environment: &dyn Fn(&str) -> Option<String>,
    running: bool,
) -> Vec<Lint> {
    let severity = if running { Severity::Error } else { Severity::Warning };
    let lint = |(reference, span): &(String, Span)| {
        let name = reference.strip_prefix("env:").filter(|name| environment(name).is_none())?;
        let lint = text.lint(severity, *span, format!("the secret's variable {name} is not set"));
        Some(lint.hint(format!("set it in the environment before the job runs: export {name}=…")))
    };
    secrets.iter().filter_map(lint).collect()
}

/// The name of the program that `command` says, without its folder and what patterns would expand.
fn program_name(command: &Node) -> String {
    let words = command.get("run").unwrap_or(command);
    let program = match &words.kind {
        Kind::List(words) => words.first().and_then(Node::scalar),
        _ => None,
    };
    let name = program.and_then(|program| program.text.rsplit('/').next()).unwrap_or_default();
    name.chars().map(|one| if one.is_alphanumeric() || "._-".contains(one) { one } else { '_' }).collect()
}

/// `on_drift: null` and `miss: null` mean the choice, not nothing.
fn settle_entries(root: &mut Node, definitions: &Map<String, Value>) {
    for section in root.entries_mut() {
        let schema = match section.key.as_str() {
            "sources" => definitions.get(schema::SOURCE),
            "transforms" => definitions.get(schema::TRANSFORM),
            _ => None,
        };
        let Some(schema) = schema else { continue };
        section.value.entries_mut().iter_mut().for_each(|entry| walk::settle(&mut entry.value, schema, definitions));
    }
}
