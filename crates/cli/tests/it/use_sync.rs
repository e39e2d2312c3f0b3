//! Tables that are kept in step with their source (`mode: sync`), and what a merge changes, in all databases.

mod foreign_keys;
mod sqlite_merge;

use std::os::unix::process::ExitStatusExt;

use serde_json::{Value, json};

use crate::use_resume::{Target, in_mariadb, in_postgres, in_sqlite};
use crate::use_support::Lab;

/// All kinds of targets.
pub const TARGETS: [fn(&Lab) -> Target; 3] = [in_sqlite, in_mariadb, in_postgres];

/// A folder with a job that loads `in.jsonl` (`id`, `name`, `amount`, `day`) into table `t` by the key `id`.
pub fn lab(make: fn(&Lab) -> Target, settings: &str) -> (Lab, Target) {
    let lab = Lab::new();
    let target = make(&lab);
    configure(&lab, &target, settings);
    (lab, target)
}

/// Writes the job with these settings of its sink.
pub fn configure(lab: &Lab, target: &Target, settings: &str) {
    let columns = "{id: int64, name: utf8, amount: float64, day: date}";
    lab.file(
        "job.yaml",
        format!(
            "sources:\n  s: {{read: 'in*.jsonl', allow_empty: true, json: {{columns: {columns}}}}}\nsinks:\n  o: \
             {{from: s, write: '{}', table: t, key: [id], {settings}}}\n",
            target.url()
        ),
    );
}

/// A row of the input.
pub fn row(id: i64, name: Option<&str>, amount: Option<f64>) -> Value {
    json!({"id": id, "name": name, "amount": amount, "day": "2026-01-01"})
}

pub fn rows(lab: &Lab, rows: &[Value]) {
    lab.file("in.jsonl", rows.iter().map(|row| format!("{row}\n")).collect::<String>());
}

/// Runs the job, and gives what it has changed: inserted, updated, unchanged, deleted.
#[track_caller]
pub fn changes(lab: &Lab, arguments: &[&str]) -> [u64; 4] {
    let report = lab.report(arguments);
    let changes = &report["results"][0]["changes"];
    ["inserted", "updated", "unchanged", "deleted"]
        .map(|name| changes[name].as_u64().unwrap_or_else(|| panic!("{report}")))
}

/// Runs the job, which has to die at `fail_point`, unless that is one that only some databases have.
#[track_caller]
pub fn killed_if_reached(lab: &Lab, fail_point: &str) {
    let is_killed = lab.run_to(fail_point).signal() == Some(9);
    assert!(is_killed || fail_point.contains("step") || fail_point.starts_with("rename"), "{fail_point}");
}

/// Of Millstream's own tables only the ledger may be left.
#[track_caller]
pub fn assert_no_own_tables(target: &Target, context: &str) {
    let tables = target.tables();
    let is_own = |name: &&String| name.starts_with("_millstream_") && *name != "_millstream_ledger";
    assert_eq!(tables.iter().filter(is_own).count(), 0, "{context}: {tables:?}");
}

fn names(target: &Target) -> Vec<String> {
    target.query("SELECT id, name FROM t ORDER BY id")
}

/// What a null is called in the answers of the clients.
pub fn null(target: &Target) -> &'static str {
    if matches!(target, Target::Sqlite(_)) { "" } else { "NULL" }
}

