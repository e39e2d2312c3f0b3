//! Tables that keep the versions of their rows (`mode: history`): SQLite, MariaDB, PostgreSQL.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::use_resume::{Target, in_postgres, in_sqlite};
use crate::use_support::Lab;
use crate::use_sync::{
    TARGETS, assert_no_own_tables, changes, configure, killed_if_reached, lab, leave_out, null, row, rows,
};

/// The versions of all rows, in their order: `id`, `name`, whether it is the current one.
fn versions(target: &Target) -> Vec<String> {
    let query = "SELECT id, name, CASE WHEN valid_to IS NULL THEN 'now' ELSE 'then' END FROM t ORDER BY id, valid_from";
    target.query(query).iter().map(|row| row.replace('\t', " ")).collect()
}

/// Each key has one version at a time, and none that ends before it began.
#[track_caller]
fn assert_sane(target: &Target) {
    let empty = target.query("SELECT count(*) FROM t WHERE valid_to <= valid_from");
    let overlapping = target.query(
        "SELECT count(*) FROM t a JOIN t b ON a.id = b.id AND a.valid_from < b.valid_from WHERE a.valid_to IS NULL OR \
         a.valid_to > b.valid_from",
    );
    assert_eq!((empty, overlapping), (vec!["0".to_owned()], vec!["0".to_owned()]));
}

/// A row that is valid since a day of January.
fn since(id: i64, name: &str, day: u32) -> Value {
    json!({"id": id, "name": name, "amount": null, "day": format!("2026-01-{day:02}")})
}

#[test]
fn a_row_that_differs_becomes_a_new_version() {
    for make in TARGETS {
        let (lab, target) = lab(make, "mode: history, missing: delete, max_deletes: 50%");
        rows(&lab, &[row(1, Some("a"), None), row(2, None, None), row(3, Some("c"), None)]);
        assert_eq!(changes(&lab, &[]), [3, 0, 0, 0]);
        assert_eq!(changes(&lab, &[]), [0, 0, 3, 0]);
        rows(&lab, &[row(1, Some("A"), None), row(2, None, None), row(4, Some("d"), None)]);
        let ran = lab.run(&["run", "job.yaml"]);
        ran.ok();
        let told = format!("{}{}", ran.stdout, ran.stderr);
        assert!(told.contains("3 rows compared with table t of"), "{told}");
        assert!(told.contains(": 1 inserted, 1 updated, 1 unchanged, 1 closed"), "{told}");
        let null = null(&target);
        let expected = ["1 a then", "1 A now", &format!("2 {null} now"), "3 c then", "4 d now"];
        assert_eq!(versions(&target), expected);
        // One version ends where the next one begins.
        let joined = "SELECT count(*) FROM t a JOIN t b ON a.id = b.id AND a.valid_to = b.valid_from WHERE a.id = 1";
        assert_eq!(target.query(joined), ["1"]);
        rows(
            &lab,
            &[row(1, Some("A"), None), row(2, Some("b"), None), row(3, Some("c"), None), row(4, Some("d"), None)],
        );
        assert_eq!(changes(&lab, &[]), [1, 1, 2, 0]);
        assert_eq!(versions(&target)[4..6], ["3 c then", "3 c now"]);
        assert_sane(&target);
        assert_eq!(target.tables(), ["t"]);
    }
}

/// A version is valid since the run began to which its rows belong: a run that resumes it changes nothing about that.
#[test]
fn a_version_begins_with_the_first_run_of_its_chain() {
    for make in TARGETS {
        let (lab, target) = lab(make, "mode: history, missing: keep");
        rows(&lab, &[row(1, Some("a"), None)]);
        lab.killed("publish.step");
        std::thread::sleep(std::time::Duration::from_millis(20));
        let report = lab.report(&["--resume"]);
        let first = report["resumes"].as_str().expect("it resumes one").to_owned();
        let millis: i64 = first.split('-').next().and_then(|time| time.parse().ok()).expect("a time");
        let query = match &target {
            Target::Sqlite(_) => "SELECT strftime('%s', valid_from) || substr(valid_from, 21, 3) FROM t",
            Target::Server(database) if database.url.starts_with("mysql") => {
                "SELECT CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', valid_from) DIV 1000 AS CHAR) FROM t"
            }
            Target::Server(_) => "SELECT (extract(epoch FROM valid_from) * 1000)::bigint FROM t",
        };
        assert_eq!(target.query(query), [millis.to_string()]);
    }
}

