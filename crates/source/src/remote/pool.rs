//! Makes, keeps and reuses connections, and runs single operations over them.
//!
//! A connection is returned only if nothing is in flight; one that is dropped in the middle is closed. The server may
//! have closed a kept connection meanwhile: what fails over one is retried at once over a new one, and does not count
//! as an attempt.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use millstream_core::Result;
use tokio::net::TcpStream;

use super::{Address, Entry, Facts, Failure, Protocol, Settings};
use crate::retry::{Fault, Tries};

/// Servers close what is idle, often after a minute or a few.
const KEPT: Duration = Duration::from_secs(50);

/// A server, or several, and the connections to them.
pub(crate) struct Server<P: Protocol> {
    pub(crate) protocol: P,
    pub(crate) settings: Settings,
    idle: Idle<P::Connection>,
}

/// Idle connections, with their address and since when they are idle.
type Idle<C> = Mutex<Vec<(Address, Instant, C)>>;

impl<P: Protocol> std::fmt::Debug for Server<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("protocol", &self.protocol).finish_non_exhaustive()
    }
}

/// A connection in use.
pub(crate) struct Lease<C> {
    pub(crate) connection: C,
    /// Whether it was used before.
    pub(crate) kept: bool,
}

impl<P: Protocol> Server<P> {
    pub(crate) fn new(protocol: P, settings: Settings) -> Self {
        Server { protocol, settings, idle: Mutex::new(Vec::new()) }
    }

    /// An idle connection, or a new one.
    pub(crate) async fn lease(&self, address: &Address) -> Result<Lease<P::Connection>, Failure> {
        if let Some(connection) = self.kept(address) {
            return Ok(Lease { connection, kept: true });
        }
        let connection = self.protocol.connect(address).await?;
        Ok(Lease { connection, kept: false })
    }

    fn kept(&self, address: &Address) -> Option<P::Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(_, since, _)| since.elapsed() < KEPT);
        let at = idle.iter().rposition(|(known, ..)| known == address)?;
        Some(idle.swap_remove(at).2)
    }

    /// Keeps a connection with nothing in flight.
    pub(crate) fn give_back(&self, address: &Address, lease: Lease<P::Connection>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(_, since, _)| since.elapsed() < KEPT);
        if idle.len() < self.settings.connections {
            idle.push((address.clone(), Instant::now(), lease.connection));
        }
    }

    /// Returns the connection to the pool, or closes it. `None` if a kept connection was dead: retry at once.
    pub(crate) fn settle<T>(
        &self,
        address: &Address,
        lease: Lease<P::Connection>,
        result: Result<T, Failure>,
    ) -> Option<Result<T, Failure>> {
        match result {
            Err(failure) if !failure.intact && lease.kept && failure.fault.transient => {
                // The others were idle as long.
                self.idle.lock().unwrap_or_else(PoisonError::into_inner).retain(|(known, ..)| known != address);
                None
            }
            Err(failure) if !failure.intact => Some(Err(failure)),
            result => {
                self.give_back(address, lease);
                Some(result)
            }
        }
    }

    /// The entries of a folder, or the failure of one that does not exist.
    pub(crate) async fn list(
        &self,
        address: &Address,
        uri: &str,
        folder: &[u8],
    ) -> Result<Result<Vec<Entry>, Failure>> {
        let mut tries = Tries::new(self.settings.policy);
        loop {
            tries.begin();
            let result = match self.lease(address).await {
                Ok(mut lease) => {
                    let result = self.protocol.list(&mut lease.connection, folder).await;
                    self.settle(address, lease, result)
                }
                Err(failure) => Some(Err(failure)),
            };
            match self.verdict(result, &mut tries, uri).await? {
                Some(answer) => return Ok(answer),
                None => continue,
            }
        }
    }

    /// The facts of `path`, or the failure of one that does not exist.
    pub(crate) async fn look_up(&self, address: &Address, uri: &str, path: &[u8]) -> Result<Result<Facts, Failure>> {
        let mut tries = Tries::new(self.settings.policy);
        loop {
            tries.begin();
            let result = match self.lease(address).await {
                Ok(mut lease) => {
                    let result = self.protocol.stat(&mut lease.connection, path).await;
                    self.settle(address, lease, result)
                }
                Err(failure) => Some(Err(failure)),
            };
            match self.verdict(result, &mut tries, uri).await? {
                Some(answer) => return Ok(answer),
                None => continue,
            }
        }
    }

    /// The facts of `path`.
    pub(crate) async fn stat(&self, address: &Address, uri: &str, path: &[u8]) -> Result<Facts> {
        let mut tries = Tries::new(self.settings.policy);
        tries.begin();
        // A failure that may pass is no answer.
        self.look_up(address, uri, path)
            .await?
            .map_err(|failure| tries.final_error(failure.fault).in_unit(uri, None).absent())
    }

    /// Waits before the next attempt (`None`), or returns the result.
    async fn verdict<T>(
        &self,
        result: Option<Result<T, Failure>>,
        tries: &mut Tries,
        uri: &str,
    ) -> Result<Option<Result<T, Failure>>> {
        match result {
            None => tries.uncount(),
            Some(Err(failure)) if failure.absent == super::Absence::No => {
                let pause = tries.failed(failure.fault).map_err(|error| error.in_unit(uri, None))?;
                tokio::time::sleep(pause).await;
            }
            Some(answer) => return Ok(Some(answer)),
        }
        Ok(None)
    }
}

/// A TCP connection to a host.
pub(crate) async fn reach(host: &str, port: u16, timeout: Duration) -> Result<TcpStream, Fault> {
    let connecting = async {
        let addresses = tokio::net::lookup_host((host, port)).await.map_err(|cause| {
            let cause = system_text(&cause);
            let unknown = cause.contains("not known") || cause.contains("no address");
            let fault = Fault { transient: !unknown, ..Fault::transient("the host's address cannot be found") };
            fault.cause(cause).hint("check the host's name, and the network")
        })?;
        let mut failed = Fault::permanent("the host has no address");
        for address in addresses {
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(cause) => failed = Fault::transient("the server cannot be reached").cause(system_text(&cause)),
            }
        }
        Err(failed)
    };
    let stream = tokio::time::timeout(timeout, connecting).await.map_err(|_| {
        Fault::transient("the connection was not established in time")
            .hint("if it needs longer, raise `connect_timeout`")
    })??;
    // Otherwise small requests could be delayed.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// The system's text, without its number.
pub(crate) fn system_text(cause: &std::io::Error) -> String {
    let text = cause.to_string();
    let text = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
    text.split(" (os error ").next().unwrap_or(text).to_lowercase()
}
