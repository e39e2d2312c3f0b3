//! Programs as steps, and functions for groups and streams, through the real binary: rows come out as the program gives
//! them, and one that fails, ends early or says too much never leads to rows that are missing.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use millstream_testkit::python_with_libraries;
use serde_json::json;

use crate::use_map::{none_is_left, processes_of};
use crate::use_support::{Lab, csv_rows, finish, sorted};

const ROWS: usize = 20_000;

/// How many days the rows are of.
const DAYS: usize = 7;

/// A job over a file of ids, days and names, with `map` and `sink` as the rest of their entries.
fn lab(map: &str) -> Lab {
    lab_of(map, (0..ROWS).map(|id| (id, id % DAYS, format!("name, \"{id}\""))))
}

fn lab_of(map: &str, rows: impl Iterator<Item = (usize, usize, String)>) -> Lab {
    let lab = Lab::with_job(&format!(
        "sources:\n  s: {{read: in.csv, csv: {{columns: {{id: int64, day: int64, name: utf8}}}}}}\ntransforms:\n  \
         names: {{select: {{from: s, columns: [name]}}}}\n  numbers: {{select: {{from: s, columns: [id, day]}}}}\n  \
         nulls: {{select: {{from: s, columns: {{id: \"CASE WHEN id % 3 > 0 THEN id END\"}}}}}}\n  \
         ordered: {{sort: {{from: s, by: [name desc]}}}}\n  t:\n    \
         map: {{{map}}}\nsinks:\n  o: {{from: t, write: out.csv}}\n"
    ));
    let mut text = "id,day,name\n".to_owned();
    for (id, day, name) in rows {
        let _ = writeln!(text, "{id},{day},\"{}\"", name.replace('"', "\"\""));
    }
    lab.file("in.csv", text);
    lab
}

/// A program of the lab, a Python script: `read` gives the next record, and nothing at the end of a batch.
fn script(lab: &Lab, code: &str) {
    let text = format!("#!/usr/bin/env python3\nimport json, os, sys, time\n{code}");
    let path = lab.file("step", text);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs_err::set_permissions(path, mode).expect("executable");
}

fn rows_of(lab: &Lab) -> Vec<Vec<String>> {
    csv_rows(&lab.read("out.csv"))
}

/// `cat` takes part in every exchange: what is sent must be what is read.
#[test]
fn every_exchange_takes_and_gives_rows() {
    let all: Vec<Vec<String>> =
        (0..ROWS).map(|id| vec![id.to_string(), format!("name, \"{id}\""), (id % DAYS).to_string()]).collect();
    for exchange in ["csv", "json", "arrow"] {
        for per in ["row", "batch", "group, by: [day, id]", "group, by: day, order_by: [id desc]", "stream"] {
            let lab = lab(&format!(
                "from: s, command: [cat], exchange: {exchange}, per: {per}, columns: {{id: int64, name: utf8, day: \
                 int64}}"
            ));
            lab.run(&["run", "job.yaml"]).ok();
            let mut rows = rows_of(&lab);
            if per.contains("order_by") {
                let place =
                    |row: &Vec<String>| (row[2].clone(), std::cmp::Reverse(row[0].parse::<u64>().expect("a number")));
                assert!(rows.is_sorted_by_key(place), "{exchange} {per}");
            }
            rows.sort();
            // A csv's columns come in the order of the program's header.
            assert_eq!(rows, sorted(all.clone()), "{exchange} {per}");
        }
    }
    for per in ["row", "batch", "stream", "stream, workers: 3"] {
        let lab = lab(&format!("from: names, command: [cat], exchange: lines, per: {per}, columns: {{text: utf8}}"));
        lab.run(&["run", "job.yaml"]).ok();
        let names = (0..ROWS).map(|id| vec![format!("name, \"{id}\"")]);
        assert_eq!(sorted(rows_of(&lab)), sorted(names.collect()), "lines {per}");
    }
}

