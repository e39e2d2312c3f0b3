//! Checks of rows through the real binary: what breaks them is counted and shown, and if one fails, no sink has
//! published anything.

use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use millstream_testkit::Mount;
use serde_json::{Value, json};

use crate::harness::{self, MILLSTREAM};
use crate::use_databases::Database;
use crate::use_support::{Lab, csv_rows, finish, sqlite};

/// Orders, some of which break each rule: the number of each is known.
fn orders(count: usize) -> String {
    let mut text = "id,status,email,amount,paid\n".to_owned();
    for id in 0..count {
        let status = if id == 77 { "lost" } else { "open" };
        let email = if id % 1000 == 200 { "none" } else { "a@b" };
        let amount = if id == 300 { -5 } else { (id % 90) as i64 };
        let shown = if id == 400 { String::new() } else { id.to_string() };
        let paid = if id == 410 { "" } else { "0" };
        let _ = writeln!(text, "{shown},{status},{email},{amount},{paid}");
    }
    text + "7,open,a@b,5,9\n"
}

const COLUMNS: &str = "csv: {columns: {id: int64, status: utf8, email: utf8, amount: int64, paid: int64}}";

/// A job that loads them, with checks of its source.
fn lab(checks: &str, more: &str, sinks: &str) -> Lab {
    let lab = Lab::with_job(&format!(
        "sources:\n  s:\n    read: in.csv\n    {COLUMNS}\n{more}    checks:\n{checks}sinks:\n{sinks}"
    ));
    lab.file("in.csv", orders(1_000));
    lab
}

const TO_FILE: &str = "  o: {from: s, write: out.csv}\n";

/// The results of checks, each in a line.
fn results(report: &Value) -> Vec<String> {
    let checks = report["checks"].as_array().expect("checks");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let line = |check: &Value| {
        let holds = if check["holds"] == true { "holds" } else { "broken" };
        format!("{} | {} | {holds} | {}", text(&check["entry"]), text(&check["check"]), text(&check["what"]))
    };
    checks.iter().map(line).collect()
}

#[test]
fn each_rule_finds_what_breaks_it_and_all_that_fail_are_told() {
    let checks = "    - {rows: {min: 1002}}\n    - {not_null: [id, paid], at_most: 0.05%}\n    - {unique: id}\n    - \
                  {values: {status: [open, paid]}}\n    - {matches: {email: '@'}}\n    - {range: {amount: {min: 0, \
                  max: 100}}}\n    - {sql: amount >= paid, message: more paid than due}\n";
    let lab = lab(checks, "", TO_FILE);
    let ran = lab.run(&["run", "job.yaml"]);
    ran.ended(1);
    insta::assert_snapshot!("each_check_that_fails", ran.stderr);
    assert!(!lab.path("out.csv").exists());
    // What has come of it is in the run history, too.
    let last = lab.run(&["runs", "last", "--json"]);
    let checks = last.json()["run"]["report"]["checks"].clone();
    assert_eq!(checks.as_array().map(Vec::len), Some(8), "{checks:#}");
    assert!(lab.run(&["runs", "last"]).ok().stdout.contains("does not hold"));
}

