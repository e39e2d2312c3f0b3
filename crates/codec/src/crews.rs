//! Crews for tests: their helpers come at once, late, never, or on threads of their own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use millstream_core::crew::{Crew, Job};

/// Someone is always idle; what becomes of the jobs is the rest.
#[derive(Debug)]
pub(crate) enum Helpers {
    /// Done before the offer returns.
    AtOnce,
    /// Nobody takes anything.
    Never,
    /// A thread for each.
    Threads,
    /// Done when someone has asked so many times who is idle.
    Late { every: usize, asked: AtomicUsize, jobs: Mutex<Jobs> },
}

#[derive(Default)]
pub(crate) struct Jobs(Vec<Job>);

impl std::fmt::Debug for Jobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} jobs", self.0.len())
    }
}

impl Helpers {
    /// Of many kinds.
    pub(crate) fn of_kind(kind: usize) -> Arc<dyn Crew> {
        let late = |every| Helpers::Late { every, asked: AtomicUsize::new(0), jobs: Mutex::default() };
        Arc::new(match kind % 6 {
            0 => Helpers::AtOnce,
            1 => Helpers::Never,
            2 | 3 => Helpers::Threads,
            4 => late(7),
            _ => late(23),
        })
    }
}

impl Crew for Helpers {
    fn idle(&self) -> usize {
        if let Helpers::Late { every, asked, jobs } = self
            && asked.fetch_add(1, Ordering::Relaxed) % every == every - 1
        {
            let jobs = std::mem::take(&mut *jobs.lock().expect("no panic"));
            jobs.0.into_iter().for_each(|job| job());
        }
        2
    }

    fn offer(&self, job: Job) {
        match self {
            Helpers::AtOnce => job(),
            Helpers::Never => drop(job),
            Helpers::Threads => drop(std::thread::spawn(job)),
            Helpers::Late { jobs, .. } => jobs.lock().expect("no panic").0.push(job),
        }
    }
}
