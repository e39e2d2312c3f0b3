//! From the time that clocks show to moments.

use chrono::{DateTime, Days, LocalResult, NaiveDateTime, NaiveTime, Offset, TimeDelta, TimeZone, Utc};
use chrono_tz::{GapInfo, TZ_VARIANTS, Tz};
use millstream_core::hint::nearest;
use millstream_core::spec::Fault;

/// When the clocks of a place show a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    /// At one moment.
    Once(DateTime<Utc>),
    /// Twice: they were set back between.
    Twice(DateTime<Utc>, DateTime<Utc>),
    /// Never: they were set forward, at this moment.
    Never(DateTime<Utc>),
}

/// When clocks in `zone` show `time`; nothing where the time zone's data ends.
pub(crate) fn shown(zone: Tz, time: NaiveDateTime) -> Option<Shown> {
    match zone.from_local_datetime(&time) {
        LocalResult::Single(one) => Some(Shown::Once(one.to_utc())),
        LocalResult::Ambiguous(first, second) => Some(Shown::Twice(first.to_utc(), second.to_utc())),
        LocalResult::None => GapInfo::new(&time, &zone)?.end.map(|end| Shown::Never(end.to_utc())),
    }
}

/// What clocks in `zone` are ahead of UTC.
pub(crate) fn ahead(zone: Tz, moment: DateTime<Utc>) -> TimeDelta {
    let offset = zone.offset_from_utc_datetime(&moment.naive_utc()).fix();
    TimeDelta::seconds(i64::from(offset.local_minus_utc()))
}

/// The first moment at or after `from` at which clocks in `zone` show `time`, or are set forward over it.
pub(crate) fn first_at(zone: Tz, from: DateTime<Utc>, time: NaiveTime) -> Option<DateTime<Utc>> {
    let day = from.with_timezone(&zone).date_naive();
    // A gap of a whole day has been seen (Samoa, 2011), so the day before counts, too.
    let days = (0..=3).filter_map(|days| day.checked_add_days(Days::new(days))?.pred_opt());
    let moments = days.filter_map(|day| shown(zone, day.and_time(time))).flat_map(|shown| match shown {
        Shown::Once(one) | Shown::Never(one) => [one, one],
        Shown::Twice(first, second) => [first, second],
    });
    moments.filter(|moment| *moment >= from).min()
}

/// The time zone of this name. The fault has no path.
pub(crate) fn zone(name: &str) -> Result<Tz, Fault> {
    name.parse::<Tz>().map_err(|_| {
        let usual = "names are those of the IANA database, such as `Europe/Berlin`, or `UTC`";
        let hint = match nearest(name, TZ_VARIANTS.iter().map(|zone| zone.name())) {
            Some(near) => format!("did you mean `{near}`? {usual}"),
            None => usual.to_owned(),
        };
        Fault::new("", format!("there is no time zone `{name}`")).hint(hint)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utc(text: &str) -> DateTime<Utc> {
        format!("{text}Z").parse().expect("a moment")
    }

    #[test]
    fn times_of_both_changes_are_known() {
        let shown = |zone: Tz, time: &str| shown(zone, time.parse().expect("a time")).expect("within the data");
        let berlin = chrono_tz::Europe::Berlin;
        assert_eq!(shown(berlin, "2026-03-29T02:30:00"), Shown::Never(utc("2026-03-29T01:00:00")));
        let twice = Shown::Twice(utc("2026-10-25T00:30:00"), utc("2026-10-25T01:30:00"));
        assert_eq!(shown(berlin, "2026-10-25T02:30:00"), twice);
        let lord_howe = chrono_tz::Australia::Lord_Howe;
        assert_eq!(shown(lord_howe, "2026-10-04T02:15:00"), Shown::Never(utc("2026-10-03T15:30:00")));
        assert_eq!(shown(lord_howe, "2026-10-04T02:30:00"), Shown::Once(utc("2026-10-03T15:30:00")));
        let samoa = chrono_tz::Pacific::Apia;
        assert_eq!(shown(samoa, "2011-12-30T12:00:00"), Shown::Never(utc("2011-12-30T10:00:00")));
    }

    #[test]
    fn the_first_time_at_or_after_a_moment() {
        let first = |zone: Tz, from: &str, time: &str| first_at(zone, utc(from), time.parse().expect("a time"));
        let berlin = chrono_tz::Europe::Berlin;
        assert_eq!(first(berlin, "2026-01-10T01:00:00", "03:00:00"), Some(utc("2026-01-10T02:00:00")));
        // At the time itself, and just behind it.
        assert_eq!(first(berlin, "2026-01-10T02:00:00", "03:00:00"), Some(utc("2026-01-10T02:00:00")));
        assert_eq!(first(berlin, "2026-01-10T02:00:01", "03:00:00"), Some(utc("2026-01-11T02:00:00")));
        // In the gap, and in the second pass of an overlap.
        assert_eq!(first(berlin, "2026-03-28T23:30:00", "02:30:00"), Some(utc("2026-03-29T01:00:00")));
        assert_eq!(first(berlin, "2026-10-25T00:45:00", "02:30:00"), Some(utc("2026-10-25T01:30:00")));
        assert_eq!(
            first(chrono_tz::Pacific::Apia, "2011-12-30T09:00:00", "12:00:00"),
            Some(utc("2011-12-30T10:00:00"))
        );
    }
}
