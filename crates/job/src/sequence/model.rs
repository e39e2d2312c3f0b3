//! A sequence as it is run: typed steps with their places.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use super::graph::Graph;
use super::references::StepsReference;
use super::spec::{Attachment, Method, Pace};
use super::template::Template;
use crate::around::{Allow, Priority};
use crate::dates::Moment;
use crate::graph::Located;
use crate::lint::Lint;
use crate::text::{JobText, Span};
use crate::tree::Entry;
use millstream_core::spec::{Fault, Secret};

/// A sequence without errors.
#[derive(Debug, Clone)]
pub struct Sequence {
    /// The file.
    pub text: JobText,
    /// When it starts by itself: the entry as it stands in the file, since its type belongs to the scheduler.
    pub schedule: Option<Entry>,
    /// How much of the cores its steps get.
    pub priority: Priority,
    /// The parameters that those may set who may only start it.
    pub allow: Allow,
    /// When the logical run begins: what `today` and `now` are.
    pub moment: Moment,
    /// The values of all parameters.
    pub parameters: BTreeMap<String, String>,
    /// The variables of the environment, and those that `--set` gave, that the file uses and their values.
    pub variables: BTreeMap<String, String>,
    /// The dates in the file: the inside of `${…}`, and its value.
    pub dates: BTreeMap<String, String>,
    /// The steps, in the order of the file.
    pub steps: Vec<Step>,
    /// Which step needs which, by their numbers in `steps`.
    pub graph: Graph,
    /// The secrets that it refers to, such as `env:NAME`, each once.
    pub secrets: BTreeSet<String>,
}

/// A step.
#[derive(Debug, Clone)]
pub struct Step {
    /// Its name.
    pub name: Located<String>,
    /// What it does.
    pub action: Action,
    /// When it runs.
    pub when: When,
    /// How often it is attempted again; not at all, if there is none.
    pub retries: Option<Retries>,
    /// How long each attempt may take.
    pub time_limit: Option<Duration>,
    /// The pool that limits how many steps run together.
    pub pool: Option<Located<String>>,
    /// The loop, if it is one.
    pub for_each: Option<ForEach>,
    /// Whether it starts again whenever it ends.
    pub keep_running: bool,
    /// Bytes that are reserved for it.
    pub memory: Option<u64>,
}

impl Step {
    /// Gives the file that it runs the item of its loop.
    pub(crate) fn give_item(&mut self) {
        if let (Action::Job(file) | Action::Sequence(file), Some(for_each)) = (&mut self.action, &self.for_each) {
            let name = &for_each.variable;
            file.set.push((name.clone(), Template::of_item(name)));
        }
    }
}

/// How often a step that fails is attempted again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retries {
    /// How often, beside the first attempt.
    pub count: u32,
    /// How long it waits before each time.
    pub wait: Duration,
}

/// What a step does.
#[derive(Debug, Clone)]
pub enum Action {
    /// Runs a job.
    Job(FileAction),
    /// Runs another sequence.
    Sequence(FileAction),
    /// Runs a program: its name and its arguments.
    Command(Vec<Template>),
    /// Runs a query.
    Query(Box<QueryAction>),
    /// Waits.
    Wait(WaitAction),
    /// Sends a request.
    Webhook(Box<RequestAction>),
    /// Sends a mail.
    Mail(LetterAction),
}

impl Action {
    /// The key of its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Action::Job(_) => "job",
            Action::Sequence(_) => "sequence",
            Action::Command(_) => "command",
            Action::Query(_) => "query",
            Action::Wait(_) => "wait",
            Action::Webhook(_) => "webhook",
            Action::Mail(_) => "mail",
        }
    }
}

/// A file that is run, with values for its variables.
#[derive(Debug, Clone)]
pub struct FileAction {
    /// The path as it stands in the file: relative to the folder of the sequence's file.
    pub file: Located<String>,
    /// Values of its variables or parameters, in the order of the file; then the item of the step's loop, if the file
    /// has a variable of its name.
    pub set: Vec<(Located<String>, Template)>,
}

/// A query on a database. [`super::sources::of_query`] makes a source of it.
#[derive(Debug, Clone)]
pub struct QueryAction {
    /// The query.
    pub query: Template,
    /// The URL of the database.
    pub from: Template,
    /// The block with the settings of the database, if there is one.
    pub block: Option<Entry>,
}

/// A wait.
#[derive(Debug, Clone)]
pub struct WaitAction {
    /// For what.
    pub what: Awaited,
    /// How long at most.
    pub limit: Option<Duration>,
    /// How often it looks.
    pub every: Duration,
}

