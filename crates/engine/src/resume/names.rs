//! The names of loads in the ledgers of targets. They are stored: they must never change.

use crate::rejects::replay::{self, Replay};

/// In place of a run, in the name of a load that all runs share.
const ALL_RUNS: &str = "incremental";

/// The end of the name of a load whose rows become visible at once.
const AT_ONCE: &str = "\nall at once";

/// The end of the name of a load that is staged chunk by chunk.
const STAGED: &str = "\nstaged";

/// The names of the loads of one sink.
#[derive(Debug)]
pub struct LoadNames {
    /// What all of them begin with: the job, the sink and the table.
    sink: String,
    /// What stands behind it in this run.
    own: String,
    /// What it begins with in any round of the replay, if this run is one.
    replay: Option<String>,
}

impl LoadNames {
    /// The names of the loads of `sink`, which writes to `table` if it has one, in a run of the resume chain `first`.
    pub fn new(job: &str, sink: &str, table: &str, first: &str, replay: Option<&Replay>) -> Self {
        LoadNames {
            sink: format!("{job}\n{sink}\n{table}\n"),
            own: replay.map_or_else(|| first.to_owned(), Replay::load),
            replay: replay.map(Replay::load_of_any_round),
        }
    }

    /// The load of this run that goes chunk by chunk.
    pub fn by_chunk(&self) -> String {
        format!("{}{}", self.sink, self.own)
    }

    /// The load of all runs, if the sources are incremental.
    pub fn incremental(&self) -> String {
        format!("{}{ALL_RUNS}", self.sink)
    }

    /// The load of all processes that read the queue `queue` in the name of `group`.
    pub fn of_queue(&self, queue: &str, group: &str) -> String {
        format!("{}queue {queue}\n{group}", self.sink)
    }

    /// The load of this run that goes all at once.
    pub fn at_once(&self) -> String {
        format!("{}{}{AT_ONCE}", self.sink, self.own)
    }

    /// The load of this run that is staged chunk by chunk.
    pub fn staged(&self) -> String {
        format!("{}{}{STAGED}", self.sink, self.own)
    }

    /// What the names of all loads of the sink begin with.
    pub fn of_sink(&self) -> &str {
        &self.sink
    }

    /// The run to which another load of the sink belongs that goes chunk by chunk.
    pub fn other_by_chunk<'a>(&self, load: &'a str) -> Option<&'a str> {
        let run = load.strip_prefix(&self.sink).filter(|run| *run != ALL_RUNS)?;
        (self.looks_after(run) && load != self.by_chunk()).then_some(run)
    }

    /// The run to which another load of the sink belongs that goes all at once.
    pub fn other_at_once<'a>(&self, load: &'a str) -> Option<&'a str> {
        let run = load.strip_prefix(&self.sink)?.strip_suffix(AT_ONCE)?;
        (self.looks_after(run) && load != self.at_once()).then_some(run)
    }

    /// The replay to which a load of another round belongs, all at once or not.
    pub fn other_round<'a>(&self, load: &'a str) -> Option<&'a str> {
        let round = load.strip_prefix(&self.sink)?;
        let of_replay = self.replay.as_ref().is_some_and(|any| round.starts_with(any));
        (of_replay && load != self.by_chunk()).then_some(round)
    }

    /// The job of which `load` is the load of all runs, if that is of the same sink and table in another job.
    pub fn other_job<'a>(&self, load: &'a str) -> Option<&'a str> {
        let (own, behind_job) = self.sink.split_once('\n')?;
        let job = load.strip_suffix(ALL_RUNS)?.strip_suffix(behind_job)?.strip_suffix('\n')?;
        (job != own).then_some(job)
    }

    /// Whether this run cleans up what a load of `run` has left: a replay cleans up after its own earlier rounds, and
    /// only a replay does.
    fn looks_after(&self, run: &str) -> bool {
        let of_this_kind = match &self.replay {
            Some(any) => run.starts_with(any),
            None => !run.starts_with(replay::PREFIX),
        };
        of_this_kind && !run.contains('\n')
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn loads_of_all_runs_of_other_jobs_are_found() {
        let names = LoadNames::new("/a.yaml", "o", "t", "7-7", None);
        for (load, job) in [
            ("/a.yaml\no\nt\nincremental", None),
            ("/a.yaml 85944171f73967e8\no\nt\nincremental", Some("/a.yaml 85944171f73967e8")),
            ("/b.yaml\no\nt\nincremental", Some("/b.yaml")),
            ("/b.yaml\no\nu\nincremental", None),
            ("/b.yaml\nto\nt\nincremental", None),
            ("/b.yaml\no\nt\n6-6", None),
        ] {
            assert_eq!(names.other_job(load), job, "{load:?}");
        }
    }

    #[test]
    fn a_run_looks_after_its_own_kind_of_loads() {
        let replay = Replay::new("1-1", "o", 2, Path::new("/state/rejects/1-1"), std::iter::empty());
        let (run, replay) = (
            LoadNames::new("/a.yaml", "o", "t", "7-7", None),
            LoadNames::new("/a.yaml", "o", "t", "8-8", Some(&replay)),
        );
        assert_eq!(run.by_chunk(), "/a.yaml\no\nt\n7-7");
        assert_eq!(run.incremental(), "/a.yaml\no\nt\nincremental");
        assert_eq!(run.at_once(), "/a.yaml\no\nt\n7-7\nall at once");
        assert_eq!(run.staged(), "/a.yaml\no\nt\n7-7\nstaged");
        assert_eq!(run.of_sink(), "/a.yaml\no\nt\n");
        assert_eq!(replay.by_chunk(), "/a.yaml\no\nt\nreplay of 1-1 2");
        assert_eq!(replay.at_once(), "/a.yaml\no\nt\nreplay of 1-1 2\nall at once");
        // The load, and what a run and a replay find in it: chunk by chunk, all at once, another round.
        for (load, by_run, by_replay) in [
            ("/a.yaml\no\nt\n7-7", [None, None, None], [None, None, None]),
            ("/a.yaml\no\nt\n6-6", [Some("6-6"), None, None], [None, None, None]),
            ("/a.yaml\no\nt\n7-7\nall at once", [None, None, None], [None, None, None]),
            ("/a.yaml\no\nt\n6-6\nall at once", [None, Some("6-6"), None], [None, None, None]),
            ("/a.yaml\no\nt\nincremental", [None, None, None], [None, None, None]),
            ("/a.yaml\no\nu\n6-6", [None, None, None], [None, None, None]),
            ("/a.yaml\no\nt\nreplay of 1-1 2", [None, None, None], [None, None, None]),
            (
                "/a.yaml\no\nt\nreplay of 1-1 1",
                [None, None, None],
                [Some("replay of 1-1 1"), None, Some("replay of 1-1 1")],
            ),
            (
                "/a.yaml\no\nt\nreplay of 1-1 1\nall at once",
                [None, None, None],
                [None, Some("replay of 1-1 1"), Some("replay of 1-1 1\nall at once")],
            ),
            ("/a.yaml\no\nt\nreplay of 2-2 1", [None, None, None], [None, None, None]),
        ] {
            for (names, expected) in [(&run, by_run), (&replay, by_replay)] {
                let found = [names.other_by_chunk(load), names.other_at_once(load), names.other_round(load)];
                assert_eq!(found, expected, "{load:?} {names:?}");
            }
        }
    }
}
