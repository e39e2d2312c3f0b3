//! The page of metrics: names, meanings and samples, as a scraper gets them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::UNIX_EPOCH;

use millstream::report::{Lag, Phase, StepSnapshot};
use millstream::{Engine, machine};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::metrics::{Key, Numbers, Shared};

/// Names and meanings of the counters of a step that are whole numbers.
const WHOLE: [(&str, Option<Unit>, &str); 5] = [
    ("millstream_rows", None, "Rows that left the step"),
    ("millstream_bytes", None, "Bytes that left the step"),
    ("millstream_rejected_rows", None, "Records and rows that the step refused"),
    ("millstream_units", None, "Units that the step has finished: files, ranges of files, parts of tables"),
    ("millstream_spilled", Some(Unit::Bytes), "Bytes that the step wrote to scratch"),
];

/// What a step may wait for, in the order of its seconds, whose first are time at work.
const REASONS: [&str; 3] = ["input", "output", "scratch"];

/// How an epoch may end.
const RESULTS: [&str; 3] = ["committed", "repeated", "dropped"];

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
        page.queues(&numbers)?;
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
        let waiting = sums.iter().flat_map(|(key, counts)| {
            REASONS.iter().zip(&counts.seconds[1..]).map(|(reason, seconds)| {
                let [step, kind] = labels(key);
                ([step, kind, ("reason", (*reason).to_owned())], *seconds)
            })
        });
        let help = "Time spent waiting for input, for output or for scratch, summed over the tasks of the step";
        self.counters("millstream_waiting", Some(&Unit::Seconds), help, waiting)
    }

    fn progress(&mut self, numbers: &Numbers) -> fmt::Result {
        let progress = &numbers.progress;
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
        self.gauges("millstream_run_phase", None, "1 for what the run is doing, 0 for the others", phases.into_iter())
    }

    fn queues(&mut self, numbers: &Numbers) -> fmt::Result {
        let Numbers { queues, gaps, outages, .. } = numbers;
        let messages = queues.iter().map(|(queue, counts)| (step(queue), counts.messages));
        let help = "Messages that came from the queue, those that came again among them";
        self.counters("millstream_messages", None, help, messages)?;
        let epochs = queues.iter().flat_map(|(queue, counts)| {
            let result =
                |(result, epochs): (&&'static str, u64)| ([("step", queue.as_str()), ("result", *result)], epochs);
            RESULTS.iter().zip(counts.epochs).map(result)
        });
        let help =
            "Epochs, by how they ended: committed by all sinks, repeated in part, or dropped at the end of the run";
        self.counters("millstream_epochs", None, help, epochs)?;
        let commits = queues.iter().map(|(queue, counts)| (step(queue), counts.commits));
        self.counters(
            "millstream_commits",
            None,
            "Transactions of sinks: at least one for each sink of an epoch",
            commits,
        )?;
        let gaps = gaps.iter().map(|(queue, gaps)| (step(queue), *gaps));
        self.counters("millstream_gaps", None, "How often the queue was found to have lost messages", gaps)?;
        let away = outages.iter().map(|(entry, outages)| (step(entry), u64::from(outages.is_away)));
        self.gauges("millstream_away", None, "1 while the entry waits for its queue or target, else 0", away)?;
        let counts = outages.iter().map(|(entry, outages)| (step(entry), outages.count));
        self.counters("millstream_outages", None, "How often the entry had to wait for its queue or target", counts)?;
        match (&numbers.queue, &numbers.progress.queue) {
            (Some(name), Some(queue)) => self.queue_now(name, numbers.progress.rate, queue.lag),
            _ => Ok(()),
        }
    }

    fn queue_now(&mut self, name: &str, rate: f64, lag: Lag) -> fmt::Result {
        let one = |value| std::iter::once((step(name), value));
        let help = "Messages a second, over the last five seconds";
        self.gauges("millstream_messages_per_second", None, help, one(rate))?;
        let help =
            "Messages that are left: of Redis, not read by the group; of Kafka, behind the positions of this process";
        self.gauges("millstream_lag_messages", None, help, lag.messages.map(|count| (step(name), count)).into_iter())?;
        let help = "Age of the oldest message that is read and not acknowledged; 0 if there is none that is known";
        let oldest = lag.oldest.unwrap_or_default().as_secs_f64();
        self.gauges("millstream_oldest_message_age", Some(Unit::Seconds), help, one(oldest))
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

fn step(entry: &str) -> [(&'static str, &str); 1] {
    [("step", entry)]
}

fn labels((step, kind): &Key) -> [(&'static str, String); 2] {
    [("step", step.clone()), ("kind", kind.to_string())]
}
