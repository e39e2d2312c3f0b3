//! Steps with several consumers, and sinks that end or fail together, through the real binary.

use std::fmt::Write as _;
use std::io::Write as _;

use serde_json::Value;

use crate::use_support::{Lab, csv_rows, finish, step};

fn numbers(count: u64) -> String {
    (0..count).fold("id,n,name\n".to_owned(), |mut text, id| {
        let _ = writeln!(text, "{id},{},a name that takes some room {id}", id % 1000);
        text
    })
}

const TWO_SINKS: &str = "transforms:\n  even: {filter: {from: s, where: id % 2 = 0}}\n  \
                         sums: {sql: 'select count(*) AS n, sum(id) AS ids from s'}\n\
                         sinks:\n  even: {from: even, write: even.csv}\n  sums: {from: sums, write: sums.csv}\n";

#[test]
fn a_source_of_two_sinks_is_read_once() {
    let lab = Lab::with_job(&format!("sources:\n  s: {{read: '*.csv.in', csv: {{}}}}\n{TWO_SINKS}"));
    let text = numbers(20_000);
    lab.file("a.csv.in", &text);
    lab.file("b.csv.in", &text);
    let report = lab.report(&[]);
    let fetch = step(&report, "s", "fetch");
    assert_eq!(fetch["units"], 2);
    assert_eq!(fetch["bytes"], 2 * text.len());
    assert_eq!(report["rows_read"], 40_000);
    assert_eq!(csv_rows(&lab.read("even.csv")).len(), 20_000);
    assert_eq!(csv_rows(&lab.read("sums.csv")), [["40000", "399980000"]]);
}

#[test]
fn a_pipe_that_can_be_read_only_once_feeds_two_sinks() {
    let lab = Lab::with_job(&format!("sources:\n  s: {{read: pipe, csv: {{}}}}\n{TWO_SINKS}"));
    let pipe = lab.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    let text = numbers(60_000);
    assert!(text.len() > 2 << 20, "more than the sample");
    let writer = std::thread::spawn(move || {
        let mut file = fs_err::OpenOptions::new().write(true).open(pipe).expect("a pipe");
        file.write_all(text.as_bytes()).expect("it is read to its end");
    });
    lab.run(&["run", "job.yaml"]).ok();
    writer.join().expect("all was read");
    assert_eq!(csv_rows(&lab.read("even.csv")).len(), 30_000);
    assert_eq!(csv_rows(&lab.read("sums.csv")), [["60000", "1799970000"]]);
}

#[test]
fn a_self_join_over_a_shared_step_ends_and_spills_where_memory_is_small() {
    let lab = Lab::with_job(
        "sources:\n  s: {read: in.csv, csv: {}}\ntransforms:\n  kept: {filter: {from: s, where: id >= 0}}\n  \
         pairs: {sql: 'select count(*) AS n, sum(a.n + b.n) AS total, count(distinct a.name) AS names from kept a join \
         kept b on a.id = b.id'}\n\
         sinks:\n  o: {from: pairs, write: out.csv}\n",
    );
    let count = 150_000_u64;
    lab.file("in.csv", numbers(count));
    let total: u64 = (0..count).map(|id| 2 * (id % 1000)).sum();
    let expected = [[count.to_string(), total.to_string(), count.to_string()]];
    let report = lab.report(&[]);
    assert_eq!(csv_rows(&lab.read("out.csv")), expected);
    assert_eq!(step(&report, "s", "fetch")["units"], 1, "read once");
    let report = lab.report(&["--memory", "112MiB"]);
    assert_eq!(csv_rows(&lab.read("out.csv")), expected);
    let steps = report["steps"].as_array().expect("steps");
    let spilled: u64 = steps.iter().filter_map(|step| step["spilled_bytes"].as_u64()).sum();
    assert!(spilled > 1 << 20, "{report:#}");
}

/// No rows of a job become visible if any of its sinks fails.
#[test]
fn the_sinks_of_a_job_fail_together() {
    for order in ["file first", "table first"] {
        let mut sinks =
            ["  file: {from: s, write: out.csv}\n", "  table: {from: s, write: 'sqlite:out.db', table: t}\n"];
        if order == "table first" {
            sinks.reverse();
        }
        let lab = Lab::with_job(&format!(
            "sources:\n  s: {{read: in.csv, csv: {{columns: {{id: int64, n: int64, name: utf8}}}}}}\nsinks:\n{}",
            sinks.concat()
        ));
        lab.file("in.csv", numbers(30_000));
        lab.file("out.csv", "what was there\n");
        let database = rusqlite::Connection::open(lab.path("out.db")).expect("SQLite");
        database
            .execute_batch(
                "create table t (id integer, n integer, name text, check (id < 29000)); insert into t values (-1, 0, \
                 'there');",
            )
            .expect("a table that refuses a row");
        lab.run(&["run", "job.yaml"]).ended(1).says(&["table", "CHECK"]);
        assert_eq!(lab.read("out.csv"), "what was there\n", "{order}");
        let rows = crate::use_support::rows_of(&database, "select id from t");
        assert_eq!(rows, [["-1"]], "{order}");
        assert!(!lab.path(".out.csv.tmp").exists(), "{order}");
        // And they succeed together once the table takes all rows.
        database.execute_batch("drop table t").expect("dropped");
        let report: Value = lab.report(&[]);
        assert_eq!(report["rows_written"], 60_000);
    }
}

/// A consumer that needs only the first rows does not stop the others.
#[test]
fn a_user_that_needs_few_rows_does_not_stop_the_others() {
    let lab = Lab::with_job(
        "sources:\n  s: {read: '-', csv: {columns: {id: int64, n: int64, name: utf8}}}\ntransforms:\n  \
         first: {sql: 'select id from s limit 3'}\n  all: {sql: 'select count(*) AS n from s'}\n\
         sinks:\n  first: {from: first, write: first.csv}\n  all: {from: all, write: all.csv}\n",
    );
    let ran = finish(lab.command(&["run", "job.yaml"]), Some(numbers(100_000).into_bytes()));
    ran.ok();
    assert_eq!(csv_rows(&lab.read("first.csv")).len(), 3);
    assert_eq!(csv_rows(&lab.read("all.csv")), [["100000"]]);
}
