//! One connection to an FTP server: login, commands, and data connections.
//!
//! ```text
//!  control ── EPSV ─▶ 229 port ──────── REST k ─ RETR ─▶ 150 ······················▶ 226
//!  data                     └─ connect ─────────────────────── TLS ─ bytes k… ─ end
//! ```
//!
//! The library handles the control connection: commands, replies, encryption. Data connections are made here, because
//! those of the library hide the last reply, in which some servers report an unreadable folder, and the cause of a
//! failed handshake. A data connection goes to the host of the control connection, not to the address that the server
//! names: behind NAT the server may not know its own, and it must not redirect us.
//!
//! Each connection has its own TLS session cache: servers require that a data connection resumes the session of its
//! control connection.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{BufMut, BytesMut};
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use suppaftp::tokio::{AsyncRustlsStream, AsyncTlsConnector, ImplAsyncFtpStream};
use suppaftp::types::{FileType, Response};
use suppaftp::{Encoding, FtpError, FtpResult, Status};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpStream;

use super::{Ftp, listing, reply};
use crate::remote::{Absence, Address, Entry, Facts, Failure, Kind, reach, system_text};
use crate::retry::Fault;

/// TLS sessions that a connection caches: each data connection uses one and brings new ones.
const SESSIONS: usize = 16;

/// The longest line of a listing.
const LINE_LIMIT: usize = 64 << 10;

/// The most entries of one folder.
const ENTRIES_LIMIT: usize = 5_000_000;

type Client = ImplAsyncFtpStream<AsyncRustlsStream>;

/// A connection, logged in.
pub(crate) struct Connection {
    client: Client,
    /// The host and its address, for data connections.
    host: SocketAddr,
    /// Encrypts data connections.
    encryption: Option<Encryption>,
    /// The folder after the login, once known.
    home: Option<String>,
    /// Whether `LIST -a` names the folder itself, once known.
    dots: Option<bool>,
    can: Abilities,
    connect_timeout: Duration,
    timeout: Duration,
    secrets: Vec<String>,
}

/// The features that the server announces.
#[derive(Debug, Clone, Copy)]
struct Abilities {
    /// MLST and MLSD: facts in a fixed form.
    facts: bool,
    /// EPSV; the older PASV otherwise.
    extended_passive: bool,
}

/// What is in a folder.
struct Listed {
    entries: Vec<Entry>,
    /// Whether the folder itself or the one above was named.
    dots: bool,
}

/// An open data connection.
pub(crate) struct Data(Pin<Box<dyn AsyncRead + Send>>);

/// Makes TLS connections, and remembers why one failed.
#[derive(Clone)]
struct Encryption {
    connector: tokio_rustls::TlsConnector,
    name: ServerName<'static>,
    failed: Arc<Mutex<Option<Fault>>>,
}

impl fmt::Debug for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encryption").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Passes names as bytes through the library, one character per byte.
#[derive(Debug)]
struct Octets;

impl Encoding for Octets {
    fn decode(&self, bytes: &[u8]) -> String {
        bytes.iter().map(|byte| char::from(*byte)).collect()
    }

    fn encode(&self, text: &str) -> io::Result<Vec<u8>> {
        let octet = |character| u8::try_from(u32::from(character));
        text.chars().map(octet).collect::<Result<_, _>>().map_err(|_| io::ErrorKind::InvalidInput.into())
    }
}

/// `bytes` as the library takes them.
fn octets(bytes: &[u8]) -> String {
    Octets.decode(bytes)
}

impl Encryption {
    fn new(config: &ClientConfig, host: &str) -> Result<Self, Fault> {
        let mut config = config.clone();
        config.resumption = Resumption::in_memory_sessions(SESSIONS);
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| Fault::permanent("the host's name cannot have a certificate").hint("check the URL"))?;
        Ok(Encryption { connector: Arc::new(config).into(), name, failed: Arc::default() })
    }

    async fn encrypt(&self, stream: TcpStream) -> Result<tokio_rustls::client::TlsStream<TcpStream>, Fault> {
        self.connector.connect(self.name.clone(), stream).await.map_err(|cause| reply::broken(&cause))
    }
}

