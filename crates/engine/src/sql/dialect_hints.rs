//! Habits from other databases and words of SQL in places where a name is meant: what to write instead.
//!
//! It looks at the tokens of the query, since the planner's messages do not say what was meant. What is repeated of it
//! is taken from its text: a token does not say how it was written.

use std::ops::Range;

use datafusion::common::Span;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::{Keyword, RESERVED_FOR_COLUMN_ALIAS};
use datafusion::sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer, Word};
use millstream_job::SqlFault;

use super::PlanFault;

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

/// A longer expression is not repeated in a hint.
const SHOWN: usize = 80;

/// Aggregate functions that most queries use.
const AGGREGATES: &[&str] =
    &["sum", "count", "avg", "mean", "min", "max", "median", "stddev", "array_agg", "string_agg"];

/// What to do about a text whose parentheses do not match. YAML may have taken a part of it for something else.
pub fn parentheses_hint(sql: &str) -> Option<String> {
    let depth = tokens(sql).iter().fold(0_i32, |depth, one| match one.token {
        Token::LParen | Token::LBracket => depth + 1,
        Token::RParen | Token::RBracket => depth - 1,
        _ => depth,
    });
    let hint = "the parentheses do not match; inside YAML's `[ ]` or `{ }`, SQL that holds a comma must be in quotes";
    (depth != 0).then(|| hint.to_owned())
}

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

fn keyword(token: Option<&TokenWithSpan>) -> Option<Keyword> {
    word(token).map(|word| word.keyword)
}

fn is(token: Option<&TokenWithSpan>, wanted: &Token) -> bool {
    token.is_some_and(|one| one.token == *wanted)
}

/// The bytes of `sql` that `tokens` stand in.
fn bytes(sql: &str, tokens: &[TokenWithSpan]) -> Option<Range<usize>> {
    Some(offset(sql, tokens.first()?.span.start)?..offset(sql, tokens.last()?.span.end)?)
}

/// The byte of `sql` at a place.
fn offset(sql: &str, location: Location) -> Option<usize> {
    let (line, column) = (usize::try_from(location.line).ok()?, usize::try_from(location.column).ok()?);
    let ends = sql.match_indices('\n').map(|(at, _)| at + 1);
    let begin = std::iter::once(0).chain(ends).nth(line.checked_sub(1)?)?;
    let rest = &sql[begin..];
    let within = rest.char_indices().map(|(at, _)| at).chain([rest.len()]).nth(column.checked_sub(1)?)?;
    Some(begin + within)
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
    is_name.then(|| format!("`{0}` is a SQL keyword: as a column, write it in double quotes, \"{0}\"", here.value))
}

/// What to do about a column that is not there, if its name stands in double quotes as a text would elsewhere.
pub fn text_hint(sql: &str, line: usize, column: usize) -> Option<String> {
    let tokens = tokens(sql);
    let here = word(tokens.get(index_at(&tokens, line, column)?))?;
    (here.quote_style == Some('"'))
        .then(|| format!("text is written in single quotes: '{}'", here.value.replace('\'', "''")))
}

/// Words behind the condition of WHERE.
const BEHIND_WHERE: &[Keyword] = &[
    Keyword::GROUP,
    Keyword::HAVING,
    Keyword::WINDOW,
    Keyword::QUALIFY,
    Keyword::ORDER,
    Keyword::LIMIT,
    Keyword::OFFSET,
    Keyword::FETCH,
    Keyword::UNION,
    Keyword::EXCEPT,
    Keyword::INTERSECT,
];

/// Where the first aggregate function stands that is in the condition of a WHERE.
pub fn aggregate_in_where(sql: &str) -> Option<(usize, usize, usize)> {
    let tokens = tokens(sql);
    let of_filter = |index: usize| {
        let before = index.checked_sub(2).and_then(|before| tokens.get(before..index));
        before
            .is_some_and(|before| keyword(before.first()) == Some(Keyword::FILTER) && is(before.get(1), &Token::LParen))
    };
    let begins = |index: &usize| keyword(tokens.get(*index)) == Some(Keyword::WHERE) && !of_filter(*index);
    place(&tokens[(0..tokens.len()).filter(begins).find_map(|index| aggregate_behind(&tokens, index + 1))?])
}

/// Where the first aggregate function stands in the condition that begins with the token `begin`, outside of
/// subqueries.
fn aggregate_behind(tokens: &[TokenWithSpan], begin: usize) -> Option<usize> {
    // Of each parenthesis that is open, whether it holds a query.
    let mut open: Vec<bool> = Vec::new();
    for index in begin..tokens.len() {
        match &tokens[index].token {
            Token::LParen => {
                let next = keyword(tokens.get(index + 1));
                open.push(matches!(next, Some(Keyword::SELECT | Keyword::WITH | Keyword::VALUES)));
            }
            Token::RParen => drop(open.pop()?),
            Token::Word(word) if open.is_empty() && BEHIND_WHERE.contains(&word.keyword) => return None,
            Token::Word(word) => {
                let is_aggregate = AGGREGATES.contains(&word.value.to_lowercase().as_str());
                if is_aggregate && is(tokens.get(index + 1), &Token::LParen) && !open.contains(&true) {
                    return Some(index);
                }
            }
            _ => {}
        }
    }
    None
}

