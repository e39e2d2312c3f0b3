//! From a job to what can run: readers with their columns, checked steps, plans.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::execution::SessionState;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use millstream_core::format::{BATCH_ROWS, Format};
use millstream_core::source::SourceContext;
use millstream_core::{Budget, Error, Registry, Result, StepKind, Steps};
use millstream_job::{AddColumn, Job, Lint, SinkStep, SourceStep};

use crate::fault;
use crate::machine::Machine;
use crate::memory::{self, BudgetPool, Governor};
use crate::plan::shared::{LogicalStep, Physical, Planner, StepTable, scan};
use crate::plan::steps::{StepFault, StepPlanner};
use crate::read::table::SourceTable;
use crate::read::{Opened, PlaceSource, Provenance, ReadSteps, Reader, sample};
use crate::runtime::Runtimes;
use crate::sql;

/// Why a job does not run.
#[derive(Debug)]
pub enum Failure {
    /// The job file is wrong.
    Lints(Vec<Lint>),
    /// Something else is. Never empty.
    Errors(Vec<Error>),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Errors(vec![error])
    }
}

/// What every command stands on: the machine, its threads, its memory, the SQL engine.
pub struct Base {
    /// The components.
    pub registry: Registry,
    /// What may be used.
    pub machine: Machine,
    /// The one budget.
    pub budget: Arc<Budget>,
    /// The counters of everything that runs.
    pub steps: Arc<Steps>,
    /// The SQL engine.
    pub session: SessionContext,
    /// Threads. Last, so that they end last.
    pub runtimes: Runtimes,
}

impl Base {
    /// A base on `machine`.
    pub fn new(machine: Machine) -> Result<Self> {
        let runtimes = Runtimes::new(machine.cores)?;
        let budget = Budget::new(memory::pool_size(machine.memory));
        let session = session(&machine, &budget)?;
        Ok(Base { registry: crate::registry(), machine, budget, steps: Arc::default(), session, runtimes })
    }

    /// Holds the process to its budget until what comes back is dropped.
    pub fn govern(&self) -> Result<Governor> {
        Governor::start(self.machine.memory, Arc::clone(&self.budget))
            .map_err(|cause| Error::io("a thread cannot be started", &cause))
    }

    /// What sources work with.
    pub fn source_context(&self) -> SourceContext {
        SourceContext { io: self.runtimes.io(), budget: Arc::clone(&self.budget) }
    }
}

/// DataFusion, with the budget as its memory and the scratch folder as its disk.
fn session(machine: &Machine, budget: &Arc<Budget>) -> Result<SessionContext> {
    let pool: Arc<dyn MemoryPool> = Arc::new(BudgetPool::new(Arc::clone(budget)));
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(pool)
        .with_temp_file_path(&machine.scratch)
        .with_max_spill_merge_fan_in(merge_fan_in(budget.limit(), machine.cores))
        .build_arc()
        .map_err(fault::unwrap)?;
    let mut config = SessionConfig::new()
        .with_target_partitions(machine.cores)
        .with_batch_size(batch_rows(budget.limit(), machine.cores))
        .with_information_schema(false);
    let options = config.options_mut();
    options.sql_parser.collect_spans = true;
    // A sort keeps this much aside for its merge; by default 10 MB, too much for a small budget and many sorts.
    options.execution.sort_spill_reservation_bytes = (budget.limit() / (4 * machine.cores)).min(10 << 20);
    Ok(crate::sql::checked(SessionContext::new_with_config_rt(config, runtime)))
}

/// Rows in a batch: with a small budget smaller ones, since every operator holds some whatever it declares (a merge one
/// of each run). About 4 KiB of the budget for each row and core.
fn batch_rows(budget: usize, cores: usize) -> usize {
    (budget / cores / 4096).clamp(256, BATCH_ROWS)
}

/// Spilled runs that one sort merges at once. Left to itself the first of several sorts takes what memory there is for
/// its merge, and the others fail; so each gets a part of a quarter of the budget, at about 256 bytes a row and run.
fn merge_fan_in(budget: usize, cores: usize) -> usize {
    (budget / (4 * cores) / (batch_rows(budget, cores) * 256)).max(2)
}

