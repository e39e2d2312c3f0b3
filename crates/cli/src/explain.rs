//! Renders explanations.

use std::fmt::Write as _;

use millstream::cluster::Distribution;
use millstream::explain::{ColumnSummary, Explanation, Operator, RunsSummary, Visibility, WorkersSummary};
use millstream::text::Size;

/// How a job would run, as text.
pub fn explanation(explanation: &Explanation) -> String {
    let Explanation { machine, sources, transforms, shared, sinks, runs: around } = explanation;
    let mut text = format!(
        "machine: {} cores, {} of memory ({} for sorts, joins and reading ahead), scratch in {}\n",
        machine.cores,
        Size(machine.memory_bytes),
        Size(machine.pool_bytes),
        machine.scratch
    );
    for source in sources {
        let _ = write!(text, "\nsource {}: {} from {}, ", source.name, source.format, source.read.join(", "));
        let _ = writeln!(text, "{} at once\n  columns: {}", source.connections, columns(&source.columns));
        if let Some(contains) = &source.contains {
            let _ = writeln!(text, "  only records that contain {contains} are parsed");
        }
        if let Some(window) = &source.window {
            let _ = writeln!(text, "  a run reads {window}");
        }
        text.push_str(&left_out(source.max_rejects.as_deref(), "records that cannot be read"));
    }
    for transform in transforms {
        let workers = transform.workers.as_ref().map(workers).unwrap_or_default();
        let left_out = left_out(transform.max_rejects.as_deref(), "rows that cannot be computed");
        if !workers.is_empty() || !left_out.is_empty() {
            let _ = write!(text, "\nstep {}:\n{workers}{left_out}", transform.name);
        }
    }
    for step in shared {
        let _ = writeln!(text, "\nstep {} has several consumers and runs once:", step.name);
        text.push_str(&plan(&step.plan));
    }
    for sink in sinks {
        let _ = writeln!(text, "\nsink {}: {} {}", sink.name, sink.kind, sink.target);
        sink.details.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
        let visible = match &sink.visibility {
            Visibility::ByChunk => "chunk by chunk, each exactly once: `run --resume` loads what is missing".to_owned(),
            Visibility::ByEpoch(guarantee) => format!("epoch by epoch, {guarantee}"),
            Visibility::Early => "as they come; a run that begins again writes them again".to_owned(),
            Visibility::AtOnce(why) => format!("all at once, since {why}"),
        };
        let _ = writeln!(text, "  rows become visible {visible}");
        text.push_str(&left_out(sink.max_rejects.as_deref(), "rows that the table refuses"));
        text.push_str(&plan(&sink.plan));
    }
    text.push_str(&runs(around));
    text
}

/// What the workers of a cluster would do, as text.
pub fn distribution(distribution: &Distribution) -> String {
    let Distribution { read, written, here } = distribution;
    match here {
        Some(why) => format!("\ncluster: all of it runs on this machine: {why}\n"),
        None => format!(
            "\ncluster: workers read {}, and write into {}\n  this machine lists the files, keeps what is rejected, \
             counts, and ends the run\n",
            read.join(", "),
            written.join(", ")
        ),
    }
}

/// What applies to the runs of the job; empty if nothing does.
fn runs(runs: &RunsSummary) -> String {
    let mut lines: Vec<String> = runs.dates.iter().map(|(date, value)| format!("${{{date}}} is {value}")).collect();
    lines.extend(runs.require.iter().map(|require| format!("requires that {require}")));
    lines.extend(runs.retry.iter().map(|retry| format!("resumes itself {retry}, if it fails")));
    lines.extend(runs.throttle.iter().map(|throttle| format!("its sources have at most {throttle}")));
    lines.extend(
        runs.hours.iter().map(|hours| format!("runs at {hours}; when that is over, it waits for the next day")),
    );
    lines.extend(runs.priority.iter().map(|priority| format!("runs with {priority} priority")));
    lines.extend(runs.on_success.iter().map(|hook| format!("on success: {hook}")));
    lines.extend(runs.on_failure.iter().map(|hook| format!("on failure: {hook}")));
    let lines: Vec<String> = lines.iter().map(|line| format!("  {line}\n")).collect();
    if lines.is_empty() { String::new() } else { format!("\na run:\n{}", lines.concat()) }
}

/// The processes of a step, in a line.
fn workers(workers: &WorkersSummary) -> String {
    let WorkersSummary { kind, count, memory_bytes } = workers;
    let processes = if *count == 1 { "process" } else { "processes" };
    match memory_bytes {
        Some(each) => {
            let all = Size(each.saturating_mul(*count as u64));
            format!("  {count} {kind} {processes} of up to {}: {all} of the memory are kept for them\n", Size(*each))
        }
        None => format!("  {count} {kind} {processes}: what they hold is taken from the memory\n"),
    }
}

/// How many rejects an entry allows, in a line; empty if the first one ends the run.
fn left_out(most: Option<&str>, what: &str) -> String {
    match most {
        Some(share) if share.ends_with('%') => format!("  up to {share} of all: {what} are left out\n"),
        Some(count) => format!("  up to {count} {what} are left out\n"),
        None => String::new(),
    }
}

fn columns(columns: &[ColumnSummary]) -> String {
    columns.iter().map(|column| format!("{} {}", column.name, column.kind)).collect::<Vec<_>>().join(", ")
}

fn plan(operators: &[Operator]) -> String {
    operators.iter().map(|operator| format!("  {}{}\n", "  ".repeat(operator.depth), operator.text)).collect()
}
