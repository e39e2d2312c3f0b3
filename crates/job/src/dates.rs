//! Dates in values: `${today}`, `${now}`, and what is computed of them, such as `${today - 1 day | %Y%m%d}`.
//!
//! It owns the time at which a logical run begins and the expressions over it. Where they stand in a job file, and how
//! their faults are shown, is the business of [`crate::variables`].

use std::collections::BTreeMap;
use std::fmt::Write;

use chrono::format::{Item, StrftimeItems};
use chrono::{DateTime, Days, LocalResult, Months, NaiveDate, NaiveDateTime, Offset, TimeDelta, TimeZone, Utc};
use chrono_tz::{TZ_VARIANTS, Tz};
use millstream_core::hint::nearest;

/// The name of the day on which a run begins.
pub const TODAY: &str = "today";

/// The name of the time at which a run begins.
pub const NOW: &str = "now";

const DAY_FORMAT: &str = "%Y-%m-%d";

const TIME_FORMAT: &str = "%Y-%m-%dT%H:%M:%S%:z";

/// The time at which a logical run begins, in the time zone of its job. All runs of a resume chain have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    milliseconds: i64,
    zone: Tz,
}

impl Default for Moment {
    fn default() -> Self {
        Moment::new(0)
    }
}

impl Moment {
    /// The time that is `milliseconds` behind 1970-01-01 UTC, in UTC.
    pub fn new(milliseconds: i64) -> Self {
        Moment { milliseconds, zone: Tz::UTC }
    }

    /// Milliseconds since 1970-01-01 UTC.
    pub fn milliseconds(self) -> i64 {
        self.milliseconds
    }

    /// The name of the time zone.
    pub fn zone(self) -> &'static str {
        self.zone.name()
    }

    /// The time zone.
    pub(crate) fn time_zone(self) -> Tz {
        self.zone
    }

    /// The day in its time zone, in days since 1970-01-01.
    pub fn day(self) -> i32 {
        self.local().date_naive().to_epoch_days()
    }

    /// The time in its time zone since midnight, in nanoseconds, as a clock shows it.
    pub fn time_of_day(self) -> i64 {
        let time = self.local().time();
        (time - chrono::NaiveTime::MIN).num_nanoseconds().unwrap_or_default()
    }

    /// In its time zone, for messages: `2026-01-31T06:00:00+01:00`.
    pub fn text(self) -> String {
        self.local().format(TIME_FORMAT).to_string()
    }

    /// Another time in the same zone.
    pub(crate) fn at(self, milliseconds: i64) -> Self {
        Moment { milliseconds, ..self }
    }

    /// The same time in the zone of this name.
    pub(crate) fn in_zone(self, name: &str) -> Result<Self, DateFault> {
        let zone = name.parse::<Tz>().map_err(|_| unknown_zone(name))?;
        Ok(Moment { zone, ..self })
    }

    /// The beginning of a day (`2026-01-31`) in its time zone.
    pub(crate) fn at_day(self, day: &str) -> Option<Self> {
        let day = NaiveDate::parse_from_str(day, DAY_FORMAT).ok()?;
        Some(Moment { milliseconds: local(self.zone, day.and_hms_opt(0, 0, 0)?)?.timestamp_millis(), ..self })
    }

    /// A time (`2026-01-31T06:00:00`, perhaps with an offset) in its time zone.
    pub(crate) fn at_time(self, time: &str) -> Option<Self> {
        Some(Moment { milliseconds: time_of(self.zone, time)?.timestamp_millis(), ..self })
    }

    /// Whether one of `dates`, which were computed at this time, is another one at `other`; only those of `today`, if
    /// `only_days` says so. They have the inside of `${…}` as their names.
    pub(crate) fn differs(self, dates: &Computed, variables: &Computed, other: i64, only_days: bool) -> bool {
        let there = Moment { milliseconds: other, ..self };
        let parsed = dates.iter().filter_map(|(inside, value)| Some((Expression::parse(inside).ok()?, value)));
        let mut wanted = parsed.filter(|(expression, _)| !only_days || expression.base == TODAY);
        wanted.any(|(expression, value)| {
            let variable = variables.get(expression.base).map(String::as_str);
            expression.value(there, variable).is_ok_and(|now| now != *value)
        })
    }

    fn local(self) -> DateTime<Tz> {
        let utc = DateTime::<Utc>::from_timestamp_millis(self.milliseconds).unwrap_or_default();
        utc.with_timezone(&self.zone)
    }
}

