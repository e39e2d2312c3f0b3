//! Starts by the time, and what becomes of them.

use millstream_scheduler::End;
use millstream_state::history::Outcome;
use millstream_state::occurrences::Decisions;

use crate::world::{World, utc};

const NIGHTLY: &str = "cron: 0 2 * * *";
const MINUTELY: &str = "cron: '* * * * *'";

#[test]
fn a_sequence_starts_at_its_time_and_once() {
    let world = World::at("2026-03-01T01:59");
    world.sequence("nightly", NIGHTLY, "");
    let runs = world.scheduler();
    runs.wait_for("scheduled nightly 2026-03-01T02:00");
    assert!(world.outcomes("nightly").is_empty(), "it is not time");
    world.set_clock("2026-03-01T02:00");
    world.wait_for("nightly", &["2026-03-01T02:00 done"]);
    runs.wait_for("done nightly 2026-03-01T02:00: ");
    world.set_clock("2026-03-02T02:00:30");
    world.wait_for("nightly", &["2026-03-01T02:00 done", "2026-03-02T02:00 done"]);
    // The run says that it is done before the scheduler has heard of it.
    runs.wait_for("done nightly 2026-03-02T02:00: ");
    assert!(runs.has_told("clock 2026-03-01T02:00 2026-03-02T02:00"), "{:?}", runs.told());
    assert_eq!(runs.stop(), End::Stopped { running: 0 });
    let began = world.trace().iter().filter(|line| line.starts_with("began")).count();
    assert_eq!(began, 2, "{:?}", world.trace());
}

#[test]
fn failures_are_told_with_what_is_known_of_them() {
    let world = World::at("2026-03-01T02:00");
    world.sequence("bad", NIGHTLY, "fail");
    world.sequence("broken", NIGHTLY, "refuse");
    world.set_clock("2026-03-02T02:00");
    let runs = world.scheduler();
    runs.wait_for("failed bad 2026-03-02T02:00: the data is bad");
    runs.wait_for("failed broken 2026-03-02T02:00: it could not begin: exit code 2 with a log");
    world.wait_for("broken", &["2026-03-02T02:00 failed"]);
    // What failed does not start again by itself, after a restart either.
    drop(runs);
    let runs = world.scheduler();
    world.set_clock("2026-03-03T02:00");
    world.wait_for("bad", &["2026-03-02T02:00 failed", "2026-03-03T02:00 failed"]);
    drop(runs);
}

#[test]
fn a_program_that_is_not_there_fails_its_occurrences() {
    let world = World::at("2026-03-01T02:00");
    world.sequence("nightly", NIGHTLY, "");
    world.set_clock("2026-03-02T02:00");
    let mut options = world.options();
    options.program = world.path("nothing");
    let runs = world.scheduler_with(options);
    runs.wait_for("failed nightly 2026-03-02T02:00: its process cannot be started");
}

#[test]
fn overlapping_times_follow_their_rule() {
    let world = World::at("2026-03-01T00:00");
    for rule in ["skip", "queue", "cancel"] {
        world.sequence(rule, &format!("{MINUTELY}, overlap: {rule}"), &format!("wait go-{rule}"));
    }
    let runs = world.scheduler();
    world.set_clock("2026-03-01T00:01");
    for rule in ["skip", "queue", "cancel"] {
        world.wait_for_trace(&format!("began {rule} 2026-03-01T00:01"));
    }
    world.set_clock("2026-03-01T00:02");
    world.wait_for("skip", &["2026-03-01T00:01 started", "2026-03-01T00:02 skipped"]);
    world.wait_for("queue", &["2026-03-01T00:01 started", "2026-03-01T00:02 queued"]);
    world.wait_for("cancel", &["2026-03-01T00:01 interrupted", "2026-03-01T00:02 started"]);
    assert!(runs.has_told("cancelled cancel 2026-03-01T00:01"), "{:?}", runs.told());
    world.set_clock("2026-03-01T00:03");
    world.wait_for("queue", &["2026-03-01T00:01 started", "2026-03-01T00:02 skipped", "2026-03-01T00:03 queued"]);
    world.release("go-queue");
    let done = ["2026-03-01T00:01 done", "2026-03-01T00:02 skipped", "2026-03-01T00:03 done"];
    world.wait_for("queue", &done);
    world.release("go-skip");
    world.release("go-cancel");
}

