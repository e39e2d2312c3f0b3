//! Sends requests over one connection, and interprets the answers.
//!
//! ```text
//!  file      STAT ┐          READ k      ┐
//!            OPEN ┴▶ handle  READ k+32k  │▶ bytes, in order
//!                            READ …      │
//!                            FSTAT       │▶ the same size and time?
//!                            CLOSE       ┘
//! ```
//!
//! Requests are sent without waiting where possible, since each wait is a round trip: a small file takes two. A server
//! answers as if it had processed the requests in order (draft-ietf-secsh-filexfer-02, 6), so the final facts of a file
//! can be requested together with its last bytes. A piece is requested only if there is room for it, so answers are
//! always read from the socket at once.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use russh::client::{Handle, Msg};
use russh::{ChannelMsg, ChannelReadHalf, ChannelWriteHalf};

use super::login::{Host, Session};
use super::packet::{self, Answer, Attributes, Malformed, Named, Packets, Question};
use crate::remote::{Absence, Entry, Facts, Failure, Kind, Piece, Space};
use crate::retry::Fault;

/// The size of a read request. All servers should return that much; from those that return less, less is requested.
const STEP: u32 = 32 << 10;

/// The most bytes of one file in flight: a connection's throughput is this much per round trip.
pub(super) const AHEAD: usize = 2 << 20;

/// How many requests for names of a folder are in flight; each returns about a hundred.
const FOLDER_AHEAD: usize = 4;

/// The most entries of one folder.
const ENTRIES_LIMIT: usize = 5_000_000;

/// How many bytes of the server's standard error are kept for messages.
const NOISE_LIMIT: usize = 500;

/// A connection, logged in.
pub(crate) struct Connection {
    outgoing: ChannelWriteHalf<Msg>,
    incoming: ChannelReadHalf,
    packets: Packets,
    questions: BytesMut,
    next: u32,
    /// Requests without answers yet, and what to do with the answers.
    open: HashMap<u32, Purpose>,
    /// Answers that arrived before they are needed.
    early: HashMap<u32, Answer>,
    /// The server's standard error.
    noise: Vec<u8>,
    /// The exit code of the server's program.
    exit: Option<u32>,
    timeout: Duration,
    session: Session,
    /// The library's end of the connection.
    _handle: Handle<Host>,
}

/// What to do with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Awaited,
    Ignored,
}

/// A file that is open.
pub(crate) struct Opened {
    /// `None` if it is no file, whose opening is not awaited.
    handle: Option<Bytes>,
    facts: Facts,
}

/// A requested piece of a file.
struct Requested {
    id: u32,
    at: u64,
    length: u32,
    space: Option<Space>,
    parts: Vec<Bytes>,
    /// Bytes in `parts`.
    here: u32,
}

impl Connection {
    /// Agrees with the server on a version.
    pub(super) async fn new(
        session: Session,
        handle: Handle<Host>,
        (incoming, outgoing): (ChannelReadHalf, ChannelWriteHalf<Msg>),
        timeout: Duration,
    ) -> Result<Self, Failure> {
        let mut connection = Connection {
            outgoing,
            incoming,
            packets: Packets::default(),
            questions: BytesMut::new(),
            next: 0,
            open: HashMap::new(),
            early: HashMap::new(),
            noise: Vec::new(),
            exit: None,
            timeout,
            session,
            _handle: handle,
        };
        connection.questions.extend_from_slice(&packet::hello());
        // An error of sending shows when the answer is awaited.
        let _ = connection.send().await;
        let packet = connection.packet().await.map_err(|failure| connection.explained(failure))?;
        match packet::version(packet) {
            Ok(packet::VERSION..) => Ok(connection),
            Ok(older) => Err(Fault::permanent("the server's SFTP is too old")
                .cause(format!("it speaks version {older}, and {} is needed", packet::VERSION))
                .into()),
            Err(Malformed) => Err(connection.explained(malformed().into())),
        }
    }

