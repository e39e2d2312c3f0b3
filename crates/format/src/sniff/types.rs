//! Finds the header of a table, and the types of its values.
//!
//! A column is tried with the plain conventions first, then with texts for null, then with dates and numbers of other
//! countries; a column that none explains is text. So is one with two explanations, or with values that a type would
//! change: a note says so, and the user can declare more. Notes also report values that are read as something that
//! looks different.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use arrow::datatypes::{DataType, TimeUnit};
use millstream_core::format::TEXT;

use super::dialect::{Found, Row};
use crate::csv::infer::TypeGuess;
use crate::csv::spec::{Conventions, CsvSpec, Dialect};
use crate::csv::values::{Reader, Syntax};
use millstream_core::columns::{ColumnSpec, type_name};

/// Texts that stand for null in a column of anything but text.
const NULLS: &[&str] =
    &["NA", "N/A", "n/a", "#N/A", "NULL", "null", "None", "none", "NaN", "nan", "\\N", "-", "?", "."];

/// How dates are written, beside ISO 8601. Where day and month can be swapped in all values, they stay text.
const DATES: &[&str] = &[
    "%d.%m.%Y",
    "%d.%m.%y",
    "%m/%d/%Y",
    "%d/%m/%Y",
    "%Y/%m/%d",
    "%d-%m-%Y",
    "%m-%d-%Y",
    "%m/%d/%y",
    "%d/%m/%y",
    "%d-%m-%y",
    "%m-%d-%y",
    "%Y.%m.%d",
    "%d %b %Y",
    "%d-%b-%Y",
    "%d-%b-%y",
    "%b %d, %Y",
    "%B %d, %Y",
    "%d %B %Y",
];

/// The formats of the time after a date in a timestamp.
const CLOCKS: &[&str] = &[" %H:%M:%S", " %H:%M", "T%H:%M:%S", " %H:%M:%S%.f", " %I:%M:%S %p", " %I:%M %p"];

/// The decimal and thousands separators that are tried besides a plain point.
const SIGNS: &[(char, Option<char>)] = &[
    ('.', Some(',')),
    (',', None),
    (',', Some('.')),
    ('.', Some('\'')),
    (',', Some(' ')),
    (',', Some('\u{a0}')),
    (',', Some('\u{202f}')),
];

/// Texts that mean true and false, beside those two words.
const TRUTHS: &[(&str, &str)] = &[
    ("yes", "no"),
    ("y", "n"),
    ("t", "f"),
    ("ja", "nein"),
    ("j", "n"),
    ("oui", "non"),
    ("on", "off"),
    ("wahr", "falsch"),
];

/// The table with its columns.
pub(super) struct Table {
    pub header: Header,
    pub columns: Vec<(String, ColumnSpec)>,
    pub decimal: char,
    pub thousands: Option<char>,
    /// Texts for null, beside the empty one.
    pub nulls: Vec<String>,
    /// Texts for true and false, beside those two words.
    pub truths: Vec<(&'static str, &'static str)>,
    pub evidence: Vec<String>,
    /// Notes about values that are read as something that looks different, or stay text although they look like
    /// something else.
    pub notes: Vec<String>,
}

/// Where the names of the columns come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Header {
    /// There are none: all records hold values.
    None,
    /// The first record of the table.
    First { strong: bool },
    /// The first record of the table, which cannot be read as a header, since two names are equal: it is skipped.
    Skipped { strong: bool },
    /// The record before the table, which has one field more or less.
    Before,
}

/// A field's content.
pub(super) struct Cell {
    pub text: String,
    pub quoted: bool,
}

impl Cell {
    fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
}

/// The explanation of a column's values.
#[derive(Debug, Clone, PartialEq)]
struct Kind {
    data_type: DataType,
    /// The type without doubts: a value that looks like a number is no name of a column.
    looks: DataType,
    format: Option<String>,
    /// The other separators that explain the numbers as well, while it is unknown which ones are right.
    rival: Option<(char, Option<char>)>,
    decimal: char,
    thousands: Option<char>,
    nulls: Vec<String>,
    truth: Option<(&'static str, &'static str)>,
    /// A note about the column.
    note: Option<String>,
}

