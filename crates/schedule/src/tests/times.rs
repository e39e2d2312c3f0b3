//! Planned times: against the slow reference, and by hand where clocks are set.

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};
use chrono_tz::Tz;

use super::reference::{Plain, Walk};
use super::{schedule, utc};
use crate::Schedule;

const ZONES: [&str; 4] = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"];

const ENTRIES: [&str; 10] = [
    "0 2 * * *",
    "30 2 * * *",
    "0 2,14 * * *",
    "15,45 0-3 * * *",
    "*/15 * * * *",
    "*/20 2 * * *",
    "10 * * * *",
    "0 */2 * * *",
    "0 0 1,15 * 5",
    "30 23 * * 0-4",
];

fn all(schedule: &Schedule, after: DateTime<Utc>, until: DateTime<Utc>) -> Vec<DateTime<Utc>> {
    schedule.times(after, until).collect()
}

/// As clocks show them, with the difference to UTC in hours.
fn shown(zone: Tz, times: &[DateTime<Utc>]) -> Vec<String> {
    times.iter().map(|time| time.with_timezone(&zone).format("%d %H:%M %:z").to_string()).collect()
}

fn shown_on(zone: Tz, crons: &str, day: &str) -> Vec<String> {
    let midnight: NaiveDateTime = format!("{day}T00:00:00").parse().expect("a day");
    let begin = midnight.and_local_timezone(zone).earliest().expect("a midnight").to_utc();
    let schedule = schedule(crons, zone.name(), "");
    shown(zone, &all(&schedule, begin - TimeDelta::seconds(1), begin + TimeDelta::hours(6)))
}

#[test]
fn a_year_is_that_of_the_slow_reference() {
    let (after, until) = (utc("2026-01-01T00:00"), utc("2027-01-01T00:00"));
    for zone in ZONES {
        let walk = Walk::new(zone.parse().expect("a time zone"), after, until);
        for entry in ENTRIES {
            let expected = walk.times(&[Plain::new(entry)]);
            assert_eq!(all(&schedule(entry, zone, ""), after, until), expected, "{entry} in {zone}");
        }
        let several: Vec<Plain> = ENTRIES.iter().map(|entry| Plain::new(entry)).collect();
        assert_eq!(all(&schedule(&ENTRIES.join(";"), zone, ""), after, until), walk.times(&several), "{zone}");
    }
}

