//! What the fields of a table are: names or values, and the types of the values.
//!
//! A column is tried with the plain conventions first, then with texts for null, then with dates and numbers of other
//! countries; what none explains is text.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use arrow::datatypes::{DataType, TimeUnit};
use millstream_core::format::TEXT;

use super::dialect::Found;
use crate::columns::{ColumnSpec, type_name};
use crate::csv::infer::TypeGuess;
use crate::csv::spec::{Conventions, CsvSpec, Dialect};
use crate::csv::values::{Reader, Syntax};

/// Texts that stand for null in a column of anything but text.
const NULLS: &[&str] =
    &["NA", "N/A", "n/a", "#N/A", "NULL", "null", "None", "none", "NaN", "nan", "\\N", "-", "?", "."];

/// How dates are written, beside ISO 8601. Where two explain all values, the first is taken and the doubt is told.
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

/// What stands behind a date in a timestamp.
const CLOCKS: &[&str] = &[" %H:%M:%S", " %H:%M", "T%H:%M:%S", " %H:%M:%S%.f", " %I:%M:%S %p", " %I:%M %p"];

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
    pub header: bool,
    /// Whether the header cannot be read as one, since two names are equal: it is skipped instead.
    pub skip_header: bool,
    pub columns: Vec<(String, ColumnSpec)>,
    pub decimal: char,
    pub thousands: Option<char>,
    /// Texts for null, beside the empty one.
    pub nulls: Vec<String>,
    /// Texts for true and false, beside those two words.
    pub truths: Vec<(&'static str, &'static str)>,
    pub evidence: Vec<String>,
}

/// A field's content.
struct Cell {
    text: String,
    quoted: bool,
}

impl Cell {
    fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
}

/// What explains a column's values.
#[derive(Debug, Clone, PartialEq)]
struct Kind {
    data_type: DataType,
    format: Option<String>,
    /// Whether another format explains them as well.
    doubt: Option<String>,
    decimal: char,
    thousands: Option<char>,
    nulls: Vec<String>,
    truth: Option<(&'static str, &'static str)>,
}

impl Kind {
    fn plain(data_type: DataType) -> Self {
        Kind { data_type, format: None, doubt: None, decimal: '.', thousands: None, nulls: Vec::new(), truth: None }
    }
}

/// Finds header, names and types.
pub(super) fn table(text: &str, found: &Found) -> Table {
    let syntax = syntax(found);
    let text = text.trim_start_matches('\u{feff}');
    let cells =
        |fields: &Vec<Range<usize>>| -> Vec<Cell> { fields.iter().map(|field| cell(text, field, &syntax)).collect() };
    let rows: Vec<Vec<Cell>> = found.records.iter().map(cells).collect();
    let Some((first, rest)) = rows.split_first() else {
        return Table {
            header: true,
            skip_header: false,
            columns: Vec::new(),
            decimal: '.',
            thousands: None,
            nulls: Vec::new(),
            truths: Vec::new(),
            evidence: Vec::new(),
        };
    };
    let width = first.len();
    let kinds: Vec<Kind> =
        (0..width).map(|column| kind(rest.iter().map(|row| &row[column]), found.delimiter)).collect();
    let (header, said) = is_header(first, rest, &kinds, found.delimiter);
    let mut evidence = vec![said];
    let kinds = if header {
        kinds
    } else {
        (0..width).map(|column| kind(rows.iter().map(|row| &row[column]), found.delimiter)).collect()
    };
    let (names, doubled) = names(first, header);
    if let Some(name) = &doubled {
        evidence.push(format!("two columns are named {name}: the header is skipped and the second one gets a number"));
    }
    let (kinds, decimal, thousands) = agree(kinds, &mut evidence, &names);
    let mut nulls: Vec<String> = Vec::new();
    for null in kinds.iter().flat_map(|kind| &kind.nulls) {
        if !nulls.contains(null) {
            nulls.push(null.clone());
        }
    }
    if !nulls.is_empty() {
        evidence.push(format!("{} stands for null among numbers or dates", nulls.join(", ")));
    }
    let mut truths: Vec<(&'static str, &'static str)> = Vec::new();
    for (yes, no) in kinds.iter().filter_map(|kind| kind.truth) {
        if !truths.contains(&(yes, no)) {
            evidence.push(format!("{yes} and {no} stand for true and false"));
            truths.push((yes, no));
        }
    }
    for (name, kind) in names.iter().zip(&kinds) {
        if let (Some(format), Some(doubt)) = (&kind.format, &kind.doubt) {
            evidence.push(format!("column {name}: {format} and {doubt} explain all dates; check which it is"));
        }
    }
    let columns = names.into_iter().zip(&kinds).map(|(name, kind)| {
        let data_type = if kind.data_type.is_null() { &TEXT } else { &kind.data_type };
        (name, ColumnSpec::of(data_type, kind.format.as_deref()))
    });
    Table {
        header: header && doubled.is_none(),
        skip_header: doubled.is_some(),
        columns: columns.collect(),
        decimal,
        thousands,
        nulls,
        truths,
        evidence,
    }
}

