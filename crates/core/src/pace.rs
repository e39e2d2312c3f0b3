//! How fast the sources of a run may read, all together: the `throttle` of its job.
//!
//! What has come is paid for with time: so many bytes, so much time. A reader learns when its bytes are paid for, and
//! waits until then before it asks for more. Payments are made one after the other, in the order in which the bytes
//! came: so all who read, of ranges of one file or of many servers, get their turns, and nobody waits with a lock. Time
//! in which nothing came pays in advance, but for no more than [`BURST`].

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How much time without bytes pays in advance.
const BURST: Duration = Duration::from_millis(100);

/// What comes at once takes no longer to be paid for.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// How fast sources may read. Without a rate, as fast as they can.
#[derive(Debug, Default)]
pub struct Pace {
    bytes_per_second: Option<u64>,
    paid: Mutex<Paid>,
}

#[derive(Debug, Default)]
struct Paid {
    /// When everything is paid that has come.
    until: Option<Instant>,
    /// How long payments took, all together.
    time: Duration,
}

impl Pace {
    /// At most `bytes_per_second`.
    pub fn new(bytes_per_second: Option<u64>) -> Self {
        Pace { bytes_per_second, paid: Mutex::default() }
    }

    /// The most bytes a second.
    pub fn bytes_per_second(&self) -> Option<u64> {
        self.bytes_per_second
    }

    /// The most bytes that are worth reading ahead: what comes in the time of a burst, and enough for a piece.
    pub fn ahead(&self) -> Option<usize> {
        const PIECE: u64 = 16 << 10;
        let burst = |rate: u64| rate / u64::try_from(1000 / BURST.as_millis()).unwrap_or(1);
        self.bytes_per_second.map(|rate| usize::try_from(burst(rate).max(PIECE)).unwrap_or(usize::MAX))
    }

    /// So many bytes have come. When they are paid; `None` if they are already.
    pub fn pay(&self, bytes: u64) -> Option<Instant> {
        self.pay_at(bytes, Instant::now())
    }

    fn pay_at(&self, bytes: u64, now: Instant) -> Option<Instant> {
        let rate = self.bytes_per_second?;
        let price = Duration::try_from_secs_f64(bytes as f64 / rate as f64).unwrap_or(LONGEST).min(LONGEST);
        let mut paid = self.paid();
        // A moment shortly after the start of the machine may have nothing so long before it.
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        let from = paid.until.unwrap_or(earliest).max(earliest);
        let until = from.checked_add(price).unwrap_or(from);
        paid.time += until.saturating_duration_since(from.max(now));
        paid.until = Some(until);
        Some(until).filter(|until| *until > now)
    }

    /// Waits until everything is paid that has come.
    pub async fn admitted(&self) {
        if self.bytes_per_second.is_some() {
            let until = self.paid().until;
            wait(until).await;
        }
    }

    /// Takes `bytes` that are about to be asked for: waits until they are paid.
    pub async fn take(&self, bytes: u64) {
        wait(self.pay(bytes)).await;
    }

    /// How long the rate has held the sources back.
    pub fn held(&self) -> Duration {
        let paid = self.paid();
        let ahead = paid.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        paid.time.saturating_sub(ahead)
    }

    fn paid(&self) -> MutexGuard<'_, Paid> {
        self.paid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until a moment that [`Pace::pay`] has named.
pub async fn wait(until: Option<Instant>) {
    if let Some(until) = until {
        tokio::time::sleep_until(until.into()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn bytes_are_paid_one_after_the_other_from_all_readers() {
        let (pace, start) = (Pace::new(Some(1000)), Instant::now());
        assert_eq!(pace.pay_at(100, start), None, "the burst");
        assert_eq!(pace.pay_at(500, start), Some(start + SECOND / 2));
        assert_eq!(pace.pay_at(500, start), Some(start + SECOND));
        assert_eq!(pace.pay_at(500, start + SECOND), Some(start + SECOND * 3 / 2));
    }

    #[test]
    fn time_without_bytes_pays_for_no_more_than_a_burst() {
        let (pace, start) = (Pace::new(Some(1000)), Instant::now());
        pace.pay_at(1000, start);
        let later = start + 60 * SECOND;
        assert_eq!(pace.pay_at(100, later), None);
        assert_eq!(pace.pay_at(1000, later), Some(later + SECOND));
        let held = pace.paid().time;
        assert_eq!(held, SECOND - BURST + SECOND, "what was paid in advance holds nobody back");
    }

    #[test]
    fn without_a_rate_nothing_is_paid() {
        let pace = Pace::default();
        assert_eq!((pace.pay(u64::MAX), pace.ahead(), pace.held()), (None, None, Duration::ZERO));
        let pace = Pace::new(Some(1));
        assert!(pace.pay(u64::MAX).is_some(), "more than time can be");
        assert!(pace.pay(u64::MAX).is_some());
    }

    #[test]
    fn what_is_read_ahead_is_what_comes_in_a_burst() {
        assert_eq!(Pace::new(Some(10 << 20)).ahead(), Some(1 << 20));
        assert_eq!(Pace::new(Some(1000)).ahead(), Some(16 << 10));
    }
}
