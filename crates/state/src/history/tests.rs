//! Tests of the run history as a whole.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fs_err::File;
use millstream_core::Error;
use rusqlite::{Connection, params};
use serde_json::{Value, json};

use super::migrations::{VERSION, version};
use super::retention::Kept;
use super::store::{PROGRAM, Unopened, signed};
use super::{
    Ending, JobKey, LogicalRun, OfStep, Outcome, RunFilter, RunHistory, RunKind, RunStatus, locks, progress, status,
};
use crate::{Occurrences, rejects};

fn key() -> JobKey {
    JobKey { path: "/jobs/a.yaml".to_owned(), variables: String::new() }
}

fn of(first: &str) -> LogicalRun<'_> {
    LogicalRun { first, moment: 7, series: None, kind: RunKind::Job, of_step: None }
}

#[test]
fn a_run_that_does_not_store_how_it_ended_was_killed() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let history = RunHistory::open(folder.path()).expect("it opens");
    let run = history.begin("1-1", of("1-1"), &key()).expect("it begins");
    let last = |history: &RunHistory| history.last(&key()).expect("it answers").expect("there is one");
    let other = RunHistory::open(folder.path()).expect("it opens twice");
    assert!(other.last(&key()).expect("it answers").is_none(), "there is nothing to resume");
    run.loading("xyz", &Value::Null).expect("noted");
    assert_eq!(last(&other).outcome, Outcome::Running);
    drop(run);
    assert_eq!(last(&other).outcome, Outcome::Killed);
    let run = history.begin("2-2", of("1-1"), &key()).expect("it begins");
    run.loading("abc", &Value::Null).expect("noted");
    run.end(None, &Ending { rows_written: 7, ..Ending::default() }).expect("noted");
    drop(run);
    let done = last(&other);
    assert_eq!((done.outcome, done.rows_written, done.fingerprint.as_deref()), (Outcome::Done, 7, Some("abc")));
    assert!(other.is_done("1-1").expect("it answers") && !other.is_done("2-2").expect("it answers"));
    assert_eq!(other.list(None, 10).expect("it answers").len(), 2);
    assert_eq!(other.list(Some("/jobs/b.yaml"), 10).expect("it answers").len(), 0);
}

#[test]
fn what_is_shown_of_a_run_that_failed_has_no_secrets() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let history = RunHistory::open(folder.path()).expect("it opens");
    let key = JobKey { variables: "API_TOKEN=abc123\nDAY=2026-01-31".to_owned(), ..key() };
    let run = history.begin("1-1", of("1-1"), &key).expect("it begins");
    let error = Error::job("http://h/abc123/x does not answer").cause("proxy http://p:1 and ftp://a:hunter2@b");
    let report = json!({
        "errors": [{"what": "no abc123", "cause": "at http://p:1 and ftp://a:hunter2@b", "line": 3, "hint": null}],
        "parameters": {"API_TOKEN": "abc123", "DAY": "2026-01-31"},
    });
    run.end(Some(&error), &Ending { report: Some(report), ..Ending::default() }).expect("noted");
    let shown = history.find("1-1").expect("it answers").expect("it is there").shown();
    let report = shown.report.as_ref().expect("a report");
    assert_eq!(report["errors"][0]["what"], "no ***");
    assert_eq!(report["errors"][0]["cause"], "at http://p:1 and ftp://a:***@b");
    assert_eq!((&report["errors"][0]["line"], &report["parameters"]["DAY"]), (&json!(3), &json!("2026-01-31")));
    assert_eq!(shown.message.as_deref(), Some("http://h/***/x does not answer: proxy http://p:1 and ftp://a:***@b"));
    let all = format!("{shown:?}");
    assert!(!all.contains("abc123") && !all.contains("hunter2"), "{all}");
    // Nor is it found by a search, letter by letter.
    let found = |text: &str| {
        let filter = RunFilter { text: Some(text.to_owned()), ..RunFilter::default() };
        history.browse(&filter, 10).expect("it answers").len()
    };
    assert_eq!((found("does not answer"), found("abc"), found("hunter")), (1, 0, 0));
}

/// A history of version 0 with a run that was killed.
fn first_history(folder: &Path) {
    let connection = Connection::open(folder.join("runs.db")).expect("a database");
    connection
        .execute_batch(
            "CREATE TABLE runs (run TEXT PRIMARY KEY, logical TEXT NOT NULL, job TEXT NOT NULL, variables TEXT NOT \
             NULL, fingerprint TEXT, process INTEGER NOT NULL, began INTEGER NOT NULL, ended INTEGER, outcome \
             TEXT, message TEXT, rows_read INTEGER NOT NULL DEFAULT 0, rows_written INTEGER NOT NULL DEFAULT 0, \
             rows_rejected INTEGER NOT NULL DEFAULT 0, units INTEGER NOT NULL DEFAULT 0, predicted TEXT, report \
             TEXT); INSERT INTO runs (run, logical, job, variables, fingerprint, process, began) VALUES ('1-1', \
             '1-1', \
             '/jobs/a.yaml', '', '0123456789abcdef', 7, 1)",
        )
        .expect("a history");
}

