//! Which deliveries of workers are committed. A worker says so; of one that is gone, the ledger does.
//!
//! A chunk is in the target once, so a delivery counts once: what a worker was about to commit is dropped when another
//! one says that it has committed one of the same chunks, and when the same worker tries again.

use std::collections::{BTreeMap, HashSet};

use millstream_cluster::Worker;
use millstream_core::sink::{Chunk, WrittenChunks};

use crate::chunks::shared::KeptDelivery;

/// Deliveries of which it is not known yet whether they are committed.
#[derive(Debug, Default)]
pub(super) struct Tracked {
    open: BTreeMap<(Worker, u64), Open>,
}

#[derive(Debug)]
struct Open {
    delivery: KeptDelivery,
    chunks: HashSet<Chunk>,
}

impl Open {
    fn has_some_of(&self, other: &Open) -> bool {
        self.delivery.sink == other.delivery.sink && !self.chunks.is_disjoint(&other.chunks)
    }
}

impl Tracked {
    /// `worker` is about to commit a delivery.
    pub(super) fn keep(&mut self, worker: Worker, delivery: KeptDelivery) {
        let number = delivery.number;
        let open = Open { chunks: delivery.chunks().collect(), delivery };
        // It tries again what it could not commit.
        self.open.retain(|(other, _), known| *other != worker || !known.has_some_of(&open));
        self.open.insert((worker, number), open);
    }

    /// `worker` says that it has committed one; which, if it is open.
    pub(super) fn committed(&mut self, worker: Worker, number: u64) -> Option<KeptDelivery> {
        let open = self.open.remove(&(worker, number))?;
        self.open.retain(|_, known| !known.has_some_of(&open));
        Some(open.delivery)
    }

    /// The sinks with open deliveries of `worker`, or of all.
    pub(super) fn sinks(&self, worker: Option<Worker>) -> HashSet<String> {
        let of = self.open.iter().filter(|((of, _), _)| worker.is_none_or(|worker| worker == *of));
        of.map(|(_, open)| open.delivery.sink.clone()).collect()
    }

    /// Nothing of `worker`, or of all, is committed any more into `sink`, of which `written` is there: the deliveries
    /// that are.
    pub(super) fn settle(
        &mut self,
        worker: Option<Worker>,
        sink: &str,
        written: &WrittenChunks,
    ) -> Vec<(Worker, KeptDelivery)> {
        let of = |(of, _): &(Worker, u64), open: &Open| {
            open.delivery.sink == sink && worker.is_none_or(|worker| worker == *of)
        };
        let settled: Vec<_> = self.open.iter().filter(|(key, open)| of(key, open)).map(|(key, _)| *key).collect();
        let mut committed = Vec::new();
        for key in settled {
            // One that is committed drops those of others with the same chunks.
            let is_there = self.open.get(&key).is_some_and(|open| open.delivery.is_in(written));
            match is_there {
                true => committed.extend(self.committed(key.0, key.1).map(|delivery| (key.0, delivery))),
                false => drop(self.open.remove(&key)),
            }
        }
        committed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Tally;

    fn delivery(number: u64, chunks: std::ops::Range<u64>) -> KeptDelivery {
        KeptDelivery {
            number,
            sink: "out".to_owned(),
            source: "in".to_owned(),
            chunks: chunks.map(|number| ("a".to_owned(), number)).collect(),
            tally: Tally::default(),
            by_parser: 0,
            sent: 0,
            left_out: Default::default(),
            rejects: Vec::new(),
            checked: Vec::new(),
        }
    }

    fn written(chunks: std::ops::Range<u64>) -> WrittenChunks {
        WrittenChunks::new(chunks.map(|number| ("a".to_owned(), number)), str::to_owned)
    }

    fn numbers(deliveries: &[(Worker, KeptDelivery)]) -> Vec<u64> {
        deliveries.iter().map(|(_, delivery)| delivery.number).collect()
    }

    #[test]
    fn a_delivery_counts_once_though_two_workers_commit_it() {
        let mut tracked = Tracked::default();
        tracked.keep(1, delivery(1, 0..3));
        tracked.keep(2, delivery(1, 2..5));
        assert!(tracked.committed(2, 1).is_some());
        assert!(tracked.committed(1, 1).is_none(), "chunk 2 is another's");
        // It tries again without it.
        tracked.keep(1, delivery(2, 0..2));
        assert!(tracked.committed(1, 2).is_some());
        assert!(tracked.committed(1, 2).is_none());
        assert!(tracked.sinks(None).is_empty());
    }

    #[test]
    fn of_a_lost_worker_the_ledger_says_what_is_there() {
        let mut tracked = Tracked::default();
        tracked.keep(1, delivery(1, 0..2));
        tracked.keep(1, delivery(2, 2..4));
        tracked.keep(2, delivery(1, 4..6));
        assert_eq!(tracked.sinks(Some(1)).len(), 1);
        assert_eq!(numbers(&tracked.settle(Some(1), "out", &written(0..2))), [1]);
        assert!(tracked.sinks(Some(1)).is_empty());
        assert_eq!(numbers(&tracked.settle(None, "out", &written(0..6))), [1]);
        assert!(tracked.settle(None, "out", &written(0..9)).is_empty());
    }

    #[test]
    fn a_worker_that_tries_again_has_one_open_delivery() {
        let mut tracked = Tracked::default();
        tracked.keep(1, delivery(1, 0..3));
        tracked.keep(1, delivery(2, 0..3));
        assert_eq!(numbers(&tracked.settle(None, "out", &written(0..3))), [2]);
    }
}
