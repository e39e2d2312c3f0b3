//! `millstream schedule`: the scheduler in the foreground, once, or a list of what comes next.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use millstream::history::{Occurrence, Outcome, default_folder};
use millstream::{Engine, Error, Failure, Result, sequence};
use millstream_scheduler::{
    Checker, End, Listed, Listen, Listening, Notice, Options, Said, Scheduler, list, path_from, wall_clock,
};
use serde_json::{Value, json};

use crate::arguments::{Global, Schedule};
use crate::output::Output;
use crate::shared::machine;
use crate::table::table;
use crate::{exit_code, interrupt, message};

/// How times are shown, to the minute.
const MINUTES: &str = "%Y-%m-%d %H:%M";

/// Runs the scheduler, or shows its list. Returns the exit code.
///
/// # Errors
/// If the folder or the state folder cannot be used, or another scheduler works on it.
pub fn run(global: &Global, output: Output, schedule: &Schedule) -> Result<u8, Failure> {
    let machine = machine(global)?;
    let state = state_folder(machine.state.as_deref())?;
    let parallel = schedule.parallel.map_or(machine.cores, usize::from);
    let engine = Engine::builder().machine(machine).build()?;
    if schedule.list {
        return show_list(output, schedule, &state, &checker(&engine));
    }
    let options = Options { once: schedule.once, ..options(global, &engine, &schedule.folder, state, parallel)? };
    let folder = fs_err::canonicalize(&schedule.folder).unwrap_or_else(|_| schedule.folder.clone());
    let shown = Shown { output, folder };
    let scheduler = Scheduler::new(options, move |notice| shown.notice(&notice))?;
    let stop = scheduler.stopper();
    interrupt::on_first(move || stop.stop())?;
    ended(output, schedule.once, &scheduler.run()?)
}

/// The state folder from the root: the one that is named, or the usual one.
///
/// # Errors
/// If there is none.
pub fn state_folder(named: Option<&Path>) -> Result<PathBuf> {
    let state = named.map(Path::to_owned).or_else(default_folder).ok_or_else(|| {
        Error::refused("there is no folder for the state").hint("name one with `--state` or MILLSTREAM_STATE")
    })?;
    let failed = |cause| Error::io(format!("the state folder {} cannot be used", state.display()), &cause);
    std::path::absolute(&state).map_err(failed)
}

/// What a scheduler of the sequences in `folder` needs, which runs `parallel` of them together.
///
/// # Errors
/// If the path of this program is not known.
pub fn options(global: &Global, engine: &Engine, folder: &Path, state: PathBuf, parallel: usize) -> Result<Options> {
    let mut arguments = arguments(global, &state);
    arguments.splice(0..0, ["--quiet".into()]);
    arguments.extend(["--beside".into(), parallel.to_string().into()]);
    Ok(Options {
        folder: folder.to_owned(),
        arguments,
        state,
        program: program()?,
        parallel,
        once: false,
        checker: Some(checker(engine)),
        listen: Some(listen(engine)),
        clock: wall_clock(),
    })
}

/// What is printed at the end, and the exit code.
fn ended(output: Output, once: bool, end: &End) -> Result<u8, Failure> {
    match end {
        End::Stopped { running } => {
            if output.json {
                output.json(&json!({"end": "stopped", "running": running}))?;
            }
            match running {
                0 => output.chat("stopped; nothing runs\n"),
                1 => output.chat("stopped; 1 run goes on, and the next scheduler follows it\n"),
                more => output.chat(&format!("stopped; {more} runs go on, and the next scheduler follows them\n")),
            }
            Ok(0)
        }
        End::Done { failed } => {
            if output.json {
                output.json(&json!({"end": "done", "failed": failed}))?;
            }
            Ok(u8::from(*failed > 0))
        }
        // That one does what is due.
        End::Refused { process } if once => {
            output.chat(&format!("another scheduler works on this state folder{}\n", of_process(process)));
            Ok(0)
        }
        End::Refused { process } => {
            Err(Error::refused(format!("another scheduler works on this state folder{}", of_process(process)))
                .hint("end it first, or give this one a state folder of its own with `--state`")
                .into())
        }
    }
}

fn of_process(process: &str) -> String {
    if process.is_empty() { String::new() } else { format!(": process {process}") }
}

/// What finds mistakes in steps.
fn checker(engine: &Engine) -> Checker {
    let engine = engine.clone();
    Checker(Arc::new(move |path| sequence::mistakes(&engine, path)))
}

/// What listens for messages.
fn listen(engine: &Engine) -> Listen {
    let engine = engine.clone();
    Listen(Arc::new(move |listening: &Listening| {
        let (queue, is_over) = (&listening.queue, || listening.is_over());
        sequence::next_message(&engine, &queue.from, &queue.settings(), &is_over, &|id| listening.came(id))
    }))
}

