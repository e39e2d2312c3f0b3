//! Finds by trial how a text is cut into records and fields.
//!
//! Every delimiter is tried with every quote by the same scanner that will read the file, and the one that makes the
//! most records alike wins:
//!
//! ```text
//!  for each (delimiter, quote, escape, trim)     scan ─▶ fields of each record
//!     width    = the commonest number of fields from 2 on
//!     before   = records before the first of that width: lines of a title count less
//!     share    = records of that width / (before + records from there on + records that quotes tear)
//!     score    = share, a little more for more fields, and less for delimiters that are also ordinary signs
//!                (space, colon)
//! ```
//!
//! Quotes are ordinary text only if they break records: a quoted field may have a delimiter in every row.

use std::collections::HashMap;
use std::ops::Range;

use crate::csv::scan::{Index, Scanned, Scanner, StructureFault};
use crate::csv::spec::Dialect;

/// The candidate delimiters with the weights of their scores: some are also ordinary characters of text.
const DELIMITERS: &[(char, f64)] = &[
    (',', 1.0),
    ('\t', 1.0),
    (';', 1.0),
    ('|', 1.0),
    ('\u{1}', 1.0),
    ('\u{1f}', 1.0),
    ('^', 0.97),
    ('~', 0.97),
    (':', 0.8),
    (' ', 0.7),
];

/// How much of the sample each trial reads, in bytes and records. The winner reads all of it.
const LOOK: Look = Look { bytes: 1 << 18, records: 2000 };

/// All of a sample.
const ALL: Look = Look { bytes: usize::MAX, records: usize::MAX };

/// The least share of records of one width in a table.
const LEAST_SHARE: f64 = 0.6;

/// The same for delimiters that are also ordinary characters: prose has lines with the same number of words.
const LEAST_SHARE_ORDINARY: f64 = 0.95;

/// The weight of a line of a title, or of a line with some texts but fewer than a record, against a record of another
/// width.
const TITLE: f64 = 0.4;
const SHORT: f64 = 0.7;

/// The weight of a record that may have the names of a table whose records have a field more or less.
const NAMES: f64 = 0.3;

/// The weight of a dialect without quotes.
const ORDINARY_QUOTES: f64 = 0.95;

/// If the end of the sample cuts a record of so many lines, its quote is probably no quote.
const LONG_TAIL: usize = 20;

/// How much a trial reads.
#[derive(Debug, Clone, Copy)]
struct Look {
    bytes: usize,
    records: usize,
}

/// The dialect that was found.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub delimiter: char,
    pub quote: Option<char>,
    pub escape: Option<char>,
    pub comment: Option<char>,
    pub trim: bool,
    /// Fields of a record of the table.
    pub width: usize,
    /// The table's records of that width.
    pub records: Vec<Row>,
    /// Lines before the second record of the table, whatever its width.
    pub second_line: u64,
    /// The records before the table that are no comments.
    pub before: Vec<Row>,
    /// All items of the file, in order.
    pub items: Vec<Item>,
    /// The beginning of the record that the end of the sample cuts, or the end of the text.
    pub end: usize,
    pub evidence: Vec<String>,
}

impl Found {
    /// Whether only lines of a title precede the table: none has more than one text.
    pub fn has_only_titles(&self, text: &str) -> bool {
        self.before.iter().all(|row| filled(text, row) <= 1)
    }
}

/// One record.
#[derive(Debug, Clone)]
pub(super) struct Row {
    /// The line on which it begins, from 1.
    pub line: u64,
    pub start: usize,
    /// The raw ranges of its fields; none if its quotes break it.
    pub fields: Vec<Range<usize>>,
}

impl Row {
    fn is_torn(&self) -> bool {
        self.fields.is_empty()
    }
}

/// A line, or several lines of one record with quotes around their ends.
#[derive(Debug, Clone)]
pub(super) enum Item {
    Record(Row),
    /// A comment, with its line and range.
    Comment(u64, Range<usize>),
}

/// A dialect to try.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    delimiter: char,
    /// The weight of the delimiter's score.
    worth: f64,
    quote: Option<char>,
    escape: Option<char>,
    trim: bool,
    comment: Option<char>,
}

impl Candidate {
    fn dialect(self, look: Look) -> Dialect {
        let byte = |sign: char| u8::try_from(sign).ok();
        Dialect {
            delimiter: self.delimiter.to_string().into_bytes(),
            quote: self.quote.and_then(byte),
            escape: self.escape.and_then(byte),
            comment: self.comment.and_then(byte),
            trim: self.trim,
            max_record: look.bytes.min(16 << 20),
        }
    }
}

