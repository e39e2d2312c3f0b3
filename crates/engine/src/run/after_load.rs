//! What becomes of files once they are loaded (`after_load`): they are moved or deleted when the run is recorded. Which
//! files: those that every sink of their source has completely, now or since an earlier run, and of which no record was
//! rejected. The report names files that cannot be moved, and the next run tries again.

use std::collections::{HashMap, HashSet};

use millstream_core::source::{Disposal, Source};
use millstream_core::{Result, Unit, fail_point};
use millstream_job::{AfterLoad, Job, SourceStep};
use millstream_state::rejects;

use super::commit::Entries;
use crate::context::RunContext;
use crate::read::ready::marker_unit;
use crate::report::{DisposedFiles, LeftFile};
use crate::resume::ResumePoint;

/// The most files that are named.
const MOST_NAMED: usize = 10;

/// The units of a source that a sink has completely.
pub type Settled = (String, Vec<Unit>);

/// Moves or deletes the files of all sources that say so.
pub(super) async fn dispose(
    run: &RunContext,
    job: &Job,
    point: &ResumePoint,
    settled: Vec<Settled>,
) -> Vec<DisposedFiles> {
    let sources = job.sources.iter().filter_map(|source| Some((source, source.after_load.as_ref()?)));
    let mut disposed = Vec::new();
    if point.is_replay() {
        return disposed;
    }
    for (source, after_load) in sources {
        let units = in_all_sinks(job, source, &settled);
        if units.is_empty() {
            continue;
        }
        let result = match rejected(point) {
            Ok(rejected) => Disposing { run, source, after_load, rejected }.all(units).await,
            Err(error) => DisposedFiles::none(&source.name.value, units.len() as u64, error.what()),
        };
        disposed.extend(result.is_something().then_some(result));
    }
    disposed
}

/// The units of `source` that all sinks have which its rows go to.
fn in_all_sinks(job: &Job, source: &SourceStep, settled: &[Settled]) -> Vec<Unit> {
    let name = &source.name.value;
    let sinks = job.sinks.iter().filter(|sink| job.reads(&sink.from.value, name)).count();
    let mut counts: HashMap<&str, (usize, &Unit)> = HashMap::new();
    for unit in settled.iter().filter(|(of, _)| of == name).flat_map(|(_, units)| units) {
        counts.entry(&unit.uri).or_insert((0, unit)).0 += 1;
    }
    let mut units: Vec<Unit> =
        counts.into_values().filter(|(count, _)| *count == sinks).map(|(_, unit)| unit.clone()).collect();
    units.sort_by(|one, other| one.uri.cmp(&other.uri));
    units
}

/// The names of the files that have rejects which were not loaded later.
fn rejected(point: &ResumePoint) -> Result<HashSet<String>> {
    let Some(state) = point.state_folder() else { return Ok(HashSet::new()) };
    let mut names = HashSet::new();
    for first in point.all_chains()? {
        let kept = rejects::of_run(state, &first)?.into_iter().filter(|kept| !kept.replayed);
        names.extend(kept.filter_map(|kept| kept.line.rejected.uri));
    }
    Ok(names)
}

struct Disposing<'a> {
    run: &'a RunContext,
    source: &'a SourceStep,
    after_load: &'a AfterLoad,
    rejected: HashSet<String>,
}

impl Disposing<'_> {
    async fn all(&self, units: Vec<Unit>) -> DisposedFiles {
        let mut result = DisposedFiles { source: self.source.name.value.clone(), ..DisposedFiles::default() };
        let mut markers = HashSet::new();
        fail_point::pass("after_load.before");
        for unit in units {
            let left = match self.rejected.contains(&unit.name()) {
                true => Some("some of its records were rejected: load or fix them first".to_owned()),
                false => self.one(&unit, &mut markers).await.err().map(|error| match error.offending_text() {
                    Some(text) => format!("{}: {text}", error.what()),
                    None => error.what().to_owned(),
                }),
            };
            match (left, self.after_load) {
                (None, AfterLoad::Delete) => result.deleted += 1,
                (None, AfterLoad::Move(_)) => result.moved += 1,
                (Some(what), _) => {
                    result.left += 1;
                    if result.first_left.len() < MOST_NAMED {
                        result.first_left.push(LeftFile { uri: unit.name(), what });
                    }
                }
            }
            fail_point::pass("after_load.next");
        }
        result
    }

    /// Moves or deletes a file, and its marker unless that is one of `markers`, which went with other files.
    async fn one(&self, unit: &Unit, markers: &mut HashSet<String>) -> Result<()> {
        let how = match self.after_load {
            AfterLoad::Delete => Disposal::Delete,
            AfterLoad::Move(folder) => {
                let patterns = self.source.read.iter().map(|pattern| pattern.value.clone()).collect();
                Disposal::Move { folder: folder.clone(), patterns }
            }
        };
        let context = self.run.source_context(std::sync::Arc::default());
        let Some(source) = self.local() else {
            return Err(millstream_core::Error::internal("no source has the files of this machine"));
        };
        source.dispose(&context, unit, &how).await?;
        // A file of the same name that comes later is not ready by the marker of this one.
        let marker = self.source.ready.marker.as_ref().and_then(|marker| marker_unit(marker, &unit.uri));
        if let Some(marker) = marker.filter(|marker| !markers.contains(&marker.uri)) {
            let marker = source.look(&context, &marker).await?;
            source.dispose(&context, &marker, &how).await?;
            markers.insert(marker.uri);
        }
        Ok(())
    }

    fn local(&self) -> Option<&std::sync::Arc<dyn Source>> {
        self.source.inputs.iter().find(|(entry, _)| entry.schemes.contains(&"")).map(|(_, source)| source)
    }
}

impl Entries {
    /// The units that each sink has completely.
    pub(super) fn take_settled(&mut self) -> Vec<Settled> {
        std::mem::take(&mut self.settled)
    }
}