/// A batch of numbers without rows has no bytes of its own in Arrow; a null alone in its record none in csv.
#[test]
fn what_has_no_bytes_is_sent_and_read() {
    for per in ["row", "batch", "group, by: day"] {
        let lab = lab(&format!(
            "from: numbers, command: [cat], exchange: arrow, per: {per}, timeout: 20s, columns: {{id: int64, day: \
             int64}}"
        ));
        lab.run(&["run", "job.yaml"]).ok();
        assert_eq!(rows_of(&lab).len(), ROWS, "{per}");
    }
    for exchange in ["csv", "json", "arrow"] {
        for per in ["row", "batch", "group, by: id", "stream"] {
            let lab = lab(&format!(
                "from: nulls, command: [cat], exchange: {exchange}, per: {per}, timeout: 20s, columns: {{id: int64}}"
            ));
            let ran = lab.run(&["run", "job.yaml"]);
            if exchange == "csv" && per != "stream" {
                ran.ended(1).says(&["a null alone in its record is an empty line in csv", "use `exchange: json`"]);
                continue;
            }
            ran.ok();
            let text = lab.read("out.csv");
            assert_eq!((text.lines().count(), text.contains("19999")), (ROWS + 1, true), "{exchange} {per}");
        }
    }
}

#[test]
fn a_program_may_leave_rows_out_or_add_some() {
    let code = r"
print('id,twice', flush=True)
next(sys.stdin)
for line in sys.stdin:
    id = int(line.split(',')[0])
    print('' if id % 3 else f'{id},{id * 2}', flush=True)
";
    let lab = lab("from: s, command: [./step, 1, x], exchange: csv, columns: {id: int64, twice: int64}, keep: [day]");
    script(&lab, code);
    let report = lab.report(&[]);
    let expected: Vec<_> =
        (0..ROWS).step_by(3).map(|id| [id, id * 2, id % DAYS].map(|number| number.to_string()).to_vec()).collect();
    assert_eq!(sorted(rows_of(&lab)), sorted(expected));
    let tally = &report["results"][0]["tally"];
    assert_eq!(tally["filtered"], json!(ROWS - ROWS.div_ceil(3)), "{report}");
    none_is_left(&lab);

    let nulls = "for line in sys.stdin:\n    id = json.loads(line)['id']\n    \
                 print('null' if id % 2 else json.dumps({'id': id}), flush=True)\n";
    let lab = self::lab("from: s, command: [./step], exchange: json, columns: {id: int64}, deterministic: true");
    script(&lab, nulls);
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(sorted(rows_of(&lab)), sorted((0..ROWS).step_by(2).map(|id| vec![id.to_string()]).collect()));
}

