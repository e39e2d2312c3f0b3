//! Tests of occurrences with a real history.

use std::path::Path;
use std::sync::Arc;

use millstream_core::{Error, ErrorKind};

use super::decide::KEPT;
use super::*;
use crate::history::{Ending, JobKey, LiveRun, LogicalRun, RunKind};

const SEQUENCE: &str = "/jobs/nightly.yaml";

fn history(folder: &Path) -> Arc<RunHistory> {
    RunHistory::open(folder).expect("it opens")
}

fn begin(history: &Arc<RunHistory>, run: &str, first: &str) -> LiveRun {
    let logical = LogicalRun { first, moment: 7, series: None, kind: RunKind::Sequence, of_step: None };
    let key = JobKey { path: SEQUENCE.to_owned(), variables: String::new() };
    history.begin(run, logical, &key).expect("it begins")
}

fn new(planned: i64) -> Option<NewOccurrence> {
    Some(NewOccurrence { planned, cause: Some("the time has come".to_owned()) })
}

fn start(planned: i64) -> Decisions {
    Decisions { sequence: SEQUENCE.to_owned(), known: Some(planned), start: new(planned), ..Decisions::default() }
}

fn decide(occurrences: &Occurrences, decisions: Decisions) -> bool {
    occurrences.decide(&[decisions]).expect("decided")[0]
}

fn found(occurrences: &Occurrences, planned: i64) -> Occurrence {
    occurrences.find(SEQUENCE, planned).expect("an answer").expect("there is one")
}

fn claim(occurrences: &Occurrences, planned: i64, run: &LiveRun) -> bool {
    occurrences.claim(SEQUENCE, planned, run).expect("an answer") == Claim::Claimed
}

#[test]
fn an_occurrence_has_one_run() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let history = history(folder.path());
    let occurrences = Occurrences::new(Arc::clone(&history));
    let (first, second) = (begin(&history, "1-1", "1-1"), begin(&history, "2-2", "2-2"));
    assert!(!claim(&occurrences, 100, &first), "nothing was decided");
    assert!(decide(&occurrences, start(100)) && !decide(&occurrences, start(100)), "it starts once");
    assert!(claim(&occurrences, 100, &first) && claim(&occurrences, 100, &first), "the same run may ask again");
    assert!(!claim(&occurrences, 100, &second));
    first.end(None, &Ending::default()).expect("stored");
    drop(first);
    let done = found(&occurrences, 100);
    assert_eq!(
        (done.state, done.outcome, done.run.as_deref()),
        (OccurrenceState::Ended, Some(Outcome::Done), Some("1-1"))
    );
    assert!(!claim(&occurrences, 100, &second), "it is done");
    assert!(!claim(&occurrences, 100, &begin(&history, "3-3", "1-1")), "nothing is left to resume");
    assert!(occurrences.open().expect("an answer").is_empty());
    assert_eq!(occurrences.durations(SEQUENCE, 5).expect("an answer").len(), 1);
    second.withdraw().expect("removed");
    assert!(history.find("2-2").expect("an answer").is_none());
}

#[test]
fn only_a_resume_takes_what_a_dead_run_has_claimed() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let history = history(folder.path());
    let occurrences = Occurrences::new(Arc::clone(&history));
    decide(&occurrences, start(100));
    // One that is killed before it does anything leaves nothing to resume.
    let nothing = begin(&history, "0-0", "0-0");
    assert!(claim(&occurrences, 100, &nothing));
    drop(nothing);
    assert!(!occurrences.has_begun("0-0").expect("an answer"));
    let killed = begin(&history, "1-1", "1-1");
    assert!(claim(&occurrences, 100, &killed));
    killed.loading("xyz", &serde_json::Value::Null).expect("noted");
    assert!(occurrences.has_begun("1-1").expect("an answer"));
    let resumes = begin(&history, "3-3", "1-1");
    assert!(!claim(&occurrences, 100, &resumes), "the first one lives");
    drop(killed);
    assert!(!claim(&occurrences, 100, &begin(&history, "2-2", "2-2")), "it does not resume it");
    assert!(claim(&occurrences, 100, &resumes));
    resumes.loading("xyz", &serde_json::Value::Null).expect("noted");
    assert_eq!(occurrences.of_chain("1-1").expect("an answer").map(|one| one.planned), Some(100));
    // One that failed is resumed, too: by hand.
    resumes.end(Some(&Error::new(ErrorKind::Data, "bad")), &Ending::default()).expect("stored");
    drop(resumes);
    let failed = found(&occurrences, 100);
    assert_eq!((failed.outcome, failed.message.as_deref()), (Some(Outcome::Failed), Some("bad")));
    let again = begin(&history, "4-4", "1-1");
    assert!(claim(&occurrences, 100, &again));
    let runs = found(&occurrences, 100);
    assert_eq!((runs.state, runs.outcome, runs.run.as_deref()), (OccurrenceState::Started, None, Some("4-4")));
    drop(again);
    assert!(occurrences.was_killed(SEQUENCE, 100, "4-4").expect("stored"));
    assert_eq!(found(&occurrences, 100).outcome, Some(Outcome::Killed));
    assert!(!occurrences.was_killed(SEQUENCE, 100, "4-4").expect("an answer"), "it has ended already");
    assert!(claim(&occurrences, 100, &begin(&history, "5-5", "1-1")));
    // What the history has forgotten is started anew.
    history.connection().execute("DELETE FROM runs", []).expect("deleted");
    assert!(claim(&occurrences, 100, &begin(&history, "6-6", "6-6")));
}

