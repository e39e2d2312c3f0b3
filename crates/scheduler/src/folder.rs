//! Finds sequences with schedules in a folder, and what becomes of their files.
//!
//! It looks from time to time, since that works on every file system. Looking takes little of the time: where a folder
//! has very many files it looks less often. A file that has changed is read once it is the same at two looks, so that
//! none is read that is about to be written.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_core::{Error, Result};

/// So often it looks, unless that takes long.
const EVERY: Duration = Duration::from_secs(2);

/// It looks at least so often.
const SELDOM: Duration = Duration::from_secs(60);

/// So many times as long as a look takes it does not look.
const PAUSE: u32 = 50;

/// Larger files are not sequences.
const LARGEST: u64 = 4 << 20;

/// What distinguishes a version of a file from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    modified: (i64, i64),
    size: u64,
    inode: u64,
}

impl Stamp {
    /// When the file was changed, in milliseconds since 1970.
    pub fn modified(&self) -> i64 {
        self.modified.0.saturating_mul(1000).saturating_add(self.modified.1 / 1_000_000)
    }
}

/// A file that is new or has changed, or is gone.
#[derive(Debug)]
pub(crate) struct Change {
    /// Its path from the root.
    pub path: Arc<str>,
    /// Its text and its version, if it is there.
    pub now: Option<(io::Result<String>, Stamp)>,
}

/// The folder.
#[derive(Debug)]
pub(crate) struct Folder {
    root: PathBuf,
    known: BTreeMap<Arc<str>, File>,
    next: Option<Instant>,
    has_looked: bool,
    /// What could not be read at the last look, so that it is reported once.
    unread: BTreeSet<PathBuf>,
}

#[derive(Debug, Clone, Copy)]
struct File {
    seen: Stamp,
    read: Option<Stamp>,
}

/// What is there now.
#[derive(Debug, Default)]
struct Found {
    files: BTreeMap<Arc<str>, Stamp>,
    unread: BTreeMap<PathBuf, io::Error>,
}

impl Folder {
    /// The folder at `path`.
    ///
    /// # Errors
    /// If there is no such folder.
    pub fn new(path: &Path) -> Result<Self> {
        let unusable = |cause: io::Error| {
            Error::io(format!("the folder {} cannot be read", path.display()), &cause)
                .hint("name a folder with sequences, or none for this one")
        };
        let root = fs_err::canonicalize(path).map_err(unusable)?;
        fs_err::read_dir(&root).map_err(unusable)?;
        Ok(Folder { root, known: BTreeMap::new(), next: None, has_looked: false, unread: BTreeSet::new() })
    }

    /// The file at `path` is read again.
    pub fn forget(&mut self, path: &str) {
        if let Some(file) = self.known.get_mut(path) {
            file.read = None;
        }
    }

    /// What has changed since the last look, if it is time for another one, and what cannot be read any more.
    pub fn changes(&mut self) -> (Vec<Change>, Vec<Error>) {
        let begin = Instant::now();
        if self.next.is_some_and(|next| begin < next) {
            return (Vec::new(), Vec::new());
        }
        let mut found = Found::default();
        walk(&self.root, &mut found);
        let mut changes = self.gone(&found);
        for (path, stamp) in &found.files {
            let known = self.known.get(path).copied();
            let is_new = known.is_none_or(|known| known.read != Some(*stamp));
            // Once it stays as it is, it is read.
            let is_still = !self.has_looked || known.is_some_and(|known| known.seen == *stamp);
            let mut file = File { seen: *stamp, read: known.and_then(|known| known.read) };
            if is_new
                && is_still
                && let Some(text) = read(path, stamp)
            {
                file.read = Some(*stamp);
                changes.push(Change { path: Arc::clone(path), now: Some((text, *stamp)) });
            }
            self.known.insert(Arc::clone(path), file);
        }
        self.has_looked = true;
        let pause = (begin.elapsed() * PAUSE).clamp(EVERY, SELDOM);
        self.next = Some(Instant::now() + pause);
        (changes, self.news_of_unread(found.unread))
    }

    /// Files that are not there any more. What is in a folder that cannot be read may be there.
    fn gone(&mut self, found: &Found) -> Vec<Change> {
        let is_there = |path: &Arc<str>| {
            found.files.contains_key(path) || found.unread.keys().any(|folder| Path::new(&**path).starts_with(folder))
        };
        let gone: BTreeSet<Arc<str>> = self.known.keys().filter(|path| !is_there(path)).cloned().collect();
        self.known.retain(|path, _| !gone.contains(path));
        gone.into_iter().map(|path| Change { path, now: None }).collect()
    }

