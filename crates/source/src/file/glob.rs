//! The wildcards of paths: a pattern is cut at its slashes, and each part is a name, a wildcard or `**`.
//!
//! `*` stands for any characters of one name, `?` for one, `[a-z]` and `[!a-z]` for one of a set, and `**` as a whole
//! part for any number of folders, none included. A backslash takes the meaning from the next character. As in a
//! shell, a name that begins with a dot is found only by a part that begins with that dot, and `**` enters no such
//! folder. Braces have been expanded before: here they are plain characters.

use std::ffi::OsStr;

use globset::{ErrorKind, GlobBuilder, GlobMatcher};

/// A part of a pattern between two slashes.
#[derive(Debug)]
pub(crate) enum Segment {
    /// Just this name.
    Name(String),
    /// The names that match.
    Wildcard(Wildcard),
    /// `**`: this folder and all below it.
    AnyDepth,
}

/// A wildcard for one name.
#[derive(Debug)]
pub(crate) struct Wildcard {
    matcher: GlobMatcher,
    hidden: bool,
}

impl Wildcard {
    /// Whether it stands for `name`.
    pub(crate) fn matches(&self, name: &OsStr) -> bool {
        (self.hidden || !is_hidden(name)) && self.matcher.is_match(name)
    }
}

/// Whether a shell's `*` would pass over `name`.
pub(crate) fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

/// Whether `pattern` stands for more than one path.
pub(crate) fn has_wildcards(pattern: &str) -> bool {
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => {
                characters.next();
            }
            '*' | '?' | '[' => return true,
            _ => {}
        }
    }
    false
}

/// `text` without the backslashes that take a meaning away.
pub(crate) fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => plain.push(characters.next().unwrap_or('\\')),
            other => plain.push(other),
        }
    }
    plain
}

/// What is wrong with the wildcards of `pattern`.
pub(crate) fn check(pattern: &str) -> Result<(), String> {
    if has_wildcards(pattern) { segments(pattern).map(drop) } else { Ok(()) }
}

/// The parts of `pattern`, without the slash at its beginning.
pub(crate) fn segments(pattern: &str) -> Result<Vec<Segment>, String> {
    pattern.split('/').filter(|part| !part.is_empty()).map(segment).collect()
}

fn segment(part: &str) -> Result<Segment, String> {
    if part == "**" {
        return Ok(Segment::AnyDepth);
    }
    if !has_wildcards(part) {
        return Ok(Segment::Name(unescape(part)));
    }
    let glob =
        GlobBuilder::new(&without_alternatives(part)).literal_separator(true).backslash_escape(true).build().map_err(
            |error| match error.kind() {
                ErrorKind::UnclosedClass => "the `[` is not closed".to_owned(),
                ErrorKind::InvalidRange(first, last) => format!("the range {first}-{last} runs backwards"),
                ErrorKind::DanglingEscape => r"there is nothing behind the `\`".to_owned(),
                other => other.to_string(),
            },
        )?;
    Ok(Segment::Wildcard(Wildcard { matcher: glob.compile_matcher(), hidden: part.starts_with('.') }))
}

/// `part` with its braces as sets of one character: for the library they would be alternatives.
fn without_alternatives(part: &str) -> String {
    let mut glob = String::with_capacity(part.len());
    let mut characters = part.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\\' => {
                glob.push('\\');
                glob.extend(characters.next());
            }
            '[' => {
                glob.push('[');
                glob.extend(characters.next_if(|next| matches!(next, '!' | '^')));
                glob.extend(characters.next_if_eq(&']'));
                for inside in characters.by_ref() {
                    glob.push(inside);
                    if inside == ']' {
                        break;
                    }
                }
            }
            '{' => glob.push_str("[{]"),
            '}' => glob.push_str("[}]"),
            other => glob.push(other),
        }
    }
    glob
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(part: &str, name: &str) -> bool {
        match segment(part).expect("a good pattern") {
            Segment::Name(plain) => plain == name,
            Segment::Wildcard(wildcard) => wildcard.matches(OsStr::new(name)),
            Segment::AnyDepth => panic!("{part} is no wildcard for a name"),
        }
    }

    #[test]
    fn wildcards_match_as_in_a_shell() {
        for (part, yes, no) in [
            ("*.gz", vec!["a.gz", "a.b.gz"], vec![".gz", ".a.gz", "a.gzip"]),
            (".*", vec![".a"], vec!["a"]),
            ("a?c", vec!["abc", "aäc"], vec!["ac", "abbc"]),
            ("[a-c]x", vec!["ax", "cx"], vec!["dx", "x"]),
            ("[!a-c]x", vec!["dx"], vec!["ax"]),
            ("[]]x", vec!["]x"], vec!["ax"]),
            (r"\*", vec!["*"], vec!["a"]),
            (r"\[1]*", vec!["[1]a"], vec!["1a"]),
            ("{a}*", vec!["{a}b"], vec!["ab"]),
            ("[{]a,b}*", vec!["{a,b}c"], vec!["ac"]),
            ("**.gz", vec!["a.gz"], vec!["a"]),
            ("a b", vec!["a b"], vec!["a"]),
        ] {
            yes.iter().for_each(|name| assert!(matches(part, name), "{part} stands for {name}"));
            no.iter().for_each(|name| assert!(!matches(part, name), "{part} does not stand for {name}"));
        }
    }

    #[test]
    fn faults_are_told() {
        for (pattern, what) in [
            ("a/[b", "the `[` is not closed"),
            ("[z-a]", "the range z-a runs backwards"),
            (r"*\", r"there is nothing behind the `\`"),
        ] {
            assert_eq!(check(pattern), Err(what.to_owned()), "{pattern}");
        }
    }
}