/// Names and their values.
type Computed = BTreeMap<String, String>;

/// What is wrong with an expression, and with which characters of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DateFault {
    pub(crate) offset: usize,
    pub(crate) length: usize,
    pub(crate) what: String,
    pub(crate) hint: String,
}

/// A unit of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

const UNITS: [(&str, Unit); 7] = [
    ("second", Unit::Second),
    ("minute", Unit::Minute),
    ("hour", Unit::Hour),
    ("day", Unit::Day),
    ("week", Unit::Week),
    ("month", Unit::Month),
    ("year", Unit::Year),
];

const EXAMPLE: &str = "write for example `${today - 1 day | %Y%m%d}`";

/// What is added to a date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Term {
    is_minus: bool,
    count: u32,
    unit: Unit,
}

/// The inside of `${…}`, if it computes a date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expression<'a> {
    /// `today`, `now`, or the name of a variable that holds a date.
    pub(crate) base: &'a str,
    terms: Vec<Term>,
    format: Option<&'a str>,
}

/// Whether `inside`, which stands between `${` and `}`, is meant to compute a date.
pub(crate) fn is_expression(inside: &str) -> bool {
    let inside = inside.trim_start();
    let name = name_of(inside);
    let rest = inside[name.len()..].trim_start();
    match name {
        "" => false,
        TODAY | NOW => true,
        _ => rest.starts_with('|') || rest.strip_prefix(['+', '-']).is_some_and(starts_with_digit),
    }
}

fn starts_with_digit(text: &str) -> bool {
    text.trim_start().starts_with(|first: char| first.is_ascii_digit())
}

/// The name that `text` begins with.
fn name_of(text: &str) -> &str {
    let end = text.find(|one: char| !(one.is_ascii_alphanumeric() || one == '_')).unwrap_or(text.len());
    &text[..end]
}

impl<'a> Expression<'a> {
    pub(crate) fn parse(inside: &'a str) -> Result<Self, DateFault> {
        let (computed, format) = match inside.split_once('|') {
            Some((computed, format)) => (computed, Some(format)),
            None => (inside, None),
        };
        let base = name_of(computed.trim_start());
        let mut parser = Parser { whole: inside, rest: &computed.trim_start()[base.len()..] };
        let mut terms = Vec::new();
        while let Some(term) = parser.term()? {
            terms.push(term);
        }
        if let Some(format) = format {
            let offset = computed.chars().count() + 1;
            check_format(format, offset)?;
        }
        Ok(Expression { base, terms, format: format.map(str::trim) })
    }

    /// Its value, if `today` and `now` are those of `moment`. `value` is that of the variable it begins with.
    pub(crate) fn value(&self, moment: Moment, value: Option<&str>) -> Result<String, DateFault> {
        let zone = moment.zone;
        let (mut time, is_day) = match (self.base, value) {
            (TODAY, _) => (midnight(moment), true),
            (NOW, _) => (Some(moment.local()), false),
            (_, Some(value)) => {
                let day = moment.at_day(value);
                let known = day.or_else(|| moment.at_time(value)).ok_or_else(|| self.no_date(value))?;
                (Some(known.local()), day.is_some())
            }
            (_, None) => (None, true),
        };
        for term in &self.terms {
            time = time.and_then(|time| term.add(zone, time));
        }
        let time = time.ok_or_else(|| self.fault("the date is out of range", "years are from -262143 to 262142"))?;
        let by_clock = self.terms.iter().any(|term| term.seconds().is_some());
        let usual = if is_day && !by_clock { DAY_FORMAT } else { TIME_FORMAT };
        let mut text = String::new();
        write!(text, "{}", time.format(self.format.unwrap_or(usual)))
            .map_err(|_| self.fault("the date cannot be written in this format", EXAMPLE))?;
        Ok(text)
    }

