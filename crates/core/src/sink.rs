//! The sink traits: batches to a target, in two phases, so that a job with several sinks ends or fails as one.
//!
//! ```text
//!  begin ─▶ writer 0 ─ write … ─ close ─┐
//!        ─▶ writer 1 ─ write … ─ close ─┼─▶ prepare ─▶ commit
//!                                       └─▶ abort
//! ```
//! Nothing is visible under its final name before `commit`. All that can fail is done by the end of `prepare`.
//!
//! A target that keeps a [`Ledger`] can also take rows piece by piece, each piece exactly once however many runs it
//! takes:
//!
//! ```text
//!  ledger ─▶ done: what earlier runs have written
//!         ─▶ delivery of chunks ─ write … ─ commit ─▶ written, or already done by someone else
//!         ─▶ forget: the load is complete, or given up
//! ```
//!
//! A [`StagedLoad`] is both: chunks are delivered into a staging table, and `prepare` and `commit` make its rows
//! visible.

use std::any::Any;
use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::codec::Codec;
pub use crate::delivery::{Accept, Changes, Chunk, Delivered, Delivery, Refused, RefusedRow, SHOWN_BAD_ROWS};
use crate::epochs::{EpochTarget, Guarantee, QueueFacts, QueueLoad};
use crate::format::Format;
use crate::positions::Positions;
use crate::program::ProgramContext;
use crate::source::{SourceContext, TableName};
use crate::store::Store;
use crate::{Budget, Error, Result, Step};

/// Which of several files a row goes to. The engine evaluates `expression` and appends its result to every batch as
/// last column, named [`ROUTE`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routing {
    /// A SQL expression over the columns of the sink's input.
    pub expression: String,
    /// What its value means.
    pub kind: RoutingKind,
}

/// What the value of a routing expression means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoutingKind {
    /// Shard = hash of the value mod N; the engine hands over the shard's number (`UInt32`).
    Hash(u32),
    /// Shard = value mod N, never negative; the value is an integer. Handed over as `UInt32`.
    Mod(u32),
    /// One file per value, handed over as text (`Utf8View`, may be null).
    Value,
}

/// The name of the column that carries the route.
pub const ROUTE: &str = "_route";

/// The name of the column that numbers rows as they arrive: in a staging table, and in rows that are delivered to the
/// ledger of a [`StagedLoad`], as last column (`Int64`, never null).
pub const ARRIVAL: &str = "_millstream_arrival";

/// What a sink is told when it begins.
#[derive(Debug, Clone)]
pub struct LoadContext {
    /// Names what this run writes before it is committed. Unique for each run.
    pub run: String,
    /// The first run of the resume chain: the run's own name if it resumes no other.
    pub first: String,
    /// The sink's entry in the job file.
    pub sink: String,
    /// The name of the load, under which the target notes in the transaction that makes the rows visible that they are.
    /// A later run then does not add them again. `None` if that does not matter.
    pub marker: Option<String>,
    /// What the target notes in the same transaction beside it, or in its place, if the rows come from units that no
    /// later run is to load again.
    pub notes: Option<Arc<LoadNotes>>,
    /// Whether a load that another run has begun may be taken over from it: its connections are ended then, so that
    /// nothing of it can commit, or keep others waiting. Otherwise a load whose run still has connections is refused.
    pub take_over: bool,
    /// The part of a worker of a cluster in the load that `run` has begun: it leaves it to that to begin, to complete
    /// and to forget it. `None` for the run itself.
    pub worker: Option<WorkerPart>,
    /// The columns, without the route.
    pub schema: SchemaRef,
    /// How many writers there will be.
    pub partitions: usize,
    /// Whether the rows arrive in an order that the user asked for (then there is one writer).
    pub ordered: bool,
    /// Network and timers run here, never on the workers that encode.
    pub io: tokio::runtime::Handle,
    /// The folder for what does not fit in memory.
    pub scratch: PathBuf,
    /// What programs are started with.
    pub programs: Arc<ProgramContext>,
    /// Buffers are charged here.
    pub budget: Arc<Budget>,
    /// The sink counts what it writes here: bytes as they go out, time busy (encoding) and waiting for the target.
    /// Rows are counted by the engine.
    pub step: Arc<Step>,
    /// Who decides about rows that the target does not take; `None` if each of them ends the load. Batches may then
    /// have more columns than `schema`: these are not written, but come back with a row that is refused.
    pub refusals: Option<Arc<dyn Refusals>>,
}

