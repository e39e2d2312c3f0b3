//! `count` and `cat`: the reading path as plain Unix tools, without a job and without a plan.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use futures::TryStreamExt;
use millstream_codec::{Limits, Unpacked};
use millstream_core::format::{EmptyFiles, OnDrift, Validate};
use millstream_core::source::OnError;
use millstream_core::{Error, Result, StepKind};
use tokio::task::JoinSet;

use crate::failure::Failure;
use crate::prepare::{Base, lines};
use crate::read::crew::ReadCrew;
use crate::read::exec::helpers;
use crate::read::foreign::Foreign;
use crate::read::lacking::Lacking;
use crate::read::no_match;
use crate::read::opening::{Order, opened};
use crate::read::queue::{PORTION, UnitQueue};
use crate::read::unit::UnitText;
use crate::read::unopened::Unopened;
use crate::read::{Opened, PlaceSource, ReadSteps, Reader};

/// What to read.
#[derive(Debug, Clone, Default)]
pub struct Urls {
    /// Paths, globs, URLs, `@lists`, `-`.
    pub patterns: Vec<String>,
    /// Globs over the members of archives; empty for all.
    pub members: Vec<String>,
}

/// The lines of one unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitCount {
    /// The unit's name.
    pub unit: String,
    /// Its lines; a last line without an end is one.
    pub lines: u64,
}

impl Urls {
    /// A reader of these URLs, with every kind of place at its defaults.
    pub fn reader(&self, base: &Base, name: &str) -> Result<Arc<Reader>> {
        let mut places = Vec::new();
        for entry in base.registry.sources {
            let source = (entry.build)(&serde_json::json!({})).map_err(|faults| {
                let what = faults.first().map_or("", |fault| fault.what.as_str());
                Error::internal(format!("{} has no defaults: {what}", entry.spec.name))
            })?;
            places.push(PlaceSource { schemes: entry.schemes, source });
        }
        for pattern in &self.patterns {
            millstream_source::pattern::check(pattern.trim_start_matches('@')).map_err(|fault| {
                let error = Error::job(fault.what).text(pattern);
                fault.hint.into_iter().fold(error, Error::hint)
            })?;
        }
        let reader = Reader {
            name: name.to_owned(),
            patterns: self.patterns.clone(),
            places,
            registry: base.registry,
            format: lines(),
            members: self.members.clone(),
            limits: Limits::default(),
            allow_empty: false,
            on_drift: OnDrift::default(),
            lacking: Lacking::default(),
            empty_files: EmptyFiles::Allow,
            unopened: Unopened::new(OnError::Fail),
            validate: Validate::default(),
            sorted_by: Vec::new(),
            provenance: Vec::new(),
            incremental: false,
            rejects: Arc::clone(&base.rejects),
            filtered: AtomicU64::new(0),
            replay: None,
            context: base.source_context(),
            steps: ReadSteps {
                list: base.steps.add(name, StepKind::List, ""),
                fetch: base.steps.add(name, StepKind::Fetch, ""),
                decode: base.steps.add(name, StepKind::Decode, ""),
                parse: base.steps.add(name, StepKind::Parse, "lines"),
            },
            opened: Opened::default(),
        };
        for pattern in &reader.patterns {
            reader.source_of(pattern.trim_start_matches('@'))?;
        }
        Ok(Arc::new(reader))
    }
}

/// The lines of all units.
#[derive(Debug, Default)]
pub struct Counts {
    /// Together.
    pub lines: u64,
    /// Of each, in the order in which they were finished; empty unless asked for.
    pub units: Vec<UnitCount>,
}

/// Counts the lines of all units; `by_unit` keeps those of each.
pub fn count(base: &Base, urls: &Urls, by_unit: bool) -> Result<Counts, Failure> {
    let reader = urls.reader(base, "count")?;
    let _governor = base.govern()?;
    let queue = UnitQueue::new(Arc::clone(&reader));
    let crew = ReadCrew::new(reader.context.io.clone());
    let workers = base.runtimes.workers();
    workers.block_on(async {
        let mut tasks = JoinSet::new();
        let (cores, counters) = (base.machine.cores, reader.tasks(base.machine.cores));
        let _helpers = helpers(&crew, cores - counters);
        for _ in 0..counters {
            let counter = Counter { reader: Arc::clone(&reader), queue: Arc::clone(&queue), tasks: counters, by_unit };
            tasks.spawn_on(counter.count(Arc::clone(&crew)), &workers);
        }
        let mut counts = Counts::default();
        while let Some(ended) = tasks.join_next().await {
            let part = ended.map_err(|join| Error::internal("a task failed").cause(join));
            let part = part.and_then(|part| part).map_err(|error| with_unopened(&reader, error))?;
            counts.lines += part.lines;
            counts.units.extend(part.units);
        }
        Failure::of(reader.unopened.faults())?;
        Ok(counts)
    })
}

/// `error`, behind what could not be opened before it.
fn with_unopened(reader: &Reader, error: Error) -> Failure {
    Failure { lints: Vec::new(), errors: reader.unopened.faults().into_iter().chain([error]).collect() }
}

