//! Workers that call a Python function.

use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use async_trait::async_trait;
use millstream_core::program::ProgramContext;
use millstream_core::transform::{ColumnsFault, WorkRules, Worker, Workers};
use millstream_core::{Error, Result, stable_hash};
use millstream_process::python::{Function, PythonWorker, check_columns};
use millstream_process::{Children, Program};
use serde_json::{Value, json};

use super::Own;

/// Workers that call a Python function.
#[derive(Debug)]
pub struct PythonWorkers(pub Own);

impl PythonWorkers {
    fn function(&self) -> (&str, &str) {
        self.0.spec.function().unwrap_or_default()
    }
}

#[async_trait]
impl Workers for PythonWorkers {
    fn name(&self) -> &'static str {
        "python"
    }

    fn columns(&self, input: &Schema) -> Result<SchemaRef, ColumnsFault> {
        if self.0.spec.exchange.is_none() {
            check_columns(input)?;
        }
        Ok(Arc::clone(&self.0.gives))
    }

    fn rules(&self) -> &WorkRules {
        &self.0.rules
    }

    fn fingerprint(&self, folder: &Path) -> Result<Value> {
        let (file, name) = self.function();
        let path = folder.join(file);
        let code = fs_err::read(&path)
            .map_err(|cause| Error::io(format!("the Python file {} cannot be read", path.display()), &cause))?;
        Ok(json!({
            "function": name,
            "code": format!("{:016x}", stable_hash::hash(&code)),
            "version": self.0.spec.version,
        }))
    }

    async fn start(&self, input: &SchemaRef, context: &ProgramContext) -> Result<Box<dyn Worker>> {
        let (file, name) = self.function();
        let file = std::path::absolute(context.folder.join(file))
            .map_err(|cause| Error::io(format!("the folder of {file} is not known"), &cause))?;
        if !file.exists() {
            let error = Error::refused(format!("the Python file {} does not exist", file.display()));
            return Err(error.hint("its path is relative to the folder of the job file"));
        }
        let spec = &self.0.spec;
        let interpreter = spec.interpreter.as_deref().unwrap_or("python3");
        let function = Function {
            interpreter: Program::new([interpreter], &spec.env, context)?,
            file,
            name: name.to_owned(),
            per: spec.per,
            is_arrow: spec.exchange.is_some(),
            takes: Arc::clone(input),
            gives: Arc::clone(&self.0.gives),
        };
        let (children, lines) = (Children::of_process()?, Arc::clone(&context.lines));
        Ok(Box::new(PythonWorker::start(&children, &Arc::new(function), lines).await?))
    }
}
