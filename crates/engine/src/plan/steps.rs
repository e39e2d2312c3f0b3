//! The steps of the job file as logical plans.
//!
//! Short forms are built from the same expressions that SQL has, so `filter`, `select`, `sort` and `dedupe` take
//! whatever a query would.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::DFSchema;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::SessionState;
use datafusion::functions::math::expr_fn::nanvl;
use datafusion::logical_expr::expr::Sort;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, cast, lit};
use datafusion::sql::parser::Statement;
use millstream_core::Error;
use millstream_core::sink::{ROUTE, RoutingKind};
use millstream_job::{Distinct, Keep, Located, SinkStep, SortKey, SqlFault, Transform, UnionBy};

use super::mapped::MappedRows;
use super::shared::scan;
use super::sorted::{OneOf, SortedRows};
use crate::{fault, sql};

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

/// A text may name so many columns that do not exist before the search for more of them ends.
const MOST_UNKNOWN: usize = 20;

impl StepPlanner<'_> {
    /// The logical plan of `transform`, the entry `step`, or what is wrong with it: of columns that do not exist, all.
    pub async fn plan<'job>(
        &self,
        step: &str,
        transform: &'job Transform,
    ) -> Result<LogicalPlan, Vec<StepFault<'job>>> {
        match self.plan_or_first_fault(step, transform).await {
            Ok(plan) => Ok(plan),
            Err(first) => Err(self.with_unknown_columns(transform, first).await),
        }
    }

    /// `first`, and all columns that the texts of `transform` name and that do not exist. The planner stops at the
    /// first of them, so it is asked again with a null in its place, until it finds no other.
    async fn with_unknown_columns<'job>(
        &self,
        transform: &'job Transform,
        first: StepFault<'job>,
    ) -> Vec<StepFault<'job>> {
        let input = input_of(transform).and_then(|from| self.scan(from).ok());
        let mut faults = vec![first];
        for text in texts_of(transform) {
            let mut unknown = Unknown::new(&text.value);
            while unknown.places.len() < MOST_UNKNOWN {
                let now = unknown.text();
                let planned = match (transform, &input) {
                    (Transform::Sql(_), _) => match sql::parse(&now) {
                        Ok(statement) => self.state.statement_to_plan(statement).await.map(drop),
                        Err(_) => break,
                    },
                    (_, Some(input)) => self.state.create_logical_expr(&now, input.schema()).map(drop),
                    (_, None) => break,
                };
                let Some(error) = planned.err().filter(sql::is_unknown_column) else { break };
                let fault = unknown.in_original(sql::plan_fault(&now, &error));
                if !unknown.add(&fault) {
                    break;
                }
                let is_known = |known: &StepFault<'_>| std::ptr::eq(known.text, text) && known.fault.is_where(&fault);
                if !faults.iter().any(is_known) {
                    faults.push(StepFault { text, fault });
                }
            }
        }
        faults
    }

    async fn plan_or_first_fault<'job>(
        &self,
        step: &str,
        transform: &'job Transform,
    ) -> Result<LogicalPlan, StepFault<'job>> {
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
            Transform::Sort { from, by, limit, distinct, stable, pool } => {
                let input = self.scan(from)?;
                let keys = self.sort_keys(by, input.schema())?;
                let limit = limit.map(|limit| limit as usize);
                let pool = pool.as_ref().map(|pool| pool.value.clone());
                let plan = match (distinct, stable) {
                    (None, false) if pool.is_none() => {
                        let plan = LogicalPlanBuilder::from(input).sort_with_limit(keys, limit);
                        return at(from, plan.and_then(|plan| plan.build()));
                    }
                    (None, stable) => SortedRows::new(input, keys, None, *stable).on(pool).plan(),
                    (Some(distinct), stable) => self.sort_distinct(input, keys, distinct, *stable, pool)?,
                };
                let plan = LogicalPlanBuilder::from(plan);
                let plan = if limit.is_some() { plan.limit(0, limit) } else { Ok(plan) };
                at(from, plan.and_then(|plan| plan.build()))
            }
            Transform::Dedupe { from, distinct, order } => self.dedupe(from, distinct, order),
            Transform::Component { from, transform, .. } => {
                MappedRows::plan(self.scan(from)?, Arc::clone(transform), step)
                    .map_err(|error| of_columns(from, &error))
            }
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

    /// The rows of `input` in the order of `keys`, of which only those stay that `distinct` says. Where the rows that
    /// are the same follow each other in that order, this is one sort.
    fn sort_distinct<'job>(
        &self,
        input: LogicalPlan,
        mut keys: Vec<Sort>,
        Distinct { by, keep }: &'job Distinct,
        stable: bool,
        pool: Option<String>,
    ) -> Result<LogicalPlan, StepFault<'job>> {
        let mut same = self.expressions(by, input.schema())?;
        if same.is_empty() {
            same = without_doubles(keys.iter().map(|key| key.expr.clone()));
        }
        let mut seen = Vec::new();
        keys.retain(|key| {
            !seen.contains(&key.expr) && {
                seen.push(key.expr.clone());
                true
            }
        });
        let first = &seen[..same.len().min(seen.len())];
        let one_of = OneOf { keys: same.len(), keep: sort_keep(*keep) };
        // Where the order says nothing of equal rows, that in which they came does.
        let by_arrival = stable || (keep.is_some() && seen.iter().all(|key| same.contains(key)));
        if same.iter().all(|key| first.contains(key)) {
            equal_floats(&mut keys[..same.len()], input.schema());
            return Ok(SortedRows::new(input, keys, Some(one_of), by_arrival).on(pool).plan());
        }
        if let (true, Some(text)) = (stable, by.first()) {
            return Err(no_stable_order(text));
        }
        let others = keys.iter().filter(|key| !same.contains(&key.expr)).cloned();
        let mut grouped: Vec<Sort> = same.iter().map(|key| key.clone().sort(true, false)).chain(others).collect();
        equal_floats(&mut grouped[..same.len()], input.schema());
        let kept = SortedRows::new(input, grouped, Some(one_of), by_arrival).on(pool.clone()).plan();
        Ok(SortedRows::new(kept, keys, None, false).on(pool).plan())
    }

    /// Without anything that tells them apart any one of equal rows may stay: a distinct. Otherwise it is the first or
    /// the last in a sort.
    fn dedupe<'job>(
        &self,
        from: &'job Located<String>,
        Distinct { by, keep }: &'job Distinct,
        order: &'job [SortKey],
    ) -> Result<LogicalPlan, StepFault<'job>> {
        let input = self.scan(from)?;
        if by.is_empty() && order.is_empty() && keep.is_none() {
            return at(from, LogicalPlanBuilder::from(input).distinct().and_then(|plan| plan.build()));
        }
        let mut same = self.expressions(by, input.schema())?;
        if same.is_empty() {
            same = input.schema().iter().map(Expr::from).collect();
        }
        let order = self.sort_keys(order, input.schema())?;
        let by_arrival = order.is_empty() && keep.is_some();
        let one_of = OneOf { keys: same.len(), keep: sort_keep(*keep) };
        let mut keys: Vec<Sort> = same.into_iter().map(|key| key.sort(true, false)).collect();
        equal_floats(&mut keys, input.schema());
        keys.extend(order);
        Ok(SortedRows::new(input, keys, Some(one_of), by_arrival).plan())
    }

    /// What is equal in the same rows, each once.
    fn expressions<'job>(
        &self,
        texts: &'job [Located<String>],
        schema: &DFSchema,
    ) -> Result<Vec<Expr>, StepFault<'job>> {
        let all = texts.iter().map(|text| self.expression(text, schema)).collect::<Result<Vec<_>, _>>()?;
        Ok(without_doubles(all))
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

