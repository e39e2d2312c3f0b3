//! Deliveries: rows into the target in one transaction with what is noted of them. `notes.rs` has the notes, and finds
//! out what became of a commit without an answer; `ledger.rs` and `positions.rs` begin deliveries, `epoch.rs` merges
//! the rows of one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use futures::FutureExt;
use millstream_core::epochs::LaterMoves;
use millstream_core::sink::{Accept, Delivered, Delivery, Refused, SHOWN_BAD_ROWS};
use millstream_core::{Budget, Error, Result, fail_point};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

use super::bisect::{self, Scope};
use super::commit;
use super::entry::blamed;
use super::epoch::MergedEpochs;
use super::group::{BadRow, Group, Rows, numbered};
use super::in_step::Counts;
use super::load::{Shared, on_io};
use super::notes::{Notes, Otherwise, Outcome};
use super::places::Places;
use super::pool::pause;
use super::server::{Connection, Encoder, Failure};
use crate::moves;

/// What the deliveries into one table share.
pub(super) struct Delivering {
    pub(super) shared: Arc<Shared>,
    /// The columns of the rows.
    pub(super) schema: SchemaRef,
    pub(super) budget: Arc<Budget>,
    pub(super) io: Handle,
    /// Counts the rows that are written.
    pub(super) rows: Arc<AtomicU64>,
    /// How rows are merged, if they are.
    pub(super) epochs: Option<MergedEpochs>,
}

/// A connection with a transaction.
pub(super) struct OpenTransaction {
    connection: Box<dyn Connection>,
    /// Whether everything is noted in it.
    is_noted: bool,
    _permit: OwnedSemaphorePermit,
}

impl OpenTransaction {
    /// In which everything is noted.
    pub(super) fn noted(connection: Box<dyn Connection>, permit: OwnedSemaphorePermit) -> Self {
        OpenTransaction { connection, is_noted: true, _permit: permit }
    }

    pub(super) fn connection(&mut self) -> &mut dyn Connection {
        self.connection.as_mut()
    }

    pub(super) fn into_connection(self) -> Box<dyn Connection> {
        self.connection
    }
}

/// Notes that may become known while rows are sent.
struct Noting {
    /// What is known of them.
    known: Option<Arc<Notes>>,
    later: Option<(Places, LaterMoves)>,
}

impl Noting {
    /// The notes, if they are known now.
    fn now(&mut self) -> Result<Option<&Arc<Notes>>> {
        if let (None, Some((places, later))) = (&self.known, &self.later)
            && let Some(moves) = later.get()
        {
            moves::check(moves)?;
            self.known = Some(Arc::new(Notes::moves(places, moves.clone())));
        }
        Ok(self.known.as_ref())
    }
}

/// Rows on their way.
pub(super) struct TableDelivery {
    into: Arc<Delivering>,
    noting: Noting,
    encoder: Box<dyn Encoder>,
    group: Option<Group>,
    transaction: Option<OpenTransaction>,
    /// Why nothing is written, if others were faster: nothing more is sent.
    otherwise: Option<Otherwise>,
    /// Rows so far.
    rows: u64,
    /// Rows in groups that were sent.
    sealed: u64,
    refused: Refused,
    bad_rows: usize,
    /// What was changed in the open transaction.
    counts: Counts,
}

impl TableDelivery {
    /// A delivery in which up to `bad_rows` rows may be missing.
    pub(super) fn new(into: Arc<Delivering>, notes: Notes, bad_rows: usize) -> Self {
        Self::with(into, Noting { known: Some(Arc::new(notes)), later: None }, bad_rows)
    }

    /// The same, whose notes are moves that become known later.
    pub(super) fn ahead(into: Arc<Delivering>, places: &Places, moves: LaterMoves, bad_rows: usize) -> Self {
        Self::with(into, Noting { known: None, later: Some((places.clone(), moves)) }, bad_rows)
    }