/// A dot that the planner cannot follow: behind an index or parentheses, or behind a word of SQL. `message` is the
/// planner's.
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
        Token::RBracket | Token::RParen => {
            let behind = if before.token == Token::RBracket { "an index" } else { "parentheses" };
            let what = format!("a dot cannot follow {behind}");
            let base = &sql[bytes(sql, expression_before(&tokens[..index - 1]))?];
            let field = field.replace('\'', "''");
            let hint = match base.contains('\n') || base.len() > SHOWN {
                true => format!("write ['{field}'] without the dot"),
                false => format!("write it as {base}['{field}']"),
            };
            fault(&tokens[index], what, hint)
        }
        // A function that is called without parentheses, such as `user`.
        Token::Word(name) if !expression.starts_with("Function") && name.quote_style.is_none() => fault(
            before,
            format!("`{}` is a SQL keyword", name.value),
            format!("as a column, write it in double quotes: \"{}\".{field}", name.value),
        ),
        _ => fault(
            &tokens[index],
            format!("`{field}` is a SQL keyword"),
            format!("as a field, write it in double quotes: {}.\"{field}\"", before.token),
        ),
    }
}

/// The expression that ends with an index or parentheses: `e.items[1]`, `(e.item)`, `max(item) OVER (ORDER BY day)`.
fn expression_before(tokens: &[TokenWithSpan]) -> &[TokenWithSpan] {
    let mut depth = 0_usize;
    let mut begin = tokens.len();
    for (index, one) in tokens.iter().enumerate().rev() {
        match &one.token {
            Token::RBracket | Token::RParen => depth += 1,
            Token::LBracket | Token::LParen if depth > 0 => depth -= 1,
            _ if depth > 0 => {}
            Token::Word(word) if is_part(word, tokens.get(index + 1)) => {}
            Token::Period => {}
            _ => break,
        }
        begin = index;
    }
    &tokens[begin..]
}

/// Whether a word is of one expression with the parentheses, index or field behind it.
fn is_part(word: &Word, next: Option<&TokenWithSpan>) -> bool {
    const BEFORE_OTHERS: &[Keyword] =
        &[Keyword::NOT, Keyword::IN, Keyword::DISTINCT, Keyword::BETWEEN, Keyword::LIKE, Keyword::CASE, Keyword::ALL];
    match next.map(|next| &next.token) {
        Some(Token::Period | Token::LBracket) | None => true,
        Some(Token::LParen) => !STRUCTURE.contains(&word.keyword) && !BEFORE_OTHERS.contains(&word.keyword),
        _ => false,
    }
}

/// Where the function `name` is called in `sql`: each place, and the query in which all later ones are calls of
/// `count`, which takes any argument. If a query has two of them, one of which is wrong, it is told so from the other.
pub fn calls(sql: &str, name: &str) -> Vec<((usize, usize, usize), String)> {
    let all = tokens(sql);
    let is_call = |index: &usize| {
        let is_name = word(all.get(*index)).is_some_and(|word| word.value.eq_ignore_ascii_case(name));
        is_name && is(all.get(index + 1), &Token::LParen)
    };
    let found = (0..all.len()).filter(is_call);
    let found = found.filter_map(|index| Some((place(&all[index])?, bytes(sql, &all[index..=index])?)));
    let found: Vec<_> = found.collect();
    let without_later = |last: usize| {
        let mut text = sql.to_owned();
        found[last + 1..].iter().rev().for_each(|(_, name)| text.replace_range(name.clone(), "count"));
        text
    };
    found.iter().enumerate().map(|(index, (place, _))| (*place, without_later(index))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_sql_that_is_meant_as_a_name_is_to_be_quoted() {
        let hint = |sql: &str, column| word_hint(sql, 1, column);
        assert_eq!(
            hint("SELECT id, group FROM t", 12).as_deref(),
            Some("`group` is a SQL keyword: as a column, write it in double quotes, \"group\"")
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
        let found = calls("SELECT 'it''s ü', E'\\'',\r\n  sum(n), \"su\"\"m\", SUM (s) FROM t", "sum");
        assert_eq!(found[0].1, "SELECT 'it''s ü', E'\\'',\r\n  sum(n), \"su\"\"m\", count (s) FROM t");
    }

    #[test]
    fn an_aggregate_in_where_is_found_there() {
        assert_eq!(aggregate_in_where("SELECT sum(n) FROM t WHERE sum(n) > 3"), Some((1, 28, 3)));
        assert_eq!(aggregate_in_where("SELECT sum(n) FROM t WHERE n > 3"), None);
        for sql in [
            "WITH w AS (SELECT n FROM t WHERE n > 1) SELECT sum(n) FROM w WHERE ^sum(n) > 3",
            "SELECT count(*) FILTER (WHERE x > 1), sum(n) FROM t WHERE ^sum(n) > 3",
            "SELECT n FROM t WHERE n IN (SELECT max(n) FROM t) AND (n > 1 OR ^sum(n) > 3)",
            "SELECT n FROM t WHERE n > 1 GROUP BY n HAVING sum(n) > (SELECT 1 FROM t WHERE ^min(n) > 1)",
            "SELECT n FROM t WHERE n > 1 UNION SELECT sum(n) FROM t WHERE n > abs(^max(n))",
            "SELECT n FROM t WHERE n > 1 ORDER BY sum(n)",
        ] {
            let column = sql.find('^').map(|at| at + 1);
            let found = aggregate_in_where(&sql.replace('^', "")).map(|(_, column, _)| column);
            assert_eq!(found, column, "{sql}");
        }
    }
}
