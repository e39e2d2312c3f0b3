//! The entry of a load in the ledger, and who owns the load: one run at a time. It owns how a load is begun, taken over
//! from a run that has it still, and forgotten; the chunks beside the entry are `ledger.rs`'s.
//!
//! ```text
//!  load_key   unit_key   chunk   attempt          note
//!  digest     0…0        -1      who owns it      the load's name
//! ```
//! The run that has a load may be asleep, or cut off from the network, with transactions open that keep others waiting,
//! and may wake up at any time. So a run that takes its load over **fences** it: first its connections are ended, by
//! which the server rolls back what they had not committed, then the entry says who owns the load now. Each transaction
//! of a load holds the entry, and finds its own name there, or stops. No wait for a lock is repeated here, and each
//! that was in vain names who may hold it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_core::sink::KnownLoad;
use millstream_core::{Error, Result};

use super::pool::pause;
use super::server::{Connection, Failure, SeenSession, Server, target_of};
use super::spec::DatabaseSpec;
use crate::ledger_version;
use crate::shared::digest;

/// The ledger's table.
pub(crate) const TABLE: &str = "_millstream_ledger";

/// How long the server may take to see that a process is gone.
const LEAVING: Duration = Duration::from_secs(5);

/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// How long the end of a run may wait until no other run looks into its empty ledger.
const TIDYING: Duration = Duration::from_secs(5);

/// The entry of a load, for one who owns the load or wants to.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) server: Arc<dyn Server>,
    spec: DatabaseSpec,
    /// The ledger's table, as SQL text.
    pub(crate) table: String,
    /// The load, as it is written there.
    pub(crate) key: String,
    /// The name of the load.
    load: String,
    /// Who owns it.
    pub(crate) owner: String,
    /// The table that is loaded into.
    place: String,
}

/// What of a load is to be forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forget {
    /// It, if it still is this owner's.
    Own,
    /// It, if nothing of it is written, and its owner is gone.
    Unwritten,
    /// It, whichever run has it.
    Anyway,
}

/// The unit of the entry.
pub(crate) fn header() -> String {
    "0".repeat(64)
}

impl Entry {
    /// That of `load`, for the run `run` as its owner.
    pub(crate) fn new(server: &Arc<dyn Server>, spec: &DatabaseSpec, load: &str, run: &str) -> Self {
        let (table, place) = (server.dialect().beside(&spec.table, TABLE), target_of(server.as_ref(), spec));
        let (server, spec) = (Arc::clone(server), spec.clone());
        let mut owner = digest(&format!("{run}\n{load}"));
        owner.truncate(16);
        Entry { server, spec, table, key: digest(load), load: load.to_owned(), owner, place }
    }

    /// Whether it is that of `load`.
    pub(crate) fn is_of(&self, load: &str) -> bool {
        self.load == load
    }

    /// What tells it from all other rows of the ledger.
    fn is_it(&self) -> String {
        format!("load_key = '{}' AND unit_key = '{}' AND chunk = -1", self.key, header())
    }

    /// Makes this owner's the load; `false` if there is no ledger, and the user may not make one. What another run has
    /// of it is ended if `take_over`; otherwise that is waited for, but not for long.
    pub(crate) async fn enter(&self, connection: &mut dyn Connection, take_over: bool) -> Result<bool> {
        for tries in 0..=self.spec.retries {
            if !self.make_ledger(connection).await? {
                return Ok(false);
            }
            match self.try_enter(connection, take_over).await {
                Ok(true) => return Ok(true),
                // It was forgotten, or taken over by a third, just now.
                Ok(false) | Err(Failure::Again { waited: false, .. }) => {}
                Err(Failure::Other(error)) => {
                    // A load that ended may have taken the empty ledger away.
                    if self.has_ledger(connection).await.map_err(Failure::into_error)? {
                        return Err(of_another_user(error));
                    }
                }
                Err(other) => return Err(self.blamed(connection, other).await),
            }
            pause(tries).await;
        }
        Err(Error::transient(format!("{}: its ledger is constantly in use by other runs", self.place))
            .hint("try again later"))
    }

