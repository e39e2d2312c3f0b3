//! `millstream forget`: lets sinks forget what they have loaded, and says what becomes of its rows.

use std::fmt::Write as _;

use futures::executor::block_on;
use millstream::Failure;
use millstream::forget::{ForgetOptions, ForgottenBy, ForgottenFile, ForgottenRows, LoadedRows};

use crate::arguments::{Forget, Global};
use crate::human;
use crate::output::{Output, Role};
use crate::shared::{engine, sound_job};

/// How many files are named.
const NAMED: usize = 20;

/// Forgets files, or rows from a time on.
pub fn forget(global: &Global, output: Output, asked: &Forget) -> Result<(), Failure> {
    let engine = engine(global)?;
    let job = sound_job(global, &engine, output, &asked.path, false)?;
    let options = ForgetOptions {
        source: asked.source.clone(),
        sink: asked.sink.clone(),
        files: asked.files.clone(),
        to: asked.to.clone(),
        dry_run: asked.dry_run,
        variables: Some(global.set.clone()),
    };
    let forgotten = block_on(engine.forget(job, options))?;
    match output.json {
        true => output.json(&forgotten)?,
        false => {
            let of_sink = |by| described(by, forgotten.dry_run);
            output.result(&forgotten.sinks.iter().map(of_sink).collect::<String>())?;
        }
    }
    let warning = output.paint(Role::Hint, "warning:");
    let unknown = forgotten.not_found.iter().map(|name| format!("no sink has loaded {name}"));
    for what in forgotten.sinks.iter().filter_map(stays).chain(unknown) {
        output.message(&format!("{warning} {what}\n"));
    }
    Ok(())
}

/// The rows in the target that the user has to delete, if there are some.
fn stays(by: &ForgottenBy) -> Option<String> {
    let ForgottenBy { target, rows, loaded, .. } = by;
    let what = if rows.is_empty() { "rows of these files" } else { "rows from this time on" };
    let which = match loaded {
        LoadedRows::Stay => "them",
        LoadedRows::StayWithUri => "the rows whose `_uri` is one of the files",
        LoadedRows::Replaced | LoadedRows::FoundByKey => return None,
    };
    Some(format!("the {what} stay in {target}: delete {which} before the next run, or they will be there twice"))
}

fn described(by: &ForgottenBy, dry_run: bool) -> String {
    let ForgottenBy { sink, target, files, rows, loaded } = by;
    let (verb, mut text) = (if dry_run { "would forget" } else { "has forgotten" }, String::new());
    if !files.is_empty() {
        let (count, them) = match files.len() {
            1 => ("1 file".to_owned(), "it"),
            count => (format!("{} files", human::count(count as u64)), "them"),
        };
        let _ = writeln!(text, "{sink} {verb} {count}: the next run loads {them} again");
    }
    for ForgottenFile { uri, .. } in files.iter().take(NAMED) {
        let _ = writeln!(text, "  {uri}");
    }
    if files.len() > NAMED {
        let _ = writeln!(text, "  … and {} more", human::count((files.len() - NAMED) as u64));
    }
    for ForgottenRows { source, by, to, mark } in rows {
        let _ = writeln!(
            text,
            "{sink} {verb} the rows of {source} with {by} from {to} up to {mark}: the next run reads \
                                them again"
        );
    }
    let _ = match loaded {
        LoadedRows::Stay | LoadedRows::StayWithUri => Ok(()),
        LoadedRows::Replaced => {
            writeln!(text, "  that run replaces the rows of the file by those that it has now, in one transaction")
        }
        LoadedRows::FoundByKey => writeln!(text, "  its rows are found in {target} by their key, so none comes twice"),
    };
    text
}
