//! Programs that a step runs: how a job says them, and their messages.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

use crate::redact::Secrets;
use crate::spec::{Fault, TextOrSecret};

/// Takes the lines that a program writes to standard error, in order and without their ends. Bytes that are no UTF-8
/// are replaced, control characters escaped; what is left out at the end of a long line is an ellipsis.
pub type Lines = Arc<dyn Fn(&str) + Send + Sync>;

/// The same for the programs of several steps: takes the name of a step and a line.
pub type StepLines = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// What the programs of a step are started with.
#[derive(Clone)]
pub struct ProgramContext {
    /// The entry of the job that they work for.
    pub step: String,
    /// The folder of the job file: paths in the job are relative to it.
    pub folder: PathBuf,
    /// Variables of the environment that hold secrets of the job: programs do not inherit them.
    pub withheld: Vec<String>,
    /// Variables that they get beside those of this process, unless the job sets them.
    pub environment: Vec<(String, String)>,
    /// The secrets of the job, which they may repeat.
    pub secrets: Secrets,
    /// How long a program may take whose output is only looked at; any time if it is to be read.
    pub patience: Option<Duration>,
    /// Takes what they write to standard error.
    pub lines: Lines,
}

/// Of no job: the folder is that of this process, and nobody takes the lines.
impl Default for ProgramContext {
    fn default() -> Self {
        let (step, folder) = (String::new(), PathBuf::from("."));
        let (withheld, environment, secrets) = (Vec::new(), Vec::new(), Secrets::default());
        ProgramContext { step, folder, withheld, environment, secrets, patience: None, lines: Arc::new(|_| {}) }
    }
}

impl fmt::Debug for ProgramContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ProgramContext");
        shown.field("folder", &self.folder).field("withheld", &self.withheld).finish_non_exhaustive()
    }
}

/// The `format` of a command line in JSON schemas: a text in its place is split into words.
pub const COMMAND_LINE: &str = "command-line";

/// A program and its arguments, as a job file says them: texts, or whole numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CommandLine(#[serde(deserialize_with = "words")] pub Vec<String>);

fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Word {
        Text(String),
        Number(i64),
    }
    let word = |word| match word {
        Word::Text(text) => text,
        Word::Number(number) => number.to_string(),
    };
    Ok(Vec::<Word>::deserialize(deserializer)?.into_iter().map(word).collect())
}

impl JsonSchema for CommandLine {
    fn schema_name() -> Cow<'static, str> {
        "CommandLine".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let items = json_schema!({"type": ["string", "integer"]});
        json_schema!({"type": "array", "items": items, "minItems": 1, "format": COMMAND_LINE})
    }
}

impl CommandLine {
    /// The program.
    pub fn program(&self) -> Option<&str> {
        self.0.first().map(String::as_str)
    }

    /// Its faults, at `path`.
    pub fn faults(&self, path: &str) -> Vec<Fault> {
        let hint = "write the program and its arguments: [./export.sh, --all]";
        match self.program() {
            None => vec![Fault::new(path, "there is no program").hint(hint)],
            Some("") => vec![Fault::new(&format!("{path}.0"), "the program has no name").hint(hint)],
            Some(_) => {
                let mut words = self.0.iter().enumerate();
                let fault = |index| Fault::new(&format!("{path}.{index}"), "a word of a command has no NUL character");
                words.find(|(_, word)| word.contains('\0')).map(|(index, _)| fault(index)).into_iter().collect()
            }
        }
    }
}

/// The faults of the names of variables for a program, which stand in `env`.
pub fn env_faults(env: &BTreeMap<String, TextOrSecret>) -> Vec<Fault> {
    let fault = |(name, value): (&String, &TextOrSecret)| {
        let text = if let TextOrSecret::Text(text) = value { text } else { "" };
        let what = match name.as_str() {
            "" => "a variable of the environment has no name",
            name if name.contains('=') => "the name of a variable of the environment has no `=`",
            name if name.contains('\0') => "the name of a variable of the environment has no NUL character",
            _ if text.contains('\0') => "the value of a variable of the environment has no NUL character",
            _ => return None,
        };
        let mut fault =
            Fault::of_key("env", what).hint("write each as `NAME: value`: env: {TOKEN: {secret: env:TOKEN}}");
        if !name.is_empty() {
            fault.path.insert(1, name.clone());
        }
        Some(fault)
    };
    env.iter().filter_map(fault).collect()
}
