//! `millstream rejects`: the rejects of a run, by reason, or each of them.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use millstream::history::{RunHistory, RunRecord};
use millstream::rejects::Rejected;
use millstream::rejects::Replayed;
use millstream::rejects::{self, Kept};
use millstream::{Engine, Failure, Job, RunOptions};
use millstream::{Error, Result};
use millstream_page::rejects::{EXAMPLES, Example, Reason, by_reason};
use serde_json::{Value, json};

use crate::arguments::{Global, Rejects};
use crate::human;
use crate::output::{Output, Role};
use crate::runs::{LOOKED_AT, unknown};
use crate::shared::{Followed, engine, refuse_not_allowed, sound_job};
use crate::telemetry::Telemetry;

/// How many examples of a reason are printed as JSON.
const REASON_EXAMPLES: usize = 10;

/// Shows the rejects, or replays them.
pub fn show(global: &Global, output: Output, asked: &Rejects) -> Result<(), Failure> {
    let history = crate::runs::history(global)?;
    let run = find(&history, &asked.run)?;
    if asked.by_reason && !output.json {
        return Err(Error::job("`--by-reason` goes with `--json`")
            .hint("without it, they are shown by reason as well")
            .into());
    }
    let passes = passes(&history, &run)?;
    if asked.replay {
        let telemetry = |engine: &Engine| Telemetry::begin(output, asked.metrics.as_deref(), engine);
        return replay(global, output, history.folder(), &run, &passes, asked.only_allowed, telemetry);
    }
    let kept: Vec<Vec<Kept>> =
        passes.iter().map(|pass| rejects::of_run(history.folder(), &pass.logical)).collect::<Result<_>>()?;
    let kept = kept.concat();
    if output.json && asked.by_reason {
        return Ok(output.json(&reasons(&run, &kept))?);
    }
    if output.json {
        return Ok(output.json(&json!({"run": run.run, "job": run.job, "rejects": kept}))?);
    }
    Ok(output.result(&described(output, &run, &kept))?)
}

/// The reasons of rejects with their counts and a few examples.
fn reasons(run: &RunRecord, kept: &[Kept]) -> Value {
    let (waiting, replayed): (Vec<&Kept>, Vec<&Kept>) = kept.iter().partition(|kept| !kept.replayed);
    let example = |kept: &&Kept| {
        let Example { what, record } = Example::of(&kept.line.rejected);
        json!({"what": what, "record": record})
    };
    let reason = |reason: &Reason<'_>| {
        let examples: Vec<Value> = reason.rejects.iter().take(REASON_EXAMPLES).map(example).collect();
        json!({
            "step": reason.step, "kind": reason.kind.name(), "column": reason.column, "count": reason.rejects.len(),
            "examples": examples,
        })
    };
    let reasons: Vec<Value> = by_reason(&waiting).iter().map(reason).collect();
    json!({
        "run": run.run, "waiting": waiting.len(), "replayed": replayed.len(), "reasons": reasons,
        "can_be_replayed": waiting.iter().any(|kept| kept.line.rejected.source.is_some()),
    })
}

/// `run`, and before it the runs by which the same command has let sinks catch up.
fn passes(history: &RunHistory, run: &RunRecord) -> Result<Vec<RunRecord>> {
    let names = run.report.as_ref().and_then(|report| report["catch_up_runs"].as_array()).into_iter().flatten();
    let mut passes = Vec::new();
    for name in names.filter_map(Value::as_str) {
        passes.extend(history.find(name)?);
    }
    passes.push(run.clone());
    Ok(passes)
}

/// `job` with the sinks to which the rows of `pass` went: if it has let sinks catch up, only these.
fn of_pass(job: &Arc<Job>, pass: &RunRecord) -> Arc<Job> {
    let report = pass.report.as_ref().filter(|report| report["caught_up"] == true);
    let Some(results) = report.and_then(|report| report["results"].as_array()) else { return Arc::clone(job) };
    let mut job = Job::clone(job);
    job.sinks.retain(|sink| results.iter().any(|result| result["sink"] == sink.name.value.as_str()));
    Arc::new(job)
}

