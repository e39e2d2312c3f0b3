//! Reading: from the patterns of a source to batches.
//!
//! ```text
//!  UnitsExec ── units, largest first ──▶ ReadExec ── open · unpack · parse · filter ──▶ batches
//!  (queue.rs)                            (exec.rs)   (rows.rs)
//! ```
//! `opening.rs` opens units ahead, of each server as many as `pace.rs` allows; `unit.rs` unpacks them; `unopened.rs`
//! keeps those that cannot be opened. `archive.rs` reads large zips by their directory, in parts that several tasks
//! take. `cuts.rs` says which ranges of a large unit several processes can read, and `lines.rs` reads those of a text.
//! `helpers.rs` lets tasks without a unit help with the large ones, whose text `split.rs` parses in pieces.
//! `source_plan.rs` says what is to be read. `naming.rs` knows the format of files by their names; `lacking.rs` counts
//! those that lack columns. `stored.rs` knows the places that give rows and no bytes. `table.rs` shows a source to the
//! SQL planner and takes the columns and filters it pushes down; `sample.rs` looks at the first bytes where the job
//! declares no columns; `foreign.rs` names files of other kinds; `order.rs` holds the rows against the order that the
//! job declares; `raw.rs` keeps the raw records of rows. `ready.rs` leaves out files that are not ready. `replayed.rs`
//! reads rejects again. `messages.rs` knows of which message of a queue a row is.

pub mod archive;
pub mod concurrency;
pub mod cuts;
pub mod cutter;
pub mod exec;
pub mod foreign;
pub mod helpers;
pub mod lacking;
pub mod lines;
pub mod messages;
pub mod naming;
pub mod opening;
pub mod order;
pub mod queue;
pub mod ranges;
pub mod raw;
pub mod ready;
pub mod replayed;
pub mod rows;
pub mod sample;
pub mod source_plan;
pub mod split;
pub mod stored;
pub mod table;
pub mod unit;
pub mod unopened;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::{AddAssign, Deref};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use millstream_core::contains::Contains;
use millstream_core::format::{Format, StreamFormat};
use millstream_core::source::{OpenedUnit, SourceContext};
use millstream_core::{ByteStream, Error, Reservation, Result, Step, StepKind, Steps, Unit};
use serde::{Deserialize, Serialize};

use self::concurrency::ConcurrencyLimit;
use self::lacking::Lacking;
use self::raw::Tape;
use self::ready::Ready;
pub use self::source_plan::{Provenance, SchemeSource, SourcePlan};
use self::unopened::Unopened;
use crate::rejects::Rejects;
use crate::rejects::replay::Replay;

/// Hears of a unit, by its URI: whether it is being read.
struct Watch(Box<Watching>);

type Watching = dyn Fn(&str, bool) + Send + Sync;

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// A source that is read: what is to be read of it, and the state of reading it. It holds no open connection.
#[derive(Debug)]
pub struct Reader {
    plan: SourcePlan,
    /// The columns that files lacked.
    pub lacking: Lacking,
    /// What could not be opened.
    pub unopened: Unopened,
    /// What is not ready to be read.
    pub ready: Ready,
    /// The patterns that match nothing, where that is allowed, without passwords.
    unmatched: Mutex<BTreeSet<String>>,
    /// What is left out of the run.
    pub rejects: Arc<Rejects>,
    /// How many sound records were left out by a filter that was pushed down.
    pub filtered: AtomicU64,
    /// The same of each unit that is not at its end yet, by its URI, where that is asked for.
    left_out: OnceLock<Mutex<HashMap<String, Filtered>>>,
    /// The rejects that are loaded again in place of the source's files.
    pub replay: Option<Arc<Replay>>,
    /// Where I/O runs and what it is charged to.
    pub context: SourceContext,
    /// The counters.
    pub steps: ReadSteps,
    /// What a sample has left: the listing, and what it has opened and cannot be opened again.
    pub opened: Opened,
    /// Hears of each unit when it is opened, and when it is at its end.
    watch: OnceLock<Watch>,
    /// How many processes share the connections that it may have open, if they do.
    sharers: OnceLock<usize>,
}

