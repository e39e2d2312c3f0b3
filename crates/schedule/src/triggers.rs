//! What starts a sequence beside the time: files that arrive, and the end of another sequence.

use millstream_core::redact;
use millstream_core::spec::{Duration, Fault};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What stands for the name of a file, and for the name without its last ending.
const PLACEHOLDERS: [&str; 2] = ["{name}", "{stem}"];

/// Files that arrive. Those that are ready at the same time start the sequence once, together; so do those that were
/// there before. A file that is changed, or is there again a week after it was removed, has arrived again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FilesSpec {
    /// Their paths on this machine, from the folder of the sequence's file: `*` is any part of a name, `**` any
    /// folders, `{csv,txt}` one of several.
    #[schemars(length(min = 1))]
    pub pattern: String,
    /// A file is ready if it was not changed for so long, by the clock of this machine: `10s` if there is no `marker`
    /// either.
    #[serde(default)]
    #[schemars(with = "Duration")]
    pub min_age: Option<Duration>,
    /// A file is ready if this file is beside it. `{name}` is the name of the file, `{stem}` is the name without its
    /// last ending, and `_SUCCESS` is one marker for a whole folder. Markers themselves start nothing.
    #[serde(default)]
    #[schemars(with = "String", length(min = 1))]
    pub marker: Option<String>,
}

impl FilesSpec {
    /// How long a file was not changed when it is ready.
    pub fn min_age(&self) -> std::time::Duration {
        let usual = if self.marker.is_some() { 0 } else { 10 };
        self.min_age.map_or(std::time::Duration::from_secs(usual), |age| age.0)
    }

    /// The name of the marker of a file called `name`; `None` if it needs none.
    pub fn marker_of(&self, name: &str) -> Option<String> {
        let stem = name.rfind('.').filter(|at| *at > 0).map_or(name, |at| &name[..at]);
        self.marker.as_ref().map(|marker| marker.replace("{name}", name).replace("{stem}", stem))
    }

    pub(crate) fn check(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        if let Some((scheme, _)) = self.pattern.split_once("://") {
            let what = format!("`{scheme}` is not looked at: only files of this machine start a sequence");
            faults.push(Fault::new("files.pattern", what).hint("use `cron`, and a step with `wait: {file: …}`"));
        } else if self.pattern.ends_with('/') {
            let what = "this is a folder, and files arrive";
            faults.push(Fault::new("files.pattern", what).hint(format!("write `{}*`", self.pattern)));
        } else if let Some(unbalanced) = unbalanced(&self.pattern) {
            let what = format!("`{unbalanced}` has no counterpart in the pattern");
            faults.push(Fault::new("files.pattern", what).hint("put a `\\` before it if it is a part of a name"));
        }
        faults.extend(self.marker.as_deref().and_then(marker_fault));
        faults
    }
}

/// A bracket or brace that is not closed, or was not opened.
fn unbalanced(pattern: &str) -> Option<char> {
    let mut open = Vec::new();
    let mut characters = pattern.chars();
    while let Some(one) = characters.next() {
        match one {
            '\\' => drop(characters.next()),
            '[' | '{' => open.push(one),
            ']' | '}' if open.pop() != Some(if one == ']' { '[' } else { '{' }) => return Some(one),
            _ => {}
        }
    }
    open.pop()
}

/// What is wrong with the name of a marker: the same as in `ready` of a source.
fn marker_fault(marker: &str) -> Option<Fault> {
    let fixed = PLACEHOLDERS.iter().fold(marker.to_owned(), |text, placeholder| text.replace(placeholder, ""));
    let fault =
        |what: &str| Fault::new("files.marker", what).hint("for example `'{name}.ok'`, `'{stem}.done'` or `_SUCCESS`");
    if fixed.contains(['{', '}', '*', '?', '[', ']', '\\']) {
        return Some(fault("a marker is a name in which only `{name}` and `{stem}` stand for something"));
    }
    if fixed.trim_matches(['.', '/']).is_empty() {
        return Some(fault("a marker needs some text of its own, or each file would be the marker of a file"));
    }
    if fixed.contains("://") || marker.starts_with('/') || marker.split('/').any(|part| part == "..") {
        return Some(fault("a marker is beside its file, or in a folder below"));
    }
    None
}

/// Messages of a queue. Each starts the sequence once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MessageSpec {
    /// The queue: `kafka://broker:9092/TOPIC`, or `redis://server` with the stream in the block `redis`.
    #[schemars(length(min = 1))]
    pub from: String,
    /// What a job says of the same queue in its block `kafka`, such as `{group: nightly}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "serde_json::Value")]
    pub kafka: Option<Value>,
    /// What a job says of the same queue in its block `redis`, such as `{stream: orders, group: nightly}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "serde_json::Value")]
    pub redis: Option<Value>,
}

impl MessageSpec {
    /// The settings of the queue.
    pub fn settings(&self) -> Value {
        self.kafka.clone().or_else(|| self.redis.clone()).unwrap_or_else(|| Value::Object(serde_json::Map::new()))
    }

    pub(crate) fn in_words(&self) -> String {
        let from = redact::url(&self.from);
        match self.redis.as_ref().and_then(|redis| redis.get("stream")?.as_str()) {
            Some(stream) => format!("messages of the stream {stream} of {from}"),
            None => format!("messages of {from}"),
        }
    }

