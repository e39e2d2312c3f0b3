//! Parameters, and what `${…}` stands for in each part of a sequence.
//!
//! A name is the item of the step's loop, else a parameter, else a variable as in jobs. Items and results of steps get
//! their values later: they may stand in what a step does, and not in what says when and how it runs.

use std::collections::{BTreeMap, BTreeSet};

use crate::dates::{self, Expression, NOW, TODAY};
use crate::lint::{Lint, LintCode};
use crate::text::JobText;
use crate::tree::{Entry, Kind, Node, Typed};
use crate::variables::{Filled, Filler, Later, TIMEZONE, Variables, variable_of};

/// The key of a sequence for its parameters.
pub(crate) const PARAMETERS: &str = "parameters";

/// The keys of a step that say what it does.
const OF_WHAT: [&str; 7] = ["command", "query", "from", "wait", "webhook", "mail", "set"];

/// The key of a step for its loop.
const FOR_EACH: &str = "for_each";

/// What filling a sequence has come to.
pub(crate) struct FilledSequence {
    /// What is wrong, and the values of variables and dates.
    pub(crate) filled: Filled,
    /// The values of the parameters that have one already.
    pub(crate) parameters: BTreeMap<String, String>,
    /// Warnings of parameters that nothing uses.
    pub(crate) unused: Vec<Lint>,
}

/// Fills all texts of the sequence at `root`, as far as their values are known before a step starts. `databases` are
/// the blocks that a step may have beside its keys. Of what is in `later` nothing is known.
pub(crate) fn fill<'a>(
    root: &mut Node,
    text: &'a JobText,
    variables: &'a Variables<'a>,
    databases: &[&str],
    later: &'a BTreeSet<String>,
) -> FilledSequence {
    borrow_zone(root);
    let mut filler = Filler::new(text, variables);
    filler.later = Box::new(|inside| Scope::of(TIMEZONE, later).later(inside));
    filler.begin(root);
    filler.later = Box::new(|inside| Scope::of(PARAMETERS, later).later(inside));
    for entry in root.entries_mut().iter_mut().filter(|entry| entry.key == PARAMETERS) {
        parameters(&mut entry.value, &mut filler, text, variables, later);
    }
    let known = filler.parameters.clone();
    for entry in root.entries_mut() {
        match entry.key.as_str() {
            PARAMETERS | TIMEZONE => {}
            "steps" => {
                for step in entry.value.entries_mut() {
                    fill_step(step, &mut filler, databases, later);
                }
            }
            key => {
                let scope = Scope::of(key, later);
                filler.later = Box::new(move |inside| scope.later(inside));
                filler.node(&mut entry.value);
            }
        }
    }
    filler.unused("sequence", later);
    let unused = unused(root, &filler, text);
    FilledSequence { filled: filler.filled(), parameters: known, unused }
}

/// Dates are in the zone of the schedule, if the sequence does not say otherwise.
fn borrow_zone(root: &mut Node) {
    let zone = root.get("schedule").and_then(|schedule| schedule.entry(TIMEZONE)).cloned();
    if let (Some(zone), None) = (zone.filter(|zone| zone.value.scalar().is_some()), root.get(TIMEZONE)) {
        root.set(zone);
    }
}

/// Fills the parameters, and gives their values to all that comes behind them.
fn parameters<'a>(
    node: &mut Node,
    filler: &mut Filler<'a>,
    text: &JobText,
    variables: &Variables<'_>,
    later: &'a BTreeSet<String>,
) {
    for entry in node.entries_mut() {
        let name = entry.key.clone();
        if let Some(lint) = unfit_name(entry, text) {
            filler.lints.push(lint);
            filler.know(&name);
            continue;
        }
        filler.know(&name);
        if later.contains(&name) {
            if let Kind::Scalar(scalar) = &mut entry.value.kind {
                scalar.typed = Typed::Unknown;
            }
            continue;
        }
        if let Some(value) = variables.set.get(&name) {
            filler.parameters.insert(name, value.clone());
            entry.value = Node::text(value, entry.value.span);
            continue;
        }
        filler.node(&mut entry.value);
        let Some(scalar) = entry.value.scalar() else { continue };
        if scalar.typed == Typed::Null {
            let lint = text.error(entry.key_span, format!("the parameter {name} has no value")).code(LintCode::NoValue);
            let hint = format!("give it with `--set {name}=…`, or write a value that it has if nothing is given");
            filler.lints.push(lint.hint(hint));
        }
        if matches!(scalar.typed, Typed::Null | Typed::Unknown) {
            // What uses it is not at fault, too.
            filler.parameters.insert(name, String::new());
        } else {
            filler.parameters.insert(name, scalar.text.clone());
        }
    }
}

/// Warns of parameters that no `${…}` and no condition names.
fn unused(root: &Node, filler: &Filler<'_>, text: &JobText) -> Vec<Lint> {
    let steps = root.get("steps").map(Node::entries).unwrap_or_default();
    let conditions = || steps.iter().filter_map(|step| step.value.get("when")?.scalar());
    let names = |sql: &str, name: &str| {
        sql.split(|one: char| !(one.is_alphanumeric() || one == '_')).any(|word| word.eq_ignore_ascii_case(name))
    };
    let is_used =
        |entry: &&Entry| filler.named.contains(&entry.key) || conditions().any(|when| names(&when.text, &entry.key));
    let parameters = root.get(PARAMETERS).map(Node::entries).unwrap_or_default();
    let lint = |entry: &Entry| {
        let lint = text.warning(entry.key_span, format!("nothing uses the parameter `{}`", entry.key));
        lint.hint(format!("write `${{{}}}` in a step, or remove it", entry.key))
    };
    parameters.iter().filter(|entry| !is_used(entry)).map(lint).collect()
}