/// Replays the rejects of `run`, those of all its `passes`, with the current job.
fn replay(
    global: &Global,
    output: Output,
    folder: &Path,
    run: &RunRecord,
    passes: &[RunRecord],
    only_allowed: bool,
    telemetry: impl FnOnce(&Engine) -> Result<Telemetry>,
) -> Result<(), Failure> {
    let mut global = global.clone();
    let of_run = run.variables.lines().filter_map(|line| line.split_once('='));
    let of_run: Vec<_> = of_run.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let variables = of_run.clone();
    let given = global.set.clone();
    // The current variables override those of the run.
    global.set = of_run.into_iter().chain(global.set).collect();
    let engine = engine(&global)?;
    let job = sound_job(&global, &engine, output, &run.job, true)?;
    refuse_not_allowed(only_allowed, &job.around.allow, &given)?;
    let telemetry = telemetry(&engine)?;
    let followed = Followed::new(output)?;
    let replay = |pass: &RunRecord| {
        let job = of_pass(&job, pass);
        let observed = telemetry.replay(&job);
        let replayed = followed.follow(&observed, || {
            let (variables, cancel) = (Some(variables.clone()), followed.cancel());
            let options = RunOptions { variables, cancel, ..observed.options() };
            engine.replay(job, folder.to_owned(), pass.logical.clone(), options)
        });
        observed.end(replayed.as_ref().map(|_| None));
        replayed
    };
    let replayed: Result<Vec<Replayed>, Failure> = passes.iter().map(replay).collect();
    telemetry.end();
    let mut done = Replayed::default();
    replayed?.into_iter().for_each(|pass| add(&mut done, pass));
    match output.json {
        true => output.json(&json!({"run": run.run, "job": run.job, "replayed": done}))?,
        false => output.result(&summary(run, &done))?,
    }
    Ok(())
}

/// Adds `pass` to what replays have come to so far.
fn add(done: &mut Replayed, pass: Replayed) {
    done.loaded += pass.loaded;
    done.failed += pass.failed;
    for (why, count) in pass.impossible {
        *done.impossible.entry(why).or_default() += count;
    }
}

/// The summary of a replay.
fn summary(run: &RunRecord, done: &Replayed) -> String {
    let counted = |count: u64| match count {
        1 => "1 reject".to_owned(),
        count => format!("{} rejects", human::count(count)),
    };
    if *done == Replayed::default() {
        return format!("run {} has no rejects to replay\n", run.run);
    }
    let mut text = format!("{} of run {} loaded", counted(done.loaded), run.run);
    if done.failed > 0 {
        let were = if done.failed == 1 { "was" } else { "were" };
        let failed = human::count(done.failed);
        let _ = write!(text, ", {failed} failed again and {were} kept: millstream rejects {}", run.run);
    }
    text.push('\n');
    for (why, count) in &done.impossible {
        let _ = writeln!(text, "  {} cannot be loaded again: {why}", counted(*count));
    }
    text
}

/// The run of that name, or the last one for `last`.
fn find(history: &RunHistory, name: &str) -> Result<RunRecord> {
    let named = history.find(name)?;
    let found = if name == "last" { history.list(None, 1)?.pop() } else { named };
    if let Some(run) = found {
        return Ok(run);
    }
    let runs = history.list(None, LOOKED_AT)?;
    Err(if runs.is_empty() { Error::job("there are no runs yet") } else { unknown(name, &runs) })
}

fn described(output: Output, run: &RunRecord, kept: &[Kept]) -> String {
    let (waiting, replayed): (Vec<&Kept>, Vec<&Kept>) = kept.iter().partition(|kept| !kept.replayed);
    let loaded = match replayed.len() {
        0 => String::new(),
        count => format!("; {} more {} loaded later", human::count(count as u64), was(count)),
    };
    let mut text = match waiting.len() {
        0 => format!("run {} of {} rejected nothing{loaded}\n", run.run, run.job),
        count => format!(
            "run {} of {}: {} {} rejected{loaded}\n",
            run.run,
            run.job,
            human::count(count as u64),
            if count == 1 { "record was" } else { "records were" }
        ),
    };
    if waiting.is_empty() {
        return text;
    }
    for Reason { step, kind, column, rejects } in by_reason(&waiting) {
        let column = column.map_or(String::new(), |column| format!(", column {column}"));
        let reason = output.paint(Role::Strong, kind.name());
        let _ = writeln!(text, "\n{} × {reason}, by {step}{column}", human::count(rejects.len() as u64));
        for kept in rejects.iter().take(EXAMPLES) {
            text.push_str(&example(&kept.line.rejected));
        }
        if rejects.len() > EXAMPLES {
            text.push_str("  …\n");
        }
    }
    let may_be_replayed = waiting.iter().any(|kept| kept.line.rejected.source.is_some());
    let replay = match may_be_replayed {
        true => format!("; `millstream rejects {} --replay` loads them once the job is fixed", run.run),
        false => String::new(),
    };
    let _ = writeln!(
        text,
        "\n{} `millstream rejects {} --json` lists them all with their records{replay}",
        output.paint(Role::Hint, "hint:"),
        run.run
    );
    text
}

