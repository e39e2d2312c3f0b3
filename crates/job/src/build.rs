//! From linted entries to steps: every entry by itself. How entries depend on each other is [`crate::links`]'s.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_core::format::Format;
use millstream_core::hint::{did_you_mean, nearest};
use millstream_core::registry::{FormatEntry, SinkEntry, SinkFormats, TransformEntry};
use millstream_core::reject::MaxRejects;
use millstream_core::sink::{Sink, SinkParts};
use millstream_core::spec::Fault;
use millstream_core::store::Store;
use millstream_core::transform::{KEYS_BESIDE, SortTerm, TextKind};
use millstream_core::{Registry, redact};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::checks::{Checked, checks};
use crate::connections::{Connections, says_connections};
use crate::entries::{CHECKS, COMMAND, CONTAINS, MAX_REJECTS, SORTED_BY, SourceKeys};
use crate::files;
use crate::graph::{Check, FunctionStep, Located, Selected, SinkStep, SortKey, SourceStep, TransformStep};
use crate::lint::{Lint, LintCode};
use crate::schema::{FUNCTION, SOURCE, TRANSFORM, compressions, resolve, sink_definition};
use crate::settings::Settings;
use crate::text::{JobText, Span};
use crate::tree::{Entry, Kind, Node, Scalar, Typed};
use crate::unsupported::Unsupported;
use crate::walk::{Found, Walker};
use crate::windows;

/// Builds the steps of one file and collects what is wrong.
pub struct Builder<'a> {
    /// The file.
    pub text: &'a JobText,
    /// All components.
    pub registry: &'a Registry,
    /// The definitions of the schema.
    pub definitions: &'a Map<String, Value>,
    /// Whether sources are incremental that do not say otherwise.
    pub incremental: bool,
    /// How many connections the entries may have open.
    pub connections: Connections,
    /// What was found so far.
    pub found: Found,
}

impl<'a> Builder<'a> {
    /// Builds what stands in `text`, which has found nothing wrong so far.
    pub fn new(text: &'a JobText, registry: &'a Registry, definitions: &'a Map<String, Value>) -> Self {
        let (connections, found) = (Connections::default(), Found::default());
        Builder { text, registry, definitions, incremental: false, connections, found }
    }

    /// The value of a node. What the schema allows can be read, but for what types check themselves.
    pub(crate) fn read<T: DeserializeOwned>(&mut self, node: &Node) -> Option<T> {
        match serde_json::from_value(node.to_value()) {
            Ok(keys) => Some(keys),
            Err(cause) => {
                self.found.lints.push(self.text.error(node.span, cause.to_string()));
                None
            }
        }
    }

    fn error(&mut self, span: Span, what: impl Into<String>, hint: impl Into<String>) {
        self.found.lints.push(self.text.error(span, what).hint(hint));
    }

    /// Lints `entry` against a definition. Whether nothing was wrong.
    pub fn walk(&mut self, entry: &Entry, definition: &str) -> bool {
        let walker = Walker { text: self.text, definitions: self.definitions };
        let Some(schema) = self.definitions.get(definition) else { return true };
        if !matches!(entry.value.kind, Kind::Block(_)) {
            let what = if entry.value.is_null() {
                format!("`{}` is empty", entry.key)
            } else {
                format!("expected a block of keys for `{}`, found {}", entry.key, crate::walk::in_words(&entry.value))
            };
            let keys: Vec<&str> =
                schema["properties"].as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
            self.error(entry.report_span(), what, format!("its keys can be: {}", keys.join(", ")));
            return false;
        }
        let mut found = walker.entry(entry, schema);
        let good = found.lints.is_empty() && !entry.value.has_unknown();
        self.found.lints.append(&mut found.lints);
        self.found.exposed.append(&mut found.exposed);
        self.found.secrets.append(&mut found.secrets);
        good
    }

    fn faults(&mut self, faults: Vec<Fault>, node: &Node, here: Span) {
        for fault in faults {
            let span = node.at_path(&fault.path, here);
            self.fault(fault, span);
        }
    }

    fn fault(&mut self, fault: Fault, span: Span) {
        let mut lint = self.text.error(span, fault.what);
        lint.hint = fault.hint;
        self.found.lints.push(lint);
    }