#[test]
fn many_claims_at_once_give_one_run() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let occurrences = Occurrences::new(history(folder.path()));
    decide(&occurrences, start(100));
    let one_claim = |number: usize| {
        let history = history(folder.path());
        let name = format!("{number}-1");
        let run = begin(&history, &name, &name);
        (claim(&Occurrences::new(history), 100, &run), run)
    };
    let one_claim = &one_claim;
    let claims: Vec<bool> = std::thread::scope(|scope| {
        let one = |number: usize| scope.spawn(move || one_claim(number));
        let threads: Vec<_> = (0..8).map(one).collect();
        // All live until all have asked.
        let runs: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("a thread")).collect();
        runs.iter().map(|(claimed, _)| *claimed).collect()
    });
    assert_eq!(claims.iter().filter(|claimed| **claimed).count(), 1, "{claims:?}");
}

#[test]
fn what_waits_starts_or_is_skipped_once() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let occurrences = Occurrences::new(history(folder.path()));
    let of = |decisions: Decisions| decide(&occurrences, Decisions { sequence: SEQUENCE.to_owned(), ..decisions });
    let skip = |planned| vec![SkippedTime { planned, why: "a later one waits".to_owned() }];
    of(Decisions { known: Some(100), queued: new(100), ..Decisions::default() });
    of(Decisions { known: Some(200), queued: new(200), skipped: skip(100), ..Decisions::default() });
    assert_eq!(found(&occurrences, 100).state, OccurrenceState::Skipped);
    assert!(of(Decisions { start: new(200), ..Decisions::default() }));
    assert!(!of(Decisions { start: new(100), ..Decisions::default() }), "it was skipped");
    of(Decisions { skipped: skip(200), ..Decisions::default() });
    let started = found(&occurrences, 200);
    assert_eq!((started.state, started.cause.as_deref()), (OccurrenceState::Started, Some("the time has come")));
    assert!(occurrences.withdraw(SEQUENCE, 200, "cancelled").expect("stored"));
    assert!(!occurrences.fail(SEQUENCE, 200, "exit code 2").expect("an answer"), "it is skipped");
    assert_eq!(occurrences.known(SEQUENCE).expect("an answer"), Known { known: Some(200), followed: None });
    assert_eq!(occurrences.behind(SEQUENCE, 100).expect("an answer"), [200]);
    assert_eq!(occurrences.known("/other.yaml").expect("an answer"), Known::default());
}

#[test]
fn what_cannot_begin_has_failed_and_cannot_be_claimed() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let history = history(folder.path());
    let occurrences = Occurrences::new(Arc::clone(&history));
    decide(&occurrences, start(100));
    assert!(occurrences.again(SEQUENCE, 100).expect("stored"));
    assert!(occurrences.fail(SEQUENCE, 100, "exit code 2").expect("stored"));
    assert!(!claim(&occurrences, 100, &begin(&history, "1-1", "1-1")));
    let failed = found(&occurrences, 100);
    assert_eq!((failed.outcome, failed.attempts), (Some(Outcome::Failed), 1));
    assert!(
        occurrences.is_late(SEQUENCE, 100, 5).expect("noted") && !occurrences.is_late(SEQUENCE, 100, 6).expect("known")
    );
    assert_eq!(found(&occurrences, 100).late, Some(5));
}

