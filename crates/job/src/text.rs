//! The text of a job file and places in it.
//!
//! Owns lines, columns and the decoding of the file's bytes. What stands at a place is [`crate::tree`]'s; how a place
//! is shown is the command line's.

use std::sync::Arc;

use crate::lint::{Lint, LintCode, Severity};

/// A place in the job file: line and column from 1, the column in characters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The line, from 1; 0 stands for the file as a whole.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
}

/// A piece of the job file that begins at `line` and `column`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The line, from 1; 0 stands for the file as a whole.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// Its length in characters, within that line.
    pub length: usize,
}

impl Span {
    /// Where it begins.
    pub fn start(&self) -> Position {
        Position { line: self.line, column: self.column }
    }

    /// `length` characters at `position`.
    pub fn at(position: Position, length: usize) -> Self {
        Span { line: position.line, column: position.column, length }
    }
}

/// A job file's text, cut into lines the way YAML does it (LF, CR LF, or a lone CR).
#[derive(Debug, Clone)]
pub struct JobText {
    path: Arc<str>,
    lines: Arc<[String]>,
}

impl JobText {
    /// The text of the file at `path` (which is only used in messages).
    pub fn new(path: &str, text: &str) -> Self {
        JobText { path: path.into(), lines: unified(text).split('\n').map(str::to_owned).collect() }
    }

    /// The path, as it was given.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The whole text, with LF as the only line end.
    pub fn whole(&self) -> String {
        self.lines.join("\n")
    }

    /// The line (from 1) without its end; empty if there is no such line.
    pub fn line(&self, line: usize) -> &str {
        line.checked_sub(1).and_then(|index| self.lines.get(index)).map_or("", String::as_str)
    }

    /// The characters of `span`.
    pub fn of(&self, span: Span) -> String {
        self.line(span.line).chars().skip(span.column.saturating_sub(1)).take(span.length).collect()
    }

    /// The last character before `position` that is no blank.
    pub fn before(&self, position: Position) -> Option<char> {
        let last = |text: &str| text.chars().rev().find(|character| !character.is_whitespace());
        let head: String = self.line(position.line).chars().take(position.column.saturating_sub(1)).collect();
        last(&head).or_else(|| (1..position.line).rev().find_map(|line| last(self.line(line))))
    }

    /// A lint at `span`; the offending text is what stands there.
    pub fn lint(&self, severity: Severity, span: Span, what: impl Into<String>) -> Lint {
        Lint {
            severity,
            code: LintCode::default(),
            path: self.path.to_string(),
            line: span.line,
            column: span.column,
            length: span.length,
            what: what.into(),
            text: self.of(span),
            source_line: self.line(span.line).to_owned(),
            hint: None,
        }
    }

    /// An error at `span`.
    pub fn error(&self, span: Span, what: impl Into<String>) -> Lint {
        self.lint(Severity::Error, span, what)
    }

    /// A warning at `span`.
    pub fn warning(&self, span: Span, what: impl Into<String>) -> Lint {
        self.lint(Severity::Warning, span, what)
    }
}

/// `text` without a byte order mark, all its line ends as YAML counts them: `\n`.
pub(crate) fn unified(text: &str) -> String {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    text.replace("\r\n", "\n").replace('\r', "\n")
}

/// The bytes of a job file as text, or the lint that says where they are not UTF-8.
pub fn decode<'a>(path: &str, bytes: &'a [u8]) -> Result<&'a str, Box<Lint>> {
    let cause = match std::str::from_utf8(bytes) {
        Ok(text) => return Ok(text),
        Err(cause) => cause,
    };
    let good = String::from_utf8_lossy(&bytes[..cause.valid_up_to()]);
    let text = JobText::new(path, &String::from_utf8_lossy(bytes));
    let line = good.matches('\n').count() + 1;
    let column = good.rsplit('\n').next().unwrap_or_default().trim_start_matches('\u{feff}').chars().count() + 1;
    let mut lint = text.error(Span { line, column, length: 1 }, "the job file is not UTF-8");
    lint.text = millstream_core::error::printable(&bytes[cause.valid_up_to()..(cause.valid_up_to() + 1)]);
    lint.hint = Some(match bytes {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "the file is UTF-16: save it as UTF-8".to_owned(),
        _ => "save the file as UTF-8".to_owned(),
    });
    Err(Box::new(lint))
}
