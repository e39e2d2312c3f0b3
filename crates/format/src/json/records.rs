//! Cuts text that arrives in pieces into records.
//!
//! ```text
//!  pushed text ─▶ layout known? ──no──▶ hold the first line ─▶ decide
//!                      │yes
//!        lines ────────┴──── array, objects
//!   up to the next \n        brackets counted, texts stepped over
//! ```
//! A record within one piece is passed on in place; only a record that is cut is copied. It handles layouts, counts
//! lines and bytes, drops records that lack what they must contain, and limits the size of records. `parser.rs` reads
//! the inside of records; only faults that hide the end of a record are found here.

use std::sync::Arc;

use memchr::{memchr, memchr_iter, memrchr};
use millstream_core::format::TextPosition;
use millstream_core::{Error, Result};

use super::cursor::is_space;
use super::spec::Layout;
use crate::contains::{Hits, Lines, Search};

/// Bytes that are kept of a record that is too long.
const HEAD_OF_LONG_RECORD: usize = 4096;

/// Brackets that may be open at once while the end of a record is looked for. (This only bounds the memory; records may
/// have fewer.)
const MOST_OPEN: usize = 1 << 16;

/// A record and where it begins.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// Its text without white space around it; of a record that is too long only the beginning.
    pub text: &'a [u8],
    /// The same text with the known bytes after it.
    pub wide: &'a [u8],
    /// Whether its text is known to be UTF-8.
    pub utf8: bool,
    /// The byte of the decoded text, from 0.
    pub byte: u64,
    /// The line, from 1.
    pub line: u64,
    /// It is longer than the job allows.
    pub too_long: bool,
}

/// Takes records.
pub type Take<'t> = &'t mut dyn FnMut(Record<'_>) -> Result<()>;

/// Cuts one unit into records.
#[derive(Debug)]
pub struct Splitter {
    layout: Layout,
    max_record: usize,
    /// What records must contain.
    contains: Option<Arc<Search>>,
    /// Records that were dropped since they lack it.
    dropped: u64,
    /// Byte and line of the next text.
    byte: u64,
    line: u64,
    /// Text that was pushed and not passed on yet: the beginning of a record, or of the file.
    held: Vec<u8>,
    /// White space at the beginning of `held`, while the layout is not known.
    blank: usize,
    /// The beginning of the unit (byte order mark) has been read.
    begun: bool,
    /// The rest of a record that is too long is being skipped.
    passing: bool,
    scan: Scan,
}

/// Where the search for the next record stands, in the layouts with structure.
#[derive(Debug, Default)]
struct Scan {
    place: Between,
    /// The open brackets of the record, by what closes them.
    open: Vec<u8>,
    /// Byte and line of the quote that opened the current text.
    text_from: Option<(u64, u64)>,
    /// The last byte was a backslash inside a text.
    escaped: bool,
    /// Byte and line at which the record begins.
    record: (u64, u64),
}

/// What may come next in an array.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Between {
    /// `[`; with `layout: objects` a record.
    #[default]
    Beginning,
    /// A record or `]`.
    AfterOpening,
    /// `,` or `]`
    AfterRecord,
    /// A record.
    AfterComma,
    /// Nothing.
    AfterEnd,
    /// Inside a record that has brackets or is a text.
    InRecord,
    /// Inside a record that is a number or a word.
    InWord,
}

impl Splitter {
    /// At the beginning of a unit.
    pub fn new(layout: Layout, max_record: usize) -> Self {
        Splitter {
            layout,
            max_record,
            contains: None,
            dropped: 0,
            byte: 0,
            line: 1,
            held: Vec::new(),
            blank: 0,
            begun: false,
            passing: false,
            scan: Scan::default(),
        }
    }

    /// At `place`, in the middle of a unit of lines.
    pub fn at(place: TextPosition, max_record: usize) -> Self {
        let beginning = Splitter::new(Layout::Lines, max_record);
        Splitter { byte: place.byte, line: place.line, begun: true, ..beginning }
    }

    /// Passes on only records that contain this.
    pub fn containing(self, contains: Option<Arc<Search>>) -> Self {
        Splitter { contains, ..self }
    }

    /// How many records were dropped since the last call.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// Whether the beginning has been read, and the records are lines.
    pub fn in_lines(&self) -> bool {
        self.begun && self.layout == Layout::Lines
    }

