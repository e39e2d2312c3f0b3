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
        faults = shapes(schedule);
    }
    if faults.is_empty() {
        faults = parse::<ScheduleSpec>(schedule).err().unwrap_or_default();
    }
    faults
}

/// The keys whose values are one of some words.
const CHOICES: [(&str, &[&str]); 3] = [
    ("catch_up", &["none", "last", "all"]),
    ("overlap", &["skip", "queue", "cancel"]),
    ("after.on", &["success", "failure", "always"]),
];

/// The keys whose values are blocks, each with an example.
const BLOCKS: [(&str, &str); 2] = [
    ("files", "write `files: {pattern: 'in/*.csv'}`"),
    ("message", "write `message: {from: 'redis://server', redis: {stream: NAME, group: NAME}}`"),
];

/// The keys whose values are texts, each with an example.
const TEXTS: [(&str, &str); 8] = [
    ("timezone", "write the name of a zone: `Europe/Berlin`"),
    ("within", "write a length of time with its unit: `7d`"),
    ("deadline", "write a time of day in quotes, `\"03:00\"`, or a length of time: `2h`"),
    ("files.pattern", "write a path with wildcards: `in/*.csv`"),
    ("files.min_age", "write a length of time with its unit: `10s`"),
    ("files.marker", "for example `'{name}.ok'`, `'{stem}.done'` or `_SUCCESS`"),
    ("after.sequence", "write the path of the file of the other sequence"),
    ("message.from", "write `kafka://broker:9092/TOPIC`, or `redis://server`"),
];

/// The keys that a block needs.
const NEEDED: [(&str, &str); 3] = [("files", "pattern"), ("after", "sequence"), ("message", "from")];

/// Values that have another type than they need.
fn shapes(schedule: &Value) -> Vec<Fault> {
    let at = |path: &str| path.split('.').try_fold(schedule, |value, key| value.get(key));
    let hint_of = |path: &str| TEXTS.iter().find(|(of, _)| *of == path).map_or("", |(_, hint)| *hint);
    let mut faults = Vec::new();
    if at("after").is_some_and(|after| !after.is_string() && !after.is_object()) {
        let hint = "write `after: other.yaml`, or `after: {sequence: other.yaml, on: failure}`";
        faults.push(Fault::new("after", "`after` names one sequence").hint(hint));
    }
    for (path, example) in BLOCKS {
        if at(path).is_some_and(|value| !value.is_object()) {
            faults.push(Fault::new(path, format!("`{path}` is a block of keys")).hint(example));
        }
    }
    for (block, key) in NEEDED {
        let path = format!("{block}.{key}");
        if at(block).is_some_and(|value| value.is_object() && value.get(key).is_none()) {
            faults.push(Fault::new(block, format!("`{key}` is missing in `{block}`")).hint(hint_of(&path)));
        }
    }
    for (path, example) in TEXTS {
        match at(path) {
            Some(Value::String(text)) if text.is_empty() => {
                faults.push(Fault::new(path, "the text is empty").hint(example));
            }
            None | Some(Value::String(_)) => {}
            Some(value) => faults.push(Fault::new(path, format!("`{value}` is no text")).hint(example)),
        }
    }
    for (path, choices) in CHOICES {
        let Some(value) = at(path) else { continue };
        if !value.as_str().is_some_and(|text| choices.contains(&text)) {
            let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let key = path.rsplit('.').next().unwrap_or(path);
            let what = format!("`{shown}` is not a choice for `{key}`");
            faults.push(Fault::new(path, what).hint(did_you_mean(&shown, "choices", choices)));
        }
    }
    if at("resume").is_some_and(|value| value.as_u64().is_none_or(|number| number > 100)) {
        faults.push(
            Fault::new("resume", "`resume` is a whole number from 0 to 100").hint("write for example `resume: 3`"),
        );
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
    fn values_of_another_type_are_told_apart() {
        for (schedule, path, what, hint) in [
            (json!({"after": ["a.yaml"]}), "after", "names one sequence", "on: failure"),
            (
                json!({"after": {"sequence": "a.yaml", "on": "succes"}}),
                "after.on",
                "`succes` is not a choice",
                "success`",
            ),
            (json!({"after": {"on": "always"}}), "after", "`sequence` is missing", "path of the file"),
            (json!({"files": "in/*"}), "files", "is a block", "pattern"),
            (json!({"files": {"pattern": ""}}), "files.pattern", "the text is empty", "in/*.csv"),
            (json!({"files": {"pattern": "a", "min_age": 10}}), "files.min_age", "`10` is no text", "10s"),
            (json!({"message": "redis://s"}), "message", "is a block", "stream"),
            (json!({"message": {"redis": {}}}), "message", "`from` is missing", "kafka://"),
            (json!({"cron": "@daily", "overlap": "skp"}), "overlap", "`skp` is not a choice", "did you mean `skip`"),
            (json!({"cron": "@daily", "catch_up": 3}), "catch_up", "`3` is not a choice", "none, last, all"),
            (json!({"cron": "@daily", "resume": -1}), "resume", "from 0 to 100", "3"),
        ] {
            let found = schedule_lints(&schedule);
            assert_eq!(found.len(), 1, "{schedule}: {found:?}");
            let hint_said = found[0].hint.as_deref().unwrap_or_default();
            assert_eq!(found[0].path.join("."), path, "{schedule}");
            assert!(found[0].what.contains(what) && hint_said.contains(hint), "{schedule}: {found:?}");
        }
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
