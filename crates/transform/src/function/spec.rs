//! What the job file may say of a function for SQL.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use arrow::datatypes::DataType;
use millstream_core::columns::parse_type;
use millstream_core::program::env_faults;
use millstream_core::spec::{Duration, Fault, Size, Spec, TextOrSecret};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A function that the SQL of the job can call, computed by a Python function in processes of their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FunctionSpec {
    /// The function: a Python file, a colon and the name of the function in it. The path is relative to the job file.
    /// It is called with the values of a row and gives one value, or None for null.
    pub python: String,
    /// The types of its arguments.
    pub arguments: Vec<String>,
    /// The type of its value.
    pub returns: String,
    /// Promises that the value depends on the arguments alone. Without it a load that uses the function goes all at
    /// once.
    #[serde(default)]
    pub deterministic: bool,
    /// The version of what the values depend on beside the file of the function. A load that began with another one is
    /// not resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The Python to run it with, `python3` if left out; a path is relative to the job file. Python 3.8 or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub interpreter: Option<String>,
    /// Variables of the environment for it, beside those of this process.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, TextOrSecret>,
    /// How many processes there are; if left out as many as there are cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<NonZeroUsize>,
    /// How long it may take for a call, which has as many rows as take about 75 ms, from one to 8,192; any time if left
    /// out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// How much memory each process may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
}

impl FunctionSpec {
    /// The types of its arguments and of its value.
    ///
    /// # Errors
    /// Those that are none.
    pub fn types(&self) -> Result<(Vec<DataType>, DataType), Vec<Fault>> {
        let mut faults = Vec::new();
        let mut read = |path: String, name: &str| {
            let fault = |error: millstream_core::Error| {
                let fault = Fault::new(&path, error.what());
                match error.hint_text() {
                    Some(hint) => fault.hint(hint),
                    None => fault,
                }
            };
            parse_type(name).map_err(|error| faults.push(fault(error))).unwrap_or(DataType::Null)
        };
        let arguments: Vec<DataType> =
            self.arguments.iter().enumerate().map(|(index, name)| read(format!("arguments.{index}"), name)).collect();
        let returns = read("returns".to_owned(), &self.returns);
        if faults.is_empty() { Ok((arguments, returns)) } else { Err(faults) }
    }
}

impl Spec for FunctionSpec {
    const NAME: &'static str = "function";
    const SUMMARY: &'static str = "A function that the SQL of the job can call.";
    const EXAMPLE: &'static str = "python: geo.py:country_of\narguments: [utf8]\nreturns: utf8\ndeterministic: true\n";

    fn check(&self) -> Vec<Fault> {
        let mut faults: Vec<Fault> = crate::python::fault(&self.python).into_iter().collect();
        faults.extend(env_faults(&self.env));
        faults.extend(self.types().err().into_iter().flatten());
        faults
    }
}
