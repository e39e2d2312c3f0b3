//! Millstream as a Python package: the module `millstream._millstream`, which the Python sources of the package use.
//!
//! `engine.rs` owns the engines of the process, `wait.rs` waits without the interpreter's lock, `rows.rs` gives rows to
//! Python, `given.rs` takes rows from Python, `run.rs` runs jobs, `errors.rs` makes exceptions. What a user calls is in
//! `python/millstream`.

mod engine;
mod errors;
mod given;
mod job;
mod rows;
mod run;
mod wait;

use pyo3::prelude::*;

/// The part of the package `millstream` that is not written in Python.
#[pymodule]
mod _millstream {
    use std::ffi::OsString;

    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::job::job_text;
    #[pymodule_export]
    use crate::rows::{Batch, Batches, Frame, Frames, Rows};
    #[pymodule_export]
    use crate::run::{run, write};

    /// Runs the command `millstream` with these arguments, the first of which is the name of the program. Returns the
    /// exit code.
    #[pyfunction]
    fn command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
        py.detach(|| millstream_cli::main(arguments))
    }

    #[pymodule_init]
    fn begin(module: &Bound<'_, PyModule>) -> PyResult<()> {
        millstream_cli::allocator::return_soon();
        let at_exit = module.py().import("atexit")?;
        at_exit.call_method1("register", (wrap_pyfunction!(crate::wait::end, module)?,))?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
