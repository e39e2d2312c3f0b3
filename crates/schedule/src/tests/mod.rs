//! What the tests share, and the tests of whole schedules.

mod due;
mod reference;
mod simulation;
mod times;

use chrono::{DateTime, Utc};
use millstream_core::spec::parse;
use serde_json::{Map, Value};

use crate::{Schedule, ScheduleSpec};

/// `2026-01-31T06:00`, with seconds if there are some.
pub(crate) fn utc(text: &str) -> DateTime<Utc> {
    let seconds = if text.len() == 16 { ":00" } else { "" };
    format!("{text}{seconds}Z").parse().expect("a moment")
}

/// A schedule with entries of cron, joined by semicolons, and other settings, joined by commas.
pub(crate) fn schedule(crons: &str, zone: &str, others: &str) -> Schedule {
    let crons: Vec<Value> = crons.split(';').map(Value::from).collect();
    let mut settings = Map::new();
    settings.insert("cron".to_owned(), Value::from(crons));
    settings.insert("timezone".to_owned(), Value::from(zone));
    for setting in others.split(", ").filter(|setting| !setting.is_empty()) {
        let (key, value) = setting.split_once(": ").expect("a setting");
        settings.insert(key.to_owned(), Value::from(value));
    }
    let spec: ScheduleSpec = parse(&Value::from(settings)).expect("a schedule");
    Schedule::new(&spec).expect("a schedule")
}
