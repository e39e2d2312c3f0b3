//! A job that writes where it reads: its next run would take its own result for data.
//!
//! It is told from the names alone, since what is there today says nothing about tomorrow. Of a sink with placeholders
//! some of its names are held against the patterns of the sources; a value of a `split` may be any text, so one stands
//! for all that no pattern can name except by a wildcard. Of a database only the table that rows are added to counts:
//! what replaces or merges its own rows is made for that, and what a query reads is not known.

use std::path::{Path, PathBuf};

use millstream_core::redact;
use millstream_core::sink::Written;
use millstream_core::source::TableName;
use millstream_job::{Job, Lint, SinkStep, SourceStep};
use millstream_source::file::PathPattern;
use millstream_source::pattern::{escape, expand};

/// Of more names that braces stand for, these are looked at.
const MOST_NAMES: usize = 100_000;

/// Of more shards than a sink may have, these are looked at.
const MOST_SHARDS: u64 = 10_000;

/// A value of a `split` that no pattern names: a character for private use.
const ANY_VALUE: &str = "\u{e000}";

/// A name that a run may have.
const SOME_RUN: &str = "1700000000000-1234567";

/// Digits of a part's and, at least, of a shard's number in a file's name.
const PART_DIGITS: usize = 5;
const SHARD_DIGITS: usize = 3;

/// Every sink whose files a source of the same job reads.
pub fn lints(job: &Job) -> Vec<Lint> {
    let Ok(folder) = std::env::current_dir() else { return Vec::new() };
    let mut lints = Vec::new();
    for (sink, target) in job.sinks.iter().flat_map(|sink| Target::all(sink, &folder).map(move |target| (sink, target)))
    {
        for source in &job.sources {
            let meets = source.read.iter().find_map(|pattern| Some((pattern, target.met_by(source, &pattern.value)?)));
            let Some((pattern, meeting)) = meets else { continue };
            let (writer, reader) = (&sink.name.value, &source.name.value);
            lints.push(match meeting {
                Meeting::Sure(written) => {
                    let what = format!(
                        "`{writer}` writes {}, which `{reader}` reads: the next run would read its own result",
                        redact::url(&written)
                    );
                    let hint = match target {
                        Target::Table(_) => {
                            "add the rows to another table, or `replace` or `merge` those that are there; to \
                             `truncate` it, leave out `max_rejects`"
                                .to_owned()
                        }
                        _ => format!("write elsewhere, or narrow the pattern {}", redact::url(&pattern.value)),
                    };
                    job.text.error(sink.write.span, what).hint(hint)
                }
                Meeting::Possible(read) => {
                    let what = format!("`{writer}` may write {read}, which `{reader}` reads");
                    let hint = "it does so if a row has that value: write to another folder";
                    job.text.warning(sink.write.span, what).hint(hint)
                }
            });
        }
    }
    lints
}

/// How a sink and a source meet.
enum Meeting {
    /// The sink writes this.
    Sure(String),
    /// It may, if its rows have the value: this is read.
    Possible(String),
}

/// What a sink writes.
enum Target {
    /// This object.
    Remote(String),
    /// Rows that are added to this table.
    Table(TableName),
    /// Files of this machine.
    Local {
        folder: PathBuf,
        /// Some of their names, as the job file would have them.
        names: Vec<String>,
        /// All of their names.
        all: PathPattern,
        /// What further names there are.
        open: Open,
    },
}

/// Which names a sink's files can have beside those that were made up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    /// None.
    No,
    /// More parts, or those of other runs.
    Parts,
    /// Those of whatever values the rows have.
    Value,
}

impl Target {
    /// What a sink writes to.
    fn all(sink: &SinkStep, folder: &Path) -> impl Iterator<Item = Self> {
        let leaves_rows_out = sink.settings.get("max_rejects").is_some();
        sink.sink.writes().into_iter().filter_map(move |written| match written {
            Written::Table { with_rejects: true, .. } if !leaves_rows_out => None,
            Written::Table { table, .. } => Some(Target::Table(table)),
            Written::Object(url) => Some(Target::Remote(url)),
            Written::Files { template, shards } => Target::files(&template, shards, folder),
        })
    }

    fn files(text: &str, count: u64, folder: &Path) -> Option<Self> {
        let digits = count.saturating_sub(1).to_string().len().max(SHARD_DIGITS);
        let wanted = if text.contains("{shard}") { count.min(MOST_SHARDS) } else { 1 };
        let name = |shard: u64| {
            let text = text.replace("{shard}", &format!("{shard:0digits$}"));
            let text = text.replace("{part}", &"0".repeat(PART_DIGITS)).replace("{run}", SOME_RUN);
            text.replace("{value}", ANY_VALUE)
        };
        let number = |digits: usize| "[0-9]".repeat(digits);
        let all = escape(text)
            .replace(r"\{shard\}", &number(digits))
            .replace(r"\{part\}", &number(PART_DIGITS))
            .replace(r"\{run\}", "[0-9]*-[0-9]*")
            .replace(r"\{value\}", "*");
        Some(Target::Local {
            folder: folder.to_owned(),
            names: (0..wanted).map(name).collect(),
            all: PathPattern::new(&all, folder)?,
            open: match (text.contains("{value}"), text.contains("{part}") || text.contains("{run}")) {
                (true, _) => Open::Value,
                (false, true) => Open::Parts,
                (false, false) => Open::No,
            },
        })
    }

