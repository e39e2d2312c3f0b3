//! What the processes of a step take, through the real binary: their memory belongs to the run's, their processor time
//! and their rows are in the report, and they end as they should.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use millstream_testkit::python_with_libraries;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::use_map::none_is_left;
use crate::use_support::{Lab, csv_rows, finish, sorted, step};

/// A job over `rows` rows of ids and long names, with `map` as the rest of its step.
fn lab(rows: usize, code: &str, map: &str) -> Lab {
    let lab = Lab::with_job(&format!(
        "sources:\n  s: {{read: in.csv, csv: {{columns: {{id: int64, name: utf8}}}}}}\ntransforms:\n  t:\n    map: \
         {{from: s, {map}}}\nsinks:\n  o: {{from: t, write: out.csv}}\n"
    ));
    lab.file("code.py", code);
    let mut text = "id,name\n".to_owned();
    for id in 0..rows {
        let _ = writeln!(text, "{id},{:0>100}", id % 1000);
    }
    lab.file("in.csv", text);
    lab
}

/// Puts `entry` behind the step `t`.
fn behind(lab: &Lab, entry: &str) {
    let job =
        lab.read("job.yaml").replace("sinks:\n  o: {from: t", &format!("  q: {{{entry}}}\nsinks:\n  o: {{from: q"));
    lab.file("job.yaml", job);
}

/// Allows `count` rejects of the step `t`.
fn allow(lab: &Lab, count: usize) {
    let job = lab.read("job.yaml").replace("\nsinks:", &format!("\n    max_rejects: {count}\nsinks:"));
    lab.file("job.yaml", job);
}

/// What the processes of the step `t` did, as the report says.
fn work(report: &Value) -> &Value {
    &step(report, "t", "transform")["work"]
}

fn bytes(report: &Value, what: &str) -> u64 {
    report[what].as_u64().unwrap_or_else(|| panic!("{what}: {report:#}"))
}

/// Holds `megabytes` as long as the process lives.
fn holding(megabytes: usize) -> String {
    format!(
        "held = bytearray({megabytes}_000_000)\nfor page in range(0, len(held), 4096): held[page] = 1\n\ndef f(rows): \
         return rows\n"
    )
}

/// The most rows of a batch.
const BATCH_ROWS: usize = 8_192;

const SAME: &str = "python: code.py:f, per: batch, columns: {id: int64, name: utf8}";

#[test]
fn a_run_leaves_its_workers_the_memory_that_they_hold() {
    let run = |megabytes: usize| {
        let lab = lab(300_000, &holding(megabytes), &format!("{SAME}, workers: 1"));
        behind(&lab, "sort: {from: t, by: [name desc, id]}");
        let report = lab.report(&["--memory", "256MB", "--cores", "2"]);
        assert_eq!(csv_rows(&lab.read("out.csv")).len(), 300_000);
        report
    };
    let (alone, beside) = (run(0), run(110));
    assert!(bytes(&beside, "peak_workers_bytes") > 110_000_000, "{beside:#}");
    assert!(bytes(&alone, "peak_workers_bytes") < 60_000_000, "{alone:#}");
    assert!(bytes(&beside, "peak_memory_bytes") < 275_000_000, "{beside:#}");
    // What the sort may not hold it writes.
    let spilled = |report: &Value| {
        let steps = report["steps"].as_array().expect("steps");
        steps.iter().map(|step| bytes(step, "spilled_bytes")).sum::<u64>()
    };
    assert_eq!(spilled(&alone), 0, "{alone:#}");
    assert!(spilled(&beside) > 0, "{beside:#}");
    assert!(bytes(&beside, "peak_rss_bytes") < bytes(&alone, "peak_rss_bytes"), "{alone:#} {beside:#}");
}

