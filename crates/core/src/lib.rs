//! What all crates of Millstream share.
//!
//! The way of the data, and where its steps live:
//!
//! ```text
//!  pattern ─list─▶ units ─open─▶ bytes ─decode─▶ text ─parse─▶ batches ─transform─▶ batches ─load─▶ target
//!           source                       codec           format           engine              sink
//! ```
//!
//! This crate owns the words between the steps ([`Unit`], [`ByteStream`], the component traits), the one
//! [`Error`], the memory [`Budget`], the [`Step`] counters, and [`spec`]: how a component says what the job file
//! may say of it. It knows no component and no query engine.

pub mod budget;
pub mod buffers;
pub mod clock;
pub mod codec;
pub mod columns;
pub mod contains;
pub mod counts;
pub mod delivery;
pub mod direct;
pub mod epochs;
pub mod error;
pub mod fail_point;
pub mod format;
pub mod helpers;
pub mod hint;
pub mod pace;
pub mod per_process;
mod position;
pub mod positions;
pub mod processes;
pub mod program;
pub mod queue;
pub mod redact;
pub mod registry;
pub mod reject;
pub mod sink;
pub mod source;
pub mod spec;
pub mod stable_hash;
pub mod step;
pub mod store;
pub mod threads;
pub mod transform;
pub mod types;
pub mod unit;
pub mod values;
pub mod views;

pub use budget::{Budget, Reservation};
pub use error::{Error, ErrorKind, Location, Result};
pub use helpers::HelperPool;
pub use pace::Pace;
pub use per_process::PerProcess;
pub use processes::{Processes, resident};
pub use registry::Registry;
pub use reject::RejectKind;
pub use source::ByteStream;
pub use step::{Step, StepKind, Steps};
pub use threads::ThreadGroup;
pub use unit::{Records, Unit};
