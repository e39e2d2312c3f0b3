//! The one error of Millstream: what went wrong, where, the offending text, the cause, and what to do.
//!
//! It carries facts, not layout: the command line renders it. A component writes `what` in lower case, without a
//! full stop and without its own name; whoever knows more of the place adds it with [`Error::in_unit`] and
//! [`Error::in_step`], which never overwrite what is already known.

use std::borrow::Cow;
use std::fmt;

use crate::redact::Secrets;
use crate::reject::RejectKind;

/// A result whose error is Millstream's own.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of fault an error is: it decides the exit code and whether trying again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The job file or the arguments are wrong.
    Job,
    /// The data is not what it claims to be: cut short, a wrong checksum, a bad value.
    Data,
    /// The world refuses: a missing file, no rights, a 404, a full disk.
    Refused,
    /// A fault that may pass: a dropped connection, a 503, a time limit. Trying again can help.
    Transient,
    /// The memory budget does not allow it.
    Memory,
    /// More records were rejected than the job allows.
    Rejects,
    /// What the job requires before it begins does not hold.
    Requirement,
    /// The user ended the run.
    Interrupted,
    /// Whoever read our output has closed it: the run ends quietly.
    OutputClosed,
    /// A mistake in Millstream itself.
    Internal,
}

impl ErrorKind {
    /// The exit code of a process that ends with this error.
    pub fn exit_code(self) -> u8 {
        match self {
            ErrorKind::Job => 2,
            ErrorKind::Rejects => 3,
            ErrorKind::Requirement => 4,
            ErrorKind::Interrupted => 130,
            ErrorKind::OutputClosed => 0,
            _ => 1,
        }
    }
}

/// Where in the data a fault lies. Every part is optional: each layer fills in what it knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Location {
    /// The unit's URI, with passwords left out.
    pub uri: Option<String>,
    /// The member of an archive.
    pub member: Option<String>,
    /// The message of a queue.
    pub message: Option<String>,
    /// The line in the decoded text, from 1.
    pub line: Option<u64>,
    /// The last line, if it is a place of several records.
    pub last_line: Option<u64>,
    /// The byte, from 0: of the compressed unit for codecs, of the decoded text for formats.
    pub byte: Option<u64>,
    /// The column (field) of the record.
    pub column: Option<String>,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.uri.as_deref().map(|uri| if uri == "-" { "standard input" } else { uri }.to_owned()));
        parts.extend(self.member.as_ref().map(|member| format!("member {member}")));
        parts.extend(self.message.as_ref().map(|message| format!("message {message}")));
        parts.extend(self.line.map(|line| match self.last_line.filter(|last| *last != line) {
            Some(last) => format!("lines {line} to {last}"),
            None => format!("line {line}"),
        }));
        parts.extend(self.byte.map(|byte| format!("byte {byte}")));
        parts.extend(self.column.as_ref().map(|column| format!("column {column}")));
        f.write_str(&parts.join(", "))
    }
}

/// Millstream's error. Cheap to move: one pointer.
#[derive(Clone)]
pub struct Error(Box<Facts>);

#[derive(Debug, Clone)]
struct Facts {
    kind: ErrorKind,
    what: String,
    location: Location,
    step: Option<String>,
    text: Option<String>,
    cause: Option<String>,
    hint: Option<String>,
    reject: Option<RejectKind>,
    absent: bool,
    lasting: bool,
}

/// The offending text is cut to this many characters.
const TEXT_LIMIT: usize = 200;