fn syntax(found: &Found) -> Syntax {
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

/// Names as the reader of the file will make them. If two are equal, the later one gets a number, and is told.
fn names(first: &[Cell], header: bool) -> (Vec<String>, Option<String>) {
    let mut names: Vec<String> = Vec::with_capacity(first.len());
    let mut taken: HashSet<String> = HashSet::with_capacity(first.len());
    // The number that was last given to a name.
    let mut numbers: HashMap<String, usize> = HashMap::new();
    let mut doubled = None;
    for (field, cell) in first.iter().enumerate() {
        let name = if header { cell.text.trim() } else { "" };
        let name = if name.is_empty() { format!("column_{}", field + 1) } else { name.to_owned() };
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

/// Whether the first record holds names, and why.
fn is_header(first: &[Cell], rest: &[Vec<Cell>], kinds: &[Kind], delimiter: char) -> (bool, String) {
    let said = |yes: bool, why: String| (yes, why);
    let is_text = |kind: &Kind| kind.data_type == TEXT || kind.data_type.is_null();
    let own = |cell: &Cell| kind(std::iter::once(cell), delimiter);
    if let Some(column) =
        first.iter().zip(kinds).position(|(cell, kind)| !is_text(kind) && !cell.is_empty() && is_text(&own(cell)))
    {
        let why = format!(
            "the first record is a header: `{}` stands above values of type {}",
            first[column].text,
            type_name(&kinds[column].data_type)
        );
        return said(true, why);
    }
    let values: Vec<usize> =
        (0..first.len()).filter(|&column| !first[column].is_empty() && !is_text(&own(&first[column]))).collect();
    let above_text =
        |column: usize| rest.iter().all(|row| is_text(&own(&row[column]))) && kinds[column].data_type == TEXT;
    if !values.is_empty() && values.iter().all(|&column| above_text(column)) {
        let why = format!("the first record is a header: `{}` stands above values of text", first[values[0]].text);
        return said(true, why);
    }
    if !values.is_empty() {
        if are_years(first, rest) {
            return said(true, "the first record is a header: its numbers are years in a row".to_owned());
        }
        return said(false, "the first record is no header: it holds numbers or dates like the others".to_owned());
    }
    if rest.is_empty() {
        return said(true, "the only record is taken for a header: it holds nothing but text".to_owned());
    }
    if first.iter().any(Cell::is_empty) && kinds.iter().all(is_text) {
        return said(false, "the first record is no header: a name is missing".to_owned());
    }
    let mut texts = HashSet::new();
    let distinct = first.iter().all(|cell| texts.insert(&cell.text));
    let repeated = first
        .iter()
        .enumerate()
        .any(|(column, cell)| !cell.is_empty() && rest.iter().any(|row| row[column].text == cell.text));
    if (!distinct && kinds.iter().all(is_text)) || repeated {
        return said(false, "the first record is no header: its texts are not unique".to_owned());
    }
    if kinds.iter().any(|kind| !is_text(kind)) {
        return said(false, "the first record is no header: it has the types of the others".to_owned());
    }
    said(true, "the first record is taken for a header: all is text, and its texts do not come again".to_owned())
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

/// What explains the values of a column.
fn kind<'a>(cells: impl Iterator<Item = &'a Cell> + Clone, delimiter: char) -> Kind {
    let values = cells.filter(|cell| !cell.is_empty());
    let is_null = |cell: &&Cell| !cell.quoted && NULLS.contains(&cell.text.trim());
    let mut nulls: Vec<String> = Vec::new();
    for cell in values.clone().filter(is_null) {
        let text = cell.text.trim().to_owned();
        if !nulls.contains(&text) {
            nulls.push(text);
        }
    }
    let plain = explain(values.clone(), delimiter);
    if plain.data_type != TEXT || nulls.is_empty() {
        return plain;
    }
    let without = explain(values.filter(|cell| !is_null(cell)), delimiter);
    if without.data_type == TEXT || without.data_type.is_null() { plain } else { Kind { nulls, ..without } }
}

fn explain<'a>(values: impl Iterator<Item = &'a Cell> + Clone, delimiter: char) -> Kind {
    let data_type = with_conventions(values.clone(), &conventions('.', None));
    if data_type != TEXT {
        return Kind::plain(data_type);
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
    // Where the comma cuts the fields it does not begin fractions as well; elsewhere it more likely does.
    let mut signs: Vec<(char, Option<char>)> = vec![('.', Some(',')), (',', None), (',', Some('.'))];
    if delimiter != ',' {
        signs.rotate_left(1);
    }
    signs.extend([('.', Some('\'')), (',', Some(' ')), (',', Some('\u{a0}')), (',', Some('\u{202f}'))]);
    for (decimal, thousands) in signs {
        let data_type = with_conventions(values.clone(), &conventions(decimal, thousands));
        if matches!(data_type, DataType::Int64 | DataType::Float64) {
            return Kind { decimal, thousands, ..Kind::plain(data_type) };
        }
    }
    Kind::plain(TEXT)
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
            // A year of four digits must have four: chrono takes fewer.
            let short = format.contains("%Y") && !has_year(text);
            !short
                && match data_type {
                    DataType::Date32 => reader.date(text.as_bytes()).is_ok(),
                    _ => reader.timestamp(text.as_bytes(), false).is_ok(),
                }
        })
    };
    let first_two = |data_type: DataType, formats: Vec<String>| {
        let mut fitting = formats.into_iter().filter(|format| explains(&data_type, format));
        let format = fitting.next()?;
        let doubt = fitting.next();
        Some(Kind { format: Some(format), doubt, ..Kind::plain(data_type.clone()) })
    };
    first_two(DataType::Date32, DATES.iter().map(|&format| format.to_owned()).collect()).or_else(|| {
        let formats = CLOCKS.iter().flat_map(|clock| DATES.iter().map(move |date| format!("{date}{clock}"))).collect();
        first_two(DataType::Timestamp(TimeUnit::Microsecond, None), formats)
    })
}

