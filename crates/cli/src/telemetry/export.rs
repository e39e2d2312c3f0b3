//! How spans reach a collector: OTLP over HTTP, with protobuf. It happens on threads of its own; what fails is noted,
//! for one warning at the end.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tokio::runtime::Handle;

/// What could not be exported.
#[derive(Debug, Default)]
pub struct Faults {
    /// Spans.
    pub lost: usize,
    /// Why the last request failed.
    pub cause: Option<String>,
}

/// Counts what could not be exported.
#[derive(Clone, Debug, Default)]
pub struct Noted(Arc<Mutex<Faults>>);

impl Noted {
    /// Takes what was noted so far.
    pub fn take(&self) -> Faults {
        self.change(std::mem::take)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Faults) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Sends requests on a runtime, whichever thread asks for it.
pub struct Client {
    client: reqwest::Client,
    io: Handle,
    noted: Noted,
}

impl Client {
    /// A client that trusts the system's authorities, and those of the file `ca`.
    ///
    /// # Errors
    /// Why there can be none.
    pub fn new(io: &Handle, ca: Option<&str>, noted: Noted) -> Result<Self, String> {
        let encryption = millstream_net::tls::configuration(ca).map_err(|error| error.to_string())?;
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(encryption)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("millstream/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| root_cause(&error))?;
        Ok(Client { client, io: io.clone(), noted })
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let answer = self.io.spawn(async move { client.send_bytes(request).await }).await?;
        let cause = match &answer {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("it answers {}", answer.status())),
            Err(error) => Some(root_cause(error.as_ref())),
        };
        self.noted.change(|faults| faults.cause = cause);
        answer
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// The innermost cause: the outer ones name the URL, which may have a password in it.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// An exporter that notes what it cannot export.
#[derive(Debug)]
pub struct Watched<E> {
    /// The exporter.
    pub exporter: E,
    /// What notes it.
    pub noted: Noted,
}

impl<E: SpanExporter> SpanExporter for Watched<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let done = self.exporter.export(batch).await;
        if done.is_err() {
            self.noted.change(|faults| faults.lost += spans);
        }
        done
    }

    fn shutdown_with_timeout(&self, timeout: std::time::Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
