//! The metrics of a command's runs, in the formats of Prometheus and OpenMetrics.
//!
//! Counters of a step may shrink (rows that are refused later) and begin anew with each run and each attempt. Those of
//! Prometheus only grow: here they add up what each step has gained since it was seen last.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use millstream::report::{Progress, QueueProgress, StepKind, StepSnapshot};
use millstream::{Engine, Event, Job};
use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::registry::Registry;

/// How metrics are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format 0.0.4.
    Prometheus,
    /// OpenMetrics' text format 1.0.
    OpenMetrics,
}

impl Format {
    /// Its media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// An entry of the job, and what it does there.
pub(super) type Key = (String, StepKind);

/// The counters of a step.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) whole: [u64; 5],
    /// Time at work, and time spent waiting for input, for output and for scratch.
    pub(super) seconds: [f64; 4],
}

impl Counts {
    fn of(step: &StepSnapshot) -> Self {
        Counts {
            whole: [step.rows, step.bytes, step.rejected, step.units, step.spilled_bytes],
            seconds: [step.busy, step.waiting_input, step.waiting_output, step.waiting_scratch],
        }
    }

    fn add(&mut self, other: &Counts) {
        self.whole.iter_mut().zip(other.whole).for_each(|(sum, more)| *sum += more);
        self.seconds.iter_mut().zip(other.seconds).for_each(|(sum, more)| *sum += more);
    }

    /// What is more than in `last`.
    fn gained(&self, last: &Counts) -> Counts {
        Counts {
            whole: std::array::from_fn(|index| self.whole[index].saturating_sub(last.whole[index])),
            seconds: std::array::from_fn(|index| (self.seconds[index] - last.seconds[index]).max(0.0)),
        }
    }
}

/// The counters of a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct QueueCounts {
    pub(super) messages: u64,
    /// Epochs that are committed, repeated and dropped.
    pub(super) epochs: [u64; 3],
    pub(super) commits: u64,
}

impl QueueCounts {
    fn of(QueueProgress { messages, epochs, .. }: &QueueProgress) -> Self {
        QueueCounts {
            messages: *messages,
            epochs: [epochs.committed, epochs.repeated, epochs.dropped],
            commits: epochs.commits,
        }
    }

    fn add_gained(&mut self, now: &QueueCounts, last: &QueueCounts) {
        self.messages += now.messages.saturating_sub(last.messages);
        self.commits += now.commits.saturating_sub(last.commits);
        for (index, sum) in self.epochs.iter_mut().enumerate() {
            *sum += now.epochs[index].saturating_sub(last.epochs[index]);
        }
    }
}

/// What has happened to an entry that waits for a queue or a target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Outages {
    pub(super) is_away: bool,
    pub(super) count: u64,
}

/// The numbers of the runs so far.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// The job file, with passwords left out.
    pub(super) job: String,
    pub(super) began: Option<SystemTime>,
    /// The latest of the run.
    pub(super) progress: Progress,
    /// The counters of the run's steps as they were last.
    last: BTreeMap<Key, Counts>,
    /// The same of its queue.
    queue_last: QueueCounts,
    /// The sums over all runs.
    pub(super) sums: BTreeMap<Key, Counts>,
    /// The queue that the run reads, if it does.
    pub(super) queue: Option<String>,
    /// The sums of each queue.
    pub(super) queues: BTreeMap<String, QueueCounts>,
    /// How often each has lost messages.
    pub(super) gaps: BTreeMap<String, u64>,
    /// The entries of jobs that read a queue.
    pub(super) outages: BTreeMap<String, Outages>,
}

impl Numbers {
    /// A run of `job` begins.
    fn begin(&mut self, job: &Job) {
        self.job = millstream::text::redacted(job.path());
        self.began = Some(SystemTime::now());
        self.nothing_is_away();
        let queue = job.sources.iter().find(|source| source.queue().is_some());
        self.queue = queue.map(|source| source.name.value.clone());
        if let Some(queue) = &self.queue {
            self.queues.entry(queue.clone()).or_default();
            self.gaps.entry(queue.clone()).or_default();
            for entry in job.sinks.iter().map(|sink| &sink.name.value).chain([queue]) {
                self.outages.entry(entry.clone()).or_default();
            }
        }
    }

    fn see(&mut self, event: &Event) {
        match event {
            Event::Progress(progress) => self.update(progress),
            Event::Away { of, .. } => {
                let outages = self.outages.entry(of.clone()).or_default();
                *outages = Outages { is_away: true, count: outages.count + 1 };
            }
            Event::Back { of } => self.outages.entry(of.clone()).or_default().is_away = false,
            Event::Gap { .. } => *self.gaps.entry(self.queue.clone().unwrap_or_default()).or_default() += 1,
            Event::Retrying { .. } => self.nothing_is_away(),
            _ => {}
        }
    }

