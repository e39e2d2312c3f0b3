//! Sorting through the real binary, in the least memory there is: every order is right, nothing is lost, and scratch that
//! is too small is told.

use std::fmt::Write as _;

use millstream_testkit::Mount;

use crate::use_support::{Lab, csv_rows, names};

const ROWS: u64 = 400_000;
const LEAST: [&str; 4] = ["--memory", "64MiB", "--cores", "2"];

/// `in.csv` with rows in no order, of which each seventh has no value, and a job with some more lines.
fn lab(job: &str) -> Lab {
    let lab = Lab::with_job(&format!(
        "sources:\n  s: {{read: in.csv, csv: {{columns: {{id: int64, g: int64, v: float64, name: utf8}}}}}}\n{job}"
    ));
    let text = (0..ROWS).fold("id,g,v,name\n".to_owned(), |mut text, row| {
        let id = row * 7_919 % ROWS;
        let value = if id.is_multiple_of(7) { String::new() } else { format!("{}.5", id % 1000) };
        let _ = writeln!(text, "{id},{},{value},some name that is long enough {}", id % 100, id % 500);
        text
    });
    lab.file("in.csv", text);
    lab
}

/// The rows of `out.csv` after a run that had to write to scratch.
fn sorted(lab: &Lab) -> Vec<Vec<String>> {
    let report = lab.report(&LEAST);
    let steps = report["steps"].as_array().expect("steps");
    let spilled: u64 = steps.iter().filter_map(|step| step["spilled_bytes"].as_u64()).sum();
    assert!(spilled > 1 << 20, "{report:#}");
    csv_rows(&lab.read("out.csv"))
}

fn number(text: &str) -> f64 {
    text.parse().expect("a number")
}

fn ids(rows: &[Vec<String>]) -> u64 {
    rows.iter().map(|row| row[0].parse::<u64>().expect("a number")).sum()
}

#[test]
fn several_keys_in_several_directions() {
    let lab = lab("transforms:\n  o: {sort: {from: s, by: [v desc nulls last, name, id desc]}}\nsinks:\n  \
                   out: {from: o, write: out.csv}\n");
    let rows = sorted(&lab);
    assert_eq!((rows.len() as u64, ids(&rows)), (ROWS, ROWS * (ROWS - 1) / 2));
    let key = |row: &Vec<String>| {
        let value = if row[2].is_empty() { f64::INFINITY } else { -number(&row[2]) };
        (value, row[3].clone(), -number(&row[0]))
    };
    assert!(rows.is_sorted_by(|one, other| key(one) < key(other)));
}

#[test]
fn keys_that_are_computed_and_only_a_part_of_the_rows() {
    let lab = lab("transforms:\n  o: {sql: 'SELECT id, name FROM s ORDER BY id % 1000 DESC, upper(name), id LIMIT \
                   150000 OFFSET 10'}\nsinks:\n  out: {from: o, write: out.csv}\n");
    let rows = sorted(&lab);
    assert_eq!(rows.len(), 150_000);
    let key = |row: &Vec<String>| (-(number(&row[0]) % 1000.0), row[1].to_uppercase(), number(&row[0]));
    assert!(rows.is_sorted_by(|one, other| key(one) < key(other)));
    // Of each of the 1000 values there are 400 rows, and ten are skipped.
    assert_eq!(
        (number(&rows[0][0]) % 1000.0, number(&rows[389][0]) % 1000.0, number(&rows[390][0]) % 1000.0),
        (999.0, 999.0, 998.0)
    );
}

#[test]
fn partitions_that_are_sorted_apart() {
    let lab =
        lab("transforms:\n  w: {sql: 'SELECT id, g, row_number() OVER (PARTITION BY g ORDER BY name, id) AS n, name \
                   FROM s'}\nsinks:\n  out: {from: w, write: out.csv}\n");
    let rows = sorted(&lab);
    assert_eq!((rows.len() as u64, ids(&rows)), (ROWS, ROWS * (ROWS - 1) / 2));
    let mut group: Vec<&Vec<String>> = rows.iter().filter(|row| row[1] == "42").collect();
    group.sort_by_key(|row| number(&row[2]) as u64);
    let numbers: Vec<u64> = group.iter().map(|row| number(&row[2]) as u64).collect();
    assert_eq!(numbers, (1..=ROWS / 100).collect::<Vec<_>>());
    assert!(group.is_sorted_by_key(|row| (row[3].clone(), number(&row[0]) as u64)));
}

#[test]
fn one_sort_for_two_sinks() {
    let lab = lab("transforms:\n  o: {sort: {from: s, by: name}}\nsinks:\n  out: {from: o, write: out.csv}\n  \
                   too: {from: o, write: too.csv}\n");
    let rows = sorted(&lab);
    assert_eq!((rows.len() as u64, ids(&rows)), (ROWS, ROWS * (ROWS - 1) / 2));
    assert!(rows.is_sorted_by_key(|row| row[3].clone()));
    assert!(lab.read("too.csv") == lab.read("out.csv"));
}

#[test]
fn the_plan_is_told_before() {
    let lab = lab("transforms:\n  o: {sort: {from: s, by: name}}\nsinks:\n  out: {from: o, write: out.csv}\n");
    let plan = lab.run(&["explain", "job.yaml", "--memory", "64MiB", "--cores", "2"]);
    let line = plan.ok().stdout.lines().find(|line| line.contains("SortExec")).expect("the sort").to_owned();
    assert!(line.contains("memory=") && line.contains(" runs, 1 merge pass, scratch="), "{line}");
    let plan = lab.run(&["explain", "job.yaml", "--memory", "1GB", "--cores", "2"]);
    let line = plan.ok().stdout.lines().find(|line| line.contains("SortExec")).expect("the sort").to_owned();
    assert!(line.ends_with(" in memory"), "{line}");
}

#[test]
fn scratch_that_is_too_small_is_told_before_anything_is_read_or_when_it_is_full() {
    let Some(small) = Mount::tmpfs("size=3m") else { return };
    let scratch = small.path().display().to_string();
    let lab = lab("transforms:\n  o: {sort: {from: s, by: name}}\nsinks:\n  out: {from: o, write: out.csv}\n");
    let arguments = [&["run", "job.yaml", "--scratch", &scratch][..], &LEAST].concat();
    let ran = lab.run(&arguments);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("error: sorting about ") && ran.stderr.contains(" of scratch, and "), "{}", ran.stderr);
    assert!(ran.stderr.contains("--scratch"), "{}", ran.stderr);
    // What a group-by leaves is not known before, and little.
    let query = "{sql: 'SELECT g, count(*) AS n FROM s GROUP BY g ORDER BY g'}";
    lab.file("grouped.yaml", lab.read("job.yaml").replace("{sort: {from: s, by: name}}", query));
    lab.run(&[&["run", "grouped.yaml", "--scratch", &scratch][..], &LEAST].concat()).ok();
    assert_eq!(csv_rows(&lab.read("out.csv")).len(), 100);
    fs_err::remove_file(lab.path("out.csv")).expect("it is there");
    // How much comes through a pipe nobody knows.
    let job = lab.read("job.yaml").replace("read: in.csv", "read: '-'");
    lab.file("job.yaml", job);
    let input = lab.read("in.csv");
    let ran = lab.run_with_input(&arguments, input.as_bytes());
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(
        ran.stderr.contains("cannot be written to scratch in ") && ran.stderr.contains("no space left"),
        "{}",
        ran.stderr
    );
    assert_eq!(names(small.path()), [""; 0], "nothing is left in scratch");
    assert!(!lab.path("out.csv").exists());
}