    /// An entry of `sources`.
    pub fn source(&mut self, entry: &Entry) -> Option<SourceStep> {
        let before = self.found.lints.len();
        self.walk(entry, SOURCE);
        self.explain_left_out(entry, before);
        let node = &entry.value;
        let read = texts(node.get("read"));
        for (index, pattern) in read.iter().enumerate() {
            self.pattern(pattern);
            if read[..index].iter().any(|earlier| earlier.value == pattern.value) {
                let what = format!("`read` names {} twice: its rows would be read twice", redact::url(&pattern.value));
                self.found.lints.push(self.text.warning(pattern.span, what).hint("remove one of them"));
            }
        }
        let format = self.format(entry, None);
        let inputs = self.inputs(entry, &read);
        let sorted_by = self.keys_of(node.get("sorted_by"));
        let checks = self.step_checks(node);
        if self.found.lints[before..].iter().any(Lint::is_error) || node.has_unknown() {
            return None;
        }
        let is_database = |one: &Located<String>| self.registry.source_for(&one.value).is_some_and(|kind| kind.rows);
        if let (true, Some(allowed)) = (read.iter().any(is_database), node.get(MAX_REJECTS)) {
            let what = "a database's rows are not records that can be rejected";
            let hint = "change or filter values that cannot be read in its `query`";
            self.found.lints.push(self.text.error(allowed.span, what).hint(hint));
            return None;
        }
        let mut literals = Vec::new();
        node.get(CONTAINS).iter().for_each(|contains| all_texts(contains, &mut literals));
        if let (true, Some(contains)) = (read.iter().any(is_database), node.entry(CONTAINS)) {
            let what = "a database's rows have no text that could be searched before they are parsed";
            self.error(contains.key_span, what, "filter in its `query`, or use a `filter` transform");
            return None;
        }
        let keys: SourceKeys = self.keys(node)?;
        let says = node.get("incremental").is_some();
        let incremental = if says { keys.incremental.is_some() } else { self.incremental };
        let mut wrong = files::lints(self.text, self.registry, node, &read, &keys, incremental);
        wrong.extend(windows::lints(self.text, self.registry, node, &read, &keys));
        if !wrong.is_empty() {
            self.found.lints.extend(wrong);
            return None;
        }
        let step = SourceStep {
            name: name_of(entry),
            read,
            inputs,
            limits_connections: self.connections.is_limited() || says_connections(&entry.value),
            format,
            members: keys.members.into_vec(),
            limits: keys.limits,
            allow_empty: keys.allow_empty,
            empty_files: keys.empty_files,
            on_drift: keys.on_drift,
            on_error: keys.on_error,
            validate: keys.validate,
            contains: keys.contains,
            literals,
            add: keys.add,
            max_rejects: keys.max_rejects,
            incremental,
            incremental_by: keys.incremental.by().cloned(),
            selected: selected(node, self.registry),
            ready: keys.ready,
            on_change: keys.on_change,
            after_load: keys.after_load,
            sorted_by,
            checks,
            settings: without(node, &[CHECKS]),
        };
        let lints = step.format.as_ref().map(|format| step.contains_lints(self.text, format.as_ref()));
        let lints = lints.unwrap_or_default();
        let is_good = !lints.iter().any(Lint::is_error);
        self.found.lints.extend(lints);
        is_good.then_some(step)
    }

    /// A lint for the block of a source that the build leaves out.
    fn explain_left_out(&mut self, entry: &Entry, before: usize) {
        for lint in self.found.lints[before..].iter_mut().filter(|lint| lint.code == LintCode::UnknownKey) {
            let block = entry.value.entries().iter().find(|block| lint.is_at(block.key_span));
            if let Some(left_out) = block.and_then(|block| self.registry.source_left_out(&block.key)) {
                lint.what = left_out.what();
                lint.hint = Some(left_out.hint());
            }
        }
    }

    /// What the schema allows parses, or the schema is wrong: then the parser's words are the lint.
    fn keys<T: DeserializeOwned>(&mut self, node: &Node) -> Option<T> {
        match serde_json::from_value(node.to_value()) {
            Ok(keys) => Some(keys),
            Err(cause) => {
                self.found.lints.push(self.text.error(node.span, cause.to_string()));
                None
            }
        }
    }

    fn pattern(&mut self, pattern: &Located<String>) {
        let text = &pattern.value;
        if text.trim().is_empty() {
            return self.error(pattern.span, "the pattern is empty", "write a path, a glob, a URL, `@FILE` or `-`");
        }
        if text == "@" {
            return self.error(pattern.span, "`@` names no list", "write `@FILE`, a file with one pattern a line");
        }
        if redact::url(text) != *text {
            let warning = self.text.warning(pattern.span, "this URL holds a password or a signature");
            self.found.lints.push(warning.hint("keep it out of the file: put `${NAME}` in its place, or use a secret"));
        }
        if let Some(left_out) = self.registry.source_left_out_for(text.trim_start_matches('@')) {
            return self.error(pattern.span, left_out.what(), left_out.hint());
        }
        match self.registry.source_for(text) {
            _ if text.starts_with('@') => {}
            Some(source) => {
                if let Err(fault) = (source.check)(text) {
                    self.fault(fault, pattern.span);
                }
            }
            None => {
                let schemes = schemes(self.registry.sources.iter().flat_map(|entry| entry.schemes).copied());
                let choices: Vec<&str> = schemes.iter().map(String::as_str).collect();
                let scheme = text.split("://").next().unwrap_or_default();
                let hint = match Unsupported::of(scheme) {
                    Some(place) => place.to_read(),
                    None => did_you_mean(&format!("{scheme}://"), "places to read from", &choices),
                };
                self.error(pattern.span, format!("no source reads `{scheme}://`"), hint);
            }
        }
    }

