//! What coordinator and workers say to each other: messages in JSON, each behind its length in four bytes.

use std::io;

use millstream_core::{Error, ErrorKind};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::leases::{Bundle, Worker};
use crate::pool::ListedUnit;

/// The version of what is said here.
pub const PROTOCOL: u32 = 4;

/// The longest message in bytes. A bundle has at most 100,000 units.
const LONGEST: u32 = 256 << 20;

/// What a worker says of itself when it joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The version of what is said.
    pub protocol: u32,
    /// The version of the program.
    pub version: String,
    /// The name of the machine.
    pub host: String,
    /// The number of its process there.
    pub process: u32,
    /// How many bundles it reads at once.
    pub slots: u64,
    /// Its cores.
    pub cores: u64,
    /// The memory that it may use, in bytes.
    pub memory: u64,
    /// The time by its clock, in milliseconds since 1970.
    pub now: i64,
}

impl Hello {
    /// How messages name it: the machine and the process.
    pub fn name(&self) -> String {
        format!("{}:{}", self.host, self.process)
    }
}

/// What a worker says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromWorker {
    /// It wants to join.
    Hello(Hello),
    /// It has its task, and can work; or cannot.
    Ready(Option<SentError>),
    /// A slot is free.
    Ask,
    /// It is reading these units of a bundle, by their positions.
    Reading(Bundle, Vec<usize>),
    /// It wants this to be kept before it commits something of the bundle; an answer has the same number.
    Keep(Bundle, u64, Value),
    /// A bundle is done, with this outcome.
    Done(Bundle, Value),
    /// A bundle cannot be done.
    Failed(Bundle, Vec<SentError>),
    /// It tells something.
    Tells(Value),
    /// It wants nothing more.
    Leaving,
    /// It is there.
    Beat,
}

/// What a coordinator says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromCoordinator {
    /// It may not join.
    Refused(SentError),
    /// It joins.
    Welcome(Welcome),
    /// It is to read a bundle.
    Read(Bundle, ToRead),
    /// It is kept, or may not be committed.
    Kept(u64, Option<SentError>),
    /// Another worker was faster: the bundle does not count any more.
    Stop(Bundle),
    /// There is nothing more to do.
    Finished,
    /// The run has failed, and why.
    Failed(String),
    /// It is there.
    Beat,
}

/// The units of a bundle.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ToRead {
    /// The number of this attempt to read a bundle among all of the run, from 1.
    pub attempt: u64,
    /// The units.
    pub units: Vec<ListedUnit>,
    /// Whether the target may have some of them.
    pub is_again: bool,
    /// How many bundles all workers read at once.
    pub at_once: u64,
}

/// What a worker gets that joins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// Its number.
    pub(crate) worker: Worker,
    /// What is to be done.
    pub(crate) task: Value,
    /// How often each side says that it is there, in milliseconds.
    pub(crate) beat: u64,
    /// How long each side believes that the other is there without a word, in milliseconds.
    pub(crate) patience: u64,
}

/// An error on its way to another machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentError {
    kind: String,
    what: String,
    step: Option<String>,
    text: Option<String>,
    cause: Option<String>,
    hint: Option<String>,
    uri: Option<String>,
    member: Option<String>,
    line: Option<u64>,
    last_line: Option<u64>,
    byte: Option<u64>,
    column: Option<String>,
    lasting: bool,
}

/// The kinds of errors by their names.
const KINDS: [(&str, ErrorKind); 10] = [
    ("job", ErrorKind::Job),
    ("data", ErrorKind::Data),
    ("refused", ErrorKind::Refused),
    ("transient", ErrorKind::Transient),
    ("memory", ErrorKind::Memory),
    ("rejects", ErrorKind::Rejects),
    ("requirement", ErrorKind::Requirement),
    ("interrupted", ErrorKind::Interrupted),
    ("output_closed", ErrorKind::OutputClosed),
    ("internal", ErrorKind::Internal),
];