/// The expressions in their order, each once.
fn without_doubles(expressions: impl IntoIterator<Item = Expr>) -> Vec<Expr> {
    let mut different: Vec<Expr> = Vec::new();
    for expression in expressions {
        if !different.contains(&expression) {
            different.push(expression);
        }
    }
    different
}

/// Which of the same rows stays: the first if the job does not say.
fn sort_keep(keep: Option<Keep>) -> millstream_sort::Keep {
    match keep {
        Some(Keep::Last) => millstream_sort::Keep::Last,
        Some(Keep::First) | None => millstream_sort::Keep::First,
    }
}

/// Makes numbers equal that are, though their bits differ: 0 and -0, and all that is not a number.
fn equal_floats(keys: &mut [Sort], schema: &DFSchema) {
    for key in keys {
        let (zero, nan) = match key.expr.get_type(schema) {
            Ok(DataType::Float64) => (lit(0.0_f64), lit(f64::NAN)),
            Ok(DataType::Float32) => (lit(0.0_f32), lit(f32::NAN)),
            _ => continue,
        };
        key.expr = nanvl(std::mem::take(&mut key.expr) + zero, nan);
    }
}

/// A component does not take the columns of the step `from`.
fn of_columns<'a>(from: &'a Located<String>, error: &Error) -> StepFault<'a> {
    let what = [Some(error.what()), error.cause_text()].into_iter().flatten().collect::<Vec<_>>().join(": ");
    let fault = SqlFault { line: 1, column: 1, what, hint: error.hint_text().map(str::to_owned) };
    StepFault { text: from, fault: sql::PlanFault { fault, length: from.value.chars().count() } }
}

