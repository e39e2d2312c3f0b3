//! Where a Redis server is, and which of its databases is meant.

use millstream_core::spec;
use millstream_net::server::{Access, Server, Tls};

/// The port that Redis is registered for.
const PORT: u16 = 6379;

/// What a URL looks like.
const FORM: &str = "redis://host/0";

/// A database of a server.
#[derive(Debug, Clone)]
pub struct Place {
    /// The server.
    pub server: Server,
    /// The number of its database.
    pub database: u32,
}

impl Place {
    /// Reads a URL: `redis://user:password@host:6379/0`; user, password, port and database may be left out. `rediss`
    /// in place of `redis` asks for encryption.
    ///
    /// # Errors
    /// If it is no such URL.
    pub fn parse(target: &str, access: &Access) -> Result<Self, spec::Fault> {
        let fault = |what: String| spec::Fault::new(access.key, what).hint(format!("write {FORM}"));
        let mut access = access.clone();
        match target.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase()).as_deref() {
            Some("redis") => {}
            Some("rediss") if access.tls == Some(Tls::Off) => {
                let what = "the URL asks for encryption (`rediss`), and `tls: off` for none".to_owned();
                return Err(spec::Fault::new(access.key, what).hint("write redis://, or leave `tls` out"));
            }
            Some("rediss") => access.tls = Some(Tls::Verify),
            _ => return Err(fault("this is not the URL of a Redis server".to_owned())),
        }
        let (server, path) = Server::parse(target, &access, PORT, FORM)?;
        let database = match path.as_str() {
            "" => 0,
            number => number.parse().map_err(|_| fault(format!("`{number}` is not the number of a database")))?,
        };
        Ok(Place { server, database })
    }
}

/// What is wrong with a URL of the job file, as far as it can be told without asking the server.
///
/// # Errors
/// If it is not the URL of a Redis server.
pub fn check_url(target: &str) -> Result<(), spec::Fault> {
    Place::parse(target, &Access::default()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(target: &str, tls: Option<Tls>) -> Result<Place, spec::Fault> {
        Place::parse(target, &Access { key: "read", tls, ..Access::default() })
    }

    #[test]
    fn most_of_a_url_may_be_left_out() {
        let place = parse("redis://queue.example", None).expect("a place");
        assert_eq!((place.server.port, place.database, place.server.tls), (6379, 0, Tls::Verify));
        assert_eq!(place.server.login().expect("none"), (None, None));
        let place = parse("redis://:p@127.0.0.1:7000/3", None).expect("a place");
        assert_eq!((place.server.port, place.database, place.server.tls), (7000, 3, Tls::Off));
        assert_eq!(place.server.login().expect("a password"), (None, Some("p".to_owned())));
        assert_eq!(parse("rediss://127.0.0.1", None).expect("a place").server.tls, Tls::Verify);
        for (target, tls, what) in [
            ("redis://h/a", None, "`a` is not the number"),
            ("redis://h/1/2", None, "`1/2` is not the number"),
            ("http://h/1", None, "this is not the URL of a Redis server"),
            ("rediss://h", Some(Tls::Off), "the URL asks for encryption"),
        ] {
            let fault = parse(target, tls).expect_err(target);
            assert_eq!(check_url(target).is_err(), tls.is_none(), "{target}");
            assert!(fault.what.starts_with(what), "{target}: {fault:?}");
        }
    }
}
