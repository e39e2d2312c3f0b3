//! Runs: started, watched, cancelled, resumed and replayed, whatever has started them.

use std::io::Write;
use std::process::Stdio;

use millstream_testkit::Mount;
use serde_json::{Value, json};

use super::{SLOW, Served, numbers};
use crate::use_support::{Lab, sqlite};

#[test]
fn a_run_is_started_watched_cancelled_resumed_and_done() {
    let served = Served::new(&[("job.yaml", SLOW), ("in.csv", &numbers(100_000))]);
    let browser = served.browser_as("operate");
    let mut all = browser.events("");
    all.next("hello", |_| true);
    let run = browser.start(&json!({"file": "job.yaml"}));
    all.next("runs", |data| data["runs"][0]["run"] == run.as_str() && data["runs"][0]["outcome"] == "running");
    let mut watching = browser.events(&format!("?run={run}"));
    let live = watching.next("live", |data| data["live"]["points"].as_array().is_some_and(|points| points.len() > 1));
    let live = &live["live"];
    assert_eq!(
        live["entries"],
        json!([
            {"entry": "s", "kind": "source", "reads": []}, {"entry": "o", "kind": "sink", "reads": ["s"]},
        ])
    );
    assert!(live["bytes_expected"].as_u64().is_some_and(|bytes| bytes > 500_000), "{live}");
    assert!(live["steps"].as_array().is_some_and(|steps| steps.iter().any(|step| step["kind"] == "parse")), "{live}");
    assert!(live["verdict"]["sentence"].as_str().is_some_and(|sentence| !sentence.is_empty()), "{live}");
    let overview = browser.get("/api/v1/overview");
    assert_eq!(overview["running"][0]["run"], run.as_str(), "{overview}");
    let machine = browser.get("/api/v1/machine");
    assert!(machine["runs"][0]["resident"].as_u64().is_some_and(|bytes| bytes > 1_000_000), "{machine}");
    let detail = browser.get(&format!("/api/v1/runs/{run}"));
    assert_eq!(detail["can"], json!({"cancel": true, "resume": false, "start": false, "replay": false}), "{detail}");
    browser.post(&format!("/api/v1/runs/{run}/cancel"), &Value::Null);
    let detail = browser.run_ended(&run);
    assert_eq!(detail["run"]["outcome"], "interrupted", "{detail}");
    assert_eq!(detail["can"], json!({"cancel": false, "resume": true, "start": true, "replay": false}), "{detail}");
    all.next("runs", |data| data["runs"][0]["outcome"] == "interrupted");
    browser.send("POST", &format!("/api/v1/runs/{run}/cancel"), &Value::Null).is(409);
    let log = browser.get(&format!("/api/v1/runs/{run}/log"));
    assert!(log["text"].as_str().is_some_and(|text| text.contains("interrupted")), "{log}");
    served.lab.file("jobs/job.yaml", SLOW.replace("20kB", "20GB"));
    let action = browser.post(&format!("/api/v1/runs/{run}/resume"), &Value::Null);
    let second = browser.run_of(&action);
    let detail = browser.run_ended(&second);
    assert_eq!(detail["run"]["outcome"], "done", "{detail}");
    let chain: Vec<&Value> = detail["chain"].as_array().expect("a chain").iter().map(|run| &run["run"]).collect();
    assert_eq!(chain, [run.as_str(), second.as_str()]);
    assert_eq!(
        sqlite(&served.lab.path("jobs/out.db"), "SELECT count(*), count(DISTINCT n) FROM t"),
        [["100000", "100000"]]
    );
    assert!(
        browser
            .send("POST", &format!("/api/v1/runs/{run}/resume"), &Value::Null)
            .is(409)
            .problem()
            .contains("nothing to resume")
    );
    let audit = served.browser_as("edit").get("/api/v1/audit");
    let did: Vec<&str> =
        audit["entries"].as_array().expect("entries").iter().filter_map(|one| one["did"].as_str()).collect();
    for one in ["start", "cancel", "resume", "sign in"] {
        assert!(did.contains(&one), "{one}: {audit}");
    }
}