#[test]
fn a_table_becomes_like_its_source() {
    for make in TARGETS {
        let (lab, target) = lab(make, "mode: sync, missing: delete, max_deletes: 60%");
        let first =
            [row(1, Some("a"), None), row(2, None, Some(2.5)), row(3, Some("c"), Some(3.0)), row(4, Some("d"), None)];
        rows(&lab, &first);
        assert_eq!(changes(&lab, &[]), [4, 0, 0, 0]);
        assert_eq!(changes(&lab, &[]), [0, 0, 4, 0]);
        let second =
            [row(1, Some("A"), None), row(2, Some("b"), Some(2.5)), row(3, None, Some(3.0)), row(5, Some("e"), None)];
        rows(&lab, &second);
        let ran = lab.run(&["run", "job.yaml"]);
        ran.ok();
        let told = format!("{}{}", ran.stdout, ran.stderr);
        let expected = "4 rows compared with table t of ";
        assert!(told.contains(expected) && told.contains(": 1 inserted, 3 updated, 0 unchanged, 1 deleted"), "{told}");
        let null = null(&target);
        assert_eq!(names(&target), ["1\tA", "2\tb", &format!("3\t{null}"), "5\te"]);
        assert_eq!(target.tables(), ["t"]);
        let runs = lab.run(&["runs", "--json"]).json();
        let last = runs["runs"][0]["run"].as_str().expect("a name").to_owned();
        let stored = lab.run(&["runs", &last, "--json"]);
        assert!(stored.stdout.contains(r#""updated":3"#), "{}", stored.stdout);
    }
}

#[test]
fn rows_are_compared_bit_by_bit() {
    for make in TARGETS {
        let (lab, target) = lab(make, "mode: sync, missing: delete");
        let text = match make(&lab).url().split(':').next() {
            Some("sqlite") => "TEXT COLLATE NOCASE",
            Some("mysql") => "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
            _ => "text",
        };
        target
            .query(&format!("CREATE TABLE t (id BIGINT PRIMARY KEY, name {text}, amount DOUBLE PRECISION, day DATE)"));
        rows(&lab, &[row(1, Some("a"), Some(0.0)), row(2, Some("b"), Some(0.0)), row(3, Some("c"), None)]);
        assert_eq!(changes(&lab, &[]), [3, 0, 0, 0]);
        rows(&lab, &[row(1, Some("A"), Some(0.0)), row(2, Some("b "), Some(0.0)), row(3, Some("c"), None)]);
        assert_eq!(changes(&lab, &[]), [0, 2, 1, 0]);
        assert_eq!(target.query("SELECT count(*) FROM t WHERE length(name) = 2"), ["1"]);
        let hex = if matches!(target, Target::Server(_)) && target.url().starts_with("postgres") {
            "encode(convert_to(name, 'UTF8'), 'hex')"
        } else {
            "lower(hex(name))"
        };
        assert_eq!(target.query(&format!("SELECT {hex} FROM t ORDER BY id")), ["41", "6220", "63"]);
        // Others show no sign of zero.
        if target.url().starts_with("postgres") {
            rows(&lab, &[row(1, Some("A"), Some(-0.0)), row(2, Some("b "), Some(0.0)), row(3, Some("c"), None)]);
            assert_eq!(changes(&lab, &[]), [0, 1, 2, 0]);
            assert_eq!(changes(&lab, &[]), [0, 0, 3, 0]);
        }
    }
}

/// Of types whose equality hides more, in PostgreSQL.
#[test]
fn values_that_are_equal_but_not_the_same_are_changed() {
    let (lab, target) = lab(in_postgres, "mode: sync, missing: delete");
    target.query("CREATE TABLE t (id BIGINT PRIMARY KEY, number numeric, document json, span interval)");
    let job = lab
        .read("job.yaml")
        .replace("name: utf8, amount: float64, day: date", "number: utf8, document: utf8, span: utf8");
    let select = "SELECT id, arrow_cast(number, 'Decimal128(20, 4)') AS number, document, span FROM s";
    let job = job.replace("sinks:", &format!("transforms:\n  n: {{sql: \"{select}\"}}\nsinks:"));
    lab.file("job.yaml", job.replace("from: s", "from: n"));
    let of = |document: &str, span: &str| json!({"id": 1, "number": "1", "document": document, "span": span});
    rows(&lab, &[of(r#"{"a": 1}"#, "1 month")]);
    assert_eq!(changes(&lab, &[]), [1, 0, 0, 0]);
    assert_eq!(changes(&lab, &[]), [0, 0, 1, 0]);
    for (document, span) in [(r#"{"a":1}"#, "1 month"), (r#"{"a":1}"#, "30 days")] {
        rows(&lab, &[of(document, span)]);
        assert_eq!(changes(&lab, &[]), [0, 1, 0, 0], "{document} {span}");
    }
    target.query("UPDATE t SET number = 1.0");
    assert_eq!(changes(&lab, &[]), [0, 1, 0, 0]);
    assert_eq!(target.query("SELECT number FROM t"), ["1.0000"]);
}

/// A key whose capitals differ is the same to such a column, and takes the new spelling.
#[test]
fn a_key_is_compared_as_the_table_does_and_written_as_it_comes() {
    for make in [in_sqlite as fn(&Lab) -> Target, in_mariadb] {
        let (lab, target) = lab(make, "mode: sync, missing: delete");
        let collation = if matches!(target, Target::Sqlite(_)) { "NOCASE" } else { "utf8mb4_general_ci" };
        target.query(&format!(
            "CREATE TABLE t (name VARCHAR(20) COLLATE {collation} PRIMARY KEY, amount DOUBLE PRECISION)"
        ));
        let job = lab
            .read("job.yaml")
            .replace("key: [id]", "key: [name]")
            .replace("id: int64, ", "")
            .replace(", day: date", "");
        lab.file("job.yaml", job);
        rows(&lab, &[json!({"name": "a", "amount": 1.0}), json!({"name": "b", "amount": 2.0})]);
        assert_eq!(changes(&lab, &[]), [2, 0, 0, 0]);
        rows(&lab, &[json!({"name": "A", "amount": 1.0}), json!({"name": "b", "amount": 2.0})]);
        assert_eq!(changes(&lab, &[]), [0, 1, 1, 0]);
        assert_eq!(target.query("SELECT name FROM t ORDER BY amount"), ["A", "b"]);
    }
}

#[test]
fn missing_rows_are_kept_or_flagged() {
    for make in TARGETS {
        let (lab, target) = lab(make, "mode: sync, missing: keep");
        rows(&lab, &[row(1, Some("a"), None), row(2, Some("b"), None)]);
        changes(&lab, &[]);
        rows(&lab, &[row(2, Some("B"), None)]);
        assert_eq!(changes(&lab, &[]), [0, 1, 0, 0]);
        assert_eq!(names(&target), ["1\ta", "2\tB"]);
        target.query("DROP TABLE t");
        configure(&lab, &target, "mode: sync, missing: {flag: gone}, max_deletes: 1");
        rows(&lab, &[row(1, Some("a"), None), row(2, Some("b"), None)]);
        assert_eq!(changes(&lab, &[]), [2, 0, 0, 0]);
        rows(&lab, &[row(2, Some("b"), None)]);
        let ran = lab.run(&["run", "job.yaml"]);
        ran.ok();
        assert!(ran.stderr.contains("1 flagged") || ran.stdout.contains("1 flagged"), "{ran:?}");
        let flagged = || target.query("SELECT id FROM t WHERE gone ORDER BY id");
        assert_eq!(flagged(), ["1"]);
        // It is flagged already, and comes again later.
        assert_eq!(changes(&lab, &[]), [0, 0, 1, 0]);
        rows(&lab, &[row(1, Some("a"), None), row(2, Some("b"), None)]);
        assert_eq!(changes(&lab, &[]), [0, 1, 1, 0]);
        assert!(flagged().is_empty());
    }
}

#[test]
fn only_rows_in_the_scope_are_compared() {
    for make in TARGETS {
        let (lab, target) = lab(make, "mode: sync, missing: delete, scope: \"day = '2026-01-01'\", max_deletes: 1");
        target.query("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20), amount DOUBLE PRECISION, day DATE)");
        target.query(
            "INSERT INTO t VALUES (1, 'a', NULL, '2026-01-01'), (2, 'b', NULL, '2026-01-01'), (3, 'c', NULL, \
                      '2026-01-02')",
        );
        rows(&lab, &[row(2, Some("B"), None), row(4, Some("d"), None)]);
        assert_eq!(changes(&lab, &[]), [1, 1, 0, 1]);
        assert_eq!(names(&target), ["2\tB", "3\tc", "4\td"]);
        let outside = json!({"id": 5, "name": "e", "amount": null, "day": "2026-01-02"});
        rows(&lab, &[row(2, Some("x"), None), outside, row(4, Some("d"), None)]);
        lab.run(&["run", "job.yaml"]).ended(1).says(&["rows for table t of", "are outside of `scope`", "id=5"]);
        rows(&lab, &[row(2, Some("x"), None), row(3, Some("c"), None), row(4, Some("d"), None)]);
        lab.run(&["run", "job.yaml"]).ended(1).says(&["has rows with keys of the input outside of `scope`", "id=3"]);
        assert_eq!(names(&target), ["2\tB", "3\tc", "4\td"]);
        assert_eq!(target.tables(), ["t"]);
    }
}

/// What may be missing from the input for another reason than that it is gone keeps the table as it is.
#[test]
fn an_input_that_may_lack_rows_changes_nothing() {
    for make in TARGETS {
        let (lab, target) = lab(make, "mode: sync, missing: delete");
        let whole: Vec<Value> = (0..20).map(|id| row(id, Some("a"), None)).collect();
        rows(&lab, &whole);
        changes(&lab, &[]);
        let unchanged = |what: &str| {
            assert_eq!(target.query("SELECT count(*) FROM t WHERE name = 'a'"), ["20"], "{what}");
            assert_eq!(target.tables(), ["t"], "{what}");
        };
        rows(&lab, &[]);
        lab.run(&["run", "job.yaml"]).ended(1).says(&["no row came for table t of", "`empty_input: allow`"]);
        unchanged("no rows");
        rows(&lab, &whole[..17]);
        let expected =
            ["3 of 20 rows of table t of", "are missing from the input, and at most 10% may be", "max_deletes: 100%"];
        lab.run(&["run", "job.yaml"]).ended(1).says(&expected);
        unchanged("too few rows");
        let twice: Vec<Value> =
            whole.iter().cloned().chain([row(7, Some("b"), None), row(9, Some("b"), None)]).collect();
        rows(&lab, &twice);
        lab.run(&["run", "job.yaml"]).ended(1).says(&["table t of", "`mode: sync` needs one row for each key", "7"]);
        unchanged("keys that come twice");
        rows(&lab, &whole);
        configure(&lab, &target, "mode: sync, missing: delete, max_rejects: 5");
        lab.file(
            "job.yaml",
            lab.read("job.yaml").replace("allow_empty: true", "allow_empty: true, max_rejects: 5, on_error: skip"),
        );
        lab.file("in2.jsonl", "{\"id\": \"x\"}\n");
        let expected = ["1 record was rejected, and `mode: sync` needs all rows", "would count as missing"];
        lab.run(&["run", "job.yaml"]).ended(1).says(&expected);
        unchanged("a rejected record");
        fs_err::remove_file(lab.path("in2.jsonl")).expect("it is there");
        lab.file("in3.jsonl.gz", "not packed");
        lab.file("job.yaml", lab.read("job.yaml").replace("in*.jsonl", "in*.jsonl*"));
        let ran = lab.run(&["run", "job.yaml"]);
        assert_ne!(ran.code, 0, "{ran:?}");
        unchanged("a unit that cannot be read");
        // An empty input that is allowed is still within the limit.
        fs_err::remove_file(lab.path("in3.jsonl.gz")).expect("it is there");
        rows(&lab, &[]);
        configure(&lab, &target, "mode: sync, missing: delete, empty_input: allow");
        lab.run(&["run", "job.yaml"]).ended(1).says(&["20 of 20 rows"]);
        unchanged("all rows are missing");
        configure(&lab, &target, "mode: sync, missing: delete, empty_input: allow, max_deletes: 100%");
        assert_eq!(changes(&lab, &[]), [0, 0, 0, 20]);
    }
}

/// Rows of a file that is left for a later run are not missing.
#[test]
fn files_that_are_not_ready_change_nothing() {
    for (settings, unless) in [
        ("mode: sync, missing: delete, max_deletes: 60%", "deleted"),
        ("mode: sync, missing: {flag: gone}, max_deletes: 60%", "flagged"),
        ("mode: history, missing: delete, max_deletes: 60%", "closed"),
    ] {
        let (lab, target) = lab(in_sqlite, settings);
        let job = lab.read("job.yaml").replace("allow_empty: true", "ready: {marker: '{name}.ok'}");
        lab.file("job.yaml", job.replace("in*.jsonl", "in?.jsonl"));
        lab.file("in1.jsonl", format!("{}\n", row(1, Some("a"), None)));
        lab.file("in2.jsonl", format!("{}\n", row(2, Some("b"), None)));
        lab.file("in1.jsonl.ok", "");
        lab.file("in2.jsonl.ok", "");
        assert_eq!(changes(&lab, &[]), [2, 0, 0, 0]);
        fs_err::remove_file(lab.path("in2.jsonl.ok")).expect("it is there");
        let expected = ["1 file is not ready, and `mode: ", "needs all rows", "is unchanged", "run the job again"];
        let ran = lab.run(&["run", "job.yaml"]);
        ran.ended(1).says(&expected);
        assert!(!ran.stderr.contains(unless), "{ran:?}");
        let left = target.query("SELECT id, name FROM t ORDER BY id");
        assert_eq!(left, ["1\ta", "2\tb"]);
        lab.file("in2.jsonl.ok", "");
        assert_eq!(changes(&lab, &[]), [0, 0, 2, 0]);
    }
}

/// With `missing: keep` they are added and compared when they are ready.
#[test]
fn files_that_are_not_ready_are_no_fault_where_rows_are_kept() {
    let (lab, target) = lab(in_sqlite, "mode: sync, missing: keep");
    let job = lab.read("job.yaml").replace("allow_empty: true", "ready: {marker: '{name}.ok'}");
    lab.file("job.yaml", job.replace("in*.jsonl", "in?.jsonl"));
    lab.file("in1.jsonl", format!("{}\n", row(1, Some("a"), None)));
    lab.file("in2.jsonl", format!("{}\n", row(2, Some("b"), None)));
    lab.file("in1.jsonl.ok", "");
    assert_eq!(changes(&lab, &[]), [1, 0, 0, 0]);
    lab.file("in2.jsonl.ok", "");
    assert_eq!(changes(&lab, &[]), [1, 0, 1, 0]);
    assert_eq!(names(&target), ["1\ta", "2\tb"]);
}

/// A record for which nothing is changed is named, and kept.
#[test]
fn a_record_that_is_rejected_is_named_and_kept() {
    let (lab, _target) = lab(in_sqlite, "mode: sync, missing: delete");
    lab.file("job.yaml", lab.read("job.yaml").replace("allow_empty: true", "max_rejects: 5"));
    lab.file("in.jsonl", format!("{}\n{{\"id\": \"q3\"}}\n", row(1, Some("a"), None)));
    let ran = lab.run(&["run", "job.yaml"]);
    ran.ended(1).says(&[
        "1 record was rejected, and `mode: sync` needs all rows",
        "would count as missing",
        "in.jsonl, line 2",
        "q3",
        "`millstream rejects ",
    ]);
    let run = ran.stderr.split("`millstream rejects ").nth(1).and_then(|rest| rest.split('`').next()).expect("a run");
    assert!(lab.run(&["rejects", run]).ok().stdout.contains("q3"));
}

/// A trigger that leaves changes out would let the table differ from its source.
#[test]
fn changes_that_a_trigger_leaves_out_are_reported() {
    for make in [in_sqlite as fn(&Lab) -> Target, in_postgres] {
        for (event, row_of, after, expected) in [
            (
                "INSERT",
                "NEW",
                vec![row(1, Some("a"), None), row(2, Some("b"), None), row(3, None, None)],
                "took 0 of 1",
            ),
            ("UPDATE", "NEW", vec![row(1, Some("a"), None), row(2, Some("B"), None)], "changed 0 of 1 row"),
            ("DELETE", "OLD", vec![row(1, Some("a"), None)], "let go of 0 of 1 row"),
        ] {
            let (lab, target) = lab(make, "mode: sync, missing: delete, max_deletes: 100%");
            rows(&lab, &[row(1, Some("a"), None), row(2, Some("b"), None)]);
            changes(&lab, &[]);
            leave_out(&target, event, &format!("{row_of}.id > 1"));
            rows(&lab, &after);
            lab.run(&["run", "job.yaml"]).ended(1).says(&["table t of", expected, "a trigger or a rule of the table"]);
            assert_eq!(names(&target), ["1\ta", "2\tb"], "{event}");
            assert_eq!(target.tables(), ["t"], "{event}");
            // What the trigger does not concern goes on.
            rows(&lab, &[row(1, Some("a"), None), row(2, Some("b"), None)]);
            assert_eq!(changes(&lab, &[]), [0, 0, 2, 0]);
        }
    }
}

/// Lets the table leave out changes of rows for which `condition` holds.
pub fn leave_out(target: &Target, event: &str, condition: &str) {
    let trigger = format!("CREATE TRIGGER few BEFORE {event} ON t FOR EACH ROW WHEN ({condition})");
    if matches!(target, Target::Sqlite(_)) {
        target.query(&format!("{trigger} BEGIN SELECT RAISE(IGNORE); END"));
    } else {
        target.query(
            "CREATE OR REPLACE FUNCTION leave_out() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        );
        target.query(&format!("{trigger} EXECUTE FUNCTION leave_out()"));
    }
}

/// A condition that is not one over columns that are loaded is found before anything is read.
#[test]
fn a_scope_that_cannot_be_used_is_named_at_once() {
    for make in TARGETS {
        let (lab, target) = lab(make, "mode: sync, missing: delete");
        rows(&lab, &[row(1, Some("a"), None)]);
        let refused = |scope: &str, tables: &[&str]| {
            configure(&lab, &target, &format!("mode: sync, missing: delete, scope: \"{scope}\""));
            let expected = ["the condition of `scope` for table t of", scope, "columns that are loaded"];
            lab.run(&["check", "job.yaml"]).ended(1).says(&expected);
            lab.run(&["run", "job.yaml"]).ended(1).says(&expected);
            // A file that is not there stays so.
            let exists = !matches!(&target, Target::Sqlite(path) if !path.exists());
            let found = if exists { target.tables() } else { Vec::new() };
            assert_eq!(found, tables, "{scope}");
        };
        for scope in ["nmae = 'x'", "t.id < 10", "id <"] {
            refused(scope, &[]);
        }
        let scope = "scope: \"id < 10 AND day > '2025-12-31' AND name LIKE 'a%' AND amount IS NULL\"";
        configure(&lab, &target, &format!("mode: sync, missing: delete, {scope}"));
        lab.run(&["check", "job.yaml"]).ok();
        changes(&lab, &[]);
        target.query("ALTER TABLE t ADD COLUMN other INT");
        for scope in ["nmae = 'x'", "t.id < 10", "other < 10"] {
            refused(scope, &["t"]);
        }
    }
}

/// PostgreSQL tells names in capitals from others, and flags from numbers.
#[test]
fn own_columns_are_named_and_typed_as_those_of_the_table() {
    let (lab, target) = lab(in_postgres, "mode: sync, missing: {flag: Gone}, max_deletes: 100%");
    target.query("CREATE TABLE t (id bigint PRIMARY KEY, name text, amount float8, day date, gone boolean)");
    rows(&lab, &[row(1, Some("a"), None), row(2, Some("b"), None)]);
    assert_eq!(changes(&lab, &[]), [2, 0, 0, 0]);
    rows(&lab, &[row(1, Some("a"), None)]);
    assert_eq!(changes(&lab, &[]), [0, 0, 1, 1]);
    target.query("ALTER TABLE t ALTER COLUMN gone TYPE int USING 0");
    lab.run(&["check", "job.yaml"]).ended(1).says(&["the column `gone` of table t of", "integer", "a boolean column"]);
}

/// What a table of SQLite declares for conflicts would leave rows out, or delete others.
#[test]
fn a_conflict_with_another_key_fails_whatever_the_table_declares() {
    for clause in ["IGNORE", "REPLACE", "ROLLBACK", "FAIL"] {
        let (lab, target) = lab(in_sqlite, "mode: sync, missing: keep");
        target.query(&format!(
            "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT UNIQUE ON CONFLICT {clause}, amount REAL, day TEXT)"
        ));
        target.query("INSERT INTO t (id, name) VALUES (8, 'x'), (9, 'y')");
        for wrong in [row(1, Some("x"), None), row(9, Some("x"), None)] {
            rows(&lab, &[wrong]);
            lab.run(&["run", "job.yaml"]).ended(1).says(&["UNIQUE constraint failed: t.name"]);
            assert_eq!(names(&target), ["8\tx", "9\ty"], "{clause}");
        }
    }
}

#[test]
fn what_makes_no_sense_is_reported_at_once() {
    let (lab, target) = lab(in_sqlite, "mode: sync");
    lab.run(&["check", "job.yaml"]).ended(2).says(&["`mode: sync` without `missing`", "`missing: keep`"]);
    configure(
        &lab,
        &target,
        "mode: merge, missing: delete, scope: 'true', max_deletes: 3, empty_input: allow, as_of: day",
    );
    lab.run(&["check", "job.yaml"]).ended(2).says(&[
        "`missing` with `mode: merge`",
        "`scope` with `mode: merge`",
        "`max_deletes` with `mode: merge`",
        "`empty_input` with `mode: merge`",
        "`as_of` with `mode: merge`",
    ]);
    configure(&lab, &target, "mode: sync, missing: {flag: ID}, max_deletes: many");
    lab.run(&["check", "job.yaml"]).ended(2).says(&["a whole number of records, or a share of them such as `1%`"]);
    configure(&lab, &target, "mode: sync, missing: {flag: ID}");
    lab.run(&["check", "job.yaml"]).ended(2).says(&["the column `ID` is in the key"]);
    configure(&lab, &target, "mode: sync, missing: {flag: Name}");
    lab.run(&["check", "job.yaml"]).ended(1).says(&["the rows have a column `name`, which the load writes itself"]);
    configure(&lab, &target, "mode: sync, missing: delete");
    lab.file("job.yaml", lab.read("job.yaml").replace("allow_empty: true", "incremental: true"));
    lab.run(&["check", "job.yaml"])
        .ended(2)
        .says(&["`mode: sync` of `o` needs all rows in each run, and `s` is incremental"]);
}

/// Of two sinks, neither changes anything if too many rows would go from one of them.
#[test]
fn no_sink_changes_anything_if_another_may_not() {
    for make in TARGETS {
        let (lab, target) = lab(make, "mode: sync, missing: delete");
        rows(&lab, &(0..20).map(|id| row(id, Some("a"), None)).collect::<Vec<_>>());
        changes(&lab, &[]);
        rows(&lab, &(0..3).map(|id| row(id, Some("b"), None)).collect::<Vec<_>>());
        let other = format!(
            "  p: {{from: s, write: '{}', table: other, mode: merge, key: [id]}}\n  f: {{from: s, write: out.csv}}\n",
            target.url()
        );
        lab.file("job.yaml", lab.read("job.yaml") + &other);
        lab.run(&["run", "job.yaml"]).ended(1).says(&["17 of 20 rows"]);
        assert_eq!(target.query("SELECT count(*) FROM t WHERE name = 'a'"), ["20"]);
        assert_eq!(target.tables(), ["t"]);
        assert!(!lab.path("out.csv").exists());
    }
}

/// Loading rejects again adds and changes rows, and deletes none.
#[test]
fn a_replay_deletes_nothing() {
    for make in TARGETS {
        let (lab, target) = lab(make, "mode: append");
        rows(&lab, &(0..20).map(|id| row(id, Some("a"), None)).collect::<Vec<_>>());
        lab.file("in2.jsonl", "{\"id\": 100, \"name\": \"b\", \"amount\": \"x\"}\n");
        lab.file("job.yaml", lab.read("job.yaml").replace("allow_empty: true", "max_rejects: 5"));
        let report = lab.report(&[]);
        let run = report["rejects"].as_str().expect("there are some").to_owned();
        let settings = "mode: sync, missing: delete, scope: 'id >= 0', max_deletes: 100%, empty_input: allow";
        configure(&lab, &target, settings);
        lab.file("job.yaml", lab.read("job.yaml").replace("amount: float64", "amount: utf8"));
        target.query("ALTER TABLE t DROP COLUMN amount");
        target.query("ALTER TABLE t ADD COLUMN amount VARCHAR(20)");
        lab.run(&["rejects", &run, "--replay"]).ok();
        assert_eq!(target.query("SELECT count(*) FROM t"), ["21"]);
        assert_eq!(target.query("SELECT amount FROM t WHERE id = 100"), ["x"]);
    }
}

/// Killed at any step, the table is as before or as its source; a run that resumes it brings it in step.
#[test]
fn killed_at_each_step_a_table_is_in_step_in_the_end() {
    let all = [
        "publish.step",
        "publish.step:2",
        "publish.step:3",
        "publish.step:4",
        "publish.before",
        "publish.after",
        "state.before:2",
        "forget.before",
    ];
    let of_new = ["publish.step:3", "publish.before", "rename.before", "rename.after", "publish.after"];
    for make in TARGETS {
        for exists in [true, false] {
            let (lab, target) = lab(make, "mode: sync, missing: delete, max_deletes: 100%");
            let before: Vec<Value> = (0..50).map(|id| row(id, Some("a"), None)).collect();
            let after: Vec<Value> =
                (10..60).map(|id| row(id, Some(if id % 2 == 0 { "a" } else { "b" }), None)).collect();
            for window in if exists { &all[..] } else { &of_new[..] } {
                if exists {
                    rows(&lab, &before);
                    changes(&lab, &[]);
                }
                rows(&lab, &after);
                killed_if_reached(&lab, window);
                let state = || {
                    target.query("SELECT count(*), min(id), max(id), sum(CASE name WHEN 'b' THEN 1 ELSE 0 END) FROM t")
                };
                let done = ["50\t10\t59\t25"];
                if exists {
                    let now = state();
                    assert!(now == ["50\t0\t49\t0"] || now == done, "{window}: {now:?}");
                }
                lab.run(&["run", "job.yaml", "--resume"]).ok();
                assert_eq!(state(), done, "{window}");
                assert_no_own_tables(&target, window);
                target.query("DROP TABLE t");
            }
        }
    }
}

/// A merge writes only rows that differ, and says what it has changed.
#[test]
fn a_merge_says_what_it_has_changed() {
    for make in TARGETS {
        for settings in ["mode: merge", "mode: merge, order_by: [amount desc]"] {
            let (lab, target) = lab(make, settings);
            rows(&lab, &(0..10).map(|id| row(id, Some("a"), Some(0.0))).collect::<Vec<_>>());
            assert_eq!(changes(&lab, &[]), [10, 0, 0, 0]);
            let changed = |id: i64| if id % 5 == 0 { "A" } else { "a" };
            rows(&lab, &(4..14).map(|id| row(id, Some(changed(id)), Some(0.0))).collect::<Vec<_>>());
            let ran = lab.run(&["run", "job.yaml"]);
            ran.ok();
            let told = format!("{}{}", ran.stdout, ran.stderr);
            assert!(told.contains("10 rows merged into table t of"), "{told}");
            assert!(told.contains(": 4 inserted, 1 updated, 5 unchanged"), "{told}");
            assert_eq!(changes(&lab, &[]), [0, 0, 10, 0]);
            assert_eq!(target.query("SELECT count(*), sum(CASE id WHEN 0 THEN 1 ELSE 0 END) FROM t"), ["14\t1"]);
            // Another unique key: MySQL then changes rows by a join.
            target.query("CREATE UNIQUE INDEX other ON t (amount, id)");
            rows(
                &lab,
                &(3..5)
                    .map(|id| row(id, Some("x"), Some(0.0)))
                    .chain([row(5, Some("A"), Some(0.0)), row(99, None, None)])
                    .collect::<Vec<_>>(),
            );
            assert_eq!(changes(&lab, &[]), [1, 2, 1, 0], "{settings}");
        }
    }
}

/// What is counted is the same in all databases: the numbers add up to the rows that came. Only SQLite, which merges
/// the rows of a key one after the other, counts each of its changes.
#[test]
fn all_databases_count_a_merge_in_the_same_way() {
    let whole = |rows: &[(i64, &str)]| rows.iter().map(|(id, name)| row(*id, Some(name), None)).collect::<Vec<_>>();
    let keys = |ids: &[i64]| ids.iter().map(|id| json!({"id": id})).collect::<Vec<_>>();
    for (what, before, after, expected, in_sqlite) in [
        ("new and changed", whole(&[(1, "a"), (2, "b")]), whole(&[(1, "A"), (2, "b"), (3, "c")]), [1, 1, 1, 0], None),
        ("the same row twice", whole(&[(1, "a")]), whole(&[(1, "a"), (1, "a")]), [0, 0, 2, 0], None),
        ("a new row twice", whole(&[(1, "a")]), whole(&[(2, "b"), (2, "b")]), [1, 0, 1, 0], None),
        ("a new key twice", whole(&[(1, "a")]), whole(&[(2, "b"), (2, "c")]), [1, 0, 1, 0], Some([1, 1, 0, 0])),
        ("a changed key twice", whole(&[(1, "a")]), whole(&[(1, "b"), (1, "c")]), [0, 1, 1, 0], Some([0, 2, 0, 0])),
        ("back again", whole(&[(1, "a")]), whole(&[(1, "b"), (1, "a")]), [0, 0, 2, 0], Some([0, 2, 0, 0])),
        ("nothing but keys", keys(&[1, 2]), keys(&[2, 3]), [1, 0, 1, 0], None),
        ("nothing but a key twice", keys(&[1]), keys(&[1, 2, 2]), [1, 0, 2, 0], None),
    ] {
        for make in TARGETS {
            let (lab, target) = lab(make, "mode: merge");
            if what.starts_with("nothing but") {
                let job = lab.read("job.yaml").replace(", name: utf8, amount: float64, day: date", "");
                lab.file("job.yaml", job);
            }
            rows(&lab, &before);
            changes(&lab, &[]);
            rows(&lab, &after);
            let is_sqlite = matches!(target, Target::Sqlite(_));
            let expected = in_sqlite.filter(|_| is_sqlite).unwrap_or(expected);
            assert_eq!(changes(&lab, &[]), expected, "{what}: {}", target.url());
        }
    }
}

/// Rows that do not differ are not written: a trigger for changed rows does not see them.
#[test]
fn a_merge_writes_only_rows_that_differ() {
    for make in TARGETS {
        let (lab, target) = lab(make, "mode: merge");
        rows(&lab, &(0..10).map(|id| row(id, Some("a"), None)).collect::<Vec<_>>());
        changes(&lab, &[]);
        target.query("CREATE TABLE seen (id BIGINT)");
        if target.url().starts_with("postgres") {
            target.query(
                "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen VALUES (NEW.id); \
                 RETURN NEW; END $$",
            );
            target.query("CREATE TRIGGER see AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION see()");
            rows(&lab, &(0..10).map(|id| row(id, Some(if id == 3 { "b" } else { "a" }), None)).collect::<Vec<_>>());
            assert_eq!(changes(&lab, &[]), [0, 1, 9, 0]);
            assert_eq!(target.query("SELECT id FROM seen"), ["3"]);
        } else if matches!(target, Target::Sqlite(_)) {
            target.query("CREATE TRIGGER see AFTER UPDATE ON t BEGIN INSERT INTO seen VALUES (NEW.id); END");
            rows(&lab, &(0..10).map(|id| row(id, Some(if id == 3 { "b" } else { "a" }), None)).collect::<Vec<_>>());
            assert_eq!(changes(&lab, &[]), [0, 1, 9, 0]);
            assert_eq!(target.query("SELECT id FROM seen"), ["3"]);
        }
    }
}

/// A table of SQLite without row numbers, whose new rows SQLite does not report.
#[test]
fn a_merge_into_a_table_without_rowid_is_counted_too() {
    let (lab, target) = lab(in_sqlite, "mode: merge");
    target.query("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT, amount REAL, day TEXT) WITHOUT ROWID");
    rows(&lab, &[row(1, Some("a"), None), row(2, Some("b"), None)]);
    assert_eq!(changes(&lab, &[]), [2, 0, 0, 0]);
    rows(&lab, &[row(1, Some("A"), None), row(2, Some("b"), None), row(3, Some("c"), None)]);
    assert_eq!(changes(&lab, &[]), [1, 1, 1, 0]);
}

/// A job that reads the table that it writes works for the first time, too.
#[test]
fn a_table_that_does_not_exist_yet_is_empty() {
    for make in TARGETS {
        let (lab, target) = lab(make, "mode: merge");
        let url = target.url();
        let kind = url.split(':').next().unwrap_or_default().to_owned();
        let reading = |settings: &str| {
            lab.file(
                "job.yaml",
                format!(
                    "sources:\n  s: {{read: in.jsonl, json: {{columns: {{id: int64, n: int64}}}}}}\n  old: {{read: \
                     '{url}', {kind}: {{table: t{settings}}}}}\ntransforms:\n  all: {{union: [s, old]}}\n  sums: \
                     {{sql: \"SELECT id, CAST(sum(n) AS BIGINT) AS n FROM \\\"all\\\" GROUP BY id\"}}\nsinks:\n  o: \
                     {{from: sums, write: '{url}', table: t, key: [id], mode: merge}}\n"
                ),
            );
        };
        rows(&lab, &[json!({"id": 1, "n": 5}), json!({"id": 2, "n": 6})]);
        reading("");
        assert_ne!(lab.run(&["run", "job.yaml"]).code, 0, "a table that does not exist is a fault");
        reading(", if_missing: empty, columns: {id: int64, n: int64}");
        lab.run(&["check", "job.yaml"]).ok();
        assert_eq!(changes(&lab, &[]), [2, 0, 0, 0]);
        rows(&lab, &[json!({"id": 1, "n": 5})]);
        assert_eq!(changes(&lab, &[]), [0, 1, 1, 0]);
        assert_eq!(target.query("SELECT id, n FROM t ORDER BY id"), ["1\t10", "2\t6"]);
        reading(", if_missing: empty");
        lab.run(&["check", "job.yaml"])
            .ended(2)
            .says(&["the columns of a table that does not exist are not known", "`columns: {"]);
        reading(", columns: {id: int64}");
        lab.run(&["check", "job.yaml"]).ended(2).says(&["a database says which columns a table has"]);
        let query = ", query: 'SELECT 1', if_missing: empty, columns: {id: int64}";
        reading(query);
        lab.run(&["check", "job.yaml"]).ended(2).says(&["`if_missing` with a query"]);
        // Other faults stay faults.
        if matches!(target, Target::Server(_)) {
            reading(", if_missing: empty, columns: {id: int64, n: int64}");
            let (start, name) = url.rsplit_once('/').expect("a database");
            let job = lab.read("job.yaml").replacen(&format!("{start}/{name}"), &format!("{start}/nowhere"), 1);
            lab.file("job.yaml", job);
            let ran = lab.run(&["run", "job.yaml"]);
            assert!(ran.code != 0 && ran.stderr.contains("nowhere"), "{ran:?}");
        }
    }
}
