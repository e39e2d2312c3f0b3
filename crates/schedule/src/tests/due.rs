//! What is due: one decision at a time.

use chrono::{DateTime, TimeDelta, Utc};

use super::{schedule, utc};
use crate::{Due, Missed, MissedBecause, Skipped, SkippedBecause, State};

/// A time on 10 January 2026 in UTC: `02:00`.
fn at(time: &str) -> DateTime<Utc> {
    utc(&format!("2026-01-10T{time}"))
}

/// Of a file that was changed at midnight; all is decided up to `known`.
fn state(known: &str, running: Option<&str>, queued: Option<&str>) -> State {
    let (known, running, queued) = (Some(at(known)), running.map(at), queued.map(at));
    State { changed: at("00:00"), known, running, queued, ..State::default() }
}

fn missed(first: &str, last: &str, count: u64, because: MissedBecause) -> Missed {
    Missed { first: at(first), last: at(last), count, because }
}

fn skipped(planned: &str, because: SkippedBecause) -> Skipped {
    Skipped { planned: at(planned), because }
}

#[test]
fn a_time_starts_when_it_comes_and_not_before_or_again() {
    let hourly = schedule("@hourly", "UTC", "");
    let early = hourly.due(&state("01:00", None, None), at("01:59:59"));
    assert_eq!(early, Due { known: Some(at("01:00")), look_again: Some(at("02:00")), ..Due::default() });
    let due = hourly.due(&state("01:00", None, None), at("02:00"));
    let expected =
        Due { start: Some(at("02:00")), known: Some(at("02:00")), look_again: Some(at("03:00")), ..Due::default() };
    assert_eq!(due, expected);
    let again = hourly.due(&state("02:00", None, None), at("02:00"));
    assert_eq!(again, Due { known: Some(at("02:00")), look_again: Some(at("03:00")), ..Due::default() });
}

#[test]
fn a_time_is_on_time_for_a_minute() {
    let hourly = schedule("@hourly", "UTC", "catch_up: none");
    assert_eq!(hourly.due(&state("01:00", None, None), at("02:00:59")).start, Some(at("02:00")));
    let late = hourly.due(&state("01:00", None, None), at("02:01:00"));
    assert_eq!((late.start, late.known), (None, Some(at("02:00"))));
    assert_eq!(late.missed, [missed("02:00", "02:00", 1, MissedBecause::NoCatchUp)]);
}

#[test]
fn without_catch_up_only_what_is_on_time_starts() {
    let hourly = schedule("@hourly", "UTC", "catch_up: none, within: 2h");
    let due = hourly.due(&state("01:00", None, None), at("06:00"));
    assert_eq!((due.start, due.known), (Some(at("06:00")), Some(at("06:00"))));
    assert_eq!(due.missed, [missed("02:00", "05:00", 4, MissedBecause::NoCatchUp)]);
}

#[test]
fn the_last_one_is_caught_up_unless_it_is_too_old() {
    let hourly = schedule("@hourly", "UTC", "within: 2h");
    let due = hourly.due(&state("01:00", None, None), at("06:30"));
    assert_eq!((due.start, due.known), (Some(at("06:00")), Some(at("06:00"))));
    let expected =
        [missed("02:00", "04:00", 3, MissedBecause::TooOld), missed("05:00", "05:00", 1, MissedBecause::NotTheLast)];
    assert_eq!(due.missed, expected);
    let daily = schedule("0 2 * * *", "UTC", "within: 2h");
    let due = daily.due(&state("01:00", None, None), at("04:00"));
    assert_eq!((due.start, due.missed), (Some(at("02:00")), vec![]));
    let due = daily.due(&state("01:00", None, None), at("04:00:01"));
    assert_eq!((due.start, due.missed), (None, vec![missed("02:00", "02:00", 1, MissedBecause::TooOld)]));
}

#[test]
fn all_are_caught_up_one_after_the_other() {
    let hourly = schedule("@hourly", "UTC", "catch_up: all, within: 3h");
    let first = hourly.due(&state("01:00", None, None), at("06:30"));
    assert_eq!((first.start, first.known), (Some(at("04:00")), Some(at("04:00"))));
    assert_eq!(first.missed, [missed("02:00", "03:00", 2, MissedBecause::TooOld)]);
    // While that runs, nothing happens, not even to a time that comes.
    let meanwhile = hourly.due(&state("04:00", Some("04:00"), None), at("07:00"));
    assert_eq!(meanwhile, Due { known: Some(at("04:00")), look_again: Some(at("08:00")), ..Due::default() });
    let second = hourly.due(&state("04:00", None, None), at("07:01"));
    assert_eq!((second.start, second.known, second.skipped), (Some(at("05:00")), Some(at("05:00")), vec![]));
    // Once the last one runs, `overlap` counts again.
    let done = hourly.due(&state("07:00", Some("07:00"), None), at("08:00"));
    assert_eq!((done.start, done.known), (None, Some(at("08:00"))));
    assert_eq!(done.skipped, [skipped("08:00", SkippedBecause::Overlap)]);
}

