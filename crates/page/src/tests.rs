//! Pages of runs in a real history.

use std::sync::Arc;

use millstream_core::reject::{RawText, Rejected};
use millstream_core::{Error, RejectKind};
use millstream_state::rejects::{Line, RejectLine, RejectLog};
use millstream_state::{Ending, JobKey, LogicalRun, OfStep, RunHistory, RunKind, RunRecord};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::html;

/// What no part of a page may become.
const HOSTILE: &str = "<script>alert(\"1\")</script> & 'x'";

struct Lab {
    folder: TempDir,
    history: Arc<RunHistory>,
}

impl Lab {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        let history = RunHistory::open(folder.path()).expect("it opens");
        Lab { folder, history }
    }

    /// A run that has ended.
    fn run(&self, name: &str, path: &str, kind: RunKind, of_step: Option<&OfStep>, end: Result<Value, &str>) {
        let logical = LogicalRun { first: name, moment: 7, series: None, kind, of_step };
        let key = JobKey { path: path.to_owned(), variables: "DAY=2026-01-01\nDB_PASSWORD=hunter2".to_owned() };
        let live = self.history.begin(name, logical, &key).expect("it begins");
        let error = end.as_ref().err().map(|message| Error::job(*message));
        let (read, rejected) = (1_000, 2);
        let ending = Ending {
            rows_read: read,
            rows_written: read - rejected,
            rows_rejected: rejected,
            units: 3,
            report: end.ok(),
        };
        live.end(error.as_ref(), &ending).expect("stored");
    }

    fn find(&self, name: &str) -> RunRecord {
        self.history.find(name).expect("it answers").expect("a run")
    }

    fn page(&self, name: &str) -> String {
        let page = html(&self.history, &self.find(name), None).expect("a page");
        assert_sound(&page);
        page
    }
}

/// Each element is closed, in the right order, ids are there once, and links within the page lead somewhere.
#[track_caller]
fn assert_sound(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = page.strip_prefix("<!DOCTYPE html>").expect("its type");
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').expect("a tag ends");
        let tag = &rest[start + 1..end];
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
        match tag.starts_with('/') {
            true => assert_eq!(open.pop(), Some(name), "{}", &rest[..end]),
            false if name != "meta" => open.push(name),
            false => {}
        }
        assert!(name != "script", "{tag}");
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "{open:?}");
    let values = |before: &str| -> Vec<String> {
        page.split(before).skip(1).map(|part| part.split('"').next().unwrap_or_default().to_owned()).collect()
    };
    let ids = values(" id=\"");
    let mut once = ids.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), ids.len(), "{ids:?}");
    values("href=\"#").iter().for_each(|to| assert!(ids.contains(to), "{to} in {ids:?}"));
    assert!(!page.contains("href=\"http") && !page.contains("src="), "it asks for nothing");
}

fn report(seconds: u64) -> Value {
    let point = |second: u64| {
        json!({"elapsed_ms": 1_000 * second, "rows_read": 100 * second, "rows_written": 90 * second,
               "bytes_read": 5_000 * second})
    };
    json!({
        "seconds": seconds,
        "bytes_read": 5_000 * seconds,
        "peak_rss_bytes": 50_000_000,
        "verdict": {"limit": "cores", "sentence": "limited by: parsing csv (places), 2 of 2 cores busy 94 %"},
        "entries": [
            {"entry": "places", "kind": "source", "reads": []},
            {"entry": HOSTILE, "kind": "transform", "reads": ["places"]},
            {"entry": "places", "kind": "sink", "reads": [HOSTILE]},
        ],
        "steps": [
            {"name": "places", "kind": "parse", "detail": "csv", "rows": 998, "rejected": 2, "bytes": 70_000,
             "busy": 2.5},
            {"name": HOSTILE, "kind": "transform", "detail": "filter", "rows": 500, "busy": 1.0},
            {"name": "places", "kind": "load", "detail": "sqlite", "rows": 500, "bytes": 60_000, "waiting_output": 0.7},
            {"name": "idle", "kind": "transform", "detail": "union"},
        ],
        "points": (1..=seconds).map(point).collect::<Vec<_>>(),
        "checks": [
            {"entry": "places", "check": "not_null: id", "severity": "fail", "holds": true, "what": "0 of 998 rows"},
            {"entry": "places", "check": HOSTILE, "severity": "warn", "holds": false, "broken": 1, "what": HOSTILE,
             "examples": [HOSTILE]},
        ],
        "results": [{"sink": "places", "target": "t", "summary": "500 rows in table t"}],
        "skipped": [{"source": "places", "uri": HOSTILE, "what": "is no gzip"}],
    })
}

