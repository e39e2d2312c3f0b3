//! Why the units of a job are not read by workers. Only what is known to give the same rows is distributed.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use millstream_core::Unit;
use millstream_core::sink::FromWorkers;
use millstream_core::source::OnError;
use millstream_job::{Job, SinkStep};

use crate::chunks::pipeline::repeatable;
use crate::chunks::sinks;
use crate::plan::lookup::lookups;
use crate::plan::shared::Physical;
use crate::prepare::Prepared;
use crate::read::Reader;

/// The most bytes of a reference that each worker reads.
const LARGEST_REFERENCE: usize = 64 << 20;

/// Whether workers can read the units of `job`, which see the folders `shared` where this machine has them.
///
/// # Errors
/// Why not, in words that end a sentence.
pub fn hindrance(job: &Job, prepared: &Prepared<'_>, physical: &Physical, shared: &[PathBuf]) -> Result<(), String> {
    if job.sources.iter().any(|source| source.queue().is_some()) {
        return Err("it reads a queue, of which several processes can read by themselves".to_owned());
    }
    if job.around.throttle.in_words().is_some() {
        return Err("its `throttle` holds for one machine".to_owned());
    }
    if job.sinks.is_empty() {
        return Err("it has no sinks".to_owned());
    }
    if !physical.for_checks.is_empty() {
        return Err("some of its checks look at rows that go to no sink".to_owned());
    }
    let by_chunk = sinks::by_chunk(job, physical).map_err(|error| error.what().to_owned())?;
    for ((sink, root), by_chunk) in job.sinks.iter().zip(&physical.roots).zip(by_chunk) {
        let name = &sink.name.value;
        match (sink.sink.takes_of_workers(), by_chunk) {
            (FromWorkers::Chunks, Ok(_)) => {}
            (FromWorkers::Chunks, Err(why)) => return Err(format!("`{name}` is loaded all at once: {why}")),
            (FromWorkers::Files(folder), _) => of_files(job, sink, &root.plan, folder.as_deref(), shared)?,
            (FromWorkers::Nothing(why), _) => return Err(format!("`{name}` is written here: {why}")),
        }
    }
    if !job.sinks.iter().all(writes_files) && job.sinks.iter().any(writes_files) {
        return Err("some of its sinks write files, and others load into databases".to_owned());
    }
    prepared.readers.iter().try_for_each(|reader| of_reader(reader, job.reaches_sink(&reader.name), shared))
}

/// Whether workers write files for `sink`.
pub fn writes_files(sink: &SinkStep) -> bool {
    matches!(sink.sink.takes_of_workers(), FromWorkers::Files(_))
}

/// Whether workers can write the rows of `plan` into files of `sink`, below `folder`.
fn of_files(
    job: &Job,
    sink: &SinkStep,
    plan: &Arc<dyn ExecutionPlan>,
    folder: Option<&Path>,
    shared: &[PathBuf],
) -> Result<(), String> {
    let name = &sink.name.value;
    let refused = |why: &str| Err(format!("`{name}` writes files: {why}"));
    if let Err(why) = repeatable(plan) {
        return refused(&why);
    }
    if let Some((entry, _)) = job.checks().next() {
        return refused(&format!("a check of `{entry}` looks at all rows before they are published"));
    }
    if let Some(source) = sinks::incremental_sources(job, sink).next() {
        return refused(&format!("one machine notes which files of `{}` they have", source.name.value));
    }
    let mut sources = job.sources.iter().filter(|source| job.gives_rows_of(&sink.from.value, &source.name.value));
    if let Some(source) = sources.find(|source| source.on_error == OnError::Skip) {
        return refused(&format!("`on_error: skip` of `{}` leaves out files that cannot be opened", source.name.value));
    }
    match folder {
        Some(folder) if !is_shared(&folder.join("_").to_string_lossy(), shared) => refused(&format!(
            "workers write into {}; if all machines see this folder under the same path, name it with `--shared \
             FOLDER`, or under `cluster: shared:` in the machine file",
            folder.display()
        )),
        _ => Ok(()),
    }
}

