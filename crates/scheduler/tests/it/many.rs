//! Many sequences at the same minute.

use std::time::Instant;

use crate::world::{World, eventually};

#[test]
fn no_more_run_together_than_there_are_slots() {
    let world = World::at("2026-03-01T00:00");
    for number in 0..12 {
        world.sequence(&format!("s{number}"), "cron: 0 2 * * *", "wait go");
    }
    world.set_clock("2026-03-01T02:00");
    let options = millstream_scheduler::Options { parallel: 2, ..world.options() };
    let _runs = world.scheduler_with(options);
    let began = || world.trace().iter().filter(|line| line.starts_with("began")).count();
    eventually("two begin", || began() == 2, || format!("{:?}", world.trace()));
    world.release("go");
    for number in 0..12 {
        world.wait_for(&format!("s{number}"), &["2026-03-01T02:00 done"]);
    }
    let (mut running, mut most) = (0_i32, 0);
    for line in world.trace() {
        running += if line.starts_with("began") { 1 } else { -1 };
        most = most.max(running);
    }
    assert_eq!((running, most), (0, 2), "{:?}", world.trace());
}

/// A measurement: `cargo test -p millstream-scheduler --release -- --ignored thousand --nocapture`.
#[test]
#[ignore = "it measures, and takes minutes"]
fn a_thousand_in_one_minute() {
    let world = World::at("2026-03-01T00:00");
    for number in 0..1000 {
        world.sequence(&format!("s{number:03}"), "cron: 0 2 * * *", "");
    }
    let parallel = std::thread::available_parallelism().map_or(2, usize::from);
    let options = millstream_scheduler::Options { parallel, ..world.options() };
    let runs = world.scheduler_with(options);
    runs.wait_for("scheduled s999");
    let begin = Instant::now();
    world.set_clock("2026-03-01T02:00");
    let ended = || world.trace().iter().filter(|line| line.starts_with("ended")).count();
    while ended() < 1000 {
        assert!(begin.elapsed().as_secs() < 600, "{}", ended());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let (waits, seconds) = (runs.waits(), begin.elapsed().as_secs_f64());
    let at = |part: f64| waits[((waits.len() - 1) as f64 * part) as usize];
    println!("a thousand, {parallel} at a time: {seconds:.1} s");
    println!("from a free slot to the process, ms: p50 {:.1}, p99 {:.1}, most {:.1}", at(0.5), at(0.99), at(1.0));
    eventually("all are done", || world.occurrences().open().expect("an answer").is_empty(), String::new);
}
