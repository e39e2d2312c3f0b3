//! The slow reference: it walks minute by minute and reads entries by itself.

use chrono::{DateTime, Datelike, NaiveDateTime, TimeDelta, Timelike, Utc};
use chrono_tz::Tz;

const MINUTE: TimeDelta = TimeDelta::minutes(1);

/// Minutes of real time, each with what clocks show.
pub struct Walk(Vec<(DateTime<Utc>, Shown)>);

/// A time as clocks show it: in minutes, and as minute, hour, day, month and day of the week.
#[derive(Clone, Copy)]
struct Shown(i64, [u32; 5]);

impl Shown {
    fn new(time: NaiveDateTime) -> Self {
        let weekday = time.weekday().num_days_from_sunday();
        let minutes = time.and_utc().timestamp().div_euclid(60);
        Shown(minutes, [time.minute(), time.hour(), time.day(), time.month(), weekday])
    }

    fn of_minutes(minutes: i64) -> Self {
        let time = DateTime::from_timestamp(minutes * 60, 0).expect("a moment");
        Shown::new(time.naive_utc())
    }
}

impl Walk {
    /// All minutes behind `after`, up to and with `until`, and the one at `after`.
    pub fn new(zone: Tz, after: DateTime<Utc>, until: DateTime<Utc>) -> Self {
        let count = (until - after).num_minutes() as i32;
        let minute = |number: i32| {
            let moment = after + MINUTE * number;
            (moment, Shown::new(moment.with_timezone(&zone).naive_local()))
        };
        Walk((0..=count).map(minute).collect())
    }

    /// The planned times of `crons`, without that of the first minute.
    pub fn times(&self, crons: &[Plain]) -> Vec<DateTime<Utc>> {
        let mut latest = self.0[0].1.0;
        let mut times = Vec::new();
        for (moment, shown) in &self.0[1..] {
            // Most minutes show the next time; a jump forward skips some, a jump back shows some again.
            let is_next = shown.0 == latest + 1;
            let reached = |cron: &Plain| (latest + 1..=shown.0).any(|minutes| cron.names(&Shown::of_minutes(minutes)));
            let is_planned = |cron: &Plain| match cron.is_fixed && !is_next {
                true => reached(cron),
                false => cron.names(shown),
            };
            if crons.iter().any(is_planned) {
                times.push(*moment);
            }
            latest = latest.max(shown.0);
        }
        times
    }
}

/// An entry of cron without names, `L`, `W` and `#`.
pub struct Plain {
    fields: [u64; 5],
    days_are_free: [bool; 2],
    is_fixed: bool,
}

impl Plain {
    pub fn new(text: &str) -> Self {
        let fields: Vec<&str> = text.split(' ').collect();
        let limits = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)];
        Plain {
            fields: std::array::from_fn(|index| bits(fields[index], limits[index])),
            days_are_free: [fields[2] == "*", fields[4] == "*"],
            is_fixed: fields[..2].iter().all(|field| !field.contains('*') && !field.contains('/')),
        }
    }

    fn names(&self, Shown(_, parts): &Shown) -> bool {
        let has = |index: usize| self.fields[index] >> parts[index] & 1 == 1;
        if !has(0) || !has(1) || !has(3) {
            return false;
        }
        let days = [has(2), has(4)];
        // If both kinds of days are given, either is enough.
        match self.days_are_free {
            [false, false] => days[0] || days[1],
            _ => days[0] && days[1],
        }
    }
}

fn bits(field: &str, limits: (u32, u32)) -> u64 {
    let mut bits = 0;
    for item in field.split(',') {
        let (range, step) = item.split_once('/').unwrap_or((item, "1"));
        let number = |text: &str| text.parse::<u32>().expect("a number");
        let (from, until) = match (range, range.split_once('-')) {
            ("*", _) => limits,
            (_, Some((from, until))) => (number(from), number(until)),
            (one, None) => (number(one), number(one)),
        };
        (from..=until).step_by(number(step) as usize).for_each(|value| bits |= 1 << value);
    }
    bits
}
