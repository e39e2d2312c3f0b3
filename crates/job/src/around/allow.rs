//! The variables that those may set who may start a job or a sequence, and not change it.

use std::collections::BTreeMap;

use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The variables that may be set: their names, or their names with what their values may be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Allow {
    /// These, to any value.
    Any(Vec<String>),
    /// These, to some values.
    Some(BTreeMap<String, AllowedValues>),
}

/// The values that a variable may have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum AllowedValues {
    /// Those that this regular expression matches as a whole, such as `[0-9]{4}-[0-9]{2}-[0-9]{2}`.
    Matching(String),
    /// One of these.
    OneOf(Vec<String>),
}

impl Default for Allow {
    fn default() -> Self {
        Allow::Any(Vec::new())
    }
}

impl Allow {
    /// The names of the variables.
    pub fn names(&self) -> Vec<&str> {
        match self {
            Allow::Any(names) => names.iter().map(String::as_str).collect(),
            Allow::Some(values) => values.keys().map(String::as_str).collect(),
        }
    }

    /// Why the variable `name` may not be set to `value`; nothing if it may.
    pub fn refusal(&self, name: &str, value: &str) -> Option<String> {
        let values = match self {
            Allow::Any(names) if names.iter().any(|allowed| allowed == name) => return None,
            Allow::Some(values) => values.get(name),
            Allow::Any(_) => None,
        };
        match values {
            None => Some(format!("`allow` does not name the variable `{name}`")),
            Some(AllowedValues::OneOf(values)) if values.iter().any(|allowed| allowed == value) => None,
            Some(AllowedValues::OneOf(values)) => {
                Some(format!("`{value}` is none of the values that `allow` has for `{name}`: {}", values.join(", ")))
            }
            Some(AllowedValues::Matching(pattern)) => match whole(pattern).is_ok_and(|regex| regex.is_match(value)) {
                true => None,
                false => Some(format!("`{value}` is not as `allow` says of `{name}`: it has to match `{pattern}`")),
            },
        }
    }

    /// The first pattern that is no regular expression, and why.
    pub(crate) fn broken_pattern(&self) -> Option<(&str, String)> {
        let Allow::Some(values) = self else { return None };
        values.values().find_map(|values| match values {
            AllowedValues::Matching(pattern) => {
                let fault = whole(pattern).err()?;
                let fault =
                    fault.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
                Some((pattern.as_str(), fault))
            }
            AllowedValues::OneOf(_) => None,
        })
    }
}

/// The regular expression that matches a whole text.
fn whole(pattern: &str) -> Result<Regex, regex::Error> {
    // By itself, since an end of a group in it must not be one of ours.
    Regex::new(pattern)?;
    Regex::new(&format!(r"\A(?:{pattern})\z"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn allow(value: Value) -> Allow {
        serde_json::from_value(value).expect("it is one")
    }

    #[test]
    fn only_what_is_named_may_be_set() {
        let any = allow(json!(["DAY", "REGION"]));
        assert_eq!(any.refusal("DAY", "'; DROP TABLE t"), None);
        assert!(any.refusal("day", "x").is_some() && any.refusal("", "").is_some());
        assert!(Allow::default().refusal("DAY", "x").is_some());
        assert_eq!(any.names(), ["DAY", "REGION"]);
    }

    #[test]
    fn values_match_as_a_whole() {
        let some = allow(json!({"DAY": "[0-9]{4}-[0-9]{2}|today", "REGION": ["north", "south"]}));
        for (name, value, may) in [
            ("DAY", "2026-01", true),
            ("DAY", "today", true),
            ("DAY", "2026-01x", false),
            ("DAY", "xtoday", false),
            ("DAY", "today\n", false),
            ("REGION", "north", true),
            ("REGION", "north ", false),
            ("OTHER", "north", false),
        ] {
            assert_eq!(some.refusal(name, value).is_none(), may, "{name}={value:?}");
        }
        assert_eq!(some.broken_pattern(), None);
        let broken = allow(json!({"DAY": "a)|(b", "B": "["}));
        assert!(broken.broken_pattern().is_some());
        assert!(broken.refusal("DAY", "a").is_some(), "what is broken allows nothing");
    }
}
