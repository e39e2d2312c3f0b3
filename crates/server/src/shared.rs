//! What the parts of the server share.

use std::any::Any;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millstream::Error;
use millstream::history::{Occurrences, RunHistory};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::access::{Access, Caller};
use crate::actions::Actions;
use crate::commands::Commands;
use crate::folder::Folder;
use crate::guard::Guard;
use crate::lock::lock;
use crate::problem::{Problem, now};
use crate::watch::Events;

/// How long a cached answer is good, if nothing changes.
const FRESH: Duration = Duration::from_secs(5);

/// The most notices that are kept.
const NOTICES: usize = 100;

/// What the machine is, as far as the server shows it.
#[derive(Debug, Clone, Default)]
pub struct MachineFacts {
    /// The name of the host.
    pub host: String,
    /// How many cores runs use.
    pub cores: usize,
    /// How much memory runs have together, in bytes.
    pub memory: u64,
    /// The folders for what does not fit in memory.
    pub scratch: Vec<PathBuf>,
    /// The sizes of pools, by their names.
    pub pools: BTreeMap<String, usize>,
}

/// Whether a scheduler works.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct SchedulerState {
    /// `here`, `elsewhere` or `stopped`.
    pub state: &'static str,
    /// The number of another process.
    pub process: Option<String>,
}

impl Default for SchedulerState {
    fn default() -> Self {
        SchedulerState { state: "stopped", process: None }
    }
}

/// Something that the scheduler or the server has noticed.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct NoticeText {
    /// When, in milliseconds since 1970.
    pub when: u64,
    /// `info`, `warning` or `error`.
    pub level: &'static str,
    /// What.
    pub text: String,
}

/// The last notices.
#[derive(Debug, Default)]
pub struct Notices(Mutex<VecDeque<NoticeText>>);

impl Notices {
    /// All of them, the last one first.
    pub fn all(&self) -> Vec<NoticeText> {
        lock(&self.0).iter().rev().cloned().collect()
    }
}

/// A cached answer: the version of things it is of, and when it was made.
type Cached = (u64, Instant, Arc<dyn Any + Send + Sync>);

/// Cached answers, by their names. Each has a lock of its own, under which it is made.
type Cache = Mutex<HashMap<String, Arc<Mutex<Option<Cached>>>>>;

/// What the parts of the server share.
#[derive(Debug)]
pub struct Shared {
    pub folder: Arc<Folder>,
    pub history: Arc<RunHistory>,
    pub access: Arc<Access>,
    pub guard: Guard,
    pub events: Arc<Events>,
    pub commands: Commands,
    pub actions: Actions,
    pub notices: Notices,
    pub facts: MachineFacts,
    pub scheduler: Mutex<SchedulerState>,
    /// What [`Shared::cached`] keeps.
    pub cache: Cache,
}

impl Shared {
    /// The starts of sequences.
    pub fn occurrences(&self) -> Occurrences {
        Occurrences::new(Arc::clone(&self.history))
    }

    /// Notes in the audit log what somebody did.
    pub fn note(&self, caller: &Caller, did: &str, what: &str, ok: bool) {
        self.note_of(&caller.user, caller.from, did, what, ok);
    }

    /// The same of somebody who is not known.
    pub fn note_of(&self, user: &str, from: IpAddr, did: &str, what: &str, ok: bool) {
        // What is done is not undone, but nobody misses that the log has a gap.
        if let Err(error) = self.access.audit().note(user, from, did, what, ok) {
            self.notice("error", in_words(&error));
        }
    }

    /// Shows a notice.
    pub fn notice(&self, level: &'static str, text: String) {
        let notice = NoticeText { when: now(), level, text };
        self.events.send("notice", &json!(notice));
        let mut notices = lock(&self.notices.0);
        if notices.len() >= NOTICES {
            notices.pop_front();
        }
        notices.push_back(notice);
    }

    /// Whether a scheduler works.
    pub fn scheduler_state(&self) -> SchedulerState {
        lock(&self.scheduler).clone()
    }

    /// A scheduler works, or does not any more.
    pub fn set_scheduler(&self, state: &'static str, process: Option<String>) {
        *lock(&self.scheduler) = SchedulerState { state, process };
        self.events.send("schedule", &json!({}));
    }

    /// What `make` gives, or has given a short while ago, if nothing has changed since. Of several who ask at once, one
    /// makes it.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn cached<T: Clone + Send + Sync + 'static>(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        // Before it waits: what another makes meanwhile is new enough.
        let version = self.events.version();
        let place = Arc::clone(lock(&self.cache).entry(name.to_owned()).or_default());
        let mut cached = lock(&place);
        if let Some((of, made, value)) = &*cached
            && *of >= version
            && made.elapsed() < FRESH
            && let Some(value) = value.downcast_ref::<T>()
        {
            return Ok(value.clone());
        }
        let version = self.events.version();
        let value = make()?;
        *cached = Some((version, Instant::now(), Arc::new(value.clone())));
        Ok(value)
    }
}

/// An error in a line.
pub fn in_words(error: &Error) -> String {
    match error.cause_text() {
        Some(cause) => format!("{}: {cause}", error.what()),
        None => error.what().to_owned(),
    }
}
