//! From the logical plans of all steps to physical plans in which no step runs twice.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::datasource::{TableType, provider_as_source, source_as_provider};
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::utils::{conjunction, disjunction};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, TableProviderFilterPushDown, TableScan, ident};
use datafusion::physical_plan::ExecutionPlan;
use millstream_core::{Budget, StepKind, Steps};

use super::checked;
use super::error_locator::ErrorLocator;
use super::joins;
use super::lookup::Lookups;
use super::meter::{Metered, Metering, meter};
use super::nodes::NodesPlanner;
use super::sort::{self, Sorting};
use super::sorted::SortedRows;
use super::step::LogicalStep;
use crate::node::scan_by;
use crate::plan::shared_scan::SharedScan;
use crate::read::table::InOrder;
use crate::rejects::Rejects;

/// A step of the job as other steps' plans name it, until it is known whether it becomes a view or a shared scan.
#[derive(Debug)]
pub struct StepTable {
    /// The step's name.
    pub name: String,
    schema: SchemaRef,
    shared: Mutex<Option<Arc<SharedScan>>>,
}

impl StepTable {
    /// A stand-in for the step `name` with the columns of `schema`.
    pub fn new(name: &str, schema: SchemaRef) -> Self {
        StepTable { name: name.to_owned(), schema, shared: Mutex::new(None) }
    }
}

impl TableProvider for StepTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    /// A shared scan applies the OR of its consumers' filters, so each consumer must still apply its own.
    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> DataFusionResult<Vec<TableProviderFilterPushDown>> {
        let supported = |filter: &&Expr| match filter.is_volatile() {
            true => TableProviderFilterPushDown::Unsupported,
            false => TableProviderFilterPushDown::Inexact,
        };
        Ok(filters.iter().map(supported).collect())
    }

    scan_by!(consumer);
}

impl StepTable {
    /// A consumer of the shared scan, with the columns of `projection`.
    fn consumer(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let shared = self.shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        let shared =
            shared.ok_or_else(|| DataFusionError::Internal(format!("step `{}` is not planned yet", self.name)))?;
        let given = shared.schema();
        let wanted = match projection {
            Some(projection) => projection.clone(),
            None => (0..self.schema.fields().len()).collect(),
        };
        let columns = wanted
            .into_iter()
            .map(|index| Ok(given.index_of(self.schema.field(index).name())?))
            .collect::<DataFusionResult<_>>()?;
        Ok(Arc::new(shared.consumer(columns)?))
    }
}

/// A finished plan whose rows go to a sink.
#[derive(Debug, Clone)]
pub struct Root {
    /// The name of the sink.
    pub name: String,
    /// Its plan, metered.
    pub plan: Arc<dyn ExecutionPlan>,
}

/// What the steps' plans need while they are put together.
pub struct Planner<'a> {
    /// The SQL engine.
    pub state: &'a SessionState,
    /// Shared scans hold batches within it.
    pub budget: Arc<Budget>,
    /// Where shared scans spill to.
    pub scratch: PathBuf,
    /// What sorts may use.
    pub sorting: Sorting,
    /// What lookups may use.
    pub lookups: Lookups,
    /// Where the operators' counters go.
    pub steps: Arc<Steps>,
    /// What may be left out.
    pub rejects: Arc<Rejects>,
    /// Whether checks look at all rows of their entries, also at those that no plan needs.
    pub all_checks: bool,
}

