//! The command `test`: finds test files, runs their tests, and shows what is different, row by row.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use futures::executor::block_on;
use millstream::machine::Machine;
use millstream::testing::{ColumnDifference, Difference, Row, TestFault, TestFile, TestResult, is_test_file, tests_of};
use millstream::text::unreadable;
use millstream::{Cancel, Engine, Error, ErrorKind, Failure, Result};
use serde_json::{Value, json};

use crate::arguments::Test;
use crate::output::{Output, Role};
use crate::{allocator, interrupt, message};

/// Differences of one entry that are shown; `--json` has all.
const SHOWN: usize = 20;

/// Runs the tests on `machine`, and returns the exit code: 0 if all pass, 1 if some fail.
///
/// # Errors
/// If a test file has faults, or there are no tests.
pub fn run(machine: Machine, output: Output, test: &Test) -> Result<u8, Failure> {
    if test.schema {
        let schema = serde_json::to_string_pretty(&millstream::testing::schema());
        let schema = schema.map_err(|cause| Error::internal("the schema cannot be written as JSON").cause(cause))?;
        return Ok(output.result(&format!("{schema}\n")).map(|()| 0)?);
    }
    let files = read(&test.paths)?;
    let state = tempfile::tempdir().map_err(|cause| Error::io("a temporary folder cannot be made", &cause))?;
    let engine = engine(machine, state.path())?;
    let cancel = Cancel::default();
    interrupt::watch(cancel.clone(), move |text| output.message(text))?;
    let (mut told, mut counts) = (Vec::new(), Counts::default());
    for file in &files {
        let chosen: Vec<usize> = file
            .names()
            .enumerate()
            .filter(|(_, name)| test.only.as_ref().is_none_or(|only| name.contains(only.as_str())))
            .map(|(index, _)| index)
            .collect();
        if chosen.is_empty() {
            continue;
        }
        if !output.json {
            output.result(&format!("{}\n", file.path.display()))?;
        }
        let one = |index| {
            let result = block_on(engine.test(file, index, &cancel));
            if cancel.is_cancelled() {
                return Err(Error::new(ErrorKind::Interrupted, "interrupted"));
            }
            counts.add(&result);
            if !output.json {
                output.result(&shown(output, &result))?;
            }
            Ok(result)
        };
        let results = chosen.into_iter().map(one).collect::<Result<Vec<TestResult>>>()?;
        told.push(json!({"file": file.path, "job": file.job, "tests": results}));
    }
    if counts.all == 0 {
        let only = test.only.clone().unwrap_or_default();
        return Err(Error::job("no test has this in its name")
            .text(only)
            .hint("see `tests:` in the test files")
            .into());
    }
    match output.json {
        true => output.json(&json!({"passed": counts.all - counts.failed, "failed": counts.failed, "files": told}))?,
        false => output.result(&counts.shown())?,
    }
    Ok(u8::from(counts.failed > 0))
}

#[derive(Default)]
struct Counts {
    all: usize,
    failed: usize,
}

impl Counts {
    fn add(&mut self, result: &TestResult) {
        self.all += 1;
        self.failed += usize::from(!result.faults.is_empty());
    }

    fn shown(&self) -> String {
        let tests = if self.all == 1 { "test" } else { "tests" };
        match self.failed {
            0 => format!("{} {tests} passed\n", self.all),
            failed => format!("{failed} of {} {tests} failed\n", self.all),
        }
    }
}

/// An engine whose runs are forgotten with the folder `state`.
fn engine(machine: Machine, state: &Path) -> Result<Engine, Failure> {
    let machine = Machine { state: Some(state.to_owned()), ..machine };
    allocator::fit(machine.memory);
    Ok(Engine::builder().machine(machine).own_process().build()?)
}

/// The test files that `paths` name: test files, jobs that have one, or folders.
fn read(paths: &[PathBuf]) -> Result<Vec<TestFile>, Failure> {
    let here = [PathBuf::from(".")];
    let mut files = Vec::new();
    for path in if paths.is_empty() { &here } else { paths } {
        files.extend(found(path)?);
    }
    files.dedup();
    let mut failure = Failure::default();
    let read: Vec<TestFile> =
        files.iter().filter_map(|path| TestFile::read(path).map_err(|found| failure.add(found)).ok()).collect();
    failure.none()?;
    Ok(read)
}

