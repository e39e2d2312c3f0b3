//! The run of a job: its numbers, its graph, its steps, what was checked and rejected.

use std::collections::BTreeMap;

use maud::{Markup, html};
use millstream_core::counts::{counted, grouped, grouped_in};
use millstream_core::spec::Size;
use millstream_core::{Error, Result};
use millstream_state::rejects::{Kept, of_run};
use millstream_state::{RunHistory, RunRecord};
use serde_json::Value;

use crate::compare::compared;
use crate::graph::{Node, graph};
use crate::parts::{Cells, cell, figure, heading, some, table};
use crate::report::{Check, Entry, LeftFiles, MissingColumn, SinkResult, Skipped, Step, list};
use crate::words::{class, moment, seconds, word};
use crate::{rates, rejects};

/// A step that was busy for less than this share of the run is not shown, if it has counted nothing.
const NO_WORK: f64 = 0.01;

/// The most checks that are shown.
const CHECKS: usize = 200;

/// All about the run of a job; `before` is the one that it is compared with, and `level` that of its headings.
pub fn sections(history: &RunHistory, run: &RunRecord, before: Option<&RunRecord>, level: u8) -> Result<Markup> {
    let nothing = Value::Null;
    let report = run.report.as_ref().unwrap_or(&nothing);
    let verdict = report["verdict"]["sentence"].as_str();
    Ok(html! {
        @if let Some(sentence) = verdict { p { (sentence) } }
        (comparison(run, before, level))
        (results(report))
        (notes(report))
        (entries(report, level))
        (steps(report, level))
        (rates::section(level, report))
        (checks(report, level))
        (rejected(history, run, report, level))
    })
}

/// The run beside the one before it.
pub fn comparison(run: &RunRecord, before: Option<&RunRecord>, level: u8) -> Markup {
    let head = [
        ("", Cells::Words),
        ("this run", Cells::Number),
        ("run before", Cells::Number),
        ("change", Cells::Number),
        ("expected", Cells::Number),
    ];
    let rows: Vec<Vec<Markup>> = compared(run, before)
        .into_iter()
        .map(|line| [line.what.to_owned(), line.now, line.before, line.change, line.expected].map(cell).into())
        .collect();
    let caption = match before {
        Some(before) => {
            format!("Compared with run {}, the last complete one before it, of {}", before.run, moment(before.began))
        }
        None => "No complete run before it is known".to_owned(),
    };
    html! { (heading(level, "Numbers")) (table(&caption, &head, &rows)) }
}

/// What the sinks hold.
fn results(report: &Value) -> Markup {
    let results: Vec<SinkResult> = list(report, "results");
    html! {
        @if !results.is_empty() {
            ul { @for result in &results { li { b { (result.sink) } ": " (grouped_in(&result.summary)) } } }
        }
    }
}

/// What there is to know about files.
fn notes(report: &Value) -> Markup {
    let mut notes: Vec<String> = Vec::new();
    if report["nothing_new"] == true {
        notes.push("Nothing new: everything was loaded before.".to_owned());
    }
    if let Some(count) = report["units_loaded_before"].as_u64().filter(|count| *count > 0) {
        notes.push(format!("{}, loaded before: skipped.", counted(count, "file")));
    }
    for (key, what) in [
        ("not_ready", "not ready and left for a later run"),
        ("changed", "changed since they were loaded, and skipped"),
    ] {
        for LeftFiles { source, files, first } in list(report, key) {
            notes.push(format!("{source}: {}, {what}: {}", counted(files, "file"), named(&first, files)));
        }
    }
    for MissingColumn { source, column, files, first } in list(report, "missing_columns") {
        let lack = format!("{} without the column {column}, which is null there", counted(files, "file"));
        notes.push(format!("{source}: {lack}: {}", named(&first, files)));
    }
    for Skipped { source, uri, what } in list(report, "skipped") {
        notes.push(format!("{source}: {} cannot be opened and was left out: {what}", uri.unwrap_or_default()));
    }
    html! { @if !notes.is_empty() { ul { @for note in &notes { li { (note) } } } } }
}

fn named(first: &[String], of: u64) -> String {
    let more = if of > first.len() as u64 { ", …" } else { "" };
    format!("{}{more}", first.join(", "))
}

/// The graph of the entries.
fn entries(report: &Value, level: u8) -> Markup {
    let entries: Vec<Entry> = list(report, "entries");
    let steps: Vec<Step> = list(report, "steps");
    // A sink may have the name of a source.
    let number = |name: &str| entries.iter().position(|entry| entry.kind != "sink" && entry.entry == name);
    let edges: Vec<(usize, usize)> = entries
        .iter()
        .enumerate()
        .flat_map(|(to, entry)| entry.reads.iter().filter_map(move |from| Some((number(from)?, to))))
        .collect();
    let nodes: Vec<Node> = entries.iter().map(|entry| node(entry, &steps)).collect();
    let drawing = graph("The entries of the job, and which reads which", &nodes, &edges);
    let caption = "Sources, transforms and sinks, with the rows that came out of each, or into it.";
    html! { @if let Some(drawing) = drawing { (heading(level, "Graph")) (figure(&drawing, caption)) } }
}

