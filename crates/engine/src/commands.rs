//! Looking at jobs and files without running anything: plan, preview, guess, count, cat.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use millstream_core::Result;
use millstream_job::{Job, Lint, LoadOptions, Loaded};
use serde_json::Value;

use crate::chunks::pipeline::Pipeline;
use crate::chunks::queue_plan::QueuePlan;
use crate::chunks::sinks;
use crate::context::RunContext;
use crate::engine::Engine;
use crate::explain::{
    Explanation, MachineSummary, RunsSummary, SharedStep, SinkSummary, SourceSummary, TransformSummary, Visibility,
    WorkersSummary, columns, operators,
};
use crate::failure::Failure;
use crate::first_rows::first_rows;
use crate::job_plan::{JobPlan, KnownSources, WrittenPlan};
use crate::parse::now;
use crate::prepare::{Prepared, Reach, prepare};
use crate::rejects::{Entry, LeftOut};
use crate::urls::{Counts, Urls};
use crate::{guess, sql, urls};

/// The first rows of a step.
#[derive(Debug)]
pub struct FirstRows {
    /// Its columns.
    pub schema: SchemaRef,
    /// The rows.
    pub batches: Vec<RecordBatch>,
    /// What was left out of what was read for them, since `max_rejects` allows it.
    pub left_out: Vec<LeftOut>,
    /// What is strange about the job and no error.
    pub warnings: Vec<Lint>,
}

impl Engine {
    /// Looks at the sources of `job` and plans its steps. Targets are not asked: see [`Engine::check`].
    pub async fn plan(&self, job: Arc<Job>) -> Result<JobPlan, Failure> {
        self.with_looking_context(async move |context: &RunContext| {
            let prepared = prepare(context, &job, None, Reach::Online).await?;
            match explanation(context, &job, &prepared).await {
                Ok(explanation) => Ok(job_plan(job, prepared, explanation)),
                Err(failure) => Err(failure.beside(prepared.warnings)),
            }
        })
        .await
    }

    /// The plan that [`JobPlan::to_json`] wrote, perhaps on another machine.
    ///
    /// # Errors
    /// If `json` is no plan, or one of a newer version; if this engine lacks a component or a secret that the job
    /// names.
    pub fn restore(&self, json: &Value) -> Result<JobPlan, Failure> {
        let written = WrittenPlan::read(json)?;
        let options = LoadOptions {
            set: &written.variables,
            environment: &|name| std::env::var(name).ok(),
            only_set: true,
            references: &|query| sql::references(query),
            running: true,
            replace: None,
            now: written.now.unwrap_or_else(now),
        };
        let Loaded { job, lints, .. } = self.parse_with(&written.path, &written.text, &options);
        match job {
            Some(job) => Ok(written.plan(job, lints)?),
            None => Err(Failure { lints, errors: Vec::new() }),
        }
    }

    /// The first `rows` rows of the step `name`; of what the first sink writes, if none is named. As in a run,
    /// `max_rejects` says what may be left out; nothing is kept of it.
    pub async fn preview(&self, job: Arc<Job>, name: Option<String>, rows: usize) -> Result<FirstRows, Failure> {
        self.with_context(async move |context: &RunContext| {
            context.rejects.only_count();
            let _governing = context.govern()?;
            let prepared = prepare(context, &job, None, Reach::Online).await?;
            match first_rows(context, &job, &prepared, name, rows).await {
                Ok((schema, batches)) => {
                    let (left_out, warnings) = (context.rejects.left_out(), prepared.warnings);
                    Ok(FirstRows { schema, batches, left_out, warnings })
                }
                Err(failure) => Err(failure.beside(prepared.warnings)),
            }
        })
        .await
    }

    /// A job file that reads `url` (a path, glob, URL or list) and prints its rows.
    pub async fn guess(&self, url: String) -> Result<String, Failure> {
        self.with_context(async move |context: &RunContext| Ok(guess::guess(context, &url).await?)).await
    }

    /// Counts the lines of all units; `by_unit` keeps those of each.
    pub async fn count(&self, urls: Urls, by_unit: bool) -> Result<Counts, Failure> {
        self.with_context(async move |context: &RunContext| urls::count(context, &urls, by_unit).await).await
    }

    /// Writes the decoded bytes of all units to `output`, in the order of the listing.
    pub async fn cat(&self, urls: Urls, output: impl Write + Send + 'static) -> Result<(), Failure> {
        self.with_context(async move |context: &RunContext| urls::cat(context, &urls, output).await).await
    }
}

