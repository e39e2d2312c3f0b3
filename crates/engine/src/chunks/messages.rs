//! Reads the messages of a queue, once for all sinks: from a batch of messages to rows and rejects.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::physical_plan::ExecutionPlan;
use futures::TryStreamExt;
use millstream_core::queue::{Lack, MessageBatch, Messages, Queue, SinkSet};
use millstream_core::sink::Chunk;
use millstream_core::{Error, RejectKind, Result};
use millstream_state::rejects::{ChunkId, RejectLine};

use super::group::{ChunkRows, counts};
use super::pipeline::Pipeline;
use super::units::UnitNotes;
use crate::member::MemberPlace;
use crate::read::exec::ReadExec;
use crate::read::messages::ReadMessages;
use crate::read::rows::Piece;
use crate::rejects::{Entry, Refusal, Rejects, allowing, of_parser, of_row};

/// Reads batches of messages. What it refuses counts, and is logged, for the first sink alone: which lacks the
/// messages until they are logged. It is logged when its rows are delivered, and at once if the run ends for it.
pub struct MessageReader {
    pipeline: Pipeline,
    queue: Arc<dyn Queue>,
    unit: Arc<UnitNotes>,
    rejects: Arc<Rejects>,
    /// The name of the first sink.
    logs: String,
    wants_raw: bool,
    /// What was refused of batches that are not written yet, by their numbers.
    waiting: Mutex<HashMap<u64, Vec<Arc<[RejectLine]>>>>,
}

/// The bit of the first sink.
const FIRST_SINK: SinkSet = 1;