    /// Bytes that are kept until more text comes.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Reads the next piece of text, and passes on the records that end in it.
    pub fn push(&mut self, text: &[u8], take: Take<'_>) -> Result<()> {
        if self.begun && self.layout != Layout::Auto {
            return self.split(text, take);
        }
        // Once the first line has begun, only its end tells more: reading all of it for each piece would take quadratic
        // time.
        let line_begun = self.begun && self.blank < self.held.len();
        self.held.extend_from_slice(text);
        if line_begun && memchr(b'\n', text).is_none() && self.held.len() <= self.max_record {
            return Ok(());
        }
        self.begin(false, take)
    }

    /// Ends the text, and passes on the last record.
    pub fn finish(&mut self, take: Take<'_>) -> Result<()> {
        self.begin(true, take)?;
        match self.layout {
            Layout::Auto | Layout::Lines => self.last_line(take),
            Layout::Array | Layout::Objects => self.last_value(take),
        }
    }

    /// Skips a byte order mark, and finds the layout as soon as enough text is held.
    fn begin(&mut self, complete: bool, take: Take<'_>) -> Result<()> {
        if self.begun && self.layout != Layout::Auto {
            return Ok(());
        }
        if !self.begun {
            if !complete && self.held.len() < 3 {
                return Ok(());
            }
            self.byte_order_mark()?;
            self.begun = true;
        }
        if self.layout == Layout::Auto {
            self.drop_blanks();
        }
        if self.layout == Layout::Auto {
            match layout_of(&self.held, complete, self.max_record) {
                Some(layout) => self.layout = layout,
                None => return Ok(()),
            }
        }
        let held = std::mem::take(&mut self.held);
        self.split(&held, take)
    }

    /// Drops the blank lines before the first record, of which there may be many. One that is too long for a record is
    /// not dropped: then the records are lines, which have a limit.
    fn drop_blanks(&mut self) {
        let more = self.held[self.blank..].iter().take_while(|byte| is_space(**byte)).count();
        let blank = self.blank + more;
        let mut start = 0;
        for end in memchr_iter(b'\n', &self.held[..blank]).chain([blank]) {
            let line = &self.held[start..end];
            if line.strip_suffix(b"\r").unwrap_or(line).len() > self.max_record {
                self.layout = Layout::Lines;
                break;
            }
            if end < blank {
                start = end + 1;
                self.line += 1;
            }
        }
        self.byte += start as u64;
        self.held.drain(..start);
        self.blank = blank - start;
    }

    fn byte_order_mark(&mut self) -> Result<()> {
        if self.held.starts_with(b"\xef\xbb\xbf") {
            self.held.drain(..3);
            self.byte = 3;
        } else if self.held.starts_with(b"\xff\xfe") || self.held.starts_with(b"\xfe\xff") {
            return Err(Error::data("the text is UTF-16, and JSON must be UTF-8")
                .byte(0)
                .line(1)
                .hint("convert it first, for example with `iconv -f UTF-16 -t UTF-8`"));
        }
        Ok(())
    }

    fn split(&mut self, text: &[u8], take: Take<'_>) -> Result<()> {
        match self.layout {
            Layout::Auto | Layout::Lines => self.split_lines(text, take),
            Layout::Array | Layout::Objects => self.split_values(text, take),
        }
    }

    /// How many bytes are kept of a record that is too long: the same, however the text was cut.
    fn head(&self) -> usize {
        self.max_record.min(HEAD_OF_LONG_RECORD)
    }

    // One record a line.

    fn split_lines(&mut self, mut text: &[u8], take: Take<'_>) -> Result<()> {
        if !self.held.is_empty() || self.passing {
            let Some(end) = memchr(b'\n', text) else { return self.hold_line(text, take) };
            if self.passing {
                self.passing = false;
                self.byte += end as u64 + 1;
                self.line += 1;
            } else {
                let mut held = std::mem::take(&mut self.held);
                held.extend_from_slice(&text[..end]);
                self.take_held_line(&held, take)?;
                held.clear();
                self.held = held;
            }
            text = &text[end + 1..];
        }
        if let Some(contains) = self.contains.clone() {
            let from = self.split_lines_with(&contains, text, take)?;
            return self.hold_line(&text[from..], take);
        }
        // Validating all lines at once is many times as fast as each by itself.
        let whole = memrchr(b'\n', text).map_or(0, |last| last + 1);
        let utf8 = simdutf8::basic::from_utf8(&text[..whole]).is_ok();
        while let Some(end) = memchr(b'\n', text) {
            self.take_line(text, end, utf8, take)?;
            text = &text[end + 1..];
        }
        self.hold_line(text, take)
    }

