//! A worker: joins a coordinator, reads what that hands out, and ends with the connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc as std_mpsc};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use millstream_core::{Error, ErrorKind, Result};
use serde_json::Value;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::identity::Identity;
use crate::leases::{Bundle, Worker};
use crate::wire::{FromCoordinator, FromWorker, Hello, SentError, ToRead, Welcome, receive, send};

/// How long a coordinator may take to let a worker in.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How long the last words of a coordinator may take that does not listen any more.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long the task may take to come, with its code.
const WELCOME: Duration = Duration::from_secs(120);

/// What a worker does.
#[async_trait]
pub trait Work: Send + Sync {
    /// Prepares to do `task` as the worker of this number.
    ///
    /// # Errors
    /// If it cannot be done here.
    async fn begin(&self, worker: Worker, task: Value) -> Result<Arc<dyn ReadBundle>>;
}

/// A task that is being done.
#[async_trait]
pub trait ReadBundle: Send + Sync {
    /// Reads the units of a bundle. Returns what came of it.
    ///
    /// # Errors
    /// If they cannot be read, or not written. They end the run, unless another worker reads the bundle, or may be
    /// able to: where nobody else has failed at it, an error that a machine may be to blame for sends this one away.
    async fn read(&self, to_read: ToRead, link: Link) -> Result<Value, Vec<Error>>;
}

/// How work on a bundle speaks to the coordinator.
#[derive(Clone)]
pub struct Link {
    bundle: Bundle,
    connection: Arc<Connection>,
    /// Whether the bundle does not count any more.
    stopped: watch::Receiver<bool>,
}

/// What all bundles of a connection share.
struct Connection {
    out: mpsc::UnboundedSender<FromWorker>,
    next: AtomicU64,
    /// Who waits for an answer; `None` once no more answers come.
    kept: Mutex<Option<HashMap<u64, std_mpsc::Sender<Option<SentError>>>>>,
    stops: Mutex<HashMap<Bundle, watch::Sender<bool>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    /// Says which units of the bundle are being read, by their positions.
    pub fn reading(&self, units: Vec<usize>) {
        let _ = self.connection.out.send(FromWorker::Reading(self.bundle, units));
    }

    /// Tells the coordinator something.
    pub fn tell(&self, told: Value) {
        let _ = self.connection.out.send(FromWorker::Tells(told));
    }

    /// Lets the coordinator keep what is about to be committed. Returns once it is kept. It blocks: the connection is
    /// served elsewhere.
    ///
    /// # Errors
    /// If nothing may be committed.
    pub fn keep(&self, what: Value) -> Result<()> {
        let number = self.connection.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = std_mpsc::channel();
        match locked(&self.connection.kept).as_mut() {
            Some(kept) => drop(kept.insert(number, answer)),
            None => return Err(lost()),
        }
        let _ = self.connection.out.send(FromWorker::Keep(self.bundle, number, what));
        match answered.recv() {
            Ok(None) => Ok(()),
            Ok(Some(error)) => Err(error.into()),
            Err(_) => Err(lost()),
        }
    }

    /// Returns when the bundle does not count any more, or the connection is lost.
    pub async fn stopped(&self) {
        let mut stopped = self.stopped.clone();
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Interrupted, "the connection to the coordinator is lost")
}

/// How a worker has left a coordinator that it had joined.
#[derive(Debug, Clone)]
pub enum Parted {
    /// The run is finished, or the worker was to leave, and has ended what it had.
    Well,
    /// The run has failed, for this reason.
    Failed(String),
    /// The connection is lost, for this reason.
    Lost(String),
    /// The coordinator does not let it join, or it cannot do the task.
    Refused(Error),
}

