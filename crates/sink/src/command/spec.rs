//! What the job file may say of a program that takes rows, beside `from`.

use std::collections::BTreeMap;

use millstream_core::program::{CommandLine, env_faults};
use millstream_core::spec::{Duration, Fault, Spec, TextOrSecret};
use millstream_process::command::ExchangeForm;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of a program that takes rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandSpec {
    /// The program and its arguments, in place of `write`; no shell takes part. It reads rows on standard input until
    /// its end, in the folder of the job file. A name with a slash is relative to the job file, another one is looked
    /// up in PATH.
    pub command: CommandLine,
    /// The form of the rows.
    pub exchange: ExchangeForm,
    /// Variables of the environment for it, beside those of this process and `MILLSTREAM_RUN`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, TextOrSecret>,
    /// How long it may read nothing while there are rows, and how long it may take to end behind the last; any time if
    /// left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
}

impl Spec for CommandSpec {
    const NAME: &'static str = "command";
    const SUMMARY: &'static str = "Gives rows to a program, on its standard input. The end of the input says that all \
                                   rows are there: if the run fails, the program is killed before. It has to end \
                                   with status 0, and is called again when a run is resumed: `MILLSTREAM_RUN` is the \
                                   same then.";
    const EXAMPLE: &'static str = "from: ranked\ncommand: [./publish.sh, --all]\nexchange: csv\n";

    fn check(&self) -> Vec<Fault> {
        [self.command.faults("command"), env_faults(&self.env)].concat()
    }
}