/// Each fault: the code, the settings, and what the message says.
#[test]
fn a_program_that_fails_never_leads_to_rows_missing() {
    const BATCHES: &str =
        "for line in sys.stdin:\n    if line == '\\n': print(flush=True)\n    else: print(line, end='')\n";
    let after = |code: &str| format!("for line in sys.stdin:\n    {code}\n    print(line, end='', flush=True)\n");
    let json = "exchange: json, columns: {id: int64, day: int64, name: utf8}";
    let cases = [
        (
            after("if '\"id\":900,' in line: sys.exit(3)"),
            json,
            &["ended before it had answered", "ended with status 3"][..],
        ),
        (after("if '\"id\":900,' in line: os.kill(os.getpid(), 11)"), json, &["segmentation fault"]),
        (after("if '\"id\":900,' in line: print('no disk', file=sys.stderr); sys.exit(0)"), json, &["no disk"]),
        (
            after("if '\"id\":900,' in line: continue"),
            "exchange: json, columns: {id: int64, day: int64, name: utf8}, timeout: 300ms",
            &["within 300ms"],
        ),
        (
            after("if '\"id\":900,' in line: print(line, end='')"),
            json,
            &["gave more than it was asked for", "standard error"],
        ),
        (after("line = line.replace('\"id\":', '\"key\":')"), json, &["a record that is no row"]),
        (after("line = 'Loaded.\\n'"), json, &["a record that is no row", "Loaded."]),
        (
            after("pass"),
            "exchange: csv, columns: {id: int64, other: utf8}",
            &["the output of the program lacks the column other", "correct what the program writes"],
        ),
        (
            after("pass"),
            "per: stream, exchange: csv, columns: {id: int64, other: utf8}",
            &["the output of the program lacks the column other", "correct what the program writes"],
        ),
        (
            "print('id,nme', flush=True)\nfor line in sys.stdin: print(flush=True)\n".to_owned(),
            "per: group, by: day, exchange: csv, columns: {id: int64, other: utf8}",
            &["the output of the program lacks the column other", "correct what the program writes"],
        ),
        (
            "print('Loaded.', flush=True)\ntime.sleep(1000)\n".to_owned(),
            "exchange: arrow, columns: {id: int64}",
            &["no Arrow IPC stream"],
        ),
        (
            after("if '\"id\":900,' in line: sys.exit(3)"),
            "per: batch, exchange: json, columns: {id: int64, day: int64, name: utf8}",
            &["status 3"],
        ),
        (
            after("if '\"id\":900,' in line: sys.exit(3)"),
            "per: group, by: id, exchange: json, columns: {id: int64, day: int64, name: utf8}",
            &["status 3"],
        ),
        (
            after("if '\"id\":900,' in line: sys.exit(3)"),
            "per: stream, exchange: json, columns: {id: int64, day: int64, name: utf8}",
            &["the program `./step` failed", "status 3"],
        ),
        (
            after("if '\"id\":900,' in line: sys.exit(0)"),
            "per: stream, exchange: json, columns: {id: int64, day: int64, name: utf8}",
            &["ended before it had read all rows", "LIMIT"],
        ),
        (
            "sys.exit(0)\n".to_owned(),
            "per: stream, exchange: json, columns: {id: int64}",
            &["ended before it had read all rows"],
        ),
        (
            after("if '\"id\":900,' in line: time.sleep(1000)"),
            "per: stream, timeout: 1s, exchange: json, columns: {id: int64, day: int64, name: utf8}",
            &["within 1s"],
        ),
        (
            after("if '\"id\":900,' in line: line = '{\"id\": 1,'"),
            "per: stream, exchange: json, columns: {id: int64, day: int64, name: utf8}",
            &["a record that is no row"],
        ),
        (
            "kept = bytearray(400_000_000)\nfor line in sys.stdin: time.sleep(100)\n".to_owned(),
            "per: stream, memory: 100MB, exchange: json, columns: {id: int64}",
            &["more memory than it may"],
        ),
    ];
    let batches = "exchange: json, per: batch, columns: {id: int64, day: int64, name: utf8}";
    let late = [
        // One bad record of a batch; two for each, more than pipes hold.
        (
            BATCHES.replace("print(line, end='')", "print(line.replace('\"id\":900,', '\"id\":[],'), end='')"),
            batches,
            &["a record that is no row"][..],
        ),
        (after("print(line + line, end='')"), json, &["gave more than it was asked for"]),
        ("while True: print('x' * 1000)\n".to_owned(), batches, &["for one batch"]),
        (after("pass") + "print(line)\n", json, &["gave more than it was asked for"][..]),
        (after("pass") + "sys.exit(5)\n", json, &["the program `./step` failed", "status 5"]),
        (
            after("pass") + "time.sleep(1000)\n",
            "timeout: 1s, exchange: json, columns: {id: int64, day: int64, name: utf8}",
            &["has not ended within 1s"],
        ),
    ];
    for (code, settings, says) in cases.into_iter().chain(late) {
        let lab = lab(&format!("from: s, command: [./step], {settings}, workers: 1"));
        script(&lab, &code);
        println!("{settings}\n{code}");
        let ran = lab.run(&["run", "job.yaml"]);
        ran.ended(1).says(says).says(&["step t"]);
        assert!(!lab.path("out.csv").exists(), "{settings}");
        none_is_left(&lab);
    }
}

