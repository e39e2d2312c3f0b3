//! The machine: cores, memory, scratch. Detected, aware of control groups, or set by the user, in its own file or for
//! one run.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use millstream_core::hint::did_you_mean;
use millstream_core::spec::Size;
use millstream_core::{Error, Result};
use millstream_job::machine::{ClusterKeys, DEFAULT_POOL, ScratchDisk, Smtp};
use millstream_job::{Lint, MachineFile, RunCompression};
use millstream_sort::Compression;

use crate::failure::Failure;
use crate::memory::LEAST_MEMORY;

/// The most workers: each is a thread, and a system that refuses one ends the process.
const MOST_CORES: usize = 1024;

/// The least and most bytes of a block of a sorted run.
const BLOCK: (u64, u64) = (4 << 10, 16 << 20);

/// What the run may use.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Workers that decode and compute.
    pub cores: usize,
    /// The budget: the process's resident size in bytes.
    pub memory: u64,
    /// Where what does not fit in memory is written.
    pub scratch: Disks,
    /// Folder for the run history, if one is named.
    pub state: Option<PathBuf>,
    /// The server that sends mails, if there is one.
    pub smtp: Option<Smtp>,
    /// How many steps of sequences run together that name the same pool, by the names of the pools; `None` without a
    /// machine file.
    pub pools: Option<BTreeMap<String, usize>>,
    /// The cluster that it belongs to, if the machine file says so.
    pub cluster: Option<ClusterKeys>,
}

/// What is set for one run: it comes before what the machine file says.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// Workers.
    pub cores: Option<usize>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Folders for scratch, for everything.
    pub scratch: Vec<PathBuf>,
    /// Folder for the run history.
    pub state: Option<PathBuf>,
}

/// Where what does not fit in memory is written, and how.
#[derive(Debug, Clone)]
pub struct Disks {
    /// At least one.
    pub disks: Vec<Disk>,
    /// How sorted runs are written.
    pub compression: Compression,
    /// Bytes of a block of these, if that is set.
    pub block: Option<u64>,
    /// Whether rows wait before a sort while it is busy.
    pub buffer: bool,
}

/// A folder for scratch.
#[derive(Debug, Clone)]
pub struct Disk {
    /// The folder.
    pub folder: PathBuf,
    /// Its pools; none if it is for everything.
    pub pools: Vec<String>,
}

impl Disk {
    /// Whether what names no pool may use it.
    pub fn is_for_everything(&self) -> bool {
        self.pools.is_empty() || self.pools.iter().any(|pool| pool == DEFAULT_POOL)
    }
}

impl Disks {
    /// One folder for everything.
    pub fn one(folder: PathBuf) -> Self {
        Disks {
            disks: vec![Disk { folder, pools: Vec::new() }],
            compression: Compression::default(),
            block: None,
            buffer: false,
        }
    }

    /// The names of all pools, in the order in which they are named first.
    pub fn pools(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for pool in self.disks.iter().flat_map(|disk| &disk.pools) {
            if !names.contains(&pool.as_str()) {
                names.push(pool.as_str());
            }
        }
        names
    }

    /// What to do about a `pool` that is none of this machine's; nothing if it is one, or if the machine has none at
    /// all: then everything uses what there is.
    pub fn no_such_pool(&self, pool: &str) -> Option<String> {
        let pools = self.pools();
        let is_wrong = !pools.is_empty() && pool != DEFAULT_POOL && !pools.contains(&pool);
        is_wrong.then(|| did_you_mean(pool, "pools of this machine", &pools))
    }

    fn of_file(file: &MachineFile, folders: Vec<PathBuf>) -> Self {
        let everything = |folder: PathBuf| Disk { folder, pools: Vec::new() };
        let of_file = |disk: &ScratchDisk| Disk {
            folder: PathBuf::from(&disk.folder.value),
            pools: disk.pools.iter().map(|pool| pool.value.clone()).collect(),
        };
        let disks = match (folders.is_empty(), file.disks.is_empty()) {
            (false, _) => folders.into_iter().map(everything).collect(),
            (true, false) => file.disks.iter().map(of_file).collect(),
            (true, true) => vec![everything(std::env::temp_dir())],
        };
        let compression = match file.compression {
            RunCompression::Auto => Compression::Auto,
            RunCompression::None => Compression::None,
            RunCompression::Lz4 => Compression::Lz4,
            RunCompression::Zstd => Compression::Zstd,
        };
        Disks { disks, compression, block: file.block.map(|block| block.value), buffer: file.buffer }
    }
}

impl fmt::Display for Disks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |disk: &Disk| {
            let memory = if millstream_sort::is_in_memory(&disk.folder) { " (in memory)" } else { "" };
            let pools = disk.pools.join(", ");
            let pools = if pools.is_empty() { String::new() } else { format!(" for {pools}") };
            format!("{}{memory}{pools}", disk.folder.display())
        };
        f.write_str(&self.disks.iter().map(shown).collect::<Vec<_>>().join(", "))?;
        match self.compression {
            Compression::Auto => {}
            Compression::None => f.write_str(", runs as they are")?,
            Compression::Lz4 => f.write_str(", runs packed with lz4")?,
            Compression::Zstd => f.write_str(", runs packed with zstd")?,
        }
        self.block.map_or(Ok(()), |block| write!(f, ", in blocks of {}", Size(block)))?;
        if self.buffer { f.write_str(", a buffer before each sort") } else { Ok(()) }
    }
}

