//! Entries of cron: the days, hours and minutes that one names, and what is wrong with a text that is none.
//!
//! `croner` reads the text and knows the days. Its search for the next time is not used: an entry counts there as fixed
//! only if it names a single time of day, so that it skips `0 2,14` in the gap of daylight saving time.

use chrono::{Datelike, Days, NaiveDate, NaiveDateTime, Timelike};
use croner::parser::{CronParser, Seconds, Year};
use croner::{CronPattern, Weekday};
use millstream_core::hint::did_you_mean;
use millstream_core::spec::Fault;

const NICKNAMES: [&str; 6] = ["@hourly", "@daily", "@weekly", "@monthly", "@yearly", "@annually"];

const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];

const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// After so many days, dates fall on the same days of the week again, leap years included: 400 years.
pub(crate) const CALENDAR: u64 = 146_097;

/// One of the five fields.
struct Field {
    name: &'static str,
    least: u32,
    most: u32,
    names: &'static [&'static str],
    hint: &'static str,
}

const FIELDS: [Field; 5] = [
    Field {
        name: "minute",
        least: 0,
        most: 59,
        names: &[],
        hint: "minutes are 0 to 59: write for example `0`, `0,30`, `10-20` or `*/15`",
    },
    Field {
        name: "hour",
        least: 0,
        most: 23,
        names: &[],
        hint: "hours are 0 to 23: write for example `2`, `2,14`, `8-18` or `*/2`",
    },
    Field {
        name: "day of the month",
        least: 1,
        most: 31,
        names: &[],
        hint: "days are 1 to 31; `L` is the last one, `15W` the day from Monday to Friday next to the 15th",
    },
    Field { name: "month", least: 1, most: 12, names: &MONTHS, hint: "months are 1 to 12, or `JAN` to `DEC`" },
    Field {
        name: "day of the week",
        least: 0,
        most: 7,
        names: &WEEKDAYS,
        hint: "days are 0 to 7, where 0 and 7 are Sunday, or `SUN` to `SAT`; `FRI#2` is the second Friday of the \
               month, `FRIL` the last one",
    },
];

/// An entry of cron.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cron {
    pattern: CronPattern,
    hours: Vec<u32>,
    minutes: Vec<u32>,
    is_fixed: bool,
}

impl Cron {
    /// The fault has no path.
    pub(crate) fn parse(text: &str) -> Result<Self, Fault> {
        check(text.trim())?;
        let pattern = read(text).ok_or_else(|| Fault::new("", format!("`{text}` is not an entry of cron")))?;
        let of = |values: Vec<u16>| values.into_iter().map(u32::from).collect();
        let (hours, minutes) = (of(pattern.hours.values()), of(pattern.minutes.values()));
        let is_fixed = !pattern.as_str().split_whitespace().take(2).any(|field| field.contains(['*', '/']));
        let cron = Cron { pattern, hours, minutes, is_fixed };
        // Any year is as good a beginning as another.
        match cron.first_day(NaiveDate::default()) {
            Some(_) => Ok(cron),
            None => Err(Fault::new("", format!("`{text}` never happens"))
                .hint("no year has such a day: change the day of the month, the month or the day of the week")),
        }
    }

    /// Whether it names times of day, each of which happens once a day whatever clocks do, and not steps through
    /// real time.
    pub(crate) fn is_fixed(&self) -> bool {
        self.is_fixed
    }

    /// The first day at or after `from` on which it happens.
    pub(crate) fn first_day(&self, from: NaiveDate) -> Option<NaiveDate> {
        from.iter_days().take(CALENDAR as usize).find(|day| self.is_on(*day))
    }

    /// The times from `from` to `until`, both included, as clocks show them, in order.
    pub(crate) fn wall_times(&self, from: NaiveDateTime, until: NaiveDateTime) -> Vec<NaiveDateTime> {
        let mut times = Vec::new();
        let mut next = Some(from.date());
        while let Some(day) = next.filter(|day| *day <= until.date()) {
            next = day.checked_add_days(Days::new(1));
            if !self.is_on(day) {
                continue;
            }
            // Whole hours are left out first: a window is often short, and an entry may name every minute.
            let is_near = |hour: &&u32| {
                (day > from.date() || **hour >= from.hour()) && (day < until.date() || **hour <= until.hour())
            };
            for hour in self.hours.iter().filter(is_near) {
                let times_of_hour = self.minutes.iter().filter_map(|minute| day.and_hms_opt(*hour, *minute, 0));
                times.extend(times_of_hour.filter(|time| (from..=until).contains(time)));
            }
        }
        times
    }

