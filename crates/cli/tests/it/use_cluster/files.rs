//! Jobs whose rows workers write into files, which the run publishes together.

use millstream_testkit::{KEY, S3Server, SECRET, TempTree};
use serde_json::Value;

use super::{Cluster, Process, RECORDS, cluster_of, counts, job_into, written};
use crate::use_support::{Ran, finish, gunzip, names, sqlite};

/// One whose job writes into `sink`.
pub fn cluster(sink: &str, files: usize, more: &str) -> Cluster {
    let cluster = Cluster::with_job(&job_into(sink, more), files, more);
    cluster.lab.0.folder("out");
    cluster
}

impl Cluster {
    /// Asserts that each record is a line of `out/*.jsonl.gz` once, but for those that the job leaves out or rejects,
    /// and that there is nothing else.
    pub fn has_all_in_files(&self, files: usize, bad: bool) {
        let out = self.lab.path("out");
        let (hidden, shown): (Vec<String>, Vec<String>) =
            names(&out).into_iter().partition(|name| name.starts_with('.'));
        assert_eq!(hidden, [".a.jsonl.gz.millstream.json"]);
        let text: String = shown.iter().map(|name| gunzip(&fs_err::read(out.join(name)).expect("a file"))).collect();
        let id = |line: &str| serde_json::from_str::<Value>(line).expect("an object")["id"].as_u64().expect("an id");
        let mut found: Vec<u64> = text.lines().map(id).collect();
        found.sort_unstable();
        let all = (0..files * RECORDS).filter(|id| id % 7 > 0 && !(bad && id % RECORDS == 77)).map(|id| id as u64);
        assert!(found == all.collect::<Vec<_>>(), "{} rows in {} files", found.len(), shown.len());
    }

    fn to_files(&self, more: &[&str]) -> Ran {
        let own = ["--shared", "out", "--cluster=always"];
        finish(self.coordinator(&own.iter().chain(more).copied().collect::<Vec<_>>()), None)
    }

    /// What is in all files of the folder `out`.
    fn sums(&self, pattern: &str) -> Vec<String> {
        let back = format!(
            "sources:\n  s: {{read: 'out/{pattern}'}}\ntransforms:\n  t: {{sql: 'select count(*) as n, \
             count(distinct id) as ids, sum(id) as total, sum(v) as v, max(name) as last from s'}}\nsinks:\n  \
             o: {{from: t, write: 'sqlite:back.db', table: t, mode: replace}}\n"
        );
        self.lab.file("back.yaml", back);
        self.lab.run(&["run", "back.yaml"]).ok();
        sqlite(&self.lab.path("back.db"), "select * from t").concat()
    }
}

#[test]
fn workers_write_what_one_process_writes() {
    let sinks = [
        ("write: 'out/a.jsonl.gz', roll: {bytes: 4kB}", "*.jsonl.gz"),
        ("write: 'out/{value}/a.csv', split: 'v % 2', mode: replace, roll: {bytes: 2kB}", "*/*.csv"),
        ("write: 'out/a.parquet', shards: {count: 2, mod: id}, roll: {bytes: 10kB}", "*.parquet"),
    ];
    for (sink, pattern) in sinks {
        let mut cluster = cluster(sink, 16, ", max_rejects: 100");
        let ran = cluster.lab.run(&["run", "job.yaml", "--json"]);
        let alone = (counts(&ran.ok().json()), cluster.sums(pattern));
        let mut workers: Vec<Process> = Vec::new();
        for count in [1, 2, 5] {
            while workers.len() < count {
                workers.push(cluster.worker(&[]));
            }
            let report = cluster.to_files(&[]).ok().json();
            let rejects = cluster.lab.run(&["rejects", "--json"]);
            assert_eq!(rejects.ok().json()["rejects"].as_array().map(Vec::len), Some(16));
            assert_eq!((counts(&report), cluster.sums(pattern)), alone, "{sink} with {count}");
            assert_eq!(report["results"][0]["tally"]["filtered"], 16 * RECORDS as u64 - 16 - written(16), "{report:#}");
            let count_of = |worker: &Value, key: &str| worker[key].as_u64().expect("a count");
            let sum = |key: &str| cluster_of(&report).iter().map(|worker| count_of(worker, key)).sum::<u64>();
            assert_eq!([sum("units"), sum("rows")], [16, written(16)], "{report:#}");
            assert!(!names(&cluster.lab.path("out")).iter().any(|name| name.ends_with(".tmp")));
        }
    }
}

