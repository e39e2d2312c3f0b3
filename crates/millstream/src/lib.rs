//! Millstream as a library.
//!
//! Millstream runs batch jobs: it reads many compressed files from anywhere, turns them into rows, transforms and sorts
//! them, and loads them into databases or files, within a memory budget, with every row loaded exactly once. This crate
//! is what the command line is made of, for programs that want to do the same.
//!
//! Three types do nearly everything:
//!
//! - an [`Engine`] is what all runs of a process share: the components, the machine, one memory budget;
//! - a [`JobPlan`] is a checked job: its graph, the columns of all entries, how it would run;
//! - a [`Run`] is a job that runs: a stream of [`Event`]s, a way to cancel it, a [`Report`](report::Report) at its end.
//!
//! # Run a job file
//!
//! ```no_run
//! use millstream::{Engine, Event, ParseOptions, RunOptions};
//!
//! # async fn run() -> Result<(), millstream::Failure> {
//! let engine = Engine::builder().build()?;
//! let parsed = engine.read_job("job.yaml", &ParseOptions::default()).await?;
//! let mut run = engine.start(parsed.job, RunOptions { resume: true, ..RunOptions::default() })?;
//! while let Some(event) = run.next_event().await {
//!     if let Event::Progress(progress) = event {
//!         println!("{} rows read", progress.totals.rows_read);
//!     }
//! }
//! let report = run.finish().await?;
//! println!("{} rows written; {}", report.rows_written, report.verdict.sentence);
//! # Ok(())
//! # }
//! ```
//!
//! # Build a job in code
//!
//! What code builds is a job file too, which can be read, compared and kept.
//!
//! ```
//! use millstream::{Engine, JobBuilder, RunOptions};
//! use serde_json::json;
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let (input, output) = (folder.path().join("in.csv"), folder.path().join("out.jsonl"));
//! # std::fs::write(&input, "city,people\nOslo,717710\nBergen,291940\n").unwrap();
//! # let runtime = tokio::runtime::Runtime::new().unwrap();
//! # runtime.block_on(async {
//! let job = JobBuilder::new()
//!     .source("cities", json!({"read": input, "csv": {"columns": {"city": "utf8", "people": "int64"}}}))
//!     .transform("large", json!({"filter": {"from": "cities", "where": "people > 500000"}}))
//!     .sink("result", json!({"from": "large", "write": output}));
//! println!("{job}");
//!
//! let engine = Engine::builder().build()?;
//! # let asked = millstream::machine::Asked { state: Some(folder.path().to_owned()), ..Default::default() };
//! # let engine = Engine::builder().machine(millstream::machine::Machine::detect(asked)?).build()?;
//! let job = job.build(&engine).await?;
//! let report = engine.start(job, RunOptions::default())?.finish().await?;
//! assert_eq!((report.rows_read, report.rows_written), (2, 1));
//! # assert_eq!(std::fs::read_to_string(&output).unwrap(), "{\"city\":\"Oslo\",\"people\":717710}\n");
//! # Ok::<_, millstream::Failure>(())
//! # }).unwrap();
//! ```
//!
//! # Read any source as a stream of Arrow batches
//!
//! ```
//! use futures::TryStreamExt;
//! use millstream::{Engine, JobBuilder};
//! use serde_json::json;
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let input = folder.path().join("in.csv");
//! # std::fs::write(&input, "city,people\nOslo,717710\nBergen,291940\n").unwrap();
//! # let runtime = tokio::runtime::Runtime::new().unwrap();
//! # runtime.block_on(async {
//! let engine = Engine::builder().build()?;
//! let mut rows = JobBuilder::read(&engine, json!({"read": input})).await?;
//! assert_eq!(rows.schema().field(1).name(), "people");
//! let mut count = 0;
//! while let Some(batch) = rows.try_next().await? {
//!     count += batch.num_rows();
//! }
//! assert_eq!(count, 2);
//! # Ok::<_, millstream::Failure>(())
//! # }).unwrap();
//! ```
//!
//! # Add a SQL function
//!
//! An engine takes any scalar function of DataFusion: see [`EngineBuilder::function`] and [`sql`].
//!
//! # Add a source, a sink or a format
//!
//! A component is a struct of settings (a [`component::Spec`]), an implementation of [`component::Source`],
//! [`component::Sink`] or [`component::Format`], and an entry in the [`component::Registry`]. The example crate
//! `examples/components` of the repository has one of each.
//!
//! # Threads, memory and other runtimes
//!
//! Everything works inside of any async runtime, and outside of all: runs have threads of their own. Unless
//! [`EngineBuilder::own_process`] says that the process is the engine's, the memory budget counts what the engine
//! reserves, and nothing else of the process is touched: no signal handlers, no limits, no environment.

pub mod component;
mod job_builder;
pub mod machine;
pub mod parse;
pub mod sql;

