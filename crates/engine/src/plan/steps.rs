//! The steps of the job file as logical plans.
//!
//! The operations of a [`Relation`] are built from the same expressions that SQL has, so they take whatever a query
//! would. Which transform composes them is of no matter here.

use std::sync::{Arc, Mutex, PoisonError};

use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::DFSchema;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::Sort;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, cast, lit};
use datafusion::sql::parser::Statement;
use futures::FutureExt;
use futures::future::BoxFuture;
use millstream_core::sink::{ROUTE, RoutingKind};
use millstream_core::transform::{
    Column, ColumnsFault, Distinct, Expression, Lookup, Query, Relation, SortKey, Text, UnionBy, Workers,
};
use millstream_job::{Located, SinkStep, SqlFault, TransformStep};

use super::distinct::{DistinctSort, one_of_equal, without_doubles};
use super::lookup::{LookupRows, Projection, Shape};
use super::mapped::{MappedRows, indices};
use super::shared::scan;
use super::sorted::SortedRows;
use super::unknown::Unknown;
use super::work::{self, Pool};
use crate::surroundings::Surroundings;
use crate::{fault, sql};

/// Of more calls of one function it is not looked which is at fault.
const MOST_CALLS: usize = 32;

/// A fault of a step's plan, and the text of the job that it is in.
#[derive(Debug)]
pub struct StepFault {
    /// The SQL, expression or name at fault.
    pub text: Located<String>,
    /// The fault, with its place in the text.
    pub fault: sql::PlanFault,
}

/// The same, where the text is one of a relation.
struct TextFault {
    text: Text,
    fault: sql::PlanFault,
}

/// A plan, or its first fault.
type Planned = Result<LogicalPlan, TextFault>;

/// Plans one transform. `tables` gives the table of an entry.
pub struct StepPlanner<'a> {
    /// The SQL engine. The entries that a query may use are registered in its catalog.
    pub state: &'a SessionState,
    /// The tables of the steps planned so far.
    pub tables: &'a std::collections::HashMap<String, Arc<dyn datafusion::catalog::TableProvider>>,
    /// What workers are started with.
    pub surroundings: &'a Surroundings,
    /// How many workers a step has if the job does not say.
    pub cores: usize,
    /// The workers of what was planned.
    pub pools: Mutex<Vec<Arc<Pool>>>,
}

