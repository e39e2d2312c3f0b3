//! Does an aggregate survive the loss of executors, and does it keep to its memory?
//!
//! An aggregate of an aggregate, which spills in each executor, has three stages. In each round an executor is killed
//! or paused at a moment that a seed chooses. `ROUNDS` says how many rounds there are, beside the special ones, `LAST`
//! how many more in the last stage; `SEED` chooses others. `PATCHED` expects a Ballista in which the causes are mended
//! that the README lists.

use datafusion::arrow::array::AsArray;
use datafusion::arrow::compute::sum;
use datafusion::arrow::datatypes::Int64Type;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::TryStreamExt;
use millstream_ballista_experiments::cluster::{Cluster, Settings, Stage, session};
use millstream_ballista_experiments::logging::log_to;
use millstream_ballista_experiments::nodes::{Recipe, mix};
use millstream_ballista_experiments::rows::{Outcome, Rows};
use millstream_ballista_experiments::table::{Leaf, Units};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};

/// How long nothing of a job may move before it counts as hanging: a loss is noticed in six seconds, fetching from a
/// lost executor is given up after about ten, and the whole job takes a few.
const HANGS: Duration = Duration::from_secs(20);
/// The longest time of a round in any case.
const LIMIT: Duration = Duration::from_secs(150);
const TIMEOUT: Duration = Duration::from_secs(5);
const SETTINGS: Settings = Settings { cores: 2, memory: 64 << 20, timeout: TIMEOUT };
/// Stages of the query, as Ballista numbers them.
const MAP: usize = 1;
const REDUCE: usize = 2;
const LAST: usize = 3;

/// When something happens to an executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Never,
    /// As soon as all tasks of the first stage have ended, or a little later.
    AfterMap,
    /// While the second stage runs.
    Reduce,
    /// While the last stage runs.
    Last,
    /// While the last stage runs, and some of its tasks have ended.
    LastHalf,
    /// When the job has ended, and nobody has read its rows yet.
    Fetch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    /// Kill it; of three executors, two remain.
    Kill,
    /// Kill it, and start another.
    Replace,
    /// Stop it for twice the time after which it counts as lost, then let it go on.
    Pause,
}

#[derive(Debug, Clone, Copy)]
struct Round {
    moment: Moment,
    delay: Duration,
    deed: Deed,
    /// Which executor it is.
    victim: usize,
}

impl Round {
    fn seeded(seed: u64) -> Round {
        let random = |salt, below| (mix(mix(seed) ^ salt) % below) as usize;
        let moment = [Moment::AfterMap, Moment::Reduce][random(1, 2)];
        let within = if moment == Moment::AfterMap { 200 } else { 2500 };
        Round {
            moment,
            delay: Duration::from_millis(random(2, within) as u64),
            deed: [Deed::Kill, Deed::Replace][random(3, 2)],
            victim: random(4, 2),
        }
    }

    fn in_last_stage(self) -> Round {
        Round { moment: Moment::LastHalf, delay: self.delay / 50, ..self }
    }

    fn special() -> Vec<Round> {
        let round =
            |moment, milliseconds, deed| Round { moment, delay: Duration::from_millis(milliseconds), deed, victim: 1 };
        vec![
            round(Moment::Never, 0, Deed::Kill),
            round(Moment::Last, 300, Deed::Kill),
            round(Moment::Last, 300, Deed::Replace),
            round(Moment::LastHalf, 0, Deed::Kill),
            round(Moment::LastHalf, 0, Deed::Replace),
            round(Moment::Reduce, 500, Deed::Pause),
            round(Moment::LastHalf, 0, Deed::Pause),
            round(Moment::Fetch, 0, Deed::Kill),
        ]
    }

    /// Whether the result was never right.
    fn is_fatal(&self) -> bool {
        matches!(self.moment, Moment::LastHalf | Moment::Fetch)
    }

    /// Whether the moment has come.
    fn has_come(&self, stages: &[Stage]) -> bool {
        let is = |id, what: fn(&Stage) -> bool| stages.iter().any(|stage| stage.id == id && what(stage));
        match self.moment {
            Moment::Never | Moment::Fetch => false,
            Moment::AfterMap => is(MAP, |stage| stage.successful),
            Moment::Reduce => is(REDUCE, |stage| stage.running),
            Moment::Last => is(LAST, |stage| stage.running),
            Moment::LastHalf => is(LAST, |stage| stage.running && stage.done > 0),
        }
    }
}

/// What became of a round.
struct Report {
    outcome: Outcome,
    time: Duration,
    stages: BTreeMap<usize, Seen>,
    /// The largest resident size of an executor, in bytes.
    peak: u64,
    /// The job stood still, until another executor was started.
    hung: bool,
    /// How many rows of the input the rows of the result count.
    counted: i64,
}

impl Report {
    /// Whether a stage that reads others was begun again.
    fn rolled_back(&self) -> bool {
        self.stages.iter().any(|(&id, seen)| id > MAP && seen.attempts > 1)
    }
}

