//! How a run begins where another one has stopped: which steps stay as they are, and which run again.

use millstream_core::hint::did_you_mean;
use millstream_core::{Error, Result};
use millstream_job::sequence::state::{self, StepState};
use millstream_job::sequence::{Sequence, StepState as State};
use millstream_state::{JobKey, Outcome, RunHistory, RunRecord, SequenceFolder};

use crate::events::{Event, VERSION};
use crate::progress::{Progress, StepProgress};

/// What a run is asked for.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// To go on where the last run has stopped.
    pub resume: bool,
    /// To begin these steps anew, and all behind them.
    pub restart: Vec<String>,
    /// To run this step and all behind it, as if all others had nothing to do.
    pub from: Option<String>,
    /// To run these steps alone.
    pub only: Vec<String>,
    /// The logical run that is meant, if it is not that of the last run: what a scheduler has begun.
    pub chain: Option<String>,
}

/// The run before, and what has happened in it.
#[derive(Debug)]
pub(crate) struct Earlier {
    pub(crate) record: RunRecord,
    events: Vec<Event>,
}

impl Asked {
    /// Whether the run goes on with the one before.
    fn continues(&self) -> bool {
        self.resume || self.from.is_some() || !self.restart.is_empty()
    }

    /// The run that this one goes on with, or whose results it uses: the last one of the sequence.
    ///
    /// # Errors
    /// If that runs, or its events cannot be read.
    pub(crate) fn earlier(&self, history: &RunHistory, key: &JobKey) -> Result<Option<Earlier>> {
        if !self.continues() && self.only.is_empty() {
            return Ok(None);
        }
        let record = match &self.chain {
            Some(chain) => history.loading_runs(key, u64::MAX)?.into_iter().find(|run| run.logical == *chain),
            None => history.last(key)?,
        };
        let Some(record) = record else { return Ok(None) };
        if record.outcome == Outcome::Running {
            let error = Error::refused("the sequence is running already");
            let error = error.cause(format!("run {} in process {}", record.run, record.process));
            return Err(error.hint("wait until it has ended, or end it"));
        }
        let events: Vec<Event> = SequenceFolder::of(history.folder(), &record.run).events()?;
        if let Some(Event::Began { version, .. }) = events.first()
            && *version > VERSION
        {
            return Err(Error::newer(format!("the run {}", record.run), *version, VERSION));
        }
        Ok(Some(Earlier { record, events }))
    }

    /// What the steps of `sequence` have come to when the run begins after `earlier`.
    ///
    /// # Errors
    /// If there is no such step, or nothing to go on with.
    pub(crate) fn begin(&self, sequence: &Sequence, earlier: Option<&Earlier>) -> Result<Progress> {
        let number = |name: &String| self.number(sequence, name);
        let restart = self.restart.iter().map(number).collect::<Result<Vec<_>>>()?;
        let from = self.from.iter().map(number).collect::<Result<Vec<_>>>()?;
        let only = self.only.iter().map(number).collect::<Result<Vec<_>>>()?;
        let mut progress = Progress::new(sequence);
        if let Some(earlier) = earlier {
            earlier.events.iter().for_each(|event| progress.apply(sequence, event));
        } else if self.from.is_some() || !self.restart.is_empty() {
            let error = Error::refused("the sequence has not run yet, so that no step can begin anew");
            return Err(error.hint("run it from its beginning: leave out `--from` and `--restart`"));
        }
        let before = progress.states();
        let mut states = match (only.is_empty(), from.is_empty()) {
            (false, _) => state::only(&sequence.graph, &only),
            (true, false) => {
                let done = |state: &StepState| if *state == State::Succeeded { *state } else { State::Skipped };
                let done: Vec<StepState> = before.iter().map(done).collect();
                state::restarted(&sequence.graph, &done, &from)
            }
            (true, true) => state::resumed(&sequence.graph, &before),
        };
        if !restart.is_empty() {
            states = state::restarted(&sequence.graph, &states, &restart);
        }
        let named = [restart.as_slice(), &from, &only].concat();
        for (step, state) in states.iter().enumerate() {
            let is_behind = || named.iter().any(|named| sequence.graph.later(*named).contains(&step));
            let is_loop = sequence.steps[step].for_each.is_some();
            let progress = &mut progress.steps[step];
            let is_other = progress.parts.iter().any(|part| part.item.is_some() != is_loop);
            match state {
                State::Waiting => progress.go_on(is_other || named.contains(&step) || is_behind()),
                other => progress.state = *other,
            }
            progress.restarts |= restart.contains(&step);
        }
        Ok(progress)
    }

    fn number(&self, sequence: &Sequence, name: &String) -> Result<usize> {
        sequence.step(name).ok_or_else(|| {
            let names: Vec<&str> = sequence.steps.iter().map(|step| step.name.value.as_str()).collect();
            Error::job(format!("there is no step `{name}`")).hint(did_you_mean(name, "steps", &names))
        })
    }
}

impl StepProgress {
    /// Lets the step run again. What failed goes on where it stopped; what was done is done once more, and so is all of
    /// it if `anew`.
    fn go_on(&mut self, anew: bool) {
        let has_stopped = matches!(self.state, State::Failed | State::Running | State::Waiting);
        if self.parts.is_empty() || anew || !has_stopped {
            let round = if self.began.is_some() { self.round + 1 } else { self.round };
            *self = StepProgress { round, ..StepProgress::default() };
            return;
        }
        for part in self.parts.iter_mut().filter(|part| part.state != State::Succeeded) {
            (part.state, part.attempts, part.message) = (State::Waiting, 0, None);
            (part.began, part.ended) = (None, None);
        }
        (self.state, self.ended, self.message) = (State::Waiting, None, None);
    }
}

/// What a run would do with each step, without doing it: a line each.
///
/// # Errors
/// As those of a run.
pub fn dry_run(
    sequence: &Sequence,
    history: &RunHistory,
    key: &JobKey,
    asked: &Asked,
) -> Result<Vec<(String, String)>> {
    let earlier = asked.earlier(history, key)?;
    let progress = asked.begin(sequence, earlier.as_ref())?;
    let line = |step: usize| {
        let (step, progress) = (&sequence.steps[step], &progress.steps[step]);
        let does = match progress.state {
            State::Succeeded => "is done".to_owned(),
            State::Skipped => "is skipped".to_owned(),
            _ if progress.parts.is_empty() => "runs".to_owned(),
            _ => {
                let done = progress.parts.iter().filter(|part| part.state == State::Succeeded).count();
                match progress.parts.len() {
                    1 => "goes on where it stopped".to_owned(),
                    all => format!("goes on: {done} of {all} items are done"),
                }
            }
        };
        (step.name.value.clone(), format!("{does} ({}: {})", step.action.kind(), crate::values::what(&step.action)))
    };
    Ok(sequence.graph.order().iter().map(|&step| line(step)).collect())
}