    /// Every kind of source, from its block or its defaults.
    fn inputs(
        &mut self,
        entry: &Entry,
        read: &[Located<String>],
    ) -> Vec<(&'static millstream_core::registry::SourceEntry, Arc<dyn millstream_core::source::Source>)> {
        let registry = self.registry;
        let is_list = read.iter().any(|pattern| pattern.value.starts_with('@'));
        let mut inputs = Vec::new();
        for kind in registry.sources.iter().copied() {
            let name = kind.spec.name;
            let is_used =
                read.iter().any(|pattern| registry.source_for(&pattern.value).is_some_and(|one| one.spec.name == name));
            let Some(block) = entry.value.entry(name) else {
                match (kind.build)(&self.connections.of_source(
                    self.block_schema(name),
                    self.definitions,
                    Value::Object(Map::new()),
                )) {
                    Ok(source) => inputs.push((kind, source)),
                    Err(faults) if is_used => {
                        let needs = faults.into_iter().map(|fault| fault.what).collect::<Vec<_>>().join("; ");
                        let what = format!("`{}` needs settings in a block `{name}`: {needs}", entry.key);
                        self.error(entry.key_span, what, format!("for example:\n{}", kind.spec.example.trim_end()));
                    }
                    Err(_) => {}
                }
                continue;
            };
            if !is_used && !is_list && !entry.value.has_unknown() && !read.is_empty() {
                self.unused(block, "nothing here is read that way", kind.schemes);
            }
            let (connections, schema, definitions) = (self.connections, self.block_schema(name), self.definitions);
            let build = |settings: &Value| (kind.build)(&connections.of_source(schema, definitions, settings.clone()));
            if let Some(source) = self.build(block, build) {
                inputs.push((kind, source));
            }
        }
        inputs
    }

