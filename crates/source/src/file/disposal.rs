//! Moves or deletes a file once it is loaded. Nothing is overwritten, and a file that has changed since it was listed
//! stays.
//!
//! On one file system a move is a rename. Between two, the file is copied under a temporary name, which is renamed when
//! the copy is on the disk; then the file is deleted. A process that is killed meanwhile leaves the file where it was,
//! or in both places if it is killed before the last step: then the next attempt is refused, and says so.

use std::io;
use std::path::{Component, Path, PathBuf};

use fs_err::File;
use millstream_core::{Error, Result, Unit, fail_point};
use rustix::fs::{AtFlags, CWD, RenameFlags};
use rustix::io::Errno;

use super::glob::{has_wildcards, unescape};

/// Refuses a file that is `now` another version than when it was `listed`.
pub(super) fn check(listed: &Unit, now: &Unit) -> Result<()> {
    if listed.etag.is_some() && now.etag == listed.etag {
        return Ok(());
    }
    let what = match now.etag {
        None => "this is no regular file",
        Some(_) => "the file has changed since it was listed",
    };
    Err(Error::refused(what).in_unit(&listed.uri, None).hint("the next run looks at it again"))
}

/// Deletes the file.
pub(super) fn delete(path: &Path) -> Result<()> {
    fs_err::remove_file(path).map_err(|cause| failed("the file cannot be deleted", path, &cause))
}

/// The error of a file that would be read again at `target`.
pub(super) fn is_read_there(path: &Path, target: &Path) -> Error {
    Error::refused("the file would be read again where it is to be moved")
        .in_unit(&shown(path), None)
        .text(shown(target))
        .hint("move files into a folder that `read` does not match")
}

/// The part of `path` behind the folders that all files of its pattern share: those before the first wildcard.
/// `patterns` are patterns of paths.
pub(super) fn below(path: &Path, patterns: &[String]) -> PathBuf {
    let plain = plain(path);
    let bases = patterns.iter().map(|pattern| plain_base(pattern));
    let longest = bases.filter(|base| plain.starts_with(base)).max_by_key(|base| base.components().count());
    let below = longest.and_then(|base| plain.strip_prefix(base).map(Path::to_owned).ok());
    let name = || PathBuf::from(path.file_name().unwrap_or_default());
    below.filter(|below| below.components().all(|part| matches!(part, Component::Normal(_)))).unwrap_or_else(name)
}

/// `path` without `.` and doubled slashes.
fn plain(path: &Path) -> PathBuf {
    path.components().filter(|part| *part != Component::CurDir).collect()
}

/// The folders of `pattern` before its first wildcard or brace.
fn plain_base(pattern: &str) -> PathBuf {
    let mut parts: Vec<&str> = pattern.split('/').collect();
    parts.pop();
    let is_plain = |part: &&str| !has_wildcards(part) && !part.contains(['{', '}']);
    let base: Vec<&str> = parts.into_iter().take_while(is_plain).collect();
    let base = if base == [""] { "/".to_owned() } else { base.join("/") };
    plain(Path::new(&unescape(&base)))
}

/// Moves the file. Nothing is overwritten.
pub(super) fn move_to(path: &Path, target: &Path) -> Result<()> {
    if let Some(folder) = target.parent() {
        fs_err::create_dir_all(folder).map_err(|cause| failed("the folder cannot be created", folder, &cause))?;
    }
    match rename(path, target) {
        Err(Errno::XDEV) => copy(path, target),
        renamed => renamed.map_err(|cause| refused(path, target, cause)),
    }
}

/// Renames without overwriting anything.
fn rename(path: &Path, target: &Path) -> Result<(), Errno> {
    match rustix::fs::renameat_with(CWD, path, CWD, target, RenameFlags::NOREPLACE) {
        // The file system does not know how: a second name can only be given if it is free.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            rustix::fs::linkat(CWD, path, CWD, target, AtFlags::empty())?;
            rustix::fs::unlink(path)
        }
        renamed => renamed,
    }
}

/// Moves a file to another file system.
fn copy(path: &Path, target: &Path) -> Result<()> {
    if target.exists() {
        return Err(refused(path, target, Errno::EXIST));
    }
    let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let part = target.with_file_name(format!(".{name}.millstream-part"));
    let copied = copy_to(path, &part).map_err(|cause| failed("the file cannot be copied", &part, &cause));
    let moved = copied.and_then(|()| rename(&part, target).map_err(|cause| refused(path, target, cause)));
    if moved.is_err() {
        let _ = fs_err::remove_file(&part);
        return moved;
    }
    fail_point::pass("after_load.copied");
    fs_err::remove_file(path).map_err(|cause| failed("the file was copied, and cannot be deleted", path, &cause))
}

