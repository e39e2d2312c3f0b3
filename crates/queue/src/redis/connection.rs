//! A connection to a Redis server: commands in one write, answers in their order.
//!
//! A reader of a stream waits at the server (`BLOCK`), and meanwhile nothing else is answered on its connection: what
//! is to be acknowledged or asked needs another one.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::{Error, Result};
use millstream_net::server::Tls;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::fault::Fault;
use super::place::Place;
use super::reply::{ArrayHead, Came, EntriesReply, Fields, Value, array_head, value};
use millstream_core::queue::Messages;

/// How long a connection may take to be made, and an answer that does not wait to come.
const PATIENCE: Duration = Duration::from_secs(30);

/// The least room that is made before bytes are read.
const READ_BYTES: usize = 64 << 10;

/// What is kept of the memory of an answer when it has been read.
const KEPT_BYTES: usize = 1 << 20;

/// Commands in the form in which they are sent.
#[derive(Debug, Clone, Default)]
pub struct Commands {
    bytes: Vec<u8>,
    count: usize,
}

impl Commands {
    /// Adds a command of these words.
    pub fn add<'w>(&mut self, words: impl IntoIterator<Item = &'w [u8], IntoIter: ExactSizeIterator>) {
        let words = words.into_iter();
        self.head(b'*', words.len());
        for word in words {
            self.head(b'$', word.len());
            self.bytes.extend_from_slice(word);
            self.bytes.extend_from_slice(b"\r\n");
        }
        self.count += 1;
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes that are sent.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Leaves none, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
    }

    fn head(&mut self, kind: u8, length: usize) {
        let mut digits = [0; 20];
        let mut first = digits.len();
        let mut left = length;
        loop {
            first -= 1;
            digits[first] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        self.bytes.push(kind);
        self.bytes.extend_from_slice(&digits[first..]);
        self.bytes.extend_from_slice(b"\r\n");
    }
}

trait Socket: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> Socket for S {}

/// A connection. After a [`Fault`] that is not an answer it is of no use any more.
pub struct Connection {
    socket: Pin<Box<dyn Socket>>,
    /// What was received; up to `read` it has been taken.
    received: Vec<u8>,
    read: usize,
}

impl Connection {
    /// Connects, logs in, and calls itself `name`, which the server shows its administrators: without spaces.
    ///
    /// # Errors
    /// If the server cannot be reached, or refuses the login.
    pub async fn open(place: &Place, name: &str) -> Result<Self> {
        let doing = "connecting";
        let opened = timeout(PATIENCE, Connection::connect(place)).await;
        let late = || Fault::Connect(io::ErrorKind::TimedOut.into()).into_error(place, doing);
        let mut connection = opened.map_err(|_| late())??;
        let (user, password) = place.server.login()?;
        let database = place.database.to_string();
        let mut commands = Commands::default();
        match (&user, &password) {
            (_, None) => {}
            (None, Some(password)) => commands.add([b"AUTH".as_slice(), password.as_bytes()]),
            (Some(user), Some(password)) => commands.add([b"AUTH".as_slice(), user.as_bytes(), password.as_bytes()]),
        }
        commands.add([b"SELECT".as_slice(), database.as_bytes()]);
        commands.add([b"CLIENT".as_slice(), b"SETNAME", name.as_bytes()]);
        let answers = connection.all(&commands, PATIENCE).await.map_err(|fault| fault.into_error(place, doing))?;
        // Who may not say a name works without.
        let wanted = &answers[..answers.len() - 1];
        match wanted.iter().find_map(|answer| if let Value::Error(error) = answer { Some(error) } else { None }) {
            Some(error) => Err(Fault::Answer(error.clone()).into_error(place, doing)),
            None => Ok(connection),
        }
    }

