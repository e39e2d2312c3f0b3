//! What each process has of its own: a copy of a process (by fork) has none of its threads.

use std::sync::{Mutex, PoisonError};

/// A value that holds threads. Each process makes it when it first asks; a copy of a process makes its own.
#[derive(Debug)]
pub struct PerProcess<T>(Mutex<Option<(u32, T)>>);

impl<T: Clone> PerProcess<T> {
    /// No value yet.
    pub const fn new() -> Self {
        PerProcess(Mutex::new(None))
    }

    /// The value of this process, which `make` makes if there is none.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn get_or_make<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if let Some((_, value)) = known.as_ref().filter(|(of, _)| *of == process) {
            return Ok(value.clone());
        }
        let value = make()?;
        // What the value of the other process would wait for when it is dropped is not there.
        std::mem::forget(known.replace((process, value.clone())));
        Ok(value)
    }
}

impl<T: Clone> Default for PerProcess<T> {
    fn default() -> Self {
        PerProcess::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_makes_a_value_once_and_its_copy_makes_another() {
        let value = PerProcess::new();
        let get = |next: u32| value.get_or_make(|| Ok::<_, ()>(next));
        assert_eq!((get(1), get(2)), (Ok(1), Ok(1)));
        *value.0.lock().expect("nobody panics") = Some((std::process::id() + 1, 1));
        assert_eq!((get(3), get(4)), (Ok(3), Ok(3)));
        assert_eq!(PerProcess::<u32>::new().get_or_make(|| Err(())), Err(()));
    }
}
