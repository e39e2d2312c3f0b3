//! Other columns: chosen, renamed, computed.

mod spec;

use millstream_core::registry::TransformEntry;
use millstream_core::spec::{SpecInfo, parse};
use millstream_core::transform::{Column, Relation};

use spec::{Columns, SelectSpec};

/// The transform `select`.
pub const ENTRY: TransformEntry = TransformEntry {
    spec: SpecInfo::of::<SelectSpec>(),
    build: &|settings| {
        let SelectSpec { from, columns } = parse(settings)?;
        let columns = match columns {
            Columns::List(all) => all.into_iter().map(|expression| Column { name: None, expression }).collect(),
            Columns::Named(all) => {
                all.0.into_iter().map(|(name, expression)| Column { name: Some(name), expression }).collect()
            }
        };
        Ok(Relation::Project { from: Relation::of(from), columns })
    },
};
