//! Standard output as a sink. It cannot roll back: rows are visible as soon as they are written, even if the run fails
//! later. Use a file if you need all or nothing.
//!
//! The reader may close the pipe (`| head -1`): the run then ends quietly, with an error of the kind `OutputClosed`.

mod spec;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use millstream_core::epochs::{EpochTarget, Epochs, Guarantee, QueueFacts, QueueLoad};
use millstream_core::format::RowEncoder;
use millstream_core::positions::Move;
use millstream_core::registry::{Built, SinkEntry, SinkFormats};
use millstream_core::sink::{Accept, Delivered, Delivery, Load, LoadContext, Refused, Sink, SinkParts, Writer};
use millstream_core::spec::{SpecInfo, parse};
use millstream_core::{Error, Result};
use serde_json::Value;
use tokio::sync::Mutex;

pub use self::spec::StdoutSpec;
use crate::encode::{ENCODE_ROWS, EncodeStream, Encoding};
use crate::shared::{Charge, blocking, counted};

/// The registry's entry.
pub const ENTRY: SinkEntry = SinkEntry {
    spec: SpecInfo::of::<StdoutSpec>(),
    schemes: &[],
    words: &["-"],
    stores: false,
    formats: SinkFormats::ByName,
    build: &build,
};

/// Text of one writer that is written at once.
const PIECE_BYTES: usize = 256 << 10;

fn build(settings: &Value, parts: SinkParts) -> Built<dyn Sink> {
    let spec: StdoutSpec = parse(settings)?;
    Ok(Arc::new(StdoutSink { encoding: Encoding::new(&parts, spec.level)?, output: None }))
}

/// Writes to standard output.
#[derive(Debug)]
pub(crate) struct StdoutSink {
    encoding: Encoding,
    /// Replaces standard output in tests.
    output: Option<Arc<File>>,
}

#[async_trait]
impl Sink for StdoutSink {
    fn name(&self) -> &'static str {
        "stdout"
    }

    fn medium(&self) -> &'static str {
        "standard output"
    }

    fn shows_rows_early(&self) -> bool {
        true
    }

    fn target(&self) -> String {
        "standard output".to_owned()
    }

    async fn check(&self, schema: SchemaRef) -> Result<(), Vec<Error>> {
        self.encoding.check(schema).map_err(|error| vec![error])
    }

    fn describe(&self, _schema: SchemaRef) -> String {
        format!("{} to standard output", self.encoding.describe())
    }

    fn guarantee(&self, _queue: &QueueFacts) -> Result<Guarantee, String> {
        match self.encoding.splittable() {
            true => Ok(Guarantee::once_or_more("rows are written before their messages are acknowledged")),
            false => Err(format!("{} cannot be written piece by piece", self.encoding.describe())),
        }
    }

    /// What stands before all rows is written once.
    async fn epochs(&self, _load: &QueueLoad, context: LoadContext) -> Result<Option<EpochTarget>> {
        let shared = self.open(LoadContext { ordered: false, partitions: 2, ..context })?;
        Ok(Some(EpochTarget::AtLeastOnce(Arc::new(StdoutEpochs(shared)))))
    }

    async fn begin(&self, context: LoadContext) -> Result<Arc<dyn Load>> {
        self.open(context).map(|shared| Arc::new(StdoutLoad(shared)) as Arc<dyn Load>)
    }
}

impl StdoutSink {
    fn open(&self, context: LoadContext) -> Result<Arc<Shared>> {
        let file = match &self.output {
            Some(file) => file.try_clone(),
            // Bypasses Rust's line-buffered handle.
            None => io::stdout().as_fd().try_clone_to_owned().map(File::from),
        };
        let file = file.map_err(|error| Error::io("cannot open standard output", &error))?;
        let pieces = self.encoding.splittable() && context.partitions > 1;
        let charge = Charge::new(&context.budget, PIECE_BYTES);
        let out = Out { file, begun: false, stream: None, charge, rows: 0 };
        Ok(Arc::new(Shared { encoding: self.encoding.clone(), context, pieces, out: Mutex::new(out) }))
    }
}

struct StdoutLoad(Arc<Shared>);

/// Shared by the load and its writers.
struct Shared {
    encoding: Encoding,
    context: LoadContext,
    /// Whether every writer encodes for itself, and only whole pieces take the lock.
    pieces: bool,
    out: Mutex<Out>,
}

/// Standard output with its buffers.
struct Out {
    file: File,
    begun: bool,
    stream: Option<EncodeStream>,
    /// The charge for the stream.
    charge: Charge,
    rows: u64,
}

#[async_trait]
impl Load for StdoutLoad {
    async fn writer(&self, _partition: usize) -> Result<Box<dyn Writer>> {
        Ok(Box::new(StdoutWriter { shared: Arc::clone(&self.0), piece: None, scratch: Vec::new() }))
    }

    async fn prepare(&self) -> Result<()> {
        let shared = &self.0;
        let mut out = shared.out.lock().await;
        let mut bytes = Vec::new();
        match out.stream.take() {
            Some(mut stream) => shared.context.step.busy(|| stream.finish(&mut Vec::new(), &mut bytes))?,
            None if out.begun => {}
            None => bytes = shared.encoding.empty(&shared.context.schema)?,
        }
        out.begun = true;
        shared.write(&mut out, &bytes)
    }

    async fn commit(&self) -> Result<String> {
        let out = self.0.out.lock().await;
        Ok(on_standard_output(out.rows))
    }

    async fn abort(&self) {}

