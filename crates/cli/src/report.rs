//! The report at the end of a run, for people.

use std::path::Path;
use std::time::Duration;

use millstream::report::Removed;
use millstream::report::StepKind;
use millstream::report::{CheckResult, CheckSeverity, DisposedFiles, LeftFiles, MissingColumn, ReloadedFiles, Report};
use millstream::report::{ClusterReport, StepSnapshot, UnmatchedPatterns, WindowRead, WorkSnapshot, WorkerReport};
use millstream::text::{counted, grouped_in};

use crate::human;
use crate::output::{Output, Role};
use crate::table::table;

/// A step that was busy for less than this share of the run is only shown with all steps.
const NO_WORK: f64 = 0.01;

/// So many workers are shown.
const MOST_WORKERS: usize = 20;

/// Times below this many seconds are not shown.
const NO_TIME: f64 = 0.005;

/// The report: the sinks, the steps, and the verdict. `all` also shows idle steps.
pub fn report(output: Output, report: &Report, all: bool) -> String {
    if let Some(why) = &report.skipped_run {
        return format!("{}: {why}\n", output.paint(Role::Strong, "skipped"));
    }
    let mut text = format!(
        "{} in {}: {} {} read, {} written, {} rejected\n",
        output.paint(Role::Strong, "done"),
        human::time(Duration::from_secs_f64(report.seconds.max(0.0))),
        human::count(report.rows_read),
        if report.rows_read == 1 { "row" } else { "rows" },
        human::count(report.rows_written),
        human::count(report.rows_rejected),
    );
    if report.nothing_new {
        text.push_str(match report.unmatched.is_empty() || report.units_loaded_before > 0 {
            true => "  nothing new: everything was loaded before\n",
            false => "  nothing new\n",
        });
    } else if let Some(first) = &report.resumes {
        text.push_str(&format!("  resumed run {first}\n"));
    }
    if let Some(day) = &report.earlier_day {
        text.push_str(&format!(
            "  this run was of {day}, the day on which it began: the run of today is still to do\n"
        ));
    }
    for run in &report.catch_up_runs {
        text.push_str(&format!("  run {run} first loaded what some sinks had and others lacked\n"));
    }
    if report.attempts > 1 {
        text.push_str(&format!("  it took {} attempts\n", report.attempts));
    }
    if report.units_loaded_before > 0 {
        let (count, were) = match report.units_loaded_before {
            1 => ("1 file".to_owned(), "was"),
            count => (format!("{} files", human::count(count)), "were"),
        };
        text.push_str(&format!("  {count} {were} loaded before and skipped\n"));
    }
    for result in &report.results {
        let before = result.tally.as_ref().map_or(0, |tally| tally.before);
        let before = match before {
            0 => String::new(),
            count => format!("; {} more of the same files were loaded before", human::count(count)),
        };
        text.push_str(&format!("  {}: {}{before}\n", result.sink, grouped_in(&result.summary)));
        if let Some(reloaded) = &result.reloaded {
            text.push_str(&replaced(reloaded));
        }
        if let Some(removed) = &result.removed {
            text.push_str(&gone(removed));
        }
    }
    report.windows.iter().for_each(|read| text.push_str(&window(read)));
    report.unmatched.iter().for_each(|of| text.push_str(&unmatched(of)));
    text.push_str(&missed(&report.steps));
    text.push_str(&files(report));
    text.push_str(&checks(&report.checks, all));
    text.push_str(&missing_columns(report));
    text.push_str(&skipped(report));
    if let Some(run) = &report.rejects {
        text.push_str(&format!("  what was rejected: millstream rejects {run}\n"));
    }
    text.push('\n');
    let shown: Vec<&StepSnapshot> =
        report.steps.iter().filter(|step| all || is_notable(step, report.seconds)).collect();
    text.push_str(&steps(&shown));
    match report.steps.len() - shown.len() {
        0 => {}
        1 => text.push_str("1 idle step not shown (--verbose)\n"),
        hidden => text.push_str(&format!("{hidden} idle steps not shown (--verbose)\n")),
    }
    report.cluster.iter().for_each(|cluster| text.push_str(&workers(cluster)));
    text.push('\n');
    if report.bytes_from_cache + report.bytes_from_disk > 0 {
        text.push_str(&format!(
            "read {} from the page cache and {} from the disk\n",
            human::size(report.bytes_from_cache),
            human::size(report.bytes_from_disk)
        ));
    }
    let workers = match report.peak_workers_bytes {
        0 => String::new(),
        bytes => format!(", workers up to {}", human::size(bytes)),
    };
    text.push_str(&format!(
        "peak memory {} of {}{workers}\n",
        human::size(report.peak_memory_bytes),
        human::size(report.memory_bytes)
    ));
    text.push_str(&format!("{}\n", output.paint(Role::Strong, &report.verdict.sentence)));
    text
}

