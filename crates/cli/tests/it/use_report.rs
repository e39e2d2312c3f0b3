//! What a run prints, through the real binary: reports, progress, variables, silence.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{self, MILLSTREAM};
use crate::use_support::{Lab, finish, step};

const JOB: &str = "sources:\n  s: {read: 'in/*.csv', csv: {columns: {id: int64, name: utf8}}}\ntransforms:\n  \
                   few: {filter: {from: s, where: id < 10}}\nsinks:\n  o: {from: few, write: out.csv}\n";

fn lab() -> Lab {
    let lab = Lab::with_job(JOB);
    for part in 0..3 {
        lab.file(&format!("in/{part}.csv"), format!("id,name\n{part},a\n{},b\n", part + 100));
    }
    lab
}

#[test]
fn the_report_for_machines_has_the_numbers() {
    let lab = lab();
    let report = lab.report(&[]);
    assert_eq!(
        (&report["rows_read"], &report["rows_written"], &report["rows_rejected"]),
        (&6.into(), &3.into(), &0.into())
    );
    assert!(report["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0));
    assert!(report["peak_rss_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20));
    assert!(report["verdict"]["sentence"].as_str().is_some_and(|sentence| sentence.starts_with("limited by: ")));
    let steps = report["steps"].as_array().expect("steps");
    for step in steps {
        for key in ["name", "kind"] {
            assert!(step[key].is_string(), "{key}: {step}");
        }
        for key in ["rows", "bytes"] {
            assert!(step[key].is_u64(), "{key}: {step}");
        }
        let number = |key: &str| step[key].as_f64().unwrap_or_else(|| panic!("{key}: {step}"));
        assert!(number("busy") >= 0.0);
        assert!((number("waiting") - number("waiting_input") - number("waiting_output")).abs() < 1e-9, "{step}");
    }
    assert_eq!(step(&report, "s", "fetch")["units"], 3);
    assert_eq!(step(&report, "s", "decode")["detail"], "plain");
    assert_eq!(step(&report, "s", "parse")["rows"], 6);
    let written = fs_err::metadata(lab.path("out.csv")).expect("a file").len();
    assert_eq!(step(&report, "o", "load")["bytes"], written);
    assert_eq!(step(&report, "o", "load")["rows"], 3);
}

#[test]
fn the_report_for_people_goes_to_standard_error_and_quiet_is_quiet() {
    let lab = lab();
    let ran = lab.run(&["run", "job.yaml"]);
    ran.ok().says(&["6 rows read, 3 written, 0 rejected", "out.csv", "peak memory", "limited by: "]);
    assert_eq!(ran.stdout, "");
    let ran = lab.run(&["run", "job.yaml", "--quiet"]);
    assert_eq!((ran.ok().stdout.as_str(), ran.stderr.as_str()), ("", ""));
    // If only errors are printed, an error still is.
    lab.file("in/3.csv", "id,name\nx,y\n");
    lab.run(&["run", "job.yaml", "--quiet"]).ended(1).says(&["in/3.csv", "x"]);
}

#[test]
fn progress_is_plain_lines_where_there_is_no_terminal() {
    let lab = Lab::with_job("sources:\n  s: {read: '-', lines: {}}\nsinks:\n  o: {from: s, write: out.txt}\n");
    let mut child = lab
        .command(&["run", "job.yaml"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut pipe = child.stdin.take().expect("a pipe");
    // The first line comes after ten seconds.
    for number in 0..22 {
        writeln!(pipe, "line {number}").expect("it reads");
        std::thread::sleep(Duration::from_millis(500));
    }
    drop(pipe);
    let output = child.wait_with_output().expect("it ends");
    let told = String::from_utf8_lossy(&output.stderr);
    let first = told.lines().next().expect("a line");
    assert!(first.contains(" rows") && first.contains("/s"), "{told}");
    assert!(!told.contains('\r') && !told.contains('\u{1b}'), "plain: {told}");
    assert_eq!(lab.read("out.txt").lines().count(), 22);
}

#[test]
fn progress_on_a_terminal_is_a_bar_that_goes_away() {
    let lab = lab();
    let inside = format!("{} run job.yaml", MILLSTREAM);
    let on_terminal = |line: &str| {
        let mut command = harness::program(lab.0.root(), "script");
        command.args(["-qec", line, "/dev/null"]).env("TERM", "xterm");
        command
    };
    let ran = finish(on_terminal(&inside), None);
    ran.ok();
    assert!(ran.stdout.contains("\u{1b}["), "colours on a terminal: {:?}", ran.stdout);
    assert!(ran.stdout.contains("6 rows read, 3 written"), "{:?}", ran.stdout);
    let quiet = on_terminal(&format!("{inside} --quiet"));
    assert_eq!(finish(quiet, None).ok().stdout, "");
}

#[test]
fn variables_come_from_the_command_line_the_environment_or_their_default() {
    let lab = Lab::with_job(
        "sources:\n  s: {read: '${MILLSTREAM_TEST_FILE:-default}.csv', csv: {columns: {id: int64}}}\n\
         sinks:\n  o: {from: s, write: '-', csv: {header: false}}\n",
    );
    for (name, id) in [("default", 1), ("environment", 2), ("set", 3)] {
        lab.file(&format!("{name}.csv"), format!("id\n{id}\n"));
    }
    assert_eq!(lab.run(&["run", "job.yaml", "-q"]).ok().stdout, "1\n");
    let with_environment = |arguments: &[&str]| {
        let mut command = lab.command(arguments);
        command.env("MILLSTREAM_TEST_FILE", "environment");
        finish(command, None)
    };
    assert_eq!(with_environment(&["run", "job.yaml", "-q"]).ok().stdout, "2\n");
    let set = ["run", "job.yaml", "-q", "--set", "MILLSTREAM_TEST_FILE=set"];
    assert_eq!(with_environment(&set).ok().stdout, "3\n");
    // What is filled in is a value and never a piece of the job.
    let injected = ["run", "job.yaml", "--set", "MILLSTREAM_TEST_FILE=x', y: 'set"];
    lab.run(&injected).ended(1).says(&["x', y: 'set.csv"]);
}

#[test]
fn failures_are_reported_to_machines_too() {
    let lab = lab();
    lab.file("in/3.csv", "id,name\nx,y\n");
    let ran = lab.run(&["run", "job.yaml", "--json"]);
    let told: Value = ran.ended(1).json();
    let error = &told["errors"][0];
    assert!(error.to_string().contains("in/3.csv"), "{told}");
}
