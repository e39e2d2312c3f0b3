//! Tables of plans: which are row-preserving, and which can be read again.

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{JoinType, NullEquality, ScalarValue};
use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use datafusion::physical_expr::expressions::{Column, IsNullExpr, lit};
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr, ScalarFunctionExpr};
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode, PhysicalGroupBy};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, PartitionMode};
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{Partitioning, Statistics};
use millstream_core::format::ParseRequest;
use millstream_core::source::SourceContext;
use millstream_core::transform::{ColumnsFault, Transform};
use millstream_core::{Budget, Step, StepKind, Steps};

use super::*;
use crate::plan::shared_scan::SharedScan;
use crate::read::rows::RowsRequest;
use crate::read::source_plan::SchemeSource;
use crate::read::stored::Stored;
use crate::read::{ReadSteps, Reader, SourcePlan};
use crate::registry::registry;

type Plan = Arc<dyn ExecutionPlan>;

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("line", DataType::Utf8, true)]))
}

/// Reads the lines of `pattern` as the source `name`.
fn source(name: &str, pattern: &str) -> SourcePlan {
    let registry = registry();
    // Queues have no defaults.
    let built = registry.sources.iter().filter_map(|entry| {
        let source = (entry.build)(&serde_json::json!({})).ok()?;
        Some(SchemeSource { schemes: entry.schemes, source })
    });
    SourcePlan::of_lines(name, vec![pattern.to_owned()], built.collect(), &Arc::new(registry))
}

fn read_with(runtime: &tokio::runtime::Runtime, plan: SourcePlan) -> Plan {
    let context = SourceContext {
        io: runtime.handle().clone(),
        budget: Budget::new(1 << 20),
        cache: Arc::default(),
        programs: Arc::default(),
        pace: Arc::default(),
    };
    let steps = ReadSteps::new(&Steps::default(), &plan.name);
    let request = RowsRequest {
        parse: ParseRequest::all(schema()),
        read_schema: schema(),
        filter: None,
        output: vec![0],
        provenance: Vec::new(),
        sorted: Vec::new(),
        output_schema: schema(),
        helpers: 0,
        whole: true,
        raw: false,
        messages: None,
    };
    let reader = Arc::new(Reader::new(plan, context, steps, Arc::default()));
    let (units, statistics) = (Arc::new(EmptyExec::new(schema())), Statistics::new_unknown(&schema()));
    Arc::new(ReadExec::new(reader, Arc::new(request), statistics, true, units))
}

fn column() -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new("line", 0))
}

fn filter(input: Plan) -> Plan {
    Arc::new(FilterExec::try_new(Arc::new(IsNullExpr::new(column())), input).expect("a filter"))
}

fn select(expression: Arc<dyn PhysicalExpr>, input: Plan) -> Plan {
    let expression = ProjectionExpr { expr: expression, alias: "line".to_owned() };
    Arc::new(ProjectionExec::try_new([expression], input).expect("a projection"))
}

/// A call of a function without arguments.
fn call(volatility: Volatility) -> Arc<dyn PhysicalExpr> {
    let value = Arc::new(|_: &[ColumnarValue]| Ok(ColumnarValue::Scalar(ScalarValue::Utf8(None))));
    let function = create_udf("f", Vec::new(), DataType::Utf8, volatility, value);
    let returns = Arc::new(Field::new("f", DataType::Utf8, true));
    Arc::new(ScalarFunctionExpr::new("f", Arc::new(function), Vec::new(), returns, Arc::default()))
}

fn order() -> LexOrdering {
    LexOrdering::new([PhysicalSortExpr::new_default(column())]).expect("an order")
}

/// Gives back what it gets.
#[derive(Debug)]
struct Same;

