//! The list of the files of one target, and the plan of a run. If the files are a set, the list stays beside them: it
//! alone says which files are ours and so may be removed. Its form is the same in folders and buckets.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Component, Path};

use millstream_core::sink::{Chunk, LoadNotes, Noted, WrittenChunks};
use millstream_core::{Error, Result};
use serde::{Deserialize, Deserializer, Serialize};

use super::destination::{self, TargetFiles};
use super::spec::FileMode;

/// The list of the files of one target.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The version of this list's form.
    version: u32,
    /// The run that wrote it.
    pub(crate) run: String,
    /// The first run of its resume chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first: Option<String>,
    /// What it did with the files of earlier runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<FileMode>,
    /// The expression of `split`, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    split: Option<String>,
    /// Whether the result is a set of files, so that the list stays beside them.
    pub(crate) set: bool,
    /// Whether it may not be carried out completely yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unfinished: bool,
    /// The files.
    pub(crate) files: Vec<PlannedFile>,
    /// Paths of stale files of earlier runs, to remove.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) stale: Vec<String>,
    /// The commit markers of runs that have added files, until these runs have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    markers: Vec<Marker>,
    /// What runs have noted of the units whose rows are in the files, so that no later run loads them again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    notes: Vec<Notes>,
}

/// What a run has noted of the units of its rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Notes {
    /// The name of the load that all runs share.
    load: String,
    /// The run that has committed them.
    run: String,
    /// The numbers that are noted of each unit.
    units: BTreeMap<String, Vec<u64>>,
    /// Notes of earlier runs that it takes back. They stay until the next run: if the store loses a file of this run,
    /// they count again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    replaced: BTreeMap<String, Vec<u64>>,
}

impl Notes {
    fn new(run: &str, notes: &LoadNotes) -> Self {
        let Noted { chunks, replaced } = notes.noted();
        let (units, replaced) = (by_unit(chunks), by_unit(replaced));
        Notes { load: notes.load.clone(), run: run.to_owned(), units, replaced }
    }

    fn chunks(&self) -> impl Iterator<Item = Chunk> {
        chunks_of(&self.units)
    }
}

fn by_unit(chunks: Vec<Chunk>) -> BTreeMap<String, Vec<u64>> {
    let mut units = BTreeMap::<String, Vec<u64>>::new();
    for Chunk { unit, number } in chunks {
        units.entry(unit).or_default().push(number);
    }
    units
}

fn chunks_of(units: &BTreeMap<String, Vec<u64>>) -> impl Iterator<Item = Chunk> {
    units.iter().flat_map(|(unit, numbers)| numbers.iter().map(|number| Chunk { unit: unit.clone(), number: *number }))
}

/// What counts of `notes`, the earlier ones first.
fn counting<'a>(notes: impl Iterator<Item = &'a Notes>) -> BTreeSet<Chunk> {
    let mut known = BTreeSet::new();
    for one in notes {
        for chunk in chunks_of(&one.replaced) {
            known.remove(&chunk);
        }
        known.extend(one.chunks());
    }
    known
}

/// `notes` of runs whose files are all there, without those that were taken back.
fn settled(notes: &[Notes]) -> Vec<Notes> {
    if notes.iter().all(|one| one.replaced.is_empty()) {
        return notes.to_vec();
    }
    let of = |(index, one): (usize, &Notes)| {
        let later = notes[index + 1..].iter().filter(|later| later.load == one.load);
        let gone: BTreeSet<Chunk> = later.flat_map(|later| chunks_of(&later.replaced)).collect();
        let units = by_unit(one.chunks().filter(|chunk| !gone.contains(chunk)).collect());
        Notes { units, replaced: BTreeMap::new(), ..one.clone() }
    };
    notes.iter().enumerate().map(of).filter(|one| !one.units.is_empty()).collect()
}

/// The commit marker of a run that has added files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Marker {
    /// The name of the load.
    load: String,
    /// The run that has committed it.
    run: String,
}

