//! What must not be shown: passwords and signatures inside URLs, and the values of secrets.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

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

/// `text` without the values `secrets`.
pub fn values<'a>(text: &str, secrets: impl IntoIterator<Item = &'a str>) -> String {
    let secrets = secrets.into_iter().filter(|secret| !secret.is_empty());
    secrets.fold(text.to_owned(), |text, secret| text.replace(secret, SHOWN))
}

/// What stands in place of a secret.
const SHOWN: &str = "***";

/// What text ends with of which the rest was left out.
const CUT: char = '…';

/// The values of the secrets of a job.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(Arc<[String]>);

impl Secrets {
    /// Those with these values. Of one with several lines, each line is secret.
    pub fn new(values: impl IntoIterator<Item = String>) -> Self {
        let lines = |value: String| value.lines().map(str::trim).map(str::to_owned).collect::<Vec<_>>();
        let mut values: Vec<String> = values.into_iter().flat_map(lines).filter(|value| !value.is_empty()).collect();
        // One may be a part of another.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        values.dedup();
        Secrets(values.into())
    }

    /// `text` without them. Where it is cut, what may be the beginning of one is left out as well.
    pub fn hidden<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let is_beginning = |rest: &str| self.0.iter().any(|secret| secret.starts_with(rest));
        let cut = text.strip_suffix(CUT).and_then(|text| {
            let start = text.char_indices().map(|(start, _)| start).find(|start| is_beginning(&text[*start..]))?;
            Some(&text[..start])
        });
        let secrets = || self.0.iter().map(String::as_str);
        match cut {
            Some(whole) => Cow::Owned(format!("{}{SHOWN}{CUT}", values(whole, secrets()))),
            None if secrets().any(|secret| text.contains(secret)) => Cow::Owned(values(text, secrets())),
            None => Cow::Borrowed(text),
        }
    }
}

impl Secrets {
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
    fn secrets_are_left_out_of_what_programs_write() {
        let secrets = Secrets::new(["token-1", "token-1234", "a key\nof two lines\n", ""].map(str::to_owned));
        for (text, shown) in [
            ("token-1234 and token-1", "*** and ***"),
            ("first a key, then of two lines", "first ***, then ***"),
            ("token", "token"),
            ("it is token-12…", "it is ***…"),
            ("token-1 token-1234…", "*** ***…"),
            ("it is to…", "it is ***…"),
            ("nothing…", "nothing…"),
        ] {
            assert_eq!(secrets.hidden(text), shown);
        }
        assert_eq!(format!("{secrets:?}"), "4 secrets");
    }

    #[test]
    fn a_password_that_should_have_been_escaped_is_left_out_too() {
        for password in ["se/cret", "se?cret", "se#cret", "s/?#"] {
            assert_eq!(url(&format!("ftp://me:{password}@host/a")), "ftp://me:***@host/a");
        }
    }
}
