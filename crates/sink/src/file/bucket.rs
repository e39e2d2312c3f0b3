//! Files in a bucket: objects that appear as a whole, and a list that makes several objects one result, as far as
//! stores allow. The store uploads objects.
//!
//! ```text
//!  a-000.csv ┐                                   every object is in the store by now, but not visible
//!  a-001.csv ┴─ finish ─▶ prepare
//!  .a.csv.millstream.json, unfinished            from here on the set is committed: the list says what completes
//!                                                each object, and which old ones go
//!  a-000.csv a-001.csv                           completed
//!  a-002.csv                                     removed: of the set that was there before
//!  .a.csv.millstream.json                        finished: what a later run replaces
//! ```
//! A process that dies before the list is written has changed nothing visible. One that dies after it has committed,
//! and the next run does the rest before it begins. A single object needs no list, unless it replaces a set.
//!
//! A store only accepts parts of some megabytes, so every open object holds up to that much. All of them together hold
//! a share of the budget; the rest goes to scratch until a part is full.

use std::collections::{BTreeMap, HashSet};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use millstream_core::sink::{ChangeNotes, LoadContext, LoadNotes, WorkerPart, WrittenChunks};
use millstream_core::source::SourceContext;
use millstream_core::store::{Brought, Store, Stored, Upload};
use millstream_core::{Budget, Error, ErrorKind, Result, Step, fail_point};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::destination::{self, Destination, Draft, Staging, TargetFiles};
use super::handed::HandedFile;
use super::naming::Target;
use super::plan::{Plan, PlannedFile, Run};
use super::spec::FileMode;
use crate::shared::blocking;

/// The size of a part. Stores require at least 5 MiB.
const PART: usize = 8 << 20;

/// All open objects of a load hold one part in so many of the budget.
const SHARE: usize = 4;

/// How often writing the list is attempted while others write it.
const LIST_TRIES: usize = 5;

/// The most parallel requests for whole objects.
const AT_ONCE: usize = 16;

/// The most names to look up before there are rows, if nothing may be replaced.
const LOOKED_UP: usize = 64;

/// Objects in a store.
#[derive(Debug)]
pub(crate) struct Bucket(pub(crate) Arc<dyn Store>);

#[async_trait]
impl Destination for Bucket {
    fn check(&self, _: &TargetFiles, _: &[String]) -> Vec<Error> {
        Vec::new()
    }

    async fn reach(
        &self,
        target_files: &TargetFiles,
        first: &[String],
        context: &SourceContext,
        resumes: Option<&str>,
    ) -> Vec<Error> {
        let far = self.far(&target_files.target, context.clone());
        far.reach(target_files, first, resumes).await.err().into_iter().collect()
    }

    async fn recover(
        &self,
        target_files: &TargetFiles,
        context: &SourceContext,
        resumes: Option<&str>,
    ) -> Result<bool> {
        let far = self.far(&target_files.target, context.clone());
        if !far.read_list().await?.is_some_and(|listed| listed.plan.unfinished) {
            return Ok(false);
        }
        match far.recovered().await?.0 {
            Some(Listed { plan, .. }) if plan.unfinished && target_files.admit(Some(&plan), resumes, "").is_err() => {
                Err(target_files.incomplete(&far.list(), None))
            }
            _ => Ok(true),
        }
    }

    async fn settle(&self, target_files: &TargetFiles, context: &SourceContext, first: &str) -> Result<()> {
        if target_files.target.is_set() || target_files.mode != FileMode::Error {
            return Ok(());
        }
        let far = self.far(&target_files.target, context.clone());
        match far.read_list().await? {
            Some(listed) if target_files.keeps_until_end(&listed.plan, first) => {
                far.store.remove(&far.context, &far.list()).await
            }
            _ => Ok(()),
        }
    }

