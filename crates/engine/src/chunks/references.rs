//! What the references of lookups were, as a load chunk by chunk notes it: rows that were looked up in one state of a
//! reference are not put beside rows that were looked up in another.
//!
//! The note of a reference has its hash, in whatever order its rows came. It is in the transaction of the first group,
//! for which all others wait. So a load that has rows has it, whatever was killed when.

use millstream_core::sink::{Chunk, WrittenChunks};
use millstream_core::{Error, Result};
use tokio::sync::{Mutex, MutexGuard};

use super::pipeline::Pipeline;

/// What the units begin with under which references are noted. Units of files begin with the name of a source.
const NOTE: &str = "\nlookup ";

/// The version of the hash.
const VERSION: u64 = 1;

/// Where in a note the version begins. The rest is of the hash.
const VERSION_BIT: u32 = 54;

/// The references of a load, and whether they are noted.
#[derive(Default)]
pub struct References {
    notes: Vec<Reference>,
    are_noted: Mutex<bool>,
}

/// A reference.
struct Reference {
    name: String,
    note: Chunk,
}

impl References {
    /// Those of the lookups on `pipelines`, which are read. The load of incremental sources belongs to all runs, so
    /// there each resume chain has its own: `chain` is the name of its first run.
    ///
    /// # Errors
    /// If one is not read.
    pub fn of(pipelines: &[Pipeline], chain: Option<&str>) -> Result<Self> {
        let mut notes: Vec<Reference> = Vec::new();
        for lookup in pipelines.iter().flat_map(Pipeline::lookups) {
            let step = &lookup.shape().step;
            let Some(reference) = lookup.shared().loaded() else {
                return Err(Error::internal("a reference is not read before the load begins").in_step(step));
            };
            let unit = chain.map_or_else(|| format!("{NOTE}{step}"), |chain| format!("{NOTE}{step} {chain}"));
            let number = (VERSION << VERSION_BIT) | (reference.hash() >> (64 - VERSION_BIT));
            if notes.iter().all(|known| known.note.unit != unit) {
                notes.push(Reference { name: lookup.shape().reference.clone(), note: Chunk { unit, number } });
            }
        }
        Ok(References { notes, are_noted: Mutex::default() })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.notes.is_empty()
    }

    /// Refuses to resume a load that was begun with other references. `written` is what the target has of it.
    pub fn check(&mut self, written: &WrittenChunks) -> Result<()> {
        for Reference { name, note } in &self.notes {
            let noted = written.of_unit(&note.unit);
            if !noted.is_empty() && !noted.contains(&note.number) {
                return Err(has_changed(&format!("`{name}`")));
            }
        }
        self.leave_out(written);
        Ok(())
    }

    /// Whether these are what a load was begun with of which `written` is there.
    pub fn are(&self, written: &WrittenChunks) -> bool {
        self.notes.iter().all(|reference| {
            let noted = written.of_unit(&reference.note.unit);
            noted.is_empty() || noted.contains(&reference.note.number)
        })
    }

    /// All of the notes that are not left out.
    pub fn notes(&self) -> impl Iterator<Item = Chunk> {
        self.notes.iter().map(|reference| reference.note.clone())
    }

    /// Leaves out the notes that are written.
    pub fn leave_out(&mut self, written: &WrittenChunks) {
        self.notes.retain(|reference| !written.contains(&reference.note));
    }

    /// The notes for the group that is delivered next, if it is the first. Others wait until this is over.
    pub async fn lead(&self) -> Option<Leading<'_>> {
        if self.notes.is_empty() {
            return None;
        }
        let are_noted = self.are_noted.lock().await;
        (!*are_noted).then(|| Leading { notes: self.notes.iter().map(|one| one.note.clone()).collect(), are_noted })
    }
}

/// The first group is delivered.
pub struct Leading<'a> {
    /// What is noted with it.
    pub notes: Vec<Chunk>,
    are_noted: MutexGuard<'a, bool>,
}

impl Leading<'_> {
    /// It is committed.
    pub fn committed(mut self) {
        *self.are_noted = true;
    }
}

/// A reference, which `name` says in words, is no longer what a part of the load was looked up in.
pub fn has_changed(name: &str) -> Error {
    Error::refused(format!("{name} has changed since the run to be resumed"))
        .cause("the rows that are loaded were looked up in it as it was then")
        .hint("restore it, or start again with `--restart`")
}
