//! Fingerprints: a hash of everything that the rows of a job depend on. A run resumes another one only if they are
//! equal.
//!
//! Fingerprints are stored in the run history and in the ledgers of targets, where later versions of the program read
//! them. So they are made of a form of our own ([`normal_form`]), without text that another library produces. They have
//! a version:
//!
//! | version | written as | made of |
//! |---|---|---|
//! | 1 | `0123456789abcdef` | DataFusion's display of the plans: comparable until an update changes it |
//! | 2 | `v2:` and 32 digits | the normal form |
//!
//! A run writes the current version, and compares with the version that an earlier run has written. To change the form,
//! add version 3 and keep the functions of version 2, so that runs of version 2 can be resumed. A new key of the job
//! file needs no new version: only jobs that use it have it in their form.

use arrow::datatypes::{DataType, SchemaRef, TimeUnit};
use millstream_core::format::{OnDrift, Validate};
use millstream_core::registry::SinkFormats;
use millstream_core::sink::{Chunk, WrittenChunks};
use millstream_core::stable_hash::hash;
use millstream_core::transform::{Distinct, Duplicate, Keep, Lookup, MatchWith, Miss, Relation, SortKey, UnionBy};
use millstream_core::{Registry, redact};
use millstream_job::entries::COMMAND;
use millstream_job::{Check, CheckSeverity, FunctionStep, Job, Rule, SinkStep, SourceStep, TransformStep};
use serde_json::{Map, Value, json};

use crate::checks::described;
use crate::prepare::Prepared;
use crate::sql::normalised;

/// The version of the fingerprints that are written.
const VERSION: u64 = 2;

/// The unit under which a ledger notes the fingerprint. Units of files begin with the name of a source.
const NOTE: &str = "\nfingerprint";

/// Notes from here on hold their version; smaller ones have version 1.
const WITH_VERSION: u64 = 1 << 62;

/// Where in a note the version begins.
const VERSION_BIT: u32 = 54;

/// Keys of a source that say which errors are allowed, or when its files are read and what becomes of them, not what is
/// read.
const NO_PART: &[&str] =
    &["max_rejects", "on_error", "allow_empty", "empty_files", "limits", "ready", "on_change", "after_load"];

/// Keys of a source that the form holds parsed, not as they are written.
const IN_OTHER_WORDS: &[&str] = &["read", "members", "sorted_by", "incremental", "on_drift", "validate"];

/// Keys of a transform with workers that say how it reads and how they run, not what they compute. Of a function its
/// name and the hash of its file are there already.
const HOW_WORKERS_RUN: &[&str] = &["from", "python", "workers", "timeout", "memory", "env", "interpreter"];

/// The fingerprints of a job, of each version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprints {
    first: String,
    /// The same without format blocks: version 0.1.0 read files without one, as which it guessed it.
    first_guessed: String,
    current: String,
}

/// The result of comparing a job with a stored fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compared {
    /// Its rows are the same.
    Same,
    /// Its rows may differ.
    Changed,
    /// Unknown: a newer version of the program has written the fingerprint.
    Newer,
}

impl Fingerprints {
    /// Those of `job`.
    pub fn of(job: &Job, prepared: &Prepared<'_>) -> Self {
        let facts = Facts {
            columns: &|name| prepared.columns(name),
            format: &|name| {
                let reader = prepared.readers.iter().find(|reader| reader.name == name);
                reader.map(|reader| reader.format.name().to_owned())
            },
            code: &|name| prepared.code(name),
            registry: prepared.registry(),
        };
        Fingerprints {
            first: prepared.first_fingerprint(job, true),
            first_guessed: prepared.first_fingerprint(job, false),
            current: second(&normal_form(job, &facts)),
        }
    }

    /// The one that is stored.
    pub fn current(&self) -> &str {
        &self.current
    }

    /// Compares with a stored one.
    pub fn compare(&self, written: &str) -> Compared {
        let same = |own: &str| if own == written { Compared::Same } else { Compared::Changed };
        match written.split_once(':') {
            None if written == self.first_guessed => Compared::Same,
            None => same(&self.first),
            Some(("v2", _)) => same(&self.current),
            Some(_) => Compared::Newer,
        }
    }

    /// The note for a ledger. Other versions and other jobs have other notes.
    pub fn note(&self) -> Chunk {
        let number = WITH_VERSION | (VERSION << VERSION_BIT) | (hash(&self.current) >> (64 - VERSION_BIT));
        Chunk { unit: NOTE.to_owned(), number }
    }

    /// As a program of version 1 has noted it.
    fn first_notes(&self) -> [u64; 2] {
        [&self.first, &self.first_guessed].map(|first| hash(first) >> 2)
    }

