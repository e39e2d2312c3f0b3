//! Rounds in which workers and coordinators are killed, stopped and cut off, by seeds. In the end each record is a row
//! once, and each bad one a reject. With `MILLSTREAM_CLUSTER_ROUNDS=1000` there are so many rounds for each database.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use millstream_testkit::Proxy;
use rustix::process::Signal;

use super::{Cluster, Process, RECORDS, cluster_of, mariadb, postgres, records, written};
use crate::use_support::finish;

/// Files of a round.
const FILES: usize = 24;

/// So many of them are one file, which is read by ranges.
const IN_ONE: usize = 8;

/// Workers of a round.
const WORKERS: usize = 3;

fn rounds() -> u64 {
    std::env::var("MILLSTREAM_CLUSTER_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(5)
}

/// What happens in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blow {
    /// A worker is killed, and another one comes.
    KillWorker,
    /// A worker stands still for longer than it is waited for.
    StopWorker,
    /// The connections of a worker to the coordinator are cut.
    Cut,
    /// The coordinator is killed, and the run is resumed.
    KillCoordinator,
}

const BLOWS: [Blow; 4] = [Blow::KillWorker, Blow::StopWorker, Blow::Cut, Blow::KillCoordinator];

const MORE: &str = ", max_rejects: 1000";

#[test]
fn whatever_dies_each_record_is_in_postgresql_once() {
    (0..rounds()).for_each(|seed| round(Cluster::new(postgres(), FILES, MORE), seed));
}

#[test]
fn whatever_dies_each_record_is_in_mariadb_once() {
    (0..rounds()).for_each(|seed| round(Cluster::new(mariadb(), FILES, MORE), seed + 1_000_000));
}

#[test]
fn whatever_dies_each_record_is_in_the_files_once() {
    (0..rounds()).for_each(|seed| round(super::files::cluster(ROLLED, FILES, MORE), seed + 2_000_000));
}

/// A row is refused by the target, all die before the commit, and when the run is resumed nothing is wrong with it.
#[test]
fn a_reject_that_was_not_committed_does_not_stay() {
    let database = postgres();
    let url = format!("write: '{}', table: t, max_rejects: 5", database.url);
    let job = super::job_into(&url, "").replace("v > 0", "id > 0");
    let mut cluster = Cluster { database: Some(database), ..Cluster::with_job(&job, 0, "") };
    cluster.lab.file("in/a.csv", (1..=9).map(|id| format!("{id},name,{id}\n")).collect::<String>());
    for statement in [
        "CREATE TABLE p (id BIGINT PRIMARY KEY)",
        "CREATE TABLE t (id BIGINT REFERENCES p, name TEXT, v BIGINT)",
        "INSERT INTO p SELECT * FROM generate_series(1, 8)",
    ] {
        cluster.database().query(statement);
    }
    let log = fs_err::File::create(cluster.lab.path("coordinator.log")).expect("a log").into_parts().0;
    let mut coordinator = cluster.coordinator(&["--cluster=always"]);
    let mut coordinator =
        Process(coordinator.stdout(std::process::Stdio::null()).stderr(log).spawn().expect("it starts"));
    let mut dying = cluster.worker_with(("MILLSTREAM_FAIL_AT", "commit.before"));
    assert!(!dying.ends(), "it is killed when it commits: {}", cluster.lab.read("worker-0.log"));
    coordinator.kill();
    assert_eq!(cluster.database().query("SELECT COUNT(*) FROM t"), ["0"]);
    cluster.database().query("INSERT INTO p VALUES (9)");
    let _worker = cluster.worker(&[]);
    let report = finish(cluster.coordinator(&["--cluster=always", "--resume"]), None).ok().json();
    assert_eq!(cluster.database().query("SELECT COUNT(*) FROM t"), ["9"], "{report:#}");
    assert_eq!(report["rows_rejected"], 0, "{report:#}");
    let rejects = cluster.lab.run(&["rejects", "--json"]).ok().json();
    assert_eq!(rejects["rejects"], serde_json::json!([]), "{report:#}");
}

/// Files of which each bundle makes some.
const ROLLED: &str = "write: 'out/a.jsonl.gz', roll: {bytes: 4kB}";

/// A worker of a round, and the way that its connections take.
struct Member {
    process: Process,
    proxy: Proxy,
    /// When it is to go on, if it stands still.
    stopped: Option<Instant>,
}

impl Member {
    fn new(cluster: &mut Cluster) -> Self {
        let port = cluster.address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("a port");
        let proxy = Proxy::start(port, &[]);
        let join = format!("127.0.0.1:{}", proxy.port());
        let process = cluster.worker_in(&["--join", &join], None);
        Member { process, proxy, stopped: None }
    }

    fn go_on(&mut self) {
        if self.stopped.take_if(|until| *until <= Instant::now()).is_some() {
            self.process.signal(Signal::CONT);
        }
    }
}

