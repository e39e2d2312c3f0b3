//! Listens for sequences that are free to start, and decides about the messages that come.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use millstream_core::{Error, Result};
use millstream_state::occurrences::{Arrival, Decisions, NewOccurrence};

use crate::messages::{Listen, Listening, Message};
use crate::notice::Notice;
use crate::scheduler::{Event, Scheduler};

/// What stands before the id of a message among the arrivals of a sequence.
const PREFIX: &str = "message ";

/// So long after a fault it listens again.
const PAUSE: Duration = Duration::from_secs(10);

impl Scheduler {
    /// Listens for sequences that are free to start, and for no others.
    pub(crate) fn look_at_messages(&mut self) -> Result<()> {
        // With `--once` nothing is waited for.
        let Some(Listen(listen)) = self.options.listen.clone().filter(|_| !self.options.once) else { return Ok(()) };
        let waiting: Vec<Arc<str>> = self
            .entries
            .values()
            .filter(|one| one.schedule.message().is_some())
            .map(|one| Arc::clone(&one.sequence))
            .collect();
        for sequence in waiting {
            let is_busy = self.running_of(&sequence).next().is_some();
            let sender = self.sender();
            let Some(entry) = self.entries.get_mut(&sequence) else { continue };
            if is_busy || entry.queued.is_some() {
                entry.ear.stop();
                continue;
            }
            let is_early = entry.ear.again.is_some_and(|again| Instant::now() < again);
            let Some(queue) = entry.schedule.message().filter(|_| !is_early && entry.ear.listens.is_none()) else {
                continue;
            };
            let is_over = Arc::<AtomicBool>::default();
            let listening = Listening {
                queue: queue.clone(),
                sequence: Arc::clone(&sequence),
                is_over: Arc::clone(&is_over),
                send: Box::new({
                    let events = sender.clone();
                    move |message| events.send(Event::Message(message)).is_ok()
                }),
            };
            entry.ear.listens = Some(is_over);
            let listen = Arc::clone(&listen);
            let work = move || {
                let ended = listen(&listening);
                let Listening { sequence, is_over, .. } = listening;
                // The scheduler may have ended.
                let _ = sender.send(Event::Listened(sequence, is_over, ended.err()));
            };
            let started = std::thread::Builder::new().name("millstream-queue".to_owned()).spawn(work);
            started.map_err(|cause| Error::io("a thread cannot be started", &cause))?;
        }
        Ok(())
    }

    /// What listened has ended.
    pub(crate) fn listened(&mut self, sequence: &Arc<str>, was: &Arc<AtomicBool>, error: Option<Error>) {
        let Some(entry) = self.entries.get_mut(sequence) else { return };
        if entry.ear.listens.as_ref().is_some_and(|is_over| Arc::ptr_eq(is_over, was)) {
            entry.ear.listens = None;
            entry.ear.again = error.is_some().then(|| Instant::now() + PAUSE);
            let told = error.as_ref().map(ToString::to_string);
            if std::mem::replace(&mut entry.ear.told, told.clone()) == told {
                return;
            }
            if let Some(error) = error {
                let what = format!("{sequence}: no message can start it");
                let cause = error
                    .cause_text()
                    .map_or_else(|| error.what().to_owned(), |cause| format!("{}: {cause}", error.what()));
                let hint = error.hint_text().unwrap_or("it listens again every 10 seconds").to_owned();
                self.tell(Notice::Trouble(Error::new(error.kind(), what).cause(cause).hint(hint)));
            }
        }
    }

    /// Decides about a message. It stays in its queue if the sequence has been started by something else meanwhile.
    pub(crate) fn message(&mut self, message: Message) -> Result<()> {
        let Message { sequence, id, answer } = message;
        let decided = self.decided_about(&sequence, &id);
        let _ = answer.send(matches!(decided, Ok(true)));
        decided.map(drop)
    }

    fn decided_about(&mut self, sequence: &Arc<str>, id: &str) -> Result<bool> {
        let file = format!("{PREFIX}{id}");
        let known = self.occurrences.arrivals(sequence)?;
        if known.iter().any(|arrival| arrival.file == file) {
            return Ok(true);
        }
        let is_free = self.running_of(sequence).next().is_none();
        if !is_free || self.entries.get(sequence).is_none_or(|entry| entry.queued.is_some()) {
            return Ok(false);
        }
        let now = self.moment().timestamp_millis();
        let mut planned = now;
        while self.occurrences.find(sequence, planned)?.is_some() {
            planned += 1;
        }
        let start = Some(NewOccurrence { planned, cause: Some(file.clone()) });
        let arrivals = vec![Arrival { file, modified: now, size: 0 }];
        let decisions = Decisions { sequence: sequence.to_string(), start, arrivals, ..Decisions::default() };
        self.occurrences.decide(&[decisions])?;
        // Long after it was acknowledged, a message does not come again.
        let old: Vec<String> = known.into_iter().map(|one| one.file).filter(|file| file.starts_with(PREFIX)).collect();
        self.occurrences.forget_arrivals(sequence, &old, now)?;
        self.start(sequence, planned, false)?;
        Ok(true)
    }

    /// What nobody listens for any more is left.
    pub(crate) fn stop_listening(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.ear.stop());
    }

    /// Trouble with a message, which stays in its queue.
    pub(crate) fn trouble_with_message(&mut self, error: Error) {
        self.tell(Notice::Trouble(error));
    }
}
