//! Large files that workers read by ranges: with few bytes of a range in place of large files.

use std::fmt::Write as _;
use std::process::Command;

use serde_json::Value;

use super::{Cluster, Process, RECORDS, cluster_of, counts, mariadb, postgres, records};
use crate::use_databases::Database;
use crate::use_support::{Ran, finish, gunzip, names, zip_of};

/// Records of the one file that is read by ranges: 60 times those of others.
const TIMES: usize = 60;

/// Its name, what the source says of it, whether a filter looks for text, and what the file has.
struct Large {
    file: &'static str,
    settings: &'static str,
    bytes: fn() -> Vec<u8>,
}

const LARGE: [Large; 5] = [
    Large { file: "a.jsonl", settings: "max_rejects: 1000", bytes: json },
    Large { file: "a.log", settings: "lines: {}", bytes: plain },
    Large {
        file: "a.tsv",
        settings: "csv: {delimiter: \"\\t\", quote: none, columns: {id: int64, name: utf8, v: int64}}, \
                   max_rejects: 1000",
        bytes: table,
    },
    Large {
        file: "a.zip",
        settings: "members: '**/*.csv', csv: {header: false, columns: {id: int64, name: utf8, v: int64}}, \
                   max_rejects: 1000",
        bytes: archive,
    },
    Large { file: "a.parquet", settings: "max_rejects: 1000", bytes: Vec::new },
];

fn rows(bad: bool) -> impl Iterator<Item = [String; 3]> {
    let all: String = (0..TIMES).map(|file| records(file, bad)).collect();
    let all: Vec<String> = all.lines().map(str::to_owned).collect();
    all.into_iter().map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>().try_into().expect("three fields"))
}

fn json() -> Vec<u8> {
    let mut text = String::new();
    for [id, name, v] in rows(true) {
        // A record that is longer than a range, and one that is no object.
        let more = if id == "7001" { "x".repeat(30_000) } else { String::new() };
        let v = if v == "no number" { "]".to_owned() } else { v };
        // Blanks stand between the beginning of a line and the place of its record.
        let blanks = " ".repeat(id.len() * id.bytes().map(|digit| usize::from(digit - b'0')).sum::<usize>() % 50);
        let _ = writeln!(text, r#"{blanks}{{"id": {id}, "name": "{name} \"é\"", "v": {v}, "more": "{more}"}}"#);
    }
    // No line end behind the last record.
    text.trim_end().as_bytes().to_vec()
}

fn plain() -> Vec<u8> {
    rows(false).fold(String::new(), |text, [id, name, v]| format!("{text}{id}\t{name}\r\n\n{v}\n")).into_bytes()
}

fn table() -> Vec<u8> {
    let header = "id\tname\tv\n".to_owned();
    rows(true).fold(header, |text, [id, name, v]| format!("{text}{id}\t\"{name}\t{v}\n")).into_bytes()
}

/// One whose members are packed badly: parts of it have a MiB or more.
fn archive() -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(7);
    let noise = |random: &mut fastrand::Rng| (0..190).map(|_| random.alphanumeric()).collect::<String>();
    let members: Vec<(String, Vec<u8>)> = (0..TIMES)
        .map(|file| {
            let text = records(file, true);
            let text = text.lines().fold(String::new(), |text, line| {
                let [id, _, v] = line.split(',').collect::<Vec<_>>().try_into().expect("three fields");
                format!("{text}{id},{},{v}\n", noise(&mut random))
            });
            (format!("{file:02}/a.csv"), text.into_bytes())
        })
        .collect();
    let members: Vec<(&str, &[u8])> = members.iter().map(|(name, text)| (name.as_str(), text.as_slice())).collect();
    zip_of(&members)
}

