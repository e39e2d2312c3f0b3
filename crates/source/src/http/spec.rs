//! What the job file may say of reading over HTTP.

use std::collections::BTreeMap;

use millstream_core::spec::{Duration, Fault, Secret, Spec, TextOrSecret};
use reqwest::header::{HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Objects on the web, over HTTP and HTTPS. All settings may be left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HttpSpec {
    /// Headers of every request: names with a text, or with a reference to a secret. Where the server redirects to
    /// another host, only `accept` and `accept-language` go there.
    pub headers: BTreeMap<String, TextOrSecret>,
    /// The login that is sent to the server. It is never sent to another host.
    pub auth: Option<Auth>,
    /// The path of a PEM file with certificates of authorities to trust besides the system's.
    #[schemars(length(min = 1))]
    pub ca: Option<String>,
    /// The most objects that are fetched from one server at once, from 1 to 256. It starts with eight, and grows as
    /// long as that brings more.
    #[schemars(range(min = 1, max = 256))]
    pub connections: usize,
    /// How long it may take to establish a connection.
    pub connect_timeout: Duration,
    /// How long the server may be silent, before its answer and between two pieces of it.
    pub timeout: Duration,
    /// How often in a row a request is retried after a transient fault: a broken connection, a time limit, or one of
    /// the statuses 408, 425, 429, 500, 502, 503 and 504. An attempt that brings 64 kB or more restarts the count.
    #[schemars(range(max = 100))]
    pub retries: u32,
    /// The longest pause between two attempts. A server that asks for a longer one by `Retry-After` gets it, up to five
    /// minutes.
    pub max_backoff: Duration,
    /// The `User-Agent` header of requests, instead of `millstream/VERSION`.
    pub user_agent: Option<String>,
}

/// How the server knows who is asking.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Auth {
    /// By a name and a password.
    Basic(Basic),
    /// By a token.
    Bearer(Bearer),
}

/// A name and a password.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Basic {
    /// The user's name.
    pub user: TextOrSecret,
    /// A reference to the password.
    pub password: Secret,
}

/// A token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bearer {
    /// A reference to the token.
    pub token: Secret,
}

impl Default for HttpSpec {
    fn default() -> Self {
        HttpSpec {
            headers: BTreeMap::new(),
            auth: None,
            ca: None,
            connections: 64,
            connect_timeout: Duration::from_seconds(10),
            timeout: Duration::from_seconds(60),
            retries: 5,
            max_backoff: Duration::from_seconds(30),
            user_agent: None,
        }
    }
}

/// Headers that decide how bodies are fetched, and so are not the job's to set.
const OWN_HEADERS: &[&str] = &[
    "accept-encoding",
    "connection",
    "content-length",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "proxy-authorization",
    "range",
    "te",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];

impl Spec for HttpSpec {
    const NAME: &'static str = "http";
    const SUMMARY: &'static str = "Objects on the web, over HTTP and HTTPS: connections are kept, transient faults are \
                                   retried, interrupted bodies are resumed.";
    const EXAMPLE: &'static str = "read: https://example.com/data/{000..999}.csv.gz\n\
                                   http:\n  \
                                   headers: {accept: text/csv, x-api-key: {secret: env:API_KEY}}\n  \
                                   connections: 100\n  \
                                   timeout: 30s\n\
                                   csv: {header: true}\n";

    fn check(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (name, value) in &self.headers {
            faults.extend(check_header(name, value, self.auth.is_some()).map(|(what, hint)| Fault {
                path: vec!["headers".into(), name.clone()],
                what,
                hint: Some(hint),
            }));
        }
        faults.extend(crate::connection_faults(self.connections, 256, self.connect_timeout, self.timeout));
        if self.user_agent.as_ref().is_some_and(|text| HeaderValue::from_str(text).is_err()) {
            faults.push(Fault::new("user_agent", "it has characters that a header cannot hold"));
        }
        faults
    }
}

fn check_header(name: &str, value: &TextOrSecret, authorised: bool) -> Option<(String, String)> {
    let Ok(known) = HeaderName::from_bytes(name.as_bytes()) else {
        return Some((
            format!("`{name}` is not a valid header name"),
            "a name consists of letters, digits and -".into(),
        ));
    };
    if OWN_HEADERS.contains(&known.as_str()) {
        let hint = if known == "user-agent" { "set `user_agent`" } else { "leave it out" };
        return Some((format!("the header `{name}` is set by Millstream itself"), hint.into()));
    }
    if authorised && known == "authorization" {
        return Some(("both this header and `auth` are given".into(), "leave one of them out".into()));
    }
    match value {
        TextOrSecret::Text(text) if HeaderValue::from_str(text).is_err() => {
            Some(("the text has characters that a header cannot hold".into(), "a header is one line".into()))
        }
        _ => None,
    }
}
