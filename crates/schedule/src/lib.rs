//! Schedules: at which times a sequence is to start, and what is due at a moment.
//!
//! ```text
//!  spec ──▶ Schedule ──times──▶ planned times
//!              │ ──due──▶ start, wait, skip, cancel, missed; when to look again
//!              └ ──deadline──▶ outlook: whether it will be missed, by the durations so far
//! ```
//! It owns these decisions and nothing else: no clock, no file, no thread. The moment is an argument, and so is what is
//! known of earlier occurrences. The scheduler is a loop around it, and a test passes a year within seconds. Starting
//! processes and keeping occurrences is the scheduler's. It sleeps at most until [`Due::look_again`], and wakes earlier
//! when a run ends, when a file changes and when the clock is set.
//!
//! Moments are `DateTime<Utc>`. An occurrence is a sequence and a planned time; here, with one sequence, it is its
//! planned time.

mod cron;
mod deadline;
mod due;
mod lints;
mod schedule;
mod spec;
mod times;
mod triggers;
mod wall;

#[cfg(test)]
mod tests;

pub use deadline::{Outlook, outlook};
pub use due::{Due, Missed, MissedBecause, ON_TIME, Skipped, SkippedBecause, State};
pub use lints::schedule_lints;
pub use schedule::Schedule;
pub use spec::{CatchUp, CronEntries, Deadline, Overlap, ScheduleSpec};
pub use times::Times;
pub use triggers::{AfterEnd, AfterKeys, AfterSpec, FilesSpec, MessageSpec};
