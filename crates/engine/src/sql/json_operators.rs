//! `->` and `->>` on JSON texts: which operands they have, and the functions that they are.
//!
//! They bind as in PostgreSQL: more tightly than comparisons, `IS`, `LIKE`, `IN` and `BETWEEN`. The parser lets them
//! bind least of all operators but `NOT`, `AND` and `OR`, so that `a ->> 'x' = 'y'` is `a ->> ('x' = 'y')`. What stands
//! in parentheses is known as such, so the operands that the parser has put together are taken apart here.

use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::common::{DFSchema, Result as DataFusionResult};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{Expr, ScalarUDF};
use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr as SqlExpr, Value, VisitMut, VisitorMut};

use super::json::{Wanted, function};

/// Lets the operators in `sql` bind as they should.
pub fn bind<T: VisitMut>(sql: &mut T) {
    let _ = sql.visit(&mut Arrows);
}

struct Arrows;

impl VisitorMut for Arrows {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut SqlExpr) -> ControlFlow<()> {
        if let SqlExpr::BinaryOp { op: BinaryOperator::Arrow | BinaryOperator::LongArrow, .. } = expr {
            *expr = bound(std::mem::replace(expr, nothing()));
        }
        ControlFlow::Continue(())
    }
}

fn nothing() -> SqlExpr {
    SqlExpr::Value(Value::Null.into())
}

/// `expr`, an arrow whose operands may be looser expressions, as the expressions that they stand in.
fn bound(expr: SqlExpr) -> SqlExpr {
    let SqlExpr::BinaryOp { mut left, op, mut right } = expr else { return expr };
    if let Some(first) = first_operand(&mut right) {
        let own = SqlExpr::BinaryOp { left, op, right: Box::new(std::mem::replace(first, nothing())) };
        *first = bound(own);
        return *right;
    }
    if let Some(last) = last_operand(&mut left) {
        let own = SqlExpr::BinaryOp { left: Box::new(std::mem::replace(last, nothing())), op, right };
        *last = bound(own);
        return *left;
    }
    SqlExpr::BinaryOp { left, op, right }
}

/// The first operand of an expression that binds no more tightly than an arrow.
fn first_operand(expr: &mut SqlExpr) -> Option<&mut SqlExpr> {
    Some(match expr {
        // It binds as tightly as an arrow, and from the left.
        SqlExpr::BinaryOp { left, op: BinaryOperator::StringConcat, .. } => left,
        SqlExpr::BinaryOp { left, op, .. } if is_comparison(op) => left,
        SqlExpr::IsNull(of)
        | SqlExpr::IsNotNull(of)
        | SqlExpr::IsTrue(of)
        | SqlExpr::IsNotTrue(of)
        | SqlExpr::IsFalse(of)
        | SqlExpr::IsNotFalse(of)
        | SqlExpr::IsUnknown(of)
        | SqlExpr::IsNotUnknown(of)
        | SqlExpr::IsDistinctFrom(of, _)
        | SqlExpr::IsNotDistinctFrom(of, _) => of,
        SqlExpr::Like { expr, .. }
        | SqlExpr::ILike { expr, .. }
        | SqlExpr::SimilarTo { expr, .. }
        | SqlExpr::RLike { expr, .. }
        | SqlExpr::InList { expr, .. }
        | SqlExpr::InSubquery { expr, .. }
        | SqlExpr::InUnnest { expr, .. }
        | SqlExpr::Between { expr, .. } => expr,
        _ => return None,
    })
}

/// The last operand of an expression that binds more loosely than an arrow, if it ends with one.
fn last_operand(expr: &mut SqlExpr) -> Option<&mut SqlExpr> {
    Some(match expr {
        SqlExpr::BinaryOp { right, op, .. } if is_comparison(op) => right,
        SqlExpr::IsDistinctFrom(_, of) | SqlExpr::IsNotDistinctFrom(_, of) => of,
        SqlExpr::Like { pattern, escape_char: None, .. }
        | SqlExpr::ILike { pattern, escape_char: None, .. }
        | SqlExpr::SimilarTo { pattern, escape_char: None, .. }
        | SqlExpr::RLike { pattern, .. } => pattern,
        SqlExpr::Between { high, .. } => high,
        _ => return None,
    })
}

fn is_comparison(operator: &BinaryOperator) -> bool {
    use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq, Spaceship};
    matches!(operator, Eq | NotEq | Lt | LtEq | Gt | GtEq | Spaceship)
}

