//! What commands share: the machine, the engine, a job that is read, and a run that is shown until it ends.

use std::sync::{Arc, Mutex, PoisonError};

use futures::executor::block_on;
use millstream::machine::{Asked, Machine};
use millstream::report::{Report, error_json};
use millstream::text::{counted, unreadable};
use millstream::{Allow, Cancel, Engine, Event, Failure, Job, Lint, ParseOptions, Parsed, Running};
use millstream::{Error, Result};
use serde_json::Value;

use crate::arguments::Global;
use crate::output::Output;
use crate::progress::Display;
use crate::telemetry::Observed;
use crate::{allocator, human, interrupt, message, report, sequences};

/// Shows lints.
pub fn tell_lints(output: Output, lints: &[Lint]) {
    output.message(&message::lints(output, lints));
}

/// The machine by its file, or as detected.
pub fn machine(global: &Global) -> Result<Machine, Failure> {
    let (cores, memory) = (global.cores, global.memory.map(|size| size.0));
    let asked = Asked { cores, memory, scratch: global.scratch.clone(), state: global.state.clone() };
    match &global.machine {
        Some(path) => machine_of(path, global.node.clone(), asked, "`--machine` and MILLSTREAM_MACHINE name it"),
        None => Ok(Machine::detect(asked)?),
    }
}

/// The machine that the file at `path` describes for `node`, or for this host. `named` says in a hint what names the
/// file.
///
/// # Errors
/// Everything that is wrong with the file.
pub fn machine_of(path: &str, node: Option<String>, asked: Asked, named: &str) -> Result<Machine, Failure> {
    let bytes = fs_err::read(path).map_err(|cause| unreadable("the machine file", path, &cause, named))?;
    let text = millstream::parse::decode(path, &bytes).map_err(|lint| Failure::from(*lint))?;
    let node = node.unwrap_or_else(millstream::machine::host_name);
    let file = millstream::machine::load(path, text, &node, &|name| std::env::var(name).ok());
    let file = file.map_err(|lints| Failure { lints, errors: Vec::new() })?;
    Machine::of_file(&file, asked)
}

/// The engine, which owns this process.
pub fn engine(global: &Global) -> Result<Engine, Failure> {
    engine_of(machine(global)?)
}

/// The same with `machine`.
pub fn engine_of(machine: Machine) -> Result<Engine, Failure> {
    allocator::fit(machine.memory);
    Ok(Engine::builder().machine(machine).own_process().build()?)
}

/// The job at `path`, if it has no errors. Shows its warnings.
pub fn sound_job(
    global: &Global,
    engine: &Engine,
    output: Output,
    path: &str,
    needs_secrets: bool,
) -> Result<Arc<Job>, Failure> {
    let Parsed { job, warnings } = parsed(global, engine, path, needs_secrets)?;
    tell_lints(output, &warnings);
    Ok(job)
}

/// The job at `path`, and its warnings.
pub fn parsed(global: &Global, engine: &Engine, path: &str, needs_secrets: bool) -> Result<Parsed, Failure> {
    if sequences::is_sequence(path) {
        let error = Error::job(format!("{path} is a sequence, and not a job"));
        return Err(error.hint("`run`, `check` and `explain` take sequences; for others name one of its jobs").into());
    }
    let options = ParseOptions { set: global.set.iter().cloned().collect(), needs_secrets, now: None };
    block_on(engine.read_job(path, &options))
}

/// Refuses variables that `allow` does not let the caller set, if only those are to be set.
pub fn refuse_not_allowed(only_allowed: bool, allow: &Allow, set: &[(String, String)]) -> Result<()> {
    not_allowed(only_allowed, allow, set).map_or(Ok(()), Err)
}

fn not_allowed(only_allowed: bool, allow: &Allow, set: &[(String, String)]) -> Option<Error> {
    let why = set.iter().find_map(|(name, value)| allow.refusal(name, value)).filter(|_| only_allowed)?;
    let error = Error::refused("this variable may not be set").cause(why);
    Some(error.hint("ask somebody who may edit the file to change `allow`"))
}

/// Why that is refused, as JSON; null if it is not.
pub fn refusal(only_allowed: bool, allow: &Allow, set: &[(String, String)]) -> Value {
    not_allowed(only_allowed, allow, set).map_or(Value::Null, |error| error_json(&error))
}

/// Refuses to write both rows and the report to standard output.
pub fn refuse_two_outputs(output: Output, job: &Job) -> Result<()> {
    match job.sinks.iter().find(|sink| output.json && sink.write.value == "-") {
        Some(sink) => Err(Error::job("both the rows and the report would go to standard output")
            .in_step(&sink.name.value)
            .hint("leave out `--json`, or write the rows to a file")),
        None => Ok(()),
    }
}

