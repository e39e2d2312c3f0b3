//! The file sink: rows to files that appear under their final names only when all of them are complete.
//!
//! `naming.rs` decides which file a row goes to, `load.rs` writes rows, `folder.rs` and `bucket.rs` publish the files
//! (both implement the traits of `destination.rs`; `staged.rs` is one file in a folder), and `plan.rs` is the list that
//! stays beside a set of files. `handed.rs` and `worker.rs` are about files of the workers of a cluster. The files of
//! queues are made one by one, in `epochs/`.

mod bucket;
#[cfg(test)]
pub(crate) mod bucket_tests;
mod destination;
mod epochs;
mod folder;
mod handed;
#[cfg(test)]
mod handed_tests;
mod load;
mod naming;
mod plan;
mod spec;
mod staged;
#[cfg(test)]
pub(crate) mod tests;
mod worker;

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use millstream_core::epochs::{EpochTarget, Guarantee, QueueFacts, QueueLoad};
use millstream_core::registry::{Built, SinkEntry, SinkFormats};
use millstream_core::sink::{
    ChangeNotes, FromWorkers, KnownLoad, Load, LoadContext, Routing, RoutingKind, Sink, SinkParts, Written,
    WrittenChunks,
};
use millstream_core::source::SourceContext;
use millstream_core::spec::{Fault, SpecInfo, parse};
use millstream_core::store::Store;
use millstream_core::{Error, Result};
use serde_json::Value;

use self::bucket::Bucket;
use self::destination::{Destination, TargetFiles};
use self::folder::Folder;
use self::load::FileLoad;
use self::naming::{Route, Target};
use self::plan::Plan;
pub use self::spec::{FileMode, FileSpec, Roll, Shards};
use crate::encode::Encoding;
use crate::shared::blocking;

/// The registry's entry.
pub const ENTRY: SinkEntry = SinkEntry {
    spec: SpecInfo::of::<FileSpec>(),
    schemes: &[""],
    words: &[],
    stores: true,
    formats: SinkFormats::ByName,
    build: &build,
};

fn build(settings: &Value, parts: SinkParts) -> Built<dyn Sink> {
    let spec: FileSpec = parse(settings)?;
    let target = Target::new(&parts.target, &spec, parts.store.is_some()).and_then(|target| {
        let store = parts.store.as_deref();
        match store.and_then(|store| name_fault(store, &spec, &target)) {
            Some(fault) => Err(vec![fault]),
            None => Ok(target),
        }
    });
    let encoding = Encoding::new(&parts, spec.level);
    let (target, encoding) = match (target, encoding) {
        (Ok(target), Ok(encoding)) => (target, encoding),
        (target, encoding) => return Err(target.err().into_iter().chain(encoding.err()).flatten().collect()),
    };
    let target_files = TargetFiles::new(target, &spec);
    let destination: Box<dyn Destination> = match parts.store.clone() {
        None => Box::new(Folder),
        Some(store) => Box::new(Bucket(store)),
    };
    Ok(Arc::new(FileSink { spec, destination, store: parts.store, target_files, encoding }))
}

/// Faults of the first name in `store`. The check of the sink reports names that are too long.
fn name_fault(store: &dyn Store, spec: &FileSpec, target: &Target) -> Option<Fault> {
    let first = first_names(spec, target).ok()?;
    let error = store.check(&target.uri(first.first()?)).err()?;
    let what: Vec<&str> = [Some(error.what()), error.cause_text()].into_iter().flatten().collect();
    Some(Fault { path: vec!["write".into()], what: what.join(": "), hint: error.hint_text().map(str::to_owned) })
}

/// The context for requests to a store.
fn network(context: &LoadContext) -> SourceContext {
    SourceContext {
        io: context.io.clone(),
        budget: Arc::clone(&context.budget),
        cache: Arc::default(),
        programs: Arc::clone(&context.programs),
        pace: Arc::default(),
    }
}

