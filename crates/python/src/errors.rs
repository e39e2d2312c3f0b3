//! Exceptions: everything that is wrong, as one `millstream.Error`; what other libraries show of it; and warnings.

use std::fmt;

use millstream::{Error, ErrorKind, Failure, Lint};
use millstream_cli::message;
use millstream_cli::output::Output;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::given::is_given;

/// Whether the caller has written the job, so that lines and columns of it help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Author {
    /// The job is the caller's.
    Caller,
    /// The package has made the job of the arguments of a function.
    Package,
}

/// The exception for `failure`.
pub fn exception(py: Python<'_>, failure: Failure, author: Author) -> PyErr {
    made(py, failure, author).unwrap_or_else(|error| error)
}

/// The exception for `error`.
pub fn of_error(py: Python<'_>, error: Error) -> PyErr {
    exception(py, error.into(), Author::Caller)
}

fn made(py: Python<'_>, failure: Failure, author: Author) -> PyResult<PyErr> {
    let failure = if author == Author::Package { without_places(failure) } else { failure };
    let problems = PyList::empty(py);
    for lint in failure.lints.iter().filter(|lint| lint.is_error()) {
        problems.append(of_lint(py, lint)?)?;
    }
    for error in &failure.errors {
        problems.append(of_fault(py, error)?)?;
    }
    let text = message::failure(Output { quiet: true, ..Output::PLAIN }, &failure);
    let class = py.import("millstream._errors")?.getattr("Error")?;
    Ok(PyErr::from_value(class.call1((text.trim_end(), problems))?))
}

/// What goes wrong while another library reads: it shows the text of this in an exception of its own.
#[derive(Debug)]
pub struct Told(Failure);

impl From<Failure> for Told {
    fn from(failure: Failure) -> Self {
        Told(without_places(failure))
    }
}

impl std::error::Error for Told {}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let Some(error) = self.0.errors.first() else { return Ok(()) };
        let text = error.offending_text().map(|text| format!("  text `{text}`"));
        let cause = error.cause_text().map(|cause| format!("  cause {}", cause.trim_end()));
        let hint = error.hint_text().map(|hint| format!("hint: {hint}"));
        text.into_iter().chain(cause).chain(hint).try_for_each(|line| write!(f, "\n{line}"))
    }
}

/// The text of a warning.
pub fn warning(lint: &Lint, author: Author) -> String {
    match author {
        Author::Caller => message::lint(Output::PLAIN, lint).trim_start_matches("warning: ").trim_end().to_owned(),
        Author::Package => {
            // The one entry that is looked at is what the caller reads.
            let what = lint.what.replace("`rows`", "it");
            let hint = lint.hint.as_deref().map(|hint| format!("\nhint: {}", without_entry(hint)));
            format!("{what}{}", hint.unwrap_or_default())
        }
    }
}

/// The same, without places and entries of a job that the caller has never seen.
fn without_places(failure: Failure) -> Failure {
    let Failure { lints, errors } = failure;
    let as_error = |lint: Lint| {
        let error = Error::job(lint.what);
        let error = if lint.text.is_empty() { error } else { error.text(&lint.text) };
        lint.hint.as_deref().map(without_entry).into_iter().fold(error, Error::hint)
    };
    let of_lints = lints.into_iter().filter(Lint::is_error).map(as_error);
    Failure { lints: Vec::new(), errors: of_lints.chain(errors.iter().map(without_step)).collect() }
}

fn without_step(error: &Error) -> Error {
    let place = error.location().clone();
    let mut same = Error::new(error.kind(), without_entry(error.what()));
    // What `write` gives has a number in place of a URL.
    if let Some(uri) = place.uri.as_deref().filter(|uri| !is_given(uri)) {
        same = same.in_unit(uri, place.member.as_deref());
    }
    same = place.line.into_iter().fold(same, Error::line);
    same = place.byte.into_iter().fold(same, Error::byte);
    same = place.column.into_iter().fold(same, Error::column);
    same = error.offending_text().into_iter().fold(same, Error::text);
    same = error.cause_text().into_iter().fold(same, Error::cause);
    error.hint_text().map(without_entry).into_iter().fold(same, Error::hint)
}

/// A text that does not name the entries of the jobs that the package makes.
fn without_entry(text: &str) -> String {
    const OWN: &[&str] = &[" at `rows`", " of `rows`", " at `chosen`", " at `part`", " at `target`"];
    OWN.iter().fold(text.to_owned(), |text, entry| text.replace(entry, ""))
}

fn of_lint<'py>(py: Python<'py>, lint: &Lint) -> PyResult<Bound<'py, PyDict>> {
    let problem = PyDict::new(py);
    let is_placed = lint.line > 0;
    problem.set_item("kind", "job")?;
    problem.set_item("what", &lint.what)?;
    problem.set_item("file", &lint.path)?;
    problem.set_item("line", is_placed.then_some(lint.line))?;
    problem.set_item("column", is_placed.then_some(lint.column))?;
    problem.set_item("text", Some(&lint.text).filter(|text| !text.is_empty()))?;
    problem.set_item("hint", &lint.hint)?;
    Ok(problem)
}

fn of_fault<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyDict>> {
    let (problem, place) = (PyDict::new(py), error.location());
    problem.set_item("kind", name(error.kind()))?;
    problem.set_item("what", error.what())?;
    problem.set_item("file", &place.uri)?;
    problem.set_item("member", &place.member)?;
    problem.set_item("line", place.line)?;
    problem.set_item("byte", place.byte)?;
    problem.set_item("field", &place.column)?;
    problem.set_item("step", error.step_name())?;
    problem.set_item("text", error.offending_text())?;
    problem.set_item("cause", error.cause_text())?;
    problem.set_item("hint", error.hint_text())?;
    Ok(problem)
}

fn name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Job => "job",
        ErrorKind::Data => "data",
        ErrorKind::Refused => "refused",
        ErrorKind::Transient => "transient",
        ErrorKind::Memory => "memory",
        ErrorKind::Rejects => "rejects",
        ErrorKind::Requirement => "requirement",
        ErrorKind::Interrupted => "interrupted",
        ErrorKind::OutputClosed => "output closed",
        ErrorKind::Internal => "internal",
    }
}
