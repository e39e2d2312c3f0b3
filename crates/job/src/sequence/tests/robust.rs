//! Nothing that stands in a file makes loading panic, run away, or say what is not so.

use proptest::prelude::*;

use super::valid::FULL;
use super::{loaded, shown};
use crate::Lint;
use crate::tests::robust::{PIECES, mutated, mutation};

/// Pieces that mean something to sequences.
const OF_SEQUENCES: &[&str] = &[
    "${steps.load.run}",
    "${SHOP}",
    "${SHOP.x}",
    "needs: ",
    "when: ",
    "for_each: ",
    "steps:",
    "job: ",
    "set: ",
    "[load]",
    "steps.rows.n",
    "{first: 2026-01-01, last: ",
    "${DATE | %",
    "parameters: ",
    "null",
    "sequence: shop.yaml",
];

/// The same kind of change as those of jobs, with these pieces.
fn change() -> impl Strategy<Value = (prop::sample::Index, usize, String)> {
    (any::<prop::sample::Index>(), 0..12_usize, prop::sample::select(OF_SEQUENCES).prop_map(str::to_owned))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_mutated_sequence_is_one_or_has_errors(
        mutations in prop::collection::vec(mutation(), 1..6),
        changes in prop::collection::vec(change(), 0..3),
    ) {
        let text = mutated(&mutated(FULL, &mutations), &changes);
        let loaded = loaded(&text);
        let has_errors = loaded.lints.iter().any(Lint::is_error);
        prop_assert_eq!(loaded.sequence.is_none(), has_errors, "{}\n{}", text, shown(&loaded.lints));
        for lint in loaded.lints.iter().filter(|lint| lint.path == loaded.text.path()) {
            let length = loaded.text.line(lint.line).chars().count();
            prop_assert!(lint.column <= length + 1, "{}", shown(&loaded.lints));
            prop_assert!(!lint.what.is_empty() && !lint.what.ends_with('.'), "{}", lint.what);
        }
    }

    #[test]
    fn any_mixture_of_pieces_is_read(pieces in prop::collection::vec(
        prop_oneof![prop::sample::select(PIECES), prop::sample::select(OF_SEQUENCES)], 0..40,
    )) {
        loaded(&pieces.concat());
        loaded(&format!("steps:\n  one: {{{}}}\n", pieces.concat()));
    }
}

#[test]
fn a_long_chain_of_steps_is_followed() {
    let mut yaml = "steps:\n  s0: {command: [a]}\n".to_owned();
    for level in 1..2_000 {
        let before = level - 1;
        yaml.push_str(&format!("  s{level}: {{command: ['${{steps.s{before}.output}}'], needs: s{before}}}\n"));
    }
    let loaded = loaded(&yaml);
    assert_eq!(shown(&loaded.lints), "");
    assert_eq!(loaded.sequence.expect("no lints").graph.layers().len(), 2_000);
}
