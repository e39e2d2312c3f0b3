//! What must not be shown: passwords and signatures inside URLs, and the values of secrets.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;

use crate::Error;

/// Query parameters that grant access by themselves (signed URLs of the large object stores, plain tokens).
const SECRET_PARAMETERS: &[&str] = &[
    "x-amz-signature",
    "x-amz-credential",
    "x-amz-security-token",
    "x-goog-signature",
    "x-goog-credential",
    "sig",
    "signature",
    "token",
    "access_token",
    "api_key",
    "apikey",
    "key",
    "password",
    "secret",
];

/// `url` with the password of its user part and the values of signing parameters replaced by `***`. What is not a URL
/// (a path) comes back as it is.
pub fn url(url: &str) -> String {
    let mut shown = String::with_capacity(url.len());
    let mut from = 0;
    for place in secret_places(url) {
        shown.push_str(&url[from..place.start]);
        shown.push_str(SHOWN);
        from = place.end;
    }
    shown.push_str(&url[from..]);
    shown
}

/// `text` with that done to each URL in it. Of several, each ends where white space follows.
pub fn urls(text: &str) -> String {
    if text.matches("://").count() < 2 {
        return url(text);
    }
    text.split_inclusive(char::is_whitespace).map(url).collect()
}

/// `text` without the values `secrets`; of several at one place, without the longest.
pub fn values<'a>(text: &str, secrets: impl IntoIterator<Item = &'a str>) -> String {
    let secrets: Vec<&str> = secrets.into_iter().filter(|secret| !secret.is_empty()).collect();
    let (mut shown, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(first) = rest.chars().next() {
        let found = secrets.iter().filter(|secret| rest.starts_with(**secret)).max_by_key(|secret| secret.len());
        let length = found.map_or(first.len_utf8(), |secret| secret.len());
        shown.push_str(if found.is_some() { SHOWN } else { &rest[..length] });
        rest = &rest[length..];
    }
    shown
}

/// `variables`, one a line as `NAME=VALUE`, without the values of those whose names suggest secrets. A line that is
/// none belongs to the value before it.
pub fn variables(variables: &str) -> String {
    let (mut shown, mut hides) = (Vec::new(), false);
    for line in variables.split('\n') {
        match line.split_once('=').filter(|(name, _)| is_name(name)) {
            Some((name, _)) if is_secret(name) => {
                shown.push(format!("{name}={SHOWN}"));
                hides = true;
            }
            Some(_) => {
                shown.push(line.to_owned());
                hides = false;
            }
            None if hides => {}
            None => shown.push(line.to_owned()),
        }
    }
    shown.join("\n")
}

/// Whether it may be the name of a variable.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|character| character.is_alphanumeric() || "_.-".contains(character))
}

/// Whether the name of a variable suggests that its value is secret.
pub fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["pass", "secret", "token", "key", "credential"].iter().any(|part| name.contains(part))
}

/// What stands in place of a secret.
pub const SHOWN: &str = "***";

/// What stands where the rest of a text was left out.
const CUT: char = '…';

/// Lines of a secret that are shorter are not secret by themselves, in bytes: a file of JSON has lines like `{`.
const SHORTEST_LINE: usize = 8;

/// The values of the secrets of a job.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(Arc<[String]>);

impl Secrets {
    /// Those with these values, also as they stand in a literal of JSON or Python. Of one with several lines, each line
    /// is secret that is not short.
    pub fn new(values: impl IntoIterator<Item = String>) -> Self {
        let mut all = BTreeSet::new();
        for value in values {
            let value = value.trim();
            let lines = value.lines().map(str::trim).filter(|line| line.len() >= SHORTEST_LINE || *line == value);
            for text in lines.chain([value]).filter(|text| !text.is_empty()) {
                let json = Value::from(text).to_string();
                let python = text.replace('\\', "\\\\");
                all.extend([text.to_owned(), json[1..json.len() - 1].to_owned(), python.replace('\'', "\\'"), python]);
            }
        }
        Secrets(all.into_iter().collect())
    }

