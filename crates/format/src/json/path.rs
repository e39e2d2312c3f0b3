//! Values inside of a JSON text, by keys and indices: what SQL's functions on JSON are made of.
//!
//! The whole text is read strictly whatever is looked for, so that a text which is not JSON is never taken for one that
//! lacks a value.

use std::borrow::Cow;

use millstream_core::{Error, RejectKind, Result};

use super::cursor::{Cursor, Fault, Kind};

/// One step into a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathStep<'p> {
    /// The value of this key of an object.
    Key(&'p str),
    /// The item of a list, from 0; a negative one counts from the end, -1 is the last.
    Index(i64),
}

/// A value. Numbers, lists and objects are as they stand in the text.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'t> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number of any size, as the grammar has it.
    Number(&'t str),
    /// A text without its quotes and escapes, and as it stands with them.
    Text(Cow<'t, str>, &'t str),
    /// A list and the number of its items.
    List(&'t str, usize),
    /// An object and the number of its keys.
    Object(&'t str, usize),
}

impl<'t> Value<'t> {
    /// The value as it stands in the text.
    pub fn json(&self) -> &'t str {
        match self {
            Value::Null => "null",
            Value::Bool(true) => "true",
            Value::Bool(false) => "false",
            Value::Number(text) | Value::Text(_, text) | Value::List(text, _) | Value::Object(text, _) => text,
        }
    }

    /// What it is, with its article.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Null => Kind::Null.name(),
            Value::Bool(_) => Kind::Bool.name(),
            Value::Number(_) => Kind::Number.name(),
            Value::Text(..) => Kind::Text.name(),
            Value::List(..) => Kind::List.name(),
            Value::Object(..) => Kind::Object.name(),
        }
    }
}

