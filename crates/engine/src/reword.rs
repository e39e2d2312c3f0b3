//! What DataFusion says, in Millstream's words: one table for the planner's faults and those of a running query.
//!
//! A message that no rule knows is told as it came, without DataFusion's own labels in front and with types named as
//! the job file names them. Where a fault lies in the SQL is decided elsewhere.

use std::borrow::Cow;
use std::sync::LazyLock;

use arrow::datatypes::DataType;
use millstream_core::columns::type_name;
use millstream_core::hint::nearest;
use regex::{Captures, Regex};

/// A message in our words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Words {
    /// What went wrong.
    pub what: String,
    /// The word of the SQL that it is about.
    pub word: Option<String>,
    /// The offending value.
    pub text: Option<String>,
    /// What to do.
    pub hint: Option<String>,
    /// Whether a rule knew the message.
    pub known: bool,
}

/// How a message is told: `{name}` stands for what the group of that name has matched. The groups `a` and `b` are
/// types, `word` is a word of the SQL, `text` a value of the data.
struct Rule {
    pattern: &'static str,
    what: &'static str,
    hint: &'static str,
}

const CONVERT: &str = "convert one side: CAST(… AS …)";
const BAD_VALUE: &str = "correct the data, filter such rows out, or write TRY_CAST, which makes them null";
const RENAME: &str = "give one of them another name with AS";
const TYPES: &str = "types are, for example, bigint, double, text, boolean, date, timestamp and decimal(10, 2)";

/// What is told of an aggregate function in WHERE.
pub const AGGREGATE_IN_WHERE: &str = "an aggregate function is not allowed in WHERE";

