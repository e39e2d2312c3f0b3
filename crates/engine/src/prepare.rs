//! From a job to what can run: readers with their columns, checked steps, plans.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use millstream_core::format::Defaults;
use millstream_core::program::ProgramContext;
use millstream_core::queue::Queue;
use millstream_core::sink::Sink;
use millstream_core::source::SourceContext;
use millstream_core::transform::ScratchPool;
use millstream_core::{Error, ErrorKind, Registry, Result};
use millstream_job::{Check, FunctionStep, Job, Lint, Located, SinkStep, SortKey, SourceStep, Span, TransformStep};
use serde_json::{Value, json};

use crate::checks::keys::KeySet;
use crate::checks::{EntryCheck, EntryChecks};
use crate::context::RunContext;
use crate::failure::Failure;
use crate::fault;
use crate::job_plan::KnownSources;
use crate::plan::checked::CheckedRows;
use crate::plan::conditions;
use crate::plan::lookup::Lookups;
use crate::plan::ordered::RowsInOrder;
use crate::plan::shared::{Physical, Planner, StepTable, scan};
use crate::plan::sort::Sorting;
use crate::plan::step::LogicalStep;
use crate::plan::steps::{StepFault, StepPlanner};
use crate::plan::work::{Pool, arguments, called_by, sql_function};
use crate::read::source_plan::{named_format, sorted_by};
use crate::read::table::SourceTable;
use crate::read::{ReadSteps, Reader, SourcePlan, naming, replayed, sample};
use crate::report::{LeftFiles, MissingColumn, Skipped, UnmatchedPatterns};
use crate::sql;
use crate::surroundings::{Surroundings, lacks_secret};

/// A job whose readers are known and whose steps are planned.
pub struct Prepared<'a> {
    context: &'a RunContext,
    /// The readers of all sources, in file order.
    pub readers: Vec<Arc<Reader>>,
    /// The names of what stayed unknown because of [`Reach::Offline`].
    pub unknown: Vec<String>,
    /// What is strange and no error.
    pub warnings: Vec<Lint>,
    /// Files that do not have the columns which the job declares.
    misfits: Vec<Error>,
    steps: Vec<LogicalStep>,
    surroundings: Surroundings,
    /// The workers of all steps that have some.
    pools: Vec<Arc<Pool>>,
    tables: HashMap<String, Arc<dyn TableProvider>>,
    /// What the files of each source have, without the columns that the job adds.
    source_columns: HashMap<String, SchemaRef>,
    predicted: Predicted,
    /// The checks of all entries that have some.
    checks: Mutex<Vec<Arc<EntryChecks>>>,
}

/// What is known of the sources before they are read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Predicted {
    /// Units that were listed.
    pub units: u64,
    /// Their size as stored, in bytes.
    pub stored_bytes: u64,
    /// Their size when decoded, in bytes.
    pub text_bytes: u64,
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

/// Why targets are looked at.
#[derive(Debug, Clone, Copy)]
pub enum Asked<'a> {
    /// Nothing may change.
    Check,
    /// The job begins to run.
    Run {
        /// The first run of the resume chain, if there is one.
        resumes: Option<&'a str>,
        /// There may be nothing to do: the targets are looked at only beside other faults, and else by
        /// [`Prepared::reach_sinks`].
        may_be_done: bool,
    },
}

/// Looks at the sources and plans the steps of `job`. What is wrong with any of them comes at once.
pub async fn prepare<'a>(
    context: &'a RunContext,
    job: &Job,
    known: Option<&KnownSources>,
    reach: Reach,
) -> Result<Prepared<'a>, Failure> {
    let (prepared, failure) = look(context, job, known, reach).await;
    failure.none()?;
    Ok(prepared)
}

/// The same, and looks at the targets, also where a source or a transform is wrong: all that keeps `job` from running,
/// as far as that is known before it runs, at once.
pub async fn prepare_with_sinks<'a>(
    context: &'a RunContext,
    job: &Job,
    known: Option<&KnownSources>,
    reach: Reach,
    asked: Asked<'_>,
) -> Result<Prepared<'a>, Failure> {
    let (prepared, mut failure) = look(context, job, known, reach).await;
    let is_later = matches!(asked, Asked::Run { may_be_done: true, .. }) && failure.is_empty();
    if reach == Reach::Online && !is_later {
        failure.add(prepared.check_sinks(job, asked).await);
    }
    if failure.is_empty() {
        return Ok(prepared);
    }
    failure.lints.extend(prepared.warnings);
    Err(failure)
}