impl StepPlanner<'_> {
    /// The logical plan of a transform, or what is wrong with it: of columns that do not exist, all.
    pub async fn plan(&self, step: &TransformStep) -> Result<LogicalPlan, Vec<StepFault>> {
        let located = |TextFault { text, fault }| StepFault { text: step.located(&text), fault };
        let plan = match self.rows(step, &step.rows).await {
            Ok(plan) => plan,
            Err(first) => {
                return Err(self.with_unknown_columns(step, first).await.into_iter().map(located).collect());
            }
        };
        self.check_constants(&step.rows, &plan).map_err(|fault| vec![located(fault)])?;
        let name = &step.name.value;
        work::called_by(name, plan).and_then(sql::unions::as_texts).map_err(|error| {
            let fault = sql::plan_fault(name, &error);
            vec![StepFault { text: step.name.clone(), fault }]
        })
    }

    /// `first`, and all columns that the texts of `step` name and that do not exist.
    async fn with_unknown_columns(&self, step: &TransformStep, first: TextFault) -> Vec<TextFault> {
        let mut faults = vec![first];
        for fault in self.lookup_faults(step).await {
            if !faults.iter().any(|known| known.text == fault.text && known.fault.fault.what == fault.fault.fault.what)
            {
                faults.push(fault);
            }
        }
        for sql in step.rows.sql() {
            let input = match sql.of {
                Some(rows) => match self.rows(step, rows).await {
                    Ok(input) => Some(input),
                    Err(_) => continue,
                },
                None => None,
            };
            let mut unknown = Unknown::new(sql.text.as_str());
            while !unknown.is_full() {
                let now = unknown.text();
                let planned = match &input {
                    None => match self.parse(&now) {
                        Ok(statement) => self.state.statement_to_plan(statement).await.map(drop),
                        Err(_) => break,
                    },
                    Some(input) => sql::expression(self.state, &now, input.schema()).map(drop),
                };
                let Some(error) = planned.err().filter(sql::is_unknown_column) else { break };
                let fault = unknown.in_original(sql::plan_fault(&now, &error));
                if !unknown.add(&fault) {
                    break;
                }
                let is_known = |known: &TextFault| known.text == *sql.text && known.fault.is_where(&fault);
                if !faults.iter().any(is_known) {
                    faults.push(TextFault { text: sql.text.clone(), fault });
                }
            }
        }
        faults
    }

    /// The plan of the rows `rows`, or the first fault.
    fn rows<'a>(&'a self, step: &'a TransformStep, rows: &'a Relation) -> BoxFuture<'a, Planned> {
        async move {
            // A fault of an operation as a whole is reported at the entry that its rows come from.
            let origin = rows.origin().cloned().unwrap_or_default();
            match rows {
                Relation::Entry(name) => at(&name.0, self.scan(name.as_str())),
                Relation::Query(query) => self.query(query).await,
                Relation::Union { of, by, distinct } => self.union(step, of, *by, *distinct).await,
                Relation::Filter { from, condition } => self.filter(self.rows(step, from).await?, condition),
                Relation::Project { from, columns } => self.project(self.rows(step, from).await?, columns, &origin),
                Relation::Sort { from, by, limit, distinct, stable, pool } => {
                    let (input, limit) = (self.rows(step, from).await?, limit.map(|limit| limit as usize));
                    let pool = pool.as_ref().map(|pool| pool.as_str().to_owned());
                    let plan = match distinct {
                        None if !stable && pool.is_none() => {
                            let keys = self.sort_keys(by, input.schema())?;
                            LogicalPlanBuilder::from(input).sort_with_limit(keys, limit)
                        }
                        None => {
                            let keys = self.sort_keys(by, input.schema())?;
                            limited(SortedRows::new(input, keys, None, *stable).on(pool).plan(), limit)
                        }
                        Some(distinct) => limited(self.sort_distinct(input, by, distinct, *stable, pool)?, limit),
                    };
                    build(&origin, plan)
                }
                Relation::Dedupe { from, distinct, order } => {
                    self.dedupe(self.rows(step, from).await?, distinct, order, &origin)
                }
                Relation::Map { from, transform } => {
                    MappedRows::plan(self.rows(step, from).await?, Arc::clone(transform), &step.name.value)
                        .map_err(|fault| of_columns(origin, fault))
                }
                Relation::Work { from, workers } => self.work(step, self.rows(step, from).await?, workers, origin),
                Relation::Lookup { from, within, lookup } => {
                    let inputs = [self.rows(step, from).await?, self.rows(step, within).await?];
                    self.lookup(step, [from, within], inputs, lookup)
                }
            }
        }
        .boxed()
    }

    fn work(&self, step: &TransformStep, input: LogicalPlan, workers: &Arc<dyn Workers>, origin: Text) -> Planned {
        let rules = workers.rules();
        let takes = Arc::clone(input.schema().inner());
        let columns = |fault| of_columns(origin.clone(), fault);
        let gives = workers.columns(&takes).map_err(columns)?;
        let by = indices(&takes, &rules.by, "to group by").map_err(columns)?;
        let input = match by.is_empty() {
            true => input,
            false => {
                let keys = by.iter().map(|by| Expr::from(input.schema().qualified_field(*by)).sort(true, true));
                let keys = keys.chain(self.sort_keys(&rules.order_by, input.schema())?).collect();
                build(&origin, Ok(LogicalPlanBuilder::from(SortedRows::new(input, keys, None, false).plan())))?
            }
        };
        let pool = Pool::new(Arc::clone(workers), &step.name.value, takes, self.surroundings, self.cores);
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&pool));
        MappedRows::worked(input, pool, &gives).map_err(columns)
    }

    fn lookup(
        &self,
        step: &TransformStep,
        sides: [&Relation; 2],
        [input, reference]: [LogicalPlan; 2],
        lookup: &Lookup,
    ) -> Planned {
        let [from, within] = sides.map(|side| side.origin().cloned().unwrap_or_default());
        let shaped = shape_of(step, sides, [&input, &reference], lookup);
        let (mut shape, Projection(columns)) = shaped.map_err(|faults| {
            let first = faults.into_iter().next();
            first.map_or_else(
                || of_whole(from.clone(), "it cannot be planned".to_owned(), None),
                |fault| of_columns(from.clone(), fault),
            )
        })?;
        let order = self.sort_keys(&lookup.order_by, reference.schema())?;
        let column = |index: usize| Expr::from(reference.schema().qualified_field(index));
        let mut needed: Vec<Expr> = columns.into_iter().map(column).collect();
        for (index, key) in order.into_iter().enumerate() {
            shape.order.push((needed.len(), SortOptions { descending: !key.asc, nulls_first: key.nulls_first }));
            needed.push(key.expr.alias(format!("_order_{index}")));
        }
        let reference = build(&within, LogicalPlanBuilder::from(reference).project(needed))?;
        at(&from, LookupRows::plan(input, reference, Arc::new(shape)))
    }

    /// All that is wrong with the columns of the lookups of `step`.
    async fn lookup_faults(&self, step: &TransformStep) -> Vec<TextFault> {
        let mut faults = Vec::new();
        for relation in step.rows.all() {
            let Relation::Lookup { from, within, lookup } = relation else { continue };
            let origin = from.origin().cloned().unwrap_or_default();
            if let (Ok(input), Ok(reference)) = (self.rows(step, from).await, self.rows(step, within).await)
                && let Err(found) = shape_of(step, [from, within], [&input, &reference], lookup)
            {
                faults.extend(found.into_iter().map(|fault| of_columns(origin.clone(), fault)));
            }
        }
        faults
    }

    fn filter(&self, input: LogicalPlan, condition: &Expression) -> Planned {
        let filter = self.expression(&condition.0, input.schema())?;
        build(&condition.0, LogicalPlanBuilder::from(input).filter(filter))
    }

    fn project(&self, input: LogicalPlan, columns: &[Column], origin: &Text) -> Planned {
        let chosen = columns.iter().map(|column| {
            let expression = self.expression(&column.expression.0, input.schema())?;
            Ok(match &column.name {
                Some(name) => expression.alias(name.clone()),
                None => expression,
            })
        });
        let chosen = chosen.collect::<Result<Vec<Expr>, TextFault>>()?;
        build(origin, LogicalPlanBuilder::from(input).project(chosen))
    }

    fn sort_distinct(
        &self,
        input: LogicalPlan,
        by: &[SortKey],
        distinct: &Distinct,
        stable: bool,
        pool: Option<String>,
    ) -> Planned {
        let keys = self.sort_keys(by, input.schema())?;
        let same = self.expressions(&distinct.by, input.schema())?;
        let sort = DistinctSort { same, keep: distinct.keep, stable, pool };
        sort.plan(input, keys).ok_or_else(|| no_stable_order(distinct.by.first()))
    }

    fn dedupe(&self, input: LogicalPlan, distinct: &Distinct, order: &[SortKey], origin: &Text) -> Planned {
        // Nothing tells them apart, so any one of equal rows may stay.
        if distinct.by.is_empty() && order.is_empty() && distinct.keep.is_none() {
            return build(origin, LogicalPlanBuilder::from(input).distinct());
        }
        let mut same = self.expressions(&distinct.by, input.schema())?;
        if same.is_empty() {
            same = input.schema().iter().map(Expr::from).collect();
        }
        let order = self.sort_keys(order, input.schema())?;
        Ok(one_of_equal(input, same, distinct.keep, order))
    }

    async fn query(&self, query: &Query) -> Planned {
        let fault_at = |fault| TextFault { text: query.0.clone(), fault };
        let statement = self.parse(query.as_str()).map_err(|fault| fault_at(sql::PlanFault { fault, length: 1 }))?;
        match self.state.statement_to_plan(statement).await {
            Ok(plan) => match sql::same_names(query.as_str(), plan.schema()) {
                Some(fault) => Err(fault_at(fault)),
                None => Ok(plan),
            },
            Err(error) => {
                let mut fault = sql::plan_fault(query.as_str(), &error);
                if let Some((line, column, length)) = self.call_at_fault(query.as_str(), &error).await {
                    (fault.fault.line, fault.fault.column, fault.length) = (line, column, length);
                }
                Err(fault_at(fault))
            }
        }
    }

    /// The statement of a query, as it is planned.
    fn parse(&self, query: &str) -> Result<Statement, SqlFault> {
        let mut statement = sql::parse(query)?;
        let names = |schema: SchemaRef| schema.fields().iter().map(|field| field.name().clone()).collect();
        sql::qualify(&mut statement, &|table| self.tables.get(table).map(|table| names(table.schema())));
        Ok(statement)
    }

    /// Where the call is that `error` is about, if the query has several of that function. The planner does not say, so
    /// it is asked about the query with only the first of them, then the first two, and so on.
    async fn call_at_fault(&self, query: &str, error: &DataFusionError) -> Option<(usize, usize, usize)> {
        let calls = sql::calls(query, &sql::function_at_fault(error)?);
        let message = error.strip_backtrace();
        for (place, shorter) in calls.iter().take(MOST_CALLS) {
            let planned = self.state.statement_to_plan(self.parse(shorter).ok()?).await;
            if planned.is_err_and(|other| other.strip_backtrace() == message) {
                return Some(*place);
            }
        }
        None
    }

    /// The rows of the entry `name`.
    fn scan(&self, name: &str) -> DataFusionResult<LogicalPlan> {
        match self.tables.get(name) {
            Some(table) => scan(name, Arc::clone(table)),
            None => Err(DataFusionError::Plan(format!("there is no source or transform `{name}`"))),
        }
    }

    fn expression(&self, text: &Text, schema: &DFSchema) -> Result<Expr, TextFault> {
        at(text, sql::expression(self.state, text.as_str(), schema))
    }

    /// What is equal in the same rows, each once.
    fn expressions(&self, texts: &[Expression], schema: &DFSchema) -> Result<Vec<Expr>, TextFault> {
        let all = texts.iter().map(|text| self.expression(&text.0, schema)).collect::<Result<Vec<_>, _>>()?;
        Ok(without_doubles(all))
    }

    fn sort_keys(&self, keys: &[SortKey], schema: &DFSchema) -> Result<Vec<Sort>, TextFault> {
        keys.iter()
            .map(|key| {
                let expression = self.expression(&key.expression, schema)?;
                Ok(Sort::new(expression, !key.descending, key.nulls_first))
            })
            .collect()
    }

    async fn union(&self, step: &TransformStep, of: &[Relation], by: UnionBy, distinct: bool) -> Planned {
        let origin = |rows: Option<&Relation>| rows.and_then(Relation::origin).cloned().unwrap_or_default();
        let first = origin(of.first());
        let mut plan: Option<LogicalPlanBuilder> = None;
        for input in of {
            let next = self.rows(step, input).await?;
            let joined = match (plan, by) {
                (None, _) => Ok(LogicalPlanBuilder::from(next)),
                (Some(plan), UnionBy::Name) => plan.union_by_name(next),
                (Some(plan), UnionBy::Position) => plan.union(next),
            };
            plan = Some(at(&origin(Some(input)), joined)?);
        }
        let none = || DataFusionError::Plan("a union has at least one input".to_owned());
        let plan = at(&first, plan.ok_or_else(none))?;
        build(&first, if distinct { plan.distinct() } else { Ok(plan) })
    }

    /// The rows that go to a sink: all columns of its `from`, and the route behind them if it spreads its rows.
    pub fn sink(&self, sink: &SinkStep) -> Result<LogicalPlan, Box<StepFault>> {
        let at = |text: &Located<String>, error: DataFusionError| {
            let fault = sql::plan_fault(&text.value, &error);
            Box::new(StepFault { text: text.clone(), fault })
        };
        let input = self.scan(&sink.from.value).map_err(|error| at(&sink.from, error))?;
        let Some(routing) = sink.sink.routing() else { return Ok(input) };
        let text = sink.texts.iter().find(|text| text.value == routing.expression).unwrap_or(&sink.from);
        let plan = || -> DataFusionResult<LogicalPlan> {
            let value = sql::expression(self.state, &routing.expression, input.schema())?;
            let route = match routing.kind {
                RoutingKind::Hash(shards) => crate::routing::hash_mod(value, shards),
                RoutingKind::Mod(shards) => {
                    let shards = lit(i64::from(shards));
                    let remainder = cast(value, DataType::Int64) % shards.clone();
                    cast((remainder + shards.clone()) % shards, DataType::UInt32)
                }
                RoutingKind::Value => cast(value, DataType::Utf8View),
            };
            let columns: Vec<Expr> = input.schema().iter().map(Expr::from).chain([route.alias(ROUTE)]).collect();
            LogicalPlanBuilder::from(input.clone()).project(columns)?.build()
        };
        plan().map_err(|error| at(text, error))
    }

    /// Finds values that can be computed now and fail, in the `plan` of `rows`: every row would fail by them.
    fn check_constants(&self, rows: &Relation, plan: &LogicalPlan) -> Result<(), TextFault> {
        let Some(error) = sql::constant_fault(self.state, plan) else { return Ok(()) };
        let texts: Vec<&Text> = rows.sql().into_iter().map(|sql| sql.text).collect();
        let value = fault::unwrap(DataFusionError::Shared(Arc::clone(&error))).offending_text().map(str::to_owned);
        let holds = |text: &&&Text| value.as_ref().is_some_and(|value| text.as_str().contains(value.as_str()));
        let Some(text) = texts.iter().find(holds).or(texts.first()) else { return Ok(()) };
        let mut fault = sql::plan_fault(text.as_str(), &error);
        fault.fault.hint = Some(constant_hint(&fault.fault.what).to_owned());
        Err(TextFault { text: (*text).clone(), fault })
    }
}

