//! Cuts a csv text where a record ends.
//!
//! Without quotes, every line end ends a record: such a stretch is only searched for its last line end. Otherwise a
//! small state machine moves from mark to mark. Delimiters, the most frequent bytes, are no marks: it looks back from a
//! quote to see whether the quote is at the beginning of a field.
//!
//! ```text
//!             ┌───────────────── delimiter ────────────────┐
//!             ▼                                            │
//!   record ─▶ Plain ─ quote at a field's beginning ─▶ Quoted ─ quote ─▶ Closed ─ line end ─▶ record is complete
//!             │  └─ line end ─▶ record is complete                       │
//!             └─ any other quote ─▶ Rest, to the end of the line ◀─ text ┘
//! ```
//! It must find the same ends as [`super::scan`], which also finds faults. A test compares them.

use bytes::Bytes;
use memchr::{memchr, memchr_iter, memchr2, memrchr, memrchr2};
use millstream_core::format::{Splitter, TextPiece};

use super::marks::{MarkSet, Marks};
use super::scan::LineEnds;
use super::spec::Dialect;
use crate::split::Pending;

/// A stretch without quotes is worth a search of its own if it is at least this long; so much text is also scanned
/// record by record before the next quote is searched.
const STRETCH: usize = if cfg!(test) { 8 } else { 16 << 10 };

/// The least by which the carry buffer grows.
const CARRY_STEP: usize = 256;

/// How far beyond the limit a record must reach to count as too long: so many bytes may be undecided at the end of a
/// text.
const SLACK: usize = 8;

/// The position in a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inside {
    /// At its first byte.
    Start,
    /// Outside of quotes.
    Plain,
    Quoted,
    /// After a closing quote.
    Closed,
    /// In a record that is bad, or a comment: nothing counts but the end of the line.
    Rest,
}

/// An incomplete record.
#[derive(Debug, Clone, Copy)]
struct Walk {
    inside: Inside,
    start: usize,
    /// The next position.
    position: usize,
    /// Where the first unchecked field begins: the field of a quote begins there or after a delimiter.
    field: usize,
    /// Line ends inside quotes so far.
    newlines: u64,
    comment: bool,
    /// Whether the record ends with a CR alone.
    lone_cr: bool,
}

impl Walk {
    fn at(start: usize) -> Self {
        Walk {
            inside: Inside::Start,
            start,
            position: start,
            field: start,
            newlines: 0,
            comment: false,
            lone_cr: false,
        }
    }

    fn rebase(mut self) -> Self {
        self.position -= self.start;
        self.field -= self.start;
        self.start = 0;
        self
    }
}

/// Finds the end of one record after the other.
struct Walker {
    dialect: Dialect,
    marks: MarkSet,
    /// What ends lines; `None` before the first line end.
    line_ends: Option<LineEnds>,
}

impl Walker {
    fn new(dialect: Dialect) -> Self {
        let mut marks = vec![b'\n', b'\r'];
        marks.extend(dialect.quote);
        marks.extend(dialect.escape);
        Walker { marks: MarkSet::new(&marks), dialect, line_ends: None }
    }

    /// Where the next record begins; `None` if more text is needed.
    #[inline]
    fn next(&self, text: &[u8], walk: &mut Walk, marks: &mut Marks<'_>) -> Option<usize> {
        loop {
            match walk.inside {
                Inside::Start => {
                    let first = text.get(walk.start)?;
                    walk.comment = Some(*first) == self.dialect.comment;
                    walk.inside = if walk.comment { Inside::Rest } else { Inside::Plain };
                }
                Inside::Plain => match self.plain(text, walk, marks)? {
                    0 => {}
                    next => return Some(next),
                },
                Inside::Quoted => self.quoted(text, walk, marks)?,
                Inside::Closed => match self.closed(text, walk)? {
                    0 => marks.skip_to(walk.position),
                    next => return Some(next),
                },
                Inside::Rest => {
                    while let Some(at) = marks.next() {
                        if matches!(text[at], b'\n' | b'\r') {
                            match self.line_end(text, at, walk)? {
                                0 => {}
                                next => return Some(next),
                            }
                        }
                    }
                    walk.position = text.len();
                    return None;
                }
            }
        }
    }

