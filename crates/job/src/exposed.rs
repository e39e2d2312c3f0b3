//! Takes out of lints what must not be shown: secrets that stand in the file although they should not, and passwords
//! in URLs. Characters are replaced one by one, so that columns stay right.

use crate::lint::Lint;
use crate::text::Span;

/// Hides `spans` in the source lines of `lints`.
pub fn hide(lints: &mut [Lint], spans: &[Span]) {
    for lint in lints {
        for span in spans.iter().filter(|span| span.line == lint.line) {
            let range = span.column..span.column + span.length;
            if range.contains(&lint.column) {
                lint.text.clear();
            }
            lint.source_line = starred(&lint.source_line, |column| range.contains(&column));
        }
    }
}

/// Hides passwords and signatures of URLs wherever they stand in `lints`.
pub fn hide_passwords(lints: &mut [Lint]) {
    for lint in lints {
        lint.source_line = without_passwords(&lint.source_line);
        lint.text = without_passwords(&lint.text);
        lint.what = without_passwords(&lint.what);
    }
}

fn starred(line: &str, hidden: impl Fn(usize) -> bool) -> String {
    line.chars().enumerate().map(|(index, character)| if hidden(index + 1) { '*' } else { character }).collect()
}

fn without_passwords(text: &str) -> String {
    let mut shown = String::new();
    let is_end = |character: char| character.is_whitespace() || matches!(character, '"' | '\'' | '`');
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(is_end).unwrap_or(rest.len());
        shown.push_str(&word_without_passwords(&rest[..end]));
        let gap = rest[end..].chars().next().map_or(0, char::len_utf8);
        shown.push_str(&rest[end..end + gap]);
        rest = &rest[end + gap..];
    }
    shown
}

/// `word` with as many stars as the password of its URL has characters, and the same for signatures.
fn word_without_passwords(word: &str) -> String {
    let mut shown = String::new();
    let mut from = 0;
    for place in millstream_core::redact::secret_places(word) {
        shown.push_str(&word[from..place.start]);
        shown.extend(word[place.clone()].chars().map(|_| '*'));
        from = place.end;
    }
    shown + &word[from..]
}
