//! What a browser may have been tricked into is refused before anything else is looked at.
//!
//! A page of somebody else can make a browser send requests to a server of this machine. It cannot know a token, but it
//! may try: so each request has to name this server as its host (or a name of somebody else was made to lead here:
//! rebinding), and one that says where it is from has to be from this server's own pages. No answer may be read by
//! others, framed, or guessed to be of another type, and no page loads anything from elsewhere.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode, Uri};
use millstream::Error;

use crate::problem::Problem;

/// What pages may do: run and show what comes from this server, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'";

/// Under which names the server is asked.
#[derive(Debug, Clone)]
pub struct Guard {
    /// `http` or `https`.
    scheme: &'static str,
    /// Hosts with their ports, in lower case.
    hosts: Vec<String>,
}

impl Guard {
    /// A server that listens at `port`, with names beside those of this machine. A name without a port goes with this
    /// one and with that of the scheme, as behind a proxy.
    pub fn new(is_tls: bool, port: u16, is_loopback: bool, names: &[String]) -> Self {
        let scheme = if is_tls { "https" } else { "http" };
        let local = ["127.0.0.1", "localhost", "[::1]"].map(str::to_owned);
        let local = local.into_iter().filter(|_| is_loopback);
        let usual = if is_tls { 443 } else { 80 };
        // Browsers leave the usual port out.
        let hosts = local.flat_map(|name| {
            let bare = (port == usual).then(|| name.clone());
            bare.into_iter().chain([format!("{name}:{port}")])
        });
        let named = names.iter().map(|name| name.to_lowercase()).flat_map(|name| match has_port(&name) {
            true => {
                let bare = name.strip_suffix(&format!(":{usual}")).map(str::to_owned);
                [Some(name.clone()), bare].into_iter().flatten().collect()
            }
            false => vec![format!("{name}:{port}"), name],
        });
        Guard { scheme, hosts: hosts.chain(named).collect() }
    }

    /// Refuses a request that does not come from the server's own pages, or from a program.
    ///
    /// # Errors
    /// If it is refused.
    pub fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?").to_lowercase());
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok()).map(str::to_lowercase).unwrap_or_default();
        // One that is named in the request line comes before the header.
        let host = uri.authority().map_or(host, |authority| authority.as_str().to_lowercase());
        if !self.hosts.contains(&host) || hosts.next().is_some() {
            let error = Error::refused("this server is not asked under this name").text(&host);
            let hint = "open the link that `millstream serve` printed; `--host NAME` allows another name";
            return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, error.hint(hint)));
        }
        let foreign = |what: &str| Problem::forbidden(Error::refused("the request comes from another site").text(what));
        // By the scheme of the browser: a proxy in front of this server may speak TLS.
        let is_own = |origin: &str| {
            let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            let may_be = self.scheme == "http" || origin.starts_with("https://");
            may_be && rest == Some(host.as_str())
        };
        if let Some(origin) = text(header::ORIGIN).filter(|origin| !is_own(origin)) {
            return Err(foreign(&origin));
        }
        let site = text(HeaderName::from_static("sec-fetch-site"));
        let mode = text(HeaderName::from_static("sec-fetch-mode"));
        // A link to a page may stand anywhere: what it shows needs a token.
        let is_link = *method == Method::GET && mode.as_deref() == Some("navigate") && !uri.path().starts_with("/api/");
        match site.as_deref() {
            None | Some("same-origin" | "none") => Ok(()),
            Some(_) if is_link => Ok(()),
            Some(site) => Err(foreign(site)),
        }
    }

    /// Adds what browsers are to hold to.
    pub fn protect(&self, headers: &mut HeaderMap) {
        let mut set = |name: &'static str, value: &'static str| {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        };
        set("content-security-policy", POLICY);
        set("x-content-type-options", "nosniff");
        set("x-frame-options", "DENY");
        set("referrer-policy", "no-referrer");
        set("cross-origin-opener-policy", "same-origin");
        set("cross-origin-resource-policy", "same-origin");
        set("permissions-policy", "camera=(), geolocation=(), microphone=()");
        if self.scheme == "https" {
            set("strict-transport-security", "max-age=31536000");
        }
        if !headers.contains_key(header::CACHE_CONTROL) {
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        }
    }
}

