//! Connects the store crate, which names objects and signs requests, with our own client, which does everything else:
//! connections, time limits, redirects, `Retry-After`, and faults.
//!
//! ```text
//!  transfer ─part─▶ store crate ─signed request─▶ bridge ─▶ client ─▶ server
//!     ▲                                             │
//!     └────────────── answer ◀──── slot ◀───────────┘
//! ```
//!
//! The store crate ignores `Retry-After`, rewords faults, and is too strict with answers. So the answers for objects
//! and listings bypass it: the request carries a [`Slot`], in which the bridge puts the answer, and the crate gets a
//! failure. A fault passes through the crate as the cause of its error, and is extracted again. The crate's own retries
//! are off.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{ClientOptions, Extensions, RetryConfig};
use reqwest::header::{ACCEPT_ENCODING, HeaderMap, HeaderValue, IF_MATCH, RANGE};
use url::Url;

use super::page;
use crate::http::answer::Answer;
use crate::http::client::{Client, Question, find, root_cause};
use crate::retry::Fault;

/// The most bytes of an answer that the store crate reads itself.
const ANSWER_LIMIT: usize = 1 << 20;

/// The time limit for metadata servers, which answer at once, or do not exist.
const METADATA_TIME: Duration = Duration::from_secs(2);

/// Where the bridge leaves an answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slot(Arc<Mutex<Option<Answer>>>);

impl Slot {
    /// The extensions of a request, with this slot.
    pub(crate) fn extensions(&self) -> Extensions {
        let mut extensions = Extensions::new();
        extensions.insert(self.clone());
        extensions
    }

    /// The answer, or the fault among the causes of `told`.
    pub(crate) fn answer<T>(self, told: object_store::Result<T>) -> Result<Answer, Fault> {
        let left = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (left, told) {
            (Some(answer), _) => Ok(answer),
            (None, Err(error)) => Err(fault_of(&error)),
            (None, Ok(_)) => Err(Fault::permanent("the request was not sent")),
        }
    }
}

/// The fault among the causes of the store crate's error.
pub(crate) fn fault_of(error: &object_store::Error) -> Fault {
    match find::<Fault>(error) {
        Some(fault) => fault.clone(),
        None => Fault::permanent("the request cannot be built").cause(root_cause(error)),
    }
}

/// No retries by the store crate.
pub(crate) fn once() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

/// Our client as a client of the store crate.
#[derive(Debug, Clone)]
pub(crate) struct Bridge {
    pub(crate) client: Arc<Client>,
    /// The `Accept-Encoding` with which objects come as they are stored.
    pub(crate) as_stored: &'static str,
    /// The hint for missing credentials.
    pub(crate) hint: &'static str,
}

impl HttpConnector for Bridge {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Bridge {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let slot = request.extensions().get::<Slot>().cloned();
        let question = self.question(request).await?;
        if let Some(slot) = slot {
            let answer = self.client.ask(question).await.map_err(failed)?;
            *slot.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
            return Err(failed(HandedPast));
        }
        let asked = self.whole(question);
        asked.await.map_err(failed)
    }
}

impl Bridge {
    async fn question(&self, request: HttpRequest) -> Result<Question, HttpError> {
        let (mut parts, body) = request.into_parts();
        let url = Url::parse(&parts.uri.to_string()).map_err(failed)?;
        // Not signed: the signature is over the host, the path and the headers that the crate has set.
        parts.headers.entry(ACCEPT_ENCODING).or_insert(HeaderValue::from_static(self.as_stored));
        let mut elsewhere = HeaderMap::new();
        for name in [ACCEPT_ENCODING, RANGE, IF_MATCH] {
            elsewhere.extend(parts.headers.get(&name).cloned().map(|value| (name, value)));
        }
        let body = body.collect().await?.to_bytes();
        Ok(Question { method: parts.method, url, headers: parts.headers, elsewhere, body, secrets: Vec::new() })
    }

    /// A short answer, for the store crate itself: credentials, uploads.
    async fn whole(&self, question: Question) -> Result<HttpResponse, Fault> {
        if is_metadata(&question.url) {
            let asked = tokio::time::timeout(METADATA_TIME, self.client.ask(question)).await;
            let answer = asked.ok().and_then(Result::ok).ok_or_else(|| self.no_credentials())?;
            return self.buffered(answer).await;
        }
        self.buffered(self.client.ask(question).await?).await
    }

    async fn buffered(&self, answer: Answer) -> Result<HttpResponse, Fault> {
        let (status, headers) = (answer.status(), answer.headers().clone());
        let body = self.client.body(answer, ANSWER_LIMIT).await?;
        // S3 keeps the connection alive while it combines parts, and may report an error only then.
        if let Some(parse_error) = page::error(&body) {
            let fault = Fault::transient(format!("the server answers {} and then an error", status.as_u16()));
            return Err(Fault { status: Some(status.as_u16()), text: Some(parse_error), ..fault });
        }
        let mut response = HttpResponse::new(HttpResponseBody::from(body));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        Ok(response)
    }

    /// The fault if no credentials are set, and the machine has no role of a cloud.
    fn no_credentials(&self) -> Fault {
        Fault::permanent("there are no credentials").hint(self.hint)
    }
}

/// Whether the URL is a cloud's metadata server, which gives credentials of a role.
fn is_metadata(url: &Url) -> bool {
    url.host_str().is_some_and(|host| host.starts_with("169.254.") || host == "metadata.google.internal")
}

/// An error that the store crate does not retry.
fn failed(cause: impl std::error::Error + Send + Sync + 'static) -> HttpError {
    HttpError::new(HttpErrorKind::Decode, cause)
}

/// The error for the store crate if the answer is in the slot.
#[derive(Debug)]
struct HandedPast;

impl fmt::Display for HandedPast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the answer was handed past the store")
    }
}

impl std::error::Error for HandedPast {}
