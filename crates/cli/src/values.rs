//! The values that `--for` gives to a variable.

use std::str::FromStr;

use chrono::NaiveDate;

/// More values than this are a slip.
const MOST: usize = 10_000;

/// A variable and its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Values {
    /// The variable.
    pub name: String,
    /// As it was written.
    pub written: String,
    /// At least one, each once.
    pub values: Vec<String>,
}

impl FromStr for Values {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, written) = match text.split_once('=') {
            Some((name, written)) if !name.is_empty() && !written.is_empty() => (name, written),
            _ => return Err("write NAME=VALUES, such as DAY=2026-01-01..2026-01-31 or REGION=north,south".to_owned()),
        };
        let mut values: Vec<String> = Vec::new();
        for item in written.split(',').map(str::trim) {
            let more = match item.split_once("..") {
                Some((from, to)) => range(from.trim(), to.trim())?,
                None if item.is_empty() => return Err("a value is empty".to_owned()),
                None => vec![item.to_owned()],
            };
            if let Some(twice) = more.iter().find(|value| values.contains(value)) {
                return Err(format!("{twice} is there twice"));
            }
            values.extend(more);
            too_many(values.len())?;
        }
        Ok(Values { name: name.to_owned(), written: written.to_owned(), values })
    }
}

fn too_many(count: usize) -> Result<(), String> {
    if count > MOST { Err(format!("these are more than {MOST} values")) } else { Ok(()) }
}

/// The days or numbers from `from` to `to`, both included.
fn range(from: &str, to: &str) -> Result<Vec<String>, String> {
    let backwards = || format!("{from}..{to} ends before it begins");
    if let (Ok(first), Ok(last)) = (from.parse::<NaiveDate>(), to.parse::<NaiveDate>()) {
        let days = first.iter_days().take_while(|day| *day <= last).take(MOST + 1);
        let days: Vec<String> = days.map(|day| day.format("%Y-%m-%d").to_string()).collect();
        return if days.is_empty() { Err(backwards()) } else { Ok(days) };
    }
    let (Ok(first), Ok(last)) = (from.parse::<i64>(), to.parse::<i64>()) else {
        return Err(format!("{from}..{to} is a range of neither days (2026-01-31) nor whole numbers"));
    };
    // 08..11 has 08, 09, 10, 11.
    let width = if from.starts_with('0') { from.len() } else { 0 };
    let numbers: Vec<String> = (first..=last).take(MOST + 1).map(|number| format!("{number:0width$}")).collect();
    if numbers.is_empty() { Err(backwards()) } else { Ok(numbers) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_lists_and_ranges() {
        let values = |text: &str| text.parse::<Values>().map(|values| values.values);
        for (text, expected) in [
            ("A=x", &["x"][..]),
            ("A=x, y=z", &["x", "y=z"]),
            ("A=2026-02-27..2026-03-01", &["2026-02-27", "2026-02-28", "2026-03-01"]),
            ("A=08..11", &["08", "09", "10", "11"]),
            ("A=-1..1,7", &["-1", "0", "1", "7"]),
            ("A=2026-01-01..2026-01-01", &["2026-01-01"]),
        ] {
            assert_eq!(values(text).expect(text), expected, "{text}");
        }
        for (text, what) in [
            ("A", "write NAME=VALUES"),
            ("=1", "write NAME=VALUES"),
            ("A=", "write NAME=VALUES"),
            ("A=1,,2", "a value is empty"),
            ("A=1..3,2", "2 is there twice"),
            ("A=3..1", "3..1 ends before it begins"),
            ("A=2026-02-01..2026-01-01", "ends before it begins"),
            ("A=a..b", "a range of neither days"),
            ("A=2026-02-30..2026-03-01", "a range of neither days"),
            ("A=1..1000000000000", "more than 10000 values"),
        ] {
            let error = values(text).expect_err(text);
            assert!(error.contains(what), "{text}: {error}");
        }
    }
}