#[test]
fn rows_with_times_become_versions_in_their_order() {
    for make in TARGETS {
        let (lab, target) = lab(make, "mode: history, missing: keep, as_of: day");
        let series = [since(1, "b", 3), since(1, "a", 1), since(2, "x", 1), since(1, "b", 5), since(1, "c", 9)];
        rows(&lab, &series);
        assert_eq!(changes(&lab, &[]), [4, 0, 1, 0]);
        assert_eq!(versions(&target), ["1 a then", "1 b then", "1 c now", "2 x now"]);
        let times = "SELECT valid_from, valid_to FROM t WHERE name IN ('a', 'b') ORDER BY valid_from";
        assert_eq!(target.query(times), ["2026-01-01\t2026-01-03", "2026-01-03\t2026-01-09"]);
        // What is valid already is unchanged, also if it comes again later.
        rows(&lab, &[since(1, "c", 9), since(2, "x", 4)]);
        assert_eq!(changes(&lab, &[]), [0, 0, 2, 0]);
        rows(&lab, &[since(1, "c", 10), since(1, "d", 11), since(1, "c", 12), since(3, "y", 1)]);
        assert_eq!(changes(&lab, &[]), [2, 1, 1, 0]);
        assert_eq!(versions(&target)[2..5], ["1 c then", "1 d then", "1 c now"]);
        assert_sane(&target);
        let before = versions(&target);
        for (wrong, expected) in [
            (vec![since(2, "z", 1)], "are not newer than the versions that it has"),
            (vec![since(1, "e", 11)], "are not newer than the versions that it has"),
            (vec![since(2, "z", 20), since(2, "w", 20)], "needs one row for each key and time"),
            (vec![json!({"id": 2, "name": "z", "day": null})], "without a value in"),
        ] {
            rows(&lab, &wrong);
            lab.run(&["run", "job.yaml"]).ended(1).says(&[expected]);
            assert_eq!(versions(&target), before, "{expected}");
            assert_eq!(target.tables(), ["t"], "{expected}");
        }
    }
}

/// The column with the time may itself be the one since when a version is valid.
#[test]
fn the_time_of_a_row_may_be_since_when_it_is_valid() {
    for make in TARGETS {
        let (lab, target) = lab(make, "mode: history, missing: delete, as_of: day, valid_from: day, valid_to: until");
        rows(&lab, &[since(1, "a", 1), since(1, "b", 2)]);
        assert_eq!(changes(&lab, &[]), [2, 0, 0, 0]);
        let all = "SELECT id, name, day, until FROM t ORDER BY day";
        assert_eq!(
            target.query(all),
            ["1\ta\t2026-01-01\t2026-01-02", &format!("1\tb\t2026-01-02\t{}", null(&target))]
        );
    }
}

/// Keys that the table compares without capitals have one series of versions.
#[test]
fn times_of_a_key_with_a_collation_become_one_series() {
    let (lab, target) = lab(in_sqlite, "mode: history, missing: keep, as_of: day");
    target.query(
        "CREATE TABLE t (id TEXT COLLATE NOCASE, name TEXT, amount REAL, day TEXT, valid_from TEXT, valid_to TEXT, \
         PRIMARY KEY (id, valid_from))",
    );
    lab.file("job.yaml", lab.read("job.yaml").replace("id: int64", "id: utf8"));
    let since = |id: &str, name: &str, day: u32| json!({"id": id, "name": name, "day": format!("2026-01-{day:02}")});
    rows(&lab, &[since("a", "x", 1), since("A", "y", 2), since("b", "z", 1)]);
    assert_eq!(changes(&lab, &[]), [3, 0, 0, 0]);
    assert_eq!(versions(&target), ["a x then", "A y now", "b z now"]);
    rows(&lab, &[since("a", "y", 3), since("A", "w", 4)]);
    changes(&lab, &[]);
    assert_eq!(target.query("SELECT count(*) FROM t WHERE valid_to IS NULL"), ["2"]);
    assert_sane(&target);
}

