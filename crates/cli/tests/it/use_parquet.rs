//! Parquet through the real binary, with Python's libraries on the other side: they read what it writes, and write
//! what it has to read, or to refuse.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use millstream_testkit::{TempTree, python_with_libraries};
use serde_json::{Value, json};

use crate::harness::{self, MILLSTREAM};
use crate::use_databases::Database;
use crate::use_support::{Lab, Ran, csv_rows, sqlite};

fn python(script: &str, folder: &Path) {
    let program = python_with_libraries();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(script);
    let output = Command::new(program).arg(script).arg(folder).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The files of `write_parquet.py`.
fn files() -> &'static TempTree {
    static FILES: OnceLock<TempTree> = OnceLock::new();
    FILES.get_or_init(|| {
        let folder = TempTree::new();
        python("write_parquet.py", folder.root());
        folder
    })
}

/// A job that reads file `name` with the further keys `source`, into the further entries `rest`.
fn lab(name: &str, source: &str, rest: &str) -> Lab {
    let path = files().path(&format!("{name}.parquet"));
    Lab::with_job(&format!("sources:\n  s: {{read: '{}', parquet: {{}}{source}}}\n{rest}", path.display()))
}

const TO_CSV: &str = "sinks:\n  o: {from: s, write: out.csv}\n";

fn to_json(sql: &str) -> String {
    format!("transforms:\n  t: {{sql: \"{sql}\"}}\nsinks:\n  o: {{from: t, write: out.jsonl}}\n")
}

fn run(lab: &Lab, more: &[&str]) -> Ran {
    let ran = lab.run(&[&["run", "job.yaml"], more].concat());
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
    ran
}

/// The rows of a file that is read to its end.
fn rows(name: &str, sql: &str) -> Vec<Value> {
    let lab = lab(name, "", &to_json(sql));
    run(&lab, &[]).ok();
    lab.read("out.jsonl").lines().map(|line| serde_json::from_str(line).expect("json")).collect()
}

#[test]
fn what_is_written_is_read_by_everyone() {
    let lab = Lab::new();
    lab.file(
        "nested.jsonl",
        [
            r#"{"id":1,"name":"Ulm","lists":[["a",null],[]],"structs":[{"k":"x","n":1}],"raw":"00ff","amount":1.5,"#,
            r#""at":"2024-01-02T03:04:05"}"#,
            "\n",
            r#"{"id":2,"name":null,"lists":null,"structs":[],"raw":null,"amount":null,"at":null}"#,
            "\n",
            r#"{"id":3,"name":"a text that is longer than twelve bytes","#,
            r#""lists":[["much longer than a view holds itself"]],"#,
            r#""structs":[{"k":null,"n":null},{"k":"another text, longer than a view","n":2}],"#,
            r#""raw":"","amount":-99999999.99,"at":"1969-12-31T23:59:59.999999"}"#,
            "\n",
        ]
        .concat(),
    );
    lab.file("plain.csv", "id,name\n1,a\n2,b\n3,a\n");
    let columns = "{id: int64, name: utf8, lists: list<list<utf8>>, structs: 'list<struct<k: utf8, n: int64>>', \
                   raw: binary, \
                   amount: 'decimal(10, 2)', at: timestamp}";
    let sinks = ["snappy", "zstd", "gzip", "lz4", "none"].map(|codec| {
        format!("  {codec}: {{from: nested, write: nested-{codec}.parquet, parquet: {{compression: {codec}}}}}\n")
    });
    lab.file(
        "job.yaml",
        format!(
            "sources:\n  nested: {{read: nested.jsonl, json: {{columns: {columns}}}}}\n  \
             plain: {{read: plain.csv, csv: {{}}}}\n\
             transforms:\n  none_of_it: {{filter: {{from: plain, where: id > 9}}}}\nsinks:\n{}  \
             p: {{from: plain, write: plain.parquet}}\n  e: {{from: none_of_it, write: empty.parquet}}\n",
            sinks.concat()
        ),
    );
    run(&lab, &[]).ok();
    python("read_parquet.py", lab.0.root());
}