/// Joins the coordinator at `address`, and works until that says that nothing is left. When `leave` is true, it ends
/// what it has, and leaves.
///
/// # Errors
/// If no coordinator answers there that has the same secret.
pub async fn join(
    address: &str,
    identity: &Identity,
    hello: Hello,
    work: Arc<dyn Work>,
    leave: watch::Receiver<bool>,
) -> Result<Parted> {
    let slots = hello.slots;
    let (connector, name) = (identity.connector()?, Identity::name()?);
    let entering = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (from, mut to) = tokio::io::split(connector.connect(name, stream).await?);
        send(&mut to, &FromWorker::Hello(hello)).await?;
        Ok((from, to))
    };
    let entered = match tokio::time::timeout(HANDSHAKE, entering).await {
        Ok(entered) => entered.map_err(|cause| unreachable(address, &cause))?,
        Err(_) => return Err(Error::transient(format!("no coordinator answers at {address}")).cause("time is up")),
    };
    let (mut from, to) = entered;
    let answer = tokio::time::timeout(WELCOME, receive::<FromCoordinator>(&mut from)).await;
    let answer = answer.map_err(|_| Error::transient(format!("the coordinator at {address} does not answer")))?;
    let welcome = match answer.map_err(|cause| unreachable(address, &cause))? {
        Some(FromCoordinator::Welcome(welcome)) => welcome,
        Some(FromCoordinator::Refused(error)) => return Ok(Parted::Refused(error.into())),
        _ => return Err(Error::transient(format!("the coordinator at {address} has closed the connection"))),
    };
    let (out, messages) = mpsc::unbounded_channel();
    let beat = Duration::from_millis(welcome.beat.max(1));
    let mut writing = tokio::spawn(write(to, messages, beat));
    let (said, mut hearing) = mpsc::channel(16);
    let reading = tokio::spawn(async move {
        loop {
            let message = receive::<FromCoordinator>(&mut from).await;
            let is_last = !matches!(message, Ok(Some(_)));
            if said.send(message).await.is_err() || is_last {
                return;
            }
        }
    });
    let mut member = Member::new(welcome, slots, work, leave, out);
    let parted = member.run(&mut hearing, &mut writing).await;
    member.end().await;
    reading.abort();
    drop(member);
    // What was said last is sent.
    if !writing.is_finished() {
        let _ = tokio::time::timeout(Duration::from_secs(1), &mut writing).await;
    }
    writing.abort();
    Ok(parted)
}

fn unreachable(address: &str, cause: &std::io::Error) -> Error {
    let error = Error::transient(format!("no coordinator answers at {address}")).cause(cause);
    match cause.kind() {
        std::io::ErrorKind::InvalidData => error.hint("do both machines have the same secret of the cluster?"),
        _ => error,
    }
}

/// Writes what the worker says, and that it is there.
async fn write(
    mut to: impl AsyncWrite + Unpin,
    mut messages: mpsc::UnboundedReceiver<FromWorker>,
    beat: Duration,
) -> String {
    let mut beats = tokio::time::interval(beat);
    loop {
        let message = tokio::select! {
            message = messages.recv() => match message {
                Some(message) => message,
                None => break,
            },
            _ = beats.tick() => FromWorker::Beat,
        };
        if let Err(cause) = send(&mut to, &message).await {
            return cause.to_string();
        }
    }
    let _ = to.shutdown().await;
    "it has ended".to_owned()
}

/// A worker that has joined.
struct Member {
    number: Worker,
    slots: u64,
    patience: Duration,
    connection: Arc<Connection>,
    leave: watch::Receiver<bool>,
    is_leaving: bool,
    /// Getting ready.
    beginning: JoinSet<Result<Arc<dyn ReadBundle>>>,
    reads: Option<Arc<dyn ReadBundle>>,
    bundles: JoinSet<()>,
}

impl Member {
    fn new(
        welcome: Welcome,
        slots: u64,
        work: Arc<dyn Work>,
        leave: watch::Receiver<bool>,
        out: mpsc::UnboundedSender<FromWorker>,
    ) -> Self {
        let Welcome { worker, task, patience, .. } = welcome;
        let mut beginning = JoinSet::new();
        beginning.spawn(async move { work.begin(worker, task).await });
        Member {
            number: worker,
            slots,
            patience: Duration::from_millis(patience),
            connection: Arc::new(Connection {
                out,
                next: AtomicU64::new(1),
                kept: Mutex::new(Some(HashMap::new())),
                stops: Mutex::default(),
            }),
            leave,
            is_leaving: false,
            beginning,
            reads: None,
            bundles: JoinSet::new(),
        }
    }

    fn say(&self, what: FromWorker) {
        let _ = self.connection.out.send(what);
    }

