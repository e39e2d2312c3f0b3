//! Jobs that write to a queue, through the real binary: each row becomes a message, at least once, whatever dies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use millstream_testkit::{Kafka, KafkaOptions, Redis, RedisOptions, free_port};

use super::{stop, until};
use crate::use_resume::in_sqlite;
use crate::use_support::{Lab, Ran};

pub(super) const PARTITIONS: i32 = 3;

/// How many keys the messages have.
const KEYS: usize = 7;

/// A file of rows with these ids.
pub(super) fn rows(lab: &Lab, name: &str, ids: Range<usize>) {
    let mut text = "id,_key,_headers,_time\n".to_owned();
    for id in ids {
        let _ =
            writeln!(text, "{id},key {},\"{{\"\"n\"\":\"\"{id}\"\"}}\",2023-11-14 22:13:{:02}.500", id % KEYS, id % 60);
    }
    lab.file(name, text);
}

/// A job from a source to a sink, which are written as flow mappings.
pub(super) fn job(lab: &Lab, head: &str, source: &str, sink: &str) {
    lab.file("job.yaml", format!("{head}\nsources:\n  s: {{{source}}}\nsinks:\n  o: {{from: s, {sink}}}\n"));
}

pub(super) const CSV: &str =
    "read: rows.csv, csv: {columns: {id: int64, _key: utf8, _headers: utf8, _time: timestamp}}";

/// Rows with a key and headers, from a topic.
pub(super) fn from_topic(kafka: &Kafka, topic: &str) -> String {
    format!(
        "read: 'kafka://{}/{topic}', kafka: {{group: g-{topic}}}, json: {{columns: {{id: int64}}}}, add: [_key, \
         _headers, _time]",
        kafka.address()
    )
}

pub(super) fn to_topic(kafka: &Kafka, topic: &str) -> String {
    format!("write: 'kafka://{}/{topic}', add: [_key, _headers, _time]", kafka.address())
}

fn from_stream(redis: &Redis, stream: &str) -> String {
    format!(
        "read: '{}', redis: {{stream: {stream}, group: g, field: body, claim_after: 10s}}, json: {{columns: {{id: \
         int64}}}}, add: [_key, _headers, _time]",
        redis.url()
    )
}

fn to_stream(redis: &Redis, stream: &str) -> String {
    format!("write: '{}', redis: {{stream: {stream}}}, add: [_key, _headers]", redis.url())
}

pub(super) fn run(lab: &Lab) -> Ran {
    lab.run(&["run", "job.yaml"])
}

fn start(lab: &Lab, fail_point: &str) -> Child {
    let mut command = lab.command(&["run", "job.yaml"]);
    command.env("MILLSTREAM_FAIL_AT", fail_point).env("MILLSTREAM_SHORT_SESSIONS", "1");
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts")
}

pub(super) fn killed(lab: &Lab, fail_point: &str) {
    let mut command = lab.command(&["run", "job.yaml"]);
    command.env("MILLSTREAM_FAIL_AT", fail_point).env("MILLSTREAM_SHORT_SESSIONS", "1");
    let ended = command.output().expect("it starts");
    assert_eq!(ended.status.signal(), Some(9), "{fail_point}: {}", String::from_utf8_lossy(&ended.stderr));
}

/// A message as it was received.
#[derive(Debug, PartialEq)]
pub(super) struct Received {
    pub(super) partition: usize,
    pub(super) offset: usize,
    pub(super) id: usize,
    key: String,
    headers: String,
    time: String,
}

/// What a topic has, in the order of its partitions.
pub(super) fn received(kafka: &Kafka, topic: &str) -> Vec<Received> {
    let lab = Lab::new();
    let source = format!(
        "read: 'kafka://{}/{topic}', kafka: {{group: look-{topic}}}, json: {{columns: {{id: int64}}}}, \
         add: [_id, _key, _headers, _time]",
        kafka.address()
    );
    job(&lab, "until: now", &source, "write: 'sqlite:out.db', table: t");
    run(&lab).ok();
    let sql = "SELECT id, _id, coalesce(_key, ''), _headers, _time FROM t";
    let mut all: Vec<Received> = in_sqlite(&lab).query(sql).iter().map(|row| message(row)).collect();
    all.sort_by_key(|message| (message.partition, message.offset));
    all
}

