//! Whether checks hold, once everything has come.

use std::sync::Arc;

use millstream_core::counts::grouped;
use millstream_core::{Error, Result};
use millstream_job::{CheckSeverity, RowsKeys};
use serde_json::Value;

use super::{CheckKind, EXAMPLES, EntryCheck, EntryChecks};
use crate::report::CheckResult;

/// What a pass of a run has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// Everything that the run loads.
    Whole,
    /// Only files that some sinks lack: how many rows they have says nothing.
    CatchUp,
}

/// The results of the checks of `entries`, as far as rows have come. `earlier` are the reports of runs that succeeded,
/// the last one first. A pass that catches up has no results of checks of the number of rows.
///
/// # Errors
/// If keys that were written to scratch cannot be read again.
pub fn results(entries: &[Arc<EntryChecks>], earlier: &[Value], pass: Pass) -> Result<Vec<CheckResult>> {
    let mut results = Vec::new();
    for entry in entries {
        let before = earlier.iter().find_map(|report| rows_before(report, &entry.entry));
        for (index, check) in entry.checks.iter().enumerate() {
            if let CheckKind::Unique(keys) = &check.kind {
                let found = keys.found_at_end().map_err(|error| error.in_step(&entry.entry))?;
                entry.counts.add_broken(index, found.rows);
                found.examples.into_iter().for_each(|example| entry.counts.show(index, example));
            }
        }
        let broken: Vec<u64> = entry.counts.broken().collect();
        let rejecting: Vec<bool> = entry.checks.iter().map(EntryCheck::rejects).collect();
        let seen = seen(entry.counts.rows(), &rejecting, &broken);
        let counted = entry.checks.iter().zip(seen).zip(broken).zip(entry.counts.shown());
        let is_judged = |check: &EntryCheck| pass == Pass::Whole || !matches!(check.kind, CheckKind::Rows(_));
        for (((check, rows), broken), examples) in counted.filter(|(((check, _), _), _)| is_judged(check)) {
            results.push(result(entry, check, Counted { rows, broken, examples, before }));
        }
    }
    Ok(results)
}

/// How many rows came to each check of an entry that has `kept` rows in the end. Those that reject come first, one
/// after the other, and each sees what the ones before it have left; all others see the rows that are kept.
fn seen(kept: u64, rejecting: &[bool], broken: &[u64]) -> Vec<u64> {
    let left_out_from = |index: usize| {
        let behind = rejecting.iter().zip(broken).skip(index);
        behind.filter(|(rejects, _)| **rejects).map(|(_, broken)| broken).sum::<u64>()
    };
    let of = |(index, rejects): (usize, &bool)| if *rejects { kept + left_out_from(index) } else { kept };
    rejecting.iter().enumerate().map(of).collect()
}

/// What was counted for a check.
struct Counted {
    /// The rows that came to it.
    rows: u64,
    broken: u64,
    examples: Vec<String>,
    /// The rows of the last run that succeeded.
    before: Option<u64>,
}

fn result(entry: &EntryChecks, check: &EntryCheck, counted: Counted) -> CheckResult {
    let Counted { rows, broken, examples, before } = counted;
    let (holds, what) = match &check.kind {
        CheckKind::Rows(limits) => {
            let fault = rows_fault(limits, rows, before);
            (fault.is_none(), fault.unwrap_or_else(|| format!("{} rows", grouped(rows))))
        }
        CheckKind::Condition | CheckKind::Unique(_) => {
            let allowed = check.rejects() || !check.at_most.is_exceeded(broken, rows);
            (allowed, of_rows(broken, rows))
        }
    };
    let what = match &check.message {
        Some(message) if !holds => format!("{message}: {what}"),
        _ => what,
    };
    CheckResult {
        entry: entry.entry.clone(),
        check: check.label.clone(),
        severity: check.severity,
        holds,
        rows,
        broken,
        at_most: check.at_most.allows_some().then(|| check.at_most.to_string()),
        what,
        examples,
    }
}

/// The result of a check that two passes of a command have come to. If it holds for one of them only, it is that of the
/// other one.
pub fn together(earlier: CheckResult, later: CheckResult) -> CheckResult {
    if earlier.holds != later.holds {
        return if later.holds { earlier } else { later };
    }
    let (Some(message), Some(_)) = (message_of(&earlier), message_of(&later)) else { return later };
    let (rows, broken) = (earlier.rows + later.rows, earlier.broken + later.broken);
    let what = format!("{message}{}", of_rows(broken, rows));
    let examples = earlier.examples.iter().chain(&later.examples).take(EXAMPLES).cloned().collect();
    CheckResult { rows, broken, what, examples, ..later }
}

/// What a result that counts rows says before these: its message, if there is one.
fn message_of(result: &CheckResult) -> Option<&str> {
    result.what.strip_suffix(&of_rows(result.broken, result.rows))
}

/// How many of so many rows break a rule, in words.
fn of_rows(broken: u64, rows: u64) -> String {
    let share = if broken == 0 || rows == 0 { 0.0 } else { broken as f64 / rows as f64 * 100.0 };
    match broken {
        0 => format!("none of {} rows", grouped(rows)),
        _ => format!("{} of {} rows ({share:.2}%)", grouped(broken), grouped(rows)),
    }
}