impl Deref for Reader {
    type Target = SourcePlan;

    fn deref(&self) -> &SourcePlan {
        &self.plan
    }
}

/// So many servers are remembered while none of their units is read.
const PACES: usize = 1000;

/// What has been opened of a source, or will be.
#[derive(Default)]
pub struct Opened {
    /// Units that were opened and cannot be opened again, by their URI.
    streams: Mutex<HashMap<String, ByteStream>>,
    /// All units, if they are few enough to be kept.
    units: Mutex<Option<Vec<Unit>>>,
    /// All units, as they were listed, for the next listing.
    listed: Mutex<Option<BoxStream<'static, Result<Unit>>>>,
    /// Whether there were units in such a listing.
    listed_before: AtomicBool,
    /// The units to be read, if these are not all.
    only: OnceLock<Vec<Unit>>,
    /// Of the servers whose units were opened, by their name.
    limits: Mutex<HashMap<String, Arc<ConcurrencyLimit>>>,
}

impl Opened {
    /// Keeps the bytes of `uri` for whoever opens it next.
    pub fn keep(&self, uri: &str, bytes: ByteStream) {
        locked(&self.streams).insert(uri.to_owned(), bytes);
    }

    fn has(&self, uri: &str) -> bool {
        locked(&self.streams).contains_key(uri)
    }

    fn take(&self, uri: &str) -> Option<ByteStream> {
        locked(&self.streams).remove(uri)
    }

    /// The URIs of what was opened, cannot be opened again, and has not been read on.
    pub fn consumed(&self) -> Vec<String> {
        locked(&self.streams).keys().cloned().collect()
    }

    /// Keeps all units of the source for whoever lists it next.
    pub fn keep_units(&self, units: Vec<Unit>) {
        *locked(&self.units) = Some(units);
    }

    /// The first units, at most `limit`, if all are kept.
    pub fn units(&self, limit: usize) -> Option<Vec<Unit>> {
        locked(&self.units).as_ref().map(|units| units.iter().take(limit).cloned().collect())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Opened")
    }
}

/// Sound records that a filter which was pushed down has left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filtered {
    /// All of them.
    pub records: u64,
    /// Those that were not even parsed.
    pub passed_over: u64,
}

impl AddAssign for Filtered {
    fn add_assign(&mut self, other: Filtered) {
        self.records += other.records;
        self.passed_over += other.passed_over;
    }
}

/// The counters of one source.
#[derive(Debug, Clone)]
pub struct ReadSteps {
    /// Patterns to units.
    pub list: Arc<Step>,
    /// Units to bytes.
    pub fetch: Arc<Step>,
    /// Bytes to text.
    pub decode: Arc<Step>,
    /// Text to batches.
    pub parse: Arc<Step>,
}

impl ReadSteps {
    /// Counters of the source `name` in `steps`.
    pub fn new(steps: &Steps, name: &str) -> Self {
        ReadSteps {
            list: steps.add(name, StepKind::List, ""),
            fetch: steps.add(name, StepKind::Fetch, ""),
            decode: steps.add(name, StepKind::Decode, ""),
            parse: steps.add(name, StepKind::Parse, ""),
        }
    }
}

impl Reader {
    /// A reader of what `plan` says, none of which has been read. It counts in `steps`, and what it leaves out is one
    /// of `rejects`.
    pub fn new(plan: SourcePlan, context: SourceContext, steps: ReadSteps, rejects: Arc<Rejects>) -> Self {
        Reader {
            unopened: Unopened::new(plan.on_error),
            plan,
            lacking: Lacking::default(),
            ready: Ready::default(),
            unmatched: Mutex::default(),
            rejects,
            filtered: AtomicU64::new(0),
            left_out: OnceLock::new(),
            replay: None,
            context,
            steps,
            opened: Opened::default(),
            watch: OnceLock::new(),
            sharers: OnceLock::new(),
        }
    }

