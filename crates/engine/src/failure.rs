//! Why a job does not run.

use std::fmt;

use millstream_core::Error;
use millstream_job::Lint;
use serde_json::{Value, json};

/// Why a job does not run: never without a lint that is an error, or an error.
#[derive(Debug, Default)]
pub struct Failure {
    /// What is wrong with the job file.
    pub lints: Vec<Lint>,
    /// What else is wrong.
    pub errors: Vec<Error>,
}

impl Failure {
    /// Adds what `other` found.
    pub fn add(&mut self, other: Failure) {
        self.lints.extend(other.lints);
        self.errors.extend(other.errors);
    }

    /// What is wrong, if anything is.
    pub fn of(errors: Vec<Error>) -> Result<(), Failure> {
        Failure { lints: Vec::new(), errors }.none()
    }

    /// The failure, with the warnings that were found before it.
    pub fn beside(mut self, warnings: Vec<Lint>) -> Self {
        self.lints.extend(warnings);
        self
    }

    /// The first of what is wrong.
    pub fn into_first(self) -> Error {
        let lint = self.lints.first().map(|lint| Error::job(lint.what.clone()));
        let error = self.errors.into_iter().next().or(lint);
        error.unwrap_or_else(|| Error::internal("it is not known what is wrong"))
    }

    /// All that is wrong, at least one error.
    pub fn into_errors(self) -> Vec<Error> {
        if self.errors.is_empty() { vec![self.into_first()] } else { self.errors }
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.lints.is_empty() && self.errors.is_empty()
    }

    /// Nothing, if nothing was found.
    pub fn none(self) -> Result<(), Failure> {
        if self.is_empty() { Ok(()) } else { Err(self) }
    }
}

/// An error as JSON.
pub fn error_json(error: &Error) -> Value {
    let place = error.location();
    let mut json = json!({
        "kind": format!("{:?}", error.kind()).to_lowercase(),
        "what": error.what(),
        "uri": place.uri,
        "member": place.member,
        "line": place.line,
        "byte": place.byte,
        "column": place.column,
        "step": error.step_name(),
        "text": error.offending_text(),
        "cause": error.cause_text(),
        "hint": error.hint_text(),
    });
    if let Some(last) = place.last_line {
        json["last_line"] = last.into();
    }
    json
}

/// The first error in one line, and how many there are more.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors = self.lints.iter().filter(|lint| lint.is_error());
        let (lints, more) = (errors.clone().count(), self.errors.len());
        match (errors.into_iter().next(), self.errors.first()) {
            (Some(lint), _) => write!(f, "{}:{}:{}: {}", lint.path, lint.line, lint.column, lint.what)?,
            (None, Some(error)) => write!(f, "{error}")?,
            (None, None) => f.write_str("the job does not run")?,
        }
        match (lints + more).saturating_sub(1) {
            0 => Ok(()),
            1 => f.write_str(" (and 1 more error)"),
            more => write!(f, " (and {more} more errors)"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure { lints: Vec::new(), errors: vec![error] }
    }
}

impl From<Lint> for Failure {
    fn from(lint: Lint) -> Self {
        Failure { lints: vec![lint], errors: Vec::new() }
    }
}
