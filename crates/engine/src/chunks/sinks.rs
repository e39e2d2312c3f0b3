//! Which sinks of a job are loaded chunk by chunk, and what incremental sources require of them.

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use millstream_core::{Error, Result};
use millstream_job::entries::IncrementalBy;
use millstream_job::{CheckSeverity, Job, Lint, OnChange, SinkStep, SourceStep};

use super::additive::additive;
use super::pipeline::{Pipeline, repeatable};
use super::reload::URI;
use crate::plan::shared::{Physical, Root};

/// The pipelines to a sink that is loaded chunk by chunk; otherwise why it is loaded all at once, in words that end a
/// sentence.
pub type ByChunk = Result<Vec<Pipeline>, String>;

/// How a sink is loaded, and the plan of its rows.
type Planned<'a> = (&'a ByChunk, &'a Arc<dyn ExecutionPlan>);

/// Which sinks of `job` are loaded chunk by chunk, in their order.
pub fn by_chunk(job: &Job, physical: &Physical) -> Result<Vec<ByChunk>> {
    let failing = job.checks().find(|(_, check)| check.severity == CheckSeverity::Fail);
    let alone = |(sink, root): (&SinkStep, &Root)| match (sink.sink.may_keep_ledger(), failing) {
        (true, None) => repeatable(&root.plan),
        (true, Some((entry, _))) => Err(format!("a check of `{entry}` may fail the run before it publishes anything")),
        (false, _) => Err("its target or its settings require it".to_owned()),
    };
    let mut by_chunk: Vec<ByChunk> = job.sinks.iter().zip(&physical.roots).map(alone).collect();
    let targets: Vec<String> = job.sinks.iter().map(|sink| sink.sink.target()).collect();
    not_beside_others(&targets, by_chunk.iter_mut());
    let plans = physical.roots.iter().map(|root| &root.plan);
    check_incremental(job, by_chunk.iter().zip(plans))?;
    Ok(by_chunk)
}

/// The pipelines to `sink` if its rows, which become visible all at once, are staged chunk by chunk: so a run that
/// resumes another one stages only the rest. `plan` gives its rows.
///
/// Of a step that takes rows in batches it is not known in which order its rows have come.
pub fn staged(job: &Job, sink: &SinkStep, plan: &Arc<dyn ExecutionPlan>) -> Option<Vec<Pipeline>> {
    if !sink.sink.may_stage_chunks() || incremental_sources(job, sink).next().is_some() {
        return None;
    }
    repeatable(plan).ok().filter(|pipelines| !pipelines.iter().any(Pipeline::takes_batches))
}

/// Refuses incremental sources whose rows go to sinks that cannot know which files they have; `planned` are the sinks
/// of `job`.
fn check_incremental<'a>(job: &Job, planned: impl Iterator<Item = Planned<'a>>) -> Result<()> {
    job.sinks.iter().zip(planned).try_for_each(|(sink, planned)| check_incremental_sink(job, sink, planned))
}

/// Loads all at once what goes into a target that another sink loads all at once: while the transaction of that one is
/// open, there may be no other.
pub fn not_beside_others<'a>(targets: &[String], by_chunk: impl Iterator<Item = &'a mut ByChunk>) {
    let by_chunk: Vec<&mut ByChunk> = by_chunk.collect();
    let is_at_once = |(target, by_chunk): (&String, &&mut ByChunk)| by_chunk.is_err().then(|| target.clone());
    let at_once: Vec<String> = targets.iter().zip(&by_chunk).filter_map(is_at_once).collect();
    for (target, by_chunk) in targets.iter().zip(by_chunk) {
        if by_chunk.is_ok() && at_once.contains(target) {
            *by_chunk = Err("another sink loads into the same place at once".to_owned());
        }
    }
}

/// Refuses an incremental source whose rows go to a sink that does not know which files it has.
fn check_incremental_sink(job: &Job, sink: &SinkStep, planned: Planned<'_>) -> Result<()> {
    let (by_chunk, plan) = planned;
    let Some(source) = incremental_sources(job, sink).next() else { return Ok(()) };
    let why = match by_chunk {
        Err(_) if sink.sink.may_note_units() => additive(plan).err(),
        Err(why) => Some(why.clone()),
        Ok(pipelines) => {
            let other = pipelines.iter().find(|pipeline| !pipeline.read().reader().incremental);
            other.map(|other| format!("`{}` is not incremental", other.read().source()))
        }
    };
    match why {
        Some(why) => Err(Error::job(not_incremental(source, sink)).cause(why).hint(INCREMENTAL_HINT)),
        None => {
            by_chunk.iter().flatten().try_for_each(|pipeline| check_reload(pipeline, sink))?;
            if by_chunk.is_err() { check_at_once(job, sink) } else { Ok(()) }
        }
    }
}