#[test]
fn workers_that_hold_too_much_end_the_run_and_it_is_said_what_took_what() {
    let lab = lab(10, &holding(100), &format!("{SAME}, workers: 1"));
    lab.run(&["run", "job.yaml", "--memory", "150MB"]).ended(1).says(&[
        "error: the processes of the run hold more memory than it has for them",
        "step t: ",
        " in 1 process\n",
        "Millstream itself: ",
        "the memory budget is 150 MB, of which processes can have 82.9 MB",
        "raise `--memory`",
    ]);
    assert!(!lab.path("out.csv").exists());
    none_is_left(&lab);
    lab.run(&["run", "job.yaml", "--memory", "400MB"]).ok();

    // One that grows when it is called.
    let grows = "kept = []\ndef f(rows):\n    import time\n    kept.append(bytearray(b'x') * 100_000_000)\n    \
                 time.sleep(1000)\n";
    lab.file("code.py", grows);
    allow(&lab, 100);
    let ran = lab.run(&["run", "job.yaml", "--memory", "150MB"]);
    ran.ended(1).says(&["the processes of the run hold more memory", "step t"]);
    none_is_left(&lab);
}

#[test]
fn memory_that_a_step_says_is_kept_for_it() {
    let lab = lab(100, &holding(1), &format!("{SAME}, workers: 2, memory: 100MB"));
    let pool = |arguments: &[&str]| {
        let ran = lab.run(&[&["explain", "job.yaml", "--memory", "512MB"], arguments].concat());
        let text = ran.ok().stdout.clone();
        let figure = text.split_once("512 MB of memory (").and_then(|(_, rest)| rest.split_once(" MB for sorts"));
        (figure.and_then(|(figure, _)| figure.parse::<f64>().ok()).unwrap_or_else(|| panic!("{text}")), text)
    };
    let (less, kept) = pool(&[]);
    assert!(
        kept.contains("step t:\n  2 python processes of up to 100 MB: 200 MB of the memory are kept for them\n"),
        "{kept}"
    );
    lab.run(&["run", "job.yaml", "--memory", "512MB"]).ok();
    for command in ["check", "run"] {
        lab.run(&[command, "job.yaml", "--memory", "200MB"]).ended(1).says(&[
            "error: there is no room for 2 processes of up to 100 MB each",
            "the memory budget is 200 MB, of which processes can have 133 MB",
        ]);
    }
    lab.file("job.yaml", lab.read("job.yaml").replace(", memory: 100MB", ""));
    let (all, text) = pool(&[]);
    assert!(text.contains("step t:\n  2 python processes: what they hold is taken from the memory\n"), "{text}");
    assert!((all - less - 200.0).abs() < 20.0, "{all} {less}");
}

#[test]
fn the_processor_time_of_workers_counts_and_the_verdict_names_their_step() {
    // A child that has ended counts as well.
    let code = "import subprocess, sys\n\ndef f(rows):\n    subprocess.run([sys.executable, '-c', 'import \
                time\\nwhile time.process_time() < 4: pass'])\n    return rows\n";
    let busy = lab(10, code, &format!("{SAME}, workers: 1"));
    let report = busy.report(&["--cores", "1"]);
    let processor = work(&report)["cpu_seconds"].as_f64().expect("a number");
    assert!(processor > 3.9, "{report:#}");
    assert!(report["cpu_seconds"].as_f64().expect("a number") > processor, "{report:#}");
    assert_eq!(report["verdict"]["limit"], "cores", "{report:#}");
    let sentence = report["verdict"]["sentence"].as_str().expect("a sentence").to_owned();
    assert!(sentence.starts_with("limited by: python workers (t), 1 of 1 core busy "), "{sentence}");

    let program = "cat; while [ $(cut -d ' ' -f 1 /proc/uptime | tr -d .) -lt $end ]; do :; done";
    let program = format!("end=$(($(cut -d ' ' -f 1 /proc/uptime | tr -d .) + 100)); {program}");
    let stream =
        lab(10, "", "command: [sh, ./stream.sh], exchange: csv, per: stream, columns: {id: int64, name: utf8}");
    stream.file("stream.sh", program);
    let report = stream.report(&[]);
    assert!(work(&report)["cpu_seconds"].as_f64().expect("a number") > 0.1, "{report:#}");

    let waits = "import time\n\ndef f(rows):\n    time.sleep(3)\n    return rows\n";
    let waits = lab(10, waits, &format!("{SAME}, workers: 1"));
    let report = waits.report(&["--cores", "2"]);
    assert_eq!(report["verdict"]["limit"], "workers", "{report:#}");
    let sentence = report["verdict"]["sentence"].as_str().expect("a sentence");
    assert!(sentence.starts_with("limited by: the worker of t (python), busy "), "{sentence}");
    assert!(sentence.ends_with("; give it more `workers`"), "{sentence}");
}

