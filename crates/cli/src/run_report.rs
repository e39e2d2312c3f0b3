//! `millstream report`: what a run printed at its end, again, or the same and more as a page.

use std::io::{IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use millstream::history::{Outcome, RunHistory, RunKind, RunRecord};
use millstream::{Error, Failure, Result};
use serde_json::json;

use crate::arguments::{self, Global};
use crate::output::Output;
use crate::{report, runs};

/// Shows the report of a run.
pub fn show(global: &Global, output: Output, asked: &arguments::Report) -> Result<(), Failure> {
    let history = runs::history(global)?;
    let run = runs::find(&history, None, &asked.run)?;
    match &asked.html {
        Some(file) => page(output, &history, &run, file.as_deref())?,
        None if output.json => as_json(output, &run)?,
        None => as_text(output, &history, &run, asked.verbose)?,
    }
    Ok(())
}

/// The report as it was printed. Of a run that has none, or one of a version that printed something else, what is
/// known.
fn as_text(output: Output, history: &RunHistory, run: &RunRecord, verbose: bool) -> Result<()> {
    // Colours are for standard error otherwise.
    let output = Output { colors: output.colors && std::io::stdout().is_terminal(), ..output };
    let is_job = run.outcome == Outcome::Done && run.kind == RunKind::Job;
    let stored = run.report.clone().filter(|_| is_job);
    match stored.map(serde_json::from_value) {
        Some(Ok(stored)) => output.result(&report::report(output, &stored, verbose)),
        _ => output.result(&runs::described(history, run, history.done_before(run)?.as_ref())?),
    }
}

fn as_json(output: Output, run: &RunRecord) -> Result<()> {
    match runs::to_show(run).report {
        Some(report) => output.json(&report),
        None => {
            let error = Error::job(format!("run {} has no report", run.run)).cause(match run.outcome {
                Outcome::Running => "it is running",
                Outcome::Skipped => "it was skipped",
                _ => "it ended before it could write one",
            });
            let name = &run.run;
            let hint = format!("`millstream runs {name}` and `millstream report {name} --html` show what is known");
            Err(error.hint(hint))
        }
    }
}

/// Writes the page to `file`, or to a file with the name of the run.
fn page(output: Output, history: &RunHistory, run: &RunRecord, file: Option<&Path>) -> Result<()> {
    let is_output = file == Some(Path::new("-"));
    if is_output && output.json {
        return Err(Error::job("both the page and its path would go to standard output")
            .hint("leave out `--json`, or write the page to a file"));
    }
    let page = millstream_page::html(history, run, None)?;
    if is_output {
        return output.result(&page);
    }
    let path = file.map_or_else(|| PathBuf::from(format!("{}.html", run.run)), Path::to_owned);
    write(&path, &page)
        .map_err(|cause| Error::io(format!("the page cannot be written to {}", path.display()), &cause))?;
    let shown = path.display().to_string();
    match output.json {
        true => output.json(&json!({"run": run.run, "page": shown})),
        false => output.result(&format!("{shown}\n")),
    }
}

/// Writes a file that appears as a whole, or not at all. What is no file (a pipe, a device) is written to as it is.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    // Where a link leads.
    let path = fs_err::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if path.exists() && !path.is_file() {
        return fs_err::write(&path, text);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // As the system's mask has it.
    let rights = std::fs::Permissions::from_mode(0o666);
    let mut file = tempfile::Builder::new().prefix(".page-").permissions(rights).tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.persist(&path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_replaces_a_file_and_follows_links() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let (path, link) = (folder.path().join("a.html"), folder.path().join("link.html"));
        write(&path, "one").expect("written");
        fs_err::os::unix::fs::symlink(&path, &link).expect("a link");
        write(&link, "two").expect("written");
        assert_eq!(fs_err::read_to_string(&path).expect("a file"), "two");
        assert!(fs_err::symlink_metadata(&link).expect("a link").is_symlink());
        let names = fs_err::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(names, 2, "nothing else is left");
        assert!(write(&folder.path().join("no/such/folder.html"), "x").is_err());
        assert!(write(folder.path(), "x").is_err(), "a folder");
    }
}