    /// The reader with `format` in place of its own.
    pub fn with_format(self, format: Arc<dyn Format>) -> Self {
        Reader { plan: SourcePlan { format, ..self.plan }, ..self }
    }

    /// Which records are parsed. A reject that is loaded again was one of them, whatever it is now.
    pub fn contains_to_read(&self) -> Contains {
        if self.replay.is_some() { Contains::default() } else { self.contains.clone() }
    }

    /// What is to be read.
    pub fn plan(&self) -> &SourcePlan {
        &self.plan
    }

    /// Lets it have only its part of the connections that it may have open, which so many share.
    pub fn share_connections(&self, sharers: usize) {
        let _ = self.sharers.set(sharers.max(1));
    }

    /// Lets only `units` be read from now on.
    pub fn restrict(&self, units: Vec<Unit>) {
        // A reader belongs to one run, which decides once.
        let _ = self.opened.only.set(units);
    }

    /// Whether it reads files of this machine, as far as its patterns say: lists may name any.
    pub fn reads_files(&self) -> bool {
        let places = self.patterns.iter().filter(|pattern| !pattern.starts_with('@'));
        places.into_iter().any(|place| self.source_of(place).is_ok_and(|source| source.is_local()))
    }

    /// Whether it is fine if there is nothing to read.
    pub fn may_be_empty(&self) -> bool {
        let was_listed = self.opened.listed_before.load(Ordering::Relaxed);
        self.allow_empty || was_listed || self.opened.only.get().is_some()
    }

