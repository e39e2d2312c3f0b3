//! A sequence while it runs: a line for each step on a terminal, elsewhere a line for each thing that happens.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use millstream::history::{OfStep, RunHistory, RunStatus, WaitingRun};
use millstream::sequence::{
    Ending, Event, Outcome, Seen, Sequence, SequenceReport, StepProgress, StepState, kind_and_what,
};
use millstream::text::grouped;
use serde_json::Value;

use crate::human;
use crate::output::{Output, Role};

/// How often the lines of jobs that run are drawn with their rows.
const LOOKS: Duration = Duration::from_millis(500);

/// Shows a sequence.
pub struct Board {
    output: Output,
    lines: Option<Arc<Lines>>,
    /// The logical run, once it is known.
    first: Arc<OnceLock<String>>,
}

/// The lines of a terminal.
struct Lines {
    all: MultiProgress,
    bars: Vec<ProgressBar>,
    width: usize,
    jobs: Mutex<Jobs>,
}

/// The jobs that run.
#[derive(Default)]
struct Jobs {
    /// The logical run of the sequence.
    first: String,
    /// By the number of the step: the job, and what its line says before the rows.
    running: BTreeMap<usize, (OfStep, String)>,
    has_ended: bool,
}

impl Board {
    pub fn new(output: Output, sequence: &Sequence, history: &Arc<RunHistory>) -> Self {
        let is_terminal = std::io::stderr().is_terminal() && !output.quiet;
        let lines = is_terminal.then(|| Arc::new(Lines::new(sequence)));
        let (first, history) = (Arc::<OnceLock<String>>::default(), Arc::clone(history));
        let look: Box<dyn FnOnce() + Send> = match &lines {
            Some(lines) => Box::new({
                let lines = Arc::clone(lines);
                move || lines.look(&history)
            }),
            None => Box::new({
                let first = Arc::downgrade(&first);
                move || tell_waits(output, &history, &first)
            }),
        };
        if !output.quiet {
            // Without it the lines are drawn less often, and nothing is said of hours.
            let _ = std::thread::Builder::new().name("progress".to_owned()).spawn(look);
        }
        Board { output, lines, first }
    }

    /// Shows what has happened.
    pub fn see(&self, seen: &Seen<'_>) {
        let (sequence, progress) = (seen.sequence, seen.progress);
        let step = match seen.event {
            Event::Began { first, .. } => {
                let _ = self.first.set(first.clone());
                if let Some(lines) = &self.lines {
                    lines.jobs().first.clone_from(first);
                }
                return;
            }
            Event::Anew { .. } => return,
            Event::Step { step, .. }
            | Event::Again { step, .. }
            | Event::Waits { step, .. }
            | Event::Started { step, .. }
            | Event::Ended { step, .. }
            | Event::Over { step, .. } => step,
        };
        let Some(number) = sequence.step(step) else { return };
        let progress = &progress.steps[number];
        if let Some(lines) = &self.lines {
            lines.show(self.output, sequence, number, progress);
        }
        let text = match seen.event {
            Event::Ended { part, ending: Ending::Retried, message, .. } => {
                let (why, item) = (message.as_deref().unwrap_or("it has ended"), item(progress, *part));
                let again = match sequence.steps[number].retries {
                    Some(retries) => {
                        let attempts = progress.parts.get(*part).map_or(1, |part| part.attempts);
                        let wait = human::time(retries.wait);
                        format!("attempt {attempts} of {}; the next one follows in {wait}", retries.count + 1)
                    }
                    None => "it is attempted again".to_owned(),
                };
                Some(format!("{step}{item}: {why}; {again}\n"))
            }
            Event::Ended { part, ending: Ending::Failed, message, .. } => {
                let item = item(progress, *part);
                Some(format!("{step}{item}: failed: {}\n", message.as_deref().unwrap_or_default()))
            }
            _ if self.lines.is_some() => None,
            // Of steps that wait for others there may be many.
            Event::Waits { pool, .. } => pool.as_deref().map(|pool| format!("{step}: {}\n", waits_for(Some(pool)))),
            Event::Started { .. } if attempts(progress) == 1 => {
                Some(format!("{step}: begins ({})\n", kind_and_what(&sequence.steps[number])))
            }
            Event::Again { .. } => Some(format!("{step}: continues\n")),
            Event::Over { outcome: Outcome::Failed, message: None, .. } => None,
            Event::Over { .. } => Some(format!("{step}: {}\n", state(progress))),
            _ => None,
        };
        if let Some(text) = text {
            self.chat(&text);
        }
    }

