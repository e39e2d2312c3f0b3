//! The run of a sequence: its steps as a graph, over time and as a table, and the runs of its jobs.

use std::collections::BTreeMap;

use maud::{Markup, html};
use millstream_core::{Result, clock, redact};
use millstream_state::{RunHistory, RunKind, RunRecord};
use serde_json::Value;

use crate::compare::change;
use crate::graph::{Node, graph};
use crate::head::{about, outcome_line, outcome_name};
use crate::job;
use crate::parts::{Cells, cell, figure, heading, table};
use crate::report::{Part, Sequence, SequenceStep};
use crate::timeline::{Bar, Row, timeline};
use crate::words::{class, file_name, outcome, signed, time_beside, took};

/// The most runs of steps that are shown in full, and how deep sequences in sequences are followed.
const RUNS: usize = 50;
const DEPTH: usize = 4;

/// The most parts of a step that have lines of their own.
const PARTS: usize = 100;

/// The most results of a step that are named, and the most characters of each.
const RESULTS: usize = 8;
const RESULT: usize = 60;

/// The run of a step, and the one of the same step that it is compared with.
struct OfStep {
    step: String,
    run: RunRecord,
    before: Option<RunRecord>,
}

/// All about the run of a sequence.
pub fn sections(history: &RunHistory, run: &RunRecord, before: Option<&RunRecord>) -> Result<Markup> {
    let runs = runs_of_steps(history, run, before)?;
    let (all, shown) = (runs.len(), first_failed(runs));
    let names: Vec<&str> = shown.iter().map(|of| of.run.run.as_str()).collect();
    let mut articles = Vec::new();
    for of in &shown {
        articles.push(article(history, of, &names)?);
    }
    Ok(html! {
        (steps(run, before, &names, 2))
        (job::comparison(run, before, 2))
        @if !shown.is_empty() { h2 { "Runs of the steps" } }
        @if all > shown.len() {
            p.note {
                (all - shown.len()) " more runs are not shown; " code { "millstream runs" } " lists them, "
                code { "millstream report RUN --html" } " shows each."
            }
        }
        @for article in &articles { (article) }
    })
}

/// The run of a step, in the page of its sequence.
fn article(history: &RunHistory, of: &OfStep, names: &[&str]) -> Result<Markup> {
    let OfStep { step, run, before } = of;
    Ok(html! {
        article id=(anchor(&run.run)) {
            h3 { (step) ": " (file_name(&run.job)) }
            p.path { (run.job) }
            (outcome_line(run))
            (about(history, run)?)
            @if run.kind == RunKind::Sequence {
                (steps(run, before.as_ref(), names, 4))
            } @else {
                (job::sections(history, run, before.as_ref(), 4)?)
            }
        }
    })
}

fn report_of(run: &RunRecord) -> Sequence {
    Sequence::of(run.report.as_ref().unwrap_or(&Value::Null))
}

/// The steps of a sequence.
fn steps(run: &RunRecord, before: Option<&RunRecord>, names: &[&str], level: u8) -> Markup {
    let sequence = report_of(run);
    if sequence.steps.is_empty() {
        return html! { p.note { "What its steps did is not recorded." } };
    }
    let outcomes = || sequence.steps.iter().map(|step| step.outcome.as_str());
    let now = clock::now();
    let began = sequence.began.unwrap_or(run.began);
    let ended = sequence.ended.or(run.ended).unwrap_or(now);
    let rows: Vec<Row<'_>> = sequence.steps.iter().map(|step| row(step, ended)).collect();
    let bars = timeline("The steps over time", began, ended, &rows);
    html! {
        (heading(level, "Steps"))
        p { (job::counts(outcomes())) }
        @if let Some(drawing) = drawn(&sequence) {
            (figure(&drawing, "The steps, with how each ended. A step stands to the right of those that it needs."))
        }
        @if let Some(bars) = bars { (figure(&bars, "The steps over time, since the sequence began.")) }
        (step_table(&sequence, began, before, names))
    }
}

/// The graph of the steps.
fn drawn(sequence: &Sequence) -> Option<Markup> {
    let node = |step: &SequenceStep| {
        let time = length(step.began, step.ended).map_or_else(String::new, |time| format!(", {}", took(time)));
        let note = format!("{}{time}", signed(&step.outcome));
        Node { name: step.name.clone(), note, class: class(&step.outcome) }
    };
    let nodes: Vec<Node> = sequence.steps.iter().map(node).collect();
    let number = |name: &String| sequence.steps.iter().position(|step| step.name == *name);
    let edges: Vec<(usize, usize)> = sequence
        .steps
        .iter()
        .enumerate()
        .flat_map(|(to, step)| step.needs.iter().filter_map(move |needs| Some((number(needs)?, to))))
        .collect();
    graph("The steps of the sequence, and which needs which", &nodes, &edges)
}

