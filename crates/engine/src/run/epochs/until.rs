//! When a run that reads a queue ends.

use std::time::Duration;

use millstream_job::around::{Until, UntilEmpty, UntilEnd, UntilRows, UntilTime};
use tokio::time::Instant;

/// How long a queue has to be empty for `until: empty`.
const QUIET: Duration = Duration::from_secs(5);

/// When the run ends.
pub(super) struct End {
    pub(super) until: Until,
    /// Messages that may still come.
    pub(super) left: u64,
    /// When the time is over.
    pub(super) time: Option<Instant>,
    /// Since when the queue has been empty.
    pub(super) empty: Option<Instant>,
    /// Nothing more is read.
    pub(super) is_reached: bool,
    /// It was stopped by a signal.
    pub(super) is_stopped: bool,
}

impl End {
    pub(super) fn new(until: Until) -> Self {
        let left = if let Until::Rows(UntilRows { rows }) = until { rows } else { u64::MAX };
        let time = if let Until::For(UntilTime { r#for }) = until { Some(Instant::now() + r#for.0) } else { None };
        End { until, left, time, empty: None, is_reached: false, is_stopped: false }
    }

    pub(super) fn quiet(&self) -> Option<Duration> {
        match self.until {
            Until::End(UntilEnd::Empty) => Some(QUIET),
            Until::Empty(UntilEmpty { empty }) => Some(empty.0),
            _ => None,
        }
    }

    /// When the queue has been empty for long enough, if it stays so.
    pub(super) fn is_quiet_at(&self) -> Option<Instant> {
        self.quiet().zip(self.empty).map(|(quiet, since)| since + quiet)
    }

    /// So many messages came.
    pub(super) fn came(&mut self, messages: u64) {
        if messages > 0 {
            self.empty = None;
        }
        self.left = self.left.saturating_sub(messages);
        self.is_reached |= self.left == 0;
    }

    /// So many messages that had come were dropped: they come again, to this process or another.
    pub(super) fn lost(&mut self, messages: u64) {
        if messages == 0 {
            return;
        }
        self.empty = None;
        self.left = self.left.saturating_add(messages);
        self.is_reached = self.is_stopped || self.time.is_some_and(|time| time <= Instant::now());
    }

    pub(super) fn is_of_signals(&self) -> bool {
        matches!(self.until, Until::End(UntilEnd::Stopped))
    }
}
