//! What a delivery notes in the transaction of its rows: chunks in a ledger, or moves of positions; and what became of
//! a commit without an answer. `ledger_rows.rs` and `places.rs` have the statements.
//!
//! The same notes by another attempt find out whether a commit was done: what is unique (a chunk, a version of a
//! position) makes the second transaction wait for the end of the first one, even if that is our own, and its outcome
//! unknown.

use millstream_core::positions::{Move, Position};
use millstream_core::sink::{Chunk, Delivered};
use millstream_core::{Error, ErrorKind, Result, fail_point};

use super::entry::Entry;
use super::ledger_rows::{record, written};
use super::places::Places;
use super::pool::{Pool, pause};
use super::server::{Connection, Failure};
use crate::moves;

/// What a delivery notes.
pub(super) struct Notes {
    what: What,
    /// A name for the attempt, which is noted, too.
    attempt: String,
}

enum What {
    /// Chunks of the load of an entry, in order.
    Chunks(Box<Entry>, Vec<Chunk>),
    /// Moves of positions, in order.
    Moves(Places, Vec<Move>),
}

/// Why nothing was noted.
#[derive(Debug)]
pub(super) enum Otherwise {
    /// These chunks are there already.
    Done(Vec<Chunk>),
    /// These places stand elsewhere.
    Moved(Vec<Position>),
}

impl From<Otherwise> for Delivered {
    fn from(otherwise: Otherwise) -> Self {
        match otherwise {
            Otherwise::Done(chunks) => Delivered::AlreadyDone(chunks),
            Otherwise::Moved(positions) => Delivered::Moved(positions),
        }
    }
}

/// The outcome of a commit.
pub(super) enum Outcome {
    /// It was done.
    Ours,
    /// It was not: another transaction was faster.
    Otherwise(Otherwise),
    /// It cannot be found out any more: others have moved these positions on since, or the run is to end while the
    /// server does not answer.
    Unknown(Vec<Position>),
    /// It was not done.
    Undone,
}

/// A unique name for an attempt.
pub(super) fn new_name() -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("{:016x}", RandomState::new().hash_one(()))
}

impl Notes {
    /// Chunks of the load of `entry`.
    pub(super) fn chunks(entry: &Entry, mut chunks: Vec<Chunk>) -> Self {
        // Recording chunks in one order prevents deadlocks.
        chunks.sort();
        chunks.dedup();
        Notes { what: What::Chunks(Box::new(entry.clone()), chunks), attempt: new_name() }
    }

    /// Moves of `places`.
    pub(super) fn moves(places: &Places, moves: Vec<Move>) -> Self {
        Notes { what: What::Moves(places.clone(), places.in_order(moves)), attempt: new_name() }
    }

    /// The same, as of another attempt.
    pub(super) fn of_attempt(self, attempt: String) -> Self {
        Notes { attempt, ..self }
    }

    /// The table that they are in, as SQL text.
    pub(super) fn table(&self) -> &str {
        match &self.what {
            What::Chunks(entry, _) => &entry.table,
            What::Moves(places, _) => &places.table,
        }
    }

    /// Whether they are of a queue, whose readers wait for the target as long as it takes.
    pub(super) fn are_moves(&self) -> bool {
        matches!(self.what, What::Moves(..))
    }

    /// Begins a transaction and notes everything. If that cannot be done it says why, and there is no transaction.
    pub(super) async fn begin(&self, connection: &mut dyn Connection) -> Result<Option<Otherwise>, Failure> {
        self.begin_as(connection, &self.attempt).await
    }

    async fn begin_as(&self, connection: &mut dyn Connection, attempt: &str) -> Result<Option<Otherwise>, Failure> {
        connection.execute("BEGIN").await?;
        self.make_or_roll_back_as(connection, attempt).await
    }

    /// Notes everything in the open transaction. If that cannot be done it says why, and there is no transaction.
    pub(super) async fn make_or_roll_back(
        &self,
        connection: &mut dyn Connection,
    ) -> Result<Option<Otherwise>, Failure> {
        self.make_or_roll_back_as(connection, &self.attempt).await
    }

    async fn make_or_roll_back_as(
        &self,
        connection: &mut dyn Connection,
        attempt: &str,
    ) -> Result<Option<Otherwise>, Failure> {
        fail_point::pass("ledger.before");
        if self.make_as(connection, attempt).await? {
            fail_point::pass("ledger.after");
            return Ok(None);
        }
        connection.execute("ROLLBACK").await?;
        self.otherwise(connection).await.map(Some)
    }

    /// Notes everything in the open transaction; whether that could be done. If not, it has to be rolled back.
    pub(super) async fn make(&self, connection: &mut dyn Connection) -> Result<bool, Failure> {
        self.make_as(connection, &self.attempt).await
    }