    fn chat(&self, text: &str) {
        if !self.output.quiet {
            self.message(text);
        }
    }

    /// Shows a message above the lines.
    pub fn message(&self, text: &str) {
        match &self.lines {
            Some(lines) => lines.all.suspend(|| self.output.message(text)),
            None => self.output.message(text),
        }
    }

    /// Leaves the lines as they are.
    pub fn end(&self) {
        let Some(lines) = &self.lines else { return };
        lines.jobs().has_ended = true;
        lines.bars.iter().for_each(ProgressBar::abandon);
    }
}

impl Lines {
    fn new(sequence: &Sequence) -> Self {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        let width = sequence.steps.iter().map(|step| step.name.value.chars().count()).max().unwrap_or_default();
        let order = sequence.graph.order();
        let mut bars = vec![ProgressBar::hidden(); sequence.steps.len()];
        for &step in order {
            let bar = all.add(ProgressBar::no_length());
            if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
                bar.set_style(style);
            }
            bars[step] = bar;
        }
        let lines = Lines { all, bars, width, jobs: Mutex::default() };
        for &step in order {
            lines.show(Output::PLAIN, sequence, step, &StepProgress::default());
        }
        lines
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Draws the lines of jobs that run, with their rows, until the sequence has ended.
    fn look(&self, history: &RunHistory) {
        loop {
            std::thread::sleep(LOOKS);
            let jobs = self.jobs();
            if jobs.has_ended {
                return;
            }
            let waiting = WaitingRun::all(history.folder());
            for (number, (of, line)) in &jobs.running {
                if let Some(run) = waiting.iter().find(|run| run.of_step.as_ref() == Some(of)) {
                    let WaitingRun { hours, until, .. } = run;
                    self.bars[*number].set_message(format!("{line}: waits for its hours, {hours}, until {until}"));
                    continue;
                }
                let status = history.of_step(of).ok().and_then(|runs| runs.into_iter().next()?.status);
                if let Some(status) = status.filter(|status| status.updated > 0) {
                    self.bars[*number].set_message(format!("{line}{}", rows(&status)));
                }
            }
        }
    }

    fn show(&self, output: Output, sequence: &Sequence, number: usize, progress: &StepProgress) {
        let step = &sequence.steps[number];
        let width = self.width;
        let mark = match progress.state {
            StepState::Waiting => output.paint(Role::Faint, "·"),
            StepState::Running => output.paint(Role::Hint, "▸"),
            StepState::Succeeded => output.paint(Role::Strong, "✓"),
            StepState::Failed | StepState::NotRun => output.paint(Role::Error, "✗"),
            StepState::Skipped => output.paint(Role::Faint, "-"),
        };
        let does = match progress.state {
            StepState::Waiting => {
                let needs = sequence.graph.needs(number).iter().map(|&need| sequence.steps[need].name.value.as_str());
                let needs: Vec<&str> = needs.collect();
                if needs.is_empty() { String::new() } else { format!("after {}", needs.join(", ")) }
            }
            StepState::Running if progress.waits_for_room => {
                waits_for(step.pool.as_ref().map(|pool| pool.value.as_str()))
            }
            _ => state(progress),
        };
        let line = format!("{mark} {:width$}  {}  {does}", step.name.value, kind_and_what(step));
        let mut jobs = self.jobs();
        let is_job = matches!(progress.state, StepState::Running) && progress.parts.len() == 1;
        match is_job {
            true => {
                let of = OfStep { sequence: jobs.first.clone(), step: progress.label(&step.name.value, 0) };
                jobs.running.insert(number, (of, line.clone()));
            }
            false => {
                jobs.running.remove(&number);
            }
        }
        let bar = &self.bars[number];
        bar.set_message(line);
        bar.tick();
    }
}

