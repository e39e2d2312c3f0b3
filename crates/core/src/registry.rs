//! The registry of components. The engine makes one with all components of the build; a program that embeds the engine
//! may add its own.
//!
//! Entries live as long as the process: those of the build are constants, and one that a program adds is kept for good.
//! So add a component once, not for each job.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::codec::Codec;
use crate::error::Error;
use crate::format::Format;
use crate::sink::{Sink, SinkParts};
use crate::source::Source;
use crate::spec::{Fault, SpecInfo};
use crate::store::Store;
use crate::transform::{KEYS_BESIDE, Relation, WorkFunction};

/// A component, or all faults of its settings.
pub type Built<T> = Result<Arc<T>, Vec<Fault>>;

/// Makes a component from its settings.
pub type Build<T> = &'static (dyn Fn(&Value) -> Built<T> + Send + Sync);

/// A kind of source.
#[derive(Clone, Copy)]
pub struct SourceEntry {
    /// Its settings, under their own key of a source's entry.
    pub spec: SpecInfo,
    /// The URL schemes it reads, without `://`; `""` stands for plain paths, `-` for standard input.
    pub schemes: &'static [&'static str],
    /// What is wrong with a path or URL pattern of one of these schemes, braces and wildcards included, as far as it
    /// can be told without looking at the world. Its place and text are the caller's to add.
    pub check: &'static (dyn Fn(&str) -> Result<(), Fault> + Send + Sync),
    /// Whether it gives rows, and no bytes.
    pub rows: bool,
    /// Makes the source. Does no I/O.
    pub build: Build<dyn Source>,
}

/// A kind of store: a place for objects that appear as a whole.
#[derive(Clone, Copy)]
pub struct StoreEntry {
    /// Its settings, which are those of the source of the same name.
    pub spec: SpecInfo,
    /// The URL schemes that it writes, without `://`.
    pub schemes: &'static [&'static str],
    /// Makes the store. Does no I/O.
    pub build: Build<dyn Store>,
}

/// A codec.
#[derive(Debug, Clone, Copy)]
pub struct CodecEntry {
    /// The value of `compress` in the job file.
    pub name: &'static str,
    /// The endings of file names, with the dot.
    pub extensions: &'static [&'static str],
    /// Makes the codec.
    pub build: fn() -> Arc<dyn Codec>,
}

/// A kind of format.
#[derive(Clone, Copy)]
pub struct FormatEntry {
    /// Its settings, under their own key of a source's or a file sink's entry.
    pub spec: SpecInfo,
    /// The endings of file names that suggest it, with the dot.
    pub extensions: &'static [&'static str],
    /// Settings that an extension suggests (a `.tsv` has tabs), under the given ending.
    pub suggested: &'static (dyn Fn(&str) -> Value + Send + Sync),
    /// Settings that a content type suggests (`text/csv; header=absent`); `None` if it is not one of the format's.
    pub by_content_type: &'static (dyn Fn(&str) -> Option<Value> + Send + Sync),
    /// Makes the format. Does no I/O.
    pub build: Build<dyn Format>,
}

/// A kind of transform.
#[derive(Clone, Copy)]
pub struct TransformEntry {
    /// Its settings, under its key in an entry of `transforms`. The texts in them that name entries or are SQL have the
    /// types of [`crate::transform`], and are checked by these.
    pub spec: SpecInfo,
    /// The rows that it computes. Does no I/O.
    pub build: &'static (dyn Fn(&Value) -> Result<Relation, Vec<Fault>> + Send + Sync),
}

/// How a job says functions for SQL.
#[derive(Clone, Copy)]
pub struct FunctionEntry {
    /// The settings of an entry of `functions`.
    pub spec: SpecInfo,
    /// Makes the function. Does no I/O.
    pub build: &'static (dyn Fn(&Value) -> Result<WorkFunction, Vec<Fault>> + Send + Sync),
}

/// In which formats a sink writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkFormats {
    /// In none: it takes rows.
    None,
    /// In any; the name of the target suggests one, and a compression.
    ByName,
    /// In any; in the one of this name if the entry has no block.
    Default(&'static str),
}

