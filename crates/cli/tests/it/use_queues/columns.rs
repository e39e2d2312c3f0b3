//! Columns that a job does not declare are made out from the messages that the queue has when it begins.

use millstream_testkit::Kafka;

use super::*;
use crate::use_resume::in_sqlite;

fn undeclared(scene: &Scene) {
    let job = scene.lab.read("job.yaml").replace("json: {columns: {id: int64, name: utf8}}", "json: {}");
    scene.lab.file("job.yaml", job);
}

/// Of the columns of the table, but for `_id`: `id INTEGER`.
fn columns(target: &Target) -> Vec<String> {
    let columns = target.query("SELECT name || ' ' || type FROM pragma_table_info('t') WHERE name <> '_id'");
    columns.iter().map(|column| column.to_string()).collect()
}

#[test]
fn columns_are_those_of_the_first_and_the_last_messages() {
    let scene = Scene::new(in_sqlite, "until: now", ", max_rejects: 2", "");
    undeclared(&scene);
    scene.add_body("no JSON");
    scene.add(0..50);
    let filler = "x".repeat(2_000);
    (0..1_000).for_each(|_| scene.add_body(&format!("{{\"id\": 1, \"name\": \"{filler}\"}}")));
    scene.add_body("{\"id\": 2, \"score\": 1.5}");
    let before = scene.redis.command(&["XINFO", "GROUPS", "events"]);
    scene.lab.run(&["explain", "job.yaml"]).ok().prints(&["score"]);
    assert_eq!(scene.redis.command(&["XINFO", "GROUPS", "events"]), before, "a look joins no group");
    scene.run(&[]).ok().says(&["1,052 rows read, 1,051 written"]);
    assert_eq!(columns(&scene.target), ["id INTEGER", "name TEXT", "score REAL"]);
}

#[test]
fn columns_of_a_topic_are_those_of_all_partitions() {
    let (kafka, lab) = (Kafka::shared(), Lab::new());
    let topic = kafka.topic(3);
    kafka.send(&topic, 0, (0..3_000).map(|id| format!("{{\"id\": {id}}}")));
    kafka.send(&topic, 2, ["{\"id\": 3000, \"name\": \"a\"}"]);
    kafka.send_in_transaction(&topic, 0, &["{\"id\": 3001, \"at\": true}"], true);
    kafka.send_in_transaction(&topic, 0, &["{\"aborted\": true}"], false);
    let read = format!("read: 'kafka://{}/{topic}', kafka: {{group: g}}, json: {{}}", kafka.address());
    lab.file(
        "job.yaml",
        format!("until: now\nsources:\n  s: {{{read}}}\nsinks:\n  o: {{from: s, write: 'sqlite:out.db', table: t}}\n"),
    );
    lab.run(&["run", "job.yaml"]).ok().says(&["3,002 rows read, 3,002 written"]);
    assert_eq!(columns(&in_sqlite(&lab)), ["id INTEGER", "name TEXT", "at BOOLEAN"]);
}

/// A batch job says that there is nothing to see; a service waits for the first message.
#[test]
fn an_empty_queue_has_no_columns() {
    let scene = Scene::new(in_sqlite, "until: stopped\ncommit: {every: 100ms}", "", "");
    undeclared(&scene);
    let running = scene.start("none");
    let job = scene.lab.read("job.yaml");
    scene.lab.file("now.yaml", job.replace("until: stopped", "until: now"));
    let told = ["the columns of", "cannot be inferred: it has no messages now", "declare them in the format"];
    scene.lab.run(&["run", "now.yaml"]).ended(1).says(&told);
    scene.add(0..10);
    let is_made = || !scene.target.query("SELECT name FROM sqlite_master WHERE name = 't'").is_empty();
    until("it begins with the first message", || is_made() && scene.count().0 == 10);
    stop(running);
    let scene = Scene::new(in_sqlite, "until: now", "", "");
    undeclared(&scene);
    scene.add_body("bad");
    scene.run(&[]).ended(1).says(&["cannot be inferred: no message can be read"]);
}
