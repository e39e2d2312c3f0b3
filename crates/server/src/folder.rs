//! The folder of jobs and sequences. Nothing outside of it is reached by its interface, whatever a name says and
//! wherever symbolic links lead.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, MetadataExt, OpenOptions, OpenOptionsExt, Permissions, PermissionsExt};
use millstream::{Error, Result, sequence};
use ring::digest::{SHA256, digest};
use schemars::JsonSchema;
use serde::Serialize;

use crate::problem::Problem;

/// Larger files are not shown.
const LARGEST: u64 = 4 << 20;

/// The most files, and the deepest folder.
const MOST: usize = 5_000;
const DEEPEST: usize = 12;

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// A job.
    Job,
    /// A sequence.
    Sequence,
    /// Tests of a job.
    Test,
    /// Anything else.
    Other,
}

/// A file of the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// What it is.
    pub kind: FileKind,
    /// When it was changed, in milliseconds since 1970.
    pub modified: u64,
    /// Its size in bytes.
    pub size: u64,
    inode: u64,
}

/// A file with its text.
#[derive(Debug, Clone)]
pub struct Opened {
    /// Its text.
    pub text: String,
    /// What distinguishes this text from another one.
    pub etag: String,
    /// What it is.
    pub kind: FileKind,
    /// When it was changed, in milliseconds since 1970.
    pub modified: u64,
    /// Where it is, symbolic links followed.
    pub path: PathBuf,
}

/// All files, by their names from the folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// The files.
    pub files: BTreeMap<String, Listed>,
    /// Whether there are more.
    pub is_cut: bool,
}

/// The folder.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    dir: Dir,
    listing: Mutex<Arc<Listing>>,
    looking: Mutex<()>,
    writing: Mutex<()>,
}

fn millis(metadata: &cap_std::fs::Metadata) -> u64 {
    let milliseconds = metadata.mtime().saturating_mul(1_000).saturating_add(metadata.mtime_nsec() / 1_000_000);
    u64::try_from(milliseconds).unwrap_or_default()
}

