//! From YAML to a tree in which every key and value knows its place.
//!
//! `serde` stops at the first fault and forgets where values stood, so the tree is built from the parser's events:
//! it sees duplicate keys, keeps the style of each scalar, and knows for every character of a scalar where it stands
//! in the file, whatever quoting or folding lies between. Plain scalars are typed by the core schema of YAML 1.2
//! (`no` is text). What the tree means is left to others.

use std::collections::HashMap;
use std::ops::Range;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Tag};
use serde_json::{Map, Number, Value};

use crate::lint::Lint;
use crate::text::{JobText, Position, Span, unified};

/// Deeper nesting is a fault: no job needs it, and recursion over the tree must end.
const DEPTH_LIMIT: usize = 64;

/// All aliases together may add this many values.
const ALIAS_LIMIT: usize = 100_000;

/// A value and its place.
#[derive(Debug, Clone)]
pub struct Node {
    /// Where it stands. A block or list is where it begins.
    pub span: Span,
    /// What it is.
    pub kind: Kind,
}

/// What a value is.
#[derive(Debug, Clone)]
pub enum Kind {
    /// Text, a number, true or false, or nothing.
    Scalar(Scalar),
    /// A list.
    List(Vec<Node>),
    /// A block of keys, in file order, each key once.
    Block(Vec<Entry>),
}

/// A key and its value.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Where the key stands.
    pub key_span: Span,
    /// Its value.
    pub value: Node,
}

/// A scalar.
#[derive(Debug, Clone)]
pub struct Scalar {
    /// Its text, with escapes resolved and variables filled in.
    pub text: String,
    /// Whether it was written without quotes: only then it can be anything but text.
    pub plain: bool,
    /// Its type and value.
    pub typed: Typed,
    /// Where each character of `text` stands in the file; may be shorter than the text where that is not known.
    pub positions: Vec<Position>,
    /// The text as the file has it, if variables were filled in: messages show this, not the values.
    pub unfilled: Option<String>,
    /// The text with variables filled in and dates as the file has them, if there are some.
    pub undated: Option<String>,
    /// What in the text, in bytes, is a `${…}` that gets its value only when something runs.
    pub later: Vec<Range<usize>>,
}

/// The type and value of a scalar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Typed {
    /// Nothing at all, `null` or `~`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number that fits into 64 bits.
    Integer(i128),
    /// Another number.
    Float(f64),
    /// Anything else.
    Text,
    /// A variable that is not set: nothing is known of the value, and that has been said.
    Unknown,
}

impl Node {
    /// The value under `key`, if this is a block that has it.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// The entry of `key`, if this is a block that has it.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    /// The entries of a block; none of anything else.
    pub fn entries(&self) -> &[Entry] {
        match &self.kind {
            Kind::Block(entries) => entries,
            _ => &[],
        }
    }

    /// The entries of a block, to change them; none of anything else.
    pub fn entries_mut(&mut self) -> &mut [Entry] {
        match &mut self.kind {
            Kind::Block(entries) => entries,
            _ => &mut [],
        }
    }

    /// Gives a block `entry`, in place of the one with its key if there is one; does nothing with anything else.
    pub fn set(&mut self, entry: Entry) {
        if let Kind::Block(entries) = &mut self.kind {
            entries.retain(|other| other.key != entry.key);
            entries.push(entry);
        }
    }

    /// The text `text` that stands for what the file has at `span`.
    pub fn text(text: &str, span: Span) -> Node {
        let typed = Typed::Text;
        let scalar = Scalar { text: text.to_owned(), typed, ..Scalar::default() };
        Node { span, kind: Kind::Scalar(scalar) }
    }

    /// The scalar, if it is one.
    pub fn scalar(&self) -> Option<&Scalar> {
        match &self.kind {
            Kind::Scalar(scalar) => Some(scalar),
            _ => None,
        }
    }

    /// Whether it is a list without items.
    pub fn is_empty_list(&self) -> bool {
        matches!(&self.kind, Kind::List(items) if items.is_empty())
    }

    /// Whether there is nothing.
    pub fn is_null(&self) -> bool {
        self.scalar().is_some_and(|scalar| scalar.typed == Typed::Null)
    }

