//! The schedule of a sequence's file alone: what a scheduler needs of it, without components, and without a look at the
//! files that it names.

use std::collections::{BTreeMap, BTreeSet};

use millstream_core::spec::Fault;
use serde_json::Value;

use super::paths::{beside, plain};
use super::{STEPS, fill, is_sequence, model};
use crate::dates::Moment;
use crate::lint::{self, Lint};
use crate::text::JobText;
use crate::tree::{self, Kind};
use crate::variables::Variables;

/// The keys of the file that the schedule depends on.
const KEYS: [&str; 3] = ["schedule", "timezone", fill::PARAMETERS];

/// What stands under `schedule` in a sequence's file.
#[derive(Debug, Default)]
pub struct ScheduleOfFile {
    /// Its value, if it has one without errors.
    pub schedule: Option<Value>,
    /// What is wrong with the file, as far as the schedule depends on it. An error also if the file is a sequence that
    /// cannot be read at all.
    pub lints: Vec<Lint>,
}

/// The schedule in `text`, the file at `path`; nothing if the file is no sequence or has no schedule. `faults` says
/// what is wrong with a schedule, `now` is in milliseconds since 1970.
pub fn schedule_of(
    path: &str,
    text: &str,
    environment: &dyn Fn(&str) -> Option<String>,
    faults: &dyn Fn(&Value) -> Vec<Fault>,
    now: i64,
) -> ScheduleOfFile {
    // Most files of a folder may be others, and large.
    if !text.contains("schedule") || !super::is_sequence(text) {
        return ScheduleOfFile::default();
    }
    let sequence_text = JobText::new(path, text);
    let (root, mut lints) = tree::parse(&sequence_text, text);
    let Some(mut root) = root.filter(|root| root.entry(STEPS).is_some() && root.entry("schedule").is_some()) else {
        lints.retain(Lint::is_error);
        return ScheduleOfFile { schedule: None, lints };
    };
    if let Kind::Block(entries) = &mut root.kind {
        entries.retain(|entry| KEYS.contains(&entry.key.as_str()));
    }
    let (set, later) = (BTreeMap::new(), BTreeSet::new());
    let variables = Variables { set: &set, environment, now: Some(Moment::new(now)) };
    lints.extend(fill::fill(&mut root, &sequence_text, &variables, &[], &later).filled.lints);
    let schedule = root.entry("schedule").filter(|entry| !entry.value.has_unknown());
    lints.extend(
        schedule
            .map(|entry| model::lints_of(faults(&entry.value.to_value()), entry, &sequence_text))
            .unwrap_or_default(),
    );
    lints.retain(Lint::is_error);
    lint::tidy(&mut lints);
    let schedule = schedule.filter(|_| lints.is_empty()).map(|entry| entry.value.to_value());
    ScheduleOfFile { schedule, lints }
}

/// What is wrong with what `after` names in the value of `schedule` of the file at `path`. `text_of` gives the text of
/// a file, if it is there.
pub fn after_fault(path: &str, schedule: &Value, text_of: &dyn Fn(&str) -> Option<String>) -> Option<Fault> {
    let (key, named) = named_by(schedule)?;
    let other = beside(path, named);
    let Some(text) = text_of(&other) else {
        let hint = "paths begin at the folder of this file; until the file is there, its end starts nothing";
        return Some(Fault::new(key, format!("there is no file `{other}`")).hint(hint));
    };
    if plain(&other) == plain(path) {
        let hint = "name another sequence; `keep_running: true` of a step starts a job again whenever it ends";
        return Some(Fault::new(key, "the sequence would start itself").hint(hint));
    }
    if !is_sequence(&text) {
        let hint = "make it a step of a sequence, and name that";
        return Some(Fault::new(key, format!("`{other}` is no sequence")).hint(hint));
    }
    let circle = circle(path, &other, text, text_of)?;
    let hint = "remove `after` from one of them";
    Some(Fault::new(key, format!("sequences start each other in a circle: {}", circle.join(", then "))).hint(hint))
}

/// The sequences from the file at `path` over `other`, with this text, back to `path`, if each starts after the one
/// before.
fn circle(path: &str, other: &str, text: String, text_of: &dyn Fn(&str) -> Option<String>) -> Option<Vec<String>> {
    let (mut names, mut text) = (vec![other.to_owned()], text);
    loop {
        let last = names.last()?;
        let (root, _) = tree::parse(&JobText::new(last, &text), &text);
        let schedule = root?.entry("schedule")?.value.to_value();
        let next = beside(last, named_by(&schedule)?.1);
        if plain(&next) == plain(path) {
            let around = [path].into_iter().chain(names.iter().rev().map(String::as_str)).chain([path]);
            return Some(around.map(|name| plain(name).to_string_lossy().into_owned()).collect());
        }
        // Another circle is for its own files to report.
        if names.iter().any(|name| plain(name) == plain(&next)) {
            return None;
        }
        text = text_of(&next)?;
        names.push(next);
    }
}

