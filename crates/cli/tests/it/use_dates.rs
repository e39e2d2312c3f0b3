//! Dates through the real binary: `${today}` and `${now}` are those of the logical run, also in SQL, in a run that
//! resumes another one, and in a replay, whatever the clock does meanwhile.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use serde_json::Value;

use crate::use_support::{Lab, Ran, finish, sqlite};

/// 2026-01-31T23:30:00Z: the next day in Berlin.
const NOW: u64 = 1_769_902_200_000;

const DAY: u64 = 86_400_000;

/// Runs the binary at a time.
fn at(lab: &Lab, now: u64, arguments: &[&str]) -> Ran {
    let mut command = lab.command(arguments);
    command.env("MILLSTREAM_NOW", now.to_string()).env("MILLSTREAM_CHUNK_BYTES", "40");
    finish(command, None)
}

/// The same, killed at a fail point.
#[track_caller]
fn killed(lab: &Lab, now: u64, at: &str, arguments: &[&str]) {
    let mut command = lab.command(arguments);
    command.env("MILLSTREAM_NOW", now.to_string()).env("MILLSTREAM_CHUNK_BYTES", "40");
    let ended = command.env("MILLSTREAM_FAIL_AT", at).stdin(Stdio::null()).output().expect("it runs");
    assert_eq!(ended.status.signal(), Some(9), "{at}: {}", String::from_utf8_lossy(&ended.stderr));
}

fn rows(lab: &Lab) -> Vec<Vec<String>> {
    sqlite(&lab.path("out.db"), "SELECT id, day FROM t ORDER BY id, day")
}

/// Yesterday's file into a table, with the day and SQL's day.
const DAILY: &str = "sources:\n  s: {read: 'in/${today - 1 day | %Y%m%d}*.jsonl', json: {columns: {id: int64}}}\n\
                     transforms:\n  t: {sql: \"SELECT id, '${today}' || ' ' || current_date AS day FROM s\"}\n\
                     sinks:\n  o: {from: t, write: 'sqlite:out.db', table: t}\n";

fn daily() -> Lab {
    let lab = Lab::with_job(DAILY);
    for (file, first) in [("20260129", 1), ("20260130", 101), ("20260131", 201)] {
        let lines = |ids: std::ops::Range<u64>| ids.map(|id| format!("{{\"id\": {id}}}\n")).collect::<String>();
        lab.file(&format!("in/{file}.jsonl"), lines(first..first + 4));
        lab.file(&format!("in/{file}-late.jsonl"), lines(first + 4..first + 8));
    }
    lab
}

/// The ids from `first`, eight of them, with their day.
fn eight(first: u64, day: &str) -> Vec<Vec<String>> {
    (first..first + 8).map(|id| vec![id.to_string(), format!("{day} {day}")]).collect()
}

#[test]
fn dates_are_those_of_the_time_zone_in_values_and_in_sql() {
    let job = "timezone: Europe/Berlin\nsources:\n  s: {read: 'in/${today - 1 day | %Y/%m/%d}.csv', csv: {columns: \
        {id: \
               int64}}}\ntransforms:\n  t:\n    sql: SELECT '${today}' AS a, current_date AS b, today() AS c, \
               '${now | %H:%M:%S%z}' AS d, now() AS e, current_timestamp AS f, current_time AS g FROM s\nsinks:\n  \
               o: {from: \
               t, write: '${today | %G-W%V}.csv'}\n";
    let lab = Lab::with_job(job);
    lab.file("in/2026/01/31.csv", "id\n1\n");
    let report = at(&lab, NOW, &["run", "job.yaml", "--json"]).ok().json();
    assert_eq!(report["began"], "2026-02-01T00:30:00+01:00");
    let text = lab.read("2026-W05.csv");
    let row: Vec<&str> = text.lines().nth(1).expect("a row").split(',').collect();
    assert_eq!(row[..4], ["2026-02-01", "2026-02-01", "2026-02-01", "00:30:00+0100"]);
    assert_eq!((row[4], row[6]), (row[5], "00:30:00"));
    assert!(row[4].starts_with("2026-01-31T23:30:00"), "{text}");
}

