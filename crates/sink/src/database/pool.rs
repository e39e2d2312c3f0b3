//! The connection pool of a load. A faulty connection is not reused.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream_core::{Error, ErrorKind, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::server::{Connection, Failure, Server};
use super::spec::DatabaseSpec;

/// The first pause before a retry.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause before a retry.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The connections that rows are sent over.
pub(crate) struct Pool {
    server: Arc<dyn Server>,
    spec: DatabaseSpec,
    idle: Mutex<Vec<Box<dyn Connection>>>,
    permits: Arc<Semaphore>,
    /// Whether only one connection is possible, since it has the load's transaction.
    only: bool,
    /// The owner with which connections are tagged.
    owner: Option<String>,
    /// A statement with which each connection begins.
    opening: Option<String>,
    /// What is made in each connection for rows.
    making: Option<Making>,
}

/// A temporary table of a connection.
pub(crate) struct Making {
    /// The statements that create it.
    pub(crate) create: Vec<String>,
    /// Statements that add checks, as far as that is possible.
    pub(crate) checks: Vec<String>,
    /// Adds a hint to the error of a user who may not create it.
    pub(crate) refused: fn(Error) -> Error,
}

impl Making {
    async fn make(&self, connection: &mut dyn Connection) -> Result<()> {
        for statement in &self.create {
            connection.execute(statement).await.map_err(|failure| (self.refused)(failure.into_error()))?;
        }
        for statement in &self.checks {
            match connection.execute(statement).await {
                Ok(_) | Err(Failure::Other(_)) => {}
                Err(other) => return Err(other.into_error()),
            }
        }
        Ok(())
    }
}

impl Pool {
    /// A pool of at most `count` connections, made when they are needed.
    pub(crate) fn new(server: &Arc<dyn Server>, spec: &DatabaseSpec, count: usize) -> Self {
        Pool {
            server: Arc::clone(server),
            spec: spec.clone(),
            idle: Mutex::default(),
            permits: Arc::new(Semaphore::new(count)),
            only: false,
            owner: None,
            opening: None,
            making: None,
        }
    }

    /// Tags the connections with `owner`.
    pub(crate) fn tagged(mut self, owner: Option<&str>) -> Self {
        self.owner = owner.map(str::to_owned);
        self
    }

    /// Begins each connection with a statement.
    pub(crate) fn opening(self, opening: Option<String>) -> Self {
        Pool { opening, ..self }
    }

    /// Makes something in each connection for rows.
    pub(crate) fn making(self, making: Option<Making>) -> Self {
        Pool { making, ..self }
    }

    /// A pool of the one connection with the transaction of the whole load. If it is lost, the load fails: on another
    /// connection, each statement would commit its rows.
    pub(crate) fn only(server: &Arc<dyn Server>, spec: &DatabaseSpec, connection: Box<dyn Connection>) -> Self {
        let mut pool = Pool::new(server, spec, 1);
        pool.idle = Mutex::new(vec![connection]);
        pool.only = true;
        pool
    }

    /// Waits until a connection may be used.
    pub(crate) async fn permit(&self) -> Result<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        permit.map_err(|_| Error::refused("the load was aborted"))
    }

    /// A connection; to be called with a permit.
    pub(crate) async fn take(&self) -> Result<Box<dyn Connection>> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match idle {
            Some(connection) => Ok(connection),
            None if self.only => Err(Error::transient("the connection that had the load's transaction was lost")
                .hint("nothing was loaded; check the server's log, and start the load again")),
            None => self.connect_for_rows().await,
        }
    }

    /// A new connection that is ready for rows.
    pub(crate) async fn connect_for_rows(&self) -> Result<Box<dyn Connection>> {
        let mut connection = self.connect().await?;
        if let Some(making) = &self.making {
            making.make(connection.as_mut()).await?;
        }
        Ok(connection)
    }

    /// A new connection.
    pub(crate) async fn connect(&self) -> Result<Box<dyn Connection>> {
        let mut connection = match &self.owner {
            Some(owner) => connect_as(self.server.as_ref(), &self.spec, owner).await?,
            None => connect(self.server.as_ref(), &self.spec).await?,
        };
        if let Some(opening) = &self.opening {
            connection.execute(opening).await.map_err(Failure::into_error)?;
        }
        Ok(connection)
    }

    /// Returns a working connection to the pool.
    pub(crate) fn give(&self, connection: Box<dyn Connection>) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }

    /// Closes all idle connections.
    pub(crate) fn close(&self) -> Vec<Box<dyn Connection>> {
        std::mem::take(&mut *self.idle.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Connects, and retries if the server may just be busy.
pub(crate) async fn connect(server: &dyn Server, spec: &DatabaseSpec) -> Result<Box<dyn Connection>> {
    let mut tries = 0;
    loop {
        match server.connect(spec).await {
            Err(error) if error.kind() == ErrorKind::Transient && tries < spec.retries => {
                pause(tries).await;
                tries += 1;
            }
            other => return other,
        }
    }
}

/// Connects, and tags the connection with `owner`.
pub(crate) async fn connect_as(server: &dyn Server, spec: &DatabaseSpec, owner: &str) -> Result<Box<dyn Connection>> {
    let mut connection = connect(server, spec).await?;
    match connection.as_mut().tag(owner).await {
        // A connection without a tag cannot be ended by others: they wait for its locks, and an error names it.
        Ok(()) | Err(Failure::Other(_)) => Ok(connection),
        Err(other) => Err(other.into_error()),
    }
}

/// Waits before the next attempt, longer each time, with jitter.
pub(crate) async fn pause(tries: u32) {
    let longest = FIRST_PAUSE.saturating_mul(1 << tries.min(16)).min(LONGEST_PAUSE);
    tokio::time::sleep(longest.mul_f64(0.5 + random() / 2.0)).await;
}

/// From 0 to 1.
fn random() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(()) as f64 / u64::MAX as f64
}
