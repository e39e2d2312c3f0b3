//! The order of arrival of rows that are staged: which of several rows with one key is the last one, whichever run has
//! staged it, and in which order groups are committed.
//!
//! ```text
//!  arrival = slot of the unit · 2⁴² + first byte of the member + byte of the record
//! ```
//! Units come in the order in which they were begun, the members of an archive one behind the other, and records as
//! they stand in the text. A slot has room for 4 TiB of text. What is longer reaches into the next one: its records
//! keep their order, which is all that is promised. Where a unit or member begins is noted before its first rows are
//! staged, or with them: a run that resumes the load may find other files, and begin them in another order.
//!
//! Rows that an earlier version has staged are in the table beside those of this one. So a change of these rules needs
//! another name for staged loads (`STAGED` in `resume/names.rs`): then they are staged again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use millstream_core::sink::{Chunk, WrittenChunks};

/// Bits for the bytes of a unit.
const BITS: u32 = 42;

/// The last slot. Units that are more share it.
const LAST: u64 = (1 << (63 - BITS)) - 2;

/// Behind the name of a unit or member: where it begins.
const BEGINS: &str = "\nbegins";

/// Numbers the rows of one unit.
#[derive(Debug)]
pub struct Arrivals {
    slot: u64,
    written: Arc<WrittenChunks>,
    state: Mutex<Known>,
}

/// The members of a unit so far.
#[derive(Debug, Default)]
struct Known {
    places: HashMap<String, Arc<Place>>,
    /// Behind the last record.
    end: u64,
}

/// Where the rows of a unit, or of one of its members, stand.
#[derive(Debug)]
pub struct Place {
    begins: u64,
    /// What notes that.
    note: Chunk,
    is_noted: AtomicBool,
}

impl Place {
    /// The number of the record that begins at `byte`.
    pub fn arrival(&self, byte: u64) -> i64 {
        i64::try_from(self.begins.saturating_add(byte)).unwrap_or(i64::MAX)
    }

    /// What tells it from other places.
    pub fn key(&self) -> &str {
        &self.note.unit
    }

    /// What notes where it begins, unless that is written.
    pub fn note(&self) -> Option<&Chunk> {
        (!self.is_noted.load(Ordering::Relaxed)).then_some(&self.note)
    }

    /// Its note is written.
    pub fn noted(&self) {
        self.is_noted.store(true, Ordering::Relaxed);
    }
}

impl Arrivals {
    /// Of a unit with the slot `slot`; `written` says where an earlier run has put it.
    pub fn new(slot: u64, written: Arc<WrittenChunks>) -> Self {
        Arrivals { slot: slot.min(LAST), written, state: Mutex::default() }
    }

    /// The place of the unit or member `unit`, of which a record begins at `last`.
    pub fn place_of(&self, unit: &str, last: u64) -> Arc<Place> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let place = match state.places.get(unit) {
            Some(place) => Arc::clone(place),
            None => {
                let place = Arc::new(self.begin(unit, state.end));
                state.places.insert(unit.to_owned(), Arc::clone(&place));
                place
            }
        };
        let end = place.begins.saturating_sub(self.slot << BITS).saturating_add(last + 1);
        state.end = state.end.max(end);
        place
    }

    /// The place of a unit or member that comes behind `end` bytes of the unit.
    fn begin(&self, unit: &str, end: u64) -> Place {
        let unit = format!("{unit}{BEGINS}");
        let noted = self.written.of_unit(&unit).first().copied();
        let begins = noted.unwrap_or((self.slot << BITS).saturating_add(end)).min(i64::MAX.unsigned_abs() - 1);
        Place { begins, note: Chunk { unit, number: begins }, is_noted: AtomicBool::new(noted.is_some()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(chunks: &[&Chunk]) -> Arc<WrittenChunks> {
        let chunks = chunks.iter().map(|chunk| (chunk.unit.clone(), chunk.number));
        Arc::new(WrittenChunks::new(chunks, str::to_owned))
    }

    #[test]
    fn records_are_in_the_order_of_units_members_and_bytes() {
        let [first, second] = [0, 1].map(|slot| Arrivals::new(slot, written(&[])));
        let plain = first.place_of("a", 500);
        let (one, _) = (second.place_of("z/1", 0), second.place_of("z/1", 900));
        let other = second.place_of("z/2", 0);
        let again = second.place_of("z/1", 950);
        let numbers = [plain.arrival(0), plain.arrival(500), one.arrival(0), again.arrival(900), other.arrival(0)];
        assert!(numbers.is_sorted_by(|left, right| left < right), "{numbers:?}");
        assert_eq!(one.arrival(7), again.arrival(7));
    }

    #[test]
    fn a_unit_keeps_its_place_when_a_load_is_resumed() {
        let before = Arrivals::new(5, written(&[])).place_of("a", 9);
        let note = before.note().expect("it is not noted").clone();
        let after = Arrivals::new(2, written(&[&note])).place_of("a", 9);
        assert_eq!(before.arrival(3), after.arrival(3));
        assert_eq!(after.note(), None);
        before.noted();
        assert_eq!(before.note(), None);
    }

    #[test]
    fn the_order_within_a_unit_holds_however_much_there_is() {
        let last = Arrivals::new(u64::MAX, written(&[]));
        let place = last.place_of("a", 1 << 43);
        assert!(place.arrival(1 << 42) < place.arrival((1 << 43) - 1), "behind the slot");
        assert!(place.arrival(0) > 0 && place.note().expect("a note").number < 1 << 63);
    }
}