fn was(count: usize) -> &'static str {
    if count == 1 { "was" } else { "were" }
}

fn example(rejected: &Rejected) -> String {
    let Example { what, record } = Example::of(rejected);
    let record = record.map_or_else(String::new, |record| format!("    {record}\n"));
    format!("  {what}\n{record}")
}

#[cfg(test)]
mod tests {
    use millstream::history::{Outcome, RunKind};
    use millstream::rejects::{RawText, RejectKind, line};

    use super::*;

    const PLAIN: Output = Output { colors: false, json: false, quiet: false };

    fn run() -> RunRecord {
        RunRecord {
            run: "2-2".to_owned(),
            logical: "2-2".to_owned(),
            job: "/a.yaml".to_owned(),
            variables: String::new(),
            fingerprint: None,
            process: 1,
            began: 0,
            ended: None,
            outcome: Outcome::Done,
            message: None,
            rows_read: 0,
            rows_written: 0,
            rows_rejected: 0,
            units: 0,
            predicted: json!({}),
            report: None,
            program: None,
            moment: None,
            series: None,
            kind: RunKind::Job,
            of_step: None,
            status: None,
        }
    }

    fn kept(number: u64, column: &str, replayed: bool) -> Kept {
        let rejected = Rejected {
            step: "places".to_owned(),
            kind: RejectKind::Value,
            message: "the value is not an int64: `x`".to_owned(),
            column: Some(column.to_owned()),
            source: Some("places".to_owned()),
            sink: None,
            uri: Some("a.csv".to_owned()),
            member: None,
            line: Some(number),
            id: None,
            last_line: None,
            byte: Some(0),
            raw: Some(RawText::new(b"x,caf\xe9")),
            row: None,
        };
        Kept { id: format!("2-2/{number}"), line: line(rejected, None), replayed, noted_by: None }
    }

    #[test]
    fn rejects_are_shown_by_reason_with_a_few_examples() {
        let all = [kept(1, "id", false), kept(2, "n", false), kept(3, "n", false), kept(4, "n", true)];
        let text = described(PLAIN, &run(), &all);
        let expected = "run 2-2 of /a.yaml: 3 records were rejected; 1 more was loaded later\n\n\
                        2 × value, by places, column n\n\
                        \x20 a.csv, line 2: the value is not an int64: `x`\n    x,caf\\xe9\n\
                        \x20 a.csv, line 3: the value is not an int64: `x`\n    x,caf\\xe9\n\n\
                        1 × value, by places, column id\n\
                        \x20 a.csv, line 1: the value is not an int64: `x`\n    x,caf\\xe9\n";
        assert!(text.starts_with(expected), "{text}");
        assert_eq!(described(PLAIN, &run(), &[]), "run 2-2 of /a.yaml rejected nothing\n");
        assert!(text.contains("`millstream rejects 2-2 --replay` loads them once the job is fixed"), "{text}");
        let mut unknown = kept(1, "id", false);
        unknown.line.rejected = Rejected { source: None, line: None, raw: None, ..unknown.line.rejected };
        let text = described(PLAIN, &run(), &[unknown]);
        assert!(text.ends_with("hint: `millstream rejects 2-2 --json` lists them all with their records\n"), "{text}");
        let later = described(PLAIN, &run(), &[kept(4, "n", true)]);
        assert_eq!(later, "run 2-2 of /a.yaml rejected nothing; 1 more was loaded later\n");
    }
}