    fn is_on(&self, day: NaiveDate) -> bool {
        let weekday = Weekday::from_days_from_sunday(day.weekday().num_days_from_sunday());
        // Both fail only for dates that do not exist.
        self.pattern.month_match(day.month()).unwrap_or(false)
            && self.pattern.day_match(day.year(), day.month(), day.day(), weekday).unwrap_or(false)
    }
}

fn read(text: &str) -> Option<CronPattern> {
    let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
    parser.parse(text).ok().map(|cron| cron.pattern)
}

fn check(text: &str) -> Result<(), Fault> {
    if text.starts_with('@') {
        return match NICKNAMES.contains(&text.to_ascii_lowercase().as_str()) {
            true => Ok(()),
            false => {
                let what = format!("there is no entry `{text}`");
                Err(Fault::new("", what).hint(did_you_mean(text, "short entries", &NICKNAMES)))
            }
        };
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        let what = format!("`{text}` has {} fields, and an entry of cron has five", fields.len());
        let hint = match fields.len() {
            6 | 7 => {
                "the fields are minute, hour, day of the month, month and day of the week: there are no seconds \
                      and no years"
            }
            _ => {
                "the fields are minute, hour, day of the month, month and day of the week: every day at two is \
                  `0 2 * * *`"
            }
        };
        return Err(Fault::new("", what.replace(" 1 fields", " 1 field")).hint(hint));
    }
    let wrong = FIELDS.iter().zip(&fields).enumerate().find(|(index, (field, text))| !field.takes(*index, text));
    match wrong {
        None => Ok(()),
        Some((_, (field, text))) => {
            Err(Fault::new("", format!("the {} cannot be `{text}`", field.name)).hint(field.hint(text)))
        }
    }
}

impl Field {
    /// Whether `text` is good as this field, the one at `index`.
    fn takes(&self, index: usize, text: &str) -> bool {
        let mut alone = ["*"; FIELDS.len()];
        alone[index] = text;
        // `croner` passes over empty items, and replaces names inside words, such as in `SUN1`.
        let is_whole = text.split(',').all(|item| !item.is_empty());
        is_whole
            && text.split([',', '-', '/', '#', '+']).all(|word| self.knows(word))
            && read(&alone.join(" ")).is_some()
    }

    fn knows(&self, word: &str) -> bool {
        let word = word.to_uppercase();
        let is_name = word.chars().filter(|one| one.is_alphabetic()).count() > 2;
        let is_known = |word: &str| self.names.contains(&word);
        !is_name || is_known(&word) || word.strip_suffix('L').is_some_and(is_known)
    }

