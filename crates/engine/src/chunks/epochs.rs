//! A sink that takes rows of a queue, an epoch after the other: from messages to groups, and from a group to one
//! transaction that moves the positions behind its messages. Who gathers epochs, and when, is decided elsewhere.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use datafusion::physical_plan::ExecutionPlan;
use futures::TryStreamExt;
use millstream_core::positions::{Move, Positions};
use millstream_core::queue::{Lack, MessageBatch, Messages, Queue};
use millstream_core::sink::{Chunk, Delivered, Delivery, KnownLoad, Ledger, WrittenChunks};
use millstream_core::{Error, ErrorKind, RejectKind, Result};
use millstream_state::rejects::ChunkId;

use super::group::{ChunkRows, Group};
use super::load::{ChunkLoad, Loading};
use super::pipeline::Pipeline;
use super::units::UnitNotes;
use crate::member::MemberPlace;
use crate::read::messages::ReadMessages;
use crate::read::rows::Piece;
use crate::rejects::{Entry, Refusal, of_parser, of_row};
use crate::report::Tally;

/// The first pause before what was away is asked again, and the longest: each is twice as long as the one before.
pub const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// A sink that takes epochs.
pub struct EpochLoad {
    loading: Arc<Loading>,
    ledger: Arc<EpochLedger>,
    unit: Arc<UnitNotes>,
    queue: Arc<dyn Queue>,
}

impl EpochLoad {
    /// Loads what the pipeline of `load` gives of the messages of `queue`, which the process `process` reads.
    /// `positions` are those of the sink, and `load` is what a load chunk by chunk is made from.
    pub fn new(
        positions: Arc<dyn Positions>,
        queue: Arc<dyn Queue>,
        process: &str,
        load: impl FnOnce(Arc<dyn Ledger>) -> ChunkLoad,
    ) -> Self {
        let ledger = Arc::new(EpochLedger { positions, moves: Mutex::default() });
        let unit = Arc::new(UnitNotes::of_queue(&queue.shown(), process));
        let loading = load(Arc::clone(&ledger) as Arc<dyn Ledger>).into_epochs();
        EpochLoad { loading, ledger, unit, queue }
    }

    fn pipeline(&self) -> &Pipeline {
        &self.loading.load.pipelines[0]
    }

    /// The rows of a batch.
    ///
    /// # Errors
    /// If more is refused than the job allows.
    pub async fn read(&self, batch: &Arc<MessageBatch>) -> Result<Vec<ChunkRows>> {
        let chunk = Chunk { unit: self.unit.key.clone(), number: batch.number };
        let of = |only| Arc::new(ReadMessages { batch: Arc::clone(batch), only, queue: Arc::clone(&self.queue) });
        if self.is_one_text(&batch.messages) {
            let mut read = Vec::new();
            self.read_text(&chunk, of(None), &mut read).await?;
            return Ok(read);
        }
        let lacking = lacking(&batch.messages);
        let mut read = self.refuse_lacking(&chunk, &of(None), &lacking)?;
        for number in (0..batch.messages.len()).filter(|number| !lacking.contains_key(number)) {
            self.read_text(&chunk, of(Some(number)), &mut read).await?;
        }
        Ok(read)
    }

    /// Whether the messages can be parsed as one text, with the rows and rejects that each gives by itself: they are
    /// objects of JSON, each on one line. A record of JSON lines ends with its line, whatever is wrong with it; of
    /// other formats it may not (a quote of CSV), and what is packed begins otherwise.
    fn is_one_text(&self, messages: &Messages) -> bool {
        let Some(format) = self.pipeline().read().reader().stream_format() else { return false };
        let head = &messages.text()[..messages.text().len().min(4 << 10)];
        format.name() == "json"
            && format.splitter(head).is_some()
            && memchr::memchr_iter(b'\n', messages.text()).count() == messages.len()
            && (0..messages.len()).all(|number| messages.body(number).starts_with(b"{"))
    }

