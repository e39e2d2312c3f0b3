//! SQL conditions: `when` of a step, `until` of a wait. Their syntax is checked here, as far as the engine's parser
//! says; what they evaluate to is the engine's.

use millstream_core::hint::did_you_mean;

use super::model::{Condition, When};
use super::references::in_sql;
use crate::graph::{Located, SqlFault};
use crate::links::{References, fault_span};
use crate::lint::Lint;
use crate::text::JobText;

/// The conditions that have names.
const NAMES: [&str; 3] = ["success", "failure", "always"];

/// A column that a SQL text names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedColumn {
    /// Its name, behind that of its table if the text has one, with a dot between.
    pub name: String,
    /// The line in the text, from 1.
    pub line: usize,
    /// The character in the line, from 1.
    pub column: usize,
}

/// What conditions are checked with.
#[derive(Clone, Copy)]
pub(crate) struct Conditions<'a> {
    /// The file.
    pub(crate) text: &'a JobText,
    /// Which tables a query names, or why it is none.
    pub(crate) references: &'a References<'a>,
    /// Which columns a query names.
    pub(crate) columns: &'a dyn Fn(&str) -> Vec<NamedColumn>,
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
        self.names(when, lints);
        let mut references = in_sql(when);
        for reference in &mut references {
            // SQL folds names without quotes; a step may have capitals.
            let known = self.steps.iter().find(|step| **step == reference.step);
            let known = known.or_else(|| self.steps.iter().find(|step| step.eq_ignore_ascii_case(&reference.step)));
            reference.step = known.map_or_else(|| reference.step.clone(), |step| (*step).to_owned());
        }
        When::Condition(Condition { sql: when.clone(), references })
    }

    /// Whether `when` names nothing but parameters and results of steps.
    fn names(&self, when: &Located<String>, lints: &mut Vec<Lint>) {
        for named in (self.columns)(&as_query(&when.value, "steps")) {
            let (table, _) = named.name.split_once('.').unwrap_or(("", ""));
            let is_parameter = self.parameters.iter().any(|name| name.eq_ignore_ascii_case(&named.name));
            if is_parameter || table.eq_ignore_ascii_case("steps") {
                continue;
            }
            let what = format!("`{}` is neither a parameter nor a result of a step", named.name);
            let hint = did_you_mean(&named.name, "parameters", self.parameters);
            let hint = format!("{hint}; results are `steps.NAME.RESULT`, and texts stand in single quotes");
            let fault = SqlFault { line: named.line, column: named.column, what, hint: None };
            lints.push(self.text.error(fault_span(when, &fault, 1), fault.what).hint(hint));
        }
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
        match (self.references)(&as_query(&sql.value, table)) {
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

/// The query that evaluates `condition` over the columns of `table`. The condition has lines of its own, so that places
/// stay right.
fn as_query(condition: &str, table: &str) -> String {
    format!("SELECT\n{condition}\nFROM \"{table}\"")
}