/// What each worker has done; the busiest ones first, if they are many.
fn workers(cluster: &ClusterReport) -> String {
    if cluster.workers.is_empty() {
        return String::new();
    }
    let mut all: Vec<&WorkerReport> = cluster.workers.iter().collect();
    all.sort_by_key(|worker| std::cmp::Reverse(worker.bytes));
    let bytes: u64 = all.iter().map(|worker| worker.bytes).sum();
    let shown = all.iter().take(MOST_WORKERS).map(|worker| {
        let share = worker.bytes as f64 / bytes.max(1) as f64;
        [
            worker.worker.clone(),
            human::count(worker.cores),
            human::count(worker.units),
            human::count(worker.rows),
            human::size(worker.bytes),
            format!("{:.0} %", share * 100.0),
            human::time(Duration::try_from_secs_f64(worker.cpu_seconds).unwrap_or_default()),
            human::size(worker.peak_rss_bytes),
            worker.lost.as_ref().map_or(String::new(), |why| format!("lost: {why}")),
        ]
    });
    let heads = ["worker", "cores", "files", "rows", "bytes", "share", "cpu", "memory", ""].map(str::to_owned);
    let rows: Vec<Vec<String>> = shown.map(Vec::from).collect();
    let more = match all.len().saturating_sub(MOST_WORKERS) {
        0 => String::new(),
        more => format!("and {} more\n", counted(more as u64, "worker")),
    };
    let right = [false, true, true, true, true, true, true, true, false];
    format!("\n{}{more}", table(&heads, &rows, &right))
}

/// What was replaced of files that have changed.
fn replaced(reloaded: &ReloadedFiles) -> String {
    let ReloadedFiles { files, rows_deleted, rows_inserted, without_rows } = reloaded;
    let files = if *files == 1 { "1 file".to_owned() } else { format!("{} files", human::count(*files)) };
    let deleted = match rows_deleted {
        1 => "1 row".to_owned(),
        rows => format!("{} rows", human::count(*rows)),
    };
    let inserted = human::count(*rows_inserted);
    let mut text = format!("    reloaded {files} that had changed: {deleted} deleted, {inserted} inserted\n");
    if !without_rows.is_empty() {
        let named = without_rows.join(", ");
        text.push_str(&format!(
            "    warning: these had no rows in the table, though they were loaded before: {named}\n"
        ));
    }
    text
}

/// The rows that were read by the time in a column.
fn window(read: &WindowRead) -> String {
    let WindowRead { source, by, from, until, .. } = read;
    let range = match (from, until) {
        (Some(from), Some(until)) => format!("rows with {by} from {from} to before {until}"),
        (Some(from), None) => format!("rows with {by} from {from} on"),
        (None, Some(until)) => format!("rows with {by} before {until}"),
        (None, None) => "all rows".to_owned(),
    };
    format!("  {source}: read {range}\n")
}

