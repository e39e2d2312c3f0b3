//! The expected key of a host: files of known hosts (the form is in sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"), or a
//! fingerprint.
//!
//! An unknown key is never accepted or stored, since jobs run unattended.

use std::str::FromStr;

use millstream_core::{Error, Result};
use ring::hmac;
use russh::keys::ssh_key::known_hosts::{HostPatterns, Marker};
use russh::keys::{Algorithm, EcdsaCurve, HashAlg, PublicKey, ssh_key};
use ssh_key::Fingerprint;

use crate::retry::Fault;

/// Kinds of host keys, the one that is preferred first. RSA with SHA-1 is not among them.
const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::Ed25519,
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 },
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP384 },
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP521 },
    Algorithm::Rsa { hash: Some(HashAlg::Sha512) },
    Algorithm::Rsa { hash: Some(HashAlg::Sha256) },
];

/// The known keys of all hosts.
#[derive(Debug)]
pub(super) enum Hosts {
    /// The fingerprint of any host's key.
    Fingerprint(Fingerprint),
    Files(Vec<File>),
}

/// A file of known hosts.
#[derive(Debug)]
pub(super) struct File {
    path: String,
    text: String,
}

/// The known keys of one host.
#[derive(Debug)]
pub(super) struct Expected {
    host: String,
    fingerprint: Option<Fingerprint>,
    /// Its keys, with the location of each.
    keys: Vec<(PublicKey, String)>,
    /// Keys that it must not have.
    revoked: Vec<(PublicKey, String)>,
    /// The files that were searched.
    searched: String,
}

impl Hosts {
    /// Reads the files of known hosts; `path` is that of the settings. Blocks.
    pub(super) fn read(fingerprint: Option<&str>, path: Option<&str>) -> Result<Self> {
        if let Some(text) = fingerprint {
            let fingerprint = Fingerprint::from_str(text)
                .map_err(|_| Error::job("the source's `host_key` is not a fingerprint").text(text))?;
            return Ok(Hosts::Fingerprint(fingerprint));
        }
        if let Some(path) = path {
            let text = fs_err::read(path)
                .map_err(|cause| Error::io("the source's file of known hosts cannot be read", &cause).text(path))?;
            return Ok(Hosts::Files(vec![File::new(path, &text)]));
        }
        let home = std::env::home_dir().map(|home| home.join(".ssh/known_hosts").display().to_string());
        let mut files = Vec::new();
        for path in home.into_iter().chain(["/etc/ssh/ssh_known_hosts".to_owned()]) {
            match fs_err::read(&path) {
                Ok(text) => files.push(File::new(&path, &text)),
                Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => files.push(File::new(&path, b"")),
                Err(cause) => {
                    return Err(Error::io("a file of known hosts cannot be read", &cause)
                        .text(path)
                        .hint("name another in `known_hosts` of the source's `sftp` block"));
                }
            }
        }
        Ok(Hosts::Files(files))
    }

    /// The known keys of a host.
    pub(super) fn expected(&self, host: &str, port: u16) -> Expected {
        let name = name(host, port);
        let mut expected = Expected {
            host: name.clone(),
            fingerprint: None,
            keys: Vec::new(),
            revoked: Vec::new(),
            searched: String::new(),
        };
        match self {
            Hosts::Fingerprint(fingerprint) => expected.fingerprint = Some(*fingerprint),
            Hosts::Files(files) => {
                for file in files {
                    file.look_up(&name, &mut expected);
                }
                let paths: Vec<_> = files.iter().map(|file| file.path.as_str()).collect();
                expected.searched = paths.join(" and ");
            }
        }
        expected
    }
}

/// The name of a host in these files.
fn name(host: &str, port: u16) -> String {
    let host = host.to_ascii_lowercase();
    if port == 22 { host } else { format!("[{host}]:{port}") }
}

impl File {
    fn new(path: &str, text: &[u8]) -> Self {
        File { path: path.to_owned(), text: String::from_utf8_lossy(text).into_owned() }
    }

    /// Like ssh, it skips lines that it cannot parse.
    fn look_up(&self, name: &str, expected: &mut Expected) {
        for (number, line) in self.text.lines().enumerate() {
            let mut system_text = line.split_ascii_whitespace().peekable();
            let marker = system_text.next_if(|word| word.starts_with('@')).map(Marker::from_str);
            let (Some(hosts), Some(kind), Some(key)) = (system_text.next(), system_text.next(), system_text.next())
            else {
                continue;
            };
            if hosts.starts_with('#') || !matches(hosts, name) {
                continue;
            }
            let Ok(key) = PublicKey::from_openssh(&format!("{kind} {key}")) else { continue };
            let place = format!("{}, line {}", self.path, number + 1);
            match marker {
                None => expected.keys.push((key, place)),
                Some(Ok(Marker::Revoked)) => expected.revoked.push((key, place)),
                // Certificates are not supported.
                Some(_) => {}
            }
        }
    }
}