    fn with(into: Arc<Delivering>, noting: Noting, bad_rows: usize) -> Self {
        TableDelivery {
            encoder: into.shared.server.encoder(&into.shared.bulk, &into.schema, &into.shared.spec),
            into,
            noting,
            group: None,
            transaction: None,
            otherwise: None,
            rows: 0,
            sealed: 0,
            refused: Refused::default(),
            bad_rows,
            counts: Counts::default(),
        }
    }

    /// The same in an open transaction in which everything is noted.
    pub(super) fn inside(self, transaction: OpenTransaction) -> Self {
        TableDelivery { transaction: Some(transaction), ..self }
    }
}

#[async_trait]
impl Delivery for TableDelivery {
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let mut row = 0;
        while row < batch.num_rows() && self.otherwise.is_none() && !self.refused.more {
            let start = Instant::now();
            let spec = &self.into.shared.spec;
            let bytes = usize::try_from(spec.batch_bytes.0).unwrap_or(usize::MAX);
            let group = self.group.get_or_insert_with(|| Group::new(&self.into.budget, bytes));
            let arrival = self.into.epochs.as_ref().map(|_| self.rows);
            row = self.encoder.encode(&batch, row, arrival, group)?;
            let full = group.is_full(spec.batch_rows);
            self.into.shared.step.add_busy(start.elapsed());
            if full {
                self.flush().await?;
            }
        }
        self.rows += batch.num_rows() as u64;
        Ok(())
    }

    async fn send(&mut self) -> Result<usize> {
        self.flush().await?;
        Ok(self.refused.rows.len() + usize::from(self.refused.more))
    }

    async fn commit_if(mut self: Box<Self>, accept: Accept) -> Result<Delivered> {
        self.flush().await?;
        if let Some(otherwise) = self.otherwise {
            return Ok(otherwise.into());
        }
        self.merge().await?;
        // If not all bad rows were found, none may be left out.
        let further = accept(&self.refused)?;
        if self.refused.more {
            return Err(self.refused.into_error(&self.into.shared.target));
        }
        let (Some(transaction), Some(notes)) = (self.transaction.take(), self.noting.now()?) else {
            return Err(Error::internal("a delivery lost its connection, or its moves are not known"));
        };
        let (into, notes) = (Arc::clone(&self.into), Arc::clone(notes));
        let outcome = on_io(&self.into.io, async move {
            let mut transaction = transaction;
            let noted = notes.add(transaction.connection(), &further).await;
            noted.map_err(Failure::into_error)?;
            commit(&into, &notes, transaction).await
        });
        match outcome.await? {
            Outcome::Ours => {
                let rows = self.rows - self.refused.rows.len() as u64;
                self.into.rows.fetch_add(rows, Ordering::Relaxed);
                self.into.epochs.iter().for_each(|epochs| epochs.add(rows, self.counts));
                Ok(Delivered::Written { rows, refused: self.refused.rows })
            }
            Outcome::Otherwise(otherwise) => Ok(otherwise.into()),
            Outcome::Unknown(positions) => Ok(Delivered::Unknown(positions)),
            Outcome::Undone => Err(Error::transient(format!(
                "the connection was lost before {} was committed",
                self.into.shared.target
            ))
            .hint("check the server's log; none of the rows is there, and they can be sent again")),
        }
    }
}

/// Commits, and finds out what became of that if there is no answer.
async fn commit(into: &Delivering, notes: &Notes, mut transaction: OpenTransaction) -> Result<Outcome> {
    fail_point::pass("commit.before");
    let pool = &into.shared.pool;
    let committed = commit::unless_it_is_there(transaction.connection(), "COMMIT", || notes.is_over(pool).boxed());
    match committed.await {
        Ok(Some(_)) => {
            fail_point::pass("commit.after");
            pool.give(transaction.into_connection());
            Ok(Outcome::Ours)
        }
        // Seen from another connection.
        Ok(None) if !notes.are_moves() => Ok(Outcome::Ours),
        Ok(None) | Err(Failure::Lost(_)) => {
            drop(transaction);
            notes.resolve(pool, into.shared.spec.retries, &into.shared.target).await
        }
        Err(other) => Err(other.into_error()),
    }
}

