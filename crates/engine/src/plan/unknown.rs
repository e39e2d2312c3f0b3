//! The search for all columns of one text that do not exist: the planner stops at the first, so it is asked again with
//! a null in its place.

use crate::sql;

/// A text may name so many columns that do not exist before the search for more of them ends.
const MOST: usize = 20;

/// A text in which columns that do not exist are replaced by nulls.
pub struct Unknown<'a> {
    original: &'a str,
    /// Line, column and characters in the original, in order.
    places: Vec<(usize, usize, usize)>,
}

/// What stands in place of a column.
const NULL: &str = "NULL";

impl<'a> Unknown<'a> {
    /// Of which no column is known yet to be missing.
    pub fn new(original: &'a str) -> Self {
        Unknown { original, places: Vec::new() }
    }

    /// Whether there are so many that no more are searched for.
    pub fn is_full(&self) -> bool {
        self.places.len() >= MOST
    }

    /// The text with the nulls.
    pub fn text(&self) -> String {
        let mut lines: Vec<String> = self.original.split('\n').map(str::to_owned).collect();
        for (line, column, length) in self.places.iter().rev() {
            let Some(text) = lines.get_mut(line - 1) else { continue };
            let rest: String = text.chars().skip(column - 1 + length).collect();
            *text = text.chars().take(column - 1).chain(NULL.chars()).collect::<String>() + &rest;
        }
        lines.join("\n")
    }

    /// `fault`, found in [`Unknown::text`], with its place in the original.
    pub fn in_original(&self, mut fault: sql::PlanFault) -> sql::PlanFault {
        let (line, mut column) = (fault.fault.line, fault.fault.column);
        for (_, at, length) in self.places.iter().filter(|(of, ..)| *of == line) {
            if column > *at {
                column = (column + length).saturating_sub(NULL.len()).max(*at);
            }
        }
        fault.fault.column = column;
        fault
    }

    /// Replaces what is at `fault`; whether that is something new.
    pub fn add(&mut self, fault: &sql::PlanFault) -> bool {
        let place = (fault.fault.line, fault.fault.column, fault.length);
        let line = self.original.split('\n').nth(place.0.wrapping_sub(1)).unwrap_or_default();
        let text: String = line.chars().skip(place.1.saturating_sub(1)).take(place.2).collect();
        // Only what is a name as a whole: a place that the planner does not know is that of the whole text.
        let is_name = !text.is_empty()
            && text.chars().all(|one| one.is_alphanumeric() || matches!(one, '_' | '.' | '"' | ' ' | '$'));
        let is_new = !self.places.iter().any(|known| (known.0, known.1) == (place.0, place.1));
        if is_name && is_new {
            self.places.push(place);
            self.places.sort_unstable();
        }
        is_name && is_new
    }
}