fn node(entry: &Entry, steps: &[Step]) -> Node {
    let kind = match entry.kind.as_str() {
        "source" => "parse",
        "sink" => "load",
        _ => "transform",
    };
    let of_entry = || steps.iter().filter(|step| step.name == entry.entry && step.kind == kind);
    // A transform may be several operators, of which the last one gives its rows.
    let mut rows = of_entry().map(|step| step.rows);
    let rows = match kind {
        "transform" => rows.next_back().filter(|rows| *rows > 0),
        _ => rows.reduce(|one, other| one + other),
    };
    let rejected: u64 = of_entry().map(|step| step.rejected).sum();
    let mut note = entry.kind.clone();
    if let Some(rows) = rows {
        note.push_str(&format!(", {}", counted(rows, "row")));
    }
    if rejected > 0 {
        note.push_str(&format!(", {} rejected", grouped(rejected)));
    }
    Node { name: entry.entry.clone(), note, class: if rejected > 0 { "warn" } else { "" } }
}

fn steps(report: &Value, level: u8) -> Markup {
    let all: Vec<Step> = list(report, "steps");
    let whole = report["seconds"].as_f64().unwrap_or_default();
    let is_shown = |step: &&Step| {
        let counts = matches!(step.kind.as_str(), "fetch" | "decode" | "parse" | "load");
        counts || step.rejected + step.spilled_bytes > 0 || step.busy > (whole * NO_WORK).max(0.005)
    };
    let shown: Vec<&Step> = all.iter().filter(is_shown).collect();
    if shown.is_empty() {
        return html! {};
    }
    let size = |bytes: u64| Size(bytes).to_string();
    let row = |step: &&Step| {
        vec![
            cell(&step.name),
            cell(&step.kind),
            cell(&step.detail),
            some(step.rows, grouped),
            some(step.bytes, size),
            cell(seconds(step.busy)),
            cell(seconds(step.waiting_input)),
            cell(seconds(step.waiting_output)),
            some(step.rejected, grouped),
            some(step.spilled_bytes, size),
        ]
    };
    let rows: Vec<Vec<Markup>> = shown.iter().map(row).collect();
    let head = [
        ("step", Cells::Words),
        ("kind", Cells::Words),
        ("with", Cells::Text),
        ("rows", Cells::Number),
        ("bytes", Cells::Number),
        ("busy", Cells::Number),
        ("waited for input", Cells::Number),
        ("for output", Cells::Number),
        ("rejected", Cells::Number),
        ("spilled", Cells::Number),
    ];
    let idle = all.len() - shown.len();
    html! {
        (heading(level, "Steps"))
        (table("What each step did; times are summed over its tasks", &head, &rows))
        @if idle > 0 { p.note { (counted(idle as u64, "idle step")) " not shown." } }
    }
}

fn checks(report: &Value, level: u8) -> Markup {
    let mut checks: Vec<Check> = list(report, "checks");
    if checks.is_empty() {
        return html! {};
    }
    let count = checks.len();
    // Those that do not hold come first.
    checks.sort_by_key(|check| check.holds);
    let row = |check: &Check| {
        let (outcome, class) = match (check.holds, check.severity.as_str()) {
            (true, "reject") if check.broken > 0 => ("leaves out", "warn"),
            (true, _) => ("holds", "good"),
            (false, "warn") => ("does not hold", "warn"),
            (false, _) => ("does not hold", "bad"),
        };
        vec![
            cell(&check.entry),
            cell(&check.check),
            cell(&check.severity),
            html! { b class=(class) { (outcome) } },
            html! { (check.what) @for example in &check.examples { pre { (example) } } },
        ]
    };
    let rows: Vec<Vec<Markup>> = checks.iter().take(CHECKS).map(row).collect();
    let head = [
        ("entry", Cells::Words),
        ("check", Cells::Text),
        ("severity", Cells::Words),
        ("outcome", Cells::Words),
        ("found", Cells::Text),
    ];
    html! {
        (heading(level, "Checks"))
        (table("What had to hold, and whether it did", &head, &rows))
        @if count > CHECKS { p.note { (count - CHECKS) " more checks are not shown." } }
    }
}

/// The rejects of a run, and of those by which the same command has let sinks catch up.
fn rejected(history: &RunHistory, run: &RunRecord, report: &Value, level: u8) -> Markup {
    let passes = report["catch_up_runs"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let kept = || -> Result<Vec<Kept>> {
        let mut kept = Vec::new();
        for pass in passes {
            if let Some(pass) = history.find(pass)? {
                kept.extend(of_run(history.folder(), &pass.logical)?);
            }
        }
        kept.extend(of_run(history.folder(), &run.logical)?);
        Ok(kept)
    };
    match kept() {
        Ok(kept) => rejects::section(level, &run.run, &kept),
        // The rest of the page is worth having.
        Err(error) => html! { (heading(level, "Rejects")) p { b.bad { (in_words(&error)) } } },
    }
}

fn in_words(error: &Error) -> String {
    let cause = error.cause_text().map_or_else(String::new, |cause| format!(": {cause}"));
    format!("{}{cause}", error.what())
}

/// How many of each outcome there are, in words: `3 success, 1 failed`.
pub fn counts<'a>(outcomes: impl Iterator<Item = &'a str>) -> Markup {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    outcomes.for_each(|outcome| *counts.entry(outcome).or_default() += 1);
    html! {
        @for (number, (outcome, count)) in counts.iter().enumerate() {
            @if number > 0 { ", " }
            b class=(class(outcome)) { (count) " " (word(outcome)) }
        }
    }
}