#[test]
fn a_job_shows_its_numbers_graph_steps_rates_checks_and_rejects() {
    let lab = Lab::new();
    let mut earlier = report(5);
    earlier["bytes_read"] = json!(12_500);
    lab.run("1-1", "/jobs/load.yaml", RunKind::Job, None, Ok(earlier));
    lab.run("2-1", "/jobs/load.yaml", RunKind::Job, None, Ok(report(5)));
    let log = RejectLog::new(lab.folder.path(), "2-1", "2-1");
    for (line, column) in [(3, "id"), (4, HOSTILE), (5, HOSTILE)] {
        let rejected = Rejected {
            step: "places".to_owned(),
            kind: RejectKind::Value,
            message: format!("no number: {HOSTILE}"),
            column: Some(column.to_owned()),
            source: Some("places".to_owned()),
            sink: None,
            uri: Some(HOSTILE.to_owned()),
            member: None,
            id: None,
            line: Some(line),
            last_line: None,
            byte: Some(9),
            raw: Some(RawText::new(HOSTILE.as_bytes())),
            row: None,
        };
        let line = RejectLine { rejected, head: None, chunk: None, delivery: 0, again: None };
        log.add([Line::Reject(Box::new(line))], true).expect("kept");
    }
    let page = lab.page("2-1");
    for part in [
        "<title>load.yaml done, ",
        "1,000 rows read, 998 written, 2 rejected",
        "limited by: parsing csv (places), 2 of 2 cores busy 94 %",
        "<code>DB_PASSWORD=***</code>",
        "Compared with run 1-1, the last complete one before it",
        "25.0 kB</td><td class=\"right\">12.5 kB</td><td class=\"right\">+100 %</td>",
        "source, 998 rows, 2 rejected",
        "sink, 500 rows",
        "rows read: 100/s on average, 100/s at most",
        "1 idle step not shown.",
        "does not hold",
        "3 records rejected",
        "2 × <b class=\"bad\">value</b>, by places, column &lt;script&gt;",
        ", line 4: no number: &lt;script&gt;",
        "cannot be opened and was left out: is no gzip",
        "500 rows in table t",
    ] {
        assert!(page.contains(part), "`{part}` is not in {page}");
    }
    assert!(!page.contains("hunter2"));
    // The graph has an edge to each of the two that read another one.
    assert_eq!(page.matches("class=\"edge\"").count(), 2, "{page}");
}

#[test]
fn runs_that_have_no_report_have_a_page() {
    let lab = Lab::new();
    lab.run("1-1", "/jobs/load.yaml", RunKind::Job, None, Err(HOSTILE));
    let page = lab.page("1-1");
    assert!(page.contains("failed</b> after ") && page.contains(" s: &lt;script&gt;"), "{page}");
    let logical = LogicalRun { first: "2-2", moment: 7, series: None, kind: RunKind::Job, of_step: None };
    let key = JobKey { path: "/jobs/load.yaml".to_owned(), variables: String::new() };
    let live = lab.history.begin("2-2", logical, &key).expect("it begins");
    assert!(lab.page("2-2").contains("running</b> since 20"));
    drop(live);
    assert!(lab.page("2-2").contains("killed</b>: the process ended before it could record why"));
}

/// A sequence with a job that failed once, a loop, and a mail that is being sent.
fn sequence() -> Value {
    let part = |item: Value, attempts: u64, outcome: &str, began: u64, run: Value| {
        json!({"item": item, "attempts": attempts, "outcome": outcome, "began": began, "ended": began + 2_000,
               "run": run, "message": null, "results": {"run": run, "rows_written": 5, "token": "abc"}})
    };
    let step = |name: &str, kind: &str, needs: &[&str], outcome: &str, parts: Value| {
        json!({"name": name, "kind": kind, "what": HOSTILE, "needs": needs, "when": "success", "outcome": outcome,
               "began": 10_000, "ended": 14_500, "message": null, "parts": parts})
    };
    let load = json!([part(Value::Null, 2, "success", 12_500, json!("12-1"))]);
    let each = json!([
        part(json!("SHOP=a"), 1, "success", 15_000, json!("13-1")),
        part(json!(HOSTILE), 1, "success", 15_000, json!("unknown-1")),
    ]);
    let mail = json!({"name": "mail", "kind": "mail", "needs": ["each"], "outcome": "running", "began": 18_000,
                      "ended": null, "parts": []});
    json!({
        "sequence": "/jobs/nightly.yaml", "run": "10-1", "outcome": "failed", "moment": 7, "began": 10_000,
        "ended": null, "parameters": {"DAY": "2026-01-01", "API_KEY": "abc"}, "message": "step `load` failed once",
        "steps": [step("load", "job", &[], "success", load), step("each", "job", &["load"], "success", each), mail],
    })
}

