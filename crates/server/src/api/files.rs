//! The files of the folder: what is in them, what is wrong with them, how they would run.

use std::ffi::OsString;
use std::sync::Arc;

use http::Method;
use millstream::history::RunFilter;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::summary::{RunSummary, summary};
use crate::access::Role;
use crate::answers::blocking;
use crate::folder::{FileKind, Opened, tag};
use crate::hidden::without_secrets;
use crate::problem::Problem;
use crate::routes::{Nothing, Request, Route, act, ask, get};
use crate::shared::Shared;

/// The most rows of a preview.
const MOST_ROWS: usize = 200;

pub fn routes() -> Vec<Route> {
    vec![
        get("/api/v1/files", Role::Look, "The jobs and sequences of the folder", files),
        get("/api/v1/file", Role::Look, "The text of a file", file),
        act(Method::PUT, "/api/v1/file", Role::Edit, "Write a file, if it is the one that was seen", write),
        ask("/api/v1/check", Role::Look, "What is wrong with a job or a sequence", check),
        ask("/api/v1/explain", Role::Look, "How a job or a sequence would run", explain),
        ask("/api/v1/preview", Role::Operate, "The first rows of a step of a job", preview),
    ]
}

/// The files of the folder.
#[derive(Debug, Serialize, JsonSchema)]
struct Files {
    files: Vec<InFolder>,
    /// Whether there are more.
    is_cut: bool,
}

/// A file of the folder.
#[derive(Debug, Serialize, JsonSchema)]
struct InFolder {
    /// Its name from the folder.
    file: String,
    kind: FileKind,
    /// When it was changed, in milliseconds since 1970.
    modified: u64,
    size: u64,
    /// Its last run.
    last: Option<RunSummary>,
}

fn files(shared: &Shared, _: &Request, _: Nothing) -> Result<Files, Problem> {
    let listing = shared.folder.listing();
    let mut files = Vec::new();
    for (file, listed) in &listing.files {
        let filter = RunFilter { job: Some(shared.folder.path_of(file)), steps: true, ..RunFilter::default() };
        let last = match listed.kind {
            FileKind::Job | FileKind::Sequence => shared.history.browse(&filter, 1)?.pop(),
            FileKind::Test | FileKind::Other => None,
        };
        files.push(InFolder {
            file: file.clone(),
            kind: listed.kind,
            modified: listed.modified,
            size: listed.size,
            last: last.map(|run| summary(&shared.history, &shared.folder, &run)),
        });
    }
    Ok(Files { files, is_cut: listing.is_cut })
}

/// Which file is asked for.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Named {
    /// Its name from the folder.
    file: String,
}

/// A file with its text.
#[derive(Debug, Serialize, JsonSchema)]
struct FileText {
    file: String,
    kind: FileKind,
    text: String,
    /// What distinguishes this text from another one.
    etag: String,
    modified: u64,
    /// Whether passwords were left out, since the role may not see them.
    is_redacted: bool,
}

fn file(shared: &Shared, request: &Request, Named { file }: Named) -> Result<FileText, Problem> {
    let opened = shared.folder.read(&file)?;
    let (text, etag, is_redacted) = match request.caller.role {
        Role::Edit => (opened.text, opened.etag, false),
        Role::Look | Role::Operate => {
            // A hash of the whole text would let a secret in it be guessed.
            let (text, is_redacted) = without_secrets(&opened.text);
            let etag = tag(text.as_bytes());
            (text, etag, is_redacted)
        }
    };
    Ok(FileText { file, kind: opened.kind, text, etag, modified: opened.modified, is_redacted })
}

/// The new text of a file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NewText {
    /// Its name from the folder.
    file: String,
    text: String,
    /// That of the text that was seen; null for a new file.
    etag: Option<String>,
}

/// A file was written.
#[derive(Debug, Serialize, JsonSchema)]
struct Written {
    etag: String,
}

fn write(shared: &Shared, request: &Request, new: NewText) -> Result<Written, Problem> {
    let written = shared.folder.write(&new.file, &new.text, new.etag.as_deref());
    shared.note(&request.caller, "write", &new.file, written.is_ok());
    let etag = written?;
    // Others may have changed, too: whatever is seen here is not seen by the next look.
    let mut changed = shared.folder.look();
    changed.insert(new.file);
    shared.events.changed();
    shared.events.send("files", &json!({"files": changed}));
    Ok(Written { etag })
}

/// The file of this name, for the program.
async fn opened(shared: &Arc<Shared>, file: &str) -> Result<Opened, Problem> {
    let file = file.to_owned();
    blocking(shared, move |shared| shared.folder.read(&file)).await
}

