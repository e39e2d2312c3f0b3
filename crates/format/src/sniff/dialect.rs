//! How a text is cut into records and fields, found by trying.
//!
//! Every delimiter is tried with every quote by the same scanner that will read the file, and the one that makes the
//! most records alike wins:
//!
//! ```text
//!  for each (delimiter, quote, escape, trim)     scan ─▶ fields of each record
//!     width    = the commonest number of fields from 2 on
//!     preamble = the records before the first of that width
//!     share    = records of that width / records behind the preamble
//!     score    = share, a little more for more fields, less for a preamble, and less for delimiters that are also
//!                ordinary signs (space, colon)
//! ```

use std::collections::HashMap;
use std::ops::Range;

use crate::csv::scan::{Flaw, Index, Scanned, Scanner};
use crate::csv::spec::Dialect;

/// Delimiters that are tried, and what their score is worth: some are ordinary signs of text too.
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

/// How much of the sample is looked at, in bytes and records.
const LOOK_BYTES: usize = 1 << 18;
const LOOK_RECORDS: usize = 2000;

/// A share of records of one width below this is no table.
const LEAST_SHARE: f64 = 0.6;

/// The same for delimiters that are ordinary signs too: prose has lines with the same number of words.
const LEAST_SHARE_ORDINARY: f64 = 0.95;

/// The dialect that was found.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub delimiter: char,
    pub quote: Option<char>,
    pub escape: Option<char>,
    pub comment: Option<char>,
    pub trim: bool,
    /// Lines before the first record of the table.
    pub skip_lines: u64,
    /// Lines before its second record.
    pub second_line: u64,
    /// The table's records, each with the raw places of its fields.
    pub records: Vec<Vec<Range<usize>>>,
    pub evidence: Vec<String>,
}

/// One record of a trial.
struct Record {
    line: u64,
    start: usize,
    /// `None` if its structure is bad.
    fields: Option<Vec<Range<usize>>>,
}

/// One way to read the text.
#[derive(Debug, Clone, Copy)]
struct Way {
    delimiter: char,
    /// What the delimiter's score is worth.
    worth: f64,
    quote: Option<char>,
    escape: Option<char>,
    trim: bool,
    comment: Option<char>,
}

impl Way {
    fn dialect(self) -> Dialect {
        let byte = |sign: char| u8::try_from(sign).ok();
        Dialect {
            delimiter: self.delimiter.to_string().into_bytes(),
            quote: self.quote.and_then(byte),
            escape: self.escape.and_then(byte),
            comment: self.comment.and_then(byte),
            trim: self.trim,
            max_record: LOOK_BYTES,
        }
    }
}

/// How well a way to read the text fits.
struct Trial {
    way: Way,
    records: Vec<Record>,
    /// Where the table begins.
    first: usize,
    width: usize,
    share: f64,
    quoted: usize,
    score: f64,
}

impl Trial {
    /// Reads the text in one way. With `single` the table has one column.
    fn new(text: &str, complete: bool, way: Way, single: bool) -> Option<Self> {
        let records = scan(text, complete, way.dialect());
        let mut counts: HashMap<usize, usize> = HashMap::new();
        for record in &records {
            if let Some(fields) = &record.fields {
                *counts.entry(fields.len()).or_default() += 1;
            }
        }
        let least = if single { 1 } else { 2 };
        let (width, _) = counts
            .into_iter()
            .filter(|(width, _)| *width >= least && (!single || *width == 1))
            .max_by_key(|(width, count)| (*count * (*width).min(3), *width))?;
        let is_row = |record: &Record| record.fields.as_ref().is_some_and(|fields| fields.len() == width);
        // Prose before the table may have a delimiter or two by chance: the table begins where two records that follow
        // each other have its width, or with its only record.
        let alike = records.windows(2).position(|pair| is_row(&pair[0]) && is_row(&pair[1]));
        let mut first = alike.or_else(|| records.iter().position(is_row))?;
        // Spreadsheets fill the lines of a title up to the table's width.
        let filled = |record: &Record| {
            let fields = record.fields.iter().flatten().filter(|field| !text[(*field).clone()].trim().is_empty());
            fields.count()
        };
        while width > 2 && filled(&records[first]) <= 1 && records.get(first + 1).is_some_and(&is_row) {
            first += 1;
        }
        let table = &records[first..];
        let rows = table.iter().filter(|record| is_row(record)).count();
        // One line of prose with a comma is no table.
        if rows < 2 && records.len() > 1 {
            return None;
        }
        // A record that is torn by its quotes says more against a dialect than one that is short.
        let torn = table.iter().filter(|record| record.fields.is_none()).count();
        let share = rows as f64 / (table.len() + torn) as f64;
        let quoted = way.quote.map_or(0, |quote| count_quoted(text, &records, quote));
        let preamble = first as f64 / records.len() as f64;
        let score = share * way.worth - 0.3 * preamble + 0.02 * (width.min(30) as f64).ln();
        Some(Trial { way, first, width, share, quoted, score, records })
    }
}

