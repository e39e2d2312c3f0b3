//! The metrics of a command's runs, in the formats of Prometheus and OpenMetrics.
//!
//! Counters of a step may shrink (rows that are refused later) and begin anew with each run and each attempt. Those of
//! Prometheus only grow: here they add up what each step has gained since it was seen last.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use millstream::report::{EpochCounts, Phase, Progress, QueueProgress, StepKind, StepSnapshot};
use millstream::{Engine, machine};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, NoLabelSet, prometheus_text, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

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
type Key = (String, StepKind);

/// The counters of a step.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    whole: [u64; WHOLE.len()],
    seconds: [f64; SECONDS.len()],
}

/// Names and meanings of [`Counts::whole`].
const WHOLE: [(&str, Option<Unit>, &str); 5] = [
    ("millstream_rows", None, "Rows that left the step"),
    ("millstream_bytes", None, "Bytes that left the step"),
    ("millstream_rejected_rows", None, "Records and rows that the step refused"),
    ("millstream_units", None, "Units that the step has finished: files, ranges of files, parts of tables"),
    ("millstream_spilled", Some(Unit::Bytes), "Bytes that the step wrote to scratch"),
];

/// Reasons and families of [`Counts::seconds`]: the first is time at work.
const SECONDS: [&str; 4] = ["", "input", "output", "scratch"];

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

/// The numbers of the runs so far.
#[derive(Debug, Default)]
struct Numbers {
    /// The job file, with passwords left out.
    job: String,
    began: Option<SystemTime>,
    /// The latest of the run.
    progress: Progress,
    /// The counters of the run's steps as they were last.
    last: BTreeMap<Key, Counts>,
    epochs_last: EpochCounts,
    /// The sums over all runs.
    sums: BTreeMap<Key, Counts>,
    epochs: EpochCounts,
}

impl Numbers {
    fn update(&mut self, progress: &Progress) {
        if self.progress.run != progress.run {
            self.last.clear();
            self.epochs_last = EpochCounts::default();
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
        let EpochCounts { committed, commits, .. } =
            progress.queue.map_or_else(EpochCounts::default, |queue| queue.epochs);
        self.epochs.committed += committed.saturating_sub(self.epochs_last.committed);
        self.epochs.commits += commits.saturating_sub(self.epochs_last.commits);
        self.epochs_last = EpochCounts { committed, commits, ..EpochCounts::default() };
        self.progress = progress.clone();
    }
}

/// The metrics of a command's runs.
pub struct Metrics {
    registry: Registry,
    shared: Arc<Shared>,
}

struct Shared {
    engine: Engine,
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
    pub fn begin(&self, job: &str) {
        let mut numbers = self.shared.numbers();
        numbers.job = millstream::text::redacted(job);
        numbers.began = Some(SystemTime::now());
    }

