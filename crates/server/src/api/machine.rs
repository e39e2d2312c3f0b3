//! The machine, and what each run takes of it.

use std::path::Path;

use millstream::history::{Outcome, RunFilter, memory_taken, places_taken};
use schemars::JsonSchema;
use serde::Serialize;

use crate::access::Role;
use crate::problem::Problem;
use crate::routes::{Nothing, Request, Route, get};
use crate::shared::Shared;

pub fn routes() -> Vec<Route> {
    vec![get("/api/v1/machine", Role::Look, "The machine, and what each run takes of it", machine)]
}

/// The machine.
#[derive(Debug, Serialize, JsonSchema)]
struct MachineNow {
    host: String,
    cores: usize,
    /// In bytes, as all sizes are.
    memory: u64,
    memory_available: u64,
    /// Load averages over 1, 5 and 15 minutes.
    load: [f64; 3],
    scratch: Vec<Disk>,
    state: Disk,
    pools: Vec<Pool>,
    /// What runs may take together.
    run_memory: u64,
    /// What they have taken.
    run_memory_shared: u64,
    runs: Vec<RunNow>,
    server: ProcessNow,
}

/// A folder and its file system.
#[derive(Debug, Serialize, JsonSchema)]
struct Disk {
    path: String,
    size: u64,
    used: u64,
    /// What this user may still take.
    free: u64,
}

/// A pool.
#[derive(Debug, Serialize, JsonSchema)]
struct Pool {
    name: String,
    size: usize,
    used: usize,
}

/// What a run takes.
#[derive(Debug, Serialize, JsonSchema)]
struct RunNow {
    run: String,
    file: Option<String>,
    job: String,
    #[serde(flatten)]
    process: ProcessNow,
}

/// What a process takes.
#[derive(Debug, Default, Serialize, JsonSchema)]
struct ProcessNow {
    process: u32,
    resident: u64,
    cpu_seconds: f64,
    threads: u64,
}

fn machine(shared: &Shared, _: &Request, _: Nothing) -> Result<MachineNow, Problem> {
    let facts = &shared.facts;
    let running = RunFilter { outcome: Some(Outcome::Running), steps: true, ..RunFilter::default() };
    let running = shared.history.browse(&running, u64::MAX)?;
    let runs = running.into_iter().map(|run| RunNow {
        file: shared.folder.name_of(&run.job),
        process: process(run.process),
        run: run.run,
        job: run.job,
    });
    let pool = |(name, size): (&String, &usize)| Pool {
        name: name.clone(),
        size: *size,
        used: places_taken(shared.history.folder(), name, *size),
    };
    let [memory, memory_available] = memory();
    Ok(MachineNow {
        host: facts.host.clone(),
        cores: facts.cores,
        memory,
        memory_available,
        load: load(),
        scratch: facts.scratch.iter().map(|folder| disk(folder)).collect(),
        state: disk(shared.history.folder()),
        pools: facts.pools.iter().map(pool).collect(),
        run_memory: facts.memory,
        run_memory_shared: memory_taken(shared.history.folder())?,
        runs: runs.collect(),
        server: process(std::process::id()),
    })
}

fn disk(folder: &Path) -> Disk {
    let path = folder.display().to_string();
    match rustix::fs::statvfs(folder) {
        Ok(system) => {
            let bytes = |blocks: u64| blocks * system.f_frsize;
            let used = bytes(system.f_blocks.saturating_sub(system.f_bfree));
            Disk { path, size: bytes(system.f_blocks), used, free: bytes(system.f_bavail) }
        }
        Err(_) => Disk { path, size: 0, used: 0, free: 0 },
    }
}

/// All memory of the machine, and what is available of it.
fn memory() -> [u64; 2] {
    let text = fs_err::read_to_string("/proc/meminfo").unwrap_or_default();
    ["MemTotal:", "MemAvailable:"].map(|name| number_behind(&text, name).unwrap_or_default() * 1024)
}

fn number_behind(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn load() -> [f64; 3] {
    let text = fs_err::read_to_string("/proc/loadavg").unwrap_or_default();
    let mut numbers = text.split(' ').map(|number| number.parse().unwrap_or_default());
    [(); 3].map(|()| numbers.next().unwrap_or_default())
}

fn process(process: u32) -> ProcessNow {
    let read = |name: &str| fs_err::read_to_string(format!("/proc/{process}/{name}")).unwrap_or_default();
    let (status, stat) = (read("status"), read("stat"));
    let number = |name: &str| number_behind(&status, name).unwrap_or_default();
    // Behind the name of the program, which may hold anything: user and system time are numbers 12 and 13.
    let behind = stat.rsplit_once(") ").map_or("", |(_, behind)| behind);
    let ticks: u64 = behind.split(' ').skip(11).take(2).filter_map(|number| number.parse::<u64>().ok()).sum();
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    ProcessNow {
        process,
        resident: number("VmRSS:") * 1024,
        cpu_seconds: ticks as f64 / per_second as f64,
        threads: number("Threads:"),
    }
}