    /// `text` without them. Where it is cut, what may be the beginning or end of one is left out as well.
    pub fn hidden<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let secrets = || self.0.iter().map(String::as_str);
        if self.0.is_empty() || !(text.contains(CUT) || secrets().any(|secret| text.contains(secret))) {
            return Cow::Borrowed(text);
        }
        let is_beginning = |part: &str| secrets().any(|secret| secret.starts_with(part));
        let is_end = |part: &str| secrets().any(|secret| secret.ends_with(part));
        let last = text.matches(CUT).count();
        let parts = text.split(CUT).enumerate().map(|(number, part)| {
            let ends = || part.char_indices().map(|(start, _)| start).chain([part.len()]);
            let whole = number == 0;
            let from = ends().rev().find(|end| !whole && *end > 0 && is_end(&part[..*end])).unwrap_or(0);
            let rest = &part[from..];
            let starts = || rest.char_indices().map(|(start, _)| start);
            let to = starts().find(|start| number < last && is_beginning(&rest[*start..])).unwrap_or(rest.len());
            let (before, behind) = (if from > 0 { SHOWN } else { "" }, if to < rest.len() { SHOWN } else { "" });
            format!("{before}{}{behind}", values(&rest[..to], secrets()))
        });
        Cow::Owned(parts.collect::<Vec<_>>().join(&CUT.to_string()))
    }

    /// `error` without them.
    pub fn hidden_in(&self, error: Error) -> Error {
        error.without(self)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

/// Where in `url` the password of its user part and the values of signing parameters stand, in order; in bytes.
pub fn secret_places(url: &str) -> Vec<Range<usize>> {
    let mut places = Vec::new();
    let Some(start) = url.find("://").map(|at| at + 3) else { return places };
    let user_end = user_end(&url[start..]).map(|end| start + end);
    if let Some(end) = user_end {
        places.extend(url[start..end].find(':').map(|colon| start + colon + 1..end));
    }
    let path = user_end.unwrap_or(start);
    let Some(query) = url[path..].find('?') else { return places };
    let mut at = path + query + 1;
    for parameter in url[at..].split('&') {
        if let Some((name, _)) = parameter.split_once('=')
            && SECRET_PARAMETERS.contains(&name.to_ascii_lowercase().as_str())
        {
            places.push(at + name.len() + 1..at + parameter.len());
        }
        at += parameter.len() + 1;
    }
    places
}

/// Where the user part of `rest` (a URL behind its `://`) ends: at an `@`.
fn user_end(rest: &str) -> Option<usize> {
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    if let Some(at) = authority.rfind('@') {
        return Some(at);
    }
    // A password with one of these signs in it, which should have been escaped: the URL is no good, and the message
    // that says so must not show it. What stands behind the colon of a host is a number.
    let (_, port) = authority.split_once(':')?;
    let is_host = authority.starts_with('[') || port.bytes().all(|byte| byte.is_ascii_digit());
    if is_host { None } else { rest.rfind('@') }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_urls_of_a_text_are_hidden() {
        let text = "proxy http://p:8080 refused “postgres://ada:hunter2@db/x” and s3://b/k?sig=abc&x=1, http://a:b@c";
        let shown = "proxy http://p:8080 refused “postgres://ada:***@db/x” and s3://b/k?sig=***&x=1, http://a:***@c";
        assert_eq!(urls(text), shown);
        assert_eq!((urls("no URL: a@b"), urls("")), ("no URL: a@b".to_owned(), String::new()));
    }

    #[test]
    fn lines_of_secret_variables_are_hidden_with_their_names() {
        let text = "A=1\nmore\nDB_PASSWORD=one\ntwo three\n\nB=2";
        assert_eq!(variables(text), "A=1\nmore\nDB_PASSWORD=***\nB=2");
        assert_eq!(variables(""), "");
    }

    #[test]
    fn passwords_and_signatures_are_left_out() {
        for (given, shown) in [
            ("https://me:secret@host/a?b=1", "https://me:***@host/a?b=1"),
            ("https://me:sec@ret@host/a", "https://me:***@host/a"),
            ("https://me@host/a:b@c", "https://me@host/a:b@c"),
            ("https://host/a?X-Amz-Signature=abc&b=1", "https://host/a?X-Amz-Signature=***&b=1"),
            ("https://me:x@host/a?b=1&token=abc", "https://me:***@host/a?b=1&token=***"),
            ("https://host/a@b", "https://host/a@b"),
            ("https://host:8080/a@b?c@d", "https://host:8080/a@b?c@d"),
            ("https://[::1]:8080/a@b", "https://[::1]:8080/a@b"),
            ("data/a@b:c.csv", "data/a@b:c.csv"),
        ] {
            assert_eq!(url(given), shown);
        }
    }

    #[test]
    fn passwords_in_variables_are_left_out() {
        assert_eq!(variables("DAY=1\nDB_PASSWORD=a=b\nApiToken=x"), "DAY=1\nDB_PASSWORD=***\nApiToken=***");
    }

    #[test]
    fn secrets_are_left_out_of_what_programs_write() {
        let secrets = Secrets::new(
            ["token-1", "token-1234", "{\n  the first line\n  the second\n}\n", "", "it's \\", "*"].map(str::to_owned),
        );
        for (text, shown) in [
            ("token-1234 and token-1", "*** and ***"),
            ("the first line, {} and the second", "***, {} and ***"),
            (r#"{"a": "it's \\"} or 'it\'s \\'"#, r#"{"a": "***"} or '***'"#),
            ("2 * 2", "2 *** 2"),
            ("…en-1234 and …1234, …x", "…*** and …***, …x"),
            ("a token-12… for `v`", "a ***… for `v`"),
            ("token", "token"),
            ("it is token-12…", "it is ***…"),
            ("token-1 token-1234…", "*** ***…"),
            ("it is to…", "it is ***…"),
            ("nothing…", "nothing…"),
        ] {
            assert_eq!(secrets.hidden(text), shown);
        }
    }

    #[test]
    fn a_password_that_should_have_been_escaped_is_left_out_too() {
        for password in ["se/cret", "se?cret", "se#cret", "s/?#"] {
            assert_eq!(url(&format!("ftp://me:{password}@host/a")), "ftp://me:***@host/a");
        }
    }
}