impl Machine {
    /// This machine, with what the user set in place of what is found.
    pub fn detect(asked: Asked) -> Result<Self> {
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        let cores = match asked.cores {
            Some(0) => return Err(Error::job("the number of cores is 0").hint("give at least 1")),
            Some(cores) if cores > MOST_CORES => {
                return Err(Error::job(format!("{cores} is too many cores"))
                    .hint(format!("give at most {MOST_CORES}; this machine has {available}")));
            }
            Some(cores) => cores,
            None => available.min(MOST_CORES),
        };
        let memory = match asked.memory {
            Some(memory) if memory < LEAST_MEMORY => return Err(Error::job(too_small(memory)).hint(AT_LEAST)),
            Some(memory) => memory,
            None => (total_memory() / 4).max(LEAST_MEMORY),
        };
        let mut scratch = Disks::one(std::env::temp_dir());
        if !asked.scratch.is_empty() {
            scratch.disks = asked.scratch.into_iter().map(|folder| Disk { folder, pools: Vec::new() }).collect();
        }
        Ok(Machine { cores, memory, scratch, state: asked.state, smtp: None, pools: None, cluster: None })
    }

    /// This machine as `file` has it, with what was `asked` for in place of it.
    pub fn of_file(file: &MachineFile, asked: Asked) -> Result<Self, Failure> {
        let lints = faults(file);
        if !lints.is_empty() {
            return Err(Failure { lints, errors: Vec::new() });
        }
        let folders = asked.scratch;
        let cores = asked.cores.or(file.cores.map(|cores| cores.value));
        let memory = asked.memory.or(file.memory.map(|memory| memory.value));
        let state = asked.state.or_else(|| file.state.as_ref().map(|state| PathBuf::from(&state.value)));
        let machine = Machine::detect(Asked { cores, memory, scratch: Vec::new(), state })?;
        let pools = file.pools.iter().map(|(name, size)| (name.clone(), size.value)).collect();
        let (scratch, smtp) = (Disks::of_file(file, folders), file.smtp.clone());
        Ok(Machine { scratch, smtp, pools: Some(pools), cluster: file.cluster.clone(), ..machine })
    }
}

/// The name of this machine.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// What to do about a budget that is too small.
const AT_LEAST: &str = "give at least 64MiB: the program itself takes about 40 MB, and the SQL engine more";

fn too_small(memory: u64) -> String {
    format!("a memory budget of {} is too small", Size(memory))
}

/// What is wrong with the values of `file`, each by itself.
fn faults(file: &MachineFile) -> Vec<Lint> {
    let mut lints = Vec::new();
    if let Some(memory) = file.memory.filter(|memory| memory.value < LEAST_MEMORY) {
        lints.push(file.text.error(memory.span, too_small(memory.value)).hint(AT_LEAST));
    }
    if let Some(block) = file.block.filter(|block| !(BLOCK.0..=BLOCK.1).contains(&block.value)) {
        let what = format!("a run cannot have blocks of {}", Size(block.value));
        lints.push(file.text.error(block.span, what).hint("give something from 4KiB to 16MiB"));
    }
    for (index, disk) in file.disks.iter().enumerate() {
        let (folder, span) = (&disk.folder.value, disk.folder.span);
        if file.disks[..index].iter().any(|other| other.folder.value == *folder) {
            let what = format!("{folder} is named twice");
            lints.push(file.text.error(span, what).hint("name it once, with all of its pools"));
            continue;
        }
        if let Err(error) = check_scratch(folder.as_ref()) {
            let what = [Some(error.what()), error.cause_text()].into_iter().flatten().collect::<Vec<_>>().join(": ");
            lints.push(file.text.error(span, what).hint("create the folder, or name another one"));
        }
    }
    lints
}

/// The folder in which a run may keep what does not fit in memory must be there.
pub fn check_scratch(parent: &Path) -> Result<()> {
    match fs_err::metadata(parent) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(Error::job(format!("the scratch folder {} is not a folder", parent.display()))),
        Err(cause) => Err(Error::io(format!("the scratch folder {} cannot be used", parent.display()), &cause)),
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
    fn a_quarter_of_the_machine_by_default() {
        let detect = |cores, memory| Machine::detect(Asked { cores, memory, ..Asked::default() });
        let machine = detect(None, None).expect("detected");
        assert!(machine.cores >= 1 && machine.memory >= LEAST_MEMORY);
        assert!(machine.memory <= meminfo_total().expect("Linux") / 4 + LEAST_MEMORY);
        assert!(detect(Some(0), None).is_err());
        assert!(detect(Some(100_000), None).is_err());
        assert!(detect(None, Some(1000)).is_err());
        assert_eq!(detect(Some(3), Some(LEAST_MEMORY)).expect("set").cores, 3);
    }
}
