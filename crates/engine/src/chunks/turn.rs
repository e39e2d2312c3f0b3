//! Whose turn it is: the deliveries of an epoch make their moves when those of the epoch before are done. A delivery
//! that waits for its turn may send its rows meanwhile, in a transaction of its own, once the rows of the same places
//! are sent that come before.
//!
//! ```text
//!  waits ─given─▶ comes: the moves are known
//!    │ ▲ └─dropped─▶ never comes
//!    ▼ │
//!  retreats: one before it has to send its rows once more, and must not wait for rows that this one has locked
//! ```

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use millstream_core::epochs::LaterMoves;
use millstream_core::positions::Move;
use tokio::sync::watch;

/// How long a delivery has to commit before the rows of the next epoch are in question.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waits,
    Retreats,
    Comes,
}

/// A delivery that has not ended.
#[derive(Debug)]
struct UnderWay {
    number: u64,
    epoch: u64,
    /// The places of its messages, by number.
    places: BTreeSet<u64>,
    has_sent: bool,
}

/// The deliveries of a target, in the order in which they were begun.
#[derive(Debug, Default)]
struct Deliveries {
    begun: u64,
    under_way: Vec<UnderWay>,
}

/// The turns of the deliveries into a target.
pub(super) struct Turns {
    waiting: Mutex<Vec<Weak<watch::Sender<State>>>>,
    deliveries: Arc<watch::Sender<Deliveries>>,
    /// Whether rows are sent in turn only: an epoch has waited for rows of the next one.
    is_in_turn_only: AtomicBool,
    /// After so long a delivery that does not end seems to wait for rows of the next epoch.
    patience: Duration,
}

/// The turn of a delivery.
pub struct Turn {
    number: u64,
    moves: LaterMoves,
    state: watch::Receiver<State>,
    deliveries: Arc<watch::Sender<Deliveries>>,
}

/// Gives a delivery its turn. If it is dropped before, the turn never comes.
pub struct TurnGiver {
    moves: LaterMoves,
    state: Arc<watch::Sender<State>>,
}

impl TurnGiver {
    /// What comes before is committed, and the delivery makes these moves.
    pub fn give(self, moves: Vec<Move>) {
        // They are given once.
        let _ = self.moves.set(moves);
        self.state.send_replace(State::Comes);
    }
}

impl Turn {
    /// The moves, once they are known.
    pub(super) fn moves(&self) -> LaterMoves {
        Arc::clone(&self.moves)
    }

    /// Whether it has come.
    pub(super) fn has_come(&self) -> bool {
        *self.state.borrow() == State::Comes
    }

    /// Waits for it; `false` if it never comes.
    pub(super) async fn comes(&self) -> bool {
        self.state.clone().wait_for(|state| *state == State::Comes).await.is_ok()
    }

    /// The delivery has sent its rows: those of the next epoch may follow.
    pub(super) fn sent(&self) {
        self.deliveries.send_if_modified(|deliveries| {
            let own = deliveries.under_way.iter_mut().find(|one| one.number == self.number);
            own.is_some_and(|own| !std::mem::replace(&mut own.has_sent, true))
        });
    }

    /// Waits until no delivery of an earlier epoch `hinders` this one; both are given, the other one first.
    async fn unhindered(&self, hinders: impl Fn(&UnderWay, &UnderWay) -> bool) {
        let is_free = |deliveries: &Deliveries| {
            let Some(own) = deliveries.under_way.iter().find(|one| one.number == self.number) else { return true };
            deliveries.under_way.iter().all(|other| other.epoch >= own.epoch || !hinders(other, own))
        };
        // Its sender is here.
        let _ = self.deliveries.subscribe().wait_for(is_free).await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.deliveries.send_modify(|deliveries| deliveries.under_way.retain(|one| one.number != self.number));
    }
}

