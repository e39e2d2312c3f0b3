//! Brace expansion: one pattern becomes many paths or URLs, before any source sees them.
//!
//! `{a,b}` stands for each of its parts, `{1..20}`, `{000..999}` (padded with zeros to the longer end), `{0..100..10}`
//! (in steps) and `{a..f}` for each of a range. Braces nest. The leftmost brace varies slowest, as in a shell. A
//! backslash takes the meaning from `{`, `}` and `,`. It stays in front of everything else: wildcards (`*`, `?`,
//! `[a-z]`, `**`) and their escapes are left to the source. Unlike in a shell, meaningless braces (`{abc}`, `{`) are
//! faults: in a list of files they are mistakes.
//!
//! Nothing here does I/O, and nothing holds all results: [`Expand`] works each one out from its number.

use millstream_core::spec::Fault;
use millstream_core::{Error, Result};
use url::Url;

use crate::file::glob;

/// The most results that one pattern may have.
pub const LIMIT: u64 = 100_000_000;

/// Braces may be nested this deep.
const DEPTH_LIMIT: usize = 32;

/// Schemes without wildcards, whose URLs may contain their characters.
const WITHOUT_WILDCARDS: &[&str] = &["http", "https"];

/// Checks the syntax of `pattern` for lints: its braces, and its wildcards, unless it is a web URL.
pub fn check(pattern: &str) -> Result<(), Fault> {
    let sequence = parse(pattern).map_err(|(what, hint)| Fault { path: Vec::new(), what, hint: Some(hint) })?;
    if !is_of_web(pattern) {
        for number in sample(sequence.count) {
            glob::check(&sequence.text(number))
                .map_err(|what| Fault::new("", what).hint(r"to mean the character itself, write `\[`"))?;
        }
    }
    Ok(())
}

/// Checks the syntax of a pattern of URLs for lints: its braces, and the first URL.
pub fn check_url(pattern: &str) -> Result<(), Fault> {
    check(pattern)?;
    let first = expand(pattern).ok().and_then(|mut urls| urls.next()).unwrap_or_default();
    // The parser ignores a third slash.
    let has_host = !first.split_once("://").is_some_and(|(_, rest)| rest.starts_with('/'));
    let what = match Url::parse(&first) {
        Ok(url) if has_host && url.has_host() => return Ok(()),
        Ok(_) => "the URL has no host".to_owned(),
        Err(cause) => format!("this is not a valid URL: {cause}"),
    };
    let scheme = first.split("://").next().unwrap_or_default();
    Err(Fault::new("", what).hint(format!("write {scheme}://HOST/PATH")))
}

/// All results of `pattern`, in order. A pattern without braces has one.
pub fn expand(pattern: &str) -> Result<Expand> {
    let sequence = parse(pattern).map_err(|(what, hint)| Error::job(what).text(pattern).hint(hint))?;
    Ok(Expand { sequence, next: 0 })
}

/// Whether `pattern`, which has no braces, has wildcards. URLs of the web have none.
pub fn has_wildcards(pattern: &str) -> bool {
    !is_of_web(pattern) && glob::has_wildcards(pattern)
}

/// The path or URL that `pattern`, which has no wildcards, stands for.
pub fn plain(pattern: &str) -> String {
    if is_of_web(pattern) { pattern.to_owned() } else { glob::unescape(pattern) }
}

fn is_of_web(pattern: &str) -> bool {
    let scheme = pattern.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    scheme.is_some_and(|scheme| WITHOUT_WILDCARDS.contains(&scheme.as_str()))
}

/// A pattern with wildcards and without braces, for the paths or URLs of units.
#[derive(Debug)]
pub struct Matcher {
    segments: Vec<glob::Segment>,
    is_absolute: bool,
}

impl Matcher {
    /// Of `pattern`.
    ///
    /// # Errors
    /// If a wildcard is not complete, with what is wrong.
    pub fn new(pattern: &str) -> Result<Self, String> {
        Ok(Matcher { segments: glob::segments(pattern)?, is_absolute: pattern.starts_with('/') })
    }

    /// Whether it matches all of `name`.
    pub fn matches(&self, name: &str) -> bool {
        let parts: Vec<&str> = name.split('/').filter(|part| !part.is_empty()).collect();
        self.is_absolute == name.starts_with('/') && glob::match_all(&self.segments, &parts)
    }
}

/// `text` with a backslash before all special characters of patterns.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if "*?[]{}\\".contains(character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

