//! What is noted of a partition in a target, and what of it a start makes: where to begin, for which sinks, and what
//! was lost. Pure decisions over what the target and the broker say.

use millstream_core::positions::PartitionPosition;
use millstream_core::{Error, Result};
use serde::{Deserialize, Serialize};

use super::spec::Start;

/// Counts up with every change of [`State`].
const VERSION: u32 = 1;

/// Where a sink stands in a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    version: u32,
    /// The offset of the first message that the sink lacks.
    pub(super) next: i64,
    /// The topic's id; empty if the broker has none.
    pub(super) topic: String,
    /// The epoch of the partition's leader, of the last message; -1 if it is not known.
    pub(super) epoch: i32,
}

impl State {
    pub(super) fn new(next: i64, topic: &str, epoch: i32) -> Self {
        State { version: VERSION, next, topic: topic.to_owned(), epoch }
    }

    /// As the target keeps it.
    pub(super) fn to_text(&self) -> String {
        format!(r#"{{"version":{VERSION},"next":{},"topic":"{}","epoch":{}}}"#, self.next, self.topic, self.epoch)
    }

    /// What the target has kept for the place `place`.
    ///
    /// # Errors
    /// If it is no such text, or of a newer version.
    pub(super) fn of_text(text: &str, place: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let bad = |cause: serde_json::Error| {
            Error::refused(format!("the position of {place} in the target cannot be read")).cause(cause).text(text)
        };
        let Version { version } = serde_json::from_str(text).map_err(bad)?;
        if version > VERSION {
            return Err(Error::newer(format!("the position of {place} in the target"), version, VERSION));
        }
        serde_json::from_str(text).map_err(bad)
    }
}

/// The name of a partition's place.
pub(super) fn place(topic: &str, partition: i32) -> String {
    PartitionPosition::place(topic, partition)
}

/// Where a sink stands, as far as is known before a partition is fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stands {
    /// Its target keeps positions, and has this one.
    Kept(State),
    /// Its target keeps positions, and has none of this partition.
    Unknown,
    /// Its target keeps no positions: the group's offset counts.
    AsGroup,
}

/// What the broker says of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    /// The topic's id; empty if the broker has none.
    pub(super) topic: String,
    /// The first offset that there is.
    pub(super) low: i64,
    /// The offset behind the last message that may be read.
    pub(super) high: i64,
    /// What the group has committed.
    pub(super) group: Option<i64>,
}

/// What a partition has lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Loss {
    /// The messages from one offset to before another were deleted before they were read.
    Deleted(i64, i64),
    /// The position is behind the end.
    Cut { next: i64, high: i64 },
    /// The topic was deleted and created again.
    Recreated,
}

/// Where a partition begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Begin {
    /// For each sink the offset of the first message that it lacks.
    pub(super) next: Vec<i64>,
    /// The leader's epoch there, or -1.
    pub(super) epoch: i32,
    /// What was lost, of the sink that has lost most.
    pub(super) loss: Option<Loss>,
}

impl Begin {
    /// Where to fetch from: what some sink lacks.
    pub(super) fn offset(&self) -> i64 {
        self.next.iter().copied().min().unwrap_or(0)
    }
}

/// Where a partition begins.
pub(super) fn begin(sinks: &[Stands], facts: &Facts, start: Start) -> Begin {
    let each: Vec<(i64, Option<Loss>)> = sinks.iter().map(|sink| stands(sink, facts, start)).collect();
    let next: Vec<i64> = each.iter().map(|(next, _)| *next).collect();
    let loss = each.into_iter().filter_map(|(_, loss)| loss).max_by_key(Loss::size);
    let lowest = next.iter().copied().min().unwrap_or(0);
    let epoch = sinks.iter().find_map(|sink| match sink {
        Stands::Kept(state) if state.next == lowest && loss.is_none() => Some(state.epoch),
        _ => None,
    });
    Begin { next, epoch: epoch.unwrap_or(-1), loss }
}

/// Where one sink goes on, and what it has lost.
fn stands(sink: &Stands, facts: &Facts, start: Start) -> (i64, Option<Loss>) {
    let fresh = match start {
        Start::Earliest => facts.low,
        Start::Latest => facts.high,
    };
    match sink {
        Stands::Kept(state) if is_other(&state.topic, &facts.topic) => (facts.low, Some(Loss::Recreated)),
        Stands::Kept(state) => within(state.next, facts),
        Stands::Unknown => (fresh, None),
        Stands::AsGroup => facts.group.map_or((fresh, None), |next| within(next, facts)),
    }
}

fn is_other(known: &str, now: &str) -> bool {
    !known.is_empty() && !now.is_empty() && known != now
}

fn within(next: i64, facts: &Facts) -> (i64, Option<Loss>) {
    let (low, high) = (facts.low, facts.high);
    if next < low {
        (low, Some(Loss::Deleted(next, low)))
    } else if next > high {
        (high, Some(Loss::Cut { next, high }))
    } else {
        (next, None)
    }
}