/// Whether a line's list of hosts has this one.
fn matches(hosts: &str, name: &str) -> bool {
    match HostPatterns::from_str(hosts) {
        Ok(HostPatterns::HashedName { salt, hash }) => {
            let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &salt);
            hmac::verify(&key, name.as_bytes(), &hash).is_ok()
        }
        Ok(HostPatterns::Patterns(patterns)) => {
            let fits = |pattern: &str| wildcards(pattern.to_ascii_lowercase().as_bytes(), name.as_bytes());
            !patterns.iter().filter_map(|pattern| pattern.strip_prefix('!')).any(fits)
                && patterns.iter().filter(|pattern| !pattern.starts_with('!')).any(|pattern| fits(pattern))
        }
        Err(_) => false,
    }
}

/// Whether a pattern with `*` and `?` matches the text. It only backtracks to the last star, which is enough.
fn wildcards(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut read) = (0, 0);
    let mut star = None;
    while read < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, read));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == text[read] => {
                at += 1;
                read += 1;
            }
            _ => match &mut star {
                Some((before, from)) => {
                    *from += 1;
                    (at, read) = (*before + 1, *from);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

impl Expected {
    /// The kinds of keys to request: known ones first, since a host shows only one of its keys. `without` are kinds
    /// that were shown and did not match.
    pub(super) fn algorithms(&self, without: &[Algorithm]) -> Vec<Algorithm> {
        let is_known = |kind: &Algorithm| self.keys.iter().any(|(key, _)| same_kind(&key.algorithm(), kind));
        let mut kinds: Vec<_> =
            ALGORITHMS.into_iter().filter(|kind| !without.iter().any(|other| same_kind(other, kind))).collect();
        kinds.sort_by_key(|kind| !is_known(kind));
        kinds
    }

    /// Whether to request keys of other kinds if one does not match: the kind of a fingerprint is unknown.
    pub(super) fn has_no_kind(&self) -> bool {
        self.fingerprint.is_some()
    }

    /// Checks the key that a host shows.
    pub(super) fn check(&self, key: &PublicKey) -> Result<(), Fault> {
        let shown = key.fingerprint(HashAlg::Sha256);
        let told = format!("{} {shown}", key.algorithm());
        let fault = |what: &str| Fault { text: Some(told.clone()), ..Fault::permanent(what) };
        if let Some(expected) = &self.fingerprint {
            return if key.fingerprint(expected.algorithm()) == *expected {
                Ok(())
            } else {
                Err(fault("the host's key is not the one that `host_key` names")
                    .cause(format!("`host_key` is {expected}"))
                    .hint(CHANGED))
            };
        }
        if let Some((_, place)) = self.revoked.iter().find(|(revoked, _)| revoked.key_data() == key.key_data()) {
            return Err(fault("the host's key is revoked")
                .cause(place)
                .hint("ask the server's administrator for its new key"));
        }
        if self.keys.iter().any(|(known, _)| known.key_data() == key.key_data()) {
            return Ok(());
        }
        match self.keys.iter().find(|(known, _)| same_kind(&known.algorithm(), &key.algorithm())).or(self.keys.first())
        {
            Some((known, place)) => Err(fault("the host's key differs from the known one")
                .cause(format!("{place}: {} {}", known.algorithm(), known.fingerprint(HashAlg::Sha256)))
                .hint(CHANGED)),
            None => Err(fault("the host is not known")
                .cause(format!("{} is not in {}", self.host, self.searched))
                .hint(format!(
                    "if the server's administrator confirms that this is its key, write `host_key: {shown}` into the \
                     source's `sftp` block, or a line for {} into the file of known hosts",
                    self.host
                ))),
        }
    }
}

const CHANGED: &str =
    "this may be an attack, or the server has a new key: ask the server's administrator before you change yours";

/// Whether the kinds are equal; RSA keys are of one kind, however they sign.
fn same_kind(one: &Algorithm, other: &Algorithm) -> bool {
    one == other || (matches!(one, Algorithm::Rsa { .. }) && matches!(other, Algorithm::Rsa { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ";
    const SECOND: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA6rWI3G2sz07DnfFlrouTcysQlj2P+jpNSOEWD9OJ3X";

    fn check(text: &str, host: &str, port: u16, key: &str) -> Result<(), Fault> {
        let hosts = Hosts::Files(vec![File::new("known", text.as_bytes())]);
        hosts.expected(host, port).check(&PublicKey::from_openssh(key).expect("a key"))
    }

    #[test]
    fn hosts_are_found_as_ssh_finds_them() {
        // Hashed by `ssh-keygen -H`: the name is example.com.
        let hashed = "|1|O33ESRMWPVkMYIwJ1Uw+n877jTo=|nuuC5vEqXlEZ/8BXQR7m619W6Ak=";
        for (hosts, host, port) in [
            ("host", "host", 22),
            ("host", "HOST", 22),
            ("Host", "host", 22),
            ("[host]:2222", "host", 2222),
            ("a,host,b", "host", 22),
            ("*.example.com", "a.b.example.com", 22),
            ("[*.example.com]:99", "a.example.com", 99),
            ("h?st", "host", 22),
            ("*,!other", "host", 22),
            ("[::1]:23", "::1", 23),
            (hashed, "example.com", 22),
        ] {
            for line in [
                format!("{hosts} {FIRST}"),
                format!("# x\n\n{hosts}\t{FIRST} a comment\n"),
                format!("x\n{hosts} {FIRST}\r\n"),
            ] {
                assert_eq!(check(&line, host, port, FIRST), Ok(()), "{line}");
            }
        }
        for (hosts, host, port) in [
            ("host", "host", 2222),
            ("[host]:2222", "host", 22),
            ("hos", "host", 22),
            ("*,!host", "host", 22),
            ("!host,*", "host", 22),
            ("!other", "host", 22),
            ("#host", "host", 22),
            (hashed, "example.org", 22),
            ("|1|x", "host", 22),
        ] {
            let fault = check(&format!("{hosts} {FIRST}"), host, port, FIRST).expect_err("another host");
            assert_eq!((fault.what.as_str(), fault.transient), ("the host is not known", false), "{hosts}");
        }
    }

    #[test]
    fn a_key_that_is_not_the_known_one_is_refused() {
        let fault = check(&format!("host {FIRST}"), "host", 22, SECOND).expect_err("another key");
        assert_eq!(fault.what, "the host's key differs from the known one");
        assert!(fault.cause.is_some_and(|cause| cause.starts_with("known, line 1: ssh-ed25519 SHA256:")));
        assert_eq!(check(&format!("host {FIRST}\nhost {SECOND}"), "host", 22, SECOND), Ok(()), "it may have several");
        let revoked = format!("host {FIRST}\n@revoked * {FIRST}");
        assert_eq!(check(&revoked, "host", 22, FIRST).expect_err("revoked").what, "the host's key is revoked");
        let authority = format!("@cert-authority * {FIRST}");
        assert_eq!(check(&authority, "host", 22, FIRST).expect_err("an authority").what, "the host is not known");
        let broken = "host ssh-ed25519 AAAA\nhost\nhost ssh-ed25519\n@odd host x y\n@revoked";
        assert_eq!(check(broken, "host", 22, FIRST).expect_err("no key").what, "the host is not known");
    }

    #[test]
    fn known_kinds_of_keys_are_asked_for_first() {
        let hosts = Hosts::Files(vec![File::new("known", format!("host {FIRST}").as_bytes())]);
        assert_eq!(hosts.expected("host", 22).algorithms(&[]), ALGORITHMS);
        let rsa = "ssh-rsa \
                   AAAAB3NzaC1yc2EAAAADAQABAAAAgQC2MF7S3kPEjRCX1j4vHdwBSFLlPf+zdEpZ4Xk/bAm6yZbm1DyW3VqzfR6B1LZ8q5Qe\
                   VgQv7s7n9WvE3hKZ8n0l9o0a2Jd0m0Y8f9q5o8w2m3n4b5v6c7x8z9a0s1d2f3g4h5j6k7l8";
        // Whether that is a key or not, nothing is lost.
        let hosts = Hosts::Files(vec![File::new("known", format!("host {rsa}").as_bytes())]);
        assert_eq!(hosts.expected("host", 22).algorithms(&[]).len(), ALGORITHMS.len());
        let left = hosts.expected("host", 22).algorithms(&[Algorithm::Ed25519, Algorithm::Rsa { hash: None }]);
        assert_eq!(left, ALGORITHMS[1..4]);
    }

    #[test]
    fn wildcards_are_those_of_ssh() {
        for (pattern, text) in [("*", ""), ("*", "a"), ("a*b*c", "aXbYbZc"), ("**", "a"), ("?", "a"), ("", "")] {
            assert!(wildcards(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        for (pattern, text) in [("", "a"), ("?", ""), ("a*b", "abc"), ("a", "b"), ("*a", "ab"), ("a?", "a")] {
            assert!(!wildcards(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
    }
}