    /// Warns of a block that is for places of these schemes only.
    fn unused(&mut self, block: &Entry, why: &str, for_schemes: &[&'static str]) {
        let lint = self.text.warning(block.key_span, format!("`{}` has no effect: {why}", block.key));
        let schemes = schemes(for_schemes.iter().copied());
        self.found.lints.push(lint.hint(format!("it is for: {}", schemes.join(", "))));
    }

    /// Builds a component from its block. Of a block that has faults already, only what the component says of the
    /// inside of its sound keys is told: what it says of them together would follow from those faults.
    fn build<T: ?Sized>(
        &mut self,
        block: &Entry,
        build: impl FnOnce(&Value) -> Result<Arc<T>, Vec<Fault>>,
    ) -> Option<Arc<T>> {
        let settings = if block.value.is_null() { Value::Object(Map::new()) } else { block.value.to_value() };
        let schema = self.block_schema(&block.key);
        let faulty = Self::faulty_keys(block, &schema.map_or_else(Vec::new, |schema| self.walked(block, schema)));
        let Some(faulty) = faulty else {
            return match build(&settings) {
                Ok(built) => Some(built),
                Err(faults) => {
                    self.faults(faults, &block.value, block.key_span);
                    None
                }
            };
        };
        let mut faults = build(&without(&block.value, &faulty)).err().unwrap_or_default();
        faults.retain(is_inside);
        self.faults(faults, &block.value, block.key_span);
        None
    }

    /// What the schema says of `entry`.
    fn walked(&self, entry: &Entry, schema: &Value) -> Vec<Lint> {
        Walker { text: self.text, definitions: self.definitions }.entry(entry, schema).lints
    }

    /// The keys of `block` in which there is one of `lints` or an unknown value; `None` if all is well.
    fn faulty_keys<'e>(block: &'e Entry, lints: &[Lint]) -> Option<Vec<&'e str>> {
        if lints.is_empty() && !block.value.has_unknown() {
            return None;
        }
        let entries = block.value.entries();
        let place = |entry: &Entry| (entry.key_span.line, entry.key_span.column);
        let is_faulty = |(index, entry): &(usize, &Entry)| {
            let next = entries.get(index + 1).map(place);
            let inside = |lint: &Lint| {
                (lint.line, lint.column) >= place(entry) && next.is_none_or(|next| (lint.line, lint.column) < next)
            };
            entry.value.has_unknown() || lints.iter().any(inside)
        };
        Some(entries.iter().enumerate().filter(is_faulty).map(|(_, entry)| entry.key.as_str()).collect())
    }

    fn block_schema(&self, name: &str) -> Option<&'a Value> {
        self.definitions.get(SOURCE)?.get("properties")?.get(name)
    }

    /// The format block of an entry; what the names of its files suggest is filled in where the block says nothing.
    fn format(&mut self, entry: &Entry, target: Option<&str>) -> Option<Arc<dyn Format>> {
        let registry = self.registry;
        let blocks: Vec<(&Entry, &'static FormatEntry)> = entry
            .value
            .entries()
            .iter()
            .filter_map(|block| {
                registry.formats.iter().copied().find(|one| one.spec.name == block.key).map(|one| (block, one))
            })
            .collect();
        for (second, _) in blocks.iter().skip(1) {
            let first = &blocks[0].0.key;
            self.error(
                second.key_span,
                format!("`{}` has two formats: `{first}` and `{}`", entry.key, second.key),
                "keep one of them",
            );
        }
        let (block, format) = *blocks.first()?;
        let suggested = match target {
            Some(target) => suggestion(registry, target, format),
            None => common_suggestion(registry, &texts(entry.value.get("read")), format),
        };
        self.build(block, |settings| (format.build)(&merged(suggested, settings)))
    }

    /// An entry of `sinks`.
    pub fn sink(&mut self, entry: &Entry) -> Option<SinkStep> {
        let before = self.found.lints.len();
        let node = &entry.value;
        let write = text(node.get("write"));
        let Some(kind) = self.sink_kind(entry, write.as_ref()) else {
            if write.is_none() {
                // Without a target nothing is known but what every sink has.
                let kind = self.registry.sinks.first()?;
                self.walk(entry, &sink_definition(kind));
                let shared = ["from", "write"];
                let strays: Vec<Span> = node
                    .entries()
                    .iter()
                    .filter(|one| nearest(&one.key, shared).is_none())
                    .map(|one| one.key_span)
                    .collect();
                let is_unknown = |lint: &Lint| lint.code == LintCode::UnknownKey;
                let is_stray = |lint: &Lint| is_unknown(lint) && strays.iter().any(|span| lint.is_at(*span));
                let found = self.found.lints.split_off(before);
                self.found.lints.extend(found.into_iter().filter(|lint| !is_stray(lint)));
            }
            return None;
        };
        let definition = sink_definition(kind);
        self.walk(entry, &definition);
        self.explain_foreign_keys(entry, kind, before);
        self.explain_block(entry, before);
        let write = write?;
        if redact::url(&write.value) != write.value {
            let warning = self.text.warning(write.span, "this target holds a password");
            self.found.lints.push(warning.hint("keep it out of the file: put `${NAME}` in its place, or use a secret"));
        }
        let format = self.sink_format(entry, kind, &write.value);
        let store = self.sink_store(entry, kind, &write);
        let checks = checks(node.get(CHECKS), Checked::Sink, self.text, &mut self.found.lints);
        if self.found.lints[before..].iter().any(Lint::is_error) || node.has_unknown() {
            return None;
        }
        let codec = self.sink_codec(node, kind, &write)?;
        let parts = SinkParts { target: write.value.clone(), format, codec, store };
        let schema = self.definitions.get(&definition);
        let settings = self.connections.of_sink(schema, self.definitions, self.sink_settings(node, kind));
        let sink: Arc<dyn Sink> = match (kind.build)(&settings, parts) {
            Ok(sink) => sink,
            Err(faults) => {
                self.faults(faults, node, entry.key_span);
                return None;
            }
        };
        let from = text(node.get("from"))?;
        let max_rejects = self.max_rejects(node);
        let settings = without(node, &["from", "write", CHECKS]);
        let mut texts = Vec::new();
        let own = node.entries().iter().filter(|entry| !["from", "write", CHECKS].contains(&entry.key.as_str()));
        own.for_each(|entry| all_texts(&entry.value, &mut texts));
        Some(SinkStep { name: name_of(entry), from, write, entry: kind, sink, max_rejects, checks, settings, texts })
    }

    fn sink_kind(&mut self, entry: &Entry, write: Option<&Located<String>>) -> Option<&'static SinkEntry> {
        let write = write?;
        if entry.value.get("write").is_some_and(Node::has_unknown) {
            return None;
        }
        if let Some(left_out) = self.registry.sink_left_out_for(&write.value) {
            self.error(write.span, left_out.what(), left_out.hint());
            return None;
        }
        let kind = self.registry.sink_for(&write.value);
        let scheme = write.value.split(':').next().unwrap_or_default();
        let is_stored = self.registry.store_for(&write.value).is_some() && write.value.contains("://");
        let is_path = kind.is_some_and(|kind| kind.schemes.contains(&"")) && !is_stored;
        let looks_like_a_scheme = write.value.contains(':') && is_scheme(scheme);
        if kind.is_some() && !(is_path && looks_like_a_scheme) {
            return kind;
        }
        let registry = self.registry;
        let schemes = targets(registry, registry.sinks.iter().copied());
        let choices: Vec<&str> = schemes.iter().map(String::as_str).collect();
        let mut hint = match Unsupported::of(scheme) {
            Some(place) => place.to_write(),
            None => did_you_mean(&format!("{scheme}:"), "places to write to", &choices),
        };
        if is_path {
            hint.push_str(&format!("; for a file of this name, write ./{}", write.value));
        }
        let slashes = if is_path { "" } else { "//" };
        self.error(write.span, format!("no sink writes to `{scheme}:{slashes}`"), hint);
        None
    }

    /// A key that this kind of sink lacks and another has is told as such.
    fn explain_foreign_keys(&mut self, entry: &Entry, kind: &SinkEntry, before: usize) {
        let registry = self.registry;
        for key in entry.value.entries() {
            let Some(lint) = self.found.lints[before..]
                .iter_mut()
                .find(|lint| lint.is_at(key.key_span) && lint.code == LintCode::UnknownKey)
            else {
                continue;
            };
            let is_format = registry.formats.iter().any(|one| one.spec.name == key.key) || key.key == "compress";
            if is_format && kind.formats == SinkFormats::None {
                lint.what = format!("`{}` is for files, and this sink writes to {}", key.key, kind.spec.name);
                lint.hint = Some("remove it".to_owned());
                continue;
            }
            let others: Vec<&str> = registry
                .sinks
                .iter()
                .filter(|other| {
                    self.definitions
                        .get(&sink_definition(other))
                        .is_some_and(|schema| schema["properties"].get(&key.key).is_some())
                })
                .map(|other| other.spec.name)
                .collect();
            if !others.is_empty() {
                lint.what = format!(
                    "`{}` is a key of {} sinks, and this one is a {} sink",
                    key.key,
                    others.join(" and "),
                    kind.spec.name
                );
                let write =
                    targets(registry, registry.sinks.iter().copied().filter(|one| others.contains(&one.spec.name)));
                lint.hint = Some(match write.is_empty() {
                    true => "remove it, or give a `command` in place of `write`".to_owned(),
                    false => format!("remove it, or start `write` with {}", write.join(" or ")),
                });
            }
        }
    }

    /// The program of a sink has no block, as that of a source may have.
    fn explain_block(&mut self, entry: &Entry, before: usize) {
        let Some(command) = entry.value.entry(COMMAND) else { return };
        if let Kind::Block(_) = command.value.kind {
            let of_block = |lint: &&mut Lint| lint.is_at(command.report_span());
            for lint in self.found.lints[before..].iter_mut().filter(of_block) {
                let form = "write the program and its arguments: command: [./publish, --all]";
                lint.hint = Some(format!("{form}; `env` and `timeout` stand beside it"));
            }
        }
    }

    fn sink_format(&mut self, entry: &Entry, kind: &SinkEntry, target: &str) -> Option<Arc<dyn Format>> {
        if kind.formats == SinkFormats::None {
            return None;
        }
        let has_block = self.registry.formats.iter().any(|one| entry.value.entry(one.spec.name).is_some());
        if has_block {
            return self.format(entry, Some(target));
        }
        let (format, ending) = self.registry.sink_format(kind, target)?;
        match (format.build)(&(format.suggested)(ending)) {
            Ok(format) => Some(format),
            Err(faults) => {
                self.faults(faults, &entry.value, entry.key_span);
                None
            }
        }
    }

    /// The store that the target is in, from its block or its defaults.
    fn sink_store(&mut self, entry: &Entry, kind: &SinkEntry, write: &Located<String>) -> Option<Arc<dyn Store>> {
        let registry = self.registry;
        if !kind.stores {
            return None;
        }
        let wanted = registry.store_for(&write.value);
        for other in registry.stores.iter().filter(|one| wanted.is_none_or(|wanted| wanted.spec.name != one.spec.name))
        {
            if let Some(block) = entry.value.entry(other.spec.name) {
                self.unused(block, "nothing here is written that way", other.schemes);
            }
        }
        let wanted = wanted?;
        if let Some(block) = entry.value.entry(wanted.spec.name) {
            return self.build(block, |settings| (wanted.build)(settings));
        }
        match (wanted.build)(&Value::Object(Map::new())) {
            Ok(store) => Some(store),
            Err(faults) => {
                self.faults(faults, &entry.value, entry.key_span);
                None
            }
        }
    }

    /// How the sink compresses, if it does. A name that promises what cannot be written is an error: nothing may have
    /// a name that says otherwise than its bytes.
    fn sink_codec(
        &mut self,
        node: &Node,
        kind: &SinkEntry,
        write: &Located<String>,
    ) -> Option<Option<Arc<dyn millstream_core::codec::Codec>>> {
        if kind.formats == SinkFormats::None {
            return Some(None);
        }
        if let Some(name) = node.get("compress").and_then(Node::scalar) {
            return Some(self.registry.codec(&name.text).map(|codec| (codec.build)()));
        }
        if kind.formats != SinkFormats::ByName {
            return Some(None);
        }
        let Some(codec) = self.registry.by_name(&write.value).0 else { return Some(None) };
        let written = compressions(self.registry);
        if !written.contains(&codec.name) {
            self.error(
                write.span,
                format!("the name has the ending of {}, which can be read but not written", codec.name),
                format!(
                    "compressions to write: {}; to keep the name and not compress, add `compress: none`",
                    written.iter().filter(|name| **name != "none").copied().collect::<Vec<_>>().join(", ")
                ),
            );
            return None;
        }
        Some(Some((codec.build)()))
    }

    /// What the sink's own spec says.
    fn sink_settings(&self, node: &Node, kind: &SinkEntry) -> Value {
        let mut shared = vec!["from", "write", MAX_REJECTS, CHECKS];
        if kind.formats != SinkFormats::None {
            shared.push("compress");
            shared.extend(self.registry.formats.iter().map(|format| format.spec.name));
        }
        if kind.stores {
            shared.extend(self.registry.stores.iter().map(|store| store.spec.name));
        }
        without(node, &shared)
    }

    /// What a sound entry allows.
    fn max_rejects(&mut self, node: &Node) -> MaxRejects {
        let allowed = node.get(MAX_REJECTS).map(|allowed| serde_json::from_value(allowed.to_value()));
        allowed.and_then(Result::ok).unwrap_or_default()
    }

    /// The checks of a source or transform.
    fn step_checks(&mut self, node: &Node) -> Vec<Check> {
        let may_reject = self.max_rejects(node).allows_some();
        checks(node.get(CHECKS), Checked::Step { may_reject }, self.text, &mut self.found.lints)
    }

    /// An entry of `functions`.
    pub fn function(&mut self, entry: &Entry) -> Option<FunctionStep> {
        let Some(kind) = self.registry.function else {
            self.error(entry.key_span, "there are no functions here", "remove `functions`");
            return None;
        };
        if !self.walk(entry, FUNCTION) {
            return None;
        }
        let settings = entry.value.to_value();
        match (kind.build)(&settings) {
            Ok(function) => Some(FunctionStep { name: name_of(entry), function, settings }),
            Err(faults) => {
                self.faults(faults, &entry.value, entry.key_span);
                None
            }
        }
    }

    /// An entry of `transforms`; what it uses is [`crate::links`]'s to say.
    pub fn transform(&mut self, entry: &Entry) -> Option<TransformStep> {
        let before = self.found.lints.len();
        let sorted_by = self.keys_of(entry.value.get(SORTED_BY));
        let is_good = self.walk(entry, TRANSFORM);
        let checks = self.step_checks(&entry.value);
        self.one_kind(entry, before);
        self.explain_misplaced(entry, before);
        let mut settings = None;
        for kind in entry.value.entries() {
            if let Some(transform) = self.registry.transform(&kind.key) {
                settings = Some((kind, transform, self.settings(kind, transform, is_good)));
            }
        }
        if self.found.lints[before..].iter().any(Lint::is_error) || entry.value.has_unknown() {
            return None;
        }
        let (kind, transform, settings) = settings?;
        let max_rejects = self.max_rejects(&entry.value);
        let rows = match (transform.build)(&settings.value) {
            Ok(rows) => rows,
            Err(faults) => {
                self.faults(faults, &kind.value, kind.key_span);
                return None;
            }
        };
        Some(TransformStep {
            name: name_of(entry),
            rows,
            settings: kind.value.to_value(),
            texts: settings.texts.into_iter().map(|text| text.text).collect(),
            sorted_by,
            max_rejects,
            checks,
            uses: Vec::new(),
        })
    }

    /// The settings of a transform, and what is wrong with them beside their schema. Where that finds faults as well,
    /// the transform checks the sound keys.
    fn settings(&mut self, kind: &Entry, transform: &TransformEntry, is_good: bool) -> Settings {
        let none = Value::Null;
        let schema = self.definitions.get(TRANSFORM).and_then(|one| one["properties"].get(transform.spec.name));
        let schema = schema.unwrap_or(&none);
        let settings = Settings::read(&kind.value, schema, self.definitions);
        for term in settings.of(TextKind::SortTerm) {
            if let Err(fault) = sort_key(term) {
                self.fault(fault, term.span);
            }
        }
        let check = transform.spec.check;
        let faults = check(&settings.value).or_else(|| match is_good {
            true => None,
            false => {
                // Settings of which there are too few or too many can be read all the same.
                let lints = self.walked(kind, schema).into_iter().filter(|lint| lint.code != LintCode::Count);
                let faulty = Self::faulty_keys(kind, &lints.collect::<Vec<_>>())?;
                let mut faults = check(&without(&kind.value, &faulty))?;
                // What is said of several keys together may follow from the fault of one that is left out.
                let schema = resolve(schema, self.definitions);
                let keys: Vec<&str> = faulty.iter().map(|key| meant(key, schema)).collect();
                faults.retain(|fault| is_inside(fault) || !keys.iter().any(|key| speaks_of(fault, key)));
                Some(faults)
            }
        });
        for fault in faults.into_iter().flatten() {
            let span = kind.value.at_path(&fault.path, kind.key_span);
            let at =
                kind.value.entry_at(&fault.path).filter(|entry| entry.value.is_empty_list()).map(Entry::report_span);
            // The schema counts items; the transform says what they are.
            let is_count = |lint: &Lint| lint.code == LintCode::Count && at.is_some_and(|at| lint.is_at(at));
            self.found.lints.retain(|lint| !is_count(lint));
            self.fault(fault, span);
        }
        settings
    }

    /// What stands beside the key of a transform, and was written below it.
    fn explain_misplaced(&mut self, entry: &Entry, before: usize) {
        for kind in entry.value.entries() {
            for key in kind.value.entries().iter().filter(|key| KEYS_BESIDE.contains(&key.key.as_str())) {
                let is_unknown = |lint: &&mut Lint| lint.code == LintCode::UnknownKey && lint.is_at(key.key_span);
                for lint in self.found.lints[before..].iter_mut().filter(is_unknown) {
                    lint.hint = Some(format!("write it beside `{}`, as a key of `{}`", kind.key, entry.key));
                }
            }
        }
    }

    /// A transform is of exactly one kind.
    fn one_kind(&mut self, entry: &Entry, before: usize) {
        let Some(schema) = self.definitions.get(TRANSFORM) else { return };
        let properties = schema["properties"].as_object();
        let keys = properties.into_iter().flatten().map(|(key, _)| key.as_str());
        let kinds: Vec<&str> = keys.filter(|key| !KEYS_BESIDE.contains(key)).collect();
        let Kind::Block(entries) = &entry.value.kind else { return };
        // The schema counts keys; this says which.
        let is_count = |lint: &Lint| lint.code == LintCode::Count && lint.is_at(entry.report_span());
        let found = self.found.lints.split_off(before);
        self.found.lints.extend(found.into_iter().filter(|lint| !is_count(lint)));
        let known: Vec<&Entry> = entries.iter().filter(|one| kinds.contains(&one.key.as_str())).collect();
        if let [first, second, ..] = known[..] {
            self.error(
                second.key_span,
                format!("`{}` does two things: `{}` and `{}`", entry.key, first.key, second.key),
                "split it into two entries, one of which reads the other",
            );
        } else if entries.iter().all(|one| KEYS_BESIDE.contains(&one.key.as_str())) {
            self.error(
                entry.key_span,
                format!("`{}` is empty", entry.key),
                format!("give it one of: {}", kinds.join(", ")),
            );
        }
    }

    /// The sort keys that stand in `node`.
    fn keys_of(&mut self, node: Option<&Node>) -> Vec<SortKey> {
        let mut keys = Vec::new();
        for key in texts(node) {
            match sort_key(&key) {
                Ok(sort_key) => keys.push(sort_key),
                Err(fault) => self.fault(fault, key.span),
            }
        }
        keys
    }

    /// Two sinks must not write to the same place.
    pub fn targets(&mut self, sinks: &[SinkStep]) {
        let mut seen: BTreeMap<(String, String), &SinkStep> = BTreeMap::new();
        for sink in sinks.iter().filter(|sink| !sink.sink.is_shareable()) {
            // Databases do not tell capitals in names of tables apart.
            let table = sink.settings.get("table").map(|table| table.to_string().to_lowercase()).unwrap_or_default();
            let target = plain_target(&sink.write.value);
            match seen.get(&(target.clone(), table.clone())) {
                Some(first) => {
                    let what = format!("`{}` writes to the same place as `{}`", sink.name.value, first.name.value);
                    let hint = if table.is_empty() {
                        "give each sink a target of its own, or combine their rows with a `union`"
                    } else {
                        "give each sink a table of its own, or combine their rows with a `union`"
                    };
                    self.error(sink.write.span, what, hint);
                }
                None => {
                    seen.insert((target, table), sink);
                }
            }
        }
    }
}