/// The result of a scan.
struct Scan {
    items: Vec<Item>,
    /// Records whose structure is bad.
    torn: usize,
    end: usize,
}

impl Scan {
    fn records(&self) -> impl Iterator<Item = &Row> {
        self.items.iter().filter_map(|item| match item {
            Item::Record(row) => Some(row),
            Item::Comment(..) => None,
        })
    }
}

/// How well a dialect fits the text.
struct Trial {
    candidate: Candidate,
    scan: Scan,
    /// The index of the table's first record.
    first: usize,
    width: usize,
    share: f64,
    quoted: usize,
    score: f64,
}

impl Trial {
    /// Rates the scan of the text with `candidate`.
    fn new(text: &str, scan: Scan, candidate: Candidate) -> Option<Self> {
        let records: Vec<&Row> = scan.records().collect();
        let width = width_of(&records)?;
        let first = first_of(text, &records, width)?;
        let rows = records[first..].iter().filter(|row| row.fields.len() == width).count();
        // One line of prose with a comma is no table.
        if rows < 2 && records.len() > 1 {
            return None;
        }
        let before: f64 = records[..first].iter().map(|row| weight(text, row, width)).sum();
        let all = (records.len() - first) as f64 + before;
        // A record that is broken by its quotes counts more against a dialect than a short one.
        let share = rows as f64 / (all + scan.torn as f64);
        let quoted = candidate.quote.map_or(0, |quote| count_quoted(text, &records, quote));
        // A delimiter that keeps quoted fields whole explains more.
        let ordinary = if candidate.quote.is_none() { ORDINARY_QUOTES } else { 1.0 };
        let score = share * candidate.worth * ordinary + 0.02 * (width.min(30) as f64).ln();
        Some(Trial { candidate, first, width, share, quoted, score, scan })
    }

    fn is_table(&self) -> bool {
        let least = if self.candidate.worth < 0.9 { LEAST_SHARE_ORDINARY } else { LEAST_SHARE };
        self.share >= least && self.score > 0.45
    }
}

/// The commonest number of fields from 2 on.
fn width_of(records: &[&Row]) -> Option<usize> {
    let mut counts: HashMap<usize, usize> = HashMap::new();
    for row in records {
        *counts.entry(row.fields.len()).or_default() += 1;
    }
    let tables = counts.into_iter().filter(|(width, _)| *width >= 2);
    tables.max_by_key(|(width, count)| (*count * (*width).min(3), *width)).map(|(width, _)| width)
}

/// The first record of a table of that width. Prose before it may have a delimiter or two by chance: it begins where
/// two records that follow each other have its width, or with its only record.
fn first_of(text: &str, records: &[&Row], width: usize) -> Option<usize> {
    let is_row = |row: &&Row| row.fields.len() == width;
    let alike = records.windows(2).position(|pair| is_row(&pair[0]) && is_row(&pair[1]));
    let first = alike.or_else(|| records.iter().position(is_row))?;
    if width == 2 {
        return Some(first);
    }
    // Spreadsheets fill the lines of a title up to the table's width. If later records are as empty, it is data.
    let is_title = |row: &&Row| is_row(row) && filled(text, row) <= 1;
    let titles = records[first..].iter().take_while(|row| is_title(row)).count();
    let behind = &records[first + titles..];
    let full = behind.first().is_some_and(|row| is_row(row) && filled(text, row) == width);
    Some(if full && !behind.iter().any(is_title) { first + titles } else { first })
}

/// The weight of a record before the table.
fn weight(text: &str, row: &Row, width: usize) -> f64 {
    match filled(text, row) {
        _ if row.is_torn() => 1.0,
        0 | 1 => TITLE,
        // It may have the names, see `names_before`.
        filled if filled >= 2 && row.fields.len().abs_diff(width) == 1 => NAMES,
        filled if filled < width => SHORT,
        _ => 1.0,
    }
}

/// Fields that are not empty.
fn filled(text: &str, row: &Row) -> usize {
    row.fields.iter().filter(|field| !text[(*field).clone()].trim().is_empty()).count()
}

