//! `millstream test` through the real binary: jobs with small inputs, no source read, no sink written.

use std::path::Path;

use serde_json::{Value, json};

use crate::use_support::{Lab, finish, gzip, names};

const JOB: &str = "\
sources:
  orders:
    read: s3://bucket/orders/${DAY}/*.csv.gz
    max_rejects: 5
    contains: {any: ['paid', 'open']}
    csv: {columns: {id: int64, day: date, amount: 'decimal(10, 2)', status: utf8}}
  customers: {read: 'postgres://user:secret@nowhere/db', postgres: {table: customers}}
transforms:
  paid:
    sql: |
      SELECT c.name, sum(o.amount) AS amount, avg(o.amount) AS mean, max(o.day) AS last, count(*) AS orders,
             current_date - max(o.day) AS age, now() AS at
      FROM orders o JOIN customers c ON o.customer = c.id
      WHERE o.status = 'paid' GROUP BY c.name
  ranked: {sort: {from: paid, by: [amount desc]}}
sinks:
  totals: {from: ranked, write: 'postgres://user:secret@nowhere/db', table: totals, mode: replace}
";

/// The job with the column that the join needs.
fn job() -> String {
    JOB.replace("{columns: {id: int64,", "{columns: {id: int64, customer: int64,")
}

fn lab(tests: &str) -> Lab {
    let lab = Lab::with_job(&job());
    lab.file("job.test.yaml", tests);
    lab
}

const SOURCES: &str = "
    sources:
      orders:
        rows:
          - {id: 1, customer: 7, day: 2026-01-02, amount: 1.5, status: paid}
          - {id: 2, customer: 7, day: 2026-01-03, amount: 2.25, status: paid}
          - {id: 3, customer: 8, day: 2026-01-01, amount: 9, status: paid}
          - {id: 4, customer: 8, day: 2026-01-09, amount: 100, status: open}
      customers: {rows: [{id: 7, name: Ann}, {id: 8, name: Bo}]}
";

const TOTALS: &str = "
    expect:
      totals:
        in_order: true
        rows:
          - {name: Bo, amount: '9.00', orders: 1, last: 2026-01-01, at: '2026-02-01T12:00:00'}
          - {name: Ann, amount: 3.75, orders: 2, last: 2026-01-03}
";

fn passing() -> String {
    let head = "set: {DAY: 2026-01-31}\nnow: 2026-02-01T12:00:00Z\ntests:\n  - name: totals are those of paid orders";
    format!("{head}{SOURCES}{}", TOTALS.trim_start_matches('\n'))
}

#[test]
fn a_job_is_tested_without_its_sources_and_sinks() {
    let lab = lab(&passing());
    // What is left out of a row that another row has is null.
    let ran = lab.run(&["test", "job.yaml"]);
    ran.ended(1);
    assert!(ran.stdout.contains("at: expected null, found \"2026-02-01T12:00:00\""), "{}", ran.stdout);
    lab.file("job.test.yaml", passing().replace(", at: '2026-02-01T12:00:00'", ""));
    for path in ["job.yaml", "job.test.yaml", "."] {
        let ran = lab.run(&["test", path]);
        assert!(ran.ok().stdout.ends_with("1 test passed\n"), "{}", ran.stdout);
    }
    assert!(lab.run(&["test"]).ok().stdout.contains("ok    totals are those of paid orders"));
    // Nothing is left, in the history neither.
    assert_eq!(names(lab.0.root()), [".scratch", "job.test.yaml", "job.yaml"]);
    assert_eq!(names(&lab.path(".scratch")), Vec::<String>::new());
    let told = lab.run(&["test", "--json"]).ok().json();
    assert_eq!((&told["passed"], &told["failed"]), (&json!(1), &json!(0)));
    assert_eq!(told["files"][0]["tests"][0]["faults"], json!([]), "{told:#}");
}

