//! Reads one JSON value strictly, token by token, with exact faults.
//!
//! It implements the grammar of RFC 8259: every function reads one token or one whole value and leaves the cursor after
//! it. It knows neither columns nor the position of the record in the file (`parser.rs`). `quick.rs` reads plain and
//! short values instead, with the same results.

use std::ops::Range;

use millstream_core::{Error, RejectKind};

use super::quick::{self, Margin};

/// How deep objects and lists may be nested. Values are read by recursion, so this bounds the stack.
pub const MAX_DEPTH: usize = 128;

/// What is wrong with a record, and where in it.
#[derive(Debug)]
pub struct Fault(Box<FaultFacts>);

#[derive(Debug)]
struct FaultFacts {
    at: usize,
    what: String,
    text: Option<String>,
    hint: Option<String>,
    kind: RejectKind,
    /// The path to the value, from the inside out: `name`, `[3]`.
    path: Vec<String>,
}

impl Fault {
    /// A fault at byte `at` of the record.
    pub fn new(at: usize, what: impl Into<String>) -> Self {
        let (what, kind) = (what.into(), RejectKind::Syntax);
        Fault(Box::new(FaultFacts { at, what, text: None, hint: None, kind, path: Vec::new() }))
    }

    /// The offending text.
    pub fn text(mut self, text: &str) -> Self {
        // Messages never show more.
        self.0.text = Some(text.chars().take(300).collect());
        self
    }

    /// What to do.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// What is wrong in one word, if it is not the syntax.
    pub fn kind(mut self, kind: RejectKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// Adds that the value is in the field `name` of an object. Called from the inside out.
    pub fn in_field(mut self, name: &str) -> Self {
        self.0.path.push(name.to_owned());
        self
    }

    /// Adds that the value is item `index` (from 1, as in SQL) of a list. Called from the inside out.
    pub fn in_item(mut self, index: usize) -> Self {
        self.0.path.push(format!("[{index}]"));
        self
    }

    /// What is wrong, in lower case.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// Byte in the record.
    pub fn at(&self) -> usize {
        self.0.at
    }

    /// The error for a record that begins at `byte` of the decoded text; `line` is the line of the fault itself.
    pub fn into_error(self, byte: u64, line: u64) -> Error {
        let facts = *self.0;
        let mut error = Error::data(facts.what).reject(facts.kind).line(line).byte(byte + facts.at as u64);
        let path = facts.path.iter().rev().fold(String::new(), |mut path, part| {
            if !path.is_empty() && !part.starts_with('[') {
                path.push('.');
            }
            path.push_str(part);
            path
        });
        if !path.is_empty() {
            error = error.column(path);
        }
        if let Some(text) = facts.text {
            error = error.text(text);
        }
        match facts.hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

/// What kind of value comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `{`
    Object,
    /// `[`
    List,
    /// `"`
    Text,
    /// A digit or a minus.
    Number,
    /// `true` or `false`
    Bool,
    /// `null`
    Null,
}

impl Kind {
    /// The kind with its article, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Object => "an object",
            Kind::List => "a list",
            Kind::Text => "a text",
            Kind::Number => "a number",
            Kind::Bool => "a truth value",
            Kind::Null => "null",
        }
    }
}

/// A position in the text of one record.
#[derive(Debug, Clone)]
pub struct Cursor<'a> {
    text: &'a str,
    /// The same text with the bytes after it, for the fast paths.
    margin: &'a Margin<'a>,
    at: usize,
    depth: usize,
}

impl<'a> Cursor<'a> {
    /// At the beginning of `text`.
    pub fn new(text: &'a str) -> Self {
        Cursor { text, margin: &Margin::NONE, at: 0, depth: 0 }
    }

    /// At the beginning of `text`, which has this margin.
    #[inline]
    pub fn with_margin(text: &'a str, margin: &'a Margin<'a>) -> Self {
        Cursor { text, margin, at: 0, depth: 0 }
    }

    /// The text for the fast paths.
    #[inline]
    pub fn margin(&self) -> &'a Margin<'a> {
        self.margin
    }