#[test]
fn runs_of_a_terminal_show_too_and_can_be_cancelled() {
    let served = Served::new(&[("job.yaml", SLOW), ("in.csv", &numbers(100_000))]);
    let browser = served.browser();
    let mut events = browser.events("");
    let mut command = served.lab.command(&["run", "job.yaml"]);
    command.current_dir(served.lab.path("jobs")).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("it starts");
    let data = events.next("runs", |data| data["runs"][0]["process"] == child.id());
    let run = data["runs"][0]["run"].as_str().expect("a name").to_owned();
    assert_eq!(data["runs"][0]["file"], "job.yaml");
    let log = browser.send("GET", &format!("/api/v1/runs/{run}/log"), &Value::Null);
    assert!(log.is(404).problem().contains("started in a terminal"), "{log:?}");
    browser.post(&format!("/api/v1/runs/{run}/cancel"), &Value::Null);
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    browser.run_ended(&run);
    // One that is killed does not say so itself.
    let mut command = served.lab.command(&["run", "job.yaml", "--resume"]);
    command.current_dir(served.lab.path("jobs")).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("it starts");
    let data = events.next("runs", |data| data["runs"][0]["process"] == child.id());
    let run = data["runs"][0]["run"].as_str().expect("a name").to_owned();
    child.kill().expect("it is killed");
    child.wait().expect("it ends");
    events.next("runs", |data| data["runs"][0]["run"] == run.as_str() && data["runs"][0]["outcome"] == "killed");
}

#[test]
fn a_sequence_shows_its_steps_as_they_go_and_the_logs_of_its_jobs() {
    let served = Served::new(&[
        ("job.yaml", SLOW),
        ("in.csv", &numbers(60_000)),
        ("nightly.yaml", "steps:\n  load: {job: job.yaml}\n  later: {command: [touch, later], needs: load}\n"),
    ]);
    let browser = served.browser();
    let run = browser.start(&json!({"file": "nightly.yaml"}));
    let mut watching = browser.events(&format!("?run={run}"));
    let live = watching.next("live", |data| data["steps"][0]["outcome"] == "running");
    assert_eq!((&live["steps"][1]["needs"], &live["live"]), (&json!(["load"]), &Value::Null), "{live}");
    let detail = browser.get_until(&format!("/api/v1/runs/{run}"), |detail| detail["step_runs"][0]["run"].is_string());
    let step = detail["step_runs"][0]["run"].as_str().expect("a name").to_owned();
    assert!(
        browser.send("POST", &format!("/api/v1/runs/{step}/resume"), &Value::Null).is(409).problem().contains("step")
    );
    browser.post(&format!("/api/v1/runs/{run}/cancel"), &Value::Null);
    let detail = browser.run_ended(&run);
    assert_eq!(
        (&detail["run"]["outcome"], &detail["can"]["resume"]),
        (&json!("interrupted"), &json!(true)),
        "{detail}"
    );
    assert_eq!(browser.run_ended(&step)["run"]["outcome"], "interrupted");
    served.lab.file("jobs/job.yaml", SLOW.replace("20kB", "20GB"));
    let action = browser.post(&format!("/api/v1/runs/{run}/resume"), &Value::Null);
    let second = browser.run_of(&action);
    let detail = browser.run_ended(&second);
    assert_eq!(detail["run"]["outcome"], "done", "{detail}");
    let outcomes: Vec<&Value> =
        detail["steps"].as_array().expect("steps").iter().map(|step| &step["outcome"]).collect();
    assert_eq!(outcomes, ["success", "success"]);
    let log = browser.get(&format!("/api/v1/runs/{step}/log"));
    assert!(log["text"].as_str().is_some_and(|text| text.contains("interrupted")), "{log}");
    assert!(served.lab.path("jobs/later").exists());
}

