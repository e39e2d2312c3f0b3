//! Executors as processes: one can be killed and paused, and none outlives who started it.

use ballista_core::config::TaskSchedulingPolicy;
use fs_err as fs;
use std::ffi::OsString;
use std::io::Read;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub type Error = Box<dyn std::error::Error + Send + Sync>;
pub type Result<T> = std::result::Result<T, Error>;

/// How often executors say that they live, and how often the scheduler looks who does not.
pub const HEARTBEAT: Duration = Duration::from_secs(1);
pub const CHECK: Duration = Duration::from_secs(1);

/// Executors are given tasks; with `POLICY=pull` they ask for them.
pub fn policy() -> TaskSchedulingPolicy {
    match std::env::var("POLICY") {
        Ok(policy) if policy == "pull" => TaskSchedulingPolicy::PullStaged,
        _ => TaskSchedulingPolicy::PushStaged,
    }
}

/// The ports of each executor, whose address is its own.
pub const FLIGHT_PORT: u16 = 50051;
pub const GRPC_PORT: u16 = 50052;

/// What an executor is started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub name: String,
    pub address: Ipv4Addr,
    pub scheduler: u16,
    pub cores: usize,
    /// Bytes of the pool that all tasks of the executor share.
    pub memory: usize,
    /// For shuffles, spilled rows and the log.
    pub folder: PathBuf,
}

impl Options {
    pub fn to_arguments(&self) -> Vec<OsString> {
        let Options { name, address, scheduler, cores, memory, folder } = self;
        let texts = [name.clone(), address.to_string(), scheduler.to_string(), cores.to_string(), memory.to_string()];
        texts.map(OsString::from).into_iter().chain([folder.into()]).collect()
    }

    pub fn from_arguments(arguments: impl Iterator<Item = String>) -> Result<Options> {
        let arguments: Vec<String> = arguments.collect();
        let [name, address, scheduler, cores, memory, folder] = arguments.as_slice() else {
            return Err("the arguments are NAME ADDRESS SCHEDULER-PORT CORES MEMORY FOLDER".into());
        };
        Ok(Options {
            name: name.clone(),
            address: address.parse()?,
            scheduler: scheduler.parse()?,
            cores: cores.parse()?,
            memory: memory.parse()?,
            folder: folder.into(),
        })
    }
}

/// Ends this process as soon as the one that started it has ended or dropped its `Executor`.
pub fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
}

/// A running executor; dropping it kills it.
#[derive(Debug)]
pub struct Executor {
    pub name: String,
    child: Child,
    peak: u64,
}

impl Executor {
    pub fn start(program: &Path, options: &Options) -> Result<Executor> {
        fs::create_dir_all(&options.folder)?;
        let child = Command::new(program)
            .args(options.to_arguments())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(std::fs::File::from(fs::File::create(options.folder.join("stderr"))?))
            .spawn()?;
        Ok(Executor { name: options.name.clone(), child, peak: 0 })
    }

    /// The largest resident size so far in bytes.
    pub fn peak(&mut self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        let kib: u64 = line.and_then(|kib| kib.parse().ok()).unwrap_or(0);
        self.peak = self.peak.max(kib * 1024);
        self.peak
    }

    /// Why the process has ended, if it has ended by itself.
    pub fn ended(&mut self) -> Option<String> {
        Some(self.child.try_wait().ok()??.to_string())
    }

    /// Kills it without a chance to say anything, and waits until it is gone.
    pub fn kill(&mut self) {
        self.peak();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn pause(&self) -> Result<()> {
        self.signal("-STOP")
    }

    pub fn resume(&self) -> Result<()> {
        self.signal("-CONT")
    }

    fn signal(&self, signal: &str) -> Result<()> {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status()?;
        if status.success() { Ok(()) } else { Err(format!("kill {signal}: {status}").into()) }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.kill();
    }
}
