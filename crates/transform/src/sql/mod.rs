//! A SQL query over other entries.

mod spec;

use millstream_core::registry::TransformEntry;
use millstream_core::spec::{SpecInfo, parse};
use millstream_core::transform::Relation;

use spec::SqlSpec;

/// The transform `sql`.
pub const ENTRY: TransformEntry = TransformEntry {
    spec: SpecInfo::of::<SqlSpec>(),
    build: &|settings| Ok(Relation::Query(parse::<SqlSpec>(settings)?.0)),
};