/// The program that runs jobs and sequences: this one.
///
/// # Errors
/// If its path is not known.
pub fn program() -> Result<PathBuf> {
    #[cfg(debug_assertions)]
    if let Some(program) = std::env::var_os("MILLSTREAM_SCHEDULER_PROGRAM") {
        return Ok(program.into());
    }
    std::env::current_exe().map_err(|cause| Error::io("the path of this program cannot be found", &cause))
}

/// What is said of the machine and the state folder is the same for the runs.
pub fn arguments(global: &Global, state: &Path) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["--state".into(), state.into()];
    let mut add = |name: &str, value: Option<OsString>| {
        if let Some(value) = value {
            arguments.extend([name.into(), value]);
        }
    };
    add("--machine", global.machine.as_ref().map(OsString::from));
    add("--node", global.node.as_ref().map(OsString::from));
    add("--memory", global.memory.map(|size| size.0.to_string().into()));
    add("--cores", global.cores.map(|cores| cores.to_string().into()));
    global.scratch.iter().for_each(|folder| add("--scratch", Some(folder.into())));
    arguments
}

/// Shows what happens.
pub struct Shown {
    /// Where.
    pub output: Output,
    /// Files are named by their paths from this folder.
    pub folder: PathBuf,
}

impl Shown {
    /// Shows a notice.
    pub fn notice(&self, notice: &Notice) {
        let output = self.output;
        match notice.said(&self.folder) {
            Said::Text(text) => output.chat(&format!("{text}\n")),
            Said::Warning(error) => output.message(&message::warning(output, &error)),
            Said::Error(error) => output.message(&message::error(output, &error)),
            Said::Lints(lints, follows) => {
                output.message(&message::lints(output, &lints));
                output.message(&format!("{follows}\n"));
            }
        }
    }
}

fn show_list(output: Output, schedule: &Schedule, state: &Path, checker: &Checker) -> Result<u8, Failure> {
    let (listed, lints) = list(&schedule.folder, state, &wall_clock(), schedule.times.max(1), checker)?;
    let failure = Failure { lints, errors: Vec::new() };
    let code = if failure.lints.is_empty() { 0 } else { exit_code::exit_code(&failure) };
    if output.json {
        let sequences: Vec<Value> = listed.iter().map(as_json).collect();
        output.json(&json!({"sequences": sequences, "lints": failure.lints}))?;
    } else if listed.is_empty() && failure.lints.is_empty() {
        output.result("no sequence here has a schedule\n")?;
    } else if !listed.is_empty() {
        let folder = fs_err::canonicalize(&schedule.folder).unwrap_or_else(|_| schedule.folder.clone());
        let header = ["next", "time zone", "sequence", "now", "last", "ended"].map(str::to_owned);
        let rows: Vec<Vec<String>> = listed.iter().flat_map(|one| rows(&folder, one)).collect();
        output.result(&table(&header, &rows, &[]))?;
    }
    output.message(&message::lints(output, &failure.lints));
    Ok(code)
}

/// A line for each time.
fn rows(folder: &Path, listed: &Listed) -> Vec<Vec<String>> {
    let at = |moment: DateTime<Utc>| moment.with_timezone(&listed.zone).format(MINUTES).to_string();
    let planned = |milliseconds: i64| DateTime::from_timestamp_millis(milliseconds).map_or(String::new(), at);
    let mut next: Vec<String> = listed.next.iter().map(|next| at(*next)).collect();
    next.extend(listed.triggers.iter().cloned());
    let does = |running: &Occurrence| match listed.was_killed {
        true => format!("was killed {}, and is resumed by the scheduler", planned(running.planned)),
        false => format!("runs {}", planned(running.planned)),
    };
    let now = match (&listed.running, &listed.queued) {
        (Some(running), None) => does(running),
        (Some(running), Some(_)) => format!("{}, one waits", does(running)),
        (None, Some(_)) => "one waits".to_owned(),
        (None, None) => String::new(),
    };
    let (last, how) = match &listed.last {
        Some(last) => (planned(last.planned), last.outcome.map_or("skipped", Outcome::name).to_owned()),
        None => Default::default(),
    };
    let (zone, sequence) = (listed.zone.name().to_owned(), path_from(folder, &listed.sequence));
    let row = |(index, next): (usize, String)| match index {
        0 => vec![next, zone.clone(), sequence.clone(), now.clone(), last.clone(), how.clone()],
        _ => vec![next, zone.clone(), sequence.clone()],
    };
    next.into_iter().enumerate().map(row).collect()
}

fn as_json(listed: &Listed) -> Value {
    let next: Vec<String> = listed.next.iter().map(|next| next.with_timezone(&listed.zone).to_rfc3339()).collect();
    json!({
        "sequence": &*listed.sequence,
        "timezone": listed.zone.name(),
        "next": next,
        "triggers": listed.triggers,
        "running": listed.running,
        "queued": listed.queued,
        "last": listed.last,
        "missed": listed.missed,
    })
}
