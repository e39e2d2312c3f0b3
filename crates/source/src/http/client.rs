//! One request and its answer: connections, headers and secrets, redirects, and faults. The object stores also send
//! through it, with headers of their own, which sign requests.
//!
//! Redirects are followed here and not by the library, which strips the usual headers when the host changes but not
//! those that a job adds. `transfer.rs` reads bodies, `retry.rs` decides on retries.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use millstream_core::spec::TextOrSecret;
use millstream_core::{Error, Result};
use reqwest::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
    LOCATION, RETRY_AFTER,
};
use reqwest::{Method, RequestBuilder, StatusCode};
use tokio::runtime::{Handle, Id};
use url::Url;

use super::answer::Answer;
use super::retry::{Fault, Policy, is_transient, retry_after};
use super::spec::{Auth, HttpSpec};
use super::wire::{Failure, Wire};
use crate::io::{elsewhere, within};
use crate::tls;

/// Redirects that are followed for one request.
const REDIRECTS: usize = 10;

/// The window of an HTTP/2 stream. The window of a connection is large enough for all of its streams, so that one that
/// is not read cannot stop the others.
const STREAM_WINDOW: u32 = 512 << 10;

/// The rest of an unwanted body is read up to this size, so that its connection can be reused.
const DRAINED: usize = 16 << 10;

/// Sends requests with one set of settings.
#[derive(Debug)]
pub(crate) struct Client {
    library: reqwest::Client,
    /// Sends requests without encryption; `None` with a proxy.
    wire: Option<Arc<Wire>>,
    /// The runtime of the library's connections.
    io: Handle,
    /// Headers for the host that the job names.
    trusted: HeaderMap,
    /// Headers for all hosts.
    harmless: HeaderMap,
    secrets: Vec<String>,
    pub(crate) timeout: Duration,
    pub(crate) policy: Policy,
}

/// A request to a server.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) method: Method,
    /// The URL on the server that the job names.
    pub(crate) url: Url,
    /// Headers for that server.
    pub(crate) headers: HeaderMap,
    /// Headers for other servers, after a redirect.
    pub(crate) elsewhere: HeaderMap,
    pub(crate) body: Bytes,
    /// Secrets besides those of the settings and of sensitive headers.
    pub(crate) secrets: Vec<String>,
}

/// A parsed unit's URL.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Without user, password and fragment.
    url: Url,
    /// From the URL's user and password.
    authorization: Option<HeaderValue>,
    /// The password.
    secrets: Vec<String>,
}

/// Live clients, by settings and by the runtime of the library's connections.
type Clients = Mutex<HashMap<(Id, String), Weak<Client>>>;

