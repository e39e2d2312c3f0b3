//! The units of a source as a shared queue: whoever is free takes the next, the largest first. Where the rows have to
//! come in order, there is only one who takes, and takes them as they are listed.
//!
//! To the planner it is a leaf ([`UnitsExec`]) whose rows are units, so that on a cluster another leaf (a table of
//! units) can take its place. Listing goes on while units are read and never holds more than [`WINDOW`] of them: with
//! 260,000 objects "largest first" means the largest of those that are known.

use std::collections::BinaryHeap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use arrow::array::{Array, AsArray, Int64Array, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, UInt64Type};
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::StreamExt;
use millstream_core::{Error, Result, Unit};
use tokio::sync::Notify;

use super::Reader;
use crate::fault;
use crate::node::{EachRound, leaf, streaming};

/// The most units that are known and not yet taken.
pub const WINDOW: usize = 10_000;

/// Small units are handed out together until they have this many bytes.
pub const PORTION_BYTES: u64 = 256 << 10;

/// The most units that are handed out together.
pub const PORTION: usize = 64;

/// The most units that are taken from the listing together.
const LISTED_TOGETHER: usize = 128;

/// A portion is at most this part of the units that are known.
const SHARES: usize = 64;

/// How long the first taker waits for the listing to find larger units.
const FIRST_LOOK: Duration = Duration::from_millis(50);

/// The queue of one source's units. Listing begins when the first unit is asked for.
#[derive(Debug)]
pub struct UnitQueue {
    reader: Arc<Reader>,
    /// Whether the units come as they are listed.
    in_order: bool,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    began: Option<Instant>,
    known: BinaryHeap<BySize>,
    listed: u64,
    end: Option<std::result::Result<(), Error>>,
}

impl State {
    fn settled(&self) -> bool {
        self.end.is_some()
            || self.known.len() >= WINDOW
            || self.began.is_some_and(|began| began.elapsed() >= FIRST_LOOK)
    }

    fn portion(&mut self, most: usize) -> Vec<Unit> {
        // Towards the end the portions become small, so that all who take have something to do.
        let most = most.min(self.known.len() / SHARES).max(1);
        let mut bytes = 0;
        let mut portion = Vec::new();
        while portion.len() < most && bytes < PORTION_BYTES {
            let Some(next) = self.known.pop() else { break };
            bytes += next.unit.bytes().unwrap_or(PORTION_BYTES);
            portion.push(next.unit);
        }
        portion
    }
}

/// Larger units first; among equals the one that was listed first.
#[derive(Debug)]
struct BySize {
    unit: Unit,
    /// 0 where it does not matter.
    size: u64,
    order: u64,
}

impl BySize {
    fn key(&self) -> (u64, std::cmp::Reverse<u64>) {
        (self.size, std::cmp::Reverse(self.order))
    }
}

impl PartialEq for BySize {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl Eq for BySize {}
impl PartialOrd for BySize {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for BySize {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl UnitQueue {
    /// A queue over the units of `reader`.
    pub fn new(reader: Arc<Reader>) -> Arc<Self> {
        UnitQueue::with_order(reader, false)
    }