const RULES: &[Rule] = &[
    Rule {
        pattern: r"^(?P<word>TOP)$",
        what: "TOP is not supported",
        hint: "put LIMIT and the number at the end of the query: LIMIT 3",
    },
    Rule {
        pattern: r"^Invalid function '(?P<word>[^']+)'\.(?:\s*Did you mean '(?P<near>[^']+)'\?)?",
        what: "there is no function `{word}`",
        hint: "did you mean `{near}`?",
    },
    Rule {
        pattern: r"^Cannot coerce arithmetic expression (?P<a>.+?) (?P<operator>[-+*/%]) (?P<b>.+) to valid types",
        what: "{a} {operator} {b} cannot be computed: the types do not fit",
        hint: CONVERT,
    },
    Rule {
        pattern: concat!(
            r"^Cannot infer common argument type for (?:comparison|logical boolean) operation ",
            r"(?P<a>.+) \S+ (?P<b>\S.*)$",
        ),
        what: "{a} and {b} cannot be compared",
        hint: CONVERT,
    },
    Rule {
        pattern: r#"column "(?P<word>[^"]+)" must appear in the GROUP BY clause"#,
        what: "`{word}` is neither in GROUP BY nor inside an aggregate function",
        hint: "add it to GROUP BY, or take one value of it, such as max(…)",
    },
    Rule {
        pattern: r"^Aggregate functions are not allowed in the WHERE clause",
        what: AGGREGATE_IN_WHERE,
        hint: "put conditions on aggregates in HAVING",
    },
    Rule {
        pattern: r"^Aggregate function calls cannot be nested",
        what: "an aggregate function is not allowed inside another",
        hint: "compute the inner one in an entry of its own",
    },
    Rule {
        pattern: r"^UNION queries have different number of columns",
        what: "the sides of the UNION have different numbers of columns",
        hint: "",
    },
    Rule {
        pattern: r"^Cannot create filter with non-boolean predicate .* returning (?P<a>.+)$",
        what: "the condition is of type {a}, not true or false",
        hint: "compare it with something",
    },
    Rule {
        pattern: concat!(
            r"^Projections require unique expression names but the expression ",
            r#""(?:.* AS )?(?P<name>[^"]+)" at position"#,
        ),
        what: "two columns have the same name: {name}",
        hint: RENAME,
    },
    Rule {
        pattern: r"[Ss]chema contains duplicate (?:un)?qualified field name (?P<name>\S+)",
        what: "two columns have the same name: {name}",
        hint: RENAME,
    },
    Rule {
        pattern: concat!(
            r"^Function '(?P<word>[^']+)' failed to match any signature.*?",
            r"received \w+ \(DataType: (?P<a>.+?)\)\.?(?:,|$)",
        ),
        what: "`{word}` takes no argument of type {a} in this place",
        hint: "convert it: CAST(… AS …)",
    },
    Rule {
        pattern: r"'(?P<word>[^']+)' expects (?P<wanted>.+?) arguments? but received (?P<given>\d+)",
        what: "the number of arguments of `{word}` is {given}, expected {wanted}",
        hint: "",
    },
    Rule { pattern: r"^'(?P<word>[^']+)' does not support zero arguments", what: "`{word}` needs arguments", hint: "" },
    Rule {
        pattern: r"`(?P<word>\w+)` takes (?P<takes>\(.*?\)), and is given (?P<given>\(.*?\))(?:[^,)]|$)",
        what: "`{word}` takes {takes}, and is given {given}",
        hint: "give it these; CAST(… AS …) converts",
    },
    Rule {
        pattern: r"argument types '(?P<word>\w+)\((?P<types>.*?)\)'",
        what: "`{word}` takes no arguments of these types: {types}",
        hint: "convert them: CAST(… AS …)",
    },
    Rule {
        pattern: r"^Too many columns! The subquery should only return one column",
        what: "a subquery here must return one column, not several",
        hint: "",
    },
    Rule { pattern: r"^Unsupported SQL type (?P<word>\S+)", what: "there is no type `{word}`", hint: TYPES },
    Rule { pattern: r"^Unsupported type '(?P<word>[^']+)'", what: "there is no type `{word}`", hint: TYPES },
    Rule {
        pattern: r"^Unsupported compound identifier '(?P<word>[^']+)'",
        what: "`{word}` is not an entry",
        hint: "the name of an entry is one word",
    },
    Rule {
        pattern: r"^Physical plan does not support logical expression WindowFunction",
        what: "a window function is not allowed in WHERE",
        hint: "compute it in an entry of its own, and filter by its column",
    },
    Rule {
        pattern: r"^Expected LIMIT to be an integer or null, but got (?P<a>\w+)",
        what: "LIMIT takes an integer, not {a}",
        hint: "",
    },
    Rule {
        pattern: r"(?s)^Cannot cast (?:string|value) '(?P<text>.*)' to value of (?P<a>.+) type",
        what: "the text cannot be converted to {a}",
        hint: BAD_VALUE,
    },
    Rule {
        pattern: r"^Can't cast value (?P<text>\S+) to type (?P<a>.+)$",
        what: "the value does not fit into {a}",
        hint: BAD_VALUE,
    },
    Rule {
        pattern: r"(?s)^Error parsing timestamp from '(?P<text>.*)': (?P<reason>.*)$",
        what: "the text cannot be converted to timestamp: {reason}",
        hint: BAD_VALUE,
    },
    Rule {
        pattern: r"^(?P<text>\S+) is too (?:large|small) to store in a Decimal\d+ of precision (?P<digits>\d+)",
        what: "the value does not fit into a decimal of {digits} digits",
        hint: BAD_VALUE,
    },
    Rule {
        pattern: r"^Divide by zero",
        what: "division by zero",
        hint: "where the divisor may be 0, nullif(divisor, 0) makes the result null",
    },
    Rule {
        pattern: r"^Overflow happened on: (?P<text>.*)$",
        what: "the result does not fit into its type",
        hint: "convert to a larger type first: CAST(… AS decimal(38, 0))",
    },
    Rule {
        pattern: r"^Scalar subquery returned more than one row",
        what: "a subquery used as a value returns several rows",
        hint: "add LIMIT 1, or take one value, such as max(…)",
    },
    Rule {
        pattern: r"(?s)^regex parse error:\s*(?P<text>\S[^\n]*)\n.*error: (?P<reason>[^\n]*)",
        what: "the regular expression does not parse: {reason}",
        hint: "",
    },
];

static COMPILED: LazyLock<Vec<(Regex, &'static Rule)>> =
    LazyLock::new(|| RULES.iter().filter_map(|rule| Some((Regex::new(rule.pattern).ok()?, rule))).collect());

/// What stands in front of a message and says nothing to whoever wrote the SQL.
const LABELS: &[&str] = &[
    "Error during planning: ",
    "Execution error: ",
    "External error: ",
    "Arrow error: ",
    "SQL error: ",
    "Schema error: ",
    "Internal error: ",
    "This feature is not implemented: ",
    "Cast error: ",
    "Parser error: ",
    "Compute error: ",
    "Invalid argument error: ",
    "Arithmetic overflow: ",
];

/// `message`, as DataFusion wrote it, in our words.
pub fn reword(message: &str) -> Words {
    let message = without_labels(message);
    COMPILED
        .iter()
        .find_map(|(pattern, rule)| Some(told(rule, &pattern.captures(message)?)))
        .unwrap_or_else(|| Words { what: lower_first(&with_our_types(first_line(message))), ..Words::default() })
}

fn told(rule: &Rule, found: &Captures<'_>) -> Words {
    let group = |name: &str| found.name(name).map(|group| group.as_str().to_owned());
    // The planner names the nearest of its functions, however far that is.
    let is_near = |near: &str| nearest(&group("word").unwrap_or_default(), [near]).is_some();
    let hint = match group("near") {
        Some(near) if !is_near(&near) => None,
        _ => fill(rule.hint, found).filter(|hint| !hint.is_empty()),
    };
    let function = group("word").filter(|_| rule.pattern.starts_with("^Invalid function"));
    Words {
        what: fill(rule.what, found).unwrap_or_else(|| rule.what.to_owned()),
        word: group("word"),
        text: group("text"),
        hint: function.and_then(|name| instead_of(&name)).or(hint),
        known: true,
    }
}

/// `template` with its groups; `None` if one of them has matched nothing.
fn fill(template: &str, found: &Captures<'_>) -> Option<String> {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}')?;
        text.push_str(before);
        text.push_str(&with_our_types_if(matches!(name, "a" | "b" | "types"), found.name(name)?.as_str()));
        rest = after;
    }
    text.push_str(rest);
    Some(text)
}