    async fn begin(&self, target_files: &TargetFiles, context: &LoadContext) -> Result<Box<dyn Staging>> {
        let far = self.far(&target_files.target, super::network(context));
        let (earlier, recovered) = far.recovered().await?;
        let earlier = match far.still_there(target_files, earlier.clone(), Some(&context.first)).await? {
            // Files that the user has moved away do not matter, nor does their list.
            None if earlier.is_some() => {
                far.store.remove(&far.context, &far.list()).await?;
                None
            }
            there => there,
        };
        let plan = earlier.as_ref().map(|listed| &listed.plan);
        let marker = context.marker.clone();
        let is_there = marker.as_ref().zip(plan).is_some_and(|(marker, plan)| plan.has(marker));
        if !is_there {
            target_files.admit(plan, Some(&context.first), &far.list())?;
            // If the commit could not be recovered, it is unknown which rows are missing.
            if target_files.mode == FileMode::Append && plan.is_some_and(|plan| plan.unfinished) {
                return Err(target_files.incomplete(&far.list(), None));
            }
        }
        let mut begun = InBucket::new(target_files, context, far);
        (begun.earlier, begun.recovered, begun.is_there) = (earlier, recovered, is_there);
        Ok(Box::new(begun))
    }

    async fn join(
        &self,
        target_files: &TargetFiles,
        context: &LoadContext,
        _: &WorkerPart,
    ) -> Result<Box<dyn Staging>> {
        let far = self.far(&target_files.target, super::network(context));
        Ok(Box::new(InBucket::new(target_files, context, far)))
    }

    async fn listed(&self, target: &Target, context: &SourceContext) -> Result<Option<Plan>> {
        let listed = self.far(target, context.clone()).read_list().await?;
        Ok(listed.map(|listed| listed.plan))
    }

    async fn settled(&self, target: &Target, context: &SourceContext) -> Result<Option<Plan>> {
        let (listed, _) = self.far(target, context.clone()).recovered().await?;
        Ok(listed.map(|listed| listed.plan))
    }

    async fn change_notes(
        &self,
        target_files: &TargetFiles,
        context: &LoadContext,
        load: &str,
        change: &ChangeNotes,
    ) -> Result<()> {
        let far = self.far(&target_files.target, super::network(context));
        let (listed, _) = far.recovered().await?;
        let Some(Listed { mut plan, stored }) = listed else {
            return change(&WrittenChunks::new([], str::to_owned)).map(drop);
        };
        let noted = change(&plan.noted(load))?;
        if noted.is_empty() {
            return Ok(());
        }
        if plan.unfinished {
            return Err(far.is_written());
        }
        fail_point::pass("notes.begun");
        plan.note(load, &context.run, noted);
        fail_point::pass("notes.before");
        match far.write_list(&plan, Some(&stored)).await? {
            true => fail_point::pass("notes.after"),
            false => return Err(far.is_written()),
        }
        Ok(())
    }

    async fn forget(&self, target_files: &TargetFiles, context: &LoadContext, load: &str) -> Result<()> {
        let far = self.far(&target_files.target, super::network(context));
        for _ in 0..LIST_TRIES {
            let Some(Listed { mut plan, stored }) = far.read_list().await? else { return Ok(()) };
            if !plan.knows(load) {
                return Ok(());
            }
            if plan.unfinished {
                return Err(far.is_written());
            }
            plan.forget(load);
            if far.write_list(&plan, Some(&stored)).await? {
                return Ok(());
            }
        }
        Err(far.is_written())
    }
}

impl Bucket {
    fn far(&self, target: &Target, context: SourceContext) -> Far {
        Far { store: Arc::clone(&self.0), context, target: target.clone() }
    }
}

/// A list in the store.
#[derive(Debug, Clone)]
struct Listed {
    plan: Plan,
    /// The version of the list.
    stored: Stored,
}

/// The objects of one target in the store.
#[derive(Debug, Clone)]
struct Far {
    store: Arc<dyn Store>,
    context: SourceContext,
    target: Target,
}

impl Far {
    fn list(&self) -> String {
        self.target.uri(&self.target.list())
    }

