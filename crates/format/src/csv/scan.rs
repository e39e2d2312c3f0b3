//! Finds records and fields: the structure of a csv text, complete or not.
//!
//! The scanner moves from mark to mark (see [`super::marks`]) and records where each field ends. It stops inside an
//! incomplete record and continues there when more text has come, so that a cut only costs the copy of that record.
//! Records with a bad structure are listed separately. [`super::sweep`] scans many plain records at once.
//!
//! ```text
//!                   ┌──────────── delimiter ────────────┐
//!                   ▼                                    │
//!   record ─▶ FieldStart ─ quote ─▶ Quoted ─ quote ─▶ Closed ─ line end ─▶ record is complete
//!                   │                                    │
//!                   └─ anything ─▶ Unquoted ─ delimiter or line end, as above
//!        a quote in Unquoted, or text in Closed ─▶ Skipping, to the end of the line
//! ```
//! The first line end of a file decides what a CR alone is, see [`LineEnds`].

use super::marks::{MarkSet, Marks};
use super::spec::Dialect;
use super::sweep::Sweeper;

/// The positions of the records and fields of one text. All records have the same number of fields.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Fields in each record.
    pub width: usize,
    /// Where each record begins.
    pub starts: Vec<u32>,
    /// Where each field ends, `width` for each record.
    pub ends: Vec<u32>,
    /// On which line each record begins, from 1.
    pub lines: Vec<u64>,
}

impl Index {
    /// The number of records.
    pub fn rows(&self) -> usize {
        self.starts.len()
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.starts.clear();
        self.ends.clear();
        self.lines.clear();
    }

    /// The range of a record, without its line end.
    pub fn record(&self, row: usize) -> (usize, usize) {
        (self.starts[row] as usize, self.ends[(row + 1) * self.width - 1] as usize)
    }

    /// Keeps the records for which `keep` is true.
    pub fn retain(&mut self, mut keep: impl FnMut(usize) -> bool) {
        let mut kept = 0;
        for row in 0..self.rows() {
            if !keep(row) {
                continue;
            }
            self.starts[kept] = self.starts[row];
            self.lines[kept] = self.lines[row];
            self.ends.copy_within(row * self.width..(row + 1) * self.width, kept * self.width);
            kept += 1;
        }
        self.starts.truncate(kept);
        self.lines.truncate(kept);
        self.ends.truncate(kept * self.width);
    }
}

/// What ends the lines of a file. The first line end decides, as for PostgreSQL's `COPY`: if lines end in LF, a CR
/// outside of quotes belongs to a value that should be in quotes, and must not split its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineEnds {
    /// LF or CR LF. A CR alone outside of quotes is a fault.
    Feeds,
    /// A CR; LF and CR LF end a line too.
    Returns,
}

impl LineEnds {
    /// Those of a file whose first line end is the whole of `end`; `None` if that is the end of the text.
    pub fn of(end: &[u8]) -> Option<Self> {
        match end {
            [] => None,
            [b'\r'] => Some(LineEnds::Returns),
            _ => Some(LineEnds::Feeds),
        }
    }

    /// Those of a file that begins with `text`; `None` if it has no line end, or only a CR at its end.
    pub fn first(text: &[u8]) -> Option<Self> {
        let at = memchr::memchr2(b'\n', b'\r', text)?;
        match (text[at], text.get(at + 1)) {
            (b'\n', _) | (_, Some(b'\n')) => Some(LineEnds::Feeds),
            (_, behind) => behind.map(|_| LineEnds::Returns),
        }
    }
}

/// What is wrong with the structure of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StructureFault {
    /// It has this many fields, not the index's width.
    FieldCount(usize),
    /// A quote inside an unquoted field.
    QuoteInside,
    /// Text between a closing quote and the next delimiter.
    AfterQuote,
    /// A CR outside of quotes that ends no line.
    LoneReturn,
    /// A quote, opened in this line, is not closed before the text ends.
    Unclosed(u64),
}

/// A record with a bad structure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BadRecord {
    /// What is wrong with it.
    pub structure_fault: StructureFault,
    /// Where the record begins in the text.
    pub start: usize,
    /// Where it ends, without its line end.
    pub end: usize,
    /// The position of the fault.
    pub at: usize,
    /// The line on which the record begins.
    pub line: u64,
}