/// One file of a list.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlannedFile {
    /// Its number while it was being written; `None` for a file of an earlier run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) staged: Option<usize>,
    /// Its path below the target's folder.
    pub(crate) path: String,
    /// Rows in it.
    pub(crate) rows: u64,
    /// Its size in bytes.
    pub(crate) bytes: u64,
    /// The value of `split` of its rows: `null` for rows without one. Missing if they are not split, or in lists of
    /// version 1.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "even_null")]
    pub(crate) value: Option<Option<String>>,
    /// The ticket of its upload, until it is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) upload: Option<String>,
    /// The size of the file of an earlier run that it replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) replaced: Option<u64>,
}

/// Distinguishes a `null` from a missing key.
fn even_null<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(input).map(Some)
}

/// The version of a list, which is read first.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// The latest version of [`Plan`]. This program also reads earlier ones: version 1 has neither `first`, `mode`, `split`
/// and `markers`, nor the files' values.
const PLAN_VERSION: u32 = 4;

/// The version of a list with notes none of which takes others back.
const WITH_NOTES: u32 = 3;

/// The version of a list without notes. Programs that know no notes would lose them, and may have any other list.
const WITHOUT_NOTES: u32 = 2;

/// The run that a list is made for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// The first run of its resume chain.
    pub(crate) first: &'a str,
    /// Its commit marker.
    pub(crate) marker: Option<&'a str>,
    /// What it notes of the units of its rows.
    pub(crate) notes: Option<&'a LoadNotes>,
}

impl Plan {
    /// As it is stored.
    pub(crate) fn to_text(&self) -> Result<Vec<u8>> {
        let mut text = serde_json::to_vec_pretty(self).map_err(|error| Error::internal(error.to_string()))?;
        text.push(b'\n');
        Ok(text)
    }

    /// Parses the plan in `text`, which is stored at `location`. Others may be able to write to it, so no path may lead
    /// out of the folder.
    pub(crate) fn from_text(text: &[u8], location: &str) -> Result<Self> {
        let damaged = |cause: String| {
            Error::refused(format!("the list of an earlier result, {location}, is damaged"))
                .cause(cause)
                .hint("remove it, and the files of that result that should not stay beside the new ones")
        };
        let Version { version } = serde_json::from_slice(text).map_err(|error| damaged(error.to_string()))?;
        if version > PLAN_VERSION {
            return Err(Error::refused(format!("the list of an earlier result, {location}, is of a newer Millstream"))
                .cause(format!("its version is {version}, and this program reads versions up to {PLAN_VERSION}"))
                .hint("run the newer version, or write to another path"));
        }
        let mut plan: Plan = serde_json::from_slice(text).map_err(|error| damaged(error.to_string()))?;
        let inside = |path: &str| {
            !path.is_empty() && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
        };
        let outside = plan.paths().find(|path| !inside(path)).map(str::to_owned);
        match outside {
            Some(path) => Err(damaged(format!("the path `{path}` leads out of the folder"))),
            None => {
                // Stale files are removed by now, and a file of that name is not ours.
                plan.stale.retain(|_| plan.unfinished);
                Ok(plan)
            }
        }
    }

