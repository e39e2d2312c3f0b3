//! Rejects by their reasons, with a few examples: for the page and for `millstream rejects`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use maud::{Markup, html};
use millstream_core::RejectKind;
use millstream_core::counts::{counted, grouped};
use millstream_core::error::printable;
use millstream_core::reject::{RawText, Rejected, place_of};
use millstream_state::rejects::Kept;

use crate::parts::heading;

/// How many examples are shown for a reason.
pub const EXAMPLES: usize = 3;

/// How many reasons the page shows.
const REASONS: usize = 30;

/// How much of a raw record is shown.
const SHOWN: usize = 100;

/// The rejects of one reason.
#[derive(Debug)]
pub struct Reason<'a> {
    /// The entry of the job that refused them.
    pub step: &'a str,
    /// Why, in one word.
    pub kind: RejectKind,
    /// The column at fault, if it is known.
    pub column: Option<&'a str>,
    /// They themselves.
    pub rejects: Vec<&'a Kept>,
}

/// Rejects by their reasons, the most frequent first.
pub fn by_reason<'a>(kept: &[&'a Kept]) -> Vec<Reason<'a>> {
    let mut reasons: BTreeMap<_, Vec<&Kept>> = BTreeMap::new();
    for one in kept {
        let Rejected { step, kind, column, .. } = &one.line.rejected;
        reasons.entry((step.as_str(), *kind, column.as_deref())).or_default().push(one);
    }
    let reason = |((step, kind, column), rejects)| Reason { step, kind, column, rejects };
    let mut reasons: Vec<Reason<'_>> = reasons.into_iter().map(reason).collect();
    reasons.sort_by_key(|reason| Reverse(reason.rejects.len()));
    reasons
}

/// A reject in words.
#[derive(Debug, PartialEq, Eq)]
pub struct Example {
    /// Where it is and what is wrong with it.
    pub what: String,
    /// The beginning of its record or row.
    pub record: Option<String>,
}

impl Example {
    /// That of `rejected`.
    pub fn of(rejected: &Rejected) -> Self {
        let place = place_of(&Rejected { column: None, ..rejected.clone() });
        let place = if place.is_empty() { String::new() } else { format!("{place}: ") };
        let raw = rejected.raw.as_ref().and_then(RawText::bytes);
        let row = rejected.row.as_ref().map(|row| row.as_str().map_or_else(|| row.to_string(), str::to_owned));
        let record = raw.map(|raw| printable(&raw)).or(row).map(|shown| {
            let cut: String = shown.chars().take(SHOWN).collect();
            let more = if cut.len() < shown.len() { "…" } else { "" };
            format!("{cut}{more}")
        });
        Example { what: format!("{place}{}", printable(rejected.message.as_bytes())), record }
    }
}

/// The rejects of the run `run`, as a section of a page; nothing if there are none.
pub(crate) fn section(level: u8, run: &str, kept: &[Kept]) -> Markup {
    let (waiting, replayed): (Vec<&Kept>, Vec<&Kept>) = kept.iter().partition(|kept| !kept.replayed);
    if kept.is_empty() {
        return html! {};
    }
    let reasons = by_reason(&waiting);
    html! {
        (heading(level, "Rejects"))
        p {
            (counted(waiting.len() as u64, "record")) " rejected"
            @if !replayed.is_empty() { "; " (grouped(replayed.len() as u64)) " more loaded later" }
            ". " code { "millstream rejects " (run) " --json" } " lists them all with their records."
        }
        @for reason in reasons.iter().take(REASONS) {
            p {
                (grouped(reason.rejects.len() as u64)) " × " b.bad { (reason.kind.name()) } ", by " (reason.step)
                @if let Some(column) = reason.column { ", column " (column) }
            }
            ul {
                @for kept in reason.rejects.iter().take(EXAMPLES) {
                    @let example = Example::of(&kept.line.rejected);
                    li { (example.what) @if let Some(record) = example.record { pre { (record) } } }
                }
            }
        }
        @if reasons.len() > REASONS { p.note { (reasons.len() - REASONS) " more reasons are not shown." } }
    }
}
