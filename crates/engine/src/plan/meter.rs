//! The counters of DataFusion's operators.
//!
//! Its own metrics know no waiting time, so every node of a finished plan is wrapped. A poll of a node polls its inputs
//! inside; what the inputs took is subtracted, by a running total for each thread, so that each node counts only its
//! own work, also where an operator drives its input from a task of its own.
//!
//! ```text
//!  poll join ───────────────────────────────▶ 10 ms, of which
//!     poll read ─────────────▶ 7 ms              join was busy for 3 ms
//! ```
//! Between two polls a node waits: for its input if the last poll was pending, else for whoever takes its output.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, displayable};
use futures::Stream;
use millstream_core::{Step, StepKind, Steps};

use super::checked::CheckExec;
use super::error_locator::ErrorLocator;
use super::lenient::LenientExec;
use super::lookup::LookupExec;
use super::sort::ExternalSort;
use super::work::WorkExec;
use crate::node::{over_one_input, statistics_of_input};
use crate::rejects::Rejects;
use crate::rejects::take::TakeAtOnce;

thread_local! {
    /// What the polls nested in the current one have taken so far.
    static NESTED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// An operator of a plan and its counters.
#[derive(Debug, Clone)]
pub struct Metered {
    /// The operator as it was planned.
    pub node: Arc<dyn ExecutionPlan>,
    /// Its counters.
    pub step: Arc<Step>,
}

impl Metered {
    /// Takes over what operators count themselves: bytes spilled, and what they do beside being polled.
    pub fn settle(&self) {
        if let Some(lenient) = self.node.downcast_ref::<LenientExec>() {
            self.step.add_rejected(lenient.failed());
        }
        if let Some(check) = self.node.downcast_ref::<CheckExec>() {
            self.step.add_rejected(check.failed());
            self.step.add_spilled(check.checks().spilled());
        }
        if let Some(work) = self.node.downcast_ref::<WorkExec>() {
            self.step.add_rejected(work.failed());
        }
        if let Some(lookup) = self.node.downcast_ref::<LookupExec>() {
            self.step.add_rejected(lookup.failed());
            lookup.settle();
        }
        match self.node.downcast_ref::<ExternalSort>() {
            Some(sort) => sort.settle(&self.step),
            None => {
                let spilled = self.node.metrics().and_then(|metrics| metrics.spilled_bytes()).unwrap_or(0);
                self.step.add_spilled(spilled as u64);
            }
        }
    }
}

/// What the nodes of a plan are wrapped with.
#[derive(Clone)]
pub struct Metering<'a> {
    /// The entry of the job that the operators' steps are named after.
    pub root: &'a str,
    /// The sink that the rows go to, if that stands on top.
    pub sink: Option<String>,
    /// Finds the step at fault.
    pub locator: &'a Arc<ErrorLocator>,
    /// Where the steps go.
    pub steps: &'a Steps,
    /// What may be left out.
    pub rejects: &'a Arc<Rejects>,
}

/// Wraps every node of `plan`. The operators get a step each; nodes that count for themselves get none. Those that may
/// leave rows out do.
pub fn meter(
    plan: Arc<dyn ExecutionPlan>,
    with: &Metering<'_>,
    metered: &mut Vec<Metered>,
) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    let children = plan.children().into_iter().cloned().collect::<Vec<_>>();
    let counts_itself = matches!(plan.name(), "ReadExec" | "UnitsExec" | "SharedScanExec")
        // It only yields now and then: nobody asks for its counters.
        || plan.name() == "CooperativeExec";
    if plan.name() == "UnitsExec" {
        return Ok(plan);
    }
    let wrapped =
        children.into_iter().map(|child| meter(child, with, metered)).collect::<DataFusionResult<Vec<_>>>()?;
    let node = match wrapped.is_empty() {
        true => plan,
        false => plan.replace_children(wrapped, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep))?,
    };
    let node = lenient(&node, with).unwrap_or(node);
    let own = node.downcast_ref::<WorkExec>().map(|work| work.pool().counters());
    let own = own.or_else(|| node.downcast_ref::<LookupExec>().map(|lookup| lookup.shared().counters()));
    let step = (!counts_itself).then(|| match own {
        Some(counters) => {
            with.steps.push(Arc::clone(counters));
            Arc::clone(counters)
        }
        None => with.steps.add(with.root, StepKind::Transform, label(node.as_ref())),
    });
    if let Some(step) = &step {
        metered.push(Metered { node: Arc::clone(&node), step: Arc::clone(step) });
    }
    Ok(Arc::new(MeterExec { input: node, step, locator: Arc::clone(with.locator) }))
}

