//! Writes rows into files that are not visible yet: which file is open, which task encodes, and when a file is full.
//! `destination.rs` has the folder or bucket.
//!
//! There are two methods, and the sink uses one for all its files:
//!
//! - *pieces*, for formats whose rows may be encoded separately (csv, json lines, lines): every writer encodes and
//!   compresses pieces of its own on its own core, and only appending a finished piece takes the file's lock. gzip
//!   members and zstd frames may follow each other, so a file is simply its pieces.
//! - *one stream*, for formats with a directory (parquet), for a single writer into a single file (one gzip member is
//!   smaller than many), and for files of an exact number of rows: the writer that holds the file's lock encodes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arrow::array::{Array, AsArray, RecordBatch, UInt32Array};
use arrow::compute::cast;
use arrow::compute::take_record_batch;
use arrow::datatypes::{DataType, UInt32Type};
use async_trait::async_trait;
use millstream_core::format::{RowEncoder, TEXT};
use millstream_core::sink::{Load, LoadContext, Removed, RoutingKind, Writer};
use millstream_core::spec::Size;
use millstream_core::{Error, Result};
use serde_json::Value;

use super::destination::{Destination, Draft, Staging, TargetFiles};
use super::handed::{self, Handed, HandedFile};
use super::naming::{PARTS, Route, Target};
use super::plan::PlannedFile;
use super::spec::{FileMode, FileSpec, Roll};
use crate::encode::{ENCODE_ROWS, EncodeStream, Encoding};
use crate::shared::{Charge, counted};

/// Text in a piece that is written, or compressed and written, at once.
const PIECE_BYTES: usize = 1 << 20;
/// Encoded bytes of a stream that are written at once.
const WRITE_BYTES: usize = 256 << 10;
/// Text that all pieces of one writer hold together.
const WRITER_BYTES: usize = 16 << 20;
/// The bytes that a writer, or a file that is encoded as one stream, may always hold.
const FLOOR: usize = 256 << 10;

/// The method of writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Pieces,
    Stream,
}

/// A load into files.
pub(crate) struct FileLoad(Arc<Shared>);

/// Shared by the load and its writers.
struct Shared {
    target: Target,
    encoding: Encoding,
    context: LoadContext,
    routing: Option<RoutingKind>,
    roll: Roll,
    max_open: usize,
    max_files: usize,
    /// Whether the files of earlier runs stay, and these are added.
    adds: bool,
    method: Method,
    staging: Box<dyn Staging>,
    outputs: Mutex<HashMap<Route, Arc<Output>>>,
    /// Files that were begun.
    files: AtomicUsize,
    /// How many of these workers of a cluster have written.
    adopted: AtomicUsize,
    /// The number of the first part of each route that it makes itself.
    first_part: AtomicUsize,
    /// Files of earlier runs that the commit has removed.
    removed: Mutex<Removed>,
    /// Outputs with an open stream (and file).
    streaming: Mutex<HashMap<Route, Arc<Output>>>,
    /// Counts uses, to know the least recent.
    clock: AtomicU64,
}

/// The files of one route.
struct Output {
    route: Route,
    used: AtomicU64,
    state: tokio::sync::Mutex<OutputState>,
}

/// The current file of one route, and those before it.
#[derive(Default)]
struct OutputState {
    parts: Vec<Part>,
    /// How many of the parts workers of a cluster have made.
    adopted: usize,
    /// Whether the last of the parts can take more rows.
    filling: bool,
    draft: Option<Box<dyn Draft>>,
    stream: Option<EncodeStream>,
    /// Encoded bytes that are not written yet.
    pending: Vec<u8>,
    /// The charge for the stream and `pending`.
    charge: Option<Charge>,
}

/// One file.
#[derive(Debug)]
struct Part {
    number: usize,
    path: String,
    rows: u64,
    /// Bytes written.
    bytes: u64,
    /// Whether a stream was begun in it: a second one continues where the first one ended.
    begun: bool,
}

