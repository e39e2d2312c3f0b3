//! The source traits: from a pattern to units, from a unit to bytes.
//!
//! Implementors give the least: list one pattern, open one unit. Brace and list expansion, retries, limits and
//! metering are wrappers around any implementation.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow::datatypes::{Field, Schema, SchemaRef};
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::format::{ParseRequest, Rows};
use crate::program::ProgramContext;
use crate::queue::Queue;
use crate::spec::Fault;
use crate::{Budget, Error, Pace, Reservation, Result, Unit};

/// The bytes of one unit, in order, in chunks of any size above zero. After an error the stream ends.
pub type ByteStream = BoxStream<'static, Result<Bytes>>;

/// What a unit means that was listed and cannot be opened: it is gone, or may not be read. (One that breaks off or is
/// damaged is always an error: rows of it may have gone on already.)
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// The others are read, so that all such units are named at the end; then the run fails.
    #[default]
    Fail,
    /// It is left out, and reported at the end.
    Skip,
}

/// What a source may use while it works.
#[derive(Debug, Clone)]
pub struct SourceContext {
    /// Network and timers run here, and not on the workers that decode, unless the source [opens
    /// lightly](Source::opens_lightly).
    pub io: tokio::runtime::Handle,
    /// What is fetched ahead is charged here.
    pub budget: Arc<Budget>,
    /// Where the bytes of local files came from.
    pub cache: Arc<CacheUse>,
    /// What programs are started with.
    pub programs: Arc<ProgramContext>,
    /// How fast it may read.
    pub pace: Arc<Pace>,
}

/// How many bytes of local files were in the page cache when they were wanted, and how many had to come from the disk.
#[derive(Debug, Default)]
pub struct CacheUse {
    cached: AtomicU64,
    disk: AtomicU64,
}

impl CacheUse {
    /// Adds bytes that were in the cache.
    pub fn add_cached(&self, bytes: u64) {
        self.cached.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds bytes that were not.
    pub fn add_disk(&self, bytes: u64) {
        self.disk.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that were in the cache.
    pub fn cached(&self) -> u64 {
        self.cached.load(Ordering::Relaxed)
    }

    /// Bytes that came from the disk.
    pub fn disk(&self) -> u64 {
        self.disk.load(Ordering::Relaxed)
    }
}

/// A unit that was opened.
pub struct OpenedUnit {
    /// The unit, with its size and version where opening has told them.
    pub unit: Unit,
    /// Whether ranges of `unit` can be opened, and whoever opens one hears of it if it is another version.
    pub ranges: bool,
    /// Its bytes.
    pub content: Content,
}

/// The bytes of an opened unit.
pub enum Content {
    /// All of them, and there are some; charged to the budget.
    Whole(Bytes, Reservation),
    /// As they come.
    Stream(ByteStream),
}

impl Content {
    /// All bytes of a unit, charged to the budget by `held`.
    pub fn whole(bytes: Bytes, held: Reservation) -> Self {
        match bytes.is_empty() {
            true => Content::Stream(futures::stream::empty().boxed()),
            false => Content::Whole(bytes, held),
        }
    }

    /// The bytes as they come.
    pub fn into_stream(self) -> ByteStream {
        match self {
            Content::Whole(bytes, held) => futures::stream::once(async move {
                drop(held);
                Ok(bytes)
            })
            .boxed(),
            Content::Stream(bytes) => bytes,
        }
    }
}

impl From<ByteStream> for Content {
    fn from(bytes: ByteStream) -> Self {
        Content::Stream(bytes)
    }
}

impl Debug for OpenedUnit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenedUnit").field("unit", &self.unit).field("ranges", &self.ranges).finish_non_exhaustive()
    }
}

/// What becomes of a unit once it is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disposal {
    /// It is deleted.
    Delete,
    /// It is moved.
    Move {
        /// The folder, below which it keeps its path behind the first wildcard of the pattern that it matches.
        folder: String,
        /// The patterns of its source.
        patterns: Vec<String>,
    },
}

/// A table, however the job file writes it: two names are equal if they mean the same table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableName {
    /// Its database: kind, server and name, or path.
    pub database: String,
    /// Its name in the database.
    pub table: String,
}

/// A place that bytes come from.
#[async_trait]
pub trait Source: Debug + Send + Sync {
    /// What it is called in reports: `file`, `http`.
    fn name(&self) -> &'static str;