/// How a job that runs goes.
fn rows(status: &RunStatus) -> String {
    let (rows, rate) = (grouped(status.rows_read), grouped(status.rate.round() as u64));
    format!(": {rows} rows read, {rate} a second")
}

/// Says of steps that they wait for their hours, as long as somebody has `first`, the logical run.
fn tell_waits(output: Output, history: &RunHistory, first: &Weak<OnceLock<String>>) {
    let mut told = BTreeSet::new();
    while let Some(first) = first.upgrade() {
        for WaitingRun { of_step, hours, until, has_begun, .. } in WaitingRun::all(history.folder()) {
            let Some(OfStep { sequence, step }) = of_step.filter(|of| Some(&of.sequence) == first.get()) else {
                continue;
            };
            let what = if has_begun { "continues" } else { "begins" };
            let line = format!("{step}: waits for its hours, {hours}: it {what} at {until}\n");
            if told.insert((sequence, line.clone())) {
                output.chat(&line);
            }
        }
        drop(first);
        std::thread::sleep(LOOKS);
    }
}

/// The item of a part, behind a blank; empty if the step is no loop.
fn item(progress: &StepProgress, part: usize) -> String {
    let item = progress.parts.get(part).and_then(|part| part.item.as_ref());
    item.map_or(String::new(), |item| format!(" {}", item.text()))
}

/// For what a step waits that could begin.
fn waits_for(pool: Option<&str>) -> String {
    match pool {
        Some(pool) => format!("waits for a place in the pool `{pool}`"),
        None => "waits until other steps end".to_owned(),
    }
}

/// How many attempts there were at all parts of a step.
fn attempts(progress: &StepProgress) -> u32 {
    progress.parts.iter().map(|part| part.attempts).sum()
}

/// What a step has come to, in words.
fn state(progress: &StepProgress) -> String {
    let took = || match (progress.began, progress.ended) {
        (Some(began), Some(ended)) => human::time(Duration::from_millis(ended.saturating_sub(began))),
        _ => String::new(),
    };
    match progress.state {
        StepState::Waiting => "waits".to_owned(),
        StepState::Running => {
            let done = progress.parts.iter().filter(|part| part.state.is_over()).count();
            match progress.parts.len() {
                0 | 1 => "runs".to_owned(),
                all => format!("runs: {done} of {all} items are done"),
            }
        }
        StepState::Succeeded => {
            let rows = progress.results.get("rows_written").and_then(Value::as_u64);
            let rows = rows.map_or(String::new(), |rows| format!(", {} rows written", grouped(rows)));
            format!("done in {}{rows}", took())
        }
        StepState::Failed => match progress.message.as_deref() {
            Some(why) => format!("failed: {why}"),
            None => format!("failed after {}", took()),
        },
        StepState::Skipped => "skipped".to_owned(),
        StepState::NotRun => "not run, since an earlier step has failed".to_owned(),
    }
}

/// What is said at the end.
pub fn ending(report: &SequenceReport) -> String {
    if report.nothing_to_do {
        return "nothing to do: the last run is done\n".to_owned();
    }
    let json = &report.json;
    let steps = json["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
    let count = |outcome: &str| steps.iter().filter(|step| step["outcome"] == outcome).count();
    let mut parts = vec![format!("{} of {} steps done", count("success"), steps.len())];
    for (outcome, words) in [("skipped", "skipped"), ("failed", "failed"), ("not_run", "not run")] {
        if count(outcome) > 0 {
            parts.push(format!("{} {words}", count(outcome)));
        }
    }
    let took = json["ended"].as_u64().zip(json["began"].as_u64()).map_or(0, |(end, begin)| end.saturating_sub(begin));
    let took = human::time(Duration::from_millis(took));
    format!("{} in {took} (run {})\n", parts.join(", "), json["run"].as_str().unwrap_or_default())
}