#[test]
fn a_value_that_its_type_excludes_is_refused_whatever_is_written() {
    let mut sinks: Vec<String> =
        ["out.csv", "out.jsonl", "out.parquet", "'-', csv: {}"].map(|write| format!("write: {write}")).into();
    sinks.push("write: 'sqlite:out.db', table: t".to_owned());
    sinks.extend(Database::both().iter().map(|database| format!("write: '{}', table: excluded", database.url)));
    for sink in sinks {
        let refused = lab("decimals", "", &format!("sinks:\n  o: {{from: s, {sink}}}\n"));
        run(&refused, &[]).ended(1).says(&[
            "error: the value has more digits than decimal(5, 2) allows",
            "decimals.parquet, line 2, byte ",
            ", column d",
            "text `-44315.38`",
            "cause in row group 0",
            "hint: to continue without such records: `max_rejects: 100` (or `1%`) at `s`",
        ]);
        let left_out = lab("decimals", ", max_rejects: 1", &format!("sinks:\n  o: {{from: s, {sink}}}\n"));
        let ran = run(&left_out, &[]);
        ran.ok().says(&["1 rejected"]);
        assert!(!ran.stdout.contains("443"), "{}", ran.stdout);
    }
    let lines = lab(
        "decimals",
        "",
        "transforms:\n  t: {sql: 'SELECT CAST(d AS VARCHAR) AS line FROM s'}\nsinks:\n  \
         o: {from: t, write: out.txt, lines: {}}\n",
    );
    run(&lines, &[]).ended(1).says(&["-44315.38"]);

    let left_out = lab("decimals", ", max_rejects: 1", "sinks:\n  o: {from: s, write: 'sqlite:out.db', table: t}\n");
    run(&left_out, &[]).ok();
    assert_eq!(sqlite(&left_out.path("out.db"), "SELECT id, d FROM t"), [["1", "0.01"], ["3", "0.02"]]);
    left_out.run(&["rejects"]).ok();
    let told = left_out.run(&["rejects", "--json"]);
    for part in ["-44315.38", "out_of_range", "\"line\":2", "\"row\":"] {
        assert!(told.stdout.replace(": ", ":").contains(part), "{part}: {}", told.stdout);
    }
}

#[test]
fn a_time_outside_of_a_day_is_refused() {
    run(&lab("times", "", TO_CSV), &[]).ended(1).says(&[
        "error: the value is not within a day",
        "line 2, byte ",
        "column t",
        "text `-03:51:39`",
    ]);
    let left_out = lab("times", ", max_rejects: 1", TO_CSV);
    run(&left_out, &[]).ok();
    assert_eq!(csv_rows(&left_out.read("out.csv")), [["1", "00:00:00.000001"], ["3", "00:00:00.000002"]]);
}

#[test]
fn a_sum_of_decimals_has_all_of_its_digits_or_is_refused() {
    let lab = |max_rejects: &str| {
        let lab = Lab::with_job(&format!(
            "sources:\n  s: {{read: in.csv, csv: {{columns: {{id: int64, a: 'decimal(38, 0)'}}}}}}\ntransforms:\n  \
             t: {{sql: 'SELECT id, a + 1 AS b FROM s'{max_rejects}}}\nsinks:\n  o: {{from: t, write: out.csv}}\n"
        ));
        let nines = "9".repeat(38);
        lab.file("in.csv", format!("id,a\n1,{}\n2,{nines}\n3,-{nines}\n", &nines[1..]));
        lab
    };
    let nines = "9".repeat(38);
    run(&lab(""), &[]).ended(1).says(&["the result does not fit into its type", &format!("text `{nines} + 1`")]);
    let left_out = lab(", max_rejects: 1");
    run(&left_out, &[]).ok();
    let expected = [["1".to_owned(), format!("1{}", "0".repeat(37))], ["3".to_owned(), format!("-{}8", &nines[1..])]];
    assert_eq!(csv_rows(&left_out.read("out.csv")), expected);
}

