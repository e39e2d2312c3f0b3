//! A transform: `values` gives each value of an expression once. It computes nothing by itself: it composes operations
//! that the engine plans.

use millstream::component::{Column, Distinct, EntryName, Expression, Relation, Spec, SpecInfo, TransformEntry, parse};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of the transform `values`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ValuesSpec {
    /// The source or transform it reads.
    pub from: EntryName,
    /// The column, or a SQL expression.
    pub of: Expression,
}

impl Spec for ValuesSpec {
    const NAME: &'static str = "values";
    const SUMMARY: &'static str = "Each value of an expression once.";
    const EXAMPLE: &'static str = "values: {from: ranked, of: upper(country)}\n";
}

/// The transform `values`.
pub const ENTRY: TransformEntry = TransformEntry {
    spec: SpecInfo::of::<ValuesSpec>(),
    build: &|settings| {
        let ValuesSpec { from, of } = parse(settings)?;
        let column = Column { name: Some("value".to_owned()), expression: of };
        let values = Relation::Project { from: Relation::of(from), columns: vec![column] };
        Ok(Relation::Dedupe { from: Box::new(values), distinct: Distinct::default(), order: Vec::new() })
    },
};
