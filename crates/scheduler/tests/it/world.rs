//! A folder with sequences, and a scheduler in a thread of the test, with a clock that the test sets.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use chrono::{DateTime, Utc};
use millstream_core::Result;
use millstream_scheduler::{Clock, End, Notice, Options, Scheduler, Stop};
use millstream_state::Occurrences;
use millstream_state::history::RunHistory;
use millstream_state::occurrences::{Occurrence, OccurrenceState};

use crate::stand_in::{script, shown};

/// What is waited for comes within this time, or never.
const PATIENCE: Duration = Duration::from_secs(180);

pub fn utc(text: &str) -> DateTime<Utc> {
    let seconds = if text.len() == 16 { ":00" } else { "" };
    format!("{text}{seconds}Z").parse().expect("a moment")
}

pub struct World {
    folder: tempfile::TempDir,
    clock: Arc<AtomicI64>,
}

/// A scheduler that runs.
pub struct Runs {
    thread: Option<JoinHandle<Result<End>>>,
    stop: Stop,
    notices: Arc<Mutex<Vec<Notice>>>,
}

impl World {
    /// Where it is this time.
    pub fn at(now: &str) -> Self {
        let folder = tempfile::TempDir::new().expect("a folder");
        let clock = Arc::new(AtomicI64::new(utc(now).timestamp_millis()));
        World { folder, clock }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        let root = fs_err::canonicalize(self.folder.path()).expect("a folder");
        root.join(name)
    }

    pub fn set_clock(&self, now: &str) {
        self.clock.store(utc(now).timestamp_millis(), Ordering::SeqCst);
    }

