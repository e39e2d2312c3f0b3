//! What can be said of a pattern or URL without looking at the world: braces, brackets, the URL's own syntax.
//!
//! What a pattern stands for is the sources' business.

use url::Url;

/// What is wrong with a pattern and what to do, if anything is.
pub fn check(pattern: &str) -> Result<(), (String, String)> {
    if pattern.trim().is_empty() {
        return Err(("the pattern is empty".to_owned(), "write a path, a glob, a URL, `@FILE` or `-`".to_owned()));
    }
    if pattern == "@" {
        return Err(("`@` names no list".to_owned(), "write `@FILE`, a file with one pattern a line".to_owned()));
    }
    if pattern.starts_with('@') {
        return Ok(());
    }
    brackets(pattern, '{', '}')?;
    if pattern.contains("://") { url(pattern) } else { brackets(pattern, '[', ']') }
}

/// Every bracket is closed, and none is closed that was not opened.
fn brackets(pattern: &str, open: char, close: char) -> Result<(), (String, String)> {
    let mut depth = 0_usize;
    for character in pattern.chars() {
        if character == open {
            depth += 1;
        } else if character == close {
            match depth.checked_sub(1) {
                Some(less) => depth = less,
                None if open == '{' => {
                    return Err((
                        format!("a `{close}` in the pattern closes nothing"),
                        "write {a,b} for choices, {000..999} for numbers".to_owned(),
                    ));
                }
                None => {}
            }
        }
    }
    match depth {
        0 => Ok(()),
        _ => Err((
            format!("a `{open}` in the pattern is not closed"),
            match open {
                '{' => "write {a,b} for choices, {000..999} for numbers".to_owned(),
                _ => "write [abc] for one of several characters".to_owned(),
            },
        )),
    }
}

/// The URL's syntax, with the first choice of each pair of braces in its place.
fn url(pattern: &str) -> Result<(), (String, String)> {
    let mut plain = String::new();
    let mut depth = 0_usize;
    let mut skipping = false;
    for character in pattern.chars() {
        match character {
            '{' => {
                depth += 1;
                skipping = false;
            }
            '}' => {
                depth = depth.saturating_sub(1);
                skipping = false;
            }
            ',' | '.' if depth > 0 => skipping = true,
            other if !skipping => plain.push(other),
            _ => {}
        }
    }
    let names_host = |url: &Url| {
        // The parser passes over a third slash.
        url.has_host() && !plain.split_once("://").is_some_and(|(_, rest)| rest.starts_with('/'))
    };
    match Url::parse(&plain) {
        Ok(url) if names_host(&url) || url.scheme() == "file" => Ok(()),
        Ok(_) => Err(("the URL names no host".to_owned(), "write https://HOST/PATH".to_owned())),
        Err(cause) => Err((format!("this is no valid URL: {cause}"), "write https://HOST/PATH".to_owned())),
    }
}
