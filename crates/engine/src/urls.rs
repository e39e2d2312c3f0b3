//! `count` and `cat`: the reading path as plain Unix tools, without a job and without a plan.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use millstream_codec::{Limits, Unpack, Unpacked};
use millstream_core::format::{OnDrift, Validate};
use millstream_core::{ByteStream, Error, Result, StepKind, Unit};
use tokio::task::JoinSet;

use crate::prepare::{Base, lines};
use crate::read::queue::{UnitQueue, no_match};
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
            validate: Validate::default(),
            provenance: Vec::new(),
            max_rejects: 0,
            rejected: AtomicU64::new(0),
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

/// The lines of every unit, in the order in which they were finished.
pub fn count(base: &Base, urls: &Urls) -> Result<Vec<UnitCount>> {
    let reader = urls.reader(base, "count")?;
    let _governor = base.govern()?;
    let queue = UnitQueue::new(Arc::clone(&reader));
    base.runtimes.workers().block_on(async {
        let mut tasks = JoinSet::new();
        for _ in 0..base.machine.cores {
            tasks.spawn_on(
                count_units(Arc::clone(&reader), Arc::clone(&queue), base.machine.cores),
                &base.runtimes.workers(),
            );
        }
        let mut counts = Vec::new();
        while let Some(ended) = tasks.join_next().await {
            counts.extend(ended.map_err(|join| Error::internal("a task failed").cause(join))??);
        }
        Ok(counts)
    })
}

async fn count_units(reader: Arc<Reader>, queue: Arc<UnitQueue>, tasks: usize) -> Result<Vec<UnitCount>> {
    let ahead = reader.open_ahead().div_ceil(tasks).max(1);
    let units = futures::stream::try_unfold(queue, |queue| async move {
        Ok::<_, Error>(queue.next().await?.map(|unit| (unit, queue)))
    });
    let opened = units.map_ok(|unit| open(Arc::clone(&reader), unit)).try_buffered(ahead);
    tokio::pin!(opened);
    let mut counts = Vec::new();
    while let Some((unit, bytes)) = opened.try_next().await? {
        let mut lines = LineCount::default();
        unpack(&reader, &unit, bytes, |text| {
            match text {
                Some(text) => lines.add(&text),
                None => lines.end(),
            }
            Ok(())
        })
        .await?;
        counts.push(UnitCount { unit: unit.name(), lines: lines.lines });
    }
    Ok(counts)
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
pub fn cat(base: &Base, urls: &Urls, output: &mut dyn Write) -> Result<()> {
    let reader = urls.reader(base, "cat")?;
    let _governor = base.govern()?;
    base.runtimes.workers().block_on(async {
        let ahead = reader.open_ahead().max(1);
        let opened = reader.list().map_ok(|unit| open(Arc::clone(&reader), unit)).try_buffered(ahead);
        tokio::pin!(opened);
        let mut empty = true;
        while let Some((unit, bytes)) = opened.try_next().await? {
            empty = false;
            unpack(&reader, &unit, bytes, |text| match text {
                Some(text) => {
                    output.write_all(&text).map_err(|cause| Error::io("standard output cannot be written", &cause))
                }
                None => Ok(()),
            })
            .await?;
        }
        if empty {
            return Err(no_match(&reader.patterns));
        }
        output.flush().map_err(|cause| Error::io("standard output cannot be written", &cause))
    })
}

/// Opens `unit` on the runtime that waits.
async fn open(reader: Arc<Reader>, unit: Unit) -> Result<(Unit, ByteStream)> {
    reader.context.budget.admitted().await;
    let opening = Arc::clone(&reader);
    let uri = unit.uri.clone();
    let task = reader.context.io.spawn(async move {
        let bytes = opening.open(&unit).await?;
        Ok((unit, bytes))
    });
    let opened = task.await.map_err(|join| Error::internal("a task failed").cause(join))?;
    opened.map_err(|error: Error| error.in_unit(&uri, None))
}

/// Hands the text of all members of `unit` to `take`, and `None` at the end of each.
async fn unpack(
    reader: &Reader,
    unit: &Unit,
    mut bytes: ByteStream,
    mut take: impl FnMut(Option<Bytes>) -> Result<()>,
) -> Result<()> {
    let at_unit = |error: Error| error.in_unit(&unit.uri, None);
    let mut unpack = Unpack::new(reader.unpack_options(unit));
    loop {
        match unpack.next().map_err(at_unit)? {
            Unpacked::Hungry => match bytes.next().await.transpose().map_err(at_unit)? {
                Some(chunk) => unpack.feed(chunk),
                None => unpack.end(),
            },
            Unpacked::Begin { .. } => {}
            Unpacked::Text(text) => take(Some(text))?,
            Unpacked::End => take(None)?,
            Unpacked::Done => return Ok(()),
        }
    }
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
