//! Finds the objects that match a pattern: lists many folders at once, in constant memory.
//!
//! ```text
//!  s3://bucket/logs/2025-*/**/*.gz
//!              └─┬───────┘ asked for as the prefix logs/2025-
//!   by folder:  logs/2025-01/  logs/2025-02/  …      each becomes a task
//!   flat:       logs/2025-01/a/1.gz, logs/2025-01/b/c/2.gz, …
//! ```
//!
//! A folder is listed with the delimiter, so that folders that do not match are not listed; its folders become tasks.
//! As soon as there are enough tasks for all parallel requests, a folder below `**` is listed flat: a thousand names
//! per request at any depth, instead of a request for each folder.
//!
//! For each prefix, the set of parts of the pattern that can come next is kept, as in the walk of local folders
//! (`file/walk.rs`). Tasks wait on a stack, with a folder's next page below the folders of this page: so at most a page
//! for each request and level waits. Found objects wait in a channel of a few pages, which stops the listing when it is
//! full.

use std::ffi::OsStr;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::BoxStream;
use millstream_core::source::SourceContext;
use millstream_core::{Error, Result, Unit};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::bucket::Bucket;
use super::page::{Listed, Page};
use crate::file::glob::{self, Segment, States};
use crate::io::interrupted;
use crate::retry::Tries;

/// Pages that wait to be taken.
const PAGES: usize = 4;

/// A listing.
pub(crate) struct Listing {
    pub(crate) bucket: Arc<Bucket>,
    /// The pattern after the bucket's name.
    pub(crate) segments: Vec<Segment>,
    /// How many requests run at once.
    pub(crate) parallel: usize,
}

/// A folder to list, from a page on.
#[derive(Debug, Clone)]
struct Task {
    /// Its name with the slash at the end; empty for the bucket.
    folder: String,
    /// The parts of the pattern that can come next, closed.
    states: States,
    flat: bool,
    token: Option<String>,
}

