//! What there is to know of job files as such: their schema, their reference, the order of messages about them.

pub use millstream_job::lint::tidy;
pub use millstream_job::sequence::schema as sequence_schema;
pub use millstream_job::{decode, machine_reference, reference, schema};
pub use millstream_sequencer::reference as sequence_reference;