/// Times of `as_of` that are not before the run do not blame the clock.
#[test]
fn a_missing_row_that_is_valid_since_later_is_reported_as_that() {
    for make in TARGETS {
        let (lab, _target) =
            lab(make, "mode: history, missing: delete, max_deletes: 100%, as_of: day, valid_to: Until");
        let later = json!({"id": 2, "name": "b", "day": "2100-01-01"});
        rows(&lab, &[since(1, "a", 1), later]);
        assert_eq!(changes(&lab, &[]), [2, 0, 0, 0]);
        rows(&lab, &[since(1, "a", 1)]);
        let ran = lab.run(&["run", "job.yaml"]);
        ran.ended(1).says(&["cannot end, since they begin later", "id=2", "by `day` they begin", "`missing: keep`"]);
        assert!(!ran.stderr.contains("clock"), "{ran:?}");
    }
    let (lab, target) = lab(in_sqlite, "mode: history, missing: delete, as_of: day");
    lab.file("job.yaml", lab.read("job.yaml").replace("key: [id]", "key: [id, day]"));
    lab.run(&["check", "job.yaml"]).ended(2).says(&["the column `day` of `as_of` is in the key"]);
    drop(target);
}

/// SQLite keeps times as texts. Those of a table may have been written otherwise, and by their texts they would be in
/// another order.
#[test]
fn times_of_sqlite_are_compared_as_times() {
    let (lab, target) = lab(in_sqlite, "mode: history, missing: keep, as_of: day");
    lab.file("job.yaml", lab.read("job.yaml").replace("day: date", "day: timestamp"));
    let at = |day: &str, name: &str| rows(&lab, &[json!({"id": 1, "name": name, "day": day})]);
    at("2026-01-01 10:00:00", "a");
    changes(&lab, &[]);
    for (known, later, earlier) in [
        ("2026-01-01T10:00", "2026-01-01 10:00:01", "2026-01-01 09:59:59"),
        ("2026-01-01T10:00:00Z", "2026-01-01 11:00:00", "2026-01-01 10:00:00"),
        ("2026-01-01 10:00", "2026-01-01 10:00:00.000001", "2026-01-01 10:00:00"),
        ("2026-01-01", "2026-01-01 00:00:01", "2026-01-01 00:00:00"),
        ("2026-01-01 10:00:00.123", "2026-01-01 10:00:00.123001", "2026-01-01 10:00:00.123"),
    ] {
        target.query("DELETE FROM t WHERE name <> 'a'");
        target.query(&format!("UPDATE t SET valid_from = '{known}', valid_to = NULL"));
        at(earlier, "b");
        lab.run(&["run", "job.yaml"]).ended(1).says(&["are not newer than the versions that it has"]);
        at(later, "b");
        assert_eq!(changes(&lab, &[]), [0, 1, 0, 0], "{known}");
        assert_eq!(target.query("SELECT name FROM t WHERE valid_to IS NULL"), ["b"], "{known}");
    }
    let job = lab.read("job.yaml").replace("missing: keep", "missing: delete, max_deletes: 100%");
    lab.file("job.yaml", job);
    for known in ["'2026-01-01 10:00:00+02:00'", "'2026-01-01 10:00:00.123456789+02:00'", "1767261600", "'01.01.2026'"]
    {
        target.query("DELETE FROM t WHERE name <> 'a'");
        target.query(&format!("UPDATE t SET valid_from = {known}, valid_to = NULL"));
        for next in [json!({"id": 1, "name": "b", "day": "2026-02-01 10:00:00"}), json!({"id": 2, "day": "2026-01-01"})]
        {
            rows(&lab, &[next]);
            let expected = ["has times that cannot be compared with new ones", "id=1", "2026-01-31 10:00:00"];
            lab.run(&["run", "job.yaml"]).ended(1).says(&expected);
            assert_eq!(target.query("SELECT count(*) FROM t"), ["1"], "{known}");
        }
    }
}

