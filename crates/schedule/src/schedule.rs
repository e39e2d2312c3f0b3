//! A schedule that has no faults, ready to be asked.

use chrono::{DateTime, NaiveDate, TimeDelta, Utc};
use chrono_tz::Tz;
use millstream_core::spec::Fault;

use crate::cron::Cron;
use crate::due::ON_TIME;
use crate::spec::{CatchUp, CronEntries, Deadline, Overlap, ScheduleSpec};
use crate::triggers::{AfterSpec, FilesSpec, MessageSpec};
use crate::wall;

/// A schedule: what is asked for planned times and for what is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    pub(crate) crons: Vec<Cron>,
    pub(crate) zone: Tz,
    pub(crate) catch_up: CatchUp,
    pub(crate) within: TimeDelta,
    pub(crate) overlap: Overlap,
    deadline: Option<Deadline>,
    files: Option<FilesSpec>,
    after: Option<AfterSpec>,
    message: Option<MessageSpec>,
    resume: u32,
}

impl Schedule {
    /// Whether each time that was missed is caught up.
    pub fn catches_all_up(&self) -> bool {
        self.catch_up == CatchUp::All
    }

    /// The schedule that `spec` describes, or all that is wrong with it.
    pub fn new(spec: &ScheduleSpec) -> Result<Self, Vec<Fault>> {
        let mut faults = Vec::new();
        let mut crons = Vec::new();
        for (path, text) in spec.cron.iter().flat_map(CronEntries::texts) {
            match Cron::parse(text) {
                Ok(cron) => crons.push(cron),
                Err(fault) => faults.push(at(&path, fault)),
            }
        }
        if spec.cron.is_some() && crons.is_empty() && faults.is_empty() {
            faults.push(Fault::new("cron", "the list is empty").hint("every day at two is `0 2 * * *`"));
        }
        if spec.cron.is_none() && spec.files.is_none() && spec.after.is_none() && spec.message.is_none() {
            let fault = Fault::new("", "nothing starts the sequence");
            faults.push(fault.hint("add `cron`, `files`, `after` or `message`: every day at two is `cron: 0 2 * * *`"));
        }
        faults.extend(spec.files.iter().flat_map(FilesSpec::check));
        faults.extend(spec.message.iter().flat_map(MessageSpec::check));
        if spec.after.as_ref().is_some_and(|after| after.sequence().is_empty()) {
            faults.push(Fault::new("after", "the path is empty").hint("name the file of another sequence"));
        }
        if spec.resume > 100 {
            faults.push(Fault::new("resume", format!("{} is more than 100", spec.resume)).hint("write 100 or less"));
        }
        let zone = wall::zone(&spec.timezone).unwrap_or_else(|fault| {
            faults.push(at("timezone", fault));
            Tz::UTC
        });
        let within = TimeDelta::from_std(spec.within.0).unwrap_or(TimeDelta::MAX);
        if within < ON_TIME {
            let what = format!("`{}` is too short: a run could be too old before it starts", spec.within);
            faults.push(Fault::new("within", what).hint("write `1m` or more"));
        }
        if let Some(Deadline::After(duration)) = spec.deadline
            && duration.0.is_zero()
        {
            faults
                .push(Fault::new("deadline", "the deadline is the planned time itself").hint("write for example `2h`"));
        }
        let (catch_up, overlap, deadline) = (spec.catch_up, spec.overlap, spec.deadline);
        match faults.is_empty() {
            true => {
                let (files, after, message) = (spec.files.clone(), spec.after.clone(), spec.message.clone());
                let resume = spec.resume;
                Ok(Schedule { crons, zone, catch_up, within, overlap, deadline, files, after, message, resume })
            }
            false => Err(faults),
        }
    }

    /// Its time zone, in which people read its times.
    pub fn zone(&self) -> Tz {
        self.zone
    }

    /// The files that start it.
    pub fn files(&self) -> Option<&FilesSpec> {
        self.files.as_ref()
    }

    /// The sequence whose end starts it.
    pub fn after(&self) -> Option<&AfterSpec> {
        self.after.as_ref()
    }

    /// The queue whose messages start it.
    pub fn message(&self) -> Option<&MessageSpec> {
        self.message.as_ref()
    }

    /// What starts it beside the time, in words.
    pub fn triggers(&self) -> Vec<String> {
        let files = self.files.iter().map(|files| format!("files {}", files.pattern));
        let after = self.after.iter().map(|after| format!("the end of {}", after.sequence()));
        files.chain(after).chain(self.message.iter().map(MessageSpec::in_words)).collect()
    }

    /// How often a run that was killed is resumed.
    pub fn resumes(&self) -> u32 {
        self.resume
    }

    /// How old a planned time, a file or an end may be when its run starts.
    pub fn within(&self) -> TimeDelta {
        self.within
    }

    /// When the occurrence of this planned time is to have ended, if the schedule has a deadline.
    pub fn deadline(&self, planned: DateTime<Utc>) -> Option<DateTime<Utc>> {
        match self.deadline? {
            Deadline::At(time) => wall::first_at(self.zone, planned, time),
            Deadline::After(duration) => planned.checked_add_signed(TimeDelta::from_std(duration.0).ok()?),
        }
    }

    /// The first day at or after `from` on which one of its entries happens.
    pub(crate) fn first_day(&self, from: NaiveDate) -> Option<NaiveDate> {
        self.crons.iter().filter_map(|cron| cron.first_day(from)).min()
    }
}

fn at(path: &str, fault: Fault) -> Fault {
    Fault { path: Fault::new(path, "").path, ..fault }
}

#[cfg(test)]
mod tests {
    use crate::tests::{schedule, utc};

    #[test]
    fn a_deadline_is_in_the_time_zone_or_after_the_planned_time() {
        let nightly = schedule("0 2 * * *", "Europe/Berlin", "deadline: 03:00");
        assert_eq!(nightly.deadline(utc("2026-01-10T01:00")), Some(utc("2026-01-10T02:00")));
        // The planned time after the gap is the deadline itself; after the overlap's first pass two hours are left.
        assert_eq!(nightly.deadline(utc("2026-03-29T01:00")), Some(utc("2026-03-29T01:00")));
        assert_eq!(nightly.deadline(utc("2026-10-25T00:00")), Some(utc("2026-10-25T02:00")));
        // In the evening, the deadline is on the next day.
        let evening = schedule("0 20 * * *", "Europe/Berlin", "deadline: 03:00");
        assert_eq!(evening.deadline(utc("2026-01-10T19:00")), Some(utc("2026-01-11T02:00")));
        let after = schedule("0 2 * * *", "Europe/Berlin", "deadline: 90m");
        assert_eq!(after.deadline(utc("2026-03-28T01:00")), Some(utc("2026-03-28T02:30")));
        assert_eq!(schedule("0 2 * * *", "UTC", "").deadline(utc("2026-01-10T02:00")), None);
    }
}