    /// What a reader waits for, as the report says it: `disk`, `network`.
    fn medium(&self) -> &'static str {
        self.name()
    }

    /// Whether its units are files or pipes of this machine, so that listing and opening one costs next to nothing.
    fn is_local(&self) -> bool {
        false
    }

    /// Whether `unit` can be opened more than once: a pipe cannot.
    fn can_reopen(&self, _unit: &Unit) -> bool {
        true
    }

    /// Looks whether there is something to read, where that costs nothing.
    ///
    /// # Errors
    /// If there is certainly nothing.
    fn look_up(&self, _context: &SourceContext) -> Result<()> {
        Ok(())
    }

    /// What it reads, in words, if that can be read only once: standard input, or the output of a program. Its rows
    /// cannot be loaded chunk by chunk, since no run could continue behind a chunk.
    fn reads_once(&self) -> Option<&'static str> {
        None
    }

    /// The table of a database that `pattern` (one URL) and the settings stand for; `None` if it is not a table.
    fn table(&self, _pattern: &str) -> Option<TableName> {
        None
    }

    /// The most units that are worth opening at once.
    fn connections(&self) -> usize;

    /// The units that `pattern` (one path or URL, braces already expanded) stands for, as they are found. Sizes and
    /// versions are filled in where listing gives them for free. A path without wildcards that does not exist is an
    /// error; a glob that matches nothing is an empty stream.
    fn list(&self, context: &SourceContext, pattern: &str) -> BoxStream<'static, Result<Unit>>;

    /// The bytes of `unit` (of its range, if it has one). Transient faults are retried inside; what comes out of the
    /// stream is final. If the unit names an etag and the object has changed, that is an error.
    async fn open(&self, context: &SourceContext, unit: &Unit) -> Result<ByteStream>;

    /// As [`Source::open`], with what that has found out about the unit: the caller of a large one may want only parts
    /// of it. By default a place says that it has no ranges.
    async fn open_known(&self, context: &SourceContext, unit: &Unit) -> Result<OpenedUnit> {
        let content = self.open(context, unit).await?.into();
        Ok(OpenedUnit { unit: unit.clone(), ranges: false, content })
    }

    /// Whether opening a unit only waits, for the network, and works next to nothing: then a worker that decodes may
    /// open one itself. This is for many small units, where a task for each would cost more than the work.
    fn opens_lightly(&self) -> bool {
        false
    }

    /// The bytes of `unit` if it has at most `most` of them and they can be had without waiting (a file in the page
    /// cache). `None` says nothing about the unit: [`Source::open`] it, which tells what is wrong with it. This is for
    /// many small units, where a task for each would cost more than the work, so it is called on a worker that decodes.
    fn read_now(&self, _unit: &Unit, _most: usize) -> Option<Bytes> {
        None
    }

    /// Reads `range` of the unit's bytes, for formats whose directory is at the end. The answer has exactly the
    /// length of the range. `None` if the place cannot do it (a pipe, a server without ranges).
    async fn read_range(&self, _context: &SourceContext, _unit: &Unit, _range: Range<u64>) -> Result<Option<Bytes>> {
        Ok(None)
    }

    /// `unit` with its size and its version, asked for if they are not known yet, as far as the place can tell.
    async fn look(&self, _context: &SourceContext, unit: &Unit) -> Result<Unit> {
        Ok(unit.clone())
    }

    /// Moves or deletes `unit`, unless it has changed since it was listed. Nothing is overwritten.
    async fn dispose(&self, _context: &SourceContext, unit: &Unit, _how: &Disposal) -> Result<()> {
        Err(Error::refused("files of this kind cannot be moved or deleted").in_unit(&unit.uri, None))
    }

    /// What kind of content the place says that `unit` is, such as `text/csv; charset=utf-8`; `None` where places say
    /// no such thing. It is asked for.
    async fn content_type(&self, _context: &SourceContext, _unit: &Unit) -> Result<Option<String>> {
        Ok(None)
    }

    /// The queue that `pattern` (one URL) and the settings stand for, or what is wrong with it; `None` if the source is
    /// none of queues. A queue is joined, and neither listed nor opened.
    fn queue(&self, _pattern: &str) -> Option<Result<Arc<dyn Queue>, Fault>> {
        None
    }

    /// Itself as a place of rows, if it is one. Then it gives no bytes.
    fn rows(&self) -> Option<&dyn RowSource> {
        None
    }
}

/// The rows whose time in `column` is in a range. Times are in microseconds since 1970, in whole seconds, as the column
/// has them: of a column without a time zone, what a clock on the wall would show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// The column.
    pub column: String,
    /// The first time that is read.
    pub from: Option<i64>,
    /// The first time that is not read any more.
    pub until: Option<i64>,
}

/// What the clock of a place shows, in microseconds since 1970, in whole seconds. Where clocks are put back, it is the
/// earliest time that they will still show from then on: so no later row gets an earlier time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaceClock {
    /// What it shows now.
    pub now: i64,
    /// What it showed before the lag.
    pub before: i64,
    /// By how much it may have been put forward within the lag.
    pub forward: i64,
}

/// A place that rows come from, with their types: a database. What it lists are parts of the rows.
#[async_trait]
pub trait RowSource: Send + Sync {
    /// The columns of what `pattern` (one URL) stands for.
    async fn columns(&self, context: &SourceContext, pattern: &str) -> Result<SchemaRef>;

    /// The rows of `unit`: of the columns that the request projects, in batches as large as it asks for. Lines are the
    /// rows' numbers in the unit. The units of one pattern show the data as of one moment, where the place can do that.
    fn read(&self, context: &SourceContext, unit: &Unit, request: &ParseRequest) -> BoxStream<'static, Result<Rows>>;

    /// Checks that the rows can be read by windows of `column`, as far as their `columns` say.
    fn check_window_column(&self, _columns: &Schema, _column: &str) -> Result<()> {
        Err(Error::job("the rows of this place cannot be read by the time in a column"))
    }

    /// The clock of the place, as `column` of the rows of `pattern` has its times. All rows must have such a time.
    /// `None` if there is nothing to read: the table does not exist, and need not.
    async fn clock(
        &self,
        _context: &SourceContext,
        _pattern: &str,
        _column: &Field,
        _lag: Duration,
    ) -> Result<Option<PlaceClock>> {
        Err(Error::job("this place does not tell the time"))
    }

    /// The units of the rows of `pattern` that are in `window`, and of no others. They show the data as of this call
    /// or later.
    fn list_window(&self, _: &SourceContext, _pattern: &str, _window: &Window) -> BoxStream<'static, Result<Unit>> {
        let error = Error::job("the rows of this place cannot be read by the time in a column");
        futures::stream::once(async { Err(error) }).boxed()
    }

    /// Everything that was wanted has been read: what is held so that all units show one moment is let go.
    fn done(&self) {}
}
