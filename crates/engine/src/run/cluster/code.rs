//! Code of one's own on its way to workers: the files that steps name, and the Python modules beside them. Each travels
//! with its hash, and is not used where that differs.
//!
//! A worker that has the same files under the same path, as in a shared folder, uses those. Otherwise they are put into
//! a folder of its own. What else a program reads has to be on all machines.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use millstream_core::{Error, Result};
use millstream_job::Job;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::fingerprint::code_files;
use crate::prepare::Prepared;

/// The most bytes of all files together.
const MOST_BYTES: usize = 16 << 20;

/// The most files.
const MOST_FILES: usize = 2_000;

/// How deep below the file of a function modules are looked for.
const DEPTH: usize = 6;

/// A file of code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CodeFile {
    /// Its path from the folder of the job file.
    path: PathBuf,
    /// The SHA-256 of what it holds, in hexadecimal digits.
    hash: String,
    /// Whether it can be run.
    is_program: bool,
    /// What it holds, in hexadecimal digits.
    content: String,
}

/// The folder at which paths of the job file at `path` begin.
fn folder_of(path: &str) -> Result<PathBuf> {
    let folder = Path::new(path).parent().map(Path::to_owned).unwrap_or_default();
    std::path::absolute(folder.join("."))
        .map_err(|cause| Error::io(format!("the folder of {path} is not known"), &cause))
}

/// The code of `job`.
///
/// # Errors
/// If a file cannot be read, is outside of the folder of the job file, or all of them are too many.
pub(super) fn gather(job: &Job, prepared: &Prepared<'_>) -> Result<Vec<CodeFile>> {
    let folder = folder_of(job.path())?;
    let entries = code_files(job, prepared);
    let named = entries.as_object().into_iter().flat_map(|entries| entries.values());
    let mut paths: Vec<PathBuf> = Vec::new();
    for file in named.filter_map(|files| files.as_object()).flat_map(|files| files.keys()) {
        let path = PathBuf::from(file);
        if path.is_absolute() {
            // It is named as one that all machines have.
            continue;
        }
        if path.components().any(|part| part == Component::ParentDir) {
            let error = Error::refused(format!("{file} is outside of the folder of the job file"));
            return Err(error.hint("put the code beside the job file, or name it by a path that all machines have"));
        }
        if path.extension().is_some_and(|extension| extension == "py") {
            modules(&folder, path.parent().unwrap_or(Path::new("")), DEPTH, &mut paths)?;
        }
        paths.push(path);
    }
    paths.sort();
    paths.dedup();
    let (mut files, mut bytes) = (Vec::new(), 0);
    for path in paths {
        let file = read(&folder, path)?;
        bytes += file.content.len() / 2;
        if bytes > MOST_BYTES || files.len() == MOST_FILES {
            let (most, files) = (MOST_BYTES >> 20, MOST_FILES);
            let error = Error::refused(format!("the code of the job has more than {most} MiB, or {files} files"));
            return Err(error.hint("leave only its modules beside it"));
        }
        files.push(file);
    }
    Ok(files)
}

/// Adds the Python files in `below`, and in the folders below that.
fn modules(folder: &Path, below: &Path, depth: usize, paths: &mut Vec<PathBuf>) -> Result<()> {
    let unreadable = |cause: std::io::Error| Error::io("the modules beside the code cannot be read", &cause);
    for entry in fs_err::read_dir(folder.join(below)).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let (name, kind) = (entry.file_name(), entry.file_type().map_err(unreadable)?);
        let (path, shown) = (below.join(&name), name.to_string_lossy());
        let is_hidden = shown.starts_with('.') || ["__pycache__", "node_modules", "venv"].contains(&shown.as_ref());
        if kind.is_dir() && !is_hidden && depth > 0 {
            modules(folder, &path, depth - 1, paths)?;
        } else if kind.is_file() && shown.ends_with(".py") && paths.len() <= MOST_FILES {
            paths.push(path);
        }
    }
    Ok(())
}