fn found(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if path.is_dir() {
        let mut files = Vec::new();
        in_folder(path, &mut files)?;
        files.sort();
        return match files.is_empty() {
            false => Ok(files),
            true => Err(Error::job("there are no test files in this folder")
                .text(path.display().to_string())
                .hint("the tests of `load.yaml` are in `load.test.yaml`")
                .into()),
        };
    }
    if is_test_file(path) {
        return Ok(vec![path.to_owned()]);
    }
    match tests_of(path).filter(|tests| tests.is_file()) {
        Some(tests) => Ok(vec![tests]),
        // A test file may have any name, if it says which job it tests.
        None if path.is_file() && has_tests(path) => Ok(vec![path.to_owned()]),
        None => {
            let hint = match tests_of(path) {
                Some(tests) if path.is_file() => format!("write {}, or name the test file", tests.display()),
                _ => "name a test file, a job that has one beside it, or a folder".to_owned(),
            };
            Err(Error::job("there are no tests here").text(path.display().to_string()).hint(hint).into())
        }
    }
}

/// Whether a file of any name has tests, as a line that begins with the key says.
fn has_tests(path: &Path) -> bool {
    fs_err::read_to_string(path).is_ok_and(|text| text.lines().any(|line| line.starts_with("tests:")))
}

/// Adds the test files in `folder` and below it; folders whose names begin with a dot are left out.
fn in_folder(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let unread = |cause: std::io::Error| {
        Failure::from(unreadable("the folder", &folder.display().to_string(), &cause, "name another one"))
    };
    for entry in fs_err::read_dir(folder).map_err(unread)? {
        let path = entry.map_err(unread)?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        match path.is_dir() && !path.is_symlink() {
            true if !is_hidden => in_folder(&path, files)?,
            false if is_test_file(&path) => files.push(path.strip_prefix(".").map_or(path.clone(), Path::to_owned)),
            _ => {}
        }
    }
    Ok(())
}

/// What a test has come to, as text.
fn shown(output: Output, result: &TestResult) -> String {
    let TestResult { name, line, seconds, faults } = result;
    if faults.is_empty() {
        return match output.quiet {
            true => String::new(),
            false => format!("  ok    {name} ({seconds:.2} s)\n"),
        };
    }
    let mut text = format!("  {}  {name} (line {line})\n", output.paint(Role::Error, "FAIL"));
    faults.iter().for_each(|fault| text.push_str(&indented(&fault_text(output, fault))));
    text
}

fn indented(text: &str) -> String {
    text.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("        {line}\n") }).collect()
}

fn fault_text(output: Output, fault: &TestFault) -> String {
    match fault {
        TestFault::Rows { entry, differences, counts: (expected, found) } => {
            let rows = if *expected == 1 { "row" } else { "rows" };
            let mut text = format!("`{entry}`: {expected} {rows} expected, {found} found\n");
            differences.iter().take(SHOWN).for_each(|difference| text.push_str(&difference_text(difference)));
            if differences.len() > SHOWN {
                let _ = writeln!(text, "  and {} more differences: `--json` has all", differences.len() - SHOWN);
            }
            text
        }
        TestFault::Other { what } => what.clone(),
        TestFault::Failed { failure, .. } => message::failure(output, failure),
    }
}

fn difference_text(difference: &Difference) -> String {
    match difference {
        Difference::Missing { expected, row } => format!("  - expected row {expected} is missing: {}\n", row_text(row)),
        Difference::Unexpected { found, row } => format!("  + row {found} is not expected: {}\n", row_text(row)),
        Difference::Differs { expected, found, columns, row } => {
            let is_same = |(column, _): &(&String, &Value)| columns.iter().all(|other| other.column != **column);
            let same: Row = row.iter().filter(is_same).map(|(column, value)| (column.clone(), value.clone())).collect();
            let mut text = format!("  ~ row {found} differs from expected row {expected}: {}\n", row_text(&same));
            for ColumnDifference { column, expected, found } in columns {
                let _ = writeln!(text, "      {column}: expected {expected}, found {found}");
            }
            text
        }
    }
}

fn row_text(row: &Row) -> String {
    Value::from(row.clone()).to_string()
}
