//! What a run that reads a queue does from time to time, however long it lives: it judges its rejects, and removes old
//! ones.

use std::time::Duration;

use millstream_core::Result;
use millstream_state::rejects::remove_old;
use tokio::time::Instant;

use crate::run::work::Work;

/// When each is due again.
pub(super) struct Chores {
    judging: Instant,
    removing: Instant,
}

impl Chores {
    pub(super) fn begin() -> Self {
        Chores { judging: Instant::now() + hour(), removing: Instant::now() }
    }

    /// Does what is due.
    ///
    /// # Errors
    /// If more was rejected in the last hours than the job allows.
    pub(super) fn do_due(&mut self, work: Work<'_, '_>) -> Result<()> {
        let now = Instant::now();
        if self.removing <= now {
            self.removing = now + remove_old_rejects(work).max(Duration::from_secs(1));
        }
        while self.judging <= now {
            self.judging += hour();
            work.run.rejects.hour_passed()?;
        }
        Ok(())
    }
}

/// Removes rejects of all runs of the job that it does not keep any more; after how long to look again.
fn remove_old_rejects(work: Work<'_, '_>) -> Duration {
    let (Some(rotation), Some(state)) =
        (work.run.rejects.log().and_then(|log| log.rotation()), work.point.state_folder())
    else {
        return Duration::from_secs(86_400);
    };
    // If the run history cannot be read now, it can be later.
    let chains = work.point.all_chains().unwrap_or_default();
    remove_old(state, &chains, rotation.keep);
    rotation.span()
}

/// An hour, in tests less.
fn hour() -> Duration {
    #[cfg(debug_assertions)]
    if let Some(milliseconds) = std::env::var("MILLSTREAM_HOUR_MS").ok().and_then(|text| text.parse().ok()) {
        return Duration::from_millis(milliseconds);
    }
    Duration::from_secs(3_600)
}
