//! Results of steps in SQL and in texts: where they stand, and which results a step has.

use crate::graph::Located;
use crate::text::Span;

/// `steps.NAME.RESULT` in a SQL condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepsReference {
    /// The step.
    pub step: String,
    /// The name of the result; empty if it is left out.
    pub name: String,
    /// The bytes of the condition that it takes.
    pub range: std::ops::Range<usize>,
    /// Where it stands in the file.
    pub span: Span,
}

/// The results of steps that `sql` uses, outside of quotes and comments. Names may be in double quotes, and `steps` may
/// be in capitals, as in all SQL.
pub(crate) fn in_sql(sql: &Located<String>) -> Vec<StepsReference> {
    let characters: Vec<(usize, char)> = sql.value.char_indices().collect();
    let mut reader = Reader { characters: &characters, at: 0 };
    let mut found = Vec::new();
    let mut behind_dot = false;
    loop {
        reader.skip_blanks();
        let start = reader.at;
        let Some(token) = reader.token() else { break };
        let is_steps = matches!(&token, Token::Name(name) if name.eq_ignore_ascii_case("steps")) && !behind_dot;
        behind_dot = matches!(token, Token::Dot);
        if !is_steps {
            continue;
        }
        let Some(step) = reader.part() else { continue };
        let name = reader.part().unwrap_or_default();
        let byte = |index: usize| characters.get(index).map_or(sql.value.len(), |(byte, _)| *byte);
        found.push(StepsReference {
            step,
            name,
            range: byte(start)..byte(reader.at),
            span: span(sql, start, reader.at),
        });
    }
    found
}

/// Where the characters from `start` to `end` of `sql` stand, as far as they are in one line.
fn span(sql: &Located<String>, start: usize, end: usize) -> Span {
    let before: Vec<char> = sql.value.chars().take(start).collect();
    let line = before.iter().filter(|one| **one == '\n').count() + 1;
    let column = before.iter().rev().take_while(|one| **one != '\n').count() + 1;
    Span::at(sql.locate(line, column), end - start)
}

/// A piece of SQL.
enum Token {
    /// A name, as it is read: without its quotes.
    Name(String),
    Dot,
    Other,
}

/// Reads SQL piece by piece.
struct Reader<'a> {
    characters: &'a [(usize, char)],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.characters.get(self.at + ahead).map(|(_, one)| *one)
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> String {
        let mut taken = String::new();
        while let Some(one) = self.peek(0).filter(|one| wanted(*one)) {
            taken.push(one);
            self.at += 1;
        }
        taken
    }

    fn skip_blanks(&mut self) {
        self.take_while(char::is_whitespace);
    }

    /// The next piece, behind blanks and comments.
    fn token(&mut self) -> Option<Token> {
        self.skip_blanks();
        match (self.peek(0)?, self.peek(1)) {
            ('-', Some('-')) => {
                self.take_while(|one| one != '\n');
                self.token_behind_comment()
            }
            ('/', Some('*')) => {
                self.at += 2;
                while self.peek(0).is_some() && (self.peek(0), self.peek(1)) != (Some('*'), Some('/')) {
                    self.at += 1;
                }
                self.at = (self.at + 2).min(self.characters.len());
                self.token_behind_comment()
            }
            ('\'', _) => {
                self.quoted('\'');
                Some(Token::Other)
            }
            ('"', _) => Some(Token::Name(self.quoted('"'))),
            ('.', _) => {
                self.at += 1;
                Some(Token::Dot)
            }
            (one, _) if is_of_name(one) => Some(Token::Name(self.take_while(is_of_name))),
            _ => {
                self.at += 1;
                Some(Token::Other)
            }
        }
    }

    /// A comment separates what stands around it, as a blank would.
    fn token_behind_comment(&mut self) -> Option<Token> {
        self.peek(0).map(|_| Token::Other)
    }

    /// What stands in quotes, of which two stand for one.
    fn quoted(&mut self, quote: char) -> String {
        self.at += 1;
        let mut text = String::new();
        while let Some(one) = self.peek(0) {
            self.at += 1;
            if one == quote {
                if self.peek(0) != Some(quote) {
                    break;
                }
                self.at += 1;
            }
            text.push(one);
        }
        text
    }

    /// The name behind a dot, if there is one.
    fn part(&mut self) -> Option<String> {
        let before = self.at;
        if let Some(Token::Dot) = self.token()
            && let Some(Token::Name(name)) = self.token()
        {
            return Some(name);
        }
        self.at = before;
        None
    }
}

