//! How many connections the entries of a job may have open, if its `throttle` says so.
//!
//! It works on the settings that components are built from, so that each component keeps to the number as if its own
//! `connections` said it. No source waits for a connection of another one: each has its part for itself, since a join
//! may need rows of one source before it takes any more of the other.

use millstream_core::Registry;
use serde_json::{Map, Value};

use crate::schema::{SOURCE, resolve};
use crate::tree::{Entry, Node};

/// The key, in `throttle` and in the settings of components.
const KEY: &str = "connections";

/// Connections over which rows of a sink go, if it does not say how many.
const OF_SINK: u64 = 2;

/// How many connections each source, and each sink, may have open at once; any number if the job does not say.
#[derive(Debug, Clone, Copy, Default)]
pub struct Connections {
    source: Option<u64>,
    sink: Option<u64>,
}

impl Connections {
    /// What `root` says, for `sources`.
    pub fn of(root: &Node, sources: &[Entry], registry: &Registry, definitions: &Map<String, Value>) -> Self {
        let said = root.get("throttle").and_then(|throttle| throttle.get(KEY)?.to_value().as_u64());
        let Some(all) = said.filter(|said| *said > 0) else { return Connections::default() };
        let connects = |pattern: &str| {
            let kind = registry.source_for(pattern).filter(|_| pattern != "-");
            let blocks = definitions.get(SOURCE).and_then(|source| source.get("properties"));
            let block = kind.and_then(|kind| blocks?.get(kind.spec.name));
            pattern.starts_with('@') || default_of(block, definitions).is_some()
        };
        let servers = sources.iter().filter(|source| patterns(&source.value).iter().any(|pattern| connects(pattern)));
        let servers = u64::try_from(servers.count()).unwrap_or(u64::MAX);
        Connections { source: Some((all / servers.max(1)).max(1)), sink: Some(all) }
    }

    /// Whether the job says how many.
    pub fn is_limited(self) -> bool {
        self.source.is_some()
    }

    /// `settings` of a source, whose block has this schema.
    pub fn of_source(self, schema: Option<&Value>, definitions: &Map<String, Value>, settings: Value) -> Value {
        let default = default_of(schema, definitions);
        match (self.source, default) {
            (Some(most), Some(default)) => at_most(most, default, settings),
            _ => settings,
        }
    }

    /// `settings` of a sink, whose entry has this schema.
    pub fn of_sink(self, schema: Option<&Value>, definitions: &Map<String, Value>, settings: Value) -> Value {
        match self.sink.filter(|_| property(schema, definitions).is_some()) {
            Some(most) => at_most(most, OF_SINK, settings),
            None => settings,
        }
    }
}

/// `settings` with at most `most` connections, where `default` is what they mean if they do not say.
fn at_most(most: u64, default: u64, mut settings: Value) -> Value {
    let said = settings.get(KEY).map_or(Some(default), Value::as_u64);
    if said.is_some_and(|said| said > most)
        && let Value::Object(settings) = &mut settings
    {
        settings.insert(KEY.to_owned(), most.into());
    }
    settings
}

/// Whether a block of the source `entry` says how many.
pub fn says_connections(entry: &Node) -> bool {
    entry.entries().iter().any(|block| block.value.get(KEY).is_some())
}

fn property<'a>(schema: Option<&'a Value>, definitions: &'a Map<String, Value>) -> Option<&'a Value> {
    let schema = resolve(schema?, definitions);
    let alternatives = schema.get("anyOf").or(schema.get("oneOf")).and_then(Value::as_array);
    match alternatives {
        Some(several) => several.iter().find_map(|one| property(Some(one), definitions)),
        None => schema.get("properties")?.get(KEY),
    }
}

fn default_of(schema: Option<&Value>, definitions: &Map<String, Value>) -> Option<u64> {
    property(schema, definitions)?.get("default")?.as_u64()
}

/// What a source reads.
fn patterns(source: &Node) -> Vec<String> {
    match source.get("read").map(Node::to_value) {
        Some(Value::Array(all)) => all.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect(),
        Some(Value::String(one)) => vec![one],
        _ => Vec::new(),
    }
}
