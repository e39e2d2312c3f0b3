//! Files that only the user of the server may read, in `STATE/server`. Each appears as a whole or not at all.

use std::fs::DirBuilder;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A file that is older is not being written any more.
const LEFT: Duration = Duration::from_secs(60 * 60);

/// The folder of the server in the state folder `state`; it is created if it is missing.
pub fn folder(state: &Path) -> io::Result<PathBuf> {
    let folder = state.join("server");
    DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    Ok(folder)
}

/// Puts `text` in the place of the file at `path`. It outlasts a crash of the machine.
pub fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.create(true).write(true).truncate(true).mode(0o600).open(&new)?;
    let written = file.write_all(text).and_then(|()| file.sync_all()).and_then(|()| fs_err::rename(&new, path));
    let written = written.and_then(|()| sync_folder_of(path));
    if written.is_err() {
        let _ = fs_err::remove_file(&new);
    }
    written
}

/// Removes from `folder` what a [`write()`] left that was killed. What is younger may be of a process that lives.
pub fn tidy(folder: &Path) {
    let is_left = |entry: &fs_err::DirEntry| {
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        entry.path().extension().is_some_and(|extension| extension == "new")
            && modified.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age >= LEFT))
    };
    for entry in fs_err::read_dir(folder).into_iter().flatten().flatten().filter(is_left) {
        let _ = fs_err::remove_file(entry.path());
    }
}

/// Opens a file to append to it.
pub fn append(path: &Path) -> io::Result<std::fs::File> {
    std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// What was renamed or removed beside `path` stays so, whatever happens to the machine.
pub fn sync_folder_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) => fs_err::File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}
