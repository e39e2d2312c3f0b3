//! `contains` through the real binary: records that lack the text are no rows and no rejects, and count as filtered.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::transcript::{Session, assert_transcript};
use crate::use_support::{Lab, csv_rows, finish, gzip, sorted, sqlite};

/// Enough for several chunks of 1 MiB.
const RECORDS: usize = 30_000;

fn kind(id: usize) -> &'static str {
    ["view", "view", "view", "order", "refund"][id % 5]
}

/// Events of several kinds; of the views some are no JSON.
fn events(ids: std::ops::Range<usize>) -> String {
    let mut text = String::new();
    for id in ids {
        let broken = if id % 50 == 1 { "" } else { "}" };
        let note = "some more text ".repeat(6);
        let _ = writeln!(text, r#"{{"id":{id},"kind":"{}","note":"{note}","amount":{}{broken}"#, kind(id), id % 7);
    }
    text
}

const COLUMNS: &str = "json: {columns: {id: int64, kind: utf8, amount: int64}}, on_drift: 'null'";

fn tally(report: &Value) -> [u64; 4] {
    let tally = &report["results"][0]["tally"];
    ["read", "written", "filtered", "rejected"].map(|key| tally[key].as_u64().unwrap_or_else(|| panic!("{report:#}")))
}

#[test]
fn json_lines_without_the_text_are_filtered_before_they_are_parsed() {
    let lab = Lab::new();
    lab.file("in/0.jsonl", events(0..RECORDS));
    lab.file("in/1.jsonl.gz", gzip(events(RECORDS..2 * RECORDS).as_bytes()));
    let job = |contains: &str| {
        format!(
            "sources:\n  s: {{read: 'in/*', add: [_line], contains: {contains}, {COLUMNS}}}\nsinks:\n  o: {{from: s, \
             write: out.csv}}\n"
        )
    };
    let wanted = |keep: &dyn Fn(usize) -> bool| -> Vec<Vec<String>> {
        let row =
            |id: usize| vec![id.to_string(), kind(id).to_owned(), (id % 7).to_string(), (id % RECORDS + 1).to_string()];
        sorted((0..2 * RECORDS).filter(|id| keep(*id)).map(row).collect())
    };
    lab.file("job.yaml", job(r#"{all: ['"kind":"order"', '"amount":3']}"#));
    let report = lab.report(&[]);
    let orders = wanted(&|id| kind(id) == "order" && id % 7 == 3);
    assert_eq!(sorted(csv_rows(&lab.read("out.csv"))), orders);
    let (all, kept) = (2 * RECORDS as u64, orders.len() as u64);
    assert_eq!(tally(&report), [all, kept, all - kept, 0]);
    let steps = report["steps"].as_array().expect("a list");
    let parse = steps.iter().find(|step| step["kind"] == "parse").expect("it parses");
    assert_eq!((&parse["rows"], &parse["passed_over"]), (&kept.into(), &(all - kept).into()), "what is parsed");
    assert_eq!(report["rows_read"], all);

    lab.file("job.yaml", job(r#"{any: ['"order"', '"refund"'], all: ['"amount":3']}"#));
    lab.report(&[]);
    assert_eq!(sorted(csv_rows(&lab.read("out.csv"))), wanted(&|id| id % 5 > 2 && id % 7 == 3));

    // What has the text and is no JSON is still an error.
    lab.file("job.yaml", job("{all: [view]}"));
    lab.run(&["run", "job.yaml"]).ended(1).says(&["in/0.jsonl, line 2"]);
    lab.file("job.yaml", job("{all: [no such text]}"));
    assert_eq!(tally(&lab.report(&[])), [all, 0, all, 0]);
    let explained = lab.run(&["explain", "job.yaml"]);
    assert!(explained.ok().stdout.contains("only records that contain \"no such text\" are parsed"));
}

#[test]
fn a_record_of_several_lines_is_one_record() {
    let lab = Lab::new();
    let text = concat!(
        "id,note\n1,a\n2,\"first line\nneedle, on the second\n\nlast\"\n3,\"needle\"\n\n",
        "4,\"one\ntwo\"\n5,b,needle\n6,b,c\n",
    );
    lab.file("in.csv", text);
    let rows = concat!(
        "[\n  {\n    \"id\": 1,\n    \"note\": \"needle\"\n  },\n",
        "  {\"id\": 2, \"note\": \"other\"},\n  {\"id\": \"needle\"}]\n",
    );
    lab.file("in.json", rows);
    for (file, columns, expected, counts) in [
        ("in.csv", "csv: {columns: {id: int64, note: utf8}}", vec!["2 3", "3 7"], [6, 2, 3, 1]),
        ("in.json", "json: {columns: {id: int64, note: utf8}}", vec!["1 2"], [3, 1, 1, 1]),
    ] {
        lab.file(
            "job.yaml",
            format!(
                "sources:\n  s: {{read: {file}, add: [_line], max_rejects: 1, contains: {{all: [needle]}}, \
                 {columns}}}\n\
                 sinks:\n  o: {{from: s, write: out.csv}}\n"
            ),
        );
        let report = lab.report(&[]);
        let shown: Vec<String> =
            csv_rows(&lab.read("out.csv")).iter().map(|row| format!("{} {}", row[0], row[2])).collect();
        assert_eq!((shown, tally(&report)), (expected.into_iter().map(str::to_owned).collect(), counts), "{file}");
        let rejects = lab.run(&["rejects", "--json"]).ok().json();
        let raw = rejects["rejects"][0]["raw"]["text"].as_str().expect("a record").to_owned();
        assert!(raw.contains("needle"), "{raw}");
    }
}

#[test]
fn loads_resume_and_other_texts_are_another_job() {
    let lab = Lab::new();
    lab.file("in/0.jsonl", events(0..RECORDS));
    lab.file("in/1.jsonl", events(RECORDS..2 * RECORDS));
    let job = |text: &str| {
        format!(
            "sources:\n  s: {{read: 'in/*', contains: {{any: ['{text}']}}, {COLUMNS}}}\nsinks:\n  o: {{from: s, write: \
             'sqlite:out.db', table: t}}\n"
        )
    };
    lab.file("job.yaml", job("order"));
    let in_chunks = |arguments: &[&str]| {
        let mut command = lab.command(arguments);
        command.env("MILLSTREAM_CHUNK_BYTES", "100000");
        command
    };
    let mut killed = in_chunks(&["run", "job.yaml"]);
    let killed = killed.env("MILLSTREAM_FAIL_AT", "commit.after:2").output().expect("it starts");
    assert!(!killed.status.success());
    let before = sqlite(&lab.path("out.db"), "SELECT count(*) FROM t")[0][0].clone();
    assert!((1..12_000).contains(&before.parse().expect("a number")), "{before}");
    lab.file("job.yaml", job("refund"));
    finish(in_chunks(&["run", "job.yaml", "--resume"]), None).ended(1).says(&["the job has changed"]);
    lab.file("job.yaml", job("order"));
    let report = finish(in_chunks(&["run", "job.yaml", "--resume", "--json"]), None).ok().json();
    let ids: Vec<String> = (0..2 * RECORDS).filter(|id| kind(*id) == "order").map(|id| id.to_string()).collect();
    let loaded = sqlite(&lab.path("out.db"), "SELECT id FROM t ORDER BY id");
    assert_eq!(loaded.into_iter().flatten().collect::<Vec<_>>(), ids);
    let tally = &report["results"][0]["tally"];
    assert_eq!(tally["filtered"].as_u64().map(|filtered| filtered > 0), Some(true), "{tally}");
}

/// A reject had the text when it was read; loaded again, it is not looked at for it.
#[test]
fn a_reject_is_loaded_again_whatever_it_contains() {
    let lab = Lab::new();
    lab.file("in.jsonl", "{\"id\":1,\"note\":\"needle\"}\n{\"id\":2,\"note\":\"no\"}\n{\"id\":3,\"x\":\"needle\"}\n");
    let job = |drift: &str| {
        format!(
            "sources:\n  s: {{read: in.jsonl, max_rejects: 1, contains: {{all: [needle]}}, on_drift: {drift}, json: \
             {{columns: {{id: int64, note: utf8}}}}}}\nsinks:\n  o: {{from: s, write: 'sqlite:out.db', table: t}}\n"
        )
    };
    lab.file("job.yaml", job("fail"));
    assert_eq!(tally(&lab.report(&[])), [3, 1, 1, 1]);
    lab.file("job.yaml", job("'null'"));
    let ran = lab.run(&["rejects", "--replay", "--json"]);
    assert_eq!(ran.ok().json()["replayed"], json!({"loaded": 1, "failed": 0, "impossible": {}}));
    assert_eq!(sqlite(&lab.path("out.db"), "SELECT id FROM t ORDER BY id"), [["1"], ["3"]]);
}

/// The types are those of all records of the sample.
#[test]
fn columns_come_from_all_records() {
    let lab = Lab::new();
    lab.file("in.jsonl", "{\"n\":1.5}\n{\"n\":2,\"t\":\"needle\"}\n");
    lab.file(
        "job.yaml",
        "sources:\n  s: {read: in.jsonl, contains: {all: [needle]}}\nsinks:\n  o: {from: s, write: out.jsonl}\n",
    );
    lab.report(&[]);
    assert_eq!(lab.read("out.jsonl"), "{\"n\":2.0,\"t\":\"needle\"}\n");
}

#[test]
fn what_cannot_be_searched_is_refused_and_what_may_be_missed_is_told() {
    let mut session = Session::new();
    session.tree.file("a.jsonl", "{\"id\": 1}\n");
    let job = |source: &str| format!("sources:\n  s: {{{source}}}\nsinks:\n  o: {{from: s, write: discard}}\n");
    for source in [
        "read: a.parquet, contains: {any: [x]}",
        "read: a.bin, parquet: {}, contains: {any: [x]}",
        "read: 'sqlite:a.db', sqlite: {table: t}, contains: {any: [x]}",
        "read: a.jsonl, contains: {any: [x, ''], al: [x]}",
        "read: a.jsonl, contains: {}",
        "read: a.jsonl, contains: {any: []}",
        "read: a.jsonl, contains: x",
    ] {
        session.tree.file("job.yaml", job(source));
        session.fails(2, &["check", "job.yaml"]);
    }
    let doubtful = r#"contains: {any: ['https://x', 'a\b', "tab\t", 'Zürich', 'said "no" to', '"id": 1', plain]}"#;
    session.tree.file("job.yaml", job(&format!("read: a.jsonl, {doubtful}")));
    assert_eq!(session.run(&["check", "job.yaml"]).code, Some(0));
    session.tree.file("job.yaml", job("read: a.jsonl, lines: {}, contains: {all: [\"two\\nlines\"]}"));
    assert_eq!(session.run(&["check", "job.yaml"]).code, Some(0));
    session.tree.file("a.csv", "id,b\n1,2\n");
    session.tree.file("job.yaml", job("read: a.csv, contains: {all: ['said \"no\" to', '1,2']}"));
    assert_eq!(session.run(&["check", "job.yaml"]).code, Some(0));
    assert_transcript!("contains_lints", session);
}