/// What a worker of a cluster keeps of a part that is done for the next one: connections that took long to open. Its
/// sinks have put it there, each under its name.
#[derive(Clone, Default)]
pub struct Kept(Arc<Mutex<Vec<KeptByName>>>);

type KeptByName = (String, Box<dyn Any + Send>);

impl Kept {
    /// Keeps `what` for the sink `name`.
    pub fn give<T: Send + 'static>(&self, name: &str, what: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((name.to_owned(), Box::new(what)));
    }

    /// What the sink `name` has kept last, if that is a `T`.
    pub fn take<T: Send + 'static>(&self, name: &str) -> Option<T> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().rposition(|(of, what)| of == name && what.is::<T>())?;
        kept.remove(at).1.downcast().ok().map(|what| *what)
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

/// The part that a worker of a cluster has in a load.
#[derive(Debug, Clone)]
pub struct WorkerPart {
    /// Its number among all workers of the run.
    pub worker: u64,
    /// The number of what it writes now among all that workers of the run have tried to write, from 1.
    pub attempt: u64,
    /// How many parts all workers write at once, for which limits of the job hold together.
    pub at_once: u64,
    /// What is kept between its parts.
    pub kept: Kept,
}

impl WorkerPart {
    /// What it has of a limit of the job: at least one.
    pub fn of_limit(&self, limit: usize) -> usize {
        (limit / usize::try_from(self.at_once).unwrap_or(usize::MAX).max(1)).max(1)
    }
}

/// How workers of a cluster write into a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromWorkers {
    /// They do not, for this reason, in words that end a sentence.
    Nothing(String),
    /// They deliver chunks into one ledger.
    Chunks,
    /// They write files of their own, which the load of the run [adopts](Load::adopt). All machines must see
    /// this folder, if there is one.
    Files(Option<PathBuf>),
}

/// What a load that becomes visible all at once notes of its units, in the transaction that makes its rows visible. The
/// notes belong to a load of all runs, whose name is that of the ledger in which loads chunk by chunk of the same
/// sources note their chunks.
#[derive(Debug)]
pub struct LoadNotes {
    /// The name of that load.
    pub load: String,
    noted: Mutex<Noted>,
}

/// The unit under which a load of all runs notes that units of it were forgotten: the times at which that was done, in
/// milliseconds since 1970. A run that has looked at the notes before may write nothing afterwards.
pub const FORGOTTEN: &str = "\nforgotten";

/// Says by what is noted for a load which notes come to it, and which go.
pub type ChangeNotes = Arc<dyn Fn(&WrittenChunks) -> Result<Noted> + Send + Sync>;

/// What a load notes, and which notes that replaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Noted {
    /// What it notes.
    pub chunks: Vec<Chunk>,
    /// Notes that it takes back. Each of them must be there: otherwise another load has been faster.
    pub replaced: Vec<Chunk>,
}

impl Noted {
    /// Whether there is nothing to note and nothing to take back.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.replaced.is_empty()
    }

    /// The same in order, each once: recording chunks in one order prevents deadlocks.
    pub fn sorted(mut self) -> Self {
        for chunks in [&mut self.chunks, &mut self.replaced] {
            chunks.sort();
            chunks.dedup();
        }
        self
    }
}

impl From<Vec<Chunk>> for Noted {
    fn from(chunks: Vec<Chunk>) -> Self {
        Noted { chunks, replaced: Vec::new() }
    }
}

impl LoadNotes {
    /// For the load `load`, with nothing to note yet.
    pub fn new(load: &str) -> Self {
        LoadNotes { load: load.to_owned(), noted: Mutex::default() }
    }

    /// Notes `noted`. Call it before [`Load::prepare`].
    pub fn set(&self, noted: impl Into<Noted>) {
        *self.noted.lock().unwrap_or_else(PoisonError::into_inner) = noted.into().sorted();
    }

    /// What there is to note, in order.
    pub fn chunks(&self) -> Vec<Chunk> {
        self.noted().chunks
    }