#[test]
fn clocks_that_jump_repeat_nothing_and_lose_nothing_silently() {
    let world = World::at("2026-03-01T00:00");
    world.sequence("last", MINUTELY, "");
    world.sequence("none", &format!("{MINUTELY}, catch_up: none"), "");
    world.sequence("all", "cron: '*/10 * * * *', catch_up: all", "");
    let runs = world.scheduler();
    world.set_clock("2026-03-01T00:10");
    world.wait_for("last", &["2026-03-01T00:10 done"]);
    world.wait_for("none", &["2026-03-01T00:10 done"]);
    world.wait_for("all", &["2026-03-01T00:10 done"]);
    runs.wait_for("missed last 2026-03-01T00:01 9");
    runs.wait_for("missed none 2026-03-01T00:01 9");
    // Back, and through the same times again.
    world.set_clock("2026-03-01T00:05:30");
    runs.wait_for("clock 2026-03-01T00:10 2026-03-01T00:05");
    world.set_clock("2026-03-01T00:06");
    world.wait_for("last", &["2026-03-01T00:06 done", "2026-03-01T00:10 done"]);
    world.set_clock("2026-03-01T00:10");
    world.set_clock("2026-03-01T00:11");
    let last = ["2026-03-01T00:06 done", "2026-03-01T00:10 done", "2026-03-01T00:11 done"];
    world.wait_for("last", &last);
    world.set_clock("2026-03-01T00:45");
    let all = ["10", "20", "30", "40"].map(|minute| format!("2026-03-01T00:{minute} done"));
    world.wait_for("all", &all.each_ref().map(String::as_str));
    let began: Vec<String> = world.trace().into_iter().filter(|line| line.starts_with("began")).collect();
    let mut named: Vec<&str> = began.iter().map(|line| line.rsplit_once(' ').expect("a process").0).collect();
    let count = named.len();
    named.sort_unstable();
    named.dedup();
    assert_eq!(named.len(), count, "each began once: {began:?}");
}

#[test]
fn children_survive_their_scheduler_and_are_found_again() {
    let world = World::at("2026-03-01T00:00");
    world.sequence("long", NIGHTLY, "wait go");
    world.sequence("gone", NIGHTLY, "wait gone-go");
    world.set_clock("2026-03-01T02:00");
    let runs = world.scheduler();
    for name in ["long", "gone"] {
        world.wait_for_trace(&format!("began {name}"));
    }
    runs.wait_for("started gone");
    assert_eq!(runs.stop(), End::Stopped { running: 2 });
    world.release("gone-go");
    world.wait_for("gone", &["2026-03-01T02:00 done"]);
    let runs = world.scheduler();
    runs.wait_for("found long 2026-03-01T02:00");
    assert!(!runs.has_told("done gone") && !runs.has_told("found gone"), "it has ended: {:?}", runs.told());
    world.release("go");
    runs.wait_for("done long 2026-03-01T02:00");
    let began = world.trace().iter().filter(|line| line.starts_with("began")).count();
    assert_eq!(began, 2, "{:?}", world.trace());
}

#[test]
fn runs_of_earlier_schedulers_take_slots() {
    let world = World::at("2026-03-01T00:00");
    for name in ["a", "b", "c"] {
        world.sequence(name, NIGHTLY, "wait go");
    }
    world.set_clock("2026-03-01T02:00");
    let two = || millstream_scheduler::Options { parallel: 2, ..world.options() };
    let runs = world.scheduler_with(two());
    world.wait_for_trace("began a");
    world.wait_for_trace("began b");
    assert_eq!(runs.stop(), End::Stopped { running: 2 });
    let runs = world.scheduler_with(two());
    runs.wait_for("found a");
    runs.wait_for("found b");
    world.sequence("d", "cron: 0 3 * * *", "");
    assert!(!world.has_traced("began c"), "two run");
    world.release("go");
    for name in ["a", "b", "c"] {
        world.wait_for(name, &["2026-03-01T02:00 done"]);
    }
    drop(runs);
}

