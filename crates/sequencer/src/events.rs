//! What happens in a run of a sequence, as it is kept in the run's folder. What its steps have come to follows from the
//! events: they are the one truth about it.

use millstream_engine::sequences::Row;
use millstream_job::sequence::{Sequence, StepState};
use serde::{Deserialize, Serialize};

use crate::progress::{Item, Part, Progress, StepProgress};

/// Counts up with every change that an older program would misread.
pub(crate) const VERSION: u32 = 1;

/// What has happened. Steps have their names, since a run that is resumed may have others; parts are numbers from 0.
/// Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The run began.
    Began {
        /// The version of the events.
        version: u32,
        /// Its name.
        run: String,
        /// The logical run.
        first: String,
        /// When.
        at: u64,
    },
    /// A step is to be done once more.
    Anew {
        /// The step.
        step: String,
        /// Which time this is that it is done.
        round: u32,
        /// Whether its jobs begin anew, whatever they have loaded.
        restarts: bool,
    },
    /// A step may begin, with these items if it is a loop. It has begun with the first of its parts.
    Step {
        /// The step.
        step: String,
        /// When.
        at: u64,
        /// Which time this is that it is done.
        round: u32,
        /// The items of its loop.
        items: Option<Vec<Item>>,
    },
    /// A step goes on whose parts an earlier run has begun.
    Again {
        /// The step.
        step: String,
        /// When.
        at: u64,
    },
    /// A step has to wait until there is room for it. This is not kept: it follows from the other events.
    #[serde(skip)]
    Waits {
        /// The step.
        step: String,
        /// Its pool, if it has one.
        pool: Option<String>,
    },
    /// An attempt at a part began.
    Started {
        /// The step.
        step: String,
        /// The part.
        part: usize,
        /// When.
        at: u64,
    },
    /// An attempt at a part has ended.
    Ended {
        /// The step.
        step: String,
        /// The part.
        part: usize,
        /// When.
        at: u64,
        /// How.
        ending: Ending,
        /// Why it has failed.
        message: Option<String>,
        /// Its results.
        results: Row,
    },
    /// A step is over.
    Over {
        /// The step.
        step: String,
        /// When.
        at: u64,
        /// What it has come to.
        outcome: Outcome,
        /// Why, if that is not said of its parts.
        message: Option<String>,
        /// Its results.
        results: Row,
    },
}

/// How an attempt has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Well.
    Succeeded,
    /// It failed, and another attempt follows.
    Retried,
    /// It failed.
    Failed,
    /// It was stopped, since the run was.
    Stopped,
}

/// What a step has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It ran and succeeded.
    Succeeded,
    /// It failed.
    Failed,
    /// Its own condition did not hold.
    Skipped,
    /// An earlier step has failed.
    NotRun,
}

impl Outcome {
    pub(crate) fn of(state: StepState) -> Option<Self> {
        match state {
            StepState::Waiting | StepState::Running => None,
            StepState::Succeeded => Some(Outcome::Succeeded),
            StepState::Failed => Some(Outcome::Failed),
            StepState::Skipped => Some(Outcome::Skipped),
            StepState::NotRun => Some(Outcome::NotRun),
        }
    }

    fn state(self) -> StepState {
        match self {
            Outcome::Succeeded => StepState::Succeeded,
            Outcome::Failed => StepState::Failed,
            Outcome::Skipped => StepState::Skipped,
            Outcome::NotRun => StepState::NotRun,
        }
    }
}

/// An event, and what the run has come to with it: for those who look on.
#[derive(Debug)]
pub struct Seen<'a> {
    /// The sequence.
    pub sequence: &'a Sequence,
    /// What has happened.
    pub event: &'a Event,
    /// What the steps have come to.
    pub progress: &'a Progress,
}

