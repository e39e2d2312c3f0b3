//! What is started.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use millstream_core::program::ProgramContext;
use millstream_core::redact::Secrets;
use millstream_core::spec::TextOrSecret;
use millstream_core::{Error, Result};
use rustix::fs::Access;

use crate::script;

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
    /// What is left out of what it writes to standard error.
    pub secrets: Secrets,
    /// Whether its standard output is shown as its standard error is, rather than read.
    pub shows_output: bool,
}

impl Program {
    /// `command` as a job of `context` starts it, with the variables `environment` beside those of this process.
    ///
    /// # Errors
    /// If a secret cannot be had.
    pub fn new(
        command: impl IntoIterator<Item = impl Into<OsString>>,
        environment: &BTreeMap<String, TextOrSecret>,
        context: &ProgramContext,
    ) -> Result<Self> {
        let of_run = context.environment.iter().map(|(name, value)| Ok((name.clone(), OsString::from(value))));
        let own = environment.iter().map(|(name, value)| Ok((name.clone(), OsString::from(value.resolve()?))));
        Ok(Program {
            step: context.step.clone(),
            command: command.into_iter().map(Into::into).collect(),
            folder: Some(context.folder.clone()),
            environment: of_run.chain(own).collect::<Result<_>>()?,
            withheld: context.withheld.clone(),
            secrets: context.secrets.clone(),
            shows_output: false,
        })
    }

    /// The name of the program, for messages.
    pub fn name(&self) -> String {
        self.command.first().map(|program| program.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Looks whether it is there and may be started.
    ///
    /// # Errors
    /// If it is not, or may not.
    pub fn look_up(&self) -> Result<()> {
        let command = self.command();
        let program = Path::new(command.get_program());
        let candidates: Vec<PathBuf> = match program.as_os_str().as_encoded_bytes().contains(&b'/') {
            true => vec![program.to_owned()],
            false => {
                let path = self.environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
                let path = path.or_else(|| std::env::var_os("PATH")).unwrap_or_default();
                std::env::split_paths(&path).map(|folder| folder.join(program)).collect()
            }
        };
        let files: Vec<&PathBuf> = candidates.iter().filter(|candidate| candidate.is_file()).collect();
        if files.iter().any(|file| rustix::fs::access(file.as_path(), Access::EXEC_OK).is_ok()) {
            return self.look_up_script();
        }
        let code = if files.is_empty() { libc::ENOENT } else { libc::EACCES };
        Err(self.cannot_start(&io::Error::from_raw_os_error(code)))
    }

    /// Looks whether the script is there that it is to run, where it is an interpreter and the script is certain.
    ///
    /// # Errors
    /// If it is not.
    pub fn look_up_script(&self) -> Result<()> {
        let arguments: Vec<&str> = self.command.iter().skip(1).map_while(|word| word.to_str()).collect();
        let folder = self.folder.as_deref().unwrap_or(Path::new("."));
        match script::missing(&self.name(), &arguments, folder) {
            None => Ok(()),
            Some(script) => {
                let what = format!("the script `{script}` of the program `{}` does not exist", self.name());
                Err(Error::refused(what).hint("its path is relative to the folder of the job file"))
            }
        }
    }

    /// Why it cannot be started.
    pub(crate) fn cannot_start(&self, cause: &io::Error) -> Error {
        let error = Error::io(format!("the program `{}` cannot be started", self.name()), cause);
        match cause.kind() {
            io::ErrorKind::NotFound => error.hint(
                "is it there, and is the program in its first line (`#!…`)? A name with a slash is relative to the \
                 folder of the job file, one without is looked up in PATH",
            ),
            io::ErrorKind::PermissionDenied => error.hint("make it executable: chmod +x"),
            _ if cause.raw_os_error() == Some(libc::ENOEXEC) => {
                error.hint("a script says in its first line what runs it: #!/usr/bin/env python3")
            }
            _ => error,
        }
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
