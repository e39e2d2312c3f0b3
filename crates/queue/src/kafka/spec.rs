//! What the job file may say of reading and writing a topic of Kafka.

use millstream_core::spec::{Fault, Secret, Spec, TextOrSecret};
use millstream_net::server::{Access, Tls};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The most bytes of a group's name.
const LONGEST_GROUP: usize = 255;

/// Where a partition begins whose position is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "KafkaStart")]
pub enum Start {
    /// At the first message that the broker still has.
    #[default]
    Earliest,
    /// Behind the last message.
    Latest,
}

/// What happens if the topic has lost messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "KafkaOnGap")]
pub enum OnGap {
    /// The run fails.
    #[default]
    Fail,
    /// A warning says what was lost, and the run continues.
    Warn,
}

/// How a login is proved to the broker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Sasl {
    /// The password is sent: only over encrypted connections, or to this machine itself.
    #[default]
    Plain,
    /// A proof that the password is known, by SHA-256.
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    /// A proof that the password is known, by SHA-512.
    #[serde(rename = "scram-sha-512")]
    ScramSha512,
}

/// A struct of these fields, and of those that say how brokers are reached; `key` is the job file's key of the URL.
macro_rules! with_brokers {
    ($key:literal, $(#[$about:meta])* pub struct $name:ident { $($own:tt)* }) => {
        $(#[$about])*
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($own)*
            /// More brokers of the cluster, each `host` or `host:port`: any of them leads to all others.
            #[serde(default)]
            pub brokers: Vec<String>,
            /// How the login is proved to the broker.
            #[serde(default)]
            pub sasl: Sasl,
            /// The user's name; one in the URL takes precedence. Without a user, there is no login.
            #[serde(default)]
            pub user: Option<TextOrSecret>,
            /// A reference to the password; one in the URL takes precedence.
            #[serde(default)]
            pub password: Option<Secret>,
            /// Whether connections are encrypted and brokers have to prove who they are. By default they are, except
            /// to this machine itself.
            #[serde(default)]
            pub tls: Option<Tls>,
            /// The path of a PEM file with certificates of authorities to trust besides the system's.
            #[schemars(length(min = 1))]
            #[serde(default)]
            pub ca: Option<String>,
        }

        impl $name {
            /// What it says of access to the brokers.
            pub fn access(&self) -> Access {
                let (user, password) = (self.user.clone(), self.password.clone());
                Access { key: $key, user, password, tls: self.tls, ca: self.ca.clone() }
            }
        }
    };
}

with_brokers! {
    "read",
    /// A topic of Kafka, and the consumer group that reads it.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct KafkaRead {
        /// The consumer group. Processes of the same group share the partitions of the topic.
        #[schemars(length(min = 1))]
        pub group: String,
        /// Where a partition begins of which the target has no position; or, where targets keep none, of which the
        /// group has no offset.
        #[serde(default)]
        pub start: Start,
        /// What happens if messages were deleted before they were read, or if the topic was deleted and created again.
        #[serde(default)]
        pub on_gap: OnGap,
    }
}

with_brokers! {
    "write",
    /// How the brokers of a topic that is written to are reached.
    #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub struct KafkaWrite {}
}

impl KafkaRead {
    /// The defaults for a group.
    pub fn new(group: impl Into<String>) -> Self {
        KafkaRead {
            group: group.into(),
            brokers: Vec::new(),
            start: Start::Earliest,
            on_gap: OnGap::Fail,
            sasl: Sasl::Plain,
            user: None,
            password: None,
            tls: None,
            ca: None,
        }
    }
}

impl Spec for KafkaRead {
    const NAME: &'static str = "kafka";
    const SUMMARY: &'static str = "Messages of a topic of Kafka, read by a consumer group.";
    const EXAMPLE: &'static str = "\
read: kafka://broker.example/events
kafka: {group: load, user: etl, password: {secret: env:KAFKA_PASSWORD}}
json: {columns: {id: int64, name: utf8}}
";

    fn check(&self) -> Vec<Fault> {
        let mut faults = broker_faults(&self.brokers);
        faults.extend(group_fault(&self.group).map(|what| Fault::new("group", what)));
        faults
    }
}

impl KafkaWrite {
    /// What the types do not show.
    pub fn faults(&self) -> Vec<Fault> {
        broker_faults(&self.brokers)
    }
}

/// What is wrong with brokers of the settings.
fn broker_faults(brokers: &[String]) -> Vec<Fault> {
    let broken = |(at, broker): (usize, &String)| {
        let fault = |what| Fault::new(&format!("brokers.{at}"), what).hint("write host or host:port");
        super::place::broker_fault(broker).map(fault)
    };
    brokers.iter().enumerate().filter_map(broken).collect()
}

/// What is wrong with the name of a group.
fn group_fault(name: &str) -> Option<String> {
    let what = if name.is_empty() {
        "is empty"
    } else if name.len() > LONGEST_GROUP {
        "is longer than 255 bytes"
    } else if name.chars().any(char::is_control) {
        "has control characters"
    } else {
        return None;
    };
    Some(format!("the name of the group {what}"))
}

#[cfg(test)]
mod tests {
    use millstream_core::spec;
    use serde_json::json;

    use super::*;

    #[test]
    fn most_settings_have_defaults() {
        let read: KafkaRead = spec::parse(&json!({"group": "g"})).expect("settings");
        assert_eq!(read, KafkaRead::new("g"));
        let read: KafkaRead = spec::parse(&json!({
            "group": "g", "brokers": ["b2", "b3:9093", "[::1]:9092"], "start": "latest", "on_gap": "warn",
            "sasl": "scram-sha-512", "user": "u", "password": {"secret": "env:P"}, "tls": "off", "ca": "a.pem",
        }))
        .expect("settings");
        assert_eq!((read.sasl, read.start, read.on_gap), (Sasl::ScramSha512, Start::Latest, OnGap::Warn));
        assert_eq!((read.access().tls, read.access().ca.as_deref()), (Some(Tls::Off), Some("a.pem")));
    }

    #[test]
    fn sinks_need_no_settings() {
        let write: KafkaWrite = serde_json::from_value(json!({})).expect("settings");
        assert_eq!((write.access().key, write), ("write", KafkaWrite::default()));
        let write: KafkaWrite = serde_json::from_value(json!({"brokers": ["b:99999"]})).expect("settings");
        assert_eq!(write.faults()[0].what, "`99999` is not a port");
    }

    #[test]
    fn bad_settings_have_faults_with_their_keys() {
        let long = "g".repeat(256);
        for (settings, key, what) in [
            (json!({}), "", "missing field `group`"),
            (json!({"group": ""}), "group", "the name of the group is empty"),
            (json!({"group": long}), "group", "the name of the group is longer than 255 bytes"),
            (json!({"group": "a\nb"}), "group", "the name of the group has control characters"),
            (json!({"group": "g", "brokers": ["b", "b:x"]}), "brokers.1", "`x` is not a port"),
            (json!({"group": "g", "brokers": ["kafka://b"]}), "brokers.0", "`kafka://b` is not a host"),
            (json!({"group": "g", "brokers": [""]}), "brokers.0", "the host is missing"),
            (json!({"group": "g", "sasl": "gssapi"}), "sasl", "unknown variant `gssapi`"),
        ] {
            let faults = spec::parse::<KafkaRead>(&settings).expect_err("a fault");
            assert_eq!(faults.len(), 1, "{faults:?}");
            assert_eq!(faults[0].path.join("."), key, "{faults:?}");
            assert!(faults[0].what.starts_with(what), "{faults:?}");
        }
    }
}