#[test]
fn a_resumed_run_has_the_dates_of_the_run_that_it_resumes() {
    // The clock goes on by two days, or back by one.
    for later in [NOW + 2 * DAY, NOW - DAY] {
        let lab = daily();
        for file in 0..4 {
            let ids = (file * 700..(file + 1) * 700).map(|id| format!("{{\"id\": {id}}}\n"));
            lab.file(&format!("in/20260130-{file}.jsonl"), ids.collect::<String>());
        }
        killed(&lab, NOW, "commit.before:3", &["run", "job.yaml"]);
        let before = rows(&lab).len();
        assert!(before > 0 && before < 2_808, "{before}");
        let report = at(&lab, later, &["run", "job.yaml", "--resume", "--json"]).ok().json();
        assert_eq!(
            (report["began"].as_str(), report["resumes"].is_string()),
            (Some("2026-01-31T23:30:00+00:00"), true)
        );
        let all = rows(&lab);
        assert_eq!(all.len(), 2_808);
        assert!(all.iter().all(|row| row[1] == "2026-01-31 2026-01-31"), "{all:?}");
    }
}

#[test]
fn resume_on_the_next_day_begins_the_run_of_that_day() {
    let lab = daily();
    at(&lab, NOW, &["run", "job.yaml", "--resume"]).ok();
    at(&lab, NOW + 1_000, &["run", "job.yaml", "--resume"]).ok().says(&["nothing new"]);
    assert_eq!(rows(&lab), eight(101, "2026-01-31"));
    at(&lab, NOW + DAY, &["run", "job.yaml", "--resume"]).ok();
    assert_eq!(rows(&lab), [eight(101, "2026-01-31"), eight(201, "2026-02-01")].concat());
}

#[test]
fn a_run_that_is_resumed_on_another_day_says_that_todays_is_still_to_do() {
    const STILL_TO_DO: &str = "this run was of 2026-01-31, the day on which it began: the run of today is still to do";
    let lab = daily();
    let resume: &[&str] = &["run", "job.yaml", "--resume"];
    killed(&lab, NOW, "commit.after:2", resume);
    at(&lab, NOW + DAY, resume).ok().says(&[STILL_TO_DO]);
    assert_eq!(rows(&lab), eight(101, "2026-01-31"));
    let report = at(&lab, NOW + DAY, &[resume, &["--json"]].concat()).ok().json();
    assert_eq!((report.get("earlier_day"), &report["resumes"]), (None, &Value::Null), "{report:#}");
    assert_eq!(rows(&lab), [eight(101, "2026-01-31"), eight(201, "2026-02-01")].concat());
    // On the same day there is nothing to say, nor without dates, nor if the day was given.
    let none = |ran: &Ran| assert!(!ran.ok().stderr.contains("still to do"), "{ran:?}");
    let without = DAILY.replace("${today - 1 day | %Y%m%d}", "20260130").replace("'${today}' || ' ' || ", "");
    for (job, set, later) in [(DAILY, None, 60_000), (&without, None, DAY), (DAILY, Some("today=2026-01-31"), DAY)] {
        let lab = daily();
        lab.file("job.yaml", job);
        let resume = [resume, &set.map_or_else(Vec::new, |set| vec!["--set", set])].concat();
        killed(&lab, NOW - 80_000_000, "commit.after:2", &resume);
        let resumed = at(&lab, NOW - 80_000_000 + later, &resume);
        none(&resumed);
        assert_eq!(rows(&lab).len(), 8, "it is the same run: {resumed:?}");
    }
}

#[test]
fn a_replay_has_the_dates_of_its_run() {
    let lab = Lab::with_job(
        "sources:\n  s: {read: 'in/${today - 1 day | %Y%m%d}.csv', csv: {columns: {id: int64}}, max_rejects: \
         1}\ntransforms:\n  t: {select: {from: s, columns: [\"CAST(id AS text) AS id\", \"concat('${today} ', \
         current_date) AS \
         day\"]}}\nsinks:\n  o: {from: t, write: 'sqlite:out.db', table: t}\n",
    );
    lab.file("in/20260130.csv", "id\n1\n0x2\n3\n");
    at(&lab, NOW, &["run", "job.yaml"]).ok();
    lab.file("job.yaml", lab.read("job.yaml").replace("id: int64", "id: utf8"));
    at(&lab, NOW + 3 * DAY, &["rejects", "last", "--replay"]).ok();
    let day = "2026-01-31 2026-01-31";
    let expected = [["0x2", day], ["1", day], ["3", day]];
    let found = sqlite(&lab.path("out.db"), "SELECT id, day FROM t ORDER BY 1");
    assert_eq!(found, expected);
}