/// The patterns that match no file; of paths the folder, too, in which they begin: it may be the wrong one.
fn unmatched(of: &UnmatchedPatterns) -> String {
    let is_relative = |pattern: &String| {
        let path = pattern.trim_start_matches('@');
        !path.contains("://") && Path::new(path).is_relative()
    };
    let folder = of.patterns.iter().any(is_relative).then(std::env::current_dir).and_then(Result::ok);
    let folder = folder.map_or_else(String::new, |folder| format!(" (relative paths begin in {})", folder.display()));
    format!("  {}: no file matches {}{folder}\n", of.source, of.patterns.join(", "))
}

/// The rows that have found nothing in what they were looked up in, one line for each lookup that has some.
fn missed(steps: &[StepSnapshot]) -> String {
    let missed = |step: &StepSnapshot| {
        let lookup = step.lookup.as_ref().filter(|lookup| lookup.missed > 0)?;
        let rows = lookup.matched + lookup.missed;
        Some(format!(
            "  {}: {} of {} {} found nothing in {}\n",
            step.name,
            human::count(lookup.missed),
            human::count(rows),
            if rows == 1 { "row" } else { "rows" },
            lookup.reference
        ))
    };
    steps.iter().filter_map(missed).collect()
}

/// The files that were left alone.
fn files(report: &Report) -> String {
    let named = |left: &LeftFiles, what: [&str; 2]| {
        let more = if left.files > left.first.len() as u64 { ", …" } else { "" };
        let count = match left.files {
            1 => format!("1 file {}", what[0]),
            count => format!("{} files {}", human::count(count), what[1]),
        };
        format!("  {}: {count}: {}{more}\n", left.source, left.first.join(", "))
    };
    let not_ready = ["is not ready and is left for a later run", "are not ready and are left for a later run"];
    let changed =
        ["has changed since it was loaded and is skipped", "have changed since they were loaded and are skipped"];
    let disposed = report.disposed.iter().map(disposed);
    let not_ready = report.not_ready.iter().map(|left| named(left, not_ready));
    let changed = report.changed.iter().map(|left| format!("  warning: {}", named(left, changed).trim_start()));
    not_ready.chain(changed).chain(disposed).collect()
}

/// What has become of files once they were loaded.
fn disposed(of: &DisposedFiles) -> String {
    let files = |count: u64| if count == 1 { "1 file".to_owned() } else { format!("{} files", human::count(count)) };
    let mut text = String::new();
    for (count, done) in [(of.moved, "moved"), (of.deleted, "deleted")] {
        if count > 0 {
            text.push_str(&format!("  {}: {} {done} after the load\n", of.source, files(count)));
        }
    }
    if of.left > 0 {
        let stay = if of.left == 1 { "is loaded and stays where it is" } else { "are loaded and stay where they are" };
        text.push_str(&format!("  warning: {}: {} {stay}; the next run tries again\n", of.source, files(of.left)));
    }
    of.first_left.iter().for_each(|left| text.push_str(&format!("    {}: {}\n", left.uri, left.what)));
    text
}

/// The checks that do not hold, with some of the rows that break them, and how many hold; with `all` each of them.
fn checks(results: &[CheckResult], all: bool) -> String {
    let mut text = String::new();
    for result in results.iter().filter(|result| all || !result.holds || left_out(result) > 0) {
        let CheckResult { entry, check, what, .. } = result;
        let is = match (result.holds, left_out(result)) {
            (false, _) => "warning: ",
            (true, 0) => "",
            (true, _) => "left out: ",
        };
        text.push_str(&format!("  {is}{entry}: {check}: {what}\n"));
        if !result.holds || left_out(result) > 0 {
            result.examples.iter().for_each(|example| text.push_str(&format!("    {example}\n")));
        }
    }
    let holding = results.iter().filter(|result| result.holds).count();
    match (holding, results.len()) {
        (_, 0) => {}
        (1, 1) => text.push_str("  its check holds\n"),
        (holding, of) if holding == of => text.push_str(&format!("  all {of} checks hold\n")),
        (holding, of) => text.push_str(&format!("  {holding} of {of} checks hold\n")),
    }
    text
}

