//! The format of a source without a format block: what the names of its files say, or the content type that the web
//! gives one.
//!
//! Nothing is inferred from what is in the files: that may be wrong in ways that lose rows. The error shows what
//! `guess` sees, and the block that says so.

use std::sync::Arc;

use millstream_core::error::printable;
use millstream_core::format::Format;
use millstream_core::registry::FormatEntry;
use millstream_core::{Error, Registry, Result, Unit};
use serde_json::Value;

use super::Reader;
use super::no_match;
use super::sample::{self, Head};
use crate::job_text;

/// So many units are listed to see whether their names agree.
const UNITS: usize = 1000;

/// So many lines of a block are shown in an error.
const LINES: usize = 16;

/// A format and the settings that a name suggests.
type Suggested = (&'static FormatEntry, Value);

/// What the name of a file, a member or a URL suggests.
fn suggested(registry: &Registry, name: &str) -> Option<Suggested> {
    let (entry, ending) = registry.by_name(name).1?;
    Some((entry, (entry.suggested)(ending)))
}

fn same(one: &Suggested, other: &Suggested) -> bool {
    one.0.spec.name == other.0.spec.name && one.1 == other.1
}

fn build((entry, settings): &Suggested) -> Result<Arc<dyn Format>> {
    (entry.build)(settings).map_err(|_| Error::internal(format!("{} has no defaults", entry.spec.name)))
}

/// The format that the names of all patterns suggest, if they agree. The name of a list says nothing of what it names.
pub fn by_patterns(registry: &Registry, patterns: &[String]) -> Option<Arc<dyn Format>> {
    let mut all = patterns.iter().map(|pattern| match pattern.starts_with('@') {
        true => None,
        false => suggested(registry, pattern),
    });
    let first = all.next()??;
    let agree = all.all(|other| other.is_some_and(|other| same(&first, &other)));
    if agree { build(&first).ok() } else { None }
}

/// The format of the files that `reader` lists; `None` if there are none, and that is fine.
pub async fn by_files(reader: &Arc<Reader>) -> Result<Option<Arc<dyn Format>>> {
    let units = sample::units(reader, UNITS).await?;
    let Some(first) = units.first() else {
        return if reader.allow_empty { Ok(None) } else { Err(no_match(&reader.patterns)) };
    };
    if let Some(found) = by_units(&reader.registry, &units)? {
        return build(&found).map(Some);
    }
    if let Some(found) = by_content_type(reader, first).await? {
        return build(&found).map(Some);
    }
    let head = sample::head(reader, first.clone()).await?;
    match head.member.as_deref().and_then(|member| suggested(&reader.registry, member)) {
        Some(found) => build(&found).map(Some),
        None => Err(unknown(&head)),
    }
}

/// What the names of the units suggest that have telling ones.
fn by_units(registry: &Registry, units: &[Unit]) -> Result<Option<Suggested>> {
    let mut all = units.iter().filter_map(|unit| Some((unit, suggested(registry, &unit.uri)?)));
    let Some((first, found)) = all.next() else { return Ok(None) };
    match all.find(|(_, other)| !same(&found, other)) {
        None => Ok(Some(found)),
        Some((other, _)) => Err(Error::job("the files have different formats, by their names")
            .text(format!("{}, {}", first.name(), other.name()))
            .hint("read them with different sources, or add a format block for all of them")),
    }
}

async fn by_content_type(reader: &Arc<Reader>, unit: &Unit) -> Result<Option<Suggested>> {
    let source = reader.source_of(&unit.uri)?;
    let kind = source.content_type(&reader.context, unit).await?;
    Ok(reader.registry.by_content_type(&kind.unwrap_or_default()))
}

/// The error of a file whose format is said nowhere: with what `guess` sees in it.
fn unknown(head: &Head) -> Error {
    let what = match head.unit.uri.as_str() {
        "-" => "the format of standard input is not known: it has no name, and the source has no format block",
        _ => "the format is not known: the file name does not say it, and the source has no format block",
    };
    let error = Error::job(what).in_unit(&head.unit.uri, head.member.as_deref());
    // What no format block helps with comes first.
    if let Some(known) = millstream_format::foreign_text(&head.text, false) {
        let hint = known.hint_text().map(|hint| format!("{hint}; ")).unwrap_or_default();
        return known
            .in_unit(&head.unit.uri, head.member.as_deref())
            .hint(format!("{hint}to read its text all the same, line by line, add `lines: {{}}` to the source"));
    }
    let guess = match sample::guess_of(head) {
        Ok(guess) => guess,
        Err(fault) => {
            return error.cause(fault.what()).hint("add a format block to the source: csv, json, lines or parquet");
        }
    };
    // A message indents what follows its first line, by as much as the block is indented already.
    let block = job_text::block_of(&guess);
    let mut lines: Vec<&str> =
        block.lines().take(LINES).map(|line| line.strip_prefix("    ").unwrap_or(line)).collect();
    let more = block.lines().count() > LINES;
    if more {
        lines.push("  … (`millstream guess` writes all of it)");
    }
    let evidence: Vec<String> = guess.evidence.iter().take(LINES).map(|line| printable(line.as_bytes())).collect();
    let evidence = evidence.join("; ");
    error
        .cause(format!("`millstream guess` sees {}: {evidence}", guess.format))
        .hint(format!("if that is right, add the block to the source, below `read`:\n{}", lines.join("\n")))
}
