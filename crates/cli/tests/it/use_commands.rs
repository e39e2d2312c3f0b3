//! The commands beside `run`, through the real binary.

use std::fmt::Write as _;

use millstream_testkit::Nginx;
use serde_json::{Value, json};

use crate::use_support::{Lab, csv_rows, finish, gzip, names, sorted, zip_of};

const COMMANDS: [&str; 11] =
    ["run", "report", "check", "explain", "preview", "sql", "guess", "count", "cat", "completions", "man"];

fn table() -> String {
    (0..50).fold("id,name,x\n".to_owned(), |mut text, id| {
        let _ = writeln!(text, "{id},name {id},{}.5", id % 9);
        text
    })
}

#[test]
fn check_tells_all_faults_at_once_and_offline_needs_nobody() {
    let port = millstream_testkit::free_port();
    let job = |column: &str| {
        format!(
            "sources:\n  s: {{read: 'http://127.0.0.1:{port}/a.csv', csv: {{columns: {{id: int64}}}}}}\n  \
             l: {{read: local.csv}}\ntransforms:\n  t: {{sql: 'select {column} from l'}}\n  u: {{union: [s, \
             t]}}\nsinks:\n  \
             o: {{from: u, write: 'sqlite:not/there/a.db', table: t}}\n"
        )
    };
    let lab = Lab::with_job(&job("id"));
    lab.file("local.csv", "id\n1\n");
    lab.run(&["check", "--offline", "job.yaml"]).ok().says(&["job.yaml can run"]);
    assert!(!lab.path("not").exists(), "a check makes nothing");
    // What needs neither network nor database is found offline too, with its place.
    lab.file("job.yaml", job("idd"));
    lab.run(&["check", "--offline", "job.yaml"]).ended(2).says(&["idd", "job.yaml:5"]);
    lab.file(
        "job.yaml",
        "sources:\n  s: {read: local.csv, cvs: {}}\ntransforms:\n  t: {filter: {from: ss, where: id = }}\n\
         sinks:\n  o: {from: t, write: out.csv, overwrite: perhaps}\n",
    );
    let ran = lab.run(&["check", "job.yaml"]);
    ran.ended(2).says(&["`cvs`", "did you mean `csv`?", "`ss`", "overwrite", "job.yaml:2", "job.yaml:4", "job.yaml:6"]);
    let told: Value = lab.run(&["check", "job.yaml", "--json"]).json();
    assert!(told["lints"].as_array().is_some_and(|lints| lints.len() >= 3), "{told:#}");
}

#[test]
fn the_schema_takes_what_check_takes() {
    let lab = Lab::new();
    let schema = lab.run(&["check", "--schema"]).ok().json();
    jsonschema::meta::validate(&schema).expect("a JSON schema");
    let validator = jsonschema::validator_for(&schema).expect("a JSON schema");
    let job = json!({
        "sources": {
            "a": {"read": ["a.csv", "b/*.csv"], "csv": {"delimiter": ";", "columns": {"id": "int64"}}, "add": ["_uri"]},
            "b": {
                "read": "https://host/{000..999}.json.gz", "http": {"connections": 3},
                "json": {"columns": {"id": "int64"}}
            }
        },
        "transforms": {
            "u": {"union": ["a", "b"]},
            "s": {"sort": {"from": "u", "by": ["id desc"], "limit": 5}}
        },
        "sinks": {"o": {"from": "s", "write": "sqlite:x.db", "table": "t", "mode": "merge", "key": ["id"]}}
    });
    // JSON is YAML.
    let accepted = |job: &Value| {
        lab.file("job.yaml", job.to_string());
        lab.run(&["check", "--offline", "job.yaml"]).code == 0
    };
    lab.file("a.csv", "id\n1\n");
    lab.file("b/b.csv", "id\n1\n");
    assert!(validator.is_valid(&job), "{:?}", validator.iter_errors(&job).map(|e| e.to_string()).collect::<Vec<_>>());
    assert!(accepted(&job), "{}", lab.run(&["check", "--offline", "job.yaml"]).stderr);
    for (pointer, wrong) in [
        ("/sources/a/add", json!(["_url"])),
        ("/sources/b/http/connections", json!(0)),
        ("/transforms/s/sort/limit", json!("five")),
        ("/sinks/o/mode", json!("upsert")),
        ("/transforms/u", json!({"onion": []})),
    ] {
        let mut job = job.clone();
        *job.pointer_mut(pointer).expect("a value") = wrong;
        assert!(!validator.is_valid(&job), "the schema takes {pointer}");
        assert!(!accepted(&job), "check takes {pointer}");
    }
}