impl From<&Error> for SentError {
    fn from(error: &Error) -> Self {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let kind = KINDS.iter().find(|(_, kind)| *kind == error.kind()).map_or("internal", |(name, _)| name);
        let place = error.location().clone();
        SentError {
            kind: kind.to_owned(),
            what: error.what().to_owned(),
            step: owned(error.step_name()),
            text: owned(error.offending_text()),
            cause: owned(error.cause_text()),
            hint: owned(error.hint_text()),
            uri: place.uri,
            member: place.member,
            line: place.line,
            last_line: place.last_line,
            byte: place.byte,
            column: place.column,
            lasting: Error::new(error.kind(), "").may_pass() && !error.may_pass(),
        }
    }
}

impl From<SentError> for Error {
    fn from(sent: SentError) -> Self {
        let kind = KINDS.iter().find(|(name, _)| *name == sent.kind).map_or(ErrorKind::Internal, |(_, kind)| *kind);
        let error = Error::new(kind, sent.what);
        let error = sent.uri.iter().fold(error, |error, uri| error.in_unit(uri, sent.member.as_deref()));
        let error = sent.line.into_iter().fold(error, Error::line);
        let error = sent.last_line.into_iter().fold(error, Error::last_line);
        let error = sent.byte.into_iter().fold(error, Error::byte);
        let error = sent.column.into_iter().fold(error, Error::column);
        let error = sent.step.iter().fold(error, |error, step| error.in_step(step));
        let error = sent.text.iter().fold(error, Error::text);
        let error = sent.cause.iter().fold(error, Error::cause);
        let error = sent.hint.into_iter().fold(error, Error::hint);
        if sent.lasting { error.lasting() } else { error }
    }
}

/// Writes a message.
///
/// # Errors
/// If the connection is lost, or the message is too long.
pub(crate) async fn send(stream: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= LONGEST);
    let length = length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a message is too long"))?;
    stream.write_all(&length.to_be_bytes()).await?;
    stream.write_all(&bytes).await?;
    stream.flush().await
}

/// Reads a message; `None` if the other side has closed the connection.
///
/// # Errors
/// If the connection is lost, or what comes is no message.
pub(crate) async fn receive<M: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<M>> {
    let length = match stream.read_u32().await {
        Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        length => length?,
    };
    if length > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes).await?;
    Ok(Some(serde_json::from_slice(&bytes)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_comes_back_as_it_was() {
        let error = Error::data("a number is expected")
            .in_unit("data/a.csv", Some("b.csv"))
            .line(3)
            .last_line(5)
            .byte(17)
            .column("n")
            .in_step("read")
            .text("x")
            .cause("because")
            .hint("mend it");
        let back = Error::from(SentError::from(&error));
        assert_eq!(format!("{error:?}"), format!("{back:?}"));
        let lasting = Error::from(SentError::from(&Error::transient("it was refused").lasting()));
        assert_eq!((lasting.kind(), lasting.may_pass()), (ErrorKind::Transient, false));
    }

    #[tokio::test]
    async fn messages_come_whole_and_one_that_is_too_long_is_refused() {
        let (mut one, mut other) = tokio::io::duplex(64);
        let sending = tokio::spawn(async move {
            send(&mut one, &FromWorker::Tells(Value::String("x".repeat(1_000)))).await.expect("sent");
            send(&mut one, &FromWorker::Beat).await.expect("sent");
            one.write_all(&u32::MAX.to_be_bytes()).await.expect("sent");
        });
        let long = receive::<FromWorker>(&mut other).await.expect("received");
        assert!(matches!(long, Some(FromWorker::Tells(Value::String(text))) if text.len() == 1_000));
        assert!(matches!(receive::<FromWorker>(&mut other).await, Ok(Some(FromWorker::Beat))));
        assert!(receive::<FromWorker>(&mut other).await.is_err());
        sending.await.expect("it has ended");
        assert!(matches!(receive::<FromWorker>(&mut other).await, Ok(None)));
    }
}
