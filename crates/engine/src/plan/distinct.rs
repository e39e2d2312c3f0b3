//! Plans in which of equal rows only one stays.

use arrow::datatypes::DataType;
use datafusion::common::DFSchema;
use datafusion::functions::math::expr_fn::nanvl;
use datafusion::logical_expr::expr::Sort;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, lit};
use millstream_core::transform::Keep;

use super::sorted::{OneOf, SortedRows};

/// A sort of which only one of equal rows stays.
pub struct DistinctSort {
    /// What is equal in the same rows, each once; all keys if empty.
    pub same: Vec<Expr>,
    /// Which of them stays.
    pub keep: Option<Keep>,
    /// Whether rows with equal keys keep the order in which they came.
    pub stable: bool,
    /// The scratch disks.
    pub pool: Option<String>,
}

impl DistinctSort {
    /// The rows of `input` in the order of `keys`. Where the rows that are the same follow each other in that order,
    /// this is one sort; otherwise the stable order is lost, so if that is wanted there is no plan.
    pub fn plan(self, input: LogicalPlan, mut keys: Vec<Sort>) -> Option<LogicalPlan> {
        let DistinctSort { mut same, keep, stable, pool } = self;
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
        let one_of = OneOf { keys: same.len(), keep: sort_keep(keep) };
        // Where the order says nothing of equal rows, that in which they came does.
        let by_arrival = stable || (keep.is_some() && seen.iter().all(|key| same.contains(key)));
        if same.iter().all(|key| first.contains(key)) {
            equal_floats(&mut keys[..same.len()], input.schema());
            return Some(SortedRows::new(input, keys, Some(one_of), by_arrival).on(pool).plan());
        }
        if stable {
            return None;
        }
        let others = keys.iter().filter(|key| !same.contains(&key.expr)).cloned();
        let mut grouped: Vec<Sort> = same.iter().map(|key| key.clone().sort(true, false)).chain(others).collect();
        equal_floats(&mut grouped[..same.len()], input.schema());
        let kept = SortedRows::new(input, grouped, Some(one_of), by_arrival).on(pool.clone()).plan();
        Some(SortedRows::new(kept, keys, None, false).on(pool).plan())
    }
}

/// One of the rows of `input` that are equal in `same`: the first or last in `order`, or of those that came.
pub fn one_of_equal(input: LogicalPlan, same: Vec<Expr>, keep: Option<Keep>, order: Vec<Sort>) -> LogicalPlan {
    let by_arrival = order.is_empty() && keep.is_some();
    let one_of = OneOf { keys: same.len(), keep: sort_keep(keep) };
    let mut keys: Vec<Sort> = same.into_iter().map(|key| key.sort(true, false)).collect();
    equal_floats(&mut keys, input.schema());
    keys.extend(order);
    SortedRows::new(input, keys, Some(one_of), by_arrival).plan()
}

/// The expressions in their order, each once.
pub fn without_doubles(expressions: impl IntoIterator<Item = Expr>) -> Vec<Expr> {
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
