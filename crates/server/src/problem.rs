//! Answers that are no success: a status, and an error as the command line reports it.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use millstream::report::error_json;
use millstream::{Error, ErrorKind};
use serde_json::json;

/// Why a request has no result.
#[derive(Debug)]
pub struct Problem {
    /// The status of the answer.
    pub status: StatusCode,
    /// What is wrong.
    pub error: Error,
}

impl Problem {
    /// A problem with this status.
    pub fn new(status: StatusCode, error: Error) -> Self {
        Problem { status, error }
    }

    /// The request makes no sense.
    pub fn bad(error: Error) -> Self {
        Problem::new(StatusCode::BAD_REQUEST, error)
    }

    /// What is asked for is not there.
    pub fn absent(error: Error) -> Self {
        Problem::new(StatusCode::NOT_FOUND, error)
    }

    /// It is not as the caller believes.
    pub fn conflict(error: Error) -> Self {
        Problem::new(StatusCode::CONFLICT, error)
    }

    /// The caller may not do that.
    pub fn forbidden(error: Error) -> Self {
        Problem::new(StatusCode::FORBIDDEN, error)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::Job => StatusCode::BAD_REQUEST,
            ErrorKind::Transient => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Problem { status, error }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let text = json!({"error": error_json(&self.error)}).to_string();
        let mut response = (self.status, text).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        }
        response
    }
}

/// The time, in milliseconds since 1970.
pub fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
