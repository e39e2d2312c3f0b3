//! The hours in which a job runs: `20:00-06:00`, as clocks show them in the time zone of the job.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, NaiveTime, TimeZone, Utc};
use chrono_tz::Tz;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A minute, in milliseconds.
const MINUTE: i64 = 60_000;

/// Hours of each day: from a time of day to another, which is on the next day if it is not later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hours {
    from: NaiveTime,
    to: NaiveTime,
}

impl Hours {
    /// Whether the moment (milliseconds since 1970) is within them, in `zone`.
    fn has(&self, zone: Tz, moment: i64) -> bool {
        let utc = DateTime::<Utc>::from_timestamp_millis(moment).unwrap_or_default();
        self.are_at(zone.from_utc_datetime(&utc.naive_utc()).time())
    }

    /// Whether a time of day is within them, in minutes since midnight.
    pub fn have(&self, minute: u32) -> bool {
        NaiveTime::from_num_seconds_from_midnight_opt(minute * 60, 0).is_some_and(|time| self.are_at(time))
    }

    fn are_at(&self, time: NaiveTime) -> bool {
        match self.from < self.to {
            true => self.from <= time && time < self.to,
            false => self.from <= time || time < self.to,
        }
    }

    /// When they begin, if `moment` (both in milliseconds since 1970) is not within them. It is looked at minute by
    /// minute: so they begin at the end of the gap if clocks are set forward over their beginning.
    pub(super) fn begin_after(&self, zone: Tz, moment: i64) -> Option<i64> {
        if self.has(zone, moment) {
            return None;
        }
        let minutes = (1..).map(|minute| (moment.div_euclid(MINUTE) + minute) * MINUTE);
        // Each day has them, however clocks are set.
        minutes.take(3 * 24 * 60).find(|minute| self.has(zone, *minute)).or(Some(moment))
    }
}

impl FromStr for Hours {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let time = |text: &str| NaiveTime::parse_from_str(text.trim(), "%H:%M").ok();
        let end = |text: &str| if text.trim() == "24:00" { Some(NaiveTime::MIN) } else { time(text) };
        let parsed = text.split_once('-').and_then(|(from, to)| Some(Hours { from: time(from)?, to: end(to)? }));
        match parsed {
            Some(Hours { from, to }) if from == to => {
                Err(format!("`{text}` begins when it ends: leave `hours` out if the job may always run"))
            }
            Some(hours) => Ok(hours),
            None => Err(format!("`{text}` is no such text as `20:00-06:00`: two times of day")),
        }
    }
}

impl TryFrom<String> for Hours {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.from.format("%H:%M"), self.to.format("%H:%M"))
    }
}

impl From<Hours> for String {
    fn from(hours: Hours) -> String {
        hours.to_string()
    }
}

impl JsonSchema for Hours {
    fn schema_name() -> Cow<'static, str> {
        "Hours".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": r"^ *([01]?[0-9]|2[0-3]):[0-5][0-9] *- *(([01]?[0-9]|2[0-3]):[0-5][0-9]|24:00) *$",
            "description": "Two times of day, such as `20:00-06:00`.",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(zone: Tz, text: &str) -> i64 {
        let naive = chrono::NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M").expect("a time");
        zone.from_local_datetime(&naive).earliest().expect("clocks show it").timestamp_millis()
    }

    fn begins(hours: &str, zone: Tz, moment: &str) -> Option<String> {
        let hours: Hours = hours.parse().expect("hours");
        let begin = hours.begin_after(zone, at(zone, moment))?;
        let utc = DateTime::<Utc>::from_timestamp_millis(begin).expect("a time");
        Some(utc.with_timezone(&zone).format("%Y-%m-%d %H:%M").to_string())
    }

    #[test]
    fn hours_may_pass_over_midnight() {
        let berlin = chrono_tz::Europe::Berlin;
        for within in ["2026-11-27 20:00", "2026-11-27 23:59", "2026-11-28 00:00", "2026-11-28 05:59"] {
            assert_eq!(begins("20:00-06:00", berlin, within), None, "{within}");
        }
        assert_eq!(begins("20:00-06:00", berlin, "2026-11-28 06:00").as_deref(), Some("2026-11-28 20:00"));
        assert_eq!(begins("20:00-06:00", berlin, "2026-11-28 19:59").as_deref(), Some("2026-11-28 20:00"));
        assert_eq!(begins("8:00 - 9:30", berlin, "2026-11-28 09:30").as_deref(), Some("2026-11-29 08:00"));
        assert_eq!(begins("8:00-9:30", berlin, "2026-11-28 09:29"), None);
    }

    #[test]
    fn clocks_that_are_set_move_them() {
        let berlin = chrono_tz::Europe::Berlin;
        // From two to three there is nothing.
        assert_eq!(begins("02:30-05:00", berlin, "2026-03-29 01:00").as_deref(), Some("2026-03-29 03:00"));
        assert_eq!(begins("02:10-02:50", berlin, "2026-03-29 01:00").as_deref(), Some("2026-03-30 02:10"));
        assert_eq!(begins("02:00-03:00", berlin, "2026-10-25 02:30"), None);
    }

    #[test]
    fn what_is_no_hours_is_refused() {
        for text in
            ["", "20:00", "20-06", "24:00-06:00", "00:00-24:00", "20:00-20:00", "20:00-06:00-07:00", "20:00–06:00"]
        {
            assert!(text.parse::<Hours>().is_err(), "{text}");
        }
        assert_eq!("20:00-24:00".parse::<Hours>().expect("hours").to_string(), "20:00-00:00");
        assert_eq!("8:05-9:00".parse::<Hours>().expect("hours").to_string(), "08:05-09:00");
    }
}
