//! Doing one part of a step once: what it is started with, what it comes to.

mod file;
mod letter;
mod process;
mod query;
mod request;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::program::Lines;
use millstream_core::redact::Secrets;
use millstream_core::spec::Secret;
use millstream_core::{Error, Result};
use millstream_engine::Engine;
use millstream_engine::sequences::Row;
use millstream_job::sequence::Sequence;
use millstream_job::sequence::model::{Action, Items};
use tokio::sync::watch;

use crate::progress::Item;
use crate::values::Values;

pub(crate) use file::FilePart;
pub(crate) use letter::Report;
pub(crate) use query::items_of;

/// How long a process has after it was asked to end.
const GRACE: Duration = Duration::from_secs(20);

/// What all parts of a run share.
pub(crate) struct Surroundings {
    pub(crate) engine: Engine,
    pub(crate) sequence: Arc<Sequence>,
    /// The folder of the sequence's file, from the root.
    pub(crate) folder: PathBuf,
    /// Variables of the environment that hold secrets: programs do not inherit them.
    withheld: Vec<String>,
    secrets: Secrets,
    /// Whether the run is to stop.
    pub(crate) stop: watch::Receiver<bool>,
}

impl Surroundings {
    pub(crate) fn new(engine: Engine, sequence: Arc<Sequence>, stop: watch::Receiver<bool>) -> Self {
        let path = crate::read::from_root(sequence.path());
        let folder = path.parent().map(ToOwned::to_owned).unwrap_or_default();
        let secrets: Vec<Secret> = sequence.secrets.iter().map(|secret| Secret { secret: secret.clone() }).collect();
        let withheld = secrets.iter().filter_map(Secret::variable).map(str::to_owned).collect();
        // One that cannot be read is an error when a step needs it; nothing can repeat it.
        let secrets = Secrets::new(secrets.iter().filter_map(|secret| secret.resolve().ok()));
        Surroundings { engine, sequence, folder, withheld, secrets, stop }
    }
}

/// What a part has come to.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// Why it has failed.
    pub(crate) failed: Option<String>,
    /// Whether it was stopped, since the run was.
    pub(crate) stopped: bool,
    pub(crate) results: Row,
}

impl Done {
    pub(crate) fn failed(why: impl Into<String>) -> Self {
        Done { failed: Some(why.into()), ..Done::default() }
    }

    pub(crate) fn with(results: Row) -> Self {
        Done { results, ..Done::default() }
    }

    fn stopped() -> Self {
        Done { stopped: true, ..Done::default() }
    }
}

impl From<Error> for Done {
    fn from(error: Error) -> Self {
        Done::failed(in_words(&error))
    }
}

/// An error in one line.
pub(crate) fn in_words(error: &Error) -> String {
    match error.cause_text() {
        Some(cause) => format!("{}: {cause}", error.what()),
        None => error.what().to_owned(),
    }
}

/// A part whose texts are filled in, ready to be done.
pub(crate) enum Ready {
    File(Box<FilePart>),
    Command(Vec<String>),
    Query(Box<query::Asked>),
    Wait(Box<query::Wait>),
    Request(Box<request::Filled>),
    Letter(Box<letter::Filled>),
}

impl Ready {
    /// The part of a step with `values`; what starts a file is made by `file`, the report for a mail by `report`.
    ///
    /// # Errors
    /// If a text has no value.
    pub(crate) fn new(
        values: &Values<'_>,
        surroundings: &Surroundings,
        file: impl FnOnce(Vec<(String, String)>) -> Result<FilePart>,
        report: impl FnOnce() -> Report,
    ) -> Result<Self> {
        Ok(match &values.step.action {
            Action::Job(action) | Action::Sequence(action) => {
                let fill = |(name, value): &(millstream_job::graph::Located<String>, _)| {
                    Ok((name.value.clone(), values.fill(value)?))
                };
                let set = action.set.iter().map(fill).collect::<Result<_>>()?;
                Ready::File(Box::new(file(set)?))
            }
            Action::Command(words) => {
                Ready::Command(words.iter().map(|word| values.fill(word)).collect::<Result<_>>()?)
            }
            Action::Query(query) => Ready::Query(Box::new(query::Asked::new(values, surroundings, query)?)),
            Action::Wait(wait) => Ready::Wait(Box::new(query::Wait::new(values, surroundings, wait)?)),
            Action::Webhook(action) => Ready::Request(Box::new(request::Filled::new(values, action, report)?)),
            Action::Mail(action) => Ready::Letter(Box::new(letter::Filled::new(values, action, report)?)),
        })
    }

    /// Does it, within `limit`. `lines` takes what its processes say.
    pub(crate) async fn act(self, surroundings: &Surroundings, limit: Option<Duration>, lines: Lines) -> Done {
        match self {
            Ready::File(file) => file.run(surroundings, limit, lines).await,
            Ready::Command(words) => process::command(surroundings, words, limit, lines).await,
            Ready::Query(asked) => within(surroundings, limit, asked.ask(surroundings)).await,
            Ready::Wait(wait) => within(surroundings, limit, wait.wait(surroundings)).await,
            Ready::Request(filled) => within(surroundings, limit, filled.send(surroundings)).await,
            Ready::Letter(filled) => within(surroundings, limit, filled.send(surroundings)).await,
        }
    }
}

/// `work`, unless it takes longer than `limit` or the run is stopped.
async fn within(surroundings: &Surroundings, limit: Option<Duration>, work: impl Future<Output = Done>) -> Done {
    let mut stop = surroundings.stop.clone();
    tokio::select! {
        done = work => done,
        () = millstream_process::after(limit) => Done::failed(too_long(limit)),
        _ = stop.wait_for(|stop| *stop) => Done::stopped(),
    }
}

fn too_long(limit: Option<Duration>) -> String {
    format!("it took longer than {}", millstream_core::spec::Duration(limit.unwrap_or_default()))
}

/// The items of a loop, if they are known when the sequence is read or can be computed.
pub(crate) fn known_items(values: &Values<'_>) -> Result<Option<Vec<Item>>> {
    let Some(for_each) = &values.step.for_each else { return Ok(None) };
    match &for_each.items {
        Items::List(list) => {
            let item = |template| values.fill(template).map(Item::Text);
            list.iter().map(item).collect::<Result<_>>().map(Some)
        }
        Items::Days(days) => {
            let (first, last) = (values.fill(&days.first)?, values.fill(&days.last)?);
            let days = millstream_job::sequence::items::days_between(&first, &last, days.every);
            Ok(Some(days.map_err(Error::refused)?.into_iter().map(Item::Text).collect()))
        }
        Items::Rows(_) | Items::Files(_) => Ok(None),
    }
}