    fn nothing_is_away(&mut self) {
        self.outages.values_mut().for_each(|outages| outages.is_away = false);
    }

    fn update(&mut self, progress: &Progress) {
        if self.progress.run != progress.run {
            self.last.clear();
            self.queue_last = QueueCounts::default();
        }
        let mut now: BTreeMap<Key, Counts> = BTreeMap::new();
        for step in &progress.steps {
            now.entry((step.name.clone(), step.kind)).or_default().add(&Counts::of(step));
        }
        for (key, counts) in &now {
            let last = self.last.get(key).copied().unwrap_or_default();
            self.sums.entry(key.clone()).or_default().add(&counts.gained(&last));
        }
        self.last = now;
        if let (Some(name), Some(queue)) = (&self.queue, &progress.queue) {
            let now = QueueCounts::of(queue);
            self.queues.entry(name.clone()).or_default().add_gained(&now, &self.queue_last);
            self.queue_last = now;
        }
        self.progress = progress.clone();
    }
}

/// The metrics of a command's runs.
pub struct Metrics {
    registry: Registry,
    shared: Arc<Shared>,
}

/// What the page is made of.
pub(super) struct Shared {
    pub(super) engine: Engine,
    numbers: Mutex<Numbers>,
}

impl Metrics {
    /// Those of runs of `engine`, of which none has begun.
    pub fn new(engine: Engine) -> Self {
        let shared = Arc::new(Shared { engine, numbers: Mutex::default() });
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Arc::clone(&shared)));
        Metrics { registry, shared }
    }

    /// A run of `job` begins.
    pub fn begin(&self, job: &Job) {
        self.shared.numbers().begin(job);
    }

    /// Something happens in the run.
    pub fn see(&self, event: &Event) {
        self.shared.numbers().see(event);
    }

    /// All metrics in `format`.
    ///
    /// # Errors
    /// If the library refuses a metric.
    pub fn encode(&self, format: Format) -> Result<String, fmt::Error> {
        let mut page = String::new();
        match format {
            Format::Prometheus => prometheus_text::encode(&mut page, &self.registry)?,
            Format::OpenMetrics => text::encode(&mut page, &self.registry)?,
        }
        Ok(page)
    }
}

impl Shared {
    pub(super) fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millstream::Error;
    use millstream::report::{EpochCounts, Lag, Step};

    use super::*;

    fn progress(run: &str, rows: u64, busy: u64) -> Progress {
        let step = Step::new("s", StepKind::Parse, "csv");
        step.add_rows(rows);
        step.add_busy(Duration::from_secs(busy));
        let epochs = EpochCounts { committed: rows, repeated: 1, dropped: 0, commits: 2 * rows };
        let queue = Some(QueueProgress { messages: rows, epochs, lag: Lag::default() });
        Progress { run: run.to_owned(), steps: vec![step.snapshot()], queue, ..Progress::default() }
    }

    fn of_queue() -> Numbers {
        Numbers { queue: Some("events".to_owned()), ..Numbers::default() }
    }

    #[test]
    fn counters_never_shrink() {
        let mut numbers = of_queue();
        // Three rows are refused after all, two more come; then the run is resumed, with counters of its own.
        for (run, rows, busy, sum, runs) in
            [("1", 10, 1, 10, 1), ("1", 7, 2, 10, 1), ("1", 9, 2, 12, 1), ("2", 5, 1, 17, 2), ("2", 5, 1, 17, 2)]
        {
            numbers.see(&Event::Progress(progress(run, rows, busy)));
            assert_eq!(numbers.sums[&("s".to_owned(), StepKind::Parse)].whole[0], sum, "{run} {rows}");
            let expected = QueueCounts { messages: sum, epochs: [sum, runs, 0], commits: 2 * sum };
            assert_eq!(numbers.queues["events"], expected);
        }
        assert_eq!(numbers.sums[&("s".to_owned(), StepKind::Parse)].seconds[0], 3.0);
    }

    #[test]
    fn outages_and_gaps_are_counted() {
        let mut numbers = of_queue();
        let error = || Error::job("it is away");
        let away = || Event::Away { of: "o".to_owned(), error: error() };
        let state = |numbers: &Numbers| (numbers.outages["o"].is_away, numbers.outages["o"].count);
        numbers.see(&away());
        assert_eq!(state(&numbers), (true, 1));
        numbers.see(&Event::Back { of: "o".to_owned() });
        assert_eq!(state(&numbers), (false, 1));
        numbers.see(&away());
        assert_eq!(state(&numbers), (true, 2));
        // The next attempt says itself for what it waits.
        numbers.see(&Event::Retrying { attempt: 1, of: 2, wait: Duration::ZERO, error: error() });
        assert_eq!(state(&numbers), (false, 2));
        numbers.see(&Event::Gap { error: error() });
        numbers.see(&Event::Gap { error: error() });
        assert_eq!(numbers.gaps["events"], 2);
    }
}
