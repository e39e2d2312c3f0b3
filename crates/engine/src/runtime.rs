//! Two runtimes: waiting and working do not share threads.
//!
//! Network, disk and timers run on `io`; decoding and operators run on `workers`, one a core, so that a long decode
//! never delays an acknowledgement. The exception are small objects over plain HTTP: a worker that wants the next one
//! has nothing better to do than to fetch it, and handing it over would cost more.

use std::sync::Arc;

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
        let joining = || {
            let threads = Arc::clone(threads);
            move || threads.join()
        };
        let failed = |cause: std::io::Error| Error::io("threads cannot be started", &cause);
        let io = Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(64)
            .thread_name("millstream-io")
            .on_thread_start(joining())
            .enable_all()
            .build()
            .map_err(failed)?;
        let workers = Builder::new_multi_thread()
            .worker_threads(cores)
            .thread_name("millstream-work")
            .on_thread_start(joining())
            .enable_all()
            .build()
            .map_err(failed)?;
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

/// A reader that hangs in a system call (a pipe that nobody writes to) must not keep the process from ending.
impl Drop for Runtimes {
    fn drop(&mut self) {
        for runtime in [self.workers.take(), self.io.take()].into_iter().flatten() {
            runtime.shutdown_background();
        }
    }
}
