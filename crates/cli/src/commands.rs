//! The commands: each turns arguments into one call of the library, and its result into text and an exit code.

use std::fmt::Write as _;
use std::sync::Arc;

use clap::CommandFactory;
use futures::executor::block_on;
use millstream::files::{Urls, without_job};
use millstream::parse::tidy;
use millstream::rejects::LeftOut;
use millstream::report::JobEntry;
use millstream::sequence::Handover;
use millstream::{Allow, Engine, Failure, Job, Outline, ParseOptions, Parsed, RunOptions};
use millstream::{Error, ErrorKind, Result};
use serde_json::{Value, json};

use crate::arguments::{self, Arguments, Command, Global};
use crate::exit_code::exit_code;
use crate::message;
use crate::output::Output;
use crate::rows::{Form, rows_as_json, rows_as_table, with_columns};
use crate::sequences;
use crate::shared::{
    Followed, engine, machine, parsed, refusal, refuse_not_allowed, refuse_two_outputs, sound_job, tell_done,
    tell_lints,
};
use crate::shares;
use crate::telemetry::Telemetry;

/// Runs a command and returns its exit code.
pub fn run(mut arguments: Arguments) -> u8 {
    arguments.global.set = arguments.command.variables().to_vec();
    arguments.global.set.extend(arguments.command.first_value());
    let global = &arguments.global;
    let output = Output::new(global);
    let done = match &arguments.command {
        Command::Run(run) => match run_file(global, output, run) {
            Ok(code) => return code,
            Err(failure) => Err(failure),
        },
        Command::Runs(runs) => crate::runs::show(global, output, runs),
        Command::Cancel(cancel) => crate::cancel::cancel(global, output, cancel),
        Command::Report(report) => crate::run_report::show(global, output, report),
        Command::Rejects(rejects) => crate::rejects::show(global, output, rejects),
        Command::Forget(forget) => crate::forget::forget(global, output, forget),
        Command::Check(check) => check_job(global, output, check),
        Command::Test(test) => match machine(global).and_then(|machine| crate::job_tests::run(machine, output, test)) {
            Ok(code) => return code,
            Err(failure) => Err(failure),
        },
        Command::Schedule(schedule) => match crate::schedule::run(global, output, schedule) {
            Ok(code) => return code,
            Err(failure) => Err(failure),
        },
        #[cfg(feature = "serve")]
        Command::Serve(serve) => crate::serve::serve(global, output, serve),
        #[cfg(feature = "serve")]
        Command::Access(access) => crate::access::change(global, output, &access.command),
        Command::Worker(worker) => crate::cluster::work(global, output, worker),
        Command::Cluster(cluster) => crate::cluster::change(global, output, &cluster.command),
        Command::Explain(asked) => explain(global, output, asked),
        Command::Preview(preview) => show_rows(global, output, preview),
        Command::Sql(sql) => query(global, output, sql),
        Command::Guess(guess) => guess_job(global, output, &guess.url),
        Command::Count(count) => count_lines(global, output, count),
        Command::Cat(urls) => cat(global, urls),
        Command::Completions { shell } => completions(output, *shell),
        Command::Man { folder } => man(output, folder.as_deref()),
        Command::Reference { of_machine, of_sequence } => {
            let reference = match (of_machine, of_sequence) {
                (true, _) => millstream::parse::machine_reference(),
                (_, true) => millstream::parse::sequence_reference(&millstream::component::registry()),
                _ => millstream::parse::reference(&millstream::component::registry()),
            };
            output.result(&reference).map_err(Failure::from)
        }
    };
    match done {
        Ok(()) => 0,
        Err(failure) => report_failure(output, &failure, |failure| failure),
    }
}

/// Shows why a command failed, and returns the exit code. `result` makes the JSON that is printed of lints and errors.
pub(crate) fn report_failure(output: Output, failure: &Failure, result: impl FnOnce(Value) -> Value) -> u8 {
    let Failure { lints, errors } = failure;
    // The reader of our output has closed it, which is no failure.
    if errors.iter().any(|error| error.kind() == ErrorKind::OutputClosed) {
        return ErrorKind::OutputClosed.exit_code();
    }
    output.message(&message::failure(output, failure));
    if output.json {
        let errors: Vec<Value> = errors.iter().map(millstream::report::error_json).collect();
        let _ = output.json(&result(json!({"lints": lints, "errors": errors})));
    }
    exit_code(failure)
}