    async fn reach(&self, target_files: &TargetFiles, first: &[String], resumes: Option<&str>) -> Result<()> {
        let earlier = self.read_list().await?;
        let earlier = self.still_there(target_files, earlier, resumes).await?;
        let plan = earlier.as_ref().map(|listed| &listed.plan);
        target_files.admit(plan, resumes, &self.list()).map_err(|error| match plan {
            Some(plan) if plan.unfinished => target_files.waiting(plan, &self.list()),
            _ => error,
        })?;
        // By now the listed files are the run's own.
        if target_files.mode == FileMode::Error && earlier.is_none() {
            self.none_exists(first.iter().take(LOOKED_UP).cloned().collect(), target_files.mode).await?;
        }
        let probed = match first {
            [only] if !self.target.is_set() => self.target.uri(only),
            _ => self.list(),
        };
        self.store.probe(&self.context, &probed).await
    }

    /// Reads the list of the current files.
    async fn read_list(&self) -> Result<Option<Listed>> {
        let uri = self.list();
        match self.store.read(&self.context, &uri).await? {
            Some(stored) => Ok(Some(Listed { plan: Plan::from_text(&stored.content, &uri)?, stored })),
            None => Ok(None),
        }
    }

    /// Removes files from a list that do not exist any more, if that matters; `None` if none is left. An unfinished
    /// list is not checked.
    async fn still_there(
        &self,
        target_files: &TargetFiles,
        listed: Option<Listed>,
        resumes: Option<&str>,
    ) -> Result<Option<Listed>> {
        let Some(mut listed) = listed else { return Ok(None) };
        if listed.plan.unfinished || !target_files.looks_at(&listed.plan, resumes) {
            return Ok(Some(listed));
        }
        let there = Mutex::new(HashSet::new());
        each(listed.plan.files.iter().map(|file| file.path.clone()).collect(), |path| {
            let (far, uri, there) = (self.clone(), self.target.uri(&path), &there);
            async move {
                if far.store.length(&far.context, &uri).await?.is_some() {
                    there.lock().unwrap_or_else(PoisonError::into_inner).insert(path);
                }
                Ok(())
            }
        })
        .await?;
        let there = there.into_inner().unwrap_or_else(PoisonError::into_inner);
        listed.plan.files.retain(|file| there.contains(&file.path));
        Ok(Some(listed).filter(|listed| !listed.plan.files.is_empty()))
    }

    /// Writes the list if it is still the version `before`; `false` if it is not.
    async fn write_list(&self, plan: &Plan, before: Option<&Stored>) -> Result<bool> {
        let written = self.store.write_if(&self.context, &self.list(), plan.to_text()?.into(), before).await?;
        Ok(written.is_some())
    }

    /// The error if another run has written the list.
    fn is_written(&self) -> Error {
        Error::refused(format!("another run has written {} in the meantime", self.target.shown()))
            .hint("let one run end before the next begins, and start this one again")
    }

    /// Fails if there is already an object at one of `paths`.
    async fn none_exists(&self, paths: Vec<String>, mode: FileMode) -> Result<()> {
        each(paths, |path| {
            let (far, uri) = (self.clone(), self.target.uri(&path));
            async move {
                match far.store.length(&far.context, &uri).await? {
                    Some(_) => Err(destination::existing_fault(&uri, mode)),
                    None => Ok(()),
                }
            }
        })
        .await
    }