    /// Moves to the end of the record, or returns 0 for another phase.
    #[inline]
    fn plain(&self, text: &[u8], walk: &mut Walk, marks: &mut Marks<'_>) -> Option<usize> {
        while let Some(at) = marks.next() {
            let byte = text[at];
            if byte == b'\n' || byte == b'\r' {
                return self.line_end(text, at, walk);
            }
            if Some(byte) == self.dialect.quote {
                walk.inside = if self.begins_field(text, walk.field, at) { Inside::Quoted } else { Inside::Rest };
                walk.position = at + 1;
                return Some(0);
            }
        }
        walk.position = text.len();
        None
    }

    /// Whether a field begins at `at`; the earliest possible field begins at `field`.
    fn begins_field(&self, text: &[u8], field: usize, mut at: usize) -> bool {
        while self.dialect.trim && at > field && self.dialect.is_blank(text[at - 1]) {
            at -= 1;
        }
        at == field || text[field..at].ends_with(&self.dialect.delimiter)
    }

    /// Moves past the closing quote.
    fn quoted(&self, text: &[u8], walk: &mut Walk, marks: &mut Marks<'_>) -> Option<()> {
        while let Some(at) = marks.next() {
            let byte = text[at];
            let follows = text.get(at + 1).copied();
            walk.position = at;
            if Some(byte) == self.dialect.quote {
                if self.dialect.escape.is_none() && follows? == byte {
                    marks.skip_to(at + 2);
                    continue;
                }
                walk.position = at + 1;
                walk.inside = Inside::Closed;
                return Some(());
            }
            if Some(byte) == self.dialect.escape {
                let follows = Some(follows?);
                if follows == self.dialect.quote || follows == self.dialect.escape {
                    marks.skip_to(at + 2);
                }
            } else if byte == b'\n' {
                walk.newlines += 1;
            } else {
                // The line feed after it is counted instead.
                walk.newlines += u64::from(follows? != b'\n');
            }
        }
        walk.position = text.len();
        None
    }

    /// Moves to the end of the record, or returns 0 for another phase.
    fn closed(&self, text: &[u8], walk: &mut Walk) -> Option<usize> {
        let mut at = walk.position;
        while self.dialect.trim && text.get(at).is_some_and(|byte| self.dialect.is_blank(*byte)) {
            at += 1;
        }
        let rest = text.get(at..).filter(|rest| !rest.is_empty())?;
        if matches!(rest[0], b'\n' | b'\r') {
            return self.line_end(text, at, walk);
        }
        if rest.starts_with(&self.dialect.delimiter) {
            walk.inside = Inside::Plain;
            walk.field = at + self.dialect.delimiter.len();
            walk.position = walk.field;
        } else if self.dialect.delimiter.starts_with(rest) {
            return None;
        } else {
            walk.inside = Inside::Rest;
            walk.position = at;
        }
        Some(0)
    }
}

impl Walker {
    /// The position after the line end at `at`: LF, CR LF or CR; 0 for a CR that ends no line.
    #[inline]
    fn line_end(&self, text: &[u8], at: usize, walk: &mut Walk) -> Option<usize> {
        walk.position = at;
        if text[at] == b'\n' {
            return Some(at + 1);
        }
        let lone = *text.get(at + 1)? != b'\n';
        if lone && self.line_ends == Some(LineEnds::Feeds) {
            walk.inside = Inside::Rest;
            walk.position = at + 1;
            return Some(0);
        }
        walk.lone_cr = lone;
        Some(at + 2 - usize::from(lone))
    }

    /// The line ends of a text without quotes, which begins after a line end and ends with one.
    fn count_lines(&self, text: &[u8]) -> u64 {
        let feeds = memchr_iter(b'\n', text).count();
        if self.line_ends == Some(LineEnds::Feeds) || memchr(b'\r', text).is_none() {
            return feeds as u64;
        }
        let lone = text.iter().zip(text[1..].iter().chain([&0])).filter(|pair| *pair.0 == b'\r' && *pair.1 != b'\n');
        (feeds + lone.count()) as u64
    }

    /// Where the first line end in `text[from..to]`, which has no quotes, ends; none if more text is needed to see it.
    fn first_end(&self, text: &[u8], from: usize, to: usize) -> Option<usize> {
        let stretch = text.get(from..to)?;
        if self.line_ends == Some(LineEnds::Feeds) {
            return Some(from + memchr(b'\n', stretch)? + 1);
        }
        let at = from + memchr2(b'\n', b'\r', stretch)?;
        self.line_end(text, at, &mut Walk::at(at))
    }

