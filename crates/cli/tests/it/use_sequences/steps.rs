//! Each kind of step, and what limits it.

use std::time::{Duration, Instant};

use millstream_testkit::{Answer, Fault, FaultServer, Object, Plan, SmtpServer};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{lab, outcomes, rows, step};
use crate::use_support::{Lab, finish};

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(180), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn loops_have_items_from_lists_days_rows_and_files() {
    let lab =
        lab("steps:\n  load: {job: load.yaml, set: {TAG: x}}\n  list: {command: [touch, 'list-${V}'], for_each: {V: \
             [1, b]}}\n  days: {command: [touch, 'day-${D | %d%m}'], for_each: {D: {first: 2026-01-30, last: \
             2026-02-01}}}\n  rows: {command: [touch, 'row-${R}-${R.double}'], needs: load, for_each: {R: {query: \
             'SELECT id, id * 2 AS double FROM t ORDER BY id', from: 'sqlite:out.db'}}}\n  files: {command: [touch, \
             'file-${F.stem}'], for_each: {F: {files: 'f-*.csv'}}}\n  none: {command: [touch, 'none'], for_each: {F: \
             {files: 'no-*.csv'}}}\n");
    lab.file("f-1.csv", "");
    lab.file("f-2.csv", "");
    let ran = lab.run(&["run", "nightly.yaml", "--json"]);
    ran.ok();
    let names = ["list-1", "list-b", "day-3001", "day-3101", "day-0102", "row-1-2", "row-3-6", "file-f-1", "file-f-2"];
    let missing: Vec<_> = names.into_iter().filter(|name| !lab.path(name).exists()).collect();
    assert!(missing.is_empty() && !lab.path("none").exists(), "{missing:?}");
    let report = ran.json();
    assert_eq!(step(&report, "rows")["parts"][2]["item"], "R=3");
    assert_eq!(
        (&step(&report, "none")["outcome"], &step(&report, "none")["results"]["items"]),
        (&"success".into(), &0.into())
    );
}

#[test]
fn an_item_that_fails_does_not_keep_the_others_from_running() {
    let lab =
        lab("steps:\n  each: {command: [sh, -c, 'test ${V} != 2 && touch did-${V}'], for_each: {V: [1, 2, 3]}}\n");
    let ran = lab.run(&["run", "nightly.yaml", "--json"]);
    ran.ended(1).says(&["each 2: failed: it ended with status 1"]);
    assert!(lab.path("did-1").exists() && lab.path("did-3").exists());
}

#[test]
fn pools_and_parallel_limit_what_runs_together() {
    let lab = Lab::new();
    lab.file("machine.yaml", "pools: {db: 2}\n");
    // Each notes how many run while it does.
    let note = "[sh, -c, 'touch run-${V}; sleep 0.2; ls run-* | wc -l >> counts; rm run-${V}']";
    lab.file(
        "nightly.yaml",
        format!(
            "steps:\n  a: {{command: {note}, pool: db, parallel: 8, for_each: {{V: [1, 2, 3, 4]}}}}\n  b: {{command: \
             {}, pool: db}}\n",
            note.replace("${V}", "b")
        ),
    );
    let ran = lab.run(&["run", "nightly.yaml", "--machine", "machine.yaml", "--json"]);
    ran.ok().says(&["b: waits for a place in the pool `db`"]);
    // It has begun when it got its place.
    let report = ran.json();
    let ended = |item: &Value| item["ended"].as_u64().expect("a time");
    let first = step(&report, "a")["parts"].as_array().expect("parts").iter().map(ended).min();
    assert!(step(&report, "b")["began"].as_u64() >= first, "{report}");
    let counts = lab.read("counts");
    assert_eq!(counts.lines().count(), 5);
    assert!(counts.lines().all(|count| ["1", "2"].contains(&count.trim())), "{counts}");
    lab.file("other.yaml", "steps: {a: {command: ['true'], pool: dv}}\n");
    lab.run(&["run", "other.yaml", "--machine", "machine.yaml"]).ended(2).says(&["dv", "db"]);
    lab.run(&["run", "other.yaml"]).ok().says(&["warning: the pool `dv` limits nothing without a machine file"]);
}

