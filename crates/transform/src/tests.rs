//! What settings become, and what is wrong with them.

use millstream_core::registry::TransformEntry;
use millstream_core::spec::Fault;
use millstream_core::transform::{Distinct, Keep, Relation, Text, UnionBy};
use serde_json::{Value, json};

use crate::TRANSFORMS;

fn entry(name: &str) -> &'static TransformEntry {
    TRANSFORMS.iter().find(|entry| entry.spec.name == name).expect(name)
}

fn relation(name: &str, settings: &Value) -> Relation {
    (entry(name).build)(settings).unwrap_or_else(|faults| panic!("{settings}: {faults:?}"))
}

fn faults(name: &str, settings: &Value) -> Vec<Fault> {
    (entry(name).build)(settings).expect_err("faults")
}

#[test]
fn sql_is_one_query() {
    let Relation::Query(query) = relation("sql", &Text::placed("SELECT 1", 0)) else { panic!("a query") };
    assert_eq!((query.as_str(), query.0.place()), ("SELECT 1", Some(0)));
}

#[test]
fn columns_keep_their_order_and_their_names() {
    let columns = |columns: Value| match relation("select", &json!({"from": "a", "columns": columns})) {
        Relation::Project { columns, .. } => {
            columns.into_iter().map(|one| (one.name, one.expression.as_str().to_owned())).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    let named = |name: &str, expression: &str| (Some(name.to_owned()), expression.to_owned());
    assert_eq!(columns(json!({"z": "id", "a": Text::placed("1.50", 2)})), [named("z", "id"), named("a", "1.50")]);
    assert_eq!(columns(json!(["id", "n * 2 AS twice"]))[1], (None, "n * 2 AS twice".to_owned()));
}

#[test]
fn a_union_is_a_list_or_a_block() {
    let shape = |settings: Value| match relation("union", &settings) {
        Relation::Union { of, by, distinct } => (of.len(), by, distinct),
        other => panic!("{other:?}"),
    };
    assert_eq!(shape(json!(["a", "b", "c"])), (3, UnionBy::Name, false));
    assert_eq!(shape(json!({"of": ["a", "b"], "by": "position", "distinct": true})), (2, UnionBy::Position, true));
}

#[test]
fn a_sort_has_keys_and_says_which_rows_are_equal() {
    let Relation::Sort { from, by, limit, distinct, stable, pool } =
        relation("sort", &json!({"from": "a", "by": ["x desc", "y"], "limit": 7, "stable": true, "pool": "p"}))
    else {
        panic!("a sort")
    };
    let keys: Vec<_> = by.iter().map(|key| (key.expression.as_str(), key.descending, key.nulls_first)).collect();
    assert_eq!(keys, [("x", true, true), ("y", false, false)]);
    assert!(matches!(&*from, Relation::Entry(name) if name.as_str() == "a"));
    assert_eq!((limit, distinct, stable, pool), (Some(7), None, true, Some("p".into())));

    let distinct = |settings: Value| match relation("sort", &settings) {
        Relation::Sort { distinct, .. } => distinct,
        other => panic!("{other:?}"),
    };
    assert_eq!(distinct(json!({"from": "a", "by": "x", "unique": true})), Some(Distinct::default()));
    assert_eq!(
        distinct(json!({"from": "a", "by": "x", "dedupe": {"by": ["x", "y"], "keep": "last"}})),
        Some(Distinct { by: vec!["x".into(), "y".into()], keep: Some(Keep::Last) })
    );
}

#[test]
fn a_dedupe_without_columns_compares_all() {
    let Relation::Dedupe { distinct, order, .. } = relation("dedupe", &json!({"from": "a", "order": "x desc"})) else {
        panic!("a dedupe")
    };
    assert_eq!((distinct, order.len(), order[0].descending), (Distinct::default(), 1, true));
}

#[test]
fn faults_have_their_paths() {
    for (name, settings, path, what) in [
        ("sort", json!({"from": "a", "by": []}), vec!["by"], "`by` names no column"),
        ("sort", json!({"from": "a", "by": "x", "dedupe": {"by": []}}), vec!["dedupe", "by"], "`by` names no column"),
        (
            "sort",
            json!({"from": "a", "by": "x", "unique": true, "dedupe": {"by": "y"}}),
            vec!["unique", ""],
            "`unique` and `dedupe` both say which rows are equal",
        ),
        ("dedupe", json!({"from": "a", "by": []}), vec!["by"], "`by` names no column"),
        ("sort", json!({"from": "a", "by": "desc"}), vec![], "`desc` names no column to sort by"),
    ] {
        let faults = faults(name, &settings);
        assert_eq!(faults.len(), 1, "{settings}: {faults:?}");
        assert_eq!((&faults[0].path, faults[0].what.as_str()), (&path.iter().map(|one| (*one).into()).collect(), what));
    }
}
