//! `${NAME}` and `${NAME:-default}` in values, and dates such as `${today - 1 day}`; `$${` stands for `${` itself.
//!
//! They are filled into parsed scalars, not into the text of the file: a value cannot add keys, and columns in
//! messages stay right. Keys are left as they are. A value comes from `--set` first, then from the environment. A
//! default ends at the first `}` and is not looked into again, nor is a value. `today` and `now` are not variables of
//! the environment: they are the time at which the logical run begins, unless `--set` gives one of them. How dates are
//! computed is the business of [`crate::dates`].

use std::collections::{BTreeMap, BTreeSet};

use millstream_core::hint;

use crate::dates::{self, DateFault, Expression, Moment, NOW, TODAY};
use crate::lint::{Lint, LintCode};
use crate::text::{JobText, Position, Span};
use crate::tree::{Kind, Node, Scalar, Typed, type_of_plain};

/// Where values come from.
pub struct Variables<'a> {
    /// What `--set` gave.
    pub set: &'a BTreeMap<String, String>,
    /// The environment.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
    /// When the logical run begins; `None` in a file that has no dates.
    pub now: Option<Moment>,
}

/// The key of a job file for the time zone of its dates.
pub const TIMEZONE: &str = "timezone";

/// When a variable has its value.
pub enum Later {
    /// Now, if it has any.
    No,
    /// Later: nothing is known of what it stands in, and that is no fault.
    Unknown,
    /// Later: its `${…}` stays in the text.
    Kept,
    /// Later, and it cannot stand here.
    Refused {
        /// What is wrong, in lower case.
        what: String,
        /// What to do.
        hint: String,
    },
}

/// What filling has come to.
pub struct Filled {
    /// What is missing or not well-formed, and which `--set` named nothing.
    pub lints: Vec<Lint>,
    /// The variables that had a value, defaults not counted.
    pub values: BTreeMap<String, String>,
    /// The dates that were computed: the inside of `${…}`, and its value.
    pub dates: BTreeMap<String, String>,
    /// When the logical run begins, in the time zone of the job.
    pub moment: Moment,
}

/// Fills every scalar below `node`. Variables in `later` get their values when the job runs.
pub fn fill(node: &mut Node, text: &JobText, variables: &Variables<'_>, later: &BTreeSet<String>) -> Filled {
    let mut filler = Filler::new(text, variables);
    filler.later = Box::new(|inside| if later.contains(variable_of(inside)) { Later::Unknown } else { Later::No });
    filler.begin(node);
    match &mut node.kind {
        Kind::Block(entries) => {
            entries.iter_mut().filter(|entry| entry.key != TIMEZONE).for_each(|entry| filler.node(&mut entry.value));
        }
        _ => filler.node(node),
    }
    filler.unused("job", later);
    filler.filled()
}

/// The variable that the inside of a `${…}` begins with, with what stands behind it after dots.
pub fn variable_of(inside: &str) -> &str {
    let inside = inside.trim_start();
    let end = inside.find(|one: char| !(one.is_ascii_alphanumeric() || "_.".contains(one))).unwrap_or(inside.len());
    &inside[..end]
}

/// Fills scalars one after the other.
pub struct Filler<'a> {
    text: &'a JobText,
    variables: &'a Variables<'a>,
    /// What dates are computed of; `None` where none may stand.
    now: Option<Moment>,
    /// Values that come before all others.
    pub parameters: BTreeMap<String, String>,
    /// Which variables have their values later, by the inside of their `${…}`.
    pub later: Box<dyn Fn(&str) -> Later + 'a>,
    /// What was wrong so far.
    pub lints: Vec<Lint>,
    /// The variables that `${…}` has named so far.
    pub named: BTreeSet<String>,
    /// Those, and others that the file has.
    used: BTreeSet<String>,
    values: BTreeMap<String, String>,
    dates: BTreeMap<String, String>,
}

