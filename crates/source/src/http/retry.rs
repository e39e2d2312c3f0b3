//! Which statuses are transient, and how long a server asks to wait. `crate::retry` does the pauses and counts.

use std::time::{Duration, SystemTime};

pub(crate) use crate::retry::{Fault, Policy, Tries};

/// Whether a status is transient.
pub(crate) fn is_transient(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504)
}

/// How long a `Retry-After` asks to wait: it is a number of seconds, or a date.
pub(crate) fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = httpdate::parse_http_date("Fri, 21 Nov 2025 10:00:00 GMT").expect("a date");
        assert_eq!(retry_after("120", now), Some(Duration::from_secs(120)));
        assert_eq!(retry_after(" 0 ", now), Some(Duration::ZERO));
        assert_eq!(retry_after("Fri, 21 Nov 2025 10:00:07 GMT", now), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("Fri, 21 Nov 2025 09:00:00 GMT", now), Some(Duration::ZERO), "it has passed");
        assert_eq!(retry_after("-5", now), None);
        assert_eq!(retry_after("soon", now), None);
    }

    #[test]
    fn some_statuses_may_pass() {
        assert!(!is_transient(404) && is_transient(503));
    }
}
