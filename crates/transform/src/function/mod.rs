//! Functions for SQL that are Python functions.

mod spec;

use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use millstream_core::registry::FunctionEntry;
use millstream_core::spec::{SpecInfo, parse};
use millstream_core::transform::{CallSize, Per, WorkFunction, WorkRules};

use crate::python::{PythonCode, PythonWorkers};
use spec::FunctionSpec;

/// What a job says of functions.
pub const ENTRY: FunctionEntry = FunctionEntry {
    spec: SpecInfo::of::<FunctionSpec>(),
    build: &|settings| {
        let spec: FunctionSpec = parse(settings)?;
        let (arguments, returns) = spec.types()?;
        let rules = WorkRules {
            per: Per::Row,
            keep: Vec::new(),
            by: Vec::new(),
            order_by: Vec::new(),
            deterministic: spec.deterministic,
            call_size: CallSize::Rows,
            workers: spec.workers,
            timeout: spec.timeout.map(|timeout| timeout.0),
            memory: spec.memory.map(|size| size.0),
        };
        let code = PythonCode {
            function: spec.python,
            interpreter: spec.interpreter,
            env: spec.env,
            version: spec.version,
            is_arrow: false,
            takes_values: true,
        };
        let gives = Arc::new(Schema::new(vec![Field::new("value", returns.clone(), true)]));
        Ok(WorkFunction { arguments, returns, workers: Arc::new(PythonWorkers { code, rules, gives }) })
    },
};