    /// What there is to note and to take back, in order.
    pub fn noted(&self) -> Noted {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl LoadContext {
    /// When the first run of the resume chain began, in milliseconds since 1970: its name begins with that. Now, if it
    /// does not.
    pub fn began(&self) -> u64 {
        let named = self.first.split('-').next().and_then(|time| time.parse().ok());
        let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        named.unwrap_or_else(|| u64::try_from(now().as_millis()).unwrap_or(u64::MAX))
    }
}

/// What is known of a load's input when all of it has come, and nothing is visible yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InputFacts {
    /// Records and rows that were rejected on the way to the sink.
    pub rejected: u64,
    /// Units that could not be opened and were left out.
    pub skipped_units: u64,
    /// Files that are not ready and are left for a later run.
    pub not_ready: u64,
}

/// Decides about rows that a target does not take.
pub trait Refusals: Debug + Send + Sync {
    /// How many more rows may be refused when `coming` more rows have come.
    fn room(&self, coming: u64) -> usize;

    /// Takes note of rows that are left out. An error ends the load.
    fn refuse(&self, place: &str, refused: &Refused) -> Result<()>;
}

/// What a sink writes, as far as its settings tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// Rows of a table.
    Table {
        /// The table.
        table: TableName,
        /// Whether the rows come into it beside those that a reader sees only if the sink leaves rows out: otherwise
        /// they appear with the end of the load, in place of the others.
        with_rejects: bool,
    },
    /// An object of this URL.
    Object(String),
    /// Files of this machine. Their names have the placeholders `{shard}`, `{part}`, `{run}` and `{value}`.
    Files {
        /// The path with its placeholders.
        template: String,
        /// How many shards there are.
        shards: u64,
    },
}

/// A target for rows.
#[async_trait]
pub trait Sink: Debug + Send + Sync {
    /// What it is called in reports: `file`, `sqlite`.
    fn name(&self) -> &'static str;

    /// The target, with passwords left out: a path or URL.
    fn target(&self) -> String;

