//! Positions of queues in a database, moved by the transactions of the rows. The protocol:
//!
//! ```text
//!  BEGIN ─▶ move the places ─▶ bulk statements ─▶ COMMIT ─▶ written
//!                 │ no row changed                   │ no answer
//!                 ▼                                  ▼
//!          ROLLBACK, moved               on a new connection: BEGIN ─▶ move the same places
//!                                           they could be moved ─▶ ROLLBACK: it was not committed
//!                                           no row changed, and the version is of our attempt ─▶ written
//!                                           no row changed, and the version is of another one ─▶ moved
//!                                           no row changed, and others have gone on since ─▶ unknown
//! ```
//! A row that a transaction has moved is locked until that ends. So the second attempt waits for the outcome of the
//! first one, and so does who reads. `places.rs` has the statements, `delivery.rs` and `notes.rs` the transactions of
//! rows. Reading, and moves without rows, have connections of their own, so that they do not wait for a delivery.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::FutureExt;
use millstream_core::epochs::{Epochs, LaterMoves};
use millstream_core::positions::{Change, Move, Moved, Position, Positions};
use millstream_core::sink::{Changes, Delivery, LoadContext};
use millstream_core::{Error, Result, fail_point};
use tokio::sync::OwnedSemaphorePermit;

use super::bisect::Scope;
use super::commit;
use super::delivery::{Delivering, TableDelivery};
use super::entry::blamed;
use super::epoch::{MergedEpochs, OWN};
use super::indexes::Waiting;
use super::load::{self, Shared, on_io};
use super::notes::{Notes, Otherwise, Outcome};
use super::places::{ENDING, Places};
use super::pool::{Pool, connect_as, pause};
use super::server::{Connection, Failure, Server, target_of};
use super::spec::{DatabaseSpec, Mode};
use crate::moves;
use crate::shared::counted;

/// How many connections deliver by default: the server works on each with one core.
const CONNECTIONS: usize = 2;

/// How many connections read and move positions without rows.
const CONTROL: usize = 4;

/// Positions in a database.
pub(super) struct DatabasePositions(Arc<State>);

struct State {
    into: Arc<Delivering>,
    places: Places,
    /// The connections for what has no rows.
    control: Pool,
    connections: usize,
}

/// The setting that keeps positions from being kept, if there is one.
pub(super) fn hindrance(spec: &DatabaseSpec) -> Option<&'static str> {
    match spec {
        DatabaseSpec { mode, .. } if !mode.takes_epochs() => Some(mode.setting()),
        DatabaseSpec { atomic: true, .. } => Some("atomic"),
        DatabaseSpec { defer_key: true, .. } => Some("defer_key"),
        DatabaseSpec { defer_indexes: true, .. } => Some("defer_indexes"),
        DatabaseSpec { before, .. } if !before.is_empty() => Some("before"),
        DatabaseSpec { after, .. } if !after.is_empty() => Some("after"),
        _ => None,
    }
}

/// The error of a sink whose `setting` needs a load that ends.
pub(crate) fn needs_an_end(target: &str, setting: &str) -> Error {
    let hint = match setting.starts_with("mode") {
        true => "it needs all rows at once; `mode: append`, `merge` and `ignore` do not",
        false => "it needs all rows at once: leave it out",
    };
    Error::job(format!("`{setting}` cannot be used for rows of a queue, which go into {target} epoch by epoch"))
        .text(setting)
        .hint(hint)
}

/// The positions of `load` for the process `owner`.
pub(crate) async fn open(
    server: Arc<dyn Server>,
    spec: DatabaseSpec,
    load: String,
    owner: String,
    context: LoadContext,
) -> Result<Arc<dyn Positions>> {
    moves::check_owner(&owner)?;
    if let Some(setting) = hindrance(&spec) {
        return Err(needs_an_end(&target_of(server.as_ref(), &spec), setting));
    }
    let io = context.io.clone();
    on_io(&io, async move {
        let state = set_up(server, spec, &load, &owner, context).await?;
        Ok(Arc::new(DatabasePositions(Arc::new(state))) as Arc<dyn Positions>)
    })
    .await
}

