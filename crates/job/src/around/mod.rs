//! What applies to the runs of a job as a whole: what they require, how they are retried, and what is done after them.
//!
//! `spec.rs` what the job file may say, `hours.rs` of its hours, `allow.rs` of variables; this file is what it becomes
//! in the graph. `gather.rs` makes one of the other. Whether requirements hold, and what hooks do, is the engine's.

mod allow;
mod hours;
mod spec;

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_core::program::CommandLine;
use millstream_core::redact;
use millstream_core::spec::{Duration as Time, TextOrSecret};

use crate::dates::Moment;
use crate::graph::SourceStep;
use crate::text::Span;

pub use allow::{Allow, AllowedValues};
pub use hours::Hours;
pub use spec::{
    AgeKeys, AroundKeys, CommitKeys, HookKeys, HookTimeout, MailKeys, Otherwise, Priority, QueryKeys, RequirementKeys,
    RetryRun, ThrottleKeys, UnitsKeys, Until, UntilEmpty, UntilEnd, UntilRows, UntilTime, WebhookKeys,
};

/// The keys of a job file that are read here.
pub const KEYS: [&str; 11] = [
    "until",
    "commit",
    "keep_rejects",
    "require",
    "retry_run",
    "throttle",
    "hours",
    "priority",
    "on_success",
    "on_failure",
    "allow",
];

/// What applies to the runs of a job as a whole.
#[derive(Debug, Clone, Default)]
pub struct Around {
    /// When the logical run begins: what `today` and `now` are.
    pub moment: Moment,
    /// The dates in the job file: the inside of `${…}`, and its value.
    pub dates: BTreeMap<String, String>,
    /// How long a job that reads a queue runs.
    pub until: Option<Until>,
    /// When the rows of a queue that were read so far are committed.
    pub commit: CommitKeys,
    /// After how long rejects may be removed, of a job that reads a queue.
    pub keep_rejects: Option<Duration>,
    /// What has to hold before a logical run begins.
    pub requirements: Vec<Requirement>,
    /// How often a run that fails resumes itself.
    pub retry_run: Option<RetryRun>,
    /// How much its sources may ask of others.
    pub throttle: ThrottleKeys,
    /// The hours of the day in which it runs.
    pub hours: Option<Hours>,
    /// How much of the cores its runs get.
    pub priority: Priority,
    /// The variables that those may set who may only start it.
    pub allow: Allow,
    /// What is done after a run that succeeds.
    pub on_success: Vec<Hook>,
    /// What is done after one that does not.
    pub on_failure: Vec<Hook>,
    /// The secrets that these refer to, such as `env:NAME`.
    pub secrets: Vec<String>,
}

/// Something that has to hold before a logical run begins.
#[derive(Debug, Clone)]
pub struct Requirement {
    /// What.
    pub what: Required,
    /// What the error says in place of that in words.
    pub message: Option<String>,
    /// What happens if it does not hold.
    pub otherwise: Otherwise,
}

/// What a requirement is about.
#[derive(Debug, Clone)]
pub enum Required {
    /// At least one file that this source reads.
    Exists(Box<SourceStep>),
    /// The first value of this source, which is a query.
    Query(Box<SourceStep>),
    /// The number of files of a source.
    Units(UnitsKeys),
    /// The age of the files of a source.
    Age(AgeKeys),
}

/// Something that is done after a run.
#[derive(Debug, Clone)]
pub struct Hook {
    /// What.
    pub action: HookAction,
    /// How long it may take.
    pub timeout: Duration,
    /// Where the job file says so.
    pub span: Span,
}

/// What a hook does.
#[derive(Debug, Clone)]
pub enum HookAction {
    /// Runs a program.
    Command(CommandLine),
    /// Sends the report to a URL.
    Webhook(WebhookKeys),
    /// Sends a mail.
    Mail(MailKeys),
}

impl HookAction {
    /// What it is called in messages.
    pub fn name(&self) -> String {
        match self {
            HookAction::Command(command) => command.0.first().cloned().unwrap_or_default(),
            HookAction::Webhook(WebhookKeys { url: TextOrSecret::Text(url), .. }) => redact::url(url),
            HookAction::Webhook(WebhookKeys { url: TextOrSecret::Secret(secret), .. }) => {
                format!("the URL in {}", secret.secret)
            }
            HookAction::Mail(mail) => format!("mail to {}", mail.to.clone().into_vec().join(", ")),
        }
    }
}

impl Around {
    /// When the job may run, if it may not run at this time (in milliseconds since 1970).
    pub fn closed_until(&self, now: i64) -> Option<Moment> {
        let begin = self.hours?.begin_after(self.moment.time_zone(), now)?;
        Some(self.moment.at(begin))
    }
}

impl ThrottleKeys {
    /// What it says in words; nothing if it says nothing.
    pub fn in_words(&self) -> Option<String> {
        let bytes = self.bytes_per_second.map(|bytes| format!("{bytes} a second"));
        let connections = self.connections.map(|connections| match connections {
            1 => "one connection".to_owned(),
            connections => format!("{connections} connections"),
        });
        let said: Vec<String> = bytes.into_iter().chain(connections).collect();
        (!said.is_empty()).then(|| said.join(", "))
    }
}

impl Requirement {
    /// What it is about, in words.
    pub fn in_words(&self) -> String {
        let of = |step: &SourceStep| step.read.first().map_or_else(String::new, |read| redact::url(&read.value));
        let time = |time: &Option<Time>| time.map(String::from);
        let what = match &self.what {
            Required::Exists(step) => format!("{} exists", of(step)),
            Required::Query(step) => format!("a query on {} gives something true", of(step)),
            Required::Units(UnitsKeys { of, min }) => format!("{of} has at least {min} files"),
            Required::Age(AgeKeys { of, min, max }) => match (time(min), time(max)) {
                (Some(min), Some(max)) => format!("the files of {of} are at least {min} old, the newest at most {max}"),
                (Some(min), None) => format!("the files of {of} are at least {min} old"),
                (_, max) => format!("the newest file of {of} is at most {} old", max.unwrap_or_default()),
            },
        };
        let otherwise = if self.otherwise == Otherwise::Skip { "; otherwise the run is skipped" } else { "" };
        format!("{what}{otherwise}")
    }
}