    /// Passes on the lines of `text` that have what they must contain. Returns where the last line begins, which has no
    /// end.
    fn split_lines_with(&mut self, contains: &Search, text: &[u8], take: Take<'_>) -> Result<usize> {
        let mut hits = Hits::new(contains, text);
        let mut from = 0;
        while let Some(end) = memchr(b'\n', &text[from..]).map(|length| from + length) {
            let mut next = hits.lines_without(from, self.max_record);
            let length = without_return(&text[from..end]).len();
            if next == from && length <= self.max_record && !hits.has(from, from + length) {
                next = end + 1;
            }
            if next > from {
                self.drop_lines(&text[from..next]);
                from = next;
                continue;
            }
            self.take_line(&text[from..], end - from, false, take)?;
            from = end + 1;
        }
        Ok(from)
    }

    /// Drops `lines`, which are whole.
    fn drop_lines(&mut self, lines: &[u8]) {
        let count = Lines::count(lines, |line| line.iter().all(|byte| is_space(*byte)));
        self.dropped += count.all - count.blank;
        self.byte += lines.len() as u64;
        self.line += count.all;
    }

    /// Passes on a line that was held, without its `\n`, if it has what it must contain.
    fn take_held_line(&mut self, line: &[u8], take: Take<'_>) -> Result<()> {
        let text = without_return(line);
        let lacks = |contains: &Arc<Search>| text.len() <= self.max_record && !contains.matches(text);
        if !self.contains.as_ref().is_some_and(lacks) {
            return self.take_line(line, line.len(), false, take);
        }
        self.dropped += u64::from(!line.iter().all(|byte| is_space(*byte)));
        self.byte += line.len() as u64 + 1;
        self.line += 1;
        Ok(())
    }

    /// Passes on one line, unless it is blank: the beginning of `wide`, up to its `\n` at `end`.
    #[inline]
    fn take_line(&mut self, wide: &[u8], end: usize, utf8: bool, take: Take<'_>) -> Result<()> {
        let line = &wide[..end];
        let (byte, number) = (self.byte, self.line);
        self.byte += line.len() as u64 + 1;
        self.line += 1;
        if without_return(line).len() > self.max_record {
            let text = &line[..self.head()];
            return take(Record { text, wide: text, utf8: false, byte, line: number, too_long: true });
        }
        if let ([b'{', ..], [.., b'}']) = (line, line) {
            return take(Record { text: line, wide, utf8, byte, line: number, too_long: false });
        }
        let blank = line.iter().take_while(|byte| is_space(**byte)).count();
        let byte = byte + blank as u64;
        // (`trim_ascii` would also take form feeds, which are no white space in JSON.)
        let end = line.iter().rposition(|byte| !is_space(*byte)).map_or(blank, |last| last + 1);
        let text = &line[blank..end];
        if text.is_empty() {
            return Ok(());
        }
        take(Record { text, wide: &wide[blank..], utf8, byte, line: number, too_long: false })
    }

    /// Keeps the beginning of a line; of one that is too long only its beginning.
    fn hold_line(&mut self, text: &[u8], take: Take<'_>) -> Result<()> {
        if self.passing {
            self.byte += text.len() as u64;
            return Ok(());
        }
        self.held.extend_from_slice(text);
        // One byte more than the limit may still be the `\r` of the line end.
        if self.held.len() > self.max_record.saturating_add(1) {
            let held = std::mem::take(&mut self.held);
            self.take_line(&held, held.len(), false, take)?;
            self.byte -= 1;
            self.line -= 1;
            self.passing = true;
        }
        Ok(())
    }

    fn last_line(&mut self, take: Take<'_>) -> Result<()> {
        let held = std::mem::take(&mut self.held);
        if held.is_empty() { Ok(()) } else { self.take_held_line(&held, take) }
    }

    // Records by their brackets.

    fn split_values(&mut self, text: &[u8], take: Take<'_>) -> Result<()> {
        // Where the current record begins in `text`; it may have begun before.
        let mut from = 0;
        let mut at = 0;
        while at < text.len() {
            match self.scan.place {
                Between::InRecord => match self.scan_record(text, at)? {
                    Some(end) => {
                        self.take_value(&text[from..], end - from, take)?;
                        at = end;
                    }
                    None => at = text.len(),
                },
                Between::InWord => {
                    let is_end = |byte: &u8| is_space(*byte) || matches!(byte, b',' | b']' | b'[' | b'{' | b'}' | b'"');
                    let length = text[at..].iter().position(is_end);
                    let end = length.map_or(text.len(), |length| at + length);
                    self.byte += (end - at) as u64;
                    at = end;
                    if length.is_some() {
                        self.take_value(&text[from..], end - from, take)?;
                    }
                }
                _ => {
                    let byte = text[at];
                    if !is_space(byte) && self.between(byte)? {
                        // The record begins here, and this byte is read again as part of it.
                        from = at;
                        continue;
                    }
                    self.line += u64::from(byte == b'\n');
                    self.byte += 1;
                    at += 1;
                }
            }
        }
        if matches!(self.scan.place, Between::InRecord | Between::InWord) {
            self.hold_value(&text[from..]);
        }
        Ok(())
    }

