//! Programs that work for a run.
//!
//! ```text
//!               ┌ program ─▶ its children     a process group: it ends as a whole
//!  starter ─────┤
//!               └ program ─▶ its children
//!  guard          kills all groups when this process has ended, however it ended
//! ```
//! `program.rs` says what is started (`script.rs`: which script an interpreter runs), `children.rs` starts programs and
//! ends them, `guard.rs` ends them when nobody else can (`shed.rs`: without holding the memory of this process),
//! `only_here.rs` keeps copies of this process from holding pipes open, and `stderr.rs` passes on what they write to
//! standard error. `python` and `command` pass rows through programs; what else goes through their pipes is up to the
//! caller. `unread.rs` holds what was read. What programs take of memory and processor counts in the run whose thread
//! has started them
//! ([`millstream_core::Processes`]). Linux only.

mod arrow_rows;
mod children;
pub mod command;
mod guard;
mod only_here;
mod program;
pub mod python;
mod script;
mod shed;
mod stderr;
mod unread;

pub use children::{Child, Children, Ending, after};
pub use program::Program;
