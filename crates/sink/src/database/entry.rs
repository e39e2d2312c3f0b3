//! The entry of a load in the ledger, and its owner: one run at a time. It begins loads, takes them over from other
//! runs, and forgets them. The chunks of a load are in `ledger.rs`.
//!
//! ```text
//!  load_key   unit_key   chunk   attempt          note
//!  digest     0…0        -1      who owns it      the load's name
//! ```
//! The owner of a load may be suspended, or cut off from the network, with open transactions that block others, and may
//! wake up at any time. So a run that takes its load over **fences** it: it first ends the owner's connections, so that
//! the server rolls back their transactions, and then writes itself into the entry. Each transaction of a load locks
//! the entry and checks that its run is still the owner. No wait for a lock is repeated here, and each timeout names
//! possible holders.
//!
//! The workers of a cluster **join** the load of a run: they are the same owner. Their connections have tags of their
//! own beside, so that the run can end those of a worker that is lost, before another reads the same units.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_core::sink::KnownLoad;
use millstream_core::{Error, Result};

use super::pool::pause;
use super::server::{Connection, Failure, SeenSession, Server, target_of};
use super::spec::DatabaseSpec;
use crate::shared::digest;
use crate::table_version::LEDGER;

/// The ledger's table.
pub(crate) const TABLE: &str = LEDGER.name;

/// What stands in a tag between the owner and the number of a worker.
pub(crate) const WORKER: char = '/';

/// How long the server may take to notice that a process is gone.
const LEAVING: Duration = Duration::from_secs(5);

/// The time between two checks.
const LOOK: Duration = Duration::from_millis(50);

/// How long the end of a run may wait for other runs that read the empty ledger.
const TIDYING: Duration = Duration::from_secs(5);

/// The entry of a load, for a run that owns it or takes it over.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) server: Arc<dyn Server>,
    spec: DatabaseSpec,
    /// The name of the ledger's table: [`TABLE`], or that of the notes of one staging table.
    name: String,
    /// The ledger's table, as SQL text.
    pub(crate) table: String,
    /// The load key.
    pub(crate) key: String,
    /// The name of the load.
    load: String,
    /// The owner, by its run.
    pub(crate) owner: String,
    /// The target table, for messages.
    pub(crate) target: String,
}

/// Which load to forget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forget {
    /// The load, if this run still owns it.
    Own,
    /// The load, if nothing of it is written and its owner is gone.
    Unwritten,
    /// The load, whichever run owns it.
    Anyway,
}

/// The unit of the entry.
pub(crate) fn header() -> String {
    "0".repeat(64)
}

impl Entry {
    /// The entry of `load`, with the run `run` as its owner.
    pub(crate) fn new(server: &Arc<dyn Server>, spec: &DatabaseSpec, load: &str, run: &str) -> Self {
        Entry::in_table(TABLE, server, spec, load, run)
    }

    /// The same in the table `name`, which has the notes of one staging table.
    pub(crate) fn in_table(name: &str, server: &Arc<dyn Server>, spec: &DatabaseSpec, load: &str, run: &str) -> Self {
        let (table, target) = (server.dialect().beside(&spec.table, name), target_of(server.as_ref(), spec));
        let (server, spec, name) = (Arc::clone(server), spec.clone(), name.to_owned());
        let mut owner = digest(&format!("{run}\n{load}"));
        owner.truncate(16);
        Entry { server, spec, name, table, key: digest(load), load: load.to_owned(), owner, target }
    }

    /// Whether it is the entry of `load`.
    pub(crate) fn is_of(&self, load: &str) -> bool {
        self.load == load
    }

    /// The condition for its row of the ledger.
    fn is_it(&self) -> String {
        format!("load_key = '{}' AND unit_key = '{}' AND chunk = -1", self.key, header())
    }

