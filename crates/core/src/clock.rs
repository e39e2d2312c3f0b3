//! The wall clock of the machine.
//!
//! It says when runs begin and how old files are. It may jump, in both directions: waits and retries are measured by
//! the monotonic clock instead. In a debug build, tests set it by `MILLSTREAM_NOW`, in milliseconds since 1970, or by
//! the file that `@FILE` there names, so that it can move.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970-01-01 UTC.
pub fn now() -> u64 {
    pinned().unwrap_or_else(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

#[cfg(not(debug_assertions))]
fn pinned() -> Option<u64> {
    None
}

#[cfg(debug_assertions)]
fn pinned() -> Option<u64> {
    let said = std::env::var("MILLSTREAM_NOW").ok()?;
    match said.strip_prefix('@') {
        Some(file) => fs_err::read_to_string(file).ok()?.trim().parse().ok(),
        None => said.parse().ok(),
    }
}