fn message(row: &str) -> Received {
    let [id, place, key, headers, time] = row.split('\t').collect::<Vec<_>>()[..] else { panic!("{row}") };
    let number = |text: &str| text.parse().expect("a number");
    let (partition, offset) = place.split_once(':').expect("a partition and an offset");
    let (key, headers, time) = (key.to_owned(), headers.to_owned(), time.to_owned());
    Received { partition: number(partition), offset: number(offset), id: number(id), key, headers, time }
}

/// The ids of each key in the order in which they come first.
fn ids_by_key(messages: &[Received]) -> BTreeMap<String, Vec<usize>> {
    let mut seen = BTreeSet::new();
    let mut keys: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for message in messages.iter().filter(|message| seen.insert(message.id)) {
        keys.entry(message.key.clone()).or_default().push(message.id);
    }
    keys
}

/// All messages are there, with their keys and headers, and each key in one partition and in its order.
#[track_caller]
pub(super) fn assert_complete(messages: &[Received], ids: usize) {
    let keys = ids_by_key(messages);
    assert_eq!(keys.values().map(Vec::len).sum::<usize>(), ids);
    for (key, of_key) in keys {
        assert!(of_key.is_sorted(), "{key}: {of_key:?}");
    }
    let mut partitions: BTreeMap<&str, usize> = BTreeMap::new();
    for message in messages {
        assert_eq!(message.key, format!("key {}", message.id % KEYS));
        assert_eq!(message.headers, format!("{{\"n\":\"{}\"}}", message.id));
        assert_eq!(*partitions.entry(&message.key).or_insert(message.partition), message.partition);
    }
}

/// The ids in a stream, in order.
fn ids_of_stream(redis: &Redis, stream: &str) -> Vec<usize> {
    let entries = redis.command(&["XRANGE", stream, "-", "+"]);
    let bodies = entries.lines().filter_map(|line| line.strip_prefix("{\"id\":"));
    bodies.map(|body| body.trim_end_matches('}').parse().expect("a number")).collect()
}

#[test]
fn rows_of_files_become_messages_of_a_topic() {
    let kafka = Kafka::shared();
    let (lab, topic) = (Lab::new(), kafka.topic(PARTITIONS));
    rows(&lab, "rows.csv", 0..5_000);
    job(&lab, "", CSV, &to_topic(kafka, &topic));
    run(&lab).ok().says(&[&format!("5,000 messages added to topic {topic} of kafka://{}", kafka.address())]);
    let messages = received(kafka, &topic);
    assert_eq!(messages.len(), 5_000);
    assert_complete(&messages, 5_000);
    assert!(
        messages.iter().all(|message| message.time.ends_with(&format!("{:02}.5", message.id % 60))
            || message.time.contains(&format!(":{:02}.500", message.id % 60))),
        "{:?}",
        messages[0]
    );
}

#[test]
fn rows_of_files_become_entries_of_a_stream() {
    let (lab, redis) = (Lab::new(), Redis::start(RedisOptions::default()));
    let headers = "\"{\"\"a\"\":\"\"1\"\",\"\"b\"\":\"\"zwei\"\"}\"";
    lab.file("rows.csv", format!("id,name,_key,_headers\n1,é,k,{headers}\n2,\"a\nb\",,\n"));
    job(
        &lab,
        "",
        "read: rows.csv, csv: {columns: {id: int64, name: utf8, _key: utf8, _headers: utf8}, null: ''}",
        &to_stream(&redis, "s"),
    );
    run(&lab).ok().says(&["2 messages added to stream s of redis://"]);
    let entries = redis.command(&["XRANGE", "s", "-", "+"]);
    let lines: Vec<&str> = entries.lines().filter(|line| !line.contains('-')).collect();
    let expected = [
        "body",
        "{\"id\":1,\"name\":\"é\"}",
        "_key",
        "k",
        "a",
        "1",
        "b",
        "zwei",
        "body",
        "{\"id\":2,\"name\":\"a\\nb\"}",
    ];
    assert_eq!(lines, expected);
}