/// The value at `path` in `text`; `None` if it is not there: a key or an item is missing, or a step leads into a value
/// that has none.
///
/// # Errors
/// The text is not JSON, or has a key of the path twice in its object.
pub fn value_at<'t>(text: &'t str, path: &[PathStep<'_>]) -> Result<Option<Value<'t>>> {
    let mut reader = Reader { cursor: Cursor::new(text), scratch: String::new() };
    let found = reader.find(path).and_then(|found| reader.cursor.end().map(|()| found));
    found.map_err(|fault| not_json(text, &fault))
}

/// The items of the list at `path` in `text`, as they stand in it; `None` if there is none there.
///
/// # Errors
/// As [`value_at`], and if the value there is no list (nor null).
pub fn items_at<'t>(text: &'t str, path: &[PathStep<'_>]) -> Result<Option<Vec<&'t str>>> {
    match value_at(text, path)? {
        None | Some(Value::Null) => Ok(None),
        Some(Value::List(list, count)) => {
            let mut reader = Reader { cursor: Cursor::new(list), scratch: String::new() };
            let mut items = Vec::with_capacity(count);
            let read = reader.each_item(|reader, _| {
                items.push(reader.cursor.raw(&mut reader.scratch)?);
                Ok(())
            });
            read.map_err(|fault| not_json(list, &fault))?;
            Ok(Some(items))
        }
        Some(other) => Err(of_another_kind(&other, "a list")),
    }
}

/// The error of a value that is not of the kind that is asked for, such as `a number`.
pub fn of_another_kind(value: &Value<'_>, wanted: &str) -> Error {
    Error::data(format!("the JSON value is {}, not {wanted}", value.kind()))
        .reject(RejectKind::Expression)
        .text(shown(value.json()))
        .hint("json_as_text takes a value of any kind, and TRY_CAST converts what it can")
}

fn not_json(text: &str, fault: &Fault) -> Error {
    // The words of a record, whose place is known.
    let what = fault.what().replace("the record", "the text");
    Error::data("the text is not JSON")
        .reject(RejectKind::Expression)
        .text(shown(text))
        .cause(format!("{what}, at byte {}", fault.at()))
}

/// The beginning of `text`, long enough to be recognised.
fn shown(text: &str) -> String {
    text.chars().take(200).collect()
}

struct Reader<'t> {
    cursor: Cursor<'t>,
    scratch: String,
}

impl<'t> Reader<'t> {
    /// Reads the next value, and finds what is at `path` in it.
    fn find(&mut self, path: &[PathStep<'_>]) -> Result<Option<Value<'t>>, Fault> {
        let Some((step, rest)) = path.split_first() else { return self.value().map(Some) };
        match (self.cursor.kind()?, step) {
            (Kind::Object, PathStep::Key(key)) => self.key(key, rest),
            (Kind::List, PathStep::Index(index)) => self.item(*index, rest),
            _ => self.cursor.skip(&mut self.scratch).map(|()| None),
        }
    }

    fn key(&mut self, wanted: &str, rest: &[PathStep<'_>]) -> Result<Option<Value<'t>>, Fault> {
        let mut found = None;
        self.each_key(
            |reader, is_wanted| {
                if !is_wanted {
                    return reader.cursor.skip(&mut reader.scratch);
                }
                if found.is_some() {
                    return Err(Fault::new(reader.cursor.at(), format!("the key `{wanted}` is there twice")));
                }
                found = Some(reader.find(rest)?);
                Ok(())
            },
            wanted,
        )?;
        Ok(found.flatten())
    }

    fn item(&mut self, wanted: i64, rest: &[PathStep<'_>]) -> Result<Option<Value<'t>>, Fault> {
        let wanted = match usize::try_from(wanted) {
            Ok(wanted) => Some(wanted),
            Err(_) => {
                let count = self.clone_at_list().count_items()?;
                usize::try_from(wanted.unsigned_abs()).ok().and_then(|back| count.checked_sub(back))
            }
        };
        let mut found = None;
        self.each_item(|reader, index| {
            match Some(index) == wanted {
                true => found = reader.find(rest)?,
                false => reader.cursor.skip(&mut reader.scratch)?,
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Another reader at the same list.
    fn clone_at_list(&self) -> Reader<'t> {
        Reader { cursor: self.cursor.clone(), scratch: String::new() }
    }

    fn count_items(mut self) -> Result<usize, Fault> {
        let mut count = 0;
        self.each_item(|reader, _| {
            count += 1;
            reader.cursor.skip(&mut reader.scratch)
        })?;
        Ok(count)
    }

    /// Reads the value that is next.
    fn value(&mut self) -> Result<Value<'t>, Fault> {
        let kind = self.cursor.kind()?;
        let start = self.cursor.at();
        Ok(match kind {
            Kind::Null => self.cursor.null().map(|_| Value::Null)?,
            Kind::Bool => Value::Bool(self.cursor.truth()?),
            Kind::Number => Value::Number(self.cursor.number()?),
            Kind::Text => {
                let text = self.cursor.string(&mut self.scratch)?;
                let raw = self.cursor.between(start..self.cursor.at());
                match raw.len() == text.len() + 2 {
                    true => Value::Text(Cow::Borrowed(&raw[1..raw.len() - 1]), raw),
                    false => Value::Text(Cow::Owned(text.to_owned()), raw),
                }
            }
            Kind::List => {
                let mut count = 0;
                self.each_item(|reader, _| {
                    count += 1;
                    reader.cursor.skip(&mut reader.scratch)
                })?;
                Value::List(self.cursor.between(start..self.cursor.at()), count)
            }
            Kind::Object => {
                let mut count = 0;
                self.each_key(
                    |reader, _| {
                        count += 1;
                        reader.cursor.skip(&mut reader.scratch)
                    },
                    "",
                )?;
                Value::Object(self.cursor.between(start..self.cursor.at()), count)
            }
        })
    }

    /// Reads the list that is next; `read` reads each of its items, and gets its number.
    fn each_item(&mut self, mut read: impl FnMut(&mut Self, usize) -> Result<(), Fault>) -> Result<(), Fault> {
        self.cursor.open_list()?;
        let mut index = 0;
        while self.cursor.item(index == 0)? {
            read(self, index)?;
            index += 1;
        }
        Ok(())
    }

    /// Reads the object that is next; `read` reads the value of each key, and gets whether it is `wanted`.
    fn each_key(
        &mut self,
        mut read: impl FnMut(&mut Self, bool) -> Result<(), Fault>,
        wanted: &str,
    ) -> Result<(), Fault> {
        self.cursor.open_object()?;
        let mut first = true;
        loop {
            let is_wanted = match self.cursor.key(first, &mut self.scratch)? {
                Some(key) => key == wanted,
                None => return Ok(()),
            };
            read(self, is_wanted)?;
            first = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::PathStep::{Index, Key};
    use super::*;

    fn found(text: &str, path: &[PathStep<'_>]) -> Option<String> {
        value_at(text, path).expect("JSON").map(|value| value.json().to_owned())
    }

    #[test]
    fn a_path_leads_to_a_value_or_to_nothing() {
        let text = r#" {"a": {"b": [1, {"c": "x\u00e9"}, null]}, "": 2.50, "é": true} "#;
        for (path, value) in [
            (vec![Key("a"), Key("b"), Index(0)], Some("1")),
            (vec![Key("a"), Key("b"), Index(1), Key("c")], Some(r#""x\u00e9""#)),
            (vec![Key("a"), Key("b"), Index(-1)], Some("null")),
            (vec![Key("a"), Key("b"), Index(-3)], Some("1")),
            (vec![Key("a"), Key("b"), Index(-4)], None),
            (vec![Key("a"), Key("b"), Index(3)], None),
            (vec![Key("a"), Index(0)], None),
            (vec![Key("a"), Key("b"), Key("0")], None),
            (vec![Key("")], Some("2.50")),
            (vec![Key("é")], Some("true")),
            (vec![Key("é"), Key("x")], None),
            (vec![Key("b")], None),
        ] {
            assert_eq!(found(text, &path).as_deref(), value, "{path:?}");
        }
        assert_eq!(found(text, &[]).as_deref(), Some(text.trim()));
        let text = value_at(text, &[Key("a"), Key("b"), Index(1), Key("c")]).expect("JSON");
        assert!(matches!(text, Some(Value::Text(text, _)) if text == "xé"));
    }

    #[test]
    fn what_is_not_json_fails_wherever_the_fault_is() {
        for (text, cause) in [
            ("", "the record is cut short where a value is expected, at byte 0"),
            ("{\"a\": 1, \"b\": 01}", "a number has a leading 0, at byte 14"),
            ("{\"a\": 1", "the record is cut short inside an object, at byte 7"),
            ("{\"a\": 1} x", "text after the end of the record, at byte 9"),
            ("{\"a\": 1, \"a\": 2}", "the key `a` is there twice, at byte 13"),
            ("hello", "not a JSON value, at byte 0"),
        ] {
            let error = value_at(text, &[Key("a")]).expect_err(text);
            let cause = cause.replace("the record", "the text");
            assert_eq!((error.what(), error.cause_text()), ("the text is not JSON", Some(cause.as_str())), "{text}");
        }
    }

    #[test]
    fn lists_are_taken_apart() {
        assert_eq!(items_at(r#"{"a": [1, "b", [2]]}"#, &[Key("a")]).expect("JSON"), Some(vec!["1", "\"b\"", "[2]"]));
        assert_eq!(items_at("[]", &[]).expect("JSON"), Some(vec![]));
        assert_eq!(items_at("[null, null]", &[Index(0)]).expect("JSON"), None);
        assert_eq!(items_at("3", &[]).expect_err("a number").what(), "the JSON value is a number, not a list");
    }

    fn values() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(json!(null)),
            any::<bool>().prop_map(|truth| json!(truth)),
            any::<i64>().prop_map(|number| json!(number)),
            "[a-c\"\\\\/é\n]{0,5}".prop_map(|text| json!(text)),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(|items| json!(items)),
                prop::collection::btree_map("[a-c]{1,2}", inner, 0..5).prop_map(|fields| json!(fields)),
            ]
        })
    }

    proptest! {
        #[test]
        fn values_are_those_of_serde_json(
            value in values(),
            path in prop::collection::vec(prop_oneof![
                "[a-c]{1,2}".prop_map(|key| json!(key)),
                (-3..4_i64).prop_map(|index| json!(index)),
            ], 0..4),
            pretty in any::<bool>(),
        ) {
            let text = if pretty { format!("{value:#}") } else { value.to_string() };
            let steps: Vec<PathStep<'_>> =
                path.iter().map(|step| step.as_str().map_or_else(|| Index(step.as_i64().unwrap_or(0)), Key)).collect();
            let expected = steps.iter().try_fold(&value, |value, step| match step {
                Key(key) => value.get(*key),
                Index(index) => {
                    let items = value.as_array()?;
                    let index = if *index < 0 { index + items.len() as i64 } else { *index };
                    items.get(usize::try_from(index).ok()?)
                }
            });
            let found = value_at(&text, &steps).expect("JSON");
            let parsed = |found: &Value<'_>| serde_json::from_str::<serde_json::Value>(found.json()).expect("JSON");
            let read = found.as_ref().map(parsed);
            prop_assert_eq!(read.as_ref(), expected);
            if let Some(Value::Text(text, _)) = &found {
                prop_assert_eq!(Some(text.as_ref()), expected.and_then(|value| value.as_str()));
            }
        }
    }
}