    /// The paths of all files that it may have left.
    fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|file| file.path.as_str()).chain(self.stale.iter().map(String::as_str))
    }

    /// The paths of files that it may have left and that `files` do not replace.
    pub(crate) fn stale_beside(&self, files: &[PlannedFile]) -> Vec<String> {
        let kept: HashSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
        let stale: BTreeSet<&str> = self.paths().filter(|path| !kept.contains(path)).collect();
        stale.into_iter().map(str::to_owned).collect()
    }

    /// The files that its run has written.
    pub(crate) fn new_files(&self) -> impl Iterator<Item = &PlannedFile> {
        self.files.iter().filter(|file| file.staged.is_some())
    }

    /// Whether the run with the first run `first` of its chain may replace all of it as its own.
    pub(crate) fn is_of(&self, first: &str) -> bool {
        self.first.as_deref().unwrap_or(&self.run) == first
    }

    /// Whether the rows of the load with this commit marker are in its files.
    pub(crate) fn has(&self, marker: &str) -> bool {
        self.markers.iter().any(|known| known.load == marker)
    }

    /// The names of all loads of which something is kept: a commit marker, or notes.
    pub(crate) fn loads(&self) -> impl Iterator<Item = &str> {
        let markers = self.markers.iter().map(|marker| marker.load.as_str());
        markers.chain(self.notes.iter().map(|notes| notes.load.as_str()))
    }

    /// Whether anything is kept for a load: its commit marker, or notes.
    pub(crate) fn knows(&self, load: &str) -> bool {
        self.has(load) || self.notes.iter().any(|notes| notes.load == load)
    }

    /// Forgets what is kept for a load.
    pub(crate) fn forget(&mut self, load: &str) {
        self.markers.retain(|known| known.load != load);
        self.notes.retain(|notes| notes.load != load);
        self.version = version(&self.notes);
    }

    /// Notes more for a load that has notes, as what `run` has noted. No file of the list may be missing any more.
    pub(crate) fn note(&mut self, load: &str, run: &str, noted: Noted) {
        let notes = LoadNotes::new(load);
        notes.set(noted);
        self.notes = settled(&self.notes);
        self.notes.push(Notes::new(run, &notes));
        self.version = version(&self.notes);
    }

    /// What is noted for a load.
    pub(crate) fn noted(&self, load: &str) -> WrittenChunks {
        let known = self.counted(load).into_iter().map(|Chunk { unit, number }| (unit, number));
        WrittenChunks::new(known, str::to_owned)
    }

    fn counted(&self, load: &str) -> BTreeSet<Chunk> {
        counting(self.notes.iter().filter(|notes| notes.load == load))
    }

    /// Whether its run only adds files: then they may be missing as if it had never been.
    pub(crate) fn only_adds(&self) -> bool {
        self.mode == Some(FileMode::Append) || self.notes.iter().any(|notes| notes.run == self.run)
    }

    /// Takes over the markers of `other`, which is otherwise the same list.
    pub(crate) fn with_markers_of(&mut self, other: &Plan) {
        self.markers.retain(|known| known.run == self.run || other.markers.contains(known));
    }

    /// Whether `other` is the same list except for its markers, which other runs remove at their end.
    pub(crate) fn is_as(&self, other: &Plan) -> bool {
        let bare = |plan: &Plan| Plan { markers: Vec::new(), ..plan.clone() };
        bare(self) == bare(other)
    }

    /// The list without the files of its own run.
    pub(crate) fn without_its_run(mut self) -> Self {
        let (new, old): (Vec<PlannedFile>, _) = self.files.into_iter().partition(|file| file.staged.is_some());
        self.stale.extend(new.into_iter().map(|file| file.path));
        self.files = old;
        self.markers.retain(|marker| marker.run != self.run);
        self.notes.retain(|notes| notes.run != self.run);
        self.version = version(&self.notes);
        self
    }
}

/// The version of a list with these notes.
fn version(notes: &[Notes]) -> u32 {
    match notes.iter().any(|one| !one.replaced.is_empty()) {
        true => PLAN_VERSION,
        false if notes.is_empty() => WITHOUT_NOTES,
        false => WITH_NOTES,
    }
}

impl TargetFiles {
    /// Fails if a run may not begin beside the files of earlier ones, which are listed at `list`. `resumes` is the
    /// first run of its resume chain.
    pub(crate) fn admit(&self, earlier: Option<&Plan>, resumes: Option<&str>, list: &str) -> Result<()> {
        let Some(earlier) = earlier else { return Ok(()) };
        let own = resumes.is_some_and(|first| earlier.is_of(first));
        let adds = matches!(earlier.mode, Some(FileMode::Partitions | FileMode::Append));
        match self.mode {
            _ if own => Ok(()),
            FileMode::Error if earlier.files.is_empty() => Ok(()),
            FileMode::Error => Err(self.earlier_fault(earlier, list)),
            FileMode::Replace if !self.chosen && (self.split.is_some() || adds) && !earlier.files.is_empty() => {
                Err(self.undecided(earlier, list))
            }
            FileMode::Replace => Ok(()),
            FileMode::Append => self.same_split(earlier, list),
            FileMode::Partitions => self.valued(earlier, list).map(drop),
        }
    }