    /// Whether any scalar in it is unknown, because a variable is not set.
    pub fn has_unknown(&self) -> bool {
        match &self.kind {
            Kind::Scalar(scalar) => scalar.typed == Typed::Unknown,
            Kind::List(items) => items.iter().any(Node::has_unknown),
            Kind::Block(entries) => entries.iter().any(|entry| entry.value.has_unknown()),
        }
    }

    /// The value without places. Infinities and NaN, which JSON lacks, stay text.
    pub fn to_value(&self) -> Value {
        match &self.kind {
            Kind::Scalar(scalar) => scalar.to_value(),
            Kind::List(items) => Value::Array(items.iter().map(Node::to_value).collect()),
            Kind::Block(entries) => Value::Object(
                entries.iter().map(|entry| (entry.key.clone(), entry.value.to_value())).collect::<Map<_, _>>(),
            ),
        }
    }

    /// The span to report a fault at which has `path` (keys and indices), as far as the path goes.
    pub fn at_path(&self, path: &[String], here: Span) -> Span {
        let Some((first, rest)) = path.split_first() else { return here };
        match &self.kind {
            Kind::Block(_) => match self.entry(first) {
                Some(entry) if matches!(rest, [key] if key.is_empty()) => entry.key_span,
                // There is nothing in it that could be meant instead.
                Some(entry) if rest.is_empty() && entry.value.is_empty_list() => entry.value.span,
                Some(entry) => entry.value.at_path(rest, entry.report_span()),
                None => here,
            },
            Kind::List(items) => match first.parse::<usize>().ok().and_then(|index| items.get(index)) {
                Some(item) => item.at_path(rest, item.span),
                None => here,
            },
            Kind::Scalar(_) => here,
        }
    }

    /// The key that `path` leads to, and its value.
    pub fn entry_at(&self, path: &[String]) -> Option<&Entry> {
        let (last, blocks) = path.split_last()?;
        blocks.iter().try_fold(self, |node, key| node.get(key))?.entry(last)
    }

    fn count(&self) -> usize {
        1 + match &self.kind {
            Kind::Scalar(_) => 0,
            Kind::List(items) => items.iter().map(Node::count).sum(),
            Kind::Block(entries) => entries.iter().map(|entry| entry.value.count()).sum(),
        }
    }

    fn depth(&self) -> usize {
        1 + match &self.kind {
            Kind::Scalar(_) => 0,
            Kind::List(items) => items.iter().map(Node::depth).max().unwrap_or(0),
            Kind::Block(entries) => entries.iter().map(|entry| entry.value.depth()).max().unwrap_or(0),
        }
    }
}

/// What the name of an entry may be.
pub const NAMES: &str = "a name has letters, digits and `_`, and does not begin with a digit";

impl Entry {
    /// Whether the key may be the name of an entry, as [`NAMES`] says.
    pub fn is_name(&self) -> bool {
        let mut characters = self.key.chars();
        characters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
            && characters.all(|one| one.is_ascii_alphanumeric() || one == '_')
    }

    /// Where a fault of the value is shown: a scalar's own place, else its key, since a block's or list's beginning
    /// says less.
    pub fn report_span(&self) -> Span {
        match &self.value.kind {
            Kind::Scalar(scalar) if !(scalar.typed == Typed::Null && scalar.text.is_empty()) => self.value.span,
            _ => self.key_span,
        }
    }
}

impl Scalar {
    fn to_value(&self) -> Value {
        match self.typed {
            Typed::Null => Value::Null,
            Typed::Bool(value) => Value::Bool(value),
            Typed::Integer(value) => u64::try_from(value)
                .map(Number::from)
                .or_else(|_| i64::try_from(value).map(Number::from))
                .map_or_else(|_| Value::String(self.text.clone()), Value::Number),
            Typed::Float(value) => {
                Number::from_f64(value).map_or_else(|| Value::String(self.text.clone()), Value::Number)
            }
            Typed::Text | Typed::Unknown => Value::String(self.text.clone()),
        }
    }

    /// The text with dates as the file has them: it is the same on every day.
    pub fn undated(&self) -> &str {
        self.undated.as_deref().unwrap_or(&self.text)
    }

    /// The text as the file has it.
    pub fn shown(&self) -> &str {
        self.unfilled.as_deref().unwrap_or(&self.text)
    }
}

