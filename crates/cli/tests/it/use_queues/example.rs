//! The example of orders that go through a queue, as its README describes it, against a reference computed here.

use std::path::{Path, PathBuf};
use std::process::Command;

use millstream_testkit::{Redis, RedisOptions};
use serde_json::{Value, json};

use crate::use_resume::{Target, in_mariadb};
use crate::use_support::{Lab, Ran, finish};

/// Four thousand of them are orders, of which one is bad in each of the four ways.
const RECORDS: &str = "12000";

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/json-queue-mysql")
}

struct Scene {
    lab: Lab,
    redis: Redis,
    target: Target,
}

impl Scene {
    /// The records, an empty Redis and an empty database.
    fn new() -> Self {
        let lab = Lab::new();
        let (script, folder) = (example().join("records.py"), lab.0.folder("records"));
        let made = Command::new("python3").arg(script).arg(folder).arg(RECORDS).status().expect("python3 is there");
        assert!(made.success());
        let target = in_mariadb(&lab);
        Scene { lab, redis: Redis::start(RedisOptions::default()), target }
    }

    /// Runs one of the jobs, with more settings.
    fn run(&self, job: &str, settings: &[(&str, &str)]) -> Ran {
        let mut command = self.lab.command(&["run", &example().join(job).to_string_lossy()]);
        command.env("FOLDER", self.lab.path("records")).env("QUEUE", self.redis.url()).env("TARGET", self.target.url());
        command.envs(settings.iter().copied());
        finish(command, None)
    }

    /// The good orders in the order of the files, with those that are there twice.
    fn orders(&self) -> Vec<Value> {
        let texts = (0..4).map(|part| self.lab.read(&format!("records/part-{part:02}.jsonl")));
        let records = texts.flat_map(|text| {
            text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).collect::<Vec<_>>()
        });
        let is_good = |record: &Value| {
            let total = record["total"].as_str().and_then(|total| total.parse::<f64>().ok());
            record["type"] == "order" && record["id"].is_u64() && total.is_some_and(|total| total >= 0.0)
        };
        records.filter(is_good).collect()
    }

    /// The rows of a table, in the order of their ids.
    fn rows(&self, table: &str) -> Vec<String> {
        let time = "date_format(ordered, '%Y-%m-%dT%H:%i:%sZ')";
        self.target.query(&format!("SELECT id, {time}, customer, country, items, total FROM {table} ORDER BY id"))
    }

    /// What these rows are to be: each order once.
    fn expected(&self) -> Vec<String> {
        let mut orders: Vec<Value> = self.orders().iter().map(repackaged).collect();
        let sent = orders.len();
        orders.dedup();
        assert_eq!((sent, orders.len()), (4036, 3996), "some are there twice");
        let columns = ["id", "ordered", "customer", "country", "items", "total"];
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        orders.iter().map(|order| columns.map(|column| text(&order[column])).join("\t")).collect()
    }
}

/// An order as the table has it.
fn repackaged(order: &Value) -> Value {
    json!({
        "id": order["id"],
        "ordered": order["at"],
        "customer": order["customer"]["name"],
        "country": order["customer"]["country"],
        "items": order["items"].as_array().map(Vec::len),
        "total": order["total"],
    })
}

#[test]
fn orders_in_one() {
    let scene = Scene::new();
    scene.run("files-to-table.yaml", &[]).ok().says(&["4,036 rows offered", "40 rows left out", "4 rejected"]);
    assert_eq!(scene.rows("orders"), scene.expected());
    scene.run("files-to-table.yaml", &[]).ok().says(&["4,036 rows left out as duplicates"]);
    assert_eq!(scene.rows("orders"), scene.expected());
}

#[test]
fn orders_in_two_halves() {
    let scene = Scene::new();
    scene.run("files-to-stream.yaml", &[]).ok().says(&["4,036 written", "4 rejected"]);
    assert_eq!(scene.redis.command(&["XLEN", "orders"]), "4036");
    scene.run("stream-to-table.yaml", &[]).ok().says(&["4,036 rows read"]);
    assert_eq!(scene.rows("orders"), scene.expected());
    scene.run("stream-to-table.yaml", &[]).ok().says(&["0 rows read"]);
    // The loop of the README over sizes of commits: each size has a group and a table of its own.
    for rows in ["100", "1000"] {
        let (group, table) = (format!("load-{rows}"), format!("orders_{rows}"));
        let settings = [("ROWS", rows), ("GROUP", &group), ("TABLE", &table)];
        scene.run("stream-to-table.yaml", &settings).ok().says(&["4,036 rows read"]);
        assert_eq!(scene.rows(&table), scene.expected());
    }
}
