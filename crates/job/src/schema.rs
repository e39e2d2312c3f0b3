//! The JSON schema of a whole job file, made from the same specs that parse it.
//!
//! `check --schema` prints it; [`crate::walk`] lints with it. An editor that knows JSON schemas completes and checks
//! job files with it.

use millstream_core::Registry;
use millstream_core::registry::{FormatEntry, SinkEntry, SinkFormats, SourceEntry};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::around::AroundKeys;
use crate::entries::{COMMAND, MAX_REJECTS, SinkKeys, SourceKeys, TransformKeys};

/// What names of entries look like: SQL takes them without quotes.
pub const NAME_PATTERN: &str = "^[A-Za-z_][A-Za-z0-9_]*$";

/// The definition that the entries of `sources` follow.
pub const SOURCE: &str = "source";

/// The definition that the entries of `transforms` follow.
pub const TRANSFORM: &str = "transform";

/// The definition that the entries of `functions` follow.
pub const FUNCTION: &str = "function";

/// The definition that a sink of this kind follows.
pub fn sink_definition(entry: &SinkEntry) -> String {
    format!("{}_sink", entry.spec.name)
}

/// The JSON schema (draft 2020-12) of a job file.
pub fn schema(registry: &Registry) -> Value {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let source = source_schema(registry, &mut generator);
    let transform = transform_schema(registry, &mut generator);
    let sinks: Vec<(String, Value)> = registry
        .sinks
        .iter()
        .map(|entry| (sink_definition(entry), sink_schema(entry, registry, &mut generator)))
        .collect();
    let choice = sink_choice(registry);
    let function = registry.function.map(|entry| {
        let settings = (entry.spec.schema)(&mut generator).to_value();
        let mut settings = resolve(&settings, generator.definitions()).clone();
        settings["description"] = entry.spec.summary.into();
        settings
    });
    let around = generator.subschema_for::<AroundKeys>().to_value();
    let blocks = database_blocks(registry, &mut generator);
    let mut definitions = generator.take_definitions(true);
    let around = object_part(resolve(&around, &definitions), "properties");
    definitions.remove("AroundKeys");
    if let Some(query) = definitions.get_mut("QueryKeys") {
        query["additionalProperties"] = false.into();
        query["properties"].as_object_mut().into_iter().for_each(|properties| properties.extend(blocks.clone()));
    }
    definitions.insert(SOURCE.to_owned(), source);
    definitions.insert(TRANSFORM.to_owned(), transform);
    definitions.extend(function.map(|settings| (FUNCTION.to_owned(), settings)));
    definitions.extend(sinks);
    definitions.insert("sink".to_owned(), choice);
    let names = json!({"pattern": NAME_PATTERN});
    let section = |definition: &str, description: &str| {
        json!({
            "description": description,
            "type": "object",
            "propertyNames": names,
            "additionalProperties": reference(definition),
        })
    };
    let mut sources = section(SOURCE, "Where rows come from. Each entry has a name; SQL sees it as a table.");
    let mut sinks = section("sink", "Where rows go to. Each entry has a name.");
    sources["minProperties"] = json!(1);
    sinks["minProperties"] = json!(1);
    let mut transforms = section(TRANSFORM, "What is done with rows. Each entry has a name; SQL sees it as a table.");
    transforms["type"] = json!(["object", "null"]);
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Millstream job",
        "type": "object",
        "properties": {"sources": sources, "transforms": transforms, "sinks": sinks, "incremental": {
            "description": "Whether sources that do not say otherwise are incremental.",
            "type": "boolean",
            "default": false,
        }, "timezone": {
            "description": "The time zone of `${today}` and `${now}`, as the IANA database names it, such as \
                            `Europe/Berlin`. SQL's `current_date` is the day in it.",
            "type": "string",
            "default": "UTC",
        }},
        "required": ["sources", "sinks"],
        "additionalProperties": false,
        "$defs": definitions,
    });
    for (key, property) in around {
        schema["properties"][key] = property;
    }
    if registry.function.is_some() {
        let functions = section(FUNCTION, "Functions that SQL may call. Each entry has a name in lower case.");
        schema["properties"]["functions"] = functions;
    }
    schema
}