impl Client {
    /// The client for these settings, which the job file has in `block`; sources with the same settings share it.
    /// Blocks, since it reads certificates.
    pub(crate) fn shared(spec: &HttpSpec, block: &'static str, io: &Handle) -> Result<Arc<Self>> {
        static CLIENTS: OnceLock<Clients> = OnceLock::new();
        let settings = serde_json::to_string(&(block, spec))
            .map_err(|cause| Error::internal("the settings cannot be written down").cause(cause))?;
        let mut clients = CLIENTS.get_or_init(Clients::default).lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|_, client| client.strong_count() > 0);
        let key = (io.id(), settings);
        if let Some(client) = clients.get(&key).and_then(Weak::upgrade) {
            return Ok(client);
        }
        let client = Arc::new(Client::new(spec, block, io)?);
        clients.insert(key, Arc::downgrade(&client));
        Ok(client)
    }

    fn new(spec: &HttpSpec, block: &'static str, io: &Handle) -> Result<Self> {
        let mut harmless = HeaderMap::new();
        harmless.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let user_agent = user_agent(spec)?;
        let mut client = Client {
            library: library(spec)?,
            wire: (!has_proxy()).then(|| Wire::new(2 * spec.connections, spec.connect_timeout.0, user_agent)),
            io: io.clone(),
            trusted: HeaderMap::new(),
            harmless,
            secrets: Vec::new(),
            timeout: spec.timeout.0,
            policy: Policy { retries: spec.retries, max_backoff: spec.max_backoff.0, block },
        };
        for (name, value) in &spec.headers {
            client.add_header(name, value)?;
        }
        if let Some(auth) = &spec.auth {
            let value = client.authorization(auth)?;
            client.trusted.insert(AUTHORIZATION, value);
        }
        for (name, value) in &client.harmless {
            client.trusted.entry(name).or_insert(value.clone());
        }
        Ok(client)
    }

    fn add_header(&mut self, name: &str, value: &TextOrSecret) -> Result<()> {
        let header = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| Error::job("this is not a valid header name").text(name))?;
        let text = value.resolve()?;
        let mut bytes = HeaderValue::from_str(&text)
            .map_err(|_| Error::refused(format!("the header {name} has characters that a header cannot hold")))?;
        match value {
            TextOrSecret::Text(_) if header == ACCEPT || header == ACCEPT_LANGUAGE => {
                self.harmless.insert(header, bytes);
            }
            _ => {
                bytes.set_sensitive(true);
                self.trusted.insert(header, bytes);
            }
        }
        if matches!(value, TextOrSecret::Secret(_)) {
            self.secrets.push(text);
        }
        Ok(())
    }

    fn authorization(&mut self, auth: &Auth) -> Result<HeaderValue> {
        let text = match auth {
            Auth::Basic(basic) => {
                let (user, password) = (basic.user.resolve()?, basic.password.resolve()?);
                let text = basic_authorization(&user, &password);
                self.secrets.push(password);
                text
            }
            Auth::Bearer(bearer) => {
                let token = bearer.token.resolve()?;
                let text = format!("Bearer {token}");
                self.secrets.push(token);
                text
            }
        };
        let value = HeaderValue::from_str(&text);
        let mut value = value.map_err(|_| {
            Error::refused("the secret has characters that a header cannot hold").hint("a token is one line of text")
        })?;
        value.set_sensitive(true);
        self.secrets.push(text);
        Ok(value)
    }

    /// Sends a request, follows redirects, and returns the answer if its status is 2xx or 416.
    pub(crate) async fn send(&self, method: &Method, target: &Target, extra: &HeaderMap) -> Result<Answer, Fault> {
        let mut elsewhere = self.harmless.clone();
        elsewhere.extend(extra.clone());
        let mut headers = self.headers_for(target);
        headers.extend(extra.clone());
        let url = target.url.clone();
        let (method, secrets, body) = (method.clone(), target.secrets.clone(), Bytes::new());
        self.ask(Question { method, url, headers, elsewhere, body, secrets }).await
    }

    /// Sends `body`, as JSON unless the headers of the settings say otherwise, and returns the status and the beginning
    /// of what the server says. With a body a redirect is not followed.
    pub(crate) async fn exchange(&self, method: Method, target: &Target, body: Bytes) -> Result<(u16, Vec<u8>), Fault> {
        let mut headers = self.headers_for(target);
        if !body.is_empty() {
            headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
        }
        let (url, secrets) = (target.url.clone(), target.secrets.clone());
        let question = Question { method, url, elsewhere: self.harmless.clone(), headers, body, secrets };
        let answer = self.ask(question).await?;
        let status = answer.status().as_u16();
        Ok((status, self.drain(answer).await))
    }

    /// Sends a request, follows redirects (only for requests that change nothing), and returns the answer if its status
    /// is 2xx or 416.
    pub(crate) async fn ask(&self, question: Question) -> Result<Answer, Fault> {
        let mut url = question.url.clone();
        let mut seen = Vec::new();
        loop {
            let response = self.answer(&question, &url).await?;
            let status = response.status();
            if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE {
                return Ok(response);
            }
            match redirection(&url, &response)? {
                Some(next) if question.body.is_empty() && question.method.is_safe() => {
                    seen.push(url);
                    if seen.contains(&next) {
                        return Err(Fault::permanent("the server's redirects form a loop")
                            .cause(format!("{status} to {}", millstream_core::redact::url(next.as_str()))));
                    }
                    if seen.len() > REDIRECTS {
                        return Err(Fault::permanent(format!("the server redirects more than {REDIRECTS} times")));
                    }
                    self.drain(response).await;
                    url = next;
                }
                _ => return Err(self.refusal(&question, response).await),
            }
        }
    }

    /// The answer to one request, of any status.
    async fn answer(&self, question: &Question, url: &Url) -> Result<Answer, Fault> {
        let headers = if is_trusted(&question.url, url) { &question.headers } else { &question.elsewhere };
        let wire = self.wire.as_ref().filter(|_| question.body.is_empty() && question.method.is_safe());
        if let Some((wire, address)) = wire.zip(Wire::address(url)) {
            let answer = wire.ask(&question.method, address, headers, self.timeout).await;
            return answer.map(Answer::from).map_err(|failure| self.failure(&failure));
        }
        match within(self.timeout, elsewhere(&self.io, self.request(question, url, headers).send())).await {
            Some(Ok(answer)) => answer.map(Answer::from).map_err(|error| fault_of(&error, self.policy.block)),
            Some(Err(cause)) => Err(Fault::permanent("the run ended before the answer").cause(cause.to_string())),
            None => Err(self.silence()),
        }
    }

    /// The fault of a failed connection.
    fn failure(&self, failure: &Failure) -> Fault {
        let cause = root_cause(failure);
        match failure {
            Failure::Unresolved(_) => unresolved(cause),
            Failure::Late => late(),
            Failure::Silent => self.silence(),
            Failure::Unreachable(_) => unreachable(cause),
            Failure::Broken(_) => broken(cause),
        }
    }

    fn request(&self, question: &Question, url: &Url, headers: &HeaderMap) -> RequestBuilder {
        let request = self.library.request(question.method.clone(), url.clone()).headers(headers.clone());
        if question.body.is_empty() { request } else { request.body(question.body.clone()) }
    }

    /// The whole body of an answer, which has at most `most` bytes.
    pub(crate) async fn body(&self, mut response: Answer, most: usize) -> Result<Bytes, Fault> {
        let mut body = BytesMut::new();
        while let Some(chunk) = self.chunk(&mut response).await? {
            body.extend_from_slice(&chunk);
            if body.len() > most {
                return Err(Fault::permanent(format!("the server answers with more than {most} bytes")));
            }
        }
        Ok(body.freeze())
    }

    /// The headers for the server that the job names. Others only get the harmless ones.
    fn headers_for(&self, target: &Target) -> HeaderMap {
        let mut headers = self.trusted.clone();
        if let Some(authorization) = &target.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        headers
    }

    /// The next piece of a body; nothing at its end.
    pub(crate) async fn chunk(&self, response: &mut Answer) -> Result<Option<Bytes>, Fault> {
        within(self.timeout, response.chunk()).await.unwrap_or_else(|| Err(self.silence()))
    }

    fn silence(&self) -> Fault {
        let seconds = self.timeout.as_secs_f64();
        Fault::transient(format!("the server was silent for {seconds} s")).hint("if it needs longer, raise `timeout`")
    }

    /// Reads the rest of an unwanted body, if it is short and comes in time.
    async fn drain(&self, mut response: Answer) -> Vec<u8> {
        let mut said = Vec::new();
        let draining = async {
            while said.len() < DRAINED
                && let Ok(Some(chunk)) = response.chunk().await
            {
                said.extend_from_slice(&chunk);
            }
        };
        // The bytes so far are enough.
        let _ = within(self.timeout, draining).await;
        said
    }

    /// The fault of a status.
    async fn refusal(&self, question: &Question, response: Answer) -> Fault {
        let status = response.status();
        let mut what = format!("the server answers {}", status.as_u16());
        if let Some(reason) = status.canonical_reason() {
            what.push_str(&format!(" {reason}"));
        }
        let mut fault = Fault { transient: is_transient(status.as_u16()), ..Fault::transient(what) };
        fault.status = Some(status.as_u16());
        fault.hint = hint_of(status).map(str::to_owned);
        fault.retry_after =
            header(response.headers(), &RETRY_AFTER).and_then(|value| retry_after(value, SystemTime::now()));
        let is_page = header(response.headers(), &CONTENT_TYPE).is_some_and(|kind| kind.contains("html"));
        let said = self.drain(response).await;
        if !is_page && !said.is_empty() {
            fault.text = Some(self.redacted(question, &String::from_utf8_lossy(&said)));
        }
        fault
    }

    /// `text` without the secrets, which a server may repeat.
    fn redacted(&self, question: &Question, text: &str) -> String {
        let marked =
            question.headers.values().filter(|value| value.is_sensitive()).filter_map(|value| value.to_str().ok());
        // In an `Authorization`, the credentials follow the first word.
        let marked = marked.flat_map(|value| [Some(value), value.split_once(' ').map(|(_, credentials)| credentials)]);
        let named = self.secrets.iter().chain(&question.secrets).map(String::as_str);
        millstream_core::redact::values(text.trim(), marked.flatten().chain(named))
    }
}