impl Transform for Same {
    fn name(&self) -> &'static str {
        "same"
    }

    fn columns(&self, input: &Schema) -> Result<SchemaRef, ColumnsFault> {
        Ok(Arc::new(input.clone()))
    }

    fn transform(&self, batch: &RecordBatch) -> millstream_core::Result<RecordBatch> {
        Ok(batch.clone())
    }
}

fn transformed(input: Plan) -> Plan {
    let schema = input.schema();
    Arc::new(TransformExec::new(input, Arc::new(Same), "masked", schema))
}

fn aggregate(input: Plan) -> Plan {
    let group = PhysicalGroupBy::new_single(vec![(column(), "line".to_owned())]);
    let schema = input.schema();
    Arc::new(AggregateExec::try_new(AggregateMode::Single, group, vec![], vec![], input, schema).expect("a group"))
}

fn join(left: Plan, right: Plan) -> Plan {
    let on = vec![(column(), column())];
    let (mode, nulls) = (PartitionMode::CollectLeft, NullEquality::NullEqualsNothing);
    Arc::new(HashJoinExec::try_new(left, right, on, None, &JoinType::Inner, None, mode, nulls, false).expect("a join"))
}

fn shared(input: Plan) -> Plan {
    let step = Step::new("t", StepKind::Transform, "shared");
    let shared = SharedScan::new("t", input, Budget::new(1 << 20), std::env::temp_dir(), step);
    Arc::new(shared.consumer(vec![0]).expect("a consumer"))
}

fn union(inputs: Vec<Plan>) -> Plan {
    UnionExec::try_new(inputs).expect("a union")
}

/// The pipelines in a line each: the source, and the operators behind it.
fn shown(pipelines: Result<Vec<Pipeline>, String>) -> Result<Vec<String>, String> {
    let one = |pipeline: &Pipeline| {
        let operators = pipeline.operators.iter().rev().map(|operator| operator.name().to_owned());
        [pipeline.read().source().to_owned()].into_iter().chain(operators).collect::<Vec<_>>().join(" ")
    };
    pipelines.map(|pipelines| pipelines.iter().map(one).collect())
}

#[test]
fn plans_are_row_preserving_or_say_why_not() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let read = |name: &str| read_with(&runtime, source(name, "a.txt"));
    let (a, b) = (|| read("a"), || read("b"));
    let limited = |fetch| {
        let predicate: Arc<dyn PhysicalExpr> = Arc::new(IsNullExpr::new(column()));
        let filter = FilterExecBuilder::new(predicate, a()).with_fetch(fetch).build().expect("a filter");
        Arc::new(filter) as Plan
    };
    let repartitioned =
        |input| Arc::new(RepartitionExec::try_new(input, Partitioning::RoundRobinBatch(2)).expect("a plan")) as Plan;
    let kept: Vec<(Plan, &[&str])> = vec![
        (a(), &["a"]),
        (filter(a()), &["a FilterExec"]),
        (select(lit("x"), filter(a())), &["a FilterExec ProjectionExec"]),
        (select(call(Volatility::Immutable), a()), &["a ProjectionExec"]),
        (select(call(Volatility::Stable), a()), &["a ProjectionExec"]),
        (limited(None), &["a FilterExec"]),
        (union(vec![a(), b()]), &["a", "b"]),
        (
            filter(union(vec![filter(a()), select(column(), b())])),
            &["a FilterExec FilterExec", "b ProjectionExec FilterExec"],
        ),
        (union(vec![a(), a()]), &["a", "a"]),
        (Arc::new(CoalescePartitionsExec::new(repartitioned(filter(a())))), &["a FilterExec"]),
    ];
    for (plan, expected) in kept {
        let expected = expected.iter().map(|pipeline| (*pipeline).to_owned()).collect();
        assert_eq!(shown(row_preserving(&plan)), Ok(expected), "{plan:?}");
    }
    let (limit, sort, combined) = ("a limit counts all rows", "a sort needs all rows", "a join combines rows");
    let sorted = |input| Arc::new(SortExec::new(order(), input)) as Plan;
    let refused: Vec<(Plan, &str)> = vec![
        (limited(Some(3)), limit),
        (Arc::new(GlobalLimitExec::new(a(), 0, Some(3))), limit),
        (Arc::new(GlobalLimitExec::new(a(), 3, None)), limit),
        (Arc::new(LocalLimitExec::new(a(), 3)), limit),
        (sorted(a()), sort),
        (aggregate(a()), "an aggregate combines rows"),
        (Arc::new(CrossJoinExec::new(a(), b())), combined),
        (join(a(), b()), combined),
        (shared(a()), "a step with several consumers runs once for all of them"),
        (select(call(Volatility::Volatile), a()), "the function `f` may give another value each time"),
        (filter(select(call(Volatility::Volatile), a())), "the function `f` may give another value each time"),
        (Arc::new(EmptyExec::new(schema())), "Empty needs all rows"),
        // One that is not is enough, wherever it is.
        (filter(union(vec![a(), sorted(b())])), sort),
        (union(vec![aggregate(a()), sorted(b())]), "an aggregate combines rows"),
    ];
    for (plan, expected) in refused {
        assert_eq!(shown(row_preserving(&plan)), Err(expected.to_owned()), "{plan:?}");
    }
}

