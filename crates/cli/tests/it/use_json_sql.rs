//! SQL on JSON texts through the real binary: `json_get` and its like, `->` and `->>`.

use serde_json::{Value, json};

use crate::transcript::{Session, assert_transcript};
use crate::use_support::{Lab, sqlite};

const EVENTS: &str = r#"{"id":1,"user":{"name":"Ann \u00e9","tags":["a","b"]},"price":1.50,"paid":true}
{"id":2,"user":{"name":null,"tags":[]},"price":2e2,"paid":false,"note":"x, \"y\""}
{"id":3,"user":null}
"#;

fn rows(lab: &Lab, sql: &str) -> Vec<Value> {
    let sql = serde_json::to_string(sql).expect("a text");
    lab.file(
        "job.yaml",
        format!(
            "sources:\n  events: {{read: events.log, lines: {{}}}}\ntransforms:\n  t: {{sql: {sql}}}\nsinks:\n  o: \
             {{from: t, write: out.jsonl}}\n"
        ),
    );
    lab.run(&["run", "job.yaml"]).ok();
    lab.read("out.jsonl").lines().map(|line| serde_json::from_str(line).expect("json")).collect()
}

#[test]
fn values_are_found_by_keys_and_indices() {
    let lab = Lab::new();
    lab.file("events.log", EVENTS);
    for (expression, expected) in [
        ("json_get(line, 'user', 'name')", json!(["\"Ann \\u00e9\"", null, null])),
        ("line -> 'user' -> 'tags'", json!(["[\"a\",\"b\"]", "[]", null])),
        ("line -> 'user' -> 'tags' ->> 0", json!(["a", null, null])),
        ("line -> 'user' -> 'tags' ->> -1", json!(["b", null, null])),
        ("line -> 'user' ->> 'name'", json!(["Ann é", null, null])),
        ("line ->> 'note'", json!([null, "x, \"y\"", null])),
        ("line ->> 'price'", json!(["1.50", "2e2", null])),
        ("json_as_text(line, 'paid')", json!(["true", "false", null])),
        ("json_get_int(line, 'id')", json!([1, 2, 3])),
        ("json_get_float(line, 'price')", json!([1.5, 200.0, null])),
        ("json_get_bool(line, 'paid')", json!([true, false, null])),
        ("json_get_str(line, 'user', 'name')", json!(["Ann é", null, null])),
        ("json_contains(line, 'user', 'name')", json!([true, true, false])),
        ("json_length(line, 'user', 'tags')", json!([2, 0, null])),
        ("json_length(line)", json!([4, 5, 2])),
        ("json_get_array(line, 'user', 'tags')", json!([["\"a\"", "\"b\""], [], null])),
        ("(line -> 'id')::bigint + 1", json!([2, 3, 4])),
        ("line ->> 'id' = '2' AND line -> 'user' IS NOT NULL", json!([false, true, false])),
        ("line ->> CASE WHEN json_get_int(line, 'id') < 3 THEN 'price' ELSE 'id' END", json!(["1.50", "2e2", "3"])),
        ("line ->> CAST(NULL AS text)", json!([null, null, null])),
        ("CAST(NULL AS text) ->> 'id'", json!([null, null, null])),
        ("'[10, 20, 30]' ->> json_get_int(line, 'id') - 1", json!(["10", "20", "30"])),
    ] {
        let found: Vec<Value> = rows(&lab, &format!("SELECT {expression} AS x FROM events"))
            .into_iter()
            .map(|mut row| row["x"].take())
            .collect();
        assert_eq!(Value::from(found), expected, "{expression}");
    }
    let tags = rows(&lab, "SELECT json_as_text(unnest(json_get_array(line, 'user', 'tags'))) AS tag FROM events");
    assert_eq!(Value::from(tags), json!([{"tag": "a"}, {"tag": "b"}]));
}

/// The operators work in `filter` and `select` too, and their rows keep their origin.
#[test]
fn a_text_that_is_not_json_is_rejected_with_its_place() {
    let lab = Lab::new();
    let lines: String =
        (0..2_000)
            .map(|id| {
                if id % 500 == 7 { format!("{{\"id\":{id},\n") } else { format!("{{\"id\":{id},\"n\":{}}}\n", id % 10) }
            })
            .collect();
    lab.file("in.log", lines);
    lab.file(
        "job.yaml",
        "sources:\n  s: {read: in.log, lines: {}}\ntransforms:\n  f: {filter: {from: s, where: \"line -> 'n' IS NOT \
         NULL OR line = ''\"}, max_rejects: 10}\n  t: {select: {from: f, columns: ['json_get_int(line, ''id'') AS id', \
         'line ->> ''n'' AS n']}, max_rejects: 10}\nsinks:\n  o: {from: t, write: 'sqlite:out.db', table: t}\n",
    );
    let report = lab.report(&[]);
    assert_eq!(report["results"][0]["tally"]["rejected"], 4, "{report:#}");
    let kept = lab.run(&["rejects", "--json"]).ok().json();
    let places: Vec<(u64, String)> = kept["rejects"]
        .as_array()
        .expect("rejects")
        .iter()
        .map(|one| (one["line"].as_u64().expect("a line"), one["message"].as_str().expect("why").to_owned()))
        .collect();
    assert_eq!(places.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [8, 508, 1008, 1508], "{kept:#}");
    assert!(places.iter().all(|(_, why)| why.starts_with("the text is not JSON")), "{places:?}");
    assert_eq!(sqlite(&lab.path("out.db"), "SELECT count(*), sum(id), min(n) FROM t")[0][0], "1996");
}

#[test]
fn what_is_wrong_is_told() {
    let mut session = Session::new();
    session.tree.file("in.log", "{\"a\": 1, \"b\": \"x\", \"c\": 99999999999999999999}\n{\"a\": 2\n");
    session.tree.file("good.log", "{\"a\": 1.5, \"b\": \"x\", \"c\": 99999999999999999999}\n");
    let job = |file: &str, expression: &str| {
        format!(
            "sources:\n  s: {{read: {file}, lines: {{}}}}\ntransforms:\n  t: {{sql: \"SELECT {expression} AS x FROM \
             s\"}}\nsinks:\n  o: {{from: t, write: out.csv}}\n"
        )
    };
    for (file, expression) in [
        ("in.log", "line -> 'a'"),
        ("good.log", "json_get_int(line, 'a')"),
        ("good.log", "json_get_int(line, 'c')"),
        ("good.log", "json_get_int(line, 'b')"),
        ("good.log", "json_get_str(line, 'a')"),
        ("good.log", "json_length(line, 'a')"),
    ] {
        session.tree.file("job.yaml", job(file, expression));
        session.fails(1, &["run", "job.yaml"]);
    }
    for expression in ["json_get()", "json_get(1, 'a')", "json_get(line, true)", "line -> 1.5", "json_gett(line, 'a')"]
    {
        session.tree.file("job.yaml", job("good.log", expression));
        session.fails(2, &["check", "job.yaml"]);
    }
    assert_transcript!("json_sql_faults", session);
}
