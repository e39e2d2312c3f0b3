//! What the counters of a run were a while ago. A verdict about all of the time of a run that does not end would be one
//! about weeks in which there was nothing to do.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use millstream_core::step::StepSnapshot;
use millstream_core::threads::ProcessorUse;

/// So much time a verdict is about, or a little more.
const WINDOW: Duration = Duration::from_secs(60);

/// The time between two moments that are kept.
const BETWEEN: Duration = Duration::from_secs(10);

/// The counters at one moment.
#[derive(Debug, Clone)]
pub struct Moment {
    /// The time since the run began.
    pub elapsed: Duration,
    /// Those of all steps.
    pub steps: Vec<StepSnapshot>,
    /// What of the processor the run has had.
    pub processor: ProcessorUse,
    /// How long readers were held back.
    pub held: Duration,
    /// How long the throttle of the job held sources back.
    pub throttled: Duration,
}

impl Moment {
    /// What happened since `earlier`. Steps that were not there then began with nothing.
    pub fn since(&self, earlier: &Moment) -> Moment {
        let step = |(number, step): (usize, &StepSnapshot)| match earlier.steps.get(number) {
            Some(before) if (&before.name, before.kind) == (&step.name, step.kind) => step.since(before),
            _ => step.clone(),
        };
        Moment {
            elapsed: self.elapsed.saturating_sub(earlier.elapsed),
            steps: self.steps.iter().enumerate().map(step).collect(),
            processor: ProcessorUse {
                busy: self.processor.busy.saturating_sub(earlier.processor.busy),
                delayed: self.processor.delayed.saturating_sub(earlier.processor.delayed),
            },
            held: self.held.saturating_sub(earlier.held),
            throttled: self.throttled.saturating_sub(earlier.throttled),
        }
    }
}

/// The moments of the last while.
#[derive(Debug, Default)]
pub(super) struct Window {
    moments: VecDeque<(Instant, Moment)>,
}

impl Window {
    /// Keeps what `moment` gives, if the last one is old enough.
    pub(super) fn keep(&mut self, now: Instant, moment: impl FnOnce() -> Moment) {
        if self.moments.back().is_some_and(|(at, _)| now.duration_since(*at) < BETWEEN) {
            return;
        }
        self.moments.push_back((now, moment()));
        while self.moments.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= WINDOW) {
            self.moments.pop_front();
        }
    }

    /// The first moment of the window; `None` if the run has not lasted longer.
    pub(super) fn first(&self) -> Option<Moment> {
        let (first, last) = (self.moments.front()?, self.moments.back()?);
        (last.0.duration_since(first.0) >= WINDOW).then(|| first.1.clone())
    }
}

#[cfg(test)]
mod tests {
    use millstream_core::{Step, StepKind};

    use super::*;

    fn moment(seconds: u64, busy: u64) -> Moment {
        let step = Step::new("o", StepKind::Load, "sqlite");
        step.add_waiting_output(Duration::from_secs(busy));
        let processor = ProcessorUse { busy: Duration::from_secs(busy), delayed: Duration::ZERO };
        Moment {
            elapsed: Duration::from_secs(seconds),
            steps: vec![step.snapshot()],
            processor,
            held: Duration::ZERO,
            throttled: Duration::ZERO,
        }
    }

    #[test]
    fn the_window_holds_the_last_minute_of_a_long_run() {
        let (begun, mut window) = (Instant::now(), Window::default());
        for second in 0..50 {
            window.keep(begun + Duration::from_secs(second), || moment(second, 0));
        }
        assert!(window.first().is_none(), "the run is not older than that");
        // It idles for an hour, and then waits for its target.
        for second in 50..3_700 {
            window.keep(begun + Duration::from_secs(second), || moment(second, second.saturating_sub(3_600)));
        }
        assert!(window.moments.len() <= 8, "{}", window.moments.len());
        let last = moment(3_700, 100).since(&window.first().expect("it is long"));
        assert!((60..=80).contains(&last.elapsed.as_secs()), "{:?}", last.elapsed);
        assert_eq!(last.steps[0].waiting_output, last.elapsed.as_secs_f64());
        assert_eq!(last.processor.busy, last.elapsed);
    }
}