async fn set_up(
    server: Arc<dyn Server>,
    mut spec: DatabaseSpec,
    load: &str,
    owner: &str,
    context: LoadContext,
) -> Result<State> {
    let places = Places::new(&server, &spec, load, owner);
    let mut connection = connect_as(server.as_ref(), &spec, &places.own_tag()).await?;
    places.make_table(connection.as_mut()).await?;
    be_there(&server, connection.as_mut(), &spec, &places).await?;
    Waiting::new(&server, &spec).build_all(connection.as_mut()).await?;
    load::clean(&server, connection.as_mut(), &spec).await?;
    let facts = load::ready_target(server.as_ref(), connection.as_mut(), &spec, &context.schema).await?;
    let columns = load::bulk_columns(server.as_ref(), &spec, &context.schema, Some(&facts));
    spec.name_like(&columns.iter().map(|column| column.name.clone()).collect::<Vec<_>>());
    let names = columns.iter().map(|column| column.name.clone()).collect();
    let epochs = MergedEpochs::new(&server, &spec, names, facts);
    // Two merges of the same keys would wait for each other, in different orders; and which row of a key comes last
    // would change with each attempt. What is only added is in order within a place, which is whole in one delivery.
    let connections = if epochs.is_some() { 1 } else { spec.connections.unwrap_or(CONNECTIONS) };
    // As many again wait for their turn to commit.
    let ahead = if epochs.is_some() { 0 } else { connections };
    let (table, columns) = match &epochs {
        Some(epochs) => (epochs.table.clone(), columns.into_iter().chain([load::arrival()]).collect()),
        None => (server.dialect().table(&spec.table), columns),
    };
    let bulk = server.dialect().bulk(&table, columns, &context.schema);
    let pool = |count| {
        let opening = server.dialect().see_commits().map(str::to_owned);
        Pool::new(&server, &spec, count).tagged(Some(&places.own_tag())).opening(opening)
    };
    let (pool, control) = (pool(connections + ahead).making(epochs.as_ref().map(MergedEpochs::making)), pool(CONTROL));
    if epochs.is_some() {
        // Whether that is allowed shows now.
        pool.give(pool.connect_for_rows().await?);
    }
    let mut shared = Shared::new(&server, &spec, bulk, pool, Scope::Transaction, &context.step);
    shared.own = epochs.as_ref().map(|_| OWN.to_owned());
    let LoadContext { schema, budget, io, .. } = context;
    let into = Delivering { shared: Arc::new(shared), schema, budget, io, rows: Arc::default(), epochs };
    Ok(State { into: Arc::new(into), places, control, connections })
}

/// Fails if the table was dropped into which messages were loaded.
async fn be_there(
    server: &Arc<dyn Server>,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
    places: &Places,
) -> Result<()> {
    let is_there = connection.describe(&spec.table).await.map_err(Failure::into_error)?.is_some();
    if is_there || places.all(connection).await.map_err(Failure::into_error)?.is_empty() {
        return Ok(());
    }
    let target = target_of(server.as_ref(), spec);
    Err(is_gone(&target, &format!("DELETE FROM {} WHERE load_key = '{}'", places.table, places.key)))
}

/// The error if the table is missing, although positions say that messages were loaded into it. `delete` removes these.
pub(crate) fn is_gone(target: &str, delete: &str) -> Error {
    Error::refused(format!("{target} is not there, and messages of queues were in it"))
        .cause("the table was dropped or renamed, and its positions still say that they are loaded")
        .hint(format!(
            "restore it; or, to load what the queue still has, give the job another `group`; or forget the positions: \
             {delete}"
        ))
}

