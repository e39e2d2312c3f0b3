//! A source as the SQL planner sees it: a table that takes the columns and filters pushed down to it.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ScalarValue, Statistics};
use datafusion::datasource::TableType;
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{BinaryExpr, Expr, Like, Operator, TableProviderFilterPushDown};
use datafusion::physical_plan::ExecutionPlan;
use millstream_core::format::{Bound, Comparison, ParseRequest, Required, TEXT};

use super::exec::ReadExec;
use super::order::SortedBy;
use super::queue::UnitsExec;
use super::rows::RowsRequest;
use super::{Provenance, Reader};
use crate::node::scan_by;

/// What is known of a source's size before it is read.
#[derive(Debug, Clone, Copy, Default)]
pub struct Estimate {
    /// Units listed so far.
    pub units: u64,
    /// Their size as stored, in bytes.
    pub stored_bytes: u64,
    /// Their size when decoded, in bytes.
    pub text_bytes: u64,
    /// Bytes of a record, if that is known.
    pub record_bytes: Option<u64>,
    /// Whether there may be more units.
    pub is_cut: bool,
}

/// In a session's configuration: rows come in the order of the units as they are listed, and of the records in them.
#[derive(Debug, Clone, Copy)]
pub struct InOrder;

/// Bytes of a record where nothing is known of it.
const RECORD_BYTES: u64 = 100;

/// A source of the job.
#[derive(Debug)]
pub struct SourceTable {
    reader: Arc<Reader>,
    columns: SchemaRef,
    schema: SchemaRef,
    estimate: Option<Estimate>,
    partitions: usize,
}

impl SourceTable {
    /// The table of `reader`, whose format has `columns`. It is read by at most `partitions` tasks.
    pub fn new(reader: Arc<Reader>, columns: SchemaRef, estimate: Option<Estimate>, partitions: usize) -> Self {
        let schema = reader.schema_with(&columns);
        SourceTable { reader, columns, schema, estimate, partitions }
    }

    /// What is read and put out for a projection (indices into the schema) and a filter.
    fn request(&self, state: &dyn Session, projection: &[usize], filters: &[Expr]) -> DataFusionResult<RowsRequest> {
        let filter = conjunction(filters.iter().cloned());
        let mut read: Vec<usize> = projection.to_vec();
        if let Some(filter) = &filter {
            read.extend(filter.column_refs().iter().filter_map(|column| self.schema.index_of(&column.name).ok()));
        }
        read.sort_unstable();
        read.dedup();
        let (parsed, added): (Vec<usize>, Vec<usize>) =
            read.iter().partition(|index| **index < self.columns.fields().len());
        let provenance: Vec<Provenance> =
            added.iter().map(|index| self.reader.provenance[index - self.columns.fields().len()]).collect();
        let read_schema = Arc::new(self.schema.project(&read)?);
        let filter = match filter {
            Some(filter) => {
                let unqualified = datafusion::logical_expr::expr_rewriter::unnormalize_col(filter);
                Some(state.create_physical_expr(unqualified, &DFSchema::try_from(Arc::clone(&read_schema))?)?)
            }
            None => None,
        };
        let output = projection.iter().filter_map(|wanted| read.binary_search(wanted).ok()).collect();
        let sorted: Vec<SortedBy> = self
            .reader
            .sorted_by
            .iter()
            .map_while(|key| {
                let index = self.columns.index_of(&key.column).ok()?;
                projection.contains(&index).then(|| key.clone())
            })
            .collect();
        Ok(RowsRequest {
            whole: filter.is_none() && projection.len() == self.schema.fields().len(),
            parse: ParseRequest {
                schema: Arc::clone(&self.columns),
                projection: parsed,
                on_drift: self.reader.on_drift,
                empty_files: self.reader.empty_files,
                seen: None,
                single: self.reader.replay.is_some(),
                validate: self.reader.validate,
                // They tell where a row is that is not in order.
                lines: provenance.contains(&Provenance::Line) || !sorted.is_empty(),
                bytes: false,
                batch_rows: state.config().batch_size(),
                bounds: filters.iter().flat_map(|filter| bounds(filter, &self.columns)).collect(),
                required: filters.iter().flat_map(|filter| required(filter, &self.columns)).collect(),
                contains: self.reader.contains_to_read(),
                places: None,
                limits: self.reader.limits.clone(),
                budget: Some(Arc::clone(&self.reader.context.budget)),
            },
            read_schema,
            filter,
            output,
            provenance,
            sorted,
            output_schema: Arc::new(self.schema.project(projection)?),
            helpers: 0,
            raw: false,
            messages: None,
        })
    }