#[test]
fn an_overlap_is_skipped_queued_or_cancels() {
    let busy = state("01:00", Some("01:00"), None);
    let due = |overlap: &str, state: &State, now: &str| {
        schedule("@hourly", "UTC", &format!("overlap: {overlap}")).due(state, at(now))
    };
    let nothing = Due { known: Some(at("02:00")), look_again: Some(at("03:00")), ..Due::default() };
    let skip = Due { skipped: vec![skipped("02:00", SkippedBecause::Overlap)], ..nothing.clone() };
    assert_eq!(due("skip", &busy, "02:00"), skip);
    let queue = Due { queued: Some(at("02:00")), ..nothing.clone() };
    assert_eq!(due("queue", &busy, "02:00"), queue);
    let cancel = Due { queued: Some(at("02:00")), cancel: Some(at("01:00")), ..nothing.clone() };
    assert_eq!(due("cancel", &busy, "02:00"), cancel);

    // It is said again until it has ended, and what waits starts at the end.
    let waiting = state("02:00", Some("01:00"), Some("02:00"));
    assert_eq!(due("cancel", &waiting, "02:10"), cancel);
    assert_eq!(due("queue", &waiting, "02:10"), queue);
    for overlap in ["skip", "queue", "cancel"] {
        let ended = state("02:00", None, Some("02:00"));
        assert_eq!(due(overlap, &ended, "02:10"), Due { start: Some(at("02:00")), ..nothing.clone() }, "{overlap}");
    }
}

#[test]
fn one_waits_at_most() {
    let due = |overlap: &str, running: Option<&str>| {
        let settings = format!("overlap: {overlap}");
        schedule("@hourly", "UTC", &settings).due(&state("02:00", running, Some("02:00")), at("03:00"))
    };
    let replaced = vec![skipped("02:00", SkippedBecause::Replaced)];
    for overlap in ["queue", "cancel"] {
        let found = due(overlap, Some("01:00"));
        assert_eq!((found.start, found.queued, &found.skipped), (None, Some(at("03:00")), &replaced), "{overlap}");
    }
    // The run has ended just when the next time comes.
    let queue = due("queue", None);
    assert_eq!((queue.start, queue.queued, queue.skipped), (Some(at("02:00")), Some(at("03:00")), vec![]));
    let cancel = due("cancel", None);
    assert_eq!((cancel.start, cancel.queued, cancel.skipped), (Some(at("03:00")), None, replaced));
    // `skip` has been written into the file meanwhile.
    let skip = due("skip", None);
    assert_eq!((skip.start, skip.queued), (Some(at("02:00")), None));
    assert_eq!(skip.skipped, [skipped("03:00", SkippedBecause::Overlap)]);
}

#[test]
fn what_waits_becomes_too_old() {
    let daily = schedule("0 2 * * *", "UTC", "overlap: queue, within: 2h");
    let due = daily.due(&state("02:00", None, Some("02:00")), at("04:01"));
    assert_eq!((due.start, due.queued), (None, None));
    assert_eq!(due.skipped, [skipped("02:00", SkippedBecause::TooOld)]);
}

#[test]
fn nothing_counts_before_the_last_change_of_the_file() {
    let hourly = schedule("@hourly", "UTC", "catch_up: all");
    let new = State { changed: at("03:30"), ..State::default() };
    let before = hourly.due(&new, at("03:40"));
    assert_eq!(before, Due { look_again: Some(at("04:00")), ..Due::default() });
    assert_eq!(hourly.due(&new, at("05:10")).start, Some(at("04:00")));
    let edited = State { changed: at("03:30"), ..state("01:00", None, None) };
    let due = hourly.due(&edited, at("04:00"));
    assert_eq!((due.start, due.missed), (Some(at("04:00")), vec![]));
}

#[test]
fn a_clock_before_the_last_change_starts_nothing() {
    let hourly = schedule("@hourly", "UTC", "");
    let due = hourly.due(&state("01:00", None, None), utc("1970-01-01T00:00"));
    assert_eq!((due.start, due.is_clock_behind, due.look_again), (None, true, Some(at("01:00"))));
    // Once the clock is right, what was known still is.
    let due = hourly.due(&State { known: due.known, ..state("01:00", None, None) }, at("01:30"));
    assert_eq!((due.start, due.is_clock_behind, due.missed), (None, false, vec![]));
}

