//! Which rows of a test are missing, unexpected, or differ, and in which columns: a decision over rows as JSON.

use serde::Serialize;
use serde_json::{Map, Value};

/// A row, by its columns.
pub type Row = Map<String, Value>;

/// A column that is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Whether its values are numbers with a fraction, be they written as texts.
    pub has_fractions: bool,
}

/// How rows are compared.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    /// Whether their order counts.
    pub in_order: bool,
    /// How far numbers with a fraction may be from each other.
    pub within: f64,
}

/// What is different about one row.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Difference {
    /// A row that is expected and not there.
    Missing {
        /// Its number among those that are expected, from 1.
        expected: usize,
        /// The row.
        row: Row,
    },
    /// A row that is there and not expected.
    Unexpected {
        /// Its number among those that are there, from 1.
        found: usize,
        /// The row.
        row: Row,
    },
    /// A row that is probably meant by another one.
    Differs {
        /// Its number among those that are expected, from 1.
        expected: usize,
        /// The number of the other one among those that are there, from 1.
        found: usize,
        /// The columns in which they differ.
        columns: Vec<ColumnDifference>,
        /// The row that is expected.
        row: Row,
    },
}

/// A column in which two rows differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ColumnDifference {
    /// Its name.
    pub column: String,
    /// Its value in the row that is expected.
    pub expected: Value,
    /// Its value in the row that is there.
    pub found: Value,
}

/// What is different between the rows that are expected and those that are there; both have `columns`.
pub fn compare(columns: &[Column], expected: &[Row], found: &[Row], rules: Rules) -> Vec<Difference> {
    let same = |one: &Row, other: &Row| differing(columns, one, other, rules.within).is_empty();
    if rules.in_order {
        return in_order(columns, expected, found, rules);
    }
    let mut left: Vec<usize> = (0..found.len()).collect();
    let mut missing = Vec::new();
    for (index, row) in expected.iter().enumerate() {
        match left.iter().position(|other| same(row, &found[*other])) {
            Some(place) => drop(left.remove(place)),
            None => missing.push(index),
        }
    }
    let mut differences: Vec<Difference> = missing
        .into_iter()
        .map(|index| {
            let row = &expected[index];
            match nearest(columns, row, found, &left, rules.within) {
                Some(other) => {
                    left.retain(|one| *one != other);
                    pair(columns, (index, row), (other, &found[other]), rules.within)
                }
                None => Difference::Missing { expected: index + 1, row: row.clone() },
            }
        })
        .collect();
    differences.extend(left.into_iter().map(|one| Difference::Unexpected { found: one + 1, row: found[one].clone() }));
    differences
}

fn in_order(columns: &[Column], expected: &[Row], found: &[Row], rules: Rules) -> Vec<Difference> {
    let at = |index: usize| match (expected.get(index), found.get(index)) {
        (Some(row), Some(other)) if differing(columns, row, other, rules.within).is_empty() => None,
        (Some(row), Some(other)) => Some(pair(columns, (index, row), (index, other), rules.within)),
        (Some(row), None) => Some(Difference::Missing { expected: index + 1, row: row.clone() }),
        (None, Some(row)) => Some(Difference::Unexpected { found: index + 1, row: row.clone() }),
        (None, None) => None,
    };
    (0..expected.len().max(found.len())).filter_map(at).collect()
}

fn pair(columns: &[Column], expected: (usize, &Row), found: (usize, &Row), within: f64) -> Difference {
    Difference::Differs {
        expected: expected.0 + 1,
        found: found.0 + 1,
        columns: differing(columns, expected.1, found.1, within),
        row: expected.1.clone(),
    }
}

/// The row among `left` that has at least half of the columns of `row`, and the most.
fn nearest(columns: &[Column], row: &Row, found: &[Row], left: &[usize], within: f64) -> Option<usize> {
    let different = |other: &usize| differing(columns, row, &found[*other], within).len();
    left.iter().copied().min_by_key(different).filter(|other| different(other) * 2 <= columns.len())
}