    fn news_of_unread(&mut self, unread: BTreeMap<PathBuf, io::Error>) -> Vec<Error> {
        let new = unread.iter().filter(|(path, _)| !self.unread.contains(*path));
        let errors = new
            .map(|(path, cause)| {
                Error::io(format!("{} cannot be read", path.display()), cause)
                    .hint("what was known of the sequences in it still holds")
            })
            .collect();
        self.unread = unread.into_keys().collect();
        errors
    }
}

/// Adds the files in `folder` and below it. Hidden folders and files are left out, and links to folders.
fn walk(folder: &Path, found: &mut Found) {
    let entries = match fs_err::read_dir(folder) {
        Ok(entries) => entries,
        // It was removed meanwhile, unless it is the folder itself.
        Err(cause) => {
            found.unread.insert(folder.to_owned(), cause);
            return;
        }
    };
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let Ok(kind) = entry.file_type() else { continue };
        if name.to_string_lossy().starts_with('.') {
            continue;
        }
        if kind.is_dir() {
            walk(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml") {
            // A link stands for its file, which may be there twice.
            let path = if kind.is_symlink() { fs_err::canonicalize(&path).unwrap_or(path) } else { path };
            let Ok(metadata) = fs_err::metadata(&path) else { continue };
            if metadata.is_file() && metadata.len() <= LARGEST {
                let modified = (metadata.mtime(), metadata.mtime_nsec());
                let stamp = Stamp { modified, size: metadata.len(), inode: metadata.ino() };
                found.files.insert(path.to_string_lossy().into(), stamp);
            }
        }
    }
}

/// The text of a file; `None` if it is another version by now.
fn read(path: &str, stamp: &Stamp) -> Option<io::Result<String>> {
    let bytes = match fs_err::read(path) {
        Ok(bytes) if bytes.len() as u64 != stamp.size => return None,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return None,
        other => other,
    };
    let not_text = |_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8");
    Some(bytes.and_then(|bytes| String::from_utf8(bytes).map_err(not_text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names and texts of the changes of one look.
    fn look(folder: &mut Folder) -> Vec<String> {
        folder.next = None;
        let (changes, errors) = folder.changes();
        assert!(errors.is_empty(), "{errors:?}");
        let shown = |change: &Change| {
            let name = Path::new(&*change.path).file_name().unwrap_or_default().to_string_lossy().into_owned();
            match &change.now {
                Some((text, _)) => format!("{name}: {}", text.as_deref().unwrap_or("?")),
                None => format!("{name} is gone"),
            }
        };
        changes.iter().map(shown).collect()
    }

    #[test]
    fn files_are_read_once_they_stay_as_they_are() {
        let root = tempfile::TempDir::new().expect("a folder");
        let write = |name: &str, text: &str| {
            let path = root.path().join(name);
            fs_err::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs_err::write(path, text).expect("written");
        };
        write("a.yaml", "1");
        write("deep/er/b.yml", "2");
        write(".git/c.yaml", "3");
        write("deep/.d.yaml", "4");
        write("e.txt", "5");
        std::os::unix::fs::symlink(root.path().join("a.yaml"), root.path().join("z.yaml")).expect("a link");
        let mut folder = Folder::new(root.path()).expect("a folder");
        assert_eq!(look(&mut folder), ["a.yaml: 1", "b.yml: 2"]);
        assert!(look(&mut folder).is_empty());
        write("a.yaml", "11");
        write("f.yaml", "6");
        assert!(look(&mut folder).is_empty(), "they may be about to be written");
        write("a.yaml", "111");
        assert_eq!(look(&mut folder), ["f.yaml: 6"]);
        assert_eq!(look(&mut folder), ["a.yaml: 111"]);
        fs_err::remove_dir_all(root.path().join("deep")).expect("removed");
        assert_eq!(look(&mut folder), ["b.yml is gone"]);
        write("g.yaml", "\u{fffd}");
        fs_err::write(root.path().join("g.yaml"), b"\xff").expect("written");
        look(&mut folder);
        assert_eq!(look(&mut folder), ["g.yaml: ?"]);
    }

    #[test]
    fn a_folder_that_cannot_be_read_keeps_its_files() {
        let root = tempfile::TempDir::new().expect("a folder");
        let moved = root.path().with_extension("moved");
        fs_err::write(root.path().join("a.yaml"), "1").expect("written");
        let mut folder = Folder::new(root.path()).expect("a folder");
        assert_eq!(look(&mut folder).len(), 1);
        fs_err::rename(root.path(), &moved).expect("moved");
        for errors in [1, 0] {
            folder.next = None;
            let found = folder.changes();
            assert_eq!((found.0.len(), found.1.len()), (0, errors), "{found:?}");
        }
        fs_err::rename(&moved, root.path()).expect("moved back");
        assert!(look(&mut folder).is_empty());
        assert!(Folder::new(&moved).is_err());
    }
}