    /// Finishes the commit of a dead run. Returns the list of the current files, and the files that were removed.
    async fn recovered(&self) -> Result<(Option<Listed>, Vec<String>)> {
        let mut removed = Vec::new();
        for _ in 0..LIST_TRIES {
            let Some(listed) = self.read_list().await? else { return Ok((None, removed)) };
            if !listed.plan.unfinished {
                return Ok((Some(listed), removed));
            }
            let lost = AtomicBool::new(false);
            each(listed.plan.new_files().map(|file| self.brought(file)).collect(), |brought| {
                let (far, lost) = (self.clone(), &lost);
                async move {
                    let is_complete = far.complete_once(&brought).await?;
                    lost.fetch_or(!is_complete, Ordering::Relaxed);
                    Ok(())
                }
            })
            .await?;
            // Another run may have done this meanwhile, and may have replaced the files to remove.
            if self.read_list().await?.is_none_or(|now| now.stored.content != listed.stored.content) {
                continue;
            }
            match (lost.into_inner(), listed.plan.only_adds()) {
                (false, _) => removed.extend(self.conclude(listed).await?),
                // As if its run had never been: the files that it should add are not visible.
                (true, true) => {
                    let Listed { plan, stored } = listed;
                    removed.extend(self.conclude(Listed { plan: plan.without_its_run(), stored }).await?);
                }
                // If the new set may be incomplete, the old one stays: a run that replaces both may continue.
                (true, false) => return Ok((Some(listed), removed)),
            }
        }
        Err(self.is_written())
    }

    /// After all new objects of a plan are complete: removes and returns the stale ones, and writes the final list. If
    /// another run has changed the list meanwhile, it has done all of this.
    async fn conclude(&self, Listed { mut plan, stored }: Listed) -> Result<Vec<String>> {
        let stale = std::mem::take(&mut plan.stale);
        each(stale.clone(), |path| {
            let (far, uri) = (self.clone(), self.target.uri(&path));
            async move {
                far.store.remove(&far.context, &uri).await?;
                fail_point::pass("files.removed");
                Ok(())
            }
        })
        .await?;
        fail_point::pass("files.list");
        if plan.set {
            plan.unfinished = false;
            plan.files.iter_mut().for_each(|file| (file.staged, file.upload, file.replaced) = (None, None, None));
            self.write_list(&plan, Some(&stored)).await?;
        } else {
            self.store.remove(&self.context, &self.list()).await?;
        }
        fail_point::pass("files.listed");
        Ok(stale.iter().map(|path| self.target.uri(path)).collect())
    }

    fn brought(&self, file: &PlannedFile) -> Brought {
        Brought {
            uri: self.target.uri(&file.path),
            bytes: file.bytes,
            ticket: file.upload.clone(),
            replaced: file.replaced,
        }
    }

    async fn complete(&self, plan: &Plan) -> Result<()> {
        each(plan.new_files().map(|file| self.brought(file)).collect(), |brought| {
            let far = self.clone();
            async move {
                if !far.complete_once(&brought).await? {
                    return Err(Error::refused("the store discarded the object before it was complete")
                        .in_unit(&brought.uri, None));
                }
                fail_point::pass("files.renamed");
                Ok(())
            }
        })
        .await
    }

    /// Completes an object of a list, unless the dead run or another one has already done it. `false` if the store has
    /// dropped the upload, or if the current object has the size of the one before, so that it is unknown.
    async fn complete_once(&self, brought: &Brought) -> Result<bool> {
        let completed = self.store.complete(&self.context, brought).await;
        match &completed {
            Ok(false) => {}
            // Some stores report a completed upload in another way.
            Err(error) if error.kind() == ErrorKind::Refused => {}
            _ => return completed,
        }
        let is_known = brought.replaced != Some(brought.bytes);
        if is_known && self.store.length(&self.context, &brought.uri).await? == Some(brought.bytes) {
            return Ok(true);
        }
        completed
    }

    /// Aborts the uploads that are closed or being closed.
    async fn abort_uploads(&self, mut closed: Closed) {
        closed.tasks.abort_all();
        while let Some(ended) = closed.tasks.join_next().await {
            if let Ok(Ok((number, brought))) = ended {
                closed.brought.insert(number, brought);
            }
        }
        let all = closed.brought.into_values().map(|brought| async move {
            // Errors cannot be reported here.
            let _ = self.store.abort(&self.context, &brought).await;
        });
        futures::stream::iter(all).buffer_unordered(AT_ONCE).collect::<()>().await;
        self.store.settle().await;
    }
}

