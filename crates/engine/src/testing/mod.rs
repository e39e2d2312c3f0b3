//! Tests of jobs: a job with small inputs in place of its sources, whose sinks are captured.
//!
//! ```text
//!  test file ─▶ inputs as files of a temporary folder ─▶ the job, its sources and sinks replaced ─▶ a run
//!                                                                                                    │
//!       expected rows ─▶ the types that the job's entries have ─▶ compared, row by row ◀─ captured rows
//! ```
//! The run is a real one: parsing, transforms, checks and rejects are those of the job. Only its files are others.
//! Sources that a test does not replace are an error, so none is ever read.

pub mod compare;
mod inputs;
mod rows;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use chrono::DateTime;
use millstream_core::hint::did_you_mean;
use millstream_core::{Error, Result};
use millstream_job::replace::Replacements;
use millstream_job::test_file::{self, ExpectedReject, JobTest, LoadedTests};
use millstream_job::{Job, Lint, LoadOptions, Loaded};
use millstream_state::default_folder;
use millstream_state::rejects::{Kept, of_run};
use serde::Serialize;

use self::compare::{Difference, Rules, compare};
use crate::engine::Engine;
use crate::failure::Failure;
use crate::job_plan::JobPlan;
use crate::options::{Cancel, RunOptions};
use crate::parse::{now as present, unreadable};
use crate::sql;

/// A test file and the job that it tests.
#[derive(Debug, Clone)]
pub struct TestFile {
    /// Its path.
    pub path: PathBuf,
    /// The path of its job file.
    pub job: PathBuf,
    tests: LoadedTests,
    job_text: String,
}

/// What a test has come to.
#[derive(Debug, Serialize)]
pub struct TestResult {
    /// The test's name.
    pub name: String,
    /// Where it begins in its file.
    pub line: usize,
    /// How long it took.
    pub seconds: f64,
    /// Why it fails; nothing if it passes.
    pub faults: Vec<TestFault>,
}

/// Why a test fails.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TestFault {
    /// An entry has other rows.
    Rows {
        /// The entry.
        entry: String,
        /// What is different.
        differences: Vec<Difference>,
        /// The number of rows that are expected, and of those that are there.
        counts: (usize, usize),
    },
    /// Something else is not as expected, in words.
    Other {
        /// What.
        what: String,
    },
    /// The job, or the test, has an error.
    Failed {
        /// The error.
        #[serde(skip)]
        failure: Failure,
        /// What it says.
        what: String,
    },
}

impl TestFault {
    fn other(what: impl Into<String>) -> Self {
        TestFault::Other { what: what.into() }
    }

    fn failed(failure: Failure) -> Self {
        TestFault::Failed { what: words(&failure), failure }
    }
}

/// What ends the name of a test file, before its ending.
const TEST: &str = ".test";

/// Whether the file of this name has tests: `load.test.yaml`.
pub fn is_test_file(path: &Path) -> bool {
    job_of(path).is_some()
}

/// The job file that a test file is for by its name.
fn job_of(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let (stem, ending) = name.rsplit_once('.').filter(|(_, ending)| ["yaml", "yml"].contains(ending))?;
    let stem = stem.strip_suffix(TEST).filter(|stem| !stem.is_empty())?;
    Some(path.with_file_name(format!("{stem}.{ending}")))
}

/// The test file of a job file, by its name.
pub fn tests_of(job: &Path) -> Option<PathBuf> {
    let name = job.file_name()?.to_str()?;
    let (stem, ending) = name.rsplit_once('.')?;
    Some(job.with_file_name(format!("{stem}{TEST}.{ending}")))
}

impl TestFile {
    /// Reads the test file at `path`, and the text of its job.
    ///
    /// # Errors
    /// If one of them cannot be read; else everything that is wrong with the test file.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let shown = path.display().to_string();
        let text = read_text("the test file", path, "`load.test.yaml` beside `load.yaml` has its tests")?;
        let tests = test_file::load(&shown, &text).map_err(|lints| Failure { lints, errors: Vec::new() })?;
        let job = match &tests.file.job {
            Some(job) => path.with_file_name("").join(job),
            None => job_of(path).ok_or_else(|| {
                Error::job("the name of the test file does not say which job it tests")
                    .text(&shown)
                    .hint("add `job: FILE`, or call it NAME.test.yaml, beside NAME.yaml")
            })?,
        };
        let job_text = read_text("the job file", &job, "`job` in the test file names it, from the file's own folder")?;
        Ok(TestFile { path: path.to_owned(), job, tests, job_text })
    }

    /// The names of its tests, in its order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tests.file.tests.iter().map(|test| test.name.as_str())
    }

    fn lint(&self, index: usize, what: impl Into<String>, hint: impl Into<String>) -> TestFault {
        let lint = self.tests.text.error(self.tests.spans[index], what).hint(hint);
        TestFault::failed(Failure { lints: vec![lint], errors: Vec::new() })
    }
}