/// What stands on top of a plan.
#[derive(Clone, Copy)]
enum Top<'a> {
    Sink(&'a str),
    SharedScan(&'a str),
    /// Nothing: the rows of a step are read for its checks alone.
    Checks(&'a str),
}

/// All physical plans of a job.
#[derive(Debug, Default)]
pub struct Physical {
    /// One for each sink.
    pub roots: Vec<Root>,
    /// The steps that several use, with the plans below them.
    pub shared_scans: Vec<Arc<SharedScan>>,
    /// Steps that no sink needs to be read, since none of their rows would be left: they are read for their checks.
    pub for_checks: Vec<Root>,
    /// The operators and their counters.
    pub metered: Vec<Metered>,
}

impl Physical {
    /// All plans, those first that read others. A shared scan stands behind those that read it.
    pub fn plans(&self) -> impl Iterator<Item = &Arc<dyn ExecutionPlan>> {
        let roots = self.roots.iter().chain(&self.for_checks).map(|root| &root.plan);
        roots.chain(self.shared_scans.iter().rev().map(|shared| shared.input()))
    }
}

/// What is known of the logical plans while they are optimized one after the other.
#[derive(Default)]
struct Optimized<'a> {
    consumers_of: HashMap<String, Vec<Consumer>>,
    in_order: HashSet<String>,
    /// The steps that are read for their checks, and their plans.
    for_checks: Vec<(&'a LogicalStep, LogicalPlan)>,
}

impl Planner<'_> {
    /// Plans `sinks` (their logical plans) over `steps`, which come in an order in which each step stands behind those
    /// it uses.
    pub async fn plan(&self, steps: &[LogicalStep], sinks: &[LogicalStep]) -> DataFusionResult<Physical> {
        let uses = count_uses(steps, sinks)?;
        let shared: Vec<&LogicalStep> =
            steps.iter().filter(|step| uses.get(&step.name).is_some_and(|uses| *uses > 1)).collect();
        let views: Views<'_> = steps
            .iter()
            .filter(|step| uses.get(&step.name) == Some(&1))
            .map(|step| (step.name.as_str(), step))
            .collect();

        let mut found = Optimized::default();
        let mut optimised_sinks = Vec::new();
        for sink in sinks {
            let plan = self.optimized(&sink.name, inline(sink.plan.clone(), &views)?, steps, &views, &mut found)?;
            optimised_sinks.push((sink.name.clone(), plan));
        }
        let mut optimised_shared = Vec::new();
        for step in shared.iter().rev() {
            let plan = inline(step.plan.clone(), &views)?;
            let consumers = found.consumers_of.remove(&step.name).unwrap_or_default();
            let plan = narrow(&step.name, plan, &consumers)?;
            let plan = self.optimized(&step.name, plan, steps, &views, &mut found)?;
            optimised_shared.push((step.name.clone(), plan));
        }
        let Optimized { in_order, for_checks, .. } = found;

        let mut physical = Physical::default();
        for (step, (name, plan)) in shared.iter().zip(optimised_shared.into_iter().rev()) {
            let locator = self.locator(step, &views)?;
            let ordered = in_order.contains(&name);
            let input = self.physical(Top::SharedScan(&name), &plan, ordered, locator, &mut physical.metered).await?;
            let step = self.steps.add(&name, StepKind::Transform, "shared");
            let shared = SharedScan::new(&name, input, Arc::clone(&self.budget), self.scratch.clone(), step);
            let readers = optimised_sinks.iter().map(|(_, plan)| plan).chain(for_checks.iter().map(|(_, plan)| plan));
            resolve(&name, &shared, readers.chain(steps.iter().map(|step| &step.plan)))?;
            physical.shared_scans.push(shared);
        }
        for (sink, (name, plan)) in sinks.iter().zip(&optimised_sinks) {
            let locator = self.locator(sink, &views)?;
            let ordered = in_order.contains(name);
            let plan = self.physical(Top::Sink(name), plan, ordered, locator, &mut physical.metered).await?;
            physical.roots.push(Root { name: name.clone(), plan });
        }
        for (step, plan) in &for_checks {
            let (name, locator) = (step.name.clone(), self.locator(step, &views)?);
            let ordered = in_order.contains(&name);
            let plan = self.physical(Top::Checks(&name), plan, ordered, locator, &mut physical.metered).await?;
            physical.for_checks.push(Root { name, plan });
        }
        self.sorting.check()?;
        Ok(physical)
    }

    /// `plan`, the plan of `name`, optimized; with what it reads of shared steps, and the steps that were dropped and
    /// have checks.
    fn optimized<'s>(
        &self,
        name: &str,
        plan: LogicalPlan,
        steps: &'s [LogicalStep],
        views: &Views<'_>,
        found: &mut Optimized<'s>,
    ) -> DataFusionResult<LogicalPlan> {
        let plan = with_its_order(name, plan, &mut found.in_order)?;
        let optimized = self.state.optimize(&plan)?;
        collect_consumers(&optimized, &mut found.consumers_of)?;
        if self.all_checks {
            self.keep_checks(&plan, &optimized, steps, views, found)?;
        }
        Ok(optimized)
    }

    /// Plans the steps of `plan` that have checks and are not in `optimized` any more: their rows are read for these.
    fn keep_checks<'s>(
        &self,
        plan: &LogicalPlan,
        optimized: &LogicalPlan,
        steps: &'s [LogicalStep],
        views: &Views<'_>,
        found: &mut Optimized<'s>,
    ) -> DataFusionResult<()> {
        let names = |plan: &LogicalPlan| {
            Ok::<_, DataFusionError>(checked::all_checks(plan)?.into_iter().map(|checks| checks.entry.clone()))
        };
        let mut kept: HashSet<String> = names(optimized)?.collect();
        for entry in names(plan)? {
            if kept.contains(&entry) {
                continue;
            }
            let lost = || DataFusionError::Internal(format!("the checks of `{entry}` are not in the plan"));
            let step = steps.iter().find(|step| step.name == entry).ok_or_else(lost)?;
            let alone = checked::for_checks(inline(step.plan.clone(), views)?)?;
            let alone = self.state.optimize(&with_its_order(&entry, alone, &mut found.in_order)?)?;
            collect_consumers(&alone, &mut found.consumers_of)?;
            kept.extend(names(&alone)?);
            if !kept.contains(&entry) {
                return Err(lost());
            }
            found.for_checks.push((step, alone));
        }
        Ok(())
    }

    /// Who may be at fault in the plan of `root`: the step itself, and those that are inlined into it.
    fn locator(&self, root: &LogicalStep, views: &Views<'_>) -> DataFusionResult<ErrorLocator> {
        let mut locator = ErrorLocator::default();
        let mut waiting = vec![root];
        while let Some(step) = waiting.pop() {
            locator.add(step, self.state);
            visit_steps(&step.plan, &mut |table, _| {
                waiting.extend(views.get(table.name.as_str()));
                Ok(())
            })?;
        }
        Ok(locator)
    }

    async fn physical(
        &self,
        top: Top<'_>,
        plan: &LogicalPlan,
        in_order: bool,
        locator: ErrorLocator,
        metered: &mut Vec<Metered>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let mut state = self.state.clone();
        if keeps_order(plan) {
            // What stands on the sort (the route of a sink's rows) is not worth giving up its order for.
            state.config_mut().options_mut().optimizer.enable_round_robin_repartition = false;
        }
        if in_order {
            // Rows of one partition only come in an order.
            let config = state.config().clone().with_target_partitions(1).with_extension(Arc::new(InOrder));
            *state.config_mut() = config;
        }
        let planner = NodesPlanner { sorting: self.sorting.clone(), lookups: self.lookups.clone() };
        let planner = Arc::new(planner);
        let state = SessionStateBuilder::new_from_existing(state).with_query_planner(planner).build();
        let plan = joins::physical_plan(plan, &state, self.budget.limit()).await?;
        let plan = sort::external(plan, &self.sorting)?;
        let (Top::Sink(name) | Top::SharedScan(name) | Top::Checks(name)) = top;
        let sink = matches!(top, Top::Sink(_)).then(|| name.to_owned());
        meter(
            plan,
            &Metering { root: name, sink, locator: &Arc::new(locator), steps: &self.steps, rejects: &self.rejects },
            metered,
        )
    }
}