    /// Explains a failure at the very beginning: often a shell prints something, or the server has no SFTP.
    fn explained(&self, failure: Failure) -> Failure {
        let noise = self.packets.beginning().map_or(self.noise.as_slice(), |bytes| bytes);
        if noise.is_empty() && self.exit.is_none() {
            return failure;
        }
        let text = String::from_utf8_lossy(&noise[..noise.len().min(NOISE_LIMIT)]).trim().to_owned();
        let fault = Fault::permanent("the server does not speak SFTP for this user")
            .hint("another program is started at login, or prints text then: check whether `sftp USER@HOST` works");
        let cause = self.exit.map(|status| format!("what it starts for it ends with status {status}"));
        Fault { text: Some(text).filter(|text| !text.is_empty()), cause, ..fault }.into()
    }

    /// Queues a request for the next [`Connection::send`].
    fn ask(&mut self, question: Question<'_>) -> u32 {
        self.put(question, Purpose::Awaited)
    }

    fn put(&mut self, question: Question<'_>, purpose: Purpose) -> u32 {
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        packet::ask(&mut self.questions, id, question);
        self.open.insert(id, purpose);
        id
    }

    /// Closes a file or a folder, and waits for nothing.
    fn close(&mut self, handle: &[u8]) {
        self.put(Question::Close { handle }, Purpose::Ignored);
    }

    /// Ignores the answer to a request.
    fn ignore(&mut self, id: u32) {
        self.early.remove(&id);
        if let Some(purpose) = self.open.get_mut(&id) {
            *purpose = Purpose::Ignored;
        }
    }