    /// Written rows cannot be rolled back.
    fn can_roll_back(&self) -> bool {
        false
    }
}

/// Standard output as it takes epochs: rows wait in memory until all of an epoch are there.
struct StdoutEpochs(Arc<Shared>);

#[async_trait]
impl Epochs for StdoutEpochs {
    async fn delivery(&self, _: Vec<Move>, _: usize) -> Result<Box<dyn Delivery>> {
        Ok(Box::new(StdoutDelivery { shared: Arc::clone(&self.0), batches: Vec::new() }))
    }

    fn target(&self) -> String {
        "standard output".to_owned()
    }

    fn summary(&self, rows: u64) -> String {
        on_standard_output(rows)
    }
}

struct StdoutDelivery {
    shared: Arc<Shared>,
    batches: Vec<RecordBatch>,
}

#[async_trait]
impl Delivery for StdoutDelivery {
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        self.batches.push(batch);
        Ok(())
    }

    async fn commit_if(self: Box<Self>, accept: Accept) -> Result<Delivered> {
        accept(&Refused::default())?;
        let mut writer = StdoutWriter { shared: self.shared, piece: None, scratch: Vec::new() };
        let mut rows = 0;
        for batch in self.batches {
            rows += batch.num_rows() as u64;
            writer.write(batch).await?;
        }
        writer.close().await?;
        Ok(Delivered::Written { rows, refused: Vec::new() })
    }
}

fn on_standard_output(rows: u64) -> String {
    format!("{} on standard output", counted(rows, "row"))
}

impl Shared {
    /// The lock of the output; waiting for it is waiting for the target.
    async fn lock(&self) -> tokio::sync::MutexGuard<'_, Out> {
        if let Ok(out) = self.out.try_lock() {
            return out;
        }
        let start = Instant::now();
        let out = self.out.lock().await;
        self.context.step.add_waiting_output(start.elapsed());
        out
    }

    fn write(&self, out: &mut Out, bytes: &[u8]) -> Result<()> {
        let written = self.context.step.writing(|| blocking(|| write_all(&mut out.file, bytes)));
        written.map_err(|error| Error::io("cannot write to standard output", &error))?;
        self.context.step.add_bytes(bytes.len() as u64);
        Ok(())
    }

    /// Encodes rows into the one stream, and writes what is ready.
    async fn stream_rows(&self, batch: &RecordBatch, scratch: &mut Vec<u8>) -> Result<()> {
        let mut guard = self.lock().await;
        let out = &mut *guard;
        let mut bytes = Vec::new();
        for from in (0..batch.num_rows()).step_by(ENCODE_ROWS) {
            let slice = batch.slice(from, ENCODE_ROWS.min(batch.num_rows() - from));
            if out.stream.is_none() {
                out.stream = Some(self.encoding.stream(&self.context.schema, !out.begun)?);
                out.begun = true;
            }
            let mut relieved = false;
            if let Some(stream) = &mut out.stream {
                relieved = self.context.step.busy(|| {
                    stream.encode(&slice, scratch, &mut bytes)?;
                    stream.charge(&mut out.charge, scratch, &mut bytes)
                })?;
            }
            if relieved || bytes.len() >= PIECE_BYTES {
                self.write(out, &bytes)?;
                bytes.clear();
            }
        }
        out.rows += batch.num_rows() as u64;
        self.write(out, &bytes)?;
        // Less than before, so it is never refused.
        let _ = out.charge.set(out.stream.as_ref().map_or(0, EncodeStream::held));
        Ok(())
    }

    /// Writes a piece that is complete.
    async fn write_piece(&self, bytes: &[u8], rows: u64) -> Result<()> {
        let mut out = self.lock().await;
        if !out.begun {
            out.begun = true;
            let beginning = self.encoding.beginning(&self.context.schema)?;
            self.write(&mut out, &beginning)?;
        }
        out.rows += rows;
        self.write(&mut out, bytes)
    }
}

/// Writes all of `bytes`, also to a pipe in non-blocking mode.
fn write_all(file: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes one partition.
struct StdoutWriter {
    shared: Arc<Shared>,
    piece: Option<Piece>,
    scratch: Vec<u8>,
}

/// Rows that are encoded and not written yet.
struct Piece {
    rows: Box<dyn RowEncoder>,
    text: Vec<u8>,
    count: u64,
}

#[async_trait]
impl Writer for StdoutWriter {
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        if !shared.pieces {
            return shared.stream_rows(&batch, &mut self.scratch).await;
        }
        for from in (0..batch.num_rows()).step_by(ENCODE_ROWS) {
            let slice = batch.slice(from, ENCODE_ROWS.min(batch.num_rows() - from));
            let mut piece = match self.piece.take() {
                Some(piece) => piece,
                None => {
                    Piece { rows: shared.encoding.rows(&shared.context.schema, false)?, text: Vec::new(), count: 0 }
                }
            };
            shared.context.step.busy(|| piece.rows.encode(&slice, &mut piece.text))?;
            piece.count += slice.num_rows() as u64;
            let full = piece.text.len() >= PIECE_BYTES;
            self.piece = Some(piece);
            if full {
                self.close().await?;
            }
        }
        Ok(())
    }

    async fn close(&mut self) -> Result<()> {
        let Some(mut piece) = self.piece.take() else { return Ok(()) };
        let bytes = self.shared.context.step.busy(|| {
            piece.rows.finish(&mut piece.text)?;
            self.shared.encoding.compress(piece.text)
        })?;
        self.shared.write_piece(&bytes, piece.count).await
    }
}