/// Whether a host has a port behind it.
fn has_port(host: &str) -> bool {
    let behind = host.rsplit_once(']').map_or(host, |(_, behind)| behind);
    behind.contains(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(guard: &Guard, method: &str, path: &str, headers: &[(&str, &str)]) -> u16 {
        let name = |name: &str| HeaderName::from_bytes(name.as_bytes()).expect("a name");
        let mut map = HeaderMap::new();
        for (key, value) in headers {
            map.append(name(key), HeaderValue::from_str(value).expect("a value"));
        }
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        guard
            .check(&method, &path.parse().expect("a path"), &map)
            .map_or_else(|problem| problem.status.as_u16(), |()| 200)
    }

    #[test]
    fn only_names_of_this_server_are_answered() {
        let guard = Guard::new(false, 8480, true, &["etl.example.org".to_owned(), "proxy:9000".to_owned()]);
        for host in [
            "127.0.0.1:8480",
            "localhost:8480",
            "LOCALHOST:8480",
            "[::1]:8480",
            "etl.example.org",
            "etl.example.org:8480",
            "proxy:9000",
        ] {
            assert_eq!(check(&guard, "GET", "/", &[("host", host)]), 200, "{host}");
        }
        for host in ["evil.example", "127.0.0.1", "127.0.0.1:80", "localhost.evil.example:8480", "proxy", ""] {
            assert_eq!(check(&guard, "GET", "/", &[("host", host)]), 421, "{host}");
        }
        assert_eq!(check(&guard, "GET", "/", &[]), 421);
        let both = [("host", "127.0.0.1:8480"), ("host", "evil.example")];
        assert_eq!(check(&guard, "GET", "/", &both), 421);
        assert_eq!(check(&guard, "GET", "http://evil.example/", &[("host", "127.0.0.1:8480")]), 421);
        let public = Guard::new(true, 443, false, &["etl.example.org".to_owned()]);
        assert_eq!(check(&public, "GET", "/", &[("host", "localhost:443")]), 421);
    }

    #[test]
    fn what_comes_from_another_site_is_refused() {
        let guard = Guard::new(false, 8480, true, &["etl.example.org".to_owned()]);
        let from = |method: &str, path: &str, more: &[(&str, &str)]| {
            check(&guard, method, path, &[&[("host", "127.0.0.1:8480")], more].concat())
        };
        let api = "/api/v1/start";
        assert_eq!(from("POST", api, &[]), 200, "a program");
        assert_eq!(from("POST", api, &[("origin", "http://127.0.0.1:8480"), ("sec-fetch-site", "same-origin")]), 200);
        for origin in ["http://evil.example", "null", "http://localhost:8480", "http://127.0.0.1:8481", "file://", ""] {
            assert_eq!(from("POST", api, &[("origin", origin)]), 403, "{origin}");
        }
        for site in ["cross-site", "same-site"] {
            assert_eq!(from("GET", "/api/v1/runs", &[("sec-fetch-site", site)]), 403, "{site}");
            assert_eq!(from("GET", "/runs", &[("sec-fetch-site", site), ("sec-fetch-mode", "navigate")]), 200);
            assert_eq!(from("POST", "/runs", &[("sec-fetch-site", site), ("sec-fetch-mode", "navigate")]), 403);
            assert_eq!(from("GET", "/assets/a.js", &[("sec-fetch-site", site), ("sec-fetch-mode", "no-cors")]), 403);
        }
        let proxied = [("host", "etl.example.org"), ("origin", "https://etl.example.org")];
        assert_eq!(check(&guard, "POST", api, &proxied), 200, "TLS ends at the proxy");
        let public = Guard::new(true, 443, false, &["etl.example.org".to_owned()]);
        let plain = [("host", "etl.example.org"), ("origin", "http://etl.example.org")];
        assert_eq!(check(&public, "POST", api, &plain), 403);
    }
}
