//! Lints of the keys of a source about its files: `ready`, `on_change`, `after_load`. What they require of sinks is the
//! engine's to say.

use millstream_core::Registry;

use crate::entries::{AddColumn, OnChange, SourceKeys};
use crate::graph::Located;
use crate::lint::Lint;
use crate::text::JobText;
use crate::tree::Node;

/// The placeholders of a marker.
const PLACEHOLDERS: [&str; 2] = ["{name}", "{stem}"];

/// What is wrong with these keys of a source, which reads `read`, and is incremental or not.
pub fn lints(
    text: &JobText,
    registry: &Registry,
    node: &Node,
    read: &[Located<String>],
    keys: &SourceKeys,
    is_incremental: bool,
) -> Vec<Lint> {
    let kinds = Kinds::of(registry, read);
    let faults = ready(keys, &kinds).into_iter();
    let faults = faults.chain(on_change(keys, &kinds, is_incremental)).chain(after_load(keys, &kinds, is_incremental));
    let lint = |Fault { key, what, hint }: Fault| {
        let span = key.split('.').try_fold(node, |node, key| node.get(key)).map_or(node.span, |node| node.span);
        text.error(span, what).hint(hint)
    };
    faults.map(lint).collect()
}

/// A fault of the value under `key`.
struct Fault {
    key: &'static str,
    what: String,
    hint: String,
}

fn fault(key: &'static str, what: impl Into<String>, hint: impl Into<String>) -> Fault {
    Fault { key, what: what.into(), hint: hint.into() }
}

/// What kinds of places a source reads.
struct Kinds {
    /// Places without files: standard input, a program, a database.
    no_files: Option<String>,
    /// Web servers, which list no files.
    web: bool,
    /// Places other than files of this machine.
    elsewhere: Option<String>,
}

impl Kinds {
    fn of(registry: &Registry, read: &[Located<String>]) -> Self {
        let kinds = || read.iter().filter_map(|pattern| Some((pattern, registry.source_for(&pattern.value)?)));
        let has_no_files = |name: &str| matches!(name, "stdin" | "command");
        let no_files = kinds().find(|(_, kind)| kind.rows || has_no_files(kind.spec.name));
        let list = read.iter().find(|pattern| pattern.value.starts_with('@')).map(|_| "a list".to_owned());
        let elsewhere = kinds().find(|(_, kind)| kind.spec.name != "file");
        Kinds {
            no_files: no_files.map(|(_, kind)| kind.spec.name.to_owned()),
            web: kinds().any(|(_, kind)| kind.spec.name == "http"),
            elsewhere: list.or(elsewhere.map(|(_, kind)| kind.spec.name.to_owned())),
        }
    }
}

fn ready(keys: &SourceKeys, kinds: &Kinds) -> Vec<Fault> {
    if keys.ready.is_always() {
        return Vec::new();
    }
    if let Some(kind) = &kinds.no_files {
        return vec![fault("ready", format!("`ready` is for files, and this source reads `{kind}`"), "remove it")];
    }
    let mut faults = Vec::new();
    if let Some(marker) = &keys.ready.marker {
        faults.extend(marker_fault(marker));
        if kinds.web {
            let what = "a marker cannot be looked up on a web server, which lists no files";
            faults.push(fault("ready.marker", what, "use `min_age`, or another way to reach the files"));
        }
    }
    faults
}

/// What is wrong with the name of a marker.
fn marker_fault(marker: &str) -> Option<Fault> {
    let fixed = PLACEHOLDERS.iter().fold(marker.to_owned(), |text, placeholder| text.replace(placeholder, ""));
    let example = "for example `'{name}.ok'`, `'{stem}.done'` or `_SUCCESS`";
    if fixed.contains(['{', '}', '*', '?', '[', ']', '\\']) {
        let what = "a marker is a name in which only `{name}` and `{stem}` stand for something";
        return Some(fault("ready.marker", what, example));
    }
    if fixed.trim_matches(['.', '/']).is_empty() {
        let what = "a marker needs some text of its own, or each file would be the marker of a file";
        return Some(fault("ready.marker", what, example));
    }
    if fixed.contains("://") || marker.starts_with('/') || marker.split('/').any(|part| part == "..") {
        let what = "a marker is beside its file, or in a folder below";
        return Some(fault("ready.marker", what, example));
    }
    None
}

fn on_change(keys: &SourceKeys, kinds: &Kinds, is_incremental: bool) -> Vec<Fault> {
    if let (true, Some(kind)) = (keys.on_change != OnChange::Fail, &kinds.no_files) {
        let what = format!("`on_change` is for files, and this source reads `{kind}`");
        return vec![fault("on_change", what, "remove it")];
    }
    if keys.on_change != OnChange::Fail && !is_incremental {
        let what = "`on_change` is for incremental sources: others load all files each time";
        return vec![fault("on_change", what, "add `incremental: true`, or remove it")];
    }
    if keys.on_change == OnChange::Reload && !keys.add.contains(&AddColumn::Uri) {
        let what = "`on_change: reload` finds the rows of a file by the column `_uri`, which this source lacks";
        return vec![fault("on_change", what, "add it with `add: [_uri]`; the table needs it, too")];
    }
    Vec::new()
}

fn after_load(keys: &SourceKeys, kinds: &Kinds, is_incremental: bool) -> Vec<Fault> {
    if keys.after_load.is_none() {
        return Vec::new();
    }
    if let Some(kind) = &kinds.elsewhere {
        let what = format!("`after_load` is for files of this machine, and this source reads `{kind}`");
        return vec![fault("after_load", what, "read local files, or move the files with a program after the run")];
    }
    if !is_incremental {
        let what = "`after_load` is for incremental sources: only for these it is known which files are loaded";
        return vec![fault("after_load", what, "add `incremental: true`, or remove it")];
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_has_text_of_its_own_and_is_below_the_folder_of_its_file() {
        for good in ["{name}.ok", "{stem}.done", "_SUCCESS", "ok/{name}", ".{name}.complete"] {
            assert!(marker_fault(good).is_none(), "{good}");
        }
        for bad in
            ["{name}", "{stem}{name}", "./{name}", "{file}.ok", "*.ok", "../{name}.ok", "/ok/{name}.ok", "s3://b/x"]
        {
            assert!(marker_fault(bad).is_some(), "{bad}");
        }
    }
}
