//! `millstream runs --watch`: changes as lines where there is no terminal, and a list that is drawn again on one.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{MILLSTREAM, program};
use crate::use_support::Lab;

/// No line of these tests may take longer, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(180);

const JOB: &str =
    "sources:\n  s: {read: in.csv, csv: {columns: {id: int64}}}\nsinks:\n  o: {from: s, write: out.csv}\n";

fn lab() -> Lab {
    let lab = Lab::with_job(JOB);
    lab.file("in.csv", "id\n1\n2\n");
    lab
}

/// A command that goes on, and what it prints, line by line.
struct Watching {
    child: Child,
    lines: Receiver<String>,
}

impl Watching {
    fn start(mut command: std::process::Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let (told, lines) = channel();
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        std::thread::spawn(move || output.lines().map_while(Result::ok).for_each(|line| drop(told.send(line))));
        Watching { child, lines }
    }

    /// The first line from here on that has `part` in it.
    #[track_caller]
    fn until(&self, part: &str) -> String {
        let begun = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(begun.elapsed());
            let line = self.lines.recv_timeout(left).unwrap_or_else(|error| panic!("no `{part}`: {error}"));
            if line.contains(part) {
                return line;
            }
        }
    }

    /// Ctrl-C ends it well.
    fn stop(mut self) {
        let id = Pid::from_child(&self.child);
        kill_process(id, Signal::INT).expect("it lives");
        assert_eq!(self.child.wait().expect("it ends").code(), Some(0));
    }
}

impl Drop for Watching {
    /// What a test that fails leaves behind would go on.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn each_change_is_a_line_where_there_is_no_terminal() {
    let lab = lab();
    lab.run(&["run", "job.yaml", "-q"]).ok();
    let earlier = lab.run(&["runs", "last", "--json"]).json()["run"]["run"].as_str().expect("a name").to_owned();
    let long = Lab::with_job("sources:\n  s: {read: '-', lines: {}}\nsinks:\n  o: {from: s, write: out.txt}\n");
    let mut child = long
        .command(&["run", "job.yaml", "-q"])
        .env("MILLSTREAM_STATE", lab.path(".state"))
        .stdin(Stdio::piped())
        .spawn()
        .expect("it starts");
    let watching = Watching::start(lab.command(&["runs", "--watch"]));
    let first = watching.until("job.yaml");
    assert!(first.contains(": running") && !first.contains(&earlier), "only what runs is shown first: {first}");
    lab.run(&["run", "job.yaml", "-q"]).ok();
    watching.until("2 read, 2 written, 0 rejected");
    lab.file("in.csv", "id\nx\n");
    lab.run(&["run", "job.yaml", "-q"]).ended(1);
    watching.until(": failed: the value is not an int64");
    child.kill().expect("it can be killed");
    child.wait().expect("it ends");
    watching.until(": killed");
    watching.stop();
}

#[test]
fn changes_for_machines_are_objects() {
    let lab = lab();
    let watching = Watching::start(lab.command(&["runs", "--watch", "--json"]));
    // The first look may come later than the run: then there is another one.
    let line = loop {
        lab.run(&["run", "job.yaml", "-q"]).ok();
        if let Ok(line) = watching.lines.recv_timeout(Duration::from_secs(3)) {
            break line;
        }
    };
    let run: Value = serde_json::from_str(&line).expect("JSON");
    assert!(["done", "running"].contains(&run["outcome"].as_str().expect("an outcome")), "{run}");
    assert!(run["report"].is_null() && run["job"].as_str().is_some_and(|job| job.ends_with("job.yaml")), "{run}");
    watching.stop();
}

#[test]
fn a_terminal_shows_the_list_in_its_place() {
    let lab = lab();
    lab.run(&["run", "job.yaml", "-q"]).ok();
    let mut command = program(lab.0.root(), "script");
    let watch = format!("stty cols 200 rows 50; exec {MILLSTREAM} runs --watch");
    command.args(["-qec", &watch, "/dev/null"]).env("TERM", "xterm");
    let watching = Watching::start(command);
    watching.until("written  rejected");
    lab.run(&["run", "job.yaml", "-q"]).ok();
    // The cursor goes back over all rows, and then over those of two runs.
    let rows = |line: &str| line.split("\u{1b}[").find_map(|part| part.split_once('A')?.0.parse::<u32>().ok());
    let rows = || rows(&watching.until("Arun ")).expect("how many rows");
    let first = rows();
    let begun = Instant::now();
    while rows() <= first {
        assert!(begun.elapsed() < PATIENCE, "{first} rows");
    }
}

#[test]
fn one_run_cannot_be_watched() {
    lab().run(&["runs", "last", "--watch"]).ended(2).says(&["--watch", "cannot be used with"]);
}