    async fn connect(place: &Place) -> Result<Self> {
        let server = &place.server;
        let cannot = |cause| Fault::Connect(cause).into_error(place, "connecting");
        let socket = TcpStream::connect((server.host.as_str(), server.port)).await.map_err(cannot)?;
        socket.set_nodelay(true).map_err(cannot)?;
        let socket: Pin<Box<dyn Socket>> = match server.tls {
            Tls::Off => Box::pin(socket),
            Tls::Verify => {
                let ca = server.ca.clone();
                let trust =
                    tokio::task::spawn_blocking(move || millstream_net::tls::configuration(ca.as_deref())).await;
                let trust = trust.map_err(|cause| Error::internal("reading certificates failed").cause(cause))??;
                let encrypted = |cause: String| Fault::Tls(cause).into_error(place, "connecting");
                let name = ServerName::try_from(server.host.clone()).map_err(|cause| encrypted(cause.to_string()))?;
                let connector = TlsConnector::from(Arc::new(trust));
                Box::pin(connector.connect(name, socket).await.map_err(|cause| encrypted(cause.to_string()))?)
            }
        };
        Ok(Connection { socket, received: Vec::new(), read: 0 })
    }

    /// Sends a command; the answer, which may be an error of the server.
    pub async fn command(&mut self, words: &[&[u8]]) -> Result<Value, Fault> {
        let mut commands = Commands::default();
        commands.add(words.iter().copied());
        let mut answers = self.all(&commands, PATIENCE).await?;
        answers.pop().ok_or_else(|| Fault::Malformed("there is no answer".to_owned()))
    }

    /// Sends commands; the answers in their order, each of which may be an error of the server. Together they may take
    /// `patience`.
    pub async fn all(&mut self, commands: &Commands, patience: Duration) -> Result<Vec<Value>, Fault> {
        let answers = async {
            let mut answers = Vec::with_capacity(commands.len());
            let Connection { socket, received, read } = self;
            let (mut input, mut output) = tokio::io::split(socket.as_mut());
            // A server that does not get rid of its answers stops reading: so both go on at once.
            let sending = async {
                output.write_all(&commands.bytes).await?;
                output.flush().await
            };
            let receiving = async {
                while answers.len() < commands.len() {
                    match value(&received[*read..])? {
                        Some((value, length)) => {
                            answers.push(value);
                            *read += length;
                        }
                        None => receive(&mut input, received, read).await?,
                    }
                }
                Ok(())
            };
            let sending = async { sending.await.map_err(Fault::Lost) };
            tokio::try_join!(sending, receiving)?;
            Ok(answers)
        };
        timeout(patience, answers).await.map_err(|_| Fault::Lost(io::ErrorKind::TimedOut.into()))?
    }

    /// Sends a command that is answered with entries of one stream (`XREADGROUP`), which may wait at the server for
    /// `block`, and adds these to `messages`; how many came.
    pub async fn entries(
        &mut self,
        words: &[&[u8]],
        block: Duration,
        fields: &Fields,
        messages: &mut Messages,
    ) -> Result<usize, Fault> {
        let mut commands = Commands::default();
        commands.add(words.iter().copied());
        let answer = async {
            self.send(&commands).await?;
            self.receive_entries(fields, messages).await
        };
        timeout(block + PATIENCE, answer).await.map_err(|_| Fault::Lost(io::ErrorKind::TimedOut.into()))?
    }

    /// Sends a transaction, from `MULTI` to `EXEC`, whose last command but one is answered with entries, and adds these
    /// to `messages`. Gives the answers of the other commands, and how many entries came.
    pub async fn checked_entries(
        &mut self,
        commands: &Commands,
        fields: &Fields,
        messages: &mut Messages,
    ) -> Result<(Vec<Value>, usize), Fault> {
        let answer = async {
            self.send(commands).await?;
            let (mut refusal, mut last) = (None, Value::Nil);
            for _ in 0..commands.len() - 1 {
                last = self.receive_value().await?;
                if let Value::Error(error) = &last {
                    refusal.get_or_insert(error.clone());
                }
            }
            let values = self.receive_array_head().await?;
            if let Some(error) = refusal {
                // Outside of a transaction all is done: what was read is lost.
                let is_done = matches!(last, Value::Integer(_));
                return Err(if is_done {
                    Fault::Lost(io::ErrorKind::InvalidData.into())
                } else {
                    Fault::Answer(error)
                });
            }
            let mut answers = Vec::new();
            for _ in 2..values.map_err(Fault::Answer)? {
                answers.push(self.receive_value().await?);
            }
            let count = self.receive_entries(fields, messages).await;
            answers.push(self.receive_value().await?);
            Ok((answers, count?))
        };
        timeout(PATIENCE, answer).await.map_err(|_| Fault::Lost(io::ErrorKind::TimedOut.into()))?
    }