/// Runs `work` for all of `items`, some at once. After a failure no more are begun, but running ones are awaited: when
/// this returns, nothing is running.
async fn each<T, F: Future<Output = Result<()>>>(items: Vec<T>, mut work: impl FnMut(T) -> F) -> Result<()> {
    let failed = AtomicBool::new(false);
    let begun = items.into_iter().map(|item| {
        let (begun, failed) = ((!failed.load(Ordering::Relaxed)).then(|| work(item)), &failed);
        async move {
            let Some(begun) = begun else { return Ok(()) };
            let done = begun.await;
            failed.fetch_or(done.is_err(), Ordering::Relaxed);
            done
        }
    });
    let mut all = std::pin::pin!(futures::stream::iter(begun).buffer_unordered(AT_ONCE));
    let mut first = Ok(());
    while let Some(done) = all.next().await {
        first = first.and(done);
    }
    first
}

/// A load into a bucket.
struct InBucket {
    target_files: TargetFiles,
    run: String,
    /// The first run of its resume chain.
    first: String,
    marker: Option<String>,
    notes: Option<Arc<LoadNotes>>,
    /// The list of files at its beginning.
    earlier: Option<Listed>,
    /// The files that were removed to finish a commit of an earlier run.
    recovered: Vec<String>,
    is_there: bool,
    plan: Mutex<Option<Plan>>,
    shared: Arc<Shared>,
}

/// Shared by the objects of a load.
struct Shared {
    far: Far,
    step: Arc<Step>,
    room: Room,
    scratch: Arc<Scratch>,
    /// Limits the objects whose last parts are in flight.
    closing: Arc<Semaphore>,
    closed: Mutex<Closed>,
    /// Whether the load was rolled back or committed.
    ended: AtomicBool,
}

/// Closed objects.
#[derive(Default)]
struct Closed {
    tasks: JoinSet<Result<(usize, Brought)>>,
    /// Uploaded objects by their numbers.
    brought: BTreeMap<usize, Brought>,
}

impl Shared {
    fn closed(&self) -> MutexGuard<'_, Closed> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Collects finished uploads. Fails if one has failed.
    fn look_up(&self) -> Result<()> {
        let mut closed = self.closed();
        while let Some(ended) = closed.tasks.try_join_next() {
            let (number, brought) = ended.map_err(interrupted)??;
            closed.brought.insert(number, brought);
        }
        Ok(())
    }

    /// Waits until everything is uploaded.
    async fn all_brought(&self) -> Result<BTreeMap<usize, Brought>> {
        loop {
            let next = std::future::poll_fn(|context| self.closed().tasks.poll_join_next(context)).await;
            let Some(ended) = next else { return Ok(self.closed().brought.clone()) };
            let (number, brought) = ended.map_err(interrupted)??;
            self.closed().brought.insert(number, brought);
        }
    }

    /// Takes out the closed objects, to abort them.
    fn take(&self) -> Option<Closed> {
        let first = !self.ended.swap(true, Ordering::SeqCst);
        first.then(|| std::mem::take(&mut *self.closed()))
    }
}

fn interrupted(cause: tokio::task::JoinError) -> Error {
    match cause.is_cancelled() {
        true => Error::new(ErrorKind::Interrupted, "the run ended while an object was written"),
        false => Error::internal("a writing task failed").cause(cause),
    }
}

impl InBucket {
    /// One without files of earlier runs.
    fn new(target_files: &TargetFiles, context: &LoadContext, far: Far) -> Self {
        InBucket {
            target_files: target_files.clone(),
            run: context.run.clone(),
            first: context.first.clone(),
            marker: context.marker.clone(),
            notes: context.notes.clone(),
            earlier: None,
            recovered: Vec::new(),
            is_there: false,
            plan: Mutex::default(),
            shared: Arc::new(Shared {
                far,
                step: Arc::clone(&context.step),
                room: Room { budget: Arc::clone(&context.budget), held: AtomicUsize::new(0) },
                scratch: Arc::new(Scratch { folder: context.scratch.clone(), state: Mutex::default() }),
                closing: Arc::new(Semaphore::new(AT_ONCE)),
                closed: Mutex::default(),
                ended: AtomicBool::new(false),
            }),
        }
    }