#[test]
fn nulls_pass_and_some_rows_may_break_a_rule() {
    let checks = "    - {rows: {min: 1001, max: 1001}}\n    - {not_null: id, at_most: 1}\n    - {values: {status: \
                  [open]}, at_most: 0.1%}\n    - {range: {amount: {min: 0}}, severity: warn}\n    - {range: {paid: \
                  {max: 9}}}\n    - {unique: [id, paid]}\n    - {sql: 'paid < 9', severity: warn, message: paid a \
                  lot}\n";
    let lab = lab(checks, "", TO_FILE);
    let report = lab.report(&[]);
    assert_eq!(
        results(&report),
        [
            "s | rows | holds | 1,001 rows",
            "s | not_null: id | holds | 1 of 1,001 rows (0.10%)",
            "s | values: status | holds | 1 of 1,001 rows (0.10%)",
            "s | range: amount | broken | 1 of 1,001 rows (0.10%)",
            "s | range: paid | holds | none of 1,001 rows",
            "s | unique: id, paid | holds | none of 1,001 rows",
            "s | sql: paid < 9 | broken | paid a lot: 1 of 1,001 rows (0.10%)",
        ]
    );
    assert_eq!(csv_rows(&lab.read("out.csv")).len(), 1_001);
    let shown = lab.run(&["run", "job.yaml"]);
    shown.ok().says(&["warning: s: range: amount: 1 of 1,001 rows (0.10%)", r#"{"id":300,"#, "5 of 7 checks hold"]);
}

#[test]
fn a_check_that_fails_leaves_three_sinks_as_they_were() {
    let [mariadb, postgres] = Database::both();
    for database in [&mariadb, &postgres] {
        database.query("CREATE TABLE t (id BIGINT, amount BIGINT)");
        database.query("INSERT INTO t VALUES (1, 1)");
    }
    let sinks = format!(
        "  m: {{from: t, write: '{}', table: t}}\n  p: {{from: t, write: '{}', table: t, mode: replace}}\n  f: {{from: \
         t, write: out.csv, checks: [{{unique: id}}]}}\n",
        mariadb.url, postgres.url
    );
    let job = |at_most: usize| {
        format!(
            "sources:\n  s: {{read: in.csv, {COLUMNS}}}\ntransforms:\n  t: {{select: {{from: s, columns: [id, \
             amount]}}, checks: [{{range: {{amount: {{min: 0}}}}, at_most: {at_most}}}]}}\nsinks:\n{}",
            sinks.replace("unique: id", &format!("unique: id, at_most: {at_most}"))
        )
    };
    let lab = Lab::with_job(&job(0));
    lab.file("in.csv", orders(1_000));
    lab.file("out.csv", "old\n");
    let ran = lab.run(&["run", "job.yaml"]);
    ran.ended(1).says(&["step t", "range: amount", "step sink f", r#"{"id":7}"#, "2 errors"]);
    for database in [&mariadb, &postgres] {
        assert_eq!(database.query("SELECT * FROM t"), ["1\t1"]);
        assert_eq!(database.tables(), ["t"]);
    }
    assert_eq!(lab.read("out.csv"), "old\n");
    lab.file("job.yaml", job(1));
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(mariadb.query("SELECT COUNT(*) FROM t"), ["1002"]);
    assert_eq!(postgres.query("SELECT COUNT(*) FROM t"), ["1001"]);
    assert_eq!(csv_rows(&lab.read("out.csv")).len(), 1_001);
}

/// A check that rejects is judged by the rows that came to it, and the others by those that are left.
#[test]
fn rows_that_a_check_rejects_are_among_those_that_it_is_about() {
    let checks = "    - {rows: {min: 2, change: 10%}}\n    - {sql: amount < 30, severity: reject}\n    - {range: \
                  {paid: {max: 0}}, at_most: 10%}\n    - {range: {amount: {max: 2}}, severity: reject}\n    - \
                  {unique: id}\n";
    let transform = "transforms:\n  t: {filter: {from: s, where: id > 0}, max_rejects: 9, checks: [{range: {id: {max: \
                     1}}, severity: reject}]}\n";
    for sink in ["write: out.csv", "write: 'sqlite:out.db', table: t"] {
        let lab = lab(checks, "    max_rejects: 9\n", &format!("  o: {{from: t, {sink}}}\n"));
        lab.file("job.yaml", lab.read("job.yaml").replace("sinks:\n", &format!("{transform}sinks:\n")));
        let row = |id: usize| format!("{id},open,a@b,{},0\n", if id < 3 { id } else { 10 * (id - 2) });
        let input = (0..10).map(row).collect::<String>();
        lab.file("in.csv", format!("id,status,email,amount,paid\n{input}"));
        // The second time the number of rows is compared with that of the first time.
        for _ in 0..2 {
            let report = lab.report(&[]);
            assert_eq!(
                results(&report),
                [
                    "s | rows | holds | 3 rows",
                    "s | sql: amount < 30 | holds | 5 of 10 rows (50.00%)",
                    "s | range: paid | holds | none of 3 rows",
                    "s | range: amount | holds | 2 of 5 rows (40.00%)",
                    "s | unique: id | holds | none of 3 rows",
                    "t | range: id | holds | 1 of 2 rows (50.00%)",
                ],
                "{sink}"
            );
            let rows = |index: usize| report["checks"][index]["rows"].as_u64();
            assert_eq!([rows(0), rows(1), rows(3), rows(5)], [Some(3), Some(10), Some(5), Some(2)], "{sink}");
        }
    }
}

/// Loads chunk by chunk, is killed, and is resumed: what checks have counted counts once.
#[test]
fn what_is_counted_chunk_by_chunk_counts_once() {
    let checks = "    - {not_null: id, severity: warn}\n    - {matches: {email: '@'}, severity: reject}\n    - {rows: \
                  {min: 5000}, severity: warn}\n    - {range: {amount: {min: 0}}, severity: warn}\n    - {range: \
                  {amount: {min: -99}}, severity: warn}\n";
    for (index, fail_point) in
        ["commit.after:1", "commit.before:3", "commit.after:4", "rejects.after:2"].iter().enumerate()
    {
        let database = &Database::both()[index % 2];
        let sinks = format!("  o: {{from: s, write: '{}', table: t}}\n", database.url);
        let lab = lab(checks, "    max_rejects: 10\n", &sinks);
        lab.file("in.csv", orders(4_000));
        let run = |arguments: &[&str]| {
            let mut command = lab.command(arguments);
            command.env("MILLSTREAM_CHUNK_BYTES", "2000");
            command
        };
        let mut killed = run(&["run", "job.yaml"]);
        killed.env("MILLSTREAM_FAIL_AT", fail_point).stdout(Stdio::null()).stderr(Stdio::null());
        assert!(killed.status().expect("it starts").signal().is_some(), "{fail_point}");
        let before = database.query("SELECT COUNT(*) FROM t").concat();
        assert!(fail_point.starts_with("rejects") || before != "0", "{fail_point}: {before}");
        let resumed = finish(run(&["run", "--resume", "job.yaml", "--json"]), None);
        resumed.ok();
        assert_eq!(
            results(&resumed.json()),
            [
                "s | not_null: id | broken | 1 of 3,997 rows (0.03%)",
                "s | matches: email | holds | 4 of 4,001 rows (0.10%)",
                "s | rows | broken | 3,997 rows, and at least 5,000 are required",
                "s | range: amount | broken | 1 of 3,997 rows (0.03%)",
                "s | range: amount | holds | none of 3,997 rows",
            ],
            "{fail_point}"
        );
        assert_eq!(database.query("SELECT COUNT(*) FROM t"), ["3997"], "{fail_point}");
        let rejects = lab.run(&["rejects", "--json"]).json();
        let lines = |rejects: &Value| {
            let lines: Vec<u64> =
                rejects["rejects"].as_array().expect("a list").iter().filter_map(|one| one["line"].as_u64()).collect();
            crate::use_support::sorted(lines)
        };
        assert_eq!(lines(&rejects), [202, 1_202, 2_202, 3_202], "{fail_point}");
    }
}

/// The share is that of all rows of the load, also of those that an earlier run has loaded: forty of the last ones are
/// too many of the rest alone, and forty of the first ones are too many of all.
#[test]
fn a_share_of_rows_that_a_check_may_reject_is_that_of_all_runs() {
    for (broken, share, code) in [(3_000..3_040, "1.5%", 0), (0..40, "0.5%", 3)] {
        let lab = Lab::with_job(&format!(
            "sources:\n  s: {{read: in.csv, csv: {{columns: {{id: int64, email: utf8}}}}, max_rejects: {share}, \
             checks: [{{matches: {{email: '@'}}, severity: reject}}]}}\nsinks:\n  o: {{from: s, write: \
             'sqlite:out.db', table: t}}\n"
        ));
        let email = |id| if broken.contains(&id) { "none" } else { "a@b" };
        let text = (0..4_000).fold("id,email\n".to_owned(), |text, id| text + &format!("{id},{}\n", email(id)));
        lab.file("in.csv", text);
        let run = |arguments: &[&str], fail_point: &str| {
            let mut command = lab.command(arguments);
            command.env("MILLSTREAM_CHUNK_BYTES", "2000").env("MILLSTREAM_FAIL_AT", fail_point);
            finish(command, None)
        };
        let count = || sqlite(&lab.path("out.db"), "SELECT COUNT(*) FROM t")[0][0].parse::<usize>().expect("a number");
        run(&["run", "job.yaml"], "commit.after:1").ended(-1);
        let before = count();
        let broken_rest = broken.filter(|id| *id >= before).count();
        // The rest alone would be judged otherwise.
        assert_eq!(broken_rest * 1_000 > 15 * (4_000 - before), code == 0, "{before}");
        let resumed = run(&["run", "--resume", "job.yaml"], "none");
        resumed.ended(code);
        match code {
            0 => assert_eq!(count(), 3_960),
            _ => _ = resumed.says(&["`max_rejects` of `s` allows 0.5%", "a check does not hold: matches: email"]),
        }
    }
}

#[test]
fn rows_that_a_check_rejects_are_kept_with_their_place_and_can_be_loaded_again() {
    for sink in ["o: {from: t, write: out.csv}", "o: {from: t, write: 'sqlite:out.db', table: t, mode: append}"] {
        let job = |pattern: &str| {
            format!(
                "sources:\n  s: {{read: in.csv, {COLUMNS}}}\ntransforms:\n  t: {{select: {{from: s, columns: [id, \
                 email]}}, max_rejects: 5, checks: [{{matches: {{email: '{pattern}'}}, severity: reject}}, {{rows: \
                 {{max: 1000}}, severity: warn}}]}}\nsinks:\n  {sink}\n"
            )
        };
        let lab = Lab::with_job(&job("@"));
        lab.file("in.csv", orders(1_000));
        let report = lab.report(&[]);
        assert_eq!(report["rows_rejected"], 1, "{report:#}");
        assert_eq!(report["results"][0]["tally"]["rejected"], 1, "{report:#}");
        let rejects = lab.run(&["rejects", "--json"]).json();
        let one = &rejects["rejects"][0];
        assert_eq!((&one["uri"], &one["line"], &one["step"]), (&json!("in.csv"), &json!(202), &json!("t")), "{one:#}");
        assert_eq!(one["message"], "a check does not hold: matches: email");
        if sink.contains("sqlite") {
            lab.file("job.yaml", job("."));
            let ran = lab.run(&["rejects", "--replay"]);
            ran.ok();
            let rows = sqlite(&lab.path("out.db"), "SELECT COUNT(*), COUNT(DISTINCT id) FROM t");
            assert_eq!(rows, [["1001", "999"]], "{}", ran.stderr);
        }
    }
    // One more than is allowed ends the run.
    let lab = lab("    - {range: {amount: {max: 80}}, severity: reject}\n", "    max_rejects: 5\n", TO_FILE);
    lab.run(&["run", "job.yaml"])
        .ended(3)
        .says(&["`max_rejects` of `s` allows 5", "a check does not hold: range: amount"]);
    assert!(!lab.path("out.csv").exists());
}

#[test]
fn the_number_of_rows_is_compared_with_the_last_run_that_succeeded() {
    let lab = lab("    - {rows: {change: 20%}}\n", "", "  o: {from: s, write: 'out-${DAY}.csv'}\n");
    let run = |day: &str, rows: usize| {
        lab.file("in.csv", orders(rows - 1));
        lab.run(&["run", "job.yaml", "--set", &format!("DAY={day}")])
    };
    run("mon", 1_000).ok();
    run("mon", 700).ended(1).says(&["700 rows, 30.00% fewer than the 1,000 of the last run that succeeded"]);
    run("mon", 810).ok();
    // The one that failed does not count, and other variables make another job.
    run("mon", 990).ended(1).says(&["22.22% more than the 810"]);
    run("tue", 100).ok();
    run("mon", 960).ok();
}

#[test]
fn all_rows_of_the_entry_are_looked_at_whatever_is_done_with_them() {
    let rows = "  s: {read: 'in/*.csv', csv: {columns: {id: int64, name: utf8}}, checks: [{rows: {min: 30000}}, \
                {not_null: name, severity: warn}, {unique: id, severity: warn}]}\n";
    let transforms = [
        "SELECT id FROM s WHERE id < 0",
        "SELECT id FROM s LIMIT 3",
        "SELECT count(*) AS n FROM s",
        "SELECT s.id FROM s JOIN e ON s.id = e.id",
        "SELECT a.id FROM s AS a JOIN s AS b ON a.id = b.id WHERE a.id = 7",
        "SELECT id FROM s ORDER BY id DESC LIMIT 1",
        // Of these the optimizer would keep nothing.
        "SELECT id FROM s WHERE 1 = 0",
        "SELECT id FROM s LIMIT 0",
        "SELECT id FROM s WHERE id < 5 AND id > 7",
        "SELECT id FROM e UNION ALL SELECT id FROM s WHERE 1 = 0",
        "SELECT a.id FROM s AS a JOIN s AS b ON a.id = b.id WHERE 1 = 0",
        "SELECT id FROM e WHERE id IN (SELECT id FROM s WHERE 1 = 0)",
        "SELECT id FROM (SELECT e.id, (SELECT max(id) FROM s) AS most FROM e) AS x",
    ];
    for sql in transforms {
        let lab = Lab::with_job(&format!(
            "sources:\n{rows}  e: {{read: empty.csv, csv: {{columns: {{id: int64}}}}}}\ntransforms:\n  t: {{sql: \
             '{sql}'}}\nsinks:\n  o: {{from: t, write: out.csv}}\n  e: {{from: e, write: e.csv}}\n"
        ));
        lab.file("empty.csv", "id\n");
        for file in 0..3 {
            let ids = file * 10_000..(file + 1) * 10_000;
            let text = ids.fold("id,name\n".to_owned(), |mut text, id| {
                let _ = writeln!(
                    text,
                    "{},{}",
                    if id == 29_999 { 5 } else { id },
                    if id % 10_000 == 9_998 { "" } else { "x" }
                );
                text
            });
            lab.file(&format!("in/{file}.csv"), text);
        }
        assert_eq!(
            results(&lab.report(&[])),
            [
                "s | rows | holds | 30,000 rows",
                "s | not_null: name | broken | 3 of 30,000 rows (0.01%)",
                "s | unique: id | broken | 1 of 30,000 rows (0.00%)",
            ],
            "{sql}"
        );
    }
}

/// Of steps one after the other, all of whose rows the last one drops, each is checked.
#[test]
fn rows_that_no_sink_needs_are_looked_at_in_each_step() {
    let job = |last: &str, sink: &str| {
        format!(
            "sources:\n  s: {{read: in.csv, {COLUMNS}, max_rejects: 5, checks: [{{matches: {{email: '@'}}, severity: \
             reject}}]}}\n  names: {{read: names.csv, csv: {{columns: {{id: int64, name: utf8}}}}}}\ntransforms:\n  \
             named: {{lookup: {{from: s, in: names, on: [id], take: [name], miss: 'null'}}, checks: [{{not_null: id, \
             severity: warn}}]}}\n  few: {{filter: {{from: named, where: amount < 10}}, checks: [{{rows: {{min: 100}}, \
             severity: warn}}, {{values: {{status: [open]}}, severity: warn}}]}}\n  t: {{sql: '{last}'}}\nsinks:\n  \
             o: {{from: t, write: {sink}}}\n"
        )
    };
    let lasts = [
        "SELECT * FROM few WHERE 1 = 0",
        "SELECT * FROM few LIMIT 0",
        "SELECT * FROM few WHERE id IS NULL AND id = 3",
        "SELECT a.* FROM few AS a JOIN few AS b ON a.id = b.id WHERE false",
    ];
    for (index, last) in lasts.iter().enumerate() {
        let sink = ["out.csv", "'sqlite:out.db', table: t"][index % 2];
        let lab = Lab::with_job(&job(last, sink));
        lab.file("in.csv", orders(1_000));
        lab.file("names.csv", "id,name\n3,three\n");
        let report = lab.report(&[]);
        assert_eq!(
            results(&report),
            [
                "s | matches: email | holds | 1 of 1,001 rows (0.10%)",
                "named | not_null: id | broken | 1 of 1,000 rows (0.10%)",
                "few | rows | holds | 122 rows",
                "few | values: status | holds | none of 122 rows",
            ],
            "{last}"
        );
        assert_eq!(report["rows_rejected"], 1, "{last}");
    }
}

/// 400,004 keys of 90 bytes, four of which come again, and a job that finds these.
fn lab_with_many_keys() -> Lab {
    let lab = Lab::with_job(&format!(
        "sources:\n  s: {{read: in.csv, {COLUMNS}, checks: [{{unique: [id, email], severity: warn}}]}}\nsinks:\n  o: \
         {{from: s, write: discard}}\n"
    ));
    let long = "é".repeat(40);
    let line = |id: usize| format!("{id},open,{long}{id},1,1\n");
    let mut text = (0..400_000).fold("id,status,email,amount,paid\n".to_owned(), |text, id| text + &line(id));
    text.extend([3, 399_999, 200_000, 3].map(line));
    lab.file("in.csv", text);
    lab
}

#[test]
fn keys_that_do_not_fit_in_memory_are_compared_in_scratch() {
    let lab = lab_with_many_keys();
    for memory in ["80MB", "2GB"] {
        let mut command = harness::program(lab.0.root(), "bash");
        command.args(["-c", "ulimit -n 150; exec \"$0\" \"$@\"", MILLSTREAM]);
        command.args(["run", "job.yaml", "--json", "--memory", memory]);
        let ran = finish(command, None);
        let report = ran.ok().json();
        assert_eq!(results(&report), ["s | unique: id, email | broken | 4 of 400,004 rows (0.00%)"], "{memory}");
        let spilled =
            report["steps"].as_array().expect("steps").iter().filter_map(|step| step["spilled_bytes"].as_u64());
        assert_eq!(spilled.sum::<u64>() > 0, memory == "80MB", "{report:#}");
        let examples = report["checks"][0]["examples"].to_string();
        assert!(["3", "399999", "200000"].iter().any(|id| examples.contains(&format!(r#"\"id\":{id}"#))), "{examples}");
    }
}

#[test]
fn scratch_that_has_no_room_for_keys_is_reported() {
    let lab = lab_with_many_keys();
    let Some(small) = Mount::tmpfs("size=2m") else { return };
    let scratch = small.path().display().to_string();
    let ran = lab.run(&["run", "job.yaml", "--memory", "80MB", "--scratch", &scratch]);
    ran.ended(1).says(&[
        &format!("the keys of a `unique` check cannot be written to scratch in {scratch}"),
        "step s",
        "no space left on device",
        "name a folder with more room with `--scratch`",
    ]);
}

#[test]
fn unique_counts_both_zeros_as_one_key() {
    let lab = Lab::with_job(
        "sources:\n  s: {read: in.csv, csv: {columns: {v: float64}}, checks: [{unique: v, severity: warn}]}\nsinks:\n  \
         o: {from: s, write: discard}\n",
    );
    lab.file("in.csv", "v\n0.0\n-0.0\nNaN\n1.5\nNaN\n");
    assert_eq!(results(&lab.report(&[])), ["s | unique: v | broken | 2 of 5 rows (40.00%)"]);
}

#[test]
fn a_limit_with_more_digits_than_its_column_is_an_error() {
    for rule in ["range: {v: {max: 10.005}}", "values: {v: [10.01, 10.005]}"] {
        let lab = Lab::with_job(&format!(
            "sources:\n  s: {{read: in.csv, csv: {{columns: {{v: 'decimal(10, 2)'}}}}, checks: \
             [{{{rule}}}]}}\nsinks:\n  o: {{from: s, write: discard}}\n"
        ));
        lab.file("in.csv", "v\n10.01\n");
        lab.run(&["run", "job.yaml"]).ended(2).says(&["`10.005` is no value of `v`, which is decimal(10, 2)"]);
        lab.file("job.yaml", lab.read("job.yaml").replace("10.005", "10.010"));
        lab.run(&["run", "job.yaml"]).ok();
    }
}

#[test]
fn checks_that_cannot_be_are_told_where_they_stand() {
    let snapshot = |name: &str, checks: &str, sink: &str| {
        let ran = lab(checks, "", sink).run(&["check", "job.yaml"]);
        insta::assert_snapshot!(name, ran.ended(2).stderr);
    };
    let forms = "    - {rows: {}}\n    - {rows: {min: 5, max: 4}}\n    - {matches: {email: '('}}\n    - {range: \
                 {amount: {}}}\n    - {severity: warn}\n    - {rows: {min: 1}, not_null: id}\n    - {rows: {min: 1}, \
                 at_most: 5}\n    - {not_null: id, severity: reject}\n    - {unique: id, severity: reject}\n    - \
                 {not_null: id, severity: loud}\n    - {not_null: id, at_most: 101%}\n    - {notnull: id}\n";
    snapshot("checks_of_a_wrong_form", forms, TO_FILE);
    let of_columns = "    - {not_null: [nothing]}\n    - {unique: [id, other]}\n    - \
                      {values: {amount: [1, many]}}\n    \
                      - {matches: {amount: x}}\n    - {range: {amount: {min: low}}}\n    - {sql: amount + 1}\n    - \
                      {sql: amout > 1}\n    - {sql: sum(amount) > 1}\n    - {sql: 'amount > (SELECT 1)'}\n";
    snapshot("checks_of_other_columns", of_columns, TO_FILE);
    let sink = "  o: {from: s, write: out.csv, checks: [{not_null: id, severity: reject}, {unique: other}]}\n";
    snapshot("checks_of_a_sink", "    - {rows: {min: 1}}\n", sink);
}

#[test]
fn sinks_that_show_rows_early_have_no_checks_that_fail() {
    let sinks = "  o: {from: s, write: '-'}\n  c: {from: s, command: [cat], exchange: csv}\n";
    let lab = lab("    - {not_null: id}\n", "", sinks);
    let ran = lab.run(&["run", "job.yaml"]);
    ran.ended(2).says(&["`o` shows its rows before that", "`c` shows its rows before that", "severity: warn"]);
    let lab = self::lab("    - {not_null: id, severity: warn}\n", "", "  o: {from: s, write: '-'}\n");
    lab.run(&["run", "job.yaml"]).ok().says(&["warning: s: not_null: id: 1 of 1,001 rows"]);
}

#[test]
fn checks_that_nobody_evaluates_are_an_error() {
    let job = format!(
        "sources:\n  s: {{read: in.csv, {COLUMNS}, checks: [{{not_null: id}}]}}\n  r: {{read: in.csv, {COLUMNS}}}\n\
         transforms:\n  t: {{filter: {{from: s, where: id > 1}}, checks: [{{rows: {{min: 1}}}}]}}\nsinks:\n  o: \
         {{from: r, write: out.csv}}\n"
    );
    let lab = Lab::with_job(&job);
    lab.file("in.csv", orders(10));
    let ran = lab.run(&["run", "job.yaml"]);
    ran.ended(2).says(&["no sink reads `s`, so its checks are never evaluated", "no sink reads `t`"]);
}

#[test]
fn explain_says_why_a_load_goes_all_at_once() {
    let job = |severity: &str| {
        format!(
            "sources:\n  s: {{read: in.csv, {COLUMNS}, checks: [{{not_null: id, severity: {severity}}}]}}\nsinks:\n  \
             o: {{from: s, write: 'sqlite:out.db', table: t}}\n"
        )
    };
    let lab = Lab::with_job(&job("fail"));
    lab.file("in.csv", orders(10));
    let explained = lab.run(&["explain", "job.yaml"]);
    let why = "all at once, since a check of `s` may fail the run before it publishes anything";
    assert!(explained.ok().stdout.contains(why), "{}", explained.stdout);
    lab.file("job.yaml", job("warn"));
    assert!(lab.run(&["explain", "job.yaml"]).ok().stdout.contains("chunk by chunk"));
}

#[test]
fn a_run_resumes_with_other_checks_unless_they_leave_out_other_rows() {
    let checks = |severity: &str| format!("    - {{not_null: id, severity: {severity}}}\n");
    let lab = lab(&checks("warn"), "    max_rejects: 10\n", "  o: {from: s, write: 'sqlite:out.db', table: t}\n");
    let job = lab.read("job.yaml");
    let run = |arguments: &[&str], fail_point: &str| {
        let mut command = lab.command(arguments);
        command.env("MILLSTREAM_CHUNK_BYTES", "2000").env("MILLSTREAM_FAIL_AT", fail_point);
        finish(command, None)
    };
    run(&["run", "job.yaml"], "commit.after:1").ended(-1);
    lab.file("job.yaml", job.replace("severity: warn", "severity: reject"));
    run(&["run", "--resume", "job.yaml"], "none").ended(1).says(&["the job has changed"]);
    lab.file("job.yaml", job.replace("not_null: id", "not_null: amount"));
    run(&["run", "--resume", "job.yaml"], "none").ok();
    assert_eq!(sqlite(&lab.path("out.db"), "SELECT COUNT(*) FROM t"), [["1001"]]);
}

/// The planner takes fields out of structs early, and gives them names of its own.
#[test]
fn fields_of_structs_are_shown_as_the_job_calls_them() {
    let lab = Lab::new();
    lab.file("in.jsonl", "{\"id\": null, \"c\": {\"name\": \"b\", \"country\": \"fr\"}}\n");
    lab.file(
        "job.yaml",
        "sources:\n  s:\n    read: in.jsonl\n    json: {columns: {id: int64, c: 'struct<name: utf8, country: \
         utf8>'}}\n    \
         checks: [{not_null: [id], severity: reject}]\n    max_rejects: 1\ntransforms:\n  t: {sql: \"SELECT id, \
         c['name'] AS name, upper(c['country']) AS country FROM s\"}\nsinks:\n  o: {from: t, write: out.csv}\n",
    );
    let explained = lab.run(&["explain", "job.yaml"]).ok().stdout.clone();
    assert!(explained.contains("c['name'] as name, upper(c['country']) as country"), "{explained}");
    assert!(!explained.contains("__datafusion"), "{explained}");
    let report = lab.report(&[]);
    let example = report["checks"][0]["examples"][0].as_str().expect("an example");
    let shown: Value = serde_json::from_str(example).expect("a row");
    assert_eq!(shown, json!({"id": null, "c['name']": "b", "c['country']": "fr"}), "{example}");
}