/// A kind of sink.
#[derive(Clone, Copy)]
pub struct SinkEntry {
    /// Its settings, beside `from` and `write` in a sink's entry.
    pub spec: SpecInfo,
    /// What `write` begins with, without the colon: `sqlite`; `""` stands for plain paths.
    pub schemes: &'static [&'static str],
    /// What `write` may say as a whole: `-` for standard output. A sink that has nothing else takes every row.
    pub words: &'static [&'static str],
    /// Whether it writes to every store too. Then the stores' schemes are its own, and so are their blocks.
    pub stores: bool,
    /// Whether the entry may have a format block and `compress`.
    pub formats: SinkFormats,
    /// Makes the sink. Does no I/O.
    pub build: &'static (dyn Fn(&Value, SinkParts) -> Built<dyn Sink> + Send + Sync),
}

/// A source or a sink that a build may leave out.
#[derive(Debug, Clone, Copy)]
pub struct OptionalComponent {
    /// Its name, which is also that of its block.
    pub name: &'static str,
    /// The URL schemes that it reads or writes, without `://`.
    pub schemes: &'static [&'static str],
    /// The Cargo feature that has it.
    pub feature: &'static str,
}

impl OptionalComponent {
    /// What is wrong with a job that names it.
    pub fn what(&self) -> String {
        format!("this build of Millstream leaves `{}` out", self.name)
    }

    /// What to do about it.
    pub fn hint(&self) -> String {
        format!("build it with the feature `{}`, or use a complete build", self.feature)
    }
}

macro_rules! shown_by_name {
    ($($entry:ty),*) => {
        $(impl fmt::Debug for $entry {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($entry)).field(&self.spec.name).finish()
            }
        })*
    };
}

shown_by_name!(SourceEntry, StoreEntry, FormatEntry, SinkEntry, TransformEntry, FunctionEntry);

/// All components.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    /// Places to read from.
    pub sources: Vec<&'static SourceEntry>,
    /// Compressions.
    pub codecs: Vec<&'static CodecEntry>,
    /// Formats.
    pub formats: Vec<&'static FormatEntry>,
    /// Ways to compute rows from those of other entries.
    pub transforms: Vec<&'static TransformEntry>,
    /// What functions for SQL are made of, if a job may have some.
    pub function: Option<&'static FunctionEntry>,
    /// Places to write to.
    pub sinks: Vec<&'static SinkEntry>,
    /// Places for objects, which sinks of files write to.
    pub stores: Vec<&'static StoreEntry>,
    optional_sources: &'static [OptionalComponent],
    optional_sinks: &'static [OptionalComponent],
}

impl Registry {
    /// The registry of these components.
    pub fn of(
        sources: &'static [SourceEntry],
        codecs: &'static [CodecEntry],
        formats: &'static [FormatEntry],
        transforms: &'static [TransformEntry],
        sinks: &'static [SinkEntry],
        stores: &'static [StoreEntry],
    ) -> Self {
        Registry {
            sources: sources.iter().collect(),
            codecs: codecs.iter().collect(),
            formats: formats.iter().collect(),
            transforms: transforms.iter().collect(),
            sinks: sinks.iter().collect(),
            stores: stores.iter().collect(),
            ..Registry::default()
        }
    }

    /// The same registry with the components that a build may leave out: a job that names one that is not there gets
    /// its feature.
    pub fn with_optional(self, sources: &'static [OptionalComponent], sinks: &'static [OptionalComponent]) -> Self {
        Registry { optional_sources: sources, optional_sinks: sinks, ..self }
    }

    /// The same registry, where a job may have functions for SQL.
    pub fn with_functions(self, function: &'static FunctionEntry) -> Self {
        Registry { function: Some(function), ..self }
    }

    /// Adds a kind of source.
    ///
    /// # Errors
    /// If there is one of that name, or one that reads one of its schemes.
    pub fn add_source(&mut self, entry: SourceEntry) -> Result<(), Error> {
        let others = self.sources.iter().map(|other| (&other.spec, other.schemes));
        is_new("source", &entry.spec, entry.schemes, others)?;
        self.sources.push(Box::leak(Box::new(entry)));
        Ok(())
    }

    /// Adds a kind of sink.
    ///
    /// # Errors
    /// If there is one of that name, or one that writes one of its schemes or words.
    pub fn add_sink(&mut self, entry: SinkEntry) -> Result<(), Error> {
        let others = self.sinks.iter().map(|other| (&other.spec, other.schemes));
        let stores = self.stores.iter().map(|store| (&store.spec, store.schemes));
        is_new("sink", &entry.spec, entry.schemes, others.chain(stores))?;
        is_new("sink", &entry.spec, entry.words, self.sinks.iter().map(|other| (&other.spec, other.words)))?;
        self.sinks.push(Box::leak(Box::new(entry)));
        Ok(())
    }

