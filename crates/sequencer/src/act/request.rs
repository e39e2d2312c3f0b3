//! Requests: webhooks of steps.

use millstream_core::Result;
use millstream_core::spec::TextOrSecret;
use millstream_engine::sequences::Request;
use millstream_job::sequence::model::{Hidden, RequestAction};
use millstream_job::sequence::spec::Method;
use serde_json::json;

use super::letter::Report;
use crate::surroundings::{Done, Surroundings};
use crate::values::{Values, method};

/// A request whose texts are filled in.
pub(crate) struct Filled {
    url: TextOrSecret,
    request: Request,
}

impl Filled {
    /// Without a body of its own, it sends what the steps have come to so far.
    pub(super) fn new(values: &Values<'_>, action: &RequestAction, report: impl FnOnce() -> Report) -> Result<Self> {
        let hidden = |hidden: &Hidden| -> Result<TextOrSecret> {
            Ok(match hidden {
                Hidden::Text(template) => TextOrSecret::Text(values.fill(template)?),
                Hidden::Secret(secret) => TextOrSecret::Secret(secret.clone()),
            })
        };
        let body = match (&action.body, action.method) {
            (Some(body), _) => values.fill(body)?,
            (None, Method::Get | Method::Delete) => String::new(),
            (None, Method::Post | Method::Put | Method::Patch) => report().json.to_string(),
        };
        let headers = action.headers.iter().map(|(name, value)| Ok((name.clone(), hidden(value)?)));
        let request = Request {
            url: String::new(),
            method: method(action.method),
            body,
            headers: headers.collect::<Result<_>>()?,
            ca: action.ca.clone(),
        };
        Ok(Filled { url: hidden(&action.url)?, request })
    }

    pub(super) async fn send(self, surroundings: &Surroundings) -> Done {
        let url = match self.url.resolve() {
            Ok(url) => url,
            Err(error) => return error.into(),
        };
        match surroundings.engine.request(Request { url, ..self.request }).await {
            Ok(answered) => {
                let body = surroundings.secrets.hidden(&answered.body);
                let results = json!({"status": answered.status, "body": body});
                Done::with(results.as_object().cloned().unwrap_or_default())
            }
            Err(error) => surroundings.secrets.hidden_in(error).into(),
        }
    }
}
