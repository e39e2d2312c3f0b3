//! The metrics of runs that read a queue: how far they are behind, how epochs end, and what they wait for.

use millstream_testkit::{Kafka, Postgres, PostgresOptions, Redis, RedisOptions};
use rustix::process::{Pid, Signal, kill_process};

use super::exposition::Page;
use super::{LOADED, Serving, add_messages, queue_job};
use crate::use_support::Lab;

const QUEUE: (&str, &str) = ("step", "events");
const TARGET: (&str, &str) = ("step", "o");

fn epochs(page: &Page, result: &str) -> f64 {
    page.value("millstream_epochs_total", &[QUEUE, ("result", result)]).expect("epochs")
}

fn of(page: &Page, name: &str, entry: (&str, &str)) -> f64 {
    page.value(&format!("millstream_{name}"), &[entry]).unwrap_or_else(|| panic!("{name}: {page:?}"))
}

/// The job of a service that reads `redis` into a table of `server`, allows gaps, and rejects what is bad.
fn service(redis: &Redis, server: &Postgres, database: &str) -> String {
    queue_job(redis)
        .replace("until: now\ncommit: {rows: 10}", "until: stopped\ncommit: {every: 100ms}")
        .replace("group: load", "group: load, on_gap: warn")
        .replace("json:", "max_rejects: 10, json:")
        .replace("sqlite:t.db", &server.url(database))
}

fn start(lab: &Lab) -> Serving {
    Serving::start(lab.command(&["run", "job.yaml", "--metrics", "0"]))
}

#[test]
fn epochs_and_their_commits_are_counted() {
    let redis = Redis::start(RedisOptions::default());
    let lab = Lab::with_job(&queue_job(&redis));
    add_messages(&redis, 40);
    let run = start(&lab);
    let page = run.scrape_until(|page| page.value("millstream_run_phase", &[("phase", "committing")]) == Some(1.0));
    assert_eq!(page.value("millstream_rows_total", &LOADED), Some(40.0));
    assert_eq!(of(&page, "messages_total", QUEUE), 40.0);
    let committed = epochs(&page, "committed");
    assert!((1.0..=40.0).contains(&committed), "{committed}");
    assert_eq!((epochs(&page, "repeated"), epochs(&page, "dropped")), (0.0, 0.0));
    assert_eq!(of(&page, "commits_total", QUEUE), committed);
    assert_eq!(of(&page, "lag_messages", QUEUE), 0.0);
    assert_eq!(of(&page, "oldest_message_age_seconds", QUEUE), 0.0);
    for name in ["gaps_total", "away", "outages_total"] {
        assert_eq!(of(&page, name, QUEUE), 0.0, "{name}");
    }
    assert_eq!((of(&page, "away", TARGET), of(&page, "outages_total", TARGET)), (0.0, 0.0));
    run.end(&lab);
}

#[test]
fn outages_gaps_and_rejects_of_a_service_are_seen() {
    let mut redis = Redis::start(RedisOptions::default());
    let mut server = Postgres::start(PostgresOptions::default());
    let database = server.database();
    let lab = Lab::with_job(&service(&redis, &server, &database));
    let run = start(&lab);
    let written = |page: &Page, rows: f64| page.value("millstream_rows_total", &LOADED) == Some(rows);
    add_messages(&redis, 20);
    redis.command(&["XADD", "events", "*", "body", "bad"]);
    let rejected = [QUEUE, ("kind", "parse")];
    let page = run.scrape_until(|page| {
        written(page, 20.0) && page.value("millstream_rejected_rows_total", &rejected) == Some(1.0)
    });
    assert_eq!(of(&page, "messages_total", QUEUE), 21.0);
    assert!(of(&page, "messages_per_second", QUEUE) > 0.0);

    // The queue is away, and comes back without its stream.
    redis.kill();
    run.scrape_until(|page| of(page, "away", QUEUE) == 1.0 && of(page, "away", TARGET) == 0.0);
    redis.restart();
    run.scrape_until(|page| of(page, "away", QUEUE) == 0.0);
    redis.command(&["DEL", "events"]);
    let page = run.scrape_until(|page| of(page, "gaps_total", QUEUE) >= 1.0);
    assert!(of(&page, "outages_total", QUEUE) >= 1.0);
    add_messages(&redis, 20);
    run.scrape_until(|page| written(page, 40.0));

    // The target is away: messages wait, and the epoch is dropped when the run is to end.
    server.kill();
    add_messages(&redis, 20);
    let page = run.scrape_until(|page| of(page, "away", TARGET) == 1.0);
    assert_eq!(of(&page, "outages_total", TARGET), 1.0);
    run.scrape_until(|page| of(page, "oldest_message_age_seconds", QUEUE) > 0.5);
    kill_process(Pid::from_child(&run.child), Signal::TERM).expect("it gets the signal");
    run.scrape_until(|page| epochs(page, "dropped") == 1.0);
    run.end(&lab);
}

/// What is read of a topic and not committed counts as behind.
#[test]
fn what_is_not_committed_of_a_topic_is_behind_and_epochs_come_again() {
    let (kafka, mut server) = (Kafka::shared(), Postgres::start(PostgresOptions::default()));
    let (topic, database) = (kafka.topic(2), server.database());
    let lab = Lab::with_job(&format!(
        "until: stopped\ncommit: {{every: 100ms}}\nsources:\n  events: {{read: 'kafka://{}/{topic}', kafka: {{group: \
         load-{topic}}}, json: {{columns: {{id: int64}}}}}}\nsinks:\n  o: {{from: events, write: '{}', table: t}}\n",
        kafka.address(),
        server.url(&database),
    ));
    let send = |ids: std::ops::Range<usize>| {
        (0..2).for_each(|partition| kafka.send(&topic, partition, ids.clone().map(|id| format!("{{\"id\": {id}}}"))));
    };
    let run = start(&lab);
    send(0..20);
    let page = run.scrape_until(|page| {
        page.value("millstream_rows_total", &LOADED) == Some(40.0)
            && page.value("millstream_lag_messages", &[QUEUE]) == Some(0.0)
    });
    assert_eq!(of(&page, "messages_total", QUEUE), 40.0);
    server.kill();
    send(20..30);
    run.scrape_until(|page| of(page, "away", TARGET) == 1.0 && of(page, "lag_messages", QUEUE) == 20.0);
    server.restart();
    let page = run.scrape_until(|page| of(page, "away", TARGET) == 0.0 && of(page, "lag_messages", QUEUE) == 0.0);
    assert_eq!((of(&page, "messages_total", QUEUE), epochs(&page, "dropped")), (60.0, 0.0));
    assert_eq!((of(&page, "outages_total", TARGET), of(&page, "away", QUEUE)), (1.0, 0.0));

    // As if another process had committed: the epoch is read and written again.
    server.query(&database, "UPDATE _millstream_positions SET version = version + 1");
    let committed = epochs(&page, "committed");
    send(30..35);
    let is_repeated = |page: &Page| epochs(page, "repeated") >= 1.0 && epochs(page, "committed") > committed;
    let has_all = |page: &Page| page.value("millstream_rows_total", &LOADED) == Some(70.0);
    let page = run.scrape_until(|page| is_repeated(page) && has_all(page));
    assert!(of(&page, "messages_total", QUEUE) > 70.0);
    assert_eq!(server.query(&database, "SELECT count(*), count(DISTINCT id) FROM t"), ["70\t35"]);
}
