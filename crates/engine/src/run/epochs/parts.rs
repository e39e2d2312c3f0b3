//! Which batches of an epoch go into which delivery: batches of one place go together, since they are committed in
//! order. A database works on each connection with one core, so that two deliveries at once take half of the time.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A delivery of fewer messages costs more, by its commit, than it saves.
const LEAST: u64 = 1_000;

/// A batch of messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// Its place, by number.
    pub(super) place: u64,
    /// Its number.
    pub(super) batch: u64,
    /// How many messages it has.
    pub(super) messages: u64,
}

/// How many deliveries at most pay for so many messages, if the target takes `connections` at once.
pub(super) fn worthwhile(connections: usize, messages: u64) -> usize {
    connections.min(usize::try_from(messages / LEAST).unwrap_or(usize::MAX)).max(1)
}

/// The numbers of the batches of each delivery, in order: at most `most` deliveries of about as many messages, each of
/// whole places.
pub(super) fn split(batches: impl IntoIterator<Item = Part>, most: usize) -> Vec<Vec<u64>> {
    let mut places: BTreeMap<u64, (u64, Vec<u64>)> = BTreeMap::new();
    for Part { place, batch, messages } in batches {
        let (sum, numbers) = places.entry(place).or_default();
        *sum += messages;
        numbers.push(batch);
    }
    let mut places: Vec<(u64, Vec<u64>)> = places.into_values().collect();
    places.sort_by_key(|(messages, _)| Reverse(*messages));
    let mut parts = vec![(0, Vec::new()); most.clamp(1, places.len().max(1))];
    for (messages, numbers) in places {
        // The first one with the least.
        if let Some((sum, part)) = parts.iter_mut().min_by_key(|(sum, part)| (*sum, part.len())) {
            *sum += messages;
            part.extend(numbers);
        }
    }
    parts.iter_mut().for_each(|(_, numbers)| numbers.sort_unstable());
    parts.into_iter().map(|(_, numbers)| numbers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches are a place and how many messages each has.
    fn parts(batches: &[(u64, u64)], most: usize) -> Vec<Vec<u64>> {
        let part = |(number, &(place, messages)): (usize, &(u64, u64))| Part { place, batch: number as u64, messages };
        split(batches.iter().enumerate().map(part), most)
    }

    #[test]
    fn places_stay_whole_and_deliveries_get_about_as_much() {
        let batches = [(1, 10), (2, 40), (1, 15), (3, 10), (2, 5), (4, 0)];
        assert_eq!(parts(&batches, 1), [[0, 1, 2, 3, 4, 5]]);
        assert_eq!(parts(&batches, 2), [vec![1, 4], vec![0, 2, 3, 5]]);
        assert_eq!(parts(&batches, usize::MAX), [vec![1, 4], vec![0, 2], vec![3], vec![5]]);
        assert_eq!(parts(&[(1, 1), (1, 2)], 2), [[0, 1]], "one place");
        assert_eq!(parts(&[(1, 0), (2, 0)], 2), [[0], [1]], "positions that move without rows");
        assert_eq!(split([], 2), [Vec::<u64>::new()], "nothing");
    }

    #[test]
    fn few_messages_are_not_split() {
        for (connections, messages, expected) in
            [(1, 1 << 40, 1), (2, 0, 1), (2, 1_999, 1), (2, 2_000, 2), (8, 3_500, 3), (2, 1 << 40, 2)]
        {
            assert_eq!(worthwhile(connections, messages), expected, "{connections}, {messages}");
        }
    }
}
