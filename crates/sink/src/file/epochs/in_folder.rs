//! Records and files of epochs in a folder of this machine.
//!
//! ```text
//!  out/.a.csv.epochs/load.json                     whose the files are
//!                    00003/0…0124.json             the last record of partition 3, which is its 124th
//!                    00003/0…0124-4f2a…-18.there   its file has appeared
//!                    00003-4f2a…-17.data           a staged file
//!                    00003-4f2a….new               a record before it has its name
//!  out/a-00003-00000000000000000400.csv            a file: renamed, once it is committed
//! ```
//! A record is never replaced: the next one is linked to the next name, which only one process can do, and then removes
//! those before it. So a process that wakes up late might link a record whose name has become free again. But the last
//! one is never free: who has linked a record looks whether there is a later one, and if so takes its own back.
//!
//! **A look at the records sees the last one.** A folder that is read while names come and go may show neither a name
//! that has come nor one that has gone. So the records of a partition have a folder of their own: it has about three
//! names, which the system gives in one call, while which it changes none of them. Where a file system needs several
//! calls, they might still miss a move. So the folder is read until two readings agree, and a move, which waits for the
//! disk several times, would have to fall into both, and to be missed by both.
//!
//! **A staged file that is missing has appeared only if something says so**: a file of its size under its name, or the
//! note, which is written durably before the next move of the partition begins. (Users move files away.) Otherwise it
//! is lost, and the run ends. What nobody has noted yet can look like that only if a process is killed between a rename
//! and the note behind it, and the file is moved away before the next process looks. What a last record names is never
//! removed, however old it is.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, ErrorKind as Io, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use millstream_core::{Error, Result, fail_point};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::keeper::{EpochDraft, Keeper, Published, Unkept, hidden};
use super::record::{EpochFile, Kept, PositionRecord};
use crate::file::naming::Target;
use crate::shared::{blocking, create_folders, path_error, sync_folder};

/// The claim.
const CLAIM: &str = "load.json";

/// How old something has to be that a process has left which was killed.
const LEFT: Duration = Duration::from_secs(24 * 3600);

/// How often a folder is read while records change.
const TRIES: usize = 100;

/// A folder.
pub(super) struct InFolder {
    /// That of the files.
    folder: PathBuf,
    /// That of the records, in it.
    hidden: PathBuf,
    owner: String,
}

/// What a name in the folder of a partition means.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    /// The record with this number.
    Record(u64),
    /// The note that the file of a record has appeared, which this attempt has made.
    There(u64, String),
    Other,
}

/// The last record of a partition, and when it was written.
type Last = Option<(PositionRecord, SystemTime)>;

impl InFolder {
    pub(super) fn new(target: &Target, owner: &str) -> Self {
        let folder = target.folder().to_owned();
        InFolder { hidden: folder.join(hidden(target)), folder, owner: owner.to_owned() }
    }

    /// The folder of the records of a partition.
    fn partition(&self, partition: u32) -> PathBuf {
        self.hidden.join(format!("{partition:05}"))
    }

    fn record(&self, partition: u32, number: u64) -> PathBuf {
        self.partition(partition).join(format!("{number:020}.json"))
    }

    /// The note that the file of a record has appeared.
    fn note(&self, partition: u32, record: &PositionRecord) -> PathBuf {
        self.partition(partition).join(format!("{:020}-{}.there", record.moves, record.attempt))
    }

    /// What there is of a partition, with names.
    fn records(&self, partition: u32) -> Result<Vec<(Name, String)>> {
        let folder = self.partition(partition);
        let mut before = None;
        for _ in 0..TRIES {
            let names = names(&folder)?.into_iter().map(|name| (meaning(&name), name));
            let mut now: Vec<(Name, String)> = names.collect();
            now.sort();
            if before.as_ref() == Some(&now) {
                return Ok(now);
            }
            before = Some(now);
        }
        Err(changes_too_often(&folder))
    }

    /// The number of the last record of a partition.
    fn last(&self, partition: u32) -> Result<Option<u64>> {
        Ok(last(&self.records(partition)?))
    }

    /// The last record of a partition.
    fn kept(&self, partition: u32) -> Result<Option<PositionRecord>> {
        for _ in 0..TRIES {
            let records = self.records(partition)?;
            let Some(number) = last(&records) else { return Ok(None) };
            let path = self.record(partition, number);
            // Otherwise a later one has removed it.
            let Some(text) = read(&path)? else { continue };
            let record = PositionRecord::of_text(&text, &path.display().to_string())?;
            let note = Name::There(number, record.attempt.clone());
            let has_appeared = records.iter().any(|(name, _)| *name == note);
            return Ok(Some(if has_appeared { record.settled() } else { record }));
        }
        Err(changes_too_often(&self.partition(partition)))
    }