#[test]
fn rejects_are_shown_by_reason_and_replayed_once_the_job_is_mended() {
    let job = "sources:\n  s: {read: in.csv, csv: {columns: {n: utf8, k: int64}}, max_rejects: 10}\ntransforms:\n  t: \
        {sql: \
               'SELECT n, 10 / k AS k FROM s', max_rejects: 10}\nsinks:\n  o: {from: t, write: 'sqlite:out.db', \
               table: t}\n";
    let served = Served::new(&[("job.yaml", job), ("in.csv", "n,k\na,1\nb,x\nc,0\nd,2\n")]);
    let browser = served.browser_as("operate");
    let run = browser.start(&json!({"file": "job.yaml"}));
    let detail = browser.run_ended(&run);
    assert_eq!((&detail["run"]["rows_rejected"], &detail["can"]["replay"]), (&json!(2), &json!(true)), "{detail}");
    let rejects = browser.get(&format!("/api/v1/runs/{run}/rejects"));
    assert_eq!((&rejects["waiting"], &rejects["can_be_replayed"]), (&json!(2), &json!(true)), "{rejects}");
    let reasons = rejects["reasons"].as_array().expect("reasons");
    let bad = reasons.iter().find(|reason| reason["step"] == "s").expect("a reason");
    assert_eq!((&bad["column"], &bad["count"], reasons.len()), (&json!("k"), &json!(1), 2), "{rejects}");
    assert_eq!(bad["examples"][0]["record"], "b,x", "{rejects}");
    served.lab.file("jobs/job.yaml", job.replace("10 / k", "10 * k"));
    let action = browser.post(&format!("/api/v1/runs/{run}/replay"), &json!({"set": {}}));
    let ended = browser.ended(&action);
    assert_eq!(ended["state"], "done", "{ended}");
    assert!(ended["output"].as_str().is_some_and(|output| output.contains("1 reject of run")), "{ended}");
    let rejects = browser.get(&format!("/api/v1/runs/{run}/rejects"));
    assert_eq!((&rejects["waiting"], &rejects["replayed"]), (&json!(1), &json!(1)), "{rejects}");
    browser.send("GET", "/api/v1/runs/1-1/rejects", &Value::Null).is(404);
}

#[test]
fn what_the_steps_of_a_sequence_have_printed_is_there() {
    let served = Served::new(&[(
        "seq.yaml",
        "steps:\n  says: {command: [sh, -c, 'echo 13 people; echo but >&2']}\n  each: {for_each: {N: [1, 2]}, command: \
         [echo, 'number ${N}']}\n  fails: {needs: each, command: [sh, -c, 'echo no disk; exit 3']}\n",
    )]);
    let browser = served.browser();
    let run = browser.start(&json!({"file": "seq.yaml"}));
    assert_eq!(browser.run_ended(&run)["run"]["outcome"], "failed");
    let log = |query: &str| browser.get(&format!("/api/v1/runs/{run}/log?{query}"))["text"].clone();
    let said = log("step=says").to_string();
    assert!(said.contains("13 people") && said.contains("but"), "{said}");
    assert_eq!((log("step=each"), log("step=each&part=1")), (json!("number 1\n"), json!("number 2\n")));
    assert_eq!(log("step=fails"), "no disk\n");
    for query in ["step=each&part=2", "step=nothing", "step=..%2fruns", "step=.%2fsays"] {
        browser.send("GET", &format!("/api/v1/runs/{run}/log?{query}"), &Value::Null).is(404);
    }
}