#[test]
fn files_and_row_groups_without_rows_are_read() {
    assert_eq!(rows("empty", "SELECT * FROM s"), [] as [Value; 0]);
    assert_eq!(rows("empty", "SELECT count(name) AS n FROM s"), [json!({"n": 0})]);
    let expected = [json!({"n": 1, "name": "a"}), json!({"n": 2, "name": "b"})];
    assert_eq!(rows("empty-group", "SELECT * FROM s"), expected);
}

#[test]
fn equal_values_in_small_pages_are_no_bomb() {
    assert_eq!(rows("zeros", "SELECT count(z) AS n, max(z) AS z FROM s"), [json!({"n": 30_000_000, "z": 0.0})]);
    assert_eq!(rows("equal", "SELECT count(DISTINCT z) AS z, count(z) AS n FROM s"), [json!({"z": 1, "n": 3_000_000})]);
    assert_eq!(rows("zero-lists", "SELECT sum(cardinality(z)) AS n FROM s"), [json!({"n": 12_000_000})]);
}

#[test]
fn uuids_are_text_with_dashes() {
    let id = "12345678-1234-5678-1234-56781234567a";
    assert_eq!(rows("uuids", "SELECT u FROM s"), [json!({"u": id}), json!({"u": null})]);
    assert_eq!(rows("uuids", &format!("SELECT u FROM s WHERE u = '{id}'")), [json!({"u": id})]);
    let list = json!({"u": ["00000000-0000-0000-0000-000000000005"]});
    assert_eq!(rows("uuid-lists", "SELECT u FROM s"), [list, json!({"u": []})]);
    let to_csv = lab("uuids", "", TO_CSV);
    run(&to_csv, &[]).ok();
    assert_eq!(to_csv.read("out.csv"), format!("u\n{id}\n\n"));
    let to_table = lab("uuids", "", "sinks:\n  o: {from: s, write: 'sqlite:out.db', table: t}\n");
    run(&to_table, &[]).ok();
    assert_eq!(sqlite(&to_table.path("out.db"), "SELECT u FROM t WHERE u IS NOT NULL"), [[id]]);
}

#[test]
fn the_checksum_of_a_page_is_verified() {
    for name in ["sums-none", "sums-zstd", "sums-v2"] {
        assert_eq!(rows(name, "SELECT sum(id) AS ids, count(s) AS n FROM s"), [json!({"ids": 499_500, "n": 1000})]);
    }
    run(&lab("flipped", "", TO_CSV), &[]).ended(1).says(&[
        "error: damaged parquet file",
        "column id",
        "cause row group 0: the checksum of a page does not match its bytes",
        "hint: write or fetch the file again",
    ]);
}

/// What a run with little memory may hold.
const LITTLE: f64 = 256e6;

/// Runs a job with little memory: what it says, with what the process held at most. Of the program's own pages, which
/// the kernel drops as it likes, a quarter counts at most, as for the run itself: those of a build for debugging are
/// half of the memory, and grow with the program.
fn starved(name: &str, sql: &str, source: &str) -> (Ran, f64) {
    let sinks = to_json(sql).replace("write: out.jsonl", "write: '-', json: {}");
    let lab = lab(name, source, &sinks);
    // Python waits for it, and asks the kernel.
    let mut watched = harness::program(lab.0.root(), "python3");
    watched.arg("-c").arg(
        "import re, resource, subprocess, sys, time\n\
         run, program = subprocess.Popen(sys.argv[2:]), 0\n\
         while run.poll() is None:\n    \
             status = open(f'/proc/{run.pid}/status').read()\n    \
             program = max([program] + [int(kib) * 1024 for kib in re.findall(r'RssFile:\\s+(\\d+)', status)])\n    \
             time.sleep(0.005)\n\
         peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024\n\
         open(sys.argv[1], 'w').write(f'{peak} {program}'); sys.exit(run.returncode)",
    );
    watched.arg(lab.path("peak")).args([MILLSTREAM, "run", "job.yaml", "--memory", "256MB", "--cores", "2"]);
    let ran = crate::use_support::finish(watched, None);
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
    let held = lab.read("peak");
    let numbers: Vec<f64> = held.split(' ').map(|number| number.parse().expect("a number")).collect();
    let (peak, program) = (numbers[0], numbers[1]);
    assert!(program > 0.0 && program < peak, "it was seen at work: {held}");
    (ran, peak - program + program.min(LITTLE / 4.0))
}