/// A trigger that leaves changes out would leave two current versions, or none.
#[test]
fn changes_that_a_trigger_leaves_out_are_reported() {
    for make in [in_sqlite as fn(&Lab) -> Target, in_postgres] {
        for (event, row_of, expected) in [("INSERT", "NEW", "took 0 of 1 row"), ("UPDATE", "OLD", "changed 0 of 1 row")]
        {
            let (lab, target) = lab(make, "mode: history, missing: delete");
            rows(&lab, &[row(1, Some("a"), None), row(2, Some("b"), None)]);
            changes(&lab, &[]);
            leave_out(&target, event, &format!("{row_of}.id > 1"));
            rows(&lab, &[row(1, Some("a"), None), row(2, Some("B"), None)]);
            lab.run(&["run", "job.yaml"]).ended(1).says(&[expected, "a trigger or a rule of the table"]);
            assert_eq!(versions(&target), ["1 a now", "2 b now"], "{event}");
        }
    }
}

/// A version whose row is missing ends when the run began, in the type of the other times.
#[test]
fn a_missing_row_ends_in_the_type_of_its_time() {
    for make in TARGETS {
        let (lab, target) = lab(make, "mode: history, missing: delete, max_deletes: 100%, as_of: day");
        rows(&lab, &[since(1, "a", 1), since(2, "b", 1)]);
        changes(&lab, &[]);
        rows(&lab, &[since(2, "b", 1)]);
        assert_eq!(changes(&lab, &[]), [0, 0, 1, 1]);
        let ended = target.query("SELECT valid_to FROM t WHERE id = 1");
        assert!(ended[0].len() == "2026-01-01".len() && ended[0].starts_with("20"), "{ended:?}");
        assert_sane(&target);
    }
}

/// The clock of a run is behind that of an earlier one: no version ends before it began.
#[test]
fn a_clock_that_is_behind_is_reported() {
    for make in TARGETS {
        let (lab, target) = lab(make, "mode: history, missing: delete, max_deletes: 100%");
        rows(&lab, &[row(1, Some("a"), None), row(2, Some("b"), None)]);
        changes(&lab, &[]);
        target.query("UPDATE t SET valid_from = '2100-01-01 00:00:00' WHERE id = 1");
        let before = versions(&target);
        for wrong in [vec![row(1, Some("x"), None), row(2, Some("b"), None)], vec![row(2, Some("b"), None)]] {
            rows(&lab, &wrong);
            let expected = ["has versions that are not older than this run, which began at", "id=1", "clock"];
            lab.run(&["run", "job.yaml"]).ended(1).says(&expected);
            assert_eq!(versions(&target), before);
        }
        // What does not change needs no clock.
        rows(&lab, &[row(1, Some("a"), None), row(2, Some("B"), None)]);
        assert_eq!(changes(&lab, &[]), [0, 1, 1, 0]);
        // A version that was closed in the future is not followed by one that begins before.
        target.query("UPDATE t SET valid_from = '2026-01-01 00:00:00', valid_to = '2100-01-01 00:00:00' WHERE id = 1");
        lab.run(&["run", "job.yaml"]).ended(1).says(&["has versions that are not older than this run", "id=1"]);
    }
}

#[test]
fn missing_versions_are_kept_or_flagged_within_the_scope() {
    for make in TARGETS {
        let (lab, target) = lab(make, "mode: history, missing: {flag: gone}, max_deletes: 1, scope: id < 10");
        target.query("DROP TABLE IF EXISTS t");
        rows(&lab, &[row(1, Some("a"), None), row(2, Some("b"), None)]);
        assert_eq!(changes(&lab, &[]), [2, 0, 0, 0]);
        target.query("INSERT INTO t (id, name, valid_from) VALUES (50, 'z', '2026-01-01 00:00:00')");
        rows(&lab, &[row(2, Some("b"), None)]);
        assert_eq!(changes(&lab, &[]), [0, 0, 1, 1]);
        let flagged = || target.query("SELECT id FROM t WHERE gone AND valid_to IS NULL ORDER BY id");
        assert_eq!(flagged(), ["1"]);
        rows(&lab, &[row(1, Some("a"), None), row(2, Some("B"), None)]);
        assert_eq!(changes(&lab, &[]), [0, 2, 0, 0]);
        assert!(flagged().is_empty());
        rows(&lab, &[row(60, Some("a"), None)]);
        lab.run(&["run", "job.yaml"]).ended(1).says(&["are outside of `scope`", "id=60"]);
        configure(&lab, &target, "mode: history, missing: keep");
        rows(&lab, &[row(2, Some("B"), None)]);
        assert_eq!(changes(&lab, &[]), [0, 0, 1, 0]);
        assert_eq!(target.query("SELECT count(*) FROM t WHERE valid_to IS NULL"), ["3"]);
    }
}