impl Kind {
    fn plain(data_type: DataType) -> Self {
        Kind {
            looks: data_type.clone(),
            data_type,
            format: None,
            rival: None,
            decimal: '.',
            thousands: None,
            nulls: Vec::new(),
            truth: None,
            note: None,
        }
    }

    /// Text that looks like `looks`.
    fn text(looks: DataType, note: String) -> Self {
        Kind { looks, note: Some(note), ..Kind::plain(TEXT) }
    }

    fn is_text(&self) -> bool {
        self.data_type == TEXT || self.data_type.is_null()
    }

    fn looks_like_text(&self) -> bool {
        self.looks == TEXT || self.looks.is_null()
    }
}

/// The fields of `row` as values.
pub(super) fn cells(text: &str, row: &Row, syntax: &Syntax) -> Vec<Cell> {
    row.fields.iter().map(|field| cell(text, field, syntax)).collect()
}

/// Finds header, names and types. The columns `as_text` stay text.
pub(super) fn table(text: &str, found: &Found, as_text: &HashSet<usize>) -> Table {
    let syntax = syntax(found);
    let rows: Vec<Vec<Cell>> = found.records.iter().map(|row| cells(text, row, &syntax)).collect();
    let mut table = Table {
        header: Header::First { strong: true },
        columns: Vec::new(),
        decimal: '.',
        thousands: None,
        nulls: Vec::new(),
        truths: Vec::new(),
        evidence: Vec::new(),
        notes: Vec::new(),
    };
    let Some((first, rest)) = rows.split_first() else { return table };
    let column = |rows: &[Vec<Cell>], column: usize| kind(rows.iter().map(|row| &row[column]));
    let all: Vec<Kind> = (0..found.width).map(|index| column(&rows, index)).collect();
    let behind: Vec<Kind> = (0..found.width).map(|index| column(rest, index)).collect();
    let (mut is_header, mut strong, why) = is_header(first, rest, &behind, &all);
    let mut aside = names_before(text, found, &syntax).filter(|_| !(is_header && strong));
    if aside.is_none() && !found.has_only_titles(text) && !(is_header && strong) {
        // The lines before the table may be records: they are not skipped, so there is no header.
        (is_header, strong) = (false, false);
        table.evidence.push("no header is found before the records".to_owned());
    } else if aside.is_none() {
        table.evidence.push(why);
    }
    let (names, doubled) = match &mut aside {
        Some((names, why)) => {
            table.header = Header::Before;
            table.evidence.push(std::mem::take(why));
            numbered(std::mem::take(names))
        }
        None => {
            table.header = if is_header { Header::First { strong } } else { Header::None };
            let name = |cell: &Cell| if is_header { cell.text.trim().to_owned() } else { String::new() };
            numbered(first.iter().map(name).collect())
        }
    };
    if let Some(name) = &doubled {
        table
            .notes
            .push(format!("two columns are named {name}: the header is skipped and the second one gets a number"));
        if let Header::First { strong } = table.header {
            table.header = Header::Skipped { strong };
        }
    }
    let values =
        if matches!(table.header, Header::First { .. } | Header::Skipped { .. }) { &rows[1..] } else { &rows[..] };
    let mut kinds = if values.len() == rows.len() { all } else { behind };
    for &column in as_text {
        if let Some(kind) = kinds.get_mut(column) {
            *kind = Kind::plain(TEXT);
        }
    }
    (table.decimal, table.thousands) = agree(&mut kinds);
    without_doubtful_nulls(&mut kinds, values, &names);
    describe(&mut table, &kinds, &names);
    let columns = names.into_iter().zip(&kinds).map(|(name, kind)| {
        let data_type = if kind.data_type.is_null() { &TEXT } else { &kind.data_type };
        (name, ColumnSpec::of(data_type, kind.format.as_deref()))
    });
    table.columns = columns.collect();
    table
}