/// Looks come quickly here, so that as many as it takes are over after some seconds.
#[test]
fn a_program_that_waits_for_rows_while_it_is_waited_for_is_given_up() {
    let settings = "columns: {id: int64, day: int64, name: utf8}";
    let skip = "for line in sys.stdin:\n    if '900' in line: continue\n    print(line, end='', flush=True)\n";
    let kept = "for line in sys.stdin:\n    print(line, end='')\n";
    let cases = [
        (
            skip,
            "exchange: json",
            10,
            ["records for", "`null` for one to leave out, and writes out what it has (flush)"],
        ),
        (skip, "exchange: csv", 10, ["has given", "an empty line for one to leave out"]),
        (kept, "exchange: json", 10, ["the program `./step` has given no record for a row", "(flush)"]),
        ("for line in sys.stdin: pass\n", "per: batch, exchange: json", 10, ["has not ended its answer", "empty line"]),
        // A group that is passed through.
        (kept, "per: group, by: day, exchange: json", 40_000, ["has not ended its answer", "empty line"]),
    ];
    for (code, exchange, rows, says) in cases {
        let lab = lab_of(
            &format!("from: s, command: [./step], {exchange}, workers: 1, {settings}"),
            (0..rows).map(|id| (895 + id, 0, if rows > 100 { format!("{id:0>700}") } else { "a".to_owned() })),
        );
        script(&lab, code);
        let mut command = lab.command(&["run", "job.yaml"]);
        let (look, time) = if exchange.starts_with("per") { ("10", "for 3600ms") } else { ("50", "for 3s") };
        command.env("MILLSTREAM_LOOK_MS", look);
        let ran = finish(command, None);
        let told = format!("{time} it has written nothing and used no processor time");
        ran.ended(1).says(&says).says(&["step t", &told, "Set `timeout`"]);
        none_is_left(&lab);
    }
    // One that computes for longer is not, by itself or in a program that it has started; nor is one with a `timeout`.
    let busy = "while time.monotonic() < begun + 5: pass";
    let computes = [
        busy.to_owned(),
        format!("subprocess.run([sys.executable, '-c', 'import time; begun = time.monotonic()\\n{busy}'])"),
    ];
    let cases = computes.map(|code| (code, "")).into_iter().chain([("time.sleep(4)".to_owned(), ", timeout: 30s")]);
    for (code, timeout) in cases {
        let lab = lab_of(
            &format!("from: s, command: [./step], exchange: json, {settings}{timeout}"),
            (0..10).map(|id| (id, 0, "a".to_owned())),
        );
        script(
            &lab,
            &format!(
                "import subprocess\nfor line in sys.stdin:\n    begun = time.monotonic()\n    \
                 if '\"id\":3,' in line:\n        {code}\n    print(line, end='', flush=True)\n"
            ),
        );
        let mut command = lab.command(&["run", "job.yaml"]);
        command.env("MILLSTREAM_LOOK_MS", "50");
        finish(command, None).ok();
        assert_eq!(rows_of(&lab).len(), 10);
    }
}

/// Its rows are in the pipe, or do not fit into it.
#[test]
fn a_program_that_never_reads_its_rows_is_given_up() {
    for rows in [10, 20_000] {
        let lab = lab_of(
            "from: s, command: [./step], per: batch, exchange: json, columns: {id: int64, day: int64, name: utf8}",
            (0..rows).map(|id| (id, 0, format!("{id:0>700}"))),
        );
        script(&lab, "import signal\nsignal.pause()\n");
        let mut command = lab.command(&["run", "job.yaml"]);
        command.env("MILLSTREAM_LOOK_MS", "10");
        let ran = finish(command, None);
        ran.ended(1).says(&["t: it has not answered for 10ms: it has not read all rows: what does it wait for?"]);
        ran.says(&["the program `./step` does not read its rows, and does nothing any more", "Set `timeout`"]);
        none_is_left(&lab);
    }
}