/// A job whose readers are known and whose steps are planned.
pub struct Prepared<'a> {
    base: &'a Base,
    /// The readers of all sources, in file order.
    pub readers: Vec<Arc<Reader>>,
    steps: Vec<LogicalStep>,
    tables: HashMap<String, Arc<dyn TableProvider>>,
}

/// How much a preparation may ask of the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// No network and no database: a remote source whose columns are not declared stays unknown, and with it the
    /// columns of whatever uses it.
    Offline,
    /// Everything.
    Online,
}

/// The state of a session in which the entries planned so far are tables.
fn state_with(base: &Base, tables: &HashMap<String, Arc<dyn TableProvider>>) -> Result<SessionState> {
    for (name, table) in tables {
        let reference = datafusion::common::TableReference::bare(name.as_str());
        if !base.session.table_exist(reference.clone()).map_err(fault::unwrap)? {
            base.session.register_table(reference, Arc::clone(table)).map_err(fault::unwrap)?;
        }
    }
    Ok(base.session.state())
}

/// Looks at the sources and plans the steps of `job`. All faults of its SQL come at once; the names of sources that
/// stayed unknown because of `reach` come back beside it.
pub async fn prepare<'a>(base: &'a Base, job: &Job, reach: Reach) -> Result<(Prepared<'a>, Vec<String>), Failure> {
    let mut prepared = Prepared { base, readers: Vec::new(), steps: Vec::new(), tables: HashMap::new() };
    let mut unknown = Vec::new();
    for source in &job.sources {
        if reach == Reach::Offline && is_remote(base, source) {
            unknown.push(source.name.value.clone());
            continue;
        }
        let name = source.name.value.as_str();
        let in_source = |error: Error| error.in_step(name);
        let reader = reader(base, source).await.map_err(in_source)?;
        let columns = sample::columns(&reader).await.map_err(in_source)?;
        let estimate = match is_remote(base, source) {
            true => None,
            false => sample::estimate(&reader).await.map_err(in_source)?,
        };
        let table = SourceTable::new(Arc::clone(&reader), columns, estimate, base.machine.cores);
        let plan = scan(name, Arc::new(table)).map_err(fault::unwrap)?;
        prepared.add(name, plan);
        prepared.readers.push(reader);
    }
    let lints = prepared.add_transforms(job, &mut unknown).await?;
    if !lints.is_empty() {
        return Err(Failure::Lints(lints));
    }
    Ok((prepared, unknown))
}

/// Whether `source` needs the network to tell its columns.
fn is_remote(base: &Base, source: &SourceStep) -> bool {
    source.read.iter().any(|pattern| {
        let place = pattern.value.trim_start_matches('@');
        base.registry.source_for(place).is_some_and(|entry| !["file", "stdin"].contains(&entry.spec.name))
    })
}

