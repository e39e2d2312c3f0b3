//! How the steps of a sequence depend on each other: unknown names, cycles, results that are not there yet.
//!
//! It works on the tree, so that one broken step does not hide what is wrong with the names of the others.

use millstream_core::hint::did_you_mean;

use super::graph::{Graph, reached};
use super::references::{Results, in_sql};
use super::step::KINDS;
use super::template::{Reference, references_in};
use crate::build::{text, texts};
use crate::lint::Lint;
use crate::text::{JobText, Span};
use crate::tree::Entry;

/// What the steps of a sequence are together.
pub(crate) struct Links {
    /// The graph, unless names are unknown or there is a cycle.
    pub(crate) graph: Option<Graph>,
    /// What is wrong.
    pub(crate) lints: Vec<Lint>,
    /// What is odd, if nothing else is wrong with the file.
    pub(crate) doubts: Vec<Lint>,
}

/// Finds what needs what.
pub(crate) fn link(steps: &[Entry], text: &JobText) -> Links {
    let names: Vec<&str> = steps.iter().map(|entry| entry.key.as_str()).collect();
    let mut linker = Linker { text, steps, names, needs: Vec::new(), places: Vec::new(), lints: Vec::new() };
    for index in 0..steps.len() {
        linker.needs_of(index);
    }
    let is_known = linker.lints.iter().all(|lint| !lint.is_error());
    let graph = match Graph::new(linker.needs.clone()) {
        Ok(graph) => Some(graph).filter(|_| is_known),
        Err(cycles) => {
            cycles.iter().for_each(|cycle| linker.cycle(cycle));
            None
        }
    };
    for index in 0..steps.len() {
        linker.results_of(index);
        linker.never(index);
    }
    // Named files may have the variable.
    let names_no_file = |step: &&Entry| step.value.get("job").is_none() && step.value.get("sequence").is_none();
    let doubt = |step: &Entry| same_items(step, step.value.get("for_each")?.entries().first()?, text);
    let doubts = steps.iter().filter(names_no_file).filter_map(doubt).collect();
    Links { graph, lints: linker.lints, doubts }
}

struct Linker<'a> {
    text: &'a JobText,
    steps: &'a [Entry],
    names: Vec<&'a str>,
    /// For each step those that it needs, by number.
    needs: Vec<Vec<usize>>,
    /// Where they are named.
    places: Vec<Vec<Span>>,
    lints: Vec<Lint>,
}