#[test]
fn a_record_that_is_no_row_is_a_reject_and_so_is_a_whole_group() {
    let code = r"
for line in sys.stdin:
    row = json.loads(line)
    if row['id'] in (5000, 5001): row['id'] = 'x'
    print(json.dumps(row), flush=True)
";
    let lab = lab(
        "from: s, command: [./step], exchange: json, columns: {id: int64, day: int64, name: utf8}}\n    max_rejects: \
         {0: 2",
    );
    let job = lab.read("job.yaml").replace("max_rejects: {0: 2}", "max_rejects: 2");
    lab.file("job.yaml", job);
    script(&lab, code);
    let report = lab.report(&[]);
    assert_eq!((&report["rows_rejected"], &report["rows_written"]), (&json!(2), &json!(ROWS - 2)), "{report}");
    let kept = lab.run(&["rejects", report["run"].as_str().expect("a run"), "--json"]);
    let lines: Vec<_> =
        kept.ok().json()["rejects"].as_array().expect("a list").iter().map(|one| one["line"].clone()).collect();
    assert_eq!(lines, [json!(5002), json!(5003)]);

    for code in [
        // Dies in the middle of a group, or answers it wrongly.
        "for line in sys.stdin:\n    if '\"id\":5000,' in line: sys.exit(1)\n    print(line, end='', flush=True)\n",
        "for line in sys.stdin:\n    print(line.replace('\"id\":5000,', '\"id\":[],'), end='', flush=True)\n",
    ] {
        let settings = "per: group, by: name, exchange: json, columns: {id: int64, day: int64, name: utf8}";
        let lab = lab_of(
            &format!("from: s, command: [./step], {settings}}}\n    max_rejects: {{0: 2"),
            (0..ROWS).map(|id| (id, 0, format!("{}", id / 4))),
        );
        let job = lab.read("job.yaml").replace("max_rejects: {0: 2}", "max_rejects: 4");
        lab.file("job.yaml", job);
        script(&lab, code);
        let report = lab.report(&[]);
        assert_eq!((&report["rows_rejected"], &report["rows_written"]), (&json!(4), &json!(ROWS - 4)), "{report}");
        assert!(rows_of(&lab).iter().all(|row| row[2] != "1250"), "the group of 5000 is left out");
    }
}

const LONG: usize = 60_000;

/// Keys, of which the second has more rows than are held, and long texts.
fn long_groups() -> impl Iterator<Item = (usize, usize, String)> {
    (0..LONG).map(|id| (id, usize::from(id >= 10) + usize::from(id >= LONG - 10), format!("{id:0>700}")))
}

/// What each key has: its rows, and whether they were in order.
fn of_long_groups() -> Vec<Vec<String>> {
    [("0", 10), ("1", LONG - 20), ("2", 10)]
        .map(|(key, count)| vec![key.to_owned(), count.to_string(), "true".to_owned()])
        .to_vec()
}

const COUNT: &str = r"
def count(rows):
    ids, day = [], None
    for row in rows:
        ids.append(row['id'])
        day = row['day']
    return {'day': day, 'count': len(ids), 'sorted': ids == sorted(ids)}
";

const COUNT_PROGRAM: &str = r"
ids, day = [], None
for line in sys.stdin:
    if line == '\n':
        print(json.dumps({'day': day, 'count': len(ids), 'sorted': ids == sorted(ids)}), end='\n\n', flush=True)
        ids = []
    else:
        row = json.loads(line)
        ids.append(row['id'])
        day = row['day']
";

#[test]
fn a_group_that_is_too_large_to_hold_is_passed_through() {
    let settings = "per: group, by: day, order_by: [id], columns: {day: int64, count: int64, sorted: bool}";
    let function = lab_of(&format!("from: s, python: code.py:count, {settings}"), long_groups());
    function.file("code.py", COUNT);
    function.run(&["run", "job.yaml"]).ok();
    assert_eq!(rows_of(&function), of_long_groups());

    let program = lab_of(&format!("from: s, command: [./step], exchange: json, {settings}"), long_groups());
    script(&program, COUNT_PROGRAM);
    program.run(&["run", "job.yaml"]).ok();
    assert_eq!(rows_of(&program), of_long_groups());

    for (code, says) in [
        (
            COUNT.replace("    return", "    if len(ids) > 10: raise ValueError('too many')\n    return"),
            "ValueError: too many",
        ),
        (
            COUNT.replace("        day =", "        if len(ids) > 50000: __import__('os')._exit(4)\n        day ="),
            "status 4",
        ),
    ] {
        function.file("code.py", code);
        fs_err::remove_file(function.path("out.csv")).expect("removed");
        function.run(&["run", "job.yaml"]).ended(1).says(&[says, "step t"]);
        assert!(!function.path("out.csv").exists());
        function.file("out.csv", "");
    }
}

