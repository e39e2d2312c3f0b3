//! The coordinator: lets workers join, hands out bundles, and hears of what becomes of them.
//!
//! ```text
//!  connections ── what each worker says ──▶ Coordination ── who reads what ──▶ Leases
//!       ▲                                       │  ▲
//!       └──────── units, answers ───────────────┘  └── kept, counted, fenced ── Load
//! ```
//! One task decides everything, one thing after the other. A worker that has closed its connection, or was silent for
//! too long, is lost: its bundles are read again once [`Load::lose`] has seen to it that it commits nothing any more.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use millstream_core::{Error, ErrorKind, Result};
use serde_json::Value;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::identity::Identity;
use crate::leases::{Answer, Bundle, Counts, Deadly, Done, Leases, Listed, Worker};
use crate::pool::ListedUnit;
use crate::wire::{FromCoordinator, FromWorker, Hello, PROTOCOL, SentError, ToRead, Welcome, receive, send};

/// How long a stranger may take to show that it is none.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How many connections may be about to show the secret.
const MOST_STRANGERS: usize = 256;

/// Of how many addresses it is said that they have not shown it.
const MOST_TOLD: usize = 100;

/// The time between two looks at what takes long.
const LOOK: Duration = Duration::from_millis(200);

/// The most bundles that a worker reads at once.
const MOST_SLOTS: u64 = 1024;

/// How long workers are waited for to hear that nothing is left.
const LONGEST_GOODBYE: Duration = Duration::from_secs(2);

/// The most that the clock of a worker may differ, in milliseconds: with more, stores refuse what it signs.
const MOST_SKEW: i64 = 60_000;

/// What a load does about its workers.
#[async_trait]
pub trait Load: Send + Sync {
    /// Keeps what a worker is about to commit.
    ///
    /// # Errors
    /// If the run ends for it.
    async fn keep(&self, worker: Worker, what: Value) -> Result<()>;

    /// A worker tells something about a bundle.
    ///
    /// # Errors
    /// If the run ends for it.
    fn tell(&self, worker: Worker, told: Value) -> Result<()>;

    /// A bundle is done and counts, with this outcome.
    ///
    /// # Errors
    /// If the run ends for it.
    async fn count(&self, worker: Worker, outcome: Value) -> Result<()>;

    /// A bundle is done and does not count: another worker was first.
    async fn discard(&self, _outcome: Value) {}

    /// Sees to it that a lost worker commits nothing any more. Never fails: where that is not possible, it waits as
    /// long as it makes sense.
    async fn lose(&self, worker: Worker);

    /// The error of a unit over which workers were lost.
    fn deadly(&self, unit: &ListedUnit) -> Error;

    /// How things stand.
    fn see(&self, seen: Seen);
}

/// What the coordinator reports.
#[derive(Debug, Clone)]
pub enum Seen {
    /// A worker has joined.
    Joined(Worker, Hello),
    /// A worker cannot join.
    Refused(String, Error),
    /// A worker has left, as it had said.
    Left(Worker),
    /// A worker is lost, for this reason; so many of its bundles are read again.
    Lost(Worker, String, usize),
    /// How far all are.
    Standing(Standing),
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Standing {
    /// What was listed.
    pub listed: Listed,
    /// What is done.
    pub done: Done,
    /// How many bundles are being read.
    pub reading: usize,
    /// How many workers there are.
    pub workers: usize,
}

/// What a coordinator goes by.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The version that all workers must have.
    pub version: String,
    /// How often each side says that it is there.
    pub beat: Duration,
    /// After how long without a word a worker is lost.
    pub patience: Duration,
    /// How long the run waits for a worker if there is none; for ever without.
    pub wait: Option<Duration>,
}

/// Where workers join.
pub struct Listening {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    address: SocketAddr,
}

impl Listening {
    /// Listens at `address`, such as `0.0.0.0:7447`, for workers that have the secret.
    ///
    /// # Errors
    /// If nobody can listen there.
    pub async fn at(address: &str, identity: &Identity) -> Result<Self> {
        let cannot = |cause: std::io::Error| {
            Error::io(format!("the coordinator cannot listen at {address}"), &cause)
                .hint("name another address with `--listen`; does another run coordinate workers there?")
        };
        let listener = TcpListener::bind(address).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        Ok(Listening { listener, acceptor: identity.acceptor()?, address })
    }

