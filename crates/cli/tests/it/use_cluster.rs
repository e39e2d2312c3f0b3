//! Runs whose units workers read: processes on this machine, in place of machines.
//!
//! `use_cluster/shapes.rs` compares what they load with what one process loads, `use_cluster/files.rs` has files that
//! they write, `use_cluster/ranges.rs` large files that several of them read, `use_cluster/machines.rs` machines with
//! an address or a disk of their own, and `use_cluster/kills.rs` the rounds in which they are killed, stopped and cut
//! off.

mod files;
mod kills;
mod machines;
mod ranges;
mod shapes;

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millstream_testkit::{PASSWORD, TempTree, USER};
use serde_json::Value;

use crate::harness::{MILLSTREAM, program};
use crate::use_databases::Database;
use crate::use_support::{Lab, Ran, finish, gzip};

/// Records of each file.
const RECORDS: usize = 500;

/// A folder with files, a job, a database unless it writes files, and the secret of a cluster.
struct Cluster {
    lab: Lab,
    database: Option<Database>,
    address: String,
    /// The names of the workers so far.
    started: usize,
}

fn mariadb() -> Database {
    let [mariadb, _] = Database::both();
    mariadb
}

fn postgres() -> Database {
    let [_, postgres] = Database::both();
    postgres
}

/// A process, which ends with the test.
struct Process(Child);