/// Makes every stand-in for `name` in `plans` a consumer of its shared scan.
fn resolve<'a>(
    name: &str,
    shared: &Arc<SharedScan>,
    mut plans: impl Iterator<Item = &'a LogicalPlan>,
) -> DataFusionResult<()> {
    plans.try_for_each(|plan| {
        visit_steps(plan, &mut |table, _| {
            if table.name == name {
                *table.shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(Arc::clone(shared));
            }
            Ok(())
        })
    })
}

/// Whether the rows of `plan` are in an order that its consumer may rely on: those of a sort, or of a shared step,
/// which may be one.
fn keeps_order(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Sort(_) | LogicalPlan::Extension(_) | LogicalPlan::TableScan(_) => true,
        LogicalPlan::Projection(_) | LogicalPlan::Filter(_) | LogicalPlan::SubqueryAlias(_) | LogicalPlan::Limit(_) => {
            plan.inputs().into_iter().all(keeps_order)
        }
        _ => false,
    }
}

/// The steps that have one consumer, by name.
type Views<'a> = HashMap<&'a str, &'a LogicalStep>;

/// How many scans of each step there are in the plans that lead to a sink.
fn count_uses(steps: &[LogicalStep], sinks: &[LogicalStep]) -> DataFusionResult<HashMap<String, usize>> {
    let mut uses: HashMap<String, usize> = HashMap::new();
    let count = |plan: &LogicalPlan, uses: &mut HashMap<String, usize>| {
        visit_steps(plan, &mut |table, _| {
            *uses.entry(table.name.clone()).or_default() += 1;
            Ok(())
        })
    };
    for sink in sinks {
        count(&sink.plan, &mut uses)?;
    }
    for step in steps.iter().rev() {
        if uses.contains_key(&step.name) {
            count(&step.plan, &mut uses)?;
        }
    }
    Ok(uses)
}

