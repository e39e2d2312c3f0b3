//! Workers that call a Python function.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use async_trait::async_trait;
use millstream_core::program::ProgramContext;
use millstream_core::spec::{Fault, TextOrSecret};
use millstream_core::transform::{ColumnsFault, WorkRules, Worker, Workers};
use millstream_core::{Error, Result, stable_hash};
use millstream_process::python::{Function, PythonWorker, check_columns};
use millstream_process::{Children, Program};
use serde_json::{Value, json};

/// A Python function, as a job says it.
#[derive(Debug)]
pub struct PythonCode {
    /// The file, a colon and the name of the function in it: `features.py:score`.
    pub function: String,
    /// What runs it, `python3` if nothing is said.
    pub interpreter: Option<String>,
    /// Variables of the environment beside those of this process.
    pub env: BTreeMap<String, TextOrSecret>,
    /// The version of what it depends on beside its file.
    pub version: Option<String>,
    /// Whether it takes and gives batches of pyarrow; otherwise dicts.
    pub is_arrow: bool,
    /// Whether it takes the values of a row as its arguments, and gives one value.
    pub takes_values: bool,
}

/// The file and the name of the function `python`; `None` if it names none.
fn parts(python: &str) -> Option<(&str, &str)> {
    let (file, name) = python.rsplit_once(':')?;
    let is_name = |part: &str| {
        let mut characters = part.chars();
        characters.next().is_some_and(|first| first.is_alphabetic() || first == '_')
            && characters.all(|character| character.is_alphanumeric() || character == '_')
    };
    (!file.is_empty() && name.split('.').all(is_name)).then_some((file, name))
}

/// What is wrong with the function `python`.
pub fn fault(python: &str) -> Option<Fault> {
    match parts(python) {
        None => {
            let what = format!("`{python}` names no function of a Python file");
            Some(Fault::new("python", what).hint("write the file, a colon and the function: features.py:score"))
        }
        Some((file, _)) if !file.ends_with(".py") => {
            let what = format!("`{python}` names no Python file");
            Some(Fault::new("python", what).hint("its name ends in .py: features.py:score"))
        }
        Some(_) => None,
    }
}

/// Workers that call a Python function.
#[derive(Debug)]
pub struct PythonWorkers {
    /// The function.
    pub code: PythonCode,
    /// How it is called.
    pub rules: WorkRules,
    /// The columns that it gives.
    pub gives: SchemaRef,
}

impl PythonWorkers {
    fn function(&self) -> (&str, &str) {
        parts(&self.code.function).unwrap_or_default()
    }
}

#[async_trait]
impl Workers for PythonWorkers {
    fn name(&self) -> &'static str {
        "python"
    }

    fn columns(&self, input: &Schema) -> Result<SchemaRef, ColumnsFault> {
        if !self.code.is_arrow {
            check_columns(input)?;
        }
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
            "version": self.code.version,
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
        let code = &self.code;
        let interpreter = code.interpreter.as_deref().unwrap_or("python3");
        let function = Function {
            interpreter: Program::new([interpreter], &code.env, context)?,
            file,
            name: name.to_owned(),
            per: self.rules.per,
            is_arrow: code.is_arrow,
            takes_values: code.takes_values,
            takes: Arc::clone(input),
            gives: Arc::clone(&self.gives),
        };
        let (children, lines) = (Children::of_process()?, Arc::clone(&context.lines));
        Ok(Box::new(PythonWorker::start(&children, &Arc::new(function), lines).await?))
    }
}
