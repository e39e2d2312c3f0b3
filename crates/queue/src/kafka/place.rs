//! Where a topic is: the brokers, and how they are connected to.

use millstream_core::epochs::TopicFacts;
use millstream_core::reject::base64_of;
use millstream_core::spec;
use millstream_core::{Error, Result};
use millstream_net::server::{Access, Server, Tls};
use rdkafka::ClientConfig;

use super::spec::Sasl;

/// The port that brokers usually listen on.
const PORT: u16 = 9092;

/// What a URL looks like.
const FORM: &str = "kafka://host/topic";

/// The most bytes of a topic's name.
const LONGEST_TOPIC: usize = 249;

/// What is wrong with the URL of a topic, as far as that can be said without its settings.
pub fn check_url(target: &str) -> Result<(), spec::Fault> {
    let access = Access { key: "read", ..Access::default() };
    Place::parse(target, &access, &[], Sasl::ScramSha256).map(drop)
}

/// A topic of a cluster.
#[derive(Debug, Clone)]
pub struct Place {
    /// The broker that the URL names.
    pub server: Server,
    /// The topic.
    pub topic: String,
    /// All brokers that are named, each with its port.
    brokers: Vec<String>,
    sasl: Sasl,
}

impl Place {
    /// Reads a URL: `kafka://user:password@host:9092/topic`; user, password and port may be left out. `brokers` are
    /// more brokers of the same cluster.
    ///
    /// # Errors
    /// If it is no such URL, or would send a password without encryption.
    pub fn parse(target: &str, access: &Access, brokers: &[String], sasl: Sasl) -> Result<Self, spec::Fault> {
        let fault = |what: String| spec::Fault::new(access.key, what).hint(format!("write {FORM}"));
        let scheme = target.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
        if scheme.as_deref() != Some("kafka") {
            return Err(fault("this is not the URL of a topic of Kafka".to_owned()));
        }
        let (server, topic) = Server::parse(target, access, PORT, FORM)?;
        if let Some(what) = topic_fault(&topic) {
            return Err(fault(what));
        }
        if server.has_user() && sasl == Sasl::Plain && server.tls == Tls::Off && !is_near(&server.host) {
            let what = "the password would be sent without encryption";
            let hint = "leave `tls: off` out, or write `sasl: scram-sha-256` or `sasl: scram-sha-512`";
            return Err(spec::Fault::new(access.key, what).hint(hint));
        }
        let first = with_port(&server.host, server.port);
        let brokers = std::iter::once(first).chain(brokers.iter().map(|broker| full(broker))).collect();
        Ok(Place { server, topic, brokers, sasl })
    }

    /// What settings say of the topic.
    pub fn facts(&self) -> TopicFacts {
        TopicFacts { name: self.topic.clone(), brokers: self.brokers.clone() }
    }

    /// The configuration that all clients of the cluster have in common. Blocks, since it reads files.
    ///
    /// # Errors
    /// If a secret or the file of authorities cannot be read.
    pub fn client(&self) -> Result<ClientConfig> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.brokers.join(","));
        config.set("client.id", "millstream");
        // The library's defaults keep what a broker that stands still was asked for a minute, and come back to one that
        // restarts after up to ten seconds.
        config.set("socket.timeout.ms", "15000").set("socket.connection.setup.timeout.ms", "10000");
        config.set("reconnect.backoff.ms", "100").set("reconnect.backoff.max.ms", "1000");
        config.set("topic.metadata.refresh.interval.ms", "30000");
        let login = self.server.login()?;
        let has_login = login.0.is_some();
        config.set("security.protocol", protocol(self.server.tls, has_login));
        if self.server.tls == Tls::Verify {
            config.set("ssl.ca.pem", pem(self.server.ca.as_deref())?);
        }
        if let (Some(user), password) = login {
            let password = password.unwrap_or_default();
            config.set("sasl.mechanisms", mechanism(self.sasl));
            config.set("sasl.username", user).set("sasl.password", password);
        }
        Ok(config)
    }
}

/// What the library calls the protocol below Kafka's.
fn protocol(tls: Tls, has_login: bool) -> &'static str {
    match (tls, has_login) {
        (Tls::Off, false) => "plaintext",
        (Tls::Off, true) => "sasl_plaintext",
        (Tls::Verify, false) => "ssl",
        (Tls::Verify, true) => "sasl_ssl",
    }
}

fn mechanism(sasl: Sasl) -> &'static str {
    match sasl {
        Sasl::Plain => "PLAIN",
        Sasl::ScramSha256 => "SCRAM-SHA-256",
        Sasl::ScramSha512 => "SCRAM-SHA-512",
    }
}

/// The trusted authorities. The library's own search for them does not know where the system has them.
fn pem(ca: Option<&str>) -> Result<String> {
    let authorities = millstream_net::tls::authorities(ca)?;
    if authorities.is_empty() {
        let error = Error::refused("there is no authority to trust for encrypted connections");
        return Err(error.hint("install the package `ca-certificates`, or name a PEM file in `ca`"));
    }
    Ok(authorities.iter().map(|authority| in_pem(authority)).collect())
}

