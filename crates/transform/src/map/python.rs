//! Workers that call a Python function.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use async_trait::async_trait;
use millstream_core::spec::Fault;
use millstream_core::transform::{ColumnsFault, WorkContext, WorkRules, Worker, Workers};
use millstream_core::{Error, Result, stable_hash};
use millstream_process::python::{Function, PythonWorker, check_columns};
use millstream_process::{Children, Program};
use serde_json::{Value, json};

use super::spec::MapSpec;

/// Workers that call a Python function.
#[derive(Debug)]
pub struct PythonWorkers {
    spec: MapSpec,
    rules: WorkRules,
    gives: SchemaRef,
}

impl PythonWorkers {
    /// Those that `spec` says.
    ///
    /// # Errors
    /// If its columns are at fault; [`MapSpec`] has checked them before.
    pub fn new(spec: MapSpec) -> Result<Self, Vec<Fault>> {
        let gives = spec.columns.schema().map_err(|error| vec![Fault::new("columns", error.what())])?;
        let rules = WorkRules {
            per: spec.per,
            keep: spec.keep.clone(),
            deterministic: spec.deterministic,
            workers: spec.workers,
            timeout: spec.timeout.map(|timeout| timeout.0),
            memory: spec.memory.map(|size| size.0),
        };
        Ok(PythonWorkers { spec, rules, gives })
    }

    fn function(&self) -> (&str, &str) {
        self.spec.function().unwrap_or_default()
    }

    fn interpreter(&self, context: &WorkContext) -> Result<Program> {
        let environment =
            self.spec.env.iter().map(|(name, value)| Ok((name.clone(), OsString::from(value.resolve()?))));
        Ok(Program {
            command: vec![OsString::from(&self.spec.interpreter)],
            folder: Some(context.folder.clone()),
            environment: environment.collect::<Result<_>>()?,
            withheld: context.withheld.clone(),
        })
    }
}

#[async_trait]
impl Workers for PythonWorkers {
    fn name(&self) -> &'static str {
        "python"
    }

    fn columns(&self, input: &Schema) -> Result<SchemaRef, ColumnsFault> {
        check_columns(input)?;
        Ok(Arc::clone(&self.gives))
    }

    fn rules(&self) -> &WorkRules {
        &self.rules
    }

    fn fingerprint(&self, folder: &Path) -> Result<Value> {
        let (file, name) = self.function();
        let path = folder.join(file);
        let code = fs_err::read(&path)
            .map_err(|cause| Error::io(format!("the Python file {} cannot be read", path.display()), &cause))?;
        Ok(json!({
            "function": name,
            "code": format!("{:016x}", stable_hash::hash(&code)),
            "version": self.spec.version,
        }))
    }

    async fn start(&self, input: &SchemaRef, context: &WorkContext) -> Result<Box<dyn Worker>> {
        let (file, name) = self.function();
        let file = std::path::absolute(context.folder.join(file))
            .map_err(|cause| Error::io(format!("the folder of {file} is not known"), &cause))?;
        if !file.exists() {
            let error = Error::refused(format!("the Python file {} does not exist", file.display()));
            return Err(error.hint("its path is relative to the folder of the job file"));
        }
        let function = Function {
            interpreter: self.interpreter(context)?,
            file,
            name: name.to_owned(),
            per: self.spec.per,
            takes: Arc::clone(input),
            gives: Arc::clone(&self.gives),
        };
        let (children, lines) = (Children::of_process()?, Arc::clone(&context.lines));
        Ok(Box::new(PythonWorker::start(&children, &Arc::new(function), lines).await?))
    }
}