/// The type of a plain scalar by the core schema of YAML 1.2 (its section 10.3.2).
pub fn type_of_plain(text: &str) -> Typed {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Typed::Null,
        "true" | "True" | "TRUE" => return Typed::Bool(true),
        "false" | "False" | "FALSE" => return Typed::Bool(false),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Typed::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Typed::Float(f64::NEG_INFINITY),
        ".nan" | ".NaN" | ".NAN" => return Typed::Float(f64::NAN),
        _ => {}
    }
    if let Some(value) = integer(text) {
        let fits = i64::try_from(value).is_ok() || u64::try_from(value).is_ok();
        return if fits { Typed::Integer(value) } else { Typed::Float(value as f64) };
    }
    if is_float(text) { text.parse().map_or(Typed::Text, Typed::Float) } else { Typed::Text }
}

fn integer(text: &str) -> Option<i128> {
    let in_base = |digits: &str, base| {
        (!digits.is_empty() && digits.chars().all(|digit| digit.is_digit(base)))
            .then(|| i128::from_str_radix(digits, base).ok())
            .flatten()
    };
    if let Some(digits) = text.strip_prefix("0x") {
        return in_base(digits, 16);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return in_base(digits, 8);
    }
    match text.strip_prefix('-') {
        Some(digits) => in_base(digits, 10).map(|value| -value),
        None => in_base(text.strip_prefix('+').unwrap_or(text), 10),
    }
}

