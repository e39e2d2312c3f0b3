//! Notes of loads of queues that have begun, for targets that may forget by themselves how far a queue was read. Such a
//! load would else look like a new one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use millstream_core::{Error, Result, stable_hash};
use serde::{Deserialize, Serialize};

/// The folder of the notes in the state folder.
const FOLDER: &str = "queues";

/// Counts up with every change of the note.
const VERSION: u32 = 1;

/// Says that a load has begun.
#[derive(Debug)]
pub struct BegunLoad {
    path: PathBuf,
    load: String,
}

#[derive(Serialize, Deserialize)]
struct Note {
    version: u32,
    /// The name of the load, for people.
    load: String,
    /// The places whose positions the target had.
    #[serde(default)]
    places: BTreeSet<String>,
}

impl BegunLoad {
    /// Of the load with this name, in the state folder `state`.
    pub fn new(state: &Path, load: &str) -> Self {
        // The name is stored: it must never change.
        let name = format!("{:016x}{:016x}", stable_hash::hash(load), stable_hash::hash(format!("second\n{load}")));
        BegunLoad { path: state.join(FOLDER).join(name), load: load.to_owned() }
    }

    /// The places of the load, if it has begun in this or an earlier run.
    ///
    /// # Errors
    /// If the note cannot be read, or is of a newer version.
    pub fn noted(&self) -> Result<Option<BTreeSet<String>>> {
        let text = match fs_err::read_to_string(&self.path) {
            Ok(text) => text,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(cause) => return Err(Error::io("a load of a queue cannot be looked up", &cause)),
        };
        // One that cannot be read was about to be written.
        let Ok(note) = serde_json::from_str::<Note>(&text) else { return Ok(Some(BTreeSet::new())) };
        if note.version > VERSION {
            return Err(Error::newer(format!("the note {}", self.path.display()), note.version, VERSION));
        }
        Ok(Some(note.places))
    }

    /// Notes it with its places; later runs know then.
    ///
    /// # Errors
    /// If the note cannot be written.
    pub fn note(&self, places: BTreeSet<String>) -> Result<()> {
        let text = serde_json::json!(Note { version: VERSION, load: self.load.clone(), places }).to_string();
        let folder = self.path.parent().unwrap_or(&self.path);
        let written = fs_err::create_dir_all(folder).and_then(|()| fs_err::write(&self.path, text));
        written.map_err(|cause| Error::io("a load of a queue cannot be noted", &cause))
    }

    /// Forgets it: the load is to begin as if for the first time.
    ///
    /// # Errors
    /// If the note cannot be removed.
    pub fn forget(&self) -> Result<()> {
        match fs_err::remove_file(&self.path) {
            Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io("a load of a queue cannot be forgotten", &cause))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_noted_until_it_is_forgotten() {
        let state = tempfile::TempDir::new().expect("a folder");
        let (load, other) = (BegunLoad::new(state.path(), "a load"), BegunLoad::new(state.path(), "another"));
        let places: BTreeSet<String> = ["t 0", "t 1"].map(str::to_owned).into();
        assert_eq!(load.noted().expect("an answer"), None);
        load.forget().expect("nothing to forget");
        load.note(BTreeSet::new()).expect("noted");
        load.note(places.clone()).expect("noted again");
        assert_eq!((load.noted().expect("an answer"), other.noted().expect("an answer")), (Some(places), None));
        fs_err::write(&load.path, r#"{"version":2,"load":"a load"}"#).expect("written");
        let newer = load.noted().expect_err("newer");
        assert!(newer.what().ends_with("was written by a newer version of Millstream"), "{newer:?}");
        fs_err::write(&load.path, "").expect("written");
        assert_eq!(load.noted().expect("an answer"), Some(BTreeSet::new()), "it was about to be written");
        load.forget().expect("forgotten");
        assert_eq!(load.noted().expect("an answer"), None);
    }
}