#[test]
fn a_history_without_a_version_is_migrated_once_by_several_processes() {
    let folder = tempfile::TempDir::new().expect("a folder");
    first_history(folder.path());
    let histories: Vec<_> = std::thread::scope(|scope| {
        let open = |_| scope.spawn(|| RunHistory::open(folder.path()).expect("it is migrated"));
        let threads: Vec<_> = (0..8).map(open).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
    });
    for history in histories {
        let occurrences = Occurrences::new(Arc::clone(&history));
        assert!(occurrences.open().expect("it has the tables").is_empty());
        let last = history.last(&key()).expect("it answers").expect("the run is there");
        assert_eq!((last.run.as_str(), last.outcome, last.program), ("1-1", Outcome::Killed, None));
        assert_eq!(version(&history.connection()).expect("it has one"), VERSION);
    }
    let history = RunHistory::open(folder.path()).expect("it opens again");
    let run = history.begin("2-2", of("1-1"), &key()).expect("it begins");
    run.loading("abc", &Value::Null).expect("noted");
    let last = history.last(&key()).expect("it answers").expect("there is one");
    assert_eq!(last.program.as_deref(), Some(PROGRAM));
}

#[test]
fn a_newer_history_is_refused_and_stays_as_it_is() {
    let folder = tempfile::TempDir::new().expect("a folder");
    drop(RunHistory::open(folder.path()).expect("it opens"));
    let connection = Connection::open(folder.path().join("runs.db")).expect("a database");
    connection.pragma_update(None, "user_version", VERSION + 1).expect("written");
    drop(connection);
    let before = fs_err::read(folder.path().join("runs.db")).expect("a file");
    for error in [
        RunHistory::open(folder.path()).expect_err("it is newer"),
        RunHistory::open_if_possible(folder.path()).expect_err("it is newer"),
    ] {
        assert!(error.what().ends_with("was written by a newer version of Millstream"), "{error:?}");
        assert!(error.hint_text().is_some_and(|hint| hint.contains("`--state`")), "{error:?}");
    }
    assert_eq!(fs_err::read(folder.path().join("runs.db")).expect("a file"), before);
}

#[test]
fn a_history_that_another_process_holds_is_waited_for() {
    let folder = tempfile::TempDir::new().expect("a folder");
    drop(RunHistory::open(folder.path()).expect("it opens"));
    let holder = Connection::open(folder.path().join("runs.db")).expect("a database");
    holder.execute_batch("BEGIN EXCLUSIVE").expect("it holds it");
    let opened = RunHistory::try_open(folder.path(), Duration::from_millis(50));
    let error = opened.map_err(Unopened::into_error).expect_err("it is held");
    assert!(error.what().starts_with("another process holds the run history in "), "{error:?}");
    assert!(error.hint_text().is_some_and(|hint| hint.contains("stopped")), "{error:?}");
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| RunHistory::open_if_possible(folder.path()));
        std::thread::sleep(Duration::from_millis(300));
        holder.execute_batch("COMMIT").expect("it lets go");
        assert!(opening.join().expect("a thread").expect("it opens").is_some());
    });
}

#[test]
fn locks_of_killed_runs_go_after_a_day_and_those_of_live_ones_stay() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let history = RunHistory::open(folder.path()).expect("it opens");
    let live = history.begin("1-1", of("1-1"), &key()).expect("it begins");
    let long_ago = SystemTime::now() - Duration::from_secs(25 * 60 * 60);
    for name in ["old", "young", "1-1"] {
        let path = locks::path(folder.path(), name);
        let file = File::options().create(true).truncate(false).write(true).open(&path).expect("a file");
        if name != "young" {
            file.file().set_modified(long_ago).expect("it takes the time");
        }
    }
    history.begin("2-2", of("2-2"), &key()).expect("it begins");
    assert!(!locks::path(folder.path(), "old").exists() && history.has_died("young"));
    assert!(locks::path(folder.path(), "1-1").exists() && !history.has_died("1-1"));
    drop(live);
}

/// Adds runs that ended long ago, with reports.
fn fill(history: &RunHistory, runs: std::ops::Range<u64>) {
    let mut connection = history.connection();
    let transaction = connection.transaction().expect("begun");
    let insert = "INSERT INTO runs (run, logical, job, variables, process, began, outcome, report) VALUES (?1, ?1, \
                  '/jobs/a.yaml', '', 1, ?2, 'done', '{}')";
    for run in runs {
        transaction.execute(insert, params![format!("{run}-1"), signed(run)]).expect("written");
    }
    transaction.commit().expect("written");
}