#[test]
fn what_was_decided_and_not_started_is_started_by_the_next_one() {
    let world = World::at("2026-03-01T00:00");
    world.sequence("nightly", NIGHTLY, "");
    let sequence = world.path("nightly.yaml").to_string_lossy().into_owned();
    let planned = utc("2026-03-01T02:00").timestamp_millis();
    let start = millstream_state::occurrences::NewOccurrence { planned, cause: None };
    let decisions = Decisions { sequence, known: Some(planned), start: Some(start), ..Decisions::default() };
    world.occurrences().decide(&[decisions]).expect("decided");
    world.set_clock("2026-03-01T02:05");
    let _runs = world.scheduler();
    world.wait_for("nightly", &["2026-03-01T02:00 done"]);
}

#[test]
fn a_second_scheduler_is_refused() {
    let world = World::at("2026-03-01T00:00");
    world.sequence("nightly", NIGHTLY, "");
    let first = world.scheduler();
    first.wait_for("scheduled");
    let mut second = world.scheduler();
    assert_eq!(second.end(), End::Refused { process: std::process::id().to_string() });
    assert!(second.told().is_empty());
    first.stop();
    let third = world.scheduler();
    third.wait_for("scheduled");
}

#[test]
fn files_that_break_change_and_go() {
    let world = World::at("2026-03-01T00:00");
    world.sequence("a", MINUTELY, "");
    world.sequence("b", "cron: '0 25 * * *'", "");
    world.write("none.yaml", "steps:\n  a: {job: a.job}\n");
    world.write("deep/er/c.yml", "schedule: {cron: '@daily'}\nsteps: {a: {job: a.job}}\n");
    world.write(".hidden/d.yaml", "schedule: {cron: '@daily'}\nsteps: {a: {job: a.job}}\n");
    let runs = world.scheduler();
    runs.wait_for("scheduled a");
    runs.wait_for("scheduled c");
    runs.wait_for("broken b: the hour cannot be `25`");
    assert!(!runs.has_told("scheduled d") && !runs.has_told("none"), "{:?}", runs.told());
    world.write("a.yaml", "schedule: {cron: '* * * * *'\nsteps:\n  a: {job: a.job}\n");
    runs.wait_for("broken a");
    world.set_clock("2026-03-01T00:01");
    world.sequence("b", MINUTELY, "");
    runs.wait_for("scheduled b");
    world.set_clock("2026-03-01T00:02");
    world.wait_for("b", &["2026-03-01T00:02 done"]);
    assert!(world.outcomes("a").is_empty(), "the last good version does not run on");
    fs_err::remove_file(world.path("b.yaml")).expect("removed");
    runs.wait_for("gone b");
    let broken = runs.told().iter().filter(|line| line.starts_with("broken a")).count();
    assert_eq!(broken, 1, "{:?}", runs.told());
}

#[test]
fn times_before_the_file_was_changed_do_not_count() {
    let world = World::at("2026-03-05T12:00");
    world.sequence("nightly", NIGHTLY, "");
    world.set_clock("2026-03-05T13:00");
    let runs = world.scheduler();
    runs.wait_for("scheduled nightly 2026-03-06T02:00");
    world.set_clock("2026-03-06T02:00");
    world.wait_for("nightly", &["2026-03-06T02:00 done"]);
    world.set_clock("2026-03-04T00:00");
    runs.wait_for("clock 2026-03-06T02:00 2026-03-04T00:00");
    world.set_clock("2026-03-06T02:00");
    world.set_clock("2026-03-07T02:00");
    world.wait_for("nightly", &["2026-03-06T02:00 done", "2026-03-07T02:00 done"]);
}

#[test]
fn once_runs_what_is_due_and_ends() {
    let world = World::at("2026-03-01T00:00");
    world.sequence("all", "cron: '*/10 * * * *', catch_up: all", "");
    world.sequence("last", "cron: '*/10 * * * *'", "");
    world.sequence("bad", NIGHTLY, "fail");
    world.sequence("follows", "after: last.yaml", "");
    let once = || millstream_scheduler::Options { once: true, ..world.options() };
    let end = |runs: crate::world::Runs| {
        let mut runs = runs;
        runs.end()
    };
    assert_eq!(end(world.scheduler_with(once())), End::Done { failed: 0 });
    assert!(world.outcomes("all").is_empty());
    world.set_clock("2026-03-01T00:35");
    assert_eq!(end(world.scheduler_with(once())), End::Done { failed: 0 });
    let done = ["10", "20", "30"].map(|minute| format!("2026-03-01T00:{minute} done"));
    assert_eq!(world.outcomes("all"), done);
    assert_eq!(world.outcomes("last"), ["2026-03-01T00:30 done"]);
    assert_eq!(world.outcomes("follows"), ["2026-03-01T00:30 done"]);
    world.set_clock("2026-03-01T02:00");
    assert_eq!(end(world.scheduler_with(once())), End::Done { failed: 1 });
    assert_eq!(end(world.scheduler_with(once())), End::Done { failed: 0 }, "nothing more is due");
}