#[test]
fn a_step_may_not_reserve_more_than_there_is_unnoticed() {
    let lab = lab("priority: high\nsteps:\n  load: {job: load.yaml, set: {TAG: x}, memory: 100TB}\n");
    lab.run(&["check", "nightly.yaml"]).ok().says(&["warning: the step reserves 100 TB of memory"]);
    lab.run(&["explain", "nightly.yaml"]).ok().prints(&["nightly.yaml: 1 step, with high priority"]);
}

#[test]
fn a_step_that_fails_is_attempted_again_and_one_that_takes_too_long_is_stopped() {
    let lab =
        lab("steps:\n  flaky: {command: [sh, -c, 'echo x >> tries; test $(wc -l < tries) -ge 3'], retries: {count: \
             3, wait: 10ms}}\n  slow: {command: [sleep, '600'], time_limit: 200ms, retries: {count: 1, wait: 1ms}}\n");
    let begun = Instant::now();
    let ran = lab.run(&["run", "nightly.yaml", "--json"]);
    ran.ended(1).says(&[
        "flaky: it ended with status 1; attempt 1 of 4; the next one follows in 0.01 s",
        "slow: failed: it took longer than",
    ]);
    assert!(begun.elapsed() < Duration::from_secs(300));
    assert_eq!(outcomes(&ran), ["flaky=success", "slow=failed"]);
    let report = ran.json();
    assert_eq!(
        (&step(&report, "flaky")["parts"][0]["attempts"], &step(&report, "slow")["parts"][0]["attempts"]),
        (&3.into(), &2.into())
    );
}

#[test]
fn waits_end_when_there_is_something() {
    let lab =
        lab("steps:\n  file: {wait: {file: 'ready-*.ok', every: 50ms, for: 60s}}\n  later: {command: [sh, -c, 'sleep \
             0.3; touch ready-1.ok']}\n  load: {job: load.yaml, set: {TAG: x}, needs: file}\n  row: {wait: {query: \
             'SELECT count(*) AS n FROM t', from: 'sqlite:out.db', until: n >= 3, every: 50ms, for: 60s}}\n  say: \
             {command: [sh, -c, 'echo ${steps.file.file} ${steps.row.n} > said'], needs: [row, file]}\n  never: \
             {wait: {file: never.ok, every: 20ms, for: 200ms}}\n");
    let ran = lab.run(&["run", "nightly.yaml", "--json"]);
    ran.ended(1).says(&["never: failed: it did not come within"]);
    assert_eq!(lab.read("said").trim(), "ready-1.ok 3");
}

#[test]
fn requests_are_sent_and_their_answers_are_results() {
    let server = FaultServer::start(
        Plan::new()
            .object("/get", Object::new("all well"))
            .object("/post", Object::new("taken"))
            .object("/no", Object::new("").fault(9, Fault::Answer(Answer::status(400)))),
    );
    let lab = lab(&format!(
        "steps:\n  get: {{webhook: {{url: '{}', method: GET, headers: {{Authorization: {{secret: \
         'env:TOKEN'}}}}}}}}\n  post: {{webhook: {{url: '{}'}}, needs: get}}\n  say: {{command: [sh, -c, 'echo \
         ${{steps.get.status}} ${{steps.get.body}} $TOKEN > said'], needs: post}}\n  no: {{webhook: {{url: '{}', \
         method: PUT, body: x}}}}\n",
        server.url("/get"),
        server.url("/post"),
        server.url("/no")
    ));
    let mut command = lab.command(&["run", "nightly.yaml", "--json"]);
    command.env("TOKEN", "hunter2");
    let ran = finish(command, None);
    ran.ended(1).says(&["no: failed:", "the server answers 400"]);
    assert_eq!(lab.read("said").trim(), "200 all well", "programs do not get secrets of the sequence");
    let requests = server.requests();
    let get = requests.iter().find(|request| request.path == "/get").expect("sent");
    assert_eq!((get.method.as_str(), get.header("authorization")), ("GET", Some("hunter2")));
    let post = requests.iter().find(|request| request.path == "/post").expect("sent");
    let body: Value = serde_json::from_str(&post.body).expect("JSON");
    assert_eq!((post.method.as_str(), &step(&body, "get")["outcome"]), ("POST", &"success".into()));
}

