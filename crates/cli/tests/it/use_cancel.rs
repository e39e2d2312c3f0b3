//! `millstream cancel` through the real binary: runs of other processes stop as if by Ctrl-C.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use millstream_testkit::{Redis, RedisOptions};
use serde_json::json;

use crate::use_support::{Lab, sqlite};

/// How long a run may take to begin or to end, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(180);

fn start(lab: &Lab, file: &str) -> Child {
    let mut command = lab.command(&["run", file]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts")
}

/// The name of the run of this process, once it is in the history.
fn run_of(lab: &Lab, child: &Child) -> String {
    let begun = Instant::now();
    loop {
        let runs = lab.run(&["runs", "--json"]).ok().json();
        let run = runs["runs"].as_array().into_iter().flatten().find(|run| run["process"] == child.id());
        if let Some(run) = run {
            return run["run"].as_str().expect("a name").to_owned();
        }
        assert!(begun.elapsed() < PATIENCE, "no run has begun: {runs}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn slow_job() -> Lab {
    let lab = Lab::with_job(
        "throttle: {bytes_per_second: 20kB}\nsources:\n  s: {read: in.csv, csv: {columns: {n: int64}}}\nsinks:\n  o: \
         {from: s, write: 'sqlite:out.db', table: t}\n",
    );
    let text: String = (0..100_000).map(|n| format!("{n}\n")).collect();
    lab.file("in.csv", format!("n\n{text}"));
    lab
}

#[test]
fn a_job_is_cancelled_and_can_be_resumed() {
    let lab = slow_job();
    let mut child = start(&lab, "job.yaml");
    let run = run_of(&lab, &child);
    let cancelled = lab.run(&["cancel", &run, "--json"]);
    cancelled.ok().says(&["is asked to stop", "has ended: interrupted"]);
    assert_eq!(cancelled.json(), json!({"asked": [run], "ended": [{"run": run, "outcome": "interrupted"}]}));
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    // It does not run now, and nothing is asked of others.
    lab.run(&["cancel", &run]).ended(1).says(&["does not run: interrupted"]);
    lab.run(&["cancel", "1-1"]).ended(2).says(&["there is no run `1-1`"]);
    let job = lab.read("job.yaml");
    lab.file("job.yaml", job.replace("20kB", "20GB"));
    lab.run(&["run", "job.yaml", "--resume"]).ok();
    assert_eq!(sqlite(&lab.path("out.db"), "SELECT count(*), count(DISTINCT n) FROM t"), [["100000", "100000"]]);
}

#[test]
fn a_sequence_is_cancelled_with_its_steps() {
    let lab = slow_job();
    lab.file("nightly.yaml", "steps:\n  load: {job: job.yaml}\n  later: {command: [touch, later], needs: load}\n");
    let mut child = start(&lab, "nightly.yaml");
    let run = run_of(&lab, &child);
    lab.run(&["cancel", &run, "--no-wait"]).ok().says(&["is asked to stop"]);
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    let runs = lab.run(&["runs", "--json"]).ok().json();
    let outcomes: Vec<_> = runs["runs"].as_array().expect("runs").iter().map(|run| &run["outcome"]).collect();
    assert!(outcomes.iter().all(|outcome| **outcome == "interrupted"), "{runs}");
    assert!(!lab.path("later").exists());
}

#[test]
fn a_service_that_is_cancelled_has_done_its_work() {
    let redis = Redis::start(RedisOptions::default());
    let lab = Lab::with_job(&format!(
        "until: stopped\ncommit: {{rows: 1}}\nsources:\n  s:\n    read: '{}'\n    redis: {{stream: events, group: \
         load}}\n    json: {{columns: {{n: int64}}}}\nsinks:\n  o: {{from: s, write: 'sqlite:out.db', table: t}}\n",
        redis.url()
    ));
    redis.command(&["XADD", "events", "*", "body", "{\"n\": 1}"]);
    let mut child = start(&lab, "job.yaml");
    let run = run_of(&lab, &child);
    lab.run(&["cancel", "last"]).ok().says(&[&run, "has ended: done"]);
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}