fn is_quoted(text: &str, field: &Range<usize>, quote: char) -> bool {
    let field = text.get(field.clone()).unwrap_or("").trim_matches([' ', '\t']);
    field.len() >= 2 && field.starts_with(quote) && field.ends_with(quote)
}

/// Fields that begin and end with the quote.
fn count_quoted(text: &str, records: &[&Row], quote: char) -> usize {
    records.iter().flat_map(|row| &row.fields).filter(|field| is_quoted(text, field, quote)).count()
}

fn scan(text: &str, complete: bool, candidate: Candidate, look: Look) -> Scan {
    let dialect = candidate.dialect(look);
    let delimiter = dialect.delimiter.len();
    let comment = dialect.comment;
    let mut scanner = Scanner::new(dialect, 1);
    let mut index = Index::default();
    let mut bad = Vec::new();
    let mut found = Scan { items: Vec::new(), torn: 0, end: text.len() };
    let mut from = 0;
    let end = text.len().min(look.bytes);
    let whole = complete && end == text.len();
    let bytes = &text.as_bytes()[..end];
    let torn = |line, start| Item::Record(Row { line, start, fields: Vec::new() });
    while found.items.len() < look.records {
        let line = scanner.line();
        index.clear();
        bad.clear();
        let scanned = scanner.scan(bytes, from, whole, 1, &mut index, &mut bad);
        if index.rows() == 1 {
            let mut start = index.starts[0] as usize;
            let mut fields = Vec::with_capacity(index.ends.len());
            for end in index.ends.iter().map(|end| *end as usize) {
                fields.push(start..end);
                start = end + delimiter;
            }
            found.items.push(Item::Record(Row { line, start: index.starts[0] as usize, fields }));
        }
        if let Some(bad) = bad.first() {
            found.torn += 1;
            found.items.push(torn(line, bad.start));
            if matches!(bad.structure_fault, StructureFault::Unclosed(_)) {
                break;
            }
        }
        match scanned {
            Scanned::Enough(next) => {
                if index.rows() == 0 && bad.is_empty() && comment.is_some() && bytes.get(from) == comment.as_ref() {
                    found.items.push(Item::Comment(line, from..next));
                }
                from = next;
            }
            Scanned::Incomplete(start) => {
                found.end = start;
                // A quote that stays open for many lines is no quote.
                if bytes[start..].iter().filter(|byte| **byte == b'\n').count() > LONG_TAIL {
                    found.torn += 1;
                }
                break;
            }
            Scanned::TooLong(start, _) => {
                found.torn += 1;
                found.items.push(torn(line, start));
                found.end = start;
                break;
            }
        }
    }
    found
}

/// The dialect of `text`; `None` if it is no table. `single` allows a table of one column: the name ends like that of a
/// CSV file.
pub(super) fn find(text: &str, complete: bool, single: bool) -> Option<Found> {
    let plain = best(text, complete, None);
    let table = match begins_with_mark(text) {
        true => with_comments(text, complete, plain),
        false => plain,
    };
    match table {
        Some(trial) => {
            let scan = scan(text, complete, trial.candidate, ALL);
            Some(found(text, trial, scan))
        }
        None if single => one_column(text, complete),
        None => None,
    }
}

/// The best dialect for a table of several columns, if there is one.
fn best(text: &str, complete: bool, comment: Option<char>) -> Option<Trial> {
    let trims: &[bool] = if has_blank_before_quote(text) { &[false, true] } else { &[false] };
    let clocks = has_clocks(text);
    let inner_commas = commas_are_in_numbers(text);
    let mut best: Option<Trial> = None;
    for &(delimiter, worth) in DELIMITERS {
        if !text.contains(delimiter) || (delimiter == ':' && clocks) {
            continue;
        }
        for &trim in trims {
            let candidate = Candidate { delimiter, worth, quote: None, escape: None, trim, comment };
            let Some(trial) = best_quote(text, complete, candidate).filter(Trial::is_table) else { continue };
            // Dialects are tried in the order of preference: a later one must explain more.
            let is_better = |best: &Trial| {
                let commas_are_inner = best.candidate.delimiter == ',' && worth >= best.candidate.worth && inner_commas;
                trial.score > best.score + 1e-9 || (commas_are_inner && trial.share > best.share - 1e-9)
            };
            if best.as_ref().is_none_or(is_better) {
                best = Some(trial);
            }
        }
    }
    best
}

