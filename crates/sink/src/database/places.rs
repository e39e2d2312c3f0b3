//! The table of positions: where the readers of a load's queues stand. It has the statements that read and move them,
//! and leaves transactions to `notes.rs` and `positions.rs`.
//!
//! ```text
//!  load_key   place_key   version   attempt      owner                   state   place
//!  digest     digest      n         who made n   the process that did    text    readable
//! ```
//! A move names the version that has to be there, and changes one row or none. Moves of several places go in one order,
//! by `place_key`, so that two transactions do not wait for each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millstream_core::positions::{Move, Position};
use millstream_core::{Error, RejectKind, Result};

use super::entry::blamed;
use super::server::{Connection, Failure, Server, target_of};
use super::spec::DatabaseSpec;
use crate::moves;
use crate::shared::digest;
use crate::table_version::POSITIONS;

/// Names in a list in one statement.
const LISTED: usize = 500;

/// How long the server may take to end a connection, and the time between two looks.
pub(super) const ENDING: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);

/// The positions of a load, for one process.
#[derive(Debug, Clone)]
pub(super) struct Places {
    server: Arc<dyn Server>,
    /// The target table's name.
    beside: String,
    /// The table of positions, as SQL text.
    pub(super) table: String,
    /// The load key.
    pub(super) key: String,
    load: String,
    /// The process.
    owner: String,
    /// The target table, for messages.
    target: String,
    /// Whether the run is to end.
    is_ending: Arc<AtomicBool>,
}

impl Places {
    /// Those of `load`, moved by the process `owner`.
    pub(super) fn new(server: &Arc<dyn Server>, spec: &DatabaseSpec, load: &str, owner: &str) -> Self {
        Places {
            beside: spec.table.clone(),
            table: server.dialect().beside(&spec.table, POSITIONS.name),
            key: digest(load),
            load: load.to_owned(),
            owner: owner.to_owned(),
            target: target_of(server.as_ref(), spec),
            server: Arc::clone(server),
            is_ending: Arc::default(),
        }
    }

    /// The tag of the connections that the process `owner` has for this load.
    pub(super) fn tag(&self, owner: &str) -> String {
        let mut tag = digest(&format!("{owner}\n{}", self.load));
        tag.truncate(16);
        tag
    }

    /// The tag of this process's connections.
    pub(super) fn own_tag(&self) -> String {
        self.tag(&self.owner)
    }

    /// Whether this is the name of this process.
    pub(super) fn is_own(&self, owner: &str) -> bool {
        self.owner == owner
    }

