//! From an operator that failed to the step of the job at fault.
//!
//! The optimizer puts the expressions of several transforms into one operator, so an operator belongs to no step. What
//! is known is which steps were put together into a plan, and what each of them does: a text that is no number can only
//! come from a step that converts texts. Where that leaves one step it is named, where it leaves a few, all of them.

use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::DataFusionError;
use datafusion::execution::SessionState;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, Operator};
use millstream_core::ErrorKind;

use super::lookup::LookupRows;
use super::mapped::MappedRows;
use super::step::LogicalStep;
use crate::fault;
use crate::rejects::{Entry, allowing};
use crate::sql::LATE_CAST;

/// What a step does that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    Convert,
    Divide,
    Compute,
    Call,
    Join,
    Group,
    Sort,
    Window,
}

/// More steps than this are not worth naming.
const MOST_NAMED: usize = 3;

/// The steps of one plan, and what each does.
#[derive(Debug, Default)]
pub struct ErrorLocator(Vec<(String, Vec<Deed>)>);

impl ErrorLocator {
    /// Adds a step of the plan.
    pub fn add(&mut self, step: &LogicalStep, state: &SessionState) {
        self.0.push((step.name.clone(), deeds_of(&step.plan, state)));
    }

    /// The names of the steps that do something which can fail.
    pub fn steps(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(_, deeds)| !deeds.is_empty()).map(|(name, _)| name.as_str())
    }

    /// `error`, which came out of the operator `operator`, with the step at fault, unless someone below has told it.
    pub fn place(&self, error: DataFusionError, operator: &str) -> DataFusionError {
        if fault::is_placed(&error) {
            return error;
        }
        let told = fault::step_of(&error).map(str::to_owned);
        let steps = told.or_else(|| deed(&error, operator).and_then(|deed| self.steps_that(deed)));
        let error = fault::unwrap(error);
        let Some(steps) = steps else { return fault::carry(error) };
        let leaves_out = matches!(operator, "FilterExec" | "ProjectionExec" | "ReadExec");
        let error = match leaves_out && error.kind() == ErrorKind::Data && !steps.contains(" or ") {
            true => allowing(error, &Entry::Step(steps.clone())),
            false => error,
        };
        fault::carry(error.in_step(&steps))
    }

    fn steps_that(&self, deed: Deed) -> Option<String> {
        let names: Vec<&str> =
            self.0.iter().filter(|(_, deeds)| deeds.contains(&deed)).map(|(name, _)| name.as_str()).collect();
        (1..=MOST_NAMED).contains(&names.len()).then(|| names.join(" or "))
    }
}

/// What was being done when `error` came out of `operator`.
fn deed(error: &DataFusionError, operator: &str) -> Option<Deed> {
    const OPERATORS: &[(&str, Deed)] =
        &[("Join", Deed::Join), ("Aggregate", Deed::Group), ("Sort", Deed::Sort), ("Window", Deed::Window)];
    match error.find_root() {
        DataFusionError::ResourcesExhausted(_) => {
            OPERATORS.iter().find(|(part, _)| operator.contains(part)).map(|(_, deed)| *deed)
        }
        DataFusionError::ArrowError(error, _) => Some(match error.as_ref() {
            ArrowError::CastError(_) | ArrowError::ParseError(_) => Deed::Convert,
            ArrowError::InvalidArgumentError(what) if what.contains("in a Decimal") => Deed::Convert,
            ArrowError::DivideByZero => Deed::Divide,
            ArrowError::ArithmeticOverflow(_) => Deed::Compute,
            _ => Deed::Call,
        }),
        DataFusionError::Execution(_) | DataFusionError::External(_) => Some(Deed::Call),
        _ => None,
    }
}

fn deeds_of(plan: &LogicalPlan, state: &SessionState) -> Vec<Deed> {
    // With the conversions that the types ask for.
    let analysed = state.analyzer().execute_and_check(plan.clone(), state.config_options(), |_, _| {});
    let analysed = analysed.unwrap_or_else(|_| plan.clone());
    let mut deeds = Vec::new();
    let walked = analysed.apply_with_subqueries(|node| {
        deeds.extend(match node {
            LogicalPlan::Join(_) => Some(Deed::Join),
            LogicalPlan::Aggregate(_) | LogicalPlan::Distinct(_) => Some(Deed::Group),
            // What transforms do is placed, and counted, where they do it.
            LogicalPlan::Extension(own) if own.node.as_any().is::<MappedRows>() => None,
            LogicalPlan::Extension(own) if own.node.as_any().is::<LookupRows>() => None,
            LogicalPlan::Sort(_) | LogicalPlan::Extension(_) => Some(Deed::Sort),
            LogicalPlan::Window(_) => Some(Deed::Window),
            _ => None,
        });
        let schema = merge_schema(&node.inputs());
        node.apply_expressions(|expression| {
            expression.apply(|part| {
                deeds.extend(deeds_of_expression(part, &schema));
                Ok(TreeNodeRecursion::Continue)
            })
        })
    });
    if walked.is_err() {
        deeds.clear();
    }
    deeds
}

