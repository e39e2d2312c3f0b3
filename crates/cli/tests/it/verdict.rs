//! Each kind of limit, staged with the real binary: the verdict must name it.
//!
//! The staged resource is made so scarce that nothing else can be the limit, whatever else the machine is doing.

use std::io::{Read, Write};
use std::process::{Child, Stdio};
use std::time::Duration;

use millstream_testkit::{Nginx, TempTree};
use serde_json::Value;

use crate::harness::millstream;

/// The report of `millstream run job.yaml --json` with more arguments.
fn report_of(tree: &TempTree, arguments: &[&str]) -> Value {
    let mut command = millstream(tree.root(), &["run", "job.yaml", "--json"]);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    report(command.spawn().expect("millstream starts"))
}

/// The report of a run that must succeed.
fn report(child: Child) -> Value {
    let output = child.wait_with_output().expect("the process ends");
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{messages}");
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn assert_limit(report: &Value, limit: &str, words: &str) {
    let verdict = &report["verdict"];
    let sentence = verdict["sentence"].as_str().expect("a sentence");
    assert_eq!(verdict["limit"], limit, "{report:#}");
    assert!(sentence.contains(words), "{sentence}");
}

#[test]
fn a_slow_pipe() {
    let tree = TempTree::new();
    tree.file(
        "job.yaml",
        "sources:\n  slow: {read: \"-\", lines: {}}\nsinks:\n  out: {from: slow, write: out.txt, lines: {}}\n",
    );
    let mut child = millstream(tree.root(), &["run", "job.yaml", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("millstream starts");
    let mut pipe = child.stdin.take().expect("a pipe");
    for number in 0..30 {
        writeln!(pipe, "line {number}").expect("it reads");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(pipe);
    let report = report(child);
    assert_eq!(report["rows_written"], 30);
    assert_limit(&report, "source", "standard input");
}

#[test]
fn a_slow_server() {
    let tree = TempTree::new();
    tree.file("served/numbers.csv", (0..40_000).fold("n\n".to_owned(), |text, number| text + &format!("{number}\n")));
    let server = Nginx::start_with(&tree.path("served"), "limit_rate 80k;");
    let url = server.url("/numbers.csv");
    tree.file(
        "job.yaml",
        format!(
            "sources:\n  slow: {{read: \"{url}\", csv: {{columns: {{n: int64}}}}}}\n\
             sinks:\n  out: {{from: slow, write: out.csv, csv: {{}}}}\n"
        ),
    );
    let report = report_of(&tree, &[]);
    assert_eq!(report["rows_written"], 40_000);
    assert_limit(&report, "source", "network");
}

/// Where the entries of a list are says what is slow, not where the list is.
#[test]
fn a_slow_server_that_a_list_names() {
    let tree = TempTree::new();
    tree.file("served/numbers.csv", (0..40_000).fold("n\n".to_owned(), |text, number| text + &format!("{number}\n")));
    let server = Nginx::start_with(&tree.path("served"), "limit_rate 80k;");
    tree.file("urls.txt", format!("{}\n", server.url("/numbers.csv")));
    tree.file(
        "job.yaml",
        "sources:\n  slow: {read: \"@urls.txt\", csv: {columns: {n: int64}}}\nsinks:\n  out: {from: slow, write: \
         out.csv}\n",
    );
    let report = report_of(&tree, &[]);
    assert_eq!(report["rows_written"], 40_000);
    assert_limit(&report, "source", "network");
    let steps = report["steps"].as_array().expect("steps");
    let fetch = steps.iter().find(|step| step["kind"] == "fetch").expect("a step");
    assert_eq!(fetch["detail"], "http");
}

#[test]
fn a_slow_target() {
    let tree = TempTree::new();
    tree.file("in.txt", "a line that is long enough to fill the pipe soon\n".repeat(20_000));
    tree.file(
        "job.yaml",
        "sources:\n  fast: {read: in.txt, lines: {}}\nsinks:\n  out: {from: fast, write: \"-\", lines: {}}\n",
    );
    let mut child = millstream(tree.root(), &["run", "job.yaml"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("millstream starts");
    let mut pipe = child.stdout.take().expect("a pipe");
    let mut piece = vec![0; 32 << 10];
    let mut taken = 0;
    loop {
        match pipe.read(&mut piece).expect("it writes") {
            0 => break,
            bytes => taken += bytes,
        }
        std::thread::sleep(Duration::from_millis(80));
    }
    assert_eq!(taken, 49 * 20_000);
    let output = child.wait_with_output().expect("the process ends");
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(messages.contains("limited by: the target of out (standard output)"), "{messages}");
}

#[test]
fn cores() {
    let tree = TempTree::new();
    tree.file("in.txt", "a line to be hashed many times over\n".repeat(4_000));
    let hash = (0..40).fold("line".to_owned(), |inner, _| format!("sha512({inner})"));
    tree.file(
        "job.yaml",
        format!(
            "sources:\n  fast: {{read: in.txt, lines: {{}}}}\n\
             transforms:\n  hashed: {{sql: \"SELECT max({hash}) AS hash FROM fast\"}}\n\
             sinks:\n  out: {{from: hashed, write: out.json}}\n"
        ),
    );
    assert_limit(&report_of(&tree, &["--cores", "1"]), "cores", "1 of 1 core busy");
}

#[test]
fn one_core_of_several() {
    let tree = TempTree::new();
    tree.file("in.txt", "a line to be hashed many times over\n".repeat(4_000));
    let hash = (0..40).fold("line".to_owned(), |inner, _| format!("sha512({inner})"));
    tree.file(
        "job.yaml",
        format!(
            "sources:\n  fast: {{read: in.txt, lines: {{}}}}\n\
             transforms:\n  hashed: {{select: {{from: fast, columns: {{hash: \"{hash}\"}}}}}}\n\
             sinks:\n  out: {{from: hashed, write: out.json}}\n"
        ),
    );
    let report = report_of(&tree, &["--cores", "8"]);
    assert_eq!(report["rows_written"], 4_000);
    assert_limit(&report, "core", "1 of 8 cores");
}

#[test]
fn memory() {
    let tree = TempTree::new();
    let mut text = String::new();
    for number in 0..1_200_000_u64 {
        // A fixed shuffle: multiplication by an odd number modulo a power of two.
        text.push_str(&format!("{:020}, a line to be sorted\n", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    }
    tree.file("in.txt", text);
    tree.file(
        "job.yaml",
        "sources:\n  wide: {read: in.txt, lines: {}}\ntransforms:\n  counted: {sql: \"SELECT line, count(*) AS n FROM \
         wide GROUP BY line\"}\n\
         sinks:\n  out: {from: counted, write: out.csv}\n",
    );
    let report = report_of(&tree, &["--memory", "128MiB"]);
    assert_eq!(report["rows_written"], 1_200_000);
    assert_limit(&report, "memory", "written to scratch");
}