    fn hint(&self, text: &str) -> String {
        for item in text.split(',') {
            let (range, step) = item.split_once('/').map_or((item, None), |(range, step)| (range, Some(step)));
            match range.split_once('-') {
                Some((from, until)) => {
                    let numbers = (from.parse::<u32>().ok(), until.parse::<u32>().ok());
                    if let (Some(from), Some(until)) = numbers
                        && until < from
                        && from <= self.most
                    {
                        let (least, most) = (self.least, self.most);
                        return format!("a range goes upwards: write `{from}-{most},{least}-{until}`");
                    }
                }
                None if step.is_some() && range != "*" => {
                    let step = step.filter(|step| step.parse::<u32>().is_ok()).unwrap_or("5");
                    let from = range.parse::<u32>().unwrap_or(self.least);
                    return format!("a step needs a range: write `*/{step}` or `{from}-{}/{step}`", self.most);
                }
                None => {}
            }
        }
        self.hint.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(text: &str) -> NaiveDate {
        text.parse().expect("a day")
    }

    #[test]
    fn faults_say_which_field_is_wrong() {
        for (text, what, hint) in [
            ("0 25 * * *", "the hour cannot be `25`", "hours are 0 to 23"),
            ("60 2 * * *", "the minute cannot be `60`", "minutes are 0 to 59"),
            ("0 2 32 * *", "the day of the month cannot be `32`", "days are 1 to 31"),
            ("0 2 * 13 *", "the month cannot be `13`", "months are 1 to 12"),
            ("0 2 * * 8", "the day of the week cannot be `8`", "days are 0 to 7"),
            ("0 2 * * MONDAY", "the day of the week cannot be `MONDAY`", "days are 0 to 7"),
            ("0 2 * * SUN1", "the day of the week cannot be `SUN1`", "days are 0 to 7"),
            ("0 2 * 1FEB *", "the month cannot be `1FEB`", "months are 1 to 12"),
            ("0 2 * MON *", "the month cannot be `MON`", "months are 1 to 12"),
            ("0 1,,2 * * *", "the hour cannot be `1,,2`", "hours are 0 to 23"),
            ("0 22-4 * * *", "the hour cannot be `22-4`", "a range goes upwards: write `22-23,0-4`"),
            ("5/15 * * * *", "the minute cannot be `5/15`", "a step needs a range: write `*/15` or `5-59/15`"),
            ("*/0 * * * *", "the minute cannot be `*/0`", "minutes are 0 to 59"),
            ("0 0 2 * * *", "`0 0 2 * * *` has 6 fields, and an entry of cron has five", "the fields are minute, hour"),
            ("2", "`2` has 1 field, and an entry of cron has five", "the fields are minute, hour"),
            ("", "`` has 0 fields, and an entry of cron has five", "the fields are minute, hour"),
            ("@dayly", "there is no entry `@dayly`", "did you mean `@daily`?"),
            ("@reboot", "there is no entry `@reboot`", "short entries: @hourly"),
            ("0 0 30 2 *", "`0 0 30 2 *` never happens", "no year has such a day"),
            ("0 0 31 2,4,6,9,11 *", "`0 0 31 2,4,6,9,11 *` never happens", "no year has such a day"),
        ] {
            let fault = Cron::parse(text).expect_err(text);
            assert_eq!(fault.what, what, "{text}");
            let found = fault.hint.unwrap_or_default();
            assert!(found.starts_with(hint), "{text}: {found}");
        }
    }

    #[test]
    fn usual_entries_are_read() {
        for (text, is_fixed) in [
            ("0 2 * * *", true),
            ("0 2,14 * * 1-5", true),
            ("  15 1-5  * jul FRIL ", true),
            ("@daily", true),
            ("@Weekly", true),
            ("0 0 L * ?", true),
            ("0 0 15W * *", true),
            ("0 0 1 * +MON", true),
            ("*/15 2 * * *", false),
            ("0 8-18/2 * * *", false),
            ("@hourly", false),
            ("* * * * *", false),
        ] {
            assert_eq!(Cron::parse(text).map(|cron| cron.is_fixed()), Ok(is_fixed), "{text}");
        }
    }

    #[test]
    fn rare_days_are_found_and_years_do_not_matter() {
        let first = |text: &str, from: &str| Cron::parse(text).expect(text).first_day(day(from));
        assert_eq!(first("0 0 29 2 *", "2096-03-01"), Some(day("2104-02-29")));
        // 1 January 2101 is a Saturday: 29 February is a Monday 40 years apart there.
        assert_eq!(first("0 0 29 2 +MON", "2072-03-01"), Some(day("2112-02-29")));
        assert_eq!(first("0 0 * * FRI#5", "2026-02-01"), Some(day("2026-05-29")));
        assert_eq!(first("0 0 L 2 *", "2026-01-01"), Some(day("2026-02-28")));
    }

    #[test]
    fn a_window_has_both_its_ends() {
        let cron = Cron::parse("0,30 1-3 * * *").expect("an entry");
        let at = |text: &str| NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M").expect("a time");
        let found = cron.wall_times(at("2026-05-01 02:30"), at("2026-05-02 01:00"));
        let expected = ["2026-05-01 02:30", "2026-05-01 03:00", "2026-05-01 03:30", "2026-05-02 01:00"];
        assert_eq!(found, expected.map(at));
    }
}
