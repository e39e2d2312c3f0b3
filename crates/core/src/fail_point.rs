//! Places where tests end or stop the process. Nothing of it is in a release build.
//!
//! `MILLSTREAM_FAIL_AT=NAME:N` kills the process (as `kill -9` does) when it comes to the place NAME for the Nth time,
//! `MILLSTREAM_STOP_AT` stops it there (as `kill -STOP` does), until it gets SIGCONT. The places stand in the code
//! that makes rows durable, before and after each step whose loss would matter.

/// Comes to the place `name`.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn pass(_name: &str) {}

/// Comes to the place `name`.
#[cfg(debug_assertions)]
pub fn pass(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rustix::process::Signal;

    struct Trap {
        name: String,
        left: AtomicUsize,
        signal: Signal,
    }

    static TRAPS: OnceLock<Vec<Trap>> = OnceLock::new();
    let traps = TRAPS.get_or_init(|| {
        let trap = |(variable, signal): (&str, Signal)| {
            let text = std::env::var(variable).ok()?;
            let (name, times) = text.split_once(':').unwrap_or((&text, "1"));
            Some(Trap { name: name.to_owned(), left: AtomicUsize::new(times.parse().unwrap_or(1)), signal })
        };
        [("MILLSTREAM_FAIL_AT", Signal::KILL), ("MILLSTREAM_STOP_AT", Signal::STOP)]
            .into_iter()
            .filter_map(trap)
            .collect()
    });
    for trap in traps.iter().filter(|trap| trap.name == name) {
        if trap.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            let _ = rustix::process::kill_process(rustix::process::getpid(), trap.signal);
            // Whoever is killed does not come here; whoever is stopped waits until the signal has taken effect.
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}