/// What was seen of a stage.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    attempts: usize,
    tasks: usize,
    /// In bytes.
    spilled: usize,
}

/// A job on a cluster of its own, and what happens to it.
struct Running {
    cluster: Cluster,
    round: Round,
    come: Option<Instant>,
    done: bool,
    resume: Option<Instant>,
    stages: BTreeMap<usize, Seen>,
    last: Vec<Stage>,
    moved: Instant,
    hung: bool,
    counted: i64,
}

impl Running {
    fn new(cluster: Cluster, round: Round) -> Running {
        let (stages, last) = (BTreeMap::new(), Vec::new());
        let moved = Instant::now();
        Running { cluster, round, come: None, done: false, resume: None, stages, last, moved, hung: false, counted: 0 }
    }

    /// Looks how far the job is, and does what is due.
    async fn look(&mut self) {
        let stages = self.cluster.stages().await;
        for stage in &stages {
            let seen = self.stages.entry(stage.id).or_default();
            seen.attempts = seen.attempts.max(stage.attempt + 1);
            seen.tasks = seen.tasks.max(stage.tasks);
            seen.spilled = seen.spilled.max(stage.spilled);
        }
        if self.come.is_none() && self.round.has_come(&stages) {
            self.come = Some(Instant::now());
        }
        if self.come.is_some_and(|come| come.elapsed() >= self.round.delay) {
            self.act().await;
        }
        if self.resume.is_some_and(|at| at <= Instant::now()) {
            self.end_pause();
        }
        if std::mem::replace(&mut self.last, stages) != self.last {
            self.moved = Instant::now();
        } else if self.moved.elapsed() > HANGS && !std::mem::replace(&mut self.hung, true) {
            log::info!("experiment: nothing moves, another executor is started");
            self.cluster.add_executor().await.expect("another executor");
        }
    }

    async fn act(&mut self) {
        if std::mem::replace(&mut self.done, true) {
            return;
        }
        let victim = &mut self.cluster.executors[self.round.victim];
        log::info!("experiment: {:?} {}", self.round.deed, victim.name);
        match self.round.deed {
            Deed::Kill => victim.kill(),
            Deed::Replace => {
                victim.kill();
                self.cluster.add_executor().await.expect("another executor");
            }
            Deed::Pause => {
                victim.pause().expect("a pause");
                self.resume = Some(Instant::now() + 2 * TIMEOUT);
            }
        }
    }

    fn end_pause(&mut self) {
        if self.resume.take().is_some() {
            let victim = &self.cluster.executors[self.round.victim];
            log::info!("experiment: resume {}", victim.name);
            victim.resume().expect("the end of the pause");
        }
    }

    async fn run(&mut self, plan: Arc<dyn ExecutionPlan>, config: SessionConfig) -> datafusion::error::Result<Rows> {
        let client = self.cluster.client();
        let mut job = tokio::spawn(async move { client.run(plan, config).await });
        let mut batches = loop {
            tokio::select! {
                ended = &mut job => break ended.expect("no panic")?,
                () = sleep(Duration::from_millis(10)) => self.look().await,
            }
        };
        if self.round.moment == Moment::Fetch {
            self.act().await;
        }
        let mut rows = Rows::default();
        while let Some(batch) = batches.try_next().await? {
            rows.add(&batch)?;
            self.counted += sum(batch.column(1).as_primitive::<Int64Type>()).unwrap_or(0);
        }
        Ok(rows)
    }
}

/// What is read.
const UNITS: i64 = 64;
const RECIPE: Recipe = Recipe { rows: 150_000, keys: 8_000_000 };

/// The query, and what it gives in one process.
struct Query {
    plan: Arc<dyn ExecutionPlan>,
    config: SessionConfig,
    expected: Rows,
}

impl Query {
    async fn new() -> Query {
        let config = session(8).set_usize("ballista.shuffle.sort_based.memory_limit_per_task_bytes", 16 << 20);
        let context = SessionContext::new_with_config(config.clone());
        let units = Units { leaf: Leaf::Listed, units: UNITS, partitions: 16, recipe: RECIPE };
        context.register_table("t", Arc::new(units)).expect("a table");
        let sql = "SELECT total % 1000003 AS bucket, sum(n), count(*), max(key) \
                   FROM (SELECT key, sum(value) AS total, count(*) AS n FROM t GROUP BY key) GROUP BY bucket";
        let plan = context.sql(sql).await.expect("a query").create_physical_plan().await.expect("a plan");
        let rows = execute_stream(Arc::clone(&plan), context.task_ctx()).expect("a local run");
        let expected = Rows::of(rows).await.expect("local rows");
        Query { plan, config, expected }
    }

