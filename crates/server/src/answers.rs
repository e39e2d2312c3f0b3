//! What all answers need: bodies that are read within limits, work that may wait, and texts that are JSON.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use millstream::Error;
use serde_json::Value;

use crate::problem::Problem;
use crate::shared::Shared;

/// The largest body of what writes a file, of what signs somebody in, and of all else; and how long a client may take
/// to send it.
pub const LARGEST_FILE: usize = 10 << 20;
pub const LARGEST_WAY: usize = 4 << 10;
pub const LARGEST_BODY: usize = 256 << 10;
pub const LONGEST_BODY: Duration = Duration::from_secs(30);

/// The body of a request.
pub async fn read(body: Body, largest: usize) -> Result<bytes::Bytes, Problem> {
    match tokio::time::timeout(LONGEST_BODY, to_bytes(body, largest)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(cause)) => {
            let error = Error::refused(format!("the body of this request has at most {largest} bytes")).cause(cause);
            Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, error))
        }
        Err(_) => {
            let error = Error::refused(format!("the body did not come within {} s", LONGEST_BODY.as_secs()));
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, error))
        }
    }
}

/// An answer with this JSON.
pub fn json_answer(text: String) -> Response {
    let mut response = text.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Does `work`, which may wait for files or for the history, on a thread of its own.
pub async fn blocking<T: Send + 'static>(
    shared: &Arc<Shared>,
    work: impl FnOnce(&Shared) -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let shared = Arc::clone(shared);
    let failed = |cause| Problem::from(Error::internal("the answer was not finished").cause(cause));
    tokio::task::spawn_blocking(move || work(&shared)).await.map_err(failed)?
}

/// Passes on the error of a command, if there is one and no lint says more.
///
/// # Errors
/// That.
pub fn failed(answer: &Value) -> Result<(), Problem> {
    match answer["errors"].as_array().and_then(|errors| errors.first()) {
        Some(error) => Err(Problem::bad(error_of(error))),
        None => Ok(()),
    }
}

/// The error that a command has printed as JSON.
pub fn error_of(json: &Value) -> Error {
    let text = |key: &str| json[key].as_str().map(str::to_owned);
    let mut problem = Error::refused(text("what").unwrap_or_default());
    if let Some(cause) = text("cause") {
        problem = problem.cause(cause);
    }
    if let Some(hint) = text("hint") {
        problem = problem.hint(hint);
    }
    problem
}
