//! What the job file may say of a lookup.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use millstream_core::spec::{Fault, Spec};
use millstream_core::transform::{ColumnName, Duplicate, EntryName, Match, MatchWith, Miss, SortTerm, Taken, Text};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use crate::keys::Keys;

/// Adds columns of the rows of another entry that match.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LookupSpec {
    /// The source or transform it reads.
    pub from: EntryName,
    /// The source or transform that it looks up in, the reference. That is read as a whole, once, before the first row.
    #[serde(rename = "in")]
    pub within: EntryName,
    /// Which rows of the reference match: columns of `from`, and the columns of the reference that have the same value.
    /// `{from: column, before: column}` is a range that holds the value; where one of its columns is null, it is open.
    /// A null matches nothing. A list is for columns that have one name in both.
    pub on: On,
    /// The columns that the rows get: new names and the columns of the reference, or a list of columns.
    pub take: Take,
    /// What becomes of a row without a match.
    #[serde(default)]
    #[schemars(extend("default" = "fail"))]
    pub miss: MissSpec,
    /// What happens if several rows of the reference match a row, also if these are equal.
    #[serde(default)]
    pub duplicate: Duplicate,
    /// With `duplicate: first`: what the rows of the reference are sorted by, as in a `sort`.
    #[serde(default)]
    #[schemars(with = "Keys<SortTerm>")]
    pub order_by: Option<Keys<SortTerm>>,
}

/// The conditions of a lookup.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum On {
    /// Columns that have the same name in both.
    Same(#[schemars(length(min = 1))] Vec<ColumnName>),
    /// Columns of `from`, and what the reference has to have.
    Named(#[schemars(extend("minProperties" = 1))] InOrder<Condition>),
}

/// What the reference has to have.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Condition {
    /// The same value in this column.
    Equal(#[schemars(length(min = 1))] ColumnName),
    /// A range that holds the value.
    Range(RangeSpec),
}

/// The columns of a range. One of them may be left out.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RangeSpec {
    /// The column with the smallest value of the range.
    #[serde(default)]
    #[schemars(with = "ColumnName", length(min = 1))]
    pub from: Option<ColumnName>,
    /// The column with the value before which the range ends.
    #[serde(default)]
    #[schemars(with = "ColumnName", length(min = 1))]
    pub before: Option<ColumnName>,
}

/// What is taken of a row of the reference.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Take {
    /// Columns, under their own names.
    Same(#[schemars(length(min = 1))] Vec<ColumnName>),
    /// New names and the columns.
    Named(#[schemars(extend("minProperties" = 1))] InOrder<ColumnName>),
}

/// What becomes of a row without a match.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum MissSpec {
    /// A word.
    Word(MissWord),
    /// Values for the columns.
    Values(MissValues),
}

impl Default for MissSpec {
    fn default() -> Self {
        MissSpec::Word(MissWord::default())
    }
}

/// What becomes of a row without a match.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MissWord {
    /// The run fails.
    #[default]
    Fail,
    /// It is rejected, within `max_rejects` of the entry.
    Reject,
    /// Its new columns are null.
    Null,
    /// It is left out, and counts as filtered.
    Drop,
}

/// Values for the columns of a row without a match.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MissValues {
    /// New columns and their values; columns that are left out are null.
    #[schemars(extend("minProperties" = 1))]
    pub value: InOrder<Constant>,
}

/// A value.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Constant(Value);

impl JsonSchema for Constant {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Constant".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]})
    }
}

/// Columns and what is said of each, in the order in which they are written.
#[derive(Debug, Clone, PartialEq)]
pub struct InOrder<T>(pub Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for InOrder<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Columns<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Columns<T> {
            type Value = InOrder<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("columns")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<InOrder<T>, A::Error> {
                let mut columns = Vec::new();
                while let Some(column) = map.next_entry()? {
                    columns.push(column);
                }
                Ok(InOrder(columns))
            }
        }

        deserializer.deserialize_map(Columns(PhantomData))
    }
}

impl<T: JsonSchema> JsonSchema for InOrder<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("ColumnsOf{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = BTreeMap::<String, T>::json_schema(generator);
        let of_columns = <ColumnName as JsonSchema>::json_schema(generator);
        schema.insert("propertyNames".to_owned(), json!({"format": of_columns.get("format")}));
        schema
    }
}

impl On {
    /// The conditions.
    pub fn matches(self) -> Vec<Match> {
        match self {
            On::Same(columns) => {
                let same = |column: ColumnName| Match { column: column.clone(), with: MatchWith::Equal(column) };
                columns.into_iter().map(same).collect()
            }
            On::Named(columns) => {
                let columns = columns.0.into_iter().map(|(name, condition)| {
                    let with = match condition {
                        Condition::Equal(column) => MatchWith::Equal(column),
                        Condition::Range(RangeSpec { from, before }) => MatchWith::Range { from, before },
                    };
                    let column = key(&name, &with.columns());
                    Match { column, with }
                });
                columns.collect()
            }
        }
    }
}

