//! The report of a command whose sinks first had to catch up: what its passes did, added up. Each pass is a run of its
//! own, and the run history has its figures alone.

use millstream_core::sink::{Changes, Removed};
use millstream_core::step::{LookupSnapshot, StepSnapshot, WorkSnapshot};

use crate::checks::judge;
use crate::report::{
    CheckResult, DisposedFiles, LeftFiles, MissingColumn, ReloadedFiles, Report, SinkResult, Tally, TimePoint,
    WindowRead,
};

/// The most files that are named.
const MOST_NAMED: usize = Removed::NAMED;

/// The most points.
const MOST_POINTS: usize = 120;

/// The report of two passes of a command. What is true of the end, such as its name, is that of the `later` one.
pub(super) fn together(earlier: Report, later: Report) -> Report {
    let results = results(&earlier, &later);
    let longer = if earlier.seconds > later.seconds { &earlier } else { &later };
    let verdict = longer.verdict.clone();
    let has_rejects = earlier.rejects.is_some() || later.rejects.is_some();
    let skipped = merged(earlier.skipped, later.skipped, |one, other| one.uri == other.uri, |_, later| later);
    Report {
        resumes: later.resumes.or(earlier.resumes),
        earlier_day: later.earlier_day.or(earlier.earlier_day),
        nothing_new: earlier.nothing_new && later.nothing_new,
        // Of the later one, those that the earlier one has loaded are among them.
        units_loaded_before: earlier.units_loaded_before.min(later.units_loaded_before),
        seconds: earlier.seconds + later.seconds,
        rows_read: earlier.rows_read + later.rows_read,
        rows_written: earlier.rows_written + later.rows_written,
        rows_rejected: earlier.rows_rejected + later.rows_rejected,
        rejects: has_rejects.then(|| later.run.clone()),
        // One that both could not open is the same.
        units_skipped: earlier.units_skipped.max(later.units_skipped).max(skipped.len() as u64),
        skipped,
        not_ready: merged(earlier.not_ready, later.not_ready, same_files, |_, later| later),
        changed: merged(earlier.changed, later.changed, same_files, |_, later| later),
        disposed: merged(earlier.disposed, later.disposed, |one, other| one.source == other.source, disposed),
        windows: merged(earlier.windows, later.windows, |one, other| one.source == other.source, window),
        missing_columns: merged(earlier.missing_columns, later.missing_columns, same_column, missing_column),
        checks: merged(earlier.checks, later.checks, same_check, judge::together),
        bytes_read: earlier.bytes_read + later.bytes_read,
        bytes_from_cache: earlier.bytes_from_cache + later.bytes_from_cache,
        bytes_from_disk: earlier.bytes_from_disk + later.bytes_from_disk,
        bytes_written: earlier.bytes_written + later.bytes_written,
        peak_rss_bytes: earlier.peak_rss_bytes.max(later.peak_rss_bytes),
        peak_memory_bytes: earlier.peak_memory_bytes.max(later.peak_memory_bytes),
        peak_workers_bytes: earlier.peak_workers_bytes.max(later.peak_workers_bytes),
        cpu_seconds: earlier.cpu_seconds + later.cpu_seconds,
        results,
        steps: merged(earlier.steps, later.steps, same_step, step),
        points: points(earlier.points, later.points),
        verdict,
        ..later
    }
}

/// The items of both: what is the `same` becomes one as `both` says, in the order of the `later` ones; behind them what
/// is only among the earlier ones. Of several that are the same, the first belongs to the first, and so on.
fn merged<T>(mut earlier: Vec<T>, later: Vec<T>, same: impl Fn(&T, &T) -> bool, both: impl Fn(T, T) -> T) -> Vec<T> {
    let mut all = Vec::new();
    for item in later {
        all.push(match earlier.iter().position(|one| same(one, &item)) {
            Some(index) => both(earlier.remove(index), item),
            None => item,
        });
    }
    all.extend(earlier);
    all
}