/// The sequence that `after` names, and the key that has it.
fn named_by(schedule: &Value) -> Option<(&'static str, &str)> {
    Some(match schedule.get("after")? {
        Value::String(named) => ("after", named),
        block => ("after.sequence", block.get("sequence")?.as_str()?),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> ScheduleOfFile {
        let environment = |name: &str| (name == "HOUR").then(|| "3".to_owned());
        let faults = |schedule: &Value| match schedule.get("cron") {
            Some(_) => Vec::new(),
            None => vec![Fault::new("", "nothing starts the sequence")],
        };
        schedule_of("nightly.yaml", text, &environment, &faults, 0)
    }

    #[test]
    fn the_schedule_has_its_values() {
        let text = "schedule: {cron: \"0 ${HOUR} * * *\", within: 2h}\nparameters: {DAY: \"${today - 1 day}\"}\n\
                    steps:\n  a: {job: '${NOTHING}'}\n";
        let found = read(text);
        assert_eq!(found.schedule, Some(json!({"cron": "0 3 * * *", "within": "2h"})), "{:?}", found.lints);
    }

    #[test]
    fn a_circle_of_sequences_is_named() {
        let files = [
            ("a.yaml", "schedule: {after: b.yaml}\nsteps: {}\n"),
            ("b.yaml", "schedule: {after: {sequence: deep/c.yaml, on: always}}\nsteps: {}\n"),
            ("deep/c.yaml", "schedule: {after: ../a.yaml}\nsteps: {}\n"),
            // It follows a circle, and is none of it.
            ("d.yaml", "schedule: {after: a.yaml}\nsteps: {}\n"),
            ("e.yaml", "schedule: {after: f.yaml}\nsteps: {}\n"),
            ("f.yaml", "schedule: {cron: '@daily'}\nsteps: {}\n"),
        ];
        let text_of = |name: &str| {
            let text = files.iter().find(|(file, _)| plain(file) == plain(name))?.1;
            Some(text.to_owned())
        };
        let fault = |name: &str, after: &str| after_fault(name, &json!({"after": after}), &text_of).map(|it| it.what);
        let circle = fault("a.yaml", "b.yaml").expect("a circle");
        assert_eq!(
            circle,
            "sequences start each other in a circle: a.yaml, then deep/c.yaml, then b.yaml, then a.yaml"
        );
        assert!(fault("deep/c.yaml", "../a.yaml").is_some());
        assert_eq!((fault("d.yaml", "a.yaml"), fault("e.yaml", "f.yaml")), (None, None));
    }

    #[test]
    fn other_files_have_none() {
        for text in [
            "",
            "sources: {a: {read: schedule.csv}}\n",
            "steps:\n  a: {job: schedule.yaml}\n",
            "schedule: {cron: '@daily'}\n",
            "sources: {a: [schedule\n",
        ] {
            let found = read(text);
            assert!(found.schedule.is_none() && found.lints.is_empty(), "{text}: {:?}", found.lints);
        }
    }

    #[test]
    fn what_is_wrong_has_its_place() {
        for (text, line, what) in [
            ("schedule: {cron: '@daily'\nsteps:\n  a: {job: a.yaml}\n", 0, ""),
            ("steps: {a: {job: a.yaml}}\nschedule: {within: 2h}\n", 2, "nothing starts the sequence"),
            ("schedule: {cron: '@daily'\nparameters: {A: 1}\nsteps:\n  a: {job: a.yaml}\n", 0, ""),
            ("schedule: {cron: '${MISSING}'}\nsteps: {a: {job: a.yaml}}\n", 1, "the variable MISSING"),
            ("schedule: {cron: '@daily'}\nparameters: {DAY: }\nsteps: {}\n", 2, "the parameter DAY has no value"),
        ] {
            let found = read(text);
            assert!(found.schedule.is_none() && !found.lints.is_empty(), "{text}");
            let first = &found.lints[0];
            assert!((line == 0 || first.line == line) && first.what.starts_with(what), "{text}: {first:?}");
        }
    }
}
