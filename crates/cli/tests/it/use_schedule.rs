//! The command `schedule`: its list, what it says, signals, and what it takes at rest. How starts happen once is tested
//! where the scheduler is.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use millstream_testkit::{Kafka, Redis, RedisOptions};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::millstream;
use crate::use_support::{Lab, sqlite};

/// 31 January 2026, 0:30 UTC.
const NOW: &str = "1769819400000";

const NIGHTLY: &str = "schedule: {cron: '0 2 * * *', timezone: Europe/Berlin}\nsteps:\n  load: {job: load.yaml}\n";

fn command(lab: &Lab, arguments: &[&str]) -> Command {
    let mut command = millstream(&lab.path(""), arguments);
    command.env("MILLSTREAM_NOW", NOW);
    command
}

/// Writes a sequence that was changed on 30 January.
fn write(lab: &Lab, name: &str, text: &str) -> PathBuf {
    let path = lab.path(name);
    fs_err::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs_err::write(&path, text).expect("written");
    let file = fs_err::File::options().write(true).open(&path).expect("a file");
    let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(1_769_731_200);
    file.set_modified(changed).expect("it takes the time");
    path
}

fn run(command: &mut Command) -> (i32, String, String) {
    let output = command.output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().expect("an exit code"), text(&output.stdout), text(&output.stderr))
}

/// A program that is `millstream run` to the scheduler.
fn program(lab: &Lab, text: &str) -> PathBuf {
    let path = lab.path("program");
    fs_err::write(&path, format!("#!/bin/sh\n{text}\n")).expect("written");
    fs_err::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a program");
    path
}

#[test]
fn the_list_shows_what_comes_next() {
    let lab = Lab::new();
    assert_eq!(run(&mut command(&lab, &["schedule", "--list"])).1, "no sequence here has a schedule\n");
    write(&lab, "jobs/nightly.yaml", NIGHTLY);
    write(&lab, "jobs/often.yaml", "schedule: {cron: '*/15 * * * *'}\nsteps: {a: {job: a.yaml}}\n");
    write(&lab, "jobs/follow.yaml", "schedule: {after: nightly.yaml}\nsteps: {a: {job: a.yaml}}\n");
    write(&lab, "jobs/.old/nightly.yaml", NIGHTLY);
    let job = "sources:\n  s: {read: in.csv, csv: {columns: {n: int64}}}\nsinks:\n  o: {from: s, write: out.csv}\n";
    write(&lab, "jobs/a.yaml", job);
    let (code, _, messages) = run(&mut command(&lab, &["schedule", "jobs", "--list"]));
    assert_eq!(code, 2);
    assert!(messages.contains("there is no file") && messages.contains("nightly.yaml:3:15"), "{messages}");
    write(&lab, "jobs/load.yaml", job);
    let (code, text, messages) = run(&mut command(&lab, &["schedule", "jobs", "--list"]));
    assert_eq!((code, messages.as_str()), (0, ""));
    let expected = "\
next                     time zone      sequence      now  last  ended
2026-01-31 00:45         UTC            often.yaml
2026-01-31 02:00         Europe/Berlin  nightly.yaml
the end of nightly.yaml  UTC            follow.yaml
";
    assert_eq!(text, expected);
    let (_, json, _) = run(&mut command(&lab, &["schedule", "jobs", "--list", "--json", "-n", "2"]));
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let nightly = &json["sequences"][1];
    let next = serde_json::json!(["2026-01-31T02:00:00+01:00", "2026-02-01T02:00:00+01:00"]);
    assert_eq!((&nightly["next"], &nightly["timezone"]), (&next, &"Europe/Berlin".into()));
    assert_eq!(json["sequences"][2]["triggers"][0], "the end of nightly.yaml");
}

#[test]
fn mistakes_have_their_place() {
    let lab = Lab::new();
    write(&lab, "good.yaml", NIGHTLY);
    write(&lab, "bad.yaml", "schedule:\n  cron: 0 25 * * *\n  overlap: wait\nsteps: {a: {job: a.yaml}}\n");
    write(&lab, "typo.yaml", "schedule: {crom: '@daily'}\nsteps: {a: {job: a.yaml}}\n");
    let (code, text, messages) = run(&mut command(&lab, &["schedule", "--list"]));
    assert_eq!(code, 2, "{messages}");
    assert!(text.contains("good.yaml") && !text.contains("bad.yaml"), "{text}");
    assert!(messages.contains("bad.yaml:3:12") && messages.contains("typo.yaml:1:12"), "{messages}");
    assert!(messages.contains("did you mean `cron`?"), "{messages}");
    let (code, _, messages) = run(&mut command(&lab, &["schedule", "nowhere"]));
    assert_eq!(code, 1, "{messages}");
    assert!(messages.contains("nowhere cannot be read"), "{messages}");
    let (code, _, messages) = run(&mut command(&lab, &["schedule", "--parallel", "0"]));
    assert_eq!(code, 2, "{messages}");
}