/// The result of sending a group.
enum Sent {
    Done(OpenTransaction, Vec<BadRow>),
    Not(Otherwise),
}

impl TableDelivery {
    /// Sends the gathered rows, and notes everything before that, once it is known.
    async fn flush(&mut self) -> Result<()> {
        if self.otherwise.is_some() || self.refused.more {
            return Ok(());
        }
        let mut group = self.group.take().unwrap_or_else(|| Group::new(&self.into.budget, 0));
        let notes = self.noting.now()?.cloned();
        let has_noted = self.transaction.as_ref().map(|transaction| transaction.is_noted || notes.is_none());
        if group.is_empty() && has_noted == Some(true) {
            return Ok(());
        }
        let own = std::mem::take(&mut group.refused);
        let left = self.bad_rows.saturating_sub(self.refused.rows.len() + own.len());
        let rows = group.sealed();
        let start = Instant::now();
        let transaction = self.transaction.take();
        let (into, sending) = (Arc::clone(&self.into), rows.clone());
        let sent =
            on_io(&self.into.io, async move { send(&into, transaction, notes.as_deref(), &sending, left).await });
        let sent = sent.await;
        self.into.shared.step.add_waiting_output(start.elapsed());
        match sent.map_err(|error| self.into.shared.error_of_target(error))? {
            Sent::Not(otherwise) => self.otherwise = Some(otherwise),
            Sent::Done(transaction, bad) => {
                self.transaction = Some(transaction);
                self.into.shared.step.add_bytes(rows.part(0..rows.count()).len() as u64);
                self.add_refused(&rows, own, bad);
            }
        }
        Ok(())
    }

    /// Merges the rows that were sent, if that is how they go into the target.
    async fn merge(&mut self) -> Result<()> {
        let gathered = self.rows - self.refused.rows.len() as u64;
        if self.into.epochs.is_none() || self.refused.more || gathered == 0 {
            return Ok(());
        }
        let Some(mut transaction) = self.transaction.take() else {
            return Err(Error::internal("a delivery lost its connection"));
        };
        let (into, rows) = (Arc::clone(&self.into), self.rows);
        let most = self.bad_rows.saturating_sub(self.refused.rows.len()).saturating_add(1).max(SHOWN_BAD_ROWS);
        let start = Instant::now();
        let merged = on_io(&self.into.io, async move {
            let merged = match &into.epochs {
                Some(epochs) => epochs.merge(&into.shared, transaction.connection(), rows, most).await,
                None => Ok((Counts::default(), Vec::new())),
            };
            match merged {
                Ok(merged) => Ok((transaction, merged)),
                Err(failure) => {
                    let target = into.shared.server.dialect().table(&into.shared.spec.table);
                    Err(blamed(transaction.connection(), &[&target], failure).await)
                }
            }
        });
        let merged = merged.await;
        self.into.shared.step.add_waiting_output(start.elapsed());
        let (transaction, (counts, bad)) = merged.map_err(|error| self.into.shared.error_of_target(error))?;
        (self.transaction, self.counts) = (Some(transaction), counts);
        self.refused.rows.extend(bad.into_iter().map(|mut row| {
            row.reason = self.into.shared.of_target(&row.reason);
            let number = row.index as u64;
            row.into_refused_row(number, None)
        }));
        self.refused.rows.sort_by_key(|row| row.row);
        self.refused.more = self.refused.rows.len() > self.bad_rows;
        Ok(())
    }

    /// Adds the bad rows of a group: those that could not be encoded, and those that the server has refused.
    fn add_refused(&mut self, rows: &Rows, own: Vec<BadRow>, mut bad: Vec<BadRow>) {
        bad.iter_mut().for_each(|row| row.reason = self.into.shared.of_target(&row.reason));
        let count = (rows.count() + own.len()) as u64;
        let base = self.sealed;
        self.refused
            .rows
            .extend(numbered(own, bad).into_iter().map(|(row, one)| one.into_refused_row(base + row as u64, None)));
        self.refused.more = self.refused.rows.len() > self.bad_rows;
        self.sealed += count;
    }
}

