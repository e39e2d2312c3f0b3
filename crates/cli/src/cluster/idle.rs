//! When a machine may work for others: in its hours, and while nobody else needs it.

use std::time::{Duration, Instant};

use millstream::cluster::Hours;
use rustix::time::{ClockId, clock_gettime};

/// How often it is looked at what other programs do.
pub const LOOK: Duration = Duration::from_secs(1);

/// Over about this time the use of other programs is averaged: a short burst is no reason to leave.
const WINDOW: f64 = 20.0;

/// A machine that was left is joined again when others use this share of the limit.
const AGAIN: f64 = 0.8;

/// When to work.
pub struct Idle {
    hours: Option<Hours>,
    max_load: Option<f64>,
    load: Load,
    is_busy: bool,
}

impl Idle {
    /// In these hours, as long as others use fewer than `max_load` cores.
    pub fn new(hours: Option<Hours>, max_load: Option<f64>) -> Self {
        Idle { hours, max_load, load: Load::default(), is_busy: false }
    }

    /// Why not to work now, if there is a reason.
    pub fn why_not(&mut self) -> Option<String> {
        if let Some(hours) = self.hours.filter(|hours| !hours.have(minute_of_day())) {
            return Some(format!("it works at {hours}"));
        }
        let limit = self.max_load?;
        let others = self.load.look()?;
        self.is_busy = others >= if self.is_busy { limit * AGAIN } else { limit };
        self.is_busy.then(|| format!("other programs use {others:.1} cores"))
    }
}

/// The minute of the day by the clock of this machine, in its time zone.
fn minute_of_day() -> u32 {
    use chrono::Timelike;
    let now = chrono::Local::now();
    now.hour() * 60 + now.minute()
}

/// How many cores other programs use, on average.
#[derive(Default)]
struct Load {
    last: Option<Seen>,
    average: Option<f64>,
}

/// Processor time so far, in seconds.
#[derive(Clone, Copy)]
struct Seen {
    at: Instant,
    all: f64,
    own: f64,
}

impl Load {
    /// The average so far; `None` before there are two looks.
    fn look(&mut self) -> Option<f64> {
        let all = busy(&fs_err::read_to_string("/proc/stat").ok()?)?;
        let own = clock_gettime(ClockId::ProcessCPUTime);
        let seen = Seen { at: Instant::now(), all, own: own.tv_sec as f64 + own.tv_nsec as f64 / 1e9 };
        if let Some(last) = self.last.replace(seen) {
            let elapsed = (seen.at - last.at).as_secs_f64().max(1e-3);
            let others = (((seen.all - last.all) - (seen.own - last.own)) / elapsed).max(0.0);
            let weight = 1.0 - (-elapsed / WINDOW).exp();
            self.average = Some(self.average.map_or(others, |average| average + weight * (others - average)));
        }
        self.average
    }
}

/// The processor time of all programs in seconds, as the first line of `/proc/stat` says, without those of the lowest
/// priority.
fn busy(stat: &str) -> Option<f64> {
    let numbers = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<f64> = numbers.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal
    let [user, _, system, _, _, irq, softirq, steal] = *ticks.first_chunk::<8>()?;
    Some((user + system + irq + softirq + steal) / rustix::param::clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_use_is_read_without_what_waits() {
        let stat = "cpu  1000 50 500 90000 300 10 20 70 0 0\ncpu0 1 2 3 4\n";
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(busy(stat), Some(1600.0 / ticks));
        assert_eq!(busy("intr 1"), None);
    }

    #[test]
    fn outside_of_its_hours_and_beside_others_it_does_not_work() {
        let now = minute_of_day();
        let time = |minute: u32| format!("{:02}:{:02}", minute % 1440 / 60, minute % 60);
        let around: Hours = format!("{}-{}", time(now + 1430), time(now + 10)).parse().expect("hours");
        let later: Hours = format!("{}-{}", time(now + 10), time(now + 20)).parse().expect("hours");
        assert_eq!(Idle::new(Some(around), None).why_not(), None);
        assert_eq!(Idle::new(Some(later), None).why_not(), Some(format!("it works at {later}")));
        let mut never = Idle::new(None, Some(-1.0));
        assert_eq!(never.why_not(), None, "nothing is known yet");
        assert!(never.why_not().expect("others use 0 cores or more").starts_with("other programs use"));
        let mut always = Idle::new(None, Some(1e9));
        assert_eq!((always.why_not(), always.why_not()), (None, None));
    }
}