/// Refuses what a load all at once does not do for the files of incremental sources.
fn check_at_once(job: &Job, sink: &SinkStep) -> Result<()> {
    let mut incremental = incremental_sources(job, sink);
    let Some(source) = incremental.find(|source| source.on_change == OnChange::Reload) else { return Ok(()) };
    let what = format!("`on_change: reload` of `{}` needs sinks that are loaded file by file", source.name.value);
    let cause = format!("`{}` is loaded all at once", sink.name.value);
    Err(Error::job(what)
        .cause(cause)
        .hint("load the source row by row into tables with `mode: append`, or write `on_change: skip` or `fail`"))
}

/// Refuses to reload files whose rows come to a sink without the column that tells the file.
fn check_reload(pipeline: &Pipeline, sink: &SinkStep) -> Result<()> {
    let read = pipeline.read();
    if read.reader().on_change != OnChange::Reload || pipeline.columns().index_of(URI).is_ok() {
        return Ok(());
    }
    let what = format!(
        "`{}` reloads files that have changed, and the rows of `{}` have no column `{URI}`",
        read.source(),
        sink.name.value
    );
    Err(Error::job(what).hint(format!("hand on `{URI}` unchanged to the table, by which the rows of a file are found")))
}

/// Lints of sinks that cannot replace the rows of files.
fn reload_lints(job: &Job) -> Vec<Lint> {
    let mut lints = Vec::new();
    for sink in &job.sinks {
        let is_reload = |source: &&SourceStep| source.on_change == OnChange::Reload;
        let Some(source) = incremental_sources(job, sink).find(is_reload) else { continue };
        let what = format!("`{}` reloads files that have changed", source.name.value);
        if sink.max_rejects.allows_some() {
            let what = format!("{what}, and `{}` may leave out rows that its table refuses", sink.name.value);
            let hint = "leave out `max_rejects` at the sink: all rows of such a file have to go into the table";
            lints.push(job.text.error(sink.name.span, what).hint(hint));
        }
        let writes = sink.sink.writes();
        let other = job
            .sinks
            .iter()
            .find(|other| other.name.value != sink.name.value && !writes.is_empty() && other.sink.writes() == writes);
        if let Some(other) = other {
            let what = format!("{what}, and `{}` writes to the same table as `{}`", other.name.value, sink.name.value);
            let hint =
                "write to different tables: rows of one file could not be distinguished from those of the other sink";
            lints.push(job.text.error(sink.name.span, what).hint(hint));
        }
    }
    lints
}

/// Lints of sinks that want different rows of a source: those that add rows want each once, and late; those that merge
/// them want the latest, and some of them again.
fn mode_lints(job: &Job) -> Vec<Lint> {
    let timed = job.sources.iter().filter(|source| source.incremental_by.is_some());
    let lint = |source: &SourceStep| {
        let takes = |sink: &&SinkStep| job.gives_rows_of(&sink.from.value, &source.name.value);
        let (adding, merging): (Vec<_>, Vec<_>) =
            job.sinks.iter().filter(takes).partition(|sink| sink.sink.adds_rows());
        let (adds, merges) = (adding.first()?, merging.first()?);
        let what = format!(
            "`{}` is incremental, and its rows are appended by `{}` and merged by `{}`",
            source.name.value, adds.name.value, merges.name.value
        );
        let hint = "read it by two sources, one for each: appended rows are read once, a lag after they were written";
        Some(job.text.error(merges.name.span, what).hint(hint))
    };
    timed.filter_map(lint).collect()
}

/// Which rows a run reads of the source `name`, which tells them as `by` says.
pub fn window_in_words(job: &Job, name: &str, by: &IncrementalBy) -> String {
    let takes = |sink: &&SinkStep| job.gives_rows_of(&sink.from.value, name);
    let IncrementalBy { by, lag } = by;
    match job.sinks.iter().filter(takes).any(|sink| sink.sink.adds_rows()) {
        true => format!("rows with {by} from where the last run stopped to {lag} before now, by the database's clock"),
        false => format!("rows with {by} from {lag} before the last run on, by the database's clock"),
    }
}

/// The incremental sources whose rows go to `sink`.
pub fn incremental_sources<'a>(job: &'a Job, sink: &'a SinkStep) -> impl Iterator<Item = &'a SourceStep> {
    let is_used = |source: &&SourceStep| job.gives_rows_of(&sink.from.value, &source.name.value);
    job.sources.iter().filter(|source| source.incremental).filter(is_used)
}