/// A piece of a scalar.
enum Piece<'a> {
    /// Text as it is.
    Text(&'a str),
    /// `${NAME}` or `${NAME:-default}`, without the frame.
    Variable(&'a str),
    /// `${` without an end.
    Unclosed(&'a str),
}

impl<'a> Filler<'a> {
    /// One for the file `text`, which cannot compute dates before it begins.
    pub fn new(text: &'a JobText, variables: &'a Variables<'a>) -> Self {
        let (parameters, lints, named, used, values, dates) = Default::default();
        let later = Box::new(|_: &str| Later::No);
        Filler { text, variables, now: None, parameters, later, lints, named, used, values, dates }
    }

    /// Fills the time zone of `root`, which the dates of all others are in.
    pub fn begin(&mut self, root: &mut Node) {
        let zone = root.entries_mut().iter_mut().filter(|entry| entry.key == TIMEZONE);
        zone.for_each(|entry| self.node(&mut entry.value));
        self.now = self.variables.now.map(|now| self.moment(now, root));
    }

    /// Notes that the file has the variable `name`.
    pub fn know(&mut self, name: &str) {
        self.used.insert(name.to_owned());
    }

    fn name(&mut self, name: &str) {
        self.named.insert(name.to_owned());
        self.know(name);
    }

    /// The lints of values that are given to variables which the file, a `kind`, does not have.
    pub fn unused(&mut self, kind: &str, later: &BTreeSet<String>) {
        let names: Vec<&str> = self.used.iter().map(String::as_str).collect();
        for name in self.variables.set.keys().chain(later).filter(|name| !self.used.contains(*name)) {
            let what = format!("`--set {name}=…`: the {kind} has no variable {name}");
            let mut lint = self.text.error(Span::default(), what).code(LintCode::UnusedValue);
            lint.text = name.clone();
            self.lints.push(lint.hint(hint::did_you_mean(name, &format!("variables of this {kind}"), &names)));
        }
    }

    /// What filling has come to.
    pub fn filled(self) -> Filled {
        let moment = self.now.unwrap_or_default();
        Filled { lints: self.lints, values: self.values, dates: self.dates, moment }
    }

    /// Fills every scalar below `node`.
    pub fn node(&mut self, node: &mut Node) {
        let span = node.span;
        match &mut node.kind {
            Kind::Scalar(scalar) if scalar.text.contains("${") => self.scalar(scalar, span),
            Kind::Scalar(_) => {}
            Kind::List(items) => items.iter_mut().for_each(|item| self.node(item)),
            Kind::Block(entries) => entries.iter_mut().for_each(|entry| self.node(&mut entry.value)),
        }
    }

    fn scalar(&mut self, scalar: &mut Scalar, span: Span) {
        let source = std::mem::take(&mut scalar.text);
        let places = std::mem::take(&mut scalar.positions);
        let (mut variables, mut texts, mut dates, mut unknown) = (0, 0, 0, false);
        let (mut before, mut undated) = (0, String::new());
        for piece in pieces(&source) {
            let place = places.get(before).copied();
            let length = piece.characters();
            match piece {
                Piece::Text(text) => {
                    texts += 1;
                    scalar.text.push_str(text);
                    undated.push_str(text);
                    let skipped = length - text.chars().count();
                    scalar.positions.extend(places.iter().skip(before + skipped).take(length - skipped));
                }
                Piece::Variable(inside) => {
                    variables += 1;
                    let inside_places = places.get(before + 2..).unwrap_or_default();
                    let is_date = dates::is_expression(inside) && self.variables.now.is_some();
                    let filled = match ((self.later)(inside), is_date) {
                        (Later::Kept, _) => {
                            let start = scalar.text.len();
                            scalar.later.push(start..start + inside.len() + 3);
                            Some(format!("${{{inside}}}"))
                        }
                        (Later::Unknown, _) => {
                            self.name(variable_of(inside));
                            None
                        }
                        (Later::Refused { what, hint }, _) => {
                            self.fault(place, span, length, what).hint = Some(hint);
                            None
                        }
                        (Later::No, true) => self.date(inside, inside_places, span),
                        (Later::No, false) => self.value(inside, place, span),
                    };
                    match &filled {
                        Some(value) if !is_date => undated.push_str(value),
                        _ => undated.push_str(&format!("${{{inside}}}")),
                    }
                    dates += usize::from(is_date);
                    match filled {
                        Some(value) => {
                            let known = scalar.positions.len() == scalar.text.chars().count();
                            if let (Some(place), true) = (place, known) {
                                scalar.positions.extend(value.chars().map(|_| place));
                            }
                            scalar.text.push_str(&value);
                        }
                        None => unknown = true,
                    }
                }
                Piece::Unclosed(rest) => {
                    unknown = true;
                    self.fault(place, span, rest.chars().count(), "`${` is not closed").hint =
                        Some("write `${NAME}` or `${NAME:-default}`; `$${` stands for `${` itself".to_owned());
                }
            }
            before += length;
        }
        if variables > 0 {
            if scalar.plain && texts == 0 && variables == 1 && scalar.later.is_empty() {
                scalar.typed = match type_of_plain(&scalar.text) {
                    Typed::Null => Typed::Text,
                    typed => typed,
                };
            }
            scalar.unfilled = Some(source);
            scalar.undated = (dates > 0).then_some(undated);
        }
        if unknown {
            scalar.typed = Typed::Unknown;
        }
    }

    /// `now` in the time zone that `root` names, unless `--set` gives another day or time.
    fn moment(&mut self, now: Moment, root: &Node) -> Moment {
        let zone = root.get(TIMEZONE).filter(|zone| !zone.is_null());
        let named = zone.and_then(|zone| Some((zone, zone.scalar().filter(|one| one.typed == Typed::Text)?)));
        let now = match named.map(|(zone, name)| (zone, now.in_zone(&name.text))) {
            Some((_, Ok(now))) => now,
            Some((zone, Err(DateFault { what, hint, .. }))) => {
                self.lints.push(self.text.error(zone.span, what).hint(hint));
                now
            }
            None => now,
        };
        self.set_moment(now)
    }

    /// `now`, or what `--set today=…` or `--set now=…` gives in its place.
    fn set_moment(&mut self, now: Moment) -> Moment {
        let set = self.variables.set;
        let (name, value, set_to) = match (set.get(TODAY), set.get(NOW)) {
            (None, None) => return now,
            (Some(_), Some(_)) => {
                let what = "`--set` gives both `today` and `now`";
                self.used.extend([TODAY.to_owned(), NOW.to_owned()]);
                self.lints.push(self.text.error(Span::default(), what).hint("give one of them: it sets the other"));
                return now;
            }
            (Some(day), None) => (TODAY, day, now.at_day(day)),
            (None, Some(time)) => (NOW, time, now.at_time(time)),
        };
        self.used.insert(name.to_owned());
        self.values.insert(name.to_owned(), value.clone());
        set_to.unwrap_or_else(|| {
            let mut lint = self.text.error(Span::default(), format!("`--set {name}={value}`: this is no date"));
            lint.text = value.clone();
            let hint = "write `--set today=2026-01-31`, or `--set now=2026-01-31T06:00:00`";
            self.lints.push(lint.hint(hint));
            now
        })
    }

    /// The value of an expression over dates. Its characters stand at `places`.
    fn date(&mut self, inside: &str, places: &[Position], span: Span) -> Option<String> {
        let value = match Expression::parse(inside) {
            Ok(expression) => {
                let variable = self.base(&expression, places, span)?;
                let Some(now) = self.now else {
                    let what = "the time zone of dates cannot depend on a date";
                    self.fault(places.first().copied(), span, inside.chars().count(), what);
                    return None;
                };
                expression.value(now, variable.as_deref())
            }
            Err(fault) => Err(fault),
        };
        match value {
            Ok(value) => {
                self.dates.insert(inside.to_owned(), value.clone());
                Some(value)
            }
            Err(DateFault { offset, length, what, hint }) => {
                self.fault(places.get(offset).copied(), span, length, what).hint = Some(hint);
                None
            }
        }
    }

    /// The value of the variable that an expression begins with; `Some(None)` if it begins with `today` or `now`.
    fn base(&mut self, expression: &Expression<'_>, places: &[Position], span: Span) -> Option<Option<String>> {
        let name = expression.base;
        if name != TODAY && name != NOW {
            return self.value(name, places.first().copied(), span).map(Some);
        }
        if (self.variables.environment)(name).is_some() && !self.values.contains_key(name) {
            let what = format!("`{name}` is when the run begins, and not the variable of that name in the environment");
            let span = places.first().map_or(span, |place| Span::at(*place, name.len()));
            let lint = self.text.warning(span, what);
            self.lints.push(lint.hint(format!("`--set {name}=…` sets it; give your variable another name")));
        }
        Some(None)
    }

    fn value(&mut self, inside: &str, place: Option<Position>, span: Span) -> Option<String> {
        let (name, default) = match inside.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inside, None),
        };
        let length = inside.chars().count() + 3;
        let is_name = name.chars().all(|character| character.is_ascii_alphanumeric() || character == '_')
            && name.starts_with(|character: char| character.is_ascii_alphabetic() || character == '_');
        if !is_name {
            self.fault(place, span, length, format!("`{name}` is not a valid variable name")).hint =
                Some("a name has letters, digits and `_`; `$${` stands for `${` itself".to_owned());
            return None;
        }
        self.name(name);
        let set = self.parameters.get(name).or_else(|| self.variables.set.get(name)).cloned();
        let value = set.or_else(|| (self.variables.environment)(name));
        if let Some(value) = &value {
            self.values.insert(name.to_owned(), value.clone());
        }
        let value = value.or_else(|| default.map(str::to_owned));
        if value.is_none() {
            let fault = self.fault(place, span, length, format!("the variable {name} is not set"));
            fault.code = LintCode::NoValue;
            fault.hint = Some(format!(
                "give it with `--set {name}=…`, set it in the environment, or write a default: `${{{name}:-…}}`"
            ));
        }
        value
    }

    fn fault(&mut self, place: Option<Position>, span: Span, length: usize, what: impl Into<String>) -> &mut Lint {
        let span = place.map_or(span, |place| Span::at(place, length));
        self.lints.push(self.text.error(span, what));
        let last = self.lints.len() - 1;
        &mut self.lints[last]
    }
}

impl Piece<'_> {
    /// Characters it takes in the source. The one text that is shorter than its source is `${` from `$${`.
    fn characters(&self) -> usize {
        match self {
            Piece::Text("${") => 3,
            Piece::Text(text) | Piece::Unclosed(text) => text.chars().count(),
            Piece::Variable(inside) => inside.chars().count() + 3,
        }
    }
}

fn pieces(source: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = source;
    while let Some(start) = rest.find("${") {
        let escaped = rest[..start].ends_with('$');
        let before = if escaped { &rest[..start - 1] } else { &rest[..start] };
        if !before.is_empty() {
            pieces.push(Piece::Text(before));
        }
        let inside = &rest[start + 2..];
        if escaped {
            pieces.push(Piece::Text(&rest[start..start + 2]));
            rest = inside;
            continue;
        }
        match inside.find('}') {
            Some(end) => {
                pieces.push(Piece::Variable(&inside[..end]));
                rest = &inside[end + 1..];
            }
            None => {
                pieces.push(Piece::Unclosed(&rest[start..]));
                return pieces;
            }
        }
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest));
    }
    pieces
}
