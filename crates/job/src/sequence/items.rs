//! The items of a loop: `for_each` of a step.

use std::path::Path;

use super::model::{DayItems, ForEach, Items, QueryAction};
use super::spec::{DaysKeys, Pace};
use super::template::Template;
use crate::build::name_of;
use crate::dates::{Moment, NOW, TODAY};
use crate::lint::Lint;
use crate::text::JobText;
use crate::tree::{Entry, Kind, Node};
use chrono::{Days, Months, NaiveDate};

/// What a loop says: `entry` has the name of its variable and its items. What the schema refuses is no loop; it has
/// been reported.
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
        Kind::Block(_) if entry.value.get("query").is_some() => Items::Rows(Box::new(query?)),
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
    Some(Items::Days(Box::new(DayItems { first, last, every })))
}

/// The most days that a loop may have: over a hundred years.
const MOST_DAYS: usize = 40_000;

/// The days from `first` to `last`, both included, as `2026-01-31`; none if `last` is before `first`.
///
/// # Errors
/// What is wrong, in lower case: a text that is no day, or days that are too many.
pub fn days_between(first: &str, last: &str, every: Pace) -> Result<Vec<String>, String> {
    let day = |text: &str| NaiveDate::parse_from_str(text, "%Y-%m-%d").map_err(|_| format!("`{text}` is no date"));
    let (first, last) = (day(first)?, day(last)?);
    // Each is computed of the first: the month behind February has its 31st again.
    let nth = |number: u32| match every {
        Pace::Day => first.checked_add_days(Days::new(u64::from(number))),
        Pace::Week => first.checked_add_days(Days::new(u64::from(number) * 7)),
        Pace::Month => first.checked_add_months(Months::new(number)),
    };
    let days = (0..).map_while(nth).take_while(|day| *day <= last).take(MOST_DAYS + 1);
    let days: Vec<String> = days.map(|day| day.to_string()).collect();
    match days.len() > MOST_DAYS {
        true => Err(format!("from {first} to {last} there are more than {MOST_DAYS} items")),
        false => Ok(days),
    }
}

/// The part `field` of the item `path` of a loop over files: `name` or `stem`.
pub fn part_of_path(path: &str, field: &str) -> Option<String> {
    // Of a URL, too, the name stands behind the last `/`.
    let name = path.rsplit('/').next().unwrap_or(path);
    match field {
        "name" => Some(name.to_owned()),
        "stem" => Some(Path::new(name).file_stem()?.to_string_lossy().into_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_include_both_ends() {
        let days = |first, last, every| days_between(first, last, every).expect("days").join(" ");
        assert_eq!(days("2024-02-28", "2024-03-01", Pace::Day), "2024-02-28 2024-02-29 2024-03-01");
        assert_eq!(days("2026-01-01", "2026-01-15", Pace::Week), "2026-01-01 2026-01-08 2026-01-15");
        assert_eq!(days("2026-01-01", "2026-01-14", Pace::Week), "2026-01-01 2026-01-08");
        assert_eq!(days("2026-01-31", "2026-04-30", Pace::Month), "2026-01-31 2026-02-28 2026-03-31 2026-04-30");
        assert_eq!(days("2026-01-02", "2026-01-01", Pace::Day), "");
        assert_eq!(days("2026-01-02", "2026-01-02", Pace::Month), "2026-01-02");
        assert!(days_between("2026-02-30", "2026-03-01", Pace::Day).is_err());
        assert!(days_between("0001-01-01", "2026-01-01", Pace::Day).is_err_and(|what| what.contains("40000 items")));
    }

    #[test]
    fn a_path_has_a_name_and_a_stem() {
        let parts = |path: &str| (part_of_path(path, "name"), part_of_path(path, "stem"), part_of_path(path, "x"));
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(parts("in/a.csv.gz"), (some("a.csv.gz"), some("a.csv"), None));
        assert_eq!(parts("https://h/x/b"), (some("b"), some("b"), None));
        assert_eq!(parts(".hidden"), (some(".hidden"), some(".hidden"), None));
    }
}
