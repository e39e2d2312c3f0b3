//! Forgets what sinks have loaded of incremental sources, so that the next run loads it again: files, and rows from a
//! time on. Which notes that changes is in `chunks/units.rs` and `chunks/marks.rs`, how they are changed in the sinks.
//!
//! All sinks are looked at before the first one is changed. Each forgets in one transaction, and a sink that has
//! forgotten while another has not is what every run of several sinks can meet: the next run loads what each lacks.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::DataType;
use chrono::{DateTime, NaiveDate, NaiveDateTime};
use millstream_core::sink::{ChangeNotes, LoadContext, Noted, WrittenChunks};
use millstream_core::{Error, Result, clock, fail_point};
use millstream_job::{AddColumn, Job, OnChange, SinkStep, SourceStep};
use millstream_source::pattern;
use serde::Serialize;

use crate::chunks::marks::{self, SetBack};
use crate::chunks::sinks::incremental_sources;
use crate::chunks::units::{Forgettable, forgettable, forgotten_note};
use crate::context::RunContext;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::options::RunOptions;
use crate::prepare::{Prepared, Reach, prepare};
use crate::read::sample;
use crate::resume::ResumePoint;

/// What is to be forgotten.
#[derive(Debug, Clone, Default)]
pub struct ForgetOptions {
    /// Of this source alone.
    pub source: Option<String>,
    /// By this sink alone.
    pub sink: Option<String>,
    /// Files, by their names or by patterns of the names of files that the source has now.
    pub files: Vec<String>,
    /// All rows from this time on, of sources that are read by the time in a column.
    pub to: Option<String>,
    /// Only says what would be forgotten.
    pub dry_run: bool,
    /// The variables of the runs that have loaded it; those of the job if `None`.
    pub variables: Option<Vec<(String, String)>>,
}

/// What was forgotten.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Forgotten {
    /// By the sinks that have forgotten something.
    pub sinks: Vec<ForgottenBy>,
    /// What was asked for and no sink has.
    pub not_found: Vec<String>,
    /// Whether nothing was changed.
    pub dry_run: bool,
}

/// What a sink has forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ForgottenBy {
    /// The sink.
    pub sink: String,
    /// Its target.
    pub target: String,
    /// Files, in their order.
    pub files: Vec<ForgottenFile>,
    /// Rows of databases, from a time on.
    pub rows: Vec<ForgottenRows>,
    /// What becomes of the rows in the target.
    pub loaded: LoadedRows,
}

/// A file that was forgotten.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ForgottenFile {
    /// The source.
    pub source: String,
    /// Its path or URL, passwords left out.
    pub uri: String,
}

/// Rows that were forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ForgottenRows {
    /// The source.
    pub source: String,
    /// The column with their time.
    pub by: String,
    /// Where the next run begins.
    pub to: String,
    /// Up to where they were loaded.
    pub mark: String,
}

/// What becomes of rows in a target that were loaded of what is forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadedRows {
    /// They stay, and come a second time unless they are deleted.
    Stay,
    /// The same, and their column `_uri` says of which file they are, unless a transform leaves it out.
    StayWithUri,
    /// The next run deletes them in the transaction that inserts the new ones.
    Replaced,
    /// They are found by their key when they come again.
    FoundByKey,
}

/// A sink that may forget something.
struct Forgetting<'a> {
    sink: &'a SinkStep,
    sources: Vec<&'a SourceStep>,
    load: String,
    context: LoadContext,
    search: Arc<Search>,
}

/// What is looked for in a sink.
struct Search {
    /// The names of the sources.
    sources: Vec<String>,
    target: String,
    wanted: Arc<Wanted>,
}

/// What is to be forgotten, once it is known which files there are.
struct Wanted {
    /// Source and name of each file, and the number of the name or pattern by which it was asked for.
    files: Vec<(String, String, usize)>,
    rows: Vec<WantedRows>,
    /// In milliseconds since 1970.
    now: u64,
}

