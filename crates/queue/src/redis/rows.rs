//! What a target keeps of a stream's consumers, and how that changes: decisions over positions, without any I/O.
//!
//! ```text
//!  consumer NAME STREAM   which entries it has committed whose acknowledgement is not confirmed
//!  beat NAME STREAM       moves as long as the consumer lives
//!  group STREAM           what is left of consumers that are no more
//! ```
//!
//! A consumer's name is used once. Without a row it can never commit again, since its row is moved by every commit.

use std::collections::{BTreeMap, BTreeSet};

use millstream_core::positions::{Move, Position};
use millstream_core::queue::{MessageId, SinkSet};
use millstream_core::{Error, Result};

use super::ranges::Ranges;
use super::reply::EntryId;

/// The version of the states, which they begin with.
const VERSION: &str = "1";

/// How the names of all consumers of ours begin.
pub(super) const NAME_PREFIX: &str = "millstream-";

/// The place of a consumer.
pub(super) fn consumer_place(name: &str, stream: &str) -> String {
    format!("consumer {name} {stream}")
}

/// The place that shows that a consumer lives.
pub(super) fn beat_place(name: &str, stream: &str) -> String {
    format!("beat {name} {stream}")
}

/// The place of the group.
pub(super) fn group_place(stream: &str) -> String {
    format!("group {stream}")
}

/// What a consumer has committed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ConsumerState {
    /// Entries whose acknowledgement is not confirmed.
    pub(super) committed: Ranges,
    /// The highest entry that it has ever committed.
    pub(super) high: EntryId,
}

impl ConsumerState {
    /// As a position has it.
    pub(super) fn written(&self) -> String {
        format!("{VERSION} {} {}", self.high, self.committed)
    }

    fn parse(state: &str) -> Option<Self> {
        let mut words = state.splitn(2, ' ');
        let high = words.next()?.parse().ok()?;
        Some(ConsumerState { high, committed: words.next()?.parse().ok()? })
    }
}

/// What is left of consumers that are no more, and what was seen of the stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct GroupState {
    /// Entries that were committed and may not be acknowledged.
    pub(super) committed: Ranges,
    /// The highest entry that they have committed.
    pub(super) high: EntryId,
    /// How many entries had ever been added to the stream when somebody looked last.
    pub(super) added: u64,
    /// The deleted entry that was reported as lost last.
    pub(super) told: EntryId,
    /// Consumers without a row that may have entries.
    pub(super) gone: BTreeSet<String>,
}

impl GroupState {
    /// As a position has it.
    pub(super) fn written(&self) -> String {
        let gone: Vec<&str> = self.gone.iter().map(String::as_str).collect();
        let GroupState { committed, high, added, told, .. } = self;
        format!("{VERSION} {high} {added} {told} {} {committed}", gone.join(","))
    }

    fn parse(state: &str) -> Option<Self> {
        let mut words = state.splitn(5, ' ');
        let high = words.next()?.parse().ok()?;
        let added = words.next()?.parse().ok()?;
        let told = words.next()?.parse().ok()?;
        let gone = words.next()?.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        Some(GroupState { high, added, told, gone, committed: words.next()?.parse().ok()? })
    }
}

/// A state and its version.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Versioned<S> {
    pub(super) version: u64,
    pub(super) state: S,
}

/// A sign of life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Beat {
    pub(super) version: u64,
    /// The process of the consumer.
    pub(super) owner: String,
}

/// The rows of a stream in one target.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) group: Option<Versioned<GroupState>>,
    pub(super) consumers: BTreeMap<String, Versioned<ConsumerState>>,
    pub(super) beats: BTreeMap<String, Beat>,
}

impl Rows {
    /// The positions of `stream` among those of a load.
    ///
    /// # Errors
    /// If one was written by a newer version, or is none of ours.
    pub(super) fn of(stream: &str, positions: &[Position]) -> Result<Self> {
        let mut rows = Rows::default();
        for position in positions {
            let Some((kind, rest)) = position.place.split_once(' ') else { continue };
            if kind == "group" && rest == stream {
                let state = state(position, GroupState::parse)?;
                rows.group = Some(Versioned { version: position.version, state });
                continue;
            }
            let Some((name, _)) = rest.split_once(' ').filter(|(_, of)| *of == stream) else { continue };
            match kind {
                "consumer" => {
                    let state = state(position, ConsumerState::parse)?;
                    rows.consumers.insert(name.to_owned(), Versioned { version: position.version, state });
                }
                "beat" => {
                    let beat = Beat { version: position.version, owner: position.owner.clone() };
                    rows.beats.insert(name.to_owned(), beat);
                }
                _ => {}
            }
        }
        Ok(rows)
    }