    /// Makes this run the owner; `false` if there is no ledger and the user may not create one. With `take_over`, the
    /// connections of a former owner are ended; otherwise it waits for them for a short time.
    pub(crate) async fn enter(&self, connection: &mut dyn Connection, take_over: bool) -> Result<bool> {
        for tries in 0..=self.spec.retries {
            if !self.make_ledger(connection).await? {
                return Ok(false);
            }
            match self.try_enter(connection, take_over).await {
                Ok(true) => return Ok(true),
                // Another run has just forgotten it or taken it over.
                Ok(false) | Err(Failure::Again { waited: false, .. }) => {}
                Err(Failure::Other(error)) => {
                    // A load that ended may have dropped the empty ledger.
                    if self.has_ledger(connection).await.map_err(Failure::into_error)? {
                        return Err(of_another_user(error));
                    }
                }
                Err(other) => return Err(self.blamed(connection, other).await),
            }
            pause(tries).await;
        }
        Err(Error::transient(format!("{}: its ledger is constantly in use by other runs", self.target))
            .hint("try again later"))
    }

    async fn try_enter(&self, connection: &mut dyn Connection, take_over: bool) -> Result<bool, Failure> {
        let Entry { table, key, owner, load, .. } = self;
        let values = format!("('{key}', '{}', -1, '{owner}', {})", header(), self.server.dialect().literal(load));
        let insert = format!("INSERT INTO {table} (load_key, unit_key, chunk, attempt, note) VALUES {values}");
        match connection.execute(&insert).await {
            Ok(_) => return Ok(true),
            // The entry exists.
            Err(Failure::Rows(_)) => {}
            Err(other) => return Err(other),
        }
        let Some(former) = self.owner_now(connection, "").await? else { return Ok(false) };
        self.fence(connection, &former, take_over).await?;
        let is_still = format!("{} AND attempt = {}", self.is_it(), self.server.dialect().literal(&former));
        let taken = connection.execute(&format!("UPDATE {table} SET attempt = '{owner}' WHERE {is_still}")).await?;
        Ok(taken == 1)
    }

    /// The tag of connections of the worker `worker`; of the run's own without one.
    pub(crate) fn tag(&self, worker: Option<u64>) -> String {
        match worker {
            None => self.owner.clone(),
            Some(worker) => format!("{}{WORKER}{worker}", self.owner),
        }
    }

    /// Joins the load that this run has begun, in another process.
    pub(crate) async fn join(&self, connection: &mut dyn Connection) -> Result<()> {
        self.check_locked(connection, "").await.map_err(Failure::into_error)
    }

    /// Ends the connections of a worker that has joined.
    pub(crate) async fn end_worker(&self, connection: &mut dyn Connection, worker: u64) -> Result<()> {
        self.fence(connection, &self.tag(Some(worker)), true).await.map_err(Failure::into_error)
    }

    /// Whether no other run owns the load.
    pub(crate) async fn is_own(&self, connection: &mut dyn Connection) -> Result<bool, Failure> {
        Ok(self.owner_now(connection, "").await?.is_none_or(|owner| owner == self.owner))
    }

    /// The current owner; `None` if the load is not in the ledger.
    async fn owner_now(&self, connection: &mut dyn Connection, lock: &str) -> Result<Option<String>, Failure> {
        let query = format!("SELECT attempt FROM {} WHERE {} {lock}", self.table, self.is_it());
        Ok(connection.query(&query).await?.into_iter().flatten().next().flatten())
    }

    /// Ensures that `former` has no connections any more.
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

    /// The error if another run keeps the load.
    fn kept_by(&self, by: &[SeenSession], take_over: bool, refused: Option<Failure>) -> Error {
        let by = list(by);
        if !take_over {
            return Error::refused(format!("another run is loading into {}", self.target)).cause(by).hint(
                "wait until it has ended; if it never ends, `--resume` ends its connections and resumes the load",
            );
        }
        let why = refused.map(|failure| failure.into_error().cause_text().unwrap_or_default().to_owned());
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        Error::refused(format!("the run that has been loading into {} cannot be ended", self.target))
            .cause(format!("{by}{why}"))
            .hint("end it, or its connections on the server, and run again with `--resume`")
    }

    /// Locks the entry until the transaction ends, and fails if this run is not the owner any more: another run may
    /// then write the rows again.
    pub(crate) async fn check(&self, connection: &mut dyn Connection) -> Result<(), Failure> {
        self.check_locked(connection, self.server.dialect().share_lock()).await
    }