/// Fields that begin and end with the quote.
fn count_quoted(text: &str, records: &[Record], quote: char) -> usize {
    let quoted = |field: &&Range<usize>| {
        let field = text.get((*field).clone()).unwrap_or("").trim_matches([' ', '\t']);
        field.len() >= 2 && field.starts_with(quote) && field.ends_with(quote)
    };
    records.iter().filter_map(|record| record.fields.as_ref()).flatten().filter(quoted).count()
}

fn scan(text: &str, complete: bool, dialect: Dialect) -> Vec<Record> {
    let delimiter = dialect.delimiter.len();
    let mut scanner = Scanner::new(dialect, 1);
    let mut index = Index::default();
    let mut bad = Vec::new();
    let mut records = Vec::new();
    let mut from = 0;
    let end = text.len().min(LOOK_BYTES);
    let whole = complete && end == text.len();
    let bytes = &text.as_bytes()[..end];
    while records.len() < LOOK_RECORDS {
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
            records.push(Record { line, start: index.starts[0] as usize, fields: Some(fields) });
        }
        if let Some(bad) = bad.first() {
            records.push(Record { line, start: bad.start, fields: None });
            if matches!(bad.flaw, Flaw::Unclosed(_)) {
                break;
            }
        }
        match scanned {
            Scanned::Enough(next) => from = next,
            Scanned::Incomplete(_) => break,
            Scanned::TooLong(start, _) => {
                records.push(Record { line, start, fields: None });
                break;
            }
        }
    }
    records
}

/// The dialect of `text`; `None` if it is no table. `single` says that a table of one column will do: its name ends
/// like that of a csv file.
pub(super) fn find(text: &str, complete: bool, single: bool) -> Option<Found> {
    let text = text.trim_start_matches('\u{feff}');
    let comment = comment(text);
    let mut best: Option<Trial> = None;
    let trims: &[bool] = if has_blank_before_quote(text) { &[false, true] } else { &[false] };
    let clocks = has_clocks(text);
    for &(delimiter, worth) in DELIMITERS {
        if !text.contains(delimiter) || (delimiter == ':' && clocks) {
            continue;
        }
        for (quote, escape) in ways_to_quote(text) {
            for &trim in trims {
                let way = Way { delimiter, worth, quote, escape, trim, comment };
                let least = if worth < 0.9 { LEAST_SHARE_ORDINARY } else { LEAST_SHARE };
                let trial = Trial::new(text, complete, way, false);
                best = better(best, trial.filter(|trial| trial.share >= least && trial.score > 0.45));
            }
        }
    }
    let best = match best {
        None if single => ways_to_quote(text)
            .into_iter()
            .map(|(quote, escape)| Way { delimiter: ',', worth: 1.0, quote, escape, trim: false, comment })
            .filter_map(|way| Trial::new(text, complete, way, true))
            .fold(None, |best, trial| better(best, Some(trial))),
        best => best,
    }?;
    Some(found(text, best, comment))
}

fn better(best: Option<Trial>, trial: Option<Trial>) -> Option<Trial> {
    match (best, trial) {
        (Some(best), Some(trial)) => {
            // Ways come in the order in which they are preferred: another one must explain more.
            let more = trial.score > best.score + 1e-9
                || (trial.score > best.score - 1e-9
                    && trial.way.delimiter == best.way.delimiter
                    && trial.quoted > best.quoted);
            Some(if more { trial } else { best })
        }
        (best, trial) => best.or(trial),
    }
}