    /// What a writer waits for, as the report says it: `disk`, `standard output`.
    fn medium(&self) -> &'static str {
        self.name()
    }

    /// What a source of the same job must not read, since its next run would read its own result.
    fn writes(&self) -> Vec<Written> {
        Vec::new()
    }

    /// Whether several sinks of a job may have its target, since what one writes there does not meet the rows of
    /// another.
    fn is_shareable(&self) -> bool {
        false
    }

    /// Whether others see rows as they come, before the load is committed.
    fn shows_rows_early(&self) -> bool {
        false
    }

    /// How rows are spread over files, if they are.
    fn routing(&self) -> Option<Routing> {
        None
    }

    /// Compares `schema` with the target as it stands and changes nothing: all that would keep the load from
    /// succeeding, at once.
    async fn check(&self, schema: SchemaRef) -> Result<(), Vec<crate::Error>>;

    /// Asks a target behind a network whether it would take the load, and changes nothing there. What needs no network
    /// is [`Sink::check`]'s. `resumes` is the first run of the resume chain, if there is one: its results may be
    /// replaced.
    async fn reach(&self, _context: &SourceContext, _resumes: Option<&str>) -> Result<(), Vec<crate::Error>> {
        Ok(())
    }

    /// Finishes what a run that died had committed, so that [`Sink::reach`] sees the target as it will be; whether
    /// there was something to finish.
    async fn recover(&self, _context: &SourceContext, _resumes: Option<&str>) -> Result<bool> {
        Ok(false)
    }

    /// The run has ended, and cannot be resumed any more: removes what was kept for that. `first` is the first run of
    /// its resume chain.
    async fn settle(&self, _context: &SourceContext, _first: &str) -> Result<()> {
        Ok(())
    }

    /// What it would do, in a line or a statement for `explain`.
    fn describe(&self, schema: SchemaRef) -> String;

    /// Begins a load.
    async fn begin(&self, context: LoadContext) -> Result<Arc<dyn Load>>;

    /// Whether rows that are loaded twice are there twice.
    fn adds_rows(&self) -> bool {
        false
    }

    /// Whether a load that goes all at once leaves a commit marker, by which a resumed run knows that its rows are
    /// there.
    fn leaves_marker(&self) -> bool {
        self.adds_rows()
    }

    /// All loads that have something in the target's ledger, if there is one; nothing is made for that.
    async fn known_loads(&self, _context: LoadContext) -> Result<Vec<KnownLoad>> {
        Ok(Vec::new())
    }

    /// Forgets what was noted for [`LoadContext::marker`]; with `unwritten` only if the rows are not there. What
    /// another run has taken over stays, unless the context says to take it over.
    async fn forget_marker(&self, _marker: &str, _context: LoadContext, _unwritten: bool) -> Result<()> {
        Ok(())
    }

    /// Whether it may have a ledger, as far as its settings say.
    fn may_keep_ledger(&self) -> bool {
        false
    }

    /// How the workers of a cluster write into it, as far as its settings say.
    fn takes_of_workers(&self) -> FromWorkers {
        FromWorkers::Nothing("workers cannot write into it".to_owned())
    }

    /// Whether it can note units with rows that become visible all at once ([`LoadContext::notes`]), as far as its
    /// settings say: rows that are there stay.
    fn may_note_units(&self) -> bool {
        false
    }

    /// What is noted in the target for the load `load`. Nothing is made for that.
    async fn noted(&self, _load: &str, _context: LoadContext) -> Result<WrittenChunks> {
        Ok(WrittenChunks::new([], str::to_owned))
    }

    /// Whether it may keep positions ([`Sink::positions`]), as far as its settings say: those of a table may need all
    /// rows at once.
    fn may_keep_positions(&self) -> bool {
        false
    }

    /// Where the readers of queues stand whose rows the sink takes, for the load `load`, which many processes share;
    /// `owner` is the name of this one, at most 16 letters and digits. `None` if targets of its kind cannot keep
    /// positions; an error if this one cannot, for its settings or the user's rights.
    async fn positions(&self, _load: &str, _owner: &str, _context: LoadContext) -> Result<Option<Arc<dyn Positions>>> {
        Ok(None)
    }

    /// What becomes of a message that its writer has sent twice, which is two messages to the queue; as a sentence
    /// continues: `is there twice`. `None` where that goes without saying.
    fn sent_twice(&self) -> Option<&'static str> {
        None
    }

    /// What holds for the rows of `queue` if it takes their epochs ([`Sink::epochs`]); otherwise why it cannot take
    /// them, in words that end a sentence. As far as its settings say.
    fn guarantee(&self, _queue: &QueueFacts) -> Result<Guarantee, String> {
        match self.may_keep_positions() {
            true => {
                let guarantee = Guarantee::once("its positions move in the transaction of the rows");
                Ok(Guarantee { sent_twice: self.sent_twice(), ..guarantee })
            }
            false => Err("it keeps no positions, in the transaction of the rows".to_owned()),
        }
    }

    /// How it takes the rows of a queue, if its settings allow that; `None` if each epoch is a load of its own
    /// ([`Sink::begin`]).
    async fn epochs(&self, load: &QueueLoad, context: LoadContext) -> Result<Option<EpochTarget>> {
        Ok(self.positions(&load.load, &load.owner, context).await?.map(EpochTarget::Once))
    }

    /// Changes what is noted for the load `load`, which all runs share, in one transaction; nothing if nothing is
    /// noted.
    ///
    /// # Errors
    /// That of `change`; if another run is writing to the load. A run that has begun before commits nothing of it
    /// afterwards.
    async fn change_notes(&self, _load: &str, change: ChangeNotes, _context: LoadContext) -> Result<()> {
        change(&WrittenChunks::new([], str::to_owned)).map(drop)
    }

    /// Whether what rows were added to is not there any more. Asks the target.
    async fn is_gone(&self, _context: &SourceContext) -> Result<bool> {
        Ok(false)
    }

    /// The ledger of the load `load` in the target, for rows that become visible chunk by chunk. `None` if the target
    /// keeps none, or its settings ask for all rows at once. The name says which chunks belong together: those of a
    /// logical run, or of a job's sink for ever; runs that go on with each other's work use the same.
    async fn ledger(&self, _load: &str, _context: LoadContext) -> Result<Option<Arc<dyn Ledger>>> {
        Ok(None)
    }

    /// Whether rows that become visible all at once may come chunk by chunk ([`Sink::staged`]), as far as its settings
    /// say.
    fn may_stage_chunks(&self) -> bool {
        false
    }

    /// The load `load`, whose rows become visible all at once, and come chunk by chunk; what an earlier run has staged
    /// of it is there. `None` if the target cannot do that. The names of all loads of this sink begin with `of_sink`:
    /// what other dead runs have staged for these is dropped.
    async fn staged(&self, _load: &str, _of_sink: &str, _context: LoadContext) -> Result<Option<StagedLoad>> {
        Ok(None)
    }
}

