//! Tests of the desk's decisions.

use super::*;

/// A desk with partition 0, whose sinks lack messages from these offsets on.
fn desk(sinks: &[(Option<u64>, i64)]) -> (Desk, u64) {
    let mut desk = Desk::new("t", BTreeMap::from([(0, 10)]));
    let starts = desk.assigned(&[0]);
    let begun = Begun { partition: 0, generation: starts[0].1, topic: "T".to_owned(), sinks: sinks.to_vec() };
    assert!(desk.begin(begun));
    (desk, starts[0].1)
}

/// Messages of partition 0 with these offsets.
fn chunk(generation: u64, offsets: std::ops::Range<u64>, next: i64) -> Chunk {
    let mut messages = Messages::default();
    for minor in offsets {
        let mut message = messages.begin(MessageId { major: 0, minor });
        message.body(b"x");
        message.end();
    }
    Chunk { partition: 0, generation, messages, next, epoch: 1, handed: 0, held: None, _waits: None }
}

fn offsets_of(batch: &MessageBatch) -> Vec<u64> {
    batch.messages.ids().iter().map(|id| id.minor).collect()
}

fn next_of(moves: &[Move]) -> Vec<(Option<u64>, i64)> {
    let state = |one: &Move| State::of_text(one.to.as_deref().expect("a state"), "t 0").expect("a state");
    moves.iter().map(|one| (one.from, state(one).next)).collect()
}

#[test]
fn batches_are_cut_where_another_sink_lacks_messages_and_where_enough_are_there() {
    let (mut desk, generation) = desk(&[(Some(4), 5), (Some(7), 0)]);
    desk.fetched(chunk(generation, 0..10, 12));
    let batches: Vec<_> = std::iter::from_fn(|| desk.hand_out(3)).collect();
    let parts: Vec<_> = batches.iter().map(|batch| (offsets_of(batch), batch.sinks)).collect();
    assert_eq!(parts, [(vec![0, 1, 2], 2), (vec![3, 4], 2), (vec![5, 6, 7], 3), (vec![8, 9], 3)]);
    assert_eq!(next_of(&desk.moves(0, &[0, 1])), []);
    assert_eq!(next_of(&desk.moves(1, &[0, 1])), [(Some(7), 5)]);
    assert_eq!(next_of(&desk.moves(0, &[2, 3])), [(Some(4), 12)]);
}

#[test]
fn moves_of_epochs_that_overlap_follow_each_other() {
    let (mut desk, generation) = desk(&[(Some(1), 0)]);
    for at in 0..3u64 {
        desk.fetched(chunk(generation, at * 2..at * 2 + 2, i64::try_from(at * 2 + 2).expect("small")));
        desk.hand_out(10).expect("a batch");
    }
    assert_eq!(next_of(&desk.moves(0, &[0])), [(Some(1), 2)]);
    assert_eq!(next_of(&desk.moves(0, &[1])), [(Some(2), 4)]);
    assert_eq!(next_of(&desk.moves(0, &[1])), [(Some(2), 4)]);
    desk.committed(0, &[0]);
    assert_eq!(next_of(&desk.moves(0, &[1])), [(Some(2), 4)]);
    desk.committed(0, &[1]);
    assert_eq!(next_of(&desk.moves(0, &[2])), [(Some(3), 6)]);
    // The group's offset waits for the first batch.
    assert_eq!(desk.acknowledge(&[1]), []);
    assert_eq!(desk.acknowledge(&[0]), [(0, 2)]);
    assert_eq!(desk.acknowledge(&[2]), [(0, 6)]);
}

#[test]
fn what_is_of_an_older_generation_is_dropped() {
    let (mut desk, generation) = desk(&[(Some(1), 0)]);
    desk.fetched(chunk(generation, 0..5, 5));
    let batch = desk.hand_out(3).expect("a batch");
    let (starts, dropped) = desk.restart(&[0, 1]);
    assert_eq!((starts.len(), dropped), (1, vec![batch.number]));
    desk.fetched(chunk(generation, 5..9, 9));
    desk.ended(0, generation, 20);
    assert!(desk.hand_out(3).is_none() && desk.moves(0, &[batch.number]).is_empty());
    let sinks = vec![(Some(2), 3)];
    assert!(!desk.begin(Begun { partition: 0, generation, topic: "T".to_owned(), sinks: sinks.clone() }));
    assert!(desk.begin(Begun { partition: 0, generation: starts[0].1, topic: "T".to_owned(), sinks }));
    // Messages that come twice are passed over.
    desk.fetched(chunk(starts[0].1, 1..6, 6));
    assert_eq!(offsets_of(&desk.hand_out(9).expect("a batch")), [3, 4, 5]);
    assert_eq!(desk.revoked(&[0]), [1]);
}

#[test]
fn markers_move_the_position_with_the_batch_before_or_alone() {
    let (mut desk, generation) = desk(&[(Some(1), 0)]);
    desk.fetched(chunk(generation, 0..2, 2));
    desk.ended(0, generation, 4);
    let first = desk.hand_out(9).expect("a batch");
    assert_eq!(next_of(&desk.moves(0, &[first.number])), [(Some(1), 4)]);
    desk.ended(0, generation, 4);
    assert!(desk.hand_out(9).is_none());
    assert!(desk.becomes_empty() && !desk.becomes_empty() && !desk.reaches_start());
    desk.ended(0, generation, 10);
    assert!(!desk.reaches_start(), "a batch waits");
    let alone = desk.hand_out(9).expect("a batch");
    assert_eq!((alone.messages.len(), alone.sinks), (0, 1));
    assert_eq!(next_of(&desk.moves(0, &[alone.number])), [(Some(2), 10)]);
    assert!(desk.reaches_start() && !desk.reaches_start());
    assert_eq!((desk.behind(|_| Some(10)), desk.oldest()), (Some(10), None));
}

#[test]
fn batches_are_had_until_they_are_acknowledged_or_dropped() {
    let (mut desk, generation) = desk(&[(Some(1), 0)]);
    desk.fetched(chunk(generation, 0..4, 4));
    let (first, second) = (desk.hand_out(2).expect("a batch"), desk.hand_out(2).expect("a batch"));
    desk.acknowledge(&[first.number]);
    assert_eq!([first.number, second.number].map(|batch| desk.has(batch)), [false, true]);
    desk.restart(&[0]);
    assert!(!desk.has(second.number));
    assert_eq!(desk.moves(0, &[second.number]), [], "nothing moves behind it");
}

/// What was dropped is read again, so that the queue is neither empty nor read to where it ended.
#[test]
fn ends_are_said_again_after_a_partition_began_again() {
    let (mut desk, generation) = desk(&[(Some(1), 10)]);
    desk.ended(0, generation, 10);
    assert!(desk.reaches_start() && desk.becomes_empty());
    assert!(!desk.reaches_start() && !desk.becomes_empty());
    let (starts, _) = desk.restart(&[0]);
    assert!(!desk.reaches_start() && !desk.becomes_empty(), "it has not begun");
    let sinks = vec![(Some(2), 10)];
    assert!(desk.begin(Begun { partition: 0, generation: starts[0].1, topic: "T".to_owned(), sinks }));
    desk.ended(0, starts[0].1, 10);
    assert!(desk.reaches_start() && desk.becomes_empty());
}
