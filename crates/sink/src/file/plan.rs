//! The list of the files of one load. If they are a set it stays beside them, so that the next run knows what it
//! replaces. Its form is the same in folders and buckets; where it is kept is theirs.

use std::collections::{BTreeSet, HashSet};
use std::path::{Component, Path};

use millstream_core::{Error, Result};
use serde::{Deserialize, Serialize};

/// The list of the files of one committed load.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The version of this list's form.
    version: u32,
    /// The run that wrote them.
    pub(crate) run: String,
    /// Whether the result is a set of files, so that the list stays beside them.
    pub(crate) set: bool,
    /// Whether not all that it says need have been done yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unfinished: bool,
    /// The files.
    pub(crate) files: Vec<PlannedFile>,
    /// Paths of files of earlier sets, which go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) stale: Vec<String>,
}

/// One file of a load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlannedFile {
    /// Its number while it was being written.
    pub(crate) staged: usize,
    /// Its path below the target's folder.
    pub(crate) path: String,
    /// Rows in it.
    pub(crate) rows: u64,
    /// Its size in bytes.
    pub(crate) bytes: u64,
    /// What a store knows it by until it is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) upload: Option<String>,
    /// The size of the file of the set before that it replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) replaced: Option<u64>,
}

/// The version of [`Plan`] that this program writes and reads.
const PLAN_VERSION: u32 = 1;

impl Plan {
    /// The plan of `run` for `files`.
    pub(crate) fn new(run: &str, set: bool, files: Vec<PlannedFile>) -> Self {
        Plan { version: PLAN_VERSION, run: run.to_owned(), set, files, ..Plan::default() }
    }

    /// As it is stored.
    pub(crate) fn to_text(&self) -> Result<Vec<u8>> {
        let mut text = serde_json::to_vec_pretty(self).map_err(|error| Error::internal(error.to_string()))?;
        text.push(b'\n');
        Ok(text)
    }

    /// The plan in `text`, which is stored at `place`. Its paths come from where others can write to, so none may lead
    /// out of the folder.
    pub(crate) fn from_text(text: &[u8], place: &str) -> Result<Self> {
        let damaged = |cause: String| {
            Error::refused(format!("the list of an earlier result, {place}, is damaged"))
                .cause(cause)
                .hint("remove it, and the files of that result that shall not stay beside the new ones")
        };
        let plan: Plan = serde_json::from_slice(text).map_err(|error| damaged(error.to_string()))?;
        if plan.version != PLAN_VERSION {
            return Err(damaged(format!("its version is {}, and this program knows {PLAN_VERSION}", plan.version)));
        }
        let inside = |path: &str| {
            !path.is_empty() && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
        };
        let outside = plan.paths().find(|path| !inside(path)).map(str::to_owned);
        match outside {
            Some(path) => Err(damaged(format!("the path `{path}` leads out of the folder"))),
            None => Ok(plan),
        }
    }

    /// The paths of everything that it can have left.
    fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|file| file.path.as_str()).chain(self.stale.iter().map(String::as_str))
    }

    /// The paths of what it can have left and `files` do not replace.
    pub(crate) fn stale_beside(&self, files: &[PlannedFile]) -> Vec<String> {
        let kept: HashSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
        let stale: BTreeSet<&str> = self.paths().filter(|path| !kept.contains(path)).collect();
        stale.into_iter().map(str::to_owned).collect()
    }
}

/// Two files of one load must not have one name.
pub(crate) fn check_distinct(files: &[PlannedFile]) -> Result<()> {
    let mut seen = HashSet::new();
    match files.iter().find(|file| !seen.insert(&file.path)) {
        Some(file) => Err(Error::refused(format!("two files of the sink have the same name {}", file.path))
            .hint("two long values have the same beginning and hash; split by a shorter expression")),
        None => Ok(()),
    }
}
