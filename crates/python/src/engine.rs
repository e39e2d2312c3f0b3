//! The engines of this process: one for each machine that callers have asked for.

use std::sync::{Mutex, PoisonError};

use millstream::machine::{Asked, Machine};
use millstream::text::Size;
use millstream::{Engine, Error, Failure, Result};
use pyo3::prelude::*;

use crate::given;

/// What a caller asks of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, FromPyObject)]
pub struct Limits {
    /// The machine file; if there is none, what `MILLSTREAM_MACHINE` names.
    #[pyo3(item)]
    machine: Option<String>,
    /// The memory budget: `512MB`.
    #[pyo3(item)]
    memory: Option<String>,
    /// Workers.
    #[pyo3(item)]
    cores: Option<usize>,
}

/// Whether an engine reads rows that Python gives: only one that loads these does, so that no other job has them among
/// what it can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// What job files can name.
    Places,
    /// Rows of Python, too.
    Given,
}

/// Engines by what was asked of them.
type Engines = Vec<(Limits, Reads, Engine)>;

/// The engines of the process with this number. A copy of the process (by fork) makes its own: the memory and the turns
/// of the runs that go on in the other process are none of its.
static ENGINES: Mutex<Option<(u32, Engines)>> = Mutex::new(None);

/// The engine within `limits`. It is a guest in this process: its budget counts what it reserves itself.
///
/// # Errors
/// If the machine cannot be used like that.
pub fn engine(limits: &Limits, reads: Reads) -> Result<Engine, Failure> {
    let mut known = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if known.as_ref().is_none_or(|(of, _)| *of != process) {
        // What is dropped here belongs to the other process.
        std::mem::forget(known.replace((process, Vec::new())));
    }
    let engines = known.as_mut().map(|(_, engines)| engines).ok_or_else(|| Error::internal("there are no engines"))?;
    if let Some((_, _, engine)) = engines.iter().find(|(of, its, _)| of == limits && *its == reads) {
        return Ok(engine.clone());
    }
    let registry = match reads {
        Reads::Places => millstream::component::registry(),
        Reads::Given => given::registry()?,
    };
    let engine = Engine::builder().machine(machine(limits)?).registry(registry).build()?;
    engines.push((limits.clone(), reads, engine.clone()));
    Ok(engine)
}

fn machine(limits: &Limits) -> Result<Machine, Failure> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let memory = limits.memory.as_deref().map(size).transpose()?;
    let state = variable("MILLSTREAM_STATE").map(Into::into);
    let asked = Asked { cores: limits.cores, memory, scratch: Vec::new(), state };
    match limits.machine.clone().or_else(|| variable("MILLSTREAM_MACHINE")) {
        Some(path) => {
            let named = "`machine=` and MILLSTREAM_MACHINE name it";
            millstream_cli::machine_of(&path, variable("MILLSTREAM_NODE"), asked, named)
        }
        None => Ok(Machine::detect(asked)?),
    }
}

fn size(text: &str) -> Result<u64> {
    let parsed = text.parse::<Size>();
    parsed.map(|size| size.0).map_err(|cause| Error::job("this is no size of memory").text(text).cause(cause))
}