/// Of the files that a list names, workers see some. The rows pass a filter that nothing pushes down, and a projection.
#[test]
fn what_workers_cannot_see_is_read_here_and_all_counts_once() {
    let mut cluster = cluster("write: 'out/a.jsonl.gz', roll: {bytes: 4kB}", 20, ", max_rejects: 100");
    let list = (0..20).fold(String::new(), |text, file| {
        if file % 2 == 0 {
            return format!("{text}in/{file:03}.csv.gz\n");
        }
        let (from, to) = (format!("in/{file:03}.csv.gz"), format!("own/{file:03}.csv.gz"));
        fs_err::create_dir_all(cluster.lab.path("own")).expect("made");
        fs_err::rename(cluster.lab.path(&from), cluster.lab.path(&to)).expect("moved");
        format!("{text}{to}\n")
    });
    cluster.lab.file("list.txt", list);
    cluster.lab.file("code.py", "def same(row):\n    return {'w': row['v']}\n");
    let map = "  coded: {map: {from: s, python: 'code.py:same', columns: {w: int64}, keep: [id, name], deterministic: \
               true}}\n";
    let rest = "  some: {filter: {from: coded, where: 'w > 0'}}\n  kept: {select: {from: some, columns: {id: id, name: \
                upper(name), v: w}}}\nsinks:";
    let steps = format!("{map}{rest}");
    let job = cluster.lab.read("job.yaml").replace("'in/*'", "'@list.txt'");
    let job = job.replace("  kept: {filter: {from: s, where: 'v > 0'}}\n", "").replace("sinks:", &steps);
    cluster.lab.file("job.yaml", job);
    let _workers = [cluster.worker(&[]), cluster.worker(&[])];
    let report = cluster.to_files(&[]).ok().json();
    cluster.has_all_in_files(20, true);
    assert_eq!(counts(&report), [20 * RECORDS as u64, written(20), 20], "{report:#}");
    let units = cluster_of(&report).iter().map(|worker| worker["units"].as_u64().expect("a count")).sum::<u64>();
    assert_eq!(units, 10, "{report:#}");
}

#[test]
fn what_is_only_looked_up_in_counts_once() {
    let mut cluster = cluster("write: 'out/a.jsonl.gz', roll: {bytes: 4kB}", 12, ", max_rejects: 100");
    let names = (0..7).fold("v,called\n".to_owned(), |text, v| format!("{text}{v},number {v}\n"));
    cluster.lab.file("in/names/names.csv", format!("{names}x,bad\ny,bad\n"));
    let lookup = "  names: {read: in/names/names.csv, csv: {columns: {v: int64, called: utf8}}, max_rejects: \
                  2}\ntransforms:\n  named: {lookup: {from: kept, in: names, on: [v], take: [called]}}\n";
    let job = cluster.lab.read("job.yaml").replace("'in/*'", "'in/*.gz'").replace("transforms:\n", lookup);
    cluster.lab.file("job.yaml", job.replace("from: kept, write", "from: named, write"));
    let alone = cluster.lab.run(&["run", "job.yaml", "--json"]).ok().json();
    let _workers = [cluster.worker(&[]), cluster.worker(&[])];
    let report = cluster.to_files(&[]).ok().json();
    cluster.has_all_in_files(12, true);
    assert_eq!(counts(&report), counts(&alone), "{report:#}");
    let rejects = cluster.lab.run(&["rejects", "--json"]);
    assert_eq!(rejects.ok().json()["rejects"].as_array().map(Vec::len), Some(14));
}

/// A function takes down the worker, not only itself.
#[test]
fn a_file_that_takes_down_two_workers_ends_the_run_with_its_name() {
    let mut cluster = cluster("write: 'out/a.jsonl.gz', roll: {bytes: 4kB}", 24, "");
    let deadly = "import os, signal\n\ndef deadly(row):\n    if row['id'] == 7 * 500 + 1:\n        \
                  os.kill(os.getppid(), signal.SIGKILL)\n    return {'w': 1}\n";
    cluster.lab.file("deadly.py", deadly);
    let map = "  coded: {map: {from: kept, python: 'deadly.py:deadly', columns: {w: int64}, keep: [id, name, v], \
               deterministic: true}}\nsinks:";
    let job = cluster.lab.read("job.yaml").replace("sinks:", map).replace("from: kept, write", "from: coded, write");
    cluster.lab.file("job.yaml", job);
    let mut workers = [(); 4].map(|()| cluster.worker(&[]));
    let ran = cluster.to_files(&[]);
    ran.ended(1).says(&["two workers were lost while they read this file", "in/007.csv.gz"]);
    let dead = workers.iter_mut().filter_map(|worker| worker.0.try_wait().expect("it is ours")).count();
    assert_eq!(dead, 2, "{}", ran.stderr);
    assert_eq!(names(&cluster.lab.path("out")), Vec::<String>::new());
}

#[test]
fn what_no_worker_has_read_is_written_here() {
    let cluster = cluster("write: 'out/a.jsonl.gz', roll: {bytes: 4kB}", 6, "");
    let ran = finish(cluster.coordinator(&["--shared", "out", "--wait-for-workers", "500ms"]), None);
    ran.ok().says(&["there is no worker: this machine reads what is left"]);
    cluster.has_all_in_files(6, false);
}

