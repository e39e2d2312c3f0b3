//! SQL conditions: `when` of a step, `until` of a wait. Their syntax is checked here, as far as the engine's parser
//! says; what they evaluate to is the engine's.

use millstream_core::hint::did_you_mean;

use super::model::{Condition, When};
use super::references::in_sql;
use crate::graph::Located;
use crate::links::{References, fault_span};
use crate::lint::Lint;
use crate::text::JobText;

/// The conditions that have names.
const NAMES: [&str; 3] = ["success", "failure", "always"];

/// What conditions are checked with.
#[derive(Clone, Copy)]
pub(crate) struct Conditions<'a> {
    /// The file.
    pub(crate) text: &'a JobText,
    /// Which tables a query names, or why it is none.
    pub(crate) references: &'a References<'a>,
    /// The names of all steps.
    pub(crate) steps: &'a [&'a str],
    /// The names of all parameters.
    pub(crate) parameters: &'a [&'a str],
}

impl Conditions<'_> {
    /// What `when` says.
    pub(crate) fn when(&self, when: &Located<String>, lints: &mut Vec<Lint>) -> When {
        match when.value.trim() {
            "success" => return When::Success,
            "failure" => return When::Failure,
            "always" => return When::Always,
            word if self.is_unknown_word(word) => {
                let what = format!("`{word}` is neither a condition nor a parameter");
                let hint = did_you_mean(word, "choices", &NAMES);
                let hint = format!("{hint}, or SQL such as `steps.rows.n > 0`");
                lints.push(self.text.error(when.span, what).hint(hint));
                return When::Success;
            }
            _ => {}
        }
        self.sql(when, "steps", lints);
        let mut references = in_sql(when);
        for reference in &mut references {
            // SQL folds names without quotes; a step may have capitals.
            let known = self.steps.iter().find(|step| **step == reference.step);
            let known = known.or_else(|| self.steps.iter().find(|step| step.eq_ignore_ascii_case(&reference.step)));
            reference.step = known.map_or_else(|| reference.step.clone(), |step| (*step).to_owned());
        }
        When::Condition(Condition { sql: when.clone(), references })
    }

    /// Whether `word` is a single name that stands for nothing.
    fn is_unknown_word(&self, word: &str) -> bool {
        let is_name = word.chars().all(|one| one.is_alphanumeric() || "_-".contains(one))
            && word.starts_with(char::is_alphabetic);
        let is_known = |name: &&str| name.eq_ignore_ascii_case(word);
        is_name && !["true", "false"].iter().any(is_known) && !self.parameters.iter().any(is_known)
    }

    /// Whether `sql` is an expression over the columns of `table`.
    pub(crate) fn sql(&self, sql: &Located<String>, table: &str, lints: &mut Vec<Lint>) {
        if sql.value.trim().is_empty() {
            lints.push(self.text.error(sql.span, "the condition is empty").hint("write a SQL expression"));
            return;
        }
        // In lines of its own, so that places stay right.
        match (self.references)(&format!("SELECT\n{}\nFROM \"{table}\"", sql.value)) {
            Ok(tables) => {
                for other in tables.into_iter().filter(|name| name != table) {
                    let what = format!("a condition cannot read the table `{other}`");
                    let hint = "read it in a step of its own: `{query: …, from: …}`, and use its columns here";
                    lints.push(self.text.error(sql.span, what).hint(hint));
                }
            }
            Err(fault) => {
                let mut lint = self.text.error(fault_span(sql, &fault, 1), fault.what.clone());
                lint.hint = fault.hint;
                lints.push(lint);
            }
        }
    }
}
