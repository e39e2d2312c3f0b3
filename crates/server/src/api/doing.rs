//! What is done: runs are started, resumed and cancelled, and rejects replayed. Each is noted in the audit log.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;

use http::Method;
use millstream::Error;
use millstream::history::{CancelFile, Outcome, RunKind, RunRecord};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::runs::find;
use crate::access::Role;
use crate::actions::{Action, Asked, What};
use crate::answers::{blocking, error_of};
use crate::folder::FileKind;
use crate::problem::Problem;
use crate::routes::{Done, Nothing, Request, Route, act, act_asking, get};
use crate::shared::Shared;

/// How many actions a list has.
const LISTED: usize = 50;

pub fn routes() -> Vec<Route> {
    let operate = Role::Operate;
    vec![
        act_asking(Method::POST, "/api/v1/start", operate, "Start a job or a sequence of the folder", start),
        act(Method::POST, "/api/v1/runs/{run}/resume", operate, "Resume what a run left", resume),
        act(Method::POST, "/api/v1/runs/{run}/cancel", operate, "Ask a run to stop, as Ctrl-C does", cancel),
        act_asking(Method::POST, "/api/v1/runs/{run}/replay", operate, "Load the rejects of a run again", replay),
        get("/api/v1/actions", Role::Look, "What was asked of the server, the last first", actions),
        get("/api/v1/actions/{id}", Role::Look, "One of these", action),
    ]
}

/// What is to be started.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Start {
    /// The job or sequence, by its name from the folder.
    file: String,
    /// Values of its variables. The role `operate` may set those that the file declares under `allow`.
    #[serde(default)]
    set: BTreeMap<String, String>,
    /// Whether it begins anew although an earlier run is unfinished: rows of a job that it loaded stay.
    #[serde(default)]
    restart: bool,
}

/// The file with this name, as an argument: as it is named from the folder, in which the program runs.
fn file(shared: &Shared, name: &str) -> Result<OsString, Problem> {
    let opened = shared.folder.read(name)?;
    match opened.kind {
        // A broken file is started, too: what is wrong with it is then reported as in a terminal.
        FileKind::Job | FileKind::Sequence | FileKind::Other => Ok(opened.path.into()),
        FileKind::Test => {
            let error = Error::job("this file has tests of a job, and cannot be run").text(name);
            Err(Problem::bad(error.hint("`millstream test` runs it")))
        }
    }
}

/// `--set` for each variable.
fn variables(set: &BTreeMap<String, String>) -> Result<Vec<OsString>, Problem> {
    let mut arguments = Vec::new();
    let is_name = |name: &str| {
        name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_')
    };
    for (name, value) in set {
        if !is_name(name) {
            let error = Error::job("this is no name of a variable").text(name);
            return Err(Problem::bad(error.hint("names have letters, digits and `_`")));
        }
        // The history keeps variables as lines: what is behind a line break would be another one when they are read.
        if value.contains(['\n', '\r', '\0']) {
            return Err(Problem::bad(Error::job(format!("the value of {name} has more than one line"))));
        }
        arguments.push(format!("--set={name}={value}").into());
    }
    Ok(arguments)
}

/// The arguments that set variables for a command on the file `path`: those who may not edit it set only what it
/// allows. The command looks again, since the file may change meanwhile.
///
/// # Errors
/// If it does not allow that.
async fn allowed(
    shared: &Arc<Shared>,
    request: &Request,
    path: &OsString,
    set: &BTreeMap<String, String>,
) -> Result<Vec<OsString>, Problem> {
    let mut arguments = variables(set)?;
    if request.caller.role < Role::Edit && !set.is_empty() {
        arguments.push("--only-allowed".into());
        let question = ["check".into(), path.clone(), "--outline".into()];
        // What else is wrong with the file is reported when it is started, as in a terminal.
        let answer = shared.commands.ask_soon(&[&question[..], &arguments[..]].concat()).await?;
        if answer["refusal"].is_object() {
            let (caller, names) = (request.caller.clone(), set.keys().cloned().collect::<Vec<_>>().join(", "));
            let what = format!("{} with {names}", path.display());
            blocking(shared, move |shared| {
                if let Some(count) = shared.access.refused(&caller.user) {
                    shared.note(&caller, "refused", &format!("{what} ({count} in all)"), false);
                }
                Ok(())
            })
            .await?;
            return Err(Problem::forbidden(error_of(&answer["refusal"])));
        }
    }
    Ok(arguments)
}

async fn start(shared: Arc<Shared>, request: Request, body: Start) -> Result<Action, Problem> {
    let name = body.file.clone();
    let path = blocking(&shared, move |shared| file(shared, &name)).await?;
    let set = allowed(&shared, &request, &path, &body.set).await?;
    blocking(&shared, move |shared| started(shared, &request, &body, path, set)).await
}

