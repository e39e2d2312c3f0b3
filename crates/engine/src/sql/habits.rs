//! Habits from other databases and words of SQL in places where a name is meant: what to write instead.
//!
//! It looks at the tokens of the query, since the planner's messages do not say what was meant.

use datafusion::common::Span;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::{Keyword, RESERVED_FOR_COLUMN_ALIAS};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer, Word};
use millstream_job::SqlFault;

use super::PlanFault;

/// Functions of other databases, and what does the same here.
const FUNCTIONS: &[(&[&str], &str)] = &[
    (&["strftime", "format_date", "to_varchar"], "to_char(day, '%Y-%m-%d')"),
    (&["strptime", "str_to_date", "parse_date"], "to_date('01.02.2026', '%d.%m.%Y')"),
    (&["year", "month", "day", "hour", "minute", "second"], "date_part('year', day)"),
    (&["dateadd", "date_add"], "day + INTERVAL '1 day'"),
    (&["date_sub"], "day - INTERVAL '1 day'"),
    (&["datediff", "date_diff"], "later - earlier, which is an interval"),
    (&["getdate", "sysdate"], "now()"),
    (&["isnull"], "coalesce(value, other), or value IS NULL"),
    (&["if", "iif"], "CASE WHEN condition THEN value ELSE other END"),
    (&["len"], "length(text)"),
    (&["ucase"], "upper(text)"),
    (&["lcase"], "lower(text)"),
    (&["charindex", "locate"], "strpos(text, part)"),
    (&["group_concat", "listagg"], "string_agg(text, ',')"),
    (&["to_number"], "CAST(text AS double)"),
    (&["count_if", "countif"], "count(*) FILTER (WHERE condition)"),
    (&["typeof"], "arrow_typeof(value)"),
    (&["regexp_extract", "regexp_matches"], "regexp_match(text, pattern)[1]"),
    (&["json_extract", "get_json_object"], "column['field'], since JSON is read as it is nested"),
];

/// What does the same as a function of another database.
pub fn instead_of(function: &str) -> Option<String> {
    let known = FUNCTIONS.iter().find(|(names, _)| names.iter().any(|name| name.eq_ignore_ascii_case(function)))?;
    Some(format!("write {}", known.1))
}

/// Words that begin a part of a query: where they stand something else is wrong than their name.
const STRUCTURE: &[Keyword] = &[
    Keyword::SELECT,
    Keyword::FROM,
    Keyword::WHERE,
    Keyword::HAVING,
    Keyword::JOIN,
    Keyword::ON,
    Keyword::UNION,
    Keyword::AND,
    Keyword::OR,
    Keyword::AS,
    Keyword::WHEN,
    Keyword::THEN,
    Keyword::ELSE,
    Keyword::END,
    Keyword::LIMIT,
    Keyword::BY,
];

/// Aggregate functions that most queries use.
const AGGREGATES: &[&str] =
    &["sum", "count", "avg", "mean", "min", "max", "median", "stddev", "array_agg", "string_agg"];

/// What says something in `sql`, in order.
fn tokens(sql: &str) -> Vec<TokenWithSpan> {
    let tokens = Tokenizer::new(&GenericDialect {}, sql).tokenize_with_location().unwrap_or_default();
    tokens.into_iter().filter(|one| !matches!(one.token, Token::Whitespace(_))).collect()
}

fn word(token: Option<&TokenWithSpan>) -> Option<&Word> {
    match token.map(|one| &one.token) {
        Some(Token::Word(word)) => Some(word),
        _ => None,
    }
}

fn index_at(tokens: &[TokenWithSpan], line: usize, column: usize) -> Option<usize> {
    let is_there =
        |one: &TokenWithSpan| one.span.start.line as usize == line && one.span.start.column as usize == column;
    tokens.iter().position(is_there)
}

/// The token as a place of `length` characters.
fn place(token: &TokenWithSpan) -> Option<(usize, usize, usize)> {
    let Span { start, end } = Span::try_from_sqlparser_span(token.span)?;
    let length = if start.line == end.line { end.column.saturating_sub(start.column).max(1) } else { 1 };
    Some((start.line as usize, start.column as usize, length as usize))
}

/// What to do where the parser stumbles over the word at `line` and `column`: if it may be meant as a name, quote it.
pub fn word_hint(sql: &str, line: usize, column: usize) -> Option<String> {
    let tokens = tokens(sql);
    let index = index_at(&tokens, line, column)?;
    let here = word(tokens.get(index)).filter(|word| word.quote_style.is_none())?;
    let next = word(tokens.get(index + 1)).map(|word| word.keyword);
    let is_name = RESERVED_FOR_COLUMN_ALIAS.contains(&here.keyword)
        && !STRUCTURE.contains(&here.keyword)
        && next != Some(Keyword::BY);
    is_name.then(|| format!("`{0}` is a word of SQL: as a column it stands in double quotes, \"{0}\"", here.value))
}

/// What to do about a column that is not there, if its name stands in double quotes as a text would elsewhere.
pub fn text_hint(sql: &str, line: usize, column: usize) -> Option<String> {
    let tokens = tokens(sql);
    let here = word(tokens.get(index_at(&tokens, line, column)?))?;
    (here.quote_style == Some('"'))
        .then(|| format!("texts stand in single quotes: '{}'", here.value.replace('\'', "''")))
}