    async fn send(&mut self, commands: &Commands) -> Result<(), Fault> {
        self.socket.write_all(&commands.bytes).await.map_err(Fault::Lost)?;
        self.socket.flush().await.map_err(Fault::Lost)
    }

    async fn receive_entries(&mut self, fields: &Fields, messages: &mut Messages) -> Result<usize, Fault> {
        let before = messages.len();
        let mut reply = EntriesReply::new(fields);
        loop {
            match reply.read(&self.received[self.read..], messages)? {
                Came::All(length) => {
                    self.read += length;
                    return Ok(messages.len() - before);
                }
                Came::Error(error, length) => {
                    self.read += length;
                    return Err(Fault::Answer(error));
                }
                Came::Part(length) => self.read += length,
            }
            receive(&mut self.socket, &mut self.received, &mut self.read).await?;
        }
    }

    async fn receive_value(&mut self) -> Result<Value, Fault> {
        loop {
            if let Some((value, length)) = value(&self.received[self.read..])? {
                self.read += length;
                return Ok(value);
            }
            receive(&mut self.socket, &mut self.received, &mut self.read).await?;
        }
    }

    async fn receive_array_head(&mut self) -> Result<ArrayHead, Fault> {
        loop {
            if let Some((head, length)) = array_head(&self.received[self.read..])? {
                self.read += length;
                return Ok(head);
            }
            receive(&mut self.socket, &mut self.received, &mut self.read).await?;
        }
    }
}

