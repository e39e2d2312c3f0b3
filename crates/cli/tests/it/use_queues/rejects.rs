//! What a service rejects: it is kept for some time, in pieces, and costs no memory; only the last hours count.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::{Scene, stop, until};
use crate::use_resume::in_sqlite;

const SERVICE: &str = "until: stopped\ncommit: {every: 100ms}";

impl Scene {
    fn start_with(&self, environment: &[(&str, &str)]) -> Child {
        let mut command = self.lab.command(&["run", "job.yaml"]);
        command.envs(environment.iter().copied()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("it starts")
    }

    /// Messages whose ids are no numbers.
    fn add_bad(&self, count: usize) {
        let script = "for number = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', 'body', '{\"id\": \"' .. number .. \
                      'x\", \"name\": \"a name of some length\"}') end";
        self.redis.command(&["EVAL", script, "1", "events", &count.to_string()]);
    }

    /// The rejects of the last run; none if there is none yet.
    fn rejects(&self) -> Vec<Value> {
        let rejects = self.lab.run(&["rejects", "--json"]).json();
        rejects["rejects"].as_array().cloned().unwrap_or_default()
    }

    /// The files of the reject logs of all runs.
    fn pieces(&self) -> Vec<String> {
        let folders = fs_err::read_dir(self.lab.path(".state/rejects")).into_iter().flatten().flatten();
        let files = folders.flat_map(|folder| fs_err::read_dir(folder.path()).expect("a folder").flatten());
        files.map(|file| file.file_name().to_string_lossy().into_owned()).collect()
    }
}

#[test]
fn pieces_are_shown_and_replayed_in_their_order() {
    let scene = Scene::new(in_sqlite, SERVICE, ", max_rejects: 1000", "");
    let process = scene.start_with(&[("MILLSTREAM_REJECT_BYTES", "1")]);
    for number in 0..12 {
        scene.add_body(&format!("{{\"id\": \"0x{number:x}\", \"name\": \"n\"}}"));
        until("it is kept", || scene.pieces().len() == number + 1);
    }
    stop(process);
    let rejects = scene.rejects();
    let texts: Vec<_> = rejects.iter().map(|reject| reject["raw"]["text"].as_str().unwrap_or_default()).collect();
    let written: Vec<_> = (0..12).map(|number| format!("{{\"id\": \"0x{number:x}\", \"name\": \"n\"}}")).collect();
    assert_eq!(texts, written);
    assert!(rejects[11]["id"].as_str().is_some_and(|id| id.ends_with(".12/1")), "{rejects:?}");
    // Text is what the column takes now.
    let job = scene.lab.read("job.yaml").replace("{id: int64,", "{id: utf8,");
    scene.lab.file("job.yaml", job);
    scene.target.query("DROP TABLE IF EXISTS t");
    scene.target.query("CREATE TABLE t (id TEXT, name TEXT, _id TEXT)");
    scene.lab.run(&["rejects", "--replay"]).ok().prints(&["12 rejects of run"]);
    assert_eq!(scene.count(), (12, 12));
    let ids = scene.target.query("SELECT _id FROM t ORDER BY _id");
    assert_eq!(ids, rejects.iter().map(|reject| reject["message_id"].as_str().expect("an id")).collect::<Vec<_>>());
    assert!(scene.rejects().iter().all(|reject| reject["replayed"] == true));
}

/// A message that comes again after a kill is a reject of two runs, and is loaded by the replay of one of them.
#[test]
fn what_two_runs_have_rejected_is_replayed_once() {
    let scene = Scene::new(in_sqlite, SERVICE, ", max_rejects: 1000", "");
    scene.add_bad(3);
    let mut killed = scene.start_with(&[("MILLSTREAM_FAIL_AT", "rejects.after")]);
    assert_eq!(killed.wait().expect("it ends").signal(), Some(9));
    assert_eq!(scene.rejects().len(), 3);
    let process = scene.start_with(&[]);
    until("they came again", || scene.pending().starts_with('0'));
    scene.add_bad(1);
    until("another one came", || scene.pieces().len() >= 2 && scene.rejects().len() == 4);
    until("it is acknowledged", || scene.pending().starts_with('0'));
    stop(process);
    let runs = scene.lab.run(&["runs", "--json"]).ok().json();
    let [last, first] = [0, 1].map(|number| runs["runs"][number]["run"].as_str().expect("a name").to_owned());
    let job = scene.lab.read("job.yaml").replace("{id: int64,", "{id: utf8,");
    scene.lab.file("job.yaml", job);
    scene.target.query("DROP TABLE IF EXISTS t");
    scene.target.query("CREATE TABLE t (id TEXT, name TEXT, _id TEXT)");
    let ids = || scene.target.query("SELECT count(*), count(DISTINCT _id) FROM t");
    scene.lab.run(&["rejects", &first, "--replay"]).ok().prints(&["3 rejects of run"]);
    assert_eq!(ids(), ["3\t3"]);
    let replayed = scene.lab.run(&["rejects", &last, "--replay"]);
    replayed.ok().prints(&["1 reject of run", "3 rejects cannot be loaded again: their messages came again"]);
    assert_eq!(ids(), ["4\t4"]);
    scene.lab.run(&["rejects", &last, "--replay"]).ok().prints(&["has no rejects to replay"]);
}

#[test]
fn old_rejects_are_removed_while_the_service_runs() {
    let job = |keep: &str| format!("{SERVICE}\nkeep_rejects: {keep}");
    let scene = Scene::new(in_sqlite, &job("1h"), ", max_rejects: 1000", "");
    for count in [5, 3] {
        let process = scene.start_with(&[]);
        let before = scene.pieces().len();
        scene.add_bad(count);
        until("they are kept", || scene.pieces().len() == before + 1 && scene.pending().starts_with('0'));
        stop(process);
        assert_eq!(scene.rejects().len(), count, "they are young");
    }
    scene.lab.file("job.yaml", scene.lab.read("job.yaml").replace(&job("1h"), &job("1s")));
    let process = scene.start_with(&[]);
    until("those of earlier runs are removed", || scene.pieces().is_empty());
    scene.add_bad(2);
    until("its own come", || scene.last_run()["rows_rejected"] == 2);
    until("they are removed, too", || scene.pieces().is_empty());
    assert_eq!(scene.rejects(), [] as [Value; 0]);
    stop(process);
}

/// A piece that is half written at the end takes nothing else with it.
#[test]
fn a_kill_in_the_middle_of_a_piece_loses_no_other() {
    let scene = Scene::new(in_sqlite, SERVICE, ", max_rejects: 1000", "");
    let mut process = scene.start_with(&[("MILLSTREAM_REJECT_BYTES", "1")]);
    for number in 1..=3 {
        scene.add_bad(1);
        until("it is kept", || scene.pieces().len() == number && scene.pending().starts_with('0'));
    }
    process.kill().expect("it is killed");
    process.wait().expect("it ends");
    let last = scene.lab.path(".state/rejects");
    let run = fs_err::read_dir(&last).expect("a folder").next().expect("one").expect("a folder").path();
    let name = run.file_name().expect("a name").to_string_lossy().into_owned();
    let file = run.join(format!("{name}.3.jsonl.zst"));
    let bytes = fs_err::read(&file).expect("a file");
    fs_err::write(&file, &bytes[..bytes.len() - 3]).expect("written");
    assert_eq!(scene.rejects().len(), 2);
}

#[test]
fn rejects_of_the_last_hours_count() {
    let scene = Scene::new(in_sqlite, SERVICE, ", max_rejects: 3", "");
    // A day lasts 1.2 seconds.
    let mut process = scene.start_logged("log", &[("MILLSTREAM_HOUR_MS", "50")]);
    for day in 1..=2 {
        scene.add_bad(3);
        until("they are kept", || scene.rejects().len() == 3 * day);
        // Two days, in which the process has to see that hours have passed.
        std::thread::sleep(Duration::from_millis(2_600));
    }
    assert_eq!(process.try_wait().expect("it can be asked"), None, "it goes on");
    scene.add_bad(4);
    assert_eq!(process.wait().expect("it ends").code(), Some(3));
    let log = scene.lab.read("log");
    let what = "4 records were rejected in the last 24 hours, and `max_rejects` of `events` allows 3";
    assert!(log.contains(what), "{log}");
    assert_eq!(scene.rejects().len(), 10, "all that it has refused are kept");
}

/// A service that is stopped has been judged all along; a run with an end is judged there.
#[test]
fn a_share_is_judged_where_enough_has_come() {
    for (until, code) in [("stopped", 0), ("now", 3)] {
        let scene =
            Scene::new(in_sqlite, &format!("until: {until}\ncommit: {{every: 100ms}}"), ", max_rejects: 1%", "");
        scene.add(0..10);
        scene.add_bad(1);
        let mut process = scene.start_with(&[]);
        if code == 0 {
            super::until("they are there", || scene.last_run()["rows_written"] == 10);
            stop(process);
            continue;
        }
        assert_eq!(process.wait().expect("it ends").code(), Some(code));
    }
}

#[test]
fn what_a_job_says_of_its_rejects_has_to_make_sense() {
    let scene = Scene::new(in_sqlite, "until: now\nkeep_rejects: 10ms", "", "");
    scene.run(&[]).ended(2).says(&["`keep_rejects` is at least `1s`"]);
    let job = "keep_rejects: 30d\nsources: {s: {read: in.txt, lines: {}}}\nsinks: {o: {from: s, write: '-'}}\n";
    scene.lab.file("job.yaml", job);
    scene.run(&[]).ended(2).says(&["`keep_rejects` is for jobs that read a queue"]);
}

/// Many epochs, each with a reject, take no more memory and descriptors than some.
#[test]
fn rejects_take_no_memory() {
    const SOME: usize = 2_500;
    let job = "until: stopped\ncommit: {rows: 1}";
    let scene = Scene::new(in_sqlite, job, ", max_rejects: 1000000", "");
    let config = scene.lab.read("job.yaml");
    let head = &config[..config.find("sinks:").expect("it has sinks")];
    scene.lab.file("job.yaml", format!("{head}sinks:\n  o: {{from: events, write: discard}}\n"));
    scene.redis.command(&["XGROUP", "CREATE", "events", "load", "0", "MKSTREAM"]);
    let process = scene.start_with(&[("MILLSTREAM_REJECT_BYTES", "100000")]);
    let used = || {
        let status = fs_err::read_to_string(format!("/proc/{}/status", process.id())).expect("it lives");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
        let kilobytes: usize = line.trim().trim_end_matches(" kB").parse().expect("a number");
        (kilobytes, fs_err::read_dir(format!("/proc/{}/fd", process.id())).expect("it lives").count())
    };
    let rejected = || scene.last_run()["rows_rejected"].as_u64().unwrap_or_default() as usize;
    // Each waits for the disk: so long as some come, all is well.
    let until_rejected = |count: usize| {
        let mut now = rejected();
        while now < count {
            let before = now;
            until("more are rejected", || rejected() > before);
            now = rejected();
        }
        assert_eq!(now, count);
    };
    scene.add_bad(SOME);
    until_rejected(SOME);
    let some = used();
    scene.add_bad(3 * SOME);
    until_rejected(4 * SOME);
    let all = used();
    eprintln!("(kB, descriptors) after {SOME} epochs {some:?}, after {} {all:?}", 4 * SOME);
    assert!(all.0 < some.0 + some.0 / 10 && all.1 <= some.1 + 2, "{some:?} {all:?}");
    assert_eq!(scene.last_run()["status"]["queue"]["epochs"], json!(4 * SOME));
    stop(process);
    assert_eq!(scene.rejects().len(), 4 * SOME);
}
