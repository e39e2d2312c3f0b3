//! Files in a folder: from temporary names to final ones. It handles the lock, the temporary files, the list of a
//! committed set, and the remains of earlier runs.
//!
//! A load writes into one hidden folder beside its result, on the same file system, so that a rename is atomic:
//!
//! ```text
//!  out/.a.csv.tmp/lock            held while the run lives; the system lets go of it when the process dies
//!                 run             the name of the run, if workers of a cluster write, too
//!                 000000 000001   the files, under numbers
//!                 plan.new        the list of files and their final names, written and synced by `prepare`
//!                 plan.json       the same, renamed: from here on the set is committed
//!  out/a-000.csv out/a-001.csv    renamed one by one
//!  out/.a.csv.millstream.json     the plan at last, if the result is a set: what a later run replaces
//! ```
//! A process that dies before `plan.json` has changed nothing, and the next run removes its folder. One that dies after
//! it has committed, and the next run finishes the renames before it begins. The folder's name does not contain the
//! run: so one lock decides which run may write, without a race between the cleanup and the beginning of two runs.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::TryLockError;
use std::io::{ErrorKind as Io, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use millstream_core::sink::{ChangeNotes, LoadContext, LoadNotes, WorkerPart, WrittenChunks};
use millstream_core::source::SourceContext;
use millstream_core::{Budget, Error, Result, Step, fail_point};

use super::destination::{self, Destination, Draft, Staging, TargetFiles};
use super::handed::{self, HandedFile};
use super::naming::Target;
use super::plan::{Plan, PlannedFile, Run};
use super::spec::FileMode;
use super::staged::{RUN, StagedFile, temporary_folder};
use super::worker::ForRun;
use crate::shared::{blocking, create_folders, folder_fault, path_error, remove_folders, sync_folder};

/// Files in a folder of this machine.
#[derive(Debug)]
pub(crate) struct Folder;

#[async_trait]
impl Destination for Folder {
    fn check(&self, target_files: &TargetFiles, first: &[String]) -> Vec<Error> {
        let target = &target_files.target;
        let mut faults: Vec<Error> = folder_fault(target.folder()).into_iter().collect();
        faults.extend(first.iter().try_for_each(|name| kind_fault(&target.folder().join(name))).err());
        // A folder that cannot be read has already been reported.
        if let (Err(error), true) = (known_plan(target), faults.is_empty()) {
            faults.push(error);
        }
        faults
    }

    async fn reach(
        &self,
        target_files: &TargetFiles,
        first: &[String],
        _: &SourceContext,
        resumes: Option<&str>,
    ) -> Vec<Error> {
        blocking(|| earlier_fault(target_files, first, resumes)).err().into_iter().collect()
    }

    async fn recover(&self, target_files: &TargetFiles, _: &SourceContext, _: Option<&str>) -> Result<bool> {
        blocking(|| match committed_path(&target_files.target).symlink_metadata() {
            Ok(_) => Temporary::begin(&target_files.target, RECOVERY).map(|_| true),
            Err(_) => Ok(false),
        })
    }

    async fn settle(&self, target_files: &TargetFiles, _: &SourceContext, first: &str) -> Result<()> {
        let is_done = |plan: &Option<Plan>| plan.as_ref().is_some_and(|plan| target_files.keeps_until_end(plan, first));
        blocking(|| {
            if !is_done(&known_plan(&target_files.target)?) {
                return Ok(());
            }
            let (temporary, listed) = Temporary::begin(&target_files.target, first)?;
            if is_done(&listed) { temporary.remove_list() } else { Ok(()) }
        })
    }

    async fn begin(&self, target_files: &TargetFiles, context: &LoadContext) -> Result<Box<dyn Staging>> {
        let (temporary, mut earlier) = blocking(|| Temporary::begin(&target_files.target, &context.run))?;
        if !still_there(target_files, earlier.as_mut(), Some(&context.first)) {
            blocking(|| temporary.remove_list())?;
            earlier = None;
        }
        let marker = context.marker.clone();
        let is_there = marker.as_ref().zip(earlier.as_ref()).is_some_and(|(marker, earlier)| earlier.has(marker));
        if !is_there {
            target_files.admit(
                earlier.as_ref(),
                Some(&context.first),
                &listed_path(&target_files.target).display().to_string(),
            )?;
        }
        Ok(Box::new(InFolder {
            target_files: target_files.clone(),
            run: context.run.clone(),
            first: context.first.clone(),
            marker,
            notes: context.notes.clone(),
            earlier,
            is_there,
            step: Arc::clone(&context.step),
            budget: Arc::clone(&context.budget),
            temporary: Mutex::new(temporary),
        }))
    }

    async fn join(
        &self,
        target_files: &TargetFiles,
        context: &LoadContext,
        part: &WorkerPart,
    ) -> Result<Box<dyn Staging>> {
        Ok(Box::new(ForRun::join(target_files, context, part)?))
    }

    async fn listed(&self, target: &Target, _: &SourceContext) -> Result<Option<Plan>> {
        blocking(|| known_plan(target))
    }

    async fn settled(&self, target: &Target, context: &SourceContext) -> Result<Option<Plan>> {
        // A list that is committed is carried out in any case.
        self.listed(target, context).await
    }

    async fn change_notes(
        &self,
        target_files: &TargetFiles,
        context: &LoadContext,
        load: &str,
        change: &ChangeNotes,
    ) -> Result<()> {
        blocking(|| {
            let before = known_plan(&target_files.target)?.map(|plan| plan.noted(load));
            if change(&before.unwrap_or_else(|| WrittenChunks::new([], str::to_owned)))?.is_empty() {
                return Ok(());
            }
            let (temporary, listed) = Temporary::begin(&target_files.target, &context.run)?;
            let Some(mut plan) = listed else {
                let what = format!("the list of the files of {} was removed meanwhile", target_files.target.shown());
                return Err(Error::refused(what).hint("nothing was changed; try again"));
            };
            fail_point::pass("notes.begun");
            plan.note(load, &context.run, change(&plan.noted(load))?);
            fail_point::pass("notes.before");
            temporary.rewrite(&plan)?;
            fail_point::pass("notes.after");
            Ok(())
        })
    }

    async fn forget(&self, target_files: &TargetFiles, context: &LoadContext, load: &str) -> Result<()> {
        blocking(|| {
            if !known_plan(&target_files.target)?.is_some_and(|plan| plan.knows(load)) {
                return Ok(());
            }
            let (temporary, listed) = Temporary::begin(&target_files.target, &context.run)?;
            let Some(mut plan) = listed else { return Ok(()) };
            plan.forget(load);
            temporary.rewrite(&plan)
        })
    }
}

/// The list of the current files, or of those after the next run has finished a commit.
fn known_plan(target: &Target) -> Result<Option<Plan>> {
    match read_plan(&committed_path(target))? {
        Some(committed) => Ok(Some(committed)),
        None => read_plan(&listed_path(target)),
    }
}

/// Fails if earlier runs have left files that this one may not touch.
fn earlier_fault(target_files: &TargetFiles, first: &[String], resumes: Option<&str>) -> Result<()> {
    let (target, list) = (&target_files.target, listed_path(&target_files.target));
    if let Some(committed) = read_plan(&committed_path(target))? {
        let place = committed_path(target).display().to_string();
        return target_files
            .admit(Some(&committed), resumes, &place)
            .map_err(|_| target_files.waiting(&committed, &place));
    }
    let mut earlier = read_plan(&list)?;
    if !still_there(target_files, earlier.as_mut(), resumes) {
        earlier = None;
    }
    target_files.admit(earlier.as_ref(), resumes, &list.display().to_string())?;
    // By now the listed files are the run's own.
    match target_files.mode == FileMode::Error && earlier.is_none() {
        true => first.iter().try_for_each(|name| existing_fault(&target.folder().join(name), target_files.mode)),
        false => Ok(()),
    }
}

/// Removes files from a list that do not exist any more, if that matters. Returns whether any is left.
fn still_there(target_files: &TargetFiles, earlier: Option<&mut Plan>, resumes: Option<&str>) -> bool {
    let Some(plan) = earlier.filter(|plan| target_files.looks_at(plan, resumes)) else { return true };
    plan.files.retain(|file| target_files.target.folder().join(&file.path).symlink_metadata().is_ok());
    !plan.files.is_empty()
}

/// A load into a folder.
struct InFolder {
    target_files: TargetFiles,
    run: String,
    /// The first run of its resume chain.
    first: String,
    marker: Option<String>,
    notes: Option<Arc<LoadNotes>>,
    /// The list of files at its beginning.
    earlier: Option<Plan>,
    is_there: bool,
    step: Arc<Step>,
    budget: Arc<Budget>,
    temporary: Mutex<Temporary>,
}

impl InFolder {
    fn temporary(&self) -> MutexGuard<'_, Temporary> {
        self.temporary.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Staging for InFolder {
    async fn file(&self, number: usize, path: &str) -> Result<Box<dyn Draft>> {
        let staged = self.temporary().file(number);
        let shown = self.target_files.target.folder().join(path);
        Ok(Box::new(blocking(|| StagedFile::create(staged, shown, &self.budget))?))
    }

    fn is_there(&self) -> bool {
        self.is_there
    }

    async fn prepare(&self, files: Vec<PlannedFile>) -> Result<()> {
        let (marker, notes) = (self.marker.as_deref(), self.notes.as_deref());
        let run = Run { name: &self.run, first: &self.first, marker, notes };
        let list = listed_path(&self.target_files.target).display().to_string();
        let mut plan = self.target_files.plan(files, self.earlier.as_ref(), run, &list)?;
        // The plan in the temporary folder names the stale files; the list that stays does not.
        plan.stale.clear();
        blocking(|| self.temporary().prepare(&plan, self.target_files.mode, self.earlier.as_ref(), &self.step))
    }

    async fn commit(&self) -> Result<Vec<String>> {
        blocking(|| {
            let mut temporary = self.temporary();
            let mut removed = std::mem::take(&mut temporary.recovered);
            if !self.is_there {
                removed.extend(temporary.commit()?);
            }
            temporary.remove_temporary();
            Ok(removed)
        })
    }

    async fn abort(&self) {
        blocking(|| self.temporary().abort());
    }

    /// The lock is of this machine, and others may neither see what is in it nor be let in.
    async fn begin_for_workers(&self) -> Result<()> {
        blocking(|| {
            let temporary = self.temporary();
            let note = temporary.temporary.join(RUN);
            let written = fs_err::File::create(&note).and_then(|mut file| {
                file.write_all(self.run.as_bytes())?;
                file.sync_all()
            });
            written.map_err(|error| path_error("write", &note, &error))?;
            sync_folder(&temporary.temporary)
        })
    }

    async fn adopt(&self, number: usize, handed: &HandedFile) -> Result<()> {
        blocking(|| {
            let temporary = self.temporary();
            let (from, to) = (handed::place(&temporary.temporary, handed)?, temporary.file(number));
            let there = from.symlink_metadata().map_err(|error| path_error("look at", &from, &error))?;
            if there.len() != handed.file.bytes {
                let what = format!("{} is not what a worker has written", from.display());
                let cause = format!("it has {} bytes, and not {}", there.len(), handed.file.bytes);
                return Err(Error::refused(what).cause(cause));
            }
            rename(&from, &to)
        })
    }

    async fn discard(&self, handed: &HandedFile) {
        blocking(|| {
            if let Ok(path) = handed::place(&self.temporary().temporary, handed) {
                let _ = fs_err::remove_file(path);
            }
        });
    }
}

/// The text of the lock while a run that may not begin finishes a commit.
const RECOVERY: &str = "that finishes the commit of an earlier one";

/// The prepared list, in the temporary folder.
const PREPARED: &str = "plan.new";

/// The same, once it is committed.
const COMMITTED: &str = "plan.json";

/// How often the lock is tried while other runs remove their folders.
const LOCK_TRIES: usize = 100;

/// The temporary files of one load.
struct Temporary {
    /// The target's folder.
    folder: PathBuf,
    /// The hidden folder with the temporary files.
    temporary: PathBuf,
    /// The list of the current set.
    listed: PathBuf,
    /// Held until the load ends.
    _lock: fs_err::File,
    /// Folders that did not exist before, outermost first.
    created: Vec<PathBuf>,
    /// The files that were removed to finish a commit of an earlier run.
    recovered: Vec<String>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Only temporary files.
    Open,
    /// The plan has its final name.
    Committed,
    /// The temporary folder is gone.
    Done,
}

impl Temporary {
    /// Creates the temporary folder, and finishes or removes the remains of a dead run. Also returns the list of the
    /// current files.
    fn begin(target: &Target, run: &str) -> Result<(Self, Option<Plan>)> {
        let mut created = Vec::new();
        let begun = Self::begin_in(target, run, &mut created);
        if begun.is_err() {
            remove_folders(&mut created);
        }
        begun
    }

    fn begin_in(target: &Target, run: &str, created: &mut Vec<PathBuf>) -> Result<(Self, Option<Plan>)> {
        let folder = target.folder().to_owned();
        let temporary = temporary_folder(target);
        let listed = listed_path(target);
        let lock = lock(&temporary, target, run, created)?;
        // Until a dead run's commit is finished, none of its files may be removed, so the state counts as committed.
        let mut staging = Temporary {
            folder,
            temporary,
            listed,
            _lock: lock,
            created: Vec::new(),
            recovered: Vec::new(),
            state: State::Committed,
        };
        staging.recover()?;
        staging.state = State::Open;
        // The current list must be readable before anything is written beside it.
        let listed = read_plan(&staging.listed)?;
        staging.created = std::mem::take(created);
        Ok((staging, listed))
    }

    /// The path of the temporary file with that number.
    fn file(&self, number: usize) -> PathBuf {
        self.temporary.join(format!("{number:06}"))
    }

    /// Makes everything durable under temporary names. After this only renames remain.
    fn prepare(&mut self, plan: &Plan, mode: FileMode, earlier: Option<&Plan>, step: &Step) -> Result<()> {
        self.check_names(plan, mode, earlier)?;
        let folders: BTreeSet<PathBuf> = plan.new_files().filter_map(|file| self.parent_of(&file.path)).collect();
        for folder in &folders {
            create_folders(folder, &mut self.created)?;
        }
        for path in plan.new_files().filter_map(|file| file.staged).map(|number| self.file(number)) {
            step.writing(|| fs_err::File::open(&path).and_then(|opened| opened.sync_all()))
                .map_err(|error| path_error("sync", &path, &error))?;
        }
        step.writing(|| {
            write_plan(&self.temporary.join(PREPARED), plan)?;
            sync_folder(&self.temporary)
        })
    }

    /// Gives the files their final names. Removes and returns the stale files of earlier runs.
    fn commit(&mut self) -> Result<Vec<String>> {
        let (from, to) = (self.temporary.join(PREPARED), self.committed_plan());
        fail_point::pass("files.before");
        fs_err::rename(&from, &to)
            .map_err(|error| path_error("commit what was written in", &self.temporary, &error))?;
        self.state = State::Committed;
        sync_folder(&self.temporary)?;
        fail_point::pass("files.after");
        // Whatever the cause, the user must know that the commit is incomplete.
        self.publish().map_err(|error| {
            error.hint(
                "the run is committed: remove what is in the way, and run any job with this target again, which \
                 finishes the renames first",
            )
        })
    }

    /// Rolls back, unless it is committed.
    fn abort(&mut self) {
        if self.state == State::Open {
            self.remove_temporary();
            remove_folders(&mut self.created);
        }
    }

    fn committed_plan(&self) -> PathBuf {
        self.temporary.join(COMMITTED)
    }

    fn parent_of(&self, path: &str) -> Option<PathBuf> {
        self.folder.join(path).parent().map(Path::to_owned)
    }

    /// Fails if the renames would be wrong.
    fn check_names(&self, plan: &Plan, mode: FileMode, earlier: Option<&Plan>) -> Result<()> {
        let own: HashSet<&str> = match mode {
            // A run that was admitted beside a list is of the same resume chain.
            FileMode::Error => earlier.iter().flat_map(|plan| &plan.files).map(|file| file.path.as_str()).collect(),
            _ => HashSet::new(),
        };
        for file in plan.new_files().filter(|file| !own.contains(file.path.as_str())) {
            existing_fault(&self.folder.join(&file.path), mode)?;
        }
        let mut folded: BTreeMap<String, &str> = BTreeMap::new();
        for file in &plan.files {
            if let Some(other) = folded.insert(file.path.to_lowercase(), &file.path)
                && self.ignores_case()
            {
                return Err(Error::refused(format!(
                    "the names {other} and {} differ only in case, and the disk does not tell them apart",
                    file.path
                ))
                .hint("split by `lower(…)` of the expression, or write to another disk"));
            }
        }
        Ok(())
    }

    /// Whether the file system ignores case in names.
    fn ignores_case(&self) -> bool {
        self.temporary.join("LOCK").symlink_metadata().is_ok()
    }

    /// Finishes the commit of a dead run, or removes its files.
    fn recover(&mut self) -> Result<()> {
        if self.committed_plan().symlink_metadata().is_ok() {
            self.recovered = self.publish()?;
        }
        self.clear(true)
    }

    /// Carries out the committed plan. Every step can be repeated, so the next run can finish it after a crash. Returns
    /// the removed files.
    fn publish(&self) -> Result<Vec<String>> {
        let at = self.committed_plan();
        let Some(plan) = read_plan(&at)? else {
            return Err(Error::internal(format!("the plan {} is gone", at.display())));
        };
        let mut folders = BTreeSet::from([self.folder.clone()]);
        for file in plan.new_files() {
            let staged = file.staged.map(|number| self.file(number));
            if let Some(staged) = staged.filter(|staged| staged.symlink_metadata().is_ok()) {
                rename(&staged, &self.folder.join(&file.path))?;
                fail_point::pass("files.renamed");
            }
            folders.extend(self.parent_of(&file.path));
        }
        folders.iter().try_for_each(|folder| sync_folder(folder))?;
        let removed = self.remove_stale(&plan)?;
        fail_point::pass("files.list");
        if plan.set {
            rename(&at, &self.listed)?;
        } else {
            remove_if_there(&self.listed)?;
            remove_if_there(&at)?;
        }
        sync_folder(&self.folder)?;
        fail_point::pass("files.listed");
        Ok(removed)
    }

    /// Rewrites the list of the current files.
    fn rewrite(&self, plan: &Plan) -> Result<()> {
        let new = self.temporary.join(PREPARED);
        write_plan(&new, plan)?;
        rename(&new, &self.listed)?;
        sync_folder(&self.folder)
    }

    /// Removes the list of the current files.
    fn remove_list(&self) -> Result<()> {
        remove_if_there(&self.listed)?;
        sync_folder(&self.folder)
    }

    /// Removes the files of the former set that the new one does not replace: old rows must not stay beside new ones.
    fn remove_stale(&self, plan: &Plan) -> Result<Vec<String>> {
        let Some(before) = read_plan(&self.listed)? else { return Ok(Vec::new()) };
        let mut removed = Vec::new();
        let folded: HashSet<String> = match self.ignores_case() {
            true => plan.files.iter().map(|file| file.path.to_lowercase()).collect(),
            false => HashSet::new(),
        };
        let is_replaced = |stale: &String| folded.contains(&stale.to_lowercase());
        for stale in before.stale_beside(&plan.files).into_iter().filter(|stale| !is_replaced(stale)) {
            let path = self.folder.join(stale);
            if remove_if_there(&path)? {
                removed.push(path.display().to_string());
            }
            fail_point::pass("files.removed");
            let below = path.ancestors().skip(1).take_while(|ancestor| *ancestor != self.folder);
            for folder in below {
                // Removes the empty folder of a value; one with other content stays.
                let _ = fs_err::remove_dir(folder);
            }
        }
        Ok(removed)
    }

    /// Removes all temporary files; the lock too, unless `keep_lock`.
    fn clear(&self, keep_lock: bool) -> Result<()> {
        let entries = fs_err::read_dir(&self.temporary).map_err(|error| path_error("list", &self.temporary, &error))?;
        for entry in entries {
            let entry = entry.map_err(|error| path_error("list", &self.temporary, &error))?;
            if !(keep_lock && entry.file_name() == "lock") {
                remove_if_there(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Removes the temporary folder, the lock last, so that no other run can begin in between.
    fn remove_temporary(&mut self) {
        // The next run removes what is left.
        let _ = self.clear(true);
        let _ = fs_err::remove_file(self.temporary.join("lock"));
        if fs_err::remove_dir(&self.temporary).is_err() {
            // A worker that was lost has just begun a file.
            let _ = self.clear(false);
            let _ = fs_err::remove_dir(&self.temporary);
        }
        self.state = State::Done;
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        self.abort();
    }
}

/// The list that a run has committed, until it is carried out.
fn committed_path(target: &Target) -> PathBuf {
    temporary_folder(target).join(COMMITTED)
}

/// `.NAME.millstream.json` beside the result.
fn listed_path(target: &Target) -> PathBuf {
    target.folder().join(target.list())
}

/// Whether `path` is one of the system's names for open files (`/dev/stdout`), which may lead to a file.
fn is_among_devices(path: &Path) -> bool {
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok()).unwrap_or_default();
    let memory = folder.starts_with("/dev/shm") || folder.starts_with("/dev/mqueue");
    !memory && ["/dev", "/proc", "/sys"].iter().any(|system| folder.starts_with(system))
}

/// Fails if the file `path` cannot be written in `mode`.
fn existing_fault(path: &Path, mode: FileMode) -> Result<()> {
    kind_fault(path)?;
    let may_replace = matches!(mode, FileMode::Replace | FileMode::Partitions);
    match may_replace || path.metadata().is_err() {
        true => Ok(()),
        false => Err(destination::existing_fault(&path.display().to_string(), mode)),
    }
}

/// Fails if `path` is something that no file can replace.
fn kind_fault(path: &Path) -> Result<()> {
    // A link is replaced, not followed, but its target shows what the user meant.
    let Ok(kind) = path.metadata() else { return Ok(()) };
    if kind.is_dir() {
        return Err(Error::refused(format!("{} is a folder, not a file", path.display()))
            .hint(format!("name a file in it, such as {}", path.join("result.csv").display())));
    }
    if !kind.is_file() || is_among_devices(path) {
        return Err(Error::refused(format!("{} is a device or a pipe, not a file", path.display()))
            .hint(format!("write to standard output (`write: \"-\"`) and run with > {}", path.display())));
    }
    Ok(())
}

/// Takes the lock of a target for this process.
fn lock(temporary: &Path, target: &Target, run: &str, created: &mut Vec<PathBuf>) -> Result<fs_err::File> {
    let path = temporary.join("lock");
    let mut vanished = None;
    for _ in 0..LOCK_TRIES {
        create_folders(target.folder(), created)?;
        match fs_err::create_dir(temporary) {
            // A run that rolled back has just removed its folder.
            Err(error) if error.kind() == Io::NotFound => {
                vanished = Some(error);
                continue;
            }
            Err(error) if error.kind() != Io::AlreadyExists => {
                return Err(path_error("create the folder", temporary, &error));
            }
            _ => {}
        }
        let mut options = fs_err::OpenOptions::new();
        let mut file = match options.read(true).write(true).create(true).truncate(false).open(&path) {
            Ok(file) => file,
            // Its owner has just ended and removed the folder.
            Err(error) if error.kind() == Io::NotFound => {
                vanished = Some(error);
                continue;
            }
            Err(error) => return Err(path_error("open", &path, &error)),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::refused(format!("another run is writing {}", target.shown()))
                    .cause(fs_err::read_to_string(&path).map_or(String::new(), |run| format!("run {run}")))
                    .hint("wait until it has ended"));
            }
            Err(TryLockError::Error(error)) => return Err(path_error("lock", &path, &error)),
        }
        // Between opening and locking, the owner may have ended and removed this very file.
        let same =
            |there: std::fs::Metadata, ours: std::fs::Metadata| (there.dev(), there.ino()) == (ours.dev(), ours.ino());
        let ours = file.metadata().map_err(|error| path_error("look at", &path, &error))?;
        if path.symlink_metadata().is_ok_and(|there| same(there, ours)) {
            file.set_len(0)
                .and_then(|()| file.write_all(run.as_bytes()))
                .map_err(|error| path_error("write", &path, &error))?;
            return Ok(file);
        }
    }
    // A folder that is a link to nothing, or runs that come and go all the time.
    let cause = vanished.unwrap_or_else(|| Io::NotFound.into());
    Err(path_error("create the folder", temporary, &cause))
}

fn write_plan(path: &Path, plan: &Plan) -> Result<()> {
    let text = plan.to_text()?;
    let written = fs_err::File::create(path).and_then(|mut file| {
        file.write_all(&text)?;
        file.sync_all()
    });
    written.map_err(|error| path_error("write", path, &error))
}

/// The plan at `path`, if there is one.
fn read_plan(path: &Path) -> Result<Option<Plan>> {
    match fs_err::read(path) {
        Ok(text) => Plan::from_text(&text, &path.display().to_string()).map(Some),
        Err(error) if error.kind() == Io::NotFound => Ok(None),
        Err(error) => Err(path_error("read", path, &error)),
    }
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs_err::rename(from, to).map_err(|error| path_error("give its final name to", to, &error))
}

/// Removes a file; `false` if there is none.
fn remove_if_there(path: &Path) -> Result<bool> {
    match fs_err::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.kind(), Io::NotFound | Io::NotADirectory) => Ok(false),
        // Our file was replaced by a folder of the same name, which is not ours.
        Err(_) if path.symlink_metadata().is_ok_and(|there| there.is_dir()) => Ok(false),
        Err(error) => Err(path_error("remove", path, &error)),
    }
}
