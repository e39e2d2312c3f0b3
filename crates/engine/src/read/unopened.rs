//! Units that cannot be opened: one dead link among thousands is told together with all the others, at the end.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard};

use millstream_core::source::OnError;
use millstream_core::{Error, ErrorKind, Result, redact};

/// With so many faults reading ends at once. Of more units that are skipped only the number is known.
pub const MOST: usize = 100;

/// The units of one source that were listed and could not be opened.
#[derive(Debug)]
pub struct Unopened {
    on_error: OnError,
    found: Mutex<Found>,
}

#[derive(Debug, Default)]
struct Found {
    count: u64,
    /// Those that are counted, see [`key`].
    known: HashSet<u64>,
    /// The URIs of those that are counted, as hashes.
    uris: HashSet<u64>,
    errors: Vec<Error>,
}

impl Unopened {
    /// None yet.
    pub fn new(on_error: OnError) -> Self {
        Unopened { on_error, found: Mutex::default() }
    }

    /// Whether they are skipped.
    pub fn skips(&self) -> bool {
        self.on_error == OnError::Skip
    }

    /// Whether a look at some units goes on without one that cannot be opened for the reason `error`. What is skipped
    /// is counted when it is read.
    pub fn look_past(&self, error: Error) -> Result<()> {
        match self.on_error {
            OnError::Fail => self.leave_out(error),
            OnError::Skip if matches!(error.kind(), ErrorKind::Refused | ErrorKind::Transient) => Ok(()),
            OnError::Skip => Err(error),
        }
    }

    /// Goes on without a unit that cannot be opened for the reason `error`; or gives the error back, if it is not about
    /// that unit alone or there are too many such.
    pub fn leave_out(&self, error: Error) -> Result<()> {
        let skip = self.on_error == OnError::Skip;
        let of_one_unit = match error.kind() {
            ErrorKind::Refused => true,
            ErrorKind::Transient => skip,
            _ => false,
        };
        let mut found = self.lock();
        // A sample, or an earlier listing, may have met it before.
        if of_one_unit && found.known.contains(&key(&error)) {
            return Ok(());
        }
        if !of_one_unit || (!skip && found.errors.len() >= MOST) {
            return Err(error);
        }
        found.count += 1;
        found.known.insert(key(&error));
        found.uris.extend(error.location().uri.as_deref().map(hash));
        if found.errors.len() < MOST {
            found.errors.push(error);
        }
        Ok(())
    }

    /// Whether the unit `uri` could not be opened.
    pub fn has(&self, uri: &str) -> bool {
        let found = self.lock();
        [uri, &redact::url(uri)].into_iter().any(|uri| found.uris.contains(&hash(uri)))
    }

    /// The faults, if they are any.
    pub fn faults(&self) -> Vec<Error> {
        match self.on_error {
            OnError::Fail => self.lock().errors.clone(),
            OnError::Skip => Vec::new(),
        }
    }

    /// The faults that were found before `error`, and `error`, unless it is one of them.
    pub fn before(&self, error: Error) -> Vec<Error> {
        let mut errors = self.faults();
        if errors.iter().all(|known| key(known) != key(&error) || known.what() != error.what()) {
            errors.push(error);
        }
        errors
    }

    /// How many units were skipped, and the reasons of the first of them.
    pub fn skipped(&self) -> (u64, Vec<Error>) {
        match self.on_error {
            OnError::Fail => (0, Vec::new()),
            OnError::Skip => {
                let found = self.lock();
                (found.count, found.errors.clone())
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn hash(uri: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    uri.hash(&mut hasher);
    hasher.finish()
}

/// What tells one unit from another, in eight bytes.
fn key(error: &Error) -> u64 {
    let place = error.location();
    let mut hasher = DefaultHasher::new();
    (&place.uri, &place.member, error.offending_text()).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_about_one_unit_is_left_out_until_there_are_too_many() {
        let failing = Unopened::new(OnError::Fail);
        assert!(failing.leave_out(Error::transient("later")).is_err(), "the others would fail, too");
        assert!(failing.leave_out(Error::data("bad")).is_err());
        let gone = |number: usize| Error::refused("gone").in_unit(&number.to_string(), None);
        for number in 0..MOST {
            failing.leave_out(gone(number)).expect("it is left out");
            failing.leave_out(gone(number)).expect("it is known");
        }
        assert!(failing.leave_out(Error::refused("gone")).is_err(), "that is enough");
        assert_eq!((failing.faults().len(), failing.skipped().0), (MOST, 0));
        let (before, later) = (failing.before(gone(3)), failing.before(Error::transient("later")));
        assert_eq!((before.len(), later.len()), (MOST, MOST + 1), "each is told once");
        let skipping = Unopened::new(OnError::Skip);
        for number in 0..2 * MOST {
            skipping.leave_out(gone(number)).expect("it is skipped");
            skipping.leave_out(gone(number)).expect("it is known");
        }
        skipping.leave_out(Error::transient("later")).expect("it is skipped");
        assert!(skipping.faults().is_empty());
        assert_eq!((skipping.skipped().0, skipping.skipped().1.len()), (2 * MOST as u64 + 1, MOST));
    }
}
