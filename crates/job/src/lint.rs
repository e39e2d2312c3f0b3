//! What is wrong with a job file, as data: how a lint is shown is the command line's.

use serde::Serialize;

use crate::text::Span;

/// How bad a lint is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The job cannot run.
    Error,
    /// The job can run, but probably does not do what was meant.
    Warning,
}

/// What kind of mistake a lint is about, where code has to know: messages change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LintCode {
    /// Any other.
    #[default]
    Other,
    /// A key that the schema does not have.
    UnknownKey,
    /// A block or a list with too many or too few entries.
    Count,
    /// A variable that has no value; the text of the lint is its `${…}`.
    NoValue,
    /// A value that is given to a variable which the file does not have; the text of the lint is its name.
    UnusedValue,
}

/// One fault of a job file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lint {
    /// How bad it is.
    pub severity: Severity,
    /// What kind of mistake it is.
    #[serde(skip)]
    pub code: LintCode,
    /// The job file.
    pub path: String,
    /// The line, from 1; 0 if the lint is about the file as a whole.
    pub line: usize,
    /// The column in characters, from 1; 0 if the lint is about the file as a whole.
    pub column: usize,
    /// Characters that are at fault, within the line.
    pub length: usize,
    /// What is wrong, in lower case, without a full stop.
    pub what: String,
    /// The offending text; empty if there is none or if it is a secret.
    pub text: String,
    /// The whole line, with secrets replaced by `***`.
    pub source_line: String,
    /// What to do; valid choices are listed.
    pub hint: Option<String>,
}

impl Lint {
    /// The lint, which is of this kind.
    pub fn code(self, code: LintCode) -> Self {
        Lint { code, ..self }
    }

    /// Adds what to do.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Whether it is about what begins where `span` does.
    pub fn is_at(&self, span: Span) -> bool {
        (self.line, self.column) == (span.line, span.column)
    }

    /// Whether it keeps the job from running.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// Says of keys that are not known where they stand that `file` has them, which they then belong to as a whole.
pub fn name_owner(lints: &mut [Lint], keys: &[&str], file: &str) {
    let is_of_file = |lint: &&mut Lint| lint.code == LintCode::UnknownKey && keys.contains(&lint.text.as_str());
    for lint in lints.iter_mut().filter(is_of_file) {
        lint.hint = Some(format!("`{}` is a key of {file}", lint.text));
    }
}

/// Sorts by place and leaves every lint once: a block that is used twice through an alias has its faults once.
pub fn tidy(lints: &mut Vec<Lint>) {
    lints.sort_by(|a, b| {
        (a.line, a.column, a.severity, &a.what, &a.hint).cmp(&(b.line, b.column, b.severity, &b.what, &b.hint))
    });
    lints.dedup_by(|a, b| (a.line, a.column, &a.what) == (b.line, b.column, &b.what));
}
