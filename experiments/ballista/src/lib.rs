//! Experiments with Ballista as the engine of aggregates and joins over many machines: what the tests share.
//! Nothing of Millstream is used here: the nodes only behave as its own would.

pub mod cluster;
pub mod codec;
pub mod logging;
pub mod nodes;
pub mod process;
pub mod rows;
pub mod table;