    /// The run is to end.
    pub(super) fn end_soon(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// Whether the run is to end.
    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// Moves in the order in which they are made.
    pub(super) fn in_order(&self, mut moves: Vec<Move>) -> Vec<Move> {
        moves.sort_by_cached_key(|one| digest(&one.place));
        moves
    }

    /// Creates the table if it is missing.
    pub(super) async fn make_table(&self, connection: &mut dyn Connection) -> Result<()> {
        if self.has_table(connection).await? {
            return Ok(());
        }
        let create = self.server.dialect().create_positions(&self.table, &POSITIONS.comment());
        match connection.execute(&create).await {
            Ok(_) | Err(Failure::Rows(_)) => Ok(()),
            // Another process may have just created it.
            Err(Failure::Other(_)) if self.has_table(connection).await? => Ok(()),
            Err(failure) => Err(self.cannot_make(&create, blamed(connection, &[&self.table], failure).await)),
        }
    }

    /// Whether the table exists. Fails for one of a newer version.
    async fn has_table(&self, connection: &mut dyn Connection) -> Result<bool> {
        let comment = connection.comment(&self.beside, POSITIONS.name).await.map_err(Failure::into_error)?;
        comment.map_or(Ok(false), |comment| POSITIONS.check(&comment, &self.target).map(|()| true))
    }

    fn cannot_make(&self, create: &str, error: Error) -> Error {
        let what = format!("the table {}, which notes how far queues are loaded, cannot be created", POSITIONS.name);
        let cause = error.cause_text().unwrap_or(error.what()).to_owned();
        let hint = format!(
            "let the user create tables beside {}; or create it as another user, and GRANT SELECT, INSERT, UPDATE, \
             DELETE ON it: {create}",
            self.target
        );
        Error::new(error.kind(), what).cause(cause).hint(hint)
    }

    /// Makes moves in the open transaction; whether all could be made. If not, the transaction has to be rolled back.
    pub(super) async fn make(
        &self,
        connection: &mut dyn Connection,
        moves: &[Move],
        attempt: &str,
    ) -> Result<bool, Failure> {
        for one in moves {
            let made = match connection.execute(&self.statement(one, attempt)).await {
                Ok(changed) => changed == 1,
                Err(Failure::Rows(refusal)) if refusal.kind == RejectKind::Duplicate => false,
                Err(other) => return Err(self.of_another_user(other)),
            };
            if !made {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn statement(&self, one: &Move, attempt: &str) -> String {
        let (Places { table, key, owner, .. }, place) = (self, digest(&one.place));
        let (dialect, owner) = (self.server.dialect(), self.server.dialect().literal(owner));
        let is_it = |from: &u64| format!("load_key = '{key}' AND place_key = '{place}' AND version = {from}");
        match (&one.from, &one.to) {
            (Some(from), Some(state)) => format!(
                "UPDATE {table} SET version = {}, attempt = '{attempt}', owner = {owner}, state = {}, written_at = \
                 CURRENT_TIMESTAMP WHERE {}",
                from + 1,
                dialect.literal(state),
                is_it(from)
            ),
            (Some(from), None) => format!("DELETE FROM {table} WHERE {}", is_it(from)),
            (None, state) => format!(
                "INSERT INTO {table} (load_key, place_key, version, attempt, owner, state, place) VALUES ('{key}', \
                 '{place}', 1, '{attempt}', {owner}, {}, {})",
                dialect.literal(state.as_deref().unwrap_or_default()),
                dialect.literal(&one.place)
            ),
        }
    }

    /// Adds a hint for a table that another user has created.
    fn of_another_user(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Other(error) if error.cause_text().is_some_and(|cause| cause.contains("denied")) => {
                let name = POSITIONS.name;
                Failure::Other(error.hint(format!(
                    "the table {name}, which notes how far queues are loaded, belongs to another user: GRANT SELECT, \
                     INSERT, UPDATE, DELETE ON {name} TO this one"
                )))
            }
            other => other,
        }
    }

    /// The places of `moves` that stand elsewhere, by place.
    pub(super) async fn elsewhere(
        &self,
        connection: &mut dyn Connection,
        moves: &[Move],
    ) -> Result<Vec<Position>, Failure> {
        let there = self.of_moves(connection, moves).await?;
        Ok(moves::elsewhere(moves, there))
    }

    /// Whether none of the places of `moves` stands where they begin.
    pub(super) async fn have_all_moved(
        &self,
        connection: &mut dyn Connection,
        moves: &[Move],
    ) -> Result<bool, Failure> {
        let there = self.of_moves(connection, moves).await?;
        let stays = |one: &Move| there.iter().find(|it| it.place == one.place).map(|it| it.version) == one.from;
        Ok(!moves.iter().any(stays))
    }

    /// Whether one of the places of `moves` was moved by `attempt` last.
    pub(super) async fn has_attempt(
        &self,
        connection: &mut dyn Connection,
        moves: &[Move],
        attempt: &str,
    ) -> Result<bool, Failure> {
        for some in moves.chunks(LISTED) {
            let (Places { table, .. }, condition) = (self, self.among(some));
            let query = format!("SELECT 1 FROM {table} WHERE {condition} AND attempt = '{attempt}' LIMIT 1");
            if !connection.query(&query).await?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The positions of the places of `moves` that there are.
    pub(super) async fn of_moves(
        &self,
        connection: &mut dyn Connection,
        moves: &[Move],
    ) -> Result<Vec<Position>, Failure> {
        let mut there = Vec::new();
        for some in moves.chunks(LISTED) {
            there.extend(self.select(connection, &self.among(some), "").await?);
        }
        Ok(there)
    }

    /// The condition for the places of `moves`.
    fn among(&self, moves: &[Move]) -> String {
        let keys: Vec<String> = moves.iter().map(|one| format!("'{}'", digest(&one.place))).collect();
        format!("load_key = '{}' AND place_key IN ({})", self.key, keys.join(", "))
    }

    /// A position, which is locked until the transaction ends.
    pub(super) async fn lock(&self, connection: &mut dyn Connection, place: &str) -> Result<Option<Position>, Failure> {
        self.of_place(connection, place, "FOR UPDATE").await
    }

    /// A position, as it is without transactions that are open.
    pub(super) async fn look(&self, connection: &mut dyn Connection, place: &str) -> Result<Option<Position>, Failure> {
        self.of_place(connection, place, "").await
    }

    /// Waits for the transaction that is moving a place, if there is one.
    pub(super) async fn wait_for(&self, connection: &mut dyn Connection, place: &str) -> Result<(), Failure> {
        self.of_place(connection, place, self.server.dialect().share_lock()).await.map(drop)
    }

    async fn of_place(
        &self,
        connection: &mut dyn Connection,
        place: &str,
        lock: &str,
    ) -> Result<Option<Position>, Failure> {
        let is_it = format!("load_key = '{}' AND place_key = '{}'", self.key, digest(place));
        Ok(self.select(connection, &is_it, lock).await?.pop())
    }

    /// Ends the connections of the process that has moved `place` last, unless that is this one.
    pub(super) async fn end_holder(&self, connection: &mut dyn Connection, place: &str) -> Result<()> {
        let held = self.look(connection, place).await.map_err(Failure::into_error)?;
        match held.map(|position| position.owner).filter(|owner| !self.is_own(owner)) {
            Some(owner) => self.end_sessions(connection, &owner).await,
            None => Ok(()),
        }
    }

    /// Ends the connections of the process `owner`.
    pub(super) async fn end_sessions(&self, connection: &mut dyn Connection, owner: &str) -> Result<()> {
        let tag = self.tag(owner);
        let begun = Instant::now();
        loop {
            let left = connection.sessions_of(&tag).await.map_err(Failure::into_error)?;
            if left.is_empty() || begun.elapsed() > ENDING {
                return Ok(());
            }
            for one in &left {
                if let Err(refused) = connection.end_session(&tag, &one.id).await {
                    return Err(self.cannot_end(&one.shown, refused.into_error()));
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn cannot_end(&self, shown: &str, refused: Error) -> Error {
        let what = format!("a process that has stopped keeps a position of {} locked", self.target);
        let cause = refused.cause_text().unwrap_or(refused.what());
        Error::refused(what)
            .cause(format!("{shown}: {cause}"))
            .hint("end that process, or its connection on the server")
    }

    /// All positions of the load as they were committed last, by place.
    pub(super) async fn all(&self, connection: &mut dyn Connection) -> Result<Vec<Position>, Failure> {
        self.select(connection, &format!("load_key = '{}'", self.key), "").await
    }

    async fn select(
        &self,
        connection: &mut dyn Connection,
        condition: &str,
        lock: &str,
    ) -> Result<Vec<Position>, Failure> {
        let (Places { table, .. }, idle) = (self, self.server.dialect().seconds_since("written_at"));
        let query = format!("SELECT place, version, owner, state, {idle} FROM {table} WHERE {condition} {lock}");
        let rows = connection.query(&query).await.map_err(|failure| self.of_another_user(failure))?;
        let mut positions = rows.into_iter().map(position).collect::<Result<Vec<_>>>().map_err(Failure::Other)?;
        positions.sort();
        Ok(positions)
    }
}

/// A row as a position.
fn position(row: Vec<Option<String>>) -> Result<Position> {
    let mut cells = row.into_iter().map(Option::unwrap_or_default);
    let mut next = || cells.next().unwrap_or_default();
    let (place, version, owner, state) = (next(), next(), next(), next());
    let version = version.parse();
    let version = version.map_err(|cause| Error::internal("a position has no version").cause(cause))?;
    // A clock may be ahead.
    let idle = Duration::from_secs(next().parse().unwrap_or(0));
    Ok(Position { place, version, owner: owner.trim_end().to_owned(), state, idle })
}