impl MessageReader {
    /// Reads `queue` as `pipeline`, that of the sink `first`, does, for the process `process`.
    pub fn new(
        pipeline: Pipeline,
        queue: Arc<dyn Queue>,
        process: &str,
        first: &str,
        rejects: Arc<Rejects>,
        wants_raw: bool,
    ) -> Self {
        let unit = Arc::new(UnitNotes::of_queue(&queue.shown(), process));
        let waiting = Mutex::default();
        MessageReader { pipeline, queue, unit, rejects, logs: first.to_owned(), wants_raw, waiting }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, Vec<Arc<[RejectLine]>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These batches are written, or dropped.
    pub fn is_done_with(&self, batches: impl IntoIterator<Item = u64>) {
        let mut waiting = self.waiting();
        batches.into_iter().for_each(|batch| drop(waiting.remove(&batch)));
    }

    fn read_exec(&self) -> &ReadExec {
        self.pipeline.read()
    }

    /// The rows of a batch, and what was refused of it.
    ///
    /// # Errors
    /// If more is refused than the job allows.
    pub async fn read(&self, batch: MessageBatch) -> Result<Vec<ChunkRows>> {
        let is_logged = batch.sinks & FIRST_SINK != 0;
        let read = self.rows(&Arc::new(batch)).await?;
        if !is_logged {
            // The records have come before, and what was refused of them is counted.
            let (rows, rejected) = counts(&read);
            self.take_back(rows + rejected, 0);
        }
        Ok(read)
    }

    async fn rows(&self, batch: &Arc<MessageBatch>) -> Result<Vec<ChunkRows>> {
        let kept = self.kept(batch);
        let of = |batch: &Arc<MessageBatch>, only| {
            Arc::new(ReadMessages { batch: Arc::clone(batch), only, queue: Arc::clone(&self.queue) })
        };
        let mut read = Vec::new();
        if self.is_one_text(&batch.messages) {
            self.read_text(of(batch, None), of(&kept, None), &mut read).await?;
            return Ok(read);
        }
        let lacking = lacking(&batch.messages);
        read.extend(self.refuse_lacking(&of(batch, None), &lacking)?);
        for number in (0..batch.messages.len()).filter(|number| !lacking.contains_key(number)) {
            self.read_text(of(batch, Some(number)), of(&kept, Some(number)), &mut read).await?;
        }
        Ok(read)
    }

    /// What is kept of a batch as long as its rows may be refused: its text only if that is logged then.
    fn kept(&self, batch: &Arc<MessageBatch>) -> Arc<MessageBatch> {
        if self.wants_raw {
            return Arc::clone(batch);
        }
        let MessageBatch { number, messages, sinks } = batch.as_ref();
        Arc::new(MessageBatch { number: *number, messages: messages.without_text(), sinks: *sinks })
    }

    /// So many rows that the first sink lacks come again, and so many records that were refused.
    pub fn come_again(&self, rows: u64, rejected: u64) {
        self.take_back(rows + rejected, rejected);
    }

    /// Takes back that so many records have come, and that so many of them count as refused.
    fn take_back(&self, records: u64, rejected: u64) {
        if let Some(limit) = self.rejects.of_step(self.read_exec().source()) {
            limit.roll_back(rejected);
            limit.roll_back_came(records);
        }
    }

    /// Whether the messages can be parsed as one text, with the rows and rejects that each gives by itself: they are
    /// objects of JSON, each on one line. A record of JSON lines ends with its line, whatever is wrong with it; of
    /// other formats it may not (a quote of CSV), and what is packed begins otherwise.
    fn is_one_text(&self, messages: &Messages) -> bool {
        let Some(format) = self.read_exec().reader().stream_format() else { return false };
        let head = &messages.text()[..messages.text().len().min(4 << 10)];
        format.name() == "json"
            && format.splitter(head).is_some()
            && memchr::memchr_iter(b'\n', messages.text()).count() == messages.len()
            && (0..messages.len()).all(|number| messages.body(number).starts_with(b"{"))
    }

    /// Reads the text of `messages`; the rows keep `kept` of them.
    async fn read_text(
        &self,
        messages: Arc<ReadMessages>,
        kept: Arc<ReadMessages>,
        read: &mut Vec<ChunkRows>,
    ) -> Result<()> {
        let chunk = self.chunk(&messages);
        let mut pieces = self.read_exec().pieces_of_messages(Arc::clone(&messages), self.wants_raw);
        while let Some((_, piece)) = pieces.try_next().await? {
            match piece {
                Piece::Rows(rows) => {
                    let text = rows.batch.get_array_memory_size();
                    let kept = Arc::clone(&kept);
                    read.push(ChunkRows::of_messages(chunk.clone(), &self.unit, rows, kept, text));
                }
                Piece::Rejects(rejects, member) => {
                    let refusals = rejects.into_iter().map(|reject| self.refusal(&messages, &member, reject));
                    read.push(self.refuse(&messages, refusals.collect())?);
                }
                Piece::Settled | Piece::End => {}
            }
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn chunk(&self, messages: &ReadMessages) -> Chunk {
        Chunk { unit: self.unit.key.clone(), number: messages.batch.number }
    }

    fn refusal(
        &self,
        messages: &ReadMessages,
        member: &MemberPlace,
        reject: millstream_core::format::Reject,
    ) -> Refusal {
        let origin = messages.origin(self.read_exec().source(), reject.byte);
        let refusal = of_parser(&self.rejects, &origin.source, &origin.uri, member, reject);
        let mut line = origin.line(refusal.line.rejected.clone(), &self.rejects);
        line.rejected.id.clone_from(&origin.id);
        Refusal { line, error: origin.place(refusal.error) }
    }

    /// Messages that have no body are rejects.
    fn refuse_lacking(&self, messages: &ReadMessages, lacking: &BTreeMap<usize, Lack>) -> Result<Option<ChunkRows>> {
        if lacking.is_empty() {
            return Ok(None);
        }
        let source = self.read_exec().source().to_owned();
        let refusal = |(number, lack): (&usize, &Lack)| {
            let (what, hint) = match lack {
                Lack::Gone => ("the message was deleted before it was read", "do not delete or trim unread messages"),
                Lack::NoField => {
                    ("the entry has no field that is named as the message", "name it in the source: `field: body`")
                }
                Lack::Null => (
                    "the message is blank, or has no body",
                    "filter such messages out, or allow them with `max_rejects`",
                ),
            };
            let origin = messages.origin_of(&source, *number);
            let error = origin.place(Error::data(what).hint(hint).reject(RejectKind::Null).in_step(&source));
            let line = of_row(&source, None, &error, None);
            Refusal { line: origin.line(line, &self.rejects), error }
        };
        self.read_exec().reader().steps.parse.add_rejected(lacking.len() as u64);
        self.refuse(messages, lacking.iter().map(refusal).collect()).map(Some)
    }

    fn refuse(&self, messages: &ReadMessages, mut refusals: Vec<Refusal>) -> Result<ChunkRows> {
        let (chunk, read) = (self.chunk(messages), self.read_exec());
        for refusal in &mut refusals {
            refusal.line.chunk = Some(ChunkId::new(&self.logs, &chunk));
        }
        let none = arrow::array::RecordBatch::new_empty(read.schema());
        let lines: Arc<[RejectLine]> = refusals.iter().map(|refusal| refusal.line.clone()).collect();
        if messages.batch.sinks & FIRST_SINK != 0 {
            self.count(&refusals)?;
            self.waiting().entry(messages.batch.number).or_default().push(Arc::clone(&lines));
        }
        Ok(ChunkRows::rejects(chunk, &self.unit, none, lines))
    }

    /// Counts what was refused. If it is too much, all that is not logged yet is logged.
    fn count(&self, refusals: &[Refusal]) -> Result<()> {
        let entry = Entry::Step(self.read_exec().source().to_owned());
        let Some(first) = refusals.first() else { return Ok(()) };
        let Some(limit) = self.rejects.of(&entry) else { return Err(allowing(first.error.clone(), &entry)) };
        let counted = self.rejects.count(&entry, &limit, refusals);
        if counted.is_err() {
            let waiting = std::mem::take(&mut *self.waiting());
            self.rejects.keep(waiting.values().flatten().flat_map(|lines| lines.iter().cloned()))?;
            self.rejects.flush()?;
        }
        counted
    }
}

/// The messages that have no body, or a blank one, which no format would see.
fn lacking(messages: &Messages) -> BTreeMap<usize, Lack> {
    let is_blank = |number: &usize| messages.body(*number).trim_ascii().is_empty();
    let blank = (0..messages.len()).filter(is_blank).map(|number| (number, Lack::Null));
    blank.chain(messages.lacking().iter().copied()).collect()
}
