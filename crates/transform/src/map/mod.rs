//! Functions and programs of one's own.

mod command;
mod python;
mod spec;

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use millstream_core::registry::TransformEntry;
use millstream_core::spec::{Fault, SpecInfo, parse};
use millstream_core::transform::{Relation, SortTerm, WorkRules, Workers};

use crate::keys::Keys;
use command::CommandWorkers;
use python::PythonWorkers;
use spec::MapSpec;

/// The transform `map`.
pub const ENTRY: TransformEntry = TransformEntry {
    spec: SpecInfo::of::<MapSpec>(),
    build: &|settings| {
        let own = Own::new(parse(settings)?)?;
        let from = Relation::of(own.spec.from.clone());
        let workers: Arc<dyn Workers> = match own.spec.python {
            Some(_) => Arc::new(PythonWorkers(own)),
            None => Arc::new(CommandWorkers::new(own)?),
        };
        Ok(Relation::Work { from, workers })
    },
};

/// What functions and programs have in common.
#[derive(Debug)]
struct Own {
    spec: MapSpec,
    rules: WorkRules,
    gives: SchemaRef,
}

impl Own {
    /// What `spec` says.
    ///
    /// # Errors
    /// If its columns are at fault; [`MapSpec`] has checked them before.
    fn new(spec: MapSpec) -> Result<Self, Vec<Fault>> {
        let gives = spec.columns.schema().map_err(|error| vec![Fault::new("columns", error.what())])?;
        let order = spec.order_by.clone().map(Keys::into_vec).unwrap_or_default();
        let rules = WorkRules {
            per: spec.per,
            keep: spec.keep.clone(),
            by: spec.by.clone().map(Keys::into_vec).unwrap_or_default(),
            order_by: SortTerm::keys(&order)?,
            deterministic: spec.deterministic,
            workers: spec.workers,
            timeout: spec.timeout.map(|timeout| timeout.0),
            memory: spec.memory.map(|size| size.0),
        };
        Ok(Own { spec, rules, gives })
    }
}