    /// What a worker has uploaded.
    fn brought(&self, handed: &HandedFile) -> Brought {
        self.shared.far.brought(&handed.file)
    }

    /// The current version of the list at the beginning. Fails if more than its markers has changed.
    async fn still_listed(&self) -> Result<Option<Listed>> {
        let far = &self.shared.far;
        let now = far.read_list().await?;
        match (&now, &self.earlier) {
            (None, None) => Ok(now),
            (Some(there), Some(earlier)) if there.plan.is_as(&earlier.plan) => Ok(now),
            _ => Err(far.is_written()),
        }
    }

    /// Replaces the list by `plan`. From then on the load is committed.
    async fn write_over(&self, mut plan: Plan) -> Result<Plan> {
        let far = &self.shared.far;
        for _ in 0..LIST_TRIES {
            let there = self.still_listed().await?;
            if let Some(there) = &there {
                plan.with_markers_of(&there.plan);
            }
            if far.write_list(&plan, there.as_ref().map(|there| &there.stored)).await? {
                return Ok(plan);
            }
        }
        Err(far.is_written())
    }
}

#[async_trait]
impl Staging for InBucket {
    async fn file(&self, number: usize, path: &str) -> Result<Box<dyn Draft>> {
        self.shared.look_up()?;
        Ok(Box::new(Object {
            uri: self.shared.far.target.uri(path),
            number,
            upload: None,
            held: Vec::new(),
            charged: 0,
            spilled: None,
            shared: Arc::clone(&self.shared),
        }))
    }

    fn is_there(&self) -> bool {
        self.is_there
    }

    async fn prepare(&self, mut files: Vec<PlannedFile>) -> Result<()> {
        let mut brought = self.shared.all_brought().await?;
        for file in &mut files {
            let Some(there) = file.staged.and_then(|number| brought.remove(&number)) else {
                return Err(Error::internal(format!("the object {} was not closed", file.path)));
            };
            file.upload = there.ticket;
        }
        let far = &self.shared.far;
        let listed = self.still_listed().await?;
        let earlier = listed.as_ref().map(|listed| &listed.plan);
        let (marker, notes) = (self.marker.as_deref(), self.notes.as_deref());
        let run = Run { name: &self.run, first: &self.first, marker, notes };
        let mut plan = self.target_files.plan(files, earlier, run, &far.list())?;
        let looked_up = match self.target_files.mode {
            FileMode::Replace | FileMode::Partitions => false,
            FileMode::Error => earlier.is_none(),
            // Only an earlier run of the chain can have used its names.
            FileMode::Append => self.first != self.run,
        };
        if looked_up {
            far.none_exists(plan.new_files().map(|file| file.path.clone()).collect(), self.target_files.mode).await?;
        }
        if !plan.set {
            // A single object needs no list.
            for file in &mut plan.files {
                file.replaced = far.store.length(&far.context, &far.target.uri(&file.path)).await?;
            }
        }
        plan.unfinished = true;
        *self.plan.lock().unwrap_or_else(PoisonError::into_inner) = Some(plan);
        Ok(())
    }

    async fn commit(&self) -> Result<Vec<String>> {
        let mut removed = self.recovered.clone();
        if self.is_there {
            return Ok(removed);
        }
        let plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(plan) = plan else { return Err(Error::internal("a load was committed before it was prepared")) };
        let far = &self.shared.far;
        fail_point::pass("files.before");
        if !plan.set && self.earlier.is_none() {
            far.complete(&plan).await?;
            self.shared.take();
            return Ok(removed);
        }
        let plan = self.write_over(plan).await?;
        self.shared.take();
        fail_point::pass("files.after");
        let published = async {
            far.complete(&plan).await?;
            match far.read_list().await? {
                Some(listed) if listed.plan == plan => far.conclude(listed).await,
                // Another run has begun since, and has done the rest.
                _ => Ok(plan.stale.iter().map(|path| far.target.uri(path)).collect()),
            }
        };
        removed.extend(published.await.map_err(|error| {
            error.hint(
                "the run is committed, and some of its objects are visible: when the fault is gone, run any job with \
                 this target again, which finishes the commit first",
            )
        })?);
        Ok(removed)
    }

