//! Tables on a terminal: columns under their names, numbers to the right.

/// Rows of text under a header. `right` says which columns are aligned right.
pub fn table(header: &[String], rows: &[Vec<String>], right: &[bool]) -> String {
    let width = |text: &str| text.chars().count();
    let widths: Vec<usize> = (0..header.len())
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| width(cell));
            cells.chain([width(&header[column])]).max().unwrap_or(0)
        })
        .collect();
    let line = |cells: &[String]| {
        let mut text = String::new();
        for (column, cell) in cells.iter().enumerate() {
            let gap = " ".repeat(widths[column].saturating_sub(width(cell)));
            let separator = if column > 0 { "  " } else { "" };
            match right.get(column) {
                Some(true) => text.push_str(&format!("{separator}{gap}{cell}")),
                _ => text.push_str(&format!("{separator}{cell}{gap}")),
            }
        }
        format!("{}\n", text.trim_end())
    };
    std::iter::once(line(header)).chain(rows.iter().map(|row| line(row))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let text = |human: &[&str]| human.iter().map(|word| word.to_string()).collect::<Vec<_>>();
        let rows = [text(&["Zürich", "1"]), text(&["x", "1,000"])];
        assert_eq!(
            table(&text(&["name", "n"]), &rows, &[false, true]),
            "name        n\nZürich      1\nx       1,000\n"
        );
    }
}