/// `node` as one that leaves rows out, if it may.
fn lenient(node: &Arc<dyn ExecutionPlan>, with: &Metering<'_>) -> Option<Arc<dyn ExecutionPlan>> {
    if !with.rejects.is_lenient() {
        return None;
    }
    let taker = Arc::new(TakeAtOnce { rejects: Arc::clone(with.rejects), sink: with.sink.clone() });
    if let Some(work) = node.downcast_ref::<WorkExec>() {
        return Some(Arc::new(work.lenient(taker, with.rejects)?));
    }
    if let Some(check) = node.downcast_ref::<CheckExec>() {
        return Some(Arc::new(check.lenient(taker, with.rejects)?));
    }
    if let Some(lookup) = node.downcast_ref::<LookupExec>() {
        return Some(Arc::new(lookup.lenient(taker, with.rejects)?));
    }
    if with.rejects.of_steps(with.locator.steps()).is_empty() {
        return None;
    }
    Some(Arc::new(LenientExec::over(node, with.rejects, with.locator, taker)?))
}

/// What people call the operator: `HashJoinExec` is a hash join.
fn label(plan: &dyn ExecutionPlan) -> String {
    if let Some(lenient) = plan.downcast_ref::<LenientExec>() {
        return label(lenient.operator().as_ref());
    }
    let name = match plan.name() {
        "SortExec(TopK)" => return "top k".to_owned(),
        name => name.trim_end_matches("Exec"),
    };
    let mut words = String::new();
    for character in name.chars() {
        if character.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(character.to_lowercase());
    }
    let line = displayable(plan).one_line().to_string();
    let mode = ["FinalPartitioned", "SinglePartitioned", "Partial", "Final", "Single"]
        .into_iter()
        .find(|mode| line.contains(&format!("mode={mode}")));
    match mode {
        Some("Partial") => format!("partial {words}"),
        _ => words,
    }
}

#[derive(Debug)]
struct MeterExec {
    input: Arc<dyn ExecutionPlan>,
    step: Option<Arc<Step>>,
    locator: Arc<ErrorLocator>,
}

/// The counters of `plan`, if it is metered and has some.
pub fn step_of(plan: &Arc<dyn ExecutionPlan>) -> Option<&Arc<Step>> {
    (plan.as_ref() as &dyn Any).downcast_ref::<MeterExec>()?.step.as_ref()
}

impl MeterExec {
    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        MeterExec { input, step: self.step.clone(), locator: Arc::clone(&self.locator) }
    }
}

impl DisplayAs for MeterExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MeterExec")
    }
}

impl ExecutionPlan for MeterExec {
    over_one_input!("MeterExec");

    fn downcast_delegate(&self) -> Option<&dyn ExecutionPlan> {
        Some(self.input.as_ref())
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    statistics_of_input!();

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let placed = |error| self.locator.place(error, self.input.name());
        let input = self.input.execute(partition, context).map_err(placed)?;
        let (locator, operator) = (Arc::clone(&self.locator), self.input.name().to_owned());
        let is_of_processes = self.step.as_ref().is_some_and(|step| step.is_of_processes());
        let waits_for_input = !self.input.is::<ExternalSort>() && !is_of_processes;
        Ok(Box::pin(MeterStream { input, step: self.step.clone(), waits_for_input, idle: None, locator, operator }))
    }
}