/// A load whose rows are delivered chunk by chunk into a staging table, and become visible all at once. A run that is
/// killed in between leaves them, and another one stages the rest.
#[derive(Clone)]
pub struct StagedLoad {
    /// What is staged. Rows are delivered with the column [`ARRIVAL`].
    pub ledger: Arc<dyn Ledger>,
    /// Makes the staged rows visible. It has no writers.
    pub load: Arc<dyn Load>,
}

/// All chunks that a load has written, as they were when this was asked for.
#[derive(Debug, Clone)]
pub struct WrittenChunks {
    /// The numbers for each unit's key, of which the hash is kept: there may be as many as there are files.
    units: HashMap<u128, Vec<u64>>,
    /// The key of a unit.
    key: fn(&str) -> String,
}

impl WrittenChunks {
    /// Of chunks given as the key of the unit and the number. `key` makes the key of a unit.
    pub fn new(chunks: impl IntoIterator<Item = (String, u64)>, key: fn(&str) -> String) -> Self {
        let mut written = WrittenChunks { units: HashMap::new(), key };
        written.extend(chunks);
        written
    }

    /// Adds some, given as the key of the unit and the number.
    pub fn extend(&mut self, chunks: impl IntoIterator<Item = (String, u64)>) {
        for (unit, number) in chunks {
            let numbers = self.units.entry(hash(&unit)).or_default();
            // They come in order but for those of several pages.
            let at = numbers.partition_point(|known| *known < number);
            numbers.insert(at, number);
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.units.values().map(|numbers| numbers.len() as u64).sum()
    }

    /// How many units have one of this number.
    pub fn count_of(&self, number: u64) -> u64 {
        self.units.values().filter(|numbers| numbers.binary_search(&number).is_ok()).count() as u64
    }

    /// The numbers of those of a unit, in order.
    pub fn of_unit(&self, unit: &str) -> &[u64] {
        if self.units.is_empty() {
            return &[];
        }
        self.units.get(&hash(&(self.key)(unit))).map_or(&[], Vec::as_slice)
    }

    /// Whether `chunk` is one of them.
    pub fn contains(&self, chunk: &Chunk) -> bool {
        self.of_unit(&chunk.unit).binary_search(&chunk.number).is_ok()
    }
}

fn hash(key: &str) -> u128 {
    let half = |which: u8| {
        let mut hasher = DefaultHasher::new();
        (which, key).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

/// What was written, kept in the target and by the same transactions as the rows.
#[async_trait]
pub trait Ledger: Send + Sync {
    /// All chunks of the load that are written.
    async fn written(&self) -> Result<WrittenChunks>;

    /// All chunks of another load that are written.
    async fn written_of(&self, load: &str) -> Result<WrittenChunks>;

    /// Takes all notes of the number `number` back, whatever unit they are of. Who is about to write to the load is
    /// waited for.
    async fn roll_back(&self, number: u64) -> Result<()>;

    /// How many chunks of the load are written, as the target has them now.
    async fn count(&self) -> Result<u64> {
        Ok(self.written().await?.len())
    }

    /// Which of these chunks are written.
    async fn done(&self, chunks: &[Chunk]) -> Result<Vec<Chunk>> {
        let written = self.written().await?;
        Ok(chunks.iter().filter(|chunk| written.contains(chunk)).cloned().collect())
    }

    /// The table, for a message: `table t of mysql://…`.
    fn target(&self) -> String;

    /// Begins to write the rows of some chunks. Up to `bad_rows` rows that the target does not take are left out and
    /// told; with more the delivery fails. Deliveries may run side by side.
    async fn delivery(&self, chunks: Vec<Chunk>, bad_rows: usize) -> Result<Box<dyn Delivery>>;

    /// Replaces the rows of a unit, in one transaction with the notes of both versions. Transient errors say that the
    /// old version is there, or that it can be tried again whichever is.
    async fn replace(&self, _replacement: Replacement) -> Result<Replaced> {
        Err(Error::internal(format!("{} cannot replace rows", self.target())))
    }

    /// The run ends: a delivery that waits for somebody else's lock fails now instead of waiting longer. Whether that
    /// is so; otherwise a delivery may wait for long, and is dropped after a while.
    fn stop_waiting(&self) -> bool {
        false
    }

    /// Drops all chunks of a [`StagedLoad`] and their rows, which nobody has seen.
    async fn begin_anew(&self) -> Result<()> {
        Err(Error::internal(format!("rows of {} cannot be dropped", self.target())))
    }

    /// Ends the connections of a worker that has joined the load, so that what it has not committed is rolled back.
    ///
    /// # Errors
    /// If some of them are still there after a while.
    async fn end_worker(&self, _worker: u64) -> Result<()> {
        Err(Error::internal(format!("workers cannot join a load into {}", self.target())))
    }

    /// How many deliveries the target takes at once.
    fn connections(&self) -> usize {
        1
    }

    /// Forgets a load: it is complete, or nobody will go on with it. Whoever has it still is kept from writing to it. A
    /// ledger that has no other goes with it. An error also says that the empty ledger could not be dropped.
    async fn forget(&self, load: &str) -> Result<()>;

    /// Forgets a load if nothing of it is written; whether it did.
    async fn forget_unwritten(&self, load: &str) -> Result<bool>;

    /// What there is when `rows` were written: "252 rows added to table t".
    fn summary(&self, rows: u64) -> String;

    /// All loads that have something in the target's ledger.
    async fn loads(&self) -> Result<Vec<KnownLoad>>;
}

/// The new version of a unit, in place of what was loaded of it.
pub struct Replacement {
    /// The column by whose value the rows of the unit are known.
    pub column: String,
    /// That value.
    pub value: String,
    /// The units all of whose notes are removed.
    pub forgets: Vec<String>,
    /// What is noted of the new version as a whole: if all of it is there, nothing is done.
    pub known_by: Vec<Chunk>,
    /// What is noted with the new rows.
    pub chunks: Vec<Chunk>,
    /// The new rows. All of them have to be taken.
    pub rows: Box<dyn Iterator<Item = Result<RecordBatch>> + Send>,
}

/// What has become of a replacement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Replaced {
    /// Whether the new version was written now; otherwise it was there already.
    pub is_new: bool,
    /// Rows that were deleted.
    pub deleted: u64,
    /// Rows that were inserted.
    pub inserted: u64,
    /// Notes that were removed.
    pub forgotten: u64,
}

/// A load that a ledger knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownLoad {
    /// Its name.
    pub load: String,
    /// How many chunks of it are written.
    pub chunks: u64,
    /// Seconds since the last of them was, by the target's clock.
    pub idle_seconds: u64,
    /// The connections that the run which has it has now, in words; none if it has none, or the target cannot tell.
    pub connections: Vec<String>,
}

/// A load that has begun.
#[async_trait]
pub trait Load: Send + Sync {
    /// A writer for one partition of the rows. Called once for each.
    async fn writer(&self, partition: usize) -> Result<Box<dyn Writer>>;

