//! The rows of a transform that is a component: it computes each batch of its input, by itself or in workers.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::{DFSchema, DFSchemaRef, internal_err};
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, UserDefinedLogicalNodeCore};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::StreamExt;
use millstream_core::transform::{ColumnName, ColumnsFault, Transform};
use millstream_core::{Error, hint};

use super::extension::{PlanNode, Planning, only};
use super::work::{Pool, WorkExec};
use crate::fault;
use crate::node::{over_one_input, streaming};

/// The rows that a transform makes of those of its input.
#[derive(Debug, Clone)]
pub struct MappedRows {
    input: LogicalPlan,
    mapper: Mapper,
    /// The entry's name.
    step: String,
    schema: DFSchemaRef,
}

/// What computes them.
#[derive(Debug, Clone)]
enum Mapper {
    Transform(Arc<dyn Transform>),
    /// Workers, the columns of the input that their rows keep, and those that are equal in a group.
    Workers(Arc<Pool>, Vec<usize>, Vec<usize>),
}

impl Mapper {
    fn name(&self) -> &'static str {
        match self {
            Mapper::Transform(transform) => transform.name(),
            Mapper::Workers(pool, ..) => pool.name(),
        }
    }

    fn is(&self, other: &Mapper) -> bool {
        match (self, other) {
            (Mapper::Transform(one), Mapper::Transform(other)) => Arc::ptr_eq(one, other),
            (Mapper::Workers(one, ..), Mapper::Workers(other, ..)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl MappedRows {
    /// What `transform`, the entry `step`, makes of `input`.
    ///
    /// # Errors
    /// If the transform does not take rows with these columns.
    pub fn plan(input: LogicalPlan, transform: Arc<dyn Transform>, step: &str) -> Result<LogicalPlan, ColumnsFault> {
        let columns = transform.columns(input.schema().as_arrow())?;
        MappedRows::node(input, Mapper::Transform(transform), step, &columns)
    }

    /// What the workers of `pool` make of `input`, which is in the order of the columns that are equal in a group.
    /// Their rows have the columns `gives`, and those that they keep behind them.
    ///
    /// # Errors
    /// If there is no column that is to be kept.
    pub fn worked(input: LogicalPlan, pool: Arc<Pool>, gives: &SchemaRef) -> Result<LogicalPlan, ColumnsFault> {
        let columns = Arc::clone(input.schema().inner());
        let keep = indices(&columns, &pool.rules().keep, "to keep")?;
        let by = indices(&columns, &pool.rules().by, "to group by")?;
        let given = gives.fields().iter().map(|field| Arc::new(field.as_ref().clone().with_nullable(true)));
        let fields = given.chain(keep.iter().map(|column| Arc::clone(&columns.fields()[*column])));
        let schema: SchemaRef = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let step = pool.step().to_owned();
        MappedRows::node(input, Mapper::Workers(pool, keep, by), &step, &schema)
    }

    fn node(input: LogicalPlan, mapper: Mapper, step: &str, columns: &SchemaRef) -> Result<LogicalPlan, ColumnsFault> {
        let schema = DFSchema::try_from(columns.as_ref().clone()).map_err(fault::unwrap)?;
        let node = MappedRows { input, mapper, step: step.to_owned(), schema: Arc::new(schema) };
        Ok(LogicalPlan::Extension(Extension { node: Arc::new(node) }))
    }
}

/// The places of the columns `names`, which are there `to` do something.
///
/// # Errors
/// If there is none of such a name.
pub fn indices(columns: &SchemaRef, names: &[ColumnName], to: &str) -> Result<Vec<usize>, ColumnsFault> {
    let index = |name: &ColumnName| {
        columns.index_of(name.as_str()).map_err(|_| {
            let known = columns.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>();
            let error = Error::job(format!("there is no column `{}` {to}", name.as_str()));
            ColumnsFault::of(name, error.hint(hint::did_you_mean(name.as_str(), "columns", &known)))
        })
    };
    names.iter().map(index).collect()
}

impl PartialEq for MappedRows {
    fn eq(&self, other: &Self) -> bool {
        (&self.step, &self.input) == (&other.step, &other.input) && self.mapper.is(&other.mapper)
    }
}

impl Eq for MappedRows {}

impl Hash for MappedRows {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.step, &self.input).hash(state);
    }
}

impl PartialOrd for MappedRows {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.input.partial_cmp(&other.input)
    }
}

impl UserDefinedLogicalNodeCore for MappedRows {
    fn name(&self) -> &str {
        "MappedRows"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedRows: {}", self.mapper.name())
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> DataFusionResult<Self> {
        match inputs.pop() {
            Some(input) => Ok(MappedRows { input, ..self.clone() }),
            None => internal_err!("mapped rows have one input"),
        }
    }

    /// The transform may look at any column.
    fn necessary_children_exprs(&self, _: &[usize]) -> Option<Vec<Vec<usize>>> {
        Some(vec![(0..self.input.schema().fields().len()).collect()])
    }
}

/// Plans [`MappedRows`].
pub struct MappedRowsPlanner;

impl PlanNode for MappedRowsPlanner {
    type Node = MappedRows;

    fn plan(
        &self,
        rows: &MappedRows,
        inputs: &[Arc<dyn ExecutionPlan>],
        _: &Planning<'_>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let input = only("MappedRows", inputs)?;
        let schema = Arc::clone(rows.schema.inner());
        Ok(match &rows.mapper {
            Mapper::Transform(transform) => {
                Arc::new(TransformExec::new(input, Arc::clone(transform), &rows.step, schema))
            }
            Mapper::Workers(pool, keep, by) => Arc::new(WorkExec::new(input, pool, schema, keep.clone(), by.clone())),
        })
    }
}

/// Has a transform compute each batch.
#[derive(Debug)]
pub struct TransformExec {
    input: Arc<dyn ExecutionPlan>,
    transform: Arc<dyn Transform>,
    step: String,
    properties: Arc<PlanProperties>,
}

impl TransformExec {
    /// `transform`, the entry `step`, over `input`. Its rows have the columns of `schema`.
    pub fn new(input: Arc<dyn ExecutionPlan>, transform: Arc<dyn Transform>, step: &str, schema: SchemaRef) -> Self {
        let properties = streaming(schema, input.output_partitioning().partition_count());
        TransformExec { input, transform, step: step.to_owned(), properties }
    }

    /// The name of its entry.
    pub fn step(&self) -> &str {
        &self.step
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        TransformExec::new(input, Arc::clone(&self.transform), &self.step, self.schema())
    }
}

impl DisplayAs for TransformExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransformExec: {}", self.transform.name())
    }
}

impl ExecutionPlan for TransformExec {
    over_one_input!("TransformExec");

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let (transform, schema, step) = (Arc::clone(&self.transform), self.schema(), self.step.clone());
        let mapped = self.input.execute(partition, context)?.map(move |batch| {
            let mapped = transform.transform(&batch?);
            let mapped = mapped.and_then(|mapped| match mapped.schema().fields() == schema.fields() {
                true => Ok(mapped),
                false => Err(Error::internal(format!("`{}` gave other columns than it said", transform.name()))),
            });
            mapped.map_err(|error| fault::carry(error.in_step(&step)))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), mapped)))
    }
}
