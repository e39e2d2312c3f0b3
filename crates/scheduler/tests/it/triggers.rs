//! Starts by files that arrive, and by the end of other sequences.

use crate::world::World;

#[test]
fn files_that_arrive_start_a_sequence_once() {
    let world = World::at("2026-03-01T00:00");
    world.sequence("load", "files: {pattern: 'in/*.csv', marker: '{name}.ok'}", "");
    world.write("in/a.csv", "1");
    let runs = world.scheduler();
    runs.wait_for("scheduled load");
    assert!(world.all("load").is_empty(), "the marker is not there");
    world.write("in/a.csv.ok", "");
    world.wait_for("load", &["2026-03-01T00:00 done"]);
    assert!(world.all("load")[0].cause.as_ref().is_some_and(|cause| cause.ends_with("in/a.csv")));
    world.set_clock("2026-03-01T01:00");
    for name in ["b", "c"] {
        world.write(&format!("in/{name}.csv"), "1");
        world.write(&format!("in/{name}.csv.ok"), "");
    }
    // Both, if they are seen at the same look; else one after the other, each once.
    crate::world::eventually(
        "all have started it",
        || {
            let causes: String = world.all("load").iter().filter_map(|one| one.cause.clone()).collect();
            ["a.csv", "b.csv", "c.csv"].iter().all(|name| causes.matches(name).count() == 1)
        },
        || format!("{:?}", world.all("load")),
    );
    // A scheduler that comes later knows what was seen, and a changed file is another one.
    drop(runs);
    let before = world.all("load").len();
    let runs = world.scheduler();
    runs.wait_for("scheduled load");
    world.set_clock("2026-03-01T02:00");
    world.write("in/a.csv", "22");
    crate::world::eventually(
        "a further start",
        || world.all("load").len() > before,
        || format!("{:?}", world.all("load")),
    );
    let last = &world.all("load")[0];
    assert!(last.cause.as_ref().is_some_and(|cause| cause.contains("a.csv") && !cause.contains("b.csv")), "{last:?}");
    assert_eq!(world.all("load").len(), before + 1);
}

#[test]
fn files_that_arrive_while_it_runs_start_it_afterwards() {
    let world = World::at("2026-03-01T00:00");
    world.sequence("load", "files: {pattern: 'in/*', marker: '_OK'}", "wait go");
    world.write("in/_OK", "");
    world.write("in/a", "1");
    let runs = world.scheduler();
    world.wait_for_trace("began load");
    world.set_clock("2026-03-01T01:00");
    world.write("in/b", "1");
    world.release("go");
    world.wait_for("load", &["2026-03-01T00:00 done", "2026-03-01T01:00 done"]);
    drop(runs);
}

#[test]
fn the_end_of_a_sequence_starts_others() {
    let world = World::at("2026-03-01T00:00");
    world.sequence("good", "cron: 0 2 * * *", "");
    world.sequence("bad", "cron: 0 2 * * *", "fail");
    world.sequence("after-good", "after: good.yaml", "");
    world.sequence("after-bad", "after: ./bad.yaml", "");
    world.sequence("alarm", "after: {sequence: bad.yaml, on: failure}", "");
    world.sequence("no-alarm", "after: {sequence: good.yaml, on: failure}", "");
    world.sequence("always", "after: {sequence: bad.yaml, on: always}", "");
    world.sequence("chain", "after: after-good.yaml", "");
    let runs = world.scheduler();
    runs.wait_for("scheduled no-alarm");
    world.set_clock("2026-03-01T02:00");
    for name in ["good", "after-good", "alarm", "always", "chain"] {
        world.wait_for(name, &["2026-03-01T02:00 done"]);
    }
    drop(runs);
    let runs = world.scheduler();
    runs.wait_for("scheduled no-alarm");
    world.set_clock("2026-03-02T02:00");
    for name in ["good", "after-good", "alarm", "always", "chain"] {
        world.wait_for(name, &["2026-03-01T02:00 done", "2026-03-02T02:00 done"]);
    }
    assert!(world.outcomes("after-bad").is_empty() && world.outcomes("no-alarm").is_empty());
}