#[test]
fn rows_in_and_out_of_a_step_are_reported() {
    let odd = "def f(rows):\n    for row in rows:\n        if row['id'] % 2: yield {'id': row['id'], 'name': ''}\n";
    let batches = lab(20_000, odd, &SAME.replace("per: batch", "per: batch, workers: 2"));
    let report = batches.report(&[]);
    assert_eq!(work(&report)["rows_in"], json!(20_000), "{report:#}");
    assert_eq!(work(&report)["workers"], json!(2), "{report:#}");
    assert_eq!(step(&report, "t", "transform")["rows"], json!(10_000), "{report:#}");
    let told = batches.run(&["run", "job.yaml"]).ok().stderr.clone();
    let line = told.lines().find(|line| line.starts_with("t ")).unwrap_or_else(|| panic!("{told}"));
    assert!(line.contains("20,000") && line.contains("10,000"), "{line}");
    assert!(told.contains("  workers  rows in "), "{told}");

    // Rows that fail came in, too, and are not answered: at once, and chunk by chunk.
    let fails = "def f(row):\n    if row['id'] in (7, 8, 9): return {'id': 1 // 0}\n    if row['id'] % 2: return \
                 {'id': row['id']}\n";
    for sink in ["write: out.csv", "write: 'sqlite:o.db', table: t"] {
        let rows = lab(20_000, fails, "python: code.py:f, columns: {id: int64}, deterministic: true");
        allow(&rows, 3);
        rows.file("job.yaml", rows.read("job.yaml").replace("write: out.csv", sink));
        let report = rows.report(&[]);
        let counted = (&work(&report)["rows_in"], &work(&report)["rows_rejected"], &report["rows_rejected"]);
        assert_eq!(counted, (&json!(20_000), &json!(3), &json!(3)), "{report:#}");
        assert_eq!(step(&report, "t", "transform")["rows"], json!(9_998), "{report:#}");
        let tally = &report["results"][0]["tally"];
        let told = (&tally["read"], &tally["written"], &tally["filtered"], &tally["rejected"]);
        assert_eq!(told, (&json!(20_000), &json!(9_998), &json!(9_999), &json!(3)), "{report:#}");
    }

    let count = "def f(rows):\n    rows = list(rows)\n    return {'name': rows[0]['name'], 'count': len(rows)}\n";
    let groups = lab(20_000, count, "python: code.py:f, per: group, by: name, columns: {name: utf8, count: int64}");
    let report = groups.report(&[]);
    assert_eq!(work(&report)["rows_in"], json!(20_000), "{report:#}");
    assert_eq!(step(&report, "t", "transform")["rows"], json!(1_000), "{report:#}");

    let program = "command: [tail, -n, '100'], exchange: lines, per: stream, columns: {line: utf8}";
    let stream = lab(20_000, "", program);
    let job = stream.read("job.yaml").replace("csv: {columns: {id: int64, name: utf8}}", "lines: {}");
    stream.file("job.yaml", job);
    let report = stream.report(&[]);
    assert_eq!(work(&report)["rows_in"], json!(20_001), "{report:#}");
    assert_eq!(step(&report, "t", "transform")["rows"], json!(100), "{report:#}");

    // With a limit not all rows are taken, and the counts need not agree.
    let limited = lab(20_000, "def f(rows): return rows\n", SAME);
    behind(&limited, "sql: SELECT id FROM t LIMIT 5");
    limited.run(&["run", "job.yaml"]).ok();
    assert_eq!(csv_rows(&limited.read("out.csv")).len(), 5);
}

