//! Records and files of epochs in a folder of this machine.
//!
//! ```text
//!  out/.a.csv.epochs/load.json                          whose the files are
//!                    00003-00000000000000000124.json    the last record of partition 3, which is its 124th
//!                    00003-4f2a…-17.data                a staged file
//!                    00003-4f2a…-18.new                 a record before it has its name
//!  out/a-00003-00000000000000000400.csv                 a file: renamed, once it is committed
//! ```
//! A record is never replaced: the next one is linked to the next name, which only one process can do, and then removes
//! those before it. So a process that wakes up late might link a record whose name has become free again. But the last
//! one is never free: who has linked a record looks whether there is a later one, and if so takes its own back.

use std::io::{self, ErrorKind as Io, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use millstream_core::{Error, Result, fail_point};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::keeper::{EpochDraft, Keeper, Published, hidden};
use super::record::{EpochFile, Kept, Record};
use crate::file::naming::Target;
use crate::shared::{blocking, create_folders, path_error, sync_folder};

/// The claim.
const CLAIM: &str = "load.json";

/// How old something has to be that a process has left which was killed.
const LEFT: Duration = Duration::from_secs(24 * 3600);

/// How often a folder is read again while records change.
const TRIES: usize = 100;

/// A folder.
pub(super) struct InFolder {
    /// That of the files.
    folder: PathBuf,
    /// That of the records, in it.
    hidden: PathBuf,
    owner: String,
}

/// What a name in the hidden folder means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Record(u32, u64),
    /// Something that is not committed, of a partition if it is of one.
    Temporary(Option<u32>),
    Other,
}

impl InFolder {
    pub(super) fn new(target: &Target, owner: &str) -> Self {
        let folder = target.folder().to_owned();
        InFolder { hidden: folder.join(hidden(target)), folder, owner: owner.to_owned() }
    }

    fn names(&self) -> Result<Vec<(String, Name)>> {
        let wrong = |error: io::Error| path_error("read the folder", &self.hidden, &error);
        let entries = fs_err::read_dir(&self.hidden).map_err(wrong)?;
        let name = |entry: io::Result<fs_err::DirEntry>| {
            let name = entry.map_err(wrong)?.file_name().to_string_lossy().into_owned();
            let meaning = meaning(&name);
            Ok((name, meaning))
        };
        entries.map(name).collect()
    }

    /// The number of the last record of a partition.
    fn last(&self, partition: u32) -> Result<Option<u64>> {
        let number = |(_, name): (String, Name)| match name {
            Name::Record(of, number) if of == partition => Some(number),
            _ => None,
        };
        Ok(self.names()?.into_iter().filter_map(number).max())
    }

    fn record(&self, partition: u32, number: u64) -> PathBuf {
        self.hidden.join(format!("{partition:05}-{number:020}.json"))
    }

    /// Lets `content` appear at `path`, durably, if nothing is there; whether it has.
    fn create(&self, path: &Path, partition: &str, content: &[u8]) -> Result<bool> {
        let new = self.hidden.join(format!("{partition}{}.new", self.owner));
        let written = fs_err::File::create(&new).and_then(|mut file| {
            file.write_all(content)?;
            file.sync_all()
        });
        written.map_err(|error| path_error("write", &new, &error))?;
        let created = create_as(&new, path).map_err(|error| path_error("make", path, &error));
        if !matches!(created, Ok(true)) {
            remove(&new)?;
        }
        sync_folder(&self.hidden)?;
        created
    }

