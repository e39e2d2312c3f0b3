//! Waiting: without the interpreter's lock, and so that Ctrl-C is noticed; and taking that lock on any thread.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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

/// How many threads call Python by [`attached`], or are about to.
static CALLING: AtomicUsize = AtomicUsize::new(0);

/// Whether the interpreter ends.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// How long the end of the interpreter waits for those threads.
const LAST_CALLS: Duration = Duration::from_secs(1);

/// Calls `function` with the interpreter's lock, on a thread that may belong to another library. Does nothing once the
/// interpreter ends: it kills threads that wait for its lock then, and with them the process, since code that is not of
/// C stands on their stacks.
pub fn attached<T>(function: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    CALLING.fetch_add(1, Ordering::SeqCst);
    let called = if HAS_ENDED.load(Ordering::SeqCst) { None } else { Python::try_attach(function) };
    CALLING.fetch_sub(1, Ordering::SeqCst);
    called
}

/// Waits for the threads in [`attached`], and lets no other begin. Python calls this before it ends.
#[pyfunction]
pub fn end(py: Python<'_>) {
    HAS_ENDED.store(true, Ordering::SeqCst);
    py.detach(|| {
        let deadline = Instant::now() + LAST_CALLS;
        while CALLING.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
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
