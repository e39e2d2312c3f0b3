//! What a sequence hands over to the process of one of its steps, in a file that only the user may read: values may be
//! secret, and arguments of a process are not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use millstream_core::{Error, Result};
use millstream_state::OfStep;
use serde::{Deserialize, Serialize};

/// What the process of a step gets beside its arguments.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Handover {
    /// The logical run of the sequence.
    pub sequence: String,
    /// The step, as the run history has it.
    pub step: String,
    /// Values of the variables or parameters of its file.
    pub set: BTreeMap<String, String>,
    /// When the logical run of the sequence begins, in milliseconds since 1970.
    pub moment: i64,
    /// The text of its file, as it was when the sequence began. Of another sequence also those of the files that it
    /// names. By their paths from the root.
    pub texts: BTreeMap<PathBuf, String>,
    /// The pools in which the step has a place, or a step around it: what runs within it has that place, too.
    #[serde(default)]
    pub pools: BTreeSet<String>,
}

impl Handover {
    /// That in the file at `path`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs_err::read_to_string(path).map_err(|cause| Error::io("the step cannot be read", &cause))?;
        serde_json::from_str(&text).map_err(|cause| {
            let error = Error::refused(format!("{} is no step of a sequence", path.display())).cause(cause);
            error.hint("sequences write such files; run the sequence itself")
        })
    }

    /// The step that the process is.
    pub fn of_step(&self) -> OfStep {
        OfStep { sequence: self.sequence.clone(), step: self.step.clone() }
    }

    /// The text of the file at `path`, if it was handed over.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(&crate::read::from_root(path)).map(String::as_str)
    }
}