/// Adds the settings and notes of its columns to `table`.
fn describe(table: &mut Table, kinds: &[Kind], names: &[String]) {
    for (name, kind) in names.iter().zip(kinds) {
        table.notes.extend(kind.note.iter().map(|note| format!("column {name}: {note}")));
        for null in &kind.nulls {
            table.notes.push(format!("column {name}: `{null}` is read as null"));
            if !table.nulls.contains(null) {
                table.nulls.push(null.clone());
            }
        }
        if let Some((yes, no)) = kind.truth {
            table.notes.push(format!("column {name}: {yes} and {no} are read as true and false"));
            if !table.truths.contains(&(yes, no)) {
                table.truths.push((yes, no));
            }
        }
    }
    if let Some(thousands) = table.thousands {
        let decimal = table.decimal;
        table.notes.push(format!("numbers have `{decimal}` before the fraction and `{thousands}` between thousands"));
    } else if table.decimal == ',' {
        table.notes.push("numbers have `,` before the fraction".to_owned());
    }
}

pub(super) fn syntax(found: &Found) -> Syntax {
    let byte = |sign: char| u8::try_from(sign).ok();
    let dialect = Dialect {
        delimiter: found.delimiter.to_string().into_bytes(),
        quote: found.quote.and_then(byte),
        escape: found.escape.and_then(byte),
        comment: None,
        trim: found.trim,
        max_record: usize::MAX,
    };
    Syntax::new(dialect, &[String::new()])
}

fn cell(text: &str, field: &Range<usize>, syntax: &Syntax) -> Cell {
    let raw = text.as_bytes().get(field.clone()).unwrap_or_default();
    let quoted = syntax.content(raw).quoted;
    Cell { text: String::from_utf8_lossy(&syntax.to_text(raw)).into_owned(), quoted }
}

/// The names that the reader of the file will use; an empty one becomes that of its index. If two are equal, the later
/// one gets a number, and the first such name is reported.
fn numbered(given: Vec<String>) -> (Vec<String>, Option<String>) {
    let mut names: Vec<String> = Vec::with_capacity(given.len());
    let mut taken: HashSet<String> = HashSet::with_capacity(given.len());
    // The number that was last given to a name.
    let mut numbers: HashMap<String, usize> = HashMap::new();
    let mut doubled = None;
    for (field, name) in given.into_iter().enumerate() {
        let name = if name.is_empty() { format!("column_{}", field + 1) } else { name };
        let mut free = name.clone();
        while !taken.insert(free.clone()) {
            doubled.get_or_insert_with(|| name.clone());
            let number = numbers.entry(name.clone()).or_insert(1);
            *number += 1;
            free = format!("{name}_{number}");
        }
        names.push(free);
    }
    (names, doubled)
}

/// The names in the record before the table, if it has one field more or less than the others and holds nothing but
/// text, and the evidence.
fn names_before(text: &str, found: &Found, syntax: &Syntax) -> Option<(Vec<String>, String)> {
    let row = found.before.last().filter(|row| row.fields.len().abs_diff(found.width) == 1 && row.fields.len() >= 2)?;
    let cells = cells(text, row, syntax);
    let mut names: Vec<String> = cells.iter().map(|cell| cell.text.trim().to_owned()).collect();
    let trailing = names.last().is_some_and(String::is_empty);
    let named = &names[..names.len() - usize::from(trailing)];
    let is_name = |name: &String| {
        !name.is_empty() && kind(std::iter::once(&Cell { text: name.clone(), quoted: false })).looks_like_text()
    };
    let distinct: HashSet<&String> = named.iter().collect();
    if !named.iter().all(is_name) || distinct.len() < named.len() {
        return None;
    }
    let line = row.line;
    if names.len() > found.width {
        let left = names.pop().unwrap_or_default();
        let why = match left.is_empty() {
            true => format!("line {line} holds the names of the columns, and an extra delimiter"),
            false => format!("line {line} holds the names of the columns, and an extra one: `{left}` has no values"),
        };
        return Some((names, why));
    }
    let is_empty = |row: &Row| row.fields.last().is_none_or(|field| text[field.clone()].trim().is_empty());
    if found.records.iter().all(is_empty) {
        names.push(String::new());
        return Some((
            names,
            format!("line {line} holds the names of the columns; the records end with an extra delimiter"),
        ));
    }
    names.insert(0, String::new());
    Some((
        names,
        format!("line {line} holds the names of the columns, and none for the first: check that they are right"),
    ))
}

