//! The top of a page: what ran, how it ended and why, when, and with which variables.

use std::time::Duration;

use maud::{Markup, html};
use millstream_core::Result;
use millstream_core::counts::{counted, duration, grouped};
use millstream_core::redact;
use millstream_state::{Outcome, RunHistory, RunKind, RunRecord};
use serde_json::{Map, Value};

use crate::parts::{cell, facts};
use crate::report::Sequence;
use crate::words::{class, file_name, moment, outcome, took};

/// How a run has ended, and why, in one line. A sequence whose mail is sent is still running: its report says how it
/// has ended so far.
pub fn outcome_line(run: &RunRecord) -> Markup {
    let sequence = Sequence::of(run.report.as_ref().unwrap_or(&Value::Null));
    let is_sequence = run.kind == RunKind::Sequence && !sequence.outcome.is_empty();
    let name = if is_sequence { sequence.outcome.as_str() } else { run.outcome.name() };
    let why = if is_sequence { of_sequence(run, &sequence) } else { of_job(run) };
    html! { p class={ "outcome " (class(name)) } { (outcome(name)) (why) } }
}

/// The name of the outcome that the page shows.
pub fn outcome_name(run: &RunRecord) -> String {
    let reported = run.report.as_ref().filter(|_| run.kind == RunKind::Sequence);
    let reported = reported.and_then(|report| report["outcome"].as_str()).filter(|name| !name.is_empty());
    reported.unwrap_or(run.outcome.name()).to_owned()
}

fn of_job(run: &RunRecord) -> String {
    let rows = || {
        let (written, rejected) = (grouped(run.rows_written), grouped(run.rows_rejected));
        format!("{} read, {written} written, {rejected} rejected", counted(run.rows_read, "row"))
    };
    let time = run.took().map(duration);
    let message = run.message.as_deref().unwrap_or("no reason is known");
    match run.outcome {
        Outcome::Done => format!(" in {}: {}", time.unwrap_or_default(), rows()),
        Outcome::Running if run.kind == RunKind::Sequence => format!(" since {}", moment(run.began)),
        Outcome::Running => {
            let rate = run.status.as_ref().map_or(0.0, |status| status.rate).round() as u64;
            format!(" since {}: {}, {} rows/s", moment(run.began), rows(), grouped(rate))
        }
        Outcome::Failed | Outcome::Interrupted => {
            let time = time.map_or_else(String::new, |time| format!(" after {time}"));
            format!("{time}: {message}")
        }
        Outcome::Killed => ": the process ended before it could record why".to_owned(),
        Outcome::Skipped => format!(": {message}"),
    }
}

fn of_sequence(run: &RunRecord, sequence: &Sequence) -> String {
    let began = sequence.began.unwrap_or(run.began);
    let time = sequence.ended.or(run.ended).map(|ended| took(ended.saturating_sub(began)));
    let message = sequence.message.as_ref().or(run.message.as_ref());
    let message = message.map_or_else(String::new, |message| format!(": {message}"));
    match (sequence.outcome.as_str(), time) {
        ("running", time) => {
            let failed = sequence.steps.iter().filter(|step| step.outcome == "failed").count();
            let so_far = match failed {
                0 => "no step has failed so far".to_owned(),
                1 => "1 step has failed so far".to_owned(),
                count => format!("{count} steps have failed so far"),
            };
            format!("{}: {so_far}", time.map_or_else(String::new, |time| format!(" for {time}")))
        }
        ("done", Some(time)) => format!(" in {time}{message}"),
        (_, Some(time)) => format!(" after {time}{message}"),
        (_, None) => message,
    }
}

/// When a run began and ended, what it belongs to, and its variables.
pub fn about(history: &RunHistory, run: &RunRecord) -> Result<Markup> {
    let sequence = run.report.as_ref().filter(|_| run.kind == RunKind::Sequence).map(Sequence::of).unwrap_or_default();
    let report = run.report.as_ref().unwrap_or(&Value::Null);
    let step = match &run.of_step {
        Some(of) => {
            let path = history.find(&of.sequence)?.map(|sequence| sequence.job);
            let path = path.map_or_else(String::new, |path| format!(" of {path}"));
            format!("{}{path}, run {}", of.step, of.sequence)
        }
        None => String::new(),
    };
    let attempts = report["attempts"].as_u64().filter(|attempts| *attempts > 1);
    let planned = sequence.moment.and_then(|moment| u64::try_from(moment).ok());
    let began = sequence.began.unwrap_or(run.began);
    let planned = planned.filter(|planned| began.abs_diff(*planned) > 1_000);
    let until = sequence.ended.or(run.ended);
    // The report of a sequence that sends it by mail says until when it is one.
    let ended = until.filter(|_| outcome_name(run) != Outcome::Running.name());
    let optional = |text: Option<&str>| text.map_or_else(|| cell(""), cell);
    let parameters = match sequence.parameters.is_empty() {
        true => lines(&run.shown_variables()),
        false => lines(&shown_parameters(&sequence.parameters)),
    };
    Ok(facts(vec![
        ("run", html! { code { (run.run) } }),
        (
            "resumes run",
            if run.logical == run.run {
                cell("")
            } else {
                html! { code { (run.logical) } }
            },
        ),
        ("is the step", cell(step)),
        ("is of", planned.map_or_else(|| cell(""), |planned| cell(moment(planned)))),
        ("began", cell(moment(began))),
        ("ended", ended.map_or_else(|| cell(""), |ended| cell(moment(ended)))),
        ("took", sequence_or_run(run, began, until).map_or_else(|| cell(""), |time| cell(duration(time)))),
        ("attempts", attempts.map_or_else(|| cell(""), |attempts| cell(attempts.to_string()))),
        (if run.kind == RunKind::Sequence { "parameters" } else { "variables" }, parameters),
        ("Millstream", optional(run.program.as_deref())),
    ]))
}

fn sequence_or_run(run: &RunRecord, began: u64, ended: Option<u64>) -> Option<Duration> {
    ended.map(|ended| Duration::from_millis(ended.saturating_sub(began))).or_else(|| run.took())
}

/// Parameters as lines, without secrets.
fn shown_parameters(parameters: &Map<String, Value>) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let line = |(name, value): (&String, &Value)| match redact::is_secret(name) {
        true => format!("{name}={}", redact::SHOWN),
        false => format!("{name}={}", text(value).replace('\n', " ")),
    };
    parameters.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn lines(text: &str) -> Markup {
    html! { @for line in text.lines() { div { code { (line) } } } }
}

/// The title of a page: what it is about in a list of mails or tabs.
pub fn title(run: &RunRecord) -> String {
    format!("{} {}", file_name(&run.job), crate::words::word(&outcome_name(run)))
}