/// Rows that are to be forgotten.
struct WantedRows {
    source: String,
    /// The column with their time.
    by: String,
    /// From when on, in microseconds.
    to: i64,
    /// The same as it was given.
    shown: String,
    /// Whether the column has a time zone.
    is_zoned: bool,
}

/// What is found of it in a sink.
#[derive(Default)]
struct Found {
    files: BTreeSet<ForgottenFile>,
    rows: Vec<ForgottenRows>,
    /// The numbers of what was asked for.
    asked: BTreeSet<usize>,
    /// A source whose rows it has only up to this mark, which is before the time that was asked for.
    before: Option<(String, String)>,
    noted: Noted,
}

impl Engine {
    /// Lets sinks of `job` forget what they have loaded of its incremental sources, so that the next run loads it
    /// again. What is loaded stays where it is.
    ///
    /// # Errors
    /// If the job is running; if no sink has anything of it; if one has a part of a file, which the next run completes.
    pub async fn forget(&self, job: Arc<Job>, options: ForgetOptions) -> Result<Forgotten, Failure> {
        let engine = self.clone();
        self.with_looking_context(async move |context: &RunContext| Ok(forget(&engine, context, &job, &options).await?))
            .await
    }
}

async fn forget(
    engine: &Engine,
    context: &RunContext,
    job: &Job,
    options: &ForgetOptions,
) -> Result<Forgotten, Failure> {
    check(job, options)?;
    let run_options = RunOptions { variables: options.variables.clone(), ..RunOptions::default() };
    let point = ResumePoint::find(job, engine.machine(), &run_options, None)?;
    point.be_the_only_run()?;
    let wanted = Arc::new(wanted(context, job, options).await?);
    let forgetting = sinks(context, job, options, &point, &wanted);
    let mut forgotten = Forgotten { dry_run: options.dry_run, ..Forgotten::default() };
    let (mut asked, mut before) = (BTreeSet::new(), None);
    for one in &forgetting {
        let name = &one.sink.name.value;
        let written = one.sink.sink.noted(&one.load, one.context.clone()).await;
        let found = written.and_then(|written| one.search.find(&written)).map_err(|error| error.in_step(name))?;
        asked.extend(found.asked.iter().copied());
        before = before.or_else(|| found.before.clone());
        forgotten.sinks.extend(one.described(found));
    }
    if forgotten.sinks.is_empty() {
        return Err(nothing_found(options, before).into());
    }
    let not_found = options.files.iter().enumerate().filter(|(number, _)| !asked.contains(number));
    forgotten.not_found = not_found.map(|(_, file)| file.clone()).collect();
    if options.dry_run {
        return Ok(forgotten);
    }
    for one in &forgetting {
        one.change().await.map_err(|error| error.in_step(&one.sink.name.value))?;
        fail_point::pass("forget.next");
    }
    Ok(forgotten)
}

/// Refuses what cannot be meant.
fn check(job: &Job, options: &ForgetOptions) -> Result<()> {
    let incremental: Vec<&SourceStep> = job.sources.iter().filter(|source| source.incremental).collect();
    if incremental.is_empty() {
        return Err(Error::job("the job has no incremental source: its runs know no earlier ones")
            .hint("`millstream run` loads everything again"));
    }
    if let Some(name) = &options.source
        && !incremental.iter().any(|source| source.name.value == *name)
    {
        let names: Vec<&str> = incremental.iter().map(|source| source.name.value.as_str()).collect();
        return Err(Error::job("the job has no incremental source of this name").text(name).hint(names_hint(&names)));
    }
    if let Some(name) = &options.sink
        && !job.sinks.iter().any(|sink| sink.name.value == *name)
    {
        let names: Vec<&str> = job.sinks.iter().map(|sink| sink.name.value.as_str()).collect();
        return Err(Error::job("the job has no sink of this name").text(name).hint(names_hint(&names)));
    }
    let is_by_time = |source: &&SourceStep| source.incremental_by.is_some();
    match (&options.to, options.files.is_empty()) {
        (Some(_), true) if !incremental.iter().any(is_by_time) => {
            Err(Error::job("no source of the job has `incremental: {by: …}`").hint("name the files to be forgotten"))
        }
        (None, false) if incremental.iter().all(is_by_time) => {
            Err(Error::job("the incremental sources of the job are read by the time in a column, not by files")
                .hint("give the time from which on rows are to be loaded again: `--to TIME`"))
        }
        (None, true) => Err(Error::job("nothing is named that is to be forgotten")
            .hint("name files, or give the time from which on rows are to be loaded again with `--to`")),
        (Some(_), false) => Err(Error::job("files and `--to` are for different sources")
            .hint("forget the files first, and then the rows of a database")),
        _ => Ok(()),
    }
}