    /// All entries that were committed and may not be acknowledged.
    pub(super) fn committed(&self) -> Ranges {
        let mut all = self.group.as_ref().map(|group| group.state.committed.clone()).unwrap_or_default();
        self.consumers.values().for_each(|consumer| all.add(&consumer.state.committed));
        all
    }

    /// The highest entry that was ever committed.
    pub(super) fn high(&self) -> EntryId {
        let consumers = self.consumers.values().map(|consumer| consumer.state.high);
        consumers.chain(self.group.iter().map(|group| group.state.high)).max().unwrap_or_default()
    }

    /// Whether a consumer is known that may not have been removed completely.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.consumers.contains_key(name) || self.beats.contains_key(name)
    }

    /// Whether a consumer has no row any more and may have entries.
    pub(super) fn is_gone(&self, name: &str) -> bool {
        self.group.as_ref().is_some_and(|group| group.state.gone.contains(name))
    }

    /// What registers a consumer; the group, too, if it is new, of whose stream so many entries were `added` so far.
    pub(super) fn registers(&self, stream: &str, name: &str, added: u64) -> Vec<Move> {
        let to = |place, state: String| Move { place, from: None, to: Some(state) };
        let mut moves = vec![
            to(beat_place(name, stream), VERSION.to_owned()),
            to(consumer_place(name, stream), ConsumerState::default().written()),
        ];
        if self.group.is_none() {
            let state = GroupState { added, ..GroupState::default() };
            moves.push(to(group_place(stream), state.written()));
        }
        moves
    }

    /// What removes a consumer and keeps what it has committed, except for what is `confirmed` to be acknowledged. It
    /// `has_entries` if some may still be handed out to it.
    pub(super) fn removes(&self, stream: &str, name: &str, confirmed: &Ranges, has_entries: bool) -> Vec<Move> {
        let remove = |place, from| Move { place, from: Some(from), to: None };
        let beat = self.beats.get(name).map(|beat| remove(beat_place(name, stream), beat.version));
        let Some(consumer) = self.consumers.get(name) else { return beat.into_iter().collect() };
        let mut committed = consumer.state.committed.clone();
        committed.remove(confirmed);
        let mut state = self.group.as_ref().map(|group| group.state.clone()).unwrap_or_default();
        state.committed.add(&committed);
        state.high = state.high.max(consumer.state.high);
        if has_entries {
            state.gone.insert(name.to_owned());
        }
        let removed = remove(consumer_place(name, stream), consumer.version);
        beat.into_iter().chain([removed, self.group_to(stream, &state)]).collect()
    }

    /// What gives the group a new state.
    pub(super) fn group_to(&self, stream: &str, state: &GroupState) -> Move {
        let from = self.group.as_ref().map(|group| group.version);
        Move { place: group_place(stream), from, to: Some(state.written()) }
    }
}

fn state<S>(position: &Position, parse: fn(&str) -> Option<S>) -> Result<S> {
    let what = || format!("the position `{}`", position.place);
    match position.state.split_once(' ') {
        Some((VERSION, rest)) => parse(rest).ok_or_else(|| {
            Error::refused(format!("{} cannot be read", what()))
                .text(&position.state)
                .hint("the table `_millstream_positions` must not be changed by hand")
        }),
        Some((version, _)) => Err(Error::newer(what(), version, VERSION)),
        None => Err(Error::newer(what(), &position.state, VERSION)),
    }
}