    /// Reads a byte between records; true if a record begins with it.
    fn between(&mut self, byte: u8) -> Result<bool> {
        let array = self.layout == Layout::Array;
        match (self.scan.place, byte) {
            (Between::Beginning, b'[') if array => self.scan.place = Between::AfterOpening,
            (Between::Beginning, _) if array => {
                return Err(self
                    .fault("the text is not a JSON array: it does not begin with `[`", byte)
                    .hint("use `layout: lines` for one object a line, or leave `layout` out"));
            }
            (Between::AfterOpening | Between::AfterRecord, b']') if array => self.scan.place = Between::AfterEnd,
            (Between::AfterRecord, b',') if array => self.scan.place = Between::AfterComma,
            (Between::AfterRecord, _) if array => {
                return Err(self.fault("expected `,` or `]` after a record", byte));
            }
            (Between::AfterComma, b']') => {
                return Err(self
                    .fault("a comma before the end of the array", byte)
                    .hint("leave it out: JSON allows commas only between values"));
            }
            (Between::AfterEnd, _) => return Err(self.fault("text after the end of the array", byte)),
            (_, b',' | b':' | b']' | b'}') => {
                return Err(self.fault("expected a record", byte));
            }
            _ => {
                self.scan.record = (self.byte, self.line);
                let word = !matches!(byte, b'{' | b'[' | b'"');
                self.scan.place = if word { Between::InWord } else { Between::InRecord };
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Follows the brackets of a record from `text[at]` on, and returns where it ends, if that is in `text`.
    fn scan_record(&mut self, text: &[u8], mut at: usize) -> Result<Option<usize>> {
        let begin = at;
        while at < text.len() {
            let byte = text[at];
            if self.scan.text_from.is_some() {
                if self.scan.escaped {
                    self.scan.escaped = false;
                } else if byte == b'\\' {
                    self.scan.escaped = true;
                } else if byte == b'"' {
                    self.scan.text_from = None;
                } else if byte == b'\n' {
                    return Err(self.text_not_closed());
                }
            } else {
                match byte {
                    b'"' => self.scan.text_from = Some((self.byte + (at - begin) as u64, self.line)),
                    b'{' | b'[' if self.scan.open.len() == MOST_OPEN => {
                        self.byte += (at - begin) as u64;
                        return Err(self.fault("more objects and lists are open than can be followed", byte));
                    }
                    // In ASCII, the closing brace or bracket is two after the opening one.
                    b'{' | b'[' => self.scan.open.push(byte + 2),
                    b'}' | b']' if self.scan.open.pop() != Some(byte) => {
                        self.byte += (at - begin) as u64;
                        let what = format!("`{}` closes nothing that is open", byte as char);
                        return Err(self.fault(&what, byte).hint("a bracket before it is missing or wrong"));
                    }
                    b'\n' => self.line += 1,
                    _ => {}
                }
            }
            at += 1;
            if self.scan.open.is_empty() && self.scan.text_from.is_none() {
                self.byte += (at - begin) as u64;
                return Ok(Some(at));
            }
        }
        self.byte += (at - begin) as u64;
        Ok(None)
    }

    /// Passes on the record that ends after the first `end` bytes of `wide`.
    fn take_value(&mut self, wide: &[u8], end: usize, take: Take<'_>) -> Result<()> {
        self.scan.place = Between::AfterRecord;
        let (byte, line) = self.scan.record;
        let length = self.byte - byte;
        let too_long = length > self.max_record as u64;
        if self.held.is_empty() && !self.passing {
            let text = &wide[..if too_long { self.head() } else { end }];
            if self.drops(text, too_long) {
                return Ok(());
            }
            return take(Record { text, wide, utf8: false, byte, line, too_long });
        }
        self.passing = false;
        let mut held = std::mem::take(&mut self.held);
        held.extend_from_slice(&wide[..end]);
        if too_long {
            held.truncate(self.head());
        }
        if !self.drops(&held, too_long) {
            take(Record { text: &held, wide: &held, utf8: false, byte, line, too_long })?;
        }
        held.clear();
        self.held = held;
        Ok(())
    }

    /// Whether a record with this text lacks what it must contain. It is counted.
    fn drops(&mut self, text: &[u8], too_long: bool) -> bool {
        let drops = !too_long && self.contains.as_ref().is_some_and(|contains| !contains.matches(text));
        self.dropped += u64::from(drops);
        drops
    }

    /// Keeps the beginning of a record; of one that is too long only as much as a reject shows.
    fn hold_value(&mut self, text: &[u8]) {
        if !self.passing {
            self.held.extend_from_slice(text);
            if self.held.len() > self.max_record {
                self.passing = true;
                self.held.truncate(self.head());
                self.held.shrink_to_fit();
            }
        }
    }

    fn last_value(&mut self, take: Take<'_>) -> Result<()> {
        match self.scan.place {
            // A record that is cut short is passed on, whatever it contains: reading it finds what is missing.
            Between::InRecord | Between::InWord => {
                self.contains = None;
                self.take_value(&[], 0, take)
            }
            Between::AfterEnd => Ok(()),
            _ if self.layout == Layout::Objects => Ok(()),
            Between::Beginning => {
                Err(Error::data("the text is empty, and `layout: array` expects `[`").line(self.line))
            }
            _ => Err(Error::data("the array is cut short: its `]` is missing")
                .line(self.line)
                .byte(self.byte)
                .hint("check whether the file is complete")),
        }
    }

    /// A fault at a byte between records. It shows no more text, which would depend on how the file was cut into
    /// pieces.
    fn fault(&self, what: &str, found: u8) -> Error {
        Error::data(what).line(self.line).byte(self.byte).text([found])
    }

    fn text_not_closed(&self) -> Error {
        let (byte, line) = self.scan.text_from.unwrap_or((self.byte, self.line));
        Error::data("a text is not closed on its line")
            .line(line)
            .byte(byte)
            .hint("close it with \", or write the line end in it as \\n")
    }
}

/// A line without the `\r` of its line end.
fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Whether a unit that begins with `head` certainly has one record a line.
pub fn is_lines(head: &[u8], layout: Layout, max_record: usize) -> bool {
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    if text.starts_with(b"\xff\xfe") || text.starts_with(b"\xfe\xff") {
        return false;
    }
    match layout {
        Layout::Lines => true,
        // Blanks before the first record do not count towards its length when the layout is looked for, but do when a
        // line is cut off that is too long: the rest of it could look like another layout.
        Layout::Auto if text.first().is_some_and(|byte| is_space(*byte)) => false,
        Layout::Auto => layout_of(text, false, max_record) == Some(Layout::Lines),
        Layout::Array | Layout::Objects => false,
    }
}

/// The layout of a file that begins with `text`; `None` if more text is needed. `[` begins an array. Otherwise it is
/// one object a line, unless the first line ends inside an object where people break lines, or has more than one
/// object.
fn layout_of(text: &[u8], complete: bool, max_record: usize) -> Option<Layout> {
    let blank = text.iter().take_while(|byte| is_space(**byte)).count();
    match text.get(blank) {
        None if complete => return Some(Layout::Lines),
        None => return None,
        Some(b'[') => return Some(Layout::Array),
        Some(b'{') => {}
        Some(_) => return Some(Layout::Lines),
    }
    let text = &text[blank..];
    let considered = &text[..text.len().min(max_record)];
    let line = match memchr(b'\n', considered) {
        Some(end) => &considered[..end],
        None if text.len() > max_record => return Some(Layout::Lines),
        None if complete => considered,
        None => return None,
    };
    let line = line.trim_ascii_end();
    let mut depth = 0_usize;
    let mut in_text = false;
    let mut at = 0;
    while let Some(&byte) = line.get(at) {
        match byte {
            b'\\' if in_text => at += 1,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    let rest = line[at + 1..].trim_ascii_start();
                    return Some(if rest.first() == Some(&b'{') { Layout::Objects } else { Layout::Lines });
                }
            }
            _ => {}
        }
        at += 1;
    }
    let broken_on_purpose = !in_text && matches!(line.last(), Some(b'{' | b'[' | b',' | b':'));
    Some(if broken_on_purpose { Layout::Objects } else { Layout::Lines })
}

/// The line of byte `at` of a record that begins on `line`.
pub fn line_of(record: &[u8], at: usize, line: u64) -> u64 {
    line + memchr_iter(b'\n', &record[..at.min(record.len())]).count() as u64
}
