//! The report at the end of a run, for people.

use std::time::Duration;

use millstream_engine::report::Report;

use crate::output::{Output, Role};
use crate::table::table;
use crate::words;

/// What was done, what there is now, the steps, and what limited the run.
pub fn report(output: Output, report: &Report) -> String {
    let mut text = format!(
        "{} in {}: {} rows read, {} written, {} rejected\n",
        output.paint(Role::Strong, "done"),
        words::time(Duration::from_secs_f64(report.seconds.max(0.0))),
        words::count(report.rows_read),
        words::count(report.rows_written),
        words::count(report.rows_rejected),
    );
    for result in &report.results {
        text.push_str(&format!("  {} to {}: {}\n", result.sink, result.target, result.summary));
    }
    text.push('\n');
    text.push_str(&steps(report));
    text.push_str(&format!(
        "\npeak memory {} of {}\n",
        words::size(report.peak_rss_bytes),
        words::size(report.memory_bytes)
    ));
    text.push_str(&format!("{}\n", output.paint(Role::Strong, &report.verdict.sentence)));
    text
}

fn steps(report: &Report) -> String {
    let header = ["step", "kind", "with", "rows", "bytes", "busy", "waiting for input", "for output", "spilled"];
    let seconds = |seconds: f64| format!("{seconds:.2} s");
    let or_nothing = |number: u64, text: String| if number == 0 { String::new() } else { text };
    let rows: Vec<Vec<String>> = report
        .steps
        .iter()
        .map(|step| {
            vec![
                step.name.clone(),
                step.kind.to_string(),
                step.detail.clone(),
                or_nothing(step.rows, words::count(step.rows)),
                or_nothing(step.bytes, words::size(step.bytes)),
                seconds(step.busy),
                seconds(step.waiting_input),
                seconds(step.waiting_output),
                or_nothing(step.spilled_bytes, words::size(step.spilled_bytes)),
            ]
        })
        .collect();
    let spilled = report.steps.iter().any(|step| step.spilled_bytes > 0);
    let columns = if spilled { header.len() } else { header.len() - 1 };
    let header: Vec<String> = header[..columns].iter().map(|name| (*name).to_owned()).collect();
    let rows: Vec<Vec<String>> = rows.into_iter().map(|row| row[..columns].to_vec()).collect();
    table(&header, &rows, &[false, false, false, true, true, true, true, true, true])
}
