//! The machine: cores, memory, scratch. Detected, aware of control groups, or set by the user.

use std::path::PathBuf;

use millstream_core::{Error, Result};

/// The least memory that a run is given, in bytes.
pub const LEAST_MEMORY: u64 = 64 << 20;

/// The most workers: each is a thread, and a system that refuses one ends the process.
const MOST_CORES: usize = 1024;

/// What the run may use.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Workers that decode and compute.
    pub cores: usize,
    /// The budget: the process's resident size in bytes.
    pub memory: u64,
    /// Where what does not fit in memory is written.
    pub scratch: PathBuf,
}

impl Machine {
    /// This machine, with what the user set in place of what is found: cores, memory in bytes, the scratch folder.
    pub fn detect(cores: Option<usize>, memory: Option<u64>, scratch: Option<PathBuf>) -> Result<Self> {
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        let cores = match cores {
            Some(0) => return Err(Error::job("the number of cores is 0").hint("give at least 1")),
            Some(cores) if cores > MOST_CORES => {
                return Err(Error::job(format!("{cores} is too many cores"))
                    .hint(format!("give at most {MOST_CORES}; this machine has {available}")));
            }
            Some(cores) => cores,
            None => available.min(MOST_CORES),
        };
        let memory = match memory {
            Some(memory) if memory < LEAST_MEMORY => {
                return Err(Error::job(format!(
                    "a memory budget of {} is too small",
                    millstream_core::spec::Size(memory)
                ))
                .hint("give at least 64MiB: the program itself takes about 40 MB, and the SQL engine more"));
            }
            Some(memory) => memory,
            None => (total_memory() / 4).max(LEAST_MEMORY),
        };
        Ok(Machine { cores, memory, scratch: scratch.unwrap_or_else(std::env::temp_dir) })
    }
}

/// The memory that this process can have in bytes: the machine's, or the least limit of its control group and of the
/// groups above it.
fn total_memory() -> u64 {
    let machine = meminfo_total().unwrap_or(1 << 30);
    control_group_limit().map_or(machine, |limit| machine.min(limit))
}

fn meminfo_total() -> Option<u64> {
    let text = fs_err::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// Version 2 groups have `memory.max` in every folder from the process's own group up to the root; version 1 has
/// `memory.limit_in_bytes` under the memory controller.
fn control_group_limit() -> Option<u64> {
    let groups = fs_err::read_to_string("/proc/self/cgroup").ok()?;
    let mut limit: Option<u64> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        let mut folder = PathBuf::from(root).join(path.trim_start_matches('/'));
        while folder.starts_with(root) {
            let found = fs_err::read_to_string(folder.join(file)).ok().and_then(|text| text.trim().parse::<u64>().ok());
            limit = [limit, found].into_iter().flatten().min();
            if !folder.pop() {
                break;
            }
        }
    }
    limit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_the_machine_unless_told_otherwise() {
        let machine = Machine::detect(None, None, None).expect("detected");
        assert!(machine.cores >= 1 && machine.memory >= LEAST_MEMORY);
        assert!(machine.memory <= meminfo_total().expect("Linux") / 4 + LEAST_MEMORY);
        assert!(Machine::detect(Some(0), None, None).is_err());
        assert!(Machine::detect(Some(100_000), None, None).is_err());
        assert!(Machine::detect(None, Some(1000), None).is_err());
        assert_eq!(Machine::detect(Some(3), Some(LEAST_MEMORY), None).expect("set").cores, 3);
    }
}