/// `[-+]? ( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )?`
fn is_float(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let digits = |part: &str| part.chars().all(|digit| digit.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mantissa_is_good = digits(whole) && digits(fraction) && !(whole.is_empty() && fraction.is_empty());
    let exponent_is_good = exponent.is_none_or(|exponent| {
        let unsigned = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        !unsigned.is_empty() && digits(unsigned)
    });
    mantissa_is_good && exponent_is_good
}

/// The tree of a job file, if its YAML is sound enough to have one, and all that is wrong with the YAML.
pub fn parse(text: &JobText, source: &str) -> (Option<Node>, Vec<Lint>) {
    let source = unified(source);
    let mut builder = Builder::new(text, &source);
    match builder.build() {
        Ok(node) => (node, builder.lints),
        Err(fault) => {
            let mut lints = faults_by_part(text, &source);
            if lints.is_empty() {
                lints.push(syntax_lint(text, &fault, 0));
            }
            lints.append(&mut builder.lints);
            (None, lints)
        }
    }
}

/// The parser stops at its first fault. Each entry of each section is parsed once more by itself, so that the faults
/// of several entries are told at once.
fn faults_by_part(text: &JobText, source: &str) -> Vec<Lint> {
    let lines: Vec<&str> = source.split_inclusive('\n').collect();
    let mut lints = Vec::new();
    for section in parts(&lines, 0..lines.len(), 0) {
        if fault_of(&lines, section.clone()).is_none() {
            continue;
        }
        let indent = (section.start + 1..section.end).find_map(|index| content_indent(lines[index])).unwrap_or(0);
        let entries = if indent > 0 { parts(&lines, section.start + 1..section.end, indent) } else { Vec::new() };
        let fault = |part: std::ops::Range<usize>| {
            let lines_before = part.start;
            fault_of(&lines, part).map(|fault| syntax_lint(text, &fault, lines_before))
        };
        let mut found: Vec<Lint> = entries.into_iter().filter_map(fault).collect();
        if found.is_empty() {
            found.extend(fault(section));
        }
        lints.append(&mut found);
    }
    lints
}

/// Ranges of lines within `range` that begin with something at exactly `indent`.
fn parts(lines: &[&str], range: std::ops::Range<usize>, indent: usize) -> Vec<std::ops::Range<usize>> {
    let starts: Vec<usize> = range.clone().filter(|&index| content_indent(lines[index]) == Some(indent)).collect();
    let ends = starts.iter().skip(1).copied().chain(std::iter::once(range.end));
    starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
}

/// Spaces before the first character of a line that is neither blank nor a comment.
fn content_indent(line: &str) -> Option<usize> {
    let content = line.trim_start_matches(' ');
    let is_content = !content.trim().is_empty() && !content.starts_with('#');
    is_content.then(|| line.len() - content.len())
}

fn fault_of(lines: &[&str], part: std::ops::Range<usize>) -> Option<ScanError> {
    let alone = lines[part].concat();
    let mut parser = Parser::new_from_str(&alone);
    while let Some(event) = parser.next_event() {
        match event {
            // An anchor may stand in another part: its alias is no fault of this one.
            Err(fault) if fault.info().contains("unknown anchor") => return None,
            Err(fault) => return Some(fault),
            Ok(_) => {}
        }
    }
    None
}

/// The parser's words, in ours where a stranger would not know what to do. It has not seen the `lines_before`.
fn syntax_lint(text: &JobText, fault: &ScanError, lines_before: usize) -> Lint {
    let marker = fault.marker();
    let line = lines_before + marker.line();
    let room = text.line(line).chars().count() + 1;
    let span = Span { line, column: (marker.col() + 1).min(room), length: 1 };
    let info = fault.info();
    let tab = info.contains("tab").then(|| text.line(span.line).chars().position(|one| one == '\t')).flatten();
    let span = tab.map_or(span, |tab| Span { column: tab + 1, ..span });
    let here = text.line(span.line).chars().nth(marker.col());
    let (what, hint) = if info.contains("tab") {
        ("a tab is used where YAML requires spaces".to_owned(), "indent with spaces")
    } else if info.contains("unknown anchor") {
        (
            "what begins with `*` is read as the alias of an anchor, and there is no such anchor".to_owned(),
            "put a pattern in quotes: \"*.csv.gz\"",
        )
    } else if info.contains("mapping values are not allowed") {
        (
            "a `:` is used where no key is allowed".to_owned(),
            "put a value that contains `: ` in quotes, and check the indentation",
        )
    } else if info.contains("end of stream") && info.contains("quoted") || info.contains("in quoted scalar") {
        (
            "a quote is opened here and not closed".to_owned(),
            "close it, or put the whole value in the other kind of quotes",
        )
    } else if info.contains("unknown escape") {
        (
            "a backslash in double quotes is followed by an unknown escape".to_owned(),
            "write `\\\\` for a backslash, or use single quotes",
        )
    } else if here.is_some_and(|character| matches!(character, '@' | '`' | '%'))
        && info.contains("unexpected character")
    {
        (format!("a value cannot begin with `{}` in YAML", here.unwrap_or_default()), "put the value in quotes")
    } else if info.contains("expected key") || info.contains("'-' indicator") || info.contains("simple key") {
        (
            "expected a key and a colon (`key: value`)".to_owned(),
            "check the indentation of this line, and put a value that begins with `{`, `[` or `\"` in quotes as a \
             whole",
        )
    } else if info.contains("<document start>") {
        ("this line belongs to nothing above it".to_owned(), "check its indentation")
    } else if info.contains("',' or") && text.line(span.line.saturating_sub(1)).contains(" #") {
        (
            "expected a comma or the closing bracket".to_owned(),
            "in the line above a `#` after a space begins a comment: put a value that holds one in quotes",
        )
    } else if info.contains("',' or") {
        (
            "expected a comma or the closing bracket".to_owned(),
            "inside of `{ }` and `[ ]` put a value that holds brackets, a comma or a quote, such as SQL or `${NAME}`, \
             in \
             quotes",
        )
    } else if info.contains("invalid trailing content") {
        let before: String = text.line(span.line).chars().take(marker.col()).collect();
        let hint = match before.contains(['{', '[']) {
            true => {
                "inside of `{ }` and `[ ]` a comma ends the value: put a value that holds one, such as SQL, in quotes"
            }
            false => "put the whole value in quotes, of the kind that it does not hold",
        };
        ("there is text after a closing quote".to_owned(), hint)
    } else if info.contains("recursion limit") {
        ("the values are nested too deeply".to_owned(), "write it with fewer levels")
    } else {
        (format!("this is not valid YAML: {info}"), "see https://yaml.org/spec/1.2.2 for the syntax")
    };
    let mut lint = text.error(span, what).hint(hint);
    if info.contains("quoted") || lint.text.trim().is_empty() {
        lint.text.clear();
    }
    lint
}

/// A list or block that is still open.
struct Open {
    span: Span,
    anchor: usize,
    kind: OpenKind,
}

enum OpenKind {
    List(Vec<Node>),
    Block {
        entries: Vec<Entry>,
        /// The line in which each key stands.
        lines: HashMap<String, usize>,
        /// The key whose value comes next; without a name if it is none.
        key: Option<(Option<String>, Span)>,
    },
}

struct Builder<'a> {
    text: &'a JobText,
    source: &'a str,
    characters: Vec<char>,
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    expanded: usize,
    root: Option<Node>,
    lints: Vec<Lint>,
    too_deep: bool,
}

