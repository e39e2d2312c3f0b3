//! Sequences as a stranger writes them: what they become, every kind of lint, files that they name, and what comes
//! next.

mod decisions;
mod faults;
mod files;
mod robust;
mod valid;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, LazyLock};

use millstream_core::Registry;
use millstream_core::registry::SourceEntry;
use millstream_core::spec::{Fault, Secret, Spec, SpecInfo, parse};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{LoadedSequence, NamedFiles, NamedJob, SequenceOptions, load};
use crate::tests::components::{Place, REGISTRY};
use crate::tests::{NOW, shown, tables};
use crate::{Lint, LoadOptions};

/// A database.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct DatabaseSpec {
    /// The query.
    query: Option<String>,
    /// The password.
    password: Option<Secret>,
    /// How many connections there are.
    #[schemars(range(min = 1, max = 8))]
    connections: Option<u8>,
}

impl Spec for DatabaseSpec {
    const NAME: &'static str = "postgres";
    const SUMMARY: &'static str = "Rows of PostgreSQL.";
    const EXAMPLE: &'static str = "read: postgres://h/d\npostgres: {query: SELECT 1}";
}

/// The components of jobs, and a database.
static WITH_DATABASE: LazyLock<Registry> = LazyLock::new(|| {
    const DATABASES: &[SourceEntry] = &[SourceEntry {
        spec: SpecInfo::of::<DatabaseSpec>(),
        schemes: &["postgres"],
        check: &|url| if url.contains(' ') { Err(Fault::new("", "a URL has no spaces")) } else { Ok(()) },
        rows: true,
        build: &|value| parse::<DatabaseSpec>(value).map(|_| Arc::new(Place("postgres")) as _),
    }];
    let mut registry = REGISTRY.clone();
    registry.sources.extend(DATABASES);
    registry
});

/// Files in memory; jobs are linted as far as this crate does.
#[derive(Default)]
struct Files(BTreeMap<String, String>);

impl Files {
    fn of(files: &[(&str, &str)]) -> Self {
        Files(files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect())
    }
}

impl NamedFiles for Files {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let plain = super::paths::plain(path).to_string_lossy().into_owned();
        match self.0.get(&plain).map(String::as_str) {
            Some("locked") => Err(io::Error::new(io::ErrorKind::PermissionDenied, "permission denied")),
            Some("latin") => Ok(b"steps: {\xe4: 1}".to_vec()),
            Some(text) => Ok(text.as_bytes().to_vec()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn job_lints(&self, job: &NamedJob<'_>) -> Vec<Lint> {
        let options = LoadOptions {
            set: job.set,
            environment: &environment,
            only_set: false,
            references: &tables,
            running: true,
            replace: None,
            now: job.now,
        };
        crate::check(job.path, job.text, &WITH_DATABASE, &options, job.later)
    }
}

fn environment(name: &str) -> Option<String> {
    [("HOST", "db.example"), ("COUNT", "3"), ("PASSWORD", "hunter2")]
        .into_iter()
        .find_map(|(known, value)| (known == name).then(|| value.to_owned()))
}

/// Every job that tests name: it has the variable `DAY`.
const JOB: &str = "sources: {a: {read: 'in/${DAY:-none}.csv'}}\nsinks: {out: {from: a, write: out.csv}}\n";

fn loaded_with(yaml: &str, files: &Files, set: &[(&str, &str)]) -> LoadedSequence {
    let set: BTreeMap<String, String> =
        set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let pools = ["db".to_owned(), "web".to_owned()];
    let schedule = |value: &Value| match value.get("cron") {
        Some(Value::String(cron)) if cron.split(' ').count() == 5 => Vec::new(),
        _ => vec![Fault::new("cron", "this is no cron expression").hint("it has five fields")],
    };
    let options = SequenceOptions {
        set: &set,
        environment: &environment,
        references: &tables,
        columns: &|_| Vec::new(),
        schedule: &schedule,
        pools: Some(&pools),
        files,
        running: true,
        now: NOW,
    };
    load("etc/nightly.yaml", yaml, &WITH_DATABASE, &options)
}

/// Loads a sequence beside which there are `load.yaml`, a job, and `shop.yaml`, a sequence.
fn loaded(yaml: &str) -> LoadedSequence {
    loaded_with(yaml, &usual_files(), &[])
}

fn usual_files() -> Files {
    Files::of(&[
        ("etc/load.yaml", JOB),
        ("etc/shop.yaml", "parameters: {SHOP: }\nsteps: {one: {command: [echo, '${SHOP}']}}\n"),
    ])
}

/// Each sequence and its lints.
fn transcript(sequences: &[&str]) -> String {
    let of = |yaml: &&str| format!("{}\n---\n{}", yaml.trim_end(), shown(&loaded(yaml).lints));
    sequences.iter().map(of).collect::<Vec<_>>().join("\n==========\n")
}

/// The names of `steps` in a set of numbers.
fn numbers(steps: &[usize]) -> BTreeSet<usize> {
    steps.iter().copied().collect()
}
