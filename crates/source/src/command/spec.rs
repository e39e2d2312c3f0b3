//! What the job file may say of a program that is read.

use std::collections::BTreeMap;

use millstream_core::program::{CommandLine, env_faults};
use millstream_core::spec::{Duration, Fault, Spec, TextOrSecret};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A program whose standard output is read: its words, or a block with these and its surroundings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum CommandSpec {
    /// The program and its arguments.
    Words(CommandLine),
    /// The same with more settings.
    Settings(CommandSettings),
}

/// A program and its surroundings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandSettings {
    /// The program and its arguments; no shell takes part. A name with a slash is relative to the job file, another one
    /// is looked up in PATH.
    pub run: CommandLine,
    /// Variables of the environment for it, beside those of this process.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, TextOrSecret>,
    /// How long it may write nothing while it is read, and how long it may take to end afterwards; any time if left
    /// out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
}

impl CommandSpec {
    /// All settings.
    pub fn into_settings(self) -> CommandSettings {
        match self {
            CommandSpec::Words(run) => CommandSettings { run, ..CommandSettings::default() },
            CommandSpec::Settings(settings) => settings,
        }
    }
}

impl Spec for CommandSpec {
    const NAME: &'static str = "command";
    const SUMMARY: &'static str = "A program whose standard output is read, in place of `read`: the program and its \
                                   arguments, or a block with `run`, `env` and `timeout`. It runs once in a run, in \
                                   the folder of the job file, and has to end with status 0.";
    const EXAMPLE: &'static str = "command: [./export.sh, --all]\ncsv: {columns: {id: int64, name: utf8}}\n";

    fn check(&self) -> Vec<Fault> {
        match self {
            CommandSpec::Words(words) => words.faults(""),
            CommandSpec::Settings(settings) => [settings.run.faults("run"), env_faults(&settings.env)].concat(),
        }
    }
}