/// The bars of a step: one for each part that has begun.
fn row(step: &SequenceStep, now: u64) -> Row<'_> {
    let bar = |part: &Part| {
        let item = part.item.as_ref().map_or_else(String::new, |item| format!(" {item}"));
        let attempts = if part.attempts > 1 { format!(", {} attempts", part.attempts) } else { String::new() };
        Some(Bar {
            began: part.began?,
            ended: part.ended.unwrap_or(now),
            outcome: part.outcome.clone(),
            what: format!("{}{item}{attempts}", step.name),
        })
    };
    let mut bars: Vec<Bar> = step.parts.iter().filter_map(bar).collect();
    // Steps of some kinds have no parts.
    if let Some(began) = step.began.filter(|_| bars.is_empty()) {
        let (ended, outcome) = (step.ended.unwrap_or(now), step.outcome.clone());
        bars.push(Bar { began, ended, outcome, what: step.name.clone() });
    }
    Row { name: &step.name, bars }
}

fn length(began: Option<u64>, ended: Option<u64>) -> Option<u64> {
    Some(ended?.saturating_sub(began?))
}

/// The steps of a sequence that began at `began`, beside those of the run before.
fn step_table(sequence: &Sequence, began: u64, before: Option<&RunRecord>, names: &[&str]) -> Markup {
    let earlier = before.map(report_of).unwrap_or_default();
    let earlier: BTreeMap<&str, u64> =
        earlier.steps.iter().filter_map(|step| Some((step.name.as_str(), length(step.began, step.ended)?))).collect();
    let mut rows = Vec::new();
    for step in &sequence.steps {
        let one = (step.parts.len() == 1).then(|| &step.parts[0]).filter(|part| part.item.is_none());
        let (time, before) = (length(step.began, step.ended), earlier.get(step.name.as_str()).copied());
        let message = step.message.clone().or_else(|| one.and_then(|part| part.message.clone()));
        let attempts = one.map_or(1, |part| part.attempts);
        rows.push(vec![
            cell(&step.name),
            cell(format!("{} {}", step.kind, step.what)),
            cell(step.needs.join(", ")),
            cell(if step.when == "success" { "" } else { &step.when }),
            html! { (outcome(&step.outcome)) (after(attempts)) },
            cell(message.or_else(|| one.map(results)).unwrap_or_default()),
            step.began.map_or_else(|| cell(""), |at| cell(time_beside(at, began))),
            time.map_or_else(|| cell(""), |time| cell(took(time))),
            before.map_or_else(|| cell(""), |time| cell(took(time))),
            cell(change(time, before)),
            one.map_or_else(|| cell(""), |part| link(part, names)),
        ]);
        if one.is_none() {
            rows.extend(step.parts.iter().take(PARTS).map(|part| part_row(part, began, names)));
            if step.parts.len() > PARTS {
                rows.push(vec![cell(format!("… {} more", step.parts.len() - PARTS))]);
            }
        }
    }
    let head = [
        ("step", Cells::Words),
        ("what", Cells::Text),
        ("needs", Cells::Words),
        ("when", Cells::Words),
        ("outcome", Cells::Word),
        ("result", Cells::Text),
        ("began", Cells::Word),
        ("took", Cells::Number),
        ("before", Cells::Number),
        ("change", Cells::Number),
        ("run", Cells::Words),
    ];
    table("The steps, and the items of loops", &head, &rows)
}

/// An item of a step; the sequence began at `began`.
fn part_row(part: &Part, began: u64, names: &[&str]) -> Vec<Markup> {
    let empty = || cell("");
    vec![
        cell(format!("·\u{a0}{}", part.item.as_deref().unwrap_or("once"))),
        empty(),
        empty(),
        empty(),
        html! { (outcome(&part.outcome)) (after(part.attempts)) },
        cell(part.message.clone().unwrap_or_else(|| results(part))),
        part.began.map_or_else(empty, |at| cell(time_beside(at, began))),
        length(part.began, part.ended).map_or_else(empty, |time| cell(took(time))),
        empty(),
        empty(),
        link(part, names),
    ]
}

/// How often something was attempted, if that is worth saying.
fn after(attempts: u64) -> String {
    if attempts > 1 { format!(" after {attempts} attempts") } else { String::new() }
}

