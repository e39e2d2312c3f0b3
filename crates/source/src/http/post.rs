//! Sending a text to a URL, for what is done after a run.

use bytes::Bytes;
use millstream_core::Result;
use tokio::runtime::Handle;

use super::client::{Client, Target};
use super::spec::HttpSpec;
use crate::retry::Tries;

/// Posts `json` to `url`, on the runtime `io`. What may pass is retried as `settings` say.
///
/// # Errors
/// If the server cannot be reached, or answers with another status than 2xx.
pub async fn post(io: &Handle, settings: &HttpSpec, url: &str, json: String) -> Result<()> {
    let target = Target::parse(url)?;
    let client = Client::shared(settings, "webhook", io)?;
    let json = Bytes::from(json);
    Tries::new(client.policy).repeat(url, || client.post(&target, json.clone())).await
}