    fn statistics_of(&self, schema: &Schema) -> Statistics {
        let mut statistics = Statistics::new_unknown(schema);
        if let Some(estimate) = self.estimate {
            let share = schema.fields().len() as f64 / self.schema.fields().len().max(1) as f64;
            statistics.num_rows =
                Precision::Inexact((estimate.text_bytes / estimate.record_bytes.unwrap_or(RECORD_BYTES)) as usize);
            statistics.total_byte_size = Precision::Inexact((estimate.text_bytes as f64 * share) as usize);
        }
        statistics
    }
}

impl TableProvider for SourceTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    /// The reader applies a filter to every batch as soon as it is parsed, after all values that the job uses have been
    /// converted: so which rows are refused does not depend on it. A volatile filter must run where it stands.
    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> DataFusionResult<Vec<TableProviderFilterPushDown>> {
        // A filter that may leave out what it cannot compute stays where it stands, too.
        let stays = |filter: &Expr| filter.is_volatile() || (self.reader.rejects.is_lenient() && can_fail(filter));
        let supported = |filter: &&Expr| match stays(filter) {
            true => TableProviderFilterPushDown::Unsupported,
            false => TableProviderFilterPushDown::Exact,
        };
        Ok(filters.iter().map(supported).collect())
    }

    scan_by!(read);
}

impl SourceTable {
    /// The operator that reads the columns of `projection` of the rows that meet `filters`.
    fn read(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let all: Vec<usize>;
        let projection = match projection {
            Some(projection) => projection,
            None => {
                all = (0..self.schema.fields().len()).collect();
                &all
            }
        };
        let mut request = self.request(session, projection, filters)?;
        let statistics = self.statistics_of(&request.output_schema);
        let in_order = session.config().get_extension::<InOrder>().is_some() || !request.sorted.is_empty();
        let partitions = if in_order { 1 } else { self.reader.tasks(self.partitions) };
        request.helpers = self.partitions - partitions;
        let units = Arc::new(UnitsExec::new(Arc::clone(&self.reader), in_order, partitions));
        let is_listed = self.estimate.is_none_or(|estimate| !estimate.is_cut);
        Ok(Arc::new(ReadExec::new(Arc::clone(&self.reader), Arc::new(request), statistics, is_listed, units)))
    }
}

/// Whether a row may be such that `filter` cannot be computed.
fn can_fail(filter: &Expr) -> bool {
    let mut can_fail = false;
    let looked = filter.apply(|part| {
        can_fail |= match part {
            Expr::Column(_)
            | Expr::Literal(..)
            | Expr::Alias(_)
            | Expr::Like(_)
            | Expr::InList(_)
            | Expr::Between(_) => false,
            Expr::Not(_) | Expr::IsNull(_) | Expr::IsNotNull(_) | Expr::IsTrue(_) | Expr::IsFalse(_) => false,
            Expr::BinaryExpr(binary) => {
                !binary.op.supports_propagation() && !matches!(binary.op, Operator::And | Operator::Or)
            }
            _ => true,
        };
        Ok(TreeNodeRecursion::Continue)
    });
    can_fail || looked.is_err()
}

/// The parts of `filter` that compare a column with a value: what statistics of row groups can rule out.
fn bounds(filter: &Expr, columns: &Schema) -> Vec<Bound> {
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = filter else { return Vec::new() };
    if *op == Operator::And {
        return [left, right].into_iter().flat_map(|side| bounds(side, columns)).collect();
    }
    let (column, value, comparison) = match (left.as_ref(), right.as_ref()) {
        (Expr::Column(column), Expr::Literal(value, _)) => (column, value, comparison(*op)),
        (Expr::Literal(value, _), Expr::Column(column)) => (column, value, op.swap().and_then(comparison)),
        _ => return Vec::new(),
    };
    let (Ok(index), Some(comparison)) = (columns.index_of(&column.name), comparison) else { return Vec::new() };
    match one_value(value, columns.field(index).data_type()) {
        Some(value) => vec![Bound { column: index, comparison, value }],
        None => Vec::new(),
    }
}