/// The name of an entry.
pub fn name_of(entry: &Entry) -> Located<String> {
    let characters = (0..entry.key_span.length)
        .map(|index| crate::text::Position { line: entry.key_span.line, column: entry.key_span.column + index })
        .collect();
    Located { value: entry.key.clone(), span: entry.key_span, characters }
}

/// A text and its place, if the node is one that is known.
pub fn text(node: Option<&Node>) -> Option<Located<String>> {
    let node = node?;
    let scalar = node.scalar().filter(|scalar| scalar.typed == Typed::Text)?;
    Some(written(node, scalar))
}

/// One text or a list of them; what is no text is left out.
pub fn texts(node: Option<&Node>) -> Vec<Located<String>> {
    match node.map(|node| (&node.kind, node)) {
        Some((Kind::List(items), _)) => items.iter().filter_map(|item| text(Some(item))).collect(),
        Some((_, node)) => text(Some(node)).into_iter().collect(),
        None => Vec::new(),
    }
}

/// The texts in `node`, at any depth.
pub fn all_texts(node: &Node, found: &mut Vec<Located<String>>) {
    match &node.kind {
        Kind::Block(entries) => entries.iter().for_each(|entry| all_texts(&entry.value, found)),
        Kind::List(items) => items.iter().for_each(|item| all_texts(item, found)),
        _ => found.extend(text(Some(node))),
    }
}