    /// A queue over the units of `reader`; with `in_order` they come as they are listed.
    fn with_order(reader: Arc<Reader>, in_order: bool) -> Arc<Self> {
        Arc::new(UnitQueue { reader, in_order, state: Mutex::new(State::default()), changed: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The next unit; `None` when all are taken. A fault of the listing goes to every taker.
    pub async fn next(self: &Arc<Self>) -> Result<Option<Unit>> {
        Ok(self.next_some(1).await?.pop())
    }

    /// The next units, at most `most` of them and together no more than about [`PORTION_BYTES`], so that taking one
    /// does not cost more than reading it; none when all are taken.
    pub async fn next_some(self: &Arc<Self>, most: usize) -> Result<Vec<Unit>> {
        self.begin();
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = self.lock();
                if let Some(Err(error)) = &state.end {
                    return Err(error.clone());
                }
                if state.settled() {
                    let portion = state.portion(most);
                    if !portion.is_empty() {
                        drop(state);
                        self.changed.notify_waiters();
                        return Ok(portion);
                    }
                    if state.end.is_some() {
                        return Ok(portion);
                    }
                }
            }
            let _ = tokio::time::timeout(FIRST_LOOK, changed).await;
        }
    }

    /// Starts the listing, once.
    fn begin(self: &Arc<Self>) {
        {
            let mut state = self.lock();
            if state.began.is_some() {
                return;
            }
            state.began = Some(Instant::now());
        }
        let (queue, io) = (Arc::clone(self), &self.reader.context.io);
        let listing = io.spawn(async move { queue.list().await });
        let queue = Arc::clone(self);
        io.spawn(async move {
            // Whoever waits for units hears of a listing that broke, too.
            let end = listing.await.unwrap_or_else(|join| Err(Error::internal("the listing failed").cause(join)));
            queue.lock().end = Some(end);
            queue.changed.notify_waiters();
        });
    }

    async fn list(&self) -> Result<()> {
        let steps = &self.reader.steps;
        // What is there at once is handed over together.
        let mut portions = self.reader.list_once().ready_chunks(LISTED_TOGETHER);
        let mut before = Instant::now();
        while let Some(portion) = portions.next().await {
            steps.list.add_busy(before.elapsed());
            let mut units = portion.into_iter();
            while units.len() > 0 {
                let room = self.wait_for_room().await;
                self.add(units.by_ref().take(room))?;
            }
            before = Instant::now();
        }
        steps.list.add_busy(before.elapsed());
        if self.lock().listed == 0 && !self.reader.may_be_empty() {
            return Err(self.reader.nothing(&self.reader.patterns));
        }
        Ok(())
    }

    /// Adds units to those that are known, up to the first fault.
    fn add(&self, units: impl Iterator<Item = Result<Unit>>) -> Result<()> {
        let steps = &self.reader.steps;
        let (mut count, mut bytes, mut fault) = (0, 0, None);
        {
            let mut state = self.lock();
            for unit in units {
                match unit {
                    Ok(unit) => {
                        count += u64::from(unit.is_beginning());
                        bytes += unit.bytes().unwrap_or(0);
                        let order = state.listed;
                        state.listed += 1;
                        let size = if self.in_order { 0 } else { unit.bytes().unwrap_or(0) };
                        state.known.push(BySize { unit, size, order });
                    }
                    Err(error) => {
                        fault = Some(error);
                        break;
                    }
                }
            }
        }
        steps.list.add_rows(count);
        steps.fetch.expect(count, bytes);
        self.changed.notify_waiters();
        fault.map_or(Ok(()), Err)
    }

    /// Waits until more units may be known; how many.
    async fn wait_for_room(&self) -> usize {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let room = WINDOW.saturating_sub(self.lock().known.len());
            if room > 0 {
                return room;
            }
            changed.await;
        }
    }
}

/// The columns of a unit as a row.
fn unit_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("uri", DataType::Utf8, false),
        Field::new("range_start", DataType::UInt64, true),
        Field::new("range_end", DataType::UInt64, true),
        Field::new("records", DataType::Utf8, true),
        Field::new("size", DataType::UInt64, true),
        Field::new("etag", DataType::Utf8, true),
        Field::new("modified", DataType::Int64, true),
    ]))
}

/// Units as the rows of a batch.
pub fn to_batch(units: &[Unit]) -> DataFusionResult<RecordBatch> {
    let start = |unit: &Unit| unit.range.as_ref().map(|range| range.start);
    let end = |unit: &Unit| unit.range.as_ref().map(|range| range.end);
    let records = |unit: &Unit| unit.records.as_ref().and_then(|records| serde_json::to_string(records).ok());
    Ok(RecordBatch::try_new(
        unit_schema(),
        vec![
            Arc::new(StringArray::from_iter_values(units.iter().map(|unit| &unit.uri))),
            Arc::new(UInt64Array::from_iter(units.iter().map(start))),
            Arc::new(UInt64Array::from_iter(units.iter().map(end))),
            Arc::new(StringArray::from_iter(units.iter().map(records))),
            Arc::new(UInt64Array::from_iter(units.iter().map(|unit| unit.size))),
            Arc::new(StringArray::from_iter(units.iter().map(|unit| unit.etag.as_deref()))),
            Arc::new(Int64Array::from_iter(units.iter().map(|unit| unit.modified))),
        ],
    )?)
}

