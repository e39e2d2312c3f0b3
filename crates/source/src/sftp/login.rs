//! Makes connections: the handshake, the host's key, the login, the subsystem.
//!
//! The library does the encryption, in a task of its own for each connection. That task ends with its socket, so
//! dropping a connection shuts the socket down.

use std::net::Shutdown;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream_core::{Error, Result};
use russh::client::{self, AuthResult, DisconnectReason, Handle, KeyboardInteractiveAuthResponse};
use russh::keys::agent::AgentIdentity;
use russh::keys::agent::client::AgentClient;
use russh::keys::{
    Algorithm, HashAlg, PrivateKey, PrivateKeyWithHashAlg, PublicKeyOrCertificate, decode_secret_key, ssh_key,
};
use russh::{Channel, ChannelMsg, Disconnect, MethodKind, MethodSet, Preferred, SshId, cipher};
use tokio::net::{TcpStream, UnixStream};

use super::Sftp;
use super::client::{AHEAD, Connection, silence};
use super::hosts::Expected;
use super::spec::SftpSpec;
use crate::remote::{Address, Failure, reach, system_text};
use crate::retry::Fault;

/// Ciphers, the fastest first where the processor knows AES. Those with a tag of their own before the others.
const CIPHERS: &[cipher::Name] = &[
    cipher::AES_128_GCM,
    cipher::AES_256_GCM,
    cipher::CHACHA20_POLY1305,
    cipher::AES_128_CTR,
    cipher::AES_192_CTR,
    cipher::AES_256_CTR,
];

/// The interval of keep-alive messages, so that middleboxes do not drop idle connections.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// Messages of the library that wait for us. All messages in flight must fit: while the queue is full, the library
/// neither reads nor sends.
const MESSAGES: usize = 4096;

/// The credentials for a login.
pub(super) struct Credentials {
    user: Option<String>,
    password: Option<String>,
    key: Option<Arc<PrivateKey>>,
    /// The agent's socket, if it is used.
    pub(super) agent: Option<PathBuf>,
    /// Whether a missing agent is a fault.
    agent_wanted: bool,
    /// The user's own keys, which are tried if nothing else is given.
    pub(super) own: Vec<Arc<PrivateKey>>,
}

impl Credentials {
    /// Reads secrets and keys. Blocks.
    pub(super) fn read(spec: &SftpSpec) -> Result<Self> {
        let user = spec.user.as_ref().map(|user| user.resolve()).transpose()?;
        let password = spec.password.as_ref().map(|password| password.resolve()).transpose()?;
        let key = spec.key.as_ref().map(|key| private_key(key, spec)).transpose()?;
        let nothing = password.is_none() && key.is_none();
        let socket = std::env::var_os("SSH_AUTH_SOCK").filter(|path| !path.is_empty()).map(PathBuf::from);
        let agent_wanted = spec.agent == Some(true);
        if agent_wanted && socket.is_none() {
            return Err(Error::refused("there is no agent, which the source's `sftp` block asks for")
                .hint("start one, and set SSH_AUTH_SOCK: eval \"$(ssh-agent)\"; ssh-add"));
        }
        let agent = socket.filter(|_| spec.agent.unwrap_or(nothing));
        let own = if nothing && !agent_wanted { own_keys() } else { Vec::new() };
        Ok(Credentials { user, password, key, agent, agent_wanted, own })
    }

    fn user(&self, address: &Address) -> Result<String, Fault> {
        let own =
            || ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok().filter(|name| !name.is_empty()));
        address.user.clone().or_else(|| self.user.clone()).or_else(own).ok_or_else(|| {
            Fault::permanent("no user is given to log in as")
                .hint("set `user` in the source's `sftp` block, or write sftp://USER@HOST/PATH")
        })
    }
}

fn private_key(secret: &millstream_core::spec::Secret, spec: &SftpSpec) -> Result<Arc<PrivateKey>> {
    let text = secret.resolve()?;
    let passphrase = spec.passphrase.as_ref().map(|passphrase| passphrase.resolve()).transpose()?;
    let fault = || Error::refused("the key of the source's `sftp` block cannot be used").text(&secret.secret);
    let key = decode_secret_key(&text, passphrase.as_deref()).map_err(|cause| {
        let encrypted = matches!(cause, russh::keys::Error::KeyIsEncrypted);
        let wrong = matches!(&cause, russh::keys::Error::SshKey(ssh_key::Error::Crypto)) && passphrase.is_some();
        let error = fault().cause(if wrong { "the passphrase is wrong".to_owned() } else { lower(&cause) });
        match encrypted || wrong {
            true => error.hint("set `passphrase` to a reference to the key's own"),
            false => error.hint("the private key is needed, including its BEGIN and END lines"),
        }
    })?;
    if key.is_encrypted() {
        return Err(fault().cause("the key is encrypted").hint("set `passphrase` to a reference to the key's own"));
    }
    Ok(Arc::new(key))
}

