//! Conversions of constants that fail: `CAST('abc' AS int)`.
//!
//! DataFusion's optimizer computes them, and fails the whole query, wherever they stand: also in a branch of CASE that no
//! row takes. This rule puts a function in their place, which fails with the same error for the first row that needs its
//! value. One that every row needs is found before the job runs: see `constants.rs`.

use arrow::array::new_empty_array;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Result as DataFusionResult, internal_err};
use datafusion::logical_expr::expr::Cast;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use datafusion::optimizer::AnalyzerRule;

/// The name of the function that converts a constant where a row needs it.
pub const LATE_CAST: &str = "late_cast";

/// Puts functions in the place of conversions of constants that fail.
#[derive(Debug, Default)]
pub struct LateCasts;

impl AnalyzerRule for LateCasts {
    fn name(&self) -> &str {
        "late_casts"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> DataFusionResult<LogicalPlan> {
        Ok(plan.transform_up_with_subqueries(late_plan)?.data)
    }
}

fn late_plan(plan: LogicalPlan) -> DataFusionResult<Transformed<LogicalPlan>> {
    let names = NamePreserver::new(&plan);
    plan.map_expressions(|expr| {
        let name = names.save(&expr);
        Ok(expr.transform_up(|expr| Ok(late_expr(expr)))?.update_data(|expr| name.restore(expr)))
    })
}

fn late_expr(expr: Expr) -> Transformed<Expr> {
    if let Expr::Cast(Cast { expr: operand, field }) = &expr
        && let Expr::Literal(value, _) = operand.as_ref()
        && ColumnarValue::Scalar(value.clone()).cast_to(field.data_type(), None).is_err()
    {
        let function = ScalarUDF::from(LateCast::new(field.data_type().clone()));
        return Transformed::yes(function.call(vec![operand.as_ref().clone()]));
    }
    Transformed::no(expr)
}

/// The conversion of a constant, which is not tried before a row needs it.
#[derive(Debug, PartialEq, Eq, Hash)]
struct LateCast {
    target: DataType,
    signature: Signature,
}

impl LateCast {
    fn new(target: DataType) -> Self {
        LateCast { target, signature: Signature::any(1, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for LateCast {
    fn name(&self) -> &str {
        LATE_CAST
    }

    fn display_name(&self, operands: &[Expr]) -> DataFusionResult<String> {
        let operands: Vec<String> = operands.iter().map(ToString::to_string).collect();
        Ok(format!("CAST({} AS {})", operands.join(", "), self.target))
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DataFusionResult<DataType> {
        Ok(self.target.clone())
    }

    fn return_field_from_args(&self, _: ReturnFieldArgs) -> DataFusionResult<FieldRef> {
        Ok(Field::new(self.name(), self.target.clone(), true).into())
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        if arguments.number_rows == 0 {
            return Ok(ColumnarValue::Array(new_empty_array(&self.target)));
        }
        match arguments.args.as_slice() {
            [operand] => operand.cast_to(&self.target, None),
            operands => internal_err!("a conversion has {} operands", operands.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::util::pretty::pretty_format_batches;
    use datafusion::prelude::SessionContext;

    use super::super::checked;

    async fn run(expression: &str) -> Result<String, String> {
        let context = checked(SessionContext::new());
        let sql = format!("SELECT {expression} AS x FROM (VALUES ('a', 1), ('b', 2)) v(t, n)");
        let frame = context.sql(&sql).await.map_err(|error| error.strip_backtrace())?;
        let batches = frame.collect().await.map_err(|error| error.strip_backtrace())?;
        pretty_format_batches(&batches).map(|table| table.to_string()).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_constant_that_no_row_needs_fails_none() {
        for expression in [
            "CASE WHEN t = 'never' THEN CAST('abc' AS int) ELSE 0 END",
            "CASE WHEN t <> 'never' THEN 1 ELSE CAST('abc' AS int) END",
            "CASE t WHEN 'never' THEN CAST('abc' AS int) ELSE 1 END",
            "CASE WHEN t = 'never' THEN CAST('abc' AS int) WHEN t = 'a' THEN 7 ELSE n END",
            "CASE WHEN t = 'never' THEN date '2024-13-01' ELSE date '2024-12-01' END",
            "coalesce(n, CAST('abc' AS int))",
            "t = 'never' AND CAST('abc' AS int) = n",
        ] {
            run(expression).await.unwrap_or_else(|message| panic!("{expression}: {message}"));
        }
    }

    #[tokio::test]
    async fn a_constant_that_a_row_needs_fails_as_before() {
        for expression in ["CAST('abc' AS int)", "CASE WHEN t = 'b' THEN CAST('abc' AS int) ELSE 0 END", "n + 'abc'"] {
            let message = run(expression).await.expect_err(expression);
            assert!(message.contains("Cannot cast string 'abc' to value of Int"), "{expression}: {message}");
        }
    }
}
