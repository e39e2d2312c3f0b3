//! `millstream runs --watch`: the list of runs as it changes, until Ctrl-C. On a terminal the list is drawn again in
//! its place, elsewhere each change is a line.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::Duration;

use console::{Term, measure_text_width};
use millstream::history::{Outcome, RunHistory, RunRecord};
use millstream::{Error, Result};
use tokio::signal::unix::{SignalKind, signal};

use crate::arguments::Runs;
use crate::human;
use crate::output::Output;
use crate::runs::{in_list, list_text, listed, moment};

/// The time between two looks at the history.
const INTERVAL: Duration = Duration::from_secs(1);

/// Shows the list of runs until a signal ends it.
pub fn watch(output: Output, history: &RunHistory, asked: &Runs) -> Result<()> {
    let failed = |cause: std::io::Error| Error::io("cannot wait for signals", &cause);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let mut interrupts = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut shown = match std::io::stdout().is_terminal() && !output.json {
            true => Shown::Screen(Screen::default()),
            false => Shown::Lines(None),
        };
        loop {
            let runs = listed(history, asked)?;
            match &mut shown {
                Shown::Screen(screen) => {
                    let list = list_text(history, &runs, asked.unfinished)?;
                    output.result(&screen.draw(&list, Term::stdout().size()))?;
                }
                Shown::Lines(known) => output.result(&changes(output, history, &runs, known)?)?,
            }
            tokio::select! {
                _ = interrupts.recv() => return Ok(()),
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
    })
}

/// What is shown so far.
enum Shown {
    Screen(Screen),
    /// The outcome of each run, once it is known.
    Lines(Option<BTreeMap<String, Outcome>>),
}

/// The list on a terminal.
#[derive(Debug, Default)]
struct Screen {
    /// How many lines it has.
    lines: usize,
}

impl Screen {
    /// What draws `text` in the place of what was drawn before, on a terminal of so many rows and columns. Each line is
    /// written over the old one, and never cleared before: an empty one would be seen as flicker.
    fn draw(&mut self, text: &str, (rows, columns): (u16, u16)) -> String {
        let mut drawn = match self.lines {
            0 => String::new(),
            lines => format!("\r\u{1b}[{lines}A"),
        };
        // The last row is where the cursor stays.
        let room = usize::from(rows.max(2) - 1);
        let lines = text.lines().flat_map(|line| broken(line, usize::from(columns.max(20)) - 1));
        let lines: Vec<String> = lines.take(room).collect();
        for line in &lines {
            let _ = writeln!(drawn, "{line}\u{1b}[K");
        }
        drawn.push_str("\u{1b}[J");
        self.lines = lines.len();
        drawn
    }
}

/// The rows that a line takes. If the terminal broke it, nobody would know how many these are.
fn broken(line: &str, columns: usize) -> Vec<String> {
    let (mut rows, mut width) = (vec![String::new()], 0);
    for character in line.chars() {
        let wide = measure_text_width(character.encode_utf8(&mut [0; 4]));
        if width + wide > columns {
            rows.push(String::new());
            width = 0;
        }
        width += wide;
        if let Some(row) = rows.last_mut() {
            row.push(character);
        }
    }
    rows
}

/// A line for each of `runs` that is new or has ended since `known`, the oldest first. The first look shows what is
/// running.
fn changes(
    output: Output,
    history: &RunHistory,
    runs: &[RunRecord],
    known: &mut Option<BTreeMap<String, Outcome>>,
) -> Result<String> {
    let is_first = known.is_none();
    let known = known.get_or_insert_default();
    // What runs for long may have left the list.
    let mut all = runs.to_vec();
    for (run, outcome) in known.iter() {
        if *outcome == Outcome::Running && !runs.iter().any(|other| other.run == *run) {
            all.extend(history.find(run)?);
        }
    }
    let mut text = String::new();
    for run in all.iter().rev() {
        let before = known.insert(run.run.clone(), run.outcome);
        let is_news = before != Some(run.outcome) && (!is_first || run.outcome == Outcome::Running);
        if is_news && output.json {
            let _ = writeln!(text, "{}", in_list(run));
        } else if is_news {
            text.push_str(&change(run));
        }
    }
    // Those that have ended, and are not listed any more, do not come again.
    known.retain(|name, outcome| *outcome == Outcome::Running || runs.iter().any(|run| run.run == *name));
    Ok(text)
}

/// A run that has begun or ended, as a line.
fn change(run: &RunRecord) -> String {
    let RunRecord { run: name, job, outcome, .. } = run;
    let at = moment(run.ended.unwrap_or(run.began));
    let took = run.took().map(human::time).unwrap_or_default();
    let what = match outcome {
        Outcome::Running => String::new(),
        Outcome::Done => {
            let [read, written, rejected] = [run.rows_read, run.rows_written, run.rows_rejected].map(human::count);
            format!(" in {took}: {read} read, {written} written, {rejected} rejected")
        }
        _ => run.message.as_ref().map_or_else(String::new, |message| format!(": {}", message.replace('\n', " "))),
    };
    format!("{at} run {name} of {job}: {}{what}\n", outcome.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_drawn_over_the_one_before_and_fits_the_terminal() {
        let mut screen = Screen::default();
        let first = screen.draw("run  job\na    x\nb    y\n", (24, 80));
        assert_eq!(first, "run  job\u{1b}[K\na    x\u{1b}[K\nb    y\u{1b}[K\n\u{1b}[J");
        let second = screen.draw(&format!("run\n{}\n", "x".repeat(30)), (24, 30));
        let long = format!("{}\u{1b}[K\nx\u{1b}[K\n", "x".repeat(29));
        assert_eq!(second, format!("\r\u{1b}[3Arun\u{1b}[K\n{long}\u{1b}[J"));
        assert_eq!(broken("", 5), [""]);
        assert_eq!(broken("日本語", 5), ["日本", "語"]);
        let low = screen.draw("1\n2\n3\n4\n5\n", (3, 30));
        assert_eq!((low.matches('\n').count(), screen.lines), (2, 2), "{low:?}");
    }
}
