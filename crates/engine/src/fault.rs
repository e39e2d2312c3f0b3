//! Millstream's errors through DataFusion and back.
//!
//! A transient fault travels as an I/O error (the only kind that a distributed executor tries again), everything else
//! as an external one; on the way back out the innermost error of ours wins over whatever was wrapped around it.

use datafusion::error::DataFusionError;
use millstream_core::{Error, ErrorKind};

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
    let root = error.find_root();
    match root {
        DataFusionError::ResourcesExhausted(message) => Error::new(ErrorKind::Memory, "the memory budget is too small")
            .cause(first_sentence(message))
            .hint("raise `--memory`, or let the job keep fewer rows at once (fewer groups, a smaller join side)"),
        DataFusionError::ArrowError(cause, _) => Error::data("a value cannot be computed").cause(cause),
        DataFusionError::IoError(cause) => Error::io("scratch cannot be written or read", cause),
        DataFusionError::Execution(message) => Error::data("the transformation failed").cause(message),
        DataFusionError::Plan(message) => Error::job(message.clone()),
        DataFusionError::SchemaError(cause, _) => Error::job(cause.to_string()),
        DataFusionError::NotImplemented(message) => Error::job(format!("the SQL engine cannot do this: {message}")),
        DataFusionError::ExecutionJoin(cause) => Error::internal("a task failed").cause(cause),
        other => Error::internal("the SQL engine failed").cause(first_sentence(&other.to_string())),
    }
}

/// The first error of ours inside `error`.
fn ours(error: &DataFusionError) -> Option<Error> {
    if let DataFusionError::Collection(errors) = error {
        return errors.iter().find_map(ours);
    }
    let mut current: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = current {
        if let Some(found) = inner.downcast_ref::<Error>() {
            return Some(found.clone());
        }
        if let Some(DataFusionError::Collection(errors)) = inner.downcast_ref::<DataFusionError>() {
            return errors.iter().find_map(ours);
        }
        current = match inner.downcast_ref::<std::io::Error>() {
            Some(io) => io.get_ref().map(|inner| inner as &(dyn std::error::Error + 'static)),
            None => inner.source(),
        };
    }
    None
}

/// DataFusion adds backtraces and reports of its own behind the first line.
fn first_sentence(message: &str) -> &str {
    message.lines().next().unwrap_or_default()
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
    fn exhausted_memory_is_told_as_such() {
        let error = unwrap(DataFusionError::ResourcesExhausted("no".into()).context("x"));
        assert_eq!(error.kind(), ErrorKind::Memory);
    }
}