async fn look<'a>(
    context: &'a RunContext,
    job: &Job,
    known: Option<&KnownSources>,
    reach: Reach,
) -> (Prepared<'a>, Failure) {
    let mut prepared = Prepared {
        context,
        readers: Vec::new(),
        unknown: Vec::new(),
        warnings: Vec::new(),
        misfits: Vec::new(),
        steps: Vec::new(),
        surroundings: Surroundings::of(
            job,
            Arc::clone(&context.lines),
            Arc::clone(context.threads.processes()),
            context.patience,
        )
        .with_environment(context.environment.clone()),
        pools: Vec::new(),
        tables: HashMap::new(),
        source_columns: HashMap::new(),
        predicted: Predicted::default(),
        checks: Mutex::default(),
    };
    context.rejects.allow(job);
    sql::begin_at(&context.session, job.around.moment);
    let mut failure = Failure::default();
    for source in &job.sources {
        if let Err(found) = prepared.add_source(job, source, known, reach).await {
            let name = &source.name.value;
            failure.lints.extend(found.lints);
            failure.errors.extend(found.errors.into_iter().map(|error| error.in_step(name)));
            prepared.unknown.push(name.clone());
        }
    }
    prepared.add_functions(job, &mut failure).await;
    prepared.add_transforms(job, &mut failure).await;
    failure.errors.append(&mut prepared.misfits);
    (prepared, failure)
}

/// Whether the columns of `source` cannot be told without the network. A list may hold anything.
fn stays_unknown_offline(context: &RunContext, source: &SourceStep) -> bool {
    let declared = source.format.as_ref().is_some_and(|format| format.declared().is_some());
    let is_list = source.read.iter().any(|pattern| pattern.value.starts_with('@'));
    !declared && (is_list || is_remote(context, source))
}

/// Whether `source` is, or may be, behind a network.
fn is_remote(context: &RunContext, source: &SourceStep) -> bool {
    source.read.iter().any(|pattern| {
        let pattern = pattern.value.trim_start_matches('@');
        let Some(kind) = context.registry().source_for(pattern) else { return false };
        let built = source.inputs.iter().find(|(entry, _)| entry.spec.name == kind.spec.name);
        built.is_none_or(|(_, source)| !source.is_local())
    })
}

/// Checks that the rows of a source, which have `columns`, can be read by the time in `column`.
fn check_window_column(reader: &Reader, column: &str, columns: &SchemaRef) -> Result<()> {
    for pattern in &reader.patterns {
        let place = reader.source_of(pattern)?.rows();
        place.ok_or_else(|| Error::internal("the place gives no rows"))?.check_window_column(columns, column)?;
    }
    Ok(())
}