/// Whether the first record holds names, whether a type says so, and why. `behind` explains the records after it, `all`
/// those and the first.
fn is_header(first: &[Cell], rest: &[Vec<Cell>], behind: &[Kind], all: &[Kind]) -> (bool, bool, String) {
    let own = |cell: &Cell| kind(std::iter::once(cell));
    let columns = || first.iter().enumerate().filter(|(_, cell)| !cell.is_empty());
    let stands_above: Vec<usize> = columns()
        .filter(|(column, cell)| {
            !behind[*column].looks_like_text() && all[*column].looks_like_text() && own(cell).looks_like_text()
        })
        .map(|(column, _)| column)
        .collect();
    let of_the_others: Vec<usize> = columns()
        .filter(|(column, cell)| {
            !behind[*column].looks_like_text() && !all[*column].looks_like_text()
                || is_word_of_column(cell, rest, *column)
        })
        .map(|(column, _)| column)
        .collect();
    if let Some(&column) = stands_above.first()
        && (stands_above.len() > of_the_others.len() || are_years(first, rest))
    {
        let (name, kind) = (&first[column].text, type_name(&behind[column].looks));
        return (true, true, format!("the first record is a header: `{name}` stands above values of type {kind}"));
    }
    if !of_the_others.is_empty() && are_years(first, rest) {
        return (true, true, "the first record is a header: its numbers are consecutive years".to_owned());
    }
    if let Some(&column) = of_the_others.first() {
        let text = &first[column].text;
        return (false, false, format!("the first record is not a header: `{text}` is a value like those below it"));
    }
    let values: Vec<usize> =
        columns().filter(|(_, cell)| !own(cell).looks_like_text()).map(|(column, _)| column).collect();
    let above_text =
        |column: usize| rest.iter().all(|row| own(&row[column]).looks_like_text()) && behind[column].looks == TEXT;
    if !values.is_empty() && values.iter().all(|&column| above_text(column)) {
        let why = format!(
            "the first record is taken for a header, since `{}` stands above values of text; if it is data, set \
             `header: false`",
            first[values[0]].text
        );
        return (true, false, why);
    }
    let is_text = |kind: &Kind| kind.looks_like_text();
    if !values.is_empty() {
        return (
            false,
            false,
            "the first record is not a header: it holds numbers or dates like the others".to_owned(),
        );
    }
    if rest.is_empty() {
        return (true, false, "the only record is taken for a header: it holds nothing but text".to_owned());
    }
    if first.iter().any(Cell::is_empty) && behind.iter().all(is_text) {
        return (false, false, "the first record is not a header: a name is missing".to_owned());
    }
    let mut texts = HashSet::new();
    let distinct = first.iter().all(|cell| texts.insert(&cell.text));
    let repeated = columns().any(|(column, cell)| rest.iter().any(|row| row[column].text == cell.text));
    if (!distinct && behind.iter().all(is_text)) || repeated {
        return (false, false, "the first record is not a header: its texts are not unique".to_owned());
    }
    let why = "the first record is taken for a header, since all is text and its texts do not occur again; if it is \
               data, set `header: false`";
    (true, false, why.to_owned())
}

/// Whether a text of the first record is one that stands for true, false or null, among others of its kind.
fn is_word_of_column(cell: &Cell, rest: &[Vec<Cell>], column: usize) -> bool {
    let is = |cell: &Cell, words: &[&str]| words.iter().any(|word| cell.text.trim().eq_ignore_ascii_case(word));
    let values = || rest.iter().map(|row| &row[column]).filter(|cell| !cell.is_empty());
    let truths = TRUTHS.iter().chain(&[("true", "false")]).map(|(yes, no)| [*yes, *no]);
    let all_of = |words: &[&str]| is(cell, words) && values().next().is_some() && values().all(|cell| is(cell, words));
    truths.clone().any(|words| all_of(&words)) || (is(cell, NULLS) && values().any(|cell| is(cell, NULLS)))
}

