//! Sort keys as they are written: `EXPRESSION [asc|desc] [nulls first|last]`.

use super::text::{SortTerm, Text};
use crate::spec::Fault;

/// What to sort by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SortKey {
    /// A column or SQL expression, without `asc`, `desc` and `nulls …`.
    pub expression: Text,
    /// Whether the largest comes first.
    pub descending: bool,
    /// Whether nulls come first. If the job does not say, nulls count as the largest value.
    pub nulls_first: bool,
}

/// Words that are meant as the direction of a sort key, where they follow a column and are left when that has been
/// read.
const LIKE_A_DIRECTION: &[&str] = &[
    "asc",
    "ascending",
    "desc",
    "descending",
    "dsc",
    "down",
    "first",
    "increasing",
    "decreasing",
    "last",
    "nulls",
    "up",
];

/// What a sort key is.
const FORM: &str = "write a column, then `asc` or `desc`, then `nulls first` or `nulls last`";

impl SortTerm {
    /// The sort key that it says, or why it says none.
    ///
    /// # Errors
    /// The fault, without a path: it is that of the text.
    pub fn key(&self) -> Result<SortKey, Fault> {
        let text = &self.0;
        let mut rest = text.as_str().trim_end();
        let nulls = take_words(&mut rest, "nulls", &["first", "last"]);
        let direction = take_word(&mut rest, &["asc", "desc"]);
        if rest.trim().is_empty() {
            let what = format!("`{}` names no column to sort by", text.as_str().trim());
            return Err(Fault::new("", what).hint(FORM));
        }
        let mut parts = rest.split_whitespace();
        let is_column =
            parts.next().is_some_and(|first| first.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'));
        let next = parts.next().filter(|_| is_column);
        if let Some(word) = next.filter(|word| LIKE_A_DIRECTION.contains(&word.to_lowercase().as_str())) {
            let what = format!("`{word}` is where the direction of a sort key belongs");
            return Err(Fault::new("", what).hint(FORM));
        }
        if has_bare_comma(rest) {
            let hint = "make it a list: [first_key desc, second_key]";
            return Err(Fault::new("", "several sort keys are in one text").hint(hint));
        }
        let descending = direction == Some("desc");
        let expression = rest.trim_start();
        Ok(SortKey {
            expression: text.part(rest.len() - expression.len(), expression.len()),
            descending,
            nulls_first: nulls.map_or(descending, |nulls| nulls == "first"),
        })
    }

    /// The sort keys that `terms` say, or all faults. The faults have no path; in a job file the terms have been
    /// checked before.
    ///
    /// # Errors
    /// As [`SortTerm::key`].
    pub fn keys(terms: &[SortTerm]) -> Result<Vec<SortKey>, Vec<Fault>> {
        let mut faults = Vec::new();
        let keys = terms.iter().filter_map(|term| term.key().map_err(|fault| faults.push(fault)).ok()).collect();
        if faults.is_empty() { Ok(keys) } else { Err(faults) }
    }
}

/// Takes one of `words` off the end of `rest`.
fn take_word(rest: &mut &str, words: &[&'static str]) -> Option<&'static str> {
    let last = rest.rsplit(char::is_whitespace).next()?;
    let word = words.iter().find(|word| word.eq_ignore_ascii_case(last))?;
    *rest = rest[..rest.len() - last.len()].trim_end();
    Some(word)
}

fn take_words(rest: &mut &str, first: &'static str, words: &[&'static str]) -> Option<&'static str> {
    let mut shorter = *rest;
    let word = take_word(&mut shorter, words)?;
    take_word(&mut shorter, &[first])?;
    *rest = shorter;
    Some(word)
}

/// Whether a comma stands outside of parentheses and quotes.
fn has_bare_comma(text: &str) -> bool {
    let (mut depth, mut quote) = (0_usize, None);
    for character in text.chars() {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(character),
            (None, '(' | '[') => depth += 1,
            (None, ')' | ']') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => return true,
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_an_expression_and_its_direction() {
        for (term, expression, skipped, descending, nulls_first) in [
            ("id", "id", 0, false, false),
            ("id desc", "id", 0, true, true),
            ("  lower(a, b) ASC NULLS FIRST ", "lower(a, b)", 2, false, true),
            ("x Desc nulls last", "x", 0, true, false),
            ("\"last desc\"", "\"last desc\"", 0, false, false),
        ] {
            let key = SortTerm::from(term).key().expect(term);
            assert_eq!((key.expression.as_str(), key.expression.skipped()), (expression, skipped), "{term}");
            assert_eq!((key.descending, key.nulls_first), (descending, nulls_first), "{term}");
        }
    }

    #[test]
    fn faults_of_several_terms_come_at_once() {
        let faults = SortTerm::keys(&["desc".into(), "id".into(), "a, b".into()]).expect_err("two are none");
        let whats: Vec<&str> = faults.iter().map(|fault| fault.what.as_str()).collect();
        assert_eq!(whats, ["`desc` names no column to sort by", "several sort keys are in one text"]);
    }
}
