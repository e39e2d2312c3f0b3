//! Tests of the sink that keeps nothing: the parts of the conformance suite that apply to it.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use super::build;
use crate::conformance::{Csv, context, parts, run, schema, write};

#[tokio::test(flavor = "multi_thread")]
async fn all_rows_are_counted() {
    for (partitions, count, size, line) in [
        (1, 1000, 300, "1000 rows discarded"),
        (4, 20_000, 700, "20000 rows discarded"),
        (3, 1, 1, "1 row discarded"),
        (2, 0, 1, "0 rows discarded"),
    ] {
        let sink = build(&json!({}), parts(Path::new("discard"), Arc::new(Csv), false)).expect("no settings");
        sink.check(schema()).await.expect("it takes all columns");
        assert_eq!(run(&sink, partitions, count, size).await.expect("it runs"), line, "{partitions} writers");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_load_stays_in_memory() {
    let sink = build(&json!({}), parts(Path::new("discard"), Arc::new(Csv), false)).expect("no settings");
    let context = context(2);
    let budget = Arc::clone(&context.budget);
    let load = sink.begin(context).await.expect("it begins");
    write(&sink, &load, 2, 50_000, 1000).await.expect("it writes");
    assert_eq!(budget.used(), 0);
    load.abort().await;
    assert!(load.can_roll_back(), "an aborted load leaves nothing");
}

#[test]
fn it_has_no_settings() {
    let built = build(&json!({}), parts(Path::new("discard"), Arc::new(Csv), false)).expect("no settings");
    assert_eq!((built.name(), built.target().as_str()), ("discard", "discard"));
    assert!(!built.may_keep_ledger() && built.is_shareable());
    assert!(build(&json!({"level": 3}), parts(Path::new("discard"), Arc::new(Csv), false)).is_err());
}
