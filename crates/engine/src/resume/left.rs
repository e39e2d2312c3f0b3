//! What earlier runs have left in the targets of sinks: collects the facts, and does what is decided about them.

use millstream_core::Result;
use millstream_core::sink::{KnownLoad, Ledger, LoadContext};
use millstream_job::SinkStep;

use super::decide::{self, Choice, Decision, Facts, Forget, LoadKind, OtherLoad, Written};
use super::names::LoadNames;
use super::point::ResumePoint;
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
        if !sink.sink.adds_rows() {
            return Ok(Marker::default());
        }
        self.be_the_only_run()?;
        let names = self.names(sink);
        let mut loads = Vec::new();
        for known in sink.sink.known_loads(context.clone()).await? {
            if let Some(run) = names.other_at_once(&known.load).map(str::to_owned) {
                loads.push(self.other_load(known, &run)?);
            }
        }
        let Choice { resumes, stale } = self.decide(sink, LoadKind::AtOnce, loads).choice?;
        Ok(Marker { load: Some(resumes.unwrap_or_else(|| names.at_once())), stale })
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
        let facts = Facts { kind, loads, target: &target, resume_command: &resume_command };
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
    let may_be_resumed = same_rules.and_then(|()| decide::same_job(fingerprints.compare_notes(&written)));
    Ok(Written { is_complete: says_complete(&written), may_be_resumed })
}
