//! What earlier runs have left in the targets of sinks: collects the facts, and does what is decided about them.

use millstream_core::Result;
use millstream_core::sink::{KnownLoad, Ledger, LoadContext};
use millstream_job::SinkStep;

use super::decide::{self, Choice, Decision, Facts, Forget, LoadKind, OtherLoad, Written};
use super::names::LoadNames;
use super::point::ResumePoint;
use super::refusals;
use crate::chunks::load::{check_rules, says_complete};
use crate::fingerprint::Fingerprints;

/// The commit marker of a load that goes all at once.
#[derive(Debug, Default)]
pub struct Marker {
    /// The name of the load that this run has, or resumes; `None` if the target needs no marker.
    pub load: Option<String>,
    /// Loads of earlier runs, to be forgotten once this one is done.
    pub stale: Vec<String>,
}

impl ResumePoint {
    /// The commit marker of the load of `sink` that goes all at once.
    pub async fn marker(&self, sink: &SinkStep, context: &LoadContext) -> Result<Marker> {
        if !sink.sink.leaves_marker() {
            return Ok(Marker::default());
        }
        self.be_the_only_run()?;
        let names = self.names(sink);
        let known = sink.sink.known_loads(context.clone()).await?;
        self.refuse_begun_by_chunk(sink, &names, &known)?;
        let loads = self.others_at_once(&names, known)?;
        let Choice { resumes, stale } = self.decide(sink, LoadKind::AtOnce, loads).choice?;
        Ok(Marker { load: Some(resumes.unwrap_or_else(|| names.at_once())), stale })
    }

    /// Whether the load of `sink`, which can go chunk by chunk, goes all at once, since an earlier run has begun it so:
    /// its rows may be there already, and the ledger does not say of which chunks.
    pub async fn has_begun_at_once(&self, sink: &SinkStep, context: &LoadContext) -> Result<bool> {
        self.be_the_only_run()?;
        let asked = self.asked();
        if asked.replay || asked.restart {
            return Ok(false);
        }
        let names = self.names(sink);
        let known = sink.sink.known_loads(context.clone()).await?;
        if known.iter().any(|load| load.load == names.at_once()) {
            return Ok(true);
        }
        let has_some = |name: &str| {
            known.iter().any(|load| load.load == name && (load.chunks > 0 || !load.connections.is_empty()))
        };
        let choice = self.decide(sink, LoadKind::AtOnce, self.others_at_once(&names, known.clone())?).choice;
        // A load that is refused fails when it begins, with the reason.
        Ok(choice.map_or(true, |choice| choice.resumes.is_some_and(|load| has_some(&load))))
    }

    /// The loads of other runs among `known` that go all at once.
    fn others_at_once(&self, names: &LoadNames, known: Vec<KnownLoad>) -> Result<Vec<OtherLoad>> {
        let mut loads = Vec::new();
        for known in known {
            if let Some(run) = names.other_at_once(&known.load).map(str::to_owned) {
                loads.push(self.other_load(known, &run)?);
            }
        }
        Ok(loads)
    }

    /// Refuses to load all at once what an earlier run has loaded a part of, chunk by chunk.
    fn refuse_begun_by_chunk(&self, sink: &SinkStep, names: &LoadNames, known: &[KnownLoad]) -> Result<()> {
        let asked = self.asked();
        if asked.replay || asked.restart {
            return Ok(());
        }
        for load in known.iter().filter(|load| load.chunks > 0) {
            let is_open = match names.other_by_chunk(&load.load) {
                Some(run) if self.is_done(run)? => false,
                Some(run) => decide::is_in_the_way(run, load.idle_seconds, [self.first(), &self.run], asked),
                None => load.load == names.by_chunk(),
            };
            if is_open {
                return Err(refusals::has_begun_by_chunk(load, &sink.sink.target()));
            }
        }
        Ok(())
    }

    /// Decides about the loads of other runs that are in the ledger of `sink`, and forgets what is to be forgotten now.
    pub(super) async fn choose(
        &self,
        sink: &SinkStep,
        kind: LoadKind,
        ledger: &dyn Ledger,
        names: &LoadNames,
        fingerprints: &Fingerprints,
    ) -> Result<Choice> {
        let mut loads = Vec::new();
        if kind != LoadKind::Incremental {
            for known in ledger.loads().await? {
                let run = match kind {
                    LoadKind::Round => names.other_round(&known.load),
                    _ => names.other_by_chunk(&known.load),
                };
                let Some(run) = run.map(str::to_owned) else { continue };
                let mut other = self.other_load(known, &run)?;
                if kind == LoadKind::ByChunk && other.is_open(self.asked()) {
                    other.written = Some(written(ledger, &other.known.load, fingerprints).await?);
                }
                loads.push(other);
            }
        }
        let Decision { forget, choice } = self.decide(sink, kind, loads);
        for load in forget {
            match load {
                Forget::Always(load) => ledger.forget(&load).await?,
                Forget::Unwritten(load) => drop(ledger.forget_unwritten(&load).await),
            }
        }
        choice
    }

    fn decide(&self, sink: &SinkStep, kind: LoadKind, loads: Vec<OtherLoad>) -> Decision {
        let (target, resume_command) = (sink.sink.target(), self.resume_command());
        let adds_rows = sink.sink.adds_rows();
        let facts = Facts { kind, adds_rows, loads, target: &target, resume_command: &resume_command };
        decide::decide(facts, self.asked())
    }

    fn other_load(&self, known: KnownLoad, run: &str) -> Result<OtherLoad> {
        Ok(OtherLoad { known, has_died: self.has_died(run), is_done: self.is_done(run)?, written: None })
    }
}

/// What is written of `load`.
async fn written(ledger: &dyn Ledger, load: &str, fingerprints: &Fingerprints) -> Result<Written> {
    let written = ledger.written_of(load).await?;
    let same_rules = check_rules(&written, &ledger.target());
    let may_be_resumed = same_rules.and_then(|()| decide::same_job(fingerprints.compare_notes(&written), &[]));
    Ok(Written { is_complete: says_complete(&written), may_be_resumed })
}