    /// Writes `content` durably into a file that is yet to get its name.
    fn write(&self, prefix: &str, content: &[u8]) -> Result<PathBuf> {
        let new = self.hidden.join(format!("{prefix}{}.new", self.owner));
        let written = remove_file(&new).and_then(|()| {
            // It may be another name of a record, which must not be written over.
            let mut file = fs_err::OpenOptions::new().write(true).create_new(true).open(&new)?;
            file.write_all(content)?;
            file.sync_all()
        });
        written.map_err(|error| path_error("write", &new, &error)).map(|()| new)
    }

    /// Gives the record in the file `new` its name, if that is the next one; whether the record is the last one.
    fn link(&self, partition: u32, record: &PositionRecord, new: &Path) -> Result<bool> {
        let path = self.record(partition, record.moves);
        let linked = create_as(new, &path);
        let is_own = match &linked {
            Ok(true) => true,
            // The answer to an earlier attempt was an error.
            _ => is_record(&path, record)?,
        };
        // What cannot be removed now is removed by a later process.
        let _ = remove_file(new);
        if !is_own {
            return linked.map_err(|error| path_error("create", &path, &error));
        }
        sync_folder(&self.partition(partition))?;
        fail_point::pass("files.linked");
        let is_last = self.last(partition)?.is_none_or(|last| last <= record.moves);
        if !is_last {
            // It is in nobody's way: the last one counts.
            let _ = remove_file(&path);
        }
        Ok(is_last)
    }

    /// Notes that the file of the record has appeared, and removes what earlier moves have left.
    fn tidy(&self, partition: u32, record: &PositionRecord) -> Result<()> {
        let folder = self.partition(partition);
        if record.staged().is_some() {
            let note = self.note(partition, record);
            fs_err::File::create(&note).map_err(|error| path_error("create", &note, &error))?;
            sync_folder(&folder)?;
        }
        for (name, text) in self.records(partition)? {
            match name {
                Name::Record(old) | Name::There(old, _) if old < record.moves => remove(&folder.join(text))?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes what dead processes have left. What is staged for a partition stays until its position has moved since:
    /// a process that stands still might commit it. What the last record names stays in any case: it has not appeared.
    fn clean(&self) -> Result<()> {
        let mut known: HashMap<u32, Last> = HashMap::new();
        for name in names(&self.hidden)? {
            let Some(partition) = temporary(&name) else { continue };
            let path = self.hidden.join(&name);
            let Some(written) = modified(&path).filter(|written| is_old(*written)) else { continue };
            let is_left = match partition {
                None => true,
                Some(partition) => match known.entry(partition) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(known) => known.insert(self.last_written(partition)?),
                }
                .as_ref()
                .is_some_and(|(last, moved)| *moved > written && !last.names(&name)),
            };
            if is_left {
                remove(&path)?;
            }
        }
        Ok(())
    }

    fn last_written(&self, partition: u32) -> Result<Last> {
        let Some(record) = self.kept(partition)? else { return Ok(None) };
        let moved = modified(&self.record(partition, record.moves));
        Ok(moved.map(|moved| (record, moved)))
    }
}

/// The names in a folder; none if there is no such folder.
fn names(folder: &Path) -> Result<Vec<String>> {
    let wrong = |error: io::Error| path_error("read the folder", folder, &error);
    let entries = match fs_err::read_dir(folder) {
        Err(error) if error.kind() == Io::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(wrong)?,
    };
    entries.map(|entry| Ok(entry.map_err(wrong)?.file_name().to_string_lossy().into_owned())).collect()
}

fn last(records: &[(Name, String)]) -> Option<u64> {
    let number = |(name, _): &(Name, String)| match name {
        Name::Record(number) => Some(*number),
        _ => None,
    };
    records.iter().filter_map(number).max()
}

/// What `name` in the folder of a partition means: `00000000000000000124.json`, `00000000000000000124-4f2a-18.there`.
fn meaning(name: &str) -> Name {
    let found = match name.rsplit_once('.') {
        Some((number, "json")) => number.parse().ok().map(Name::Record),
        Some((stem, "there")) => stem
            .split_once('-')
            .and_then(|(number, attempt)| Some(Name::There(number.parse().ok()?, attempt.to_owned()))),
        _ => None,
    };
    found.unwrap_or(Name::Other)
}

/// Whether `name` in the hidden folder is that of something that has not got its own name yet; and of which partition,
/// if it is of one: `00003-4f2a-17.data`, `4f2a-17.data`.
fn temporary(name: &str) -> Option<Option<u32>> {
    let (stem, ending) = name.rsplit_once('.')?;
    let partition = stem.split_once('-').filter(|(number, _)| (5..16).contains(&number.len()));
    matches!(ending, "data" | "new").then(|| partition.and_then(|(number, _)| number.parse().ok()))
}

/// When a file was written last.
fn modified(path: &Path) -> Option<SystemTime> {
    path.symlink_metadata().and_then(|file| file.modified()).ok()
}

fn is_old(written: SystemTime) -> bool {
    SystemTime::now().duration_since(written).is_ok_and(|age| age > LEFT)
}

/// Whether the record at `path` is `record`.
fn is_record(path: &Path, record: &PositionRecord) -> Result<bool> {
    let Some(text) = read(path)? else { return Ok(false) };
    let there = PositionRecord::of_text(&text, &path.display().to_string())?;
    Ok(there.attempt == record.attempt)
}

fn changes_too_often(folder: &Path) -> Error {
    Error::transient(format!("{} cannot be read: it changed {TRIES} times meanwhile", folder.display()))
}

/// Gives the file `from` the name `to`, if nothing has it; whether it has.
fn create_as(from: &Path, to: &Path) -> io::Result<bool> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE).map_err(io::Error::from) {
        Ok(()) => return Ok(true),
        Err(error) if error.kind() == Io::AlreadyExists => {}
        // Not every file system can do that; those that cannot have hard links.
        Err(error) if matches!(error.kind(), Io::InvalidInput | Io::Unsupported) => match fs_err::hard_link(from, to) {
            Err(error) if error.kind() != Io::AlreadyExists => return Err(error),
            _ => {}
        },
        Err(error) => return Err(error),
    }
    // A process may have died between a link and the removal of the other name.
    let is_same = same_file(from, to)?;
    if is_same {
        remove_file(from)?;
    }
    Ok(is_same)
}