    /// How the pattern `pattern` of `source`, its braces still in it, meets what is written.
    fn met_by(&self, source: &SourceStep, pattern: &str) -> Option<Meeting> {
        if pattern.starts_with('@') || pattern == "-" {
            return None;
        }
        let mut read = expand(pattern).ok()?.take(MOST_NAMES);
        match self {
            Target::Table(written) => {
                let read = source.inputs.iter().find_map(|(_, source)| source.table(pattern));
                (read.as_ref() == Some(written)).then(|| Meeting::Sure(format!("table {}", written.table)))
            }
            Target::Remote(url) => read.find(|read| read == url).map(Meeting::Sure),
            Target::Local { .. } if pattern.contains("://") && !pattern.to_ascii_lowercase().starts_with("file:") => {
                None
            }
            Target::Local { folder, names, all, open } => {
                let absolute = |name: &str| folder.join(name).to_string_lossy().into_owned();
                read.find_map(|read| {
                    let reads = PathPattern::new(&read, folder)?;
                    let plain = !reads.has_wildcards();
                    if plain && !all.matches(&absolute(&read)) {
                        return None;
                    }
                    if let Some(name) = names.iter().find(|name| reads.matches(&absolute(name))) {
                        return Some(Meeting::Sure(name.replace(ANY_VALUE, "{value}")));
                    }
                    match open {
                        Open::No => None,
                        Open::Value if plain => Some(Meeting::Possible(read)),
                        Open::Parts if plain => Some(Meeting::Sure(read)),
                        Open::Value | Open::Parts => None,
                    }
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::Engine;
    use crate::parse::Variables;

    /// What is said of a job with that source and that sink.
    fn told(read: &str, sink: &str) -> Vec<String> {
        let text = format!(
            "sources:\n  c:\n    read: {}\nsinks:\n  o:\n    from: c\n    write: {}\n",
            read.replace("; ", "\n    "),
            sink.replace("; ", "\n    ")
        );
        let engine = Engine::builder().build().expect("an engine");
        let loaded =
            engine.parse("job.yaml", &text, Variables { set: &BTreeMap::new(), environment: &|_| None, now: 0 }, true);
        assert_eq!(loaded.job.is_none(), loaded.lints.iter().any(millstream_job::Lint::is_error), "{:?}", loaded.lints);
        loaded.lints.iter().map(|lint| format!("{}: {}", lint.line - read.matches("; ").count(), lint.what)).collect()
    }

    #[test]
    fn what_a_job_would_read_of_itself() {
        let sure =
            |name: &str| vec![format!("7: `o` writes {name}, which `c` reads: the next run would read its own result")];
        let possible = |name: &str| vec![format!("7: `o` may write {name}, which `c` reads")];
        let here = std::env::current_dir().expect("a folder");
        let absolute = format!("{}/csv/x.csv", here.display());
        for (read, write, expected) in [
            ("csv/*.csv.gz", "csv/all.csv.gz", sure("csv/all.csv.gz")),
            ("csv/*.csv.gz", "out/all.csv.gz", vec![]),
            ("csv/*.csv", "./csv/../csv/all.csv", sure("./csv/../csv/all.csv")),
            (absolute.as_str(), "csv/x.csv", sure("csv/x.csv")),
            ("[other.csv, 'csv/{a,b}.csv']", "csv/b.csv", sure("csv/b.csv")),
            ("'**/*.csv'", "csv/all.csv; shards: {count: 4, hash: a}", sure("csv/all-000.csv")),
            ("csv/all-003.csv", "csv/all.csv; shards: {count: 4, hash: a}", sure("csv/all-003.csv")),
            ("csv/all-004.csv", "csv/all.csv; shards: {count: 4, hash: a}", vec![]),
            ("csv/all-7.csv", "csv/all.csv; roll: {rows: 10}", vec![]),
            ("csv/all-00007.csv", "csv/all.csv; roll: {rows: 10}", sure("csv/all-00007.csv")),
            ("'csv/all-*.csv'", "csv/all.csv; mode: append", sure("csv/all-1700000000000-1234567.csv")),
            ("csv/all-1800000000000-12.csv", "csv/all.csv; mode: append", sure("csv/all-1800000000000-12.csv")),
            ("csv/all.csv", "csv/all.csv; mode: append", vec![]),
            ("'csv/*'", "'csv/{value}.csv'; split: a", sure("csv/{value}.csv")),
            ("sales.csv", "'{value}.csv'; split: a", possible("sales.csv")),
            ("'sales-*.csv'", "'{value}.csv'; split: a", vec![]),
            ("'csv/*'", "sqlite:csv/a.db; table: t", sure("csv/a.db")),
            ("sqlite:a.db; sqlite: {table: t}", "sqlite:./a.db; table: t", sure("table t")),
            ("postgres://u@h/d; postgres: {table: public.t}", "postgres://u@h/d; table: t", sure("table t")),
            ("postgres://u@h/d; postgres: {table: t}", "postgres://u@h/d; table: t; mode: truncate", vec![]),
            (
                "postgres://u@h/d; postgres: {table: t}",
                "postgres://u@h/d; table: t; mode: truncate; max_rejects: 1",
                sure("table t"),
            ),
            ("sqlite:a.db; sqlite: {table: t}", "sqlite:a.db; table: t; mode: merge; key: [a]", vec![]),
            ("sqlite:a.db; sqlite: {table: t}", "sqlite:b.db; table: t", vec![]),
            ("mysql://u@h/d; mysql: {table: t}", "mariadb://v@H:3306/d; table: t", sure("table t")),
            ("mysql://u@h/d; mysql: {table: t}", "mysql://u@h/d; table: s", vec![]),
            ("mysql://u@h/d; mysql: {query: SELECT 1}", "mysql://u@h/d; table: t", vec![]),
            ("postgres://u@h/d; postgres: {table: t}", "postgres://u@h/e; table: t", vec![]),
            ("https://host/a.csv", "csv/a.csv", vec![]),
            ("'-'", "'-'", vec![]),
        ] {
            assert_eq!(told(read, write), expected, "{read} and {write}");
        }
    }
}
