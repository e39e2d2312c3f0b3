//! What pages are made of: headings, tables, figures.

use maud::{Markup, PreEscaped, html};

/// A heading of a level from 2 to 4.
pub fn heading(level: u8, text: &str) -> Markup {
    match level {
        2 => html! { h2 { (text) } },
        3 => html! { h3 { (text) } },
        _ => html! { h4 { (text) } },
    }
}

/// How the cells of a column look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cells {
    /// A word or two.
    Words,
    /// The same, never in two lines.
    Word,
    /// A number, to the right.
    Number,
    /// Text that may be long.
    Text,
}

impl Cells {
    fn class(self) -> Option<&'static str> {
        match self {
            Cells::Words => None,
            Cells::Word => Some("word"),
            Cells::Number => Some("right"),
            Cells::Text => Some("text"),
        }
    }
}

/// A table in which the first cell of each row is its name. Columns that say nothing are left out.
pub fn table(caption: &str, head: &[(&str, Cells)], rows: &[Vec<Markup>]) -> Markup {
    let says = |column: usize| rows.iter().any(|row| row.get(column).is_some_and(|cell| !cell.0.is_empty()));
    let kept: Vec<usize> = (0..head.len()).filter(|&column| column == 0 || says(column)).collect();
    let empty = PreEscaped(String::new());
    html! {
        div.scroll role="region" aria-label=(caption) tabindex="0" {
            table {
                caption { (caption) }
                thead {
                    tr {
                        @for &column in &kept { th scope="col" class=[head[column].1.class()] { (head[column].0) } }
                    }
                }
                tbody {
                    @for row in rows {
                        tr {
                            @for &column in &kept {
                                @let cell = row.get(column).unwrap_or(&empty);
                                @let class = head[column].1.class();
                                @if column == 0 {
                                    th scope="row" class=[class] { (cell) }
                                } @else {
                                    td class=[class] { (cell) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A cell with a text.
pub fn cell(text: impl AsRef<str>) -> Markup {
    html! { (text.as_ref()) }
}

/// A cell with a number; empty if it is 0.
pub fn some(number: u64, shown: impl Fn(u64) -> String) -> Markup {
    if number == 0 {
        html! {}
    } else {
        cell(shown(number))
    }
}

/// A list of names and what they stand for.
pub fn facts(facts: Vec<(&str, Markup)>) -> Markup {
    html! {
        dl {
            @for (name, value) in facts {
                @if !value.0.is_empty() { dt { (name) } dd { (value) } }
            }
        }
    }
}

/// A drawing with a caption.
pub fn figure(drawing: &Markup, caption: &str) -> Markup {
    html! {
        figure {
            div.scroll role="region" aria-label=(caption) tabindex="0" { (drawing) }
            figcaption { (caption) }
        }
    }
}
