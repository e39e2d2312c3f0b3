//! Every kind of lint as a stranger sees it, places inside of scalars, variables, the schema against an independent
//! validator, and that nothing panics.

pub(crate) mod components;
mod faults;
mod left_out;
mod places;
pub(crate) mod robust;
mod valid;

use std::collections::BTreeMap;
use std::fmt::Write;

use components::REGISTRY;
use millstream_core::Registry;

use crate::{Lint, LoadOptions, Loaded, SqlFault, load};

/// 2026-01-31T23:30:00Z.
pub(crate) const NOW: i64 = 1_769_902_200_000;

/// Loads a job with `DAY=monday`, `COUNT=3` and `PASSWORD=hunter2` in its environment.
fn loaded(yaml: &str) -> Loaded {
    loaded_with(yaml, &BTreeMap::new(), true)
}

/// Loads a job of a build with these components.
fn loaded_by(registry: &Registry, yaml: &str) -> Loaded {
    loaded_in(registry, yaml, &BTreeMap::new(), true)
}

fn loaded_with(yaml: &str, set: &BTreeMap<String, String>, running: bool) -> Loaded {
    loaded_in(&REGISTRY, yaml, set, running)
}

fn loaded_in(registry: &Registry, yaml: &str, set: &BTreeMap<String, String>, running: bool) -> Loaded {
    let environment = |name: &str| match name {
        "DAY" => Some("monday".to_owned()),
        "COUNT" => Some("3".to_owned()),
        "PASSWORD" => Some("hunter2".to_owned()),
        _ => None,
    };
    load(
        "job.yaml",
        yaml,
        registry,
        &LoadOptions {
            set,
            environment: &environment,
            references: &tables,
            only_set: false,
            running,
            replace: None,
            now: NOW,
        },
    )
}

/// The tables behind FROM and JOIN, folded as SQL folds them. Parentheses must match: that is the fault we need.
pub(crate) fn tables(sql: &str) -> Result<Vec<String>, SqlFault> {
    let mut open = 0_i64;
    for (number, line) in sql.split('\n').enumerate() {
        for (column, character) in line.chars().enumerate() {
            open += i64::from(character == '(') - i64::from(character == ')');
            if open < 0 {
                return Err(SqlFault {
                    line: number + 1,
                    column: column + 1,
                    what: "this parenthesis closes nothing".to_owned(),
                    hint: Some("remove it".to_owned()),
                });
            }
        }
    }
    let words: Vec<&str> = sql.split(|one: char| one.is_whitespace() || one == '(' || one == ')').collect();
    let named = words.windows(2).filter(|pair| matches!(pair[0].to_lowercase().as_str(), "from" | "join"));
    let folded = |name: &str| match name.strip_prefix('"') {
        Some(quoted) => quoted.trim_end_matches('"').to_owned(),
        None => name.to_lowercase(),
    };
    Ok(named.map(|pair| folded(pair[1])).filter(|name| !name.is_empty()).collect())
}

/// Lints as text: severity, place, what, the line with its offending part underlined, the hint.
pub(crate) fn shown(lints: &[Lint]) -> String {
    let mut output = String::new();
    for lint in lints {
        let severity = if lint.is_error() { "error" } else { "warning" };
        let _ = writeln!(output, "{severity} {}:{}:{}: {}", lint.path, lint.line, lint.column, lint.what);
        if lint.line > 0 {
            let marks = format!("{}{}", " ".repeat(lint.column.saturating_sub(1)), "^".repeat(lint.length.max(1)));
            let _ = writeln!(output, "  | {}\n  | {marks}", lint.source_line);
        }
        if !lint.text.is_empty() {
            let _ = writeln!(output, "  text: {}", lint.text);
        }
        if let Some(hint) = &lint.hint {
            let _ = writeln!(output, "  hint: {hint}");
        }
    }
    output
}

/// Each job and its lints.
fn transcript(jobs: &[&str]) -> String {
    let parts: Vec<String> =
        jobs.iter().map(|yaml| format!("{}\n---\n{}", yaml.trim_end(), shown(&loaded(yaml).lints))).collect();
    parts.join("\n==========\n")
}