/// Entries that happen often around the changes.
fn any_entry(random: &mut fastrand::Rng) -> String {
    let minutes = ["0", "30", "59", "0,15,30,45", "*/15", "*", "0-30/10", "5-20", "1"];
    let hours = ["0", "1", "2", "3", "23", "1,2,3", "1-3", "0,2", "*", "*/2", "0-4/2", "2,14"];
    let days = ["*", "*", "*", "*", "1-10", "29,30,31", "25"];
    let weekdays = ["*", "*", "*", "0", "6,0", "1-5"];
    let mut one_of = |choices: &[&'static str]| choices[random.usize(..choices.len())];
    format!("{} {} {} * {}", one_of(&minutes), one_of(&hours), one_of(&days), one_of(&weekdays))
}

#[test]
fn any_entries_around_any_change_are_those_of_the_slow_reference() {
    let changes = [
        ("Europe/Berlin", "2026-03-29"),
        ("Europe/Berlin", "2026-10-25"),
        ("America/New_York", "2026-03-08"),
        ("America/New_York", "2026-11-01"),
        ("Australia/Lord_Howe", "2026-04-05"),
        ("Australia/Lord_Howe", "2026-10-04"),
        // At midnight.
        ("Africa/Cairo", "2026-04-24"),
        ("Africa/Cairo", "2026-10-30"),
        ("America/Havana", "2026-03-08"),
        ("America/Havana", "2026-11-01"),
        // From one minute past midnight back to the day before, and a day that was left out.
        ("America/St_Johns", "2010-11-07"),
        ("America/St_Johns", "2010-03-14"),
        ("Pacific/Apia", "2011-12-30"),
        // Twice within five weeks.
        ("Africa/Casablanca", "2026-02-15"),
        ("Africa/Casablanca", "2026-03-22"),
    ];
    for (zone, day) in changes {
        let middle = utc(&format!("{day}T00:00"));
        let (after, until) = (middle - TimeDelta::days(3), middle + TimeDelta::days(9));
        let walk = Walk::new(zone.parse().expect("a time zone"), after, until);
        for seed in 0..25 {
            let mut random = fastrand::Rng::with_seed(seed);
            let entries: Vec<String> = (0..random.usize(1..3)).map(|_| any_entry(&mut random)).collect();
            let plain: Vec<Plain> = entries.iter().map(|entry| Plain::new(entry)).collect();
            let joined = entries.join(";");
            let found = all(&schedule(&joined, zone, ""), after, until);
            assert_eq!(found, walk.times(&plain), "seed {seed}: {joined} in {zone} around {day}");
        }
    }
}

/// Wherever an interval is cut, its parts have the same times, so nothing depends on when a scheduler looks.
#[test]
fn parts_of_an_interval_have_its_times() {
    for seed in 0..100 {
        let mut random = fastrand::Rng::with_seed(seed);
        let zone = ZONES[random.usize(..ZONES.len())];
        let schedule = schedule(&any_entry(&mut random), zone, "");
        let begin = utc("2026-01-01T00:00") + TimeDelta::days(random.i64(0..360));
        let mut moment = || begin + TimeDelta::milliseconds(random.i64(0..60 * 86_400_000));
        let mut cuts = [moment(), moment(), moment(), moment()];
        cuts.sort_unstable();
        let parts: Vec<DateTime<Utc>> = cuts.windows(2).flat_map(|cut| all(&schedule, cut[0], cut[1])).collect();
        let whole = all(&schedule, cuts[0], cuts[3]);
        assert_eq!(parts, whole, "seed {seed}");
        assert_eq!(schedule.next(cuts[0]).filter(|next| *next <= cuts[3]), whole.first().copied(), "seed {seed}");
        // At a planned time, an interval ends with it and the next one begins behind it.
        if let Some(time) = whole.get(whole.len() / 2) {
            let second = TimeDelta::seconds(1);
            assert_eq!(all(&schedule, *time - second, *time), [*time], "seed {seed}");
            assert!(all(&schedule, *time, *time + second).is_empty(), "seed {seed}");
        }
    }
}

#[test]
fn fixed_times_happen_once_where_clocks_are_set_forward() {
    let berlin = chrono_tz::Europe::Berlin;
    assert_eq!(shown_on(berlin, "0 2 * * *", "2026-03-29"), ["29 03:00 +02:00"]);
    assert_eq!(shown_on(berlin, "0 2,14 * * *", "2026-03-29"), ["29 03:00 +02:00"]);
    assert_eq!(
        shown_on(berlin, "30 1-3 * * *", "2026-03-29"),
        ["29 01:30 +01:00", "29 03:00 +02:00", "29 03:30 +02:00"]
    );
    // Two times in the gap and one at its end are one.
    assert_eq!(shown_on(berlin, "15 2 * * *;45 2 * * *;0 3 * * *", "2026-03-29"), ["29 03:00 +02:00"]);
    let lord_howe = chrono_tz::Australia::Lord_Howe;
    assert_eq!(shown_on(lord_howe, "15 2 * * *", "2026-10-04"), ["04 02:30 +11:00"]);
    // Where midnight is skipped, `@daily` is the first moment of the day.
    assert_eq!(shown_on(chrono_tz::Africa::Cairo, "@daily", "2026-04-23")[1..], Vec::<String>::new());
    let cairo = schedule("@daily", "Africa/Cairo", "");
    let next = cairo.next(utc("2026-04-23T12:00")).expect("a time");
    assert_eq!(shown(cairo.zone(), &[next]), ["24 01:00 +03:00"]);
}

#[test]
fn fixed_times_happen_once_where_clocks_are_set_back() {
    let berlin = chrono_tz::Europe::Berlin;
    assert_eq!(shown_on(berlin, "30 2 * * *", "2026-10-25"), ["25 02:30 +02:00"]);
    assert_eq!(
        shown_on(berlin, "30 1-3 * * *", "2026-10-25"),
        ["25 01:30 +02:00", "25 02:30 +02:00", "25 03:30 +01:00"]
    );
    assert_eq!(shown_on(chrono_tz::Australia::Lord_Howe, "45 1 * * *", "2026-04-05"), ["05 01:45 +11:00"]);
}

#[test]
fn steps_follow_real_time() {
    let berlin = chrono_tz::Europe::Berlin;
    let quarters = schedule("*/15 * * * *", "Europe/Berlin", "");
    for day in ["2026-03-29", "2026-10-25"] {
        let begin = utc(&format!("{day}T00:00"));
        let times = all(&quarters, begin - TimeDelta::seconds(1), begin + TimeDelta::hours(4));
        let expected: Vec<DateTime<Utc>> = (0..=16).map(|quarter| begin + TimeDelta::minutes(15 * quarter)).collect();
        assert_eq!(times, expected, "{day}");
    }
    assert_eq!(shown_on(berlin, "*/30 2 * * *", "2026-03-29"), Vec::<String>::new());
    let twice = ["25 02:00 +02:00", "25 02:30 +02:00", "25 02:00 +01:00", "25 02:30 +01:00"];
    assert_eq!(shown_on(berlin, "*/30 2 * * *", "2026-10-25"), twice);
}

#[test]
fn rare_times_are_found_and_intervals_may_be_strange() {
    let leap = schedule("0 0 29 2 *", "Asia/Kolkata", "");
    assert_eq!(leap.next(utc("2096-03-01T00:00")), Some(utc("2104-02-28T18:30")));
    let (first, last) = (DateTime::<Utc>::MIN_UTC, DateTime::<Utc>::MAX_UTC);
    assert_eq!(leap.next(first), Some(utc("1972-02-28T18:30")));
    assert_eq!(leap.next(last), None);
    assert!(all(&leap, last, first).is_empty());
    assert_eq!(leap.times(first, last).take(3).count(), 3);
}