fn names_hint(names: &[&str]) -> String {
    format!("it has: {}", names.join(", "))
}

fn nothing_found(options: &ForgetOptions, before: Option<(String, String)>) -> Error {
    match (&options.to, before) {
        (Some(to), Some((source, mark))) => is_before(&source, to, &mark),
        (Some(_), None) => {
            Error::refused("nothing was forgotten: no sink has loaded rows of these sources by their time")
        }
        (None, _) => {
            Error::refused("nothing was forgotten: no sink has loaded these files").text(options.files.join(", ")).hint(
                "names are those of `_uri`, such as `in/a.csv`; patterns match only files that are there now; a job \
                 with variables needs the same `--set` as its runs",
            )
        }
    }
}

/// The sinks that may forget something.
fn sinks<'a>(
    context: &RunContext,
    job: &'a Job,
    options: &ForgetOptions,
    point: &ResumePoint,
    wanted: &Arc<Wanted>,
) -> Vec<Forgetting<'a>> {
    let of_sink = |sink: &'a SinkStep| {
        let sources: Vec<&SourceStep> =
            incremental_sources(job, sink).filter(|source| is_wanted(source, options)).collect();
        let search = Search {
            sources: sources.iter().map(|source| source.name.value.clone()).collect(),
            target: sink.sink.target(),
            wanted: Arc::clone(wanted),
        };
        let (load, context) = (point.load_of_all_runs(sink), point.looking(context, sink));
        Forgetting { sink, sources, load, context, search: Arc::new(search) }
    };
    let sinks = job.sinks.iter().filter(|sink| options.sink.as_ref().is_none_or(|name| sink.name.value == *name));
    sinks.map(of_sink).filter(|forgetting| !forgetting.sources.is_empty()).collect()
}

/// Whether something of `source` is to be forgotten.
fn is_wanted(source: &SourceStep, options: &ForgetOptions) -> bool {
    let is_named = options.source.as_ref().is_none_or(|name| source.name.value == *name);
    is_named && source.incremental_by.is_some() == options.to.is_some()
}

/// Finds out which files and rows are meant. Places are only asked where that is needed.
async fn wanted(context: &RunContext, job: &Job, options: &ForgetOptions) -> Result<Wanted, Failure> {
    let mut wanted = Wanted { files: Vec::new(), rows: Vec::new(), now: clock::now() };
    let sources: Vec<&SourceStep> =
        job.sources.iter().filter(|source| source.incremental && is_wanted(source, options)).collect();
    let looks = options.to.is_some() || options.files.iter().any(|file| pattern::has_wildcards(file));
    let prepared = match looks {
        true => Some(prepare(context, job, None, Reach::Online).await?),
        false => None,
    };
    for source in sources {
        let name = &source.name.value;
        if let (Some(to), Some(by), Some(prepared)) = (&options.to, &source.incremental_by, &prepared) {
            let is_zoned = is_zoned(prepared, name, &by.by)?;
            let time = time(to, is_zoned).map_err(|error| error.in_step(name))?;
            let (source, by, shown) = (name.clone(), by.by.clone(), to.clone());
            wanted.rows.push(WantedRows { source, by, to: time, shown, is_zoned });
            continue;
        }
        for (number, file) in options.files.iter().enumerate() {
            match (&prepared, pattern::has_wildcards(file)) {
                (Some(prepared), true) => {
                    let names = matching(prepared, name, file).await?;
                    wanted.files.extend(names.into_iter().map(|uri| (name.clone(), uri, number)));
                }
                _ => wanted.files.push((name.clone(), pattern::plain(file), number)),
            }
        }
    }
    Ok(wanted)
}

