//! `count` and `cat`: the reading path as plain Unix tools, without a job and without a plan.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufWriter, Write};
use std::sync::Arc;

use futures::TryStreamExt;
use millstream_codec::Unpacked;
use millstream_core::{Error, Result, Unit};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::context::RunContext;
use crate::failure::Failure;
use crate::read::exec::helpers;
use crate::read::foreign::Foreign;
use crate::read::helpers::ReadHelpers;
use crate::read::no_match;
use crate::read::opening::{Order, opened};
use crate::read::queue::{PORTION, UnitQueue};
use crate::read::unit::UnitText;
use crate::read::{ReadSteps, Reader, SchemeSource, SourcePlan};

/// Bytes that are written to the output at once.
const BUFFER: usize = 64 << 10;

/// What to read.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Urls {
    /// Paths, globs, URLs, `@lists`, `-`.
    pub patterns: Vec<String>,
    /// Globs over the members of archives; empty for all.
    pub members: Vec<String>,
}

/// The lines of one unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitCount {
    /// The unit's name.
    pub unit: String,
    /// Its lines; a last line without an end is one.
    pub lines: u64,
}

impl Urls {
    /// A reader of these URLs, with the defaults of every source that has some.
    ///
    /// # Errors
    /// If a pattern is wrong, or is of a source that needs settings.
    pub fn reader(&self, context: &RunContext, name: &str) -> Result<Arc<Reader>> {
        let (mut sources, mut needy) = (Vec::new(), Vec::new());
        for entry in &context.registry().sources {
            match (entry.build)(&serde_json::json!({})) {
                Ok(source) => sources.push(SchemeSource { schemes: entry.schemes, source }),
                Err(_) => needy.push(entry),
            }
        }
        for pattern in &self.patterns {
            millstream_source::pattern::check(pattern.trim_start_matches('@')).map_err(|fault| {
                let error = Error::job(fault.what).text(pattern);
                fault.hint.into_iter().fold(error, Error::hint)
            })?;
            let scheme = context.registry().source_scheme(pattern.trim_start_matches('@'));
            if let Some(entry) = needy.iter().find(|entry| entry.schemes.contains(&scheme)) {
                let what = format!("{} can only be read by a job, which has its settings", entry.spec.name);
                let hint = "write a job, and start it with `millstream run`";
                return Err(Error::job(what).text(millstream_core::redact::url(pattern)).hint(hint));
            }
        }
        let plan = SourcePlan::of_lines(name, self.patterns.clone(), sources, context.registry());
        let plan = SourcePlan { members: self.members.clone(), ..plan };
        let steps = ReadSteps::new(&context.steps, name);
        let reader = Reader::new(plan, context.source_context(Arc::default()), steps, Arc::clone(&context.rejects));
        reader.steps.parse.add_detail("lines");
        for pattern in &reader.patterns {
            reader.source_of(pattern.trim_start_matches('@'))?;
        }
        Ok(Arc::new(reader))
    }
}

/// The lines of all units.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Together.
    pub lines: u64,
    /// Of each, in the order in which they were finished; empty unless asked for.
    pub units: Vec<UnitCount>,
}

impl Counts {
    /// The same, with one entry for each unit of the names `cut`, whose ranges were counted apart.
    pub(crate) fn of_whole_units(mut self, cut: &BTreeSet<String>) -> Self {
        let (ranges, mut units): (Vec<_>, Vec<_>) =
            self.units.into_iter().partition(|counted| cut.contains(&counted.unit));
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        ranges.into_iter().for_each(|range| *sums.entry(range.unit).or_default() += range.lines);
        units.extend(sums.into_iter().map(|(unit, lines)| UnitCount { unit, lines }));
        self.units = units;
        self
    }
}

/// Counts the lines of all units; `by_unit` keeps those of each.
pub async fn count(context: &RunContext, urls: &Urls, by_unit: bool) -> Result<Counts, Failure> {
    count_units(context, urls, by_unit, None).await
}

/// The same of `only` these units, if some are given.
pub async fn count_units(
    context: &RunContext,
    urls: &Urls,
    by_unit: bool,
    only: Option<Vec<Unit>>,
) -> Result<Counts, Failure> {
    let reader = urls.reader(context, "count")?;
    only.into_iter().for_each(|units| reader.restrict(units));
    let _governor = context.govern()?;
    let queue = UnitQueue::new(Arc::clone(&reader));
    let pool = ReadHelpers::new(reader.context.io.clone());
    let workers = context.runtimes.workers();
    let mut tasks = JoinSet::new();
    let (cores, counters) = (context.machine().cores, reader.tasks(context.machine().cores));
    let _helpers = helpers(&pool, cores - counters);
    for _ in 0..counters {
        let counter = Counter { reader: Arc::clone(&reader), queue: Arc::clone(&queue), tasks: counters, by_unit };
        tasks.spawn_on(counter.count(Arc::clone(&pool)), &workers);
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
    async fn count(self, pool: Arc<ReadHelpers>) -> Result<Counts> {
        let reader = Arc::clone(&self.reader);
        let units = futures::stream::try_unfold(self.queue, |queue| async move {
            let portion = queue.next_some(PORTION).await?;
            let more = (!portion.is_empty()).then_some(portion);
            Ok::<_, Error>(more.map(|portion| (futures::stream::iter(portion.into_iter().map(Ok)), queue)))
        });
        let opened = opened(reader, units.try_flatten(), self.tasks, &pool, Order::Any);
        tokio::pin!(opened);
        let mut counts = Counts::default();
        loop {
            let worker = Arc::new(pool.join());
            while let Some(open) = opened.try_next().await? {
                let mut text = UnitText::new(Arc::clone(&self.reader), open, Arc::clone(&worker))?;
                let lines = lines_of(&mut text, &self.reader).await?;
                counts.lines += lines;
                let of_unit = text.ended(lines).filter(|_| self.by_unit);
                counts.units.extend(of_unit.map(|lines| UnitCount { unit: text.unit().name(), lines }));
            }
            drop(worker);
            if !pool.help().await {
                return Ok(counts);
            }
        }
    }
}

/// What a Parquet file begins with: its mark, then a structure whose first field is a number of 32 bits. No text has
/// the second behind the first.
const PARQUET: &[u8] = b"PAR1\x15";

fn no_lines() -> Error {
    Error::refused("a Parquet file has rows, not lines")
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
                let is_beginning = text.before().is_none();
                if std::mem::take(&mut first) && is_beginning && piece.starts_with(PARQUET) {
                    return Err(no_lines().in_unit(uri, None));
                }
                if is_beginning {
                    foreign.text(&piece).map_err(|error| error.in_unit(uri, None))?;
                }
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
pub async fn cat(context: &RunContext, urls: &Urls, output: impl Write) -> Result<(), Failure> {
    let mut output = BufWriter::with_capacity(BUFFER, output);
    let ended = write_all(context, urls, &mut output).await;
    // What was decoded before a fault is worth having; a fault of the last write is reported only if nothing else is.
    let flushed = output.flush().map_err(unwritable);
    ended.and(flushed.map_err(Failure::from))
}

async fn write_all(context: &RunContext, urls: &Urls, output: &mut impl Write) -> Result<(), Failure> {
    let reader = urls.reader(context, "cat")?;
    let _governor = context.govern()?;
    let pool = ReadHelpers::new(reader.context.io.clone());
    let worker = Arc::new(pool.join());
    let opened = opened(Arc::clone(&reader), reader.list(), 1, &pool, Order::Given);
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
    Failure::of(reader.unopened.faults())
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