fn read(folder: &Path, path: PathBuf) -> Result<CodeFile> {
    let full = folder.join(&path);
    let unreadable = |cause: std::io::Error| Error::io(format!("{} cannot be read", full.display()), &cause);
    let content = fs_err::read(&full).map_err(unreadable)?;
    let mode = fs_err::metadata(&full).map_err(unreadable)?.permissions().mode();
    Ok(CodeFile { path, hash: hash(&content), is_program: mode & 0o111 != 0, content: hex(&content) })
}

/// Where the job file at `path` finds its code: where it was, if that is there and the same, or else in the new folder
/// `own`.
///
/// # Errors
/// If a file cannot be written, or is not what it was.
pub(super) fn place(files: &[CodeFile], path: &str, own: &Path) -> Result<String> {
    let folder = folder_of(path)?;
    let is_here = |file: &CodeFile| fs_err::read(folder.join(&file.path)).is_ok_and(|found| hash(&found) == file.hash);
    if files.iter().all(is_here) {
        return Ok(path.to_owned());
    }
    for file in files {
        let damaged = || Error::internal(format!("{} has changed on its way", file.path.display()));
        let is_below = file.path.components().all(|part| matches!(part, Component::Normal(_)));
        let content = unhex(&file.content).filter(|content| is_below && hash(content) == file.hash);
        let (content, target) = (content.ok_or_else(damaged)?, own.join(&file.path));
        let cannot = |cause: std::io::Error| Error::io(format!("{} cannot be written", target.display()), &cause);
        if let Some(parent) = target.parent() {
            fs_err::create_dir_all(parent).map_err(cannot)?;
        }
        fs_err::write(&target, content).map_err(cannot)?;
        let mode = if file.is_program { 0o700 } else { 0o600 };
        fs_err::set_permissions(&target, PermissionsExt::from_mode(mode)).map_err(cannot)?;
    }
    let name = Path::new(path).file_name().map(PathBuf::from).unwrap_or_default();
    Ok(own.join(name).display().to_string())
}

fn hash(content: &[u8]) -> String {
    hex(digest(&SHA256, content).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    text.as_bytes().chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_used_where_it_is_or_put_into_a_folder() {
        let (here, there) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        fs_err::create_dir_all(here.path().join("steps/more")).expect("made");
        fs_err::create_dir_all(here.path().join("steps/.venv")).expect("made");
        for (name, text) in [("a.py", "import more.b"), ("more/b.py", "B = 1"), (".venv/c.py", "no"), ("d.txt", "no")] {
            fs_err::write(here.path().join("steps").join(name), text).expect("written");
        }
        let mut paths = Vec::new();
        modules(here.path(), Path::new("steps"), DEPTH, &mut paths).expect("read");
        paths.sort();
        assert_eq!(paths, [PathBuf::from("steps/a.py"), PathBuf::from("steps/more/b.py")]);
        let files: Vec<CodeFile> = paths.into_iter().map(|path| read(here.path(), path).expect("read")).collect();
        let job = here.path().join("job.yaml").display().to_string();
        assert_eq!(place(&files, &job, there.path()).expect("it is here"), job);
        fs_err::write(here.path().join("steps/a.py"), "changed").expect("written");
        let placed = place(&files, &job, there.path()).expect("placed");
        assert_eq!(placed, there.path().join("job.yaml").display().to_string());
        assert_eq!(fs_err::read_to_string(there.path().join("steps/more/b.py")).expect("it is there"), "B = 1");
        let outside = CodeFile { path: PathBuf::from("../x.py"), ..files[0].clone() };
        assert!(place(&[outside], &job, there.path()).is_err());
        let damaged = CodeFile { content: hex(b"other"), ..files[0].clone() };
        assert!(place(&[damaged], &job, there.path()).is_err());
    }
}
