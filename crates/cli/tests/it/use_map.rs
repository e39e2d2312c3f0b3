//! Functions of one's own through the real binary: rows come out as the function gives them, what fails is a reject
//! with its place, and no process is left behind.

use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::use_databases::Database;
use crate::use_support::{Lab, csv_rows, finish, gzip, sorted, sqlite, step};

/// Rows of each file.
pub const ROWS: usize = 3_000;

pub const FILES: usize = 3;

/// A job over three files of ids and names, one of them packed, with `map` and `sink` as the rest of their entries.
pub fn lab(code: &str, map: &str, sink: &str) -> Lab {
    let lab = Lab::with_job(&format!(
        "sources:\n  s: {{read: 'in/*', csv: {{columns: {{id: int64, name: utf8}}}}}}\ntransforms:\n  t:\n    map: \
         {{from: s, python: code.py:f, {map}}}\nsinks:\n  o: {{from: t, {sink}}}\n"
    ));
    lab.file("code.py", code);
    for file in 0..FILES {
        let mut text = "id,name\n".to_owned();
        for id in file * ROWS..(file + 1) * ROWS {
            let _ = writeln!(text, "{id},name {id}");
        }
        match file {
            1 => lab.file("in/1.csv.gz", gzip(text.as_bytes())),
            _ => lab.file(&format!("in/{file}.csv"), text),
        };
    }
    lab
}

/// The ids that `code` keeps, doubled.
const DOUBLE: &str = "def f(row):\n    if row['id'] % 3 == 0: return None\n    return {'twice': row['id'] * 2}\n";

fn doubled() -> Vec<Vec<String>> {
    let kept = (0..FILES * ROWS).filter(|id| id % 3 != 0);
    sorted(kept.map(|id| vec![(id * 2).to_string(), format!("name {id}")]).collect())
}

/// The processes that work in `folder`.
pub fn processes_of(folder: &std::path::Path) -> Vec<u32> {
    let folder = fs_err::canonicalize(folder).expect("a folder");
    let all = fs_err::read_dir("/proc").expect("processes").filter_map(|entry| entry.ok());
    let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|id| std::fs::read_link(format!("/proc/{id}/cwd")).is_ok_and(|cwd| cwd == folder)).collect()
}

