//! A sequence that is resumed at each step, with jobs that load each row once; kills at random moments.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::{lab, outcomes, rows, step};
use crate::use_support::finish;

/// Three loads one after the other; each job can be made to fail.
const CHAIN: &str = "parameters: {DAY: '${now | %H%M%S}'}\nsteps:\n  one: {job: load.yaml, set: {TAG: one}}\n  two: \
                     {job: other.yaml, set: {TAG: 'two-${DAY}'}, needs: one}\n  three: {job: load.yaml, set: {TAG: \
                     three}, needs: two}\n  log: {command: [sh, -c, 'echo ${DAY} >> log'], needs: three}\n";

fn other(input: &str) -> String {
    super::LOAD.replace("read: in.csv", &format!("read: [in.csv, {input}]"))
}

#[test]
fn a_run_goes_on_at_what_failed_with_its_dates() {
    let lab = lab(CHAIN);
    lab.file("other.yaml", other("more.csv"));
    let failed = lab.run(&["run", "nightly.yaml", "--json"]);
    failed.ended(1).says(&["two: failed:", "more.csv", "millstream run --resume nightly.yaml` continues there"]);
    assert_eq!(outcomes(&failed), ["one=success", "two=failed", "three=not_run", "log=not_run"]);
    lab.file("more.csv", "id\n4\n");
    std::thread::sleep(Duration::from_millis(1100));
    let ran = lab.run(&["run", "--resume", "nightly.yaml", "--json"]);
    ran.ok();
    let report = ran.json();
    assert_eq!((&report["logical"], &report["parameters"]), (&failed.json()["run"], &failed.json()["parameters"]));
    let tag = format!("two-{}", report["parameters"]["DAY"].as_str().expect("a day"));
    let found = rows(&lab, "SELECT tag, count(*) FROM t GROUP BY tag ORDER BY tag");
    assert_eq!(found, [["one", "3"], ["three", "3"], [tag.as_str(), "4"]]);
    // There is nothing left to do.
    lab.run(&["run", "--resume", "nightly.yaml"]).ok().says(&["nothing to do"]);
    assert_eq!(lab.read("log").lines().count(), 1);
    // Another run is another one.
    lab.run(&["run", "nightly.yaml"]).ok();
    assert_eq!(rows(&lab, "SELECT count(*) FROM t WHERE tag = 'one'"), [["6"]]);
}

#[test]
fn items_that_are_done_are_not_done_again() {
    let lab = lab("steps:\n  each: {job: load.yaml, set: {TAG: '${V}', FILE: '${V}.csv'}, for_each: {V: [a, b, c]}}\n");
    lab.file("load.yaml", super::LOAD.replace("in.csv", "${FILE}"));
    for name in ["a.csv", "c.csv"] {
        lab.file(name, "id\n1\n");
    }
    lab.run(&["run", "nightly.yaml"]).ended(1).says(&["each b: failed", "b.csv"]);
    lab.file("b.csv", "id\n1\n");
    lab.run(&["run", "nightly.yaml", "--resume", "--dry-run"]).ok().prints(&["goes on: 2 of 3 items are done"]);
    lab.run(&["run", "--resume", "nightly.yaml"]).ok();
    assert_eq!(
        rows(&lab, "SELECT tag, count(*) FROM t GROUP BY tag ORDER BY tag"),
        [["a", "1"], ["b", "1"], ["c", "1"]]
    );
}

#[test]
fn a_step_can_be_begun_anew() {
    let lab = lab(CHAIN);
    lab.file("other.yaml", super::LOAD);
    lab.run(&["run", "nightly.yaml"]).ok();
    lab.run(&["run", "nightly.yaml", "--restart=three"]).ok();
    let found = rows(&lab, "SELECT substr(tag, 1, 3), count(*) FROM t GROUP BY 1 ORDER BY 1");
    assert_eq!(found, [["one", "3"], ["thr", "6"], ["two", "3"]], "three has added its rows once more");
    let log = lab.read("log");
    let lines: Vec<&str> = log.lines().collect();
    assert!(lines.len() == 2 && lines[0] == lines[1], "the same logical run: {log}");
}

#[test]
fn a_job_that_has_changed_begins_anew_unless_something_was_published() {
    let lab = lab("steps:\n  load: {job: load.yaml, set: {TAG: x}}\n");
    // It fails before anything is loaded.
    lab.file("load.yaml", super::LOAD.replace("read: in.csv", "read: [in.csv, no.csv]"));
    lab.run(&["run", "nightly.yaml"]).ended(1);
    lab.file("load.yaml", super::LOAD);
    lab.run(&["run", "--resume", "nightly.yaml"]).ok();
    assert_eq!(rows(&lab, "SELECT count(*) FROM t"), [["3"]]);
}