impl Large {
    /// How many bytes a range has.
    fn range_bytes(&self) -> &'static str {
        match self.file {
            "a.zip" => "1000000",
            "a.parquet" => "30000",
            _ => "20000",
        }
    }

    /// A cluster whose job reads the file alone into `sink`.
    fn cluster(&self, sink: &str, database: Option<Database>) -> Cluster {
        let filter = if self.file == "a.log" { "length(line) > 1" } else { "v > 0 OR name LIKE '%9'" };
        let cluster = Cluster::with_job("", 0, "");
        let source = format!("s: {{read: 'in/{}', {}}}", self.file, self.settings);
        cluster.lab.0.folder("out");
        cluster.lab.file(
            "job.yaml",
            format!(
                "sources: {{{source}}}\ntransforms: {{kept: {{filter: {{from: s, where: \"{filter}\"}}}}}}\nsinks: \
                 {{out: {{from: kept, {sink}}}}}\n"
            ),
        );
        match self.file {
            "a.parquet" => {
                cluster.lab.file(
                    "from.csv",
                    rows(false).fold("id,name,v\n".to_owned(), |text, row| text + &row.join(",") + "\n"),
                );
                let write = "sources: {s: {read: from.csv}}\nsinks: {o: {from: s, write: in/a.parquet, parquet: \
                             {row_group_rows: 700}}}\n";
                cluster.lab.0.folder("in");
                cluster.lab.file("write.yaml", write);
                cluster.lab.run(&["run", "write.yaml"]).ok();
            }
            _ => drop(cluster.lab.file(&format!("in/{}", self.file), (self.bytes)())),
        }
        Cluster { database, ..cluster }
    }

    fn coordinator(&self, cluster: &Cluster, more: &[&str]) -> Command {
        let mut command = cluster.coordinator(more);
        command.env("MILLSTREAM_RANGE_BYTES", self.range_bytes());
        command
    }

    fn run(&self, cluster: &Cluster) -> Ran {
        finish(self.coordinator(cluster, &["--cluster=always", "--restart"]), None)
    }
}

/// What is known of each reject but its line, which is not known behind the beginning of a text.
fn rejects(cluster: &Cluster) -> Vec<String> {
    let all = cluster.lab.run(&["rejects", "--json"]).ok().json();
    let all = all["rejects"].as_array().expect("a list").clone();
    let of = |one: &Value| ["byte", "member", "raw", "column"].map(|key| one[key].to_string()).join(" ");
    let mut all: Vec<String> = all.iter().map(of).collect();
    all.sort();
    all
}

/// The sum of the counts `key` of all workers.
fn read_by_workers(report: &Value, key: &str) -> u64 {
    cluster_of(report).iter().map(|worker| worker[key].as_u64().expect("a count")).sum()
}

fn several_read_one_file(report: &Value) {
    assert_eq!(read_by_workers(report, "units"), 1, "it is one file: {report:#}");
    assert!(read_by_workers(report, "bundles") >= 4, "{report:#}");
    let workers = cluster_of(report);
    assert!(workers.iter().all(|worker| worker["rows"].as_u64() > Some(0)), "{report:#}");
    assert_eq!(report["cluster"]["units"], serde_json::json!([1, 1]), "{report:#}");
}

fn each_is_loaded_as_by_one_process(database: fn() -> Database) {
    for large in LARGE {
        let database = database();
        let sink = format!("write: '{}', table: t", database.url);
        let mut cluster = large.cluster(&sink, Some(database));
        let taken = |cluster: &Cluster| {
            let mut rows = cluster.database().query("SELECT * FROM t");
            rows.sort();
            cluster.database().query("DROP TABLE t");
            assert!(cluster.database().tables().is_empty(), "{:?}", cluster.database().tables());
            rows
        };
        let alone = cluster.lab.run(&["run", "job.yaml", "--json"]).ok().json();
        let alone = (counts(&alone), alone["results"][0]["tally"].clone(), rejects(&cluster), taken(&cluster));
        let _workers = [cluster.worker(&[]), cluster.worker(&[])];
        let report = large.run(&cluster).ok().json();
        let found = (counts(&report), report["results"][0]["tally"].clone(), rejects(&cluster), taken(&cluster));
        assert!(found == alone, "{}: {:?} {} instead of {:?} {}", large.file, found.0, found.1, alone.0, alone.1);
        several_read_one_file(&report);
    }
}

