//! The wildcards of paths: a pattern is cut at its slashes, and each part is a name, a wildcard or `**`.
//!
//! `*` stands for any characters of one name, `?` for one, `[a-z]` and `[!a-z]` for one of a set, and `**` as a whole
//! part for any number of folders, none included. A backslash takes the meaning from the next character. As in a
//! shell, a name that begins with a dot is found only by a part that begins with that dot, and `**` enters no such
//! folder. Braces have been expanded before: here they are plain characters.
//!
//! Tried and rejected: globset, whose `?` and sets match one byte, so that `?` does not match `ä`.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::iter::Peekable;
use std::str::Chars;

/// A part of a pattern between two slashes.
#[derive(Debug)]
pub(crate) enum Segment {
    /// This name.
    Name(String),
    /// The names that match.
    Wildcard(Wildcard),
    /// `**`: this folder and all below it.
    AnyDepth,
}

/// A wildcard for one name.
#[derive(Debug)]
pub(crate) struct Wildcard {
    tokens: Vec<Token>,
    hidden: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    /// This character.
    Plain(char),
    /// `*`.
    Any,
    /// `?`.
    One,
    /// `[…]`: characters in one of the ranges, or any others.
    Set { ranges: Vec<(char, char)>, others: bool },
}

impl Token {
    fn matches(&self, character: char) -> bool {
        match self {
            Token::Plain(plain) => *plain == character,
            Token::Any | Token::One => true,
            Token::Set { ranges, others } => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&character)) != *others
            }
        }
    }
}

impl Segment {
    /// The beginning of all names that match.
    pub(crate) fn beginning(&self) -> String {
        match self {
            Segment::Name(name) => name.clone(),
            Segment::Wildcard(wildcard) => wildcard.beginning(),
            Segment::AnyDepth => String::new(),
        }
    }
}

impl Wildcard {
    fn beginning(&self) -> String {
        let plain = self.tokens.iter().map_while(|token| match token {
            Token::Plain(character) => Some(*character),
            _ => None,
        });
        plain.collect()
    }

    /// Whether it matches `name`.
    pub(crate) fn matches(&self, name: &OsStr) -> bool {
        (self.hidden || !is_hidden(name)) && matches(&self.tokens, &name.to_string_lossy())
    }
}

/// Whether `tokens` match all of `name`. On a mismatch only the last `*` has to take one more character: everything
/// before it was matched as early as possible.
fn matches(tokens: &[Token], name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    let (mut token, mut at) = (0, 0);
    let mut last_any = None;
    while at < name.len() {
        match tokens.get(token) {
            Some(Token::Any) => {
                last_any = Some((token, at));
                token += 1;
            }
            Some(one) if one.matches(name[at]) => {
                token += 1;
                at += 1;
            }
            _ => {
                let Some((any, taken)) = last_any else { return false };
                last_any = Some((any, taken + 1));
                token = any + 1;
                at = taken + 1;
            }
        }
    }
    tokens[token..].iter().all(|rest| *rest == Token::Any)
}

/// Whether `segments` match all of `parts`, the names of a path.
pub(crate) fn match_all(segments: &[Segment], parts: &[&str]) -> bool {
    let Some((segment, rest)) = segments.split_first() else { return parts.is_empty() };
    let next = parts.split_first();
    let takes = |part: &str| match segment {
        Segment::Name(name) => name == part,
        Segment::Wildcard(wildcard) => wildcard.matches(OsStr::new(part)),
        Segment::AnyDepth => !is_hidden(OsStr::new(part)),
    };
    match (segment, next) {
        (Segment::AnyDepth, Some((part, behind))) => {
            match_all(rest, parts) || (takes(part) && match_all(segments, behind))
        }
        (Segment::AnyDepth, None) => match_all(rest, parts),
        (_, Some((part, behind))) => takes(part) && match_all(rest, behind),
        (_, None) => false,
    }
}

/// Whether a shell's `*` would skip `name`.
pub(crate) fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

/// Whether `pattern` has wildcards.
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

/// `text` without the backslashes of escapes.
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