#[test]
fn once_starts_what_is_due_with_the_arguments_of_the_scheduler() {
    let lab = Lab::new();
    write(&lab, "nightly.yaml", NIGHTLY);
    let program = program(&lab, "echo \"$@\"; exit 2");
    let mut once = command(&lab, &["schedule", "--once", "--cores", "1", "--json"]);
    // An hour later.
    once.env("MILLSTREAM_NOW", "1769823000000").env("MILLSTREAM_SCHEDULER_PROGRAM", &program);
    let (code, text, messages) = run(&mut once);
    assert_eq!((code, text.as_str()), (1, "{\"end\":\"done\",\"failed\":1}\n"), "{messages}");
    let of = "nightly.yaml of 2026-01-31 02:00 Europe/Berlin";
    assert!(messages.contains(&format!("{of}: started\n")), "{messages}");
    assert!(
        messages.contains(&format!("error: {of}: failed\n  cause it could not begin: exit code 2\n")),
        "{messages}"
    );
    let log = messages.split("what it printed is in ").nth(1).expect("a log").trim();
    let sequence = fs_err::canonicalize(lab.path("nightly.yaml")).expect("a file");
    let printed = fs_err::read_to_string(log).expect("a file");
    let state = lab.path(".state");
    let expected = format!(
        "run {} --occurrence 1769821200000 --quiet --state {} --cores 1 --beside 1\n",
        sequence.display(),
        state.display()
    );
    assert_eq!(printed, expected);
    let (code, _, messages) = run(&mut once);
    assert_eq!(code, 0, "it was decided: {messages}");
    let listed = run(&mut command(&lab, &["schedule", "--list"])).1;
    assert!(listed.ends_with("2026-01-31 02:00  failed\n"), "{listed}");
    let stored = sqlite(&state.join("runs.db"), "SELECT state, outcome, cause FROM occurrences");
    assert_eq!(stored, [["ended", "failed", "a missed time"]]);
}

/// A scheduler that is ended with the test.
struct Runs(Child);

