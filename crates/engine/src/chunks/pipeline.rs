//! Which pipelines are row-preserving: those on which each row comes from one record of one source, always the same
//! one, and each record gives at most one row. Only these can be loaded chunk by chunk. Steps of one's own that are
//! called with batches, and promise that what they give for a record depends on that record alone, count as well: each
//! of their rows comes from the records of one batch, which has records of one chunk.
//!
//! Filters, expressions, unions and lookups preserve rows. What combines rows (an aggregate, a sort, a window, a limit,
//! a join), or is shared by several consumers, needs all rows; a volatile function gives other rows the next time. Of a
//! queue, whose rows are parsed once for all sinks, each consumer of a shared step computes it for itself.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::ExecutionPlan;
use millstream_core::format::Reading;
use millstream_core::transform::Per;

use crate::plan::checked::CheckExec;
use crate::plan::lenient::LenientExec;
use crate::plan::lookup::{LOOKUP, LookupExec, row_inputs};
use crate::plan::mapped::TransformExec;
use crate::plan::meter::step_of;
use crate::plan::shared_scan::SharedScanExec;
use crate::plan::work::WorkExec;
use crate::read::exec::ReadExec;

/// A row-preserving pipeline: a path of operators from one source to a sink.
#[derive(Debug, Clone)]
pub struct Pipeline {
    /// The operators on it, the one at the sink first.
    pub operators: Vec<Arc<dyn ExecutionPlan>>,
    /// What reads: a [`ReadExec`].
    read: Arc<dyn ExecutionPlan>,
}

impl Pipeline {
    /// What reads.
    pub fn read(&self) -> &ReadExec {
        self.read.downcast_ref::<ReadExec>().expect("a pipeline begins where something is read")
    }

    /// The lookups on it.
    pub fn lookups(&self) -> impl Iterator<Item = &LookupExec> {
        let own = self.operators.iter().filter(|operator| operator.name() == LOOKUP);
        own.filter_map(|operator| operator.downcast_ref::<LookupExec>())
    }

    /// Whether a step on it takes rows in batches.
    pub fn takes_batches(&self) -> bool {
        let mut work = self.operators.iter().filter_map(|operator| operator.downcast_ref::<WorkExec>());
        work.any(|work| work.pool().rules().per != Per::Row)
    }

    /// The columns of its rows as they come to the sink.
    pub fn columns(&self) -> SchemaRef {
        self.operators.first().unwrap_or(&self.read).schema()
    }

    /// The steps of own code on it, all of which promise to give the same each time if it is repeatable.
    pub fn promising(&self) -> impl Iterator<Item = &str> {
        let work = self.operators.iter().filter_map(|operator| operator.downcast_ref::<WorkExec>());
        work.map(|work| work.pool().step())
    }
}

/// Whether any of `pipelines` reads an incremental source.
pub fn is_incremental(pipelines: &[Pipeline]) -> bool {
    pipelines.iter().any(|pipeline| pipeline.read().reader().incremental)
}

/// The pipelines of `plan`, if all of them can be loaded chunk by chunk: they are row-preserving, and what they read
/// can be read again. Otherwise why not, in words that end a sentence.
pub fn repeatable(plan: &Arc<dyn ExecutionPlan>) -> Result<Vec<Pipeline>, String> {
    let found = row_preserving(plan)?;
    for pipeline in &found {
        let read = pipeline.read();
        if let Some(what) = read.reader().reads_once() {
            return Err(format!("`{}` reads {what}, which cannot be read again", read.source()));
        }
        let work = pipeline.operators.iter().filter_map(|operator| operator.downcast_ref::<WorkExec>());
        if let Some(work) = work.map(WorkExec::pool).find(|pool| !pool.rules().deterministic) {
            return Err(format!("`{}` does not promise `deterministic: true`", work.step()));
        }
        let mut checks = pipeline.operators.iter().filter_map(|operator| operator.downcast_ref::<CheckExec>());
        if let Some(checks) = checks.find(|check| check.checks().has_keys()) {
            return Err(format!("a `unique` check of `{}` looks at all rows", checks.checks().name));
        }
        if matches!(read.reader().format.reading(), Reading::Rows) {
            return Err(format!("`{}` reads a database, whose rows have no stable position", read.source()));
        }
    }
    Ok(found)
}

/// The pipelines of `plan`, if all of them are row-preserving; otherwise why not, in words that end a sentence.
pub fn row_preserving(plan: &Arc<dyn ExecutionPlan>) -> Result<Vec<Pipeline>, String> {
    let mut walk = Walk::default();
    walk.down(plan)?;
    Ok(walk.found)
}