    async fn run(&self, round: Round, folder: &Path) -> Report {
        let executors = if round.deed == Deed::Replace { 2 } else { 3 };
        let program = Path::new(env!("CARGO_BIN_EXE_executor"));
        let cluster = Cluster::start(program, folder, SETTINGS, executors).await.expect("a cluster");
        let mut running = Running::new(cluster, round);
        let start = Instant::now();
        let found = timeout(LIMIT, running.run(Arc::clone(&self.plan), self.config.clone())).await;
        let time = start.elapsed();
        running.end_pause();
        let outcome = match found {
            Ok(found) => Outcome::of(self.expected, found),
            Err(_) => Outcome::Failed("does not end".into()),
        };
        let peak = running.cluster.executors.iter_mut().map(|executor| executor.peak()).max().unwrap_or(0);
        let Running { stages, hung, counted, .. } = running;
        Report { outcome, time, stages, peak, hung, counted }
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn lost_executors() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("recovery");
    let _ = fs_err::remove_dir_all(&folder);
    fs_err::create_dir_all(&folder).expect("a folder");
    log_to(&folder.join("scheduler.log")).expect("a log");
    let (rounds, last, seed) = (number("ROUNDS", 5), number("LAST", 0), number("SEED", 1));
    let seeded = |round| Round::seeded(seed * 1000 + round);
    let last = (0..last).map(seeded).map(Round::in_last_stage);
    let rounds = Round::special().into_iter().chain((0..rounds).map(seeded)).chain(last);

    let start = Instant::now();
    let query = Runtime::new().expect("a runtime").block_on(Query::new());
    println!("local: {} rows, {:.1} s", query.expected.count, start.elapsed().as_secs_f64());
    let mut reports = Vec::new();
    for (index, round) in rounds.enumerate() {
        log::info!("experiment: round {index}: {round:?}");
        let folder: PathBuf = folder.join(format!("round-{index}"));
        let runtime = Runtime::new().expect("a runtime");
        let report = runtime.block_on(query.run(round, &folder));
        runtime.shutdown_background();
        println!("{}", line(index, round, &report));
        reports.push((round, report));
    }
    summary(&reports);
    for (round, report) in reports {
        let equal = report.outcome == Outcome::Equal;
        if std::env::var_os("PATCHED").is_some() {
            assert!(equal || round.moment == Moment::Fetch, "{round:?}: {:?}", report.outcome);
            assert!(!report.hung, "{round:?}: hung");
            continue;
        }
        let failed = matches!(report.outcome, Outcome::Failed(_));
        assert!(equal || failed || report.rolled_back(), "{round:?}: wrong, though no stage was begun again");
        assert!(!equal || !round.is_fatal(), "{round:?}: the result is right, so Ballista has become better");
    }
}

fn line(index: usize, round: Round, report: &Report) -> String {
    let Round { moment, delay, deed, victim } = round;
    let stages: Vec<String> = report.stages.values().map(|seen| format!("{}:{}", seen.attempts, seen.tasks)).collect();
    let Report { outcome, time, peak, hung, counted, .. } = report;
    let spilled: usize = report.stages.values().map(|seen| seen.spilled).sum();
    format!(
        "{index:3} {moment:9?} {:4} ms {deed:8?} {victim} {:13} {:6.1} s, attempts:tasks {:16} \
         spilled {:4} MiB, resident {:4} MiB{}",
        delay.as_millis(),
        format!("{}{}", outcome.short(), if *hung { ", hung" } else { "" }),
        time.as_secs_f64(),
        stages.join(" "),
        spilled >> 20,
        peak >> 20,
        match outcome {
            Outcome::Equal => String::new(),
            Outcome::Failed(error) => format!("  {error}"),
            _ => format!("  each row counts {:.2} times", *counted as f64 / (UNITS * RECIPE.rows) as f64),
        },
    )
}

fn summary(reports: &[(Round, Report)]) {
    let mut groups: BTreeMap<String, Vec<&Report>> = BTreeMap::new();
    for (round, report) in reports {
        groups.entry(format!("{:?}, {:?}", round.moment, round.deed)).or_default().push(report);
    }
    println!("{:20} rounds equal wrong failed  hung  median s  longest s  peak MiB", "");
    for (name, reports) in groups {
        let count = |what: fn(&Report) -> bool| reports.iter().filter(|report| what(report)).count();
        let equal = count(|report| report.outcome == Outcome::Equal);
        let failed = count(|report| matches!(report.outcome, Outcome::Failed(_)));
        let mut times: Vec<f64> = reports.iter().map(|report| report.time.as_secs_f64()).collect();
        times.sort_by(f64::total_cmp);
        println!(
            "{name:20} {:6} {equal:5} {:5} {failed:6} {:5} {:9.1} {:10.1} {:9}",
            reports.len(),
            reports.len() - equal - failed,
            count(|report| report.hung),
            times[times.len() / 2],
            times[times.len() - 1],
            reports.iter().map(|report| report.peak).max().unwrap_or(0) >> 20,
        );
    }
}
