//! `--for` through the real binary: a run for each value, which goes on where it stopped.

use std::os::unix::process::ExitStatusExt;

use crate::use_support::{Lab, finish, sqlite};

/// A file for each day into one table.
const JOB: &str = "sources:\n  s: {read: 'in/${DAY | %d}.csv', csv: {columns: {id: int64}}}\ntransforms:\n  t: \
        {select: {from: \
                   s, columns: [id, \"'${DAY}' AS day\"]}}\nsinks:\n  o: {from: t, write: 'sqlite:out.db', table: t}\n";

const DAYS: &str = "DAY=2026-01-01..2026-01-04";

fn lab() -> Lab {
    let lab = Lab::with_job(JOB);
    for day in 1..=4 {
        lab.file(&format!("in/0{day}.csv"), format!("id\n{day}\n"));
    }
    lab
}

fn days(lab: &Lab) -> Vec<String> {
    sqlite(&lab.path("out.db"), "SELECT day FROM t ORDER BY day").into_iter().map(|row| row[0].clone()).collect()
}

fn day(day: u32) -> String {
    format!("2026-01-0{day}")
}

#[test]
fn the_job_runs_for_each_value() {
    let lab = lab();
    let ran = lab.run(&["run", "job.yaml", "--for", DAYS]);
    ran.ok().says(&["DAY=2026-01-01 (1 of 4):", "DAY=2026-01-04 (4 of 4):", "4 values of DAY done"]);
    assert_eq!(days(&lab), [day(1), day(2), day(3), day(4)]);
    // Each is a logical run of its own, and can be resumed by itself.
    lab.run(&["run", "job.yaml", "--resume", "--set", "DAY=2026-01-02"]).ok().says(&["nothing new"]);
    let report = lab.run(&["run", "job.yaml", "--json", "--resume", "--for", DAYS]).ok().json();
    let outcomes = report["runs"].as_array().expect("runs").iter().map(|run| run["outcome"].as_str());
    assert_eq!(outcomes.collect::<Vec<_>>(), [Some("done before"); 4]);
    // Without `--resume` a new series begins.
    let report = lab.run(&["run", "job.yaml", "--json", "--for", "DAY=2026-01-03,2026-01-01"]).ok().json();
    assert_eq!((report["variable"].as_str(), report["runs"][0]["value"].as_str()), (Some("DAY"), Some("2026-01-03")));
    assert_eq!(report["runs"][1]["report"]["rows_written"], 1);
    assert_eq!(days(&lab).len(), 6);
}

#[test]
fn it_stops_at_the_first_failure_and_goes_on_with_resume() {
    let lab = lab();
    lab.file("in/03.csv", "id\nx\n");
    let failed = lab.run(&["run", "job.yaml", "--for", DAYS]);
    let left = "DAY=2026-01-03 failed, 2 of 4 values are done: `millstream run job.yaml --for \
                DAY=2026-01-01..2026-01-04 --resume` continues with it\n";
    assert!(failed.ended(1).says(&["error: "]).stderr.ends_with(left), "{}", failed.stderr);
    assert_eq!(days(&lab), [day(1), day(2)]);
    let failed = lab.run(&["run", "job.yaml", "--json", "--for", DAYS, "--resume"]).ended(1).json();
    let runs = failed["runs"].as_array().expect("a list");
    let outcomes: Vec<_> = runs.iter().map(|run| (run["value"].as_str(), run["outcome"].as_str())).collect();
    let expected = [("2026-01-01", "done before"), ("2026-01-02", "done before"), ("2026-01-03", "failed")];
    assert_eq!(outcomes, expected.map(|(day, outcome)| (Some(day), Some(outcome))));
    assert_eq!(runs[2]["errors"][0]["line"], 2, "{failed:#}");
    lab.file("in/03.csv", "id\n3\n");
    // The clock is set back meanwhile, and the same days are written otherwise.
    let days_again = "DAY=2026-1-1..2026-1-3, 2026-01-04";
    let mut command = lab.command(&["run", "job.yaml", "--for", days_again, "--resume", "--accept-changed"]);
    command.env("MILLSTREAM_NOW", "1700000000000");
    let ran = finish(command, None);
    ran.ok().says(&["DAY=2026-01-02 (2 of 4): done before", "2 values of DAY done, 2 done before"]);
    assert_eq!(days(&lab), [day(1), day(2), day(3), day(4)]);
}

/// A series of some of the values, in between, is another one.
#[test]
fn values_that_are_done_are_not_loaded_again() {
    let lab = lab();
    lab.file("in/03.csv", "id\nx\n");
    lab.run(&["run", "job.yaml", "--for", DAYS]).ended(1);
    lab.file("in/03.csv", "id\n3\n");
    lab.run(&["run", "job.yaml", "--for", "DAY=2026-01-03"]).ok();
    lab.run(&["run", "job.yaml", "--for", DAYS, "--resume", "--accept-changed"]).ok();
    assert_eq!(days(&lab), [day(1), day(2), day(3), day(4)]);
    lab.run(&["run", "job.yaml", "--for", "DAY=2026-01-01..2026-01-02", "--resume"])
        .ended(1)
        .says(&["no series of `--for DAY=2026-01-01..2026-01-02` is there to be resumed"]);
    assert_eq!(days(&lab).len(), 4);
}