    /// Writes a file, which is changed at the time of the world.
    pub fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs_err::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs_err::write(&path, text).expect("written");
        let now = u64::try_from(self.clock.load(Ordering::SeqCst)).expect("a time");
        let file = fs_err::File::options().write(true).open(&path).expect("a file");
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_millis(now)).expect("it takes the time");
    }

    /// Writes a sequence with this schedule and plan.
    pub fn sequence(&self, name: &str, schedule: &str, plan: &str) {
        let text = format!("# plan: {plan}\nschedule: {{{schedule}}}\nsteps:\n  a: {{job: a.job}}\n");
        self.write(&format!("{name}.yaml"), &text);
    }

    pub fn options(&self) -> Options {
        let (state, clock) = (self.path("state"), Arc::clone(&self.clock));
        Options {
            folder: self.path(""),
            state: state.clone(),
            program: script(&self.path("")),
            arguments: vec!["--state".into(), state.into()],
            parallel: 4,
            once: false,
            checker: None,
            listen: None,
            clock: Clock(Arc::new(move || clock.load(Ordering::SeqCst))),
        }
    }

    pub fn scheduler(&self) -> Runs {
        self.scheduler_with(self.options())
    }

    pub fn scheduler_with(&self, options: Options) -> Runs {
        let notices = Arc::new(Mutex::new(Vec::new()));
        let (told, (sender, stop)) = (Arc::clone(&notices), std::sync::mpsc::channel());
        let thread = std::thread::spawn(move || {
            let tell = move |notice: Notice| told.lock().expect("not poisoned").push(notice);
            let scheduler = Scheduler::new(options, tell)?;
            sender.send(scheduler.stopper()).expect("somebody waits");
            scheduler.run()
        });
        let stop = stop.recv().expect("a scheduler");
        Runs { thread: Some(thread), stop, notices }
    }

    pub fn occurrences(&self) -> Occurrences {
        Occurrences::new(RunHistory::open(&self.path("state")).expect("it opens"))
    }

    pub fn all(&self, name: &str) -> Vec<Occurrence> {
        let sequence = self.path(&format!("{name}.yaml"));
        self.occurrences().last(&sequence.to_string_lossy(), 100_000).expect("an answer")
    }

    /// The occurrences of a sequence, the first one first: planned time, and how it is.
    pub fn outcomes(&self, name: &str) -> Vec<String> {
        let text = |one: &Occurrence| match (one.state, one.outcome) {
            (OccurrenceState::Ended, Some(outcome)) => format!("{} {}", shown(one.planned), outcome.name()),
            (state, _) => format!("{} {}", shown(one.planned), state.name()),
        };
        self.all(name).iter().rev().map(text).collect()
    }

    /// Waits until the sequence has these occurrences.
    pub fn wait_for(&self, name: &str, expected: &[&str]) {
        let mut found = Vec::new();
        eventually(
            &format!("{name}: {expected:?}"),
            || {
                found = self.outcomes(name);
                found == expected
            },
            || format!("{:?}", self.outcomes(name)),
        );
    }

    pub fn trace(&self) -> Vec<String> {
        let text = fs_err::read_to_string(self.path("trace")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub fn has_traced(&self, line: &str) -> bool {
        self.trace().iter().any(|one| one.starts_with(line))
    }

    pub fn wait_for_trace(&self, line: &str) {
        eventually(line, || self.has_traced(line), || format!("{:?}", self.trace()));
    }

    pub fn release(&self, name: &str) {
        fs_err::write(self.path(name), "").expect("written");
    }
}

/// Waits until `holds`.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool, found: impl Fn() -> String) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "{what}, and there is {}", found());
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Runs {
    /// What it has told so far, each as one line.
    pub fn told(&self) -> Vec<String> {
        self.notices.lock().expect("not poisoned").iter().map(line).collect()
    }

    /// How long each start took from when there was a slot for it, in milliseconds, sorted.
    pub fn waits(&self) -> Vec<f64> {
        let notices = self.notices.lock().expect("not poisoned");
        let waited = |notice: &Notice| match notice {
            Notice::Started { waited, .. } => Some(waited.as_secs_f64() * 1000.0),
            _ => None,
        };
        let mut waits: Vec<f64> = notices.iter().filter_map(waited).collect();
        waits.sort_by(f64::total_cmp);
        waits
    }

    pub fn has_told(&self, text: &str) -> bool {
        self.told().iter().any(|line| line.contains(text))
    }

    pub fn wait_for(&self, text: &str) {
        eventually(text, || self.has_told(text), || format!("{:?}", self.told()));
    }

    pub fn stop(mut self) -> End {
        self.stop.stop();
        self.end()
    }

    /// Waits until it has ended.
    pub fn end(&mut self) -> End {
        let thread = self.thread.take().expect("it was not waited for");
        thread.join().expect("a thread").expect("a scheduler")
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn line(notice: &Notice) -> String {
    let name = |sequence: &str| Path::new(sequence).file_stem().expect("a name").to_string_lossy().into_owned();
    let at = |named: &millstream_scheduler::Named| {
        format!("{} {}", name(&named.sequence), shown(named.planned.timestamp_millis()))
    };
    match notice {
        Notice::Scheduled { sequence, next, .. } => {
            let next = next.map(|next| shown(next.timestamp_millis()));
            format!("scheduled {} {}", name(sequence), next.unwrap_or_default())
        }
        Notice::Gone { sequence, .. } => format!("gone {}", name(sequence)),
        Notice::Broken { sequence, lints } => format!("broken {}: {}", name(sequence), lints[0].what),
        Notice::Mistakes { sequence, lints } => format!("mistakes {}: {}", name(sequence), lints[0].what),
        Notice::FromTheFuture { sequence, .. } => format!("from the future {}", name(sequence)),
        Notice::ClockSet { from, to } => {
            format!("clock {} {}", shown(from.timestamp_millis()), shown(to.timestamp_millis()))
        }
        Notice::Started { of, resumes, .. } => format!("{} {}", if *resumes { "resumed" } else { "started" }, at(of)),
        Notice::Found { of, .. } => format!("found {}", at(of)),
        Notice::Ended { of, outcome, message, log } => {
            let log = if log.is_some() { " with a log" } else { "" };
            format!("{} {}: {}{log}", outcome.name(), at(of), message.as_deref().unwrap_or_default())
        }
        Notice::Skipped { of, why } => format!("skipped {}: {why}", at(of)),
        Notice::Cancelled { of } => format!("cancelled {}", at(of)),
        Notice::Missed { first, count, why, .. } => format!("missed {} {count}: {why}", at(first)),
        Notice::Late { of, deadline, expected } => {
            let at_end = expected.map(|end| format!(", ends {}", shown(end.timestamp_millis()))).unwrap_or_default();
            format!("late {} for {}{at_end}", at(of), shown(deadline.timestamp_millis()))
        }
        Notice::Trouble(error) => format!("trouble: {error:?}"),
    }
}
