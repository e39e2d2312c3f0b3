//! Ctrl-C, `kill`, and a hangup: the first signal cancels the run, the second one ends the process at once.

use millstream::Cancel;
use millstream::{Error, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The exit code of a process that was interrupted.
const INTERRUPTED: i32 = 130;

/// Cancels on a signal; `message` shows what a second one will do.
pub fn watch(cancel: Cancel, message: impl Fn(&str) + Send + 'static) -> Result<()> {
    on_first(move || {
        cancel.cancel();
        message("stopping; a second Ctrl-C ends at once\n");
    })
}

/// Calls `first` on the first signal; the second one ends the process.
pub fn on_first(first: impl FnOnce() + Send + 'static) -> Result<()> {
    let failed = |cause: std::io::Error| Error::io("cannot wait for signals", &cause);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
    let _inside = runtime.enter();
    let mut interrupts = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminations = signal(SignalKind::terminate()).map_err(failed)?;
    let mut hangups = match is_ignored(libc::SIGHUP) {
        true => None,
        false => Some(signal(SignalKind::hangup()).map_err(failed)?),
    };
    drop(_inside);
    let mut first = Some(first);
    let waiting = move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupts.recv() => {}
                    _ = terminations.recv() => {}
                    () = hung_up(&mut hangups) => {}
                }
                match first.take() {
                    Some(first) => first(),
                    None => std::process::exit(INTERRUPTED),
                }
            }
        });
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(waiting).map_err(failed)?;
    Ok(())
}

/// Waits for a hangup; forever if hangups are ignored.
async fn hung_up(hangups: &mut Option<Signal>) {
    match hangups {
        Some(hangups) => {
            hangups.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Whether the process was started with `signal` ignored, as `nohup` does: that stays so.
fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action the call changes nothing, and writes the present one to where there is room for it.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: it was zeroed, which is a valid value of its fields, and filled if the call went well.
    result == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}