impl FileLoad {
    pub(crate) async fn begin(
        spec: &FileSpec,
        destination: &dyn Destination,
        target_files: &TargetFiles,
        encoding: &Encoding,
        context: LoadContext,
    ) -> Result<Self> {
        let staging = match &context.worker {
            None => destination.begin(target_files, &context).await?,
            Some(part) => destination.join(target_files, &context, part).await?,
        };
        let first_part = AtomicUsize::new(handed::first_part(&context));
        let routing = spec.routing().map(|routing| routing.kind);
        let roll = spec.roll.clone().unwrap_or_default();
        let alone = context.partitions <= 1 && routing.is_none();
        let method =
            if !encoding.splittable() || alone || roll.rows.is_some() { Method::Stream } else { Method::Pieces };
        Ok(FileLoad(Arc::new(Shared {
            target: target_files.target.clone(),
            encoding: encoding.clone(),
            context,
            routing,
            roll,
            max_open: spec.max_open.max(1),
            max_files: spec.max_files.max(1),
            adds: target_files.mode == FileMode::Append,
            method,
            staging,
            outputs: Mutex::new(HashMap::new()),
            files: AtomicUsize::new(0),
            adopted: AtomicUsize::new(0),
            first_part,
            removed: Mutex::default(),
            streaming: Mutex::new(HashMap::new()),
            clock: AtomicU64::new(0),
        })))
    }
}

#[async_trait]
impl Load for FileLoad {
    async fn writer(&self, _partition: usize) -> Result<Box<dyn Writer>> {
        Ok(Box::new(FileWriter {
            charge: Charge::new(&self.0.context.budget, FLOOR),
            shared: Arc::clone(&self.0),
            pieces: HashMap::new(),
            held: 0,
            scratch: Vec::new(),
        }))
    }

    fn is_there(&self) -> bool {
        self.0.staging.is_there()
    }

    async fn prepare(&self) -> Result<()> {
        let shared = &self.0;
        if shared.has_no_units() && !shared.outputs().is_empty() {
            return Err(Error::internal("rows came of no units"));
        }
        if self.is_there() || shared.has_no_units() {
            return Ok(());
        }
        if !shared.may_have_no_file() {
            shared.make_certain_files().await?;
        }
        let files = shared.closed_files().await?.into_iter().map(|(_, file)| file).collect();
        shared.waiting(shared.staging.prepare(files)).await
    }

    async fn commit(&self) -> Result<String> {
        if self.0.has_no_units() {
            self.0.staging.abort().await;
            return Ok(format!("nothing new for {}", self.0.target.shown()));
        }
        let removed = Removed::new(self.0.staging.commit().await?);
        *self.0.removed.lock().unwrap_or_else(PoisonError::into_inner) = removed;
        Ok(self.0.summary().await)
    }

