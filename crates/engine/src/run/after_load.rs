//! What becomes of files once they are loaded (`after_load`): they are moved or deleted when the run is recorded. Which
//! files: those that every sink of their source has completely, now or since an earlier run, and of which no record was
//! rejected. The targets know which files have rejects, and the reject log which of these were loaded later. The report
//! names files that cannot be moved, and the next run tries again.

use std::collections::{HashMap, HashSet};

use millstream_core::source::{Disposal, Source};
use millstream_core::{Result, Unit, fail_point};
use millstream_job::{AfterLoad, Job, SourceStep};
use millstream_state::rejects;

use super::commit::Entries;
use crate::chunks::units::{SettledUnit, number_of};
use crate::context::RunContext;
use crate::read::ready::marker_unit;
use crate::report::{DisposedFiles, LeftFile};
use crate::resume::ResumePoint;

/// The most files that are named.
const MOST_NAMED: usize = 10;

/// The units of a source that a sink has completely.
pub type Settled = (String, Vec<SettledUnit>);

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
        let result = match known_rejects(job, point) {
            Ok(rejected) => Disposing { run, source, after_load, rejected }.all(units).await,
            Err(error) => DisposedFiles::none(&source.name.value, units.len() as u64, error.what()),
        };
        disposed.extend(result.is_something().then_some(result));
    }
    disposed
}

/// The units of `source` that all sinks have which its rows go to, with the rejects that any of them has noted.
fn in_all_sinks(job: &Job, source: &SourceStep, settled: &[Settled]) -> Vec<SettledUnit> {
    let name = &source.name.value;
    let sinks = job.sinks.iter().filter(|sink| job.reads(&sink.from.value, name)).count();
    let mut counts: HashMap<&str, (usize, SettledUnit)> = HashMap::new();
    for SettledUnit { unit, rejected } in settled.iter().filter(|(of, _)| of == name).flat_map(|(_, units)| units) {
        let new = || (0, SettledUnit { unit: unit.clone(), rejected: Vec::new() });
        let (count, settled) = counts.entry(&unit.uri).or_insert_with(new);
        *count += 1;
        settled.rejected.extend(rejected);
    }
    let mut units: Vec<SettledUnit> =
        counts.into_values().filter(|(count, _)| *count == sinks).map(|(_, unit)| unit).collect();
    units.sort_by(|one, other| one.unit.uri.cmp(&other.unit.uri));
    units
}

/// What the reject log has of the runs of a job: by the name of a file and the number under which a target notes
/// rejects of it, whether some of these were not loaded later.
#[derive(Debug, Default)]
struct KnownRejects(HashMap<(String, u64), bool>);

impl KnownRejects {
    /// Whether targets have noted rejects of the unit that were not loaded later, or that the log does not have.
    fn concern(&self, SettledUnit { unit, rejected }: &SettledUnit) -> bool {
        let waits = |number: &u64| self.0.get(&(unit.name(), *number)).copied().unwrap_or(true);
        rejected.iter().any(waits)
    }
}

fn known_rejects(job: &Job, point: &ResumePoint) -> Result<KnownRejects> {
    let Some(state) = point.state_folder() else { return Ok(KnownRejects::default()) };
    let mut known = KnownRejects::default();
    for first in point.all_chains()? {
        for kept in rejects::of_run(state, &first)? {
            let Some(uri) = &kept.line.rejected.uri else { continue };
            for sink in &job.sinks {
                if let Some(number) = number_of(&kept, &sink.name.value, &first) {
                    *known.0.entry((uri.clone(), number)).or_default() |= !kept.replayed;
                }
            }
        }
    }
    Ok(known)
}

struct Disposing<'a> {
    run: &'a RunContext,
    source: &'a SourceStep,
    after_load: &'a AfterLoad,
    rejected: KnownRejects,
}

impl Disposing<'_> {
    async fn all(&self, units: Vec<SettledUnit>) -> DisposedFiles {
        let mut result = DisposedFiles { source: self.source.name.value.clone(), ..DisposedFiles::default() };
        let mut markers = HashSet::new();
        fail_point::pass("after_load.before");
        for settled in units {
            let unit = &settled.unit;
            let left = match self.rejected.concern(&settled) {
                true => Some("some of its records were rejected: load or fix them first".to_owned()),
                false => self.one(unit, &mut markers).await.err().map(|error| match error.offending_text() {
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