/// Whether workers can read what `physical` looks up in, which this machine has read: each reads all of it with each
/// bundle.
///
/// # Errors
/// Why not, in words that end a sentence.
pub fn of_references(physical: &Physical) -> Result<(), String> {
    let mut lookups = physical.plans().flat_map(lookups);
    let large = lookups.find(|lookup| {
        let reference = lookup.shared().loaded();
        reference.is_none_or(|reference| reference.is_in_scratch() || reference.bytes() > LARGEST_REFERENCE)
    });
    large.map_or(Ok(()), |lookup| {
        let what = "each worker would read the whole reference with each bundle, and it is large";
        Err(format!("`{}` looks up in `{}`: {what}", lookup.shape().step, lookup.shape().reference))
    })
}

/// Whether what `reader` reads has locations that are valid on all machines. Of a source whose units are handed out
/// only this machine needs the lists.
///
/// # Errors
/// Why not, in words that end a sentence.
pub fn of_reader(reader: &Arc<Reader>, is_handed_out: bool, shared: &[PathBuf]) -> Result<(), String> {
    for pattern in reader.patterns.iter().filter(|pattern| !(is_handed_out && pattern.starts_with('@'))) {
        let place = pattern.strip_prefix('@').unwrap_or(pattern);
        let is_local = reader.source_of(place).is_ok_and(|source| source.is_local());
        if is_local && !is_shared(place, shared) {
            return Err(format!(
                "`{}` reads {place} of this machine; if all machines see its folder under the same path, name that \
                 with `--shared FOLDER`, or under `cluster: shared:` in the machine file",
                reader.name
            ));
        }
    }
    Ok(())
}

/// Whether workers can open `unit`, which a list may have named.
pub fn is_valid_everywhere(reader: &Reader, unit: &Unit, shared: &[PathBuf]) -> bool {
    reader.source_of(&unit.uri).is_ok_and(|source| !source.is_local()) || is_shared(&escaped(&unit.uri), shared)
}

/// A path without what would be a wildcard in a pattern.
fn escaped(path: &str) -> String {
    path.replace(['*', '?', '[', '{'], "_")
}

/// Whether `pattern` is below one of the folders `shared`.
fn is_shared(pattern: &str, shared: &[PathBuf]) -> bool {
    let absolute = |path: &Path| std::path::absolute(path).ok();
    // Of a pattern only the folders before its first wildcard are a path.
    let fixed = match pattern.find(['*', '?', '[', '{']) {
        Some(wildcard) => pattern[..wildcard].rfind('/').map_or("", |slash| &pattern[..=slash]),
        None => pattern,
    };
    if Path::new(pattern).components().any(|part| part == Component::ParentDir) {
        return false;
    }
    let Some(place) = absolute(Path::new(if fixed.is_empty() { "." } else { fixed })) else { return false };
    shared.iter().filter_map(|folder| absolute(folder)).any(|folder| place.starts_with(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_a_shared_folder_is_shared() {
        let shared = [PathBuf::from("/mnt/data")];
        for pattern in ["/mnt/data/a.csv", "/mnt/data/*/b.csv", "/mnt/data/x{1..3}.gz"] {
            assert!(is_shared(pattern, &shared), "{pattern}");
        }
        for pattern in [
            "/mnt/dat*/a.csv",
            "/mnt/database/a.csv",
            "/mnt/data*/a.csv",
            "/mnt/data{1,2}/a.csv",
            "/mnt/data/../a.csv",
            "a.csv",
            "*.csv",
            "/mnt/*.csv",
        ] {
            assert!(!is_shared(pattern, &shared), "{pattern}");
        }
        let here = std::env::current_dir().expect("it is there");
        assert!(is_shared("*.csv", std::slice::from_ref(&here)) && is_shared("a/b.csv", &[here]));
    }
}