    async fn send(&mut self) -> Result<(), Failure> {
        if self.questions.is_empty() {
            return Ok(());
        }
        let sending = self.outgoing.data_bytes(self.questions.split().freeze());
        match tokio::time::timeout(self.timeout, sending).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.session.broken(&error).into()),
            Err(_) => Err(silence(self.timeout).into()),
        }
    }

    /// The next packet. Received packets are returned before a fault.
    async fn packet(&mut self) -> Result<Bytes, Failure> {
        loop {
            if let Some(packet) = self.packets.next().map_err(|Malformed| malformed())? {
                return Ok(packet);
            }
            let message = tokio::time::timeout(self.timeout, self.incoming.wait()).await;
            match message.map_err(|_| silence(self.timeout))? {
                Some(ChannelMsg::Data { data }) => self.packets.push(data),
                Some(ChannelMsg::ExitStatus { exit_status }) => self.exit = Some(exit_status),
                Some(ChannelMsg::ExtendedData { data, .. }) => {
                    let room = NOISE_LIMIT.saturating_sub(self.noise.len());
                    self.noise.extend_from_slice(&data[..data.len().min(room)]);
                }
                // The end of its answers may come before the end of its standard error.
                Some(ChannelMsg::Close) | None => {
                    return Err(self.session.broken(&russh::Error::Disconnect).into());
                }
                Some(_) => {}
            }
        }
    }

    /// The next answer that is not ignored.
    async fn receive(&mut self) -> Result<(u32, Answer), Failure> {
        loop {
            let packet = self.packet().await?;
            let (id, answer) = packet::answer(packet).map_err(|Malformed| malformed())?;
            match self.open.remove(&id) {
                Some(Purpose::Awaited) => return Ok((id, answer)),
                Some(Purpose::Ignored) => {}
                None => return Err(malformed().into()),
            }
        }
    }

    /// The answer to one request.
    async fn answer(&mut self, wanted: u32) -> Result<Answer, Failure> {
        if let Some(answer) = self.early.remove(&wanted) {
            return Ok(answer);
        }
        loop {
            let (id, answer) = self.receive().await?;
            if id == wanted {
                return Ok(answer);
            }
            self.early.insert(id, answer);
        }
    }

    async fn attributes(&mut self, id: u32) -> Result<Facts, Failure> {
        match self.answer(id).await? {
            Answer::Attributes(attributes) => Ok(facts(attributes, None, Kind::File)),
            Answer::Status { code, text } => Err(refusal(code, text)),
            _ => Err(malformed().into()),
        }
    }

    async fn handle(&mut self, id: u32) -> Result<Bytes, Failure> {
        match self.answer(id).await? {
            Answer::Handle(handle) => Ok(handle),
            Answer::Status { code, text } => Err(refusal(code, text)),
            _ => Err(malformed().into()),
        }
    }

    /// What is at `path`.
    pub(super) async fn stat(&mut self, path: &[u8]) -> Result<Facts, Failure> {
        let id = self.ask(Question::Stat { path });
        self.send().await?;
        self.attributes(id).await
    }

    /// All that is in a folder.
    pub(super) async fn list(&mut self, path: &[u8]) -> Result<Vec<Entry>, Failure> {
        let id = self.ask(Question::OpenFolder { path });
        self.send().await?;
        let handle = self.handle(id).await?;
        let listed = self.names(&handle).await;
        if listed.as_ref().err().is_none_or(|failure| failure.intact) {
            self.close(&handle);
            self.send().await?;
        }
        listed
    }

    async fn names(&mut self, handle: &[u8]) -> Result<Vec<Entry>, Failure> {
        let mut entries = Vec::new();
        let mut requested: VecDeque<u32> =
            (0..FOLDER_AHEAD).map(|_| self.ask(Question::ReadFolder { handle })).collect();
        let (mut rounds, mut ended) = (0, false);
        let mut failed = None;
        // After the end, all requests must be answered by the end, so that no name is lost.
        while let Some(id) = requested.pop_front() {
            self.send().await?;
            match self.answer(id).await? {
                Answer::Names(names) => {
                    for named in names {
                        entries.extend(entry(named)?);
                    }
                }
                Answer::Status { code: END, .. } => ended = true,
                Answer::Status { code, text } => {
                    ended = true;
                    failed.get_or_insert(refusal(code, text));
                }
                _ => return Err(malformed().into()),
            }
            rounds += 1;
            if entries.len() > ENTRIES_LIMIT || rounds > ENTRIES_LIMIT {
                return Err(Fault::permanent("the server's listing of the folder does not end").into());
            }
            if !ended {
                requested.push_back(self.ask(Question::ReadFolder { handle }));
            }
        }
        failed.map_or(Ok(entries), Err)
    }

    /// Opens a file, and returns its facts. If it is no file, opening is not awaited: opening a pipe may take forever.
    pub(super) async fn open(&mut self, path: &[u8]) -> Result<(Facts, Opened), Failure> {
        let stat = self.ask(Question::Stat { path });
        let open = self.ask(Question::Open { path });
        self.send().await?;
        let found = self.attributes(stat).await;
        match found {
            Err(failure) if !failure.intact => return Err(failure),
            Ok(facts) if facts.kind != Kind::File => return Ok((facts, Opened { handle: None, facts })),
            _ => {}
        }
        match (found, self.handle(open).await) {
            (Ok(facts), Ok(handle)) => Ok((facts, Opened { handle: Some(handle), facts })),
            (Err(failure), Ok(handle)) => {
                self.close(&handle);
                self.send().await?;
                Err(failure)
            }
            (_, Err(failure)) => Err(failure),
        }
    }

    /// Reads `piece`, checks that the file has not changed meanwhile, and closes it.
    pub(super) async fn read(&mut self, opened: Opened, piece: &mut Piece<'_>) -> Result<(), Failure> {
        let Some(handle) = opened.handle else { return Err(malformed().into()) };
        let mut reading =
            Reading { next: piece.at(), end: piece.end(), step: STEP, requested: VecDeque::new(), on_the_way: 0 };
        let mut after = None;
        loop {
            reading.ask(self, &handle, piece).await;
            if after.is_none() && reading.end.is_some_and(|end| reading.next >= end) {
                after = Some(self.ask(Question::Described { handle: &handle }));
            }
            self.send().await?;
            if reading.requested.is_empty() {
                break;
            }
            let (id, answer) = self.receive().await?;
            if after == Some(id) {
                self.early.insert(id, answer);
                continue;
            }
            if reading.take(self, &handle, id, answer)?
                && let Some(too_early) = after.take()
            {
                self.ignore(too_early);
            }
            reading.hand_over(piece).await;
        }
        self.close(&handle);
        self.send().await?;
        let Some(after) = after else { return Ok(()) };
        let after = self.attributes(after).await?;
        if (after.size, after.modified) != (opened.facts.size, opened.facts.modified) {
            return Err(Failure { intact: true, ..crate::remote::changed("while it was read").into() });
        }
        Ok(())
    }
}