    fn no_date(&self, value: &str) -> DateFault {
        let what = format!("the variable {} is `{value}`, which is no date", self.base);
        self.fault(what, "a date is written `2026-01-31`, a time `2026-01-31T06:00:00`")
    }

    fn fault(&self, what: impl Into<String>, hint: &str) -> DateFault {
        DateFault { offset: 0, length: self.base.len(), what: what.into(), hint: hint.to_owned() }
    }
}

fn midnight(moment: Moment) -> Option<DateTime<Tz>> {
    local(moment.zone, moment.local().date_naive().and_hms_opt(0, 0, 0)?)
}

impl Term {
    /// Its length, if it is measured by the clock and not by the calendar.
    fn seconds(self) -> Option<i64> {
        let unit = match self.unit {
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 3600,
            Unit::Day | Unit::Week | Unit::Month | Unit::Year => return None,
        };
        Some(i64::from(self.count) * if self.is_minus { -unit } else { unit })
    }

    fn add(self, zone: Tz, time: DateTime<Tz>) -> Option<DateTime<Tz>> {
        if let Some(seconds) = self.seconds() {
            return time.checked_add_signed(TimeDelta::try_seconds(seconds)?);
        }
        let day = time.naive_local();
        let (days, months) = match self.unit {
            Unit::Week => (u64::from(self.count) * 7, 0),
            Unit::Month => (0, self.count),
            Unit::Year => (0, self.count.checked_mul(12)?),
            _ => (u64::from(self.count), 0),
        };
        let moved = match self.is_minus {
            true => day.checked_sub_days(Days::new(days))?.checked_sub_months(Months::new(months))?,
            false => day.checked_add_days(Days::new(days))?.checked_add_months(Months::new(months))?,
        };
        local(zone, moved)
    }
}

/// The time that clocks in `zone` show as `time`: the first, if they show it twice; if they skip it, as long after the
/// skip as it lies behind its beginning.
fn local(zone: Tz, time: NaiveDateTime) -> Option<DateTime<Tz>> {
    match zone.from_local_datetime(&time) {
        LocalResult::Single(found) | LocalResult::Ambiguous(found, _) => Some(found),
        LocalResult::None => {
            let before = zone.from_local_datetime(&time.checked_sub_days(Days::new(1))?).earliest()?;
            let offset = i64::from(before.offset().fix().local_minus_utc());
            let utc = time.checked_sub_signed(TimeDelta::try_seconds(offset)?)?;
            Some(zone.from_utc_datetime(&utc))
        }
    }
}

/// `2026-01-31T06:00:00` in `zone`, or with an offset of its own.
fn time_of(zone: Tz, text: &str) -> Option<DateTime<Tz>> {
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Some(time.with_timezone(&zone));
    }
    let formats = ["%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M"];
    formats.iter().find_map(|format| local(zone, NaiveDateTime::parse_from_str(text, format).ok()?))
}

fn check_format(format: &str, offset: usize) -> Result<(), DateFault> {
    let trimmed = format.trim();
    let is_bad = StrftimeItems::new(trimmed).any(|item| item == Item::Error);
    if !is_bad && !trimmed.is_empty() {
        return Ok(());
    }
    let what = match trimmed.is_empty() {
        true => "the format behind `|` is empty".to_owned(),
        false => format!("`{trimmed}` is not a format of dates"),
    };
    let blanks = format.chars().take_while(|one| one.is_whitespace()).count();
    let hint = "`%Y` is the year, `%m` the month, `%d` the day, `%H` the hour, `%M` the minute, `%j` the day of the \
                year, `%V` the week; `%%` stands for `%`";
    Err(DateFault { offset: offset + blanks, length: trimmed.chars().count().max(1), what, hint: hint.to_owned() })
}

/// Reads what stands behind the name of an expression.
struct Parser<'a> {
    /// The whole inside, for places.
    whole: &'a str,
    /// What is not read yet.
    rest: &'a str,
}

