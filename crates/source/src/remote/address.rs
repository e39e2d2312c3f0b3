//! URLs of servers with folders: `ftp://user:password@host:2121/folder/*.gz`.
//!
//! There is no query and no fragment: `?` is a wildcard, and `#` a character. Percent-encoded characters are plain:
//! `%2A` is a star. A unit's URI is escaped so that it is also the pattern of itself.

use millstream_core::{Error, Result, Unit};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};

use crate::file::{decode_pattern, glob};

/// Where to connect, and as whom.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    /// The scheme, in lower case.
    pub(crate) scheme: &'static str,
    /// A name or an address; without the brackets of IPv6.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The user in the URL.
    pub(crate) user: Option<String>,
    /// The password in the URL.
    pub(crate) password: Option<String>,
}

/// A parsed URL.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) address: Address,
    /// The URL without its path, as it was written.
    pub(crate) base: String,
    /// The path, decoded. It begins with a slash.
    pub(crate) path: Vec<u8>,
}

/// A parsed pattern.
pub(crate) enum Pattern {
    /// A name without wildcards.
    One(Unit),
    /// A path with wildcards, decoded; percent-encoded characters have backslashes.
    Many(Target, String),
}

/// The characters to escape in the path of a URL, including wildcards.
const ESCAPED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'%')
    .add(b'?')
    .add(b'*')
    .add(b'[')
    .add(b']')
    .add(b'{')
    .add(b'}')
    .add(b'\\')
    .add(b'#')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'`');

impl Target {
    /// Parses `uri`; `schemes` are the known schemes with their ports.
    pub(crate) fn parse(uri: &str, schemes: &[(&'static str, u16)]) -> Result<Self> {
        let fault = |what: &str| Error::job(what).in_unit(uri, None);
        let (scheme, rest) = uri.split_once("://").ok_or_else(|| fault("this is not a URL"))?;
        let known = schemes.iter().find(|(name, _)| name.eq_ignore_ascii_case(scheme));
        let (scheme, usual) = *known.ok_or_else(|| fault("this is not a URL of such a server"))?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (login, place) = authority.rsplit_once('@').map_or((None, authority), |(login, host)| (Some(login), host));
        let (host, port) = host_and_port(place).ok_or_else(|| fault("the URL's host or port is not valid"))?;
        let (user, password) = match login {
            Some(login) => {
                let (user, password) = login.split_once(':').map_or((login, None), |(name, rest)| (name, Some(rest)));
                (Some(user).filter(|user| !user.is_empty()), password)
            }
            None => (None, None),
        };
        let decoded = |text: &str| {
            let text = percent_decode_str(text).decode_utf8().map_err(|_| fault("its user part is not text"))?;
            if text.contains(['\r', '\n', '\0']) {
                Err(fault("its user part is not one line of text"))
            } else {
                Ok(text.into_owned())
            }
        };
        let address = Address {
            scheme,
            host,
            port: port.unwrap_or(usual),
            user: user.map(decoded).transpose()?,
            password: password.map(decoded).transpose()?,
        };
        let decoded_path: Vec<u8> = percent_decode_str(if path.is_empty() { "/" } else { path }).collect();
        if decoded_path.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
            return Err(fault("a path on a server has neither line ends nor NUL"));
        }
        Ok(Target { address, base: uri[..uri.len() - path.len()].to_owned(), path: decoded_path })
    }

    /// The URI of another path on the same server.
    pub(crate) fn uri(&self, path: &[u8]) -> String {
        format!("{}{}", self.base, percent_encode(path, ESCAPED))
    }
}

/// `host`, `host:port`, `[::1]` or `[::1]:port`; the host without brackets.
fn host_and_port(place: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = match place.rfind(']') {
        Some(end) => {
            (&place[..=end], place[end + 1..].strip_prefix(':').or(place[end + 1..].is_empty().then_some(""))?)
        }
        None => place.split_once(':').unwrap_or((place, "")),
    };
    let port = if port.is_empty() { None } else { Some(port.parse().ok().filter(|port| *port > 0)?) };
    let host = url::Host::parse(host).ok()?.to_string();
    Some((host.trim_matches(['[', ']']).to_owned(), port))
}

/// Parses `pattern`.
pub(crate) fn pattern(pattern: &str, schemes: &[(&'static str, u16)]) -> Result<Pattern> {
    let target = Target::parse(pattern, schemes)?;
    let decoded = decode_pattern(&pattern[target.base.len()..])?;
    if !glob::has_wildcards(&decoded) {
        let plain = glob::unescape(&decoded);
        // A URL without escapes stays unchanged.
        let uri = if pattern.contains('\\') { target.uri(plain.as_bytes()) } else { pattern.to_owned() };
        return Ok(Pattern::One(Unit::new(uri)));
    }
    Ok(Pattern::Many(target, decoded))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMES: &[(&str, u16)] = &[("ftp", 21), ("ftps", 990)];

    #[test]
    fn urls_are_taken_apart() {
        let target = Target::parse("FTP://me:p%40:ss@host:2121/a%20b/c?d#e", SCHEMES).expect("a URL");
        let Address { scheme, host, port, user, password } = target.address.clone();
        assert_eq!((scheme, host.as_str(), port), ("ftp", "host", 2121));
        assert_eq!((user.as_deref(), password.as_deref()), (Some("me"), Some("p@:ss")));
        assert_eq!(target.path, b"/a b/c?d#e");
        assert_eq!(target.uri(b"/x*\xff y"), "FTP://me:p%40:ss@host:2121/x%2A%FF%20y");
        let target = Target::parse("ftps://[::1]", SCHEMES).expect("a URL");
        assert_eq!((target.address.host.as_str(), target.address.port, target.path), ("::1", 990, b"/".to_vec()));
    }

    #[test]
    fn what_is_no_url_is_reported() {
        for bad in [
            "ftp:/a",
            "http://host/a",
            "ftp:///a",
            "ftp://host:0/a",
            "ftp://host:x/a",
            "ftp://host:70000/a",
            "ftp://[::1/a",
            "ftp://[::1]x/a",
            "ftp://ho st/a",
            "ftp://a%0Ab@host/a",
            "ftp://host/a%0D%0ADELE%20b",
            "ftp://host/a%00",
        ] {
            assert!(Target::parse(bad, SCHEMES).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_is_a_unit_and_wildcards_are_looked_up() {
        let one = |text: &str| match pattern(text, SCHEMES) {
            Ok(Pattern::One(unit)) => Some(unit.uri),
            _ => None,
        };
        assert_eq!(one("ftp://host/a b%2A").as_deref(), Some("ftp://host/a b%2A"));
        assert_eq!(one(r"ftp://host/a\*").as_deref(), Some("ftp://host/a%2A"));
        assert_eq!(one("ftp://host/a*"), None);
        assert_eq!(one("ftp://host/%ff*"), None);
    }
}
