//! Entries of a job file that something else stands in for, such as the inputs of a test. Their keys are those that
//! are given; all others of the file, and all places, stay as they are.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::text::Span;
use crate::tree::{Entry, Kind, Node, Scalar, Typed};

/// What stands in for entries.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Replacements {
    /// Of sources, by their names.
    pub sources: BTreeMap<String, Replacement>,
    /// Of sinks, by their names. Those that the file lacks are added.
    pub sinks: BTreeMap<String, Replacement>,
}

/// What stands in for an entry.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Replacement {
    /// Keys of the file's entry that stay.
    pub keep: Vec<String>,
    /// Further keys.
    pub set: Map<String, Value>,
}

/// Keys of a job file that say what happens around its runs: what has to hold before, what is done or reported after,
/// and how long a queue is read.
const AROUND: &[&str] = &[
    "require",
    "retry_run",
    "on_success",
    "on_failure",
    "until",
    "commit",
    "keep_rejects",
    "throttle",
    "hours",
    "priority",
    "allow",
];

impl Replacements {
    /// Puts them into the job `root`, which then does nothing beside its rows.
    pub(crate) fn apply(&self, root: &mut Node) {
        if let Kind::Block(sections) = &mut root.kind {
            sections.retain(|section| !AROUND.contains(&section.key.as_str()));
        }
        for section in root.entries_mut() {
            let replacements = match section.key.as_str() {
                "sources" => &self.sources,
                "sinks" => &self.sinks,
                _ => continue,
            };
            for (name, replacement) in replacements {
                let known = section.value.entry(name);
                let (span, old) =
                    known.map_or((section.key_span, &[][..]), |entry| (entry.key_span, entry.value.entries()));
                let kept = old.iter().filter(|entry| replacement.keep.contains(&entry.key)).cloned();
                let set = replacement.set.iter().map(|(key, value)| entry_of(key, value, span));
                let value = Node { span, kind: Kind::Block(kept.chain(set).collect()) };
                let entry = Entry { key: name.clone(), key_span: span, value };
                match section.value.entries_mut().iter_mut().find(|other| other.key == *name) {
                    Some(other) => *other = entry,
                    None => section.value.set(entry),
                }
            }
        }
    }
}

fn entry_of(key: &str, value: &Value, span: Span) -> Entry {
    Entry { key: key.to_owned(), key_span: span, value: node_of(value, span) }
}

/// `value` as if it stood at `span`.
fn node_of(value: &Value, span: Span) -> Node {
    let scalar =
        |text: String, typed| Kind::Scalar(Scalar { text, plain: typed != Typed::Text, typed, ..Scalar::default() });
    let kind = match value {
        Value::Null => scalar("null".to_owned(), Typed::Null),
        Value::Bool(truth) => scalar(truth.to_string(), Typed::Bool(*truth)),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => scalar(number.to_string(), Typed::Integer(whole.into())),
            (_, Some(whole)) => scalar(number.to_string(), Typed::Integer(whole.into())),
            _ => scalar(number.to_string(), Typed::Float(number.as_f64().unwrap_or_default())),
        },
        Value::String(text) => scalar(text.clone(), Typed::Text),
        Value::Array(items) => Kind::List(items.iter().map(|item| node_of(item, span)).collect()),
        Value::Object(entries) => Kind::Block(entries.iter().map(|(key, value)| entry_of(key, value, span)).collect()),
    };
    Node { span, kind }
}