    fn removed(&self) -> Removed {
        self.0.removed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn abort(&self) {
        for output in self.0.all_outputs() {
            output.state.lock().await.draft = None;
        }
        self.0.staging.abort().await;
    }

    async fn begin_for_workers(&self) -> Result<()> {
        self.0.staging.begin_for_workers().await
    }

    async fn hand_over(&self) -> Result<Value> {
        let shared = &self.0;
        let files = shared.closed_files().await?;
        let mut files: Vec<HandedFile> =
            files.into_iter().map(|(route, file)| HandedFile { route, file, name: None }).collect();
        shared.waiting(shared.staging.hand_over(&mut files)).await?;
        let next_part = handed::first_part(&shared.context) + PARTS;
        serde_json::to_value(Handed { next_part, files }).map_err(|error| Error::internal(error.to_string()))
    }

    async fn adopt(&self, handed: Value) -> Result<()> {
        let (shared, Handed { next_part, files }) = (&self.0, handed_over(handed)?);
        shared.first_part.fetch_max(next_part, Ordering::Relaxed);
        for handed in files {
            let output = shared.output(&handed.route);
            // Of a route there are more files than if one machine wrote all: what counts are the routes.
            if shared.outputs().len() > shared.max_files {
                return Err(shared.too_many_files(&handed.file.path));
            }
            let number = shared.files.fetch_add(1, Ordering::Relaxed);
            shared.adopted.fetch_add(1, Ordering::Relaxed);
            shared.staging.adopt(number, &handed).await?;
            let mut state = output.state.lock().await;
            let PlannedFile { path, rows, bytes, .. } = handed.file;
            state.parts.push(Part { number, path, rows, bytes, begun: true });
            state.adopted += 1;
        }
        Ok(())
    }

    async fn discard(&self, handed: Value) {
        for handed in handed_over(handed).into_iter().flat_map(|handed| handed.files) {
            self.0.staging.discard(&handed).await;
        }
    }
}

fn handed_over(handed: Value) -> Result<Handed> {
    serde_json::from_value(handed).map_err(|cause| Error::internal("a worker has handed over no files").cause(cause))
}

impl Shared {
    /// Whether it loads only units that are new, and there are none: then it adds no file, not even an empty one.
    fn has_no_units(&self) -> bool {
        self.context.notes.as_ref().is_some_and(|notes| notes.chunks().is_empty())
    }

    /// Whether no file is missed without rows: what was read is noted in the list.
    fn may_have_no_file(&self) -> bool {
        self.context.notes.is_some() && self.outputs().is_empty()
    }

    /// Waits for the target, and counts the time as such.
    async fn waiting<T>(&self, work: impl Future<Output = T>) -> T {
        let start = Instant::now();
        let done = work.await;
        self.context.step.add_waiting_output(start.elapsed());
        done
    }

    fn outputs(&self) -> MutexGuard<'_, HashMap<Route, Arc<Output>>> {
        self.outputs.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn streaming(&self) -> MutexGuard<'_, HashMap<Route, Arc<Output>>> {
        self.streaming.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn all_outputs(&self) -> Vec<Arc<Output>> {
        self.outputs().values().cloned().collect()
    }

    fn output(&self, route: &Route) -> Arc<Output> {
        let mut outputs = self.outputs();
        if let Some(known) = outputs.get(route) {
            return Arc::clone(known);
        }
        let output =
            Arc::new(Output { route: route.clone(), used: AtomicU64::new(0), state: tokio::sync::Mutex::default() });
        outputs.insert(route.clone(), Arc::clone(&output));
        output
    }