/// The text that a scalar is written as, whatever its type.
pub fn written(node: &Node, scalar: &Scalar) -> Located<String> {
    Located { value: scalar.text.clone(), span: node.span, characters: scalar.positions.as_slice().into() }
}

/// The sort key that a text of the file says.
pub fn sort_key(key: &Located<String>) -> Result<SortKey, Fault> {
    let parsed = SortTerm::from(key.value.as_str()).key()?;
    let expression = key.part(parsed.expression.as_str().to_owned(), parsed.expression.skipped());
    Ok(SortKey { expression, descending: parsed.descending, nulls_first: parsed.nulls_first })
}

/// The same text for targets that are the same whatever the world looks like: `a/./b`, `a//b`, `sqlite:./b`.
fn plain_target(target: &str) -> String {
    let (scheme, path) = target.split_once(':').unwrap_or(("", target));
    let root = if path.starts_with('/') { "/" } else { "" };
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    format!("{scheme}:{root}{}", parts.join("/"))
}

/// The key of a block with `schema` that `key` is, or is with a slip of the pen.
fn meant<'a>(key: &'a str, schema: &'a Value) -> &'a str {
    let known = || schema["properties"].as_object().into_iter().flatten().map(|(known, _)| known.as_str());
    let is_known = known().any(|known| known == key);
    nearest(key, known()).filter(|_| !is_known).unwrap_or(key)
}

