//! Targets that may forget by themselves how far a queue was read, as brokers of Kafka do when a job stands still for
//! a week: its rows would all be written once more. The state folder knows whether the load has begun before.

use std::sync::atomic::{AtomicBool, Ordering};

use millstream_core::epochs::EpochTarget;
use millstream_core::{Error, Result};
use millstream_state::BegunLoad;

use crate::resume::ResumePoint;

/// The load of a sink, as the state folder knows it.
pub(super) struct KnownLoad {
    /// `None` if the target forgets nothing, or there is no state folder.
    begun: Option<BegunLoad>,
    is_noted: AtomicBool,
    /// It has begun before, was forgotten by the target, and begins anew.
    pub(super) begins_anew: bool,
}

impl KnownLoad {
    /// The load `load` of the run at `point` into `target`. With `--restart` it begins anew if that has forgotten it.
    ///
    /// # Errors
    /// If it has begun before, and the target has no positions of it any more.
    pub(super) async fn find(point: &ResumePoint, load: &str, target: &EpochTarget) -> Result<Self> {
        let kept = target.positions().and_then(|positions| Some((positions, positions.may_expire_in()?)));
        let (Some((positions, place)), Some(state)) = (kept, point.state_folder()) else {
            return Ok(KnownLoad { begun: None, is_noted: AtomicBool::new(false), begins_anew: false });
        };
        let begun = BegunLoad::new(state, load);
        let is_gone = begun.is_noted()? && positions.read().await?.is_empty();
        if is_gone && !point.options.restart {
            return Err(is_forgotten(&target.epochs().target(), &place));
        }
        if is_gone {
            begun.forget()?;
        }
        Ok(KnownLoad { begun: Some(begun), is_noted: AtomicBool::new(false), begins_anew: is_gone })
    }

    /// Something of it is written.
    pub(super) fn has_begun(&self) {
        let Some(begun) = &self.begun else { return };
        // What cannot be noted now is noted with later rows.
        if !self.is_noted.load(Ordering::Relaxed) && begun.note().is_ok() {
            self.is_noted.store(true, Ordering::Relaxed);
        }
    }
}

/// The error of `--restart` where no target has forgotten the load.
pub(super) fn nothing_to_restart() -> Error {
    Error::job("a queue is not loaded anew by `--restart`: its position moves with the rows")
        .hint("to load what the queue still has once more, give the job another `group`")
}

/// The error if positions are gone that were kept in `place`.
fn is_forgotten(target: &str, place: &str) -> Error {
    Error::refused(format!("it is not known any more how far the queue was read into {target}"))
        .cause(format!("the job has written to it before, and {place} has no positions any more"))
        .hint(
            "brokers drop them when a job has stood still for `offsets.retention.minutes`, a week by default. \
             `--restart` begins at `start` of the source, as if for the first time: with `earliest`, all messages \
             that are still there are written once more",
        )
}
