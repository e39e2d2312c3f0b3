//! The commands: each turns arguments into one call of the library, and its result into text and an exit code.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use clap::CommandFactory;
use futures::executor::block_on;
use millstream::files::{Urls, without_job};
use millstream::machine::{Asked, Machine};
use millstream::parse::tidy;
use millstream::rejects::LeftOut;
use millstream::report::Report;
use millstream::text::unreadable;
use millstream::{Cancel, Engine, Event, Failure, Job, Lint, ParseOptions, Parsed, RunOptions, Running};
use millstream::{Error, ErrorKind, Result};
use serde_json::{Value, json};

use crate::arguments::{self, Arguments, Command, Global};
use crate::output::Output;
use crate::progress::Display;
use crate::rows::{Form, rows_as_json, rows_as_table};
use crate::{allocator, human, interrupt, message, report};

/// The exit code for a job file or arguments that are wrong.
const WRONG: u8 = 2;

/// Runs a command and returns its exit code.
pub fn run(mut arguments: Arguments) -> u8 {
    arguments.global.set = arguments.command.variables().to_vec();
    arguments.global.set.extend(arguments.command.first_value());
    let global = &arguments.global;
    let output = Output::new(global);
    let done = match &arguments.command {
        Command::Run(run) => run_job(global, output, run),
        Command::Runs(runs) => crate::runs::show(global, output, runs),
        Command::Rejects(rejects) => crate::rejects::show(global, output, rejects),
        Command::Check(check) => check_job(global, output, check),
        Command::Explain(job) => explain(global, output, &job.path),
        Command::Preview(preview) => show_rows(global, output, preview),
        Command::Sql(sql) => query(global, output, sql),
        Command::Guess(guess) => guess_job(global, output, &guess.url),
        Command::Count(count) => count_lines(global, output, count),
        Command::Cat(urls) => cat(global, urls),
        Command::Completions { shell } => completions(output, *shell),
        Command::Man { folder } => man(output, folder.as_deref()),
        Command::Reference { of_machine } => {
            let reference = match of_machine {
                true => millstream::parse::machine_reference(),
                false => millstream::parse::reference(&millstream::component::registry()),
            };
            output.result(&reference).map_err(Failure::from)
        }
    };
    match done {
        Ok(()) => 0,
        Err(failure) => report_failure(output, &failure),
    }
}

/// Shows why a command failed, and returns the exit code.
fn report_failure(output: Output, failure: &Failure) -> u8 {
    let Failure { lints, errors } = failure;
    // The reader of our output has closed it, which is no failure.
    if errors.iter().any(|error| error.kind() == ErrorKind::OutputClosed) {
        return ErrorKind::OutputClosed.exit_code();
    }
    output.message(&message::failure(output, failure));
    if output.json {
        let errors: Vec<Value> = errors.iter().map(millstream::report::error_json).collect();
        let _ = output.json(&json!({"lints": lints, "errors": errors}));
    }
    match errors.first() {
        _ if lints.iter().any(Lint::is_error) => WRONG,
        Some(error) => error.kind().exit_code(),
        None => WRONG,
    }
}

fn tell_lints(output: Output, lints: &[Lint]) {
    output.message(&message::lints(output, lints));
}

/// The machine by its file, or as detected.
pub fn machine(global: &Global) -> Result<Machine, Failure> {
    let (cores, memory) = (global.cores, global.memory.map(|size| size.0));
    let asked = Asked { cores, memory, scratch: global.scratch.clone(), state: global.state.clone() };
    match &global.machine {
        Some(path) => machine_of(path, global.node.clone(), asked, "`--machine` and MILLSTREAM_MACHINE name it"),
        None => Ok(Machine::detect(asked)?),
    }
}

/// The machine that the file at `path` describes for `node`, or for this host. `named` says in a hint what names the
/// file.
///
/// # Errors
/// Everything that is wrong with the file.
pub fn machine_of(path: &str, node: Option<String>, asked: Asked, named: &str) -> Result<Machine, Failure> {
    let bytes = fs_err::read(path).map_err(|cause| unreadable("the machine file", path, &cause, named))?;
    let text = millstream::parse::decode(path, &bytes).map_err(|lint| Failure::from(*lint))?;
    let node = node.unwrap_or_else(millstream::machine::host_name);
    let file = millstream::machine::load(path, text, &node, &|name| std::env::var(name).ok());
    let file = file.map_err(|lints| Failure { lints, errors: Vec::new() })?;
    Machine::of_file(&file, asked)
}

/// The engine, which owns this process.
pub fn engine(global: &Global) -> Result<Engine, Failure> {
    let machine = machine(global)?;
    allocator::fit(machine.memory);
    Ok(Engine::builder().machine(machine).own_process().build()?)
}

/// The job at `path`, if it has no errors. Shows its warnings.
pub fn sound_job(
    global: &Global,
    engine: &Engine,
    output: Output,
    path: &str,
    needs_secrets: bool,
) -> Result<Arc<Job>, Failure> {
    let Parsed { job, warnings } = parsed(global, engine, path, needs_secrets)?;
    tell_lints(output, &warnings);
    Ok(job)
}

fn parsed(global: &Global, engine: &Engine, path: &str, needs_secrets: bool) -> Result<Parsed, Failure> {
    let options = ParseOptions { set: global.set.iter().cloned().collect(), needs_secrets, now: None };
    block_on(engine.read_job(path, &options))
}

