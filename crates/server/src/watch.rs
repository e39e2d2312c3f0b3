//! Looks at what changes on the machine, and lets clients know.
//!
//! One thread looks: at the history when somebody has written to it, at the runs that live once a second, at the files
//! of the folder every few seconds. What it finds goes to all clients at once. It asks for more only while there are
//! any, and a client that is too slow misses events, and asks for everything anew.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millstream::Result;
use millstream::history::{Outcome, RunHistory, RunRecord};
use serde_json::{Value, json};
use tokio::sync::broadcast;

use crate::api::summary::{RunSummary, summary};
use crate::folder::Folder;
use crate::problem::now;

/// The time between two looks at the history.
const LOOK: Duration = Duration::from_millis(500);

/// The time between two looks at runs that live.
const LIVE: Duration = Duration::from_secs(1);

/// The time between two looks at the folder, unless a look takes long; and so many times as long as a look takes it
/// does not look.
const FILES: Duration = Duration::from_secs(2);
const PAUSE: u32 = 50;

/// Events that a client may be behind.
const BEHIND: usize = 128;

/// The most runs in one event.
const MOST: usize = 200;

/// Runs are looked for among those that began or ended so long before the last look, in milliseconds.
const OVERLAP: u64 = 5_000;

/// How many of the last runs are looked at.
const LAST: u64 = 500;

/// What happens.
#[derive(Debug, Clone)]
pub struct Event {
    /// Its name.
    pub name: &'static str,
    /// Its data, as JSON.
    pub data: Arc<str>,
    /// The run that it is about, if it is for those only who watch it.
    pub run: Option<Arc<str>>,
}

/// What happens, for all who listen.
#[derive(Debug)]
pub struct Events {
    sender: broadcast::Sender<Event>,
    /// How many clients watch each run.
    watched: Mutex<BTreeMap<String, usize>>,
    /// Counts up with everything that may change an answer.
    version: AtomicU64,
}

impl Default for Events {
    fn default() -> Self {
        Events { sender: broadcast::channel(BEHIND).0, watched: Mutex::default(), version: AtomicU64::new(0) }
    }
}

/// Watches a run, until this is dropped.
#[derive(Debug)]
pub struct Watching(Arc<Events>, String);

impl Drop for Watching {
    fn drop(&mut self) {
        let mut watched = self.0.watched();
        if let Some(count) = watched.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                watched.remove(&self.1);
            }
        }
    }
}

impl Events {
    /// What happens from now on.
    pub fn listen(&self) -> broadcast::Receiver<Event> {
        self.sender.subscribe()
    }

    /// How many listen.
    pub fn listeners(&self) -> usize {
        self.sender.receiver_count()
    }

    /// How the run `run` goes is an event, too, as long as the result lives.
    pub fn watch(self: &Arc<Self>, run: &str) -> Watching {
        *self.watched().entry(run.to_owned()).or_default() += 1;
        Watching(Arc::clone(self), run.to_owned())
    }