#[async_trait]
impl AsyncTlsConnector for Encryption {
    type Stream = AsyncRustlsStream;

    async fn connect(&self, _: &str, stream: TcpStream) -> FtpResult<AsyncRustlsStream> {
        self.encrypt(stream).await.map(AsyncRustlsStream::from).map_err(|fault| {
            let what = fault.what.clone();
            *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
            FtpError::SecureError(what)
        })
    }
}

/// The failure of starting a connection, with the cause of a failed handshake.
fn not_begun(error: FtpError, encryption: Option<&Encryption>, secrets: &[String]) -> Failure {
    let failed = encryption.and_then(|one| one.failed.lock().unwrap_or_else(PoisonError::into_inner).take());
    match (error, failed) {
        (FtpError::SecureError(_), Some(fault)) => fault.into(),
        (error, _) => Failure { intact: false, absent: Absence::No, ..reply::failure(error, secrets) },
    }
}

async fn in_time<T>(timeout: Duration, work: impl Future<Output = T>) -> Result<T, Failure> {
    tokio::time::timeout(timeout, work).await.map_err(|_| silence(timeout).into())
}

fn silence(timeout: Duration) -> Fault {
    Fault::transient(format!("the server was silent for {} s", timeout.as_secs_f64()))
        .hint("if it needs longer, raise `timeout`")
}

impl Connection {
    /// Connects and logs in.
    pub(super) async fn connect(ftp: &Ftp, address: &Address) -> Result<Self, Failure> {
        let (timeout, connect_timeout) = (ftp.settings.timeout, ftp.settings.connect_timeout);
        let user = address.user.clone().or_else(|| ftp.user.clone()).unwrap_or_else(|| "anonymous".into());
        let password =
            address.password.clone().or_else(|| ftp.password.clone()).unwrap_or_else(|| "millstream@".into());
        let secrets = vec![password.clone()];
        let encryption = match address.scheme {
            "ftps" => Some(Encryption::new(&ftp.encryption, &address.host)?),
            _ => None,
        };
        let stream = reach(&address.host, address.port, connect_timeout).await?;
        let host = stream.peer_addr().map_err(|cause| reply::broken(&cause))?;
        let implicit = ftp.implicit.unwrap_or(address.port == 990);
        let beginning = async {
            match &encryption {
                None => Client::connect_with_stream(stream).await,
                Some(tls) if implicit => {
                    drop(stream);
                    Client::connect_secure_implicit(host, tls.clone(), &address.host).await
                }
                Some(tls) => Client::connect_with_stream(stream).await?.into_secure(tls.clone(), &address.host).await,
            }
        };
        let begun = in_time(timeout, beginning).await?;
        let client = begun.map_err(|error| not_begun(error, encryption.as_ref(), &secrets))?;
        let mut connection = Connection {
            client,
            host,
            encryption,
            home: None,
            dots: None,
            can: Abilities { facts: false, extended_passive: true },
            connect_timeout,
            timeout,
            secrets,
        };
        connection.log_in(&user, &password, implicit).await.map_err(|failure| Failure {
            // A connection with a refused login is not reused.
            intact: false,
            absent: Absence::No,
            ..failure
        })?;
        Ok(connection)
    }

    async fn log_in(&mut self, user: &str, password: &str, implicit: bool) -> Result<(), Failure> {
        in_time(self.timeout, self.client.set_encoding(Octets)).await?;
        if self.encryption.is_some() && implicit {
            self.command("PBSZ 0", &[Status::CommandOk]).await?;
            self.command("PROT P", &[Status::CommandOk]).await?;
        }
        let login = self.client.login(octets(user.as_bytes()), octets(password.as_bytes()));
        in_time(self.timeout, login).await?.map_err(|error| reply::failure(error, &self.secrets))?;
        let features = in_time(self.timeout, self.client.feat()).await?;
        match features {
            Ok(features) => {
                let has = |name: &str| features.keys().any(|key| key.eq_ignore_ascii_case(name));
                self.can.facts = has("MLST");
                if has("UTF8") {
                    // Some servers need this command, others refuse it.
                    self.optional("OPTS UTF8 ON").await?;
                }
            }
            // Older servers have no such command.
            Err(FtpError::UnexpectedResponse(_) | FtpError::BadResponse) => {}
            Err(error) => return Err(reply::failure(error, &self.secrets)),
        }
        let binary = self.client.transfer_type(FileType::Binary);
        in_time(self.timeout, binary).await?.map_err(|error| reply::failure(error, &self.secrets))
    }

