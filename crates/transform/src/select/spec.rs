//! What the job file may say of a choice of columns.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use millstream_core::spec::Spec;
use millstream_core::transform::{EntryName, Expression};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Chooses, renames and computes columns.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SelectSpec {
    /// The source or transform it reads.
    pub from: EntryName,
    /// The columns in their order: names or SQL expressions, or names with their expressions.
    pub columns: Columns,
}

impl Spec for SelectSpec {
    const NAME: &'static str = "select";
    const SUMMARY: &'static str = "Chooses, renames and computes columns.";
    const EXAMPLE: &'static str = "select:\n  from: ranked\n  columns: {place: name, people_per_km2: people / area}\n";
}

/// Columns of a `select`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Columns {
    /// Names or SQL expressions, with `AS name` where they need a name.
    List(#[schemars(length(min = 1))] Vec<Expression>),
    /// New names and their SQL expressions.
    Named(#[schemars(extend("minProperties" = 1))] Named),
}

/// Names and their expressions, in the order in which they are written.
#[derive(Debug, Clone, PartialEq)]
pub struct Named(pub Vec<(String, Expression)>);

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Named;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("names with expressions")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Named, A::Error> {
                let mut columns = Vec::new();
                while let Some(column) = map.next_entry()? {
                    columns.push(column);
                }
                Ok(Named(columns))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

impl JsonSchema for Named {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Named".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        BTreeMap::<String, Computed>::json_schema(generator)
    }
}

/// A SQL expression. Numbers and `true` need no quotes.
#[derive(JsonSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "it is a schema; each of them is read as the text that it is written as")]
enum Computed {
    /// An expression.
    Text(#[schemars(length(min = 1))] Expression),
    /// A number.
    Number(f64),
    /// `true` or `false`.
    Flag(bool),
}
