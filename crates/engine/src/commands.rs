//! The commands that look at a job without running it: load, check, explain, preview.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use datafusion::physical_plan::{ExecutionPlan, displayable};
use futures::StreamExt;
use millstream_core::reject::MaxRejects;
use millstream_core::spec::Size;
use millstream_core::{Error, Result};
use millstream_job::{Job, Lint, LoadOptions, Loaded};

use crate::failure::Failure;
use crate::machine::Machine;
use crate::options::Warn;
use crate::prepare::{Asked, Base, Reach, prepare, prepare_with_sinks};
use crate::rejects::{Entry, LeftOut};
use crate::{fault, ledgers, overlap, sql};

/// Variables for a job: those of the command line, then those of the environment.
pub struct Variables<'a> {
    /// The command line's.
    pub set: &'a BTreeMap<String, String>,
    /// The environment's.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
}

/// Loads the job file `text` that was read from `path`, with all lints that need no data. `running` makes a missing
/// secret an error.
pub fn load(path: &str, text: &str, variables: Variables<'_>, running: bool) -> Loaded {
    let options = LoadOptions {
        set: variables.set,
        environment: variables.environment,
        references: &|query| sql::references(query),
        running,
    };
    let mut loaded = millstream_job::load(path, text, &crate::registry(), &options);
    let job = loaded.job.as_ref().or(loaded.sound.as_ref());
    loaded.lints.extend(job.into_iter().flat_map(|job| overlap::lints(job).into_iter().chain(ledgers::lints(job))));
    millstream_job::lint::tidy(&mut loaded.lints);
    if loaded.lints.iter().any(Lint::is_error) {
        loaded.sound = loaded.job.take().or(loaded.sound);
    }
    loaded
}

/// What a check found out.
#[derive(Debug, Default)]
pub struct Checked {
    /// Sources and transforms whose columns could not be known offline.
    pub unknown: Vec<String>,
    /// What is strange and no error.
    pub warnings: Vec<Lint>,
}

/// Checks `job` as far as it can be checked without running it: columns of the sources, SQL, targets. Offline it asks
/// neither network nor database.
pub fn check(job: &Job, machine: Machine, offline: bool) -> Result<Checked, Failure> {
    let base = Base::new(machine)?;
    let reach = if offline { Reach::Offline } else { Reach::Online };
    base.runtimes.workers().block_on(async {
        let prepared = prepare_with_sinks(&base, job, reach, Asked::Check).await?;
        Failure::of(prepared.unopened())?;
        if prepared.unknown.is_empty() {
            ledgers::ways(job, &prepared.plan_sinks(job).await?)?;
        }
        Ok(Checked { unknown: prepared.unknown, warnings: prepared.warnings })
    })
}

/// How `job` would run: sources, plans, targets, memory. `warn` is told what is strange and no error.
pub fn explain(job: &Job, machine: Machine, warn: &Warn) -> Result<String, Failure> {
    let base = Base::new(machine)?;
    base.runtimes.workers().block_on(async {
        let prepared = prepare(&base, job, Reach::Online).await?;
        warn(&prepared.warnings);
        let physical = prepared.plan_sinks(job).await?;
        let mut text = String::new();
        let machine = &base.machine;
        let _ = writeln!(
            text,
            "machine: {} cores, {} of memory ({} for sorts, joins and reading ahead), scratch in {}",
            machine.cores,
            Size(machine.memory),
            Size(base.budget.limit() as u64),
            machine.scratch
        );
        for reader in &prepared.readers {
            let _ = write!(text, "\nsource {}: {}", reader.name, reader.format.name());
            let patterns: Vec<String> =
                reader.patterns.iter().map(|pattern| millstream_core::redact::url(pattern)).collect();
            let _ = writeln!(text, " from {}, {} at once", patterns.join(", "), reader.open_ahead());
            if let Some(columns) = prepared.columns(&reader.name) {
                let _ = writeln!(text, "  columns: {}", columns_text(&columns));
            }
            text.push_str(&left_out(&base, &Entry::Step(reader.name.clone()), "records that cannot be read"));
        }
        for step in &job.transforms {
            let told = left_out(&base, &Entry::Step(step.name.value.clone()), "rows that cannot be computed");
            if !told.is_empty() {
                let _ = write!(text, "\nstep {}:\n{told}", step.name.value);
            }
        }
        for tee in &physical.tees {
            let _ = writeln!(text, "\nstep {} has several users and runs once:", tee.name());
            plan_text(&mut text, tee.input());
        }
        let ways = ledgers::ways(job, &physical)?;
        for ((sink, root), way) in job.sinks.iter().zip(&physical.roots).zip(ways) {
            let _ = writeln!(text, "\nsink {}: {} {}", sink.name.value, sink.sink.name(), sink.sink.target());
            if let Some(columns) = prepared.sink_columns(sink) {
                for line in sink.sink.describe(columns).lines() {
                    let _ = writeln!(text, "  {line}");
                }
            }
            let visible = match way {
                Ok(_) => "chunk by chunk, each of them once: `run --resume` goes on with what is missing".to_owned(),
                Err(why) => format!("all at once, since {why}"),
            };
            let _ = writeln!(text, "  rows become visible {visible}");
            text.push_str(&left_out(&base, &Entry::Sink(sink.name.value.clone()), "rows that the table does not take"));
            plan_text(&mut text, &root.plan);
        }
        Ok(text)
    })
}