impl Prepared<'_> {
    /// The reasons why nothing at all was read of a source whose units were skipped: then it is not about single units.
    pub fn all_skipped(&self) -> Vec<Error> {
        let nothing = |reader: &&Arc<Reader>| {
            let fetch = reader.steps.fetch.snapshot();
            !reader.allow_empty && reader.unopened.skipped().0 > 0 && fetch.units == 0 && fetch.bytes == 0
        };
        let first = |reader: &Arc<Reader>| {
            let error = reader.unopened.skipped().1.into_iter().next()?;
            let hint = "every unit of the source was skipped for such a reason; `allow_empty: true` lets the run \
                        continue";
            Some(error.in_step(&reader.name).hint(hint))
        };
        self.readers.iter().filter(nothing).filter_map(first).collect()
    }

    /// How many units were left out since they could not be opened, and the first of them.
    pub fn skipped(&self) -> (u64, Vec<Skipped>) {
        let mut skipped = (0, Vec::new());
        for reader in &self.readers {
            let (count, errors) = reader.unopened.skipped();
            skipped.0 += count;
            skipped.1.extend(errors.into_iter().map(|error| Skipped {
                source: reader.name.clone(),
                uri: error.location().uri.clone(),
                what: error.what().to_owned(),
            }));
        }
        skipped
    }

    /// The files that are not ready to be read, source by source.
    pub fn not_ready(&self) -> Vec<LeftFiles> {
        let of = |reader: &Arc<Reader>| {
            let (files, first) = reader.ready.not_ready();
            (files > 0).then(|| LeftFiles { source: reader.name.clone(), files, first })
        };
        self.readers.iter().filter_map(of).collect()
    }

    /// The patterns that match no file, source by source.
    pub fn unmatched(&self) -> Vec<UnmatchedPatterns> {
        let of = |reader: &Arc<Reader>| UnmatchedPatterns { source: reader.name.clone(), patterns: reader.unmatched() };
        self.readers.iter().map(of).filter(|unmatched| !unmatched.patterns.is_empty()).collect()
    }

    /// How many files are not ready of sources for whose names `is_wanted` holds.
    pub fn not_ready_of(&self, is_wanted: impl Fn(&str) -> bool) -> u64 {
        let wanted = self.readers.iter().filter(|reader| is_wanted(&reader.name));
        wanted.map(|reader| reader.ready.not_ready().0).sum()
    }

    /// How many units were left out of sources for whose names `is_wanted` holds.
    pub fn skipped_of(&self, is_wanted: impl Fn(&str) -> bool) -> u64 {
        let wanted = self.readers.iter().filter(|reader| is_wanted(&reader.name));
        wanted.map(|reader| reader.unopened.skipped().0).sum()
    }

    /// The columns that files lacked, source by source.
    pub fn missing_columns(&self) -> Vec<MissingColumn> {
        let of = |reader: &Arc<Reader>| {
            let columns = self.columns(&reader.name)?;
            Some(reader.lacking.report(&reader.name, &columns))
        };
        self.readers.iter().filter_map(of).flatten().collect()
    }

    /// What could not be opened so far, in the order of the job.
    pub fn unopened(&self) -> Vec<Error> {
        let of = |reader: &Arc<Reader>| {
            let name = reader.name.clone();
            reader.unopened.faults().into_iter().map(move |error| error.in_step(&name))
        };
        self.readers.iter().flat_map(of).collect()
    }

    /// Makes the rows of `plan` a table that later entries can use as `name`.
    fn add(&mut self, name: &str, plan: LogicalPlan) -> Result<()> {
        let table: Arc<dyn TableProvider> = Arc::new(StepTable::new(name, Arc::clone(plan.schema().inner())));
        let reference = datafusion::common::TableReference::bare(name);
        self.context.session.register_table(reference, Arc::clone(&table)).map_err(fault::unwrap)?;
        self.tables.insert(name.to_owned(), table);
        self.steps.push(LogicalStep { name: name.to_owned(), plan });
        Ok(())
    }

    /// Adds a queue.
    async fn add_queue(
        &mut self,
        job: &Job,
        source: &SourceStep,
        reader: Arc<Reader>,
        queue: Arc<dyn Queue>,
    ) -> Result<(), Failure> {
        let name = source.name.value.as_str();
        let columns = match reader.format.declared() {
            Some(declared) => declared,
            None => sample::message_columns(&reader, queue.as_ref()).await?,
        };
        self.source_columns.insert(name.to_owned(), Arc::clone(&columns));
        let reader = match &self.context.replay {
            Some(replay) => replayed::reader(replay, &reader, source)?,
            None => reader,
        };
        let table = SourceTable::new(Arc::clone(&reader), columns, None, 1);
        let scanned = scan(name, Arc::new(table)).map_err(fault::unwrap);
        let checked = self.with_checks(name, EntryKind::Step, &source.checks, scanned?);
        self.add(name, checked.map_err(|faults| lints_of(job, faults))?)?;
        self.readers.push(reader);
        Ok(())
    }

    async fn add_source(
        &mut self,
        job: &Job,
        source: &SourceStep,
        known: Option<&KnownSources>,
        reach: Reach,
    ) -> Result<(), Failure> {
        let several = |errors: Vec<Error>| Failure { lints: Vec::new(), errors };
        let name = source.name.value.as_str();
        if reach == Reach::Offline && stays_unknown_offline(self.context, source) {
            self.unknown.push(name.to_owned());
            return Ok(());
        }
        let reader = reader(self.context, source, self.programs(&source.name.value)).await?;
        if source.format.is_none() {
            let lints = source.contains_lints(&job.text, reader.format.as_ref());
            let (errors, warnings): (Vec<Lint>, Vec<Lint>) = lints.into_iter().partition(Lint::is_error);
            Failure { lints: errors, errors: Vec::new() }.none()?;
            self.warnings.extend(warnings);
        }
        if let Some(queue) = source.queue() {
            let queue = queue.map_err(|fault| job.text.error(source.name.span, fault.what))?;
            return self.add_queue(job, source, reader, queue).await;
        }
        // What could not be opened before it is told with it.
        let columns = match known.and_then(|known| known.columns.get(name)) {
            Some(columns) => Arc::clone(columns),
            None => sample::columns(&reader).await.map_err(|error| several(reader.unopened.before(error)))?,
        };
        if let Some(by) = &reader.incremental_by {
            check_window_column(&reader, &by.by, &columns)?;
        }
        self.source_columns.insert(name.to_owned(), Arc::clone(&columns));
        // What is read of an incremental source may not be its first file.
        if self.context.replay.is_none() && !reader.incremental && !is_remote(self.context, source) {
            // The columns are declared: what uses them can be checked all the same.
            let misfit = sample::check_first(&reader, &columns).await.err();
            self.misfits.extend(misfit.map(|error| error.in_step(name)));
        }
        let reader = match &self.context.replay {
            // What is only looked up in is read as it is.
            Some(replay) if job.reaches_sink(name) => replayed::reader(replay, &reader, source)?,
            Some(_) | None => reader,
        };
        let lints = check_order(job, &source.sorted_by, &columns);
        Failure { lints, errors: Vec::new() }.none()?;
        self.warnings.extend(no_columns_warning(job, source, &reader, &columns));
        // What is loaded again had its header when it was read first; what is far is not read twice.
        let plausible = self.context.replay.is_none() && !is_remote(self.context, source);
        self.warnings.extend(doubt_warning(job, source, &reader, &columns, plausible).await);
        let estimate = match is_remote(self.context, source) {
            true => None,
            false => sample::estimate(&reader).await.map_err(|error| several(reader.unopened.before(error)))?,
        };
        if let Some(estimate) = estimate {
            self.predicted.units += estimate.units;
            self.predicted.stored_bytes += estimate.stored_bytes;
            self.predicted.text_bytes += estimate.text_bytes;
        }
        let table = SourceTable::new(Arc::clone(&reader), columns, estimate, self.context.machine().cores);
        let scanned = scan(name, Arc::new(table)).map_err(fault::unwrap);
        let checked = self.with_checks(name, EntryKind::Step, &source.checks, scanned?);
        self.add(name, checked.map_err(|faults| lints_of(job, faults))?)?;
        self.readers.push(reader);
        Ok(())
    }

    /// Makes the functions of `job` known to SQL, and starts a worker of each.
    async fn add_functions(&mut self, job: &Job, failure: &mut Failure) {
        let cores = self.context.machine().cores;
        for FunctionStep { name, function, settings } in &job.functions {
            let state = self.context.session.state();
            let called = name.value.as_str();
            let is_known = state.scalar_functions().contains_key(called)
                || state.aggregate_functions().contains_key(called)
                || state.window_functions().contains_key(called);
            if is_known {
                let what = format!("SQL has a function `{called}` of its own");
                failure.lints.push(job.text.error(name.span, what).hint("give it another name"));
                continue;
            }
            let takes = arguments(function);
            if let Err(fault) = function.workers.columns(&takes) {
                failure.add(Failure::from(fault.error.in_step(called)));
                continue;
            }
            let pool = Pool::new(Arc::clone(&function.workers), called, takes, &self.surroundings, cores);
            self.context.session.register_udf(sql_function(function, &pool, self.context.runtimes.workers()));
            let begun = if lacks_secret(settings) { Ok(()) } else { pool.begin().await };
            match begun {
                Ok(()) => {
                    self.context.steps.push(Arc::clone(pool.counters()));
                    self.pools.push(pool);
                }
                Err(error) => failure.add(Failure::from(error.in_step(called))),
            }
        }
    }

    /// Plans the transforms; those that use something unknown are unknown themselves. All faults of the job's SQL go to
    /// `failure`.
    async fn add_transforms(&mut self, job: &Job, failure: &mut Failure) {
        for step in job.transforms_in_order() {
            failure.lints.extend(self.pool_faults(job, step));
            let name = step.name.value.as_str();
            let known = !step.uses.iter().any(|used| self.unknown.contains(used));
            let planned = match known {
                true => self.plan_step(job, step).await,
                false => Err(Failure::default()),
            };
            let added = planned.and_then(|plan| Ok(self.add(name, plan)?));
            if let Err(found) = added {
                failure.add(found);
                self.unknown.push(name.to_owned());
            }
        }
        for sink in &job.sinks {
            failure.lints.extend(self.sink_plan(sink).err().into_iter().flat_map(|faults| lints_of(job, faults).lints));
        }
    }

    /// A sort names a pool that this machine has.
    fn pool_faults(&self, job: &Job, step: &TransformStep) -> Vec<Lint> {
        let fault = |pool: &ScratchPool| {
            let name = pool.as_str();
            let hint = self.context.machine().scratch.no_such_pool(name)?;
            let what = format!("this machine has no scratch in a pool `{name}`");
            Some(job.text.error(step.located(&pool.0).span, what).hint(hint))
        };
        step.rows.pools().into_iter().filter_map(fault).collect()
    }

    /// The plan of a transform, which has the order that it says.
    async fn plan_step(&mut self, job: &Job, step: &TransformStep) -> Result<LogicalPlan, Failure> {
        let state = self.context.session.state();
        let planner = self.planner(&state);
        let plan = planner.plan(step).await.map_err(|faults| lints_of(job, faults))?;
        for pool in planner.pools.into_inner().unwrap_or_else(PoisonError::into_inner) {
            if !lacks_secret(&step.settings) {
                pool.begin().await.map_err(|error| error.in_step(&step.name.value))?;
            }
            self.pools.push(pool);
        }
        let checked = self.with_checks(&step.name.value, EntryKind::Step, &step.checks, plan);
        let plan = checked.map_err(|faults| lints_of(job, faults))?;
        if step.sorted_by.is_empty() {
            return Ok(plan);
        }
        let lints = check_order(job, &step.sorted_by, plan.schema().inner());
        Failure { lints, errors: Vec::new() }.none()?;
        Ok(RowsInOrder::plan(plan, step.sorted_by.iter().map(sorted_by).collect(), &step.name.value))
    }

    fn planner<'p>(&'p self, state: &'p SessionState) -> StepPlanner<'p> {
        StepPlanner {
            state,
            tables: &self.tables,
            surroundings: &self.surroundings,
            cores: self.context.machine().cores,
            pools: Mutex::default(),
        }
    }

    /// All rows have been computed: looks whether the workers agree.
    ///
    /// # Errors
    /// As [`Pool::finish`].
    pub async fn finish_workers(&self) -> Result<()> {
        futures::future::try_join_all(self.pools.iter().map(|pool| pool.finish())).await.map(drop)
    }

    /// The workers of `step`, if it has some.
    pub fn pool(&self, step: &str) -> Option<&Arc<Pool>> {
        self.pools.iter().find(|pool| pool.step() == step)
    }

    /// What runs the code of steps, as far as they say.
    pub fn interpreters(&self) -> BTreeMap<String, String> {
        let known = |pool: &Arc<Pool>| Some((pool.step().to_owned(), pool.interpreter()?.to_owned()));
        self.pools.iter().filter_map(known).collect()
    }

    /// What the rows of `step` depend on beside its settings, if workers compute them.
    pub fn code(&self, step: &str) -> Value {
        let pool = self.pool(step);
        // What cannot be read is no code that a load began with.
        pool.map_or(Value::Null, |pool| pool.code().unwrap_or_else(|error| json!(error.what())))
    }

    /// The logical plan of a sink's rows; `None` if its columns are not known.
    fn sink_plan(&self, sink: &SinkStep) -> Result<Option<LogicalStep>, Vec<StepFault>> {
        if !self.tables.contains_key(&sink.from.value) {
            return Ok(None);
        }
        let state = self.context.session.state();
        let plan = self.planner(&state).sink(sink).map_err(|fault| vec![*fault])?;
        let plan = self.with_checks(&sink.name.value, EntryKind::Sink, &sink.checks, plan)?;
        Ok(Some(LogicalStep { name: sink.name.value.clone(), plan }))
    }

    /// `plan`, the rows of an entry, looked at by its checks. Rejects that are loaded again are not all rows: nothing
    /// is said of these together.
    fn with_checks(
        &self,
        name: &str,
        kind: EntryKind,
        checks: &[Check],
        plan: LogicalPlan,
    ) -> Result<LogicalPlan, Vec<StepFault>> {
        let is_replay = self.context.replay.is_some();
        let (mut expressions, mut own, mut faults) = (Vec::new(), Vec::new(), Vec::new());
        for check in checks.iter().filter(|check| !is_replay || check.rule.is_of_single_rows()) {
            match conditions::expressions(&check.rule, plan.schema(), &self.context.session.state()) {
                Ok(of_check) => {
                    let columns = check.rule.columns();
                    let (budget, scratch) = (&self.context.budget, self.context.scratch.folder().to_owned());
                    own.push(EntryCheck::new(check, of_check.len(), || KeySet::new(columns, budget, scratch)));
                    expressions.extend(of_check);
                }
                Err(fault) => faults.push(*fault),
            }
        }
        if !faults.is_empty() || own.is_empty() {
            return if faults.is_empty() { Ok(plan) } else { Err(faults) };
        }
        let checks = self.entry_checks(EntryChecks::new(name, kind == EntryKind::Sink, own));
        let plan = CheckedRows::plan(plan, expressions, checks);
        called_by(name, plan).map_err(|error| {
            let text = Located::new(name.to_owned(), Span::default());
            vec![StepFault { text, fault: sql::plan_fault(name, &error) }]
        })
    }

    /// The checks of an entry: those that it had when it was planned before, otherwise `new`.
    fn entry_checks(&self, new: EntryChecks) -> Arc<EntryChecks> {
        let mut all = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.iter().find(|known| known.entry == new.entry) {
            return Arc::clone(known);
        }
        all.push(Arc::new(new));
        all.last().map(Arc::clone).unwrap_or_else(|| unreachable!("one was added"))
    }

    /// The checks of all entries that have some.
    pub fn checks(&self) -> Vec<Arc<EntryChecks>> {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The columns of the step `name`.
    pub fn columns(&self, name: &str) -> Option<SchemaRef> {
        self.tables.get(name).map(|table| table.schema())
    }

    /// The columns of the files of the source `name`, without those that the job adds.
    pub fn source_columns(&self, name: &str) -> Option<SchemaRef> {
        self.source_columns.get(name).map(Arc::clone)
    }

    /// The names of all steps that are known, in an order in which each stands behind those it uses.
    pub fn step_names(&self) -> Vec<&str> {
        self.steps.iter().map(|step| step.name.as_str()).collect()
    }

    /// The columns that `sink` writes, without the route.
    pub fn sink_columns(&self, sink: &SinkStep) -> Option<SchemaRef> {
        self.columns(&sink.from.value)
    }

    /// What is known of the sources before they are read.
    pub fn predicted(&self) -> Predicted {
        self.predicted
    }

    /// The components.
    pub fn registry(&self) -> &Registry {
        self.context.registry()
    }

    /// The fingerprint of version 1, only to compare with stored ones: see [`crate::fingerprint`]. It is made of
    /// DataFusion's display of the plans; remove it when an update of DataFusion changes that.
    /// Without `formats`, as if sources whose names tell no format had no format blocks: version 1 guessed theirs.
    pub fn first_fingerprint(&self, job: &Job, formats: bool) -> String {
        let mut text = String::new();
        let registry = self.context.registry();
        let names = registry.sources.iter().map(|entry| entry.spec.name);
        let no_part: Vec<&str> =
            ["max_rejects", "on_error", "allow_empty", "empty_files", "limits"].into_iter().chain(names).collect();
        let blocks: Vec<&str> = registry.formats.iter().map(|entry| entry.spec.name).collect();
        for source in &job.sources {
            let guessed = !formats && named_format(registry, source).is_none();
            let is_left_out = |key: &str| no_part.contains(&key) || (guessed && blocks.contains(&key));
            let settings = source.settings.as_object().into_iter().flatten();
            let settings: Vec<_> = settings.filter(|(key, _)| !is_left_out(key)).collect();
            text.push_str(&format!("source {}: {settings:?}\n", source.name.value));
            // Of a database's settings these say what is read, and the others from where and how.
            for block in self.context.registry().sources.iter().filter(|entry| entry.rows) {
                let block = source.settings.get(block.spec.name);
                let what = ["table", "query"].map(|key| block.and_then(|block| block.get(key)));
                what.into_iter().flatten().for_each(|what| text.push_str(&format!("rows {what}\n")));
            }
        }
        for step in &self.steps {
            text.push_str(&format!("step {}: {}\n", step.name, step.plan.display_indent_schema()));
        }
        for sink in &job.sinks {
            let part = |key: &str| sink.settings.get(key).cloned().unwrap_or_default();
            let SinkStep { name, from, sink, .. } = sink;
            let (table, mode) = (part("table"), part("mode"));
            text.push_str(&format!("sink {}: {} {} {table} {mode}\n", name.value, from.value, sink.target()));
        }
        format!("{:016x}", millstream_core::stable_hash::hash(&text))
    }

    /// What the targets of `sink` are asked with.
    pub fn network(&self, sink: &str) -> SourceContext {
        self.context.source_context(self.programs(sink))
    }

    /// What the programs of `step` are started with.
    pub fn programs(&self, step: &str) -> Arc<ProgramContext> {
        Arc::new(self.surroundings.context(step))
    }

    /// Whether the targets would take the rows.
    pub async fn reach_sinks(&self, job: &Job, asked: Asked<'_>) -> Result<(), Failure> {
        self.check_sinks(job, asked).await.none()
    }

    /// Everything that keeps the sinks from taking the rows, at once.
    async fn check_sinks(&self, job: &Job, asked: Asked<'_>) -> Failure {
        let mut failure = Failure::default();
        for sink in &job.sinks {
            let Some(columns) = self.sink_columns(sink) else { continue };
            let checked = match sink.sink.check(columns).await {
                Ok(()) => self.reach_target(&sink.name.value, sink.sink.as_ref(), asked).await,
                faults => faults,
            };
            let errors = checked.err().into_iter().flatten();
            failure.errors.extend(errors.map(|error| error.in_step(&sink.name.value)));
        }
        failure
    }

    /// Whether the target would take the rows. What a run that died had committed there is finished first by a run that
    /// would be refused for it otherwise.
    async fn reach_target(&self, name: &str, sink: &dyn Sink, asked: Asked<'_>) -> Result<(), Vec<Error>> {
        let context = self.network(name);
        let Asked::Run { resumes, .. } = asked else { return sink.reach(&context, None).await };
        let faults = match sink.reach(&context, resumes).await {
            Err(faults) if faults.iter().any(|fault| fault.kind() == ErrorKind::Refused) => faults,
            reached => return reached,
        };
        match sink.recover(&context, resumes).await {
            Ok(true) => sink.reach(&context, resumes).await,
            Ok(false) => Err(faults),
            Err(error) => Err(vec![error]),
        }
    }

    /// Physical plans for all sinks of `job`.
    pub async fn plan_sinks(&self, job: &Job) -> Result<Physical, Failure> {
        self.plan_some_sinks(job, |_| true).await
    }

    /// Physical plans for the sinks of `job` that are `wanted`.
    pub async fn plan_some_sinks(&self, job: &Job, wanted: impl Fn(&SinkStep) -> bool) -> Result<Physical, Failure> {
        let mut roots = Vec::new();
        for sink in job.sinks.iter().filter(|sink| wanted(sink)) {
            roots.extend(self.sink_plan(sink).map_err(|faults| lints_of(job, faults))?);
        }
        Ok(self.plan(&roots, true).await?)
    }

    /// A physical plan for the first `rows` rows of the step `name`; for all, if no number is given.
    pub async fn plan_first_rows(&self, name: &str, rows: Option<usize>) -> Result<Physical> {
        let table = self.tables.get(name).ok_or_else(|| {
            let names = self.step_names();
            Error::job(format!("there is no source or transform `{name}`"))
                .hint(millstream_core::hint::did_you_mean(name, "entries", &names))
        })?;
        let plan = scan(name, Arc::clone(table))
            .and_then(|plan| LogicalPlanBuilder::from(plan).limit(0, rows)?.build())
            .map_err(fault::unwrap)?;
        self.plan(&[LogicalStep { name: name.to_owned(), plan }], false).await
    }

    async fn plan(&self, roots: &[LogicalStep], all_checks: bool) -> Result<Physical> {
        let state = self.context.session.state();
        let (budget, scratch) = (Arc::clone(&self.context.budget), Arc::clone(&self.context.scratch));
        let sorting = Sorting::new(Arc::clone(&budget), Arc::clone(&scratch), self.context.machine().cores);
        let planner = Planner {
            state: &state,
            budget: Arc::clone(&self.context.budget),
            scratch: self.context.scratch.folder().to_owned(),
            lookups: Lookups::new(budget, scratch, sorting.clone()),
            sorting,
            steps: Arc::clone(&self.context.steps),
            rejects: Arc::clone(&self.context.rejects),
            all_checks,
        };
        planner.plan(&self.steps, roots).await.map_err(fault::unwrap)
    }
}

