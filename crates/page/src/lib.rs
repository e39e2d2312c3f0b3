//! Reports as pages: one HTML file of a run in the history, which needs nothing else. It has no script and asks for
//! nothing, so that it can be sent by mail, kept and printed.
//!
//! ```text
//!  head       what ran, how it ended and why, when, with which variables
//!  job        of a job: numbers beside those of the run before, graph, steps, rates, checks, rejects
//!  sequence   of a sequence: its steps as a graph, over time and as a table; the runs of its jobs
//! ```
//! `report.rs` is what is read of reports; `graph`, `rates.rs` and `timeline.rs` draw, with the scales of `axis.rs`;
//! `parts.rs` and `words.rs` are what all of them use. [`compare`] and [`rejects`] are for the command, too.

mod axis;
pub mod compare;
mod graph;
mod head;
mod job;
mod parts;
mod rates;
pub mod rejects;
mod report;
mod sequence;
mod timeline;
mod words;

#[cfg(test)]
mod tests;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use millstream_core::{Result, clock};
use millstream_state::{RunHistory, RunKind, RunRecord};
use serde_json::Value;

const STYLE: &str = include_str!("style.css");

/// What a browser is to do with the page: it asks for nothing, and runs nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// The page of `run`. `report` stands for the report in the history: that of a run which has not ended.
///
/// # Errors
/// If the history cannot be read.
pub fn html(history: &RunHistory, run: &RunRecord, report: Option<&Value>) -> Result<String> {
    let run = match report {
        Some(report) => {
            let ended = run.ended.or_else(|| report["ended"].as_u64());
            RunRecord { report: Some(report.clone()), ended, ..run.clone() }
        }
        None => run.clone(),
    };
    let before = history.done_before(&run)?;
    let sections = match run.kind {
        RunKind::Job => job::sections(history, &run, before.as_ref(), 2)?,
        RunKind::Sequence => sequence::sections(history, &run, before.as_ref())?,
    };
    Ok(document(history, &run, &sections)?.into_string())
}

fn document(history: &RunHistory, run: &RunRecord, sections: &Markup) -> Result<Markup> {
    let day = words::day(run.began);
    Ok(html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (head::title(run)) ", " (day) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    header {
                        h1 { (words::file_name(&run.job)) }
                        p.path { (run.job) }
                        (head::outcome_line(run))
                        (head::about(history, run)?)
                    }
                    (sections)
                    footer {
                        p { "Written by Millstream " (env!("CARGO_PKG_VERSION")) " at " (words::moment(clock::now())) }
                    }
                }
            }
        }
    })
}
