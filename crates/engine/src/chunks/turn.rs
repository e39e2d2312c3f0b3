//! Whose turn it is: the deliveries of an epoch make their moves when those of the epoch before are done. A delivery
//! that waits for its turn may send its rows meanwhile, behind the rows of the epoch before, in a transaction of its
//! own.
//!
//! ```text
//!  waits ─given─▶ comes: the moves are known
//!    │ ▲ └─dropped─▶ never comes
//!    ▼ │
//!  retreats: one before it has to send its rows once more, and must not wait for rows that this one has locked
//! ```

use std::collections::BTreeMap;
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

/// The deliveries of an epoch that are not done.
#[derive(Debug, Clone, Copy, Default)]
struct Undone {
    /// How many have not sent their rows.
    unsent: usize,
    /// How many have not ended.
    unended: usize,
}

/// What deliveries are under way, by epoch.
type UnderWay = BTreeMap<u64, Undone>;

/// The turns of the deliveries into a target.
pub(super) struct Turns {
    waiting: Mutex<Vec<Weak<watch::Sender<State>>>>,
    under_way: Arc<watch::Sender<UnderWay>>,
    /// Whether rows are sent in turn only: an epoch has waited for rows of the next one.
    is_in_turn_only: AtomicBool,
    /// After so long a delivery that does not end seems to wait for rows of the next epoch.
    patience: Duration,
}

/// The turn of a delivery.
pub struct Turn {
    epoch: u64,
    moves: LaterMoves,
    state: watch::Receiver<State>,
    under_way: Arc<watch::Sender<UnderWay>>,
    has_sent: AtomicBool,
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
        if !self.has_sent.swap(true, Ordering::Relaxed) {
            self.change(|undone| undone.unsent -= 1);
        }
    }

    fn change(&self, change: impl FnOnce(&mut Undone)) {
        self.under_way.send_modify(|under_way| {
            let undone = under_way.entry(self.epoch).or_default();
            change(undone);
            if undone.unended == 0 {
                under_way.remove(&self.epoch);
            }
        });
    }

    /// Waits until this holds for all epochs before.
    async fn all_before(&self, holds: impl Fn(&Undone) -> bool) {
        let all = |under_way: &UnderWay| under_way.range(..self.epoch).all(|(_, undone)| holds(undone));
        // Its sender is here.
        let _ = self.under_way.subscribe().wait_for(all).await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.sent();
        self.change(|undone| undone.unended -= 1);
    }
}

impl Turns {
    pub(super) fn new() -> Self {
        Turns {
            waiting: Mutex::default(),
            under_way: Arc::new(watch::Sender::new(UnderWay::new())),
            is_in_turn_only: AtomicBool::new(false),
            patience: PATIENCE,
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Weak<watch::Sender<State>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The turn of one more delivery of the epoch with this number.
    pub(super) fn add(&self, epoch: u64) -> (TurnGiver, Turn) {
        let (sender, state) = watch::channel(State::Waits);
        let giver = TurnGiver { moves: LaterMoves::default(), state: Arc::new(sender) };
        let mut waiting = self.waiting();
        waiting.retain(|turn| turn.strong_count() > 0);
        waiting.push(Arc::downgrade(&giver.state));
        let (moves, under_way) = (Arc::clone(&giver.moves), Arc::clone(&self.under_way));
        let turn = Turn { epoch, moves, state, under_way, has_sent: AtomicBool::new(false) };
        turn.change(|undone| {
            undone.unsent += 1;
            undone.unended += 1;
        });
        (giver, turn)
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
            () = turn.all_before(|undone| undone.unsent == 0) => true,
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
        let ended = turn.all_before(|undone| undone.unended == 0);
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

    async fn soon<T>(work: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout(Duration::from_millis(10), work).await.ok()
    }

    #[tokio::test]
    async fn a_turn_comes_with_its_moves_or_never() {
        let turns = Turns::new();
        let (giver, turn) = turns.add(0);
        assert!(!turn.has_come() && turns.may_send(&turn).await);
        assert_eq!(soon(turn.comes()).await, None);
        giver.give(Vec::new());
        assert!(turn.has_come() && turn.comes().await && turn.moves().get().is_some());
        let (giver, turn) = turns.add(1);
        drop(giver);
        assert!(!turn.comes().await && turn.moves().get().is_none());
    }

    #[tokio::test]
    async fn rows_follow_those_of_the_epoch_before() {
        let turns = Turns::new();
        let ((_a, first), (_b, second), (_c, third)) = (turns.add(1), turns.add(1), turns.add(2));
        assert_eq!(soon(turns.may_send(&second)).await, Some(true), "beside its own epoch");
        first.sent();
        assert_eq!(soon(turns.may_send(&third)).await, None);
        second.sent();
        second.sent();
        assert_eq!(soon(turns.may_send(&third)).await, Some(true));
    }

    #[tokio::test]
    async fn who_waits_retreats_and_who_has_its_turn_does_not() {
        let turns = Turns::new();
        let ((first, of_first), (second, of_second)) = (turns.add(1), turns.add(2));
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
            let ((_first, of_first), (_second, of_second)) = (turns.add(1), turns.add(2));
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