#[test]
fn what_cannot_be_read_again_is_not_loaded_chunk_by_chunk() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let file = || read_with(&runtime, source("file", "a.txt"));
    let input = || read_with(&runtime, source("input", "-"));
    let rows = || {
        let plan = SourcePlan { format: Arc::new(Stored), ..source("rows", "sqlite:a.db") };
        read_with(&runtime, plan)
    };
    let standard_input = "`input` reads standard input, which cannot be read again";
    for (plan, expected) in [
        (filter(file()), Ok(vec!["file FilterExec".to_owned()])),
        (input(), Err(standard_input)),
        (rows(), Err("`rows` reads a database, whose rows have no stable position")),
        (union(vec![file(), filter(input()), rows()]), Err(standard_input)),
        (aggregate(input()), Err("an aggregate combines rows")),
        (transformed(file()), Err("`masked` may give any number of rows for each record")),
    ] {
        assert_eq!(shown(repeatable(&plan)), expected.map_err(str::to_owned), "{plan:?}");
    }
    // Each row still comes from one record.
    assert_eq!(shown(row_preserving(&union(vec![input(), rows()]))), Ok(vec!["input".to_owned(), "rows".to_owned()]));
}

#[test]
fn operators_are_named_as_people_call_them() {
    for (operator, why) in [
        ("HashJoinExec", "a join combines rows"),
        ("NestedLoopJoinExec", "a join combines rows"),
        ("SortPreservingMergeExec", "a sort needs all rows"),
        ("SortExec(TopK)", "a sort needs all rows"),
        ("BoundedWindowAggExec", "a window looks at other rows"),
        ("UnnestExec", "one record becomes several rows"),
        ("StreamingTableExec", "StreamingTable needs all rows"),
    ] {
        assert_eq!(why_not(operator), why, "{operator}");
    }
}

#[test]
fn what_became_of_records_adds_up() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let read = |rows, rejected, filtered| {
        let plan = read_with(&runtime, source("a", "a.txt"));
        let reader = Arc::clone(plan.downcast_ref::<ReadExec>().expect("it reads").reader());
        reader.steps.parse.add_rows(rows);
        reader.steps.parse.add_rejected(rejected);
        reader.filtered.store(filtered, Ordering::Relaxed);
        plan
    };
    assert_eq!(counts(&read(10, 2, 3)), Counts { read: 12, out: 7, filtered: 3, rejected: 2, ..Counts::default() });
    let both = union(vec![read(10, 2, 3), read(5, 0, 0)]);
    assert_eq!(counts(&both), Counts { read: 17, out: 12, filtered: 3, rejected: 2, ..Counts::default() });
}