    async fn run(
        &mut self,
        hearing: &mut mpsc::Receiver<std::io::Result<Option<FromCoordinator>>>,
        writing: &mut tokio::task::JoinHandle<String>,
    ) -> Parted {
        let (mut heard, mut leave) = (Instant::now(), self.leave.clone());
        loop {
            let silent = self.patience.saturating_sub(heard.elapsed());
            tokio::select! {
                message = hearing.recv() => {
                    heard = Instant::now();
                    match message {
                        Some(Ok(Some(message))) => if let Some(parted) = self.hear(message) {
                            return parted;
                        },
                        Some(Ok(None)) | None => {
                            return Parted::Lost("the coordinator has closed the connection".to_owned());
                        }
                        Some(Err(cause)) => return Parted::Lost(cause.to_string()),
                    }
                }
                Some(begun) = self.beginning.join_next() => if let Err(error) = self.begin(begun) {
                    return Parted::Refused(error);
                },
                Some(_) = self.bundles.join_next() => {}
                () = is_true(&mut leave), if !self.is_leaving => {
                    // What the coordinator has handed out meanwhile is done, too: it says when there is nothing.
                    self.is_leaving = true;
                    self.say(FromWorker::Leaving);
                }
                why = &mut *writing => {
                    let last = tokio::time::timeout(LAST_WORDS, self.hear_last(hearing)).await.ok().flatten();
                    return last.unwrap_or_else(|| Parted::Lost(why.unwrap_or_default()));
                }
                () = tokio::time::sleep(silent) => {
                    return Parted::Lost(format!("the coordinator was silent for {} s", self.patience.as_secs()));
                }
            }
        }
    }

    /// What the coordinator has said before it closed the connection, if that tells how the worker has parted.
    async fn hear_last(
        &mut self,
        hearing: &mut mpsc::Receiver<std::io::Result<Option<FromCoordinator>>>,
    ) -> Option<Parted> {
        while let Some(Ok(Some(message))) = hearing.recv().await {
            if let Some(parted) = self.hear(message) {
                return Some(parted);
            }
        }
        None
    }

    fn begin(&mut self, begun: Result<Result<Arc<dyn ReadBundle>>, tokio::task::JoinError>) -> Result<()> {
        let begun = begun.unwrap_or_else(|join| Err(Error::internal("a task failed").cause(join)));
        match begun {
            Ok(reads) => {
                self.reads = Some(reads);
                self.say(FromWorker::Ready(None));
                (0..self.slots).for_each(|_| self.say(FromWorker::Ask));
                Ok(())
            }
            Err(error) => {
                self.say(FromWorker::Ready(Some(SentError::from(&error))));
                Err(error)
            }
        }
    }

    /// How it has parted, if there is nothing more to do.
    fn hear(&mut self, message: FromCoordinator) -> Option<Parted> {
        match message {
            FromCoordinator::Welcome(_) | FromCoordinator::Beat => {}
            FromCoordinator::Refused(error) => return Some(Parted::Refused(error.into())),
            FromCoordinator::Read(bundle, to_read) => self.read(bundle, to_read),
            FromCoordinator::Kept(number, error) => {
                let waits = locked(&self.connection.kept).as_mut().and_then(|kept| kept.remove(&number));
                waits.into_iter().for_each(|waits| drop(waits.send(error.clone())));
            }
            FromCoordinator::Stop(bundle) => {
                if let Some(stop) = locked(&self.connection.stops).get(&bundle) {
                    stop.send_replace(true);
                }
            }
            FromCoordinator::Finished => return Some(Parted::Well),
            FromCoordinator::Failed(why) => return Some(Parted::Failed(why)),
        }
        None
    }

    fn read(&mut self, bundle: Bundle, to_read: ToRead) {
        let Some(reads) = self.reads.clone() else { return };
        let (stop, stopped) = watch::channel(false);
        locked(&self.connection.stops).insert(bundle, stop);
        let connection = Arc::clone(&self.connection);
        let (leave, link) = (self.leave.clone(), Link { bundle, connection: Arc::clone(&connection), stopped });
        self.bundles.spawn(async move {
            let (own, is_stopped) = (link.clone(), link.stopped.clone());
            let done = reads.read(to_read, own).await;
            locked(&connection.stops).remove(&bundle);
            let answer = match done {
                _ if *is_stopped.borrow() => None,
                Ok(outcome) => Some(FromWorker::Done(bundle, outcome)),
                Err(errors) => Some(FromWorker::Failed(bundle, errors.iter().map(SentError::from).collect())),
            };
            answer.into_iter().for_each(|answer| drop(connection.out.send(answer)));
            if !*leave.borrow() {
                let _ = connection.out.send(FromWorker::Ask);
            }
        });
    }

    /// Ends all bundles, and waits until they have ended.
    async fn end(&mut self) {
        for stop in locked(&self.connection.stops).values() {
            stop.send_replace(true);
        }
        *locked(&self.connection.kept) = None;
        while self.bundles.join_next().await.is_some() {}
        self.beginning.abort_all();
    }
}

/// Returns when it is true.
async fn is_true(value: &mut watch::Receiver<bool>) {
    if value.wait_for(|value| *value).await.is_err() {
        // It stays as it is.
        std::future::pending::<()>().await;
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member").field("number", &self.number).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
