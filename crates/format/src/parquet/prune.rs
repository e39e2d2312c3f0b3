//! Finds row groups that can be skipped, since none of their rows can meet the bounds by their statistics.
//!
//! A group is read if its statistics are missing, of an old and unreliable kind, or not conclusive.

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Scalar};
use arrow::compute::cast;
use arrow::compute::kernels::cmp;
use arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type, SchemaRef};
use millstream_core::format::{Bound, Comparison, ParseRequest};
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::basic::Type as PhysicalType;

/// Whether each row group has to be read. `matched` has the file's column for each column of the request.
pub fn groups(
    metadata: &ArrowReaderMetadata,
    file_columns: &SchemaRef,
    matched: &[Option<usize>],
    request: &ParseRequest,
) -> Vec<bool> {
    let mut kept = vec![true; metadata.metadata().num_row_groups()];
    for bound in &request.bounds {
        let Some(Some(column)) = matched.get(bound.column) else { continue };
        // With another type, statistics and value would compare differently than the rows do.
        let same_type = file_columns.field(*column).data_type() == bound.value.data_type();
        if !same_type || !is_comparable(bound) {
            continue;
        }
        if let Some(excluded) = excluded(metadata, *column, bound) {
            for (kept, excluded) in kept.iter_mut().zip(&excluded) {
                *kept &= excluded != Some(true);
            }
        }
    }
    kept
}

/// Statistics of floats leave NaN out, and SQL sorts it above (or, with a sign, below) all numbers: a group with NaN
/// may have rows beyond its maximum. So only equality with a number is safe.
fn is_comparable(bound: &Bound) -> bool {
    if bound.value.len() != 1 || bound.value.is_null(0) {
        return false;
    }
    let equal = bound.comparison == Comparison::Equal;
    match bound.value.data_type() {
        DataType::Float16 => equal && !bound.value.as_primitive::<Float16Type>().value(0).is_nan(),
        DataType::Float32 => equal && !bound.value.as_primitive::<Float32Type>().value(0).is_nan(),
        DataType::Float64 => equal && !bound.value.as_primitive::<Float64Type>().value(0).is_nan(),
        other => !other.is_nested(),
    }
}

/// Whether the bound rules out each row group; null if unknown.
fn excluded(metadata: &ArrowReaderMetadata, column: usize, bound: &Bound) -> Option<BooleanArray> {
    let directory = metadata.metadata();
    let field = metadata.schema().fields().get(column)?;
    // Statistics are found by name.
    if metadata.schema().fields().iter().filter(|other| other.name() == field.name()).count() > 1 {
        return None;
    }
    let statistics = StatisticsConverter::try_new(field.name(), metadata.schema(), metadata.parquet_schema()).ok()?;
    let leaf = statistics.parquet_column_index()?;
    let reliable = |group: &parquet::file::metadata::RowGroupMetaData| {
        let column = group.columns().get(leaf)?;
        let statistics = column.statistics()?;
        (!statistics.is_min_max_deprecated() && column.column_type() != PhysicalType::INT96).then_some(())
    };
    if !directory.row_groups().iter().all(|group| reliable(group).is_some()) {
        return None;
    }
    let shown = |values: ArrayRef| match (values.data_type(), bound.value.data_type()) {
        (DataType::BinaryView, DataType::Binary) => cast(&values, &DataType::Binary).ok(),
        _ => Some(values),
    };
    let least = shown(statistics.row_group_mins(directory.row_groups()).ok()?)?;
    let greatest = shown(statistics.row_group_maxes(directory.row_groups()).ok()?)?;
    // Values can have a type that only the reader decodes, not the statistics.
    if least.data_type() != bound.value.data_type() || greatest.data_type() != bound.value.data_type() {
        return None;
    }
    compare(bound.comparison, &least, &greatest, &Scalar::new(bound.value.clone()))
}

fn compare(
    comparison: Comparison,
    least: &ArrayRef,
    greatest: &ArrayRef,
    value: &Scalar<ArrayRef>,
) -> Option<BooleanArray> {
    match comparison {
        Comparison::Equal => {
            let below = cmp::gt(least, value).ok()?;
            let above = cmp::lt(greatest, value).ok()?;
            arrow::compute::or_kleene(&below, &above).ok()
        }
        Comparison::Less => cmp::gt_eq(least, value).ok(),
        Comparison::LessOrEqual => cmp::gt(least, value).ok(),
        Comparison::Greater => cmp::lt_eq(greatest, value).ok(),
        Comparison::GreaterOrEqual => cmp::lt(greatest, value).ok(),
    }
}
