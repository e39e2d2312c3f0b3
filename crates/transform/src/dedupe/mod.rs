//! One row of those that are equal.

mod spec;

use millstream_core::registry::TransformEntry;
use millstream_core::spec::{Fault, SpecInfo, parse};
use millstream_core::transform::{Distinct, Relation, SortTerm};

use crate::keys::Keys;
use spec::DedupeSpec;

/// The transform `dedupe`.
pub const ENTRY: TransformEntry =
    TransformEntry { spec: SpecInfo::of::<DedupeSpec>(), build: &|settings| relation(parse(settings)?) };

fn relation(spec: DedupeSpec) -> Result<Relation, Vec<Fault>> {
    Ok(Relation::Dedupe {
        from: Relation::of(spec.from),
        distinct: Distinct { by: spec.by.map(Keys::into_vec).unwrap_or_default(), keep: spec.keep },
        order: SortTerm::keys(&spec.order.into_vec())?,
    })
}
