//! Tables of the resume policy: each row of the tables in `decide.rs`.

use millstream_core::sink::KnownLoad;
use millstream_core::{Error, Result};
use millstream_state::{Outcome, RunKind, RunRecord};
use serde_json::Value;

use super::decide::*;
use super::refusals;
use crate::fingerprint::Compared;

const PLAIN: Asked = Asked { resume: false, restart: false, replay: false, has_run: false };
const RESUME: Asked = Asked { resume: true, has_run: true, ..PLAIN };
/// To resume, where the history has nothing to resume.
const ADOPT: Asked = Asked { resume: true, ..PLAIN };
const RESTART: Asked = Asked { restart: true, ..PLAIN };
const REPLAY: Asked = Asked { replay: true, ..PLAIN };

const DAY: u64 = 24 * 60 * 60;

fn record(outcome: Outcome) -> RunRecord {
    RunRecord {
        run: "2-7".to_owned(),
        logical: "1-7".to_owned(),
        job: "/a.yaml".to_owned(),
        variables: String::new(),
        fingerprint: Some("v2:0".to_owned()),
        process: 7,
        began: 2,
        ended: None,
        outcome,
        message: None,
        rows_read: 0,
        rows_written: 0,
        rows_rejected: 0,
        units: 0,
        predicted: Value::Null,
        report: None,
        program: None,
        moment: None,
        series: None,
        kind: RunKind::Job,
        of_step: None,
        status: None,
    }
}

/// A refusal by its message.
fn refused<T>(result: Result<T>) -> Result<T, String> {
    result.map_err(|error| error.what().to_owned())
}

#[test]
fn the_last_run_says_what_a_run_is() {
    let told = |last: Option<Outcome>, incremental| match refused(start(last.map(record), incremental)) {
        Ok(Start::Fresh) => "fresh".to_owned(),
        Ok(Start::Resumes(last)) => format!("resumes {}", last.logical),
        Ok(Start::AfterTheEnd(last)) => format!("after the end of {}", last.run),
        Err(why) => why,
    };
    let running = "the last run of this job is still running";
    for (last, expected, if_incremental) in [
        (None, "fresh", "fresh"),
        (Some(Outcome::Running), running, running),
        (Some(Outcome::Failed), "resumes 1-7", "resumes 1-7"),
        (Some(Outcome::Interrupted), "resumes 1-7", "resumes 1-7"),
        (Some(Outcome::Killed), "resumes 1-7", "resumes 1-7"),
        (Some(Outcome::Done), "after the end of 2-7", "fresh"),
    ] {
        assert_eq!((told(last, false), told(last, true)), (expected.to_owned(), if_incremental.to_owned()), "{last:?}");
    }
    assert!(refusals::still_running(&record(Outcome::Running)).cause_text().is_some_and(|cause| cause.contains("2-7")));
}

#[test]
fn only_the_same_job_is_resumed() {
    assert_eq!(refused(same_job(Compared::Same, &[])), Ok(()));
    assert_eq!(refused(same_job(Compared::Changed, &[])), Err(refusals::has_changed(&[]).what().to_owned()));
    assert_eq!(refused(same_job(Compared::Newer, &[])), Err(refusals::is_newer().what().to_owned()));
    let named = refusals::has_changed(&["a.py of `t`".to_owned()]);
    assert_eq!(named.cause_text(), Some("the code differs, so its rows may differ: a.py of `t`"));
}

#[test]
fn after_the_end_there_is_nothing_to_do_unless_something_has_changed() {
    let gone = "the last run of this job loaded everything, but its table in t no longer exists";
    let files = "the last run of this job loaded everything, and its files have changed since";
    let job = "the last run of this job loaded everything, and the job has changed since";
    let newer = "the last run of this job was made by a newer version of Millstream";
    for (compared, is_lost, files_changed, expected) in [
        (Compared::Same, false, false, Ok(())),
        (Compared::Same, false, true, Err(files)),
        (Compared::Same, true, true, Err(gone)),
        (Compared::Changed, false, false, Err(job)),
        (Compared::Changed, false, true, Err(job)),
        (Compared::Changed, true, false, Err(gone)),
        (Compared::Newer, true, true, Err(newer)),
    ] {
        let lost = is_lost.then(|| ("o".to_owned(), "its table in t no longer exists".to_owned()));
        let since = SinceTheEnd { compared, lost, files_changed, code_changed: Vec::new() };
        assert_eq!(refused(after_the_end(&since, "a.yaml")), expected.map_err(str::to_owned), "{since:?}");
    }
}

#[test]
fn what_others_have_begun_chunk_by_chunk_is_in_the_way_unless_the_chain_has_passed_it() {
    // The chain began at second 10, and the run that resumes it at second 100.
    for (asked, other, idle_seconds, expected) in [
        (PLAIN, "3000-7", 95, true),
        (ADOPT, "3000-7", 95, true),
        (RESUME, "3000-7", 95, false),
        (RESUME, "3000-7", 90, false),
        // It began before the chain, and has loaded something since.
        (RESUME, "3000-7", 89, true),
        (RESUME, "10001-7", 95, true),
    ] {
        let runs = ["10000-1", "100000-1"];
        assert_eq!(is_in_the_way(other, idle_seconds, runs, asked), expected, "{asked:?} {other} {idle_seconds}");
    }
}