fn read_text(what: &str, path: &Path, absent: &str) -> Result<String, Failure> {
    let shown = path.display().to_string();
    let bytes = fs_err::read(path).map_err(|cause| unreadable(what, &shown, &cause, absent))?;
    Ok(millstream_job::decode(&shown, &bytes).map_err(|lint| Failure::from(*lint))?.to_owned())
}

impl Engine {
    /// Runs a test, from 0, of `file`. Its runs are entered into the history of the engine's state folder, as all runs
    /// are: give the engine of tests a folder of its own.
    /// `cancel` cancels it.
    pub async fn test(&self, file: &TestFile, index: usize, cancel: &Cancel) -> TestResult {
        let begun = Instant::now();
        let Some(test) = file.tests.file.tests.get(index) else {
            let faults = vec![TestFault::other("there is no such test")];
            return TestResult { name: String::new(), line: 0, seconds: 0.0, faults };
        };
        let faults = self.faults(file, index, test, cancel).await.unwrap_or_else(|fault| vec![fault]);
        let line = file.tests.spans[index].line;
        TestResult { name: test.name.clone(), line, seconds: begun.elapsed().as_secs_f64(), faults }
    }

    /// Why a test fails; an error is the one reason.
    async fn faults(
        &self,
        file: &TestFile,
        index: usize,
        test: &JobTest,
        cancel: &Cancel,
    ) -> Result<Vec<TestFault>, TestFault> {
        let now = now(test.now.as_ref().or(file.tests.file.now.as_ref()));
        let now = now.map_err(|text| {
            file.lint(index, format!("`now` is not a time: {text}"), "write it as 2026-01-31T12:00:00Z")
        })?;
        let set: BTreeMap<String, String> =
            file.tests.file.set.iter().chain(&test.set).map(|(name, value)| (name.clone(), value.text())).collect();
        let job = self.job(file, &set, None, now).map_err(TestFault::failed)?;
        self.check_names(file, index, test, &job)?;
        let folder = tempfile::tempdir()
            .map_err(|cause| TestFault::failed(Error::io("a temporary folder cannot be made", &cause).into()))?;
        let failed = |error: Error| TestFault::failed(error.into());
        let captured = rows::capture(&job, test, folder.path()).map_err(failed)?;
        let sources = inputs::replace(self.registry(), &job, test, &file.path, folder.path()).map_err(failed)?;
        let replacements = Arc::new(Replacements { sources, sinks: captured.sinks() });
        let job = self.job(file, &set, Some(&replacements), now).map_err(TestFault::failed)?;
        let ran = self.run_test(Arc::new(job), now, cancel).await;
        Ok(match (ran, &test.error) {
            (Ok(_), Some(error)) => {
                vec![TestFault::other(format!("the job is expected to fail with `{error}`, and it does not"))]
            }
            (Err(failure), Some(error)) if words(&failure).contains(error.as_str()) => Vec::new(),
            (Err(failure), _) => vec![TestFault::failed(failure)],
            (Ok((plan, run)), None) => {
                let mut faults = Vec::new();
                for (entry, expected) in &test.expect {
                    let rules = Rules { in_order: expected.in_order, within: expected.within };
                    match captured.rows(entry, &plan, &expected.rows) {
                        Ok(rows::Compared { columns, expected, found }) => {
                            let differences = compare(&columns, &expected, &found, rules);
                            let counts = (expected.len(), found.len());
                            if !differences.is_empty() {
                                faults.push(TestFault::Rows { entry: entry.clone(), differences, counts });
                            }
                        }
                        Err(error) => faults.push(failed(error)),
                    }
                }
                faults.extend(self.reject_faults(test, &run).map_err(failed)?);
                faults
            }
        })
    }

    /// The job of `file`, with `replacements`.
    fn job(
        &self,
        file: &TestFile,
        set: &BTreeMap<String, String>,
        replacements: Option<&Arc<Replacements>>,
        now: Option<i64>,
    ) -> Result<Job, Failure> {
        let options = LoadOptions {
            set,
            // Secrets of own code, if there are any: variables have their values from the test alone.
            environment: &|name| std::env::var(name).ok(),
            only_set: true,
            references: &|query| sql::references(query),
            running: replacements.is_some(),
            replace: replacements,
            now: now.unwrap_or_else(present),
        };
        let Loaded { job, lints, .. } = self.parse_with(&file.job.display().to_string(), &file.job_text, &options);
        job.ok_or(Failure { lints, errors: Vec::new() })
    }

