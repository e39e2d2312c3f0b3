//! The rows of several entries, one after the other.

mod spec;

use millstream_core::registry::TransformEntry;
use millstream_core::spec::{SpecInfo, parse};
use millstream_core::transform::{Relation, UnionBy};

use spec::{UnionKeys, UnionSpec};

/// The transform `union`.
pub const ENTRY: TransformEntry = TransformEntry {
    spec: SpecInfo::of::<UnionSpec>(),
    build: &|settings| {
        let UnionKeys { of, by, distinct } = match parse(settings)? {
            UnionSpec::List(of) => UnionKeys { of, by: UnionBy::default(), distinct: false },
            UnionSpec::Keys(keys) => keys,
        };
        Ok(Relation::Union { of: of.into_iter().map(Relation::Entry).collect(), by, distinct })
    },
};