/// How one call of [`Scanner::scan`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scanned {
    /// As many records (good, bad or skipped) as were allowed; the next begins here.
    Enough(usize),
    /// All of the text was scanned, except an incomplete record (or nothing) that begins here.
    Incomplete(usize),
    /// The record that begins here is longer than `max_record`; with the line of its open quote, if any.
    TooLong(usize, Option<u64>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// At the first byte of a record.
    RecordStart,
    /// At the first byte of a field.
    FieldStart,
    Unquoted,
    Quoted,
    /// After a closing quote.
    Closed,
    /// In a bad record, before the end of its line.
    Skipping,
    /// In a comment.
    Comment,
}

/// An incomplete record.
#[derive(Debug, Clone, Copy)]
struct Current {
    phase: Phase,
    start: usize,
    /// The next position.
    position: usize,
    /// Line ends inside quotes so far.
    newlines: u64,
    /// Where the last quote was opened, and how many line ends of the record are before it.
    opened: (usize, u64),
    structure_fault: Option<(StructureFault, usize)>,
}

impl Current {
    fn at(start: usize) -> Self {
        Current {
            phase: Phase::RecordStart,
            start,
            position: start,
            newlines: 0,
            opened: (start, 0),
            structure_fault: None,
        }
    }
}

/// The result of a step inside a record.
enum Step {
    /// Continue in the current phase and position.
    On,
    /// The record ends here; the next begins there.
    End(usize, usize),
    /// More text is needed.
    More,
}

/// Finds the records of one unit.
#[derive(Debug)]
pub(crate) struct Scanner {
    dialect: Dialect,
    sweeper: Option<Sweeper>,
    marks: MarkSet,
    /// Fields that a record must have; `None` for any number.
    width: Option<usize>,
    /// What ends lines; `None` before the first line end.
    line_ends: Option<LineEnds>,
    /// The line on which the current record begins, from 1.
    line: u64,
    /// Where the last sweep ended.
    swept_to: usize,
    incomplete: Option<(Current, Vec<u32>)>,
}

impl Scanner {
    /// At line `line` (from 1) of a unit.
    pub fn new(dialect: Dialect, line: u64) -> Self {
        let mut marks = vec![b'\n', b'\r', dialect.delimiter.first().copied().unwrap_or(b',')];
        marks.extend(dialect.quote);
        marks.extend(dialect.escape);
        let sweeper = Sweeper::new(&dialect);
        let marks = MarkSet::new(&marks);
        Scanner { marks, sweeper, dialect, width: None, line_ends: None, line, swept_to: 0, incomplete: None }
    }

    /// Sets how many fields a record must have.
    pub fn set_width(&mut self, width: Option<usize>) {
        self.width = width;
    }

    /// Sets what ends lines, if the file's first line end was seen before.
    pub fn set_line_ends(&mut self, line_ends: Option<LineEnds>) {
        self.line_ends = line_ends;
    }

    /// What ends lines; `None` before the first line end.
    pub fn line_ends(&self) -> Option<LineEnds> {
        self.line_ends
    }

    /// The line on which the next record begins.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Skips whole records, one a line, that begin at the next one.
    pub fn skip_lines(&mut self, lines: u64) {
        self.line += lines;
    }

    /// Moves an incomplete record to the first byte of the text, as the caller has done.
    pub fn rebase(&mut self, by: usize) {
        if let Some((current, ends)) = &mut self.incomplete {
            current.start -= by;
            current.position -= by;
            current.opened.0 -= by;
            if let Some((_, at)) = &mut current.structure_fault {
                *at -= by;
            }
            let by = position32(by);
            ends.iter_mut().for_each(|end| *end -= by);
        }
    }

