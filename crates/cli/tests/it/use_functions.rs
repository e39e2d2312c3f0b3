//! Python functions that SQL calls, through the real binary.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::use_map::none_is_left;
use crate::use_support::{Lab, csv_rows, sorted, sqlite, step};

const ROWS: usize = 20_000;

/// A job with `functions` and one query over a file of ids and names, every tenth of which is null.
fn lab(functions: &str, query: &str, sink: &str) -> Lab {
    let lab = Lab::with_job(&format!(
        "sources:\n  s: {{read: in.csv, csv: {{columns: {{id: int64, name: utf8}}}}}}\nfunctions:\n  \
         {functions}\ntransforms:\n  t:\n    sql: {query}\nsinks:\n  o: {{from: t, {sink}}}\n"
    ));
    let rows: String =
        (0..ROWS).map(|id| if id % 10 == 0 { format!("{id},\n") } else { format!("{id},name {id}\n") }).collect();
    lab.file("in.csv", format!("id,name\n{rows}"));
    lab
}

const LENGTH: &str =
    "length_of: {python: own.py:length, arguments: [utf8, int64], returns: int64, deterministic: true}";

const OWN: &str = "\
import os, sys
from decimal import Decimal
def length(name, more):
    return None if name is None else len(name) + more
def bad(id):
    if id == 777:
        raise ValueError('777 is no good')
    return id * 2
def dies(id):
    if id == 777:
        os._exit(7)
    return id * 2
def wrong(id):
    return 'text'
def nothing():
    return os.getpid()
COUNT = 0
def next_of(_):
    global COUNT
    COUNT += 1
    return COUNT
def hangs(id):
    import time
    open('hangs', 'w').close()
    time.sleep(1000)
def lost_at(id, end):
    if id == 7777:
        open('tried', 'a').write('x')
        end()
    return id
def hangs_once(id):
    import time
    return lost_at(id, lambda: time.sleep(1000))
def dies_once(id):
    return lost_at(id, lambda: os._exit(7))
def told(*values):
    return ' '.join(map(str, values))
def price(cents):
    return Decimal(cents) / 100
";