    /// Adds a kind of transform.
    ///
    /// # Errors
    /// If there is one of that name, or the name is another key of an entry.
    pub fn add_transform(&mut self, entry: TransformEntry) -> Result<(), Error> {
        let others = self.transforms.iter().map(|other| (&other.spec, [].as_slice()));
        is_new("transform", &entry.spec, &[], others)?;
        if KEYS_BESIDE.contains(&entry.spec.name) {
            let what = format!("the transform `{}` cannot be added", entry.spec.name);
            return Err(Error::job(what).cause("a key of a job file has this name"));
        }
        self.transforms.push(Box::leak(Box::new(entry)));
        Ok(())
    }

    /// Adds a format.
    ///
    /// # Errors
    /// If there is one of that name, or one of files with one of its endings.
    pub fn add_format(&mut self, entry: FormatEntry) -> Result<(), Error> {
        let others = self.formats.iter().map(|other| (&other.spec, other.extensions));
        is_new("format", &entry.spec, entry.extensions, others)?;
        self.formats.push(Box::leak(Box::new(entry)));
        Ok(())
    }

    /// The source that reads `url` (a path, a URL or `-`).
    pub fn source_for(&self, url: &str) -> Option<&'static SourceEntry> {
        let scheme = self.source_scheme(url);
        self.sources.iter().copied().find(|entry| entry.schemes.contains(&scheme))
    }

    /// The scheme of `url` as the sources have it: `-` for standard input, nothing for a path.
    pub fn source_scheme<'a>(&self, url: &'a str) -> &'a str {
        scheme_of(url, self.sources.iter().flat_map(|entry| entry.schemes))
    }

    /// The store that `target` is in, if it is in one.
    pub fn store_for(&self, target: &str) -> Option<&'static StoreEntry> {
        let scheme = scheme_of(target, self.stores.iter().flat_map(|entry| entry.schemes));
        self.stores.iter().copied().find(|entry| entry.schemes.contains(&scheme))
    }

    /// What `write` may begin with for a sink of this kind, as in [`SinkEntry::schemes`].
    pub fn sink_schemes(&self, entry: &SinkEntry) -> impl Iterator<Item = &'static str> + use<> {
        let stores: &[&StoreEntry] = if entry.stores { &self.stores } else { &[] };
        let stores: Vec<&'static str> = stores.iter().flat_map(|store| store.schemes).copied().collect();
        entry.schemes.iter().copied().chain(stores)
    }

    /// The sink that writes `target` (a path, `scheme:…` or a word such as `-`).
    pub fn sink_for(&self, target: &str) -> Option<&'static SinkEntry> {
        if let Some(entry) = self.sinks.iter().copied().find(|entry| entry.words.contains(&target)) {
            return Some(entry);
        }
        if self.store_for(target).is_some() {
            return self.sinks.iter().copied().find(|entry| entry.stores);
        }
        let scheme = scheme_of(target, self.sinks.iter().flat_map(|entry| entry.schemes));
        self.sinks.iter().copied().find(|entry| entry.schemes.contains(&scheme))
    }

    /// The source that would read `url`, if the build leaves it out.
    pub fn source_left_out_for(&self, url: &str) -> Option<&'static OptionalComponent> {
        left_out_for(url, self.optional_sources, self.sources.iter().flat_map(|entry| entry.schemes).copied())
    }

    /// The source with this block, if the build leaves it out.
    pub fn source_left_out(&self, name: &str) -> Option<&'static OptionalComponent> {
        let is_there = self.sources.iter().any(|entry| entry.spec.name == name);
        self.optional_sources.iter().find(|one| one.name == name && !is_there)
    }

    /// The sink that would write `target`, if the build leaves it out.
    pub fn sink_left_out_for(&self, target: &str) -> Option<&'static OptionalComponent> {
        left_out_for(target, self.optional_sinks, self.sinks.iter().flat_map(|entry| self.sink_schemes(entry)))
    }

    /// The transform of that name.
    pub fn transform(&self, name: &str) -> Option<&'static TransformEntry> {
        self.transforms.iter().copied().find(|entry| entry.spec.name == name)
    }

    /// The codec of that name.
    pub fn codec(&self, name: &str) -> Option<&'static CodecEntry> {
        self.codecs.iter().copied().find(|entry| entry.name == name)
    }

    /// The codec and the format that a file's name suggests: `a.csv.gz` is gzip and csv. The last text is the
    /// format's ending.
    pub fn by_name(&self, path: &str) -> (Option<&'static CodecEntry>, Option<(&'static FormatEntry, &'static str)>) {
        let path = crate::unit::path_of(path).to_ascii_lowercase();
        let codec = self.codecs.iter().copied().find_map(|entry| {
            entry.extensions.iter().find(|ending| path.ends_with(*ending)).map(|ending| (entry, *ending))
        });
        let stem = codec.map_or(path.as_str(), |(_, ending)| &path[..path.len() - ending.len()]);
        let format = self.formats.iter().copied().find_map(|entry| {
            entry.extensions.iter().find(|ending| stem.ends_with(*ending)).map(|ending| (entry, *ending))
        });
        (codec.map(|(entry, _)| entry), format)
    }

    /// The format that a content type (`text/csv; header=present`) names, and the settings that it suggests. Types that
    /// many servers give to whatever they do not know (`text/plain`, `application/octet-stream`) name none.
    pub fn by_content_type(&self, value: &str) -> Option<(&'static FormatEntry, Value)> {
        self.formats.iter().find_map(|entry| Some((*entry, (entry.by_content_type)(value)?)))
    }

    /// The format of a sink without a format block, and the ending it is known by: the sink's default, what the
    /// target's name suggests, or csv for standard output, which has no name.
    pub fn sink_format(&self, kind: &SinkEntry, target: &str) -> Option<(&'static FormatEntry, &'static str)> {
        match (kind.formats, target) {
            (SinkFormats::None, _) => None,
            (SinkFormats::Default(name), _) => self.format_of_name(name),
            (SinkFormats::ByName, "-") => self.format_of_name("csv"),
            (SinkFormats::ByName, name) => self.by_name(name).1,
        }
    }

    /// The format of that name, with the first ending of its files.
    fn format_of_name(&self, name: &str) -> Option<(&'static FormatEntry, &'static str)> {
        let format = self.formats.iter().copied().find(|entry| entry.spec.name == name)?;
        Some((format, format.extensions.first().copied().unwrap_or_default()))
    }
}

