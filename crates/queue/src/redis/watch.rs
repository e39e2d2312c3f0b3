//! Which consumers are dead, as one of them sees the others: decisions over observations, without any I/O.
//!
//! Time counts by the observer's own clock, and only while targets answer: after an outage of a database all signs of
//! life are old, and a consumer that was stopped itself has observed nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::rows::{NAME_PREFIX, Rows};

/// How long a process has no connection to the target until that counts.
const DISCONNECTED: Duration = Duration::from_secs(5);

/// An idle consumer without entries, of which no target knows anything, is removed after this time.
const FORGOTTEN: Duration = Duration::from_secs(3600);

/// A consumer as Redis shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) name: String,
    /// How many entries it has that are not acknowledged.
    pub(super) pending: u64,
    /// Since when it has got or claimed none.
    pub(super) idle: Duration,
}

/// What is to be done about a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It lives, or has nothing that anyone could want.
    Alive,
    /// It is not known yet.
    Open,
    /// It is dead: what it has is taken over.
    Dead,
    /// The same, and it is none of ours: what it has may have been processed.
    Foreign,
}

/// How a consumer has shown that it lives.
#[derive(Debug, Clone)]
struct Watched {
    /// The versions of its signs of life, for each target.
    versions: Vec<Option<u64>>,
    since: Instant,
    has_moved: bool,
    /// Since when no target has a connection of its process.
    disconnected: Option<Instant>,
}

/// The observer's memory.
#[derive(Debug)]
pub(super) struct Watch {
    claim_after: Duration,
    watched: BTreeMap<String, Watched>,
    observed: Option<Instant>,
}

impl Watch {
    /// Of an observer that has seen nothing yet.
    pub(super) fn new(claim_after: Duration) -> Self {
        Watch { claim_after, watched: BTreeMap::new(), observed: None }
    }

    /// The longest pause between two observations that are connected.
    fn longest_pause(&self) -> Duration {
        (self.claim_after / 2).max(Duration::from_millis(500))
    }

    /// Takes note of the rows that all targets have `now`. `None` for sinks that keep no positions.
    pub(super) fn observe(&mut self, now: Instant, targets: &[Option<Rows>]) {
        let is_connected = self.observed.is_some_and(|before| now - before <= self.longest_pause());
        self.observed = Some(now);
        let names: Vec<String> = targets.iter().flatten().flat_map(|rows| rows.beats.keys().cloned()).collect();
        self.watched.retain(|name, _| names.contains(name));
        for name in names {
            let versions: Vec<Option<u64>> = targets
                .iter()
                .map(|rows| rows.as_ref().and_then(|rows| rows.beats.get(&name)).map(|beat| beat.version))
                .collect();
            let new = Watched { versions: versions.clone(), since: now, has_moved: false, disconnected: None };
            let watched = self.watched.entry(name).or_insert(new);
            if watched.versions != versions {
                *watched = Watched { versions, since: now, has_moved: true, disconnected: None };
            } else if !is_connected {
                (watched.since, watched.disconnected) = (now, None);
            }
        }
    }

    /// Consumers that have shown no sign of life for long enough that it matters whether their process is connected.
    pub(super) fn silent(&self) -> Vec<String> {
        let Some(now) = self.observed else { return Vec::new() };
        let silent = self.watched.iter().filter(|(_, watched)| now - watched.since >= DISCONNECTED);
        silent.map(|(name, _)| name.clone()).collect()
    }

    /// Takes note of whether the process of a consumer has a connection to any target; `None` if that is not known.
    pub(super) fn connected(&mut self, name: &str, is_connected: Option<bool>) {
        let (Some(now), Some(watched)) = (self.observed, self.watched.get_mut(name)) else { return };
        match is_connected {
            Some(false) => drop(watched.disconnected.get_or_insert(now)),
            _ => watched.disconnected = None,
        }
    }

    /// What is to be done about a consumer that Redis shows.
    pub(super) fn judge(&self, listed: &Listed, targets: &[Option<Rows>]) -> Verdict {
        let rows = || targets.iter().flatten();
        if rows().any(|rows| rows.knows(&listed.name)) {
            return self.judge_known(&listed.name);
        }
        let is_ours = listed.name.starts_with(NAME_PREFIX);
        if rows().any(|rows| rows.is_gone(&listed.name)) {
            return Verdict::Dead;
        }
        let wait = if listed.pending == 0 { FORGOTTEN.max(self.claim_after) } else { self.claim_after };
        match listed.idle >= wait {
            true if is_ours => Verdict::Dead,
            true if listed.pending > 0 => Verdict::Foreign,
            _ if listed.pending == 0 => Verdict::Alive,
            // It may be idle, or at work on what it has.
            _ => Verdict::Open,
        }
    }

