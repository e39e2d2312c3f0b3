//! The server as a whole: what it is started with, and its threads.

use std::ffi::OsString;
use std::fs::TryLockError;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millstream::history::RunHistory;
use millstream::{Error, Result};
use millstream_scheduler::{End, Notice, Said, Scheduler};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::runtime::Builder;
use tokio::sync::watch;

use crate::access::{Access, LINK_LASTS, Role};
use crate::actions::{Action, Actions};
use crate::api;
use crate::commands::{Commands, Program};
use crate::folder::Folder;
use crate::guard::Guard;
use crate::listen;
use crate::lock::lock;
use crate::private;
use crate::shared::{MachineFacts, Notices, Shared, in_words};
use crate::watch::{Events, Watch};

/// How long it waits until it looks again whether another scheduler has ended.
const RETRY: Duration = Duration::from_secs(5);

/// So often it tries to get the lock of the only server, and so long it waits between.
const LOCK_ATTEMPTS: usize = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// The files of a certificate and its key.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate, with those that sign it.
    pub certificates: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// What the server needs.
#[derive(Debug)]
pub struct Options {
    /// The folder with the jobs and sequences.
    pub folder: PathBuf,
    /// The state folder, from the root.
    pub state: PathBuf,
    /// Where it listens: a port, a host, or both.
    pub listen: Option<String>,
    /// Names under which it is asked beside those of this machine.
    pub hosts: Vec<String>,
    /// With which certificate it speaks TLS.
    pub tls: Option<TlsFiles>,
    /// The program that runs jobs: this one.
    pub program: PathBuf,
    /// What is said to it about the machine and the state folder.
    pub arguments: Vec<OsString>,
    /// Where it runs: relative paths in jobs begin there.
    pub working_folder: PathBuf,
    /// The machine.
    pub facts: MachineFacts,
    /// The scheduler, if there is to be one.
    pub scheduler: Option<millstream_scheduler::Options>,
}

/// Where a server listens, in `STATE/server/address.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerAddress {
    /// `http://127.0.0.1:8480`.
    pub url: String,
    /// The number of its process.
    pub process: u32,
}

/// Where the server of the state folder `state` listens, or listened last.
pub fn address_of(state: &Path) -> Option<ServerAddress> {
    let folder = private::folder(state).ok()?;
    serde_json::from_slice(&fs_err::read(folder.join("address.json")).ok()?).ok()
}

/// A server that listens.
pub struct Server {
    shared: Arc<Shared>,
    listener: std::net::TcpListener,
    tls: Option<tokio_rustls::TlsAcceptor>,
    url: String,
    scheduler: Option<millstream_scheduler::Options>,
    stop: Stop,
    _only: std::fs::File,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("url", &self.url).finish_non_exhaustive()
    }
}

/// Ends a server. Runs that it has started go on.
#[derive(Debug, Clone)]
pub struct Stop {
    listening: watch::Sender<bool>,
    looking: Arc<AtomicBool>,
    scheduler: Arc<Mutex<Option<millstream_scheduler::Stop>>>,
}

impl Stop {
    /// The server ends.
    pub fn stop(&self) {
        self.looking.store(true, Ordering::Release);
        if let Some(scheduler) = &*lock(&self.scheduler) {
            scheduler.stop();
        }
        self.listening.send_replace(true);
    }
}

