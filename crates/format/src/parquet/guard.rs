//! Turns a panic inside the parquet crate into an error.
//!
//! A damaged file can contradict itself in ways that the crate (and arrow below it) answers with an assertion instead
//! of an error: lengths of pages, offsets, levels. Such data must neither end the process nor print what looks like a
//! crash. Only calls that read a file's bytes go through here.

use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Once;

use millstream_core::Result;

use super::fetch::damaged;

thread_local! {
    /// Whether this thread is inside a guarded call.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, whose panics mean that the file is damaged.
pub fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    keep_quiet();
    let outer = GUARDED.replace(true);
    // The state after a panic is dropped with the reader.
    let result = catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(outer);
    // The text of the assertion does not help the user.
    result.unwrap_or_else(|_| Err(damaged("its parts contradict each other")))
}

/// The same for a future: each of its steps is guarded, on whichever thread it runs.
pub async fn guarded_future<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut work = pin!(work);
    let polled = std::future::poll_fn(|context| match guarded(|| Ok(work.as_mut().poll(context))) {
        Ok(poll) => poll,
        Err(error) => std::task::Poll::Ready(Err(error)),
    });
    polled.await
}

/// Suppresses the report of a panic that is caught here; all others are reported as before.
fn keep_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !GUARDED.get() {
                before(panic);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        let error = guarded::<()>(|| panic!("offset {} out of bounds", 3)).expect_err("a panic");
        assert_eq!(error.to_string(), "damaged parquet file: its parts contradict each other");
        assert!(!GUARDED.get());
        assert_eq!(guarded(|| Ok(1)).expect("no panic"), 1);
        let polled = futures::executor::block_on(guarded_future::<()>(async { panic!("levels") }));
        assert_eq!(polled.expect_err("a panic").what(), "damaged parquet file");
    }
}