/// What has no format of lines is one file a message; a compressed one is one.
#[test]
fn messages_have_the_format_of_the_sink() {
    let (lab, redis) = (Lab::new(), Redis::start(RedisOptions::default()));
    lab.file("rows.csv", "id,name\n1,\"a,b\"\n2,\"two\nlines\"\n");
    let sink = format!("write: '{}', redis: {{stream: s, field: m}}, ", redis.url());
    let source = "read: rows.csv, csv: {columns: {id: int64, name: utf8}}";
    for (format, expected) in [
        ("csv: {}", "m\n1,\"a,b\"\nm\n2,\"two\nlines\""),
        ("json: {layout: array}", "m\n[\n{\"id\":1,\"name\":\"a,b\"}\n]\nm\n[\n{\"id\":2,\"name\":\"two\\nlines\"}\n]"),
    ] {
        redis.command(&["DEL", "s"]);
        job(&lab, "", source, &format!("{sink}{format}"));
        run(&lab).ok();
        let entries = redis.command(&["XRANGE", "s", "-", "+"]);
        let lines: Vec<&str> = entries.lines().filter(|line| !line.contains('-') && !line.is_empty()).collect();
        assert_eq!(lines.join("\n"), expected, "{format}");
    }
}

/// Keys, headers and the order of each key go from queue to queue.
#[test]
fn messages_are_copied_from_queue_to_queue() {
    let (kafka, lab) = (Kafka::shared(), Lab::new());
    let (first, second) = (kafka.topic(PARTITIONS), kafka.topic(PARTITIONS));
    rows(&lab, "rows.csv", 0..3_000);
    job(&lab, "", CSV, &to_topic(kafka, &first));
    run(&lab).ok();
    let head = "until: now\ncommit: {rows: 700}";
    job(&lab, head, &from_topic(kafka, &first), &to_topic(kafka, &second));
    run(&lab).ok().says(&["3,000 messages added to topic"]);
    let (sent, copied) = (received(kafka, &first), received(kafka, &second));
    assert_complete(&copied, 3_000);
    let times = |all: &[Received]| all.iter().map(|one| (one.id, one.time.clone())).collect::<BTreeSet<_>>();
    assert_eq!(times(&sent), times(&copied));
    run(&lab).ok();
    assert_eq!(received(kafka, &second).len(), 3_000, "what was acknowledged does not come again");
}

#[test]
fn messages_of_a_topic_become_entries_and_come_back() {
    let (kafka, redis, lab) = (Kafka::shared(), Redis::start(RedisOptions::default()), Lab::new());
    let (first, second) = (kafka.topic(PARTITIONS), kafka.topic(PARTITIONS));
    rows(&lab, "rows.csv", 0..2_000);
    job(&lab, "", CSV, &to_topic(kafka, &first));
    run(&lab).ok();
    let source = from_topic(kafka, &first).replace("[_key, _headers, _time]", "[_key, _headers]");
    job(&lab, "until: now\ncommit: {rows: 300}", &source, &to_stream(&redis, "s"));
    run(&lab).ok();
    let mut ids = ids_of_stream(&redis, "s");
    ids.sort_unstable();
    assert_eq!(ids, (0..2_000).collect::<Vec<_>>());
    let source = from_stream(&redis, "s").replace("[_key, _headers, _time]", "[_key, _headers]");
    let sink = to_topic(kafka, &second).replace("[_key, _headers, _time]", "[_key, _headers]");
    job(&lab, "until: now\ncommit: {rows: 300}", &source, &sink);
    run(&lab).ok();
    let back = received(kafka, &second);
    assert_eq!(back.len(), 2_000);
    assert_complete(&back, 2_000);
}

