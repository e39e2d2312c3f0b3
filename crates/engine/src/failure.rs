//! Why a job does not run.

use millstream_core::Error;
use millstream_job::Lint;

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

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.lints.is_empty() && self.errors.is_empty()
    }

    /// Nothing, if nothing was found.
    pub fn none(self) -> Result<(), Failure> {
        if self.is_empty() { Ok(()) } else { Err(self) }
    }
}

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
