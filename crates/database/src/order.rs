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
}
