//! What a sequence may say of its schedule.

use std::borrow::Cow;
use std::fmt;

use chrono::NaiveTime;
use millstream_core::spec::{Duration, Fault, Spec};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::schedule::Schedule;
use crate::triggers::{AfterSpec, FilesSpec, MessageSpec};

/// When a sequence starts by itself, and what happens where that is not possible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleSpec {
    /// The times at which it starts: an entry of cron, or a list of them. It may be left out if something else starts
    /// the sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "CronEntries")]
    pub cron: Option<CronEntries>,
    /// The time zone of `cron` and `deadline`, by its name in the IANA database: `Europe/Berlin`. If clocks are set
    /// forward, a time that they skip is the end of the gap; if they are set back, a time that they show twice is the
    /// first. Entries with `*` or `/` in the minute or the hour follow real time instead: every 15 minutes stays every
    /// 15 minutes.
    #[serde(default = "utc")]
    #[schemars(length(min = 1))]
    pub timezone: String,
    /// Files that arrive start it. If it runs, it starts once that run has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "FilesSpec")]
    pub files: Option<FilesSpec>,
    /// The end of another sequence starts it: the path of its file, from the folder of this file, or
    /// `{sequence: other.yaml, on: failure}`. Its planned time is that of the run which has ended, so each run starts
    /// it once, however often it is resumed. If it runs, it starts once that run has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "AfterSpec")]
    pub after: Option<AfterSpec>,
    /// Messages of a queue start it: each once, and one after the other. While it runs, the next one waits in its
    /// queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "MessageSpec")]
    pub message: Option<MessageSpec>,
    /// What happens to times that were missed, for instance because the scheduler did not run. Times before the last
    /// change of the file do not count.
    #[serde(default)]
    pub catch_up: CatchUp,
    /// How old a time may be when its run starts, at least `1m`. What is older is missed.
    #[serde(default = "week")]
    pub within: Duration,
    /// What happens at a time of `cron` at which the run before it has not ended.
    #[serde(default)]
    pub overlap: Overlap,
    /// When the run is to have ended: a time of day in the time zone (`03:00`), the first at or after the planned
    /// time; or how long after the planned time (`2h`). A deadline that will be missed, by the durations of earlier
    /// runs, is reported while there is time.
    #[serde(default)]
    #[schemars(with = "Deadline")]
    pub deadline: Option<Deadline>,
    /// How often a run is resumed that was killed, for instance together with the machine: at most 100 times. A run
    /// that has failed or was cancelled is not resumed.
    #[serde(default = "three")]
    #[schemars(range(max = 100))]
    pub resume: u32,
}

fn three() -> u32 {
    3
}

fn utc() -> String {
    "UTC".to_owned()
}

fn week() -> Duration {
    Duration::from_seconds(7 * 86_400)
}

impl Spec for ScheduleSpec {
    const NAME: &'static str = "schedule";
    const SUMMARY: &'static str = "When a sequence starts by itself.";
    const EXAMPLE: &'static str = "cron: 0 2 * * *\ntimezone: Europe/Berlin\ndeadline: 03:00\n";

    fn check(&self) -> Vec<Fault> {
        Schedule::new(self).err().unwrap_or_default()
    }
}

/// Entries of cron.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum CronEntries {
    /// Minute, hour, day of the month, month and day of the week: `30 2 * * MON-FRI`; or `@hourly`, `@daily`,
    /// `@weekly`, `@monthly`, `@yearly`. There are no seconds.
    One(#[schemars(length(min = 1))] String),
    /// It starts at the times of each of them, once where several name the same.
    Several(#[schemars(length(min = 1))] Vec<String>),
}

impl CronEntries {
    /// Each entry, and the path of keys and indices that leads to it.
    pub(crate) fn texts(&self) -> Vec<(String, &str)> {
        match self {
            CronEntries::One(text) => vec![("cron".to_owned(), text)],
            CronEntries::Several(texts) => {
                texts.iter().enumerate().map(|(index, text)| (format!("cron.{index}"), text.as_str())).collect()
            }
        }
    }
}

/// What happens to times that were missed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CatchUp {
    /// Nothing: it starts at the next time.
    None,
    /// It starts once, for the last of them.
    #[default]
    Last,
    /// It starts for each of them, one after the other, the oldest first. Times that come before it is done with these
    /// wait behind them, whatever `overlap` says.
    All,
}

/// What happens at a time at which the run before it has not ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    /// It does not start.
    #[default]
    Skip,
    /// It starts once the run has ended. One waits at most: the last one takes the place of the one before it.
    Queue,
    /// The run is cancelled, and it starts once that has ended.
    Cancel,
}

