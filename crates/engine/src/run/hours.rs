//! The hours of the day in which a job runs: a run waits for them, and is cancelled when they end, to be resumed later.
//!
//! The clock is looked at each second: it may be set, and a machine that sleeps does not count the time.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::Duration;

use millstream_core::{Error, Result, clock};
use millstream_job::Around;

use super::work::interruption;
use crate::options::Cancel;

/// How often the clock is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// What the clock shows.
fn now() -> i64 {
    i64::try_from(clock::now()).unwrap_or(i64::MAX)
}

/// Waits until the job may run. `tell` gets its hours, and when they begin, if it has to wait; what it returns is kept
/// until then.
pub(super) fn wait<T>(around: &Around, cancel: &Cancel, tell: impl Fn(String, String) -> T) -> Result<()> {
    let mut told = None;
    while let Some(until) = around.closed_until(now()) {
        told.get_or_insert_with(|| tell(around.hours.map(String::from).unwrap_or_default(), until.text()));
        pause(LOOK, cancel)?;
    }
    Ok(())
}

/// Waits for `time`, unless the run is cancelled.
pub(super) fn pause(time: Duration, cancel: &Cancel) -> Result<()> {
    let failed = |cause: std::io::Error| Error::io("the run cannot wait", &cause);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(failed)?;
    runtime.block_on(async {
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(interruption()),
            () = tokio::time::sleep(time) => Ok(()),
        }
    })
}

/// Does `work`, which is cancelled by what it gets when the hours of the job end, or by `cancel`. Whether they have
/// ended before it.
pub(super) fn within<T>(around: &Around, cancel: &Cancel, work: impl FnOnce(Cancel) -> T) -> Result<(T, bool)> {
    let leaving = cancel.child();
    if around.hours.is_none() {
        return Ok((work(leaving), false));
    }
    let (around, leaves, (working, works)) = (around.clone(), leaving.clone(), channel::<()>());
    let watch = move || {
        while works.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            if around.closed_until(now()).is_some() {
                leaves.cancel();
                return true;
            }
        }
        false
    };
    let watching = Builder::new().name("millstream-hours".to_owned()).spawn(watch);
    let watching = watching.map_err(|cause| Error::io("a thread cannot be started", &cause))?;
    let done = work(leaving);
    drop(working);
    Ok((done, watching.join().unwrap_or(false)))
}