#[test]
fn a_run_that_failed_says_where_and_what_to_do() {
    let served = Served::new(&[
        (
            "job.yaml",
            "sources:\n  s: {read: in.csv, csv: {columns: {n: int64}}}\nsinks:\n  o: {from: s, write: out.csv}\n",
        ),
        ("in.csv", "n\n1\ntwo\n"),
        (
            "url.yaml",
            "sources:\n  s:\n    read: 'http://ada:hidden@127.0.0.1:9/in.csv'\n    http: {retries: 0}\n    csv: \
             {columns: {n: int64}}\nsinks:\n  o: {from: s, write: out.csv}\n",
        ),
    ]);
    let browser = served.browser_as("look");
    let operator = served.browser_as("operate");
    let run = operator.start(&json!({"file": "job.yaml"}));
    let detail = operator.run_ended(&run);
    let error = &detail["errors"][0];
    assert_eq!((&error["line"], &error["column"], &error["text"]), (&json!(3), &json!("n"), &json!("two")), "{detail}");
    assert!(error["hint"].is_string() && error["uri"].as_str().is_some_and(|uri| uri.ends_with("in.csv")), "{error}");
    // It is counted, and was not kept.
    assert_eq!((&detail["run"]["rows_rejected"], &detail["can"]["replay"]), (&json!(1), &json!(false)), "{detail}");
    let run = operator.start(&json!({"file": "url.yaml"}));
    operator.run_ended(&run);
    let detail = browser.get(&format!("/api/v1/runs/{run}"));
    assert!(!detail["errors"].as_array().expect("a list").is_empty(), "{detail}");
    assert!(!detail.to_string().contains("hidden"), "{detail}");
}

#[test]
fn a_full_disk_loses_nothing_and_is_reported() {
    let Some(disk) = Mount::tmpfs("size=8m") else { return };
    let lab = Lab::new();
    fs_err::create_dir_all(disk.path().join("jobs")).expect("a folder");
    fs_err::os::unix::fs::symlink(disk.path().join("jobs"), lab.path("jobs")).expect("a link");
    let job = "sources:\n  s: {read: in.csv, csv: {columns: {n: int64}}}\nsinks:\n  o: {from: s, write: discard}\n";
    lab.file("jobs/job.yaml", job);
    lab.file("jobs/in.csv", numbers(10));
    let state = disk.path().join("state").display().to_string();
    let served = Served::in_lab(lab, &["--state", &state]);
    let browser = served.browser();
    let run = browser.start(&json!({"file": "job.yaml"}));
    assert_eq!(browser.run_ended(&run)["run"]["outcome"], "done");
    let fill = || {
        let mut file = fs_err::File::create(disk.path().join("fill")).expect("a file");
        let mut size = 1 << 20;
        while size > 0 {
            if file.write_all(&vec![b'x'; size]).is_err() {
                size /= 2;
            }
        }
    };
    fill();
    // What is known is shown.
    assert_eq!(browser.get(&format!("/api/v1/runs/{run}"))["run"]["outcome"], "done");
    assert_eq!(browser.get("/api/v1/overview")["strips"][0]["runs"][0]["run"], run.as_str());
    let seen = browser.get("/api/v1/file?file=job.yaml");
    // What cannot be stored is not done.
    let text = format!("{job}# {}\n", "x".repeat(100_000));
    let write = json!({"file": "job.yaml", "text": text, "etag": seen["etag"]});
    let refused = browser.send("PUT", "/api/v1/file", &write);
    assert!(refused.status >= 500 && refused.problem().contains("no space left"), "{refused:?}");
    assert_eq!(browser.get("/api/v1/file?file=job.yaml")["text"], job);
    let refused = browser.send("POST", "/api/v1/start", &json!({"file": "job.yaml"}));
    assert!(refused.status >= 500 && refused.problem().contains("no space left"), "{refused:?}");
    let link = served.lab.run(&["access", "link", "--state", &state]);
    link.ended(1).says(&["no space left"]);
    // The last page of the audit log has room for some entries.
    let noticed = (0..100).find_map(|_| {
        browser.send("PUT", "/api/v1/file", &write);
        let notices = browser.get("/api/v1/overview")["notices"].to_string();
        (notices != "[]").then_some(notices)
    });
    assert!(
        noticed.as_ref().is_some_and(|text| text.contains("audit") && text.contains("no space left")),
        "{noticed:?}"
    );
    // Once there is room, all goes on, and nobody has to sign in again.
    fs_err::remove_file(disk.path().join("fill")).expect("it is removed");
    let run = browser.start(&json!({"file": "job.yaml"}));
    assert_eq!(browser.run_ended(&run)["run"]["outcome"], "done");
    browser.send("PUT", "/api/v1/file", &write).is(200);
    let runs = browser.get("/api/v1/runs");
    assert_eq!(runs["runs"].as_array().map(Vec::len), Some(2), "{runs}");
    let audit = browser.get("/api/v1/audit")["entries"].to_string();
    assert!(audit.contains("write") && audit.contains("start"), "{audit}");
}

