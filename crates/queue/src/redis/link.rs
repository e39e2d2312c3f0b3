//! A connection that is made again when it was lost, and what a user hears of that: once that a server is waited for,
//! and once that it is back, however many connections notice it, and whenever they do.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millstream_core::{Error, ErrorKind, Result};

use super::connection::Connection;
use super::fault::{Fault, Reaction};
use super::place::Place;

/// The first pause before a server is asked again.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Pauses that grow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pauses(Duration);

impl Default for Pauses {
    fn default() -> Self {
        Pauses(FIRST_PAUSE)
    }
}

impl Pauses {
    /// The next pause: twice as long as the one before.
    pub(super) fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LONGEST_PAUSE);
        pause
    }

    /// Waits, if the error may pass.
    ///
    /// # Errors
    /// If it may not.
    pub(super) async fn pause(&mut self, error: Error) -> Result<()> {
        match error.kind() {
            ErrorKind::Transient => {
                tokio::time::sleep(self.next()).await;
                Ok(())
            }
            _ => Err(error),
        }
    }
}

/// What happened to a server.
#[derive(Debug)]
pub(super) enum Change {
    Waiting(Error),
    Back(Duration),
}

/// Whether a server is waited for, and by how many.
#[derive(Debug, Default)]
pub(super) struct Outage {
    state: Mutex<(usize, Option<Instant>)>,
}

impl Outage {
    /// One more waits; whether it is the first.
    fn begins(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 += 1;
        let is_first = state.1.is_none();
        state.1.get_or_insert_with(Instant::now);
        is_first
    }

    /// The server has answered one that has waited for it, or has not. The length of the outage, if nobody waits any
    /// more.
    fn ends(&self, has_waited: bool) -> Option<Duration> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 -= usize::from(has_waited);
        if state.0 > 0 {
            return None;
        }
        state.1.take().map(|since| since.elapsed())
    }

    /// One fewer waits: whether the server is back is for others to say.
    fn gives_up(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0 -= 1;
    }
}

/// Takes what happens to a server.
pub(super) type Changes = Box<dyn Fn(Change) + Send + Sync>;

/// A connection to a server that is waited for.
pub(super) struct Link {
    place: Arc<Place>,
    /// What the server calls the connection.
    name: String,
    connection: Option<Connection>,
    outage: Arc<Outage>,
    changes: Changes,
    pauses: Pauses,
    is_waiting: bool,
    /// Whether nothing was answered since the connection was lost.
    is_lost: bool,
}

impl Link {
    /// A connection that is made when it is needed.
    pub(super) fn new(place: Arc<Place>, name: &str, outage: Arc<Outage>, changes: Changes) -> Self {
        let pauses = Pauses::default();
        let (connection, name) = (None, name.to_owned());
        Link { place, name, connection, outage, changes, pauses, is_waiting: false, is_lost: false }
    }

    /// The connection; waits until the server is there.
    ///
    /// # Errors
    /// If it refuses the login, or waiting does not help.
    pub(super) async fn ready(&mut self) -> Result<&mut Connection> {
        while self.connection.is_none() {
            match Connection::open(&self.place, &self.name).await {
                Ok(connection) => self.connection = Some(connection),
                Err(error) if error.kind() == ErrorKind::Transient => self.wait(error).await,
                Err(error) => return Err(error),
            }
        }
        self.connection.as_mut().ok_or_else(|| Error::internal("there is no connection"))
    }

    /// The server has answered as it should.
    pub(super) fn works(&mut self) {
        self.pauses = Pauses::default();
        self.is_lost = false;
        let has_waited = std::mem::take(&mut self.is_waiting);
        self.outage.ends(has_waited).into_iter().for_each(|time| (self.changes)(Change::Back(time)));
    }

    /// What was asked has failed, while `doing` something: waits, so that it can be asked again.
    ///
    /// # Errors
    /// If asking again does not help.
    pub(super) async fn failed(&mut self, fault: Fault, doing: &str) -> Result<()> {
        let reaction = fault.reaction();
        if matches!(reaction, Reaction::Reconnect | Reaction::End) {
            self.connection = None;
        }
        let error = fault.into_error(&self.place, doing);
        match reaction {
            // The server may have been away for long, and be back long since.
            Reaction::Reconnect if !std::mem::replace(&mut self.is_lost, true) => {
                tokio::time::sleep(self.pauses.next()).await;
                Ok(())
            }
            Reaction::Wait | Reaction::Reconnect => {
                self.wait(error).await;
                Ok(())
            }
            Reaction::NoGroup | Reaction::End => Err(error),
        }
    }

    async fn wait(&mut self, error: Error) {
        if !std::mem::replace(&mut self.is_waiting, true) && self.outage.begins() {
            (self.changes)(Change::Waiting(error));
        }
        tokio::time::sleep(self.pauses.next()).await;
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.is_waiting {
            self.outage.gives_up();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_that_several_notice_is_reported_once() {
        let outage = Outage::default();
        assert_eq!([outage.begins(), outage.begins()], [true, false]);
        assert_eq!(outage.ends(true), None);
        assert_eq!(outage.ends(false), None, "one still waits");
        // One that ends while the server is away leaves the report to others, whether they have noticed it or not.
        outage.gives_up();
        assert!(!outage.begins());
        assert!(outage.ends(true).is_some());
        assert!(outage.begins());
        outage.gives_up();
        assert!(outage.ends(false).is_some());
        assert_eq!(outage.ends(false), None);
    }

    #[test]
    fn pauses_grow_up_to_a_limit() {
        let mut pauses = Pauses::default();
        let all: Vec<Duration> = (0..9).map(|_| pauses.next()).collect();
        assert_eq!((all[0], all[1], all[8]), (FIRST_PAUSE, FIRST_PAUSE * 2, LONGEST_PAUSE));
    }
}
