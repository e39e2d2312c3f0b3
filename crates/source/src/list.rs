//! `@list-of-urls.txt`: a file with one pattern a line, read through any source.
//!
//! Blank lines and lines that begin with `#` are skipped. A path that is not absolute is relative to the list's own
//! folder, for a list on the web to its URL. The lines are streamed, so a list may be long.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use millstream_core::source::{Source, SourceContext};
use millstream_core::{ByteStream, Error, Result};

use crate::pattern;

/// The longest line of a list, in bytes.
const LINE_LIMIT: usize = 64 << 10;

/// A line of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// A path or URL; braces are not expanded yet, but [`pattern::check`] found nothing wrong.
    pub pattern: String,
    /// The list, without passwords.
    pub list: String,
    /// The line, from 1.
    pub line: u64,
}

impl Listed {
    /// Adds the list and the line to an error.
    pub fn explain(&self, error: Error) -> Error {
        let place = format!("it is named in {}:{}", self.list, self.line);
        let hint = match error.hint_text() {
            Some(hint) => format!("{hint}; {place}"),
            None => place,
        };
        error.hint(hint)
    }
}

/// The lines of the list at `location` (the text after the `@`: a path, a URL or `-`), which `source` reads.
pub fn list_file(
    source: &Arc<dyn Source>,
    context: &SourceContext,
    location: &str,
) -> BoxStream<'static, Result<Listed>> {
    let (source, context, location) = (Arc::clone(source), context.clone(), location.to_owned());
    futures::stream::once(async move {
        let mut units: Vec<_> = source.list(&context, &location).take(2).try_collect().await?;
        let unit = match (units.pop(), units.is_empty()) {
            (Some(unit), true) => unit,
            (None, _) => {
                return Err(Error::refused("no list matches").in_unit(&location, None));
            }
            (Some(_), false) => {
                return Err(Error::refused("a list is one file, and this names several").in_unit(&location, None));
            }
        };
        let bytes = source.open(&context, &unit).await?;
        Ok(lines(bytes, unit.name(), base_of(&unit.uri)))
    })
    .try_flatten()
    .boxed()
}

/// The base of relative lines of the list at `uri`: its folder, escaped; empty for a list in the current folder or from
/// standard input.
fn base_of(uri: &str) -> String {
    let path = match uri.split_once("://") {
        Some(_) => uri.split(['?', '#']).next().unwrap_or(uri),
        None => uri,
    };
    let authority_end = path.find("://").map_or(0, |at| at + 3);
    match path[authority_end..].rfind('/') {
        Some(slash) => pattern::escape(&path[..authority_end + slash + 1]),
        None if authority_end > 0 => format!("{}/", pattern::escape(path)),
        None => String::new(),
    }
}

/// Cuts `bytes` into lines.
fn lines(bytes: ByteStream, list: String, base: String) -> BoxStream<'static, Result<Listed>> {
    let state = Lines { bytes, held: BytesMut::new(), line: 0, ended: false, list, base };
    futures::stream::try_unfold(state, |mut state| async move { Ok(state.next().await?.map(|listed| (listed, state))) })
        .boxed()
}

struct Lines {
    bytes: ByteStream,
    held: BytesMut,
    line: u64,
    ended: bool,
    list: String,
    base: String,
}

impl Lines {
    async fn next(&mut self) -> Result<Option<Listed>> {
        loop {
            let Some(line) = self.raw().await? else { return Ok(None) };
            if let Some(listed) = self.listed(&line)? {
                return Ok(Some(listed));
            }
        }
    }