/// A file that is being read.
struct Reading {
    /// The next byte to request.
    next: u64,
    /// Where it ends, once that is known.
    end: Option<u64>,
    /// The size of a read request.
    step: u32,
    /// In the file's order.
    requested: VecDeque<Requested>,
    on_the_way: usize,
}

impl Reading {
    /// Requests as much as there is room for. Waits for room only if nothing is in flight.
    async fn ask(&mut self, connection: &mut Connection, handle: &[u8], piece: &Piece<'_>) {
        while self.on_the_way < AHEAD {
            let left = self.end.map_or(u64::MAX, |end| end.saturating_sub(self.next));
            let length = u32::try_from(left).unwrap_or(u32::MAX).min(self.step);
            if length == 0 {
                return;
            }
            let space = if piece.is_small() {
                None
            } else if self.requested.is_empty() {
                Some(piece.room(length as usize).await)
            } else {
                match piece.spare(length as usize) {
                    None => return,
                    space => space,
                }
            };
            let id = connection.ask(Question::Read { handle, at: self.next, length });
            self.requested.push_back(Requested { id, at: self.next, length, space, parts: Vec::new(), here: 0 });
            self.next += u64::from(length);
            self.on_the_way += length as usize;
        }
    }

    /// Stores an answer. If it is short, requests the rest and returns true.
    fn take(&mut self, connection: &mut Connection, handle: &[u8], id: u32, answer: Answer) -> Result<bool, Fault> {
        let Some(at) = self.requested.iter().position(|requested| requested.id == id) else { return Err(malformed()) };
        let requested = &mut self.requested[at];
        match answer {
            Answer::Data(bytes) if !bytes.is_empty() => {
                let count = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                if count > requested.length - requested.here {
                    return Err(malformed());
                }
                requested.here += count;
                requested.parts.push(bytes);
                let (begin, left) = (requested.at + u64::from(requested.here), requested.length - requested.here);
                if left > 0 {
                    self.step = self.step.min(count.max(1024));
                    requested.id = connection.ask(Question::Read { handle, at: begin, length: left });
                }
                Ok(left > 0)
            }
            Answer::Data(_) | Answer::Status { code: END, .. } => {
                requested.length = requested.here;
                self.end = Some(requested.at + u64::from(requested.here));
                for behind in self.requested.drain(at + 1..) {
                    connection.ignore(behind.id);
                }
                self.next = self.end.unwrap_or(self.next);
                Ok(false)
            }
            Answer::Status { code, text } => Err(refusal(code, text).fault),
            _ => Err(malformed()),
        }
    }

    /// Passes on complete pieces, in order.
    async fn hand_over(&mut self, piece: &mut Piece<'_>) {
        while self.requested.front().is_some_and(|requested| requested.here == requested.length) {
            let Some(mut requested) = self.requested.pop_front() else { return };
            self.on_the_way = self.on_the_way.saturating_sub(requested.length as usize);
            let bytes = if requested.parts.len() == 1 {
                requested.parts.swap_remove(0)
            } else {
                requested.parts.concat().into()
            };
            match requested.space {
                Some(space) => piece.put(bytes, space),
                None => piece.take(bytes).await,
            }
        }
    }
}

/// The codes of answers without anything else (draft-ietf-secsh-filexfer-02, 7).
const END: u32 = 1;