#[test]
fn an_input_that_may_lack_rows_closes_nothing() {
    for make in TARGETS {
        let (lab, target) = lab(make, "mode: history, missing: delete");
        let whole: Vec<Value> = (0..20).map(|id| row(id, Some("a"), None)).collect();
        rows(&lab, &whole);
        changes(&lab, &[]);
        for (some, expected) in [
            (vec![], "no row came for table t of"),
            (whole[..5].to_vec(), "15 of 20 rows of table t of"),
            ([&whole[..], &whole[3..4]].concat(), "`mode: history` needs one row for each key"),
        ] {
            rows(&lab, &some);
            lab.run(&["run", "job.yaml"]).ended(1).says(&[expected]);
            assert_eq!(target.query("SELECT count(*) FROM t WHERE valid_to IS NULL"), ["20"], "{expected}");
            assert_eq!(target.tables(), ["t"], "{expected}");
        }
    }
}

#[test]
fn what_makes_no_sense_is_reported_at_once() {
    let (lab, target) = lab(in_sqlite, "mode: history, valid_from: x, valid_to: X");
    lab.run(&["check", "job.yaml"])
        .ended(2)
        .says(&["`mode: history` without `missing`", "the column `X` is named twice"]);
    configure(&lab, &target, "mode: history, missing: keep, valid_to: name");
    lab.run(&["check", "job.yaml"]).ended(1).says(&["the rows have a column `name`, which the load writes itself"]);
    configure(&lab, &target, "mode: history, missing: keep, as_of: dya");
    lab.run(&["check", "job.yaml"]).ended(2).says(&["`dya` of `as_of` is not among the columns", "`day`"]);
    configure(&lab, &target, "mode: history, missing: keep, as_of: amount");
    lab.run(&["check", "job.yaml"]).ended(1).says(&["the column `amount` of `as_of` is float64", "CAST"]);
    let (lab, target) = crate::use_sync::lab(in_postgres, "mode: history, missing: keep");
    target.query("CREATE TABLE t (id bigint PRIMARY KEY, name text, amount float8, day date, valid_from timestamptz)");
    lab.run(&["check", "job.yaml"]).ended(1).says(&[
        "has no column `valid_to`",
        "has no unique key of exactly the columns id, valid_from",
        "CREATE UNIQUE INDEX",
    ]);
}

/// Killed at any step, each change becomes one version, of the run that began with it.
#[test]
fn killed_at_each_step_there_is_one_version_of_each_change() {
    let all = [
        "publish.step",
        "publish.step:2",
        "publish.step:4",
        "publish.step:6",
        "publish.before",
        "publish.after",
        "state.before:2",
        "forget.before",
    ];
    let of_new = ["publish.step:4", "publish.before", "rename.before", "rename.after", "publish.after"];
    for make in TARGETS {
        for (settings, exists) in [("", true), ("", false), (", as_of: day", true), (", as_of: day", false)] {
            let (lab, target) = lab(make, &format!("mode: history, missing: delete, max_deletes: 100%{settings}"));
            for window in if exists { &all[..] } else { &of_new[..] } {
                let mut expected = Vec::new();
                if exists {
                    rows(&lab, &(0..4).map(|id| since(id, "a", 1)).collect::<Vec<_>>());
                    changes(&lab, &[]);
                    expected.extend(["0 a then", "1 a then", "1 b now", "2 a now", "3 a then", "3 b now"]);
                } else {
                    expected.extend(["1 b now", "2 a now", "3 b now"]);
                }
                rows(&lab, &[since(1, "b", 2), since(2, "a", 1), since(3, "b", 2)]);
                killed_if_reached(&lab, window);
                lab.run(&["run", "job.yaml", "--resume"]).ok();
                assert_eq!(versions(&target), expected, "{window}{settings}");
                assert_sane(&target);
                assert_no_own_tables(&target, window);
                target.query("DROP TABLE t");
                lab.run(&["run", "job.yaml", "--restart"]).ok();
                target.query("DROP TABLE t");
            }
        }
    }
}