#[test]
fn a_sequence_shows_its_steps_and_the_runs_of_its_jobs() {
    let lab = Lab::new();
    let mut before = sequence();
    before["steps"][0]["ended"] = json!(13_000);
    before["steps"][1]["parts"][0]["run"] = json!("3-1");
    let of = |step: &str| OfStep { sequence: "10-1".to_owned(), step: step.to_owned() };
    lab.run("1-1", "/jobs/nightly.yaml", RunKind::Sequence, None, Ok(before));
    // Of other days, so that only the sequence says which runs are alike.
    lab.run("3-1", "/jobs/other.yaml", RunKind::Job, Some(&of("each")), Ok(report(4)));
    lab.run("11-1", "/jobs/load.yaml", RunKind::Job, Some(&of("load")), Err("the server is gone"));
    lab.run("12-1", "/jobs/load.yaml", RunKind::Job, Some(&of("load")), Ok(report(3)));
    lab.run("13-1", "/jobs/shop.yaml", RunKind::Job, Some(&of("each")), Ok(report(4)));
    let logical = LogicalRun { first: "10-1", moment: 7, series: None, kind: RunKind::Sequence, of_step: None };
    let key = lab.find("1-1");
    let key = JobKey { path: key.job, variables: key.variables };
    let _live = lab.history.begin("10-1", logical, &key).expect("it begins");
    let page = html(&lab.history, &lab.find("10-1"), Some(&sequence())).expect("a page");
    assert_sound(&page);
    for part in [
        "<title>nightly.yaml failed, ",
        "failed</b>: step `load` failed once",
        "<code>API_KEY=***</code>",
        "<b class=\"live\">1 running</b>, <b class=\"good\">2 success</b>",
        "load, 2 attempts: success, 2.00 s",
        "success</b> after 2 attempts</td>",
        "<h3>load, an earlier attempt: load.yaml</h3>",
        "4.50 s</td><td class=\"right\">3.00 s</td><td class=\"right\">+50 %</td>",
        "<td class=\"text\">job &lt;script&gt;",
        "<a href=\"#run-12-1\">12-1</a>",
        "<td>unknown-1</td>",
        "rows_written=5, token=***",
        " s: the server is gone",
        "<article id=\"run-13-1\"><h3>each SHOP=a: shop.yaml</h3>",
        "Compared with run 3-1",
        "load of /jobs/nightly.yaml, run 10-1",
    ] {
        assert!(page.contains(part), "`{part}` is not in {page}");
    }
    assert!(!page.contains("abc"), "{page}");
    assert_eq!(page.matches("class=\"bar").count(), 4, "each part, and the mail");
    let mut so_far = sequence();
    so_far["outcome"] = json!("running");
    so_far["ended"] = json!(70_000);
    let page = html(&lab.history, &lab.find("10-1"), Some(&so_far)).expect("a page");
    assert!(page.contains("running</b> for 60.0 s: no step has failed so far"), "{page}");
    assert_eq!(page.matches("<dt>ended").count(), 3, "only the jobs have");
}

#[test]
fn sequences_in_sequences_and_damaged_reports_come_to_an_end() {
    let lab = Lab::new();
    let of = |run: &str| {
        json!({"outcome": "done", "steps": [{"name": "again", "kind": "sequence", "outcome": "success",
               "parts": [{"run": run, "outcome": "success"}]}]})
    };
    lab.run("1-1", "/a.yaml", RunKind::Sequence, None, Ok(of("2-1")));
    lab.run("2-1", "/b.yaml", RunKind::Sequence, None, Ok(of("1-1")));
    let page = lab.page("1-1");
    assert_eq!(page.matches("<article").count(), 1, "{page}");
    lab.run("3-1", "/c.yaml", RunKind::Sequence, None, Ok(json!({"steps": [7, {"parts": "x"}], "began": "y"})));
    lab.run("4-1", "/d.yaml", RunKind::Job, None, Ok(json!({"steps": 1, "checks": [[]], "entries": [{"reads": [3]}]})));
    lab.page("3-1");
    lab.page("4-1");
}