    pub(crate) fn check(&self) -> Vec<Fault> {
        let block = match self.from.split_once("://") {
            Some(("kafka", _)) => ("kafka", self.kafka.is_some(), self.redis.is_some()),
            Some(("redis" | "rediss", _)) => ("redis", self.redis.is_some(), self.kafka.is_some()),
            _ => {
                let hint = "write `kafka://broker:9092/TOPIC`, or `redis://server`";
                return vec![Fault::new("message.from", "this is no queue").hint(hint)];
            }
        };
        match block {
            (name, false, _) => {
                let what = format!("the consumer group is missing, which stands in the block `{name}`");
                vec![Fault::new("message", what).hint(format!("add `{name}: {{group: NAME}}` beside `from`"))]
            }
            (name, true, true) => {
                let other = if name == "kafka" { "redis" } else { "kafka" };
                vec![
                    Fault::new(&format!("message.{other}"), "this is a block of another kind of queue")
                        .hint("remove it"),
                ]
            }
            (_, true, false) => Vec::new(),
        }
    }
}

/// The end of another sequence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum AfterSpec {
    /// The path of its file, from the folder of this file: its successful end.
    Success(#[schemars(length(min = 1))] String),
    /// Which end of it.
    Chosen(AfterKeys),
}

/// Which end of another sequence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AfterKeys {
    /// The path of its file, from the folder of this file.
    #[schemars(length(min = 1))]
    pub sequence: String,
    /// Which end starts this sequence.
    #[serde(default)]
    pub on: AfterEnd,
}

/// Which end of another sequence starts this one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AfterEnd {
    /// One without an error.
    #[default]
    Success,
    /// One with an error, or one that was cancelled or killed.
    Failure,
    /// Any.
    Always,
}

impl AfterSpec {
    /// The path of the other sequence, from the folder of this file.
    pub fn sequence(&self) -> &str {
        match self {
            AfterSpec::Success(sequence) => sequence,
            AfterSpec::Chosen(keys) => &keys.sequence,
        }
    }

    /// Which end of it.
    pub fn on(&self) -> AfterEnd {
        match self {
            AfterSpec::Success(_) => AfterEnd::Success,
            AfterSpec::Chosen(keys) => keys.on,
        }
    }
}

#[cfg(test)]
mod tests {
    use millstream_core::spec::parse;
    use serde_json::{Value, json};

    use super::*;
    use crate::ScheduleSpec;

    fn faults(settings: Value) -> Vec<(String, String)> {
        let faults = parse::<ScheduleSpec>(&settings).expect_err(&settings.to_string());
        faults.into_iter().map(|one| (one.path.join("."), one.what)).collect()
    }

    #[test]
    fn a_file_is_ready_by_its_age_or_its_marker() {
        let files = |settings: Value| serde_json::from_value::<FilesSpec>(settings).expect("a trigger");
        let plain = files(json!({"pattern": "in/*.csv"}));
        assert_eq!((plain.min_age().as_secs(), plain.marker_of("a.csv")), (10, None));
        let marked = files(json!({"pattern": "in/*.csv", "marker": "{stem}.ok"}));
        assert_eq!((marked.min_age().as_secs(), marked.marker_of("a.csv").as_deref()), (0, Some("a.ok")));
        let both = files(json!({"pattern": "in/*.csv", "marker": "{name}.ok", "min_age": "1m"}));
        assert_eq!((both.min_age().as_secs(), both.marker_of(".csv").as_deref()), (60, Some(".csv.ok")));
    }

    #[test]
    fn faults_of_triggers_name_their_key() {
        for (settings, path, what) in [
            (json!({"files": {"pattern": "s3://b/*.csv"}}), "files.pattern", "`s3` is not looked at"),
            (json!({"files": {"pattern": "in/"}}), "files.pattern", "this is a folder"),
            (json!({"files": {"pattern": "in/[a.csv"}}), "files.pattern", "`[` has no counterpart"),
            (json!({"files": {"pattern": "in/a}.csv"}}), "files.pattern", "`}` has no counterpart"),
            (json!({"files": {"pattern": "in/*", "marker": "*.ok"}}), "files.marker", "a marker is a name"),
            (json!({"files": {"pattern": "in/*", "marker": "{name}"}}), "files.marker", "a marker needs some text"),
            (json!({"files": {"pattern": "in/*", "marker": "../ok"}}), "files.marker", "a marker is beside its file"),
            (json!({"after": ""}), "after", "the path is empty"),
            (json!({"timezone": "UTC"}), "", "nothing starts the sequence"),
        ] {
            let found = faults(settings.clone());
            assert_eq!(found[0].0, path, "{settings}: {found:?}");
            assert!(found[0].1.starts_with(what), "{settings}: {found:?}");
        }
        assert!(parse::<ScheduleSpec>(&json!({"files": {"pattern": r"in/\[a.{csv,txt}"}})).is_ok());
    }

    #[test]
    fn an_end_is_a_success_unless_it_is_said() {
        let after = |settings: Value| serde_json::from_value::<AfterSpec>(settings).expect("a trigger");
        let (short, long) = (after(json!("a.yaml")), after(json!({"sequence": "b.yaml", "on": "always"})));
        assert_eq!((short.sequence(), short.on()), ("a.yaml", AfterEnd::Success));
        assert_eq!((long.sequence(), long.on()), ("b.yaml", AfterEnd::Always));
    }
}
