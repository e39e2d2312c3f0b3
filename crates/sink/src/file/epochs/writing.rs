//! From rows to a staged file, and what all files of a load have in common.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use arrow::array::RecordBatch;
use millstream_core::Result;
use millstream_core::sink::LoadContext;

use super::keeper::{EpochDraft, Keeper};
use super::record::EpochFile;
use crate::encode::{EncodeStream, Encoding};
use crate::file::naming::Target;
use crate::shared::{Charge, counted};

/// Rows that are encoded at once.
const ROWS: usize = 8192;

/// About how many bytes are written at once.
const BYTES: usize = 1 << 20;

/// Bytes that a file may always hold.
const FLOOR: usize = 2 * BYTES;

/// The files of a load, as all of its deliveries know them.
pub(super) struct Files {
    pub(super) keeper: Arc<dyn Keeper>,
    pub(super) target: Target,
    encoding: Encoding,
    pub(super) context: LoadContext,
    /// The name of the process.
    pub(super) owner: String,
    /// Drafts and attempts that this process has begun.
    begun: AtomicU64,
    /// Files that it has made.
    made: AtomicU64,
}

/// A file that is being written.
pub(super) struct Writing {
    files: Arc<Files>,
    stream: EncodeStream,
    draft: Box<dyn EpochDraft>,
    /// Encoded bytes.
    pending: Vec<u8>,
    scratch: Vec<u8>,
    charge: Charge,
    rows: u64,
}

impl Writing {
    /// Begins the file at `path`. `prefix` begins the name under which it is staged.
    pub(super) async fn begin(files: &Arc<Files>, prefix: &str, path: &str) -> Result<Self> {
        let stream = files.encoding.stream(&files.context.schema, true)?;
        let draft = files.keeper.draft(&format!("{prefix}{}", files.unique()), path).await?;
        let charge = Charge::new(&files.context.budget, FLOOR);
        Ok(Writing {
            files: Arc::clone(files),
            stream,
            draft,
            pending: Vec::new(),
            scratch: Vec::new(),
            charge,
            rows: 0,
        })
    }

    /// Adds rows.
    pub(super) async fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let step = Arc::clone(&self.files.context.step);
        for from in (0..batch.num_rows()).step_by(ROWS) {
            let slice = batch.slice(from, ROWS.min(batch.num_rows() - from));
            let relieved = step.busy(|| {
                self.stream.encode(&slice, &mut self.scratch, &mut self.pending)?;
                self.stream.charge(&mut self.charge, &mut self.scratch, &mut self.pending)
            })?;
            if relieved || self.pending.len() >= BYTES {
                self.flush().await?;
            }
        }
        self.rows += batch.num_rows() as u64;
        Ok(())
    }

    async fn flush(&mut self) -> Result<()> {
        let bytes = std::mem::take(&mut self.pending);
        let (start, count) = (Instant::now(), bytes.len() as u64);
        self.draft.append(bytes).await?;
        self.files.context.step.add_waiting_output(start.elapsed());
        self.files.context.step.add_bytes(count);
        // Less than before, so it is never refused.
        let _ = self.charge.set(self.stream.held());
        Ok(())
    }

    /// All rows have come: the staged file, and how many there are.
    pub(super) async fn finish(mut self) -> Result<(EpochFile, u64)> {
        let step = Arc::clone(&self.files.context.step);
        step.busy(|| self.stream.finish(&mut self.scratch, &mut self.pending))?;
        self.flush().await?;
        let start = Instant::now();
        let file = self.draft.finish().await?;
        step.add_waiting_output(start.elapsed());
        Ok((file, self.rows))
    }
}

impl Files {
    /// The files of the process `owner`, of which there are none yet.
    pub(super) fn new(
        keeper: Arc<dyn Keeper>,
        target: &Target,
        encoding: &Encoding,
        owner: &str,
        context: LoadContext,
    ) -> Self {
        let (begun, made) = (AtomicU64::new(0), AtomicU64::new(0));
        let (target, encoding, owner) = (target.clone(), encoding.clone(), owner.to_owned());
        Files { keeper, target, encoding, context, owner, begun, made }
    }

    /// A name that nothing else of any process has.
    pub(super) fn unique(&self) -> String {
        format!("{}-{}", self.owner, self.begun.fetch_add(1, Ordering::Relaxed))
    }

    /// The path of the file that has `mark` in its name.
    pub(super) fn path(&self, mark: &str) -> Result<String> {
        self.target.marked(mark)
    }

    /// All files, for messages.
    pub(super) fn shown(&self) -> String {
        self.target.shown_marked("*")
    }

    /// A file has appeared.
    pub(super) fn made_one(&self) {
        self.made.fetch_add(1, Ordering::Relaxed);
        self.context.step.add_units(1);
    }

    /// What there is when `rows` were written.
    pub(super) fn summary(&self, rows: u64) -> String {
        let files = counted(self.made.load(Ordering::Relaxed), "file");
        format!("{} in {files} {}", counted(rows, "row"), self.shown())
    }
}
