//! Programs that work for a run.
//!
//! ```text
//!               ┌ program ─▶ its children     a process group: it ends as a whole
//!  starter ─────┤
//!               └ program ─▶ its children
//!  guard          kills all groups when this process has ended, however it ended
//! ```
//! `program.rs` says what is started, `children.rs` starts programs and ends them, `guard.rs` ends them when nobody
//! else can, `stderr.rs` passes on what they write to standard error, and `memory.rs` measures them. `python` and
//! `command` pass rows through programs; what else goes through their pipes is up to the caller. Linux only.

mod arrow_rows;
mod children;
pub mod command;
mod guard;
mod memory;
mod program;
pub mod python;
mod stderr;

pub use children::{Child, Children, Ending};
pub use program::Program;