fn list(answer: &Value, key: &str) -> Vec<Value> {
    answer[key].as_array().cloned().unwrap_or_default()
}

/// How a file is checked.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CheckQuery {
    /// Its name from the folder.
    file: String,
    /// Whether neither network nor database are asked.
    #[serde(default)]
    offline: bool,
}

/// What is wrong with a file.
#[derive(Debug, Serialize, JsonSchema)]
struct Check {
    lints: Vec<Value>,
    errors: Vec<Value>,
    /// Entries that could not be checked offline.
    unknown: Vec<Value>,
    /// Whether nothing keeps it from running.
    can_run: bool,
}

fn can_run(answer: &Value) -> bool {
    list(answer, "errors").is_empty() && list(answer, "lints").iter().all(|lint| lint["severity"] != "error")
}

async fn check(shared: Arc<Shared>, _: Request, query: CheckQuery) -> Result<Check, Problem> {
    let mut arguments = vec!["check".into(), opened(&shared, &query.file).await?.path.into()];
    if query.offline {
        arguments.push("--offline".into());
    }
    let answer = shared.commands.ask(&arguments).await?;
    let [lints, errors, unknown] = ["lints", "errors", "unknown"].map(|key| list(&answer, key));
    Ok(Check { can_run: can_run(&answer), lints, errors, unknown })
}

/// How a file would run.
#[derive(Debug, Serialize, JsonSchema)]
struct Explain {
    /// `job` or `sequence`.
    kind: &'static str,
    /// The graph of a job.
    entries: Vec<Value>,
    /// The steps of a sequence.
    steps: Vec<Value>,
    sources: Vec<Value>,
    transforms: Vec<Value>,
    sinks: Vec<Value>,
    /// The variables that the role `operate` may set.
    allow: Vec<Value>,
    lints: Vec<Value>,
    errors: Vec<Value>,
}

async fn explain(shared: Arc<Shared>, _: Request, Named { file }: Named) -> Result<Explain, Problem> {
    let opened = opened(&shared, &file).await?;
    let path: OsString = opened.path.into();
    // What needs neither network nor database is known even if the rest is not.
    let outline = ["check".into(), path.clone(), "--outline".into()];
    let explained = ["explain".into(), path];
    let (outline, explained) = tokio::join!(shared.commands.ask_soon(&outline), shared.commands.ask(&explained));
    let outline = outline?;
    // One that cannot be asked has an outline even so.
    let explained = explained.unwrap_or_else(|error| json!({"errors": [millstream::report::error_json(&error)]}));
    let of = |key: &str| list(&explained, key);
    let (lints, errors) = match can_run(&outline) {
        true => ([list(&outline, "lints"), of("lints")].concat(), of("errors")),
        // Where it fails, it says all that is wrong.
        false if !of("lints").is_empty() => (of("lints"), of("errors")),
        false => (list(&outline, "lints"), list(&outline, "errors")),
    };
    let is_sequence = opened.kind == FileKind::Sequence;
    Ok(Explain {
        kind: if is_sequence { "sequence" } else { "job" },
        entries: list(&outline, "entries"),
        steps: of("steps"),
        sources: of("sources"),
        transforms: of("transforms"),
        sinks: of("sinks"),
        allow: list(&outline, "allow"),
        lints,
        errors,
    })
}

/// Which rows are asked for.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PreviewQuery {
    /// The name of the job from the folder.
    file: String,
    /// The source or transform; what the first sink reads, if nothing is said.
    step: Option<String>,
    /// How many rows.
    rows: Option<usize>,
}

/// The first rows of a step.
#[derive(Debug, Serialize, JsonSchema)]
struct Preview {
    columns: Vec<Value>,
    rows: Vec<Value>,
    left_out: Vec<Value>,
    lints: Vec<Value>,
    errors: Vec<Value>,
}

async fn preview(shared: Arc<Shared>, request: Request, query: PreviewQuery) -> Result<Preview, Problem> {
    let mut arguments = vec!["preview".into(), opened(&shared, &query.file).await?.path.into()];
    if let Some(step) = query.step.filter(|step| !step.is_empty()) {
        // Behind this, nothing is an option.
        arguments.splice(1..1, ["--".into()]);
        arguments.push(step.into());
    }
    let rows = query.rows.unwrap_or(20).clamp(1, MOST_ROWS);
    arguments.splice(1..1, ["--with-columns".into(), "--rows".into(), rows.to_string().into()]);
    shared.note(&request.caller, "preview", &query.file, true);
    let answer = shared.commands.ask(&arguments).await?;
    let [columns, rows, left_out, lints, errors] =
        ["columns", "rows", "left_out", "lints", "errors"].map(|key| list(&answer, key));
    Ok(Preview { columns, rows, left_out, lints, errors })
}