impl Turns {
    pub(super) fn new() -> Self {
        Turns {
            waiting: Mutex::default(),
            deliveries: Arc::new(watch::Sender::new(Deliveries::default())),
            is_in_turn_only: AtomicBool::new(false),
            patience: PATIENCE,
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Weak<watch::Sender<State>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The turn of one more delivery of the epoch with this number, whose messages come from these places.
    pub(super) fn add(&self, epoch: u64, places: BTreeSet<u64>) -> (TurnGiver, Turn) {
        let (sender, state) = watch::channel(State::Waits);
        let giver = TurnGiver { moves: LaterMoves::default(), state: Arc::new(sender) };
        let mut waiting = self.waiting();
        waiting.retain(|turn| turn.strong_count() > 0);
        waiting.push(Arc::downgrade(&giver.state));
        let mut number = 0;
        self.deliveries.send_modify(|deliveries| {
            number = deliveries.begun;
            deliveries.begun += 1;
            deliveries.under_way.push(UnderWay { number, epoch, places, has_sent: false });
        });
        let (moves, deliveries) = (Arc::clone(&giver.moves), Arc::clone(&self.deliveries));
        (giver, Turn { number, moves, state, deliveries })
    }

    /// A delivery that has its turn has failed, and is tried again: the others give up what they have sent.
    pub(super) fn retreat(&self) {
        for turn in self.waiting().iter().filter_map(Weak::upgrade) {
            turn.send_if_modified(|state| {
                let waits = *state == State::Waits;
                if waits {
                    *state = State::Retreats;
                }
                waits
            });
        }
    }

    /// Waits until a delivery may send its rows, which may be before its turn; `false` if that never comes.
    pub(super) async fn may_send(&self, turn: &Turn) -> bool {
        if *turn.state.borrow() == State::Retreats || self.is_in_turn_only.load(Ordering::Relaxed) {
            return turn.comes().await;
        }
        tokio::select! {
            biased;
            comes = turn.comes() => comes,
            () = turn.unhindered(|other, own| !other.has_sent && !other.places.is_disjoint(&own.places)) => true,
        }
    }

    /// Waits until a delivery has to give up what it has sent before its turn, and to send it again in its turn; for
    /// ever if it need not.
    pub(super) async fn must_give_up(&self, turn: &Turn) {
        let retreats = async {
            if turn.state.clone().wait_for(|state| *state == State::Retreats).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let ended = turn.unhindered(|_, _| true);
        tokio::select! {
            () = retreats => {}
            ended = tokio::time::timeout(self.patience, ended) => match ended {
                Ok(()) => std::future::pending().await,
                Err(_) => self.is_in_turn_only.store(true, Ordering::Relaxed),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> BTreeSet<u64> {
        BTreeSet::from([0])
    }

    async fn soon<T>(work: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout(Duration::from_millis(10), work).await.ok()
    }

    #[tokio::test]
    async fn a_turn_comes_with_its_moves_or_never() {
        let turns = Turns::new();
        let (giver, turn) = turns.add(0, place());
        assert!(!turn.has_come() && turns.may_send(&turn).await);
        assert_eq!(soon(turn.comes()).await, None);
        giver.give(Vec::new());
        assert!(turn.has_come() && turn.comes().await && turn.moves().get().is_some());
        let (giver, turn) = turns.add(1, place());
        drop(giver);
        assert!(!turn.comes().await && turn.moves().get().is_none());
    }

    #[tokio::test]
    async fn rows_follow_those_of_their_places_in_the_epochs_before() {
        let turns = Turns::new();
        let ((_a, first), (_b, second)) = (turns.add(1, BTreeSet::from([0, 2])), turns.add(1, BTreeSet::from([1])));
        let ((_c, third), (_d, fourth)) = (turns.add(2, BTreeSet::from([0, 1])), turns.add(2, BTreeSet::from([2])));
        assert_eq!(soon(turns.may_send(&second)).await, Some(true), "beside its own epoch");
        first.sent();
        assert_eq!(soon(turns.may_send(&third)).await, None);
        assert_eq!(soon(turns.may_send(&fourth)).await, Some(true), "another place");
        second.sent();
        second.sent();
        assert_eq!(soon(turns.may_send(&third)).await, Some(true));
        let (_e, fifth) = turns.add(3, BTreeSet::from([2]));
        assert_eq!(soon(turns.may_send(&fifth)).await, None);
        drop(fourth);
        assert_eq!(soon(turns.may_send(&fifth)).await, Some(true), "what has ended hinders nothing");
    }

    #[tokio::test]
    async fn who_waits_retreats_and_who_has_its_turn_does_not() {
        let turns = Turns::new();
        let ((first, of_first), (second, of_second)) = (turns.add(1, place()), turns.add(2, place()));
        first.give(Vec::new());
        of_first.sent();
        turns.retreat();
        assert_eq!(soon(turns.must_give_up(&of_first)).await, None);
        assert_eq!(soon(turns.must_give_up(&of_second)).await, Some(()));
        assert_eq!(soon(turns.may_send(&of_second)).await, None, "not before its turn");
        second.give(Vec::new());
        assert!(turns.may_send(&of_second).await);
    }

    #[tokio::test]
    async fn an_epoch_that_seems_to_wait_for_the_next_one_comes_first_from_then_on() {
        for (patience, gives_up) in [(Duration::from_secs(3600), None), (Duration::from_millis(1), Some(()))] {
            let turns = Turns { patience, ..Turns::new() };
            let ((_first, of_first), (_second, of_second)) = (turns.add(1, place()), turns.add(2, place()));
            of_first.sent();
            assert!(turns.may_send(&of_second).await);
            let given_up = tokio::time::timeout(Duration::from_millis(50), turns.must_give_up(&of_second)).await;
            assert_eq!(given_up.ok(), gives_up);
            assert_eq!(soon(turns.may_send(&of_second)).await, gives_up.map_or(Some(true), |()| None));
            drop(of_first);
            let given_up = tokio::time::timeout(Duration::from_millis(50), turns.must_give_up(&of_second)).await;
            assert_eq!(given_up.ok(), None, "there is nothing to give up for");
        }
    }
}