fn run_file(global: &Global, output: Output, run: &arguments::Run) -> Result<u8, Failure> {
    let handed = sequences::handed(run.as_step.as_ref())?;
    let mut global = global.clone();
    global.set.extend(handed.iter().flat_map(|handed| handed.set.clone()));
    match handed.as_ref().and_then(|handed| handed.text(&run.job.path)) {
        Some(text) if millstream::sequence::is_sequence(text) => {}
        None if sequences::is_sequence(&run.job.path) => {}
        _ => return run_job(&global, output, run, handed.as_ref()),
    }
    if run.distributed.cluster.is_some() {
        let error = Error::job("`--cluster` is for jobs, and this is a sequence");
        return Err(error.hint("write `cluster` into the machine file: then its jobs are distributed").into());
    }
    sequences::run(&global, output, run, handed.as_ref())
}

fn run_job(global: &Global, output: Output, run: &arguments::Run, handed: Option<&Handover>) -> Result<u8, Failure> {
    refuse_options_of_sequences(run)?;
    if let Some(values) = &run.job.each.values {
        return crate::series::run(global, output, run, values);
    }
    let (engine, _memory) = shares::engine(machine(global)?, global, output, run)?;
    let job = match handed {
        Some(handed) => handed_job(global, &engine, output, &run.job.path, handed)?,
        None => sound_job(global, &engine, output, &run.job.path, true)?,
    };
    refuse_not_allowed(run.only_allowed, &job.around.allow, &global.set)?;
    shares::prefer(job.around.priority.nice());
    refuse_two_outputs(output, &job)?;
    let cluster = crate::cluster::options(engine.machine(), &run.distributed)?;
    let telemetry = Telemetry::begin(output, run.metrics.as_deref(), &engine)?;
    let followed = Followed::new(output)?;
    let observed = telemetry.run(&job);
    let ended = followed.follow(&observed, || {
        let options = RunOptions {
            resume: run.resume,
            restart: run.restarts(),
            accept_changed: run.accept_changed,
            variables: Some(global.set.clone()),
            now: handed.map(|handed| handed.moment),
            of_step: handed.map(Handover::of_step),
            cluster: cluster.clone(),
            cancel: followed.cancel(),
            ..observed.options()
        };
        engine.start(job, options)
    });
    observed.end(ended.as_ref().map(Some));
    telemetry.end();
    ended.and_then(|done| Ok(tell_done(output, &done, run.verbose)?)).map(|()| 0)
}

/// What only sequences can do.
fn refuse_options_of_sequences(run: &arguments::Run) -> Result<()> {
    let step = run.restarted_steps().first().map(|_| "--restart=STEP");
    let options =
        [run.from.as_ref().map(|_| "--from"), run.only.first().map(|_| "--only"), run.dry_run.then_some("--dry-run")];
    match step.into_iter().chain(options.into_iter().flatten()).next() {
        Some(option) => {
            let error = Error::job(format!("`{option}` is for sequences, and this is a job"));
            Err(error.hint("a sequence is a file with `steps:`; `millstream explain JOB` shows how a job would run"))
        }
        None if run.resume && run.restarts() => {
            Err(Error::job("`--resume` and `--restart` exclude each other").hint("leave one of them out"))
        }
        None => Ok(()),
    }
}

/// The job that a sequence has handed over: as it was when the sequence began.
fn handed_job(
    global: &Global,
    engine: &Engine,
    output: Output,
    path: &str,
    handed: &Handover,
) -> Result<Arc<Job>, Failure> {
    let set = global.set.iter().cloned().collect();
    let options = ParseOptions { set, needs_secrets: true, now: Some(handed.moment) };
    let Parsed { job, warnings } = match handed.text(path) {
        Some(text) => block_on(engine.parse_job(path, text, &options))?,
        None => block_on(engine.read_job(path, &options))?,
    };
    tell_lints(output, &warnings);
    Ok(job)
}

