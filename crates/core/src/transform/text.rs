//! Texts of a transform's settings that keep their places in the job file: names of entries, and SQL.
//!
//! The kind of each text is the `format` of its JSON schema. By it the job crate finds the texts of any transform, also
//! where other settings are wrong, and checks the names and the SQL. Then it hands the settings to the transform with a
//! number in each text that leads back to its place ([`Text::placed`]), so that a fault which is found later, such as a
//! column that does not exist, is shown where it stands.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

/// A text and its place in the job file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Text {
    value: String,
    place: Option<usize>,
    /// Characters of the job file's text before this one.
    skipped: usize,
}

/// The key of a text that has a place.
const TEXT: &str = "$text";

/// The key of its place.
const PLACE: &str = "$place";

impl Text {
    /// A text that does not stand in the job file.
    pub fn new(value: impl Into<String>) -> Self {
        Text { value: value.into(), ..Text::default() }
    }

    /// The value that is read as the text `value`, the one of number `place` in its entry.
    pub fn placed(value: &str, place: usize) -> Value {
        json!({TEXT: value, PLACE: place})
    }

    /// The key `key` of a block, whose value begins with the text `first`, where the schema says of the block that its
    /// keys are texts (`propertyNames` with a `format`): such a key has the number before that of the text.
    pub fn key_before(key: &str, first: &Text) -> Self {
        Text { value: key.to_owned(), place: first.place.and_then(|place| place.checked_sub(1)), skipped: 0 }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.value
    }

    /// The number of the text of the job file which it is, or is a part of; `None` if it stands nowhere.
    pub fn place(&self) -> Option<usize> {
        self.place
    }

    /// How many characters of that text are before it.
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// The part of it that has `length` bytes, from the byte `start` on.
    pub(crate) fn part(&self, start: usize, length: usize) -> Self {
        let skipped = self.skipped + self.value[..start].chars().count();
        Text { value: self.value[start..start + length].to_owned(), place: self.place, skipped }
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Plain(String),
            Placed {
                #[serde(rename = "$text")]
                value: String,
                #[serde(rename = "$place")]
                place: usize,
            },
        }
        Ok(match Form::deserialize(deserializer)? {
            Form::Plain(value) => Text::new(value),
            Form::Placed { value, place } => Text { value, place: Some(place), skipped: 0 },
        })
    }
}

/// What a text means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextKind {
    /// The name of a source or transform.
    EntryName,
    /// A SQL query, whose tables are sources and transforms.
    Query,
    /// A SQL expression over the columns of the rows that a transform reads.
    Expression,
    /// What rows are sorted by: a SQL expression, then `asc` or `desc`, then `nulls first` or `nulls last`.
    SortTerm,
    /// The name of a pool of scratch disks.
    ScratchPool,
    /// The name of a column of the rows that a transform reads.
    ColumnName,
}

impl TextKind {
    const ALL: [TextKind; 6] = [
        TextKind::EntryName,
        TextKind::Query,
        TextKind::Expression,
        TextKind::SortTerm,
        TextKind::ScratchPool,
        TextKind::ColumnName,
    ];

    /// The `format` of the JSON schema of such texts.
    fn format(self) -> &'static str {
        match self {
            TextKind::EntryName => "entry-name",
            TextKind::Query => "sql-query",
            TextKind::Expression => "sql-expression",
            TextKind::SortTerm => "sql-sort-key",
            TextKind::ScratchPool => "scratch-pool",
            TextKind::ColumnName => "column-name",
        }
    }

    /// The kind that the `format` of a JSON schema names.
    pub fn of_format(format: &str) -> Option<Self> {
        TextKind::ALL.into_iter().find(|kind| kind.format() == format)
    }
}

/// The name of a source or transform.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EntryName(pub Text);

/// A SQL query, whose tables are sources and transforms.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Query(pub Text);

/// A SQL expression over the columns of the rows that a transform reads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Expression(pub Text);

/// What rows are sorted by: a SQL expression, then `asc` or `desc`, then `nulls first` or `nulls last`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SortTerm(pub Text);

/// The name of a pool of scratch disks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ScratchPool(pub Text);

/// The name of a column of the rows that a transform reads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ColumnName(pub Text);

macro_rules! texts {
    ($($name:ident),*) => {
        $(
            impl $name {
                /// The text.
                pub fn as_str(&self) -> &str {
                    self.0.as_str()
                }
            }

            impl From<&str> for $name {
                fn from(value: &str) -> Self {
                    $name(Text::new(value))
                }
            }

            impl JsonSchema for $name {
                fn inline_schema() -> bool {
                    true
                }

                fn schema_name() -> Cow<'static, str> {
                    stringify!($name).into()
                }

                fn json_schema(_: &mut SchemaGenerator) -> Schema {
                    json_schema!({"type": "string", "format": TextKind::$name.format()})
                }
            }
        )*
    };
}

texts!(EntryName, Query, Expression, SortTerm, ScratchPool, ColumnName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_keeps_its_place() {
        let read = |value: Value| serde_json::from_value::<Expression>(value).map(|text| text.0);
        let placed = read(Text::placed("n > 1", 3)).expect("a text");
        assert_eq!((placed.as_str(), placed.place(), placed.skipped()), ("n > 1", Some(3), 0));
        assert_eq!(read(json!("n > 1")).expect("a text"), Text::new("n > 1"));
        assert!(read(json!({"$text": "n"})).is_err());
        let part = Text { value: "é ünd x".into(), place: Some(1), skipped: 2 }.part(3, 4);
        assert_eq!((part.as_str(), part.place(), part.skipped()), ("ünd", Some(1), 4));
    }

    #[test]
    fn the_format_of_a_schema_tells_the_kind() {
        let schema = schemars::SchemaGenerator::default().into_root_schema_for::<SortTerm>();
        let format = schema.get("format").and_then(Value::as_str).expect("a format");
        assert_eq!(TextKind::of_format(format), Some(TextKind::SortTerm));
        assert_eq!(TextKind::of_format("uint64"), None);
    }
}