    /// The error if files already exist that must stay: those of `there`.
    fn earlier_fault(&self, there: &Plan, list: &str) -> Error {
        let shown = self.target.shown();
        if !self.target.is_set() {
            return destination::existing_fault(&shown, self.mode);
        }
        let count = crate::shared::counted(there.files.len() as u64, "file");
        let example = there.files.first().map_or("", |file| file.path.as_str());
        Error::refused(format!("files of an earlier run exist already in {shown}"))
            .cause(format!("{list} names what is there: {count}, such as {example}"))
            .hint("move them away, or write `mode: replace` to replace them")
    }

    /// The error if the commit of an earlier run is incomplete: the next run finishes it, and then this one may not
    /// begin. `plan` is the committed plan, at `location`.
    pub(crate) fn waiting(&self, plan: &Plan, location: &str) -> Error {
        let count = crate::shared::counted(plan.files.len() as u64, "file");
        Error::refused(format!(
            "the commit of an earlier run to {} was interrupted, and the next run has to finish it",
            self.target.shown()
        ))
        .cause(format!("{location} is the list of what run {} has committed: {count}", plan.run))
        .hint(
            "`millstream run` finishes the commit first, and is then refused, because those files stay; with \
             `--resume`, the job that was writing them resumes its last run",
        )
    }

    /// The error if the commit of an earlier run is incomplete and cannot be finished: `value` is one of those that
    /// lack rows.
    pub(crate) fn incomplete(&self, list: &str, value: Option<&Option<String>>) -> Error {
        let shown = self.target.shown();
        let of_value = match value {
            Some(Some(value)) => format!(" of the value `{value}`"),
            Some(None) => " of the rows without a value".to_owned(),
            None => String::new(),
        };
        Error::refused(format!("the files{of_value} in {shown} are not complete"))
            .cause(format!(
                "the commit of an earlier run was interrupted, and the store has lost what remained to be done ({list})"
            ))
            .hint("first run the job that was writing them again; or use `mode: replace`")
    }

    /// The error if files of earlier runs exist and no mode is set.
    fn undecided(&self, earlier: &Plan, list: &str) -> Error {
        let count = crate::shared::counted(earlier.files.len() as u64, "file");
        let of_split = self.split.is_some();
        let why = if of_split { "`split` without `mode`" } else { "a sink without `mode`" };
        let partitions = match of_split {
            true => "`mode: partitions` replaces the values that this run writes and keeps the others; ",
            false => "",
        };
        Error::refused(format!(
            "{} has files of an earlier run, and {why} does not say what happens to them",
            self.target.shown()
        ))
        .cause(format!("{list} lists {count}"))
        .hint(format!(
            "{partitions}`mode: append` adds files and keeps all; `mode: replace` removes all that this run does not \
                 write; `mode: error` refuses"
        ))
    }

    fn no_partitions(&self, list: &str, what: String) -> Error {
        let shown = self.target.shown();
        Error::refused(format!("the files of earlier runs in {shown} are not partitions of this one"))
            .cause(format!("{list}: {what}"))
    }

    /// Fails if the expression of `split` has changed, since the list would be wrong for some of its files.
    fn same_split(&self, earlier: &Plan, list: &str) -> Result<()> {
        match (&earlier.split, &self.split) {
            (Some(before), Some(split)) if before.trim() != split.trim() && !earlier.files.is_empty() => {
                let error = self.no_partitions(list, format!("they are split by `{before}`, and not by `{split}`"));
                Err(error.hint("write to another path; `mode: replace` removes them"))
            }
            _ => Ok(()),
        }
    }