/// Plans the operators.
#[derive(Debug)]
pub struct JsonOperators {
    json: Arc<ScalarUDF>,
    as_text: Arc<ScalarUDF>,
}

impl Default for JsonOperators {
    fn default() -> Self {
        JsonOperators { json: Arc::new(function(Wanted::Json)), as_text: Arc::new(function(Wanted::AsText)) }
    }
}

impl ExprPlanner for JsonOperators {
    fn plan_binary_op(&self, raw: RawBinaryExpr, _: &DFSchema) -> DataFusionResult<PlannerResult<RawBinaryExpr>> {
        let function = match raw.op {
            BinaryOperator::Arrow => &self.json,
            BinaryOperator::LongArrow => &self.as_text,
            _ => return Ok(PlannerResult::Original(raw)),
        };
        // A path is followed at once, so that each text is read once.
        let mut arguments = match raw.left {
            Expr::ScalarFunction(call) if call.func == self.json && call.args.len() > 1 => call.args,
            left => vec![left],
        };
        arguments.push(raw.right);
        let call = ScalarFunction::new_udf(Arc::clone(function), arguments);
        Ok(PlannerResult::Planned(Expr::ScalarFunction(call)))
    }
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::{GenericDialect, PostgreSqlDialect};
    use datafusion::sql::sqlparser::parser::Parser;

    use super::*;

    /// Every operation in parentheses.
    fn in_parentheses(expr: &SqlExpr) -> String {
        match expr {
            SqlExpr::BinaryOp { left, op, right } => {
                format!("({} {op} {})", in_parentheses(left), in_parentheses(right))
            }
            SqlExpr::UnaryOp { op, expr } => format!("({op} {})", in_parentheses(expr)),
            SqlExpr::Nested(expr) => in_parentheses(expr),
            SqlExpr::IsNull(expr) => format!("({} IS NULL)", in_parentheses(expr)),
            SqlExpr::IsNotNull(expr) => format!("({} IS NOT NULL)", in_parentheses(expr)),
            SqlExpr::Like { negated, expr, pattern, .. } => {
                format!("({} {negated} LIKE {})", in_parentheses(expr), in_parentheses(pattern))
            }
            SqlExpr::Between { negated, expr, low, high } => format!(
                "({} {negated} BETWEEN {} AND {})",
                in_parentheses(expr),
                in_parentheses(low),
                in_parentheses(high)
            ),
            SqlExpr::InList { expr, list, .. } => {
                format!(
                    "({} IN {})",
                    in_parentheses(expr),
                    list.iter().map(in_parentheses).collect::<Vec<_>>().join(",")
                )
            }
            other => other.to_string(),
        }
    }

    /// The parser for PostgreSQL is the reference.
    #[test]
    fn arrows_bind_as_in_postgres() {
        for sql in [
            "a ->> 'x' = 'y'",
            "a -> 'x' = b -> 'y'",
            "a -> 'x' -> 'y' ->> 'z' <> b -> 1 ->> 'y'",
            "a ->> 'x' IS NULL",
            "NOT a ->> 'x' IS NOT NULL AND b -> 'y' = 'z' OR c",
            "a ->> 'x' LIKE 'y%' AND b NOT LIKE a ->> 'z'",
            "a ->> 'x' IN ('y', b ->> 'z')",
            "a ->> 'x' BETWEEN 'a' AND b ->> 'c'",
            "c = a ->> 'x' AND 'x' < a ->> 'x'",
            "a -> 'x' || 'y' || 'z'",
            "a ->> 'x' || 'y' = 'z' || b ->> 'x'",
            "a -> b + 1 = 2",
            "a -> ('x' = 'y')",
            "(a = b) -> 'y'",
            "a = (b -> 'y') -> 'z'",
            "f(a ->> 'x' = 'y') = CASE WHEN a ->> 'x' = 'y' THEN 1 END",
        ] {
            let parsed = |expr: Result<SqlExpr, _>| expr.unwrap_or_else(|error| panic!("{sql}: {error}"));
            let of_postgres = Parser::new(&PostgreSqlDialect {}).try_with_sql(sql).expect("tokens").parse_expr();
            let ours = Parser::new(&GenericDialect {}).try_with_sql(sql).expect("tokens").parse_expr();
            let mut ours = parsed(ours);
            bind(&mut ours);
            assert_eq!(in_parentheses(&ours), in_parentheses(&parsed(of_postgres)), "{sql}");
        }
    }
}