    /// Sends a command and waits for one of the replies.
    async fn command(&mut self, command: &str, expected: &[Status]) -> Result<Response, Failure> {
        let answer = self.client.custom_command(command, expected);
        in_time(self.timeout, answer).await?.map_err(|error| reply::failure(error, &self.secrets))
    }

    /// Sends a command that the server may refuse.
    async fn optional(&mut self, command: &str) -> Result<Option<Response>, Failure> {
        match self.command(command, &[Status::CommandOk, Status::CommandNotImplemented]).await {
            Ok(answer) => Ok(Some(answer)),
            Err(failure) if failure.intact => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// The facts of `path`: one command if the server supports MLST, else two.
    pub(super) async fn stat(&mut self, path: &[u8]) -> Result<Facts, Failure> {
        let name = octets(path);
        if self.can.facts {
            let answer = self.command(&format!("MLST {name}"), &[Status::RequestedFileActionOk]).await?;
            let facts = listing::fact_reply(&answer.body).ok_or_else(|| {
                let fault = Fault::permanent("the server's description of the file cannot be understood");
                Failure { intact: true, ..Fault { text: Some(reply::text(&answer)), ..fault }.into() }
            })?;
            if facts.kind == Kind::File && listing::may_be_link(&answer.body) {
                return Ok(Facts { size: self.size(&name).await?, ..facts });
            }
            return Ok(facts);
        }
        let size = match self.size(&name).await {
            Ok(size) => size,
            Err(failure) if failure.absent != Absence::No => return self.folder_or(path, failure).await,
            Err(failure) => return Err(failure),
        };
        let modified = match self.command(&format!("MDTM {name}"), &[Status::File]).await {
            Ok(answer) => listing::time(reply::text(&answer).as_bytes()),
            Err(failure) if failure.intact && !failure.fault.transient => None,
            Err(failure) => return Err(failure),
        };
        Ok(Facts { kind: Kind::File, size, modified })
    }

    /// The size of a file, if the server gives sizes.
    async fn size(&mut self, name: &str) -> Result<Option<u64>, Failure> {
        match self.command(&format!("SIZE {name}"), &[Status::File]).await {
            Ok(answer) => Ok(reply::text(&answer).parse().ok()),
            Err(failure) if failure.absent == Absence::No && failure.intact && !failure.fault.transient => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Checks whether a path without a size is a folder.
    async fn folder_or(&mut self, path: &[u8], failure: Failure) -> Result<Facts, Failure> {
        match self.enter(path).await {
            Ok(()) => {
                self.leave().await?;
                Ok(Facts { kind: Kind::Folder, size: None, modified: None })
            }
            Err(other) if other.intact => Err(failure),
            Err(other) => Err(other),
        }
    }

    /// Changes to a folder.
    async fn enter(&mut self, folder: &[u8]) -> Result<(), Failure> {
        if self.home.is_none() {
            let home = in_time(self.timeout, self.client.pwd()).await?;
            self.home = Some(home.map_err(|error| reply::failure(error, &self.secrets))?);
        }
        if !folder.is_empty() {
            let command = format!("CWD {}", octets(folder));
            self.command(&command, &[Status::RequestedFileActionOk, Status::CommandOk]).await?;
        }
        Ok(())
    }

    /// Returns to the folder of the login, which paths are relative to.
    async fn leave(&mut self) -> Result<(), Failure> {
        let command = format!("CWD {}", self.home.as_deref().unwrap_or("/"));
        let result = self.command(&command, &[Status::RequestedFileActionOk, Status::CommandOk]).await;
        result.map(drop).map_err(|failure| Failure { intact: false, absent: Absence::No, ..failure })
    }

    /// The entries of a folder.
    pub(super) async fn list(&mut self, folder: &[u8]) -> Result<Vec<Entry>, Failure> {
        if self.can.facts {
            let command = if folder.is_empty() { "MLSD".to_owned() } else { format!("MLSD {}", octets(folder)) };
            return self.lines(&command, listing::facts_line).await.map(|listed| listed.entries);
        }
        // Changes to the folder first: servers would interpret options, wildcards and spaces in an argument of LIST.
        self.enter(folder).await?;
        let mut listed = self.lines("LIST", listing::list_line).await;
        if matches!(&listed, Ok(listed) if listed.entries.is_empty() && !listed.dots) {
            listed = self.lines("LIST -a", listing::list_line).await;
        }
        match listed {
            Err(failure) if !failure.intact => return Err(failure),
            _ => self.leave().await?,
        }
        let listed = listed?;
        if listed.entries.is_empty() && !listed.dots && self.shows_dots().await? {
            return Err(not_listed(None));
        }
        Ok(listed.entries)
    }

    /// Whether the server lists the folder itself among all names. If such a server lists nothing at all, it may not
    /// read the folder; some servers report this in no other way.
    async fn shows_dots(&mut self) -> Result<bool, Failure> {
        if let Some(known) = self.dots {
            return Ok(known);
        }
        let shows = match self.lines("LIST -a", listing::list_line).await {
            Ok(listed) => listed.dots,
            Err(failure) if failure.intact && !failure.fault.transient => false,
            Err(failure) => return Err(failure),
        };
        self.dots = Some(shows);
        Ok(shows)
    }

    /// The entries that a command lists over a data connection, one a line.
    async fn lines(&mut self, command: &str, parse: fn(&[u8]) -> Result<Option<Entry>, ()>) -> Result<Listed, Failure> {
        let mut data = self.transfer(command, 0).await?;
        let (mut entries, mut dots) = (Vec::new(), false);
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(super::CHUNK);
            let ended = self.receive(&mut data, &mut buffer, None).await? == 0;
            if ended && !buffer.is_empty() {
                buffer.put_u8(b'\n');
            }
            while let Some(at) = memchr(&buffer) {
                let line = buffer.split_to(at + 1);
                let line = line.strip_suffix(b"\n").unwrap_or(&line);
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                match parse(line).map_err(|()| not_understood(line))? {
                    Some(entry) if matches!(entry.name.as_slice(), b"." | b"..") => dots = true,
                    entry => entries.extend(entry),
                }
            }
            if ended {
                break;
            }
            if buffer.len() > LINE_LIMIT || entries.len() > ENTRIES_LIMIT {
                return Err(Fault::permanent("the server's listing of the folder does not end").into());
            }
        }
        let last = self.complete(data).await?;
        if listing::says_failed(&last) {
            return Err(not_listed(Some(last)));
        }
        Ok(Listed { entries, dots })
    }

    /// Begins to read a file at byte `at`.
    pub(super) async fn retrieve(&mut self, path: &[u8], at: u64) -> Result<Data, Failure> {
        self.transfer(&format!("RETR {}", octets(path)), at).await
    }

    /// Begins a command that sends something over a data connection.
    async fn transfer(&mut self, command: &str, at: u64) -> Result<Data, Failure> {
        let port = self.passive().await?;
        let address = SocketAddr::new(self.host.ip(), port);
        let stream = reach(&address.ip().to_string(), port, self.connect_timeout).await.map_err(|fault| Failure {
            fault: Fault { what: "the connection for the data cannot be opened".into(), ..fault }
                .hint("a firewall may be in the way: FTP opens a second connection, to a port that the server names"),
            absent: Absence::No,
            intact: false,
        })?;
        if at > 0 {
            self.command(&format!("REST {at}"), &[Status::RequestFilePending]).await?;
        }
        self.command(command, &[Status::AboutToSend, Status::AlreadyOpen]).await?;
        Ok(match &self.encryption {
            None => Data(Box::pin(stream)),
            Some(encryption) => Data(Box::pin(in_time(self.timeout, encryption.encrypt(stream)).await??)),
        })
    }

    /// The port at which the server waits for the data connection.
    async fn passive(&mut self) -> Result<u16, Failure> {
        if self.can.extended_passive {
            match self.command("EPSV", &[Status::ExtendedPassiveMode]).await {
                Ok(answer) => {
                    return listing::extended_port(&reply::text(&answer)).ok_or_else(|| no_port(&answer));
                }
                // It does not know the command.
                Err(failure) if failure.intact && !failure.fault.transient => self.can.extended_passive = false,
                Err(failure) => return Err(failure),
            }
        }
        let answer = self.command("PASV", &[Status::PassiveMode]).await?;
        listing::passive_port(&reply::text(&answer)).ok_or_else(|| no_port(&answer))
    }

    /// The next bytes; 0 at the end. A broken connection counts as the end if all bytes have arrived.
    pub(super) async fn receive(
        &self,
        data: &mut Data,
        buffer: &mut BytesMut,
        wanted: Option<usize>,
    ) -> Result<usize, Failure> {
        match in_time(self.timeout, data.0.read_buf(buffer)).await? {
            Ok(count) => Ok(count),
            Err(_) if wanted == Some(0) => Ok(0),
            Err(cause) => Err(Fault::transient("the connection broke in the middle of the body")
                .cause(system_text(&cause))
                .into()),
        }
    }

    /// The server's final reply to a complete transfer.
    pub(super) async fn complete(&mut self, data: Data) -> Result<String, Failure> {
        drop(data);
        let last = self.client.read_response_in(&[Status::ClosingDataConnection, Status::RequestedFileActionOk]);
        match in_time(self.timeout, last).await? {
            Ok(answer) => Ok(reply::text(&answer)),
            Err(FtpError::UnexpectedResponse(answer)) => {
                let mut failure = reply::refusal(&answer, &self.secrets);
                if failure.fault.transient {
                    let cause = format!("{}: {}", failure.fault.what, reply::text(&answer));
                    failure.fault = Fault { status: failure.fault.status, ..Fault::transient(BROKE) }.cause(cause);
                }
                Err(Failure { absent: Absence::No, ..failure })
            }
            Err(error) => Err(reply::failure(error, &self.secrets)),
        }
    }

    /// Ends a transfer early: the server notices that the connection is closed.
    pub(super) async fn abandon(&mut self, data: Data) -> Result<(), Failure> {
        drop(data);
        let last = self.client.read_response_in(&[Status::ClosingDataConnection, Status::RequestedFileActionOk]);
        match in_time(self.timeout, last).await? {
            Ok(_) | Err(FtpError::UnexpectedResponse(_)) => Ok(()),
            Err(error) => Err(reply::failure(error, &self.secrets)),
        }
    }
}

/// The fault of a body that broke off.
const BROKE: &str = "the connection broke in the middle of the body";

fn no_port(answer: &Response) -> Failure {
    let fault = Fault::permanent("the server does not say on which port it listens");
    Fault { text: Some(reply::text(answer)), ..fault }.into()
}

/// A listing that came without the folder's names.
fn not_listed(said: Option<String>) -> Failure {
    let fault = Fault::permanent("the server does not list the folder").hint("check the permissions of the folder");
    Failure { absent: Absence::Perhaps, intact: true, ..Fault { text: said, ..fault }.into() }
}

fn not_understood(line: &[u8]) -> Failure {
    let fault = Fault::permanent("a line of the server's listing cannot be understood");
    let fault = fault.hint("name the files without wildcards, for instance in a list: @list.txt");
    Fault { text: Some(String::from_utf8_lossy(line).into_owned()), ..fault }.into()
}

fn memchr(buffer: &[u8]) -> Option<usize> {
    buffer.iter().position(|byte| *byte == b'\n')
}
