//! Functions of one's own.

mod python;
mod spec;

use std::sync::Arc;

use millstream_core::registry::TransformEntry;
use millstream_core::spec::{SpecInfo, parse};
use millstream_core::transform::Relation;

use python::PythonWorkers;
use spec::MapSpec;

/// The transform `map`.
pub const ENTRY: TransformEntry = TransformEntry {
    spec: SpecInfo::of::<MapSpec>(),
    build: &|settings| {
        let spec: MapSpec = parse(settings)?;
        let from = Relation::of(spec.from.clone());
        Ok(Relation::Work { from, workers: Arc::new(PythonWorkers::new(spec)?) })
    },
};