fn same_file(one: &Path, other: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let (one, other) = (fs_err::symlink_metadata(one)?, fs_err::symlink_metadata(other)?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// Removes a file, if it is there.
fn remove_file(path: &Path) -> io::Result<()> {
    match fs_err::remove_file(path) {
        Err(error) if error.kind() != Io::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn remove(path: &Path) -> Result<()> {
    remove_file(path).map_err(|error| path_error("remove", path, &error))
}

/// The content of a file, if it is there.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs_err::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == Io::NotFound => Ok(None),
        Err(error) => Err(path_error("read", path, &error)),
    }
}

#[async_trait]
impl Keeper for InFolder {
    fn shown(&self) -> String {
        self.hidden.display().to_string()
    }

    fn shown_record(&self, partition: u32, record: &PositionRecord) -> String {
        self.record(partition, record.moves).display().to_string()
    }

    async fn prepare(&self) -> Result<()> {
        blocking(|| {
            create_folders(&self.hidden, &mut Vec::new())?;
            sync_folder(&self.folder)?;
            self.clean()
        })
    }

    async fn claim(&self, claim: Vec<u8>) -> Result<Vec<u8>> {
        blocking(|| {
            let (new, path) = (self.write("", &claim)?, self.hidden.join(CLAIM));
            let created = create_as(&new, &path).map_err(|error| path_error("create", &path, &error));
            if !matches!(created, Ok(true)) {
                remove(&new)?;
            }
            created?;
            sync_folder(&self.hidden)?;
            read(&path)?.ok_or_else(|| Error::transient(format!("{} was removed a moment ago", path.display())))
        })
    }

    async fn partitions(&self) -> Result<Vec<u32>> {
        let mut partitions: Vec<u32> =
            blocking(|| names(&self.hidden))?.into_iter().filter_map(|name| name.parse().ok()).collect();
        partitions.sort_unstable();
        Ok(partitions)
    }

    async fn of(&self, partition: u32) -> Result<Option<Kept>> {
        let record = blocking(|| self.kept(partition))?;
        Ok(record.map(|record| Kept { record, stored: None }))
    }

    async fn keep(
        &self,
        partition: u32,
        record: &PositionRecord,
        before: Option<&Kept>,
    ) -> Result<Option<Kept>, Unkept> {
        blocking(|| {
            if before.is_none() {
                create_folders(&self.partition(partition), &mut Vec::new())?;
                sync_folder(&self.hidden)?;
            }
            let new = self.write(&format!("{partition:05}-"), &record.to_text()?)?;
            let is_last = self.link(partition, record, &new).map_err(Unkept::perhaps)?;
            Ok(is_last.then(|| Kept { record: record.clone(), stored: None }))
        })
    }

    async fn draft(&self, name: &str, path: &str) -> Result<Box<dyn EpochDraft>> {
        let (name, path) = (format!("{name}.data"), path.to_owned());
        let staged = self.hidden.join(&name);
        let file = blocking(|| fs_err::OpenOptions::new().write(true).create_new(true).open(&staged));
        let file = file.map_err(|error| path_error("create", &staged, &error))?;
        Ok(Box::new(Draft { name, path, staged: Some(staged), shown: self.folder.clone(), file, bytes: 0 }))
    }

    async fn discard(&self, file: &EpochFile) {
        let staged = file.staged.as_ref().map(|name| self.hidden.join(name));
        blocking(|| staged.map(|staged| remove_file(&staged)));
    }

    async fn exists(&self, path: &str) -> Result<bool> {
        Ok(blocking(|| self.folder.join(path).symlink_metadata()).is_ok())
    }

    async fn publish(&self, file: &EpochFile) -> Result<Published> {
        let Some(name) = &file.staged else { return Ok(Published::Before) };
        let (from, to) = (self.hidden.join(name), self.folder.join(&file.path));
        let length = |path: &Path| path.symlink_metadata().map(|found| found.len());
        blocking(|| match create_as(&from, &to) {
            Ok(true) => sync_folder(&self.folder).map(|()| Published::Now),
            Ok(false) => Err(is_other(&to)),
            Err(error) if error.kind() == Io::NotFound && length(&from).is_err() => match length(&to) {
                // Who has renamed it may have died before that was durable.
                Ok(bytes) if bytes == file.bytes => sync_folder(&self.folder).map(|()| Published::Before),
                _ => Ok(Published::Lost),
            },
            Err(error) => Err(Error::io(format!("cannot create {}, whose rows are committed", to.display()), &error)),
        })
    }

    /// What fails here is done by the next move.
    async fn settle(&self, partition: u32, kept: Kept) -> Option<Kept> {
        let record = kept.record.settled();
        blocking(|| self.tidy(partition, &kept.record)).ok().map(|()| Kept { record, ..kept })
    }

    async fn forget(&self) -> Result<()> {
        blocking(|| {
            for name in names(&self.hidden)?.into_iter().filter(|name| name.parse::<u32>().is_ok()) {
                let folder = self.hidden.join(name);
                let removed = fs_err::remove_dir_all(&folder);
                removed.map_err(|error| path_error("remove the folder", &folder, &error))?;
            }
            remove(&self.hidden.join(CLAIM))?;
            sync_folder(&self.hidden)
        })
    }
}

fn is_other(path: &Path) -> Error {
    Error::refused(format!("{} is another file than the one that is committed under this name", path.display()))
        .cause("it was written after Millstream had seen that the name is free")
        .hint("move it away, and start the job again: then the file with the committed rows appears")
}

/// A file that is being staged.
struct Draft {
    /// Its name in the hidden folder.
    name: String,
    /// Its path once it has appeared, below the folder of the target.
    path: String,
    /// Removed if it is dropped.
    staged: Option<PathBuf>,
    /// The folder of the target.
    shown: PathBuf,
    file: fs_err::File,
    bytes: u64,
}

impl Draft {
    fn fault(&self, error: &io::Error) -> Error {
        path_error("write", &self.shown.join(&self.path), error)
    }
}

#[async_trait]
impl EpochDraft for Draft {
    async fn append(&mut self, bytes: Vec<u8>) -> Result<()> {
        self.bytes += bytes.len() as u64;
        blocking(|| self.file.write_all(&bytes)).map_err(|error| self.fault(&error))
    }

    async fn finish(mut self: Box<Self>) -> Result<EpochFile> {
        blocking(|| self.file.sync_all()).map_err(|error| self.fault(&error))?;
        // The record is in another folder, and must not be durable without it.
        blocking(|| sync_folder(self.staged.as_deref().and_then(Path::parent).unwrap_or(Path::new(""))))?;
        self.staged = None;
        Ok(EpochFile { path: self.path.clone(), bytes: self.bytes, staged: Some(self.name.clone()) })
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // What cannot be removed is removed by a later process.
        let _ = self.staged.take().map(|staged| remove_file(&staged));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_they_are_of() {
        for (name, expected) in [
            ("00000000000000000124.json", Name::Record(124)),
            ("00000000000000000124-4f2a-18.there", Name::There(124, "4f2a-18".to_owned())),
            ("load.json", Name::Other),
            ("124", Name::Other),
        ] {
            assert_eq!(meaning(name), expected, "{name}");
        }
        for (name, expected) in [
            ("00003-0123456789abcdef-17.data", Some(Some(3))),
            ("123456-0123456789abcdef-17.data", Some(Some(123_456))),
            ("00003-0123456789abcdef.new", Some(Some(3))),
            ("0123456789012345-17.data", Some(None)),
            ("0123456789abcdef.new", Some(None)),
            ("load.json", None),
            ("00003", None),
        ] {
            assert_eq!(temporary(name), expected, "{name}");
        }
    }
}