impl Take {
    /// The columns.
    pub fn columns(self) -> Vec<Taken> {
        match self {
            Take::Same(columns) => columns.into_iter().map(|column| Taken { name: column.clone(), column }).collect(),
            Take::Named(columns) => {
                let columns = columns.0.into_iter();
                columns.map(|(name, column)| Taken { name: key(&name, &[&column]), column }).collect()
            }
        }
    }
}

/// The key `name` of a block, whose value has these texts.
fn key(name: &str, texts: &[&ColumnName]) -> ColumnName {
    let first = texts.iter().min_by_key(|text| text.0.place());
    ColumnName(first.map_or_else(|| Text::new(name), |first| Text::key_before(name, &first.0)))
}

impl From<MissSpec> for Miss {
    fn from(spec: MissSpec) -> Self {
        match spec {
            MissSpec::Word(MissWord::Fail) => Miss::Fail,
            MissSpec::Word(MissWord::Reject) => Miss::Reject,
            MissSpec::Word(MissWord::Null) => Miss::Null,
            MissSpec::Word(MissWord::Drop) => Miss::Drop,
            MissSpec::Values(values) => {
                Miss::Value(values.value.0.into_iter().map(|(name, Constant(value))| (name, value)).collect())
            }
        }
    }
}

impl LookupSpec {
    /// Conditions that say nothing, or too much.
    fn check_on(&self, faults: &mut Vec<Fault>) {
        const FORM: &str = "write `on: {column: column_of_the_reference}`";
        match &self.on {
            On::Same(columns) if columns.is_empty() => {
                faults.push(Fault::new("on", "`on` names no column").hint(FORM));
            }
            On::Same(columns) => faults.extend(twice("on", columns.iter().map(ColumnName::as_str))),
            On::Named(columns) => {
                let ranges = columns.0.iter().filter_map(|(name, condition)| match condition {
                    Condition::Equal(_) => None,
                    Condition::Range(range) => Some((name, range)),
                });
                for (index, (name, range)) in ranges.enumerate() {
                    let path = vec!["on".to_owned(), name.clone()];
                    let fault = if range.from.is_none() && range.before.is_none() {
                        let hint = "write `{from: valid_from, before: valid_to}`, or one of the two";
                        Some(("the range has no columns".to_owned(), hint))
                    } else if index > 0 {
                        let hint = "look up twice, or compare the other column in a `filter` behind the lookup";
                        Some(("a lookup has one range".to_owned(), hint))
                    } else {
                        None
                    };
                    faults.extend(fault.map(|(what, hint)| Fault { path, what, hint: Some(hint.to_owned()) }));
                }
            }
        }
    }

    /// New columns that are there twice, or not at all.
    fn check_take(&self, faults: &mut Vec<Fault>) {
        let names: Vec<&str> = match &self.take {
            Take::Same(columns) => columns.iter().map(ColumnName::as_str).collect(),
            Take::Named(columns) => columns.0.iter().map(|(name, _)| name.as_str()).collect(),
        };
        if matches!(&self.take, Take::Same(columns) if columns.is_empty()) {
            let hint = "write `take: {new_name: column_of_the_reference}`";
            faults.push(Fault::new("take", "`take` names no column").hint(hint));
        }
        faults.extend(twice("take", names.iter().copied()));
        let MissSpec::Values(values) = &self.miss else { return };
        for (name, _) in values.value.0.iter().filter(|(name, _)| !names.contains(&name.as_str())) {
            let path = ["miss", "value", name, ""].map(str::to_owned).to_vec();
            let hint = millstream_core::hint::did_you_mean(name, "columns", &names);
            faults.push(Fault { path, what: format!("`take` has no column `{name}`"), hint: Some(hint) });
        }
    }
}

/// The fault of a list at `path` that has one of `names` twice.
fn twice<'a>(path: &str, names: impl Iterator<Item = &'a str>) -> Vec<Fault> {
    let mut seen = Vec::new();
    let mut faults = Vec::new();
    for (index, name) in names.enumerate() {
        if seen.contains(&name) {
            faults.push(Fault::new(&format!("{path}.{index}"), format!("`{name}` is there twice")));
        }
        seen.push(name);
    }
    faults
}

impl Spec for LookupSpec {
    const NAME: &'static str = "lookup";
    const SUMMARY: &'static str = "Adds columns of the rows of another entry that match.";
    const EXAMPLE: &'static str = "lookup:\n  from: ranked\n  in: others\n  on: {country: iso}\n  take: {country_name: \
                                   name}\n  miss: {value: {country_name: unknown}}\n";

    fn check(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        self.check_on(&mut faults);
        self.check_take(&mut faults);
        faults.extend(self.order_by.iter().filter_map(|keys| keys.fault("order_by")));
        match (self.duplicate, &self.order_by) {
            (Duplicate::First, None) => {
                let hint = "say which one is the first: order_by: changed_at desc";
                faults.push(Fault::new("duplicate", "`duplicate: first` needs `order_by`").hint(hint));
            }
            (Duplicate::Fail | Duplicate::All, Some(_)) => {
                let what = "`order_by` needs `duplicate: first`";
                faults.push(Fault::of_key("order_by", what).hint("add `duplicate: first`, or leave it out"));
            }
            _ => {}
        }
        faults
    }
}