    /// Adds to `index` and `bad` the records of `text` that begin at or after `from`, at most `limit` of them. A record
    /// that an earlier call left incomplete must begin at `from`. `last` says that no more text comes. The text is
    /// shorter than 4 GiB.
    pub fn scan(
        &mut self,
        text: &[u8],
        from: usize,
        last: bool,
        limit: usize,
        index: &mut Index,
        bad: &mut Vec<BadRecord>,
    ) -> Scanned {
        index.width = self.width.unwrap_or(0);
        let mut current = match self.incomplete.take() {
            Some((current, ends)) => {
                index.ends.extend(ends);
                current
            }
            None => Current::at(from),
        };
        let mut first_end = index.rows() * index.width;
        let mut marks = Marks::new(text, self.marks, current.position);
        let mut found = 0;
        let mut patience = Patience::default();
        while found < limit {
            if current.phase == Phase::RecordStart && patience.is_over() {
                let swept = self.sweep(text, current.start, limit - found, index);
                patience.learn(swept);
                if swept > 0 {
                    found += swept;
                    first_end = index.ends.len();
                    current = Current::at(self.swept_to);
                    marks.skip_to(current.start);
                    continue;
                }
            }
            if current.phase == Phase::RecordStart && current.start >= text.len() {
                return Scanned::Incomplete(text.len());
            }
            let ended = loop {
                match self.step(text, last, &mut current, &mut marks, &mut index.ends) {
                    Step::On => {}
                    Step::End(end, next) => break Some((end, next)),
                    Step::More => break None,
                }
            };
            let Some((end, next)) = ended else {
                let start = current.start;
                if current.position - start > self.dialect.max_record {
                    return self.too_long(text, start);
                }
                self.incomplete = Some((current, index.ends.split_off(first_end)));
                return Scanned::Incomplete(start);
            };
            if end - current.start > self.dialect.max_record {
                return self.too_long(text, current.start);
            }
            self.take(&current, end, first_end, index, bad);
            if self.line_ends.is_none() {
                self.line_ends = LineEnds::of(&text[end..next]);
            }
            first_end = index.ends.len();
            self.line += current.newlines + 1;
            current = Current::at(next);
            marks.skip_to(next);
            found += 1;
        }
        Scanned::Enough(current.start)
    }

    /// Scans plain records at `from`. Returns how many.
    fn sweep(&mut self, text: &[u8], from: usize, limit: usize, index: &mut Index) -> usize {
        let (Some(sweeper), Some(1..)) = (&self.sweeper, self.width) else { return 0 };
        let swept = sweeper.sweep(text, from, self.line, limit, index);
        (self.line, self.swept_to) = (swept.line, swept.next);
        if swept.rows > 0 {
            // Swept records end in LF or CR LF.
            self.line_ends.get_or_insert(LineEnds::Feeds);
        }
        swept.rows
    }

    /// The record at `start` is longer than allowed. Whether a quote is open is checked at the limit, not where the
    /// scan stopped, so that the message does not depend on how the text was cut.
    fn too_long(&self, text: &[u8], start: usize) -> Scanned {
        let text = &text[..=start + self.dialect.max_record];
        let mut current = Current::at(start);
        let mut marks = Marks::new(text, self.marks, start);
        let mut ends = Vec::new();
        while let Step::On = self.step(text, false, &mut current, &mut marks, &mut ends) {}
        let open = (current.phase == Phase::Quoted).then_some(self.line + current.opened.1);
        Scanned::TooLong(start, open)
    }

    /// Adds a complete record to `index` or `bad`.
    fn take(&self, current: &Current, end: usize, first_end: usize, index: &mut Index, bad: &mut Vec<BadRecord>) {
        let count = index.ends.len() - first_end;
        let structure_fault = match (current.structure_fault, self.width) {
            (Some(structure_fault), _) => Some(structure_fault),
            _ if current.phase == Phase::Comment || (end == current.start && self.width != Some(1)) => {
                index.ends.truncate(first_end);
                return;
            }
            (None, Some(width)) if width != count => Some((StructureFault::FieldCount(count), current.start)),
            _ => None,
        };
        match structure_fault {
            None => {
                if self.width.is_none() {
                    index.width = count;
                }
                index.starts.push(position32(current.start));
                index.lines.push(self.line);
            }
            Some((structure_fault, at)) => {
                index.ends.truncate(first_end);
                bad.push(BadRecord { structure_fault, start: current.start, end, at, line: self.line });
            }
        }
    }

