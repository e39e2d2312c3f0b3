//! Any text as a job file: no panic, bounded memory, and either a job or lints whose locations are in the file.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use millstream_core::Registry;
use millstream_job::{Lint, LoadOptions, SqlFault, load};

use crate::memory;

pub(crate) static REGISTRY: LazyLock<Registry> = LazyLock::new(|| {
    Registry::of(
        millstream_source::SOURCES,
        millstream_codec::CODECS,
        millstream_format::FORMATS,
        millstream_transform::TRANSFORMS,
        millstream_sink::SINKS,
        millstream_source::STORES,
    )
});

/// The most memory that loading may hold: the schema of all components (about 1 MB), and for each byte of the file a
/// node, its location and a lint that quotes the whole line.
pub(crate) const MEMORY_LIMIT: usize = 64 << 20;

/// The longest file that is tried; longer ones reach no other code.
pub(crate) const LONGEST: usize = 16 << 10;

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let text = match millstream_job::decode("job.yaml", data) {
        Ok(text) if text.len() <= LONGEST => text,
        _ => return,
    };
    let (loaded, held) = memory::peak_of(|| {
        let environment = |name: &str| (name == "DAY").then(|| "${DAY}: {x".to_owned());
        let options = LoadOptions {
            set: &BTreeMap::new(),
            environment: &environment,
            references: &tables,
            only_set: false,
            running: false,
            replace: None,
            now: 0,
        };
        load("job.yaml", text, &REGISTRY, &options)
    });
    assert!(held < MEMORY_LIMIT, "{held} bytes held for {} of text", text.len());
    assert_eq!(loaded.job.is_none(), loaded.lints.iter().any(Lint::is_error));
    for lint in &loaded.lints {
        let line = loaded.text.line(lint.line).chars().count();
        assert!(lint.column <= line + 1 && !lint.what.is_empty(), "{lint:?}");
    }
    for step in loaded.job.iter().chain(&loaded.sound).flat_map(|job| &job.transforms) {
        for sql in step.rows.sql() {
            let sql = step.located(sql.text);
            for (line, column) in [(0, 0), (1, 1), (2, 3), (usize::MAX, usize::MAX)] {
                let place = sql.locate(line, column);
                assert!(place.column <= loaded.text.line(place.line).chars().count() + 1, "{place:?}");
            }
        }
    }
}

/// The names after FROM. Fails at a semicolon.
pub(crate) fn tables(sql: &str) -> Result<Vec<String>, SqlFault> {
    if let Some(at) = sql.find(';') {
        let line = sql[..at].matches('\n').count() + 1;
        return Err(SqlFault { line, column: at + 1, what: "a semicolon".to_owned(), hint: None });
    }
    let words: Vec<&str> = sql.split_whitespace().collect();
    Ok(words.windows(2).filter(|pair| pair[0] == "FROM").map(|pair| pair[1].to_owned()).collect())
}