/// Sends a group in the open transaction, or in a new one. Everything is noted before that, if it is known.
async fn send(
    into: &Delivering,
    transaction: Option<OpenTransaction>,
    notes: Option<&Notes>,
    rows: &Rows,
    left: usize,
) -> Result<Sent> {
    let shared = &into.shared;
    let begins = transaction.is_none();
    let mut transaction = match transaction {
        Some(transaction) => transaction,
        None => {
            let permit = shared.pool.permit().await?;
            OpenTransaction { connection: shared.pool.take().await?, is_noted: false, _permit: permit }
        }
    };
    let to_note = notes.filter(|_| !transaction.is_noted);
    // Only rows of a queue are sent before it is known what to note.
    let is_of_queue = notes.is_none_or(Notes::are_moves);
    let most = left.saturating_add(1).max(SHOWN_BAD_ROWS);
    let mut tries = 0;
    loop {
        let connection = transaction.connection.as_mut();
        let sent = async {
            let otherwise = match (begins, to_note) {
                (true, Some(notes)) => notes.begin(connection).await?,
                (true, None) => connection.execute("BEGIN").await.map(|_| None)?,
                (false, to_note) => {
                    connection.execute(Scope::Savepoint.begin()).await?;
                    match to_note {
                        Some(notes) => notes.make_or_roll_back(connection).await?,
                        None => None,
                    }
                }
            };
            if let Some(otherwise) = otherwise {
                return Ok(Err(otherwise));
            }
            fail_point::pass("bulk.before");
            let bad = bisect::load(shared.server.as_ref(), connection, &shared.bulk, rows, most).await?;
            fail_point::pass("bulk.after");
            if !begins {
                connection.execute(Scope::Savepoint.keep()).await?;
            }
            Ok(Ok(bad))
        };
        match sent.await {
            Ok(Ok(bad)) => {
                transaction.is_noted |= to_note.is_some();
                shared.record_detour(transaction.connection.as_ref());
                return Ok(Sent::Done(transaction, bad));
            }
            Ok(Err(otherwise)) => {
                shared.pool.give(transaction.connection);
                return Ok(Sent::Not(otherwise));
            }
            Err(Failure::Again { error, undone, waited }) => {
                // Earlier groups of the same transaction are lost.
                if undone && !begins {
                    return Err(error);
                }
                if tries >= shared.spec.retries {
                    let failure = Failure::Again { error, undone, waited };
                    return Err(in_vain(shared, transaction, notes, failure).await);
                }
                let scope = if begins { Scope::Transaction } else { Scope::Savepoint };
                transaction.connection.execute(scope.roll_back()).await.map_err(Failure::into_error)?;
                pause(tries).await;
                tries += 1;
            }
            // The server may have ended a connection that was idle for long.
            Err(Failure::Lost(_)) if begins && is_of_queue && tries < shared.spec.retries => {
                transaction.connection = shared.pool.connect_for_rows().await?;
                tries += 1;
            }
            Err(other) => return Err(other.into_error()),
        }
    }
}

/// The error of a group after the last attempt. It is permanent where delivering it again would multiply all waits; the
/// readers of queues wait anyway.
async fn in_vain(shared: &Shared, mut transaction: OpenTransaction, notes: Option<&Notes>, failure: Failure) -> Error {
    let tables: Vec<&str> = std::iter::once(shared.bulk.table.as_str()).chain(notes.map(Notes::table)).collect();
    let has_waited = matches!(failure, Failure::Again { waited: true, .. });
    let error = blamed(transaction.connection.as_mut(), &tables, failure).await;
    if let Some(notes) = notes.filter(|_| has_waited) {
        notes.end_others(&shared.pool).await;
    }
    if notes.is_none_or(Notes::are_moves) {
        return error;
    }
    let into_refused_row = Error::refused(error.what()).cause(error.cause_text().unwrap_or_default());
    error.hint_text().into_iter().fold(into_refused_row, |into_refused_row, hint| into_refused_row.hint(hint))
}