    /// The next line without its end.
    async fn raw(&mut self) -> Result<Option<Bytes>> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.held[searched..].iter().position(|byte| *byte == b'\n') {
                let line = self.held.split_to(searched + at + 1);
                self.line += 1;
                return Ok(Some(line.freeze()));
            }
            searched = self.held.len();
            if searched > LINE_LIMIT {
                self.line += 1;
                return Err(self.fault(format!("the line is longer than {LINE_LIMIT} bytes"), &self.held));
            }
            if self.ended {
                self.line += 1;
                return Ok(Some(self.held.split().freeze()).filter(|line| !line.is_empty()));
            }
            match self.bytes.next().await {
                Some(chunk) => self.held.extend_from_slice(&chunk? as &Bytes),
                None => self.ended = true,
            }
        }
    }

    fn listed(&self, line: &[u8]) -> Result<Option<Listed>> {
        let line = if self.line == 1 { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) } else { line };
        let text = std::str::from_utf8(line).map_err(|_| self.fault("the line is not UTF-8".into(), line))?.trim();
        if text.is_empty() || text.starts_with('#') {
            return Ok(None);
        }
        if text.contains('\0') {
            return Err(self.fault("the line is not text".into(), line).hint("a list has one path or URL a line"));
        }
        if text.starts_with('@') {
            let error = self.fault("a list cannot name another list".into(), line);
            return Err(error.hint("for a file whose name begins with @, write ./@…"));
        }
        pattern::check(text).map_err(|fault| {
            let error = self.fault(fault.what, line);
            fault.hint.into_iter().fold(error, Error::hint)
        })?;
        Ok(Some(Listed { pattern: self.absolute(text), list: self.list.clone(), line: self.line }))
    }

    /// `text` relative to the current folder.
    fn absolute(&self, text: &str) -> String {
        let has_scheme = text
            .split_once(':')
            .is_some_and(|(scheme, rest)| rest.starts_with("//") || scheme.eq_ignore_ascii_case("file"));
        if text == "-" || has_scheme {
            return text.to_owned();
        }
        match (text.starts_with('/'), self.base.find("://")) {
            // Absolute on the list's own server.
            (true, Some(scheme)) => {
                let host_end = self.base[scheme + 3..].find('/').map_or(self.base.len(), |at| scheme + 3 + at);
                format!("{}{text}", &self.base[..host_end])
            }
            (true, None) => text.to_owned(),
            (false, _) => format!("{}{text}", self.base),
        }
    }

    fn fault(&self, what: String, line: &[u8]) -> Error {
        let text = line.trim_ascii_end();
        Error::job(what).in_unit(&self.list, None).line(self.line).text(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::FileSource;
    use millstream_core::Budget;
    use millstream_testkit::TempTree;

    async fn listed(tree: &TempTree, name: &str) -> Result<Vec<Listed>> {
        let context = SourceContext {
            io: tokio::runtime::Handle::current(),
            budget: Budget::new(1 << 20),
            cache: Arc::default(),
            programs: Arc::default(),
            pace: Arc::default(),
        };
        let source: Arc<dyn Source> = Arc::new(FileSource);
        list_file(&source, &context, &tree.text(name)).try_collect().await
    }

    #[tokio::test]
    async fn lines_are_patterns_and_the_rest_is_skipped() {
        let tree = TempTree::new();
        let list = "\u{feff}# ours\r\na.gz\r\n\n  b/{1..2}.gz  \nhttps://host/x?y=1\n/abs/*.gz\n./@c\n-\nlast";
        tree.file("sub [1]/list.txt", list);
        let lines = listed(&tree, r"sub \[1]/list.txt").await.expect("a good list");
        let folder = pattern::escape(&tree.text("sub [1]"));
        let patterns: Vec<_> = lines.iter().map(|listed| (listed.line, listed.pattern.as_str())).collect();
        assert_eq!(patterns[0], (2, format!("{folder}/a.gz").as_str()));
        assert_eq!(patterns[1], (4, format!("{folder}/b/{{1..2}}.gz").as_str()));
        assert_eq!(patterns[2..4], [(5, "https://host/x?y=1"), (6, "/abs/*.gz")]);
        assert_eq!(patterns[4], (7, format!("{folder}/./@c").as_str()));
        assert_eq!(patterns[5], (8, "-"));
        assert_eq!(patterns[6], (9, format!("{folder}/last").as_str()));
        let error = lines[0].explain(Error::refused("there is no such file"));
        assert_eq!(error.hint_text(), Some(format!("it is named in {}:2", tree.text("sub [1]/list.txt")).as_str()));
    }

    #[tokio::test]
    async fn a_fault_has_its_line() {
        let tree = TempTree::new();
        for (text, line, what) in [
            (b"a\n\nb{c\n".to_vec(), 3, "the `{` at character 2 is not closed"),
            (b"a\n\xff\n".to_vec(), 2, "the line is not UTF-8"),
            (b"@other.txt".to_vec(), 1, "a list cannot name another list"),
            (b"\x1f\x8b\0\0".to_vec(), 1, "the line is not UTF-8"),
            (vec![b'x'; 200_000], 1, "the line is longer than 65536 bytes"),
        ] {
            tree.file("list.txt", &text);
            let error = listed(&tree, "list.txt").await.expect_err(what);
            assert_eq!((error.what(), error.location().line), (what, Some(line)));
            assert_eq!(error.location().uri.as_deref(), Some(tree.text("list.txt").as_str()));
        }
        assert_eq!(listed(&tree, "none.txt").await.expect_err("missing").what(), "there is no such file");
        tree.file("list2.txt", b"");
        assert_eq!(listed(&tree, "list2.txt").await.expect("an empty list"), []);
        let error = listed(&tree, "list*.txt").await.expect_err("two lists");
        assert!(error.what().contains("several"), "{error}");
    }

    #[test]
    fn the_base_is_the_folder_of_the_list() {
        for (uri, base) in [
            ("list.txt", ""),
            ("-", ""),
            ("a/b[1]/list.txt", r"a/b\[1\]/"),
            ("https://host/a/list.txt?x=/y", "https://host/a/"),
            ("https://host", "https://host/"),
        ] {
            assert_eq!(base_of(uri), base, "{uri}");
        }
    }
}