/// A sample of the results, if there are many: the first and the last few.
fn sample(count: u64) -> impl Iterator<Item = u64> {
    let head = count.min(64);
    (0..head).chain(count.saturating_sub(64).max(head)..count)
}

/// The results of a pattern, in order.
#[derive(Debug, Clone)]
pub struct Expand {
    sequence: Sequence,
    next: u64,
}

impl Expand {
    /// How many results are left.
    pub fn remaining(&self) -> u64 {
        self.sequence.count - self.next
    }
}

impl Iterator for Expand {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        if self.next == self.sequence.count {
            return None;
        }
        let text = self.sequence.text(self.next);
        self.next += 1;
        Some(text)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let remaining = usize::try_from(self.remaining()).unwrap_or(usize::MAX);
        (remaining, Some(remaining))
    }
}

/// Pieces one after the other; `count` is the product of their counts.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sequence {
    pieces: Vec<Piece>,
    count: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Choice { parts: Vec<Sequence>, count: u64 },
    Range(Range),
}

/// `first`, `first + step`, …: `count` numbers, written with at least `width` characters; or letters.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Range {
    first: i64,
    step: i64,
    count: u64,
    width: usize,
    letters: bool,
}

impl Piece {
    fn count(&self) -> u64 {
        match self {
            Piece::Text(_) => 1,
            Piece::Choice { count, .. } => *count,
            Piece::Range(range) => range.count,
        }
    }
}

impl Sequence {
    /// Result `number`, from 0: the number in the mixed base of the pieces' counts.
    fn text(&self, number: u64) -> String {
        let mut text = String::new();
        self.write(number, &mut text);
        text
    }

    fn write(&self, number: u64, text: &mut String) {
        let mut weight = self.count;
        let mut rest = number;
        for piece in &self.pieces {
            weight /= piece.count();
            let digit = rest / weight;
            rest %= weight;
            match piece {
                Piece::Text(part) => text.push_str(part),
                Piece::Choice { parts, .. } => write_choice(parts, digit, text),
                Piece::Range(range) => range.write(digit, text),
            }
        }
    }
}

fn write_choice(parts: &[Sequence], mut number: u64, text: &mut String) {
    for part in parts {
        if number < part.count {
            return part.write(number, text);
        }
        number -= part.count;
    }
}

impl Range {
    fn write(&self, number: u64, text: &mut String) {
        // The last value is between the ends, so it fits; the product alone may not.
        let value = (i128::from(self.first) + i128::from(self.step) * i128::from(number)) as i64;
        if self.letters {
            text.extend(u32::try_from(value).ok().and_then(char::from_u32));
        } else {
            text.push_str(&format!("{value:0width$}", width = self.width));
        }
    }
}

/// What is wrong, and what to do.
type Wrong = (String, String);

fn parse(pattern: &str) -> Result<Sequence, Wrong> {
    let mut parser = Parser { pattern, at: 0 };
    let sequence = parser.sequence(0)?;
    match parser.peek() {
        None => Ok(sequence),
        Some(_) => Err((
            format!("a `}}` at character {} closes nothing", parser.character()),
            r"to mean the character itself, write `\}`".into(),
        )),
    }
}

