//! What reads for a step: the rows of a query, or the list of files, as sources of a job do.

use millstream_core::Registry;
use millstream_core::registry::SourceEntry;

use super::model::QueryAction;
use super::schema::{definitions, schema};
use super::template::Template;
use crate::build::Builder;
use crate::entries::COMMAND;
use crate::gather::not_of_files;
use crate::graph::SourceStep;
use crate::lint::Lint;
use crate::text::JobText;
use crate::tree::{Entry, Kind, Node};

/// What reads the query of a step: `url` and `sql` are the texts of `action`, filled in. Its columns and rows come as
/// those of a source of a job.
///
/// # Errors
/// If `url` is no database, or one that needs other settings.
pub fn of_query(
    action: &QueryAction,
    url: &str,
    sql: &str,
    text: &JobText,
    registry: &Registry,
) -> Result<SourceStep, Vec<Lint>> {
    let from = entry("from", Node::text(url, action.from.text.span));
    let query = Node::text(sql, action.query.text.span);
    let blocks: Vec<Entry> = action.block.iter().cloned().collect();
    built(text, registry, |builder| query_source(builder, &from, &query, &blocks))
}

/// What lists the files of `pattern`, which is the text `template` of a step, filled in.
///
/// # Errors
/// If it stands for no files.
pub fn of_files(
    template: &Template,
    pattern: &str,
    text: &JobText,
    registry: &Registry,
) -> Result<SourceStep, Vec<Lint>> {
    let files = entry("files", Node::text(pattern, template.text.span));
    built(text, registry, |builder| files_source(builder, &files))
}

fn built(
    text: &JobText,
    registry: &Registry,
    build: impl FnOnce(&mut Builder<'_>) -> Option<SourceStep>,
) -> Result<SourceStep, Vec<Lint>> {
    let definitions = definitions(registry, &schema(registry));
    let mut builder = Builder::new(text, registry, &definitions);
    let step = build(&mut builder);
    let errors: Vec<Lint> = builder.found.lints.into_iter().filter(Lint::is_error).collect();
    match step {
        Some(step) if errors.is_empty() => Ok(step),
        _ => Err(errors),
    }
}

/// What lists the files that `files` names.
pub(crate) fn files_source(builder: &mut Builder<'_>, files: &Entry) -> Option<SourceStep> {
    if let Some(what) = not_of_files(builder, &files.value.scalar()?.text) {
        let what = format!("these are no files: {what}");
        let hint = "name a path, a pattern or a URL of files; a `query` asks a database";
        builder.found.lints.push(builder.text.error(files.value.span, what).hint(hint));
        return None;
    }
    let read = Entry { key: "read".to_owned(), ..files.clone() };
    let value = Node { span: files.value.span, kind: Kind::Block(vec![read]) };
    builder.source(&Entry { value, ..files.clone() })
}

/// What reads `query` from the database `from`; the block of its kind is among `blocks`.
pub(crate) fn query_source(
    builder: &mut Builder<'_>,
    from: &Entry,
    query: &Node,
    blocks: &[Entry],
) -> Option<SourceStep> {
    let url = from.value.scalar()?.text.clone();
    let kind = builder.registry.source_for(&url).filter(|kind| is_database(kind));
    let Some(kind) = kind else {
        let hint = "write its URL, such as `mysql://`, `postgres://`, `sqlite:`";
        builder.found.lints.push(builder.text.error(from.value.span, "this is no database").hint(hint));
        return None;
    };
    let block = blocks.iter().find(|block| block.key == kind.spec.name);
    for other in blocks.iter().filter(|block| block.key != kind.spec.name) {
        let what = format!("`{}` has no effect: the query is for `{}`", other.key, kind.spec.name);
        builder.found.lints.push(builder.text.warning(other.key_span, what).hint("remove it"));
    }
    let mut settings = block.map(|block| block.value.entries().to_vec()).unwrap_or_default();
    settings.push(entry("query", query.clone()));
    let key_span = block.map_or(from.key_span, |block| block.key_span);
    let value = Node { span: query.span, kind: Kind::Block(settings) };
    let block = Entry { key: kind.spec.name.to_owned(), key_span, value };
    let read = Entry { key: "read".to_owned(), ..from.clone() };
    let value = Node { span: query.span, kind: Kind::Block(vec![read, block]) };
    builder.source(&Entry { key: "query".to_owned(), key_span: from.key_span, value })
}

/// The names of the blocks that databases have.
pub(crate) fn databases(registry: &Registry) -> Vec<&'static str> {
    registry.sources.iter().filter(|kind| is_database(kind)).map(|kind| kind.spec.name).collect()
}

fn is_database(kind: &SourceEntry) -> bool {
    kind.rows && kind.spec.name != COMMAND
}

fn entry(key: &str, value: Node) -> Entry {
    Entry { key: key.to_owned(), key_span: value.span, value }
}
