//! A queue whose rows go to several sinks: parsed once, and exactly once into each, whatever dies.

use millstream_testkit::Kafka;
use serde_json::json;

use super::to_queues::{self, CSV, PARTITIONS, from_topic, received, to_topic};
use super::*;

/// The messages go into three tables of two databases.
fn scene(first: fn(&Lab) -> Target, until: &str) -> (Scene, Target) {
    let scene = Scene::new(first, &format!("until: {until}\ncommit: {{rows: 300}}"), ", max_rejects: 100", "");
    let other = in_sqlite(&scene.lab);
    let job = scene.lab.read("job.yaml");
    let source = &job[..job.find("sinks:").expect("it has sinks")];
    scene.lab.file(
        "job.yaml",
        format!(
            "{source}transforms:\n  named: {{sql: 'SELECT id, upper(name) AS name FROM events'}}\n  \
             tenth: {{sql: 'SELECT id FROM named WHERE id % 10 = 0'}}\nsinks:\n  \
             o: {{from: named, write: '{}', table: t}}\n  tenth: {{from: tenth, write: '{}', table: tenth}}\n  \
             raw: {{from: events, write: '{}', table: raw}}\n",
            scene.target.url(),
            scene.target.url(),
            other.url(),
        ),
    );
    (scene, other)
}

#[test]
fn each_sink_gets_each_row_once() {
    for first in [in_mariadb, in_postgres] {
        let (scene, other) = scene(first, "{empty: 1s}");
        let mut all = 0;
        let kills = ["commit.before:2", "commit.after:3", "commit.after:4", "epoch.committed:2", "commit.after"];
        for (number, kill) in kills.iter().enumerate() {
            scene.add(all..all + 1_000);
            scene.add_body(&format!("bad {number}"));
            all += 1_000;
            let status = scene.start(kill).wait().expect("it ends");
            assert_eq!(status.signal(), Some(9), "{kill}");
        }
        scene.run(&[]).ok();
        assert_eq!(scene.count(), (all, all));
        let rows = |target: &Target, query: &str| target.query(query).concat();
        let tenth = rows(&scene.target, "SELECT count(*), count(DISTINCT id), sum(id % 10) FROM tenth");
        assert_eq!(tenth, format!("{0}\t{0}\t0", all / 10));
        assert_eq!(rows(&scene.target, "SELECT name FROM t WHERE id = 7"), "ROW 7");
        let raw = rows(&other, "SELECT count(*), count(DISTINCT id), count(DISTINCT _id) FROM raw");
        assert_eq!(raw, format!("{all}\t{all}\t{all}"));
        assert!(scene.pending().starts_with('0'), "{}", scene.pending());
        assert_eq!(rejected(&scene.lab).len(), kills.len());
    }
}

/// What is bad, and what comes again for one of the sinks, counts once.
#[test]
fn rows_are_counted_once_for_all_sinks() {
    let (scene, _) = scene(in_mariadb, "{empty: 3s}");
    let explained = scene.lab.run(&["explain", "job.yaml"]);
    let guarantee = "epoch by epoch, exactly once: its positions move in the transaction of the rows";
    assert_eq!(explained.ok().stdout.matches(guarantee).count(), 3);
    scene.add(0..100);
    (0..3).for_each(|_| scene.add_body("bad"));
    let report = scene.lab.report(&[]);
    assert_eq!((&report["rows_read"], &report["rows_rejected"]), (&json!(103), &json!(3)), "{report}");
    let results = report["results"].as_array().expect("a list");
    let written: Vec<_> = results.iter().map(|result| result["tally"]["written"].clone()).collect();
    assert_eq!(written, [json!(100), json!(10), json!(100)]);
}

#[test]
fn what_is_counted_row_by_row_is_not_shared() {
    let (scene, _) = scene(in_sqlite, "now");
    let job = scene
        .lab
        .read("job.yaml")
        .replace("FROM events'}", "FROM events', max_rejects: 5, checks: [{not_null: [id], severity: reject}]}");
    scene.lab.file("job.yaml", job);
    scene.run(&[]).ended(2).says(&["`named` has several consumers, and rows are checked on the way to it"]);
}

/// A table, files and another topic each have every message once, whichever of them has committed when the run dies.
#[test]
fn sinks_of_all_kinds_get_each_message_once() {
    let (kafka, lab) = (Kafka::shared(), Lab::new());
    let (first, second) = (kafka.topic(PARTITIONS), kafka.topic(PARTITIONS));
    to_queues::rows(&lab, "rows.csv", 0..6_000);
    to_queues::job(&lab, "", CSV, &to_topic(kafka, &first));
    to_queues::run(&lab).ok();
    let head = "until: {empty: 8s}\ncommit: {rows: 500}";
    to_queues::job(&lab, head, &from_topic(kafka, &first), "write: 'sqlite:out.db', table: t");
    let more = format!("  files: {{from: s, write: out/a.csv}}\n  copy: {{from: s, {}}}\n", to_topic(kafka, &second));
    lab.file("job.yaml", lab.read("job.yaml") + &more);
    for kill in ["commit.before:3", "commit.after:2", "transaction.sent:3", "commit.after:8", "epoch.committed:2"] {
        to_queues::killed(&lab, kill);
    }
    to_queues::run(&lab).ok();
    let table = in_sqlite(&lab).query("SELECT count(*), count(DISTINCT id) FROM t").concat();
    assert_eq!(table, "6000\t6000");
    let copied = received(kafka, &second);
    to_queues::assert_complete(&copied, 6_000);
    assert_eq!(copied.len(), 6_000, "some are there twice");
    let files = fs_err::read_dir(lab.path("out")).expect("a folder").map(|file| file.expect("a file").path());
    let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "csv"));
    let texts: Vec<String> = files.map(|path| fs_err::read_to_string(path).expect("text")).collect();
    let lines = texts.iter().flat_map(|text| text.lines().skip(1)).filter_map(|line| line.split(',').next());
    let mut ids: Vec<usize> = lines.map(|id| id.parse().expect("a number")).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..6_000).collect::<Vec<_>>());
}