/// Many random states of a table, one after the other: its history is what a simple model says.
#[test]
fn a_history_is_what_a_model_says() {
    let (lab, target) = lab(in_sqlite, "mode: history, missing: delete, max_deletes: 100%");
    let mut model: BTreeMap<i64, Vec<(String, bool)>> = BTreeMap::new();
    let mut seed = 7_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for _ in 0..12 {
        let state: BTreeMap<i64, String> = (0..15)
            .map(|id| (id, random(4)))
            .filter(|(_, name)| *name > 0)
            .map(|(id, name)| (id, format!("n{name}")))
            .collect();
        for id in 0..15 {
            let known = model.entry(id).or_default();
            let is_same = known.last().is_some_and(|(name, is_open)| *is_open && state.get(&id) == Some(name));
            if is_same {
                continue;
            }
            known.iter_mut().for_each(|(_, is_open)| *is_open = false);
            known.extend(state.get(&id).map(|name| (name.clone(), true)));
        }
        rows(&lab, &state.iter().map(|(id, name)| row(*id, Some(name), None)).collect::<Vec<_>>());
        changes(&lab, &[]);
        let expected = model.iter().flat_map(|(id, known)| {
            known.iter().map(move |(name, is_open)| format!("{id} {name} {}", if *is_open { "now" } else { "then" }))
        });
        assert_eq!(versions(&target), expected.collect::<Vec<_>>());
        assert_sane(&target);
    }
}

/// The same input again changes nothing, however many versions of a key it has.
#[test]
fn versions_that_come_again_are_unchanged() {
    for make in TARGETS {
        for missing in ["delete, max_deletes: 100%", "keep", "{flag: gone}, max_deletes: 100%"] {
            let (lab, target) = lab(make, &format!("mode: history, missing: {missing}, as_of: day"));
            // The second row of 1 differs from the first in its time only; that of 2 has a value that comes again.
            let mut input = vec![since(1, "a", 1), since(1, "a", 2), since(1, "b", 5)];
            input.extend([since(2, "x", 1), since(2, "y", 2), since(2, "x", 3), since(3, "z", 1)]);
            rows(&lab, &input);
            assert_eq!(changes(&lab, &[]), [6, 0, 1, 0]);
            let expected = ["1 a then", "1 b now", "2 x then", "2 y then", "2 x now", "3 z now"];
            for _ in 0..2 {
                assert_eq!(versions(&target), expected);
                assert_eq!(changes(&lab, &[]), [0, 0, 7, 0]);
            }
            // Only rows that are old: the key is not missing, and its current version stays.
            rows(&lab, &[since(1, "a", 1), since(1, "a", 4), since(2, "y", 2), since(3, "z", 1)]);
            assert_eq!(changes(&lab, &[]), [0, 0, 4, 0], "{missing}");
            // Old ones beside new ones, of which the first is like the current version.
            rows(
                &lab,
                &[since(1, "a", 1), since(1, "b", 6), since(1, "a", 7), since(1, "a", 8), since(2, "y", 2)]
                    .into_iter()
                    .chain([since(2, "y", 9), since(3, "z", 1)])
                    .collect::<Vec<_>>(),
            );
            assert_eq!(changes(&lab, &[]), [0, 2, 5, 0], "{missing}");
            let expected =
                ["1 a then", "1 b then", "1 a now", "2 x then", "2 y then", "2 x then", "2 y now", "3 z now"];
            assert_eq!(versions(&target), expected);
            for wrong in [
                // Another value at the time of a version, in the middle of one, and before all.
                [since(1, "c", 1), since(1, "a", 9)],
                [since(1, "b", 2), since(1, "a", 9)],
                [since(2, "q", 9), since(2, "x", 1)],
                [json!({"id": 3, "name": "z", "day": "2025-12-31"}), since(3, "z", 1)],
            ] {
                rows(&lab, &[since(1, "a", 1), since(2, "y", 2), since(3, "z", 1)]);
                let kept: Vec<Value> = [since(1, "a", 7), since(2, "y", 9), since(3, "z", 1)]
                    .into_iter()
                    .filter(|row| wrong.iter().all(|other| other["id"] != row["id"]))
                    .chain(wrong.clone())
                    .collect();
                rows(&lab, &kept);
                lab.run(&["run", "job.yaml"]).ended(1).says(&["are not newer than the versions that it has"]);
                assert_eq!(versions(&target), expected, "{wrong:?}");
            }
            assert_sane(&target);
        }
    }
}

