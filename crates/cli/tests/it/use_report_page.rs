//! `millstream report`: the text again, and the page, whatever the run and its names.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::program;
use crate::use_support::{Lab, Ran, finish};

/// Names that a page without escapes would take for elements.
const HOSTILE: &str = "<script>alert(1)</script>";

/// Reads a page as a browser does, more strictly: prints its elements, its text, and what it links to, as JSON.
const PARSER: &str = r##"
import html.parser, json, sys

class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.elements, self.text, self.ids, self.links, self.loaded = [], {}, [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.elements[tag] = self.elements.get(tag, 0) + 1
        for name, value in attributes:
            assert not name.startswith("on"), name
            if name == "id":
                assert value not in self.ids, value
                self.ids.append(value)
            if name == "href":
                self.links.append(value)
            if name in ("src", "srcset", "data", "action"):
                self.loaded.append(value)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open, self.getpos())
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text.append(data)

page = Page()
page.feed(open(sys.argv[1], encoding="utf-8").read())
page.close()
assert not page.open, page.open
assert all(link[:1] == "#" and link[1:] in page.ids for link in page.links), page.links
assert not page.loaded, page.loaded
print(json.dumps({"elements": page.elements, "text": "".join(page.text)}))
"##;

/// The elements and the text of the page in `file`, which must be well-formed.
#[track_caller]
fn parsed(lab: &Lab, file: &str) -> (Value, String) {
    let mut command = program(lab.0.root(), "python3");
    command.args(["-c", PARSER, file]);
    let ran = finish(command, None);
    let mut page = ran.ok().json();
    let text = page["text"].as_str().expect("text").to_owned();
    (page["elements"].take(), text)
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

fn last(lab: &Lab) -> String {
    lab.run(&["runs", "last", "--json"]).json()["run"]["run"].as_str().expect("a name").to_owned()
}

/// A job with rejects, a check that does not hold, and a column and a file of hostile names.
fn hostile() -> Lab {
    let lab = Lab::with_job(&format!(
        "sources:\n  s:\n    read: 'in/*.csv'\n    max_rejects: 5\n    csv: {{columns: {{id: int64, '{HOSTILE}': \
         int64}}}}\n    checks:\n      - {{rows: {{min: 100}}, severity: warn, message: '{HOSTILE} \"quoted\"'}}\n\
         transforms:\n  few: {{filter: {{from: s, where: id < 10}}}}\nsinks:\n  o: {{from: few, write: out.csv}}\n"
    ));
    lab.file("in/<b>a\"&.csv", format!("id,{HOSTILE}\n1,2\n2,{HOSTILE}\n3,4\n"));
    lab
}

#[test]
fn a_page_has_numbers_graph_checks_rejects_and_the_run_before() {
    let lab = hostile();
    lab.run(&["run", "job.yaml"]).ok();
    let first = last(&lab);
    lab.file("in/b.csv", format!("id,{HOSTILE}\n5,6\n7,8\n"));
    lab.run(&["run", "job.yaml"]).ok();
    let run = last(&lab);
    let ran = lab.run(&["report", &run, "--html"]);
    assert_eq!(ran.ok().stdout, format!("{run}.html\n"));
    let (elements, text) = parsed(&lab, &format!("{run}.html"));
    assert!(elements["script"].is_null() && elements["svg"].as_u64() >= Some(1), "{elements}");
    has(
        &text,
        &[
            "job.yaml done",
            "5 rows read, 4 written, 1 rejected",
            &format!("Compared with run {first}"),
            "+67 %",
            "limited by: ",
            "source, 4 rows, 1 rejected",
            "sink, 4 rows",
            "does not hold",
            &format!("{HOSTILE} \"quoted\""),
            &format!("1 × value, by s, column {HOSTILE}"),
            "<b>a\"&.csv, line 3",
            &format!("2,{HOSTILE}"),
        ],
    );
}

#[test]
fn the_text_is_what_the_run_printed() {
    let lab = hostile();
    let printed = lab.run(&["run", "job.yaml"]).ok().stderr.clone();
    let again = lab.run(&["report"]);
    assert!(printed.ends_with(&again.ok().stdout), "{printed}\n{}", again.stdout);
    let name = last(&lab);
    assert_eq!(lab.run(&["report", &name]).ok().stdout, again.stdout);
    let report = lab.run(&["report", "--json"]).ok().json();
    assert_eq!((report["run"].as_str(), report["rows_written"].as_u64()), (Some(name.as_str()), Some(2)));
    let entries = serde_json::json!([
        {"entry": "s", "kind": "source", "reads": []},
        {"entry": "few", "kind": "transform", "reads": ["s"]},
        {"entry": "o", "kind": "sink", "reads": ["few"]},
    ]);
    assert_eq!(report["entries"], entries);
    let end = &report["points"].as_array().expect("points").last().expect("the end")["rows_read"];
    assert_eq!(end, &report["rows_read"]);
}

#[test]
fn a_failed_run_shows_why_and_how_far_it_came() {
    let lab = hostile();
    lab.file("in/b.csv", format!("id,{HOSTILE}\n{}", format!("9,{HOSTILE}\n").repeat(50)));
    lab.run(&["run", "job.yaml"]).ended(3);
    lab.run(&["report", "--html", "a.html"]).ok();
    let (_, text) = parsed(&lab, "a.html");
    has(&text, &["job.yaml failed", "max_rejects", "× value, by s", "Graph", "Steps", "No complete run before it"]);
    // There is nothing that was printed at its end.
    let told = lab.run(&["report"]);
    assert_eq!(told.ok().stdout, lab.run(&["runs", "last"]).stdout);
    assert!(lab.run(&["report", "--json"]).ok().json()["steps"].is_array());
}

/// `report` until `is_there` holds for what it prints.
fn until(lab: &Lab, arguments: &[&str], is_there: impl Fn(&Ran) -> bool) -> Ran {
    let begun = Instant::now();
    loop {
        let ran = lab.run(arguments);
        if is_there(&ran) {
            return ran;
        }
        assert!(begun.elapsed() < Duration::from_secs(180), "{ran:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_run_that_is_running_or_was_killed_has_a_page_and_no_report() {
    let lab = Lab::with_job("sources:\n  s: {read: '-', lines: {}}\nsinks:\n  o: {from: s, write: out.txt}\n");
    let mut child = lab
        .command(&["run", "job.yaml", "--quiet"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let ran = until(&lab, &["report", "--html", "-"], |ran| ran.stdout.contains("running"));
    lab.file("running.html", &ran.stdout);
    let (_, text) = parsed(&lab, "running.html");
    has(&text, &["job.yaml running", "running since 20"]);
    lab.run(&["report", "--json"]).ended(2).says(&["has no report", "it is running", "--html` show what is known"]);
    child.kill().expect("it can be killed");
    child.wait().expect("it ends");
    lab.run(&["report", "--html", "killed.html"]).ok();
    let (_, text) = parsed(&lab, "killed.html");
    has(&text, &["job.yaml killed", "the process ended before it could record why"]);
    lab.run(&["report", "--json"]).ended(2).says(&["has no report", "it ended before it could write one"]);
    lab.run(&["report"]).ok().prints(&["killed"]);
}

#[test]
fn a_page_that_cannot_be_written_leaves_nothing() {
    let lab = hostile();
    lab.run(&["report"]).ended(2).says(&["there is no run `last`"]);
    lab.run(&["run", "job.yaml"]).ok();
    let name = last(&lab);
    let wrong = format!("{}x", &name[..name.len() - 1]);
    lab.run(&["report", &wrong]).ended(2).says(&[&format!("there is no run `{wrong}`"), "did you mean", &name]);
    lab.run(&["report", "last", "--html", "no/such/a.html"])
        .ended(1)
        .says(&["the page cannot be written to no/such/a.html"]);
    assert!(!lab.path("no").exists());
    lab.file("old.html", "old");
    lab.run(&["report", "last", "--html", "old.html", "--json"]).ok();
    assert!(lab.read("old.html").starts_with("<!DOCTYPE html>"));
    lab.run(&["report", "--html", "-", "--json"]).ended(2).says(&["both the page and its path"]);
    // A full disk, as far as a test can have one.
    lab.run(&["report", "--html", "/dev/full"]).ended(1).says(&["the page cannot be written to /dev/full"]);
    lab.run(&["report", "--html", "/dev/null"]).ok();
    assert!(!std::path::Path::new("/dev/null").is_file(), "it stays a device");
    let left = fs_err::read_dir(lab.0.root()).expect("a folder").filter_map(Result::ok);
    assert!(!left.into_iter().any(|file| file.file_name().to_string_lossy().starts_with(".page")));
}

/// What a sequence leaves in the history, as its process stores it.
#[test]
fn a_sequence_shows_its_steps_and_the_reports_of_its_jobs() {
    let lab = hostile();
    lab.run(&["run", "job.yaml"]).ok();
    let before = last(&lab);
    let history = rusqlite::Connection::open(lab.path(".state/runs.db")).expect("the history");
    let step = |name: &str, needs: &[&str], outcome: &str, parts: Value| {
        serde_json::json!({"name": name, "kind": "job", "what": HOSTILE, "needs": needs, "when": "success",
                           "outcome": outcome, "began": 2_000, "ended": 5_000, "message": null, "parts": parts})
    };
    let insert = |load: &str| {
        let part = |run: &str| {
            serde_json::json!({"item": null, "attempts": 1, "outcome": "success", "began": 2_000, "ended": 4_000,
                               "run": run, "message": null, "results": {"rows_written": 2}})
        };
        let steps = [
            step("load", &[], "success", serde_json::json!([part(load)])),
            step(HOSTILE, &["load"], "failed", serde_json::json!([])),
        ];
        let report = serde_json::json!({"outcome": "failed", "began": 1_000, "ended": 9_000, "message": HOSTILE,
                                        "parameters": {"DAY": "2026-01-01", "TOKEN": "abc"}, "steps": steps});
        let sql = "INSERT INTO runs (run, logical, job, variables, process, began, ended, outcome, message, report, \
                   moment, kind) VALUES ('1-1', '1-1', ?1, '', 1, 1000, 9000, 'failed', ?2, ?3, 1000, 'sequence')";
        let path = lab.path("nightly.yaml").display().to_string();
        history.execute(sql, [path.as_str(), HOSTILE, &report.to_string()]).expect("stored");
    };
    insert("later");
    lab.run(&["run", "job.yaml"]).ok();
    let load = lab.run(&["runs", "--json"]).json()["runs"][0]["run"].as_str().expect("a name").to_owned();
    history.execute("UPDATE runs SET sequence = '1-1', step = 'load' WHERE run = ?1", [&load]).expect("stored");
    let sql = "UPDATE runs SET report = replace(report, 'later', ?1) WHERE run = '1-1'";
    history.execute(sql, [&load]).expect("stored");

    let listed = lab.run(&["runs"]);
    let line = |run: &str| listed.stdout.lines().find(|line| line.starts_with(run)).expect("a line").to_owned();
    assert!(line(&load).contains("  load of nightly.yaml  "), "{}", listed.stdout);
    assert!(!line(&before).contains("nightly.yaml"), "{}", listed.stdout);
    // The last run is the one that was started, and not its step.
    assert_eq!(last(&lab), "1-1");
    let told = lab.run(&["report"]);
    told.ok().prints(&["run 1-1 of", "failed\n", "load ", "success", "3.00 s"]);
    assert_eq!(lab.run(&["report", "--json"]).ok().json()["parameters"]["TOKEN"], "***");
    lab.run(&["runs", &load]).ok().prints(&["step load of nightly.yaml, run 1-1\n"]);
    lab.run(&["report", "--html", "a.html"]).ok();
    let (elements, text) = parsed(&lab, "a.html");
    assert!(elements["article"] == 1 && elements["svg"].as_u64() >= Some(3), "{elements}");
    has(
        &text,
        &[
            "nightly.yaml failed",
            &format!("failed after 8.00 s: {HOSTILE}"),
            "TOKEN=***",
            "1 failed, 1 success",
            &format!("load to {HOSTILE}"),
            "rows_written=2",
            "load: job.yaml",
            &format!("Compared with run {before}"),
        ],
    );
}

#[test]
fn a_sequence_that_ran_has_a_page_with_its_job() {
    let lab = hostile();
    lab.file(
        "nightly.yaml",
        "steps:\n  load: {job: job.yaml}\n  say: {command: [echo, '${steps.load.rows_written}'], needs: [load]}\n  \
         alarm: {command: [echo, alarm], needs: [say], when: failure}\n",
    );
    lab.run(&["run", "nightly.yaml"]).ok();
    assert_eq!(lab.run(&["runs", "last", "--json"]).ok().json()["run"]["kind"], "sequence");
    lab.run(&["report", "--html", "a.html"]).ok();
    let (elements, text) = parsed(&lab, "a.html");
    assert!(elements["article"] == 1 && elements["a"].as_u64() >= Some(1), "{elements}");
    has(
        &text,
        &[
            "nightly.yaml done",
            "1 skipped, 2 success",
            "load to say; say to alarm",
            "load: job.yaml",
            "3 rows read, 2 written, 1 rejected",
            "1 × value, by s",
        ],
    );
    lab.run(&["runs"]).ok().prints(&["load of nightly.yaml"]);
    lab.run(&["report"]).ok().prints(&["nightly.yaml: done", "step", "skipped"]);
}