#[test]
fn dates_are_pinned() {
    let dated = "{name: Ann, amount: 3.75, orders: 2, last: 2026-01-03, at: 2026-02-01T12:00:00Z}";
    let lab = lab(&passing().replace("{name: Ann, amount: 3.75, orders: 2, last: 2026-01-03}", dated));
    let ran = lab.run(&["test"]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    // A test may have a time of its own.
    let own = lab.read("job.test.yaml").replace("- name:", "- now: 2030-01-01T00:00:00+01:00\n    name:");
    lab.file("job.test.yaml", own);
    let ran = lab.run(&["test"]);
    assert!(ran.ended(1).stdout.contains("found \"2029-12-31T23:00:00\""), "{}", ran.stdout);
    // Without one, it is the present.
    lab.file("job.test.yaml", passing().replace("now: 2026-02-01T12:00:00Z\n", ""));
    assert!(lab.run(&["test"]).ended(1).stdout.contains("at: expected \"2026-02-01T12:00:00\", found"));
}

#[test]
fn differences_are_shown_row_by_row() {
    let wrong = "
    expect:
      totals:
        rows:
          - {name: Ann, amount: 3.5, orders: 2}
          - {name: Cy, amount: 1, orders: 7}
      orders: {rows: []}
";
    let near = "
    expect:
      totals: {within: 0.1, rows: [{name: Ann, mean: 1.88}, {name: Bo, mean: 9.0}]}
";
    let test = |name: &str, expect: &str| format!("  - name: {name}{SOURCES}{}", expect.trim_start_matches('\n'));
    let lab = lab(&format!("set: {{DAY: x}}\ntests:\n{}{}", test("wrong", wrong), test("near", near)));
    let ran = lab.run(&["test"]);
    let text = &ran.ended(1).stdout;
    for part in [
        "FAIL  wrong (line 3)",
        "`totals`: 2 rows expected, 2 found",
        "~ row 2 differs from expected row 1: {\"name\":\"Ann\",\"orders\":2}",
        "amount: expected \"3.50\", found \"3.75\"",
        "- expected row 2 is missing: {\"name\":\"Cy\",\"amount\":\"1.00\",\"orders\":7}",
        "+ row 1 is not expected: {\"amount\":\"9.00\",\"name\":\"Bo\",\"orders\":1}",
        "`orders`: 0 rows expected, 4 found",
        "1 of 2 tests failed",
    ] {
        // The order of columns is the job's.
        let part = part.replace("{\"amount\":\"9.00\",\"name\":\"Bo\"", "{\"name\":\"Bo\",\"amount\":\"9.00\"");
        assert!(text.contains(&part), "`{part}` is not in:\n{text}");
    }
    let told = lab.run(&["test", "--only", "wrong", "--json"]).ended(1).json();
    let faults = &told["files"][0]["tests"][0]["faults"];
    let kinds = |fault: &Value| {
        fault["differences"].as_array().expect("a list").iter().map(|one| one["kind"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(faults.as_array().map(Vec::len), Some(2), "{told:#}");
    assert_eq!(kinds(&faults[0]), ["unexpected"; 4], "{told:#}");
    assert_eq!(kinds(&faults[1]), ["differs", "missing", "unexpected"], "{told:#}");
    assert_eq!(lab.run(&["test", "--only", "near"]).ok().stdout.matches("ok").count(), 1);
}

/// The files of a test belong to the user, whatever the job does with those that it has loaded.
#[test]
fn files_of_a_test_stay_where_they_are() {
    let test = |name: &str, given: &str, v: &str| {
        format!("  - {{name: {name}, sources: {{s: {given}}}, expect: {{o: {{rows: [{{id: 1, v: {v}}}]}}}}}}\n")
    };
    let file = "{file: in/a.csv}";
    for after_load in ["delete", "{move: done}"] {
        let lab = Lab::with_job(&format!(
            "sources:\n  s: {{read: 'in/*.csv', incremental: true, after_load: {after_load}, csv: {{columns: {{id: \
             int64, v: 'decimal(10, 2)'}}}}}}\nsinks:\n  o: {{from: s, write: 'sqlite:out.db', table: t}}\n"
        ));
        lab.file("in/a.csv", "id,v\n1,1.50\n");
        let tests = [
            test("same", file, "1.5"),
            test("wrong", file, "1.51"),
            test("finer", file, "1.504"),
            test("given finer", "{rows: [{id: 1, v: 1.504}]}", "1.50"),
        ];
        lab.file("job.test.yaml", format!("tests:\n{}", tests.concat()));
        let ran = lab.run(&["test"]);
        let text = &ran.ended(1).stdout;
        for part in [
            "ok    same",
            "FAIL  wrong",
            "v: expected \"1.51\", found \"1.50\"",
            "FAIL  finer",
            "row 1 that is expected of `o` is none: decimal(10, 2) cannot hold all its digits after the point",
            "FAIL  given finer",
            "text `1.504`",
            "3 of 4 tests failed",
        ] {
            assert!(text.contains(part), "`{part}` is not in:\n{text}");
        }
        assert_eq!(names(lab.0.root()), [".scratch", "in", "job.test.yaml", "job.yaml"], "{after_load}");
        assert_eq!(names(&lab.path("in")), ["a.csv"], "{after_load}");
    }
}

#[test]
fn texts_and_files_are_parsed_as_the_job_says() {
    let lab = lab("");
    let text = "id,customer,day,amount,status\\n1,7,2026-01-01,1.5,paid\\n2,7,2026-01-01,1,dropped\\n3,7,no,1,open\\n";
    lab.file("fixtures/orders.csv.gz", gzip(text.replace("\\n", "\n").as_bytes()));
    let test = |name: &str, orders: &str, more: &str| {
        let customers = "      customers: {rows: [{id: 7, name: Ann}]}";
        format!("  - name: {name}\n    set: {{DAY: x}}\n    sources:\n      orders: {orders}\n{customers}\n{more}")
    };
    let of_text = format!("{{text: \"{text}\"}}");
    let good = concat!(
        "    expect:\n      orders: {rows: [{id: 1, amount: 1.50}]}\n",
        "      totals: {rows: [{name: Ann, amount: 1.50}]}\n",
        "    rejects: [{entry: orders, line: 4, message: not a date, raw: '3,7,no'}]\n",
    );
    lab.file(
        "job.test.yaml",
        format!(
            "tests:\n{}{}{}{}{}",
            test("text", &of_text, good),
            test("file", "{file: fixtures/orders.csv.gz}", good),
            test("rejects", &of_text, "    expect: {totals: {rows: [{name: Ann}]}}\n"),
            test("other rejects", &of_text, "    rejects: [{line: 4}, {line: 9}]\n"),
            test("no such file", "{file: fixtures/no.csv}", "    expect: {totals: {rows: []}}\n"),
        ),
    );
    let ran = lab.run(&["test"]);
    let text = &ran.ended(1).stdout;
    for part in [
        "ok    text",
        "ok    file",
        "FAIL  rejects",
        "`orders`, line 4 is rejected: ",
        "FAIL  other rejects",
        "nothing is rejected that is {\"line\":9}",
        "FAIL  no such file",
        "there is no such file",
        "3 of 5 tests failed",
    ] {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
}

#[test]
fn a_line_that_is_not_known_is_told() {
    let lab = Lab::with_job(
        "sources:\n  p: {read: in.csv, csv: {columns: {id: int64, c: utf8}}, max_rejects: 10, checks: [{not_null: \
         [c], severity: reject}]}\nsinks:\n  a: {from: p, write: a.csv}\n  b: {from: p, write: b.csv}\n",
    );
    let test = |name: &str, reject: &str| {
        let sources = "sources: {p: {text: \"id,c\\n1,a\\n2,\\n\"}}";
        format!("  - {{name: {name}, {sources}, rejects: [{reject}]}}\n")
    };
    let tests =
        [test("with", "{entry: p, line: 3}"), test("without", "{entry: p}"), test("other", "{entry: a, line: 3}")];
    lab.file("job.test.yaml", format!("tests:\n{}", tests.concat()));
    let ran = lab.run(&["test"]);
    ran.ended(1).prints(&[
        "ok    without",
        "nothing is rejected that is {\"entry\":\"p\",\"line\":3}: its line is not known",
        "nothing is rejected that is {\"entry\":\"a\",\"line\":3}\n",
    ]);
}

#[test]
fn a_job_may_be_expected_to_fail() {
    let sources = "
    sources:
      orders: {text: \"a,b\\n1,2\\n\"}
      customers: {rows: [{id: 1, name: x}]}
";
    let test = |name: &str, sources: &str, error: &str| format!("  - name: {name}{sources}    error: {error}\n");
    let lab = lab(&format!(
        "set: {{DAY: x}}\ntests:\n{}{}{}",
        test("fails", sources, "lacks the columns"),
        test("fails otherwise", sources, "another message"),
        test("does not fail", SOURCES, "anything"),
    ));
    let ran = lab.run(&["test"]);
    let text = &ran.ended(1).stdout;
    for part in [
        "ok    fails (",
        "FAIL  fails otherwise",
        "FAIL  does not fail",
        "the job is expected to fail with `anything`, and it does not",
        "2 of 3 tests failed",
    ] {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
}

/// What is wrong with a test or its job is shown with its place, and nothing is read instead.
#[test]
fn what_is_wrong_with_a_test_is_told() {
    let lab = lab("");
    let given = |customers: &str| format!("sources: {{orders: {{rows: []}}, {customers}}}");
    let one = given("customers: {rows: [{id: 1, name: x}]}");
    for (test, message) in [
        (
            format!("{}, error: x", given("")),
            "the test gives nothing for the source `customers`, and no source is read",
        ),
        (format!("{}, error: x", given("customers: {rows: []}")), "the columns of the source are not known"),
        (format!("{}, error: x", given("customer: {rows: []}")), "the job has no source `customer`"),
        (format!("{}, error: y", given("customers: {text: x}")), "a database gives rows, and no text"),
        (format!("{one}, expect: {{total: {{rows: []}}}}"), "did you mean `totals`?"),
        (format!("{one}, expect: {{totals: {{rows: [{{nam: x}}]}}}}"), "`totals` has no column `nam`, which the test"),
        (
            format!("{one}, expect: {{totals: {{rows: [{{orders: many}}]}}}}"),
            "row 1 that is expected of `totals` is none",
        ),
        (format!("{}, expect: {{totals: {{rows: []}}}}", one.replacen("rows: []", "rows: [{idd: 1}]", 1)), "idd"),
        (format!("now: yesterday, {one}, error: x"), "`now` is not a time"),
    ] {
        lab.file("job.test.yaml", format!("set: {{DAY: x}}\ntests:\n  - {{name: a, {test}}}\n"));
        let ran = lab.run(&["test"]);
        assert_eq!(ran.code, 1, "{test}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stdout.contains(message), "`{message}` is not in:\n{}", ran.stdout);
    }
    // Variables of the environment are not those of a test.
    lab.file(
        "job.test.yaml",
        "tests:\n  - {name: a, sources: {orders: {rows: []}, customers: {rows: []}}, error: x}\n",
    );
    let mut command = lab.command(&["test"]);
    command.env("DAY", "x");
    let ran = finish(command, None);
    assert!(ran.ended(1).stdout.contains("DAY"), "{}", ran.stdout);

    lab.file("job.test.yaml", "tests:\n  - {name: a, expct: {}}\n");
    lab.run(&["test"]).ended(2).says(&["unknown key `expct`", "the test expects nothing", "job.test.yaml:2:"]);
    lab.run(&["test", "nosuch.yaml"]).ended(2).says(&["there are no tests here"]);
    lab.file("other.yaml", "job: nosuch.yaml\ntests:\n  - {name: a, error: x}\n");
    lab.run(&["test", "other.yaml"]).ended(2).says(&["the job file nosuch.yaml cannot be read"]);
    lab.file("job.test.yaml", passing());
    lab.run(&["test", "--only", "nothing"]).ended(2).says(&["no test has this in its name"]);
    lab.file("empty/readme.txt", "");
    lab.run(&["test", "empty"]).ended(2).says(&["there are no test files in this folder"]);
}

#[test]
fn editors_get_a_schema() {
    let schema = Lab::new().run(&["test", "--schema"]).ok().json();
    assert!(schema["properties"]["tests"].is_object(), "{schema:#}");
    jsonschema::meta::validate(&schema).expect("a schema");
}

#[test]
fn the_tests_of_the_examples_pass() {
    let lab = Lab::new();
    let mut command = lab.command(&["test", "examples"]);
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    let ran = finish(command, None);
    assert!(ran.ok().stdout.ends_with("2 tests passed\n"), "{}", ran.stdout);
}

/// A job that reads a queue has an end in its tests, and the rows that are given have what the queue adds.
#[test]
fn jobs_that_read_a_queue_are_tested_without_it() {
    let lab = Lab::with_job(
        "\
until: stopped
commit: {every: 100ms}
keep_rejects: 7d
sources:
  events:
    read: redis://nowhere/0
    redis: {stream: events, group: load}
    json: {columns: {id: int64, name: utf8}}
    add: [_id, _time]
transforms:
  named: {sql: 'SELECT id, upper(name) AS name, _id, _time FROM events WHERE id > 1'}
sinks:
  o: {from: named, write: 'postgres://user:secret@nowhere/db', table: t}
",
    );
    let test = |source: &str| {
        format!(
            "tests:\n  - name: q\n    sources:\n      events: {source}\n    expect:\n      \
             o: {{rows: [{{id: 2, name: B, _id: 2-0, _time: '2026-01-01T00:00:00Z'}}]}}\n"
        )
    };
    let rows = "{rows: [{id: 1, name: a, _id: 1-0}, {id: 2, name: b, _id: 2-0, _time: '2026-01-01T00:00:00Z'}]}";
    lab.file("job.test.yaml", test(rows));
    lab.run(&["test", "job.yaml"]).ok();
    lab.file("job.test.yaml", test("{text: '{\"id\": 2, \"name\": \"b\"}'}"));
    let told = ["the source adds `_id` of the messages of a queue", "give `rows` with this column"];
    lab.run(&["test", "job.yaml"]).ended(1).prints(&told);
}