/// The paths that are known before there are rows.
fn first_names(spec: &FileSpec, target: &Target) -> Result<Vec<String>> {
    let routes = match spec.routing().map(|routing| routing.kind) {
        None => vec![Route::Only],
        Some(RoutingKind::Hash(count) | RoutingKind::Mod(count)) => (0..count).map(Route::Shard).collect(),
        Some(RoutingKind::Value) => vec![Route::Value(None)],
    };
    routes.iter().map(|route| target.path(route, 0)).collect()
}

/// Writes files.
#[derive(Debug)]
pub(crate) struct FileSink {
    spec: FileSpec,
    destination: Box<dyn Destination>,
    /// The store, if its files are objects.
    store: Option<Arc<dyn Store>>,
    target_files: TargetFiles,
    encoding: Encoding,
}

impl FileSink {
    /// Why it cannot take the rows of a queue, if it cannot.
    fn needs_all_rows(&self) -> Option<String> {
        let spread = |setting: &str| {
            format!("`{setting}` spreads all rows over files, and of a queue each epoch makes files of its own")
        };
        let FileSpec { shards, split, roll, .. } = &self.spec;
        let settings = [("shards", shards.is_some()), ("split", split.is_some()), ("roll", roll.is_some())];
        if let Some((setting, _)) = settings.into_iter().find(|(_, is_set)| *is_set) {
            return Some(spread(setting));
        }
        match self.spec.chosen_mode() {
            Some(mode @ (FileMode::Replace | FileMode::Error | FileMode::Partitions)) => Some(format!(
                "`mode: {}` is about all files of a run, and files of a queue are only added",
                mode.name()
            )),
            None | Some(FileMode::Append) => self.target_files.target.has_placeholders().then(|| {
                "the path has placeholders, and files of a queue are named by what is in them: write `a.csv` to get \
                 `a-PARTITION-OFFSET.csv`"
                    .to_owned()
            }),
        }
    }
}

