//! `millstream forget`: lets sinks forget what they have loaded, and says what becomes of its rows.

use std::fmt::Write as _;

use futures::executor::block_on;
use millstream::Failure;
use millstream::forget::{ForgetOptions, Forgotten, ForgottenBy, ForgottenFile, ForgottenRows, LoadedRows};

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
        false => output.result(&described(output, &forgotten))?,
    }
    Ok(())
}

fn described(output: Output, forgotten: &Forgotten) -> String {
    let mut text = String::new();
    for by in &forgotten.sinks {
        text.push_str(&of_sink(output, by, forgotten.dry_run));
    }
    for name in &forgotten.not_found {
        let _ = writeln!(text, "{} no sink has loaded {name}", output.paint(Role::Hint, "warning:"));
    }
    text
}

fn of_sink(output: Output, by: &ForgottenBy, dry_run: bool) -> String {
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
    let warning = output.paint(Role::Hint, "warning:");
    let stay = format!(
        "{warning} the rows that are loaded of this stay in {target}, and come a second time unless you \
                        delete them"
    );
    let _ = match loaded {
        LoadedRows::Stay => writeln!(text, "{stay} before the next run"),
        LoadedRows::StayWithUri => writeln!(text, "{stay} before the next run, where `_uri` is the file"),
        LoadedRows::Replaced => writeln!(
            text,
            "  that run deletes the rows of the file, and inserts those that it has \
                                                now, in one transaction"
        ),
        LoadedRows::FoundByKey => writeln!(text, "  its rows are found in {target} by their key, so none comes twice"),
    };
    text
}