    #[inline]
    fn step(&self, text: &[u8], last: bool, current: &mut Current, marks: &mut Marks<'_>, ends: &mut Vec<u32>) -> Step {
        match current.phase {
            Phase::RecordStart => {
                let comment =
                    self.dialect.comment.is_some() && text.get(current.start) == self.dialect.comment.as_ref();
                current.phase = if comment { Phase::Comment } else { Phase::FieldStart };
                Step::On
            }
            Phase::FieldStart => self.field_start(text, last, current, marks),
            Phase::Unquoted => self.unquoted(text, last, current, marks, ends),
            Phase::Quoted => self.quoted(text, last, current, marks, ends),
            Phase::Closed => self.closed(text, last, current, marks, ends),
            Phase::Skipping | Phase::Comment => self.to_line_end(text, last, current, marks),
        }
    }

    #[inline]
    fn field_start(&self, text: &[u8], last: bool, current: &mut Current, marks: &mut Marks<'_>) -> Step {
        let Some(quote) = self.dialect.quote else {
            current.phase = Phase::Unquoted;
            return Step::On;
        };
        let mut position = current.position;
        if self.dialect.trim {
            position = self.behind_blanks(text, position);
        }
        match text.get(position) {
            Some(byte) if *byte == quote => {
                current.phase = Phase::Quoted;
                current.position = position + 1;
                current.opened = (position, current.newlines);
                marks.skip_to(position + 1);
                Step::On
            }
            None if !last => Step::More,
            _ => {
                current.phase = Phase::Unquoted;
                Step::On
            }
        }
    }

    #[inline]
    fn unquoted(
        &self,
        text: &[u8],
        last: bool,
        current: &mut Current,
        marks: &mut Marks<'_>,
        ends: &mut Vec<u32>,
    ) -> Step {
        let dialect = &self.dialect;
        while let Some(at) = marks.next() {
            let byte = text[at];
            if byte == dialect.delimiter[0] {
                match self.delimiter_at(text, last, at) {
                    Found::Yes => {
                        ends.push(position32(at));
                        current.position = at + dialect.delimiter.len();
                        current.phase = Phase::FieldStart;
                        return Step::On;
                    }
                    Found::No => continue,
                    Found::More => {
                        current.position = at;
                        return Step::More;
                    }
                }
            }
            if byte == b'\n' || byte == b'\r' {
                return self.line_end(text, last, at, current, ends);
            }
            if Some(byte) == dialect.quote {
                current.structure_fault = Some((StructureFault::QuoteInside, at));
                current.phase = Phase::Skipping;
                current.position = at + 1;
                return Step::On;
            }
        }
        current.position = text.len();
        if last { self.end_of_text(text, ends) } else { Step::More }
    }

    fn quoted(
        &self,
        text: &[u8],
        last: bool,
        current: &mut Current,
        marks: &mut Marks<'_>,
        ends: &mut Vec<u32>,
    ) -> Step {
        while let Some(at) = marks.next() {
            let byte = text[at];
            let follows = text.get(at + 1).copied();
            let undecided = follows.is_none() && !last;
            if Some(byte) == self.dialect.quote {
                if self.dialect.escape.is_none() {
                    if undecided {
                        current.position = at;
                        return Step::More;
                    }
                    if follows == Some(byte) {
                        marks.skip_to(at + 2);
                        continue;
                    }
                }
                current.position = at + 1;
                current.phase = Phase::Closed;
                return Step::On;
            }
            if Some(byte) == self.dialect.escape {
                if undecided {
                    current.position = at;
                    return Step::More;
                }
                if follows == self.dialect.quote || follows == self.dialect.escape {
                    marks.skip_to(at + 2);
                }
            } else if byte == b'\n' {
                current.newlines += 1;
            } else if byte == b'\r' {
                if undecided {
                    current.position = at;
                    return Step::More;
                }
                // The line feed after it is counted instead.
                current.newlines += u64::from(follows != Some(b'\n'));
            }
        }
        current.position = text.len();
        if !last {
            return Step::More;
        }
        current.structure_fault = Some((StructureFault::Unclosed(self.line + current.opened.1), current.opened.0));
        self.end_of_text(text, ends)
    }

