//! The items of a loop: `for_each` of a step.

use super::model::{ForEach, Items, QueryAction};
use super::spec::{DaysKeys, Pace};
use super::template::Template;
use crate::build::name_of;
use crate::dates::{Moment, NOW, TODAY};
use crate::lint::Lint;
use crate::text::JobText;
use crate::tree::{Entry, Kind, Node};

/// What a loop says: `entry` has the name of its variable and its items. What the schema refuses is no loop; it has been
/// told.
pub(crate) fn read(
    entry: &Entry,
    query: Option<QueryAction>,
    parallel: usize,
    text: &JobText,
    lints: &mut Vec<Lint>,
) -> Option<ForEach> {
    let name = &entry.key;
    let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_')
        && ![TODAY, NOW, "steps"].contains(&name.as_str());
    if !is_name {
        let what = format!("`{}` cannot be the variable of a loop", millstream_core::error::printable(name.as_bytes()));
        let hint = "a name has letters, digits and `_`; `today`, `now` and `steps` have a meaning of their own";
        lints.push(text.error(entry.key_span, what).hint(hint));
    }
    let items = match &entry.value.kind {
        Kind::List(items) => Items::List(items.iter().filter_map(Template::of).collect()),
        Kind::Block(_) if entry.value.get("query").is_some() => Items::Rows(query?),
        Kind::Block(_) if entry.value.get("files").is_some() => Items::Files(Template::of(entry.value.get("files")?)?),
        _ => days(&entry.value, text, lints)?,
    };
    is_name.then_some(ForEach { variable: name_of(entry), items, parallel })
}

fn days(node: &Node, text: &JobText, lints: &mut Vec<Lint>) -> Option<Items> {
    let keys = serde_json::from_value::<DaysKeys>(node.to_value());
    let every = keys.map_or(Pace::Day, |keys| keys.every);
    let (first, last) = (Template::of(node.get("first")?)?, Template::of(node.get("last")?)?);
    let day = |template: &Template| Some(Moment::default().at_day(template.known()?).map(Moment::day));
    for template in [&first, &last] {
        if day(template) == Some(None) {
            let what = format!("`{}` is no date", template.text.value);
            let hint = "a day is written `2026-01-31`, or computed: `${today - 7 days}`";
            lints.push(text.error(template.text.span, what).hint(hint));
        }
    }
    if let (Some(Some(from)), Some(Some(to))) = (day(&first), day(&last))
        && from > to
    {
        let what = "the last day is before the first: the step has no items";
        lints.push(text.warning(last.text.span, what).hint("exchange them"));
    }
    Some(Items::Days { first, last, every })
}