/// The best trial of `candidate` over all quotes.
fn best_quote(text: &str, complete: bool, candidate: Candidate) -> Option<Trial> {
    let mut best: Option<Trial> = None;
    // Quotes that break no record are quotes, whether the delimiter occurs or not.
    let mut sound = false;
    for (quote, escape) in ways_to_quote(text) {
        let candidate = Candidate { quote, escape, ..candidate };
        if quote.is_none() && sound && !spans_lines(text, best.as_ref()) {
            continue;
        }
        let scan = scan(text, complete, candidate, LOOK);
        if quote == Some('"') && !sound {
            let records: Vec<&Row> = scan.records().collect();
            sound = scan.torn == 0 && count_quoted(text, &records, '"') > 0;
        }
        let Some(trial) = Trial::new(text, scan, candidate) else { continue };
        best = match best {
            None => Some(trial),
            Some(best) if trial.share > best.share + 1e-9 => Some(trial),
            Some(best) if trial.share > best.share - 1e-9 && is_better_quote(text, &best, &trial) => Some(trial),
            Some(best) => Some(best),
        };
    }
    best
}

/// Whether a quoted field has a line end.
fn spans_lines(text: &str, trial: Option<&Trial>) -> bool {
    trial.is_some_and(|trial| {
        trial.scan.records().flat_map(|row| &row.fields).any(|field| text[field.clone()].contains(['\n', '\r']))
    })
}

/// Whether `other`, which explains as much as `best`, has the better quote.
fn is_better_quote(text: &str, best: &Trial, other: &Trial) -> bool {
    match other.candidate.quote {
        // A field with a line end would make lines of different widths.
        None => spans_lines(text, Some(best)) && other.scan.items.len() > best.scan.items.len(),
        // An apostrophe at both ends of a word is a quote only if a whole column has it.
        Some('\'') => best.quoted == 0 && best.candidate.quote != Some('\'') && has_quoted_column(text, other, '\''),
        Some(_) => false,
    }
}

/// Whether all values of a column, and at least two, are quoted; the first may be a name.
fn has_quoted_column(text: &str, trial: &Trial, quote: char) -> bool {
    let rows: Vec<&Row> =
        trial.scan.records().skip(trial.first + 1).filter(|row| row.fields.len() == trial.width).collect();
    (0..trial.width).any(|column| {
        let fields = || rows.iter().map(|row| &row.fields[column]).filter(|field| !field.is_empty());
        fields().count() >= 2 && fields().all(|field| is_quoted(text, field, quote))
    })
}

fn ways_to_quote(text: &str) -> Vec<(Option<char>, Option<char>)> {
    let mut candidates = vec![(Some('"'), None)];
    if text.contains("\\\"") {
        candidates.push((Some('"'), Some('\\')));
    }
    if text.contains('\'') {
        candidates.push((Some('\''), None));
        if text.contains("\\'") {
            candidates.push((Some('\''), Some('\\')));
        }
    }
    if text.contains('"') {
        candidates.push((None, None));
    }
    candidates
}

/// Whether a quote follows a delimiter and a space somewhere.
fn has_blank_before_quote(text: &str) -> bool {
    [", \"", "; \"", "| \"", ", '", "; '"].iter().any(|pattern| text.contains(pattern))
}

/// Whether there are times of day, whose colons are no delimiters.
fn has_clocks(text: &str) -> bool {
    let look = &text.as_bytes()[..text.len().min(LOOK.bytes)];
    look.windows(6).any(|window| {
        let digit = |index: usize| window[index].is_ascii_digit();
        digit(0) && digit(1) && window[2] == b':' && digit(3) && digit(4) && !digit(5)
    })
}

/// Whether every comma is between two digits, like decimal commas.
fn commas_are_in_numbers(text: &str) -> bool {
    let look = &text.as_bytes()[..text.len().min(LOOK.bytes)];
    let is_digit = |index: Option<usize>| index.and_then(|index| look.get(index)).is_some_and(u8::is_ascii_digit);
    memchr::memchr_iter(b',', look).all(|comma| is_digit(comma.checked_sub(1)) && is_digit(Some(comma + 1)))
}

/// The first character of comments.
const MARK: char = '#';

/// Whether a line begins like a comment.
fn begins_with_mark(text: &str) -> bool {
    text.starts_with(MARK) || text.contains("\n#") || text.contains("\r#")
}

