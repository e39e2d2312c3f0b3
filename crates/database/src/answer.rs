//! The answer to a query as text. The sessions of all servers answer in this form.

/// The rows of a query; a null is `None`.
pub type TextRows = Vec<Vec<Option<String>>>;

/// The first value of the first row, unless it is a null.
pub fn first_cell(rows: TextRows) -> Option<String> {
    rows.into_iter().next()?.into_iter().next()?
}
