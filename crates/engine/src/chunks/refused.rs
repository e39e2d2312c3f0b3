//! What is left out of a load chunk by chunk: records that the parser refuses on their way into a group, and rows of a
//! group that an expression or the target refuses.
//!
//! Rejects of a chunk are in the file before its notes are committed, and are counted once, however often it is
//! delivered.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::{AsArray, RecordBatch, UInt64Array};
use arrow::datatypes::UInt64Type;
use datafusion::physical_plan::ExecutionPlan;
use millstream_core::format::Reject;
use millstream_core::reject::Rejected;
use millstream_core::sink::{Chunk, RefusedRow};
use millstream_core::{Error, Result, fail_point};

use super::group::{ChunkRows, Group};
use super::load::{Computed, Loading};
use super::pipeline::Pipeline;
use super::shared::{Keeper, KeptDelivery};
use super::span::Span;
use super::units::{UnitNotes, Units};
use crate::checks::{CheckCounts, EntryChecks};
use crate::member::MemberPlace;
use crate::rejects::take::TakeRow;
use crate::rejects::{Entry, Refusal, Rejects, allowing, line, of_parser, of_refused, of_row};
use crate::report::Tally;
use millstream_state::rejects::{CheckedRows, ChunkId, RejectLine};

/// What the parser has refused of the member that a task reads, and no group has yet, in the order of the text.
///
/// A reject comes before the rows that stand behind it, but rows that stand before it may come later. So it waits until
/// rows of its chunk come, or of one behind it, or no earlier ones can come any more.
#[derive(Default)]
pub(super) struct Refused(VecDeque<(Chunk, Arc<UnitNotes>, RejectLine)>);

impl Refused {
    /// Takes what was refused of `unit`, unless its chunk is written. Too much of it is an error.
    pub(super) fn take(
        &mut self,
        (loading, number): (&Loading, usize),
        units: &Units,
        uri: &str,
        unit: &Arc<UnitNotes>,
        member: &MemberPlace,
        rejects: Vec<Reject>,
    ) -> Result<()> {
        let (all, sink) = (&loading.load.rejects, &loading.load.name);
        let reader = loading.load.pipelines[number].read().reader();
        let source = units.source();
        let mut refusals = Vec::new();
        for reject in rejects {
            let chunk = unit.chunk(member, reject.byte, loading.chunk_bytes);
            if units.is_written(&chunk) {
                all.of_step(source).iter().for_each(|limit| limit.roll_back_came(1));
                match loading.load.by_workers.have_written(&chunk) {
                    false => drop(loading.came.rejected_before.fetch_add(1, Ordering::Relaxed)),
                    true => reader.steps.parse.leave_out_rejected(1),
                }
                continue;
            }
            let mut refusal = of_parser(all, source, uri, member, reject);
            refusal.line.chunk = Some(ChunkId::new(sink, &chunk));
            self.0.push_back((chunk, Arc::clone(unit), refusal.line.clone()));
            refusals.push(refusal);
        }
        // They are reported even if the chunk is never delivered.
        all.take(&Entry::Step(source.to_owned()), refusals)
    }

    /// The rejects of chunks up to that of the rows which come now; all of them, if no earlier rows can come any more.
    pub(super) fn before(&mut self, chunk: Option<&Chunk>, pipeline: &Pipeline) -> Vec<ChunkRows> {
        let due = |one: &Chunk| chunk.is_none_or(|now| one.unit != now.unit || one.number <= now.number);
        let mut out = Vec::new();
        while let Some((chunk, unit, line)) = self.0.pop_front_if(|(one, ..)| due(one)) {
            let mut lines = vec![line];
            while let Some((_, _, line)) = self.0.pop_front_if(|(one, ..)| *one == chunk) {
                lines.push(line);
            }
            out.push(ChunkRows::rejects(chunk, &unit, RecordBatch::new_empty(pipeline.read().schema()), lines));
        }
        out
    }
}

/// One try to deliver a group.
pub(super) struct Attempt {
    rejects: Arc<Rejects>,
    sink: String,
    /// The table, for messages.
    place: String,
    source: String,
    group: Arc<Group>,
    /// The first run of the resume chain, if the ledger notes of which units records are rejected.
    notes_units_of: Option<String>,
    /// Keeps what is refused, if this is a worker of a cluster.
    keeper: Option<Arc<dyn Keeper>>,
    state: Mutex<State>,
    counted: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Which rows of the group went into the delivery.
    sent: Vec<UInt64Array>,
    /// Rows on which an expression has failed: the step, and what is kept of it.
    failed: Vec<(String, Refusal)>,
    /// Rows that the target has refused.
    refused: u64,
    /// What checks have counted.
    checked: Vec<(Arc<EntryChecks>, Arc<CheckCounts>)>,
    /// Whether something was refused that may be of several units.
    is_inexact: bool,
    /// How much is noted of units of which records are rejected.
    further: u64,
    /// What its records have become.
    computed: Computed,
    /// The number under which it is kept.
    kept: Option<u64>,
}