/// The same, where each consumer of a shared step computes it for itself. Those in `metered` are counted already; this
/// adds the others.
pub fn row_preserving_apart(
    plan: &Arc<dyn ExecutionPlan>,
    metered: &mut HashSet<String>,
) -> Result<Vec<Pipeline>, String> {
    let mut walk = Walk { apart: Some(metered), ..Walk::default() };
    walk.down(plan)?;
    Ok(walk.found)
}

/// What has become of the records of row-preserving pipelines: how many rows came to the end, how many were filtered,
/// and how many could not be computed.
pub fn counts(plan: &Arc<dyn ExecutionPlan>) -> Counts {
    if let Some(read) = plan.downcast_ref::<ReadExec>() {
        let parse = read.reader().steps.parse.snapshot();
        let filtered = read.reader().filtered.load(Ordering::Relaxed);
        let rows = parse.rows + parse.passed_over;
        let read = rows + parse.rejected;
        return Counts { read, out: rows - filtered, filtered, rejected: parse.rejected, ..Counts::default() };
    }
    let below = row_inputs(plan).into_iter().map(counts).fold(Counts::default(), Counts::and);
    let Some(step) = step_of(plan).filter(|_| !plan.children().is_empty()) else { return below };
    let operator = plan.children()[0];
    if is_left_out(operator.name()) {
        return below;
    }
    let out = step.own_rows();
    let failed = match operator.name() {
        "LenientExec" => operator.downcast_ref::<LenientExec>().map_or(0, LenientExec::failed),
        "WorkExec" => {
            let work = operator.downcast_ref::<WorkExec>();
            let failed = work.map_or(0, WorkExec::failed);
            if let Some((answered, given)) = work.and_then(WorkExec::in_batches) {
                let (answered, given) = (below.answered + answered, below.given + given);
                return Counts { out, answered, given, rejected: below.rejected + failed, ..below };
            }
            failed
        }
        CheckExec::NAME => operator.downcast_ref::<CheckExec>().map_or(0, CheckExec::failed),
        LOOKUP => operator.downcast_ref::<LookupExec>().map_or(0, LookupExec::failed),
        "FilterExec" => 0,
        _ => return Counts { out, ..below },
    };
    let filtered = below.filtered + (below.out.saturating_sub(out)).saturating_sub(failed);
    Counts { out, filtered, rejected: below.rejected + failed, ..below }
}

/// What has become of records so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records that were read.
    pub read: u64,
    /// Rows that have come out.
    pub out: u64,
    /// Rows that filters have left out.
    pub filtered: u64,
    /// Records and rows that were refused.
    pub rejected: u64,
    /// Rows that steps have answered in batches.
    pub answered: u64,
    /// Rows that were given for these.
    pub given: u64,
}

impl Counts {
    fn and(self, other: Counts) -> Counts {
        Counts {
            read: self.read + other.read,
            out: self.out + other.out,
            filtered: self.filtered + other.filtered,
            rejected: self.rejected + other.rejected,
            answered: self.answered + other.answered,
            given: self.given + other.given,
        }
    }
}

/// Finds the pipelines of a plan.
#[derive(Default)]
struct Walk<'m> {
    /// The operators above.
    above: Vec<Arc<dyn ExecutionPlan>>,
    found: Vec<Pipeline>,
    /// If each consumer of a shared step computes it for itself, those whose rows are counted by another one.
    apart: Option<&'m mut HashSet<String>>,
    /// The shared steps above that another one counts.
    uncounted: usize,
}

impl Walk<'_> {
    fn down(&mut self, node: &Arc<dyn ExecutionPlan>) -> Result<(), String> {
        if node.is::<ReadExec>() {
            self.found.push(Pipeline { operators: self.above.clone(), read: Arc::clone(node) });
            return Ok(());
        }
        if self.apart.is_some()
            && let Some(shared) = node.downcast_ref::<SharedScanExec>()
        {
            return self.through(shared);
        }
        check(node)?;
        let is_counter = node.name() == "MeterExec" && self.uncounted > 0;
        let kept = !is_left_out(node.name()) && !is_counter;
        if kept {
            self.above.push(Arc::clone(node));
        }
        let walked = row_inputs(node).into_iter().try_for_each(|child| self.down(child));
        if kept {
            self.above.pop();
        }
        walked
    }

    fn through(&mut self, shared: &SharedScanExec) -> Result<(), String> {
        if let Some(what) = refuses(shared.input()) {
            return Err(format!("`{}` has several consumers, and {what} on the way to it", shared.name_of_step()));
        }
        let columns = shared.columns_of_input().map_err(|error| error.strip_backtrace())?;
        let is_counted = self.apart.as_mut().is_some_and(|apart| !apart.insert(shared.name_of_step().to_owned()));
        self.uncounted += usize::from(is_counted);
        self.above.push(columns);
        let walked = self.down(shared.input());
        self.above.pop();
        self.uncounted -= usize::from(is_counted);
        walked
    }
}

