//! What is started.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;

/// A program, its arguments and its surroundings. No shell is involved.
#[derive(Clone, Default)]
pub struct Program {
    /// The entry of the job that it works for.
    pub step: String,
    /// The program and its arguments. A program without a slash is looked up in `PATH`; a relative path is resolved
    /// against `folder`.
    pub command: Vec<OsString>,
    /// The folder in which it runs; that of this process if there is none.
    pub folder: Option<PathBuf>,
    /// Variables that it gets beside those of this process.
    pub environment: Vec<(String, OsString)>,
    /// Variables of this process that it does not get.
    pub withheld: Vec<String>,
}

impl Program {
    /// The name of the program, for messages.
    pub fn name(&self) -> String {
        self.command.first().map(|program| program.to_string_lossy().into_owned()).unwrap_or_default()
    }

    pub(crate) fn command(&self) -> Command {
        let program = self.command.first().cloned().unwrap_or_default();
        let is_relative = program.as_encoded_bytes().contains(&b'/') && !program.as_encoded_bytes().starts_with(b"/");
        let mut command = match &self.folder {
            Some(folder) if is_relative => Command::new(folder.join(&program)),
            _ => Command::new(&program),
        };
        command.args(self.command.iter().skip(1));
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        for name in &self.withheld {
            command.env_remove(name);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Values of variables may be secrets.
impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.environment.iter().map(|(name, _)| name).collect();
        let mut shown = f.debug_struct("Program");
        shown.field("command", &self.command).field("folder", &self.folder).field("environment", &names);
        shown.finish_non_exhaustive()
    }
}