#[test]
fn explain_shows_what_is_pushed_down_to_the_readers() {
    let lab = Lab::with_job(
        "sources:\n  s: {read: a.csv}\n  p: {read: a.parquet}\ntransforms:\n  t: {sql: \"select name from s where id > \
         3\"}\n  \
         q: {sql: 'select sum(x) AS x from p where id = 7'}\nsinks:\n  o: {from: t, write: out.csv}\n  q: {from: q, \
         write: q.csv}\n",
    );
    lab.file("a.csv", table());
    lab.file("make.yaml", "sources:\n  s: {read: a.csv}\nsinks:\n  o: {from: s, write: a.parquet}\n");
    lab.run(&["run", "make.yaml"]).ok();
    let plan = lab.run(&["explain", "job.yaml"]).ok().stdout.clone();
    let line = |source: &str| {
        let mut lines = plan.lines().filter(|line| line.contains(&format!("ReadExec: {source},")));
        lines.next().unwrap_or_else(|| panic!("{plan}")).to_owned()
    };
    assert!(line("s").contains("columns=[name]") && line("s").contains("> 3"), "{plan}");
    assert!(line("p").contains("columns=[x]") && line("p").contains("= 7"), "{plan}");
    assert!(!plan.contains("FilterExec"), "the readers filter: {plan}");
    assert!(!lab.path("out.csv").exists());
}

#[test]
fn preview_shows_the_first_rows_of_any_step_and_writes_nothing() {
    let lab = Lab::with_job(
        "sources:\n  s: {read: a.csv}\ntransforms:\n  t: {sort: {from: s, by: [id desc]}}\nsinks:\n  o: {from: t, \
         write: out.csv}\n",
    );
    lab.file("a.csv", table());
    let shown = lab.run(&["preview", "job.yaml", "-n", "2"]).ok().stdout.clone();
    let words: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words, [vec!["id", "name", "x"], vec!["49", "name", "49", "4.5"], vec!["48", "name", "48", "3.5"]]);
    let rows: Value = lab.run(&["preview", "job.yaml", "s", "--rows", "1", "--json"]).ok().json();
    assert_eq!(rows, json!([{"id": 0, "name": "name 0", "x": 0.5}]));
    lab.run(&["preview", "job.yaml", "nobody"]).ended(2).says(&["nobody"]);
    assert!(!lab.path("out.csv").exists());
}

#[test]
fn what_guess_writes_runs() {
    let lab = Lab::new();
    let text = table();
    let expected = sorted(csv_rows(&text));
    lab.file(
        "make.yaml",
        "sources:\n  s: {read: a.csv}\nsinks:\n  o: {from: s, write: a.parquet}\n  j: {from: s, write: a.jsonl}\n",
    );
    lab.file("a.csv", &text);
    lab.run(&["run", "make.yaml"]).ok();
    lab.file("tab.tsv", text.replace(',', "\t"));
    lab.file("semicolon.txt", text.replace(',', ";"));
    lab.file("packed.csv.gz", gzip(text.as_bytes()));
    lab.file("archive.zip", zip_of(&[("in/a.csv", text.as_bytes())]));
    lab.file("served/a.csv", &text);
    let nginx = Nginx::start(&lab.path("served"));
    let url = nginx.url("a.csv");
    for input in ["a.csv", "*.tsv", "semicolon.txt", "packed.csv.gz", "archive.zip", "a.parquet", "a.jsonl", &url] {
        let job = lab.run(&["guess", input]).ok().stdout.clone();
        lab.file("guessed.yaml", &job);
        lab.run(&["check", "guessed.yaml"]).ok();
        let ran = lab.run(&["run", "guessed.yaml", "-q"]);
        assert_eq!(sorted(csv_rows(&ran.ok().stdout)), expected, "{input}: {job}");
        if !input.ends_with("parquet") {
            assert!(job.contains("id: int64") && job.contains("x: float64"), "types are frozen: {job}");
        }
    }
    let nested = "{\"id\":1,\"tags\":[\"a\"],\"at\":{\"lat\":1.5}}\n";
    lab.file("nested.jsonl", nested);
    lab.file("make.yaml", "sources:\n  s: {read: nested.jsonl}\nsinks:\n  o: {from: s, write: nested.parquet}\n");
    lab.run(&["run", "make.yaml"]).ok();
    for input in ["nested.jsonl", "nested.parquet"] {
        lab.file("guessed.yaml", &lab.run(&["guess", input]).ok().stdout);
        assert_eq!(lab.run(&["run", "guessed.yaml", "-q"]).ok().stdout, nested, "{input}");
    }
    lab.file("words.log", "just words, no table\n\nand more: words\nx\n");
    lab.file("guessed.yaml", &lab.run(&["guess", "words.log"]).ok().stdout);
    lab.run(&["run", "guessed.yaml"]).ok();
}