    /// The same with another lock.
    pub(crate) async fn check_locked(&self, connection: &mut dyn Connection, lock: &str) -> Result<(), Failure> {
        let owner = match self.owner_now(connection, lock).await {
            Err(Failure::Other(error)) => {
                // The ledger is dropped with the last load in it. A failed transaction must be rolled back before the
                // next query.
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
            Some(_) => format!("another run has taken over this load into {}", self.target),
            None => format!("another run has completed this load into {}, or has abandoned it", self.target),
        };
        Err(Failure::Other(Error::refused(what).hint("see `millstream runs`; nothing was written twice")))
    }

    /// Forgets the load, once no run is writing to it. Returns whether it did. The ledger is dropped with the last
    /// load.
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
            // The run that has taken it over will forget it.
            (Forget::Own, Some(_)) => return Ok(false),
            (Forget::Unwritten, Some(other)) if connection.sessions_of(other).await?.is_empty() => {}
            (Forget::Unwritten, Some(_)) => return Ok(false),
            (Forget::Anyway, Some(other)) => self.fence(connection, other, true).await?,
        }
        connection.execute("BEGIN").await?;
        // This waits for a run that is writing, since it locks the entry.
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

    /// Whether anything of the load is recorded.
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
            // An intention that was not carried out does not count as written.
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

    /// Drops the ledger if it has no loads any more.
    pub(crate) async fn tidy(&self, connection: &mut dyn Connection) -> Result<()> {
        if let Err(failure) = self.drop_empty(connection).await {
            let error = self.blamed(connection, failure).await;
            connection.execute("ROLLBACK").await.map_err(Failure::into_error)?;
            // MySQL keeps table locks after a rollback.
            let (_, unlock) = self.server.dialect().lock_table(&self.table);
            let _ = connection.execute(unlock).await;
            let cause = error.cause_text().unwrap_or_default();
            let is_another_users = cause.contains("denied") || cause.contains("must be owner");
            // An empty ledger does no harm, and its owner's next load drops it.
            if !is_another_users && self.has_ledger(connection).await.map_err(Failure::into_error)? {
                let what = format!("the empty table {TABLE} beside {} could not be dropped", self.target);
                let cause = error.cause_text().unwrap_or(error.what());
                return Err(Error::refused(what).cause(cause).hint("the next load tries again"));
            }
        }
        let waiting = self.server.dialect().wait_for_locks(self.spec.lock_timeout.0);
        connection.execute(&waiting).await.map(drop).map_err(Failure::into_error)
    }

    /// Whether the ledger's table exists. Fails for one of a newer version.
    pub(crate) async fn has_ledger(&self, connection: &mut dyn Connection) -> Result<bool, Failure> {
        let Some(comment) = connection.comment(&self.spec.table, &self.name).await? else { return Ok(false) };
        LEDGER.check(&comment, &self.target).map_err(Failure::Other)?;
        Ok(true)
    }

    /// Whether there is a table of this name beside the target.
    pub(crate) async fn has_table(&self, connection: &mut dyn Connection, name: &str) -> Result<bool, Failure> {
        Ok(connection.tables(&self.spec.table, name).await?.iter().any(|known| known == name))
    }

    /// Creates the ledger's table if it is missing; `false` if the user may not.
    pub(crate) async fn make_ledger(&self, connection: &mut dyn Connection) -> Result<bool> {
        if self.has_ledger(connection).await.map_err(Failure::into_error)? {
            return Ok(true);
        }
        let (dialect, label) = (self.server.dialect(), LEDGER.comment());
        let create = match self.name == TABLE {
            true => dialect.create_ledger(&self.table, &label),
            false => dialect.create_notes(&self.table, &label),
        };
        match connection.execute(&create).await {
            Ok(_) | Err(Failure::Rows(_)) => Ok(true),
            // Another load may have just created it.
            Err(Failure::Other(_)) => self.has_ledger(connection).await.map_err(Failure::into_error),
            Err(other) => Err(self.blamed(connection, other).await),
        }
    }

    async fn blamed(&self, connection: &mut dyn Connection, failure: Failure) -> Error {
        of_another_user(blamed(connection, &[&self.table], failure).await)
    }

    async fn drop_empty(&self, connection: &mut dyn Connection) -> Result<(), Failure> {
        let any = format!("SELECT 1 FROM {} LIMIT 1", self.table);
        // Other loads must not be blocked.
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

/// Adds the hint that the ledger belongs to the user who loaded first.
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

/// `failure` as an error. For a lock timeout it names possible holders, and rolls the transaction back to query them.
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
