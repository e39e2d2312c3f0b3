//! Jobs that write messages into files, in a folder and in a bucket: from Kafka each message is there once, whatever
//! dies; from Redis at least once.

use std::collections::BTreeMap;
use std::path::PathBuf;

use millstream_testkit::{Kafka, SECRET};

use super::*;
use crate::harness::{self, MILLSTREAM};
use crate::use_support::{FileTarget, finish, gunzip, sqlite};

const PARTITIONS: usize = 3;

/// How long anything may take that takes a few seconds.
const PATIENCE: Duration = Duration::from_secs(300);

const BOTH: [fn() -> FileTarget; 2] = [FileTarget::folder, FileTarget::bucket];

struct Topic {
    files: FileTarget,
    topic: String,
}

impl Topic {
    /// A topic of three partitions, which a group writes into files. `job` has `until` and other keys of the job,
    /// `name` is that of the files.
    fn new(kafka: &Kafka, files: FileTarget, job: &str, name: &str) -> Self {
        Topic::of(kafka, files, job, name, PARTITIONS)
    }

    fn of(kafka: &Kafka, files: FileTarget, job: &str, name: &str, partitions: usize) -> Self {
        let topic = kafka.topic(partitions as i32);
        let sink = files.sink(name, "");
        files.lab.file(
            "job.yaml",
            format!(
                "{job}\nsources:\n  s: {{read: 'kafka://{}/{topic}', kafka: {{group: load-{topic}}}, json: {{columns: \
                 {{id: int64, name: utf8}}}}, add: [_id]}}\nsinks:\n  o: {sink}\n",
                kafka.address(),
            ),
        );
        Topic { files, topic }
    }

    fn change(&self, from: &str, to: &str) {
        let job = self.files.lab.read("job.yaml");
        assert!(job.contains(from), "{job}");
        self.files.lab.file("job.yaml", job.replace(from, to));
    }

    /// Messages with these ids, over all partitions.
    fn add(&self, kafka: &Kafka, ids: Range<usize>) {
        self.add_to(kafka, PARTITIONS, ids);
    }

    fn add_to(&self, kafka: &Kafka, partitions: usize, ids: Range<usize>) {
        for partition in 0..partitions {
            let own = ids.clone().filter(|id| id % partitions == partition);
            let body = |id| format!("{{\"id\": {id}, \"name\": \"row {id}\"}}");
            kafka.send(&self.topic, partition as i32, own.map(body));
        }
    }

    fn start(&self, variable: &str, at: &str) -> Child {
        let mut command = self.files.lab.command(&["run", "job.yaml"]);
        command.env("BUCKET_SECRET", SECRET).env(variable, at).env("MILLSTREAM_SHORT_SESSIONS", "1");
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts")
    }

    fn begin(&self) -> Child {
        self.start("MILLSTREAM_FAIL_AT", "none")
    }

    fn run(&self) -> Ran {
        self.files.run(&[])
    }

