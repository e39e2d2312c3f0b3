//! A folder of test data that is removed at the end.

use std::path::{Path, PathBuf};

/// A temporary folder, removed when dropped.
#[derive(Debug)]
pub struct TempTree(tempfile::TempDir);

impl Default for TempTree {
    fn default() -> Self {
        TempTree::new()
    }
}

impl TempTree {
    /// An empty folder that all users may read (a web server may run as another user).
    #[expect(clippy::expect_used, reason = "tests stop here")]
    pub fn new() -> Self {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::Builder::new()
            .prefix("millstream-test-")
            .permissions(std::fs::Permissions::from_mode(0o755))
            .tempdir()
            .expect("a temporary folder can be made");
        TempTree(folder)
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        self.0.path()
    }

    /// The path of `name` in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// The path of `name` in it, as text.
    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Writes a file, and creates the folders above it.
    #[expect(clippy::expect_used, reason = "tests stop here")]
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        if let Some(parent) = path.parent() {
            fs_err::create_dir_all(parent).expect("a folder can be made");
        }
        fs_err::write(&path, content).expect("a file can be written");
        path
    }

    /// Creates a folder, and those above it.
    #[expect(clippy::expect_used, reason = "tests stop here")]
    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs_err::create_dir_all(&path).expect("a folder can be made");
        path
    }
}