/// A source that may be empty, and is, has the columns that it declares: without any, its rows are nothing.
fn no_columns_warning(job: &Job, source: &SourceStep, reader: &Reader, columns: &SchemaRef) -> Option<Lint> {
    let nothing = columns.fields().is_empty() && reader.format.declared().is_none();
    let span = source.read.first()?.span;
    nothing.then(|| {
        let what = format!("there is nothing to read, so `{}` has no columns", source.name.value);
        job.text.warning(span, what).hint("declare `columns`: then they are known without files, too")
    })
}

/// What the beginning of the first file says against the defaults of the source's format. What is `plausible` is only
/// looked at where that needs no network.
async fn doubt_warning(
    job: &Job,
    source: &SourceStep,
    reader: &Arc<Reader>,
    columns: &SchemaRef,
    plausible: bool,
) -> Option<Lint> {
    let format = reader.stream_format()?;
    let settings = source.settings.get(format.name()).unwrap_or(&Value::Null);
    let defaults = format.defaults(settings, columns);
    if defaults == Defaults::None || (defaults == Defaults::Plausible && !plausible) {
        return None;
    }
    let unit = sample::units(reader, 1).await.ok()?.into_iter().next()?;
    let plausible = plausible && reader.source_of(&unit.uri).ok()?.is_local();
    if defaults == Defaults::Plausible && !plausible {
        return None;
    }
    let sample = sample::sample_of(&sample::short_head(reader, unit).await.ok()?);
    let doubt = format.doubt(&source.name.value, settings, columns, &sample, plausible)?;
    Some(job.text.warning(source.read.first()?.span, doubt.what).hint(doubt.hint))
}