    /// The run stands so.
    pub fn update(&self, progress: &Progress) {
        self.shared.numbers().update(progress);
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
    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Collector for Shared {
    fn encode(&self, encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let mut page = Page(encoder);
        let numbers = self.numbers();
        page.infos(&numbers)?;
        page.steps(&numbers)?;
        page.progress(&numbers)?;
        page.memory(&self.engine)
    }
}

/// The page as it is written.
struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn infos(&mut self, numbers: &Numbers) -> fmt::Result {
        let help = "The build of Millstream";
        let mut metric = self.0.encode_descriptor("millstream_build", help, None, MetricType::Info)?;
        metric.encode_info(&[("version", env!("CARGO_PKG_VERSION"))])?;
        let help = "The run that is under way: its job file and its name";
        let mut metric = self.0.encode_descriptor("millstream_run", help, None, MetricType::Info)?;
        metric.encode_info(&[("job", numbers.job.as_str()), ("run", numbers.progress.run.as_str())])?;
        let Some(began) = numbers.began.and_then(|began| began.duration_since(UNIX_EPOCH).ok()) else { return Ok(()) };
        let help = "When the run began, in seconds since 1970";
        self.gauge("millstream_run_start_time", Some(Unit::Seconds), help, began.as_secs_f64())
    }

    fn steps(&mut self, Numbers { sums, .. }: &Numbers) -> fmt::Result {
        for (index, (name, unit, help)) in WHOLE.iter().enumerate() {
            let samples = sums.iter().map(|(key, counts)| (labels(key), counts.whole[index]));
            self.counters(name, unit.as_ref(), help, samples)?;
        }
        let help = "Time at work, summed over the tasks of the step";
        let busy = sums.iter().map(|(key, counts)| (labels(key), counts.seconds[0]));
        self.counters("millstream_busy", Some(&Unit::Seconds), help, busy)?;
        let reasons = SECONDS.iter().enumerate().skip(1);
        let waiting = sums.iter().flat_map(|(key, counts)| {
            reasons.clone().map(|(index, reason)| {
                let [step, kind] = labels(key);
                ([step, kind, ("reason", (*reason).to_owned())], counts.seconds[index])
            })
        });
        let help = "Time spent waiting for input, for output or for scratch, summed over the tasks of the step";
        self.counters("millstream_waiting", Some(&Unit::Seconds), help, waiting)
    }

    fn progress(&mut self, numbers: &Numbers) -> fmt::Result {
        let Numbers { progress, epochs: EpochCounts { committed, commits, .. }, .. } = numbers;
        let expected = |of: fn(&StepSnapshot) -> u64| {
            let mut sums: BTreeMap<Key, u64> = BTreeMap::new();
            for step in progress.steps.iter().filter(|step| of(step) > 0) {
                *sums.entry((step.name.clone(), step.kind)).or_default() += of(step);
            }
            sums.into_iter().map(|(key, sum)| (labels(&key), sum))
        };
        let help = "Bytes that are known to come through the step";
        self.gauges("millstream_expected", Some(Unit::Bytes), help, expected(|step| step.bytes_total))?;
        let help = "Units that are known of";
        self.gauges("millstream_expected_units", None, help, expected(|step| step.units_total))?;
        let phases = [("reading", Phase::Reading), ("finishing", Phase::Finishing), ("committing", Phase::Committing)];
        let phases = phases.map(|(name, phase)| ([("phase", name)], u64::from(progress.phase == phase)));
        self.gauges("millstream_run_phase", None, "1 for what the run is doing, 0 for the others", phases.into_iter())?;
        let none = |count: u64| std::iter::once((NO_LABELS, count));
        self.counters("millstream_epochs", None, "Epochs that all of their sinks have committed", none(*committed))?;
        self.counters("millstream_commits", None, "Commits of epochs, one for each sink", none(*commits))?;
        let Some(QueueProgress { lag, .. }) = progress.queue else { return Ok(()) };
        if let Some(messages) = lag.messages {
            self.gauge("millstream_lag_messages", None, "Messages of the queue that the group has not read", messages)?;
        }
        let Some(oldest) = lag.oldest else { return Ok(()) };
        let help = "Age of the oldest message that is not committed";
        self.gauge("millstream_oldest_message_age", Some(Unit::Seconds), help, oldest.as_secs_f64())
    }

    fn memory(&mut self, engine: &Engine) -> fmt::Result {
        let (budget, bytes) = (engine.budget(), || Some(Unit::Bytes));
        let help = "Memory that the process may use (`--memory`)";
        self.gauge("millstream_memory_limit", bytes(), help, engine.machine().memory)?;
        let help = "The budget for data within that, as it stands";
        self.gauge("millstream_memory_budget", bytes(), help, budget.limit() as u64)?;
        self.gauge("millstream_memory_used", bytes(), "What is reserved of the budget", budget.used() as u64)?;
        self.gauge("millstream_memory_resident", bytes(), "Resident size of the process", machine::resident())
    }

    fn gauge(&mut self, name: &str, unit: Option<Unit>, help: &str, value: impl EncodeGaugeValue) -> fmt::Result {
        self.gauges(name, unit, help, std::iter::once((NO_LABELS, value)))
    }

    fn gauges(
        &mut self,
        name: &str,
        unit: Option<Unit>,
        help: &str,
        samples: impl Iterator<Item = (impl EncodeLabelSet, impl EncodeGaugeValue)>,
    ) -> fmt::Result {
        let mut samples = samples.peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let mut metric = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (labels, value) in samples {
            metric.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn counters(
        &mut self,
        name: &str,
        unit: Option<&Unit>,
        help: &str,
        samples: impl Iterator<Item = (impl EncodeLabelSet, impl EncodeCounterValue)>,
    ) -> fmt::Result {
        let mut samples = samples.peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let mut metric = self.0.encode_descriptor(name, help, unit, MetricType::Counter)?;
        for (labels, value) in samples {
            metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }
}

const NO_LABELS: [(&str, &str); 0] = [];

fn labels((step, kind): &Key) -> [(&'static str, String); 2] {
    [("step", step.clone()), ("kind", kind.to_string())]
}

#[cfg(test)]
mod tests {
    use millstream::report::{Lag, Step};

    use super::*;

    fn progress(run: &str, rows: u64, busy: u64) -> Progress {
        let step = Step::new("s", StepKind::Parse, "csv");
        step.add_rows(rows);
        step.add_busy(std::time::Duration::from_secs(busy));
        let epochs = EpochCounts { committed: rows, commits: 2 * rows, ..EpochCounts::default() };
        let queue = Some(QueueProgress { messages: rows, epochs, rate: 0.0, lag: Lag::default() });
        Progress { run: run.to_owned(), steps: vec![step.snapshot()], queue, ..Progress::default() }
    }

    #[test]
    fn counters_never_shrink() {
        let mut numbers = Numbers::default();
        // Three rows are refused after all, two more come; then the run is resumed, with counters of its own.
        for (run, rows, busy, sum) in
            [("1", 10, 1, 10), ("1", 7, 2, 10), ("1", 9, 2, 12), ("2", 5, 1, 17), ("2", 5, 1, 17)]
        {
            numbers.update(&progress(run, rows, busy));
            assert_eq!(numbers.sums[&("s".to_owned(), StepKind::Parse)].whole[0], sum, "{run} {rows}");
            assert_eq!(numbers.epochs, EpochCounts { committed: sum, commits: 2 * sum, ..EpochCounts::default() });
        }
        assert_eq!(numbers.sums[&("s".to_owned(), StepKind::Parse)].seconds[0], 3.0);
    }
}