/// Why a parameter cannot have its name.
fn unfit_name(entry: &Entry, text: &JobText) -> Option<Lint> {
    let name = &entry.key;
    if [TODAY, NOW, "steps"].contains(&name.as_str()) {
        let what = format!("`{name}` cannot be a parameter: it has a meaning of its own");
        return Some(text.error(entry.key_span, what).hint("give it another name"));
    }
    if is_name(name) {
        return None;
    }
    let what = format!("`{}` cannot be the name of a parameter", millstream_core::error::printable(name.as_bytes()));
    let hint = "a name has letters, digits and `_`, and does not begin with a digit";
    Some(text.error(entry.key_span, what).hint(hint))
}

fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_')
}

fn fill_step<'a>(step: &mut Entry, filler: &mut Filler<'a>, databases: &[&str], later: &'a BTreeSet<String>) {
    let item = step.value.get(FOR_EACH).and_then(|items| items.entries().first()).cloned();
    let item = item.map(|entry| LoopItem { fields: Fields::of(&entry.value), name: entry.key });
    for entry in step.value.entries_mut() {
        let key = entry.key.clone();
        let of_what = OF_WHAT.contains(&key.as_str()) || databases.contains(&key.as_str());
        let results = of_what || key == FOR_EACH;
        let scope = Scope { key, results, item: item.clone(), items: of_what, later };
        filler.later = Box::new(move |inside| scope.later(inside));
        filler.node(&mut entry.value);
    }
}

/// The item of a loop.
#[derive(Clone)]
struct LoopItem {
    name: String,
    fields: Fields,
}

/// What an item has beside its value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fields {
    None,
    /// The columns of a row.
    Columns,
    /// The parts of a path.
    OfPath,
}

impl Fields {
    fn of(items: &Node) -> Self {
        match (items.get("query"), items.get("files")) {
            (Some(_), _) => Fields::Columns,
            (_, Some(_)) => Fields::OfPath,
            _ => Fields::None,
        }
    }

    /// Why `field` is none of them.
    fn refuse(self, item: &str, field: &str) -> Option<String> {
        match self {
            Fields::Columns => None,
            Fields::OfPath if ["name", "stem"].contains(&field) => None,
            Fields::OfPath => {
                Some(format!("`${{{item}}}` is the path, `${{{item}.name}}` and `${{{item}.stem}}` its end"))
            }
            Fields::None => Some(format!("write `${{{item}}}`: only rows of a query and files have parts")),
        }
    }
}

/// Where a `${…}` stands, and what it may be there.
struct Scope<'a> {
    /// The key of the step.
    key: String,
    /// Whether it may be a result of a step.
    results: bool,
    /// The item of the step's loop.
    item: Option<LoopItem>,
    /// Whether it may be that.
    items: bool,
    /// Variables of which nothing is known.
    later: &'a BTreeSet<String>,
}

impl<'a> Scope<'a> {
    /// One in which everything has to be known.
    fn of(key: &str, later: &'a BTreeSet<String>) -> Self {
        Scope { key: key.to_owned(), results: false, item: None, items: false, later }
    }

    /// When the `${…}` around `inside` has its value.
    fn later(&self, inside: &str) -> Later {
        let whole = variable_of(inside);
        let (name, field) = whole.split_once('.').map_or((whole, None), |(name, field)| (name, Some(field)));
        if name == "steps" && field.is_some() {
            return self.result(inside);
        }
        match &self.item {
            Some(item) if item.name == name => self.item(item, inside, field),
            _ if self.later.contains(name) => Later::Unknown,
            _ => Later::No,
        }
    }

    fn result(&self, inside: &str) -> Later {
        let refused = |what: String, hint: &str| Later::Refused { what, hint: hint.to_owned() };
        if !self.results {
            let what = format!("`{}` cannot use results of steps", self.key);
            return match self.key.as_str() {
                "when" => refused(what, "in SQL they are columns: write `steps.load.rows_written > 0` without `${ }`"),
                "job" | "sequence" => refused(what, "the file is checked before anything runs; use `set`"),
                PARAMETERS => refused(what, "they have their values before anything runs; use results in the steps"),
                _ => refused(what, "they are for what a step does: `set`, `command`, `query`, `webhook`, `mail`, …"),
            };
        }
        let names: Vec<&str> = inside.split('.').collect();
        match names[..] {
            ["steps", step, name] if is_name(step) && is_name(name) => Later::Kept,
            _ => refused(
                format!("`{inside}` is not a result of a step"),
                "write for example `${steps.load.rows_written}`",
            ),
        }
    }

    fn item(&self, item: &LoopItem, inside: &str, field: Option<&str>) -> Later {
        let name = &item.name;
        if !self.items {
            let what =
                format!("`{}` cannot use `${{{name}}}`: it is about the step, and not about each item", self.key);
            let hint = match self.key.as_str() {
                "job" | "sequence" => "the file is checked before anything runs; use `set`",
                _ => "write what is the same for all items",
            };
            return Later::Refused { what, hint: hint.to_owned() };
        }
        if let Some(hint) = field.and_then(|field| item.fields.refuse(name, field)) {
            return Later::Refused { what: format!("`${{{inside}}}` is not a part of an item"), hint };
        }
        if dates::is_expression(inside) {
            return match Expression::parse(inside) {
                Ok(_) => Later::Kept,
                Err(fault) => Later::Refused { what: fault.what, hint: fault.hint },
            };
        }
        Later::Kept
    }
}
