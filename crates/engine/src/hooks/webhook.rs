//! A URL that gets the report of a run.

use std::time::Duration;

use millstream_core::Result;
use millstream_job::around::WebhookKeys;

use super::given::Given;

/// Sends the report to the URL of `webhook`; what may pass is retried within `timeout`.
#[cfg(feature = "http")]
pub(super) async fn send(webhook: &WebhookKeys, timeout: Duration, given: &Given<'_>) -> Result<()> {
    use millstream_core::spec::Duration as Time;
    use millstream_source::http::{HttpSpec, post};

    let settings = HttpSpec {
        headers: webhook.headers.clone(),
        ca: webhook.ca.clone(),
        timeout: Time(timeout),
        retries: 3,
        ..HttpSpec::default()
    };
    let io = tokio::runtime::Handle::current();
    let hint = "the server has to answer with a status of 2xx; `url`, `headers` and `ca` are in the hook";
    post(&io, &settings, &webhook.url.resolve()?, given.report.clone()).await.map_err(|error| error.hint(hint))
}

#[cfg(not(feature = "http"))]
pub(super) async fn send(_: &WebhookKeys, _: Duration, _: &Given<'_>) -> Result<()> {
    Err(millstream_core::Error::job("this build has no webhooks").hint("use one with the feature `http`"))
}
