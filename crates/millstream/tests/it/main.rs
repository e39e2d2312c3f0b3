//! The library as a program uses it that embeds Millstream.

#![allow(clippy::unwrap_used)]

mod plans;
mod queries;
mod runs;
mod surface;