/// When a run is to have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Deadline {
    /// At the first such time of day at or after the planned time.
    At(NaiveTime),
    /// So long after the planned time.
    After(Duration),
}

impl TryFrom<String> for Deadline {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parsed = match text.contains(':') {
            true => NaiveTime::parse_from_str(&text, "%H:%M").ok().map(Deadline::At),
            false => Duration::try_from(text.clone()).ok().map(Deadline::After),
        };
        parsed.ok_or_else(|| {
            format!("`{text}` is neither a time of day, such as 03:00, nor a length of time, such as 90m or 2h")
        })
    }
}

impl fmt::Display for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Deadline::At(time) => write!(f, "{}", time.format("%H:%M")),
            Deadline::After(duration) => duration.fmt(f),
        }
    }
}

impl From<Deadline> for String {
    fn from(deadline: Deadline) -> String {
        deadline.to_string()
    }
}

impl JsonSchema for Deadline {
    fn schema_name() -> Cow<'static, str> {
        "Deadline".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": r"^(([01]?[0-9]|2[0-3]):[0-5][0-9]|[0-9]+(\.[0-9]+)?(ms|s|m|h|d))$",
            "description": "A time of day, such as 03:00, or a length of time, such as 90m or 2h.",
        })
    }
}

#[cfg(test)]
mod tests {
    use millstream_core::spec::parse;
    use serde_json::{Value, json};

    use super::*;

    fn faults(settings: Value) -> Vec<(String, String, String)> {
        let faults = parse::<ScheduleSpec>(&settings).expect_err(&settings.to_string());
        faults.into_iter().map(|one| (one.path.join("."), one.what, one.hint.unwrap_or_default())).collect()
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let spec: ScheduleSpec = parse(&json!({"cron": "0 2 * * *"})).expect("a schedule");
        assert_eq!((spec.timezone.as_str(), spec.catch_up, spec.overlap), ("UTC", CatchUp::Last, Overlap::Skip));
        assert_eq!((spec.within.to_string().as_str(), spec.deadline, spec.resume), ("7d", None, 3));
    }

    #[test]
    fn all_keys_are_written_as_they_are_read() {
        let settings = json!({
            "cron": ["0 2 * * *", "@hourly"], "timezone": "Europe/Berlin", "catch_up": "all", "within": "2h",
            "overlap": "queue", "deadline": "03:00", "resume": 0,
        });
        let spec: ScheduleSpec = parse(&settings).expect("a schedule");
        assert_eq!(serde_json::to_value(&spec).expect("JSON"), settings);
        let after: ScheduleSpec = parse(&json!({"cron": "@daily", "deadline": "90m"})).expect("a schedule");
        assert_eq!(after.deadline, Some(Deadline::After(Duration::from_seconds(5400))));
        assert_eq!(serde_json::to_value(&after).expect("JSON")["deadline"], "90m");
    }

    #[test]
    fn faults_name_their_key() {
        let several = json!({
            "cron": ["0 2 * * *", "0 25 * * *"], "timezone": "Europe/Berlim", "within": "10s", "deadline": "0s",
        });
        let found = faults(several);
        let paths: Vec<&str> = found.iter().map(|(path, _, _)| path.as_str()).collect();
        assert_eq!(paths, ["cron.1", "timezone", "within", "deadline"]);
        assert!(found[1].2.starts_with("did you mean `Europe/Berlin`? "), "{found:?}");
        assert_eq!(faults(json!({"cron": []}))[0].0, "cron");
        assert_eq!(faults(json!({"cron": "@daily", "overlap": "wait"}))[0].0, "overlap");
    }

    #[test]
    fn a_deadline_is_a_time_or_a_length() {
        for text in ["25:00", "3", "03:60", "three", "-1h", "03:00:00", ""] {
            let found = faults(json!({"cron": "@daily", "deadline": text}));
            assert_eq!(found[0].0, "deadline", "{text}");
            assert!(found[0].1.contains("neither a time of day"), "{found:?}");
        }
        let early: ScheduleSpec = parse(&json!({"cron": "@daily", "deadline": "3:00"})).expect("a schedule");
        assert_eq!(early.deadline.map(|deadline| deadline.to_string()).as_deref(), Some("03:00"));
    }

    #[test]
    fn the_example_has_no_fault() {
        let settings = json!({"cron": "0 2 * * *", "timezone": "Europe/Berlin", "deadline": "03:00"});
        let lines = settings.as_object().expect("keys").iter();
        let written: String = lines.map(|(key, value)| format!("{key}: {}\n", value.as_str().expect("text"))).collect();
        assert_eq!(written, ScheduleSpec::EXAMPLE);
        assert!(parse::<ScheduleSpec>(&settings).is_ok());
    }
}