    fn wait_for(&self, messages: usize) {
        let begun = Instant::now();
        while count(&self.files).1 < messages {
            assert!(begun.elapsed() < PATIENCE, "{:?} of {messages}", count(&self.files));
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    #[track_caller]
    fn has_once(&self, messages: usize) {
        assert_eq!(count(&self.files), (messages, messages));
    }
}

/// The files that others see, in the order of their names.
fn visible(files: &FileTarget) -> Vec<PathBuf> {
    let Ok(entries) = fs_err::read_dir(files.out()) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths
        .retain(|path| path.is_file() && !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.')));
    paths.sort();
    paths
}

/// The ids of the messages in a file.
fn ids(path: &PathBuf) -> Vec<String> {
    let text = gunzip(&fs_err::read(path).expect("it reads"));
    let id =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["_id"].as_str().map(str::to_owned);
    text.lines().map(|line| id(line).expect("an id")).collect()
}

/// How many rows there are, and how many messages they are of.
fn count(files: &FileTarget) -> (usize, usize) {
    let all: Vec<String> = visible(files).iter().flat_map(ids).collect();
    (all.len(), all.iter().collect::<BTreeSet<_>>().len())
}

#[test]
fn messages_become_lines_once() {
    let kafka = Kafka::shared();
    for files in BOTH {
        let topic = Topic::new(kafka, files(), "until: now\ncommit: {rows: 1000}", "events.ndjson.gz");
        topic.add(kafka, 0..10_000);
        topic.run().ok().says(&["10,000 rows read, 10,000 written", "10,000 rows in", "events-*.ndjson.gz"]);
        topic.has_once(10_000);
        let before = visible(&topic.files);
        topic.run().ok();
        assert_eq!(visible(&topic.files), before, "nothing comes twice");
        topic.add(kafka, 10_000..10_050);
        topic.run().ok();
        topic.has_once(10_050);
        // Each file has the name of its first message, and begins where the one before it ends.
        let mut ends = BTreeMap::from([(0, 0), (1, 0), (2, 0)]);
        for path in visible(&topic.files) {
            let ids = ids(&path);
            let (partition, offset) = ids[0].split_once(':').expect("an id");
            let (partition, offset): (usize, usize) =
                (partition.parse().expect("a number"), offset.parse().expect("one"));
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            assert_eq!(name, format!("events-{partition:05}-{offset:020}.ndjson.gz"));
            assert_eq!(ends.insert(partition, offset + ids.len()), Some(offset));
        }
    }
}

#[test]
fn messages_become_rows_of_parquet_once() {
    let kafka = Kafka::shared();
    for files in BOTH {
        let topic = Topic::new(kafka, files(), "until: {empty: 2s}\ncommit: {rows: 500}", "events.parquet");
        let mut all = 0;
        for kill in ["files.committed:2", "files.made:2"] {
            topic.add(kafka, all..all + 3_000);
            all += 3_000;
            assert_eq!(topic.start("MILLSTREAM_FAIL_AT", kill).wait().expect("it ends").signal(), Some(9), "{kill}");
        }
        topic.run().ok();
        let out = topic.files.out();
        topic.files.lab.file(
            "back.yaml",
            format!(
                "sources: {{s: {{read: '{}/events-*.parquet'}}}}\nsinks: {{o: {{from: s, write: 'sqlite:back.db', \
                 table: r}}}}\n",
                out.display()
            ),
        );
        topic.files.lab.run(&["run", "back.yaml"]).ok();
        let rows = sqlite(&topic.files.lab.path("back.db"), "SELECT count(*), count(DISTINCT _id), sum(id) FROM r");
        assert_eq!(rows, [[all.to_string(), all.to_string(), (all * (all - 1) / 2).to_string()]]);
    }
}

/// A run that is killed leaves nothing lost and nothing doubled, wherever it dies, and the next one just continues.
#[test]
fn a_killed_run_loses_and_doubles_nothing() {
    let kafka = Kafka::shared();
    let killed = |files: fn() -> FileTarget, more: &[&str]| {
        let topic = Topic::new(kafka, files(), "until: {empty: 2s}\ncommit: {rows: 500}", "events.ndjson.gz");
        let points = ["commit.before:2", "files.committed:2", "files.committed", "files.made:2", "commit.after:3"];
        let mut all = 0;
        for kill in points.iter().chain(["epoch.committed", "commit.before"].iter()).chain(more) {
            topic.add(kafka, all..all + 1_500);
            all += 1_500;
            assert_eq!(topic.start("MILLSTREAM_FAIL_AT", kill).wait().expect("it ends").signal(), Some(9), "{kill}");
            let (rows, messages) = count(&topic.files);
            assert_eq!(rows, messages, "{kill}");
        }
        topic.run().ok();
        topic.has_once(all);
        topic.run().ok();
        topic.has_once(all);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| killed(FileTarget::folder, &["files.linked:2", "files.linked"]));
        scope.spawn(|| killed(FileTarget::bucket, &[]));
    });
}

/// Processes share the partitions, and come, go and are killed at any time, while epochs are open.
#[test]
fn processes_that_come_and_go_share_the_messages() {
    const ALL_MESSAGES: usize = 9_000;
    let kafka = Kafka::shared();
    let shared = |files: fn() -> FileTarget| {
        let job = "until: stopped\ncommit: {rows: 200, every: 200ms}";
        let topic = Topic::new(kafka, files(), job, "events.ndjson.gz");
        let mut running: Vec<Child> = (0..2).map(|_| topic.begin()).collect();
        for round in 0..6 {
            topic.add(kafka, round * ALL_MESSAGES / 6..(round + 1) * ALL_MESSAGES / 6);
            // Some messages of this round are there, and some are not.
            topic.wait_for(round * ALL_MESSAGES / 6 + ALL_MESSAGES / 24);
            let mut ended = std::mem::replace(&mut running[round % 2], topic.begin());
            if round % 3 == 0 {
                stop(ended);
            } else {
                ended.kill().expect("it is killed");
                ended.wait().expect("it ends");
            }
        }
        topic.wait_for(ALL_MESSAGES);
        running.into_iter().for_each(stop);
        topic.has_once(ALL_MESSAGES);
    };
    std::thread::scope(|scope| BOTH.into_iter().for_each(|files| drop(scope.spawn(move || shared(files)))));
}

/// A process that was stopped while another took its partitions finds that the positions have moved, and makes no file.
#[test]
fn a_process_that_was_paused_doubles_nothing() {
    let kafka = Kafka::shared();
    let paused = |files: fn() -> FileTarget, at: &str| {
        let job = "until: stopped\ncommit: {rows: 100, every: 100ms}";
        let topic = Topic::new(kafka, files(), job, "events.ndjson.gz");
        topic.add(kafka, 0..3_000);
        let paused = topic.start("MILLSTREAM_STOP_AT", at);
        until_paused(&paused);
        let other = topic.begin();
        topic.wait_for(3_000);
        kill_process(Pid::from_child(&paused), Signal::CONT).expect("it continues");
        topic.add(kafka, 3_000..4_500);
        topic.wait_for(4_500);
        // What comes now can only be taken by the one that was paused.
        stop(other);
        topic.add(kafka, 4_500..6_000);
        topic.wait_for(6_000);
        stop(paused);
        topic.has_once(6_000);
    };
    std::thread::scope(|scope| {
        for files in BOTH {
            for at in ["commit.before:5", "files.committed:5"] {
                scope.spawn(move || paused(files, at));
            }
        }
    });
}

/// What is not known to be of the load is neither written over nor passed over.
#[test]
fn a_file_of_others_is_left_alone() {
    let kafka = Kafka::shared();
    for files in BOTH {
        let topic = Topic::new(kafka, files(), "until: now", "events.ndjson.gz");
        topic.add(kafka, 0..30);
        let foreign = topic.files.out().join("events-00001-00000000000000000000.ndjson.gz");
        fs_err::create_dir_all(topic.files.out()).expect("a folder");
        fs_err::write(&foreign, "foreign").expect("a file");
        topic.run().ended(1).says(&["events-00001-00000000000000000000.ndjson.gz exists already", "move its earlier"]);
        assert_eq!(fs_err::read_to_string(&foreign).expect("it reads"), "foreign");
        fs_err::remove_file(&foreign).expect("it is removed");
        topic.run().ok();
        topic.has_once(30);
    }
}

/// Files are moved away as soon as a run has ended.
#[test]
fn files_that_are_moved_away_are_not_missed() {
    let kafka = Kafka::shared();
    for files in BOTH {
        let topic = Topic::new(kafka, files(), "until: now\ncommit: {rows: 100}", "events.ndjson.gz");
        for round in 0..4 {
            topic.add(kafka, round * 600..(round + 1) * 600);
            topic.run().ok();
            topic.has_once(600);
            visible(&topic.files).iter().for_each(|path| fs_err::remove_file(path).expect("it is removed"));
        }
    }
}

/// Files of many partitions are not all open at once.
#[test]
fn many_partitions_need_few_descriptors() {
    const MANY: usize = 200;
    let kafka = Kafka::shared();
    let job = "until: now\ncommit: {rows: 100000, every: 1h}";
    let topic = Topic::of(kafka, FileTarget::folder(), job, "events.ndjson.gz", MANY);
    topic.add_to(kafka, MANY, 0..2 * MANY);
    let mut limited = harness::program(topic.files.lab.0.root(), "sh");
    limited.args(["-c", "ulimit -n 150; exec \"$0\" \"$@\"", MILLSTREAM, "run", "job.yaml"]);
    finish(limited, None).ok();
    topic.has_once(2 * MANY);
    assert_eq!(visible(&topic.files).len(), MANY, "one epoch");
}

#[test]
fn files_belong_to_one_load() {
    let kafka = Kafka::shared();
    for files in BOTH {
        let topic = Topic::new(kafka, files(), "until: now", "events.ndjson.gz");
        topic.add(kafka, 0..30);
        topic.run().ok();
        // A job that has changed continues.
        topic.change("add: [_id]", "add: [_id, _time]");
        topic.add(kafka, 30..60);
        topic.run().ok();
        topic.has_once(60);
        topic.files.lab.file("other.yaml", topic.files.lab.read("job.yaml"));
        let refused = topic.files.ran(&["run", "other.yaml"], None);
        refused.ended(1).says(&["events-*.ndjson.gz belong to another load", "the sink `o` of", "job.yaml"]);
        topic.has_once(60);
    }
}

/// Epochs without rows move the position, and make no files.
#[test]
fn filtered_messages_are_passed_once() {
    let kafka = Kafka::shared();
    for files in BOTH {
        let topic = Topic::new(kafka, files(), "until: now\ncommit: {rows: 100}", "events.ndjson.gz");
        topic.change("sinks:", "transforms:\n  few: {sql: 'SELECT _id, id FROM s WHERE id < 10 OR id > 1480'}\nsinks:");
        topic.change("from: s,", "from: few,");
        topic.add(kafka, 0..1_400);
        topic.run().ok().says(&["1,400 rows read, 10 written"]);
        assert_eq!(visible(&topic.files).len(), PARTITIONS, "{:?}", visible(&topic.files));
        // Positions stand behind all of it: what is deleted was read.
        for partition in 0..PARTITIONS as i32 {
            kafka.delete_records(&topic.topic, partition, kafka.range(&topic.topic, partition).1);
        }
        topic.add(kafka, 1_400..1_500);
        topic.run().ok().says(&["100 rows read, 19 written"]);
        topic.has_once(29);
    }
}

#[test]
fn explain_says_what_holds_and_settings_that_need_all_rows_are_refused() {
    let kafka = Kafka::shared();
    let topic = Topic::new(kafka, FileTarget::folder(), "until: now", "events.ndjson.gz");
    let explain = || topic.files.lab.run(&["explain", "job.yaml"]);
    let explained = explain();
    let guarantee = "exactly once: each epoch of a partition makes one file, which appears with the position behind it";
    assert!(explained.ok().stdout.contains(guarantee), "{}", explained.stdout);
    let job = topic.files.lab.read("job.yaml");
    for (setting, why) in [
        (", roll: {rows: 10}}", "`roll` spreads all rows over files"),
        (", shards: {count: 2, hash: id}}", "`shards` spreads all rows over files"),
        (", split: id}", "`split` spreads all rows over files"),
        (", mode: replace}", "`mode: replace` is about all files of a run"),
        (", mode: error}", "`mode: error` is about all files of a run"),
        (", overwrite: true}", "`mode: replace` is about all files of a run"),
    ] {
        topic.files.lab.file("job.yaml", job.replace("ndjson.gz'}", &format!("ndjson.gz'{setting}")));
        explain().ended(2).says(&["`o` cannot take rows of a queue", why]);
    }
    topic.files.lab.file("job.yaml", job.replace("ndjson.gz'}", "ndjson.gz', mode: append}"));
    topic.add(kafka, 0..30);
    topic.run().ok();
    topic.has_once(30);
}

/// A stream of Redis into files, with these keys of the job.
fn stream(files: &FileTarget, redis: &Redis, job: &str) {
    let sink = files.sink("events.ndjson.gz", "");
    files.lab.file(
        "job.yaml",
        format!(
            "{job}\nsources:\n  s: {{read: '{}', redis: {{stream: events, group: load, claim_after: 10s}}, json: \
             {{columns: {{id: int64}}}}, add: [_id]}}\nsinks:\n  o: {sink}\n",
            redis.url()
        ),
    );
}

#[test]
fn entries_of_redis_are_in_files_at_least_once() {
    let at_least_once = |files: fn() -> FileTarget| {
        let (files, redis) = (files(), Redis::start(RedisOptions::default()));
        stream(&files, &redis, "until: {empty: 1s}\ncommit: {rows: 300}");
        let explained = files.lab.run(&["explain", "job.yaml"]);
        let guarantee = "at least once: each epoch makes a file, and another one if its messages come again";
        assert!(explained.ok().stdout.contains(guarantee), "{}", explained.stdout);
        let script = "for id = 1, 2000 do redis.call('XADD', KEYS[1], '*', 'body', '{\"id\": ' .. id .. '}') end";
        redis.command(&["EVAL", script, "1", "events"]);
        for kill in ["commit.before:2", "commit.after:2", "epoch.committed"] {
            files.ran(&["run", "job.yaml"], Some(kill)).ended(-1);
        }
        files.run(&[]).ok();
        let (rows, messages) = count(&files);
        assert_eq!(messages, 2_000);
        assert!((2_300..=2_900).contains(&rows), "two epochs came again: {rows}");
        assert!(redis.command(&["XPENDING", "events", "load"]).starts_with('0'));
        files.run(&[]).ok();
        assert_eq!(count(&files), (rows, messages));
    };
    // Each run waits ten seconds for the messages of the one before it.
    std::thread::scope(|scope| BOTH.into_iter().for_each(|files| drop(scope.spawn(move || at_least_once(files)))));
}
