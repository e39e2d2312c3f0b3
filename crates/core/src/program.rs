//! The messages of programs that a step runs.

use std::sync::Arc;

/// Takes the lines that a program writes to standard error, in order and without their ends. Bytes that are no UTF-8
/// are replaced, control characters escaped; what is left out at the end of a long line is an ellipsis.
pub type Lines = Arc<dyn Fn(&str) + Send + Sync>;

/// The same for the programs of several steps: takes the name of a step and a line.
pub type StepLines = Arc<dyn Fn(&str, &str) + Send + Sync>;