impl Process {
    fn id(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.0)
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(self.id(), signal).expect("it is ours");
    }

    fn kill(&mut self) {
        self.0.kill().expect("it is ours");
        self.0.wait().expect("it has ended");
    }

    /// Waits until it ends by itself.
    fn ends(&mut self) -> bool {
        let until = Instant::now() + Duration::from_secs(60);
        while Instant::now() < until {
            if let Some(status) = self.0.try_wait().expect("it is ours") {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The records of file number `file`: every seventh is left out by the job, and in each file one is bad.
fn records(file: usize, bad: bool) -> String {
    (file * RECORDS..(file + 1) * RECORDS).fold(String::new(), |mut text, id| {
        let value = if bad && id % RECORDS == 77 { "no number".to_owned() } else { (id % 7).to_string() };
        let _ = writeln!(text, "{id},row {id},{value}");
        text
    })
}

fn job(url: &str, more: &str) -> String {
    job_into(&format!("write: '{url}', table: t"), more)
}

/// The job that loads into `sink`.
fn job_into(sink: &str, more: &str) -> String {
    format!(
        "sources:\n  s: {{read: 'in/*', csv: {{header: false, columns: {{id: int64, name: utf8, v: int64}}}}{more}}}\n\
         transforms:\n  kept: {{filter: {{from: s, where: 'v > 0'}}}}\nsinks:\n  \
         out: {{from: kept, {sink}}}\n"
    )
}

impl Cluster {
    /// With `files` files, of which each has a bad record if `more`, the settings of the source, allows that.
    fn new(database: Database, files: usize, more: &str) -> Self {
        let job = job(&database.url, more);
        Cluster { database: Some(database), ..Cluster::with_job(&job, files, more) }
    }

    /// The same without a database.
    fn with_job(job: &str, files: usize, more: &str) -> Self {
        let lab = Lab::new();
        lab.file("job.yaml", job);
        for file in 0..files {
            lab.file(&format!("in/{file:03}.csv.gz"), gzip(records(file, more.contains("max_rejects")).as_bytes()));
        }
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = free.local_addr().expect("an address").to_string();
        let cluster = Cluster { lab, database: None, address, started: 0 };
        cluster.lab.run(&["cluster", "init", "secret.pem"]).ok();
        cluster
    }

    fn database(&self) -> &Database {
        self.database.as_ref().expect("it loads into a database")
    }

    fn in_beats(&self, mut command: Command) -> Command {
        command.env("MILLSTREAM_BEAT_MS", "250").env("MILLSTREAM_CHUNK_BYTES", "2000");
        command.env("MILLSTREAM_CLUSTER_SECRET", self.lab.path("secret.pem"));
        command
    }

    fn coordinator(&self, more: &[&str]) -> Command {
        let own =
            ["run", "job.yaml", "--json", "--cluster", "--shared", "in", "--shared", "out", "--listen", &self.address];
        let all: Vec<&str> = own.iter().chain(more).copied().collect();
        self.in_beats(self.lab.command(&all))
    }

    /// A worker, with a state folder of its own, as on another machine.
    fn worker(&mut self, more: &[&str]) -> Process {
        let join = ["--join", &self.address.clone()];
        let all: Vec<&str> = join.iter().chain(more).copied().collect();
        self.worker_in(&all, None)
    }

    /// The same, which does not see the folder `without`.
    fn worker_in(&mut self, more: &[&str], without: Option<&Path>) -> Process {
        let own = ["worker", "--cores", "1", "--memory", "256MiB"];
        let all: Vec<&str> = own.iter().chain(more).copied().collect();
        let mut command = self.lab.command(&all);
        if let Some(without) = without {
            // In a namespace of its own, in which the folder is empty.
            let hide = format!("mount -t tmpfs none {} && exec \"$0\" \"$@\"", without.display());
            let mut hidden = program(self.lab.0.root(), "unshare");
            hidden.args(["--mount", "--map-root-user", "sh", "-c", &hide, MILLSTREAM]).args(&all);
            command = hidden;
        }
        self.start(command)
    }

    /// The same, with a variable in its environment.
    fn worker_with(&mut self, (name, value): (&str, &str)) -> Process {
        let own = ["worker", "--cores", "1", "--memory", "256MiB", "--join", &self.address];
        let mut command = self.lab.command(&own);
        command.env(name, value);
        self.start(command)
    }

    /// Starts a worker.
    fn start(&mut self, command: Command) -> Process {
        let mut command = self.in_beats(command);
        let state = self.lab.path(&format!(".state-{}", self.started));
        let log = fs_err::File::create(self.lab.path(&format!("worker-{}.log", self.started))).expect("a log");
        self.started += 1;
        command.env("MILLSTREAM_STATE", state).stderr(log.into_parts().0).stdout(Stdio::null());
        Process(command.spawn().expect("it starts"))
    }

    /// Runs the job, with `workers` workers.
    fn run(&mut self, workers: usize, more: &[&str]) -> Ran {
        let _workers: Vec<Process> = (0..workers).map(|_| self.worker(&[])).collect();
        finish(self.coordinator(more), None)
    }

    /// Asserts that each record is a row once, but for those that the job leaves out or rejects.
    fn has_all(&self, files: usize, bad: bool) {
        let ids = (0..files * RECORDS).filter(|id| id % 7 > 0 && !(bad && id % RECORDS == 77));
        let (count, sum) = ids.fold((0, 0), |(count, sum), id| (count + 1, sum + id));
        let found = self.database().query("SELECT COUNT(*), COUNT(DISTINCT id), SUM(id) FROM t");
        assert_eq!(found, [format!("{count}\t{count}\t{sum}")]);
        assert_eq!(self.database().tables(), ["t"], "the ledger is gone");
    }
}

#[track_caller]
fn cluster_of(report: &Value) -> &Vec<Value> {
    report["cluster"]["workers"].as_array().unwrap_or_else(|| panic!("no workers in {report:#}"))
}

fn counts(report: &Value) -> [u64; 3] {
    ["rows_read", "rows_written", "rows_rejected"].map(|key| report[key].as_u64().expect("a count"))
}

#[test]
fn workers_load_what_one_process_loads() {
    for (number, database) in Database::both().into_iter().enumerate() {
        let mut cluster = Cluster::new(database, 40, ", max_rejects: 100");
        let ran = cluster.run([2, 5][number], &[]);
        ran.ok();
        cluster.has_all(40, true);
        let report = ran.json();
        assert_eq!(counts(&report), [40 * RECORDS as u64, written(40), 40]);
        assert_eq!(report["units_loaded_before"], 0);
        assert_eq!(report["results"][0]["tally"]["filtered"], 40 * RECORDS as u64 - 40 - written(40));
        let workers = cluster_of(&report);
        let sum = |key: &str| workers.iter().map(|worker| worker[key].as_u64().expect("a count")).sum::<u64>();
        assert_eq!((sum("units"), sum("rows")), (40, written(40)));
        let rejects = cluster.lab.run(&["rejects", "--json"]);
        assert_eq!(rejects.ok().json()["rejects"].as_array().map(Vec::len), Some(40));
        // Everything is there.
        let again = cluster.run(1, &["--resume"]);
        assert_eq!(again.ok().json()["nothing_new"], true);
        cluster.has_all(40, true);
    }
}

/// How many rows `files` files give that have a bad record each.
fn written(files: usize) -> u64 {
    (0..files * RECORDS).filter(|id| id % 7 > 0 && id % RECORDS != 77).count() as u64
}

#[test]
fn a_job_that_cannot_be_distributed_runs_here_and_says_why() {
    let cluster = Cluster::new(postgres(), 3, "");
    let elsewhere = |shared: &'static str, when: &'static str| {
        ["run", "job.yaml", when, "--shared", shared, "--listen", "127.0.0.1:0", "--secret", "secret.pem"]
    };
    let local = cluster.lab.run(&elsewhere("elsewhere", "--cluster"));
    local.ok().says(&["runs on this machine alone: `s` reads in/* of this machine", "--shared FOLDER"]);
    cluster.has_all(3, false);
    let always = cluster.lab.run(&elsewhere("elsewhere", "--cluster=always"));
    always.ended(1).says(&["the workers of a cluster cannot run this job", "`s` reads in/* of this machine"]);
    cluster.lab.file(
        "job.yaml",
        job(&cluster.database().url, "").replace("filter: {from: s, where: 'v > 0'}", "sort: {from: s, by: id}"),
    );
    let sorted = cluster.lab.run(&elsewhere("in", "--cluster=always"));
    sorted.ended(1).says(&["`out` is loaded all at once: a sort needs all rows"]);
}

#[test]
fn without_workers_the_run_reads_by_itself() {
    let mut cluster = Cluster::new(mariadb(), 5, "");
    let ran = cluster.run(0, &["--wait-for-workers", "1s"]);
    ran.ok().says(&["workers can join at 127.0.0.1:", "there is no worker: this machine reads what is left"]);
    cluster.has_all(5, false);
    assert_eq!(ran.json()["units_loaded_before"], 0);
}

#[test]
fn a_bad_record_ends_the_run_with_its_place_and_resume_loads_the_rest() {
    let mut cluster = Cluster::new(postgres(), 12, "");
    let good = records(7, false);
    cluster.lab.file("in/007.csv.gz", gzip(good.replace("row 3600,", "row 3600,x").as_bytes()));
    let ran = cluster.run(2, &[]);
    ran.ended(1).says(&["in/007.csv.gz", "line 101", "on the worker "]);
    cluster.lab.file("in/007.csv.gz", gzip(good.as_bytes()));
    cluster.run(2, &["--resume"]).ok();
    cluster.has_all(12, false);
}

#[test]
fn too_many_rejects_of_all_workers_together_end_the_run() {
    let mut cluster = Cluster::new(mariadb(), 30, ", max_rejects: 20");
    let ran = cluster.run(3, &[]);
    ran.ended(3).says(&["`max_rejects` of `s` allows 20"]);
    let mut share = Cluster::new(mariadb(), 30, ", max_rejects: '0.1%'");
    share.run(3, &[]).ended(3).says(&["30 of 15000 records (0.20%) were rejected", "allows 0.1%"]);
}

#[test]
fn a_worker_without_the_secret_reads_nothing() {
    let mut cluster = Cluster::new(postgres(), 6, "");
    cluster.lab.run(&["cluster", "init", "other.pem"]).ok();
    cluster.lab.run(&["cluster", "init", "other.pem"]).ended(1).says(&["other.pem is there"]);
    let _stranger = cluster.worker(&["--secret", "other.pem"]);
    let ran = cluster.run(0, &["--wait-for-workers", "3s"]);
    ran.ok().says(&[
        "127.0.0.1 cannot join",
        "it does not have the secret of this cluster",
        "there is no worker: this machine reads what is left",
    ]);
    assert!(cluster_of(&ran.json()).is_empty());
    cluster.has_all(6, false);
    assert!(cluster.lab.read("worker-0.log").contains("waits for a coordinator"));
}

#[test]
fn a_worker_that_does_not_see_the_files_cannot_join_and_says_why() {
    let mut cluster = Cluster::new(postgres(), 6, "");
    let shared = TempTree::new();
    (0..6).for_each(|file| drop(shared.file(&format!("{file}.csv.gz"), gzip(records(file, false).as_bytes()))));
    let all = format!("{}/*", shared.root().display());
    cluster.lab.file("job.yaml", job(&cluster.database().url, "").replace("in/*", &all));
    let _blind = cluster.worker_in(&["--join", &cluster.address.clone()], Some(shared.root()));
    let shared = shared.root().display().to_string();
    let ran = cluster.run(0, &["--shared", &shared, "--wait-for-workers", "4s"]);
    ran.ok().says(&["cannot join", "no file matches", "this machine reads what is left"]);
    cluster.has_all(6, false);
}

#[test]
fn a_worker_that_is_asked_to_ends_what_it_has_and_leaves() {
    let mut cluster = Cluster::new(mariadb(), 40, "");
    let mut leaving = cluster.worker(&[]);
    let coordinator = cluster.coordinator(&["--wait-for-workers", "60s"]);
    let running = std::thread::spawn(move || finish(coordinator, None));
    cluster.until_rows(1);
    leaving.signal(rustix::process::Signal::TERM);
    assert!(leaving.ends(), "{}", cluster.lab.read("worker-0.log"));
    let _other = cluster.worker(&[]);
    let ran = running.join().expect("it has ended");
    ran.ok();
    cluster.has_all(40, false);
    assert_eq!(cluster_of(&ran.json())[0].get("lost"), None);
}

impl Cluster {
    /// Waits until the table has so many rows.
    fn until_rows(&self, rows: u64) {
        let until = Instant::now() + Duration::from_secs(60);
        while Instant::now() < until {
            if self.database().tables().contains(&"t".to_owned()) {
                let found = self.database().query("SELECT COUNT(*) FROM t");
                if found[0].parse::<u64>().expect("a count") >= rows {
                    return;
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("no rows come");
    }
}

#[test]
fn code_and_references_go_with_the_bundles() {
    for database in Database::both() {
        let mut cluster = Cluster::new(database, 12, ", max_rejects: 100");
        let code = cluster.lab.path("code");
        fs_err::create_dir_all(code.join("more")).expect("made");
        fs_err::write(code.join("more/factor.py"), "FACTOR = 3\n").expect("written");
        fs_err::write(
            code.join("steps.py"),
            "from more.factor import FACTOR\n\ndef triple(row):\n    return {'w': row['v'] * FACTOR}\n",
        )
        .expect("written");
        let names = (0..7).fold("v,called\n".to_owned(), |text, v| format!("{text}{v},number {v}\n"));
        cluster.lab.file("in/names/names.csv", names);
        let url = &cluster.database().url;
        cluster.lab.file(
            "code/job.yaml",
            format!(
                "sources:\n  s: {{read: 'in/*.csv.gz', csv: {{header: false, columns: {{id: int64, name: utf8, v: \
                 int64}}}}, max_rejects: 100}}\n  names: {{read: in/names/names.csv, csv: {{columns: {{v: int64, \
                 called: utf8}}}}}}\ntransforms:\n  kept: {{filter: {{from: s, where: 'v > 0'}}}}\n  tripled: {{map: \
                 {{from: kept, python: 'steps.py:triple', columns: {{w: int64}}, keep: [id, v], deterministic: \
                 true}}}}\n  named: {{lookup: {{from: tripled, in: names, on: [v], take: [called]}}}}\nsinks:\n  \
                 out: {{from: named, write: '{url}', table: t}}\n"
            ),
        );
        fs_err::remove_file(cluster.lab.path("job.yaml")).expect("it is there");
        cluster.lab.file("job.yaml", cluster.lab.read("code/job.yaml").replace("steps.py", "code/steps.py"));
        let code = cluster.lab.path("code");
        let join = cluster.address.clone();
        let _without = cluster.worker_in(&["--join", &join], Some(&code));
        let ran = cluster.run(1, &["--cluster=always"]);
        ran.ok();
        let wrong = "SELECT COUNT(*) FROM t WHERE w <> v * 3 OR called <> CONCAT('number ', v)";
        assert_eq!(cluster.database().query(wrong), ["0"]);
        cluster.has_all(12, true);
        assert!(cluster_of(&ran.json()).iter().all(|worker| worker["units"].as_u64() > Some(0)), "{:#}", ran.json());
    }
}

/// Of two workers one would take minutes for each bundle. It needs three seconds until that is known.
#[test]
fn what_a_slow_worker_would_read_last_another_one_reads() {
    for database in Database::both() {
        let mut cluster = Cluster::new(database, 12, ", max_rejects: 100");
        let slow = "import os, time\n\ndef slow(row):\n    time.sleep(float(os.environ.get('SLOW', '0')))\n    \
                    return {'w': 1}\n";
        cluster.lab.file("slow.py", slow);
        let map = "  slow: {map: {from: kept, python: 'slow.py:slow', columns: {w: int64}, keep: [id, v], \
                   deterministic: true, workers: 1}}\nsinks:";
        let job = cluster.lab.read("job.yaml").replace("sinks:", map).replace("from: kept, write", "from: slow, write");
        cluster.lab.file("job.yaml", job);
        let _fast = cluster.worker(&[]);
        let _slow = cluster.worker_with(("SLOW", "0.5"));
        let ran = finish(cluster.coordinator(&["--cluster=always"]), None);
        let report = ran.ok().json();
        cluster.has_all(12, true);
        assert_eq!(counts(&report), [12 * RECORDS as u64, written(12), 12], "{report:#}");
        assert_eq!(cluster_of(&report).len(), 2, "{}", ran.stderr);
    }
}

#[test]
fn explain_says_what_workers_would_do() {
    let cluster = Cluster::new(postgres(), 2, "");
    let explained = |more: &[&str]| {
        let own = ["explain", "--cluster", "job.yaml"];
        cluster.lab.run(&own.iter().chain(more).copied().collect::<Vec<_>>())
    };
    explained(&["--shared", "in"]).ok().prints(&["cluster: workers read s, and write into out"]);
    explained(&[]).ok().prints(&["cluster: all of it runs on this machine: `s` reads in/* of this machine"]);
    let json = explained(&["--shared", "in", "--json"]).ok().json();
    assert_eq!(json["cluster"], serde_json::json!({"read": ["s"], "written": ["out"], "here": null}));
}

#[test]
fn a_machine_file_says_which_runs_are_distributed_and_for_whom_a_machine_works() {
    let mut cluster = Cluster::new(mariadb(), 8, "");
    let secret = cluster.lab.path("secret.pem").display().to_string();
    let address = cluster.address.clone();
    cluster.lab.file(
        "cluster.yaml",
        format!(
            "cluster: {{listen: '{address}', secret: {secret}, shared: [in], wait: 20s}}\nnodes:\n  boss: {{}}\n  \
             helper: {{cluster: {{join: '{address}', secret: {secret}}}, cores: 1}}\n  late: {{cluster: {{join: \
             '{address}', secret: {secret}, hours: '{}'}}}}\n",
            not_now()
        ),
    );
    let node = |name: &str, arguments: &[&str]| {
        let mut command = cluster.lab.command(arguments);
        command.env("MILLSTREAM_MACHINE", "cluster.yaml").env("MILLSTREAM_NODE", name);
        command.env("MILLSTREAM_BEAT_MS", "250").env("MILLSTREAM_STATE", cluster.lab.path(&format!(".state-{name}")));
        command
    };
    let log = |name: &str| fs_err::File::create(cluster.lab.path(name)).expect("a log").into_parts().0;
    let _helper = Process(node("helper", &["worker"]).stderr(log("helper.log")).spawn().expect("it starts"));
    let _late = Process(node("late", &["worker"]).stderr(log("late.log")).spawn().expect("it starts"));
    let ran = finish(node("boss", &["run", "job.yaml", "--json"]), None);
    ran.ok();
    assert_eq!(cluster_of(&ran.json()).len(), 1, "{}", ran.stderr);
    assert!(cluster.lab.read("late.log").contains("rests: it works at "));
    cluster.has_all(8, false);
    // A machine that works for others does not wait for workers.
    let alone = finish(node("helper", &["run", "job.yaml", "--restart", "--json"]), None);
    assert_eq!(alone.ok().json().get("cluster"), None);
    let _ = &mut cluster;
}

/// Hours that begin in three hours, by the clock of this machine.
fn not_now() -> String {
    let clock = std::process::Command::new("date").arg("+%H").output().expect("a clock");
    let hour: u32 = String::from_utf8_lossy(&clock.stdout).trim().parse().expect("an hour");
    format!("{:02}:00-{:02}:00", (hour + 3) % 24, (hour + 4) % 24)
}

#[test]
fn workers_count_lines() {
    let mut cluster = Cluster::new(mariadb(), 20, "");
    let _workers = [cluster.worker(&[]), cluster.worker(&[])];
    let counted = |cluster: &Cluster, more: &[&str]| {
        let own = ["count", "in/*.gz", "--cluster", "--listen", &cluster.address, "--shared", "in"];
        let all: Vec<&str> = own.iter().chain(more).copied().collect();
        finish(cluster.in_beats(cluster.lab.command(&all)), None)
    };
    assert_eq!(counted(&cluster, &["--cluster=always"]).ok().stdout, format!("{}\n", 20 * RECORDS));
    let by_unit = counted(&cluster, &["--by-unit", "--json"]).ok().json();
    assert_eq!(by_unit["units"].as_array().map(Vec::len), Some(20));
    drop(_workers);
    let alone = counted(&cluster, &["--wait-for-workers", "300ms"]);
    assert_eq!(alone.ok().stdout, format!("{}\n", 20 * RECORDS));
    alone.says(&["there is no worker: this machine reads what is left"]);
    let local = finish(cluster.in_beats(cluster.lab.command(&["count", "in/*.gz", "--cluster=always"])), None);
    local.ended(1).says(&["the workers of a cluster cannot count this", "--shared FOLDER"]);
}

#[test]
fn workers_are_started_by_ssh() {
    let mut cluster = Cluster::new(postgres(), 10, "");
    // In place of the network: the command runs here, in another home.
    let home = cluster.lab.path("other-home");
    fs_err::create_dir_all(&home).expect("made");
    let ssh = "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\nshift\n\
               [ \"$1\" = gone ] && { echo 'no route' >&2; exit 255; }\nshift\n\
               cd \"$OTHER_HOME\" && HOME=$OTHER_HOME exec sh -c \"$1\"\n";
    let tool = cluster.lab.file("bin/ssh", ssh);
    fs_err::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("it is ours");
    let path = format!("{}:{}", cluster.lab.path("bin").display(), std::env::var("PATH").expect("a path"));
    let join = cluster.address.clone();
    let started = |hosts: &[&str]| {
        let own = ["worker", "--join", &join, "--cores", "1", "--memory", "256MiB", "--once", "--ssh"];
        let mut command = cluster.in_beats(cluster.lab.command(&own.iter().chain(hosts).copied().collect::<Vec<_>>()));
        command.env("PATH", &path).env("OTHER_HOME", &home).env_remove("MILLSTREAM_CLUSTER_SECRET");
        command.args(["--secret", "secret.pem"]);
        command
    };
    let ssh = std::thread::spawn({
        let command = started(&["one", "two"]);
        move || finish(command, None)
    });
    let ran = finish(cluster.coordinator(&["--cluster=always"]), None);
    ran.ok();
    assert_eq!(cluster_of(&ran.json()).len(), 2, "{}", ran.stderr);
    let ended = ssh.join().expect("it has ended");
    ended.ok().says(&["one: works for the run ", " of job.yaml at ", "one: has left the run", "two: has left the run"]);
    cluster.has_all(10, false);
    let unreachable = finish(started(&["gone"]), None);
    unreachable.ended(1).says(&["gone cannot be reached by `ssh`", "no route", "without a password"]);
    let _ = &mut cluster;
}

#[test]
fn a_worker_without_the_password_cannot_join_and_says_why() {
    let mut cluster = Cluster::new(mariadb(), 4, "");
    let url = cluster.database().url.replace(&format!("{USER}:{PASSWORD}@"), "");
    let sink =
        format!("out: {{from: kept, write: '{url}', user: {USER}, password: {{secret: env:DB_PASSWORD}}, table: t}}");
    let job = cluster.lab.read("job.yaml");
    let own = job.lines().find(|line| line.contains("out: {")).expect("a sink").trim().to_owned();
    cluster.lab.file("job.yaml", job.replace(&own, &sink));
    let _poor = cluster.worker(&[]);
    let mut coordinator = cluster.coordinator(&["--wait-for-workers", "3s"]);
    coordinator.env("DB_PASSWORD", PASSWORD);
    let ran = finish(coordinator, None);
    ran.ok().says(&["cannot join", "DB_PASSWORD", "this machine reads what is left"]);
    cluster.has_all(4, false);
}

#[test]
fn while_a_run_has_the_workers_another_one_runs_alone() {
    let mut cluster = Cluster::new(postgres(), 4, "");
    let _taken = TcpListener::bind(&cluster.address).expect("it is free");
    let ran = cluster.run(0, &[]);
    ran.ok().says(&["runs on this machine alone: the coordinator cannot listen at"]);
    cluster.has_all(4, false);
    cluster.run(0, &["--cluster=always", "--restart"]).ended(1).says(&["does another run coordinate workers there?"]);
}
