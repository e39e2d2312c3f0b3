//! Files that workers write. What a bundle has come to counts once, by its lease: the load of the run adopts its files,
//! and what was counted and rejected on the way is added to the run's own.
//!
//! ```text
//!  worker:       bundle ─▶ files under hidden names ─▶ handed over, with its counts and rejects
//!  coordinator:                                        counted: adopted, or discarded ─▶ commit
//! ```
//! `millstream-sink` has the files themselves.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_core::sink::Load;
use millstream_core::spec::Size;
use millstream_core::step::StepSnapshot;
use millstream_core::{Budget, Error, Reservation, Result, StepKind, Steps};
use millstream_job::Job;
use millstream_state::rejects::{Line, RejectLine};

use super::task::{ForSink, OfFiles, to_value};
use crate::read::Reader;
use crate::rejects::{Entry, Rejects};
use crate::report::Tally;
use crate::run::sinks::AtOnce;

/// The most bytes of rejects of a bundle, which a worker holds until it hands them over.
const MOST_REJECTED: usize = 16 << 20;

/// What `loads` have got, whose writers are closed, with what was rejected on the way.
///
/// # Errors
/// If it cannot be made durable; if more was rejected than a worker holds.
pub(super) async fn hand_over(
    loads: &[AtOnce<'_>],
    readers: &[Arc<Reader>],
    rejects: &RejectsOfBundle,
) -> Result<OfFiles> {
    let mut of_files = OfFiles { rejects: rejects.take(), ..OfFiles::default() };
    for (done, load) in loads.iter().enumerate() {
        let tally = load.tally()?.ok_or_else(|| Error::internal("rows of a bundle are not counted"))?;
        match load.load.hand_over().await {
            Ok(handed) => drop(of_files.sinks.insert(load.name().to_owned(), ForSink { handed, tally })),
            Err(error) => {
                for load in &loads[..done] {
                    if let Some(ForSink { handed, .. }) = of_files.sinks.remove(load.name()) {
                        load.load.discard(handed).await;
                    }
                }
                return Err(error.in_step(load.name()));
            }
        }
    }
    for reader in readers {
        of_files.filtered.insert(reader.name.clone(), reader.filtered.load(Ordering::Relaxed));
    }
    Ok(of_files)
}

/// What is rejected of a bundle, until that counts. It is charged to the memory of the run.
#[derive(Debug)]
pub(super) struct RejectsOfBundle(Mutex<Held>);

#[derive(Debug)]
struct Held {
    lines: Vec<RejectLine>,
    charged: Reservation,
}

impl RejectsOfBundle {
    /// None, whose memory is of `budget`.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn new(budget: &Arc<Budget>) -> Result<Self> {
        let charged = budget.try_reserve("what is rejected of files that a worker reads", 0)?;
        Ok(RejectsOfBundle(Mutex::new(Held { lines: Vec::new(), charged })))
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what is rejected of records for which `is_of` is true, by the names of their sources.
    ///
    /// # Errors
    /// If that is more than a worker holds.
    pub(super) fn keep(&self, lines: Vec<Line>, is_of: impl Fn(&str) -> bool) -> Result<()> {
        let mut held = self.held();
        for line in lines {
            let Line::Reject(line) = line else { continue };
            if line.rejected.source.as_deref().is_some_and(|source| !is_of(source)) {
                continue;
            }
            let bytes = to_value(&line)?.to_string().len();
            if held.charged.bytes() + bytes > MOST_REJECTED || !held.charged.try_grow(bytes) {
                let what = "more is rejected of some files than a worker holds until they are written";
                let cause = format!("it holds {} of rejects", Size(held.charged.bytes() as u64));
                return Err(Error::data(what).cause(cause).hint("run the job without `--cluster`"));
            }
            held.lines.push(*line);
        }
        Ok(())
    }

    /// Forgets what was kept so far.
    pub(super) fn clear(&self) {
        drop(self.take());
    }

    fn take(&self) -> Vec<RejectLine> {
        let mut held = self.held();
        let bytes = held.charged.bytes();
        held.charged.shrink(bytes);
        std::mem::take(&mut held.lines)
    }
}

/// The sinks of a run into whose files workers write.
pub(super) struct SharedFiles {
    loads: BTreeMap<String, Arc<dyn Load>>,
    /// What has become of the records that workers have brought.
    tallies: Mutex<BTreeMap<String, Tally>>,
    /// The entries whose rows go into the files, and that may reject something: no references.
    entries: Vec<Entry>,
}

impl SharedFiles {
    /// Those of `loads`, which have begun.
    pub(super) fn of(job: &Job, loads: &[&AtOnce<'_>]) -> Self {
        let steps = job.sources.iter().map(|source| &source.name.value);
        let steps = steps.chain(job.transforms.iter().map(|step| &step.name.value));
        let steps = steps.filter(|step| job.reaches_sink(step)).cloned().map(Entry::Step);
        let sinks = job.sinks.iter().map(|sink| Entry::Sink(sink.name.value.clone()));
        SharedFiles {
            loads: loads.iter().map(|load| (load.name().to_owned(), Arc::clone(&load.load))).collect(),
            tallies: Mutex::default(),
            entries: steps.chain(sinks).collect(),
        }
    }

    fn tallies(&self) -> MutexGuard<'_, BTreeMap<String, Tally>> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has become of the records that workers have brought to `sink`.
    pub(super) fn tally(&self, sink: &str) -> Tally {
        self.tallies().get(sink).copied().unwrap_or_default()
    }

    /// Adopts what has come of a bundle. Returns how many rows that are.
    ///
    /// # Errors
    /// If a sink cannot adopt its files; if more was rejected than the job allows.
    pub(super) async fn count(
        &self,
        of_files: OfFiles,
        counted: &[StepSnapshot],
        came: &HashMap<String, u64>,
        (steps, readers, rejects): (&Steps, &[Arc<Reader>], &Rejects),
    ) -> Result<u64> {
        let mut rows = 0;
        for (sink, ForSink { handed, tally }) in of_files.sinks {
            let load = self.loads.get(&sink).ok_or_else(|| Error::internal(format!("`{sink}` takes no files")))?;
            load.adopt(handed).await.map_err(|error| error.in_step(&sink))?;
            let mut tallies = self.tallies();
            let sum = tallies.entry(sink).or_default();
            *sum = sum.and(tally);
            rows += tally.written;
        }
        let own = steps.all();
        for step in counted.iter().filter(|step| self.entries.iter().any(|entry| entry.name() == step.name)) {
            let Some(own) = own.iter().find(|own| own.name == step.name && own.kind == step.kind) else { continue };
            match step.kind {
                StepKind::Fetch => {
                    own.expect(step.units, 0);
                    own.add_units(step.units);
                }
                StepKind::Parse | StepKind::Load => {
                    own.add_rows(step.rows);
                    own.add_rejected(step.rejected);
                    own.add_passed_over(step.passed_over);
                }
                StepKind::Transform => own.add_rejected(step.rejected),
                _ => {}
            }
        }
        for reader in readers {
            let filtered = of_files.filtered.get(&reader.name).copied().unwrap_or_default();
            reader.filtered.fetch_add(filtered, Ordering::Relaxed);
        }
        rejects.carry_over(came, &self.entries);
        of_files.rejects.iter().for_each(|line| rejects.count_earlier(&line.rejected));
        rejects.keep(of_files.rejects.into_iter())?;
        rejects.passed()?;
        Ok(rows)
    }

    /// Removes the files of a bundle that does not count.
    pub(super) async fn discard(&self, of_files: OfFiles) {
        for (sink, ForSink { handed, .. }) in of_files.sinks {
            if let Some(load) = self.loads.get(&sink) {
                load.discard(handed).await;
            }
        }
    }
}