/// A step whose last part was noted, and not that it is over, is over; what needs it runs.
#[test]
fn a_kill_between_the_end_of_a_part_and_that_of_its_step_leaves_nothing_out() {
    let steps = [
        "one: {job: load.yaml, set: {TAG: one}}",
        "one: {job: load.yaml, set: {TAG: '${V}'}, for_each: {V: [one]}}",
        "one: {query: SELECT 1 AS n, from: 'sqlite:other.db'}",
    ];
    for one in steps {
        let lab = lab(&format!("steps:\n  {one}\n  end: {{command: [touch, end], needs: one}}\n"));
        rusqlite::Connection::open(lab.path("other.db")).and_then(|it| it.execute_batch("VACUUM")).expect("a database");
        let mut command = lab.command(&["run", "nightly.yaml"]);
        command.env("MILLSTREAM_FAIL_AT", "part.ended");
        let killed = command.output().expect("it starts").status;
        assert_eq!(killed.signal(), Some(9), "{one}");
        assert!(!lab.path("end").exists());
        let ran = lab.run(&["run", "--resume", "nightly.yaml", "--json"]);
        ran.ok();
        assert_eq!(outcomes(&ran), ["one=success", "end=success"], "{one}");
        assert!(lab.path("end").exists(), "{one}");
    }
}