fn started(
    shared: &Shared,
    request: &Request,
    body: &Start,
    path: OsString,
    set: Vec<OsString>,
) -> Result<Action, Problem> {
    let mut arguments = [vec!["run".into(), path], set].concat();
    if body.restart {
        arguments.push("--restart".into());
    }
    let what = if body.restart { What::Restart } else { What::Start };
    let names: Vec<&str> = body.set.keys().map(String::as_str).collect();
    let noted = if names.is_empty() { body.file.clone() } else { format!("{} with {}", body.file, names.join(", ")) };
    begin(shared, request, Asked { what, file: &body.file, user: &request.caller.user, run: None, arguments }, &noted)
}

/// Starts what is asked for, and notes it.
fn begin(shared: &Shared, request: &Request, asked: Asked<'_>, noted: &str) -> Result<Action, Problem> {
    let what = asked.what;
    let begun = shared.actions.start(shared.commands.program(), asked);
    shared.note(&request.caller, what.name(), noted, begun.is_ok());
    let action = begun?;
    shared.events.changed();
    shared.events.send("action", &serde_json::json!(action));
    Ok(action)
}

/// The variables with which `run` was started, as arguments.
fn of_run(run: &RunRecord, set: &BTreeMap<String, String>) -> Vec<OsString> {
    let pairs = run.variables.lines().filter(|line| {
        let name = line.split_once('=').map_or(*line, |(name, _)| name);
        !set.contains_key(name)
    });
    pairs.map(|pair| format!("--set={pair}").into()).collect()
}

/// The name from the folder of the file of `run`.
fn file_of(shared: &Shared, run: &RunRecord) -> Result<String, Problem> {
    shared.folder.name_of(&run.job).ok_or_else(|| {
        let error = Error::refused("the file of this run is not in the folder that is served").text(&run.job);
        Problem::conflict(error.hint("give the command in a terminal"))
    })
}

fn resume(shared: &Shared, request: &Request, _: Nothing) -> Result<Action, Problem> {
    let run = find(shared, request.id("run"))?;
    if run.of_step.is_some() {
        let error = Error::refused("this run is a step of a sequence").text(&run.run);
        return Err(Problem::conflict(error.hint("resume the sequence")));
    }
    if !run.outcome.is_unfinished() || !shared.history.is_last_word(&run)? {
        let error = Error::refused(format!("run {} has left nothing to resume: {}", run.run, run.outcome.name()));
        return Err(Problem::conflict(error.hint("a later run may have done the rest")));
    }
    let name = file_of(shared, &run)?;
    let mut arguments = vec!["run".into(), file(shared, &name)?, "--resume".into()];
    arguments.extend(of_run(&run, &BTreeMap::new()));
    let noted = format!("{name} ({})", run.run);
    let what = What::Resume;
    begin(shared, request, Asked { what, file: &name, user: &request.caller.user, run: None, arguments }, &noted)
}

fn cancel(shared: &Shared, request: &Request, _: Nothing) -> Result<Done, Problem> {
    let run = find(shared, request.id("run"))?;
    if run.outcome != Outcome::Running {
        let what = format!("run {} does not run: {}", run.run, run.outcome.name());
        return Err(Problem::conflict(Error::refused(what)));
    }
    let asked = CancelFile::new(shared.history.folder(), &run.run).ask();
    shared.note(&request.caller, "cancel", &run.run, asked.is_ok());
    asked?;
    Ok(Done {})
}

/// With which variables rejects are replayed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Replay {
    /// Values of variables, in place of those of the run.
    set: BTreeMap<String, String>,
}

async fn replay(shared: Arc<Shared>, request: Request, Replay { set }: Replay) -> Result<Action, Problem> {
    let of = request.id("run").to_owned();
    let (run, name, path) = blocking(&shared, move |shared| can_be_replayed(shared, &of)).await?;
    let set = allowed(&shared, &request, &path, &set).await?;
    blocking(&shared, move |shared| {
        let arguments = [vec!["rejects".into(), run.run.clone().into(), "--replay".into()], set].concat();
        let user = &request.caller.user;
        let asked = Asked { what: What::Replay, file: &name, user, run: Some(&run.run), arguments };
        begin(shared, &request, asked, &run.run)
    })
    .await
}

/// The run whose rejects are to be replayed, and its file: by its name, and as an argument.
fn can_be_replayed(shared: &Shared, run: &str) -> Result<(RunRecord, String, OsString), Problem> {
    let run = find(shared, run)?;
    if run.kind != RunKind::Job {
        return Err(Problem::conflict(Error::refused("a sequence has no rejects: the runs of its steps have")));
    }
    if run.outcome == Outcome::Running {
        return Err(Problem::conflict(Error::refused("the run has not ended").hint("wait until it has")));
    }
    let name = file_of(shared, &run)?;
    let path = file(shared, &name)?;
    Ok((run, name, path))
}

/// What was asked of the server.
#[derive(Debug, Serialize, JsonSchema)]
struct ActionList {
    actions: Vec<Action>,
}

fn actions(shared: &Shared, _: &Request, _: Nothing) -> Result<ActionList, Problem> {
    Ok(ActionList { actions: shared.actions.all(LISTED)? })
}

fn action(shared: &Shared, request: &Request, _: Nothing) -> Result<Action, Problem> {
    let id = request.id("id");
    let found = shared.actions.find(id);
    found.ok_or_else(|| Problem::absent(Error::refused("nothing with this name was asked of the server").text(id)))
}
