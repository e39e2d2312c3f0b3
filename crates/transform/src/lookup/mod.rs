//! Columns of the rows of another entry that match.

mod spec;

use millstream_core::registry::TransformEntry;
use millstream_core::spec::{Fault, SpecInfo, parse};
use millstream_core::transform::{Lookup, Relation, SortTerm};

use crate::keys::Keys;
use spec::LookupSpec;

/// The transform `lookup`.
pub const ENTRY: TransformEntry =
    TransformEntry { spec: SpecInfo::of::<LookupSpec>(), build: &|settings| relation(parse(settings)?) };

fn relation(spec: LookupSpec) -> Result<Relation, Vec<Fault>> {
    let order_by = SortTerm::keys(&spec.order_by.map(Keys::into_vec).unwrap_or_default())?;
    let lookup = Lookup {
        on: spec.on.matches(),
        take: spec.take.columns(),
        miss: spec.miss.into(),
        duplicate: spec.duplicate,
        order_by,
    };
    Ok(Relation::Lookup { from: Relation::of(spec.from), within: Relation::of(spec.within), lookup })
}
