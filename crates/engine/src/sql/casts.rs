//! Conversions that DataFusion's optimizer gets wrong.
//!
//! Of constants that fail (`CAST('abc' AS int)`): it computes them, and fails the whole query, wherever they stand:
//! also in a branch of CASE that no row takes. A function in their place fails with the same error for the first row
//! that needs its value. One that every row needs is found before the job runs: see `constants.rs`.
//!
//! Of numbers and times to types that hold less (`CAST(12.34 AS decimal(7, 1)) = 12.3`): it compares the value without
//! its conversion (`12.34 = 12.30`), which is another question (apache/datafusion issues 23095 and 24702). Behind a
//! function it does not see the conversion.

use arrow::array::new_empty_array;
use arrow::compute::CastOptions;
use arrow::datatypes::{DataType, Field, FieldRef, TimeUnit};
use arrow::util::display::FormatOptions;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result as DataFusionResult, ScalarValue, internal_err};
use datafusion::logical_expr::expr::{Between, Cast, InList, TryCast};
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, LogicalPlan, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::AnalyzerRule;

use super::rewrite;

/// The name of the function that converts where a row needs it.
pub const LATE_CAST: &str = "late_cast";

/// Puts functions in the place of such conversions.
#[derive(Debug, Default)]
pub struct LateCasts;