#[test]
fn missed_times_in_a_row_are_one_span() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let occurrences = Occurrences::new(history(folder.path()));
    let miss = |first: i64, last: i64, count: i64, why: &str| {
        let missed = vec![MissedTimes { first, last, count, why: why.to_owned() }];
        let sequence = SEQUENCE.to_owned();
        decide(&occurrences, Decisions { sequence, known: Some(last), missed, ..Decisions::default() });
    };
    miss(10, 30, 3, "too old");
    miss(40, 50, 2, "too old");
    miss(60, 60, 1, "not the last");
    decide(&occurrences, start(70));
    miss(80, 80, 1, "not the last");
    let found = occurrences.missed(SEQUENCE, 10).expect("an answer");
    let found: Vec<(i64, i64, i64)> = found.iter().map(|one| (one.first, one.last, one.count)).collect();
    assert_eq!(found, [(80, 80, 1), (60, 60, 1), (10, 50, 5)]);
}

#[test]
fn arrivals_are_kept_with_their_start() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let occurrences = Occurrences::new(history(folder.path()));
    let arrival = |file: &str, modified| Arrival { file: file.to_owned(), modified, size: 3 };
    let arrivals = vec![arrival("/in/a", 1), arrival("/in/b", 1)];
    decide(&occurrences, Decisions { arrivals: arrivals.clone(), followed: Some(4), ..start(100) });
    assert_eq!(occurrences.arrivals(SEQUENCE).expect("an answer"), arrivals);
    decide(&occurrences, Decisions { arrivals: vec![arrival("/in/a", 2)], ..start(200) });
    let now = arrivals_after(&occurrences, 0);
    assert_eq!(now, [arrival("/in/a", 2), arrival("/in/b", 1)], "what is gone for a short time stays");
    assert_eq!(arrivals_after(&occurrences, i64::MAX), [arrival("/in/b", 1)]);
    assert_eq!(occurrences.known(SEQUENCE).expect("an answer"), Known { known: Some(200), followed: Some(4) });
}

/// The arrivals, once `/in/a` was gone at `now`.
fn arrivals_after(occurrences: &Occurrences, now: i64) -> Vec<Arrival> {
    occurrences.forget_arrivals(SEQUENCE, &["/in/a".to_owned()], now).expect("forgotten");
    occurrences.arrivals(SEQUENCE).expect("an answer")
}

#[test]
fn runs_are_followed_in_their_order() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let history = history(folder.path());
    let occurrences = Occurrences::new(Arc::clone(&history));
    assert_eq!(occurrences.last_place().expect("an answer"), 0);
    let (done, killed, runs) =
        (begin(&history, "1-1", "1-1"), begin(&history, "2-2", "2-2"), begin(&history, "3-3", "3-3"));
    done.end(None, &Ending::default()).expect("stored");
    drop((done, killed));
    let found = occurrences.runs_behind(SEQUENCE, 0).expect("an answer");
    let outcomes: Vec<Outcome> = found.iter().map(|run| run.outcome).collect();
    assert_eq!(outcomes, [Outcome::Done, Outcome::Killed, Outcome::Running]);
    assert_eq!((found[0].moment, occurrences.last_place().expect("an answer")), (7, found[2].place));
    assert_eq!(occurrences.runs_behind(SEQUENCE, found[1].place).expect("an answer").len(), 1);
    drop(runs);
}

#[test]
fn the_oldest_are_forgotten_and_open_ones_stay() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let occurrences = Occurrences::new(history(folder.path()));
    let skip = |planned| SkippedTime { planned, why: "another one runs".to_owned() };
    let skipped = (2..=KEPT + KEPT / 10).map(skip).collect();
    decide(&occurrences, Decisions { skipped, ..start(1) });
    assert!(occurrences.delete_oldest(SEQUENCE).expect("an answer").is_empty());
    decide(
        &occurrences,
        Decisions { sequence: SEQUENCE.to_owned(), skipped: vec![skip(9_000)], ..Decisions::default() },
    );
    let deleted = occurrences.delete_oldest(SEQUENCE).expect("an answer");
    assert_eq!((deleted.len() as i64, deleted.first()), (KEPT / 10, Some(&2)));
    assert_eq!(occurrences.open().expect("an answer").len(), 1);
    assert_eq!(occurrences.last(SEQUENCE, 1).expect("an answer")[0].planned, 9_000);
}

#[test]
fn another_process_that_writes_is_noticed() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let (ours, others) = (Occurrences::new(history(folder.path())), Occurrences::new(history(folder.path())));
    let before = ours.version().expect("a number");
    decide(&ours, start(100));
    assert_eq!(ours.version().expect("a number"), before, "our own changes are known");
    decide(&others, start(200));
    assert_ne!(ours.version().expect("a number"), before);
}