/// Whether the first record is a text and then years that grow, above numbers that are other numbers.
fn are_years(first: &[Cell], rest: &[Vec<Cell>]) -> bool {
    let year = |text: &str| text.trim().parse::<u32>().ok().filter(|year| (1800..2200).contains(year));
    let years: Vec<(usize, u32)> =
        first.iter().enumerate().filter_map(|(column, cell)| Some((column, year(&cell.text)?))).collect();
    let others = first.iter().filter(|cell| year(&cell.text).is_none());
    years.len() >= 2
        && others.clone().all(|cell| !cell.text.chars().any(|sign| sign.is_ascii_digit()))
        && years.windows(2).all(|pair| pair[1].1 == pair[0].1 + 1)
        && years.iter().any(|(column, _)| rest.iter().any(|row| year(&row[*column].text).is_none()))
}

fn conventions(decimal: char, thousands: Option<char>) -> Conventions {
    CsvSpec { decimal: decimal.to_string(), thousands: thousands.map(String::from), ..CsvSpec::default() }.conventions()
}

/// Explains the values of a column.
fn kind<'a>(cells: impl Iterator<Item = &'a Cell> + Clone) -> Kind {
    let values = cells.filter(|cell| !cell.is_empty());
    let is_null = |cell: &&Cell| !cell.quoted && NULLS.contains(&cell.text.trim());
    let mut nulls: Vec<String> = Vec::new();
    for cell in values.clone().filter(is_null) {
        let text = cell.text.trim().to_owned();
        if !nulls.contains(&text) {
            nulls.push(text);
        }
    }
    let plain = explain(values.clone());
    if plain.data_type != TEXT || nulls.is_empty() {
        return plain;
    }
    let without = explain(values.filter(|cell| !is_null(cell)));
    if without.is_text() {
        Kind { note: without.note, looks: without.looks, ..plain }
    } else {
        Kind { nulls, ..without }
    }
}

fn explain<'a>(values: impl Iterator<Item = &'a Cell> + Clone) -> Kind {
    let data_type = with_conventions(values.clone(), &conventions('.', None));
    if data_type != TEXT {
        return plain_kind(data_type, values);
    }
    if let Some(kind) = dates(values.clone()) {
        return kind;
    }
    for truth in TRUTHS {
        let is = |cell: &Cell, word: &str| cell.text.trim().eq_ignore_ascii_case(word);
        let both = values.clone().any(|cell| is(cell, truth.0)) && values.clone().any(|cell| is(cell, truth.1));
        if both && values.clone().all(|cell| is(cell, truth.0) || is(cell, truth.1)) {
            return Kind { truth: Some(*truth), ..Kind::plain(DataType::Boolean) };
        }
    }
    if let Some(kind) = numbers(values.clone()) {
        return kind;
    }
    match why_text(values) {
        Some(why) => Kind::text(DataType::Float64, why),
        None => Kind::plain(TEXT),
    }
}