/// The units of a batch.
pub fn from_batch(batch: &RecordBatch) -> Vec<Unit> {
    let text = |column: usize, row: usize| {
        let array = batch.column(column).as_string::<i32>();
        array.is_valid(row).then(|| array.value(row).to_owned())
    };
    let number = |column: usize, row: usize| {
        let array = batch.column(column).as_primitive::<UInt64Type>();
        array.is_valid(row).then(|| array.value(row))
    };
    (0..batch.num_rows())
        .map(|row| {
            let modified = batch.column(6).as_primitive::<Int64Type>();
            Unit {
                uri: text(0, row).unwrap_or_default(),
                range: number(1, row).zip(number(2, row)).map(|(start, end)| start..end),
                records: text(3, row).and_then(|text| serde_json::from_str(&text).ok()),
                size: number(4, row),
                etag: text(5, row),
                modified: modified.is_valid(row).then(|| modified.value(row)),
            }
        })
        .collect()
}

/// The leaf of a plan that hands out units.
#[derive(Debug)]
pub struct UnitsExec {
    reader: Arc<Reader>,
    in_order: bool,
    /// A queue for each time that the whole leaf is executed.
    queues: EachRound<Arc<UnitQueue>>,
    properties: Arc<PlanProperties>,
}

impl UnitsExec {
    /// A leaf whose `partitions` all take from one queue of the units of `reader`. With `in_order` they come as they
    /// are listed, which is of use to one partition only.
    pub fn new(reader: Arc<Reader>, in_order: bool, partitions: usize) -> Self {
        let properties = streaming(unit_schema(), partitions);
        UnitsExec { reader, in_order, queues: EachRound::new(partitions), properties }
    }

    /// Whether the units come as they are listed.
    pub fn is_in_order(&self) -> bool {
        self.in_order
    }
}

impl DisplayAs for UnitsExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let patterns: Vec<String> =
            self.reader.patterns.iter().map(|pattern| millstream_core::redact::url(pattern)).collect();
        let order = if self.in_order { ", in order" } else { "" };
        write!(f, "UnitsExec: {}{order}", patterns.join(", "))
    }
}

impl ExecutionPlan for UnitsExec {
    leaf!("UnitsExec");

    /// With a queue of its own: two copies that are executed side by side must not take each other's units.
    fn reset_state(self: Arc<Self>) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let partitions = self.properties.output_partitioning().partition_count();
        Ok(Arc::new(UnitsExec::new(Arc::clone(&self.reader), self.in_order, partitions)))
    }

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let queue =
            self.queues.begin(partition, |_| Ok(UnitQueue::with_order(Arc::clone(&self.reader), self.in_order)))?;
        let units = async_stream::try_stream! {
            loop {
                let units = queue.next_some(PORTION).await;
                let units = units.map_err(|error| fault::carry(error.in_step(&queue.reader.name)))?;
                if units.is_empty() {
                    break;
                }
                yield to_batch(&units)?;
            }
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(unit_schema(), units)))
    }
}

#[cfg(test)]
mod tests {
    use millstream_core::Records;

    use super::*;

    #[test]
    fn units_survive_their_rows() {
        let full = Unit {
            uri: "a.gz".into(),
            range: Some(3..9),
            records: Some(Box::new(Records { places: 3..9, size: 100, etag: "\"x\"".into() })),
            size: Some(100),
            etag: Some("\"x\"".into()),
            modified: Some(-5),
        };
        let units = [full, Unit::new("-")];
        assert_eq!(from_batch(&to_batch(&units).expect("a batch")), units);
    }

    #[test]
    fn the_largest_comes_first_and_equals_in_the_order_of_listing() {
        let sized = |order: u64, size: u64| BySize {
            unit: Unit { size: Some(size), ..Unit::new(order.to_string()) },
            size,
            order,
        };
        let mut heap: BinaryHeap<BySize> = [sized(0, 5), sized(1, 9), sized(2, 5)].into_iter().collect();
        let order: Vec<u64> = std::iter::from_fn(|| heap.pop().map(|one| one.order)).collect();
        assert_eq!(order, [1, 0, 2]);
    }
}
