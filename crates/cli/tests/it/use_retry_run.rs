//! `retry_run:` through the real binary: a run that fails for a reason that may pass resumes itself.

use std::time::{Duration, Instant};

use millstream_testkit::{Answer, Fault, FaultServer, Object, Plan};
use rustix::process::{Pid, Signal, kill_process};

use crate::use_support::{Lab, sqlite};

/// Reads `url` without retries of single requests, into a table.
fn job(url: &str, retry: &str) -> String {
    format!(
        "retry_run: {retry}\nsources:\n  s:\n    read: [in.jsonl, '{url}']\n    json: {{columns: {{id: int64}}}}\n    \
         http: {{retries: 0}}\ntransforms:\n  t: {{select: {{from: s, columns: [id, \"CAST(now() AS text) AS \
         begun\"]}}}}\nsinks:\n  o: {{from: t, write: 'sqlite:out.db', table: t}}\n"
    )
}

/// A server whose object is refused so often before it is there.
fn refusing(times: usize) -> FaultServer {
    let unavailable = Fault::Answer(Answer::status(503));
    FaultServer::start(Plan::new().object("/b.jsonl", Object::new("{\"id\": 3}\n").fault(times, unavailable)))
}

fn lab(server: &FaultServer, retry: &str) -> Lab {
    let lab = Lab::with_job(&job(&server.url("/b.jsonl"), retry));
    lab.file("in.jsonl", "{\"id\": 1}\n{\"id\": 2}\n");
    lab
}

fn outcomes(lab: &Lab) -> Vec<String> {
    let runs = lab.run(&["runs", "--json"]).ok().json();
    let outcome = |run: &serde_json::Value| run["outcome"].as_str().unwrap_or_default().to_owned();
    runs["runs"].as_array().expect("runs").iter().map(outcome).collect()
}

#[test]
fn a_run_that_fails_resumes_itself_until_it_succeeds() {
    let server = refusing(2);
    let lab = lab(&server, "{count: 3, wait: 50ms}");
    let ran = lab.run(&["run", "job.yaml"]);
    ran.ok().says(&[
        "the server answers 503",
        "attempt 1 of 4 failed; the run is resumed in 0.05 s",
        "attempt 2 of 4 failed",
    ]);
    ran.says(&["it took 3 attempts"]);
    // Each row is there once, with the time of the logical run.
    let rows = sqlite(&lab.path("out.db"), "SELECT count(*), count(DISTINCT id), count(DISTINCT begun) FROM t");
    assert_eq!(rows, [["3", "3", "1"]]);
    assert_eq!(outcomes(&lab), ["done", "failed", "failed"]);
    let runs = lab.run(&["runs", "--json"]).ok().json();
    let moments: Vec<_> = (0..3).map(|run| runs["runs"][run]["moment"].as_i64()).collect();
    assert!(moments[0].is_some() && moments.iter().all(|moment| *moment == moments[0]), "{moments:?}");
}

#[test]
fn it_gives_up_after_so_many_attempts_and_another_command_resumes_it() {
    let server = refusing(2);
    let lab = lab(&server, "{count: 1, wait: 1ms}");
    lab.run(&["run", "job.yaml"]).ended(1).says(&["attempt 1 of 2 failed"]);
    assert_eq!(outcomes(&lab), ["failed", "failed"]);
    let report = lab.report(&["--resume"]);
    assert_eq!(report["attempts"], 1);
    assert_eq!(sqlite(&lab.path("out.db"), "SELECT count(*) FROM t"), [["3"]]);
}

#[test]
fn what_does_not_pass_is_not_retried() {
    let server = refusing(0);
    let lab = lab(&server, "{count: 9, wait: 1h}");
    let fails = |code: i32, what: &str| {
        let ran = lab.run(&["run", "job.yaml"]);
        ran.ended(code).says(&[what]);
        assert!(!ran.stderr.contains("attempt"), "{}", ran.stderr);
    };
    lab.file("in.jsonl", "{\"id\": 1}\n{\"id\": \"x\"}\n");
    fails(1, "not int64");
    lab.file("job.yaml", job(&server.url("/b.jsonl"), "{count: 9, wait: 1h}") + "require: [{exists: today.ok}]\n");
    fails(4, "there is no today.ok");
    lab.file("job.yaml", job(&server.url("/b.jsonl"), "{count: 9, wait: 1h}").replace("columns: [id", "columns: [ib"));
    fails(2, "`ib`");
    lab.file("job.yaml", job("-", "{count: 9, wait: 1h}"));
    lab.run(&["check", "job.yaml"]).ok().says(&["`retry_run` has no effect: `s` reads standard input"]);
    for (retry, what) in [("{wait: 1s}", "count"), ("{count: 0}", "count"), ("{count: 1, wait: soon}", "soon")] {
        lab.file("job.yaml", job("in.jsonl", retry));
        lab.run(&["check", "job.yaml"]).ended(2).says(&[what]);
    }
}

#[test]
fn an_interrupt_ends_the_wait() {
    let server = refusing(1_000);
    let lab = lab(&server, "{count: 1, wait: 1h}");
    let mut command = lab.command(&["run", "job.yaml"]);
    command.stderr(std::process::Stdio::piped());
    let mut run = command.spawn().expect("it starts");
    let begun = Instant::now();
    while !outcomes(&lab).contains(&"failed".to_owned()) {
        assert!(begun.elapsed() < Duration::from_secs(180), "it does not fail");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_millis(200));
    kill_process(Pid::from_child(&run), Signal::INT).expect("it lives");
    assert_eq!(run.wait().expect("it ends").code(), Some(130));
    assert!(begun.elapsed() < Duration::from_secs(600), "it has not waited for an hour");
}

#[test]
fn a_run_killed_between_attempts_is_resumed() {
    let server = refusing(1);
    let lab = lab(&server, "{count: 1, wait: 1h}");
    let mut run = lab.command(&["run", "job.yaml", "--quiet"]).spawn().expect("it starts");
    let begun = Instant::now();
    while !outcomes(&lab).contains(&"failed".to_owned()) {
        assert!(begun.elapsed() < Duration::from_secs(180), "it does not fail");
        std::thread::sleep(Duration::from_millis(50));
    }
    run.kill().expect("it lives");
    run.wait().expect("it ends");
    lab.run(&["run", "job.yaml", "--resume"]).ok();
    assert_eq!(sqlite(&lab.path("out.db"), "SELECT count(*), count(DISTINCT begun) FROM t"), [["3", "1"]]);
}
