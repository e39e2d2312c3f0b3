//! Functions and programs of one's own.

mod command;
mod spec;

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use millstream_core::registry::TransformEntry;
use millstream_core::spec::{Fault, SpecInfo, parse};
use millstream_core::transform::{CallSize, Per, Relation, SortTerm, WorkRules, Workers};
use millstream_process::command::ExchangeForm;

use crate::keys::Keys;
use crate::python::{PythonCode, PythonWorkers};
use command::CommandWorkers;
use spec::MapSpec;

/// The transform `map`.
pub const ENTRY: TransformEntry = TransformEntry {
    spec: SpecInfo::of::<MapSpec>(),
    build: &|settings| {
        let own = Own::new(parse(settings)?)?;
        let from = Relation::of(own.spec.from.clone());
        let workers: Arc<dyn Workers> = match own.spec.python {
            Some(_) => Arc::new(own.python()),
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
            // Code that gets batches of Arrow computes all rows of one at once.
            call_size: match (spec.per, spec.exchange) {
                (Per::Row | Per::Batch, Some(ExchangeForm::Arrow)) => CallSize::Batches,
                (Per::Row, _) => CallSize::Rows,
                _ => CallSize::Batch,
            },
            workers: spec.workers,
            timeout: spec.timeout.map(|timeout| timeout.0),
            memory: spec.memory.map(|size| size.0),
        };
        Ok(Own { spec, rules, gives })
    }

    /// Workers that call the function.
    fn python(self) -> PythonWorkers {
        let Own { spec, rules, gives } = self;
        let code = PythonCode {
            function: spec.python.unwrap_or_default(),
            interpreter: spec.interpreter,
            env: spec.env,
            version: spec.version,
            is_arrow: spec.exchange.is_some(),
            takes_values: false,
        };
        PythonWorkers { code, rules, gives }
    }
}