    /// The lock of a route's files; waiting for it is waiting for the target.
    async fn lock<'a>(&self, output: &'a Output) -> tokio::sync::MutexGuard<'a, OutputState> {
        output.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        if let Ok(state) = output.state.try_lock() {
            return state;
        }
        let start = Instant::now();
        let state = output.state.lock().await;
        self.context.step.add_waiting_output(start.elapsed());
        state
    }

    /// All files, which are closed now, with their routes.
    async fn closed_files(&self) -> Result<Vec<(Route, PlannedFile)>> {
        let mut files = Vec::new();
        for output in self.all_outputs() {
            let mut state = output.state.lock().await;
            self.close_part(&output.route, &mut state).await?;
            let value = match &output.route {
                Route::Value(value) => Some(value.clone()),
                Route::Only | Route::Shard(_) => None,
            };
            let planned = |part: &Part| PlannedFile {
                staged: Some(part.number),
                path: part.path.clone(),
                rows: part.rows,
                bytes: part.bytes,
                value: value.clone(),
                ..PlannedFile::default()
            };
            files.extend(state.parts.iter().map(|part| (output.route.clone(), planned(part))));
        }
        Ok(files)
    }

    /// A number for the file that will be at `path`.
    fn next_number(&self, path: &str) -> Result<usize> {
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        match number - self.adopted.load(Ordering::Relaxed) < self.max_files {
            true => Ok(number),
            false => Err(self.too_many_files(path)),
        }
    }

    fn too_many_files(&self, path: &str) -> Error {
        Error::refused(format!("the sink would create more than {} files", self.max_files))
            .text(path)
            .hint("split by an expression with fewer values, or raise `max_files`")
    }

    /// Creates the files that exist even without rows: the only one, and every shard.
    async fn make_certain_files(&self) -> Result<()> {
        let certain: Vec<Route> = match self.routing {
            None => vec![Route::Only],
            Some(RoutingKind::Hash(count) | RoutingKind::Mod(count)) => (0..count).map(Route::Shard).collect(),
            Some(RoutingKind::Value) => Vec::new(),
        };
        for route in certain {
            let output = self.output(&route);
            let mut state = output.state.lock().await;
            if state.parts.is_empty() {
                self.begin_part(&route, &mut state).await?;
                // With pieces, the beginning is already written, unless it is empty.
                if state.parts.iter().all(|part| part.bytes == 0) {
                    let empty = self.encoding.empty(&self.context.schema)?;
                    self.append(&mut state, &empty).await?;
                }
                self.close_part(&route, &mut state).await?;
            }
        }
        Ok(())
    }

    /// Begins the next file of a route, unless one can take more rows.
    async fn begin_part(&self, route: &Route, state: &mut OutputState) -> Result<()> {
        if state.filling {
            return Ok(());
        }
        let own = state.parts.len() - state.adopted;
        let path = self.target.path(route, self.first_part.load(Ordering::Relaxed) + own)?;
        if own >= PARTS && self.context.worker.is_some() {
            let what = format!("a worker would make more than {PARTS} files of one bundle");
            return Err(Error::refused(what).text(path).hint("raise `roll: {bytes: …}`"));
        }
        let number = self.next_number(&path)?;
        state.draft = Some(self.staging.file(number, &path).await?);
        state.parts.push(Part { number, path, rows: 0, bytes: 0, begun: false });
        state.filling = true;
        if self.method == Method::Pieces {
            let beginning = self.encoding.beginning(&self.context.schema)?;
            self.append(state, &beginning).await?;
        }
        Ok(())
    }

    /// Appends bytes to the file that is being filled.
    async fn append(&self, state: &mut OutputState, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (Some(part), Some(draft)) = (state.parts.last_mut(), &mut state.draft) else {
            return Err(Error::internal("bytes were written before their file was begun"));
        };
        self.waiting(draft.append(bytes)).await?;
        part.bytes += bytes.len() as u64;
        self.context.step.add_bytes(bytes.len() as u64);
        Ok(())
    }

    /// Ends the stream of a file, if it has one. Its bytes are written.
    async fn end_stream(&self, route: &Route, state: &mut OutputState) -> Result<()> {
        let Some(mut stream) = state.stream.take() else { return Ok(()) };
        self.streaming().remove(route);
        let mut pending = std::mem::take(&mut state.pending);
        self.context.step.busy(|| stream.finish(&mut Vec::new(), &mut pending))?;
        self.append(state, &pending).await?;
        state.charge = None;
        Ok(())
    }

    /// Ends the file that is being filled.
    async fn close_part(&self, route: &Route, state: &mut OutputState) -> Result<()> {
        self.end_stream(route, state).await?;
        state.filling = false;
        match state.draft.take() {
            Some(draft) => self.waiting(draft.close()).await,
            None => Ok(()),
        }
    }

    /// Appends a piece that is complete, to the next file if it does not fit into this one.
    async fn append_piece(&self, route: &Route, bytes: &[u8], rows: u64) -> Result<()> {
        let output = self.output(route);
        let many = self.outputs().len() > self.max_open;
        let mut state = self.lock(&output).await;
        let limit = self.roll.bytes.map_or(u64::MAX, |size| size.0);
        if let Some(part) = state.parts.last()
            && part.rows > 0
            && part.bytes + bytes.len() as u64 > limit
        {
            self.close_part(route, &mut state).await?;
        }
        self.begin_part(route, &mut state).await?;
        self.append(&mut state, bytes).await?;
        if let Some(part) = state.parts.last_mut() {
            part.rows += rows;
        }
        if let Some(draft) = state.draft.as_mut().filter(|_| many) {
            draft.rest().await?;
        }
        Ok(())
    }

    /// Encodes rows into the stream of their file, and begins the next file when one is full.
    async fn stream_rows(&self, route: &Route, batch: &RecordBatch, scratch: &mut Vec<u8>) -> Result<()> {
        let output = self.output(route);
        let mut done = 0;
        while done < batch.num_rows() {
            self.make_room(&output).await?;
            let mut state = self.lock(&output).await;
            self.begin_part(route, &mut state).await?;
            let taken = self.stream_slice(&output, &mut state, batch, done, scratch).await?;
            done += taken;
        }
        Ok(())
    }

    /// Encodes one slice of `batch` from row `from`; returns its rows.
    async fn stream_slice(
        &self,
        output: &Arc<Output>,
        state: &mut OutputState,
        batch: &RecordBatch,
        from: usize,
        scratch: &mut Vec<u8>,
    ) -> Result<usize> {
        let Some(part) = state.parts.last_mut() else {
            return Err(Error::internal("rows came before their file was begun"));
        };
        let room = self.roll.rows.map_or(u64::MAX, |rows| rows.saturating_sub(part.rows).max(1));
        let taken = (batch.num_rows() - from).min(ENCODE_ROWS).min(usize::try_from(room).unwrap_or(usize::MAX));
        let slice = batch.slice(from, taken);
        if state.stream.is_none() {
            state.stream = Some(self.encoding.stream(&self.context.schema, !part.begun)?);
            part.begun = true;
            self.streaming().insert(output.route.clone(), Arc::clone(output));
        }
        let charge = state.charge.get_or_insert_with(|| Charge::new(&self.context.budget, FLOOR));
        let pending = &mut state.pending;
        let mut relieved = false;
        if let Some(stream) = &mut state.stream {
            relieved = self.context.step.busy(|| {
                stream.encode(&slice, scratch, pending)?;
                stream.charge(charge, scratch, pending)
            })?;
        }
        part.rows += taken as u64;
        let rows_full = self.roll.rows.is_some_and(|rows| part.rows >= rows);
        let bytes_full = self.roll.bytes.is_some_and(|size| part.bytes + state.pending.len() as u64 >= size.0);
        if rows_full || bytes_full {
            self.close_part(&output.route, state).await?;
        } else if relieved || state.pending.len() >= WRITE_BYTES {
            let mut pending = std::mem::take(&mut state.pending);
            self.append(state, &pending).await?;
            pending.clear();
            // A buffer that one large row group has enlarged is not kept.
            pending.shrink_to(2 * WRITE_BYTES);
            state.pending = pending;
            if let Some(charge) = &mut state.charge {
                // Less than before, so it is never refused.
                let _ = charge.set(state.stream.as_ref().map_or(0, EncodeStream::held));
            }
        }
        Ok(taken)
    }

    /// Closes the least recently used stream if there are too many for one more. The lock of `output` is not held, so
    /// no two writers can wait for each other.
    async fn make_room(&self, output: &Output) -> Result<()> {
        let oldest = {
            let streaming = self.streaming();
            if streaming.len() < self.max_open || streaming.contains_key(&output.route) {
                return Ok(());
            }
            streaming.values().min_by_key(|one| one.used.load(Ordering::Relaxed)).cloned()
        };
        if !self.encoding.splittable() {
            let what = format!(
                "more than {} files at once, and a {} file cannot be closed and continued",
                self.max_open,
                self.encoding.format()
            );
            return Err(Error::refused(what).text(self.target.path(&output.route, 0)?).hint(
                "raise `max_open` (each open file holds memory), sort by the expression of `split`, or use shards",
            ));
        }
        if let Some(oldest) = oldest {
            let mut state = oldest.state.lock().await;
            self.end_stream(&oldest.route, &mut state).await?;
            if let Some(draft) = &mut state.draft {
                draft.rest().await?;
            }
        }
        Ok(())
    }

    /// A summary of what was written.
    async fn summary(&self) -> String {
        if self.staging.is_there() {
            return format!("nothing new for {}: its files were added before", self.target.shown());
        }
        let (mut files, mut rows, mut bytes) = (0, 0, 0);
        for output in self.all_outputs() {
            let state = output.state.lock().await;
            files += state.parts.len() as u64;
            rows += state.parts.iter().map(|part| part.rows).sum::<u64>();
            bytes += state.parts.iter().map(|part| part.bytes).sum::<u64>();
        }
        let rows = counted(rows, "row");
        if self.target.is_set() {
            let to = if self.adds { "added in" } else { "in" };
            format!("{rows} {to} {} {}, {}", counted(files, "file"), self.target.shown(), Size(bytes))
        } else {
            format!("{rows} in {}, {}", self.target.text(), Size(bytes))
        }
    }
}