#[test]
fn a_series_that_is_killed_goes_on() {
    for at in ["commit.before:3", "commit.after:2", "state.after:5", "state.before:4", "forget.before:2"] {
        let lab = lab();
        let mut command = lab.command(&["run", "job.yaml", "--for", DAYS, "--quiet"]);
        let ended = command.env("MILLSTREAM_FAIL_AT", at).output().expect("it runs");
        assert_eq!(ended.status.signal(), Some(9), "{at}");
        assert!(days(&lab).len() < 4, "{at}");
        lab.run(&["run", "job.yaml", "--for", DAYS, "--resume"]).ok();
        assert_eq!(days(&lab), [day(1), day(2), day(3), day(4)], "{at}");
    }
}

/// A run that has only brought a sink to the files that another one has is not the end of its value.
#[test]
fn a_series_goes_on_behind_a_run_that_caught_up() {
    let lab = Lab::with_job(
        "sources:\n  s: {read: 'in/${DAY}/*.csv', csv: {columns: {id: int64}}, incremental: true}\n  names: {read: \
         names.csv, csv: {columns: {id: int64, name: utf8}}}\ntransforms:\n  t: {sql: 'SELECT s.id, n.name FROM s JOIN \
         names AS n ON s.id = n.id'}\nsinks:\n  a: {from: t, write: 'sqlite:a.db', table: t}\n  b: {from: t, write: \
         'sqlite:b.db', table: t}\n",
    );
    let run = |arguments: &[&str], fail_point: &str| {
        let mut command = lab.command(&[&["run", "job.yaml", "--for", "DAY=1..2"], arguments].concat());
        command.env("MILLSTREAM_FAIL_AT", fail_point);
        finish(command, None)
    };
    let ids = |name: &str| {
        let rows = sqlite(&lab.path(name), "SELECT id FROM t ORDER BY id");
        rows.into_iter().map(|row| row[0].clone()).collect::<Vec<_>>()
    };
    lab.file("names.csv", "id,name\n1,one\n2,two\n3,three\n");
    lab.file("in/1/1.csv", "id\n1\n");
    lab.file("in/2/3.csv", "id\n3\n");
    run(&[], "publish.next:1").ended(-1);
    assert_eq!(ids("a.db"), ["1"]);
    lab.file("in/1/2.csv", "id\n2\n");
    run(&["--resume"], "forget.before:1").ended(-1);
    assert_eq!((ids("a.db"), ids("b.db")), (vec!["1".to_owned()], vec!["1".to_owned()]));
    let ran = run(&["--resume"], "none");
    ran.ok().says(&["2 values of DAY done\n"]);
    assert!(!ran.stderr.contains("done before"), "{}", ran.stderr);
    for name in ["a.db", "b.db"] {
        assert_eq!(ids(name), ["1", "2", "3"]);
    }
    run(&["--resume"], "none").ok().says(&["DAY=1 (1 of 2): done before", "0 values of DAY done, 2 done before"]);
}

#[test]
fn today_may_be_the_variable() {
    let lab = lab();
    lab.file("job.yaml", JOB.replace("DAY", "today"));
    lab.run(&["run", "job.yaml", "--for", "today=2026-01-01..2026-01-02"]).ok();
    assert_eq!(days(&lab), [day(1), day(2)]);
}

#[test]
fn other_commands_take_the_first_value() {
    let lab = lab();
    lab.run(&["check", "job.yaml", "--for", DAYS]).ok();
    assert!(lab.run(&["explain", "job.yaml", "--for", DAYS]).ok().stdout.contains("in/01.csv"));
    assert!(lab.run(&["preview", "job.yaml", "--for", DAYS]).ok().stdout.contains("2026-01-01"));
}

#[test]
fn mistakes_in_values_are_told() {
    let lab = lab();
    for (values, what) in [
        ("DAY", "write NAME=VALUES"),
        ("DAY=2026-01-04..2026-01-01", "ends before it begins"),
        ("DAY=x..y", "a range of neither days (2026-01-31) nor whole numbers"),
        ("DYA=1..2", "the job has no variable DYA"),
    ] {
        lab.run(&["run", "job.yaml", "--for", values]).ended(2).says(&[what]);
    }
    lab.run(&["run", "job.yaml", "--for", DAYS, "--set", "DAY=1"])
        .ended(2)
        .says(&["`--set` and `--for` both give DAY"]);
    assert!(!lab.path("out.db").exists());
}