/// Receives some more; what is read of `received` already makes room.
async fn receive(input: &mut (impl AsyncRead + Unpin), received: &mut Vec<u8>, read: &mut usize) -> Result<(), Fault> {
    received.drain(..*read);
    *read = 0;
    if received.is_empty() {
        received.shrink_to(KEPT_BYTES);
    }
    received.reserve(READ_BYTES);
    match input.read_buf(received).await.map_err(Fault::Lost)? {
        0 => Err(Fault::Lost(io::ErrorKind::UnexpectedEof.into())),
        _ => Ok(()),
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("received", &self.received.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use millstream_net::server::Access;
    use millstream_testkit::{Authority, Break, Proxy, Redis, RedisOptions, TempTree, Validity};

    use super::super::fault::Reaction;
    use super::super::reply::EntryId;
    use super::*;
    use millstream_core::queue::Lack;

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work)
    }

    fn place(url: &str, ca: Option<String>) -> Place {
        Place::parse(url, &Access { key: "read", ca, ..Access::default() }).expect("a place")
    }

    /// Reads up to `count` entries that no consumer has.
    async fn read(connection: &mut Connection, count: &str, messages: &mut Messages) -> Result<usize, Fault> {
        let words = ["XREADGROUP", "GROUP", "g", "c", "COUNT", count, "STREAMS", "s", ">"].map(str::as_bytes);
        connection.entries(&words, Duration::ZERO, &Fields::default(), messages).await
    }

    #[test]
    fn many_entries_are_added_and_read() {
        let server = Redis::start(RedisOptions { password: true, ..RedisOptions::default() });
        server.command(&["XGROUP", "CREATE", "s", "g", "0", "MKSTREAM"]);
        run(async {
            let mut connection = Connection::open(&place(&server.url(), None), "test").await.expect("a connection");
            let bodies: Vec<String> = (0..20_000).map(|number| format!("{{\"n\": {number}}}")).collect();
            let mut commands = Commands::default();
            for body in &bodies {
                commands.add(["XADD", "s", "*", "body", body].map(str::as_bytes));
            }
            let ids = connection.all(&commands, PATIENCE).await.expect("answers");
            let mut messages = Messages::default();
            let mut counts = Vec::new();
            loop {
                let count = read(&mut connection, "7000", &mut messages).await.expect("entries");
                counts.push(count);
                if count == 0 {
                    break;
                }
            }
            assert_eq!(counts, [7000, 7000, 6000, 0]);
            let told: Vec<String> = messages.ids().iter().map(|id| EntryId::from(*id).to_string()).collect();
            assert_eq!(told, ids.iter().filter_map(Value::text).collect::<Vec<_>>());
            assert_eq!(messages.text(), bodies.iter().map(|body| format!("{body}\n")).collect::<String>().as_bytes());
            // The next command gets its own answer.
            assert_eq!(connection.command(&[b"XLEN", b"s"]).await.expect("a number"), Value::Integer(20_000));
            let info = connection.command(&[b"XINFO", b"STREAM", b"s"]).await.expect("a description");
            assert_eq!(info.field("entries-added").and_then(Value::integer), Some(20_000));
        });
    }

    #[test]
    fn what_the_server_refuses_has_a_name() {
        let server = Redis::start(RedisOptions { password: true, ..RedisOptions::default() });
        let url = server.url();
        run(async {
            let wrong = place(&url.replace("//:", "//:x"), None);
            let error = Connection::open(&wrong, "test").await.expect_err("the password is wrong");
            assert_eq!(error.hint_text(), Some("check user and password"));
            assert!(!error.to_string().contains(millstream_testkit::PASSWORD), "{error}");
            let none = place(&format!("redis://127.0.0.1:{}", server.port()), None);
            assert!(Connection::open(&none, "test").await.is_err(), "it asks for a password");
            let mut connection = Connection::open(&place(&url, None), "test").await.expect("a connection");
            let fault = read(&mut connection, "1", &mut Messages::default()).await.expect_err("there is no stream");
            assert_eq!(fault.reaction(), Reaction::NoGroup);
            let nowhere = place("redis://127.0.0.1:1", None);
            let error = Connection::open(&nowhere, "test").await.expect_err("nobody listens there");
            assert_eq!(error.kind(), millstream_core::ErrorKind::Transient);
        });
    }

    #[test]
    fn an_entry_that_was_deleted_is_handed_out_as_gone() {
        let server = Redis::start(RedisOptions::default());
        server.command(&["XGROUP", "CREATE", "s", "g", "0", "MKSTREAM"]);
        let id = server.command(&["XADD", "s", "*", "body", "a"]);
        run(async {
            let mut connection = Connection::open(&place(&server.url(), None), "test").await.expect("a connection");
            assert_eq!(read(&mut connection, "1", &mut Messages::default()).await.expect("an entry"), 1);
            server.command(&["XDEL", "s", &id]);
            let words = ["XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", "0"].map(str::as_bytes);
            let mut messages = Messages::default();
            let read = connection.entries(&words, Duration::ZERO, &Fields::default(), &mut messages).await;
            assert_eq!((read.expect("an entry"), messages.lacking()), (1, [(0, Lack::Gone)].as_slice()));
        });
    }

    #[test]
    fn an_encrypted_connection_trusts_whom_it_is_told_to() {
        let authority = Authority::new();
        let tree = TempTree::new();
        let ca = tree.file("ca.pem", authority.pem()).display().to_string();
        let certificate = Some(authority.certificate("localhost", Validity::Current));
        let server = Redis::start(RedisOptions { certificate, ..RedisOptions::default() });
        run(async {
            let mut connection =
                Connection::open(&place(&server.url(), Some(ca)), "test").await.expect("it is trusted");
            assert_eq!(connection.command(&[b"PING"]).await.expect("an answer").text(), Some("PONG"));
            let error = Connection::open(&place(&server.url(), None), "test").await.expect_err("it is not trusted");
            assert!(error.to_string().contains("encrypted connection"), "{error}");
        });
    }

    #[test]
    fn a_connection_that_breaks_is_lost() {
        let server = Redis::start(RedisOptions::default());
        let proxy = Proxy::start(server.port(), &[Break::Nothing]);
        run(async {
            let place = place(&format!("redis://127.0.0.1:{}", proxy.port()), None);
            let mut connection = Connection::open(&place, "test").await.expect("a connection");
            proxy.close_all();
            let fault = connection.command(&[b"PING"]).await.expect_err("it is broken");
            assert_eq!(fault.reaction(), Reaction::Reconnect);
        });
    }
}