/// Why a stream is not being polled.
enum Idle {
    Input(Instant),
    Output(Instant),
}

struct MeterStream {
    input: SendableRecordBatchStream,
    step: Option<Arc<Step>>,
    /// Whether it waits for its input when it has nothing to give. A sort may be at work then, in tasks of its own, and
    /// so may processes.
    waits_for_input: bool,
    idle: Option<Idle>,
    locator: Arc<ErrorLocator>,
    operator: String,
}

impl Stream for MeterStream {
    type Item = DataFusionResult<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // An operator whose input is always ready would never give its worker back: nobody could end the run.
        let budget = std::task::ready!(tokio::task::coop::poll_proceed(context));
        let start = Instant::now();
        let idle = self.idle.take();
        let outer = NESTED.replace(Duration::ZERO);
        let polled = self.input.as_mut().poll_next(context);
        let elapsed = start.elapsed();
        let own = elapsed.saturating_sub(NESTED.get());
        NESTED.set(outer + elapsed);
        if let Some(step) = &self.step {
            step.add_busy(own);
            match idle {
                Some(Idle::Input(since)) if self.waits_for_input => step.add_waiting_input(start.duration_since(since)),
                Some(Idle::Output(since)) => step.add_waiting_output(start.duration_since(since)),
                _ => {}
            }
            if let Poll::Ready(Some(Ok(batch))) = &polled {
                step.add_rows(batch.num_rows() as u64);
            }
        }
        if polled.is_ready() {
            budget.made_progress();
        }
        self.idle = match &polled {
            Poll::Pending => Some(Idle::Input(Instant::now())),
            Poll::Ready(Some(_)) => Some(Idle::Output(Instant::now())),
            Poll::Ready(None) => None,
        };
        polled.map_err(|error| self.locator.place(error, &self.operator))
    }
}

impl RecordBatchStream for MeterStream {
    fn schema(&self) -> SchemaRef {
        self.input.schema()
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;
    use arrow::datatypes::{DataType, Field, Schema};
    use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
    use futures::StreamExt;

    use super::*;

    fn stream_of(schema: &SchemaRef, work: Duration, inner: Option<MeterStream>) -> SendableRecordBatchStream {
        let batch =
            RecordBatch::try_new(Arc::clone(schema), vec![Arc::new(Int64Array::from(vec![1, 2, 3]))]).expect("a batch");
        let batches = async_stream::stream! {
            if let Some(mut inner) = inner {
                while inner.next().await.is_some() {}
            }
            std::thread::sleep(work);
            yield Ok(batch);
        };
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(schema), batches))
    }

    #[tokio::test]
    async fn each_node_counts_its_own_work() {
        let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
        let steps = Steps::default();
        let (below, above) = (steps.add("a", StepKind::Transform, ""), steps.add("b", StepKind::Transform, ""));
        let inner = MeterStream {
            input: stream_of(&schema, Duration::from_millis(400), None),
            step: Some(Arc::clone(&below)),
            waits_for_input: true,
            idle: None,
            locator: Arc::default(),
            operator: "below".to_owned(),
        };
        let mut outer = MeterStream {
            input: stream_of(&schema, Duration::from_millis(10), Some(inner)),
            step: Some(Arc::clone(&above)),
            waits_for_input: true,
            idle: None,
            locator: Arc::default(),
            operator: "above".to_owned(),
        };
        while let Some(batch) = outer.next().await {
            batch.expect("a batch");
            std::thread::sleep(Duration::from_millis(20));
        }
        let (below, above) = (below.snapshot(), above.snapshot());
        assert!(below.busy >= 0.4, "{below:?}");
        assert!(above.busy >= 0.01 && above.busy < below.busy, "{above:?}");
        assert!(above.waiting_output >= 0.02, "{above:?}");
        assert_eq!((below.rows, above.rows), (3, 3));
    }
}
