//! A job to one plan: the steps as logical plans, then each sink (and each step that several use) as a physical one.
//!
//! ```text
//!  job graph ─▶ logical plan a step ─▶ inline what one step uses ─▶ optimise ─▶ physical plans ─▶ meters
//!              (steps.rs)              tee what several use          ▲
//!                                      (shared.rs)                   └ columns and filters that a tee's users want
//! ```
//! A step with one user is a view: columns and filters push through it into the readers. A step with several is planned
//! once, with the union of the columns and the OR of the filters that its users want.

pub(crate) mod again;
pub mod blame;
mod buffer;
mod distinct;
pub mod joins;
pub mod lenient;
pub mod mapped;
pub mod meter;
pub mod ordered;
pub mod shared;
pub mod sort;
pub mod sorted;
pub mod step;
pub mod steps;
pub mod tee;
mod unknown;