/// Calls `f` for every scan of a step in `plan`, also in subqueries.
fn visit_steps(
    plan: &LogicalPlan,
    f: &mut dyn FnMut(&StepTable, &TableScan) -> DataFusionResult<()>,
) -> DataFusionResult<()> {
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && let Ok(provider) = source_as_provider(&scan.source)
            && let Some(table) = (provider.as_ref() as &dyn std::any::Any).downcast_ref::<StepTable>()
        {
            f(table, scan)?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// `plan` with the scans of `views` replaced by their own plans, all the way down.
fn inline(plan: LogicalPlan, views: &Views<'_>) -> DataFusionResult<LogicalPlan> {
    let inlined = plan.transform_up_with_subqueries(|node| {
        let LogicalPlan::TableScan(scan) = &node else { return Ok(Transformed::no(node)) };
        let Ok(provider) = source_as_provider(&scan.source) else { return Ok(Transformed::no(node)) };
        let Some(table) = (provider.as_ref() as &dyn std::any::Any).downcast_ref::<StepTable>() else {
            return Ok(Transformed::no(node));
        };
        let Some(view) = views.get(table.name.as_str()) else { return Ok(Transformed::no(node)) };
        let below = inline(view.plan.clone(), views)?;
        let aliased = LogicalPlanBuilder::from(below).alias(scan.table_name.clone())?.build()?;
        Ok(Transformed::yes(aliased))
    })?;
    inlined.data.recompute_schema()
}

/// What one consumer of a shared step reads of it.
#[derive(Debug)]
struct Consumer {
    columns: Option<Vec<String>>,
    filter: Option<Expr>,
}

fn collect_consumers(plan: &LogicalPlan, consumers_of: &mut HashMap<String, Vec<Consumer>>) -> DataFusionResult<()> {
    visit_steps(plan, &mut |table, scan| {
        let columns = scan.projection.as_ref().map(|projection| {
            let mut columns: Vec<String> =
                projection.iter().map(|&index| table.schema.field(index).name().clone()).collect();
            let filtered = scan.filters.iter().flat_map(|filter| filter.column_refs());
            columns.extend(filtered.map(|column| column.name.clone()));
            columns
        });
        let filter =
            conjunction(scan.filters.iter().cloned()).map(datafusion::logical_expr::expr_rewriter::unnormalize_col);
        consumers_of.entry(table.name.clone()).or_default().push(Consumer { columns, filter });
        Ok(())
    })
}

/// `plan`, the plan of `name`, such that it keeps the order of its sources if that matters to it or to its consumers:
/// then `in_order` gets the steps that it reads.
fn with_its_order(name: &str, plan: LogicalPlan, in_order: &mut HashSet<String>) -> DataFusionResult<LogicalPlan> {
    if !SortedRows::needs_order_of_arrival(&plan)? && !in_order.contains(name) {
        return Ok(plan);
    }
    in_order.insert(name.to_owned());
    visit_steps(&plan, &mut |table, _| {
        in_order.insert(table.name.clone());
        Ok(())
    })?;
    SortedRows::keep_all(plan)
}

/// `plan` with the rows and columns that its consumers want together.
fn narrow(name: &str, plan: LogicalPlan, consumers: &[Consumer]) -> DataFusionResult<LogicalPlan> {
    let mut builder = LogicalPlanBuilder::from(plan).alias(name)?;
    let filters: Option<Vec<Expr>> = consumers.iter().map(|one| one.filter.clone()).collect();
    if let Some(filter) = filters.and_then(disjunction) {
        builder = builder.filter(filter)?;
    }
    let columns: Option<Vec<&Vec<String>>> = consumers.iter().map(|one| one.columns.as_ref()).collect();
    if let Some(columns) = columns {
        let schema = Arc::clone(builder.schema());
        let wanted = schema
            .fields()
            .iter()
            .map(|field| field.name())
            .filter(|name| columns.iter().any(|one| one.contains(name)));
        let mut wanted: Vec<Expr> = wanted.map(|name| ident(name.clone())).collect();
        if wanted.is_empty() {
            // Consumers that only count rows want no column, but a row must be carried by one.
            wanted.extend(schema.fields().first().map(|field| ident(field.name().clone())));
        }
        builder = builder.project(wanted)?;
    }
    builder.build()
}

/// A scan of the table `provider` under `name`, with all its columns.
pub fn scan(name: &str, provider: Arc<dyn TableProvider>) -> DataFusionResult<LogicalPlan> {
    LogicalPlanBuilder::scan(datafusion::common::TableReference::bare(name), provider_as_source(provider), None)?
        .build()
}