impl Attempt {
    pub(super) fn new(loading: &Loading, group: &Arc<Group>) -> Self {
        Attempt {
            rejects: Arc::clone(&loading.load.rejects),
            sink: loading.load.name.clone(),
            place: loading.load.ledger.target(),
            source: loading.load.pipelines[group.pipeline].read().source().to_owned(),
            group: Arc::clone(group),
            notes_units_of: loading.load.notes_rejects_of.clone(),
            keeper: loading.load.bundle.as_ref().map(|bundle| Arc::clone(&bundle.keeper)),
            state: Mutex::default(),
            counted: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These rows of the group are on their way.
    pub(super) fn sent(&self, numbers: &UInt64Array) {
        self.lock().sent.push(numbers.clone());
    }

    /// How many are.
    pub(super) fn sent_rows(&self) -> u64 {
        self.lock().sent.iter().map(|numbers| numbers.len() as u64).sum()
    }

    /// Takes what checks have counted of its rows.
    pub(super) fn checked(&self, checked: Vec<(Arc<EntryChecks>, Arc<CheckCounts>)>) {
        self.lock().checked = checked;
    }

    /// Takes what its records have become.
    pub(super) fn computed(&self, computed: Computed) {
        self.lock().computed = computed;
    }

    /// It is committed.
    pub(super) fn committed(&self) {
        let kept = self.lock().kept;
        self.keeper.iter().zip(kept).for_each(|(keeper, number)| keeper.committed(number));
    }

    /// What becomes of its records, of which the target refuses so many.
    fn tally(&self) -> Tally {
        let (sent, (count, by_parser)) = (self.sent_rows(), self.group.counts());
        let state = self.lock();
        let (failed, refused, Computed { left_out, answered, given }) =
            (state.failed.len() as u64, state.refused, state.computed);
        let filtered = left_out + given as i64 - answered as i64 - failed as i64;
        Tally {
            read: count + by_parser,
            written: sent.saturating_sub(refused),
            filtered: filtered.unsigned_abs(),
            rejected: failed + refused + by_parser,
            answered,
            given,
            ..Tally::default()
        }
    }

    /// It is committed: what checks have counted is counted for the run.
    pub(super) fn count_checked(&self) {
        self.lock().checked.iter().for_each(|(checks, counts)| checks.counts.add(counts));
    }

    /// How many rows could not be computed.
    pub(super) fn failed(&self) -> u64 {
        self.lock().failed.len() as u64
    }

    /// What is kept of a row from the records `span` of the group.
    fn refusal(
        &self,
        span: Option<Span>,
        error: Error,
        rejected: impl FnOnce(Option<&RecordBatch>) -> Rejected,
    ) -> Refusal {
        // A row that was given for a batch is none that was read.
        let row = span.filter(|span| span.last.is_none()).and_then(|span| self.group.row(span.first));
        if span.is_none_or(|span| span.last.is_some()) {
            self.lock().is_inexact = true;
        }
        match span.and_then(|span| self.group.origin_of(&self.source, span)) {
            None => Refusal { line: line(rejected(row.as_ref()), None), error },
            Some((origin, chunk)) => {
                let mut line = origin.line(rejected(row.as_ref()), &self.rejects);
                line.chunk = Some(ChunkId::new(&self.sink, chunk));
                Refusal { line, error: origin.place(error) }
            }
        }
    }

    /// What is kept of a row that the target refuses.
    fn refused(&self, row: &RefusedRow) -> Refusal {
        let mut left = usize::try_from(row.row).unwrap_or(usize::MAX);
        let number = self.lock().sent.iter().find_map(|numbers| {
            let here = left < numbers.len();
            let number = here.then(|| numbers.value(left));
            left = left.saturating_sub(numbers.len());
            number
        });
        let alone = millstream_core::sink::Refused { rows: vec![row.clone()], more: false };
        let error = alone.into_error(&self.place).in_step(&self.sink);
        self.refusal(number.map(Span::unpack), error, |read| of_refused(&self.sink, row, read))
    }

    /// Whether the delivery may be committed without the rows that the target refuses, and those that could not be
    /// computed. Then they are kept when this returns; with what the ledger notes of it.
    pub(super) fn accept(&self, refused: &millstream_core::sink::Refused) -> Result<Vec<Chunk>> {
        let by_target: Vec<Refusal> = refused.rows.iter().map(|row| self.refused(row)).collect();
        self.counted.store(true, Ordering::Relaxed);
        if let Some(limit) = self.rejects.of_sink(&self.sink) {
            limit.add_came(self.sent_rows());
        }
        if let Some(first) = by_target.first() {
            let entry = Entry::Sink(self.sink.clone());
            let Some(limit) = self.rejects.of_sink(&self.sink) else {
                let whole = refused.clone().into_error(&self.place);
                let place = first.error.location();
                let whole = place.uri.iter().fold(whole, |error, uri| error.in_unit(uri, place.member.as_deref()));
                let whole = place.line.into_iter().fold(whole, Error::line);
                return Err(allowing(place.last_line.into_iter().fold(whole, Error::last_line), &entry));
            };
            self.lock().refused = by_target.len() as u64;
            self.rejects.count(&entry, &limit, &by_target)?;
        }
        let failed = std::mem::take(&mut self.lock().failed);
        for (step, refusal) in &failed {
            if let Some(limit) = self.rejects.of_step(step) {
                self.rejects.count(&Entry::Step(step.clone()), &limit, std::slice::from_ref(refusal))?;
            }
        }
        let own = self.group.rejects().map(|(line, _)| line.clone());
        let lines: Vec<RejectLine> = own
            .chain(failed.iter().map(|(_, refusal)| refusal.line.clone()))
            .chain(by_target.into_iter().map(|one| one.line))
            .collect();
        self.lock().failed = failed;
        let checked = self.lock().checked.iter().map(|(checks, counts)| checks.noted(counts)).collect();
        let notes = self.notes_units_of.as_ref().map_or_else(Vec::new, |chain| self.units_with(&lines, chain));
        self.lock().further = notes.len() as u64;
        self.keep(lines, checked)?;
        fail_point::pass("rejects.after");
        Ok(notes)
    }

    /// How much of that there is.
    pub(super) fn further(&self) -> u64 {
        self.lock().further
    }

    /// What notes that records of units were rejected, as `lines` say.
    fn units_with(&self, lines: &[RejectLine], chain: &str) -> Vec<Chunk> {
        let first_of = |unit: &Arc<UnitNotes>| {
            let mut own = lines.iter().filter(|line| line.rejected.uri.as_ref() == Some(&unit.name));
            let ChunkId { unit: of, number, .. } = own.find_map(|line| line.chunk.as_ref())?;
            Some(unit.rejects_note(&self.sink, chain, &Chunk { unit: of.clone(), number: *number }, true))
        };
        if lines.is_empty() {
            return Vec::new();
        }
        let mut notes: Vec<Chunk> = self.group.units().filter_map(first_of).collect();
        if self.lock().is_inexact {
            let of_any = |(unit, chunk): (&Arc<UnitNotes>, _)| unit.rejects_note(&self.sink, chain, chunk, false);
            notes.extend(self.group.first_chunks().map(of_any));
        }
        notes
    }

    fn keep(&self, lines: Vec<RejectLine>, checked: Vec<CheckedRows>) -> Result<()> {
        if let Some(keeper) = &self.keeper {
            let number = keeper.number();
            let chunks = self.group.chunks().into_iter().map(|chunk| (chunk.unit, chunk.number)).collect();
            let tally = self.tally();
            self.lock().kept = Some(number);
            return keeper.keep(KeptDelivery {
                number,
                sink: self.sink.clone(),
                source: self.source.clone(),
                chunks,
                tally,
                by_parser: self.group.counts().1,
                sent: self.sent_rows(),
                left_out: Default::default(),
                rejects: lines,
                checked,
            });
        }
        let Some(log) = self.rejects.log() else {
            return if lines.is_empty() { Ok(()) } else { self.rejects.known_log().map(drop) };
        };
        if lines.is_empty() && checked.is_empty() && !log.is_pending() {
            return Ok(());
        }
        let chunks: Vec<ChunkId> = self.group.chunks().iter().map(|chunk| ChunkId::new(&self.sink, chunk)).collect();
        let lines = lines.into_iter().map(|line| self.rejects.as_kept(line)).collect();
        log.add_delivery(chunks, lines, checked, self.rejects.came())
    }

    /// It was not committed, and is done again, or is the end of the run.
    pub(super) fn roll_back(&self) {
        if !self.counted.swap(false, Ordering::Relaxed) {
            return;
        }
        let sent = self.sent_rows();
        let state = self.lock();
        if let Some(limit) = self.rejects.of_sink(&self.sink) {
            limit.roll_back(state.refused);
            limit.roll_back_came(sent);
        }
        for (step, _) in &state.failed {
            self.rejects.of_step(step).iter().for_each(|limit| limit.roll_back(1));
        }
    }
}

impl TakeRow for Attempt {
    fn place(&self, row: &RecordBatch, error: Error) -> Error {
        match span_of(row).and_then(|span| self.group.origin_of(&self.source, span)) {
            Some((origin, _)) => origin.place(error),
            None => error,
        }
    }

    fn take(&self, step: &str, row: &RecordBatch, error: Error) -> Result<()> {
        let last = row.num_columns().saturating_sub(1);
        let span = span_of(row);
        let given = row.slice(0, 1).project(&(0..last).collect::<Vec<_>>()).ok();
        let refusal =
            self.refusal(span, error.clone(), |read| of_row(step, Some(&self.sink), &error, read.or(given.as_ref())));
        // How many there may be is judged when the group is complete.
        self.lock().failed.push((step.to_owned(), refusal));
        Ok(())
    }
}

/// Which records `row`, a batch of one, is from.
fn span_of(row: &RecordBatch) -> Option<Span> {
    row.columns().last().map(|spans| Span::unpack(spans.as_primitive::<UInt64Type>().value(0)))
}