/// What a wait is for.
#[derive(Debug, Clone)]
pub enum Awaited {
    /// At least one file of this path, pattern or URL.
    File(Template),
    /// A query.
    Query {
        /// The query.
        query: Box<QueryAction>,
        /// A SQL condition over the columns of its first row; if there is none, the first value has to be neither null,
        /// false nor 0.
        until: Option<Located<String>>,
    },
}

/// A request.
#[derive(Debug, Clone)]
pub struct RequestAction {
    /// The URL.
    pub url: Hidden,
    /// The method.
    pub method: Method,
    /// The body; if there is none, the method decides.
    pub body: Option<Template>,
    /// Headers.
    pub headers: Vec<(String, Hidden)>,
    /// The path of a file with further authorities.
    pub ca: Option<String>,
}

/// A text, or a reference to a secret.
#[derive(Debug, Clone)]
pub enum Hidden {
    /// The text.
    Text(Template),
    /// A reference.
    Secret(Secret),
}

/// A mail.
#[derive(Debug, Clone)]
pub struct LetterAction {
    /// Its recipients.
    pub to: Vec<Template>,
    /// Its subject.
    pub subject: Option<Template>,
    /// What is attached.
    pub attach: Attachment,
}

/// When a step runs, once all that it needs is over.
#[derive(Debug, Clone, Default)]
pub enum When {
    /// If no earlier step has failed.
    #[default]
    Success,
    /// If any earlier step has failed.
    Failure,
    /// In any case.
    Always,
    /// If no earlier step has failed and this is true.
    Condition(Condition),
}

/// A SQL condition over results of steps and parameters.
#[derive(Debug, Clone)]
pub struct Condition {
    /// The SQL.
    pub sql: Located<String>,
    /// The results of steps in it, in the order of the text.
    pub references: Vec<StepsReference>,
}

/// A loop.
#[derive(Debug, Clone)]
pub struct ForEach {
    /// The variable that has the item.
    pub variable: Located<String>,
    /// The items.
    pub items: Items,
    /// How many run together.
    pub parallel: usize,
}

/// The items of a loop.
#[derive(Debug, Clone)]
pub enum Items {
    /// These.
    List(Vec<Template>),
    /// Days.
    Days(Box<DayItems>),
    /// Rows of a query.
    Rows(Box<QueryAction>),
    /// Files of this path, pattern or URL.
    Files(Template),
}

/// Days, both included. [`super::items::days_between`] lists them.
#[derive(Debug, Clone)]
pub struct DayItems {
    /// The first.
    pub first: Template,
    /// The last.
    pub last: Template,
    /// What lies between two.
    pub every: Pace,
}

impl Condition {
    /// The SQL with a literal in place of each result: what `literal` says of it, such as `3`, `'x'` or `NULL`.
    pub fn filled(&self, literal: &dyn Fn(&StepsReference) -> String) -> String {
        let (mut sql, mut end) = (String::new(), 0);
        for reference in &self.references {
            sql.push_str(&self.sql.value[end..reference.range.start]);
            sql.push_str(&literal(reference));
            end = reference.range.end;
        }
        sql + &self.sql.value[end..]
    }
}

impl Sequence {
    /// The path of its file.
    pub fn path(&self) -> &str {
        self.text.path()
    }

    /// The number of the step with this name.
    pub fn step(&self, name: &str) -> Option<usize> {
        self.steps.iter().position(|step| step.name.value == name)
    }

    /// The schedule without places.
    pub fn schedule_value(&self) -> Option<Value> {
        self.schedule.as_ref().map(|entry| entry.value.to_value())
    }

    /// `faults` of the schedule, with their places.
    pub fn schedule_lints(&self, faults: Vec<Fault>) -> Vec<Lint> {
        self.schedule.as_ref().map_or_else(Vec::new, |entry| lints_of(faults, entry, &self.text))
    }

    /// The path from this process of a file that the sequence names.
    pub fn path_of(&self, named: &str) -> String {
        super::paths::beside(self.path(), named)
    }
}

/// `faults` of the value of `entry`, with their places.
pub(crate) fn lints_of(faults: Vec<Fault>, entry: &Entry, text: &JobText) -> Vec<Lint> {
    let lint = |fault: Fault| {
        let span: Span = entry.value.at_path(&fault.path, entry.report_span());
        Lint { hint: fault.hint, ..text.error(span, fault.what) }
    };
    faults.into_iter().map(lint).collect()
}