    /// Every source is replaced, and all names are those of entries.
    fn check_names(&self, file: &TestFile, index: usize, test: &JobTest, job: &Job) -> Result<(), TestFault> {
        let sources: Vec<&str> = job.sources.iter().map(|source| source.name.value.as_str()).collect();
        if let Some(name) = test.sources.keys().find(|name| !sources.contains(&name.as_str())) {
            let what = format!("the job has no source `{name}`");
            return Err(file.lint(index, what, did_you_mean(name, "sources", &sources)));
        }
        if let Some(name) = sources.iter().find(|name| !test.sources.contains_key(**name)) {
            let what = format!("the test gives nothing for the source `{name}`, and no source is read");
            return Err(file.lint(index, what, format!("add `{name}: {{rows: []}}` to `sources`")));
        }
        let sinks = job.sinks.iter().map(|sink| sink.name.value.as_str());
        let transforms = job.transforms.iter().map(|step| step.name.value.as_str());
        let entries: Vec<&str> = sinks.chain(transforms).chain(sources).collect();
        match test.expect.keys().find(|name| !entries.contains(&name.as_str())) {
            Some(name) => {
                let what = format!("the job has no entry `{name}`");
                Err(file.lint(index, what, did_you_mean(name, "entries", &entries)))
            }
            None => Ok(()),
        }
    }

    /// Runs the job; returns its plan and the name of the run.
    async fn run_test(&self, job: Arc<Job>, now: Option<i64>, cancel: &Cancel) -> Result<(JobPlan, String), Failure> {
        let plan = self.plan(job).await?;
        let options = RunOptions { now, restart: true, cancel: cancel.clone(), ..RunOptions::default() };
        let report = self.start(&plan, options)?.finish().await?;
        Ok((plan, report.run))
    }

    /// What was rejected and is not expected, and the other way round.
    fn reject_faults(&self, test: &JobTest, run: &str) -> Result<Vec<TestFault>> {
        let mut left = of_run(&state_folder(self)?, run)?;
        let mut faults = Vec::new();
        for expected in &test.rejects {
            match left.iter().position(|kept| is_it(expected, kept)) {
                Some(place) => drop(left.remove(place)),
                None => {
                    let shown = serde_json::to_string(expected).unwrap_or_default();
                    let without_line = ExpectedReject { line: None, ..expected.clone() };
                    let has_no_line = |kept: &Kept| kept.line.rejected.line.is_none() && is_it(&without_line, kept);
                    let why = match expected.line.is_some() && left.iter().any(has_no_line) {
                        true => {
                            ": its line is not known, as behind a step that combines rows, or whose rows several \
                                 entries take (leave out `line`)"
                        }
                        false => "",
                    };
                    faults.push(TestFault::other(format!("nothing is rejected that is {shown}{why}")));
                }
            }
        }
        faults.extend(left.iter().map(|kept| {
            let rejected = &kept.line.rejected;
            let place = rejected.line.map_or(String::new(), |line| format!(", line {line}"));
            TestFault::other(format!("`{}`{place} is rejected: {}", rejected.step, rejected.message))
        }));
        Ok(faults)
    }
}

/// Where the engine's runs are entered.
fn state_folder(engine: &Engine) -> Result<PathBuf> {
    match &engine.machine().state {
        Some(folder) => Ok(folder.clone()),
        None => {
            default_folder().ok_or_else(|| Error::refused("there is no state folder").hint("name one: --state FOLDER"))
        }
    }
}

/// Whether a reject is the one that is expected.
fn is_it(expected: &ExpectedReject, kept: &Kept) -> bool {
    let rejected = &kept.line.rejected;
    let has = |part: &Option<String>, text: &str| part.as_ref().is_none_or(|part| text.contains(part.as_str()));
    let raw = rejected.raw.as_ref().and_then(|raw| raw.text.clone()).unwrap_or_default();
    expected.entry.as_ref().is_none_or(|entry| *entry == rejected.step)
        && expected.line.is_none_or(|line| rejected.line == Some(line))
        && has(&expected.message, &rejected.message)
        && has(&expected.raw, &raw)
}

/// A time in milliseconds since 1970.
fn now(text: Option<&String>) -> Result<Option<i64>, String> {
    let Some(text) = text else { return Ok(None) };
    let time = DateTime::parse_from_rfc3339(text).map_err(|cause| format!("`{text}`: {cause}"))?;
    Ok(Some(time.timestamp_millis()))
}

/// Everything that a failure says, in lines.
fn words(failure: &Failure) -> String {
    let lints = failure.lints.iter().filter(|lint| lint.is_error()).map(|lint: &Lint| lint.what.clone());
    let errors = failure.errors.iter().map(ToString::to_string);
    lints.chain(errors).collect::<Vec<_>>().join("\n")
}