    /// Where the last line end in `text[from..to]`, which has no quotes, ends; none if there is none, or if more text
    /// is needed to see it.
    fn last_end(&self, text: &[u8], from: usize, to: usize) -> Option<usize> {
        let stretch = text.get(from..to)?;
        if self.line_ends == Some(LineEnds::Feeds) {
            return Some(from + memrchr(b'\n', stretch)? + 1);
        }
        let at = from + memrchr2(b'\n', b'\r', stretch)?;
        self.line_end(text, at, &mut Walk::at(at)).or_else(|| self.last_end(text, from, at))
    }
}

/// What the first piece still needs, so that its parser knows the header and what ends lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Header {
    Wanted,
    /// The first line end; there is no header.
    LineEnd,
    /// A byte after the header, to show that its CR has no LF.
    AfterCr,
    Complete,
}

/// Cuts one unit.
pub(crate) struct CsvSplitter {
    walker: Walker,
    pending: Pending,
    /// Line ends since the last cut, up to the current record.
    lines: u64,
    /// Bytes of a byte order mark that are still to come.
    mark: usize,
    /// Lines to skip, and whether the last byte was a CR, whose LF belongs to it.
    skip: (u64, bool),
    header: Header,
    /// The bytes of an incomplete record.
    carry: Vec<u8>,
    walk: Walk,
    /// A record is too long: its piece is an error, and later text does not matter.
    broken: bool,
}

impl CsvSplitter {
    /// At the beginning of a unit that has a byte order mark of `mark` bytes.
    pub fn new(dialect: Dialect, header: bool, skip_lines: u64, mark: usize) -> Self {
        CsvSplitter {
            walker: Walker::new(dialect),
            pending: Pending::new(),
            lines: 0,
            mark,
            skip: (skip_lines, false),
            header: if header { Header::Wanted } else { Header::LineEnd },
            carry: Vec::new(),
            walk: Walk::at(0),
            broken: false,
        }
    }

    /// Where the first record begins in `text`: after the byte order mark and the skipped lines.
    fn beginning(&mut self, text: &[u8]) -> usize {
        let mut at = self.mark.min(text.len());
        self.mark -= at;
        while (self.skip.0 > 0 || self.skip.1) && at < text.len() {
            if self.skip.1 {
                let feed = text[at] == b'\n';
                self.walker.line_ends.get_or_insert(if feed { LineEnds::Feeds } else { LineEnds::Returns });
                at += usize::from(feed);
                self.skip.1 = false;
                continue;
            }
            match memchr2(b'\n', b'\r', &text[at..]) {
                None => at = text.len(),
                Some(end) => {
                    self.skip = (self.skip.0 - 1, text[at + end] == b'\r');
                    if !self.skip.1 {
                        self.walker.line_ends.get_or_insert(LineEnds::Feeds);
                    }
                    self.lines += 1;
                    at += end + 1;
                }
            }
        }
        at
    }

    /// Counts a complete record, which may be the header.
    fn take(&mut self, walk: &Walk) {
        self.lines += walk.newlines + 1;
        self.walker.line_ends.get_or_insert(if walk.lone_cr { LineEnds::Returns } else { LineEnds::Feeds });
        let empty = walk.position == walk.start;
        self.header = match self.header {
            Header::Wanted if walk.comment || empty => Header::Wanted,
            Header::Wanted | Header::LineEnd if walk.lone_cr => Header::AfterCr,
            _ => Header::Complete,
        };
    }

    fn too_long(&self, length: usize) -> bool {
        length > self.walker.dialect.max_record.saturating_add(SLACK)
    }
}

/// A pushed text while it is cut.
struct Cutting<'a> {
    text: &'a Bytes,
    size: usize,
    pieces: &'a mut Vec<TextPiece>,
    /// The text before this belongs to pieces.
    taken: usize,
}

impl CsvSplitter {
    /// The least position at which the piece may end.
    fn target(&self, cutting: &Cutting<'_>) -> usize {
        cutting.taken + self.pending.least(cutting.size).saturating_sub(self.pending.length())
    }

