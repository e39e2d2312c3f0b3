//! Mutexes whose content stays usable, also if somebody has panicked over it.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The content of a mutex.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
