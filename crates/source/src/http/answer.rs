//! The answer to a request: its head, and its body as a stream.

use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, StatusCode, response};
use http_body_util::BodyExt;

use super::client::root_cause;
use super::wire::WireBody;
use crate::retry::Fault;

/// An answer. If it is dropped before the end of its body, its connection is closed.
#[derive(Debug)]
pub(crate) struct Answer {
    head: response::Parts,
    body: Body,
}

enum Body {
    Wire(WireBody),
    Library(reqwest::Body),
}

impl Answer {
    pub(crate) fn status(&self) -> StatusCode {
        self.head.status
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// The next piece of the body; nothing at its end. It has no time limit.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, Fault> {
        let broken = |cause| Fault::transient("the connection broke in the middle of the body").cause(cause);
        match &mut self.body {
            Body::Wire(body) => body.chunk().await.map_err(|failure| broken(root_cause(&failure))),
            Body::Library(body) => loop {
                let Some(frame) = body.frame().await else { break Ok(None) };
                if let Ok(bytes) = frame.map_err(|error| broken(root_cause(&error)))?.into_data() {
                    break Ok(Some(bytes));
                }
            },
        }
    }
}

impl From<http::Response<WireBody>> for Answer {
    fn from(answer: http::Response<WireBody>) -> Self {
        let (head, body) = answer.into_parts();
        Answer { head, body: Body::Wire(body) }
    }
}

impl From<reqwest::Response> for Answer {
    fn from(answer: reqwest::Response) -> Self {
        let (head, body) = http::Response::from(answer).into_parts();
        Answer { head, body: Body::Library(body) }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Body::Wire(_) => "Wire",
            Body::Library(_) => "Library",
        })
    }
}