/// The blocks of the databases that can be read.
pub fn database_blocks(registry: &Registry, generator: &mut SchemaGenerator) -> Map<String, Value> {
    let databases = registry.sources.iter().filter(|entry| entry.rows && entry.spec.name != COMMAND);
    let block = |entry: &&SourceEntry| {
        let block = (entry.spec.schema)(generator).to_value();
        (entry.spec.name.to_owned(), optional_block(block, entry.spec.summary))
    };
    databases.map(block).collect()
}

/// The schema that `schema` refers to, or itself.
pub fn resolve<'a>(schema: &'a Value, definitions: &'a Map<String, Value>) -> &'a Value {
    let mut current = schema;
    // A definition that refers to itself must not keep us here.
    for _ in 0..16 {
        let name = current.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix("#/$defs/"));
        match name.map(unescape).and_then(|name| definitions.get(&name)) {
            Some(target) => current = target,
            None => return current,
        }
    }
    current
}

/// JSON pointers write `~` as `~0` and `/` as `~1`.
fn unescape(name: &str) -> String {
    name.replace("~1", "/").replace("~0", "~")
}

fn reference(definition: &str) -> Value {
    json!({"$ref": format!("#/$defs/{definition}")})
}

/// The values of `compress`: every codec that can write, and `none`.
pub fn compressions(registry: &Registry) -> Vec<&'static str> {
    let writes = |codec: &dyn millstream_core::codec::Codec| matches!(codec.encoder(None), Ok(Some(_)));
    let mut names: Vec<&'static str> =
        registry.codecs.iter().filter(|entry| writes((entry.build)().as_ref())).map(|entry| entry.name).collect();
    if !names.contains(&"none") {
        names.insert(0, "none");
    }
    names
}

fn source_schema(registry: &Registry, generator: &mut SchemaGenerator) -> Value {
    let keys = SourceKeys::json_schema(generator).to_value();
    let mut properties = object_part(&keys, "properties");
    // `null` without quotes is the choice of that name.
    if let Some(on_drift) = properties.get_mut("on_drift").and_then(Value::as_object_mut) {
        let reference = on_drift.remove("$ref").unwrap_or_default();
        on_drift.insert("anyOf".to_owned(), json!([{"$ref": reference}, {"type": "null"}]));
    }
    for entry in &registry.sources {
        let block = (entry.spec.schema)(generator).to_value();
        properties.insert(entry.spec.name.to_owned(), optional_block(block, entry.spec.summary));
    }
    add_formats(&mut properties, &registry.formats, generator);
    let mut schema = json!({
        "description": "Rows from files, objects or streams.",
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    });
    unless_command(&mut schema, "read");
    exclude_pairs(&mut schema, &registry.formats);
    schema
}

/// The key of one transform, and those beside it.
fn transform_schema(registry: &Registry, generator: &mut SchemaGenerator) -> Value {
    let mut schema = TransformKeys::json_schema(generator).to_value();
    let mut properties = Map::new();
    for entry in &registry.transforms {
        let mut settings = (entry.spec.schema)(generator).to_value();
        settings["description"] = entry.spec.summary.into();
        properties.insert(entry.spec.name.to_owned(), settings);
    }
    properties.extend(object_part(&schema, "properties"));
    schema["properties"] = Value::Object(properties);
    schema["description"] = "Rows computed from those of other entries: exactly one transform.".into();
    schema
}

