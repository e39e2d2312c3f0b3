//! Targets that may forget by themselves how far a queue was read, as brokers of Kafka do when a job stands still for
//! a week: its rows would all be written once more. The state folder knows whether the load has begun before.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream_core::epochs::EpochTarget;
use millstream_core::positions::Positions;
use millstream_core::{Error, Result};
use millstream_state::BegunLoad;

use crate::resume::ResumePoint;

/// How long a run that ends waits for what its target knows.
const PATIENCE: Duration = Duration::from_secs(2);

/// The load of a sink, as the state folder knows it.
pub(super) struct KnownLoad {
    /// `None` if the target forgets nothing, or there is no state folder.
    kept: Option<Kept>,
    /// It has begun before, was forgotten by the target, and begins anew.
    pub(super) begins_anew: bool,
}

/// A load whose target may forget it.
struct Kept {
    begun: BegunLoad,
    positions: Arc<dyn Positions>,
    /// The places that are noted; `None` if nothing is.
    noted: Mutex<Option<BTreeSet<String>>>,
}

impl KnownLoad {
    /// The load `load` of the run at `point` into `target`. With `--restart` it begins anew if that has forgotten it.
    ///
    /// # Errors
    /// If it has begun before, and the target lacks positions of it.
    pub(super) async fn find(point: &ResumePoint, load: &str, target: &EpochTarget) -> Result<Self> {
        let kept = target.positions().and_then(|positions| Some((positions, positions.may_expire_in()?)));
        let (Some((positions, place)), Some(state)) = (kept, point.state_folder()) else {
            return Ok(KnownLoad { kept: None, begins_anew: false });
        };
        let begun = BegunLoad::new(state, load);
        let noted = begun.noted()?;
        let there = places(positions.as_ref()).await?;
        let is_gone = noted.as_ref().is_some_and(|noted| there.is_empty() || !noted.is_subset(&there));
        if is_gone && !point.options.restart {
            return Err(is_forgotten(&target.epochs().target(), &place));
        }
        if is_gone {
            begun.forget()?;
        }
        let kept = Kept { begun, positions: Arc::clone(positions), noted: Mutex::new(noted.filter(|_| !is_gone)) };
        if !there.is_empty() {
            kept.note(there);
        }
        Ok(KnownLoad { kept: Some(kept), begins_anew: is_gone })
    }

    /// Something of it is written.
    pub(super) fn has_begun(&self) {
        self.kept.iter().for_each(|kept| kept.note(BTreeSet::new()));
    }

    /// The run has ended: what the target knows now must be there when the next one begins.
    pub(super) async fn ends(&self) {
        let Some(kept) = &self.kept else { return };
        // What cannot be read now has been noted when the run began, or is noted by a later one.
        if let Ok(Ok(there)) = tokio::time::timeout(PATIENCE, places(kept.positions.as_ref())).await
            && !there.is_empty()
        {
            kept.note(there);
        }
    }
}

impl Kept {
    /// Notes these places, beside those that are noted. What cannot be noted now is noted with later rows.
    fn note(&self, more: BTreeSet<String>) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = noted.clone().unwrap_or_default();
        all.extend(more);
        if noted.as_ref() != Some(&all) && self.begun.note(all.clone()).is_ok() {
            *noted = Some(all);
        }
    }
}

/// The places whose positions a target has.
async fn places(positions: &dyn Positions) -> Result<BTreeSet<String>> {
    Ok(positions.read().await?.into_iter().map(|position| position.place).collect())
}

/// The error of `--restart` where no target has forgotten the load.
pub(super) fn nothing_to_restart() -> Error {
    Error::job("a queue is not loaded anew by `--restart`: its position moves with the rows")
        .hint("to load what the queue still has once more, give the job another `group`")
}

/// The error if positions are gone that were kept in `place`.
fn is_forgotten(target: &str, place: &str) -> Error {
    Error::refused(format!("it is not known any more how far the queue was read into {target}"))
        .cause(format!("the job has written to it before, and {place} lacks positions that it had"))
        .hint(
            "brokers drop them when a job has stood still for `offsets.retention.minutes`, a week by default. \
             `--restart` begins at `start` of the source, as if for the first time: with `earliest`, all messages \
             that are still there are written once more",
        )
}