impl Folder {
    /// The folder at `path`.
    ///
    /// # Errors
    /// If it is none, or cannot be read.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |cause: io::Error| {
            Error::io(format!("the folder {} cannot be served", path.display()), &cause)
                .hint("name a folder with jobs and sequences, or none for this one")
        };
        let root = fs_err::canonicalize(path).map_err(failed)?;
        let dir = Dir::open_ambient_dir(&root, ambient_authority()).map_err(failed)?;
        dir.entries().map_err(failed)?;
        Ok(Folder { root, dir, listing: Mutex::default(), looking: Mutex::new(()), writing: Mutex::new(()) })
    }

    /// Where it is, from the root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The name from the folder of the file at `path`, if it is in it.
    pub fn name_of(&self, path: &str) -> Option<String> {
        let name = Path::new(path).strip_prefix(&self.root).ok()?;
        Some(name.to_str()?.to_owned()).filter(|name| !name.is_empty())
    }

    /// The path from the root of the file of this name.
    pub fn path_of(&self, name: &str) -> String {
        self.root.join(name).display().to_string()
    }

    /// The files as they were at the last look.
    pub fn listing(&self) -> Arc<Listing> {
        Arc::clone(&self.listing.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Looks at the files. Returns the names of those that are new, have changed or are gone.
    pub fn look(&self) -> BTreeSet<String> {
        let _looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.listing();
        let mut now = Listing::default();
        self.walk(&self.dir, "", 0, &before, &mut now);
        let names = before.files.keys().chain(now.files.keys());
        let changed = names.filter(|name| before.files.get(*name) != now.files.get(*name)).cloned().collect();
        *self.listing.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(now);
        changed
    }

    fn walk(&self, dir: &Dir, prefix: &str, depth: usize, before: &Listing, now: &mut Listing) {
        // What cannot be read is not there for those who ask.
        let Ok(entries) = dir.entries() else { return };
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let (path, is_hidden) = (format!("{prefix}{name}"), name.starts_with('.'));
            if is_hidden {
                continue;
            }
            // Links to folders are not followed: they may lead in a circle.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if let Ok(inner) = dir.open_dir(&name)
                    && depth < DEEPEST
                {
                    self.walk(&inner, &format!("{path}/"), depth + 1, before, now);
                }
                continue;
            }
            if !is_shown(&name) {
                continue;
            }
            let Ok(metadata) = self.dir.metadata(&path) else { continue };
            if !metadata.is_file() {
                continue;
            }
            if now.files.len() >= MOST {
                now.is_cut = true;
                return;
            }
            let (modified, size, inode) = (millis(&metadata), metadata.len(), metadata.ino());
            let same =
                before.files.get(&path).filter(|old| (old.modified, old.size, old.inode) == (modified, size, inode));
            let kind =
                same.map_or_else(|| self.read(&path).map_or(FileKind::Other, |opened| opened.kind), |old| old.kind);
            now.files.insert(path, Listed { kind, modified, size, inode });
        }
    }

    /// The file of this name.
    ///
    /// # Errors
    /// If there is none in the folder, or it cannot be shown.
    pub fn read(&self, name: &str) -> Result<Opened, Problem> {
        check_name(name)?;
        // A pipe or a device is opened without waiting for it, and then refused.
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
        let mut file = self.dir.open_with(name, &options).map_err(|cause| not_there(name, &cause))?;
        let metadata = file.metadata().map_err(|cause| not_there(name, &cause))?;
        if !metadata.is_file() {
            return Err(Problem::absent(Error::refused("this is no file").text(name)));
        }
        if metadata.len() > LARGEST {
            return Err(Problem::bad(Error::refused(format!("the file is larger than {LARGEST} bytes")).text(name)));
        }
        let mut bytes = Vec::new();
        Read::by_ref(&mut file).take(LARGEST).read_to_end(&mut bytes).map_err(|cause| not_there(name, &cause))?;
        // Where the descriptor leads: what is handed to others is the file that was opened.
        // An editor may have put another one in its place meanwhile.
        let path = fs_err::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok().filter(|path| path.exists());
        let path = path.unwrap_or_else(|| self.root.join(name));
        let etag = tag(&bytes);
        let text = String::from_utf8(bytes).map_err(|cause| {
            let error = Error::refused("the file is not in UTF-8").text(name).cause(cause.utf8_error());
            Problem::conflict(error.hint("save it in UTF-8"))
        })?;
        Ok(Opened { kind: kind(name, &text), text, etag, modified: millis(&metadata), path })
    }

    /// Writes a file, if what is there is still what the caller has seen: `etag` is that of it, or `None` if there was
    /// no file. It appears as a whole or not at all. Returns its new tag.
    ///
    /// # Errors
    /// If the file is another one, or it cannot be written.
    pub fn write(&self, name: &str, text: &str, etag: Option<&str>) -> Result<String, Problem> {
        check_name(name)?;
        if text.len() as u64 > LARGEST {
            return Err(Problem::bad(Error::refused(format!("the text has more than {LARGEST} bytes")).text(name)));
        }
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let there = match self.read(name) {
            Ok(opened) => Some(opened.etag),
            Err(problem) if problem.status == http::StatusCode::NOT_FOUND => None,
            Err(problem) => return Err(problem),
        };
        if there.as_deref() != etag {
            let what = if there.is_some() { "the file has changed meanwhile" } else { "the file is gone meanwhile" };
            let error = Error::refused(what).text(name).hint("read it again, and repeat the change");
            return Err(Problem::new(http::StatusCode::PRECONDITION_FAILED, error));
        }
        let failed = |cause: io::Error| {
            Problem::from(
                Error::io("the file cannot be written", &cause).text(name).hint("what was there is unchanged"),
            )
        };
        // A link is written through: where it leads in the folder.
        let target = match self.dir.canonicalize(name) {
            Ok(path) => path,
            Err(_) => PathBuf::from(name),
        };
        if let Some(parent) = target.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            self.dir.create_dir_all(parent).map_err(failed)?;
        }
        let new = target.with_file_name(format!(".{}.new", std::process::id()));
        let written = self.put(&new, &target, text);
        if written.is_err() {
            let _ = self.dir.remove_file(&new);
        }
        written.map_err(failed)?;
        Ok(tag(text.as_bytes()))
    }

    fn put(&self, new: &Path, target: &Path, text: &str) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = self.dir.open_with(new, options.create(true).write(true).truncate(true).mode(0o600))?;
        let permissions = match self.dir.metadata(target) {
            Ok(metadata) => metadata.permissions(),
            Err(_) => Permissions::from_mode(0o644),
        };
        file.set_permissions(permissions)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        self.dir.rename(new, &self.dir, target)
    }
}