fn is_of_name(one: char) -> bool {
    one.is_alphanumeric() || one == '_'
}

/// Which results a step has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Results {
    /// These.
    Named(Vec<&'static str>),
    /// The columns of a row, which are known when the query has run.
    Columns,
}

/// The results that all steps have but queries.
const OF_ALL: [&str; 2] = ["duration_ms", "ok"];

impl Results {
    /// Those of a step of this kind. A loop has the sums of its items; what cannot be added it does not have.
    pub fn of(kind: &str, is_loop: bool, waits_for_query: bool) -> Self {
        let own: &[&'static str] = match (kind, is_loop) {
            ("query", false) => return Results::Columns,
            ("wait", false) if waits_for_query => return Results::Columns,
            ("job", false) => &["rows_read", "rows_written", "rows_rejected", "run"],
            ("job", true) => &["rows_read", "rows_written", "rows_rejected", "items"],
            (_, true) => &["items"],
            ("sequence", _) => &["run"],
            ("command", _) => &["exit_code", "output"],
            ("wait", _) => &["file"],
            ("webhook", _) => &["status", "body"],
            _ => &[],
        };
        Results::Named(own.iter().chain(&OF_ALL).copied().collect())
    }

    /// Whether `name` is one.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Results::Named(names) => names.contains(&name),
            Results::Columns => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(sql: &str) -> Vec<(String, String, String)> {
        let located = Located::new(sql.to_owned(), Span::default());
        let names = |one: StepsReference| (one.step, one.name, sql[one.range].to_owned());
        in_sql(&located).into_iter().map(names).collect()
    }

    fn names(sql: &str) -> Vec<String> {
        found(sql).into_iter().map(|(step, name, _)| format!("{step}.{name}")).collect()
    }

    #[test]
    fn results_are_found_in_sql_outside_of_quotes_and_comments() {
        assert_eq!(names("steps.rows.n > 0 AND STEPS.load.ok"), ["rows.n", "load.ok"]);
        assert_eq!(names("'steps.a.b' || x -- steps.c.d\n || steps.e.f /* steps.g.h */"), ["e.f"]);
        assert_eq!(names("steps . \"Big\" . \"a\"\"b\" > 1"), ["Big.a\"b"]);
        assert_eq!(names("steps.rows"), ["rows."]);
        assert_eq!(names("mysteps.rows.n + x.steps.y.z + steps + steps.1"), ["1."]);
        assert_eq!(names("'it''s steps.a.b'"), Vec::<String>::new());
        assert_eq!(names("/* open steps.a.b"), Vec::<String>::new());
    }

    #[test]
    fn a_reference_knows_its_place_in_the_text() {
        let texts: Vec<String> = found("1 < steps.rows.n AND \"ä\" = steps.a.b").into_iter().map(|one| one.2).collect();
        assert_eq!(texts, ["steps.rows.n", "steps.a.b"]);
    }

    #[test]
    fn loops_have_sums() {
        assert!(Results::of("job", false, false).has("run") && !Results::of("job", true, false).has("run"));
        assert!(Results::of("query", false, false).has("anything") && !Results::of("query", true, false).has("n"));
        assert!(Results::of("wait", false, true).has("n") && Results::of("wait", false, false).has("file"));
        assert!(Results::of("mail", false, false).has("ok") && !Results::of("mail", false, false).has("file"));
    }
}
