//! Several runs at once through the real binary: they share memory, cores and pools.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::use_support::{Lab, finish};

const SLEEP: Duration = Duration::from_millis(50);

/// A process that the test may end in the middle.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> Self {
        Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"))
    }

    fn ends_well(mut self) {
        assert!(self.0.wait().expect("it ends").success());
    }
}

fn job(read: &str, write: &str) -> String {
    format!(
        "sources:\n  s: {{read: {read}, csv: {{columns: {{n: int64}}}}}}\nsinks:\n  o: {{from: s, write: {write}}}\n"
    )
}

fn wait_for(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..2_400 {
        if holds() {
            return;
        }
        std::thread::sleep(SLEEP);
    }
    panic!("it never happens that {what}");
}

/// How many runs live.
fn running(lab: &Lab) -> usize {
    let runs = lab.run(&["runs", "--json"]).ok().json();
    runs["runs"].as_array().into_iter().flatten().filter(|run| run["outcome"] == "running").count()
}

#[test]
fn a_run_takes_the_memory_that_others_leave() {
    let lab = Lab::new();
    lab.file("first.yaml", job("'-'", "first.csv"));
    lab.file("second.yaml", job("in.csv", "second.csv"));
    lab.file("in.csv", "n\n1\n");
    lab.file("machine.yaml", "memory: 1GB\n");
    let mut command = lab.command(&["run", "first.yaml", "--machine", "machine.yaml", "--memory", "700MB"]);
    command.stdin(Stdio::piped());
    let mut first = Running::start(command);
    wait_for("the first run has begun", || running(&lab) == 1);
    let second = || lab.run(&["run", "second.yaml", "--machine", "machine.yaml"]);
    second().ok().says(&["other runs have 700 MB of memory: this one gets 300 MB of 1.00 GB"]);
    // Who says how much gets it.
    let reserved = lab.run(&["run", "second.yaml", "--machine", "machine.yaml", "--memory", "900MB"]);
    assert!(!reserved.ok().stderr.contains("other runs have"), "{}", reserved.stderr);
    first.0.kill().expect("it is killed");
    first.0.wait().expect("it has ended");
    let alone = second();
    assert!(!alone.ok().stderr.contains("other runs have"), "{}", alone.stderr);
}

#[test]
fn a_priority_is_that_of_all_processes() {
    let lab = Lab::new();
    let sequence = "priority: low\nsteps:\n  own: {command: [sh, -c, 'nice > own.txt']}\n  job: {job: job.yaml}\n";
    lab.file("sequence.yaml", sequence);
    let hook = "on_success:\n  - command: [sh, -c, 'nice > job.txt']\n";
    lab.file("job.yaml", format!("{hook}{}", job("in.csv", "out.csv")));
    lab.file("in.csv", "n\n1\n");
    let nice = |name: &str| -> i32 { lab.read(name).trim().parse().expect("a number") };
    lab.run(&["run", "sequence.yaml"]).ok();
    assert_eq!((nice("own.txt"), nice("job.txt")), (10, 10));
    lab.run(&["run", "job.yaml"]).ok();
    let usual = nice("job.txt");
    lab.file("job.yaml", format!("priority: low\n{hook}{}", job("in.csv", "out.csv")));
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(nice("job.txt"), 10.max(usual));
    lab.file("job.yaml", format!("priority: urgent\n{}", job("in.csv", "out.csv")));
    lab.run(&["check", "job.yaml"]).ended(2).says(&["job.yaml:1:11"]);
}

#[test]
fn a_pool_holds_for_all_runs_of_the_machine() {
    let lab = Lab::new();
    lab.file("machine.yaml", "pools: {db: 1}\n");
    let waits = "touch began; while [ ! -e go ]; do sleep 0.05; done; touch ended";
    lab.file("first.yaml", format!("steps:\n  a: {{command: [sh, -c, '{waits}'], pool: db}}\n"));
    lab.file("second.yaml", "steps:\n  b: {command: [sh, -c, 'test -e ended'], pool: db}\n");
    let start = |name: &str| Running::start(lab.command(&["run", name, "--machine", "machine.yaml"]));
    let first = start("first.yaml");
    wait_for("the first has its place", || lab.path("began").exists());
    let second = start("second.yaml");
    wait_for("both run", || running(&lab) == 2);
    // If there were a place for it, it would begin, and fail.
    std::thread::sleep(Duration::from_secs(1));
    lab.file("go", "");
    first.ends_well();
    second.ends_well();
    // One that is killed leaves its place.
    fs_err::remove_file(lab.path("go")).expect("it is there");
    fs_err::remove_file(lab.path("began")).expect("it is there");
    let mut killed = start("first.yaml");
    wait_for("it has its place", || lab.path("began").exists());
    killed.0.kill().expect("it is killed");
    killed.0.wait().expect("it has ended");
    finish(lab.command(&["run", "second.yaml", "--machine", "machine.yaml"]), None).ok();
}

#[test]
fn what_runs_within_a_step_has_its_place() {
    let lab = Lab::new();
    lab.file("machine.yaml", "pools: {db: 1}\n");
    lab.file("outer.yaml", "steps:\n  a: {sequence: inner.yaml, pool: db}\n");
    let step = |name: &str| format!("  {name}: {{command: ['true'], pool: db}}\n");
    lab.file("inner.yaml", format!("steps:\n{}{}", step("b"), step("c")));
    lab.run(&["run", "outer.yaml", "--machine", "machine.yaml"]).ok();
}
