//! Doing one part of a step once: what it is started with, what it comes to.

mod file;
mod letter;
mod process;
mod query;
mod request;

use std::time::Duration;

use millstream_core::program::Lines;
use millstream_core::{Error, Result};
use millstream_job::sequence::model::{Action, Items};

use crate::progress::Item;
use crate::surroundings::{Done, Surroundings, within};
use crate::values::Values;

pub(crate) use file::FilePart;
pub(crate) use letter::Report;
pub(crate) use query::items_of;

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
            Ready::Wait(wait) => within(surroundings, limit, wait.wait(surroundings, lines)).await,
            Ready::Request(filled) => within(surroundings, limit, filled.send(surroundings)).await,
            Ready::Letter(filled) => within(surroundings, limit, filled.send(surroundings)).await,
        }
    }
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