/// The columns in which two rows differ.
fn differing(columns: &[Column], expected: &Row, found: &Row, within: f64) -> Vec<ColumnDifference> {
    let value = |row: &Row, column: &str| row.get(column).cloned().unwrap_or(Value::Null);
    let one = |column: &Column| {
        let (expected, found) = (value(expected, &column.name), value(found, &column.name));
        // Values that are equal are written alike; a comparison of floats would lose digits of decimals.
        let may_differ = column.has_fractions && within > 0.0;
        let same = expected == found || (may_differ && is_near(&expected, &found, within));
        (!same).then(|| ColumnDifference { column: column.name.clone(), expected, found })
    };
    columns.iter().filter_map(one).collect()
}

/// Whether two numbers, or texts that are numbers, are at most `within` apart.
fn is_near(one: &Value, other: &Value, within: f64) -> bool {
    let number = |value: &Value| match value {
        Value::String(text) => text.parse().ok(),
        value => value.as_f64(),
    };
    number(one).zip(number(other)).is_some_and(|(one, other): (f64, f64)| (one - other).abs() <= within)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rows(rows: Value) -> Vec<Row> {
        rows.as_array().expect("rows").iter().map(|row| row.as_object().expect("a row").clone()).collect()
    }

    fn shown(expected: Value, found: Value, rules: Rules) -> Vec<String> {
        let column = |name: &str| Column { name: name.to_owned(), has_fractions: name == "n" };
        let columns = ["id", "n", "t"].map(column);
        let shown = |difference: Difference| match difference {
            Difference::Missing { expected, .. } => format!("-{expected}"),
            Difference::Unexpected { found, .. } => format!("+{found}"),
            Difference::Differs { expected, found, columns, .. } => {
                let names: Vec<&str> = columns.iter().map(|one| one.column.as_str()).collect();
                format!("{expected}~{found}:{}", names.join(","))
            }
        };
        compare(&columns, &rows(expected), &rows(found), rules).into_iter().map(shown).collect()
    }

    #[test]
    fn rows_are_compared_in_any_order_unless_it_counts() {
        let (any, order) = (Rules::default(), Rules { in_order: true, ..Rules::default() });
        let one_two = json!([{"id": 1, "t": "a"}, {"id": 2, "t": "b"}]);
        let two_one = json!([{"id": 2, "t": "b"}, {"id": 1, "t": "a"}]);
        assert!(shown(one_two.clone(), two_one.clone(), any).is_empty());
        assert_eq!(shown(one_two.clone(), two_one, order), ["1~1:id,t", "2~2:id,t"]);
        assert_eq!(shown(one_two.clone(), json!([]), any), ["-1", "-2"]);
        assert_eq!(shown(json!([]), one_two.clone(), order), ["+1", "+2"]);
        assert_eq!(
            shown(one_two.clone(), json!([{"id": 1, "t": "x"}, {"id": 9, "n": 8, "t": "y"}]), any),
            ["1~1:t", "-2", "+2"]
        );
        // A row that is expected twice is there twice.
        let twice = json!([{"id": 1}, {"id": 1}]);
        assert_eq!(shown(twice.clone(), json!([{"id": 1}]), any), ["-2"]);
        assert_eq!(shown(json!([{"id": 1}]), twice, any), ["+2"]);
        assert_eq!(shown(json!([{"id": 1, "t": null}]), json!([{"id": 1}]), any), Vec::<String>::new());
    }

    #[test]
    fn only_fractions_may_be_near() {
        let near = Rules { within: 0.01, ..Rules::default() };
        let differs = |one: Value, other: Value| {
            !shown(json!([{"id": 1, "n": one}]), json!([{"id": 1, "n": other}]), near).is_empty()
        };
        assert!(!differs(json!(1.5), json!(1.509)) && !differs(json!("1.50"), json!("1.505")));
        assert!(!differs(json!(null), json!(null)) && differs(json!(null), json!(0.0)));
        assert!(!shown(json!([{"id": 1, "t": "1.5"}]), json!([{"id": 1, "t": "1.501"}]), near).is_empty());
        assert!(differs(json!(1.5), json!(1.52)) && differs(json!(1), json!(2)));
    }
}