    /// The address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// How the work of workers has ended.
#[derive(Debug)]
pub enum Outcome {
    /// All units are read.
    Finished,
    /// There was no worker for too long: these units are not read.
    Alone(Left),
}

/// Units that workers have not read.
#[derive(Debug)]
pub struct Left(Box<Leases>);

impl Left {
    /// All of them.
    ///
    /// # Errors
    /// If what was packed cannot be unpacked.
    pub fn units(self) -> std::io::Result<Vec<ListedUnit>> {
        self.0.into_left()
    }
}

/// Lets workers do `task` with all `units` that come, until nothing is left. Dropped, it cuts all connections, and
/// workers end what they are at.
///
/// # Errors
/// Those of workers that end the run, and those of `load`.
pub async fn coordinate(
    listening: Listening,
    task: Value,
    settings: Settings,
    units: mpsc::Receiver<ListedUnit>,
    load: Arc<dyn Load>,
) -> Result<Outcome, Vec<Error>> {
    let (sender, events) = mpsc::channel(1024);
    let mut tasks = JoinSet::new();
    tasks.spawn(accept(listening, sender));
    let coordination = Coordination {
        task,
        settings,
        load,
        leases: Leases::default(),
        began: Instant::now(),
        members: BTreeMap::new(),
        asking: VecDeque::new(),
        losing: JoinSet::new(),
        lost: HashMap::new(),
        sent_away: HashMap::new(),
        strangers: HashSet::new(),
        alone_since: Some(Instant::now()),
        next: 1,
        attempts: 0,
        shares: BTreeMap::new(),
        refused: HashMap::new(),
    };
    coordination.run(units, events).await
}

/// What happens at a connection.
enum Event {
    /// Somebody at this address has not shown the secret.
    Stranger(IpAddr, std::io::Error),
    /// A worker wants to join.
    Hello(Hello, mpsc::UnboundedSender<FromCoordinator>, mpsc::Sender<Worker>),
    /// It says something.
    Says(Worker, FromWorker),
    /// Its connection has ended.
    Gone(Worker, String),
}

/// Lets connections in that show the secret.
async fn accept(listening: Listening, events: mpsc::Sender<Event>) {
    let (mut connections, entering) = (JoinSet::new(), Arc::new(Semaphore::new(MOST_STRANGERS)));
    let next = async || {
        let place = Arc::clone(&entering).acquire_owned().await.map_err(std::io::Error::other)?;
        let (stream, from) = listening.listener.accept().await?;
        std::io::Result::Ok((place, stream, from.ip()))
    };
    loop {
        tokio::select! {
            accepted = next() => match accepted {
                Ok((place, stream, from)) => {
                    let (acceptor, events) = (listening.acceptor.clone(), events.clone());
                    connections.spawn(async move {
                        let Some((hello, from, to)) = enter(stream, from, acceptor, &events).await else { return };
                        drop(place);
                        connection(hello, from, to, events).await;
                    });
                }
                // No file for one more: others may end.
                Err(_) => tokio::time::sleep(LOOK).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

type Secured = tokio_rustls::server::TlsStream<TcpStream>;

/// Lets a connection in, if it shows the secret and says what it is.
async fn enter(
    stream: TcpStream,
    from: IpAddr,
    acceptor: TlsAcceptor,
    events: &mpsc::Sender<Event>,
) -> Option<(Hello, ReadHalf<Secured>, WriteHalf<Secured>)> {
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await.ok()? {
        Ok(stream) => stream,
        Err(cause) => {
            // One that has only looked whether somebody listens has closed the connection.
            if cause.kind() == std::io::ErrorKind::InvalidData {
                let _ = events.send(Event::Stranger(from, cause)).await;
            }
            return None;
        }
    };
    let (mut from, to) = tokio::io::split(stream);
    match tokio::time::timeout(HANDSHAKE, receive(&mut from)).await {
        Ok(Ok(Some(FromWorker::Hello(hello)))) => Some((hello, from, to)),
        _ => None,
    }
}

/// Brings what a worker says to the coordination, and its answers to the worker.
async fn connection(
    hello: Hello,
    mut from: ReadHalf<Secured>,
    mut to: WriteHalf<Secured>,
    events: mpsc::Sender<Event>,
) {
    let (answers, mut answered) = mpsc::unbounded_channel::<FromCoordinator>();
    let (joined, mut number) = mpsc::channel(1);
    if events.send(Event::Hello(hello, answers, joined)).await.is_err() {
        return;
    }
    let sending = async {
        while let Some(answer) = answered.recv().await {
            if let Err(cause) = send(&mut to, &answer).await {
                return cause.to_string();
            }
        }
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut to).await;
        "it was sent away".to_owned()
    };
    tokio::pin!(sending);
    let worker = tokio::select! {
        number = number.recv() => number,
        // It was refused, and has been told why.
        _ = &mut sending => return,
    };
    let Some(worker) = worker else {
        // What is said to one that is refused is sent.
        let _ = tokio::time::timeout(HANDSHAKE, sending).await;
        return;
    };
    let receiving = async {
        loop {
            match receive(&mut from).await {
                Ok(Some(said)) => drop(events.send(Event::Says(worker, said)).await),
                Ok(None) => return "it has closed the connection".to_owned(),
                Err(cause) => return cause.to_string(),
            }
        }
    };
    let why = tokio::select! {
        why = receiving => why,
        why = sending => why,
    };
    let _ = events.send(Event::Gone(worker, why)).await;
}

/// A worker.
struct Member {
    hello: Hello,
    answers: mpsc::UnboundedSender<FromCoordinator>,
    heard: Instant,
    /// Whether it has its task and can work.
    is_ready: bool,
    is_leaving: bool,
}

impl Member {
    fn can_work(&self) -> bool {
        self.is_ready && !self.is_leaving
    }
}

/// Who reads what, as it goes.
struct Coordination {
    task: Value,
    settings: Settings,
    load: Arc<dyn Load>,
    leases: Leases,
    began: Instant,
    members: BTreeMap<Worker, Member>,
    /// Workers with free slots, each once for a slot.
    asking: VecDeque<Worker>,
    /// Lost workers, until they commit nothing any more.
    losing: JoinSet<Worker>,
    /// Workers that were lost, by their names, until they come back.
    lost: HashMap<String, Vec<Worker>>,
    /// Workers that have failed where others may not, by their names: they do not come back.
    sent_away: HashMap<String, Error>,
    /// Who has not shown the secret.
    strangers: HashSet<IpAddr>,
    /// Since when there is no worker.
    alone_since: Option<Instant>,
    next: Worker,
    /// How many times a bundle was handed out.
    attempts: u64,
    /// Among how many the limits of the job were divided when a bundle was handed out that is still read.
    shares: BTreeMap<(Worker, Bundle), u64>,
    /// Workers of which it was said that they cannot join, and why.
    refused: HashMap<String, String>,
}

impl Coordination {
    async fn run(
        mut self,
        mut units: mpsc::Receiver<ListedUnit>,
        mut events: mpsc::Receiver<Event>,
    ) -> Result<Outcome, Vec<Error>> {
        match self.coordinate(&mut units, &mut events).await {
            Ok(true) => {
                self.report();
                self.part(&mut events, || FromCoordinator::Finished).await;
                Ok(Outcome::Finished)
            }
            Ok(false) => Ok(Outcome::Alone(Left(Box::new(self.leases)))),
            Err(errors) => {
                let why = errors.first().map_or(String::new(), Error::to_string);
                self.part(&mut events, || FromCoordinator::Failed(why.clone())).await;
                Err(errors)
            }
        }
    }

    /// Returns whether all units are read; `false` if there was no worker for too long.
    async fn coordinate(
        &mut self,
        units: &mut mpsc::Receiver<ListedUnit>,
        events: &mut mpsc::Receiver<Event>,
    ) -> Result<bool, Vec<Error>> {
        let mut looks = tokio::time::interval(LOOK);
        let mut beats = tokio::time::interval(self.settings.beat);
        let mut listing = true;
        while !(self.leases.is_finished() && self.losing.is_empty()) {
            tokio::select! {
                biased;
                // After a stall, those who have spoken meanwhile were not silent.
                Some(event) = events.recv() => self.hear(event).await?,
                unit = units.recv(), if listing => match unit {
                    Some(unit) => self.leases.add(unit).map_err(unpacked)?,
                    None => {
                        listing = false;
                        self.leases.all_listed();
                    }
                },
                Some(lost) = self.losing.join_next() => {
                    if let Ok(worker) = lost {
                        self.leases.lose(worker, self.now());
                        self.welcome_back();
                    }
                }
                _ = beats.tick() => self.say_to_all(|| FromCoordinator::Beat),
                _ = looks.tick() => {
                    self.look();
                    let patience = u64::try_from(self.settings.patience.as_millis()).unwrap_or(u64::MAX);
                    let judged = self.leases.judge(self.now(), patience);
                    judged.map_err(|Deadly(unit)| vec![self.load.deadly(&unit)])?;
                    if self.is_alone_for_too_long() {
                        units.close();
                        while let Some(unit) = units.recv().await {
                            self.leases.add(unit).map_err(unpacked)?;
                        }
                        return Ok(false);
                    }
                }
            }
            self.hand_out()?;
        }
        Ok(true)
    }

    /// Says to all workers how it ends. Their connections end when they have heard it.
    async fn part(&mut self, events: &mut mpsc::Receiver<Event>, how: impl Fn() -> FromCoordinator) {
        self.say_to_all(how);
        let patience = self.settings.beat.min(LONGEST_GOODBYE);
        let until = tokio::time::sleep(patience);
        tokio::pin!(until);
        while !self.members.is_empty() {
            tokio::select! {
                event = events.recv() => if let Some(Event::Gone(worker, _)) = event {
                    self.members.remove(&worker);
                },
                () = &mut until => break,
            }
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn say(&self, worker: Worker, what: FromCoordinator) {
        // One that is gone is heard of.
        if let Some(member) = self.members.get(&worker) {
            let _ = member.answers.send(what);
        }
    }

    fn say_to_all(&self, what: impl Fn() -> FromCoordinator) {
        self.members.values().for_each(|member| drop(member.answers.send(what())));
    }

    async fn hear(&mut self, event: Event) -> Result<(), Vec<Error>> {
        match event {
            Event::Hello(hello, answers, joined) => self.welcome(hello, answers, &joined),
            Event::Gone(worker, why) => self.lose(worker, why),
            Event::Stranger(from, cause) => {
                if self.strangers.len() < MOST_TOLD && self.strangers.insert(from) {
                    let error = Error::refused("it does not have the secret of this cluster").cause(cause);
                    let error = error.hint("a worker needs the same file: copy it, or name it with `--secret`");
                    self.load.see(Seen::Refused(from.to_string(), error));
                }
            }
            Event::Says(worker, said) => match (self.members.get_mut(&worker), said) {
                (Some(member), said) => {
                    member.heard = Instant::now();
                    self.hear_of(worker, said).await?;
                }
                (None, FromWorker::Done(_, outcome)) => self.load.discard(outcome).await,
                (None, _) => {}
            },
        }
        Ok(())
    }

    async fn hear_of(&mut self, worker: Worker, said: FromWorker) -> Result<(), Vec<Error>> {
        match said {
            FromWorker::Hello(_) | FromWorker::Beat => {}
            FromWorker::Ready(None) => self.ready(worker),
            FromWorker::Ready(Some(error)) => {
                if let Some(member) = self.members.remove(&worker) {
                    self.refuse(member.hello.name(), error.into());
                }
            }
            FromWorker::Ask => self.asking.push_back(worker),
            FromWorker::Reading(bundle, reading) => self.leases.reading(worker, bundle, reading),
            FromWorker::Keep(bundle, number, what) => {
                let kept = match self.leases.may_commit(worker, bundle) {
                    true => self.load.keep(worker, what).await,
                    false => Err(Error::refused("another worker reads the files of this one")),
                };
                self.say(worker, FromCoordinator::Kept(number, kept.as_ref().err().map(SentError::from)));
                if self.leases.may_commit(worker, bundle) {
                    kept.map_err(|error| vec![error])?;
                }
            }
            FromWorker::Done(bundle, outcome) => match self.leases.end(worker, bundle, self.now()) {
                Counts::Yes { stop } => {
                    stop.into_iter().for_each(|other| self.say(other, FromCoordinator::Stop(bundle)));
                    self.load.count(worker, outcome).await.map_err(|error| vec![error])?;
                }
                Counts::No => self.load.discard(outcome).await,
            },
            FromWorker::Failed(bundle, errors) => {
                if !self.leases.is_alone_at(worker, bundle) {
                    // Another one is at it, too.
                    self.leases.give_up(worker, bundle);
                    return Ok(());
                }
                let name = self.members.get(&worker).map(|member| member.hello.name()).unwrap_or_default();
                let named = |error: SentError| of_worker(error.into(), &name);
                let errors: Vec<Error> = errors.into_iter().map(named).collect();
                match errors.first() {
                    Some(error) if self.may_be_its_own(worker, bundle, &errors) => {
                        self.send_away(worker, error.clone());
                    }
                    Some(_) => return Err(errors),
                    None => return Err(vec![Error::internal("a worker has failed, and did not say why")]),
                }
            }
            FromWorker::Tells(told) => self.load.tell(worker, told).map_err(|error| vec![error])?,
            FromWorker::Leaving => {
                self.leases.leave(worker);
                if let Some(member) = self.members.get_mut(&worker) {
                    member.is_leaving = true;
                }
                // Its slots ask no more; it ends when it has nothing.
                self.asking.push_back(worker);
            }
        }
        Ok(())
    }

    /// Whether another worker may be able to do what one has failed at: it may have no room or no way to what it
    /// reads. Nobody else has failed at it, or in the same way at the same place, so far.
    fn may_be_its_own(&self, worker: Worker, bundle: Bundle, errors: &[Error]) -> bool {
        let others = self.members.iter().filter(|(other, member)| **other != worker && member.can_work());
        let depends_on_machine =
            |error: &Error| matches!(error.kind(), ErrorKind::Refused | ErrorKind::Transient | ErrorKind::Memory);
        let is_known = |error: &Error| {
            let is_same = |known: &Error| known.what() == error.what() && known.location() == error.location();
            self.sent_away.values().any(is_same)
        };
        others.count() > 0
            && errors.iter().all(|error| depends_on_machine(error) && !is_known(error))
            && !self.leases.is_suspect(bundle)
    }

    /// A worker has failed, and others do what it has.
    fn send_away(&mut self, worker: Worker, error: Error) {
        let Some(member) = self.members.get(&worker) else { return };
        let _ = member.answers.send(FromCoordinator::Refused(SentError::from(&error)));
        let why = format!("it has failed: {error}");
        self.sent_away.insert(member.hello.name(), error);
        self.lose(worker, why);
    }

    /// Says that a worker cannot join, once for each reason: it tries again and again.
    fn refuse(&mut self, worker: String, error: Error) {
        if self.refused.insert(worker.clone(), error.to_string()).as_deref() != Some(&error.to_string()) {
            self.load.see(Seen::Refused(worker, error));
        }
    }

    fn welcome(
        &mut self,
        hello: Hello,
        answers: mpsc::UnboundedSender<FromCoordinator>,
        joined: &mpsc::Sender<Worker>,
    ) {
        if let Some(error) = self.sent_away.get(&hello.name()) {
            let _ = answers.send(FromCoordinator::Refused(SentError::from(error)));
            return;
        }
        if let Err(error) = fits(&hello, &self.settings.version) {
            let _ = answers.send(FromCoordinator::Refused(SentError::from(&error)));
            self.refuse(hello.name(), error);
            return;
        }
        let worker = self.next;
        self.next += 1;
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let welcome = Welcome {
            worker,
            task: self.task.clone(),
            beat: milliseconds(self.settings.beat),
            patience: milliseconds(self.settings.patience),
        };
        let _ = answers.send(FromCoordinator::Welcome(welcome));
        let _ = joined.try_send(worker);
        let member = Member { hello, answers, heard: Instant::now(), is_ready: false, is_leaving: false };
        self.members.insert(worker, member);
    }

    fn ready(&mut self, worker: Worker) {
        let Some(member) = self.members.get_mut(&worker) else { return };
        member.is_ready = true;
        self.leases.join(worker, member.hello.slots.min(MOST_SLOTS));
        self.welcome_back();
        let Some(member) = self.members.get(&worker) else { return };
        self.alone_since = None;
        self.load.see(Seen::Joined(worker, member.hello.clone()));
    }

    /// Those that were lost and are there again were not taken down.
    fn welcome_back(&mut self) {
        for member in self.members.values().filter(|member| member.is_ready) {
            for worker in self.lost.remove(&member.hello.name()).into_iter().flatten() {
                self.leases.comes_back(worker);
            }
        }
    }

    /// A worker has gone: well, or not.
    fn lose(&mut self, worker: Worker, why: String) {
        let Some(member) = self.members.remove(&worker) else { return };
        self.asking.retain(|one| *one != worker);
        if !self.members.values().any(|member| member.is_ready) {
            self.alone_since = Some(Instant::now());
        }
        if !member.is_ready {
            return;
        }
        let holds = self.leases.held_by(worker);
        if holds == 0 && member.is_leaving {
            self.load.see(Seen::Left(worker));
        } else {
            self.lost.entry(member.hello.name()).or_default().push(worker);
            self.load.see(Seen::Lost(worker, why, holds));
        }
        let load = Arc::clone(&self.load);
        self.losing.spawn(async move {
            load.lose(worker).await;
            worker
        });
    }

    /// Looks who was silent for too long, and reports how things stand.
    fn look(&mut self) {
        let patience = self.settings.patience;
        let silent = |(worker, member): (&Worker, &Member)| (member.heard.elapsed() > patience).then_some(*worker);
        let silent: Vec<Worker> = self.members.iter().filter_map(silent).collect();
        for worker in silent {
            self.leases.fall_silent(worker);
            self.lose(worker, format!("it was silent for {} s", patience.as_secs()));
        }
        self.report();
    }

    fn report(&self) {
        let (listed, done, reading) = (self.leases.listed(), self.leases.done(), self.leases.bundles());
        let workers = self.members.values().filter(|member| member.is_ready).count();
        self.load.see(Seen::Standing(Standing { listed, done, reading, workers }));
    }

    fn is_alone_for_too_long(&self) -> bool {
        // One that gets ready is waited for.
        let is_alone = self.losing.is_empty() && self.members.is_empty();
        let waited = self.alone_since.map(|since| since.elapsed()).filter(|_| is_alone);
        waited.zip(self.settings.wait).is_some_and(|(waited, wait)| waited > wait)
    }

    /// How many shall share the limits of the job of which the next bundle is one: as many as all workers read at once.
    /// While bundles are read that were handed out when there were fewer, it gets what these have left.
    fn sharers(&self) -> u64 {
        let working = self.members.values().filter(|member| member.can_work());
        let at_once = working.map(|member| member.hello.slots.clamp(1, MOST_SLOTS)).sum::<u64>().max(1);
        let taken: f64 = self.shares.values().map(|sharers| 1.0 / *sharers as f64).sum();
        let left = (1.0 - taken).max(1.0 / f64::from(u32::MAX));
        at_once.max((1.0 / left - 1e-6).ceil() as u64)
    }

    /// Forgets the shares of bundles that nobody reads any more.
    fn settle_shares(&mut self) {
        let leases = &self.leases;
        self.shares.retain(|(worker, bundle), _| leases.may_commit(*worker, *bundle));
    }

    /// Gives to those who ask.
    fn hand_out(&mut self) -> Result<(), Vec<Error>> {
        if !self.asking.is_empty() {
            self.settle_shares();
        }
        let mut waiting = VecDeque::new();
        while let Some(worker) = self.asking.pop_front() {
            match self.leases.ask(worker, self.now()).map_err(unpacked)? {
                Answer::Read { bundle, units, is_again } => {
                    self.attempts += 1;
                    let at_once = self.sharers();
                    self.shares.insert((worker, bundle), at_once);
                    let to_read = ToRead { attempt: self.attempts, units, is_again, at_once };
                    self.say(worker, FromCoordinator::Read(bundle, to_read));
                }
                Answer::Wait => waiting.push_back(worker),
                Answer::Finished => self.say(worker, FromCoordinator::Finished),
            }
        }
        self.asking = waiting;
        Ok(())
    }
}

fn unpacked(cause: std::io::Error) -> Vec<Error> {
    vec![Error::internal("files that wait cannot be packed").cause(cause)]
}

/// An error with the worker that it is of.
fn of_worker(error: Error, worker: &str) -> Error {
    let cause = match error.cause_text() {
        Some(cause) => format!("{cause}\non the worker {worker}"),
        None => format!("on the worker {worker}"),
    };
    error.cause(cause)
}

/// Whether a worker may join.
fn fits(hello: &Hello, version: &str) -> Result<()> {
    if hello.protocol != PROTOCOL || hello.version != version {
        let what = format!("the worker has version {} of Millstream, the coordinator {version}", hello.version);
        return Err(Error::refused(what).hint("install the same version on all machines"));
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let skew = i64::try_from(now.as_millis()).unwrap_or(i64::MAX).saturating_sub(hello.now);
    if skew.abs() > MOST_SKEW {
        let which = if skew > 0 { "behind" } else { "ahead of" };
        let what = format!("the clock of the worker is {} s {which} the coordinator's", skew.abs() / 1_000);
        return Err(Error::refused(what).hint("set the clocks of all machines, by NTP for example"));
    }
    Ok(())
}