#[test]
fn a_deadline_that_will_be_missed_is_told_in_time_and_once() {
    let world = World::at("2026-03-01T00:00");
    world.sequence("nightly", &format!("{NIGHTLY}, deadline: 03:00"), "wait go");
    world.sequence("first", NIGHTLY, "wait go");
    // Runs that took 40 minutes.
    let (occurrences, sequence) = (world.occurrences(), world.path("nightly.yaml").to_string_lossy().into_owned());
    let history = occurrences.history();
    for day in 1..=3 {
        let planned = utc(&format!("2026-02-0{day}T02:00")).timestamp_millis();
        let start = Some(millstream_state::occurrences::NewOccurrence { planned, cause: None });
        let known = Some(planned);
        let decided = Decisions { sequence: sequence.clone(), known, start, ..Decisions::default() };
        occurrences.decide(&[decided]).expect("decided");
        let name = format!("{day}-1");
        let logical = millstream_state::LogicalRun {
            first: &name,
            moment: planned,
            series: None,
            kind: millstream_state::RunKind::Sequence,
            of_step: None,
        };
        let key = millstream_state::JobKey { path: sequence.clone(), variables: String::new() };
        let run = history.begin(&name, logical, &key).expect("it begins");
        occurrences.claim(&sequence, planned, &run).expect("claimed");
        run.end(None, &millstream_state::Ending::default()).expect("stored");
    }
    let file = rusqlite::Connection::open(world.path("state/runs.db")).expect("a database");
    file.execute("UPDATE occurrences SET ended = claimed + 2400000", []).expect("changed");
    world.set_clock("2026-03-01T02:00");
    // The child's claim is at the time of the machine, which is later than that of the test: so it waits for a slot.
    let runs = world.scheduler_with(millstream_scheduler::Options { parallel: 1, ..world.options() });
    world.wait_for_trace("began first");
    world.set_clock("2026-03-01T02:19");
    // It has looked at the time once it has looked at a file.
    world.sequence("other", "cron: 0 4 * * *", "");
    runs.wait_for("scheduled other");
    assert!(!runs.has_told("late nightly"), "there is time: {:?}", runs.told());
    world.set_clock("2026-03-01T02:21");
    runs.wait_for("late nightly 2026-03-01T02:00 for 2026-03-01T03:00, ends 2026-03-01T03:01");
    world.set_clock("2026-03-01T03:30");
    world.release("go");
    world.wait_for("first", &["2026-03-01T02:00 done"]);
    let late = runs.told().iter().filter(|line| line.starts_with("late nightly")).count();
    assert_eq!(late, 1, "{:?}", runs.told());
    assert!(world.all("nightly")[0].late.is_some());
}

#[test]
fn a_run_that_was_killed_is_resumed_as_often_as_the_schedule_says() {
    let world = World::at("2026-03-01T00:00");
    world.sequence("nightly", &format!("{NIGHTLY}, resume: 1"), "wait go");
    world.set_clock("2026-03-01T02:00");
    let runs = world.scheduler();
    world.wait_for_trace("began nightly");
    kill(&world, 0);
    runs.wait_for("resumed nightly 2026-03-01T02:00");
    crate::world::eventually("two began", || began(&world).len() == 2, || format!("{:?}", world.trace()));
    kill(&world, 1);
    world.wait_for("nightly", &["2026-03-01T02:00 killed"]);
    assert_eq!(world.all("nightly")[0].outcome, Some(Outcome::Killed));
    runs.wait_for("killed nightly");
}

/// The processes of the runs that began.
fn began(world: &World) -> Vec<String> {
    let lines = world.trace().into_iter().filter(|line| line.starts_with("began"));
    lines.map(|line| line.rsplit(' ').next().expect("a process").to_owned()).collect()
}

fn kill(world: &World, index: usize) {
    let status = std::process::Command::new("kill").args(["-9", &began(world)[index]]).status();
    assert!(status.expect("kill").success());
}