impl<'a> Builder<'a> {
    fn new(text: &'a JobText, source: &'a str) -> Self {
        Builder {
            text,
            source,
            characters: source.chars().collect(),
            open: Vec::new(),
            anchors: HashMap::new(),
            expanded: 0,
            root: None,
            lints: Vec::new(),
            too_deep: false,
        }
    }

    fn build(&mut self) -> Result<Option<Node>, ScanError> {
        let mut parser = Parser::new_from_str(self.source);
        let mut documents = 0;
        while let Some(event) = parser.next_event() {
            let (event, span) = event?;
            if matches!(event, Event::DocumentStart(_)) {
                documents += 1;
                if documents == 2 {
                    let place = Span { line: span.start.line(), column: span.start.col() + 1, length: 3 };
                    self.lints.push(
                        self.text.error(place, "a second document begins here").hint("a job file is one document"),
                    );
                }
            }
            if documents <= 1 && !self.too_deep {
                self.take(event, span);
            }
        }
        // What is said of one of two documents is of no use before there is one.
        if self.too_deep || documents > 1 { Ok(None) } else { Ok(self.root.take()) }
    }

    fn take(&mut self, event: Event<'_>, raw: saphyr_parser::Span) {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let node = self.scalar(&text, style, tag.as_deref(), anchor > 0, raw);
                self.keep_anchor(anchor, &node);
                self.add(node);
            }
            Event::SequenceStart(anchor, tag) => {
                self.refuse_tag(tag.as_deref(), raw);
                self.begin(anchor, raw, OpenKind::List(Vec::new()));
            }
            Event::MappingStart(anchor, tag) => {
                self.refuse_tag(tag.as_deref(), raw);
                self.begin(anchor, raw, OpenKind::Block { entries: Vec::new(), lines: HashMap::new(), key: None });
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => self.alias(anchor, raw),
            _ => {}
        }
    }

    fn begin(&mut self, anchor: usize, raw: saphyr_parser::Span, kind: OpenKind) {
        let span = self.span(raw);
        if self.open.len() >= DEPTH_LIMIT {
            self.fault(span, "the values are nested too deeply", format!("use at most {DEPTH_LIMIT} levels"));
            self.too_deep = true;
            return;
        }
        self.open.push(Open { span, anchor, kind });
    }

    fn end(&mut self) {
        let Some(open) = self.open.pop() else { return };
        let kind = match open.kind {
            OpenKind::List(items) => Kind::List(items),
            OpenKind::Block { entries, .. } => Kind::Block(entries),
        };
        let node = Node { span: open.span, kind };
        self.keep_anchor(open.anchor, &node);
        self.add(node);
    }

    fn keep_anchor(&mut self, anchor: usize, node: &Node) {
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
    }

    fn alias(&mut self, anchor: usize, raw: saphyr_parser::Span) {
        let span = self.span(raw);
        let null = Node { span, kind: Kind::Scalar(Scalar::null(Typed::Unknown)) };
        let Some(node) = self.anchors.get(&anchor) else {
            self.fault(span, "an alias is inside its own anchor", "give the inner value in full".to_owned());
            return self.add(null);
        };
        let (count, depth) = (node.count(), node.depth());
        if self.expanded + count > ALIAS_LIMIT || self.open.len() + depth > DEPTH_LIMIT {
            let hint = format!("aliases may add {ALIAS_LIMIT} values, in at most {DEPTH_LIMIT} levels");
            self.fault(span, "the aliases of this file expand to too many values", hint);
            self.too_deep = true;
            return;
        }
        self.expanded += count;
        let node = node.clone();
        self.add(node);
    }

    fn add(&mut self, node: Node) {
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return;
        };
        match &mut open.kind {
            OpenKind::List(items) => items.push(node),
            OpenKind::Block { entries, lines, key } => match key.take() {
                None => match node.scalar() {
                    Some(scalar) => *key = Some((Some(scalar.text.clone()), node.span)),
                    None => {
                        *key = Some((None, node.span));
                        let span = node.span;
                        self.fault(span, "a key is a list or a block", "a key is a plain word".to_owned());
                    }
                },
                Some((None, _)) => {}
                Some((Some(key), key_span)) => match lines.get(&key) {
                    Some(line) => {
                        let hint = format!("it is already given in line {line}: remove one of them");
                        self.fault(key_span, format!("the key `{key}` is given twice"), hint);
                    }
                    None => {
                        lines.insert(key.clone(), key_span.line);
                        entries.push(Entry { key, key_span, value: node });
                    }
                },
            },
        }
    }

    fn fault(&mut self, span: Span, what: impl Into<String>, hint: String) {
        self.lints.push(self.text.error(span, what).hint(hint));
    }

    fn refuse_tag(&mut self, tag: Option<&Tag>, raw: saphyr_parser::Span) {
        if let Some(tag) = tag
            && !(tag.is_yaml_core_schema() && matches!(tag.suffix.as_str(), "map" | "seq"))
        {
            let span = self.span(raw);
            self.fault(span, format!("the tag `{tag}` has no meaning in a job file"), "remove it".to_owned());
        }
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        tag: Option<&Tag>,
        anchored: bool,
        raw: saphyr_parser::Span,
    ) -> Node {
        let plain = style == ScalarStyle::Plain;
        let mut typed = if plain { type_of_plain(text) } else { Typed::Text };
        match tag {
            Some(tag) if tag.is_yaml_core_schema() && tag.suffix == "str" => typed = Typed::Text,
            Some(tag)
                if tag.is_yaml_core_schema() && ["int", "float", "bool", "null"].contains(&tag.suffix.as_str()) =>
            {
                typed = type_of_plain(text);
            }
            Some(tag) => {
                let span = self.span(raw);
                self.fault(span, format!("the tag `{tag}` has no meaning in a job file"), "remove it".to_owned());
            }
            None => {}
        }
        let decorated = anchored || tag.is_some();
        let (positions, span) = Layout { characters: &self.characters }.of(text, style, decorated, raw);
        Node {
            span: self.clip(span),
            kind: Kind::Scalar(Scalar { text: text.to_owned(), plain, typed, positions, ..Scalar::default() }),
        }
    }

    fn span(&self, raw: saphyr_parser::Span) -> Span {
        self.clip(Span { line: raw.start.line(), column: raw.start.col() + 1, length: raw.len() })
    }

    /// A span ends with its line.
    fn clip(&self, span: Span) -> Span {
        let line = self.text.line(span.line).trim_end().chars().count();
        let room = (line + 1).saturating_sub(span.column);
        Span { length: span.length.clamp(usize::from(room > 0), room.max(1)).min(room.max(1)), ..span }
    }
}

