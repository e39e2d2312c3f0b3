//! What a merge writes in SQLite, which converts values for the columns that hold them.

use serde_json::{Value, json};

use super::{changes, lab, row, rows};
use crate::use_resume::in_sqlite;
use crate::use_support::Lab;

/// Columns of the job: the name, the type, and a value in each of three rows.
fn columns() -> Vec<(&'static str, &'static str, [Value; 3])> {
    vec![
        ("b", "bool", [json!(true), json!(false), json!(null)]),
        ("i8", "int8", [json!(1), json!(-1), json!(null)]),
        ("i", "int64", [json!(5), json!(i64::MAX), json!(null)]),
        ("u", "uint64", [json!(0), json!(i64::MAX), json!(null)]),
        ("f", "float32", [json!(0.1), json!(2.0), json!(-0.0)]),
        ("g", "float64", [json!(1e300), json!(3.0), json!(0.1)]),
        ("d", "decimal(10,2)", [json!("1.50"), json!("2.00"), json!("-0.01")]),
        ("e", "decimal(15,3)", [json!("123456789012.345"), json!("0.100"), json!(null)]),
        ("w", "decimal(5,0)", [json!("5"), json!("-5"), json!("0")]),
        ("l", "decimal(20,4)", [json!("1234567890123456.7890"), json!("1.0000"), json!(null)]),
        ("dt", "date", [json!("2026-01-01"), json!("1900-02-28"), json!(null)]),
        ("tm", "time", [json!("10:00:00"), json!("23:59:59"), json!(null)]),
        ("ts", "timestamp", [json!("2026-01-01T10:00:00.123456"), json!("1999-12-31T23:59:59"), json!(null)]),
        ("tz", "timestamptz", [json!("2026-01-01T10:00:00.5Z"), json!("1999-12-31T23:59:59+02:00"), json!(null)]),
        ("t", "utf8", [json!("a "), json!("é"), json!("")]),
        ("bin", "binary", [json!("00ff"), json!(""), json!(null)]),
        ("list", "list<int64>", [json!([1, 2]), json!([]), json!(null)]),
        ("s", "struct<x: int64, y: utf8>", [json!({"x": 1, "y": "é"}), json!({"x": null, "y": ""}), json!(null)]),
    ]
}

/// A job that merges these columns, and its input; the table has them as `declared`, if it is there before.
fn merges(names: &[&str], declared: Option<&str>, more: &str) -> Lab {
    let (lab, target) = lab(in_sqlite, &format!("mode: merge{more}"));
    let columns: Vec<_> = columns().into_iter().filter(|(name, ..)| names.contains(name)).collect();
    let types = columns.iter().map(|(name, kind, _)| format!("{name}: '{kind}'")).collect::<Vec<_>>().join(", ");
    lab.file("job.yaml", lab.read("job.yaml").replace("name: utf8, amount: float64, day: date", &types));
    let all: Vec<Value> = (0..3)
        .map(|row| {
            let cells = columns.iter().map(|(name, _, values)| ((*name).to_owned(), values[row].clone()));
            Value::Object(cells.chain([("id".to_owned(), json!(row))]).collect())
        })
        .collect();
    rows(&lab, &all);
    if let Some(declared) = declared {
        let columns = names.iter().map(|name| format!("{name} {declared}")).collect::<Vec<_>>().join(", ");
        target.query(&format!("CREATE TABLE t (id INTEGER PRIMARY KEY, {columns})"));
    }
    lab
}

/// The same rows a second time change nothing, whatever SQLite makes of their values.
#[test]
fn the_same_rows_of_all_types_change_nothing() {
    let all: Vec<&str> = columns().iter().map(|(name, ..)| *name).collect();
    let but = |left_out: &[&str]| all.iter().copied().filter(|name| !left_out.contains(name)).collect::<Vec<_>>();
    for (declared, names) in [
        (None, all.clone()),
        (Some("NUMERIC"), but(&["l", "t"])),
        (Some("decimal(10,2)"), but(&["l", "t"])),
        (Some("INTEGER"), but(&["l", "t"])),
        (Some("DATE"), but(&["l"])),
        (Some("REAL"), but(&["l", "t", "i", "u"])),
        (Some("TEXT"), but(&["f", "g"])),
        (Some("BLOB"), all.clone()),
        (Some(""), all.clone()),
    ] {
        for more in ["", ", order_by: [b desc]"] {
            let lab = merges(&names, declared, more);
            assert_eq!(changes(&lab, &[]), [3, 0, 0, 0], "{declared:?}{more}");
            assert_eq!(changes(&lab, &[]), [0, 0, 3, 0], "{declared:?}{more}");
        }
    }
}

/// A value that differs only in how it is stored is changed where the column keeps that.
#[test]
fn a_column_without_a_type_keeps_what_it_is_given() {
    let (lab, target) = lab(in_sqlite, "mode: merge");
    target.query("CREATE TABLE t (id INTEGER PRIMARY KEY, name, amount, day)");
    rows(&lab, &[row(1, Some("a"), Some(1.0))]);
    changes(&lab, &[]);
    target.query("UPDATE t SET amount = 1");
    assert_eq!(changes(&lab, &[]), [0, 1, 0, 0]);
    assert_eq!(target.query("SELECT typeof(amount) FROM t"), ["real"]);
    assert_eq!(changes(&lab, &[]), [0, 0, 1, 0]);
}

/// With an order, only the row that stays is written: what another row of the input replaces is not.
#[test]
fn of_rows_with_one_key_only_the_one_that_stays_is_written() {
    let (lab, target) = lab(in_sqlite, "mode: merge, order_by: [amount desc]");
    target.query("CREATE TABLE seen (id BIGINT)");
    target.query("CREATE TABLE t (id TEXT COLLATE NOCASE PRIMARY KEY, name TEXT, amount REAL, day TEXT)");
    target.query("CREATE TRIGGER see AFTER UPDATE ON t BEGIN INSERT INTO seen VALUES (NEW.id); END");
    lab.file("job.yaml", lab.read("job.yaml").replace("id: int64", "id: utf8"));
    let of = |id: &str, name: &str, amount: Option<f64>| json!({"id": id, "name": name, "amount": amount});
    let input = [
        of("a", "first", Some(1.0)),
        of("A", "last", Some(3.0)),
        of("a", "middle", Some(2.0)),
        of("a", "none", None),
        of("b", "x", None),
        of("b", "y", None),
    ];
    rows(&lab, &input);
    assert_eq!(changes(&lab, &[]), [2, 0, 4, 0]);
    assert_eq!(target.query("SELECT id, name FROM t ORDER BY id"), ["A\tlast", "b\ty"]);
    assert_eq!(changes(&lab, &[]), [0, 0, 6, 0]);
    assert_eq!(target.query("SELECT count(*) FROM seen"), ["0"]);
    rows(&lab, &[of("a", "new", Some(4.0)), of("a", "old", Some(0.0))]);
    assert_eq!(changes(&lab, &[]), [0, 1, 1, 0]);
    assert_eq!(target.query("SELECT count(*) FROM seen"), ["1"]);
}