    async fn abort(&self) {
        if let Some(closed) = self.shared.take() {
            self.shared.far.abort_uploads(closed).await;
        }
    }

    async fn hand_over(&self, files: &mut [HandedFile]) -> Result<()> {
        let mut brought = self.shared.all_brought().await?;
        for HandedFile { file, .. } in files {
            let there = file.staged.and_then(|number| brought.remove(&number));
            let there = there.ok_or_else(|| Error::internal(format!("the object {} was not closed", file.path)))?;
            file.upload = there.ticket;
        }
        self.shared.take();
        Ok(())
    }

    async fn adopt(&self, number: usize, handed: &HandedFile) -> Result<()> {
        self.shared.closed().brought.insert(number, self.brought(handed));
        Ok(())
    }

    async fn discard(&self, handed: &HandedFile) {
        let far = &self.shared.far;
        // What is left is of no object; a rule of the bucket may remove it.
        let _ = far.store.abort(&far.context, &self.brought(handed)).await;
    }
}

impl Drop for InBucket {
    fn drop(&mut self) {
        let Some(closed) = self.shared.take() else { return };
        let far = self.shared.far.clone();
        self.shared.far.context.io.spawn(async move { far.abort_uploads(closed).await });
    }
}

/// An object that is being written. Dropping it aborts it.
struct Object {
    uri: String,
    number: usize,
    /// Begun when the first part is full, or at the end.
    upload: Option<Box<dyn Upload>>,
    /// Bytes after the spilled ones; together less than a part.
    held: Vec<u8>,
    /// Bytes charged to the budget.
    charged: usize,
    spilled: Option<Slot>,
    shared: Arc<Shared>,
}

impl Object {
    /// Bytes of the part that is being filled.
    fn length(&self) -> usize {
        self.held.len() + self.spilled.as_ref().map_or(0, |slot| slot.length)
    }

    /// Keeps `bytes`, which do not fill the part: in memory if there is room, else in scratch.
    fn hold(&mut self, bytes: &[u8]) -> Result<()> {
        if self.held.capacity() - self.held.len() < bytes.len() {
            let most = PART - self.spilled.as_ref().map_or(0, |slot| slot.length);
            let capacity = (2 * self.held.capacity()).clamp(self.held.len() + bytes.len(), most);
            self.held.reserve_exact(capacity - self.held.len());
        }
        self.held.extend_from_slice(bytes);
        if self.shared.room.set(self.charged, self.held.capacity()) {
            self.charged = self.held.capacity();
            return Ok(());
        }
        self.spill()
    }

    fn spill(&mut self) -> Result<()> {
        let slot = match &mut self.spilled {
            Some(slot) => slot,
            None => self.spilled.insert(Scratch::slot(&self.shared.scratch)?),
        };
        slot.append(&self.held)?;
        self.shared.step.add_spilled(self.held.len() as u64);
        self.let_go();
        Ok(())
    }

    fn let_go(&mut self) {
        self.held = Vec::new();
        // Releasing memory never fails.
        let _ = self.shared.room.set(std::mem::take(&mut self.charged), 0);
    }

    /// Sends the part, followed by `more`, to the store.
    async fn send(&mut self, more: &[u8]) -> Result<()> {
        let mut part = match self.spilled.take() {
            Some(slot) => slot.content(self.held.len() + more.len())?,
            None => Vec::with_capacity(self.held.len() + more.len()),
        };
        part.extend_from_slice(&self.held);
        part.extend_from_slice(more);
        self.let_go();
        let upload = match &mut self.upload {
            Some(upload) => upload,
            None => self.upload.insert(self.shared.far.store.begin(&self.shared.far.context, &self.uri).await?),
        };
        upload.write(Bytes::from(part)).await
    }

