//! A server: the URL combined with the settings, with login and encryption.

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

/// A server that connections are made to.
#[derive(Debug, Clone)]
pub struct Server {
    /// The host's name or address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Whether the connection is encrypted.
    pub tls: Tls,
    /// Authorities to trust besides the system's.
    pub ca: Option<String>,
    /// The URL without secrets, for messages.
    pub shown: String,
    user: Option<TextOrSecret>,
    password: Option<TextOrSecret>,
}

impl Server {
    /// Reads the URL `target`, and gives what its path says too, decoded and without the slash at its beginning.
    /// `default_port` is the protocol's; `form` is what a URL looks like.
    ///
    /// # Errors
    /// If it is not the URL of a server, or asks for settings that are unknown or dangerous.
    pub fn parse(target: &str, access: &Access, default_port: u16, form: &str) -> Result<(Self, String), Fault> {
        let fault = |what: &str| Fault::new(access.key, what).hint(format!("write {form}"));
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
        let path = decoded(url.path().trim_start_matches('/'), "the path of the URL")?;
        let user = match url.username() {
            "" => access.user.clone(),
            user => Some(TextOrSecret::Text(decoded(user, "the user's name")?)),
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
        let (ca, shown) = (access.ca.clone(), redact::url(target));
        Ok((Server { host, port, tls, ca, shown, user, password }, path))
    }

    /// The host, by one name for all those of this machine.
    pub fn place(&self) -> String {
        if is_this_machine(&self.host) { LOCALHOST.to_owned() } else { self.host.to_lowercase() }
    }

    /// Whether somebody logs in by name.
    pub fn has_user(&self) -> bool {
        self.user.is_some()
    }

    /// Reads the user and the password.
    ///
    /// # Errors
    /// If a secret cannot be read.
    pub fn login(&self) -> Result<(Option<String>, Option<String>)> {
        let read = |one: &Option<TextOrSecret>| one.as_ref().map(TextOrSecret::resolve).transpose();
        Ok((read(&self.user)?, read(&self.password)?))
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

const LOCALHOST: &str = "localhost";

/// Whether the connection never leaves this machine.
fn is_this_machine(host: &str) -> bool {
    host.eq_ignore_ascii_case(LOCALHOST) || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
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
        let parse = |target: &str, user: Option<&str>| {
            let user = user.map(|user| TextOrSecret::Text(user.into()));
            Server::parse(target, &Access { key: "read", user, ..Access::default() }, 6379, "redis://host/0")
        };
        let (server, path) = parse("redis://me:p%40ss@queue.example/sh%C3%B6p?sslmode=disable", None).expect("one");
        assert_eq!((server.host.as_str(), server.port, path.as_str()), ("queue.example", 6379, "sh\u{f6}p"));
        assert_eq!(server.login().expect("a login"), (Some("me".to_owned()), Some("p@ss".to_owned())));
        assert_eq!(
            (server.tls, server.shown.as_str()),
            (Tls::Off, "redis://me:***@queue.example/sh%C3%B6p?sslmode=disable")
        );
        assert_eq!(server.without_secrets("bad p@ss".into()), "bad ***");
        let (server, _) = parse("redis://[::1]:77", Some("u")).expect("one");
        assert_eq!((server.host.as_str(), server.port, server.tls), ("::1", 77, Tls::Off));
        let (server, _) = parse("redis://h", None).expect("one");
        assert_eq!((server.tls, server.has_user()), (Tls::Verify, false));
        for (target, what) in [
            ("redis:///0", "the URL has no host"),
            ("redis://h/0?sslmode=prefer", "`sslmode=prefer` would let"),
            ("redis://h/0?x=1", "the URL has the parameter `x`"),
            ("redis://h:port/0", "this is not a URL"),
            ("redis://h/%ff", "the path of the URL is not UTF-8"),
        ] {
            let fault = parse(target, None).expect_err(target);
            assert!(fault.what.starts_with(what), "{target}: {fault:?}");
        }
    }
}