#[test]
fn sql_calls_functions_wherever_it_calls_others() {
    let lab = lab(
        LENGTH,
        "SELECT id, length_of(name, 1) AS n FROM s WHERE coalesce(length_of(name, CAST(0 AS INT)), 0) <> 6",
        "write: out.csv",
    );
    lab.file("own.py", OWN);
    lab.run(&["run", "job.yaml"]).ok();
    let expected: Vec<Vec<String>> = (0..ROWS)
        .map(|id| (id, format!("name {id}").len()))
        .filter(|(id, length)| id % 10 == 0 || *length != 6)
        .map(|(id, length)| vec![id.to_string(), if id % 10 == 0 { String::new() } else { (length + 1).to_string() }])
        .collect();
    assert_eq!(sorted(csv_rows(&lab.read("out.csv"))), sorted(expected));
    none_is_left(&lab);

    // In an aggregate, a join, an order, a CASE; with constants alone, and without arguments.
    for (query, rows) in [
        ("SELECT sum(length_of(name, 0)) AS n FROM s WHERE id < 12", "n\n61\n"),
        (
            "SELECT length_of(name, 0) AS l, count(*) AS n FROM s WHERE id < 100 GROUP BY 1 ORDER BY 1",
            "l,n\n6,9\n7,81\n,10\n",
        ),
        ("SELECT a.id FROM s a JOIN s b ON a.id = length_of(b.name, 0) WHERE b.id BETWEEN 1 AND 11 ORDER BY 1", {
            "id\n6\n6\n6\n6\n6\n6\n6\n6\n6\n7\n"
        }),
        (
            "SELECT CASE WHEN id = 1 THEN length_of(name, id) ELSE -1 END AS n FROM s WHERE id IN (1, 2) ORDER BY id",
            "n\n7\n-1\n",
        ),
        ("SELECT length_of('abc', 1) AS n FROM s WHERE id = 1", "n\n4\n"),
        ("SELECT id FROM s WHERE id < 3 ORDER BY length_of(name, id) DESC NULLS FIRST", "id\n0\n2\n1\n"),
    ] {
        let job = lab.read("job.yaml");
        let (before, rest) = job.split_once("    sql: ").expect("a query");
        let (_, after) = rest.split_once('\n').expect("a line");
        lab.file("job.yaml", format!("{before}    sql: {query}\n{after}"));
        lab.run(&["run", "job.yaml"]).ok();
        assert_eq!(lab.read("out.csv"), rows, "{query}");
    }
    // A literal is an int64 or a timestamp of nanoseconds; a number that does not fit is an error.
    let types = self::lab(
        "f: {python: own.py:told, arguments: [int32, \"decimal(12, 2)\", timestamp, time], returns: utf8}",
        "SELECT f(id, 5, TIMESTAMP '2026-01-02T03:04:05', TIME '10:00:00') AS t FROM s WHERE id = 1",
        "write: out.csv",
    );
    types.file("own.py", OWN);
    types.run(&["run", "job.yaml"]).ok();
    assert_eq!(types.read("out.csv"), "t\n1 5.00 2026-01-02 03:04:05 10:00:00\n");
    types.file("job.yaml", types.read("job.yaml").replace("f(id,", "f(id + 5000000000,"));
    types.run(&["run", "job.yaml"]).ended(1).says(&["5000000001"]);
    types.file("job.yaml", types.read("job.yaml").replace("f(id + 5000000000,", "f(name,"));
    types
        .run(&["check", "job.yaml"])
        .ended(2)
        .says(&["`f` takes (int32, decimal(12, 2), timestamp, time), and is given (utf8, int64, ", "CAST"]);
    let other = self::lab(
        "pid: {python: own.py:nothing, arguments: [], returns: int64, workers: 1}\n  price: {python: own.py:price, \
         arguments: [int64], returns: \"decimal(10, 2)\"}",
        "SELECT count(DISTINCT pid()) AS n, sum(price(id)) AS p FROM s",
        "write: out.csv",
    );
    other.file("own.py", OWN);
    // Without the promise, each row is a call of its own, though all have the same arguments.
    let one = self::lab(
        "next: {python: own.py:next_of, arguments: [utf8], returns: int64, workers: 1}",
        "SELECT count(DISTINCT n) AS d, max(n) AS m FROM (SELECT next('a') AS n FROM s)",
        "write: out.csv",
    );
    one.file("own.py", OWN);
    one.run(&["run", "job.yaml"]).ok();
    assert_eq!(one.read("out.csv"), "d,m\n20000,20000\n");
    other.run(&["run", "job.yaml"]).ok();
    assert_eq!(other.read("out.csv"), "n,p\n1,1999900.00\n");
}

#[test]
fn what_a_function_promises_decides_how_it_is_loaded() {
    let sink = "write: \"sqlite:out.db\", table: t";
    let lab = lab(LENGTH, "SELECT id, length_of(name, 0) AS n FROM s", sink);
    lab.file("own.py", OWN);
    let plan = lab.run(&["explain", "job.yaml"]);
    plan.ok();
    assert!(plan.stdout.contains("chunk by chunk"), "{}", plan.stdout);
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(sqlite(&lab.path("out.db"), "SELECT count(*), sum(n) FROM t"), [["20000", "170001"]]);
    lab.file("job.yaml", lab.read("job.yaml").replace(", deterministic: true", ""));
    let plan = lab.run(&["explain", "job.yaml"]);
    assert!(
        plan.stdout.contains("all at once, since the function `length_of` may give another value each time"),
        "{}",
        plan.stdout
    );
}

