//! What texts and conditions of steps are filled with: results of earlier steps, items of loops, parameters.

use millstream_core::{Error, Result};
use millstream_engine::sequences::Row;
use millstream_job::sequence::items::part_of_path;
use millstream_job::sequence::model::{Action, Awaited, Condition, Items, When};
use millstream_job::sequence::references::StepsReference;
use millstream_job::sequence::template::{Reference, Template};
use millstream_job::sequence::{Sequence, Step};
use serde_json::Value;

use crate::progress::{Item, Progress, text_of};

/// What a text of a step is filled with.
#[derive(Clone, Copy)]
pub(crate) struct Values<'a> {
    pub(crate) sequence: &'a Sequence,
    pub(crate) progress: &'a Progress,
    pub(crate) step: &'a Step,
    pub(crate) item: Option<&'a Item>,
}

impl Values<'_> {
    /// `template` with its values.
    pub(crate) fn fill(&self, template: &Template) -> Result<String> {
        template.fill(self.sequence.moment, &|reference| self.value(reference)).map_err(|fault| {
            let mut error = Error::refused(fault.what);
            if let Some(reason) = template.references().find_map(|(reference, _)| self.reason(reference)) {
                error = error.cause(reason);
            }
            fault.hint.into_iter().fold(error, Error::hint)
        })
    }

    fn value(&self, reference: &Reference) -> Option<String> {
        match reference {
            Reference::Result { step, name } => text_of(result(self.sequence, self.progress, step, name)?),
            Reference::Item { field } => match (self.item?, field) {
                (item, None) => Some(item.text()),
                (Item::Row(row), Some(field)) => text_of(row.get(field)?),
                (Item::Text(path), Some(field)) => match self.step.for_each.as_ref()?.items {
                    Items::Files(_) => part_of_path(path, field),
                    _ => None,
                },
            },
        }
    }

    /// Why there is no value for `reference`.
    fn reason(&self, reference: &Reference) -> Option<String> {
        match reference {
            _ if self.value(reference).is_some() => None,
            Reference::Result { step, name } => {
                let number = self.sequence.step(step)?;
                let results = &self.progress.steps[number].results;
                Some(match results.get(name) {
                    Some(_) => format!("`{name}` of `{step}` is null"),
                    None if results.is_empty() => format!("`{step}` has no results: it did not run, or gave no row"),
                    None => {
                        let names: Vec<&str> = results.keys().map(String::as_str).collect();
                        format!("the results of `{step}` are {}", names.join(", "))
                    }
                })
            }
            Reference::Item { field: Some(field) } => Some(format!("`{field}` of the item is null, or not there")),
            Reference::Item { field: None } => None,
        }
    }
}

/// The result `name` of `step`. Names of columns may differ in case.
fn result<'a>(sequence: &Sequence, progress: &'a Progress, step: &str, name: &str) -> Option<&'a Value> {
    let results = &progress.steps[sequence.step(step)?].results;
    let folded = || results.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value);
    results.get(name).or_else(folded)
}

/// The SQL of `condition` with the results in it. A step that did not run has none: they are null.
///
/// # Errors
/// If a step has run and has no such result.
pub(crate) fn condition(condition: &Condition, sequence: &Sequence, progress: &Progress) -> Result<String, String> {
    for StepsReference { step, name, .. } in &condition.references {
        let results = sequence.step(step).map(|number| &progress.steps[number].results);
        if let Some(results) = results.filter(|results| !results.is_empty())
            && result(sequence, progress, step, name).is_none()
        {
            let names: Vec<&str> = results.keys().map(String::as_str).collect();
            return Err(format!("`{step}` has no result `{name}`: its results are {}", names.join(", ")));
        }
    }
    Ok(condition.filled(&|StepsReference { step, name, .. }| match result(sequence, progress, step, name) {
        Some(value) => literal(value),
        None => "NULL".to_owned(),
    }))
}

fn literal(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => format!("'{}'", text.replace('\'', "''")),
        other => format!("'{}'", other.to_string().replace('\'', "''")),
    }
}

/// The parameters of `sequence` as columns for conditions: numbers where they are written as such.
pub(crate) fn columns(sequence: &Sequence) -> Row {
    sequence.parameters.iter().map(|(name, text)| (name.clone(), typed(text))).collect()
}

/// A number, if `text` is what that is written as; `007` is a text.
fn typed(text: &str) -> Value {
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Number(number)) if number.to_string() == text => Value::Number(number),
        _ => Value::String(text.to_owned()),
    }
}

/// What a step does, in few words.
pub(crate) fn what(action: &Action) -> String {
    match action {
        Action::Job(file) | Action::Sequence(file) => file.file.value.clone(),
        Action::Command(words) => words.iter().map(|word| word.text.value.as_str()).collect::<Vec<_>>().join(" "),
        Action::Query(query) => one_line(&query.query.text.value),
        Action::Wait(wait) => match &wait.what {
            Awaited::File(file) => file.text.value.clone(),
            Awaited::Query { query, .. } => one_line(&query.query.text.value),
        },
        // A URL may be confidential.
        Action::Webhook(request) => method(request.method).to_owned(),
        Action::Mail(letter) => letter.to.iter().map(|to| to.text.value.as_str()).collect::<Vec<_>>().join(", "),
    }
}

/// The name of a method.
pub(crate) fn method(method: millstream_job::sequence::spec::Method) -> &'static str {
    use millstream_job::sequence::spec::Method;

    match method {
        Method::Get => "GET",
        Method::Post => "POST",
        Method::Put => "PUT",
        Method::Patch => "PATCH",
        Method::Delete => "DELETE",
    }
}

/// What a step does: `job load.yaml`.
pub fn kind_and_what(step: &Step) -> String {
    format!("{} {}", step.action.kind(), what(&step.action))
}

/// When a step runs, as its file says it.
pub fn when(step: &Step) -> String {
    match &step.when {
        When::Success => "success".to_owned(),
        When::Failure => "failure".to_owned(),
        When::Always => "always".to_owned(),
        When::Condition(condition) => one_line(&condition.sql.value),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn literals_are_safe_in_sql() {
        let shown = [json!(null), json!(true), json!(-1.5), json!("it's"), json!(["a'b"])].map(|value| literal(&value));
        assert_eq!(shown, ["NULL", "true", "-1.5", "'it''s'", "'[\"a''b\"]'"]);
    }

    #[test]
    fn parameters_are_numbers_where_they_are_written_so() {
        let values = ["7", "-1.5", "007", "1e3", "2026-01-01", "", "true", "1.0"].map(typed);
        let text = |text: &str| json!(text);
        let expected =
            [json!(7), json!(-1.5), text("007"), text("1e3"), text("2026-01-01"), text(""), text("true"), json!(1.0)];
        assert_eq!(values, expected);
    }
}
