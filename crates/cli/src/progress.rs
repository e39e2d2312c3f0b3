//! Progress of a run: a bar on a terminal, and lines at intervals elsewhere.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millstream::report::{ClusterReport, Lag, Phase, Progress, QueueProgress, WorkedRows};

use millstream::text::counted;

use crate::human;
use crate::output::Output;

/// The time between two lines if there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Shows progress.
pub struct Display {
    output: Output,
    bar: Option<ProgressBar>,
    /// When the last line was written, since the run began.
    last_line: Mutex<Duration>,
}

impl Display {
    /// A display with a bar if standard error is a terminal; with `--quiet` it shows nothing.
    pub fn new(output: Output) -> Self {
        let terminal = std::io::stderr().is_terminal() && !output.quiet;
        let bar = terminal.then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
            bar.set_style(style(false, output.colors));
            bar
        });
        Display { output, bar, last_line: Mutex::new(Duration::ZERO) }
    }

    /// Shows `progress`.
    pub fn show(&self, progress: &Progress) {
        match &self.bar {
            Some(bar) => {
                let known = progress.totals.bytes_expected > 0;
                if known && bar.length().is_none() {
                    bar.set_style(style(true, self.output.colors));
                }
                if known {
                    bar.set_length(progress.totals.bytes_expected.max(progress.totals.bytes_read));
                }
                bar.set_position(progress.totals.bytes_read);
                bar.set_message(line(progress));
                bar.tick();
            }
            None => self.plain(progress),
        }
    }

    fn plain(&self, progress: &Progress) {
        let mut last = self.last_line.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if progress.elapsed.saturating_sub(*last) >= LINE_INTERVAL {
            *last = progress.elapsed;
            self.output.chat(&format!("{}: {}\n", human::time(progress.elapsed), line(progress)));
        }
    }

    /// Removes the bar.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Writes a line above the bar.
    pub fn message(&self, text: &str) {
        self.hide_while(|| self.output.message(text));
    }

    /// Hides the bar while `write` writes.
    pub fn hide_while(&self, write: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}