/// The kind of values that have the type `data_type` without settings, with notes.
fn plain_kind<'a>(data_type: DataType, values: impl Iterator<Item = &'a Cell> + Clone) -> Kind {
    let texts = || values.clone().map(|cell| cell.text.trim());
    let note = match &data_type {
        DataType::Float64 if has_versions(texts()) => {
            let example = texts().filter(|text| text.ends_with('0')).max_by_key(|text| text.len()).unwrap_or_default();
            return Kind::text(
                data_type,
                format!(
                    "`{example}` would lose its last digit as a number (it may be a version), so it stays text; if \
                     it is a number, declare it as float64 or decimal(precision, scale)"
                ),
            );
        }
        DataType::Timestamp(_, Some(_)) => {
            let has_offset = |text: &&str| has_offset(text);
            if !texts().all(|text| has_offset(&text)) {
                return Kind::text(
                    data_type,
                    "some of its times have an offset from UTC and others have none, so it stays text".to_owned(),
                );
            }
            let is_utc = |text: &str| text.ends_with(['Z', 'z']) || text.ends_with("+00:00") || text.ends_with("+0000");
            texts()
                .find(|text| !is_utc(text))
                .map(|text| format!("times with an offset, such as `{text}`, are kept in UTC"))
        }
        DataType::Timestamp(_, None) => texts()
            .find(|text| !text.contains(':'))
            .map(|text| format!("`{text}` has no time of day, and is read as midnight")),
        DataType::Time64(_) => texts()
            .find(|text| text.matches(':').count() == 1)
            .map(|text| format!("`{text}` is read as a time of day, {text}:00; if it is not, declare it as utf8")),
        _ => None,
    };
    Kind { note, ..Kind::plain(data_type) }
}

/// Whether there is an offset from UTC at the end of a timestamp.
fn has_offset(text: &str) -> bool {
    let Some((_, clock)) = text.split_once(['T', 't', ' ']) else { return false };
    clock.contains(['Z', 'z', '+', '-'])
}

/// Whether there are fractions of different lengths of which some end in zero, as in 1.9 and 1.10. Numbers that a
/// program writes have either all the same length or no zeros at their ends.
fn has_versions<'a>(texts: impl Iterator<Item = &'a str>) -> bool {
    let (mut lengths, mut zero) = (HashSet::new(), false);
    for text in texts {
        if let Some((_, fraction)) =
            text.split_once('.').filter(|(_, fraction)| fraction.bytes().all(|byte| byte.is_ascii_digit()))
        {
            lengths.insert(fraction.len());
            zero |= fraction.len() > 1 && fraction.ends_with('0');
        }
    }
    zero && lengths.len() > 1
}

/// Why numbers are text, if they are not for an obvious reason.
fn why_text<'a>(values: impl Iterator<Item = &'a Cell> + Clone) -> Option<String> {
    let looks = |cell: &Cell| {
        let text = cell.text.trim();
        let rest = text.strip_prefix(['+', '-']).unwrap_or(text);
        rest.starts_with(|sign: char| sign.is_ascii_digit() || sign == '.') && rest.parse::<f64>().is_ok()
    };
    if values.clone().next().is_none() || !values.clone().all(looks) {
        return None;
    }
    let is_plain = |cell: &&Cell| with_conventions(std::iter::once(*cell), &conventions('.', None)) == TEXT;
    let odd = values.clone().find(is_plain).or_else(|| {
        // Whole numbers that fit alone, and are too long beside a fraction.
        values.max_by_key(|cell| cell.text.len())
    })?;
    let text = odd.text.trim();
    let why = match text.as_bytes() {
        [b'+', ..] | b"-0" => "would lose its sign as a number",
        [b'0', digit, ..] | [b'-', b'0', digit, ..] if digit.is_ascii_digit() => "would lose its zero as a number",
        _ if text.contains(['e', 'E']) => "may be a name and not a number",
        _ => "has more digits than a number would keep",
    };
    Some(format!("`{text}` {why}, so it stays text"))
}