#[test]
fn a_mail_carries_the_report() {
    let server = SmtpServer::start();
    let lab = lab(
        "steps:\n  load: {job: load.yaml, set: {TAG: x}}\n  bad: {command: ['false'], needs: load}\n  alarm: {mail: \
         {to: [boss@example.com]}, needs: [bad], when: failure}\n",
    );
    lab.file(
        "machine.yaml",
        format!("smtp: {{host: 127.0.0.1, port: {}, tls: none, from: mill@example.com}}\n", server.port()),
    );
    lab.run(&["run", "nightly.yaml", "--machine", "machine.yaml"]).ended(1);
    let mails = server.mails();
    assert_eq!((mails.len(), mails[0].to.as_slice()), (1, ["boss@example.com".to_owned()].as_slice()));
    for part in ["Subject: millstream: failure of nightly.yaml", "bad: failed: it ended with status 1", "report.html"] {
        assert!(mails[0].text.contains(part), "{part}: {}", mails[0].text);
    }
    // Without a server the step fails, and says so.
    lab.run(&["run", "nightly.yaml"]).ended(1).says(&["alarm: failed: this machine has no mail server"]);
}

#[test]
fn what_a_query_lacks_is_said() {
    let lab = lab(
        "steps:\n  load: {job: load.yaml, set: {TAG: x}}\n  row: {query: 'SELECT id AS n, nullif(1, 1) AS missing \
         FROM t ORDER BY id LIMIT 1', from: 'sqlite:out.db', needs: load}\n  a: {command: [touch, '${steps.row.m}'], \
         needs: row}\n  b: {command: [touch, '${steps.row.missing}'], needs: row}\n  c: {command: [touch, \
         '${steps.row.n}'], needs: row, when: steps.row.n + 1}\n  d: {query: 'SELEC 1', from: 'sqlite:out.db', \
         needs: row}\n  e: {command: [no-such-program]}\n  f: {command: ['true'], needs: row, when: steps.row.m > \
         1}\n",
    );
    lab.run(&["run", "nightly.yaml"]).ended(1).says(&[
        "a: failed: there is no value for `${steps.row.m}`: the results of `row` are n, missing",
        "b: failed: there is no value for `${steps.row.missing}`: `missing` of `row` is null",
        "c: failed: `when`: the condition gives 2, which is neither true nor false",
        "d: failed:",
        "e: failed: the program `no-such-program` cannot be started",
        "f: failed: `when`: `row` has no result `m`: its results are n, missing",
    ]);
}

#[test]
fn jobs_share_the_memory_or_have_what_they_reserve() {
    let lab =
        lab("steps:\n  a: {job: load.yaml, set: {TAG: a}, memory: 200MiB}\n  b: {job: load.yaml, set: {TAG: b}}\n");
    let ran = lab.run(&["run", "nightly.yaml", "--memory", "512MiB", "--json"]);
    ran.ok();
    assert_eq!(rows(&lab, "SELECT tag, count(*) FROM t GROUP BY tag ORDER BY tag"), [["a", "3"], ["b", "3"]]);
}

#[test]
fn an_interrupt_ends_all_processes_and_another_run_continues() {
    let lab =
        lab("steps:\n  a: {command: [touch, a]}\n  b: {command: [sh, -c, 'touch b; exec sleep 600'], needs: a}\n  c: \
             {command: [touch, c], needs: b}\n");
    let mut child = lab.command(&["run", "nightly.yaml"]).spawn().expect("it starts");
    until("b runs", || lab.path("b").exists());
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it gets the signal");
    let begun = Instant::now();
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert!(begun.elapsed() < Duration::from_secs(19), "the program ends when it is asked to");
    let ran = lab.run(&["runs", "--json"]).ok().json();
    assert_eq!(ran["runs"][0]["outcome"], "interrupted");
    assert!(!lab.path("c").exists());
    fs_err::remove_file(lab.path("a")).expect("removed");
    lab.file("nightly.yaml", lab.read("nightly.yaml").replace("exec sleep 600", "true"));
    lab.run(&["run", "--resume", "nightly.yaml"]).ok();
    assert!(!lab.path("a").exists() && lab.path("c").exists());
}

