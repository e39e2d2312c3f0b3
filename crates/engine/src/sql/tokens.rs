//! SQL as a sequence of its tokens: texts that differ only in comments, white space, and the case of words outside of
//! quotes have the same tokens. Fingerprints are made of it and are stored, so it depends on no library. It accepts any
//! text.

use std::iter::Peekable;
use std::str::Chars;

/// Signs of several characters, longer ones first.
const SIGNS: &[&str] = &[
    "<=>", "->>", "#>>", "!~~*", "!~*", "!~~", "~~*", "<=", ">=", "<>", "!=", "==", "||", "::", "->", "=>", "#>", "@>",
    "<@", "!~", "~*", "~~", "&&", "<<", ">>", "**", "//", ":=", "@@", "@?", "?|", "?&", "^@",
];

/// Letters that, right before a quote, say how the text in it is to be read.
const PREFIXES: &str = "bBeEnNrRxX";

/// The tokens of `sql`, each behind a space but the first. Words outside of quotes are in lower case.
pub fn normalised(sql: &str) -> String {
    let mut reader = Reader { rest: sql.chars().peekable(), text: sql };
    let mut normalised = String::with_capacity(sql.len());
    while let Some(token) = reader.token() {
        if !normalised.is_empty() {
            normalised.push(' ');
        }
        normalised.push_str(&token);
    }
    normalised
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    /// What is left, from the next character on.
    text: &'a str,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let next = self.rest.next()?;
        self.text = &self.text[next.len_utf8()..];
        Some(next)
    }

    fn take_while(&mut self, holds: impl Fn(char) -> bool) -> String {
        let mut taken = String::new();
        while self.rest.peek().is_some_and(|next| holds(*next)) {
            taken.extend(self.next());
        }
        taken
    }

    fn token(&mut self) -> Option<String> {
        self.skip_blanks();
        let first = *self.rest.peek()?;
        let prefixed = PREFIXES.contains(first) && self.text[first.len_utf8()..].starts_with('\'');
        if prefixed {
            self.next();
            let escapes = first.eq_ignore_ascii_case(&'e');
            return Some(format!("{}{}", first.to_ascii_lowercase(), self.quoted('\'', escapes)));
        }
        Some(match first {
            '\'' | '"' | '`' => self.quoted(first, false),
            '$' => self.dollar_quoted(),
            _ if is_word(first) => {
                let word = self.take_while(|next| is_word(next) || next == '$');
                self.number(word).to_lowercase()
            }
            _ => self.sign(),
        })
    }

    /// White space and comments; those of `/*` may hold others.
    fn skip_blanks(&mut self) {
        loop {
            self.take_while(char::is_whitespace);
            if self.text.starts_with("--") {
                self.take_while(|next| next != '\n');
            } else if self.text.starts_with("/*") {
                let mut depth = 0;
                loop {
                    let step = match self.text {
                        text if text.starts_with("/*") => 1,
                        text if text.starts_with("*/") => -1,
                        _ => 0,
                    };
                    depth += step;
                    let read = if step == 0 { self.next() } else { self.next().and_then(|_| self.next()) };
                    if depth == 0 || read.is_none() {
                        break;
                    }
                }
            } else {
                return;
            }
        }
    }

    /// Up to the closing quote; a quote that is doubled, and with `escapes` one behind a backslash, closes nothing.
    fn quoted(&mut self, quote: char, escapes: bool) -> String {
        let mut token: String = self.next().into_iter().collect();
        while let Some(next) = self.next() {
            token.push(next);
            if escapes && next == '\\' {
                token.extend(self.next());
            } else if next == quote {
                match self.rest.peek() {
                    Some(after) if *after == quote => token.extend(self.next()),
                    _ => break,
                }
            }
        }
        token
    }

    /// `$1`, `$name`, or a text between `$tag$` and `$tag$`.
    fn dollar_quoted(&mut self) -> String {
        let mut token: String = self.next().into_iter().collect();
        token.push_str(&self.take_while(is_word));
        if self.rest.peek() != Some(&'$') {
            return token;
        }
        token.extend(self.next());
        let length = self.text.find(&token).map_or(self.text.len(), |end| end + token.len());
        let end = self.text.len() - length;
        while self.text.len() > end {
            token.extend(self.next());
        }
        token
    }

    /// The rest of a number that begins with `word`: its fraction, and the sign of an exponent.
    fn number(&mut self, mut word: String) -> String {
        if !word.starts_with(|first: char| first.is_ascii_digit()) {
            return word;
        }
        if self.rest.peek() == Some(&'.') && !self.text.starts_with("..") {
            word.extend(self.next());
            word.push_str(&self.take_while(is_word));
        }
        let is_exponent = word.ends_with(['e', 'E']) && !word.starts_with("0x") && !word.starts_with("0X");
        if is_exponent && self.rest.peek().is_some_and(|next| matches!(next, '+' | '-')) {
            word.extend(self.next());
            word.push_str(&self.take_while(is_word));
        }
        word
    }

    fn sign(&mut self) -> String {
        let known = SIGNS.iter().find(|sign| self.text.starts_with(**sign));
        let length = known.map_or(1, |sign| sign.chars().count());
        (0..length).filter_map(|_| self.next()).collect()
    }
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::normalised;

    #[test]
    fn comments_space_and_capitals_of_words_say_nothing() {
        for (one, other) in [
            ("SELECT a FROM t", "select\n\tA -- the first\n from /* of /* all */ */ T"),
            ("a=-1", "a = - 1"),
            ("x>=1.5E-3 AND y", "X >= 1.5e-3 and Y"),
            ("f(a,b)", "F( a , b )"),
            ("a::int", "a :: INT"),
            ("date'2020-01-01'", "DATE '2020-01-01'"),
            ("X'0a'", "x'0a'"),
            ("a", "  a  -- end"),
            ("", "-- nothing"),
            ("t.a", "T . A"),
            ("1 /* never closed", "1"),
        ] {
            assert_eq!(normalised(one), normalised(other), "{one} {other}");
        }
        assert_eq!(normalised("Select \"A b\",'It''s'  From t"), "select \"A b\" , 'It''s' from t");
    }

    #[test]
    fn everything_else_says_something() {
        for (one, other) in [
            ("'a'", "'A'"),
            ("'a b'", "'a  b'"),
            ("'a -- b'", "'a'"),
            ("\"A\"", "\"a\""),
            ("\"a\"", "a"),
            ("`A`", "`a`"),
            ("x'0a'", "x '0a'"),
            (r"e'\' -- a'", r"e'\' -- b'"),
            ("$$A$$", "$$a$$"),
            ("$t$ -- a $t$", "$t$ -- b $t$"),
            ("1.5", "1 .5"),
            ("1e-5", "1e - 5"),
            ("ab", "a b"),
            ("< =", "<="),
            ("a - -1", "a --1"),
            ("1", "1.0"),
            ("'it''s'", "'it' 's'"),
            ("a /* */ b", "a /* b */"),
            ("é", "è"),
        ] {
            assert_ne!(normalised(one), normalised(other), "{one} {other}");
        }
    }

    proptest! {
        #[test]
        fn it_takes_any_text_and_a_second_time_changes_nothing(sql in "[ -~é\n]{0,60}") {
            let once = normalised(&sql);
            // A text that ends inside of quotes or a comment could be continued.
            prop_assert_eq!(normalised(&once), once);
        }

        #[test]
        fn quoted_text_stays_as_it_is(text in "[ -&(-~é\n]{0,40}") {
            prop_assert_eq!(normalised(&format!("a = '{text}' OR B")), format!("a = '{text}' or b"));
        }
    }
}
