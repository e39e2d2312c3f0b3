//! A scheduler over a year: a loop around [`Schedule::due`], with a clock that jumps, downtime, and runs of any length.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use chrono::{DateTime, TimeDelta, Utc};

use super::{schedule, utc};
use crate::{Due, Missed, Schedule, SkippedBecause, State};

const MINUTE: TimeDelta = TimeDelta::minutes(1);

/// What became of an occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It started at this moment.
    Started(DateTime<Utc>),
    Queued,
    Skipped,
}

/// How long the run of a planned time takes: whole minutes, up to some hours.
fn duration(planned: DateTime<Utc>, seed: u64) -> TimeDelta {
    let mut random = fastrand::Rng::with_seed(planned.timestamp() as u64 ^ seed);
    let most = if random.u8(0..5) == 0 { 600 } else { 70 };
    MINUTE * random.i32(1..most)
}

/// A scheduler and its state.
struct World {
    schedule: Schedule,
    seed: u64,
    state: State,
    occurrences: BTreeMap<DateTime<Utc>, Fate>,
    missed: Vec<Missed>,
    end: Option<DateTime<Utc>>,
    look_again: DateTime<Utc>,
}

impl World {
    fn new(schedule: Schedule, begin: DateTime<Utc>, seed: u64) -> Self {
        let state = State { changed: begin, ..State::default() };
        let (occurrences, missed) = (BTreeMap::new(), Vec::new());
        World { schedule, seed, state, occurrences, missed, end: None, look_again: begin }
    }

    fn look(&mut self, now: DateTime<Utc>) {
        if self.end.is_some_and(|end| end <= now) {
            (self.end, self.state.running) = (None, None);
        }
        let behind = self.state.known.unwrap_or(now).min(now);
        let later = self.occurrences.range(behind..).map(|(planned, _)| *planned).filter(|planned| *planned > behind);
        self.state.later = later.collect();
        let due = self.schedule.due(&self.state, now);
        self.take(due, now);
    }

    fn take(&mut self, due: Due, now: DateTime<Utc>) {
        let settings = &self.schedule;
        for skipped in &due.skipped {
            let before = self.occurrences.insert(skipped.planned, Fate::Skipped);
            let waited = skipped.because != SkippedBecause::Overlap;
            assert!(before.is_none_or(|before| waited && before == Fate::Queued), "{skipped:?} was {before:?}");
        }
        if let Some(planned) = due.queued
            && due.queued != self.state.queued
        {
            let before = self.occurrences.insert(planned, Fate::Queued);
            assert_eq!(before, None, "{planned} waits");
        }
        if let Some(planned) = due.start {
            let before = self.occurrences.insert(planned, Fate::Started(now));
            assert!(before.is_none_or(|before| before == Fate::Queued), "{planned} starts and was {before:?}");
            assert_eq!(self.state.running, None, "{planned} starts beside another one");
            // If the clock has jumped back, what waits is ahead of it.
            let has_come = planned <= now || before == Some(Fate::Queued);
            assert!(has_come && now - planned <= settings.within, "{planned} starts at {now}");
            (self.state.running, self.end) = (Some(planned), Some(now + duration(planned, self.seed)));
        }
        if due.cancel.is_some() {
            // A cancelled run ends soon, and not at once.
            assert_eq!(due.cancel, self.state.running);
            self.end = self.end.map(|end| end.min(now + MINUTE));
        }
        self.look_again = due.look_again.expect("there are further times");
        assert!(self.look_again > now);
        self.missed.extend(due.missed);
        (self.state.queued, self.state.known) = (due.queued, due.known);
    }

    /// When something happens next.
    fn next(&self) -> DateTime<Utc> {
        self.end.map_or(self.look_again, |end| end.min(self.look_again))
    }

    fn started(&self) -> BTreeMap<DateTime<Utc>, DateTime<Utc>> {
        let started = |(planned, fate): (&DateTime<Utc>, &Fate)| match fate {
            Fate::Started(when) => Some((*planned, *when)),
            Fate::Queued | Fate::Skipped => None,
        };
        self.occurrences.iter().filter_map(started).collect()
    }
}

/// The same by brute force: it looks at each minute, and keeps lists instead of moments.
struct Slow<'a> {
    overlap: &'a str,
    catch_up: &'a str,
    within: TimeDelta,
    seed: u64,
    end: Option<DateTime<Utc>>,
    queued: Option<DateTime<Utc>>,
    backlog: VecDeque<DateTime<Utc>>,
    started: BTreeMap<DateTime<Utc>, DateTime<Utc>>,
}

