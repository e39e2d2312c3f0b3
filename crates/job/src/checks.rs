//! Reads the checks of an entry: from linted nodes to rules with their places.
//!
//! A check names one rule. One that names several columns (`not_null: [a, b]`) becomes one check for each, so that each
//! is counted and reported by itself; only `unique` is about its columns together. Whether columns exist and values are
//! of their types is the engine's to say.

use crate::build::{text, texts, written};
use crate::entries::{CheckKeys, CheckSeverity, RowsKeys};
use crate::graph::{Check, Located, Rule};
use crate::lint::Lint;
use crate::text::JobText;
use crate::tree::{Entry, Kind, Node};

/// The keys of a check that are rules.
const RULES: [&str; 7] = ["rows", "not_null", "unique", "values", "matches", "range", "sql"];

/// The other keys of a check.
const BESIDE: [&str; 3] = ["message", "severity", "at_most"];

/// The kind of entry that has checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checked {
    /// A source or transform; whether it may leave rows out.
    Step {
        /// Whether it has a `max_rejects` above 0.
        may_reject: bool,
    },
    /// A sink.
    Sink,
}

/// The checks in `node`, the value of `checks`, as far as they follow the schema; what else is wrong with them goes to
/// `lints`.
pub fn checks(node: Option<&Node>, of: Checked, file: &JobText, lints: &mut Vec<Lint>) -> Vec<Check> {
    let Some(Kind::List(items)) = node.map(|node| &node.kind) else { return Vec::new() };
    let mut all = Vec::new();
    for item in items {
        let before = lints.len();
        let Some(rule) = one_rule(item, file, lints) else { continue };
        let rules = rules(rule, file, lints);
        // What the schema does not allow has been told.
        let Ok(keys) = serde_json::from_value::<CheckKeys>(item.to_value()) else { continue };
        lints.extend(misfit(item, rule, &keys, of, file));
        if lints.len() > before {
            continue;
        }
        let CheckKeys { severity, at_most, message, .. } = keys;
        let check = |rule| Check { rule, severity, at_most, message: message.clone(), span: item.span };
        all.extend(rules.into_iter().map(check));
    }
    all
}

/// The rule of a check, of which there is exactly one.
fn one_rule<'n>(item: &'n Node, file: &JobText, lints: &mut Vec<Lint>) -> Option<&'n Entry> {
    let mut found = item.entries().iter().filter(|entry| RULES.contains(&entry.key.as_str()));
    let Some(first) = found.next() else {
        // A key that is none has been told, and may be meant for the rule.
        if item.entries().iter().any(|entry| !BESIDE.contains(&entry.key.as_str())) {
            return None;
        }
        let hint = format!("name one of: {}", RULES.join(", "));
        lints.push(file.error(item.span, "the check has no rule").hint(hint));
        return None;
    };
    if let Some(second) = found.next() {
        let what = format!("the check has two rules: `{}` and `{}`", first.key, second.key);
        lints.push(file.error(second.key_span, what).hint("make two checks of it, each with a `-` of its own"));
        return None;
    }
    Some(first)
}

/// The rules that `rule` stands for.
fn rules(rule: &Entry, file: &JobText, lints: &mut Vec<Lint>) -> Vec<Rule> {
    let node = &rule.value;
    let column = |entry: &Entry| Located::new(entry.key.clone(), entry.key_span);
    let value = |node: &Node| node.scalar().map(|scalar| written(node, scalar));
    let none = |what: &str, hint: &str| file.error(rule.report_span(), what).hint(hint);
    match rule.key.as_str() {
        "rows" => match serde_json::from_value::<RowsKeys>(node.to_value()) {
            Ok(RowsKeys { min: None, max: None, change: None }) => {
                lints.push(none("`rows` has no limit", "give it one of: min, max, change"));
                Vec::new()
            }
            Ok(RowsKeys { min: Some(min), max: Some(max), .. }) if min > max => {
                lints.push(none("`min` of `rows` is more than `max`", "exchange them"));
                Vec::new()
            }
            Ok(rows) => vec![Rule::Rows(rows)],
            Err(_) => Vec::new(),
        },
        "not_null" => texts(Some(node)).into_iter().map(Rule::NotNull).collect(),
        "unique" => vec![Rule::Unique(texts(Some(node)))],
        "values" => {
            let of = |entry: &Entry| match &entry.value.kind {
                Kind::List(items) => Rule::Values(column(entry), items.iter().filter_map(value).collect()),
                _ => Rule::Values(column(entry), Vec::new()),
            };
            node.entries().iter().map(of).collect()
        }
        "matches" => {
            let mut matches = Vec::new();
            for entry in node.entries() {
                let Some(pattern) = text(Some(&entry.value)) else { continue };
                if let Err(cause) = regex::Regex::new(&pattern.value) {
                    let cause = cause.to_string();
                    let why = cause.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
                    let what = format!("`{}` is no regular expression: {why}", pattern.value);
                    lints.push(file.error(pattern.span, what).hint("the syntax is that of the Rust crate `regex`"));
                }
                matches.push(Rule::Matches(column(entry), pattern));
            }
            matches
        }
        "range" => {
            let mut ranges = Vec::new();
            for entry in node.entries() {
                let limit = |key: &str| entry.value.get(key).filter(|node| !node.is_null()).and_then(value);
                let (min, max) = (limit("min"), limit("max"));
                if min.is_none() && max.is_none() {
                    let what = format!("the range of `{}` has no limit", entry.key);
                    lints.push(file.error(entry.report_span(), what).hint("give it one of: min, max"));
                }
                ranges.push(Rule::Range { column: column(entry), min, max });
            }
            ranges
        }
        _ => node.scalar().map(|scalar| Rule::Sql(written(node, scalar))).into_iter().collect(),
    }
}

/// What a check says beside its rule, and cannot.
fn misfit(item: &Node, rule: &Entry, keys: &CheckKeys, of: Checked, file: &JobText) -> Vec<Lint> {
    let of_rows = rule.key == "rows";
    let at = |key: &str| item.entry(key).map_or(item.span, Entry::report_span);
    let mut lints = Vec::new();
    if item.get("at_most").is_some() && (of_rows || keys.severity == CheckSeverity::Reject) {
        let (what, hint) = match of_rows {
            true => ("`at_most` counts rows that break a rule, and `rows` is about all rows", "use `min` and `max`"),
            false => ("`at_most` is not for checks that reject", "`max_rejects` of the entry says how many may be"),
        };
        lints.push(file.error(at("at_most"), what).hint(hint));
    }
    if keys.severity != CheckSeverity::Reject {
        return lints;
    }
    if of_rows || rule.key == "unique" {
        let what = format!("`{}` is about all rows together, and cannot reject single ones", rule.key);
        lints.push(file.error(at("severity"), what).hint("use `severity: fail` or `severity: warn`"));
        return lints;
    }
    match of {
        Checked::Sink => {
            let what = "a check of a sink cannot reject rows";
            let hint = "move the check to the entry that the sink reads, or to a transform for this sink alone";
            lints.push(file.error(at("severity"), what).hint(hint));
        }
        Checked::Step { may_reject: false } => {
            let what = "the check rejects rows, and the entry may leave none out";
            lints.push(file.error(at("severity"), what).hint("say how many it may: `max_rejects: 100` (or `1%`)"));
        }
        Checked::Step { may_reject: true } => {}
    }
    lints
}