impl Error {
    /// An error of `kind`; `what` says in lower case what went wrong.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Error(Box::new(Facts {
            kind,
            what: what.into(),
            location: Location::default(),
            step: None,
            text: None,
            cause: None,
            hint: None,
            reject: None,
            absent: false,
            lasting: false,
        }))
    }

    /// The job file or the arguments are wrong.
    pub fn job(what: impl Into<String>) -> Self {
        Error::new(ErrorKind::Job, what)
    }

    /// The data is not what it claims to be.
    pub fn data(what: impl Into<String>) -> Self {
        Error::new(ErrorKind::Data, what)
    }

    /// The world refuses, and trying again does not help.
    pub fn refused(what: impl Into<String>) -> Self {
        Error::new(ErrorKind::Refused, what)
    }

    /// A fault that may pass.
    pub fn transient(what: impl Into<String>) -> Self {
        Error::new(ErrorKind::Transient, what)
    }

    /// A mistake in Millstream itself.
    pub fn internal(what: impl Into<String>) -> Self {
        Error::new(ErrorKind::Internal, what).hint("this is a bug in Millstream; please report it with the job file")
    }

    /// Stored data (`what` names it: `the state folder /x`) has the version `found`, and this program knows versions
    /// only up to `known`. Such data must be neither read nor changed.
    pub fn newer(what: impl fmt::Display, found: impl fmt::Display, known: impl fmt::Display) -> Self {
        Error::refused(format!("{what} was written by a newer version of Millstream"))
            .cause(format!("it has version {found}, and this program knows versions up to {known}"))
    }

    /// An operating system's error while doing `what` (which names the path): a closed pipe becomes
    /// [`ErrorKind::OutputClosed`], an interrupted or timed-out call [`ErrorKind::Transient`], the rest
    /// [`ErrorKind::Refused`], with a hint where there is an obvious remedy.
    pub fn io(what: impl Into<String>, cause: &std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let kind = match cause.kind() {
            Io::BrokenPipe => ErrorKind::OutputClosed,
            Io::Interrupted | Io::TimedOut | Io::ConnectionReset | Io::ConnectionAborted => ErrorKind::Transient,
            _ => ErrorKind::Refused,
        };
        let error = Error::new(kind, what).cause(system_words(cause));
        match cause.kind() {
            Io::StorageFull | Io::QuotaExceeded => error.hint("free some space, or write to another disk"),
            Io::PermissionDenied => error.hint("check the permissions of the file and of its folder"),
            Io::ReadOnlyFilesystem => error.hint("write to a folder on a disk that can be written to"),
            _ => error,
        }
    }

    /// Adds the cause: another library's or the system's message.
    pub fn cause(mut self, cause: impl fmt::Display) -> Self {
        self.0.cause = Some(cause.to_string());
        self
    }

    /// Adds what the user can do.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Says that what was to be read is not there.
    pub fn absent(mut self) -> Self {
        self.0.absent = true;
        self
    }

    /// Whether what was to be read is not there, as far as that can be told.
    pub fn is_absent(&self) -> bool {
        self.0.absent
    }

    /// Says that trying again gives the same error, until something is done about it.
    pub fn lasting(mut self) -> Self {
        self.0.lasting = true;
        self
    }

    /// Whether a later attempt of the run may succeed, without anything being done about this error.
    pub fn may_pass(&self) -> bool {
        let by_kind =
            matches!(self.kind(), ErrorKind::Refused | ErrorKind::Transient | ErrorKind::Memory | ErrorKind::Internal);
        by_kind && !self.0.lasting
    }

    /// Says in one word what is wrong with a record.
    pub fn reject(mut self, kind: RejectKind) -> Self {
        self.0.reject = Some(kind);
        self
    }

    /// Adds the offending text. Bytes that are not UTF-8 and control characters are shown escaped; long text is cut.
    pub fn text(mut self, text: impl AsRef<[u8]>) -> Self {
        self.0.text = Some(printable(text.as_ref()));
        self
    }

    /// Sets the line, from 1.
    pub fn line(mut self, line: u64) -> Self {
        self.0.location.line = Some(line);
        self
    }

    /// Forgets the line.
    pub fn without_line(mut self) -> Self {
        self.0.location.line = None;
        self
    }

    /// Sets the last line of several.
    pub fn last_line(mut self, line: u64) -> Self {
        self.0.location.last_line = Some(line);
        self
    }

    /// Sets the byte, from 0.
    pub fn byte(mut self, byte: u64) -> Self {
        self.0.location.byte = Some(byte);
        self
    }

    /// Sets the column's name.
    pub fn column(mut self, column: impl Into<String>) -> Self {
        self.0.location.column = Some(column.into());
        self
    }

    /// Names the unit and member, unless they are already known. Passwords in the URI are left out.
    pub fn in_unit(mut self, uri: &str, member: Option<&str>) -> Self {
        let location = &mut self.0.location;
        location.uri.get_or_insert_with(|| one_line(&crate::redact::url(uri)));
        if location.member.is_none() {
            location.member = member.map(|member| printable(member.as_bytes()));
        }
        self
    }

    /// Names the message of a queue, unless it is already known. What cannot be printed is escaped.
    pub fn in_message(mut self, id: &str) -> Self {
        self.0.location.message.get_or_insert_with(|| printable(id.as_bytes()));
        self
    }

    /// Names the member of an archive, unless it is already known. What cannot be printed is escaped.
    pub fn in_member(mut self, member: &str) -> Self {
        self.0.location.member.get_or_insert_with(|| printable(member.as_bytes()));
        self
    }

    /// Names the step of the job, unless it is already known.
    pub fn in_step(mut self, step: &str) -> Self {
        self.0.step.get_or_insert_with(|| step.to_owned());
        self
    }

    /// Names the file of the job, before its step.
    pub fn in_job(mut self, path: &str) -> Self {
        self.0.step = Some(match self.0.step.take() {
            Some(step) => format!("{step} of {path}"),
            None => path.to_owned(),
        });
        self
    }

    /// The same without `secrets`, which what failed may have repeated.
    pub(crate) fn without(mut self, secrets: &Secrets) -> Self {
        let facts = &mut *self.0;
        let texts = [Some(&mut facts.what), facts.text.as_mut(), facts.cause.as_mut(), facts.hint.as_mut()];
        for text in texts.into_iter().flatten() {
            if let Cow::Owned(hidden) = secrets.hidden(text) {
                *text = hidden;
            }
        }
        self
    }

    /// The kind of fault.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What is wrong with a record, in one word.
    pub fn reject_kind(&self) -> RejectKind {
        self.0.reject.unwrap_or(RejectKind::Other)
    }

    /// What went wrong, in one line.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// Where in the data.
    pub fn location(&self) -> &Location {
        &self.0.location
    }

    /// The step of the job.
    pub fn step_name(&self) -> Option<&str> {
        self.0.step.as_deref()
    }

    /// The offending text, printable.
    pub fn offending_text(&self) -> Option<&str> {
        self.0.text.as_deref()
    }

    /// The cause, as another library or the system told it.
    pub fn cause_text(&self) -> Option<&str> {
        self.0.cause.as_deref()
    }

    /// What the user can do.
    pub fn hint_text(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

/// The system's words, without its number, and without the path that the wrapper of the file system's calls puts in
/// front (failed to do this with `path`: cause): `what` names it already.
fn system_words(cause: &std::io::Error) -> String {
    let text = cause.to_string();
    let text = text.rsplit_once("`: ").map_or(text.as_str(), |(_, cause)| cause);
    let text = text.split(" (os error ").next().unwrap_or(text);
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_lowercase().chain(characters).collect())
}