impl Linker<'_> {
    fn error(&mut self, span: Span, what: impl Into<String>, hint: impl Into<String>) {
        self.lints.push(self.text.error(span, what).hint(hint));
    }

    fn number(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|step| *step == name)
    }

    fn needs_of(&mut self, index: usize) {
        let (mut needs, mut places) = (Vec::new(), Vec::new());
        for need in texts(self.steps[index].value.get("needs")) {
            match self.number(&need.value) {
                Some(number) if needs.contains(&number) => {
                    let what = format!("`{}` is needed twice", need.value);
                    self.lints.push(self.text.warning(need.span, what).hint("remove one of them"));
                }
                Some(number) => {
                    needs.push(number);
                    places.push(need.span);
                }
                None => {
                    let hint = did_you_mean(&need.value, "steps", &self.names);
                    self.error(need.span, format!("there is no step `{}`", need.value), hint);
                }
            }
        }
        self.needs.push(needs);
        self.places.push(places);
    }

    /// Where `step` says that it needs `need`.
    fn place(&self, step: usize, need: usize) -> Span {
        let place = self.needs[step].iter().position(|one| *one == need).and_then(|at| self.places[step].get(at));
        place.copied().unwrap_or(self.steps[step].key_span)
    }

    /// A cycle: each of its steps needs the next.
    fn cycle(&mut self, cycle: &[usize]) {
        let next = |at: usize| cycle[(at + 1) % cycle.len()];
        let span = self.place(cycle[0], next(0));
        let first = self.names[cycle[0]];
        if cycle.len() == 1 {
            return self.error(span, format!("`{first}` needs itself"), "remove it from its `needs`");
        }
        let others: Vec<&str> = (0..cycle.len()).map(|at| self.names[next(at)]).collect();
        let what = format!("`{first}` needs itself indirectly: it needs `{}`", others.join("`, which needs `"));
        let links: Vec<String> = (0..cycle.len())
            .map(|at| format!("`{}` in line {}", self.names[next(at)], self.place(cycle[at], next(at)).line))
            .collect();
        self.error(span, what, format!("remove one of these from its `needs`: {}", links.join(", ")));
    }

    /// Checks the results of steps that a step uses.
    fn results_of(&mut self, index: usize) {
        let node = &self.steps[index].value;
        for (reference, span) in references_in(node) {
            if let Reference::Result { step, name } = reference {
                self.result(index, &step, &name, span, false);
            }
        }
        let when = text(node.get("when")).filter(|when| !is_name_of_condition(&when.value));
        for found in when.iter().flat_map(in_sql) {
            self.result(index, &found.step, &found.name, found.span, true);
        }
    }

    /// Checks one result; in SQL capitals do not count.
    fn result(&mut self, index: usize, step: &str, name: &str, span: Span, is_sql: bool) {
        let folded = || self.names.iter().position(|known| is_sql && known.eq_ignore_ascii_case(step));
        let own = self.names[index];
        let Some(number) = self.number(step).or_else(folded) else {
            let hint = did_you_mean(step, "steps", &self.names);
            return self.error(span, format!("there is no step `{step}`"), hint);
        };
        if number == index {
            return self.error(span, format!("`{own}` cannot use its own results"), "use those of earlier steps");
        }
        if !self.needs[index].contains(&number) && !reached(&self.needs, index)[number] {
            let (what, hint) = match reached(&self.needs, number)[index] {
                true => (
                    format!("`{step}` runs after `{own}`, and has no results yet"),
                    "use results of earlier steps only".to_owned(),
                ),
                false => (
                    format!("`{step}` may not be over when `{own}` starts"),
                    format!("add `{step}` to the `needs` of `{own}`"),
                ),
            };
            return self.error(span, what, hint);
        }
        if name.is_empty() {
            return self.error(span, format!("`steps.{step}` names no result"), "write `steps.NAME.RESULT`");
        }
        let Some(results) = self.results(number) else { return };
        let has = |name: &str| results.has(name);
        if let (Results::Named(known), false) = (&results, has(name) || is_sql && has(&name.to_lowercase())) {
            let hint = did_you_mean(name, &format!("results of `{step}`"), known);
            self.error(span, format!("`{step}` has no result `{name}`"), hint);
        }
    }

    /// The results of a step; `None` if it is not known what it does.
    fn results(&self, number: usize) -> Option<Results> {
        let node = &self.steps[number].value;
        let mut kinds = KINDS.iter().filter(|kind| node.get(kind).is_some());
        let (kind, None) = (kinds.next()?, kinds.next()) else { return None };
        let waits_for_query = node.get("wait").is_some_and(|wait| wait.get("query").is_some());
        Some(Results::of(kind, node.get("for_each").is_some(), waits_for_query))
    }

    /// Steps that can never start.
    fn never(&mut self, index: usize) {
        let (name, node) = (self.names[index], &self.steps[index].value);
        let is_kept = |entry: &&Entry| {
            let kept = entry.value.get("keep_running");
            kept.is_some_and(|kept| kept.to_value() == serde_json::Value::Bool(true))
        };
        for need in self.needs[index].clone() {
            if let Some(kept) = Some(&self.steps[need]).filter(is_kept) {
                let what = format!("`{name}` never starts: `{}` is kept running, and is never over", kept.key);
                let span = self.place(index, need);
                self.error(span, what, "remove it from `needs`, or remove `keep_running` there");
            }
        }
        let says_nothing = texts(node.get("needs")).is_empty();
        let when = text(node.get("when")).filter(|when| says_nothing && when.value.trim() == "failure");
        if let Some(when) = when {
            let what = format!("`{name}` never runs: it waits for a failure of earlier steps, and there are none");
            let lint = self.text.warning(when.span, what).hint("add the steps to `needs`");
            self.lints.push(lint);
        }
    }
}

/// Warns of a loop in which every item does the same: no text of `step` has `item`.
pub(crate) fn same_items(step: &Entry, item: &Entry, text: &JobText) -> Option<Lint> {
    let is_used = references_in(&step.value).iter().any(|(one, _)| matches!(one, Reference::Item { .. }));
    let what = format!("nothing uses `${{{}}}`: all items do the same", item.key);
    (!is_used).then(|| text.warning(item.key_span, what).hint("use it in what the step does, or in `set`"))
}

fn is_name_of_condition(when: &str) -> bool {
    ["success", "failure", "always"].contains(&when.trim())
}
