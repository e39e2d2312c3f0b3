//! What the scheduler starts in place of `millstream run`: this test binary again, through a script. What it does is
//! said by lines `# plan: …` of the sequence's file.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use chrono::DateTime;
use millstream_core::{Error, ErrorKind};
use millstream_scheduler::{Clock, Options, Scheduler};
use millstream_state::history::{Ending, JobKey, LogicalRun, RunHistory, RunKind};
use millstream_state::{CancelFile, Claim, Occurrences};

const ARGUMENTS: &str = "STAND_IN_ARGUMENTS";

/// A script in `folder` that is `millstream run` to the scheduler.
pub fn script(folder: &Path) -> PathBuf {
    this_binary(folder, "run", "stand_in::stand_in")
}

/// A script in `folder` that is a scheduler with `folder`, its state and its clock.
pub fn scheduler_script(folder: &Path) -> PathBuf {
    this_binary(folder, "scheduler", "stand_in::scheduler")
}

fn this_binary(folder: &Path, name: &str, test: &str) -> PathBuf {
    let binary = std::env::current_exe().expect("a path");
    let path = folder.join(name);
    let text = format!(
        "#!/bin/sh\n{ARGUMENTS}=\"$*\" exec '{}' --exact {test} --ignored --nocapture --quiet --test-threads=1\n",
        binary.display()
    );
    fs_err::write(&path, text).expect("written");
    fs_err::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a program");
    path
}

/// A line in the file that all processes of a test share.
fn trace(folder: &Path, line: &str) {
    let options = fs_err::OpenOptions::new().create(true).append(true).clone();
    let mut file = options.open(folder.join("trace")).expect("a file");
    file.write_all(format!("{line}\n").as_bytes()).expect("written");
}

/// A time as the tests write it.
pub fn shown(planned: i64) -> String {
    DateTime::from_timestamp_millis(planned).expect("a time").format("%Y-%m-%dT%H:%M").to_string()
}

/// The run of a sequence: it is no test.
#[test]
#[ignore = "it is a process of other tests"]
fn stand_in() {
    let Ok(text) = std::env::var(ARGUMENTS) else { return };
    let words: Vec<&str> = text.split(' ').collect();
    let after = |name: &str| words.iter().position(|word| *word == name).map(|at| words[at + 1]);
    let (sequence, planned) = (words[1], after("--occurrence").expect("a time").parse::<i64>().expect("a number"));
    let folder = Path::new(sequence).parent().expect("a folder");
    let plan = fs_err::read_to_string(sequence).unwrap_or_default();
    let plan = plan.lines().find_map(|line| line.strip_prefix("# plan: ")).unwrap_or("").to_owned();
    if plan == "refuse" {
        eprintln!("the sequence has errors");
        std::process::exit(2);
    }
    let history = RunHistory::open(Path::new(after("--state").expect("a folder"))).expect("it opens");
    let name = format!("{}-{}", millstream_core::clock::now(), std::process::id());
    let occurrences = Occurrences::new(Arc::clone(&history));
    // A run that resumes another one finds it by the occurrence that this has claimed.
    let resumed = words.contains(&"--resume").then(|| {
        let found = occurrences.find(sequence, planned).expect("an answer");
        found.and_then(|occurrence| occurrence.logical)
    });
    let first = resumed.flatten().unwrap_or_else(|| name.clone());
    let logical = LogicalRun { first: &first, moment: planned, series: None, kind: RunKind::Sequence, of_step: None };
    let live = history.begin(&name, logical, &JobKey::new(sequence, &[])).expect("it begins");
    let claim = occurrences.claim(sequence, planned, &live).expect("an answer");
    if let Claim::Refused(why) = claim {
        live.withdraw().expect("removed");
        eprintln!("refused: {why}");
        std::process::exit(0);
    }
    live.loading("xyz", &serde_json::Value::Null).expect("noted");
    let stem = Path::new(sequence).file_stem().expect("a name").to_string_lossy().into_owned();
    // No two of them may ever work on one occurrence at a time.
    let only = fs_err::File::create(folder.join(format!("{stem}-{planned}.only"))).expect("a file");
    if only.try_lock().is_err() {
        trace(folder, &format!("twice {stem} {}", shown(planned)));
    }
    trace(folder, &format!("began {stem} {} {}", shown(planned), std::process::id()));
    let ending = work(folder, &plan, &CancelFile::new(history.folder(), &name));
    let ended = if ending.is_none() { "ended" } else { "failed" };
    trace(folder, &format!("{ended} {stem} {}", shown(planned)));
    live.end(ending.as_ref(), &Ending::default()).expect("stored");
    drop((live, only));
    std::process::exit(i32::from(ending.is_some()));
}

fn work(folder: &Path, plan: &str, cancel: &CancelFile) -> Option<Error> {
    let (what, value) = plan.split_once(' ').unwrap_or((plan, ""));
    match what {
        "fail" => Some(Error::new(ErrorKind::Data, "the data is bad")),
        "sleep" => {
            std::thread::sleep(Duration::from_millis(value.parse().expect("a number")));
            None
        }
        "wait" => {
            while !folder.join(value).exists() {
                if cancel.is_asked() {
                    return Some(Error::new(ErrorKind::Interrupted, "interrupted"));
                }
                // The test has ended without it.
                if !folder.exists() {
                    std::process::exit(1);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            None
        }
        _ => None,
    }
}

/// A clock that shows what a file says.
pub fn file_clock(path: PathBuf) -> Clock {
    let last = std::sync::atomic::AtomicI64::new(0);
    Clock(Arc::new(move || {
        let text = fs_err::read_to_string(&path).unwrap_or_default();
        // It may be about to be written.
        let now = text.trim().parse().unwrap_or_else(|_| last.load(std::sync::atomic::Ordering::SeqCst));
        last.store(now, std::sync::atomic::Ordering::SeqCst);
        now
    }))
}

/// A scheduler as a process: it is no test.
#[test]
#[ignore = "it is a process of other tests"]
fn scheduler() {
    let Ok(text) = std::env::var(ARGUMENTS) else { return };
    let folder = PathBuf::from(text);
    let state = folder.join("state");
    let arguments = vec!["--state".into(), state.clone().into()];
    let (program, clock) = (script(&folder), file_clock(folder.join("clock")));
    let options = Options {
        folder: folder.clone(),
        state,
        program,
        arguments,
        parallel: 3,
        once: false,
        checker: None,
        listen: None,
        clock,
    };
    let traced = folder.clone();
    let scheduler = Scheduler::new(options, move |notice| {
        if std::env::var_os("SHOW").is_some() {
            trace(&traced, &format!("told {notice:?}"));
        }
    });
    let end = scheduler.and_then(Scheduler::run);
    trace(&folder, &format!("scheduler {end:?}"));
    std::process::exit(0);
}