/// What became of an attempt.
enum Tried<T> {
    /// It is done.
    Done(T),
    /// It is not, and can be tried again.
    Again,
    /// The connection is lost; it is done anyway, or can be tried again over another one.
    Lost(Option<T>),
}

/// A connection for what has no rows.
struct Session {
    connection: Box<dyn Connection>,
    tries: u32,
    _permit: OwnedSemaphorePermit,
}

impl State {
    async fn session(&self) -> Result<Session> {
        let permit = self.control.permit().await?;
        Ok(Session { connection: self.control.take().await?, tries: 0, _permit: permit })
    }

    /// Ends a session with what was done, or makes it ready for the next attempt.
    async fn settle<T>(
        &self,
        mut session: Session,
        tried: Result<Tried<T>, Failure>,
    ) -> Result<std::result::Result<T, Session>> {
        let failure = match tried {
            Ok(Tried::Done(done)) => {
                self.control.give(session.connection);
                return Ok(Ok(done));
            }
            Ok(Tried::Lost(Some(done))) => return Ok(Ok(done)),
            // The server may have ended a connection that was idle for long.
            Ok(Tried::Lost(None)) | Err(Failure::Lost(_)) if session.tries < self.into.shared.spec.retries => {
                session.connection = self.control.connect().await?;
                None
            }
            Ok(Tried::Again | Tried::Lost(None)) => None,
            Err(failure @ Failure::Again { .. }) => Some(failure),
            Err(other) => return Err(other.into_error()),
        };
        let is_failed = failure.is_some();
        if session.tries >= self.into.shared.spec.retries {
            let failure = failure.unwrap_or_else(|| Failure::Other(self.in_use()));
            return Err(blamed(session.connection.as_mut(), &[&self.places.table], failure).await);
        }
        if is_failed {
            session.connection.execute("ROLLBACK").await.map_err(Failure::into_error)?;
        }
        pause(session.tries).await;
        session.tries += 1;
        Ok(Err(session))
    }

    fn in_use(&self) -> Error {
        let what = format!("{}: its positions are constantly moved by other processes", self.into.shared.target);
        Error::transient(what).hint("try again later")
    }

    async fn read(&self) -> Result<Vec<Position>> {
        let mut session = self.session().await?;
        loop {
            let tried = self.try_read(session.connection.as_mut()).await;
            session = match self.settle(session, tried).await? {
                Ok(positions) => return Ok(positions),
                Err(session) => session,
            };
        }
    }

    /// Waits for one place after the other, so that no lock is held meanwhile, and reads then: what a transaction has
    /// moved into a new place is there, too.
    async fn try_read(&self, connection: &mut dyn Connection) -> Result<Tried<Vec<Position>>, Failure> {
        for position in self.places.all(connection).await? {
            self.places.wait_for(connection, &position.place).await?;
        }
        self.places.all(connection).await.map(Tried::Done)
    }

    async fn glance(&self) -> Result<Vec<Position>> {
        let mut session = self.session().await?;
        loop {
            let tried = self.places.all(session.connection.as_mut()).await.map(Tried::Done);
            session = match self.settle(session, tried).await? {
                Ok(positions) => return Ok(positions),
                Err(session) => session,
            };
        }
    }

    async fn set(&self, moves: Vec<Move>) -> Result<Moved> {
        let notes = Notes::moves(&self.places, moves);
        let mut session = self.session().await?;
        loop {
            let tried = self.try_set(session.connection.as_mut(), &notes).await;
            session = match self.settle(session, tried).await? {
                Ok(moved) => return Ok(moved),
                Err(session) => session,
            };
        }
    }

    async fn try_set(&self, connection: &mut dyn Connection, notes: &Notes) -> Result<Tried<Moved>, Failure> {
        match notes.begin(connection).await? {
            None => self.commit(connection, notes).await,
            Some(otherwise) => Ok(Tried::Done(moved(otherwise))),
        }
    }