impl Scalar {
    fn null(typed: Typed) -> Self {
        Scalar { typed, ..Scalar::default() }
    }
}

/// A text without characters, as if it were written without quotes.
impl Default for Scalar {
    fn default() -> Self {
        Scalar {
            text: String::new(),
            plain: true,
            typed: Typed::Text,
            positions: Vec::new(),
            unfilled: None,
            undated: None,
            later: Vec::new(),
        }
    }
}

/// Finds where each character of a scalar stands in the file.
struct Layout<'a> {
    characters: &'a [char],
}

impl Layout<'_> {
    fn of(&self, text: &str, style: ScalarStyle, decorated: bool, raw: saphyr_parser::Span) -> (Vec<Position>, Span) {
        let end = raw.end.index().min(self.characters.len());
        let start = raw.start.index().min(end);
        let mut marks = marks(&self.characters[start..end], raw.start.line(), raw.start.col() + 1);
        if decorated {
            skip_decoration(&mut marks);
        }
        match style {
            ScalarStyle::Literal | ScalarStyle::Folded => {
                let indent = strip_header(&mut marks, decorated, raw.start.col());
                strip_indent(&mut marks, indent);
                // Blank lines at the top of a block belong to it, and the parser's span begins behind them.
                let content = if decorated { text } else { text.trim_start_matches('\n') };
                let first =
                    marks.first().map_or(Position { line: raw.start.line(), column: raw.start.col() + 1 }, |m| m.1);
                let skipped = text.len() - content.len();
                let mut positions: Vec<Position> = (0..skipped)
                    .map(|index| Position { line: first.line.saturating_sub(skipped - index).max(1), column: 1 })
                    .collect();
                let length = marks.iter().take_while(|mark| mark.0 != '\n').count();
                positions.extend(align(content, &marks, style));
                (positions, Span::at(first, length))
            }
            _ => {
                let first =
                    marks.first().map_or(Position { line: raw.start.line(), column: raw.start.col() + 1 }, |m| m.1);
                let length = marks.iter().take_while(|mark| mark.1.line == first.line && mark.0 != '\n').count();
                let inner = match style {
                    ScalarStyle::Plain => &marks[..],
                    _ => marks.get(1..).unwrap_or_default(),
                };
                (align(text, inner, style), Span::at(first, length))
            }
        }
    }
}