/// Kills the sequence at random moments, with all of its processes, until it gets to its end.
#[test]
fn kills_at_random_moments_lose_and_double_nothing() {
    let lab = lab(
        "steps:\n  one: {job: load.yaml, set: {TAG: one}}\n  each: {job: load.yaml, set: {TAG: '${V}'}, needs: one, \
         for_each: {V: [a, b, c, d]}, parallel: 2}\n  two: {job: load.yaml, set: {TAG: two}, needs: each}\n",
    );
    let lines: String = (0..2000).map(|id| format!("{id}\n")).collect();
    lab.file("in.csv", format!("id\n{lines}"));
    let mut seed = u64::from(std::process::id());
    let mut kills = 0;
    loop {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut command = lab.command(&["run", "--resume", "nightly.yaml"]);
        command.env("MILLSTREAM_CHUNK_BYTES", "2000").stderr(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        let end = Instant::now() + Duration::from_millis(100 + (seed >> 33) % 900);
        let ended = loop {
            match child.try_wait().expect("it can be asked") {
                Some(status) => break Some(status),
                None if Instant::now() >= end && kills < 12 => break None,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        match ended {
            Some(status) => {
                assert!(status.success(), "{status} after {kills} kills");
                break;
            }
            None => {
                child.kill().expect("it is killed");
                child.wait().expect("it ends");
                kills += 1;
            }
        }
    }
    eprintln!("{kills} kills");
    let found = rows(&lab, "SELECT tag, count(*), count(DISTINCT id) FROM t GROUP BY tag ORDER BY tag");
    let expected =
        ["a", "b", "c", "d", "one", "two"].map(|tag| vec![tag.to_owned(), "2000".to_owned(), "2000".to_owned()]);
    assert_eq!(found, expected);
    let report = lab.run(&["run", "--resume", "nightly.yaml", "--json"]).ok().json();
    assert_eq!(step(&report, "two")["outcome"], "success");
}

/// A step that is to be done once more is done, however many runs it takes to get there.
#[test]
fn what_is_to_be_done_once_more_is_not_forgotten() {
    let lab = lab(
        "steps:\n  a: {command: [sh, -c, 'test ! -e stop']}\n  b: {job: load.yaml, set: {TAG: b}, needs: a}\n  c: \
         {command: ['false'], needs: b}\n",
    );
    lab.run(&["run", "nightly.yaml"]).ended(1);
    lab.file("stop", "");
    lab.run(&["run", "nightly.yaml", "--restart=a"]).ended(1).says(&["a: failed", "b: not run"]);
    fs_err::remove_file(lab.path("stop")).expect("removed");
    lab.run(&["run", "--resume", "nightly.yaml"]).ended(1).says(&["b: done", "3 rows written"]);
    assert_eq!(rows(&lab, "SELECT count(*) FROM t"), [["6"]], "both rounds");
}

#[test]
fn a_nested_sequence_that_was_edited_keeps_what_is_done() {
    let lab = lab("steps:\n  shop: {sequence: shop.yaml}\n");
    let shop = "steps:\n  load: {job: load.yaml, set: {TAG: x}}\n  publish: {command: ['false'], needs: load}\n";
    lab.file("shop.yaml", shop);
    lab.run(&["run", "nightly.yaml"]).ended(1).says(&["shop: failed: the step `publish` has failed"]);
    lab.file("shop.yaml", shop.replace("'false'", "'true'"));
    lab.run(&["run", "--resume", "nightly.yaml"]).ok();
    assert_eq!(rows(&lab, "SELECT count(*) FROM t"), [["3"]]);
    lab.run(&["run", "nightly.yaml", "--restart=shop"]).ok();
    assert_eq!(rows(&lab, "SELECT count(*) FROM t"), [["6"]]);
}

#[test]
fn steps_that_run_alone_are_nothing_to_continue() {
    let lab = lab("steps:\n  a: {command: [touch, a]}\n  b: {command: [sh, -c, 'test -e go'], needs: a}\n");
    lab.run(&["run", "nightly.yaml"]).ended(1);
    lab.run(&["run", "nightly.yaml", "--only", "a"]).ok();
    lab.run(&["run", "--resume", "nightly.yaml"]).ended(1).says(&["b: failed"]);
    lab.file("go", "");
    lab.run(&["run", "--resume", "nightly.yaml"]).ok().says(&["b: done"]);
}

#[test]
fn items_are_those_of_now_and_values_that_have_changed_are_refused() {
    let each = |items: &str| {
        format!(
            "steps:\n  each: {{job: load.yaml, set: {{TAG: '${{V}}', FILE: '${{V}}.csv'}}, for_each: {{V: \
             {items}}}}}\n"
        )
    };
    let lab = lab(&each("[a, b]"));
    lab.file("load.yaml", super::LOAD.replace("in.csv", "${FILE}"));
    lab.file("a.csv", "id\n1\n");
    lab.run(&["run", "nightly.yaml"]).ended(1).says(&["each b: failed"]);
    lab.file("b.csv", "id\n1\n");
    lab.file("c.csv", "id\n1\n");
    lab.file("nightly.yaml", each("[c, b, a]"));
    lab.run(&["run", "--resume", "nightly.yaml"]).ok();
    assert_eq!(
        rows(&lab, "SELECT tag, count(*) FROM t GROUP BY tag ORDER BY tag"),
        [["a", "1"], ["b", "1"], ["c", "1"]]
    );
}

#[test]
fn a_job_that_is_deleted_between_two_attempts_is_resumed() {
    let lab = lab(
        "steps:\n  load: {job: jobs/../load.yaml, set: {TAG: x}, retries: {count: 5, wait: 1s}}\n  gone: {command: \
         [sh, -c, 'while ! test -e .state/sequences/*/load.log; do sleep 0.05; done; rm load.yaml; echo id > \
         more.csv; echo 4 >> more.csv']}\n",
    );
    fs_err::create_dir(lab.path("jobs")).expect("a folder");
    lab.file("load.yaml", super::LOAD.replace("read: in.csv", "read: [in.csv, more.csv]"));
    let ran = lab.run(&["run", "nightly.yaml", "--json"]);
    ran.ok();
    assert!(step(&ran.json(), "load")["parts"][0]["attempts"].as_u64() > Some(1), "{}", ran.stdout);
    assert_eq!(rows(&lab, "SELECT count(*) FROM t"), [["4"]]);
}

/// A run that was refused for what a killed one has left does not stand before that: it is resumed, and each row is
/// there once.
#[test]
fn a_run_that_came_to_nothing_is_not_the_one_that_is_resumed() {
    let lab = lab("steps:\n  load: {job: load.yaml, set: {TAG: x}}\n  end: {command: ['true'], needs: load}\n");
    lab.file("load.yaml", super::LOAD.replace("in.csv", "'part-*.csv'"));
    for part in 0..20 {
        let lines: String = (part * 100..part * 100 + 100).map(|id| format!("{id}\n")).collect();
        lab.file(&format!("part-{part:02}.csv"), format!("id\n{lines}"));
    }
    let mut command = lab.command(&["run", "nightly.yaml"]);
    command.env("MILLSTREAM_CHUNK_BYTES", "2000").env("MILLSTREAM_FAIL_AT", "commit.after");
    finish(command, None).ended(1).says(&["load: failed: it was killed (signal 9)"]);
    let there: usize = rows(&lab, "SELECT count(*) FROM t")[0][0].parse().expect("a number");
    assert!(there > 0, "some are visible");
    let plain = lab.run(&["run", "nightly.yaml"]);
    plain.ended(1).says(&["failed; this is another one", "an earlier run of this job is unfinished"]);
    lab.run(&["run", "--resume", "nightly.yaml"]).ok();
    assert_eq!(rows(&lab, "SELECT count(*), count(DISTINCT id) FROM t"), [["2000", "2000"]]);
}