    /// Removes what moves before the record `number` of the partition have left.
    fn tidy(&self, partition: u32, number: u64) -> Result<()> {
        for (name, meaning) in self.names()? {
            match meaning {
                Name::Record(of, old) if of == partition && old < number => remove(&self.hidden.join(name))?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes what dead processes have left. What is staged for a partition stays until its position has moved since:
    /// a process that stands still might commit it.
    fn clean(&self) -> Result<()> {
        let changed = |name: &str| self.hidden.join(name).symlink_metadata().and_then(|file| file.modified()).ok();
        let names = self.names()?;
        let moved = |partition: u32| {
            let last = names.iter().filter(|(_, name)| matches!(name, Name::Record(of, _) if *of == partition)).max();
            last.and_then(|(name, _)| changed(name))
        };
        for (name, meaning) in &names {
            let Name::Temporary(partition) = meaning else { continue };
            let Some(begun) = changed(name) else { continue };
            let is_old = SystemTime::now().duration_since(begun).is_ok_and(|age| age > LEFT);
            if is_old && partition.is_none_or(|partition| moved(partition).is_some_and(|moved| moved > begun)) {
                remove(&self.hidden.join(name))?;
            }
        }
        Ok(())
    }
}

/// What `name` means: `00003-00000000000000000124.json`, `00003-4f2a-17.data`, `4f2a-17.data`.
fn meaning(name: &str) -> Name {
    let partition =
        || name.split_once('-').filter(|(number, _)| number.len() >= 5).and_then(|(number, _)| number.parse().ok());
    match name.rsplit_once('.') {
        Some((_, "data" | "new")) => Name::Temporary(partition()),
        Some((stem, "json")) => {
            let number = stem.split_once('-').and_then(|(_, number)| number.parse().ok());
            partition().zip(number).map_or(Name::Other, |(partition, number)| Name::Record(partition, number))
        }
        _ => Name::Other,
    }
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

    async fn prepare(&self) -> Result<()> {
        blocking(|| {
            create_folders(&self.hidden, &mut Vec::new())?;
            sync_folder(&self.folder)?;
            self.clean()
        })
    }

    async fn claim(&self, claim: Vec<u8>) -> Result<Vec<u8>> {
        blocking(|| {
            let path = self.hidden.join(CLAIM);
            self.create(&path, "", &claim)?;
            read(&path)?.ok_or_else(|| Error::refused(format!("{} was removed", path.display())))
        })
    }

    async fn partitions(&self) -> Result<Vec<u32>> {
        let partition = |(_, name)| match name {
            Name::Record(partition, _) => Some(partition),
            _ => None,
        };
        let mut partitions: Vec<u32> = blocking(|| self.names())?.into_iter().filter_map(partition).collect();
        partitions.sort_unstable();
        partitions.dedup();
        Ok(partitions)
    }

    async fn of(&self, partition: u32) -> Result<Option<Kept>> {
        blocking(|| {
            for _ in 0..TRIES {
                let Some(number) = self.last(partition)? else { return Ok(None) };
                let path = self.record(partition, number);
                // Otherwise a later one has removed it.
                if let Some(text) = read(&path)? {
                    let record = Record::of_text(&text, &path.display().to_string())?;
                    return Ok(Some(Kept { record, stored: None }));
                }
            }
            Err(Error::transient(format!("the records in {} change too often to be read", self.shown())))
        })
    }

    async fn keep(&self, partition: u32, record: Record, _: Option<&Kept>) -> Result<Option<Kept>> {
        blocking(|| {
            let path = self.record(partition, record.moves);
            if !self.create(&path, &format!("{partition:05}-"), &record.to_text()?)? {
                return Ok(None);
            }
            fail_point::pass("files.linked");
            if self.last(partition)?.is_some_and(|last| last > record.moves) {
                remove(&path)?;
                return Ok(None);
            }
            Ok(Some(Kept { record, stored: None }))
        })
    }

    async fn draft(&self, name: &str, path: &str) -> Result<Box<dyn EpochDraft>> {
        let (name, path) = (format!("{name}.data"), path.to_owned());
        let staged = self.hidden.join(&name);
        let file = blocking(|| fs_err::OpenOptions::new().write(true).create_new(true).open(&staged));
        let file = file.map_err(|error| path_error("make", &staged, &error))?;
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
        blocking(|| {
            let created = match create_as(&from, &to) {
                Ok(created) => created,
                Err(error) if error.kind() == Io::NotFound => return Ok(Published::Before),
                Err(error) => return Err(path_error("make", &to, &error)),
            };
            match created {
                true => sync_folder(&self.folder).map(|()| Published::Now),
                false => Err(Error::refused(format!("{} is in the way of a file that is committed", to.display()))
                    .hint("move it away, and start the job again: then the file appears")),
            }
        })
    }

    /// A failure leaves some records more, which the next move removes.
    async fn settle(&self, partition: u32, kept: Kept) -> Option<Kept> {
        blocking(|| self.tidy(partition, kept.record.moves)).ok().map(|()| kept)
    }

    async fn forget(&self) -> Result<()> {
        blocking(|| {
            for (name, meaning) in self.names()? {
                if matches!(meaning, Name::Record(..)) || name == CLAIM {
                    remove(&self.hidden.join(name))?;
                }
            }
            sync_folder(&self.hidden)
        })
    }
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
            ("00003-00000000000000000124.json", Name::Record(3, 124)),
            ("123456-00000000000000000001.json", Name::Record(123_456, 1)),
            ("00003-0123456789abcdef-17.data", Name::Temporary(Some(3))),
            ("0123456789abcdef-17.data", Name::Temporary(None)),
            ("00003-0123456789abcdef.new", Name::Temporary(Some(3))),
            ("0123456789abcdef.new", Name::Temporary(None)),
            ("load.json", Name::Other),
        ] {
            assert_eq!(meaning(name), expected, "{name}");
        }
    }
}