impl Server {
    /// A server as `options` say, which listens from now on.
    ///
    /// # Errors
    /// If a folder or the address cannot be used, or others could listen in.
    pub fn start(options: Options) -> Result<Self> {
        let Options { folder, state, listen, hosts, tls, program, arguments, working_folder, facts, scheduler } =
            options;
        let folder = Arc::new(Folder::open(&folder)?);
        let history = RunHistory::open(&state)?;
        let only = only_server(&state)?;
        if let Ok(own) = private::folder(&state) {
            private::tidy(&own);
        }
        let access = Access::open(&state)?;
        let (listener, address) = listen::bind(listen.as_deref())?;
        let is_loopback = address.ip().is_loopback();
        if !is_loopback && tls.is_none() {
            return Err(Error::job(format!(
                "{address} can be reached from other machines, and nothing would be encrypted"
            ))
            .hint(
                "name a certificate with `--tls-cert` and `--tls-key`, or listen at 127.0.0.1 behind a proxy \
                       that speaks TLS, and name its host with `--host`",
            ));
        }
        let acceptor = tls.as_ref().map(|files| listen::tls(&files.certificates, &files.key)).transpose()?;
        if address.ip().is_unspecified() && hosts.is_empty() {
            return Err(Error::job("the server listens at all addresses, and is asked under none")
                .hint("say under which name browsers ask for it: `--host etl.example.org`"));
        }
        let host = hosts.first().filter(|_| address.ip().is_unspecified());
        let host = host.map_or_else(|| shown_ip(address), Clone::clone);
        let url = url(tls.is_some(), &host, address);
        let mut names = hosts;
        if !address.ip().is_unspecified() {
            names.push(format!("{}:{}", shown_ip(address), address.port()));
        }
        let events = Arc::new(Events::default());
        let heard = Arc::clone(&events);
        let ended = move |action: &Action| {
            heard.changed();
            heard.send("action", &json!(action));
        };
        let program = Program { path: program, arguments, folder: working_folder };
        let shared = Arc::new(Shared {
            guard: Guard::new(tls.is_some(), address.port(), is_loopback, &names),
            actions: Actions::new(Arc::clone(&history), ended)?,
            commands: Commands::new(program),
            notices: Notices::default(),
            scheduler: Mutex::default(),
            cache: Mutex::default(),
            folder,
            history,
            access,
            events,
            facts,
        });
        shared.folder.look();
        let stop = Stop { listening: watch::channel(false).0, looking: Arc::default(), scheduler: Arc::default() };
        let server = Server { shared, listener, tls: acceptor, url, scheduler, stop, _only: only };
        server.note_address(&state)?;
        Ok(server)
    }

    fn note_address(&self, state: &Path) -> Result<()> {
        let address = ServerAddress { url: self.url.clone(), process: std::process::id() };
        let written = private::folder(state)
            .and_then(|folder| private::write(&folder.join("address.json"), json!(address).to_string().as_bytes()));
        written.map_err(|cause| Error::io("the address of the server cannot be noted", &cause))
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A link that signs one browser in, with the role `edit`, and how long it works.
    ///
    /// # Errors
    /// If it cannot be stored.
    pub fn link(&self) -> Result<(String, Duration)> {
        Ok((format!("{}/#token={}", self.url, self.shared.access.link(Role::Edit)?), LINK_LASTS))
    }

    /// What ends it from other threads.
    pub fn stopper(&self) -> Stop {
        self.stop.clone()
    }

    /// Serves until it is stopped. `tell` is called with what the scheduler has to say.
    ///
    /// # Errors
    /// If the system starts no more threads.
    pub fn run(self, tell: impl Fn(&Notice) + Send + Sync + 'static) -> Result<()> {
        let failed = |cause: std::io::Error| Error::io("a thread cannot be started", &cause);
        let Server { shared, listener, tls, scheduler, stop, url: _, _only } = self;
        let looking = Watch::new(
            RunHistory::open(shared.history.folder())?,
            Arc::clone(&shared.folder),
            Arc::clone(&shared.events),
        );
        let ends = Arc::clone(&stop.looking);
        let watch = std::thread::Builder::new().name("watch".to_owned());
        let watch = watch.spawn(move || looking.run(&ends)).map_err(failed)?;
        let tell = Arc::new(tell);
        let scheduling = scheduler.map(|options| {
            let (shared, stop) = (Arc::clone(&shared), stop.clone());
            let thread = std::thread::Builder::new().name("scheduler".to_owned());
            thread.spawn(move || schedule(&shared, &options, &stop, &tell)).map_err(failed)
        });
        let scheduling = scheduling.transpose()?;
        let mut runtime = Builder::new_multi_thread();
        runtime.worker_threads(2).max_blocking_threads(16).thread_name("server").enable_all();
        let runtime = runtime.build().map_err(failed)?;
        let app = api::router(&shared);
        runtime.block_on(listen::serve(listener, tls, app, stop.listening.subscribe()));
        runtime.shutdown_timeout(Duration::from_secs(1));
        stop.stop();
        for thread in [Some(watch), scheduling].into_iter().flatten() {
            let _ = thread.join();
        }
        Ok(())
    }
}

/// The lock of the one server of the state folder `state`: two would not know each other's sessions.
fn only_server(state: &Path) -> Result<std::fs::File> {
    let failed = |cause: std::io::Error| Error::io("the state folder cannot be locked for the server", &cause);
    let lock =
        private::folder(state).and_then(|folder| private::append(&folder.join("server.lock"))).map_err(failed)?;
    // That of a server that was killed may be held for a moment by a process that it was about to start.
    let mut attempts = 0;
    while attempts < LOCK_ATTEMPTS && matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) {
        attempts += 1;
        std::thread::sleep(LOCK_PAUSE);
    }
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => {
            let error = Error::job("another server works on this state folder");
            let error = match address_of(state) {
                Some(address) => error.cause(format!("process {} at {}", address.process, address.url)),
                None => error,
            };
            Err(error
                .hint("`millstream access link` prints a link to it; `--state` gives this one a folder of its own"))
        }
        Err(TryLockError::Error(cause)) => Err(failed(cause)),
    }
}

