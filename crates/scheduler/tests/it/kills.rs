//! Schedulers and children that are killed at random moments: each occurrence runs to its end, once.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millstream_state::Occurrences;
use millstream_state::history::{Outcome, RunHistory};
use millstream_state::occurrences::{Occurrence, OccurrenceState};

use crate::stand_in::scheduler_script;
use crate::world::{eventually, utc};

/// How often something is killed.
const KILLS: usize = 50;

/// How long the clock runs, in minutes.
const MINUTES: i64 = 60;

/// So many milliseconds lie between two settings of the clock.
const PAUSE: i64 = 250;

/// The minutes that the clock shows, one after the other. No sequence has its time in the minute before them, so all
/// times are caught up, and none is skipped since the run before it has not ended.
fn shown_minutes() -> Vec<i64> {
    (0..=MINUTES + 1).filter(|minute| [3, 4, 5].iter().all(|every| minute % every != 0)).collect()
}

struct Scene {
    folder: PathBuf,
    script: PathBuf,
    scheduler: Option<Child>,
}

impl Scene {
    fn set_clock(&self, now: i64) {
        let new = self.folder.join("clock.new");
        fs_err::write(&new, now.to_string())
            .and_then(|()| fs_err::rename(&new, self.folder.join("clock")))
            .expect("set");
    }

    /// In `folder`, with sequences of these names, entries of cron and plans, which were changed at `begin`.
    fn new(folder: PathBuf, sequences: &[(&str, String, &str)], begin: i64) -> Self {
        for (name, schedule, plan) in sequences {
            let text = format!("# plan: {plan}\nschedule: {{{schedule}}}\nsteps:\n  a: {{job: a.job}}\n");
            let path = folder.join(format!("{name}.yaml"));
            fs_err::write(&path, text).expect("written");
            let modified = std::time::UNIX_EPOCH + Duration::from_millis(begin.unsigned_abs());
            fs_err::File::options().write(true).open(&path).expect("a file").set_modified(modified).expect("set");
        }
        let scene = Scene { script: scheduler_script(&folder), folder, scheduler: None };
        scene.set_clock(begin);
        scene
    }

    fn start(&mut self) {
        self.start_until("");
    }

    /// A scheduler that is killed at a place of its code, if one is named.
    fn start_until(&mut self, place: &str) {
        let mut command = Command::new(&self.script);
        if !place.is_empty() {
            command.env("MILLSTREAM_FAIL_AT", place);
        }
        command.arg(&self.folder).stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        self.scheduler = Some(command.spawn().expect("a scheduler"));
    }

    fn kill(&mut self) {
        if let Some(mut scheduler) = self.scheduler.take() {
            scheduler.kill().expect("killed");
            scheduler.wait().expect("it has ended");
        }
    }

    /// Kills one of the processes that have begun, if one lives.
    fn kill_child(&self, random: &mut fastrand::Rng) -> bool {
        let text = fs_err::read_to_string(self.folder.join("trace")).unwrap_or_default();
        let began = text.lines().filter(|line| line.starts_with("began"));
        let alive: Vec<&str> =
            began.filter_map(|line| line.rsplit(' ').next()).filter(|process| self.is_ours(process)).collect();
        let Some(process) = random.choice(&alive) else { return false };
        Command::new("kill").args(["-9", process]).stderr(Stdio::null()).status().expect("kill").success()
    }