    async fn read_text(&self, chunk: &Chunk, messages: Arc<ReadMessages>, read: &mut Vec<ChunkRows>) -> Result<()> {
        let raw = self.loading.load.wants_raw();
        let mut pieces = self.pipeline().read().pieces_of_messages(Arc::clone(&messages), raw);
        while let Some((_, piece)) = pieces.try_next().await? {
            match piece {
                Piece::Rows(rows) => {
                    self.loading.came.read.fetch_add(rows.batch.num_rows() as u64, Ordering::Relaxed);
                    let text = rows.batch.get_array_memory_size();
                    let (chunk, messages) = (chunk.clone(), Arc::clone(&messages));
                    read.push(ChunkRows::of_messages(chunk, &self.unit, rows, messages, text));
                }
                Piece::Rejects(rejects, member) => {
                    let refusals = rejects.into_iter().map(|reject| self.refusal(&messages, &member, reject));
                    read.push(self.refuse(chunk, refusals.collect())?);
                }
                Piece::Settled | Piece::End => {}
            }
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn refusal(
        &self,
        messages: &ReadMessages,
        member: &MemberPlace,
        reject: millstream_core::format::Reject,
    ) -> Refusal {
        let origin = messages.origin(self.pipeline().read().source(), reject.byte);
        let rejects = &self.loading.load.rejects;
        let refusal = of_parser(rejects, &origin.source, &origin.uri, member, reject);
        let mut line = origin.line(refusal.line.rejected.clone(), rejects);
        line.rejected.id.clone_from(&origin.id);
        Refusal { line, error: origin.place(refusal.error) }
    }

    /// Messages that have no body are rejects.
    fn refuse_lacking(
        &self,
        chunk: &Chunk,
        messages: &ReadMessages,
        lacking: &BTreeMap<usize, Lack>,
    ) -> Result<Vec<ChunkRows>> {
        let source = self.pipeline().read().source().to_owned();
        let rejects = &self.loading.load.rejects;
        let refusal = |(number, lack): (&usize, &Lack)| {
            let (what, hint) = match lack {
                Lack::Gone => ("the message was deleted before it was read", "do not delete or trim unread messages"),
                Lack::NoField => {
                    ("the message has several fields, and none is named as its body", "name it: `field: body`")
                }
                Lack::Null => ("the message has no body", "filter such messages out, or allow them with `max_rejects`"),
            };
            let origin = messages.origin_of(&source, *number);
            let error = origin.place(Error::data(what).hint(hint).reject(RejectKind::Null).in_step(&source));
            let line = of_row(&source, None, &error, None);
            Refusal { line: origin.line(line, rejects), error }
        };
        match lacking.is_empty() {
            true => Ok(Vec::new()),
            false => {
                self.pipeline().read().reader().steps.parse.add_rejected(lacking.len() as u64);
                self.refuse(chunk, lacking.iter().map(refusal).collect()).map(|rows| vec![rows])
            }
        }
    }

    fn refuse(&self, chunk: &Chunk, mut refusals: Vec<Refusal>) -> Result<ChunkRows> {
        let (load, read) = (&self.loading.load, self.pipeline().read());
        for refusal in &mut refusals {
            refusal.line.chunk = Some(ChunkId::new(&load.name, chunk));
        }
        let lines = refusals.iter().map(|refusal| refusal.line.clone()).collect();
        load.rejects.take(&Entry::Step(read.source().to_owned()), refusals)?;
        let none = arrow::array::RecordBatch::new_empty(read.schema());
        Ok(ChunkRows::rejects(chunk.clone(), &self.unit, none, lines))
    }

    /// These rows are dropped: their messages come again.
    pub fn drop_rows(&self, rows: &[ChunkRows]) {
        self.come_again(rows.iter().map(ChunkRows::count).sum(), rows.iter().map(ChunkRows::rejected).sum());
    }

    /// Takes back what was counted of records that come again: `rows`, and those that the parser has `rejected`.
    fn come_again(&self, rows: u64, rejected: u64) {
        self.loading.came.before.fetch_add(rows, Ordering::Relaxed);
        self.loading.came.rejected_before.fetch_add(rejected, Ordering::Relaxed);
        if let Some(limit) = self.loading.load.rejects.of_step(self.pipeline().read().source()) {
            limit.roll_back(rejected);
            limit.roll_back_came(rows + rejected);
        }
    }

    /// Writes the rows of an epoch and makes the moves, in one transaction; as often as it takes while the target is
    /// away. `None` if the run is to end meanwhile: then the rows are dropped. `waits` hears that the target is away,
    /// and that it is back.
    pub async fn deliver(
        &self,
        rows: Vec<ChunkRows>,
        moves: Vec<Move>,
        waits: &dyn Waits,
    ) -> Result<Option<Delivered>> {
        let rejected = rows.iter().map(ChunkRows::rejected).sum();
        let mut group = Group::new(0, &self.loading.load.budget);
        rows.into_iter().for_each(|rows| group.push(rows));
        let (group, name) = (Arc::new(group), &self.loading.load.name);
        let delivered = self.deliver_group(&group, moves, waits).await.map_err(|error| error.in_step(name))?;
        if !matches!(delivered, Some(Delivered::Written { .. })) {
            self.come_again(group.count(), rejected);
        }
        Ok(delivered)
    }

    async fn deliver_group(
        &self,
        group: &Arc<Group>,
        moves: Vec<Move>,
        waits: &dyn Waits,
    ) -> Result<Option<Delivered>> {
        let (name, mut pause) = (&self.loading.load.name, PAUSES.0);
        loop {
            *self.ledger.moves.lock().unwrap_or_else(PoisonError::into_inner) = moves.clone();
            match self.loading.try_deliver(group).await {
                Err(error) if error.kind() == ErrorKind::Transient => {
                    waits.waiting(name, &error);
                    if waits.pause(pause).await {
                        return Ok(None);
                    }
                    pause = (pause * 2).min(PAUSES.1);
                }
                Err(error) => return Err(error),
                Ok(delivered) => {
                    waits.back(name);
                    return Ok(Some(delivered));
                }
            }
        }
    }

    /// What has become of the records so far, none of which may be missing.
    pub fn tally(&self) -> Result<Tally> {
        self.loading.tally(self.loading.rows.load(Ordering::Relaxed))
    }

    /// What there is now: "252 rows added to table t".
    pub fn summary(&self) -> String {
        self.ledger.positions.summary(self.loading.rows.load(Ordering::Relaxed))
    }

    /// Waits until no commit is under way, and lets none begin any more.
    pub async fn end_commits(&self) {
        let end_soon = self.ledger.positions.stop_waiting();
        self.loading.load.commits.end(end_soon).await;
    }
}

/// Receives when a target is away and when it is back, and ends the waiting.
#[async_trait]
pub trait Waits: Send + Sync {
    /// The sink waits for its target, for this reason.
    fn waiting(&self, sink: &str, error: &Error);

    /// The target has answered.
    fn back(&self, sink: &str);

    /// Waits for so long, or until the run is to end; whether it is.
    async fn pause(&self, pause: Duration) -> bool;
}

/// The messages that have no body, or a blank one, which no format would see.
fn lacking(messages: &Messages) -> BTreeMap<usize, Lack> {
    let is_blank = |number: &usize| messages.body(*number).trim_ascii().is_empty();
    let blank = (0..messages.len()).filter(is_blank).map(|number| (number, Lack::Null));
    blank.chain(messages.lacking().iter().copied()).collect()
}

/// Positions as a ledger: what a delivery notes are moves, whatever its chunks are.
struct EpochLedger {
    positions: Arc<dyn Positions>,
    /// Those of the epoch that is delivered.
    moves: Mutex<Vec<Move>>,
}

#[async_trait]
impl Ledger for EpochLedger {
    async fn written(&self) -> Result<WrittenChunks> {
        Ok(WrittenChunks::new([], str::to_owned))
    }

    async fn written_of(&self, _: &str) -> Result<WrittenChunks> {
        self.written().await
    }

    async fn roll_back(&self, _: u64) -> Result<()> {
        Err(Error::internal("positions are not rolled back"))
    }

    fn target(&self) -> String {
        self.positions.target()
    }

    async fn delivery(&self, _: Vec<Chunk>, bad_rows: usize) -> Result<Box<dyn Delivery>> {
        let moves = self.moves.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.positions.delivery(moves, bad_rows).await
    }

    fn stop_waiting(&self) -> bool {
        self.positions.stop_waiting()
    }

    fn connections(&self) -> usize {
        self.positions.connections()
    }

    async fn forget(&self, _: &str) -> Result<()> {
        Ok(())
    }

    async fn forget_unwritten(&self, _: &str) -> Result<bool> {
        Ok(false)
    }

    fn summary(&self, rows: u64) -> String {
        self.positions.summary(rows)
    }

    async fn loads(&self) -> Result<Vec<KnownLoad>> {
        Ok(Vec::new())
    }
}
