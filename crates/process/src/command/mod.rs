//! Programs that take rows on standard input and give rows on standard output.
//!
//! ```text
//!  batch ─encode─▶ ┌ program ┐ ─read─▶ answer ─parse─▶ rows, failures      row, batch, group
//!  rows  ─encode─▶ └ program ┘ ─────────────── parse─▶ rows                stream
//! ```
//! `form.rs` is how a job says the form of rows, `exchange.rs` writes rows, `answer.rs` finds where an answer ends and
//! reads its rows (`arrow_stream.rs` those of Arrow), `worker.rs` is the program, `silence.rs` finds out that it never
//! answers.
//!
//! | | an answer | behind a batch or group |
//! |---|---|---|
//! | lines, csv, json; `row` | a record for each row; a row is left out by `null` (json) or an empty line (csv) | |
//! | lines, csv, json; `batch`, `group` | any number of records | an empty line, both ways |
//! | arrow; `row`, `batch` | one record batch for each; with `row` it has as many rows | |
//! | arrow; `group` | any number of record batches | one without rows, both ways |

mod answer;
pub(crate) mod arrow_stream;
mod exchange;
mod form;
mod silence;
mod worker;

pub use exchange::{Encoder, Exchange, Records};
pub use form::ExchangeForm;
pub use worker::{Command, CommandWorker};