fn round(mut cluster: Cluster, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    // Slow enough that something is under way when it is hit.
    cluster.lab.file("slow.py", "import time\n\ndef slow(row):\n    time.sleep(0.001)\n    return {'w': 1}\n");
    let slow = "  slow: {map: {from: kept, python: 'slow.py:slow', columns: {w: int64}, keep: [id, name, v], \
                deterministic: true, workers: 1}}\nsinks:";
    let job = cluster.lab.read("job.yaml").replace("sinks:", slow).replace("from: kept, write", "from: slow, write");
    let job = job.replace("header: false,", "header: false, quote: none,");
    let one = FILES - IN_ONE..FILES;
    cluster.lab.file("in/one.csv", one.clone().map(|file| records(file, true)).collect::<String>());
    one.for_each(|file| fs_err::remove_file(cluster.lab.path(&format!("in/{file:03}.csv.gz"))).expect("it is there"));
    cluster.lab.file("job.yaml", job);
    let mut members: Vec<Member> = (0..WORKERS).map(|_| Member::new(&mut cluster)).collect();
    let (mut resumed, mut blows, mut hit) = (false, random.u32(1..4), Vec::new());
    let (mut resumes, began) = (0, Instant::now());
    loop {
        let more: &[&str] = if resumed { &["--resume"] } else { &[] };
        let mut coordinator = cluster.coordinator(&[more, &["--wait-for-workers", "60s"]].concat());
        coordinator.env("MILLSTREAM_RANGE_BYTES", "8000");
        let log = fs_err::File::create(cluster.lab.path("coordinator.log")).expect("a log").into_parts().0;
        coordinator.stdout(std::process::Stdio::null()).stderr(log);
        let mut coordinator = Process(coordinator.spawn().expect("it starts"));
        let mut next = Instant::now() + Duration::from_millis(random.u64(300..2_500));
        let ended = loop {
            assert!(began.elapsed() < Duration::from_secs(240), "seed {seed} hangs after {hit:?}");
            if let Some(status) = coordinator.0.try_wait().expect("it is ours") {
                break status.success();
            }
            members.iter_mut().for_each(Member::go_on);
            if blows > 0 && Instant::now() >= next {
                blows -= 1;
                next = Instant::now() + Duration::from_millis(random.u64(300..2_500));
                let (blow, which) = (BLOWS[random.usize(0..BLOWS.len())], random.usize(0..members.len()));
                hit.push(blow);
                match blow {
                    Blow::KillWorker => members[which] = Member::new(&mut cluster),
                    Blow::StopWorker => {
                        members[which].process.signal(Signal::STOP);
                        members[which].stopped = Some(Instant::now() + Duration::from_millis(random.u64(1_500..4_000)));
                    }
                    Blow::Cut => members[which].proxy.close_all(),
                    Blow::KillCoordinator => {
                        coordinator.kill();
                        break false;
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        if ended {
            break;
        }
        let said = cluster.lab.read("coordinator.log");
        // By chance, two workers may be hit over the same file.
        let lost = hit.iter().filter(|blow| matches!(blow, Blow::KillWorker | Blow::StopWorker)).count();
        let is_deadly = lost > 1 && said.contains("two workers were lost while they read this file");
        let was_killed = hit.last() == Some(&Blow::KillCoordinator);
        assert!(is_deadly || was_killed, "seed {seed} fails after {hit:?}: {said}");
        resumes += 1;
        assert!(resumes < 10, "seed {seed} fails again and again after {hit:?}");
        resumed = true;
    }
    println!("seed {seed}: {hit:?} in {:?}", began.elapsed());
    match cluster.database {
        Some(_) => cluster.has_all(FILES, true),
        None => cluster.has_all_in_files(FILES, true),
    }
    let report = cluster.lab.run(&["rejects", "--json"]);
    let rejects = report.ok().json();
    let places = rejects["rejects"].as_array().into_iter().flatten();
    let places = places.map(|reject| format!("{} {}", reject["uri"], reject["byte"]));
    let places: Vec<String> = places.collect();
    assert_eq!((places.len(), places.iter().collect::<BTreeSet<_>>().len()), (FILES, FILES), "seed {seed}, {hit:?}");
    if resumes == 0 {
        let history = cluster.lab.run(&["report", "--json"]);
        let report = history.ok().json();
        let counts = ["rows_written", "rows_rejected"].map(|key| report[key].as_u64());
        assert_eq!(counts, [Some(written(FILES)), Some(FILES as u64)], "seed {seed}, {hit:?}");
        assert_eq!(report["rows_read"], (FILES * RECORDS) as u64, "seed {seed}, {hit:?}");
        let by_workers =
            cluster_of(&report).iter().map(|worker| worker["rows"].as_u64().expect("a count")).sum::<u64>();
        assert!(by_workers > 0, "seed {seed}: {report:#}");
    }
    drop(finish(cluster.lab.command(&["runs"]), None));
}