/// A run that is killed loses nothing; what it had sent may come twice. The broker misses a killed member after six
/// seconds only.
#[test]
fn a_killed_run_loses_nothing() {
    let (kafka, redis, lab) = (Kafka::shared(), Redis::start(RedisOptions::default()), Lab::new());
    let (first, second) = (kafka.topic(PARTITIONS), kafka.topic(PARTITIONS));
    rows(&lab, "rows.csv", 0..4_000);
    job(&lab, "", CSV, &to_topic(kafka, &first));
    run(&lab).ok();
    job(&lab, "until: {empty: 8s}\ncommit: {rows: 500}", &from_topic(kafka, &first), &to_topic(kafka, &second));
    for kill in ["commit.before:2", "commit.after:2", "epoch.committed"] {
        killed(&lab, kill);
    }
    run(&lab).ok();
    let copied = received(kafka, &second);
    assert_complete(&copied, 4_000);
    let source = from_topic(kafka, &second).replace("[_key, _headers, _time]", "[_key, _headers]");
    job(&lab, "until: {empty: 8s}\ncommit: {rows: 500}", &source, &to_stream(&redis, "s"));
    for kill in ["commit.before:2", "commit.after:2", "epoch.committed"] {
        killed(&lab, kill);
    }
    run(&lab).ok();
    assert_eq!(ids_of_stream(&redis, "s").into_iter().collect::<BTreeSet<_>>().len(), 4_000);
    let source = from_stream(&redis, "s").replace("[_key, _headers, _time]", "[_headers]");
    let third = kafka.topic(PARTITIONS);
    let sink = to_topic(kafka, &third).replace("[_key, _headers, _time]", "[_headers]");
    job(&lab, "until: {empty: 8s}\ncommit: {rows: 500}", &source, &sink);
    killed(&lab, "commit.after:2");
    run(&lab).ok();
    assert_eq!(received(kafka, &third).iter().map(|one| one.id).collect::<BTreeSet<_>>().len(), 4_000);
}

/// A stream that remembers ids gets each message once, whatever dies; without an id a row is a reject.
#[test]
fn messages_with_an_id_are_sent_once() {
    let (kafka, redis, lab) = (Kafka::shared(), Redis::start(RedisOptions::default()), Lab::new());
    let topic = kafka.topic(1);
    kafka.send(&topic, 0, (0..4_000).map(|id| format!("{{\"id\": {id}}}")));
    let sink = format!("write: '{}', redis: {{stream: s, id: id}}", redis.url());
    let source = from_topic(kafka, &topic).replace(", add: [_key, _headers, _time]", "");
    job(&lab, "until: {empty: 8s}\ncommit: {rows: 500}", &source, &sink);
    let explained = lab.run(&["explain", "job.yaml"]);
    explained.ok().prints(&["exactly once: the stream takes no message whose `id` it got within 7 days"]);
    for kill in ["commit.before:2", "commit.after:2", "epoch.committed"] {
        killed(&lab, kill);
    }
    run(&lab).ok().says(&["of them by `id`"]);
    assert_eq!(ids_of_stream(&redis, "s"), (0..4_000).collect::<Vec<_>>());
    kafka.send(&topic, 0, ["{\"id\": null}", "{\"id\": 7}", "{\"id\": 4000}"]);
    job(&lab, "until: now", &source, &format!("{sink}, max_rejects: 1"));
    run(&lab).ok().says(&["2 messages sent to", "which knew 1 of them by `id`"]);
    assert_eq!(ids_of_stream(&redis, "s"), (0..4_001).collect::<Vec<_>>());
    let rejects = lab.run(&["rejects", "--json"]).ok().json();
    assert_eq!(rejects["rejects"][0]["message"], "it has no id: the value is null", "{rejects}");
    job(&lab, "until: now", &source, &sink.replace("id: id", "id: i"));
    run(&lab).ended(2).says(&["`id` names `i`, which is not a column of the rows", "did you mean `id`?"]);
}

/// Brokers restart while a service copies.
#[test]
fn a_service_goes_on_when_the_broker_is_back() {
    let (mut kafka, mut redis) = (Kafka::start(KafkaOptions::default()), Redis::start(persistent()));
    let (lab, topic) = (Lab::new(), kafka.topic(1));
    let source = from_stream(&redis, "in").replace("[_key, _headers, _time]", "[_headers]");
    let sink = to_topic(&kafka, &topic).replace("[_key, _headers, _time]", "[_headers]");
    job(&lab, "until: stopped\ncommit: {rows: 200, every: 100ms}", &source, &sink);
    let add = |redis: &Redis, ids: Range<usize>| {
        let script = "for id = ARGV[1], ARGV[2] - 1 do redis.call('XADD', KEYS[1], '*', 'body', '{\"id\":' .. id .. \
                      '}') end";
        redis.command(&["EVAL", script, "1", "in", &ids.start.to_string(), &ids.end.to_string()]);
    };
    add(&redis, 0..2_000);
    let process = start(&lab, "none");
    until("it has begun", || kafka.range(&topic, 0).1 > 0);
    kafka.kill();
    add(&redis, 2_000..4_000);
    std::thread::sleep(Duration::from_secs(2));
    kafka.restart();
    until("it goes on", || kafka.range(&topic, 0).1 >= 4_000);
    redis.restart();
    add(&redis, 4_000..5_000);
    until("it goes on", || kafka.range(&topic, 0).1 >= 5_000);
    until("all are acknowledged", || redis.command(&["XPENDING", "in", "g"]).starts_with('0'));
    stop(process);
    let keys = ids_by_key(&received(&kafka, &topic));
    assert_eq!(keys[""], (0..5_000).collect::<Vec<_>>(), "in their order");
}