/// Rows of which each takes long keep all processes busy, in order, and the time limit is not that of all rows.
#[test]
fn few_slow_rows_keep_all_processes_busy() {
    let code = "import os, time\n\ndef f(row):\n    time.sleep(0.2)\n    return {'id': row['id'], 'by': \
                os.getpid()}\n\ndef g(id):\n    time.sleep(0.2)\n    return os.getpid()\n";
    let map = "python: code.py:f, columns: {id: int64, by: int64}, workers: 4, timeout: 5s";
    let rows = lab(40, code, map);
    let function = Lab::with_job(
        "sources:\n  s: {read: in.csv, csv: {columns: {id: int64, name: utf8}}}\nfunctions:\n  g: {python: code.py:g, \
         arguments: [int64], returns: int64, workers: 4, timeout: 5s}\ntransforms:\n  t: {sql: 'SELECT id, g(id) AS by \
         FROM s'}\nsinks:\n  o: {from: t, write: out.csv}\n",
    );
    function.file("code.py", code);
    function.file("in.csv", rows.read("in.csv"));
    for lab in [rows, function] {
        lab.run(&["run", "job.yaml", "--cores", "1"]).ok();
        let rows = csv_rows(&lab.read("out.csv"));
        let ids: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
        assert_eq!(ids, (0..40).map(|id| id.to_string()).collect::<Vec<_>>());
        let processes: BTreeSet<&str> = rows.iter().map(|row| row[1].as_str()).collect();
        assert_eq!(processes.len(), 4, "{rows:?}");
    }
}

#[test]
fn a_few_quick_rows_start_one_process() {
    let code = "import os\n\ndef f(row): return {'by': os.getpid()}\n";
    let lab = lab(50, code, "python: code.py:f, columns: {by: int64}, workers: 8");
    let processes = || {
        lab.run(&["run", "job.yaml"]).ok();
        csv_rows(&lab.read("out.csv")).into_iter().collect::<BTreeSet<Vec<String>>>().len()
    };
    // On a busy machine a call may take long once.
    assert!((0..5).any(|_| processes() == 1));
}

/// Code of which every process but the first does `then` when it is loaded. Its function takes a moment.
fn slow_to_load(then: &str) -> String {
    format!(
        "import os, time\ntry:\n    os.close(os.open('first', os.O_CREAT | os.O_EXCL))\nexcept FileExistsError:\n    \
         {then}\n\ndef f(rows):\n    time.sleep(0.1)\n    return rows\n"
    )
}

/// A process that loads its code keeps no rows waiting, and nobody waits for it at the end.
#[test]
fn rows_do_not_wait_for_a_process_that_starts() {
    let lab = lab(100_000, &slow_to_load("time.sleep(1000)"), &format!("{SAME}, workers: 2"));
    let began = Instant::now();
    let report = lab.report(&[]);
    assert!(began.elapsed() < Duration::from_secs(180), "{:?}", began.elapsed());
    assert_eq!(report["rows_written"], json!(100_000), "{report:#}");
    none_is_left(&lab);
}

#[test]
fn a_process_that_cannot_start_beside_others_ends_the_run() {
    let lab = lab(100_000, &slow_to_load("raise ValueError('no second one')"), &format!("{SAME}, workers: 2"));
    lab.run(&["run", "job.yaml"]).ended(2).says(&["cannot be loaded", "ValueError: no second one", "step t"]);
    assert!(!lab.path("out.csv").exists(), "there is no part of it");
    none_is_left(&lab);
}

#[test]
fn an_interrupted_run_waits_for_no_process_that_starts() {
    let code = slow_to_load("open('second', 'w').close(); time.sleep(1000)").replace("(0.1)", "(2)");
    let lab = lab(100_000, &code, &format!("{SAME}, workers: 2"));
    let mut command = lab.command(&["run", "job.yaml"]);
    let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let began = Instant::now();
    while !lab.path("second").exists() {
        assert!(began.elapsed() < Duration::from_secs(180), "no second process starts");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&run), Signal::INT).expect("it is there");
    assert_eq!(run.wait().expect("it ends").code(), Some(130));
    none_is_left(&lab);
}

/// Quick code that takes Arrow gets several batches at once, in order; but not where what fails is left out as a whole.
#[test]
fn quick_arrow_code_gets_several_batches() {
    let code = "import os\n\ndef f(batch):\n    with open('calls', 'a') as calls: print(batch.num_rows, \
                file=calls)\n    return batch\n";
    let python = python_with_libraries();
    let map = format!("{SAME}, exchange: arrow, interpreter: {}", python.display());
    let lab = lab(100_000, code, &map);
    let most = || {
        lab.file("calls", "");
        lab.run(&["run", "job.yaml"]).ok();
        let ids: Vec<usize> = csv_rows(&lab.read("out.csv")).iter().map(|row| row[0].parse().expect("an id")).collect();
        assert_eq!(ids, (0..100_000).collect::<Vec<_>>());
        let calls: Vec<usize> = lab.read("calls").lines().map(|rows| rows.parse().expect("a number")).collect();
        assert_eq!(calls.iter().sum::<usize>(), 100_000);
        calls.into_iter().max().expect("calls")
    };
    // On a busy machine calls may take long.
    let several = (0..5).map(|_| most()).find(|most| *most > BATCH_ROWS);
    assert!(several.is_some_and(|most| most <= 4 * BATCH_ROWS), "{several:?}");
    allow(&lab, 10);
    assert!(most() <= BATCH_ROWS);
}