    /// Another number when something may have changed.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Something has changed.
    pub fn changed(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// Lets clients know.
    pub fn send(&self, name: &'static str, data: &Value) {
        // Without listeners there is nobody to know.
        let _ = self.sender.send(Event { name, data: data.to_string().into(), run: None });
    }

    fn send_of(&self, run: &str, data: String) {
        let _ = self.sender.send(Event { name: "live", data: data.into(), run: Some(run.into()) });
    }

    fn watched(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, usize>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What looks.
pub struct Watch {
    history: Arc<RunHistory>,
    folder: Arc<Folder>,
    events: Arc<Events>,
    /// The runs that were alive at the last look.
    living: BTreeMap<String, RunSummary>,
    /// What was sent last of the runs that have ended lately.
    sent: BTreeMap<String, RunSummary>,
    version: Option<i64>,
    since: u64,
}

impl Watch {
    /// Looks at `history` and `folder`.
    pub fn new(history: Arc<RunHistory>, folder: Arc<Folder>, events: Arc<Events>) -> Self {
        Watch { history, folder, events, living: BTreeMap::new(), sent: BTreeMap::new(), version: None, since: now() }
    }

    /// Looks until `stop`.
    pub fn run(mut self, stop: &AtomicBool) {
        let (mut files, mut live) = (Instant::now(), Instant::now());
        while !stop.load(Ordering::Acquire) {
            let begin = Instant::now();
            // What cannot be read now is read at a later look.
            let _ = self.look_at_history();
            if begin >= live {
                live = begin + LIVE;
                self.look_at_views();
                let _ = self.look_at_living();
            }
            if begin >= files {
                let changed = self.folder.look();
                files = Instant::now() + FILES.max(begin.elapsed() * PAUSE);
                if !changed.is_empty() {
                    self.events.changed();
                    self.events.send("files", &json!({"files": changed}));
                    self.events.send("schedule", &json!({}));
                }
            }
            std::thread::sleep(LOOK.saturating_sub(begin.elapsed()));
        }
    }

    /// What others have written to the history.
    fn look_at_history(&mut self) -> Result<()> {
        let version = self.history.data_version()?;
        if self.version == Some(version) {
            return Ok(());
        }
        let (is_first, since) = (self.version.is_none(), self.since.saturating_sub(OVERLAP));
        self.since = now();
        let mut runs = match is_first {
            true => self.history.without_end()?,
            false => self.history.changed_since(since, LAST)?,
        };
        for run in self.living.keys() {
            if !runs.iter().any(|other| other.run == *run) {
                runs.extend(self.history.glance(run)?);
            }
        }
        self.version = Some(version);
        self.events.changed();
        self.see(&runs);
        self.events.send("schedule", &json!({}));
        Ok(())
    }

    /// How the runs go that live.
    fn look_at_living(&mut self) -> Result<()> {
        if self.living.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = self.living.keys().cloned().collect();
        let mut runs = Vec::new();
        for name in names {
            match self.history.glance(&name)? {
                Some(run) => runs.push(run),
                None => drop(self.living.remove(&name)),
            }
        }
        self.see(&runs);
        Ok(())
    }

    /// Sends what is new of `runs`.
    fn see(&mut self, runs: &[RunRecord]) {
        let mut news = Vec::new();
        for run in runs {
            let new = summary(&self.history, &self.folder, run);
            let before = self.living.get(&run.run).or_else(|| self.sent.get(&run.run));
            let has_ended = before.is_none_or(|before| before.outcome != new.outcome);
            if before == Some(&new) {
                continue;
            }
            if has_ended {
                self.events.changed();
            }
            if run.outcome == Outcome::Running {
                self.living.insert(run.run.clone(), new.clone());
            } else {
                self.living.remove(&run.run);
                self.sent.insert(run.run.clone(), new.clone());
            }
            news.push(new);
        }
        // The names of runs begin with their times.
        while self.sent.len() > LAST as usize {
            self.sent.pop_first();
        }
        for news in news.chunks(MOST) {
            self.events.send("runs", &json!({"runs": news}));
        }
    }

    /// How the runs go that somebody watches.
    fn look_at_views(&self) {
        let watched: Vec<String> = self.events.watched().keys().cloned().collect();
        for run in watched {
            if let Some(view) = self.history.view_of(&run) {
                self.events.send_of(&run, live_json(&run, &view));
            }
        }
    }
}

/// The data of the event about a run with this view, which is JSON: of a job how it goes, of a sequence its steps.
pub fn live_json(run: &str, view: &str) -> String {
    let run = Value::from(run);
    match view.strip_prefix("{\"steps\":[") {
        // Views of sequences have nothing else; those of jobs begin with their time.
        Some(_) => format!("{{\"run\":{run},\"live\":null,{}", &view[1..]),
        None => format!("{{\"run\":{run},\"live\":{view},\"steps\":null}}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_of_jobs_and_sequences_are_told_apart() {
        let parsed = |view: &str| -> Value { serde_json::from_str(&live_json("1-1", view)).expect("JSON") };
        let job = parsed(r#"{"updated":7,"steps":[{"name":"a"}]}"#);
        assert_eq!(job, json!({"run": "1-1", "live": {"updated": 7, "steps": [{"name": "a"}]}, "steps": null}));
        assert_eq!(parsed(r#"{"steps":[]}"#), json!({"run": "1-1", "live": null, "steps": []}));
    }

    #[test]
    fn a_run_is_watched_as_long_as_somebody_does() {
        let events = Arc::new(Events::default());
        let (one, two) = (events.watch("1-1"), events.watch("1-1"));
        drop(one);
        assert_eq!(events.watched().len(), 1);
        drop(two);
        assert!(events.watched().is_empty());
    }
}
