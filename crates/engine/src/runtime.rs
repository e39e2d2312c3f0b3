//! Two runtimes: waiting and working do not share threads.
//!
//! Network, disk and timers run on `io`; decoding and operators run on `workers`, one a core, so that a long decode
//! never delays an acknowledgement. The exception are small objects over plain HTTP: a worker that wants the next one
//! has nothing better to do than to fetch it, and handing it over would cost more.

use std::sync::{Arc, Mutex, PoisonError};

use millstream_core::threads::ProcessorUse;
use millstream_core::{Error, Result, ThreadGroup};
use tokio::runtime::{Builder, Handle, Runtime};

/// The runtimes of one run.
#[derive(Debug)]
pub struct Runtimes {
    io: Option<Runtime>,
    workers: Option<Runtime>,
}

impl Runtimes {
    /// `cores` workers, and a small runtime for waiting. All their threads join `threads`.
    pub fn new(cores: usize, threads: &Arc<ThreadGroup>) -> Result<Self> {
        let io = started(Builder::new_multi_thread().worker_threads(2).thread_name("millstream-io"), threads)?;
        let workers =
            started(Builder::new_multi_thread().worker_threads(cores).thread_name("millstream-work"), threads)?;
        Ok(Runtimes { io: Some(io), workers: Some(workers) })
    }

    /// Where waiting is done.
    pub fn io(&self) -> Handle {
        self.io.as_ref().expect("present until dropped").handle().clone()
    }

    /// Where work is done.
    pub fn workers(&self) -> Handle {
        self.workers.as_ref().expect("present until dropped").handle().clone()
    }
}

/// A runtime for waiting that outlives the runs which use it.
#[derive(Debug)]
pub struct KeptIo {
    runtime: Option<Runtime>,
    threads: Arc<ThreadGroup>,
    /// What its threads had used when that was last asked.
    used: Mutex<ProcessorUse>,
}

impl KeptIo {
    /// A small one.
    pub fn new() -> Result<Self> {
        let threads = Arc::<ThreadGroup>::default();
        let io = started(Builder::new_multi_thread().worker_threads(1).thread_name("millstream-kept"), &threads)?;
        Ok(KeptIo { runtime: Some(io), threads, used: Mutex::default() })
    }

    /// Where waiting is done.
    pub fn io(&self) -> Handle {
        self.runtime.as_ref().expect("present until dropped").handle().clone()
    }

    /// What its threads have used since that was last asked.
    pub fn used(&self) -> ProcessorUse {
        let (now, mut used) = (self.threads.used(), self.used.lock().unwrap_or_else(PoisonError::into_inner));
        let before = std::mem::replace(&mut *used, now);
        ProcessorUse { busy: now.busy.saturating_sub(before.busy), delayed: now.delayed.saturating_sub(before.delayed) }
    }
}

impl Drop for KeptIo {
    fn drop(&mut self) {
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// The runtime of `builder`, whose threads join `threads`.
fn started(builder: &mut Builder, threads: &Arc<ThreadGroup>) -> Result<Runtime> {
    let threads = Arc::clone(threads);
    let started = builder.max_blocking_threads(64).on_thread_start(move || threads.join()).enable_all().build();
    started.map_err(|cause| Error::io("threads cannot be started", &cause))
}

/// A reader that hangs in a system call (a pipe that nobody writes to) must not keep the process from ending.
impl Drop for Runtimes {
    fn drop(&mut self) {
        for runtime in [self.workers.take(), self.io.take()].into_iter().flatten() {
            runtime.shutdown_background();
        }
    }
}
