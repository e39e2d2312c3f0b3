//! Millstream's errors through DataFusion and back.
//!
//! A transient fault travels as an I/O error (the only kind that a distributed executor tries again), everything else
//! as an external one; on the way back out the innermost error of ours wins over whatever was wrapped around it.

use std::fmt;

use arrow::error::ArrowError;
use datafusion::error::DataFusionError;
use millstream_core::reject::RejectKind;
use millstream_core::{Error, ErrorKind};

use crate::reword::{Words, first_line, reword};

/// `error` as DataFusion carries it.
pub fn carry(error: Error) -> DataFusionError {
    match error.kind() {
        ErrorKind::Transient => DataFusionError::IoError(std::io::Error::other(error)),
        _ => DataFusionError::External(Box::new(error)),
    }
}

/// What DataFusion carried, or its own fault in our words.
pub fn unwrap(error: DataFusionError) -> Error {
    if let Some(ours) = ours(&error) {
        return ours;
    }
    if let DataFusionError::ArrowError(error, _) = error.find_root()
        && let ArrowError::IoError(_, cause) = error.as_ref()
    {
        return scratch_fault(cause);
    }
    match error.find_root() {
        DataFusionError::ResourcesExhausted(message) => Error::new(ErrorKind::Memory, "the memory budget is too small")
            .cause(first_line(message))
            .hint("raise `--memory`, or let the job keep fewer rows at once (fewer groups, a smaller join side)"),
        DataFusionError::IoError(cause) => scratch_fault(cause),
        DataFusionError::ExecutionJoin(cause) => Error::internal("a task failed").cause(cause),
        root @ (DataFusionError::Plan(_) | DataFusionError::SchemaError(..)) => {
            let words = reword(&root.strip_backtrace());
            told(Error::job(words.what.clone()), words)
        }
        DataFusionError::NotImplemented(message) => match reword(message) {
            words if words.known => told(Error::job(words.what.clone()), words),
            words => Error::job("the SQL engine cannot do this").cause(words.what),
        },
        root => {
            let words = reword(&root.strip_backtrace());
            match root {
                _ if words.known => told(Error::data(words.what.clone()), words),
                DataFusionError::ArrowError(..) => Error::data("a value cannot be computed").cause(words.what),
                DataFusionError::Execution(_) | DataFusionError::External(_) => {
                    Error::data("the transformation failed").cause(words.what)
                }
                _ => Error::internal("the SQL engine failed").cause(words.what),
            }
        }
    }
}

/// A fault of the disk where what does not fit in memory is kept.
fn scratch_fault(cause: &std::io::Error) -> Error {
    let error =
        Error::io("what does not fit in memory cannot be written to the scratch folder, or read from it", cause);
    match cause.kind() {
        std::io::ErrorKind::StorageFull => {
            error.hint("free some space there, choose another folder by `--scratch`, or allow more `--memory`")
        }
        _ => error,
    }
}

/// Whether an error of ours is inside `error`, and not one of an expression whose step is still to be found.
pub fn is_placed(error: &DataFusionError) -> bool {
    ours(error).is_some_and(|error| error.step_name().is_some() || error.reject_kind() != RejectKind::Expression)
}

/// `error` as a command without a job file tells it: a hint that names a setting says where there are settings.
pub fn without_job(error: Error) -> Error {
    const SETTINGS: &[&str] =
        &["of the source", "in `ca`", "raise `timeout`", "raise `connect_timeout`", "`max_rejects:"];
    let hint = match error.hint_text() {
        Some(hint) if hint.contains("`allow_empty") => hint.split(';').next().unwrap_or(hint).to_owned(),
        Some(hint) if SETTINGS.iter().any(|words| hint.contains(words)) => {
            format!("{hint}; that is a setting of a job file, and `millstream guess URL > job.yaml` writes one")
        }
        _ => return error,
    };
    error.hint(hint)
}

/// `error` with what else the words say.
fn told(error: Error, words: Words) -> Error {
    let error = words.text.into_iter().fold(error, Error::text);
    words.hint.into_iter().fold(error, Error::hint)
}