/// Nor does it hold the scheduler up if the clock was far ahead before.
#[test]
fn a_clock_before_the_last_change_is_looked_at_again_then() {
    let hourly = schedule("@hourly", "UTC", "");
    let state = State { known: Some(utc("2027-01-10T05:00")), ..state("01:00", None, None) };
    assert_eq!(hourly.due(&state, utc("2026-01-09T12:00")).look_again, Some(at("01:00")));
}

#[test]
fn a_clock_that_jumps_back_starts_nothing_twice() {
    let hourly = schedule("@hourly", "UTC", "");
    // A second before a time that has been started.
    let back = State { later: [at("02:00")].into(), ..state("02:00", None, None) };
    let due = hourly.due(&back, at("01:59:59"));
    assert_eq!((due.start, due.known), (None, Some(at("01:59:59"))));
    let again = State { known: due.known, ..back };
    assert_eq!(hourly.due(&again, at("02:00")).start, None);
    assert_eq!(hourly.due(&again, at("03:00")).start, Some(at("03:00")));
}

/// A clock goes back by days and is set right again: what was passed over because a later one ran stays passed over.
#[test]
fn a_clock_that_jumps_back_and_forth_catches_nothing_up() {
    let hourly = schedule("@hourly", "UTC", "");
    let back = State { later: [at("05:00")].into(), ..state("05:00", None, None) };
    let due = hourly.due(&back, at("01:30"));
    assert_eq!((due.start, due.known), (None, Some(at("01:30"))));
    let right = hourly.due(&State { known: due.known, ..back }, at("05:30"));
    assert_eq!((right.start, right.known), (None, Some(at("05:00"))));
}

#[test]
fn a_clock_that_was_ahead_holds_nothing_up() {
    let hourly = schedule("@hourly", "UTC", "");
    // It was a year ahead, and the last time of that year has run.
    let ahead = utc("2027-01-10T05:00");
    let state = State { known: Some(ahead), later: [ahead].into(), ..state("01:00", None, None) };
    let due = hourly.due(&state, at("02:30"));
    assert_eq!((due.start, due.look_again), (None, Some(at("03:00"))));
    let next = State { known: due.known, ..state };
    assert_eq!(hourly.due(&next, at("03:00")).start, Some(at("03:00")));
}

#[test]
fn a_jump_forward_is_downtime() {
    let hourly = schedule("@hourly", "UTC", "");
    let due = hourly.due(&state("02:00", None, None), utc("2026-02-10T00:30"));
    assert_eq!(due.start, Some(utc("2026-02-10T00:00")));
    let counts: Vec<u64> = due.missed.iter().map(|missed| missed.count).collect();
    // From 10 January 3:00 to 3 February 0:00, and 7 days less the last one.
    assert_eq!(counts, [24 * 24 - 2, 167]);
    let age = |time: DateTime<Utc>| utc("2026-02-10T00:30") - time;
    assert!(
        due.missed
            .iter()
            .all(|missed| (age(missed.last) > TimeDelta::days(7)) == (missed.because == MissedBecause::TooOld))
    );
}

#[test]
fn what_is_on_time_waits_behind_what_is_caught_up() {
    let hourly = schedule("@hourly", "UTC", "catch_up: all, overlap: skip");
    let first = hourly.due(&state("01:00", None, None), at("03:30"));
    assert_eq!((first.start, first.known), (Some(at("02:00")), Some(at("02:00"))));
    let last = hourly.due(&state("02:00", None, None), at("03:40"));
    assert_eq!((last.start, last.known), (Some(at("03:00")), Some(at("03:00"))));
    // All that was missed is decided, and the last of it runs.
    let busy = State { catches_up: true, ..state("03:00", Some("03:00"), None) };
    let due = hourly.due(&busy, at("04:00"));
    assert_eq!((due.start, due.skipped.len(), due.known), (None, 0, Some(at("03:00"))));
    let free = hourly.due(&state("03:00", None, None), at("04:20"));
    assert_eq!((free.start, free.known), (Some(at("04:00")), Some(at("04:00"))));
    // Behind a run that began in time, it is an overlap.
    let due = hourly.due(&state("03:00", Some("03:00"), None), at("04:00"));
    assert_eq!(due.skipped, [skipped("04:00", SkippedBecause::Overlap)]);
}