/// A server that forgets nothing that it has confirmed.
fn persistent() -> RedisOptions {
    let settings = [("appendonly", "yes"), ("appendfsync", "always")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    RedisOptions { settings, ..RedisOptions::default() }
}

/// A message that the broker does not take ends the run, or is a reject, and the others are there.
#[test]
fn messages_that_are_too_large() {
    let kafka = Kafka::shared();
    let lab = Lab::new();
    let topic = format!("small-{}", free_port());
    kafka.create_topic(&topic, 1, &[("max.message.bytes", "2000")]);
    let name = |id: usize| if id == 3 || id == 7 { noise(20_000) } else { "x".to_owned() };
    let text: String = (0..10).map(|id| format!("{id},{}\n", name(id))).collect();
    lab.file("rows.csv", format!("id,name\n{text}"));
    let source = "read: rows.csv, csv: {columns: {id: int64, name: utf8}}";
    let sink = format!("write: 'kafka://{}/{topic}'", kafka.address());
    job(&lab, "", source, &sink);
    run(&lab).ended(1).says(&[&format!("topic {topic} of kafka://"), "refuses 2 rows", "id=3, name='"]);
    job(&lab, "", source, &format!("{sink}, max_rejects: 2"));
    run(&lab).ok().says(&["8 messages added"]);
    let rejects = lab.run(&["rejects", "--json"]).ok().json();
    let lines: Vec<u64> =
        rejects["rejects"].as_array().expect("a list").iter().filter_map(|one| one["line"].as_u64()).collect();
    assert_eq!(lines, [5, 9], "{rejects}");
    let first = kafka.topic(1);
    kafka.send(&first, 0, (0..10).map(|id| format!("{{\"id\": {id}, \"name\": \"{}\"}}", name(id))));
    let source = format!(
        "read: 'kafka://{}/{first}', kafka: {{group: g-{first}}}, json: {{columns: {{id: int64, name: utf8}}}}",
        kafka.address()
    );
    job(&lab, "until: now", &source, &format!("{sink}, max_rejects: 1"));
    run(&lab).ended(3).says(&["2 records were rejected", "more than 2000 bytes"]);
    job(&lab, "until: now", &source, &format!("{sink}, max_rejects: 2"));
    run(&lab).ok().says(&["8 messages added"]);
    let rejects = lab.run(&["rejects", "--json"]).ok().json();
    let ids: Vec<&str> =
        rejects["rejects"].as_array().expect("a list").iter().filter_map(|one| one["message_id"].as_str()).collect();
    assert_eq!(ids, ["0:3", "0:7"], "{rejects}");
}

/// What is found only when messages are made or confirmed is kept, from files and from queues.
#[test]
fn rows_of_which_no_message_can_be_made_are_rejects() {
    let (redis, lab) = (Redis::start(RedisOptions::default()), Lab::new());
    let body = |id: usize| format!("{{\"id\": {id}, \"_headers\": \"{}\"}}", if id == 2 { "none" } else { "{}" });
    lab.file("rows.jsonl", (0..5).map(|id| body(id) + "\n").collect::<String>());
    (0..5).for_each(|id| drop(redis.command(&["XADD", "from", "*", "body", &body(id)])));
    let json = "json: {columns: {id: int64, _headers: utf8}}";
    let stream = format!("read: '{}', redis: {{stream: from, group: g}}", redis.url());
    for (head, read) in [("", "read: rows.jsonl"), ("until: now", stream.as_str())] {
        let sink = format!("write: '{}', redis: {{stream: to}}, add: [_headers], max_rejects: 1", redis.url());
        job(&lab, head, &format!("{read}, {json}"), &sink);
        run(&lab).ok().says(&["4 messages added"]);
        let rejects = lab.run(&["rejects", "--json"]).ok().json();
        let rejects = rejects["rejects"].as_array().expect("a list");
        assert_eq!(rejects.len(), 1, "{rejects:?}");
        assert_eq!(rejects[0]["raw"]["text"], body(2), "{rejects:?}");
    }
}

#[test]
fn brokers_may_create_topics_themselves() {
    let settings = vec![("auto.create.topics.enable".to_owned(), "true".to_owned())];
    let kafka = Kafka::start(KafkaOptions { settings, ..KafkaOptions::default() });
    let lab = Lab::new();
    rows(&lab, "rows.csv", 0..100);
    job(&lab, "", CSV, &to_topic(&kafka, "new"));
    run(&lab).ok().says(&["100 messages added to topic new of"]);
    assert_complete(&received(&kafka, "new"), 100);
}

#[test]
fn targets_that_are_none_are_refused_before_anything_is_sent() {
    let (kafka, redis, lab) = (Kafka::shared(), Redis::start(RedisOptions::default()), Lab::new());
    rows(&lab, "rows.csv", 0..3);
    job(&lab, "", CSV, &to_topic(kafka, "nowhere"));
    run(&lab).ended(1).says(&["has no topic `nowhere`"]);
    redis.command(&["SET", "text", "x"]);
    job(&lab, "", CSV, &to_stream(&redis, "text"));
    run(&lab).ended(1).says(&["stream text of redis://", "is not a stream", "the key holds a string"]);
}

#[test]
fn a_run_that_fails_says_what_stays() {
    let (redis, lab) = (Redis::start(RedisOptions::default()), Lab::new());
    let text: String = (0..200_000).map(|id| format!("{id}\n")).collect();
    lab.file("rows.csv", format!("id\n{text}bad\n"));
    let sink = format!("write: '{}', redis: {{stream: s}}", redis.url());
    job(&lab, "", "read: rows.csv, csv: {columns: {id: int64}}", &sink);
    run(&lab).ended(1).says(&["messages that were sent before stay in stream s of redis://"]);
    assert!(!ids_of_stream(&redis, "s").is_empty());
}

/// Text that does not compress.
pub(super) fn noise(length: usize) -> String {
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b'a' + (state % 26) as u8)
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn jobs_that_cannot_run_are_refused() {
    let (lab, redis) = (Lab::new(), Redis::start(RedisOptions::default()));
    rows(&lab, "rows.csv", 0..3);
    let (topic, stream) = ("write: 'kafka://127.0.0.1:1/t'", to_stream(&redis, "s"));
    lab.file("ids.csv", "id,_key\n1,2\n");
    let ids = "read: ids.csv, csv: {columns: {id: int64, _key: int64}}";
    for (source, sink, told) in [
        (CSV, format!("{topic}, add: [_id]"), "`_id` cannot be set: the queue gives each message its id"),
        (CSV, format!("{topic}, add: [_keys]"), "did you mean `_key`"),
        (CSV, format!("{topic}, add: [_key, _key]"), "`_key` stands twice"),
        (CSV, stream.replace("_headers", "_time"), "Redis sets the time of an entry itself"),
        (CSV, stream.replace("stream: s", "stream: s, field: _key"), "`_key` is the field of a message's key"),
        (ids, format!("{topic}, add: [_headers]"), "`add` names `_headers`, which is not a column of the rows"),
        (ids, format!("{topic}, add: [_key]"), "the column `_key` has the type int64"),
        (CSV, stream.replace("stream: s", ""), "the key `stream` is missing"),
        (CSV, "write: 'kafka://127.0.0.1:1/a b'".to_owned(), "write kafka://host/topic"),
        (CSV, format!("{topic}, table: t"), "`table` is a key of"),
    ] {
        job(&lab, "", source, &sink);
        run(&lab).ended(2).says(&[told]);
    }
    job(&lab, "", CSV, topic);
    run(&lab).ended(1).says(&["kafka://127.0.0.1:1/t cannot be reached"]);
    job(&lab, "", CSV, &stream);
    let explained = lab.run(&["explain", "job.yaml"]);
    explained.ok().prints(&["rows become visible as they come", "stream s of redis://"]);
}