/// Whether four digits stand together.
fn has_year(text: &str) -> bool {
    text.as_bytes().windows(4).any(|window| window.iter().all(u8::is_ascii_digit))
}

/// Numbers have the same signs in the whole file: the commonest other signs win, and columns that need others stay
/// text.
fn agree(mut kinds: Vec<Kind>, evidence: &mut Vec<String>, names: &[String]) -> (Vec<Kind>, char, Option<char>) {
    let point = kinds.iter().any(|kind| kind.data_type == DataType::Float64 && kind.decimal == '.');
    let signs: Vec<(char, Option<char>)> = kinds
        .iter()
        .map(|kind| (kind.decimal, kind.thousands))
        .filter(|signs| *signs != ('.', None) && !(point && signs.0 != '.'))
        .collect();
    let chosen = signs.iter().copied().max_by_key(|signs| (signs.1.is_some(), signs.0 == ',')).unwrap_or(('.', None));
    for (kind, name) in kinds.iter_mut().zip(names) {
        let fits = (kind.decimal == '.' && kind.thousands.is_none())
            || (kind.decimal == chosen.0 && (kind.thousands.is_none() || kind.thousands == chosen.1));
        if !fits {
            evidence.push(format!("column {name}: its numbers have other signs than the others, so they stay text"));
            *kind = Kind::plain(TEXT);
        }
    }
    if let (decimal, Some(thousands)) = chosen {
        evidence.push(format!("numbers have `{decimal}` before the fraction and `{thousands}` between thousands"));
    } else if chosen.0 == ',' {
        evidence.push("numbers have `,` before the fraction".to_owned());
    }
    (kinds, chosen.0, chosen.1)
}