/// What kind of entry has checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryKind {
    /// A source or transform.
    Step,
    /// A sink.
    Sink,
}

fn lints_of(job: &Job, faults: Vec<StepFault>) -> Failure {
    Failure { lints: faults.into_iter().map(|fault| lint(job, fault)).collect(), errors: Vec::new() }
}

fn lint(job: &Job, StepFault { text, fault }: StepFault) -> Lint {
    let sql::PlanFault { fault, length } = fault;
    let lint = job.error_in(&text, fault.line, fault.column, length, &fault.what);
    match fault.hint {
        Some(hint) => lint.hint(hint),
        None => lint,
    }
}

/// The reader of an entry. Where neither the entry nor its patterns tell the format, the names of the files do.
async fn reader(context: &RunContext, source: &SourceStep, programs: Arc<ProgramContext>) -> Result<Arc<Reader>> {
    let (plan, format) = SourcePlan::of_step(context.registry(), source);
    let steps = ReadSteps::new(&context.steps, &source.name.value);
    let reader = Reader::new(plan, context.source_context(programs), steps, Arc::clone(&context.rejects));
    // Where the entries of a list are, the list tells when it is read.
    for pattern in reader.patterns.iter().filter(|pattern| !pattern.starts_with('@')) {
        let source = reader.source_of(pattern)?;
        source.look_up(&reader.context)?;
        reader.steps.fetch.add_detail(source.name());
    }
    if source.limits_connections {
        reader.share_connections(context.sharers());
    }
    let only = context.only(&source.name.value);
    // Of which format a source is says its files; if none of them is read, any will do.
    let (first, last) = only.map_or((None, None), |only| match only.is_empty() {
        true => (None, Some(only)),
        false => (Some(only), None),
    });
    first.into_iter().for_each(|only| reader.restrict(only));
    let reader = Arc::new(reader);
    let reader = match format {
        Some(_) => reader,
        None => with_named_format(reader).await?,
    };
    last.into_iter().for_each(|only| reader.restrict(only));
    reader.steps.parse.add_detail(reader.format.name());
    Ok(reader)
}

/// What is `sorted_by` something has a column for it.
fn check_order(job: &Job, sorted_by: &[SortKey], columns: &SchemaRef) -> Vec<Lint> {
    let names: Vec<&str> = columns.fields().iter().map(|field| field.name().as_str()).collect();
    let unknown = sorted_by.iter().filter(|key| !names.contains(&key.expression.value.as_str()));
    let lint = |key: &SortKey| {
        let what = format!("there is no column `{}` to sort by", key.expression.value);
        let hint = millstream_core::hint::did_you_mean(&key.expression.value, "columns", &names);
        job.text.error(key.expression.span, what).hint(hint)
    };
    unknown.map(lint).collect()
}

/// `reader` with the format that its files' names say.
async fn with_named_format(reader: Arc<Reader>) -> Result<Arc<Reader>> {
    let Some(format) = naming::by_files(&reader).await? else { return Ok(reader) };
    let reader = Arc::try_unwrap(reader);
    let reader = reader.map_err(|_| Error::internal("the reader is in use before it is complete"))?;
    Ok(Arc::new(reader.with_format(format)))
}
