//! The pages: their bundle is that of their source, and they work in a browser, on real runs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::harness::MILLSTREAM;

/// The source of the pages, with the libraries that build and test them, installed once.
static PAGES: LazyLock<PathBuf> = LazyLock::new(|| {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ui").canonicalize().expect("the pages");
    let mut install = Command::new("npm");
    install.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]).current_dir(&pages);
    run(install, "npm ci");
    pages
});

#[track_caller]
fn run(mut command: Command, what: &str) -> String {
    let output = command.output().unwrap_or_else(|cause| panic!("{what}: {cause}"));
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {said}");
    said
}

fn node(arguments: &[&str]) -> Command {
    let mut command = Command::new("node");
    command.args(arguments).current_dir(&*PAGES);
    command
}

/// All files below a folder, by their paths from it.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs_err::read_dir(&next).expect("a folder") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let name = path.strip_prefix(folder).expect("below").to_owned();
                    all.push((name, fs_err::read(&path).expect("a file")));
                }
            }
        }
    }
    all.sort();
    all
}

#[test]
fn the_bundle_is_that_of_the_source() {
    let built = tempfile::TempDir::new().expect("a folder");
    let mut build = node(&["build.mjs"]);
    build.env("OUT", built.path());
    run(build, "the build of the pages");
    let (new, old) = (files(built.path()), files(&PAGES.join("dist")));
    let names = |files: &[(PathBuf, Vec<u8>)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&new), names(&old), "run `npm run build` in `ui` and commit `ui/dist`");
    for ((name, new), (_, old)) in new.iter().zip(&old) {
        assert!(new == old, "{} is another one: run `npm run build` in `ui` and commit `ui/dist`", name.display());
    }
}

#[test]
fn the_source_of_the_pages_is_sound() {
    run(node(&["node_modules/typescript/bin/tsc", "--noEmit", "-p", "."]), "the types of the pages");
    run(node(&["test.mjs"]), "the unit tests of the pages");
}

#[test]
fn the_pages_work_in_a_browser() {
    let mut tests = node(&["browser/run.mjs"]);
    tests.env("MILLSTREAM", MILLSTREAM);
    run(tests, "the tests in a browser");
}
