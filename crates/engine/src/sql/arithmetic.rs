//! Integer arithmetic that fails where its result does not fit.
//!
//! DataFusion's `+`, `-` and `*` on integers wrap around: 9223372036854775807 + 1 is a negative number, and the job
//! ends as if all were well. This rule puts functions in their place, behind the coercion of types, so that the
//! operands have one type. Division, dates, floats and decimals check for themselves.

use std::fmt;

use arrow::compute::kernels::numeric;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result as DataFusionResult, internal_err};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator, ReturnFieldArgs, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::physical_expr_common::datum;

/// Puts checked functions in the place of integer operators.
#[derive(Debug, Default)]
pub struct CheckedArithmetic;

impl AnalyzerRule for CheckedArithmetic {
    fn name(&self) -> &str {
        "checked_arithmetic"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> DataFusionResult<LogicalPlan> {
        Ok(plan.transform_up_with_subqueries(checked_plan)?.data)
    }
}

fn checked_plan(plan: LogicalPlan) -> DataFusionResult<Transformed<LogicalPlan>> {
    let schema = merge_schema(&plan.inputs());
    let names = NamePreserver::new(&plan);
    plan.map_expressions(|expr| {
        let name = names.save(&expr);
        let checked = expr.transform_up(|expr| checked_expr(expr, &schema))?;
        Ok(checked.update_data(|expr| name.restore(expr)))
    })
}

fn checked_expr(expr: Expr, schema: &DFSchema) -> DataFusionResult<Transformed<Expr>> {
    let (operator, operands) = match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if left.get_type(schema)?.is_integer() => {
            match Arithmetic::of(op) {
                Some(operator) if right.get_type(schema)?.is_integer() => (operator, vec![*left, *right]),
                _ => return Ok(Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right }))),
            }
        }
        Expr::Negative(operand) if operand.get_type(schema)?.is_integer() => (Arithmetic::Negate, vec![*operand]),
        other => return Ok(Transformed::no(other)),
    };
    Ok(Transformed::yes(ScalarUDF::from(Checked::new(operator)).call(operands)))
}

/// What is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Negate,
}

impl Arithmetic {
    fn of(operator: Operator) -> Option<Self> {
        match operator {
            Operator::Plus => Some(Arithmetic::Add),
            Operator::Minus => Some(Arithmetic::Subtract),
            Operator::Multiply => Some(Arithmetic::Multiply),
            _ => None,
        }
    }

    fn sign(self) -> &'static str {
        match self {
            Arithmetic::Add => "+",
            Arithmetic::Subtract | Arithmetic::Negate => "-",
            Arithmetic::Multiply => "*",
        }
    }
}

/// An operator on integers of one type, as a function.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Checked {
    arithmetic: Arithmetic,
    signature: Signature,
}

impl Checked {
    fn new(arithmetic: Arithmetic) -> Self {
        Checked {
            arithmetic,
            signature: Signature::any(2 - usize::from(arithmetic == Arithmetic::Negate), Volatility::Immutable),
        }
    }

    fn shown<T: fmt::Display>(&self, operands: impl IntoIterator<Item = T>) -> String {
        let sign = self.arithmetic.sign();
        let operands: Vec<String> = operands.into_iter().map(|operand| operand.to_string()).collect();
        match operands.as_slice() {
            [only] => format!("({sign} {only})"),
            several => several.join(&format!(" {sign} ")),
        }
    }
}

impl ScalarUDFImpl for Checked {
    fn name(&self) -> &str {
        match self.arithmetic {
            Arithmetic::Add => "checked_add",
            Arithmetic::Subtract => "checked_subtract",
            Arithmetic::Multiply => "checked_multiply",
            Arithmetic::Negate => "checked_negate",
        }
    }

    fn display_name(&self, operands: &[Expr]) -> DataFusionResult<String> {
        Ok(self.shown(operands))
    }

    fn schema_name(&self, operands: &[Expr]) -> DataFusionResult<String> {
        Ok(self.shown(operands.iter().map(Expr::schema_name)))
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, operands: &[DataType]) -> DataFusionResult<DataType> {
        match operands.first() {
            Some(data_type) => Ok(data_type.clone()),
            None => internal_err!("arithmetic without operands"),
        }
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> DataFusionResult<FieldRef> {
        let Some(first) = arguments.arg_fields.first() else { return internal_err!("arithmetic without operands") };
        let nullable = arguments.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Field::new(self.name(), first.data_type().clone(), nullable).into())
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        match (self.arithmetic, arguments.args.as_slice()) {
            (Arithmetic::Negate, [operand]) => {
                let operand = operand.to_array(arguments.number_rows)?;
                Ok(ColumnarValue::Array(numeric::neg(&operand)?))
            }
            (Arithmetic::Add, [left, right]) => datum::apply(left, right, numeric::add),
            (Arithmetic::Subtract, [left, right]) => datum::apply(left, right, numeric::sub),
            (Arithmetic::Multiply, [left, right]) => datum::apply(left, right, numeric::mul),
            _ => internal_err!("`{}` has {} operands", self.name(), arguments.args.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::util::pretty::pretty_format_batches;
    use datafusion::prelude::SessionContext;

    use super::super::checked;

    async fn run(sql: &str) -> Result<String, String> {
        let context = checked(SessionContext::new());
        let frame = context.sql(sql).await.map_err(|error| error.strip_backtrace())?;
        let batches = frame.collect().await.map_err(|error| error.strip_backtrace())?;
        pretty_format_batches(&batches).map(|table| table.to_string()).map_err(|error| error.to_string())
    }

    const VALUES: &str =
        "FROM (VALUES (9223372036854775807, CAST(127 AS TINYINT), CAST(0 AS BIGINT UNSIGNED))) v(a, b, c)";

    #[tokio::test]
    async fn what_does_not_fit_is_an_error_and_not_a_wrong_number() {
        for wrong in [
            "a + 1",
            "1 + a",
            "a * 2",
            "-a - 2",
            "a + a",
            "b * b * 2000",
            "c - CAST(1 AS BIGINT UNSIGNED)",
            "-(-a - 1)",
            "9223372036854775807 + 1",
            "CASE WHEN a > 0 THEN a + 1 ELSE 0 END",
            "abs(a * 3)",
        ] {
            let message = run(&format!("SELECT {wrong} AS x {VALUES}")).await.expect_err(wrong);
            assert!(message.contains("Overflow happened on"), "{wrong}: {message}");
        }
    }

    #[tokio::test]
    async fn what_fits_is_computed_as_before_under_its_own_name() {
        let table = run(&format!("SELECT a - 1, b - b, -b, a * NULL, a - (SELECT 9223372036854775807) {VALUES}")).await;
        let table = table.expect("all of them fit");
        for expected in ["9223372036854775806", "| 0 ", "-127", "v.a - Int64(1)", "v.b - v.b", "(- v.b)"] {
            assert!(table.contains(expected), "{expected}:\n{table}");
        }
        let groups = run("SELECT x + 1 AS y, count(*) FROM (VALUES (1), (1), (2)) v(x) GROUP BY x + 1 ORDER BY x + 1");
        assert!(groups.await.expect("grouped by a sum").contains("| 2 | 2 "));
        let recursion =
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5) SELECT max(i) FROM n";
        assert!(run(recursion).await.expect("recursion").contains("| 5 "));
    }
}