    /// Whether a process of this number is one of this test.
    fn is_ours(&self, process: &str) -> bool {
        let environment = fs_err::read(Path::new("/proc").join(process).join("environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&*self.folder.to_string_lossy())
    }

    fn occurrences(&self, name: &str) -> Vec<Occurrence> {
        let occurrences = Occurrences::new(RunHistory::open(&self.folder.join("state")).expect("it opens"));
        let sequence = self.folder.join(format!("{name}.yaml"));
        occurrences.last(&sequence.to_string_lossy(), 100_000).expect("an answer")
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn each_occurrence_runs_to_its_end_once_whatever_is_killed() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let temporary = tempfile::TempDir::new().expect("a folder");
    let folder = fs_err::canonicalize(temporary.path()).expect("a folder");
    let begin = utc("2026-03-01T00:00").timestamp_millis();
    let names = ["a", "b", "c"];
    let sequences = [("a", 3, "sleep 300"), ("b", 4, "sleep 400"), ("c", 5, "sleep 500")]
        .map(|(name, every, plan)| (name, format!("cron: '*/{every} * * * *', catch_up: all, resume: 100"), plan));
    let mut scene = Scene::new(folder, &sequences, begin);
    scene.start();
    let (start, minutes) = (Instant::now(), shown_minutes());
    let (mut killed, mut next) = ([0, 0], start);
    let is_done = |scene: &Scene| {
        names.iter().zip([3, 4, 5]).all(|(name, every)| {
            let done = scene.occurrences(name).iter().filter(|one| one.outcome == Some(Outcome::Done)).count();
            done as i64 == MINUTES / every
        })
    };
    loop {
        let passed = usize::try_from(start.elapsed().as_millis() as i64 / PAUSE).expect("a number");
        scene.set_clock(begin + minutes[passed.min(minutes.len() - 1)] * 60_000);
        let total = killed[0] + killed[1];
        if total < KILLS && Instant::now() >= next {
            next = Instant::now() + Duration::from_millis(random.u64(20..300));
            match random.bool() {
                true if scene.kill_child(&mut random) => killed[1] += 1,
                _ => {
                    scene.kill();
                    // Some of the time there is none.
                    std::thread::sleep(Duration::from_millis(random.u64(0..200)));
                    scene.start();
                    killed[0] += 1;
                }
            }
        }
        if total >= KILLS && passed >= minutes.len() && is_done(&scene) {
            break;
        }
        let trace = || fs_err::read_to_string(scene.folder.join("trace")).unwrap_or_default();
        assert!(start.elapsed() < Duration::from_secs(300), "SEED={seed}: {killed:?} {}", trace());
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("killed: {killed:?} of schedulers and children");
    scene.kill();
    for (name, every) in names.iter().zip([3, 4, 5]) {
        let occurrences = scene.occurrences(name);
        let planned: Vec<i64> = occurrences.iter().rev().map(|one| one.planned).collect();
        let expected: Vec<i64> = (1..=MINUTES / every).map(|number| begin + number * every * 60_000).collect();
        assert_eq!(planned, expected, "SEED={seed}: each is there once, and none was left out");
        assert!(occurrences.iter().all(|one| one.state == OccurrenceState::Ended), "SEED={seed}");
    }
    let trace = fs_err::read_to_string(scene.folder.join("trace")).expect("a file");
    assert!(!trace.contains("twice"), "SEED={seed}: {trace}");
    // A chain of runs that resume each other has one that is done; nothing was started anew beside it.
    let history = RunHistory::open(&scene.folder.join("state")).expect("it opens");
    let runs = history.list(None, u64::MAX).expect("an answer");
    let done: Vec<(String, i64)> =
        runs.iter().filter(|run| run.outcome == Outcome::Done).map(|run| (run.job.clone(), run.moment())).collect();
    let mut distinct = done.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), done.len(), "SEED={seed}: {done:?}");
}

#[test]
fn a_scheduler_that_is_killed_around_its_decision_loses_and_repeats_nothing() {
    for place in ["decide.before:1", "decide.after:1"] {
        let temporary = tempfile::TempDir::new().expect("a folder");
        let folder = fs_err::canonicalize(temporary.path()).expect("a folder");
        let begin = utc("2026-03-01T00:00").timestamp_millis();
        let mut scene = Scene::new(folder, &[("nightly", "cron: 0 2 * * *".to_owned(), "")], begin);
        scene.set_clock(utc("2026-03-01T02:00").timestamp_millis());
        scene.start_until(place);
        let mut killed = scene.scheduler.take().expect("a scheduler");
        assert!(killed.wait().expect("it ends").code().is_none(), "{place}");
        let decided = scene.occurrences("nightly");
        assert_eq!(decided.len(), usize::from(place.starts_with("decide.after")), "{place}: {decided:?}");
        scene.start();
        let is_done = || scene.occurrences("nightly").iter().any(|one| one.outcome == Some(Outcome::Done));
        eventually(place, is_done, || format!("{:?}", scene.occurrences("nightly")));
        let trace = fs_err::read_to_string(scene.folder.join("trace")).expect("a file");
        assert_eq!(trace.matches("began").count(), 1, "{place}: {trace}");
    }
}