impl Loss {
    fn size(&self) -> i64 {
        match self {
            Loss::Deleted(from, to) => to - from,
            Loss::Cut { next, high } => next - high,
            Loss::Recreated => i64::MAX,
        }
    }

    /// The error, or the warning. `shown` is the queue.
    pub(super) fn error(&self, shown: &str, topic: &str, partition: i32) -> Error {
        let (what, cause, prevented) = match self {
            Loss::Deleted(from, to) => (
                format!("partition {partition} of topic `{topic}` has lost messages that were not read"),
                format!("offsets {from} to {} were deleted; the first that is there is {to}", to - 1),
                "; a longer `retention.ms` of the topic prevents it",
            ),
            Loss::Cut { next, high } => (
                format!("partition {partition} of topic `{topic}` has lost messages that were read"),
                format!("offset {next} comes next, and the partition ends at {high}"),
                "",
            ),
            Loss::Recreated => (
                format!("topic `{topic}` was deleted and created again"),
                format!("the position in partition {partition} is one of the topic that was deleted"),
                "",
            ),
        };
        Error::refused(what)
            .in_unit(shown, None)
            .cause(cause)
            .hint(format!("`on_gap: warn` continues with what is there{prevented}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(low: i64, high: i64, group: Option<i64>) -> Facts {
        Facts { topic: "T".to_owned(), low, high, group }
    }

    fn kept(next: i64) -> Stands {
        Stands::Kept(State::new(next, "T", 4))
    }

    #[test]
    fn targets_can_read_a_position() {
        let position = PartitionPosition::of(&place("a.topic", 12), &State::new(345, "T", 6).to_text());
        assert_eq!(position.expect("a position"), PartitionPosition { partition: 12, next: 345 });
        assert!(PartitionPosition::of("consumer-1", "{}").is_err());
    }

    #[test]
    fn a_state_survives_being_kept() {
        let state = State::new(7, "b64-_", 2);
        assert_eq!(State::of_text(&state.to_text(), "t 0").expect("a state"), state);
        let newer = State::of_text(r#"{"version":2,"more":1}"#, "t 0").expect_err("newer");
        assert!(newer.what().starts_with("the position of t 0 in the target"), "{newer:?}");
        let bad = State::of_text("x", "t 0").expect_err("no state");
        assert_eq!(bad.what(), "the position of t 0 in the target cannot be read");
    }

    #[test]
    fn a_partition_begins_where_the_lowest_sink_stands() {
        for (sinks, facts, start, next, epoch) in [
            (vec![kept(5)], facts(0, 9, Some(8)), Start::Latest, vec![5], 4),
            (vec![kept(5), kept(3)], facts(0, 9, None), Start::Earliest, vec![5, 3], 4),
            (vec![Stands::Unknown], facts(2, 9, Some(8)), Start::Earliest, vec![2], -1),
            (vec![Stands::Unknown], facts(2, 9, Some(8)), Start::Latest, vec![9], -1),
            (vec![Stands::AsGroup], facts(2, 9, Some(8)), Start::Earliest, vec![8], -1),
            (vec![Stands::AsGroup], facts(2, 9, None), Start::Latest, vec![9], -1),
            (vec![kept(9), Stands::AsGroup], facts(2, 9, Some(7)), Start::Earliest, vec![9, 7], -1),
        ] {
            let begin = begin(&sinks, &facts, start);
            assert_eq!((&begin.next, begin.epoch, &begin.loss), (&next, epoch, &None), "{sinks:?}");
            assert_eq!(Some(begin.offset()), next.into_iter().min());
        }
    }

    #[test]
    fn what_was_lost_is_found() {
        let other = Stands::Kept(State::new(5, "U", 0));
        for (sinks, facts, next, loss) in [
            (vec![kept(1)], facts(3, 9, None), vec![3], Loss::Deleted(1, 3)),
            (vec![kept(1), kept(2), kept(4)], facts(3, 9, None), vec![3, 3, 4], Loss::Deleted(1, 3)),
            (vec![kept(10)], facts(3, 9, None), vec![9], Loss::Cut { next: 10, high: 9 }),
            (vec![other.clone(), kept(1)], facts(3, 9, None), vec![3, 3], Loss::Recreated),
            (vec![Stands::AsGroup], facts(3, 9, Some(1)), vec![3], Loss::Deleted(1, 3)),
        ] {
            let begin = begin(&sinks, &facts, Start::Earliest);
            assert_eq!((begin.next, begin.epoch, begin.loss), (next, -1, Some(loss)), "{sinks:?}");
        }
        // Brokers before 2.8 have no ids.
        let old = Facts { topic: String::new(), ..facts(3, 9, None) };
        assert_eq!(begin(&[kept(5)], &old, Start::Earliest).loss, None);
    }
}