    /// The units of all patterns, as they are found. Lists (`@…`) are read on the way.
    pub fn list(self: &Arc<Self>) -> BoxStream<'static, Result<Unit>> {
        if let Some(only) = self.opened.only.get() {
            return futures::stream::iter(only.clone().into_iter().map(Ok)).boxed();
        }
        let reader = Arc::clone(self);
        futures::stream::iter(self.patterns.clone()).flat_map(move |pattern| reader.list_pattern(&pattern)).boxed()
    }

    /// The next listing gives these units of those that were listed before. All of the others may have been read.
    pub fn list_next(&self, units: BoxStream<'static, Result<Unit>>) {
        *locked(&self.opened.listed) = Some(units);
        self.opened.listed_before.store(true, Ordering::Relaxed);
    }

    /// The units as [`Reader::list`] finds them, without listing again what was listed to its end.
    pub fn list_once(self: &Arc<Self>) -> BoxStream<'static, Result<Unit>> {
        if let Some(listed) = locked(&self.opened.listed).take() {
            return listed;
        }
        let kept = locked(&self.opened.units).take();
        match kept.filter(|_| self.opened.only.get().is_none()) {
            Some(units) => futures::stream::iter(units.into_iter().map(Ok)).boxed(),
            None => self.list(),
        }
    }

    fn list_pattern(self: &Arc<Self>, pattern: &str) -> BoxStream<'static, Result<Unit>> {
        let Some(list) = pattern.strip_prefix('@') else { return self.list_some(pattern) };
        let source = match self.source_of(list) {
            Ok(source) => source,
            Err(error) => return futures::stream::once(async { Err(error) }).boxed(),
        };
        let reader = Arc::clone(self);
        millstream_source::list_file(source, &self.context, list)
            .map_ok(move |listed| {
                let units = reader.list_some(&listed.pattern);
                let reader = Arc::clone(&reader);
                // What stands for several units may have given some of them, and would give more.
                let one_unit = !listed.pattern.contains(['*', '?', '[', '{']);
                units.map_err(move |error| listed.explain(error)).filter_map(move |unit| {
                    let kept = match unit {
                        Ok(unit) => Some(Ok(unit)),
                        Err(error) if one_unit => reader.unopened.leave_out(error).err().map(Err),
                        Err(error) => Some(Err(error)),
                    };
                    std::future::ready(kept)
                })
            })
            .try_flatten()
            .boxed()
    }

    /// The units of `pattern`. If there are none, that is an error, or noted where it is allowed: a slip in one of
    /// several patterns must not pass for data that is not there.
    fn list_some(self: &Arc<Self>, pattern: &str) -> BoxStream<'static, Result<Unit>> {
        let mut units = self.list_expanded(pattern);
        let (reader, pattern) = (Arc::clone(self), pattern.to_owned());
        async_stream::try_stream! {
            let mut some = false;
            while let Some(unit) = units.next().await {
                some = true;
                yield unit?;
            }
            if !some && reader.allow_empty {
                locked(&reader.unmatched).insert(millstream_core::redact::url(&pattern));
            } else if !some {
                Err(reader.nothing(&[pattern]))?;
            }
        }
        .boxed()
    }

    /// The patterns that were listed and match nothing, where that is allowed. Nothing if files are not ready.
    pub fn unmatched(&self) -> Vec<String> {
        match self.ready.not_ready() {
            (0, _) => locked(&self.unmatched).iter().cloned().collect(),
            _ => Vec::new(),
        }
    }

    /// The error of patterns that give no units.
    pub fn nothing(&self, patterns: &[String]) -> Error {
        match self.ready.not_ready() {
            (0, _) => no_match(patterns),
            (count, first) => not_ready(count, &first),
        }
    }

    /// The units of everything that the braces of `pattern` stand for.
    fn list_expanded(self: &Arc<Self>, pattern: &str) -> BoxStream<'static, Result<Unit>> {
        let locations = match millstream_source::pattern::expand(pattern) {
            Ok(locations) => locations,
            Err(error) => return futures::stream::once(async { Err(error) }).boxed(),
        };
        let reader = Arc::clone(self);
        futures::stream::iter(locations)
            .flat_map(move |location| match reader.source_of(&location) {
                Ok(source) => {
                    reader.steps.fetch.add_detail(source.name());
                    match reader.ready_keys.is_always() {
                        true => source.list(&reader.context, &location),
                        false => ready::ready_units(&reader, source, location),
                    }
                }
                Err(error) => futures::stream::once(async { Err(error) }).boxed(),
            })
            .boxed()
    }

    /// All bytes of a unit that has at most `most`, charged to the budget, if that needs no waiting.
    pub fn read_now(&self, unit: &Unit, most: usize) -> Option<(Bytes, Reservation)> {
        if self.opened.has(&unit.uri) {
            return None;
        }
        let size = usize::try_from(unit.size?).ok().filter(|size| *size <= most)?;
        let reservation = self.context.budget.try_reserve(&self.name, size).ok()?;
        let bytes = self.source_of(&unit.uri).ok()?.read_now(unit, most)?;
        self.context.cache.add_cached(size as u64);
        Some((bytes, reservation))
    }

    /// Opens a unit, or hands on the one that was opened for a sample.
    pub async fn open(&self, unit: &Unit) -> Result<OpenedUnit> {
        match self.opened.take(&unit.uri) {
            Some(bytes) => Ok(OpenedUnit { unit: unit.clone(), ranges: false, content: bytes.into() }),
            None => self.source_of(&unit.uri)?.open_known(&self.context, unit).await,
        }
    }

    /// How many units of `server` are opened at once; `unit` is one of them.
    pub fn limit(&self, server: &str, unit: &Unit) -> Arc<ConcurrencyLimit> {
        let mut limits = locked(&self.opened.limits);
        if let Some(limit) = limits.get(server) {
            return Arc::clone(limit);
        }
        if limits.len() >= PACES {
            limits.retain(|_, limit| Arc::strong_count(limit) > 1);
        }
        let most = self.source_of(&unit.uri).map_or(1, |source| source.connections());
        let most = (most / self.sharers.get().copied().unwrap_or(1)).max(1);
        let limit = Arc::new(ConcurrencyLimit::new(most));
        limits.insert(server.to_owned(), Arc::clone(&limit));
        limit
    }

    /// Lets `watch` hear which units are being read.
    pub fn watch_units(&self, watch: impl Fn(&str, bool) + Send + Sync + 'static) {
        let _ = self.watch.set(Watch(Box::new(watch)));
    }

    /// A unit is opened.
    pub fn begins(&self, uri: &str) {
        self.watch.get().into_iter().for_each(|Watch(watch)| watch(uri, true));
    }

    /// A unit is at its end.
    pub fn ends(&self, unit: &Unit) {
        self.steps.fetch.add_units(u64::from(unit.is_beginning()));
        self.watch.get().into_iter().for_each(|Watch(watch)| watch(&unit.uri, false));
    }

    /// Counts what is left out of each unit from now on.
    pub fn watch_left_out(&self) {
        let _ = self.left_out.set(Mutex::default());
    }

    /// Counts records of `uri` that a filter has left out.
    pub fn leave_out(&self, uri: &str, left_out: Filtered) {
        self.filtered.fetch_add(left_out.records, Ordering::Relaxed);
        if let Some(by_unit) = self.left_out.get() {
            *locked(by_unit).entry(uri.to_owned()).or_default() += left_out;
        }
    }

    /// What was left out of `uri`, which is at its end.
    pub fn take_left_out(&self, uri: &str) -> Filtered {
        self.left_out.get().and_then(|by_unit| locked(by_unit).remove(uri)).unwrap_or_default()
    }

    /// Counts records that have come, rejected ones among them.
    pub fn came(&self, records: u64) {
        if let Some(limit) = self.rejects.of_step(&self.name) {
            limit.add_came(records);
        }
    }

    /// What keeps the text of a member for raw records, if `raw` asks for them; or its beginning, where a reject may
    /// have to be read again behind it. Of a text that is not the beginning, `before` says how many bytes stand before
    /// it, and how these begin.
    pub fn tape(&self, raw: bool, before: Option<(u64, &Bytes)>) -> Option<Tape> {
        let has_header = self.stream_format().is_some_and(StreamFormat::needs_header);
        let header = has_header && self.rejects.of_step(&self.name).is_some();
        (raw || header).then(|| match before {
            None => Tape::new(raw),
            Some((at, beginning)) => Tape::behind(raw, at, beginning),
        })
    }
}

