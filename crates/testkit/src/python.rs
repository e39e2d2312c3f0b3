//! Python with the libraries that read and write what Millstream does.

use std::path::PathBuf;

/// Python with pyarrow, pandas, Polars, DuckDB and pytest; `scripts/install-test-servers.sh` puts it there.
pub fn python_with_libraries() -> PathBuf {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|cache| !cache.is_empty()).map(PathBuf::from).or(home);
    let servers = cache.expect("the environment names a home").join("millstream/test-servers");
    let program = servers.join("python-libraries-1/bin/python");
    assert!(program.exists(), "{} is needed by the tests: run scripts/install-test-servers.sh", program.display());
    program
}