struct Parser<'a> {
    pattern: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.pattern[self.at..].chars().next()
    }

    /// The number of the current character, from 1.
    fn character(&self) -> usize {
        self.pattern[..self.at].chars().count() + 1
    }

    /// Parses up to the end, or inside of braces (`depth` above 0) up to a comma or a closing brace.
    fn sequence(&mut self, depth: usize) -> Result<Sequence, Wrong> {
        let mut pieces = Vec::new();
        let mut text = String::new();
        while let Some(character) = self.peek() {
            match character {
                '}' => break,
                ',' if depth > 0 => break,
                '{' => {
                    if !text.is_empty() {
                        pieces.push(Piece::Text(std::mem::take(&mut text)));
                    }
                    pieces.push(self.braces(depth)?);
                }
                '\\' => self.escaped(&mut text),
                other => {
                    text.push(other);
                    self.at += other.len_utf8();
                }
            }
        }
        if !text.is_empty() {
            pieces.push(Piece::Text(text));
        }
        let count = product(&pieces).ok_or_else(too_many)?;
        Ok(Sequence { pieces, count })
    }

    /// Parses a backslash and the next character: the backslash is dropped before special characters of braces.
    fn escaped(&mut self, text: &mut String) {
        self.at += 1;
        match self.peek() {
            Some(brace @ ('{' | '}' | ',')) => {
                text.push(brace);
                self.at += 1;
            }
            Some(other) => {
                text.push('\\');
                text.push(other);
                self.at += other.len_utf8();
            }
            None => text.push('\\'),
        }
    }

    /// Parses from a `{` to its `}`.
    fn braces(&mut self, depth: usize) -> Result<Piece, Wrong> {
        let opened = self.character();
        if depth == DEPTH_LIMIT {
            return Err((
                format!("braces are nested more than {DEPTH_LIMIT} deep"),
                "split it into several patterns".into(),
            ));
        }
        self.at += 1;
        if let Some(range) = self.range(opened)? {
            return Ok(Piece::Range(range));
        }
        let mut parts = Vec::new();
        loop {
            let start = self.at;
            parts.push(self.sequence(depth + 1)?);
            let part = &self.pattern[start..self.at];
            match self.peek() {
                None => {
                    return Err((
                        format!("the `{{` at character {opened} is not closed"),
                        r"close it with `}`; to mean the character itself, write `\{`".into(),
                    ));
                }
                Some(end) => {
                    self.at += 1;
                    if end == '}' && parts.len() == 1 {
                        return Err((
                            format!("the braces at character {opened} hold neither a comma nor a range"),
                            r"write {a,b} or {000..999}; to mean the character itself, write `\{`".into(),
                        ));
                    }
                    if looks_like_range(part) {
                        return Err((
                            format!("the range {part} in the braces at character {opened} has no braces of its own"),
                            format!("write {{{{{part}}},…}}"),
                        ));
                    }
                    if end == '}' {
                        let count = sum(&parts).ok_or_else(too_many)?;
                        return Ok(Piece::Choice { parts, count });
                    }
                }
            }
        }
    }

    /// Parses a range up to the next `}`, if there is one.
    fn range(&mut self, opened: usize) -> Result<Option<Range>, Wrong> {
        let Some(length) = self.pattern[self.at..].find('}') else { return Ok(None) };
        let inside = &self.pattern[self.at..self.at + length];
        if !looks_like_range(inside) {
            return Ok(None);
        }
        let range = parse_range(inside).ok_or_else(|| {
            (
                format!("`{{{inside}}}` at character {opened} is not a range"),
                "write {1..20}, {000..999}, {0..100..10} or {a..f}".to_owned(),
            )
        })?;
        self.at += length + 1;
        Ok(Some(range))
    }
}

fn looks_like_range(text: &str) -> bool {
    text.split_once("..").is_some_and(|(first, rest)| {
        let end = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        end(first) && rest.split("..").all(end)
    })
}

fn parse_range(inside: &str) -> Option<Range> {
    let mut parts = inside.split("..");
    let (first, last, step) = (parts.next()?, parts.next()?, parts.next());
    if parts.next().is_some() {
        return None;
    }
    let step = step.map_or(Some(1), |step| step.parse::<i64>().ok().map(i64::unsigned_abs).filter(|step| *step > 0))?;
    if let (Some(first), Some(last)) = (letter(first), letter(last)) {
        return Range::new(first, last, step, 0, true);
    }
    let width = if padded(first) || padded(last) { first.len().max(last.len()) } else { 0 };
    if width > 64 {
        return None;
    }
    Range::new(first.parse().ok()?, last.parse().ok()?, step, width, false)
}

impl Range {
    fn new(first: i64, last: i64, step: u64, width: usize, letters: bool) -> Option<Self> {
        let count = (first.abs_diff(last) / step).checked_add(1)?;
        let step = i64::try_from(step).ok()?;
        Some(Range { first, step: if last < first { -step } else { step }, count, width, letters })
    }
}

/// The code of a single letter.
fn letter(text: &str) -> Option<i64> {
    let mut characters = text.chars();
    let letter = characters.next().filter(char::is_ascii_alphabetic)?;
    characters.next().is_none().then_some(i64::from(u32::from(letter)))
}

/// Whether a number is written with leading zeros.
fn padded(number: &str) -> bool {
    let digits = number.strip_prefix('-').unwrap_or(number);
    digits.len() > 1 && digits.starts_with('0')
}

fn product(pieces: &[Piece]) -> Option<u64> {
    pieces.iter().try_fold(1_u64, |total, piece| total.checked_mul(piece.count()).filter(|total| *total <= LIMIT))
}

fn sum(parts: &[Sequence]) -> Option<u64> {
    parts.iter().try_fold(0_u64, |total, part| total.checked_add(part.count).filter(|total| *total <= LIMIT))
}