fn run_job(global: &Global, output: Output, run: &arguments::Run) -> Result<(), Failure> {
    if let Some(values) = &run.job.each.values {
        return crate::series::run(global, output, run, values);
    }
    let engine = engine(global)?;
    let job = sound_job(global, &engine, output, &run.job.path, true)?;
    refuse_two_outputs(output, &job)?;
    follow(output, |cancel| {
        let options = RunOptions {
            resume: run.resume,
            restart: run.restart,
            accept_changed: run.accept_changed,
            variables: Some(global.set.clone()),
            cancel,
            ..RunOptions::default()
        };
        engine.start(job, options)
    })
    .and_then(|done| Ok(tell_done(output, &done, run.verbose)?))
}

/// Refuses to write both rows and the report to standard output.
pub fn refuse_two_outputs(output: Output, job: &Job) -> Result<()> {
    match job.sinks.iter().find(|sink| output.json && sink.write.value == "-") {
        Some(sink) => Err(Error::job("both the rows and the report would go to standard output")
            .in_step(&sink.name.value)
            .hint("leave out `--json`, or write the rows to a file")),
        None => Ok(()),
    }
}

/// Starts a run with `start`, and shows its progress until it ends. Ctrl-C cancels it.
pub fn follow<T: Send + 'static>(
    output: Output,
    start: impl FnOnce(Cancel) -> Result<Running<T>>,
) -> Result<T, Failure> {
    let followed = Followed::new(output)?;
    followed.follow(|| start(followed.cancel()))
}

/// Shows runs, one after the other. Ctrl-C cancels them.
pub struct Followed {
    output: Output,
    cancel: Cancel,
    /// That of the run which is shown.
    display: Arc<Mutex<Arc<Display>>>,
}

impl Followed {
    pub fn new(output: Output) -> Result<Self> {
        let (cancel, display) = (Cancel::default(), Arc::new(Mutex::new(Arc::new(Display::new(output)))));
        let teller = Arc::clone(&display);
        let current = move || Arc::clone(&teller.lock().unwrap_or_else(PoisonError::into_inner));
        interrupt::watch(cancel.clone(), move |text| current().message(text))?;
        Ok(Followed { output, cancel, display })
    }

    /// What Ctrl-C cancels.
    pub fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Starts a run with `start`, and shows its progress until it ends.
    pub fn follow<T: Send + 'static>(&self, start: impl FnOnce() -> Result<Running<T>>) -> Result<T, Failure> {
        let display = Arc::new(Display::new(self.output));
        *self.display.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&display);
        let mut running = start()?;
        let ended = block_on(async {
            while let Some(event) = running.next_event().await {
                self.show(&display, event);
            }
            running.finish().await
        });
        display.end();
        ended
    }

    fn show(&self, display: &Display, event: Event) {
        let output = self.output;
        match event {
            Event::Progress(progress) => display.show(&progress),
            Event::Warnings(lints) => display.hide_while(|| tell_lints(output, &lints)),
            Event::Retrying { attempt, of, wait, error } => display.hide_while(|| {
                output.message(&message::error(output, &error));
                let wait = human::time(wait);
                output.chat(&format!("attempt {attempt} of {of} failed; the run is resumed in {wait}\n"));
            }),
            Event::HookFailed { hook, error } => display.hide_while(|| {
                output.message(&message::hook(output, &hook, &error));
            }),
            Event::Line { step, line } => display.hide_while(|| output.chat(&format!("{step}: {line}\n"))),
            _ => {}
        }
    }
}

/// Shows the report.
pub fn tell_done(output: Output, done: &Report, verbose: bool) -> Result<()> {
    if output.json {
        output.json(done)?;
    } else {
        output.chat(&report::report(output, done, verbose));
    }
    Ok(())
}

fn check_job(global: &Global, output: Output, check: &arguments::Check) -> Result<(), Failure> {
    if check.schema {
        let schema = millstream::parse::schema(&millstream::component::registry());
        let text = serde_json::to_string_pretty(&schema)
            .map_err(|cause| Error::internal("the schema cannot be written as JSON").cause(cause))?;
        return Ok(output.result(&format!("{text}\n"))?);
    }
    let engine = engine(global)?;
    let path = check.path.as_deref().unwrap_or_default();
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
        return Ok(output.json(&json!({"lints": lints, "errors": [], "unknown": checked.unknown}))?);
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

fn explain(global: &Global, output: Output, path: &str) -> Result<(), Failure> {
    let engine = engine(global)?;
    let job = sound_job(global, &engine, output, path, false)?;
    let plan = block_on(engine.plan(job))?;
    tell_lints(output, plan.warnings());
    match output.json {
        true => output.json(plan.explain())?,
        false => output.result(&crate::explain::explanation(plan.explain()))?,
    }
    Ok(())
}

fn show_rows(global: &Global, output: Output, preview: &arguments::Preview) -> Result<(), Failure> {
    let engine = engine(global)?;
    let job = sound_job(global, &engine, output, &preview.path, true)?;
    let shown = block_on(engine.preview(job, preview.step.clone(), preview.rows))?;
    tell_lints(output, &shown.warnings);
    let text = if output.json { rows_as_json(&shown.batches)? } else { rows_as_table(&shown.schema, &shown.batches)? };
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
    let counted = block_on(engine(global)?.count(urls(&count.urls), count.by_unit));
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
    fn the_job_in_the_readme_is_that_of_the_example() {
        let job = include_str!("../../../examples/geonames/job.yaml");
        let entries = job.lines().skip_while(|line| line.starts_with('#')).collect::<Vec<_>>().join("\n");
        assert!(include_str!("../../../README.md").contains(&entries), "README.md shows another job");
    }
}