#[test]
fn set_says_which_day_it_is() {
    let lab = daily();
    at(&lab, NOW, &["run", "job.yaml", "--set", "today=2026-01-30"]).ok();
    assert_eq!(rows(&lab), eight(1, "2026-01-30"));
    // It is a job of its own, which another day does not resume.
    killed(&lab, NOW, "commit.after:2", &["run", "job.yaml", "--set", "now=2026-02-01T12:00:00"]);
    at(&lab, NOW, &["run", "job.yaml", "--resume", "--set", "today=2026-01-30"]).ok().says(&["nothing new"]);
    at(&lab, NOW, &["run", "job.yaml", "--resume", "--set", "now=2026-02-01T12:00:00"]).ok();
    assert_eq!(rows(&lab), [eight(1, "2026-01-30"), eight(201, "2026-02-01")].concat());
    for (set, what) in [("today=yesterday", "`--set today=yesterday`: this is no date"), ("now=7", "this is no date")] {
        at(&lab, NOW, &["check", "job.yaml", "--set", set]).ended(2).says(&[what, "--set today=2026-01-31"]);
    }
    at(&lab, NOW, &["check", "job.yaml", "--set", "today=2026-01-01", "--set", "now=2026-01-01T00:00:00"])
        .ended(2)
        .says(&["`--set` gives both `today` and `now`"]);
    let mut command = lab.command(&["check", "job.yaml"]);
    command.env("MILLSTREAM_NOW", NOW.to_string()).env("today", "monday");
    finish(command, None).ok().says(&["`today` is when the run begins, and not the variable of that name"]);
}

#[test]
fn a_variable_may_hold_a_date() {
    let lab = Lab::with_job(
        "sources:\n  s: {read: 'in/${DAY - 1 day | %d.%m.%y}.csv', csv: {columns: {id: int64}}}\nsinks:\n  o: {from: \
        s, \
         write: '${DAY | %j}.csv'}\n",
    );
    lab.file("in/28.02.26.csv", "id\n7\n");
    lab.run(&["run", "job.yaml", "--set", "DAY=2026-03-01"]).ok();
    assert_eq!(lab.read("060.csv"), "id\n7\n");
    lab.run(&["run", "job.yaml", "--set", "DAY=march"]).ended(2).says(&[
        "the variable DAY is `march`, which is no date",
        "job.yaml:2:",
        "a date is written `2026-01-31`",
    ]);
}

#[test]
fn mistakes_in_dates_are_lints_with_their_place() {
    let lab = Lab::with_job(
        "timezone: Europe/Berlim\nsources:\n  s: {read: 'in/${today - 1 dya}.csv', csv: {columns: {id: \
         int64}}}\nsinks:\n  o: {from: s, write: '${now | %Q}.csv'}\n  p: {from: s, write: '${today:-x}.csv'}\n",
    );
    at(&lab, NOW, &["check", "job.yaml"]).ended(2).says(&[
        "there is no time zone `Europe/Berlim`",
        "did you mean `Europe/Berlin`?",
        "job.yaml:1:11",
        "unknown unit `dya`",
        "did you mean `day`? units: second, minute, hour, day, week, month, year",
        "job.yaml:3:29",
        "`%Q` is not a format of dates",
        "job.yaml:5:32",
        "expected `+`, `-` or `|`, found `:-x`",
    ]);
    lab.file("job.yaml", DAILY.to_owned() + "timezone: '${today}'\n");
    at(&lab, NOW, &["check", "job.yaml"]).ended(2).says(&["the time zone of dates cannot depend on a date"]);
    lab.file("job.yaml", DAILY.to_owned() + "timezone: 1\n");
    at(&lab, NOW, &["check", "job.yaml"]).ended(2).says(&["expected text for `timezone`, found the whole number 1"]);
}

#[test]
fn the_last_run_is_the_last_whatever_the_clock_says() {
    let lab = daily();
    lab.file("job.yaml", DAILY.replace("${today - 1 day | %Y%m%d}", "${DAY}"));
    let set = ["--set", "DAY=20260130"];
    let run = |more: &[&'static str]| [&["run", "job.yaml"], more, &set].concat();
    at(&lab, NOW, &run(&[])).ok();
    // The clock was an hour ahead, and is right again.
    killed(&lab, NOW - 3_600_000, "commit.after:2", &run(&[]));
    let unfinished = at(&lab, NOW - 3_000_000, &["runs", "--unfinished", "--json"]).ok().json();
    assert_eq!(unfinished["runs"].as_array().map(Vec::len), Some(1), "{unfinished}");
    let report = at(&lab, NOW - 3_000_000, &run(&["--resume", "--json"])).ok().json();
    assert_eq!(report["began"], "2026-01-31T22:30:00+00:00");
    assert_eq!(rows(&lab).len(), 16);
    let runs: Value = at(&lab, NOW, &["runs", "--json"]).ok().json();
    let first = &runs["runs"][0];
    assert_eq!((first["run"].clone(), first["outcome"].as_str()), (report["run"].clone(), Some("done")));
}