/// The keys that ssh would use; those with a passphrase are skipped.
fn own_keys() -> Vec<Arc<PrivateKey>> {
    let Some(folder) = std::env::home_dir().map(|home| home.join(".ssh")) else { return Vec::new() };
    ["id_ed25519", "id_ecdsa", "id_rsa"]
        .iter()
        .filter_map(|name| fs_err::read_to_string(folder.join(name)).ok())
        .filter_map(|text| decode_secret_key(&text, None).ok())
        .filter(|key| !key.is_encrypted())
        .map(Arc::new)
        .collect()
}

/// The state of a connection besides its channel: why it ended, and what ends it.
#[derive(Debug)]
pub(super) struct Session {
    seen: Arc<Mutex<Seen>>,
    _hangup: Hangup,
}

/// Events that the library's task has seen.
#[derive(Debug, Default)]
struct Seen {
    /// Why the host's key was refused.
    refused: Option<Fault>,
    /// The kind of that key.
    kind: Option<Algorithm>,
    /// The server's last message, and whether it is about the login.
    said: Option<(bool, String)>,
    /// What broke.
    broken: Option<String>,
}

/// Shuts a socket down when dropped.
#[derive(Debug)]
struct Hangup(std::net::TcpStream);

impl Drop for Hangup {
    fn drop(&mut self) {
        // It may already be shut down.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// Checks the host's key.
#[derive(Debug)]
pub(super) struct Host {
    expected: Arc<Expected>,
    seen: Arc<Mutex<Seen>>,
}

impl client::Handler for Host {
    type Error = russh::Error;

    async fn check_server_key(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        let key = shown.public_key();
        match self.expected.check(&key) {
            Ok(()) => Ok(true),
            Err(fault) => {
                let mut seen = lock(&self.seen);
                seen.kind = Some(key.algorithm());
                seen.refused = Some(fault);
                Ok(false)
            }
        }
    }

    async fn disconnected(&mut self, reason: DisconnectReason<russh::Error>) -> Result<(), russh::Error> {
        let mut seen = lock(&self.seen);
        match reason {
            DisconnectReason::ReceivedDisconnect(said) => {
                let login = matches!(
                    said.reason_code,
                    Disconnect::NoMoreAuthMethodsAvailable
                        | Disconnect::AuthCancelledByUser
                        | Disconnect::IllegalUserName
                        | Disconnect::ProtocolError
                        | Disconnect::HostNotAllowedToConnect
                );
                seen.said = Some((login, said.message));
            }
            DisconnectReason::Error(error) => seen.broken = Some(lower(&error)),
        }
        Ok(())
    }
}

fn lock(seen: &Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The words of an error as a cause.
fn lower(error: &(dyn std::error::Error + 'static)) -> String {
    match error.downcast_ref::<std::io::Error>() {
        Some(cause) => system_text(cause),
        None => {
            let text = error.to_string();
            let text = text.split(" (os error ").next().unwrap_or_default();
            let mut letters = text.chars();
            letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
        }
    }
}

impl Session {
    /// The fault of a library error.
    pub(super) fn broken(&self, error: &russh::Error) -> Fault {
        let seen = lock(&self.seen);
        if let Some(fault) = &seen.refused {
            return fault.clone();
        }
        match error {
            russh::Error::NoCommonAlgo { kind, theirs, .. } => {
                Fault::permanent("the server and Millstream have no algorithm in common")
                    .cause(format!("for {kind:?} it offers {}", theirs.join(", ")))
                    .hint("the server's software may be too old: ask its administrator")
            }
            russh::Error::Version => {
                Fault::permanent("no SSH server answers at this port").hint("check the port in the URL")
            }
            russh::Error::WrongServerSig => Fault::permanent("the host cannot prove that the key is its own"),
            _ => {
                let said = seen.said.as_ref().map(|(_, said)| format!("the server says: {said}"));
                let broken = seen.broken.clone().filter(|cause| cause != "disconnected");
                let own = Some(lower(error)).filter(|cause| cause != "disconnected");
                let fault = Fault::transient("the connection broke before the answer");
                said.or(broken).or(own).into_iter().fold(fault, Fault::cause)
            }
        }
    }
}

/// Connects, checks the host's key, logs in, and starts SFTP.
pub(super) async fn connect(sftp: &Sftp, address: &Address) -> Result<Connection, Failure> {
    let expected = Arc::new(sftp.hosts.expected(&address.host, address.port));
    let user = sftp.credentials.user(address)?;
    let (session, mut handle) = meet(sftp, address, &expected).await?;
    let login = Login { sftp, address, session: &session, user };
    login.run(&mut handle).await?;
    let timeout = sftp.settings.timeout;
    let begun = tokio::time::timeout(timeout, subsystem(&handle)).await.map_err(|_| silence(timeout))?;
    let channel = begun.map_err(|error| match error {
        russh::Error::ChannelOpenFailure(cause) => {
            Fault::transient("the server opens no more sessions").cause(cause.description())
        }
        error => session.broken(&error),
    })?;
    let Some(channel) = channel else {
        return Err(Fault::permanent("the server has no SFTP")
            .hint("its configuration needs a line such as: Subsystem sftp internal-sftp")
            .into());
    };
    Connection::new(session, handle, channel.split(), timeout).await
}

/// Connects to a host with the expected key.
async fn meet(sftp: &Sftp, address: &Address, expected: &Arc<Expected>) -> Result<(Session, Handle<Host>), Failure> {
    // A host shows one of its keys, and the fingerprint may be that of another one. Messages name the first key.
    let mut without = Vec::new();
    let mut first: Option<Fault> = None;
    loop {
        let kinds = expected.algorithms(&without);
        if let Some(fault) = first.take_if(|_| kinds.is_empty()) {
            return Err(fault.into());
        }
        let (session, begun) = handshake(sftp, address, expected, kinds).await?;
        let kind = lock(&session.seen).kind.clone();
        match (begun, kind) {
            (Ok(handle), _) => return Ok((session, handle)),
            (Err(error), Some(kind)) if expected.has_no_kind() && !without.contains(&kind) => {
                first.get_or_insert(session.broken(&error));
                without.push(kind);
            }
            (Err(russh::Error::NoCommonAlgo { .. }), None) if first.is_some() => {
                return Err(first.unwrap_or_else(|| Fault::permanent("the host is not known")).into());
            }
            (Err(error), _) => return Err(session.broken(&error).into()),
        }
    }
}

/// Up to the exchange of keys.
async fn handshake(
    sftp: &Sftp,
    address: &Address,
    expected: &Arc<Expected>,
    kinds: Vec<Algorithm>,
) -> Result<(Session, Result<Handle<Host>, russh::Error>), Failure> {
    let stream = reach(&address.host, address.port, sftp.settings.connect_timeout).await?;
    let (stream, hangup) =
        shared(stream).map_err(|cause| Fault::transient("the connection broke").cause(system_text(&cause)))?;
    let seen = Arc::<Mutex<Seen>>::default();
    let session = Session { seen: Arc::clone(&seen), _hangup: hangup };
    let host = Host { expected: Arc::clone(expected), seen };
    let connecting = client::connect_stream(Arc::new(configuration(kinds)), stream, host);
    let begun = tokio::time::timeout(sftp.settings.timeout, connecting).await;
    Ok((session, begun.map_err(|_| silence(sftp.settings.timeout))?))
}

/// A channel to the server's SFTP, or nothing if it has none.
async fn subsystem(handle: &Handle<Host>) -> Result<Option<Channel<client::Msg>>, russh::Error> {
    let mut channel = handle.channel_open_session().await?;
    channel.request_subsystem(true, "sftp").await?;
    loop {
        match channel.wait().await {
            Some(ChannelMsg::Success) => return Ok(Some(channel)),
            Some(ChannelMsg::Failure) => return Ok(None),
            Some(ChannelMsg::WindowAdjusted { .. }) => {}
            _ => return Err(russh::Error::Disconnect),
        }
    }
}

/// The socket, and what shuts it down.
fn shared(stream: TcpStream) -> std::io::Result<(TcpStream, Hangup)> {
    let stream = stream.into_std()?;
    let hangup = Hangup(stream.try_clone()?);
    Ok((TcpStream::from_std(stream)?, hangup))
}

fn configuration(kinds: Vec<Algorithm>) -> client::Config {
    client::Config {
        client_id: SshId::Standard(concat!("SSH-2.0-millstream_", env!("CARGO_PKG_VERSION")).into()),
        window_size: 2 * AHEAD as u32,
        maximum_packet_size: 64 << 10,
        channel_buffer_size: MESSAGES,
        keepalive_interval: Some(KEEP_ALIVE),
        preferred: Preferred { key: kinds.into(), cipher: CIPHERS.into(), ..Preferred::DEFAULT },
        nodelay: true,
        ..client::Config::default()
    }
}

/// A login in progress.
struct Login<'a> {
    sftp: &'a Sftp,
    address: &'a Address,
    session: &'a Session,
    user: String,
}

/// The result of one login method.
enum Outcome {
    In,
    Refused(MethodSet),
}

impl From<AuthResult> for Outcome {
    fn from(result: AuthResult) -> Self {
        match result {
            AuthResult::Success => Outcome::In,
            AuthResult::Failure { remaining_methods, .. } => Outcome::Refused(remaining_methods),
        }
    }
}

impl Login<'_> {
    /// Tries the methods one after the other; a server may require a key and a password.
    async fn run(&self, handle: &mut Handle<Host>) -> Result<(), Fault> {
        let credentials = &self.sftp.credentials;
        // A password in the URL decides the method.
        let own = if self.address.password.is_some() { &[][..] } else { &credentials.own };
        let mut tried = Vec::new();
        let mut takes = MethodSet::empty();
        for key in credentials.key.iter().chain(own) {
            tried.push("a key");
            match self.timed(self.key(handle, key)).await? {
                Outcome::In => return Ok(()),
                Outcome::Refused(methods) => takes = methods,
            }
        }
        if let Some(socket) = &credentials.agent
            && (credentials.agent_wanted || self.address.password.is_none())
        {
            match self.timed(self.agent(handle, socket, &mut tried)).await? {
                Outcome::In => return Ok(()),
                Outcome::Refused(methods) => takes = methods,
            }
        }
        if let Some(password) = self.address.password.as_ref().or(credentials.password.as_ref()) {
            tried.push("the password");
            match self.timed(self.password(handle, password)).await? {
                Outcome::In => return Ok(()),
                Outcome::Refused(methods) => takes = methods,
            }
        }
        Err(self.refused(tried, &takes, None))
    }

    async fn timed<T>(&self, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        let timeout = self.sftp.settings.timeout;
        tokio::time::timeout(timeout, work).await.map_err(|_| silence(timeout))?
    }

    async fn key(&self, handle: &mut Handle<Host>, key: &Arc<PrivateKey>) -> Result<Outcome, Fault> {
        let hash = self.hash(handle, &key.algorithm()).await?;
        let key = PrivateKeyWithHashAlg::new(Arc::clone(key), hash);
        let result =
            handle.authenticate_publickey(&self.user, key).await.map_err(|error| self.session.broken(&error))?;
        self.alive(handle, "a key")?;
        Ok(result.into())
    }

    /// The signature hash for a key of this kind. Servers may accept it even if they do not announce it; SHA-1 is not
    /// offered.
    async fn hash(&self, handle: &Handle<Host>, kind: &Algorithm) -> Result<Option<HashAlg>, Fault> {
        if !matches!(kind, Algorithm::Rsa { .. }) {
            return Ok(None);
        }
        let best = handle.best_supported_rsa_hash().await.map_err(|error| self.session.broken(&error))?;
        Ok(best.flatten().or(Some(HashAlg::Sha256)))
    }

    async fn agent(
        &self,
        handle: &mut Handle<Host>,
        socket: &Path,
        tried: &mut Vec<&'static str>,
    ) -> Result<Outcome, Fault> {
        let asked = async {
            let mut agent = AgentClient::connect_uds(socket).await?;
            let identities = agent.request_identities().await?;
            Ok::<_, russh::keys::Error>((agent, identities))
        };
        let (mut agent, identities) = match asked.await {
            Ok(answer) => answer,
            Err(cause) if self.sftp.credentials.agent_wanted => {
                return Err(Fault::permanent("the agent does not answer")
                    .cause(format!("{}: {}", socket.display(), lower(&cause)))
                    .hint("check SSH_AUTH_SOCK, and whether `ssh-add -l` works"));
            }
            Err(_) => return Ok(Outcome::Refused(MethodSet::empty())),
        };
        if identities.is_empty() && self.sftp.credentials.agent_wanted {
            return Err(Fault::permanent("the agent has no keys").hint("add one: ssh-add ~/.ssh/id_ed25519"));
        }
        let mut takes = MethodSet::empty();
        for identity in identities {
            if tried.last() != Some(&AGENT) {
                tried.push(AGENT);
            }
            match self.identity(handle, &mut agent, identity).await? {
                Outcome::In => return Ok(Outcome::In),
                Outcome::Refused(methods) => takes = methods,
            }
        }
        Ok(Outcome::Refused(takes))
    }

    /// Tries one of the agent's keys. If the agent does not sign, that counts as a refused key.
    async fn identity(
        &self,
        handle: &mut Handle<Host>,
        agent: &mut AgentClient<UnixStream>,
        identity: AgentIdentity,
    ) -> Result<Outcome, Fault> {
        let result = match identity {
            AgentIdentity::PublicKey { key, .. } => {
                let hash = self.hash(handle, &key.algorithm()).await?;
                handle.authenticate_publickey_with(&self.user, key, hash, agent).await
            }
            AgentIdentity::Certificate { certificate, .. } => {
                let hash = self.hash(handle, &certificate.algorithm()).await?;
                handle.authenticate_certificate_with(&self.user, certificate, hash, agent).await
            }
        };
        self.alive(handle, AGENT)?;
        Ok(result.map_or_else(|_| Outcome::Refused(MethodSet::empty()), Outcome::from))
    }

    /// The password, or the same as the answer to the one hidden question that a server asks instead.
    async fn password(&self, handle: &mut Handle<Host>, password: &str) -> Result<Outcome, Fault> {
        const WHAT: &str = "the password";
        let broken = |error: russh::Error| self.session.broken(&error);
        let result = handle.authenticate_password(&self.user, password).await.map_err(broken)?;
        self.alive(handle, WHAT)?;
        let takes = match result.into() {
            Outcome::Refused(takes) if takes.contains(&MethodKind::KeyboardInteractive) => takes,
            outcome => return Ok(outcome),
        };
        let mut answer = handle.authenticate_keyboard_interactive_start(&self.user, None).await.map_err(broken)?;
        let mut given = false;
        loop {
            self.alive(handle, WHAT)?;
            let replies = match answer {
                KeyboardInteractiveAuthResponse::Success => return Ok(Outcome::In),
                KeyboardInteractiveAuthResponse::Failure { remaining_methods, .. } => {
                    return Ok(Outcome::Refused(remaining_methods));
                }
                KeyboardInteractiveAuthResponse::InfoRequest { prompts, .. } => match prompts.as_slice() {
                    [] => Vec::new(),
                    [prompt] if !prompt.echo && !given => {
                        given = true;
                        vec![password.to_owned()]
                    }
                    // The server wants something else: a code, a new password.
                    _ => return Ok(Outcome::Refused(takes)),
                },
            };
            answer = handle.authenticate_keyboard_interactive_respond(replies).await.map_err(broken)?;
        }
    }

    /// Fails if the server has disconnected: after too many keys, or by chance.
    fn alive(&self, handle: &Handle<Host>, tried: &'static str) -> Result<(), Fault> {
        if !handle.is_closed() {
            return Ok(());
        }
        let said = lock(&self.session.seen).said.clone();
        match said {
            Some((true, said)) => Err(self.refused(vec![tried], &MethodSet::empty(), Some(said))),
            _ => Err(self.session.broken(&russh::Error::Disconnect)),
        }
    }

    fn refused(&self, mut tried: Vec<&'static str>, takes: &MethodSet, said: Option<String>) -> Fault {
        tried.dedup();
        if tried.is_empty() {
            return Fault::permanent("there is nothing to log in with")
                .hint("set `password` or `key` in the source's `sftp` block, or start an agent: ssh-add");
        }
        let mut cause = format!("as {} with {}", self.user, tried.join(", "));
        let takes: Vec<&str> = takes.iter().map(<&str>::from).collect();
        if !takes.is_empty() {
            cause.push_str(&format!("; the server takes {}", takes.join(", ")));
        }
        let fault = Fault::permanent("the server refuses the login").cause(cause);
        Fault { text: said, ..fault }.hint(
            "set `user`, and `password` or `key`, in the source's `sftp` block, or check the secret that it names",
        )
    }
}

/// The description of the agent's keys in messages.
const AGENT: &str = "the agent's keys";