    async fn make_as(&self, connection: &mut dyn Connection, attempt: &str) -> Result<bool, Failure> {
        match &self.what {
            What::Chunks(entry, chunks) => {
                entry.check(connection).await?;
                match record(entry, connection, chunks, attempt).await {
                    Err(Failure::Rows(_)) => Ok(false),
                    other => other.map(|()| true),
                }
            }
            What::Moves(places, moves) => places.make(connection, moves, attempt).await,
        }
    }

    async fn otherwise(&self, connection: &mut dyn Connection) -> Result<Otherwise, Failure> {
        match &self.what {
            What::Chunks(entry, chunks) => written(entry, connection, chunks, None).await.map(Otherwise::Done),
            What::Moves(places, moves) => places.elsewhere(connection, moves).await.map(Otherwise::Moved),
        }
    }

    /// Notes chunks that are known only at the end, in the open transaction.
    pub(super) async fn add(&self, connection: &mut dyn Connection, chunks: &[Chunk]) -> Result<(), Failure> {
        match &self.what {
            What::Chunks(entry, _) => record(entry, connection, chunks, &self.attempt).await,
            What::Moves(..) if chunks.is_empty() => Ok(()),
            What::Moves(..) => Err(Failure::Other(Error::internal("chunks were noted with rows of a queue"))),
        }
    }

    /// Whether this attempt has noted something that is there.
    async fn is_ours(&self, connection: &mut dyn Connection) -> Result<bool, Failure> {
        match &self.what {
            What::Chunks(entry, chunks) => {
                written(entry, connection, chunks, Some(&self.attempt)).await.map(|ours| !ours.is_empty())
            }
            What::Moves(places, moves) => places.has_attempt(connection, moves, &self.attempt).await,
        }
    }

    /// Whether a commit without an answer is over, seen from another connection; `false` if that is not known yet.
    pub(super) async fn is_over(&self, pool: &Pool) -> bool {
        let Ok(mut connection) = pool.connect().await else { return false };
        let connection = connection.as_mut();
        match &self.what {
            What::Chunks(..) => self.is_ours(connection).await.unwrap_or(false),
            // The position was locked by the transaction: who else has moved it did so after its end.
            What::Moves(places, moves) => places.have_all_moved(connection, moves).await.unwrap_or(false),
        }
    }

    /// Finds the outcome of a commit without an answer.
    pub(super) async fn resolve(&self, pool: &Pool, retries: u32, target: &str) -> Result<Outcome> {
        let mut tries = 0;
        loop {
            let unknown = match self.try_resolve(pool).await {
                Ok(outcome) => return Ok(outcome),
                Err(error) if error.kind() != ErrorKind::Transient => return Err(error),
                Err(error) => error,
            };
            if tries >= retries && self.is_ending() {
                return Ok(Outcome::Unknown(Vec::new()));
            }
            if tries >= retries && !self.are_moves() {
                let what = format!("the connection was lost while {target} was committed");
                return Err(Error::refused(what)
                    .cause(unknown.cause_text().unwrap_or(unknown.what()))
                    .hint("the ledger knows whether the rows are there: resume when the server is back"));
            }
            pause(tries).await;
            tries += 1;
        }
    }

    async fn try_resolve(&self, pool: &Pool) -> Result<Outcome> {
        let mut connection = pool.connect().await?;
        let connection = connection.as_mut();
        let otherwise = self.begin_as(connection, &new_name()).await.map_err(Failure::into_error)?;
        let Some(otherwise) = otherwise else {
            connection.execute("ROLLBACK").await.map_err(Failure::into_error)?;
            return Ok(Outcome::Undone);
        };
        if self.is_ours(connection).await.map_err(Failure::into_error)? {
            return Ok(Outcome::Ours);
        }
        if let What::Moves(places, moves) = &self.what {
            let now = places.of_moves(connection, moves).await.map_err(Failure::into_error)?;
            if moves::may_be_made(moves, &now) {
                return Ok(Outcome::Unknown(moves::elsewhere(moves, now)));
            }
        }
        Ok(Outcome::Otherwise(otherwise))
    }

    /// Rows of a queue have waited in vain for somebody's lock. If another process has moved the same places last, its
    /// connections are ended: it may have stopped with rows in an open transaction. One that lives connects again.
    pub(super) async fn end_others(&self, pool: &Pool) {
        let What::Moves(places, moves) = &self.what else { return };
        let Ok(mut connection) = pool.connect().await else { return };
        for one in moves {
            // What cannot be ended is named by the error of the rows.
            let _ = places.end_holder(connection.as_mut(), &one.place).await;
        }
    }

    /// Whether the run is to end.
    fn is_ending(&self) -> bool {
        matches!(&self.what, What::Moves(places, _) if places.is_ending())
    }
}