/// Checks the wildcards of `pattern`.
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
    Ok(Segment::Wildcard(Wildcard { tokens: tokens(part)?, hidden: part.starts_with('.') }))
}

fn tokens(part: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut characters = part.chars().peekable();
    while let Some(character) = characters.next() {
        tokens.push(match character {
            '*' => Token::Any,
            '?' => Token::One,
            '[' => set(&mut characters)?,
            '\\' => Token::Plain(characters.next().ok_or(r"there is nothing after the `\`")?),
            plain => Token::Plain(plain),
        });
    }
    Ok(tokens)
}

/// Parses a set, after its `[`, with its `]`. A `]` at its beginning is one of its characters, and so is a `-` at
/// either end.
fn set(characters: &mut Peekable<Chars<'_>>) -> Result<Token, String> {
    let others = characters.next_if(|next| matches!(next, '!' | '^')).is_some();
    let mut ranges = Vec::new();
    loop {
        let first = characters.next().ok_or("the `[` is not closed")?;
        if first == ']' && !ranges.is_empty() {
            return Ok(Token::Set { ranges, others });
        }
        let mut ahead = characters.clone();
        let last = match (ahead.next(), ahead.next()) {
            (Some('-'), Some(last)) if last != ']' => {
                *characters = ahead;
                last
            }
            _ => first,
        };
        if last < first {
            return Err(format!("the range {first}-{last} runs backwards"));
        }
        ranges.push((first, last));
    }
}

/// The parts of a pattern that can come next.
pub(crate) type States = BTreeSet<usize>;

/// Where a name inside of a folder leads.
pub(crate) struct Step {
    /// The parts that can come next, if it is a folder.
    pub(crate) next: States,
    /// Whether the pattern ends here, if it is a file.
    pub(crate) ends: bool,
}

/// Adds the parts after each `**`, which may match no folder.
pub(crate) fn closure(segments: &[Segment], states: &States) -> States {
    let mut closed = States::new();
    for &state in states {
        let mut state = state;
        closed.insert(state);
        while matches!(segments.get(state), Some(Segment::AnyDepth)) && state + 1 < segments.len() {
            state += 1;
            closed.insert(state);
        }
    }
    closed
}

/// Where `name` leads from the closed `states`; `folder` says whether it is a folder.
pub(crate) fn step(segments: &[Segment], states: &States, name: &OsStr, folder: bool) -> Step {
    let mut step = Step { next: States::new(), ends: false };
    for &state in states {
        let last = state + 1 == segments.len();
        let fits = match segments.get(state) {
            Some(Segment::Name(wanted)) => name == OsStr::new(wanted),
            Some(Segment::Wildcard(wildcard)) => wildcard.matches(name),
            Some(Segment::AnyDepth) => {
                if !is_hidden(name) {
                    step.ends |= last;
                    if folder {
                        step.next.insert(state);
                    }
                }
                false
            }
            None => false,
        };
        if fits && last {
            step.ends = true;
        } else if fits {
            step.next.insert(state + 1);
        }
    }
    step
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
            ("[a-]x", vec!["ax", "-x"], vec!["bx"]),
            ("[ä-ü]", vec!["ö"], vec!["o", "öö"]),
            ("a*b*c", vec!["abc", "axxbbxbc", "abcbc"], vec!["abcb", "acb"]),
            ("**.gz", vec!["a.gz"], vec!["a"]),
            ("a b", vec!["a b"], vec!["a"]),
        ] {
            yes.iter().for_each(|name| assert!(matches(part, name), "{part} stands for {name}"));
            no.iter().for_each(|name| assert!(!matches(part, name), "{part} does not stand for {name}"));
        }
    }

    #[test]
    fn faults_are_reported() {
        for (pattern, what) in [
            ("a/[b", "the `[` is not closed"),
            ("[z-a]", "the range z-a runs backwards"),
            (r"*\", r"there is nothing after the `\`"),
        ] {
            assert_eq!(check(pattern), Err(what.to_owned()), "{pattern}");
        }
    }
}