/// What `plan` does that is counted for each row, and so must not be done twice; shared steps below it left out.
fn refuses(plan: &Arc<dyn ExecutionPlan>) -> Option<&'static str> {
    let own = match plan.name() {
        "LenientExec" => Some("expressions are computed that may reject rows"),
        "WorkExec" => Some("own code is called"),
        CheckExec::NAME => Some("rows are checked"),
        LOOKUP if plan.downcast_ref::<LookupExec>().is_some_and(|lookup| lookup.lenient_step().is_some()) => {
            Some("rows are looked up, and rejected if nothing is found,")
        }
        _ => None,
    };
    own.or_else(|| row_inputs(plan).into_iter().find_map(refuses))
}

/// Operators that only hand rows on: they put several streams together, or one into several.
fn is_left_out(name: &str) -> bool {
    matches!(
        name,
        "UnionExec"
            | "InterleaveExec"
            | "RepartitionExec"
            | "CoalescePartitionsExec"
            | "CoalesceBatchesExec"
            | "CooperativeExec"
    )
}

fn check(node: &Arc<dyn ExecutionPlan>) -> Result<(), String> {
    let name = node.name();
    if node.fetch().is_some() {
        return Err("a limit counts all rows".to_owned());
    }
    if let Some(transform) = node.downcast_ref::<TransformExec>() {
        return Err(format!("`{}` may give any number of rows for each record", transform.step()));
    }
    if let Some(work) = node.downcast_ref::<WorkExec>()
        && let Some(why) = match work.pool().rules().per {
            Per::Row => None,
            Per::Batch if work.pool().rules().deterministic => None,
            Per::Batch => Some("takes rows in batches, and does not promise `deterministic: true`"),
            Per::Group => Some("takes all rows of a group together"),
            Per::Stream => Some("takes all rows together"),
        }
    {
        return Err(format!("`{}` {why}", work.pool().step()));
    }
    if let Some(lookup) = node.downcast_ref::<LookupExec>().filter(|lookup| lookup.shape().gives_several()) {
        return Err(format!("`{}` may give several rows for each record (`duplicate: all`)", lookup.shape().step));
    }
    let preserves = ["MeterExec", "FilterExec", "ProjectionExec", "LenientExec", "WorkExec", CheckExec::NAME, LOOKUP]
        .contains(&name);
    if !preserves && !is_left_out(name) {
        return Err(why_not(name));
    }
    let mut volatile = None;
    let looked = node.apply_expressions(&mut |expression: &Arc<dyn PhysicalExpr>| {
        if is_volatile(expression) {
            volatile.get_or_insert_with(|| volatile_function(expression));
        }
        Ok(TreeNodeRecursion::Continue)
    });
    match (looked, volatile) {
        (Ok(_), Some(function)) => Err(format!("the function `{function}` may give another value each time")),
        (Ok(_), None) => Ok(()),
        (Err(error), _) => Err(error.strip_backtrace()),
    }
}

/// The name of the function that makes `expression` volatile.
fn volatile_function(expression: &Arc<dyn PhysicalExpr>) -> String {
    let inside = expression.children().into_iter().find(|child| is_volatile(child)).map(volatile_function);
    inside.unwrap_or_else(|| match expression.downcast_ref::<ScalarFunctionExpr>() {
        Some(call) => call.name().to_owned(),
        None => expression.to_string(),
    })
}

fn why_not(name: &str) -> String {
    let kinds = [
        ("Aggregate", "an aggregate combines rows"),
        ("Sort", "a sort needs all rows"),
        ("TopK", "a sort needs all rows"),
        ("Window", "a window looks at other rows"),
        ("Limit", "a limit counts all rows"),
        ("Join", "a join combines rows"),
        ("SharedScan", "a step with several consumers runs once for all of them"),
        ("Unnest", "one record becomes several rows"),
    ];
    let known = kinds.iter().find(|(part, _)| name.contains(part));
    known.map_or_else(|| format!("{} needs all rows", name.trim_end_matches("Exec")), |(_, why)| (*why).to_owned())
}

#[cfg(test)]
mod tests;
