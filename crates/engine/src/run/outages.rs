//! What is reported of outages and gaps: each once, whatever notices it, and however often.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::epochs::Heard;

/// A gap with the same words is the same one for so long: two tasks may have noticed it.
const SAME_GAP: Duration = Duration::from_secs(10);

/// What has been reported.
#[derive(Default)]
pub(super) struct Outages {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The entries that wait.
    away: HashSet<String>,
    /// The last gap, and when it was noticed last.
    gap: Option<(String, Instant)>,
}

impl Outages {
    /// Whether `heard` is new, and to be reported.
    pub(super) fn is_new(&self, heard: &Heard) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match heard {
            Heard::Away { of, .. } => state.away.insert(of.clone()),
            Heard::Back { of } => state.away.remove(of),
            Heard::Gap { error } => {
                // One may know the cause, and another not.
                let (words, now) = (error.what().to_owned(), Instant::now());
                let before = state.gap.replace((words.clone(), now));
                before.is_none_or(|(before, at)| before != words || now.duration_since(at) > SAME_GAP)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use millstream_core::{Error, ErrorKind};

    use super::*;

    #[test]
    fn an_outage_that_lasts_over_epochs_is_reported_once() {
        let outages = Outages::default();
        let away = |of: &str| Heard::Away { of: of.to_owned(), error: Error::new(ErrorKind::Transient, "it is away") };
        let back = |of: &str| Heard::Back { of: of.to_owned() };
        assert!(!outages.is_new(&back("o")), "nothing waited");
        let heard = [away("o"), away("o"), away("events"), back("o"), back("o"), away("o"), back("events"), back("o")];
        let new: Vec<bool> = heard.iter().map(|heard| outages.is_new(heard)).collect();
        assert_eq!(new, [true, false, true, true, false, true, true, true]);
    }

    #[test]
    fn a_gap_that_two_notice_is_reported_once() {
        let outages = Outages::default();
        let gap = |what: &str| Heard::Gap { error: Error::job(what) };
        assert!(outages.is_new(&gap("5 messages are lost")));
        assert!(!outages.is_new(&gap("5 messages are lost")));
        assert!(outages.is_new(&gap("6 messages are lost")));
    }
}