#[async_trait]
impl Sink for FileSink {
    fn name(&self) -> &'static str {
        "file"
    }

    fn target(&self) -> String {
        self.target_files.target.shown()
    }

    fn medium(&self) -> &'static str {
        "disk"
    }

    fn writes(&self) -> Vec<Written> {
        let template = self.target();
        if self.store.is_some() {
            return vec![Written::Object(template)];
        }
        let shards = match self.spec.routing().map(|routing| routing.kind) {
            Some(RoutingKind::Hash(count) | RoutingKind::Mod(count)) => u64::from(count),
            Some(RoutingKind::Value) | None => 1,
        };
        vec![Written::Files { template, shards }]
    }

    fn routing(&self) -> Option<Routing> {
        self.spec.routing()
    }

    async fn check(&self, schema: SchemaRef) -> Result<(), Vec<Error>> {
        let mut faults: Vec<Error> = self.encoding.check(schema).err().into_iter().collect();
        let first = first_names(&self.spec, &self.target_files.target);
        faults.extend(blocking(|| self.destination.check(&self.target_files, first.as_deref().unwrap_or_default())));
        faults.extend(first.err());
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    async fn reach(&self, context: &SourceContext, resumes: Option<&str>) -> Result<(), Vec<Error>> {
        let first = first_names(&self.spec, &self.target_files.target).unwrap_or_default();
        let faults = self.destination.reach(&self.target_files, &first, context, resumes).await;
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    async fn recover(&self, context: &SourceContext, resumes: Option<&str>) -> Result<bool> {
        self.destination.recover(&self.target_files, context, resumes).await
    }

    async fn settle(&self, context: &SourceContext, first: &str) -> Result<()> {
        self.destination.settle(&self.target_files, context, first).await
    }

    fn describe(&self, _schema: SchemaRef) -> String {
        let mut line = format!("{} to {}", self.encoding.describe(), self.target_files.target.shown());
        if let Some(routing) = self.routing() {
            line.push_str(&match routing.kind {
                RoutingKind::Hash(count) => format!(", {count} files by the hash of {}", routing.expression),
                RoutingKind::Mod(count) => format!(", {count} files by {} mod {count}", routing.expression),
                RoutingKind::Value => format!(", one file for each value of {}", routing.expression),
            });
        }
        if let Some(roll) = &self.spec.roll {
            let full = [roll.bytes.map(|size| size.to_string()), roll.rows.map(|rows| format!("{rows} rows"))];
            let full: Vec<String> = full.into_iter().flatten().collect();
            line.push_str(&format!(", a new file after {}", full.join(" or ")));
        }
        if let Some(mode) = self.spec.chosen_mode() {
            line.push_str(&format!(", mode {}", mode.name()));
        }
        line
    }

    fn guarantee(&self, queue: &QueueFacts) -> Result<Guarantee, String> {
        if let Some(why) = self.needs_all_rows() {
            return Err(why);
        }
        Ok(match queue.is_partitioned {
            true => {
                Guarantee::once("each epoch of a partition makes one file, which appears with the position behind it")
            }
            false => Guarantee::once_or_more("each epoch makes a file, and another one if its messages come again"),
        })
    }

    async fn epochs(&self, load: &QueueLoad, context: LoadContext) -> Result<Option<EpochTarget>> {
        let target = &self.target_files.target;
        let network = network(&context);
        epochs::open(target, self.store.as_ref(), &self.encoding, load, context, network).await.map(Some)
    }

    async fn begin(&self, context: LoadContext) -> Result<Arc<dyn Load>> {
        // Each run of a chain adds what none before it has loaded; otherwise it writes the same files again.
        let run = if context.notes.is_some() { &context.run } else { &context.first };
        let target_files = self.target_files.of_run(run);
        let begun = FileLoad::begin(&self.spec, self.destination.as_ref(), &target_files, &self.encoding, context);
        Ok(Arc::new(begun.await?))
    }

    fn adds_rows(&self) -> bool {
        self.target_files.mode == FileMode::Append
    }

    fn takes_of_workers(&self) -> FromWorkers {
        let rolls = self.spec.roll.as_ref().is_some_and(|roll| roll.bytes.is_some() && roll.rows.is_none());
        match rolls {
            true => {
                let folder = || self.target_files.target.folder().to_owned();
                FromWorkers::Files(self.store.is_none().then(folder))
            }
            false => {
                FromWorkers::Nothing("only with `roll: {bytes: …}` can each machine write files of its own".to_owned())
            }
        }
    }

    fn may_note_units(&self) -> bool {
        matches!(self.target_files.mode, FileMode::Append | FileMode::Partitions)
    }

    /// The notes are in the list, which is what commits the files.
    async fn noted(&self, load: &str, context: LoadContext) -> Result<WrittenChunks> {
        let listed = self.destination.settled(&self.target_files.target, &network(&context)).await?;
        Ok(listed.map_or_else(|| WrittenChunks::new([], str::to_owned), |plan| plan.noted(load)))
    }

    async fn change_notes(&self, load: &str, change: ChangeNotes, context: LoadContext) -> Result<()> {
        self.destination.change_notes(&self.target_files, &context, load, &change).await
    }

    async fn is_gone(&self, context: &SourceContext) -> Result<bool> {
        Ok(self.destination.listed(&self.target_files.target, context).await?.is_none())
    }

    async fn known_loads(&self, context: LoadContext) -> Result<Vec<KnownLoad>> {
        let listed = self.destination.listed(&self.target_files.target, &network(&context)).await?;
        let known =
            |load: &str| KnownLoad { load: load.to_owned(), chunks: 1, idle_seconds: 0, connections: Vec::new() };
        Ok(listed.iter().flat_map(Plan::loads).map(known).collect())
    }

    /// A load that is not committed has no entry in the list.
    async fn forget_marker(&self, marker: &str, context: LoadContext, unwritten: bool) -> Result<()> {
        match unwritten {
            true => Ok(()),
            false => self.destination.forget(&self.target_files, &context, marker).await,
        }
    }
}
