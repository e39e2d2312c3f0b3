//! The endpoint of a database: a server, and which of its databases.

use millstream_core::spec::Fault;
use millstream_core::{Error, Result};
use millstream_net::server::{Access, Server};

/// A database of a server.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// The server.
    pub server: Server,
    /// The database's name.
    pub database: String,
}

impl Endpoint {
    /// Reads the URL `target`; `default_port` is the protocol's.
    pub fn parse(target: &str, access: &Access, default_port: u16) -> Result<Self, Fault> {
        let scheme = target.split(':').next().unwrap_or_default();
        let form = format!("{scheme}://user@host/database");
        let (server, database) = Server::parse(target, access, default_port, &form)?;
        let fault = |what: &str, hint: String| Err(Fault::new(access.key, what).hint(hint));
        if database.is_empty() || database.contains('/') {
            return fault("the URL has no database", format!("write {form}"));
        }
        if !server.has_user() {
            return fault("the URL has no user", format!("write {form}, or `user`"));
        }
        Ok(Endpoint { server, database })
    }

    /// Reads the user and the password.
    pub fn login(&self) -> Result<(String, Option<String>)> {
        let (user, password) = self.server.login()?;
        Ok((user.ok_or_else(|| Error::internal("a database has no user"))?, password))
    }
}

#[cfg(test)]
mod tests {
    use millstream_core::spec::TextOrSecret;
    use millstream_net::server::Tls;

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
        assert_eq!(
            (endpoint.server.host.as_str(), endpoint.server.port, endpoint.database.as_str()),
            ("db.example", 3306, "shöp")
        );
        assert_eq!(endpoint.login().expect("a login"), ("me".to_owned(), Some("p@ss".to_owned())));
        assert_eq!(
            (endpoint.server.tls, endpoint.server.shown.as_str()),
            (Tls::Off, "mysql://me:***@db.example/sh%C3%B6p?sslmode=disable")
        );
        assert_eq!(endpoint.server.without_secrets("bad p@ss".into()), "bad ***");
        let endpoint = parse("mysql://[::1]:77/d", Some("u")).expect("a place");
        assert_eq!((endpoint.server.host.as_str(), endpoint.server.port, endpoint.server.tls), ("::1", 77, Tls::Off));
        assert_eq!(parse("mysql://u@h/d", None).expect("a place").server.tls, Tls::Verify);
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