/// What is wrong with the number of rows.
fn rows_fault(limits: &RowsKeys, rows: u64, before: Option<u64>) -> Option<String> {
    if let Some(min) = limits.min.filter(|min| rows < *min) {
        return Some(format!("{} rows, and at least {} are required", grouped(rows), grouped(min)));
    }
    if let Some(max) = limits.max.filter(|max| rows > *max) {
        return Some(format!("{} rows, and at most {} are allowed", grouped(rows), grouped(max)));
    }
    let (change, before) = (limits.change?, before.filter(|before| *before > 0)?);
    let moved = rows.abs_diff(before) as f64 / before as f64;
    // What is a rounding error away from the limit is within it.
    (moved > change.0 + 1e-9).then(|| {
        let way = if rows > before { "more" } else { "fewer" };
        let allowed: String = change.into();
        format!(
            "{} rows, {:.2}% {way} than the {} of the last run that succeeded, and a change of {allowed} is allowed",
            grouped(rows),
            moved * 100.0,
            grouped(before)
        )
    })
}

/// The rows of `entry` as the report of an earlier run says. What it says of a check that rejects is about the rows
/// before that, or in reports of older versions after it: it is no measure.
fn rows_before(report: &Value, entry: &str) -> Option<u64> {
    let counts_kept = |check: &&Value| check["entry"] == entry && check["severity"] != "reject";
    report.get("checks")?.as_array()?.iter().find(counts_kept)?["rows"].as_u64()
}

/// The errors of the checks for which the run fails. `has_caught_up` says whether sinks were brought to the files that
/// others have before it, by the same command.
pub fn failures(results: &[CheckResult], has_caught_up: bool) -> Vec<Error> {
    let failed = results.iter().filter(|result| !result.holds && result.severity == CheckSeverity::Fail);
    failed.map(|result| failure(result, has_caught_up)).collect()
}

fn failure(result: &CheckResult, has_caught_up: bool) -> Error {
    let allowed = result.at_most.as_ref().map_or(String::new(), |most| format!(", more than `at_most: {most}`"));
    let cause = match result.examples.is_empty() {
        true => format!("{}{allowed}", result.what),
        false => format!("{}{allowed}, such as\n{}", result.what, result.examples.join("\n")),
    };
    let published = match has_caught_up {
        false => "no sink has published anything",
        true => "sinks that lacked what others had loaded have caught up, and nothing else was published",
    };
    Error::data(format!("a check does not hold: {}", result.check))
        .cause(cause)
        .in_step(&result.entry)
        .hint(format!("{published}; fix the data or the check, or make it `severity: warn`"))
}

#[cfg(test)]
mod tests {
    use millstream_job::entries::Share;

    use super::*;

    fn fault(limits: RowsKeys, rows: u64, before: Option<u64>) -> Option<String> {
        rows_fault(&limits, rows, before)
    }

    #[test]
    fn numbers_of_rows_have_limits_that_are_allowed_themselves() {
        let between = || RowsKeys { min: Some(10), max: Some(1_000), change: None };
        assert_eq!((fault(between(), 10, None), fault(between(), 1_000, None)), (None, None));
        assert_eq!(fault(between(), 9, None).as_deref(), Some("9 rows, and at least 10 are required"));
        assert_eq!(fault(between(), 1_001, None).as_deref(), Some("1,001 rows, and at most 1,000 are allowed"));
    }

    #[test]
    fn a_change_is_compared_with_the_run_before() {
        let change = || RowsKeys { change: Some(Share(0.2)), ..RowsKeys::default() };
        assert_eq!((fault(change(), 80, Some(100)), fault(change(), 120, Some(100))), (None, None));
        let fewer = "79 rows, 21.00% fewer than the 100 of the last run that succeeded, and a change of 20% is allowed";
        assert_eq!(fault(change(), 79, Some(100)).as_deref(), Some(fewer));
        assert!(fault(change(), 121, Some(100)).is_some_and(|what| what.contains("21.00% more than the 100")));
        assert!(fault(change(), 0, Some(100)).is_some());
        // Otherwise a job that once had no rows could never have any again.
        assert_eq!((fault(change(), 7, Some(0)), fault(change(), 7, None)), (None, None));
    }

    #[test]
    fn a_check_that_rejects_sees_what_those_before_it_have_left() {
        for (kept, checks, expected) in [
            (2, &[(true, 8)][..], &[10][..]),
            (5, &[(false, 4), (true, 3), (false, 0), (true, 2)], &[5, 10, 5, 7]),
            (0, &[(true, 4), (true, 0), (false, 0)], &[4, 0, 0]),
        ] {
            let (rejecting, broken): (Vec<bool>, Vec<u64>) = checks.iter().copied().unzip();
            assert_eq!(seen(kept, &rejecting, &broken), expected, "{checks:?}");
        }
    }

    #[test]
    fn rows_are_compared_with_those_that_were_kept() {
        let check = |severity: &str, rows: u64| serde_json::json!({"entry": "s", "severity": severity, "rows": rows});
        let before = |checks: &[Value]| rows_before(&serde_json::json!({"checks": checks}), "s");
        assert_eq!(before(&[check("reject", 10), check("fail", 2)]), Some(2));
        assert_eq!((before(&[check("reject", 10)]), before(&[])), (None, None));
    }

    #[test]
    fn shares_are_written_as_they_were_read() {
        for text in ["20%", "0.5%", "7%", "150%"] {
            let share = Share::try_from(text.to_owned()).expect("a share");
            assert_eq!(String::from(share), text);
        }
        assert!(Share::try_from("20".to_owned()).is_err());
    }
}