fn copy_to(path: &Path, part: &Path) -> io::Result<()> {
    fs_err::copy(path, part)?;
    let modified = fs_err::metadata(path)?.modified()?;
    let copy = File::options().write(true).open(part)?;
    copy.file().set_modified(modified)?;
    copy.sync_all()
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn failed(what: &str, path: &Path, cause: &io::Error) -> Error {
    Error::io(what, cause).in_unit(&shown(path), None)
}

/// The error of a rename.
fn refused(path: &Path, target: &Path, cause: Errno) -> Error {
    match cause {
        Errno::EXIST => Error::refused("there is a file of this name where it is to be moved")
            .in_unit(&shown(path), None)
            .text(target.display().to_string())
            .hint("move or delete one of the two: nothing is overwritten"),
        cause => failed(&format!("the file cannot be moved to {}", target.display()), path, &cause.into()),
    }
}

#[cfg(test)]
mod tests {
    use millstream_testkit::TempTree;

    use super::*;

    #[test]
    fn a_file_keeps_its_path_behind_the_first_wildcard() {
        for (path, pattern, expected) in [
            ("in/a.csv", "in/*.csv", "a.csv"),
            ("in/x/a.csv", "in/*/*.csv", "x/a.csv"),
            ("in/x/y/a.csv", "./in/**", "x/y/a.csv"),
            ("in/x/a.csv", "in/{x,y}/*.csv", "x/a.csv"),
            ("in/a.csv", "in/a.csv", "a.csv"),
            ("a.csv", "*.csv", "a.csv"),
            ("/data/in/a.csv", "/data/*/a.csv", "in/a.csv"),
            ("/data/a.csv", "/*/a.csv", "data/a.csv"),
            ("in [1]/a.csv", r"in \[1\]/*", "a.csv"),
            ("../in/a.csv", "../in/*", "a.csv"),
        ] {
            assert_eq!(below(Path::new(path), &[pattern.to_owned()]), Path::new(expected), "{path} {pattern}");
        }
        let both = ["in/**/*.csv".to_owned(), "in/sub/*.csv".to_owned()];
        assert_eq!(below(Path::new("in/sub/a.csv"), &both), Path::new("a.csv"));
    }

    #[test]
    fn nothing_is_overwritten() {
        let tree = TempTree::new();
        let path = tree.file("in/a.csv", "1");
        tree.file("done/a.csv", "other");
        let error = move_to(&path, &tree.path("done/a.csv")).expect_err("there is one");
        assert_eq!(error.what(), "there is a file of this name where it is to be moved");
        assert_eq!(fs_err::read_to_string(tree.path("done/a.csv")).expect("it is there"), "other");
        fs_err::remove_file(tree.path("done/a.csv")).expect("it goes");
        move_to(&path, &tree.path("done/a.csv")).expect("nothing is in the way");
        assert!(!path.exists() && tree.path("done/a.csv").exists());
    }

    #[test]
    fn what_has_changed_stays() {
        let unit = |etag: Option<&str>| Unit { etag: etag.map(str::to_owned), ..Unit::new("a") };
        check(&unit(Some("1")), &unit(Some("1"))).expect("it is the same");
        for (listed, now, what) in [
            (Some("1"), Some("2"), "the file has changed since it was listed"),
            (None, Some("2"), "the file has changed since it was listed"),
            (None, None, "this is no regular file"),
        ] {
            assert_eq!(check(&unit(listed), &unit(now)).expect_err("it differs").what(), what);
        }
    }

    #[test]
    fn a_copy_is_whole_and_has_the_time_of_the_file() {
        let tree = TempTree::new();
        let path = tree.file("in/a.csv", "some text");
        let modified = fs_err::metadata(&path).expect("it is there").modified().expect("it has a time");
        fs_err::create_dir_all(tree.path("done")).expect("a folder");
        copy(&path, &tree.path("done/a.csv")).expect("it is copied");
        assert!(!path.exists());
        assert_eq!(fs_err::read_to_string(tree.path("done/a.csv")).expect("it is there"), "some text");
        let copied = fs_err::metadata(tree.path("done/a.csv")).expect("it is there").modified().expect("a time");
        assert_eq!(copied, modified);
        assert_eq!(fs_err::read_dir(tree.path("done")).expect("a folder").count(), 1);
        let other = tree.file("in/a.csv", "other");
        assert!(copy(&other, &tree.path("done/a.csv")).is_err() && other.exists());
    }
}