fn too_many() -> Wrong {
    (format!("the braces expand to more than {LIMIT} names"), "split it into several patterns".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(pattern: &str) -> Vec<String> {
        expand(pattern).expect("a good pattern").collect()
    }

    #[test]
    fn braces_are_expanded_as_in_a_shell() {
        for (pattern, results) in [
            ("", vec![""]),
            ("a", vec!["a"]),
            ("a{b,c}d", vec!["abd", "acd"]),
            ("{a,b}{1..2}", vec!["a1", "a2", "b1", "b2"]),
            ("{,x}y", vec!["y", "xy"]),
            ("{a,{b,c}d}", vec!["a", "bd", "cd"]),
            ("{a,b{1..3}}", vec!["a", "b1", "b2", "b3"]),
            ("{8..11}", vec!["8", "9", "10", "11"]),
            ("{08..11}", vec!["08", "09", "10", "11"]),
            ("{8..010}", vec!["008", "009", "010"]),
            ("{3..1}", vec!["3", "2", "1"]),
            ("{-1..1}", vec!["-1", "0", "1"]),
            ("{-01..1}", vec!["-01", "000", "001"]),
            ("{0..10..5}", vec!["0", "5", "10"]),
            ("{0..9..-4}", vec!["0", "4", "8"]),
            ("{a..e..2}", vec!["a", "c", "e"]),
            ("{c..a}", vec!["c", "b", "a"]),
            (r"\{a\,b\}{x\,y,z}", vec!["{a,b}x,y", "{a,b}z"]),
            (r"a\*\\{1,2}?*", vec![r"a\*\\1?*", r"a\*\\2?*"]),
            ("a,b", vec!["a,b"]),
            ("ä{ö,ü}", vec!["äö", "äü"]),
            ("../x{1..2}/../y", vec!["../x1/../y", "../x2/../y"]),
        ] {
            assert_eq!(all(pattern), results, "{pattern}");
            assert_eq!(check(pattern), Ok(()), "{pattern}");
        }
    }

    #[test]
    fn a_large_pattern_costs_nothing_until_it_is_used() {
        let mut expand = expand("https://host/{0000..9999}/{0000..9999}.gz").expect("100 million");
        assert_eq!(expand.remaining(), LIMIT);
        assert_eq!(expand.next().as_deref(), Some("https://host/0000/0000.gz"));
        assert_eq!(expand.nth(9_999).as_deref(), Some("https://host/0001/0000.gz"));
    }

    #[test]
    fn slips_are_reported() {
        for (pattern, what) in [
            ("a{b", "the `{` at character 2 is not closed"),
            ("a}b", "a `}` at character 2 closes nothing"),
            ("ä{b}", "the braces at character 2 hold neither a comma nor a range"),
            ("{}", "the braces at character 1 hold neither a comma nor a range"),
            ("{1..x}", "`{1..x}` at character 1 is not a range"),
            ("{1..2..0}", "`{1..2..0}` at character 1 is not a range"),
            ("{1..2..3..4}", "`{1..2..3..4}` at character 1 is not a range"),
            ("{1..99999999999999999999}", "`{1..99999999999999999999}` at character 1 is not a range"),
            ("{1..3,7}", "the range 1..3 in the braces at character 1 has no braces of its own"),
            ("{1..10000}{1..10001}", "the braces expand to more than 100000000 names"),
            ("{-9223372036854775807..9223372036854775807}", "the braces expand to more than 100000000 names"),
            ("a[b", "the `[` is not closed"),
        ] {
            let fault = check(pattern).expect_err(pattern);
            assert_eq!(fault.what, what, "{pattern}");
            assert!(fault.hint.is_some(), "{pattern}");
        }
        assert!(check(&"{".repeat(100_000)).expect_err("too deep").what.contains("nested"));
        assert_eq!(check("https://[::1]/a?b[=1"), Ok(()), "a URL of the web has no wildcards");
        assert!(check("s3://bucket/[a").is_err());
    }

    #[test]
    fn urls_are_looked_at_behind_their_braces() {
        for good in ["https://host/{a,b}.csv", "https://{a,b}.example/x", "http://[::1]:{80..90}/", "ftp://me@h/a b"] {
            assert_eq!(check_url(good), Ok(()), "{good}");
        }
        for (bad, what, hint) in [
            ("https:///a.csv", "the URL has no host", "write https://HOST/PATH"),
            ("ftp://{a b,c}/x", "this is not a valid URL: invalid international domain name", "write ftp://HOST/PATH"),
            ("https://host:99999/a", "this is not a valid URL: invalid port number", "write https://HOST/PATH"),
        ] {
            let fault = check_url(bad).expect_err(bad);
            assert_eq!((fault.what.as_str(), fault.hint.as_deref()), (what, Some(hint)), "{bad}");
        }
        assert!(check_url("https://host/{a").expect_err("braces first").what.contains("is not closed"));
    }

    /// A pattern, and its results by definition: the product of the lists of its parts.
    fn pattern_and_results() -> impl Strategy<Value = (String, Vec<String>)> {
        let text = "[a-z./*?]{0,4}".prop_map(|text| (text.clone(), vec![text]));
        let range = (0_i64..200, 0_i64..30, 1_i64..9, 0_usize..4).prop_map(|(first, length, step, width)| {
            let last = first + length;
            let ends = (format!("{first:0width$}"), format!("{last:0width$}"));
            let zeros = |end: &String| end.len() > 1 && end.starts_with('0');
            let width = if zeros(&ends.0) || zeros(&ends.1) { ends.0.len().max(ends.1.len()) } else { 0 };
            let results: Vec<_> = (first..=last).step_by(step as usize).map(|n| format!("{n:0width$}")).collect();
            (format!("{{{}..{}..{step}}}", ends.0, ends.1), results)
        });
        let leaf = prop_oneof![text, range];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 2..4).prop_map(|parts| {
                    let pattern: Vec<_> = parts.iter().map(|part| part.0.as_str()).collect();
                    (format!("{{{}}}", pattern.join(",")), parts.into_iter().flat_map(|part| part.1).collect())
                }),
                (inner.clone(), inner).prop_map(|(left, right)| {
                    let results = left.1.iter().flat_map(|a| right.1.iter().map(move |b| format!("{a}{b}"))).collect();
                    (left.0 + &right.0, results)
                }),
            ]
        })
    }

    #[test]
    fn a_matcher_takes_what_a_pattern_finds() {
        for (pattern, name, expected) in [
            ("in/*.csv", "in/a.csv", true),
            ("in/*.csv", "in/x/a.csv", false),
            ("in/*.csv", "/in/a.csv", false),
            ("/in/*.csv", "/in/a.csv", true),
            ("**/*.csv", "in/x/a.csv", true),
            ("**/*.csv", "a.csv", true),
            ("in/**", "in/x/a.csv", true),
            ("in/**/b/*", "in/b/a", true),
            ("in/*", "in/.a", false),
            ("**/a", ".git/a", false),
            (r"in/\[a\]*", "in/[a]b", true),
            ("s3://bucket/in/2026-0?/*", "s3://bucket/in/2026-03/a.csv", true),
        ] {
            assert_eq!(Matcher::new(pattern).map(|matcher| matcher.matches(name)), Ok(expected), "{pattern} {name}");
        }
        assert!(Matcher::new("in/[a").is_err());
        assert!(!has_wildcards("https://host/a?b=[1]") && !has_wildcards(r"in/\*") && has_wildcards("in/*"));
        assert_eq!((plain(r"in/\*"), plain(r"https://host/\*")), ("in/*".to_owned(), r"https://host/\*".to_owned()));
    }

    proptest! {
        #[test]
        fn results_are_the_product_of_the_parts((pattern, results) in pattern_and_results()) {
            // `a..b` inside of braces is a mistake, which is tested above.
            let slip = expand(&pattern).is_err_and(|error| error.what().contains("range"));
            prop_assume!(!slip);
            let expanded = expand(&pattern).map_err(|error| TestCaseError::fail(format!("{pattern}: {error}")))?;
            prop_assert_eq!(expanded.remaining(), results.len() as u64);
            prop_assert_eq!(expanded.collect::<Vec<_>>(), results);
        }

        #[test]
        fn an_escaped_text_stands_for_itself(text in "\\PC{0,30}") {
            let results = all(&escape(&text));
            prop_assert_eq!(results.len(), 1);
            let unescaped = crate::file::glob::unescape(&results[0]);
            prop_assert_eq!(unescaped, text);
        }

        #[test]
        fn no_text_makes_it_panic(text in "[{}.,0-9a\\\\*\\[-]{0,40}") {
            let _ = check(&text);
            if let Ok(expanded) = expand(&text) {
                let _ = expanded.take(100).count();
            }
        }
    }
}