#[test]
fn functions_take_groups_and_streams() {
    let lab = lab(
        "from: s, python: code.py:count, per: group, by: [day], order_by: [id], columns: {day: int64, count: int64, \
         sorted: bool}",
    );
    lab.file("code.py", COUNT);
    lab.run(&["run", "job.yaml"]).ok();
    let expected = (0..DAYS).map(|day| {
        vec![day.to_string(), (0..ROWS).filter(|id| id % DAYS == day).count().to_string(), "true".to_owned()]
    });
    assert_eq!(rows_of(&lab), expected.collect::<Vec<_>>());
    let explained = lab.run(&["explain", "job.yaml"]);
    assert!(explained.ok().stdout.contains("all at once"), "{}", explained.stdout);

    // One filter sees the rows of a sort in its order.
    let code = r"
def names(rows):
    last = None
    for row in rows:
        if last is None or last >= row['name']: yield {'name': row['name'], 'is_less': True}
        last = row['name']
";
    let lab = self::lab("from: ordered, python: code.py:names, per: stream, columns: {name: utf8, is_less: bool}");
    lab.file("code.py", code);
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(rows_of(&lab).len(), ROWS);

    for (code, says) in [
        ("def names(rows):\n    next(rows)\n    return []\n", "returned before it had taken all rows"),
        ("def names(rows):\n    list(rows)\n", "the function gave None; it gives a list or a generator of dicts"),
        (
            "def names(rows):\n    for row in rows:\n        if row['id'] == 900: raise ValueError('no')\n        \
             yield {'name': '', 'is_less': None}\n",
            "ValueError: no",
        ),
        (
            "def names(rows):\n    for row in rows: yield {'name': 1, 'is_less': None}\n",
            "the function gave a value that is no utf8",
        ),
        ("import os\ndef names(rows):\n    for row in rows: os._exit(0)\n", "ended before it had answered"),
    ] {
        lab.file("code.py", code);
        lab.run(&["run", "job.yaml"]).ended(1).says(&[says, "step t"]);
    }
}