    /// Uploads the rest.
    async fn finish(mut self) -> Result<Brought> {
        self.send(&[]).await?;
        match self.upload.take() {
            Some(upload) => upload.finish().await,
            None => Err(Error::internal("an object was finished before it was begun")),
        }
    }
}

#[async_trait]
impl Draft for Object {
    async fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (fitting, more) = rest.split_at(rest.len().min(PART - self.length()));
            match self.length() + fitting.len() == PART {
                true => self.send(fitting).await?,
                false => self.hold(fitting)?,
            }
            rest = more;
        }
        Ok(())
    }

    async fn rest(&mut self) -> Result<()> {
        Ok(())
    }

    /// The rest is uploaded while other objects are written.
    async fn close(self: Box<Self>) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let closing = Arc::clone(&shared.closing);
        let finish = async move {
            let _turn = closing.acquire_owned().await;
            let number = self.number;
            Ok((number, self.finish().await?))
        };
        shared.closed().tasks.spawn(finish);
        shared.look_up()
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// Memory for what open objects hold.
struct Room {
    budget: Arc<Budget>,
    held: AtomicUsize,
}

impl Room {
    /// Changes the memory of an object from `before` to `after` bytes. `false` if that is refused: then it stays
    /// unchanged.
    fn set(&self, before: usize, after: usize) -> bool {
        if after <= before {
            self.held.fetch_sub(before - after, Ordering::Relaxed);
            self.budget.give_back(before - after);
            return true;
        }
        let more = after - before;
        let fits = self.held.fetch_add(more, Ordering::Relaxed) + more <= self.budget.limit() / SHARE;
        if !fits {
            self.budget.refuse();
        }
        let taken = fits && self.budget.try_take(more);
        if !taken {
            self.held.fetch_sub(more, Ordering::Relaxed);
        }
        taken
    }
}

/// Spilled bytes of open objects: one file, in which each has a slot of the size of a part. The file has no name, so it
/// disappears with the process.
struct Scratch {
    folder: PathBuf,
    state: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    file: Option<Arc<std::fs::File>>,
    free: Vec<u64>,
    count: u64,
}

/// The slot of one object.
struct Slot {
    scratch: Arc<Scratch>,
    file: Arc<std::fs::File>,
    number: u64,
    length: usize,
}

impl Scratch {
    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault(&self, cause: &std::io::Error) -> Error {
        Error::io(format!("scratch in {} cannot be written or read", self.folder.display()), cause)
    }

    /// A free slot.
    fn slot(scratch: &Arc<Scratch>) -> Result<Slot> {
        let mut slots = scratch.slots();
        let file = match &slots.file {
            Some(file) => Arc::clone(file),
            None => {
                let file = blocking(|| tempfile::tempfile_in(&scratch.folder));
                Arc::clone(slots.file.insert(Arc::new(file.map_err(|cause| scratch.fault(&cause))?)))
            }
        };
        let number = slots.free.pop().unwrap_or_else(|| {
            slots.count += 1;
            slots.count - 1
        });
        Ok(Slot { scratch: Arc::clone(scratch), file, number, length: 0 })
    }
}

impl Slot {
    fn start(&self) -> u64 {
        self.number * PART as u64
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let at = self.start() + self.length as u64;
        blocking(|| self.file.write_all_at(bytes, at)).map_err(|cause| self.scratch.fault(&cause))?;
        self.length += bytes.len();
        Ok(())
    }

    /// Its content, with room for so many more bytes.
    fn content(&self, more: usize) -> Result<Vec<u8>> {
        let mut content = Vec::with_capacity(self.length + more);
        content.resize(self.length, 0);
        blocking(|| self.file.read_exact_at(&mut content, self.start())).map_err(|cause| self.scratch.fault(&cause))?;
        Ok(content)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.scratch.slots().free.push(self.number);
    }
}
