//! "Did you mean": the nearest of the valid choices.

/// The choice nearest to `word`, if it is near enough to be a slip of the pen.
pub fn nearest<'a>(word: &str, choices: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    choices
        .into_iter()
        .map(|choice| (similarity(&lower, &choice.to_lowercase()), choice))
        .filter(|(similarity, _)| *similarity >= 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, choice)| choice)
}

/// How near two words are, from 0 to 1. One slip is near in a short word too (`cvs` for `csv`).
fn similarity(word: &str, choice: &str) -> f64 {
    let similar = strsim::jaro_winkler(word, choice);
    if word.len() >= 3 && strsim::osa_distance(word, choice) == 1 { similar.max(0.9) } else { similar }
}

/// What other tools call a choice of ours.
const SYNONYMS: &[(&[&str], &str)] = &[
    (&["upsert", "update", "insert_or_update", "insert_update"], "merge"),
    (&["insert", "add"], "append"),
    (&["overwrite", "recreate", "drop", "full_refresh", "full-refresh"], "replace"),
    (&["overwrite_partitions", "dynamic"], "partitions"),
    (&["fail"], "error"),
    (&["skip", "insert_ignore", "insert-ignore", "do_nothing"], "ignore"),
    (&["delete", "truncate_insert", "truncate-insert"], "truncate"),
];

/// The one of `choices` that other tools call `word`.
fn synonym<'a>(word: &str, choices: &[&'a str]) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let (_, ours) = SYNONYMS.iter().find(|(words, _)| words.contains(&lower.as_str()))?;
    choices.iter().copied().find(|choice| choice == ours)
}

/// A hint for a `word` that is none of `choices`: the nearest one, then all of them (`what` names them in the plural).
pub fn did_you_mean(word: &str, what: &str, choices: &[&str]) -> String {
    let all =
        if choices.is_empty() { format!("there are no {what}") } else { format!("{what}: {}", choices.join(", ")) };
    match synonym(word, choices).or_else(|| nearest(word, choices.iter().copied())) {
        Some(choice) => format!("did you mean `{choice}`? {all}"),
        None => all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_choice_and_nonsense_does_not() {
        let choices = ["delimiter", "header", "quote"];
        assert_eq!(nearest("delimeter", choices), Some("delimiter"));
        assert_eq!(nearest("Header", choices), Some("header"));
        assert_eq!(nearest("banana", choices), None);
        assert_eq!(nearest("cvs", ["lines", "csv", "json"]), Some("csv"));
        assert_eq!(nearest("xz", ["id"]), None);
        assert_eq!(
            did_you_mean("qoute", "valid keys", &choices),
            "did you mean `quote`? valid keys: delimiter, header, quote"
        );
        let modes = ["append", "replace", "merge"];
        for (word, choice) in [("upsert", "merge"), ("Insert", "append"), ("overwrite", "replace")] {
            let hint = did_you_mean(word, "choices", &modes);
            assert_eq!(hint, format!("did you mean `{choice}`? choices: append, replace, merge"));
        }
        assert_eq!(did_you_mean("upsert", "choices", &["gzip"]), "choices: gzip");
    }
}