fn with_our_types_if(types: bool, text: &str) -> Cow<'_, str> {
    if types { Cow::Owned(with_our_types(text)) } else { Cow::Borrowed(text) }
}

/// `text` with the names of Arrow's types replaced by those of the job file.
fn with_our_types(text: &str) -> String {
    if let Ok(data_type) = text.parse::<DataType>() {
        return type_name(&data_type);
    }
    let mut shown = String::new();
    for word in text.split_inclusive(|character: char| !character.is_ascii_alphanumeric()) {
        let bare = word.trim_end_matches(|character: char| !character.is_ascii_alphanumeric());
        let is_type = bare.ends_with(|last: char| last.is_ascii_digit()) || matches!(bare, "Boolean" | "Utf8View");
        match bare.parse::<DataType>() {
            Ok(data_type) if is_type => {
                shown.push_str(&type_name(&data_type));
                shown.push_str(&word[bare.len()..]);
            }
            _ => shown.push_str(word),
        }
    }
    shown
}

fn without_labels(mut message: &str) -> &str {
    while let Some(rest) = LABELS.iter().find_map(|label| message.strip_prefix(label)) {
        message = rest;
    }
    message
}

/// The first letter in lower case, unless it begins a word in capitals: `SQL`, `UNION`.
pub fn lower_first(message: &str) -> String {
    let mut characters = message.chars();
    match (characters.next(), characters.next()) {
        (Some(first), second) if !second.is_some_and(char::is_uppercase) => {
            first.to_lowercase().chain(message.chars().skip(1)).collect()
        }
        _ => message.to_owned(),
    }
}

/// What stands behind the first line is a backtrace or a list of candidates.
pub fn first_line(message: &str) -> &str {
    message.lines().next().unwrap_or_default().trim_end_matches('.')
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_compiles() {
        assert_eq!(COMPILED.len(), RULES.len());
    }

    #[test]
    fn types_are_named_as_in_the_job_file() {
        for (message, what) in [
            (
                "Cannot coerce arithmetic expression Int64 + Utf8View to valid types",
                "int64 + utf8 cannot be computed: the types do not fit",
            ),
            (
                "Cannot infer common argument type for comparison operation Int64 = Timestamp(ns)",
                "int64 and timestamp cannot be compared",
            ),
            ("Something about Int64 and Date32(1).", "something about int64 and date(1)"),
        ] {
            assert_eq!(reword(message).what, what);
        }
    }

    #[test]
    fn a_value_is_told_apart_from_the_message() {
        let words = reword("Arrow error: Cast error: Cannot cast string 'it's' to value of Int64 type");
        assert_eq!(
            (words.what.as_str(), words.text.as_deref()),
            ("the text cannot be converted to int64", Some("it's"))
        );
        let words = reword("External error: regex parse error:\n    (\n    ^\nerror: unclosed group");
        assert_eq!(words.what, "the regular expression does not parse: unclosed group");
        assert_eq!(words.text.as_deref(), Some("("));
    }

    #[test]
    fn a_hint_that_names_nothing_is_left_out() {
        assert_eq!(reword("Invalid function 'zzz'.\nMore").hint, None);
        assert_eq!(
            reword("Invalid function 'uper'.\nDid you mean 'upper'?").hint.as_deref(),
            Some("did you mean `upper`?")
        );
        assert_eq!(reword("Invalid function 'hash'.\nDid you mean 'tanh'?").hint, None, "that is not near");
        assert_eq!(reword("Invalid function 'len'.\nDid you mean 'ln'?").hint.as_deref(), Some("write length(text)"));
    }

    #[test]
    fn capitals_stay_capitals() {
        assert_eq!(["SQL x", "Bad", "", "Ä", "A b"].map(lower_first), ["SQL x", "bad", "", "ä", "a b"]);
    }

    #[test]
    fn functions_of_other_databases_are_known() {
        assert_eq!(instead_of("STRFTIME").as_deref(), Some("write to_char(day, '%Y-%m-%d')"));
        assert_eq!(instead_of("upper"), None);
    }
}