/// The error of a source none of whose files is ready.
fn not_ready(count: u64, first: &[String]) -> Error {
    let more = if count > first.len() as u64 { ", …" } else { "" };
    Error::refused("no file is ready to be read")
        .text(format!("{}{more}", first.join(", ")))
        .hint("run again later; `allow_empty: true` in the source lets a job run without files")
}

/// The error of patterns that match nothing.
pub fn no_match(patterns: &[String]) -> Error {
    const ALLOW: &str = "`allow_empty: true` in the source lets a job run without files";
    let shown: Vec<String> = patterns.iter().map(|pattern| millstream_core::redact::url(pattern)).collect();
    if let [list] = patterns
        && let Some(list) = list.strip_prefix('@')
    {
        return Error::refused(format!("the list {} names nothing", millstream_core::redact::url(list)))
            .hint(format!("write a path or a URL into each of its lines; {ALLOW}"));
    }
    let plain = patterns.iter().find(|pattern| fs_err::symlink_metadata(pattern).is_ok());
    let check = match plain {
        Some(name) => {
            format!("there is a file of just this name: to mean it, write {}", millstream_source::pattern::escape(name))
        }
        None => "check the pattern".to_owned(),
    };
    Error::refused("no file matches").text(shown.join(", ")).hint(format!("{check}; {ALLOW}")).absent()
}