/// Writes one partition.
struct FileWriter {
    shared: Arc<Shared>,
    pieces: HashMap<Route, Piece>,
    /// Bytes of text in all pieces.
    held: usize,
    charge: Charge,
    scratch: Vec<u8>,
}

/// Rows of one route that are encoded and not written yet.
struct Piece {
    rows: Box<dyn RowEncoder>,
    text: Vec<u8>,
    count: u64,
    used: u64,
}

#[async_trait]
impl Writer for FileWriter {
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        if shared.staging.is_there() {
            return Ok(());
        }
        let routed = shared.context.step.busy(|| routes(batch, shared.routing))?;
        for (route, rows) in routed {
            match shared.method {
                Method::Stream => shared.stream_rows(&route, &rows, &mut self.scratch).await?,
                Method::Pieces => self.collect(&route, &rows).await?,
            }
        }
        Ok(())
    }

    async fn close(&mut self) -> Result<()> {
        let routes: Vec<Route> = self.pieces.keys().cloned().collect();
        for route in routes {
            self.flush(&route).await?;
        }
        Ok(())
    }
}

impl FileWriter {
    /// Adds rows to the piece of their route, and writes pieces that are large enough.
    async fn collect(&mut self, route: &Route, batch: &RecordBatch) -> Result<()> {
        let full = self.shared.roll.bytes.map_or(PIECE_BYTES, |size| PIECE_BYTES.min(size.0 as usize));
        for from in (0..batch.num_rows()).step_by(ENCODE_ROWS) {
            let slice = batch.slice(from, ENCODE_ROWS.min(batch.num_rows() - from));
            self.limit_pieces(route).await?;
            if self.encode(route, &slice)? >= full {
                self.flush(route).await?;
            }
            while self.held > WRITER_BYTES || !self.charge.set(self.held) {
                let Some(largest) = self.largest() else { break };
                self.flush(&largest).await?;
            }
        }
        Ok(())
    }