impl Progress {
    /// What `event` makes of it; a step that `sequence` does not have is left out.
    pub(crate) fn apply(&mut self, sequence: &Sequence, event: &Event) {
        let step = |name: &str| sequence.step(name);
        match event {
            Event::Began { .. } | Event::Waits { .. } => {}
            Event::Anew { step: name, round, restarts } => {
                let Some(step) = step(name) else { return };
                self.steps[step] = StepProgress { round: *round, restarts: *restarts, ..StepProgress::default() };
            }
            Event::Step { step: name, at, round, items } => {
                let Some(step) = step(name) else { return };
                let parts = match items {
                    Some(items) => items.iter().map(|item| Part::new(Some(item.clone()))).collect(),
                    None => vec![Part::new(None)],
                };
                let (state, round, began) = (StepState::Running, *round, Some(*at));
                let restarts = self.steps[step].restarts && self.steps[step].round == round;
                let waits_for_room = !parts.is_empty();
                let rest = StepProgress::default();
                self.steps[step] = StepProgress { state, round, restarts, waits_for_room, began, parts, ..rest };
            }
            Event::Again { step: name, at } => {
                let Some(progress) = step(name).map(|step| &mut self.steps[step]) else { return };
                (progress.state, progress.began, progress.waits_for_room) = (StepState::Running, Some(*at), true);
            }
            Event::Started { step: name, part, at } => {
                let Some(progress) = step(name).map(|step| &mut self.steps[step]) else { return };
                if std::mem::take(&mut progress.waits_for_room) {
                    progress.began = Some(*at);
                }
                let Some(part) = progress.parts.get_mut(*part) else { return };
                part.state = StepState::Running;
                part.attempts += 1;
                part.began = part.began.or(Some(*at));
            }
            Event::Ended { step: name, part, at, ending, message, results } => {
                let Some(part) = step(name).and_then(|step| self.steps[step].parts.get_mut(*part)) else { return };
                part.state = match ending {
                    Ending::Succeeded => StepState::Succeeded,
                    Ending::Failed => StepState::Failed,
                    Ending::Retried => StepState::Running,
                    Ending::Stopped => StepState::Waiting,
                };
                part.ended = Some(*at);
                part.message.clone_from(message);
                part.results.clone_from(results);
            }
            Event::Over { step: name, at, outcome, message, results } => {
                let Some(step) = step(name) else { return };
                let progress = &mut self.steps[step];
                progress.state = outcome.state();
                progress.waits_for_room = false;
                progress.ended = Some(*at);
                progress.message.clone_from(message);
                progress.results.clone_from(results);
            }
        }
    }

    /// The events that lead to the same of `step`.
    pub(crate) fn events_of(&self, sequence: &Sequence, step: usize) -> Vec<Event> {
        let (progress, name) = (&self.steps[step], sequence.steps[step].name.value.clone());
        let mut events = Vec::new();
        if progress.round > 1 {
            let (round, restarts) = (progress.round, progress.restarts);
            events.push(Event::Anew { step: name.clone(), round, restarts });
        }
        if let Some(at) = progress.began {
            let items: Option<Vec<Item>> = progress.parts.iter().map(|part| part.item.clone()).collect();
            let is_loop = sequence.steps[step].for_each.is_some();
            let items = items.or(is_loop.then(Vec::new)).filter(|_| is_loop);
            events.push(Event::Step { step: name.clone(), at, round: progress.round, items });
        }
        for (number, part) in progress.parts.iter().enumerate() {
            events.extend(part.events(&name, number));
        }
        if let Some(outcome) = Outcome::of(progress.state) {
            let (at, message) = (progress.ended.unwrap_or_default(), progress.message.clone());
            events.push(Event::Over { step: name, at, outcome, message, results: progress.results.clone() });
        }
        events
    }
}

impl Part {
    /// The events that lead to the same of this part, which is number `part` of `step`.
    pub(crate) fn events(&self, step: &str, part: usize) -> Vec<Event> {
        let Some(at) = self.began else { return Vec::new() };
        let step = step.to_owned();
        let ending = match self.state {
            StepState::Succeeded => Ending::Succeeded,
            StepState::Failed => Ending::Failed,
            _ => Ending::Stopped,
        };
        let (message, results, end) = (self.message.clone(), self.results.clone(), self.ended.unwrap_or(at));
        let started = Event::Started { step: step.clone(), part, at };
        vec![started, Event::Ended { step, part, at: end, ending, message, results }]
    }
}