    /// What is to be done about a consumer that has rows.
    pub(super) fn judge_known(&self, name: &str) -> Verdict {
        let (Some(now), Some(watched)) = (self.observed, self.watched.get(name)) else { return Verdict::Open };
        let is_disconnected = watched.disconnected.is_some_and(|since| now - since >= DISCONNECTED);
        if now - watched.since >= self.claim_after || is_disconnected {
            return Verdict::Dead;
        }
        if watched.has_moved { Verdict::Alive } else { Verdict::Open }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::Beat;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rows(beats: &[(&str, u64)]) -> Option<Rows> {
        let beat = |version| Beat { version, owner: "o".to_owned() };
        let beats = beats.iter().map(|(name, version)| ((*name).to_owned(), beat(*version))).collect();
        Some(Rows { beats, ..Rows::default() })
    }

    fn listed(name: &str, pending: u64, idle: u64) -> Listed {
        Listed { name: name.to_owned(), pending, idle: SECOND * u32::try_from(idle).expect("small") }
    }

    #[test]
    fn who_shows_no_sign_of_life_is_dead() {
        let (start, mut watch) = (Instant::now(), Watch::new(SECOND * 60));
        let mut verdicts = Vec::new();
        for second in 0..=80 {
            // b moves every 10 s in one of two targets, c until 20 s.
            let rows = [rows(&[("a", 1), ("b", 1), ("c", second.min(20))]), rows(&[("b", second / 10)]), None];
            watch.observe(start + SECOND * u32::try_from(second).expect("small"), &rows);
            verdicts.push(["a", "b", "c"].map(|name| watch.judge(&listed(name, 1, 0), &rows)));
        }
        use Verdict::{Alive, Dead, Open};
        assert_eq!(verdicts[0], [Open, Open, Open]);
        assert_eq!(verdicts[30], [Open, Alive, Alive]);
        assert_eq!((verdicts[59][0], verdicts[60][0]), (Open, Dead));
        assert_eq!((verdicts[79], verdicts[80]), ([Dead, Alive, Alive], [Dead, Alive, Dead]));
        assert_eq!(watch.silent(), ["a", "c"]);
    }

    #[test]
    fn time_in_which_nothing_was_seen_does_not_count() {
        let (start, mut watch) = (Instant::now(), Watch::new(SECOND * 60));
        let rows = [rows(&[("a", 1)])];
        for second in [0, 20, 59, 100, 120, 140, 159] {
            watch.observe(start + SECOND * second, &rows);
            assert_eq!(watch.judge_known("a"), Verdict::Open, "{second}");
        }
        watch.observe(start + SECOND * 160, &rows);
        assert_eq!(watch.judge_known("a"), Verdict::Dead);
    }

    #[test]
    fn a_process_without_connections_is_dead_soon() {
        let (start, mut watch) = (Instant::now(), Watch::new(SECOND * 60));
        let rows = [rows(&[("a", 1), ("b", 1)])];
        for second in 0..=10 {
            watch.observe(start + SECOND * second, &rows);
            for name in watch.silent() {
                watch.connected(&name, if name == "b" && second == 9 { Some(true) } else { Some(false) });
            }
        }
        assert_eq!(["a", "b"].map(|name| watch.judge_known(name)), [Verdict::Dead, Verdict::Open]);
    }

    #[test]
    fn who_has_no_rows_is_judged_by_redis() {
        let watch = Watch::new(SECOND * 60);
        let mut gone = Rows::default();
        let mut group = super::super::rows::GroupState::default();
        group.gone.insert("millstream-gone".to_owned());
        gone.group = Some(super::super::rows::Versioned { version: 1, state: group });
        let judge = |name: &str, pending, idle| watch.judge(&listed(name, pending, idle), &[Some(gone.clone()), None]);
        assert_eq!(judge("millstream-gone", 0, 0), Verdict::Dead);
        assert_eq!([1, 60].map(|idle| judge("millstream-a", 1, idle)), [Verdict::Open, Verdict::Dead]);
        assert_eq!([1, 60].map(|idle| judge("other", 1, idle)), [Verdict::Open, Verdict::Foreign]);
        assert_eq!([60, 3600].map(|idle| judge("millstream-a", 0, idle)), [Verdict::Alive, Verdict::Dead]);
        assert_eq!(judge("other", 0, 9999), Verdict::Alive);
    }
}