#[test]
fn a_value_that_fails_is_that_of_its_row() {
    for (name, parts) in [
        ("bad", ["the function `f` failed: ValueError: 777 is no good", "own.py", r#"text `{"$1":777}`"#]),
        ("dies", ["the function `f` failed", "status 7", "777"]),
    ] {
        let functions = format!("f: {{python: own.py:{name}, arguments: [int64], returns: int64}}");
        let lab = lab(&functions, "SELECT id, f(id) AS n FROM s", "write: out.csv");
        lab.file("own.py", OWN);
        lab.run(&["run", "job.yaml"]).ended(1).says(&parts);
        assert!(!lab.path("out.csv").exists());
        lab.file("job.yaml", lab.read("job.yaml").replace("    sql:", "    max_rejects: 1\n    sql:"));
        lab.run(&["run", "job.yaml"]).ok().says(&["1 rejected"]);
        let rows = csv_rows(&lab.read("out.csv"));
        assert_eq!((rows.len(), rows.iter().any(|row| row[0] == "777")), (ROWS - 1, false));
        assert!(rows.iter().all(|row| row[1] == (row[0].parse::<u64>().expect("a number") * 2).to_string()));
        none_is_left(&lab);
    }
    let lab = lab(
        "f: {python: own.py:wrong, arguments: [int64], returns: int64}",
        "SELECT f(id) AS n FROM s",
        "write: o.csv",
    );
    lab.file("own.py", OWN);
    lab.run(&["run", "job.yaml"]).ended(1).says(&["the function gave a value that is no int64"]);
}

/// The steps are one plan, and so is what they call.
#[test]
fn of_several_steps_the_one_that_calls_the_function_is_at_fault() {
    let functions = "f: {python: own.py:bad, arguments: [int64], returns: int64, deterministic: true}";
    let lab = lab(functions, "SELECT id, f(id) AS n FROM s", "write: out.csv");
    lab.file("own.py", OWN);
    let job = lab.read("job.yaml").replace("from: t,", "from: u,");
    let above = |rejects: &str| {
        let u = "  u:\n    sql: SELECT id, abs(f(n - n)) AS n, f(CAST(1 AS BIGINT)) AS one FROM t WHERE id < 1000\n";
        job.replace("    sql:", &format!("{rejects}    sql:")).replace("sinks:", &format!("{u}sinks:"))
    };
    lab.file("job.yaml", above(""));
    lab.run(&["run", "job.yaml"]).ended(1).says(&[
        "ValueError: 777 is no good",
        "step t\n",
        "`max_rejects: 100` (or `1%`) at `t`",
    ]);
    lab.file("job.yaml", above("    max_rejects: 1\n"));
    let report = lab.report(&[]);
    assert_eq!(csv_rows(&lab.read("out.csv")).len(), 999);
    let rejects = lab.run(&["rejects", report["run"].as_str().expect("a run"), "--json"]);
    assert_eq!(rejects.ok().json()["rejects"][0]["step"], json!("t"), "{}", rejects.stdout);
}

#[test]
fn a_value_at_which_a_worker_is_lost_is_found_at_once() {
    for name in ["hangs_once", "dies_once"] {
        let functions = format!("f: {{python: own.py:{name}, arguments: [int64], returns: int64, timeout: 3s}}");
        let lab = lab(&functions, "SELECT id, f(id) AS n FROM s", "write: out.csv");
        lab.file("own.py", OWN);
        lab.file("job.yaml", lab.read("job.yaml").replace("    sql:", "    max_rejects: 1\n    sql:"));
        let report = lab.report(&[]);
        assert_eq!(report["rows_rejected"], json!(1), "{report:#}");
        assert_eq!(csv_rows(&lab.read("out.csv")).len(), ROWS - 1);
        let tried = lab.read("tried").len();
        // A call that was under way when the value was found to be lost may have it, too.
        assert!((2..=6).contains(&tried), "{tried} times");
        assert_eq!(step(&report, "f", "transform")["work"]["restarts"], json!(tried), "{report:#}");
    }
}

#[test]
fn rows_in_and_out_of_a_function_are_reported() {
    let lab = lab(LENGTH, "SELECT length_of(name, id) AS n FROM s", "write: out.csv");
    lab.file("own.py", OWN);
    let report = lab.report(&[]);
    let step = step(&report, "length_of", "transform");
    assert_eq!((&step["work"]["rows_in"], &step["rows"]), (&json!(ROWS), &json!(ROWS)), "{report:#}");
    let told = lab.run(&["run", "job.yaml"]).ok().stderr.clone();
    let line = told.lines().find(|line| line.starts_with("length_of ")).unwrap_or_else(|| panic!("{told}"));
    assert_eq!(line.matches("20,000").count(), 2, "{line}");
}

/// A thread that waits for a value does not keep a run from ending.
#[test]
fn a_function_that_hangs_does_not_hold_up_the_end() {
    let functions = "f: {python: own.py:hangs, arguments: [int64], returns: int64}";
    let lab = lab(functions, "SELECT f(id) AS n FROM s", "write: out.csv");
    lab.file("own.py", OWN);
    let run = lab.command(&["run", "job.yaml"]).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("started");
    let begun = Instant::now();
    while !lab.path("hangs").exists() {
        assert!(begun.elapsed() < Duration::from_secs(180), "it was never called");
        std::thread::sleep(Duration::from_millis(10));
    }
    let begun = Instant::now();
    let id = rustix::process::Pid::from_child(&run);
    rustix::process::kill_process(id, rustix::process::Signal::INT).expect("interrupted");
    let ended = run.wait_with_output().expect("ended");
    assert!(begun.elapsed() < Duration::from_secs(120));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("the run was interrupted"), "{ended:?}");
    none_is_left(&lab);

    // Nor does it when another sink fails.
    lab.file("job.yaml", format!("{}  e: {{from: s, command: [\"false\"], exchange: csv}}\n", lab.read("job.yaml")));
    let begun = Instant::now();
    lab.run(&["run", "job.yaml"]).ended(1).says(&["`false`"]);
    assert!(begun.elapsed() < Duration::from_secs(180));
    none_is_left(&lab);
}

#[test]
fn mistakes_in_functions_are_found_by_check() {
    let lab = lab(
        "f: {python: own.py:lenght, arguments: [int64], returns: int64}",
        "SELECT f(id) AS n FROM s",
        "write: o.csv",
    );
    lab.file("own.py", OWN);
    lab.run(&["check", "job.yaml"]).ended(2).says(&["there is no function `lenght`; did you mean `length`?", "step f"]);
    let job = lab.read("job.yaml");
    for (functions, query, parts) in [
        (
            "Upper: {python: own.py:length, arguments: [utf8, int64], returns: utf8}",
            "SELECT 1 AS a FROM s",
            &["not in lower case"][..],
        ),
        (
            "upper: {python: own.py:length, arguments: [utf8, int64], returns: utf8}",
            "SELECT 1 AS a FROM s",
            &["SQL has a function `upper` of its own"],
        ),
        (
            "f: {python: own.py, arguments: [int46], returns: utf}",
            "SELECT 1 AS a FROM s",
            &["names no function", "int46", "utf"],
        ),
        (
            "f: {python: own.py:length, returns: utf8, volatile: true}",
            "SELECT 1 AS a FROM s",
            &["`arguments` is missing", "unknown key `volatile`"],
        ),
        ("f: {python: own.py:length, arguments: [utf8, int64], returns: int64}", "SELECT f(id) AS n FROM s", &["f"]),
        ("f: {python: own.py:length, arguments: [utf8, int64], returns: int64}", "SELECT g(id) AS n FROM s", &["g"]),
        (
            "f: {python: own.py:length, arguments: [int64], returns: int64}",
            "SELECT f(id) AS n FROM s",
            &["the function takes (name, more), and is called with 1 argument, line 3"],
        ),
        (
            "f: {python: own.py:length, arguments: [utf8, int64], returns: int64, env: {S: 10}}",
            "SELECT f(id) AS n FROM s",
            &["`S` is neither text nor a reference to a secret", "put it in quotes"],
        ),
    ] {
        let (before, rest) = job.split_once("functions:\n").expect("functions");
        let (_, after) = rest.split_once("transforms:").expect("transforms");
        let (_, sinks) = after.split_once("sinks:").expect("sinks");
        lab.file(
            "job.yaml",
            format!("{before}functions:\n  {functions}\ntransforms:\n  t:\n    sql: {query}\nsinks:{sinks}"),
        );
        let ran = lab.run(&["check", "job.yaml"]);
        ran.says(parts);
        assert_ne!(ran.code, 0, "{}", ran.stderr);
    }
    // Any number of arguments, some that may be left out, and a method.
    lab.file(
        "own.py",
        "def f(*values): return 1\ndef g(a, b=2): return a\n\
         class C:\n    @staticmethod\n    def h(a): return a\n",
    );
    for name in ["f", "g", "C.h"] {
        let functions = format!("f: {{python: own.py:{name}, arguments: [int64], returns: int64}}");
        lab.file("job.yaml", job.replace("f: {python: own.py:lenght, arguments: [int64], returns: int64}", &functions));
        assert_eq!(lab.run(&["check", "job.yaml"]).ok().stderr, "job.yaml can run\n", "{name}");
    }
    lab.file("job.yaml", lab.read("job.yaml").replace("SELECT f(id) AS n", "SELECT id"));
    lab.run(&["check", "job.yaml"]).ok().says(&["nothing calls the function `f`"]);
}