    /// Compares with the notes of a load. A load without this note is accepted.
    pub fn compare_notes(&self, written: &WrittenChunks) -> Compared {
        let notes = written.of_unit(NOTE);
        let version = |number: &u64| match number.checked_sub(WITH_VERSION) {
            None => 1,
            Some(rest) => rest >> VERSION_BIT,
        };
        // A load that several versions have worked on has a note of each, all of the same job.
        if notes.is_empty()
            || notes.contains(&self.note().number)
            || self.first_notes().iter().any(|first| notes.contains(first))
        {
            return Compared::Same;
        }
        if notes.iter().any(|note| version(note) <= VERSION) { Compared::Changed } else { Compared::Newer }
    }
}

/// The hashes of the files of code that `job` runs, by entry and file, as they are stored beside a fingerprint to name
/// what has changed.
pub fn code_files(job: &Job, prepared: &Prepared<'_>) -> Value {
    let functions = job.functions.iter().map(|step| (&step.name.value, &step.settings));
    let transforms = job.transforms.iter().map(|step| (&step.name.value, &step.settings));
    let entries = functions.chain(transforms).filter_map(|(name, settings)| {
        let files = files_of(settings, &prepared.code(name));
        (!files.is_empty()).then(|| (name.clone(), Value::Object(files)))
    });
    Value::Object(entries.collect())
}

/// The hashes of the files of one entry: that of its function, or those among the words of its command.
fn files_of(settings: &Value, code: &Value) -> Map<String, Value> {
    let function = settings["python"].as_str().and_then(|function| function.rsplit_once(':'));
    let function = function.map(|(file, _)| (file.to_owned(), code["code"].clone()));
    let list = |key: &str| code[key].as_array().into_iter().flatten();
    let words =
        list("command").zip(list("files")).filter_map(|(word, hash)| Some((word.as_str()?.to_owned(), hash.clone())));
    function.into_iter().chain(words).filter(|(_, hash)| hash.is_string()).collect()
}

/// The files of `now` that were others `before`, with their entries: `features.py of scored`.
pub fn changed_files(before: &Value, now: &Value) -> Vec<String> {
    let entries = now.as_object().into_iter().flatten();
    let files =
        entries.flat_map(|(entry, files)| files.as_object().into_iter().flatten().map(move |file| (entry, file)));
    let changed = files.filter(|(entry, (file, hash))| {
        let before = &before[entry.as_str()][file.as_str()];
        before.is_string() && before != *hash
    });
    changed.map(|(entry, (file, _))| format!("{file} of `{entry}`")).collect()
}

/// What is known of a job beside its file.
struct Facts<'a> {
    /// The columns of an entry.
    columns: &'a dyn Fn(&str) -> Option<SchemaRef>,
    /// The format of a source.
    format: &'a dyn Fn(&str) -> Option<String>,
    /// What the workers of a transform compute with.
    code: &'a dyn Fn(&str) -> Value,
    registry: &'a Registry,
}

/// The fingerprint of version 2.
fn second(normal_form: &Value) -> String {
    let mut text = String::new();
    write_sorted(normal_form, &mut text);
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let digits: String = digest.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("v2:{digits}")
}

