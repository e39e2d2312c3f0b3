//! Texts of steps with `${…}` that get their values only when the step starts: results of earlier steps, and the item
//! of a loop.
//!
//! Parameters, dates and the environment have been filled in before, by [`crate::variables`].

use std::fmt;

use crate::dates::{self, Expression, Moment};
use crate::graph::Located;
use crate::text::Span;
use crate::tree::{Node, Scalar};

/// What a `${…}` stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// A result of an earlier step: `${steps.load.rows_written}`.
    Result {
        /// The step.
        step: String,
        /// The name of the result.
        name: String,
    },
    /// The item of the loop: `${SHOP}`, `${FILE.stem}`.
    Item {
        /// What of it, if not the item itself.
        field: Option<String>,
    },
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reference::Result { step, name } => write!(f, "steps.{step}.{name}"),
            Reference::Item { field: None } => f.write_str("the item"),
            Reference::Item { field: Some(field) } => write!(f, "{field} of the item"),
        }
    }
}

/// A part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// As it is.
    Text(String),
    /// What gets its value later.
    Later {
        /// What it stands for.
        reference: Reference,
        /// What stands between `${` and `}`.
        inside: String,
        /// Where it stands.
        span: Span,
    },
}

/// A text of a step.
#[derive(Debug, Clone)]
pub struct Template {
    /// The text and its place, with each `${…}` that gets its value later.
    pub text: Located<String>,
    /// Its parts.
    pub parts: Vec<Part>,
}

/// Why a text cannot be filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotFilled {
    /// Where the `${…}` stands.
    pub span: Span,
    /// What is wrong, in lower case.
    pub what: String,
    /// What to do.
    pub hint: Option<String>,
}

impl Template {
    /// The text of a scalar, whatever its type; `None` for anything else.
    pub(crate) fn of(node: &Node) -> Option<Self> {
        let scalar = node.scalar()?;
        let text = crate::build::written(node, scalar);
        let mut parts = Vec::new();
        let mut end = 0;
        for range in &scalar.later {
            if range.start > end {
                parts.push(Part::Text(scalar.text[end..range.start].to_owned()));
            }
            parts.push(later(scalar, node.span, range.clone()));
            end = range.end;
        }
        if end < scalar.text.len() || parts.is_empty() {
            parts.push(Part::Text(scalar.text[end..].to_owned()));
        }
        Some(Template { text, parts })
    }

    /// A text that is the same whatever other steps come to.
    pub fn fixed(text: Located<String>) -> Self {
        let parts = vec![Part::Text(text.value.clone())];
        Template { text, parts }
    }

    /// The item of the loop with the variable `name`.
    pub(crate) fn of_item(name: &Located<String>) -> Self {
        let (inside, span) = (name.value.clone(), name.span);
        let text = Located::new(format!("${{{inside}}}"), span);
        let parts = vec![Part::Later { reference: Reference::Item { field: None }, inside, span }];
        Template { text, parts }
    }

    /// The text, if nothing of it gets its value later.
    pub fn known(&self) -> Option<&str> {
        self.references().next().is_none().then_some(self.text.value.as_str())
    }

    /// What gets its value later, and where that stands.
    pub fn references(&self) -> impl Iterator<Item = (&Reference, Span)> {
        self.parts.iter().filter_map(|part| match part {
            Part::Later { reference, span, .. } => Some((reference, *span)),
            Part::Text(_) => None,
        })
    }

    /// The whole text. `value` knows the values; dates that are computed of an item are in the zone of `moment`.
    ///
    /// # Errors
    /// If there is no value for a reference, or no date can be computed of it.
    pub fn fill(&self, moment: Moment, value: &dyn Fn(&Reference) -> Option<String>) -> Result<String, Box<NotFilled>> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(fixed) => text.push_str(fixed),
                Part::Later { reference, inside, span } => {
                    let not_filled = |what: String, hint| Box::new(NotFilled { span: *span, what, hint });
                    let value = value(reference)
                        .ok_or_else(|| not_filled(format!("there is no value for `${{{inside}}}`"), None))?;
                    let filled = match dates::is_expression(inside) {
                        true => Expression::parse(inside).and_then(|date| date.value(moment, Some(&value))),
                        false => Ok(value),
                    };
                    text.push_str(&filled.map_err(|fault| not_filled(fault.what, Some(fault.hint)))?);
                }
            }
        }
        Ok(text)
    }
}