fn not_incremental(source: &SourceStep, sink: &SinkStep) -> String {
    let (source_name, sink) = (&source.name.value, &sink.name.value);
    match source.incremental_by {
        Some(_) => format!("`{source_name}` is incremental, and `{sink}` cannot note which of its rows it has"),
        None => format!("`{source_name}` is incremental, and `{sink}` cannot be loaded file by file"),
    }
}

const INCREMENTAL_HINT: &str = "write its rows, changed row by row or joined with other entries, into a table with \
                                `mode: append`, `merge` or `ignore`, or into files with `mode: append` or \
                                `partitions`; or leave out `incremental`";

/// Whether a sink can note up to which time it has rows. Files of rows that are read again could only be replaced as a
/// whole.
fn may_note_marks(sink: &SinkStep) -> bool {
    sink.sink.may_note_units() && (sink.settings.get("table").is_some() || sink.sink.adds_rows())
}

/// The mode of a sink that compares its table with all rows.
fn mode_of_all_rows(sink: &SinkStep) -> Option<&str> {
    sink.settings.get("mode").and_then(|mode| mode.as_str()).filter(|mode| ["sync", "history"].contains(mode))
}

fn needs_all_rows(job: &Job, source: &SourceStep, sink: &SinkStep, mode: &str) -> Lint {
    let what = format!(
        "`mode: {mode}` of `{}` needs all rows in each run, and `{}` is incremental: it gives only new ones",
        sink.name.value, source.name.value
    );
    let hint = format!(
        "leave out `incremental`: `mode: {mode}` compares the whole table with all rows of the source; `mode: merge` \
         takes new and changed rows only, and removes none"
    );
    job.text.error(source.name.span, what).hint(hint)
}

/// Lints of incremental sources that the settings of a job rule out, whatever its plan: because the sink has no ledger,
/// or the rows of the source have no files.
pub fn lints(job: &Job) -> Vec<Lint> {
    let mut lints = Vec::new();
    for sink in &job.sinks {
        for source in incremental_sources(job, sink) {
            let reads_rows = source.inputs.iter().filter(|(entry, _)| entry.rows).flat_map(|(entry, _)| entry.schemes);
            let reads_rows: Vec<&str> = reads_rows.copied().collect();
            let scheme = |pattern: &str| pattern.split_once(':').map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
            let of_rows = source.read.iter().any(|read| reads_rows.contains(&scheme(&read.value).as_str()));
            if let Some(mode) = mode_of_all_rows(sink) {
                lints.push(needs_all_rows(job, source, sink, mode));
                continue;
            }
            let hint = if of_rows && source.incremental_by.is_none() {
                "a database has no files: name the column that has the time of a row's last change, `incremental: {by: \
                 updated_at}`, or leave out `incremental`"
                    .to_owned()
            } else if let Some(what) = source.reads_once() {
                format!("{what} has no files, and cannot be read again; leave out `incremental`")
            } else if source.incremental_by.is_some() && !may_note_marks(sink) {
                "write its rows into a table with `mode: append`, `merge` or `ignore`, or into files with `mode: \
                 append`"
                    .to_owned()
            } else if !sink.sink.may_keep_ledger() && !sink.sink.may_note_units() {
                let what = if source.incremental_by.is_some() { "rows" } else { "files" };
                format!("this target cannot note which {what} it has; {INCREMENTAL_HINT}")
            } else {
                continue;
            };
            lints.push(job.text.error(source.name.span, not_incremental(source, sink)).hint(hint));
        }
    }
    let looked_up = |source: &&SourceStep| {
        let is_read = |sink: &SinkStep| job.reads(&sink.from.value, &source.name.value);
        let is_given = |sink: &SinkStep| job.gives_rows_of(&sink.from.value, &source.name.value);
        source.incremental && job.sinks.iter().any(|sink| is_read(sink) && !is_given(sink))
    };
    for source in job.sources.iter().filter(looked_up) {
        let what =
            format!("`{}` is incremental, and is looked up in, for which it is read as a whole", source.name.value);
        lints.push(job.text.error(source.name.span, what).hint("leave out `incremental`"));
    }
    lints.extend(reload_lints(job));
    lints.extend(mode_lints(job));
    lints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_not_loaded_chunk_by_chunk_beside_a_load_all_at_once() {
        let why = "a sort needs all rows".to_owned();
        let beside = "another sink loads into the same place at once".to_owned();
        let targets = ["a", "a", "b", "a"].map(str::to_owned);
        let mut by_chunk: Vec<ByChunk> = vec![Ok(Vec::new()), Err(why.clone()), Ok(Vec::new()), Ok(Vec::new())];
        not_beside_others(&targets, by_chunk.iter_mut());
        let reasons: Vec<Option<String>> = by_chunk.into_iter().map(Result::err).collect();
        assert_eq!(reasons, [Some(beside.clone()), Some(why), None, Some(beside)]);
    }
}