impl Target {
    /// Parses `uri`.
    pub(crate) fn parse(uri: &str) -> Result<Self> {
        let fault = |what: &str| Error::job(what).in_unit(uri, None);
        if uri.contains('\\') {
            return Err(fault("a URL has no backslash").hint("write %5C, or / between folders"));
        }
        let mut url = Url::parse(uri).map_err(|cause| fault("this is not a URL").cause(cause))?;
        if !url.has_host() || !matches!(url.scheme(), "http" | "https") {
            return Err(fault("this is not a URL of a web server"));
        }
        let mut secrets = Vec::new();
        let authorization = match (url.username(), url.password()) {
            ("", None) => None,
            (user, password) => {
                let decoded = |text| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
                secrets.push(decoded(password.unwrap_or_default()));
                let text = basic_authorization(&decoded(user), &secrets[0]);
                let mut value = HeaderValue::from_str(&text).map_err(|_| fault("its user part is not text"))?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        // Both can fail only for URLs without a host.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_fragment(None);
        Ok(Target { url, authorization, secrets })
    }

    /// The path, still encoded.
    pub(crate) fn path(&self) -> &str {
        self.url.path()
    }
}

/// The text of a header.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Whether `url` may get the headers for `named`: it is the same server, or the same host with encryption.
fn is_trusted(named: &Url, url: &Url) -> bool {
    let same_host = named.host() == url.host();
    let same_server = named.scheme() == url.scheme() && named.port_or_known_default() == url.port_or_known_default();
    let upgraded = named.scheme() == "http"
        && url.scheme() == "https"
        && named.port_or_known_default() == Some(80)
        && url.port_or_known_default() == Some(443);
    same_host && (same_server || upgraded)
}

/// The URL of a redirect, if it is one.
fn redirection(url: &Url, response: &Answer) -> Result<Option<Url>, Fault> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = header(response.headers(), &LOCATION) else { return Ok(None) };
    let next = url.join(location).ok().filter(|next| matches!(next.scheme(), "http" | "https") && next.has_host());
    let mut next = next.ok_or_else(|| {
        Fault::permanent("the server redirects to something that is not a URL of a web server")
            .cause(millstream_core::redact::url(location))
    })?;
    next.set_fragment(None);
    Ok(Some(next))
}

fn basic_authorization(user: &str, password: &str) -> String {
    format!("Basic {}", base64(format!("{user}:{password}").as_bytes()))
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().chain(&[0; 2]).take(3).fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        for digit in 0..4 {
            let shown = digit <= group.len();
            let value = (bits >> (18 - 6 * digit)) as usize & 63;
            text.push(if shown { char::from(DIGITS[value]) } else { '=' });
        }
    }
    text
}

