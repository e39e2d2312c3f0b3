//! What a consumer has handed out, what of that is committed where, and what moves its positions: decisions without any
//! I/O.

use std::collections::BTreeMap;

use millstream_core::Reservation;
use millstream_core::positions::Move;
use millstream_core::queue::SinkSet;

use super::ranges::Ranges;
use super::reply::EntryId;
use super::rows::{ConsumerState, consumer_place};

/// A version that no position ever has, and that targets can compare: their numbers have a sign.
const NEVER: u64 = i64::MAX.unsigned_abs() / 2;

/// A batch that was handed out.
#[derive(Debug)]
struct Batch {
    ids: Vec<EntryId>,
    ranges: Ranges,
    sinks: SinkSet,
    /// `None` once it is acknowledged, and the server has not confirmed that yet.
    room: Option<Reservation>,
}

/// A state on its way.
#[derive(Debug)]
struct Proposed {
    batches: Vec<u64>,
    state: ConsumerState,
    in_row: Ranges,
}

/// Where the consumer stands in one target.
#[derive(Debug, Default)]
struct Target {
    /// The version of its row; `None` if the sink keeps no positions.
    version: Option<u64>,
    /// What it has committed there and what is not known to be acknowledged.
    state: ConsumerState,
    /// What its row has.
    in_row: Ranges,
    /// The state that was given for these batches last.
    proposed: Option<Proposed>,
}

/// The books of one life after the other.
#[derive(Debug)]
pub(super) struct Book {
    stream: String,
    /// The name that is used now; `None` between two lives.
    name: Option<String>,
    next: u64,
    batches: BTreeMap<u64, Batch>,
    targets: Vec<Target>,
}

impl Book {
    /// Of a consumer that has no name yet.
    pub(super) fn new(stream: &str) -> Self {
        Book { stream: stream.to_owned(), name: None, next: 0, batches: BTreeMap::new(), targets: Vec::new() }
    }

    /// A name was registered; for each sink the version of its row, if it keeps positions.
    pub(super) fn begin(&mut self, name: &str, versions: &[Option<u64>]) {
        self.name = Some(name.to_owned());
        self.targets = versions.iter().map(|version| Target { version: *version, ..Target::default() }).collect();
    }

    /// The name must not be used any more. Gives it, and the batches that are revoked by that.
    pub(super) fn end(&mut self) -> (Option<String>, Vec<u64>) {
        let revoked: Vec<u64> =
            self.batches.iter().filter(|(_, batch)| batch.room.is_some()).map(|(no, _)| *no).collect();
        self.batches.retain(|_, batch| batch.room.is_none());
        self.targets.clear();
        (self.name.take(), revoked)
    }

    /// Takes note of a batch that is handed out; its number.
    pub(super) fn hand_out(&mut self, ids: Vec<EntryId>, ranges: Ranges, sinks: SinkSet, room: Reservation) -> u64 {
        let number = self.next;
        self.next += 1;
        self.batches.insert(number, Batch { ids, ranges, sinks, room: Some(room) });
        number
    }

    /// What moves the positions of a sink behind these batches. If one of them is revoked, it is a move that fails.
    pub(super) fn moves(&mut self, sink: usize, batches: &[u64]) -> Vec<Move> {
        let known = batches.iter().all(|number| self.batches.contains_key(number));
        let (Some(name), true) = (&self.name, known) else {
            let place = consumer_place("revoked", &self.stream);
            return vec![Move { place, from: Some(NEVER), to: None }];
        };
        let Some(target) = self.targets.get_mut(sink) else { return Vec::new() };
        let Some(version) = target.version else { return Vec::new() };
        let mut state = target.state.clone();
        for batch in batches.iter().filter_map(|number| self.batches.get(number)) {
            if batch.sinks & (1 << sink) != 0 {
                state.committed.add(&batch.ranges);
                state.high = state.high.max(batch.ranges.highest().unwrap_or_default());
            }
        }
        let to = Some(state.written());
        target.proposed = Some(Proposed { batches: batches.to_vec(), in_row: state.committed.clone(), state });
        vec![Move { place: consumer_place(name, &self.stream), from: Some(version), to }]
    }

    /// A sink has committed these batches.
    pub(super) fn committed(&mut self, sink: usize, batches: &[u64]) {
        let Some(target) = self.targets.get_mut(sink) else { return };
        if let Some(proposed) = target.proposed.take_if(|proposed| proposed.batches == batches) {
            (target.state, target.in_row) = (proposed.state, proposed.in_row);
            target.version = target.version.map(|version| version + 1);
        }
    }

