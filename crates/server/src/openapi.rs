//! The description of the API, made from its table.

use http::Method;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::routes::{Described, Route};

/// The description of `routes` and of `others`, in OpenAPI 3.1.
pub fn describe(routes: &[Route], others: &[Described]) -> Value {
    let mut schemas = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .into_generator();
    let mut paths: Map<String, Value> = Map::new();
    for route in routes {
        let operation = operation(route, &mut schemas);
        let path = paths.entry(route.path.to_owned()).or_insert_with(|| json!({}));
        path[route.method.as_str().to_lowercase()] = operation;
    }
    for other in others {
        let operation = (other.operation)(&mut schemas);
        let path = paths.entry(other.path.to_owned()).or_insert_with(|| json!({}));
        path[other.method] = operation;
        path[other.method]["responses"]["default"] = failure();
    }
    let mut components = schemas.take_definitions(true);
    components.insert("Problem".to_owned(), problem());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Millstream",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "What the server of Millstream shows and does. Each operation names the role that it needs: \
                            `look`, `operate` or `edit`. Times are in milliseconds since 1970.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {
                "type": "http", "scheme": "bearer",
                "description": "The token of a session, or one of `millstream access add-token`.",
            }},
        },
    })
}

fn operation(route: &Route, schemas: &mut SchemaGenerator) -> Value {
    let input = (route.input)(schemas).to_value();
    let answer = (route.answer)(schemas).to_value();
    let mut parameters: Vec<Value> = names(route.path)
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
        .collect();
    let mut operation = json!({
        "operationId": id(route),
        "summary": route.summary,
        "description": format!("Needs the role `{}`.", route.role.name()),
        "responses": {
            "200": {"description": "Done", "content": {"application/json": {"schema": answer}}},
            "default": failure(),
        },
    });
    if route.method == Method::GET {
        let required = input["required"].as_array().cloned().unwrap_or_default();
        for (name, schema) in input["properties"].as_object().into_iter().flatten() {
            let is_required = required.iter().any(|required| required == name);
            let mut schema = schema.clone();
            let description = schema.as_object_mut().and_then(|schema| schema.remove("description"));
            let mut parameter = json!({"name": name, "in": "query", "required": is_required, "schema": schema});
            if let Some(description) = description {
                parameter["description"] = description;
            }
            parameters.push(parameter);
        }
    } else {
        operation["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": input}}});
    }
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
    }
    operation
}

fn failure() -> Value {
    json!({
        "description": "What is wrong",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    })
}

/// The names in braces of a path.
fn names(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

/// `GET /api/v1/runs/{run}/log` is `get_runs_run_log`.
fn id(route: &Route) -> String {
    let path = route.path.trim_start_matches("/api/v1/").replace(['{', '}'], "").replace('/', "_");
    format!("{}_{path}", route.method.as_str().to_lowercase())
}

fn problem() -> Value {
    let text = json!({"type": ["string", "null"]});
    json!({
        "type": "object",
        "required": ["error"],
        "properties": {"error": {
            "type": "object",
            "required": ["kind", "what"],
            "properties": {
                "kind": {"type": "string"}, "what": {"type": "string"}, "cause": text, "hint": text, "text": text,
            },
        }},
    })
}