impl<'a> Parser<'a> {
    /// The next term; `None` at the end.
    fn term(&mut self) -> Result<Option<Term>, DateFault> {
        self.rest = self.rest.trim();
        let Some(sign) = self.rest.chars().next() else { return Ok(None) };
        if !"+-".contains(sign) {
            let what = format!("expected `+`, `-` or `|`, found `{}`", self.rest);
            return Err(self.fault(self.rest, what, EXAMPLE.to_owned()));
        }
        self.rest = self.rest[1..].trim_start();
        let digits = self.take(|one| one.is_ascii_digit());
        if digits.is_empty() {
            let what = format!("expected a number behind `{sign}`");
            return Err(self.fault(self.rest, what, EXAMPLE.to_owned()));
        }
        let Ok(count) = digits.parse() else {
            return Err(self.fault(digits, format!("{digits} is too large a number"), EXAMPLE.to_owned()));
        };
        self.rest = self.rest.trim_start();
        let word = self.take(|one| one.is_alphabetic());
        let unit = self.unit(word, digits)?;
        Ok(Some(Term { is_minus: sign == '-', count, unit }))
    }

    fn unit(&self, word: &'a str, digits: &'a str) -> Result<Unit, DateFault> {
        let lower = word.to_lowercase();
        let singular = lower.strip_suffix('s').unwrap_or(&lower);
        if let Some((_, unit)) = UNITS.iter().find(|(name, _)| *name == singular) {
            return Ok(*unit);
        }
        let names = UNITS.map(|(name, _)| name);
        let all = format!("units: {}", names.join(", "));
        let hint = match nearest(singular, names) {
            Some(near) => format!("did you mean `{near}`? {all}"),
            None => all,
        };
        match word.is_empty() {
            true => Err(self.fault(digits, format!("expected a unit behind {digits}"), hint)),
            false => Err(self.fault(word, format!("unknown unit `{word}`"), hint)),
        }
    }

