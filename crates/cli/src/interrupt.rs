//! Ctrl-C and `kill`: the first asks the run to end cleanly, the second ends it at once.

use std::sync::Arc;

use millstream_core::{Error, Result};
use millstream_engine::run::Interrupt;
use tokio::signal::unix::{SignalKind, signal};

/// The exit code of a process that was interrupted.
const INTERRUPTED: i32 = 130;

/// Hands signals to `interrupt`; `tell` says what a second one would do.
pub fn watch(interrupt: Arc<Interrupt>, tell: impl Fn(&str) + Send + 'static) -> Result<()> {
    let failed = |cause: std::io::Error| Error::io("signals cannot be waited for", &cause);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
    let _inside = runtime.enter();
    let mut interrupts = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminations = signal(SignalKind::terminate()).map_err(failed)?;
    drop(_inside);
    let waiting = move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupts.recv() => {}
                    _ = terminations.recv() => {}
                }
                if interrupt.is_asked() {
                    std::process::exit(INTERRUPTED);
                }
                interrupt.ask();
                tell("stopping, and taking back what was written; a second Ctrl-C ends at once\n");
            }
        });
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(waiting).map_err(failed)?;
    Ok(())
}