    /// Encodes rows into the piece of their route; returns the size of its text.
    fn encode(&mut self, route: &Route, slice: &RecordBatch) -> Result<usize> {
        let shared = &self.shared;
        let piece = match self.pieces.entry(route.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(Piece {
                rows: shared.encoding.rows(&shared.context.schema, false)?,
                text: Vec::new(),
                count: 0,
                used: 0,
            }),
        };
        let before = piece.text.len();
        shared.context.step.busy(|| piece.rows.encode(slice, &mut piece.text))?;
        piece.count += slice.num_rows() as u64;
        piece.used = shared.clock.fetch_add(1, Ordering::Relaxed);
        self.held += piece.text.len() - before;
        Ok(piece.text.len())
    }

    /// Writes the least recently used piece if there are too many for one more.
    async fn limit_pieces(&mut self, route: &Route) -> Result<()> {
        if self.pieces.len() < self.shared.max_open || self.pieces.contains_key(route) {
            return Ok(());
        }
        let oldest = self.pieces.iter().min_by_key(|(_, piece)| piece.used).map(|(oldest, _)| oldest.clone());
        match oldest {
            Some(route) => self.flush(&route).await,
            None => Ok(()),
        }
    }

    fn largest(&self) -> Option<Route> {
        self.pieces.iter().max_by_key(|(_, piece)| piece.text.len()).map(|(oldest, _)| oldest.clone())
    }