impl Slow<'_> {
    fn minute(&mut self, now: DateTime<Utc>, new: Vec<DateTime<Utc>>) {
        self.end = self.end.filter(|end| *end > now);
        self.queued = self.queued.filter(|queued| now - *queued <= self.within);
        match self.catch_up {
            "none" => self.backlog.extend(new.into_iter().filter(|time| *time == now)),
            "last" => self.backlog.extend(new.last().filter(|time| now - **time <= self.within)),
            _ => self.backlog.extend(new),
        }
        self.backlog.retain(|time| now - *time <= self.within);
        while let Some(time) = self.backlog.front().copied() {
            let is_free = self.end.is_none() && self.queued.is_none();
            if self.catch_up == "all" && time != now && !is_free {
                break;
            }
            self.backlog.pop_front();
            match self.overlap {
                _ if is_free => self.start(time, now),
                "skip" => {}
                "queue" => {
                    if self.end.is_none()
                        && let Some(queued) = self.queued
                    {
                        self.start(queued, now);
                    }
                    self.queued = Some(time);
                }
                _ => self.queued = Some(time),
            }
        }
        if self.end.is_none()
            && let Some(queued) = self.queued.take()
        {
            self.start(queued, now);
        }
        if self.overlap == "cancel" && self.queued.is_some() {
            self.end = self.end.map(|end| end.min(now + MINUTE));
        }
    }

    fn start(&mut self, planned: DateTime<Utc>, now: DateTime<Utc>) {
        self.started.insert(planned, now);
        self.end = Some(now + duration(planned, self.seed));
    }
}

/// When the scheduler does not run: whole minutes, in order.
fn downtimes(random: &mut fastrand::Rng, begin: DateTime<Utc>, until: DateTime<Utc>) -> Vec<[DateTime<Utc>; 2]> {
    let mut downtimes = Vec::new();
    let mut now = begin;
    loop {
        let up = MINUTE * random.i32(1..40 * 1440);
        let length = [5, 120, 1440, 10 * 1440][random.usize(..4)];
        let down = [now + up, now + up + MINUTE * random.i32(1..length)];
        if down[1] >= until {
            return downtimes;
        }
        now = down[1];
        downtimes.push(down);
    }
}

const CRONS: [&str; 4] = ["0 2 * * *", "@hourly", "*/30 0-6 * * *;30 2 * * *", "15,45 1-3 * * *;0 12 * * 1-5"];

const ZONES: [&str; 4] = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"];

fn combinations() -> impl Iterator<Item = (&'static str, &'static str)> {
    ["none", "last", "all"]
        .into_iter()
        .flat_map(|catch_up| ["skip", "queue", "cancel"].map(|overlap| (catch_up, overlap)))
}

#[test]
fn a_year_with_downtime_is_that_of_the_slow_reference() {
    let (begin, until) = (utc("2026-01-01T00:00"), utc("2027-01-01T00:00"));
    for (seed, (catch_up, overlap)) in combinations().chain(combinations()).enumerate() {
        let mut random = fastrand::Rng::with_seed(seed as u64);
        let (crons, zone) = (CRONS[random.usize(..CRONS.len())], ZONES[seed % ZONES.len()]);
        let within = ["1h", "1d", "7d"][random.usize(..3)];
        let schedule = schedule(crons, zone, &format!("catch_up: {catch_up}, overlap: {overlap}, within: {within}"));
        let downtimes = downtimes(&mut random, begin, until);
        let within = schedule.within;
        let planned: BTreeSet<DateTime<Utc>> = schedule.times(begin, until).collect();
        let (queued, started, backlog) = (None, BTreeMap::new(), VecDeque::new());
        let mut slow = Slow { overlap, catch_up, within, seed: seed as u64, end: None, queued, backlog, started };
        let mut now = begin;
        let mut downtimes_left = downtimes.iter().peekable();
        let mut planned_left = planned.iter().copied().peekable();
        while now <= until {
            let new = std::iter::from_fn(|| planned_left.next_if(|time| *time <= now)).collect();
            slow.minute(now, new);
            now += MINUTE;
            if let Some([_, up]) = downtimes_left.next_if(|[down, _]| *down <= now) {
                now = *up;
            }
        }

        let mut world = World::new(schedule, begin, seed as u64);
        let mut looks = 0;
        let mut now = begin;
        while now <= until {
            world.look(now);
            looks += 1;
            let next = world.next();
            let is_down = |[down, up]: &&[DateTime<Utc>; 2]| (*down..*up).contains(&next);
            now = downtimes.iter().find(is_down).map_or(next, |[_, up]| *up);
        }
        let which = format!("seed {seed}: {crons} in {zone}, {catch_up}, {overlap}, {within}");
        assert_eq!(world.started(), slow.started, "{which}");
        assert!(!slow.started.is_empty() && looks < 4 * planned.len() + 100, "{which}: {looks} looks");
        accounts(&world, &planned, &which);
    }
}