impl Prepared<'_> {
    fn add(&mut self, name: &str, plan: datafusion::logical_expr::LogicalPlan) {
        let schema: SchemaRef = Arc::clone(plan.schema().inner());
        self.tables.insert(name.to_owned(), Arc::new(StepTable::new(name, schema)));
        self.steps.push(LogicalStep { name: name.to_owned(), plan });
    }

    /// Plans the transforms; those that use something unknown are unknown themselves.
    async fn add_transforms(&mut self, job: &Job, unknown: &mut Vec<String>) -> Result<Vec<Lint>, Failure> {
        let mut lints = Vec::new();
        for step in job.transforms_in_order() {
            let name = step.name.value.as_str();
            if step.uses.iter().any(|used| unknown.contains(used)) {
                unknown.push(name.to_owned());
                continue;
            }
            let state = state_with(self.base, &self.tables)?;
            let planner = StepPlanner { state: &state, tables: &self.tables };
            match planner.plan(&step.transform).await {
                Ok(plan) => self.add(name, plan),
                Err(fault) => {
                    lints.push(lint(job, fault));
                    unknown.push(name.to_owned());
                }
            }
        }
        for sink in &job.sinks {
            match self.sink_plan(job, sink) {
                Ok(_) => {}
                Err(Failure::Lints(found)) => lints.extend(found),
                Err(other) => return Err(other),
            }
        }
        Ok(lints)
    }

    /// The logical plan of a sink's rows; `None` if its columns are not known.
    fn sink_plan(&self, job: &Job, sink: &SinkStep) -> Result<Option<LogicalStep>, Failure> {
        if !self.tables.contains_key(&sink.from.value) {
            return Ok(None);
        }
        let state = state_with(self.base, &self.tables)?;
        let planner = StepPlanner { state: &state, tables: &self.tables };
        match planner.sink(&sink.from, sink.sink.routing().as_ref()) {
            Ok(plan) => Ok(Some(LogicalStep { name: sink.name.value.clone(), plan })),
            Err(fault) => Err(Failure::Lints(vec![lint(job, fault)])),
        }
    }

    /// The columns of the step `name`.
    pub fn columns(&self, name: &str) -> Option<SchemaRef> {
        self.tables.get(name).map(|table| table.schema())
    }

    /// The names of all steps that are known, in an order in which each stands behind those it uses.
    pub fn step_names(&self) -> Vec<&str> {
        self.steps.iter().map(|step| step.name.as_str()).collect()
    }

    /// The columns that `sink` writes, without the route.
    pub fn sink_columns(&self, sink: &SinkStep) -> Option<SchemaRef> {
        self.columns(&sink.from.value)
    }

    /// Everything that keeps the sinks from taking the rows, at once.
    pub async fn check_sinks(&self, job: &Job) -> Vec<Error> {
        let mut faults = Vec::new();
        for sink in &job.sinks {
            let Some(columns) = self.sink_columns(sink) else { continue };
            if let Err(errors) = sink.sink.check(columns).await {
                faults.extend(errors.into_iter().map(|error| error.in_step(&sink.name.value)));
            }
        }
        faults
    }

    /// Physical plans for all sinks of `job`.
    pub async fn plan_sinks(&self, job: &Job) -> Result<Physical, Failure> {
        let mut roots = Vec::new();
        for sink in &job.sinks {
            roots.extend(self.sink_plan(job, sink)?);
        }
        Ok(self.plan(&roots).await?)
    }

    /// A physical plan for the first `rows` rows of the step `name`.
    pub async fn plan_first_rows(&self, name: &str, rows: usize) -> Result<Physical> {
        let table = self.tables.get(name).ok_or_else(|| {
            let names = self.step_names();
            Error::job(format!("there is no source or transform `{name}`"))
                .hint(millstream_core::hint::did_you_mean(name, "entries", &names))
        })?;
        let plan = scan(name, Arc::clone(table))
            .and_then(|plan| datafusion::logical_expr::LogicalPlanBuilder::from(plan).limit(0, Some(rows))?.build())
            .map_err(fault::unwrap)?;
        self.plan(&[LogicalStep { name: name.to_owned(), plan }]).await
    }

    async fn plan(&self, roots: &[LogicalStep]) -> Result<Physical> {
        let state = state_with(self.base, &self.tables)?;
        let planner = Planner {
            state: &state,
            budget: Arc::clone(&self.base.budget),
            scratch: self.base.machine.scratch.clone(),
            steps: Arc::clone(&self.base.steps),
        };
        planner.plan(&self.steps, roots).await.map_err(fault::unwrap)
    }
}

fn lint(job: &Job, StepFault { text, fault }: StepFault<'_>) -> Lint {
    let sql::PlanFault { fault, length } = fault;
    let lint = job.error_in(text, fault.line, fault.column, length, &fault.what);
    match fault.hint {
        Some(hint) => lint.hint(hint),
        None => lint,
    }
}

