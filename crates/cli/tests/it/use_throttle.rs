//! `throttle:` through the real binary: sources read no faster, and over no more connections, than it allows.

use millstream_testkit::{FaultServer, Object, Plan};
use serde_json::Value;

use crate::use_support::Lab;

const RATE: u64 = 100_000;

/// A CSV file of about so many bytes.
fn csv(bytes: u64) -> String {
    let line = format!("{}\n", "x".repeat(99));
    format!("text\n{}", line.repeat(usize::try_from(bytes / 100).expect("a small file")))
}

fn job(throttle: &str, read: &str) -> String {
    let sources = format!("sources:\n  s: {{read: {read}, csv: {{columns: {{text: utf8}}}}}}\n");
    format!("throttle: {throttle}\n{sources}sinks:\n  o: {{from: s, write: out.csv}}\n")
}

/// Runs the job, which reads so many bytes, and looks whether it has taken its time.
#[track_caller]
fn takes_its_time(lab: &Lab, bytes: u64) {
    let report = lab.run(&["run", "job.yaml", "--json"]).ok().json();
    assert_eq!(report["rows_written"], bytes / 100);
    let seconds = report["seconds"].as_f64().expect("a number");
    // What came in the time of a burst is not waited for.
    let least = (bytes - RATE / 10) as f64 / RATE as f64;
    assert!(seconds >= least, "{bytes} bytes took {seconds} s");
    // On a machine that is busy with other things, the throttle may be the smaller part.
    if seconds < 1.3 * least {
        assert_eq!(report["verdict"]["limit"], "throttle", "{}", report["verdict"]);
        let sentence = report["verdict"]["sentence"].as_str().expect("a sentence");
        assert!(sentence.starts_with("limited by: the `throttle` of the job: 100 kB a second"), "{sentence}");
    }
}

#[test]
fn files_share_what_the_job_allows() {
    let lab = Lab::with_job(&job("{bytes_per_second: 100kB}", "'in/*.csv'"));
    for name in ["a", "b", "c"] {
        lab.file(&format!("in/{name}.csv"), csv(100_000));
    }
    takes_its_time(&lab, 300_000);
}

#[test]
fn a_server_is_not_asked_for_more() {
    let object = || Object::new(csv(150_000));
    let server = FaultServer::start(Plan::new().object("/a.csv", object()).object("/b.csv", object()));
    let read = format!("['{}', '{}']", server.url("/a.csv"), server.url("/b.csv"));
    let lab = Lab::with_job(&job("{bytes_per_second: 100kB, connections: 1}", &read));
    takes_its_time(&lab, 300_000);
}

#[test]
fn parts_of_a_file_that_is_read_by_ranges_count() {
    let lab = Lab::with_job(
        "sources:\n  s: {read: in.csv, csv: {columns: {text: utf8}}}\ntransforms:\n  t: {sql: \"SELECT text || \
         random() AS text FROM s\"}\nsinks:\n  o: {from: t, write: in.parquet}\n",
    );
    lab.file("in.csv", csv(200_000));
    lab.run(&["run", "job.yaml"]).ok();
    let bytes = fs_err::metadata(lab.path("in.parquet")).expect("the file").len();
    lab.file(
        "second.yaml",
        "throttle: {bytes_per_second: 20kB}\nsources:\n  s: {read: in.parquet}\nsinks:\n  o: {from: s, write: \
         out.csv}\n",
    );
    let report = lab.run(&["run", "second.yaml", "--json"]).ok().json();
    let least = bytes.saturating_sub(4_000) as f64 / 20_000.0;
    assert!(least > 0.5, "the file has {bytes} bytes");
    assert!(report["seconds"].as_f64().expect("a number") >= least, "{bytes} bytes: {}", report["seconds"]);
}

#[test]
fn sources_share_connections_and_explain_says_so() {
    let object = || Object::new("n\n1\n");
    let server = FaultServer::start(Plan::new().object("/a.csv", object()).object("/b.csv", object()));
    let (a, b) = (server.url("/a.csv"), server.url("/b.csv"));
    let sql = "SELECT n FROM a UNION ALL SELECT n FROM b UNION ALL SELECT n FROM c";
    let lab = Lab::with_job(&format!(
        "throttle: {{bytes_per_second: 1MiB, connections: 5}}\nsources:\n  a: {{read: '{a}'}}\n  b: {{read: '{b}', \
         http: {{connections: 1}}}}\n  c: {{read: c.csv}}\ntransforms:\n  t: {{sql: '{sql}'}}\nsinks:\n  o: {{from: \
         t, write: out.csv}}\n"
    ));
    lab.file("c.csv", "n\n1\n");
    let explained = lab.run(&["explain", "job.yaml", "--json"]).ok().json();
    let connections = |index: usize| explained["sources"][index]["connections"].as_u64();
    assert_eq!((connections(0), connections(1)), (Some(2), Some(1)), "{explained}");
    assert_eq!(explained["runs"]["throttle"], Value::from("1.05 MB a second, 5 connections"));
    lab.run(&["explain", "job.yaml"]).ok().prints(&["its sources have at most 1.05 MB a second, 5 connections"]);
}

#[test]
fn what_it_cannot_be_is_said() {
    let lab = Lab::with_job(&job("{bytes_per_second: 10, connections: 0}", "a.csv"));
    lab.run(&["check", "job.yaml"]).ended(2).says(&["connections"]);
    lab.file("job.yaml", job("{bytes_per_second: 10}", "a.csv"));
    lab.run(&["check", "job.yaml"]).ended(2).says(&["`bytes_per_second` is at least `1kB`"]);
    lab.file("job.yaml", job("{}", "a.csv"));
    lab.run(&["check", "job.yaml"]).ended(2).says(&["`throttle` limits nothing"]);
}