impl AnalyzerRule for LateCasts {
    fn name(&self) -> &str {
        "late_casts"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> DataFusionResult<LogicalPlan> {
        rewrite::expressions(plan, late_expr)
    }
}

fn late_expr(expr: Expr, schema: &DFSchema) -> DataFusionResult<Transformed<Expr>> {
    let (operand, target, or_null) = match &expr {
        Expr::Cast(Cast { expr: operand, field }) => (operand, field.data_type(), false),
        Expr::TryCast(TryCast { expr: operand, field }) => (operand, field.data_type(), true),
        _ => return late_comparison(expr, schema),
    };
    let late = match operand.as_ref() {
        Expr::Literal(value, _) => !or_null && ColumnarValue::Scalar(value.clone()).cast_to(target, None).is_err(),
        operand => narrows(&operand.get_type(schema)?, target),
    };
    if !late {
        return Ok(Transformed::no(expr));
    }
    Ok(Transformed::yes(late_cast(operand, target, or_null)))
}

fn late_cast(operand: &Expr, target: &DataType, or_null: bool) -> Expr {
    ScalarUDF::from(LateCast::new(target.clone(), or_null)).call(vec![operand.clone()])
}

/// A time that is converted to a finer unit is compared in its own unit, if the constants beside it have no more digits
/// than that: so filters reach the sources, and times beyond the year 2262 are no error. DataFusion cuts the digits.
fn late_comparison(expr: Expr, schema: &DFSchema) -> DataFusionResult<Transformed<Expr>> {
    let operands: Vec<&Expr> = match &expr {
        // What can be negated compares.
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if op.negate().is_some() => vec![left, right],
        Expr::Between(Between { expr, low, high, .. }) => vec![expr, low, high],
        Expr::InList(InList { expr, list, .. }) => std::iter::once(expr.as_ref()).chain(list).collect(),
        _ => return Ok(Transformed::no(expr)),
    };
    let mut is_cut = false;
    for operand in &operands {
        let Expr::Cast(Cast { expr: time, field }) = operand else { continue };
        let DataType::Timestamp(to, _) = field.data_type() else { continue };
        let DataType::Timestamp(from, _) = time.get_type(schema)? else { continue };
        let ratio = ticks(*to) / ticks(from);
        let has_more_digits =
            |constant: &&Expr| count(constant, field.data_type()).is_some_and(|count| count % ratio != 0);
        is_cut |= ratio > 1 && operands.iter().any(has_more_digits);
    }
    if !is_cut {
        return Ok(Transformed::no(expr));
    }
    expr.map_children(|operand| match &operand {
        Expr::Cast(Cast { expr: time, field }) if matches!(time.get_type(schema)?, DataType::Timestamp(..)) => {
            Ok(Transformed::yes(late_cast(time, field.data_type(), false)))
        }
        _ => Ok(Transformed::no(operand)),
    })
}

/// The ticks of a constant time of the type `of`.
fn count(constant: &Expr, of: &DataType) -> Option<i64> {
    let value = match constant {
        Expr::Literal(value, _) => value,
        Expr::Cast(Cast { expr, .. }) => match expr.as_ref() {
            Expr::Literal(value, _) => value,
            _ => return None,
        },
        _ => return None,
    };
    match value.cast_to(of).ok()? {
        ScalarValue::TimestampSecond(count, _)
        | ScalarValue::TimestampMillisecond(count, _)
        | ScalarValue::TimestampMicrosecond(count, _)
        | ScalarValue::TimestampNanosecond(count, _) => count,
        _ => None,
    }
}

/// Ticks of a second.
fn ticks(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

/// Whether numbers of `from` exist that `to` does not hold as they are.
fn narrows(from: &DataType, to: &DataType) -> bool {
    use DataType::{Decimal32, Decimal64, Decimal128, Decimal256};
    let decimal = |kind: &DataType| match kind {
        Decimal32(precision, scale)
        | Decimal64(precision, scale)
        | Decimal128(precision, scale)
        | Decimal256(precision, scale) => Some((i16::from(*precision), i16::from(*scale))),
        _ => None,
    };
    let integer = |kind: &DataType| {
        let bits = i16::try_from(8 * kind.primitive_width()?).ok()?;
        let signed = kind.is_signed_integer();
        kind.is_integer().then_some((bits - i16::from(signed), signed))
    };
    match (integer(from), decimal(from), integer(to), decimal(to)) {
        (Some((from, from_signed)), _, Some((to, to_signed)), _) => to < from || (from_signed && !to_signed),
        // Digits before the point: of 2^bits, bits · log10(2), rounded up.
        (Some((bits, _)), _, _, Some((precision, scale))) => {
            i32::from(precision - scale) < i32::from(bits) * 30_103 / 100_000 + 1
        }
        (_, Some(_), Some(_), _) => true,
        (_, Some((from_precision, from_scale)), _, Some((precision, scale))) => {
            scale < from_scale || precision - scale < from_precision - from_scale
        }
        _ => false,
    }
}

/// A conversion that is not tried before a row needs it, and that no comparison is rewritten around.
#[derive(Debug, PartialEq, Eq, Hash)]
struct LateCast {
    target: DataType,
    /// Whether what does not fit becomes null.
    or_null: bool,
    signature: Signature,
}

impl LateCast {
    fn new(target: DataType, or_null: bool) -> Self {
        LateCast { target, or_null, signature: Signature::any(1, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for LateCast {
    fn name(&self) -> &str {
        LATE_CAST
    }

    fn display_name(&self, operands: &[Expr]) -> DataFusionResult<String> {
        let operands: Vec<String> = operands.iter().map(ToString::to_string).collect();
        let word = if self.or_null { "TRY_CAST" } else { "CAST" };
        Ok(format!("{word}({} AS {})", operands.join(", "), self.target))
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
            [operand] => {
                let options = CastOptions { safe: self.or_null, format_options: FormatOptions::default() };
                operand.cast_to(&self.target, Some(&options))
            }
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
        query(&format!("SELECT {expression} AS x FROM (VALUES ('a', 1), ('b', 2)) v(t, n)")).await
    }

    async fn query(sql: &str) -> Result<String, String> {
        let context = checked(SessionContext::new());
        let frame = context.sql(sql).await.map_err(|error| error.strip_backtrace())?;
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
        for expression in ["CAST('abc' AS int)", "CASE WHEN t = 'b' THEN CAST('abc' AS int) ELSE 0 END", "n = 'abc'"] {
            let message = run(expression).await.expect_err(expression);
            assert!(message.contains("Cannot cast string 'abc' to value of Int"), "{expression}: {message}");
        }
    }

    /// DataFusion 55 compares 12.34 with 12.30, and 300 with 1 as if it were a small integer.
    #[tokio::test]
    async fn a_comparison_is_one_of_converted_values() {
        const ROWS: &str = "FROM (VALUES (1, CAST(12.34 AS decimal(7, 2)), 5, TIMESTAMP '2024-01-01 00:00:00.5', \
                            CAST('2024-01-01' AS timestamp(6))), (2, CAST(12.30 AS decimal(7, 2)), 300, TIMESTAMP \
                            '2024-01-01 00:00:00', CAST('2024-01-01 00:00:00.000001' AS timestamp(6)))) v(id, d, n, t, \
                            u)";
        for (condition, ids) in [
            ("CAST(d AS decimal(7, 1)) = 12.3", vec![1, 2]),
            ("CAST(d AS decimal(7, 1)) <> 12.3", vec![]),
            ("CAST(d AS decimal(7, 1)) IN (12.3, 99.9)", vec![1, 2]),
            ("CAST(d AS decimal(7, 1)) > 12.3", vec![]),
            ("CAST(d AS int) = 12", vec![1, 2]),
            ("CAST(d AS bigint) = 12", vec![1, 2]),
            ("TRY_CAST(d AS decimal(7, 1)) = 12.3", vec![1, 2]),
            ("TRY_CAST(n AS tinyint) > 1", vec![1]),
            ("TRY_CAST(n AS tinyint) IS NULL", vec![2]),
            ("CAST(n AS smallint) = 300", vec![2]),
            ("CAST(n AS decimal(10, 2)) = 300.00", vec![2]),
            ("CAST(t AS timestamp(0)) = TIMESTAMP '2024-01-01 00:00:00'", vec![1, 2]),
            ("CAST(t AS timestamp(0)) IN (TIMESTAMP '2024-01-01 00:00:00')", vec![1, 2]),
            ("CAST(t AS timestamp(0)) < TIMESTAMP '2024-01-01 00:00:00.3'", vec![1, 2]),
            ("u > TIMESTAMP '2024-01-01 00:00:00'", vec![2]),
            ("u > DATE '2024-01-01'", vec![2]),
            ("u >= DATE '2024-01-01'", vec![1, 2]),
            ("u < TIMESTAMP '2024-01-01 00:00:00.0000005'", vec![1]),
            ("u = TIMESTAMP '2024-01-01 00:00:00.0000005'", vec![]),
            ("u IN (TIMESTAMP '2024-01-01 00:00:00.0000005', TIMESTAMP '2024-01-01 00:00:00')", vec![1]),
            ("u BETWEEN TIMESTAMP '2023-01-01' AND TIMESTAMP '2024-01-01 00:00:00.0000005'", vec![1]),
        ] {
            let table = query(&format!("SELECT id {ROWS} WHERE {condition} ORDER BY id")).await;
            let table = table.unwrap_or_else(|message| panic!("{condition}: {message}"));
            let found: Vec<i64> = table.lines().filter_map(|line| line.trim_matches(['|', ' ']).parse().ok()).collect();
            assert_eq!(found, ids, "{condition}:\n{table}");
        }
        // As these are stored, they cannot be counted in nanoseconds.
        for condition in ["u > TIMESTAMP '2024-01-01'", "u >= DATE '2024-01-01'"] {
            let rows = "FROM (SELECT CAST('9999-12-31' AS timestamp(6)) AS u FROM (VALUES (1), (2)) v(id))";
            let table = query(&format!("SELECT u {rows} WHERE {condition}")).await;
            let found = table.unwrap_or_else(|message| panic!("{condition}: {message}")).matches("9999").count();
            assert_eq!(found, 2, "{condition}");
        }
        let message = query(&format!("SELECT id {ROWS} WHERE CAST(n AS tinyint) > 1")).await.expect_err("300");
        assert!(message.contains("300"), "{message}");
    }

    #[tokio::test]
    async fn sets_of_groups_convert_and_compute() {
        let rows = "FROM (VALUES (1, 2), (1, 3)) v(n, m)";
        for group in ["ROLLUP(CAST(n AS smallint))", "CUBE(n + 1)", "GROUPING SETS ((CAST(n AS smallint)), ())"] {
            let table = query(&format!("SELECT sum(m) AS x {rows} GROUP BY {group}")).await;
            let table = table.unwrap_or_else(|message| panic!("{group}: {message}"));
            assert_eq!(table.matches(" 5 ").count(), 2, "{group}: {table}");
        }
    }
}