#[test]
fn count_counts_lines_as_wc_does_and_one_without_an_end() {
    let lab = Lab::new();
    let files =
        [("a.txt", "1\n2\n3\n"), ("b.txt", "no end"), ("c.txt", "\n\n"), ("d.txt", ""), ("e.txt", "x\r\ny\r\nz")];
    for (name, text) in files {
        lab.file(&format!("in/{name}"), text);
        if !text.is_empty() {
            lab.file(&format!("in/{name}.gz"), gzip(text.as_bytes()));
        }
    }
    lab.file("in/z.zip", zip_of(&[("m", b"1\n2"), ("n", b"3")]));
    let by_unit: Vec<String> =
        lab.run(&["count", "--by-unit", "in/*"]).ok().stdout.lines().map(str::to_owned).collect();
    let expected = [
        "3\tin/a.txt",
        "3\tin/a.txt.gz",
        "1\tin/b.txt",
        "1\tin/b.txt.gz",
        "2\tin/c.txt",
        "2\tin/c.txt.gz",
        "0\tin/d.txt",
        "3\tin/e.txt",
        "3\tin/e.txt.gz",
        "3\tin/z.zip",
    ];
    assert_eq!(by_unit, expected);
    assert_eq!(lab.run(&["count", "in/*"]).ok().stdout, "21\n");
    assert_eq!(lab.run(&["count", "in/*", "--json"]).ok().json()["lines"], 21);
    lab.run(&["count", "none/*"]).ended(1).says(&["no file matches"]);
}

#[test]
fn cat_writes_the_decoded_bytes_in_the_order_of_the_names() {
    let lab = Lab::new();
    let bytes: Vec<u8> = (0..=255_u8).cycle().take(100_000).collect();
    lab.file("1.bin.gz", gzip(&bytes));
    lab.file("2.bin", b"\x00\xff plain");
    let output = lab.command(&["cat", "1.bin.gz", "2.bin"]).output().expect("it runs");
    assert!(output.status.success());
    assert!(output.stdout == [&bytes[..], b"\x00\xff plain"].concat());
}

#[test]
fn completions_are_scripts_of_their_shells() {
    let lab = Lab::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = lab.run(&["completions", shell]).ok().stdout.clone();
        for command in COMMANDS {
            assert!(script.contains(command), "{shell}: {command}");
        }
        let path = lab.file(shell, &script);
        if shell == "bash" {
            let mut bash = std::process::Command::new("bash");
            bash.arg("-n").arg(path);
            finish(bash, None).ok();
        }
    }
}

#[test]
fn every_command_has_a_page_and_help_with_examples() {
    let lab = Lab::new();
    assert!(lab.run(&["man"]).ok().stdout.contains(".SH NAME"));
    lab.run(&["man", "--folder", "pages"]).ok();
    let pages = names(&lab.path("pages"));
    for command in COMMANDS {
        assert!(pages.contains(&format!("millstream-{command}.1")), "{pages:?}");
        let help = lab.run(&[command, "--help"]).ok().stdout.clone();
        assert!(help.contains("Examples:") && help.contains(&format!("millstream {command}")), "{help}");
        let has_job = ["run", "rejects", "forget", "check", "explain", "preview"].contains(&command);
        assert_eq!(help.contains("--set <"), has_job, "{help}");
    }
    assert!(lab.run(&["--help"]).ok().stdout.contains("Examples:"));
    assert!(lab.run(&["--version"]).ok().stdout.starts_with("millstream "));
}