    async fn try_enter(&self, connection: &mut dyn Connection, take_over: bool) -> Result<bool, Failure> {
        let Entry { table, key, owner, load, .. } = self;
        let values = format!("('{key}', '{}', -1, '{owner}', {})", header(), self.server.dialect().literal(load));
        let insert = format!("INSERT INTO {table} (load_key, unit_key, chunk, attempt, note) VALUES {values}");
        match connection.execute(&insert).await {
            Ok(_) => return Ok(true),
            // It is there.
            Err(Failure::Rows(_)) => {}
            Err(other) => return Err(other),
        }
        let Some(former) = self.owner_now(connection, "").await? else { return Ok(false) };
        self.fence(connection, &former, take_over).await?;
        let is_still = format!("{} AND attempt = {}", self.is_it(), self.server.dialect().literal(&former));
        let taken = connection.execute(&format!("UPDATE {table} SET attempt = '{owner}' WHERE {is_still}")).await?;
        Ok(taken == 1)
    }

    /// Who owns the load; `None` if it is not in the ledger.
    async fn owner_now(&self, connection: &mut dyn Connection, lock: &str) -> Result<Option<String>, Failure> {
        let query = format!("SELECT attempt FROM {} WHERE {} {lock}", self.table, self.is_it());
        Ok(connection.query(&query).await?.into_iter().flatten().next().flatten())
    }