    /// The files of `earlier` with their values.
    fn valued(&self, earlier: &Plan, list: &str) -> Result<Vec<PlannedFile>> {
        self.same_split(earlier, list)?;
        let refused = |what| self.no_partitions(list, what);
        let valued = |file: &PlannedFile| {
            let value = file.value.clone().or_else(|| self.target.value_of(&file.path));
            let value = value.ok_or_else(|| {
                refused(format!("it does not say which value {} has", file.path)).hint(
                    "`mode: replace` removes these files and writes a list that says it; or write to another path",
                )
            })?;
            Ok(PlannedFile { staged: None, upload: None, replaced: None, value: Some(value), ..file.clone() })
        };
        earlier.files.iter().map(valued).collect()
    }

    /// The list for `files`, which `run` has written, where `earlier` ones are listed at `list`.
    pub(crate) fn plan(
        &self,
        files: Vec<PlannedFile>,
        earlier: Option<&Plan>,
        run: Run<'_>,
        list: &str,
    ) -> Result<Plan> {
        check_distinct(&files)?;
        if let Some(notes) = run.notes {
            self.only_new(&files, notes, earlier, list)?;
        }
        let before = match (self.mode, earlier) {
            (_, None) | (FileMode::Replace | FileMode::Error, _) => Vec::new(),
            (FileMode::Partitions, Some(earlier)) => self.valued(earlier, list)?,
            (FileMode::Append, Some(earlier)) => earlier.files.clone(),
        };
        let values: HashSet<&Option<String>> = files.iter().filter_map(|file| file.value.as_ref()).collect();
        let stays = |file: &PlannedFile| {
            self.mode == FileMode::Append || file.value.as_ref().is_some_and(|value| !values.contains(value))
        };
        let lost = earlier.filter(|plan| plan.unfinished && self.mode == FileMode::Partitions);
        let mut lost = lost.iter().flat_map(|plan| plan.new_files()).filter_map(|file| file.value.as_ref());
        if let Some(value) = lost.find(|value| !values.contains(value)) {
            return Err(self.incomplete(list, Some(value)));
        }
        let paths: HashSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
        let mut kept = Vec::new();
        for file in before.into_iter().filter(stays) {
            if paths.contains(file.path.as_str()) {
                return Err(Error::refused(format!(
                    "a new file would have the name of a file that stays, {}",
                    file.path
                ))
                .hint("write to a path in which `{value}` is a folder of its own"));
            }
            kept.push(PlannedFile { staged: None, upload: None, replaced: None, ..file });
        }
        let sizes: HashMap<&str, u64> =
            earlier.iter().flat_map(|plan| &plan.files).map(|file| (file.path.as_str(), file.bytes)).collect();
        let replaced = |file: PlannedFile| match sizes.get(file.path.as_str()) {
            Some(bytes) => PlannedFile { replaced: Some(*bytes), ..file },
            None => file,
        };
        let mut files: Vec<PlannedFile> = kept.into_iter().chain(files.into_iter().map(replaced)).collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let adds = matches!(self.mode, FileMode::Partitions | FileMode::Append);
        let mut markers = earlier.filter(|_| adds).map_or_else(Vec::new, |earlier| earlier.markers.clone());
        let marker = run.marker.filter(|_| self.mode == FileMode::Append);
        markers.extend(marker.map(|load| Marker { load: load.to_owned(), run: run.name.to_owned() }));
        let mut notes = earlier.filter(|_| adds).map_or_else(Vec::new, |earlier| settled(&earlier.notes));
        notes.extend(run.notes.map(|of_run| Notes::new(run.name, of_run)));
        Ok(Plan {
            version: version(&notes),
            run: run.name.to_owned(),
            first: Some(run.first.to_owned()),
            mode: Some(self.mode),
            split: self.split.clone().or_else(|| earlier.filter(|_| adds).and_then(|earlier| earlier.split.clone())),
            // A single file may only be replaced by its own run, which the list names until it has ended.
            set: self.target.is_set() || self.mode == FileMode::Error,
            unfinished: false,
            stale: earlier.map_or_else(Vec::new, |earlier| earlier.stale_beside(&files)),
            files,
            markers,
            notes,
        })
    }

