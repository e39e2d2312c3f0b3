//! What is to be read of a source, and how. Nothing of it changes while the source is read: what does is in
//! [`super::Reader`].

use std::sync::Arc;

use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use millstream_codec::{Limits, UnpackOptions};
use millstream_core::contains::Contains;
use millstream_core::format::{EmptyFiles, Format, OnDrift, RangeFormat, Reading, StreamFormat, Validate};
use millstream_core::source::{OnError, Source};
use millstream_core::{Error, Registry, Result, Unit};
use millstream_format::lines::Lines;
use millstream_job::entries::{COMMAND, IncrementalBy};
use millstream_job::{AddColumn, AfterLoad, OnChange, ReadyKeys, SortKey, SourceStep};

use super::messages::MessageColumn;
use super::order::SortedBy;
use super::{naming, stored};

/// Columns that Millstream can add to every row of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provenance {
    /// `_uri`: the unit's path or URL, with passwords left out.
    Uri,
    /// `_member`: the member of an archive; null where there is none.
    Member,
    /// `_line`: the line on which the record begins, from 1.
    Line,
    /// What says of which message a row is.
    Message(MessageColumn),
}

impl Provenance {
    /// What a column of the job adds.
    pub fn of(column: &AddColumn) -> Self {
        match column {
            AddColumn::Uri => Provenance::Uri,
            AddColumn::Member => Provenance::Member,
            AddColumn::Line => Provenance::Line,
            AddColumn::Id => Provenance::Message(MessageColumn::Id),
            AddColumn::Time => Provenance::Message(MessageColumn::Time),
            AddColumn::Key => Provenance::Message(MessageColumn::Key),
            AddColumn::Headers => Provenance::Message(MessageColumn::Headers),
        }
    }

    /// The column.
    pub fn field(self) -> Field {
        match self {
            Provenance::Uri => Field::new("_uri", DataType::Utf8View, false),
            Provenance::Member => Field::new("_member", DataType::Utf8View, true),
            Provenance::Line => Field::new("_line", DataType::Int64, false),
            Provenance::Message(column) => column.field(),
        }
    }
}

/// The source that reads URLs of some schemes.
#[derive(Debug, Clone)]
pub struct SchemeSource {
    /// The URL schemes it reads; `""` for paths, `-` for standard input.
    pub schemes: &'static [&'static str],
    /// The source, with the settings of the job's entry.
    pub source: Arc<dyn Source>,
}

/// What is to be read of a source, and how.
#[derive(Debug, Clone)]
pub struct SourcePlan {
    /// The entry's name.
    pub name: String,
    /// Patterns, as the job has them.
    pub patterns: Vec<String>,
    /// The sources of all schemes, since a list may name any.
    pub sources: Vec<SchemeSource>,
    /// Which source reads a URL.
    pub registry: Arc<Registry>,
    /// The format.
    pub format: Arc<dyn Format>,
    /// Globs over the members of archives; empty for all.
    pub members: Vec<String>,
    /// Limits against bombs.
    pub limits: Limits,
    /// Whether no unit at all is fine.
    pub allow_empty: bool,
    /// What files with other columns mean.
    pub on_drift: OnDrift,
    /// What files with nothing in them mean.
    pub empty_files: EmptyFiles,
    /// What becomes of units that cannot be opened.
    pub on_error: OnError,
    /// Which values are converted.
    pub validate: Validate,
    /// Which records are parsed.
    pub contains: Contains,
    /// The order that the rows have already.
    pub sorted_by: Vec<SortedBy>,
    /// Columns added behind the format's own.
    pub provenance: Vec<Provenance>,
    /// Whether only units, or rows, are read that no earlier run has loaded.
    pub incremental: bool,
    /// How new rows are found, of a place that gives rows.
    pub incremental_by: Option<IncrementalBy>,
    /// Which files are read only by a later run.
    pub ready_keys: ReadyKeys,
    /// What becomes of a file that has changed since it was loaded.
    pub on_change: OnChange,
    /// What becomes of a file once it is loaded.
    pub after_load: Option<AfterLoad>,
}

impl SourcePlan {
    /// The format, if it is parsed as its text arrives.
    pub fn stream_format(&self) -> Option<&dyn StreamFormat> {
        match self.format.reading() {
            Reading::Stream(format) => Some(format),
            Reading::Ranges(_) | Reading::Rows => None,
        }
    }

    /// The format, if it asks for ranges.
    pub fn range_format(&self) -> Option<&dyn RangeFormat> {
        match self.format.reading() {
            Reading::Ranges(format) => Some(format),
            Reading::Stream(_) | Reading::Rows => None,
        }
    }