pub use job_builder::JobBuilder;
pub use millstream_core::{Error, ErrorKind, Result};
pub use millstream_engine::options::{Cancel, RunOptions};
pub use millstream_engine::run::{Event, Run, Running};
pub use millstream_engine::{
    Checked, Engine, EngineBuilder, Failure, JobPlan, Outline, ParseOptions, Parsed, Query, RowStream, Runnable,
};
pub use millstream_job::around::Allow;
pub use millstream_job::{Job, Lint, LintCode, Severity};

/// The guide's page about the library, whose examples are tested with the documentation.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/library.md")]
struct Guide;

/// How a job would run, as data.
pub mod explain {
    pub use millstream_engine::explain::{
        ColumnSummary, Explanation, MachineSummary, Operator, RunsSummary, SharedStep, SinkSummary, SourceSummary,
        TransformSummary, Visibility, WorkersSummary,
    };
}

/// What a run reports, while it lasts and at its end.
pub mod report {
    pub use millstream_core::queue::Lag;
    pub use millstream_core::sink::Removed;
    pub use millstream_core::step::{LookupSnapshot, StepSnapshot, WorkSnapshot};
    pub use millstream_core::{Step, StepKind};
    pub use millstream_engine::failure::error_json;
    pub use millstream_engine::report::{
        CheckResult, ClusterReport, DisposedFiles, EpochCounts, HookResult, Interval, LeftFile, LeftFiles,
        MissingColumn, Phase, Progress, QueueProgress, ReloadedFiles, Report, SinkResult, Skipped, Tally, TimePoint,
        Totals, UnmatchedPatterns, WindowRead, WorkedRows, WorkerReport,
    };
    pub use millstream_engine::stages::{Stage, StageKind};
    pub use millstream_engine::verdict::{Limit, Verdict};
    pub use millstream_job::{CheckSeverity, EntryKind, JobEntry};
}

/// Many machines: runs whose units workers read.
pub mod cluster {
    pub use millstream_cluster::{Identity, Parted};
    pub use millstream_engine::options::ClusterOptions;
    pub use millstream_engine::run::cluster::{Distribution, EngineWork};
    pub use millstream_job::around::Hours;
    pub use millstream_job::machine::{ClusterKeys, Distribute};
}

/// Sequences: files with steps, which run jobs and other things in order.
pub mod sequence {
    pub use millstream_job::sequence::{Sequence, Step, StepState};
    pub use millstream_sequencer::{
        Asked, Ending, Event, Handover, Item, Outcome, Page, Part, Progress, ReadOptions, ReadSequence, RunOptions,
        Seen, SequenceReport, StepProgress, chain, check, dry_run, is_sequence, kind_and_what, log_of_part, mistakes,
        moment, next_message, read, read_text, run, when,
    };
}

/// The run history: the runs so far, in a state folder.
pub mod history {
    pub use millstream_state::occurrences::Occurrence;
    pub use millstream_state::{
        CancelFile, JobKey, KnownJob, MemoryShare, Occurrences, OfStep, Outcome, PoolPlace, QueueStatus, RunFilter,
        RunHistory, RunKind, RunNumbers, RunRecord, RunStatus, WaitingRun, Wanted, default_folder, memory_taken,
        places_taken,
    };
}

/// What runs have left out since it is not sound, and how it is loaded later.
pub mod rejects {
    pub use millstream_core::RejectKind;
    pub use millstream_core::reject::{MaxRejects, RawText, Rejected, place_of};
    pub use millstream_engine::rejects::{LeftOut, line};
    pub use millstream_engine::replay::Replayed;
    pub use millstream_state::rejects::{Kept, RejectLine, has_kept, of_run};
}

/// What sinks have loaded of incremental sources, and are to load again.
pub mod forget {
    pub use millstream_engine::forget::{
        ForgetOptions, Forgotten, ForgottenBy, ForgottenFile, ForgottenRows, LoadedRows,
    };
}

/// Tests of jobs: small inputs in place of a job's sources, and the rows that are expected of it.
pub mod testing {
    pub use millstream_engine::testing::compare::{ColumnDifference, Difference, Row};
    pub use millstream_engine::testing::{TestFault, TestFile, TestResult, is_test_file, tests_of};
    pub use millstream_job::test_file::schema;
}

/// Files without a job: guess one, count lines, print text.
pub mod files {
    pub use millstream_engine::commands::FirstRows;
    pub use millstream_engine::fault::without_job;
    pub use millstream_engine::urls::{Counts, UnitCount, Urls};
}

/// Types of columns: their names in a job file, and which of them leave Millstream.
pub mod types {
    pub use millstream_core::types::{type_name, without_views};
}

/// Helpers for messages.
pub mod text {
    pub use millstream_core::counts::{counted, duration, grouped, grouped_in};
    pub use millstream_core::error::printable;
    pub use millstream_core::hint::did_you_mean;
    pub use millstream_core::redact::{SHOWN as HIDDEN, is_secret, url as redacted};
    pub use millstream_core::spec::Size;
    pub use millstream_engine::parse::unreadable;
}
