//! The package as its users get it: a wheel of the library that Cargo has just built, in a fresh virtual environment.
//! Its tests are in Python, in `tests/python`.

use std::path::{Path, PathBuf};
use std::process::Command;

use millstream_testkit::{TempTree, python_with_libraries};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn the_tests_in_python_pass() {
    let folder = TempTree::new();
    let python = environment(&folder);
    let mut tests = Command::new(&python);
    tests.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "--basetemp"]);
    run(tests.arg(folder.path("tests")).arg(Path::new(CRATE).join("tests/python")).env("PYTHONDONTWRITEBYTECODE", "1"));
}

/// The Python of a new environment that has the wheel installed, and finds the other libraries where they are kept.
fn environment(folder: &TempTree) -> PathBuf {
    let with_libraries = python_with_libraries();
    run(Command::new(&with_libraries).args(["-m", "venv"]).arg(folder.path("environment")));
    let python = folder.path("environment/bin/python");
    let packages = |of: &Path| PathBuf::from(run(Command::new(of).args(["-c", SITE_PACKAGES])).trim());
    let libraries = packages(&with_libraries).display().to_string();
    fs_err::write(packages(&python).join("libraries.pth"), libraries).expect("the environment is ours");
    let pack = Path::new(CRATE).join("tests/pack.py");
    let wheel = run(Command::new(&with_libraries).arg(pack).arg(library()).arg(folder.root()));
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"];
    run(Command::new(&python).args(pip).arg(wheel.trim()));
    python
}

const SITE_PACKAGES: &str = "import sysconfig; print(sysconfig.get_path('purelib'))";

/// The library, which Cargo builds before this test, beside it.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    test.with_file_name("lib_millstream.so")
}

/// What the command prints. It has to end well.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{out}\n{err}");
    out.into_owned()
}
