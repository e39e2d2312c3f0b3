//! Steps for batches that promise `deterministic: true`, through the real binary: by every form of exchange, and one
//! behind the other, each row is loaded once.

use std::os::unix::process::ExitStatusExt;

use millstream_testkit::python_with_libraries;
use serde_json::{Value, json};

use crate::use_map::{FILES, ROWS, in_batches, lab, lab_of, none_is_left, small_chunks};
use crate::use_support::{Lab, finish, sorted, sqlite};

/// How often an id is given; with a file named `bad`, one of them ends the worker.
const TIMES: &str = "import os, sys
def times(id):
    if id == 5000 and os.path.exists('bad'): sys.exit(3)
    return 0 if 3500 <= id < 4500 else id % 3
";

const CSV: &str = r"
print('id', flush=True)
next(sys.stdin)
for line in sys.stdin:
    if line == '\n': print(flush=True); continue
    id = int(line.split(',')[0])
    for _ in range(times(id)): print(id)
";

const LINES: &str = r"
for line in sys.stdin:
    if line == '\n': print(flush=True); continue
    id = int(line.split()[1])
    for _ in range(times(id)): print(id)
";

const ARROW: &str = r"
import pyarrow
schema = pyarrow.schema([('id', pyarrow.int64())])
def f(batch):
    ids = [id for id in batch.column('id').to_pylist() for _ in range(times(id))]
    return pyarrow.record_batch([pyarrow.array(ids, pyarrow.int64())], schema=schema)
";

const ARROW_PROGRAM: &str = r"
with pyarrow.ipc.open_stream(sys.stdin.buffer) as rows, pyarrow.ipc.new_stream(sys.stdout.buffer, schema) as given:
    for batch in rows:
        given.write_batch(f(batch))
        sys.stdout.flush()
";

/// A job by each form of exchange, and its name.
fn labs() -> Vec<(&'static str, Lab)> {
    let python = python_with_libraries();
    let python = python.display();
    let forms = [
        ("csv", "command: [python3, code.py], exchange: csv".to_owned(), CSV.to_owned()),
        ("lines", "command: [python3, code.py], exchange: lines".to_owned(), LINES.to_owned()),
        ("arrow", format!("command: [{python}, code.py], exchange: arrow"), format!("{ARROW}{ARROW_PROGRAM}")),
        ("function", format!("python: code.py:f, interpreter: {python}, exchange: arrow"), ARROW.to_owned()),
    ];
    let lab = |(name, by, code): (&'static str, String, String)| {
        let columns = if name == "lines" { "{id: utf8}" } else { "{id: int64}" };
        let map = format!("per: batch, columns: {columns}, deterministic: true");
        let lab = lab_of(&format!("{TIMES}{code}"), &by, &map, "write: 'sqlite:o.db', table: t, mode: append");
        if name == "lines" {
            let names = "transforms:\n  names: {select: {from: s, columns: [name]}}";
            lab.file(
                "job.yaml",
                lab.read("job.yaml").replace("from: s,", "from: names,").replace("transforms:", names),
            );
        }
        (name, lab)
    };
    forms.into_iter().map(lab).collect()
}

fn killed_at(lab: &Lab, fail_point: &str) {
    let killed = small_chunks(lab, &["run", "job.yaml"]).env("MILLSTREAM_FAIL_AT", fail_point).status();
    assert_eq!(killed.expect("it starts").signal(), Some(9), "{fail_point}");
}

fn resume(lab: &Lab) {
    finish(small_chunks(lab, &["run", "job.yaml", "--resume"]), None).ok();
}

fn run(lab: &Lab) -> Value {
    let ran = finish(small_chunks(lab, &["run", "job.yaml", "--json"]), None);
    ran.ok().json()
}

fn loaded(lab: &Lab) -> Vec<Vec<String>> {
    sorted(sqlite(&lab.path("o.db"), "SELECT CAST(id AS TEXT) FROM t"))
}

#[test]
fn every_exchange_of_batches_is_resumed_chunk_by_chunk() {
    for (name, lab) in labs() {
        let explained = lab.run(&["explain", "job.yaml"]);
        assert!(explained.ok().stdout.contains("chunk by chunk, each exactly once"), "{name}: {}", explained.stdout);
        for fail_point in ["commit.before:2", "commit.after:3"] {
            killed_at(&lab, fail_point);
            resume(&lab);
            assert_eq!(loaded(&lab), in_batches(), "{name}, {fail_point}");
            sqlite(&lab.path("o.db"), "DELETE FROM t");
        }
        let report = run(&lab);
        let given = in_batches().len();
        let tally = json!({"read": FILES * ROWS, "written": given, "filtered": 0, "rejected": 0, "ignored": 0,
            "before": 0, "answered": FILES * ROWS, "given": given});
        assert_eq!(report["results"][0]["tally"], tally, "{name}: {report}");
        assert_eq!(loaded(&lab), in_batches(), "{name}");
        none_is_left(&lab);
    }
}