    /// What `step` reads. Its format is what the entry says, else what its patterns say; `None` where neither does.
    pub fn of_step(registry: &Arc<Registry>, step: &SourceStep) -> (Self, Option<Arc<dyn Format>>) {
        let patterns = patterns(step);
        let format = match &step.format {
            Some(format) => Some(Arc::clone(format)),
            None => named_format(registry, step),
        };
        let sources = step.inputs.iter();
        let sources =
            sources.map(|(entry, source)| SchemeSource { schemes: entry.schemes, source: Arc::clone(source) });
        let plan = SourcePlan {
            members: step.members.clone(),
            limits: step.limits.clone(),
            allow_empty: step.allow_empty,
            on_drift: step.on_drift,
            empty_files: step.empty_files,
            on_error: step.on_error,
            validate: step.validate,
            contains: step.contains.clone(),
            sorted_by: step.sorted_by.iter().map(sorted_by).collect(),
            provenance: step.add.iter().map(Provenance::of).collect(),
            incremental: step.incremental,
            incremental_by: step.incremental_by.clone(),
            ready_keys: step.ready.clone(),
            on_change: step.on_change,
            after_load: step.after_load.clone(),
            ..SourcePlan::of_lines(&step.name.value, patterns, sources.collect(), registry)
        };
        (SourcePlan { format: format.clone().unwrap_or_else(|| Arc::new(Lines::default())), ..plan }, format)
    }

    /// Reads the lines of `patterns` from `sources`.
    pub fn of_lines(name: &str, patterns: Vec<String>, sources: Vec<SchemeSource>, registry: &Arc<Registry>) -> Self {
        SourcePlan {
            name: name.to_owned(),
            patterns,
            sources,
            registry: Arc::clone(registry),
            format: Arc::new(Lines::default()),
            members: Vec::new(),
            limits: Limits::default(),
            allow_empty: false,
            on_drift: OnDrift::default(),
            empty_files: EmptyFiles::Allow,
            on_error: OnError::Fail,
            validate: Validate::default(),
            contains: Contains::default(),
            sorted_by: Vec::new(),
            provenance: Vec::new(),
            incremental: false,
            incremental_by: None,
            ready_keys: ReadyKeys::default(),
            on_change: OnChange::default(),
            after_load: None,
        }
    }

    /// The source that reads `url`.
    pub fn source_of(&self, url: &str) -> Result<&Arc<dyn Source>> {
        let scheme = self.registry.source_scheme(url);
        let source = self.sources.iter().find(|source| source.schemes.contains(&scheme));
        source.map(|source| &source.source).ok_or_else(|| {
            if let Some(left_out) = self.registry.source_left_out_for(url) {
                return Error::refused(left_out.what()).text(millstream_core::redact::url(url)).hint(left_out.hint());
            }
            let known = self.registry.sources.iter().flat_map(|entry| entry.schemes);
            let known: Vec<&str> = known.copied().filter(|scheme| scheme.len() > 1 && *scheme != COMMAND).collect();
            Error::refused("no source reads URLs of this kind")
                .text(millstream_core::redact::url(url))
                .hint(format!("schemes: {}, or a path", known.join(", ")))
        })
    }

    /// What it reads, in words, if that can be read only once.
    pub fn reads_once(&self) -> Option<&'static str> {
        self.patterns.iter().find_map(|pattern| self.source_of(pattern).ok()?.reads_once())
    }

    /// How `unit` is unpacked.
    pub fn unpack_options(&self, unit: &Unit) -> UnpackOptions {
        UnpackOptions {
            members: self.members.clone(),
            limits: self.limits.clone(),
            expected: millstream_codec::codec_by_name(&unit.uri),
        }
    }

    /// The most units of one server that are opened at once.
    pub fn open_ahead(&self) -> usize {
        let schemes = self.patterns.iter().filter_map(|pattern| self.source_of(pattern.trim_start_matches('@')).ok());
        schemes.map(|source| source.connections()).max().unwrap_or(1)
    }

    /// How many tasks open units, of at most `most`: each has at least one of a server's connections to itself. Of what
    /// a list names, the web's count.
    pub fn tasks(&self, most: usize) -> usize {
        let connections = |pattern: &String| match pattern.as_str() {
            "-" => None,
            list if list.starts_with('@') => Some(self.source_of("http://list").ok()?.connections()),
            _ => Some(self.source_of(pattern).ok()?.connections()),
        };
        let least = self.patterns.iter().filter_map(connections).min();
        least.map_or(most, |least| most.min(least)).max(1)
    }

    /// The schema of the rows: `columns` of the format, then the provenance.
    pub fn schema_with(&self, columns: &Schema) -> SchemaRef {
        let mut fields: Vec<_> = columns.fields().iter().cloned().collect();
        fields.extend(self.provenance.iter().map(|column| Arc::new(column.field())));
        Arc::new(Schema::new(fields))
    }
}

/// The order that `key` says, of a source or a step.
pub fn sorted_by(key: &SortKey) -> SortedBy {
    let options = SortOptions { descending: key.descending, nulls_first: key.nulls_first };
    SortedBy { column: key.expression.value.clone(), options }
}

/// The format that the patterns of a source say.
pub fn named_format(registry: &Registry, step: &SourceStep) -> Option<Arc<dyn Format>> {
    let patterns = patterns(step);
    stored::format(registry, &patterns).or_else(|| naming::by_patterns(registry, &patterns))
}

fn patterns(step: &SourceStep) -> Vec<String> {
    step.read.iter().map(|pattern| pattern.value.clone()).collect()
}