/// The IP as it stands in the address of a browser.
fn shown_ip(address: SocketAddr) -> String {
    match address.ip() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// The address for browsers.
fn url(is_tls: bool, host: &str, address: SocketAddr) -> String {
    let host = host.to_owned();
    let (scheme, usual) = if is_tls { ("https", 443) } else { ("http", 80) };
    match address.port() {
        port if port == usual
            || host
                .rsplit_once(']')
                .map_or(&*host, |(_, behind)| behind)
                .rsplit_once(':')
                .is_some_and(|(_, port)| port.parse::<u16>().is_ok()) =>
        {
            format!("{scheme}://{host}")
        }
        port => format!("{scheme}://{host}:{port}"),
    }
}

/// Runs the scheduler until the server ends; as long as another one works on the state folder, it waits for its end.
fn schedule(
    shared: &Arc<Shared>,
    options: &millstream_scheduler::Options,
    stop: &Stop,
    tell: &Arc<impl Fn(&Notice) + Send + Sync + 'static>,
) {
    let (mut is_told, mut failed) = (false, None);
    while !stop.looking.load(Ordering::Acquire) {
        let (to, told, root) = (Arc::clone(shared), Arc::clone(tell), shared.folder.root().to_owned());
        let notify = move |notice: Notice| {
            told(&notice);
            to.set_scheduler("here", None);
            let (level, text) = text_of(notice.said(&root));
            to.notice(level, text);
        };
        let ended = Scheduler::new(options.clone(), notify).and_then(|scheduler| {
            *lock(&stop.scheduler) = Some(scheduler.stopper());
            shared.set_scheduler("here", None);
            if stop.looking.load(Ordering::Acquire) {
                scheduler.stopper().stop();
            }
            scheduler.run()
        });
        match ended {
            Ok(End::Refused { process }) => {
                shared.set_scheduler("elsewhere", Some(process.clone()).filter(|process| !process.is_empty()));
                if !is_told {
                    let of = if process.is_empty() { String::new() } else { format!(": process {process}") };
                    shared.notice("info", format!("another scheduler works on this state folder{of}"));
                }
                is_told = true;
            }
            Ok(_) => shared.set_scheduler("stopped", None),
            Err(error) => {
                shared.set_scheduler("stopped", None);
                let text = format!("the scheduler has ended, and is started again: {}", in_words(&error));
                if failed.as_ref() != Some(&text) {
                    shared.notice("error", text.clone());
                }
                failed = Some(text);
            }
        }
        let since = Instant::now();
        while since.elapsed() < RETRY && !stop.looking.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn text_of(said: Said) -> (&'static str, String) {
    match said {
        Said::Text(text) => ("info", text),
        Said::Warning(error) => ("warning", in_words(&error)),
        Said::Error(error) => ("error", in_words(&error)),
        Said::Lints(lints, follows) => {
            let lints = lints.iter().map(|lint| format!("{}:{}:{}: {}", lint.path, lint.line, lint.column, lint.what));
            ("error", lints.chain([follows]).collect::<Vec<_>>().join("\n"))
        }
    }
}