/// Whether `fault` is one of the inside of a value.
fn is_inside(fault: &Fault) -> bool {
    fault.path.iter().filter(|key| !key.is_empty()).count() > 1
}

/// Whether the message of `fault` names `key`.
fn speaks_of(fault: &Fault, key: &str) -> bool {
    let (alone, with_value) = (format!("`{key}`"), format!("`{key}: "));
    [Some(&fault.what), fault.hint.as_ref()]
        .into_iter()
        .flatten()
        .any(|text| text.contains(&alone) || text.contains(&with_value))
}

fn without(node: &Node, keys: &[&str]) -> Value {
    let kept = node.entries().iter().filter(|entry| !keys.contains(&entry.key.as_str()));
    Value::Object(kept.map(|entry| (entry.key.clone(), entry.value.to_value())).collect())
}

/// What the name of `target` suggests for `format`.
fn suggestion(registry: &Registry, target: &str, format: &FormatEntry) -> Value {
    match registry.by_name(target).1 {
        Some((named, ending)) if named.spec.name == format.spec.name => (format.suggested)(ending),
        _ => Value::Null,
    }
}

/// What the names of all patterns suggest, if they agree.
fn common_suggestion(registry: &Registry, patterns: &[Located<String>], format: &FormatEntry) -> Value {
    let mut suggestions = patterns.iter().map(|pattern| suggestion(registry, &pattern.value, format));
    let Some(first) = suggestions.next() else { return Value::Null };
    if suggestions.all(|other| other == first) { first } else { Value::Null }
}

