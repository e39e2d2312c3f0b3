//! How a job would run, as data: the command line renders it, programs read it.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::physical_plan::{ExecutionPlan, displayable};
use millstream_job::Around;
use millstream_job::around::{Hook, Requirement, RetryRun};
use serde::{Deserialize, Serialize};

use crate::planner_names::PlannerNames;

/// How a job would run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// What the run may use.
    pub machine: MachineSummary,
    /// The sources, in file order.
    pub sources: Vec<SourceSummary>,
    /// The transforms, in file order.
    pub transforms: Vec<TransformSummary>,
    /// Steps that several others read and that run once.
    pub shared: Vec<SharedStep>,
    /// The sinks, in file order.
    pub sinks: Vec<SinkSummary>,
    /// What applies to its runs as a whole.
    #[serde(default)]
    pub runs: RunsSummary,
}

/// What applies to the runs of a job as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunsSummary {
    /// When the logical run would begin, in the time zone of the job: what its dates are computed of.
    pub began: String,
    /// The dates in the job file: the inside of `${…}`, and its value.
    pub dates: BTreeMap<String, String>,
    /// What has to hold before a logical run begins, in words.
    pub require: Vec<String>,
    /// How often a run that fails resumes itself, in words, if it does.
    pub retry: Option<String>,
    /// How much its sources may read, in words, if that is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttle: Option<String>,
    /// The hours of the day in which it runs, if it does not always run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hours: Option<String>,
    /// The priority of its processes, if it is not that of most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<String>,
    /// What is done after a run that succeeds.
    pub on_success: Vec<String>,
    /// What is done after one that does not.
    pub on_failure: Vec<String>,
}

impl RunsSummary {
    /// What `around` says.
    pub fn of(around: &Around) -> Self {
        let retry = |RetryRun { count, wait }: RetryRun| match count {
            1 => format!("once, after {}", String::from(wait)),
            count => format!("{count} times, after {}", String::from(wait)),
        };
        let hooks = |hooks: &[Hook]| hooks.iter().map(|hook| hook.action.name()).collect();
        RunsSummary {
            began: around.moment.text(),
            dates: around.dates.clone(),
            require: around.requirements.iter().map(Requirement::in_words).collect(),
            retry: around.retry_run.map(retry),
            throttle: around.throttle.in_words(),
            priority: around.priority.in_words().map(str::to_owned),
            hours: around.hours.map(|hours| format!("{hours} ({})", around.moment.zone())),
            on_success: hooks(&around.on_success),
            on_failure: hooks(&around.on_failure),
        }
    }
}

/// What a run may use.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineSummary {
    /// Workers.
    pub cores: usize,
    /// The memory budget, in bytes.
    pub memory_bytes: u64,
    /// Of it what sorts, joins and reading ahead share, in bytes.
    pub pool_bytes: u64,
    /// Where what does not fit in memory is written, and how.
    pub scratch: String,
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnSummary {
    /// Its name.
    pub name: String,
    /// Its type, as a job file declares it.
    #[serde(rename = "type")]
    pub kind: String,
}

/// A source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceSummary {
    /// The entry's name.
    pub name: String,
    /// The format.
    pub format: String,
    /// The patterns, without passwords.
    pub read: Vec<String>,
    /// The most units of one server that are opened at once.
    pub connections: usize,
    /// The columns of its rows.
    pub columns: Vec<ColumnSummary>,
    /// What its records must contain to be parsed, if that is said: `all of "a", "b"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contains: Option<String>,
    /// Which of its rows a run reads, if it is incremental by the time in a column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
    /// How many records it may reject, if it may reject any: `100`, or `1%` of all.
    pub max_rejects: Option<String>,
}

/// A transform.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransformSummary {
    /// The entry's name.
    pub name: String,
    /// The columns of its rows.
    pub columns: Vec<ColumnSummary>,
    /// How many rows it may reject, if it may reject any: `100`, or `1%` of all.
    pub max_rejects: Option<String>,
    /// The processes that compute it, if there are some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersSummary>,
}

/// The processes of a transform.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkersSummary {
    /// What they run: `python`, `command`.
    pub kind: String,
    /// How many there are at most.
    pub count: usize,
    /// How much memory each may take, in bytes. That of all is kept for them.
    pub memory_bytes: Option<u64>,
}

/// A step that several others read and that runs once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedStep {
    /// The entry's name.
    pub name: String,
    /// Its operators.
    pub plan: Vec<Operator>,
}

/// When rows of a sink become visible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Visibility {
    /// Chunk by chunk, each of them once: a run that fails can be resumed.
    ByChunk,
    /// Epoch by epoch, as the rows of a queue come; how often each, and why.
    ByEpoch(String),
    /// As they come, before the load is committed.
    Early,
    /// All at the end of the run, for the reason given.
    AtOnce(String),
}

/// A sink.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SinkSummary {
    /// The entry's name.
    pub name: String,
    /// The kind of sink: `sqlite`.
    pub kind: String,
    /// The target, without passwords.
    pub target: String,
    /// What the sink does there, a line each.
    pub details: Vec<String>,
    /// When its rows become visible.
    pub visibility: Visibility,
    /// How many rows the target may refuse, if it may refuse any: `100`, or `1%` of all.
    pub max_rejects: Option<String>,
    /// The operators that give its rows.
    pub plan: Vec<Operator>,
}

/// An operator of a plan. A plan lists its operators from the last to the first; each stands before its inputs, which
/// are one deeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operator {
    /// How many operators are between this one and the end.
    pub depth: usize,
    /// What it does, such as `SortExec: expr=[n@0 ASC]`. For people: it changes between versions.
    pub text: String,
}

/// The columns of `schema`.
pub fn columns(schema: &Schema) -> Vec<ColumnSummary> {
    let column = |field: &Arc<arrow::datatypes::Field>| ColumnSummary {
        name: field.name().clone(),
        kind: millstream_core::columns::type_name(field.data_type()),
    };
    schema.fields().iter().map(column).collect()
}

/// The operators of `plan` without those that say nothing: meters, and what only yields to other tasks now and then.
pub fn operators(plan: &Arc<dyn ExecutionPlan>) -> Vec<Operator> {
    let (mut operators, mut silent): (Vec<Operator>, Vec<usize>) = Default::default();
    let names = PlannerNames::of(plan);
    for line in displayable(plan.as_ref()).indent(false).to_string().lines() {
        let depth = (line.len() - line.trim_start().len()) / 2;
        silent.retain(|above| *above < depth);
        if ["MeterExec", "CooperativeExec"].contains(&line.trim()) {
            silent.push(depth);
            continue;
        }
        operators.push(Operator { depth: depth - silent.len(), text: names.in_text(line.trim_start()).into_owned() });
    }
    operators
}