/// What a lookup of `step` looks up, between the rows of both `sides`, of which the plans are given.
fn shape_of(
    step: &TransformStep,
    sides: [&Relation; 2],
    plans: [&LogicalPlan; 2],
    lookup: &Lookup,
) -> Result<(Shape, Projection), Vec<ColumnsFault>> {
    let names = sides.map(|side| side.origin().map_or("", Text::as_str));
    let [from, within] = [0, 1].map(|side| (names[side], plans[side].schema().as_arrow()));
    Shape::new(lookup, &step.name.value, from, within)
}

/// A transform does not take the columns of the rows from `origin`.
fn of_columns(origin: Text, fault: ColumnsFault) -> TextFault {
    let ColumnsFault { error, setting } = fault;
    let what = [Some(error.what()), error.cause_text()].into_iter().flatten().collect::<Vec<_>>().join(": ");
    of_whole(setting.unwrap_or(origin), what, error.hint_text().map(str::to_owned))
}

/// A stable order is not known any more when rows have been sorted by other columns before.
fn no_stable_order(by: Option<&Expression>) -> TextFault {
    let text = by.map(|by| by.0.clone()).unwrap_or_default();
    let what = "a stable sort cannot dedupe by columns that do not come first in it";
    let hint = "put the columns of `dedupe` first in `by`, or a `dedupe` of its own before the sort";
    of_whole(text, what.to_owned(), Some(hint.to_owned()))
}

