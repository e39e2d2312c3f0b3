//! The machine: cores, memory, scratch disks and the state folder, detected or from a machine file.

pub use millstream_core::resident;
pub use millstream_engine::machine::{Asked, Machine, host_name};
pub use millstream_job::machine::{MachineFile, load};
