//! Replays every corpus through its target, and checks that no target, binary or corpus is missing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use millstream_fuzz::TARGETS;

fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs_err::read_dir(folder)
        .expect("the folder is there")
        .map(|entry| entry.expect("it can be listed").path())
        .collect();
    paths.sort();
    paths
}

fn stems(folder: &str) -> BTreeSet<String> {
    let stem = |path: PathBuf| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    entries(&home().join(folder)).into_iter().filter_map(stem).collect()
}

#[test]
fn every_corpus_is_replayed() {
    for (name, run) in TARGETS {
        let files = entries(&home().join("corpus").join(name));
        assert!(!files.is_empty(), "target {name} has no corpus");
        for file in files {
            let data = fs_err::read(&file).expect("a corpus file");
            let result = std::panic::catch_unwind(|| run(&data));
            assert!(result.is_ok(), "target {name} fails on {}", file.display());
        }
    }
}

#[test]
fn nothing_is_forgotten() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(targets.len(), TARGETS.len(), "a target is listed twice");
    assert_eq!(stems("bin"), targets, "the binaries");
    assert_eq!(stems("corpus"), targets, "the corpora");
    let manifest = fs_err::read_to_string(home().join("Cargo.toml")).expect("the manifest");
    for name in &targets {
        assert!(manifest.contains(&format!("path = \"bin/{name}.rs\"")), "Cargo.toml has no [[bin]] for {name}");
    }
}

#[test]
fn memory_is_counted() {
    let ((), peak) = millstream_fuzz::memory::peak_of(|| drop(Vec::<u8>::with_capacity(1 << 20)));
    assert!((1 << 20..2 << 20).contains(&peak), "{peak}");
}
