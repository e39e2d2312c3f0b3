//! What limited a run, in one sentence with its evidence.
//!
//! Seven shares of the time of the run are compared, each computed from the counters:
//!
//! - *throttle*: how much of the time the rate that the job allows was reached;
//! - *cores*: processor time, and time ready to run while others had the processor, over cores × time;
//! - *input*: how much of the readers' time went by waiting for bytes;
//! - *target*: how much of the loaders' time went by waiting for the target;
//! - *scratch*: how much of the sorts' time went by waiting for their disks;
//! - *workers*: how much of the time the processes of a step were at work, where they are not what the cores are busy
//!   with;
//! - *memory*: time that readers were held back, and bytes that the busiest step spilled although it was not planned
//!   so.
//!
//! The first of these that fills the run is its limit. If none does, a single task may have been the limit: a step that
//! was busy all the time on one core while the others had nothing to do (one large gzip, a final sort).

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_core::StepKind;
use millstream_core::spec::Size;
use millstream_core::step::StepSnapshot;
use millstream_job::Job;
use serde::{Deserialize, Serialize};

/// What a run can be short of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// Processor cores.
    Cores,
    /// One core: the work could not be divided.
    Core,
    /// The processes that compute a step, which are too few.
    Workers,
    /// Where the bytes come from: disk, pipe or network.
    Source,
    /// Where the rows go.
    Target,
    /// The disk for what does not fit in memory.
    Scratch,
    /// The memory budget.
    Memory,
    /// What the job allows its sources to read.
    Throttle,
    /// Nothing stands out: the run was short, or its time went by starting up.
    #[default]
    Nothing,
}

/// What limited a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// What it was short of.
    pub limit: Limit,
    /// The sentence for people, with its evidence.
    pub sentence: String,
}

/// What the verdict is computed from.
#[derive(Debug)]
pub struct Evidence<'a> {
    /// The counters.
    pub steps: &'a [StepSnapshot],
    /// The time of the run.
    pub elapsed: Duration,
    /// In how many places it ran at the same time on average: 1, or the bundles that the workers of a cluster read.
    pub places: f64,
    /// The processor time of the process over the run, and of those that worked for it, user and system.
    pub processor: Duration,
    /// How long its threads were ready to run while others had the processor.
    pub delayed: Duration,
    /// Workers.
    pub cores: usize,
    /// How long readers were held back because memory was short.
    pub held: Duration,
    /// How many bytes a second the job allows its sources, and how long that held them back.
    pub throttle: Option<(u64, Duration)>,
    /// What the readers and writers of a component wait for, by the component's name.
    pub media: &'a BTreeMap<&'static str, &'static str>,
}

impl Evidence<'_> {
    fn medium<'a>(&'a self, component: &'a str) -> &'a str {
        self.media.get(component).copied().unwrap_or(component)
    }
}

/// What the components of `job` wait for, by their names.
pub fn media(job: &Job) -> BTreeMap<&'static str, &'static str> {
    let sources = job.sources.iter().flat_map(|step| &step.inputs).map(|(_, source)| (source.name(), source.medium()));
    sources.chain(job.sinks.iter().map(|step| (step.sink.name(), step.sink.medium()))).collect()
}

/// Above this share a resource fills the run.
const FULL: f64 = 0.75;
/// Above this share waiting is what the run did most.
const MOST: f64 = 0.5;
/// A step that was busy for more than this share of the run was at work on several cores.
const ONE_CORE: f64 = 1.02;
/// Shorter runs are all start and end.
const SHORTEST: Duration = Duration::from_millis(50);

/// What limited the run.
pub fn verdict(evidence: &Evidence<'_>) -> Verdict {
    let (limit, sentence) = match evidence.elapsed < SHORTEST {
        true => {
            let milliseconds = evidence.elapsed.as_millis();
            (Limit::Nothing, format!("nothing: the run took {milliseconds} ms, too short to tell"))
        }
        false => Shares::of(evidence).judge(evidence),
    };
    Verdict { limit, sentence: format!("limited by: {sentence}") }
}

