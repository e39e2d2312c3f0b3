//! How a sequence would run: its steps in layers, what each needs, how long it took, and the longest way through it.

use std::fmt::Write as _;
use std::time::Duration;

use millstream::sequence::{Sequence, kind_and_what, when};
use serde_json::{Value, json};

use crate::human;

/// So many of the last runs say how long steps take.
pub const MOST: u64 = 10;

/// How long each step took where it succeeded, in milliseconds: the median.
pub fn durations(sequence: &Sequence, reports: &[Value]) -> Vec<Option<u64>> {
    let of_step = |name: &str| {
        let took = |report: &Value| {
            let step =
                report["steps"].as_array()?.iter().find(|step| step["name"] == name && step["outcome"] == "success")?;
            step["ended"].as_u64()?.checked_sub(step["began"].as_u64()?)
        };
        let mut all: Vec<u64> = reports.iter().filter_map(took).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied()
    };
    sequence.steps.iter().map(|step| of_step(&step.name.value)).collect()
}

/// The longest way: its steps, and how long it takes.
fn critical(sequence: &Sequence, durations: &[Option<u64>]) -> (Vec<usize>, u64) {
    let known: Vec<u64> = durations.iter().map(|duration| duration.unwrap_or_default()).collect();
    let path = sequence.graph.critical_path(&known);
    (path.steps, path.duration)
}

fn needs(sequence: &Sequence, step: usize) -> Vec<&str> {
    sequence.graph.needs(step).iter().map(|&need| sequence.steps[need].name.value.as_str()).collect()
}

/// As text.
pub fn as_text(sequence: &Sequence, durations: &[Option<u64>]) -> String {
    let (path, duration) = critical(sequence, durations);
    let width = sequence.steps.iter().map(|step| step.name.value.chars().count()).max().unwrap_or_default();
    let priority = sequence.priority.in_words();
    let priority = priority.map_or(String::new(), |priority| format!(", with {priority} priority"));
    let steps = if sequence.steps.len() == 1 { "step" } else { "steps" };
    let mut text = format!("sequence {}: {} {steps}{priority}\n", sequence.path(), sequence.steps.len());
    for (layer, steps) in sequence.graph.layers().iter().enumerate() {
        let _ = writeln!(text, "\n{}.", layer + 1);
        for &step in steps {
            let of = &sequence.steps[step];
            let mark = if path.contains(&step) && duration > 0 { '*' } else { ' ' };
            let _ = write!(text, "{mark} {:width$}  {}", of.name.value, kind_and_what(of));
            let needs = needs(sequence, step);
            if !needs.is_empty() {
                let _ = write!(text, "  after {}", needs.join(", "));
            }
            let mut more = Vec::new();
            if when(of) != "success" {
                more.push(format!("when {}", when(of)));
            }
            if let Some(for_each) = &of.for_each {
                let name = &for_each.variable.value;
                more.push(format!("for each {name}, {} at once", for_each.parallel));
            }
            more.extend(of.pool.as_ref().map(|pool| format!("in the pool {}", pool.value)));
            more.extend(of.retries.map(|retries| match retries.count {
                1 => "attempted again once".to_owned(),
                count => format!("attempted again up to {count} times"),
            }));
            more.extend(of.time_limit.map(|limit| format!("at most {}", human::time(limit))));
            more.extend(durations[step].map(|took| format!("took {}", human::time(Duration::from_millis(took)))));
            if !more.is_empty() {
                let _ = write!(text, "  ({})", more.join("; "));
            }
            text.push('\n');
        }
    }
    if duration > 0 {
        let names: Vec<&str> = path.iter().map(|&step| sequence.steps[step].name.value.as_str()).collect();
        let duration = human::time(Duration::from_millis(duration));
        let _ = writeln!(text, "\n* the longest way takes {duration}: {}", names.join(", "));
    }
    text
}

/// As JSON.
pub fn as_json(sequence: &Sequence, durations: &[Option<u64>]) -> Value {
    let (path, duration) = critical(sequence, durations);
    let layer = |step: usize| sequence.graph.layers().iter().position(|steps| steps.contains(&step));
    let step = |number: usize| {
        let step = &sequence.steps[number];
        json!({
            "name": step.name.value, "does": kind_and_what(step), "needs": needs(sequence, number), "when": when(step),
            "layer": layer(number), "took_ms": durations[number], "critical": path.contains(&number),
        })
    };
    let steps: Vec<Value> = (0..sequence.steps.len()).map(step).collect();
    json!({"sequence": sequence.path(), "priority": sequence.priority, "steps": steps, "critical_ms": duration})
}