/// Where the first aggregate function behind WHERE stands.
pub fn aggregate_in_where(sql: &str) -> Option<(usize, usize, usize)> {
    let tokens = tokens(sql);
    let from =
        tokens.iter().position(|one| matches!(&one.token, Token::Word(word) if word.keyword == Keyword::WHERE))?;
    let is_call = |index: &usize| {
        let name = word(tokens.get(*index)).map(|word| word.value.to_lowercase());
        name.is_some_and(|name| AGGREGATES.contains(&name.as_str()))
            && tokens.get(index + 1).is_some_and(|next| next.token == Token::LParen)
    };
    place(&tokens[(from..tokens.len()).find(is_call)?])
}

/// A dot that the planner cannot follow: behind an index, or behind a word of SQL. `message` is the planner's.
pub fn dot_fault(sql: &str, message: &str) -> Option<PlanFault> {
    const BEGINNING: &str = "Dot access not supported for non-string expr: ";
    let expression = &message[message.find(BEGINNING)? + BEGINNING.len()..];
    let field = expression.split_once("value: \"")?.1.split('"').next()?;
    let (line, rest) = expression.split_once("Location(")?.1.split_once(',')?;
    let (line, column) = (line.parse().ok()?, rest.split(')').next()?.parse().ok()?);
    let tokens = tokens(sql);
    let index = index_at(&tokens, line, column)?;
    let before = tokens.get(index.checked_sub(2)?)?;
    let fault = |token: &TokenWithSpan, what: String, hint: String| {
        let (line, column, length) = place(token)?;
        Some(PlanFault { fault: SqlFault { line, column, what, hint: Some(hint) }, length })
    };
    match &before.token {
        Token::RBracket => {
            let base = indexed(&tokens[..index - 1]);
            let what = "behind an index a field is not named by a dot".to_owned();
            fault(&tokens[index], what, format!("write it as {base}['{field}']"))
        }
        // A function that is called without parentheses, such as `user`.
        Token::Word(name) if !expression.starts_with("Function") && name.quote_style.is_none() => fault(
            before,
            format!("`{}` is a word of SQL", name.value),
            format!("as a column it stands in double quotes: \"{}\".{field}", name.value),
        ),
        _ => fault(
            &tokens[index],
            format!("`{field}` is a word of SQL"),
            format!("as a field it stands in double quotes: {}.\"{field}\"", before.token),
        ),
    }
}

/// The text of the expression that ends with an index: `e.items[1]`.
fn indexed(tokens: &[TokenWithSpan]) -> String {
    let mut depth = 0_usize;
    let mut begin = tokens.len();
    for (index, one) in tokens.iter().enumerate().rev() {
        match &one.token {
            Token::RBracket => depth += 1,
            Token::LBracket => depth = depth.saturating_sub(1),
            _ if depth > 0 => {}
            Token::Word(_) if index + 1 == begin && !is_dot_or_bracket(&tokens[index + 1].token) => break,
            Token::Word(_) | Token::Period => {}
            _ => break,
        }
        begin = index;
    }
    tokens[begin..].iter().map(|one| one.token.to_string()).collect()
}

fn is_dot_or_bracket(token: &Token) -> bool {
    matches!(token, Token::Period | Token::LBracket)
}

/// Where the function `name` is called in `sql`: each place, and the query in which all later ones are calls of
/// `count`, which takes any argument. If a query has two of them, one of which is wrong, it is told so from the other.
pub fn calls(sql: &str, name: &str) -> Vec<((usize, usize, usize), String)> {
    let Ok(all) = Tokenizer::new(&GenericDialect {}, sql).tokenize_with_location() else { return Vec::new() };
    let is_call = |index: &usize| {
        let is_name = word(all.get(*index)).is_some_and(|word| word.value.eq_ignore_ascii_case(name));
        is_name && all.get(index + 1).is_some_and(|next| next.token == Token::LParen)
    };
    let found: Vec<usize> = (0..all.len()).filter(is_call).collect();
    let without_later = |last: usize| -> String {
        let text = |(index, one): (usize, &TokenWithSpan)| match index > last && found.contains(&index) {
            true => "count".to_owned(),
            false => one.token.to_string(),
        };
        all.iter().enumerate().map(text).collect()
    };
    found.iter().filter_map(|&index| Some((place(&all[index])?, without_later(index)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_sql_that_is_meant_as_a_name_is_to_be_quoted() {
        let hint = |sql: &str, column| word_hint(sql, 1, column);
        assert_eq!(
            hint("SELECT id, group FROM t", 12).as_deref(),
            Some("`group` is a word of SQL: as a column it stands in double quotes, \"group\"")
        );
        assert_eq!(hint("SELECT id, FROM t", 12), None, "the comma is wrong");
        assert_eq!(hint("SELECT id FROM t, GROUP BY id", 19), None);
        assert_eq!(hint("SELECT n FROM t WHRE id = 1", 22), None, "`id` may be a name as it is");
    }

    #[test]
    fn calls_are_told_apart() {
        let found = calls("SELECT sum(n), sum(s) -- sum(x)\nFROM t", "sum");
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].0, (1, 8, 3));
        assert_eq!(found[1].0, (1, 16, 3));
        assert!(found[0].1.starts_with("SELECT sum(n), count(s)"), "{}", found[0].1);
        assert!(found[1].1.starts_with("SELECT sum(n), sum(s)"), "{}", found[1].1);
    }

    #[test]
    fn an_aggregate_in_where_is_found_there() {
        assert_eq!(aggregate_in_where("SELECT sum(n) FROM t WHERE sum(n) > 3"), Some((1, 28, 3)));
        assert_eq!(aggregate_in_where("SELECT sum(n) FROM t WHERE n > 3"), None);
    }

    #[test]
    fn functions_of_other_databases_are_known() {
        assert_eq!(instead_of("STRFTIME").as_deref(), Some("write to_char(day, '%Y-%m-%d')"));
        assert_eq!(instead_of("upper"), None);
    }
}