    /// Fails if a run that only loads new units would load some again, or would replace partitions of earlier ones,
    /// whose rows come from other units.
    fn only_new(&self, files: &[PlannedFile], notes: &LoadNotes, earlier: Option<&Plan>, list: &str) -> Result<()> {
        let (shown, noted) =
            (self.target.shown(), earlier.map(|earlier| earlier.counted(&notes.load)).unwrap_or_default());
        let Noted { chunks, replaced } = notes.noted();
        let faster = |what: &str| {
            Err(Error::refused(format!("another run has loaded {what} into {shown} meanwhile"))
                .hint("nothing was written twice: run the job again"))
        };
        if chunks.iter().any(|chunk| noted.contains(chunk)) {
            return faster("some of the same files");
        }
        if replaced.iter().any(|chunk| !noted.contains(chunk)) {
            return faster("rows of the same source");
        }
        let Some(earlier) = earlier else { return Ok(()) };
        if self.mode != FileMode::Partitions {
            return Ok(());
        }
        let there = self.valued(earlier, list)?;
        let there: HashSet<&Option<String>> = there.iter().filter_map(|file| file.value.as_ref()).collect();
        let mut again = files.iter().filter_map(|file| file.value.as_ref()).filter(|value| there.contains(value));
        let Some(value) = again.next() else { return Ok(()) };
        let named = value.as_ref().map_or("rows without a value".to_owned(), |value| format!("the value `{value}`"));
        Err(Error::refused(format!("{shown} has files of {named} already, and new files have more rows of it"))
            .cause(format!("`mode: partitions` would replace files of earlier runs, which {list} names"))
            .hint(
                "nothing was published. Let one run load all files of a value (`ready` waits for them), or write \
                 `mode: append`, which adds files",
            ))
    }
}

