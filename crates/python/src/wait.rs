//! Waiting: without the interpreter's lock, and so that Ctrl-C is noticed.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// How often is looked for signals.
const INTERVAL: Duration = Duration::from_millis(50);

/// Waits for `future`. Other threads of Python go on meanwhile.
///
/// # Errors
/// What the handler of a signal has raised: `KeyboardInterrupt`. Only the main thread runs these handlers.
pub fn wait<F>(py: Python<'_>, future: F) -> PyResult<F::Output>
where
    F: Future + Send,
    F::Output: Send,
{
    let mut future = pin!(future);
    loop {
        let part = future.as_mut();
        match py.detach(|| wait_for(part, INTERVAL)) {
            Some(output) => return Ok(output),
            None => py.check_signals()?,
        }
    }
}

/// Waits for `future` on a thread that may belong to another library. On the main thread, an interrupt of the user ends
/// that: `None`. The other library then fails with the error that it gets. (To set the signal again, so that Python
/// raises `KeyboardInterrupt` too, was tried: it comes while the first exception is shown, and garbles it.)
pub fn wait_anywhere<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    loop {
        if let Some(output) = wait_for(future.as_mut(), INTERVAL) {
            return Some(output);
        }
        if is_main_thread() && Python::try_attach(is_interrupted).unwrap_or(false) {
            return None;
        }
    }
}

/// Waits at most `limit`.
fn wait_for<F: Future>(mut future: Pin<&mut F>, limit: Duration) -> Option<F::Output> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let deadline = Instant::now() + limit;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        std::thread::park_timeout(left);
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Whether this is the thread that the process began with, which alone handles signals in Python.
fn is_main_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}

/// Whether the user wants to interrupt the program. This can be asked once.
fn is_interrupted(_: Python<'_>) -> bool {
    // SAFETY: the thread is attached to the interpreter.
    unsafe { pyo3::ffi::PyOS_InterruptOccurred() != 0 }
}