/// What an entry leaves out, in a line; nothing if the first such record ends the run.
fn left_out(base: &Base, entry: &Entry, what: &str) -> String {
    match base.rejects.of(entry).map(|limit| limit.most()) {
        Some(MaxRejects::Count(count)) => format!("  up to {count} {what} are left out\n"),
        Some(share) => format!("  up to {share} of all: {what} are left out\n"),
        None => String::new(),
    }
}

/// The plan without the nodes that say nothing: meters, and what only yields to other tasks now and then.
fn plan_text(text: &mut String, plan: &Arc<dyn ExecutionPlan>) {
    let mut meters: Vec<usize> = Vec::new();
    for line in displayable(plan.as_ref()).indent(false).to_string().lines() {
        let depth = line.len() - line.trim_start().len();
        meters.retain(|meter| *meter < depth);
        if ["MeterExec", "CooperativeExec"].contains(&line.trim()) {
            meters.push(depth);
            continue;
        }
        let _ = writeln!(text, "  {}{}", " ".repeat(depth - 2 * meters.len()), line.trim_start());
    }
}

/// Columns and their types in one line.
pub fn columns_text(schema: &Schema) -> String {
    let columns: Vec<String> = schema
        .fields()
        .iter()
        .map(|field| format!("{} {}", field.name(), millstream_format::columns::type_name(field.data_type())))
        .collect();
    columns.join(", ")
}

/// The first rows of a step.
#[derive(Debug)]
pub struct FirstRows {
    /// Its columns.
    pub schema: SchemaRef,
    /// The rows.
    pub batches: Vec<RecordBatch>,
    /// What was left out of what was read for them, since `max_rejects` allows it.
    pub left_out: Vec<LeftOut>,
}

/// The first `rows` rows of the step `name`; of what the first sink writes, if none is named. `warn` is told what is
/// strange and no error. As in a run, `max_rejects` says what may be left out; nothing is kept of it.
pub fn preview(
    job: &Job,
    name: Option<&str>,
    rows: usize,
    machine: Machine,
    warn: &Warn,
) -> Result<FirstRows, Failure> {
    let base = Base::new(machine)?;
    base.rejects.only_count();
    let _governor = base.govern()?;
    base.runtimes.workers().block_on(async {
        let prepared = prepare(&base, job, Reach::Online).await?;
        warn(&prepared.warnings);
        let name = match name.or_else(|| job.sinks.first().map(|sink| sink.from.value.as_str())) {
            Some(name) => name.to_owned(),
            None => return Err(Error::job("the job has no step to show").into()),
        };
        let physical = prepared.plan_first_rows(&name, rows).await?;
        let root = physical.roots.first().ok_or_else(|| Error::internal("the step has no plan"))?;
        let schema = root.plan.schema();
        let mut stream = datafusion::physical_plan::execute_stream(Arc::clone(&root.plan), base.session.task_ctx())
            .map_err(fault::unwrap)?;
        let mut batches = Vec::new();
        while let Some(batch) = stream.next().await {
            batches.push(batch.map_err(fault::unwrap)?);
        }
        Failure::of(prepared.unopened())?;
        Ok(FirstRows { schema, batches, left_out: base.rejects.left_out() })
    })
}