    /// Commits moves without rows.
    async fn commit(&self, connection: &mut dyn Connection, notes: &Notes) -> Result<Tried<Moved>, Failure> {
        fail_point::pass("commit.before");
        let committed = commit::unless_it_is_there(connection, "COMMIT", || notes.is_over(&self.control).boxed());
        match committed.await {
            Ok(Some(_)) => {
                fail_point::pass("commit.after");
                return Ok(Tried::Done(Moved::All));
            }
            Ok(None) | Err(Failure::Lost(_)) => {}
            Err(other) => return Err(other),
        }
        let Shared { spec, target, .. } = self.into.shared.as_ref();
        let outcome = notes.resolve(&self.control, spec.retries, target).await.map_err(Failure::Other)?;
        Ok(Tried::Lost(match outcome {
            Outcome::Ours => Some(Moved::All),
            Outcome::Otherwise(otherwise) => Some(moved(otherwise)),
            Outcome::Unknown(positions) => Some(Moved::None(positions)),
            Outcome::Undone => None,
        }))
    }

    async fn fence(&self, place: &str, wait: Duration, mut change: Change) -> Result<()> {
        let begun = Instant::now();
        let mut session = self.session().await?;
        loop {
            let tried = self.try_fence(session.connection.as_mut(), place, wait, &mut change).await;
            let is_held = matches!(tried, Err(Failure::Again { waited: true, .. }));
            if is_held && begun.elapsed() < wait + ENDING {
                session.tries = 0;
                self.end_holder(place).await?;
            }
            session = match self.settle(session, tried).await? {
                Ok(()) => return Ok(()),
                Err(session) => session,
            };
        }
    }

    async fn try_fence(
        &self,
        connection: &mut dyn Connection,
        place: &str,
        wait: Duration,
        change: &mut Change,
    ) -> Result<Tried<()>, Failure> {
        let Shared { server, spec, .. } = self.into.shared.as_ref();
        let limit = |limit: Duration| server.dialect().wait_for_locks(limit);
        connection.execute(&limit(wait.min(spec.lock_timeout.0))).await?;
        connection.execute("BEGIN").await?;
        self.places.lock(connection, place).await?;
        connection.execute(&limit(spec.lock_timeout.0)).await?;
        let positions = self.places.all(connection).await?;
        let moves = change(&positions).and_then(|moves| moves::check(&moves).map(|()| moves));
        let moves = moves.map_err(Failure::Other)?;
        if moves.is_empty() {
            connection.execute("COMMIT").await?;
            return Ok(Tried::Done(()));
        }
        let is_removed = moves.iter().any(|one| one.place == place && one.to.is_none());
        let owner = positions.into_iter().find(|one| one.place == place && is_removed).map(|one| one.owner);
        let notes = Notes::moves(&self.places, moves);
        if !notes.make(connection).await? {
            connection.execute("ROLLBACK").await?;
            return Ok(Tried::Again);
        }
        Ok(match self.commit(connection, &notes).await? {
            Tried::Done(_) => {
                // It is no more, and may have rows of its next epoch in an open transaction, whose keys are locked. If
                // it cannot be ended, its rows are waited for, and the error names it.
                if let Some(owner) = owner.filter(|owner| !self.places.is_own(owner)) {
                    let _ = self.places.end_sessions(connection, &owner).await;
                }
                Tried::Done(())
            }
            Tried::Lost(Some(Moved::All)) => Tried::Lost(Some(())),
            // The next attempt sees what there is.
            Tried::Again | Tried::Lost(_) => Tried::Lost(None),
        })
    }

    /// Ends the connections of the process that has moved `place` last, unless that is this one.
    async fn end_holder(&self, place: &str) -> Result<()> {
        let mut connection = self.control.connect().await?;
        self.places.end_holder(connection.as_mut(), place).await
    }