/// A key whose last version has ended comes again with rows that it had before: only a newer row lets it begin again.
#[test]
fn a_key_that_has_ended_begins_again_by_a_newer_row() {
    for make in TARGETS {
        let (lab, target) = lab(make, "mode: history, missing: delete, max_deletes: 100%, as_of: day");
        let both = [since(1, "a", 1), since(1, "b", 2), since(2, "x", 1)];
        rows(&lab, &both);
        assert_eq!(changes(&lab, &[]), [3, 0, 0, 0]);
        rows(&lab, &both[2..]);
        assert_eq!(changes(&lab, &[]), [0, 0, 1, 1]);
        rows(&lab, &both);
        let expected = ["are not newer than the versions that it has", "id=1"];
        lab.run(&["run", "job.yaml"]).ended(1).says(&expected);
        assert_eq!(versions(&target), ["1 a then", "1 b then", "2 x now"]);
        // The same value as before is a new version, since there was a gap.
        rows(&lab, &[&both[..], &[json!({"id": 1, "name": "b", "day": "2100-01-01"})]].concat());
        assert_eq!(changes(&lab, &[]), [1, 0, 3, 0]);
        assert_eq!(versions(&target), ["1 a then", "1 b then", "1 b now", "2 x now"]);
        assert_sane(&target);
    }
}

/// The flag of a key goes when it comes again, also by rows that are old.
#[test]
fn a_flag_goes_with_rows_that_are_old() {
    for make in TARGETS {
        let (lab, target) = lab(make, "mode: history, missing: {flag: gone}, max_deletes: 100%, as_of: day");
        let all = [since(1, "a", 1), since(1, "b", 2), since(2, "x", 1)];
        rows(&lab, &all);
        assert_eq!(changes(&lab, &[]), [3, 0, 0, 0]);
        rows(&lab, &all[2..]);
        assert_eq!(changes(&lab, &[]), [0, 0, 1, 1]);
        rows(&lab, &all);
        assert_eq!(changes(&lab, &[]), [0, 1, 2, 0]);
        assert_eq!(target.query("SELECT count(*) FROM t WHERE gone"), ["0"]);
        assert_eq!(versions(&target), ["1 a then", "1 b now", "2 x now"]);
    }
}

/// Random series of rows, again and again, together with what came before: the versions are those of a simple model.
#[test]
fn versions_by_times_are_what_a_model_says() {
    for make in TARGETS {
        let (lab, target) = lab(make, "mode: history, missing: keep, as_of: day");
        let mut seed = 11_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let mut all: Vec<(i64, u32, String)> = Vec::new();
        for until in [6, 12, 18, 24] {
            for id in 0..8 {
                let days = (until - 5..=until).filter(|_| random(3) > 0).collect::<Vec<_>>();
                all.extend(days.into_iter().map(|day| (id, day, format!("n{}", random(3)))));
            }
            all.sort();
            let mut expected: Vec<(i64, &str)> = Vec::new();
            for (id, _, name) in &all {
                if expected.last() != Some(&(*id, name)) {
                    expected.push((*id, name));
                }
            }
            rows(&lab, &all.iter().map(|(id, day, name)| since(*id, name, *day)).collect::<Vec<_>>());
            changes(&lab, &[]);
            assert_eq!(changes(&lab, &[]), [0, 0, all.len() as u64, 0]);
            let found: Vec<String> = target.query("SELECT id, name FROM t ORDER BY id, valid_from");
            let expected: Vec<String> = expected.iter().map(|(id, name)| format!("{id}\t{name}")).collect();
            assert_eq!(found, expected, "{}", target.url());
            assert_sane(&target);
        }
    }
}