    /// Sees to it that `former` has no connection any more.
    async fn fence(&self, connection: &mut dyn Connection, former: &str, take_over: bool) -> Result<(), Failure> {
        let (begun, most) = (Instant::now(), if take_over { self.spec.lock_timeout.0 } else { LEAVING });
        let mut refused = None;
        loop {
            let left = connection.sessions_of(former).await?;
            if left.is_empty() {
                return Ok(());
            }
            if begun.elapsed() > most {
                return Err(Failure::Other(self.kept_by(&left, take_over, refused)));
            }
            if take_over {
                for one in &left {
                    refused = connection.end_session(former, &one.id).await.err().or(refused);
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Another run has the load, and keeps it.
    fn kept_by(&self, by: &[SeenSession], take_over: bool, refused: Option<Failure>) -> Error {
        let by = list(by);
        if !take_over {
            return Error::refused(format!("another run is loading into {}", self.place)).cause(by).hint(
                "wait until it has ended; if it never ends, `--resume` ends its connections and resumes the load",
            );
        }
        let why = refused.map(|failure| failure.into_error().cause_text().unwrap_or_default().to_owned());
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        Error::refused(format!("the run that has been loading into {} cannot be ended", self.place))
            .cause(format!("{by}{why}"))
            .hint("end it, or its connections on the server, and run again with `--resume`")
    }

    /// Keeps the entry as it is until the transaction ends. Once a load is another's, or forgotten, its notes may keep
    /// no run from writing its rows again: one that has slept through that must not.
    pub(crate) async fn check(&self, connection: &mut dyn Connection) -> Result<(), Failure> {
        self.check_locked(connection, self.server.dialect().share_lock()).await
    }

    /// The same with another lock.
    pub(crate) async fn check_locked(&self, connection: &mut dyn Connection, lock: &str) -> Result<(), Failure> {
        let owner = match self.owner_now(connection, lock).await {
            Err(Failure::Other(error)) => {
                // The ledger goes with the last load in it. A failed transaction answers nothing.
                connection.execute("ROLLBACK").await?;
                if self.has_ledger(connection).await? {
                    return Err(Failure::Other(error));
                }
                None
            }
            other => other?,
        };
        let what = match owner {
            Some(owner) if owner == self.owner => return Ok(()),
            Some(_) => format!("another run has taken over this load into {}", self.place),
            None => format!("another run has completed this load into {}, or has abandoned it", self.place),
        };
        Err(Failure::Other(Error::refused(what).hint("see `millstream runs`; nothing was written twice")))
    }

    /// Forgets the load, once no run is about to write to it. Whether it did. The ledger goes with the last load.
    pub(crate) async fn forget(&self, connection: &mut dyn Connection, what: Forget) -> Result<bool> {
        if !self.has_ledger(connection).await.map_err(Failure::into_error)? {
            return Ok(true);
        }
        let mut tries = 0;
        let struck = loop {
            match self.strike_out(connection, what).await {
                Ok(struck) => break struck,
                Err(Failure::Again { waited: false, .. }) if tries < self.spec.retries => {
                    connection.execute("ROLLBACK").await.map_err(Failure::into_error)?;
                    pause(tries).await;
                    tries += 1;
                }
                Err(other) => return Err(self.blamed(connection, other).await),
            }
        };
        if struck {
            self.tidy(connection).await?;
        }
        Ok(struck)
    }

    async fn strike_out(&self, connection: &mut dyn Connection, what: Forget) -> Result<bool, Failure> {
        let Entry { table, key, .. } = self;
        let other = self.owner_now(connection, "").await?.filter(|owner| *owner != self.owner);
        match (what, &other) {
            (_, None) => {}
            // Who has taken it over forgets it.
            (Forget::Own, Some(_)) => return Ok(false),
            (Forget::Unwritten, Some(other)) if connection.sessions_of(other).await?.is_empty() => {}
            (Forget::Unwritten, Some(_)) => return Ok(false),
            (Forget::Anyway, Some(other)) => self.fence(connection, other, true).await?,
        }
        connection.execute("BEGIN").await?;
        // A run that is writing holds the entry, and is waited for.
        let owner = self.owner_now(connection, "FOR UPDATE").await?;
        let is_another =
            what != Forget::Anyway && owner.is_some_and(|owner| owner != self.owner && Some(owner) != other);
        if is_another || (what == Forget::Unwritten && self.has_written(connection).await?) {
            connection.execute("ROLLBACK").await?;
            return Ok(false);
        }
        connection.execute(&format!("DELETE FROM {table} WHERE load_key = '{key}'")).await?;
        connection.execute("COMMIT").await?;
        Ok(true)
    }

    /// Whether anything of the load is noted.
    pub(crate) async fn has_written(&self, connection: &mut dyn Connection) -> Result<bool, Failure> {
        let Entry { table, key, .. } = self;
        let written = format!("SELECT 1 FROM {table} WHERE load_key = '{key}' AND chunk >= 0 LIMIT 1");
        Ok(!connection.query(&written).await?.is_empty())
    }

    /// All loads that are in the ledger.
    pub(crate) async fn loads(&self, connection: &mut dyn Connection) -> Result<Vec<KnownLoad>, Failure> {
        if !self.has_ledger(connection).await? {
            return Ok(Vec::new());
        }
        let query = format!(
            "SELECT MAX(CASE WHEN chunk = -1 THEN note END), COUNT(*) - 1, {}, MAX(CASE WHEN chunk = -1 THEN attempt \
             END), MAX(CASE WHEN chunk = 0 AND unit_key = '{}' THEN note END) FROM {} GROUP BY load_key \
             ORDER BY 3, 1",
            self.server.dialect().seconds_since("MAX(written_at)"),
            header(),
            self.table
        );
        let mut known = Vec::new();
        for row in connection.query(&query).await? {
            let mut cells = row.into_iter();
            let Some(load) = cells.next().flatten() else { continue };
            let mut number = || cells.next().flatten().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
            let (chunks, idle_seconds) = (number(), number());
            let owner = cells.next().flatten().unwrap_or_default();
            // An intention that is not carried out is nothing that is written.
            let intended = cells.next().flatten();
            let is_open = match intended {
                Some(name) => self.has_table(connection, &name).await?,
                None => false,
            };
            let chunks: u64 = chunks;
            let chunks = chunks.saturating_sub(u64::from(is_open));
            let sessions = connection.sessions_of(&owner).await?;
            let connections = sessions.into_iter().map(|connection| connection.shown).collect();
            known.push(KnownLoad { load, chunks, idle_seconds, connections });
        }
        Ok(known)
    }

    /// Takes the ledger away if it has no load any more.
    pub(crate) async fn tidy(&self, connection: &mut dyn Connection) -> Result<()> {
        if let Err(failure) = self.drop_empty(connection).await {
            let error = self.blamed(connection, failure).await;
            connection.execute("ROLLBACK").await.map_err(Failure::into_error)?;
            // What was locked stays so in MySQL, whatever is rolled back.
            let (_, unlock) = self.server.dialect().lock_table(&self.table);
            let _ = connection.execute(unlock).await;
            let cause = error.cause_text().unwrap_or_default();
            let is_another_users = cause.contains("denied") || cause.contains("must be owner");
            // An empty one does no harm, and its owner's next load takes it away.
            if !is_another_users && self.has_ledger(connection).await.map_err(Failure::into_error)? {
                let what = format!("the empty table {TABLE} beside {} could not be dropped", self.place);
                let cause = error.cause_text().unwrap_or(error.what());
                return Err(Error::refused(what).cause(cause).hint("the next load tries again"));
            }
        }
        let waiting = self.server.dialect().wait_for_locks(self.spec.lock_timeout.0);
        connection.execute(&waiting).await.map(drop).map_err(Failure::into_error)
    }

    /// Whether the ledger's table is there. One of a newer version is refused.
    pub(crate) async fn has_ledger(&self, connection: &mut dyn Connection) -> Result<bool, Failure> {
        let Some(comment) = connection.comment(&self.spec.table, TABLE).await? else { return Ok(false) };
        ledger_version::check(&comment, &self.place).map_err(Failure::Other)?;
        Ok(true)
    }

    /// Whether there is a table of this name beside the target.
    pub(crate) async fn has_table(&self, connection: &mut dyn Connection, name: &str) -> Result<bool, Failure> {
        Ok(connection.tables(&self.spec.table, name).await?.iter().any(|known| known == name))
    }

    /// Makes the ledger's table where it is missing; `false` if the user may not.
    pub(crate) async fn make_ledger(&self, connection: &mut dyn Connection) -> Result<bool> {
        if self.has_ledger(connection).await.map_err(Failure::into_error)? {
            return Ok(true);
        }
        match connection.execute(&self.server.dialect().create_ledger(&self.table, &ledger_version::mark())).await {
            Ok(_) | Err(Failure::Rows(_)) => Ok(true),
            // Another load may have made it just now.
            Err(Failure::Other(_)) => self.has_ledger(connection).await.map_err(Failure::into_error),
            Err(other) => Err(self.blamed(connection, other).await),
        }
    }

    async fn blamed(&self, connection: &mut dyn Connection, failure: Failure) -> Error {
        of_another_user(blamed(connection, &[&self.table], failure).await)
    }

    async fn drop_empty(&self, connection: &mut dyn Connection) -> Result<(), Failure> {
        let any = format!("SELECT 1 FROM {} LIMIT 1", self.table);
        // Others that load are not to be held up.
        if !connection.query(&any).await?.is_empty() {
            return Ok(());
        }
        connection.execute(&self.server.dialect().wait_for_locks(TIDYING)).await?;
        let (lock, unlock) = self.server.dialect().lock_table(&self.table);
        for statement in lock {
            connection.execute(&statement).await?;
        }
        if connection.query(&any).await?.is_empty() {
            connection.execute(&format!("DROP TABLE {}", self.table)).await?;
        }
        connection.execute(unlock).await.map(drop)
    }
}

/// The ledger belongs to the user who has loaded first.
fn of_another_user(error: Error) -> Error {
    let is_denied = error.cause_text().is_some_and(|cause| cause.contains("denied") && cause.contains(TABLE));
    if !is_denied {
        return error;
    }
    error.hint(format!(
        "the table {TABLE}, which records what was loaded, belongs to another user: GRANT SELECT, INSERT, UPDATE, \
         DELETE ON {TABLE} TO this one"
    ))
}

/// `failure` as an error. Of a lock that was not given it names who may hold it: the transaction is rolled back for
/// that.
pub(crate) async fn blamed(connection: &mut dyn Connection, tables: &[&str], failure: Failure) -> Error {
    if !matches!(failure, Failure::Again { waited: true, .. }) {
        return failure.into_error();
    }
    let error = failure.into_error();
    let holders = match connection.execute("ROLLBACK").await {
        Ok(_) => connection.holders(tables).await.unwrap_or_default(),
        Err(_) => Vec::new(),
    };
    if holders.is_empty() {
        return error;
    }
    let cause = error.cause_text().unwrap_or_default().to_owned();
    error.cause(format!("{cause}; it may be held by {}", list(&holders)))
}

fn list(sessions: &[SeenSession]) -> String {
    sessions.iter().map(|one| one.shown.as_str()).collect::<Vec<_>>().join(", ")
}