/// The best dialect without the lines that begin with `#`, unless these have the form of the others: then they are
/// records (tags, channels), or the first of them has the names of the columns. `plain` is the best dialect without
/// comments.
fn with_comments(text: &str, complete: bool, plain: Option<Trial>) -> Option<Trial> {
    let Some(commented) = best(text, complete, Some(MARK)) else { return plain };
    let candidate = Candidate { comment: None, ..commented.candidate };
    let scan = scan(text, complete, candidate, LOOK);
    let marked = |row: &&Row| text[row.start..].starts_with(MARK);
    let fits = |row: &Row| row.fields.len() == commented.width;
    let leading = scan.records().take_while(marked).count();
    // Comments between the records are few.
    let inner = || scan.records().skip(leading).filter(marked);
    if inner().count() >= commented.scan.records().count() {
        return plain;
    }
    // A comment may have a comma by chance. Comments begin with a space after the mark.
    let is_tag = |row: &Row| fits(row) && !text[row.start..].starts_with("# ");
    let are_records = (leading > 0 && scan.records().take(leading).all(fits))
        || scan.records().take(leading).any(is_tag)
        || inner().any(fits);
    match are_records {
        true => plain
            .or_else(|| Trial::new(text, self::scan(text, complete, candidate, LOOK), candidate))
            .or(Some(commented)),
        false => Some(commented),
    }
}

/// A table of one column, in which some delimiter does not occur; `None` if all of them occur.
fn one_column(text: &str, complete: bool) -> Option<Found> {
    let quotes = [Some('"'), None];
    let mut candidates = DELIMITERS.iter().take(6).flat_map(|&(delimiter, worth)| {
        quotes.map(|quote| Candidate { delimiter, worth, quote, escape: None, trim: false, comment: None })
    });
    candidates.find_map(|candidate| {
        let scan = scan(text, complete, candidate, ALL);
        let single =
            scan.torn == 0 && scan.records().next().is_some() && scan.records().all(|row| row.fields.len() == 1);
        single.then(|| {
            let trial = Trial {
                candidate,
                scan: Scan { items: Vec::new(), torn: 0, end: 0 },
                first: 0,
                width: 1,
                share: 1.0,
                quoted: 0,
                score: 1.0,
            };
            found(text, trial, scan)
        })
    })
}

/// The dialect of `trial`, with the whole text that `scan` has read.
fn found(text: &str, trial: Trial, scan: Scan) -> Found {
    let Trial { candidate: Candidate { delimiter, quote, escape, comment, .. }, first, width, .. } = trial;
    let all: Vec<Row> = scan.records().cloned().collect();
    let (before, table) = all.split_at(first.min(all.len()));
    let second_line = match table {
        [_, second, ..] => second.line - 1,
        [only] => only.line,
        [] => 0,
    };
    let total = table.len();
    let records: Vec<Row> = table.iter().filter(|row| row.fields.len() == width).cloned().collect();
    let trim = trial.candidate.trim || is_padded(text, &records, quote);
    let mut evidence = Vec::new();
    let name = match delimiter {
        '\t' => "a tab".to_owned(),
        ' ' => "a space".to_owned(),
        sign => format!("`{}`", sign.escape_default()),
    };
    if width > 1 {
        evidence.push(format!("{name} cuts {} of {total} records into {width} fields", records.len()));
    } else {
        evidence.push("no character cuts its lines into the same number of fields: it has one column".to_owned());
    }
    match quote {
        Some('"') => {}
        Some(sign) => evidence.push(format!("{} fields are in {sign}", trial.quoted)),
        None => evidence.push("quotes are inside fields and not in pairs: they are ordinary text".to_owned()),
    }
    if let Some(escape) = escape {
        evidence.push(format!("quotes inside fields follow `{escape}`"));
    }
    if trim {
        evidence.push("there are spaces around fields: `trim` leaves them out".to_owned());
    }
    let before = before.to_vec();
    Found {
        delimiter,
        quote,
        escape,
        comment,
        trim,
        width,
        records,
        second_line,
        before,
        items: scan.items,
        end: scan.end,
        evidence,
    }
}

/// Whether most records have an unquoted field with spaces around it.
fn is_padded(text: &str, records: &[Row], quote: Option<char>) -> bool {
    let padded = |field: &Range<usize>| {
        let field = &text[field.clone()];
        !quote.is_some_and(|quote| field.starts_with(quote)) && field.trim_matches(' ') != field
    };
    let count = records.iter().filter(|row| row.fields.iter().any(padded)).count();
    records.len() > 1 && count * 2 > records.len()
}