/// Each planned time either has an occurrence, or was missed, or still waits to be caught up.
fn accounts(world: &World, planned: &BTreeSet<DateTime<Utc>>, which: &str) {
    let known = world.state.known.expect("something is known");
    let mut left: BTreeSet<DateTime<Utc>> = planned.range(..=known).copied().collect();
    for planned in world.occurrences.keys() {
        assert!(left.remove(planned), "{which}: {planned} is no planned time");
    }
    for span in &world.missed {
        let times: Vec<DateTime<Utc>> = left.range(span.first..=span.last).copied().collect();
        assert_eq!(times.len() as u64, span.count, "{which}: {span:?}");
        left.retain(|time| !times.contains(time));
    }
    assert!(left.is_empty(), "{which}: nothing was decided about {left:?}");
}

/// A clock that jumps in both directions, also by years, at any moment. [`World::take`] checks each step; here it is
/// that everything the clock passed by is decided, and that a time runs if it comes while the clock is right.
#[test]
fn a_clock_that_jumps_starts_nothing_twice_and_loses_nothing() {
    let begin = utc("2026-01-01T00:00");
    for seed in 0..45 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (catch_up, overlap) = combinations().nth(seed as usize % 9).expect("a combination");
        let (crons, zone) = (CRONS[random.usize(..CRONS.len())], ZONES[random.usize(..ZONES.len())]);
        let schedule = schedule(crons, zone, &format!("catch_up: {catch_up}, overlap: {overlap}"));
        let mut world = World::new(schedule.clone(), begin - TimeDelta::days(900), seed);
        world.state.known = Some(begin);
        // Real time, and what the clock is ahead of it.
        let (mut real, mut ahead) = (begin, TimeDelta::zero());
        let mut passed: Vec<[DateTime<Utc>; 2]> = Vec::new();
        for _ in 0..400 {
            let now = real + ahead;
            world.look(now);
            let lag = TimeDelta::milliseconds(random.i64(0..900));
            let next = world.next() + lag;
            let jump = match random.u8(0..50) {
                0 => TimeDelta::milliseconds(random.i64(-5000..5000)),
                1 => MINUTE * random.i32(-200..200),
                2 => TimeDelta::days(random.i64(-20..20)),
                3 => TimeDelta::days(random.i64(-800..800)),
                4 => -ahead,
                _ => TimeDelta::zero(),
            };
            passed.push([now, next]);
            real += next - now;
            // A clock that is too far behind is set right, so that the test comes to its end.
            let jump = if real + ahead + jump < begin - TimeDelta::days(400) { -ahead } else { jump };
            ahead += jump;
            // A run takes as long as it takes, whatever the clock shows.
            world.end = world.end.map(|end| end + jump);
        }
        // Without a jump a time is passed at the look that decides it.
        let mut spans: Vec<_> = world.missed.iter().map(|span| [span.first, span.last]).collect();
        spans.extend(world.occurrences.keys().map(|planned| [*planned, *planned]));
        spans.sort_unstable();
        spans.dedup_by(|next, span| {
            let is_inside = next[0] <= span[1];
            span[1] = if is_inside { span[1].max(next[1]) } else { span[1] };
            is_inside
        });
        let is_decided = |time: DateTime<Utc>| {
            let index = spans.partition_point(|[first, _]| *first <= time);
            index > 0 && time <= spans[index - 1][1]
        };
        let known = world.state.known.unwrap_or(begin);
        for time in passed.iter().flat_map(|[from, to]| schedule.times(*from, known.min(*to))) {
            assert!(is_decided(time), "seed {seed}: nothing was decided about {time}");
        }
        let ran = world.started().len();
        assert!(ran > 50, "seed {seed}: {ran} runs");
    }
}