    fn take(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|one| !wanted(one)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    /// A fault of `part`, which is a part of the whole.
    fn fault(&self, part: &str, what: String, hint: String) -> DateFault {
        let bytes = (part.as_ptr() as usize).saturating_sub(self.whole.as_ptr() as usize);
        let offset = self.whole.get(..bytes).map_or(0, |before| before.chars().count());
        DateFault { offset, length: part.chars().count().max(1), what, hint }
    }
}

fn unknown_zone(name: &str) -> DateFault {
    let names = TZ_VARIANTS.iter().map(|zone| zone.name());
    let usual = "names are those of the IANA database, such as `Europe/Berlin`, or `UTC`";
    let hint = match nearest(name, names) {
        Some(near) => format!("did you mean `{near}`? {usual}"),
        None => usual.to_owned(),
    };
    DateFault { offset: 0, length: name.chars().count(), what: format!("there is no time zone `{name}`"), hint }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 2026-01-31T23:30:00Z, which is the next day in Berlin.
    const INSTANT: i64 = 1_769_902_200_000;

    fn at(zone: &str, time: &str) -> Moment {
        Moment::new(0).in_zone(zone).expect("a zone").at_time(time).expect("a time")
    }

    fn computed(moment: Moment, inside: &str) -> String {
        assert!(is_expression(inside), "{inside}");
        Expression::parse(inside)
            .and_then(|one| one.value(moment, Some("2024-02-29")))
            .unwrap_or_else(|fault| fault.what)
    }

    #[test]
    fn dates_follow_the_calendar_of_their_zone() {
        let (utc, berlin) = (Moment::new(INSTANT), Moment::new(INSTANT).in_zone("Europe/Berlin").expect("a zone"));
        for (moment, inside, expected) in [
            (utc, "today", "2026-01-31"),
            (berlin, "today", "2026-02-01"),
            (utc, "now", "2026-01-31T23:30:00+00:00"),
            (berlin, "now", "2026-02-01T00:30:00+01:00"),
            (berlin, "now | %H%M%z", "0030+0100"),
            (utc, "today - 1 day | %Y%m%d", "20260130"),
            (utc, "today-1day|%Y%m%d", "20260130"),
            (utc, "today + 1 month", "2026-02-28"),
            (utc, "today + 1 month - 1 month", "2026-01-28"),
            (utc, "today - 2 weeks + 3 days", "2026-01-20"),
            (utc, "today - 1 year | %j", "031"),
            (utc, "today - 1 hour", "2026-01-30T23:00:00+00:00"),
            (utc, "today + 25 HOURS | %d %H", "01 01"),
            (utc, " today | %Y/%m/%d ", "2026/01/31"),
            (utc, "DAY + 1 year", "2025-02-28"),
            (utc, "DAY | %y%m%d", "240229"),
            (utc, "today | %%", "%"),
        ] {
            assert_eq!(computed(moment, inside), expected, "{inside}");
        }
        assert_eq!((utc.day(), berlin.day()), (20_484, 20_485));
        assert_eq!(berlin.time_of_day(), 1_800_000_000_000);
    }

    #[test]
    fn a_day_is_one_of_the_calendar_and_an_hour_has_3600_seconds() {
        let before = at("Europe/Berlin", "2026-03-28T12:00:00");
        assert_eq!(computed(before, "now + 1 day"), "2026-03-29T12:00:00+02:00");
        assert_eq!(computed(before, "now + 24 hours"), "2026-03-29T13:00:00+02:00");
        // Clocks go from 2 to 3 in that night.
        let skipped = at("Europe/Berlin", "2026-03-28T02:30:00");
        assert_eq!(computed(skipped, "now + 1 day"), "2026-03-29T03:30:00+02:00");
        // They show the hour from 2 to 3 twice.
        let twice = at("Europe/Berlin", "2026-10-24T02:30:00");
        assert_eq!(computed(twice, "now + 1 day"), "2026-10-25T02:30:00+02:00");
        // Midnight is skipped here.
        let no_midnight = at("Africa/Cairo", "2026-04-24T12:00:00");
        assert_eq!(computed(no_midnight, "today"), "2026-04-24");
        assert_eq!(computed(no_midnight, "today | %H"), "01");
        // And here a whole day.
        assert_eq!(computed(at("Pacific/Apia", "2011-12-29T12:00:00"), "today + 1 day"), "2011-12-31");
    }

    #[test]
    fn faults_have_their_place() {
        for (inside, offset, length, what) in [
            ("today * 2", 6, 3, "expected `+`, `-` or `|`, found `* 2`"),
            ("today:-x", 5, 3, "expected `+`, `-` or `|`, found `:-x`"),
            ("today - 1", 8, 1, "expected a unit behind 1"),
            ("today - 1 dya", 10, 3, "unknown unit `dya`"),
            ("today - day", 8, 3, "expected a number behind `-`"),
            ("today - 99999999999 days", 8, 11, "99999999999 is too large a number"),
            ("today | %Q", 8, 2, "`%Q` is not a format of dates"),
            ("today |", 7, 1, "the format behind `|` is empty"),
        ] {
            let fault = Expression::parse(inside).expect_err(inside);
            assert_eq!((fault.offset, fault.length, fault.what.as_str()), (offset, length, what), "{inside}");
        }
        assert_eq!(computed(Moment::new(0), "today + 4000000000 days"), "the date is out of range");
        let unknown = Moment::new(0).in_zone("Europe/Berlim").expect_err("no such zone");
        assert!(unknown.hint.starts_with("did you mean `Europe/Berlin`?"), "{unknown:?}");
        assert!(!is_expression("today_x") && !is_expression("my-var") && !is_expression("DAY:-1"));
    }

    proptest! {
        #[test]
        fn days_are_those_of_the_calendar(day in -100_000_i32..100_000, count in 0_u32..40_000, plus: bool) {
            let moment = Moment::new(i64::from(day) * 86_400_000 + 1);
            let inside = format!("today {} {count} days", if plus { '+' } else { '-' });
            let there = if plus { day + count as i32 } else { day - count as i32 };
            let expected = NaiveDate::from_epoch_days(there).expect("in range").format(DAY_FORMAT).to_string();
            prop_assert_eq!(computed(moment, &inside), expected);
        }

        #[test]
        fn no_text_is_too_strange(inside in "\\PC*") {
            let parsed = Expression::parse(&inside);
            if let Ok(expression) = parsed {
                let _ = expression.value(Moment::new(INSTANT), Some("2026-01-01"));
            }
        }
    }
}