/// The table or query in the block of a database of the source at `node`.
fn selected(node: &Node, registry: &Registry) -> Option<Selected> {
    let blocks = registry.sources.iter().filter(|kind| kind.rows).filter_map(|kind| node.get(kind.spec.name));
    let of = |block: &Node, key| Some(Selected { key, text: block.get(key)?.scalar()?.undated().to_owned() });
    blocks.into_iter().find_map(|block| of(block, "query").or_else(|| of(block, "table")))
}

/// `settings` with what is only suggested where they say nothing.
fn merged(suggested: Value, settings: &Value) -> Value {
    let mut all = match suggested {
        Value::Object(suggested) => suggested,
        _ => Map::new(),
    };
    for (key, value) in settings.as_object().into_iter().flatten() {
        all.insert(key.clone(), value.clone());
    }
    Value::Object(all)
}

/// Whether `text` could be what stands before the colon of a URL (RFC 3986, 3.1); of at least two characters, and in no
/// need of capitals.
fn is_scheme(text: &str) -> bool {
    text.len() >= 2
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.chars().all(|one| one.is_ascii_lowercase() || one.is_ascii_digit() || "+-.".contains(one))
}

/// What `write` of these sinks begins with, or says as a whole, as a user writes it.
fn targets(registry: &Registry, sinks: impl Iterator<Item = &'static SinkEntry> + Clone) -> Vec<String> {
    let words = sinks.clone().flat_map(|sink| sink.words).map(|word| format!("`{word}`"));
    schemes(sinks.flat_map(|sink| registry.sink_schemes(sink))).into_iter().chain(words).collect()
}

/// Schemes as a user writes them.
fn schemes(schemes: impl Iterator<Item = &'static str>) -> Vec<String> {
    schemes
        .filter(|scheme| *scheme != COMMAND)
        .map(|scheme| match scheme {
            "" => "a path".to_owned(),
            "-" => "`-`".to_owned(),
            "file" | "sqlite" => format!("{scheme}:"),
            other => format!("{other}://"),
        })
        .collect()
}
