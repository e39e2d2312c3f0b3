//! Messages between the tasks that fetch them and the consumer that hands them out: how much may wait, and how what has
//! come is divided.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use millstream_core::Reservation;
use millstream_core::queue::{Messages, SinkSet};
use tokio::sync::Notify;

use super::ranges::Ranges;
use super::reply::EntryId;

/// How many bytes wait at first.
const FIRST_WINDOW: usize = 1 << 20;

/// How much may wait to be handed out: it grows while the consumer waits for more.
#[derive(Debug)]
pub(super) struct Window {
    waiting: AtomicUsize,
    limit: AtomicUsize,
    most: usize,
    /// Whether a task waits for room.
    is_full: AtomicBool,
    taken: Notify,
}

impl Window {
    /// An empty one that grows up to `most` bytes.
    pub(super) fn new(most: usize) -> Self {
        let most = most.max(FIRST_WINDOW);
        let limit = AtomicUsize::new(FIRST_WINDOW);
        Window { waiting: AtomicUsize::new(0), limit, most, is_full: AtomicBool::new(false), taken: Notify::new() }
    }

    /// Waits until more may be read.
    pub(super) async fn open(&self) {
        loop {
            let taken = self.taken.notified();
            tokio::pin!(taken);
            taken.as_mut().enable();
            if self.waiting.load(Ordering::SeqCst) < self.limit.load(Ordering::SeqCst) {
                return;
            }
            self.is_full.store(true, Ordering::SeqCst);
            taken.await;
        }
    }

    /// So many bytes more wait.
    pub(super) fn add(&self, bytes: usize) {
        self.waiting.fetch_add(bytes, Ordering::SeqCst);
    }

    /// So many bytes wait no longer.
    pub(super) fn take(&self, bytes: usize) {
        self.waiting.fetch_sub(bytes, Ordering::SeqCst);
        self.taken.notify_waiters();
    }

    /// Nothing waits, and somebody wants to have something: if reading was held back before, more may wait from now on.
    pub(super) fn lacks(&self) {
        if self.is_full.swap(false, Ordering::SeqCst) {
            let limit = self.limit.load(Ordering::SeqCst);
            self.limit.store((limit * 2).min(self.most), Ordering::SeqCst);
            self.taken.notify_waiters();
        }
    }
}

/// Messages that have come, and of which some may have been handed out.
#[derive(Debug)]
pub(super) struct Came {
    messages: Messages,
    /// How many were not handed out.
    left: usize,
    /// Where the range of those begins; `None` if they are single ones.
    from: Option<EntryId>,
    sinks: SinkSet,
    room: Reservation,
}

/// What is handed out at once.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) messages: Messages,
    pub(super) ranges: Ranges,
    pub(super) sinks: SinkSet,
    pub(super) room: Reservation,
}

impl Came {
    /// Messages for `sinks`: all entries from the id `from` on up to the last one, or single ones. `room` is what they
    /// take.
    pub(super) fn new(messages: Messages, from: Option<EntryId>, sinks: SinkSet, room: Reservation) -> Self {
        Came { left: messages.len(), messages, from, sinks, room }
    }

    /// Whether all are handed out.
    pub(super) fn is_over(&self) -> bool {
        self.left == 0
    }

    /// What they take, without those that are handed out.
    pub(super) fn bytes(&self) -> usize {
        self.room.bytes()
    }

    /// The next ones, at most `most`, at least one if there are some.
    pub(super) fn take(&mut self, most: usize) -> Part {
        let count = most.max(1).min(self.left);
        let bytes = if count == self.left { self.room.bytes() } else { self.room.bytes() / self.left * count };
        let room = self.room.split(bytes);
        let messages = self.next(count);
        self.left -= count;
        let ids = || messages.ids().iter().map(|id| EntryId::from(*id));
        let last = ids().next_back();
        let ranges = match (&mut self.from, last) {
            (Some(from), Some(last)) => Ranges::of(std::mem::replace(from, last.next()), last),
            _ => ids().fold(Ranges::default(), |mut ranges, id| {
                ranges.add(&Ranges::of(id, id));
                ranges
            }),
        };
        Part { messages, ranges, sinks: self.sinks, room }
    }

    fn next(&mut self, count: usize) -> Messages {
        if count == self.messages.len() {
            return std::mem::take(&mut self.messages);
        }
        let first = self.messages.len() - self.left;
        let mut part = Messages::default();
        (first..first + count).for_each(|number| part.append(&self.messages, number));
        part
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millstream_core::Budget;
    use millstream_core::queue::MessageId;

    use super::*;

    #[tokio::test]
    async fn the_window_grows_while_somebody_waits() {
        let window = Window::new(3 << 20);
        window.open().await;
        window.add(1 << 20);
        let is_shut = async || tokio::time::timeout(Duration::from_millis(10), window.open()).await.is_err();
        window.lacks();
        assert!(is_shut().await, "it was not full before");
        window.lacks();
        assert!(!is_shut().await);
        window.add(2 << 20);
        assert!(is_shut().await);
        window.lacks();
        assert!(is_shut().await, "it has grown to its limit");
        window.take(1);
        assert!(!is_shut().await);
    }

    fn came(budget: &std::sync::Arc<Budget>, from: Option<u64>) -> Came {
        let mut messages = Messages::default();
        for minor in [10, 12, 13, 20, 30] {
            let mut message = messages.begin(MessageId { major: 0, minor });
            message.body(minor.to_string().as_bytes());
            message.end();
        }
        let from = from.map(|sequence| EntryId { milliseconds: 0, sequence });
        Came::new(messages, from, 0b1, Reservation::of_taken(budget, 103))
    }

    #[test]
    fn what_has_come_is_divided_without_loss() {
        let budget = Budget::new(1000);
        let (mut all, mut single) = (came(&budget, Some(3)), came(&budget, None));
        let mut parts = Vec::new();
        while !all.is_over() {
            parts.push((all.take(2), single.take(2)));
        }
        let shown = |part: &Part| (part.ranges.to_string(), String::from_utf8_lossy(part.messages.text()).into_owned());
        let text = |text: &str| text.to_owned();
        assert_eq!(
            parts.iter().map(|(all, _)| shown(all)).collect::<Vec<_>>(),
            [
                (text("0.3:0.12"), text("10\n12\n")),
                (text("0.13:0.20"), text("13\n20\n")),
                (text("0.21:0.30"), text("30\n")),
            ]
        );
        let ranges = parts.iter().map(|(_, single)| single.ranges.to_string()).collect::<Vec<_>>();
        assert_eq!(ranges, ["0.10,0.12", "0.13,0.20", "0.30"]);
        assert_eq!(parts.iter().map(|(all, _)| all.room.bytes()).collect::<Vec<_>>(), [40, 42, 21]);
        assert_eq!((all.bytes(), budget.used()), (0, 206));
        drop((all, single, parts));
        assert_eq!(budget.used(), 0);
        let mut whole = came(&budget, Some(3));
        let part = whole.take(9);
        assert_eq!((part.messages.len(), whole.is_over(), part.room.bytes()), (5, true, 103));
    }
}