#[test]
fn the_oldest_runs_lose_what_they_left_and_then_are_forgotten() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let mut history = RunHistory::open(folder.path()).expect("it opens");
    Arc::get_mut(&mut history).expect("the only one").kept = Kept { numbers: 30, whole: 10, each: 10 };
    let left = |kind: &str, run: &str| folder.path().join(kind).join(run);
    let names = || -> Vec<String> {
        let runs = history.list(None, u64::MAX).expect("it answers");
        runs.into_iter().map(|run| run.run).collect()
    };
    // The first one lives all the time.
    let service = history.begin("service", of("service"), &key()).expect("it begins");
    service.status().write(&RunStatus::default());
    fill(&history, 1..19);
    for run in ["5-1", "15-1"] {
        fs_err::create_dir_all(left(rejects::FOLDER, run)).expect("a folder");
        fs_err::write(left(progress::FOLDER, run), "7").expect("written");
    }
    drop(history.begin("a", of("a"), &key()).expect("it begins"));
    // The number of this one is the twentieth.
    assert_eq!(names().len(), 20);
    let has_report = |run: &str| history.find(run).expect("it answers").expect("it is there").report.is_some();
    assert_eq!((has_report("5-1"), has_report("15-1")), (false, true));
    for kind in [rejects::FOLDER, progress::FOLDER] {
        assert_eq!((left(kind, "5-1").exists(), left(kind, "15-1").exists()), (false, true), "{kind}");
    }
    assert!(left(status::FOLDER, "service").exists(), "what lives stays whole");
    fill(&history, 20..39);
    drop(history.begin("b", of("b"), &key()).expect("it begins"));
    let names = names();
    assert_eq!((names.len(), names[0].as_str(), names[30].as_str()), (31, "b", "service"), "{names:?}");
    drop(service);
}

#[test]
fn what_is_unfinished_was_neither_resumed_nor_done_later() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let history = RunHistory::open(folder.path()).expect("it opens");
    let other = JobKey { path: "/jobs/b.yaml".to_owned(), variables: String::new() };
    let ends = |run: &str, first: &str, job: &JobKey, error: Option<&Error>| {
        let run = history.begin(run, of(first), job).expect("it begins");
        run.end(error, &Ending::default()).expect("noted");
    };
    let error = Error::refused("it failed");
    let unfinished = |job: Option<&str>, most: u64| -> Vec<String> {
        let runs = history.unfinished(job, most).expect("it answers");
        runs.into_iter().map(|run| run.run).collect()
    };
    ends("1-1", "1-1", &key(), Some(&error));
    ends("2-2", "2-2", &other, Some(&error));
    assert_eq!(unfinished(None, 9), ["2-2", "1-1"]);
    assert_eq!((unfinished(Some("/jobs/a.yaml"), 9), unfinished(None, 1)), (vec!["1-1".into()], vec!["2-2".into()]));
    // It is resumed, and fails again.
    ends("3-3", "1-1", &key(), Some(&error));
    assert_eq!(unfinished(None, 9), ["3-3", "2-2"]);
    ends("4-4", "4-4", &key(), None);
    assert_eq!(unfinished(None, 9), ["2-2"]);
    // One that runs is not unfinished; once it is killed it is.
    let live = history.begin("5-5", of("5-5"), &key()).expect("it begins");
    assert_eq!(unfinished(None, 9), ["2-2"]);
    drop(live);
    assert_eq!(unfinished(None, 9), ["5-5", "2-2"]);
}

#[test]
fn one_run_of_a_job_loads_at_a_time() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let history = RunHistory::open(folder.path()).expect("it opens");
    let first = history.only_run(&key()).expect("no other run has it");
    let refused = history.only_run(&key()).expect_err("one runs");
    assert!(refused.what().contains("running already"), "{refused:?}");
    let other = JobKey { variables: "DAY=1".to_owned(), ..key() };
    history.only_run(&other).expect("it is another job");
    drop(first);
    history.only_run(&key()).expect("no other run has it");
}

#[test]
fn runs_of_steps_are_found_by_them() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let history = RunHistory::open(folder.path()).expect("it opens");
    let sequence = LogicalRun { kind: RunKind::Sequence, ..of("1-1") };
    let step = |step: &str| OfStep { sequence: "1-1".to_owned(), step: step.to_owned() };
    drop(history.begin("1-1", sequence, &key()).expect("it begins"));
    let (load, other) = (step("load"), step("other"));
    for (run, step) in [("2-2", &load), ("3-3", &other), ("4-4", &load)] {
        drop(history.begin(run, LogicalRun { of_step: Some(step), ..of(run) }, &key()).expect("it begins"));
    }
    let found = history.of_step(&load).expect("it answers");
    let names: Vec<&str> = found.iter().map(|run| run.run.as_str()).collect();
    assert_eq!((names, found[0].kind, &found[0].of_step), (vec!["4-4", "2-2"], RunKind::Job, &Some(load)));
    let first = history.find("1-1").expect("it answers").expect("there is one");
    assert_eq!((first.kind, first.of_step), (RunKind::Sequence, None));
}