/// Whether files of this name are shown.
fn is_shown(name: &str) -> bool {
    !name.starts_with('.') && (name.ends_with(".yaml") || name.ends_with(".yml"))
}

/// A name is a path from the folder downwards.
fn check_name(name: &str) -> Result<(), Problem> {
    let is_plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    let is_hidden = name.split('/').any(|part| part.starts_with('.') || part.is_empty());
    match is_plain && !is_hidden && !name.contains('\0') && is_shown(name.rsplit('/').next().unwrap_or_default()) {
        true => Ok(()),
        false => {
            let error = Error::refused("this is not the name of a job or a sequence in the folder").text(name);
            Err(Problem::absent(error.hint("names begin at the folder that is served, and end in `.yaml`")))
        }
    }
}

fn not_there(name: &str, cause: &io::Error) -> Problem {
    let error = Error::io("the file cannot be read", cause).text(name);
    match cause.kind() {
        io::ErrorKind::NotFound => Problem::absent(error),
        // What leads out of the folder is refused by the system with different numbers.
        _ => Problem::forbidden(error.hint("only files below the folder that is served can be read")),
    }
}

/// What distinguishes a text from others.
pub fn tag(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn kind(name: &str, text: &str) -> FileKind {
    let has = |key: &str| text.lines().any(|line| line.starts_with(key));
    if name.ends_with(".test.yaml") || name.ends_with(".test.yml") {
        FileKind::Test
    } else if sequence::is_sequence(text) {
        FileKind::Sequence
    } else if has("sources:") || has("sinks:") {
        FileKind::Job
    } else {
        FileKind::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "sources:\n  a: {read: a.csv}\n";

    fn place() -> (tempfile::TempDir, Folder) {
        let place = tempfile::TempDir::new().expect("a folder");
        let jobs = place.path().join("jobs");
        fs_err::create_dir_all(jobs.join("deep")).expect("a folder");
        fs_err::write(jobs.join("a.yaml"), JOB).expect("a file");
        fs_err::write(jobs.join("deep/b.yml"), "steps:\n  x: {job: a.yaml}\n").expect("a file");
        fs_err::write(jobs.join("a.test.yaml"), "tests: []\n").expect("a file");
        fs_err::write(jobs.join("a.csv"), "1\n").expect("a file");
        fs_err::write(jobs.join(".hidden.yaml"), JOB).expect("a file");
        fs_err::write(place.path().join("secret.yaml"), "password: x\n").expect("a file");
        let folder = Folder::open(&jobs).expect("it opens");
        (place, folder)
    }

    fn link(place: &tempfile::TempDir, to: &str, name: &str) {
        fs_err::os::unix::fs::symlink(to, place.path().join("jobs").join(name)).expect("a link");
    }

    #[test]
    fn names_lead_nowhere_but_into_the_folder() {
        let (place, folder) = place();
        link(&place, "../secret.yaml", "out.yaml");
        link(&place, place.path().join("secret.yaml").to_str().expect("a path"), "absolute.yaml");
        link(&place, "..", "up");
        link(&place, "deep/b.yml", "inside.yaml");
        for name in [
            "../secret.yaml",
            "/etc/passwd",
            "deep/../../secret.yaml",
            "up/secret.yaml",
            "out.yaml",
            "absolute.yaml",
            "./a.yaml",
            "a.yaml/",
            "deep//b.yml",
            "",
            ".",
            "..",
            "a.csv",
            ".hidden.yaml",
            "deep",
            "a.yaml\0.yaml",
            "up/jobs/a.yaml",
            "/proc/self/environ",
            "no/such.yaml",
        ] {
            let problem = folder.read(name).expect_err(name);
            assert!([403, 404].contains(&problem.status.as_u16()), "{name}: {problem:?}");
            if name != "no/such.yaml" {
                assert!(folder.write(name, "x", None).is_err(), "{name}");
            }
        }
        assert_eq!(folder.read("a.yaml").expect("a file").text, JOB);
        let inside = folder.read("inside.yaml").expect("a link that stays in the folder");
        assert_eq!((inside.kind, inside.path), (FileKind::Sequence, folder.root().join("deep/b.yml")));
        assert_eq!(fs_err::read_to_string(place.path().join("secret.yaml")).expect("a file"), "password: x\n");
    }

    #[test]
    fn a_file_is_written_if_it_is_the_one_that_was_seen() {
        let (place, folder) = place();
        let seen = folder.read("a.yaml").expect("a file").etag;
        let status = |written: Result<String, Problem>| written.map_or_else(|problem| problem.status.as_u16(), |_| 200);
        assert_eq!(status(folder.write("a.yaml", "x", None)), 412, "there is one");
        let next = folder.write("a.yaml", "one", Some(&seen)).expect("written");
        assert_eq!(status(folder.write("a.yaml", "two", Some(&seen))), 412, "it is another one");
        assert_eq!(status(folder.write("a.yaml", "two", Some(&next))), 200);
        assert_eq!(status(folder.write("new/c.yaml", JOB, None)), 200);
        assert_eq!(status(folder.write("gone.yaml", JOB, Some("x"))), 412);
        link(&place, "deep/b.yml", "inside.yaml");
        let seen = folder.read("inside.yaml").expect("a file").etag;
        assert_eq!(status(folder.write("inside.yaml", "through", Some(&seen))), 200);
        let jobs = place.path().join("jobs");
        assert!(fs_err::symlink_metadata(jobs.join("inside.yaml")).expect("there").is_symlink());
        assert_eq!(fs_err::read_to_string(jobs.join("deep/b.yml")).expect("a file"), "through");
        assert_eq!(fs_err::read_to_string(jobs.join("a.yaml")).expect("a file"), "two");
        let left = folder.look();
        assert!(left.iter().all(|name| !name.contains(".new")), "{left:?}");
    }

    #[test]
    fn a_look_says_what_has_changed() {
        let (place, folder) = place();
        link(&place, "../secret.yaml", "out.yaml");
        assert_eq!(folder.look().into_iter().collect::<Vec<_>>(), ["a.test.yaml", "a.yaml", "deep/b.yml"]);
        let listing = folder.listing();
        let kinds: Vec<FileKind> = listing.files.values().map(|file| file.kind).collect();
        assert_eq!(kinds, [FileKind::Test, FileKind::Job, FileKind::Sequence]);
        assert!(folder.look().is_empty());
        fs_err::write(place.path().join("jobs/a.yaml"), "steps: {}\n").expect("a file");
        fs_err::remove_file(place.path().join("jobs/deep/b.yml")).expect("removed");
        assert_eq!(folder.look().into_iter().collect::<Vec<_>>(), ["a.yaml", "deep/b.yml"]);
        assert_eq!(folder.listing().files["a.yaml"].kind, FileKind::Sequence);
    }

    #[test]
    fn what_is_no_file_or_no_text_is_not_read() {
        let (place, folder) = place();
        let jobs = place.path().join("jobs");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            jobs.join("pipe.yaml"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .expect("a pipe");
        assert_eq!(folder.read("pipe.yaml").expect_err("a pipe").status, 404);
        fs_err::write(jobs.join("latin.yaml"), b"name: caf\xe9\n").expect("a file");
        assert_eq!(folder.read("latin.yaml").expect_err("no text").status, 409);
        assert!(folder.write("latin.yaml", "x", None).is_err(), "it is not replaced");
        let large = "x".repeat(usize::try_from(LARGEST).expect("small") + 1);
        assert_eq!(folder.write("large.yaml", &large, None).expect_err("too large").status, 400);
        folder.look();
        assert!(!folder.listing().files.contains_key("pipe.yaml"));
    }
}