/// A stable order is not known any more when rows have been sorted by other columns before.
fn no_stable_order(text: &Located<String>) -> StepFault<'_> {
    let fault = SqlFault {
        line: 1,
        column: 1,
        what: "a stable sort cannot dedupe by columns that do not come first in it".to_owned(),
        hint: Some("put the columns of `dedupe` first in `by`, or a `dedupe` of its own before the sort".to_owned()),
    };
    StepFault { text, fault: sql::PlanFault { fault, length: text.value.chars().count().max(1) } }
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

/// A text in which columns that do not exist are replaced by nulls.
struct Unknown<'a> {
    original: &'a str,
    /// Line, column and characters in the original, in order.
    places: Vec<(usize, usize, usize)>,
}

/// What stands in place of a column.
const NULL: &str = "NULL";

impl<'a> Unknown<'a> {
    fn new(original: &'a str) -> Self {
        Unknown { original, places: Vec::new() }
    }

    /// The text with the nulls.
    fn text(&self) -> String {
        let mut lines: Vec<String> = self.original.split('\n').map(str::to_owned).collect();
        for (line, column, length) in self.places.iter().rev() {
            let Some(text) = lines.get_mut(line - 1) else { continue };
            let rest: String = text.chars().skip(column - 1 + length).collect();
            *text = text.chars().take(column - 1).chain(NULL.chars()).collect::<String>() + &rest;
        }
        lines.join("\n")
    }

    /// `fault`, found in [`Unknown::text`], with its place in the original.
    fn in_original(&self, mut fault: sql::PlanFault) -> sql::PlanFault {
        let (line, mut column) = (fault.fault.line, fault.fault.column);
        for (_, at, length) in self.places.iter().filter(|(of, ..)| *of == line) {
            if column > *at {
                column = (column + length).saturating_sub(NULL.len()).max(*at);
            }
        }
        fault.fault.column = column;
        fault
    }

    /// Replaces what is at `fault`; whether that is something new.
    fn add(&mut self, fault: &sql::PlanFault) -> bool {
        let place = (fault.fault.line, fault.fault.column, fault.length);
        let line = self.original.split('\n').nth(place.0.wrapping_sub(1)).unwrap_or_default();
        let text: String = line.chars().skip(place.1.saturating_sub(1)).take(place.2).collect();
        // Only what is a name as a whole: a place that the planner does not know is that of the whole text.
        let is_name = !text.is_empty()
            && text.chars().all(|one| one.is_alphanumeric() || matches!(one, '_' | '.' | '"' | ' ' | '$'));
        let is_new = !self.places.iter().any(|known| (known.0, known.1) == (place.0, place.1));
        if is_name && is_new {
            self.places.push(place);
            self.places.sort_unstable();
        }
        is_name && is_new
    }
}

/// The entry that the expressions of a transform are about.
fn input_of(transform: &Transform) -> Option<&Located<String>> {
    match transform {
        Transform::Sql(_) | Transform::Union { .. } | Transform::Component { .. } => None,
        Transform::Filter { from, .. }
        | Transform::Select { from, .. }
        | Transform::Sort { from, .. }
        | Transform::Dedupe { from, .. } => Some(from),
    }
}

/// The SQL of a transform, in the order in which it stands.
fn texts_of(transform: &Transform) -> Vec<&Located<String>> {
    match transform {
        Transform::Sql(text) => vec![text],
        Transform::Filter { r#where, .. } => vec![r#where],
        Transform::Select { columns, .. } => columns.iter().map(|column| &column.expression).collect(),
        Transform::Union { .. } | Transform::Component { .. } => Vec::new(),
        Transform::Sort { by, distinct, .. } => {
            let same = distinct.iter().flat_map(|distinct| &distinct.by);
            by.iter().map(|key| &key.expression).chain(same).collect()
        }
        Transform::Dedupe { distinct, order, .. } => {
            distinct.by.iter().chain(order.iter().map(|key| &key.expression)).collect()
        }
    }
}

/// Places a fault of the planner in the text that it planned.
fn at<T>(text: &Located<String>, result: DataFusionResult<T>) -> Result<T, StepFault<'_>> {
    result.map_err(|error| StepFault { text, fault: sql::plan_fault(&text.value, &error) })
}
