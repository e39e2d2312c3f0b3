//! Texts of files without their secrets, for those who may not edit them.
//!
//! It goes by lines, so that a file with mistakes is shown, too, and every line stays where it is. What a key has whose
//! name suggests a secret is left out to the end of the line and in all lines that are indented further, or in a flow
//! block up to its end. Of URLs, passwords and signing parameters are left out. References (`${NAME}`) stay, unless
//! they have a default.

use std::borrow::Cow;
use std::sync::LazyLock;

use millstream::text::{HIDDEN, is_secret, redacted};
use regex::{Captures, Regex};

/// Parts of the names of keys with secrets, beside those that hold for variables.
const PARTS: [&str; 7] = ["auth", "cookie", "pwd", "dsn", "sas", "signature", "private"];

fn is_secret_key(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    is_secret(&key) || PARTS.iter().any(|part| key.contains(part))
}

/// Whether a value only refers to something: `${NAME}`, or a secret by its name.
fn is_reference(value: &str) -> bool {
    static REFERENCE: LazyLock<Regex> = LazyLock::new(|| {
        let pattern =
            r#"^["']?(\$\{[A-Za-z_][A-Za-z0-9_.]*\}|\{\s*secret:\s*["']?(env|file):[^\s"'{},]+["']?\s*\})["']?$"#;
        Regex::new(pattern).expect("a pattern")
    });
    REFERENCE.is_match(value.trim())
}

/// `text` without secrets, and whether it had any.
pub fn without_secrets(text: &str) -> (String, bool) {
    // How far the key is indented whose value goes on.
    let mut hides: Option<usize> = None;
    let shown = text.split('\n').map(|line| {
        let indent = line.len() - line.trim_start().len();
        if let Some(key) = hides {
            if line.trim().is_empty() || indent > key {
                return if line.trim().is_empty() { line.to_owned() } else { format!("{}{HIDDEN}", &line[..indent]) };
            }
            hides = None;
        }
        let (shown, goes_on) = line_without_secrets(line);
        if goes_on {
            hides = Some(indent);
        }
        shown
    });
    let shown = shown.collect::<Vec<_>>().join("\n");
    let has_changed = shown != text;
    (shown, has_changed)
}

/// A line without secrets, and whether the value of its key, which is secret, may go on in the next ones.
fn line_without_secrets(line: &str) -> (String, bool) {
    static BLOCK: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"^(\s*(?:-\s+)*["']?([A-Za-z_][A-Za-z0-9_.-]*)["']?\s*:)(\s.*)?$"#).expect("a pattern")
    });
    if let Some(found) = BLOCK.captures(line)
        && is_secret_key(&found[2])
    {
        let value = found.get(3).map_or("", |value| value.as_str());
        return match value.trim() {
            "" => (line.to_owned(), true),
            value if is_reference(value) => (line.to_owned(), false),
            _ => (format!("{} {HIDDEN}", &found[1]), true),
        };
    }
    (urls(&flow(line)).into_owned(), false)
}

/// A line without the secrets in its flow blocks.
fn flow(line: &str) -> Cow<'_, str> {
    static FLOW: LazyLock<Regex> = LazyLock::new(|| {
        let value = r#""(?:\\.|[^"\\])*"|'(?:''|[^'])*'|\$\{[^}]*\}|\{[^}]*\}|[^,}\]]+"#;
        let pattern = format!(r#"([{{,\[]\s*["']?([A-Za-z_][A-Za-z0-9_.-]*)["']?\s*[:=]\s*)({value})"#);
        Regex::new(&pattern).expect("a pattern")
    });
    FLOW.replace_all(line, |found: &Captures<'_>| match is_secret_key(&found[2]) && !is_reference(&found[3]) {
        true => format!("{}{HIDDEN}", &found[1]),
        false => found[0].to_owned(),
    })
}

/// A line without the secrets in its URLs.
fn urls(line: &str) -> Cow<'_, str> {
    static URL: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r#"[A-Za-z][A-Za-z0-9+.-]*://[^\s"']+"#).expect("a pattern"));
    static REFERS: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"^[^:]*://[^:@/]*:\$\{[A-Za-z_][A-Za-z0-9_]*\}@[^@]*$").expect("a pattern"));
    URL.replace_all(line, |found: &Captures<'_>| match REFERS.is_match(&found[0]) {
        true => found[0].to_owned(),
        false => redacted(&found[0]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_secret_is_left() {
        for text in [
            "write: postgres://etl:SECRET@db/x",
            "write: 'postgres://etl:S@SECRET@db/x'",
            "- {write: \"postgres://etl:SECRET@db/x\", table: t}",
            "password: SECRET",
            "password: 'a SECRET'",
            "password: two SECRET",
            "\"password\": \"ab\\\"SECRET\"",
            "headers: {authorization: Bearer SECRET, page: 1}",
            "authorization: Bearer SECRET",
            "headers: {api_key: \"ab\\\"SECRET\", page: 1}",
            "headers: {api_key: 'it''s SECRET', page: 1}",
            "api_key: >-\n  SECRET\n\n  SECRET\nnext: 1",
            "api_key:\n  SECRET",
            "- api_key: |\n    SECRET\n  next: 1",
            "token: ${NOPE:-SECRET}",
            "headers: {token: ${NOPE:-SECRET}}",
            "read: https://host/a?X-Amz-Signature=SECRET&b=1",
            "cookie: a=SECRET",
            "broken: {password: SECRET",
            "\tpassword: SECRET",
        ] {
            let (shown, has) = without_secrets(text);
            assert!(has && !shown.contains("SECRET"), "{text:?}: {shown:?}");
            assert_eq!(shown.lines().count(), text.lines().count(), "lines stay where they are: {shown:?}");
        }
    }

    #[test]
    fn what_is_no_secret_stays() {
        for text in [
            "sources:\n  s: {read: a.csv, csv: {columns: {n: int64}}}\n",
            "token: ${TOKEN}\nread: https://u:${PASS}@host/a\npassword: {secret: env:DB}\n# a comment: stays\n",
            "headers: {token: ${TOKEN}, page: 1}",
            "read: 'https://host:8080/a/b@c'",
            "",
        ] {
            assert_eq!(without_secrets(text), (text.to_owned(), false));
        }
        let (shown, _) = without_secrets("a: 1\npassword: x\n\n  y\nb: 2");
        assert_eq!(shown, "a: 1\npassword: ***\n\n  ***\nb: 2");
    }
}