/// Rows that a check has left out.
fn left_out(result: &CheckResult) -> u64 {
    if result.severity == CheckSeverity::Reject { result.broken } else { 0 }
}

/// The columns that files lacked, one line each, up to a limit.
fn missing_columns(report: &Report) -> String {
    const COLUMNS: usize = 10;
    const FILES: usize = 3;
    let mut text = String::new();
    for one in report.missing_columns.iter().take(COLUMNS) {
        let files = match one.files {
            1 => "1 file".to_owned(),
            count => format!("{} files", human::count(count)),
        };
        let lack = if one.files == 1 { "lacks" } else { "lack" };
        let named: Vec<&str> = one.first.iter().take(FILES).map(String::as_str).collect();
        let more = if one.files > named.len() as u64 { ", …" } else { "" };
        let MissingColumn { source, column, .. } = one;
        text.push_str(&format!(
            "  {source}: {files} {lack} the column {column}, null there: {}{more}\n",
            named.join(", ")
        ));
    }
    if report.missing_columns.len() > COLUMNS {
        text.push_str("  … (--json has all columns)\n");
    }
    text
}

/// The skipped units by name, up to a limit.
fn skipped(report: &Report) -> String {
    const NAMED: usize = 10;
    if report.units_skipped == 0 {
        return String::new();
    }
    let mut text = format!("skipped, because they cannot be opened: {}\n", human::count(report.units_skipped));
    for one in report.skipped.iter().take(NAMED) {
        let uri = one.uri.as_deref().unwrap_or(&one.source);
        text.push_str(&format!("  {uri}: {}\n", one.what));
    }
    if report.units_skipped > NAMED as u64 {
        text.push_str("  … (--json has the first hundred)\n");
    }
    text
}

/// The files of earlier runs that a sink has removed, by name, up to a limit.
fn gone(removed: &Removed) -> String {
    const NAMED: usize = 3;
    let files = if removed.files == 1 { "file" } else { "files" };
    let mut text = format!("    removed {} {files} of earlier runs: ", human::count(removed.files));
    text.push_str(&removed.first[..removed.first.len().min(NAMED)].join(", "));
    if removed.files > NAMED as u64 {
        text.push_str(", …");
    }
    text.push('\n');
    text
}

/// Whether a step is worth showing: it counts input or output, or took a share of the time or disk. There are many
/// listings and operators of queries, which are mostly idle.
fn is_notable(step: &StepSnapshot, seconds: f64) -> bool {
    let worth = |time: f64| time > (seconds * NO_WORK).max(NO_TIME);
    match step.kind {
        StepKind::Fetch | StepKind::Decode | StepKind::Parse | StepKind::Load => true,
        StepKind::List => worth(step.busy + step.waiting_input),
        StepKind::Transform => {
            step.work.is_some()
                || step.lookup.is_some()
                || worth(step.busy)
                || step.spilled_bytes > 0
                || step.rejected > 0
        }
    }
}

