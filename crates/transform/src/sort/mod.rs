//! The rows in order; of equal rows one, if that is asked for.

mod spec;

use millstream_core::registry::TransformEntry;
use millstream_core::spec::{Fault, SpecInfo, parse};
use millstream_core::transform::{Distinct, Relation, SortTerm};

use spec::SortSpec;

/// The transform `sort`.
pub const ENTRY: TransformEntry =
    TransformEntry { spec: SpecInfo::of::<SortSpec>(), build: &|settings| relation(parse(settings)?) };

fn relation(spec: SortSpec) -> Result<Relation, Vec<Fault>> {
    let distinct = match spec.dedupe {
        Some(dedupe) => Some(Distinct { by: dedupe.by.into_vec(), keep: dedupe.keep }),
        None => spec.unique.then(Distinct::default),
    };
    Ok(Relation::Sort {
        from: Relation::of(spec.from),
        by: SortTerm::keys(&spec.by.into_vec())?,
        limit: spec.limit,
        distinct,
        stable: spec.stable,
        pool: spec.pool,
    })
}
