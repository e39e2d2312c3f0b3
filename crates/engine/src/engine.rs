//! The engine: what all runs of a process share.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use datafusion::logical_expr::ScalarUDF;
use millstream_core::budget::Share;
use millstream_core::{Budget, Error, Registry, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::machine::{Asked, Machine};
use crate::memory::{self, Governor, LEAST_MEMORY};

/// The least that a run's share of the budget should be, in bytes: what a machine must have for a run alone. With 32
/// MiB the first 1,000 of 100,000 short texts could not be sorted, since DataFusion keeps whole batches of them.
const LEAST_SHARE: usize = LEAST_MEMORY as usize;

/// What all runs of a process share: the components, the machine, one memory budget, SQL functions.
///
/// An engine is cheap to clone, and all clones are the same engine. It starts no threads by itself: each run, and each
/// look at a job, has threads of its own while it lasts. So everything here works inside and outside of any async
/// runtime, and the operating system divides the processor evenly between runs.
#[derive(Clone)]
pub struct Engine(Arc<Shared>);

struct Shared {
    registry: Arc<Registry>,
    machine: Machine,
    functions: Vec<Arc<ScalarUDF>>,
    budget: Arc<Budget>,
    /// The limit of the budget where nothing lowers it.
    limit: usize,
    /// Whether the budget is that of the whole process.
    governs: bool,
    governor: Mutex<Weak<Governor>>,
    /// One permit for each run that may load at the same time.
    turns: Arc<Semaphore>,
}

/// Makes an [`Engine`].
pub struct EngineBuilder {
    registry: Registry,
    machine: Option<Machine>,
    functions: Vec<Arc<ScalarUDF>>,
    governs: bool,
    runs: Option<usize>,
}

impl EngineBuilder {
    /// The machine that the engine may use. Without it: this machine, with a quarter of its memory.
    pub fn machine(self, machine: Machine) -> Self {
        EngineBuilder { machine: Some(machine), ..self }
    }

    /// The components, in place of those of this build.
    pub fn registry(self, registry: Registry) -> Self {
        EngineBuilder { registry, ..self }
    }

    /// Adds a SQL function, which all jobs can call.
    pub fn function(mut self, function: ScalarUDF) -> Self {
        self.functions.push(Arc::new(function));
        self
    }

    /// Holds the whole process to the memory budget: its resident size, whatever allocated it. That is right for a
    /// program that does nothing else. Without it the budget counts what the engine reserves, and the rest of the
    /// process is left alone.
    pub fn own_process(self) -> Self {
        EngineBuilder { governs: true, ..self }
    }

    /// The most runs that load at the same time; further ones wait for their turn. Without it: as many as have
    /// 64 MiB of the budget each.
    pub fn most_runs(self, runs: usize) -> Self {
        EngineBuilder { runs: Some(runs.max(1)), ..self }
    }

    /// The engine.
    ///
    /// # Errors
    /// If the machine cannot be used as it is set.
    pub fn build(self) -> Result<Engine> {
        let machine = match self.machine {
            Some(machine) => machine,
            None => Machine::detect(Asked::default())?,
        };
        let budget = match self.governs {
            true => memory::of_process(machine.memory),
            false => memory::of_guest(machine.memory),
        };
        let turns = self.runs.unwrap_or(budget.limit() / LEAST_SHARE).clamp(1, Semaphore::MAX_PERMITS);
        Ok(Engine(Arc::new(Shared {
            registry: Arc::new(self.registry),
            machine,
            functions: self.functions,
            limit: budget.limit(),
            budget,
            governs: self.governs,
            governor: Mutex::default(),
            turns: Arc::new(Semaphore::new(turns)),
        })))
    }
}

impl Engine {
    /// Makes an engine with all components of this build.
    pub fn builder() -> EngineBuilder {
        EngineBuilder { registry: crate::registry(), machine: None, functions: Vec::new(), governs: false, runs: None }
    }

    /// The components.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.0.registry
    }

    /// What the engine may use.
    pub fn machine(&self) -> &Machine {
        &self.0.machine
    }

    /// The memory budget that all runs share.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.0.budget
    }

    /// The SQL functions beside those of this build.
    pub(crate) fn functions(&self) -> &[Arc<ScalarUDF>] {
        &self.0.functions
    }

    /// Holds the process to its budget until what comes back is dropped; nothing where the engine is a guest.
    pub(crate) fn govern(&self) -> Result<Governing> {
        if !self.0.governs {
            return Ok(Governing { governor: None, before: Duration::ZERO });
        }
        let mut known = self.0.governor.lock().unwrap_or_else(PoisonError::into_inner);
        let governor = match known.upgrade() {
            Some(governor) => governor,
            None => {
                let started = Governor::start(self.0.machine.memory, Arc::clone(&self.0.budget), self.0.limit);
                let started = started.map_err(|cause| Error::io("a thread cannot be started", &cause))?;
                let started = Arc::new(started);
                *known = Arc::downgrade(&started);
                started
            }
        };
        let before = governor.held();
        Ok(Governing { governor: Some(governor), before })
    }

    /// A turn to load: the run's share of the budget, of which the least is free. Runs have their turns in the order in
    /// which they ask. One that waits for memory has its share, so that the others reserve no more than theirs.
    pub(crate) async fn turn(&self) -> Result<Turn> {
        let turn = Arc::clone(&self.0.turns).acquire_owned().await;
        let turn = turn.map_err(|closed| Error::internal("no run can begin any more").cause(closed))?;
        let share = self.0.budget.share();
        self.0.budget.has_room(LEAST_SHARE.min(self.0.budget.limit() / 2)).await;
        Ok(Turn { share, _turn: turn })
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("machine", &self.0.machine).finish_non_exhaustive()
    }
}

/// A run's turn, until it is dropped.
pub(crate) struct Turn {
    /// Its share of the budget.
    pub(crate) share: Share,
    _turn: OwnedSemaphorePermit,
}

/// Holds the process to its budget while it lives.
pub(crate) struct Governing {
    governor: Option<Arc<Governor>>,
    /// How long readers had been held back before.
    before: Duration,
}

impl Governing {
    /// How long the readers were held back meanwhile.
    pub(crate) fn held(&self) -> Duration {
        self.governor.as_ref().map_or(Duration::ZERO, |governor| governor.held().saturating_sub(self.before))
    }
}
