//! A job to one plan: the steps as logical plans, then each sink (and each step that several use) as a physical one.
//!
//! ```text
//!  job graph ─▶ logical plan a step ─▶ inline what one step uses ─▶ optimise ─▶ physical plans ─▶ meters
//!              (steps.rs)              share what several use          ▲
//!                                      (shared.rs)                     └ columns and filters that its consumers want
//! ```
//! A step with one consumer is a view: columns and filters push through it into the readers. A step with several is
//! planned once, with the union of the columns and the OR of the filters that its consumers want.

mod buffer;
pub mod checked;
pub mod conditions;
mod distinct;
pub mod error_locator;
mod exact;
mod extension;
pub mod joins;
pub mod lenient;
pub mod lookup;
pub mod mapped;
pub mod meter;
mod nodes;
pub mod ordered;
pub(crate) mod rerun;
pub mod shared;
pub mod shared_scan;
pub mod sort;
pub mod sorted;
pub mod step;
pub mod steps;
mod unknown;
pub mod work;
