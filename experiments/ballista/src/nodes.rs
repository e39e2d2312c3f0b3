//! Nodes as an engine of its own would have them: a reader of units, a leaf and a merge that Ballista cannot know.

use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use datafusion::common::Statistics;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{Distribution, EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildStats, ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties,
    ReplaceChildrenOptions, StatisticsArgs,
};
use futures::{StreamExt, TryStreamExt, stream};
use std::fmt;
use std::sync::{Arc, LazyLock};

/// Rows in a batch.
const BATCH: i64 = 8192;

/// What units look like: nothing but the name of one column.
pub static UNITS: LazyLock<SchemaRef> =
    LazyLock::new(|| Arc::new(Schema::new(vec![Field::new("unit", DataType::Int64, false)])));

/// What the rows of a unit look like.
pub static ROWS: LazyLock<SchemaRef> = LazyLock::new(|| {
    let columns = ["unit", "row", "key", "value"];
    Arc::new(Schema::new(columns.map(|name| Field::new(name, DataType::Int64, false)).to_vec()))
});

/// How the rows of a unit are computed from its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recipe {
    pub rows: i64,
    /// How many different keys there are at most.
    pub keys: i64,
}

impl Recipe {
    fn batches(self, unit: i64) -> impl Iterator<Item = Result<RecordBatch>> + Send {
        (0..self.rows).step_by(BATCH as usize).map(move |from| self.batch(unit, from..(from + BATCH).min(self.rows)))
    }

    fn batch(self, unit: i64, rows: std::ops::Range<i64>) -> Result<RecordBatch> {
        let random = |row: i64, salt: i64| (mix((unit * self.rows + row) as u64 ^ (salt as u64) << 48) >> 1) as i64;
        let column =
            |value: &dyn Fn(i64) -> i64| -> ArrayRef { Arc::new(rows.clone().map(value).collect::<Int64Array>()) };
        let columns = vec![
            column(&|_| unit),
            column(&|row| row),
            column(&|row| random(row, 1) % self.keys),
            column(&|row| random(row, 2) % 1_000_000),
        ];
        Ok(RecordBatch::try_new(Arc::clone(&ROWS), columns)?)
    }
}

/// A number that looks random: splitmix64.
pub fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn properties(schema: &SchemaRef, partitions: usize) -> Arc<PlanProperties> {
    Arc::new(PlanProperties::new(
        EquivalenceProperties::new(Arc::clone(schema)),
        Partitioning::UnknownPartitioning(partitions),
        EmissionType::Incremental,
        Boundedness::Bounded,
    ))
}

/// Implements what all nodes here have alike.
macro_rules! node {
    ($name:ident) => {
        fn name(&self) -> &str {
            stringify!($name)
        }

        fn properties(&self) -> &Arc<PlanProperties> {
            &self.properties
        }

        fn apply_expressions(
            &self,
            _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
        ) -> Result<TreeNodeRecursion> {
            Ok(TreeNodeRecursion::Continue)
        }

        fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
            self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
        }
    };
}

fn only_child(children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
    let mut children = children.into_iter();
    match (children.next(), children.next()) {
        (Some(child), None) => Ok(child),
        _ => Err(DataFusionError::Internal("the node has one child".into())),
    }
}

/// Takes units as rows, and gives the rows of the units: partition by partition.
#[derive(Debug)]
pub struct ReadUnits {
    pub input: Arc<dyn ExecutionPlan>,
    pub recipe: Recipe,
    properties: Arc<PlanProperties>,
}

impl ReadUnits {
    pub fn new(input: Arc<dyn ExecutionPlan>, recipe: Recipe) -> Self {
        let properties = properties(&ROWS, input.properties().output_partitioning().partition_count());
        ReadUnits { input, recipe, properties }
    }
}

impl DisplayAs for ReadUnits {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "ReadUnits: rows={}", self.recipe.rows)
    }
}

impl ExecutionPlan for ReadUnits {
    node!(ReadUnits);

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(ReadUnits::new(only_child(children)?, self.recipe)))
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    /// About so many rows: enough to let an optimizer broadcast a small side of a join.
    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _: &StatisticsArgs) -> Result<Arc<Statistics>> {
        let mut statistics = Statistics::new_unknown(&ROWS);
        if let Some(units) = inputs.first().and_then(|input| input.num_rows.get_value()) {
            statistics.num_rows = Precision::Inexact(units * self.recipe.rows as usize);
        }
        Ok(Arc::new(statistics))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let recipe = self.recipe;
        let rows = self.input.execute(partition, context)?.map_ok(move |units| {
            let units = units.column(0).as_primitive::<Int64Type>().values().to_vec();
            stream::iter(units.into_iter().flat_map(move |unit| recipe.batches(unit)))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&ROWS), rows.try_flatten())))
    }
}

/// A leaf that holds all units itself, which Ballista does not know and so cannot cut.
#[derive(Debug)]
pub struct UnknownLeaf {
    pub units: i64,
    pub partitions: usize,
    pub recipe: Recipe,
    properties: Arc<PlanProperties>,
}

impl UnknownLeaf {
    pub fn new(units: i64, partitions: usize, recipe: Recipe) -> Self {
        UnknownLeaf { units, partitions, recipe, properties: properties(&ROWS, partitions) }
    }
}

impl DisplayAs for UnknownLeaf {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "UnknownLeaf: units={}, partitions={}", self.units, self.partitions)
    }
}

impl ExecutionPlan for UnknownLeaf {
    node!(UnknownLeaf);

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn replace_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let recipe = self.recipe;
        let units = (partition as i64..self.units).step_by(self.partitions);
        let rows = stream::iter(units.flat_map(move |unit| recipe.batches(unit)));
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&ROWS), rows)))
    }
}

/// Makes one partition of all those of its input, as an external sort or a writer does.
#[derive(Debug)]
pub struct Merge {
    pub input: Arc<dyn ExecutionPlan>,
    /// Whether it says that it needs its input in one partition. If it says so, DataFusion puts a node of its own in
    /// front of it, and this one has nothing to do any more.
    pub declared: bool,
    properties: Arc<PlanProperties>,
}

impl Merge {
    pub fn new(input: Arc<dyn ExecutionPlan>, declared: bool) -> Self {
        let properties = properties(&input.schema(), 1);
        Merge { input, declared, properties }
    }
}

impl DisplayAs for Merge {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Merge: declared={}", self.declared)
    }
}

impl ExecutionPlan for Merge {
    node!(Merge);

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        vec![if self.declared { Distribution::SinglePartition } else { Distribution::UnspecifiedDistribution }]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Merge::new(only_child(children)?, self.declared)))
    }

    fn execute(&self, _: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let partitions = self.input.properties().output_partitioning().partition_count();
        let inputs: Result<Vec<_>> = (0..partitions).map(|p| self.input.execute(p, Arc::clone(&context))).collect();
        let rows = stream::iter(inputs?).flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}