/// Every character with its place.
fn marks(characters: &[char], line: usize, column: usize) -> Vec<(char, Position)> {
    let mut place = Position { line, column };
    let mark = |&character: &char| {
        let mark = (character, place);
        place = match character {
            '\n' => Position { line: place.line + 1, column: 1 },
            _ => Position { column: place.column + 1, ..place },
        };
        mark
    };
    characters.iter().map(mark).collect()
}

/// Drops anchors and tags that stand before a value.
fn skip_decoration(marks: &mut Vec<(char, Position)>) {
    loop {
        let blank = marks.iter().take_while(|mark| mark.0.is_whitespace()).count();
        marks.drain(..blank);
        if !marks.first().is_some_and(|mark| matches!(mark.0, '&' | '!')) {
            return;
        }
        let word = marks.iter().take_while(|mark| !mark.0.is_whitespace()).count();
        marks.drain(..word);
    }
}

/// Drops the `|` line of a block that still has it, and says how far its text is indented.
fn strip_header(marks: &mut Vec<(char, Position)>, decorated: bool, column: usize) -> usize {
    if !decorated || !marks.first().is_some_and(|mark| matches!(mark.0, '|' | '>')) {
        return column;
    }
    let header = marks.iter().take_while(|mark| mark.0 != '\n').count() + 1;
    marks.drain(..header.min(marks.len()));
    marks
        .split(|mark| mark.0 == '\n')
        .find(|line| line.iter().any(|mark| mark.0 != ' '))
        .map_or(column, |line| line.iter().take_while(|mark| mark.0 == ' ').count())
}

/// Drops the indentation of a block's lines.
fn strip_indent(marks: &mut Vec<(char, Position)>, indent: usize) {
    marks.retain(|(character, place)| *character == '\n' || place.column > indent || *character != ' ');
}

/// Walks the value and its source side by side. Escapes take several characters of the source, folds turn line ends
/// into spaces and drop the indentation behind them.
fn align(text: &str, marks: &[(char, Position)], style: ScalarStyle) -> Vec<Position> {
    let mut positions = Vec::new();
    let mut at = 0;
    for wanted in text.chars() {
        loop {
            let Some(&(found, place)) = marks.get(at) else { return positions };
            let next = marks.get(at + 1).map(|mark| mark.0);
            match (style, found) {
                (ScalarStyle::DoubleQuoted, '\\') if next == Some('\n') => at += 2,
                (ScalarStyle::DoubleQuoted, '\\') => {
                    positions.push(place);
                    at += 2 + match next {
                        Some('x') => 2,
                        Some('u') => 4,
                        Some('U') => 8,
                        _ => 0,
                    };
                    break;
                }
                (ScalarStyle::SingleQuoted, '\'') if wanted == '\'' => {
                    positions.push(place);
                    at += 2;
                    break;
                }
                _ if found == wanted => {
                    positions.push(place);
                    at += 1;
                    break;
                }
                _ if wanted.is_whitespace() => {
                    positions.push(place);
                    if found == '\n' {
                        at += 1;
                    }
                    break;
                }
                _ if found.is_whitespace() => at += 1,
                _ => return positions,
            }
        }
    }
    positions
}
