//! The scheduler: finds the sequences of a folder that have a schedule, starts them when they are due, each in a
//! process of its own, and records how they end.
//!
//! ```text
//!  folder ──▶ sequences ──look──▶ decisions ──▶ state ──▶ slots ──▶ children
//!                 ▲ files, after ┘                 ▲                    │
//!                 └────────────── follow ──────────┴──── claims, ends ──┘
//! ```
//! What is due is decided by [`millstream_schedule`], and kept in [`millstream_state::occurrences`] before anything is
//! started. The children do not depend on the scheduler: they have sessions of their own, claim their occurrences, and
//! store how they end. So the scheduler may be killed at any moment: the next one reads what was decided, finds the
//! children that live by their locks, and starts what was decided and not claimed.
//!
//! `scheduler.rs` is the loop; `folder.rs` finds files, `entry.rs` is a sequence as the scheduler knows it, `look.rs`
//! asks its schedule, `files.rs` and `after.rs` look at its other triggers, `messages.rs` and `hear.rs` wait for those
//! of queues, `slots.rs` starts processes, `follow.rs` sees how they end, `late.rs` looks at deadlines, `logs.rs` keeps
//! what they print, `list.rs` shows what comes next, `words.rs` says what happens.
//! There is no async runtime, and nothing of the engine: at rest it is one thread.

mod after;
mod entry;
mod files;
mod folder;
mod follow;
mod hear;
mod late;
mod list;
mod logs;
mod look;
mod messages;
mod notice;
mod scheduler;
mod slots;
mod words;

pub use list::{Listed, list};
pub use logs::kept as log_of;
pub use messages::{Listen, ListenFn, Listening};
pub use notice::{Named, Notice};
pub use scheduler::{CheckFn, Checker, Clock, End, Options, Scheduler, Stop, wall_clock};
pub use words::{Said, path_from};