#[test]
fn files_of_workers_are_added_and_those_of_a_run_that_fails_are_gone() {
    let mut cluster = cluster("write: 'out/a.jsonl.gz', roll: {bytes: 4kB}, mode: append", 8, ", max_rejects: 7");
    let _workers = [cluster.worker(&[]), cluster.worker(&[])];
    let failed = cluster.to_files(&[]);
    failed.ended(3).says(&["`max_rejects` of `s` allows 7"]);
    assert_eq!(names(&cluster.lab.path("out")), Vec::<String>::new());
    cluster.lab.file("job.yaml", cluster.lab.read("job.yaml").replace("max_rejects: 7", "max_rejects: '1%'"));
    for runs in [1, 2] {
        cluster.to_files(&["--restart"]).ok();
        let sums = cluster.sums("*.jsonl.gz");
        assert_eq!(sums[..2], [(runs * written(8)).to_string(), written(8).to_string()]);
    }
}

#[test]
fn a_worker_that_does_not_see_the_folder_cannot_join_and_says_why() {
    let mut cluster = cluster("", 6, "");
    let out = TempTree::new();
    let folder = out.root().display().to_string();
    let sink = format!("write: '{folder}/a.jsonl.gz', roll: {{bytes: 4kB}}");
    cluster.lab.file("job.yaml", job_into(&sink, ""));
    let _blind = cluster.worker_in(&["--join", &cluster.address.clone()], Some(out.root()));
    let ran = finish(cluster.coordinator(&["--shared", &folder, "--wait-for-workers", "4s"]), None);
    ran.ok().says(&[
        "cannot join",
        "is not to be seen here",
        "is this folder the same one on all machines?",
        "this machine reads what is left",
    ]);
}

#[test]
fn sinks_that_one_machine_has_to_write_say_why() {
    let explained = |sink: &str, more: &str| {
        let cluster = cluster(sink, 2, more);
        cluster.lab.run(&["explain", "--cluster", "job.yaml", "--shared", "in", "--shared", "out", "--json"]).json()
    };
    let why = |sink: &str, more: &str| explained(sink, more)["cluster"]["here"].to_string();
    assert!(why("write: out/a.jsonl", "").contains("`out` is written here: only with `roll: {bytes: …}` can each"));
    let rolled = "write: out/a.jsonl, roll: {bytes: 4kB}";
    assert_eq!(why(rolled, ""), "null");
    assert!(why(&rolled.replace("out/", "far/"), "").contains("workers write into far; if all machines see this"));
    let checked = why(rolled, ", checks: [{rows: {min: 3}}]");
    assert!(checked.contains("a check of `s` looks at all rows"), "{checked}");
    assert!(why(rolled, ", on_error: skip").contains("`on_error: skip` of `s` leaves out files"));
}

#[test]
fn workers_upload_objects_that_the_run_completes() {
    let mut cluster = cluster("", 12, ", max_rejects: 100");
    cluster.lab.0.folder("store/bucket");
    let server = S3Server::start(&cluster.lab.path("store"), true);
    let block = format!(
        "s3: {{endpoint: '{}', allow_http: true, region: us-east-1, max_backoff: 20ms, access_key_id: {KEY}, \
         secret_access_key: {{secret: env:BUCKET_SECRET}}}}",
        server.url()
    );
    let sink = format!("write: 's3://bucket/out/a.csv.gz', roll: {{bytes: 4kB}}, {block}");
    cluster.lab.file("job.yaml", job_into(&sink, ", max_rejects: 100"));
    let _workers = [(); 3].map(|()| cluster.worker_with(("BUCKET_SECRET", SECRET)));
    let mut coordinator = cluster.coordinator(&["--cluster=always"]);
    coordinator.env("BUCKET_SECRET", SECRET);
    let report = finish(coordinator, None).ok().json();
    assert_eq!(counts(&report), [12 * RECORDS as u64, written(12), 12]);
    let objects = names(&cluster.lab.path("store/bucket/out"));
    let shown: Vec<&String> = objects.iter().filter(|name| !name.starts_with('.')).collect();
    // How many bundles there are depends on when workers join.
    assert!(shown.len() > 1 && objects.len() == shown.len() + 1, "{objects:?}");
    let read = |name: &&String| gunzip(&fs_err::read(cluster.lab.path("store/bucket/out").join(name)).expect("a file"));
    let lines: usize = shown.iter().map(|name| read(name).lines().count() - 1).sum();
    assert_eq!(lines as u64, written(12));
    let uploads = names(&cluster.lab.path("store")).into_iter().filter(|name| name.starts_with(".upload")).count();
    assert_eq!(uploads, 0, "each is complete");
}