    #[inline]
    fn closed(
        &self,
        text: &[u8],
        last: bool,
        current: &mut Current,
        marks: &mut Marks<'_>,
        ends: &mut Vec<u32>,
    ) -> Step {
        let dialect = &self.dialect;
        let mut at = current.position;
        if dialect.trim {
            at = self.behind_blanks(text, at);
        }
        let Some(byte) = text.get(at).copied() else {
            return if last { self.end_of_text(text, ends) } else { Step::More };
        };
        marks.skip_to(at + 1);
        if byte == b'\n' || byte == b'\r' {
            return self.line_end(text, last, at, current, ends);
        }
        match if byte == dialect.delimiter[0] { self.delimiter_at(text, last, at) } else { Found::No } {
            Found::Yes => {
                ends.push(position32(at));
                current.position = at + dialect.delimiter.len();
                current.phase = Phase::FieldStart;
                Step::On
            }
            Found::More => Step::More,
            Found::No => {
                current.structure_fault = Some((StructureFault::AfterQuote, at));
                current.phase = Phase::Skipping;
                current.position = at;
                // The skipped byte may be another mark, but is no line end.
                Step::On
            }
        }
    }

    fn to_line_end(&self, text: &[u8], last: bool, current: &mut Current, marks: &mut Marks<'_>) -> Step {
        while let Some(at) = marks.next() {
            if matches!(text[at], b'\n' | b'\r') {
                match self.line_end(text, last, at, current, &mut Vec::new()) {
                    Step::On => {}
                    step => return step,
                }
            }
        }
        current.position = text.len();
        if last { Step::End(text.len(), text.len()) } else { Step::More }
    }

    /// A record (and its last field) ends at the line end at `at`: LF, CR LF or CR. If lines end in LF, a CR alone is a
    /// fault of the record, which continues (as does a comment).
    #[inline]
    fn line_end(&self, text: &[u8], last: bool, at: usize, current: &mut Current, ends: &mut Vec<u32>) -> Step {
        let next = match (text[at], text.get(at + 1)) {
            (b'\r', Some(b'\n')) => at + 2,
            (b'\r', None) if !last => {
                current.position = at;
                return Step::More;
            }
            (b'\r', _) if self.line_ends == Some(LineEnds::Feeds) => {
                if current.phase != Phase::Comment {
                    current.structure_fault.get_or_insert((StructureFault::LoneReturn, at));
                    current.phase = Phase::Skipping;
                }
                current.position = at + 1;
                return Step::On;
            }
            _ => at + 1,
        };
        ends.push(position32(at));
        Step::End(at, next)
    }

    fn end_of_text(&self, text: &[u8], ends: &mut Vec<u32>) -> Step {
        ends.push(position32(text.len()));
        Step::End(text.len(), text.len())
    }

    #[inline]
    fn delimiter_at(&self, text: &[u8], last: bool, at: usize) -> Found {
        let delimiter = &self.dialect.delimiter[..];
        if delimiter.len() == 1 || text[at..].starts_with(delimiter) {
            return Found::Yes;
        }
        if !last && delimiter.starts_with(&text[at..]) { Found::More } else { Found::No }
    }

    fn behind_blanks(&self, text: &[u8], mut position: usize) -> usize {
        while text.get(position).is_some_and(|byte| self.dialect.is_blank(*byte)) {
            position += 1;
        }
        position
    }
}

/// How many records are scanned one by one before a sweep is tried again: if records are not plain, trying costs more
/// than it saves.
#[derive(Debug, Default)]
struct Patience {
    left: u32,
    next: u32,
}

impl Patience {
    fn is_over(&mut self) -> bool {
        let over = self.left == 0;
        self.left = self.left.saturating_sub(1);
        over
    }

    /// Adapts to how many records the last sweep has scanned.
    fn learn(&mut self, taken: usize) {
        self.next = if taken > 1 { 0 } else { (self.next * 2 + 1).min(63) };
        self.left = self.next;
    }
}

enum Found {
    Yes,
    No,
    More,
}

/// Positions are kept in 32 bits; the parser passes shorter texts.
#[inline]
#[allow(clippy::cast_possible_truncation)]
fn position32(position: usize) -> u32 {
    debug_assert!(u32::try_from(position).is_ok());
    position as u32
}