/// Text as one printable line of at most [`TEXT_LIMIT`] characters: control characters and bytes that are not UTF-8
/// are escaped, and a cut is shown as `…`.
pub fn printable(text: &[u8]) -> String {
    let mut shown = String::new();
    let mut room = TEXT_LIMIT;
    for chunk in text.utf8_chunks() {
        let characters = chunk.valid().chars().map(Ok);
        for character in characters.chain(chunk.invalid().iter().map(Err)) {
            if room == 0 {
                shown.push('…');
                return shown;
            }
            room -= 1;
            match character {
                Ok(character) => push_printable(character, &mut shown),
                Err(byte) => shown.push_str(&format!("\\x{byte:02x}")),
            }
        }
    }
    shown
}

/// A name as one printable line, however long it is.
pub fn one_line(name: &str) -> String {
    let mut shown = String::with_capacity(name.len());
    name.chars().for_each(|character| push_printable(character, &mut shown));
    shown
}

/// What would move the cursor of a terminal, or turn the order of the text around it, is escaped.
fn push_printable(character: char, shown: &mut String) {
    match character {
        '\t' => shown.push_str("\\t"),
        '\n' => shown.push_str("\\n"),
        '\r' => shown.push_str("\\r"),
        '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            shown.extend(character.escape_unicode());
        }
        control if control.is_control() => shown.extend(control.escape_default()),
        other => shown.push(other),
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One line: place, what, cause. The command line shows the facts at more length.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.location != Location::default() {
            write!(f, "{}: ", self.0.location)?;
        }
        f.write_str(&self.0.what)?;
        if let Some(cause) = &self.0.cause {
            write!(f, ": {cause}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_filled_from_inside_out() {
        let error = Error::data("bad value")
            .line(3)
            .in_unit("a.csv", Some("m"))
            .in_unit("b.csv", None)
            .in_step("read")
            .in_step("outer");
        assert_eq!(error.location().to_string(), "a.csv, member m, line 3");
        assert_eq!(error.step_name(), Some("read"));
        assert_eq!(error.to_string(), "a.csv, member m, line 3: bad value");
    }

    #[test]
    fn standard_input_is_called_by_its_name() {
        assert_eq!(
            Error::data("bad value").in_unit("-", None).line(2).to_string(),
            "standard input, line 2: bad value"
        );
    }

    #[test]
    fn a_fault_of_the_system_is_reported_without_path_and_number() {
        let cause = fs_err::File::open("/no/such `: file").expect_err("there is none");
        assert_eq!(Error::io("cannot read it", &cause).to_string(), "cannot read it: no such file or directory");
        let plain = std::io::Error::from_raw_os_error(28);
        let error = Error::io("cannot write it", &plain);
        assert_eq!(error.cause_text(), Some("no space left on device"));
        assert!(error.hint_text().is_some());
    }

    #[test]
    fn offending_text_is_printable_and_short() {
        assert_eq!(printable(b"a\tb\xff\x00"), "a\\tb\\xff\\u{0}");
        assert_eq!(printable("ä".repeat(1000).as_bytes()).chars().count(), TEXT_LIMIT + 1);
        assert_eq!(printable("ä".repeat(TEXT_LIMIT).as_bytes()).chars().count(), TEXT_LIMIT, "nothing is cut");
        assert_eq!(printable(&[0xff; 1000]), format!("{}…", "\\xff".repeat(TEXT_LIMIT)));
        let crossing = ["a".repeat(TEXT_LIMIT - 1).as_bytes(), &[0xff], &[b'b'; 1000]].concat();
        assert!(printable(&crossing).ends_with("a\\xff…"), "bytes that are not UTF-8 count too");
        assert_eq!(printable("a\u{202e}b".as_bytes()), "a\\u{202e}b");
    }

    #[test]
    fn a_name_cannot_forge_a_message() {
        let error = Error::data("bad value").in_unit("a\n\x1b[2Jhint: all is well.csv", None);
        assert_eq!(error.to_string(), "a\\n\\u{1b}[2Jhint: all is well.csv: bad value");
    }
}