#[test]
fn a_file_holds_no_more_memory_than_there_is() {
    let no_limit = ", limits: {ratio: 10000000}";
    // One value of 900 MB in 28 kB; a list of 50 million in 500 bytes.
    for (name, sql, column, size) in [
        ("long", "SELECT length(v) AS n FROM s", "v", "900 MB"),
        ("list", "SELECT cardinality(v) AS n FROM s", "v.list.element", "1.00 GB"),
    ] {
        for source in ["", no_limit] {
            let (ran, peak) = starved(name, sql, source);
            ran.ended(1).says(&[
                &format!("error: {size} of memory needed for row 1 of row group 0, and "),
                " are free",
                &format!("{name}.parquet, column {column}\n"),
                "hint: raise `--memory`, or read fewer columns",
            ]);
            assert!(peak < LITTLE, "{name}: {:.1} MB", peak / 1e6);
        }
    }
    let (ran, peak) = starved("prefixes", "SELECT length(v) AS n FROM s", no_limit);
    ran.ended(1).says(&[
        "error: 300 MB of memory needed for a page of texts that share their beginnings, in row group 0",
        "prefixes.parquet, column v\n",
    ]);
    assert!(peak < LITTLE, "{:.1} MB", peak / 1e6);
    let (ran, _) = starved("prefixes", "SELECT length(v) AS n FROM s", "");
    ran.ended(1).says(&["to 300 MB, more than 400 times its size", "column v\n", "raise `limits: {ratio: …}`"]);
    // What is long and comes bit by bit is read.
    for (name, length, bytes) in [
        ("dictionary-text", "octet_length(v)", 2_100_000_000_u64),
        ("dictionary-bytes", "length(v)", 2_100_000_000),
        ("rows", "octet_length(v)", 192_000_000),
    ] {
        let (ran, peak) = starved(name, &format!("SELECT sum({length}) AS bytes FROM s"), "");
        ran.ok();
        assert_eq!(ran.stdout, format!("{{\"bytes\":{bytes}}}\n"));
        assert!(peak < LITTLE, "{name}: {:.1} MB", peak / 1e6);
    }
}

#[test]
fn what_is_sound_is_read_and_what_is_not_supported_is_named() {
    let plain = [json!({"name": "a", "n": 1}), json!({"name": "b", "n": 2})];
    assert_eq!(rows("plain", "SELECT name, n FROM s"), plain);
    assert_eq!(rows("no-dictionary", "SELECT name, n FROM s"), plain);
    // Without its converted type a text is bytes, as for other readers.
    assert_eq!(rows("unknown", "SELECT n FROM s"), [json!({"n": 1}), json!({"n": 2})]);
    let expected = [json!({"x": 1, "x_3": "a", "x_2": 3, "x_4": 5}), json!({"x": 2, "x_3": "b", "x_2": 4, "x_4": 6})];
    assert_eq!(rows("twice", "SELECT * FROM s"), expected);
    assert_eq!(rows("twice", "SELECT x, x_4 FROM s WHERE x_4 = 6"), [json!({"x": 2, "x_4": 6})]);
    run(&lab("lzo", "", TO_CSV), &[]).ended(1).says(&[
        "error: the parquet file uses a part of the format that Millstream does not read",
        "LZO",
        "hint: write the file again without it, or leave the column out",
    ]);
    assert_eq!(rows("lzo", "SELECT n FROM s"), [json!({"n": 1}), json!({"n": 2})]);
    run(&lab("encrypted-column", "", TO_CSV), &[]).ended(1).says(&[
        "error: the column is encrypted",
        "column secret",
        "hint: Millstream does not read encrypted columns",
    ]);
    assert_eq!(rows("encrypted-column", "SELECT id FROM s"), [json!({"id": 1}), json!({"id": 2})]);
    run(&lab("encrypted-whole", "", TO_CSV), &[]).ended(1).says(&["error: the parquet file is encrypted"]);
}