impl Listing {
    /// The objects, as they are found. The listing runs on the network's runtime until the stream is dropped.
    pub(crate) fn stream(self, context: &SourceContext) -> BoxStream<'static, Result<Unit>> {
        struct Running(mpsc::Receiver<Result<Vec<Unit>>>, JoinSet<()>);
        let (sender, receiver) = mpsc::channel(PAGES);
        let mut task = JoinSet::new();
        task.spawn_on(
            async move {
                if let Err(error) = self.run(&sender).await {
                    // The receiver may be gone.
                    let _ = sender.send(Err(error)).await;
                }
            },
            &context.io,
        );
        futures::stream::unfold(Running(receiver, task), |mut running| async move {
            let page = match running.0.recv().await {
                Some(page) => page,
                // Everything is sent, unless the task was stopped before its end.
                None => match running.1.join_next().await {
                    None | Some(Ok(())) => return None,
                    Some(Err(_)) => Err(interrupted()),
                },
            };
            let units: Vec<_> = match page {
                Ok(units) => units.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            };
            Some((futures::stream::iter(units), running))
        })
        .flatten()
        .boxed()
    }

    async fn run(self, sender: &mpsc::Sender<Result<Vec<Unit>>>) -> Result<()> {
        let mut waiting = Vec::new();
        waiting.extend(self.task(String::new(), &States::from([0])));
        let mut asked = JoinSet::new();
        loop {
            while asked.len() < self.parallel
                && let Some(mut task) = waiting.pop()
            {
                let busy = waiting.len() + asked.len() >= self.parallel;
                task.flat |= busy && task.token.is_none() && self.is_deep(&task.states);
                asked.spawn(ask(Arc::clone(&self.bucket), self.prefix(&task), task));
            }
            let Some(answered) = asked.join_next().await else { return Ok(()) };
            let (task, page) = answered.map_err(|_| interrupted())??;
            let units = self.digest(task, page, &mut waiting)?;
            if !units.is_empty() && sender.send(Ok(units)).await.is_err() {
                return Ok(());
            }
        }
    }

    /// The task for a folder, or for the only folder below it that can match.
    fn task(&self, mut folder: String, states: &States) -> Option<Task> {
        let mut states = glob::closure(&self.segments, states);
        while let (Some(&state), 1) = (states.first(), states.len()) {
            match &self.segments[state] {
                Segment::Name(name) if state + 1 < self.segments.len() => {
                    folder.push_str(name);
                    folder.push('/');
                    states = glob::closure(&self.segments, &States::from([state + 1]));
                }
                _ => break,
            }
        }
        (!states.is_empty()).then_some(Task { folder, states, flat: false, token: None })
    }

    fn is_deep(&self, states: &States) -> bool {
        states.iter().any(|&state| matches!(self.segments[state], Segment::AnyDepth))
    }

    /// The prefix of all names that the task lists.
    fn prefix(&self, task: &Task) -> String {
        let beginnings = task.states.iter().map(|&state| self.segments[state].beginning());
        let common = beginnings.reduce(|one, other| {
            let same = one.chars().zip(other.chars()).take_while(|(a, b)| a == b);
            same.map(|(character, _)| character).collect()
        });
        format!("{}{}", task.folder, common.unwrap_or_default())
    }

    /// The units of a page; new tasks are added to `waiting`.
    fn digest(&self, task: Task, page: Page, waiting: &mut Vec<Task>) -> Result<Vec<Unit>> {
        let astray = |key: &str| {
            Error::data("the store lists objects that were not requested")
                .in_unit(&self.bucket.uri(&task.folder), None)
                .text(key)
        };
        let mut units = Vec::new();
        for object in page.objects {
            let name = object.key.strip_prefix(&task.folder).ok_or_else(|| astray(&object.key))?;
            // A name with a slash at its end stands for the folder: consoles of stores create such objects.
            if !name.is_empty() && !name.ends_with('/') && self.fits(&task.states, name) {
                units.push(self.unit(object));
            }
        }
        if let Some(token) = page.next {
            if task.token.as_ref() == Some(&token) {
                return Err(
                    Error::data("the store's listing makes no progress").in_unit(&self.bucket.uri(&task.folder), None)
                );
            }
            waiting.push(Task { token: Some(token), ..task.clone() });
        }
        for prefix in page.prefixes {
            let name = prefix.strip_prefix(&task.folder).ok_or_else(|| astray(&prefix))?;
            let name = name.strip_suffix('/').unwrap_or(name);
            let step = glob::step(&self.segments, &task.states, OsStr::new(name), true);
            if !step.next.is_empty() {
                waiting.extend(self.task(prefix.clone(), &step.next));
            }
        }
        Ok(units)
    }

    /// Whether the pattern matches `name`, which may be several folders below that of `states`.
    fn fits(&self, states: &States, name: &str) -> bool {
        let Some((folder, rest)) = name.split_once('/') else {
            return glob::step(&self.segments, states, OsStr::new(name), false).ends;
        };
        let next = glob::step(&self.segments, states, OsStr::new(folder), true).next;
        !next.is_empty() && self.fits(&glob::closure(&self.segments, &next), rest)
    }

    fn unit(&self, object: Listed) -> Unit {
        Unit {
            size: object.size,
            modified: object.modified,
            etag: object.etag,
            ..Unit::new(self.bucket.uri(&object.key))
        }
    }
}

/// The URIs of all objects whose names begin with `prefix`.
pub(crate) async fn names(bucket: &Bucket, prefix: &str) -> Result<Vec<String>> {
    let (uri, mut names, mut token) = (bucket.uri(prefix), Vec::new(), None);
    loop {
        let mut tries = Tries::new(bucket.client.policy);
        let page = tries.repeat(&uri, || bucket.page(prefix, false, token.clone())).await?;
        names.extend(page.objects.iter().map(|object| bucket.uri(&object.key)));
        match page.next {
            None => return Ok(names),
            next if next == token => {
                return Err(Error::data("the store's listing makes no progress").in_unit(&uri, None));
            }
            next => token = next,
        }
    }
}

/// Requests a page, with retries.
async fn ask(bucket: Arc<Bucket>, prefix: String, task: Task) -> Result<(Task, Page)> {
    let uri = bucket.uri(&prefix);
    let mut tries = Tries::new(bucket.client.policy);
    let page = tries.repeat(&uri, || bucket.page(&prefix, !task.flat, task.token.clone())).await?;
    Ok((task, page))
}
