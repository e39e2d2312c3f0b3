//! Lints of `incremental: {by: COLUMN}`: it is for one table or query of a database. What the column and the sinks have
//! to be is the engine's to say.

use millstream_core::Registry;

use crate::entries::SourceKeys;
use crate::graph::Located;
use crate::lint::Lint;
use crate::text::JobText;
use crate::tree::Node;

/// What is wrong with this key of a source, which reads `read`.
pub fn lints(
    text: &JobText,
    registry: &Registry,
    node: &Node,
    read: &[Located<String>],
    keys: &SourceKeys,
) -> Vec<Lint> {
    if keys.incremental.by().is_none() {
        return Vec::new();
    }
    let span = node.get("incremental").map_or(node.span, |node| node.span);
    let is_database = |one: &&Located<String>| registry.source_for(&one.value).is_some_and(|kind| kind.rows);
    let (what, hint) = match (read.iter().find(|one| !is_database(one)), read) {
        (Some(_), _) => (
            "`incremental: {by: …}` is for databases, and this source reads something else",
            "write `incremental: true`, with which each file is loaded once",
        ),
        (None, [one]) if !one.value.contains('{') => return Vec::new(),
        (None, _) => (
            "`incremental: {by: …}` is for one database, and this source reads several",
            "write a source for each, and a `union` of them",
        ),
    };
    vec![text.error(span, what).hint(hint)]
}
