//! The sink traits: batches to a target, in two phases, so that a job with several sinks ends or fails as one.
//!
//! ```text
//!  begin ─▶ writer 0 ─ write … ─ close ─┐
//!        ─▶ writer 1 ─ write … ─ close ─┼─▶ prepare ─▶ commit
//!                                       └─▶ abort
//! ```
//! Nothing is visible under its final name before `commit`. All that can fail is done by the end of `prepare`.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;

use crate::codec::Codec;
use crate::format::Format;
use crate::source::SourceContext;
use crate::store::Store;
use crate::{Budget, Result, Step};

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

/// What a sink is told when it begins.
#[derive(Debug, Clone)]
pub struct LoadContext {
    /// Names what this run writes before it is committed. Unique for each run.
    pub run: String,
    /// The sink's entry in the job file.
    pub sink: String,
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
    /// Buffers are charged here.
    pub budget: Arc<Budget>,
    /// The sink counts what it writes here: bytes as they go out, time busy (encoding) and waiting for the target.
    /// Rows are counted by the engine.
    pub step: Arc<Step>,
}

/// A target for rows.
#[async_trait]
pub trait Sink: Debug + Send + Sync {
    /// What it is called in reports: `file`, `sqlite`.
    fn name(&self) -> &'static str;

    /// The target, with passwords left out: a path or URL.
    fn target(&self) -> String;

    /// How rows are spread over files, if they are.
    fn routing(&self) -> Option<Routing> {
        None
    }

    /// Compares `schema` with the target as it stands and changes nothing: all that would keep the load from
    /// succeeding, at once.
    async fn check(&self, schema: SchemaRef) -> Result<(), Vec<crate::Error>>;

    /// Asks a target behind a network whether it would take the load, and changes nothing there. What needs no network
    /// is [`Sink::check`]'s.
    async fn reach(&self, _context: &SourceContext) -> Result<(), Vec<crate::Error>> {
        Ok(())
    }

    /// What it would do, in a line or a statement for `explain`.
    fn describe(&self, schema: SchemaRef) -> String;

    /// Begins a load.
    async fn begin(&self, context: LoadContext) -> Result<Arc<dyn Load>>;
}

/// A load that has begun.
#[async_trait]
pub trait Load: Send + Sync {
    /// A writer for one partition of the rows. Called once for each.
    async fn writer(&self, partition: usize) -> Result<Box<dyn Writer>>;

    /// All writers are closed: makes everything durable under its temporary name. After this only `commit` remains.
    async fn prepare(&self) -> Result<()>;

    /// Makes the result visible. The line tells what there is now: "3 files, 12 MB" or "252 rows in table t".
    async fn commit(&self) -> Result<String>;

    /// Takes back whatever was written. Also called after a failed `prepare`. Never fails: it does what it can.
    async fn abort(&self);
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
