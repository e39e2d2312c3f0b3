//! Nothing that stands in a file makes loading panic, run away, or say what is not so.

use proptest::prelude::*;

use super::valid::FULL;
use super::{loaded, shown};

/// Pieces that mean something to YAML, to variables or to us.
pub(crate) const PIECES: &[&str] = &[
    "{", "}", "[", "]", ":", ": ", "- ", "\n", "\n  ", "\t", "\"", "'", "|", ">", "&a ", "*a", "!!str ", "!", "? ",
    "#", "%", "@", "`", "${", "${A", "${DAY}", "$${", "---\n", "...\n", "\r", "\r\n", "\u{feff}", "\u{0}", "\u{85}",
    "\u{2028}", "ä", "𝄞", "<<: *a", "0x", "1e999", "-", "https://", "sqlite:", "\\", "\\x", "null", "sql: ", "read: ",
    "sinks:\n", ",",
];

/// A change to a text: where, how many characters go, what comes.
pub(crate) fn mutation() -> impl Strategy<Value = (prop::sample::Index, usize, String)> {
    let piece = prop_oneof![
        4 => prop::sample::select(PIECES).prop_map(str::to_owned),
        1 => any::<String>(),
    ];
    (any::<prop::sample::Index>(), 0..12_usize, piece)
}

pub(crate) fn mutated(text: &str, mutations: &[(prop::sample::Index, usize, String)]) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    for (index, removed, piece) in mutations {
        let start = index.index(characters.len() + 1);
        let end = (start + removed).min(characters.len());
        characters.splice(start..end, piece.chars());
    }
    characters.into_iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_mutated_job_is_a_job_or_has_errors(mutations in prop::collection::vec(mutation(), 1..6)) {
        let text = mutated(FULL, &mutations);
        let loaded = loaded(&text);
        let has_errors = loaded.lints.iter().any(crate::Lint::is_error);
        prop_assert_eq!(loaded.job.is_none(), has_errors, "{}", shown(&loaded.lints));
        for lint in &loaded.lints {
            let length = loaded.text.line(lint.line).chars().count();
            prop_assert!(lint.column <= length + 1, "{}", shown(&loaded.lints));
            prop_assert!(!lint.what.is_empty() && !lint.what.ends_with('.'), "{}", lint.what);
        }
    }

    #[test]
    fn any_text_is_read(text in any::<String>()) {
        loaded(&text);
    }

    #[test]
    fn any_mixture_of_pieces_is_read(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..40)) {
        loaded(&pieces.concat());
    }
}

#[test]
fn aliases_cannot_fill_the_memory() {
    let mut yaml = "sources: {a: {read: x}}\nx0: &x0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n".to_owned();
    for level in 1..12 {
        let alias = format!("*x{}", level - 1);
        yaml.push_str(&format!("x{level}: &x{level} [{}]\n", vec![alias; 10].join(", ")));
    }
    let text = shown(&loaded(&yaml).lints);
    assert!(text.contains("the aliases of this file expand to too many values"), "{text}");
}

#[test]
fn deep_nesting_is_refused() {
    for yaml in ["[".repeat(10_000), "{a: ".repeat(10_000), "- ".repeat(10_000), "? ".repeat(10_000), deep_block(3_000)]
    {
        let loaded = loaded(&yaml);
        assert!(loaded.job.is_none() && !loaded.lints.is_empty());
    }
}

fn deep_block(levels: usize) -> String {
    (0..levels).map(|level| format!("{}a:\n", " ".repeat(level))).collect()
}

#[test]
fn a_long_chain_of_transforms_is_followed() {
    let mut yaml = "sources: {t0: {read: x}}\ntransforms:\n".to_owned();
    for level in 1..3_000 {
        yaml.push_str(&format!("  t{level}: {{sort: {{from: t{}, by: x}}}}\n", level - 1));
    }
    yaml.push_str("sinks: {out: {from: t2999, write: o}}\n");
    let loaded = loaded(&yaml);
    assert_eq!(shown(&loaded.lints), "");
}