impl Runs {
    fn start(command: &mut Command) -> Self {
        Runs(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts"))
    }

    fn id(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    fn end(&mut self, signal: Signal) -> (i32, String) {
        kill_process(self.id(), signal).expect("it lives");
        let mut messages = String::new();
        self.0.stderr.take().expect("a pipe").read_to_string(&mut messages).expect("text");
        (self.0.wait().expect("it ends").code().expect("an exit code"), messages)
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for(path: &Path) {
    let begin = Instant::now();
    while !path.exists() {
        assert!(begin.elapsed() < Duration::from_secs(180), "{} does not come", path.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_signal_ends_the_scheduler_and_leaves_its_runs() {
    let lab = Lab::new();
    write(&lab, "nightly.yaml", NIGHTLY);
    let (began, go, ended) = (lab.path("began"), lab.path("go"), lab.path("ended"));
    let text = format!(
        "touch {0}; while [ -e {0} ] && [ ! -e {1} ]; do sleep 0.05; done; touch {2}",
        began.display(),
        go.display(),
        ended.display()
    );
    let program = program(&lab, &text);
    let mut command = command(&lab, &["schedule"]);
    command.env("MILLSTREAM_NOW", "1769823000000").env("MILLSTREAM_SCHEDULER_PROGRAM", &program);
    let mut first = Runs::start(&mut command);
    wait_for(&began);
    let (code, _, messages) = run(&mut millstream(&lab.path(""), &["schedule"]));
    assert_eq!(code, 1, "{messages}");
    let process = first.0.id();
    let expected = format!(
        "error: another scheduler works on this state folder: process {process}\n\
         hint: end it first, or give this one a state folder of its own with `--state`\n"
    );
    assert_eq!(messages, expected);
    assert_eq!(run(&mut millstream(&lab.path(""), &["schedule", "--once"])).0, 0, "the other one does it");
    let (code, messages) = first.end(Signal::TERM);
    assert_eq!(code, 0);
    assert!(messages.ends_with("stopped; 1 run goes on, and the next scheduler follows it\n"), "{messages}");
    fs_err::write(&go, "").expect("written");
    wait_for(&ended);
}

#[test]
fn a_scheduler_at_rest_is_small() {
    let lab = Lab::new();
    for number in 0..100 {
        write(&lab, &format!("s{number}.yaml"), NIGHTLY);
    }
    let mut scheduler = Runs::start(&mut command(&lab, &["schedule", "--quiet"]));
    wait_for(&lab.path(".state/scheduler.lock"));
    // It has looked at the files once, and sleeps.
    let status = || fs_err::read_to_string(format!("/proc/{}/status", scheduler.0.id())).expect("it lives");
    // Pages of the program belong to its file: a debug build has several times as many as a release build, whose
    // resident size is to be below 40 MB.
    let anonymous = |text: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a line").to_owned();
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
    };
    std::thread::sleep(Duration::from_secs(3));
    let kilobytes = anonymous(&status());
    assert!(kilobytes <= 24_000, "{kilobytes} kB");
    assert_eq!(scheduler.end(Signal::INT).0, 0);
}

#[test]
fn a_sequence_that_is_followed_has_to_be_there() {
    let lab = Lab::new();
    write(&lab, "follow.yaml", "schedule: {after: {sequence: gone.yaml}}\nsteps: {a: {command: ['true']}}\n");
    let (code, _, messages) = run(&mut command(&lab, &["schedule", "--list"]));
    assert_eq!(code, 2, "{messages}");
    assert!(messages.contains("there is no file") && messages.contains("follow.yaml:1:30"), "{messages}");
}

#[test]
fn mistakes_in_steps_are_reported_when_files_are_read() {
    let lab = Lab::new();
    write(&lab, "nightly.yaml", NIGHTLY);
    write(&lab, "load.yaml", "sources:\n  s: {raed: in.csv}\nsinks:\n  o: {from: s, write: out.csv}\n");
    let (_, _, messages) = run(&mut command(&lab, &["schedule", "--once"]));
    assert!(messages.contains("load.yaml:2:7") && messages.contains("did you mean `read`?"), "{messages}");
    assert!(messages.contains("nightly.yaml: its next start may fail, until this is corrected"), "{messages}");
}

/// Each message that `send` sends starts a sequence once, whichever process is killed.
fn messages_start_sequences(message: &str, send: impl Fn()) {
    let lab = Lab::new();
    let steps = "steps: {a: {command: [sh, -c, 'echo x >> out.txt']}}";
    lab.file("on.yaml", format!("schedule: {{message: {message}}}\n{steps}\n"));
    let started = |count: usize| {
        let begin = Instant::now();
        let lines = || fs_err::read_to_string(lab.path("out.txt")).unwrap_or_default().lines().count();
        while lines() < count {
            assert!(begin.elapsed() < Duration::from_secs(120), "{} of {count} have started", lines());
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(lines(), count);
    };
    send();
    send();
    let scheduler = Runs::start(&mut millstream(&lab.path(""), &["schedule"]));
    started(2);
    send();
    started(3);
    // It is killed, and may have acknowledged the last one or not.
    drop(scheduler);
    send();
    let mut scheduler = Runs::start(&mut millstream(&lab.path(""), &["schedule"]));
    started(4);
    assert_eq!(scheduler.end(Signal::TERM).0, 0);
    let state = lab.path(".state/runs.db");
    assert_eq!(sqlite(&state, "SELECT count(*) FROM occurrences WHERE cause LIKE 'message %'"), [["4"]]);
    let listed = run(&mut millstream(&lab.path(""), &["schedule", "--list"])).1;
    let of = if message.contains("stream:") { "messages of the stream " } else { "messages of kafka://" };
    assert!(listed.contains(of), "{listed}");
}

#[test]
fn each_message_of_redis_starts_a_sequence_once() {
    let redis = Redis::start(RedisOptions::default());
    let settings = "{stream: orders, group: nightly, claim_after: 10s}";
    let message = format!("{{from: '{}', redis: {settings}}}", redis.url());
    messages_start_sequences(&message, || drop(redis.command(&["XADD", "orders", "*", "body", "{}"])));
}

#[test]
fn each_message_of_kafka_starts_a_sequence_once() {
    let kafka = Kafka::shared();
    let topic = kafka.topic(1);
    let message = format!("{{from: 'kafka://{}/{topic}', kafka: {{group: '{topic}'}}}}", kafka.address());
    messages_start_sequences(&message, || kafka.send(&topic, 0, ["{}"]));
}

#[test]
fn a_queue_needs_its_group() {
    let lab = Lab::new();
    write(&lab, "a.yaml", "schedule: {message: {from: 'kafka://b:9092/t'}}\nsteps: {a: {command: ['true']}}\n");
    write(&lab, "b.yaml", "schedule: {message: {from: 'http://b/t'}}\nsteps: {a: {command: ['true']}}\n");
    let (code, _, messages) = run(&mut command(&lab, &["schedule", "--list"]));
    assert_eq!(code, 2, "{messages}");
    assert!(messages.contains("the consumer group is missing"), "{messages}");
    assert!(messages.contains("this is no queue") && messages.contains("b.yaml:1:28"), "{messages}");
}
