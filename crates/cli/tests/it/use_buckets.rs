//! Sinks in buckets through the real binary, with a real S3 server in this process.

use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use millstream_testkit::{KEY, S3Server, SECRET, Trouble};

use crate::use_support::{Lab, names, sqlite};

/// A folder in which a job runs, and a server whose bucket `bucket` is the folder `store/bucket` of it.
fn lab(sources: &str, sink: &str) -> (Lab, S3Server) {
    let lab = Lab::new();
    lab.0.folder("store/bucket");
    let server = S3Server::start(&lab.path("store"), true);
    let block = format!(
        "s3: {{endpoint: '{}', allow_http: true, region: us-east-1, max_backoff: 20ms, access_key_id: {KEY}, \
         secret_access_key: {{secret: env:BUCKET_SECRET}}}}",
        server.url()
    );
    lab.file("job.yaml", format!("sources: {{{sources}}}\nsinks:\n  out: {{from: s, {sink}, {block}}}\n"));
    lab.file(
        "back.yaml",
        format!(
            "sources:\n  s: {{read: 's3://bucket/out/*.csv.gz', csv: {{columns: {{id: int64, k: utf8}}}}, {block}}}\n\
         transforms:\n  t: {{sql: 'select count(*) as n, sum(id) as total from s'}}\n\
         sinks:\n  o: {{from: t, write: 'sqlite:back.db', table: t, mode: replace}}\n"
        ),
    );
    (lab, server)
}

const NUMBERS: &str = "s: {read: 'in/*.csv', csv: {columns: {id: int64, k: utf8}}}";

fn numbers(lab: &Lab, count: u64) {
    for part in 0..4 {
        let rows: String = (0..count).filter(|id| id % 4 == part).map(|id| format!("{id},key {}\n", id % 7)).collect();
        lab.file(&format!("in/{part}.csv"), format!("id,k\n{rows}"));
    }
}

fn run(lab: &Lab, secret: &str, arguments: &[&str]) -> crate::use_support::Ran {
    let mut command = lab.command(arguments);
    command.env("BUCKET_SECRET", secret);
    crate::use_support::finish(command, None)
}

/// What can be seen in the bucket.
fn objects(lab: &Lab) -> Vec<String> {
    let folder = lab.path("store/bucket/out");
    if !folder.exists() {
        return Vec::new();
    }
    names(&folder).into_iter().filter(|name| !name.starts_with('.')).collect()
}

/// Whether an upload is neither complete nor aborted.
fn unfinished(lab: &Lab) -> bool {
    names(&lab.path("store")).iter().any(|name| name.starts_with(".upload"))
}

#[test]
fn shards_in_a_bucket_are_read_back_and_replaced() {
    let (lab, _server) = lab(NUMBERS, "write: 's3://bucket/out/n.csv.gz', shards: {count: 3, mod: id}");
    numbers(&lab, 10_000);
    for (secret, arguments) in [(SECRET, vec!["check", "job.yaml"]), ("wrong", vec!["check", "--offline", "job.yaml"])]
    {
        run(&lab, secret, &arguments).ok();
    }
    run(&lab, SECRET, &["run", "job.yaml"]).ok();
    assert_eq!(objects(&lab), ["n-000.csv.gz", "n-001.csv.gz", "n-002.csv.gz"]);
    let back = || {
        run(&lab, SECRET, &["run", "back.yaml"]).ok();
        sqlite(&lab.path("back.db"), "select n || ' ' || total from t").concat()
    };
    assert_eq!(back(), ["10000 49995000"]);
    numbers(&lab, 1_000);
    lab.file("job.yaml", lab.read("job.yaml").replace("count: 3", "count: 2"));
    run(&lab, SECRET, &["run", "job.yaml"]).ok();
    assert_eq!(objects(&lab), ["n-000.csv.gz", "n-001.csv.gz"]);
    assert_eq!(back(), ["1000 499500"]);
    assert!(!unfinished(&lab));
}

#[test]
fn a_store_that_refuses_is_reported_before_anything_is_read() {
    // The input is broken: the run must not come to it.
    let (lab, server) = lab("s: {read: '-', csv: {columns: {id: int64}}}", "write: 's3://bucket/out/a.csv'");
    let ran = run(&lab, "wrong", &["run", "job.yaml"]);
    ran.ended(1).says(&["s3://bucket/out/.a.csv.millstream.json", "SignatureDoesNotMatch", "credentials"]);
    assert!(!ran.stderr.contains("in the source"), "{}", ran.stderr);
    let ran = run(&lab, "", &["check", "job.yaml"]);
    ran.ended(1);
    server.trouble(|method, _| (method == "POST").then_some(Trouble::Status(403)));
    for command in ["check", "run"] {
        run(&lab, SECRET, &[command, "job.yaml"]).ended(1).says(&["s3://bucket/out/a.csv", "may access `bucket`"]);
    }
    lab.file("job.yaml", lab.read("job.yaml").replace("s3://bucket/out/a.csv", "s3://bucket"));
    run(&lab, SECRET, &["check", "--offline", "job.yaml"]).ended(2).says(&["this names no object"]);
}

#[test]
fn what_breaks_for_good_leaves_nothing() {
    let (lab, server) = lab(NUMBERS, "write: 's3://bucket/out/{value}.csv', split: k");
    numbers(&lab, 1_000);
    server.trouble(|_, path| path.contains("partNumber=").then_some(Trouble::Close));
    run(&lab, SECRET, &["run", "job.yaml"]).ended(1).says(&["s3://bucket/out/key%20"]);
    assert_eq!((objects(&lab), unfinished(&lab)), (Vec::new(), false));
}

#[test]
fn a_killed_run_leaves_nothing_that_can_be_seen() {
    let (lab, _server) =
        lab("s: {read: '-', csv: {columns: {id: int64, k: utf8}}}", "write: 's3://bucket/out/n.csv', compress: none");
    let mut command = lab.command(&["run", "job.yaml"]);
    command.env("BUCKET_SECRET", SECRET).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("it starts");
    let mut input = child.stdin.take().expect("a pipe");
    let rows = format!("id,k\n{}", format!("1,{}\n", "x".repeat(998)).repeat(30_000));
    input.write_all(rows.as_bytes()).expect("it reads");
    let start = Instant::now();
    while !names(&lab.path("store")).iter().any(|name| name.contains(".part-")) {
        assert!(start.elapsed() < Duration::from_secs(180), "no part arrives");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().expect("it lives");
    child.wait().expect("it is dead");
    drop(input);
    assert_eq!(objects(&lab), [""; 0]);
    let mut command = lab.command(&["run", "job.yaml"]);
    command.env("BUCKET_SECRET", SECRET);
    crate::use_support::finish(command, Some(b"id,k\n1,a\n".to_vec())).ok();
    assert_eq!(lab.read("store/bucket/out/n.csv"), "id,k\n1,a\n");
}
