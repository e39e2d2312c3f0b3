//! When to retry, and how long to wait before: a policy without clocks or sockets, and the counters of one unit. Each
//! source decides which faults are transient (`http/retry.rs`, `ftp/reply.rs`, `sftp/client.rs`).
//!
//! The pause before retry n is drawn from 0 to min(limit, 200 ms · 2ⁿ) ("full jitter", so that clients that failed
//! together do not retry together). If a server names a time, that is used, up to [`RETRY_AFTER_LIMIT`]. Bytes that
//! arrive are progress: a unit of a hundred gigabytes may break a hundred times, but not without progress.

use std::time::{Duration, Instant};

use millstream_core::{Error, ErrorKind};

/// The first pause is at most this long.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// The longest wait that a server can ask for.
pub(crate) const RETRY_AFTER_LIMIT: Duration = Duration::from_secs(300);

/// An attempt with so many bytes has made progress.
pub(crate) const PROGRESS: u64 = 64 << 10;

/// The fault of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Whether it is transient.
    pub(crate) transient: bool,
    /// In lower case, without the URL.
    pub(crate) what: String,
    pub(crate) cause: Option<String>,
    pub(crate) hint: Option<String>,
    /// The beginning of the server's message.
    pub(crate) text: Option<String>,
    /// The status or reply code, if there was an answer.
    pub(crate) status: Option<u16>,
    /// How long the server asks to wait.
    pub(crate) retry_after: Option<Duration>,
}

impl Fault {
    /// A transient fault.
    pub(crate) fn transient(what: impl Into<String>) -> Self {
        Fault {
            transient: true,
            what: what.into(),
            cause: None,
            hint: None,
            text: None,
            status: None,
            retry_after: None,
        }
    }

    /// A permanent fault.
    pub(crate) fn permanent(what: impl Into<String>) -> Self {
        Fault { transient: false, ..Fault::transient(what) }
    }

    pub(crate) fn cause(mut self, cause: impl Into<String>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

/// Lets it pass through a library as the cause of an error.
impl std::error::Error for Fault {}

/// How often and how slowly a unit is retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Policy {
    /// Retries in a row without progress.
    pub(crate) retries: u32,
    /// The longest pause of our own choice.
    pub(crate) max_backoff: Duration,
    /// The source's block in the job file, for hints.
    pub(crate) block: &'static str,
}

impl Policy {
    /// The pause after failure number `failures` in a row (from 1), or `None` to give up. `chance` is from 0 to 1.
    pub(crate) fn pause(&self, failures: u32, retry_after: Option<Duration>, chance: f64) -> Option<Duration> {
        if failures > self.retries {
            return None;
        }
        let doubled = 2_u32.checked_pow(failures - 1).and_then(|factor| FIRST_PAUSE.checked_mul(factor));
        let backoff = doubled.unwrap_or(self.max_backoff).min(self.max_backoff).mul_f64(chance);
        Some(match retry_after {
            // Spreads clients that were given the same second.
            Some(wanted) => wanted.min(RETRY_AFTER_LIMIT) + backoff.min(FIRST_PAUSE),
            None => backoff,
        })
    }
}

/// The attempts of one unit.
#[derive(Debug)]
pub(crate) struct Tries {
    policy: Policy,
    started: Instant,
    tries: u32,
    failures: u32,
    brought: u64,
}

impl Tries {
    pub(crate) fn new(policy: Policy) -> Self {
        Tries { policy, started: Instant::now(), tries: 0, failures: 0, brought: 0 }
    }

    /// Begins an attempt.
    pub(crate) fn begin(&mut self) {
        self.tries += 1;
        self.brought = 0;
    }

    /// Bytes have arrived that were not there before.
    pub(crate) fn progressed(&mut self, bytes: usize) {
        self.brought += bytes as u64;
    }

    /// Runs `work` on `uri`, with retries.
    pub(crate) async fn repeat<T, F: Future<Output = Result<T, Fault>>>(
        &mut self,
        uri: &str,
        mut work: impl FnMut() -> F,
    ) -> Result<T, Error> {
        loop {
            self.begin();
            match work().await {
                Ok(done) => return Ok(done),
                Err(fault) => tokio::time::sleep(self.failed(fault).map_err(|error| error.in_unit(uri, None))?).await,
            }
        }
    }

