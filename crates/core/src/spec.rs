//! How a component says what the job file may say of it.
//!
//! A component's `spec.rs` is a plain struct with `serde` and `schemars` derives and a doc comment on every field.
//! From that one struct come the parsing, the JSON schema, the lints (the job crate walks the schema, so that all
//! faults are found at once and have a place) and the reference in the docs.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Error, Result};

/// The settings of one component in the job file.
pub trait Spec: DeserializeOwned + JsonSchema {
    /// The key in the job file: `csv`.
    const NAME: &'static str;
    /// One sentence for the reference.
    const SUMMARY: &'static str;
    /// An entry of a job file that uses it, in YAML. Every example is linted by a test.
    const EXAMPLE: &'static str;

    /// Faults that the types do not show: combinations, values out of range.
    fn check(&self) -> Vec<Fault> {
        Vec::new()
    }
}

/// A fault inside the settings of a component. The job crate finds its line and column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Keys and indices that lead to the offending value; empty for the settings as a whole.
    pub path: Vec<String>,
    /// What is wrong, in lower case.
    pub what: String,
    /// What to do.
    pub hint: Option<String>,
}

impl Fault {
    /// A fault at `path` (keys and indices joined by dots; empty for the whole).
    pub fn new(path: &str, what: impl Into<String>) -> Self {
        Fault {
            path: path.split('.').filter(|part| !part.is_empty()).map(str::to_owned).collect(),
            what: what.into(),
            hint: None,
        }
    }

    /// Adds what to do.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// What the registry knows of a spec.
#[derive(Clone, Copy)]
pub struct SpecInfo {
    /// The key in the job file.
    pub name: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// An entry in YAML.
    pub example: &'static str,
    /// The JSON schema of the settings.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
}

impl SpecInfo {
    /// What there is to know of `S`.
    pub const fn of<S: Spec>() -> Self {
        SpecInfo {
            name: S::NAME,
            summary: S::SUMMARY,
            example: S::EXAMPLE,
            schema: |generator| generator.subschema_for::<S>(),
        }
    }
}

impl fmt::Debug for SpecInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpecInfo").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The settings as a typed spec, or all its faults. The value has been checked against the schema before, so a fault
/// here comes from a type's own conversion or from [`Spec::check`].
pub fn parse<S: Spec>(settings: &Value) -> Result<S, Vec<Fault>> {
    let mut track = serde_path_to_error::Track::new();
    let deserializer = serde_path_to_error::Deserializer::new(settings, &mut track);
    match S::deserialize(deserializer) {
        Ok(spec) => {
            let faults = spec.check();
            if faults.is_empty() { Ok(spec) } else { Err(faults) }
        }
        Err(error) => {
            let place = track.path();
            let path = place.iter().filter_map(|segment| match segment {
                serde_path_to_error::Segment::Seq { index } => Some(index.to_string()),
                serde_path_to_error::Segment::Map { key } => Some(key.clone()),
                _ => None,
            });
            Err(vec![Fault { path: path.collect(), what: error.to_string(), hint: None }])
        }
    }
}

/// A reference to a secret: `{secret: env:NAME}` or `{secret: file:PATH}`. The job holds the name; the value is read
/// when it is needed and never shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Secret {
    /// Where the secret is: `env:NAME` (a variable of the environment) or `file:PATH` (its last line end is left out).
    #[schemars(regex(pattern = r"^(env|file):.+$"))]
    pub secret: String,
}

impl Secret {
    /// Reads the secret. The error names the reference, never the value.
    pub fn resolve(&self) -> Result<String> {
        let fault = |what: String| Error::refused(what).text(&self.secret);
        match self.secret.split_once(':') {
            Some(("env", name)) => std::env::var(name).map_err(|cause| {
                fault(format!("the secret's variable {name} cannot be read"))
                    .cause(match cause {
                        std::env::VarError::NotPresent => "it is not set",
                        std::env::VarError::NotUnicode(_) => "it is not UTF-8",
                    })
                    .hint(format!("set it in the environment: export {name}=…"))
            }),
            Some(("file", path)) => {
                let mut value = fs_err::read_to_string(path)
                    .map_err(|cause| fault(format!("the secret's file {path} cannot be read")).cause(cause))?;
                value.truncate(value.trim_end_matches(['\n', '\r']).len());
                Ok(value)
            }
            _ => Err(Error::job("a secret is neither `env:NAME` nor `file:PATH`").text(&self.secret)),
        }
    }
}

/// A text given in the job file, or a reference to a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum TextOrSecret {
    /// The text itself.
    Text(String),
    /// A reference.
    Secret(Secret),
}

impl TextOrSecret {
    /// The text, or the secret's value.
    pub fn resolve(&self) -> Result<String> {
        match self {
            TextOrSecret::Text(text) => Ok(text.clone()),
            TextOrSecret::Secret(secret) => secret.resolve(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, JsonSchema)]
    struct Example {
        #[allow(dead_code)]
        headers: std::collections::BTreeMap<String, u8>,
    }

    impl Spec for Example {
        const NAME: &'static str = "example";
        const SUMMARY: &'static str = "";
        const EXAMPLE: &'static str = "";
    }

    #[test]
    fn a_fault_of_conversion_has_its_path() {
        let faults = parse::<Example>(&serde_json::json!({"headers": {"a": 1, "b": 300}})).expect_err("300 is no u8");
        assert_eq!(faults[0].path, ["headers", "b"]);
    }

    #[test]
    fn a_missing_secret_names_the_reference() {
        let secret = Secret { secret: "env:MILLSTREAM_NO_SUCH".into() };
        let error = secret.resolve().expect_err("not set");
        assert!(error.to_string().contains("MILLSTREAM_NO_SUCH"), "{error}");
    }
}