    /// The foreign keys of the table that it publishes rows into, if others may refer to it or it to others. Loads into
    /// tables that refer to each other publish one after the other.
    fn links(&self) -> Option<TableLinks> {
        None
    }

    /// Lets the load delete no row to which rows of `tables` refer, whatever their foreign keys do then: they are
    /// tables that other loads of the run publish rows into, as their links call them. Called before anything is
    /// deleted, of a load whose links say that it deletes.
    fn protect(&self, _tables: Vec<String>) {}

    /// Fails if too many rows of the table are missing from the input. Called before `prepare`, and before anything is
    /// deleted, of a load whose links say that it deletes.
    async fn check_missing(&self) -> Result<()> {
        Ok(())
    }

    /// Deletes the rows that are missing from the input, and commits that, before a table to which they refer loses the
    /// rows in question. `prepare` comes later, and does the rest. Returns how many rows it has deleted.
    async fn delete_missing(&self) -> Result<u64> {
        Ok(0)
    }

    /// Refuses to make anything visible of an input like this. Called before `prepare`.
    fn accept(&self, _input: &InputFacts) -> Result<()> {
        Ok(())
    }

    /// All writers are closed: makes everything durable under its temporary name. After this only `commit` remains.
    async fn prepare(&self) -> Result<()>;