/// JSON with the keys of each object in order, and without blanks.
fn write_sorted(value: &Value, text: &mut String) {
    match value {
        Value::Object(entries) => {
            let mut entries: Vec<_> = entries.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            text.push('{');
            for (key, value) in entries {
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                write_sorted(value, text);
                text.push(',');
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for item in items {
                write_sorted(item, text);
                text.push(',');
            }
            text.push(']');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}

/// Everything that the rows of a job depend on except for the files. It leaves out the order of entries, the layout of
/// SQL, and settings that only say how to read and write.
fn normal_form(job: &Job, facts: &Facts<'_>) -> Value {
    let sorted = |mut entries: Vec<Value>| {
        entries.sort_by_key(|entry| entry["name"].as_str().map(str::to_owned));
        entries
    };
    let mut form = json!({
        "sources": sorted(job.sources.iter().map(|step| source(step, facts)).collect()),
        "transforms": sorted(job.transforms.iter().map(|step| transform(step, facts)).collect()),
        "sinks": sorted(job.sinks.iter().map(sink).collect()),
    });
    let functions = sorted(job.functions.iter().map(|step| function(step, facts)).collect());
    add(&mut form, "functions", Value::Array(functions));
    form
}

fn function(step: &FunctionStep, facts: &Facts<'_>) -> Value {
    let name = step.name.value.as_str();
    let settings = step.settings.as_object().into_iter().flatten();
    let what: Map<String, Value> = settings
        .filter(|(key, _)| !HOW_WORKERS_RUN.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    json!({"name": name, "function": what, "code": (facts.code)(name)})
}

fn source(step: &SourceStep, facts: &Facts<'_>) -> Value {
    let name = step.name.value.as_str();
    let mut settings = Map::new();
    for (key, value) in step.settings.as_object().into_iter().flatten() {
        let place = facts.registry.sources.iter().find(|entry| entry.spec.name == key);
        match place {
            // These settings of a database say what is read; the others say how.
            Some(place) if place.rows => {
                let what = ["table", "query", "if_missing"]
                    .into_iter()
                    .filter_map(|key| Some((key.to_owned(), value.get(key)?.clone())));
                settings.insert(key.clone(), Value::Object(what.collect()));
            }
            // What a program gives depends on its words.
            Some(place) if place.spec.name == COMMAND => {
                let words = value.get("run").unwrap_or(value);
                settings.insert(key.clone(), words.clone());
            }
            Some(_) => {}
            None if NO_PART.contains(&key.as_str()) || IN_OTHER_WORDS.contains(&key.as_str()) => {}
            None => drop(settings.insert(key.clone(), value.clone())),
        }
    }
    settings.retain(|_, value| !is_empty(value));
    let read: Vec<String> = step.read.iter().map(|pattern| without_password(&pattern.value)).collect();
    let columns = columns((facts.columns)(name));
    let mut entry = json!({"name": name, "read": read, "format": (facts.format)(name), "columns": columns});
    add(&mut entry, "settings", Value::Object(settings));
    add(&mut entry, "members", json!(step.members));
    add(&mut entry, "sorted_by", keys(&step.sorted_by));
    let incremental = match &step.incremental_by {
        Some(by) => json!({"by": by.by}),
        None => flag(step.incremental),
    };
    add(&mut entry, "incremental", incremental);
    let drift = match step.on_drift {
        OnDrift::Fail => Value::Null,
        OnDrift::Null => json!("null"),
        OnDrift::Widen => json!("widen"),
    };
    add(&mut entry, "on_drift", drift);
    add(&mut entry, "rejecting", rejecting(&step.checks));
    add(&mut entry, "validate", if step.validate == Validate::All { json!("all") } else { Value::Null });
    entry
}

fn transform(step: &TransformStep, facts: &Facts<'_>) -> Value {
    let name = step.name.value.as_str();
    let mut entry = json!({"name": name, "columns": computed_columns((facts.columns)(name))});
    let (kind, what) = relation(&step.rows, &step.settings);
    entry[kind] = what;
    add(&mut entry, "code", (facts.code)(name));
    add(&mut entry, "sorted_by", keys(&step.sorted_by));
    add(&mut entry, "rejecting", rejecting(&step.checks));
    entry
}

/// The rules by which rows are left out. Other checks change no rows: a run that failed for one resumes without it.
fn rejecting(checks: &[Check]) -> Value {
    let rejecting = checks.iter().filter(|check| check.severity == CheckSeverity::Reject);
    rejecting.map(|check| rule(&check.rule)).collect()
}

/// What a check of single rows looks at, whatever the layout of its SQL.
fn rule(rule: &Rule) -> Value {
    match rule {
        Rule::Sql(condition) => json!(["sql", text_of(&condition.value)]),
        other => described(other),
    }
}

/// The name of an operation and what there is to say of it. The names are stored: they do not change, whatever the
/// transforms are called that compose them. `settings` are those of the entry.
fn relation<'a>(rows: &'a Relation, settings: &Value) -> (&'a str, Value) {
    let mut what = json!({});
    let read = |from: &Relation| match from {
        Relation::Entry(name) => json!(name.as_str()),
        other => {
            let (kind, what) = relation(other, settings);
            json!({kind: what})
        }
    };
    if let [from] = rows.inputs()[..]
        && !matches!(rows, Relation::Union { .. })
    {
        add(&mut what, "from", read(from));
    }
    let kind = match rows {
        Relation::Entry(name) => return ("entry", json!(name.as_str())),
        Relation::Query(query) => return ("sql", text_of(query.as_str())),
        Relation::Filter { condition, .. } => {
            add(&mut what, "where", text_of(condition.as_str()));
            "filter"
        }
        Relation::Project { columns, .. } => {
            let chosen = columns.iter().map(|column| json!([column.name, text_of(column.expression.as_str())]));
            add(&mut what, "columns", chosen.collect());
            "select"
        }
        Relation::Union { of, by, distinct } => {
            add(&mut what, "of", of.iter().map(read).collect());
            add(&mut what, "by", if *by == UnionBy::Position { json!("position") } else { Value::Null });
            add(&mut what, "distinct", flag(*distinct));
            "union"
        }
        Relation::Sort { by, limit, distinct, stable, from: _, pool: _ } => {
            add(&mut what, "by", by.iter().map(sort_key).collect());
            add(&mut what, "limit", json!(limit));
            add(&mut what, "distinct", distinct.as_ref().map_or(Value::Null, one_of));
            add(&mut what, "stable", flag(*stable));
            "sort"
        }
        Relation::Dedupe { distinct, order, .. } => {
            add(&mut what, "distinct", one_of(distinct));
            add(&mut what, "order", order.iter().map(sort_key).collect());
            "dedupe"
        }
        Relation::Map { transform, .. } => {
            let settings = settings.as_object().into_iter().flatten().filter(|(key, _)| *key != "from");
            add(&mut what, "settings", settings.map(|(key, value)| (key.clone(), value.clone())).collect());
            transform.name()
        }
        Relation::Work { workers, .. } => {
            let settings = settings.as_object().into_iter().flatten();
            let settings = settings.filter(|(key, _)| !HOW_WORKERS_RUN.contains(&key.as_str()));
            add(&mut what, "settings", settings.map(|(key, value)| (key.clone(), value.clone())).collect());
            workers.name()
        }
        Relation::Lookup { from, within, lookup } => {
            add(&mut what, "from", read(from));
            add(&mut what, "in", read(within));
            for (key, value) in looked_up(lookup) {
                add(&mut what, key, value);
            }
            "lookup"
        }
    };
    (kind, what)
}

/// What there is to say of a lookup.
fn looked_up(lookup: &Lookup) -> [(&'static str, Value); 5] {
    let on = lookup.on.iter().map(|one| match &one.with {
        MatchWith::Equal(column) => json!([one.column.as_str(), column.as_str()]),
        MatchWith::Range { from, before } => {
            let [from, before] = [from, before].map(|bound| bound.as_ref().map(|bound| bound.as_str()));
            json!([one.column.as_str(), from, before])
        }
    });
    let take = lookup.take.iter().map(|one| json!([one.name.as_str(), one.column.as_str()]));
    let miss = match &lookup.miss {
        Miss::Fail => Value::Null,
        Miss::Reject => json!("reject"),
        Miss::Null => json!("null"),
        Miss::Drop => json!("drop"),
        Miss::Value(values) => values.iter().map(|(name, value)| json!([name, value])).collect(),
    };
    let duplicate = match lookup.duplicate {
        Duplicate::Fail => Value::Null,
        Duplicate::First => json!("first"),
        Duplicate::All => json!("all"),
    };
    let order = lookup.order_by.iter().map(sort_key).collect();
    [("on", on.collect()), ("take", take.collect()), ("miss", miss), ("duplicate", duplicate), ("order", order)]
}

fn sink(step: &SinkStep) -> Value {
    let mut entry = json!({
        "name": step.name.value,
        "from": step.from.value,
        "target": without_password(&step.sink.target()),
    });
    for key in ["table", "mode"] {
        let value = step.settings.get(key).cloned().unwrap_or_default();
        // `append` is the default of databases, not of files.
        let is_default = key == "mode" && value == "append" && step.entry.formats == SinkFormats::None;
        add(&mut entry, key, if is_default { Value::Null } else { value });
    }
    let stream = step.settings.get("redis").and_then(|redis| redis.get("stream"));
    add(&mut entry, "stream", stream.cloned().unwrap_or_default());
    // What is compared with a table, and what happens to the rest of it.
    for key in ["missing", "scope", "valid_from", "valid_to", "as_of"] {
        add(&mut entry, key, step.settings.get(key).cloned().unwrap_or_default());
    }
    entry
}

/// Adds a value unless it is empty: empty values are equal to missing ones.
fn add(entry: &mut Value, key: &str, value: Value) {
    if !is_empty(&value) {
        entry[key] = value;
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
        _ => false,
    }
}

fn flag(is: bool) -> Value {
    if is { json!(true) } else { Value::Null }
}

fn text_of(sql: &str) -> Value {
    json!(normalised(sql))
}

fn key(expression: &str, descending: bool, nulls_first: bool) -> Value {
    json!([text_of(expression), descending, nulls_first])
}

fn keys(keys: &[millstream_job::SortKey]) -> Value {
    keys.iter().map(|one| key(&one.expression.value, one.descending, one.nulls_first)).collect()
}

fn sort_key(one: &SortKey) -> Value {
    key(one.expression.as_str(), one.descending, one.nulls_first)
}

fn one_of(Distinct { by, keep }: &Distinct) -> Value {
    let keep = keep.map(|keep| match keep {
        Keep::First => "first",
        Keep::Last => "last",
    });
    json!([by.iter().map(|same| text_of(same.as_str())).collect::<Vec<_>>(), keep])
}

/// A path or URL without a password, whether it has one or not.
fn without_password(url: &str) -> String {
    redact::url(url).replacen(":***@", "@", 1)
}

/// Names and types. Nullability is left out, since rows do not depend on it.
fn columns(schema: Option<SchemaRef>) -> Value {
    let Some(schema) = schema else { return Value::Null };
    schema.fields().iter().map(|field| json!([field.name(), type_word(field.data_type())])).collect()
}

/// The columns of a transform. One that its SQL does not name has a name of DataFusion's (`s.id + Int64(1)`), which may
/// change: its place and its type stand for it.
fn computed_columns(schema: Option<SchemaRef>) -> Value {
    let is_named =
        |name: &Value| name.as_str().is_some_and(|name| name.chars().all(|one| one.is_alphanumeric() || one == '_'));
    let mut columns = columns(schema);
    let names = columns.as_array_mut().into_iter().flatten().map(|column| &mut column[0]);
    names.filter(|name| !is_named(name)).for_each(|name| *name = Value::Null);
    columns
}

/// The name of a type. It must never change. Types that hold the same values in different layouts have the same name.
fn type_word(data_type: &DataType) -> String {
    let unit = |unit: &TimeUnit| match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    };
    match data_type {
        DataType::Null => "null".to_owned(),
        DataType::Boolean => "bool".to_owned(),
        DataType::Int8 => "int8".to_owned(),
        DataType::Int16 => "int16".to_owned(),
        DataType::Int32 => "int32".to_owned(),
        DataType::Int64 => "int64".to_owned(),
        DataType::UInt8 => "uint8".to_owned(),
        DataType::UInt16 => "uint16".to_owned(),
        DataType::UInt32 => "uint32".to_owned(),
        DataType::UInt64 => "uint64".to_owned(),
        DataType::Float16 => "float16".to_owned(),
        DataType::Float32 => "float32".to_owned(),
        DataType::Float64 => "float64".to_owned(),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "utf8".to_owned(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            "binary".to_owned()
        }
        DataType::Date32 | DataType::Date64 => "date".to_owned(),
        DataType::Time32(of) | DataType::Time64(of) => format!("time({})", unit(of)),
        DataType::Timestamp(of, None) => format!("timestamp({})", unit(of)),
        DataType::Timestamp(of, Some(zone)) => format!("timestamp({}, {zone})", unit(of)),
        DataType::Duration(of) => format!("duration({})", unit(of)),
        DataType::Interval(_) => "interval".to_owned(),
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => format!("decimal({precision}, {scale})"),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _) => format!("list({})", type_word(item.data_type())),
        DataType::Struct(fields) => {
            let member = |name: &str, of: &DataType| format!("{} {}", Value::from(name), type_word(of));
            let members: Vec<_> = fields.iter().map(|field| member(field.name(), field.data_type())).collect();
            format!("struct({})", members.join(", "))
        }
        DataType::Map(entries, _) => format!("map({})", type_word(entries.data_type())),
        DataType::Dictionary(_, values) => type_word(values),
        DataType::RunEndEncoded(_, values) => type_word(values.data_type()),
        DataType::Union(fields, _) => {
            let members: Vec<_> = fields.iter().map(|(_, field)| type_word(field.data_type())).collect();
            format!("union({})", members.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use arrow::datatypes::{Field, Schema};

    use super::*;
    use crate::Engine;
    use crate::parse::Variables;

    fn job(text: &str) -> Job {
        let (set, environment) = (BTreeMap::new(), |_: &str| None);
        let engine = Engine::builder().build().expect("an engine");
        let loaded = engine.parse("job.yaml", text, Variables { set: &set, environment: &environment, now: 0 }, false);
        // What cannot run for other reasons has a normal form all the same.
        loaded.job.or(loaded.sound).unwrap_or_else(|| panic!("{text}: {:?}", loaded.lints))
    }

    /// The normal form where each entry has these columns.
    fn form_with(text: &str, columns: &[(&str, DataType)]) -> Value {
        let fields: Vec<Field> = columns.iter().map(|(name, of)| Field::new(*name, of.clone(), true)).collect();
        let schema = Arc::new(Schema::new(fields));
        let (registry, of) = (crate::registry(), |_: &str| Some(Arc::clone(&schema)));
        let (format, code) = (|_: &str| Some("csv".to_owned()), |_: &str| Value::Null);
        normal_form(&job(text), &Facts { columns: &of, format: &format, code: &code, registry: &registry })
    }

    fn form(text: &str) -> Value {
        form_with(text, &[("id", DataType::Int64), ("name", DataType::Utf8View)])
    }

    const JOB: &str = "\
sources:
  s: {read: 'in/*.csv', csv: {delimiter: ;, columns: {id: int64, name: utf8}}}
  p: {read: 'postgres://etl:secret@db.example/shop', postgres: {query: SELECT 1}}
transforms:
  t: {sql: 'SELECT id, name FROM s WHERE id > 1'}
  f: {filter: {from: t, where: 'id < 7'}}
  c: {select: {from: f, columns: [id, 'upper(name) AS name']}}
  u: {union: [c, p]}
  o: {sort: {from: u, by: [id desc, name], limit: 9}}
  d: {dedupe: {from: o, by: [id], keep: last, order: name}}
sinks:
  db: {from: c, write: 'mysql://etl:secret@db.example/shop', table: posts}
  file: {from: d, write: out.csv}
";

    /// DataFusion names them, and may name them otherwise one day.
    #[test]
    fn names_of_unnamed_columns_are_no_part() {
        let of = |name: &str| form_with(JOB, &[(name, DataType::Int64)])["transforms"].clone();
        assert_eq!(of("s.id + Int64(1)"), of("s.id + 1"));
        assert_ne!(of("id"), of("ID"));
    }

    #[test]
    fn what_rows_do_not_depend_on_is_no_change() {
        for (before, after) in [
            ("sources:", "# A comment\nsources:"),
            ("SELECT id, name FROM s WHERE id > 1", "select ID,name from S /* all */ where id>1 -- of them"),
            ("'id < 7'", "ID<7"),
            ("upper(name) AS name", "UPPER( name ) as name"),
            ("read: 'in/*.csv'", "read: ['in/*.csv'], max_rejects: 5, on_error: skip, allow_empty: true"),
            ("read: 'in/*.csv'", "read: in/*.csv, on_drift: fail, validate: used, members: [], incremental: false"),
            ("read: 'in/*.csv'", "read: in/*.csv, limits: {ratio: 7}"),
            ("read: 'in/*.csv'", "read: in/*.csv, ready: {min_age: 5m, marker: '{name}.ok'}"),
            ("{query: SELECT 1}", "{query: SELECT 1, connections: 3}"),
            (
                "etl:secret@db.example/shop', postgres: {",
                "etl@db.example/shop', postgres: {password: {secret: env:PG}, ",
            ),
            (
                "etl:secret@db.example/shop', table: posts",
                "etl@db.example/shop', table: posts, password: {secret: env:MY}",
            ),
            ("table: posts", "table: posts, mode: append, connections: 2, batch_rows: 7, retries: 1, max_rejects: 1%"),
            ("union: [c, p]", "union: {of: [c, p], by: name, distinct: false}"),
            ("by: [id desc, name]", "by: [ID desc nulls first, name asc nulls last], stable: false"),
            ("{from: d, write: out.csv}", "{from: d, write: out.csv, csv: {delimiter: ;}}"),
        ] {
            let changed = JOB.replace(before, after);
            assert_ne!(changed, JOB, "{before}");
            assert_eq!(form(&changed), form(JOB), "{after}");
        }
        // The order of entries.
        let (first, second) = ("  f: {filter: {from: t, where: 'id < 7'}}\n", "  u: {union: [c, p]}\n");
        let other = JOB.replace(first, "").replace(second, &format!("{second}{first}"));
        assert_eq!(second_of(&other), second_of(JOB));
        // The layout of values in memory.
        let layouts = [("id", DataType::Int64), ("name", DataType::LargeUtf8)];
        assert_eq!(form_with(JOB, &layouts), form(JOB));
    }

    fn second_of(text: &str) -> String {
        second(&form(text))
    }

    #[test]
    fn what_rows_may_depend_on_is_a_change() {
        for (before, after) in [
            ("read: 'in/*.csv'", "read: 'in/*.tsv'"),
            ("read: 'in/*.csv'", "read: ['in/*.csv', more.csv]"),
            ("read: 'in/*.csv'", "read: 'in/*.csv', members: a.csv"),
            ("read: 'in/*.csv'", "read: 'in/*.csv', on_drift: null"),
            ("read: 'in/*.csv'", "read: 'in/*.csv', validate: all"),
            ("read: 'in/*.csv'", "read: 'in/*.csv', add: [_uri]"),
            ("read: 'in/*.csv'", "read: 'in/*.csv', sorted_by: id"),
            ("read: 'in/*.csv'", "read: 'in/*.csv', incremental: true"),
            ("delimiter: ;", "delimiter: ','"),
            ("delimiter: ;", "delimiter: ;, skip_lines: 1"),
            ("{query: SELECT 1}", "{query: SELECT 2}"),
            ("{query: SELECT 1}", "{table: a}"),
            ("{query: SELECT 1}", "{query: SELECT 1}, incremental: {by: at}"),
            ("id > 1", "id > 2"),
            ("id, name FROM s", "name, id FROM s"),
            ("id < 7", "id < 8"),
            ("upper(name) AS name", "lower(name) AS name"),
            ("upper(name) AS name", "upper(name) AS title"),
            ("union: [c, p]", "union: [p, c]"),
            ("union: [c, p]", "union: {of: [c, p], by: position}"),
            ("union: [c, p]", "union: {of: [c, p], distinct: true}"),
            ("id desc, name]", "id, name]"),
            ("id desc, name]", "id desc nulls last, name]"),
            ("limit: 9", "limit: 10"),
            (", limit: 9", ""),
            ("limit: 9", "limit: 9, unique: true"),
            ("limit: 9", "limit: 9, stable: true"),
            ("keep: last", "keep: first"),
            ("order: name", "order: id"),
            ("table: posts", "table: other"),
            ("table: posts", "table: posts, mode: replace"),
            ("mysql://etl:secret@db.example/shop", "mysql://etl:secret@db.example/other"),
            ("{from: c, write", "{from: f, write"),
            ("db: {from", "bd: {from"),
        ] {
            let changed = JOB.replace(before, after);
            assert_ne!(changed, JOB, "{before}");
            assert_ne!(second_of(&changed), second_of(JOB), "{after}");
        }
        for columns in [
            [("id", DataType::Int32), ("name", DataType::Utf8)],
            [("ID", DataType::Int64), ("name", DataType::Utf8)],
            [("name", DataType::Utf8), ("id", DataType::Int64)],
        ] {
            assert_ne!(form_with(JOB, &columns), form(JOB), "{columns:?}");
        }
    }

    #[test]
    fn rows_are_told_by_a_column_however_late_they_are_read() {
        let of = |by: &str| form(&JOB.replace("{query: SELECT 1}", &format!("{{query: SELECT 1}}, incremental: {by}")));
        assert_eq!(of("{by: at}"), of("{by: at, lag: 1h}"));
        assert_ne!(of("{by: at}"), of("{by: other}"));
    }

    /// Fingerprints as they are stored in books and ledgers.
    ///
    /// If this fails, the normal form has changed, and runs that were begun before cannot be resumed. Undo the change
    /// if it was not intended. If it was, keep the functions of version 2 and this test, add version 3, and compare
    /// with both in [`Fingerprints::compare`] and [`Fingerprints::compare_notes`].
    #[test]
    fn fingerprints_stay() {
        let nested = "\
sources: {a: {read: [x.jsonl, 'https://u:p@h.example/y.jsonl'], json: {}, add: [_uri, _line], on_drift: widen}}
sinks: {b: {from: a, write: 'sqlite:out.db', table: T, mode: truncate}}
";
        let columns = [
            ("a b", DataType::Decimal128(10, 2)),
            ("at", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))),
            ("l", DataType::List(Arc::new(Field::new("item", DataType::Date32, true)))),
            ("s", DataType::Struct(vec![Field::new("x\"", DataType::Float64, true)].into())),
        ];
        let small = "sources: {a: {read: x.csv}}\nsinks: {b: {from: a, write: 'sqlite:out.db', table: t}}\n";
        let forms = [form(JOB), form_with(nested, &columns), form(small)];
        let golden = [
            "v2:8da221113fcdc2590d347fff4d9ca970",
            "v2:9f591dd85d91e5aa328ad73fc1917578",
            "v2:2bc9e809865720d25fbee0aeb9a9aac5",
        ];
        assert_eq!(forms.each_ref().map(second), golden, "{forms:#?}");
    }

    /// What a transform composes is part of the form in all its depth.
    #[test]
    fn operations_of_operations_are_in_the_form() {
        let condition = |text: &str| Relation::Filter { from: Relation::of("s".into()), condition: text.into() };
        let composed = |from: Relation| Relation::Dedupe {
            from: Box::new(from),
            distinct: Distinct::default(),
            order: Vec::new(),
        };
        let one = composed(condition("a>1"));
        let (kind, what) = relation(&one, &json!({"from": "s"}));
        let expected = json!({"from": {"filter": {"from": "s", "where": "a > 1"}}, "distinct": [[], null]});
        assert_eq!((kind, what), ("dedupe", expected));
        let both = Relation::Union {
            of: vec![condition("b"), Relation::Entry("t".into())],
            by: UnionBy::Name,
            distinct: false,
        };
        let (kind, what) = relation(&both, &Value::Null);
        assert_eq!((kind, what), ("union", json!({"of": [{"filter": {"from": "s", "where": "b"}}, "t"]})));
    }

    #[test]
    fn what_a_lookup_gives_depends_on_all_it_says() {
        let of = |lookup: &str| {
            let text = "sources: {s: {read: a.csv}, r: {read: b.csv}}\nsinks: {o: {from: l, write: c.csv}}\n\
                        transforms: {l: {lookup: {from: s, in: r, LOOKUP}}}\n";
            form(&text.replace("LOOKUP", lookup))
        };
        let plain = "on: {id: id}, take: {x: name}";
        assert_eq!(
            of(plain)["transforms"][0]["lookup"],
            json!({
                "from": "s",
                "in": "r",
                "on": [["id", "id"]],
                "take": [["x", "name"]],
            })
        );
        assert_eq!(of("on: [id], take: {x: name}, miss: fail, duplicate: fail"), of(plain));
        let others = [
            "on: {id: key}, take: {x: name}",
            "on: {id: {from: id}}, take: {x: name}",
            "on: {id: {before: id}}, take: {x: name}",
            "on: {id: id}, take: {y: name}",
            "on: {id: id}, take: {x: title}",
            "on: {id: id}, take: {x: name}, miss: null",
            "on: {id: id}, take: {x: name}, miss: {value: {x: a}}",
            "on: {id: id}, take: {x: name}, miss: {value: {x: b}}",
            "on: {id: id}, take: {x: name}, duplicate: all",
            "on: {id: id}, take: {x: name}, duplicate: first, order_by: a",
            "on: {id: id}, take: {x: name}, duplicate: first, order_by: a desc",
        ];
        let forms: Vec<Value> = others.iter().map(|lookup| of(lookup)).collect();
        for (at, form) in forms.iter().enumerate() {
            assert_ne!(*form, of(plain), "{}", others[at]);
            assert!(!forms[..at].contains(form), "{}", others[at]);
        }
    }

    #[test]
    fn files_of_code_that_have_changed_are_named() {
        let function = json!({"function": "f", "code": "01", "version": null});
        let files = files_of(&json!({"python": "lib/features.py:f"}), &function);
        assert_eq!(Value::Object(files), json!({"lib/features.py": "01"}));
        let command = json!({"command": ["./step", "a", "b.txt"], "files": ["02", null, "03"], "version": null});
        let files = files_of(&json!({"command": ["./step", "a", "b.txt"]}), &command);
        assert_eq!(Value::Object(files), json!({"./step": "02", "b.txt": "03"}));
        let now = json!({"t": {"a.py": "01", "b.py": "02", "c.py": "03"}, "u": {"a.py": "01"}});
        let before = json!({"t": {"a.py": "01", "b.py": "04"}});
        assert_eq!(changed_files(&before, &now), ["b.py of `t`"]);
        assert_eq!(changed_files(&Value::Null, &now), Vec::<String>::new(), "an older version has stored none");
    }

    fn fingerprints(first: &str, current: &str) -> Fingerprints {
        let first = first.to_owned();
        Fingerprints { first_guessed: first.clone(), first, current: current.to_owned() }
    }

    #[test]
    fn fingerprints_are_compared_with_those_of_their_version() {
        let ours = fingerprints("0123456789abcdef", "v2:00");
        for (written, expected) in [
            ("0123456789abcdef", Compared::Same),
            ("fedcba9876543210", Compared::Changed),
            ("v2:00", Compared::Same),
            ("v2:01", Compared::Changed),
            ("v3:00", Compared::Newer),
        ] {
            assert_eq!(ours.compare(written), expected, "{written}");
        }
    }

    #[test]
    fn notes_are_compared_with_those_of_their_version() {
        let ours = fingerprints("0123456789abcdef", "v2:00");
        let first = Chunk { unit: NOTE.to_owned(), number: hash("0123456789abcdef") >> 2 };
        let of = |number| Chunk { unit: NOTE.to_owned(), number };
        let newer = of(WITH_VERSION | (3 << VERSION_BIT) | 7);
        let another = fingerprints("x", "v2:01");
        assert!(ours.note().number < 1 << 63 && ours.note().number >> VERSION_BIT == 0x102);
        for (notes, expected) in [
            (vec![], Compared::Same),
            (vec![first.clone()], Compared::Same),
            (vec![ours.note()], Compared::Same),
            (vec![first.clone(), ours.note()], Compared::Same),
            (vec![newer.clone(), ours.note()], Compared::Same),
            (vec![another.note()], Compared::Changed),
            (vec![of(hash("x") >> 2)], Compared::Changed),
            (vec![newer], Compared::Newer),
        ] {
            let written = notes.iter().map(|chunk| (chunk.unit.clone(), chunk.number));
            let written = WrittenChunks::new(written, str::to_owned);
            assert_eq!(ours.compare_notes(&written), expected, "{notes:?}");
        }
    }
}