fn steps(steps: &[&StepSnapshot]) -> String {
    let some = |number: u64, text: fn(u64) -> String| if number == 0 { String::new() } else { text(number) };
    let seconds = |seconds: f64| if seconds < NO_TIME { String::new() } else { format!("{seconds:.2} s") };
    let of_work =
        |step: &StepSnapshot, text: &dyn Fn(&WorkSnapshot) -> String| step.work.as_ref().map_or_else(String::new, text);
    let rows: Vec<Vec<String>> = steps
        .iter()
        .map(|step| {
            vec![
                step.name.clone(),
                step.kind.to_string(),
                step.detail.clone(),
                of_work(step, &|work| work.workers.to_string()),
                of_work(step, &|work| human::count(work.rows_in)),
                some(step.rows, human::count),
                some(step.bytes, human::size),
                seconds(step.busy),
                of_work(step, &|work| seconds(work.cpu_seconds)),
                of_work(step, &|work| some(work.restarts, human::count)),
                of_work(step, &|work| some(work.retries, human::count)),
                seconds(step.waiting_input),
                seconds(step.waiting_output),
                some(step.rejected, human::count),
                some(step.spilled_bytes, human::size),
            ]
        })
        .collect();
    let header = [
        "step",
        "kind",
        "with",
        "workers",
        "rows in",
        "rows",
        "bytes",
        "busy",
        "processor",
        "restarts",
        "retries",
        "waited for input",
        "for output",
        "rejected",
        "spilled",
    ];
    // Those of workers, and the last two, are only shown if a step has such values.
    let sometimes = ["workers", "rows in", "processor", "restarts", "retries", "rejected", "spilled"];
    let always = |column: usize| !sometimes.contains(&header[column]);
    let kept: Vec<usize> =
        (0..header.len()).filter(|&column| always(column) || rows.iter().any(|row| !row[column].is_empty())).collect();
    let header: Vec<String> = kept.iter().map(|&column| header[column].to_owned()).collect();
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| kept.iter().map(|&column| row[column].clone()).collect()).collect();
    let right: Vec<bool> = kept.iter().map(|&column| column > 2).collect();
    table(&header, &rows, &right)
}

#[cfg(test)]
mod tests {
    use millstream::report::Step;

    use super::*;

    fn step(kind: StepKind, busy: f64) -> StepSnapshot {
        let step = Step::new("places", kind, "x");
        step.add_busy(Duration::from_secs_f64(busy));
        step.snapshot()
    }

    #[test]
    fn idle_operators_are_left_out_and_readers_and_loaders_are_not() {
        assert!(is_notable(&step(StepKind::Parse, 0.0), 10.0) && is_notable(&step(StepKind::Load, 0.0), 10.0));
        assert!(
            !is_notable(&step(StepKind::Transform, 0.05), 10.0) && is_notable(&step(StepKind::Transform, 0.2), 10.0)
        );
        let spilling = StepSnapshot { spilled_bytes: 1, ..step(StepKind::Transform, 0.0) };
        assert!(is_notable(&spilling, 10.0));
    }

    #[test]
    fn one_row_of_a_reloaded_file_is_one_row() {
        let shown = |rows| {
            let reloaded = ReloadedFiles { files: 1, rows_deleted: rows, rows_inserted: 1_000, without_rows: vec![] };
            replaced(&reloaded).trim().to_owned()
        };
        assert_eq!(shown(1), "reloaded 1 file that had changed: 1 row deleted, 1,000 inserted");
        assert_eq!(shown(2_000), "reloaded 1 file that had changed: 2,000 rows deleted, 1,000 inserted");
    }

    #[test]
    fn columns_without_anything_to_say_are_left_out() {
        let quiet = step(StepKind::Parse, 1.0);
        assert_eq!(
            steps(&[&quiet]),
            "step    kind   with  rows  bytes    busy  waited for input  for output\n\
             places  parse  x                  1.00 s\n"
        );
        let work = WorkSnapshot {
            workers: 2,
            rows_in: 5_000,
            rows_rejected: 0,
            restarts: 0,
            retries: 0,
            lost_seconds: 0.0,
            cpu_seconds: 3.5,
        };
        let worked = StepSnapshot { rows: 70, work: Some(work), ..step(StepKind::Transform, 2.0) };
        assert_eq!(
            steps(&[&worked]),
            "step    kind       with  workers  rows in  rows  bytes    busy  processor  waited for input  for output\n\
             places  transform  x           2    5,000    70         2.00 s     3.50 s\n"
        );
        let mut restarted = worked.clone();
        restarted.work.iter_mut().for_each(|work| (work.restarts, work.retries) = (2, 3));
        assert!(steps(&[&restarted]).contains("processor  restarts  retries  waited for input"));
        assert!(steps(&[&restarted]).contains("3.50 s         2        3"));
        let rejecting = StepSnapshot { rejected: 1_234, ..quiet };
        assert!(steps(&[&rejecting]).contains("for output  rejected\n") && steps(&[&rejecting]).contains("1,234"));
    }
}
