//! The attempts of a logical run: what has to hold before the first one, and what follows on one that fails.

use std::sync::Arc;

use futures::executor::block_on;
use millstream_core::{Error, ErrorKind, Result};
use millstream_job::around::RetryRun;
use millstream_job::{Around, Job};
use millstream_state::{Ending, ShownWait, WaitingRun, default_folder};

use super::epochs::is_service;
use super::events::{Event, Observer};
use super::execute::{execute_from, turn};
use super::hours;
use super::passes::together;
use super::work::interruption;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::job_plan::Runnable;
use crate::options::{Cancel, RunOptions};
use crate::report::Report;
use crate::require::Unmet;
use crate::resume::ResumePoint;

/// A logical run, attempt by attempt.
pub(super) struct Attempts<'a> {
    engine: &'a Engine,
    work: Runnable,
    pub(super) options: &'a RunOptions,
    observer: &'a Observer,
    /// Where the last attempt stands; `None` before the first.
    point: Option<ResumePoint>,
    /// What runs have done that only brought sinks to the files that others have.
    caught_up: Option<Report>,
    /// The job at the time of the logical run.
    pub(super) job: Arc<Job>,
    /// How many there were.
    pub(super) count: u32,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(engine: &'a Engine, work: Runnable, options: &'a RunOptions, observer: &'a Observer) -> Self {
        let job = Arc::clone(&work.job);
        Attempts { engine, work, options, observer, point: None, caught_up: None, job, count: 0 }
    }

    /// The name of the last attempt.
    pub(super) fn run(&self) -> Option<&str> {
        self.point.as_ref().map(|point| point.run.as_str())
    }

    /// Makes attempts until one succeeds, or until there are to be no more.
    pub(super) fn make(&mut self) -> Result<Report, Failure> {
        let mut served: Option<Report> = None;
        let mut was_left = false;
        loop {
            match hours::wait(&self.job.around, &self.options.cancel, |hours, until| self.tell(hours, until)) {
                Ok(()) => {}
                // A service that is stopped while it waits has done its work.
                Err(_) if is_service(&self.job) => {
                    let nothing = Report { job: self.job.path().to_owned(), nothing_new: true, ..Report::default() };
                    return Ok(self.counted(served.unwrap_or(nothing)));
                }
                Err(_) => return Err(self.stopped_while_waiting().into()),
            }
            if !was_left {
                self.count += 1;
            }
            let around = self.job.around.clone();
            let (made, hours_ended) = hours::within(&around, &self.options.cancel, |cancel| self.make_one(cancel))?;
            was_left = hours_ended && !self.options.cancel.is_cancelled();
            match made {
                Ok(report) => {
                    let report = match served.take() {
                        Some(earlier) => together(earlier, report),
                        None => report,
                    };
                    if !(was_left && is_service(&self.job)) {
                        return Ok(self.counted(report));
                    }
                    served = Some(report);
                    // It was stopped, and has nothing to resume.
                    self.point = None;
                }
                Err(failure) if was_left && is_interruption(&failure) => {}
                Err(failure) => {
                    was_left = false;
                    let Some((retry, error)) = self.retry(&failure) else { return Err(failure) };
                    let (attempt, of, wait) = (self.count, retry.count + 1, retry.wait.0);
                    self.observer.report(Event::Retrying { attempt, of, wait, error: error.clone() });
                    hours::pause(wait, &self.options.cancel)?;
                }
            }
        }
    }

    /// Says that the run waits for its hours, to those who look on, and to those who ask for the runs of the machine
    /// until the result is dropped.
    fn tell(&self, hours: String, until: String) -> Option<ShownWait> {
        let has_begun = self.count > 0 || self.options.resume;
        let of_step = self.options.of_step.clone();
        let waits = WaitingRun::new(self.job.path(), of_step, hours.clone(), until.clone(), has_begun);
        let state = self.engine.machine().state.clone().or_else(default_folder);
        // What cannot be shown is waited for all the same.
        let shown = state.and_then(|state| waits.show(&state).ok());
        self.observer.report(Event::OutsideHours { hours, until, has_begun });
        shown
    }

    /// The error of a run that is cancelled while it waits for its hours.
    fn stopped_while_waiting(&self) -> Error {
        let what = "the run was stopped while it waited for its hours";
        if self.count == 0 && !self.options.resume {
            return Error::new(ErrorKind::Interrupted, format!("{what}; nothing of it had begun"));
        }
        let hint = format!("`millstream run --resume {}` continues it", self.job.path());
        Error::new(ErrorKind::Interrupted, what).hint(hint)
    }

    fn counted(&self, report: Report) -> Report {
        Report { attempts: self.count, ..report }
    }

    /// Makes one, which `cancel` cancels.
    fn make_one(&mut self, cancel: Cancel) -> Result<Report, Failure> {
        let engine = self.engine;
        let options = RunOptions { cancel, ..self.options.clone() };
        let work = engine.fresh(self.work.clone())?;
        let turn = turn(engine, &options, self.observer)?;
        let (point, is_first) = match self.point.take() {
            None => (ResumePoint::find(&work.job, engine.machine(), &options, None)?, true),
            Some(last) => (last.next()?.cancelled_by(&options.cancel), false),
        };
        let point = self.point.insert(point);
        let work = engine.at(&work, point.moment)?;
        self.job = Arc::clone(&work.job);
        if is_first
            && point.begins(&work.job)
            && let Some(unmet) = unmet(engine, &work.job, &options.cancel)?
        {
            return not_begun(point, &work.job, &unmet);
        }
        let at = |point: &ResumePoint| engine.at(&work, point.moment);
        execute_from(point, &mut self.caught_up, &at, engine, None, self.observer, &turn)
    }

    /// How a run goes on that has failed, and the error that may pass; `None` if it does not.
    fn retry<'f>(&self, failure: &'f Failure) -> Option<(RetryRun, &'f Error)> {
        let Around { retry_run, .. } = &self.job.around;
        let retry = retry_run.filter(|retry| self.count <= retry.count)?;
        let is_read_once = self.job.sources.iter().any(|source| source.reads_once().is_some());
        let may_pass = failure.lints.is_empty() && failure.errors.iter().all(Error::may_pass);
        let error = failure.errors.first()?;
        (may_pass && !is_read_once && self.point.is_some()).then_some((retry, error))
    }
}

/// The first requirement of `job` that does not hold.
fn unmet(engine: &Engine, job: &Arc<Job>, cancel: &Cancel) -> Result<Option<Unmet>, Failure> {
    if job.around.requirements.is_empty() {
        return Ok(None);
    }
    block_on(async {
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(interruption().into()),
            unmet = engine.unmet(job) => unmet,
        }
    })
}

/// Enters a run into the run history that does not begin, since a requirement does not hold.
fn not_begun(point: &ResumePoint, job: &Job, unmet: &Unmet) -> Result<Report, Failure> {
    let live = point.enter()?;
    let Some(why) = unmet.skips() else {
        let error = unmet.error();
        live.map(|live| live.end(Some(&error), &Ending::default())).transpose()?;
        return Err(error.into());
    };
    live.map(|live| live.skip(&why)).transpose()?;
    Ok(Report {
        job: job.path().to_owned(),
        run: point.run.clone(),
        began: job.around.moment.text(),
        skipped_run: Some(why),
        ..Report::default()
    })
}

/// Whether `failure` is only that the run was cancelled.
fn is_interruption(failure: &Failure) -> bool {
    let is_one = |error: &Error| error.kind() == ErrorKind::Interrupted;
    failure.lints.is_empty() && !failure.errors.is_empty() && failure.errors.iter().all(is_one)
}
