//! What the programs of a job are started with: its folder, none of its secrets, and what takes their lines.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream_core::Processes;
use millstream_core::program::{ProgramContext, StepLines};
use millstream_core::redact::Secrets;
use millstream_core::spec::Secret;
use millstream_job::Job;
use serde_json::Value;

/// The most lines of standard error of a step that are shown.
const MOST_LINES: usize = 1000;

/// What the programs of a job are started with, but for what depends on their step.
pub struct Surroundings {
    folder: PathBuf,
    withheld: Vec<String>,
    environment: Vec<(String, String)>,
    secrets: Secrets,
    patience: Option<Duration>,
    lines: StepLines,
    /// The processes of the run.
    pub processes: Arc<Processes>,
}

impl Surroundings {
    /// Those of `job`, in a run that has these `processes`. Programs whose output is only looked at have `patience`.
    pub fn of(job: &Job, lines: StepLines, processes: Arc<Processes>, patience: Option<Duration>) -> Self {
        let folder = Path::new(job.path()).parent().map(Path::to_owned).unwrap_or_default();
        // Without a working folder, relative paths lead nowhere, whatever they are relative to.
        let folder = std::path::absolute(folder.join(".")).unwrap_or(folder);
        let mut secrets = Vec::new();
        let sources = job.sources.iter().map(|step| &step.settings);
        let transforms = job.transforms.iter().map(|step| &step.settings);
        let sinks = job.sinks.iter().map(|step| &step.settings);
        let functions = job.functions.iter().map(|step| &step.settings);
        let all = sources.chain(transforms).chain(sinks).chain(functions);
        all.for_each(|settings| secrets_of(settings, &mut secrets));
        secrets.extend(job.around.secrets.iter().map(|secret| Secret { secret: secret.clone() }));
        let withheld = secrets.iter().filter_map(Secret::variable).map(str::to_owned).collect();
        // One that cannot be read is an error when a program needs it; no program can repeat it.
        let secrets = Secrets::new(secrets.iter().filter_map(|secret| secret.resolve().ok()));
        let environment = Vec::new();
        Surroundings { folder, withheld, environment, secrets, patience, lines, processes }
    }

    /// The same, with variables that programs get beside those of this process, unless the job sets them.
    pub fn with_environment(self, environment: Vec<(String, String)>) -> Self {
        Surroundings { environment, ..self }
    }

    /// What those of `step` are started with.
    pub fn context(&self, step: &str) -> ProgramContext {
        let (name, lines, shown) = (step.to_owned(), Arc::clone(&self.lines), Mutex::new(0_usize));
        let take = move |line: &str| {
            let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
            *shown += 1;
            match *shown {
                ..=MOST_LINES => lines(&name, line),
                count if count == MOST_LINES + 1 => lines(&name, "… further lines are not shown"),
                _ => {}
            }
        };
        let (folder, withheld, secrets) = (self.folder.clone(), self.withheld.clone(), self.secrets.clone());
        let (step, patience, environment) = (step.to_owned(), self.patience, self.environment.clone());
        ProgramContext { step, folder, withheld, environment, secrets, patience, lines: Arc::new(take) }
    }
}

/// Whether a secret of `settings` is not there. That is known before anything is started.
pub fn lacks_secret(settings: &Value) -> bool {
    let mut secrets = Vec::new();
    secrets_of(settings, &mut secrets);
    secrets.iter().filter_map(Secret::variable).any(|variable| std::env::var_os(variable).is_none())
}

/// The secrets that `settings` refer to.
fn secrets_of(settings: &Value, secrets: &mut Vec<Secret>) {
    match settings {
        Value::Object(members) => {
            let secret = members.get("secret").and_then(Value::as_str).filter(|_| members.len() == 1);
            secrets.extend(secret.map(|secret| Secret { secret: secret.to_owned() }));
            members.values().for_each(|member| secrets_of(member, secrets));
        }
        Value::Array(items) => items.iter().for_each(|item| secrets_of(item, secrets)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_found_wherever_they_are() {
        let settings = json!({
            "env": {"TOKEN": {"secret": "env:TOKEN"}, "PLAIN": "env:NO_SECRET"},
            "list": [{"secret": "env:OTHER"}, {"secret": "file:/secret"}, {"secret": "env:NONE", "beside": 1}],
        });
        let mut secrets = Vec::new();
        secrets_of(&settings, &mut secrets);
        let secrets: Vec<&str> = secrets.iter().map(|secret| secret.secret.as_str()).collect();
        assert_eq!(secrets, ["env:TOKEN", "env:OTHER", "file:/secret"]);
    }
}