/// The reader of an entry. Where neither the entry nor the file's name tells the format, the first file is looked at.
pub async fn reader(base: &Base, source: &SourceStep) -> Result<Arc<Reader>> {
    let patterns: Vec<String> = source.read.iter().map(|pattern| pattern.value.clone()).collect();
    let places = source
        .places
        .iter()
        .map(|(entry, place)| PlaceSource { schemes: entry.schemes, source: Arc::clone(place) })
        .collect();
    let given = match &source.format {
        Some(format) => Some(Arc::clone(format)),
        None => format_by_name(&base.registry, &patterns),
    };
    let reader = Reader {
        name: source.name.value.clone(),
        patterns,
        places,
        registry: base.registry,
        format: given.clone().unwrap_or_else(lines),
        members: source.members.clone(),
        limits: source.limits.clone(),
        allow_empty: source.allow_empty,
        on_drift: source.on_drift,
        validate: source.validate,
        provenance: source.add.iter().map(provenance).collect(),
        max_rejects: source.max_rejects,
        rejected: AtomicU64::new(0),
        context: base.source_context(),
        steps: ReadSteps {
            list: base.steps.add(&source.name.value, StepKind::List, ""),
            fetch: base.steps.add(&source.name.value, StepKind::Fetch, ""),
            decode: base.steps.add(&source.name.value, StepKind::Decode, ""),
            parse: base.steps.add(&source.name.value, StepKind::Parse, ""),
        },
        opened: Opened::default(),
    };
    for pattern in &reader.patterns {
        reader.steps.fetch.add_detail(reader.source_of(pattern.trim_start_matches('@'))?.name());
    }
    let reader = Arc::new(reader);
    let reader = match given {
        Some(_) => reader,
        None => with_guessed_format(reader).await?,
    };
    reader.steps.parse.add_detail(reader.format.name());
    Ok(reader)
}

fn provenance(column: &AddColumn) -> Provenance {
    match column {
        AddColumn::Uri => Provenance::Uri,
        AddColumn::Member => Provenance::Member,
        AddColumn::Line => Provenance::Line,
    }
}

/// The format that the names of all patterns suggest, if they agree.
pub fn format_by_name(registry: &Registry, patterns: &[String]) -> Option<Arc<dyn Format>> {
    let mut suggested = patterns.iter().map(|pattern| registry.by_name(pattern).1);
    let (entry, ending) = suggested.next()??;
    let agree = suggested.all(|other| other.is_some_and(|(_, other)| other == ending));
    if !agree {
        return None;
    }
    (entry.build)(&(entry.suggested)(ending)).ok()
}

/// The format `lines`, as it is without settings.
pub fn lines() -> Arc<dyn Format> {
    let entry = millstream_format::FORMATS.iter().find(|entry| entry.spec.name == "lines");
    entry
        .and_then(|entry| (entry.build)(&serde_json::Value::Object(serde_json::Map::new())).ok())
        .expect("lines is a format and needs no settings")
}

async fn with_guessed_format(reader: Arc<Reader>) -> Result<Arc<Reader>> {
    let Some(unit) = sample::units(&reader, 1).await?.into_iter().next() else { return Ok(reader) };
    let head = sample::head(&reader, unit).await?;
    let guess = crate::guess::of_head(&head)?;
    let entry = millstream_format::FORMATS.iter().find(|entry| entry.spec.name == guess.format);
    let format = entry
        .and_then(|entry| (entry.build)(&guess.settings).ok())
        .ok_or_else(|| Error::internal(format!("the guessed format {} cannot be built", guess.format)))?;
    let mut reader =
        Arc::try_unwrap(reader).map_err(|_| Error::internal("the reader is in use before it is complete"))?;
    reader.format = format;
    Ok(Arc::new(reader))
}

/// The folder in which a run may keep what does not fit in memory must be there.
pub fn check_scratch(scratch: &PathBuf) -> Result<()> {
    match fs_err::metadata(scratch) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(Error::job(format!("the scratch folder {} is not a folder", scratch.display()))),
        Err(cause) => Err(Error::io(format!("the scratch folder {} cannot be used", scratch.display()), &cause)),
    }
}