fn job_plan(job: Arc<Job>, prepared: Prepared<'_>, explanation: Explanation) -> JobPlan {
    let entry = |name: &str| Some((name.to_owned(), prepared.columns(name)?));
    let columns: BTreeMap<_, _> = prepared.step_names().into_iter().filter_map(entry).collect();
    let mut known = KnownSources::default();
    for reader in &prepared.readers {
        known.columns.extend(prepared.source_columns(&reader.name).map(|columns| (reader.name.clone(), columns)));
        known.consumed.extend(reader.opened.consumed());
    }
    JobPlan { job, sources: Arc::new(known), columns, warnings: prepared.warnings, explanation }
}

/// How `job` would run: sources, plans, targets, memory.
async fn explanation(context: &RunContext, job: &Job, prepared: &Prepared<'_>) -> Result<Explanation, Failure> {
    let physical = prepared.plan_sinks(job).await?;
    let machine = context.machine();
    let max_rejects = |entry: Entry| context.rejects.of(&entry).map(|limit| limit.most().to_string());
    let of_step = |name: &str| max_rejects(Entry::Step(name.to_owned()));
    let columns_of = |name: &str| prepared.columns(name).map_or_else(Vec::new, |schema| columns(&schema));
    let sources = prepared.readers.iter().map(|reader| SourceSummary {
        name: reader.name.clone(),
        format: reader.format.name().to_owned(),
        read: reader.patterns.iter().map(|pattern| millstream_core::redact::url(pattern)).collect(),
        connections: reader.open_ahead(),
        columns: columns_of(&reader.name),
        contains: (!reader.contains.is_empty()).then(|| reader.contains.to_string()),
        window: reader.incremental_by.as_ref().map(|by| sinks::window_in_words(job, &reader.name, by)),
        max_rejects: of_step(&reader.name),
    });
    let transforms = job.transforms.iter().map(|step| TransformSummary {
        name: step.name.value.clone(),
        columns: columns_of(&step.name.value),
        max_rejects: of_step(&step.name.value),
        workers: prepared.pool(&step.name.value).map(|pool| WorkersSummary {
            kind: pool.name().to_owned(),
            count: pool.size(),
            memory_bytes: pool.rules().memory,
        }),
    });
    let shared = physical
        .shared_scans
        .iter()
        .map(|shared| SharedStep { name: shared.name().to_owned(), plan: operators(shared.input()) });
    let by_epoch = QueuePlan::new(job, &physical)?.map(|plan| plan.sinks).unwrap_or_default();
    let mut by_epoch = by_epoch.into_iter().map(|(_, guarantee)| Visibility::ByEpoch(guarantee.to_string()));
    let by_chunk = sinks::by_chunk(job, &physical)?;
    let sinks =
        job.sinks.iter().zip(&physical.roots).zip(by_chunk).map(|((sink, root), by_chunk)| {
            let details = prepared.sink_columns(sink).map(|columns| sink.sink.describe(columns)).unwrap_or_default();
            let mut details: Vec<String> = details.lines().map(str::to_owned).collect();
            let promising: Vec<&str> = by_chunk.iter().flatten().flat_map(Pipeline::promising).collect();
            details.extend(promising.into_iter().collect::<BTreeSet<_>>().into_iter().map(|step| {
                format!("its chunks can be computed again, since `{step}` promises `deterministic: true`")
            }));
            if by_chunk.is_err() && sinks::staged(job, sink, &root.plan).is_some() {
                details.push("a run that stops leaves what it has staged, and `--resume` stages the rest".to_owned());
            }
            SinkSummary {
                name: sink.name.value.clone(),
                kind: sink.sink.name().to_owned(),
                target: sink.sink.target(),
                details,
                visibility: by_epoch.next().unwrap_or_else(|| match by_chunk {
                    Ok(_) => Visibility::ByChunk,
                    Err(_) if sink.sink.shows_rows_early() => Visibility::Early,
                    Err(why) => Visibility::AtOnce(why),
                }),
                max_rejects: max_rejects(Entry::Sink(sink.name.value.clone())),
                plan: operators(&root.plan),
            }
        });
    // What workers hold that are started to look at their code is not what they will hold.
    let pool_bytes = (context.budget.limit_with_outside() as u64).saturating_sub(context.threads.processes().kept());
    Ok(Explanation {
        machine: MachineSummary {
            cores: machine.cores,
            memory_bytes: machine.memory,
            pool_bytes,
            scratch: machine.scratch.to_string(),
        },
        sources: sources.collect(),
        transforms: transforms.collect(),
        shared: shared.collect(),
        sinks: sinks.collect(),
        runs: RunsSummary::of(&job.around),
    })
}