/// One of the tasks that count.
struct Counter {
    reader: Arc<Reader>,
    queue: Arc<UnitQueue>,
    /// Of so many.
    tasks: usize,
    by_unit: bool,
}

impl Counter {
    async fn count(self, crew: Arc<ReadCrew>) -> Result<Counts> {
        let reader = Arc::clone(&self.reader);
        let units = futures::stream::try_unfold(self.queue, |queue| async move {
            let portion = queue.next_some(PORTION).await?;
            let more = (!portion.is_empty()).then_some(portion);
            Ok::<_, Error>(more.map(|portion| (futures::stream::iter(portion.into_iter().map(Ok)), queue)))
        });
        let opened = opened(reader, units.try_flatten(), self.tasks, &crew, Order::Any);
        tokio::pin!(opened);
        let mut counts = Counts::default();
        loop {
            let worker = Arc::new(crew.join());
            while let Some(open) = opened.try_next().await? {
                let mut text = UnitText::new(Arc::clone(&self.reader), open, Arc::clone(&worker))?;
                let lines = lines_of(&mut text, &self.reader).await?;
                counts.lines += lines;
                let of_unit = text.ended(lines).filter(|_| self.by_unit);
                counts.units.extend(of_unit.map(|lines| UnitCount { unit: text.unit().name(), lines }));
            }
            drop(worker);
            if !crew.help().await {
                return Ok(counts);
            }
        }
    }
}

/// What a Parquet file begins with: its mark, then a structure whose first field is a number of 32 bits. No text has
/// the second behind the first.
const PARQUET: &[u8] = b"PAR1\x15";

fn no_lines() -> Error {
    Error::refused("a Parquet file has rows and no lines")
        .hint("count its rows in a job: `millstream guess FILE > job.yaml` writes one, and SELECT count(*) counts")
}

/// The lines of all members of a unit.
async fn lines_of(text: &mut UnitText, reader: &Reader) -> Result<u64> {
    let mut lines = LineCount::default();
    let mut foreign = Foreign::new(reader);
    let mut first = true;
    loop {
        match text.next().await? {
            Unpacked::Text(piece) => {
                let uri = &text.unit().uri;
                if std::mem::take(&mut first) && piece.starts_with(PARQUET) {
                    return Err(no_lines().in_unit(uri, None));
                }
                foreign.text(&piece).map_err(|error| error.in_unit(uri, None))?;
                lines.add(&piece);
            }
            Unpacked::End => {
                lines.end();
                first = true;
            }
            Unpacked::Begin { member } => {
                foreign.begin(&text.unit().uri, member.as_deref())?;
            }
            Unpacked::Hungry => {}
            Unpacked::Done => return Ok(lines.lines),
        }
    }
}

/// Counts lines over pieces of text.
#[derive(Debug, Default)]
struct LineCount {
    lines: u64,
    open: bool,
}

impl LineCount {
    fn add(&mut self, text: &[u8]) {
        self.lines += memchr::memchr_iter(b'\n', text).count() as u64;
        self.open = text.last() != Some(&b'\n');
    }

    fn end(&mut self) {
        self.lines += u64::from(std::mem::take(&mut self.open));
    }
}

/// Writes the decoded bytes of all units to `output`, in the order of the listing.
pub fn cat(base: &Base, urls: &Urls, output: &mut dyn Write) -> Result<(), Failure> {
    let reader = urls.reader(base, "cat")?;
    let _governor = base.govern()?;
    base.runtimes.workers().block_on(async {
        let crew = ReadCrew::new(reader.context.io.clone());
        let worker = Arc::new(crew.join());
        let opened = opened(Arc::clone(&reader), reader.list(), 1, &crew, Order::Given);
        tokio::pin!(opened);
        let mut empty = true;
        while let Some(open) = opened.try_next().await? {
            empty = false;
            let mut text = UnitText::new(Arc::clone(&reader), open, Arc::clone(&worker))?;
            loop {
                match text.next().await? {
                    Unpacked::Text(piece) => output.write_all(&piece).map_err(unwritable)?,
                    Unpacked::Done => break,
                    Unpacked::Hungry | Unpacked::Begin { .. } | Unpacked::End => {}
                }
            }
        }
        if empty {
            return Err(no_match(&reader.patterns).into());
        }
        output.flush().map_err(unwritable)?;
        Failure::of(reader.unopened.faults())
    })
}

fn unwritable(cause: std::io::Error) -> Error {
    Error::io("standard output cannot be written", &cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_line_without_an_end_is_a_line_wherever_the_text_is_cut() {
        for (text, lines) in [("", 0), ("a", 1), ("a\n", 1), ("a\nb", 2), ("\n\n", 2)] {
            for cut in 0..=text.len() {
                let mut count = LineCount::default();
                for piece in [&text[..cut], &text[cut..]].into_iter().filter(|piece| !piece.is_empty()) {
                    count.add(piece.as_bytes());
                }
                count.end();
                assert_eq!(count.lines, lines, "{text:?} cut at {cut}");
            }
        }
    }
}