fn hint_of(status: StatusCode) -> Option<&'static str> {
    Some(match status.as_u16() {
        401 => "set `auth` in the source's `http` block, or check the secret that it names",
        403 => "check that the login in `auth` may read it, or whether a signed URL has expired",
        404 | 410 => "check the URL; `on_error: skip` of the source leaves out what is missing",
        407 => "put the proxy's user and password into HTTPS_PROXY",
        429 => "lower `connections`",
        _ => return None,
    })
}

/// The library's client: it keeps connections, speaks TLS and HTTP/2, and follows no redirects.
pub(crate) fn library(spec: &HttpSpec) -> Result<reqwest::Client> {
    let connections = u32::try_from(spec.connections).unwrap_or(u32::MAX);
    let mut encryption = millstream_net::tls::configuration(spec.ca.as_deref())?;
    encryption.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    reqwest::Client::builder()
        .tls_backend_preconfigured(encryption)
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(user_agent(spec)?)
        .connect_timeout(spec.connect_timeout.0)
        .pool_max_idle_per_host(2 * spec.connections)
        .tcp_nodelay(true)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(STREAM_WINDOW.saturating_mul(connections))
        .build()
        .map_err(|error| Error::refused("the HTTP client cannot be set up").cause(root_cause(&error)))
}

