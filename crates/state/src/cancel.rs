//! Cancelling a run of another process: a file asks for it, and the run looks for the file twice a second. Numbers of
//! processes are not trusted, so no signal is sent.

use std::path::{Path, PathBuf};

use millstream_core::{Error, Result};

/// The folder of these files in the state folder.
pub(crate) const FOLDER: &str = "cancel";

/// The file that asks a run to stop.
#[derive(Debug, Clone)]
pub struct CancelFile(PathBuf);

impl CancelFile {
    /// Of `run` in the state folder `state`; it is not there until somebody asks.
    pub fn new(state: &Path, run: &str) -> Self {
        CancelFile(state.join(FOLDER).join(run))
    }

    /// Asks the run to stop. Asking again changes nothing.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn ask(&self) -> Result<()> {
        let folder = self.0.parent().unwrap_or(&self.0);
        let written = fs_err::create_dir_all(folder).and_then(|()| fs_err::write(&self.0, ""));
        written.map_err(|cause| Error::io("the run cannot be cancelled", &cause))
    }

    /// Whether the run is asked to stop.
    pub fn is_asked(&self) -> bool {
        self.0.exists()
    }

    /// Removes the file, at the end of the run. It does no harm if that fails: names of runs are used once.
    pub fn remove(&self) {
        let _ = fs_err::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_asked_until_the_file_is_removed() {
        let state = tempfile::TempDir::new().expect("a folder");
        let (file, other) = (CancelFile::new(state.path(), "1-1"), CancelFile::new(state.path(), "2-2"));
        assert!(!file.is_asked());
        file.ask().expect("asked");
        file.ask().expect("asked again");
        assert!(CancelFile::new(state.path(), "1-1").is_asked() && !other.is_asked());
        file.remove();
        file.remove();
        assert!(!file.is_asked());
    }
}