fn check_job(global: &Global, output: Output, check: &arguments::Check) -> Result<(), Failure> {
    if check.schema {
        let schema = millstream::parse::schema(&millstream::component::registry());
        let text = serde_json::to_string_pretty(&schema)
            .map_err(|cause| Error::internal("the schema cannot be written as JSON").cause(cause))?;
        return Ok(output.result(&format!("{text}\n"))?);
    }
    let path = check.path.as_deref().unwrap_or_default();
    if sequences::is_sequence(path) {
        return sequences::check(global, output, check, path);
    }
    let engine = engine(global)?;
    if check.outline {
        let options = ParseOptions { set: global.set.iter().cloned().collect(), ..ParseOptions::default() };
        let Outline { lints, entries, allow } = engine.outline(path, &options)?;
        let refusal = allow.as_ref().map(|allow| refusal(check.only_allowed, allow, &global.set));
        let allow = allow.as_ref().map(Allow::names).unwrap_or_default();
        let known = json!({"lints": lints, "errors": [], "entries": entries, "allow": allow, "refusal": refusal});
        return Ok(output.json(&known)?);
    }
    let Parsed { job, warnings: mut lints } = parsed(global, &engine, path, false)?;
    let checked = match block_on(engine.check(Arc::clone(&job), check.offline)) {
        Ok(checked) => checked,
        Err(mut failure) => {
            failure.lints.extend(lints);
            tidy(&mut failure.lints);
            return Err(failure);
        }
    };
    lints.extend(checked.warnings);
    tidy(&mut lints);
    if output.json {
        let (unknown, entries, allow) = (checked.unknown, JobEntry::all_of(&job), job.around.allow.names());
        let known = json!({"lints": lints, "errors": [], "unknown": unknown, "entries": entries, "allow": allow});
        return Ok(output.json(&known)?);
    }
    tell_lints(output, &lints);
    if !checked.unknown.is_empty() {
        let names = checked.unknown.join(", ");
        output.chat(&format!("not checked offline, because their columns are not known: {names}\n"));
    }
    output.chat(&format!("{} can run\n", job.path()));
    output.chat(&left_out(&job));
    Ok(())
}

/// How many rejects the entries of a job allow; empty if the first bad record ends the run.
fn left_out(job: &Job) -> String {
    let sources = job.sources.iter().map(|source| (source.name.value.clone(), source.max_rejects));
    let steps = job.transforms.iter().map(|step| (step.name.value.clone(), step.max_rejects));
    let sinks = job.sinks.iter().map(|sink| (format!("the sink {}", sink.name.value), sink.max_rejects));
    let all = sources.chain(steps).chain(sinks).filter(|(_, most)| most.allows_some());
    let told: Vec<String> = all.map(|(entry, most)| format!("{most} at {entry}")).collect();
    match told.is_empty() {
        true => String::new(),
        false => format!("records that may be left out: {}\n", told.join(", ")),
    }
}

fn explain(global: &Global, output: Output, asked: &arguments::Explain) -> Result<(), Failure> {
    let path = &asked.job.path;
    if sequences::is_sequence(path) {
        return sequences::explain(global, output, path);
    }
    let engine = engine(global)?;
    let job = sound_job(global, &engine, output, path, false)?;
    let plan = block_on(engine.plan(Arc::clone(&job)))?;
    tell_lints(output, plan.warnings());
    let distributed = match crate::cluster::options(engine.machine(), &asked.distributed)? {
        Some(options) => Some(block_on(engine.distribution(job, options.shared))?),
        None => None,
    };
    if output.json {
        let mut json = serde_json::to_value(plan.explain()).unwrap_or_default();
        if let Some(distributed) = &distributed {
            json["cluster"] = json!(distributed);
        }
        output.json(&json)?;
    } else {
        let shown = distributed.as_ref().map(crate::explain::distribution).unwrap_or_default();
        output.result(&format!("{}{shown}", crate::explain::explanation(plan.explain())))?;
    }
    match distributed.and_then(|distributed| distributed.here) {
        Some(why) if asked.distributed.cluster == Some(arguments::WhenDistributed::Always) => {
            Err(Error::refused("the workers of a cluster cannot run this job").cause(why).into())
        }
        _ => Ok(()),
    }
}

fn show_rows(global: &Global, output: Output, preview: &arguments::Preview) -> Result<(), Failure> {
    let engine = engine(global)?;
    let job = sound_job(global, &engine, output, &preview.path, true)?;
    let shown = block_on(engine.preview(job, preview.step.clone(), preview.rows))?;
    tell_lints(output, &shown.warnings);
    let text = match output.json {
        true if preview.with_columns => return Ok(output.json(&with_columns(&shown)?)?),
        true => rows_as_json(&shown.batches)?,
        false => rows_as_table(&shown.schema, &shown.batches)?,
    };
    output.result(&text)?;
    for LeftOut { entry, count, first } in &shown.left_out {
        let records = if *count == 1 { "record" } else { "records" };
        output.chat(&format!("{count} {records} left out by {entry}:\n"));
        first.iter().for_each(|line| output.chat(&format!("  {line}\n")));
        output.chat(if *count > first.len() as u64 { "  …\n" } else { "" });
    }
    Ok(())
}

