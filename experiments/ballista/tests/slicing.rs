//! Does a task get exactly its part of the units, whatever the plan?
//!
//! Each shape of plan runs on two executors and in this process, and the rows are compared. `slicing.txt` has what was
//! found, and the test fails if something else is found. `UPDATE=1` writes it again; `SHAPE=join` runs only the shapes
//! with that word, and checks nothing.

use datafusion::arrow::compute::SortOptions;
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::col;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, Partitioning, execute_stream};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::{StreamExt, stream};
use millstream_ballista_experiments::cluster::{Client, Cluster, Settings, session};
use millstream_ballista_experiments::logging::log_to;
use millstream_ballista_experiments::nodes::{Merge, Recipe};
use millstream_ballista_experiments::rows::{Outcome, Rows};
use millstream_ballista_experiments::table::{Leaf, Units};
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

const PARTITIONS: std::ops::RangeInclusive<usize> = 1..=16;

type Node = Arc<dyn ExecutionPlan>;

/// How a plan is made.
enum Make {
    /// Of SQL over the tables `t`, with 40 units, and `o`, with 10.
    Sql(&'static str),
    /// By a node, or some, above a scan of `t`; the number is that of partitions.
    Above(fn(Node, usize) -> Result<Node>),
}

struct Shape {
    name: &'static str,
    make: Make,
    /// Settings that choose an operator.
    settings: &'static [(&'static str, &'static str)],
    /// Which rows come is free; only their number is compared.
    counted: bool,
}

const fn sql(name: &'static str, text: &'static str) -> Shape {
    Shape { name, make: Make::Sql(text), settings: &[], counted: false }
}

const fn above(name: &'static str, make: fn(Node, usize) -> Result<Node>) -> Shape {
    Shape { name, make: Make::Above(make), settings: &[], counted: false }
}

const BROADCAST: &[(&str, &str)] = &[("datafusion.optimizer.prefer_hash_join", "true")];
const HASH_JOIN: &[(&str, &str)] = &[
    ("datafusion.optimizer.prefer_hash_join", "true"),
    ("datafusion.optimizer.hash_join_single_partition_threshold", "0"),
    ("datafusion.optimizer.hash_join_single_partition_threshold_rows", "0"),
    ("ballista.optimizer.broadcast_join_threshold_bytes", "0"),
];

const SHAPES: &[Shape] = &[
    sql("scan", "SELECT * FROM t"),
    sql("filter, projection", "SELECT unit * 2, value + row FROM t WHERE value % 3 = 0"),
    sql("union", "SELECT key, value FROM t UNION ALL SELECT key, unit FROM o"),
    sql("union of aggregates", "SELECT key, sum(value) FROM t GROUP BY key UNION ALL SELECT 1, count(*) FROM o"),
    above("repartition: round robin", |scan, n| {
        Ok(Arc::new(RepartitionExec::try_new(scan, Partitioning::RoundRobinBatch(n + 3))?))
    }),
    above("repartition: hash", |scan, n| {
        let key = col("key", &scan.schema())?;
        Ok(Arc::new(RepartitionExec::try_new(scan, Partitioning::Hash(vec![key], n + 3))?))
    }),
    above("coalesce", |scan, _| Ok(Arc::new(CoalescePartitionsExec::new(scan)))),
    above("sort of each partition", |scan, _| Ok(Arc::new(by_value(scan)?.with_preserve_partitioning(true)))),
    above("merge", |scan, _| Ok(Arc::new(Merge::new(scan, false)))),
    above("merge, declared", |scan, _| Ok(Arc::new(Merge::new(scan, true)))),
    above("merge after shuffle", |scan, n| {
        let key = col("key", &scan.schema())?;
        let shuffled = RepartitionExec::try_new(scan, Partitioning::Hash(vec![key], n))?;
        Ok(Arc::new(Merge::new(Arc::new(shuffled), false)))
    }),
    above("declared, after shuffle", |scan, n| {
        let key = col("key", &scan.schema())?;
        let shuffled = RepartitionExec::try_new(scan, Partitioning::Hash(vec![key], n))?;
        Ok(Arc::new(Merge::new(Arc::new(shuffled), true)))
    }),
    sql("aggregate", "SELECT key, count(*), sum(value), min(row) FROM t GROUP BY key"),
    sql("aggregate by text", "SELECT 'k' || key AS name, count(*), sum(value) FROM t GROUP BY name"),
    sql("aggregate of all", "SELECT count(*), sum(value), max(unit) FROM t"),
    sql("distinct", "SELECT DISTINCT key FROM t"),
    sql("count distinct", "SELECT unit % 7 AS g, count(DISTINCT key) FROM t GROUP BY g"),
    sql("rollup", "SELECT unit % 3 AS a, key % 5 AS b, sum(value) FROM t GROUP BY ROLLUP (a, b)"),
    sql("sort", "SELECT * FROM t ORDER BY value, unit, row"),
    sql("top 50", "SELECT * FROM t ORDER BY value, unit, row LIMIT 50"),
    Shape { counted: true, ..sql("limit 250", "SELECT * FROM t LIMIT 250") },
    Shape { counted: true, ..sql("limit 250 of groups", "SELECT key, sum(value) FROM t GROUP BY key LIMIT 250") },
    Shape { counted: true, ..sql("offset 1000", "SELECT * FROM t OFFSET 1000") },
    Shape { settings: HASH_JOIN, ..sql("hash join", "SELECT t.value, o.value FROM t JOIN o ON t.key = o.key") },
    Shape {
        settings: BROADCAST,
        ..sql("broadcast hash join", "SELECT t.value, o.value FROM t JOIN o ON t.key = o.key")
    },
    sql("sort-merge join", "SELECT t.value, o.value FROM t JOIN o ON t.key = o.key"),
    sql("left join", "SELECT t.value, o.value FROM t LEFT JOIN o ON t.key = o.key"),
    sql("full join", "SELECT t.value, o.value FROM t FULL JOIN o ON t.key = o.key"),
    sql("semi join", "SELECT value FROM t WHERE EXISTS (SELECT 1 FROM o WHERE o.key = t.key)"),
    sql("anti join", "SELECT value FROM t WHERE NOT EXISTS (SELECT 1 FROM o WHERE o.key = t.key)"),
    sql("not in", "SELECT value FROM t WHERE key NOT IN (SELECT key FROM o)"),
    sql("cross join", "SELECT t.value, o.value FROM t CROSS JOIN o WHERE t.row = 7 AND o.row = 7"),
    sql("inequality join", "SELECT t.value, o.value FROM t JOIN o ON t.value < o.value AND t.row = 7 AND o.row < 9"),
    sql("scalar subquery", "SELECT value FROM t WHERE value > (SELECT avg(value) FROM o)"),
    sql("window", "SELECT value, sum(value) OVER (PARTITION BY key ORDER BY unit, row) FROM t"),
    sql("window over all", "SELECT value, row_number() OVER (ORDER BY unit, row) FROM t"),
    sql(
        "all together",
        "SELECT a.key % 10 AS g, count(*), sum(a.s), sum(b.n) FROM (SELECT key, sum(value) AS s FROM t GROUP BY key) a \
         JOIN (SELECT key, count(*) AS n FROM (SELECT key FROM t UNION ALL SELECT key FROM o) GROUP BY key) b \
         ON a.key = b.key GROUP BY g ORDER BY g",
    ),
];

/// How units are read, and how they are handed out.
const WAYS: &[(&str, Leaf, usize)] = &[
    ("listed units, a node above them reads them; a task has one partition", Leaf::Listed, 1),
    ("listed units, and a task has as many partitions as there are free cores", Leaf::Listed, 0),
    ("an unknown leaf; a task has one partition", Leaf::Unknown, 1),
    ("an undeclared merge above listed units", Leaf::Merged, 1),
    ("a merge that declares a single partition above listed units", Leaf::Declared, 1),
];

fn by_value(scan: Node) -> Result<SortExec> {
    let schema = scan.schema();
    let key = |name| Ok(PhysicalSortExpr::new(col(name, &schema)? as Arc<dyn PhysicalExpr>, SortOptions::default()));
    let keys: Result<Vec<_>> = ["value", "unit", "row"].map(key).into_iter().collect();
    Ok(SortExec::new(LexOrdering::new(keys?).expect("there are keys"), scan))
}

fn context(config: SessionConfig, leaf: Leaf, partitions: usize) -> Result<SessionContext> {
    let context = SessionContext::new_with_config(config);
    let table = |units, rows| Arc::new(Units { leaf, units, partitions, recipe: Recipe { rows, keys: 500 } });
    context.register_table("t", table(40, 100))?;
    context.register_table("o", table(10, 50))?;
    Ok(context)
}

async fn plan(shape: &Shape, context: &SessionContext, partitions: usize) -> Result<Node> {
    let text = if let Make::Sql(text) = shape.make { text } else { "SELECT * FROM t" };
    let plan = context.sql(text).await?.create_physical_plan().await?;
    if let Make::Above(above) = shape.make { above(plan, partitions) } else { Ok(plan) }
}

async fn compare(client: &Client, shape: &Shape, leaf: Leaf, per_task: usize, partitions: usize) -> Outcome {
    let mut config = session(partitions).set_usize("ballista.scheduler.max_partitions_per_task", per_task);
    for (key, value) in shape.settings {
        config = config.set_str(key, value);
    }
    let context = context(config.clone(), leaf, partitions).expect("tables");
    let plan = plan(shape, &context, partitions).await.expect("a plan");
    let local = execute_stream(Arc::clone(&plan), context.task_ctx()).expect("a local run");
    let expected = Rows::of(local).await.expect("local rows");
    assert!(expected.count > 0, "{}: nothing is compared", shape.name);
    let found = async { Rows::of(client.run(plan, config).await?).await };
    let found = match timeout(Duration::from_secs(60), found).await {
        Ok(found) => found,
        Err(_) => return Outcome::Failed("hangs".into()),
    };
    if shape.counted { Outcome::of_counts(expected, found) } else { Outcome::of(expected, found) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_task_gets_its_part() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("slicing");
    let _ = fs_err::remove_dir_all(&folder);
    fs_err::create_dir_all(&folder).expect("a folder");
    log_to(&folder.join("scheduler.log")).expect("a log");
    let settings = Settings { cores: 2, memory: 512 << 20, timeout: Duration::from_secs(60) };
    let cluster =
        Cluster::start(Path::new(env!("CARGO_BIN_EXE_executor")), &folder, settings, 2).await.expect("a cluster");
    let client = cluster.client();

    let only = std::env::var("SHAPE").unwrap_or_default();
    let mut tables = String::new();
    let mut errors = Vec::new();
    for (way, leaf, per_task) in WAYS {
        writeln!(tables, "{way}\n{:24}{}", "partitions", cells(PARTITIONS.map(|n| n.to_string()))).expect("text");
        for shape in SHAPES.iter().filter(|shape| shape.name.contains(&only)) {
            let outcomes = stream::iter(PARTITIONS).map(|n| compare(&client, shape, *leaf, *per_task, n));
            let outcomes: Vec<Outcome> = outcomes.buffered(4).collect().await;
            let line = format!("{:24}{}", shape.name, cells(outcomes.iter().map(Outcome::short)));
            println!("{line}");
            match leaf {
                Leaf::Unknown => writeln!(tables, "{:24} {}", shape.name, word(shape, &outcomes)),
                _ => writeln!(tables, "{line}"),
            }
            .expect("text");
            errors.extend(outcomes.into_iter().filter_map(|outcome| match outcome {
                Outcome::Failed(error) => Some(format!("{way}: {}: {error}", shape.name)),
                _ => None,
            }));
        }
        tables.push('\n');
    }
    println!("{tables}");
    errors.dedup();
    errors.iter().for_each(|error| println!("{error}"));

    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/slicing.txt");
    if std::env::var_os("UPDATE").is_some() {
        fs_err::write(&file, &tables).expect("the file of what was found");
    }
    if only.is_empty() {
        let known = fs_err::read_to_string(&file).expect("the file of what was found");
        assert!(known == tables, "Ballista does something else than what {} has", file.display());
    }
}

/// What holds for an unknown leaf in each run. Its tasks write into the same files, so that numbers differ by chance.
fn word(shape: &Shape, outcomes: &[Outcome]) -> &'static str {
    let several = &outcomes[1..];
    if shape.counted || shape.name == "top 50" {
        "by chance"
    } else if several.iter().all(|outcome| *outcome == Outcome::Equal) {
        "equal"
    } else if several.iter().all(|outcome| *outcome != Outcome::Equal) {
        "never equal with two partitions or more"
    } else {
        "sometimes equal"
    }
}

fn cells(texts: impl Iterator<Item = String>) -> String {
    texts.map(|text| format!(" {text:>5}")).collect()
}