    /// Whether an earlier run has written the rows, and none is written now.
    fn is_there(&self) -> bool {
        false
    }

    /// How many rows were left out since their key was there already, once it is committed.
    fn ignored(&self) -> u64 {
        0
    }

    /// What has changed in the target, once it is committed; `None` if rows were not compared.
    fn changes(&self) -> Option<Changes> {
        None
    }

    /// Makes the result visible. The line tells what there is now: "3 files, 12 MB" or "252 rows in table t".
    async fn commit(&self) -> Result<String>;

    /// Files of earlier runs that the commit has removed.
    fn removed(&self) -> Removed {
        Removed::default()
    }

    /// Takes back whatever was written. Also called after a failed `prepare`. Never fails: it does what it can.
    async fn abort(&self);

    /// Lets workers see that the load has begun. Called before the first of them joins it.
    async fn begin_for_workers(&self) -> Result<()> {
        Ok(())
    }

    /// All writers of a [part of a worker](WorkerPart) are closed: makes what it has written durable, and says what the
    /// load of the run needs to adopt it. From then on nothing of it is taken back here.
    async fn hand_over(&self) -> Result<serde_json::Value> {
        Err(Error::internal("this load takes no parts of workers"))
    }

    /// Makes what the load of a worker has handed over a part of this one, as if it had written that itself. Called
    /// before the first writer is made.
    async fn adopt(&self, _handed: serde_json::Value) -> Result<()> {
        Err(Error::internal("this load takes no parts of workers"))
    }

    /// Removes what a worker has handed over and nobody adopts. Never fails: it does what it can.
    async fn discard(&self, _handed: serde_json::Value) {}

    /// Lets go of the target, and leaves what another run can resume. Never fails, as [`Load::abort`].
    async fn suspend(&self) {
        self.abort().await;
    }

    /// What a load that was aborted has left in its target, and what becomes of it, in a sentence for the user.
    fn left(&self) -> Option<String> {
        None
    }

    /// Whether nothing is left of a load that was aborted before its commit.
    fn can_roll_back(&self) -> bool {
        true
    }
}

/// The foreign keys of a table, as a load into it sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableLinks {
    /// What the table is called in the links of others, with its server.
    pub table: String,
    /// The tables to which it refers.
    pub refers_to: Vec<String>,
    /// Whether the load holds locks on rows of the table before it is prepared.
    pub is_locked: bool,
    /// Whether the load may delete rows that other tables refer to, and can do so before it is prepared.
    pub deletes: bool,
}

/// Files of earlier runs that a load has removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// How many.
    pub files: u64,
    /// The first of them by name, at most [`Removed::NAMED`].
    pub first: Vec<String>,
}

impl Removed {
    /// How many are named.
    pub const NAMED: usize = 10;

    /// Of these.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let mut removed = Removed::default();
        for name in names {
            removed.files += 1;
            if removed.first.len() < Removed::NAMED {
                removed.first.push(name);
            }
        }
        removed
    }
}

/// Writes one partition of the rows.
#[async_trait]
pub trait Writer: Send {
    /// Writes `batch` (with the route as last column, if the sink has a routing).
    async fn write(&mut self, batch: RecordBatch) -> Result<()>;

    /// Hands on what is buffered.
    async fn close(&mut self) -> Result<()>;
}

/// What a sink is made from, beside its own settings.
#[derive(Debug, Clone)]
pub struct SinkParts {
    /// The `write` of the entry: a path or URL.
    pub target: String,
    /// The format block of the entry, or what the target's name suggests.
    pub format: Option<Arc<dyn Format>>,
    /// The compression that the entry or the target's name asks for.
    pub codec: Option<Arc<dyn Codec>>,
    /// The store that the target is in, if it is in one.
    pub store: Option<Arc<dyn Store>>,
}