/// All processes of a run end with it, or soon after.
pub fn none_is_left(lab: &Lab) {
    let ended = Instant::now();
    while !processes_of(lab.0.root()).is_empty() {
        assert!(ended.elapsed() < Duration::from_secs(120), "{:?} live", processes_of(lab.0.root()));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn each_row_gives_one_row_or_none() {
    let lab = lab(DOUBLE, "columns: {twice: int64}, keep: [name]", "write: out.csv");
    let report = lab.report(&[]);
    let text = lab.read("out.csv");
    assert_eq!(text.lines().next(), Some("twice,name"));
    assert_eq!(sorted(csv_rows(&text)), doubled());
    let tally = &report["results"][0]["tally"];
    assert_eq!((&tally["written"], &tally["filtered"]), (&json!(6000), &json!(3000)), "{report}");
    none_is_left(&lab);
}

#[test]
fn a_batch_gives_any_number_of_rows() {
    let code = "def f(rows):\n    for row in rows:\n        for _ in range(row['id'] % 3): yield {'id': row['id']}\n";
    let lab = lab(code, "per: batch, columns: {id: int64}", "write: out.csv");
    lab.run(&["run", "job.yaml"]).ok();
    let expected = (0..FILES * ROWS).flat_map(|id| std::iter::repeat_n(vec![id.to_string()], id % 3));
    assert_eq!(sorted(csv_rows(&lab.read("out.csv"))), sorted(expected.collect()));
    lab.file("job.yaml", lab.read("job.yaml").replace("out.csv", "sqlite:o.db, table: t"));
    let explained = lab.run(&["explain", "job.yaml"]);
    let told = "all at once, since `t` takes rows in batches, and does not promise `deterministic: true`";
    assert!(explained.ok().stdout.contains(told), "{}", explained.stdout);
}

/// What gives a row up to twice, and nothing for any record of whole chunks; by its means of exchange.
const IN_BATCHES: &[(&str, &str)] = &[
    (
        "python: code.py:f",
        "def f(rows):\n    for row in rows:\n        if not 3500 <= row['id'] < 4500:\n            for _ in \
         range(row['id'] % 3): yield {'id': row['id']}\n",
    ),
    (
        "command: [python3, -u, code.py], exchange: json",
        "import json, sys\nfor line in sys.stdin:\n    if line == '\\n': print(flush=True); continue\n    row = \
         json.loads(line)\n    times = 0 if 3500 <= row['id'] < 4500 else row['id'] % 3\n    for _ in range(times): \
         print(json.dumps({'id': row['id']}))\n",
    ),
];

/// What [`IN_BATCHES`] give.
pub fn in_batches() -> Vec<Vec<String>> {
    let kept = (0..FILES * ROWS).filter(|id| !(3500..4500).contains(id));
    sorted(kept.flat_map(|id| std::iter::repeat_n(vec![id.to_string()], id % 3)).collect())
}

/// A job as [`lab`], with what computes the rows in `map` as well.
pub fn lab_of(code: &str, by: &str, map: &str, sink: &str) -> Lab {
    let lab = lab(code, map, sink);
    lab.file("job.yaml", lab.read("job.yaml").replace("python: code.py:f", by));
    lab
}

/// The command, with chunks that are much smaller than files.
pub fn small_chunks(lab: &Lab, arguments: &[&str]) -> std::process::Command {
    let mut command = lab.command(arguments);
    command.env("MILLSTREAM_CHUNK_BYTES", "2000").stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
fn batches_that_are_loaded_chunk_by_chunk_are_loaded_once() {
    let databases = Database::both();
    let urls = ["sqlite:o.db", &databases[0].url, &databases[1].url];
    for (index, (by, code)) in IN_BATCHES.iter().enumerate() {
        for url in &urls[..if index == 0 { 3 } else { 1 }] {
            let map = "per: batch, columns: {id: int64}, deterministic: true";
            let lab = lab_of(code, by, map, &format!("write: '{url}', table: t, mode: append"));
            let database = databases.iter().find(|one| one.url == *url);
            let query = |sql: &str| match database {
                Some(database) => database.query(sql).into_iter().map(|row| vec![row]).collect(),
                None => sqlite(&lab.path("o.db"), sql),
            };
            let explained = lab.run(&["explain", "job.yaml"]);
            for told in ["chunk by chunk, each exactly once", "since `t` promises `deterministic: true`"] {
                assert!(explained.ok().stdout.contains(told), "{}", explained.stdout);
            }
            let by_chunk = lab.read("job.yaml");
            let start_over = || {
                let _ = fs_err::remove_dir_all(lab.path(".state"));
                query("DROP TABLE IF EXISTS _millstream_ledger");
                query("DROP TABLE t");
            };
            let resumed = |what: &str| {
                finish(small_chunks(&lab, &["run", "job.yaml", "--resume"]), None).ok();
                assert_eq!(sorted(query("SELECT id FROM t")), in_batches(), "{what}");
                start_over();
            };
            for fail_point in ["commit.before:2", "commit.after:1", "commit.after:3", "state.after:2"] {
                let killed = small_chunks(&lab, &["run", "job.yaml"]).env("MILLSTREAM_FAIL_AT", fail_point).status();
                assert_eq!(killed.expect("it starts").signal(), Some(9), "{fail_point}");
                resumed(fail_point);
            }
            for moment in [300, 600, 900] {
                let mut run = small_chunks(&lab, &["run", "job.yaml"]).spawn().expect("it starts");
                std::thread::sleep(Duration::from_millis(moment));
                let _ = run.kill();
                run.wait().expect("it ends");
                resumed("killed at any moment");
            }
            // As by a version that loaded batches all at once.
            for fail_point in ["publish.before", "publish.after"] {
                lab.file("job.yaml", by_chunk.replace("mode: append", "mode: append, atomic: true"));
                let killed = small_chunks(&lab, &["run", "job.yaml"]).env("MILLSTREAM_FAIL_AT", fail_point).status();
                assert_eq!(killed.expect("it starts").signal(), Some(9), "{fail_point}");
                lab.file("job.yaml", &by_chunk);
                resumed(fail_point);
            }
            let report = lab.report(&[]);
            let rows = in_batches().len();
            let expected = json!({"read": FILES * ROWS, "written": rows, "filtered": 0, "rejected": 0, "ignored": 0,
                "before": 0, "answered": FILES * ROWS, "given": rows});
            assert_eq!(report["results"][0]["tally"], expected, "{report}");
        }
    }
}

/// A row that was given for a batch has the place of its records, which are of one file and one chunk.
#[test]
fn rows_of_batches_have_the_place_of_their_records() {
    let code = "def f(rows):\n    for row in rows:\n        if row['id'] == 3500: raise ValueError\n        yield \
                {'id': row['id']}\n        yield {'id': -row['id']}\n";
    for (more, chunks) in [("", true), (", atomic: true", false)] {
        let lab = lab(
            code,
            "per: batch, columns: {id: int64}, deterministic: true",
            &format!("write: 'sqlite:o.db', table: t, mode: append, max_rejects: 9{more}"),
        );
        lab.file("job.yaml", lab.read("job.yaml").replace("\nsinks:", "\n    max_rejects: 1\nsinks:"));
        sqlite(&lab.path("o.db"), "CREATE TABLE t (id INTEGER CHECK (id <> -100 AND id <> -7000))");
        let mut command = lab.command(&["run", "job.yaml", "--json"]);
        command.env("MILLSTREAM_CHUNK_BYTES", "2000");
        let ran = finish(command, None);
        let report = ran.ok().json();
        let tally = &report["results"][0]["tally"];
        let (read, given) = (FILES * ROWS, (FILES * ROWS - 1) * 2);
        let expected = json!({"read": read, "written": given - 2, "filtered": 0, "rejected": 3, "ignored": 0,
            "before": 0, "answered": read - 1, "given": given});
        assert_eq!(tally, &expected, "{report}");
        let kept = lab.run(&["rejects", report["run"].as_str().expect("a run"), "--json"]);
        let mut kept = kept.ok().json()["rejects"].as_array().expect("a list").clone();
        kept.sort_by_key(|one| one["uri"].to_string());
        let [first, alone, last] = &kept[..] else { panic!("{kept:#?}") };
        // The record to blame is found by itself.
        assert_eq!((&alone["uri"], &alone["line"], &alone["step"]), (&json!("in/1.csv.gz"), &json!(502), &json!("t")));
        assert_eq!((&alone["raw"]["text"], &alone["last_line"]), (&json!("3500,name 3500"), &Value::Null));
        for (one, uri, line) in [(first, "in/0.csv", 102), (last, "in/2.csv", 1002)] {
            assert_eq!((&one["uri"], &one["raw"]), (&json!(uri), &Value::Null), "{one:#?}");
            let number = |key: &str| one[key].as_u64().unwrap_or_else(|| panic!("{one:#?}"));
            assert!((number("line")..=number("last_line")).contains(&line), "{one:#?}");
            if chunks {
                assert!(number("last_line") - number("line") < 2000 / 10, "{one:#?}");
            }
        }
        let again = lab.run(&["rejects", "--replay"]);
        let told = "their rows were given for batches of records";
        assert!(again.ok().stdout.contains(told), "{}", again.stdout);
    }
}

#[test]
fn a_row_that_fails_ends_the_run_or_is_a_reject_with_its_place() {
    let code = "def f(row):\n    if row['id'] in (4000, 4001): return {'id': 1 // 0}\n    if row['id'] == 7000: return \
                {'id': 'x'}\n    return {'id': row['id']}\n";
    for sink in ["write: out.csv", "write: 'sqlite:o.db', table: t"] {
        let lab = lab(code, "columns: {id: int64}, deterministic: true", sink);
        let ran = lab.run(&["run", "job.yaml"]);
        ran.ended(1).says(&["error: ", "step t", "text `", "`max_rejects: 100` (or `1%`) at `t`"]);
        assert!(!lab.path("out.csv").exists());

        let job = lab.read("job.yaml").replace("\nsinks:", "\n    max_rejects: 10\nsinks:");
        lab.file("job.yaml", job);
        let report = lab.report(&[]);
        assert_eq!(report["rows_rejected"], json!(3), "{report}");
        let kept = lab.run(&["rejects", report["run"].as_str().expect("a run"), "--json"]);
        let kept = kept.ok().json()["rejects"].clone();
        let place = |reject: &Value| (reject["uri"].clone(), reject["line"].clone());
        let mut places: Vec<(Value, Value)> = kept.as_array().expect("a list").iter().map(place).collect();
        places.sort_by_key(|(uri, line)| (uri.to_string(), line.as_u64()));
        let expected = [("in/1.csv.gz", 1002), ("in/1.csv.gz", 1003), ("in/2.csv", 1002)];
        assert_eq!(places, expected.map(|(uri, line)| (json!(uri), json!(line))), "{kept:#?}");
    }
}

#[test]
fn a_load_chunk_by_chunk_that_was_killed_is_resumed() {
    let lab = lab(
        DOUBLE,
        "columns: {twice: int64}, keep: [name], deterministic: true",
        "write: 'sqlite:o.db', table: t, mode: append",
    );
    let explained = lab.run(&["explain", "job.yaml"]);
    assert!(explained.ok().stdout.contains("chunk by chunk, each exactly once"), "{}", explained.stdout);
    let mut command = lab.command(&["run", "job.yaml"]);
    command.env("MILLSTREAM_FAIL_AT", "commit.after:1").env("MILLSTREAM_CHUNK_BYTES", "2000");
    let killed = command.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("it starts");
    assert_eq!(killed.signal(), Some(9));
    let mut command = lab.command(&["run", "job.yaml", "--resume"]);
    command.env("MILLSTREAM_CHUNK_BYTES", "2000");
    finish(command, None).ok();
    assert_eq!(sorted(sqlite(&lab.path("o.db"), "SELECT twice, name FROM t")), doubled());
}

/// A file is more than one transaction here. Each of them could be the first of the file, and only one notes that.
#[test]
fn a_load_chunk_by_chunk_computes_each_row_once() {
    let databases = Database::both();
    for url in ["sqlite:o.db", &databases[0].url, &databases[1].url] {
        let lab = lab(
            "calls = open('calls', 'a', 1)\ndef f(row):\n    print(row['id'], file=calls)\n    return row\n",
            "columns: {id: int64, name: utf8}, deterministic: true",
            &format!("write: '{url}', table: each_once, mode: append"),
        );
        let mut command = lab.command(&["run", "job.yaml"]);
        command.env("MILLSTREAM_CHUNK_BYTES", "2000");
        finish(command, None).ok();
        let mut calls: Vec<usize> = lab.read("calls").lines().map(|id| id.parse().expect("an id")).collect();
        calls.sort_unstable();
        assert_eq!(calls, (0..FILES * ROWS).collect::<Vec<_>>(), "{url}");
    }
}

#[test]
fn a_changed_function_is_not_resumed() {
    let lab = lab(
        "import time\n\ndef f(row):\n    if row['id'] == 8999: raise ValueError\n    return {'id': row['id']}\n",
        "columns: {id: int64}, deterministic: true",
        "write: 'sqlite:o.db', table: t, mode: append",
    );
    let run = |arguments: &[&str]| {
        let mut command = lab.command(arguments);
        command.env("MILLSTREAM_CHUNK_BYTES", "2000");
        finish(command, None)
    };
    run(&["run", "job.yaml"]).ended(1);
    lab.file("code.py", "def f(row):\n    return {'id': row['id']}\n");
    run(&["run", "job.yaml", "--resume"]).ended(1).says(&["changed"]);
}

#[test]
fn a_worker_that_dies_costs_no_row_but_the_one_to_blame() {
    let code = "import os\n\ndef f(row):\n    if row['id'] == 4000: os._exit(3)\n    return {'id': row['id']}\n";
    let lab = lab(code, "columns: {id: int64}, deterministic: true", "write: 'sqlite:o.db', table: t");
    let ran = lab.run(&["run", "job.yaml"]);
    ran.ended(1).says(&["the Python worker of `f` of ", "it ended with status 3"]);
    lab.file("job.yaml", lab.read("job.yaml").replace("\nsinks:", "\n    max_rejects: 1\nsinks:"));
    let report = lab.report(&[]);
    assert_eq!((&report["rows_rejected"], &report["rows_written"]), (&json!(1), &json!(FILES * ROWS - 1)), "{report}");
    let rows = sqlite(&lab.path("o.db"), "SELECT count(*), count(DISTINCT id), sum(id = 4000) FROM t");
    assert_eq!(rows, [[(FILES * ROWS - 1).to_string(), (FILES * ROWS - 1).to_string(), "0".to_owned()]]);
}

/// Its worker says at which row it is, so nobody has to look for the row by trying.
#[test]
fn a_row_at_which_a_worker_is_lost_is_found_at_once() {
    for what in ["time.sleep(1000)", "os._exit(3)"] {
        let code = format!(
            "import os, time\n\ndef f(row):\n    if row['id'] == 4000:\n        open('tried', 'a').write('x')\n        \
             {what}\n    return {{'id': row['id']}}\n"
        );
        let lab = lab(&code, "columns: {id: int64}, timeout: 3s", "write: out.csv");
        lab.file("job.yaml", lab.read("job.yaml").replace("\nsinks:", "\n    max_rejects: 1\nsinks:"));
        let report = lab.report(&[]);
        assert_eq!(report["rows_rejected"], json!(1), "{report:#}");
        let mut ids: Vec<usize> =
            csv_rows(&lab.read("out.csv")).iter().map(|row| row[0].parse().expect("id")).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..FILES * ROWS).filter(|id| *id != 4000).collect::<Vec<_>>());
        // Once in a call of many rows, and alone; more often if the machine is so busy that a call takes too long. By
        // halves it would be twelve times.
        let tried = lab.read("tried").len();
        assert!((2..=5).contains(&tried), "{tried} times");
        let work = &step(&report, "t", "transform")["work"];
        assert_eq!(work["restarts"], json!(tried), "{report:#}");
        if what.starts_with("time") {
            assert!(work["lost_seconds"].as_f64().is_some_and(|lost| lost >= 3.0), "{report:#}");
            let sentence = report["verdict"]["sentence"].as_str().expect("a sentence");
            assert!(!sentence.contains("give it more"), "{sentence}");
        }
        assert!(work["retries"].as_u64().is_some_and(|retries| (1..20).contains(&retries)), "{report:#}");
        let told = lab.run(&["run", "job.yaml"]).ok().stderr.clone();
        assert!(told.contains("  restarts  retries  "), "{told}");
    }
}

#[test]
fn a_function_that_hangs_or_takes_too_much_memory_fails() {
    let code = "import time\n\ndef f(row):\n    if row['id'] == 10: time.sleep(1000)\n    return {'id': row['id']}\n";
    let hangs = lab(code, "columns: {id: int64}, timeout: 2s, workers: 1", "write: out.csv");
    fs_err::remove_file(hangs.path("in/1.csv.gz")).expect("removed");
    fs_err::remove_file(hangs.path("in/2.csv")).expect("removed");
    hangs.file("in/0.csv", "id,name\n9,a\n10,b\n11,c\n");
    hangs.run(&["run", "job.yaml"]).ended(1).says(&["has not answered within 2s", "raise `timeout`"]);
    hangs.file("job.yaml", hangs.read("job.yaml").replace("\nsinks:", "\n    max_rejects: 1\nsinks:"));
    hangs.run(&["run", "job.yaml"]).ok();
    assert_eq!(csv_rows(&hangs.read("out.csv")), [["9"], ["11"]]);

    let code = "import time\n\ndef f(row):\n    if row['id'] == 10:\n        kept = bytearray(400_000_000)\n        \
                time.sleep(1000)\n    return {'id': row['id']}\n";
    let large = lab(code, "columns: {id: int64}, memory: 200MB, workers: 1", "write: out.csv");
    large.run(&["run", "job.yaml"]).ended(1).says(&["takes more memory than it may", "raise `memory`"]);
}

#[test]
fn what_cannot_be_loaded_is_found_by_check() {
    let at = |code: &str| {
        let lab = lab(code, "columns: {id: int64}", "write: out.csv");
        let checked = lab.run(&["check", "job.yaml"]);
        assert_ne!(checked.code, 0, "{}", checked.stderr);
        checked.stderr
    };
    let text = at("import math\n\nmath.sqrt(-1)\n");
    assert!(text.contains("`f` of ") && text.contains("ValueError") && text.contains("line 3"), "{text}");
    let text = at("def g(row): return row\n");
    assert!(text.contains("there is no function `f`"), "{text}");
    let lab = lab(DOUBLE, "columns: {twice: int64}, keep: [nmae]", "write: out.csv");
    lab.run(&["check", "job.yaml"]).ended(2).says(&["there is no column `nmae` to keep", "did you mean `name`?"]);
    fs_err::remove_file(lab.path("code.py")).expect("removed");
    lab.file("job.yaml", lab.read("job.yaml").replace("nmae", "name"));
    lab.run(&["check", "job.yaml"])
        .ended(1)
        .says(&["code.py does not exist", "relative to the folder of the job file"]);
}

#[test]
fn paths_are_relative_to_the_job_and_lines_are_shown() {
    let lab = lab(
        "import os, sys\n\ndef f(row):\n    if row['id'] == 0: print(os.environ['SHOWN'], 'SECRET' in os.environ)\n    \
         return {'id': row['id']}\n",
        "columns: {id: int64}, interpreter: ./python, env: {SHOWN: 'shown', OTHER: {secret: env:SECRET}}",
        "write: out.csv",
    );
    lab.file("python", "#!/bin/sh\nexec python3 \"$@\"\n");
    std::os::unix::fs::symlink("python", lab.path("linked")).expect("a link");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs_err::set_permissions(lab.path("python"), mode).expect("executable");
    let mut command = lab.command(&["run", "job.yaml"]);
    command.env("SECRET", "secret");
    let ran = finish(command, None);
    ran.ok().says(&["t: shown False"]);
}

/// Rows go to the server in the middle of a transaction, of which there are fewer than deliveries: one that waits for a
/// connection must not keep the only worker from the others.
#[test]
fn a_load_into_a_server_shares_its_workers() {
    const MANY: usize = 400_000;
    for database in Database::both() {
        let lab = Lab::with_job(&format!(
            "sources:\n  s: {{read: in.csv, csv: {{columns: {{id: int64}}}}}}\ntransforms:\n  t:\n    map: {{from: s, \
             python: code.py:f, columns: {{id: int64}}, workers: 1, deterministic: true}}\nsinks:\n  o: {{from: t, \
             write: '{}', table: t, mode: append, batch_rows: 1000, connections: 1}}\n",
            database.url
        ));
        lab.file("code.py", "def f(row): return row\n");
        let rows = (0..MANY).fold("id\n".to_owned(), |mut text, id| {
            let _ = writeln!(text, "{id:08}");
            text
        });
        lab.file("in.csv", rows);
        database.query("CREATE TABLE t (id bigint)");
        let mut command = lab.command(&["run", "job.yaml"]);
        // Many groups, each of several batches.
        command.env("MILLSTREAM_CHUNK_BYTES", "40000");
        finish(command, None).ok();
        assert_eq!(database.query("SELECT count(DISTINCT id) FROM t"), [MANY.to_string()]);
    }
}

#[test]
fn a_killed_run_leaves_no_process_behind() {
    let code = "import time\n\ndef f(row):\n    time.sleep(100)\n    return {'id': row['id']}\n";
    let lab = lab(code, "columns: {id: int64}, workers: 2", "write: out.csv");
    let mut run =
        lab.command(&["run", "job.yaml"]).stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("started");
    let begun = Instant::now();
    let wait = |count: usize| {
        while processes_of(lab.0.root()).len() < count {
            assert!(begun.elapsed() < Duration::from_secs(180), "the workers never came");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    // The run itself, and two workers.
    wait(3);
    run.kill().expect("killed");
    run.wait().expect("ended");
    none_is_left(&lab);
}

/// A load is not resumed with other code, and the file is named, whatever kind of code it is.
#[test]
fn code_that_has_changed_is_named() {
    let function = "columns: {id: int64}, deterministic: true";
    for (code, file) in [("python: code.py:f", "code.py"), ("command: [sh, ./step.sh], exchange: json", "./step.sh")] {
        let lab = lab("", function, "write: 'sqlite:o.db', table: t, mode: append");
        lab.file("job.yaml", lab.read("job.yaml").replace("python: code.py:f", code));
        let change = |version: u32| {
            lab.file("code.py", format!("def f(row): return {{'id': row['id']}} # {version}\n"));
            lab.file("step.sh", format!("exec sed -u 's/,.*/}}/' # {version}\n"));
        };
        change(1);
        let killed = small_chunks(&lab, &["run", "job.yaml"]).env("MILLSTREAM_FAIL_AT", "commit.after:2").status();
        assert_eq!(killed.expect("it starts").signal(), Some(9));
        change(2);
        let told = format!("the code differs, so its rows may differ: {file} of `t`");
        lab.run(&["run", "job.yaml", "--resume"]).ended(1).says(&["the job has changed", &told, "undo the change"]);
        change(1);
        finish(small_chunks(&lab, &["run", "job.yaml", "--resume"]), None).ok();
        let ids = sqlite(&lab.path("o.db"), "SELECT count(*), count(DISTINCT id) FROM t");
        assert_eq!(ids, [[(FILES * ROWS).to_string(), (FILES * ROWS).to_string()]]);
        change(2);
        let told = format!("loaded everything, and {file} of `t` has changed since");
        lab.run(&["run", "job.yaml", "--resume"]).ended(1).says(&[&told]);
    }
}

/// The row for which a wrong value was given is shown, beside that value.
#[test]
fn a_wrong_value_is_shown_with_its_row() {
    let code = "def f(row): return {'id': 'x' if row['id'] == 77 else row['id']}\n\
                def g(id): return f({'id': id})['id']\n";
    let program = "import sys\nfor line in sys.stdin:\n    \
                   print('{\"id\": []}' if '\"id\":77,' in line else line.split(',')[0] + '}', flush=True)\n";
    let json = "command: [python3, step.py], exchange: json";
    for (step, given) in [("python: code.py:f", "given for it: 'x'"), (json, "given for it: {\"id\": []}")] {
        let lab = lab(code, "columns: {id: int64}", "write: out.csv");
        lab.file("step.py", program);
        lab.file("job.yaml", lab.read("job.yaml").replace("python: code.py:f", step));
        let ran = lab.run(&["run", "job.yaml"]);
        ran.ended(1).says(&["step t", given, "{\"id\":77,\"name\":\"name 77\"}"]);
        println!("{}", ran.stderr);
        lab.file("job.yaml", lab.read("job.yaml").replace("\nsinks:", "\n    max_rejects: 1\nsinks:"));
        let report = lab.report(&[]);
        let kept = lab.run(&["rejects", report["run"].as_str().expect("a run")]);
        println!("{}", kept.stdout);
        assert_eq!(report["rows_rejected"], json!(1), "{report:#}");
    }
    let lab = lab(code, "columns: {id: int64}", "write: out.csv");
    lab.file(
        "job.yaml",
        "sources:\n  s: {read: in/0.csv, csv: {columns: {id: int64, name: utf8}}}\nfunctions:\n  g: {python: \
         code.py:g, arguments: [int64], returns: int64}\ntransforms:\n  t: {sql: SELECT g(id) AS id FROM s}\nsinks:\n  \
         o: {from: t, write: out.csv}\n",
    );
    let ran = lab.run(&["run", "job.yaml"]);
    println!("{}", ran.stderr);
    ran.ended(1).says(&["given for it: 'x'", "77"]);
}
