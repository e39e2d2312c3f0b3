//! The rows that workers compute.
//!
//! ```text
//!  row, batch  batch ─▶ worker ─▶ rows ──────────────────────────────▶ rows
//!              (rows.rs)   └ failed ─▶ once more ─▶ the row that the worker was at, or halves ─▶ one row ─▶ reject
//!  group       rows in order of the key ─▶ whole groups (groups.rs) ─▶ as above
//!                                       └▶ a group too large to hold ─▶ passed through a worker (pass.rs)
//!  stream      rows ─▶ passed through a worker (pass.rs)
//! ```
//! `exec.rs` is the node of the plan, `function.rs` calls workers from SQL, `pool.rs` are the workers of a step.
//! `call_rows.rs` says how many rows they are given at once, and `lost.rs` at which rows of a function for SQL they
//! have ended.

mod call_rows;
mod exec;
mod function;
mod groups;
mod lost;
mod pass;
mod pool;
mod rows;

pub use exec::WorkExec;
pub use function::{arguments, called_by, sql_function};
pub use pool::Pool;
