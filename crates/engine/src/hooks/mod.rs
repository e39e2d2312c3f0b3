//! What a job does after its runs: programs, webhooks and mails. None of it changes what a run has done.
//!
//! This file decides which hooks there are, and when; `given.rs` says what they are given; `command.rs`,
//! `webhook.rs` and `mail.rs` do one each.

mod command;
mod given;
mod mail;
mod webhook;

use std::sync::Arc;

use millstream_core::program::StepLines;
use millstream_core::{Error, ErrorKind, Processes, Result};
use millstream_job::around::{Hook, HookAction};
use millstream_job::{Job, Lint};
use serde_json::{Value, json};

use crate::engine::Engine;
use crate::failure::{Failure, error_json};
use crate::machine::Machine;
use crate::report::{HookResult, Report};
use crate::stages::{StageKind, Stages};
use crate::surroundings::Surroundings;
use given::{Given, Outcome};

/// Warns of mails that the machine cannot send.
pub(crate) fn lints(job: &Job, machine: &Machine) -> Vec<Lint> {
    let hooks = job.around.on_success.iter().chain(&job.around.on_failure);
    let mails = hooks.filter(|hook| matches!(hook.action, HookAction::Mail(_)) && machine.smtp.is_none());
    let lint = |hook: &Hook| {
        let lint = job.text.warning(hook.span, "the mail cannot be sent: this machine has no mail server");
        lint.hint("name one in the machine file (`--machine`): `smtp: {host: …, from: …}`")
    };
    mails.map(lint).collect()
}

/// A run that has ended, all attempts included.
pub(crate) struct AfterRun<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) job: &'a Job,
    /// The name of the last attempt; `None` if there was none.
    pub(crate) run: Option<&'a str>,
    pub(crate) attempts: u32,
    pub(crate) ended: &'a Result<Report, Failure>,
    /// Takes what programs write.
    pub(crate) lines: StepLines,
    /// Variables that programs get.
    pub(crate) environment: Vec<(String, String)>,
    /// Takes how long each lasts.
    pub(crate) stages: Stages,
}

impl AfterRun<'_> {
    /// Does what the job says, one after the other; `failed` takes what cannot be done.
    pub(crate) fn hooks(&self, failed: &dyn Fn(&str, &Error)) -> Vec<HookResult> {
        let Some((key, hooks, outcome)) = self.chosen() else { return Vec::new() };
        let surroundings = Surroundings::of(self.job, Arc::clone(&self.lines), Arc::<Processes>::default(), None)
            .with_environment(self.environment.clone());
        let secrets = surroundings.context(key).secrets;
        let report = secrets.hidden(&self.report(outcome).to_string()).into_owned();
        let sentence = secrets.hidden(&self.sentence()).into_owned();
        let (job, run) = (self.job.path(), self.run.unwrap_or_default());
        let given = Given { job, run, outcome, report, sentence, surroundings: &surroundings };
        let result = |hook: &Hook| {
            let name = hook.action.name();
            let error = self.act(key, hook, &given).err().map(|error| secrets.hidden_in(error));
            if let Some(error) = &error {
                failed(&format!("{key}: {name}"), error);
            }
            HookResult { hook: name, error: error.map(|error| error.to_string()) }
        };
        hooks.iter().map(result).collect()
    }

    /// The hooks that are due, and their key in the job file.
    fn chosen(&self) -> Option<(&'static str, &[Hook], Outcome)> {
        let around = &self.job.around;
        let failed = |outcome| Some(("on_failure", around.on_failure.as_slice(), outcome));
        let chosen = match self.ended {
            Ok(report) if report.skipped_run.is_some() => None,
            Ok(_) => Some(("on_success", around.on_success.as_slice(), Outcome::Done)),
            // It never got a name, or its output was closed, which is no failure.
            Err(_) if self.run.is_none() => None,
            Err(failure) => match failure.errors.first().map(Error::kind) {
                Some(ErrorKind::OutputClosed) => None,
                Some(ErrorKind::Interrupted) => failed(Outcome::Interrupted),
                _ => failed(Outcome::Failed),
            },
        };
        chosen.filter(|(_, hooks, _)| !hooks.is_empty())
    }

    fn report(&self, outcome: Outcome) -> Value {
        let mut report = json!({"outcome": outcome.name()});
        let rest = match self.ended {
            Ok(report) => serde_json::to_value(report).unwrap_or_default(),
            Err(Failure { lints, errors }) => json!({
                "job": self.job.path(),
                "run": self.run,
                "began": self.job.around.moment.text(),
                "attempts": self.attempts,
                "lints": lints,
                "errors": errors.iter().map(error_json).collect::<Vec<_>>(),
            }),
        };
        for (key, value) in rest.as_object().into_iter().flatten() {
            report[key] = value.clone();
        }
        report
    }

    fn sentence(&self) -> String {
        match self.ended {
            Ok(report) => format!("{} rows read, {} written", report.rows_read, report.rows_written),
            Err(failure) => failure.to_string(),
        }
    }

    fn act(&self, key: &str, hook: &Hook, given: &Given<'_>) -> Result<()> {
        let failed = |cause: std::io::Error| Error::io("the hook cannot be run", &cause);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        // URLs and addresses may be confidential: they are no part of the name.
        let kind = match hook.action {
            HookAction::Command(_) => "command",
            HookAction::Webhook(_) => "webhook",
            HookAction::Mail(_) => "mail",
        };
        let act = async {
            let act = async {
                match &hook.action {
                    HookAction::Command(command) => command::run(key, command, given).await,
                    HookAction::Webhook(webhook) => webhook::send(webhook, hook.timeout, given).await,
                    HookAction::Mail(mail) => mail::send(mail, self.engine.machine().smtp.as_ref(), given).await,
                }
            };
            let late = || Error::refused(format!("it took longer than {} s", hook.timeout.as_secs_f64()));
            let late = || late().hint("raise `timeout` of the hook");
            tokio::time::timeout(hook.timeout, act).await.unwrap_or_else(|_| Err(late()))
        };
        let done = runtime.block_on(self.stages.timed(StageKind::Hook, Some(&format!("{key}: {kind}")), act));
        // What a resolver still does is awaited by nobody.
        runtime.shutdown_background();
        done
    }
}