#[test]
fn a_large_file_is_loaded_into_mariadb_as_by_one_process() {
    each_is_loaded_as_by_one_process(mariadb);
}

#[test]
fn a_large_file_is_loaded_into_postgresql_as_by_one_process() {
    each_is_loaded_as_by_one_process(postgres);
}

/// The lines of all files that were written, in order.
fn written(cluster: &Cluster) -> Vec<String> {
    let out = cluster.lab.path("out");
    let shown = names(&out).into_iter().filter(|name| !name.starts_with('.'));
    let text: String = shown.map(|name| gunzip(&fs_err::read(out.join(name)).expect("a file"))).collect();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn a_large_file_is_written_as_by_one_process() {
    for large in LARGE {
        let mut cluster = large.cluster("write: 'out/a.jsonl.gz', roll: {bytes: 40kB}, mode: replace", None);
        let alone = cluster.lab.run(&["run", "job.yaml", "--json"]).ok().json();
        let alone = (counts(&alone), alone["results"][0]["tally"].clone(), rejects(&cluster), written(&cluster));
        let _workers = [cluster.worker(&[]), cluster.worker(&[])];
        let report = large.run(&cluster).ok().json();
        let found = (counts(&report), report["results"][0]["tally"].clone(), rejects(&cluster), written(&cluster));
        assert!(found == alone, "{}: {:?} {} instead of {:?} {}", large.file, found.0, found.1, alone.0, alone.1);
        several_read_one_file(&report);
    }
}

/// Slow enough that workers are killed while they read.
fn slow(cluster: &Cluster) {
    let slow =
        "import time\n\ndef slow(row):\n    if row['id'] % 10 == 0:\n        time.sleep(0.005)\n    return {'w': 1}\n";
    cluster.lab.file("slow.py", slow);
    let map = "transforms: {kept: {map: {from: s, python: 'slow.py:slow', columns: {w: int64}, keep: [id], \
               deterministic: true}}}\nsinks:";
    let job = cluster.lab.read("job.yaml");
    let (before, after) = job.split_once("transforms:").expect("transforms");
    let (_, sinks) = after.split_once("sinks:").expect("sinks");
    cluster.lab.file("job.yaml", format!("{before}{map}{sinks}"));
}

/// What no worker has done of it the run reads itself; and a worker that is killed leaves nothing out.
#[test]
fn what_is_left_of_a_large_file_is_read_once() {
    for (into_files, all_die) in [(false, true), (true, true), (false, false)] {
        let large = &LARGE[2];
        let database = (!into_files).then(postgres);
        let sink = match &database {
            None => "write: 'out/a.jsonl.gz', roll: {bytes: 4kB}".to_owned(),
            Some(database) => format!("write: '{}', table: t", database.url),
        };
        let mut cluster = large.cluster(&sink, database);
        slow(&cluster);
        let mut workers: Vec<Process> = vec![cluster.worker(&[]), cluster.worker(&[])];
        let coordinator = large.coordinator(&cluster, &["--wait-for-workers", "1s", "--verbose"]);
        let running = std::thread::spawn(move || finish(coordinator, None));
        match into_files {
            true => std::thread::sleep(std::time::Duration::from_secs(3)),
            false => cluster.until_rows(1),
        }
        workers[0].kill();
        if all_die {
            workers[1].kill();
        }
        let ran = running.join().expect("it has ended");
        let report = ran.ok().json();
        assert!(cluster_of(&report).iter().any(|worker| worker["lost"].is_string()), "{report:#}");
        let all = (TIMES * RECORDS) as u64;
        assert_eq!(counts(&report), [all, all - TIMES as u64, TIMES as u64], "{report:#}");
        let ids: Vec<String> = match into_files {
            true => written(&cluster),
            false => cluster.database().query("SELECT id FROM t"),
        };
        let distinct: std::collections::BTreeSet<&String> = ids.iter().collect();
        assert_eq!((ids.len(), distinct.len()), (TIMES * (RECORDS - 1), TIMES * (RECORDS - 1)), "{report:#}");
    }
}

/// A coordinator is killed when some ranges are written: the others go to workers again.
#[test]
fn a_large_file_that_has_begun_is_resumed_by_workers() {
    for database in Database::both() {
        let large = &LARGE[2];
        let sink = format!("write: '{}', table: t", database.url);
        let mut cluster = large.cluster(&sink, Some(database));
        slow(&cluster);
        let _workers = [cluster.worker(&[]), cluster.worker(&[])];
        let mut coordinator = large.coordinator(&cluster, &["--cluster=always"]);
        coordinator.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let mut coordinator = Process(coordinator.spawn().expect("it starts"));
        cluster.until_rows(1);
        coordinator.kill();
        let report = finish(large.coordinator(&cluster, &["--cluster=always", "--resume"]), None).ok().json();
        several_read_one_file(&report);
        let all = TIMES * (RECORDS - 1);
        let ids = cluster.database().query("SELECT id FROM t");
        let distinct: std::collections::BTreeSet<&String> = ids.iter().collect();
        assert_eq!((ids.len(), distinct.len()), (all, all), "{report:#}");
        assert_eq!(rejects(&cluster).len(), TIMES);
    }
}

#[test]
fn lines_of_large_files_are_counted_by_ranges() {
    let mut cluster = Cluster::with_job("", 0, "");
    for large in &LARGE[..4] {
        cluster.lab.file(&format!("in/{}", large.file), (large.bytes)());
    }
    cluster.lab.file("in/none.txt", "");
    let _workers = [cluster.worker(&[]), cluster.worker(&[])];
    let count = |cluster: &Cluster, more: &[&str]| {
        let all = ["count", "in/a.jsonl", "in/a.log", "in/a.tsv", "in/a.zip", "--by-unit"];
        let all: Vec<&str> = all.iter().chain(more).copied().collect();
        let mut command = cluster.in_beats(cluster.lab.command(&all));
        command.env("MILLSTREAM_RANGE_BYTES", "20000");
        let ran = finish(command, None);
        let mut lines: Vec<String> = ran.ok().stdout.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let address = cluster.address.clone();
    let alone = count(&cluster, &[]);
    assert_eq!(count(&cluster, &["--cluster=always", "--shared", "in", "--listen", &address]), alone);
    assert_eq!(alone.len(), 4, "{alone:?}");
}

/// What is noted of a file that has changed, or was forgotten, has other names in the ledger than a worker gives it.
#[test]
fn what_the_ledger_knows_by_another_name_is_loaded_once() {
    for database in Database::both() {
        let mut cluster = Cluster::new(database, 3, ", incremental: true");
        let _workers = [cluster.worker(&[]), cluster.worker(&[])];
        let load = |cluster: &Cluster, more: &[&str]| {
            let own = ["--cluster=always"];
            finish(cluster.coordinator(&own.iter().chain(more).copied().collect::<Vec<_>>()), None).ok().json()
        };
        load(&cluster, &[]);
        let grown: String = [records(1, false), records(3, false)].concat();
        cluster.lab.file("in/001.csv.gz", crate::use_support::gzip(grown.as_bytes()));
        assert_eq!(read_by_workers(&load(&cluster, &["--accept-changed"]), "units"), 1);
        let expected = |ids: &[std::ops::Range<usize>]| {
            let all = ids.iter().cloned().flatten().filter(|id| id % 7 > 0);
            let (count, sum) = all.fold((0, 0), |(count, sum), id| (count + 1, sum + id));
            format!("{count}\t{sum}")
        };
        let found = |cluster: &Cluster| cluster.database().query("SELECT COUNT(*), SUM(id) FROM t").concat();
        let once = [0..3 * RECORDS, RECORDS..2 * RECORDS, 3 * RECORDS..4 * RECORDS];
        assert_eq!(found(&cluster), expected(&once));
        cluster.lab.run(&["forget", "job.yaml", "in/002.csv.gz"]).ok();
        assert_eq!(read_by_workers(&load(&cluster, &[]), "units"), 1);
        let mut twice = once.to_vec();
        twice.push(2 * RECORDS..3 * RECORDS);
        assert_eq!(found(&cluster), expected(&twice));
    }
}
