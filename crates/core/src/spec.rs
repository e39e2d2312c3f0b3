//! How a component says what the job file may say of it.
//!
//! A component's `spec.rs` is a plain struct with `serde` and `schemars` derives and a doc comment on every field.
//! From that one struct come the parsing, the JSON schema, the lints (the job crate walks the schema, so that all
//! faults are found at once and have a place) and the reference in the docs.

use std::fmt;
use std::str::FromStr;

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
    /// The body of an entry that uses it, in YAML: a source's (with `read:`), or a transform's or a sink's (with
    /// `from: ranked`). Every example is linted by a test.
    const EXAMPLE: &'static str;

    /// Faults that the types do not show: combinations, values out of range.
    fn check(&self) -> Vec<Fault> {
        Vec::new()
    }
}

/// A fault inside the settings of a component. The job crate finds its line and column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Keys and indices that lead to the offending value; empty for the settings as a whole. An empty text behind a key
    /// stands for the key itself.
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

    /// A fault of the key that `path` ends with: it should not be there.
    pub fn of_key(path: &str, what: impl Into<String>) -> Self {
        let mut fault = Fault::new(path, what);
        fault.path.push(String::new());
        fault
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
    /// What [`Spec::check`] says of settings; `None` if they cannot be read.
    pub check: fn(&Value) -> Option<Vec<Fault>>,
}

impl SpecInfo {
    /// What there is to know of `S`.
    pub const fn of<S: Spec>() -> Self {
        SpecInfo {
            name: S::NAME,
            summary: S::SUMMARY,
            example: S::EXAMPLE,
            schema: |generator| generator.subschema_for::<S>(),
            check: |settings| S::deserialize(settings).ok().map(|spec| spec.check()),
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
            Err(vec![Fault { path: path.collect(), ..Fault::new("", error.to_string()) }])
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
    /// The variable of the environment that has it, if it is one.
    pub fn variable(&self) -> Option<&str> {
        self.secret.strip_prefix("env:")
    }

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
                let mut value = fs_err::read_to_string(path).map_err(|cause| {
                    Error::io(format!("the secret's file {path} cannot be read"), &cause).text(&self.secret)
                })?;
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

/// A length of time as a job file says it: a number and a unit, `500ms`, `30s`, `1.5m`, `2h`, `30d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Duration(pub std::time::Duration);

/// The units of a [`Duration`], in seconds.
const DURATION_UNITS: &[(&str, f64)] = &[("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86_400.0)];

impl Duration {
    /// That many seconds.
    pub const fn from_seconds(seconds: u64) -> Self {
        Duration(std::time::Duration::from_secs(seconds))
    }
}

impl TryFrom<String> for Duration {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let fault = || {
            format!("`{text}` is not a length of time: write a number and a unit, such as 500ms, 30s, 5m, 2h or 30d")
        };
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(fault)?;
        let (number, unit) = text.split_at(digits);
        let (_, seconds) = DURATION_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(fault)?;
        let number: f64 = number.parse().map_err(|_| fault())?;
        std::time::Duration::try_from_secs_f64(number * seconds).map(Duration).map_err(|_| fault())
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.as_millis() % 1000, self.0.as_secs()) {
            (0, seconds) if seconds > 86_400 && seconds % 86_400 == 0 => write!(f, "{}d", seconds / 86_400),
            (0, seconds) if seconds > 0 && seconds % 3600 == 0 => write!(f, "{}h", seconds / 3600),
            (0, seconds) if seconds > 0 && seconds % 60 == 0 => write!(f, "{}m", seconds / 60),
            (0, seconds) => write!(f, "{seconds}s"),
            _ => write!(f, "{}ms", self.0.as_millis()),
        }
    }
}

impl From<Duration> for String {
    fn from(duration: Duration) -> String {
        duration.to_string()
    }
}

impl JsonSchema for Duration {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "type": "string",
            "pattern": r"^[0-9]+(\.[0-9]+)?(ms|s|m|h|d)$",
            "description": "A length of time: a number and a unit, such as 500ms, 30s, 5m, 2h or 30d.",
        })
    }
}

