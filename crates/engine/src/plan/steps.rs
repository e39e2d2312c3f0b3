//! The steps of the job file as logical plans.
//!
//! Short forms are built from the same expressions that SQL has, so `filter`, `select`, `sort` and `dedupe` take
//! whatever a query would.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::DFSchema;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::SessionState;
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::expr::Sort;
use datafusion::logical_expr::{Expr, ExprFunctionExt, LogicalPlan, LogicalPlanBuilder, cast, ident, lit};
use datafusion::sql::parser::Statement;
use millstream_core::sink::{ROUTE, RoutingKind};
use millstream_job::{Keep, Located, SinkStep, SortKey, Transform, UnionBy};

use super::shared::scan;
use crate::{fault, sql};

/// The name of the column that counts equal rows in a `dedupe`; it never leaves the step.
const RANK: &str = "_millstream_rank";

/// Of more calls of one function it is not looked which is at fault.
const MOST_CALLS: usize = 32;

/// A fault of a step's plan, and the text of the job that it is in.
#[derive(Debug)]
pub struct StepFault<'a> {
    /// The SQL or expression at fault.
    pub text: &'a Located<String>,
    /// The fault, with its place in the text.
    pub fault: sql::PlanFault,
}

/// Plans one transform. `tables` gives the table of an entry.
pub struct StepPlanner<'a> {
    /// The SQL engine. The entries that a query may use are registered in its catalog.
    pub state: &'a SessionState,
    /// The tables of the steps planned so far.
    pub tables: &'a std::collections::HashMap<String, Arc<dyn datafusion::catalog::TableProvider>>,
}