/// The texts that a column must contain for `filter` to be true.
fn required(filter: &Expr, columns: &Schema) -> Vec<Required> {
    let (column, text) = match filter {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => {
            return [left, right].into_iter().flat_map(|side| required(side, columns)).collect();
        }
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) => match text_of(right) {
            Some(text) => (left.as_ref(), text),
            None => (right.as_ref(), text_of(left).unwrap_or_default()),
        },
        Expr::Like(Like { negated: false, expr, pattern, case_insensitive: false, .. }) => {
            (expr.as_ref(), longest_plain_part(text_of(pattern).unwrap_or_default()))
        }
        Expr::ScalarFunction(call) if matches!(call.name(), "contains" | "starts_with" | "ends_with") => {
            let [column, text] = call.args.as_slice() else { return Vec::new() };
            (column, text_of(text).unwrap_or_default())
        }
        _ => return Vec::new(),
    };
    let Expr::Column(column) = column else { return Vec::new() };
    match columns.index_of(&column.name) {
        Ok(index) if !text.is_empty() && *columns.field(index).data_type() == TEXT => {
            vec![Required { column: index, text: text.to_owned() }]
        }
        _ => Vec::new(),
    }
}

/// The text that `expression` stands for.
fn text_of(expression: &Expr) -> Option<&str> {
    match expression {
        Expr::Literal(ScalarValue::Utf8(text) | ScalarValue::Utf8View(text) | ScalarValue::LargeUtf8(text), _) => {
            text.as_deref()
        }
        _ => None,
    }
}

/// The longest part of a `LIKE` pattern that stands for itself. What a backslash escapes is in none.
fn longest_plain_part(pattern: &str) -> &str {
    pattern.split(['%', '_', '\\']).max_by_key(|part| part.len()).unwrap_or("")
}

fn comparison(operator: Operator) -> Option<Comparison> {
    Some(match operator {
        Operator::Eq => Comparison::Equal,
        Operator::Lt => Comparison::Less,
        Operator::LtEq => Comparison::LessOrEqual,
        Operator::Gt => Comparison::Greater,
        Operator::GtEq => Comparison::GreaterOrEqual,
        _ => return None,
    })
}

/// `value` as an array of one, if it is of the column's own type and not null.
fn one_value(value: &ScalarValue, data_type: &arrow::datatypes::DataType) -> Option<ArrayRef> {
    if value.is_null() || value.data_type() != *data_type {
        return None;
    }
    value.to_array().ok()
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field};
    use datafusion::logical_expr::{col, lit};

    use super::*;

    #[test]
    fn what_a_text_must_contain_is_required() {
        let columns = Schema::new(vec![Field::new("n", DataType::Int64, true), Field::new("t", TEXT, true)]);
        let texts = |filter: &Expr| -> Vec<String> {
            required(filter, &columns)
                .into_iter()
                .map(|one| {
                    assert_eq!(one.column, 1);
                    one.text
                })
                .collect()
        };
        for (pattern, text) in [("%ab%", "ab"), ("a%bcd_e", "bcd"), (r"a\%b%cd", "cd"), (r"\\%ab", "ab")] {
            assert_eq!(texts(&col("t").like(lit(pattern))), [text], "{pattern}");
        }
        assert_eq!(texts(&col("t").eq(lit("x y")).and(lit("z").eq(col("t"))).and(col("n").gt(lit(1)))), ["x y", "z"]);
        let none = [
            col("t").like(lit("%_%")),
            col("t").not_like(lit("%ab%")),
            col("t").ilike(lit("%ab%")),
            col("t").like(lit("%ab%")).or(col("n").gt(lit(1))),
            col("t").eq(lit("")),
            col("t").not_eq(lit("a")),
            lit("abc").like(col("t")),
        ];
        for filter in none {
            assert!(texts(&filter).is_empty(), "{filter}");
        }
    }

    #[test]
    fn only_comparisons_of_a_column_with_a_value_of_its_type_are_bounds() {
        let columns = Schema::new(vec![Field::new("n", DataType::Int64, true), Field::new("t", DataType::Utf8, true)]);
        let filter =
            col("n").gt(lit(5i64)).and(lit(9i64).gt(col("n"))).and(col("t").eq(lit(3i64))).and(col("n").is_null());
        let found: Vec<_> = bounds(&filter, &columns).iter().map(|bound| (bound.column, bound.comparison)).collect();
        assert_eq!(found, [(0, Comparison::Greater), (0, Comparison::Less)]);
    }
}