fn style(known: bool, colors: bool) -> ProgressStyle {
    let template = match (known, colors) {
        (true, true) => "{bar:30.cyan} {percent:>3}%  {msg}",
        (true, false) => "{bar:30} {percent:>3}%  {msg}",
        (false, _) => "{spinner}  {msg}",
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// The progress, its rate, and the remaining time, as a line.
pub fn line(progress: &Progress) -> String {
    let totals = &progress.totals;
    let seconds = progress.elapsed.as_secs_f64().max(1e-3);
    if let Some(queue) = &progress.queue {
        return of_queue(progress, queue);
    }
    if let Some(cluster) = &progress.cluster
        && cluster.now > 0
    {
        return of_cluster(progress, cluster);
    }
    let mut parts = Vec::new();
    if totals.bytes_expected > totals.bytes_read {
        parts.push(format!("{} of {}", human::size(totals.bytes_read), human::size(totals.bytes_expected)));
    } else {
        parts.push(human::size(totals.bytes_read));
    }
    let rate = format!("{}/s", human::size((totals.bytes_read as f64 / seconds) as u64));
    parts.push(match progress.throttle {
        Some(most) => format!("{rate} of {}/s allowed", human::size(most)),
        None => rate,
    });
    parts.extend(rows(progress));
    match (progress.phase, progress.remaining()) {
        (Phase::Committing, _) => parts.push("committing".to_owned()),
        (Phase::Finishing, _) => parts.push("finishing".to_owned()),
        (Phase::Reading, Some(remaining)) => parts.push(format!("about {} left", human::time(remaining))),
        (Phase::Reading, None) => {}
    }
    parts.join(", ")
}

/// The rows so far, and those of steps that processes compute.
fn rows(progress: &Progress) -> Vec<String> {
    let totals = &progress.totals;
    let mut parts = vec![format!("{} rows", human::count(totals.rows_read))];
    if totals.rows_rejected > 0 {
        parts.push(format!("{} rejected", human::count(totals.rows_rejected)));
    }
    for WorkedRows { step, rows_in, rows_out } in progress.worked.iter().filter(|worked| worked.rows_in > 0) {
        parts.push(format!("{step}: {} in, {} out", human::count(*rows_in), human::count(*rows_out)));
    }
    parts
}

/// The progress of a run whose files workers read: `3 workers, 120 of 2,000 files, 12 MB of 90 MB, 40,000 rows`.
fn of_cluster(progress: &Progress, cluster: &ClusterReport) -> String {
    let ((files, all_files), (bytes, all_bytes)) = (cluster.units, cluster.bytes);
    let mut parts =
        vec![counted(cluster.now, "worker"), format!("{} of {} files", human::count(files), human::count(all_files))];
    // Some servers do not say how large their files are.
    parts.extend((all_bytes > 0).then(|| format!("{} of {}", human::size(bytes), human::size(all_bytes))));
    parts.push(format!("{} rows", human::count(progress.totals.rows_written)));
    if progress.totals.rows_rejected > 0 {
        parts.push(format!("{} rejected", human::count(progress.totals.rows_rejected)));
    }
    let lost = cluster.workers.iter().filter(|worker| worker.lost.is_some()).count();
    parts.extend((lost > 0).then(|| format!("{} lost", counted(lost as u64, "worker"))));
    parts.join(", ")
}

/// The progress of a run that reads a queue: what it does now, and what it has done.
fn of_queue(progress: &Progress, queue: &QueueProgress) -> String {
    format!("{}, {}", pace(progress.rate, &queue.lag), rows(progress).join(", "))
}

/// How fast a queue is read, and how far it is behind: `12,345 msg/s · 1,204 behind · oldest 0.8 s`.
pub fn pace(rate: f64, lag: &Lag) -> String {
    let mut parts = vec![format!("{} msg/s", human::count(rate.round() as u64))];
    parts.extend(lag.messages.map(|messages| format!("{} behind", human::count(messages))));
    parts.extend(lag.oldest.map(|oldest| format!("oldest {}", human::age(oldest))));
    parts.join(" · ")
}

#[cfg(test)]
mod tests {
    use millstream::report::{EpochCounts, Totals};

    use super::*;

    #[test]
    fn a_line_tells_rate_and_time_left() {
        let totals =
            Totals { bytes_read: 25_000_000, bytes_expected: 100_000_000, rows_read: 12_345, ..Totals::default() };
        let progress = Progress { elapsed: Duration::from_secs(5), totals, ..Progress::default() };
        assert_eq!(line(&progress), "25.0 MB of 100 MB, 5.00 MB/s, 12,345 rows, about 15.0 s left");
        let throttled = Progress { throttle: Some(5_000_000), ..progress.clone() };
        let told = "25.0 MB of 100 MB, 5.00 MB/s of 5.00 MB/s allowed, 12,345 rows, about 15.0 s left";
        assert_eq!(line(&throttled), told);
        let worked = vec![WorkedRows { step: "scored".to_owned(), rows_in: 12_000, rows_out: 3_000 }];
        let progress = Progress { phase: Phase::Committing, worked, ..progress };
        assert_eq!(
            line(&progress),
            "25.0 MB of 100 MB, 5.00 MB/s, 12,345 rows, scored: 12,000 in, 3,000 out, committing"
        );
    }

    #[test]
    fn a_run_that_reads_a_queue_tells_how_it_goes_now() {
        let lag = Lag { messages: Some(1_204), oldest: Some(Duration::from_millis(810)) };
        assert_eq!(pace(12_345.4, &lag), "12,345 msg/s · 1,204 behind · oldest 0.8 s");
        assert_eq!(pace(0.0, &Lag::default()), "0 msg/s");
        let progress = Progress {
            elapsed: Duration::from_secs(3_600),
            totals: Totals { rows_read: 40_000, rows_rejected: 2, ..Totals::default() },
            rate: 10.0,
            queue: Some(QueueProgress { messages: 40_000, epochs: EpochCounts::default(), lag }),
            ..Progress::default()
        };
        assert_eq!(line(&progress), "10 msg/s · 1,204 behind · oldest 0.8 s, 40,000 rows, 2 rejected");
    }
}