fn sink_schema(entry: &SinkEntry, registry: &Registry, generator: &mut SchemaGenerator) -> Value {
    let keys = SinkKeys::json_schema(generator).to_value();
    let mut properties = object_part(&keys, "properties");
    if entry.formats == SinkFormats::ByName || entry.schemes.is_empty() || is_command(entry) {
        // Files, programs, and what has no address take every row.
        properties.remove(MAX_REJECTS);
    }
    let settings = (entry.spec.schema)(generator).to_value();
    let settings = resolve(&settings, generator.definitions()).clone();
    properties.extend(object_part(&settings, "properties"));
    let mut required: Vec<Value> = vec!["from".into()];
    required.extend(settings.get("required").and_then(Value::as_array).cloned().unwrap_or_default());
    if entry.formats != SinkFormats::None {
        let compress = match entry.formats {
            SinkFormats::ByName => "How to compress; if left out, the ending of the file's name decides.",
            _ => "How to compress each message; if left out, none is.",
        };
        properties.insert(
            "compress".to_owned(),
            json!({
                "description": compress,
                "type": "string",
                "enum": compressions(registry),
            }),
        );
        add_formats(&mut properties, &registry.formats, generator);
    }
    for store in registry.stores.iter().filter(|_| entry.stores) {
        let block = (store.spec.schema)(generator).to_value();
        properties.insert(store.spec.name.to_owned(), optional_block(block, store.spec.summary));
    }
    let mut schema = json!({
        "description": entry.spec.summary,
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    });
    if is_command(entry) {
        schema["properties"]["write"]["description"] = "Left out: `command` stands in its place.".into();
    } else {
        required.push("write".into());
    }
    schema["required"] = required.into();
    if entry.formats != SinkFormats::None {
        exclude_pairs(&mut schema, &registry.formats);
    }
    schema
}

/// Which kind of sink an entry is, is told by its `write`.
fn sink_choice(registry: &Registry) -> Value {
    let pattern_of = |entry: &SinkEntry| {
        let schemes = registry.sink_schemes(entry).filter(|scheme| !scheme.is_empty() && *scheme != COMMAND);
        let words = entry.words.iter().map(|word| format!("^{word}$"));
        let patterns: Vec<String> = schemes.map(|scheme| format!("^{scheme}:")).chain(words).collect();
        (!patterns.is_empty()).then(|| patterns.join("|"))
    };
    let others: Vec<String> = registry.sinks.iter().copied().filter_map(pattern_of).collect();
    let paths = json!({"not": {"pattern": if others.is_empty() { "^$".to_owned() } else { others.join("|") }}});
    let mut choices = Vec::new();
    for entry in &registry.sinks {
        if is_command(entry) {
            choices.push(json!({"if": {"required": [COMMAND]}, "then": reference(&sink_definition(entry))}));
            continue;
        }
        let mut conditions: Vec<Value> = pattern_of(entry).iter().map(|pattern| json!({"pattern": pattern})).collect();
        if entry.schemes.contains(&"") {
            conditions.push(paths.clone());
        }
        choices.push(json!({
            "if": {"properties": {"write": {"anyOf": conditions}}, "not": {"required": [COMMAND]}},
            "then": reference(&sink_definition(entry)),
        }));
    }
    let mut choice = json!({"type": "object", "required": ["from"], "allOf": choices});
    unless_command(&mut choice, "write");
    choice
}

/// Whether the sink is a program.
fn is_command(entry: &SinkEntry) -> bool {
    entry.spec.name == COMMAND
}

/// `key` is required where no program stands in its place.
fn unless_command(schema: &mut Value, key: &str) {
    schema["if"] = json!({"required": [COMMAND]});
    schema["else"] = json!({"required": [key]});
}

fn add_formats(properties: &mut Map<String, Value>, formats: &[&FormatEntry], generator: &mut SchemaGenerator) {
    for entry in formats {
        let block = (entry.spec.schema)(generator).to_value();
        properties.insert(entry.spec.name.to_owned(), optional_block(block, entry.spec.summary));
    }
}

/// A block that may be left empty: `csv:` alone asks for the format with all its defaults.
fn optional_block(block: Value, summary: &str) -> Value {
    json!({"description": summary, "anyOf": [block, {"type": "null"}]})
}

/// At most one format block.
fn exclude_pairs(schema: &mut Value, formats: &[&FormatEntry]) {
    let mut pairs = Vec::new();
    for (index, first) in formats.iter().enumerate() {
        for second in &formats[index + 1..] {
            pairs.push(json!({"not": {"required": [first.spec.name, second.spec.name]}}));
        }
    }
    if !pairs.is_empty() {
        schema["allOf"] = Value::Array(pairs);
    }
}

fn object_part(schema: &Value, key: &str) -> Map<String, Value> {
    schema.get(key).and_then(Value::as_object).cloned().unwrap_or_default()
}