#[test]
fn a_job_with_mistakes_begins_no_run_and_says_why() {
    let served = Served::new(&[(
        "job.yaml",
        "sources:\n  s: {read: in.csv, csv: {colums: {n: int64}}}\nsinks:\n  o: {from: s, write: out.csv}\n",
    )]);
    let browser = served.browser();
    let action = browser.post("/api/v1/start", &json!({"file": "job.yaml"}));
    let ended = browser.ended(&action);
    assert_eq!(
        (&ended["state"], &ended["exit_code"], &ended["run"]),
        (&json!("failed"), &json!(2), &Value::Null),
        "{ended}"
    );
    assert!(ended["output"].as_str().is_some_and(|output| output.contains("`colums`")), "{ended}");
    let check = browser.get("/api/v1/check?file=job.yaml&offline=true");
    assert_eq!((&check["can_run"], &check["lints"][0]["line"]), (&json!(false), &json!(2)), "{check}");
    for (body, status) in [
        (json!({"file": "no/such.yaml"}), 404),
        (json!({"file": "../job.yaml"}), 404),
        (json!({"file": "/etc/passwd"}), 404),
        (json!({"files": "job.yaml"}), 400),
        (json!([]), 400),
    ] {
        browser.send("POST", "/api/v1/start", &body).is(status);
    }
}

#[test]
fn a_schedule_is_followed_and_shown() {
    let served = Served::new(&[
        ("job.yaml", &SLOW.replace("20kB", "20GB")),
        ("in.csv", &numbers(10)),
        (
            "soon.yaml",
            "schedule: {cron: '0 2 * * *', files: {pattern: '*.go', min_age: 0s}}\nsteps:\n  load: {job: job.yaml}\n",
        ),
        ("broken.yaml", "schedule: {cron: 'x'}\nsteps:\n  load: {job: job.yaml}\n"),
    ]);
    let browser = served.browser();
    served.lab.file("jobs/now.go", "");
    let overview = browser.get_until("/api/v1/overview", |overview| {
        overview["strips"].as_array().is_some_and(|strips| strips.iter().any(|strip| strip["file"] == "soon.yaml"))
            && overview["notices"].as_array().is_some_and(|notices| notices.iter().any(|one| one["level"] == "error"))
    });
    assert_eq!(overview["schedule"]["scheduler"]["state"], "here", "{overview}");
    let next = &overview["schedule"]["sequences"][0];
    assert_eq!((&next["file"], next["next"].as_array().map(Vec::len)), (&json!("soon.yaml"), Some(1)), "{overview}");
    assert!(overview["schedule"]["lints"][0]["path"].as_str().is_some_and(|path| path.ends_with("broken.yaml")));
    let runs = browser.get("/api/v1/runs?file=soon.yaml&limit=1");
    let run = runs["runs"][0]["run"].as_str().expect("a run");
    browser.run_ended(run);
    // Another scheduler does not start beside this one.
    served.lab.run(&["schedule", "jobs", "--once"]).ok().says(&["another scheduler works on this state folder"]);
}
