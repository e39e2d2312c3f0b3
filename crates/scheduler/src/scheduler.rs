//! The loop: what has changed, what is due, what has ended, and then sleep.
//!
//! It sleeps for a second at most. So a clock that is set forward or back is noticed, and a planned time is never
//! computed into a long sleep. Moments that matter to schedules are those of the clock; how long it sleeps, and how
//! often it looks at files, is measured by the monotonic one.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use millstream_core::{Error, Result, clock};
use millstream_job::Lint;
use millstream_state::{Occurrences, OnlyScheduler, RunHistory};

use crate::entry::{self, Entry, Read, moment};
use crate::folder::{Change, Folder};
use crate::follow::Running;
use crate::messages::{Listen, Message};
use crate::notice::{Named, Notice};
use crate::slots::{Exited, Program, Slots, Start};

/// It sleeps so long at most.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// So often it looks whether processes live that it has not started itself.
const LIVE_EVERY: Duration = Duration::from_millis(200);

/// What others have written to the history is looked at so often at most.
const RECONCILE_EVERY: Duration = Duration::from_millis(500);

/// So often it tries to get the lock, and so long it waits between.
const LOCK_ATTEMPTS: usize = 5;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// A clock that is further off than this from what was expected was set.
const SET_BY: TimeDelta = TimeDelta::minutes(1);

/// What shows the time, in milliseconds since 1970.
#[derive(Clone)]
pub struct Clock(pub Arc<dyn Fn() -> i64 + Send + Sync>);

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&(self.0)()).finish()
    }
}

/// What finds mistakes in the steps of the sequence at a path, and the files that it names, by their paths from the
/// root.
#[derive(Clone)]
pub struct Checker(pub Arc<CheckFn>);

/// Finds the mistakes of the sequence at a path, and the files that it names.
pub type CheckFn = dyn Fn(&str) -> (Vec<Lint>, BTreeSet<PathBuf>) + Send + Sync;

impl fmt::Debug for Checker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Checker").finish_non_exhaustive()
    }
}

/// The clock of the machine.
pub fn wall_clock() -> Clock {
    Clock(Arc::new(|| i64::try_from(clock::now()).unwrap_or(i64::MAX)))
}

/// What the scheduler needs.
#[derive(Debug, Clone)]
pub struct Options {
    /// The folder with the sequences.
    pub folder: PathBuf,
    /// The state folder, from the root.
    pub state: PathBuf,
    /// The program that runs a sequence: `PROGRAM run SEQUENCE --occurrence MS`, and `--resume` if it resumes a run.
    pub program: PathBuf,
    /// Further arguments, behind these.
    pub arguments: Vec<OsString>,
    /// How many sequences run together.
    pub parallel: usize,
    /// Whether it ends when all is done that is due at its start.
    pub once: bool,
    /// What finds mistakes in steps, which are reported before they make a run fail.
    pub checker: Option<Checker>,
    /// What listens for messages that start sequences.
    pub listen: Option<Listen>,
    /// The clock.
    pub clock: Clock,
}

/// How the scheduler has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It was stopped. So many runs go on.
    Stopped {
        /// How many.
        running: usize,
    },
    /// Everything that was due is done. So many have not ended well.
    Done {
        /// How many have not.
        failed: usize,
    },
    /// It has not begun: another scheduler works on the state folder.
    Refused {
        /// The number of the other process, if it is known.
        process: String,
    },
}

/// What the loop wakes up for.
#[derive(Debug)]
pub(crate) enum Event {
    /// A process was started, so long after there was a slot for it.
    Began(Start, Duration),
    /// A process has ended, or could not be started.
    Exited(Exited),
    /// A message has come.
    Message(Message),
    /// What listened for a sequence has ended.
    Listened(Arc<str>, Arc<AtomicBool>, Option<Error>),
    /// The scheduler is to end.
    Stop,
}

/// Stops a scheduler.
#[derive(Debug, Clone)]
pub struct Stop(Sender<Event>);

