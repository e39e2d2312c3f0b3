//! In place of `telemetry`, in builds without it: nobody observes a run.

use millstream::report::Report;
use millstream::{Engine, Error, Event, Failure, Job, Result, RunOptions};

use crate::output::Output;

/// What observes the runs of a command: nothing.
pub struct Telemetry;

impl Telemetry {
    /// Nothing begins.
    ///
    /// # Errors
    /// If metrics are wanted.
    pub fn begin(_: Output, metrics: Option<&str>, _: &Engine) -> Result<Self> {
        match metrics {
            None => Ok(Telemetry),
            Some(_) => Err(Error::job("this build serves no metrics").hint("use one with the feature `telemetry`")),
        }
    }

    /// A run that nothing observes.
    pub fn run(&self, _: &Job) -> Observed {
        Observed::default()
    }

    /// The same.
    pub fn replay(&self, _: &Job) -> Observed {
        Observed::default()
    }

    /// Nothing ends.
    pub fn end(&self) {}
}

/// A run that nothing observes.
#[derive(Default)]
pub struct Observed {}

impl Observed {
    /// The usual options.
    pub fn options(&self) -> RunOptions {
        RunOptions::default()
    }

    /// Ignores what happens.
    pub fn see(&self, _: &Event) {}

    /// Ignores the end.
    pub fn end(self, _: std::result::Result<Option<&Report>, &Failure>) {}
}