/// Shows runs, one after the other. Ctrl-C cancels them.
pub struct Followed {
    output: Output,
    cancel: Cancel,
    /// That of the run which is shown.
    display: Arc<Mutex<Arc<Display>>>,
}

impl Followed {
    pub fn new(output: Output) -> Result<Self> {
        let (cancel, display) = (Cancel::default(), Arc::new(Mutex::new(Arc::new(Display::new(output)))));
        let teller = Arc::clone(&display);
        let current = move || Arc::clone(&teller.lock().unwrap_or_else(PoisonError::into_inner));
        interrupt::watch(cancel.clone(), move |text| current().message(text))?;
        Ok(Followed { output, cancel, display })
    }

    /// What Ctrl-C cancels.
    pub fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Starts a run with `start`, and shows its progress until it ends; `observed` sees the same.
    pub fn follow<T: Send + 'static>(
        &self,
        observed: &Observed,
        start: impl FnOnce() -> Result<Running<T>>,
    ) -> Result<T, Failure> {
        let display = Arc::new(Display::new(self.output));
        *self.display.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&display);
        let mut running = start()?;
        let ended = block_on(async {
            while let Some(event) = running.next_event().await {
                observed.see(&event);
                self.show(&display, event);
            }
            running.finish().await
        });
        display.end();
        ended
    }

    fn show(&self, display: &Display, event: Event) {
        let output = self.output;
        match event {
            Event::Progress(progress) => display.show(&progress),
            Event::Warnings(lints) => display.hide_while(|| tell_lints(output, &lints)),
            Event::Retrying { attempt, of, wait, error } => display.hide_while(|| {
                output.message(&message::error(output, &error));
                let wait = human::time(wait);
                output.chat(&format!("attempt {attempt} of {of} failed; the run is resumed in {wait}\n"));
            }),
            Event::OutsideHours { hours, until, has_begun } => display.hide_while(|| {
                let what = if has_begun { "continues" } else { "begins" };
                output.chat(&format!("the job runs at {hours}: it {what} at {until}\n"));
            }),
            Event::Away { of, error } => display.hide_while(|| {
                output.message(&message::warning(output, &error));
                output.message(&format!("`{of}` waits, and continues when it is there again\n"));
            }),
            Event::Back { of } => display.hide_while(|| output.message(&format!("`{of}` continues\n"))),
            Event::Gap { error } => display.hide_while(|| output.message(&message::warning(output, &error))),
            event @ (Event::Listening { .. }
            | Event::NotDistributed { .. }
            | Event::Joined { .. }
            | Event::NotJoined { .. }
            | Event::Left { .. }
            | Event::Lost { .. }
            | Event::Alone) => display.hide_while(|| tell_of_cluster(output, &event)),
            Event::HookFailed { hook, error } => display.hide_while(|| {
                output.message(&message::hook(output, &hook, &error));
            }),
            Event::Line { step, line } => display.hide_while(|| output.chat(&format!("{step}: {line}\n"))),
            _ => {}
        }
    }
}

/// Says what happens to the workers of a cluster.
pub fn tell_of_cluster(output: Output, event: &Event) {
    match event {
        Event::Listening { address, wait } => {
            let alone = match wait {
                Some(wait) => format!("without any for {} s, this machine reads alone", wait.as_secs_f64()),
                None => "the run waits for them".to_owned(),
            };
            output.chat(&format!("workers can join at {address}: millstream worker --join {address}\n  {alone}\n"));
        }
        Event::NotDistributed { why } => output.message(&format!("runs on this machine alone: {why}\n")),
        Event::Joined { worker, cores } => {
            output.chat(&format!("{worker} has joined, with {}\n", counted(*cores, "core")));
        }
        Event::NotJoined { worker, error } => {
            output.message(&format!("{worker} cannot join:\n{}", message::warning_with_hint(output, error)));
        }
        Event::Left { worker } => output.chat(&format!("{worker} has left\n")),
        Event::Lost { worker, why, bundles } => {
            let again = match bundles {
                0 => String::new(),
                bundles => format!("; {} read again", are(*bundles, "bundle")),
            };
            output.message(&format!("{worker} is lost ({why}){again}\n"));
        }
        Event::Alone => {
            output.message("there is no worker: this machine reads what is left, and no worker can join any more\n");
        }
        _ => {}
    }
}

/// `1 bundle is`, `2 bundles are`.
fn are(count: u64, what: &str) -> String {
    format!("{} {}", counted(count, what), if count == 1 { "is" } else { "are" })
}

/// Shows the report.
pub fn tell_done(output: Output, done: &Report, verbose: bool) -> Result<()> {
    if output.json {
        output.json(done)?;
    } else {
        output.chat(&report::report(output, done, verbose));
    }
    Ok(())
}