/// As of a file, only the columns that something needs are read of a stream.
#[test]
fn what_nobody_wants_of_a_stream_is_not_read() {
    let programs = [
        ("csv", "print('id,name')\nfor line in list(sys.stdin)[1:]: print('bad,' + line.split(',')[0])\n"),
        ("json", "for line in sys.stdin: print(json.dumps({'id': 'bad', 'name': str(json.loads(line)['id'])}))\n"),
        ("lines", "for line in sys.stdin.buffer: sys.stdout.buffer.write(b'\\xff' + line)\n"),
    ];
    for (exchange, code) in programs {
        let is_lines = exchange == "lines";
        let (from, columns) = if is_lines { ("names", "name: utf8") } else { ("s", "id: int64, name: utf8") };
        let job = |query: &str, rows: &str| {
            format!(
                "sources:\n  s: {{read: in.csv, csv: {{columns: {{id: int64, day: int64, name: utf8}}}}}}\n\
                 transforms:\n  names: {{select: {{from: s, columns: [name]}}}}\n  t:\n    \
                 map: {{from: {from}, command: [./step], \
                 exchange: {exchange}, per: stream, columns: {{{columns}}}}}\n  q: {{sql: '{query}'}}\nsinks:\n  \
                 o: {{from: {rows}, write: out.csv}}\n"
            )
        };
        let lab = lab("");
        script(&lab, code);
        lab.file("job.yaml", job("SELECT count(*) AS n FROM t", "q"));
        lab.run(&["run", "job.yaml"]).ok();
        assert_eq!(rows_of(&lab), [[ROWS.to_string()]], "{exchange}");
        if !is_lines {
            lab.file("job.yaml", job("SELECT sum(CAST(name AS bigint)) AS n FROM t", "q"));
            lab.run(&["run", "job.yaml"]).ok();
            assert_eq!(rows_of(&lab), [[(ROWS * (ROWS - 1) / 2).to_string()]], "{exchange}");
        }
        lab.file("job.yaml", job("SELECT 1 AS one", "t"));
        lab.run(&["run", "job.yaml"]).ended(1).says(&["step t"]);
    }

    // Columns that come in another order, and twice.
    let lab = lab("from: s, python: code.py:same, per: stream, columns: {id: int64, day: int64, name: utf8}");
    lab.file("code.py", "def same(rows):\n    for row in rows: yield row\n");
    let job = lab.read("job.yaml").replace(
        "sinks:\n  o: {from: t",
        "  q: {sql: 'SELECT name, id, id AS again FROM t WHERE id < 2 ORDER BY id'}\nsinks:\n  o: {from: q",
    );
    lab.file("job.yaml", job);
    lab.run(&["run", "job.yaml"]).ok();
    let row = |id: usize| vec![format!("name, \"{id}\""), id.to_string(), id.to_string()];
    assert_eq!(rows_of(&lab), [row(0), row(1)]);
}

#[test]
fn functions_take_batches_of_pyarrow() {
    let code = r"
import pyarrow as pa, pyarrow.compute as pc

def upper(batch):
    return pa.record_batch({'id': batch['id'], 'name': pc.utf8_upper(batch['name'])})

def wrong(batch):
    return pa.table({'id': batch['name'], 'name': batch['name']})

def count(batch):
    yield pa.record_batch({'id': batch['day'].slice(0, 1), 'name': [str(len(batch))]})

def each(batches):
    for batch in batches: yield upper(batch)
";
    let python: PathBuf = python_with_libraries();
    let lab = |function: &str, settings: &str| {
        let lab = lab(&format!(
            "from: s, python: code.py:{function}, interpreter: {}, exchange: arrow, columns: {{id: int64, name: \
             utf8}}, {settings}",
            python.display()
        ));
        lab.file("code.py", code);
        lab
    };
    let upper = sorted((0..ROWS).map(|id| vec![id.to_string(), format!("NAME, \"{id}\"")]).collect());
    for (function, settings) in
        [("upper", "per: batch"), ("upper", "per: group, by: day"), ("each", "per: stream, workers: 2")]
    {
        let lab = lab(function, settings);
        lab.run(&["run", "job.yaml"]).ok();
        assert_eq!(sorted(rows_of(&lab)), upper, "{settings}");
    }
    let counted = lab("count", "per: group, by: day");
    counted.run(&["run", "job.yaml"]).ok();
    assert_eq!(rows_of(&counted).len(), DAYS);
    lab("wrong", "per: batch")
        .run(&["run", "job.yaml"])
        .ended(1)
        .says(&["the function gave `id` as utf8, and `columns` says int64"]);
    let none = lab("upper", "per: batch");
    none.file("job.yaml", none.read("job.yaml").replace(&python.display().to_string(), "python3"));
    if !std::process::Command::new("python3").args(["-c", "import pyarrow"]).output().expect("it runs").status.success()
    {
        none.file("code.py", "def upper(batch): return batch\n");
        none.run(&["check", "job.yaml"]).ended(2).says(&["`exchange: arrow` needs pyarrow in "]);
    }
}

