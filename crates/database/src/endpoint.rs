//! The endpoint of a database: the URL combined with the settings, with login and encryption.

use millstream_core::spec::{Fault, Secret, TextOrSecret};
use millstream_core::{Error, Result, redact};
use percent_encoding::percent_decode_str;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::{Host, Url};

/// Encryption of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Tls {
    /// Encrypted; the server's certificate must be signed by an authority that is trusted, for the host's name.
    Verify,
    /// Not encrypted.
    Off,
}

/// Settings for access, besides the URL.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// The key of the job file that has the URL.
    pub key: &'static str,
    /// The user's name.
    pub user: Option<TextOrSecret>,
    /// The password.
    pub password: Option<Secret>,
    /// Encryption; by default it depends on the host.
    pub tls: Option<Tls>,
    /// The path of a PEM file.
    pub ca: Option<String>,
}

/// A database of a server.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// The host's name or address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The database's name.
    pub database: String,
    /// Whether the connection is encrypted.
    pub tls: Tls,
    /// Authorities to trust besides the system's.
    pub ca: Option<String>,
    /// The URL without secrets, for messages.
    pub shown: String,
    user: TextOrSecret,
    password: Option<TextOrSecret>,
}

impl Endpoint {
    /// Reads the URL `target`; `default_port` is the protocol's.
    pub fn parse(target: &str, access: &Access, default_port: u16) -> Result<Self, Fault> {
        let scheme = target.split(':').next().unwrap_or_default();
        let hint = format!("write {scheme}://user@host/database");
        let fault = |what: &str| Fault::new(access.key, what).hint(hint.clone());
        let url = Url::parse(target).map_err(|cause| fault(&format!("this is not a URL: {cause}")))?;
        let host = match url.host() {
            // For unknown schemes, the URL library keeps brackets and escapes in the host.
            Some(Host::Ipv6(address)) => address.to_string(),
            Some(host) => host.to_string(),
            None => return Err(fault("the URL has no host")),
        };
        if host.is_empty() {
            return Err(fault("the URL has no host"));
        }
        let decoded = |text: &str, what: &str| {
            let text = percent_decode_str(text).decode_utf8().map_err(|_| fault(&format!("{what} is not UTF-8")))?;
            if text.contains('\0') { Err(fault(&format!("{what} holds a NUL byte"))) } else { Ok(text.into_owned()) }
        };
        let database = decoded(url.path().trim_start_matches('/'), "the database's name")?;
        if database.is_empty() || database.contains('/') {
            return Err(fault("the URL has no database"));
        }
        let user = match (url.username(), &access.user) {
            ("", None) => return Err(fault("the URL has no user").hint(format!("{hint}, or `user`"))),
            ("", Some(user)) => user.clone(),
            (user, _) => TextOrSecret::Text(decoded(user, "the user's name")?),
        };
        let password = match url.password() {
            Some(password) => Some(TextOrSecret::Text(decoded(password, "the password")?)),
            None => access.password.clone().map(TextOrSecret::Secret),
        };
        let tls = match url_tls(&url, access.key)? {
            Some(tls) => tls,
            None => access.tls.unwrap_or(if is_this_machine(&host) { Tls::Off } else { Tls::Verify }),
        };
        let port = url.port().unwrap_or(default_port);
        Ok(Endpoint { host, port, database, tls, ca: access.ca.clone(), shown: redact::url(target), user, password })
    }

    /// Reads the user and the password.
    pub fn login(&self) -> Result<(String, Option<String>)> {
        Ok((self.user.resolve()?, self.password.as_ref().map(TextOrSecret::resolve).transpose()?))
    }

    /// Removes secrets, which the text of an error may repeat.
    pub fn without_secrets(&self, text: String) -> String {
        match self.password.as_ref().map(TextOrSecret::resolve) {
            Some(Ok(password)) if password.len() >= 3 => text.replace(&password, "***"),
            _ => text,
        }
    }

    /// The error if the server cannot be reached.
    pub fn unreachable(&self, cause: impl std::fmt::Display) -> Error {
        Error::transient(format!("{} cannot be reached", self.shown))
            .cause(cause)
            .hint(format!("check host and port, and that the server runs: {}:{}", self.host, self.port))
    }

    /// The error of a lost connection.
    pub fn lost(&self, cause: String) -> Error {
        Error::transient(format!("the connection to {} was lost", self.shown))
            .cause(self.without_secrets(cause))
            .hint("check the server's log; the job can be started again")
    }
}

/// Whether the connection never leaves this machine.
fn is_this_machine(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The encryption that the URL asks for, by the parameters of either database.
fn url_tls(url: &Url, key: &str) -> Result<Option<Tls>, Fault> {
    let mut tls = None;
    for (name, value) in url.query_pairs() {
        if !["sslmode", "ssl-mode"].contains(&name.to_ascii_lowercase().as_str()) {
            let what = format!("the URL has the parameter `{name}`, which is unknown here");
            return Err(Fault::new(key, what).hint("known: sslmode; everything else is a setting"));
        }
        tls = Some(match value.to_ascii_lowercase().as_str() {
            "disable" | "disabled" => Tls::Off,
            "require" | "required" | "verify-ca" | "verify_ca" | "verify-full" | "verify_identity" => Tls::Verify,
            other => {
                let what = format!("`{name}={other}` would let an attacker on the network decide whether to encrypt");
                return Err(Fault::new(key, what).hint("write sslmode=verify-full or sslmode=disable"));
            }
        });
    }
    Ok(tls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_and_the_settings_fill_in() {
        let settings = |user: Option<&str>| Access {
            key: "write",
            user: user.map(|user| TextOrSecret::Text(user.into())),
            ..Access::default()
        };
        let parse = |target: &str, user| Endpoint::parse(target, &settings(user), 3306);
        let endpoint = parse("mysql://me:p%40ss@db.example/sh%C3%B6p?sslmode=disable", None).expect("a place");
        assert_eq!((endpoint.host.as_str(), endpoint.port, endpoint.database.as_str()), ("db.example", 3306, "shöp"));
        assert_eq!(endpoint.login().expect("a login"), ("me".to_owned(), Some("p@ss".to_owned())));
        assert_eq!(
            (endpoint.tls, endpoint.shown.as_str()),
            (Tls::Off, "mysql://me:***@db.example/sh%C3%B6p?sslmode=disable")
        );
        assert_eq!(endpoint.without_secrets("bad p@ss".into()), "bad ***");
        let endpoint = parse("mysql://[::1]:77/d", Some("u")).expect("a place");
        assert_eq!((endpoint.host.as_str(), endpoint.port, endpoint.tls), ("::1", 77, Tls::Off));
        assert_eq!(parse("mysql://u@h/d", None).expect("a place").tls, Tls::Verify);
        for (target, what) in [
            ("mysql://u@h", "the URL has no database"),
            ("mysql://u@h/a/b", "the URL has no database"),
            ("mysql:///d", "the URL has no host"),
            ("mysql://h/d", "the URL has no user"),
            ("mysql://u@h/d?sslmode=prefer", "`sslmode=prefer` would let"),
            ("mysql://u@h/d?x=1", "the URL has the parameter `x`"),
            ("mysql://u@h:port/d", "this is not a URL"),
        ] {
            let fault = parse(target, None).expect_err(target);
            assert!(fault.what.starts_with(what), "{target}: {fault:?}");
        }
    }
}
