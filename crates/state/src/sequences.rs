//! The folder of a run of a sequence: its events, and files of its steps. Only the process that has the run's lock
//! writes there.

use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use millstream_core::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The folder of these in the state folder.
pub(crate) const FOLDER: &str = "sequences";

/// The file with the events.
const EVENTS: &str = "events.jsonl";

/// The folder of a run of a sequence. What its steps get may be secret: only its user may read it.
#[derive(Debug)]
pub struct SequenceFolder {
    path: PathBuf,
    events: Option<fs_err::File>,
}

impl SequenceFolder {
    /// That of the new run `run`, in the state folder `state`.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn create(state: &Path, run: &str) -> Result<Self> {
        let path = state.join(FOLDER).join(run);
        let failed = |cause: std::io::Error| Error::io("the folder of the run cannot be made", &cause);
        fs_err::create_dir_all(state.join(FOLDER)).map_err(failed)?;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(failed)?;
        let events = private(true).open(path.join(EVENTS)).map_err(failed)?;
        let events = fs_err::File::from_parts(events, path.join(EVENTS));
        Ok(SequenceFolder { path, events: Some(events) })
    }

    /// That of the run `run`, which another process may have made, to be read.
    pub fn of(state: &Path, run: &str) -> Self {
        SequenceFolder { path: state.join(FOLDER).join(run), events: None }
    }

    /// The path of one of its files.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Adds `events`. They outlast a crash of the machine.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn add<'e, T: Serialize + 'e>(&self, events: impl IntoIterator<Item = &'e T>) -> Result<()> {
        let Some(file) = &self.events else { return Err(Error::internal("the run is not to be written to")) };
        let mut lines = Vec::new();
        for event in events {
            let written = serde_json::to_writer(&mut lines, event);
            written.map_err(|cause| Error::internal("an event is no JSON").cause(cause))?;
            lines.push(b'\n');
        }
        let (mut file, failed) = (file, |cause| Error::io("the events of the run cannot be written", &cause));
        file.write_all(&lines).and_then(|()| file.sync_data()).map_err(failed)
    }

    /// All events in order. One that was about to be written when its process ended has not happened.
    ///
    /// # Errors
    /// If they cannot be read, or are those of a newer version.
    pub fn events<T: DeserializeOwned>(&self) -> Result<Vec<T>> {
        let text = match fs_err::read_to_string(self.file(EVENTS)) {
            Ok(text) => text,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(cause) => return Err(Error::io("the events of the run cannot be read", &cause)),
        };
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let event = |line: &str| {
            serde_json::from_str(line).map_err(|cause| {
                let error = Error::refused("an event of the run cannot be read").text(line).cause(cause);
                error.hint("a newer version of Millstream may have written it")
            })
        };
        whole.lines().filter(|line| !line.is_empty()).map(event).collect()
    }

    /// Writes a file that only the user may read.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.file(name);
        let written = private(false).open(&path).and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|cause| Error::io("a file of the run cannot be written", &cause))?;
        Ok(path)
    }
}

fn private(appends: bool) -> std::fs::OpenOptions {
    let mut options = std::fs::OpenOptions::new();
    options.create(true).write(true).append(appends).truncate(!appends).mode(0o600);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_back_but_the_torn_one() {
        let state = tempfile::TempDir::new().expect("a folder");
        let folder = SequenceFolder::create(state.path(), "1-1").expect("made");
        folder.add(&[1]).expect("written");
        folder.add(&[2]).expect("written");
        let mut file = private(true).open(folder.file(EVENTS)).expect("opened");
        file.write_all(b"3").expect("written");
        let read = || SequenceFolder::of(state.path(), "1-1").events::<u8>();
        assert_eq!(read().expect("read"), [1, 2]);
        file.write_all(b"4x\n").expect("written");
        assert!(read().expect_err("no event").what().contains("cannot be read"));
        assert_eq!(SequenceFolder::of(state.path(), "2-2").events::<u8>().expect("none"), Vec::<u8>::new());
        assert!(SequenceFolder::of(state.path(), "1-1").add(&[1]).is_err(), "it is another's");
    }

    #[test]
    fn files_are_for_the_user_alone() {
        use std::os::unix::fs::PermissionsExt;

        let state = tempfile::TempDir::new().expect("a folder");
        let folder = SequenceFolder::create(state.path(), "1-1").expect("made");
        let path = folder.write("load.json", "long").and_then(|_| folder.write("load.json", "{}")).expect("written");
        assert_eq!(fs_err::read_to_string(&path).expect("read"), "{}");
        let mode = |path: &Path| fs_err::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().expect("a folder"))), (0o600, 0o700));
    }
}
