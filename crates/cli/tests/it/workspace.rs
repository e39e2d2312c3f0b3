//! The dependency direction of the workspace: core ← net ← {database, queue} ← {source, sink}, core ← process ←
//! {source, transform, sink}, core ← {job, codec, format, schedule, sort, state}; {job, schedule, state} ← scheduler,
//! state ← page; core ← cluster; all but these ← engine ← sequencer ← millstream ← cli ← python,
//! {net, page, scheduler} ← cli, and {millstream, page, scheduler} ← server ← cli.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, MetadataCommand};

/// What each crate may use of the others. A new crate must be given its place here.
const ALLOWED: &[(&str, &[&str])] = &[
    ("millstream-core", &[]),
    ("millstream-job", &["millstream-core"]),
    ("millstream-net", &["millstream-core"]),
    ("millstream-database", &["millstream-core", "millstream-net"]),
    ("millstream-queue", &["millstream-core", "millstream-net"]),
    ("millstream-process", &["millstream-core", "millstream-format"]),
    (
        "millstream-source",
        &["millstream-core", "millstream-database", "millstream-net", "millstream-process", "millstream-queue"],
    ),
    ("millstream-codec", &["millstream-core"]),
    ("millstream-format", &["millstream-core"]),
    ("millstream-sink", &["millstream-core", "millstream-database", "millstream-process", "millstream-queue"]),
    ("millstream-cluster", &["millstream-core"]),
    ("millstream-schedule", &["millstream-core"]),
    ("millstream-scheduler", &["millstream-core", "millstream-job", "millstream-schedule", "millstream-state"]),
    ("millstream-sort", &["millstream-core"]),
    ("millstream-state", &["millstream-core"]),
    ("millstream-page", &["millstream-core", "millstream-state"]),
    ("millstream-transform", &["millstream-core", "millstream-process"]),
    (
        "millstream-engine",
        &[
            "millstream-cluster",
            "millstream-core",
            "millstream-job",
            "millstream-source",
            "millstream-codec",
            "millstream-format",
            "millstream-process",
            "millstream-sink",
            "millstream-sort",
            "millstream-state",
            "millstream-transform",
        ],
    ),
    (
        "millstream-sequencer",
        &[
            "millstream-core",
            "millstream-engine",
            "millstream-job",
            "millstream-process",
            "millstream-schedule",
            "millstream-state",
        ],
    ),
    (
        "millstream",
        &[
            "millstream-cluster",
            "millstream-core",
            "millstream-job",
            "millstream-engine",
            "millstream-sequencer",
            "millstream-state",
        ],
    ),
    ("millstream-server", &["millstream", "millstream-page", "millstream-scheduler"]),
    (
        "millstream-cli",
        &["millstream", "millstream-net", "millstream-page", "millstream-scheduler", "millstream-server"],
    ),
    ("millstream-python", &["millstream", "millstream-cli"]),
    ("millstream-example-components", &["millstream"]),
];

/// Crates that only tests and benchmarks use.
const FOR_TESTS: &[&str] = &["millstream-testkit", "millstream-fuzz", "millstream-limit"];

#[test]
fn crates_depend_in_one_direction() {
    let metadata = MetadataCommand::new().no_deps().exec().expect("cargo metadata");
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    for package in metadata.workspace_packages() {
        let name = package.name.as_str();
        if FOR_TESTS.contains(&name) {
            continue;
        }
        let allowed = allowed.get(name).unwrap_or_else(|| panic!("{name} has no place in the dependency direction"));
        for dependency in &package.dependencies {
            let other = dependency.name.as_str();
            if other.starts_with("millstream") && dependency.kind != DependencyKind::Development {
                assert!(allowed.contains(&other), "{name} must not depend on {other}");
            }
        }
    }
}

#[test]
fn only_the_engine_knows_the_query_engine() {
    let metadata = MetadataCommand::new().no_deps().exec().expect("cargo metadata");
    for package in metadata.workspace_packages() {
        let knows = package.dependencies.iter().any(|dependency| dependency.name.starts_with("datafusion"));
        assert_eq!(knows, package.name.as_str() == "millstream-engine", "{}", package.name);
    }
}

/// The files of a folder and of those in it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs_err::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Whether comments of a file hold Rust that would be compiled and run as a test.
fn has_code_in_docs(text: &str) -> bool {
    let comments = text
        .lines()
        .map(str::trim_start)
        .filter_map(|line| line.strip_prefix("//!").or_else(|| line.strip_prefix("///")).map(str::trim_start));
    let fences: Vec<&str> = comments.filter_map(|line| line.strip_prefix("```")).collect();
    // Every other one ends what the one before has begun.
    fences.iter().step_by(2).any(|kind| !["text", "yaml", "json", "sql", "sh"].contains(&kind.trim()))
}

/// Looking for examples in the documentation of a crate takes seconds: those that have none say so.
#[test]
fn examples_in_documentation_are_tested() {
    let metadata = MetadataCommand::new().no_deps().exec().expect("cargo metadata");
    for target in metadata.workspace_packages().iter().flat_map(|package| &package.targets) {
        let is_library = !target.is_bin() && !target.is_test() && !target.is_example() && !target.is_custom_build();
        if !is_library || target.doctest {
            continue;
        }
        for file in files(target.src_path.parent().expect("a folder").as_std_path()) {
            let is_rust = file.extension().is_some_and(|extension| extension == "rs");
            let has_code = is_rust && has_code_in_docs(&fs_err::read_to_string(&file).expect("a text"));
            assert!(!has_code, "{} has an example, and the crate says `doctest = false`", file.display());
        }
    }
}