/// The shares of the run that are compared, each from 0 to 1.
struct Shares<'a> {
    /// Of cores × time that the process ran or was ready to run.
    cores: f64,
    /// Of that, ready and not running.
    delayed: f64,
    /// Of the time that the processes of a step were at work, and the step where that is most.
    workers: Option<(f64, &'a StepSnapshot)>,
    /// Of the time that the slowest source was waited for, and its decoder.
    source: Option<(f64, &'a StepSnapshot)>,
    /// Of the time that the slowest target was waited for, and its loader.
    target: Option<(f64, &'a StepSnapshot)>,
    /// Of the time that the slowest scratch was waited for, and its sort.
    scratch: Option<(f64, &'a StepSnapshot)>,
    /// Of the time that readers were held back.
    held: f64,
    /// The rate that the job allows, and the share of the time that it held sources back.
    throttle: Option<(u64, f64)>,
    /// Bytes that all steps spilled, and what more memory would save of them.
    spilled: u64,
    spilled_for_want: u64,
    /// The step that worked most, and how much of the time.
    busiest: Option<(f64, &'a StepSnapshot)>,
}

impl<'a> Shares<'a> {
    fn of(evidence: &Evidence<'a>) -> Self {
        let elapsed = evidence.elapsed.as_secs_f64().max(1e-6);
        let wanted = (evidence.processor + evidence.delayed).as_secs_f64();
        let in_all = elapsed * evidence.places.max(1.0);
        Shares {
            cores: (wanted / (elapsed * evidence.cores as f64)).min(1.0),
            delayed: evidence.delayed.as_secs_f64() / wanted.max(1e-6),
            workers: busy_workers(evidence.steps, in_all),
            source: waiting_for_source(evidence.steps, in_all),
            target: waiting_for_target(evidence.steps, in_all),
            scratch: waiting_for_scratch(evidence.steps, in_all),
            held: evidence.held.as_secs_f64() / elapsed,
            throttle: evidence.throttle.map(|(rate, held)| (rate, held.as_secs_f64() / elapsed)),
            spilled: evidence.steps.iter().map(|step| step.spilled_bytes).sum(),
            spilled_for_want: evidence.steps.iter().map(|step| step.spilled_for_want).sum(),
            busiest: busiest(evidence.steps).map(|step| (worked(step) / elapsed, step)),
        }
    }

    fn judge(&self, evidence: &Evidence<'_>) -> (Limit, String) {
        if self.is_short_of_memory() {
            return (Limit::Memory, self.memory());
        }
        if let Some((rate, share)) = self.throttle.filter(|(_, share)| *share >= FULL) {
            let (rate, share, cores) = (Size(rate), percent(share), percent(self.cores));
            let what = format!("the `throttle` of the job: {rate} a second, reached {share} of the time");
            return (Limit::Throttle, format!("{what}, cores busy {cores}"));
        }
        if self.cores >= FULL {
            return (Limit::Cores, self.all_cores(evidence.cores));
        }
        let source = self.source.filter(|(share, _)| *share >= MOST);
        let target = self.target.filter(|(share, _)| *share >= MOST);
        let cores = percent(self.cores);
        let others = source.iter().chain(&target).map(|(share, _)| *share).fold(MOST, f64::max);
        let all_others = self.scratch.iter().map(|(share, _)| *share).fold(others, f64::max);
        if let Some((share, step)) = self.workers.filter(|(share, _)| *share >= all_others) {
            return (Limit::Workers, too_few_workers(share, step, &cores));
        }
        if let Some((share, step)) = self.scratch.filter(|(share, _)| *share >= others) {
            let (share, spilled) = (percent(share), Size(step.spilled_bytes));
            let what = format!("scratch: {} waited for it {share} of the time", describe(step));
            return (Limit::Scratch, format!("{what}, {spilled} written there, cores busy {cores}"));
        }
        match (source, target, self.busiest) {
            (source, Some((share, step)), _) if share >= source.map_or(0.0, |(share, _)| share) => {
                let share = percent(share);
                let target = format!("the target of {} ({})", step.name, evidence.medium(&step.detail));
                (Limit::Target, format!("{target}: writing to it took {share} of the time, cores busy {cores}"))
            }
            (Some((share, step)), _, _) => {
                let fetch =
                    evidence.steps.iter().find(|other| other.name == step.name && other.kind == StepKind::Fetch);
                let place = fetch.map_or("source", |fetch| evidence.medium(&fetch.detail));
                let share = percent(share);
                let reading = format!("reading {} ({place})", step.name);
                (
                    Limit::Source,
                    format!("{reading}: waiting for its bytes took {share} of the time, cores busy {cores}"),
                )
            }
            (_, _, Some((share, step))) if (MOST..=ONE_CORE).contains(&share) && evidence.cores > 1 => {
                let (work, share, all) = (describe(step), percent(share), evidence.cores);
                (Limit::Core, format!("{work}, which ran on 1 of {all} cores, busy {share} of the time"))
            }
            _ => (Limit::Nothing, format!("nothing in particular: cores busy {cores}, most of it {}", self.work())),
        }
    }

    /// A step that spills works and waits more than it would have to; if it is the one that worked most, more cores
    /// would help less than more memory. A sort writes and reads what does not fit once, with whatever memory: only
    /// what it writes again is for want of it.
    fn is_short_of_memory(&self) -> bool {
        let busiest_spilled = self.busiest.is_some_and(|(_, step)| step.spilled_for_want > 0);
        self.held > 0.2 || busiest_spilled || (self.spilled_for_want > 0 && self.cores < FULL)
    }

    fn memory(&self) -> String {
        let mut evidence = vec![format!("{} written to scratch", Size(self.spilled))];
        if self.held > 0.01 {
            evidence.push(format!("readers held back {} of the time", percent(self.held)));
        }
        format!("memory: {}, most work in {}; raise `--memory`", evidence.join(", "), self.work())
    }

    fn all_cores(&self, cores: usize) -> String {
        let cores = match cores {
            1 => "1 of 1 core".to_owned(),
            cores => format!("{cores} of {cores} cores"),
        };
        let mut sentence = format!("{}, {cores} busy {}", self.work(), percent(self.cores));
        if self.delayed > 0.1 {
            sentence.push_str(&format!(", {} of that waiting for other processes", percent(self.delayed)));
        }
        if self.spilled > 0 {
            sentence.push_str(&format!(", {} written to scratch", Size(self.spilled)));
        }
        sentence
    }

    /// The step that worked most, as a phrase.
    fn work(&self) -> String {
        self.busiest.map_or_else(|| "starting up".to_owned(), |(_, step)| describe(step))
    }
}

/// The step that worked most.
fn busiest(steps: &[StepSnapshot]) -> Option<&StepSnapshot> {
    steps.iter().filter(|step| worked(step) > 0.0).max_by(|a, b| worked(a).total_cmp(&worked(b)))
}

/// How long a step had a processor, in seconds. Processes may be at work on something and wait for others meanwhile.
fn worked(step: &StepSnapshot) -> f64 {
    step.work.as_ref().map_or(step.busy, |work| work.cpu_seconds)
}

/// The step whose processes were at work most, and how much of their time.
fn busy_workers(steps: &[StepSnapshot], elapsed: f64) -> Option<(f64, &StepSnapshot)> {
    let share = |step: &StepSnapshot| Some(step.busy / (elapsed * step.work.as_ref()?.workers.max(1) as f64));
    steps.iter().filter_map(|step| Some((share(step)?, step))).max_by(|a, b| a.0.total_cmp(&b.0))
}

fn too_few_workers(share: f64, step: &StepSnapshot, cores: &str) -> String {
    let workers = match step.work.as_ref().map_or(0, |work| work.workers) {
        1 => "the worker".to_owned(),
        workers => format!("the {workers} workers"),
    };
    let (StepSnapshot { name, detail, .. }, share) = (step, percent(share));
    let lost = step.work.as_ref().map_or(0.0, |work| work.lost_seconds) / step.busy.max(1e-6);
    // Further workers would wait for the same rows.
    let rest = match lost >= MOST {
        true => {
            let lost = percent(lost.min(1.0));
            format!("{lost} of that in calls that failed; see why they fail, or lower its `timeout` if they hang")
        }
        false => format!("cores busy {cores}; give it more `workers`"),
    };
    format!("{workers} of {name} ({detail}), busy {share} of the time, {rest}")
}

/// What a step does, as a phrase: "decoding gzip (places)".
fn describe(step: &StepSnapshot) -> String {
    let what = match step.kind {
        StepKind::List => "listing".to_owned(),
        StepKind::Fetch => format!("fetching {}", step.detail),
        StepKind::Decode => format!("decoding {}", step.detail),
        StepKind::Parse => format!("parsing {}", step.detail),
        StepKind::Transform if step.work.is_some() => format!("{} workers", step.detail),
        // What came of its plan is in the report.
        StepKind::Transform => step.detail.split(", ").next().unwrap_or_default().to_owned(),
        StepKind::Load => format!("writing {}", step.detail),
    };
    format!("{what} ({})", step.name)
}

/// The reader that waited most for its bytes, and how much of its own time that was. A reader that was itself held up
/// by what comes behind it had nothing to wait for, so its own time is what it worked and waited for input.
fn waiting_for_source(steps: &[StepSnapshot], elapsed: f64) -> Option<(f64, &StepSnapshot)> {
    let share = |step: &StepSnapshot| {
        let tasks = ((step.waiting_input + step.busy) / elapsed).ceil().max(1.0);
        step.waiting_input / (elapsed * tasks)
    };
    let decoders = steps.iter().filter(|step| step.kind == StepKind::Decode);
    decoders.map(|step| (share(step), step)).max_by(|a, b| a.0.total_cmp(&b.0))
}

/// The loader that waited most for its target, and how much of the run that was.
fn waiting_for_target(steps: &[StepSnapshot], elapsed: f64) -> Option<(f64, &StepSnapshot)> {
    let share = |step: &StepSnapshot| {
        let tasks = ((step.waiting_output + step.waiting_input + step.busy) / elapsed).round().max(1.0);
        step.waiting_output / (elapsed * tasks)
    };
    let loaders = steps.iter().filter(|step| step.kind == StepKind::Load);
    loaders.map(|step| (share(step), step)).max_by(|a, b| a.0.total_cmp(&b.0))
}

/// The sort that waited most for its scratch, and how much of its time that was.
fn waiting_for_scratch(steps: &[StepSnapshot], elapsed: f64) -> Option<(f64, &StepSnapshot)> {
    let share = |step: &StepSnapshot| {
        let tasks = ((step.waiting_scratch + step.busy) / elapsed).ceil().max(1.0);
        step.waiting_scratch / (elapsed * tasks)
    };
    let waiting = steps.iter().filter(|step| step.waiting_scratch > 0.0);
    waiting.map(|step| (share(step), step)).max_by(|a, b| a.0.total_cmp(&b.0))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", (share * 100.0).min(100.0))
}

#[cfg(test)]
mod tests {
    use millstream_core::Step;

    use super::*;

    fn step(kind: StepKind, detail: &str, busy: f64, waiting_input: f64, waiting_output: f64) -> StepSnapshot {
        let step = Step::new("places", kind, detail);
        step.add_busy(Duration::from_secs_f64(busy));
        step.add_waiting_input(Duration::from_secs_f64(waiting_input));
        step.add_waiting_output(Duration::from_secs_f64(waiting_output));
        step.snapshot()
    }

    fn judge(steps: &[StepSnapshot], processor: f64, held: f64) -> Verdict {
        judge_throttled(steps, processor, held, None)
    }

    fn judge_throttled(steps: &[StepSnapshot], processor: f64, held: f64, throttled: Option<f64>) -> Verdict {
        verdict(&Evidence {
            steps,
            elapsed: Duration::from_secs(10),
            places: 1.0,
            processor: Duration::from_secs_f64(processor),
            delayed: Duration::ZERO,
            cores: 2,
            held: Duration::from_secs_f64(held),
            throttle: throttled.map(|seconds| (2_000_000, Duration::from_secs_f64(seconds))),
            media: &BTreeMap::from([("file", "disk"), ("http", "network")]),
        })
    }

    #[test]
    fn each_limit_is_named() {
        let decode = step(StepKind::Decode, "gzip", 15.0, 1.0, 0.0);
        assert_eq!(
            judge(std::slice::from_ref(&decode), 18.8, 0.0).sentence,
            "limited by: decoding gzip (places), 2 of 2 cores busy 94 %"
        );
        assert_eq!(judge(&[decode], 18.8, 5.0).limit, Limit::Memory);
        let starved = [step(StepKind::Decode, "gzip", 0.5, 18.0, 0.0), step(StepKind::Fetch, "http", 0.0, 0.0, 0.0)];
        let verdict = judge(&starved, 1.0, 0.0);
        assert_eq!(verdict.limit, Limit::Source);
        assert!(verdict.sentence.contains("(network)"), "{}", verdict.sentence);
        let blocked = [step(StepKind::Decode, "gzip", 0.5, 0.1, 0.0), step(StepKind::Load, "sqlite", 0.5, 0.5, 9.0)];
        assert_eq!(judge(&blocked, 1.0, 0.0).limit, Limit::Target);
        let serial = [step(StepKind::Decode, "gzip", 9.0, 0.2, 0.0)];
        assert_eq!(judge(&serial, 9.5, 0.0).limit, Limit::Core);
        assert_eq!(judge(&[], 0.1, 0.0).limit, Limit::Nothing);
    }

    #[test]
    fn a_throttle_that_is_reached_is_the_limit() {
        let decode = step(StepKind::Decode, "gzip", 0.5, 9.0, 0.0);
        let verdict = judge_throttled(std::slice::from_ref(&decode), 1.0, 0.0, Some(9.5));
        let told = "limited by: the `throttle` of the job: 2.00 MB a second, reached 95 % of the time, cores busy 5 %";
        assert_eq!((verdict.limit, verdict.sentence.as_str()), (Limit::Throttle, told));
        assert_eq!(judge_throttled(&[decode], 1.0, 0.0, Some(3.0)).limit, Limit::Source);
    }

    #[test]
    fn processes_are_too_few_or_keep_the_cores_busy() {
        let work = |busy: f64, processor: f64| {
            let step = Step::of_processes("scored", "python", 4);
            step.add_busy(Duration::from_secs_f64(busy));
            let mut step = step.snapshot();
            step.work.iter_mut().for_each(|work| work.cpu_seconds = processor);
            step
        };
        let verdict = judge(&[work(39.0, 1.0), step(StepKind::Parse, "csv", 2.0, 0.0, 0.0)], 4.0, 0.0);
        assert_eq!(
            (verdict.limit, verdict.sentence.as_str()),
            (
                Limit::Workers,
                "limited by: the 4 workers of scored (python), busy 98 % of the time, cores busy 20 %; give it more \
                 `workers`"
            )
        );
        let mut hangs = work(39.0, 1.0);
        hangs.work.iter_mut().for_each(|work| work.lost_seconds = 36.0);
        assert_eq!(
            judge(&[hangs], 4.0, 0.0).sentence,
            "limited by: the 4 workers of scored (python), busy 98 % of the time, 92 % of that in calls that failed; \
             see why they fail, or lower its `timeout` if they hang"
        );
        let verdict = judge(&[work(39.0, 17.0), step(StepKind::Parse, "csv", 2.0, 0.0, 0.0)], 19.0, 0.0);
        let told = "limited by: python workers (scored), 2 of 2 cores busy 95 %";
        assert_eq!((verdict.limit, verdict.sentence.as_str()), (Limit::Cores, told));
        let verdict = judge(&[work(39.0, 1.0), step(StepKind::Parse, "csv", 18.0, 0.0, 0.0)], 19.0, 0.0);
        assert!(verdict.sentence.contains("parsing csv"), "they only wait for others: {}", verdict.sentence);
        let starved = [work(10.0, 1.0), step(StepKind::Decode, "gzip", 0.5, 18.0, 0.0)];
        assert_eq!(judge(&starved, 2.0, 0.0).limit, Limit::Source);
    }

    #[test]
    fn a_sort_is_limited_by_what_it_waits_for() {
        let sort = |busy: f64, scratch: f64, again: u64| {
            let sort = Step::new("ranked", StepKind::Transform, "sort, 20 runs");
            sort.add_busy(Duration::from_secs_f64(busy));
            sort.add_waiting_scratch(Duration::from_secs_f64(scratch));
            sort.add_spilled_as_planned(2_000_000_000);
            sort.add_spilled(again);
            [sort.snapshot()]
        };
        assert_eq!(judge(&sort(15.0, 1.0, 0), 19.0, 0.0).limit, Limit::Cores);
        assert_eq!(judge(&sort(15.0, 1.0, 1 << 30), 19.0, 0.0).limit, Limit::Memory);
        let verdict = judge(&sort(2.0, 7.0, 0), 3.0, 0.0);
        assert_eq!(verdict.limit, Limit::Scratch);
        assert_eq!(
            verdict.sentence,
            "limited by: scratch: sort (ranked) waited for it 70 % of the time, 2.00 GB written there, cores busy 15 %"
        );
        assert_eq!(judge(&sort(2.0, 1.0, 0), 3.0, 0.0).limit, Limit::Nothing);
    }

    #[test]
    fn a_step_that_spills_and_works_most_is_short_of_memory_even_on_busy_cores() {
        let sort = Step::new("ranked", StepKind::Transform, "sort");
        sort.add_busy(Duration::from_secs(15));
        sort.add_spilled(1 << 30);
        assert_eq!(judge(&[sort.snapshot()], 19.0, 0.0).limit, Limit::Memory);
    }
}