    /// Finishes, compresses and appends the piece of a route.
    async fn flush(&mut self, route: &Route) -> Result<()> {
        let Some(mut piece) = self.pieces.remove(route) else { return Ok(()) };
        let shared = Arc::clone(&self.shared);
        self.held -= piece.text.len();
        let bytes = shared.context.step.busy(|| {
            piece.rows.finish(&mut piece.text)?;
            shared.encoding.compress(piece.text)
        })?;
        let appended = shared.append_piece(route, &bytes, piece.count).await;
        // Releasing memory never fails.
        let _ = self.charge.set(self.held);
        appended
    }
}

/// The rows of `batch` by the route in its last column, which is removed.
fn routes(batch: RecordBatch, routing: Option<RoutingKind>) -> Result<Vec<(Route, RecordBatch)>> {
    let Some(kind) = routing else { return Ok(vec![(Route::Only, batch)]) };
    let Some(last) = batch.num_columns().checked_sub(1) else {
        return Err(Error::internal("a batch came without its route"));
    };
    let route = Arc::clone(batch.column(last));
    let columns: Vec<usize> = (0..last).collect();
    let rows = batch.project(&columns).map_err(|error| Error::internal(error.to_string()))?;
    let groups = match kind {
        RoutingKind::Hash(count) | RoutingKind::Mod(count) => by_shard(&route, count)?,
        RoutingKind::Value => by_value(&route)?,
    };
    groups
        .into_iter()
        .map(|(route, indices)| {
            if indices.len() == rows.num_rows() {
                return Ok((route, rows.clone()));
            }
            let taken = take_record_batch(&rows, &UInt32Array::from(indices));
            Ok((route, taken.map_err(|error| Error::internal(error.to_string()))?))
        })
        .collect()
}

/// The rows of each shard; a null goes to the first.
fn by_shard(route: &dyn Array, count: u32) -> Result<Vec<(Route, Vec<u32>)>> {
    let route = cast(route, &DataType::UInt32).map_err(|error| Error::internal(error.to_string()))?;
    let mut groups: Vec<Vec<u32>> = vec![Vec::new(); count as usize];
    for (row, shard) in route.as_primitive::<UInt32Type>().iter().enumerate() {
        match groups.get_mut(shard.unwrap_or(0) as usize) {
            Some(group) => group.push(row as u32),
            None => return Err(Error::internal(format!("a row came for shard {shard:?} of {count}"))),
        }
    }
    let numbered = groups.into_iter().enumerate().filter(|(_, rows)| !rows.is_empty());
    Ok(numbered.map(|(shard, rows)| (Route::Shard(shard as u32), rows)).collect())
}

/// The rows of each value, in the order in which the values first appear.
fn by_value(route: &dyn Array) -> Result<Vec<(Route, Vec<u32>)>> {
    let route = cast(route, &TEXT).map_err(|error| Error::internal(error.to_string()))?;
    let mut numbers: HashMap<Option<&str>, usize> = HashMap::new();
    let mut groups: Vec<(Route, Vec<u32>)> = Vec::new();
    for (row, value) in route.as_string_view().iter().enumerate() {
        let number = *numbers.entry(value).or_insert_with(|| {
            groups.push((Route::Value(value.map(str::to_owned)), Vec::new()));
            groups.len() - 1
        });
        groups[number].1.push(row as u32);
    }
    Ok(groups)
}