/// The names of the files of the source `name` that match.
async fn matching(prepared: &Prepared<'_>, name: &str, file: &str) -> Result<Vec<String>> {
    let matcher = pattern::Matcher::new(file).map_err(|what| Error::job(what).text(file))?;
    let reader = prepared.readers.iter().find(|reader| reader.name == name);
    let reader = reader.ok_or_else(|| Error::internal("a source has no reader"))?;
    let units = sample::units(reader, usize::MAX).await.map_err(|error| error.in_step(name))?;
    Ok(units.iter().map(|unit| unit.name()).filter(|name| matcher.matches(name)).collect())
}

/// Whether the column `by` of the source `name` has a time zone.
fn is_zoned(prepared: &Prepared<'_>, name: &str, by: &str) -> Result<bool> {
    let columns = prepared.source_columns(name);
    let field = columns.as_ref().and_then(|columns| columns.field_with_name(by).ok());
    let field = field.ok_or_else(|| Error::internal("the column by which rows are read is not known"))?;
    Ok(!matches!(field.data_type(), DataType::Timestamp(_, None)))
}

/// The time that `text` says, in microseconds since 1970: with a zone if the column has one, otherwise without.
fn time(text: &str, is_zoned: bool) -> Result<i64> {
    let text = text.trim();
    let plain = ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M"];
    let day = |text: &str| NaiveDate::parse_from_str(text, "%Y-%m-%d").ok()?.and_hms_opt(0, 0, 0);
    let without = plain.iter().find_map(|form| NaiveDateTime::parse_from_str(text, form).ok()).or_else(|| day(text));
    let with = DateTime::parse_from_rfc3339(&text.replacen(' ', "T", 1)).ok();
    let example = if is_zoned { "2026-01-31T12:00:00Z" } else { "2026-01-31T12:00:00" };
    let time = match (with, without, is_zoned) {
        (Some(time), _, true) => time.timestamp_micros(),
        (_, Some(time), false) => time.and_utc().timestamp_micros(),
        (None, Some(_), true) => {
            return Err(Error::job("the column has a time zone, and the time of `--to` has none")
                .text(text)
                .hint(format!("write it as `{example}`")));
        }
        (Some(_), None, false) => {
            return Err(Error::job("the column has no time zone, and the time of `--to` has one")
                .text(text)
                .hint(format!("write it as the database shows it: `{example}`")));
        }
        _ => return Err(Error::job("this is not a time").text(text).hint(format!("write it as `{example}`"))),
    };
    match time >= 0 {
        true => Ok(time),
        false => Err(Error::job("this time is before 1970").text(text).hint("`--restart` reads all rows again")),
    }
}

impl Search {
    /// What the sink, which has noted `written`, has of what is wanted.
    fn find(&self, written: &WrittenChunks) -> Result<Found> {
        let mut found = Found::default();
        self.find_files(written, &mut found)?;
        self.find_marks(written, &mut found)?;
        if !found.files.is_empty() {
            found.noted.chunks.push(forgotten_note(written, self.wanted.now));
        }
        Ok(found)
    }

    fn has(&self, source: &str) -> bool {
        self.sources.iter().any(|name| name == source)
    }

    fn find_files(&self, written: &WrittenChunks, found: &mut Found) -> Result<()> {
        for (source, uri, number) in self.wanted.files.iter().filter(|(source, ..)| self.has(source)) {
            match forgettable(source, uri, written, self.wanted.now) {
                Forgettable::Unknown => continue,
                Forgettable::Begun => return Err(is_begun(uri, &self.target)),
                Forgettable::Complete(note) => {
                    found.noted.chunks.push(note);
                    found.files.insert(ForgottenFile { source: source.clone(), uri: uri.clone() });
                }
            }
            found.asked.insert(*number);
        }
        Ok(())
    }