/// Numbers with other separators than a decimal point.
fn numbers<'a>(values: impl Iterator<Item = &'a Cell> + Clone) -> Option<Kind> {
    let fits = |&&(decimal, thousands): &&(char, Option<char>)| {
        let data_type = with_conventions(values.clone(), &conventions(decimal, thousands));
        matches!(data_type, DataType::Int64 | DataType::Float64)
    };
    let fitting: Vec<(char, Option<char>)> = SIGNS.iter().filter(fits).copied().collect();
    let &(decimal, thousands) = fitting.first()?;
    let has_fraction = values.clone().any(|cell| cell.text.contains(','));
    // Versions and codes also have points and spaces before three digits.
    if decimal == ',' && thousands.is_some() && !has_fraction {
        let example = values.clone().find(|cell| thousands.is_some_and(|sign| cell.text.contains(sign)))?;
        return Some(Kind::text(
            DataType::Float64,
            format!("`{}` may be a number or a code, so it stays text", example.text.trim()),
        ));
    }
    let rival = fitting.contains(&(',', None)).then_some((',', None)).filter(|_| thousands == Some(','));
    let data_type = with_conventions(values.clone(), &conventions(decimal, thousands));
    let example = values.clone().find(|cell| cell.text.contains([',', '\'']))?;
    let text = example.text.trim();
    let note = match rival {
        Some(_) => format!(
            "`{text}` may be {} or {}, so it stays text; set `thousands: \",\"` or `decimal: \",\"`, and declare the \
             column",
            text.replace(',', ""),
            text.replace(',', ".")
        ),
        None => {
            let plain: String = text.chars().filter(|sign| Some(*sign) != thousands).collect();
            format!("`{text}` is read as {}", plain.replace(decimal, "."))
        }
    };
    Some(Kind { decimal, thousands, rival, note: Some(note), ..Kind::plain(data_type) })
}

fn with_conventions<'a>(values: impl Iterator<Item = &'a Cell>, conventions: &Conventions) -> DataType {
    let mut guess = TypeGuess::new(conventions);
    values.for_each(|cell| guess.see(cell.text.as_bytes()));
    guess.data_type()
}

/// A format of dates or timestamps that explains all values.
fn dates<'a>(values: impl Iterator<Item = &'a Cell> + Clone) -> Option<Kind> {
    let plain = conventions('.', None);
    let first = values.clone().next()?;
    // Every date has a digit; most columns of text have a value without, and are many.
    if !first.text.contains(|sign: char| sign.is_ascii_digit()) {
        return None;
    }
    let explains = |data_type: &DataType, format: &str| {
        let reader = Reader::new(&plain, data_type, Some(format));
        values.clone().all(|cell| {
            let text = cell.text.trim();
            has_shape(text, format)
                && match data_type {
                    DataType::Date32 => reader.date(text.as_bytes()).is_ok(),
                    _ => reader.timestamp(text.as_bytes(), false).is_ok(),
                }
        })
    };
    let example = first.text.trim();
    let found = |data_type: DataType, formats: Vec<String>| {
        let fitting: Vec<String> = formats.into_iter().filter(|format| explains(&data_type, format)).collect();
        let format = fitting.first()?;
        let swapped = format.replace("%d", "%_").replace("%m", "%d").replace("%_", "%m");
        if fitting.contains(&swapped) {
            let name = type_name(&data_type);
            return Some(Kind::text(
                data_type.clone(),
                format!(
                    "`{example}` may be {format} or {swapped}, so it stays text; declare {{type: {name}, format: \
                     \"{format}\"}} if that is right"
                ),
            ));
        }
        let note = format!("`{example}` is read as a {} with the format {format}", type_name(&data_type));
        Some(Kind { format: Some(format.clone()), note: Some(note), ..Kind::plain(data_type.clone()) })
    };
    found(DataType::Date32, DATES.iter().map(|&format| format.to_owned()).collect()).or_else(|| {
        let formats = CLOCKS.iter().flat_map(|clock| DATES.iter().map(move |date| format!("{date}{clock}"))).collect();
        found(DataType::Timestamp(TimeUnit::Microsecond, None), formats)
    })
}

/// Whether `text` is written exactly like `format`: chrono takes years of any number of digits, and `2.2.0` is no date.
fn has_shape(text: &str, format: &str) -> bool {
    // Where such a thing may as well be a version or a number, day and month have two digits.
    let padded = format.contains(".%y") || format.contains("-%y") || format.starts_with("%Y.");
    let mut rest = text;
    let mut signs = format.chars();
    while let Some(sign) = signs.next() {
        if sign != '%' {
            let Some(behind) = rest.strip_prefix(sign) else { return false };
            rest = behind;
            continue;
        }
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let taken = match signs.next() {
            Some('Y') if digits == 4 => 4,
            Some('y' | 'M' | 'S') if digits == 2 => 2,
            Some('d' | 'm') if digits == 2 || (digits == 1 && !padded) => digits,
            Some('H' | 'I') if digits == 1 || digits == 2 => digits,
            Some('b') if letters == 3 => 3,
            Some('B') if letters >= 3 => letters,
            Some('p') if letters == 2 => 2,
            Some('.') => {
                // `%.f`; times are kept in microseconds.
                signs.next();
                let fraction = rest.strip_prefix('.').map(|rest| rest.bytes().take_while(u8::is_ascii_digit).count());
                match fraction {
                    None => 0,
                    Some(count @ 1..=6) => count + 1,
                    Some(_) => return false,
                }
            }
            _ => return false,
        };
        rest = &rest[taken..];
    }
    rest.is_empty()
}

