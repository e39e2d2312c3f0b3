//! What children print: a file for each occurrence, in a folder for each sequence.
//!
//! ```text
//!  STATE/logs/nightly-0123456789abcdef/2026-01-31T01-00-00.log
//! ```

use std::io;
use std::path::{Path, PathBuf};

use chrono::DateTime;
use millstream_core::stable_hash::hash;

/// The folder of the logs in the state folder.
const FOLDER: &str = "logs";

/// The log of the occurrence of `sequence` at `planned`.
pub(crate) fn path(state: &Path, sequence: &str, planned: i64) -> PathBuf {
    let stem = Path::new(sequence).file_stem().unwrap_or_default().to_string_lossy();
    let folder = format!("{stem}-{:016x}", hash(sequence));
    let time = DateTime::from_timestamp_millis(planned).map(|time| {
        let form = if planned % 1000 == 0 { "%Y-%m-%dT%H-%M-%S" } else { "%Y-%m-%dT%H-%M-%S%.3f" };
        time.format(form).to_string()
    });
    state.join(FOLDER).join(folder).join(format!("{}.log", time.unwrap_or_else(|| planned.to_string())))
}

/// Opens a log; what an earlier process has written stays.
pub(crate) fn open(path: &Path) -> io::Result<std::fs::File> {
    if let Some(folder) = path.parent() {
        fs_err::create_dir_all(folder)?;
    }
    let options = fs_err::OpenOptions::new().create(true).append(true).clone();
    Ok(options.open(path)?.into_parts().0)
}

/// The log of the occurrence of `sequence` at `planned` in the state folder `state`, if something is in it. An empty
/// one is removed.
pub fn kept(state: &Path, sequence: &str, planned: i64) -> Option<PathBuf> {
    let path = path(state, sequence, planned);
    match fs_err::metadata(&path).ok()?.len() {
        0 => {
            let _ = fs_err::remove_file(&path);
            None
        }
        _ => Some(path),
    }
}

/// Removes a log, if there is one.
pub(crate) fn remove(state: &Path, sequence: &str, planned: i64) {
    let _ = fs_err::remove_file(path(state, sequence, planned));
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_log_is_kept_if_something_is_in_it() {
        let state = tempfile::TempDir::new().expect("a folder");
        let (sequence, planned) = ("/jobs/nightly.yaml", 1_769_821_200_000);
        let file = path(state.path(), sequence, planned);
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned());
        assert_eq!(name.as_deref(), Some("2026-01-31T01-00-00.log"));
        assert_ne!(path(state.path(), sequence, planned + 1), file);
        assert_eq!(kept(state.path(), sequence, planned), None);
        let mut log = open(&file).expect("a file");
        assert_eq!((kept(state.path(), sequence, planned), file.exists()), (None, false));
        drop(log);
        for line in ["one\n", "two\n"] {
            log = open(&file).expect("a file");
            log.write_all(line.as_bytes()).expect("written");
        }
        assert_eq!(kept(state.path(), sequence, planned).as_ref(), Some(&file));
        assert_eq!(fs_err::read_to_string(&file).expect("a file"), "one\ntwo\n");
        remove(state.path(), sequence, planned);
        assert!(!file.exists());
    }
}
