//! What an error of a Redis server, or of a connection to it, means: whether waiting helps.
//!
//! The codes are those of Redis 7 (`src/server.c`, `createSharedObjects`, and the documentation of the commands).

use std::io;

use millstream_core::Error;

use super::place::Place;
use super::reply::Malformed;

/// What went wrong.
#[derive(Debug)]
pub enum Fault {
    /// No connection could be made.
    Connect(io::Error),
    /// The encrypted connection could not be made.
    Tls(String),
    /// The connection broke, or gave no answer in time.
    Lost(io::Error),
    /// The server answered with an error: its first word is a code.
    Answer(String),
    /// The answer is not one of the protocol.
    Malformed(String),
    /// The server does not know what is asked of it: what is missing.
    Old(String),
}

impl From<Malformed> for Fault {
    fn from(Malformed(what): Malformed) -> Self {
        Fault::Malformed(what)
    }
}

/// What is to be done about a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    /// Wait and try again, over the same connection.
    Wait,
    /// Wait and try again, over another connection: this one is of no use, or leads to the wrong server.
    Reconnect,
    /// The stream or the consumer group is not there.
    NoGroup,
    /// End: waiting does not help.
    End,
}

impl Fault {
    /// What is to be done about it.
    pub fn reaction(&self) -> Reaction {
        match self {
            Fault::Connect(_) | Fault::Lost(_) => Reaction::Reconnect,
            Fault::Tls(_) | Fault::Malformed(_) | Fault::Old(_) => Reaction::End,
            Fault::Answer(answer) => match code(answer) {
                "LOADING" | "MASTERDOWN" | "OOM" | "MISCONF" | "BUSY" | "TRYAGAIN" | "NOREPLICAS" | "CLUSTERDOWN"
                | "UNBLOCKED" => Reaction::Wait,
                // A primary that was demoted: the name may lead to its successor.
                "READONLY" => Reaction::Reconnect,
                "NOGROUP" => Reaction::NoGroup,
                _ => Reaction::End,
            },
        }
    }

    /// The error for the user; `doing` is what was asked for: `reading stream s`.
    pub fn into_error(self, place: &Place, doing: &str) -> Error {
        let server = &place.server;
        match self {
            Fault::Connect(cause) => server.unreachable(io_words(&cause)),
            Fault::Lost(cause) => server.lost(io_words(&cause)),
            Fault::Tls(cause) => Error::refused(format!("the encrypted connection to {} cannot be made", server.shown))
                .cause(server.without_secrets(cause))
                .hint("name the authority of the server in `ca`, or write `tls: off` if the network is trusted"),
            Fault::Malformed(cause) => Error::refused(format!("{} does not answer like Redis", server.shown))
                .cause(cause)
                .hint("check host and port, and whether the server wants an encrypted connection (`rediss://`)"),
            Fault::Old(cause) => Error::refused(format!("{} is older than Redis 7.0", server.shown))
                .cause(cause)
                .hint("use Redis from 7.0 on, or Valkey"),
            Fault::Answer(answer) => refused(place, doing, server.without_secrets(answer)),
        }
    }
}

/// The system's words, without its number.
fn io_words(cause: &io::Error) -> String {
    let text = cause.to_string();
    text.split(" (os error ").next().unwrap_or(&text).to_owned()
}

/// The first word of an error.
pub fn code(answer: &str) -> &str {
    answer.split([' ', '\n']).next().unwrap_or_default()
}

/// The error if the server refuses what is asked for.
fn refused(place: &Place, doing: &str, answer: String) -> Error {
    let hint = match code(&answer) {
        "WRONGPASS" | "NOAUTH" => Some("check user and password"),
        "NOPERM" => Some("grant the user this command, and the keys it works on (`ACL SETUSER`)"),
        "WRONGTYPE" => Some("the key holds something that is not a stream: check its name and the database's number"),
        "NOGROUP" => Some("the stream or its consumer group was deleted"),
        "OOM" => Some("the server has no memory left (`maxmemory`): let consumers catch up, or give it more"),
        "MISCONF" => Some("the server cannot write to its disk: see its log"),
        "MOVED" | "ASK" | "CROSSSLOT" => {
            Some("Redis Cluster is not supported: name a server that is none of a cluster")
        }
        _ => None,
    };
    let error = match Fault::Answer(answer.clone()).reaction() {
        Reaction::Wait | Reaction::Reconnect => Error::transient(format!("{doing}: {} refuses", place.server.shown)),
        _ => Error::refused(format!("{doing}: {} refuses", place.server.shown)),
    };
    let error = error.cause(answer);
    hint.into_iter().fold(error, Error::hint)
}