/// A certificate in PEM.
fn in_pem(certificate: &[u8]) -> String {
    let text = base64_of(certificate);
    let lines = text.as_bytes().chunks(64).map(String::from_utf8_lossy);
    let lines: String = lines.flat_map(|line| [line.into_owned(), "\n".to_owned()]).collect();
    format!("-----BEGIN CERTIFICATE-----\n{lines}-----END CERTIFICATE-----\n")
}

/// Whether the host is this machine.
fn is_near(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// An address of version 6 has brackets before a port.
fn with_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// A broker of the settings with its port.
fn full(broker: &str) -> String {
    match split(broker) {
        (host, Some(port)) => format!("{host}:{port}"),
        (host, None) => format!("{host}:{PORT}"),
    }
}

/// The host, in brackets if it is an address of version 6, and the port.
fn split(broker: &str) -> (&str, Option<&str>) {
    match broker.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (broker, None),
    }
}

/// What is wrong with a broker of the settings.
pub(super) fn broker_fault(broker: &str) -> Option<String> {
    let is_bare = |text: &str| text.chars().all(|letter| letter.is_alphanumeric() || "-._:".contains(letter));
    let (host, port) = split(broker);
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if broker.contains("//") || !is_bare(inner) {
        return Some(format!("`{broker}` is not a host"));
    }
    match port {
        _ if inner.is_empty() => Some("the host is missing".to_owned()),
        Some(port) if port.parse::<u16>().is_err() => Some(format!("`{port}` is not a port")),
        _ => None,
    }
}

/// What is wrong with the name of a topic.
fn topic_fault(topic: &str) -> Option<String> {
    let is_usual = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    match topic {
        "" => Some("the URL names no topic".to_owned()),
        "." | ".." => Some(format!("`{topic}` is not the name of a topic")),
        topic if topic.len() > LONGEST_TOPIC => Some("the name of the topic is longer than 249 bytes".to_owned()),
        topic => topic
            .chars()
            .find(|letter| !is_usual(*letter))
            .map(|letter| format!("the name of the topic has the character `{}`", letter.escape_debug())),
    }
}

#[cfg(test)]
mod tests {
    use millstream_core::spec::TextOrSecret;

    use super::*;

    fn parse(target: &str, tls: Option<Tls>, sasl: Sasl) -> Result<Place, spec::Fault> {
        Place::parse(target, &Access { key: "read", tls, ..Access::default() }, &["b2".into(), "[::1]:7".into()], sasl)
    }

    #[test]
    fn a_url_names_a_broker_and_a_topic() {
        let place = parse("kafka://127.0.0.1/events", None, Sasl::Plain).expect("a place");
        assert_eq!((place.topic.as_str(), place.server.tls), ("events", Tls::Off));
        let config = place.client().expect("a configuration");
        assert_eq!(config.get("bootstrap.servers"), Some("127.0.0.1:9092,b2:9092,[::1]:7"));
        assert_eq!(config.get("security.protocol"), Some("plaintext"));
        let place = parse("kafka://u:p@broker.example:1/a.b-c_d", None, Sasl::ScramSha256).expect("a place");
        let config = place.client().expect("a configuration");
        let set = ["security.protocol", "sasl.mechanisms", "sasl.username", "sasl.password"];
        assert_eq!(set.map(|name| config.get(name)), ["sasl_ssl", "SCRAM-SHA-256", "u", "p"].map(Some));
        assert!(config.get("ssl.ca.pem").expect("authorities").starts_with("-----BEGIN CERTIFICATE-----\nMII"));
    }

    #[test]
    fn bad_urls_have_faults() {
        for (target, tls, what) in [
            ("kafka://h", None, "the URL names no topic"),
            ("kafka://h/a/b", None, "the name of the topic has the character `/`"),
            ("kafka://h/..", None, "the URL names no topic"),
            ("kafka:///t", None, "the URL has no host"),
            ("http://h/t", None, "this is not the URL of a topic of Kafka"),
            ("kafka://u:p@broker.example/t", Some(Tls::Off), "the password would be sent without encryption"),
        ] {
            let fault = parse(target, tls, Sasl::Plain).expect_err(target);
            assert!(fault.what.starts_with(what), "{target}: {fault:?}");
        }
        let long = format!("kafka://h/{}", "t".repeat(250));
        assert!(parse(&long, None, Sasl::Plain).expect_err("long").what.starts_with("the name of the topic is longer"));
        let user = Some(TextOrSecret::Text("u".to_owned()));
        let access = Access { key: "read", user, tls: Some(Tls::Off), ..Access::default() };
        assert!(Place::parse("kafka://h/t", &access, &[], Sasl::ScramSha512).is_ok());
    }

    #[test]
    fn certificates_are_written_as_openssl_reads_them() {
        assert_eq!(in_pem(&[0; 49]).lines().nth(1).map(str::len), Some(64));
    }
}
