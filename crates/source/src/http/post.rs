//! Sending a text to a URL: what is done after a run, and between jobs.

use bytes::Bytes;
use millstream_core::{Error, Result};
use reqwest::Method;
use tokio::runtime::Handle;

use super::client::{Client, Target};
use super::spec::HttpSpec;
use crate::retry::Tries;

/// What a server has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The status, which is 2xx.
    pub status: u16,
    /// The beginning of the body: the first 16 KiB, whatever is no text replaced.
    pub body: String,
}

/// Posts `json` to `url`, on the runtime `io`. What may pass is retried as `settings` say.
///
/// # Errors
/// If the server cannot be reached, or answers with another status than 2xx.
pub async fn post(io: &Handle, settings: &HttpSpec, url: &str, json: String) -> Result<()> {
    request(io, settings, "POST", url, json).await.map(drop)
}

/// Sends a request with `body` to `url`, on the runtime `io`. What may pass is retried as `settings` say. A body is
/// JSON unless the settings have a `Content-Type`.
///
/// # Errors
/// If the server cannot be reached, or answers with another status than 2xx.
pub async fn request(io: &Handle, settings: &HttpSpec, method: &str, url: &str, body: String) -> Result<Answered> {
    let method =
        Method::from_bytes(method.as_bytes()).map_err(|_| Error::internal("this is no method of HTTP").text(method))?;
    let target = Target::parse(url)?;
    let client = Client::shared(settings, "webhook", io)?;
    let body = Bytes::from(body);
    let exchanged =
        Tries::new(client.policy).repeat(url, || client.exchange(method.clone(), &target, body.clone())).await?;
    let (status, said) = exchanged;
    Ok(Answered { status, body: String::from_utf8_lossy(&said).into_owned() })
}
