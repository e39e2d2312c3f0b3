//! The texts in a transform's settings: names of entries and SQL, found by the schema.
//!
//! It works on the tree, so that a fault in one setting does not hide the texts of the others.

use millstream_core::transform::{Text, TextKind};
use serde_json::{Map, Value};

use crate::build::written;
use crate::graph::Located;
use crate::schema::resolve;
use crate::tree::{Entry, Kind, Node, Scalar, Typed};

/// The settings of one transform.
pub struct Settings {
    /// The settings as the transform reads them: its texts lead to their places by their numbers in `texts`.
    pub value: Value,
    /// Its texts, in file order.
    pub texts: Vec<SettingsText>,
    /// Whether no name of an entry and no query is missing: one that is none may stand for anything.
    pub complete: bool,
}

/// A text of the settings.
pub struct SettingsText {
    /// What it means.
    pub kind: TextKind,
    /// The text and its place.
    pub text: Located<String>,
    /// Whether it is a text for YAML too, and not a number or `true`.
    pub is_text: bool,
}

impl Settings {
    /// The settings in `node`, which should follow `schema`.
    pub fn read(node: &Node, schema: &Value, definitions: &Map<String, Value>) -> Self {
        let mut settings = Settings { value: Value::Null, texts: Vec::new(), complete: true };
        settings.value = settings.node(node, &alternatives(schema, definitions), definitions);
        let names = |text: &SettingsText| matches!(text.kind, TextKind::EntryName | TextKind::Query);
        settings.complete &= settings.texts.iter().any(names);
        settings
    }

    /// The texts of one kind.
    pub fn of(&self, kind: TextKind) -> impl Iterator<Item = &Located<String>> {
        self.texts.iter().filter(move |text| text.kind == kind && text.is_text).map(|text| &text.text)
    }

    fn node(&mut self, node: &Node, schemas: &[&Value], definitions: &Map<String, Value>) -> Value {
        let inner = |keyword: &str| -> Vec<&Value> {
            let parts = schemas.iter().filter_map(|schema| schema.get(keyword)).filter(|part| part.is_object());
            parts.flat_map(|part| alternatives(part, definitions)).collect()
        };
        match &node.kind {
            Kind::Scalar(scalar) => match (kind_of(schemas), kind_of(&inner("items"))) {
                (Some(kind), _) => self.scalar(node, scalar, kind),
                // Where only a list may be, this is probably one item of it.
                (None, Some(kind)) => {
                    self.complete = false;
                    self.scalar(node, scalar, kind)
                }
                (None, None) => node.to_value(),
            },
            Kind::List(items) => {
                let wanted = kind_of(schemas);
                let schemas = inner("items");
                self.complete &= wanted.is_none() || !schemas.is_empty();
                Value::Array(items.iter().map(|item| self.node(item, &schemas, definitions)).collect())
            }
            Kind::Block(entries) => {
                let others = inner("additionalProperties");
                let key_kind = kind_of(&inner("propertyNames"));
                let mut value = |entry: &Entry| {
                    if let Some(kind) = key_kind {
                        let text = Located::new(entry.key.clone(), entry.key_span);
                        self.texts.push(SettingsText { kind, text, is_text: true });
                    }
                    let keys = schemas.iter().filter_map(|schema| schema.get("properties")?.get(&entry.key));
                    let known: Vec<&Value> = keys.flat_map(|schema| alternatives(schema, definitions)).collect();
                    let schemas = if known.is_empty() { &others } else { &known };
                    (entry.key.clone(), self.node(&entry.value, schemas, definitions))
                };
                Value::Object(entries.iter().map(&mut value).collect())
            }
        }
    }

    fn scalar(&mut self, node: &Node, scalar: &Scalar, kind: TextKind) -> Value {
        let is_text = scalar.typed == Typed::Text;
        // An expression may be a number or `true`, which YAML does not take for text.
        let is_expression = kind == TextKind::Expression && !matches!(scalar.typed, Typed::Null | Typed::Unknown);
        if !is_text && !is_expression {
            self.complete &= !matches!(kind, TextKind::EntryName | TextKind::Query);
            return node.to_value();
        }
        let text = written(node, scalar);
        let value = Text::placed(&text.value, self.texts.len());
        self.texts.push(SettingsText { kind, text, is_text });
        value
    }
}

/// The schemas one of which a value may follow.
fn alternatives<'a>(schema: &'a Value, definitions: &'a Map<String, Value>) -> Vec<&'a Value> {
    let schema = resolve(schema, definitions);
    let branches = ["oneOf", "anyOf"].iter().find_map(|keyword| schema.get(keyword).and_then(Value::as_array));
    match branches {
        Some(branches) => branches.iter().flat_map(|branch| alternatives(branch, definitions)).collect(),
        None => vec![schema],
    }
}

/// What a text means that follows one of `schemas`.
fn kind_of(schemas: &[&Value]) -> Option<TextKind> {
    schemas.iter().find_map(|schema| TextKind::of_format(schema.get("format")?.as_str()?))
}