/// The failure of an answer with an error code.
fn refusal(code: u32, text: String) -> Failure {
    // Transient: lost connections, and failures without a reason.
    let (transient, system_text, hint) = match code {
        0 => (false, "done, and not with what", None),
        END => (false, "the end", None),
        2 => (
            false,
            "no such file",
            Some("check the path: it begins at the server's root, and with /~/ in the folder of the login"),
        ),
        3 => (false, "permission denied", Some("check the permissions of the file and of the folders above it")),
        4 => (true, "failure", None),
        5 => (false, "bad message", None),
        6 => (true, "no connection", None),
        7 => (true, "connection lost", None),
        8 => (false, "operation unsupported", None),
        _ => (false, "another status", None),
    };
    let fault = Fault::transient(format!("the server answers: {system_text}"));
    let text = Some(text).filter(|text| !text.is_empty() && !text.eq_ignore_ascii_case(system_text));
    let fault = Fault { transient, text, status: u16::try_from(code).ok(), hint: hint.map(str::to_owned), ..fault };
    Failure { fault, absent: if code == 2 { Absence::Yes } else { Absence::No }, intact: !transient || code == 4 }
}

fn malformed() -> Fault {
    Fault::transient("the server's answer cannot be understood")
}

pub(super) fn silence(timeout: Duration) -> Fault {
    Fault::transient(format!("the server was silent for {} s", timeout.as_secs_f64()))
        .hint("if it needs longer, raise `timeout`")
}

/// A name of a folder, but not the folder itself.
fn entry(named: Named) -> Result<Option<Entry>, Fault> {
    if matches!(named.name.as_slice(), b"." | b"..") {
        return Ok(None);
    }
    if named.name.is_empty() || named.name.iter().any(|byte| matches!(byte, b'/' | 0)) {
        let fault = Fault::permanent("the server lists a name that no file can have");
        return Err(Fault { text: Some(String::from_utf8_lossy(&named.name).into_owned()), ..fault });
    }
    // An unknown kind is requested later.
    let facts = facts(named.attributes, named.letter, Kind::Link);
    Ok(Some(Entry { name: named.name, facts }))
}

/// The facts from a server's attributes.
fn facts(attributes: Attributes, letter: Option<u8>, unknown: Kind) -> Facts {
    let kind = match (attributes.mode.unwrap_or(0) & 0o170_000, letter) {
        (0o100_000, _) | (0, Some(b'-')) => Kind::File,
        (0o040_000, _) | (0, Some(b'd')) => Kind::Folder,
        (0o120_000, _) | (0, Some(b'l')) => Kind::Link,
        (0, _) => unknown,
        _ => Kind::Other,
    };
    let modified = attributes.modified.map(|seconds| i64::from(seconds) * 1000);
    Facts { kind, size: attributes.size, modified }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_distinguished() {
        let gone = refusal(2, "No such file".into());
        assert_eq!((gone.absent, gone.intact, gone.fault.transient), (Absence::Yes, true, false));
        assert_eq!((gone.fault.what.as_str(), gone.fault.text), ("the server answers: no such file", None));
        let failure = refusal(4, "disk on fire".into());
        assert_eq!((failure.absent, failure.intact, failure.fault.transient), (Absence::No, true, true));
        assert_eq!(failure.fault.text.as_deref(), Some("disk on fire"));
        assert_eq!((refusal(7, String::new()).intact, refusal(99, String::new()).fault.transient), (false, false));
    }

    #[test]
    fn kinds_come_from_the_mode_or_the_letter_or_a_request() {
        let kind = |mode, letter| facts(Attributes { mode, ..Attributes::default() }, letter, Kind::Link).kind;
        assert_eq!(kind(Some(0o100_644), Some(b'd')), Kind::File);
        assert_eq!(kind(Some(0o040_755), None), Kind::Folder);
        assert_eq!(kind(Some(0o010_644), Some(b'p')), Kind::Other);
        assert_eq!(kind(Some(0o644), Some(b'd')), Kind::Folder);
        assert_eq!(
            (kind(None, Some(b'-')), kind(None, None), kind(Some(0), Some(b'?'))),
            (Kind::File, Kind::Link, Kind::Link)
        );
    }

    #[test]
    fn names_that_no_file_can_have_are_refused() {
        let named = |name: &[u8]| entry(Named { name: name.to_vec(), letter: None, attributes: Attributes::default() });
        assert!(named(b".").expect("fine").is_none() && named(b"..").expect("fine").is_none());
        assert!(named(b"a\xff b").expect("fine").is_some());
        for bad in [&b""[..], b"a/b", b"../x", b"a\0"] {
            assert!(named(bad).is_err());
        }
    }
}