#[test]
fn python_workers_are_asked_to_end() {
    let code = "import atexit, os\natexit.register(lambda: open(f'ended.{os.getpid()}', 'w').close())\n\ndef f(rows): \
                return rows\n";
    let asked = lab(10, code, &format!("{SAME}, workers: 1"));
    let ended = || crate::use_support::names(asked.0.root()).iter().filter(|name| name.starts_with("ended.")).count();
    asked.run(&["run", "job.yaml"]).ok();
    assert_eq!(ended(), 1);
    asked.run(&["preview", "job.yaml", "t"]).ok();
    assert_eq!(ended(), 2);

    let job = asked.read("job.yaml").replace("per: batch", "per: stream");
    asked.file("job.yaml", job);
    asked.run(&["run", "job.yaml"]).ok();
    assert_eq!(ended(), 3);

    let hangs = "import atexit, time\natexit.register(time.sleep, 1000)\n\ndef f(rows): return rows\n";
    asked.file("code.py", hangs);
    let begun = Instant::now();
    asked.run(&["run", "job.yaml"]).ok();
    assert!(begun.elapsed() < Duration::from_secs(180), "it was not awaited for ever");
    none_is_left(&asked);
}

#[test]
fn a_preview_hears_of_a_program_that_fails_at_its_end() {
    let program = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)\n\
                   sys.exit(5)\n";
    let fails =
        lab(10, "", "command: [python3, step.py], exchange: json, columns: {id: int64, name: utf8}, workers: 1");
    fails.file("step.py", program);
    for command in [["preview", "job.yaml", "t"], ["run", "job.yaml", "--quiet"]] {
        fails.run(&command).ended(1).says(&["the program `python3` failed", "it ended with status 5", "step t"]);
    }
}

#[test]
fn long_groups_leave_no_more_processes_than_there_may_be() {
    // Each process says when it begins; the function counts those that live.
    let code = r"
import os
with open('pids', 'a') as pids: print(os.getpid(), file=pids)

def lives(pid):
    try:
        with open(f'/proc/{pid}/stat') as stat: return stat.read().rsplit(')', 1)[1].split()[0] != 'Z'
    except OSError:
        return False

def f(rows):
    count = sum(1 for row in rows)
    return {'count': count, 'live': sum(lives(int(pid)) for pid in open('pids'))}
";
    let settings = "python: code.py:f, per: group, by: id, workers: 1, columns: {count: int64, live: int64}";
    let long = lab(0, code, settings);
    let mut text = "id,name\n".to_owned();
    let name = "x".repeat(1000);
    for row in 0..4 * 20_000 {
        let _ = writeln!(text, "{},{name}", row / 20_000);
    }
    long.file("in.csv", text);
    long.run(&["run", "job.yaml"]).ok();
    let rows = sorted(csv_rows(&long.read("out.csv")));
    assert!(rows.iter().all(|row| row[0] == "20000" && ["1", "2"].contains(&row[1].as_str())), "{rows:?}");
    assert_eq!(rows.len(), 4);
    none_is_left(&long);
}

#[test]
fn a_missing_secret_is_said_once() {
    let lab = lab(10, "def f(rows): return rows\n", &format!("{SAME}, env: {{T: {{secret: env:NO_SUCH_SECRET}}}}"));
    let ran = lab.run(&["run", "job.yaml"]);
    ran.ended(2).says(&["the secret's variable NO_SUCH_SECRET is not set"]);
    assert_eq!(ran.stderr.matches("the secret's variable").count(), 1, "{}", ran.stderr);
    let mut command = lab.command(&["run", "job.yaml"]);
    command.env("NO_SUCH_SECRET", "there").stdin(Stdio::null());
    finish(command, None).ok();
}