/// What the sinks have come to.
fn results(earlier: &Report, later: &Report) -> Vec<SinkResult> {
    let both = |one: SinkResult, other: SinkResult| {
        let wrote = [earlier, later].map(|report| report.rows_into(&one.sink) > 0);
        let summary = match wrote {
            [true, true] => format!("{}; then {}", one.summary, other.summary),
            [true, false] => one.summary,
            [false, _] => other.summary,
        };
        SinkResult {
            summary,
            removed: either(one.removed, other.removed, removed),
            reloaded: either(one.reloaded, other.reloaded, reloaded),
            changes: either(one.changes, other.changes, changes),
            tally: either(one.tally, other.tally, Tally::and),
            ..other
        }
    };
    merged(earlier.results.clone(), later.results.clone(), |one, other| one.sink == other.sink, both)
}

fn either<T>(one: Option<T>, other: Option<T>, both: impl FnOnce(T, T) -> T) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(both(one, other)),
        (one, other) => one.or(other),
    }
}

/// The first names of both.
fn names(one: Vec<String>, other: Vec<String>) -> Vec<String> {
    let mut names = one;
    for name in other {
        if names.len() < MOST_NAMED && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn removed(one: Removed, other: Removed) -> Removed {
    Removed { files: one.files + other.files, first: names(one.first, other.first) }
}

fn reloaded(one: ReloadedFiles, other: ReloadedFiles) -> ReloadedFiles {
    ReloadedFiles {
        files: one.files + other.files,
        rows_deleted: one.rows_deleted + other.rows_deleted,
        rows_inserted: one.rows_inserted + other.rows_inserted,
        without_rows: names(one.without_rows, other.without_rows),
    }
}

fn changes(one: Changes, other: Changes) -> Changes {
    Changes {
        inserted: one.inserted + other.inserted,
        updated: one.updated + other.updated,
        unchanged: one.unchanged + other.unchanged,
        deleted: one.deleted + other.deleted,
    }
}

/// The later one has tried those again that the earlier one has left.
fn disposed(earlier: DisposedFiles, later: DisposedFiles) -> DisposedFiles {
    DisposedFiles { moved: earlier.moved + later.moved, deleted: earlier.deleted + later.deleted, ..later }
}

/// The later one goes on where the earlier one has ended. Only every second point is kept if there are too many.
fn points(mut earlier: Vec<TimePoint>, later: Vec<TimePoint>) -> Vec<TimePoint> {
    if let Some(end) = earlier.last().copied() {
        earlier.extend(later.into_iter().map(|point| TimePoint {
            elapsed_ms: end.elapsed_ms + point.elapsed_ms,
            rows_read: end.rows_read + point.rows_read,
            rows_written: end.rows_written + point.rows_written,
            bytes_read: end.bytes_read + point.bytes_read,
        }));
        let last = earlier.len() - 1;
        let every = earlier.len().div_ceil(MOST_POINTS);
        let kept = earlier.into_iter().enumerate().filter(|(number, _)| (last - number).is_multiple_of(every));
        return kept.map(|(_, point)| point).collect();
    }
    later
}

/// The later one begins at the end of the earlier one, or before it.
fn window(earlier: WindowRead, later: WindowRead) -> WindowRead {
    WindowRead { from: earlier.from, ..later }
}

fn same_files(one: &LeftFiles, other: &LeftFiles) -> bool {
    one.source == other.source
}

fn same_check(one: &CheckResult, other: &CheckResult) -> bool {
    let is_same = (&one.entry, &one.check, one.severity) == (&other.entry, &other.check, other.severity);
    is_same && one.at_most == other.at_most
}

fn same_step(one: &StepSnapshot, other: &StepSnapshot) -> bool {
    (&one.name, one.kind, &one.detail) == (&other.name, other.kind, &other.detail)
}

fn same_column(one: &MissingColumn, other: &MissingColumn) -> bool {
    (&one.source, &one.column) == (&other.source, &other.column)
}

fn missing_column(one: MissingColumn, other: MissingColumn) -> MissingColumn {
    MissingColumn { files: one.files + other.files, first: names(one.first, other.first), ..other }
}

fn step(one: StepSnapshot, other: StepSnapshot) -> StepSnapshot {
    StepSnapshot {
        units: one.units + other.units,
        units_total: one.units_total + other.units_total,
        rows: one.rows + other.rows,
        passed_over: one.passed_over + other.passed_over,
        rejected: one.rejected + other.rejected,
        bytes: one.bytes + other.bytes,
        bytes_total: one.bytes_total + other.bytes_total,
        busy: one.busy + other.busy,
        waiting: one.waiting + other.waiting,
        waiting_input: one.waiting_input + other.waiting_input,
        waiting_output: one.waiting_output + other.waiting_output,
        waiting_scratch: one.waiting_scratch + other.waiting_scratch,
        spilled_bytes: one.spilled_bytes + other.spilled_bytes,
        spilled_for_want: one.spilled_for_want + other.spilled_for_want,
        work: either(one.work, other.work, work),
        lookup: either(one.lookup, other.lookup, lookup),
        ..other
    }
}

fn work(one: WorkSnapshot, other: WorkSnapshot) -> WorkSnapshot {
    WorkSnapshot {
        workers: one.workers.max(other.workers),
        rows_in: one.rows_in + other.rows_in,
        rows_rejected: one.rows_rejected + other.rows_rejected,
        restarts: one.restarts + other.restarts,
        retries: one.retries + other.retries,
        lost_seconds: one.lost_seconds + other.lost_seconds,
        cpu_seconds: one.cpu_seconds + other.cpu_seconds,
    }
}

fn lookup(one: LookupSnapshot, other: LookupSnapshot) -> LookupSnapshot {
    LookupSnapshot { matched: one.matched + other.matched, missed: one.missed + other.missed, ..other }
}

#[cfg(test)]
mod tests {
    use millstream_core::{StepKind, Steps};
    use millstream_job::CheckSeverity;

    use super::*;
    use crate::report::LeftFile;

    fn sink(name: &str, summary: &str, tally: Option<Tally>) -> SinkResult {
        SinkResult {
            sink: name.to_owned(),
            target: "t".to_owned(),
            summary: summary.to_owned(),
            removed: None,
            reloaded: None,
            changes: None,
            tally,
        }
    }

    fn loads(rows: &[(&str, u64)]) -> Vec<StepSnapshot> {
        let steps = Steps::default();
        rows.iter().for_each(|(name, rows)| steps.add(*name, StepKind::Load, "sqlite").add_rows(*rows));
        steps.all().iter().map(|step| step.snapshot()).collect()
    }

    fn check(holds: bool, broken: u64, rows: u64, what: &str) -> CheckResult {
        CheckResult {
            entry: "s".to_owned(),
            check: "not_null: id".to_owned(),
            severity: CheckSeverity::Warn,
            holds,
            rows,
            broken,
            at_most: None,
            what: what.to_owned(),
            examples: vec![format!("one of {rows}"); 2],
        }
    }

    #[test]
    fn the_points_of_a_later_pass_go_on_where_the_earlier_one_has_ended() {
        let of = |count: u64| -> Vec<TimePoint> {
            let point = |n| TimePoint { elapsed_ms: 100 * n, rows_read: n, rows_written: n, bytes_read: 10 * n };
            (1..=count).map(point).collect()
        };
        let joined = points(of(2), of(1));
        assert_eq!(joined.iter().map(|point| point.elapsed_ms).collect::<Vec<_>>(), [100, 200, 300]);
        assert_eq!((joined[2].rows_read, joined[2].bytes_read), (3, 30));
        let many = points(of(MOST_POINTS as u64), of(50));
        assert!(many.len() <= MOST_POINTS && many.last().is_some_and(|last| last.rows_read == 170), "{}", many.len());
        assert_eq!(points(Vec::new(), of(3)), of(3));
    }

    #[test]
    fn counts_add_up_and_the_tally_holds() {
        let one = Tally { read: 10, written: 7, rejected: 1, filtered: 2, ..Tally::default() };
        let other = Tally { read: 5, written: 5, ..Tally::default() };
        let earlier = Report {
            run: "1-1".to_owned(),
            rows_read: 10,
            rows_rejected: 1,
            rejects: Some("1-1".to_owned()),
            units_loaded_before: 3,
            seconds: 2.0,
            results: vec![sink("b", "7 rows", Some(one))],
            steps: loads(&[("b", 7)]),
            ..Report::default()
        };
        let later = Report {
            run: "2-1".to_owned(),
            catch_up_runs: vec!["1-1".to_owned()],
            rows_read: 5,
            nothing_new: true,
            units_loaded_before: 4,
            seconds: 1.0,
            results: vec![sink("a", "5 rows", Some(other)), sink("b", "5 rows", Some(other)), sink("c", "none", None)],
            steps: loads(&[("a", 5), ("b", 5), ("c", 0)]),
            ..Report::default()
        };
        let whole = together(earlier, later);
        assert_eq!((whole.run.as_str(), whole.rejects.as_deref()), ("2-1", Some("2-1")));
        assert_eq!((whole.rows_read, whole.rows_rejected, whole.units_loaded_before), (15, 1, 3));
        assert!(!whole.nothing_new);
        let summaries: Vec<&str> = whole.results.iter().map(|result| result.summary.as_str()).collect();
        assert_eq!(summaries, ["5 rows", "7 rows; then 5 rows", "none"]);
        let tally = whole.results[1].tally.expect("both have one");
        assert_eq!(tally, Tally { read: 15, written: 12, rejected: 1, filtered: 2, ..Tally::default() });
        tally.check("b").expect("it holds");
        assert_eq!((whole.rows_into("a"), whole.rows_into("b")), (5, 12));
    }

    #[test]
    fn checks_add_up_unless_only_one_pass_breaks_them() {
        let both = |earlier: CheckResult, later: CheckResult| {
            let report = |check| Report { checks: vec![check], ..Report::default() };
            together(report(earlier), report(later)).checks.remove(0)
        };
        let found = both(check(true, 0, 10, "none of 10 rows"), check(true, 1, 90, "1 of 90 rows (1.11%)"));
        assert_eq!((found.holds, found.rows, found.what.as_str()), (true, 100, "1 of 100 rows (1.00%)"));
        assert_eq!(found.examples, ["one of 10", "one of 10", "one of 90"]);
        let broken = || check(false, 5, 10, "lost: 5 of 10 rows (50.00%)");
        let found = both(broken(), check(true, 0, 90, "none of 90 rows"));
        assert_eq!((found.holds, found.rows, found.what.as_str()), (false, 10, "lost: 5 of 10 rows (50.00%)"));
        let found = both(broken(), check(false, 90, 90, "lost: 90 of 90 rows (100.00%)"));
        assert_eq!((found.rows, found.what.as_str()), (100, "lost: 95 of 100 rows (95.00%)"));
    }

    #[test]
    fn files_that_are_left_are_those_of_the_later_pass() {
        let left = || vec![LeftFile { uri: "a.csv".to_owned(), what: "it is in use".to_owned() }];
        let of = |moved, left_files, first_left| {
            let disposed = DisposedFiles { source: "s".to_owned(), moved, deleted: 0, left: left_files, first_left };
            Report { disposed: vec![disposed], ..Report::default() }
        };
        let whole = together(of(2, 1, left()), of(3, 0, Vec::new()));
        assert_eq!((whole.disposed[0].moved, whole.disposed[0].left), (5, 0));
        let whole = together(of(2, 1, left()), Report::default());
        assert_eq!(whole.disposed, of(2, 1, left()).disposed);
    }
}