impl Stop {
    /// The scheduler ends. Its children go on.
    pub fn stop(&self) {
        let _ = self.0.send(Event::Stop);
    }
}

/// A scheduler.
pub struct Scheduler {
    pub(crate) options: Options,
    pub(crate) occurrences: Occurrences,
    pub(crate) entries: BTreeMap<Arc<str>, Entry>,
    pub(crate) running: BTreeMap<(Arc<str>, i64), Running>,
    pub(crate) slots: Slots,
    /// How many occurrences have not ended well.
    pub(crate) failed: usize,
    /// Whether the history is to be looked at, since somebody may have written to it.
    pub(crate) reconcile: bool,
    /// The moment for `--once`.
    pub(crate) frozen: Option<DateTime<Utc>>,
    folder: Folder,
    /// Files with faults: they are known, and do not run.
    broken: BTreeSet<Arc<str>>,
    notify: Box<dyn Fn(Notice)>,
    events: Receiver<Event>,
    sender: Sender<Event>,
    /// What the clock showed at the last look.
    last: Option<(DateTime<Utc>, Instant)>,
    version: Option<i64>,
    reconciled: Option<Instant>,
    live: Option<Instant>,
    trouble: Option<(String, Instant)>,
    is_stopped: bool,
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Scheduler {
    /// A scheduler that tells by `notify` what happens.
    ///
    /// # Errors
    /// If the folder or the state folder cannot be used.
    pub fn new(options: Options, notify: impl Fn(Notice) + 'static) -> Result<Self> {
        let folder = Folder::new(&options.folder)?;
        let occurrences = Occurrences::new(RunHistory::open(&options.state)?);
        let (sender, events) = channel();
        let program = Program {
            path: options.program.clone(),
            arguments: options.arguments.clone(),
            state: options.state.clone(),
        };
        let slots = Slots::new(options.parallel, program, sender.clone());
        Ok(Scheduler {
            options,
            occurrences,
            entries: BTreeMap::new(),
            running: BTreeMap::new(),
            slots,
            failed: 0,
            reconcile: true,
            frozen: None,
            folder,
            broken: BTreeSet::new(),
            notify: Box::new(notify),
            events,
            sender,
            last: None,
            version: None,
            reconciled: None,
            live: None,
            trouble: None,
            is_stopped: false,
        })
    }

    /// What other threads send events with.
    pub(crate) fn sender(&self) -> Sender<Event> {
        self.sender.clone()
    }

    /// What stops it from other threads.
    pub fn stopper(&self) -> Stop {
        Stop(self.sender.clone())
    }

    /// Runs until it is stopped; with `once`, until all is done that is due.
    ///
    /// # Errors
    /// If the state folder cannot be used at the beginning. Later on it tries again.
    pub fn run(mut self) -> Result<End> {
        let _only = match self.only()? {
            Ok(only) => only,
            Err(process) => return Ok(End::Refused { process }),
        };
        self.frozen = self.options.once.then(|| self.now());
        let mut is_first = true;
        loop {
            match self.turn() {
                Ok(()) => self.trouble = None,
                Err(error) if is_first => return Err(error),
                Err(error) => {
                    // What was decided is stored, and may not be started yet.
                    self.reconcile = true;
                    self.trouble(error);
                }
            }
            is_first = false;
            if self.options.once && self.is_done() {
                return Ok(End::Done { failed: self.failed });
            }
            self.wait()?;
            if self.is_stopped {
                self.slots.close();
                self.stop_listening();
                return Ok(End::Stopped { running: self.running.values().filter(|one| one.has_process).count() });
            }
        }
    }

    /// The lock of the scheduler. That of one which was killed may be held for a moment by a process that it was about
    /// to start.
    fn only(&self) -> Result<Result<OnlyScheduler, String>> {
        for _ in 0..LOCK_ATTEMPTS {
            if let Ok(only) = OnlyScheduler::take(&self.options.state)? {
                return Ok(Ok(only));
            }
            std::thread::sleep(LOCK_PAUSE);
        }
        OnlyScheduler::take(&self.options.state)
    }

    /// What the clock shows.
    pub(crate) fn now(&self) -> DateTime<Utc> {
        moment((self.options.clock.0)())
    }

    /// The moment at which schedules are looked at.
    pub(crate) fn moment(&self) -> DateTime<Utc> {
        self.frozen.unwrap_or_else(|| self.now())
    }

    pub(crate) fn tell(&self, notice: Notice) {
        (self.notify)(notice);
    }

    /// The occurrence, for people.
    pub(crate) fn named(&self, sequence: &Arc<str>, planned: i64) -> Named {
        let zone = self.entries.get(sequence).map_or(chrono_tz::Tz::UTC, |entry| entry.schedule.zone());
        Named { sequence: Arc::clone(sequence), planned: moment(planned), zone }
    }

    /// One look at everything.
    fn turn(&mut self) -> Result<()> {
        self.look_at_clock();
        self.look_at_folder()?;
        self.look_at_history()?;
        self.look_at_schedules()?;
        self.look_at_files()?;
        self.look_at_messages()?;
        self.look_at_deadlines()?;
        self.look_at_steps();
        Ok(())
    }

    /// Looks for mistakes in the steps of one sequence that has changed, or names a file that has. One at a time: what
    /// is due comes first.
    fn look_at_steps(&mut self) {
        let Some(Checker(check)) = self.options.checker.clone() else { return };
        let Some(entry) = self.entries.values_mut().find(|entry| entry.is_unchecked) else { return };
        let (lints, named) = check(&entry.sequence);
        entry.is_unchecked = false;
        entry.named = named;
        if lints.is_empty() || lints == entry.mistakes {
            entry.mistakes = lints;
            return;
        }
        entry.mistakes.clone_from(&lints);
        let sequence = Arc::clone(&entry.sequence);
        self.tell(Notice::Mistakes { sequence, lints });
    }

    /// Trouble is reported when it comes, and then once a minute.
    pub(crate) fn trouble(&mut self, error: Error) {
        let what = format!("{error:?}");
        let is_known = self
            .trouble
            .as_ref()
            .is_some_and(|(known, when)| *known == what && when.elapsed() < Duration::from_secs(60));
        if !is_known {
            self.trouble = Some((what, Instant::now()));
            self.tell(Notice::Trouble(error));
        }
    }

    /// If the clock was set, all schedules are looked at.
    fn look_at_clock(&mut self) {
        let now = self.now();
        if let Some((before, when)) = self.last {
            let passed = TimeDelta::from_std(when.elapsed()).unwrap_or(TimeDelta::MAX);
            let expected = before.checked_add_signed(passed).unwrap_or(before);
            if now < before {
                self.entries.values_mut().for_each(|entry| entry.is_dirty = true);
            }
            if (now - expected).abs() > SET_BY {
                self.tell(Notice::ClockSet { from: expected, to: now });
            }
        }
        self.last = Some((now, Instant::now()));
    }

    fn look_at_folder(&mut self) -> Result<()> {
        let (changes, errors) = self.folder.changes();
        errors.into_iter().for_each(|error| self.tell(Notice::Trouble(error)));
        let mut failed = None;
        for change in changes {
            let path = Arc::clone(&change.path);
            if let Err(error) = self.change(change) {
                // It is read again at the next look.
                self.folder.forget(&path);
                failed = Some(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn change(&mut self, change: Change) -> Result<()> {
        let Change { path, now } = change;
        let named = PathBuf::from(&*path);
        self.entries.values_mut().filter(|one| one.named.contains(&named)).for_each(|one| one.is_unchecked = true);
        let read = match &now {
            Some((text, stamp)) => (entry::read(&path, text, self.now().timestamp_millis(), false), stamp.modified()),
            None => (Read::Nothing, 0),
        };
        let is_there = now.is_some();
        let was_known = self.entries.remove(&path).is_some() | self.broken.remove(&path);
        match read {
            (Read::Schedule(schedule), changed) => {
                let entry = Entry::new(&path, *schedule, changed, &self.occurrences)?;
                let next = entry.schedule.next(self.moment().max(entry.changed));
                let (zone, triggers) = (entry.schedule.zone(), entry.schedule.triggers());
                self.tell(Notice::Scheduled { sequence: Arc::clone(&path), next, zone, triggers });
                if entry.changed > self.now() {
                    let changed = entry.changed;
                    self.tell(Notice::FromTheFuture { sequence: Arc::clone(&path), changed });
                }
                self.entries.insert(path, entry);
                // Something of it may be started or queued already.
                self.reconcile = true;
            }
            (Read::Broken(lints), _) => {
                self.broken.insert(Arc::clone(&path));
                self.tell(Notice::Broken { sequence: path, lints });
            }
            (Read::Nothing, _) if was_known => self.tell(Notice::Gone { sequence: path, is_there }),
            (Read::Nothing, _) => {}
        }
        Ok(())
    }

    /// Whether other processes live, and what they have written.
    fn look_at_history(&mut self) -> Result<()> {
        if self.live.is_none_or(|when| when.elapsed() >= LIVE_EVERY) {
            self.live = Some(Instant::now());
            self.look_at_others()?;
        }
        if !self.reconcile && self.reconciled.is_some_and(|when| when.elapsed() < RECONCILE_EVERY) {
            return Ok(());
        }
        let version = self.occurrences.version()?;
        if self.reconcile || self.version != Some(version) {
            self.look_at_open()?;
            // Some other sequence may have ended.
            self.entries.values_mut().filter(|entry| entry.after.is_some()).for_each(|entry| entry.is_dirty = true);
            (self.version, self.reconcile) = (Some(version), false);
        }
        self.reconciled = Some(Instant::now());
        Ok(())
    }

    /// Whether nothing runs any more, and nothing more is due.
    fn is_done(&self) -> bool {
        self.running.is_empty() && !self.entries.values().any(|entry| self.is_unsettled(entry))
    }

    /// Whether something is to be looked at of a sequence.
    fn is_unsettled(&self, entry: &Entry) -> bool {
        entry.is_dirty || (entry.is_unchecked && self.options.checker.is_some())
    }

    /// Sleeps until something may be due, or something happens.
    fn wait(&mut self) -> Result<()> {
        let mut sleep = LONGEST_SLEEP;
        if self.entries.values().any(|entry| self.is_unsettled(entry)) {
            sleep = Duration::ZERO;
        }
        if self.running.values().any(|running| !running.is_ours) {
            sleep = sleep.min(LIVE_EVERY);
        }
        let now = self.now();
        let dues = self.entries.values().filter_map(|entry| entry.look_again).min();
        let deadlines = self.running.values().filter_map(|running| running.late_at).min();
        for due in [dues.filter(|_| self.frozen.is_none()), deadlines].into_iter().flatten() {
            sleep = sleep.min((due - now).to_std().unwrap_or_default());
        }
        if self.trouble.is_some() {
            sleep = LONGEST_SLEEP;
        }
        let lost = || Error::internal("the scheduler has lost its events");
        match self.events.recv_timeout(sleep) {
            Ok(event) => self.event(event)?,
            Err(RecvTimeoutError::Timeout) => return Ok(()),
            Err(RecvTimeoutError::Disconnected) => return Err(lost()),
        }
        // More may have happened at the same time.
        while let Ok(event) = self.events.try_recv() {
            self.event(event)?;
        }
        Ok(())
    }

    fn event(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Stop => self.is_stopped = true,
            Event::Began(start, waited) => self.began(&start, waited),
            Event::Message(message) => {
                if let Err(error) = self.message(message) {
                    self.trouble_with_message(error);
                }
            }
            Event::Listened(sequence, was, error) => self.listened(&sequence, &was, error),
            Event::Exited(exited) => {
                if let Err(error) = self.exited(&exited) {
                    // It is found among those that are open, as one that nobody follows.
                    self.running.remove(&(exited.start.sequence, exited.start.planned));
                    self.reconcile = true;
                    self.trouble(error);
                }
            }
        }
        Ok(())
    }
}
