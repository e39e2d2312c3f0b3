//! The scheduler with real processes: a stand-in for `millstream run` that claims its occurrence, works and ends, and a
//! clock that the tests set.

mod kills;
mod many;
mod runs;
mod stand_in;
mod triggers;
mod world;
