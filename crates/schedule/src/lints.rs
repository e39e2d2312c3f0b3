//! What is wrong with what stands under `schedule` in a sequence's file.

use millstream_core::hint::did_you_mean;
use millstream_core::spec::{Fault, parse};
use serde_json::Value;

use crate::spec::ScheduleSpec;

/// The keys of a schedule, and of the blocks in it.
const KEYS: &[&str] =
    &["cron", "timezone", "files", "after", "message", "catch_up", "within", "overlap", "deadline", "resume"];
const FILES: &[&str] = &["pattern", "min_age", "marker"];
const AFTER: &[&str] = &["sequence", "on"];
const MESSAGE: &[&str] = &["from", "kafka", "redis"];

/// All that is wrong with the value of `schedule`: unknown keys, or else what cannot be read, or else what makes no
/// schedule. The paths of the faults begin in that value.
pub fn schedule_lints(schedule: &Value) -> Vec<Fault> {
    let Some(keys) = schedule.as_object() else {
        let hint = "write for example `schedule: {cron: \"0 2 * * *\", timezone: Europe/Berlin}`";
        return vec![Fault::new("", "a schedule is a block of keys").hint(hint)];
    };
    let mut faults = unknown("", keys.keys(), KEYS);
    for (name, known) in [("files", FILES), ("after", AFTER), ("message", MESSAGE)] {
        if let Some(block) = keys.get(name).and_then(Value::as_object) {
            faults.extend(unknown(name, block.keys(), known));
        }
    }
    if faults.is_empty() {
        faults = parse::<ScheduleSpec>(schedule).err().unwrap_or_default();
    }
    faults
}

fn unknown<'a>(block: &str, keys: impl Iterator<Item = &'a String>, known: &[&str]) -> Vec<Fault> {
    let unknown = keys.filter(|key| !known.contains(&key.as_str()));
    let fault = |key: &String| {
        let mut fault = Fault::new(block, format!("unknown key `{key}` in the schedule"));
        fault.path.extend([key.clone(), String::new()]);
        let hint = match (block, key.as_str()) {
            ("", "on") => "which end of another sequence counts is `after: {sequence: other.yaml, on: failure}`".into(),
            _ => did_you_mean(key, "valid keys", known),
        };
        fault.hint(hint)
    };
    unknown.map(fault).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_keys_come_first_and_all_at_once() {
        let found = schedule_lints(&json!({"crom": "@daily", "files": {"pattern": "*", "marks": "x"}, "on": "always"}));
        let paths: Vec<String> = found.iter().map(|fault| fault.path.join("/")).collect();
        assert_eq!(paths, ["crom/", "on/", "files/marks/"]);
        assert!(found[0].hint.as_ref().is_some_and(|hint| hint.contains("did you mean `cron`")), "{found:?}");
        assert!(found[1].hint.as_ref().is_some_and(|hint| hint.contains("on: failure")), "{found:?}");
        assert_eq!(schedule_lints(&json!("0 2 * * *"))[0].what, "a schedule is a block of keys");
        assert_eq!(schedule_lints(&json!({"cron": "0 25 * * *"}))[0].path, ["cron"]);
        assert_eq!(schedule_lints(&json!({"cron": "0 2 * * *"})), []);
    }

    #[test]
    fn the_known_keys_are_those_of_the_specs() {
        let schema = schemars::schema_for!(ScheduleSpec).to_value();
        let keys = |properties: &Value| -> Vec<String> {
            let mut keys: Vec<String> = properties.as_object().expect("keys").keys().cloned().collect();
            keys.sort();
            keys
        };
        let sorted = |known: &[&str]| {
            let mut known: Vec<String> = known.iter().map(|key| (*key).to_owned()).collect();
            known.sort();
            known
        };
        assert_eq!(keys(&schema["properties"]), sorted(KEYS));
        assert_eq!(keys(&schema["$defs"]["FilesSpec"]["properties"]), sorted(FILES));
        assert_eq!(keys(&schema["$defs"]["AfterKeys"]["properties"]), sorted(AFTER));
    }
}