fn query(global: &Global, output: Output, sql: &arguments::Sql) -> Result<(), Failure> {
    let form = Form::of(output, sql)?;
    let engine = engine(global)?;
    let query = block_on(engine.query(&sql.query))?;
    tell_lints(output, query.warnings());
    block_on(query.rows()).and_then(|rows| form.show(output, &engine, rows)).map_err(all_without_job)
}

fn guess_job(global: &Global, output: Output, url: &str) -> Result<(), Failure> {
    let job = block_on(engine(global)?.guess(url.to_owned())).map_err(all_without_job)?;
    match output.json {
        true => output.json(&json!({"job": job}))?,
        false => output.result(&job)?,
    }
    Ok(())
}

fn urls(urls: &arguments::Urls) -> Urls {
    Urls { patterns: urls.urls.clone(), members: urls.members.clone() }
}

fn all_without_job(failure: Failure) -> Failure {
    Failure { errors: failure.errors.into_iter().map(without_job).collect(), ..failure }
}

fn count_lines(global: &Global, output: Output, count: &arguments::Count) -> Result<(), Failure> {
    let (engine, urls) = (engine(global)?, urls(&count.urls));
    // What is counted with a machine file that has a cluster is rarely worth one.
    let asked = count.distributed.cluster.is_some();
    let counted = match crate::cluster::options(engine.machine(), &count.distributed)?.filter(|_| asked) {
        None => block_on(engine.count(urls, count.by_unit)),
        Some(options) => {
            let tell = move |event| crate::shared::tell_of_cluster(output, &event);
            block_on(engine.count_in_cluster(urls, count.by_unit, options, tell))
        }
    };
    let mut counts = counted.map_err(all_without_job)?;
    counts.units.sort_by(|a, b| a.unit.cmp(&b.unit));
    let lines = counts.lines;
    if output.json {
        let units: Vec<Value> = counts.units.iter().map(|one| json!({"unit": one.unit, "lines": one.lines})).collect();
        let value = match count.by_unit {
            true => json!({"lines": lines, "units": units}),
            false => json!({"lines": lines}),
        };
        return Ok(output.json(&value)?);
    }
    if !count.by_unit {
        return Ok(output.result(&format!("{lines}\n"))?);
    }
    let mut text = String::new();
    for one in &counts.units {
        let _ = writeln!(text, "{}\t{}", one.lines, one.unit);
    }
    Ok(output.result(&text)?)
}

fn cat(global: &Global, arguments: &arguments::Urls) -> Result<(), Failure> {
    block_on(engine(global)?.cat(urls(arguments), std::io::stdout())).map_err(all_without_job)
}

fn completions(output: Output, shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "millstream", &mut text);
    Ok(output.result(&String::from_utf8_lossy(&text))?)
}

fn man(output: Output, folder: Option<&std::path::Path>) -> Result<(), Failure> {
    if let Some(folder) = folder {
        let failed = |cause: std::io::Error| {
            Error::io(format!("the man pages cannot be written to {}", folder.display()), &cause)
        };
        fs_err::create_dir_all(folder).map_err(failed)?;
        return Ok(clap_mangen::generate_to(Arguments::command(), folder).map_err(failed)?);
    }
    let mut text = Vec::new();
    clap_mangen::Man::new(Arguments::command())
        .render(&mut text)
        .map_err(|cause| Error::io("the man page cannot be written", &cause))?;
    Ok(output.result(&String::from_utf8_lossy(&text))?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_reference_in_the_docs_is_that_of_the_specs() {
        let written = include_str!("../../../docs/reference/job-file.md");
        let generated = millstream::parse::reference(&millstream::component::registry());
        assert!(written == generated, "docs/reference/job-file.md is out of date: run `make reference`");
    }

    #[test]
    fn the_reference_of_the_machine_file_is_that_of_its_specs() {
        let written = include_str!("../../../docs/reference/machine-file.md");
        assert!(
            written == millstream::parse::machine_reference(),
            "docs/reference/machine-file.md is out of date: run `make reference`"
        );
    }

    #[test]
    fn the_reference_of_sequences_is_that_of_their_specs() {
        let written = include_str!("../../../docs/reference/sequence-file.md");
        let generated = millstream::parse::sequence_reference(&millstream::component::registry());
        assert!(written == generated, "docs/reference/sequence-file.md is out of date: run `make reference`");
    }

    #[test]
    fn the_job_in_the_readme_is_that_of_the_example() {
        let job = include_str!("../../../examples/geonames/job.yaml");
        let entries = job.lines().skip_while(|line| line.starts_with('#')).collect::<Vec<_>>().join("\n");
        assert!(include_str!("../../../README.md").contains(&entries), "README.md shows another job");
    }
}