    /// Counts a failed attempt. Returns how long to wait before the next one, or the final error.
    pub(crate) fn failed(&mut self, fault: Fault) -> Result<Duration, Error> {
        if self.brought >= PROGRESS {
            self.failures = 0;
        }
        self.failures += 1;
        let pause = self.policy.pause(self.failures, fault.retry_after, fastrand::f64());
        pause.filter(|_| fault.transient).ok_or_else(|| self.final_error(fault))
    }

    /// Does not count the current attempt.
    #[cfg(any(feature = "ftp", feature = "sftp"))]
    pub(crate) fn uncount(&mut self) {
        self.tries = self.tries.saturating_sub(1);
    }

    /// The final error of a fault.
    pub(crate) fn final_error(&self, fault: Fault) -> Error {
        let kind = if fault.transient { ErrorKind::Transient } else { ErrorKind::Refused };
        let tries = if self.tries == 1 { "1 try".to_owned() } else { format!("{} tries", self.tries) };
        let seconds = self.started.elapsed().as_secs_f64();
        let mut error = Error::new(kind, format!("{} ({tries}, {seconds:.1} s)", fault.what));
        if matches!(fault.status, Some(404 | 410)) {
            error = error.absent();
        }
        error = fault.cause.into_iter().fold(error, Error::cause);
        error = fault.text.into_iter().fold(error, Error::text);
        let later = || {
            format!("this may be temporary: try again later, or raise `retries` in the `{}` block", self.policy.block)
        };
        let hint = fault.hint.or_else(|| fault.transient.then(later));
        hint.into_iter().fold(error, Error::hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy { retries: 5, max_backoff: Duration::from_secs(2), block: "http" };

    #[test]
    fn pauses_double_up_to_the_limit_and_end() {
        let pauses: Vec<_> = (1..=6).map(|failures| POLICY.pause(failures, None, 1.0)).collect();
        let expected = [200, 400, 800, 1600, 2000].map(|pause| Some(Duration::from_millis(pause)));
        assert_eq!(pauses[..5], expected);
        assert_eq!(pauses[5], None);
        assert_eq!(POLICY.pause(3, None, 0.5), Some(Duration::from_millis(400)));
        let patient = Policy { retries: 100, max_backoff: Duration::from_secs(30), ..POLICY };
        assert_eq!(patient.pause(100, None, 1.0), Some(Duration::from_secs(30)));
        assert_eq!(Policy { retries: 0, ..POLICY }.pause(1, None, 1.0), None);
    }

    #[test]
    fn a_server_that_names_a_time_gets_it_up_to_the_limit() {
        let minute = Duration::from_secs(60);
        assert_eq!(POLICY.pause(1, Some(minute), 0.0), Some(minute));
        assert_eq!(POLICY.pause(1, Some(minute), 1.0), Some(minute + FIRST_PAUSE));
        assert_eq!(POLICY.pause(1, Some(100 * minute), 0.0), Some(RETRY_AFTER_LIMIT));
        assert_eq!(POLICY.pause(6, Some(minute), 0.0), None, "the number of retries holds");
    }

    #[test]
    fn progress_starts_the_count_anew_and_crumbs_do_not() {
        let mut tries = Tries::new(Policy { retries: 2, max_backoff: Duration::ZERO, ..POLICY });
        for _ in 0..10 {
            tries.begin();
            tries.progressed(PROGRESS as usize);
            assert!(tries.failed(Fault::transient("broken")).is_ok());
        }
        tries.begin();
        tries.progressed(1);
        assert!(tries.failed(Fault::transient("broken")).is_ok());
        tries.begin();
        let error = tries.failed(Fault::transient("broken")).expect_err("the third in a row");
        assert_eq!(error.kind(), ErrorKind::Transient);
        assert_eq!(error.what(), "broken (12 tries, 0.0 s)");
    }

    #[test]
    fn what_stays_is_not_tried_again() {
        let mut tries = Tries::new(POLICY);
        tries.begin();
        let error = tries.failed(Fault::permanent("gone").hint("look elsewhere")).expect_err("permanent");
        assert_eq!((error.kind(), error.what()), (ErrorKind::Refused, "gone (1 try, 0.0 s)"));
    }
}
