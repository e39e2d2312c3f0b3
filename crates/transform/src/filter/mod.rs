//! The rows that meet a condition.

mod spec;

use millstream_core::registry::TransformEntry;
use millstream_core::spec::{SpecInfo, parse};
use millstream_core::transform::Relation;

use spec::FilterSpec;

/// The transform `filter`.
pub const ENTRY: TransformEntry = TransformEntry {
    spec: SpecInfo::of::<FilterSpec>(),
    build: &|settings| {
        let FilterSpec { from, r#where: condition } = parse(settings)?;
        Ok(Relation::Filter { from: Relation::of(from), condition })
    },
};