/// A fault of a text as a whole.
fn of_whole(text: Text, what: String, hint: Option<String>) -> TextFault {
    let length = text.as_str().chars().count().max(1);
    TextFault { text, fault: sql::PlanFault { fault: SqlFault { line: 1, column: 1, what, hint }, length } }
}

/// What to do about a value of the query itself that cannot be converted.
fn constant_hint(what: &str) -> &'static str {
    if what.ends_with(" to date") {
        "dates are written '2026-02-01'; another form is read by to_date('01.02.2026', '%d.%m.%Y')"
    } else if what.contains(" to timestamp") {
        "times are written '2026-02-01 12:30:00'; another form is read by to_timestamp('01.02.2026 12:30', '%d.%m.%Y \
         %H:%M')"
    } else {
        "this fails before any row is read: correct the expression"
    }
}

/// The first rows of `plan`.
fn limited(plan: LogicalPlan, limit: Option<usize>) -> DataFusionResult<LogicalPlanBuilder> {
    let plan = LogicalPlanBuilder::from(plan);
    if limit.is_some() { plan.limit(0, limit) } else { Ok(plan) }
}

/// The plan, or a fault of the rows from `text`.
fn build(text: &Text, plan: DataFusionResult<LogicalPlanBuilder>) -> Planned {
    at(text, plan.and_then(LogicalPlanBuilder::build))
}

/// Places a fault of the planner in the text that it planned.
fn at<T>(text: &Text, result: DataFusionResult<T>) -> Result<T, TextFault> {
    result.map_err(|error| TextFault { text: text.clone(), fault: sql::plan_fault(text.as_str(), &error) })
}
