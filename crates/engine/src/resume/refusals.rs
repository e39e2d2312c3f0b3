//! Why a run is refused for what earlier runs of its job have left.

use millstream_core::Error;
use millstream_core::sink::KnownLoad;
use millstream_state::RunRecord;

/// An error that waiting does not change.
fn lasting(what: impl Into<String>) -> Error {
    Error::refused(what).lasting()
}

/// The last run has not ended.
pub fn still_running(last: &RunRecord) -> Error {
    Error::refused("the last run of this job is still running")
        .cause(format!("run {} in process {}", last.run, last.process))
        .hint("wait until it has ended, or end it")
}

/// The run to be resumed has a fingerprint of a newer version.
pub fn is_newer() -> Error {
    lasting("the last run of this job was made by a newer version of Millstream")
        .cause("this version cannot find out whether the job has changed since then")
        .hint("upgrade Millstream; `--restart` would load all rows a second time")
}

/// What is said of a job that has changed since the run that it is to resume.
pub const HAS_CHANGED: &str = "the job has changed since the run to be resumed";

/// The run to be resumed gave other rows. Of the files of its code, these are known to have changed.
pub fn has_changed(files: &[String]) -> Error {
    let cause = match files {
        [] => "its sources, columns, steps, their code or targets differ, so its rows may differ".to_owned(),
        files => format!("the code differs, so its rows may differ: {}", files.join(", ")),
    };
    lasting(HAS_CHANGED).cause(cause).hint("undo the change, or start again with `--restart`")
}

/// The last run is done, and its rows are gone. `lost` says what the target of `sink` lacks, `path` is the job's.
pub fn is_lost(sink: &str, lost: &str, path: &str) -> Error {
    lasting(format!("the last run of this job loaded everything, but {lost}"))
        .in_step(sink)
        .hint(format!("restore it, or load everything again: `millstream run {path}`"))
}

/// The last run is done, and `what` says what differs since. `path` is the job's.
pub fn differs_since_the_end(what: &str, path: &str) -> Error {
    lasting(format!("the last run of this job loaded everything, and {what} since"))
        .cause("loading it again would duplicate the rows")
        .hint(format!(
            "with `incremental: true` at its sources a job loads only files that are new; `millstream run {path}` \
             loads everything"
        ))
}

/// A load that has all of its rows in the target, of a run that has not come to its end.
pub fn is_there(target: &str, resume: &str) -> Error {
    lasting("an earlier run of this job has loaded all of its rows, but is unfinished")
        .cause(format!("{target} has its commit marker"))
        .hint(format!("{resume} completes it and adds no row twice; `--restart` loads all rows a second time"))
}

/// A load whose run has connections.
pub fn is_loading(connections: &[String]) -> Error {
    Error::refused("another run of this job is loading now")
        .cause(connections.join(", "))
        .hint("wait until it has ended; if it never ends, `--resume` ends its connections and resumes the load")
}

/// A load of which a part is in the target.
pub fn is_unfinished(load: &KnownLoad, target: &str, resume: &str) -> Error {
    lasting("an earlier run of this job is unfinished")
        .cause(format!("{} chunks of its rows are in {target}", load.chunks))
        .hint(format!("{resume} loads the rest; `--restart` starts again and keeps the rows already loaded"))
}

/// A load of which a part is in the target, chunk by chunk, and which would go all at once now.
pub fn has_begun_by_chunk(load: &KnownLoad, target: &str) -> Error {
    lasting("an earlier run of this job has loaded some of its rows chunk by chunk, and this run loads all at once")
        .cause(format!("{} chunks of its rows are in {target}", load.chunks))
        .hint(
            "undo what has changed that (`millstream explain` says why a load goes all at once), or start again with \
             `--restart`, which keeps the rows already loaded",
        )
}

/// The resume chain `first` has loaded `rows` rows, of which the ledgers have no record.
pub fn is_forgotten(first: &str, rows: u64) -> Error {
    lasting("the target has no record of what the run to be resumed has loaded")
        .cause(format!(
            "run {first} has loaded {rows} rows; since then a run on another machine or with another state folder has \
             completed the load, or the table `_millstream_ledger` was dropped, or the server has lost what it had \
             committed"
        ))
        .hint("check whether all rows are there; without `--resume` they are all loaded again, in addition to those")
}