impl StepPlanner<'_> {
    /// The logical plan of `transform`.
    pub async fn plan<'job>(&self, transform: &'job Transform) -> Result<LogicalPlan, StepFault<'job>> {
        match transform {
            Transform::Sql(text) => self.query(text).await,
            Transform::Filter { from, r#where: condition } => {
                let input = self.scan(from)?;
                let filter = self.expression(condition, input.schema())?;
                at(condition, LogicalPlanBuilder::from(input).filter(filter).and_then(|plan| plan.build()))
            }
            Transform::Select { from, columns } => {
                let input = self.scan(from)?;
                let mut chosen = Vec::new();
                for column in columns {
                    let expression = self.expression(&column.expression, input.schema())?;
                    chosen.push(match &column.name {
                        Some(name) => expression.alias(name.value.clone()),
                        None => expression,
                    });
                }
                at(from, LogicalPlanBuilder::from(input).project(chosen).and_then(|plan| plan.build()))
            }
            Transform::Union { of, by, distinct } => self.union(of, *by, *distinct),
            Transform::Sort { from, by, limit } => {
                let input = self.scan(from)?;
                let keys = self.sort_keys(by, input.schema())?;
                let limit = limit.map(|limit| limit as usize);
                at(from, LogicalPlanBuilder::from(input).sort_with_limit(keys, limit).and_then(|plan| plan.build()))
            }
            Transform::Dedupe { from, by, keep, order } => self.dedupe(from, by, *keep, order),
        }
    }

    async fn query<'job>(&self, text: &'job Located<String>) -> Result<LogicalPlan, StepFault<'job>> {
        let statement: Statement =
            sql::parse(&text.value).map_err(|fault| StepFault { text, fault: sql::PlanFault { fault, length: 1 } })?;
        match self.state.statement_to_plan(statement).await {
            Ok(plan) => Ok(plan),
            Err(error) => {
                let mut fault = sql::plan_fault(&text.value, &error);
                if let Some((line, column, length)) = self.call_at_fault(&text.value, &error).await {
                    (fault.fault.line, fault.fault.column, fault.length) = (line, column, length);
                }
                Err(StepFault { text, fault })
            }
        }
    }

    /// Where the call is that `error` is about, if the query has several of that function. The planner does not say, so
    /// it is asked about the query with only the first of them, then the first two, and so on.
    async fn call_at_fault(&self, query: &str, error: &DataFusionError) -> Option<(usize, usize, usize)> {
        let calls = sql::calls(query, &sql::function_at_fault(error)?);
        let message = error.strip_backtrace();
        for (place, shorter) in calls.iter().take(MOST_CALLS) {
            let planned = self.state.statement_to_plan(sql::parse(shorter).ok()?).await;
            if planned.is_err_and(|other| other.strip_backtrace() == message) {
                return Some(*place);
            }
        }
        None
    }

    fn scan<'job>(&self, from: &'job Located<String>) -> Result<LogicalPlan, StepFault<'job>> {
        let table = self
            .tables
            .get(&from.value)
            .ok_or_else(|| DataFusionError::Plan(format!("there is no source or transform `{}`", from.value)));
        at(from, table.and_then(|table| scan(&from.value, Arc::clone(table))))
    }

    fn expression<'job>(&self, text: &'job Located<String>, schema: &DFSchema) -> Result<Expr, StepFault<'job>> {
        at(text, self.state.create_logical_expr(&text.value, schema))
    }

    fn sort_keys<'job>(&self, keys: &'job [SortKey], schema: &DFSchema) -> Result<Vec<Sort>, StepFault<'job>> {
        keys.iter()
            .map(|key| {
                let expression = self.expression(&key.expression, schema)?;
                Ok(Sort::new(expression, !key.descending, key.nulls_first))
            })
            .collect()
    }

    fn union<'job>(
        &self,
        of: &'job [Located<String>],
        by: UnionBy,
        distinct: bool,
    ) -> Result<LogicalPlan, StepFault<'job>> {
        let mut inputs = of.iter();
        let first = inputs.next().expect("the job crate wants at least two");
        let mut plan = LogicalPlanBuilder::from(self.scan(first)?);
        for input in inputs {
            let next = self.scan(input)?;
            plan = at(
                input,
                match by {
                    UnionBy::Name => plan.union_by_name(next),
                    UnionBy::Position => plan.union(next),
                },
            )?;
        }
        if distinct {
            plan = at(first, plan.distinct())?;
        }
        at(first, plan.build())
    }

    /// Without an order any one of equal rows may stay: a distinct, or the first of each group. With one it is the
    /// first (or last) by a window, which spills like a sort.
    fn dedupe<'job>(
        &self,
        from: &'job Located<String>,
        by: &'job [Located<String>],
        keep: Keep,
        order: &'job [SortKey],
    ) -> Result<LogicalPlan, StepFault<'job>> {
        let input = self.scan(from)?;
        if by.is_empty() && order.is_empty() {
            return at(from, LogicalPlanBuilder::from(input).distinct().and_then(|plan| plan.build()));
        }
        let columns: Vec<Expr> = input.schema().iter().map(Expr::from).collect();
        let mut keys = Vec::new();
        for column in by {
            keys.push(self.expression(column, input.schema())?);
        }
        if keys.is_empty() {
            keys.clone_from(&columns);
        }
        let mut order = self.sort_keys(order, input.schema())?;
        if keep == Keep::Last {
            order.iter_mut().for_each(|key| {
                key.asc = !key.asc;
                key.nulls_first = !key.nulls_first;
            });
        }
        let plan = || -> DataFusionResult<LogicalPlan> {
            let mut rank = row_number().partition_by(keys);
            if !order.is_empty() {
                rank = rank.order_by(order);
            }
            let rank = rank.build()?.alias(RANK);
            LogicalPlanBuilder::from(input)
                .window(vec![rank])?
                .filter(ident(RANK).eq(lit(1u64)))?
                .project(columns)?
                .build()
        };
        at(from, plan())
    }

    /// The rows that go to a sink: all columns of its `from`, and the route behind them if it spreads its rows.
    pub fn sink<'job>(&self, sink: &'job SinkStep) -> Result<LogicalPlan, StepFault<'job>> {
        let input = self.scan(&sink.from)?;
        let Some(routing) = sink.sink.routing() else { return Ok(input) };
        let text = sink.texts.iter().find(|text| text.value == routing.expression).unwrap_or(&sink.from);
        let plan = || -> DataFusionResult<LogicalPlan> {
            let value = self.state.create_logical_expr(&routing.expression, input.schema())?;
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
        at(text, plan())
    }

    /// Finds values that can be computed now and fail, in the `plan` of `transform`: every row would fail by them.
    pub fn check_constants<'job>(&self, transform: &'job Transform, plan: &LogicalPlan) -> Result<(), StepFault<'job>> {
        let Some(error) = sql::constant_fault(self.state, plan) else { return Ok(()) };
        let texts = texts_of(transform);
        let value = fault::unwrap(DataFusionError::Shared(Arc::clone(&error))).offending_text().map(str::to_owned);
        let holds = |text: &&&Located<String>| value.as_ref().is_some_and(|value| text.value.contains(value.as_str()));
        match texts.iter().find(holds).or(texts.first()) {
            Some(text) => {
                let mut fault = sql::plan_fault(&text.value, &error);
                fault.fault.hint = Some(constant_hint(&fault.fault.what).to_owned());
                Err(StepFault { text, fault })
            }
            None => Ok(()),
        }
    }
}

/// What to do about a value of the query itself that cannot be converted.
fn constant_hint(what: &str) -> &'static str {
    if what.ends_with(" to date") {
        "dates are written '2026-02-01'; another form is read by to_date('01.02.2026', '%d.%m.%Y')"
    } else if what.contains(" to timestamp") {
        "times are written '2026-02-01 12:30:00'; another form is read by to_timestamp('01.02.2026 12:30', '%d.%m.%Y %H:%M')"
    } else {
        "no row has a part in this: correct what stands here"
    }
}

/// The SQL of a transform, in the order in which it stands.
fn texts_of(transform: &Transform) -> Vec<&Located<String>> {
    match transform {
        Transform::Sql(text) => vec![text],
        Transform::Filter { r#where, .. } => vec![r#where],
        Transform::Select { columns, .. } => columns.iter().map(|column| &column.expression).collect(),
        Transform::Union { .. } => Vec::new(),
        Transform::Sort { by, .. } => by.iter().map(|key| &key.expression).collect(),
        Transform::Dedupe { by, order, .. } => by.iter().chain(order.iter().map(|key| &key.expression)).collect(),
    }
}

/// Places a fault of the planner in the text that it planned.
fn at<T>(text: &Located<String>, result: DataFusionResult<T>) -> Result<T, StepFault<'_>> {
    result.map_err(|error| StepFault { text, fault: sql::plan_fault(&text.value, &error) })
}
