//! The order of rows with the same key, as in a job: `[changed_at desc, id]`.

/// A column that orders rows with the same key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Its name.
    pub column: String,
    /// Whether the greatest value comes first.
    pub descending: bool,
}

impl Order {
    /// The entries that can be parsed.
    pub fn all(order_by: &[String]) -> Vec<Order> {
        order_by.iter().filter_map(|text| Order::parse(text).ok()).collect()
    }

    /// Parses a column and a direction; the error says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (column, descending) = match text.rsplit_once(char::is_whitespace) {
            Some((column, word)) if word.eq_ignore_ascii_case("desc") => (column.trim(), true),
            Some((column, word)) if word.eq_ignore_ascii_case("asc") => (column.trim(), false),
            _ => (text, false),
        };
        if column.is_empty() {
            return Err("no column is named".to_owned());
        }
        Ok(Order { column: column.to_owned(), descending })
    }
}

/// A condition that holds where one row comes before another one in a declared order, and is not true otherwise. `of`
/// gives a column of each as SQL text. Nulls come last in either direction.
pub fn precedes(order: &[Order], of: impl Fn(&str) -> [String; 2]) -> String {
    let mut terms = Vec::new();
    let mut equal = String::new();
    for Order { column, descending } in order {
        let [one, other] = of(column);
        let sign = if *descending { '>' } else { '<' };
        terms.push(format!("{equal}({one} {sign} {other} OR ({one} IS NOT NULL AND {other} IS NULL))"));
        equal.push_str(&format!("({one} = {other} OR ({one} IS NULL AND {other} IS NULL)) AND "));
    }
    format!("({})", terms.join(" OR "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_a_column_and_a_direction() {
        let order = |column: &str, descending| Ok(Order { column: column.to_owned(), descending });
        assert_eq!(Order::parse("a"), order("a", false));
        assert_eq!(Order::parse("a b DESC"), order("a b", true));
        assert_eq!(Order::parse(" a  asc "), order("a", false));
        assert!(Order::parse("  ").is_err());
    }

    #[test]
    fn one_row_precedes_another_by_the_first_column_that_differs() {
        let order = Order::all(&["a desc".to_owned(), "b".to_owned()]);
        assert_eq!(
            precedes(&order, |column| ["t", "s"].map(|of| format!("{of}.{column}"))),
            "((t.a > s.a OR (t.a IS NOT NULL AND s.a IS NULL)) OR (t.a = s.a OR (t.a IS NULL AND s.a IS NULL)) AND \
             (t.b < s.b OR (t.b IS NOT NULL AND s.b IS NULL)))"
        );
    }
}