    /// Continues at byte `at`, after the tokens that a fast path has read.
    #[inline]
    pub fn go_on(&mut self, at: usize) {
        self.at = at;
    }

    /// Reads the `}` at byte `at`.
    #[inline]
    pub fn close_object(&mut self, at: usize) {
        self.at = at + 1;
        self.depth -= 1;
    }

    /// The text between byte `from` and the next value.
    pub fn lead(&mut self, from: usize) -> &'a [u8] {
        self.next_token();
        &self.text.as_bytes()[from..self.at]
    }

    /// Bytes read so far.
    #[inline]
    pub fn at(&self) -> usize {
        self.at
    }

    /// The text between two positions of this cursor.
    pub fn between(&self, range: Range<usize>) -> &'a str {
        self.text.get(range).unwrap_or_default()
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Skips spaces, tabs and line ends, and shows the byte after them.
    #[inline]
    fn next_token(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while let Some(&byte) = bytes.get(self.at) {
            if !is_space(byte) {
                return Some(byte);
            }
            self.at += 1;
        }
        None
    }

    /// The kind of the next value.
    #[inline]
    pub fn kind(&mut self) -> Result<Kind, Fault> {
        match self.next_token() {
            Some(b'"') => Ok(Kind::Text),
            Some(b'-' | b'0'..=b'9') => Ok(Kind::Number),
            Some(b'{') => Ok(Kind::Object),
            Some(b'[') => Ok(Kind::List),
            Some(b't' | b'f') => Ok(Kind::Bool),
            Some(b'n') => Ok(Kind::Null),
            _ => Err(self.no_value()),
        }
    }

    /// Reads `null` if it is next.
    #[inline]
    pub fn null(&mut self) -> Result<bool, Fault> {
        if self.next_token() != Some(b'n') {
            return Ok(false);
        }
        self.word("null")?;
        Ok(true)
    }

    /// Reads `true` or `false`; call it when [`Kind::Bool`] is next.
    pub fn truth(&mut self) -> Result<bool, Fault> {
        if self.peek() == Some(b't') {
            self.word("true")?;
            Ok(true)
        } else {
            self.word("false")?;
            Ok(false)
        }
    }

    fn word(&mut self, word: &str) -> Result<(), Fault> {
        let rest = &self.text.as_bytes()[self.at..];
        if rest.starts_with(word.as_bytes()) && !rest.get(word.len()).is_some_and(|byte| is_word(*byte)) {
            self.at += word.len();
            return Ok(());
        }
        Err(self.no_value())
    }

    /// Reads the integer that is next, if it is one without fraction and exponent, of at most 18 digits. Anything else
    /// is left to [`Cursor::number`].
    #[inline]
    pub fn short_integer(&mut self) -> Option<i64> {
        let bytes = &self.text.as_bytes()[self.at..];
        let negative = bytes.first() == Some(&b'-');
        let digits = &bytes[usize::from(negative)..];
        let mut value = 0_i64;
        let mut count = 0;
        while let Some(digit) = digits.get(count).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10) {
            if count == 18 {
                return None;
            }
            value = value * 10 + i64::from(digit);
            count += 1;
        }
        let leading_zero = count > 1 && digits[0] == b'0';
        let goes_on = digits.get(count).is_some_and(|byte| matches!(byte, b'.' | b'e' | b'E') || is_word(*byte));
        if count == 0 || leading_zero || goes_on {
            return None;
        }
        self.at += usize::from(negative) + count;
        Some(if negative { -value } else { value })
    }

    /// Reads a number; call it when [`Kind::Number`] is next. The text is what the grammar allows, of any size.
    pub fn number(&mut self) -> Result<&'a str, Fault> {
        let start = self.at;
        let bytes = self.text.as_bytes();
        let digits = |from: usize| bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let mut at = start + usize::from(bytes[start] == b'-');
        let whole = digits(at);
        if whole == 0 {
            return Err(self.no_value());
        }
        if whole > 1 && bytes[at] == b'0' {
            return Err(self.bad_number(start, "a number has a leading 0"));
        }
        at += whole;
        if bytes.get(at) == Some(&b'.') {
            let fraction = digits(at + 1);
            if fraction == 0 {
                return Err(self.bad_number(start, "a number has no digits after its point"));
            }
            at += 1 + fraction;
        }
        if matches!(bytes.get(at), Some(b'e' | b'E')) {
            at += 1 + usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
            let exponent = digits(at);
            if exponent == 0 {
                return Err(self.bad_number(start, "a number has no digits in its exponent"));
            }
            at += exponent;
        }
        if bytes.get(at).is_some_and(|byte| is_word(*byte) || *byte == b'.') {
            return Err(self.bad_number(start, "not a number"));
        }
        self.at = at;
        Ok(&self.text[start..at])
    }

    fn bad_number(&self, start: usize, what: &str) -> Fault {
        let bytes = self.text.as_bytes();
        let is_part = |byte: &u8| is_word(*byte) || matches!(byte, b'.' | b'+' | b'-');
        let end = start + bytes[start..].iter().take_while(|byte| is_part(byte)).count();
        if end == bytes.len() {
            return self.cut_short("in the middle of a number");
        }
        Fault::new(start, what).text(&self.text[start..end])
    }

    /// Reads a text; call it when [`Kind::Text`] is next. A text without escapes is borrowed from the record, another
    /// one is decoded into `scratch`.
    #[inline]
    pub fn string<'s>(&mut self, scratch: &'s mut String) -> Result<&'s str, Fault>
    where
        'a: 's,
    {
        let start = self.at + 1;
        let end = plain_end(self.text.as_bytes(), start);
        if self.text.as_bytes().get(end) == Some(&b'"') {
            self.at = end + 1;
            return Ok(&self.text[start..end]);
        }
        self.escaped_string(start, end, scratch)
    }

    fn escaped_string<'s>(&mut self, start: usize, mut end: usize, scratch: &'s mut String) -> Result<&'s str, Fault> {
        let bytes = self.text.as_bytes();
        scratch.clear();
        let mut piece = start;
        loop {
            match bytes.get(end) {
                Some(b'"') => {
                    scratch.push_str(&self.text[piece..end]);
                    self.at = end + 1;
                    return Ok(scratch);
                }
                Some(b'\\') => {
                    scratch.push_str(&self.text[piece..end]);
                    let (character, length) = self.escape(end)?;
                    scratch.push(character);
                    piece = end + length;
                    end = plain_end(bytes, piece);
                }
                Some(b'\n' | b'\r') => {
                    return Err(Fault::new(start - 1, "a text is not closed on its line")
                        .text(&self.text[start - 1..end])
                        .hint("close it with \", or write the line end in it as \\n"));
                }
                Some(&control) => {
                    return Err(Fault::new(end, format!("a control character (0x{control:02x}) inside a text"))
                        .hint(format!("write it as \\u{control:04x}")));
                }
                None => return Err(self.cut_short("in the middle of a text")),
            }
        }
    }

    /// The character of the escape at byte `at`, and the length of the escape.
    fn escape(&self, at: usize) -> Result<(char, usize), Fault> {
        let simple = match self.text.as_bytes().get(at + 1) {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode_escape(at),
            Some(_) => {
                let shown: String = self.text[at..].chars().take(2).collect();
                return Err(Fault::new(at, "an unknown escape inside a text")
                    .text(&shown)
                    .hint("a backslash itself is written as \\\\"));
            }
            None => return Err(self.cut_short("in the middle of a text")),
        };
        Ok((simple, 2))
    }

    /// `\uXXXX`, or two of them that are the halves of one character.
    fn unicode_escape(&self, at: usize) -> Result<(char, usize), Fault> {
        let first = self.four_hex_digits(at)?;
        if let Some(character) = char::from_u32(first) {
            return Ok((character, 6));
        }
        let rest = &self.text.as_bytes()[at + 6..];
        if first < 0xDC00 && rest.len() < 2 && b"\\u".starts_with(rest) {
            return Err(self.cut_short("in the middle of a text"));
        }
        if first < 0xDC00 && rest.starts_with(b"\\u") {
            let second = self.four_hex_digits(at + 6)?;
            // RFC 8259, section 7: the upper half carries ten bits, the lower half ten.
            let low = second.checked_sub(0xDC00).filter(|low| *low < 0x400);
            let joined = low.and_then(|low| char::from_u32(0x10000 + ((first - 0xD800) << 10) + low));
            if let Some(character) = joined {
                return Ok((character, 12));
            }
        }
        Err(Fault::new(at, "half a character: one \\u escape of a pair is missing").text(&self.text[at..at + 6]))
    }

    fn four_hex_digits(&self, at: usize) -> Result<u32, Fault> {
        let digits = &self.text.as_bytes()[at + 2..];
        let mut value = 0;
        for index in 0..4 {
            match digits.get(index).map(|digit| (*digit as char).to_digit(16)) {
                Some(Some(digit)) => value = value * 16 + digit,
                Some(None) => {
                    let shown: String = self.text[at..].chars().take(6).collect();
                    return Err(Fault::new(at, "a \\u escape without four hexadecimal digits").text(&shown));
                }
                None => return Err(self.cut_short("in the middle of a text")),
            }
        }
        Ok(value)
    }

    /// Reads `{`; the fields follow with [`Cursor::key`]. Call it when [`Kind::Object`] is next.
    #[inline]
    pub fn open_object(&mut self) -> Result<(), Fault> {
        self.open()
    }

    /// Reads `[`; the items follow with [`Cursor::item`]. Call it when [`Kind::List`] is next.
    #[inline]
    pub fn open_list(&mut self) -> Result<(), Fault> {
        self.open()
    }

    #[inline]
    fn open(&mut self) -> Result<(), Fault> {
        if self.depth == MAX_DEPTH {
            return Err(Fault::new(self.at, format!("objects and lists are nested deeper than {MAX_DEPTH} levels")));
        }
        self.depth += 1;
        self.at += 1;
        Ok(())
    }

    /// Reads the next key of an object and its colon, or the end of the object (`None`). `first` says that it is the
    /// first one.
    #[inline]
    pub fn key<'s>(&mut self, first: bool, scratch: &'s mut String) -> Result<Option<&'s str>, Fault>
    where
        'a: 's,
    {
        if !self.next_of(first, b'}', "object")? {
            return Ok(None);
        }
        if self.next_token() != Some(b'"') {
            return Err(self.no_key());
        }
        let key = self.string(scratch)?;
        match self.next_token() {
            Some(b':') => {
                self.at += 1;
                Ok(Some(key))
            }
            Some(_) => Err(Fault::new(self.at, "a `:` is missing after a key").text(key)),
            None => Err(self.cut_short("after a key")),
        }
    }

    /// Whether a list has another item, which is next then; otherwise its end has been read.
    #[inline]
    pub fn item(&mut self, first: bool) -> Result<bool, Fault> {
        self.next_of(first, b']', "list")
    }

    /// Reads the separator in an object or list: a comma (true) or its end (false).
    #[inline]
    fn next_of(&mut self, first: bool, end: u8, what: &str) -> Result<bool, Fault> {
        match self.next_token() {
            Some(byte) if byte == end => {
                self.at += 1;
                self.depth -= 1;
                Ok(false)
            }
            Some(b',') if !first => {
                let comma = self.at;
                self.at += 1;
                if self.next_token() == Some(end) {
                    return Err(Fault::new(comma, format!("a comma before the end of the {what}"))
                        .hint("leave it out: JSON allows commas only between values"));
                }
                Ok(true)
            }
            Some(_) if first => Ok(true),
            Some(_) => Err(self.no_comma(end, what)),
            None if end == b'}' => Err(self.cut_short("inside an object")),
            None => Err(self.cut_short("inside a list")),
        }
    }

    fn no_comma(&self, end: u8, what: &str) -> Fault {
        let shown: String = self.text[self.at..].chars().take(20).collect();
        Fault::new(self.at, format!("expected `,` or `{}` in the {what}", end as char)).text(&shown)
    }

    fn no_key(&self) -> Fault {
        let shown: String = self.text[self.at..].chars().take(20).collect();
        match self.peek() {
            None => self.cut_short("inside an object"),
            Some(b'\'') => {
                Fault::new(self.at, "a key in single quotes").text(&shown).hint("JSON has only double quotes")
            }
            Some(_) => Fault::new(self.at, "expected a key in double quotes").text(&shown),
        }
    }

    /// Skips a value of any kind, with the same strictness.
    pub fn skip(&mut self, scratch: &mut String) -> Result<(), Fault> {
        match self.kind()? {
            Kind::Text => self.string(scratch).map(drop),
            Kind::Number => match self.short_integer() {
                Some(_) => Ok(()),
                None => self.number().map(drop),
            },
            Kind::Bool => self.truth().map(drop),
            Kind::Null => self.null().map(drop),
            Kind::List => {
                self.open_list()?;
                let mut first = true;
                while self.item(first)? {
                    self.skip(scratch)?;
                    first = false;
                }
                Ok(())
            }
            Kind::Object => {
                self.open_object()?;
                let mut first = true;
                while self.key(first, scratch)?.is_some() {
                    self.skip(scratch)?;
                    first = false;
                }
                Ok(())
            }
        }
    }

    /// Reads a value of any kind, and returns its text in the record.
    pub fn raw(&mut self, scratch: &mut String) -> Result<&'a str, Fault> {
        self.next_token();
        let start = self.at;
        self.skip(scratch)?;
        Ok(&self.text[start..self.at])
    }

    /// Fails unless only white space follows.
    pub fn end(&mut self) -> Result<(), Fault> {
        match self.next_token() {
            None => Ok(()),
            Some(_) => {
                let shown: String = self.text[self.at..].chars().take(40).collect();
                Err(Fault::new(self.at, "text after the end of the record")
                    .text(&shown)
                    .hint("with `layout: lines` each line holds one object; see also `layout: objects` and `array`"))
            }
        }
    }

    /// The fault of a record that ends too early; `place` says inside of what.
    fn cut_short(&self, place: &str) -> Fault {
        Fault::new(self.text.len(), format!("the record is cut short {place}"))
            .text(tail(self.text))
            .hint("check whether the file is complete; objects that span lines need `layout: objects`")
    }

    /// The fault of a text that is no value.
    fn no_value(&self) -> Fault {
        let rest = &self.text[self.at..];
        let Some(first) = rest.chars().next() else { return self.cut_short("where a value is expected") };
        let is_part =
            |character: &char| character.is_ascii_alphanumeric() || matches!(character, '-' | '+' | '_' | '.');
        let mut shown: String = rest.chars().take_while(is_part).take(40).collect();
        let cut = shown.len() == rest.len();
        if cut && ["null", "true", "false", "-"].iter().any(|word| word.starts_with(&shown)) {
            return self.cut_short("in the middle of a value");
        }
        if shown.is_empty() {
            shown.push(first);
        }
        let fault = |what: &str| Fault::new(self.at, what).text(&shown);
        match shown.trim_start_matches('-') {
            "NaN" | "nan" | "Infinity" | "infinity" | "inf" | "Inf" => {
                fault("not a JSON value: JSON has no such number").hint("write null, or the word in double quotes")
            }
            "None" | "NULL" | "Null" | "undefined" | "nil" => fault("not a JSON value").hint("JSON writes it as null"),
            "True" | "False" | "TRUE" | "FALSE" => fault("not a JSON value").hint("JSON writes true and false"),
            "'" => fault("a text in single quotes").hint("JSON has only double quotes"),
            _ => fault("not a JSON value"),
        }
    }
}

/// The end of the text, where it was cut.
fn tail(text: &str) -> &str {
    let text = text.trim_end();
    let start = text.char_indices().rev().nth(39).map_or(0, |(at, _)| at);
    &text[start..]
}

/// White space of RFC 8259.
#[inline]
pub fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// The first byte from `at` on that is a quote, a backslash or a control character; the length if there is none.
#[inline]
fn plain_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(chunk) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        if let Some(place) = quick::special_in(u64::from_le_bytes(*chunk)) {
            return at + place;
        }
        at += 8;
    }
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().take_while(|byte| !matches!(byte, b'"' | b'\\' | 0..0x20)).count()
}