/// Which messages are lacking where: for each set of sinks, the numbers of the messages that they lack. `committed` has
/// for each sink what was committed there; `None` where that is not known, and the sink lacks all.
pub(super) fn lacking(ids: &[MessageId], committed: &[Option<Ranges>]) -> BTreeMap<SinkSet, Vec<usize>> {
    let mut numbers: BTreeMap<SinkSet, Vec<usize>> = BTreeMap::new();
    for (number, id) in ids.iter().enumerate() {
        let lacks = |sink: &Option<Ranges>| !sink.as_ref().is_some_and(|ranges| ranges.contains((*id).into()));
        let sinks = (0..).zip(committed).filter(|(_, sink)| lacks(sink)).fold(0, |set, (bit, _)| set | 1 << bit);
        numbers.entry(sinks).or_default().push(number);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn id(sequence: u64) -> EntryId {
        EntryId { milliseconds: 5, sequence }
    }

    fn position(place: String, version: u64, state: String) -> Position {
        Position { place, version, owner: "o".to_owned(), state, idle: Duration::ZERO }
    }

    /// Makes moves; every one has to know the version that is there.
    fn apply(positions: &mut Vec<Position>, moves: Vec<Move>) {
        for one in moves {
            let before = positions.iter().position(|position| position.place == one.place);
            assert_eq!(before.map(|at| positions[at].version), one.from, "{one:?}");
            before.map(|at| positions.remove(at));
            let version = one.from.unwrap_or(0) + 1;
            positions.extend(one.to.map(|state| position(one.place, version, state)));
        }
    }

    #[test]
    fn what_a_removed_consumer_has_committed_stays() {
        let mut positions = vec![position("other place".to_owned(), 1, "x".to_owned())];
        let rows = Rows::of("s t", &positions).expect("rows");
        apply(&mut positions, rows.registers("s t", "a", 7));
        let rows = Rows::of("s t", &positions).expect("rows");
        assert_eq!(rows.group.as_ref().map(|group| group.state.added), Some(7));
        assert!(rows.knows("a") && !rows.is_gone("a"));
        let state = ConsumerState { committed: Ranges::of(id(1), id(9)), high: id(9) };
        let place = consumer_place("a", "s t");
        apply(&mut positions, vec![Move { place, from: Some(1), to: Some(state.written()) }]);
        apply(&mut positions, rows.registers("s t", "b", 9).into_iter().take(2).collect());
        let rows = Rows::of("s t", &positions).expect("rows");
        assert!(rows.committed().contains(id(3)));
        apply(&mut positions, rows.removes("s t", "a", &Ranges::of(id(1), id(4)), true));
        let rows = Rows::of("s t", &positions).expect("rows");
        assert!(!rows.knows("a") && rows.is_gone("a") && rows.knows("b"));
        assert_eq!((rows.committed(), rows.high()), (Ranges::of(id(5), id(9)), id(9)));
        assert_eq!(rows.removes("s t", "a", &Ranges::default(), true), [], "it is removed once");
        assert_eq!(Rows::of("s", &positions).expect("none of that stream"), Rows::default());
        assert_eq!(positions.len(), 4);
    }

    #[test]
    fn states_of_other_versions_are_refused() {
        for (place, state, what) in [
            ("group s", "2 x", "the position `group s` was written by a newer version of Millstream"),
            ("consumer a s", "7", "the position `consumer a s` was written by a newer version of Millstream"),
            ("consumer a s", "1 5", "the position `consumer a s` cannot be read"),
            ("group s", "1 0-0 1 0-0  5", "the position `group s` cannot be read"),
        ] {
            let error = Rows::of("s", &[position(place.to_owned(), 1, state.to_owned())]).expect_err(state);
            assert_eq!(error.what(), what);
        }
        assert!(Rows::of("s", &[position("beat a s".to_owned(), 1, "9".to_owned())]).is_ok());
    }

    #[test]
    fn messages_go_to_the_sinks_that_lack_them() {
        let ids: Vec<MessageId> = (0..5).map(|sequence| id(sequence).into()).collect();
        let committed = [Some(Ranges::of(id(1), id(3))), None, Some(Ranges::of(id(3), id(4)))];
        let expected = BTreeMap::from([(0b111, vec![0]), (0b110, vec![1, 2]), (0b010, vec![3]), (0b011, vec![4])]);
        assert_eq!(lacking(&ids, &committed), expected);
        let all = Some(Ranges::of(id(0), id(9)));
        assert_eq!(lacking(&ids, &[all.clone(), all]), BTreeMap::from([(0, vec![0, 1, 2, 3, 4])]));
    }
}