/// Whether no other entry has the name or one of the `marks` (schemes or endings) of what is added.
fn is_new<'a>(
    kind: &str,
    spec: &SpecInfo,
    marks: &[&str],
    mut others: impl Iterator<Item = (&'a SpecInfo, &'a [&'a str])>,
) -> Result<(), Error> {
    let clash =
        |(other, its): &(&SpecInfo, &[&str])| other.name == spec.name || its.iter().any(|one| marks.contains(one));
    let Some((other, _)) = others.find(clash) else { return Ok(()) };
    let cause = match marks {
        [] => format!("there is a {kind} of that name"),
        marks => format!("`{}` has its name, or one of {}", other.name, marks.join(", ")),
    };
    Err(Error::job(format!("the {kind} `{}` cannot be added", spec.name)).cause(cause))
}

/// Whether a content type with its parameters (`text/csv; charset=utf-8`) is one of `types`.
pub fn is_content_type(value: &str, types: &[&str]) -> bool {
    let kind = value.split(';').next().unwrap_or_default().trim();
    types.iter().any(|known| known.eq_ignore_ascii_case(kind))
}

/// The one of `optional` with the scheme of `url`, unless one of the `known` schemes is the same: a program may have
/// added a component of its own.
fn left_out_for(
    url: &str,
    optional: &'static [OptionalComponent],
    mut known: impl Iterator<Item = &'static str>,
) -> Option<&'static OptionalComponent> {
    let (scheme, _) = url.split_once(':')?;
    let is_it = |one: &str| one.eq_ignore_ascii_case(scheme);
    let found = optional.iter().find(|one| one.schemes.iter().any(|one| is_it(one)))?;
    (!known.any(is_it)).then_some(found)
}

/// The scheme of `url`: one of `known` before its first colon, `-` for `-`; what has an unknown scheme and `://` keeps
/// that scheme (so it finds no entry), the rest is a path: `""`.
fn scheme_of<'a>(url: &'a str, known: impl Iterator<Item = &'a &'static str>) -> &'a str {
    if url == "-" {
        return "-";
    }
    match url.split_once(':') {
        Some((scheme, rest)) => {
            let known = known.copied().find(|one| one.eq_ignore_ascii_case(scheme) && !one.is_empty());
            match known {
                Some(one) => one,
                None if rest.starts_with("//") => scheme,
                None => "",
            }
        }
        None => "",
    }
}