/// An error of an expression of ours, and the step that has the expression.
#[derive(Debug)]
struct OfStep {
    step: String,
    error: Error,
}

impl fmt::Display for OfStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for OfStep {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// `error`, of an expression of `step`, as DataFusion carries it. Where it comes out it is placed as any other.
pub fn carry_of_step(error: Error, step: &str) -> DataFusionError {
    DataFusionError::External(Box::new(OfStep { step: step.to_owned(), error }))
}

/// The step whose expression has failed, if that is known.
pub fn step_of(error: &DataFusionError) -> Option<&str> {
    inside::<OfStep>(error).map(|error| error.step.as_str())
}

/// The first error of ours inside `error`.
pub fn ours(error: &DataFusionError) -> Option<Error> {
    inside::<Error>(error).cloned()
}

/// The first `E` inside `error`.
fn inside<E: std::error::Error + 'static>(error: &DataFusionError) -> Option<&E> {
    if let DataFusionError::Collection(errors) = error {
        return errors.iter().find_map(inside);
    }
    let mut current: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = current {
        if let Some(found) = inner.downcast_ref::<E>() {
            return Some(found);
        }
        if let Some(DataFusionError::Collection(errors)) = inner.downcast_ref::<DataFusionError>() {
            return errors.iter().find_map(inside);
        }
        current = match inner.downcast_ref::<std::io::Error>() {
            Some(io) => io.get_ref().map(|inner| inner as &(dyn std::error::Error + 'static)),
            None => inner.source(),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn our_error_comes_back_whatever_is_wrapped_around_it() {
        for error in [Error::data("bad").line(7), Error::transient("later")] {
            let carried = DataFusionError::Shared(Arc::new(carry(error.clone()).context("outer")));
            let carried = DataFusionError::Collection(vec![carried]);
            assert_eq!(unwrap(carried).to_string(), error.to_string());
        }
    }

    #[test]
    fn a_transient_fault_is_an_io_error_at_its_root() {
        assert!(matches!(carry(Error::transient("later")), DataFusionError::IoError(_)));
        assert!(matches!(carry(Error::data("bad")), DataFusionError::External(_)));
    }

    #[test]
    fn a_value_that_cannot_be_converted_is_reported_with_its_text() {
        let cast = arrow::error::ArrowError::CastError("Cannot cast string 'x' to value of Int64 type".into());
        let error = unwrap(DataFusionError::ArrowError(Box::new(cast), None));
        assert_eq!((error.kind(), error.what()), (ErrorKind::Data, "the text cannot be converted to int64"));
        assert_eq!((error.offending_text(), error.cause_text()), (Some("x"), None));
        let error = unwrap(DataFusionError::Internal("Something odd happened.\nThis issue was likely".into()));
        assert_eq!((error.kind(), error.cause_text()), (ErrorKind::Internal, Some("something odd happened")));
    }

    #[test]
    fn commands_without_a_job_name_no_settings_as_if_there_were_any() {
        let hint = |error: Error| without_job(error).hint_text().map(str::to_owned);
        let empty = crate::read::no_match(&["x".to_owned()]);
        assert_eq!(hint(empty).as_deref(), Some("check the pattern"));
        let bomb = Error::data("too much").hint("raise `limits: {ratio: …}` of the source if you trust the data");
        assert!(hint(bomb).is_some_and(|hint| hint.contains("; that is a setting of a job file")));
        let reject = Error::data("no number").hint("to continue without such records: `max_rejects: 100` at `a`");
        assert!(hint(reject).is_some_and(|hint| hint.contains("; that is a setting of a job file")));
        assert_eq!(hint(Error::data("bad")), None);
    }

    #[test]
    fn exhausted_memory_is_reported_as_such() {
        let error = unwrap(DataFusionError::ResourcesExhausted("no".into()).context("x"));
        assert_eq!(error.kind(), ErrorKind::Memory);
    }
}