    /// Ends the piece at `at`, where a record begins, if it is long enough.
    #[inline]
    fn cut_at(&mut self, at: usize, cutting: &mut Cutting<'_>) {
        if at >= self.target(cutting) && self.header == Header::Complete {
            self.pending.append(cutting.text.slice(cutting.taken..at));
            self.pending.cut(self.pending.length(), std::mem::take(&mut self.lines), cutting.pieces);
            cutting.taken = at;
        }
    }

    /// Completes the record in the carry buffer. Returns where the next one begins in the text.
    fn complete_carry(&mut self, mut at: usize, cutting: &mut Cutting<'_>) -> usize {
        let text = cutting.text;
        while !self.carry.is_empty() && at < text.len() && !self.broken {
            let before = self.carry.len();
            let step = (text.len() - at).min(before.max(CARRY_STEP));
            self.carry.extend_from_slice(&text[at..at + step]);
            let mut walk = self.walk;
            let mut marks = Marks::new(&self.carry, self.walker.marks, walk.position);
            match self.walker.next(&self.carry, &mut walk, &mut marks) {
                Some(next) => {
                    self.carry.clear();
                    self.take(&walk);
                    // The record was incomplete before this step, so it ends in it.
                    at += next.saturating_sub(before);
                    self.cut_at(at, cutting);
                }
                None => {
                    self.walk = walk;
                    self.broken = self.too_long(self.carry.len());
                    at += step;
                }
            }
        }
        at
    }

    /// Scans the records that begin at or after `at`.
    fn records(&mut self, mut at: usize, cutting: &mut Cutting<'_>) {
        let text = cutting.text;
        let mut quote = at;
        while at < text.len() {
            if quote <= at {
                let from = quote.max(at);
                let found = self.walker.dialect.quote.and_then(|quote| memchr(quote, &text[from..]));
                quote = found.map_or(text.len(), |found| from + found);
            }
            let mut walk = Walk::at(at);
            if self.header == Header::Complete && (quote == text.len() || quote - at >= STRETCH) {
                at = self.plain_records(at, quote, cutting);
                walk = Walk::at(at);
                if quote == text.len() {
                    return self.carry_on(walk, cutting);
                }
            }
            let until = at + STRETCH;
            let mut marks = Marks::new(text, self.walker.marks, at);
            while at < text.len() && (at < until || self.header != Header::Complete) {
                let Some(next) = self.walker.next(text, &mut walk, &mut marks) else {
                    return self.carry_on(walk, cutting);
                };
                marks.skip_to(next);
                self.take(&walk);
                at = next;
                walk = Walk::at(at);
                self.cut_at(at, cutting);
            }
        }
    }

    /// Scans the records of `text[at..to]`, which has no quotes. Returns where the record begins that continues at
    /// `to`.
    fn plain_records(&mut self, mut at: usize, to: usize, cutting: &mut Cutting<'_>) -> usize {
        let text = cutting.text;
        while let Some(end) = self.walker.first_end(text, self.target(cutting).saturating_sub(1).max(at), to) {
            self.lines += self.walker.count_lines(&text[at..end]);
            at = end;
            self.cut_at(at, cutting);
        }
        match self.walker.last_end(text, at, to) {
            Some(end) => {
                self.lines += self.walker.count_lines(&text[at..end]);
                end
            }
            None => at,
        }
    }

    /// Keeps the incomplete record at the end of the text.
    fn carry_on(&mut self, walk: Walk, cutting: &Cutting<'_>) {
        self.carry = cutting.text[walk.start..].to_vec();
        self.walk = walk.rebase();
        self.broken = self.too_long(self.carry.len());
    }
}

impl Splitter for CsvSplitter {
    fn push(&mut self, text: Bytes, size: usize, pieces: &mut Vec<TextPiece>) {
        let mut cutting = Cutting { text: &text, size, pieces, taken: 0 };
        if !self.broken {
            let at = self.beginning(&text);
            let at = self.complete_carry(at, &mut cutting);
            if !self.broken {
                self.records(at, &mut cutting);
            }
        }
        self.pending.append(text.slice(cutting.taken..));
        if self.broken {
            self.carry = Vec::new();
            if self.pending.length() >= size {
                self.finish(pieces);
            }
        }
    }

    fn finish(&mut self, pieces: &mut Vec<TextPiece>) {
        self.pending.cut(self.pending.length(), std::mem::take(&mut self.lines), pieces);
    }
}