/// A number of bytes. In the job file a whole number, or text with a unit: `64MB` (10⁶ bytes each), `1GiB` (2³⁰).
/// Displayed with three digits: `12.3 MB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// What a [`Size`] looks like as text.
const SIZE_PATTERN: &str = r"^[0-9]+(\.[0-9]+)? ?([kKmMgGtT][iI]?)?[bB]?$";

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fault = || format!("`{text}` is not a size: write a whole number of bytes, or `64MB`, `1GiB`");
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let factor: u64 = match unit.strip_prefix(' ').unwrap_or(unit).to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" => 1_000,
            "m" | "mb" => 1_000_000,
            "g" | "gb" => 1_000_000_000,
            "t" | "tb" => 1_000_000_000_000,
            "ki" | "kib" => 1 << 10,
            "mi" | "mib" => 1 << 20,
            "gi" | "gib" => 1 << 30,
            "ti" | "tib" => 1 << 40,
            _ => return Err(fault()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(Size).ok_or_else(fault);
        }
        let bytes = number.parse::<f64>().map_err(|_| fault())? * factor as f64;
        if bytes < u64::MAX as f64 { Ok(Size(bytes as u64)) } else { Err(fault()) }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1_000 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64;
        let mut unit = "B";
        for larger in ["kB", "MB", "GB", "TB", "PB", "EB"] {
            // What would be rounded up to 1000 belongs to the next unit.
            if value < 999.5 {
                break;
            }
            value /= 1_000.0;
            unit = larger;
        }
        let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
        write!(f, "{value:.digits$} {unit}")
    }
}

impl Serialize for Size {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => text.parse(),
            other => other.to_string().parse(),
        }
        .map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Size {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {
                    "type": "string",
                    "pattern": SIZE_PATTERN,
                    "description": "A whole number of bytes, or text such as `64MB` or `1GiB`.",
                },
            ]
        })
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

    #[test]
    fn durations_have_a_unit() {
        for (text, milliseconds, shown) in [
            ("500ms", 500, "500ms"),
            ("30s", 30_000, "30s"),
            ("1.5m", 90_000, "90s"),
            ("2h", 7_200_000, "2h"),
            ("1d", 86_400_000, "24h"),
            ("30d", 2_592_000_000, "30d"),
        ] {
            let duration = Duration::try_from(text.to_owned()).expect("a length of time");
            assert_eq!((duration.0.as_millis(), duration.to_string().as_str()), (milliseconds, shown));
        }
        for text in ["", "30", "s", "-1s", "1.2.3s", "1 s", "5w", "99999999999999999999999h"] {
            assert!(Duration::try_from(text.to_owned()).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_have_units() {
        let parsed = |text: &str| text.parse::<Size>().map(|size| size.0);
        assert_eq!(parsed("64MB"), Ok(64_000_000));
        assert_eq!(parsed("1.5 GiB"), Ok(3 << 29));
        assert_eq!(parsed("10k"), Ok(10_000));
        assert_eq!(parsed("18446744073709551615"), Ok(u64::MAX));
        for bad in ["", "MB", "-1", "1 parsec", "1.2.3", "18446744073709551616", "99999999999TB"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
        let shown = [0, 999, 1_000, 12_345, 999_499, 999_999, 64_000_000].map(|bytes| Size(bytes).to_string());
        assert_eq!(shown, ["0 B", "999 B", "1.00 kB", "12.3 kB", "999 kB", "1.00 MB", "64.0 MB"]);
        assert_eq!(serde_json::from_str::<Size>("5").expect("a number"), Size(5));
        assert!(serde_json::from_str::<Size>("-5").is_err() && serde_json::from_str::<Size>("true").is_err());
    }
}