/// Two files of one load must not have one name.
fn check_distinct(files: &[PlannedFile]) -> Result<()> {
    let mut seen = HashSet::new();
    match files.iter().find(|file| !seen.insert(&file.path)) {
        Some(file) => Err(Error::refused(format!("two files of the sink have the same name {}", file.path))
            .hint("two long values have the same beginning and hash; split by a shorter expression")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::naming::Target;
    use super::super::spec::FileSpec;
    use super::*;

    fn target_files(mode: Option<FileMode>, split: Option<&str>) -> TargetFiles {
        let spec = FileSpec { mode, split: split.map(str::to_owned), ..FileSpec::default() };
        let text = if split.is_some() { "o/{value}.csv" } else { "o/a.csv" };
        TargetFiles::new(Target::new(text, &spec, false).expect("valid"), &spec)
    }

    fn file(path: &str, value: Option<Option<&str>>) -> PlannedFile {
        let value = value.map(|value| value.map(str::to_owned));
        PlannedFile { staged: Some(0), path: path.to_owned(), value, ..PlannedFile::default() }
    }

    fn run(name: &str) -> Run<'_> {
        Run { name, first: name, marker: None, notes: None }
    }

    fn paths(plan: &Plan) -> Vec<&str> {
        plan.files.iter().map(|file| file.path.as_str()).collect()
    }

    #[test]
    fn what_a_run_may_begin_beside() {
        use FileMode::{Append, Error, Partitions, Replace};
        let split = Some("day");
        let files = || vec![file("1.csv", Some(Some("1")))];
        let plan = |mode, split| target_files(Some(mode), split).plan(files(), None, run("first"), "").expect("a plan");
        for (mode, split, earlier, fine) in [
            (None, split, plan(Replace, split), false),
            (None, None, plan(Replace, None), true),
            (None, None, plan(Append, None), false),
            (None, None, plan(Partitions, split), false),
            (Some(Replace), split, plan(Partitions, split), true),
            (Some(Error), None, plan(Replace, None), false),
            (Some(Append), split, plan(Replace, None), true),
            (Some(Partitions), split, plan(Append, split), true),
            (Some(Append), Some("month"), plan(Append, split), false),
            (Some(Partitions), Some("month"), plan(Append, split), false),
            (Some(Partitions), Some(" day "), plan(Append, split), true),
        ] {
            let target_files = target_files(mode, split);
            let admitted = target_files.admit(Some(&earlier), Some("second"), "list");
            assert_eq!(admitted.is_ok(), fine, "{mode:?} {split:?} beside {earlier:?}: {admitted:?}");
            // It may replace its own files.
            assert!(target_files.admit(Some(&earlier), Some("first"), "list").is_ok(), "{mode:?}");
            assert!(target_files.admit(None, None, "list").is_ok(), "{mode:?}");
        }
        let none = target_files(None, split).plan(Vec::new(), None, run("first"), "").expect("a plan");
        assert!(target_files(None, split).admit(Some(&none), None, "list").is_ok(), "nothing is there");
    }

    #[test]
    fn what_stays_and_what_goes() {
        let old = |path: &str, value| file(path, Some(value));
        let earlier =
            vec![old("1-0.csv", Some("1")), old("1-1.csv", Some("1")), old("n.csv", None), old("2.csv", Some("2"))];
        let new = || vec![old("1-0.csv", Some("1")), old("n-0.csv", None)];
        let plan = |mode, files, before: Option<&Plan>| {
            target_files(Some(mode), Some("day")).plan(files, before, run("r"), "")
        };
        let before = plan(FileMode::Replace, earlier, None).expect("a plan");
        // As it is read back: a null is not a missing value.
        let before = Plan::from_text(&before.to_text().expect("text"), "list").expect("a list");
        let after = plan(FileMode::Partitions, new(), Some(&before)).expect("a plan");
        assert_eq!(paths(&after), ["1-0.csv", "2.csv", "n-0.csv"]);
        assert_eq!(after.stale, ["1-1.csv", "n.csv"]);
        assert_eq!(after.new_files().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["1-0.csv", "n-0.csv"]);
        let after = plan(FileMode::Replace, new(), Some(&before)).expect("a plan");
        assert_eq!((paths(&after), after.stale.len()), (vec!["1-0.csv", "n-0.csv"], 3));
        let after = plan(FileMode::Append, vec![old("3.csv", Some("1"))], Some(&before)).expect("a plan");
        assert_eq!((paths(&after).len(), after.stale.len()), (5, 0));
        plan(FileMode::Append, new(), Some(&before)).expect_err("the name of one that stays");
        plan(FileMode::Partitions, vec![old("2.csv", Some("3"))], Some(&before)).expect_err("that of another value");
    }

    /// What a run notes of units with these names.
    fn notes(units: &[&str]) -> LoadNotes {
        let notes = LoadNotes::new("load");
        let chunk = |unit: &&str| Chunk { unit: (*unit).to_owned(), number: 1 << 62 };
        notes.set(units.iter().map(chunk).collect::<Vec<_>>());
        notes
    }

    #[test]
    fn notes_are_committed_with_the_files_and_stay() {
        let read_back = |plan: &Plan| Plan::from_text(&plan.to_text().expect("text"), "list").expect("a list");
        let added = |mode, files, before: Option<&Plan>, name: &str, units: &[&str]| {
            let notes = notes(units);
            let run = Run { notes: Some(&notes), ..run(name) };
            target_files(Some(mode), Some("day")).plan(files, before, run, "list")
        };
        let knows = |plan: &Plan, unit: &str| !plan.noted("load").of_unit(unit).is_empty();
        for mode in [FileMode::Append, FileMode::Partitions] {
            let first = added(mode, vec![file("1.csv", Some(Some("1")))], None, "r", &["a"]).expect("a plan");
            let first = read_back(&first);
            assert_eq!((first.version, knows(&first, "a"), knows(&first, "b")), (3, true, false));
            let second = vec![file("2.csv", Some(Some("2")))];
            let second = read_back(&added(mode, second, Some(&first), "s", &["b"]).expect("a plan"));
            assert!(knows(&second, "a") && knows(&second, "b") && second.only_adds(), "{mode:?}");
            // A run whose files the store has lost leaves neither files nor notes.
            let without = second.clone().without_its_run();
            assert_eq!((knows(&without, "a"), knows(&without, "b"), paths(&without)), (true, false, vec!["1.csv"]));
            // Another run has loaded one of the same units, or has files of the same value.
            let other = |units: &[&str], value: &str| {
                let name = format!("{value}-.csv");
                added(mode, vec![file(&name, Some(Some(value)))], Some(&second), "t", units)
            };
            let told = other(&["c", "b"], "3").expect_err("it is there").to_string();
            assert!(told.contains("another run has loaded some of the same files"), "{told}");
            assert_eq!(other(&["c"], "2").is_ok(), mode == FileMode::Append);
            // Loads that note nothing keep the notes of others, and lists without notes keep their version.
            let files = vec![file("4.csv", Some(Some("4")))];
            let beside =
                target_files(Some(mode), Some("day")).plan(files, Some(&second), run("u"), "").expect("a plan");
            assert!(knows(&beside, "a"));
            let mut forgotten = beside;
            forgotten.forget("load");
            assert_eq!((forgotten.version, knows(&forgotten, "a")), (2, false));
        }
    }

    #[test]
    fn a_mark_replaces_the_one_before_it_unless_its_run_is_taken_back() {
        let read_back = |plan: &Plan| Plan::from_text(&plan.to_text().expect("text"), "list").expect("a list");
        let mark = |number| Chunk { unit: "\nmark s".to_owned(), number };
        let moved = |name: &str, to: u64, from: Option<u64>, before: Option<&Plan>| {
            let notes = LoadNotes::new("load");
            notes.set(Noted { chunks: vec![mark(to)], replaced: from.map(mark).into_iter().collect() });
            let run = Run { notes: Some(&notes), ..run(name) };
            target_files(Some(FileMode::Append), None)
                .plan(Vec::new(), before, run, "list")
                .map(|plan| read_back(&plan))
        };
        let marks = |plan: &Plan| plan.noted("load").of_unit("\nmark s").to_vec();
        let first = moved("r", 5, None, None).expect("a plan");
        assert_eq!((marks(&first), first.version), (vec![5], 3));
        let second = moved("s", 7, Some(5), Some(&first)).expect("a plan");
        assert_eq!((marks(&second), second.version, second.notes.len()), (vec![7], 4, 2));
        // The store has lost a file of the second run.
        let without = second.clone().without_its_run();
        assert_eq!((marks(&without), without.version), (vec![5], 3));
        // What was there before is there again, and the list does not grow.
        let third = moved("t", 5, Some(7), Some(&second)).expect("a plan");
        assert_eq!((marks(&third), third.notes.len()), (vec![5], 2));
        for (from, before) in [(5, Some(&second)), (7, Some(&first)), (5, None)] {
            let told = moved("u", 9, Some(from), before).expect_err("it is not there").to_string();
            assert!(told.contains("another run has loaded rows of the same source"), "{told}");
        }
    }

    #[test]
    fn lists_of_version_1_are_read() {
        let text = json!({"version": 1, "run": "r", "set": true, "files": [
            {"staged": 0, "path": "DE.csv", "rows": 1, "bytes": 2}
        ]});
        let plan = Plan::from_text(text.to_string().as_bytes(), "list").expect("a list");
        let target_files = target_files(Some(FileMode::Partitions), Some("day"));
        target_files.admit(Some(&plan), None, "list").expect("the names give the values");
        let after =
            target_files.plan(vec![file("FR.csv", Some(Some("FR")))], Some(&plan), run("s"), "").expect("a plan");
        let values = after.files.iter().map(|file| file.value.clone().flatten());
        assert_eq!(values.collect::<Vec<_>>(), [Some("DE".to_owned()), Some("FR".to_owned())]);
        assert!(plan.is_of("r"), "its run is the first of its chain as far as anybody knows");
    }
}