/// The row to blame is found by itself, is rejected as its record, and that is replayed.
#[test]
fn a_row_at_which_a_program_for_batches_ends_is_a_reject() {
    for (name, lab) in labs() {
        lab.file("job.yaml", lab.read("job.yaml").replace("\nsinks:", "\n    max_rejects: 1\nsinks:"));
        lab.file("bad", "");
        let report = run(&lab);
        let (read, given) = (FILES * ROWS, in_batches().len() - 2);
        let tally = json!({"read": read, "written": given, "filtered": 0, "rejected": 1, "ignored": 0, "before": 0,
            "answered": read - 1, "given": given});
        assert_eq!(report["results"][0]["tally"], tally, "{name}: {report}");
        let kept = lab.run(&["rejects", report["run"].as_str().expect("a run"), "--json"]);
        let kept = kept.ok().json()["rejects"].clone();
        assert_eq!(kept.as_array().map(Vec::len), Some(1), "{name}: {kept:#}");
        let told = ["uri", "line", "last_line", "step"].map(|key| kept[0][key].clone());
        assert_eq!(told, [json!("in/1.csv.gz"), json!(2002), Value::Null, json!("t")], "{name}: {kept:#}");
        assert_eq!(kept[0]["raw"]["text"], "5000,name 5000", "{name}: {kept:#}");
        fs_err::remove_file(lab.path("bad")).expect("removed");
        lab.run(&["rejects", "--replay"]).ok();
        assert_eq!(loaded(&lab), in_batches(), "{name}");
    }
}

/// What is given for batches is given on in batches, which have the place of all of their records.
#[test]
fn steps_for_batches_that_follow_each_other_are_loaded_chunk_by_chunk() {
    let code = format!(
        "{TIMES}\ndef f(rows):\n    for row in rows:\n        for _ in range(times(row['id'])): yield {{'id': \
         row['id']}}\n\ndef g(rows):\n    for row in rows:\n        yield {{'id': row['id']}}\n        yield {{'id': \
         -row['id']}}\n"
    );
    let map = "per: batch, columns: {id: int64}, deterministic: true";
    let lab = lab(&code, map, "write: 'sqlite:o.db', table: t, mode: append, max_rejects: 1");
    let second = format!("\n  u:\n    map: {{from: t, python: code.py:g, {map}}}\nsinks:");
    let job = lab.read("job.yaml").replace("\nsinks:", &second).replace("o: {from: t", "o: {from: u");
    lab.file("job.yaml", job);
    sqlite(&lab.path("o.db"), "CREATE TABLE t (id INTEGER CHECK (id <> -6100))");
    let explained = lab.run(&["explain", "job.yaml"]);
    for told in ["chunk by chunk, each exactly once", "since `t` promises", "since `u` promises"] {
        assert!(explained.ok().stdout.contains(told), "{}", explained.stdout);
    }
    let once = in_batches();
    let of_second = once.iter().flat_map(|row| [row[0].clone(), format!("-{}", row[0])]).filter(|id| id != "-6100");
    let expected = sorted(of_second.map(|id| vec![id]).collect());
    killed_at(&lab, "commit.after:2");
    resume(&lab);
    assert_eq!(loaded(&lab), expected);
    sqlite(&lab.path("o.db"), "DELETE FROM t");

    let report = run(&lab);
    let (read, first, second) = (FILES * ROWS, once.len(), once.len() * 2);
    let tally = json!({"read": read, "written": second - 1, "filtered": 0, "rejected": 1, "ignored": 0, "before": 0,
        "answered": read + first, "given": first + second});
    assert_eq!(report["results"][0]["tally"], tally, "{report}");
    assert_eq!(loaded(&lab), expected);
    let kept = lab.run(&["rejects", report["run"].as_str().expect("a run"), "--json"]);
    let kept = kept.ok().json()["rejects"][0].clone();
    assert_eq!((&kept["uri"], &kept["raw"]), (&json!("in/2.csv"), &Value::Null), "{kept:#}");
    let number = |key: &str| kept[key].as_u64().unwrap_or_else(|| panic!("{kept:#}"));
    assert!((number("line")..=number("last_line")).contains(&102), "{kept:#}");
    assert!(number("last_line") - number("line") < 2000 / 10, "{kept:#}");
}