    fn find_marks(&self, written: &WrittenChunks, found: &mut Found) -> Result<()> {
        for WantedRows { source, by, to, shown, is_zoned } in
            self.wanted.rows.iter().filter(|rows| self.has(&rows.source))
        {
            match marks::set_back(source, *to, written) {
                SetBack::Unknown => {}
                SetBack::IsBefore(mark) => found.before = Some((source.clone(), marks::text(mark, *is_zoned))),
                SetBack::From(mark, Noted { chunks, replaced }) => {
                    found.noted.chunks.extend(chunks);
                    found.noted.replaced.extend(replaced);
                    let (source, by, to) = (source.clone(), by.clone(), shown.clone());
                    found.rows.push(ForgottenRows { source, by, to, mark: marks::text(mark, *is_zoned) });
                }
            }
        }
        Ok(())
    }
}

fn is_begun(uri: &str, target: &str) -> Error {
    Error::refused("a file is loaded in part, by a run that was stopped")
        .in_unit(uri, None)
        .cause(format!("some of its rows are in {target}"))
        .hint("run the job, which loads the rest of it, and forget it then; nothing was forgotten")
}

fn is_before(source: &str, to: &str, mark: &str) -> Error {
    Error::refused(format!("the rows of `{source}` are loaded only up to {mark}"))
        .text(to)
        .hint("the next run reads what is later by itself; nothing was forgotten")
}

impl Forgetting<'_> {
    async fn change(&self) -> Result<()> {
        let search = Arc::clone(&self.search);
        let change: ChangeNotes = Arc::new(move |written| Ok(search.find(written)?.noted));
        self.sink.sink.change_notes(&self.load, change, self.context.clone()).await
    }

    fn described(&self, found: Found) -> Option<ForgottenBy> {
        let Found { files, rows, .. } = found;
        let is_some = !files.is_empty() || !rows.is_empty();
        is_some.then(|| ForgottenBy {
            sink: self.sink.name.value.clone(),
            target: self.sink.sink.target(),
            files: files.into_iter().collect(),
            rows,
            loaded: self.loaded_rows(),
        })
    }

    fn loaded_rows(&self) -> LoadedRows {
        let all = |is: fn(&SourceStep) -> bool| self.sources.iter().all(|source| is(source));
        match self.sink.sink.adds_rows() {
            false => LoadedRows::FoundByKey,
            true if all(|source| source.on_change == OnChange::Reload) => LoadedRows::Replaced,
            true if all(|source| source.add.contains(&AddColumn::Uri)) => LoadedRows::StayWithUri,
            true => LoadedRows::Stay,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_form_of_the_column() {
        let second = 1_769_860_800_000_000;
        for (text, is_zoned, expected) in [
            ("2026-01-31T12:00:00", false, Ok(second)),
            ("2026-01-31 12:00:00", false, Ok(second)),
            ("2026-01-31 12:00", false, Ok(second)),
            ("2026-01-31 12:00:00.25", false, Ok(second + 250_000)),
            ("2026-01-31T12:00:00.000001Z", true, Ok(second + 1)),
            ("2026-01-31", false, Ok(second - 12 * 3_600_000_000)),
            ("2026-01-31T12:00:00Z", true, Ok(second)),
            ("2026-01-31 13:00:00+01:00", true, Ok(second)),
            ("2026-01-31T12:00:00", true, Err("the column has a time zone, and the time of `--to` has none")),
            ("2026-01-31T12:00:00Z", false, Err("the column has no time zone, and the time of `--to` has one")),
            ("1969-12-31", false, Err("this time is before 1970")),
            ("yesterday", true, Err("this is not a time")),
            ("yesterday", false, Err("this is not a time")),
        ] {
            let found = time(text, is_zoned).map_err(|error| error.what().to_owned());
            assert_eq!(found, expected.map_err(str::to_owned), "{text} {is_zoned}");
        }
    }
}