fn ways_to_quote(text: &str) -> Vec<(Option<char>, Option<char>)> {
    let mut ways = vec![(Some('"'), None)];
    if text.contains("\\\"") {
        ways.push((Some('"'), Some('\\')));
    }
    if text.contains('\'') {
        ways.push((Some('\''), None));
        if text.contains("\\'") {
            ways.push((Some('\''), Some('\\')));
        }
    }
    if text.contains('"') {
        ways.push((None, None));
    }
    ways
}

/// Whether a quote follows a delimiter and a space somewhere.
fn has_blank_before_quote(text: &str) -> bool {
    [", \"", "; \"", "| \"", ", '", "; '"].iter().any(|pattern| text.contains(pattern))
}

/// Whether there are times of day: their colons cut nothing.
fn has_clocks(text: &str) -> bool {
    let look = &text.as_bytes()[..floor(text, LOOK_BYTES)];
    look.windows(6).any(|window| {
        let digit = |index: usize| window[index].is_ascii_digit();
        digit(0) && digit(1) && window[2] == b':' && digit(3) && digit(4) && !digit(5)
    })
}

/// `#` if lines begin with it, and not only the first (which would be a header).
fn comment(text: &str) -> Option<char> {
    let look = text.get(..floor(text, LOOK_BYTES)).unwrap_or(text);
    let mut lines = look.lines();
    let first = lines.next().unwrap_or("");
    let begins = |line: &str| line.starts_with('#');
    if begins(first) {
        // A single line that is cut like the next one holds the names of the columns.
        let second = lines.next().unwrap_or("");
        let cut =
            |line: &str| DELIMITERS.iter().take(4).map(|(sign, _)| line.matches(*sign).count()).collect::<Vec<_>>();
        let alike = cut(first).iter().zip(cut(second)).any(|(a, b)| *a > 0 && *a == b);
        return (begins(second) || !alike).then_some('#');
    }
    lines.any(begins).then_some('#')
}

fn floor(text: &str, mut place: usize) -> usize {
    place = place.min(text.len());
    while !text.is_char_boundary(place) {
        place -= 1;
    }
    place
}

fn found(text: &str, trial: Trial, comment: Option<char>) -> Found {
    let Trial { way: Way { delimiter, quote, escape, .. }, first, width, .. } = trial;
    let first_line = trial.records[first].line;
    let before = &text[..trial.records[first].start];
    // Lines that the reader leaves out anyway need not be skipped.
    let prose = before.lines().any(|line| !line.is_empty() && !comment.is_some_and(|sign| line.starts_with(sign)));
    let skip_lines = if prose { first_line - 1 } else { 0 };
    let second_line = trial.records.get(first + 1).map_or(first_line, |record| record.line - 1);
    let total = trial.records.len() - first;
    let records: Vec<_> = trial
        .records
        .into_iter()
        .skip(first)
        .filter_map(|record| record.fields)
        .filter(|fields| fields.len() == width)
        .collect();
    let trim = trial.way.trim || is_padded(text, &records, quote);
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
    if skip_lines > 0 {
        evidence.push(format!("the {skip_lines} lines before line {first_line} have another form"));
    }
    match quote {
        Some('"') => {}
        Some(sign) => evidence.push(format!("{} fields stand in {sign}", trial.quoted)),
        None => evidence.push("quotes stand inside fields and do not come in pairs: they are ordinary text".to_owned()),
    }
    if let Some(escape) = escape {
        evidence.push(format!("quotes inside fields follow `{escape}`"));
    }
    if let Some(comment) = comment {
        evidence.push(format!("lines that begin with `{comment}` have another form"));
    }
    if trim {
        evidence.push("there are spaces around fields".to_owned());
    }
    Found { delimiter, quote, escape, comment, trim, skip_lines, second_line, records, evidence }
}

/// Whether most records have a field with spaces around what is not in quotes.
fn is_padded(text: &str, records: &[Vec<Range<usize>>], quote: Option<char>) -> bool {
    let padded = |field: &Range<usize>| {
        let field = &text[field.clone()];
        !quote.is_some_and(|quote| field.starts_with(quote)) && field.trim_matches(' ') != field
    };
    let count = records.iter().filter(|fields| fields.iter().any(padded)).count();
    records.len() > 1 && count * 2 > records.len()
}