/// The load of another run.
fn load(name: &str, chunks: u64) -> OtherLoad {
    let known = KnownLoad { load: name.to_owned(), chunks, idle_seconds: 1, connections: Vec::new() };
    OtherLoad { known, has_died: false, is_done: false, written: None }
}

/// One whose chunks are all there, or not.
fn written(name: &str, is_complete: bool) -> OtherLoad {
    OtherLoad { written: Some(Written { is_complete, may_be_resumed: Ok(()) }), ..load(name, 3) }
}

fn refusing(name: &str, is_complete: bool, error: Error) -> OtherLoad {
    OtherLoad { written: Some(Written { is_complete, may_be_resumed: Err(error) }), ..load(name, 3) }
}

fn connected(other: OtherLoad) -> OtherLoad {
    let connections = vec!["connection 5".to_owned()];
    OtherLoad { known: KnownLoad { connections, ..other.known }, ..other }
}

fn old(other: OtherLoad) -> OtherLoad {
    OtherLoad { known: KnownLoad { idle_seconds: DAY + 1, ..other.known }, ..other }
}

fn dead(other: OtherLoad) -> OtherLoad {
    OtherLoad { has_died: true, ..other }
}

fn done(other: OtherLoad) -> OtherLoad {
    OtherLoad { is_done: true, ..other }
}

/// A decision in a line: `forget a, b?; resume c; stale d`, with a question mark where only an empty load is forgotten.
fn decided(kind: LoadKind, loads: Vec<OtherLoad>, asked: Asked) -> String {
    let facts =
        Facts { kind, adds_rows: true, loads, target: "table t", resume_command: "`millstream run --resume a.yaml`" };
    let Decision { forget, choice } = decide(facts, asked);
    let forget = forget.into_iter().map(|load| match load {
        Forget::Always(load) => load,
        Forget::Unwritten(load) => format!("{load}?"),
    });
    let forget: Vec<String> = forget.collect();
    let mut parts = Vec::new();
    if !forget.is_empty() {
        parts.push(format!("forget {}", forget.join(", ")));
    }
    match choice {
        Ok(Choice { resumes, stale }) => {
            parts.extend(resumes.map(|load| format!("resume {load}")));
            if !stale.is_empty() {
                parts.push(format!("stale {}", stale.join(", ")));
            }
        }
        Err(error) => parts.push(format!("{}: {}", error.what(), error.cause_text().unwrap_or_default())),
    }
    parts.join("; ")
}

