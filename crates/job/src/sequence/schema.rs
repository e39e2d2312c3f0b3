//! The JSON schema of a sequence's file, made from the specs that parse it.

use millstream_core::Registry;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::spec::SequenceKeys;
use crate::schema::{database_blocks, resolve};

/// The definition that the entries of `steps` follow.
pub(crate) const STEP: &str = "StepKeys";

/// The blocks that name a query and its database, and may have the database's settings beside it.
const WITH_DATABASES: [&str; 3] = [STEP, "WaitKeys", "RowsOfQueryKeys"];

/// The JSON schema (draft 2020-12) of a sequence's file.
pub fn schema(registry: &Registry) -> Value {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let root = generator.subschema_for::<SequenceKeys>().to_value();
    let blocks = database_blocks(registry, &mut generator);
    let mut definitions = generator.take_definitions(true);
    let mut root = resolve(&root, &definitions).clone();
    definitions.remove("SequenceKeys");
    for name in WITH_DATABASES {
        let Some(block) = definitions.get_mut(name) else { continue };
        block["additionalProperties"] = false.into();
        block["properties"].as_object_mut().into_iter().for_each(|keys| keys.extend(blocks.clone()));
    }
    root["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    root["title"] = "Millstream sequence".into();
    root["required"] = vec!["steps"].into();
    root["properties"]["steps"]["propertyNames"] = serde_json::json!({"pattern": crate::schema::NAME_PATTERN});
    root["$defs"] = Value::Object(definitions);
    root
}

/// The definitions of both kinds of files: a query of a step is built as the source of a job.
pub(crate) fn definitions(registry: &Registry, sequence: &Value) -> Map<String, Value> {
    let of = |schema: &Value| schema["$defs"].as_object().cloned().unwrap_or_default();
    let mut all = of(&crate::schema::schema(registry));
    all.extend(of(sequence));
    all
}