    /// All sinks have committed a batch: its ids, which are to be acknowledged. `None` if it is revoked.
    pub(super) fn acknowledge(&mut self, number: u64) -> Option<Vec<EntryId>> {
        let batch = self.batches.get_mut(&number)?;
        batch.room.take().map(|_| std::mem::take(&mut batch.ids))
    }

    /// The server has confirmed that a batch is acknowledged.
    pub(super) fn confirmed(&mut self, number: u64) {
        let Some(batch) = self.batches.remove(&number) else { return };
        for target in &mut self.targets {
            target.state.committed.remove(&batch.ranges);
            target.proposed.iter_mut().for_each(|proposed| proposed.state.committed.remove(&batch.ranges));
        }
    }

    /// What the row of a sink has though it is acknowledged.
    pub(super) fn confirmed_in_row(&self, sink: usize) -> Ranges {
        let Some(target) = self.targets.get(sink) else { return Ranges::default() };
        let mut confirmed = target.in_row.clone();
        confirmed.remove(&target.state.committed);
        confirmed
    }

    /// Whether a batch is neither revoked nor acknowledged.
    pub(super) fn has(&self, number: u64) -> bool {
        self.batches.get(&number).is_some_and(|batch| batch.room.is_some())
    }

    /// The oldest entry that is not acknowledged.
    pub(super) fn oldest(&self) -> Option<EntryId> {
        self.batches.values().filter_map(|batch| batch.ids.first()).min().copied()
    }
}

#[cfg(test)]
mod tests {
    use millstream_core::Budget;

    use super::*;

    fn id(sequence: u64) -> EntryId {
        EntryId { milliseconds: 1, sequence }
    }

    /// A book in which batches of ten entries each were handed out to two sinks, the second without positions.
    fn book(batches: u64) -> Book {
        let budget = Budget::new(1000);
        let mut book = Book::new("s");
        book.begin("a", &[Some(1), None]);
        for number in 0..batches {
            let (first, last) = (number * 10, number * 10 + 9);
            let room = Reservation::of_taken(&budget, 1);
            let ids = (first..=last).map(id).collect();
            assert_eq!(book.hand_out(ids, Ranges::of(id(first), id(last)), 0b11, room), number);
        }
        book
    }

    fn state(moves: &[Move]) -> (Option<u64>, &str) {
        (moves[0].from, moves[0].to.as_deref().unwrap_or_default())
    }

    #[test]
    fn ranges_leave_the_row_when_they_are_acknowledged() {
        let mut book = book(3);
        assert_eq!(state(&book.moves(0, &[0])), (Some(1), "1 1-9 1.0:0.9"));
        assert_eq!(book.moves(1, &[0]), []);
        // It was not committed: the next try names the same version.
        assert_eq!(state(&book.moves(0, &[0, 1])), (Some(1), "1 1-19 1.0:0.19"));
        book.committed(0, &[0, 1]);
        assert_eq!(book.acknowledge(0).map(|ids| ids.len()), Some(10));
        assert_eq!(book.acknowledge(0), None);
        assert_eq!(state(&book.moves(0, &[2])), (Some(2), "1 1-29 1.0:0.29"));
        book.confirmed(0);
        book.committed(0, &[2]);
        assert_eq!(book.confirmed_in_row(0), Ranges::of(id(0), id(9)));
        assert_eq!((book.oldest(), book.has(0), book.has(1)), (Some(id(10)), false, true));
        assert_eq!(state(&book.moves(0, &[])), (Some(3), "1 1-29 1.10:0.29"));
    }

    #[test]
    fn what_is_revoked_cannot_be_committed() {
        let mut book = book(2);
        book.moves(0, &[0]);
        book.committed(0, &[0]);
        book.acknowledge(0);
        book.moves(0, &[1]);
        assert_eq!(book.end(), (Some("a".to_owned()), vec![1]));
        assert_eq!(state(&book.moves(0, &[1])).0, Some(NEVER));
        book.begin("b", &[Some(1), None]);
        assert_eq!(state(&book.moves(0, &[1])).0, Some(NEVER));
        book.committed(0, &[1]);
        assert_eq!(book.acknowledge(1), None);
        book.confirmed(0);
        assert_eq!(state(&book.moves(0, &[])), (Some(1), "1 0-0 "));
    }
}