fn deeds_of_expression(expression: &Expr, schema: &DFSchema) -> &'static [Deed] {
    match expression {
        Expr::Cast(cast) => {
            let from = cast.expr.get_type(schema);
            let to = expression.get_type(schema);
            let safe = from.is_ok_and(|from| to.is_ok_and(|to| always_fits(&from, &to)));
            if safe { &[] } else { &[Deed::Convert] }
        }
        Expr::BinaryExpr(binary) => match binary.op {
            Operator::Divide | Operator::Modulo | Operator::IntegerDivide => &[Deed::Divide, Deed::Compute],
            Operator::Plus | Operator::Minus | Operator::Multiply => &[Deed::Compute],
            _ => &[],
        },
        Expr::ScalarFunction(call) if call.name() == LATE_CAST => &[Deed::Convert],
        Expr::ScalarFunction(_) | Expr::AggregateFunction(_) | Expr::WindowFunction(_) | Expr::Negative(_) => {
            &[Deed::Call, Deed::Compute]
        }
        Expr::ScalarSubquery(_) => &[Deed::Call],
        _ => &[],
    }
}

/// Whether every value of `from` is one of `to`.
fn always_fits(from: &DataType, to: &DataType) -> bool {
    let is_text = |kind: &DataType| matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    if from == to || from.is_null() || is_text(to) {
        return true;
    }
    let width = |kind: &DataType| kind.primitive_width().unwrap_or(0);
    let (signed, unsigned) = (DataType::is_signed_integer, DataType::is_unsigned_integer);
    (from.is_integer() && to.is_floating())
        || (from.is_floating() && to.is_floating())
        || (signed(from) && signed(to) && width(to) >= width(from))
        || (unsigned(from) && unsigned(to) && width(to) >= width(from))
        || (unsigned(from) && signed(to) && width(to) > width(from))
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionContext;
    use millstream_core::Error;
    use millstream_core::reject::RejectKind;

    use super::*;

    async fn locator(steps: &[(&str, &str)]) -> ErrorLocator {
        let context = SessionContext::new();
        let mut locator = ErrorLocator::default();
        for (name, sql) in steps {
            let plan = context.state().create_logical_plan(sql).await.expect("a plan");
            locator.add(&LogicalStep { name: (*name).to_owned(), plan }, &context.state());
        }
        locator
    }

    fn arrow(error: ArrowError) -> DataFusionError {
        DataFusionError::ArrowError(Box::new(error), None)
    }

    fn step(locator: &ErrorLocator, error: DataFusionError, operator: &str) -> Option<String> {
        fault::unwrap(locator.place(error, operator)).step_name().map(str::to_owned)
    }

    #[tokio::test]
    async fn the_step_that_can_have_done_it_is_named() {
        let locator = locator(&[
            ("clean", "SELECT CAST(t AS int) AS n FROM (VALUES ('1')) v(t)"),
            ("share", "SELECT n / m AS q FROM (VALUES (1, 2)) v(n, m)"),
            ("wide", "SELECT n + 1.5 AS w FROM (VALUES (1)) v(n)"),
            ("groups", "SELECT n, count(*) FROM (VALUES (1)) v(n) GROUP BY n"),
        ])
        .await;
        let cast = || arrow(ArrowError::CastError("Cannot cast string 'x' to value of Int32 type".into()));
        assert_eq!(step(&locator, cast(), "ProjectionExec").as_deref(), Some("clean"));
        assert_eq!(step(&locator, arrow(ArrowError::DivideByZero), "FilterExec").as_deref(), Some("share"));
        let overflow = arrow(ArrowError::ArithmeticOverflow("Overflow happened on: 1 + 2".into()));
        assert_eq!(step(&locator, overflow, "ProjectionExec").as_deref(), Some("share or wide or groups"));
        let memory = DataFusionError::ResourcesExhausted("no".into());
        assert_eq!(step(&locator, memory, "AggregateExec").as_deref(), Some("groups"));
        let called = Error::data("no").reject(RejectKind::Expression);
        let called = fault::carry_of_step(called, "wide");
        assert_eq!(step(&locator, called, "ProjectionExec").as_deref(), Some("wide"));
        let told = fault::carry(fault::unwrap(cast()).in_step("other"));
        assert_eq!(step(&locator, told, "ProjectionExec").as_deref(), Some("other"));
    }
}