type Case<'a> = (&'a str, fn() -> Vec<OtherLoad>, [&'a str; 4]);

/// Compares what is decided plainly, for a run that the history knows, for one that it does not, and to start again.
fn check(kind: LoadKind, cases: &[Case<'_>]) {
    for (name, loads, expected) in cases {
        for (asked, expected) in [PLAIN, RESUME, ADOPT, RESTART].into_iter().zip(expected) {
            assert_eq!(decided(kind, loads(), asked), *expected, "{name}: {asked:?}");
        }
    }
}

const LOADING: &str = "another run of this job is loading now: connection 5";
const IS_THERE: &str =
    "an earlier run of this job has loaded all of its rows, but is unfinished: table t has its commit marker";
const UNFINISHED: &str = "an earlier run of this job is unfinished: 3 chunks of its rows are in table t";

#[test]
fn of_loads_chunk_by_chunk() {
    let cases: &[Case<'_>] = &[
        ("none", Vec::new, [""; 4]),
        ("empty and dead", || vec![dead(connected(load("a", 0)))], ["forget a?"; 4]),
        ("empty and old", || vec![old(load("a", 0))], ["forget a?"; 4]),
        ("empty", || vec![load("a", 0)], ["", "", "", "forget a"]),
        ("empty and done", || vec![done(load("a", 0))], ["forget a"; 4]),
        ("done", || vec![done(load("a", 3))], ["forget a"; 4]),
        ("done, and its connections still there", || vec![done(connected(load("a", 3)))], ["forget a"; 4]),
        ("complete", || vec![written("a", true)], [IS_THERE, "stale a", "resume a", "forget a"]),
        (
            "two that are complete",
            || vec![written("a", true), written("b", true)],
            [IS_THERE, "stale a, b", "resume b; stale a", "forget a, b"],
        ),
        ("begun", || vec![written("a", false)], [UNFINISHED, UNFINISHED, "resume a", "forget a"]),
        (
            "begun, and its connections are those of a dead run",
            || vec![dead(connected(written("a", false)))],
            [UNFINISHED, UNFINISHED, "resume a", "forget a"],
        ),
        ("connected", || vec![connected(written("a", false))], [LOADING, LOADING, "resume a", "forget a"]),
        (
            "two that are begun",
            || vec![written("a", false), written("b", false)],
            [UNFINISHED, UNFINISHED, UNFINISHED, "forget a, b"],
        ),
        (
            "one of each kind",
            || vec![old(load("a", 0)), done(load("b", 3)), written("c", true), written("d", false)],
            [
                &format!("forget a?, b; {IS_THERE}"),
                &format!("forget a?, b; {UNFINISHED}"),
                "forget a?, b; resume d; stale c",
                "forget a?, b, c, d",
            ],
        ),
        (
            "of another job",
            || vec![refusing("a", false, refusals::has_changed(&[]))],
            [
                UNFINISHED,
                UNFINISHED,
                "the job has changed since the run to be resumed: its sources, columns, steps, their code or targets \
                 differ, so its rows may differ",
                "forget a",
            ],
        ),
        (
            "complete, of a newer version",
            || vec![refusing("a", true, refusals::is_newer())],
            [
                IS_THERE,
                "stale a",
                "the last run of this job was made by a newer version of Millstream: this version cannot find out \
                 whether the job has changed since then",
                "forget a",
            ],
        ),
    ];
    check(LoadKind::ByChunk, cases);
}

#[test]
fn of_loads_all_at_once() {
    let cases: &[Case<'_>] = &[
        ("none", Vec::new, [""; 4]),
        ("begun", || vec![load("a", 0)], ["stale a", "stale a", "resume a", "stale a"]),
        ("connected", || vec![connected(load("a", 0))], [LOADING, LOADING, "resume a", "stale a"]),
        (
            "connected, of a dead run",
            || vec![dead(connected(load("a", 0)))],
            ["stale a", "stale a", "resume a", "stale a"],
        ),
        ("visible", || vec![load("a", 1)], [IS_THERE, "stale a", "resume a", "stale a"]),
        ("visible, and its run is done", || vec![done(load("a", 1))], ["stale a", "stale a", "resume a", "stale a"]),
        (
            "a visible one before one that is begun",
            || vec![load("a", 1), load("b", 0)],
            [IS_THERE, "stale a, b", "resume a; stale b", "stale a, b"],
        ),
        (
            "a visible one behind one that is begun",
            || vec![load("a", 0), load("b", 1)],
            [IS_THERE, "stale a, b", "resume b; stale a", "stale a, b"],
        ),
        (
            "a connected one behind a visible one",
            || vec![load("a", 1), connected(load("b", 0))],
            [IS_THERE, LOADING, LOADING, "stale a, b"],
        ),
    ];
    check(LoadKind::AtOnce, cases);
}

#[test]
fn of_incremental_loads_and_of_replays() {
    check(LoadKind::Incremental, &[("none", Vec::new, [""; 4])]);
    assert_eq!(decided(LoadKind::Round, vec![load("a", 3), connected(load("b", 0))], REPLAY), "forget a, b");
    assert_eq!(decided(LoadKind::AtOnce, vec![load("a", 1), load("b", 0)], REPLAY), "stale a, b");
    assert_eq!(decided(LoadKind::AtOnce, vec![connected(load("a", 1))], REPLAY), LOADING);
}

#[test]
fn what_is_written_is_asked_only_where_it_decides() {
    for (other, asked, expected) in [
        (load("a", 3), PLAIN, true),
        (load("a", 3), RESTART, false),
        (load("a", 0), PLAIN, false),
        (done(load("a", 3)), PLAIN, false),
        (connected(load("a", 0)), ADOPT, true),
        (dead(connected(load("a", 0))), ADOPT, false),
    ] {
        assert_eq!(other.is_open(asked), expected, "{other:?} {asked:?}");
    }
}

#[test]
fn rows_that_no_ledger_knows_are_refused() {
    let (empty, some, all) = (
        Trace { is_empty: true, is_complete: false },
        Trace { is_empty: false, is_complete: false },
        Trace { is_empty: false, is_complete: true },
    );
    for (rows, traces, is_known) in [
        (0, vec![empty], true),
        (5, vec![], true),
        (5, vec![empty], false),
        (5, vec![some], true),
        (5, vec![empty, empty], false),
        (5, vec![empty, some], true),
        (5, vec![empty, all], false),
        (5, vec![some, all], true),
    ] {
        assert_eq!(rows_are_known("1-7", rows, &traces).is_ok(), is_known, "{rows} {traces:?}");
    }
    let error = rows_are_known("1-7", 5, &[empty]).expect_err("they are not known");
    assert!(error.cause_text().is_some_and(|cause| cause.starts_with("run 1-7 has loaded 5 rows")), "{error:?}");
}

#[test]
fn staged_rows_are_used_only_if_they_are_what_this_run_would_stage() {
    let same = Staged { compared: Compared::Same, known_rules: true, same_references: true, same_files: true };
    for (staged, expected) in [
        (same, true),
        (Staged { compared: Compared::Changed, ..same }, false),
        (Staged { compared: Compared::Newer, ..same }, false),
        (Staged { known_rules: false, ..same }, false),
        (Staged { same_references: false, ..same }, false),
        (Staged { same_files: false, ..same }, false),
    ] {
        assert_eq!(staged.can_be_used(), expected, "{staged:?}");
    }
}
