//! Runs sequences: their steps in order, each job in a process of its own.
//!
//! ```text
//!  file ─read─▶ Sequence ──▶ Runner ──▶ what may start (millstream_job::sequence::state) ──▶ act ─┐
//!                              ▲  ╰──▶ events: the run's folder, and those who look on              │
//!                              ╰──────────────────── how each part has ended ◀────────────────────╯
//! ```
//! A *part* is what a step does once: the step itself, or one item of its loop. `read.rs` reads a sequence with the
//! files that it names, `progress.rs` is what its steps have come to, `events.rs` how that is kept, `resume.rs` how a
//! run begins where another one has stopped, `runner.rs` the loop, `values.rs` what texts and conditions are filled
//! with, `share.rs` how much memory a job gets. `surroundings.rs` what all parts share, `act` does one: it starts a
//! process, asks a database, sends something.
//!
//! The processes of a run end with it, however it ends, so that a run that is resumed never meets its own jobs. What a
//! job has loaded its own resume knows.

mod act;
mod events;
mod handover;
mod messages;
mod progress;
mod read;
mod resume;
mod runner;
mod share;
mod surroundings;
mod values;

use millstream_core::Registry;
use millstream_core::spec::SpecInfo;
use millstream_schedule::ScheduleSpec;

pub use events::{Ending, Event, Outcome, Seen};
pub use handover::Handover;
pub use messages::next_message;
pub use progress::{Item, Part, Progress, StepProgress};
pub use read::{ReadOptions, ReadSequence, check, is_sequence, mistakes, read, read_text};
pub use resume::{Asked, dry_run};
pub use runner::{Page, RunOptions, SequenceReport, chain, log_of_part, moment, run};
pub use values::{kind_and_what, when};

/// The reference of the files of sequences as one Markdown document, with what may stand under `schedule`.
pub fn reference(registry: &Registry) -> String {
    millstream_job::sequence_reference(registry, &SpecInfo::of::<ScheduleSpec>())
}
