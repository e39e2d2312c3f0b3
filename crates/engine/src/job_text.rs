//! Parts of job files as text: YAML that every reader takes for what it is.

use std::fmt::Write;

use serde_json::Value;

/// A job file with the blocks of `job`, such as `sources` and `sinks`.
pub fn job_file(job: &serde_json::Map<String, Value>) -> String {
    let mut text = String::new();
    for (key, value) in job {
        if !text.is_empty() {
            text.push('\n');
        }
        block(&mut text, key, value, 0);
    }
    text
}

/// The format block of a guess as lines of YAML, indented by four spaces: it stands below the `read:` of a source.
pub fn block_of(guess: &millstream_format::Guess) -> String {
    let mut text = String::new();
    block(&mut text, guess.format, &guess.settings, 4);
    text
}

/// `key: value` at `indent` spaces; objects become blocks.
fn block(text: &mut String, key: &str, value: &Value, indent: usize) {
    let spaces = " ".repeat(indent);
    match value {
        Value::Object(entries) if !entries.is_empty() && key.len() <= LONGEST_KEY / 8 => {
            let _ = writeln!(text, "{spaces}{}:", key_text(key));
            for (key, value) in entries {
                block(text, key, value, indent + 2);
            }
        }
        other => {
            let _ = writeln!(text, "{spaces}{}{}", key_before(key, &spaces), scalar(other));
        }
    }
}

/// A key longer than this does not stand before a colon, by the rules of YAML (1.2, 7.4.2).
const LONGEST_KEY: usize = 1000;

/// A key and what separates it from its value; `spaces` are those before it.
fn key_before(key: &str, spaces: &str) -> String {
    let text = key_text(key);
    if text.chars().count() <= LONGEST_KEY { format!("{text}: ") } else { format!("? {text}\n{spaces}: ") }
}

/// A key, quoted unless it is a plain word that YAML cannot take for something else.
fn key_text(key: &str) -> String {
    let plain = key.chars().next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && key.chars().all(|one| one.is_ascii_alphanumeric() || one == '_')
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&key.to_ascii_lowercase().as_str());
    if plain { key.to_owned() } else { quoted(key) }
}

/// A value in flow style: JSON is YAML, except that a `$` would begin a variable.
pub fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => {
            let word = key_text(text);
            if word == *text { word } else { quoted(&text.replace("${", "$${")) }
        }
        Value::Array(values) => format!("[{}]", values.iter().map(scalar).collect::<Vec<_>>().join(", ")),
        Value::Object(entries) => {
            let entries: Vec<String> =
                entries.iter().map(|(key, value)| format!("{}: {}", key_text(key), scalar(value))).collect();
            format!("{{{}}}", entries.join(", "))
        }
        other => other.to_string(),
    }
}

/// In double quotes, where only what YAML can show stands for itself (1.2, 5.1). Variables are filled into values, not
/// into keys: there a `$` is one.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for sign in text.chars() {
        match sign {
            '"' | '\\' => quoted.extend(['\\', sign]),
            sign => push_shown(sign, &mut quoted),
        }
    }
    quoted.push('"');
    quoted
}

/// Text of a file as one line of a comment.
pub fn in_comment(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    text.chars().for_each(|sign| push_shown(sign, &mut shown));
    shown
}

/// `sign`, escaped if a reader of YAML would not take it, end a line at it, or leave it out.
fn push_shown(sign: char, shown: &mut String) {
    let _ = match sign {
        '\n' => write!(shown, "\\n"),
        '\r' => write!(shown, "\\r"),
        '\t' => write!(shown, "\\t"),
        '\u{2028}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}'
        | '\u{200e}'
        | '\u{200f}'
        | '\u{feff}'
        | '\u{fffe}'
        | '\u{ffff}' => {
            write!(shown, "\\u{:04x}", u32::from(sign))
        }
        control if control.is_control() => write!(shown, "\\u{:04x}", u32::from(control)),
        other if u32::from(other) & 0xfffe == 0xfffe => write!(shown, "\\U{:08x}", u32::from(other)),
        other => write!(shown, "{other}"),
    };
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_yaml_could_take_for_something_else_is_quoted() {
        assert_eq!(scalar(&json!(["a", "no", "1", "x y", 1, true, null])), r#"[a, "no", "1", "x y", 1, true, null]"#);
        assert_eq!(scalar(&json!("${HOME}")), r#""$${HOME}""#);
        let mut text = String::new();
        block(&mut text, "csv", &json!({"delimiter": "\t", "columns": {"a b": "int64", "${c}": "utf8"}}), 0);
        assert_eq!(text, "csv:\n  delimiter: \"\\t\"\n  columns:\n    \"a b\": int64\n    \"${c}\": utf8\n");
    }
}