    async fn connections_of(&self, owner: &str) -> Result<usize> {
        let (mut session, tag) = (self.session().await?, self.places.tag(owner));
        loop {
            let tried = session.connection.sessions_of(&tag).await.map(Tried::Done);
            session = match self.settle(session, tried).await? {
                Ok(sessions) => return Ok(sessions.len()),
                Err(session) => session,
            };
        }
    }

    async fn forget(&self) -> Result<()> {
        let Places { table, key, .. } = &self.places;
        let mut session = self.session().await?;
        loop {
            let deleted = session.connection.execute(&format!("DELETE FROM {table} WHERE load_key = '{key}'")).await;
            session = match self.settle(session, deleted.map(|_| Tried::Done(()))).await? {
                Ok(()) => return Ok(()),
                Err(session) => session,
            };
        }
    }
}

fn moved(otherwise: Otherwise) -> Moved {
    match otherwise {
        Otherwise::Moved(positions) => Moved::None(positions),
        Otherwise::Done(_) => Moved::None(Vec::new()),
    }
}

impl DatabasePositions {
    /// Does `work` on the runtime of the network.
    async fn on_io<T: Send + 'static, F>(&self, work: impl FnOnce(Arc<State>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        on_io(&self.0.into.io, work(Arc::clone(&self.0))).await
    }
}

#[async_trait]
impl Epochs for DatabasePositions {
    async fn delivery(&self, moves: Vec<Move>, bad_rows: usize) -> Result<Box<dyn Delivery>> {
        moves::check(&moves)?;
        let notes = Notes::moves(&self.0.places, moves);
        Ok(Box::new(TableDelivery::new(Arc::clone(&self.0.into), notes, bad_rows)))
    }

    fn takes_ahead(&self) -> bool {
        self.0.into.epochs.is_none()
    }

    async fn delivery_ahead(&self, moves: LaterMoves, bad_rows: usize) -> Result<Box<dyn Delivery>> {
        Ok(Box::new(TableDelivery::ahead(Arc::clone(&self.0.into), &self.0.places, moves, bad_rows)))
    }

    fn target(&self) -> String {
        self.0.into.shared.target.clone()
    }

    fn summary(&self, rows: u64) -> String {
        let shared = &self.0.into.shared;
        let verb = match shared.spec.mode {
            Mode::Merge => "merged into",
            Mode::Ignore => "offered to",
            _ => "added to",
        };
        format!("{} {verb} {}{}", counted(rows, "row"), shared.target, shared.detour())
    }

    fn ignored(&self) -> u64 {
        self.0.into.epochs.as_ref().map_or(0, MergedEpochs::ignored)
    }

    fn changes(&self) -> Option<Changes> {
        self.0.into.epochs.as_ref().and_then(MergedEpochs::changes)
    }

    fn connections(&self) -> usize {
        self.0.connections
    }

    fn end_soon(&self) {
        self.0.places.end_soon();
    }
}

#[async_trait]
impl Positions for DatabasePositions {
    async fn read(&self) -> Result<Vec<Position>> {
        self.on_io(|state| async move { state.read().await }).await
    }

    async fn glance(&self) -> Result<Vec<Position>> {
        self.on_io(|state| async move { state.glance().await }).await
    }

    async fn set(&self, moves: Vec<Move>) -> Result<Moved> {
        moves::check(&moves)?;
        self.on_io(|state| async move { state.set(moves).await }).await
    }

    async fn fence(&self, place: &str, wait: Duration, change: Change) -> Result<()> {
        let place = place.to_owned();
        self.on_io(|state| async move { state.fence(&place, wait, change).await }).await
    }

    async fn connections_of(&self, owner: &str) -> Result<Option<usize>> {
        let owner = owner.to_owned();
        self.on_io(|state| async move { state.connections_of(&owner).await }).await.map(Some)
    }

    async fn forget(&self) -> Result<()> {
        self.on_io(|state| async move { state.forget().await }).await
    }
}