#[test]
fn a_job_is_kept_running() {
    let lab = lab("steps:\n  serve: {job: load.yaml, set: {TAG: x}, keep_running: true}\n");
    let mut child = lab.command(&["run", "nightly.yaml"]).spawn().expect("it starts");
    let done = || {
        let runs = lab.run(&["runs", "--json"]).ok().json();
        let runs = runs["runs"].as_array().expect("runs").clone();
        runs.iter().filter(|run| run["kind"] == "job" && run["outcome"] == "done").count()
    };
    until("it has run three times", || done() >= 3);
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it gets the signal");
    assert_eq!(child.wait().expect("it ends").code(), Some(0), "it ends as it was meant to");
}

#[test]
fn what_a_program_leaves_behind_holds_nothing_up() {
    let lab = lab("steps:\n  a: {command: [sh, -c, 'echo said; sleep 600 & exit 0']}\n  b: {command: [touch, \
                   '${steps.a.output}'], needs: a}\n");
    let begun = Instant::now();
    lab.run(&["run", "nightly.yaml"]).ok();
    assert!(lab.path("said").exists() && begun.elapsed() < Duration::from_secs(300));
}

#[test]
fn services_leave_places_for_jobs() {
    let lab = lab(
        "steps:\n  one: {job: load.yaml, set: {TAG: one}, keep_running: true}\n  two: {job: load.yaml, set: {TAG: \
         two}, keep_running: true}\n  three: {job: load.yaml, set: {TAG: three}, keep_running: true}\n  job: {job: \
         load.yaml, set: {TAG: job}}\n  end: {command: [touch, end], needs: job}\n",
    );
    let mut child = lab.command(&["run", "nightly.yaml", "--cores", "2"]).spawn().expect("it starts");
    until("the job has run", || lab.path("end").exists());
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it gets the signal");
    child.wait().expect("it ends");
}

#[test]
fn parameters_whose_names_suggest_secrets_are_in_no_report() {
    let server = FaultServer::start(Plan::new().object("/hook", Object::new("got hunter2hunter2")));
    let lab = lab(&format!(
        "parameters: {{API_KEY: hunter2hunter2}}\nsteps:\n  say: {{command: [echo, '${{API_KEY}}']}}\n  hook: \
         {{webhook: {{url: '{}'}}, needs: say}}\n",
        server.url("/hook")
    ));
    let ran = lab.run(&["run", "nightly.yaml", "--json"]);
    ran.ok();
    assert!(!ran.stdout.contains("hunter2"), "{}", ran.stdout);
    assert!(!server.requests()[0].body.contains("hunter2"));
}

#[test]
fn a_wait_whose_query_is_wrong_fails_at_once() {
    let lab = lab("steps:\n  w: {wait: {query: 'SELECT m FROM t', from: 'sqlite:out.db', for: 1h}}\n");
    lab.run(&["run", "load.yaml", "--set", "TAG=a"]).ok();
    lab.run(&["run", "nightly.yaml"]).ended(1).says(&["the step `w` has failed", "no such column: m"]);
    // A table may come yet.
    let waits = "steps:\n  w: {wait: {query: 'SELECT 1 FROM later', from: 'sqlite:out.db', for: 100ms}}\n";
    lab.file("nightly.yaml", waits);
    lab.run(&["run", "nightly.yaml"]).ended(1).says(&["it did not come within 100ms", "no such table: later"]);
}

#[test]
fn a_loop_that_fails_names_its_item() {
    let lab = lab("steps:\n  l: {command: [sh, -c, 'test ${N} = b'], for_each: {N: [b, c, d]}}\n");
    lab.run(&["run", "nightly.yaml"]).ended(1).says(&["the step `l` has failed", "N=c (and 1 more)"]);
}