#[test]
fn what_makes_no_sense_is_found_by_check() {
    for (map, says) in [
        ("from: s, columns: {id: int64}", "nothing says what computes the rows"),
        ("from: s, command: [cat], columns: {id: int64}", "in which form the program reads and writes rows"),
        ("from: s, command: [], exchange: csv, columns: {id: int64}", "command"),
        (
            "from: s, command: [cat], python: a.py:f, exchange: csv, columns: {id: int64}",
            "either a function or a program",
        ),
        (
            "from: s, command: [cat], exchange: lines, columns: {id: int64}",
            "lines are text, and `id` is of another type",
        ),
        ("from: s, command: [cat], exchange: lines, columns: {id: utf8}", "lines are written from one column"),
        ("from: s, command: [./none], exchange: csv, columns: {id: int64}", "the program `./none` cannot be started"),
        ("from: s, command: [cat], exchange: csv, per: group, columns: {id: int64}", "`per: group` needs `by`"),
        ("from: s, command: [cat], exchange: csv, per: group, by: dya, columns: {id: int64}", "did you mean `day`?"),
        ("from: s, command: [cat], exchange: csv, per: group, by: day, order_by: [di], columns: {id: int64}", "di"),
        ("from: s, command: [cat], exchange: csv, by: day, columns: {id: int64}", "`by` needs `per: group`"),
        (
            "from: s, command: [cat], exchange: csv, per: stream, keep: [id], columns: {day: int64}",
            "`keep` needs `per: row`",
        ),
        (
            "from: s, command: [cat], exchange: csv, per: stream, deterministic: true, columns: {day: int64}",
            "promise about single rows",
        ),
        ("from: s, python: a.py:f, exchange: csv, columns: {id: int64}", "a function takes dicts"),
        (
            "from: s, command: [cat], exchange: csv, columns: {id: int64}, max_rejects: 5",
            "write it beside `map`, as a key of `t`",
        ),
    ] {
        let lab = lab(map);
        let checked = lab.run(&["check", "job.yaml"]);
        assert_ne!(checked.code, 0, "{map}");
        checked.says(&[says]);
    }
}

#[test]
fn other_columns_than_those_that_were_promised_are_the_programs() {
    let lab = lab("from: s, command: [cat], exchange: csv, columns: {id: int64, dya: int64, name: utf8}");
    let ran = lab.run(&["run", "job.yaml"]);
    ran.ended(1).says(&["the output of the program lacks the column dya", "correct what the program writes"]);
    assert!(!ran.stderr.contains("on_drift"), "{}", ran.stderr);
}

#[test]
fn a_killed_run_leaves_no_program_behind() {
    let lab = lab(
        "from: s, command: [sh, -c, 'sleep 1000 >&2 & cat'], exchange: csv, per: stream, columns: {id: int64, day: \
         int64, name: utf8}",
    );
    // What has left a child behind has ended all the same, unless more may come from that.
    let begun = Instant::now();
    lab.run(&["run", "job.yaml"]).ok();
    assert!(begun.elapsed() < Duration::from_secs(250));
    none_is_left(&lab);
    let held = lab.read("job.yaml");
    lab.file("job.yaml", held.replace("1000 >&2 &", "1000 &"));
    lab.run(&["run", "job.yaml"]).ended(1).says(&["holds its output open"]);
    none_is_left(&lab);
    lab.file("job.yaml", held);
    lab.file("job.yaml", lab.read("job.yaml").replace(">&2 & cat", "& sleep 1000"));
    let mut run =
        lab.command(&["run", "job.yaml"]).stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("started");
    // The run, the shell and its two children.
    while processes_of(lab.0.root()).len() < 4 {
        assert!(begun.elapsed() < Duration::from_secs(500), "they never came");
        std::thread::sleep(Duration::from_millis(20));
    }
    run.kill().expect("killed");
    run.wait().expect("ended");
    none_is_left(&lab);
}

#[test]
fn a_query_with_a_limit_ends_its_programs() {
    let lab = lab("from: s, command: [cat], exchange: csv, per: stream, columns: {id: int64, day: int64, name: utf8}");
    lab.file(
        "job.yaml",
        lab.read("job.yaml")
            .replace("sinks:\n  o: {from: t", "  l: {sql: SELECT id FROM t LIMIT 5}\nsinks:\n  o: {from: l"),
    );
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(rows_of(&lab).len(), 5);
    none_is_left(&lab);
}