/// The note if another column shows what a comma means.
const GROUPED: &str = "its commas are read as those between thousands, as in another column";
const FRACTIONS: &str = "its commas are read as those before a fraction, as in another column";

/// Chooses the separators of numbers for the whole file: the commonest win, and columns that need others stay text. So
/// do ambiguous columns, if no other column decides.
fn agree(kinds: &mut [Kind]) -> (char, Option<char>) {
    let point =
        kinds.iter().any(|kind| kind.data_type == DataType::Float64 && kind.decimal == '.' && kind.rival.is_none());
    let signs: Vec<(char, Option<char>)> = kinds
        .iter()
        .filter(|kind| kind.rival.is_none())
        .map(|kind| (kind.decimal, kind.thousands))
        .filter(|signs| *signs != ('.', None) && !(point && signs.0 != '.'))
        .collect();
    let chosen = signs.iter().copied().max_by_key(|signs| (signs.1.is_some(), signs.0 == ',')).unwrap_or(('.', None));
    for kind in kinds {
        if let Some(rival) = kind.rival.take() {
            *kind = match chosen {
                (',', _) => Kind {
                    decimal: rival.0,
                    thousands: rival.1,
                    note: Some(FRACTIONS.to_owned()),
                    ..Kind::plain(DataType::Float64)
                },
                ('.', Some(',')) => Kind { note: Some(GROUPED.to_owned()), ..kind.clone() },
                _ => Kind::text(kind.looks.clone(), kind.note.take().unwrap_or_default()),
            };
        }
        let fits = (kind.decimal == '.' && kind.thousands.is_none())
            || (kind.decimal == chosen.0 && (kind.thousands.is_none() || kind.thousands == chosen.1));
        if !fits {
            *kind = Kind::text(
                kind.looks.clone(),
                "its numbers have other signs than those of other columns, so they stay text".to_owned(),
            );
        }
    }
    chosen
}

/// A text for null is null in all columns, text or not. If it is a value of a text column (`NA` is a country), columns
/// that need it stay text.
fn without_doubtful_nulls(kinds: &mut [Kind], rows: &[Vec<Cell>], names: &[String]) {
    loop {
        let in_text = |null: &String| {
            let is_value = |column: usize| {
                let has = rows.iter().any(|row| !row[column].quoted && row[column].text == *null);
                // Beside texts in quotes it is null.
                let all_quoted = || {
                    let others =
                        rows.iter().map(|row| &row[column]).filter(|cell| cell.text != *null && !cell.is_empty());
                    others.clone().next().is_some() && others.clone().all(|cell| cell.quoted)
                };
                kinds[column].is_text() && has && !all_quoted()
            };
            (0..kinds.len()).find(|&column| is_value(column))
        };
        let doubtful = kinds
            .iter()
            .enumerate()
            .find_map(|(column, kind)| kind.nulls.iter().find_map(|null| Some((column, null.clone(), in_text(null)?))));
        let Some((column, null, other)) = doubtful else { return };
        let kind = &kinds[column];
        let note = format!(
            "`{null}` is among its values, and in column {} too, which is text: it stays text; if that is null in \
             both, declare it as {} and set `null: [\"\", \"{null}\"]`",
            names[other],
            type_name(&kind.data_type)
        );
        kinds[column] = Kind::text(kind.looks.clone(), note);
    }
}