/// All `${…}` in the scalars of `node` that get their values later, and where they stand.
pub(crate) fn references_in(node: &Node) -> Vec<(Reference, Span)> {
    let mut found = Vec::new();
    let mut left = vec![node];
    while let Some(node) = left.pop() {
        if let Some(template) = Template::of(node) {
            found.extend(template.references().map(|(reference, span)| (reference.clone(), span)));
        }
        match &node.kind {
            crate::tree::Kind::List(items) => left.extend(items.iter().rev()),
            crate::tree::Kind::Block(entries) => left.extend(entries.iter().rev().map(|entry| &entry.value)),
            crate::tree::Kind::Scalar(_) => {}
        }
    }
    found
}

/// The part at `range` of a scalar that stands at `here`.
fn later(scalar: &Scalar, here: Span, range: std::ops::Range<usize>) -> Part {
    let whole = &scalar.text[range.clone()];
    let inside = whole[2..whole.len() - 1].to_owned();
    let first = scalar.text[..range.start].chars().count();
    let span = scalar.positions.get(first).map_or(here, |place| Span::at(*place, whole.chars().count()));
    Part::Later { reference: reference_of(&inside), inside, span }
}

/// What the inside of a `${…}` stands for that gets its value later.
fn reference_of(inside: &str) -> Reference {
    let mut names = crate::variables::variable_of(inside).split('.');
    match (names.next(), names.next(), names.next()) {
        (Some("steps"), Some(step), Some(name)) => Reference::Result { step: step.to_owned(), name: name.to_owned() },
        (_, field, _) => Reference::Item { field: field.map(str::to_owned) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str, later: &[std::ops::Range<usize>]) -> Template {
        let node = Node::text(text, Span { line: 3, column: 5, length: text.len() });
        let crate::tree::Kind::Scalar(scalar) = node.kind else { unreachable!("a text is a scalar") };
        let kind = crate::tree::Kind::Scalar(Scalar { later: later.to_vec(), ..scalar });
        Template::of(&Node { kind, ..node }).expect("a scalar")
    }

    #[test]
    fn a_text_is_filled_once_the_values_are_known() {
        let text = "a ${steps.load.rows} ${DAY | %d.%m.} ${FILE.stem}!";
        let ranges = ["${steps", "${DAY", "${FILE"].map(|start| {
            let start = text.find(start).expect("it is there");
            start..start + text[start..].find('}').expect("its end") + 1
        });
        let template = template(text, &ranges);
        assert_eq!((template.parts.len(), template.known()), (7, None));
        let value = |reference: &Reference| match reference {
            Reference::Result { step, name } if (step.as_str(), name.as_str()) == ("load", "rows") => Some("7".into()),
            Reference::Item { field: None } => Some("2026-02-03".to_owned()),
            Reference::Item { field: Some(field) } => Some(format!("<{field}>")),
            _ => None,
        };
        assert_eq!(template.fill(Moment::default(), &value).as_deref(), Ok("a 7 03.02. <stem>!"));
        let none = template.fill(Moment::default(), &|_| None).expect_err("no value");
        assert_eq!(none.what, "there is no value for `${steps.load.rows}`");
        let no_date = |reference: &Reference| match reference {
            Reference::Item { field: None } => Some("x".to_owned()),
            _ => value(reference),
        };
        let fault = template.fill(Moment::default(), &no_date).expect_err("no date");
        assert!(fault.what.contains("no date") && fault.hint.is_some(), "{fault:?}");
    }

    #[test]
    fn a_text_without_references_is_known() {
        assert_eq!(template("plain ${x}", &[]).known(), Some("plain ${x}"));
        assert_eq!(template("", &[]).fill(Moment::default(), &|_| None).as_deref(), Ok(""));
    }
}