/// The run of a part, as a link if the page has it.
fn link(part: &Part, names: &[&str]) -> Markup {
    match &part.run {
        Some(run) if names.contains(&run.as_str()) => html! { a href={ "#" (anchor(run)) } { (run) } },
        Some(run) => cell(run),
        None => cell(""),
    }
}

/// What a step gave to later ones: `rows_written=5`.
fn results(part: &Part) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let shown = |(name, value): (&String, &Value)| match redact::is_secret(name) {
        true => format!("{name}={}", redact::SHOWN),
        false => format!("{name}={}", beginning(&text(value))),
    };
    // Its run has a column.
    let results = part.results.as_object().into_iter().flatten().filter(|(name, _)| *name != "run");
    results.take(RESULTS).map(shown).collect::<Vec<_>>().join(", ")
}

/// The beginning of a text that may be long, such as what a program has written.
fn beginning(text: &str) -> String {
    match text.char_indices().nth(RESULT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The place of a run in the page. Only what a fragment may have stays of its name.
fn anchor(run: &str) -> String {
    let plain = run.chars().map(|one| if one.is_ascii_alphanumeric() { one } else { '-' });
    format!("run-{}", plain.collect::<String>())
}

/// The runs of the steps of `run` that the history has, and of those of sequences among them.
fn runs_of_steps(history: &RunHistory, run: &RunRecord, before: Option<&RunRecord>) -> Result<Vec<OfStep>> {
    let mut runs: Vec<OfStep> = Vec::new();
    let mut left = vec![(run.clone(), before.cloned(), String::new(), 0)];
    while let Some((sequence, before, path, depth)) = left.pop() {
        let earlier = before.as_ref().map(parts_of).unwrap_or_default();
        let mut nested = Vec::new();
        for (step, item, name, attempts) in parts_of(&sequence) {
            let is_known = name == run.run || runs.iter().any(|of| of.run.run == name);
            let Some(found) = history.find(&name)?.filter(|_| !is_known) else { continue };
            // Jobs of a sequence often have the day among their variables, and none before of the same.
            let same = earlier.iter().rev().find(|(other, of, ..)| (other, of) == (&step, &item));
            let before = match same {
                Some((_, _, name, _)) => history.find(name)?,
                None => history.done_before(&found)?,
            };
            let label = [path.as_str(), &step, item.as_deref().unwrap_or_default()].join(" ").trim().to_owned();
            if found.kind == RunKind::Sequence && depth < DEPTH {
                nested.push((found.clone(), before.clone(), label.clone(), depth + 1));
            }
            for earlier in if attempts > 1 { attempts_before(history, &found, &sequence)? } else { Vec::new() } {
                runs.push(OfStep {
                    step: format!("{label}, an earlier attempt"),
                    run: earlier,
                    before: before.clone(),
                });
            }
            runs.push(OfStep { step: label, run: found, before });
        }
        left.extend(nested.into_iter().rev());
    }
    Ok(runs)
}

/// The runs of the same step before `last`, since `sequence` began, in their order.
fn attempts_before(history: &RunHistory, last: &RunRecord, sequence: &RunRecord) -> Result<Vec<RunRecord>> {
    let Some(of) = &last.of_step else { return Ok(Vec::new()) };
    let all = history.of_step(of)?;
    let before = all.into_iter().skip_while(|run| run.run != last.run).skip(1);
    let began = report_of(sequence).began.unwrap_or(sequence.began);
    let mut before: Vec<RunRecord> = before.take_while(|run| run.began >= began).collect();
    before.reverse();
    Ok(before)
}

/// The step, the item, the name of the run and the number of attempts of each part in the report of a sequence.
fn parts_of(run: &RunRecord) -> Vec<(String, Option<String>, String, u64)> {
    let parts = report_of(run).steps.into_iter().flat_map(|SequenceStep { name, parts, .. }| {
        parts.into_iter().filter_map(move |part| Some((name.clone(), part.item, part.run?, part.attempts)))
    });
    parts.collect()
}

/// As many runs as are shown, in their order. If there are more, those that are not done are worth more.
fn first_failed(runs: Vec<OfStep>) -> Vec<OfStep> {
    let mut order: Vec<usize> = (0..runs.len()).collect();
    order.sort_by_key(|number| outcome_name(&runs[*number].run) == "done");
    let kept = &order[..order.len().min(RUNS)];
    runs.into_iter().enumerate().filter(|(number, _)| kept.contains(number)).map(|(_, of)| of).collect()
}