fn user_agent(spec: &HttpSpec) -> Result<HeaderValue> {
    let text = spec.user_agent.as_deref().unwrap_or(concat!("millstream/", env!("CARGO_PKG_VERSION")));
    HeaderValue::from_str(text).map_err(|_| Error::job("`user_agent` has characters that a header cannot hold"))
}

/// Whether the environment names a proxy, for some hosts at least.
fn has_proxy() -> bool {
    ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// The fault of the library's client before the answer.
fn fault_of(error: &reqwest::Error, block: &str) -> Fault {
    let cause = root_cause(error);
    if let Some(tls) = find::<rustls::Error>(error) {
        return tls::fault(tls, block, "http");
    }
    if error.is_builder() {
        return Fault::permanent("the request cannot be built").cause(cause);
    }
    if error.is_dns() {
        return unresolved(cause);
    }
    if error.is_timeout() {
        return late();
    }
    if error.is_connect() {
        return unreachable(cause);
    }
    broken(cause)
}

fn unresolved(cause: String) -> Fault {
    let unknown = cause.contains("not known") || cause.contains("No address");
    let fault = Fault { transient: !unknown, ..Fault::transient("the host's address cannot be found") };
    fault.cause(cause).hint("check the host's name, and the network")
}

fn late() -> Fault {
    Fault::transient("the connection was not established in time").hint("if it needs longer, raise `connect_timeout`")
}

fn unreachable(cause: String) -> Fault {
    Fault::transient("the server cannot be reached").cause(cause)
}

fn broken(cause: String) -> Fault {
    Fault::transient("the connection broke before the answer").cause(cause)
}

/// The innermost cause: the layers above only repeat it.
pub(crate) fn root_cause(error: &dyn StdError) -> String {
    let mut root = error;
    while let Some(source) = root.source() {
        root = source;
    }
    let text = root.to_string();
    // The system's text, without its number.
    match text.split_once(" (os error ") {
        Some((system_text, _)) => system_text.to_lowercase(),
        None => text,
    }
}

/// The first cause of type `T`.
pub(crate) fn find<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    if let Some(found) = error.downcast_ref::<T>() {
        return Some(found);
    }
    // The source of an io::Error skips the error that it wraps.
    let inside = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    match inside {
        Some(inside) => find(inside),
        None => error.source().and_then(find),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let pairs =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE=")];
        for (plain, encoded) in pairs {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
        assert_eq!(basic_authorization("Aladdin", "open sesame"), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    }

    #[test]
    fn secrets_stay_with_the_server_that_they_are_for() {
        for (named, next, trusted) in [
            ("http://a/x", "http://a/y", true),
            ("http://a/x", "https://a/x", true),
            ("https://a/x", "https://a:443/y", true),
            ("https://a/x", "http://a/x", false),
            ("http://a:8080/x", "https://a/x", false),
            ("http://a/x", "http://a:81/x", false),
            ("https://a/x", "https://b/x", false),
            ("https://a/x", "https://a.evil/x", false),
        ] {
            let parse = |text| Url::parse(text).expect("a URL");
            assert_eq!(is_trusted(&parse(named), &parse(next)), trusted, "{named} to {next}");
        }
    }

    #[test]
    fn a_url_loses_its_password() {
        let target = Target::parse("https://me:p%40ss@host/a?b=1#c").expect("a URL");
        assert_eq!(target.url.as_str(), "https://host/a?b=1");
        assert_eq!(target.authorization.expect("a user"), basic_authorization("me", "p@ss").as_str());
        for bad in ["https://", "http://[::1", "ftp://host/a", r"http://host\a"] {
            assert!(Target::parse(bad).is_err(), "{bad}");
        }
    }
}
